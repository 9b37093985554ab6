/* Phi-3 and Phi-4 (model_type phi3): Llama with q, k and v in one weight, gate and up in one; LongRoPE in the long-context models, part of
 * a head rotated in some; a window the same in every block. */
#include "model/family.h"

static const im_rope_look rope = {
    .types = 1u << IM_ROPE_PLAIN | 1u << IM_ROPE_LONG, .part_key = "partial_rotary_factor", .part = 1, .original = 4096};

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    int64_t length;
    IM_TRY(im_gated_read(ctx, doc, &(im_gated_look){.norm_eps = 1e-5, .positions = 4096}, a));
    IM_TRY(im_config_real(ctx, doc, root, "", "resid_pdrop", 0, 0.99, 0, &a->dropout_resid));
    IM_TRY(im_window_read(ctx, doc, 0, &length));
    return im_rope_read(ctx, doc, &rope, a); /* embd_pdrop: a key that Transformers has, and no layer reads */
}

static int64_t window(const im_json *doc, int64_t block)
{
    (void)block;
    return im_json_int(im_json_get(im_json_root(doc), "sliding_window"), 0);
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    const im_gated_parts parts = {.norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .fused = true, .window = window};
    im_gated_list(t, doc, a, &parts, std);
}

const im_family im_family_phi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){NULL},
    .keys = (const char *const[]){"sliding_window", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
