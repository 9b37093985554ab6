/* lower: embedding and block, forward and backward.
 *
 * Block (rows n = B*T, D hidden, W = H*E + 2*K*E columns of q, k, v):
 *
 *   x --norm1--> h1 --qkv--> q k v --rope, attention--> o --out--> p     r = x + p
 *   r --norm2--> h2 --up (gate)--> u --activation--> a --down--> d       y = r + d
 *
 * Saved for the backward: h1, statistics, q k v (rotated), o, log-sum-exp, r, h2, u, a; x is the edge before.
 *
 * Tensor parallel: q, k, v and up are column-parallel, out and down row-parallel; their partial results are summed over the tp group (forward: p and d,
 * backward: the gradients of h1 and h2). Sequence parallel: x, h1, r, h2, y and the norms are this rank's rows; h1 and h2 are gathered before the
 * column-parallel products (again in the backward: gathered rows are never saved), p and d are reduce-scattered.
 */
#include "plan/lower.h"

/* rows of the micro-batch (all of them), and of this rank's share */
static im_view rows(const im_lowerer *L, int64_t cols)
{
    return im_view_2d(L->A, L->n, cols);
}

static im_view share_rows(const im_lowerer *L, int64_t cols)
{
    return im_view_2d(L->A, L->nr, cols);
}

static im_view stat_view(const im_lowerer *L)
{
    return im_view_2d(IM_F32, L->nr, L->arch->norm == IM_NORM_LAYER ? 2 : 1);
}

static im_view batch_1d(const im_lowerer *L)
{
    return im_view_1d(IM_I32, L->n);
}

static im_view batch_2d(const im_lowerer *L)
{
    return im_view_2d(IM_I32, L->B, L->T);
}

/* ---- embedding -------------------------------------------------------------- */

/* The table's rows are split: a rank gives zero for ids of the others, and the first one adds the positions; the sum is the embedding. */
void im_lower_embed_forward(im_lowerer *L)
{
    const im_arch *a = L->arch;
    bool learned = a->learned_positions && L->program->layout->place.tp == 0;
    double p = im_lower_dropout_p(L, a->dropout_embed);
    im_use out = im_use_edge(0, 0, IM_WRITE, share_rows(L, a->D));
    im_use y = p > 0 ? im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, a->D)) : out;
    im_use found = im_lower_partial(L, y);
    im_op *op = im_lower_op(L, &im_op_embed, "embedding",
                            IM_USES(im_use_carry(IM_CARRY_IDS, IM_READ, batch_1d(L)), im_use_weight(IM_SLOT_TOKENS, im_view_2d(L->A, L->V, a->D)),
                                    found, learned ? im_use_carry(IM_CARRY_POS, IM_READ, batch_1d(L)) : im_use_absent(),
                                    learned ? im_use_weight(IM_SLOT_POSITIONS, im_view_2d(L->A, a->P, a->D)) : im_use_absent()));
    op->args.f[0] = 1;
    op->args.i[0] = L->v0;
    op->args.i[1] = a->V;
    op->partial = L->tp > 1 ? 1u << IM_GROUP_TP : 0;
    im_lower_sum(L, "embedding", found, y);
    if (p > 0) {
        y.o.access = IM_READ;
        im_lower_dropout(L, "embedding dropout", p, 0, y, out, im_use_absent());
    }
}

void im_lower_embed_backward(im_lowerer *L)
{
    const im_arch *a = L->arch;
    double p = im_lower_dropout_p(L, a->dropout_embed);
    im_use dy = im_use_edge(0, 1, IM_READ, share_rows(L, a->D));
    if (p > 0) {
        im_use dx = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, a->D));
        im_lower_dropout(L, "embedding dropout", p, 0, dy, dx, im_use_absent());
        dx.o.access = IM_READ;
        dy = dx;
    }
    dy = im_lower_all_rows(L, "embedding", dy);
    bool first = a->tied ? L->key->tied_first : L->key->first;
    im_op *op = im_lower_op(
        L, &im_op_embed_grad, "embedding",
        IM_USES(im_use_carry(IM_CARRY_IDS, IM_READ, batch_1d(L)), dy, im_use_grad(IM_SLOT_TOKENS, first, im_view_2d(IM_F32, L->V, a->D))));
    op->args.i[0] = !first;
    op->args.i[1] = L->v0;
    op->args.i[2] = a->V;
    if (a->learned_positions) { /* every rank has all rows here: the same sum on each */
        op = im_lower_op(L, &im_op_embed_grad, "positions",
                         IM_USES(im_use_carry(IM_CARRY_POS, IM_READ, batch_1d(L)), dy,
                                 im_use_grad(IM_SLOT_POSITIONS, L->key->first, im_view_2d(IM_F32, a->P, a->D))));
        op->args.i[0] = !L->key->first;
    }
}

