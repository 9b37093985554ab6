/* The CPU kernels of the kinds in kinds_nn.c, kinds_attention.c and kinds_loss.c.
 *
 * Three layers: im_plain_NAME is the oracle; im_fast_NAME cuts the work into ranges or tasks for the threads; what runs in
 * a range is in a table of functions (im_nn_rows) that exists once per instruction set, compiled from the same bodies.
 */
#ifndef IM_TENSOR_NN_KERNELS_H
#define IM_TENSOR_NN_KERNELS_H

#include "tensor/cpu/cpu.h"
#include "tensor/ops.h"

im_status im_plain_embed(const im_kernel_call *c);
im_status im_plain_embed_grad(const im_kernel_call *c);
im_status im_plain_norm(const im_kernel_call *c);
im_status im_plain_norm_grad(const im_kernel_call *c);
im_status im_plain_rope(const im_kernel_call *c);
im_status im_plain_head_sum(const im_kernel_call *c);
im_status im_plain_head_norm(const im_kernel_call *c);
im_status im_plain_head_norm_grad(const im_kernel_call *c);
im_status im_plain_act(const im_kernel_call *c);
im_status im_plain_act_grad(const im_kernel_call *c);
im_status im_plain_glu(const im_kernel_call *c);
im_status im_plain_glu_grad(const im_kernel_call *c);
im_status im_plain_dropout(const im_kernel_call *c);
im_status im_plain_attention(const im_kernel_call *c);
im_status im_plain_attention_grad(const im_kernel_call *c);
im_status im_plain_xent(const im_kernel_call *c);
im_status im_plain_xent_stat(const im_kernel_call *c);
im_status im_plain_xent_merge(const im_kernel_call *c);
im_status im_fast_xent_stat(const im_kernel_call *c);
im_status im_fast_xent_merge(const im_kernel_call *c);
/* The merge of the parts' numbers of one row: the largest logit, the sum of exponentials, the target's logit and the mean logit of all. */
typedef struct im_xent_row {
    double top, sum, target, mean;
} im_xent_row;
im_xent_row im_xent_merge_row(const im_kernel_call *c, int64_t r);
im_status im_check_split_targets(const im_kernel_call *c);
im_status im_plain_count(const im_kernel_call *c);
im_status im_plain_clip(const im_kernel_call *c);
im_status im_plain_sample(const im_kernel_call *c);
im_status im_plain_kv_write(const im_kernel_call *c);
size_t im_plain_attention_workspace(const im_op_args *a, int threads);
size_t im_plain_attention_grad_workspace(const im_op_args *a, int threads);
size_t im_plain_sample_workspace(const im_op_args *a, int threads);

im_status im_fast_embed(const im_kernel_call *c);
im_status im_fast_embed_grad(const im_kernel_call *c);
im_status im_fast_norm(const im_kernel_call *c);
size_t im_fast_norm_workspace(const im_op_args *a, int threads);
im_status im_fast_norm_grad(const im_kernel_call *c);
size_t im_fast_norm_grad_workspace(const im_op_args *a, int threads);
im_status im_fast_rope(const im_kernel_call *c);
im_status im_fast_head_sum(const im_kernel_call *c);
im_status im_fast_head_norm(const im_kernel_call *c);
im_status im_fast_head_norm_grad(const im_kernel_call *c);
size_t im_fast_head_norm_grad_workspace(const im_op_args *a, int threads);
im_status im_fast_act(const im_kernel_call *c);
im_status im_fast_act_grad(const im_kernel_call *c);
im_status im_fast_glu(const im_kernel_call *c);
im_status im_fast_glu_grad(const im_kernel_call *c);
im_status im_fast_dropout(const im_kernel_call *c);
im_status im_fast_attention(const im_kernel_call *c);
size_t im_fast_attention_workspace(const im_op_args *a, int threads);
im_status im_fast_attention_grad(const im_kernel_call *c);
size_t im_fast_attention_grad_workspace(const im_op_args *a, int threads);
im_status im_fast_xent(const im_kernel_call *c);
size_t im_fast_xent_workspace(const im_op_args *a, int threads);
im_status im_fast_sample(const im_kernel_call *c);
im_status im_fast_kv_write(const im_kernel_call *c);

/* ---- what plain and fast must agree on ---------------------------------------------------------------------------------- */

/* Fails with `what`, row, id and table size when one of n ids (stride in elements) is outside [low, size). */
im_status im_check_ids(const im_kernel_call *c, const char *what, const int32_t *ids, int64_t n, int64_t stride, int64_t low, int64_t size);

