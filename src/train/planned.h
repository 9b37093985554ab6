/* planned: a plan's step in time, on a machine of given rates. */
#ifndef IM_TRAIN_PLANNED_H
#define IM_TRAIN_PLANNED_H

#include "plan/draw.h"

enum { IM_PLANNED_RANKS = 64 };

typedef struct im_train_rates {
    im_pace pace;   /* of a rank */
    double latency; /* seconds of a message or collective beside its bytes */
} im_train_rates;

/* Builds the programs of all ranks (at most IM_PLANNED_RANKS) and runs them in time: arithmetic at the rate of matrix products or bytes at that of
 * memory, whichever takes longer; messages and collectives as copies in memory. */
im_status im_train_planned(im_context *ctx, const im_plan *p, const im_train_rates *rates, im_drawing *out) IM_MUST_CHECK;

#endif
