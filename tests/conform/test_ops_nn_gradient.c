/* Every backward op against numerical derivatives of its plain forward.
 *
 * The function is F(x) = sum over y of weight * y(x) with random weights, which are what the backward op gets as dy. F is summed in f64 and
 * differentiated by the five-point rule, whose error is h^4; the noise is that of outputs stored in fp32, divided by h.
 */
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

/* Offset of the n-th element of a view, row-major. */
static int64_t element(const im_view *v, int64_t n)
{
    int64_t at = v->offset;
    for (int d = v->ndim - 1; d >= 0; d--) {
        at += n % v->shape[d] * v->stride[d];
        n /= v->shape[d];
    }
    return at;
}

static double weighted(ops_case *f, int y, const im_view *wv, const void *w)
{
    assert_int_equal(ops_run(f, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
    const im_view *v = &f->args.v[y];
    double sum = 0.0;
    for (int64_t n = 0; n < im_view_count(v); n++)
        sum += ops_value(v, f->got[y], element(v, n)) * (w ? ops_value(wv, w, element(wv, n)) : 1.0);
    return sum;
}

/* dF/d(operand x of f) must be operand dx of b, which has run. Operand dy of b holds the weights (-1: all 1). */
static void compare(ops_case *f, int x, int y, const ops_case *b, int dy, int dx, double tolerance)
{
    const double h = 1.0 / 32;
    const im_view *v = &f->args.v[x];
    const im_view *wv = dy >= 0 ? &b->args.v[dy] : NULL;
    const void *w = dy >= 0 ? b->init[dy] : NULL;
    float *values = (float *)(void *)f->init[x];
    assert_int_equal(im_view_count(v), im_view_count(&b->args.v[dx]));
    for (int64_t n = 0; n < im_view_count(v); n++) {
        float *at = &values[element(v, n)], x0 = *at;
        double value[4];
        for (int i = 0; i < 4; i++) {
            *at = x0 + (float)((i < 2 ? i - 2 : i - 1) * h);
            value[i] = weighted(f, y, wv, w);
        }
        *at = x0;
        double slope = (value[0] - 8.0 * value[1] + 8.0 * value[2] - value[3]) / (12.0 * h);
        double got = ops_value(&b->args.v[dx], b->got[dx], element(&b->args.v[dx], n));
        if (fabs(got - slope) > tolerance * (1.0 + fabs(slope)))
            fail_msg("%s: operand %d, element %lld: %.8g, the slope is %.8g", im_op_name(b->kind), dx, (long long)n, got, slope);
    }
}

static void backward(ops_case *b, im_kernels kernels)
{
    assert_int_equal(ops_run(b, kernels, 2, IM_ISA_COUNT), IM_OK);
}

/* Operand i of a takes the initial bytes (or the results) of operand j of b: the same view. */
static void share(ops_case *a, int i, const ops_case *b, int j, bool result)
{
    assert_int_equal(a->nbytes[i], b->nbytes[j]);
    memcpy(a->init[i], result ? b->got[j] : b->init[j], a->nbytes[i]);
}

static void embed_slopes(void **state)
{
    (void)state;
    ops_case f = ops_new(ctx, &im_op_embed), b = ops_new(ctx, &im_op_embed_grad);
    ops_operand(&f, im_view_1d(IM_I32, 9), 1);
    ops_operand(&f, im_view_2d(IM_F32, 7, 5), 2);
    ops_operand(&f, im_view_2d(IM_F32, 9, 5), 3);
    f.args.f[0] = 1.0;
    ops_operand(&b, im_view_1d(IM_I32, 9), 1);
    ops_operand(&b, im_view_2d(IM_F32, 9, 5), 4);
    ops_operand(&b, im_view_2d(IM_F32, 7, 5), 5);
    backward(&b, IM_KERNELS_PLAIN);
    compare(&f, 1, 2, &b, 1, 2, 2e-5);
    ops_free(&f);
    ops_free(&b);
}

static void norm_slopes(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int kernels = 0; kernels < 2; kernels++) {
            ops_case f = ops_new(ctx, &im_op_norm), b = ops_new(ctx, &im_op_norm_grad);
            int64_t n = 4, D = 11, nstat = kind == IM_NORM_LAYER ? 2 : 1;
            ops_operand(&f, im_view_2d_stride(IM_F32, n, D, D + 2, 1), 1);
            ops_operand(&f, im_view_1d(IM_F32, D), 2);
            ops_operand(&f, im_view_1d(IM_F32, D), 3);
            ops_operand(&f, im_view_2d(IM_F32, n, D), 4);
            ops_operand(&f, im_view_2d(IM_F32, n, nstat), 5);
            f.args.f[0] = 0.1; /* keeps the higher derivatives small */
            f.args.i[1] = b.args.i[1] = kind;
            assert_int_equal(ops_run(&f, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
            ops_operand(&b, f.args.v[0], 6);
            ops_operand(&b, f.args.v[1], 7);
            ops_operand(&b, f.args.v[4], 8);
            ops_operand(&b, im_view_2d(IM_F32, n, D), 9);
            ops_operand(&b, im_view_2d(IM_F32, n, D), 10);
            ops_operand(&b, im_view_1d(IM_F32, D), 11);
            ops_operand(&b, im_view_1d(IM_F32, D), 12);
            share(&b, 0, &f, 0, false);
            share(&b, 1, &f, 1, false);
            share(&b, 2, &f, 4, true);
            backward(&b, (im_kernels)kernels);
            compare(&f, 0, 3, &b, 3, 4, 1e-4);
            compare(&f, 1, 3, &b, 3, 5, 3e-5);
            compare(&f, 2, 3, &b, 3, 6, 3e-5);
            ops_free(&f);
            ops_free(&b);
        }
}

/* The backward of a rotation is the inverse rotation of dy. */
static void rope_slopes(void **state)
{
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        ops_case f = ops_new(ctx, &im_op_rope), b = ops_new(ctx, &im_op_rope);
        for (int back = 0; back < 2; back++) {
            ops_case *c = back ? &b : &f;
            ops_operand(c, im_view_make(IM_F32, 3, (int64_t[]){3, 2, 10}), 1 + (uint64_t)back);
            ops_operand(c, im_view_make(IM_F32, 3, (int64_t[]){3, 2, 10}), 3);
            ops_operand(c, im_view_1d(IM_I32, 3), 4);
            ops_operand(c, im_view_2d(IM_F32, 7, 8), 5);
            c->args.i[0] = back;
            c->args.i[1] = pairs;
        }
        backward(&b, IM_KERNELS_FAST);
        compare(&f, 0, 1, &b, 0, 1, 2e-5);
        ops_free(&f);
        ops_free(&b);
    }
}

static void act_slopes(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) /* relu has a corner: its slope is checked in the conformance */
        for (int gated = 0; gated < 2; gated++)
            for (int kernels = 0; kernels < 2; kernels++) {
                ops_case f = ops_new(ctx, gated ? &im_op_glu : &im_op_act), b = ops_new(ctx, gated ? &im_op_glu_grad : &im_op_act_grad);
                int64_t F = 13;
                im_view x = im_view_2d(IM_F32, 3, gated ? 2 * F : F);
                ops_operand(&f, x, 1);
                for (int64_t e = 0; e < im_view_count(&x); e++)
                    ((float *)(void *)f.init[0])[e] *= 4.0f;
                ops_operand(&f, im_view_2d(IM_F32, 3, F), 2);
                ops_operand(&b, x, 1);
                share(&b, 0, &f, 0, false);
                ops_operand(&b, im_view_2d(IM_F32, 3, F), 3);
                ops_operand(&b, x, 4);
                f.args.i[0] = b.args.i[0] = kind;
                backward(&b, (im_kernels)kernels);
                compare(&f, 0, 1, &b, 1, 2, 5e-5);
                ops_free(&f);
                ops_free(&b);
            }
}

static void dropout_slopes(void **state)
{
    (void)state;
    ops_case f = ops_new(ctx, &im_op_dropout), b = ops_new(ctx, &im_op_dropout);
    for (int back = 0; back < 2; back++) {
        ops_case *c = back ? &b : &f;
        ops_operand(c, im_view_2d(IM_F32, 6, 9), 1 + (uint64_t)back);
        ops_operand(c, im_view_2d(IM_F32, 6, 9), 3);
        ops_operand(c, back ? absent : im_view_2d(IM_F32, 6, 9), 4);
        c->args.f[0] = 0.4;
        c->args.i[0] = 5;
        c->args.i[2] = 3;
        c->now.sample0 = 17;
    }
    backward(&b, IM_KERNELS_FAST);
    compare(&f, 0, 1, &b, 0, 1, 2e-5);
    ops_free(&f);
    ops_free(&b);
}

static void xent_slopes(void **state)
{
    (void)state;
    for (int kernels = 0; kernels < 2; kernels++)
        for (int smooth = 0; smooth < 2; smooth++) {
            ops_case f = ops_new(ctx, &im_op_xent);
            ops_operand(&f, im_view_2d(IM_F32, 5, 9), 1);
            ops_operand(&f, im_view_1d(IM_I32, 5), 2);
            ops_operand(&f, im_view_1d(IM_F64, 1), 3);
            ops_operand(&f, im_view_2d(IM_F32, 5, 9), 4);
            ((int32_t *)(void *)f.init[1])[3] = -1;
            f.args.i[0] = 7;
            f.args.f[0] = smooth * 0.2;
            ops_case b = f;
            for (int i = 0; i < 4; i++) {
                b.init[i] = ops_alloc(b.nbytes[i]);
                b.got[i] = ops_alloc(b.nbytes[i]);
                memcpy(b.init[i], f.init[i], b.nbytes[i]);
            }
            backward(&b, (im_kernels)kernels);
            compare(&f, 0, 2, &b, -1, 3, 2e-6);
            ops_free(&f);
            ops_free(&b);
        }
}

enum { POS_Q = 3, POS_K, SEG_Q, SEG_K, O, LSE };

static void attention_one(int64_t Tq, int64_t Tk, int64_t window, bool seg, double drop, im_kernels kernels)
{
    enum { B = 2, H = 2, KV = 1, E = 3 };
    ops_case f = ops_new(ctx, &im_op_attention), b = ops_new(ctx, &im_op_attention_grad);
    im_view q = im_view_make(IM_F32, 4, (int64_t[]){B, Tq, H, E}), k = im_view_make(IM_F32, 4, (int64_t[]){B, Tk, KV, E});
    for (int back = 0; back < 2; back++) {
        ops_case *c = back ? &b : &f;
        ops_operand(c, q, 1);
        ops_operand(c, k, 2);
        ops_operand(c, k, 3);
        for (int i = 0; i < 4; i++) {
            int64_t T = i % 2 ? Tk : Tq;
            ops_operand(c, i < 2 || seg ? im_view_2d(IM_I32, B, T) : absent, 4);
            for (int64_t e = 0; c->init[POS_Q + i] && e < B * T; e++) {
                int32_t pos = (int32_t)(e % T + (i % 2 ? 0 : Tk - Tq));
                ((int32_t *)(void *)c->init[POS_Q + i])[e] = i < 2 ? pos : pos / 3;
            }
        }
        ops_operand(c, q, 5);
        ops_operand(c, im_view_make(IM_F32, 3, (int64_t[]){B, Tq, H}), 6);
        c->args.f[0] = 0.7;
        c->args.f[1] = drop;
        c->args.i[0] = 1;
        c->args.i[1] = window;
        c->args.i[2] = 3;
    }
    assert_int_equal(ops_run(&f, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
    ops_operand(&b, q, 7);
    ops_operand(&b, q, 8);
    ops_operand(&b, k, 9);
    ops_operand(&b, k, 10);
    share(&b, O, &f, O, true);
    share(&b, LSE, &f, LSE, true);
    backward(&b, kernels);
    for (int i = 0; i < 3; i++)
        compare(&f, i, O, &b, 9, 10 + i, 6e-5);
    ops_free(&f);
    ops_free(&b);
}

static void attention_slopes(void **state)
{
    (void)state;
    for (int kernels = 0; kernels < 2; kernels++) {
        attention_one(7, 7, 0, false, 0.0, (im_kernels)kernels);
        attention_one(7, 7, 3, true, 0.0, (im_kernels)kernels);
        attention_one(5, 8, 0, false, 0.4, (im_kernels)kernels);
        attention_one(10, 6, 0, true, 0.2, (im_kernels)kernels); /* the first queries see nothing */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_slopes),   cmocka_unit_test(norm_slopes), cmocka_unit_test(rope_slopes),      cmocka_unit_test(act_slopes),
        cmocka_unit_test(dropout_slopes), cmocka_unit_test(xent_slopes), cmocka_unit_test(attention_slopes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
