/* Fast against plain for embed, norm, rope, act, glu, dropout, kv_write and their gradients; and the plain ones against values worked out here. */
#include "conform/ops_case.h"

#include "tensor/cpu/nn_kernels.h"

#include <stdio.h>

static im_context *ctx;

static int setup(void **state)
{
    (void)state;
    return im_context_create(&ctx) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_context_destroy(ctx);
    return 0;
}

static const im_view absent = {.ndim = 0};
static const int64_t sizes[] = {0, 1, 3, 8, 15, 16, 17, 33, 64, 77, 130};

/* Rows further apart than they are long. */
static im_view rows_view(im_dtype t, int64_t n, int64_t cols, int64_t gap)
{
    return im_view_2d_stride(t, n, cols, cols + gap, gap);
}

static void put(ops_case *c, int operand, int64_t element, float value)
{
    im_store((im_dtype)c->args.v[operand].dtype, c->init[operand], element, value);
}

static double tolerance(im_dtype t)
{
    return t == IM_BF16 ? 1.0 / 128 : 3e-6;
}

/* Small values over a NaN or two and both infinities. */
static void poison(ops_case *c, int operand)
{
    int64_t n = (int64_t)((c->nbytes[operand] - GUARD) / im_dtype_size((im_dtype)c->args.v[operand].dtype));
    const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3e38f, -3e38f, 1e-40f, 88.0f, -88.0f, 104.5f, -104.5f, 12.0f, -12.0f};
    for (int64_t i = 0; i < (int64_t)IM_COUNT_OF(odd) && i < n; i++)
        put(c, operand, n - 1 - i, odd[i]);
}

/* ---- embed ------------------------------------------------------------------------------------------------------------- */

static void embed_one(im_dtype t, int64_t n, int64_t D, bool second)
{
    ops_case c = ops_new(ctx, &im_op_embed);
    ops_operand(&c, im_view_1d(IM_I32, n), 1);
    ops_operand(&c, rows_view(t, 7, D, 2), 2);
    ops_operand(&c, rows_view(t, n, D, 1), 3);
    ops_operand(&c, second ? im_view_1d(IM_I32, n) : absent, 4);
    ops_operand(&c, second ? rows_view(t, 7, D, 0) : absent, 5);
    c.args.f[0] = 1.5;
    ops_check(&c, 1e-7, tolerance(t));
    ops_free(&c);
    for (int add = 0; add < 2; add++) {
        c = ops_new(ctx, &im_op_embed_grad);
        ops_operand(&c, im_view_1d(IM_I32, n), 1);
        ops_operand(&c, rows_view(t, n, D, 3), 2);
        ops_operand(&c, rows_view(IM_F32, 7, D, 5), 3);
        c.args.i[0] = add;
        ops_check(&c, 0.0, 0.0); /* the same additions in the same order */
        ops_free(&c);
    }
}

static void embed_agrees(void **state)
{
    (void)state;
    for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
        for (int second = 0; second < 2; second++) {
            embed_one(IM_F32, 19, sizes[i], second);
            embed_one(IM_BF16, sizes[i], 37, second);
        }
}

static void ids_outside_the_table_fail(void **state)
{
    (void)state;
    const int32_t bad[] = {7, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++)
        for (int grad = 0; grad < 2; grad++)
            for (int kernels = 0; kernels < 2; kernels++) {
                ops_case c = ops_new(ctx, grad ? &im_op_embed_grad : &im_op_embed);
                ops_operand(&c, im_view_1d(IM_I32, 4), 1);
                ops_operand(&c, im_view_2d(IM_F32, grad ? 4 : 7, 8), 2);
                ops_operand(&c, im_view_2d(IM_F32, grad ? 7 : 4, 8), 3);
                ((int32_t *)(void *)c.init[0])[2] = bad[i];
                char want[32];
                snprintf(want, sizeof want, "%d at row 2", bad[i]);
                assert_int_equal(ops_run(&c, (im_kernels)kernels, 2, IM_ISA_COUNT), IM_ERR_ARG);
                assert_non_null(strstr(im_error_text(ctx), want));
                assert_non_null(strstr(im_error_text(ctx), "the 7 there are"));
                im_error_clear(ctx);
                ops_free(&c);
            }
}

