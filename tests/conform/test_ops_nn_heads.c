/* head_sum, head_norm and its gradient: fast against plain, plain against numbers worked out here. */
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

/* (n,H,E) in rows of a fused buffer */
static im_view heads(im_dtype t, int64_t n, int64_t H, int64_t E, int64_t gap)
{
    return (im_view){.ndim = 3, .dtype = (uint8_t)t, .shape = {n, H, E}, .stride = {H * E + gap, E, 1}, .offset = gap};
}

static double tolerance(im_dtype t)
{
    return t == IM_BF16 ? 1.0 / 100 : 2e-5;
}

/* squares and along: positive numbers of their own, for they need not be those of the heads here */
static void positive(ops_case *c, int operand)
{
    for (int64_t r = 0; c->init[operand] && r < c->args.v[operand].shape[0]; r++)
        ((float *)(void *)c->init[operand])[r] = 2.0f + (float)(r % 5);
}

static ops_case norm_case(im_dtype t, int64_t n, int64_t H, int64_t E, bool all, bool grad)
{
    ops_case c = ops_new(ctx, grad ? &im_op_head_norm_grad : &im_op_head_norm);
    int64_t width = all ? H * E : E;
    ops_operand(&c, heads(t, n, H, E, 5), 1);
    ops_operand(&c, im_view_1d(t, width), 2);
    ops_operand(&c, heads(t, n, H, E, 3), 3);
    if (grad) {
        ops_operand(&c, heads(t, n, H, E, 2), 4);
        ops_operand(&c, im_view_1d(IM_F32, width), 5);
    }
    for (int i = 0; i < 1 + grad; i++) {
        ops_operand(&c, all ? im_view_1d(IM_F32, n) : absent, 6);
        positive(&c, c.args.n - 1);
    }
    c.args.f[0] = 1e-3;
    c.args.f[1] = 0.5;
    c.args.i[1] = 3 * H * E; /* a third of the heads are here */
    return c;
}

static void agrees(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{0, 2, 8}, {1, 1, 1}, {3, 2, 7}, {17, 3, 16}, {70, 5, 33}, {130, 2, 64}};
    for (size_t i = 0; i < IM_COUNT_OF(shapes); i++)
        for (int flags = 0; flags < 16; flags++) {
            im_dtype t = flags & 1 ? IM_BF16 : IM_F32;
            ops_case c = norm_case(t, shapes[i][0], shapes[i][1], shapes[i][2], flags & 2, flags & 4);
            c.args.i[0] = (flags & 12) == 12;
            ops_check(&c, tolerance(t), tolerance(t));
            if (flags & 8) { /* in place: y over x, dx over dy */
                int over = flags & 4 ? 3 : 2, under = flags & 4 ? 2 : 0;
                c.args.v[over] = c.args.v[under];
                c.alias[over] = under;
                unsigned char *want = ops_alloc(c.nbytes[under]);
                assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
                memcpy(want, c.got[under], c.nbytes[under]);
                assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
                ops_compare(&c, under, want, tolerance(t), tolerance(t));
                free(want);
            }
            ops_free(&c);
        }
}

static void sums_agree(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{0, 2, 8}, {1, 1, 1}, {33, 3, 7}, {17, 2, 48}};
    for (size_t i = 0; i < IM_COUNT_OF(shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            im_dtype t = flags & 1 ? IM_BF16 : IM_F32;
            ops_case c = ops_new(ctx, &im_op_head_sum);
            ops_operand(&c, heads(t, shapes[i][0], shapes[i][1], shapes[i][2], 4), 1);
            ops_operand(&c, heads(t, shapes[i][0], shapes[i][1], shapes[i][2], 1), 2);
            ops_operand(&c, flags & 2 ? im_view_1d(t, shapes[i][1] * shapes[i][2]) : absent, 3);
            ops_operand(&c, im_view_1d(IM_F32, shapes[i][0]), 4);
            c.args.f[0] = 0.25;
            ops_check(&c, 1e-5, 1e-5);
            ops_free(&c);
        }
}

/* Two heads of (3,4) and (0,5): rms sqrt(12.5) each alone, together too; weights 2 and 10. */
static void known_numbers(void **state)
{
    (void)state;
    const float x[] = {3, 4, 0, 5}, w[] = {2, 10, 2, 10};
    for (int all = 0; all < 2; all++) {
        ops_case c = ops_new(ctx, &im_op_head_norm);
        ops_operand(&c, heads(IM_F32, 1, 2, 2, 0), 1);
        ops_operand(&c, im_view_1d(IM_F32, all ? 4 : 2), 2);
        ops_operand(&c, heads(IM_F32, 1, 2, 2, 0), 3);
        ops_operand(&c, all ? im_view_1d(IM_F32, 1) : absent, 4);
        memcpy(c.init[0], x, sizeof x);
        memcpy(c.init[1], w, sizeof(float) * (all ? 4 : 2));
        if (all)
            *(float *)(void *)c.init[3] = 50;
        c.args.i[1] = 4;
        assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
        for (int i = 0; i < 4; i++)
            assert_float_equal(((float *)(void *)c.got[2])[i], x[i] * w[i] / sqrtf(12.5f), 1e-6);
        ops_free(&c);
    }
}

