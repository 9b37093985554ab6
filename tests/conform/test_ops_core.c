/* Fast against plain for fill, copy, add, matmul, colsum, sumsq, adamw, finite; and the plain ones against values worked out here. */
#include "conform/ops_case.h"

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

static void set(ops_case *c, int operand, int64_t element, double value)
{
    const im_view *v = &c->args.v[operand];
    if (v->dtype == IM_F64)
        ((double *)(void *)c->init[operand])[element] = value;
    else
        im_store((im_dtype)v->dtype, c->init[operand], element, (float)value);
}

static im_view strided(im_dtype t, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
    im_view v = im_view_make(t, ndim, shape);
    for (int d = 0; d < ndim; d++)
        v.stride[d] = stride[d];
    v.offset = offset;
    return v;
}

/* ---- number formats ---------------------------------------------------------------------------------------------------- */

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 0x10000u; high++) {
        float f = im_bf16_f32((uint16_t)high);
        uint16_t back = im_f32_bf16(f);
        if (isnan(f))
            assert_true(isnan(im_bf16_f32(back)));
        else
            assert_int_equal(back, high);
        if (!isfinite(f) || (high & 0x7fffu) >= 0x7f7fu)
            continue;
        uint32_t bits = high << 16;
        assert_int_equal(im_f32_bf16(im_bits_f32(bits | 0x7fffu)), high);
        assert_int_equal(im_f32_bf16(im_bits_f32(bits | 0x8001u)), high + 1);
        assert_int_equal(im_f32_bf16(im_bits_f32(bits | 0x8000u)), high + (high & 1u));
    }
    assert_true(isnan(im_bf16_f32(im_f32_bf16(im_bits_f32(0x7f800001u)))));
    assert_int_equal(im_f32_bf16(3.4e38f), 0x7f80);
}

static void fp16_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000u; h++) {
        float f = im_f16_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(im_f16_f32(im_f32_f16(f))));
        else
            assert_int_equal(im_f32_f16(f), h);
    }
    assert_true(im_f16_f32(0x3c00) == 1.0f && im_f16_f32(0x0001) == 0x1p-24f && im_f16_f32(0x7bff) == 65504.0f);
    assert_int_equal(im_f32_f16(65520.0f), 0x7c00);
    assert_int_equal(im_f32_f16(65519.0f), 0x7bff);
    assert_int_equal(im_f32_f16(1.0f + 0x1p-11f), 0x3c00); /* ties to even */
    assert_int_equal(im_f32_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(im_f32_f16(0x1p-25f), 0);
    assert_int_equal(im_f32_f16(0x1.8p-25f), 1);
}

/* ---- fill, copy, add --------------------------------------------------------------------------------------------------- */

static const int64_t odd[] = {0, 1, 2, 7, 63, 64, 65, 1000, 40001};

static void fill_all_types(void **state)
{
    (void)state;
    const double values[] = {0.0, -0.0, 1.0, 3.0};
    for (int t = 0; t < IM_DTYPE_COUNT; t++)
        for (size_t i = 0; i < IM_COUNT_OF(odd); i++)
            for (size_t f = 0; f < IM_COUNT_OF(values); f++) {
                ops_case c = ops_new(ctx, &im_op_fill);
                im_view v = im_view_1d((im_dtype)t, odd[i]);
                v.offset = 3;
                ops_operand(&c, v, i);
                c.args.f[0] = values[f];
                ops_check(&c, 0, 0);
                if (odd[i] > 0)
                    assert_true(ops_value(&v, c.got[0], 3) == values[f]);
                ops_free(&c);
            }
    ops_case c = ops_new(ctx, &im_op_fill);
    ops_operand(&c, im_view_2d_stride(IM_F32, 5, 3, 7, 2), 1);
    c.args.f[0] = 0.5;
    ops_check(&c, 0, 0);
    ops_free(&c);
}

