/* src/model: configs of Llama and GPT-2 in the spellings of Transformers 4 and 5, what is refused and how, the tables, the named shapes. */
#include "model/family.h"
#include "model/layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
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

#define LLAMA_SIZES \
    "\"model_type\":\"llama\",\"vocab_size\":11,\"hidden_size\":12,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":6"
#define GPT2_SIZES "\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_positions\":16,\"n_embd\":12,\"n_layer\":2,\"n_head\":3"

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

static void expect_refused(const char *text, im_status code, const char *message)
{
    im_model *m = NULL;
    const im_status got = parse(text, &m);
    if (got != code || !strstr(im_error_text(ctx), message) || !strstr(im_error_text(ctx), "dir/config.json"))
        fail_msg("%s\n  gave %d \"%s\"\n  expected %d \"%s\"", text, got, im_error_text(ctx), code, message);
    assert_null(m);
}

/* ---- what a table must keep ------------------------------------------------- */

static void check_table(const im_model *m)
{
    assert_int_equal(m->nunit, m->arch.L + 2);
    assert_int_equal(m->unit[0].type, IM_UNIT_EMBED);
    assert_int_equal(m->unit[m->nunit - 1].type, IM_UNIT_HEAD);
    /* buckets are dense and consecutive, none is empty */
    assert_int_equal(m->param[0].bucket, 0);
    for (size_t i = 1; i < m->nparam; i++) {
        const int step = m->param[i].bucket - m->param[i - 1].bucket;
        assert_true(step == 0 || step == 1);
        assert_true(!m->param[i].glue || step == 0);
        assert_int_equal(m->param[i].decay, m->param[i].ndim >= 2);
    }
    assert_int_equal(m->param[m->nparam - 1].bucket, m->nbucket - 1);
    /* each parameter stands in one slot, the tied table in two; a unit's parameters share a bucket but for the tied table */
    size_t slots = 0;
    for (size_t u = 0; u < m->nunit; u++) {
        int bucket = -1;
        for (int s = 0; s < IM_SLOT_COUNT; s++) {
            const int32_t p = m->unit[u].param[s];
            if (p < 0)
                continue;
            slots++;
            assert_in_range(p, 0, m->nparam - 1);
            if (m->arch.tied && p == 0)
                continue;
            if (bucket >= 0)
                assert_int_equal(m->param[p].bucket, bucket);
            bucket = m->param[p].bucket;
        }
    }
    assert_int_equal(slots, m->nparam + (m->arch.tied ? 1 : 0));
    if (m->arch.tied) {
        assert_int_equal(m->unit[m->nunit - 1].param[IM_SLOT_TOKENS], 0);
        assert_int_equal(m->unit[m->nunit - 1].param[IM_SLOT_HEAD_W], -1);
        assert_true(m->nparam == 1 || m->param[1].bucket == 1);
    } else {
        assert_true(m->unit[m->nunit - 1].param[IM_SLOT_HEAD_W] >= 0);
    }
}

static void check_param(const im_model *m, const char *name, int unit, im_slot slot, int64_t rows, int64_t cols)
{
    const int32_t i = im_model_find_param(m, name);
    if (i < 0)
        fail_msg("no %s", name);
    assert_int_equal(m->unit[unit].param[slot], i);
    assert_int_equal(m->param[i].ndim, cols ? 2 : 1);
    assert_int_equal(m->param[i].shape[0], rows);
    assert_true(!cols || m->param[i].shape[1] == cols);
}

