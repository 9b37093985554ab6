/* Plain embed, norm, rope, act, glu, dropout, kv_write and their gradients: the oracles. Sums are in f64. */
#include "tensor/cpu/nn_kernels.h"

static im_dtype type_of(const im_kernel_call *c, int i)
{
    return (im_dtype)c->args->v[i].dtype;
}

static double get(const im_kernel_call *c, int i, int64_t r, int64_t col)
{
    const im_view *v = &c->args->v[i];
    return im_load(type_of(c, i), c->p[i], r * v->stride[0] + col * v->stride[1]);
}

static void put(const im_kernel_call *c, int i, int64_t r, int64_t col, double x)
{
    const im_view *v = &c->args->v[i];
    im_store(type_of(c, i), c->p[i], r * v->stride[0] + col * v->stride[1], (float)x);
}

static double get1(const im_kernel_call *c, int i, int64_t col)
{
    return im_load(type_of(c, i), c->p[i], col * c->args->v[i].stride[0]);
}

im_status im_check_ids(const im_kernel_call *c, const char *what, const int32_t *ids, int64_t n, int64_t stride, int64_t low, int64_t size)
{
    for (int64_t r = 0; r < n; r++) {
        int64_t id = ids[r * stride];
        if (id < low || id >= size)
            return im_fail(c->ctx, IM_ERR_ARG, "%s %lld at row %lld is outside the %lld there are (0 to %lld)", what, (long long)id, (long long)r,
                           (long long)size, (long long)size - 1);
    }
    return IM_OK;
}

/* ---- embed ------------------------------------------------------------------------------------------------------------- */

im_status im_plain_embed(const im_kernel_call *c)
{
    const im_view *ids = &c->args->v[0], *table = &c->args->v[1];
    bool second = im_op_has(c->args, 4);
    const int32_t *id = c->p[0], *pos = second ? c->p[3] : NULL;
    IM_TRY(im_check_ids(c, "embed: token id", id, ids->shape[0], ids->stride[0], 0, im_whole_vocabulary(c->args->i[1], table)));
    if (second)
        IM_TRY(im_check_ids(c, "embed: position", pos, ids->shape[0], c->args->v[3].stride[0], 0, c->args->v[4].shape[0]));
    for (int64_t r = 0; r < ids->shape[0]; r++)
        for (int64_t d = 0; d < table->shape[1]; d++) {
            int64_t v = id[r * ids->stride[0]] - c->args->i[0];
            double x = im_table_row(c->args, 1, v) ? (double)(float)c->args->f[0] * get(c, 1, v, d) : 0.0;
            if (second)
                x += get(c, 4, pos[r * c->args->v[3].stride[0]], d);
            put(c, 2, r, d, x);
        }
    return IM_OK;
}

im_status im_plain_embed_grad(const im_kernel_call *c)
{
    const im_view *ids = &c->args->v[0], *table = &c->args->v[2];
    const int32_t *id = c->p[0];
    IM_TRY(im_check_ids(c, "embed: token id", id, ids->shape[0], ids->stride[0], 0, im_whole_vocabulary(c->args->i[2], table)));
    if (c->args->i[0] == 0)
        for (int64_t v = 0; v < table->shape[0]; v++)
            for (int64_t d = 0; d < table->shape[1]; d++)
                put(c, 2, v, d, 0.0);
    for (int64_t r = 0; r < ids->shape[0]; r++)
        for (int64_t d = 0; d < table->shape[1]; d++) {
            int64_t v = id[r * ids->stride[0]] - c->args->i[1];
            if (im_table_row(c->args, 2, v))
                put(c, 2, v, d, get(c, 2, v, d) + get(c, 1, r, d));
        }
    return IM_OK;
}

/* ---- norm -------------------------------------------------------------------------------------------------------------- */

