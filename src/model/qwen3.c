/* Qwen 3 (model_type qwen3): Llama with an RMS norm on each head of q and k, head_dim a key of its own, biases only where asked for;
 * windows as in Qwen 2. */
#include "model/family.h"

static const im_rope_look rope = {.types = IM_ROPE_USUAL};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_gated_look look = {.norm_eps = 1e-6, .positions = 32768, .kv_heads = 32, .head_size = 128};
    bool bias; /* list looks again */
    IM_TRY(im_gated_read(ctx, doc, &look, a));
    IM_TRY(im_config_flag(ctx, doc, "attention_bias", false, &bias));
    IM_TRY(im_window_read_some(ctx, doc, a->L));
    a->qk_norm = IM_QK_NORM_HEAD;
    return im_rope_read(ctx, doc, &rope, a);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const bool bias = im_json_bool(im_json_get(im_json_root(doc), "attention_bias"), false);
    const im_gated_parts parts = {
        .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .qkv_bias = bias, .out_bias = bias, .window = im_window_of_some};
    im_gated_list(t, doc, a, &parts, std);
}

const im_family im_family_qwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){NULL},
    .keys = (const char *const[]){"attention_bias", "use_sliding_window", "sliding_window", "layer_types", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
