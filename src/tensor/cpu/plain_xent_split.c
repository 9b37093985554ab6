/* Plain cross-entropy over a split vocabulary: xent_stat and xent_merge, and what their fast versions share. */
#include "tensor/cpu/nn_kernels.h"

im_status im_check_split_targets(const im_kernel_call *c)
{
    const im_view *target = &c->args->v[1];
    const int32_t *t = c->p[1];
    for (int64_t r = 0; r < target->shape[0]; r++) {
        int64_t id = t[r * target->stride[0]];
        if (id >= c->args->i[2])
            return im_fail(c->ctx, IM_ERR_ARG, "xent: target %lld at row %lld is outside the vocabulary of %lld", (long long)id, (long long)r,
                           (long long)c->args->i[2]);
    }
    return IM_OK;
}

static const float *logits_row(const im_kernel_call *c, int64_t r)
{
    return (const float *)c->p[0] + r * c->args->v[0].stride[0];
}

static int64_t target_of(const im_kernel_call *c, int64_t r)
{
    return ((const int32_t *)c->p[1])[r * c->args->v[1].stride[0]];
}

im_status im_plain_xent_stat(const im_kernel_call *c)
{
    IM_TRY(im_check_split_targets(c));
    const im_op_args *a = c->args;
    for (int64_t r = 0; r < a->v[0].shape[0]; r++) {
        const float *z = logits_row(c, r);
        double *stat = (double *)c->p[2] + r * a->v[2].stride[0], top = -INFINITY, sum = 0.0, all = 0.0;
        int64_t V = a->v[0].shape[1], own = target_of(c, r) - a->i[0];
        for (int64_t j = 0; j < V; j++)
            top = z[j] > top || isnan(z[j]) ? z[j] : top;
        for (int64_t j = 0; j < V; j++) {
            sum += exp(z[j] - top);
            all += z[j];
        }
        stat[0] = top;
        stat[1] = sum;
        stat[2] = own >= 0 && own < V ? (double)z[own] : -INFINITY;
        stat[3] = all;
    }
    return IM_OK;
}

/* In the order of the parts, so that every part gets the same bits. */
im_xent_row im_xent_merge_row(const im_kernel_call *c, int64_t r)
{
    const im_view *v = &c->args->v[2];
    im_xent_row m = {.top = -INFINITY, .target = -INFINITY};
    for (int64_t p = 0; p < v->shape[0]; p++) {
        const double *s = (const double *)c->p[2] + p * v->stride[0] + r * v->stride[1];
        if (s[0] > m.top || isnan(s[0]))
            m.top = s[0];
    }
    for (int64_t p = 0; p < v->shape[0]; p++) {
        const double *s = (const double *)c->p[2] + p * v->stride[0] + r * v->stride[1];
        m.sum += s[1] * exp(s[0] - m.top);
        m.mean += s[3];
        if (s[2] > -INFINITY || isnan(s[2]))
            m.target = s[2];
    }
    m.mean /= (double)c->args->i[2];
    return m;
}

static double merge_row(const im_kernel_call *c, int64_t r)
{
    const im_op_args *a = c->args;
    const float *z = logits_row(c, r);
    int64_t V = a->v[0].shape[1], target = target_of(c, r), own = target - a->i[0];
    im_xent_row m = im_xent_merge_row(c, r);
    bool counted = target >= 0;
    double smooth = a->f[0], logp = counted ? m.target - m.top - log(m.sum) : 0.0, loss = -(1.0 - smooth) * logp;
    if (counted && smooth > 0.0)
        loss += smooth * (log(m.sum) + m.top - m.mean);
    for (int64_t j = 0; j < V && im_op_has(a, 4); j++) {
        double g = counted ? exp(z[j] - m.top) / m.sum - smooth / (double)a->i[2] - (j == own ? 1.0 - smooth : 0.0) : 0.0;
        im_store((im_dtype)a->v[4].dtype, c->p[4], r * a->v[4].stride[0] + j, (float)g);
    }
    if (im_op_has(a, 5))
        ((float *)c->p[5])[r * a->v[5].stride[0]] = (float)logp;
    return counted ? loss : 0.0;
}

im_status im_plain_xent_merge(const im_kernel_call *c)
{
    IM_TRY(im_check_split_targets(c));
    double *loss = c->p[3], sum = c->args->i[1] != 0 ? *loss : 0.0;
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        sum += merge_row(c, r);
    *loss = sum;
    return IM_OK;
}