/* ---- norm -------------------------------------------------------------------------------------------------------------- */

typedef struct norm_case {
    im_dtype t;
    im_norm kind;
    int64_t n, D;
    bool bias, res, sum;
} norm_case;

static void norm_one(norm_case x, bool odd)
{
    int64_t nstat = x.kind == IM_NORM_LAYER ? 2 : 1;
    ops_case c = ops_new(ctx, &im_op_norm);
    ops_operand(&c, rows_view(x.t, x.n, x.D, 2), 1);
    ops_operand(&c, im_view_1d(x.t, x.D), 2);
    ops_operand(&c, x.bias ? im_view_1d(x.t, x.D) : absent, 3);
    ops_operand(&c, rows_view(x.t, x.n, x.D, 1), 4);
    ops_operand(&c, im_view_2d(IM_F32, x.n, nstat), 5);
    ops_operand(&c, x.res ? rows_view(x.t, x.n, x.D, 0) : absent, 6);
    ops_operand(&c, x.sum ? rows_view(x.t, x.n, x.D, 3) : absent, 7);
    c.args.f[0] = 1e-5;
    c.args.i[1] = x.kind;
    if (odd)
        put(&c, 0, x.D / 2 + 2, NAN);
    ops_check(&c, x.t == IM_BF16 ? 4e-3 : 2e-6, tolerance(x.t));
    ops_free(&c);

    c = ops_new(ctx, &im_op_norm_grad);
    ops_operand(&c, rows_view(x.t, x.n, x.D, 2), 1);
    ops_operand(&c, im_view_1d(x.t, x.D), 2);
    ops_operand(&c, im_view_2d(IM_F32, x.n, nstat), 3);
    ops_operand(&c, rows_view(x.t, x.n, x.D, 1), 4);
    ops_operand(&c, rows_view(x.t, x.n, x.D, 3), 5);
    ops_operand(&c, x.bias || x.sum ? im_view_1d(IM_F32, x.D) : absent, 6);
    ops_operand(&c, x.bias ? im_view_1d(IM_F32, x.D) : absent, 7);
    ops_operand(&c, x.res ? rows_view(x.t, x.n, x.D, 0) : absent, 8);
    c.args.i[0] = x.sum;
    c.args.i[1] = x.kind;
    ops_check(&c, x.t == IM_BF16 ? 4e-3 : 4e-6, tolerance(x.t));
    ops_free(&c);
}

static void norm_agrees(void **state)
{
    (void)state;
    for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
        for (int flags = 0; flags < 16; flags++) {
            bool res = flags & 4;
            norm_case x = {.t = flags & 1 ? IM_BF16 : IM_F32,
                           .kind = flags & 2 ? IM_NORM_LAYER : IM_NORM_RMS,
                           .n = 9,
                           .D = sizes[i],
                           .bias = flags & 8,
                           .res = res,
                           .sum = res && (flags & 8)};
            norm_one(x, false);
        }
    norm_one((norm_case){.t = IM_F32, .kind = IM_NORM_LAYER, .n = 131, .D = 70, .bias = true, .res = true, .sum = true}, true);
    norm_one((norm_case){.t = IM_BF16, .kind = IM_NORM_RMS, .n = 2500, .D = 5, .sum = false}, true);
    norm_one((norm_case){.t = IM_F32, .kind = IM_NORM_RMS, .n = 0, .D = 33, .bias = true}, false);
}