/* xent: the same for a target at or above the vocabulary. */
im_status im_check_targets(const im_kernel_call *c);

/* Dropout. A word of Philox keyed by (seed, site) is kept when it is at least p * 2^32. */
typedef struct im_dropout {
    bool on;
    uint64_t key;
    uint32_t threshold;
    float scale; /* 1/(1-p), what kept values are multiplied with */
} im_dropout;

static inline im_dropout im_dropout_make(double p, int64_t seed, int64_t site)
{
    im_dropout d = {.on = p > 0.0, .scale = 1.0f, .key = (uint64_t)seed + ((uint64_t)site + 1) * 0x9E3779B97F4A7C15u};
    if (d.on) {
        d.threshold = (uint32_t)(p * 0x1p32);
        d.scale = (float)(1.0 / (1.0 - p));
    }
    return d;
}

/* The word of (sample, position, column) for im_op_dropout. Columns are dealt so that 16 neighbours are 16 counters: a vector
 * of any width up to 16 lanes needs no shuffle. */
static inline uint32_t im_dropout_word(const im_dropout *d, int64_t sample, int64_t position, int64_t column)
{
    uint32_t w[4];
    uint64_t lo = (uint64_t)(uint32_t)((column >> 6) << 4 | (column & 15)) | (uint64_t)(uint32_t)position << 32;
    im_philox(d->key, lo, (uint64_t)sample, w);
    return w[(column >> 4) & 3];
}

/* The word of (sample, head, query position, key position) for attention: four neighbouring keys share a counter. */
static inline uint64_t im_attn_counter_hi(int64_t sample, int64_t head)
{
    return (uint64_t)sample + ((uint64_t)head << 48);
}
static inline uint32_t im_attn_word(const im_dropout *d, int64_t sample, int64_t head, int32_t pos_q, int32_t pos_k)
{
    uint32_t w[4];
    im_philox(d->key, (uint64_t)((uint32_t)pos_k >> 2) | (uint64_t)(uint32_t)pos_q << 32, im_attn_counter_hi(sample, head), w);
    return w[(uint32_t)pos_k & 3];
}

/* ---- tables that are a part of a vocabulary -------------------------------------------------------------------------------- */

/* Whether row `id` (counted from the table's first) lies in operand i's table. */
static inline bool im_table_row(const im_op_args *a, int i, int64_t id)
{
    return id >= 0 && id < a->v[i].shape[0];
}
/* The whole vocabulary: what the op says, or the table. */
static inline int64_t im_whole_vocabulary(int64_t said, const im_view *table)
{
    return said > 0 ? said : table->shape[0];
}

/* ---- attention: the operands by name -------------------------------------------------------------------------------------- */

typedef struct im_heads { /* (B,T,heads,E), E contiguous; strides in elements */
    char *p;
    im_dtype type;
    int64_t b, t, h;
    const int32_t *block; /* NULL, or of a paged cache: where each run of IM_KV_BLOCK tokens of a sample lies */
    int64_t blocks;       /* runs of a sample */
} im_heads;

typedef struct im_places { /* (B,T) int32; p NULL: absent */
    const int32_t *p;
    int64_t b, t;
} im_places;

typedef struct im_attn {
    int64_t B, Tq, Tk, H, K, G, E; /* G = H / K queries share a kv head */
    int64_t keys;                  /* the first `keys` of Tk count */
    im_heads q, k, v, o, dout, dq, dk, dv;
    im_places pos_q, pos_k, seg_q, seg_k;
    char *lse; /* fp32 (B,Tq,H) */
    int64_t lse_b, lse_t, lse_h;
    bool causal;
    int64_t window;      /* 0: none */
    int64_t alibi_heads; /* 0: none */
    float scale;
    im_dropout drop;
    int64_t sample0, head0; /* global numbers of batch row 0 and of head 0 */
} im_attn;

im_status im_attn_make(const im_kernel_call *c, bool grad, im_attn *out) IM_MUST_CHECK;

