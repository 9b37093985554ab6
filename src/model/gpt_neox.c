/* GPT-NeoX (model_type gpt_neox: Pythia, GPT-NeoX-20B): LayerNorm, q, k and v by head in one weight, part of a head rotated, plain MLP, biases;
 * attention and feed-forward side by side, or one after the other where use_parallel_residual is false. */
#include "model/family.h"

#include <math.h>

static const im_rope_look rope = {.types = IM_ROPE_USUAL, .theta_key = "rotary_emb_base", .part_key = "rotary_pct", .part = 0.25};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "vocab_size", NULL, IM_CONFIG_MAX_VOCAB, &a->V));
    IM_TRY(im_config_need_int(ctx, doc, "hidden_size", NULL, IM_CONFIG_MAX_WIDTH, &a->D));
    IM_TRY(im_config_need_int(ctx, doc, "intermediate_size", NULL, IM_CONFIG_MAX_FEED, &a->F));
    IM_TRY(im_config_need_int(ctx, doc, "num_hidden_layers", NULL, IM_CONFIG_MAX_BLOCKS, &a->L));
    IM_TRY(im_config_need_int(ctx, doc, "num_attention_heads", NULL, IM_CONFIG_MAX_HEADS, &a->H));
    IM_TRY(im_config_head_size(ctx, doc, "hidden_size", a->D, "num_attention_heads", a->H, &a->E));
    IM_TRY(im_config_int(ctx, doc, root, "", "max_position_embeddings", 1, IM_CONFIG_MAX_POSITIONS, 2048, &a->P));
    a->K = a->H;
    a->attn_scale = 1 / sqrt((double)a->E);
    a->norm = IM_NORM_LAYER;
    IM_TRY(im_config_real(ctx, doc, root, "", "layer_norm_eps", 1e-30, 1, 1e-5, &a->norm_eps));
    IM_TRY(im_config_activation(ctx, doc, "hidden_act", IM_ACT_GELU_ERF, &a->act));
    IM_TRY(im_config_real(ctx, doc, root, "", "hidden_dropout", 0, 0.99, 0, &a->dropout_resid));
    IM_TRY(im_config_real(ctx, doc, root, "", "attention_dropout", 0, 0.99, 0, &a->dropout_attn));
    a->dropout_embed = a->dropout_resid;
    bool parallel, bias; /* list looks again at the bias */
    IM_TRY(im_config_flag(ctx, doc, "use_parallel_residual", true, &parallel));
    IM_TRY(im_config_flag(ctx, doc, "attention_bias", true, &bias));
    IM_TRY(im_config_flag(ctx, doc, "tie_word_embeddings", false, &a->tied));
    a->residual = parallel ? IM_RESIDUAL_PARALLEL : IM_RESIDUAL_PRE;
    a->qkv_by_head = true;
    return im_rope_read(ctx, doc, &rope, a);
}

static void list_block(im_table *t, const im_arch *a, im_init normal, bool bias, int block)
{
    const im_init zeros = im_init_zeros(), ones = im_init_ones();
    im_model_add_unit(t, IM_UNIT_BLOCK, block);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "gpt_neox.layers.%d.input_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_NORM1_B, zeros, false, a->D, 0, "gpt_neox.layers.%d.input_layernorm.bias", block);
    im_model_add_param(t, IM_SLOT_Q_W, normal, false, 3 * a->D, a->D, "gpt_neox.layers.%d.attention.query_key_value.weight", block);
    if (bias)
        im_model_add_param(t, IM_SLOT_Q_B, zeros, false, 3 * a->D, 0, "gpt_neox.layers.%d.attention.query_key_value.bias", block);
    im_model_add_param(t, IM_SLOT_O_W, normal, false, a->D, a->D, "gpt_neox.layers.%d.attention.dense.weight", block);
    if (bias)
        im_model_add_param(t, IM_SLOT_O_B, zeros, false, a->D, 0, "gpt_neox.layers.%d.attention.dense.bias", block);
    im_model_add_param(t, IM_SLOT_NORM2_W, ones, false, a->D, 0, "gpt_neox.layers.%d.post_attention_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_NORM2_B, zeros, false, a->D, 0, "gpt_neox.layers.%d.post_attention_layernorm.bias", block);
    im_model_add_param(t, IM_SLOT_UP_W, normal, false, a->F, a->D, "gpt_neox.layers.%d.mlp.dense_h_to_4h.weight", block);
    im_model_add_param(t, IM_SLOT_UP_B, zeros, false, a->F, 0, "gpt_neox.layers.%d.mlp.dense_h_to_4h.bias", block);
    im_model_add_param(t, IM_SLOT_DOWN_W, normal, false, a->D, a->F, "gpt_neox.layers.%d.mlp.dense_4h_to_h.weight", block);
    im_model_add_param(t, IM_SLOT_DOWN_B, zeros, false, a->D, 0, "gpt_neox.layers.%d.mlp.dense_4h_to_h.bias", block);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const im_init normal = im_init_normal(std);
    const bool bias = im_json_bool(im_json_get(im_json_root(doc), "attention_bias"), true);
    im_model_add_unit(t, IM_UNIT_EMBED, -1);
    im_model_add_param(t, IM_SLOT_TOKENS, normal, false, a->V, a->D, "gpt_neox.embed_in.weight");
    for (int block = 0; block < a->L; block++)
        list_block(t, a, normal, bias, block);
    im_model_add_unit(t, IM_UNIT_HEAD, -1);
    im_model_add_param(t, IM_SLOT_NORM1_W, im_init_ones(), false, a->D, 0, "gpt_neox.final_layer_norm.weight");
    im_model_add_param(t, IM_SLOT_NORM1_B, im_init_zeros(), false, a->D, 0, "gpt_neox.final_layer_norm.bias");
    if (!a->tied)
        im_model_add_param(t, IM_SLOT_HEAD_W, normal, false, a->V, a->D, "embed_out.weight");
}

const im_family im_family_gpt_neox = {
    .model_type = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .prefix = "gpt_neox.",
    .head = "embed_out.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){"attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq", NULL},
    .keys = (const char *const[]){"attention_bias", "use_parallel_residual", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
