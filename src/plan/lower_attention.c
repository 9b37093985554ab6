/* lower: attention, from the rows of a block's input to the rows before its output projection.
 *
 * h (n,D) --qkv--> q k v [--norms of q and k-->] --rotary, attention--> o (n,H*E)
 *
 * q, k and v lie side by side in one buffer. With norms of q and k the products stay as they are, for the norms' backward, and the normed
 * and rotated q and k lie in a buffer of their own.
 *
 * Tensor parallel: a rank has whole kv groups of heads, or some heads of one group whose k and v several ranks hold. A norm over all heads
 * sums over the group: the squares forward, the gradient's pull on them backward. What several ranks hold counts once: their squares are
 * divided by how many they are, and each takes that part of the pull, for their gradients of k are parts of one.
 */
#include "plan/lower.h"

static int64_t qkv_cols(const im_lowerer *L)
{
    return (L->H + 2 * L->K) * L->arch->E;
}

static bool normed(const im_lowerer *L)
{
    return L->arch->qk_norm != IM_QK_NORM_NONE;
}

static im_view rows(const im_lowerer *L, int64_t cols)
{
    return im_view_2d(L->A, L->n, cols);
}

static im_view tokens(const im_lowerer *L)
{
    return im_view_2d(IM_I32, L->B, L->T);
}

static im_view out_view(const im_lowerer *L)
{
    return im_view_make(L->A, 4, (int64_t[]){L->B, L->T, L->H, L->arch->E});
}

static im_view lse_view(const im_lowerer *L)
{
    return im_view_make(IM_F32, 3, (int64_t[]){L->B, L->T, L->H});
}

static im_use as(im_use u, im_access access, im_view v)
{
    u.o.access = (uint8_t)access;
    u.v = v;
    return u;
}

static im_use new_temp(im_lowerer *L, im_view v)
{
    return im_use_temp(im_lower_temp(L), IM_WRITE, v);
}

/* ---- q, k and v ------------------------------------------------------------------ */

typedef enum part { Q, K, V } part;

static int64_t heads_of(const im_lowerer *L, part p)
{
    return p == Q ? L->H : L->K;
}

/* Where q, k and v are: rows of `cols` columns; the same buffer, or q and k in one of their own. */
typedef struct qkv {
    im_use raw, qk; /* as the product gives them; q and k as attention reads them */
} qkv;

static im_use buffer_of(const qkv *x, part p)
{
    return p == V ? x->raw : x->qk;
}

static int64_t first_col(const im_lowerer *L, part p)
{
    return (p == Q ? 0 : p == K ? L->H : L->H + L->K) * L->arch->E;
}

/* (n,heads,E) of one part of a buffer, and the same as (B,T,heads,E) */
static im_view by_row(const im_lowerer *L, im_use buffer, part p)
{
    int64_t E = L->arch->E, W = buffer.v.shape[1];
    return (im_view){.ndim = 3, .dtype = (uint8_t)L->A, .shape = {L->n, heads_of(L, p), E}, .stride = {W, E, 1}, .offset = first_col(L, p)};
}

static im_view by_token(const im_lowerer *L, im_use buffer, part p)
{
    int64_t E = L->arch->E, W = buffer.v.shape[1];
    return (im_view){
        .ndim = 4, .dtype = (uint8_t)L->A, .shape = {L->B, L->T, heads_of(L, p), E}, .stride = {L->T * W, W, E, 1}, .offset = first_col(L, p)};
}

static im_use token_use(const im_lowerer *L, const qkv *x, part p, im_access access)
{
    im_use b = buffer_of(x, p);
    return as(b, access, by_token(L, b, p));
}

/* ---- norms of q and k ---------------------------------------------------------------- */

static im_view qk_view(const im_lowerer *L)
{
    return rows(L, (L->H + L->K) * L->arch->E);
}

static im_view squares_view(const im_lowerer *L)
{
    return im_view_2d(IM_F32, 2, L->n);
}

/* Row p of (2,n): one number a token. */
static im_use row_use(const im_lowerer *L, im_use both, part p, im_access access)
{
    im_view v = im_view_1d(IM_F32, L->n);
    v.offset = p == K ? L->n : 0;
    return as(both, access, v);
}

static im_slot norm_slot(part p)
{
    return p == Q ? IM_SLOT_Q_NORM_W : IM_SLOT_K_NORM_W;
}

static bool over_all_heads(const im_lowerer *L)
{
    return L->arch->qk_norm == IM_QK_NORM_ALL;
}

static int64_t norm_cols(const im_lowerer *L, part p)
{
    return over_all_heads(L) ? heads_of(L, p) * L->arch->E : L->arch->E;
}

/* How many ranks hold the same heads of this part. */
static double copies(const im_lowerer *L, part p)
{
    return p == K ? L->program->layout->share.replicas : 1;
}

