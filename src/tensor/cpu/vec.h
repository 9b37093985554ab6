/* vec: one vector type for the bodies that are compiled once per instruction set.
 *
 * The including file defines IM_VEC to 8 (AVX2) or 16 (AVX-512) and includes this first; from here on every function of that file is
 * compiled for the set. vf: IM_VEC floats. vi: as many 32-bit integers. vm: a mask, one truth value a lane.
 */
#ifndef IM_TENSOR_VEC_H
#define IM_TENSOR_VEC_H

#include "tensor/cpu/nn_kernels.h"

#include <float.h>
#include <immintrin.h>

#if IM_VEC == 16
#define IM_VEC_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2"
#else
#define IM_VEC_TARGET "avx2,fma,f16c,bmi2"
#endif
#define IM_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define IM_UNROLL IM_PRAGMA(clang loop unroll(full))
#if IM_VEC == 16
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#endif
#else
#define IM_UNROLL IM_PRAGMA(GCC unroll 16)
#if IM_VEC == 16
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#else
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#endif
#define VEC static inline __attribute__((always_inline))

#if IM_VEC == 16
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

VEC vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}
VEC vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
VEC vm vm_first(int64_t n)
{
    return (vm)((1u << n) - 1u);
}
VEC vf vf_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}
VEC void vf_store_n(float *p, vf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, vm_first(n), x);
}
VEC vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VEC vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VEC vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
} /* a*b + c */
VEC vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* c - a*b */
VEC vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
} /* b when one is a NaN */
VEC vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VEC vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC vf vf_ldexp(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
} /* a * 2^n, n integral */
VEC vf vf_pick(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
} /* m ? a : b */
VEC vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC vm vf_neq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
}
VEC float vf_sum(vf a)
{
    return _mm512_reduce_add_ps(a);
}
VEC float vf_top(vf a)
{
    return _mm512_reduce_max_ps(a);
}
VEC bool vm_any(vm m)
{
    return m != 0;
}
VEC vm vm_and(vm a, vm b)
{
    return a & b;
}

VEC vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}
VEC vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC void vi_store(uint32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
VEC vf vf_of_vi(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
VEC vi vi_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
VEC vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VEC vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
VEC vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
VEC vm vi_eq(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}
VEC vm vi_ge(vi a, vi b)
{
    return _mm512_cmpge_epi32_mask(a, b);
}
VEC vm vi_ge_unsigned(vi a, vi b)
{
    return _mm512_cmpge_epu32_mask(a, b);
}
/* the high and low halves of the unsigned products a*m */
VEC void vi_mul_wide(vi a, vi m, vi *hi, vi *lo)
{
    vi even = _mm512_mul_epu32(a, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
    *hi = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *lo = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

VEC vf vf_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
VEC vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p)), 16));
}
/* Rounds to nearest even; a NaN stays one. */
VEC __m256i vf_to_bf16(vf x)
{
    vi u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    vi rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    vi quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet));
}
VEC void vf_store_bf16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, vf_to_bf16(x));
}
VEC void vf_store_bf16_n(uint16_t *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_to_bf16(x));
}

#else /* 8 lanes */
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

VEC vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}
VEC vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
VEC vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}
VEC vf vf_of_vi(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
VEC vi vi_lanes(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
VEC vm vm_first(int64_t n)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), vi_lanes()));
}
VEC vf vf_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, _mm256_castps_si256(vm_first(n)));
}
VEC void vf_store_n(float *p, vf x, int64_t n)
{
    _mm256_maskstore_ps(p, _mm256_castps_si256(vm_first(n)), x);
}
VEC vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VEC vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VEC vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VEC vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VEC vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
VEC vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VEC vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VEC vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* In two factors, so that subnormal results and 2^128 come out right. */
VEC vf vf_ldexp(vf a, vf n)
{
    vi whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    vf x = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
VEC vf vf_pick(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}
VEC vm vf_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC vm vf_neq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ);
}
VEC float vf_sum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
VEC float vf_top(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
VEC bool vm_any(vm m)
{
    return _mm256_movemask_ps(m) != 0;
}
VEC vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}

