/* The families beyond Llama and GPT-2: what their configs mean in both spellings, what is refused by name, the rotary types, what is written back. */
#include "model/family.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static im_context *ctx;

static int setup(void **state)
{
    (void)state;
    return im_context_create(&ctx);
}

static int teardown(void **state)
{
    (void)state;
    im_context_destroy(ctx);
    return 0;
}

#define SIZES "\"vocab_size\":11,\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":4,\"num_attention_heads\":4"
#define MISTRAL "\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2"
#define QWEN2 "\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":2"
#define QWEN3 "\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":2"
#define OLMO2 "\"model_type\":\"olmo2\"," SIZES
#define PHI3 "\"model_type\":\"phi3\"," SIZES
#define NEOX                                                                                                             \
    "\"model_type\":\"gpt_neox\",\"vocab_size\":11,\"hidden_size\":32,\"intermediate_size\":20,\"num_hidden_layers\":4," \
    "\"num_attention_heads\":4"
#define BLOOM "\"model_type\":\"bloom\",\"vocab_size\":11,\"hidden_size\":24,\"n_layer\":2,\"n_head\":4"
#define LONG "\"short_factor\":[1,1.5,2],\"long_factor\":[2,3,4]"

static im_status parse(const char *text, im_model **m)
{
    im_json *doc;
    im_error_clear(ctx);
    im_status status = im_json_parse(ctx, "dir/config.json", text, strlen(text), &doc);
    if (status != IM_OK)
        return status;
    status = im_model_parse(ctx, doc, m);
    im_json_free(doc);
    return status;
}

static im_model *parsed(const char *text)
{
    im_model *m = NULL;
    if (parse(text, &m) != IM_OK)
        fail_msg("%s: %s", text, im_error_text(ctx));
    return m;
}

static bool has(const im_model *m, int unit, im_slot slot)
{
    return m->unit[unit].param[slot] >= 0;
}

static void expect_windows(const char *text, int64_t first, int64_t second, int64_t third, int64_t fourth)
{
    const int64_t want[] = {first, second, third, fourth};
    im_model *m = parsed(text);
    for (int i = 0; i < 4; i++)
        if (m->unit[1 + i].window != want[i])
            fail_msg("%s: block %d has a window of %lld, not %lld", text, i, (long long)m->unit[1 + i].window, (long long)want[i]);
    im_model_close(m);
}

/* PITFALLS: no key, null and a number are three different things here, as in Transformers. */
static void test_windows(void **state)
{
    (void)state;
    expect_windows("{" MISTRAL "}", 4096, 4096, 4096, 4096);
    expect_windows("{" MISTRAL ",\"sliding_window\":null}", 0, 0, 0, 0);
    expect_windows("{" MISTRAL ",\"sliding_window\":7}", 7, 7, 7, 7);
    expect_windows("{" PHI3 "}", 0, 0, 0, 0);
    expect_windows("{" PHI3 ",\"sliding_window\":2047}", 2047, 2047, 2047, 2047);
    expect_windows("{" QWEN2 ",\"sliding_window\":9,\"max_window_layers\":1}", 0, 0, 0, 0);
    expect_windows("{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":1}", 0, 9, 9, 9);
    expect_windows("{" QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":9}", 0, 0, 0, 0); /* from block 28 on */
    expect_windows("{" QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0}", 0, 0, 0, 0);
    expect_windows("{" QWEN3 ",\"use_sliding_window\":true,\"max_window_layers\":3}", 0, 0, 0, 4096);
    expect_windows("{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":0,\"layer_types\":[\"sliding_attention\","
                   "\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
                   9, 0, 0, 9);
}