static void copy_types_and_strides(void **state)
{
    (void)state;
    const im_dtype floats[] = {IM_F32, IM_F64, IM_BF16, IM_F16};
    const int64_t shape[4] = {3, 5, 7, 2}, in[4] = {70, 14, 2, 1}, swapped[4] = {1, 6, 30, 3}, wide[4] = {500, 90, 11, 2};
    const int64_t *strides[] = {in, swapped, wide};
    for (size_t a = 0; a < 4; a++)
        for (size_t b = 0; b < 4; b++) {
            for (size_t s = 0; s < 9; s++) {
                ops_case c = ops_new(ctx, &im_op_copy);
                ops_operand(&c, strided(floats[a], 4, shape, strides[s / 3], 1), s);
                ops_operand(&c, strided(floats[b], 4, shape, strides[s % 3], 5), s + 100);
                ops_check(&c, 0, 0);
                ops_free(&c);
            }
            for (size_t i = 0; i < IM_COUNT_OF(odd); i++) {
                ops_case c = ops_new(ctx, &im_op_copy);
                ops_operand(&c, im_view_1d(floats[a], odd[i]), i);
                ops_operand(&c, im_view_1d(floats[b], odd[i]), i + 100);
                if (odd[i] >= 7) {
                    set(&c, 0, 0, NAN);
                    set(&c, 0, 1, INFINITY);
                    set(&c, 0, 2, -INFINITY);
                    set(&c, 0, 3, 1e-41);
                    set(&c, 0, 4, -0.0);
                }
                ops_check(&c, 0, 0);
                ops_free(&c);
            }
        }
    ops_case c = ops_new(ctx, &im_op_copy); /* columns of integers */
    ops_operand(&c, im_view_transpose(im_view_2d(IM_I32, 9, 13)), 1);
    ops_operand(&c, im_view_2d(IM_I32, 13, 9), 2);
    ops_check(&c, 0, 0);
    ops_free(&c);
}

static void add_aliases(void **state)
{
    (void)state;
    const im_dtype types[] = {IM_F32, IM_BF16};
    for (size_t t = 0; t < 2; t++)
        for (int alias = -1; alias < 2; alias++)
            for (size_t i = 0; i < IM_COUNT_OF(odd); i++) {
                ops_case c = ops_new(ctx, &im_op_add);
                for (uint64_t o = 0; o < 3; o++)
                    ops_operand(&c, im_view_1d(types[t], odd[i]), i * 3 + o);
                if (odd[i] > 60) {
                    set(&c, 0, 1, NAN);
                    set(&c, 1, 2, INFINITY);
                    set(&c, 0, 50, INFINITY);
                    set(&c, 1, 50, -INFINITY);
                }
                c.alias[2] = alias;
                ops_check(&c, 0, 0);
                ops_free(&c);
            }
    ops_case c = ops_new(ctx, &im_op_add);
    ops_operand(&c, im_view_2d_stride(IM_F32, 33, 17, 40, 3), 1);
    ops_operand(&c, im_view_2d(IM_F32, 33, 17), 2);
    ops_operand(&c, im_view_2d_stride(IM_F32, 33, 17, 19, 0), 3);
    ops_check(&c, 0, 0);
    ops_free(&c);
}

/* ---- matmul ------------------------------------------------------------------------------------------------------------ */

typedef struct product {
    int64_t batch, M, N, K; /* batch 0: two dims */
    im_dtype type, out;
    bool ta, tb, accumulate, bias;
    int64_t pad; /* elements between stored rows */
} product;

static im_view operand_of(im_dtype t, int64_t batch, int64_t rows, int64_t cols, bool transposed, int64_t pad)
{
    int64_t r = transposed ? cols : rows, c = transposed ? rows : cols;
    im_view v = batch > 0 ? im_view_make(t, 3, (int64_t[]){batch, r, c}) : im_view_2d(t, r, c);
    v.stride[v.ndim - 2] = c + pad;
    if (batch > 0)
        v.stride[0] = r * (c + pad) + pad;
    v.offset = pad;
    return transposed ? im_view_transpose(v) : v;
}