static void test_llama_table(void **state)
{
    (void)state;
    im_model *m =
        parsed("{" LLAMA_SIZES ",\"num_key_value_heads\":3,\"head_dim\":4,\"attention_bias\":true,\"mlp_bias\":true,\"rms_norm_eps\":1e-5}");
    check_table(m);
    assert_string_equal(m->family, "llama");
    assert_int_equal(m->arch.K, 3);
    assert_int_equal(m->arch.E, 4);
    assert_int_equal(m->arch.P, 2048);
    assert_int_equal(m->arch.rope_dims, 4);
    assert_false(m->arch.tied);
    assert_false(m->arch.weights_in_out);
    assert_true(m->arch.gated);
    assert_float_equal(m->arch.norm_eps, 1e-5, 0);
    assert_float_equal(m->arch.attn_scale, 0.5, 1e-15);
    assert_int_equal(m->nbucket, 4);
    check_param(m, "model.embed_tokens.weight", 0, IM_SLOT_TOKENS, 11, 12);
    check_param(m, "model.layers.1.self_attn.q_proj.weight", 2, IM_SLOT_Q_W, 24, 12);
    check_param(m, "model.layers.1.self_attn.k_proj.weight", 2, IM_SLOT_K_W, 12, 12);
    check_param(m, "model.layers.1.self_attn.v_proj.bias", 2, IM_SLOT_V_B, 12, 0);
    check_param(m, "model.layers.1.self_attn.o_proj.weight", 2, IM_SLOT_O_W, 12, 24);
    check_param(m, "model.layers.1.self_attn.o_proj.bias", 2, IM_SLOT_O_B, 12, 0);
    check_param(m, "model.layers.0.mlp.down_proj.weight", 1, IM_SLOT_DOWN_W, 12, 20);
    check_param(m, "model.layers.0.mlp.gate_proj.bias", 1, IM_SLOT_GATE_B, 20, 0);
    check_param(m, "model.norm.weight", 3, IM_SLOT_NORM1_W, 12, 0);
    check_param(m, "lm_head.weight", 3, IM_SLOT_HEAD_W, 11, 12);
    /* what one matmul makes lies behind one another: q k v, and gate up; so do their biases */
    static const im_slot chains[][3] = {{IM_SLOT_Q_W, IM_SLOT_K_W, IM_SLOT_V_W},
                                        {IM_SLOT_Q_B, IM_SLOT_K_B, IM_SLOT_V_B},
                                        {IM_SLOT_GATE_W, IM_SLOT_UP_W, IM_SLOT_COUNT},
                                        {IM_SLOT_GATE_B, IM_SLOT_UP_B, IM_SLOT_COUNT}};
    for (size_t c = 0; c < IM_COUNT_OF(chains); c++) {
        for (int i = 1; i < 3 && chains[c][i] != IM_SLOT_COUNT; i++) {
            const int32_t p = m->unit[1].param[chains[c][i]];
            assert_int_equal(p, m->unit[1].param[chains[c][i - 1]] + 1);
            assert_true(m->param[p].glue);
        }
    }
    im_model_close(m);
}

static void test_llama_tied_has_no_empty_bucket(void **state)
{
    (void)state;
    im_model *m = parsed("{" LLAMA_SIZES ",\"tie_word_embeddings\":true}");
    check_table(m);
    /* the table; two blocks; the head with its norm: EMBED has nothing of its own */
    assert_int_equal(m->nbucket, 4);
    assert_int_equal(m->arch.K, 6);
    assert_int_equal(m->arch.E, 2);
    im_model_close(m);
}

static void test_gpt2_table(void **state)
{
    (void)state;
    im_model *m = parsed("{" GPT2_SIZES ",\"n_inner\":null}");
    check_table(m);
    assert_int_equal(m->nbucket, 5); /* the table; positions; two blocks; the head */
    assert_int_equal(m->arch.F, 48);
    assert_true(m->arch.tied);
    assert_true(m->arch.weights_in_out);
    assert_true(m->arch.learned_positions);
    assert_int_equal(m->arch.rope_dims, 0);
    assert_int_equal(m->arch.act, IM_ACT_GELU_TANH);
    assert_float_equal(m->arch.dropout_embed, 0.1, 0);
    assert_float_equal(m->arch.norm_eps, 1e-5, 0);
    check_param(m, "transformer.wpe.weight", 0, IM_SLOT_POSITIONS, 16, 12);
    check_param(m, "transformer.h.1.attn.c_attn.weight", 2, IM_SLOT_Q_W, 12, 36);
    check_param(m, "transformer.h.1.attn.c_attn.bias", 2, IM_SLOT_Q_B, 36, 0);
    check_param(m, "transformer.h.0.mlp.c_fc.weight", 1, IM_SLOT_UP_W, 12, 48);
    check_param(m, "transformer.ln_f.bias", 3, IM_SLOT_NORM1_B, 12, 0);
    assert_int_equal(m->unit[1].param[IM_SLOT_K_W], -1);
    /* initial values: residual projections 1/sqrt(2 L) of the others, norms 1, biases 0 */
    const im_param *o = &m->param[m->unit[1].param[IM_SLOT_O_W]], *up = &m->param[m->unit[1].param[IM_SLOT_UP_W]];
    assert_float_equal(up->init.std, 0.02, 0);
    assert_float_equal(o->init.std, 0.02 / sqrt(4), 1e-18);
    assert_int_equal(m->param[m->unit[1].param[IM_SLOT_NORM1_W]].init.kind, IM_INIT_ONES);
    assert_int_equal(m->param[m->unit[1].param[IM_SLOT_UP_B]].init.kind, IM_INIT_ZEROS);
    im_model_close(m);
    m = parsed("{" GPT2_SIZES ",\"n_inner\":20,\"tie_word_embeddings\":false,\"scale_attn_weights\":false,\"activation_function\":\"gelu\"}");
    check_table(m);
    assert_int_equal(m->nbucket, 4);
    assert_int_equal(m->arch.F, 20);
    assert_int_equal(m->arch.act, IM_ACT_GELU_ERF);
    assert_float_equal(m->arch.attn_scale, 1, 0);
    im_model_close(m);
}