/* x*y*w summed over the row's heads on all ranks, for q and for k: two numbers a token. `w` is whether the norms' weights are in it. */
static void sum_over_heads(im_lowerer *L, const char *label, im_use x, im_use y, bool w, bool once, im_use both)
{
    for (part p = Q; p <= K; p++) {
        im_use weight = w ? im_use_weight(norm_slot(p), im_view_1d(L->A, norm_cols(L, p))) : im_use_absent();
        im_op *op = im_lower_op(L, &im_op_head_sum, label,
                                IM_USES(as(x, IM_READ, by_row(L, x, p)), as(y, IM_READ, by_row(L, y, p)), weight, row_use(L, both, p, IM_WRITE)));
        op->args.f[0] = once ? 1 / copies(L, p) : 1;
        op->partial = L->tp > 1 ? 1u << IM_GROUP_TP : 0;
    }
    if (L->tp > 1) {
        both.o.access = IM_MODIFY;
        im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_TP, IM_QUEUE_TP, label, &both, 1);
    }
}

static int64_t all_columns(const im_lowerer *L, part p)
{
    return (p == Q ? L->arch->H : L->arch->K) * L->arch->E;
}

static void norm_qk(im_lowerer *L, const qkv *x)
{
    im_use squares = over_all_heads(L) ? im_lower_keep(L, IM_SAVED_SQUARES, squares_view(L)) : im_use_absent();
    if (over_all_heads(L))
        sum_over_heads(L, "squares of q and k", x->raw, x->raw, false, true, squares);
    for (part p = Q; p <= K; p++) {
        im_use sum = over_all_heads(L) ? row_use(L, squares, p, IM_READ) : im_use_absent();
        im_op *op = im_lower_op(L, &im_op_head_norm, p == Q ? "norm of q" : "norm of k",
                                IM_USES(as(x->raw, IM_READ, by_row(L, x->raw, p)), im_use_weight(norm_slot(p), im_view_1d(L->A, norm_cols(L, p))),
                                        as(x->qk, IM_WRITE, by_row(L, x->qk, p)), sum));
        op->args.f[0] = L->arch->norm_eps;
        op->args.i[1] = all_columns(L, p);
    }
}

/* d: the gradient of q and k behind the norms, in place to that of the products. */
static void norm_qk_grad(im_lowerer *L, im_use raw, im_use d)
{
    im_use squares = im_use_saved(IM_SAVED_SQUARES, IM_READ, squares_view(L)), along = im_use_absent();
    if (over_all_heads(L)) {
        along = new_temp(L, squares_view(L));
        sum_over_heads(L, "norms of q and k", raw, d, true, false, along);
    }
    for (part p = Q; p <= K; p++) {
        bool all = over_all_heads(L);
        im_view dx = by_row(L, d, p);
        im_op *op = im_lower_op(
            L, &im_op_head_norm_grad, p == Q ? "norm of q" : "norm of k",
            IM_USES(as(raw, IM_READ, by_row(L, raw, p)), im_use_weight(norm_slot(p), im_view_1d(L->A, norm_cols(L, p))), as(d, IM_READ, dx),
                    as(d, IM_MODIFY, dx), im_use_grad(norm_slot(p), L->key->first, im_view_1d(IM_F32, norm_cols(L, p))),
                    all ? row_use(L, squares, p, IM_READ) : im_use_absent(), all ? row_use(L, along, p, IM_READ) : im_use_absent()));
        op->args.i[0] = !L->key->first;
        op->args.i[1] = all_columns(L, p);
        op->args.f[0] = L->arch->norm_eps;
        op->args.f[1] = 1 / copies(L, p);
    }
}

/* ---- rotary positions ------------------------------------------------------------------ */

/* Rotates q and k in place; inverse for gradients. */
static void rope_in_place(im_lowerer *L, im_use buffer, bool inverse)
{
    const im_arch *a = L->arch;
    if (!a->rope_dims)
        return;
    int64_t table_rows = L->program->spec.mode == IM_PROGRAM_INFER ? L->program->spec.kv_max : L->T;
    im_use table = im_use_carry(IM_CARRY_ROPE, IM_READ, im_view_2d(IM_F32, table_rows, a->rope_dims));
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, im_view_1d(IM_I32, L->n));
    for (part p = Q; p <= K; p++) {
        im_view v = by_row(L, buffer, p);
        im_op *op =
            im_lower_op(L, &im_op_rope, inverse ? "inverse rotary" : "rotary", IM_USES(as(buffer, IM_READ, v), as(buffer, IM_MODIFY, v), pos, table));
        op->args.i[0] = inverse;
        op->args.i[1] = a->rope_interleaved;
    }
}

/* ---- attention itself ---------------------------------------------------------------------- */

static void attention_constants(const im_lowerer *L, im_op *op)
{
    op->args.f[0] = L->arch->attn_scale;
    op->args.f[1] = im_lower_dropout_p(L, L->arch->dropout_attn);
    op->args.i[0] = 1;
    op->args.i[1] = L->key->window;
    op->args.i[2] = (int64_t)(L->program->plan->seed & INT64_MAX);
    op->args.i[3] = 1;
    op->args.i[6] = L->program->layout->share.h0;
    op->args.i[7] = L->arch->alibi ? L->arch->H : 0;
    op->site_arg = 3;
    op->sample_arg = 5;
}

