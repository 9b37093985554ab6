/* Searches: bounds against full enumeration, the outline against whole programs, and what may never happen. */
#include "plan/search_leaves.h"
#include "world.h"

#include "base/json.h"
#include "plan/estimate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":6,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":4,\"vocab_size\":1024,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

/* two boxes of four; slow enough that the head and the messages count */
static const char boxes[] = "name: boxes\nnodes: 2\ndevices_per_node: 4\n"
                            "device: {name: d, peak: {fp32: 50 GFLOP/s}, memory: 1 GB, memory_rate: 10 GB/s, power: 100 W}\n"
                            "domain: {devices: 4, rate: 1 GB/s, latency: 2 us}\n"
                            "network: {kind: tree, nics: 1, link: 2 Gb/s, latency: 10 us}\n"
                            "price: {device_hour: 2 USD}\n";

static int open_world(void **state)
{
    return make_world(state, boxes, model_text);
}

static im_search_request request_of(const world *w, int devices, int64_t batch)
{
    im_search_request r = {.cluster = w->c, .devices = devices, .fix = im_search_free(), .top = 5};
    im_plan_defaults(&r.base, w->m);
    r.base.seq_len = 32;
    r.base.global_batch = batch;
    return r;
}

static im_search search(world *w, const im_search_request *r)
{
    im_search s;
    if (im_search_open(w->ctx, r, &s) != IM_OK)
        fail_msg("%s", im_error_text(w->ctx));
    return s;
}

static void same_answers(const im_search *a, const im_search *b, size_t n)
{
    assert_true(a->n >= n && b->n >= n);
    for (size_t i = 0; i < n; i++) {
        assert_true(a->found[i].step == b->found[i].step && a->found[i].memory == b->found[i].memory);
        assert_memory_equal(&a->found[i].plan.mesh, &b->found[i].plan.mesh, sizeof(im_mesh));
        assert_true(a->found[i].plan.zero == b->found[i].plan.zero && a->found[i].plan.micro_batch == b->found[i].plan.micro_batch);
        assert_true(a->found[i].plan.schedule == b->found[i].plan.schedule && a->found[i].order == b->found[i].order);
        assert_true(a->found[i].plan.recompute == b->found[i].plan.recompute && a->found[i].plan.stages == b->found[i].plan.stages);
    }
}

/* What the bounds discard is never better than what is told: with every layout run to the end the answers are the same. */
static void test_bounds_discard_nothing(void **state)
{
    world *w = *state;
    for (int objective = 0; objective < 3; objective++)
        for (int tight = 0; tight < 2; tight++) {
            im_search_request r = request_of(w, 8, 12), q;
            r.objective = (im_objective)objective;
            r.room = tight ? 1.2e6 : 0;
            q = r;
            q.whole = true;
            im_search fast = search(w, &r), full = search(w, &q);
            same_answers(&fast, &full, 5);
            assert_true(fast.leaves == full.leaves && full.run > fast.run);
            assert_true(fast.run * 4 < full.run || tight || objective == IM_OBJECTIVE_MEMORY); /* they do discard */
            assert_true(tight == (fast.refused[IM_REFUSED_MEMORY] > 0));
            int64_t told = (int64_t)fast.n; /* none is counted twice, none is lost */
            for (int i = 0; i < IM_REFUSED_COUNT; i++)
                told += fast.refused[i];
            assert_true(told == fast.leaves);
            im_search_close(&fast);
            im_search_close(&full);
        }
}