static inline void *im_head_row(const im_heads *x, int64_t b, int64_t t, int64_t h)
{
    int64_t at = x->block ? x->block[b * x->blocks + t / IM_KV_BLOCK] * x->b + t % IM_KV_BLOCK * x->t : b * x->b + t * x->t;
    return x->p + (size_t)(at + h * x->h) * (x->type == IM_BF16 ? 2 : 4);
}
static inline float *im_attn_lse(const im_attn *a, int64_t b, int64_t t, int64_t h)
{
    return (float *)(void *)a->lse + b * a->lse_b + t * a->lse_t + h * a->lse_h;
}
static inline int32_t im_place(const im_places *x, int64_t b, int64_t t)
{
    return x->p[b * x->b + t * x->t];
}

static inline bool im_attn_visible(const im_attn *a, int32_t pos_q, int32_t pos_k, int32_t seg_q, int32_t seg_k)
{
    int64_t distance = (int64_t)pos_q - pos_k;
    return (!a->causal || distance >= 0) && (a->window <= 0 || distance < a->window) && seg_q == seg_k;
}

/* What is added to the score of a key for each position that it lies behind the query; 0 without ALiBi. */
static inline float im_attn_slope(const im_attn *a, int64_t h)
{
    return a->alibi_heads ? (float)im_alibi_slope(a->head0 + h, a->alibi_heads) : 0.0f;
}

/* ---- tiles: sizes that driver and bodies share ----------------------------------------------------------------------------- */

enum {
    IM_ATTN_TILE = 64,        /* queries and keys of a tile */
    IM_ATTN_SPAN = 4,         /* query tiles of a task, at most */
    IM_ATTN_FEW = 8,          /* below this many queries the row path runs */
    IM_ATTN_CHUNK = 256,      /* keys of one task of the row path */
    IM_NORM_GRAD_BLOCK = 32,  /* rows whose dw and db are summed together, at least */
    IM_NORM_GRAD_BLOCKS = 64, /* and at most this many blocks */
    IM_PAD = 16               /* row length of scratch is a multiple of this: the widest vector */
};
static inline int64_t im_pad(int64_t n)
{
    return (n + IM_PAD - 1) / IM_PAD * IM_PAD;
}
static inline int64_t im_norm_grad_rows(int64_t n)
{
    int64_t rows = (n + IM_NORM_GRAD_BLOCKS - 1) / IM_NORM_GRAD_BLOCKS;
    return rows < IM_NORM_GRAD_BLOCK ? IM_NORM_GRAD_BLOCK : rows;
}
static inline bool im_attn_few(const im_attn *a)
{
    return a->Tq < IM_ATTN_FEW;
}

/* ---- per instruction set ---------------------------------------------------------------------------------------------------- */

/* Rows (or what the comment says) [begin, end) of the call's operands. `scratch` is this thread's own. */
typedef void (*im_rows_fn)(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch);

typedef struct im_nn_rows {
    im_rows_fn embed, embed_grad /* columns */, norm, norm_grad /* blocks */, norm_grad_sum /* columns */;
    im_rows_fn rope, act, act_grad, glu, glu_grad, dropout;
    im_rows_fn head_sum, head_norm, head_norm_grad /* blocks */, head_norm_grad_sum /* columns */;
    void (*xent)(const im_kernel_call *c, int64_t begin, int64_t end, double *loss);
    void (*xent_stat)(const im_kernel_call *c, int64_t begin, int64_t end);
    void (*xent_merge)(const im_kernel_call *c, int64_t begin, int64_t end, double *loss);
    void (*attention)(const im_attn *a, int64_t b, int64_t h, int64_t first, int64_t n, float *scratch);        /* query tiles [first, first+n) */
    void (*attention_few)(const im_attn *a, int64_t task, float *scratch, float *part);                         /* task: (b, kv head, chunk) */
    void (*attention_merge)(const im_attn *a, int64_t task, const float *part);                                 /* task: (b, kv head) */
    void (*attention_grad)(const im_attn *a, int64_t b, int64_t head, int64_t end, float *scratch, float *sum); /* heads of one kv head */
    void (*attention_grad_merge)(const im_attn *a, int64_t b, int64_t g, int64_t n, float *sums);
    /* out[n] = a . w[n] for N bf16 rows of K, ldw apart */
    void (*dots_bf16)(const float *a, const uint16_t *w, int64_t ldw, int64_t N, int64_t K, float *out);
    void (*exp)(const float *x, int64_t n, float *out); /* for tests */
} im_nn_rows;

#if IM_X86
extern const im_nn_rows im_nn_rows_avx2, im_nn_rows_avx512;
#endif
/* NULL: this set has no fast versions, the plain ones run. */
const im_nn_rows *im_nn_rows_of(im_isa isa);

#endif
