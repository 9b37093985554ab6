/* search_parts.h (internal): between the files of search. */
#ifndef IM_PLAN_SEARCH_PARTS_H
#define IM_PLAN_SEARCH_PARTS_H

#include "plan/search.h"

enum { IM_SEARCH_KINDS = 8 }; /* blocks that differ (by their window) */

/* ---- pieces: what a unit takes and keeps on a rank (search_pieces.c) ------------------------------- */

typedef struct im_piece {
    /* seconds of one micro-batch, collectives over tp included */
    double forward[IM_SEARCH_KINDS], back[IM_SEARCH_KINDS]; /* back: recompute and the whole backward, or its first part */
    double weight[IM_SEARCH_KINDS];                         /* second part of a split backward; else 0 */
    double embed_forward, embed_back, head;                 /* head: forward and backward */
    double sums[IM_UNIT_TYPE_COUNT];                        /* of gradients over tp and kv groups, once a step */
    double flops[IM_SEARCH_KINDS], head_flops;              /* of products, forward and backward */
    /* bytes of one micro-batch */
    double kept[IM_SEARCH_KINDS];  /* from the forward until the backward (or its first part), the output not counted */
    double stash[IM_SEARCH_KINDS]; /* from there until the second part */
    double edge;                   /* a unit's output */
    double work_forward, work_back, work_weight, work_head, work_embed; /* at most alive inside one part, besides */
    double carry, fixed, scratch;                                       /* of each micro-batch; of the run */
} im_piece;

/* A model with one block of each kind: its programs have the same parts. */
typedef struct im_mini {
    im_model model;
    int kinds;
    const uint8_t *kind; /* [L] */
} im_mini;
im_status im_mini_make(im_context *ctx, const im_model *m, im_arena *a, im_mini *out) IM_MUST_CHECK;

typedef struct im_piece_key {
    int tp;
    int64_t batch;
    bool sequence_parallel, splits;
    im_recompute recompute;
} im_piece_key;
im_status im_piece_price(im_context *ctx, const im_mini *mini, const im_plan *base, im_cost *cost, const im_piece_key *key,
                         im_piece *out) IM_MUST_CHECK;

/* Elements a rank holds of each kind of unit, padding included. */
typedef struct im_weights {
    double block, embed, head, tied;    /* tied: the table of first and last stage, in neither of the two */
    int embed_ops, block_ops, head_ops; /* of an update */
} im_weights;
im_status im_weights_of(im_context *ctx, const im_mini *mini, int tp, im_weights *out) IM_MUST_CHECK;

/* ---- a leaf, as the bounds see it -------------------------------------------------------------------- */

typedef struct im_outline {
    im_plan plan;
    const im_mini *mini;
    const im_weights *weights;
    const im_piece *piece;
    const im_cost *cost;
    const int64_t *blocks; /* [pp * v]: of each virtual stage */
    int m;                 /* micro-batches */
    double share;          /* of the largest one, that they are on average: uneven ones are smaller by a sequence */
} im_outline;

/* Memory that is used again for the next leaf. */
typedef struct im_task_room {
    im_task *task;
    size_t cap;
    double *end; /* of parts */
    size_t ncap;
} im_task_room;
im_task *im_task_room_for(im_task_room *r, size_t n); /* NULL: no memory */
double *im_task_room_ends(im_task_room *r, size_t n);
void im_task_room_free(im_task_room *r);

/* search_memory.c: bytes of the fullest rank; < 0: no memory. */
double im_outline_memory(const im_outline *o, int *fullest, im_task_room *room);
/* Never above it, for a piece of one sequence: of the first stage and the last alone. */
double im_outline_memory_bound(const im_outline *o, double batch);

/* search_time.c: seconds of a step; never above: of the parts one after the other. < 0: no memory. */
double im_outline_time(const im_outline *o, im_task_room *room);
double im_outline_time_bound(const im_outline *o);

/* What the units of a virtual stage add up to. */
typedef struct im_run {
    int64_t first, n; /* blocks */
    bool embed, head;
} im_run;
im_run im_outline_run(const im_outline *o, int virtual_stage);

#endif
