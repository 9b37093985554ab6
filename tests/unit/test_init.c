/* Initial values: a function of seed, name and global index, standard normal times std, the same bits for every slicing and machine. */
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static im_param normal(const char *name, double std)
{
    return (im_param){.name = name, .ndim = 1, .shape = {1}, .init = {.kind = IM_INIT_NORMAL, .std = std}};
}

static void test_slices_are_parts_of_the_whole(void **state)
{
    (void)state;
    enum { N = 2000 };
    static float whole[N], part[N];
    const im_param p = normal("model.embed_tokens.weight", 0.02);
    im_param_init(&p, 42, 0, N, whole);
    for (int64_t first = 0; first < 270; first++) {
        for (int64_t count = 0; count < 20; count++) {
            im_param_init(&p, 42, first, count, part);
            assert_memory_equal(part, whole + first, (size_t)count * sizeof *part);
        }
        im_param_init(&p, 42, first, N - first, part);
        assert_memory_equal(part, whole + first, (size_t)(N - first) * sizeof *part);
    }
}

static void test_far_indices(void **state)
{
    (void)state;
    /* beyond 2^32 counters: the high word counts too */
    const im_param p = normal("w", 1);
    const int64_t far = ((int64_t)1 << 34) + 3;
    float a[300], b[300];
    im_param_init(&p, 1, far, 300, a);
    im_param_init(&p, 1, far + 100, 200, b);
    assert_memory_equal(a + 100, b, 200 * sizeof *a);
    im_param_init(&p, 1, 3, 300, b);
    assert_memory_not_equal(a, b, sizeof a);
    /* a run that crosses the border of the low word is its two halves */
    float c[64];
    im_param_init(&p, 1, far - 35, 64, c);
    im_param_init(&p, 1, far - 3, 32, b);
    assert_memory_equal(c + 32, b, 32 * sizeof *b);
}

static void test_keyed_by_seed_and_name(void **state)
{
    (void)state;
    float a[64], b[64];
    im_param p = normal("model.layers.0.mlp.up_proj.weight", 1), q = normal("model.layers.1.mlp.up_proj.weight", 1);
    im_param_init(&p, 1, 0, 64, a);
    im_param_init(&q, 1, 0, 64, b);
    assert_memory_not_equal(a, b, sizeof a);
    im_param_init(&p, 2, 0, 64, b);
    assert_memory_not_equal(a, b, sizeof a);
    im_param_init(&p, 1, 0, 64, b);
    assert_memory_equal(a, b, sizeof a);
    p.init.std = 0.25;
    im_param_init(&p, 1, 0, 64, b);
    for (int i = 0; i < 64; i++)
        assert_true(b[i] == a[i] * 0.25f);
}

static void test_zeros_and_ones(void **state)
{
    (void)state;
    im_param p = {.name = "b", .ndim = 1, .shape = {5}, .init = {.kind = IM_INIT_ZEROS}};
    float v[5] = {9, 9, 9, 9, 9};
    im_param_init(&p, 1, 0, 5, v);
    for (int i = 0; i < 5; i++)
        assert_true(v[i] == 0);
    p.init.kind = IM_INIT_ONES;
    im_param_init(&p, 1, 0, 4, v);
    assert_true(v[0] == 1 && v[3] == 1 && v[4] == 0);
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

/* Moments within 5 standard errors, neighbours uncorrelated, and the distribution itself: Kolmogorov's distance over a grid. */
static void test_standard_normal(void **state)
{
    (void)state;
    enum { N = 1 << 20, GRID = 97 };
    float *v = malloc(N * sizeof *v);
    assert_non_null(v);
    const im_param p = normal("transformer.wte.weight", 1);
    im_param_init(&p, 7, 0, N, v);
    double s1 = 0, s2 = 0, s3 = 0, s4 = 0, lag[5] = {0};
    for (int i = 0; i < N; i++) {
        const double x = v[i];
        assert_true(fabs(x) < 6.7);
        s1 += x;
        s2 += x * x;
        s3 += x * x * x;
        s4 += x * x * x * x;
        for (int k = 1; k < 5 && i + k < N; k++)
            lag[k] += x * v[i + k];
    }
    const double error = 1 / sqrt((double)N);
    assert_true(fabs(s1 / N) < 5 * error);
    assert_true(fabs(s2 / N - 1) < 5 * sqrt(2) * error);
    assert_true(fabs(s3 / N) < 5 * sqrt(15) * error);
    assert_true(fabs(s4 / N - 3) < 5 * sqrt(96) * error);
    for (int k = 1; k < 5; k++)
        assert_true(fabs(lag[k] / N) < 5 * error);
    double worst = 0;
    for (int g = 0; g < GRID; g++) {
        const double x = -4 + 8.0 * g / (GRID - 1);
        int below = 0;
        for (int i = 0; i < N; i++)
            below += v[i] <= x;
        worst = fmax(worst, fabs((double)below / N - normal_cdf(x)));
    }
    assert_true(worst < 2 * error);
    free(v);
}

/* These bits were drawn once: another compiler or instruction set must draw the same. */
static void test_same_bits_everywhere(void **state)
{
    (void)state;
    const im_param p = normal("model.embed_tokens.weight", 0.02);
    float v[4096];
    im_param_init(&p, 1234, 0, 4096, v);
    assert_int_equal(im_hash64(v, sizeof v, 0), UINT64_C(0x68462bc9990bf5fb));
}

/* The arithmetic of init.c against the C library's: the same words give the same normals to fp32's accuracy. */
static void test_against_box_muller_in_double(void **state)
{
    (void)state;
    const im_param p = normal("w", 1);
    const uint64_t key = im_hash64("w", 1, 3);
    float v[40000];
    im_param_init(&p, 3, 0, 40000, v);
    for (uint64_t c = 0; c < 10000; c++) {
        uint32_t w[4];
        im_philox(key, c, 0, w);
        for (int pair = 0; pair < 2; pair++) {
            const double u = (double)(w[2 * pair] >> 1 | 1) * 0x1p-31;
            const double radius = sqrt(-2 * log(u)), quarter = acos(0);
            const double angle = quarter * ((w[2 * pair + 1] >> 30) + (((w[2 * pair + 1] >> 7 & 0x7fffff) + 0.5) * 0x1p-23 - 0.5));
            assert_true(fabs(v[4 * c + 2 * pair] - radius * cos(angle)) < 2e-6);
            assert_true(fabs(v[4 * c + 2 * pair + 1] - radius * sin(angle)) < 2e-6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_are_parts_of_the_whole),
        cmocka_unit_test(test_far_indices),
        cmocka_unit_test(test_keyed_by_seed_and_name),
        cmocka_unit_test(test_zeros_and_ones),
        cmocka_unit_test(test_standard_normal),
        cmocka_unit_test(test_against_box_muller_in_double),
        cmocka_unit_test(test_same_bits_everywhere),
    };
    return cmocka_run_group_tests_name("init", tests, NULL, NULL);
}
