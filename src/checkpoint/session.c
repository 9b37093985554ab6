#include "checkpoint/session.h"
#include "checkpoint/internal.h"
#include "engine/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool im_checkpoint_has_weights(const char *dir)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char path[IM_CHECKPOINT_PATH];
    for (size_t i = 0; dir && i < IM_COUNT_OF(names); i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) < (int)sizeof path && im_path_exists(path))
            return true;
    return false;
}

enum { SAMPLE = 256 }; /* elements */

im_status im_checkpoint_hash_weights(im_context *ctx, const char *dir, uint64_t *h)
{
    im_weights *w;
    im_status status = IM_OK;
    float sample[2][SAMPLE];
    IM_TRY(im_weights_open(ctx, dir, &w));
    for (size_t i = 0; i < im_weights_count(w); i++) {
        const im_st_tensor *t = im_weights_at(w, i);
        int64_t n = 1;
        for (int d = 0; d < t->ndim; d++)
            n *= t->shape[d];
        *h = im_hash64(t->name, strlen(t->name), *h);
        *h = im_hash64(t->dtype_name, strlen(t->dtype_name), *h);
        *h = im_hash64(t->shape, sizeof *t->shape * t->ndim, *h);
        int64_t part = n < SAMPLE ? n : SAMPLE;
        if (!t->known_dtype || !part)
            continue;
        IM_TRY_GOTO(im_weights_read(ctx, w, t, 0, part, IM_F32, sample[0]), close_weights);
        IM_TRY_GOTO(im_weights_read(ctx, w, t, n - part, part, IM_F32, sample[1]), close_weights);
        for (int k = 0; k < 2; k++)
            *h = im_hash64(sample[k], (size_t)part * sizeof **sample, *h);
    }
close_weights:
    im_weights_close(w);
    return status;
}

/* ---- open ------------------------------------------------------------------------------- */

im_status im_checkpoint_session_open(im_context *ctx, const char *what, const char *models_dir, im_checkpoint_session *out)
{
    char dir[IM_CHECKPOINT_PATH];
    im_checkpoint_session s = {.ctx = ctx, .ranks = 1, .ranks_here = 1};
    if (!what)
        return im_fail(ctx, IM_ERR_ARG, "--model is missing: a model directory, a checkpoint or a run directory");
    IM_TRY(im_checkpoint_resolve(ctx, what, dir, sizeof dir));
    IM_TRY(im_model_open(ctx, dir, models_dir, &s.model));
    im_status status;
    IM_TRY_GOTO(im_model_need_runnable(ctx, s.model), close_model);
    if (!im_checkpoint_has_weights(s.model->dir)) {
        status = im_fail(ctx, IM_ERR_NOT_FOUND,
                         "%s: no weights (model.safetensors, or model.safetensors.index.json with its shards); a named shape or a config alone has "
                         "none: train it first",
                         dir);
        goto close_model;
    }
    IM_TRY_GOTO(im_checkpoint_check_weights(ctx, s.model->dir), close_model);
    im_plan_defaults(&s.plan, s.model);
    s.plan.dropout = 0;
    *out = s;
    return IM_OK;
close_model:
    im_model_close(s.model);
    return status;
}

/* ---- between join and start ----------------------------------------------------------------- */

/* Bytes of every rank, in its order, on each: over a communicator and an arena of their own, which the engine has not taken yet. */
static im_status gather(im_checkpoint_session *s, const void *mine, size_t each, void *all)
{
    size_t n = (size_t)s->ranks, nbytes = n * each;
    void *memory;
    IM_TRY(im_alloc(s->ctx, n, sizeof(size_t) + sizeof(int), &memory));
    size_t *counts = memory;
    int *list = (int *)(counts + n);
    im_comm *c = NULL;
    im_status status;
    for (int i = 0; i < s->ranks; i++) {
        counts[i] = each;
        list[i] = i;
    }
    im_buffer out = {.arena = IM_CLASS_COMM, .nbytes = nbytes}, in = {.arena = IM_CLASS_COMM, .offset = (size_t)s->rank * each, .nbytes = each};
    IM_TRY_GOTO(im_comm_split(s->world, list, s->ranks, &c), free_lists);
    im_queue *q = im_device_queue(s->device, IM_QUEUE_COMM0);
    if (!q) {
        status = im_error_code(s->ctx);
        goto destroy_comm;
    }
    IM_TRY_GOTO(im_device_reserve(s->device, IM_CLASS_COMM, nbytes), destroy_comm);
    IM_TRY_GOTO(im_queue_upload(q, in, mine, each), destroy_comm);
    IM_TRY_GOTO(im_comm_all_gather(c, q, in, out, counts, IM_U8, NULL), destroy_comm);
    IM_TRY_GOTO(im_queue_download(q, all, out, nbytes), destroy_comm);
    status = im_device_sync(s->device);
destroy_comm:
    im_comm_destroy(c);
    im_device_release(s->device, IM_CLASS_COMM);
free_lists:
    free(memory);
    return status;
}