/* What is normalised: x, or x + res rounded to the activation type. */
static double norm_input(const im_kernel_call *c, int64_t r, int64_t d)
{
    double x = get(c, 0, r, d);
    if (!im_op_has(c->args, 5))
        return x;
    float sum = (float)x + (float)get(c, 5, r, d);
    return type_of(c, 0) == IM_BF16 ? im_bf16_f32(im_f32_bf16(sum)) : sum;
}

im_status im_plain_norm(const im_kernel_call *c)
{
    const im_view *x = &c->args->v[0];
    bool layer = c->args->i[1] == IM_NORM_LAYER;
    int64_t D = x->shape[1];
    for (int64_t r = 0; r < x->shape[0]; r++) {
        if (im_op_has(c->args, 6))
            for (int64_t d = 0; d < D; d++)
                put(c, 6, r, d, norm_input(c, r, d));
        double mean = 0.0, square = 0.0;
        bool summed = im_op_has(c->args, 6); /* sum may lie over x or res: read it back from there */
        for (int64_t d = 0; layer && d < D; d++)
            mean += (summed ? get(c, 6, r, d) : norm_input(c, r, d)) / (double)D;
        for (int64_t d = 0; d < D; d++) {
            double off = (summed ? get(c, 6, r, d) : norm_input(c, r, d)) - mean;
            square += off * off / (double)D;
        }
        double rstd = 1.0 / sqrt(square + c->args->f[0]);
        if (layer)
            put(c, 4, r, 0, mean);
        put(c, 4, r, layer ? 1 : 0, rstd);
        for (int64_t d = 0; d < D; d++) {
            double y = ((summed ? get(c, 6, r, d) : norm_input(c, r, d)) - mean) * rstd * get1(c, 1, d);
            put(c, 3, r, d, y + (im_op_has(c->args, 2) ? get1(c, 2, d) : 0.0));
        }
    }
    return IM_OK;
}

/* operands: x w stat dy dx dw db dres */
static void norm_grad_row(const im_kernel_call *c, int64_t r)
{
    int64_t D = c->args->v[0].shape[1];
    bool layer = c->args->i[1] == IM_NORM_LAYER;
    double mean = layer ? get(c, 2, r, 0) : 0.0, rstd = get(c, 2, r, layer ? 1 : 0);
    double along = 0.0, across = 0.0; /* mean of g * xhat, mean of g, where g = dy * w */
    for (int64_t d = 0; d < D; d++) {
        double g = get(c, 3, r, d) * get1(c, 1, d);
        along += g * (get(c, 0, r, d) - mean) * rstd / (double)D;
        across += layer ? g / (double)D : 0.0;
    }
    for (int64_t d = 0; d < D; d++) {
        double xhat = (get(c, 0, r, d) - mean) * rstd, g = get(c, 3, r, d) * get1(c, 1, d);
        double dx = rstd * (g - across - xhat * along);
        put(c, 4, r, d, dx + (im_op_has(c->args, 7) ? get(c, 7, r, d) : 0.0));
    }
}

im_status im_plain_norm_grad(const im_kernel_call *c)
{
    const im_view *x = &c->args->v[0];
    bool layer = c->args->i[1] == IM_NORM_LAYER, add = c->args->i[0] != 0;
    for (int64_t d = 0; d < x->shape[1]; d++) {
        double dw = 0.0, db = 0.0;
        for (int64_t r = 0; r < x->shape[0]; r++) {
            double mean = layer ? get(c, 2, r, 0) : 0.0, rstd = get(c, 2, r, layer ? 1 : 0);
            dw += get(c, 3, r, d) * (get(c, 0, r, d) - mean) * rstd;
            db += get(c, 3, r, d);
        }
        if (im_op_has(c->args, 5))
            ((float *)c->p[5])[d] = (float)(dw + (add ? ((float *)c->p[5])[d] : 0.0f));
        if (im_op_has(c->args, 6))
            ((float *)c->p[6])[d] = (float)(db + (add ? ((float *)c->p[6])[d] : 0.0f));
    }
    for (int64_t r = 0; r < x->shape[0]; r++)
        norm_grad_row(c, r);
    return IM_OK;
}