/* ---- spellings --------------------------------------------------------------- */

static void test_rope_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        double theta;
        im_rope_scaling scaling;
        double factor;
    } cases[] = {
        {"", 10000, IM_ROPE_PLAIN, 1},
        {",\"rope_theta\":1000000.0", 1e6, IM_ROPE_PLAIN, 1},
        {",\"rope_theta\":1000000", 1e6, IM_ROPE_PLAIN, 1},
        {",\"rope_theta\":500000.0,\"rope_scaling\":null", 5e5, IM_ROPE_PLAIN, 1},
        {",\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", 5e5, IM_ROPE_LINEAR, 4},
        {",\"rope_scaling\":{\"rope_type\":\"default\"}", 1e4, IM_ROPE_PLAIN, 1},
        {",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0}", 1e6, IM_ROPE_PLAIN, 1},
        {",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":1000000.0}", 1e6, IM_ROPE_LINEAR, 2.5},
        {",\"rope_theta\":7000,\"rope_parameters\":{\"rope_type\":\"default\"}", 7000, IM_ROPE_PLAIN, 1},
        {",\"rope_theta\":7000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
         "\"original_max_position_embeddings\":8192}",
         7000, IM_ROPE_LLAMA3, 8},
        {",\"rope_parameters\":{\"rope_theta\":7000,\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
         "\"original_max_position_embeddings\":8192}",
         7000, IM_ROPE_LLAMA3, 32},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        char text[1024];
        snprintf(text, sizeof text, "{" LLAMA_SIZES "%s}", cases[i].keys);
        im_model *m = parsed(text);
        assert_float_equal(m->arch.rope_theta, cases[i].theta, 0);
        assert_int_equal(m->arch.rope_scaling, cases[i].scaling);
        assert_float_equal(m->arch.rope_factor, cases[i].factor, 0);
        im_model_close(m);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        im_status code;
        const char *message;
    } cases[] = {
        {"[1]", IM_ERR_FORMAT, "JSON object"},
        {"{}", IM_ERR_FORMAT, "model_type"},
        {"{\"model_type\":\"mamba\"}", IM_ERR_UNSUPPORTED,
         "model_type \"mamba\" is not implemented; implemented are: bloom, gpt2, gpt_neox, llama, mistral, "
         "olmo2, phi3, qwen2, qwen3"},
        {"{" LLAMA_SIZES ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", IM_ERR_UNSUPPORTED, "quantization_config (quant_method \"gptq\")"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", IM_ERR_UNSUPPORTED,
         "rope_scaling.type is \"longrope\": that rope type is not implemented for this family; default, linear, dynamic, llama3 and yarn are"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":1e4}}", IM_ERR_UNSUPPORTED,
         "rope_parameters.rope_type is \"axial\""},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1,1]}}", IM_ERR_UNSUPPORTED,
         "rope_scaling.mrope_section is not implemented"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\"}}", IM_ERR_FORMAT, "rope_scaling.factor is missing"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", IM_ERR_FORMAT,
         "rope_scaling.factor is 0: it must be a number from 1"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":7}", IM_ERR_FORMAT, "rope_scaling must be an object"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", IM_ERR_FORMAT, "rope_scaling.low_freq_factor is missing"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":8}}",
         IM_ERR_FORMAT, "must be below high_freq_factor"},
        {"{" LLAMA_SIZES ",\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":1000000}}", IM_ERR_FORMAT, "must be equal"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}}",
         IM_ERR_FORMAT, "say different things"},
        {"{" LLAMA_SIZES ",\"rope_theta\":-1}", IM_ERR_FORMAT, "rope_theta is -1"},
        {"{" LLAMA_SIZES ",\"partial_rotary_factor\":0.5}", IM_ERR_UNSUPPORTED, "partial_rotary_factor"},
        {"{" LLAMA_SIZES ",\"hidden_act\":\"relu6\"}", IM_ERR_UNSUPPORTED, "hidden_act is \"relu6\""},
        {"{" LLAMA_SIZES ",\"hidden_act\":3}", IM_ERR_FORMAT, "hidden_act"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":4}", IM_ERR_FORMAT, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":0}", IM_ERR_FORMAT, "num_key_value_heads is 0: it must be a whole number from 1 to 6"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":12}", IM_ERR_FORMAT, "num_key_value_heads is 12"},
        {"{" LLAMA_SIZES ",\"head_dim\":3}", IM_ERR_FORMAT, "head_dim is 3"},
        {"{" LLAMA_SIZES ",\"tie_word_embeddings\":\"yes\"}", IM_ERR_FORMAT, "tie_word_embeddings is \"yes\": it must be true or false"},
        {"{" LLAMA_SIZES ",\"attention_bias\":1}", IM_ERR_FORMAT, "attention_bias is 1"},
        {"{" LLAMA_SIZES ",\"rms_norm_eps\":0}", IM_ERR_FORMAT, "rms_norm_eps is 0"},
        {"{" LLAMA_SIZES ",\"attention_dropout\":1.5}", IM_ERR_FORMAT, "attention_dropout is 1.5"},
        {"{" LLAMA_SIZES ",\"initializer_range\":-0.02}", IM_ERR_FORMAT, "initializer_range is -0.02"},
        {"{" LLAMA_SIZES ",\"max_position_embeddings\":-5}", IM_ERR_FORMAT, "max_position_embeddings is -5: it must be a whole number from 1"},
        {"{\"model_type\":\"llama\",\"vocab_size\":11,\"hidden_size\":12,\"num_hidden_layers\":2,\"num_attention_heads\":6}", IM_ERR_FORMAT,
         "intermediate_size is missing"},
        {"{\"model_type\":\"llama\",\"vocab_size\":11,\"hidden_size\":13,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":6}",
         IM_ERR_FORMAT, "hidden_size 13 is not a multiple of num_attention_heads 6"},
        {"{\"model_type\":\"llama\",\"vocab_size\":1e18,\"hidden_size\":12}", IM_ERR_FORMAT, "vocab_size is 1e+18"},
        {"{\"model_type\":\"llama\",\"vocab_size\":1000000000000000000}", IM_ERR_FORMAT,
         "vocab_size is 1000000000000000000: it must be a whole number from 1 to 268435456"},
        {"{\"model_type\":\"llama\",\"vocab_size\":-1}", IM_ERR_FORMAT, "vocab_size is -1"},
        {"{\"model_type\":\"llama\",\"vocab_size\":10.5}", IM_ERR_FORMAT, "vocab_size is 10.5"},
        {"{\"model_type\":\"llama\",\"vocab_size\":\"11\"}", IM_ERR_FORMAT, "vocab_size is \"11\""},
        {"{\"model_type\":\"llama\",\"vocab_size\":268435456,\"hidden_size\":16777216,\"intermediate_size\":67108864,\"num_hidden_layers\":4000,"
         "\"num_attention_heads\":8}",
         IM_ERR_FORMAT, "more than 2^56 parameters"},
        {"{" GPT2_SIZES ",\"scale_attn_by_inverse_layer_idx\":true}", IM_ERR_UNSUPPORTED, "scale_attn_by_inverse_layer_idx"},
        {"{" GPT2_SIZES ",\"reorder_and_upcast_attn\":true}", IM_ERR_UNSUPPORTED, "reorder_and_upcast_attn"},
        {"{" GPT2_SIZES ",\"add_cross_attention\":true}", IM_ERR_UNSUPPORTED, "add_cross_attention"},
        {"{" GPT2_SIZES ",\"activation_function\":\"quick_gelu\"}", IM_ERR_UNSUPPORTED, "quick_gelu"},
        {"{" GPT2_SIZES ",\"resid_pdrop\":-1}", IM_ERR_FORMAT, "resid_pdrop is -1"},
        {"{" GPT2_SIZES ",\"n_inner\":0}", IM_ERR_FORMAT, "n_inner is 0"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_positions\":16,\"n_embd\":10,\"n_layer\":2,\"n_head\":3}", IM_ERR_FORMAT,
         "n_embd 10 is not a multiple of n_head 3"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_positions\":16,\"n_embd\":12,\"n_layer\":100000,\"n_head\":3}", IM_ERR_FORMAT,
         "n_layer is 100000"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++)
        expect_refused(cases[i].text, cases[i].code, cases[i].message);
}

