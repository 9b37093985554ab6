/* lower: a block, forward and backward. Where its norms stand is the family's (im_residual):
 *
 *   PRE        h1 = N1 x    p = A(h1)   r = x + p       h2 = N2 r   d = M(h2)   y = r + d
 *   PARALLEL   h1 = N1 x    p = A(h1)                   h2 = N2 x   d = M(h2)   y = x + p + d
 *   POST                    p = A(x)    r = x + N1 p                d = M(r)    y = r + N2 d
 *
 * A is attention with its output projection, M the feed-forward, both through dropout. Rows n = B*T, D hidden, F feed-forward.
 * Saved for the backward: h1, h2 (POST: p, d, what is normed), the norms' statistics, r, attention's q k v, output and log-sum-exp, the
 * feed-forward before and after its activation; x is the edge before.
 *
 * Tensor parallel: q, k, v and up are column-parallel, out and down row-parallel; their partial results are summed over the tp group (forward: p and d,
 * backward: the gradients of what A and M read). Sequence parallel: x, h1, r, h2, y and the norms are this rank's rows; what A and M read is gathered
 * before the column-parallel products (again in the backward: gathered rows are never saved), p and d are reduce-scattered.
 */
#include "plan/lower.h"

/* rows of the micro-batch (all of them), and of this rank's share */
static im_view rows(const im_lowerer *L, int64_t cols)
{
    return im_view_2d(L->A, L->n, cols);
}

static im_view share_rows(const im_lowerer *L)
{
    return im_view_2d(L->A, L->nr, L->arch->D);
}

static im_view stat_view(const im_lowerer *L)
{
    return im_view_2d(IM_F32, L->nr, L->arch->norm == IM_NORM_LAYER ? 2 : 1);
}

static im_use read_of(im_use u)
{
    u.o.access = IM_READ;
    return u;
}

static im_use new_share(im_lowerer *L)
{
    return im_use_temp(im_lower_temp(L), IM_WRITE, share_rows(L));
}

static im_use saved(im_saved s, im_view v)
{
    return im_use_saved(s, IM_READ, v);
}

static int64_t up_cols(const im_lowerer *L)
{
    return L->arch->gated ? 2 * L->F : L->F;
}

static im_slot up_weight(const im_lowerer *L)
{
    return L->arch->gated ? IM_SLOT_GATE_W : IM_SLOT_UP_W;
}

