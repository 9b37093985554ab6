/* simulate: when each op of each rank runs, by discrete events over the programs that the engine executes. */
#ifndef IM_PLAN_SIMULATE_H
#define IM_PLAN_SIMULATE_H

#include "plan/program.h"

/* Seconds of an op that may start; of a collective or message, once all who take part have come: the longest of theirs counts. */
typedef double (*im_price_fn)(void *arg, const im_program *p, const im_bound *x);

typedef struct im_timeline {
    int n;                 /* ranks */
    double **start, **end; /* [rank][op], seconds from the beginning of the step */
    double total;
} im_timeline;

/* Queues run their ops in order, an op when what it waits for has ended, collectives and messages when all their ranks are there (sends as
 * rendezvous). price NULL: all take no time. IM_ERR_CHECK: ranks that should meet do different things, or a deadlock, told with each rank's place. */
im_status im_simulate(im_context *ctx, const im_program *const *ranks, int n, im_price_fn price, void *arg, im_timeline *out) IM_MUST_CHECK;
void im_timeline_free(im_timeline *t);

#endif