/* The gradient against differences, heads alone and all together. */
static void gradient_is_the_slope(void **state)
{
    (void)state;
    enum { N = 2, H = 3, E = 4, C = H * E };
    for (int all = 0; all < 2; all++) {
        double x[N * C], w[C], dy[N * C];
        uint64_t seed = 3;
        for (int i = 0; i < N * C; i++)
            x[i] = ops_uniform(&seed), dy[i] = ops_uniform(&seed);
        for (int i = 0; i < C; i++)
            w[i] = 1 + 0.3 * ops_uniform(&seed);
        ops_case c = ops_new(ctx, &im_op_head_norm_grad);
        int64_t width = all ? C : E;
        for (int i = 0; i < 4; i++)
            ops_operand(&c, i == 1 ? im_view_1d(IM_F32, width) : heads(IM_F32, N, H, E, 0), 1);
        ops_operand(&c, im_view_1d(IM_F32, width), 5);
        for (int i = 0; i < 2; i++)
            ops_operand(&c, all ? im_view_1d(IM_F32, N) : absent, 6);
        for (int i = 0; i < N * C; i++) {
            im_store(IM_F32, c.init[0], i, (float)x[i]);
            im_store(IM_F32, c.init[2], i, (float)dy[i]);
        }
        for (int i = 0; i < width; i++)
            im_store(IM_F32, c.init[1], i, (float)w[i]);
        for (int r = 0; all && r < N; r++) {
            double squares = 0, along = 0;
            for (int i = 0; i < C; i++) {
                squares += x[r * C + i] * x[r * C + i];
                along += x[r * C + i] * dy[r * C + i] * w[i];
            }
            im_store(IM_F32, c.init[5], r, (float)squares);
            im_store(IM_F32, c.init[6], r, (float)along);
        }
        c.args.f[0] = 0.01;
        c.args.f[1] = 1;
        c.args.i[1] = C;
        assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
        /* loss = sum of dy * y, by its definition */
        for (int at = 0; at < N * C + (int)width; at++) {
            double loss[2];
            for (int side = 0; side < 2; side++) {
                double *moved = at < N * C ? &x[at] : &w[at - N * C], keep = *moved;
                *moved += side ? 1e-5 : -1e-5;
                loss[side] = 0;
                for (int r = 0; r < N; r++)
                    for (int i = 0; i < C; i++) {
                        double mean = 0;
                        for (int k = 0; k < C; k++)
                            mean += all || k / E == i / E ? x[r * C + k] * x[r * C + k] / (all ? C : E) : 0;
                        loss[side] += dy[r * C + i] * w[all ? i : i % E] * x[r * C + i] / sqrt(mean + 0.01);
                    }
                *moved = keep;
            }
            double slope = (loss[1] - loss[0]) / 2e-5;
            assert_float_equal(at < N * C ? im_load(IM_F32, c.got[3], at) : im_load(IM_F32, c.got[4], at - N * C), slope, 2e-5);
        }
        ops_free(&c);
    }
}

static void refuses(void **state)
{
    (void)state;
    im_op_cost cost;
    ops_case c = norm_case(IM_F32, 4, 2, 8, true, true);
    assert_int_equal(im_op_describe(ctx, &im_op_head_norm_grad, &c.args, &cost), IM_OK);
    im_op_args bad = c.args;
    bad.v[6].ndim = 0;
    assert_int_equal(im_op_describe(ctx, &im_op_head_norm_grad, &bad, &cost), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(ctx), "come together"));
    im_error_clear(ctx);
    bad = c.args;
    bad.v[1] = im_view_1d(IM_F32, 8); /* one head's, with squares */
    assert_int_equal(im_op_describe(ctx, &im_op_head_norm_grad, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    bad = c.args;
    bad.i[1] = 0;
    assert_int_equal(im_op_describe(ctx, &im_op_head_norm_grad, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    bad = c.args;
    bad.v[2].dtype = IM_BF16;
    assert_int_equal(im_op_describe(ctx, &im_op_head_norm_grad, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    ops_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees),  cmocka_unit_test(sums_agree), cmocka_unit_test(known_numbers), cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