/* dw and db do not depend on the threads, bit by bit. */
static void norm_grad_sums_in_one_order(void **state)
{
    (void)state;
    ops_case c = ops_new(ctx, &im_op_norm_grad);
    int64_t n = 700, D = 50;
    ops_operand(&c, im_view_2d(IM_F32, n, D), 1);
    ops_operand(&c, im_view_1d(IM_F32, D), 2);
    ops_operand(&c, im_view_2d(IM_F32, n, 2), 3);
    ops_operand(&c, im_view_2d(IM_F32, n, D), 4);
    ops_operand(&c, im_view_2d(IM_F32, n, D), 5);
    ops_operand(&c, im_view_1d(IM_F32, D), 6);
    ops_operand(&c, im_view_1d(IM_F32, D), 7);
    c.args.i[1] = IM_NORM_LAYER;
    float dw[50], db[50];
    for (int threads = 1; threads <= 5; threads++) {
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, threads, IM_ISA_COUNT), IM_OK);
        if (threads > 1) {
            assert_memory_equal(dw, c.got[5], sizeof dw);
            assert_memory_equal(db, c.got[6], sizeof db);
        }
        memcpy(dw, c.got[5], sizeof dw);
        memcpy(db, c.got[6], sizeof db);
    }
    ops_free(&c);
}

/* ---- rope -------------------------------------------------------------------------------------------------------------- */

static im_view heads_view(im_dtype t, int64_t n, int64_t H, int64_t E, int64_t gap)
{
    im_view v = im_view_make(t, 3, (int64_t[]){n, H, E});
    v.stride[0] = H * E + gap;
    v.offset = gap;
    return v;
}

static void rope_agrees(void **state)
{
    (void)state;
    const int64_t dims[][2] = {{2, 2}, {6, 4}, {64, 64}, {34, 34}, {80, 20}, {5, 0}, {1, 0}};
    for (size_t i = 0; i < IM_COUNT_OF(dims); i++)
        for (int flags = 0; flags < 16; flags++) {
            im_dtype t = flags & 1 ? IM_BF16 : IM_F32;
            ops_case c = ops_new(ctx, &im_op_rope);
            ops_operand(&c, heads_view(t, 11, 3, dims[i][0], 5), 1);
            ops_operand(&c, flags & 8 ? c.args.v[0] : heads_view(t, 11, 3, dims[i][0], 0), 2);
            ops_operand(&c, im_view_1d(IM_I32, 11), 3);
            ops_operand(&c, im_view_2d(IM_F32, 7, dims[i][1]), 4);
            c.args.i[0] = (flags >> 1) & 1;
            c.args.i[1] = (flags >> 2) & 1;
            ops_check(&c, t == IM_BF16 ? 8e-3 : 3e-7, tolerance(t));
            if (flags & 8) { /* in place gives the same */
                unsigned char *want = ops_alloc(c.nbytes[0]);
                assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
                memcpy(want, c.got[1], c.nbytes[1]);
                c.alias[1] = 0;
                memcpy(c.init[1], c.init[0], c.nbytes[0]);
                assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
                ops_compare(&c, 0, want, 0, 0);
                free(want);
            }
            ops_free(&c);
        }
}

/* B44: the two pairings are the same rotation of permuted dims; and the wrong pairing is seen. */
static void rope_pairings_are_permutations(void **state)
{
    (void)state;
    enum { E = 12 };
    for (int kernels = 0; kernels < 2; kernels++) {
        float y[2][E];
        for (int pairs = 0; pairs < 2; pairs++) {
            ops_case c = ops_new(ctx, &im_op_rope);
            ops_operand(&c, im_view_make(IM_F32, 3, (int64_t[]){1, 1, E}), 1);
            ops_operand(&c, im_view_make(IM_F32, 3, (int64_t[]){1, 1, E}), 2);
            ops_operand(&c, im_view_1d(IM_I32, 1), 3);
            ops_operand(&c, im_view_2d(IM_F32, 7, E), 4);
            for (int j = 0; j < E; j++) /* element j of the halves order is element 2j or 2(j-E/2)+1 of the pairs order */
                put(&c, 0, pairs ? (j < E / 2 ? 2 * j : 2 * (j - E / 2) + 1) : j, (float)(j * j - 7));
            c.args.i[1] = pairs;
            assert_int_equal(ops_run(&c, (im_kernels)kernels, 1, IM_ISA_COUNT), IM_OK);
            memcpy(y[pairs], c.got[1], sizeof y[0]);
            ops_free(&c);
        }
        bool differ = false;
        for (int j = 0; j < E; j++) {
            assert_float_equal(y[0][j], y[1][j < E / 2 ? 2 * j : 2 * (j - E / 2) + 1], 1e-4);
            differ |= fabsf(y[0][j] - y[1][j]) > 1e-2f;
        }
        assert_true(differ);
    }
}

