/* Keys that change what a model computes. Each belongs to some family of Transformers; a config of a family that does not read it
 * should not have it, or have it say nothing. Leaving such a key out unseen would train another model than the file means. */
#include "model/family.h"

#include <string.h>

typedef enum neutral {
    OFF,    /* absent, null, false, 0, an empty list or object */
    ONE,    /* or 1 */
    ON,     /* absent, null or true */
    NOTHING /* absent or null */
} neutral;

static const struct {
    const char *key;
    neutral neutral;
} foreign[] = {
    /* factors */
    {"logit_scale", ONE},
    {"logits_scaling", ONE},
    {"residual_multiplier", ONE},
    {"embedding_multiplier", ONE},
    {"scale_emb", ONE},
    {"lm_head_multiplier", ONE},
    {"attention_multiplier", NOTHING},
    {"query_pre_attn_scalar", NOTHING},
    {"scale_depth", NOTHING},
    {"dim_model_base", NOTHING},
    {"attn_logit_softcapping", OFF},
    {"final_logit_softcapping", OFF},
    {"logit_softcapping", OFF},
    {"clip_qkv", OFF},
    /* experts */
    {"num_experts", OFF},
    {"num_local_experts", ONE},
    {"n_routed_experts", OFF},
    {"n_shared_experts", OFF},
    {"moe_intermediate_size", OFF},
    /* attention */
    {"kv_lora_rank", OFF},
    {"q_lora_rank", OFF},
    {"sliding_window", OFF},
    {"use_sliding_window", OFF},
    {"sliding_window_pattern", OFF},
    {"layer_types", NOTHING},
    {"attention_chunk_size", OFF},
    {"attention_sinks", OFF},
    {"attention_bias", OFF},
    {"is_causal", ON},
    {"use_bidirectional_attention", OFF},
    {"bidirectional", OFF},
    {"qk_layernorm", OFF},
    {"qk_norm", OFF},
    {"use_qk_norm", OFF},
    {"rotary_interleaved", OFF},
    {"rope_interleaved", OFF},
    {"rope_scaling", OFF},
    {"partial_rotary_factor", ONE},
    {"rotary_pct", ONE},
    {"use_mrope", OFF},
    {"no_rope_layers", OFF},
    {"no_rope_layer_interval", OFF},
    {"alibi", OFF},
    {"use_alibi", OFF},
    {"multi_query", OFF},
    {"new_decoder_architecture", OFF},
    /* blocks */
    {"mlp_bias", OFF},
    {"use_bias", OFF},
    {"parallel_attn", OFF},
    {"use_parallel_residual", OFF},
    {"apply_residual_connection_post_layernorm", OFF},
    {"layer_norm_type", NOTHING},
    {"num_nextn_predict_layers", OFF},
    {"per_layer_config", OFF},
    {"pruned_heads", OFF},
    /* not a decoder alone */
    {"is_encoder_decoder", OFF},
    {"add_cross_attention", OFF},
    {"vision_config", OFF},
    {"audio_config", OFF},
    {"text_config", OFF},
};

static bool says_nothing(const im_json_value *v, neutral n)
{
    switch (im_json_type_of(v)) {
    case IM_JSON_NULL: return true;
    case IM_JSON_BOOL: return n != NOTHING && im_json_bool(v, false) == (n == ON);
    case IM_JSON_INT:
    case IM_JSON_REAL: return (n == OFF || n == ONE) && (im_json_real(v, -1) == 0 || (n == ONE && im_json_real(v, -1) == 1));
    case IM_JSON_ARRAY:
    case IM_JSON_OBJECT: return n == OFF && im_json_length(v) == 0;
    default: return false;
    }
}

static bool reads(const im_family *f, const char *key)
{
    for (size_t i = 0; f->keys[i]; i++)
        if (strcmp(f->keys[i], key) == 0)
            return true;
    return f->rope && im_rope_writes(f->rope, key);
}

im_status im_config_refuse_foreign(im_context *ctx, const im_json *doc, const im_family *f)
{
    for (size_t i = 0; i < IM_COUNT_OF(foreign); i++) {
        const im_json_value *v = im_json_get(im_json_root(doc), foreign[i].key);
        if (says_nothing(v, foreign[i].neutral) || reads(f, foreign[i].key))
            continue;
        im_str shown = {0};
        im_config_write_value(v, &shown);
        const im_status status =
            im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: %s is %.60s: that is not implemented for model_type \"%s\"; without the key it works as %s",
                    im_json_name(doc), foreign[i].key, im_str_text(&shown), f->model_type, f->architecture);
        im_str_free(&shown);
        return status;
    }
    return IM_OK;
}