static void test_what_families_have(void **state)
{
    (void)state;
    im_model *m = parsed("{" QWEN2 "}");
    assert_true(has(m, 1, IM_SLOT_Q_B) && has(m, 1, IM_SLOT_K_B) && has(m, 1, IM_SLOT_V_B) && !has(m, 1, IM_SLOT_O_B));
    im_model_close(m);
    m = parsed("{" QWEN3 "}");
    assert_int_equal(m->arch.E, 128); /* not hidden_size / heads */
    assert_int_equal(m->param[m->unit[2].param[IM_SLOT_Q_NORM_W]].shape[0], 128);
    assert_true(!has(m, 1, IM_SLOT_Q_B) && m->arch.qk_norm == IM_QK_NORM_HEAD && m->arch.residual == IM_RESIDUAL_PRE);
    im_model_close(m);
    m = parsed("{" OLMO2 ",\"num_key_value_heads\":2,\"attention_bias\":true}");
    assert_int_equal(m->param[m->unit[2].param[IM_SLOT_Q_NORM_W]].shape[0], 24);
    assert_int_equal(m->param[m->unit[2].param[IM_SLOT_K_NORM_W]].shape[0], 12);
    assert_true(has(m, 1, IM_SLOT_O_B) && m->arch.qk_norm == IM_QK_NORM_ALL && m->arch.residual == IM_RESIDUAL_POST);
    assert_true(im_model_find_param(m, "model.layers.3.post_feedforward_layernorm.weight") >= 0);
    assert_true(im_model_find_param(m, "model.layers.3.input_layernorm.weight") < 0);
    im_model_close(m);
    m = parsed("{" PHI3 ",\"num_key_value_heads\":2}");
    assert_int_equal(m->param[m->unit[1].param[IM_SLOT_Q_W]].shape[0], 24 + 2 * 12);
    assert_int_equal(m->param[m->unit[1].param[IM_SLOT_GATE_W]].shape[0], 40);
    assert_true(!has(m, 1, IM_SLOT_K_W) && !has(m, 1, IM_SLOT_UP_W));
    im_model_close(m);
    m = parsed("{" NEOX "}");
    assert_true(m->arch.residual == IM_RESIDUAL_PARALLEL && m->arch.qkv_by_head && m->arch.norm == IM_NORM_LAYER && has(m, 1, IM_SLOT_Q_B));
    assert_int_equal(m->unit[m->nunit - 1].param[IM_SLOT_HEAD_W], im_model_find_param(m, "embed_out.weight"));
    im_model_close(m);
    m = parsed("{" NEOX ",\"use_parallel_residual\":false,\"attention_bias\":false,\"rotary_pct\":1.0}");
    assert_true(m->arch.residual == IM_RESIDUAL_PRE && !has(m, 1, IM_SLOT_Q_B) && !has(m, 1, IM_SLOT_O_B) && has(m, 1, IM_SLOT_UP_B));
    im_model_close(m);
    m = parsed("{\"model_type\":\"bloom\",\"vocab_size\":11,\"n_embed\":24,\"num_hidden_layers\":2,\"num_attention_heads\":3,\"n_inner\":null}");
    assert_true(m->arch.alibi && m->arch.tied && m->arch.P == 0 && m->arch.F == 96 && m->arch.rope_dims == 0);
    assert_true(has(m, 0, IM_SLOT_NORM1_W) && has(m, 0, IM_SLOT_NORM1_B));
    im_model_close(m);
}

static void expect_refused(const char *text, im_status code, const char *message)
{
    im_model *m = NULL;
    const im_status got = parse(text, &m);
    if (got != code || !strstr(im_error_text(ctx), message) || !strstr(im_error_text(ctx), "dir/config.json"))
        fail_msg("%s\n  gave %d \"%s\"\n  expected %d \"%s\"", text, got, im_error_text(ctx), code, message);
    assert_null(m);
}

