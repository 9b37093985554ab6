/* Estimates: events against the plain simulation, folded against whole, what a step adds up to, links that never carry more than their rate. */
#include "plan/estimate.h"
#include "world.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* sizes that 8 divides, so that ranks are alike */
static const char even_model[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":8,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":8,\"vocab_size\":128,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

/* 64 nodes of 8, slow enough that communication counts */
static const char rack[] =
    "name: rack\nnodes: 64\ndevices_per_node: 8\n"
    "device: {name: d, peak: {fp32: 1 TFLOP/s}, memory: 80 GB, memory_rate: 100 GB/s, power: 100 W, idle_power: 10 W}\n"
    "domain: {devices: 8, rate: 1 GB/s, latency: 2 us}\n"
    "network: {kind: fat-tree, nics: 2, link: 4 Gb/s, latency: 5 us, hop: 1 us, levels: [{name: leaf, nodes: 4, oversubscription: 4},"
    " {name: spine, nodes: 64, oversubscription: 1}]}\n"
    "price: {device_hour: 2 USD}\n";

static int open_world(void **state)
{
    return make_world(state, rack, even_model);
}

static im_plan plan_of(const world *w, int tp, int dp, int pp, int m)
{
    im_plan p;
    im_plan_defaults(&p, w->m);
    p.mesh = (im_mesh){tp, 1, dp, pp};
    p.seq_len = 32;
    p.micro_batch = 1;
    p.global_batch = (int64_t)m * dp;
    return p;
}

static im_estimate estimate(world *w, const im_plan *p, bool whole)
{
    im_estimate e = {0};
    im_estimate_options o = {.whole = whole};
    if (im_plan_validate(w->ctx, p) != IM_OK || im_estimate_open(w->ctx, p, w->c, &o, &e) != IM_OK)
        fail_msg("%s", im_error_text(w->ctx));
    return e;
}

static double all_of(const im_estimate_stage *g)
{
    double sum = g->compute + g->bubble;
    for (int a = 0; a < IM_AXIS_COUNT; a++)
        sum += g->exposed[a];
    return sum;
}

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-9 * fabs(b))

/* ---- events --------------------------------------------------------------------------- */

static double plain_price(void *arg, const im_program *p, const im_bound *x)
{
    (void)arg, (void)p;
    return x->op->kind ? 1e-6 * (1 + (double)((uintptr_t)x->op->label % 7)) : 0;
}

static im_event_price event_price(void *arg, const im_program *p, const im_bound *x)
{
    return (im_event_price){.seconds = plain_price(arg, p, x)};
}

/* Where nothing shares a link, every op of every rank runs when im_simulate says. */
static void test_events(void **state)
{
    world *w = *state;
    static const im_schedule schedules[] = {IM_SCHEDULE_GPIPE, IM_SCHEDULE_1F1B, IM_SCHEDULE_INTERLEAVED, IM_SCHEDULE_ZB_H1};
    for (size_t i = 0; i < IM_COUNT_OF(schedules); i++) {
        im_plan p = plan_of(w, 2, 2, 2, 4);
        im_fold f;
        im_timeline a, b;
        p.schedule = schedules[i];
        p.chunks = p.schedule == IM_SCHEDULE_INTERLEAVED ? 2 : 1;
        assert_int_equal(im_fold_open(w->ctx, &p, true, &f), IM_OK);
        assert_int_equal(f.n, 8);
        assert_int_equal(im_simulate(w->ctx, (const im_program *const *)f.program, f.n, plain_price, NULL, &a), IM_OK);
        assert_int_equal(im_events_run(w->ctx, (const im_program *const *)f.program, f.n, event_price, NULL, &b), IM_OK);
        assert_true(a.total > 0 && fabs(a.total - b.total) <= 1e-12);
        for (int r = 0; r < f.n; r++)
            for (uint32_t k = 0; k < f.program[r]->nbound; k++)
                assert_true(fabs(a.start[r][k] - b.start[r][k]) <= 1e-12 && fabs(a.end[r][k] - b.end[r][k]) <= 1e-12);
        im_timeline_free(&a);
        im_timeline_free(&b);
        im_fold_close(&f);
    }
}