/* ---- config.json of a checkpoint -------------------------------------------------- */

static void check_same_arch(const im_arch *a, const im_arch *b)
{
    assert_true(a->D == b->D && a->H == b->H && a->K == b->K && a->E == b->E && a->F == b->F && a->V == b->V && a->L == b->L && a->P == b->P);
    assert_true(a->norm == b->norm && a->norm_eps == b->norm_eps && a->act == b->act && a->tied == b->tied);
    assert_true(a->rope_theta == b->rope_theta && a->rope_scaling == b->rope_scaling && a->rope_factor == b->rope_factor);
    assert_true(a->rope_low_freq == b->rope_low_freq && a->rope_high_freq == b->rope_high_freq);
    assert_int_equal(a->rope_original_positions, b->rope_original_positions);
    assert_true(a->dropout_attn == b->dropout_attn && a->dropout_embed == b->dropout_embed && a->dropout_resid == b->dropout_resid);
}

static void check_round_trip(const char *text, const char *const *keys, size_t nkeys)
{
    im_model *m = parsed(text), *again;
    im_str out = {0};
    assert_int_equal(im_model_config_text(ctx, m, IM_BF16, &out), IM_OK);
    again = parsed(im_str_text(&out));
    check_same_arch(&m->arch, &again->arch);
    assert_int_equal(m->nparam, again->nparam);
    for (size_t i = 0; i < nkeys; i++)
        if (!strstr(im_str_text(&out), keys[i]))
            fail_msg("no %s in %s", keys[i], im_str_text(&out));
    assert_null(strstr(im_str_text(&out), "imece_"));
    im_str_free(&out);
    im_model_close(m);
    im_model_close(again);
}

