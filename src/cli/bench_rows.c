/* The rows of `imece bench cpu`: one for each kernel, with operands like those of a GPT-2 or Llama step. */
#include "cli/bench_rows.h"

#include <string.h>

/* Sizes as GPT-2 124M and a Llama of its size have them. */
enum {
    D = 768,
    H = 12,
    E = 64,
    F = 3072,
    V = 50257,
    T = 256,
    KV = 4,
    POSITIONS = 1024,
    LONG = 2048,
    WINDOW = 256,
    VECTOR = 24000 /* elements a row for 1-D kernels */
};

static im_view rows_of(im_dtype t, int64_t n, int64_t cols)
{
    return im_view_2d(t, n, cols);
}

static void fill_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 1;
    a->v[0] = im_view_1d(t, n * VECTOR);
    a->f[0] = 1.0;
}

static void copy_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 2;
    a->v[0] = im_view_1d(IM_F32, n * VECTOR);
    a->v[1] = im_view_1d(t, n * VECTOR);
}

static void add_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 3;
    for (int i = 0; i < 3; i++)
        a->v[i] = im_view_1d(t, n * VECTOR);
}

/* The up projection, forward, with its bias. */
static void matmul_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 4;
    a->v[0] = rows_of(t, n, D);
    a->v[1] = im_view_transpose(rows_of(t, F, D));
    a->v[2] = rows_of(t, n, F);
    a->v[3] = im_view_1d(t, F);
}

/* One token of generation: every weight is read once. Weights (out,in) as a Llama has them, (in,out) as GPT-2. */
static void one_row_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 3;
    a->v[0] = rows_of(t, 1, D);
    a->v[1] = im_view_transpose(rows_of(t, 48 * n, D));
    a->v[2] = rows_of(IM_F32, 1, 48 * n);
}

static void one_row_in_out_op(im_op_args *a, im_dtype t, int64_t n)
{
    one_row_op(a, t, n);
    a->v[1] = rows_of(t, D, 48 * n);
}

static void colsum_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 2;
    a->v[0] = rows_of(t, n, F);
    a->v[1] = im_view_1d(IM_F32, F);
}

static void embed_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 5;
    a->v[0] = im_view_1d(IM_I32, n);
    a->v[1] = rows_of(t, V, D);
    a->v[2] = rows_of(t, n, D);
    a->v[3] = im_view_1d(IM_I32, n);
    a->v[4] = rows_of(t, POSITIONS, D);
    a->f[0] = 1.0;
}

static void embed_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 3;
    a->v[0] = im_view_1d(IM_I32, n);
    a->v[1] = rows_of(t, n, D);
    a->v[2] = rows_of(IM_F32, V, D);
    a->i[0] = 1;
}

static void norm_op(im_op_args *a, im_dtype t, int64_t n, im_norm norm)
{
    a->n = 7;
    a->v[0] = a->v[3] = a->v[5] = a->v[6] = rows_of(t, n, D);
    a->v[1] = im_view_1d(t, D);
    a->v[4] = rows_of(IM_F32, n, norm == IM_NORM_RMS ? 1 : 2);
    if (norm == IM_NORM_LAYER)
        a->v[2] = a->v[1];
    a->i[1] = norm;
    a->f[0] = 1e-5;
}

static void rms_op(im_op_args *a, im_dtype t, int64_t n)
{
    norm_op(a, t, n, IM_NORM_RMS);
}

static void layer_op(im_op_args *a, im_dtype t, int64_t n)
{
    norm_op(a, t, n, IM_NORM_LAYER);
}

static void norm_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 8;
    a->v[0] = a->v[3] = a->v[4] = a->v[7] = rows_of(t, n, D);
    a->v[1] = im_view_1d(t, D);
    a->v[2] = rows_of(IM_F32, n, 2);
    a->v[5] = a->v[6] = im_view_1d(IM_F32, D);
    a->i[1] = IM_NORM_LAYER;
}

static void rope_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 4;
    a->v[0] = a->v[1] = im_view_make(t, 3, (int64_t[]){n, H, E});
    a->v[2] = im_view_1d(IM_I32, n);
    a->v[3] = rows_of(IM_F32, POSITIONS, E);
}