/* ---- rope -------------------------------------------------------------------------------------------------------------- */

im_status im_plain_rope(const im_kernel_call *c)
{
    const im_view *x = &c->args->v[0], *y = &c->args->v[1], *pos = &c->args->v[2], *table = &c->args->v[3];
    im_dtype t = type_of(c, 0);
    int64_t half = table->shape[1] / 2;
    bool interleaved = c->args->i[1] != 0;
    double sign = c->args->i[0] != 0 ? -1.0 : 1.0;
    const int32_t *p = c->p[2];
    IM_TRY(im_check_ids(c, "rope: position", p, x->shape[0], pos->stride[0], 0, table->shape[0]));
    for (int64_t r = 0; r < x->shape[0]; r++)
        for (int64_t h = 0; h < x->shape[1]; h++) {
            int64_t from = r * x->stride[0] + h * x->stride[1], to = r * y->stride[0] + h * y->stride[1];
            for (int64_t j = 0; j < half; j++) {
                int64_t first = interleaved ? 2 * j : j, second = interleaved ? 2 * j + 1 : j + half;
                double cosine = get(c, 3, p[r * pos->stride[0]], j), sine = sign * get(c, 3, p[r * pos->stride[0]], j + half);
                double a = im_load(t, c->p[0], from + first), b = im_load(t, c->p[0], from + second);
                im_store(t, c->p[1], to + first, (float)(a * cosine - b * sine));
                im_store(t, c->p[1], to + second, (float)(b * cosine + a * sine));
            }
            for (int64_t j = 2 * half; j < x->shape[2]; j++)
                im_store(t, c->p[1], to + j, im_load(t, c->p[0], from + j));
        }
    return IM_OK;
}

/* ---- act, glu ---------------------------------------------------------------------------------------------------------- */

static const double root_2_over_pi = 0.79788456080286535588, gelu_cubic = 0.044715;

/* The activation and its derivative. */
static double act_at(im_act kind, double x, double *slope)
{
    if (kind == IM_ACT_RELU) {
        *slope = isnan(x) ? x : x > 0.0 ? 1.0 : 0.0;
        return x > 0.0 || isnan(x) ? x : 0.0;
    }
    double gate, gate_slope; /* act(x) = x * gate(x) in all three */
    if (kind == IM_ACT_SILU) {
        gate = 1.0 / (1.0 + exp(-x));
        gate_slope = gate * (1.0 - gate);
    } else if (kind == IM_ACT_GELU_TANH) { /* (1 + tanh(u)) / 2 = sigmoid(2u) */
        double u = root_2_over_pi * (x + gelu_cubic * x * x * x);
        gate = 1.0 / (1.0 + exp(-2.0 * u));
        gate_slope = gate * (1.0 - gate) * 2.0 * root_2_over_pi * (1.0 + 3.0 * gelu_cubic * x * x);
    } else {
        gate = 0.5 * erfc(-x * 0.70710678118654752440);
        gate_slope = 0.39894228040143267794 * exp(-0.5 * x * x);
    }
    if (isinf(x)) { /* the limits; x * 0 would be a NaN */
        *slope = x > 0.0 ? 1.0 : 0.0;
        return x > 0.0 ? x : 0.0;
    }
    *slope = gate + (gate_slope == 0.0 ? 0.0 : x * gate_slope);
    return gate == 0.0 ? 0.0 : x * gate;
}

im_status im_plain_act(const im_kernel_call *c)
{
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        for (int64_t f = 0; f < c->args->v[0].shape[1]; f++) {
            double slope;
            put(c, 1, r, f, act_at((im_act)c->args->i[0], get(c, 0, r, f), &slope));
        }
    return IM_OK;
}

im_status im_plain_act_grad(const im_kernel_call *c)
{
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        for (int64_t f = 0; f < c->args->v[0].shape[1]; f++) {
            double slope;
            act_at((im_act)c->args->i[0], get(c, 0, r, f), &slope);
            put(c, 2, r, f, get(c, 1, r, f) * slope);
        }
    return IM_OK;
}

