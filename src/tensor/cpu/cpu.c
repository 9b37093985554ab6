/* The parts of cpu.h that are not inline. */
#include "tensor/cpu/cpu.h"

#ifdef IM_HAVE_OPENMP
#include <omp.h>
#endif

float im_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31)
        return im_bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return im_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * 0x1p-24f; /* subnormal and zero */
    return sign ? -f : f;
}

uint16_t im_f32_f16(float f)
{
    uint32_t u = im_f32_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* below the smallest normal: let the addition round at 2^-24 */
        float shifted = im_bits_f32(u) + 0.5f;
        return (uint16_t)(sign | (im_f32_bits(shifted) - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

void im_cpu_team(int threads)
{
#ifdef IM_HAVE_OPENMP
    if (omp_get_max_threads() != threads)
        omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

void im_parallel_ranges(int threads, int64_t n, int64_t grain, int64_t unit, im_range_fn fn, void *arg)
{
    if (n <= 0)
        return;
    if (unit < 1)
        unit = 1;
    int64_t parts = grain > 1 ? (n + grain - 1) / grain : n;
    if (parts > threads)
        parts = threads;
    int64_t units = (n + unit - 1) / unit;
    if (parts > units)
        parts = units;
    if (parts <= 1) {
        fn(arg, 0, n, 0);
        return;
    }
#ifdef IM_HAVE_OPENMP
#pragma omp parallel for num_threads((int)parts) schedule(static, 1)
#endif
    for (int64_t t = 0; t < parts; t++) {
        int64_t begin = units * t / parts * unit, end = units * (t + 1) / parts * unit;
        if (end > n)
            end = n;
        if (begin < end)
            fn(arg, begin, end, (int)t);
    }
}

void im_parallel_tasks(int threads, int64_t n, im_range_fn fn, void *arg)
{
#ifdef IM_HAVE_OPENMP
    if (threads > 1 && n > 1) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++)
            fn(arg, i, i + 1, omp_get_thread_num());
        return;
    }
#endif
    (void)threads;
    for (int64_t i = 0; i < n; i++)
        fn(arg, i, i + 1, 0);
}
