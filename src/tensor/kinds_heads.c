/* The kinds head_sum, head_norm and head_norm_grad: operands, checks, costs. */
#include "tensor/cpu/nn_kernels.h"

static im_status need_heads(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    IM_TRY(im_op_need_activation(ctx, k, a, i));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, i, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, i, 3, i ? a->v[0].shape : (int64_t[]){-1, -1, -1}));
    return im_op_need_rows(ctx, k, a, i);
}

/* A vector of one element a column of a row's heads, or of one head. */
static im_status need_weight(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, bool all)
{
    const int64_t width = (all ? a->v[0].shape[1] : 1) * a->v[0].shape[2];
    IM_TRY(im_op_need_shape(ctx, k, a, i, 1, &width));
    return im_op_need_dense(ctx, k, a, i);
}

static im_status need_row_values(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, i, 1, &a->v[0].shape[0]));
    return im_op_need_dense(ctx, k, a, i);
}

static im_status need_columns(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    if (a->i[1] < 1)
        return im_fail(ctx, IM_ERR_ARG, "%s: i[1] is %lld columns of all heads, it must be positive", k->name, (long long)a->i[1]);
    return IM_OK;
}

static void cost_sum(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = (im_op_has(a, 2) ? 3.0 : 2.0) * (double)im_view_count(&a->v[0]);
}

static im_status check_sum(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_heads(ctx, k, a, 0));
    IM_TRY(need_heads(ctx, k, a, 1));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 2, 0));
    if (im_op_has(a, 2))
        IM_TRY(need_weight(ctx, k, a, 2, true));
    return need_row_values(ctx, k, a, 3);
}

const im_op_kind im_op_head_sum = {
    .name = "head_sum",
    .min_operands = 4,
    .max_operands = 4,
    .operand = {IM_READ("x"), IM_READ("y"), IM_READ_OPTIONAL("w"), IM_WRITE("out")},
    .check = check_sum,
    .cost = cost_sum,
    .plain = {.run = im_plain_head_sum},
    .fast = {.run = im_fast_head_sum},
};

static void cost_norm(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 5.0 * (double)im_view_count(&a->v[0]);
}

static im_status check_norm(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_heads(ctx, k, a, 0));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 1, 0));
    IM_TRY(need_weight(ctx, k, a, 1, im_op_has(a, 3)));
    IM_TRY(need_heads(ctx, k, a, 2));
    if (!im_op_has(a, 3))
        return IM_OK;
    IM_TRY(need_row_values(ctx, k, a, 3));
    return need_columns(ctx, k, a);
}

const im_op_kind im_op_head_norm = {
    .name = "head_norm",
    .min_operands = 3,
    .max_operands = 4,
    .operand = {IM_READ("x"), IM_READ("w"), IM_WRITE("y"), IM_READ_OPTIONAL("squares")},
    .check = check_norm,
    .cost = cost_norm,
    .plain = {.run = im_plain_head_norm},
    .fast = {.run = im_fast_head_norm},
};

static void cost_norm_grad(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 14.0 * (double)im_view_count(&a->v[0]);
}

static im_status check_norm_grad(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_heads(ctx, k, a, 0));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 1, 0));
    if (im_op_has(a, 5) != im_op_has(a, 6))
        return im_fail(ctx, IM_ERR_ARG, "%s: operands squares and along come together or not at all", k->name);
    IM_TRY(need_weight(ctx, k, a, 1, im_op_has(a, 5)));
    IM_TRY(need_heads(ctx, k, a, 2));
    IM_TRY(need_heads(ctx, k, a, 3));
    IM_TRY(im_op_need_dtype(ctx, k, a, 4, IM_F32));
    IM_TRY(need_weight(ctx, k, a, 4, im_op_has(a, 5)));
    if (!im_op_has(a, 5))
        return IM_OK;
    IM_TRY(need_row_values(ctx, k, a, 5));
    IM_TRY(need_row_values(ctx, k, a, 6));
    return need_columns(ctx, k, a);
}

const im_op_kind im_op_head_norm_grad = {
    .name = "head_norm_grad",
    .min_operands = 5,
    .max_operands = 7,
    .operand = {IM_READ("x"), IM_READ("w"), IM_READ("dy"), IM_WRITE("dx"), IM_ACC("dw", 0), IM_READ_OPTIONAL("squares"), IM_READ_OPTIONAL("along")},
    .check = check_norm_grad,
    .cost = cost_norm_grad,
    .plain = {.run = im_plain_head_norm_grad},
    .fast = {.run = im_fast_head_norm_grad, .workspace = im_fast_head_norm_grad_workspace},
};
