/* Documents that share a sample do not see one another: packed rows give the losses and gradients of each document run alone, in every layout. */
#include "layout/rig.h"

#include "data/feed.h"

#include <unistd.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"n_embd\":30,\"n_head\":5,\"n_layer\":2,\"vocab_size\":101,\"n_positions\":40,\"n_inner\":50,"
    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,\"attn_pdrop\":0.0}";

enum { T = 24, DOCUMENTS = 23 };
static char dir[] = "/tmp/imece-documents-XXXXXX";
static im_context *ctx;

static void ok(im_status s)
{
    if (s != IM_OK)
        fail_msg("%s: %s", im_status_name(s), im_error_text(ctx));
}

/* A document of one row alone, one of two tokens, one that fills a row but for a place, and others; some tokens do not count. */
static int setup(void **state)
{
    (void)state;
    char name[64];
    im_tokens_writer *w;
    if (!mkdtemp(dir) || im_context_create(&ctx) != IM_OK)
        return -1;
    snprintf(name, sizeof name, "%s/d", dir);
    ok(im_tokens_create_at(ctx, name, &(im_tokens_kind){.dtype = IM_U16, .masked = true}, NULL, &w));
    for (uint64_t d = 0; d < DOCUMENTS; d++) {
        uint32_t r[4];
        im_philox(5, d, 0, r);
        int n = d == 3 ? T + 1 : d == 7 ? 2 : d == 9 ? T : 2 + (int)(r[0] % 14);
        for (int i = 0; i < n; i++) {
            im_philox(6, d, (uint64_t)i, r);
            int32_t id = (int32_t)(r[0] % 101);
            unsigned char counted = r[1] % 5 > d % 4;
            ok(im_tokens_append_masked(w, &id, &counted, 1));
        }
        ok(im_tokens_end_document(w));
    }
    ok(im_tokens_finish(w));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    im_status s = im_remove_tree(ctx, dir);
    im_context_destroy(ctx);
    return s == IM_OK ? 0 : -1;
}

static im_status load(void *arg, const im_op_now *now, int64_t first, int64_t B, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    for (int64_t b = 0; b < B; b++)
        IM_TRY(im_feed_read(ctx, arg, now->sample0 + first + b, ids + b * n, targets + b * n, pos + b * n, seg ? seg + b * n : NULL));
    return IM_OK;
}

typedef struct layout_case {
    int tp, sp, dp, pp, zero, recompute;
    int64_t mbs;
} layout_case;

/* One step over all documents. The gradients are of the sum over tokens. */
static void run(const im_model *m, im_pack pack, im_reach attention, const layout_case *c, rig_result *out)
{
    char name[64];
    im_feed *f;
    snprintf(name, sizeof name, "%s/d", dir);
    ok(im_feed_open(ctx, name, &(im_feed_config){.seq_len = T, .vocab = 101, .pack = pack, .attention = attention}, &f));
    im_source source = {.arg = f, .load = load};
    rig_hooks hooks = {.source = &source};
    im_plan p;
    im_plan_defaults(&p, m);
    p.mesh = (im_mesh){c->tp, 1, c->dp, c->pp};
    p.sequence_parallel = c->sp;
    p.zero = c->zero;
    p.recompute = (im_recompute)c->recompute;
    p.seq_len = T;
    p.micro_batch = c->mbs;
    p.global_batch = im_feed_samples(f);
    p.threads = 1;
    p.documents = im_feed_documents(f);
    im_status s = rig_train_with(&p, 1, false, IM_KERNELS_FAST, &hooks, out);
    im_feed_close(f);
    if (s != IM_OK)
        fail_msg("%s", out->error);
}

static double worst_gradient(const im_model *m, const rig_result *a, const rig_result *b)
{
    double worst = 0;
    for (size_t q = 0; q < m->nparam; q++) {
        double d = rig_distance(a->grad[q], b->grad[q], (size_t)im_param_count(&m->param[q]), 1e-3 * b->norm[0] * b->tokens[0]);
        worst = d > worst ? d : worst;
    }
    return worst;
}

static const layout_case cases[] = {
    {1, 0, 1, 1, 0, 0, 100}, {1, 0, 1, 1, 0, 0, 2}, {1, 0, 1, 1, 0, 2, 3}, {1, 0, 1, 1, 0, 1, 1}, {3, 0, 1, 1, 0, 0, 2}, {3, 1, 1, 1, 0, 1, 3},
    {1, 0, 2, 1, 0, 0, 2},   {1, 0, 3, 1, 3, 0, 1}, {1, 0, 1, 2, 0, 0, 2}, {1, 0, 2, 2, 1, 2, 1}, {3, 1, 1, 2, 0, 0, 2}, {2, 1, 2, 2, 1, 1, 1},
};

static void check(const char *config)
{
    im_json *doc;
    im_model *m;
    ok(im_json_parse(ctx, "test.json", config, strlen(config), &doc));
    ok(im_model_parse(ctx, doc, &m));
    im_json_free(doc);
    rig_result alone, packed;
    run(m, IM_PACK_NONE, IM_REACH_CAUSAL, &(layout_case){.tp = 1, .dp = 1, .pp = 1, .mbs = 1}, &alone);
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        const layout_case *c = &cases[i];
        run(m, IM_PACK_WHOLE, IM_REACH_DOCUMENT, c, &packed);
        double g = worst_gradient(m, &packed, &alone);
        if (packed.tokens[0] != alone.tokens[0] || !(fabs(packed.loss[0] - alone.loss[0]) <= 1e-5 * alone.loss[0]) || !(g <= 1e-5))
            fail_msg("tp %d sp %d dp %d pp %d zero %d recompute %d: packed %.9g of %g tokens, alone %.9g of %g; gradients differ by %g", c->tp, c->sp,
                     c->dp, c->pp, c->zero, c->recompute, packed.loss[0], packed.tokens[0], alone.loss[0], alone.tokens[0], g);
        rig_free(m, &packed);
    }
    run(m, IM_PACK_WHOLE, IM_REACH_CAUSAL, &cases[0], &packed); /* the test can tell: documents that see one another give something else */
    assert_true(fabs(packed.loss[0] - alone.loss[0]) > 1e-4 * alone.loss[0]);
    assert_true(worst_gradient(m, &packed, &alone) > 1e-3);
    rig_free(m, &packed);
    rig_free(m, &alone);
    im_model_close(m);
}

static void rotary(void **state)
{
    (void)state;
    check(llama);
}

static void learned_positions(void **state)
{
    (void)state;
    check(gpt2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rotary), cmocka_unit_test(learned_positions)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
