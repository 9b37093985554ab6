/* Plain fill, copy, add, matmul, colsum, sumsq, adamw, finite: the oracles. One loop each, nothing clever. */
#include "tensor/cpu/core_kernels.h"
#include "tensor/cpu/cpu.h"
#include "tensor/ops.h"

static im_dtype type_of(const im_kernel_call *c, int i)
{
    return (im_dtype)c->args->v[i].dtype;
}

/* Calls fn(arg, offset in elements of each of n views) for every index of their common shape, in row-major order. */
typedef void (*each_fn)(void *arg, const int64_t *offset);
static void each(const im_view *const *v, int n, each_fn fn, void *arg)
{
    int ndim = v[0]->ndim;
    int64_t index[4] = {0};
    for (int64_t left = im_view_count(v[0]); left > 0; left--) {
        int64_t offset[3] = {0};
        for (int i = 0; i < n; i++)
            for (int d = 0; d < ndim; d++)
                offset[i] += index[d] * v[i]->stride[d];
        fn(arg, offset);
        for (int d = ndim - 1; d >= 0 && ++index[d] == v[0]->shape[d]; d--)
            index[d] = 0;
    }
}

static void fill_one(void *arg, const int64_t *offset)
{
    const im_kernel_call *c = arg;
    double f = c->args->f[0];
    void *p = c->p[0];
    switch (type_of(c, 0)) {
    case IM_F64: ((double *)p)[*offset] = f; break;
    case IM_I32: ((int32_t *)p)[*offset] = (int32_t)f; break;
    case IM_I64: ((int64_t *)p)[*offset] = (int64_t)f; break;
    case IM_U8: ((uint8_t *)p)[*offset] = (uint8_t)f; break;
    case IM_U16: ((uint16_t *)p)[*offset] = (uint16_t)f; break;
    default: im_store(type_of(c, 0), p, *offset, (float)f);
    }
}

im_status im_plain_fill(const im_kernel_call *c)
{
    const im_view *v[1] = {&c->args->v[0]};
    each(v, 1, fill_one, (void *)c);
    return IM_OK;
}

static void copy_one(void *arg, const int64_t *offset)
{
    const im_kernel_call *c = arg;
    im_dtype from = type_of(c, 0), to = type_of(c, 1);
    size_t size = im_dtype_size(from);
    if (from == to)
        memcpy((char *)c->p[1] + (size_t)offset[1] * size, (const char *)c->p[0] + (size_t)offset[0] * size, size);
    else
        im_store(to, c->p[1], offset[1], im_load(from, c->p[0], offset[0]));
}

im_status im_plain_copy(const im_kernel_call *c)
{
    const im_view *v[2] = {&c->args->v[0], &c->args->v[1]};
    each(v, 2, copy_one, (void *)c);
    return IM_OK;
}

static void add_one(void *arg, const int64_t *offset)
{
    const im_kernel_call *c = arg;
    im_dtype t = type_of(c, 0);
    im_store(t, c->p[2], offset[2], im_load(t, c->p[0], offset[0]) + im_load(t, c->p[1], offset[1]));
}

im_status im_plain_add(const im_kernel_call *c)
{
    const im_view *v[3] = {&c->args->v[0], &c->args->v[1], &c->args->v[2]};
    each(v, 3, add_one, (void *)c);
    return IM_OK;
}

/* A row or a column of a matrix: K elements of type t, `stride` apart. */
typedef struct plain_line {
    im_dtype t;
    const void *base;
    int64_t first, stride;
} plain_line;

/* The thread sanitizer's work at each access would be all of a product's time. There the elements are read once for it (as_read), not by each dot. */
#if defined(__SANITIZE_THREAD__)
#define NOT_WATCHED __attribute__((no_sanitize_thread))
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NOT_WATCHED __attribute__((no_sanitize("thread")))
#endif
#endif

#ifdef NOT_WATCHED
static void as_read(const im_view *v, const void *base, im_dtype t, int64_t batch)
{
    int d = v->ndim - 2;
    volatile float sink = 0;
    for (int64_t g = 0; g < batch; g++)
        for (int64_t i = 0; i < v->shape[d]; i++)
            for (int64_t k = 0; k < v->shape[d + 1]; k++)
                sink = im_load(t, base, (v->ndim == 3 ? g * v->stride[0] : 0) + i * v->stride[d] + k * v->stride[d + 1]);
    (void)sink;
}

NOT_WATCHED static float unwatched_load(im_dtype t, const void *p, int64_t i)
{
    if (t == IM_F32)
        return ((const float *)p)[i];
    return im_load(t, p, i);
}
#else
#define NOT_WATCHED
#define unwatched_load im_load
static void as_read(const im_view *v, const void *base, im_dtype t, int64_t batch)
{
    (void)v, (void)base, (void)t, (void)batch;
}
#endif