/* Keys of other families change what they compute: refused by name, never passed over. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        im_status code;
        const char *message;
    } cases[] = {
        {"{" MISTRAL ",\"sliding_window\":0}", IM_ERR_FORMAT, "sliding_window is 0"},
        {"{" MISTRAL ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
         IM_ERR_UNSUPPORTED, "layer_types differs from block to block"},
        {"{" MISTRAL ",\"attention_bias\":true}", IM_ERR_UNSUPPORTED, "attention_bias is true: that is not implemented for model_type \"mistral\""},
        {"{" MISTRAL ",\"num_local_experts\":8}", IM_ERR_UNSUPPORTED, "num_local_experts is 8"},
        {"{" MISTRAL ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"llama_4_scaling_beta\":0.1}}", IM_ERR_UNSUPPORTED,
         "rope_parameters.llama_4_scaling_beta"},
        {"{" MISTRAL ",\"head_dim\":3}", IM_ERR_FORMAT, "head_dim"},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\"]}", IM_ERR_FORMAT, "layer_types must be a list of 4 names"},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"chunked_attention\",\"full_attention\"]}", IM_ERR_UNSUPPORTED,
         "layer_types[2] is \"chunked_attention\""},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}", IM_ERR_FORMAT,
         "layer_types[2] is \"sliding_attention\", but use_sliding_window is not true"},
        {"{" QWEN2 ",\"use_mrope\":true}", IM_ERR_UNSUPPORTED, "use_mrope"},
        {"{" QWEN2 ",\"is_causal\":false}", IM_ERR_UNSUPPORTED, "is_causal is false"},
        {"{\"model_type\":\"qwen2\"," SIZES "}", IM_ERR_FORMAT, "num_attention_heads 4 is not a multiple of num_key_value_heads 32"},
        {"{" QWEN3 ",\"num_experts\":128}", IM_ERR_UNSUPPORTED, "num_experts is 128"},
        {"{\"model_type\":\"qwen3_moe\"," SIZES "}", IM_ERR_UNSUPPORTED, "model_type \"qwen3_moe\" is not implemented"},
        {"{" OLMO2 ",\"clip_qkv\":8.0}", IM_ERR_UNSUPPORTED, "clip_qkv is 8"},
        {"{" OLMO2 ",\"sliding_window\":8}", IM_ERR_UNSUPPORTED, "sliding_window is 8"},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", IM_ERR_UNSUPPORTED, "default and longrope are"},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,1,1]}}", IM_ERR_FORMAT,
         "rope_scaling.short_factor must be a list of 3 numbers"},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,0],\"long_factor\":[1,1,1]}}", IM_ERR_FORMAT, "short_factor[2]"},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\"," LONG ",\"short_mscale\":1.2}}", IM_ERR_UNSUPPORTED, "rope_scaling.short_mscale"},
        {"{" PHI3 ",\"partial_rotary_factor\":0.5}", IM_ERR_FORMAT, "3 of a head's 6 dims are rotary (partial_rotary_factor 0.5)"},
        {"{" PHI3 ",\"rope_parameters\":{\"rope_type\":\"longrope\"," LONG ",\"original_max_position_embeddings\":64}}", IM_ERR_FORMAT,
         "original_max_position_embeddings is 4096 but rope_parameters.original_max_position_embeddings is 64"},
        {"{" NEOX ",\"rotary_pct\":0.4}", IM_ERR_FORMAT, "3 of a head's 8 dims are rotary (rotary_pct 0.4)"},
        {"{" NEOX ",\"rotary_pct\":1,\"rotary_emb_base\":10000,\"rope_theta\":500}", IM_ERR_FORMAT, "rope_theta is 500 but rotary_emb_base is 10000"},
        {"{" NEOX ",\"rotary_pct\":1,\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", IM_ERR_FORMAT,
         "rotary_pct is 1 but rope_parameters.partial_rotary_factor is 0.5"},
        {"{" NEOX ",\"hidden_act\":\"relu2\"}", IM_ERR_UNSUPPORTED, "hidden_act is \"relu2\""},
        {"{" BLOOM ",\"apply_residual_connection_post_layernorm\":true}", IM_ERR_UNSUPPORTED, "apply_residual_connection_post_layernorm is true"},
        {"{" BLOOM ",\"pretraining_tp\":2,\"slow_but_exact\":true}", IM_ERR_UNSUPPORTED, "slow_but_exact is true"},
        {"{" BLOOM ",\"n_inner\":50}", IM_ERR_FORMAT, "n_inner is 50: it must be a whole number from 96 to 96"},
        {"{" BLOOM ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", IM_ERR_UNSUPPORTED, "rope_scaling is {"},
        {"{" QWEN3 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":1}}", IM_ERR_FORMAT,
         "rope_scaling.truncate must be true or false"},
        {"{" QWEN3 ",\"rope_scaling\":{\"type\":\"yarn\"}}", IM_ERR_FORMAT, "rope_scaling.factor is missing"},
        {"{" QWEN3 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":2}}", IM_ERR_FORMAT, "beta_fast 1"},
        {"{" QWEN3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", IM_ERR_UNSUPPORTED, "rope_parameters.full_attention"},
        {"{" QWEN3
         ",\"original_max_position_embeddings\":8,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":9}}",
         IM_ERR_FORMAT, "original_max_position_embeddings is 8 but rope_scaling.original_max_position_embeddings is 9"},
        {"{\"model_type\":\"llama\"," SIZES ",\"attention_multiplier\":0.1}", IM_ERR_UNSUPPORTED, "attention_multiplier"},
        {"{\"model_type\":\"llama\"," SIZES ",\"sliding_window\":64}", IM_ERR_UNSUPPORTED, "sliding_window is 64"},
        {"{\"model_type\":\"llama\"," SIZES ",\"pruned_heads\":{\"0\":[1]}}", IM_ERR_UNSUPPORTED, "pruned_heads"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++)
        expect_refused(cases[i].text, cases[i].code, cases[i].message);
    /* and what says nothing passes */
    im_model_close(parsed("{\"model_type\":\"llama\"," SIZES ",\"sliding_window\":null,\"num_experts\":0,\"pruned_heads\":{},\"is_causal\":true,"
                          "\"residual_multiplier\":1.0,\"use_sliding_window\":false,\"qk_layernorm\":false}"));
}

