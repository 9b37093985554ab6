/* init: the values a family starts from, drawn by global index.
 *
 * Element i of a parameter is number i % 4 of the four normals made from Philox(key, i / 4), key the hash of (seed, name).
 * So any rank draws any slice, and all slicings give the same bits. Only additions, multiplications and square
 * roots of fp32 are used, on fixed-size lanes: the compiler makes vectors of them, and the bits are the same on every
 * instruction set (the file is compiled without contraction to fused multiply-add). 124M values take a fraction of a second.
 */
#include "model/model.h"

#include <math.h>
#include <string.h>

enum { LANES = 64 }; /* counters at a time: 256 values */

typedef struct lanes {
    uint32_t word[4][LANES];
} lanes;

/* Philox 4x32-10 of counters c0, c0 + 1, ...: as im_philox, lane by lane. */
static void draw(uint64_t key, uint64_t c0, lanes *out)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t *a = out->word[0], *b = out->word[1], *c = out->word[2], *d = out->word[3];
    for (uint32_t l = 0; l < LANES; l++) {
        a[l] = (uint32_t)(c0 + l);
        b[l] = (uint32_t)((c0 + l) >> 32);
        c[l] = 0;
        d[l] = 0;
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * a[l], p1 = (uint64_t)0xCD9E8D57u * c[l];
            a[l] = (uint32_t)(p1 >> 32) ^ b[l] ^ k0;
            b[l] = (uint32_t)p1;
            c[l] = (uint32_t)(p0 >> 32) ^ d[l] ^ k1;
            d[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Natural logarithm of a normal positive x: x = m 2^e with m near 1, then log(m) = 2 atanh(z), z = (m-1)/(m+1), as a series
 * (|z| < 0.172: the term after z^9 is below 2^-28). */
static inline float log_of(float x)
{
    /* 0x3f3504f3 is sqrt(1/2): e rounds so that m lies in [sqrt(1/2), sqrt(2)) */
    const uint32_t shifted = bits_of(x) - 0x3f3504f3u;
    const int32_t e = (int32_t)shifted >> 23;
    const float m = float_of((shifted & 0x7fffffu) + 0x3f3504f3u);
    const float z = (m - 1.0f) / (m + 1.0f), z2 = z * z;
    const float series = 2.0f + z2 * (2.0f / 3 + z2 * (2.0f / 5 + z2 * (2.0f / 7 + z2 * (2.0f / 9))));
    return (float)e * 0.69314718f + z * series;
}

/* Box-Muller: two words become two independent standard normals. The radius has 31 bits, so values reach 6.5. */
static inline void normals(uint32_t a, uint32_t b, float *x, float *y)
{
    const float u = (float)(int32_t)(a >> 1 | 1) * 0x1p-31f;
    const float radius = sqrtf(2 * fabsf(log_of(u))); /* u is at most 1; rounding may make its logarithm a hair positive */
    /* the angle: two bits choose the quadrant, 23 the place in it, t in (-1/4, 1/4) of pi */
    const float t = ((float)(int32_t)(b >> 7 & 0x7fffff) + 0.5f) * 0x1p-24f - 0.25f, w = t * 3.14159265f, w2 = w * w;
    const float s = w * (1 + w2 * (-1.0f / 6 + w2 * (1.0f / 120 + w2 * (-1.0f / 5040 + w2 * (1.0f / 362880)))));
    const float c = 1 + w2 * (-1.0f / 2 + w2 * (1.0f / 24 + w2 * (-1.0f / 720 + w2 * (1.0f / 40320))));
    /* turn by quadrants: (c,s), (-s,c), (-c,-s), (s,-c), with masks in place of branches */
    const uint32_t quadrant = b >> 30, swap = 0u - (quadrant & 1);
    const uint32_t cos_bits = bits_of(radius * c), sin_bits = bits_of(radius * s);
    const uint32_t sign_x = (quadrant + 1) >> 1 << 31, sign_y = quadrant >> 1 << 31;
    *x = float_of(((cos_bits & ~swap) | (sin_bits & swap)) ^ sign_x);
    *y = float_of(((sin_bits & ~swap) | (cos_bits & swap)) ^ sign_y);
}

/* Values 4*c0 ... 4*c0 + 4*LANES - 1. */
static void fill_lanes(uint64_t key, uint64_t c0, float std, float *restrict out)
{
    lanes w;
    float v[4][LANES];
    draw(key, c0, &w);
    for (int l = 0; l < LANES; l++)
        normals(w.word[0][l], w.word[1][l], &v[0][l], &v[1][l]);
    for (int l = 0; l < LANES; l++)
        normals(w.word[2][l], w.word[3][l], &v[2][l], &v[3][l]);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            out[4 * l + i] = v[i][l] * std;
}

void im_param_init(const im_param *p, uint64_t seed, int64_t first, int64_t count, float *out)
{
    if (p->init.kind != IM_INIT_NORMAL) {
        const float value = p->init.kind == IM_INIT_ONES ? 1 : 0;
        for (int64_t i = 0; i < count; i++)
            out[i] = value;
        return;
    }
    const uint64_t key = im_hash64(p->name, strlen(p->name), seed);
    const float std = (float)p->init.std;
    for (int64_t done = 0; done < count;) {
        const int64_t skip = (first + done) % 4, left = count - done;
        const uint64_t c0 = (uint64_t)((first + done) / 4);
        if (skip == 0 && left >= 4 * LANES) {
            fill_lanes(key, c0, std, out + done);
            done += 4 * LANES;
            continue;
        }
        float block[4 * LANES];
        fill_lanes(key, c0, std, block);
        const int64_t n = left < 4 * LANES - skip ? left : 4 * LANES - skip;
        memcpy(out + done, block + skip, (size_t)n * sizeof *out);
        done += n;
    }
}
