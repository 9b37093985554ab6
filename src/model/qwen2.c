/* Qwen 2 and 2.5 (model_type qwen2): Llama with a bias on q, k and v, never on the output; windows in some blocks when
 * use_sliding_window says so: those that layer_types names, else those from max_window_layers on. */
#include "model/family.h"

static const im_rope_look rope = {.types = IM_ROPE_USUAL};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    IM_TRY(im_gated_read(ctx, doc, &(im_gated_look){.norm_eps = 1e-6, .positions = 32768, .kv_heads = 32}, a));
    IM_TRY(im_window_read_some(ctx, doc, a->L));
    return im_rope_read(ctx, doc, &rope, a);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const im_gated_parts parts = {.norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .qkv_bias = true, .window = im_window_of_some};
    im_gated_list(t, doc, a, &parts, std);
}

const im_family im_family_qwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){"self_attn.rotary_emb.inv_freq", NULL},
    .keys = (const char *const[]){"use_sliding_window", "sliding_window", "layer_types", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
