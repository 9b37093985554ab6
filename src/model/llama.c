/* Llama (model_type llama: Llama 2, 3, 3.1, SmolLM2, TinyLlama ...): rotary positions in halves, RMSNorm, grouped-query attention,
 * gated MLP. Linear weights are (out, in). q, k and v are three parameters that lie behind one another, so that one
 * matmul makes all three; gate and up likewise. Biases only where the config asks for them. */
#include "model/family.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

static im_status read_heads(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "num_attention_heads", NULL, IM_CONFIG_MAX_HEADS, &a->H));
    IM_TRY(im_config_int(ctx, doc, root, "", "num_key_value_heads", 1, a->H, a->H, &a->K));
    if (a->H % a->K != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld", im_json_name(doc),
                       (long long)a->H, (long long)a->K);
    if (im_config_present(root, "head_dim"))
        IM_TRY(im_config_int(ctx, doc, root, "", "head_dim", 1, IM_CONFIG_MAX_WIDTH / a->H, 0, &a->E));
    else
        IM_TRY(im_config_head_size(ctx, doc, "hidden_size", a->D, "num_attention_heads", a->H, &a->E));
    if (a->E % 2 != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: head_dim is %lld (given, or hidden_size / num_attention_heads): rotary positions need an even one",
                       im_json_name(doc), (long long)a->E);
    a->attn_scale = 1 / sqrt((double)a->E);
    return IM_OK;
}

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "vocab_size", NULL, IM_CONFIG_MAX_VOCAB, &a->V));
    IM_TRY(im_config_need_int(ctx, doc, "hidden_size", NULL, IM_CONFIG_MAX_WIDTH, &a->D));
    IM_TRY(im_config_need_int(ctx, doc, "intermediate_size", NULL, IM_CONFIG_MAX_FEED, &a->F));
    IM_TRY(im_config_need_int(ctx, doc, "num_hidden_layers", NULL, IM_CONFIG_MAX_BLOCKS, &a->L));
    IM_TRY(read_heads(ctx, doc, a));
    IM_TRY(im_config_int(ctx, doc, root, "", "max_position_embeddings", 1, IM_CONFIG_MAX_POSITIONS, 2048, &a->P));
    a->norm = IM_NORM_RMS;
    IM_TRY(im_config_real(ctx, doc, root, "", "rms_norm_eps", 1e-30, 1, 1e-6, &a->norm_eps));
    IM_TRY(im_config_activation(ctx, doc, "hidden_act", IM_ACT_SILU, &a->act));
    a->gated = true;
    IM_TRY(im_config_real(ctx, doc, root, "", "attention_dropout", 0, 0.99, 0, &a->dropout_attn));
    IM_TRY(im_config_flag(ctx, doc, "tie_word_embeddings", false, &a->tied));
    bool bias; /* the table of parameters tells who has one; here only: is the value a flag */
    IM_TRY(im_config_flag(ctx, doc, "attention_bias", false, &bias));
    IM_TRY(im_config_flag(ctx, doc, "mlp_bias", false, &bias));
    double whole;
    IM_TRY(im_config_real(ctx, doc, root, "", "partial_rotary_factor", 0, 1, 1, &whole));
    if (whole != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: partial_rotary_factor is %g: only 1 is implemented for llama", im_json_name(doc), whole);
    a->rope_dims = a->E;
    return im_rope_read(ctx, doc, a);
}

static void list_block(im_table *t, const im_arch *a, im_init normal, bool attention_bias, bool mlp_bias, int block)
{
    const im_init zeros = im_init_zeros(), ones = im_init_ones();
    const int64_t q = a->H * a->E, kv = a->K * a->E;
    im_model_add_unit(t, IM_UNIT_BLOCK, block);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "model.layers.%d.input_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_Q_W, normal, false, q, a->D, "model.layers.%d.self_attn.q_proj.weight", block);
    im_model_add_param(t, IM_SLOT_K_W, normal, true, kv, a->D, "model.layers.%d.self_attn.k_proj.weight", block);
    im_model_add_param(t, IM_SLOT_V_W, normal, true, kv, a->D, "model.layers.%d.self_attn.v_proj.weight", block);
    if (attention_bias) {
        im_model_add_param(t, IM_SLOT_Q_B, zeros, false, q, 0, "model.layers.%d.self_attn.q_proj.bias", block);
        im_model_add_param(t, IM_SLOT_K_B, zeros, true, kv, 0, "model.layers.%d.self_attn.k_proj.bias", block);
        im_model_add_param(t, IM_SLOT_V_B, zeros, true, kv, 0, "model.layers.%d.self_attn.v_proj.bias", block);
    }
    im_model_add_param(t, IM_SLOT_O_W, normal, false, a->D, q, "model.layers.%d.self_attn.o_proj.weight", block);
    if (attention_bias)
        im_model_add_param(t, IM_SLOT_O_B, zeros, false, a->D, 0, "model.layers.%d.self_attn.o_proj.bias", block);
    im_model_add_param(t, IM_SLOT_NORM2_W, ones, false, a->D, 0, "model.layers.%d.post_attention_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_GATE_W, normal, false, a->F, a->D, "model.layers.%d.mlp.gate_proj.weight", block);
    im_model_add_param(t, IM_SLOT_UP_W, normal, true, a->F, a->D, "model.layers.%d.mlp.up_proj.weight", block);
    if (mlp_bias) {
        im_model_add_param(t, IM_SLOT_GATE_B, zeros, false, a->F, 0, "model.layers.%d.mlp.gate_proj.bias", block);
        im_model_add_param(t, IM_SLOT_UP_B, zeros, true, a->F, 0, "model.layers.%d.mlp.up_proj.bias", block);
    }
    im_model_add_param(t, IM_SLOT_DOWN_W, normal, false, a->D, a->F, "model.layers.%d.mlp.down_proj.weight", block);
    if (mlp_bias)
        im_model_add_param(t, IM_SLOT_DOWN_B, zeros, false, a->D, 0, "model.layers.%d.mlp.down_proj.bias", block);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const im_init normal = im_init_normal(std);
    const bool attention_bias = im_json_bool(im_json_get(im_json_root(doc), "attention_bias"), false);
    const bool mlp_bias = im_json_bool(im_json_get(im_json_root(doc), "mlp_bias"), false);
    im_model_add_unit(t, IM_UNIT_EMBED, -1);
    im_model_add_param(t, IM_SLOT_TOKENS, normal, false, a->V, a->D, "model.embed_tokens.weight");
    for (int block = 0; block < a->L; block++)
        list_block(t, a, normal, attention_bias, mlp_bias, block);
    im_model_add_unit(t, IM_UNIT_HEAD, -1);
    im_model_add_param(t, IM_SLOT_NORM1_W, im_init_ones(), false, a->D, 0, "model.norm.weight");
    if (!a->tied)
        im_model_add_param(t, IM_SLOT_HEAD_W, normal, false, a->V, a->D, "lm_head.weight");
}

/* The frequencies that older versions of Transformers saved: layers.N.self_attn.rotary_emb.inv_freq. */
static bool ignored(const char *name)
{
    if (strncmp(name, "layers.", 7) != 0 || !isdigit((unsigned char)name[7]))
        return false;
    name += 7;
    while (isdigit((unsigned char)*name))
        name++;
    return strcmp(name, ".self_attn.rotary_emb.inv_freq") == 0;
}

const im_family im_family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .prefix = "model.",
    .read = read,
    .list = list,
    .ignored = ignored,
};
