/* Fast AdamW: one pass, 28 bytes a parameter (fp32) or 32 (bf16 weights with fp32 masters), bound by memory.
 *
 * The arithmetic per element is that of plain_core.c; divisions by the bias corrections are made once, before the loop. Elements
 * are read and written in place, so plain stores are best: the lines are in the cache already and streaming stores would gain nothing.
 */
#include "tensor/cpu/core_kernels.h"
#include "tensor/cpu/cpu.h"
#include "tensor/ops.h"

#include <stdatomic.h>

enum { GRAIN = 16384, EXPONENT = 0x7f800000 /* all its bits: infinity or NaN */ };

typedef struct adamw_step {
    float scale, keep /* 1 - lr*decay */, beta1c /* 1 - beta1 */, beta2, beta2c, rate /* lr / (1 - beta1^t) */, inv_c2 /* 1/sqrt(1 - beta2^t) */, eps;
} adamw_step;

#define ADAMW_ELEMENT(weight)                                                   \
    float g = grad[i] * s.scale;                                                \
    float mi = m[i] + (g - m[i]) * s.beta1c;                                    \
    float vi = v[i] * s.beta2 + s.beta2c * g * g;                               \
    m[i] = mi;                                                                  \
    v[i] = vi;                                                                  \
    float w = (weight)*s.keep - s.rate * (mi / (sqrtf(vi) * s.inv_c2 + s.eps)); \
    worst |= (uint32_t)((im_f32_bits(w) & EXPONENT) == EXPONENT) & (uint32_t)((im_f32_bits(weight) & EXPONENT) != EXPONENT);

IM_BODY void adamw_f32_body(float *restrict weight, float *restrict m, float *restrict v, const float *restrict grad, int64_t n, adamw_step s,
                            uint32_t *bad)
{
    uint32_t worst = 0;
#pragma omp simd reduction(| : worst)
    for (int64_t i = 0; i < n; i++) {
        ADAMW_ELEMENT(weight[i])
        weight[i] = w;
    }
    *bad = worst;
}
IM_CLONES(adamw_f32,
          (float *restrict weight, float *restrict m, float *restrict v, const float *restrict grad, int64_t n, adamw_step s, uint32_t *bad),
          (weight, m, v, grad, n, s, bad))

IM_BODY void adamw_bf16_body(uint16_t *restrict weight, float *restrict master, float *restrict m, float *restrict v, const float *restrict grad,
                             int64_t n, adamw_step s, uint32_t *bad)
{
    uint32_t worst = 0;
#pragma omp simd reduction(| : worst)
    for (int64_t i = 0; i < n; i++) {
        ADAMW_ELEMENT(master[i])
        master[i] = w;
        weight[i] = im_f32_bf16(w);
    }
    *bad = worst;
}
IM_CLONES(adamw_bf16,
          (uint16_t *restrict weight, float *restrict master, float *restrict m, float *restrict v, const float *restrict grad, int64_t n,
           adamw_step s, uint32_t *bad),
          (weight, master, m, v, grad, n, s, bad))

typedef struct adamw_job {
    const im_kernel_call *c;
    adamw_step s;
    atomic_uint *bad; /* some weight is not finite */
} adamw_job;

static void adamw_range(void *arg, int64_t begin, int64_t end, int thread)
{
    const adamw_job *j = arg;
    const im_kernel_call *c = j->c;
    float *m = (float *)c->p[2] + begin, *v = (float *)c->p[3] + begin;
    const float *grad = (const float *)c->p[4] + begin;
    uint32_t bad;
    (void)thread;
    if (c->args->v[0].dtype == IM_F32)
        adamw_f32(c->isa)((float *)c->p[0] + begin, m, v, grad, end - begin, j->s, &bad);
    else
        adamw_bf16(c->isa)((uint16_t *)c->p[0] + begin, (float *)c->p[1] + begin, m, v, grad, end - begin, j->s, &bad);
    if (bad)
        atomic_store_explicit(j->bad, 1, memory_order_relaxed);
}

im_status im_fast_adamw(const im_kernel_call *c)
{
    const double *clip = c->p[5], *hyper = c->p[6], *f = c->args->f;
    if (clip[IM_CLIP_FINITE] == 0.0)
        return IM_OK;
    double step = clip[IM_CLIP_T], lr = hyper[IM_HYPER_LR];
    atomic_uint bad = 0;
    adamw_job j = {.c = c,
                   .bad = &bad,
                   .s = {.scale = (float)clip[IM_CLIP_SCALE],
                         .keep = (float)(1.0 - lr * f[3]),
                         .beta1c = (float)(1.0 - f[0]),
                         .beta2 = (float)f[1],
                         .beta2c = (float)(1.0 - f[1]),
                         .rate = (float)(lr / (1.0 - pow(f[0], step))),
                         .inv_c2 = (float)(1.0 / sqrt(1.0 - pow(f[1], step))),
                         .eps = (float)f[2]}};
    im_parallel_ranges(c->threads, im_view_count(&c->args->v[0]), GRAIN, 64, adamw_range, &j);
    if (atomic_load(&bad) && c->args->n > 7 && c->p[7] != NULL)
        *(double *)c->p[7] = 1.0;
    return IM_OK;
}
