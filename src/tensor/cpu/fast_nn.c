/* The fast row kernels' drivers: what is cut into ranges, and where results of threads come together. */
#include "tensor/cpu/nn_kernels.h"

const im_nn_rows *im_nn_rows_of(im_isa isa)
{
#if IM_X86
    return isa >= IM_ISA_AVX512 ? &im_nn_rows_avx512 : isa >= IM_ISA_AVX2 ? &im_nn_rows_avx2 : NULL;
#else
    (void)isa;
    return NULL;
#endif
}

typedef struct rows_job {
    const im_kernel_call *c;
    im_rows_fn fn;
    int64_t scratch; /* floats a thread */
} rows_job;

static void rows_run(void *arg, int64_t begin, int64_t end, int thread)
{
    const rows_job *job = arg;
    job->fn(job->c, begin, end, job->scratch ? (float *)job->c->scratch + thread * job->scratch : NULL);
}

/* Cuts [0,n) of rows (or columns) with `each` elements into ranges of at least 16 thousand elements. */
static void rows_parallel(const im_kernel_call *c, im_rows_fn fn, int64_t n, int64_t each, int64_t unit, int64_t scratch)
{
    rows_job job = {.c = c, .fn = fn, .scratch = scratch};
    int64_t grain = each > 0 ? 16384 / each : 16384;
    im_parallel_ranges(c->threads, n, grain > 0 ? grain : 1, unit, rows_run, &job);
}

/* ---- embed ------------------------------------------------------------------------------------------------------------- */

im_status im_fast_embed(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    const im_op_args *a = c->args;
    if (rows == NULL)
        return im_plain_embed(c);
    IM_TRY(im_check_ids(c, "embed: token id", c->p[0], a->v[0].shape[0], a->v[0].stride[0], 0, im_whole_vocabulary(a->i[1], &a->v[1])));
    if (im_op_has(a, 4))
        IM_TRY(im_check_ids(c, "embed: position", c->p[3], a->v[0].shape[0], a->v[3].stride[0], 0, a->v[4].shape[0]));
    rows_parallel(c, rows->embed, a->v[0].shape[0], a->v[1].shape[1], 1, 0);
    return IM_OK;
}

im_status im_fast_embed_grad(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    const im_op_args *a = c->args;
    if (rows == NULL)
        return im_plain_embed_grad(c);
    IM_TRY(im_check_ids(c, "embed: token id", c->p[0], a->v[0].shape[0], a->v[0].stride[0], 0, im_whole_vocabulary(a->i[2], &a->v[2])));
    rows_parallel(c, rows->embed_grad, a->v[1].shape[1], a->v[0].shape[0] + (a->i[0] ? 0 : a->v[2].shape[0]), IM_PAD, 0);
    return IM_OK;
}

/* ---- norm -------------------------------------------------------------------------------------------------------------- */

size_t im_fast_norm_workspace(const im_op_args *a, int threads)
{
    return (size_t)threads * (size_t)im_pad(a->v[0].shape[1]) * sizeof(float);
}

im_status im_fast_norm(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    if (rows == NULL)
        return im_plain_norm(c);
    const im_view *x = &c->args->v[0];
    rows_parallel(c, rows->norm, x->shape[0], x->shape[1], 1, im_pad(x->shape[1]));
    return IM_OK;
}

static int64_t norm_grad_count(const im_op_args *a)
{
    int64_t n = a->v[0].shape[0], rows = im_norm_grad_rows(n);
    return (n + rows - 1) / rows;
}

size_t im_fast_norm_grad_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)norm_grad_count(a) * 2 * (size_t)im_pad(a->v[0].shape[1]) * sizeof(float);
}

im_status im_fast_norm_grad(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    if (rows == NULL)
        return im_plain_norm_grad(c);
    const im_view *x = &c->args->v[0];
    rows_parallel(c, rows->norm_grad, norm_grad_count(c->args), im_norm_grad_rows(x->shape[0]) * x->shape[1], 1, 0);
    rows_parallel(c, rows->norm_grad_sum, x->shape[1], norm_grad_count(c->args) * 2, IM_PAD, 0);
    return IM_OK;
}

/* ---- head_sum, head_norm -------------------------------------------------------------------------------------------------- */

static int64_t head_columns(const im_kernel_call *c)
{
    return c->args->v[0].shape[1] * c->args->v[0].shape[2];
}

im_status im_fast_head_sum(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    if (rows == NULL)
        return im_plain_head_sum(c);
    rows_parallel(c, rows->head_sum, c->args->v[0].shape[0], head_columns(c), 1, 0);
    return IM_OK;
}

im_status im_fast_head_norm(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    if (rows == NULL)
        return im_plain_head_norm(c);
    rows_parallel(c, rows->head_norm, c->args->v[0].shape[0], head_columns(c), 1, 0);
    return IM_OK;
}

size_t im_fast_head_norm_grad_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)norm_grad_count(a) * (size_t)im_pad(a->v[4].shape[0]) * sizeof(float);
}