im_status im_plain_glu(const im_kernel_call *c)
{
    int64_t F = c->args->v[1].shape[1];
    for (int64_t r = 0; r < c->args->v[1].shape[0]; r++)
        for (int64_t f = 0; f < F; f++) {
            double slope;
            put(c, 1, r, f, act_at((im_act)c->args->i[0], get(c, 0, r, f), &slope) * get(c, 0, r, F + f));
        }
    return IM_OK;
}

im_status im_plain_glu_grad(const im_kernel_call *c)
{
    int64_t F = c->args->v[1].shape[1];
    for (int64_t r = 0; r < c->args->v[1].shape[0]; r++)
        for (int64_t f = 0; f < F; f++) {
            double slope, value = act_at((im_act)c->args->i[0], get(c, 0, r, f), &slope);
            double up = get(c, 0, r, F + f), dy = get(c, 1, r, f);
            put(c, 2, r, f, dy * up * slope);
            put(c, 2, r, F + f, dy * value);
        }
    return IM_OK;
}

/* ---- dropout, kv_write --------------------------------------------------------------------------------------------------- */

im_status im_plain_dropout(const im_kernel_call *c)
{
    const im_op_args *a = c->args;
    im_dropout drop = im_dropout_make(a->f[0], a->i[0], a->i[1]);
    for (int64_t r = 0; r < a->v[0].shape[0]; r++)
        for (int64_t d = 0; d < a->v[0].shape[1]; d++) {
            uint32_t word = im_dropout_word(&drop, c->now->sample0 + a->i[3] + (r + a->i[5]) / a->i[2], (r + a->i[5]) % a->i[2], a->i[4] + d);
            float x = word >= drop.threshold ? (float)get(c, 0, r, d) * drop.scale : 0.0f;
            put(c, 1, r, d, (im_op_has(a, 2) ? (float)get(c, 2, r, d) : 0.0f) + x);
        }
    return IM_OK;
}

/* Rows [0,B*T*K) of k go to the cache, whose token `at` is where the table says; shared by both versions but for the threads. */
im_status im_plain_kv_write(const im_kernel_call *c)
{
    const im_view *k = &c->args->v[0], *cache = &c->args->v[1];
    bool paged = im_op_has(c->args, 2);
    int64_t at = c->now->pos, blocks = paged ? c->args->v[2].shape[1] : 0, room = paged ? blocks * IM_KV_BLOCK : cache->shape[1];
    im_heads to = {.p = c->p[1], .type = type_of(c, 1), .b = cache->stride[0], .t = cache->stride[1], .h = cache->stride[2], .blocks = blocks};
    im_heads from = {.p = c->p[0], .type = to.type, .b = k->stride[0], .t = k->stride[1], .h = k->stride[2]};
    if (at < 0 || at + k->shape[1] > room)
        return im_fail(c->ctx, IM_ERR_ARG, "kv_write: positions %lld to %lld do not fit the key/value cache of %lld", (long long)at,
                       (long long)(at + k->shape[1] - 1), (long long)room);
    to.block = paged ? (const int32_t *)c->p[2] : NULL;
    for (int64_t b = 0; b < k->shape[0]; b++)
        for (int64_t t = 0; t < k->shape[1]; t++) {
            int32_t block = paged ? to.block[b * blocks + (at + t) / IM_KV_BLOCK] : 0;
            if (block < 0 || (paged && block >= cache->shape[0]))
                return im_fail(c->ctx, IM_ERR_ARG, "kv_write: position %lld of sequence %lld is in block %d of the cache's %lld", (long long)(at + t),
                               (long long)b, block, (long long)cache->shape[0]);
            for (int64_t h = 0; h < k->shape[2]; h++)
                memcpy(im_head_row(&to, b, at + t, h), im_head_row(&from, b, t, h), (size_t)k->shape[3] * im_dtype_size(to.type));
        }
    return IM_OK;
}
