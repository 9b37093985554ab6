/* engine: executes the programs of one rank. It knows no schedule and no model by name.
 *
 * Use: open (plan and layout in, programs built, placed, linked, checked, memory reserved), write the
 * parameters, run steps. Calls come from one host thread. Nothing is allocated inside a step.
 */
#ifndef IM_ENGINE_H
#define IM_ENGINE_H

#include "comm/comm.h"
#include "plan/plan.h"

typedef struct im_engine im_engine;

typedef enum im_mode { IM_MODE_TRAIN, IM_MODE_EVAL, IM_MODE_INFER } im_mode;

/* One program that a run needs. TRAIN: the plan's step (batch and seq_len ignored). EVAL: `batch` sequences of `seq_len`,
 * forward and loss. INFER: `batch` sequences of `seq_len` new tokens each, with a kv cache of kv_max positions a sequence. */
typedef struct im_program_want {
    im_mode mode;
    int64_t batch, seq_len;
    int64_t kv_max;            /* INFER; the same in all INFER programs of a run */
    bool all_logits;           /* INFER: log-probabilities of every given token too (row results) */
    double temperature, top_p; /* INFER: sampling */
    int64_t top_k;
    uint64_t seed;
} im_program_want;

typedef struct im_memory {
    size_t by_class[IM_CLASS_COUNT]; /* arenas; PROGRAMS: what the engine's lists take */
    size_t total;
} im_memory;

/* What the plan and these programs need on this rank: pure, no device. */
im_status im_engine_predict(im_context *ctx, const im_plan *plan, int rank, const im_program_want *want, size_t nwant, im_memory *out) IM_MUST_CHECK;

/* For `imece verify` and tests; a run has none. */
typedef enum im_engine_fault {
    IM_ENGINE_SOUND,
    IM_ENGINE_SCALE,   /* the result of a reduction is divided by the number of ranks */
    IM_ENGINE_MISSING, /* a reduction is left out */
    IM_ENGINE_DOUBLED, /* a reduction counts twice */
    IM_ENGINE_GROUP,   /* a reduction in a wrong group: of this rank alone */
    IM_ENGINE_STALE    /* a gather gives the weights of the first step */
} im_engine_fault;

/* What an instruction left behind: of FORWARD u the output of unit u; of LOSS, BACKWARD and BACKWARD_INPUT u the gradient of what unit u reads. */
typedef struct im_engine_edge {
    int verb; /* im_verb */
    int unit, mb;
    int64_t step, first_sample;  /* as im_op_now.step; first sample of the micro-batch within the step */
    int64_t B, T, D, row0, rows; /* this rank has rows [row0, row0+rows) of the B*T */
    const float *data;           /* (rows, D), valid during the call */
} im_engine_edge;

typedef struct im_engine_debug {
    im_engine_fault fault;
    uint64_t at; /* the at-th collective of a step that the fault can be made to, from 1 */
    int group;   /* only those of this im_group_id count; -1: all. Ranks of different stages count alike within a group only */
    bool *made;  /* set when the fault is made; may be NULL */
    void *arg;
    im_status (*edge)(void *arg, const im_engine_edge *x); /* TRAIN in fp32: after each such instruction; may be NULL */
} im_engine_debug;

typedef struct im_engine_config {
    const im_plan *plan;
    im_device *device; /* opened; the engine reserves its arenas */
    im_comm *world;
    const im_program_want *want;
    size_t nwant;
    const im_engine_debug *debug; /* NULL: none; outlives the engine */
} im_engine_config;

/* Refuses before allocating what is larger than the memory there is (IM_ERR_NOMEM). */
im_status im_engine_open(im_context *ctx, const im_engine_config *cfg, im_engine **out) IM_MUST_CHECK;
void im_engine_close(im_engine *e); /* NULL is allowed */
const im_layout *im_engine_layout(const im_engine *e);
im_device *im_engine_device(const im_engine *e);
void im_engine_memory(const im_engine *e, im_memory *out);
size_t im_engine_touched(const im_engine *e, im_class c); /* bytes of a class that lie in memory */

/* Parameter state, element by element of a bucket (layout offsets), synchronous, outside steps. WEIGHT is read and written as
 * fp32 whatever is stored; writing WEIGHT in bf16 precision sets the fp32 master and rounds the weight. Under ZeRO a rank
 * holds its shard of some states: a write keeps the part that lies in it, a read outside it is IM_ERR_ARG. */
typedef enum im_state_kind { IM_STATE_WEIGHT, IM_STATE_MASTER, IM_STATE_M, IM_STATE_V, IM_STATE_GRAD } im_state_kind;
bool im_engine_has_state(const im_engine *e, im_state_kind k); /* MASTER only in bf16; M, V, GRAD only with a TRAIN program */
im_status im_engine_read(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count, float *out) IM_MUST_CHECK;
im_status im_engine_write(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count, const float *in) IM_MUST_CHECK;

