/* family: what a family's table file gives to model.c. Private to src/model.
 *
 * A family is one file: `read` maps the keys of config.json to an im_arch, `list` adds every unit and its parameters
 * in the order of the table. Everything else (buckets, lookups, counts, files of weights) is common.
 */
#ifndef IM_MODEL_FAMILY_H
#define IM_MODEL_FAMILY_H

#include "model/model.h"

typedef struct im_table im_table; /* a parameter table under construction */

/* What a family's rotary positions may be, and how its config spells them. */
typedef struct im_rope_look {
    unsigned types;        /* bits of im_rope_scaling */
    const char *theta_key; /* besides rope_theta; NULL: no other */
    const char *part_key;  /* the share of a head that is rotated; NULL: all of it */
    double part;           /* when no key tells it */
    int64_t original;      /* original_max_position_embeddings when no key tells it; 0: max_position_embeddings */
} im_rope_look;
/* default, linear, dynamic, llama3, yarn: what Transformers has for most families */
#define IM_ROPE_USUAL (1u << IM_ROPE_PLAIN | 1u << IM_ROPE_LINEAR | 1u << IM_ROPE_DYNAMIC | 1u << IM_ROPE_LLAMA3 | 1u << IM_ROPE_YARN)

typedef struct im_family {
    const char *model_type;     /* as config.json says */
    const char *architecture;   /* Transformers' class, for a checkpoint's config.json */
    const char *prefix;         /* of the parameters of the body; files may lack it */
    const char *head;           /* the weight of an untied head */
    const char *blocks;         /* behind the prefix, before a block's number: "layers." */
    const char *const *buffers; /* tensors that old files carry in a block and nobody needs; ends with NULL */
    const char *const *keys;  /* keys of config.json that it reads, of those that other families have and it might not (foreign.c); ends with NULL */
    const im_rope_look *rope; /* NULL: no rotary positions */
    im_status (*read)(im_context *ctx, const im_json *config, im_arch *arch);
    void (*list)(im_table *t, const im_json *config, const im_arch *arch, double init_std);
} im_family;

#define IM_FAMILY(name) extern const im_family im_family_##name;
#include "model/families.h"
#undef IM_FAMILY
const im_family *im_family_find(const char *model_type); /* NULL: not implemented */
/* A tensor that old files carry and nobody needs; `name` is without the prefix. */
bool im_family_ignores(const im_family *f, const char *name);

/* ---- building the table; a failure is kept in the table and told at the end ---- */

void im_model_add_unit(im_table *t, im_unit_type type, int32_t block);
void im_model_set_window(im_table *t, int64_t window); /* of the last unit */
/* Adds a parameter to the last unit; cols 0 makes it 1-D. The name is formatted. */
void im_model_add_param(im_table *t, im_slot slot, im_init init, bool glue, int64_t rows, int64_t cols, const char *fmt, ...) IM_PRINTF(7, 8);

static inline im_init im_init_normal(double std)
{
    return (im_init){.kind = IM_INIT_NORMAL, .std = std};
}
static inline im_init im_init_zeros(void)
{
    return (im_init){.kind = IM_INIT_ZEROS};
}
static inline im_init im_init_ones(void)
{
    return (im_init){.kind = IM_INIT_ONES};
}

/* ---- reading config.json: absent and null give the fallback; a wrong type or a value outside [min, max] is an
 * IM_ERR_FORMAT that names file, key and range. `object` is the root or a member of it; `path` names it in messages
 * ("" or "rope_scaling."). ---- */

/* The ranges of sizes: beyond them a config is nonsense, within them no product below overflows 63 bits. */
enum {
    IM_CONFIG_MAX_WIDTH = 1 << 24,     /* D, H*E */
    IM_CONFIG_MAX_FEED = 1 << 26,      /* F */
    IM_CONFIG_MAX_VOCAB = 1 << 28,     /* V */
    IM_CONFIG_MAX_POSITIONS = 1 << 28, /* P */
    IM_CONFIG_MAX_BLOCKS = 4000,       /* the table's indices are 16 bits wide */
    IM_CONFIG_MAX_HEADS = 1 << 16
};

im_status im_config_need_int(im_context *ctx, const im_json *doc, const char *key, const char *alias, int64_t max,
                             int64_t *out) IM_MUST_CHECK; /* from 1 */
