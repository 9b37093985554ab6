/* search_leaves.h (internal): every layout there is, and what is known of each. */
#ifndef IM_PLAN_SEARCH_LEAVES_H
#define IM_PLAN_SEARCH_LEAVES_H

#include "plan/search_parts.h"

enum { IM_SEARCH_CUTS = 3 };

typedef struct im_search_mesh {
    im_mesh mesh;
    int weights; /* number of its im_weights */
    const int *device[IM_SEARCH_ORDERS];
    im_cost *cost[IM_SEARCH_ORDERS]; /* opened when it is asked for */
    int tp_class[IM_SEARCH_ORDERS];  /* + 1: meshes whose tp groups lie alike; their pieces are the same */
    int order[IM_SEARCH_ORDERS], norder;
} im_search_mesh;

/* Where the blocks of a mesh with so many chunks are cut. */
typedef struct im_search_cuts {
    int n;
    im_stages how[IM_SEARCH_CUTS];
    const int64_t *blocks[IM_SEARCH_CUTS];
} im_search_cuts;

typedef struct im_leaf {
    int32_t batch, m; /* sequences of a micro-batch; micro-batches */
    uint16_t mesh;
    uint8_t zero, recompute, schedule, chunks, cut;
    bool sequence_parallel;
    const im_search_cuts *cuts;
} im_leaf;

typedef struct im_piece_slot {
    im_piece_key key;
    int tp_class;    /* 0: of no class, for a piece of one sequence whose times are not used */
    im_piece *piece; /* NULL: free */
} im_piece_slot;

typedef struct im_leaves {
    const im_search_request *r;
    im_mini mini;
    im_search_mesh *mesh;
    int nmesh, capmesh;
    im_weights *weights;
    int *weights_tp;
    int nweights;
    im_leaf *leaf;
    uint32_t n, cap;
    int64_t refused[IM_REFUSED_COUNT];
    im_piece_slot *slot; /* open addressing */
    size_t nslot, used;
    im_cost_group (*tp_groups)[2]; /* [ntp]: of each class, tp and kv */
    int ntp, captp;
    double best_rate; /* FLOP/s that no product exceeds */
    im_arena *arena;
} im_leaves;

im_status im_leaves_open(im_context *ctx, const im_search_request *r, im_arena *a, im_leaves *out) IM_MUST_CHECK;
void im_leaves_close(im_leaves *l);
/* exact: its own piece; else that of one sequence, and no cost. */
im_status im_leaf_outline(im_context *ctx, im_leaves *l, uint32_t leaf, int order, bool exact, im_outline *out) IM_MUST_CHECK;
/* Seconds that no layout like it can go below. */
double im_leaf_floor(const im_leaves *l, const im_outline *o);
/* Orders of the ranks that differ for it. */
int im_leaf_orders(const im_leaves *l, uint32_t leaf, int out[IM_SEARCH_ORDERS]);
const int *im_leaf_devices(const im_leaves *l, uint32_t leaf, int order);
void im_search_place(const im_mesh *m, int order, int *device);

/* search_cuts.c: the even split, and one whose dearest stage is as cheap as can be by the priced parts. fixed: an im_stages, or -1. */
im_status im_search_cut(im_context *ctx, const im_plan *p, const im_piece *piece, const im_mini *mini, int fixed, im_arena *a,
                        im_search_cuts *out) IM_MUST_CHECK;
/* search_pieces.c's result, remembered; order -1: of one sequence. */
im_status im_leaf_piece(im_context *ctx, im_leaves *l, const im_leaf *f, int order, const im_piece **out) IM_MUST_CHECK;

#endif