static im_use segments(const im_lowerer *L)
{
    return L->program->plan->documents ? im_use_carry(IM_CARRY_SEG, IM_READ, tokens(L)) : im_use_absent();
}

/* Over the tokens of this micro-batch. */
static void attention_batch(im_lowerer *L, const qkv *x, im_use o, im_use lse)
{
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, tokens(L)), seg = segments(L);
    im_op *op =
        im_lower_op(L, &im_op_attention, "attention",
                    IM_USES(token_use(L, x, Q, IM_READ), token_use(L, x, K, IM_READ), token_use(L, x, V, IM_READ), pos, pos, seg, seg, o, lse));
    attention_constants(L, op);
}

/* Of new tokens over the key/value cache, into whose blocks theirs are written first. It has this rank's kv heads of this stage's blocks. */
static void attention_cached(im_lowerer *L, const qkv *x, im_use o, im_use lse)
{
    int64_t M = L->program->spec.kv_max;
    im_view cache = im_view_make(L->A, 4, (int64_t[]){L->B * im_kv_blocks(M), IM_KV_BLOCK, L->K, L->arch->E});
    im_use table = im_use_carry(IM_CARRY_KV_TABLE, IM_READ, im_view_2d(IM_I32, L->B, im_kv_blocks(M)));
    for (int i = 0; i < 2; i++)
        im_lower_op(L, &im_op_kv_write, i ? "cache values" : "cache keys",
                    IM_USES(token_use(L, x, i ? V : K, IM_READ), im_use_kv(i, IM_MODIFY, cache), table));
    im_use pos_q = im_use_carry(IM_CARRY_POS, IM_READ, tokens(L));
    im_use pos_k = im_use_carry(IM_CARRY_KV_POS, IM_READ, im_view_2d(IM_I32, L->B, M));
    im_op *op = im_lower_op(L, &im_op_attention, "attention",
                            IM_USES(token_use(L, x, Q, IM_READ), im_use_kv(0, IM_READ, cache), im_use_kv(1, IM_READ, cache), pos_q, pos_k,
                                    im_use_absent(), im_use_absent(), o, lse, table));
    attention_constants(L, op);
    op->args.i[4] = 1;
}

/* ---- what a block calls ---------------------------------------------------------------------- */

im_use im_lower_attention(im_lowerer *L, im_use h)
{
    qkv x;
    x.raw = im_lower_keep(L, IM_SAVED_QKV, rows(L, qkv_cols(L)));
    x.qk = normed(L) ? im_lower_keep(L, IM_SAVED_QK, qk_view(L)) : x.raw;
    im_use o = im_lower_keep(L, IM_SAVED_ATTN, out_view(L)), lse = im_lower_keep(L, IM_SAVED_LSE, lse_view(L));
    im_lower_linear(L, "q, k, v", false, h, IM_SLOT_Q_W, IM_SLOT_Q_B, L->arch->D, qkv_cols(L), x.raw);
    if (normed(L))
        norm_qk(L, &x);
    rope_in_place(L, x.qk, false);
    if (L->key->mode == IM_PROGRAM_INFER)
        attention_cached(L, &x, o, lse);
    else
        attention_batch(L, &x, o, lse);
    return as(o, IM_READ, rows(L, L->H * L->arch->E));
}

static qkv saved_qkv(im_lowerer *L)
{
    qkv x = {.raw = im_use_saved(IM_SAVED_QKV, IM_READ, rows(L, qkv_cols(L)))};
    x.qk = normed(L) ? im_use_saved(IM_SAVED_QK, IM_READ, qk_view(L)) : x.raw;
    return x;
}

void im_lower_attention_again(im_lowerer *L)
{
    qkv x = saved_qkv(L);
    attention_batch(L, &x, im_lower_keep(L, IM_SAVED_ATTN, out_view(L)), im_lower_keep(L, IM_SAVED_LSE, lse_view(L)));
}

void im_lower_attention_grad(im_lowerer *L, im_use h, im_use do_, im_use dh)
{
    qkv x = saved_qkv(L);
    im_use d = new_temp(L, rows(L, qkv_cols(L)));
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, tokens(L)), seg = segments(L);
    im_op *op = im_lower_op(L, &im_op_attention_grad, "attention",
                            IM_USES(token_use(L, &x, Q, IM_READ), token_use(L, &x, K, IM_READ), token_use(L, &x, V, IM_READ), pos, pos, seg, seg,
                                    im_use_saved(IM_SAVED_ATTN, IM_READ, out_view(L)), im_use_saved(IM_SAVED_LSE, IM_READ, lse_view(L)),
                                    as(do_, IM_READ, out_view(L)), as(d, IM_WRITE, by_token(L, d, Q)), as(d, IM_WRITE, by_token(L, d, K)),
                                    as(d, IM_WRITE, by_token(L, d, V))));
    attention_constants(L, op);
    rope_in_place(L, d, true);
    if (normed(L))
        norm_qk_grad(L, x.raw, d);
    im_lower_linear_grad(L, "q, k, v", false, h, as(d, IM_READ, d.v), IM_SLOT_Q_W, IM_SLOT_Q_B, L->arch->D, qkv_cols(L), L->key->first, dh);
}