im_status im_config_int(im_context *ctx, const im_json *doc, const im_json_value *object, const char *path, const char *key, int64_t min, int64_t max,
                        int64_t fallback, int64_t *out) IM_MUST_CHECK;
im_status im_config_real(im_context *ctx, const im_json *doc, const im_json_value *object, const char *path, const char *key, double min, double max,
                         double fallback, double *out) IM_MUST_CHECK;
im_status im_config_flag(im_context *ctx, const im_json *doc, const char *key, bool fallback, bool *out) IM_MUST_CHECK;
/* A flag that must not be true: IM_ERR_UNSUPPORTED by name. */
im_status im_config_refuse(im_context *ctx, const im_json *doc, const char *key) IM_MUST_CHECK;
im_status im_config_activation(im_context *ctx, const im_json *doc, const char *key, im_act fallback, im_act *out) IM_MUST_CHECK;
bool im_config_present(const im_json_value *object, const char *key); /* there and not null */
/* heads divide hidden: head size when no key gives it. */
im_status im_config_head_size(im_context *ctx, const im_json *doc, const char *hidden_key, int64_t hidden, const char *heads_key, int64_t heads,
                              int64_t *out) IM_MUST_CHECK;
/* A value as JSON text; reals with the fewest digits that read back to the same bits. */
void im_config_write_value(const im_json_value *v, im_str *out);
void im_config_write_real(double x, im_str *out);

/* foreign.c: keys that change what a model computes in families that have them. One that this family does not read (keys) and that is
 * not neutral is IM_ERR_UNSUPPORTED, by name. */
im_status im_config_refuse_foreign(im_context *ctx, const im_json *doc, const im_family *f) IM_MUST_CHECK;

/* ---- windows: window.c ---- */

/* Checks layer_types (absent: nothing to check): a list of L names, full_attention or sliding_attention. */
im_status im_window_check(im_context *ctx, const im_json *doc, int64_t L) IM_MUST_CHECK;
/* sliding_window; absent gives the fallback, null none. */
im_status im_window_read(im_context *ctx, const im_json *doc, int64_t fallback, int64_t *out) IM_MUST_CHECK;
/* Whether a block is of sliding attention: as layer_types says; without it, blocks from `first` on are. */
bool im_window_slides(const im_json *doc, int64_t block, int64_t first);
/* Qwen's way: use_sliding_window, then sliding_window in the blocks of layer_types, or from max_window_layers on. */
im_status im_window_read_some(im_context *ctx, const im_json *doc, int64_t L) IM_MUST_CHECK;
int64_t im_window_of_some(const im_json *doc, int64_t block);

/* ---- Llama and its kind: gated.c ---- */

/* Their defaults where config.json says nothing. */
typedef struct im_gated_look {
    double norm_eps;
    int64_t positions;
    int64_t kv_heads, head_size; /* 0: as many as heads; hidden_size / heads */
} im_gated_look;
/* Names behind model.layers.N. and what there is. */
typedef struct im_gated_parts {
    const char *norm1, *norm2;
    bool qkv_bias, out_bias, mlp_bias;
    bool fused; /* self_attn.qkv_proj and mlp.gate_up_proj in place of q_proj, k_proj, v_proj and gate_proj, up_proj */
    int64_t (*window)(const im_json *config, int64_t block); /* NULL: none */
} im_gated_parts;
/* All that they share; not yet the rotary positions. */
im_status im_gated_read(im_context *ctx, const im_json *doc, const im_gated_look *look, im_arch *a) IM_MUST_CHECK;
void im_gated_list(im_table *t, const im_json *config, const im_arch *a, const im_gated_parts *parts, double std);

/* rope.c: rope_theta, rope_scaling, rope_parameters in the spellings of Transformers 4 and 5; E and P are known */
im_status im_rope_read(im_context *ctx, const im_json *doc, const im_rope_look *look, im_arch *arch) IM_MUST_CHECK;
/* ,"rope_theta":...,"rope_scaling":...,"rope_parameters":...: read alike by both. */
void im_rope_write(const im_arch *a, const im_rope_look *look, im_str *out);
/* Whether im_rope_write writes the key. */
bool im_rope_writes(const im_rope_look *look, const char *key);
/* Radians a position of pair i (0 .. rope_dims/2), scaling applied, in a run that may reach `reach` positions. */
double im_rope_frequency(const im_arch *a, int64_t reach, int64_t i);

#endif