static im_slot up_bias(const im_lowerer *L)
{
    return L->arch->gated ? IM_SLOT_GATE_B : IM_SLOT_UP_B;
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

im_use im_lower_keep(im_lowerer *L, im_saved s, im_view v)
{
    return kept(L, s) ? im_use_saved(s, IM_WRITE, v) : im_use_temp(im_lower_temp(L), IM_WRITE, v);
}

/* ---- forward ---------------------------------------------------------------------- */

/* y (share) = sum(x W + b) of a row-parallel product */
static void row_parallel(im_lowerer *L, const char *label, im_use x, im_slot w, im_slot b, int64_t K, im_use y)
{
    im_use own = im_lower_partial(L, y);
    im_lower_linear(L, label, true, x, w, b, K, L->arch->D, own);
    im_lower_sum(L, label, own, y);
}

static double dropout(const im_lowerer *L)
{
    return im_lower_dropout_p(L, L->arch->dropout_resid);
}

/* y = res + dropout(x) */
static void add(im_lowerer *L, const char *label, int site, im_use x, im_use res, im_use y)
{
    if (dropout(L) > 0)
        im_lower_dropout(L, label, dropout(L), site, x, y, res);
    else
        im_lower_op(L, &im_op_add, label, IM_USES(res, x, y));
}

/* Attention of h (share), with its output projection, into p (share). */
static void attend(im_lowerer *L, im_use h, im_use p)
{
    im_use all = im_lower_all_rows(L, "first norm", h), o = im_lower_attention(L, all);
    row_parallel(L, "attention out", o, IM_SLOT_O_W, IM_SLOT_O_B, L->H * L->arch->E, p);
}

/* The feed-forward of h (share) up to its activation; returns that. */
static im_use feed_up(im_lowerer *L, im_use h)
{
    im_use u = im_lower_keep(L, IM_SAVED_UP, rows(L, up_cols(L))), act = im_lower_keep(L, IM_SAVED_ACT, rows(L, L->F));
    im_use all = im_lower_all_rows(L, "second norm", h);
    im_lower_linear(L, "feed-forward up", false, all, up_weight(L), up_bias(L), L->arch->D, up_cols(L), u);
    im_op *op = im_lower_op(L, L->arch->gated ? &im_op_glu : &im_op_act, "activation", IM_USES(read_of(u), act));
    op->args.i[0] = L->arch->act;
    return read_of(act);
}

static void feed_down(im_lowerer *L, im_use act, im_use d)
{
    row_parallel(L, "feed-forward down", act, IM_SLOT_DOWN_W, IM_SLOT_DOWN_B, L->F, d);
}

static void norm1(im_lowerer *L, im_use x, im_use y)
{
    im_use stat = im_lower_keep(L, IM_SAVED_STAT1, stat_view(L));
    im_lower_norm(L, "first norm", x, IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, y, stat, im_use_absent(), im_use_absent());
}

/* y = N2 of x, or of x + res, which then goes to sum */
static void norm2(im_lowerer *L, im_use x, im_use y, im_use res, im_use sum)
{
    im_use stat = im_lower_keep(L, IM_SAVED_STAT2, stat_view(L));
    im_lower_norm(L, "second norm", x, IM_SLOT_NORM2_W, IM_SLOT_NORM2_B, y, stat, res, sum);
}

/* RECOMPUTE stops where nothing more is kept. */
static bool again(const im_lowerer *L)
{
    return L->key->verb == IM_RECOMPUTE;
}

static im_use input(const im_lowerer *L)
{
    return im_use_edge(-1, 0, IM_READ, share_rows(L));
}

static im_use output(const im_lowerer *L)
{
    return im_use_edge(0, 0, IM_WRITE, share_rows(L));
}

static void forward_pre(im_lowerer *L)
{
    im_use x = input(L), h1 = im_lower_keep(L, IM_SAVED_NORM1, share_rows(L)), p = new_share(L);
    norm1(L, x, h1);
    attend(L, read_of(h1), p);
    if (dropout(L) > 0) {
        im_use same = p;
        same.o.access = IM_MODIFY;
        im_lower_dropout(L, "attention dropout", dropout(L), 2, read_of(p), same, im_use_absent());
    }
    im_use r = im_lower_keep(L, IM_SAVED_SUM, share_rows(L)), h2 = im_lower_keep(L, IM_SAVED_NORM2, share_rows(L));
    norm2(L, x, h2, read_of(p), r);
    im_use act = feed_up(L, read_of(h2));
    if (again(L))
        return;
    im_use d = new_share(L);
    feed_down(L, act, d);
    add(L, "residual", 3, read_of(d), read_of(r), output(L));
}

static void forward_parallel(im_lowerer *L)
{
    im_use x = input(L), h1 = im_lower_keep(L, IM_SAVED_NORM1, share_rows(L)), p = new_share(L), r = new_share(L), d = new_share(L);
    norm1(L, x, h1);
    if (again(L)) {
        im_use all = im_lower_all_rows(L, "first norm", read_of(h1));
        im_lower_attention(L, all);
    } else {
        attend(L, read_of(h1), p);
        add(L, "residual", 2, read_of(p), x, r);
    }
    im_use h2 = im_lower_keep(L, IM_SAVED_NORM2, share_rows(L));
    norm2(L, x, h2, im_use_absent(), im_use_absent());
    im_use act = feed_up(L, read_of(h2));
    if (again(L))
        return;
    feed_down(L, act, d);
    add(L, "residual", 3, read_of(d), read_of(r), output(L));
}

static void forward_post(im_lowerer *L)
{
    im_use x = input(L), p = im_lower_keep(L, IM_SAVED_NORM1, share_rows(L)), n1 = new_share(L);
    attend(L, x, p);
    norm1(L, read_of(p), n1);
    im_use r = im_lower_keep(L, IM_SAVED_SUM, share_rows(L)), d = im_lower_keep(L, IM_SAVED_NORM2, share_rows(L)), n2 = new_share(L);
    add(L, "residual", 2, read_of(n1), x, r);
    feed_down(L, feed_up(L, read_of(r)), d);
    norm2(L, read_of(d), n2, im_use_absent(), im_use_absent());
    if (!again(L))
        add(L, "residual", 3, read_of(n2), read_of(r), output(L));
}

void im_lower_block_forward(im_lowerer *L)
{
    switch (L->arch->residual) {
    case IM_RESIDUAL_PRE: forward_pre(L); break;
    case IM_RESIDUAL_POST: forward_post(L); break;
    case IM_RESIDUAL_PARALLEL: forward_parallel(L); break;
    }
}

/* SELECTIVE: attention alone, from the saved q, k and v. FULL: everything that is kept. */
void im_lower_block_recompute(im_lowerer *L)
{
    if (L->program->plan->recompute == IM_RECOMPUTE_FULL)
        im_lower_block_forward(L);
    else
        im_lower_attention_again(L);
}

/* ---- backward ---------------------------------------------------------------------- */

/* dy (share) back through the dropout of a branch */
static im_use branch(im_lowerer *L, const char *label, int site, im_use dy)
{
    if (dropout(L) == 0)
        return dy;
    im_use t = new_share(L);
    im_lower_dropout(L, label, dropout(L), site, dy, t, im_use_absent());
    return read_of(t);
}

/* The gradient of what the feed-forward reads, h (share), from that of its result; into dh (share). */
static void feed_grad(im_lowerer *L, im_use h, im_use dd, im_use dh)
{
    const im_arch *a = L->arch;
    bool first = L->key->first;
    im_use da = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, L->F)), du = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, up_cols(L)));
    im_use all = im_lower_all_rows(L, "feed-forward down", dd);
    im_lower_linear_grad(L, "feed-forward down", true, saved(IM_SAVED_ACT, rows(L, L->F)), all, IM_SLOT_DOWN_W, IM_SLOT_DOWN_B, L->F, a->D, first,
                         da);
    im_op *op =
        im_lower_op(L, a->gated ? &im_op_glu_grad : &im_op_act_grad, "activation", IM_USES(saved(IM_SAVED_UP, rows(L, up_cols(L))), read_of(da), du));
    op->args.i[0] = a->act;
    im_use part = im_lower_partial(L, dh);
    h = im_lower_all_rows(L, "second norm", h);
    im_lower_linear_grad(L, "feed-forward up", false, h, read_of(du), up_weight(L), up_bias(L), a->D, up_cols(L), first, part);
    im_lower_sum(L, "feed-forward up", part, dh);
}

