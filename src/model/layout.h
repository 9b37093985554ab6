/* layout: where every parameter lies on a rank: segments in buckets.
 *
 * A bucket is a flat run of parameters, cut identically on every holder. Weights, gradients and optimizer state of a bucket
 * share element offsets: element i of the bucket's weight, gradient, master, m and v belong together. Init, sharding, norm, checkpoint and byte counts
 * use segments and nothing else.
 */
#ifndef IM_MODEL_LAYOUT_H
#define IM_MODEL_LAYOUT_H

#include "model/model.h"

typedef enum im_group_id {
    IM_GROUP_TP,
    IM_GROUP_DP,
    IM_GROUP_CP,
    IM_GROUP_PP,
    IM_GROUP_KV,
    IM_GROUP_TIED,
    IM_GROUP_WORLD,
    IM_GROUP_COUNT
} im_group_id;

typedef struct im_mesh {
    int tp, cp, dp, pp; /* tp fastest, pp slowest */
} im_mesh;
typedef struct im_place {
    int tp, cp, dp, pp;
} im_place;
int im_mesh_size(const im_mesh *m);
im_place im_mesh_place(const im_mesh *m, int rank);
int im_mesh_rank(const im_mesh *m, im_place p);

enum { IM_LAYOUT_MAX_BOXES = 3 }; /* segments of a parameter on a rank, before ZeRO cuts */

/* n runs of `run` elements: a box, or a ZeRO cut of one */
typedef struct im_segment {
    uint32_t param;
    size_t n, run;                 /* elements = n * run */
    size_t global0, global_stride; /* in the logical tensor */
    size_t local0, local_stride;   /* in the bucket */
    uint32_t sum;                  /* bit set of im_group_id: groups that hold partial sums of this gradient */
    bool owner;                    /* counts it in the norm, saves it */
} im_segment;

typedef struct im_bucket {
    uint16_t first_param, nparam;
    bool held;             /* this rank holds it (its stage uses it) */
    uint32_t sum;          /* the groups over which some of its gradients are summed */
    size_t count;          /* elements, padding included: a multiple of 16 */
    const size_t *shard;   /* [dp+1]: cuts of the flat bucket, multiples of 16; rank i's shard is [i], [i+1] */
    const im_segment *seg; /* the whole bucket on this rank */
    size_t nseg;
    const im_segment *owned; /* what this rank owns under ZeRO: saves, counts in the norm, updates */
    size_t nowned;
    size_t offset; /* element offset of the bucket in its arenas, a multiple of 16 */
} im_bucket;

/* What a tensor-parallel rank holds of the split sizes: heads in whole kv groups when tp is at most K, else a part of one group whose
 * kv head is replicated; feed-forward columns so that, heads included, the ranks' blocks are of one size; vocabulary rows as even as they can be
 * (the first ranks have one more). */
typedef struct im_share {
    int64_t h0, H, k0, K, f0, F, v0, V;
    int replicas; /* ranks that hold the same kv head; 1 unless tp > K */
} im_share;
/* IM_ERR_ARG with the nearest values when tp is none the model can have. */
im_status im_share_check(im_context *ctx, const im_model *m, int tp) IM_MUST_CHECK;
im_share im_share_of(const im_arch *a, int tp, int tp_rank);
/* im_part: imece.h */

typedef struct im_layout {
    im_mesh mesh;
    int rank, zero;
    bool sequence_parallel;
    im_place place;
    im_share share;
    const im_model *model;
    im_bucket *bucket;         /* model->nbucket */
    size_t count;              /* elements of all held buckets */
    const size_t *param_count; /* [nparam]: elements this rank holds */
    const size_t *param_local; /* [nparam]: element offset of the parameter in its bucket; SIZE_MAX when not held */
    im_arena *arena;
} im_layout;

/* stage_of_unit: nunit entries, the pipeline stage of each unit. */
im_status im_layout_create(im_context *ctx, const im_model *m, im_mesh mesh, int rank, int zero, bool sequence_parallel, const int *stage_of_unit,
                           im_layout **out) IM_MUST_CHECK;
void im_layout_destroy(im_layout *l);

#endif
