/* The kinds embed, norm, rope, act, glu, dropout, kv_write and their gradients: operands, checks, costs. */
#include "tensor/cpu/nn_kernels.h"

/* Operands first..last are (rows, columns) activations of one dtype with contiguous rows. */
static im_status need_activations(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    IM_TRY(im_op_need_activation(ctx, k, a, i));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, i, 0));
    return im_op_need_rows(ctx, k, a, i);
}

static im_status need_matrix(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int64_t rows, int64_t cols)
{
    IM_TRY(need_activations(ctx, k, a, i));
    return im_op_need_shape(ctx, k, a, i, 2, (int64_t[]){rows, cols});
}

static im_status need_ids(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int64_t n)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_I32));
    return im_op_need_shape(ctx, k, a, i, 1, &n);
}

static im_status need_f32_vector(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int64_t n)
{
    IM_TRY(im_op_need_dtype(ctx, k, a, i, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, i, 1, &n));
    return im_op_need_dense(ctx, k, a, i);
}

static im_status need_act(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    if (a->i[0] >= IM_ACT_GELU_TANH && a->i[0] <= IM_ACT_RELU)
        return IM_OK;
    return im_fail(ctx, IM_ERR_ARG, "%s: i[0] is %lld, it must be an activation, 0 to %d", k->name, (long long)a->i[0], IM_ACT_RELU);
}

/* ---- embed ------------------------------------------------------------------------------------------------------------- */

static im_status check_embed(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_ids(ctx, k, a, 0, -1));
    int64_t n = a->v[0].shape[0];
    IM_TRY(im_op_need_activation(ctx, k, a, 1));
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 2, (int64_t[]){-1, -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 1));
    int64_t D = a->v[1].shape[1];
    IM_TRY(im_op_need_activation(ctx, k, a, 2));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 2, 1));
    IM_TRY(im_op_need_shape(ctx, k, a, 2, 2, (int64_t[]){n, D}));
    IM_TRY(im_op_need_rows(ctx, k, a, 2));
    if (im_op_has(a, 3) != im_op_has(a, 4))
        return im_fail(ctx, IM_ERR_ARG, "%s: operands pos and table2 come together or not at all", k->name);
    IM_TRY(need_ids(ctx, k, a, 3, n));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 4, 1));
    IM_TRY(im_op_need_shape(ctx, k, a, 4, 2, (int64_t[]){-1, D}));
    return im_op_need_rows(ctx, k, a, 4);
}

/* Only the rows that are met are read. */
static void cost_embed(const im_op_args *a, im_op_cost *cost)
{
    size_t rows = (size_t)im_view_count(&a->v[2]) * im_dtype_size((im_dtype)a->v[2].dtype), ids = (size_t)a->v[0].shape[0] * 4;
    cost->flops = (double)im_view_count(&a->v[2]) * (im_op_has(a, 4) ? 2.0 : 1.0);
    cost->read = (rows + ids) * (im_op_has(a, 4) ? 2 : 1);
}

const im_op_kind im_op_embed = {
    .name = "embed",
    .min_operands = 3,
    .max_operands = 5,
    .operand = {IM_READ("ids"), IM_READ("table"), IM_WRITE("out"), IM_READ_OPTIONAL("pos"), IM_READ_OPTIONAL("table2")},
    .check = check_embed,
    .cost = cost_embed,
    .plain = {.run = im_plain_embed},
    .fast = {.run = im_fast_embed},
};

static im_status check_embed_grad(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_ids(ctx, k, a, 0, -1));
    IM_TRY(im_op_need_activation(ctx, k, a, 1));
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 2, (int64_t[]){a->v[0].shape[0], -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 1));
    IM_TRY(im_op_need_dtype(ctx, k, a, 2, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 2, 2, (int64_t[]){-1, a->v[1].shape[1]}));
    return im_op_need_rows(ctx, k, a, 2);
}

