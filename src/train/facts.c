/* facts: what must be the same on all ranks of a run, which each of them plans for itself: an option a fact, files by what is in them. */
#include "train/internal.h"

#include "checkpoint/session.h"

#include <inttypes.h>
#include <string.h>

enum { RESUME = IM_TRAIN_SAVED_ROWS };

/* Rank 0's word counts, or each rank has its own. */
static bool is_local(const char *option)
{
    static const char *const local[] = {"out", "threads", "trace", "keep", "kernels", "device"};
    for (size_t i = 0; i < IM_COUNT_OF(local); i++)
        if (!strcmp(option, local[i]))
            return true;
    return false;
}

static uint64_t hash_row(const im_train_run *r, size_t i)
{
    im_str text = {0};
    im_option_to_yaml(&im_train_rows[i], 1, &r->o, &text);
    uint64_t h = im_hash64(im_str_text(&text), text.len, 0);
    im_str_free(&text);
    return h;
}

static im_status hash_model(im_train_run *r, uint64_t *h)
{
    const char *dir = r->from[0] ? r->from : r->o.init == IM_TRAIN_INIT_AUTO ? r->model->dir : NULL;
    im_str config = {0};
    im_status status = im_model_config_text(r->ctx, r->model, IM_F32, &config);
    *h = im_hash64(im_str_text(&config), config.len, 0);
    im_str_free(&config);
    IM_TRY(status);
    return dir && im_checkpoint_has_weights(dir) ? im_checkpoint_hash_weights(r->ctx, dir, h) : IM_OK;
}

im_status im_train_facts(im_train_run *r, im_train_fact *fact)
{
    for (size_t i = 0; i < IM_TRAIN_SAVED_ROWS; i++) {
        const char *name = im_train_rows[i].name;
        if (!strcmp(name, "model"))
            IM_TRY(hash_model(r, &fact[i]));
        else if (!strcmp(name, "data"))
            fact[i] = im_feed_fingerprint(r->data);
        else if (!strcmp(name, "valid"))
            fact[i] = r->valid ? im_feed_fingerprint(r->valid) : 0;
        else if (!strcmp(name, "kernels")) /* fast and plain give the same values, paced none */
            fact[i] = im_train_paced(r);
        else if (!is_local(name))
            fact[i] = hash_row(r, i);
    }
    fact[RESUME] = im_hash64(r->from, strlen(r->from), (uint64_t)r->meta.step);
    return IM_OK;
}

im_status im_train_facts_compare(im_train_run *r, int rank, const im_train_fact *its, const im_train_fact *first)
{
    im_str what = {0};
    im_status status = IM_OK;
    for (size_t i = 0; i < IM_TRAIN_FACTS; i++)
        if (its[i] != first[i])
            im_str_printf(&what, "%s%s", what.len ? ", " : "", i == RESUME ? "the checkpoint to go on from" : im_train_rows[i].name);
    if (what.len)
        status = im_fail(r->ctx, IM_ERR_ARG,
                         "rank %d planned another run than rank 0; different: %s. Every process gets the same command line and sees the same files",
                         rank, im_str_text(&what));
    im_str_free(&what);
    return status;
}
