/* program: what one rank does in one step, on two levels (docs/program.md).
 *
 *   steps   instructions over units, buckets, channels and micro-batches
 *   ops     each instruction lowers to kernels and collectives with operands by role
 *
 * build -> place -> link -> check. Build makes steps and ops, place gives every value an address, link derives
 * the waits between queues from accesses and addresses, check proves the programs of all ranks together.
 */
#ifndef IM_PLAN_PROGRAM_H
#define IM_PLAN_PROGRAM_H

#include "plan/plan.h"

typedef enum im_verb {
    IM_LOAD,
    IM_RECV,
    IM_SEND,
    IM_FORWARD,
    IM_LOSS,
    IM_SAMPLE,
    IM_RECOMPUTE,
    IM_BACKWARD,
    IM_BACKWARD_INPUT,
    IM_BACKWARD_WEIGHT,
    IM_GATHER,
    IM_RELEASE,
    IM_REDUCE,
    IM_COUNT,
    IM_CLIP,
    IM_UPDATE,
    IM_SNAPSHOT,
    IM_VERB_COUNT
} im_verb;
const char *im_verb_name(im_verb v);

typedef struct im_step {
    uint8_t verb;    /* im_verb */
    uint8_t chunk;   /* SEND, RECV: of this rank's chunks, the one whose message it is */
    uint16_t target; /* unit, bucket or channel (im_channel) */
    int32_t mb;      /* micro-batch; -1: the step */
} im_step;

/* Channels of a pipeline stage: one communicator, one direction, one queue each. */
typedef enum im_channel { IM_CH_ACT_IN, IM_CH_ACT_OUT, IM_CH_GRAD_IN, IM_CH_GRAD_OUT, IM_CH_COUNT } im_channel;

typedef enum im_role {
    IM_ROLE_WEIGHT, /* owner bucket; index 0 as the forward reads it, 1 this rank's shard (ZeRO 3) */
    IM_ROLE_GRAD,   /* owner bucket; index 0 sums of the micro-batches, 1 the reduced shard (ZeRO 2, 3) */
    IM_ROLE_OPT,    /* owner bucket; index 0 master, 1 m, 2 v */
    IM_ROLE_EDGE,   /* owner unit; index 0 what the unit gives on, 1 its gradient */
    IM_ROLE_SAVED,  /* owner unit; index im_saved: kept by FORWARD for the backward */
    IM_ROLE_STASH,  /* owner unit: kept by BACKWARD_INPUT for BACKWARD_WEIGHT */
    IM_ROLE_TEMP,   /* owner step: lives inside one instruction */
    IM_ROLE_KV,     /* owner unit; index 0 keys, 1 values */
    IM_ROLE_SCALAR, /* index im_scalar */
    IM_ROLE_CARRY,  /* index im_carry: batches and tables; outlives the program, shares memory with nothing */
    IM_ROLE_COUNT
} im_role;
const char *im_role_name(im_role r);

/* Queues of communication: one for each channel, used in one order by all its ranks. */
enum { IM_QUEUE_REDUCE = IM_QUEUE_COMM0, IM_QUEUE_GATHER, IM_QUEUE_PIPE /* + im_channel */, IM_QUEUE_TP = IM_QUEUE_PIPE + 4 };

typedef enum im_saved {
    IM_SAVED_NORM1,
    IM_SAVED_STAT1,
    IM_SAVED_QKV,
    IM_SAVED_QK,
    IM_SAVED_SQUARES,
    IM_SAVED_ATTN,
    IM_SAVED_LSE,
    IM_SAVED_SUM,
    IM_SAVED_NORM2,
    IM_SAVED_STAT2,
    IM_SAVED_UP,
    IM_SAVED_ACT,
    IM_SAVED_COUNT
} im_saved;
const char *im_saved_name(im_saved s);