static void positions_outside_the_table_fail(void **state)
{
    (void)state;
    ops_case c = ops_new(ctx, &im_op_rope);
    ops_operand(&c, heads_view(IM_F32, 3, 1, 4, 0), 1);
    ops_operand(&c, heads_view(IM_F32, 3, 1, 4, 0), 2);
    ops_operand(&c, im_view_1d(IM_I32, 3), 3);
    ops_operand(&c, im_view_2d(IM_F32, 7, 4), 4);
    ((int32_t *)(void *)c.init[2])[1] = 7;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_ARG);
    assert_string_equal(im_error_text(ctx), "rope: position 7 at row 1 is outside the 7 there are (0 to 6)");
    im_error_clear(ctx);
    ops_free(&c);
}

/* ---- act, glu ---------------------------------------------------------------------------------------------------------- */

static void act_agrees(void **state)
{
    (void)state;
    for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
        for (int flags = 0; flags < 64; flags++) {
            im_dtype t = flags & 1 ? IM_BF16 : IM_F32;
            bool grad = flags & 2, gated = flags & 4, odd = flags & 8;
            int64_t n = 5, F = sizes[i];
            ops_case c = ops_new(ctx, gated ? (grad ? &im_op_glu_grad : &im_op_glu) : grad ? &im_op_act_grad : &im_op_act);
            ops_operand(&c, rows_view(t, n, gated ? 2 * F : F, 1), 1);
            for (int64_t e = 0; F > 0 && e < n * (F + 1); e++)
                put(&c, 0, e, im_load(t, c.init[0], e) * 9.0f);
            ops_operand(&c, rows_view(t, n, F, 2), 2);
            if (grad)
                ops_operand(&c, rows_view(t, n, gated ? 2 * F : F, 3), 3);
            if (odd && F > 0)
                poison(&c, 0);
            c.args.i[0] = flags >> 4;
            ops_check(&c, t == IM_BF16 ? 1e-5 : 1e-6, tolerance(t));
            ops_free(&c);
        }
}

/* Against values of another implementation (mpmath, 30 digits). */
static void act_values(void **state)
{
    (void)state;
    const float x[] = {-3.0f, -0.5f, 0.0f, 1.0f, 2.5f};
    const double want[][5] = {
        {-0.00363739208, -0.154285988, 0, 0.841191991, 2.48491576}, /* gelu, tanh */
        {-0.00404969409, -0.154268770, 0, 0.841344746, 2.48447584}, /* gelu, erf */
        {-0.142277620, -0.188770334, 0, 0.731058579, 2.31035455},   /* silu */
        {0, 0, 0, 1.0, 2.5},
    };
    for (int kind = 0; kind < 4; kind++)
        for (int kernels = 0; kernels < 2; kernels++) {
            ops_case c = ops_new(ctx, &im_op_act);
            ops_operand(&c, im_view_2d(IM_F32, 1, 5), 1);
            ops_operand(&c, im_view_2d(IM_F32, 1, 5), 2);
            memcpy(c.init[0], x, sizeof x);
            c.args.i[0] = kind;
            assert_int_equal(ops_run(&c, (im_kernels)kernels, 1, IM_ISA_COUNT), IM_OK);
            for (int i = 0; i < 5; i++)
                assert_float_equal(((const float *)(void *)c.got[1])[i], want[kind][i], 2e-7 * (1 + fabs(want[kind][i])));
            ops_free(&c);
        }
}