/* Each bound is below the next, of every layout. */
static void test_bounds_are_bounds(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 8, 12);
    im_arena *a;
    im_leaves l;
    im_task_room room = {0};
    assert_int_equal(im_arena_create(w->ctx, &a), IM_OK);
    assert_int_equal(im_leaves_open(w->ctx, &r, a, &l), IM_OK);
    for (uint32_t i = 0; i < l.n; i++) {
        im_outline o, e;
        int fullest, order[IM_SEARCH_ORDERS], n = im_leaf_orders(&l, i, order);
        assert_int_equal(im_leaf_outline(w->ctx, &l, i, 0, false, &o), IM_OK);
        assert_int_equal(im_leaf_outline(w->ctx, &l, i, order[n - 1], true, &e), IM_OK);
        double time = im_outline_time(&e, &room), bound = im_outline_time_bound(&e), memory = im_outline_memory(&e, &fullest, &room);
        assert_true(bound <= time * (1 + 1e-9));
        assert_true(im_leaf_floor(&l, &o) <= bound * (1 + 1e-9));
        assert_true(im_outline_memory_bound(&o, (double)o.plan.micro_batch) <= memory * (1 + 1e-9));
    }
    im_task_room_free(&room);
    im_leaves_close(&l);
    im_arena_destroy(a);
}

/* The outline says what the whole programs say. */
static void test_outline_is_near(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 8, 12);
    im_cluster fast = *w->c; /* links so slow as those share their flows more than they compute */
    im_arena *a;
    im_leaves l;
    im_task_room room = {0};
    double sum = 0, bytes = 0;
    int n = 0;
    fast.domain.rate *= 20;
    fast.network.link *= 20;
    r.cluster = &fast;
    assert_int_equal(im_arena_create(w->ctx, &a), IM_OK);
    assert_int_equal(im_leaves_open(w->ctx, &r, a, &l), IM_OK);
    for (uint32_t i = 0; i < l.n; i += 41, n++) {
        im_outline o;
        im_estimate e;
        im_estimate_options eo = {0};
        int fullest;
        assert_int_equal(im_leaf_outline(w->ctx, &l, i, 0, true, &o), IM_OK);
        assert_int_equal(im_plan_validate_shape(w->ctx, &o.plan), IM_OK);
        assert_int_equal(im_estimate_open(w->ctx, &o.plan, &fast, &eo, &e), IM_OK);
        double time = im_outline_time(&o, &room) / e.step - 1;
        double memory = im_outline_memory(&o, &fullest, &room) / (double)e.stage[e.fullest].total - 1;
        if (fabs(time) > 0.15 || fabs(memory) > 0.2)
            fail_msg("tp %d pp %d dp %d zero %d schedule %d chunks %d micro-batches %d sp %d recompute %d: time %+.1f %%, memory %+.1f %%",
                     o.plan.mesh.tp, o.plan.mesh.pp, o.plan.mesh.dp, o.plan.zero, (int)o.plan.schedule, im_plan_chunks(&o.plan), o.m,
                     o.plan.sequence_parallel, (int)o.plan.recompute, 100 * time, 100 * memory);
        sum += fabs(time);
        bytes += fabs(memory);
        im_estimate_close(&e);
    }
    assert_true(sum / n < 0.03 && bytes / n < 0.05);
    im_task_room_free(&room);
    im_leaves_close(&l);
    im_arena_destroy(a);
}

/* Six blocks and a head of 1.6 blocks over two stages: the even cut is not the best, and never better. */
static void test_stages_never_worse_than_even(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 4, 16);
    r.fix.pp = 2;
    r.fix.schedule = IM_SCHEDULE_1F1B;
    im_search any = search(w, &r);
    r.fix.stages = IM_STAGES_EVEN;
    im_search even = search(w, &r);
    assert_true(any.n && even.n && any.found[0].step <= even.found[0].step);
    assert_int_equal(any.found[0].plan.stages, IM_STAGES_GIVEN);
    assert_true(any.found[0].plan.cut[0] == 4 && any.found[0].plan.cut[1] == 2);
    im_search_close(&any);
    im_search_close(&even);
}

/* By hand: 2 devices, 2 sequences, 6 blocks. tp 2: micro-batch 1 or 2, 2 of sequence parallel, 3 recompute = 12. dp 2: one micro-batch, 4 ZeRO, 3 = 12.
 * pp 2: gpipe, 1f1b, zb-h1, zb-h2, interleaved with 2 and 3 chunks; micro-batch 1 or 2; 3 recompute; even cut alone = 36. */