/* The numbers of Transformers' _compute_yarn_parameters and _compute_longrope_parameters (5.24, in fp64). */
static void test_rope_types(void **state)
{
    (void)state;
    im_model *m = parsed("{\"model_type\":\"qwen3\",\"vocab_size\":11,\"hidden_size\":32,\"intermediate_size\":20,\"num_hidden_layers\":1,"
                         "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"rope_theta\":500.0,\"max_position_embeddings\":64,"
                         "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16,\"beta_fast\":4,"
                         "\"beta_slow\":0.5}}");
    static const double yarn[8] = {1.0,
                                   0.3448974733700777,
                                   0.10573712634405642,
                                   0.024312311811651825,
                                   0.011180339887498949,
                                   0.005141427971489448,
                                   0.0023643540225079395,
                                   0.0010872796380204908};
    for (int i = 0; i < 8; i++)
        assert_true(fabs(im_rope_frequency(&m->arch, 64, i) / yarn[i] - 1) < 1e-12);
    assert_float_equal(m->arch.rope_attention, 0.1 * log(4) + 1, 1e-15);
    float table[16];
    im_rope_table(&m->arch, 64, 3, 1, table);
    assert_float_equal(table[1], cos(3 * yarn[1]) * m->arch.rope_attention, 1e-6);
    assert_float_equal(table[9], sin(3 * yarn[1]) * m->arch.rope_attention, 1e-6);
    im_model_close(m);

    m = parsed("{" PHI3 ",\"max_position_embeddings\":32768,\"rope_theta\":400.0,\"rope_scaling\":{\"type\":\"su\"," LONG "}}");
    assert_int_equal(m->arch.rope_scaling, IM_ROPE_LONG);
    assert_int_equal(m->arch.rope_original_positions, 4096);
    assert_float_equal(m->arch.rope_attention, sqrt(1 + log(8) / log(4096)), 1e-15);
    /* the longest sequence that a run can hold decides for all of its positions */
    const double f[] = {1, pow(400, -1.0 / 3), pow(400, -2.0 / 3)}, near[] = {1, 1.5, 2}, far[] = {2, 3, 4};
    for (int i = 0; i < 3; i++) {
        assert_float_equal(im_rope_frequency(&m->arch, 4096, i), f[i] / near[i], 1e-15);
        assert_float_equal(im_rope_frequency(&m->arch, 4097, i), f[i] / far[i], 1e-15);
    }
    im_model_close(m);
}

static void same_arch(const im_arch *a, const im_arch *b)
{
    assert_true(a->D == b->D && a->H == b->H && a->K == b->K && a->E == b->E && a->F == b->F && a->V == b->V && a->L == b->L && a->P == b->P);
    assert_true(a->norm == b->norm && a->norm_eps == b->norm_eps && a->act == b->act && a->tied == b->tied && a->alibi == b->alibi);
    assert_true(a->residual == b->residual && a->qk_norm == b->qk_norm && a->qkv_by_head == b->qkv_by_head && a->gated == b->gated);
    assert_true(a->rope_dims == b->rope_dims && a->rope_part == b->rope_part && a->rope_theta == b->rope_theta);
    assert_true(a->rope_scaling == b->rope_scaling && a->rope_factor == b->rope_factor && a->rope_attention == b->rope_attention);
    assert_true(a->rope_original_positions == b->rope_original_positions && a->rope_truncate == b->rope_truncate);
    assert_true(a->rope_beta_fast == b->rope_beta_fast && a->rope_beta_slow == b->rope_beta_slow);
    assert_memory_equal(a->rope_short, b->rope_short, sizeof a->rope_short);
    assert_memory_equal(a->rope_long, b->rope_long, sizeof a->rope_long);
}

