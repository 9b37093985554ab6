/* Rule 1: any layout gives one rank's losses, norms, gradients and weights; the same layout twice the same bits. */
#include "layout/rig.h"

/* sizes that divide nothing */
static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":3,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
static const char llama_tied[] =
    "{\"model_type\":\"llama\",\"hidden_size\":28,\"intermediate_size\":51,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":67,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true}";
static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"n_embd\":30,\"n_head\":5,\"n_layer\":2,\"vocab_size\":53,\"n_positions\":40,\"n_inner\":50,"
    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";

typedef struct layout_case {
    int tp, sp, dp, pp, zero, recompute;
    int64_t mbs;
} layout_case;

enum { STEPS = 5 };

/* The pipeline's schedule in the tests that go on. */
static im_schedule schedule = IM_SCHEDULE_1F1B;
static int chunks = 1;

static im_model *open_model(im_context *ctx, const char *config)
{
    im_json *doc;
    im_model *m;
    assert_int_equal(im_json_parse(ctx, "test.json", config, strlen(config), &doc), IM_OK);
    assert_int_equal(im_model_parse(ctx, doc, &m), IM_OK);
    im_json_free(doc);
    return m;
}

static im_plan plan_of(const im_model *m, const layout_case *c)
{
    im_plan p;
    im_plan_defaults(&p, m);
    p.mesh = (im_mesh){c->tp, 1, c->dp, c->pp};
    p.sequence_parallel = c->sp;
    p.zero = c->zero;
    p.recompute = (im_recompute)c->recompute;
    p.schedule = schedule;
    p.chunks = c->pp * chunks <= m->arch.L ? chunks : 1;
    p.seq_len = 13;
    p.micro_batch = c->mbs;
    p.global_batch = 7;
    p.dropout = -1;
    p.label_smoothing = 0.05;
    p.threads = 1;
    p.seed = 3;
    p.eps = 1e-5; /* a gradient that is zero by analysis (GPT-2's key bias) must not turn its noise into steps */
    return p;
}

static void name_of(const layout_case *c, char *buf, size_t n)
{
    snprintf(buf, n, "tp %d sp %d dp %d pp %d zero %d recompute %d micro-batch %d %s x %d", c->tp, c->sp, c->dp, c->pp, c->zero, c->recompute,
             (int)c->mbs, im_schedule_of(schedule)->name, chunks);
}

static void compare(const im_model *m, const layout_case *c, const rig_result *got, const rig_result *one)
{
    char name[128];
    name_of(c, name, sizeof name);
    for (int i = 0; i < STEPS; i++) {
        if (got->tokens[i] != one->tokens[i])
            fail_msg("%s: step %d counts %g tokens, one rank %g", name, i, got->tokens[i], one->tokens[i]);
        if (!(fabs(got->loss[i] - one->loss[i]) <= 1e-5 * fabs(one->loss[i])))
            fail_msg("%s: loss of step %d is %.9g, one rank %.9g", name, i, got->loss[i], one->loss[i]);
        if (!(fabs(got->norm[i] - one->norm[i]) <= 1e-5 * fabs(one->norm[i])))
            fail_msg("%s: gradient norm of step %d is %.9g, one rank %.9g", name, i, got->norm[i], one->norm[i]);
    }
    if (c->dp == 1 && !(fabs(got->eval_loss - one->eval_loss) <= 1e-5 * fabs(one->eval_loss)))
        fail_msg("%s: evaluation gives %.9g, one rank %.9g", name, got->eval_loss, one->eval_loss);
    double all = one->norm[STEPS - 1] * one->tokens[STEPS - 1]; /* of the summed gradients */
    for (size_t q = 0; q < m->nparam; q++) {
        size_t n = (size_t)im_param_count(&m->param[q]);
        double w = rig_distance(got->weight[q], one->weight[q], n, 1e-30), g = rig_distance(got->grad[q], one->grad[q], n, 1e-3 * all);
        if (!(g <= 1e-5))
            fail_msg("%s: gradient of %s differs by %g", name, m->param[q].name, g);
        if (!(w <= 1e-5))
            fail_msg("%s: %s differs by %g after %d steps", name, m->param[q].name, w, STEPS);
    }
}

