/* model: a Hugging Face config becomes a table of parameters and a list of units.
 *
 * One file a family (families.h lists them): it maps the keys of config.json to an im_arch and lists the parameters
 * under their Hugging Face names. The builder in src/plan reads im_arch, the unit's slots and nothing else;
 * no tensor is known by a magic index.
 */
#ifndef IM_MODEL_H
#define IM_MODEL_H

#include "base/json.h"
#include "tensor/ops.h"

typedef enum im_rope_scaling {
    IM_ROPE_PLAIN,
    IM_ROPE_LINEAR,
    IM_ROPE_DYNAMIC, /* as PLAIN within the model's positions, and there is nothing beyond them */
    IM_ROPE_LLAMA3,
    IM_ROPE_YARN,
    IM_ROPE_LONG,
    IM_ROPE_COUNT
} im_rope_scaling;
enum { IM_ROPE_MAX_PAIRS = 128 }; /* with factors for each pair */

/* Where a block's two norms stand (x in, y out, A attention, M feed-forward):
 * PRE r = x + A(N1 x), y = r + M(N2 r); POST r = x + N1 A(x), y = r + N2 M(r); PARALLEL y = x + A(N1 x) + M(N2 x). */
typedef enum im_residual { IM_RESIDUAL_PRE, IM_RESIDUAL_POST, IM_RESIDUAL_PARALLEL } im_residual;
/* RMS norm of queries and keys before they are rotated: of each head alone with one weight of E, or of all heads together. */
typedef enum im_qk_norm { IM_QK_NORM_NONE, IM_QK_NORM_HEAD, IM_QK_NORM_ALL } im_qk_norm;

/* What the units compute. Letters as in the docs: D hidden, H heads, K kv heads, E head size, F feed-forward, V vocabulary, L blocks, P positions. */
typedef struct im_arch {
    int64_t D, H, K, E, F, V, L, P;
    im_norm norm;
    double norm_eps;
    im_residual residual;
    im_qk_norm qk_norm;
    im_act act;
    bool gated;             /* down(act(gate) * up) instead of down(act(up)) */
    bool weights_in_out;    /* linear weights are (in, out) as GPT-2's Conv1D; else (out, in) */
    bool learned_positions; /* embedding adds table2[pos] */
    bool tied;              /* head uses the token table */
    bool alibi;             /* scores + slope of the head * (key's position - query's) */
    bool qkv_by_head;       /* a fused qkv weight holds q, k, v of head 0, of head 1, ...; else all q, all k, all v */
    int64_t rope_dims;      /* 0: no rotary; the first of each head */
    double rope_part;       /* rope_dims / E as the config says it */
    bool rope_interleaved;
    double rope_theta;
    im_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq, rope_high_freq;
    int64_t rope_original_positions;
    double rope_attention;                 /* cosines and sines are multiplied by this */
    double rope_beta_fast, rope_beta_slow; /* YARN */
    bool rope_truncate;                    /* YARN: the range of mixed pairs has whole ends */
    double rope_short[IM_ROPE_MAX_PAIRS],
        rope_long[IM_ROPE_MAX_PAIRS];                  /* LONG: each pair's factor in runs within and beyond the original positions */
    double attn_scale;                                 /* 1/sqrt(E) usually */
    double dropout_embed, dropout_attn, dropout_resid; /* as the config says; training may override */
} im_arch;

typedef enum im_init_kind { IM_INIT_ZEROS, IM_INIT_ONES, IM_INIT_NORMAL } im_init_kind;
typedef struct im_init {
    im_init_kind kind;
    double std;
} im_init;

typedef enum im_unit_type { IM_UNIT_EMBED, IM_UNIT_BLOCK, IM_UNIT_HEAD, IM_UNIT_TYPE_COUNT } im_unit_type;

