/* reduce: element by element over the ranks, in their order.
 *
 * By blocks that stay in the first cache: the block of rank 0 is widened into an accumulator, the blocks of the others
 * are folded in one after the other, and the rounded result is written to every destination. So each input is read once
 * from memory and each output written once, and the bits depend on the order of the ranks alone.
 */
#include "comm/backend.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements */

typedef union im_fold_block {
    float f32[BLOCK];
    double f64[BLOCK];
    uint32_t u32[BLOCK];
    int32_t i32[BLOCK];
    uint64_t u64[BLOCK];
    int64_t i64[BLOCK];
    uint8_t u8[BLOCK];
} fold_block;

bool im_comm_can_reduce(im_dtype t)
{
    return t == IM_F32 || t == IM_F64 || t == IM_BF16 || t == IM_F16 || t == IM_I32 || t == IM_I64 || t == IM_U8;
}

/* ---- 16-bit floats -------------------------------------------------------------------- */

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float bf16_to_f32(uint16_t h)
{
    return from_bits((uint32_t)h << 16);
}

/* to nearest, ties to even; a NaN stays one */
static uint16_t f32_to_bf16(float f)
{
    uint32_t u = to_bits(f), rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* The exponent is moved by a product, which also makes numbers of fp16's subnormals. */
static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t finite = to_bits(from_bits(rest) * 0x1p112f), special = rest | 0x7f800000u;
    return from_bits(sign | (rest >= 0x0f800000u ? special : finite));
}

static uint16_t f32_to_f16(float f)
{
    uint32_t u = to_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    /* Subnormal results: adding 0.5 leaves their multiple of 2^-24 in the last bits, rounded by the addition. */
    uint32_t small = to_bits(from_bits(a) + 0.5f) - to_bits(0.5f);
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
    uint32_t big = a > 0x7f800000u ? 0x7e00u : 0x7c00u; /* from 65520 up: infinity */
    uint32_t r = a < 0x38800000u ? small : normal;
    return (uint16_t)(sign | (a >= 0x477ff000u ? big : r));
}

/* ---- one block ---------------------------------------------------------------------------- */

/* A NaN wins: where the accumulator is one, both comparisons are false. */
#define FOLD_FLOAT(acc, r, n, value)                                                           \
    switch (r) {                                                                               \
    case IM_SUM:                                                                               \
        for (size_t i = 0; i < (n); i++)                                                       \
            (acc)[i] += (value);                                                               \
        break;                                                                                 \
    case IM_MAX:                                                                               \
        for (size_t i = 0; i < (n); i++)                                                       \
            (acc)[i] = (value) > (acc)[i] ? (value) : (value) != (value) ? (value) : (acc)[i]; \
        break;                                                                                 \
    case IM_MIN:                                                                               \
        for (size_t i = 0; i < (n); i++)                                                       \
            (acc)[i] = (value) < (acc)[i] ? (value) : (value) != (value) ? (value) : (acc)[i]; \
        break;                                                                                 \
    }

/* Sums wrap: they are made unsigned; comparisons have the type's sign. */
#define FOLD_INT(acc, sum, r, n, value, cast)                   \
    switch (r) {                                                \
    case IM_SUM:                                                \
        for (size_t i = 0; i < (n); i++)                        \
            (sum)[i] = (cast)((sum)[i] + (cast)(value));        \
        break;                                                  \
    case IM_MAX:                                                \
        for (size_t i = 0; i < (n); i++)                        \
            (acc)[i] = (value) > (acc)[i] ? (value) : (acc)[i]; \
        break;                                                  \
    case IM_MIN:                                                \
        for (size_t i = 0; i < (n); i++)                        \
            (acc)[i] = (value) < (acc)[i] ? (value) : (acc)[i]; \
        break;                                                  \
    }

static void widen(fold_block *a, const void *src, size_t n, im_dtype t)
{
    const uint16_t *h = src;
    switch (t) {
    case IM_BF16:
        for (size_t i = 0; i < n; i++)
            a->f32[i] = bf16_to_f32(h[i]);
        break;
    case IM_F16:
        for (size_t i = 0; i < n; i++)
            a->f32[i] = f16_to_f32(h[i]);
        break;
    default: memcpy(a, src, n * im_dtype_size(t));
    }
}

