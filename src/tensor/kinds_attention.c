/* The kinds attention and attention_grad: operands, checks, costs. */
#include "tensor/cpu/nn_kernels.h"

/* Heads beyond the largest power of two n <= heads take every other slope of 2n heads. */
double im_alibi_slope(int64_t head, int64_t heads)
{
    int64_t n = 1;
    while (2 * n <= heads)
        n *= 2;
    return head < n ? exp2(-8.0 * (double)(head + 1) / (double)n) : exp2(-4.0 * (double)(2 * (head - n) + 1) / (double)n);
}

static im_status need_heads(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, const int64_t shape[4])
{
    IM_TRY(im_op_need_activation(ctx, k, a, i));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, i, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, i, 4, shape));
    return im_op_need_rows(ctx, k, a, i);
}

static im_status need_places(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int64_t B, int64_t T)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_I32));
    return im_op_need_shape(ctx, k, a, i, 2, (int64_t[]){B, T});
}

static im_status check_attention(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_heads(ctx, k, a, 0, (int64_t[]){-1, -1, -1, -1}));
    const int64_t *q = a->v[0].shape;
    bool paged = a->n == 10 && im_op_has(a, 9);
    IM_TRY(need_heads(ctx, k, a, 1, (int64_t[]){paged ? -1 : q[0], paged ? IM_KV_BLOCK : -1, -1, q[3]}));
    const int64_t *kv = a->v[1].shape;
    int64_t keys = paged ? a->v[4].shape[1] : kv[1];
    IM_TRY(need_heads(ctx, k, a, 2, kv));
    if (paged)
        IM_TRY(need_places(ctx, k, a, 9, q[0], im_kv_blocks(keys)));
    if (kv[2] < 1 || q[2] % kv[2] != 0)
        return im_op_bad(ctx, k, a, 0, "%lld heads are not a multiple of %lld kv heads", (long long)q[2], (long long)kv[2]);
    IM_TRY(need_places(ctx, k, a, 3, q[0], q[1]));
    IM_TRY(need_places(ctx, k, a, 4, q[0], keys));
    if (im_op_has(a, 5) != im_op_has(a, 6))
        return im_fail(ctx, IM_ERR_ARG, "%s: operands seg_q and seg_k come together or not at all", k->name);
    IM_TRY(need_places(ctx, k, a, 5, q[0], q[1]));
    IM_TRY(need_places(ctx, k, a, 6, q[0], keys));
    IM_TRY(need_heads(ctx, k, a, 7, q));
    IM_TRY(im_op_need_dtype(ctx, k, a, 8, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 8, 3, q));
    for (int i = 9; a->n > 10 && i < a->n; i++)
        IM_TRY(need_heads(ctx, k, a, i, i < 11 ? q : kv));
    if (!(a->f[1] >= 0.0 && a->f[1] < 1.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: dropout is %g, it must be at least 0 and below 1", k->name, a->f[1]);
    if (a->i[1] < 0)
        return im_fail(ctx, IM_ERR_ARG, "%s: a window of %lld, it must be positive, or 0 for none", k->name, (long long)a->i[1]);
    if (a->i[7] < 0 || (a->i[7] && (a->i[6] < 0 || a->i[6] + q[2] > a->i[7])))
        return im_fail(ctx, IM_ERR_ARG, "%s: slopes for %lld heads, but those here are %lld to %lld", k->name, (long long)a->i[7], (long long)a->i[6],
                       (long long)(a->i[6] + q[2] - 1));
    return IM_OK;
}

/* Causal counts half of the square when queries and keys are the same tokens. */
static double pairs(const im_op_args *a)
{
    double Tq = (double)a->v[0].shape[1], Tk = (double)a->v[4].shape[1], n = Tq * Tk;
    if (a->i[0] != 0 && Tq == Tk)
        n = Tq * (Tq + 1) / 2;
    if (a->i[1] > 0 && n > Tq * (double)a->i[1])
        n = Tq * (double)a->i[1];
    return n * (double)a->v[0].shape[0] * (double)a->v[0].shape[2];
}

/* Two products of E multiply-adds a pair. */
static void cost_attention(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = pairs(a) * 4.0 * (double)a->v[0].shape[3];
}

/* Five products. */
static void cost_attention_grad(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = pairs(a) * 10.0 * (double)a->v[0].shape[3];
}

const im_op_kind im_op_attention = {
    .name = "attention",
    .min_operands = 9,
    .max_operands = 10,
    .operand = {IM_READ("q"), IM_READ("k"), IM_READ("v"), IM_READ("pos_q"), IM_READ("pos_k"), IM_READ_OPTIONAL("seg_q"), IM_READ_OPTIONAL("seg_k"),
                IM_WRITE("o"), IM_WRITE("lse"), IM_READ_OPTIONAL("table")},
    .check = check_attention,
    .cost = cost_attention,
    .plain = {.run = im_plain_attention, .workspace = im_plain_attention_workspace},
    .fast = {.run = im_fast_attention, .workspace = im_fast_attention_workspace},
};

const im_op_kind im_op_attention_grad = {
    .name = "attention_grad",
    .min_operands = 13,
    .max_operands = 13,
    .operand = {IM_READ("q"), IM_READ("k"), IM_READ("v"), IM_READ("pos_q"), IM_READ("pos_k"), IM_READ_OPTIONAL("seg_q"), IM_READ_OPTIONAL("seg_k"),
                IM_READ("o"), IM_READ("lse"), IM_READ("do"), IM_WRITE("dq"), IM_WRITE("dk"), IM_WRITE("dv")},
    .check = check_attention,
    .cost = cost_attention_grad,
    .plain = {.run = im_plain_attention_grad, .workspace = im_plain_attention_grad_workspace},
    .fast = {.run = im_fast_attention_grad, .workspace = im_fast_attention_grad_workspace},
};