/* PITFALLS B45: nothing that differs from a default is lost, and both spellings say the same. */
static void test_config_text(void **state)
{
    (void)state;
    static const char *const llama_keys[] = {"\"rope_theta\": 1000000.0",
                                             "\"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}",
                                             "\"rope_scaling\": null",
                                             "\"tie_word_embeddings\": true",
                                             "\"head_dim\": 8",
                                             "\"rms_norm_eps\": 1e-05",
                                             "\"intermediate_size\": 20",
                                             "\"torch_dtype\": \"bfloat16\"",
                                             "\"dtype\": \"bfloat16\"",
                                             "\"architectures\": [\"LlamaForCausalLM\"]",
                                             "\"my_key\": [1, {\"a\": \"b\\n\"}]"};
    check_round_trip("{" LLAMA_SIZES ",\"head_dim\":8,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"torch_dtype\":\"float32\","
                     "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"},\"imece_note\":\"x\",\"my_key\":[1,{\"a\":\"b\\n\"}]}",
                     llama_keys, IM_COUNT_OF(llama_keys));
    static const char *const llama3_keys[] = {
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}"};
    check_round_trip("{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                     "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
                     llama3_keys, IM_COUNT_OF(llama3_keys));
    static const char *const gpt2_keys[] = {"\"tie_word_embeddings\": true", "\"architectures\": [\"GPT2LMHeadModel\"]", "\"n_inner\": null"};
    check_round_trip("{" GPT2_SIZES ",\"n_inner\":null,\"layer_norm_epsilon\":1e-6}", gpt2_keys, IM_COUNT_OF(gpt2_keys));
}

