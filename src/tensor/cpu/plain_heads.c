/* Plain head_sum, head_norm and head_norm_grad: the oracles. Sums are in f64. */
#include "tensor/cpu/nn_kernels.h"

static double at(const im_kernel_call *c, int i, int64_t r, int64_t h, int64_t e)
{
    const im_view *v = &c->args->v[i];
    return im_load((im_dtype)v->dtype, c->p[i], r * v->stride[0] + h * v->stride[1] + e * v->stride[2]);
}

static void put(const im_kernel_call *c, int i, int64_t r, int64_t h, int64_t e, double x)
{
    const im_view *v = &c->args->v[i];
    im_store((im_dtype)v->dtype, c->p[i], r * v->stride[0] + h * v->stride[1] + e * v->stride[2], (float)x);
}

im_status im_plain_head_sum(const im_kernel_call *c)
{
    const int64_t *shape = c->args->v[0].shape;
    for (int64_t r = 0; r < shape[0]; r++) {
        double sum = 0.0;
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t e = 0; e < shape[2]; e++) {
                double w = im_op_has(c->args, 2) ? im_load((im_dtype)c->args->v[2].dtype, c->p[2], h * shape[2] + e) : 1.0;
                sum += at(c, 0, r, h, e) * at(c, 1, r, h, e) * w;
            }
        ((float *)c->p[3])[r] = (float)(sum * c->args->f[0]);
    }
    return IM_OK;
}

/* The weight of a column: one for each head's, or for all heads' columns. */
static int64_t weight_of(const im_kernel_call *c, bool all, int64_t h, int64_t e)
{
    return (all ? h * c->args->v[0].shape[2] : 0) + e;
}

/* 1 / rms of row r, head h; squares: the operand, if there. */
static double inverse_rms(const im_kernel_call *c, int squares, int64_t r, int64_t h)
{
    int64_t E = c->args->v[0].shape[2];
    double mean = 0.0;
    if (im_op_has(c->args, squares))
        mean = ((const float *)c->p[squares])[r] / (double)c->args->i[1];
    else
        for (int64_t e = 0; e < E; e++)
            mean += at(c, 0, r, h, e) * at(c, 0, r, h, e) / (double)E;
    return 1.0 / sqrt(mean + c->args->f[0]);
}

im_status im_plain_head_norm(const im_kernel_call *c)
{
    const int64_t *shape = c->args->v[0].shape;
    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t h = 0; h < shape[1]; h++) {
            double inverse = inverse_rms(c, 3, r, h);
            for (int64_t e = 0; e < shape[2]; e++) {
                double w = im_load((im_dtype)c->args->v[1].dtype, c->p[1], weight_of(c, im_op_has(c->args, 3), h, e));
                put(c, 2, r, h, e, w * at(c, 0, r, h, e) * inverse);
            }
        }
    return IM_OK;
}

/* operands: x w dy dx dw squares along. dx = (dy w - x * sum of dy w x / (columns * mean)) / rms */
im_status im_plain_head_norm_grad(const im_kernel_call *c)
{
    const im_op_args *a = c->args;
    const int64_t *shape = a->v[0].shape;
    bool all = im_op_has(a, 5);
    float *dw = c->p[4];
    if (a->i[0] == 0)
        memset(dw, 0, (size_t)a->v[4].shape[0] * sizeof *dw);
    for (int64_t i = 0; i < a->v[4].shape[0]; i++) {
        double sum = 0.0;
        for (int64_t r = 0; r < shape[0]; r++)
            for (int64_t h = 0; h < shape[1]; h++)
                if (!all || h == i / shape[2])
                    sum += at(c, 2, r, h, i % shape[2]) * at(c, 0, r, h, i % shape[2]) * inverse_rms(c, 5, r, h);
        dw[i] = (float)(dw[i] + sum);
    }
    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t h = 0; h < shape[1]; h++) {
            double inverse = inverse_rms(c, 5, r, h), along = 0.0, columns = all ? (double)a->i[1] : (double)shape[2];
            for (int64_t e = 0; !all && e < shape[2]; e++)
                along += at(c, 2, r, h, e) * im_load((im_dtype)a->v[1].dtype, c->p[1], e) * at(c, 0, r, h, e);
            if (all)
                along = ((const float *)c->p[6])[r] * a->f[1];
            for (int64_t e = 0; e < shape[2]; e++) {
                double g = at(c, 2, r, h, e) * im_load((im_dtype)a->v[1].dtype, c->p[1], weight_of(c, all, h, e));
                put(c, 3, r, h, e, inverse * (g - at(c, 0, r, h, e) * along * inverse * inverse / columns));
            }
        }
    return IM_OK;
}