static void same_bits(const im_model *m, const layout_case *c, const rig_result *a, const rig_result *b)
{
    char name[128];
    name_of(c, name, sizeof name);
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i])
            fail_msg("%s: the second run's loss of step %d is not the same bits", name, i);
    for (size_t q = 0; q < m->nparam; q++)
        if (memcmp(a->weight[q], b->weight[q], (size_t)im_param_count(&m->param[q]) * 4))
            fail_msg("%s: the second run's %s is not the same bits", name, m->param[q].name);
}

static void try_layouts(const char *config, const layout_case *cases, size_t n, bool deferred, im_kernels kernels)
{
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, config);
    layout_case single = {.tp = 1, .dp = 1, .pp = 1, .mbs = 7};
    im_plan p = plan_of(m, &single);
    rig_result one, got, again;
    if (rig_train(&p, STEPS, false, kernels, &one) != IM_OK)
        fail_msg("one rank: %s", one.error);
    for (size_t i = 0; i < n; i++) {
        char name[128];
        name_of(&cases[i], name, sizeof name);
        p = plan_of(m, &cases[i]);
        if (rig_train(&p, STEPS, deferred, kernels, &got) != IM_OK)
            fail_msg("%s: %s", name, got.error);
        compare(m, &cases[i], &got, &one);
        if (i % 3 == 0) {
            if (rig_train(&p, STEPS, deferred, kernels, &again) != IM_OK)
                fail_msg("%s: %s", name, again.error);
            same_bits(m, &cases[i], &again, &got);
            rig_free(m, &again);
        }
        rig_free(m, &got);
    }
    rig_free(m, &one);
    im_model_close(m);
    im_context_destroy(ctx);
}

/* {tp, sp, dp, pp, zero, recompute, micro-batch} */
static const layout_case llama_cases[] = {
    {1, 0, 1, 1, 0, 0, 1}, {1, 0, 1, 1, 0, 2, 3}, {1, 0, 1, 1, 0, 1, 2}, {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 0, 4},
    {3, 0, 1, 1, 0, 1, 3}, {3, 1, 1, 1, 0, 2, 2}, {1, 0, 2, 1, 0, 0, 2}, {1, 0, 3, 1, 0, 0, 1}, {1, 0, 2, 1, 1, 0, 3},
    {1, 0, 3, 1, 2, 0, 1}, {1, 0, 2, 1, 3, 0, 2}, {1, 0, 5, 1, 3, 2, 1}, {2, 1, 2, 1, 1, 0, 2}, {2, 0, 2, 1, 3, 1, 1},
    {3, 1, 2, 1, 2, 2, 2}, {2, 1, 3, 1, 3, 0, 2}, {2, 1, 4, 1, 0, 1, 1}, {6, 1, 1, 1, 0, 0, 2},
};
static const layout_case tied_cases[] = {
    {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 2, 2}, {4, 0, 1, 1, 0, 0, 3}, {4, 1, 1, 1, 0, 1, 2}, {8, 1, 1, 1, 0, 0, 3},
    {1, 0, 3, 1, 1, 0, 2}, {1, 0, 2, 1, 3, 0, 1}, {4, 1, 2, 1, 3, 2, 2}, {2, 1, 2, 1, 2, 1, 1}, {4, 0, 2, 1, 1, 0, 2},
};
static const layout_case gpt2_cases[] = {
    {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 0, 2}, {3, 0, 1, 1, 0, 2, 3}, {5, 1, 1, 1, 0, 1, 2},
    {1, 0, 2, 1, 2, 0, 3}, {1, 0, 3, 1, 3, 0, 1}, {2, 1, 2, 1, 1, 2, 2}, {3, 1, 2, 1, 3, 0, 1},
};

