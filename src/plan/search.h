/* search: every layout of a model on a cluster, the best first.
 *
 * A layout is a leaf: mesh, micro-batch, ZeRO, sequence parallelism, recompute, schedule with chunks, stage boundaries, order of the ranks. Leaves are looked
 * at best first, by a lower bound that gets sharper each time one comes up:
 *
 *   0  arithmetic at the best rate that the device's curve has, and the bubble that no schedule avoids
 *   1  the parts of the program as they are priced (a model with one block of each kind, built, placed, and run by events), one stage after the other
 *   2  the schedule's tasks in time, messages, reductions and the update included: what is told
 *
 * A bound is never above the next, so what comes up at 2 is the best of all that is left. Memory is a walk over the tasks with the bytes of the same
 * program. No clock and no random numbers: twice the same.
 */
#ifndef IM_PLAN_SEARCH_H
#define IM_PLAN_SEARCH_H

#include "plan/cost.h"

typedef enum im_objective { IM_OBJECTIVE_TIME, IM_OBJECTIVE_MEMORY, IM_OBJECTIVE_COST } im_objective;

/* Why a layout is not among the answers. SLOWER: a bound shows that it is worse than all that are told. */
typedef enum im_refusal {
    IM_REFUSED_NOT,
    IM_REFUSED_HEADS,         /* tp: none that the model's heads can have */
    IM_REFUSED_STAGES,        /* pp, or pp x chunks: more runs than blocks, or than this build has */
    IM_REFUSED_BATCH,         /* dp: fewer sequences than ranks */
    IM_REFUSED_MICRO_BATCHES, /* more of them than a program may have */
    IM_REFUSED_TIED,          /* ZeRO 2 and 3 over stages that share a table */
    IM_REFUSED_RULE,          /* what else im_plan_validate_shape says */
    IM_REFUSED_MEMORY,
    IM_REFUSED_SLOWER,
    IM_REFUSED_COUNT
} im_refusal;
const char *im_refusal_name(im_refusal r);

/* -1: any */
typedef struct im_search_fix {
    int tp, dp, pp, zero, schedule, chunks, sequence_parallel, recompute;
    int64_t micro_batch;
    int stages; /* im_stages; GIVEN is none that can be fixed */
    int order;  /* number of an order, im_search_order_name */
} im_search_fix;
im_search_fix im_search_free(void); /* nothing is fixed */

/* Fastest axis first: "tp-dp-pp" is number 0, how this build numbers ranks. */
enum { IM_SEARCH_ORDERS = 6 };
const char *im_search_order_name(int order);

typedef struct im_search_request {
    im_plan base; /* model, seq_len, global_batch, precision and the optimizer's constants */
    const im_cluster *cluster;
    int devices; /* all of these are used; with COST also divisors of it */
    double room; /* bytes of a device; 0: what the cluster says */
    im_search_fix fix;
    im_objective objective;
    int top;    /* answers that are told; one that runs is looked for besides */
    bool whole; /* no bounds: every leaf is run in time (tests) */
    im_cost_options cost;
} im_search_request;

typedef struct im_search_found {
    im_plan plan; /* its cut lies in the search's arena */
    int order;
    const int *device;   /* [ranks]: where each rank runs; NULL: rank i on device i */
    double step;         /* seconds */
    double memory;       /* bytes of the fullest rank */
    int fullest;         /* its stage */
    double cost;         /* of a step; 0: the cluster has no prices */
    bool placed, run;    /* memory, step are of the whole programs (im_search_confirm) */
    const char *why_not; /* NULL: this build runs it */
} im_search_found;

typedef struct im_search {
    im_search_found *found; /* [n], best first */
    size_t n, cap;
    int64_t leaves, looked_at, run; /* all; whose parts were priced; run in time */
    int64_t refused[IM_REFUSED_COUNT];
    im_search_found least; /* of those that do not fit, the one that needs the least memory; memory 0: none */
    double room;
    im_arena *arena;
} im_search;

/* The request's model and cluster must outlive the result. No layout at all is no error: n is 0, and refused tells why. */
im_status im_search_open(im_context *ctx, const im_search_request *r, im_search *out) IM_MUST_CHECK;
void im_search_close(im_search *s);
/* Builds, places and runs the programs of the answers, the best first, as long as they have no more ops than that; those that turn out not to fit go. The
 * order is of the figures that there are then. */
im_status im_search_confirm(im_context *ctx, im_search *s, const im_search_request *r, double ops) IM_MUST_CHECK;
/* The first that this build runs; NULL: none. */
const im_search_found *im_search_winner(const im_search *s);

#endif
