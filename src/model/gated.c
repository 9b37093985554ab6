/* What Llama and its kind share: RMSNorm, rotary positions in halves, grouped-query attention, gated MLP. Linear weights are (out, in).
 * q, k and v are three parameters that lie behind one another, so that one matmul makes all three, or one; gate and up likewise. */
#include "model/family.h"

#include <math.h>

static im_status read_heads(im_context *ctx, const im_json *doc, const im_gated_look *look, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "num_attention_heads", NULL, IM_CONFIG_MAX_HEADS, &a->H));
    /* null means as many as heads, no key the family's default */
    int64_t kv = look->kv_heads && !im_json_get(root, "num_key_value_heads") ? look->kv_heads : a->H;
    IM_TRY(im_config_int(ctx, doc, root, "", "num_key_value_heads", 1, a->H, kv, &a->K));
    if (a->K > a->H || a->H % a->K != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld", im_json_name(doc),
                       (long long)a->H, (long long)a->K);
    if (im_config_present(root, "head_dim"))
        IM_TRY(im_config_int(ctx, doc, root, "", "head_dim", 1, IM_CONFIG_MAX_WIDTH / a->H, 0, &a->E));
    else if (look->head_size)
        a->E = look->head_size;
    else
        IM_TRY(im_config_head_size(ctx, doc, "hidden_size", a->D, "num_attention_heads", a->H, &a->E));
    a->attn_scale = 1 / sqrt((double)a->E);
    return IM_OK;
}

im_status im_gated_read(im_context *ctx, const im_json *doc, const im_gated_look *look, im_arch *a)
{
    const im_json_value *root = im_json_root(doc);
    IM_TRY(im_config_need_int(ctx, doc, "vocab_size", NULL, IM_CONFIG_MAX_VOCAB, &a->V));
    IM_TRY(im_config_need_int(ctx, doc, "hidden_size", NULL, IM_CONFIG_MAX_WIDTH, &a->D));
    IM_TRY(im_config_need_int(ctx, doc, "intermediate_size", NULL, IM_CONFIG_MAX_FEED, &a->F));
    IM_TRY(im_config_need_int(ctx, doc, "num_hidden_layers", NULL, IM_CONFIG_MAX_BLOCKS, &a->L));
    IM_TRY(read_heads(ctx, doc, look, a));
    IM_TRY(im_config_int(ctx, doc, root, "", "max_position_embeddings", 1, IM_CONFIG_MAX_POSITIONS, look->positions, &a->P));
    a->norm = IM_NORM_RMS;
    IM_TRY(im_config_real(ctx, doc, root, "", "rms_norm_eps", 1e-30, 1, look->norm_eps, &a->norm_eps));
    IM_TRY(im_config_activation(ctx, doc, "hidden_act", IM_ACT_SILU, &a->act));
    a->gated = true;
    IM_TRY(im_config_real(ctx, doc, root, "", "attention_dropout", 0, 0.99, 0, &a->dropout_attn));
    return im_config_flag(ctx, doc, "tie_word_embeddings", false, &a->tied);
}

/* One block's parameter, by its name behind the block's. */
static void add(im_table *t, int block, im_slot slot, im_init init, bool glue, int64_t rows, int64_t cols, const char *module, const char *what)
{
    im_model_add_param(t, slot, init, glue, rows, cols, "model.layers.%d.%s.%s", block, module, what);
}

static void list_attention(im_table *t, const im_arch *a, const im_gated_parts *p, im_init normal, int block)
{
    const im_init zeros = im_init_zeros(), ones = im_init_ones();
    const int64_t q = a->H * a->E, kv = a->K * a->E, D = a->D;
    if (p->fused) {
        add(t, block, IM_SLOT_Q_W, normal, false, q + 2 * kv, D, "self_attn.qkv_proj", "weight");
    } else {
        add(t, block, IM_SLOT_Q_W, normal, false, q, D, "self_attn.q_proj", "weight");
        add(t, block, IM_SLOT_K_W, normal, true, kv, D, "self_attn.k_proj", "weight");
        add(t, block, IM_SLOT_V_W, normal, true, kv, D, "self_attn.v_proj", "weight");
    }
    if (p->qkv_bias) {
        add(t, block, IM_SLOT_Q_B, zeros, false, q, 0, "self_attn.q_proj", "bias");
        add(t, block, IM_SLOT_K_B, zeros, true, kv, 0, "self_attn.k_proj", "bias");
        add(t, block, IM_SLOT_V_B, zeros, true, kv, 0, "self_attn.v_proj", "bias");
    }
    if (a->qk_norm != IM_QK_NORM_NONE) {
        const bool all = a->qk_norm == IM_QK_NORM_ALL;
        add(t, block, IM_SLOT_Q_NORM_W, ones, false, all ? q : a->E, 0, "self_attn.q_norm", "weight");
        add(t, block, IM_SLOT_K_NORM_W, ones, false, all ? kv : a->E, 0, "self_attn.k_norm", "weight");
    }
    add(t, block, IM_SLOT_O_W, normal, false, D, q, "self_attn.o_proj", "weight");
    if (p->out_bias)
        add(t, block, IM_SLOT_O_B, zeros, false, D, 0, "self_attn.o_proj", "bias");
}

static void list_feed_forward(im_table *t, const im_arch *a, const im_gated_parts *p, im_init normal, int block)
{
    const im_init zeros = im_init_zeros();
    if (p->fused) {
        add(t, block, IM_SLOT_GATE_W, normal, false, 2 * a->F, a->D, "mlp.gate_up_proj", "weight");
    } else {
        add(t, block, IM_SLOT_GATE_W, normal, false, a->F, a->D, "mlp.gate_proj", "weight");
        add(t, block, IM_SLOT_UP_W, normal, true, a->F, a->D, "mlp.up_proj", "weight");
    }
    if (p->mlp_bias) {
        add(t, block, IM_SLOT_GATE_B, zeros, false, a->F, 0, "mlp.gate_proj", "bias");
        add(t, block, IM_SLOT_UP_B, zeros, true, a->F, 0, "mlp.up_proj", "bias");
    }
    add(t, block, IM_SLOT_DOWN_W, normal, false, a->D, a->F, "mlp.down_proj", "weight");
    if (p->mlp_bias)
        add(t, block, IM_SLOT_DOWN_B, zeros, false, a->D, 0, "mlp.down_proj", "bias");
}

void im_gated_list(im_table *t, const im_json *config, const im_arch *a, const im_gated_parts *p, double std)
{
    const im_init normal = im_init_normal(std), ones = im_init_ones();
    im_model_add_unit(t, IM_UNIT_EMBED, -1);
    im_model_add_param(t, IM_SLOT_TOKENS, normal, false, a->V, a->D, "model.embed_tokens.weight");
    for (int block = 0; block < a->L; block++) {
        im_model_add_unit(t, IM_UNIT_BLOCK, block);
        im_model_set_window(t, p->window ? p->window(config, block) : 0);
        add(t, block, IM_SLOT_NORM1_W, ones, false, a->D, 0, p->norm1, "weight");
        list_attention(t, a, p, normal, block);
        add(t, block, IM_SLOT_NORM2_W, ones, false, a->D, 0, p->norm2, "weight");
        list_feed_forward(t, a, p, normal, block);
    }
    im_model_add_unit(t, IM_UNIT_HEAD, -1);
    im_model_add_param(t, IM_SLOT_NORM1_W, ones, false, a->D, 0, "model.norm.weight");
    if (!a->tied)
        im_model_add_param(t, IM_SLOT_HEAD_W, normal, false, a->V, a->D, "lm_head.weight");
}