static void cost_embed_grad(const im_op_args *a, im_op_cost *cost)
{
    size_t rows = (size_t)im_view_count(&a->v[1]);
    cost->flops = (double)rows;
    cost->read = rows * (im_dtype_size((im_dtype)a->v[1].dtype) + 4) + (size_t)a->v[0].shape[0] * 4;
    cost->written = (a->i[0] != 0 ? rows : rows + (size_t)im_view_count(&a->v[2])) * 4;
}

const im_op_kind im_op_embed_grad = {
    .name = "embed_grad",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("ids"), IM_READ("dy"), IM_ACC("dtable", 0)},
    .check = check_embed_grad,
    .cost = cost_embed_grad,
    .plain = {.run = im_plain_embed_grad},
    .fast = {.run = im_fast_embed_grad},
};

/* ---- norm -------------------------------------------------------------------------------------------------------------- */

static im_status need_norm(im_context *ctx, const im_op_kind *k, const im_op_args *a, int stat)
{
    if (a->i[1] != IM_NORM_RMS && a->i[1] != IM_NORM_LAYER)
        return im_fail(ctx, IM_ERR_ARG, "%s: i[1] is %lld, it must be a norm, 0 or 1", k->name, (long long)a->i[1]);
    IM_TRY(need_matrix(ctx, k, a, 0, -1, -1));
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 1, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 1, &a->v[0].shape[1]));
    IM_TRY(im_op_need_dense(ctx, k, a, 1));
    IM_TRY(im_op_need_dtype(ctx, k, a, stat, IM_F32));
    IM_TRY(im_op_need_rows(ctx, k, a, stat));
    return im_op_need_shape(ctx, k, a, stat, 2, (int64_t[]){a->v[0].shape[0], a->i[1] == IM_NORM_LAYER ? 2 : 1});
}

static im_status check_norm(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_norm(ctx, k, a, 4));
    int64_t n = a->v[0].shape[0], D = a->v[0].shape[1];
    IM_TRY(im_op_need_same_dtype(ctx, k, a, 2, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, 2, 1, &D));
    IM_TRY(im_op_need_dense(ctx, k, a, 2));
    IM_TRY(need_matrix(ctx, k, a, 3, n, D));
    IM_TRY(need_matrix(ctx, k, a, 5, n, D));
    IM_TRY(need_matrix(ctx, k, a, 6, n, D));
    if (im_op_has(a, 6) && !im_op_has(a, 5))
        return im_fail(ctx, IM_ERR_ARG, "%s: operand sum without operand res", k->name);
    return IM_OK;
}

static void cost_norm(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 8.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_norm = {
    .name = "norm",
    .min_operands = 5,
    .max_operands = 7,
    .operand = {IM_READ("x"), IM_READ("w"), IM_READ_OPTIONAL("bias"), IM_WRITE("y"), IM_WRITE("stat"), IM_READ_OPTIONAL("res"),
                IM_WRITE_OPTIONAL("sum")},
    .check = check_norm,
    .cost = cost_norm,
    .plain = {.run = im_plain_norm},
    .fast = {.run = im_fast_norm, .workspace = im_fast_norm_workspace},
};

static im_status check_norm_grad(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_norm(ctx, k, a, 2));
    int64_t n = a->v[0].shape[0], D = a->v[0].shape[1];
    IM_TRY(need_matrix(ctx, k, a, 3, n, D));
    IM_TRY(need_matrix(ctx, k, a, 4, n, D));
    IM_TRY(need_f32_vector(ctx, k, a, 5, D));
    IM_TRY(need_f32_vector(ctx, k, a, 6, D));
    return need_matrix(ctx, k, a, 7, n, D);
}