static ops_case product_case(const product *p, uint64_t seed)
{
    ops_case c = ops_new(ctx, &im_op_matmul);
    ops_operand(&c, operand_of(p->type, p->batch, p->M, p->K, p->ta, p->pad), seed);
    ops_operand(&c, operand_of(p->type, p->batch, p->K, p->N, p->tb, p->pad), seed + 1);
    ops_operand(&c, operand_of(p->out, p->batch, p->M, p->N, false, p->pad), seed + 2);
    if (p->bias)
        ops_operand(&c, im_view_1d(p->type, p->N), seed + 3);
    c.args.i[0] = p->accumulate;
    if (!p->accumulate) /* what is only written must not be read */
        for (size_t e = 0; e < c.nbytes[2] / im_dtype_size(p->out); e++)
            set(&c, 2, (int64_t)e, NAN);
    return c;
}

static void check_product(const product *p)
{
    ops_case c = product_case(p, (uint64_t)(p->M * 131 + p->N * 17 + p->K));
    ops_check(&c, 3e-7 * (double)(p->K + 4), p->out == IM_BF16 ? 0x1p-7 : 1e-6);
    ops_free(&c);
}

static void matmul_all_forms(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{5, 7, 3}, {33, 17, 65}, {1, 31, 40}, {29, 1, 40}, {29, 31, 1}, {1, 1, 1}};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++)
        for (int form = 0; form < (s < 2 ? 128 : 64); form++) {
            product p = {.batch = form & 1 ? 3 : 0,
                         .M = sizes[s][0],
                         .N = sizes[s][1],
                         .K = sizes[s][2],
                         .ta = form & 2,
                         .tb = form & 4,
                         .accumulate = form & 8,
                         .bias = form & 16,
                         .type = form & 32 ? IM_BF16 : IM_F32,
                         .pad = form & 64 ? 5 : 0};
            p.out = IM_F32;
            check_product(&p);
            p.out = IM_BF16;
            if (p.type == IM_BF16 && !p.accumulate)
                check_product(&p);
        }
}

/* More than one panel in every direction. */
static void matmul_panels(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1030, 9, 17}, {7, 1045, 17}, {9, 13, 2100}, {3, 1100, 37}, {1, 1030, 1030}};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++)
        for (int form = s < 4 ? 0 : 6; form < (s < 4 ? 16 : 7); form++) {
            product p = {.M = sizes[s][0],
                         .N = sizes[s][1],
                         .K = sizes[s][2],
                         .ta = form & 1,
                         .tb = form & 2,
                         .bias = true,
                         .type = IM_BF16,
                         .out = form & 4 ? IM_BF16 : IM_F32,
                         .accumulate = !(form & 4) && (form & 8)};
            check_product(&p);
        }
}

static void matmul_empty(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 4, 3}, {4, 0, 3}, {4, 5, 0}, {0, 0, 0}};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++)
        for (int form = 0; form < 32; form++) {
            product p = {.batch = form & 1 ? 2 : 0,
                         .M = sizes[s][0],
                         .N = sizes[s][1],
                         .K = sizes[s][2],
                         .accumulate = form & 2,
                         .bias = form & 4,
                         .type = form & 8 ? IM_BF16 : IM_F32,
                         .tb = form & 16,
                         .out = IM_F32};
            check_product(&p);
            p.out = IM_BF16;
            if (p.type == IM_BF16 && !p.accumulate)
                check_product(&p);
        }
    product p = {.batch = 0, .M = 2, .N = 3, .K = 0, .type = IM_F32, .out = IM_F32};
    ops_case c = product_case(&p, 1);
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
    for (int i = 0; i < 6; i++)
        assert_true(((float *)(void *)c.got[2])[i] == 0.0f);
    ops_free(&c);
}

static void matmul_not_finite(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        product p = {.M = 9, .N = 20, .K = 30, .type = form & 1 ? IM_BF16 : IM_F32, .out = IM_F32, .tb = form & 2};
        ops_case c = product_case(&p, 5);
        set(&c, 0, 0, NAN);
        set(&c, 0, 31, INFINITY);
        set(&c, 0, 62, -INFINITY);
        ops_check(&c, 1e-5, 1e-6);
        const float *out = (const float *)(const void *)c.got[2];
        for (int n = 0; n < 20; n++)
            assert_true(isnan(out[n]) && isinf(out[20 + n]) && isinf(out[40 + n]) && isfinite(out[60 + n]));
        ops_free(&c);
    }
}