/* ---- rotary tables ------------------------------------------------------------------- */

static void test_rope_table(void **state)
{
    (void)state;
    /* Transformers' _compute_llama3_parameters in fp64: theta 500000, 16 dims, factor 8, low 1, high 4, original 64 positions:
     * pairs 0 to 2 short waves (as they are), some between, the rest long (divided by 8) */
    im_arch a = {.rope_dims = 16,
                 .rope_theta = 500000,
                 .rope_scaling = IM_ROPE_LLAMA3,
                 .rope_factor = 8,
                 .rope_attention = 1,
                 .rope_low_freq = 1,
                 .rope_high_freq = 4,
                 .rope_original_positions = 64};
    static const double expected[8] = {1.0,
                                       0.0794030091792082,
                                       0.004700753866357992,
                                       0.0009115830921521386,
                                       0.00017677669529663688,
                                       3.428102195952591e-05,
                                       6.647869871181236e-06,
                                       1.2891731721515574e-06};
    for (int i = 0; i < 8; i++)
        assert_true(fabs(im_rope_frequency(&a, 64, i) / expected[i] - 1) < 1e-12);
    float table[3 * 16];
    im_rope_table(&a, 64, 5, 3, table);
    for (int p = 0; p < 3; p++) {
        for (int i = 0; i < 8; i++) {
            assert_true(table[p * 16 + i] == (float)cos(im_rope_frequency(&a, 64, i) * (5 + p)));
            assert_true(table[p * 16 + 8 + i] == (float)sin(im_rope_frequency(&a, 64, i) * (5 + p)));
        }
    }
    a.rope_scaling = IM_ROPE_PLAIN;
    assert_float_equal(im_rope_frequency(&a, 64, 0), 1, 0);
    assert_true(fabs(im_rope_frequency(&a, 64, 4) / (1 / sqrt(500000)) - 1) < 1e-12);
    a.rope_scaling = IM_ROPE_LINEAR;
    assert_true(fabs(im_rope_frequency(&a, 64, 4) / (1 / sqrt(500000) / 8) - 1) < 1e-12);
}

/* ---- named shapes ---------------------------------------------------------------------- */