im_status im_checkpoint_session_share(im_checkpoint_session *s, void *data, size_t nbytes)
{
    void *all;
    if (s->ranks == 1)
        return IM_OK;
    IM_TRY(im_alloc(s->ctx, (size_t)s->ranks, nbytes, &all));
    im_status status = gather(s, data, nbytes, all);
    if (status == IM_OK)
        memcpy(data, all, nbytes);
    free(all);
    return status;
}

im_status im_checkpoint_session_same(im_checkpoint_session *s, const uint64_t *fact, const char *const *name, size_t n)
{
    void *memory;
    im_str what = {0};
    int other = 0;
    if (s->ranks == 1)
        return IM_OK;
    IM_TRY(im_alloc(s->ctx, (size_t)s->ranks * n, sizeof *fact, &memory));
    uint64_t *all = memory;
    im_status status = gather(s, fact, n * sizeof *fact, all);
    for (int r = 1; status == IM_OK && r < s->ranks && !other; r++)
        for (size_t i = 0; i < n; i++)
            if (all[(size_t)r * n + i] != all[i]) {
                im_str_printf(&what, "%s%s", what.len ? ", " : "", name[i]);
                other = r;
            }
    if (other)
        status = im_fail(s->ctx, IM_ERR_ARG,
                         "rank %d has another task than rank 0; different: %s. Every process gets the same command line and sees the same files",
                         other, im_str_text(&what));
    im_str_free(&what);
    free(memory);
    return status;
}

im_status im_checkpoint_session_identity(im_checkpoint_session *s, uint64_t *h)
{
    im_str config = {0};
    im_status status = im_model_config_text(s->ctx, s->model, IM_F32, &config);
    *h = im_hash64(im_str_text(&config), config.len, 0);
    im_str_free(&config);
    IM_TRY(status);
    return im_checkpoint_hash_weights(s->ctx, s->model->dir, h);
}

/* ---- start ------------------------------------------------------------------------------------ */

/* The ranks of this machine together; one rank's engine tells it by class. */
static im_status need_memory(im_checkpoint_session *s, const im_program_want *want, size_t nwant)
{
    char need[32], have[32];
    double all = 0;
    if (s->ranks == 1)
        return IM_OK;
    for (int r = 0; r < s->ranks; r++) {
        im_memory m;
        IM_TRY(im_engine_predict(s->ctx, &s->plan, r, want, nwant, &m));
        all += (double)m.total;
    }
    double here = all / s->ranks * s->ranks_here;
    if (here <= (double)im_machine_memory())
        return IM_OK;
    return im_fail(s->ctx, IM_ERR_NOMEM, "%d rank%s need%s %s, this machine has %s: fewer tokens or a smaller batch, bf16, or more machines",
                   s->ranks_here, s->ranks_here > 1 ? "s" : "", s->ranks_here > 1 ? " together" : "s", im_format_bytes(need, sizeof need, here),
                   im_format_bytes(have, sizeof have, (double)im_machine_memory()));
}

im_status im_checkpoint_session_start(im_checkpoint_session *s, const im_program_want *want, size_t nwant)
{
    im_engine_config engine = {.plan = &s->plan, .device = s->device, .world = s->world, .want = want, .nwant = nwant};
    if (s->rank == 0)
        IM_TRY(need_memory(s, want, nwant));
    IM_TRY(im_engine_open(s->ctx, &engine, &s->engine));
    return im_engine_agree(s->engine, s->ctx, im_checkpoint_load_weights(s->ctx, s->engine, s->model->dir));
}

void im_checkpoint_session_close(im_checkpoint_session *s)
{
    im_status status = im_checkpoint_session_stop(s, IM_OK);
    (void)status; /* told before, or of no consequence any more */
    im_model_close(s->model);
    *s = (im_checkpoint_session){0};
}
