/* family: what a family's table file gives to model.c. Private to src/model.
 *
 * A family is one file: `read` maps the keys of config.json to an im_arch, `list` adds every unit and its parameters
 * in the order of the table. Everything else (buckets, lookups, counts, files of weights) is common.
 */
#ifndef IM_MODEL_FAMILY_H
#define IM_MODEL_FAMILY_H

#include "model/model.h"

typedef struct im_table im_table; /* a parameter table under construction */

typedef struct im_family {
    const char *model_type;   /* as config.json says */
    const char *architecture; /* Transformers' class, for a checkpoint's config.json */
    const char *prefix;       /* of the parameters of the body; files may lack it */
    im_status (*read)(im_context *ctx, const im_json *config, im_arch *arch);
    void (*list)(im_table *t, const im_json *config, const im_arch *arch, double init_std);
    /* Tensors that old files carry and nobody needs: buffers. `name` is without the prefix. */
    bool (*ignored)(const char *name);
} im_family;

extern const im_family im_family_gpt2, im_family_llama;
const im_family *im_family_find(const char *model_type); /* NULL: not implemented */

/* ---- building the table; a failure is kept in the table and told at the end ---- */

void im_model_add_unit(im_table *t, im_unit_type type, int32_t block);
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

/* rope.c: rope_theta, rope_scaling, rope_parameters in the spellings of Transformers 4 and 5 */
im_status im_rope_read(im_context *ctx, const im_json *doc, im_arch *arch) IM_MUST_CHECK;
/* ,"rope_theta":...,"rope_scaling":...,"rope_parameters":...: read alike by both. */
void im_rope_write(const im_arch *a, im_str *out);
/* Radians a position of pair i (0 .. rope_dims/2), scaling applied. */
double im_rope_frequency(const im_arch *a, int64_t i);

#endif