static void exp_is_within_two_ulp(void **state)
{
    (void)state;
    for (int isa = IM_ISA_AVX2; isa <= IM_ISA_AVX512 && isa <= (int)im_cpu_isa(); isa++) {
        const im_nn_rows *rows = im_nn_rows_of((im_isa)isa);
        double worst = 0.0;
        for (double x = -103.0; x < 88.7; x += 1.0 / 1024) {
            float in = (float)x, out;
            rows->exp(&in, 1, &out);
            double want = exp((double)in);
            double ulp = want < 0x1p-126 ? 0x1p-149 : ldexp(1.0, ilogb(want) - 23);
            worst = fmax(worst, fabs(out - want) / ulp);
        }
        assert_true(worst < 2.0);
        const float in[] = {-INFINITY, INFINITY, NAN, 0.0f, -0.0f, -200.0f, 200.0f, 88.8f, -103.97f};
        float out[9];
        rows->exp(in, 9, out);
        assert_true(out[0] == 0.0f && out[1] == INFINITY && isnan(out[2]) && out[3] == 1.0f && out[4] == 1.0f);
        assert_true(out[5] == 0.0f && out[6] == INFINITY && out[7] == INFINITY && out[8] <= 1.5e-45f);
    }
}

/* ---- dropout ------------------------------------------------------------------------------------------------------------ */

static void dropout_one(im_dtype t, int64_t n, int64_t D, int64_t first, bool res, double p)
{
    ops_case c = ops_new(ctx, &im_op_dropout);
    ops_operand(&c, rows_view(t, n, D, 1), 1);
    ops_operand(&c, rows_view(t, n, D, 2), 2);
    ops_operand(&c, res ? rows_view(t, n, D, 0) : absent, 3);
    c.args.f[0] = p;
    c.args.i[0] = 42;
    c.args.i[1] = 3;
    c.args.i[2] = 4;
    c.args.i[3] = 2;
    c.args.i[4] = first;
    c.now.sample0 = (int64_t)5 << 32;
    ops_check(&c, 0.0, 0.0); /* the same operations: the same bits */
    ops_free(&c);
}

static void dropout_agrees(void **state)
{
    (void)state;
    for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
        for (int flags = 0; flags < 4; flags++)
            for (int64_t first = 0; first < 200; first += 67)
                dropout_one(flags & 1 ? IM_BF16 : IM_F32, 6, sizes[i], first, flags & 2, 0.3);
    dropout_one(IM_F32, 6, 300, 0, false, 0.0);
    dropout_one(IM_F32, 6, 300, 5, true, 0.999999);
}

/* Ones (n,D) through dropout; the caller frees. */
static float *dropped(int64_t n, int64_t D, int64_t T, int64_t sample0, int64_t mb_first, int64_t column)
{
    ops_case c = ops_new(ctx, &im_op_dropout);
    ops_operand(&c, im_view_2d(IM_F32, n, D), 1);
    ops_operand(&c, im_view_2d(IM_F32, n, D), 2);
    for (int64_t i = 0; i < n * D; i++)
        put(&c, 0, i, 1.0f);
    c.args.f[0] = 0.25;
    c.args.i[0] = 7;
    c.args.i[2] = T;
    c.args.i[3] = mb_first;
    c.args.i[4] = column;
    c.now.sample0 = sample0;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
    float *y = (float *)(void *)c.got[1];
    free(c.init[0]);
    free(c.init[1]);
    free(c.got[0]);
    return y;
}

/* The mask belongs to the sample, position and column: cutting the batch or the columns changes nothing. */
static void dropout_does_not_know_the_layout(void **state)
{
    (void)state;
    enum { B = 4, T = 5, D = 100 };
    float *whole = dropped(B * T, D, T, 30, 0, 0);
    double kept = 0;
    for (int i = 0; i < B * T * D; i++) {
        assert_true(whole[i] == 0.0f || fabsf(whole[i] - 4.0f / 3.0f) < 1e-6f);
        kept += whole[i] != 0.0f;
    }
    assert_float_equal(kept / (B * T * D), 0.75, 0.04);
    for (int b = 0; b < B; b++) {
        float *one = dropped(T, D, T, b < 2 ? 30 : 32, b % 2, 0);
        assert_memory_equal(one, whole + b * T * D, T * D * sizeof(float));
        free(one);
    }
    float *right = dropped(B * T, D - 37, T, 30, 0, 37);
    for (int r = 0; r < B * T; r++)
        assert_memory_equal(right + r * (D - 37), whole + r * D + 37, (D - 37) * sizeof(float));
    free(right);
    float *other = dropped(B * T, D, T, 31, 0, 0);
    assert_memory_not_equal(other, whole, T * D * sizeof(float));
    assert_memory_equal(other, whole + T * D, T * D * sizeof(float)); /* sample 31 is row 1 of the first */
    free(other);
    free(whole);
}