typedef enum im_scalar {
    IM_SCALAR_LOSS,
    IM_SCALAR_TOKENS,
    IM_SCALAR_SUMSQ,
    IM_SCALAR_CLIP,
    IM_SCALAR_HYPER,
    IM_SCALAR_BAD,
    IM_SCALAR_COUNT
} im_scalar;

typedef enum im_carry {
    IM_CARRY_IDS,
    IM_CARRY_TARGETS,
    IM_CARRY_POS,
    IM_CARRY_SEG, /* of a micro-batch */
    IM_CARRY_ROPE,
    IM_CARRY_KV_POS,   /* tables, written once */
    IM_CARRY_KV_TABLE, /* blocks of the key/value cache that each sequence has */
    IM_CARRY_SAMPLE_ID,
    IM_CARRY_SAMPLE_LOGPROB,
    IM_CARRY_ROW, /* results of INFER */
    IM_CARRY_COUNT
} im_carry;

typedef enum im_access { IM_READ, IM_WRITE, IM_ADD, IM_MODIFY } im_access; /* ADD and MODIFY read what is there */

typedef enum im_collective {
    IM_COLL_NONE,
    IM_COLL_ALL_REDUCE,
    IM_COLL_REDUCE_SCATTER,
    IM_COLL_ALL_GATHER,
    IM_COLL_SEND,
    IM_COLL_RECV,
    IM_COLL_LOAD,    /* the engine fills the operands from the batch source */
    IM_COLL_RELEASE, /* the operand's value ends */
    IM_COLL_SNAPSHOT /* the engine may take a snapshot of the operands here */
} im_collective;

/* A value: what an operand is, wherever it lies. */
typedef struct im_value {
    uint8_t role;
    uint8_t index;
    uint16_t owner;
    int32_t mb;
} im_value;

typedef struct im_operand {
    uint8_t role, access;
    uint8_t index; /* as im_value.index */
    uint8_t slot;  /* WEIGHT and GRAD of a unit: im_slot, the operand starts at that parameter; IM_SLOT_COUNT: the bucket */
    int8_t unit;   /* EDGE: relative to the step's unit, 0 or -1 */
    size_t first;  /* bucket operands: first element within the value */
} im_operand;

typedef struct im_op {
    const im_op_kind *kind; /* NULL: a collective or an engine action */
    im_op_args args;        /* views and constants */
    uint8_t collective;     /* im_collective */
    uint8_t group;          /* im_group_id */
    uint8_t queue;          /* im_queue_id */
    uint8_t partial;        /* bit set of im_group_id: what the op writes is a partial sum over these groups until they reduce it */
    bool by_rows; /* REDUCE_SCATTER and ALL_GATHER of activations: `rows` rows of `cols` are shared out over the group; else the bucket's shards */
    int64_t rows, cols;
    int8_t site_arg;   /* i[site_arg] += 8 * unit when bound; -1: none */
    int32_t bucket;    /* bucket of the bucket operands; -1: the step's target */
    int8_t sample_arg; /* i[sample_arg] = first sample of the micro-batch when bound; -1: none */
    im_operand use[IM_OP_MAX_OPERANDS];
    const char *label; /* "attention", for messages and traces */
} im_op;

typedef struct im_lowering {
    im_op *op;
    uint32_t nop;
} im_lowering;

enum { IM_MAX_WAITS = 8 };

typedef struct im_bound {
    const im_op *op;
    const im_op_args *args; /* op->args, or a patched copy */
    uint32_t step;          /* index of the instruction */
    /* [op->args.n] each: a long step has many ops, and most have few operands */
    im_value *value;
    size_t *lo, *hi;             /* bytes within the value; lo == hi: absent */
    im_buffer *buf;              /* after place */
    uint32_t wait[IM_MAX_WAITS]; /* after link: earlier ops of other queues */
    uint8_t nwait;
} im_bound;

