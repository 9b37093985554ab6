/* agree: what the ranks of a run settle between themselves outside programs: small values, by the world's communicator.
 *
 * Called by all ranks in the same order, from the host thread; they wait for each other. With one rank nothing happens. */
#ifndef IM_ENGINE_AGREE_H
#define IM_ENGINE_AGREE_H

#include "engine/engine.h"
#include "observe/observe.h"

enum { IM_AGREE_VALUES = 16 };
int im_engine_ranks(const im_engine *e);
int im_engine_rank(const im_engine *e);
double im_engine_deadline(const im_engine *e); /* seconds that a rank waits for the others in one operation */
/* n <= IM_AGREE_VALUES values become their sum, largest or smallest over all ranks. */
im_status im_engine_combine(im_engine *e, double *value, size_t n, im_reduce r) IM_MUST_CHECK;
/* Bytes of rank `root` on every rank; nbytes is the same on all. */
im_status im_engine_share(im_engine *e, void *data, size_t nbytes, int root) IM_MUST_CHECK;
/* An error of one rank becomes everybody's: the lowest rank that has one gives code and text, recorded in ctx ("rank 2: ...") where it is
 * not the rank's own. IM_OK when no rank has one. */
im_status im_engine_agree(im_engine *e, im_context *ctx, im_status own) IM_MUST_CHECK;
/* A rank's bytes by class, as they were predicted and as they lie in memory, on every rank. */
im_status im_engine_rank_memory(im_engine *e, int rank, im_observe_memory *out) IM_MUST_CHECK;
/* This rank can not go on: all others are told, and stop. */
void im_engine_abort(im_engine *e);

#endif