static void test_leaves_by_hand(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 2, 2);
    r.fix.stages = IM_STAGES_EVEN;
    r.top = 100;
    im_search s = search(w, &r);
    assert_int_equal(s.leaves, 60);
    assert_int_equal(s.n, 60);
    for (size_t i = 1; i < s.n; i++)
        assert_true(s.found[i].step >= s.found[i - 1].step);
    im_search_close(&s);
    r.fix.pp = 2;
    s = search(w, &r);
    assert_int_equal(s.n, 36);
    im_search_close(&s);
}

static void test_what_is_refused(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 8, 3);
    im_search s = search(w, &r);
    assert_true(s.refused[IM_REFUSED_HEADS] > 0);  /* tp 8 of 4 heads */
    assert_true(s.refused[IM_REFUSED_STAGES] > 0); /* pp 8 of 6 blocks */
    assert_true(s.refused[IM_REFUSED_BATCH] > 0);  /* dp 4 of 3 sequences */
    im_search_close(&s);
    r.room = 1000;
    s = search(w, &r);
    assert_true(s.n == 0 && s.least.memory > 1000 && !im_search_winner(&s));
    im_search_close(&s);
}

/* More memory never makes the best worse; a slower network never makes it better. */
static void test_monotone(void **state)
{
    world *w = *state;
    double before = INFINITY;
    for (double room = 0.9e6; room < 4e6; room *= 1.3) {
        im_search_request r = request_of(w, 8, 12);
        r.room = room;
        im_search s = search(w, &r);
        if (s.n)
            assert_true(s.found[0].step <= before && s.found[0].memory <= room);
        before = s.n ? s.found[0].step : before;
        im_search_close(&s);
    }
    assert_true(isfinite(before));
    before = 0;
    im_cluster slow = *w->c;
    for (int i = 0; i < 4; i++, slow.network.link /= 3) {
        im_search_request r = request_of(w, 8, 12);
        r.cluster = &slow;
        im_search s = search(w, &r);
        assert_true(s.n && s.found[0].step >= before);
        before = s.found[0].step;
        im_search_close(&s);
    }
}

/* Orders of the ranks are tried where boxes are crossed, and what this version does not run is never the winner. */
static void test_orders(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 8, 12);
    int device[8];
    r.top = 200;
    im_search s = search(w, &r);
    bool other = false;
    for (size_t i = 0; i < s.n; i++) {
        other |= s.found[i].order != 0;
        assert_true((s.found[i].order != 0) == (s.found[i].why_not != NULL));
    }
    assert_true(other && im_search_winner(&s) && im_search_winner(&s)->order == 0);
    im_search_close(&s);
    im_search_place(&(im_mesh){.tp = 2, .cp = 1, .dp = 2, .pp = 2}, 1, device); /* tp-pp-dp */
    const int want[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    assert_memory_equal(device, want, sizeof want);
}

static void test_confirmed(void **state)
{
    world *w = *state;
    im_search_request r = request_of(w, 8, 12);
    im_search s = search(w, &r);
    assert_int_equal(im_search_confirm(w->ctx, &s, &r, 1e6), IM_OK);
    for (size_t i = 0; i < s.n; i++) {
        im_estimate e;
        im_estimate_options o = {.cost = {.device = s.found[i].device}};
        assert_true(s.found[i].run && s.found[i].placed);
        assert_int_equal(im_estimate_open(w->ctx, &s.found[i].plan, w->c, &o, &e), IM_OK);
        assert_true(e.step == s.found[i].step && (double)e.stage[e.fullest].total == s.found[i].memory);
        assert_true(!i || s.found[i].step >= s.found[i - 1].step);
        im_estimate_close(&e);
    }
    im_search_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_discard_nothing),
        cmocka_unit_test(test_bounds_are_bounds),
        cmocka_unit_test(test_outline_is_near),
        cmocka_unit_test(test_stages_never_worse_than_even),
        cmocka_unit_test(test_leaves_by_hand),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_confirmed),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
