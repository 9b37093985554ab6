/* session: a model with its weights, opened to be run and not trained: what evaluation and generation stand on.
 *
 *   open    what the user named -> a model that this build runs and that has weights; session.plan has defaults
 *   join    after the caller has set the plan: its layout is checked, and every rank has a device and the world's communicator. Ranks are threads of
 *           this process, or processes of an MPI job, each of which opens and joins for itself
 *   start   all ranks, after each has chosen the same programs: engine, weights
 *   stop    rank 0, whose others have come to their end or are told of its failure
 *   close   everything
 *
 *     rank 0     open, join ----- start | runs | stop: joins the threads
 *     threads            others: start | run  |
 */
#ifndef IM_CHECKPOINT_SESSION_H
#define IM_CHECKPOINT_SESSION_H

#include "checkpoint/checkpoint.h"

typedef struct im_checkpoint_team im_checkpoint_team;

typedef struct im_checkpoint_session {
    im_context *ctx; /* of this rank */
    im_model *model;
    im_plan plan;
    im_device *device;
    im_comm *world;
    im_engine *engine;
    int rank, ranks, ranks_here; /* here: on this machine */
    im_kernels kernels;
    im_comm_mpi_world *mpi;
    im_checkpoint_team *team; /* of rank 0 when the others are threads; they borrow the model */
} im_checkpoint_session;

typedef struct im_checkpoint_join {
    bool deferred;
    im_kernels kernels;
    bool batch_follows;     /* im_plan_check_layout */
    im_comm_mpi_world *mpi; /* this process is a rank of it; NULL: the others are threads */
    double deadline;        /* seconds that a rank waits for the others in one operation; 0: 300 */
    /* What a thread does as its rank, with its own session, which is closed for it. What it returns ends the session for all. */
    im_status (*others)(void *arg, im_checkpoint_session *s);
    void *arg;
} im_checkpoint_join;

/* There is a model.safetensors or an index of shards in dir (NULL: no). */
bool im_checkpoint_has_weights(const char *dir);
/* Names, types, shapes, first and last elements of each tensor, and what the hash began with: two sets of weights for one model differ there. */
im_status im_checkpoint_hash_weights(im_context *ctx, const char *dir, uint64_t *h) IM_MUST_CHECK;
/* what: a model directory, a checkpoint, a run directory (its newest checkpoint). Dropout is off, threads are chosen by join. */
im_status im_checkpoint_session_open(im_context *ctx, const char *what, const char *models_dir, im_checkpoint_session *out) IM_MUST_CHECK;
/* plan.threads are a rank's; 0: the usable cores, shared out over the ranks of this machine. A session that has joined is stopped first. */
im_status im_checkpoint_session_join(im_checkpoint_session *s, const im_checkpoint_join *how) IM_MUST_CHECK;
/* Between join and start, all ranks: bytes of rank 0 on every rank; nbytes is the same on all. */
im_status im_checkpoint_session_share(im_checkpoint_session *s, void *data, size_t nbytes) IM_MUST_CHECK;
/* Between join and start, all ranks: n facts of which each has a name are the same on all, or the first rank whose are not is told with their names. */
im_status im_checkpoint_session_same(im_checkpoint_session *s, const uint64_t *fact, const char *const *name, size_t n) IM_MUST_CHECK;
/* A hash of the model's config and weights. */
im_status im_checkpoint_session_identity(im_checkpoint_session *s, uint64_t *h) IM_MUST_CHECK;
im_status im_checkpoint_session_start(im_checkpoint_session *s, const im_program_want *want, size_t nwant) IM_MUST_CHECK;
/* Engine and device; the model stays. status: how this rank ended. An error is told to the others, who stop; returned is the one that says most of
 * the cause. */
im_status im_checkpoint_session_stop(im_checkpoint_session *s, im_status status) IM_MUST_CHECK;
void im_checkpoint_session_close(im_checkpoint_session *s); /* one that was never opened (zeros) is fine */

#endif