/* ---- attention ----------------------------------------------------------------- */

/* q, k or v within the rows of the fused buffer, as (B,T,heads,E). */
static im_view heads_view(const im_lowerer *L, int64_t first_col, int64_t heads)
{
    const im_arch *a = L->arch;
    int64_t W = (L->H + 2 * L->K) * a->E;
    return (im_view){.ndim = 4, .dtype = (uint8_t)L->A, .shape = {L->B, L->T, heads, a->E}, .stride = {L->T * W, W, a->E, 1}, .offset = first_col};
}

static im_view heads_rows(const im_lowerer *L, int64_t first_col, int64_t heads)
{
    const im_arch *a = L->arch;
    int64_t W = (L->H + 2 * L->K) * a->E;
    return (im_view){.ndim = 3, .dtype = (uint8_t)L->A, .shape = {L->n, heads, a->E}, .stride = {W, a->E, 1}, .offset = first_col};
}

/* Rotates q and k in place in a fused buffer; inverse for gradients. */
static void rope_in_place(im_lowerer *L, im_use buffer, bool inverse)
{
    const im_arch *a = L->arch;
    if (!a->rope_dims)
        return;
    int64_t table_rows = L->program->spec.mode == IM_PROGRAM_INFER ? L->program->spec.kv_max : L->T;
    im_use table = im_use_carry(IM_CARRY_ROPE, IM_READ, im_view_2d(IM_F32, table_rows, a->rope_dims));
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, batch_1d(L));
    for (int k = 0; k < 2; k++) {
        im_use in = buffer, out = buffer;
        in.v = out.v = k ? heads_rows(L, L->H * a->E, L->K) : heads_rows(L, 0, L->H);
        in.o.access = IM_READ;
        out.o.access = IM_MODIFY;
        im_op *op = im_lower_op(L, &im_op_rope, inverse ? "inverse rotary" : "rotary", IM_USES(in, out, pos, table));
        op->args.i[0] = inverse;
        op->args.i[1] = a->rope_interleaved;
    }
}

static void attention_constants(const im_lowerer *L, im_op *op)
{
    op->args.f[0] = L->arch->attn_scale;
    op->args.f[1] = im_lower_dropout_p(L, L->arch->dropout_attn);
    op->args.i[0] = 1;
    op->args.i[2] = (int64_t)(L->program->plan->seed & INT64_MAX);
    op->args.i[3] = 1;
    op->args.i[6] = L->program->layout->share.h0;
    op->site_arg = 3;
    op->sample_arg = 5;
}

static im_use part(im_use u, im_access access, im_view v)
{
    u.o.access = (uint8_t)access;
    u.v = v;
    return u;
}

static im_use segments(const im_lowerer *L)
{
    return L->program->plan->documents ? im_use_carry(IM_CARRY_SEG, IM_READ, batch_2d(L)) : im_use_absent();
}

static im_view attn_out_view(const im_lowerer *L)
{
    const im_arch *a = L->arch;
    return im_view_make(L->A, 4, (int64_t[]){L->B, L->T, L->H, a->E});
}

static im_view lse_view(const im_lowerer *L)
{
    return im_view_make(IM_F32, 3, (int64_t[]){L->B, L->T, L->H});
}

/* Attention over the tokens of this micro-batch. */
static void attention_batch(im_lowerer *L, im_use qkv, im_use o, im_use lse)
{
    const im_arch *a = L->arch;
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, batch_2d(L)), seg = segments(L);
    im_op *op = im_lower_op(L, &im_op_attention, "attention",
                            IM_USES(part(qkv, IM_READ, heads_view(L, 0, L->H)), part(qkv, IM_READ, heads_view(L, L->H * a->E, L->K)),
                                    part(qkv, IM_READ, heads_view(L, (L->H + L->K) * a->E, L->K)), pos, pos, seg, seg, o, lse));
    attention_constants(L, op);
}