static void fold_in(fold_block *a, const void *src, size_t n, im_dtype t, im_reduce r)
{
    const uint16_t *h = src;
    const float *f32 = src;
    const double *f64 = src;
    const int32_t *i32 = src;
    const int64_t *i64 = src;
    const uint8_t *u8 = src;
    switch (t) {
    case IM_F32: FOLD_FLOAT(a->f32, r, n, f32[i]) break;
    case IM_F64: FOLD_FLOAT(a->f64, r, n, f64[i]) break;
    case IM_BF16: FOLD_FLOAT(a->f32, r, n, bf16_to_f32(h[i])) break;
    case IM_F16: FOLD_FLOAT(a->f32, r, n, f16_to_f32(h[i])) break;
    case IM_I32: FOLD_INT(a->i32, a->u32, r, n, i32[i], uint32_t) break;
    case IM_I64: FOLD_INT(a->i64, a->u64, r, n, i64[i], uint64_t) break;
    case IM_U8: FOLD_INT(a->u8, a->u8, r, n, u8[i], uint8_t) break;
    default: break;
    }
}

static void narrow(void *dst, const fold_block *a, size_t n, im_dtype t)
{
    uint16_t *h = dst;
    switch (t) {
    case IM_BF16:
        for (size_t i = 0; i < n; i++)
            h[i] = f32_to_bf16(a->f32[i]);
        break;
    case IM_F16:
        for (size_t i = 0; i < n; i++)
            h[i] = f32_to_f16(a->f32[i]);
        break;
    default: memcpy(dst, a, n * im_dtype_size(t));
    }
}

/* ---- past the caches ------------------------------------------------------------------------- */

/* A line that another core has read costs a core about 30 ns to write again (2.4 GB/s, measured on Zen 4), but nothing when it is
 * written past the caches (28 GB/s); who reads it next takes it from memory. */
#if defined(__has_feature)
#define SEES_STORES (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SEES_STORES 1
#else
#define SEES_STORES 0
#endif
#if defined(__SSE2__) && !SEES_STORES /* a sanitizer does not see these */
typedef long long quad __attribute__((vector_size(16), may_alias));

static void stream_line(char *dst, const char *src)
{
    for (int i = 0; i < 4; i++)
#if defined(__clang__)
        __builtin_nontemporal_store(((const quad *)(const void *)src)[i], (quad *)(void *)dst + i);
#else
        __builtin_ia32_movntdq((quad *)(void *)dst + i, ((const quad *)(const void *)src)[i]);
#endif
}

static void stream(char *dst, const char *src, size_t n)
{
    enum { LINE = 64 };
    size_t head = (size_t)(-(uintptr_t)dst % LINE), at = head < n ? head : n;
    memcpy(dst, src, at);
    if ((uintptr_t)(src + at) % 16 == 0)
        for (; n - at >= LINE; at += LINE)
            stream_line(dst + at, src + at);
    memcpy(dst + at, src + at, n - at);
}

static void stream_end(void)
{
    __builtin_ia32_sfence();
}
#else
static void stream(char *dst, const char *src, size_t n)
{
    memcpy(dst, src, n);
}

static void stream_end(void)
{
}
#endif

/* ---- whole arrays ------------------------------------------------------------------------------- */

static void fold_one(fold_block *a, const void *const *src, int nsrc, size_t at, size_t n, im_dtype t, im_reduce r)
{
    size_t size = im_dtype_size(t);
    widen(a, (const char *)src[0] + at * size, n, t);
    for (int k = 1; k < nsrc; k++)
        fold_in(a, (const char *)src[k] + at * size, n, t, r);
}

void im_comm_fold(void *dst, const void *const *src, int nsrc, size_t n, im_dtype t, im_reduce r)
{
    fold_block a;
    size_t size = im_dtype_size(t);
    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < BLOCK ? n - at : BLOCK;
        fold_one(&a, src, nsrc, at, m, t, r);
        narrow((char *)dst + at * size, &a, m, t);
    }
}

void im_comm_fold_past(void *const *dst, int ndst, const void *const *src, int nsrc, size_t n, im_dtype t, im_reduce r)
{
    _Alignas(64) fold_block a;
    _Alignas(64) uint16_t half[BLOCK];
    size_t size = im_dtype_size(t);
    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < BLOCK ? n - at : BLOCK;
        fold_one(&a, src, nsrc, at, m, t, r);
        const char *result = (const char *)&a;
        if (t == IM_BF16 || t == IM_F16) {
            narrow(half, &a, m, t);
            result = (const char *)half;
        }
        for (int k = 0; k < ndst; k++)
            stream((char *)dst[k] + at * size, result, m * size);
    }
    stream_end();
}

void im_comm_copy_past(void *dst, const void *src, size_t nbytes)
{
    stream(dst, src, nbytes);
    stream_end();
}