/* Strides that no library call takes: the same row again and again, and overlapping rows. */
static void matmul_odd_strides(void **state)
{
    (void)state;
    for (int form = 0; form < 2; form++) {
        ops_case c = ops_new(ctx, &im_op_matmul);
        ops_operand(&c, strided(IM_F32, 2, (int64_t[]){6, 5}, (int64_t[]){form ? 2 : 0, 1}, 0), 1);
        ops_operand(&c, im_view_2d(IM_F32, 5, 4), 2);
        ops_operand(&c, im_view_2d(IM_F32, 6, 4), 3);
        ops_check(&c, 1e-6, 1e-6);
        ops_free(&c);
    }
}

/* By hand: [1 2; 3 4] [5 6; 7 8] + [10 20] + c. */
static void matmul_values(void **state)
{
    (void)state;
    ops_case c = ops_new(ctx, &im_op_matmul);
    for (int i = 0; i < 3; i++)
        ops_operand(&c, im_view_2d(IM_F32, 2, 2), (uint64_t)i);
    ops_operand(&c, im_view_1d(IM_F32, 2), 4);
    for (int i = 0; i < 4; i++) {
        set(&c, 0, i, i + 1);
        set(&c, 1, i, i + 5);
        set(&c, 2, i, 100 * i);
    }
    set(&c, 3, 0, 10);
    set(&c, 3, 1, 20);
    c.args.i[0] = 1;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(ops_run(&c, k ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 2, IM_ISA_COUNT), IM_OK);
        const float *out = (const float *)(const void *)c.got[2];
        assert_true(out[0] == 29 && out[1] == 142 && out[2] == 253 && out[3] == 370);
    }
    ops_free(&c);
}

static void refused(const im_op_kind *k, const im_op_args *a, const char *words)
{
    im_op_cost cost;
    im_error_clear(ctx);
    assert_int_equal(im_op_describe(ctx, k, a, &cost), IM_ERR_ARG);
    if (strstr(im_error_text(ctx), words) == NULL)
        fail_msg("'%s' does not say '%s'", im_error_text(ctx), words);
    im_error_clear(ctx);
}

/* 1 + 256 x bf16(0.001), a product at a time, as gradients of bf16 runs add up: bf16 sums would stay at 1. (A15, B12) */
static void matmul_accumulates_small_parts(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        product p = {.M = 1, .N = 16, .K = 1, .ta = true, .accumulate = true, .type = IM_BF16, .out = IM_F32};
        ops_case c = product_case(&p, 3);
        for (int64_t i = 0; i < 16; i++) {
            set(&c, 1, i, 0.001);
            set(&c, 2, i, 1.0);
        }
        set(&c, 0, 0, 1.0);
        for (int i = 0; i < 256; i++) {
            assert_int_equal(ops_run(&c, k ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 1, IM_ISA_COUNT), IM_OK);
            memcpy(c.init[2], c.got[2], c.nbytes[2]);
        }
        for (int64_t i = 0; i < 16; i++)
            assert_true(fabs(ops_value(&c.args.v[2], c.got[2], i) - 1.25586) < 2e-5);
        ops_free(&c);
    }
}

