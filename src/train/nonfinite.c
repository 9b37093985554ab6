/* A step whose loss or gradient is not a finite number: UPDATE has changed nothing. It is told with the first unit and
 * tensor that show it, then --nonfinite decides. All ranks come to the same decision in the same step: what they look at is reduced over
 * all of them. A weight that an update made not finite is seen in that step, before anything is saved. */
#include "train/internal.h"

#include "engine/agree.h"

#include <inttypes.h>
#include <stdio.h>

enum { IM_MAX_CONSECUTIVE = 20, IM_MAX_ROLLBACKS = 20 };

/* "step 7: WHAT WHERE WHY; the last good checkpoint is ...; ADVICE" */
static im_status give_up(im_train_run *r, const char *what, const char *where, const char *why, const char *advice)
{
    r->diverged = r->agreed = true;
    im_train_save_reap(r, true);
    char last[IM_TRAIN_PATH + 64] = "no checkpoint was written yet";
    if (r->saved_step >= 0)
        snprintf(last, sizeof last, "the last good checkpoint is %s/step-%" PRId64, r->checkpoints, r->saved_step);
    return im_fail(r->ctx, IM_ERR_NONFINITE, "step %" PRId64 ": %s%s%s; %s. %s", r->meta.step + 1, what, where, why, last, advice);
}

/* A run that leaves out or rolls back already needs no word of it. */
static const char *advice(const im_train_run *r)
{
    return r->o.nonfinite == IM_TRAIN_NONFINITE_STOP ? "Lower --lr or --clip, raise --eps, or use --nonfinite skip|rollback"
                                                     : "Lower --lr or --clip, or raise --eps";
}

static im_status end_with(im_train_run *r, const char *where, const char *why)
{
    return give_up(r, "loss or gradient is not finite, first in ", where, why, advice(r));
}

static void note(im_train_run *r, const char *event, const char *text)
{
    if (r->metrics && im_observe_put_event(r->metrics, r->meta.step + 1, event, text) != IM_OK) {
        r->metrics_failed = true;
        im_error_clear(r->ctx);
    }
}

static im_status skip(im_train_run *r, const char *where)
{
    if (++r->consecutive_bad > IM_MAX_CONSECUTIVE)
        return end_with(r, where, "; weights are as before the step; 20 steps in a row were left out");
    r->summary.left_out++;
    im_train_say(r, IM_TRAIN_TEXT_WARNING, "step %" PRId64 " left out: not finite, first in %s", r->meta.step + 1, where);
    note(r, "skip", where);
    return IM_OK;
}

/* The checkpoint to go back to. Rank 0 looks, and goes for all: on a shared disk another rank may still see an older one. */
static im_status newest(im_train_run *r, char dir[IM_TRAIN_PATH])
{
    dir[0] = '\0';
    im_status own = r->rank ? IM_OK : im_checkpoint_latest(r->ctx, r->checkpoints, dir, IM_TRAIN_PATH);
    IM_TRY(im_engine_agree(r->engine, r->ctx, own));
    return im_engine_share(r->engine, dir, IM_TRAIN_PATH, 0);
}

/* Back to the last checkpoint (or the first weights); the samples of this step are left out when the run comes to them again. */
static im_status rollback(im_train_run *r, const char *where)
{
    im_train_save_reap(r, true);
    if (r->rollbacks >= IM_MAX_ROLLBACKS || r->meta.nskip >= IM_CHECKPOINT_MAX_SKIPS)
        return end_with(r, where, "; rolled back 20 times already");
    im_checkpoint_meta bad = r->meta;
    note(r, "rollback", where);
    char dir[IM_TRAIN_PATH];
    const char *from = NULL;
    if (r->saved_step >= 0) {
        IM_TRY(newest(r, dir));
        from = dir;
    }
    r->rollbacks++;
    r->summary.left_out++;
    IM_TRY(im_train_load_state(r, from));
    /* all ranges left out so far, those after this checkpoint too */
    for (int i = 0; i < bad.nskip; i++)
        r->meta.skip[i] = bad.skip[i];
    r->meta.nskip = bad.nskip;
    r->meta.skip[r->meta.nskip++] = (im_checkpoint_skip){bad.position, r->o.global_batch};
    im_train_say(r, IM_TRAIN_TEXT_WARNING,
                 "step %" PRId64 " is not finite, first in %s: back to step %" PRId64 ", samples %" PRId64 " to %" PRId64 " are left out",
                 bad.step + 1, where, r->meta.step, bad.position, bad.position + r->o.global_batch - 1);
    return IM_OK;
}

im_status im_train_nonfinite_step(im_train_run *r, const im_op_now *now, const im_source *src)
{
    im_str where = {0};
    im_status status = im_engine_diagnose(r->engine, 0, now, src, &where);
    if (status == IM_OK) {
        const char *text = *im_str_text(&where) ? im_str_text(&where) : "the gradient's norm";
        switch ((im_train_nonfinite)r->o.nonfinite) {
        case IM_TRAIN_NONFINITE_SKIP: status = skip(r, text); break;
        case IM_TRAIN_NONFINITE_ROLLBACK: status = rollback(r, text); break;
        case IM_TRAIN_NONFINITE_STOP: status = end_with(r, text, "; weights are as before the step"); break;
        }
    }
    im_str_free(&where);
    return status;
}

/* Who sees that a step is not finite when others do not. Sums give the same bits to all, so what they exchanged was changed on its way. */
static im_status find_lonely(im_train_run *r, im_str *out)
{
    double first = r->last.finite ? r->ranks : r->rank;
    IM_TRY(im_engine_combine(r->engine, &first, 1, IM_MIN));
    im_str_printf(out, "rank %d", (int)first);
    if (r->saw_nonfinite > 1)
        im_str_printf(out, " and %d more", r->saw_nonfinite - 1);
    im_str_printf(out, " of %d got a loss or gradient that is not finite, and the others did not", r->ranks);
    return IM_OK;
}

/* No step can be left out any more: its weights are the only ones there are. */
im_status im_train_bad_weights(im_train_run *r)
{
    im_str where = {0};
    bool lonely = r->saw_nonfinite > 0;
    im_status status = lonely ? find_lonely(r, &where) : im_engine_find_bad_weight(r->engine, &where);
    const char *text = im_str_text(&where);
    if (status == IM_OK && r->o.nonfinite == IM_TRAIN_NONFINITE_ROLLBACK) {
        status = rollback(r, text);
    } else if (status == IM_OK) {
        note(r, "bad_weights", text);
        status = lonely ? give_up(r, "", text, "; weights differ between ranks",
                                  "What ranks exchange was changed on its way: look at the machine's memory and network")
                        : give_up(r, "after the update weights are not finite, first in ", text, "", advice(r));
    }
    im_str_free(&where);
    return status;
}