/* What a program must achieve; the check measures against it, never against the steps. */
typedef struct im_goal {
    int mode; /* im_program_mode */
    int chunks;
    int first_unit[IM_MAX_CHUNKS], end_unit[IM_MAX_CHUNKS]; /* of each chunk of this stage */
    bool has_head;                                          /* the last virtual stage is here */
    int micro_batches;
    bool snapshot;
} im_goal;

typedef enum im_program_mode { IM_PROGRAM_TRAIN, IM_PROGRAM_EVAL, IM_PROGRAM_INFER } im_program_mode;

/* This stage has the unit. */
bool im_goal_has(const im_goal *g, int unit);

/* How a program differs from the plan's training step. */
typedef struct im_program_spec {
    im_program_mode mode;
    int64_t batch, seq_len; /* EVAL, INFER */
    int64_t kv_max;
    bool all_logits;
    double temperature, top_p;
    int64_t top_k;
    uint64_t seed;
} im_program_spec;

typedef struct im_program {
    const im_plan *plan;
    const im_layout *layout;
    im_program_spec spec;
    im_goal goal;
    uint16_t threads; /* of this rank */
    im_step *step;
    uint32_t nstep;
    im_bound *bound;
    uint32_t nbound;
    size_t arena_bytes[IM_CLASS_COUNT]; /* after place */
    im_arena *arena;
} im_program;

/* The instructions alone: a pure function of plan, rank and spec. */
im_status im_program_steps(im_context *ctx, const im_plan *p, const im_layout *l, const im_program_spec *spec, im_arena *a, im_step **steps,
                           uint32_t *n) IM_MUST_CHECK;
/* Steps and ops. `steps` NULL: those of im_program_steps (tests hand in changed ones). */
im_status im_program_build(im_context *ctx, const im_plan *p, const im_layout *l, const im_program_spec *spec, const im_step *steps, uint32_t nstep,
                           im_program **out) IM_MUST_CHECK;
void im_program_destroy(im_program *p);
/* Addresses for all programs of a run of one rank; arena_bytes of each is set to the maximum. */
im_status im_program_place(im_context *ctx, im_program *const *of_run, size_t n) IM_MUST_CHECK;
/* Waits from accesses and addresses; after place. */
im_status im_program_link(im_context *ctx, im_program *p) IM_MUST_CHECK;
/* Proves the programs of all ranks of a mesh; ranks[r] is rank r's. IM_ERR_CHECK with the first fault. */
im_status im_program_check(im_context *ctx, const im_program *const *ranks, int n) IM_MUST_CHECK;
/* What can be proven from one rank's program alone: states and bytes. */
im_status im_program_check_rank(im_context *ctx, const im_program *p) IM_MUST_CHECK;
/* Where place puts a bucket's persistent value (weights, gradients, optimizer state). */
im_buffer im_program_bucket_buffer(const im_program *p, im_role role, int index, size_t bucket);
/* Bytes of scratch the ops need at most. */
size_t im_program_scratch(im_context *ctx, const im_program *p);

/* "BACKWARD 3 mb 1" */
void im_step_print(const im_step *s, im_str *out);
void im_value_print(const im_value *v, im_str *out);
bool im_value_equal(const im_value *a, const im_value *b);
/* Persistent values lie in an arena of their own for the whole run; others are placed by life time. */
bool im_value_persistent(const im_program *p, const im_value *v);

/* lower.c: the ops of one instruction. */
typedef struct im_lower_key {
    uint8_t verb, unit_type, mode;
    bool first;      /* the first contribution to the gradients: written, not added */
    bool first_loss; /* LOSS: scalars are written, not added */
    bool tied_first; /* the tied table has no contribution yet */
    int64_t B, T;
    int64_t window;  /* of the unit */
    uint16_t target; /* bucket verbs and channels: no sharing */
} im_lower_key;
im_status im_lower(im_context *ctx, const im_program *p, const im_lower_key *key, im_arena *a, im_lowering *out) IM_MUST_CHECK;

#endif
