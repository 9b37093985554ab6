/* xent, count, clip, sample: fast against plain, and both against values worked out here. */
#include "conform/ops_case.h"

#include "tensor/cpu/nn_kernels.h"

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
enum { LOGITS, TARGET, LOSS, GRAD, ROW };

static float *floats(ops_case *c, int operand)
{
    return (float *)(void *)c->init[operand];
}
static int32_t *ints(ops_case *c, int operand)
{
    return (int32_t *)(void *)c->init[operand];
}
static double loss_of(const ops_case *c)
{
    return *(const double *)(const void *)c->got[LOSS];
}

/* Logits in [-scale, scale); one target in five is not counted. */
static ops_case xent_new(im_dtype t, int64_t n, int64_t V, int64_t gap, double smooth, float scale)
{
    ops_case c = ops_new(ctx, &im_op_xent);
    ops_operand(&c, im_view_2d_stride(IM_F32, n, V + gap, V + gap + 3, 2), 11);
    ops_operand(&c, im_view_1d(IM_I32, n), 12);
    ops_operand(&c, im_view_1d(IM_F64, 1), 13);
    ops_operand(&c, im_view_2d_stride(t, n, V + gap, V + gap + 1, 1), 14);
    ops_operand(&c, im_view_1d(IM_F32, n), 15);
    for (int64_t e = 0; e < n * (V + gap + 3); e++)
        floats(&c, LOGITS)[e] *= scale;
    for (int64_t r = 0; r < n; r++)
        ints(&c, TARGET)[r] = r % 5 == 3 ? -1 - (int32_t)r : (int32_t)((r * 7919) % V);
    c.args.i[0] = V;
    c.args.f[0] = smooth;
    return c;
}

static void xent_agrees(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 7, 16, 31, 33, 64, 513, 1100};
    for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
        for (int flags = 0; flags < 16; flags++) {
            im_dtype t = flags & 1 ? IM_BF16 : IM_F32;
            ops_case c = xent_new(t, 11, sizes[i], flags & 2 ? 5 : 0, flags & 4 ? 0.1 : 0.0, flags & 8 ? 30.0f : 2.0f);
            c.args.i[1] = (flags >> 2) & 1;
            ops_check(&c, t == IM_BF16 ? 4e-3 : 5e-7, t == IM_BF16 ? 1.0 / 128 : 2e-6);
            ops_free(&c);
        }
    ops_case c = xent_new(IM_F32, 0, 9, 0, 0.0, 1.0f);
    ops_check(&c, 0, 0);
    assert_true(loss_of(&c) == 0.0);
    ops_free(&c);
}

static void xent_only_the_loss(void **state)
{
    (void)state;
    ops_case c = xent_new(IM_F32, 6, 40, 3, 0.1, 3.0f);
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    double want = loss_of(&c);
    c.args.v[GRAD] = c.args.v[ROW] = absent;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    assert_true(loss_of(&c) == want);
    ops_free(&c);
}

/* dlogits over the logits: the same values; and the f64 sum has one order whatever the threads. */
static void xent_in_place(void **state)
{
    (void)state;
    ops_case c = xent_new(IM_F32, 23, 700, 4, 0.1, 5.0f);
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    double want = loss_of(&c);
    c.args.v[GRAD] = c.args.v[LOGITS];
    c.alias[GRAD] = LOGITS;
    unsigned char *grad = ops_alloc(c.nbytes[GRAD]);
    memcpy(grad, c.got[GRAD], c.nbytes[GRAD]);
    for (int threads = 1; threads <= 4; threads++) {
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, threads, IM_ISA_COUNT), IM_OK);
        assert_true(loss_of(&c) == want);
        for (int64_t r = 0; r < 23; r++)
            assert_memory_equal(c.got[LOGITS] + (2 + r * 707) * 4, grad + (1 + r * 705) * 4, 704 * 4);
    }
    free(grad);
    ops_free(&c);
}

