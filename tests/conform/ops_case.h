/* ops_case: runs one op twice, by its plain and its fast kernel, on the same bytes, and compares. */
#ifndef IM_TESTS_OPS_CASE_H
#define IM_TESTS_OPS_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tensor/cpu/cpu.h"
#include "tensor/ops.h"

enum { GUARD = 128 }; /* bytes behind every buffer that nobody may touch */

typedef struct ops_case {
    im_context *ctx;
    const im_op_kind *kind;
    im_op_args args;
    unsigned char *init[IM_OP_MAX_OPERANDS]; /* bytes before the run; NULL when absent */
    unsigned char *got[IM_OP_MAX_OPERANDS];
    size_t nbytes[IM_OP_MAX_OPERANDS];
    int alias[IM_OP_MAX_OPERANDS]; /* operand whose buffer is used instead, -1: its own */
    im_op_now now;
} ops_case;

static inline uint64_t ops_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline float ops_uniform(uint64_t *state)
{
    return (float)((double)(ops_random(state) >> 11) * 0x1p-52 - 1.0);
} /* [-1, 1) */

static inline void *ops_alloc(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
    assert_non_null(p);
    return p;
}

static inline ops_case ops_new(im_context *ctx, const im_op_kind *k)
{
    ops_case c = {.ctx = ctx, .kind = k};
    for (int i = 0; i < IM_OP_MAX_OPERANDS; i++)
        c.alias[i] = -1;
    return c;
}

/* Adds an operand whose buffer is full of random values (small integers for integer types), gaps between strides included. */
static inline void ops_operand(ops_case *c, im_view v, uint64_t seed)
{
    int i = c->args.n++;
    c->args.v[i] = v;
    if (v.ndim == 0)
        return;
    size_t size = im_dtype_size((im_dtype)v.dtype), n = im_view_extent(&v) / size + GUARD / size;
    c->nbytes[i] = n * size;
    c->init[i] = ops_alloc(c->nbytes[i]);
    c->got[i] = ops_alloc(c->nbytes[i]);
    uint64_t state = seed;
    for (size_t e = 0; e < n; e++) {
        if (v.dtype == IM_I32)
            ((int32_t *)(void *)c->init[i])[e] = (int32_t)(ops_random(&state) % 7);
        else if (v.dtype == IM_F64)
            ((double *)(void *)c->init[i])[e] = (double)ops_uniform(&state);
        else if (v.dtype == IM_F32 || v.dtype == IM_BF16 || v.dtype == IM_F16)
            im_store((im_dtype)v.dtype, c->init[i], (int64_t)e, ops_uniform(&state));
        else
            for (size_t b = 0; b < size; b++)
                c->init[i][e * size + b] = (unsigned char)ops_random(&state);
    }
}

static inline void ops_free(ops_case *c)
{
    for (int i = 0; i < c->args.n; i++) {
        free(c->init[i]);
        free(c->got[i]);
        c->init[i] = c->got[i] = NULL;
    }
}

/* Runs on fresh copies of the initial bytes; results are in got. Scratch is exactly what was asked for, full of NaNs, with a guard. */
static inline im_status ops_run(ops_case *c, im_kernels kernels, int threads, im_isa isa)
{
    void *p[IM_OP_MAX_OPERANDS] = {NULL};
    for (int i = 0; i < c->args.n; i++) {
        if (c->init[i] != NULL)
            memcpy(c->got[i], c->init[i], c->nbytes[i]);
        p[i] = c->alias[i] >= 0 ? c->got[c->alias[i]] : c->got[i];
    }
    im_op_direct how = {.kernels = kernels, .threads = threads, .isa = isa};
    im_op_state *s = NULL;
    im_status status = im_op_prepare_direct(c->ctx, c->kind, &c->args, &how, &s);
    if (status != IM_OK)
        return status;
    size_t nscratch = im_op_workspace(c->kind, &c->args, kernels, threads);
    unsigned char *scratch = ops_alloc(nscratch + GUARD);
    memset(scratch, 0xff, nscratch);
    memset(scratch + nscratch, 0x5a, GUARD);
    status = im_op_call_direct(s, p, scratch, &c->now);
    for (int b = 0; b < GUARD; b++)
        assert_int_equal(scratch[nscratch + b], 0x5a);
    free(scratch);
    im_op_destroy(s);
    return status;
}