static void attention_args(im_op_args *a, im_dtype t, int64_t n, int64_t kv, bool grad)
{
    int64_t B = n / T > 0 ? n / T : 1, t_len = n / B;
    im_view q = im_view_make(t, 4, (int64_t[]){B, t_len, H, E}), k = im_view_make(t, 4, (int64_t[]){B, t_len, kv, E});
    im_view pos = im_view_make(IM_I32, 2, (int64_t[]){B, t_len});
    a->v[0] = a->v[7] = q;
    a->v[1] = a->v[2] = k;
    a->v[3] = a->v[4] = pos;
    a->v[8] = im_view_make(IM_F32, 3, (int64_t[]){B, t_len, H});
    a->n = 9;
    if (grad) {
        a->v[9] = a->v[10] = q;
        a->v[11] = a->v[12] = k;
        a->n = 13;
    }
    a->i[0] = 1;
    a->f[0] = 0.125;
}

static void attention_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_args(a, t, n, H, false);
}

static void attention_gqa_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_args(a, t, n, KV, false);
}

static void attention_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_args(a, t, n, H, true);
}

/* Windows and slopes as Mistral and BLOOM have them, over longer samples. */
static void attention_long(im_op_args *a, im_dtype t, int64_t n, int64_t window, bool slopes, bool grad)
{
    attention_args(a, t, T, H, grad);
    int64_t len = n < LONG ? n : LONG;
    for (int i = 0; i < a->n; i++)
        if (a->v[i].ndim == 4)
            a->v[i] = im_view_make(t, 4, (int64_t[]){1, len, a->v[i].shape[2], E});
    a->v[3] = a->v[4] = im_view_make(IM_I32, 2, (int64_t[]){1, len});
    a->v[8] = im_view_make(IM_F32, 3, (int64_t[]){1, len, H});
    a->i[1] = window;
    a->i[7] = slopes ? H : 0;
}

static void attention_window_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_long(a, t, n, WINDOW, false, false);
}

static void attention_window_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_long(a, t, n, WINDOW, false, true);
}

static void attention_long_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_long(a, t, n, 0, false, false);
}

static void attention_alibi_op(im_op_args *a, im_dtype t, int64_t n)
{
    attention_long(a, t, n, 0, true, false);
}

static im_view heads_of(im_dtype t, int64_t n)
{
    return im_view_make(t, 3, (int64_t[]){n, H, E});
}

static void head_norm_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 3;
    a->v[0] = a->v[2] = heads_of(t, n);
    a->v[1] = im_view_1d(t, E);
    a->f[0] = 1e-6;
}

static void head_norm_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 5;
    a->v[0] = a->v[2] = a->v[3] = heads_of(t, n);
    a->v[1] = im_view_1d(t, E);
    a->v[4] = im_view_1d(IM_F32, E);
    a->f[0] = 1e-6;
}

static void head_sum_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 4;
    a->v[0] = a->v[1] = heads_of(t, n);
    a->v[3] = im_view_1d(IM_F32, n);
    a->f[0] = 1;
}

static void act_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 2;
    a->v[0] = a->v[1] = rows_of(t, n, F);
    a->i[0] = IM_ACT_GELU_TANH;
}

static void act_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    act_op(a, t, n);
    a->n = 3;
    a->v[2] = a->v[0];
}

static void glu_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 2;
    a->v[0] = rows_of(t, n, 2 * F);
    a->v[1] = rows_of(t, n, F);
    a->i[0] = IM_ACT_SILU;
}

static void glu_grad_op(im_op_args *a, im_dtype t, int64_t n)
{
    glu_op(a, t, n);
    a->n = 3;
    a->v[2] = a->v[0];
}

static void dropout_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 3;
    a->v[0] = a->v[1] = a->v[2] = rows_of(t, n, D);
    a->f[0] = 0.1;
    a->i[2] = T;
}