/* The same of attention. */
static void attend_grad(im_lowerer *L, im_use h, im_use dp, im_use dh)
{
    int64_t HE = L->H * L->arch->E;
    im_use do_ = im_use_temp(im_lower_temp(L), IM_WRITE, rows(L, HE)), all = im_lower_all_rows(L, "attention out", dp);
    im_lower_linear_grad(L, "attention out", true, saved(IM_SAVED_ATTN, rows(L, HE)), all, IM_SLOT_O_W, IM_SLOT_O_B, HE, L->arch->D, L->key->first,
                         do_);
    im_use part = im_lower_partial(L, dh);
    h = im_lower_all_rows(L, "first norm", h);
    im_lower_attention_grad(L, h, do_, part);
    im_lower_sum(L, "q, k, v", part, dh);
}

/* dx = gradient through norm 1 [+ dres] */
static void norm1_grad(im_lowerer *L, im_use x, im_use dy, im_use dx, im_use dres)
{
    im_lower_norm_grad(L, "first norm", x, IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, saved(IM_SAVED_STAT1, stat_view(L)), dy, dx, dres, L->key->first);
}

static void norm2_grad(im_lowerer *L, im_use x, im_use dy, im_use dx, im_use dres)
{
    im_lower_norm_grad(L, "second norm", x, IM_SLOT_NORM2_W, IM_SLOT_NORM2_B, saved(IM_SAVED_STAT2, stat_view(L)), dy, dx, dres, L->key->first);
}

/* PRE and PARALLEL differ in what the second norm reads, and in whether attention's gradient has gone through the feed-forward. */
static void backward_pre(im_lowerer *L, im_use dy, im_use dx)
{
    bool parallel = L->arch->residual == IM_RESIDUAL_PARALLEL;
    im_use dr = new_share(L), dh2 = new_share(L), dh1 = new_share(L);
    feed_grad(L, saved(IM_SAVED_NORM2, share_rows(L)), branch(L, "feed-forward dropout", 3, dy), dh2);
    norm2_grad(L, parallel ? input(L) : saved(IM_SAVED_SUM, share_rows(L)), read_of(dh2), dr, dy);
    attend_grad(L, saved(IM_SAVED_NORM1, share_rows(L)), branch(L, "attention dropout", 2, parallel ? dy : read_of(dr)), dh1);
    norm1_grad(L, input(L), read_of(dh1), dx, read_of(dr));
}

static void backward_post(im_lowerer *L, im_use dy, im_use dx)
{
    im_use dd = new_share(L), dm = new_share(L), dr = new_share(L), dp = new_share(L), da = new_share(L);
    norm2_grad(L, saved(IM_SAVED_NORM2, share_rows(L)), branch(L, "feed-forward dropout", 3, dy), dd, im_use_absent());
    feed_grad(L, saved(IM_SAVED_SUM, share_rows(L)), read_of(dd), dm);
    im_lower_op(L, &im_op_add, "residual", IM_USES(dy, read_of(dm), dr));
    norm1_grad(L, saved(IM_SAVED_NORM1, share_rows(L)), branch(L, "attention dropout", 2, read_of(dr)), dp, im_use_absent());
    attend_grad(L, input(L), read_of(dp), da);
    im_lower_op(L, &im_op_add, "residual", IM_USES(read_of(dr), read_of(da), dx));
}

void im_lower_block_backward(im_lowerer *L)
{
    im_use dy = im_use_edge(0, 1, IM_READ, share_rows(L)), dx = im_use_edge(-1, 1, IM_WRITE, share_rows(L));
    if (L->arch->residual == IM_RESIDUAL_POST)
        backward_post(L, dy, dx);
    else
        backward_pre(L, dy, dx);
}
