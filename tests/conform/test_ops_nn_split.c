/* Ops on a part of a vocabulary or of the rows, as a tensor-parallel rank runs them: put together they give what one op over the whole gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/layout.h"
#include "tensor/kind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static im_context *ctx;

static void call(const im_op_kind *k, const im_op_args *a, void *const *p, im_kernels kernels, const im_op_now *now)
{
    im_op_state *s = NULL;
    im_op_direct how = {.kernels = kernels, .threads = 2, .isa = IM_ISA_COUNT};
    im_op_cost cost;
    if (im_op_describe(ctx, k, a, &cost) != IM_OK || im_op_prepare_direct(ctx, k, a, &how, &s) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    void *scratch = aligned_alloc(64, cost.workspace + 64);
    if (im_op_call_direct(s, p, scratch, now) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    free(scratch);
    im_op_destroy(s);
}

static float drawn(uint64_t key, uint64_t i)
{
    uint32_t r[4];
    im_philox(key, i, 0, r);
    return im_uniform_f32(r[0]) * 2.0f - 1.0f;
}

enum { N = 9, D = 7 };

typedef struct whole {
    int64_t V;
    float *logits, *grad, row[N];
    int32_t target[N];
    double loss;
} whole;

static whole make_whole(int64_t V, double smooth, float scale, im_kernels kernels)
{
    whole w = {.V = V, .logits = malloc((size_t)(N * V) * 4), .grad = malloc((size_t)(N * V) * 4), .loss = 0};
    for (int64_t i = 0; i < N * V; i++)
        w.logits[i] = drawn(1, (uint64_t)i) * scale;
    for (int64_t r = 0; r < N; r++)
        w.target[r] = r % 4 == 2 ? -100 : (int32_t)(r * 13 % V);
    im_op_args a = {.n = 5,
                    .v = {im_view_2d(IM_F32, N, V), im_view_1d(IM_I32, N), im_view_1d(IM_F64, 1), im_view_2d(IM_F32, N, V), im_view_1d(IM_F32, N)}};
    a.i[0] = V;
    a.f[0] = smooth;
    void *p[] = {w.logits, w.target, &w.loss, w.grad, w.row};
    im_op_now now = {0};
    call(&im_op_xent, &a, p, kernels, &now);
    return w;
}

static void near(float got, float want, float scale)
{
    if (!(fabsf(got - want) <= 2e-6f * scale))
        fail_msg("%.9g where the whole gives %.9g", got, want);
}

static void compare_parts(const whole *w, int parts, double smooth, im_kernels kernels)
{
    double *stats = malloc((size_t)(parts * N * 4) * sizeof *stats), first_loss = 0;
    im_op_now now = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < parts; i++) {
            int64_t v0, end;
            im_part(w->V, parts, i, &v0, &end);
            int64_t V = end - v0;
            float *z = malloc((size_t)(N * V) * 4), *g = malloc((size_t)(N * V) * 4), row[N];
            double loss = 100;
            for (int64_t r = 0; r < N; r++)
                memcpy(z + r * V, w->logits + r * w->V + v0, (size_t)V * 4);
            im_op_args a = {.n = 3, .v = {im_view_2d(IM_F32, N, V), im_view_1d(IM_I32, N), im_view_2d(IM_F64, N, 4)}};
            a.i[0] = v0;
            a.i[2] = w->V;
            if (!pass) {
                call(&im_op_xent_stat, &a, (void *[]){z, (void *)(uintptr_t)w->target, stats + i * N * 4}, kernels, &now);
            } else {
                a.n = 6;
                a.v[2] = im_view_make(IM_F64, 3, (int64_t[]){parts, N, 4});
                a.v[3] = im_view_1d(IM_F64, 1);
                a.v[4] = im_view_2d(IM_F32, N, V);
                a.v[5] = im_view_1d(IM_F32, N);
                a.i[1] = 1; /* adds to the 100 that are there */
                a.f[0] = smooth;
                call(&im_op_xent_merge, &a, (void *[]){z, (void *)(uintptr_t)w->target, stats, &loss, g, row}, kernels, &now);
                assert_true(fabs(loss - 100 - w->loss) <= 1e-6 * fabs(w->loss));
                first_loss = i ? first_loss : loss;
                assert_true(loss == first_loss); /* the same bits on every part */
                for (int64_t r = 0; r < N; r++) {
                    near(row[r], w->row[r], 1 + fabsf(w->row[r]));
                    for (int64_t j = 0; j < V; j++)
                        near(g[r * V + j], w->grad[r * w->V + v0 + j], 1);
                }
            }
            free(z);
            free(g);
        }
    free(stats);
}

static void test_xent_parts(void **state)
{
    (void)state;
    const int64_t sizes[] = {5, 13, 101, 1030};
    for (int kernels = 0; kernels < 2; kernels++)
        for (size_t i = 0; i < IM_COUNT_OF(sizes); i++)
            for (int flags = 0; flags < 4; flags++) {
                double smooth = flags & 1 ? 0.1 : 0;
                whole w = make_whole(sizes[i], smooth, flags & 2 ? 900.0f : 3.0f, (im_kernels)kernels);
                for (int parts = 1; parts <= 5; parts++)
                    compare_parts(&w, parts, smooth, (im_kernels)kernels);
                free(w.logits);
                free(w.grad);
            }
}

