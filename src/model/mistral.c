/* Mistral (model_type mistral: 7B, Nemo ...): Llama with a window on what a query sees, the same in every block. */
#include "model/family.h"

static const im_rope_look rope = {.types = IM_ROPE_USUAL};
enum { WINDOW = 4096 }; /* where no key says anything */

static im_status read(im_context *ctx, const im_json *doc, im_arch *a)
{
    int64_t length;
    IM_TRY(im_gated_read(ctx, doc, &(im_gated_look){.norm_eps = 1e-6, .positions = 131072, .kv_heads = 8}, a));
    IM_TRY(im_window_read(ctx, doc, WINDOW, &length));
    IM_TRY(im_window_check(ctx, doc, a->L));
    for (int64_t block = 0; block < a->L; block++)
        if (im_window_slides(doc, block, 0) != (length > 0) && im_config_present(im_json_root(doc), "layer_types"))
            return im_fail(ctx, IM_ERR_UNSUPPORTED,
                           "%s: layer_types differs from block to block, or from sliding_window: not implemented for mistral", im_json_name(doc));
    return im_rope_read(ctx, doc, &rope, a);
}

static int64_t window(const im_json *doc, int64_t block)
{
    const im_json_value *root = im_json_root(doc), *given = im_json_get(root, "sliding_window");
    (void)block;
    return given ? im_json_int(given, 0) : WINDOW;
}

static void list(im_table *t, const im_json *doc, const im_arch *a, double std)
{
    im_gated_list(t, doc, a, &(im_gated_parts){.norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .window = window}, std);
}

const im_family im_family_mistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .prefix = "model.",
    .head = "lm_head.weight",
    .blocks = "layers.",
    .buffers = (const char *const[]){"self_attn.rotary_emb.inv_freq", NULL},
    .keys = (const char *const[]){"sliding_window", "layer_types", NULL},
    .rope = &rope,
    .read = read,
    .list = list,
};
