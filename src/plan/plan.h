/* plan: everything about a run, as data. */
#ifndef IM_PLAN_H
#define IM_PLAN_H

#include "model/layout.h"
#include "plan/schedule.h"

/* What FORWARD does not keep and RECOMPUTE makes again before the backward. SELECTIVE: attention's output and log-sum-exp; FULL: all but
 * the unit's input. */
typedef enum im_recompute { IM_RECOMPUTE_NONE, IM_RECOMPUTE_SELECTIVE, IM_RECOMPUTE_FULL } im_recompute;

/* EVEN: they differ by one block at most. BALANCED: the dearest is as cheap as can be, the head's cost counted. */
typedef enum im_stages { IM_STAGES_EVEN, IM_STAGES_BALANCED, IM_STAGES_GIVEN } im_stages;

typedef struct im_plan {
    const im_model *model;
    im_mesh mesh; /* tp, cp, dp, pp */
    int zero;     /* 0..3 */
    im_schedule schedule;
    int chunks;             /* v: runs of blocks a stage has (interleaved); 0: 1 */
    im_stages stages;       /* where the blocks are cut */
    const int64_t *cut;     /* IM_STAGES_GIVEN: blocks of each of the pp x chunks virtual stages */
    bool sequence_parallel; /* with tp: norms, dropout and edges on a share of the rows */
    im_recompute recompute; /* of the blocks */
    int64_t seq_len;        /* T */
    int64_t micro_batch;    /* sequences a micro-batch and rank; the last one may be smaller */
    int64_t global_batch;   /* sequences a step, all ranks */
    int64_t eval_batch;     /* sequences an evaluation program takes at once; 0: micro_batch */
    im_dtype precision;     /* IM_F32 or IM_BF16: weights and activations */
    double dropout;         /* < 0: as the model's config says */
    double label_smoothing;
    double beta1, beta2, eps, weight_decay;
    uint64_t seed;
    int threads;    /* of this rank; 0: all usable cores */
    bool documents; /* attention stays within segment ids */
} im_plan;

/* Sane defaults for the rest. */
void im_plan_defaults(im_plan *p, const im_model *m);
/* Cross-field rules, each a named function; the message names the option and the nearest values that work. */
im_status im_plan_validate(im_context *ctx, const im_plan *p) IM_MUST_CHECK;
/* The same of a plan that is only looked at: the model may be a shape whose family cannot run. */
im_status im_plan_validate_shape(im_context *ctx, const im_plan *p) IM_MUST_CHECK;
enum { IM_PLAN_MAX_THREADS = 64 }; /* ranks that are threads of one process */
/* The rules, and the job's size (processes; 0: ranks are threads of this process). A layout that is refused is told with the nearest ones that work.
 * batch_follows: the global batch was not given, it is one micro-batch of each dp rank. */
im_status im_plan_check_layout(im_context *ctx, const im_plan *p, bool batch_follows, int processes) IM_MUST_CHECK;
/* Meshes of exactly `ranks` ranks that the rules allow with the rest of the plan, the most like its own first; at most `most`. Returns how many.
 * global_batch 0: one micro-batch of each dp rank. */
int im_plan_nearest(const im_plan *p, int ranks, im_mesh *out, int most);
/* Appends "layouts of 6 ranks: tp 2 x dp 3, dp 6"; when that many ranks have none, says so and names those of the nearest number that has. */
void im_plan_nearest_text(const im_plan *p, int ranks, im_str *out);
/* Micro-batches of one rank: how many, and the sequences in the i-th. */
int im_plan_micro_batches(const im_plan *p, int dp_rank);
int64_t im_plan_micro_batch_size(const im_plan *p, int dp_rank, int mb);
/* First sample (0..global_batch) of micro-batch mb of dp rank r. */
int64_t im_plan_first_sample(const im_plan *p, int dp_rank, int mb);
int im_plan_chunks(const im_plan *p);
/* Virtual stage (chunk * pp + stage) of each unit: the embedding with the first, the head with the last. */
void im_plan_virtual_stages(const im_plan *p, int *stage_of_unit);
/* Pipeline rank of each unit. */
void im_plan_stages(const im_plan *p, int *stage_of_unit);
void im_plan_to_yaml(const im_plan *p, im_str *out);

#endif