static void test_xent_refuses(void **state)
{
    (void)state;
    float z[4] = {0};
    int32_t target = 9;
    double stat[4];
    im_op_args a = {.n = 3, .v = {im_view_2d(IM_F32, 1, 4), im_view_1d(IM_I32, 1), im_view_2d(IM_F64, 1, 4)}};
    im_op_cost cost;
    im_op_state *s;
    im_op_direct how = {.kernels = IM_KERNELS_FAST, .threads = 1, .isa = IM_ISA_COUNT};
    im_op_now now = {0};
    a.i[0] = 4;
    a.i[2] = 7; /* 4 + 4 > 7 */
    assert_int_equal(im_op_describe(ctx, &im_op_xent_stat, &a, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    a.i[2] = 8;
    assert_int_equal(im_op_prepare_direct(ctx, &im_op_xent_stat, &a, &how, &s), IM_OK);
    assert_int_equal(im_op_call_direct(s, (void *[]){z, &target, stat}, NULL, &now), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(ctx), "target 9"));
    im_error_clear(ctx);
    im_op_destroy(s);
}

/* The table in parts: the sum of the parts' embeddings is the whole one's, and the parts' gradients are its rows. */
static void test_embed_parts(void **state)
{
    (void)state;
    enum { V = 11 };
    float table[V * D], dy[N * D], want[N * D], grad[V * D];
    int32_t ids[N];
    im_op_now now = {0};
    for (int i = 0; i < V * D; i++)
        table[i] = drawn(3, (uint64_t)i);
    for (int i = 0; i < N * D; i++)
        dy[i] = drawn(4, (uint64_t)i);
    for (int i = 0; i < N; i++)
        ids[i] = i * 5 % V;
    for (int kernels = 0; kernels < 2; kernels++)
        for (int parts = 1; parts <= 4; parts++) {
            float sum[N * D] = {0};
            im_op_args a = {.n = 3, .v = {im_view_1d(IM_I32, N), im_view_2d(IM_F32, V, D), im_view_2d(IM_F32, N, D)}, .f = {1}};
            call(&im_op_embed, &a, (void *[]){ids, table, want}, (im_kernels)kernels, &now);
            im_op_args b = {.n = 3, .v = {im_view_1d(IM_I32, N), im_view_2d(IM_F32, N, D), im_view_2d(IM_F32, V, D)}};
            call(&im_op_embed_grad, &b, (void *[]){ids, dy, grad}, (im_kernels)kernels, &now);
            for (int i = 0; i < parts; i++) {
                int64_t v0, end;
                float part[N * D], g[V * D];
                im_part(V, parts, i, &v0, &end);
                a.v[1] = im_view_2d(IM_F32, end - v0, D);
                a.i[0] = v0;
                a.i[1] = V;
                call(&im_op_embed, &a, (void *[]){ids, table + v0 * D, part}, (im_kernels)kernels, &now);
                for (int k = 0; k < N * D; k++)
                    sum[k] += part[k];
                b.v[2] = im_view_2d(IM_F32, end - v0, D);
                b.i[1] = v0;
                b.i[2] = V;
                call(&im_op_embed_grad, &b, (void *[]){ids, dy, g}, (im_kernels)kernels, &now);
                assert_memory_equal(g, grad + v0 * D, (size_t)((end - v0) * D) * 4);
            }
            assert_memory_equal(sum, want, sizeof want);
        }
}

/* Rows in parts keep their masks. */
static void test_dropout_rows(void **state)
{
    (void)state;
    float x[N * D], want[N * D], got[N * D];
    im_op_now now = {.sample0 = 40};
    for (int i = 0; i < N * D; i++)
        x[i] = 1;
    for (int kernels = 0; kernels < 2; kernels++) {
        im_op_args a = {.n = 2, .v = {im_view_2d(IM_F32, N, D), im_view_2d(IM_F32, N, D)}, .f = {0.4}, .i = {7, 3, 4, 2}};
        call(&im_op_dropout, &a, (void *[]){x, want}, (im_kernels)kernels, &now);
        for (int parts = 2; parts <= 4; parts++)
            for (int i = 0; i < parts; i++) {
                int64_t r0, end;
                im_part(N, parts, i, &r0, &end);
                a.v[0] = a.v[1] = im_view_2d(IM_F32, end - r0, D);
                a.i[5] = r0;
                call(&im_op_dropout, &a, (void *[]){x + r0 * D, got}, (im_kernels)kernels, &now);
                assert_memory_equal(got, want + r0 * D, (size_t)((end - r0) * D) * 4);
            }
        int kept = 0;
        for (int i = 0; i < N * D; i++)
            kept += want[i] != 0;
        assert_true(kept > 0 && kept < N * D);
    }
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_xent_parts), cmocka_unit_test(test_xent_refuses), cmocka_unit_test(test_embed_parts),
                                       cmocka_unit_test(test_dropout_rows)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