/* B05: 8 words, 6 positions, smoothing 0 and 0.1, logits times 1 and 1000: finite, and equal to the definition in f64. */
static void xent_label_smoothing(void **state)
{
    (void)state;
    for (int kernels = 0; kernels < 2; kernels++)
        for (int flags = 0; flags < 4; flags++) {
            double smooth = flags & 1 ? 0.1 : 0.0, want = 0.0;
            ops_case c = xent_new(IM_F32, 6, 8, 0, smooth, flags & 2 ? 1000.0f : 1.0f);
            for (int64_t r = 0; r < 6; r++)
                ints(&c, TARGET)[r] = (int32_t)(r % 8);
            assert_int_equal(ops_run(&c, (im_kernels)kernels, 2, IM_ISA_COUNT), IM_OK);
            *(double *)(void *)c.init[LOSS] = 0.0;
            for (int64_t r = 0; r < 6; r++) {
                const float *z = floats(&c, LOGITS) + 2 + r * 11;
                double top = -INFINITY, sum = 0.0, logp[8];
                for (int j = 0; j < 8; j++)
                    top = fmax(top, z[j]);
                for (int j = 0; j < 8; j++)
                    sum += exp(z[j] - top);
                for (int j = 0; j < 8; j++) {
                    logp[j] = z[j] - top - log(sum);
                    want -= smooth / 8 * logp[j] + (j == r % 8 ? (1.0 - smooth) * logp[j] : 0.0);
                }
                for (int j = 0; j < 8; j++) {
                    double g = exp(logp[j]) - smooth / 8 - (j == r % 8 ? 1.0 - smooth : 0.0);
                    float got = ((const float *)(void *)c.got[GRAD])[1 + r * 9 + j];
                    assert_true(isfinite(got));
                    assert_float_equal(got, g, 3e-7);
                }
            }
            assert_true(isfinite(loss_of(&c)));
            assert_float_equal(loss_of(&c) / want, 1.0, 1e-6);
            ops_free(&c);
        }
}

/* Columns beyond the real vocabulary: nothing there matters, and their gradient is 0. */
static void xent_padding_columns(void **state)
{
    (void)state;
    double loss[2];
    for (int round = 0; round < 2; round++) {
        ops_case c = xent_new(IM_F32, 7, 13, 3, 0.1, 2.0f);
        for (int64_t r = 0; round == 1 && r < 7; r++)
            for (int j = 13; j < 16; j++)
                floats(&c, LOGITS)[2 + r * 19 + j] = j == 14 ? NAN : 1e30f;
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
        loss[round] = loss_of(&c);
        for (int64_t r = 0; r < 7; r++)
            for (int j = 13; j < 16; j++)
                assert_true(((const float *)(void *)c.got[GRAD])[1 + r * 17 + j] == 0.0f);
        ops_free(&c);
    }
    assert_true(loss[0] == loss[1]);
}

static void xent_not_finite(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY};
    for (size_t i = 0; i < IM_COUNT_OF(odd); i++)
        for (int kernels = 0; kernels < 2; kernels++) {
            ops_case c = xent_new(IM_F32, 5, 50, 0, 0.0, 1.0f);
            floats(&c, LOGITS)[2 + 53 + 20] = odd[i];
            assert_int_equal(ops_run(&c, (im_kernels)kernels, 1, IM_ISA_COUNT), IM_OK);
            assert_true(isnan(loss_of(&c)));
            ops_free(&c);
        }
    ops_case c = xent_new(IM_F32, 5, 50, 0, 0.0, 1.0f);
    floats(&c, LOGITS)[2 + 20] = -INFINITY; /* a masked word */
    ops_check(&c, 5e-7, 2e-6);
    assert_true(isfinite(loss_of(&c)));
    ops_free(&c);
}

static void targets_outside_the_vocabulary_fail(void **state)
{
    (void)state;
    for (int kernels = 0; kernels < 2; kernels++) {
        ops_case c = xent_new(IM_F32, 4, 10, 6, 0.0, 1.0f);
        ints(&c, TARGET)[2] = 10;
        assert_int_equal(ops_run(&c, (im_kernels)kernels, 1, IM_ISA_COUNT), IM_ERR_ARG);
        assert_string_equal(im_error_text(ctx), "xent: target 10 at row 2 is outside the vocabulary of 10");
        im_error_clear(ctx);
        ops_free(&c);
    }
}

/* ---- count, clip --------------------------------------------------------------------------------------------------------- */

static void count_counts(void **state)
{
    (void)state;
    for (int add = 0; add < 2; add++) {
        ops_case c = ops_new(ctx, &im_op_count);
        ops_operand(&c, im_view_1d(IM_I32, 9), 1);
        ops_operand(&c, im_view_1d(IM_F64, 1), 2);
        ints(&c, 0)[4] = -1;
        ints(&c, 0)[7] = -100;
        *(double *)(void *)c.init[1] = 5.0;
        c.args.i[0] = add;
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
        assert_true(*(double *)(void *)c.got[1] == (add ? 12.0 : 7.0));
        ops_free(&c);
    }
}