static void bad_arguments(void **state)
{
    (void)state;
    im_op_args a = {.n = 3, .v = {im_view_2d(IM_F32, 2, 3), im_view_2d(IM_F32, 4, 5), im_view_2d(IM_F32, 2, 5)}};
    refused(&im_op_matmul, &a, "operand b (4,5) fp32: the shape must be (3,any)");
    a.v[1] = im_view_2d(IM_BF16, 3, 5);
    refused(&im_op_matmul, &a, "must be fp32 as operand a is");
    a.v[1] = im_view_2d_stride(IM_F32, 3, 5, 7, 0);
    a.v[1].stride[1] = 2;
    refused(&im_op_matmul, &a, "one of them must be 1");
    a.v[1] = im_view_2d(IM_F32, 3, 5);
    a.v[2].ndim = 0;
    refused(&im_op_matmul, &a, "operand c is missing");
    a.n = 2;
    refused(&im_op_matmul, &a, "it takes 3 to 4");
    im_op_args w = {.n = 7};
    for (int i = 0; i < 7; i++)
        w.v[i] = i < 5 ? im_view_1d(IM_F32, 10) : im_view_1d(IM_F64, 8);
    refused(&im_op_adamw, &w, "must be absent");
    w.v[0].dtype = IM_BF16;
    w.v[1].ndim = 0;
    refused(&im_op_adamw, &w, "master is missing");
    im_op_args c = {.n = 2, .v = {im_view_1d(IM_I32, 4), im_view_1d(IM_F32, 4)}};
    refused(&im_op_copy, &c, "only floating-point types convert");
    c.v[0].shape[0] = -1;
    refused(&im_op_copy, &c, "neither may be negative");
}

static void describe_costs(void **state)
{
    (void)state;
    im_op_args a = {.n = 3, .v = {im_view_2d(IM_F32, 6, 3), im_view_2d(IM_F32, 3, 5), im_view_2d(IM_F32, 6, 5)}};
    im_op_cost cost;
    assert_int_equal(im_op_describe(ctx, &im_op_matmul, &a, &cost), IM_OK);
    assert_true(cost.flops == 180.0 && cost.read == 132 && cost.written == 120 && cost.workspace == 0);
    assert_int_equal(im_op_access(&im_op_matmul, &a, 2), 'W');
    a.i[0] = 1;
    assert_int_equal(im_op_describe(ctx, &im_op_matmul, &a, &cost), IM_OK);
    assert_true(cost.read == 252 && cost.written == 120);
    assert_int_equal(im_op_access(&im_op_matmul, &a, 2), 'M');
    assert_int_equal(im_op_access(&im_op_matmul, &a, 3), 0);
}

/* ---- colsum, sumsq ----------------------------------------------------------------------------------------------------- */

static void colsum_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{0, 5}, {5, 0}, {1, 1}, {1, 1000}, {1000, 1}, {37, 513}, {9, 2305}, {300, 129}};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++)
        for (int form = 0; form < 8; form++) {
            ops_case c = ops_new(ctx, &im_op_colsum);
            im_dtype t = form & 1 ? IM_BF16 : IM_F32;
            ops_operand(&c, im_view_2d_stride(t, sizes[s][0], sizes[s][1], sizes[s][1] + (form & 4 ? 3 : 0), 2), s);
            ops_operand(&c, im_view_1d(IM_F32, sizes[s][1]), s + 50);
            c.args.i[0] = form & 2;
            if (!c.args.i[0])
                for (int64_t n = 0; n < sizes[s][1]; n++)
                    set(&c, 1, n, NAN);
            ops_check(&c, 2e-6 * (double)(sizes[s][0] > 30 ? 10 : 1), 1e-6);
            ops_free(&c);
        }
}

static void sumsq_is_the_same_for_any_team(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 33, 65535, 65536, 65537, 400001};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++) {
        ops_case c = ops_new(ctx, &im_op_sumsq);
        ops_operand(&c, im_view_1d(IM_F32, sizes[s]), s);
        ops_operand(&c, im_view_1d(IM_F64, 1), 9);
        set(&c, 1, 0, NAN);
        ops_check(&c, 0, 1e-13);
        c.args.i[0] = 1;
        set(&c, 1, 0, 1000.0);
        ops_check(&c, 0, 1e-13);
        double first = 0;
        for (int threads = 1; threads < 6; threads++) {
            assert_int_equal(ops_run(&c, IM_KERNELS_FAST, threads, IM_ISA_COUNT), IM_OK);
            double now = ((double *)(void *)c.got[1])[0];
            if (threads == 1)
                first = now;
            assert_memory_equal(&first, &now, sizeof now);
        }
        ops_free(&c);
    }
    ops_case c = ops_new(ctx, &im_op_sumsq);
    ops_operand(&c, im_view_1d(IM_F32, 100000), 1);
    ops_operand(&c, im_view_1d(IM_F64, 1), 9);
    set(&c, 0, 77777, 1e30); /* its square is no fp32 */
    ops_check(&c, 0, 1e-12);
    assert_true(fabs(((double *)(void *)c.got[1])[0] / 1e60 - 1.0) < 1e-6);
    set(&c, 0, 5, NAN);
    ops_check(&c, 0, 0);
    set(&c, 0, 5, INFINITY);
    ops_check(&c, 0, 0);
    ops_free(&c);
}

