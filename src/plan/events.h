/* events: programs on a cluster in time, by discrete events. As im_simulate, and besides: what a device sends at once over one link shares it, and ranks that
 * do the same are folded into one that stands for them.
 */
#ifndef IM_PLAN_EVENTS_H
#define IM_PLAN_EVENTS_H

#include "plan/cost.h"
#include "plan/simulate.h"

/* ---- programs of a run, folded ---------------------------------------------------------------- */

/* Of each pipeline stage the program of tp rank 0 of the first dp rank: no rank of the stage has more heads, rows of the vocabulary or micro-batches.
 * Where all ranks of a stage are alike the fold is exact; else it is as good as that rank stands for the slowest, and `uneven` says what differs. */
typedef struct im_fold {
    int n;              /* programs: pp, or all ranks when not folded */
    int64_t stands_for; /* ranks each */
    im_layout **layout;
    im_program **program;
    const char *uneven; /* NULL: all alike */
    im_plan plan;       /* with one thread: what a program is does not depend on this machine */
    im_arena *arena;
} im_fold;

im_status im_fold_open(im_context *ctx, const im_plan *p, bool whole, im_fold *out) IM_MUST_CHECK;
void im_fold_close(im_fold *f);

/* ---- in time ------------------------------------------------------------------------------------- */

/* What an op takes when it is alone, and which of its device's links it keeps busy. */
typedef struct im_event_price {
    double seconds;
    bool network; /* communication: over the network, else within the domain */
    bool blocks;  /* communication: the device computes nothing meanwhile */
} im_event_price;
typedef im_event_price (*im_event_price_fn)(void *arg, const im_program *p, const im_bound *x);

/* Linear in the ops but for a logarithm. IM_ERR_CHECK: ranks that should meet do different things, or a deadlock. Deterministic. The timeline is freed with
 * im_timeline_free. price is called once for each op that differs. */
im_status im_events_run(im_context *ctx, const im_program *const *ranks, int n, im_event_price_fn price, void *arg, im_timeline *out) IM_MUST_CHECK;

#endif