/* Attention of new tokens over the key/value cache, into which theirs are written first. */
static void attention_cached(im_lowerer *L, im_use qkv, im_use o, im_use lse)
{
    const im_arch *a = L->arch;
    int64_t M = L->program->spec.kv_max;
    im_view cache = im_view_make(L->A, 4, (int64_t[]){L->B, M, L->K, a->E});
    for (int i = 0; i < 2; i++)
        im_lower_op(L, &im_op_kv_write, i ? "cache values" : "cache keys",
                    IM_USES(part(qkv, IM_READ, heads_view(L, (L->H + (i ? L->K : 0)) * a->E, L->K)), im_use_kv(i, IM_MODIFY, cache)));
    im_use pos_q = im_use_carry(IM_CARRY_POS, IM_READ, batch_2d(L));
    im_use pos_k = im_use_carry(IM_CARRY_KV_POS, IM_READ, im_view_2d(IM_I32, L->B, M));
    im_op *op = im_lower_op(L, &im_op_attention, "attention",
                            IM_USES(part(qkv, IM_READ, heads_view(L, 0, L->H)), im_use_kv(0, IM_READ, cache), im_use_kv(1, IM_READ, cache), pos_q,
                                    pos_k, im_use_absent(), im_use_absent(), o, lse));
    attention_constants(L, op);
    op->args.i[4] = 1;
}

/* ---- block ----------------------------------------------------------------------- */

static im_use read_of(im_use u)
{
    u.o.access = IM_READ;
    return u;
}

static int64_t up_cols(const im_lowerer *L)
{
    return L->arch->gated ? 2 * L->F : L->F;
}

static int64_t qkv_cols(const im_lowerer *L)
{
    return (L->H + 2 * L->K) * L->arch->E;
}

/* Whether this instruction writes a result where the backward finds it. */
static bool kept(const im_lowerer *L, im_saved s)
{
    bool attention = s == IM_SAVED_ATTN || s == IM_SAVED_LSE;
    if (L->key->mode != IM_PROGRAM_TRAIN)
        return false;
    switch (L->program->plan->recompute) {
    case IM_RECOMPUTE_FULL: return L->key->verb == IM_RECOMPUTE;
    case IM_RECOMPUTE_SELECTIVE: return attention == (L->key->verb == IM_RECOMPUTE);
    default: return true;
    }
}

static im_use keep(im_lowerer *L, im_saved s, im_view v)
{
    return kept(L, s) ? im_use_saved(s, IM_WRITE, v) : im_use_temp(im_lower_temp(L), IM_WRITE, v);
}

static void activation(im_lowerer *L, im_use u, im_use y)
{
    im_op *op = im_lower_op(L, L->arch->gated ? &im_op_glu : &im_op_act, "activation", IM_USES(u, y));
    op->args.i[0] = L->arch->act;
}

/* Row-parallel product, summed, through dropout: y (share) = [res +] dropout(sum(x W + b)). */
static void row_parallel(im_lowerer *L, const char *label, const char *drop, int site, im_use x, im_slot w, im_slot b, int64_t K, im_use y)
{
    double p = im_lower_dropout_p(L, L->arch->dropout_resid);
    im_use own = im_lower_partial(L, y);
    im_lower_linear(L, label, true, x, w, b, K, L->arch->D, own);
    im_lower_sum(L, label, own, y);
    if (p > 0 && drop) {
        im_use same = y;
        same.o.access = IM_MODIFY;
        im_lower_dropout(L, drop, p, site, read_of(y), same, im_use_absent());
    }
}