/* Idle shares are the schedules' formulas, also when one stands for many: equal stages, free messages. */
static im_event_price unit_price(void *arg, const im_program *p, const im_bound *x)
{
    double seconds = 0;
    (void)arg;
    if (x->op->kind == &im_op_matmul && !strcmp(x->op->label, "feed-forward down"))
        seconds = p->step[x->step].verb == IM_FORWARD ? 1 : 0; /* one product in FORWARD */
    else if (x->op->kind == &im_op_glu_grad)
        seconds = p->step[x->step].verb == IM_BACKWARD ? 2 : p->step[x->step].verb == IM_BACKWARD_INPUT ? 1 : 0;
    if (p->step[x->step].verb == IM_BACKWARD_WEIGHT && x->op->kind == &im_op_matmul && !strcmp(x->op->label, "feed-forward down"))
        seconds = 1;
    return (im_event_price){.seconds = seconds};
}

static void test_bubbles(void **state)
{
    world *w = *state;
    static const struct {
        im_schedule s;
        int pp, v, m;
    } rows[] = {{IM_SCHEDULE_GPIPE, 4, 1, 8},
                {IM_SCHEDULE_1F1B, 4, 1, 8},
                {IM_SCHEDULE_1F1B, 8, 1, 8},
                {IM_SCHEDULE_INTERLEAVED, 4, 2, 8},
                {IM_SCHEDULE_ZB_H1, 4, 1, 8}};
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        im_plan p = plan_of(w, 8, 2, rows[i].pp, rows[i].m);
        im_fold f;
        im_timeline t;
        p.schedule = rows[i].s;
        p.chunks = rows[i].v;
        assert_int_equal(im_fold_open(w->ctx, &p, false, &f), IM_OK);
        assert_int_equal(im_events_run(w->ctx, (const im_program *const *)f.program, f.n, unit_price, NULL, &t), IM_OK);
        double blocks = 8.0 / rows[i].pp, ideal = rows[i].m * blocks * 3; /* seconds of work of a stage */
        double want = im_schedule_of(p.schedule)->bubble(rows[i].pp, rows[i].m, rows[i].v);
        assert_true(want > 0 && fabs((1 - ideal / t.total) - want) <= 1e-9);
        im_timeline_free(&t);
        im_fold_close(&f);
    }
}

/* ---- folded and whole -------------------------------------------------------------------- */

static void test_fold(void **state)
{
    world *w = *state;
    static const struct {
        int tp, dp, pp, zero;
        im_schedule s;
        bool sp;
    } rows[] = {{8, 8, 8, 0, IM_SCHEDULE_1F1B, true}, {2, 64, 4, 1, IM_SCHEDULE_INTERLEAVED, false}, {4, 128, 1, 3, IM_SCHEDULE_1F1B, false}};
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        im_plan p = plan_of(w, rows[i].tp, rows[i].dp, rows[i].pp, 4);
        p.zero = rows[i].zero;
        p.schedule = rows[i].s;
        p.chunks = rows[i].s == IM_SCHEDULE_INTERLEAVED ? 2 : 1;
        p.sequence_parallel = rows[i].sp;
        im_estimate a = estimate(w, &p, false), b = estimate(w, &p, true);
        assert_null(a.fold.uneven);
        assert_int_equal(a.devices, 512);
        assert_int_equal(a.fold.n, rows[i].pp);
        assert_int_equal(b.fold.n, 512);
        double near = rows[i].zero ? 1e-5 : 1e-9; /* shards are not all of one size: cut at multiples of 16 */
        if (fabs(a.step - b.step) > near * b.step)
            fail_msg("row %zu: folded %.12g s, whole %.12g s", i, a.step, b.step);
        for (int r = 0; r < b.fold.n; r++) {
            const im_estimate_stage *x = &a.stage[r / a.fold.stands_for], *y = &b.stage[r];
            /* what is replicated over tp is counted in the norm by its first rank alone; the others wait for it */
            assert_true(y->compute <= x->compute * (1 + (rows[i].zero ? 0.05 : 1e-12)) && y->compute > 0.95 * x->compute);
            assert_true(fabs(all_of(y) - b.step) <= 1e-9 * b.step);
            for (int k = 0; k < IM_AXIS_COUNT; k++)
                assert_true(fabs(x->exposed[k] - y->exposed[k]) <= (r % a.fold.stands_for ? 0.01 : near) * a.step);
            assert_true((double)y->total <= (double)x->total * (rows[i].zero ? 1.05 : 1)); /* shards may differ by their rounding */
        }
        im_estimate_close(&a);
        im_estimate_close(&b);
    }
}