/* the pipeline, with other axes */
static const layout_case pipe_cases[] = {
    {1, 0, 1, 2, 0, 0, 2}, {1, 0, 1, 3, 0, 0, 1}, {2, 1, 1, 2, 0, 2, 2}, {1, 0, 2, 2, 1, 0, 1},
    {2, 0, 2, 2, 1, 1, 2}, {1, 0, 1, 2, 0, 0, 7}, {3, 1, 1, 2, 0, 0, 3},
};

static void test_pipeline(void **state)
{
    (void)state;
    try_layouts(llama, pipe_cases, IM_COUNT_OF(pipe_cases), false, IM_KERNELS_FAST);
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {2, 1, 2, 2, 1, 0, 1}}, 2, false, IM_KERNELS_FAST);
    try_layouts(llama_tied, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {4, 1, 1, 2, 0, 2, 2}}, 2, true, IM_KERNELS_PLAIN);
}

/* several runs of blocks a stage */
static void test_interleaved(void **state)
{
    (void)state;
    static const char deep[] =
        "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":7,\"num_attention_heads\":6,"
        "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
        "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
    static const layout_case cases[] = {
        {1, 0, 1, 1, 0, 0, 2}, {1, 0, 1, 2, 0, 0, 1}, {1, 0, 1, 2, 0, 2, 3}, {1, 0, 2, 2, 1, 0, 1},
        {1, 0, 2, 3, 3, 0, 1}, {2, 1, 2, 2, 2, 1, 2}, {3, 0, 1, 2, 0, 0, 7},
    };
    schedule = IM_SCHEDULE_INTERLEAVED;
    for (chunks = 2; chunks <= 3; chunks++)
        try_layouts(deep, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST);
    chunks = 2;
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 1, 0, 0, 2}, {1, 0, 2, 1, 3, 0, 1}}, 2, true, IM_KERNELS_PLAIN);
    schedule = IM_SCHEDULE_1F1B;
    chunks = 1;
}

/* the backward in two parts */
static void test_zero_bubble(void **state)
{
    (void)state;
    static const layout_case cases[] = {
        {1, 0, 1, 1, 0, 0, 2}, {1, 0, 1, 2, 0, 0, 1}, {1, 0, 1, 3, 0, 2, 2}, {1, 0, 2, 2, 3, 1, 1}, {2, 1, 2, 2, 2, 0, 2}, {3, 0, 1, 2, 1, 0, 3},
    };
    schedule = IM_SCHEDULE_ZB_H1;
    try_layouts(llama, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST);
    try_layouts(llama_tied, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {4, 1, 1, 2, 1, 2, 2}}, 2, true, IM_KERNELS_PLAIN);
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 2, 0, 0, 1}, {2, 1, 2, 2, 1, 0, 1}}, 2, false, IM_KERNELS_FAST);
    schedule = IM_SCHEDULE_1F1B;
}

static void test_llama(void **state)
{
    (void)state;
    try_layouts(llama, llama_cases, IM_COUNT_OF(llama_cases), false, IM_KERNELS_FAST);
}

static void test_tied(void **state)
{
    (void)state;
    try_layouts(llama_tied, tied_cases, IM_COUNT_OF(tied_cases), false, IM_KERNELS_FAST);
}

static void test_gpt2(void **state)
{
    (void)state;
    try_layouts(gpt2, gpt2_cases, IM_COUNT_OF(gpt2_cases), false, IM_KERNELS_FAST);
}

/* plain kernels, and memory unreadable outside ops */
static void test_deferred(void **state)
{
    (void)state;
    static const layout_case cases[] = {{2, 1, 1, 1, 0, 2, 3}, {1, 0, 2, 1, 3, 0, 2}, {2, 0, 2, 1, 1, 0, 2}};
    try_layouts(llama, cases, IM_COUNT_OF(cases), true, IM_KERNELS_PLAIN);
    try_layouts(gpt2, cases, IM_COUNT_OF(cases), true, IM_KERNELS_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama),      cmocka_unit_test(test_tied),     cmocka_unit_test(test_gpt2),
                                       cmocka_unit_test(test_deferred),   cmocka_unit_test(test_pipeline), cmocka_unit_test(test_interleaved),
                                       cmocka_unit_test(test_zero_bubble)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