static void test_named_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t params;
    } known[] = {
        {"gpt2", 124439808},         {"gpt2-medium", 354823168},  {"gpt2-large", 774030080},       {"gpt2-xl", 1557611200},
        {"smollm2-135m", 134515008}, {"smollm2-360m", 361821120}, {"smollm2-1.7b", 1711376384},    {"tinyllama-1.1b", 1100048384},
        {"llama2-7b", 6738415616},   {"llama2-13b", 13015864320}, {"llama2-70b", 68976648192},     {"llama3-8b", 8030261248},
        {"llama3-70b", 70553706496}, {"llama3.1-8b", 8030261248}, {"llama3.1-405b", 405853388800}, {"llama3.2-1b", 1235814400},
        {"llama3.2-3b", 3212749824}, {"llama-15m", 15191712},     {"mistral-7b", 7241732096},      {"mistral-7b-v0.3", 7248023552},
        {"qwen2-0.5b", 494032768},   {"qwen2-1.5b", 1543714304},  {"qwen2-7b", 7615616512},        {"qwen2-72b", 72706203648},
        {"qwen3-0.6b", 596049920},   {"qwen3-4b", 4022468096},    {"qwen3-8b", 8190735360},        {"qwen3-32b", 32762123264},
        {"phi3-mini", 3821079552},   {"pythia-70m", 70426624},    {"pythia-160m", 162322944},      {"pythia-410m", 405334016},
        {"pythia-1b", 1011781632},   {"pythia-1.4b", 1414647808}, {"pythia-2.8b", 2775208960},     {"pythia-6.9b", 6857302016},
        {"pythia-12b", 11846072320}, {"bloom-560m", 559214592},   {"bloom-7b1", 7069016064},       {"bloom-176b", 176247271424},
    };
    for (size_t i = 0; i < IM_COUNT_OF(known); i++) {
        im_model *m = NULL;
        if (im_model_open(ctx, known[i].name, IM_SOURCE_MODELS_DIR, &m) != IM_OK)
            fail_msg("%s", im_error_text(ctx));
        if (im_model_param_count(m) != known[i].params)
            fail_msg("%s: %lld parameters, %lld published", known[i].name, (long long)im_model_param_count(m), (long long)known[i].params);
        assert_false(m->planning_only);
        im_model_close(m);
    }
    /* published in billions with these digits */
    static const struct {
        const char *name;
        double billions, within;
        bool planning_only;
    } rounded[] = {
        {"gpt3-175b", 174.6, 0.05, false},     {"megatron-1.7b", 1.7, 0.05, false},   {"megatron-39b", 39.1, 0.05, false},
        {"megatron-145b", 145.6, 0.05, false}, {"megatron-530b", 529.6, 0.05, false}, {"megatron-1t", 1008.0, 0.05, false},
        {"megatron-22b", 22.0, 0.2, false},    {"palm-8b", 8.63, 0.005, true},        {"palm-62b", 62.50, 0.005, true},
        {"palm-540b", 540.35, 0.02, true},     {"olmo2-7b", 7.30, 0.005, false},      {"olmo2-13b", 13.7, 0.05, false},
        {"gpt-neox-20b", 20.55, 0.01, false},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rounded); i++) {
        im_model *m = NULL;
        if (im_model_open(ctx, rounded[i].name, IM_SOURCE_MODELS_DIR, &m) != IM_OK)
            fail_msg("%s", im_error_text(ctx));
        const double billions = (double)im_model_param_count(m) * 1e-9;
        if (fabs(billions - rounded[i].billions) > rounded[i].within)
            fail_msg("%s: %.3f billion parameters, %.3f published", rounded[i].name, billions, rounded[i].billions);
        assert_int_equal(m->planning_only, rounded[i].planning_only);
        im_error_clear(ctx);
        assert_int_equal(im_model_need_runnable(ctx, m), rounded[i].planning_only ? IM_ERR_UNSUPPORTED : IM_OK);
        assert_true(!rounded[i].planning_only || strstr(im_error_text(ctx), "planning only"));
        im_model_close(m);
    }
}

static void test_every_shape_file(void **state)
{
    (void)state;
    im_arena *a;
    const char **names;
    size_t n;
    assert_int_equal(im_arena_create(ctx, &a), IM_OK);
    assert_int_equal(im_model_list(ctx, IM_SOURCE_MODELS_DIR, a, &names, &n), IM_OK);
    assert_true(n >= 30);
    for (size_t i = 0; i < n; i++) {
        im_model *m = NULL;
        if (im_model_open(ctx, names[i], IM_SOURCE_MODELS_DIR, &m) != IM_OK)
            fail_msg("%s", im_error_text(ctx));
        check_table(m);
        assert_null(m->dir);
        assert_true(i == 0 || strcmp(names[i - 1], names[i]) < 0);
        assert_non_null(im_json_string(im_json_get(im_json_root(m->config), "imece_note"), NULL));
        im_model_close(m);
    }
    im_arena_destroy(a);
}

static void expect_open_fails(const char *what, const char *models_dir, im_status code, const char *message)
{
    im_model *m = NULL;
    im_error_clear(ctx);
    const im_status got = im_model_open(ctx, what, models_dir, &m);
    if (got != code || !strstr(im_error_text(ctx), message))
        fail_msg("%s gave %d \"%s\", expected %d \"%s\"", what, got, im_error_text(ctx), code, message);
}