/* ---- properties ----------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *at, uint32_t below)
{
    uint32_t x[4];
    im_philox(8, (*at)++, 0, x);
    return x[0] % below;
}

static void test_properties(void **state)
{
    world *w = *state;
    uint64_t at = 0;
    for (int i = 0; i < 40; i++) {
        im_plan p = plan_of(w, 1 << draw(&at, 4), 1 << draw(&at, 4), 1 << draw(&at, 4), 1 + (int)draw(&at, 6));
        p.zero = (int)draw(&at, 4);
        p.recompute = (im_recompute)draw(&at, 3);
        p.sequence_parallel = p.mesh.tp > 1 && draw(&at, 2);
        p.schedule = draw(&at, 2) ? IM_SCHEDULE_1F1B : IM_SCHEDULE_GPIPE;
        if (im_plan_validate(w->ctx, &p) != IM_OK) {
            im_error_clear(w->ctx);
            continue;
        }
        im_cluster fast = *w->c;
        w->c->domain.rate *= 0.5 + draw(&at, 100) * 0.1;
        w->c->network.link *= 0.5 + draw(&at, 100) * 0.1;
        im_estimate e = estimate(w, &p, false), again = estimate(w, &p, false);
        assert_true(memcmp(&e.step, &again.step, sizeof e.step) == 0); /* the same bits */
        for (int r = 0; r < e.fold.n; r++)
            assert_true(fabs(all_of(&e.stage[r]) - e.step) <= 1e-9 * e.step);
        for (int k = 0; k < e.nlink; k++) {
            if (!(e.link[k].use <= 1 + 1e-9))
                fail_msg("tp %d dp %d pp %d zero %d: %s carries %.2f of its rate", p.mesh.tp, p.mesh.dp, p.mesh.pp, p.zero, e.link[k].name,
                         e.link[k].use);
        }
        double sum = e.stage[e.slowest].bubble;
        for (size_t k = 0; k < e.npart; k++)
            sum += e.part[k].seconds;
        assert_true(fabs(sum - e.step) <= 1e-9 * e.step);
        assert_true(e.hardware_flops >= e.model_flops * (1 - 1e-9)); /* nothing is left out */
        /* slower links never make it faster */
        w->c->domain.rate *= 0.6;
        w->c->network.link *= 0.6;
        for (int l = 0; l < w->c->network.nlevel; l++)
            w->c->network.level[l].uplink *= 0.6;
        im_estimate slow = estimate(w, &p, false);
        assert_true(slow.step >= e.step * (1 - 1e-9));
        im_estimate_close(&slow);
        im_estimate_close(&e);
        im_estimate_close(&again);
        *w->c = fast;
    }
}

/* Energy, money, MFU, goodput by hand. */
static void test_money(void **state)
{
    world *w = *state;
    im_plan p = plan_of(w, 1, 8, 1, 2);
    im_estimate e = estimate(w, &p, false);
    double busy = e.mean.compute / e.step;
    NEAR(e.joules, 8 * e.step * (100 * busy + 10 * (1 - busy)));
    NEAR(e.money, 8 * 2 * e.step / 3600);
    NEAR(e.mfu, im_model_flops_per_token(w->m, 32) * 2 * 8 * 32 / (e.step * 8 * 1e12));
    im_estimate_close(&e);
    /* Young: sqrt(2*d*M); without failures worth the name nearly all of the time goes on */
    im_goodput g = im_goodput_of(60, 86400, 0);
    NEAR(g.young, sqrt(2.0 * 60 * 86400));
    assert_true(g.daly > 0.95 * (g.young - 60) && g.daly < g.young);
    assert_true(g.goodput > 1 - 1.1 * sqrt(2.0 * 60 / 86400) && g.goodput < 1 - 0.9 * sqrt(2.0 * 60 / 86400));
    assert_true(im_goodput_of(60, 3600, 300).goodput < g.goodput);
}

static void test_text(void **state)
{
    world *w = *state;
    im_plan p = plan_of(w, 8, 2, 4, 4);
    im_estimate e = estimate(w, &p, false);
    im_drawing d;
    im_str trace = {0};
    im_json *doc;
    assert_int_equal(im_estimate_drawing(w->ctx, &e, &d), IM_OK);
    assert_int_equal(d.ranks, 4);
    for (size_t i = 0; i < d.n; i++)
        assert_in_range(d.span[i].rank, 0, 3);
    im_estimate_trace(&e, &trace);
    assert_int_equal(im_json_parse(w->ctx, "trace", trace.data, trace.len, &doc), IM_OK);
    assert_true(im_json_length(im_json_get(im_json_root(doc), "traceEvents")) > 100);
    im_json_free(doc);
    im_str_free(&trace);
    im_drawing_free(&d);
    im_estimate_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_bubbles, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_fold, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_properties, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_money, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_text, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