static void clip_run(double sumsq, double count, double loss, double limit, double t, double out[IM_CLIP_COUNT])
{
    ops_case c = ops_new(ctx, &im_op_clip);
    const double in[] = {sumsq, count, loss};
    for (int i = 0; i < 3; i++) {
        ops_operand(&c, im_view_1d(IM_F64, 1), 1);
        *(double *)(void *)c.init[i] = in[i];
    }
    ops_operand(&c, im_view_1d(IM_F64, IM_HYPER_COUNT), 2);
    ops_operand(&c, im_view_1d(IM_F64, IM_CLIP_COUNT), 3);
    ((double *)(void *)c.init[3])[IM_HYPER_CLIP] = limit;
    ((double *)(void *)c.init[4])[IM_CLIP_T] = t;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    memcpy(out, c.got[4], IM_CLIP_COUNT * sizeof *out);
    ops_free(&c);
}

static void clip_scales(void **state)
{
    (void)state;
    double out[IM_CLIP_COUNT];
    clip_run(4e4, 10, 25, 1.0, 3, out); /* norm 200/10 = 20 */
    assert_float_equal(out[IM_CLIP_NORM], 20.0, 1e-12);
    assert_float_equal(out[IM_CLIP_SCALE], 1.0 / (20.0 + 1e-6) / 10, 1e-15);
    assert_true(out[IM_CLIP_FINITE] == 1 && out[IM_CLIP_T] == 4 && out[IM_CLIP_LOSS] == 2.5 && out[IM_CLIP_TOKENS] == 10);
    clip_run(4e4, 10, 25, 0.0, 3, out); /* no clipping */
    assert_true(out[IM_CLIP_SCALE] == 0.1);
    clip_run(25, 10, 25, 1.0, 3, out); /* below the limit */
    assert_true(out[IM_CLIP_SCALE] == 0.1 && out[IM_CLIP_NORM] == 0.5);
    clip_run(0, 0, 0, 1.0, 3, out); /* no token counted: nothing to divide by */
    assert_true(out[IM_CLIP_SCALE] == 0 && out[IM_CLIP_NORM] == 0 && out[IM_CLIP_FINITE] == 1 && out[IM_CLIP_LOSS] == 0);
    clip_run(NAN, 10, 25, 1.0, 3, out);
    assert_true(out[IM_CLIP_FINITE] == 0 && out[IM_CLIP_T] == 3);
    clip_run(25, 10, INFINITY, 1.0, 3, out);
    assert_true(out[IM_CLIP_FINITE] == 0 && out[IM_CLIP_T] == 3);
}

/* ---- sample --------------------------------------------------------------------------------------------------------------- */

typedef struct sampler {
    double temperature, top_p;
    int64_t top_k, seed, pos;
} sampler;

/* Row r of n equal rows z (V real, 2 columns beyond with large logits). */
static ops_case sample_new(const float *z, int64_t V, int64_t n, sampler s)
{
    ops_case c = ops_new(ctx, &im_op_sample);
    ops_operand(&c, im_view_2d(IM_F32, n, V + 2), 1);
    ops_operand(&c, im_view_1d(IM_I32, n), 2);
    ops_operand(&c, im_view_1d(IM_F32, n), 3);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < V + 2; j++)
            floats(&c, 0)[r * (V + 2) + j] = j < V ? z[j] : 1e9f;
    c.args.f[0] = s.temperature;
    c.args.f[1] = s.top_p;
    c.args.i[0] = s.top_k;
    c.args.i[1] = s.seed;
    c.args.i[2] = V;
    c.now.pos = s.pos;
    return c;
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    const float z[] = {1.0f, 3.0f, -INFINITY, 3.0f, 2.0f};
    ops_case c = sample_new(z, 5, 3, (sampler){.top_p = 1.0});
    ops_check(&c, 0, 0);
    double sum = 0.0;
    for (int j = 0; j < 5; j++)
        sum += exp(z[j]);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(((int32_t *)(void *)c.got[1])[r], 1);
        assert_float_equal(((float *)(void *)c.got[2])[r], 3.0 - log(sum), 1e-6);
    }
    ops_free(&c);
}

