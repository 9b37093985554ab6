/* Rule 1 for every family but those of test_layout.c: windows, norms of q and k (of each head, of all heads over the ranks), norms behind the
 * branches, fused and interleaved weights, side-by-side residuals, ALiBi, a norm behind the embedding. Sizes divide nothing. */
#include "layout/try.h"

#define GATED                                                                                                                                    \
    "\"hidden_size\":28,\"intermediate_size\":37,\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":3,\"vocab_size\":67," \
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"head_dim\":6"
/* 8 heads on 2: with tp 4 and 8 several ranks hold a kv head */
#define SHARED_KV                                                                                                                                \
    "\"hidden_size\":28,\"intermediate_size\":37,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":2,\"vocab_size\":67," \
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"head_dim\":6"

static const char mistral[] = "{\"model_type\":\"mistral\"," GATED ",\"sliding_window\":5}";
static const char qwen2[] = "{\"model_type\":\"qwen2\"," GATED ",\"use_sliding_window\":true,\"sliding_window\":4,\"max_window_layers\":1,"
                            "\"attention_dropout\":0.1,\"tie_word_embeddings\":true}";
static const char qwen3[] = "{\"model_type\":\"qwen3\"," GATED "}";
static const char qwen3_shared[] = "{\"model_type\":\"qwen3\"," SHARED_KV ",\"attention_bias\":true}";
static const char olmo2[] = "{\"model_type\":\"olmo2\"," GATED ",\"attention_bias\":true}";
static const char olmo2_shared[] = "{\"model_type\":\"olmo2\"," SHARED_KV ",\"tie_word_embeddings\":true,\"attention_dropout\":0.1}";
static const char phi3[] = "{\"model_type\":\"phi3\"," GATED ",\"sliding_window\":6,\"partial_rotary_factor\":0.67,\"resid_pdrop\":0.1}";
static const char phi3_shared[] = "{\"model_type\":\"phi3\"," SHARED_KV "}";
static const char neox[] = "{\"model_type\":\"gpt_neox\",\"hidden_size\":30,\"num_attention_heads\":5,\"num_hidden_layers\":3,"
                           "\"intermediate_size\":37,\"vocab_size\":67,\"max_position_embeddings\":64,\"rotary_pct\":0.4,\"hidden_dropout\":0.1}";
static const char neox_serial[] = "{\"model_type\":\"gpt_neox\",\"hidden_size\":30,\"num_attention_heads\":5,\"num_hidden_layers\":2,"
                                  "\"intermediate_size\":37,\"vocab_size\":67,\"max_position_embeddings\":64,\"use_parallel_residual\":false,"
                                  "\"rotary_pct\":1.0,\"attention_bias\":false,\"tie_word_embeddings\":true}";
static const char bloom[] = "{\"model_type\":\"bloom\",\"hidden_size\":30,\"n_head\":5,\"n_layer\":3,\"vocab_size\":67,\"hidden_dropout\":0.1,"
                            "\"attention_dropout\":0.1}";
static const char bloom_untied[] = "{\"model_type\":\"bloom\",\"hidden_size\":30,\"n_head\":6,\"n_layer\":2,\"vocab_size\":67,"
                                   "\"tie_word_embeddings\":false}";

/* {tp, sp, dp, pp, zero, recompute, micro-batch} */
static const layout_case usual[] = {
    {2, 0, 1, 1, 0, 1, 3}, {3, 1, 1, 1, 0, 2, 2}, {1, 0, 2, 1, 3, 2, 2}, {2, 1, 2, 1, 2, 0, 2}, {2, 1, 1, 2, 0, 2, 2}, {3, 0, 2, 1, 1, 0, 2},
};
static const layout_case shared[] = {{2, 1, 1, 1, 0, 0, 3}, {4, 0, 1, 1, 0, 2, 2}, {4, 1, 2, 1, 1, 1, 2}, {8, 1, 1, 1, 0, 0, 7}};
static const layout_case untied_shared[] = {{4, 1, 2, 1, 3, 2, 2}, {4, 0, 1, 2, 0, 1, 2}, {8, 0, 1, 1, 0, 2, 4}};
static const layout_case few[] = {{5, 1, 1, 1, 0, 0, 3}, {1, 0, 1, 2, 1, 2, 2}, {2, 0, 2, 2, 0, 1, 2}};
/* tied over stages: ZeRO 2 and 3 are refused there, and run without */
static const layout_case tied[] = {{2, 1, 1, 2, 0, 1, 2}, {3, 0, 2, 1, 3, 2, 2}, {1, 0, 3, 1, 2, 0, 1}};

#define TRY(model, cases) try_layouts(model, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST)

static void test_windows(void **state)
{
    (void)state;
    TRY(mistral, usual);
    TRY(qwen2, tied);
}

static void test_norms_of_heads(void **state)
{
    (void)state;
    TRY(qwen3, usual);
    TRY(qwen3_shared, shared);
    TRY(qwen3_shared, untied_shared);
}

static void test_norms_over_all_heads(void **state)
{
    (void)state;
    TRY(olmo2, usual);
    TRY(olmo2_shared, shared);
}

static void test_fused_weights(void **state)
{
    (void)state;
    TRY(phi3, usual);
    TRY(phi3_shared, shared);
    TRY(phi3_shared, untied_shared);
}

static void test_side_by_side(void **state)
{
    (void)state;
    TRY(neox, usual);
    TRY(neox, few);
    TRY(neox_serial, tied);
}

static void test_alibi(void **state)
{
    (void)state;
    TRY(bloom, tied);
    TRY(bloom, few);
    TRY(bloom_untied, usual);
}

/* The backward in two parts, and two runs of blocks a stage. */
static void test_schedules(void **state)
{
    (void)state;
    static const char *const models[] = {mistral, qwen3, olmo2, phi3, neox, bloom_untied};
    static const layout_case two_parts[] = {{2, 1, 1, 2, 0, 0, 2}}, cases[] = {{2, 1, 1, 2, 0, 0, 2}, {1, 0, 2, 2, 3, 2, 2}};
    schedule = IM_SCHEDULE_ZB_H1;
    for (size_t i = 0; i < IM_COUNT_OF(models); i++)
        TRY(models[i], two_parts);
    static const char deep[] = "{\"model_type\":\"qwen2\",\"hidden_size\":40,\"intermediate_size\":37,\"num_hidden_layers\":4,"
                               "\"num_attention_heads\":6,\"num_key_value_heads\":3,\"head_dim\":6,\"vocab_size\":67,\"rms_norm_eps\":1e-5,"
                               "\"use_sliding_window\":true,\"sliding_window\":4,\"max_window_layers\":1}";
    schedule = IM_SCHEDULE_INTERLEAVED; /* blocks with and without windows on each stage */
    chunks = 2;
    TRY(deep, cases);
    schedule = IM_SCHEDULE_1F1B;
    chunks = 1;
}

/* plain kernels, and memory unreadable outside ops */
static void test_deferred(void **state)
{
    (void)state;
    static const char *const models[] = {mistral, qwen3, olmo2, phi3, neox, bloom};
    static const layout_case cases[] = {{2, 1, 1, 1, 0, 2, 3}, {2, 0, 2, 1, 1, 0, 2}};
    for (size_t i = 0; i < IM_COUNT_OF(models); i++)
        try_layouts(models[i], cases, IM_COUNT_OF(cases), true, IM_KERNELS_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),       cmocka_unit_test(test_norms_of_heads), cmocka_unit_test(test_norms_over_all_heads),
        cmocka_unit_test(test_fused_weights), cmocka_unit_test(test_side_by_side),   cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_deferred),      cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