/* ---- adamw ------------------------------------------------------------------------------------------------------------- */

static ops_case adamw_case(int64_t n, im_dtype t, double step, uint64_t seed)
{
    ops_case c = ops_new(ctx, &im_op_adamw);
    ops_operand(&c, im_view_1d(t, n), seed);
    ops_operand(&c, t == IM_BF16 ? im_view_1d(IM_F32, n) : (im_view){0}, seed + 1);
    for (uint64_t i = 2; i < 5; i++)
        ops_operand(&c, im_view_1d(IM_F32, n), seed + i);
    for (int64_t i = 0; i < n; i++)
        set(&c, 3, i, 0.01 * fabs(ops_value(&c.args.v[3], c.init[3], i)));
    ops_operand(&c, im_view_1d(IM_F64, 8), seed);
    ops_operand(&c, im_view_1d(IM_F64, 8), seed);
    set(&c, 5, IM_CLIP_SCALE, 0.25);
    set(&c, 5, IM_CLIP_FINITE, 1);
    set(&c, 5, IM_CLIP_T, step);
    set(&c, 6, IM_HYPER_LR, 1e-3);
    c.args.f[0] = 0.9;
    c.args.f[1] = 0.95;
    c.args.f[2] = 1e-8;
    c.args.f[3] = 0.1;
    return c;
}

static void adamw_fast_is_plain(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 15, 16, 17, 1000, 50001};
    for (size_t s = 0; s < IM_COUNT_OF(sizes); s++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            ops_case c = adamw_case(sizes[s], bf16 ? IM_BF16 : IM_F32, 3, s);
            ops_check(&c, 2e-7, bf16 ? 0x1p-7 : 1e-6);
            set(&c, 5, IM_CLIP_FINITE, 0);
            ops_check(&c, 0, 0);
            for (int i = 0; i < c.args.n; i++)
                if (c.init[i] != NULL)
                    assert_memory_equal(c.got[i], c.init[i], c.nbytes[i]);
            ops_free(&c);
        }
}

/* The mark: set by a weight that stops being finite, wherever it lies; not by one that was none before, and never taken back. */
static void adamw_marks_bad_weights(void **state)
{
    (void)state;
    enum { N = 50001 };
    static const int64_t at[] = {0, 7, 16384, N - 1};
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < IM_COUNT_OF(at); i++)
                for (int was_bad = 0; was_bad < 3; was_bad++) { /* finite; NaN before; finite, but the mark is set already */
                    ops_case c = adamw_case(N, bf16 ? IM_BF16 : IM_F32, 3, 1);
                    ops_operand(&c, im_view_1d(IM_F64, 1), 9);
                    set(&c, 7, 0, was_bad == 2);
                    if (was_bad < 2) {
                        set(&c, bf16 ? 1 : 0, at[i], was_bad ? NAN : 3e38);
                        set(&c, 6, IM_HYPER_LR, -20); /* weight decay the wrong way: three times as large */
                    }
                    assert_int_equal(ops_run(&c, k ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 2, IM_ISA_COUNT), IM_OK);
                    assert_true(ops_value(&c.args.v[7], c.got[7], 0) == (was_bad != 1));
                    ops_free(&c);
                }
}