/* The chunk of rows that a step takes at once. */
static void xent_op(im_op_args *a, im_dtype t, int64_t n)
{
    int64_t rows = n / 8 > 0 ? n / 8 : 1;
    a->n = 4;
    a->v[0] = rows_of(IM_F32, rows, V);
    a->v[1] = im_view_1d(IM_I32, rows);
    a->v[2] = im_view_1d(IM_F64, 1);
    a->v[3] = rows_of(t, rows, V);
    a->i[0] = V;
}

/* Half a vocabulary: a rank of two. */
static void xent_stat_op(im_op_args *a, im_dtype t, int64_t n)
{
    int64_t rows = n / 8 > 0 ? n / 8 : 1;
    (void)t;
    a->n = 3;
    a->v[0] = rows_of(IM_F32, rows, V / 2);
    a->v[1] = im_view_1d(IM_I32, rows);
    a->v[2] = rows_of(IM_F64, rows, 4);
    a->i[2] = V;
}

static void xent_merge_op(im_op_args *a, im_dtype t, int64_t n)
{
    int64_t rows = n / 8 > 0 ? n / 8 : 1;
    a->n = 5;
    a->v[0] = rows_of(IM_F32, rows, V / 2);
    a->v[1] = im_view_1d(IM_I32, rows);
    a->v[2] = im_view_make(IM_F64, 3, (int64_t[]){2, rows, 4});
    a->v[3] = im_view_1d(IM_F64, 1);
    a->v[4] = rows_of(t, rows, V / 2);
    a->i[2] = V;
}

static void count_op(im_op_args *a, im_dtype t, int64_t n)
{
    (void)t;
    a->n = 2;
    a->v[0] = im_view_1d(IM_I32, n);
    a->v[1] = im_view_1d(IM_F64, 1);
}

static void sumsq_op(im_op_args *a, im_dtype t, int64_t n)
{
    (void)t;
    a->n = 2;
    a->v[0] = im_view_1d(IM_F32, n * VECTOR);
    a->v[1] = im_view_1d(IM_F64, 1);
}

static void clip_op(im_op_args *a, im_dtype t, int64_t n)
{
    (void)t;
    (void)n;
    a->n = 5;
    for (int i = 0; i < 5; i++)
        a->v[i] = im_view_1d(IM_F64, i < 3 ? 1 : 8);
}

static void adamw_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 7;
    for (int i = 2; i < 5; i++)
        a->v[i] = im_view_1d(IM_F32, n * VECTOR);
    a->v[0] = im_view_1d(t, n * VECTOR);
    if (t == IM_BF16)
        a->v[1] = a->v[2];
    a->v[5] = a->v[6] = im_view_1d(IM_F64, 8);
    memcpy(a->f, (double[]){0.9, 0.95, 1e-8, 0.1}, 4 * sizeof(double));
}

static void sample_op(im_op_args *a, im_dtype t, int64_t n)
{
    (void)t;
    int64_t rows = n / 64 > 0 ? n / 64 : 1;
    a->n = 3;
    a->v[0] = rows_of(IM_F32, rows, V);
    a->v[1] = im_view_1d(IM_I32, rows);
    a->v[2] = im_view_1d(IM_F32, rows);
    a->f[0] = 1.0;
    a->f[1] = 0.9;
    a->i[0] = 40;
    a->i[2] = V;
}

static void kv_write_op(im_op_args *a, im_dtype t, int64_t n)
{
    int64_t B = n / T > 0 ? n / T : 1;
    a->n = 2;
    a->v[0] = im_view_make(t, 4, (int64_t[]){B, n / B, H, E});
    a->v[1] = im_view_make(t, 4, (int64_t[]){B, n / B + 64, H, E});
}

static void finite_op(im_op_args *a, im_dtype t, int64_t n)
{
    a->n = 2;
    a->v[0] = im_view_1d(t, n * VECTOR);
    a->v[1] = im_view_1d(IM_F64, 2);
}

