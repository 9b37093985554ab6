/* OLMo 2 (model_type olmo2): as Llama, but the norms come behind attention and feed-forward, before the residual, and q and k are normed
 * over all heads together before they are rotated. */
#include "model/family.h"

static const im_rope_look rope = {.types = IM_ROPE_USUAL};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    bool bias; /* list looks again */
    IM_TRY(im_gated_read(ctx, doc, &(im_gated_look){.norm_eps = 1e-5, .positions = 2048}, a));
    IM_TRY(im_config_flag(ctx, doc, "attention_bias", false, &bias));
    a->residual = IM_RESIDUAL_POST;
    a->qk_norm = IM_QK_NORM_ALL;
    return im_rope_read(ctx, doc, &rope, a);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const bool bias = im_json_bool(im_json_get(im_json_root(doc), "attention_bias"), false);
    const im_gated_parts parts = {.norm1 = "post_attention_layernorm", .norm2 = "post_feedforward_layernorm", .qkv_bias = bias, .out_bias = bias};
    im_gated_list(t, doc, a, &parts, std);
}

const im_family im_family_olmo2 = {
    .model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){NULL},
    .keys = (const char *const[]){"attention_bias", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
