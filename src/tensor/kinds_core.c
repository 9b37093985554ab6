/* The kinds fill, copy, add, matmul, colsum, sumsq, adamw, finite: operands, checks, costs. */
#include "tensor/cpu/core_kernels.h"
#include "tensor/ops.h"

static bool is_float(im_dtype t)
{
    return t == IM_F32 || t == IM_F64 || t == IM_BF16 || t == IM_F16;
}

/* ---- fill, copy, add --------------------------------------------------------------------------------------------------- */

const im_op_kind im_op_fill = {
    .name = "fill",
    .min_operands = 1,
    .max_operands = 1,
    .operand = {IM_WRITE("out")},
    .plain = {.run = im_plain_fill},
    .fast = {.run = im_fast_fill},
};

static im_status check_copy(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(im_op_need_same_shape(ctx, k, a, 1, 0));
    if (a->v[0].dtype == a->v[1].dtype || (is_float(a->v[0].dtype) && is_float(a->v[1].dtype)))
        return IM_OK;
    return im_op_bad(ctx, k, a, 1, "cannot be made from %s: only floating-point types convert", im_dtype_name((im_dtype)a->v[0].dtype));
}

const im_op_kind im_op_copy = {
    .name = "copy",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("in"), IM_WRITE("out")},
    .check = check_copy,
    .plain = {.run = im_plain_copy},
    .fast = {.run = im_fast_copy},
};

static im_status check_add(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    for (int i = 0; i < 3; i++) {
        IM_TRY(im_op_need_activation(ctx, k, a, i));
        IM_TRY(im_op_need_same_dtype(ctx, k, a, i, 0));
        IM_TRY(im_op_need_same_shape(ctx, k, a, i, 0));
    }
    return IM_OK;
}

static void cost_add(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_add = {
    .name = "add",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("a"), IM_READ("b"), IM_WRITE("out")},
    .check = check_add,
    .cost = cost_add,
    .plain = {.run = im_plain_add},
    .fast = {.run = im_fast_add},
};

/* ---- matmul, colsum ---------------------------------------------------------------------------------------------------- */

static im_status check_matmul_strides(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    const im_view *v = &a->v[i];
    int r = v->ndim - 2, c = v->ndim - 1;
    if (v->shape[r] <= 1 || v->shape[c] <= 1 || v->stride[r] == 1 || v->stride[c] == 1)
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "the last two strides are %lld and %lld, one of them must be 1", (long long)v->stride[r], (long long)v->stride[c]);
}

static im_status check_matmul(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    const im_view *l = &a->v[0], *r = &a->v[1];
    if (l->ndim != 2 && l->ndim != 3)
        return im_op_bad(ctx, k, a, 0, "must have 2 dims, or 3 when batched");
    IM_TRY(im_op_need_activation(ctx, k, a, 0));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 1, 0));
    int d = l->ndim - 2;
    int64_t want[2][3] = {{l->shape[0], 0, 0}, {l->shape[0], 0, 0}};
    want[0][d] = l->shape[d + 1];
    want[0][d + 1] = -1;
    IM_TRY(im_op_need_shape(ctx, k, a, 1, l->ndim, want[0]));
    want[1][d] = l->shape[d];
    want[1][d + 1] = r->shape[d + 1];
    IM_TRY(im_op_need_shape(ctx, k, a, 2, l->ndim, want[1]));
    IM_TRY(im_op_need_shape(ctx, k, a, 3, 1, &r->shape[d + 1]));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 3, 0));
    IM_TRY(im_op_need_dense(ctx, k, a, 3));
    IM_TRY(check_matmul_strides(ctx, k, a, 0));
    IM_TRY(check_matmul_strides(ctx, k, a, 1));
    IM_TRY(im_op_need_rows(ctx, k, a, 2));
    if (a->v[2].dtype != IM_F32)
        IM_TRY(im_op_need_same_dtype(ctx, k, a, 2, 0));
    if (a->i[0] != 0)
        IM_TRY(im_op_need_dtype(ctx, k, a, 2, IM_F32));
    return IM_OK;
}

static void cost_matmul(const im_op_args *a, im_op_cost *cost)
{
    const im_view *l = &a->v[0];
    cost->flops = 2.0 * (double)im_view_count(l) * (double)a->v[1].shape[a->v[1].ndim - 1];
}

