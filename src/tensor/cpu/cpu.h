/* cpu: what the CPU kernels share: number formats, rows as fp32, parallel loops.
 *
 * Fast kernels exist for several instruction sets in one -O2 build: a body that is `static inline
 * __attribute__((always_inline))` is wrapped by one function per set (IM_TARGET_AVX2 ...), and the kernel picks by call->isa.
 * Loops meant for vectors carry `#pragma omp simd`.
 */
#ifndef IM_TENSOR_CPU_H
#define IM_TENSOR_CPU_H

#include "tensor/kind.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#define IM_X86 1
#define IM_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#if defined(__clang__)
#define IM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2"), min_vector_width(512)))
#else
#define IM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2,prefer-vector-width=512")))
#endif
#else
#define IM_X86 0
#endif
#define IM_BODY static inline __attribute__((always_inline))

/* Defines NAME##_base, NAME##_avx2, NAME##_avx512, each calling the IM_BODY function NAME##_body, and `NAME`, which picks by isa:
 *     IM_BODY void scale_body(float *x, int64_t n, float s) { ... }
 *     IM_CLONES(scale, (float *x, int64_t n, float s), (x, n, s))
 *     ... scale(call->isa)(x, n, s);
 * void functions only. */
#if IM_X86
#define IM_CLONES(name, params, args)                                                                 \
    static void name##_base params                                                                    \
    {                                                                                                 \
        name##_body args;                                                                             \
    }                                                                                                 \
    IM_TARGET_AVX2 static void name##_avx2 params                                                     \
    {                                                                                                 \
        name##_body args;                                                                             \
    }                                                                                                 \
    IM_TARGET_AVX512 static void name##_avx512 params                                                 \
    {                                                                                                 \
        name##_body args;                                                                             \
    }                                                                                                 \
    typedef void(*name##_fn) params;                                                                  \
    static inline name##_fn name(im_isa isa)                                                          \
    {                                                                                                 \
        return isa >= IM_ISA_AVX512 ? name##_avx512 : isa >= IM_ISA_AVX2 ? name##_avx2 : name##_base; \
    }
#else
#define IM_CLONES(name, params, args)        \
    static void name##_base params           \
    {                                        \
        name##_body args;                    \
    }                                        \
    typedef void(*name##_fn) params;         \
    static inline name##_fn name(im_isa isa) \
    {                                        \
        (void)isa;                           \
        return name##_base;                  \
    }
#endif

/* ---- number formats ---------------------------------------------------------------------------------------------------- */

static inline float im_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t im_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float im_bf16_f32(uint16_t b)
{
    return im_bits_f32((uint32_t)b << 16);
}

/* Round to nearest, ties to even; a NaN stays a NaN (made quiet, sign and upper payload kept). */
static inline uint16_t im_f32_bf16(float f)
{
    uint32_t u = im_f32_bits(f);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

float im_f16_f32(uint16_t h);
uint16_t im_f32_f16(float f); /* round to nearest even; overflow to infinity */

/* Element i of a tensor of type t as float / stored from float. t: fp32, bf16, fp16 or fp64. */
static inline float im_load(im_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case IM_F32: return ((const float *)p)[i];
    case IM_BF16: return im_bf16_f32(((const uint16_t *)p)[i]);
    case IM_F16: return im_f16_f32(((const uint16_t *)p)[i]);
    default: return (float)((const double *)p)[i];
    }
}

static inline void im_store(im_dtype t, void *p, int64_t i, float f)
{
    switch (t) {
    case IM_F32: ((float *)p)[i] = f; break;
    case IM_BF16: ((uint16_t *)p)[i] = im_f32_bf16(f); break;
    case IM_F16: ((uint16_t *)p)[i] = im_f32_f16(f); break;
    default: ((double *)p)[i] = (double)f; break;
    }
}

/* n elements next to each other, fp32 or bf16, to and from fp32. For use in always_inline bodies: they take the caller's instruction set. */
IM_BODY void im_row_load(im_dtype t, const void *restrict p, int64_t n, float *restrict out)
{
    if (t == IM_F32) {
        memcpy(out, p, (size_t)n * sizeof(float));
        return;
    }
    const uint16_t *restrict b = p;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = im_bf16_f32(b[i]);
}

IM_BODY void im_row_store(im_dtype t, const float *restrict in, int64_t n, void *restrict p)
{
    if (t == IM_F32) {
        memcpy(p, in, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *restrict b = p;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        b[i] = im_f32_bf16(in[i]);
}

/* ---- parallel loops ---------------------------------------------------------------------------------------------------- */

/* Sets the OpenMP team of the calling thread for libraries that ask for it. */
void im_cpu_team(int threads);

/* Cuts [0,n) into equal runs, one a thread (fewer when a run would be below `grain`), each a multiple of `unit`; calls fn for each
 * non-empty run with the thread's number, 0 <= thread < threads. Returns when all are done. */
typedef void (*im_range_fn)(void *arg, int64_t begin, int64_t end, int thread);
void im_parallel_ranges(int threads, int64_t n, int64_t grain, int64_t unit, im_range_fn fn, void *arg);
/* Calls fn for each of n tasks, handed out in order to whoever is free: begin = task, end = task + 1. */
void im_parallel_tasks(int threads, int64_t n, im_range_fn fn, void *arg);

#endif
