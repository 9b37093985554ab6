/* cases.h: tiny models whose sizes divide nothing, layouts of them, and how a layout's run is compared with one rank's. */
#ifndef IM_TEST_LAYOUT_CASES_H
#define IM_TEST_LAYOUT_CASES_H

#include "layout/rig.h"

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

#ifdef __SANITIZE_THREAD__
enum { STEPS = 2 }; /* the same communication each step, and 20 times as slow */
#else
enum { STEPS = 5 };
#endif

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

/* The first thing in which the two differ, into `why`; false: none. Rule 1. */
static inline bool differs(const im_model *m, const layout_case *c, const rig_result *got, const rig_result *one, char *why, size_t size)
{
    char name[128];
    name_of(c, name, sizeof name);
    for (int i = 0; i < STEPS; i++) {
        if (got->tokens[i] != one->tokens[i])
            return snprintf(why, size, "%s: step %d counts %g tokens, one rank %g", name, i, got->tokens[i], one->tokens[i]);
        if (!(fabs(got->loss[i] - one->loss[i]) <= 1e-5 * fabs(one->loss[i])))
            return snprintf(why, size, "%s: loss of step %d is %.9g, one rank %.9g", name, i, got->loss[i], one->loss[i]);
        if (!(fabs(got->norm[i] - one->norm[i]) <= 1e-5 * fabs(one->norm[i])))
            return snprintf(why, size, "%s: gradient norm of step %d is %.9g, one rank %.9g", name, i, got->norm[i], one->norm[i]);
    }
    if (c->dp == 1 && !(fabs(got->eval_loss - one->eval_loss) <= 1e-5 * fabs(one->eval_loss)))
        return snprintf(why, size, "%s: evaluation gives %.9g, one rank %.9g", name, got->eval_loss, one->eval_loss);
    double all = one->norm[STEPS - 1] * one->tokens[STEPS - 1]; /* of the summed gradients */
    for (size_t q = 0; q < m->nparam; q++) {
        size_t n = (size_t)im_param_count(&m->param[q]);
        double w = rig_distance(got->weight[q], one->weight[q], n, 1e-30), g = rig_distance(got->grad[q], one->grad[q], n, 1e-3 * all);
        if (!(g <= 1e-5))
            return snprintf(why, size, "%s: gradient of %s differs by %g", name, m->param[q].name, g);
        if (!(w <= 1e-5))
            return snprintf(why, size, "%s: %s differs by %g after %d steps", name, m->param[q].name, w, STEPS);
    }
    return false;
}

/* The same of two runs of one layout: bit for bit. */
static inline bool differs_in_bits(const im_model *m, const layout_case *c, const rig_result *a, const rig_result *b, char *why, size_t size)
{
    char name[128];
    name_of(c, name, sizeof name);
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i])
            return snprintf(why, size, "%s: the second run's loss of step %d is not the same bits", name, i);
    for (size_t q = 0; q < m->nparam; q++)
        if (memcmp(a->weight[q], b->weight[q], (size_t)im_param_count(&m->param[q]) * 4))
            return snprintf(why, size, "%s: the second run's %s is not the same bits", name, m->param[q].name);
    return false;
}

#endif