const im_op_kind im_op_matmul = {
    .name = "matmul",
    .min_operands = 3,
    .max_operands = 4,
    .operand = {IM_READ("a"), IM_READ("b"), IM_ACC("c", 0), IM_READ_OPTIONAL("bias")},
    .check = check_matmul,
    .cost = cost_matmul,
    .plain = {.run = im_plain_matmul},
    .fast = {.run = im_fast_matmul, .workspace = im_fast_matmul_workspace, .prepare = im_fast_matmul_prepare, .destroy = im_fast_matmul_destroy},
};

static im_status check_colsum(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(im_op_need_activation(ctx, k, a, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 2, (int64_t[]){-1, -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 0));
    IM_TRY(im_op_need_dtype(ctx, k, a, 1, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 1, &a->v[0].shape[1]));
    return im_op_need_dense(ctx, k, a, 1);
}

const im_op_kind im_op_colsum = {
    .name = "colsum",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("x"), IM_ACC("out", 0)},
    .check = check_colsum,
    .cost = cost_add,
    .plain = {.run = im_plain_colsum},
    .fast = {.run = im_fast_colsum},
};

/* ---- sumsq, adamw, finite ---------------------------------------------------------------------------------------------- */

static im_status check_sumsq(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, 0, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 1, (int64_t[]){-1}));
    IM_TRY(im_op_need_dense(ctx, k, a, 0));
    IM_TRY(im_op_need_dtype(ctx, k, a, 1, IM_F64));
    return im_op_need_shape(ctx, k, a, 1, 1, (int64_t[]){1});
}

static void cost_sumsq(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 2.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_sumsq = {
    .name = "sumsq",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("x"), IM_ACC("out", 0)},
    .check = check_sumsq,
    .cost = cost_sumsq,
    .plain = {.run = im_plain_sumsq},
    .fast = {.run = im_fast_sumsq, .workspace = im_fast_sumsq_workspace},
};

static im_status check_adamw(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(im_op_need_activation(ctx, k, a, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 1, (int64_t[]){-1}));
    if (a->v[0].dtype == IM_BF16 && !im_op_has(a, 1))
        return im_fail(ctx, IM_ERR_ARG, "%s: operand w is bf16 and operand master is missing", k->name);
    if (a->v[0].dtype == IM_F32 && im_op_has(a, 1))
        return im_op_bad(ctx, k, a, 1, "must be absent: w is fp32 itself");
    for (int i = 0; i < 5; i++) {
        if (i > 0)
            IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_F32));
        IM_TRY(im_op_need_same_shape(ctx, k, a, i, 0));
        IM_TRY(im_op_need_dense(ctx, k, a, i));
    }
    for (int i = 5; i < (im_op_has(a, 7) ? 8 : 7); i++) {
        IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_F64));
        IM_TRY(im_op_need_shape(ctx, k, a, i, 1, (int64_t[]){i == 7 ? 1 : 8}));
        IM_TRY(im_op_need_dense(ctx, k, a, i));
    }
    return IM_OK;
}

static void cost_adamw(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 16.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_adamw = {
    .name = "adamw",
    .min_operands = 7,
    .max_operands = 8,
    .operand = {IM_MODIFY("w"), IM_MODIFY_OPTIONAL("master"), IM_MODIFY("m"), IM_MODIFY("v"), IM_READ("grad"), IM_READ("clip"), IM_READ("hyper"),
                IM_MODIFY_OPTIONAL("bad")},
    .check = check_adamw,
    .cost = cost_adamw,
    .plain = {.run = im_plain_adamw},
    .fast = {.run = im_fast_adamw},
};

static im_status check_finite(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    if (!is_float(a->v[0].dtype))
        return im_op_bad(ctx, k, a, 0, "must be a floating-point type");
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 1, (int64_t[]){-1}));
    IM_TRY(im_op_need_dense(ctx, k, a, 0));
    IM_TRY(im_op_need_dtype(ctx, k, a, 1, IM_F64));
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 1, (int64_t[]){2}));
    return im_op_need_dense(ctx, k, a, 1);
}

const im_op_kind im_op_finite = {
    .name = "finite",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("x"), IM_WRITE("out")},
    .check = check_finite,
    .plain = {.run = im_plain_finite},
    .fast = {.run = im_fast_finite, .workspace = im_fast_finite_workspace},
};