/* The same model comes back from what is written, whichever spelling was read; and Transformers 4 finds its keys. */
static void test_written_again(void **state)
{
    (void)state;
    static const struct {
        const char *text, *keys[4];
    } cases[] = {
        {"{" NEOX ",\"rotary_pct\":0.5,\"rotary_emb_base\":500}",
         {"\"rotary_emb_base\": 500.0", "\"rotary_pct\": 0.5", "\"rope_parameters\": {\"rope_theta\": 500.0, \"partial_rotary_factor\": 0.5"}},
        {"{" NEOX ",\"rope_parameters\":{\"rope_theta\":500.0,\"partial_rotary_factor\":0.34,\"rope_type\":\"linear\",\"factor\":2.0}}",
         {"\"rotary_emb_base\": 500.0", "\"rotary_pct\": 0.34", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}"}},
        {"{" PHI3 ",\"max_position_embeddings\":8192,\"partial_rotary_factor\":1.0,\"rope_scaling\":{\"type\":\"longrope\"," LONG "}}",
         {"\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1.0, 1.5, 2.0], \"long_factor\": [2.0, 3.0, 4.0]}",
          "\"partial_rotary_factor\": 1.0", "\"architectures\": [\"Phi3ForCausalLM\"]"}},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\"," LONG ",\"attention_factor\":1.5}}", {"\"attention_factor\": 1.5"}},
        {"{" QWEN3 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":false}}",
         {"\"truncate\": false", "\"original_max_position_embeddings\": 32768"}},
        {"{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":2}", {"\"sliding_window\": 9"}},
        {"{" MISTRAL ",\"sliding_window\":null}", {"\"sliding_window\": null"}},
        {"{" OLMO2 "}", {"\"architectures\": [\"Olmo2ForCausalLM\"]"}},
        {"{" BLOOM "}", {"\"architectures\": [\"BloomForCausalLM\"]", "\"model_type\": \"bloom\""}},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_model *m = parsed(cases[i].text), *again;
        im_str out = {0};
        assert_int_equal(im_model_config_text(ctx, m, IM_F32, &out), IM_OK);
        again = parsed(im_str_text(&out));
        same_arch(&m->arch, &again->arch);
        for (size_t u = 0; u < m->nunit; u++)
            assert_int_equal(m->unit[u].window, again->unit[u].window);
        for (int k = 0; k < 4 && cases[i].keys[k]; k++)
            if (!strstr(im_str_text(&out), cases[i].keys[k]))
                fail_msg("no %s in %s", cases[i].keys[k], im_str_text(&out));
        im_str_free(&out);
        im_model_close(m);
        im_model_close(again);
    }
}

/* Slopes as Press et al. give them for 8 heads, and BLOOM for numbers that are no power of two. */
static void test_slopes(void **state)
{
    (void)state;
    for (int h = 0; h < 8; h++)
        assert_float_equal(im_alibi_slope(h, 8), pow(2, -(h + 1)), 1e-15);
    static const double five[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5};
    for (int h = 0; h < 5; h++)
        assert_float_equal(im_alibi_slope(h, 5), five[h], 1e-15);
    assert_float_equal(im_alibi_slope(111, 112), pow(2, -4.0 * 95 / 64), 1e-15);
}

static void test_flops_of_windows(void **state)
{
    (void)state;
    im_model *all = parsed("{" QWEN2 "}"), *some = parsed("{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":1}");
    /* three of four blocks see 9 of 100 keys */
    const double gone = 12.0 * 24 * 3 * (100 - 9);
    assert_float_equal(im_model_flops_per_token(all, 100) - im_model_flops_per_token(some, 100), gone, 1e-6);
    assert_float_equal(im_model_flops_per_token(all, 9), im_model_flops_per_token(some, 9), 1e-6);
    im_model_close(all);
    im_model_close(some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),          cmocka_unit_test(test_what_families_have), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_rope_types),       cmocka_unit_test(test_written_again),      cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_flops_of_windows),
    };
    return cmocka_run_group_tests_name("families", tests, setup, teardown);
}