static im_use attention_part(im_lowerer *L, im_use x)
{
    const im_arch *a = L->arch;
    im_use h1 = keep(L, IM_SAVED_NORM1, share_rows(L, a->D)), stat1 = keep(L, IM_SAVED_STAT1, stat_view(L));
    im_use qkv = keep(L, IM_SAVED_QKV, rows(L, qkv_cols(L)));
    im_use o = keep(L, IM_SAVED_ATTN, attn_out_view(L)), lse = keep(L, IM_SAVED_LSE, lse_view(L));
    im_lower_norm(L, "first norm", x, IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, h1, stat1, im_use_absent(), im_use_absent());
    im_use all = im_lower_all_rows(L, "first norm", read_of(h1));
    im_lower_linear(L, "q, k, v", false, all, IM_SLOT_Q_W, IM_SLOT_Q_B, a->D, qkv_cols(L), qkv);
    rope_in_place(L, qkv, false);
    if (L->key->mode == IM_PROGRAM_INFER)
        attention_cached(L, qkv, o, lse);
    else
        attention_batch(L, qkv, o, lse);
    im_use p = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, a->D));
    row_parallel(L, "attention out", "attention dropout", 2, part(o, IM_READ, rows(L, L->H * a->E)), IM_SLOT_O_W, IM_SLOT_O_B, L->H * a->E, p);
    return read_of(p);
}

void im_lower_block_forward(im_lowerer *L)
{
    const im_arch *a = L->arch;
    bool again = L->key->verb == IM_RECOMPUTE;
    im_use x = im_use_edge(-1, 0, IM_READ, share_rows(L, a->D)), attn = attention_part(L, x);
    im_use r = keep(L, IM_SAVED_SUM, share_rows(L, a->D)), h2 = keep(L, IM_SAVED_NORM2, share_rows(L, a->D)),
           stat2 = keep(L, IM_SAVED_STAT2, stat_view(L));
    im_lower_norm(L, "second norm", x, IM_SLOT_NORM2_W, IM_SLOT_NORM2_B, h2, stat2, attn, r);
    im_use u = keep(L, IM_SAVED_UP, rows(L, up_cols(L))), act = keep(L, IM_SAVED_ACT, rows(L, L->F));
    im_use all = im_lower_all_rows(L, "second norm", read_of(h2));
    im_lower_linear(L, "feed-forward up", false, all, a->gated ? IM_SLOT_GATE_W : IM_SLOT_UP_W, a->gated ? IM_SLOT_GATE_B : IM_SLOT_UP_B, a->D,
                    up_cols(L), u);
    activation(L, read_of(u), act);
    if (again)
        return; /* the output itself is not needed again */
    double p = im_lower_dropout_p(L, a->dropout_resid);
    im_use d = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, a->D)), y = im_use_edge(0, 0, IM_WRITE, share_rows(L, a->D));
    row_parallel(L, "feed-forward down", NULL, 3, read_of(act), IM_SLOT_DOWN_W, IM_SLOT_DOWN_B, L->F, d);
    if (p > 0)
        im_lower_dropout(L, "feed-forward dropout", p, 3, read_of(d), y, read_of(r));
    else
        im_lower_op(L, &im_op_add, "residual", IM_USES(read_of(r), read_of(d), y));
}

/* SELECTIVE: attention alone, from the saved q, k and v. FULL: everything up to the activation. */
void im_lower_block_recompute(im_lowerer *L)
{
    if (L->program->plan->recompute == IM_RECOMPUTE_FULL) {
        im_lower_block_forward(L);
        return;
    }
    attention_batch(L, im_use_saved(IM_SAVED_QKV, IM_READ, rows(L, qkv_cols(L))), keep(L, IM_SAVED_ATTN, attn_out_view(L)),
                    keep(L, IM_SAVED_LSE, lse_view(L)));
}

/* ---- backward ---------------------------------------------------------------------- */

/* dy (share) through the dropout of a branch, all rows of it. */
static im_use branch_gradient(im_lowerer *L, const char *label, int site, im_use dy)
{
    double p = im_lower_dropout_p(L, L->arch->dropout_resid);
    if (p > 0) {
        im_use t = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, L->arch->D));
        im_lower_dropout(L, label, p, site, dy, t, im_use_absent());
        dy = read_of(t);
    }
    return im_lower_all_rows(L, label, dy);
}

static im_use saved(im_saved s, im_view v)
{
    return im_use_saved(s, IM_READ, v);
}

