/* Exact by hand: ZeRO's tables, Korthikanti's activation table, what a layer of ours sends over tp and pp, and what it keeps. */
#include "plan/account.h"
#include "plan/estimate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-9 * fabs((double)(b)))

/* Every row of ZeRO's table 1, within half of its last digit or 2 %. */
static void test_zero(void **state)
{
    (void)state;
    char path[512], line[512];
    int rows = 0;
    snprintf(path, sizeof path, "%s/golden/published/zero_table1_memory.csv", IM_TEST_DIR);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        double size, gb;
        char unit, stage[16];
        int dp;
        char digits[32];
        if (sscanf(line, "%lf%c,%15[^,],%d,%31[^,]", &size, &unit, stage, &dp, digits) != 5)
            continue;
        gb = atof(digits);
        double params = size * (unit == 'T' ? 1e12 : 1e9), point = strchr(digits, '.') ? pow(10, -(double)strlen(strchr(digits, '.') + 1)) : 1;
        int z = !strcmp(stage, "Pos") ? 1 : !strcmp(stage, "Pos+g") ? 2 : 3;
        double said = im_account_zero(params, z, dp, 12) / 1e9;
        if (fabs(said - gb) > fmax(0.5 * point * (1 + 1e-9), 0.02 * gb) + 1e-12)
            fail_msg("%s over %d: %g GB, published %g", stage, dp, said, gb);
        rows++;
    }
    fclose(f);
    assert_int_equal(rows, 54);
    NEAR(im_account_zero(7.5e9, 0, 64, 12), 120e9);
    NEAR(im_account_zero(7.5e9, 1, 64, 12), 7.5e9 * (4 + 12.0 / 64));
    NEAR(im_account_zero(7.5e9, 2, 64, 12), 7.5e9 * (2 + 14.0 / 64));
    NEAR(im_account_zero(7.5e9, 3, 64, 12), 7.5e9 * 16 / 64);
    NEAR(im_account_fsdp(16e9, 1e9, 8), 32e9 + 4e9);
}

static void test_korthikanti(void **state)
{
    (void)state;
    double s = 2048, b = 4, h = 6144, a = 64, t = 8, sbh = s * b * h;
    NEAR(im_account_layer(s, b, h, a, 1, false, IM_RECOMPUTE_NONE), sbh * (34 + 5 * a * s / h));
    NEAR(im_account_layer(s, b, h, a, t, false, IM_RECOMPUTE_NONE), sbh * (10 + 24 / t + 5 * a * s / (h * t)));
    NEAR(im_account_layer(s, b, h, a, t, true, IM_RECOMPUTE_NONE), sbh * (34 / t + 5 * a * s / (h * t)));
    NEAR(im_account_layer(s, b, h, a, t, false, IM_RECOMPUTE_SELECTIVE), sbh * (10 + 24 / t));
    NEAR(im_account_layer(s, b, h, a, t, true, IM_RECOMPUTE_SELECTIVE), sbh * 34 / t);
    NEAR(im_account_layer(s, b, h, a, t, true, IM_RECOMPUTE_FULL), sbh * 2);
    NEAR(im_account_first_stage(10, 48, 8, 1), 480);
    NEAR(im_account_first_stage(10, 48, 8, 3), 480 * (1 + 7.0 / 24));
}

/* ---- our own programs ------------------------------------------------------------------------- */

typedef struct sent {
    double tp, pp; /* bytes of a device, a micro-batch */
} sent;

static im_cluster *one_box(im_context *ctx)
{
    static const char text[] =
        "name: box\nnodes: 1\ndevices_per_node: 64\ndevice: {name: d, peak: {fp32: 1 TFLOP/s}, memory: 80 GB, memory_rate: 1 TB/s}\n"
        "domain: {devices: 64, rate: 100 GB/s}\n";
    im_cluster *c;
    assert_int_equal(im_cluster_parse(ctx, "box.yaml", text, strlen(text), &c), IM_OK);
    return c;
}

/* What the blocks of stage 1 of three send over tp, and the stage to its neighbours. */
static sent sent_by(im_context *ctx, const im_cluster *c, const im_model *m, int tp, bool sp)
{
    im_plan p;
    im_cost *k;
    im_fold f;
    sent out = {0};
    im_plan_defaults(&p, m);
    p.mesh = (im_mesh){tp, 1, 1, 3};
    p.seq_len = 64;
    p.micro_batch = 2;
    p.global_batch = 6;
    p.sequence_parallel = sp;
    assert_int_equal(im_plan_validate(ctx, &p), IM_OK);
    assert_int_equal(im_cost_open(ctx, c, &p, NULL, &k), IM_OK);
    assert_int_equal(im_fold_open(ctx, &p, false, &f), IM_OK);
    const im_program *q = f.program[1];
    for (uint32_t i = 0; i < q->nbound; i++) {
        int verb = q->step[q->bound[i].step].verb;
        double bytes = im_cost_traffic_of(k, q, &q->bound[i]).domain / 3; /* 3 micro-batches */
        if (verb == IM_FORWARD || verb == IM_BACKWARD)
            out.tp += bytes;
        else if (verb == IM_SEND)
            out.pp += bytes;
    }
    im_fold_close(&f);
    im_cost_close(k);
    return out;
}

static void test_volumes(void **state)
{
    (void)state;
    im_context *ctx;
    im_model *m;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_model_open(ctx, "gpt2", IM_SOURCE_MODELS_DIR, &m), IM_OK);
    im_cluster *c = one_box(ctx);
    double bsh = 4.0 * 2 * 64 * (double)m->arch.D, layers = 4; /* bytes of fp32; 12 blocks over 3 stages */
    for (int tp = 2; tp <= 4; tp++) {
        /* Megatron-LM 2021: 8 b s h (t-1)/t a layer, in 4 all-reduces; messages b s h each way */
        sent a = sent_by(ctx, c, m, tp, false);
        NEAR(a.tp, layers * 8 * bsh * (tp - 1) / tp);
        NEAR(a.pp, 2 * bsh);
        /* sequence parallel: all-gather and reduce-scatter are half an all-reduce each; ours gathers two inputs again in the backward instead of keeping them */
        sent b = sent_by(ctx, c, m, tp, true);
        NEAR(b.tp, layers * (8 + 2) * bsh * (tp - 1) / tp);
        if (128 % tp == 0) /* rows that divide */
            NEAR(b.pp, 2 * bsh / tp);
    }
    im_cluster_close(c);
    im_model_close(m);
    im_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_korthikanti),
        cmocka_unit_test(test_volumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
