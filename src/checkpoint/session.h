/* session: a model with its weights, opened to be run and not trained: what evaluation and generation stand on.
 *
 *   open    what the user named -> a model that this build runs and that has weights; session.plan has defaults
 *   start   after the caller has set the plan's sizes and chosen programs: device, engine, weights
 *   close   everything
 */
#ifndef IM_CHECKPOINT_SESSION_H
#define IM_CHECKPOINT_SESSION_H

#include "checkpoint/checkpoint.h"

typedef struct im_checkpoint_session {
    im_model *model;
    im_plan plan;
    im_device *device;
    im_comm *world;
    im_engine *engine;
} im_checkpoint_session;

/* There is a model.safetensors or an index of shards in dir (NULL: no). */
bool im_checkpoint_has_weights(const char *dir);
/* what: a model directory, a checkpoint, a run directory (its newest checkpoint). Dropout is off, threads are the usable cores. */
im_status im_checkpoint_session_open(im_context *ctx, const char *what, const char *models_dir, im_checkpoint_session *out) IM_MUST_CHECK;
/* plan.threads are the device's. A session that is started already is stopped first. */
im_status im_checkpoint_session_start(im_context *ctx, im_checkpoint_session *s, bool deferred, im_kernels kernels, const im_program_want *want,
                                      size_t nwant) IM_MUST_CHECK;
void im_checkpoint_session_stop(im_checkpoint_session *s);  /* engine and device; the model stays */
void im_checkpoint_session_close(im_checkpoint_session *s); /* one that was never opened (zeros) is fine */

#endif