static inline double ops_value(const im_view *v, const void *p, int64_t at)
{
    switch (v->dtype) {
    case IM_F64: return ((const double *)p)[at];
    case IM_I32: return ((const int32_t *)p)[at];
    case IM_I64: return (double)((const int64_t *)p)[at];
    case IM_U8: return ((const uint8_t *)p)[at];
    case IM_U16: return ((const uint16_t *)p)[at];
    default: return (double)im_load((im_dtype)v->dtype, p, at);
    }
}

/* Marks every byte that the view covers. */
static inline void ops_cover(const im_view *v, unsigned char *covered)
{
    size_t size = im_dtype_size((im_dtype)v->dtype);
    int64_t index[4] = {0};
    for (int64_t left = im_view_count(v); left > 0; left--) {
        int64_t at = v->offset;
        for (int d = 0; d < v->ndim; d++)
            at += index[d] * v->stride[d];
        memset(covered + (size_t)at * size, 1, size);
        for (int d = v->ndim - 1; d >= 0 && ++index[d] == v->shape[d]; d--)
            index[d] = 0;
    }
}

/* got against `want` (another run's bytes): |a-b| <= absolute + relative*|b|, NaN only against NaN, infinities equal; bytes outside the view as
 * they were. */
static inline void ops_compare(const ops_case *c, int i, const unsigned char *want, double absolute, double relative)
{
    const im_view *v = &c->args.v[i];
    unsigned char *covered = calloc(1, c->nbytes[i]);
    assert_non_null(covered);
    ops_cover(v, covered);
    for (size_t b = 0; b < c->nbytes[i]; b++)
        if (!covered[b] && c->got[i][b] != c->init[i][b])
            fail_msg("%s: operand %d: byte %zu outside the view was changed", im_op_name(c->kind), i, b);
    size_t size = im_dtype_size((im_dtype)v->dtype);
    for (size_t e = 0; e < c->nbytes[i] / size; e++) {
        if (!covered[e * size])
            continue;
        double a = ops_value(v, c->got[i], (int64_t)e), b = ops_value(v, want, (int64_t)e);
        bool same = isnan(a) || isnan(b) ? isnan(a) && isnan(b) : isinf(a) || isinf(b) ? a == b : fabs(a - b) <= absolute + relative * fabs(b);
        if (!same)
            fail_msg("%s: operand %d, element %zu: %.9g, should be %.9g", im_op_name(c->kind), i, e, a, b);
    }
    free(covered);
}

/* Plain against fast: every instruction set of this machine with 2 threads, the best one with 1 and 3 too. Operands that are only read must not
 * change. */
static inline void ops_check(ops_case *c, double absolute, double relative)
{
    unsigned char *want[IM_OP_MAX_OPERANDS] = {NULL};
    assert_int_equal(ops_run(c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
    for (int i = 0; i < c->args.n; i++)
        if (c->got[i] != NULL) {
            want[i] = ops_alloc(c->nbytes[i]);
            memcpy(want[i], c->got[i], c->nbytes[i]);
            char access = im_op_access(c->kind, &c->args, i);
            if (access == 'R' && c->alias[i] < 0)
                ops_compare(c, i, want[i], 0, 0);
        }
    int best = (int)im_cpu_isa();
#ifdef IM_HAVE_OPENMP
    const int most = 3;
#else
    const int most = 1; /* loops are serial */
#endif
    for (int isa = IM_ISA_BASE; isa <= best; isa++)
        for (int threads = isa == best ? 1 : 2; threads <= (isa == best ? most : 2); threads++) {
            if (isa == IM_ISA_AVX512_BF16 && isa < best)
                continue; /* our code is the same with AMX */
            assert_int_equal(ops_run(c, IM_KERNELS_FAST, threads, (im_isa)isa), IM_OK);
            for (int i = 0; i < c->args.n; i++)
                if (want[i] != NULL && c->alias[i] < 0)
                    ops_compare(c, i, want[i], absolute, relative);
        }
    for (int i = 0; i < c->args.n; i++)
        free(want[i]);
}

#endif
