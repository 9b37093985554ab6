/* GPT-2 (model_type gpt2): learned positions, LayerNorm, one fused qkv weight, plain MLP, all with biases.
 * Linear weights are (in, out), as Transformers' Conv1D keeps them. The head is the token table unless untied. */
#include "model/family.h"

#include <math.h>

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "vocab_size", NULL, IM_CONFIG_MAX_VOCAB, &a->V));
    IM_TRY(im_config_need_int(ctx, doc, "n_positions", "max_position_embeddings", IM_CONFIG_MAX_POSITIONS, &a->P));
    IM_TRY(im_config_need_int(ctx, doc, "n_embd", "hidden_size", IM_CONFIG_MAX_WIDTH, &a->D));
    IM_TRY(im_config_need_int(ctx, doc, "n_layer", "num_hidden_layers", IM_CONFIG_MAX_BLOCKS, &a->L));
    IM_TRY(im_config_need_int(ctx, doc, "n_head", "num_attention_heads", IM_CONFIG_MAX_HEADS, &a->H));
    IM_TRY(im_config_head_size(ctx, doc, "n_embd", a->D, "n_head", a->H, &a->E));
    IM_TRY(im_config_int(ctx, doc, root, "", "n_inner", 1, IM_CONFIG_MAX_FEED, 4 * a->D, &a->F));
    a->K = a->H;
    a->norm = IM_NORM_LAYER;
    IM_TRY(im_config_real(ctx, doc, root, "", "layer_norm_epsilon", 1e-30, 1, 1e-5, &a->norm_eps));
    IM_TRY(im_config_activation(ctx, doc, "activation_function", IM_ACT_GELU_TANH, &a->act));
    IM_TRY(im_config_real(ctx, doc, root, "", "embd_pdrop", 0, 0.99, 0.1, &a->dropout_embed));
    IM_TRY(im_config_real(ctx, doc, root, "", "attn_pdrop", 0, 0.99, 0.1, &a->dropout_attn));
    IM_TRY(im_config_real(ctx, doc, root, "", "resid_pdrop", 0, 0.99, 0.1, &a->dropout_resid));
    IM_TRY(im_config_flag(ctx, doc, "tie_word_embeddings", true, &a->tied));
    IM_TRY(im_config_refuse(ctx, doc, "scale_attn_by_inverse_layer_idx"));
    IM_TRY(im_config_refuse(ctx, doc, "reorder_and_upcast_attn"));
    IM_TRY(im_config_refuse(ctx, doc, "add_cross_attention"));
    bool scaled;
    IM_TRY(im_config_flag(ctx, doc, "scale_attn_weights", true, &scaled));
    a->attn_scale = scaled ? 1 / sqrt((double)a->E) : 1;
    a->weights_in_out = true;
    a->learned_positions = true;
    return IM_OK;
}

static void list_block(im_table *t, const im_arch *a, im_init normal, im_init residual, int block)
{
    const im_init zeros = im_init_zeros(), ones = im_init_ones();
    im_model_add_unit(t, IM_UNIT_BLOCK, block);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "transformer.h.%d.ln_1.weight", block);
    im_model_add_param(t, IM_SLOT_NORM1_B, zeros, false, a->D, 0, "transformer.h.%d.ln_1.bias", block);
    im_model_add_param(t, IM_SLOT_Q_W, normal, false, a->D, 3 * a->D, "transformer.h.%d.attn.c_attn.weight", block);
    im_model_add_param(t, IM_SLOT_Q_B, zeros, false, 3 * a->D, 0, "transformer.h.%d.attn.c_attn.bias", block);
    im_model_add_param(t, IM_SLOT_O_W, residual, false, a->D, a->D, "transformer.h.%d.attn.c_proj.weight", block);
    im_model_add_param(t, IM_SLOT_O_B, zeros, false, a->D, 0, "transformer.h.%d.attn.c_proj.bias", block);
    im_model_add_param(t, IM_SLOT_NORM2_W, ones, false, a->D, 0, "transformer.h.%d.ln_2.weight", block);
    im_model_add_param(t, IM_SLOT_NORM2_B, zeros, false, a->D, 0, "transformer.h.%d.ln_2.bias", block);
    im_model_add_param(t, IM_SLOT_UP_W, normal, false, a->D, a->F, "transformer.h.%d.mlp.c_fc.weight", block);
    im_model_add_param(t, IM_SLOT_UP_B, zeros, false, a->F, 0, "transformer.h.%d.mlp.c_fc.bias", block);
    im_model_add_param(t, IM_SLOT_DOWN_W, residual, false, a->F, a->D, "transformer.h.%d.mlp.c_proj.weight", block);
    im_model_add_param(t, IM_SLOT_DOWN_B, zeros, false, a->D, 0, "transformer.h.%d.mlp.c_proj.bias", block);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    (void)doc;
    const im_init normal = im_init_normal(std);
    /* both projections back into the residual stream start smaller: 2 L of them add up (GPT-2 paper, section 2.3) */
    const im_init residual = im_init_normal(std / sqrt(2.0 * (double)a->L));
    im_model_add_unit(t, IM_UNIT_EMBED, -1);
    im_model_add_param(t, IM_SLOT_TOKENS, normal, false, a->V, a->D, "transformer.wte.weight");
    im_model_add_param(t, IM_SLOT_POSITIONS, normal, false, a->P, a->D, "transformer.wpe.weight");
    for (int block = 0; block < a->L; block++)
        list_block(t, a, normal, residual, block);
    im_model_add_unit(t, IM_UNIT_HEAD, -1);
    im_model_add_param(t, IM_SLOT_NORM1_W, im_init_ones(), false, a->D, 0, "transformer.ln_f.weight");
    im_model_add_param(t, IM_SLOT_NORM1_B, im_init_zeros(), false, a->D, 0, "transformer.ln_f.bias");
    if (!a->tied)
        im_model_add_param(t, IM_SLOT_HEAD_W, normal, false, a->V, a->D, "lm_head.weight");
}

const im_family im_family_gpt2 = {
    .model_type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .prefix = "transformer.",
    .head = "lm_head.weight",
    .blocks = "h.",
    .buffers = (const char *const[]){"attn.bias", "attn.masked_bias", NULL}, /* the causal mask */
    .keys = (const char *const[]){"add_cross_attention", NULL},
    .read = read,
    .list = list,
};