/* Writes a bucket's whole weight where it lies, without a copy: `fill` is called once on the copy queue with the address of the bucket and
 * what is stored there (fp32 or bf16); in bf16 `master` is the fp32 master's address (NULL without a TRAIN program or in fp32). It may use
 * several threads. Padding elements must stay 0. Returns fill's status. Synchronous. */
typedef im_status (*im_fill_fn)(void *arg, void *weight, im_dtype stored, float *master);
im_status im_engine_fill(im_engine *e, size_t bucket, im_fill_fn fill, void *arg) IM_MUST_CHECK;

/* Fills a micro-batch in host memory: ids, targets (-1: not counted), pos: B*T each, row-major; seg too (NULL unless plan->documents).
 * `first_sample` counts from the start of this step's global batch. INFER: only ids and pos are asked for, targets only with all_logits. */
typedef struct im_source {
    void *arg;
    im_status (*load)(void *arg, const im_op_now *now, int64_t first_sample, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg);
} im_source;

/* lr and clip of the next step (device scalars). */
im_status im_engine_set_hyper(im_engine *e, double lr, double clip) IM_MUST_CHECK;
/* Runs program `want` index i. Enqueues; on an inline device the work is done on return. */
im_status im_engine_run(im_engine *e, size_t i, const im_op_now *now, const im_source *src) IM_MUST_CHECK;

typedef struct im_metrics {
    double loss;   /* mean over counted tokens */
    double tokens; /* counted tokens of the global batch */
    double loss_sum;
    double grad_norm; /* before clipping; TRAIN */
    bool finite;      /* false: UPDATE changed nothing */
    int64_t updates;  /* Adam's step count */
    bool bad_weights; /* TRAIN: UPDATE made a weight of this rank that is not finite; other ranks may not know */
} im_metrics;
/* Waits for the last run. With paced kernels nothing was computed: all values are NaN, tokens 0, and finite is true. */
im_status im_engine_metrics(im_engine *e, im_metrics *out) IM_MUST_CHECK;
/* Adam's step count, for resume. */
im_status im_engine_set_updates(im_engine *e, int64_t updates) IM_MUST_CHECK;
/* INFER: the cache of a rank has its kv heads of its stage's blocks, in runs of IM_KV_BLOCK positions. Position i*IM_KV_BLOCK and those behind it of a
 * sequence lie in number `block` from now on, on this rank; at first in sequence * blocks + i. Waits. */
int64_t im_engine_kv_blocks(const im_engine *e); /* of all sequences; 0: no INFER program */
im_status im_engine_place_block(im_engine *e, int64_t sequence, int64_t i, int32_t block) IM_MUST_CHECK;
/* This rank draws: of the last stage, the first tensor-parallel rank. The whole last stage has row. */
bool im_engine_samples(const im_engine *e);
/* INFER: what the last run sampled: ids[batch], logprob[batch]; with all_logits row[batch*seq_len] log-probabilities of the given targets. Waits.
 * IM_ERR_ARG on a rank that has no such result. */
im_status im_engine_sampled(im_engine *e, size_t i, int32_t *ids, float *logprob, float *row) IM_MUST_CHECK;

/* Program i as it runs; NULL: there is none. */
const struct im_program *im_engine_program(const im_engine *e, size_t i);

/* A snapshot: `write` is called on the io queue once for each held bucket and state, with the stored bytes, while the next step
 * runs; UPDATE of the bucket waits for it. A write that fails must remember it in arg and return; the run goes on. `end` is called last.
 * *done is the event of `end`. */
typedef struct im_snapshot {
    void *arg;
    void (*write)(void *arg, im_state_kind k, size_t bucket, im_dtype stored, const void *data, size_t first, size_t count);
    void (*end)(void *arg);
} im_snapshot;
im_status im_engine_snapshot(im_engine *e, const im_snapshot *s, im_event *done) IM_MUST_CHECK;

/* After a step whose metrics say finite == false: runs it again op by op and tells the first unit and tensor that is not finite
 * ("block 3, attention output, micro-batch 1: NaN at 17"). Weights are unchanged before and after. */
im_status im_engine_diagnose(im_engine *e, size_t i, const im_op_now *now, const im_source *src, im_str *out) IM_MUST_CHECK;

/* After a step that made bad weights on some rank, all ranks: the first of them ("parameter model.norm.weight: NaN at element 3, on rank 1"). */
im_status im_engine_find_bad_weight(im_engine *e, im_str *out) IM_MUST_CHECK;

/* Spans for traces: as im_device_on_span, with the instruction's name ("FORWARD 3 mb 1") resolved by tag. */
const char *im_engine_instruction(const im_engine *e, size_t program, uint32_t tag, im_str *buf);

#endif