NOT_WATCHED static float plain_dot(plain_line a, plain_line b, int64_t K, float sum)
{
    for (int64_t k = 0; k < K; k++)
        sum += unwatched_load(a.t, a.base, a.first + k * a.stride) * unwatched_load(b.t, b.base, b.first + k * b.stride);
    return sum;
}

im_status im_plain_matmul(const im_kernel_call *c)
{
    const im_view *a = &c->args->v[0], *b = &c->args->v[1], *o = &c->args->v[2];
    im_dtype t = type_of(c, 0), to = type_of(c, 2);
    bool batched = a->ndim == 3, acc = c->args->i[0] != 0, bias = c->np > 3 && c->p[3] != NULL;
    int d = a->ndim - 2;
    int64_t batch = batched ? a->shape[0] : 1, M = a->shape[d], K = a->shape[d + 1], N = b->shape[d + 1];
    as_read(a, c->p[0], t, batch);
    as_read(b, c->p[1], t, batch);
    for (int64_t g = 0; g < batch; g++) {
        int64_t a0 = batched ? g * a->stride[0] : 0, b0 = batched ? g * b->stride[0] : 0, o0 = batched ? g * o->stride[0] : 0;
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < N; n++) {
                int64_t at = o0 + m * o->stride[d] + n * o->stride[d + 1];
                plain_line row = {t, c->p[0], a0 + m * a->stride[d], a->stride[d + 1]};
                plain_line column = {t, c->p[1], b0 + n * b->stride[d + 1], b->stride[d]};
                float sum = plain_dot(row, column, K, bias ? im_load(type_of(c, 3), c->p[3], n) : 0.0f);
                im_store(to, c->p[2], at, acc ? im_load(to, c->p[2], at) + sum : sum);
            }
    }
    return IM_OK;
}

im_status im_plain_colsum(const im_kernel_call *c)
{
    const im_view *x = &c->args->v[0];
    float *out = c->p[1];
    for (int64_t j = 0; j < x->shape[1]; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < x->shape[0]; i++)
            sum += (double)im_load(type_of(c, 0), c->p[0], i * x->stride[0] + j * x->stride[1]);
        out[j] = (c->args->i[0] != 0 ? out[j] : 0.0f) + (float)sum;
    }
    return IM_OK;
}

im_status im_plain_sumsq(const im_kernel_call *c)
{
    const float *x = c->p[0];
    int64_t n = im_view_count(&c->args->v[0]);
    double *out = c->p[1], total = 0.0;
    for (int64_t begin = 0; begin < n; begin += IM_SUMSQ_BLOCK) {
        double sum = 0.0;
        for (int64_t i = begin; i < n && i < begin + IM_SUMSQ_BLOCK; i++)
            sum += (double)x[i] * (double)x[i];
        total += sum;
    }
    *out = (c->args->i[0] != 0 ? *out : 0.0) + total;
    return IM_OK;
}

/* torch.optim.AdamW, in its order: decay, then moments, then the step with both bias corrections. */
im_status im_plain_adamw(const im_kernel_call *c)
{
    const double *clip = c->p[5], *hyper = c->p[6];
    if (clip[IM_CLIP_FINITE] == 0.0)
        return IM_OK;
    im_dtype t = type_of(c, 0);
    float *master = c->p[1], *m = c->p[2], *v = c->p[3];
    const float *grad = c->p[4];
    double beta1 = c->args->f[0], beta2 = c->args->f[1], eps = c->args->f[2], decay = c->args->f[3];
    double lr = hyper[IM_HYPER_LR], step = clip[IM_CLIP_T];
    float scale = (float)clip[IM_CLIP_SCALE];
    double c1 = 1.0 - pow(beta1, step), c2 = sqrt(1.0 - pow(beta2, step));
    int64_t n = im_view_count(&c->args->v[0]);
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        float old = master != NULL ? master[i] : ((const float *)c->p[0])[i], w = old;
        w = w * (float)(1.0 - lr * decay);
        m[i] = m[i] + (g - m[i]) * (float)(1.0 - beta1);
        v[i] = v[i] * (float)beta2 + (float)(1.0 - beta2) * g * g;
        w = w - (float)(lr / c1) * (m[i] / (sqrtf(v[i]) / (float)c2 + (float)eps));
        if (master != NULL)
            master[i] = w;
        im_store(t, c->p[0], i, w);
        if (c->args->n > 7 && c->p[7] != NULL && !isfinite(w) && isfinite(old))
            *(double *)c->p[7] = 1.0;
    }
    return IM_OK;
}

im_status im_plain_finite(const im_kernel_call *c)
{
    im_dtype t = type_of(c, 0);
    double *out = c->p[1];
    int64_t n = im_view_count(&c->args->v[0]);
    for (int64_t i = 0; i < n; i++) {
        double x = t == IM_F64 ? ((const double *)c->p[0])[i] : (double)im_load(t, c->p[0], i);
        if (!isfinite(x)) {
            out[0] = (double)i;
            out[1] = x;
            return IM_OK;
        }
    }
    out[0] = -1.0;
    out[1] = 0.0;
    return IM_OK;
}