static void test_open(void **state)
{
    (void)state;
    expect_open_fails("gtp2", IM_SOURCE_MODELS_DIR, IM_ERR_NOT_FOUND, "did you mean gpt2?");
    expect_open_fails("zzzzzzzzzzzzzz", IM_SOURCE_MODELS_DIR, IM_ERR_NOT_FOUND, "neither a directory nor a named shape");
    expect_open_fails("meta/llama", IM_SOURCE_MODELS_DIR, IM_ERR_NOT_FOUND, "models are not downloaded");
    expect_open_fails("gpt2", NULL, IM_ERR_NOT_FOUND, "no such file");
    char dir[] = "/tmp/imece-model-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    expect_open_fails(dir, IM_SOURCE_MODELS_DIR, IM_ERR_NOT_FOUND, "there is no config.json");
    snprintf(path, sizeof path, "%s/config.json", dir);
    im_error_clear(ctx);
    assert_int_equal(im_file_write_atomic(ctx, path, "{" GPT2_SIZES "}", strlen("{" GPT2_SIZES "}")), IM_OK);
    im_model *m;
    assert_int_equal(im_model_open(ctx, dir, NULL, &m), IM_OK);
    assert_string_equal(m->dir, dir);
    assert_string_equal(m->source, path);
    im_model_close(m);
    assert_int_equal(im_model_open(ctx, path, NULL, &m), IM_OK);
    assert_null(m->dir);
    im_model_close(m);
    assert_int_equal(im_file_write_atomic(ctx, path, "{\"model_type\":", 14), IM_OK);
    expect_open_fails(dir, NULL, IM_ERR_FORMAT, "config.json");
    assert_int_equal(im_remove_tree(ctx, dir), IM_OK);
}

static void test_flops(void **state)
{
    (void)state;
    im_model *m;
    assert_int_equal(im_model_open(ctx, "gpt2", IM_SOURCE_MODELS_DIR, &m), IM_OK);
    /* by hand: 12 blocks of 12 D^2 weights, the tied head once, no position table; attention 12 L D T */
    const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
    assert_float_equal(im_model_flops_per_token(m, 1024), 6 * weights + 12.0 * 12 * 768 * 1024, 1);
    im_model_close(m);
    assert_int_equal(im_model_open(ctx, "llama3-8b", IM_SOURCE_MODELS_DIR, &m), IM_OK);
    /* untied: the token table is a lookup, the head a matmul */
    const double llama = 8030261248.0 - 128256.0 * 4096 - 65 * 4096;
    assert_float_equal(im_model_flops_per_token(m, 100), 6 * llama + 12.0 * 32 * 4096 * 100, 1);
    im_model_close(m);
}

static int64_t block_size(const im_arch *a, const im_share *s)
{
    return (2 * (s->H + s->K) * a->E + s->F * (a->gated ? 3 : 2)) * a->D;
}

/* What ranks hold of a block covers it once and in order; where heads are uneven, the feed-forward makes up for it. */
static void test_shares(void **state)
{
    (void)state;
    const im_arch smollm2 = {.D = 576, .H = 9, .K = 3, .E = 64, .F = 1536, .V = 49152, .gated = true};
    im_share one = im_share_of(&smollm2, 2, 0), other = im_share_of(&smollm2, 2, 1);
    assert_int_equal(one.H, 6);
    assert_int_equal(one.F, 688);
    assert_int_equal(other.F, 848);
    assert_true(llabs(block_size(&smollm2, &one) - block_size(&smollm2, &other)) < block_size(&smollm2, &one) / 64);

    for (int k = 1; k <= 7; k++)
        for (int group = 1; group <= 5; group++)
            for (int64_t F = 12; F < 5000; F = F * 3 + 1)
                for (int tp = 1; tp <= k * group && tp <= F; tp++) {
                    const im_arch a = {.D = 24, .H = k * group, .K = k, .E = 4, .F = F, .V = 1000, .gated = F % 2};
                    int64_t end = 0, least = INT64_MAX, most = 0;
                    if (tp > k && (tp % k || tp / k > group))
                        continue;
                    for (int r = 0; r < tp; r++) {
                        im_share s = im_share_of(&a, tp, r);
                        assert_int_equal(s.f0, end);
                        assert_true(s.F >= 1);
                        end += s.F;
                        least = s.F < least ? s.F : least;
                        most = s.F > most ? s.F : most;
                    }
                    assert_int_equal(end, F);
                    if (k % tp == 0)
                        assert_in_range(most - least, 0, 1);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),           cmocka_unit_test(test_llama_table),    cmocka_unit_test(test_llama_tied_has_no_empty_bucket),
        cmocka_unit_test(test_gpt2_table),       cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_config_text),      cmocka_unit_test(test_rope_table),     cmocka_unit_test(test_named_shapes),
        cmocka_unit_test(test_every_shape_file), cmocka_unit_test(test_open),           cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests_name("model", tests, setup, teardown);
}