static void cost_norm_grad(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 16.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_norm_grad = {
    .name = "norm_grad",
    .min_operands = 5,
    .max_operands = 8,
    .operand = {IM_READ("x"), IM_READ("w"), IM_READ("stat"), IM_READ("dy"), IM_WRITE("dx"), IM_ACC_OPTIONAL("dw", 0), IM_ACC_OPTIONAL("db", 0),
                IM_READ_OPTIONAL("dres")},
    .check = check_norm_grad,
    .cost = cost_norm_grad,
    .plain = {.run = im_plain_norm_grad},
    .fast = {.run = im_fast_norm_grad, .workspace = im_fast_norm_grad_workspace},
};

/* ---- rope -------------------------------------------------------------------------------------------------------------- */

static im_status check_rope(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_activations(ctx, k, a, 0));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 3, (int64_t[]){-1, -1, -1}));
    IM_TRY(need_activations(ctx, k, a, 1));
    IM_TRY(im_op_need_same_shape(ctx, k, a, 1, 0));
    IM_TRY(need_ids(ctx, k, a, 2, a->v[0].shape[0]));
    IM_TRY(im_op_need_dtype(ctx, k, a, 3, IM_F32));
    IM_TRY(im_op_need_shape(ctx, k, a, 3, 2, (int64_t[]){-1, -1}));
    IM_TRY(im_op_need_rows(ctx, k, a, 3));
    int64_t dims = a->v[3].shape[1];
    if (dims % 2 != 0 || dims > a->v[0].shape[2])
        return im_op_bad(ctx, k, a, 3, "%lld rotary dims must be even and at most the head size %lld", (long long)dims, (long long)a->v[0].shape[2]);
    return IM_OK;
}

static void cost_rope(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 3.0 * (double)(a->v[0].shape[0] * a->v[0].shape[1] * a->v[3].shape[1]);
    size_t met = (size_t)(a->v[0].shape[0] * a->v[3].shape[1]) * 4, table = (size_t)im_view_count(&a->v[3]) * 4;
    cost->read -= table > met ? table - met : 0;
}

const im_op_kind im_op_rope = {
    .name = "rope",
    .min_operands = 4,
    .max_operands = 4,
    .operand = {IM_READ("x"), IM_WRITE("y"), IM_READ("pos"), IM_READ("table")},
    .check = check_rope,
    .cost = cost_rope,
    .plain = {.run = im_plain_rope},
    .fast = {.run = im_fast_rope},
};

/* ---- act, glu ---------------------------------------------------------------------------------------------------------- */

static im_status check_act(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_act(ctx, k, a));
    IM_TRY(need_matrix(ctx, k, a, 0, -1, -1));
    for (int i = 1; i < a->n; i++)
        IM_TRY(need_matrix(ctx, k, a, i, a->v[0].shape[0], a->v[0].shape[1]));
    return IM_OK;
}

static void cost_act(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 20.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_act = {
    .name = "act",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("x"), IM_WRITE("y")},
    .check = check_act,
    .cost = cost_act,
    .plain = {.run = im_plain_act},
    .fast = {.run = im_fast_act},
};

const im_op_kind im_op_act_grad = {
    .name = "act_grad",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("x"), IM_READ("dy"), IM_WRITE("dx")},
    .check = check_act,
    .cost = cost_act,
    .plain = {.run = im_plain_act_grad},
    .fast = {.run = im_fast_act_grad},
};

static im_status check_glu(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_act(ctx, k, a));
    IM_TRY(need_matrix(ctx, k, a, 0, -1, -1));
    if (a->v[0].shape[1] % 2 != 0)
        return im_op_bad(ctx, k, a, 0, "gate and up lie side by side: the columns must be even");
    IM_TRY(need_matrix(ctx, k, a, 1, a->v[0].shape[0], a->v[0].shape[1] / 2));
    return need_matrix(ctx, k, a, 2, a->v[0].shape[0], a->v[0].shape[1]);
}

static void cost_glu(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 20.0 * (double)im_view_count(&a->v[1]);
}

const im_op_kind im_op_glu = {
    .name = "glu",
    .min_operands = 2,
    .max_operands = 2,
    .operand = {IM_READ("h"), IM_WRITE("y")},
    .check = check_glu,
    .cost = cost_glu,
    .plain = {.run = im_plain_glu},
    .fast = {.run = im_fast_glu},
};