const im_bench_row im_bench_rows[] = {
    {"matmul", &im_op_matmul, matmul_op, true},
    {"matmul one row", &im_op_matmul, one_row_op, true},
    {"matmul one row (in,out)", &im_op_matmul, one_row_in_out_op, true},
    {"attention", &im_op_attention, attention_op, true},
    {"attention 4 kv heads", &im_op_attention, attention_gqa_op, true},
    {"attention_grad", &im_op_attention_grad, attention_grad_op, true},
    {"attention long", &im_op_attention, attention_long_op, true},
    {"attention long, window", &im_op_attention, attention_window_op, true},
    {"attention long, ALiBi", &im_op_attention, attention_alibi_op, true},
    {"attention_grad long, window", &im_op_attention_grad, attention_window_grad_op, true},
    {"xent", &im_op_xent, xent_op, true},
    {"xent_stat", &im_op_xent_stat, xent_stat_op, true},
    {"xent_merge", &im_op_xent_merge, xent_merge_op, true},
    {"norm rms", &im_op_norm, rms_op, true},
    {"norm layer", &im_op_norm, layer_op, true},
    {"norm_grad layer", &im_op_norm_grad, norm_grad_op, true},
    {"act gelu", &im_op_act, act_op, true},
    {"act_grad gelu", &im_op_act_grad, act_grad_op, true},
    {"glu silu", &im_op_glu, glu_op, true},
    {"glu_grad silu", &im_op_glu_grad, glu_grad_op, true},
    {"rope", &im_op_rope, rope_op, true},
    {"head_sum", &im_op_head_sum, head_sum_op, true},
    {"head_norm", &im_op_head_norm, head_norm_op, true},
    {"head_norm_grad", &im_op_head_norm_grad, head_norm_grad_op, true},
    {"dropout", &im_op_dropout, dropout_op, true},
    {"embed", &im_op_embed, embed_op, true},
    {"embed_grad", &im_op_embed_grad, embed_grad_op, true},
    {"colsum", &im_op_colsum, colsum_op, true},
    {"adamw", &im_op_adamw, adamw_op, true},
    {"sumsq", &im_op_sumsq, sumsq_op, false},
    {"clip", &im_op_clip, clip_op, false},
    {"count", &im_op_count, count_op, false},
    {"finite", &im_op_finite, finite_op, true},
    {"add", &im_op_add, add_op, true},
    {"copy", &im_op_copy, copy_op, true},
    {"fill", &im_op_fill, fill_op, true},
    {"sample", &im_op_sample, sample_op, false},
    {"kv_write", &im_op_kv_write, kv_write_op, true},
};
const size_t im_bench_nrows = IM_COUNT_OF(im_bench_rows);

/* ---- values -------------------------------------------------------------------------------------------------------------- */

static void fill_ints(const im_op_kind *k, const im_op_args *a, int operand, int32_t *p)
{
    const char *name = k->operand[operand].name;
    const im_view *v = &a->v[operand];
    int64_t n = im_view_count(v), period = v->ndim > 1 ? v->shape[v->ndim - 1] : T;
    for (int64_t i = 0; i < n; i++) {
        if (strncmp(name, "pos", 3) == 0)
            p[i] = (int32_t)(i % period);
        else if (strncmp(name, "seg", 3) == 0)
            p[i] = 0;
        else
            p[i] = (int32_t)(i * 7919 % V);
    }
}

void im_bench_fill(const im_op_kind *k, const im_op_args *a, int operand, void *p)
{
    const im_view *v = &a->v[operand];
    size_t n = im_view_extent(v) / im_dtype_size((im_dtype)v->dtype);
    uint32_t x = 12345u + (uint32_t)operand;
    if (v->dtype == IM_I32) {
        fill_ints(k, a, operand, p);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        float value = (float)(int32_t)x * 0x1p-31f;
        if (k == &im_op_adamw)
            value = v->dtype == IM_F64 ? 0.5f : operand == 3 ? value * value : value;
        if (v->dtype == IM_F64)
            ((double *)p)[i] = (double)value;
        else if (v->dtype == IM_BF16)
            ((uint16_t *)p)[i] = (uint16_t)((x & 0x80000000u) >> 16 | (0x3f00u + (x >> 8 & 0x7fu))); /* 0.5 to 1, both signs */
        else
            ((float *)p)[i] = value;
    }
}
