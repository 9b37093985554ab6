/* Counter-based random numbers (Philox 4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
 * and the hash. A value depends on (key, counter) alone, so any rank can draw any part of a tensor. */
#include "base/base.h"

#include <math.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void im_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio, and sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float im_uniform_f32(uint32_t x)
{
    return (float)(x >> 8 | 1) * 0x1p-24f; /* the last bit is always set: exact, and neither end is met */
}

void im_normal_pair(uint32_t a, uint32_t b, float *n0, float *n1)
{
    const double two_pi = 6.283185307179586476925286766559;
    double u = ((double)a + 0.5) * 0x1p-32;
    double r = sqrt(-2.0 * log(u)), angle = two_pi * ((double)b + 0.5) * 0x1p-32;
    *n0 = (float)(r * cos(angle));
    *n1 = (float)(r * sin(angle));
}

uint64_t im_hash64(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}
