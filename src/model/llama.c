/* Llama (model_type llama: Llama 2, 3, 3.1, SmolLM2, TinyLlama ...): the pattern of its kind (gated.c). Biases only where the config asks. */
#include "model/family.h"

static const im_rope_look rope = {.types = IM_ROPE_USUAL};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    IM_TRY(im_gated_read(ctx, doc, &(im_gated_look){.norm_eps = 1e-6, .positions = 2048}, a));
    bool bias; /* list looks again; here only: is the value a flag */
    IM_TRY(im_config_flag(ctx, doc, "attention_bias", false, &bias));
    IM_TRY(im_config_flag(ctx, doc, "mlp_bias", false, &bias));
    return im_rope_read(ctx, doc, &rope, a);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const bool attention_bias = im_json_bool(im_json_get(im_json_root(doc), "attention_bias"), false);
    const im_gated_parts parts = {.norm1 = "input_layernorm",
                                  .norm2 = "post_attention_layernorm",
                                  .qkv_bias = attention_bias,
                                  .out_bias = attention_bias,
                                  .mlp_bias = im_json_bool(im_json_get(im_json_root(doc), "mlp_bias"), false)};
    im_gated_list(t, doc, a, &parts, std);
}

const im_family im_family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){"self_attn.rotary_emb.inv_freq", NULL},
    .keys = (const char *const[]){"attention_bias", "mlp_bias", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
