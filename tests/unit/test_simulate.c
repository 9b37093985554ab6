/* Programs in time: idle shares are the schedules' formulas, and pictures show what ran. */
#include "plan/draw.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char blocks8[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":8,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"vocab_size\":11,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

enum { RANKS = 8 };

typedef struct world {
    im_context *ctx;
    im_model *model;
    im_plan plan;
    im_layout *layout[RANKS];
    im_program *program[RANKS];
    int ranks;
} world;

static void open_world(world *w, im_schedule s, int pp, int chunks, int m)
{
    *w = (world){.ranks = pp};
    assert_int_equal(im_context_create(&w->ctx), IM_OK);
    im_json *doc;
    assert_int_equal(im_json_parse(w->ctx, "test.json", blocks8, strlen(blocks8), &doc), IM_OK);
    assert_int_equal(im_model_parse(w->ctx, doc, &w->model), IM_OK);
    im_json_free(doc);
    im_plan_defaults(&w->plan, w->model);
    w->plan.mesh.pp = pp;
    w->plan.schedule = s;
    w->plan.chunks = chunks;
    w->plan.seq_len = 3;
    w->plan.micro_batch = 1;
    w->plan.global_batch = m;
    int stage[16];
    im_plan_stages(&w->plan, stage);
    im_program_spec spec = {.mode = IM_PROGRAM_TRAIN};
    for (int r = 0; r < pp; r++) {
        assert_int_equal(im_layout_create(w->ctx, w->model, w->plan.mesh, r, 0, false, stage, &w->layout[r]), IM_OK);
        assert_int_equal(im_program_build(w->ctx, &w->plan, w->layout[r], &spec, NULL, 0, &w->program[r]), IM_OK);
        assert_int_equal(im_program_place(w->ctx, &w->program[r], 1), IM_OK);
        assert_int_equal(im_program_link(w->ctx, w->program[r]), IM_OK);
    }
}

static void close_world(world *w)
{
    for (int r = 0; r < w->ranks; r++) {
        im_program_destroy(w->program[r]);
        im_layout_destroy(w->layout[r]);
    }
    im_model_close(w->model);
    im_context_destroy(w->ctx);
}

/* A block's forward takes 1, its backward 2, in the first op of each; nothing else takes time. */
static double by_block(void *arg, const im_program *p, const im_bound *x)
{
    (void)arg;
    const im_step *s = &p->step[x->step];
    bool first = x == p->bound || x[-1].step != x->step;
    if (!first || !x->op->kind || p->plan->model->unit[s->target].type != IM_UNIT_BLOCK)
        return 0;
    switch ((im_verb)s->verb) {
    case IM_FORWARD:
    case IM_BACKWARD_INPUT:
    case IM_BACKWARD_WEIGHT: return 1;
    case IM_BACKWARD: return 2;
    default: return 0;
    }
}

static void idle_as_the_formula(void **state)
{
    (void)state;
    static const struct {
        im_schedule s;
        int pp, v, m;
    } cases[] = {{IM_SCHEDULE_GPIPE, 4, 1, 8}, {IM_SCHEDULE_1F1B, 4, 1, 8},        {IM_SCHEDULE_1F1B, 8, 1, 9},
                 {IM_SCHEDULE_1F1B, 2, 1, 1},  {IM_SCHEDULE_INTERLEAVED, 4, 2, 8}, {IM_SCHEDULE_INTERLEAVED, 2, 4, 6},
                 {IM_SCHEDULE_GPIPE, 1, 1, 3}, {IM_SCHEDULE_ZB_H1, 4, 1, 8},       {IM_SCHEDULE_ZB_H1, 2, 1, 5}};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        world w;
        im_timeline t;
        im_drawing d;
        open_world(&w, cases[i].s, cases[i].pp, cases[i].v, cases[i].m);
        if (im_simulate(w.ctx, (const im_program *const *)w.program, w.ranks, by_block, NULL, &t) != IM_OK)
            fail_msg("%s", im_error_text(w.ctx));
        assert_int_equal(im_drawing_of_timeline(w.ctx, (const im_program *const *)w.program, &t, &d), IM_OK);
        double want = im_schedule_of(cases[i].s)->bubble(cases[i].pp, cases[i].m, cases[i].v), got = im_drawing_bubble(&d);
        if (fabs(got - want) > 1e-9)
            fail_msg("%s p %d v %d m %d: idle %.6f, the formula says %.6f", im_schedule_of(cases[i].s)->name, cases[i].pp, cases[i].v, cases[i].m,
                     got, want);
        im_drawing_free(&d);
        im_timeline_free(&t);
        close_world(&w);
    }
}

static double half(void *arg, const im_program *p, const im_bound *x)
{
    return by_block(arg, p, x) + (x->op->collective == IM_COLL_SEND ? 0.5 : 0);
}

/* Two stages, one micro-batch, messages of half a unit: 4 blocks, message, 4 blocks forward and back, message, and back. */
static void messages_take_time(void **state)
{
    (void)state;
    world w;
    im_timeline t;
    open_world(&w, IM_SCHEDULE_1F1B, 2, 1, 1);
    assert_int_equal(im_simulate(w.ctx, (const im_program *const *)w.program, w.ranks, half, NULL, &t), IM_OK);
    assert_true(fabs(t.total - (4 + 0.5 + 4 + 8 + 0.5 + 8)) < 1e-9);
    for (int r = 0; r < 2; r++)
        for (uint32_t i = 0; i < w.program[r]->nbound; i++)
            for (int k = 0; k < w.program[r]->bound[i].nwait; k++)
                assert_true(t.start[r][i] >= t.end[r][w.program[r]->bound[i].wait[k]]);
    im_timeline_free(&t);
    close_world(&w);
}

/* A row a rank; 4 blocks of forward are a sixth of a step of 24. */
static void pictures(void **state)
{
    (void)state;
    world w;
    im_timeline t;
    im_drawing d;
    im_str text = {0}, svg = {0};
    open_world(&w, IM_SCHEDULE_1F1B, 2, 1, 1);
    assert_int_equal(im_simulate(w.ctx, (const im_program *const *)w.program, w.ranks, by_block, NULL, &t), IM_OK);
    assert_int_equal(im_drawing_of_timeline(w.ctx, (const im_program *const *)w.program, &t, &d), IM_OK);
    im_drawing_text(&d, "planned", 24, false, &text);
    assert_non_null(strstr(im_str_text(&text), "bubble 50.0 %"));
    assert_non_null(strstr(im_str_text(&text), "rank 0   0FFF............0BBBBBBB\n"));
    assert_non_null(strstr(im_str_text(&text), "rank 1   ....0FFF0BBBBBBB........\n"));
    const im_drawing *both[] = {&d, &d};
    const char *titles[] = {"planned <&>", "measured"};
    im_drawing_svg(both, titles, 2, &svg);
    assert_non_null(strstr(im_str_text(&svg), "planned &#60;&#38;&#62;"));
    assert_non_null(strstr(im_str_text(&svg), "</svg>"));
    im_str_free(&text);
    im_str_free(&svg);
    im_drawing_free(&d);
    im_timeline_free(&t);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(idle_as_the_formula), cmocka_unit_test(messages_take_time), cmocka_unit_test(pictures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