/* One element in double, from the paper's formulas. */
static void adamw_values(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        ops_case c = adamw_case(20, IM_F32, 7, 3);
        assert_int_equal(ops_run(&c, k ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 1, IM_ISA_COUNT), IM_OK);
        for (int64_t i = 0; i < 20; i++) {
            double w = ops_value(&c.args.v[0], c.init[0], i), m = ops_value(&c.args.v[2], c.init[2], i), v = ops_value(&c.args.v[3], c.init[3], i);
            double g = 0.25 * ops_value(&c.args.v[4], c.init[4], i);
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            w = w - 1e-3 * 0.1 * w - 1e-3 * (m / (1 - pow(0.9, 7))) / (sqrt(v / (1 - pow(0.95, 7))) + 1e-8);
            assert_true(fabs(ops_value(&c.args.v[0], c.got[0], i) - w) < 2e-7);
            assert_true(fabs(ops_value(&c.args.v[2], c.got[2], i) - m) < 2e-7);
            assert_true(fabs(ops_value(&c.args.v[3], c.got[3], i) - v) < 2e-7);
        }
        ops_free(&c);
    }
}

/* An update of 2^-10 to a bf16 weight of 1.0, whose next value below is 1 - 2^-8: four of them move it, none is lost. */
static void adamw_small_updates_are_kept(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        ops_case c = adamw_case(40, IM_BF16, 1, 1);
        c.args.f[3] = 0;
        set(&c, 6, IM_HYPER_LR, 0x1p-10);
        for (int64_t i = 0; i < 40; i++) {
            set(&c, 0, i, 1.0);
            set(&c, 1, i, 1.0);
            set(&c, 2, i, 0);
            set(&c, 3, i, 0);
            set(&c, 4, i, 1.0);
        }
        for (int step = 1; step <= 4; step++) {
            set(&c, 5, IM_CLIP_T, step);
            assert_int_equal(ops_run(&c, k ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 1, IM_ISA_COUNT), IM_OK);
            for (int i = 0; i < 4; i++)
                memcpy(c.init[i], c.got[i], c.nbytes[i]);
            for (int64_t i = 0; i < 40; i++)
                assert_true(fabs(ops_value(&c.args.v[1], c.got[1], i) - (1.0 - step * 0x1p-10)) < 1e-6);
        }
        for (int64_t i = 0; i < 40; i++)
            assert_true(ops_value(&c.args.v[0], c.got[0], i) == 1.0 - 0x1p-8);
        ops_free(&c);
    }
}

/* ---- finite ------------------------------------------------------------------------------------------------------------ */

static void finite_finds_the_first(void **state)
{
    (void)state;
    const im_dtype types[] = {IM_F32, IM_BF16, IM_F16, IM_F64};
    const int64_t places[] = {-1, 0, 1, 4095, 4096, 20000, 39999};
    for (size_t t = 0; t < 4; t++)
        for (size_t p = 0; p < IM_COUNT_OF(places); p++) {
            ops_case c = ops_new(ctx, &im_op_finite);
            ops_operand(&c, im_view_1d(types[t], 40000), p);
            ops_operand(&c, im_view_1d(IM_F64, 2), 9);
            if (places[p] >= 0) {
                set(&c, 0, places[p], p & 1 ? -INFINITY : NAN);
                set(&c, 0, 39999, INFINITY);
            }
            ops_check(&c, 0, 0);
            double at = ((double *)(void *)c.got[1])[0];
            assert_true(at == (double)places[p]);
            ops_free(&c);
        }
    ops_case c = ops_new(ctx, &im_op_finite);
    ops_operand(&c, im_view_1d(IM_F32, 0), 1);
    ops_operand(&c, im_view_1d(IM_F64, 2), 9);
    ops_check(&c, 0, 0);
    ops_free(&c);
}

/* ---- through a device ---------------------------------------------------------------------------------------------------- */