im_status im_fast_head_norm_grad(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    if (rows == NULL)
        return im_plain_head_norm_grad(c);
    rows_parallel(c, rows->head_norm_grad, norm_grad_count(c->args), im_norm_grad_rows(c->args->v[0].shape[0]) * head_columns(c), 1, 0);
    rows_parallel(c, rows->head_norm_grad_sum, c->args->v[4].shape[0], norm_grad_count(c->args), IM_PAD, 0);
    return IM_OK;
}

/* ---- rope, act, glu, dropout --------------------------------------------------------------------------------------------- */

im_status im_fast_rope(const im_kernel_call *c)
{
    const im_nn_rows *rows = im_nn_rows_of(c->isa);
    const im_op_args *a = c->args;
    if (rows == NULL)
        return im_plain_rope(c);
    IM_TRY(im_check_ids(c, "rope: position", c->p[2], a->v[0].shape[0], a->v[2].stride[0], 0, a->v[3].shape[0]));
    rows_parallel(c, rows->rope, a->v[0].shape[0], a->v[0].shape[1] * a->v[0].shape[2], 1, 0);
    return IM_OK;
}

#define ROW_KIND(name, width)                                                                         \
    im_status im_fast_##name(const im_kernel_call *c)                                                 \
    {                                                                                                 \
        const im_nn_rows *rows = im_nn_rows_of(c->isa);                                               \
        if (rows == NULL)                                                                             \
            return im_plain_##name(c);                                                                \
        rows_parallel(c, rows->name, c->args->v[0].shape[0], c->args->v[0].shape[1] * (width), 1, 0); \
        return IM_OK;                                                                                 \
    }
ROW_KIND(act, 4) /* an exponential costs some elements' copying */
ROW_KIND(act_grad, 4)
ROW_KIND(glu, 2)
ROW_KIND(glu_grad, 2)
ROW_KIND(dropout, 2)

/* ---- kv_write: copies of whole heads; bound by memory, one thread does it ------------------------------------------------- */

im_status im_fast_kv_write(const im_kernel_call *c)
{
    return im_plain_kv_write(c);
}

/* ---- xent ---------------------------------------------------------------------------------------------------------------- */

typedef struct xent_job {
    const im_kernel_call *c;
    const im_nn_rows *rows;
} xent_job;

static void xent_run(void *arg, int64_t begin, int64_t end, int thread)
{
    const xent_job *job = arg;
    (void)thread;
    job->rows->xent(job->c, begin, end, job->c->scratch);
}

/* One loss a row. */
size_t im_fast_xent_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)a->v[0].shape[0] * sizeof(double);
}

im_status im_fast_xent(const im_kernel_call *c)
{
    xent_job job = {.c = c, .rows = im_nn_rows_of(c->isa)};
    if (job.rows == NULL)
        return im_plain_xent(c);
    const im_view *logits = &c->args->v[0];
    IM_TRY(im_check_targets(c));
    int64_t grain = 4096 / logits->shape[1];
    im_parallel_ranges(c->threads, logits->shape[0], grain > 0 ? grain : 1, 1, xent_run, &job);
    double *loss = c->p[2], sum = c->args->i[1] != 0 ? *loss : 0.0;
    for (int64_t r = 0; r < logits->shape[0]; r++)
        sum += ((const double *)c->scratch)[r];
    *loss = sum;
    return IM_OK;
}

static void xent_stat_run(void *arg, int64_t begin, int64_t end, int thread)
{
    const xent_job *job = arg;
    (void)thread;
    job->rows->xent_stat(job->c, begin, end);
}

im_status im_fast_xent_stat(const im_kernel_call *c)
{
    xent_job job = {.c = c, .rows = im_nn_rows_of(c->isa)};
    if (job.rows == NULL)
        return im_plain_xent_stat(c);
    IM_TRY(im_check_split_targets(c));
    int64_t grain = 4096 / (c->args->v[0].shape[1] + 1);
    im_parallel_ranges(c->threads, c->args->v[0].shape[0], grain > 0 ? grain : 1, 1, xent_stat_run, &job);
    return IM_OK;
}

static void xent_merge_run(void *arg, int64_t begin, int64_t end, int thread)
{
    const xent_job *job = arg;
    (void)thread;
    job->rows->xent_merge(job->c, begin, end, job->c->scratch);
}

im_status im_fast_xent_merge(const im_kernel_call *c)
{
    xent_job job = {.c = c, .rows = im_nn_rows_of(c->isa)};
    if (job.rows == NULL)
        return im_plain_xent_merge(c);
    IM_TRY(im_check_split_targets(c));
    int64_t grain = 4096 / (c->args->v[0].shape[1] + 1);
    im_parallel_ranges(c->threads, c->args->v[0].shape[0], grain > 0 ? grain : 1, 1, xent_merge_run, &job);
    double *loss = c->p[3], sum = c->args->i[1] != 0 ? *loss : 0.0;
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        sum += ((const double *)c->scratch)[r];
    *loss = sum;
    return IM_OK;
}
