/* BLOOM (model_type bloom): no positions but ALiBi's slopes on the scores, a LayerNorm behind the embedding, q, k and v by head in one weight,
 * plain MLP four times as wide, all with biases. The head is the token table unless untied. It has no longest sequence. */
#include "model/family.h"

#include <math.h>

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "vocab_size", NULL, IM_CONFIG_MAX_VOCAB, &a->V));
    IM_TRY(im_config_need_int(ctx, doc, "n_embed", "hidden_size", IM_CONFIG_MAX_WIDTH / 4, &a->D));
    IM_TRY(im_config_need_int(ctx, doc, "n_layer", "num_hidden_layers", IM_CONFIG_MAX_BLOCKS, &a->L));
    IM_TRY(im_config_need_int(ctx, doc, "n_head", "num_attention_heads", IM_CONFIG_MAX_HEADS, &a->H));
    IM_TRY(im_config_head_size(ctx, doc, "hidden_size", a->D, "n_head", a->H, &a->E));
    IM_TRY(im_config_int(ctx, doc, root, "", "n_inner", 4 * a->D, 4 * a->D, 4 * a->D, &a->F)); /* Transformers has no other */
    int64_t slices; /* of a slow way of summing, in which Transformers leaves the biases out */
    IM_TRY(im_config_int(ctx, doc, root, "", "pretraining_tp", 1, 1 << 20, 1, &slices));
    if (slices > 1)
        IM_TRY(im_config_refuse(ctx, doc, "slow_but_exact"));
    a->K = a->H;
    a->attn_scale = 1 / sqrt((double)a->E);
    a->norm = IM_NORM_LAYER;
    IM_TRY(im_config_real(ctx, doc, root, "", "layer_norm_epsilon", 1e-30, 1, 1e-5, &a->norm_eps));
    a->act = IM_ACT_GELU_TANH;
    IM_TRY(im_config_real(ctx, doc, root, "", "hidden_dropout", 0, 0.99, 0, &a->dropout_resid));
    IM_TRY(im_config_real(ctx, doc, root, "", "attention_dropout", 0, 0.99, 0, &a->dropout_attn));
    IM_TRY(im_config_flag(ctx, doc, "tie_word_embeddings", true, &a->tied));
    a->alibi = true;
    a->qkv_by_head = true;
    return IM_OK;
}

static void list_block(im_table *t, const im_arch *a, im_init normal, int block)
{
    const im_init zeros = im_init_zeros(), ones = im_init_ones();
    im_model_add_unit(t, IM_UNIT_BLOCK, block);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "transformer.h.%d.input_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_NORM1_B, zeros, false, a->D, 0, "transformer.h.%d.input_layernorm.bias", block);
    im_model_add_param(t, IM_SLOT_Q_W, normal, false, 3 * a->D, a->D, "transformer.h.%d.self_attention.query_key_value.weight", block);
    im_model_add_param(t, IM_SLOT_Q_B, zeros, false, 3 * a->D, 0, "transformer.h.%d.self_attention.query_key_value.bias", block);
    im_model_add_param(t, IM_SLOT_O_W, normal, false, a->D, a->D, "transformer.h.%d.self_attention.dense.weight", block);
    im_model_add_param(t, IM_SLOT_O_B, zeros, false, a->D, 0, "transformer.h.%d.self_attention.dense.bias", block);
    im_model_add_param(t, IM_SLOT_NORM2_W, ones, false, a->D, 0, "transformer.h.%d.post_attention_layernorm.weight", block);
    im_model_add_param(t, IM_SLOT_NORM2_B, zeros, false, a->D, 0, "transformer.h.%d.post_attention_layernorm.bias", block);
    im_model_add_param(t, IM_SLOT_UP_W, normal, false, a->F, a->D, "transformer.h.%d.mlp.dense_h_to_4h.weight", block);
    im_model_add_param(t, IM_SLOT_UP_B, zeros, false, a->F, 0, "transformer.h.%d.mlp.dense_h_to_4h.bias", block);
    im_model_add_param(t, IM_SLOT_DOWN_W, normal, false, a->D, a->F, "transformer.h.%d.mlp.dense_4h_to_h.weight", block);
    im_model_add_param(t, IM_SLOT_DOWN_B, zeros, false, a->D, 0, "transformer.h.%d.mlp.dense_4h_to_h.bias", block);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    (void)doc;
    const im_init normal = im_init_normal(std), zeros = im_init_zeros(), ones = im_init_ones();
    im_model_add_unit(t, IM_UNIT_EMBED, -1);
    im_model_add_param(t, IM_SLOT_TOKENS, normal, false, a->V, a->D, "transformer.word_embeddings.weight");
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "transformer.word_embeddings_layernorm.weight");
    im_model_add_param(t, IM_SLOT_NORM1_B, zeros, false, a->D, 0, "transformer.word_embeddings_layernorm.bias");
    for (int block = 0; block < a->L; block++)
        list_block(t, a, normal, block);
    im_model_add_unit(t, IM_UNIT_HEAD, -1);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "transformer.ln_f.weight");
    im_model_add_param(t, IM_SLOT_NORM1_B, zeros, false, a->D, 0, "transformer.ln_f.bias");
    if (!a->tied)
        im_model_add_param(t, IM_SLOT_HEAD_W, normal, false, a->V, a->D, "lm_head.weight");
}

const im_family im_family_bloom = {
    .model_type = "bloom",
    .architecture = "BloomForCausalLM",
    .prefix = "transformer.",
    .head = "lm_head.weight",
    .blocks = "h.",
    .buffers = (const char *const[]){NULL},
    .keys = (const char *const[]){NULL},
    .read = read,
    .list = list,
};