const im_op_kind im_op_glu_grad = {
    .name = "glu_grad",
    .min_operands = 3,
    .max_operands = 3,
    .operand = {IM_READ("h"), IM_READ("dy"), IM_WRITE("dh")},
    .check = check_glu,
    .cost = cost_glu,
    .plain = {.run = im_plain_glu_grad},
    .fast = {.run = im_fast_glu_grad},
};

/* ---- dropout, kv_write --------------------------------------------------------------------------------------------------- */

static im_status check_dropout(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    if (!(a->f[0] >= 0.0 && a->f[0] < 1.0))
        return im_fail(ctx, IM_ERR_ARG, "%s: p is %g, it must be at least 0 and below 1", k->name, a->f[0]);
    if (a->i[2] < 1)
        return im_fail(ctx, IM_ERR_ARG, "%s: i[2] is %lld, a sample has at least one row", k->name, (long long)a->i[2]);
    if (a->i[4] < 0)
        return im_fail(ctx, IM_ERR_ARG, "%s: i[4] is %lld, the first column is not negative", k->name, (long long)a->i[4]);
    IM_TRY(need_matrix(ctx, k, a, 0, -1, -1));
    IM_TRY(need_matrix(ctx, k, a, 1, a->v[0].shape[0], a->v[0].shape[1]));
    return need_matrix(ctx, k, a, 2, a->v[0].shape[0], a->v[0].shape[1]);
}

static void cost_dropout(const im_op_args *a, im_op_cost *cost)
{
    cost->flops = 2.0 * (double)im_view_count(&a->v[0]);
}

const im_op_kind im_op_dropout = {
    .name = "dropout",
    .min_operands = 2,
    .max_operands = 3,
    .operand = {IM_READ("x"), IM_WRITE("y"), IM_READ_OPTIONAL("res")},
    .check = check_dropout,
    .cost = cost_dropout,
    .plain = {.run = im_plain_dropout},
    .fast = {.run = im_fast_dropout},
};

static im_status check_kv_write(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    IM_TRY(need_activations(ctx, k, a, 0));
    IM_TRY(need_activations(ctx, k, a, 1));
    IM_TRY(im_op_need_shape(ctx, k, a, 0, 4, (int64_t[]){-1, -1, -1, -1}));
    const im_view *v = &a->v[0];
    if (im_op_has(a, 2)) {
        IM_TRY(im_op_need_dtype(ctx, k, a, 2, IM_I32));
        IM_TRY(im_op_need_shape(ctx, k, a, 2, 2, (int64_t[]){v->shape[0], -1}));
        return im_op_need_shape(ctx, k, a, 1, 4, (int64_t[]){-1, IM_KV_BLOCK, v->shape[2], v->shape[3]});
    }
    IM_TRY(im_op_need_shape(ctx, k, a, 1, 4, (int64_t[]){v->shape[0], -1, v->shape[2], v->shape[3]}));
    if (v->shape[1] > a->v[1].shape[1])
        return im_op_bad(ctx, k, a, 1, "has %lld positions, operand k has %lld", (long long)a->v[1].shape[1], (long long)v->shape[1]);
    return IM_OK;
}

static void cost_kv_write(const im_op_args *a, im_op_cost *cost)
{
    size_t nbytes = (size_t)im_view_count(&a->v[0]) * im_dtype_size((im_dtype)a->v[0].dtype);
    cost->read = nbytes;
    cost->written = nbytes;
}

const im_op_kind im_op_kv_write = {
    .name = "kv_write",
    .min_operands = 2,
    .max_operands = 3,
    .operand = {IM_READ("k"), IM_MODIFY("cache"), IM_READ_OPTIONAL("table")},
    .check = check_kv_write,
    .cost = cost_kv_write,
    .plain = {.run = im_plain_kv_write},
    .fast = {.run = im_fast_kv_write},
};
