/* lower.h (internal): writing op lists. A lowerer collects ops; each helper adds one with its operands. */
#ifndef IM_PLAN_LOWER_H
#define IM_PLAN_LOWER_H

#include "plan/program.h"

enum { IM_LOWER_MAX_OPS = 4096 };

typedef struct im_lowerer {
    im_context *ctx;
    const im_program *program;
    const im_arch *arch;
    const im_model *model;
    const im_unit *unit; /* a unit of the right type: which slots are there */
    const im_lower_key *key;
    im_dtype A;      /* activations and weights */
    int64_t B, T, n; /* sequences, tokens each, rows */
    int tp;
    bool sp;                /* edges hold this rank's share of the rows */
    int64_t row0, nr;       /* that share; all rows without sequence parallelism */
    int64_t H, K, F, V, v0; /* this rank's heads, kv heads, feed-forward columns, vocabulary rows */
    im_op *op;
    uint32_t nop, cap;
    uint8_t next_temp;
    bool failed; /* out of memory; told once at the end */
} im_lowerer;

/* An operand with its view: where (role ...) and how it is read. */
typedef struct im_use {
    im_operand o;
    im_view v;
} im_use;

/* weights and gradients of a slot, values of this unit and micro-batch */
im_use im_use_weight(im_slot slot, im_view v);
im_use im_use_grad(im_slot slot, bool first, im_view v);
im_use im_use_edge(int unit, int index, im_access access, im_view v);
im_use im_use_saved(im_saved s, im_access access, im_view v);
im_use im_use_temp(int index, im_access access, im_view v);
im_use im_use_scalar(im_scalar s, im_access access, im_view v);
im_use im_use_carry(im_carry c, im_access access, im_view v);
im_use im_use_kv(int index, im_access access, im_view v);
im_use im_use_bucket(im_role role, int index, im_access access, size_t first, im_view v);
im_use im_use_absent(void);

int im_lower_temp(im_lowerer *L); /* a new temp index */
bool im_lower_has(const im_lowerer *L, im_slot slot);
/* Adds an op; the caller sets constants in the returned op (never NULL; a dummy after out of memory). */
im_op *im_lower_op(im_lowerer *L, const im_op_kind *kind, const char *label, const im_use *use, int n);
im_op *im_lower_collective(im_lowerer *L, im_collective c, im_group_id group, unsigned queue, const char *label, const im_use *use, int n);
#define IM_USES(...) (const im_use[]){__VA_ARGS__}, (int)(sizeof((const im_use[]){__VA_ARGS__}) / sizeof(im_use))

/* What a unit is made of; `x` is read, `y` written; sizes are those of the lowerer. */
/* Column-parallel: every rank adds its part of the bias. Row-parallel (`row`): y is partial, the bias is added on the first rank alone. */
void im_lower_linear(im_lowerer *L, const char *label, bool row, im_use x, im_slot w, im_slot b, int64_t K, int64_t N, im_use y);
/* dx = dy W (dx may be absent), dW += dy^T x, db += column sums of dy */
void im_lower_linear_grad(im_lowerer *L, const char *label, bool row, im_use x, im_use dy, im_slot w, im_slot b, int64_t K, int64_t N, bool first,
                          im_use dx);
void im_lower_norm(im_lowerer *L, const char *label, im_use x, im_slot w, im_slot b, im_use y, im_use stat, im_use res, im_use sum);
void im_lower_norm_grad(im_lowerer *L, const char *label, im_use x, im_slot w, im_slot b, im_use stat, im_use dy, im_use dx, im_use dres, bool first);
/* Tensor parallelism. A partial (n,D) result goes to `y`: directly for tp 1; else summed over the tp group in place, or reduce-scattered to this rank's
 * rows. im_lower_partial gives the use that the op which makes the partial result writes; im_lower_sum then sums it into y. */
im_use im_lower_partial(im_lowerer *L, im_use y);
void im_lower_sum(im_lowerer *L, const char *label, im_use partial, im_use y);
/* All rows of a (nr,D) share; `x` itself without sequence parallelism. */
im_use im_lower_all_rows(im_lowerer *L, const char *label, im_use x);
double im_lower_dropout_p(const im_lowerer *L, double of_config); /* 0 outside training */
/* y = res + dropout(x); site 0..7 within the unit */
void im_lower_dropout(im_lowerer *L, const char *label, double p, int site, im_use x, im_use y, im_use res);

/* BACKWARD's ops, as they are collected, become those of BACKWARD_INPUT or BACKWARD_WEIGHT. */
im_status im_lower_split(im_lowerer *L, bool weight_part) IM_MUST_CHECK;

/* A result that BACKWARD needs: where it finds it when the recompute policy keeps it here, else a temp. */
im_use im_lower_keep(im_lowerer *L, im_saved s, im_view v);

/* Attention (lower_attention.c): of the rows h (n,D) a block reads; gives (n,H*E), before the output projection. */
im_use im_lower_attention(im_lowerer *L, im_use h);
void im_lower_attention_again(im_lowerer *L); /* from the saved q, k and v */
/* The gradient do_ (n,H*E) of its result to that of h, partial over the tp group, and to the gradients of its parameters. */
void im_lower_attention_grad(im_lowerer *L, im_use h, im_use do_, im_use dh);

/* the units (lower_embed.c, lower_unit.c, lower_head.c) and bucket verbs (lower_bucket.c) */
void im_lower_embed_forward(im_lowerer *L);
void im_lower_embed_backward(im_lowerer *L);
void im_lower_block_forward(im_lowerer *L);
void im_lower_block_recompute(im_lowerer *L);
void im_lower_block_backward(im_lowerer *L);
void im_lower_loss(im_lowerer *L);
void im_lower_sample(im_lowerer *L);
void im_lower_bucket_verb(im_lowerer *L);

#endif