/* Draws follow the distribution that temperature, top-k and top-p leave. */
static void draw_frequencies(sampler s, const float *z, int64_t V, const double *want)
{
    enum { N = 4000 };
    ops_case c = sample_new(z, V, N, s);
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 3, IM_ISA_COUNT), IM_OK);
    int32_t *first = (int32_t *)(void *)c.got[1];
    double seen[16] = {0}, plain = 0.0;
    for (int64_t j = 0; j < V; j++)
        plain += exp(z[j]);
    for (int r = 0; r < N; r++) {
        assert_in_range(first[r], 0, V - 1);
        seen[first[r]] += 1.0 / N;
        assert_float_equal(((float *)(void *)c.got[2])[r], z[first[r]] - log(plain), 1e-6); /* of the plain softmax */
    }
    for (int64_t j = 0; j < V; j++) {
        if (want[j] == 0.0)
            assert_true(seen[j] == 0.0);
        assert_float_equal(seen[j], want[j], 4.0 * sqrt(want[j] * (1 - want[j]) / N) + 1e-9);
    }
    ops_free(&c);
}

static void sampling_follows_the_filters(void **state)
{
    (void)state;
    const float z[] = {logf(1), logf(4), logf(2), logf(3)}; /* 0.1 0.4 0.2 0.3 */
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 1.0, .seed = 1}, z, 4, (double[]){0.1, 0.4, 0.2, 0.3});
    draw_frequencies((sampler){.temperature = 0.5, .top_p = 1.0, .seed = 2}, z, 4, (double[]){1 / 30.0, 16 / 30.0, 4 / 30.0, 9 / 30.0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 1.0, .top_k = 2, .seed = 3}, z, 4, (double[]){0, 4 / 7.0, 0, 3 / 7.0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 0.75, .seed = 4}, z, 4, (double[]){0, 4 / 9.0, 2 / 9.0, 3 / 9.0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 0.5, .top_k = 3, .seed = 5}, z, 4, (double[]){0, 4 / 7.0, 0, 3 / 7.0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 0.0, .seed = 6}, z, 4, (double[]){0, 1, 0, 0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 1.0, .top_k = 9, .seed = 7}, z, 4, (double[]){0.1, 0.4, 0.2, 0.3});
    const float equal[] = {0, 0, 0, 0, 0};
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 1.0, .top_k = 2, .seed = 8}, equal, 5, (double[]){0.5, 0.5, 0, 0, 0});
    draw_frequencies((sampler){.temperature = 1.0, .top_p = 0.55, .seed = 9}, equal, 5, (double[]){1 / 3.0, 1 / 3.0, 1 / 3.0, 0, 0});
}

/* The same key, the same draw; another seed, position or row, another one. Threads do not matter. */
static void sampling_is_keyed(void **state)
{
    (void)state;
    float z[50] = {0};
    int32_t first[64], other[64];
    for (int round = 0; round < 4; round++) {
        ops_case c = sample_new(z, 50, 64, (sampler){.temperature = 1.0, .top_p = 1.0, .seed = round == 2 ? 8 : 7, .pos = round == 3 ? 6 : 5});
        assert_int_equal(ops_run(&c, round ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, round ? 3 : 1, IM_ISA_COUNT), IM_OK);
        memcpy(round ? other : first, c.got[1], sizeof first);
        if (round == 1)
            assert_memory_equal(first, other, sizeof first);
        if (round > 1)
            assert_memory_not_equal(first, other, sizeof first);
        ops_free(&c);
    }
    bool differ = false;
    for (int r = 1; r < 64; r++)
        differ |= first[r] != first[0];
    assert_true(differ);
}

static void sampling_refuses_nan(void **state)
{
    (void)state;
    const float z[] = {0, 1, NAN, 3}, nothing[] = {-INFINITY, -INFINITY};
    ops_case c = sample_new(z, 4, 2, (sampler){.top_p = 1.0});
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_ERR_NONFINITE);
    assert_non_null(strstr(im_error_text(ctx), "the logit of id 2 in row"));
    im_error_clear(ctx);
    ops_free(&c);
    c = sample_new(nothing, 2, 1, (sampler){.top_p = 1.0});
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_NONFINITE);
    im_error_clear(ctx);
    ops_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xent_agrees),
        cmocka_unit_test(xent_only_the_loss),
        cmocka_unit_test(xent_in_place),
        cmocka_unit_test(xent_label_smoothing),
        cmocka_unit_test(xent_padding_columns),
        cmocka_unit_test(xent_not_finite),
        cmocka_unit_test(targets_outside_the_vocabulary_fail),
        cmocka_unit_test(count_counts),
        cmocka_unit_test(clip_scales),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(sampling_follows_the_filters),
        cmocka_unit_test(sampling_is_keyed),
        cmocka_unit_test(sampling_refuses_nan),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
