/* The kinds xent, count, clip, sample: operands, checks, costs. */
#include "tensor/cpu/nn_kernels.h"

static im_status need_scalars(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int64_t n)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_F64));
    IM_TRY(im_op_need_shape(ctx, k, a, i, 1, &n));
    return im_op_need_dense(ctx, k, a, i);
}

static im_status need_rows_of(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, im_dtype t, int64_t n)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, t));
    return im_op_need_shape(ctx, k, a, i, 1, &n);
}

static im_status need_logits(im_context *ctx, const im_op_kind *k, const im_op_args *a, int64_t vocabulary)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, 0, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 2, (int64_t[]){-1, -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 0));
    if (vocabulary < 1 || vocabulary > a->v[0].shape[1])
        return im_op_bad(ctx, k, a, 0, "a vocabulary of %lld must be from 1 to the columns", (long long)vocabulary);
    return IM_OK;
}

static im_status check_xent(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_logits(ctx, k, a, a->i[0]));
    int64_t n = a->v[0].shape[0];
    IM_TRY(need_rows_of(ctx, k, a, 1, IM_I32, n));
    IM_TRY(need_scalars(ctx, k, a, 2, 1));
    IM_TRY(im_op_need_activation(ctx, k, a, 3));
    IM_TRY(im_op_need_same_shape(ctx, k, a, 3, 0));
    IM_TRY(im_op_need_rows(ctx, k, a, 3));
    IM_TRY(need_rows_of(ctx, k, a, 4, IM_F32, n));
    if (!(a->f[0] >= 0.0 && a->f[0] <= 1.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: label smoothing is %g, it must be from 0 to 1", k->name, a->f[0]);
    return IM_OK;
}

static void cost_xent(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = (im_op_has(a, 3) ? 32.0 : 16.0) * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_xent = {
    .name = "xent",
    .min_operands = 3,
    .max_operands = 5,
    .operand = {IM_READ("logits"), IM_READ("target"), IM_ACC("loss", 1), IM_WRITE_OPTIONAL("dlogits"), IM_WRITE_OPTIONAL("row")},
    .check = check_xent,
    .cost = cost_xent,
    .plain = {.run = im_plain_xent},
    .fast = {.run = im_fast_xent, .workspace = im_fast_xent_workspace},
};

static im_status need_split(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, 0, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 2, (int64_t[]){-1, -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 0));
    if (a->i[0] < 0 || a->i[0] + a->v[0].shape[1] > a->i[2])
        return im_op_bad(ctx, k, a, 0, "the part from %lld lies outside the whole vocabulary", (long long)a->i[0]);
    return need_rows_of(ctx, k, a, 1, IM_I32, a->v[0].shape[0]);
}

static im_status check_xent_stat(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_split(ctx, k, a));
    IM_TRY(im_op_need_dtype(ctx, k, a, 2, IM_F64));
    IM_TRY(im_op_need_shape(ctx, k, a, 2, 2, (int64_t[]){a->v[0].shape[0], 4}));
    return im_op_need_rows(ctx, k, a, 2);
}

const im_op_kind im_op_xent_stat = {
    .name = "xent_stat",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("logits"), IM_READ("target"), IM_WRITE("stat")},
    .check = check_xent_stat,
    .cost = cost_xent,
    .plain = {.run = im_plain_xent_stat},
    .fast = {.run = im_fast_xent_stat},
};

static im_status check_xent_merge(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_split(ctx, k, a));
    int64_t n = a->v[0].shape[0];
    IM_TRY(im_op_need_dtype(ctx, k, a, 2, IM_F64));
    IM_TRY(im_op_need_shape(ctx, k, a, 2, 3, (int64_t[]){-1, n, 4}));
    IM_TRY(im_op_need_dense(ctx, k, a, 2));
    IM_TRY(need_scalars(ctx, k, a, 3, 1));
    IM_TRY(im_op_need_activation(ctx, k, a, 4));
    IM_TRY(im_op_need_same_shape(ctx, k, a, 4, 0));
    IM_TRY(im_op_need_rows(ctx, k, a, 4));
    IM_TRY(need_rows_of(ctx, k, a, 5, IM_F32, n));
    if (!(a->f[0] >= 0.0 && a->f[0] <= 1.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: label smoothing is %g, it must be from 0 to 1", k->name, a->f[0]);
    return IM_OK;
}

const im_op_kind im_op_xent_merge = {
    .name = "xent_merge",
    .min_operands = 4,
    .max_operands = 6,
    .operand = {IM_READ("logits"), IM_READ("target"), IM_READ("stats"), IM_ACC("loss", 1), IM_WRITE_OPTIONAL("dlogits"), IM_WRITE_OPTIONAL("row")},
    .check = check_xent_merge,
    .cost = cost_xent,
    .plain = {.run = im_plain_xent_merge},
    .fast = {.run = im_fast_xent_merge, .workspace = im_fast_xent_workspace},
};

static im_status check_count(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_rows_of(ctx, k, a, 0, IM_I32, -1));
    return need_scalars(ctx, k, a, 1, 1);
}

const im_op_kind im_op_count = {
    .name = "count",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("target"), IM_ACC("count", 0)},
    .check = check_count,
    .plain = {.run = im_plain_count},
};

static im_status check_clip(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    for (int i = 0; i < 5; i++)
        IM_TRY(need_scalars(ctx, k, a, i, i < 3 ? 1 : i == 3 ? IM_HYPER_COUNT : IM_CLIP_COUNT));
    return IM_OK;
}

const im_op_kind im_op_clip = {
    .name = "clip",
    .min_operands = 5,
    .max_operands = 5,
    .operand = {IM_READ("sumsq"), IM_READ("count"), IM_READ("loss"), IM_READ("hyper"), IM_MODIFY("out")},
    .check = check_clip,
    .plain = {.run = im_plain_clip},
};

static im_status check_sample(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_logits(ctx, k, a, a->i[2]));
    IM_TRY(need_rows_of(ctx, k, a, 1, IM_I32, a->v[0].shape[0]));
    IM_TRY(need_rows_of(ctx, k, a, 2, IM_F32, a->v[0].shape[0]));
    if (!(a->f[0] >= 0.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: temperature is %g, it must not be negative", k->name, a->f[0]);
    if (!(a->f[1] >= 0.0 && a->f[1] <= 1.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: top-p is %g, it must be from 0 to 1", k->name, a->f[1]);
    if (a->i[0] < 0)
        return im_fail(ctx, IM_ERR_ARG, "%s: top-k is %lld, it must not be negative (0: all)", k->name, (long long)a->i[0]);
    return IM_OK;
}

static void cost_sample(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 16.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_sample = {
    .name = "sample",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("logits"), IM_WRITE("id"), IM_WRITE("logprob")},
    .check = check_sample,
    .cost = cost_sample,
    .plain = {.run = im_plain_sample, .workspace = im_plain_sample_workspace},
    .fast = {.run = im_fast_sample, .workspace = im_plain_sample_workspace},
};