VEC vi vi_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
VEC void vi_store(uint32_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
VEC vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
VEC vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
VEC vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
VEC vm vi_eq(vi a, vi b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b));
}
VEC vm vi_ge(vi a, vi b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epi32(a, b), a));
}
VEC vm vi_ge_unsigned(vi a, vi b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}
VEC void vi_mul_wide(vi a, vi m, vi *hi, vi *lo)
{
    vi even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

VEC vf vf_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
VEC vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t lane[8] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i] = p[i];
    return vf_load_bf16(lane);
}
VEC __m128i vf_to_bf16(vf x)
{
    vi u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    vi rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    vi quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    vi r = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
VEC void vf_store_bf16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, vf_to_bf16(x));
}
VEC void vf_store_bf16_n(uint16_t *p, vf x, int64_t n)
{
    uint16_t lane[8];
    vf_store_bf16(lane, x);
    for (int64_t i = 0; i < n; i++)
        p[i] = lane[i];
}
#endif

/* ---- the same for both ------------------------------------------------------------------------------------------------- */

/* Lanes of a vector that begins at i of n: IM_VEC, or what is left. */
VEC int64_t vec_left(int64_t n, int64_t i)
{
    return n - i < IM_VEC ? n - i : IM_VEC;
}

/* Elements [i, i + w) of a row of fp32 or bf16; the other lanes are 0. t should be a constant. */
VEC vf vf_get(im_dtype t, const void *p, int64_t i, int64_t w)
{
    if (t == IM_BF16)
        return w == IM_VEC ? vf_load_bf16((const uint16_t *)p + i) : vf_load_bf16_n((const uint16_t *)p + i, w);
    return w == IM_VEC ? vf_load((const float *)p + i) : vf_load_n((const float *)p + i, w);
}

VEC void vf_put(im_dtype t, void *p, int64_t i, int64_t w, vf x)
{
    if (t == IM_BF16) {
        if (w == IM_VEC)
            vf_store_bf16((uint16_t *)p + i, x);
        else
            vf_store_bf16_n((uint16_t *)p + i, x, w);
    } else if (w == IM_VEC)
        vf_store((float *)p + i, x);
    else
        vf_store_n((float *)p + i, x, w);
}

/* e^x: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by a polynomial whose own error is 3e-9 (minimax, from tools of our own); about 1 ulp.
 * -inf gives 0, above 88.73 infinity, a NaN stays one. */
VEC vf vf_exp(vf x)
{
    x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x)); /* this order keeps a NaN */
    vf n = vf_round(vf_mul(x, vf_set(1.44269504f)));
    vf r = vf_fnma(n, vf_set(0.693359375f), x); /* ln 2 in two parts, the first exact in 9 bits */
    r = vf_fnma(n, vf_set(-2.12194440e-4f), r);
    vf p = vf_fma(vf_set(0.001381446803f), r, vf_set(0.008368780375f));
    p = vf_fma(p, r, vf_set(0.04166839419f));
    p = vf_fma(p, r, vf_set(0.1666652011f));
    p = vf_fma(p, r, vf_set(0.4999999341f));
    p = vf_fma(vf_mul(r, r), p, vf_add(r, vf_set(1.0f)));
    return vf_ldexp(p, n);
}

/* Four words for each lane's counter (c0..c3), as im_philox gives them. */
VEC void vi_philox(uint64_t key, vi c0, vi c1, vi c2, vi c3, vi out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    const vi m0 = vi_set((int32_t)0xD2511F53u), m1 = vi_set((int32_t)0xCD9E8D57u);
    for (int round = 0; round < 10; round++) {
        vi hi0, lo0, hi1, lo1;
        vi_mul_wide(c0, m0, &hi0, &lo0);
        vi_mul_wide(c2, m1, &hi1, &lo1);
        c0 = vi_xor(vi_xor(hi1, c1), vi_set((int32_t)k0));
        c1 = lo1;
        c2 = vi_xor(vi_xor(hi0, c3), vi_set((int32_t)k1));
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