static void feed_forward_backward(im_lowerer *L, im_use dy, im_use dr)
{
    const im_arch *a = L->arch;
    bool first = L->key->first;
    im_use da = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, L->F)), du = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, up_cols(L)));
    im_use dh2 = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, a->D));
    im_use db = branch_gradient(L, "feed-forward dropout", 3, dy);
    im_lower_linear_grad(L, "feed-forward down", true, saved(IM_SAVED_ACT, rows(L, L->F)), db, IM_SLOT_DOWN_W, IM_SLOT_DOWN_B, L->F, a->D, first, da);
    im_op *op =
        im_lower_op(L, a->gated ? &im_op_glu_grad : &im_op_act_grad, "activation", IM_USES(saved(IM_SAVED_UP, rows(L, up_cols(L))), read_of(da), du));
    op->args.i[0] = a->act;
    im_use h2 = im_lower_all_rows(L, "second norm", saved(IM_SAVED_NORM2, share_rows(L, a->D))), part_of_dh2 = im_lower_partial(L, dh2);
    im_lower_linear_grad(L, "feed-forward up", false, h2, read_of(du), a->gated ? IM_SLOT_GATE_W : IM_SLOT_UP_W,
                         a->gated ? IM_SLOT_GATE_B : IM_SLOT_UP_B, a->D, up_cols(L), first, part_of_dh2);
    im_lower_sum(L, "feed-forward up", part_of_dh2, dh2);
    im_lower_norm_grad(L, "second norm", saved(IM_SAVED_SUM, share_rows(L, a->D)), IM_SLOT_NORM2_W, IM_SLOT_NORM2_B,
                       saved(IM_SAVED_STAT2, stat_view(L)), read_of(dh2), dr, dy, first);
}

/* dqkv from the gradient of attention's output */
static void attention_backward(im_lowerer *L, im_use do_, im_use dqkv)
{
    int64_t k0 = L->H * L->arch->E, v0 = k0 + L->K * L->arch->E;
    im_use o = saved(IM_SAVED_ATTN, attn_out_view(L)), qkv = saved(IM_SAVED_QKV, rows(L, qkv_cols(L)));
    im_use pos = im_use_carry(IM_CARRY_POS, IM_READ, batch_2d(L)), seg = segments(L);
    im_op *op = im_lower_op(L, &im_op_attention_grad, "attention",
                            IM_USES(part(qkv, IM_READ, heads_view(L, 0, L->H)), part(qkv, IM_READ, heads_view(L, k0, L->K)),
                                    part(qkv, IM_READ, heads_view(L, v0, L->K)), pos, pos, seg, seg, o, saved(IM_SAVED_LSE, lse_view(L)),
                                    part(do_, IM_READ, attn_out_view(L)), part(dqkv, IM_WRITE, heads_view(L, 0, L->H)),
                                    part(dqkv, IM_WRITE, heads_view(L, k0, L->K)), part(dqkv, IM_WRITE, heads_view(L, v0, L->K))));
    attention_constants(L, op);
    rope_in_place(L, dqkv, true);
}

void im_lower_block_backward(im_lowerer *L)
{
    const im_arch *a = L->arch;
    bool first = L->key->first;
    int64_t D = a->D, HE = L->H * a->E, W = qkv_cols(L);
    im_use dy = im_use_edge(0, 1, IM_READ, share_rows(L, D)), dr = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, D));
    feed_forward_backward(L, dy, dr);

    im_use do_ = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, HE)), dqkv = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, W));
    im_use dh1 = im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L, D));
    im_use dattn = branch_gradient(L, "attention dropout", 2, read_of(dr));
    im_lower_linear_grad(L, "attention out", true, saved(IM_SAVED_ATTN, rows(L, HE)), dattn, IM_SLOT_O_W, IM_SLOT_O_B, HE, D, first, do_);
    attention_backward(L, do_, dqkv);
    im_use h1 = im_lower_all_rows(L, "first norm", saved(IM_SAVED_NORM1, share_rows(L, D))), part_of_dh1 = im_lower_partial(L, dh1);
    im_lower_linear_grad(L, "q, k, v", false, h1, read_of(dqkv), IM_SLOT_Q_W, IM_SLOT_Q_B, D, W, first, part_of_dh1);
    im_lower_sum(L, "q, k, v", part_of_dh1, dh1);
    im_lower_norm_grad(L, "first norm", im_use_edge(-1, 0, IM_READ, share_rows(L, D)), IM_SLOT_NORM1_W, IM_SLOT_NORM1_B,
                       saved(IM_SAVED_STAT1, stat_view(L)), read_of(dh1), im_use_edge(-1, 1, IM_WRITE, share_rows(L, D)), read_of(dr), first);
}