/* (5,9) bf16 times (9,7) bf16 into c of a queue, and what was asked for wrongly. */
static void product_on_device(const im_device_config *cfg)
{
    product p = {.M = 5, .N = 7, .K = 9, .type = IM_BF16, .out = IM_F32, .tb = true, .bias = true};
    ops_case c = product_case(&p, 3);
    im_device *d;
    im_op_state *op;
    im_op_cost cost;
    im_op_now now = {0};
    im_buffer b[4];
    size_t at = 0;
    assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
    assert_int_equal(im_device_open(ctx, cfg, &d), IM_OK);
    assert_int_equal(im_op_describe(ctx, c.kind, &c.args, &cost), IM_OK);
    for (int i = 0; i < 4; i++) {
        b[i] = (im_buffer){.arena = IM_CLASS_ACTIVATIONS, .offset = at, .nbytes = c.nbytes[i]};
        at += (c.nbytes[i] + 63) / 64 * 64;
    }
    im_buffer scratch = {.arena = IM_CLASS_SCRATCH, .nbytes = cost.workspace}, small = {.arena = IM_CLASS_ACTIVATIONS, .nbytes = 8};
    assert_int_equal(im_device_reserve(d, IM_CLASS_ACTIVATIONS, at), IM_OK);
    assert_int_equal(im_device_reserve(d, IM_CLASS_SCRATCH, cost.workspace), IM_OK);
    assert_int_equal(im_op_prepare(d, c.kind, &c.args, &op), IM_OK);
    im_queue *q = im_device_queue(d, IM_QUEUE_COMPUTE);
    for (int i = 0; i < 4; i++)
        assert_int_equal(im_queue_upload(q, b[i], c.init[i], c.nbytes[i]), IM_OK);
    assert_int_equal(im_op_run(op, q, b, scratch, &now, 7), IM_OK);
    unsigned char *want = ops_alloc(c.nbytes[2]);
    memcpy(want, c.got[2], c.nbytes[2]);
    assert_int_equal(im_queue_download(q, c.got[2], b[2], c.nbytes[2]), IM_OK);
    assert_int_equal(im_device_sync(d), IM_OK);
    ops_compare(&c, 2, want, 1e-5, 1e-6);
    free(want);
    im_buffer keep = b[1];
    b[1] = small;
    assert_int_equal(im_op_run(op, q, b, scratch, &now, 7), IM_ERR_INTERNAL);
    assert_non_null(strstr(im_error_text(ctx), "operand b has 8 bytes"));
    im_error_clear(ctx);
    b[1] = keep;
    if (cfg->kernels == IM_KERNELS_FAST && im_op_workspace(c.kind, &c.args, IM_KERNELS_FAST, 1) > 0) {
        assert_int_equal(im_op_run(op, q, b, (im_buffer){0}, &now, 7), IM_ERR_INTERNAL);
        im_error_clear(ctx);
    }
    im_op_destroy(op);
    im_device_close(d);
    ops_free(&c);
}

static void runs_on_queues(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++)
        product_on_device(&(im_device_config){.deferred = form & 1, .threads = 2, .kernels = form & 2 ? IM_KERNELS_PLAIN : IM_KERNELS_FAST});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(fp16_round_trip),
        cmocka_unit_test(fill_all_types),
        cmocka_unit_test(copy_types_and_strides),
        cmocka_unit_test(add_aliases),
        cmocka_unit_test(matmul_all_forms),
        cmocka_unit_test(matmul_panels),
        cmocka_unit_test(matmul_empty),
        cmocka_unit_test(matmul_not_finite),
        cmocka_unit_test(matmul_odd_strides),
        cmocka_unit_test(matmul_values),
        cmocka_unit_test(matmul_accumulates_small_parts),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(describe_costs),
        cmocka_unit_test(colsum_shapes),
        cmocka_unit_test(sumsq_is_the_same_for_any_team),
        cmocka_unit_test(adamw_fast_is_plain),
        cmocka_unit_test(adamw_marks_bad_weights),
        cmocka_unit_test(adamw_values),
        cmocka_unit_test(adamw_small_updates_are_kept),
        cmocka_unit_test(finite_finds_the_first),
        cmocka_unit_test(runs_on_queues),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