/* Parameters by what they do in their unit. */
typedef enum im_slot {
    IM_SLOT_TOKENS,    /* EMBED (V,D); also HEAD's weight when tied */
    IM_SLOT_POSITIONS, /* EMBED (P,D) */
    IM_SLOT_NORM1_W,   /* BLOCK: attention's; HEAD: the last norm; EMBED: behind the embedding */
    IM_SLOT_NORM1_B,
    IM_SLOT_Q_W, /* or the fused qkv weight when K_W and V_W are absent */
    IM_SLOT_K_W, /* glued to Q_W */
    IM_SLOT_V_W, /* glued to K_W */
    IM_SLOT_Q_B,
    IM_SLOT_K_B,
    IM_SLOT_V_B,
    IM_SLOT_Q_NORM_W, /* (E), or (H*E) where all heads are normed together */
    IM_SLOT_K_NORM_W,
    IM_SLOT_O_W,
    IM_SLOT_O_B,
    IM_SLOT_NORM2_W,
    IM_SLOT_NORM2_B,
    IM_SLOT_UP_W,   /* gated: GATE_W then UP_W glued; else only UP_W */
    IM_SLOT_GATE_W, /* or gate and up fused when UP_W is absent */
    IM_SLOT_UP_B,
    IM_SLOT_GATE_B,
    IM_SLOT_DOWN_W,
    IM_SLOT_DOWN_B,
    IM_SLOT_HEAD_W, /* HEAD (V,D), when not tied */
    IM_SLOT_COUNT
} im_slot;

typedef struct im_param {
    const char *name; /* Hugging Face name */
    uint8_t ndim;
    int64_t shape[4];
    im_init init;
    bool decay; /* weight decay applies (2-D and more, no norms, no biases) */
    bool glue;  /* lies directly behind the parameter before it in the table, without padding */
    uint16_t bucket;
} im_param;

typedef struct im_unit {
    im_unit_type type;
    int32_t block;                /* block number, -1 otherwise */
    int64_t window;               /* BLOCK: a query sees keys less than this many positions behind it; 0: all */
    int32_t param[IM_SLOT_COUNT]; /* index into im_model.param, -1: absent */
} im_unit;

typedef struct im_model {
    const char *family; /* "gpt2", "llama", ... */
    const char *source; /* config.json's path, for messages */
    const char *dir;    /* directory that may hold weights, NULL for a named shape */
    im_arch arch;
    im_param *param;
    size_t nparam;
    im_unit *unit; /* EMBED, BLOCK x L, HEAD */
    size_t nunit;
    size_t nbucket;     /* one a unit in order, a tied parameter its own (the first) */
    bool planning_only; /* a shape whose family this build cannot run */
    im_json *config;    /* the document it came from */
    im_arena *arena;
} im_model;

/* `what` is a directory with config.json, a .json file, or the name of a file in `models_dir` (NULL: names are
 * not looked up). Unknown names: the nearest is told. Not implemented model_type, rope type, activation,
 * quantisation: IM_ERR_UNSUPPORTED, by name. planning_only shapes load; im_model_need_runnable refuses them. */
im_status im_model_open(im_context *ctx, const char *what, const char *models_dir, im_model **out) IM_MUST_CHECK;
im_status im_model_parse(im_context *ctx, const im_json *config,
                         im_model **out) IM_MUST_CHECK; /* keeps no reference to config but copies it as text */
void im_model_close(im_model *m);                       /* NULL is allowed */
/* The names in models_dir, sorted, in arena a. */
im_status im_model_list(im_context *ctx, const char *models_dir, im_arena *a, const char ***names, size_t *n) IM_MUST_CHECK;
im_status im_model_need_runnable(im_context *ctx, const im_model *m) IM_MUST_CHECK;
int64_t im_model_param_count(const im_model *m); /* elements, tied once */
int64_t im_param_count(const im_param *p);
int32_t im_model_find_param(const im_model *m, const char *name); /* -1: none */
/* The same for models of one family with the same parameters and heads: what a plan depends on. The same in every version. */
uint64_t im_model_identity(const im_model *m);
/* Model FLOPs of one token, forward and backward (6N + attention), as docs/metrics.md: N the matmul weights, head included. */
double im_model_flops_per_token(const im_model *m, int64_t seq_len);
/* config.json for a checkpoint: what was read, with dtype set; opens in Transformers 4 and 5. */
im_status im_model_config_text(im_context *ctx, const im_model *m, im_dtype stored, im_str *out) IM_MUST_CHECK;

/* Values [first, first+count) of parameter p as its family initialises it; keyed by (seed, name, global index). */
void im_param_init(const im_param *p, uint64_t seed, int64_t first, int64_t count, float *out);
/* cos | sin rows of `dims` fp32, computed in fp64, for positions [first, first+n) of a run that may reach `reach` positions. */
void im_rope_table(const im_arch *a, int64_t reach, int64_t first, int64_t n, float *out);

#endif