/* ---- kv_write ------------------------------------------------------------------------------------------------------------- */

static void kv_write_agrees(void **state)
{
    (void)state;
    for (int flags = 0; flags < 2; flags++) {
        im_dtype t = flags ? IM_BF16 : IM_F32;
        ops_case c = ops_new(ctx, &im_op_kv_write);
        im_view k = im_view_make(t, 4, (int64_t[]){2, 3, 2, 5});
        k.stride[0] = 3 * 40;
        k.stride[1] = 40; /* rows of a fused qkv */
        ops_operand(&c, k, 1);
        ops_operand(&c, im_view_make(t, 4, (int64_t[]){2, 9, 2, 5}), 2);
        c.now.pos = 4;
        ops_check(&c, 0, 0);
        for (int e = 0; e < 5; e++) /* cache[1, 4 + 2, 1] = k[1, 2, 1] */
            assert_true(im_load(t, c.got[1], ((1 * 9 + 6) * 2 + 1) * 5 + e) == im_load(t, c.init[0], 120 + 80 + 5 + e));
        c.now.pos = 7;
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_ARG);
        assert_string_equal(im_error_text(ctx), "kv_write: positions 7 to 9 do not fit the key/value cache of 9");
        im_error_clear(ctx);
        ops_free(&c);
    }
}

static void kv_write_finds_its_block(void **state)
{
    (void)state;
    const int32_t table[] = {4, 0, 2, 1, 3, 5}; /* sequence 0: 4 0 2 */
    ops_case c = ops_new(ctx, &im_op_kv_write);
    ops_operand(&c, im_view_make(IM_F32, 4, (int64_t[]){2, 3, 1, 5}), 1);
    ops_operand(&c, im_view_make(IM_F32, 4, (int64_t[]){6, IM_KV_BLOCK, 1, 5}), 2);
    ops_operand(&c, im_view_2d(IM_I32, 2, 3), 3);
    memcpy(c.init[2], table, sizeof table);
    c.now.pos = 2 * IM_KV_BLOCK - 1; /* the last of block 1, then two of block 2 */
    ops_check(&c, 0, 0);
    for (int b = 0; b < 2; b++)
        for (int t = 0; t < 3; t++)
            for (int e = 0; e < 5; e++) {
                int64_t at = t ? table[3 * b + 2] * IM_KV_BLOCK + t - 1 : table[3 * b + 1] * IM_KV_BLOCK + IM_KV_BLOCK - 1;
                assert_true(im_load(IM_F32, c.got[1], at * 5 + e) == im_load(IM_F32, c.init[0], (b * 3 + t) * 5 + e));
            }
    ((int32_t *)(void *)c.init[2])[5] = 6;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_ARG);
    assert_string_equal(im_error_text(ctx), "kv_write: position 128 of sequence 1 is in block 6 of the cache's 6");
    im_error_clear(ctx);
    ops_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees),
        cmocka_unit_test(ids_outside_the_table_fail),
        cmocka_unit_test(norm_agrees),
        cmocka_unit_test(norm_grad_sums_in_one_order),
        cmocka_unit_test(rope_agrees),
        cmocka_unit_test(rope_pairings_are_permutations),
        cmocka_unit_test(positions_outside_the_table_fail),
        cmocka_unit_test(act_agrees),
        cmocka_unit_test(act_values),
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(dropout_agrees),
        cmocka_unit_test(dropout_does_not_know_the_layout),
        cmocka_unit_test(kv_write_agrees),
        cmocka_unit_test(kv_write_finds_its_block),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
