/* Checkpoints of a run: one at a time, in the background. A save that fails is told and tried again at the next one;
 * only the last one decides how the run ends. */
#include "train/internal.h"

#include <inttypes.h>
#include <stdio.h>

static void ended(im_train_run *r, im_status status)
{
    r->save_status = status;
    if (status == IM_OK) {
        r->saved_step = r->saving_step;
        im_train_say(r, IM_TRAIN_TEXT_EVENT, "step %" PRId64 ": saved", r->saving_step);
        return;
    }
    snprintf(r->save_error, sizeof r->save_error, "%s", im_error_text(r->ctx));
    im_train_say(r, IM_TRAIN_TEXT_WARNING, "step %" PRId64 " was not saved: %s; the checkpoints before it are whole", r->saving_step,
                 im_error_text(r->ctx));
    if (r->metrics && im_observe_put_event(r->metrics, r->saving_step, "save_failed", im_error_text(r->ctx)) != IM_OK)
        r->metrics_failed = true;
    im_error_clear(r->ctx); /* the run goes on */
}

void im_train_save_reap(im_train_run *r, bool wait)
{
    if (!r->saving)
        return;
    bool done = true;
    if (!wait && im_checkpoint_poll(r->saving, &done) == IM_OK && !done)
        return;
    im_checkpoint_save *s = r->saving;
    im_comm_note(r->world, r->meta.step, "end of a save");
    r->saving = NULL;
    ended(r, im_checkpoint_finish(s));
}

/* Of a run that has failed: nothing is told but that. */
void im_train_save_abandon(im_train_run *r)
{
    im_checkpoint_save *s = r->saving;
    r->saving = NULL;
    im_status ignored = s ? im_checkpoint_finish(s) : IM_OK;
    (void)ignored;
}

im_status im_train_save_begin(im_train_run *r)
{
    im_train_save_reap(r, true);                            /* never two at once */
    if (r->saved_step == r->meta.step || im_train_paced(r)) /* paced: all weights are as they were drawn */
        return IM_OK;
    im_comm_note(r->world, r->meta.step, "start of a save");
    r->meta.elapsed_s = im_train_elapsed(r);
    r->saving_step = r->meta.step;
    im_status status = im_checkpoint_start(r->ctx, r->engine, r->checkpoints, &r->meta, r->copy_from, (int)r->o.keep, &r->saving);
    if (status != IM_OK) {
        r->saving = NULL;
        ended(r, status);
    }
    return IM_OK;
}

im_status im_train_save_end(im_train_run *r)
{
    im_train_save_reap(r, true);
    if (r->save_status == IM_OK)
        return IM_OK;
    r->agreed = true;
    char newest[64] = "no checkpoint is whole";
    if (r->saved_step >= 0)
        snprintf(newest, sizeof newest, "step-%" PRId64 " is the newest whole one", r->saved_step);
    return im_fail(r->ctx, r->save_status, "%s: the last checkpoint could not be saved: %s; %s", r->checkpoints, r->save_error, newest);
}
