/* Attention's drivers: how forward, the row path and the backward are cut into tasks. */
#include "tensor/cpu/nn_kernels.h"

typedef struct attn_job {
    const im_attn *a;
    const im_nn_rows *rows;
    float *scratch, *part;
    size_t each;  /* floats of scratch a thread */
    int64_t span; /* query tiles a task */
} attn_job;

static void attn_tile_run(void *arg, int64_t task, int64_t end, int thread)
{
    const attn_job *job = arg;
    const im_attn *a = job->a;
    (void)end;
    int64_t tiles = (a->Tq + IM_ATTN_TILE - 1) / IM_ATTN_TILE, spans = (tiles + job->span - 1) / job->span;
    /* the last queries of a causal sample see the most keys: their tasks come first */
    int64_t first = (spans - 1 - task / (a->B * a->H)) * job->span, n = tiles - first < job->span ? tiles - first : job->span;
    int64_t h = task % a->H, b = task / a->H % a->B;
    job->rows->attention(a, b, h, first, n, job->scratch + (size_t)thread * job->each);
}

static void attn_few_run(void *arg, int64_t task, int64_t end, int thread)
{
    const attn_job *job = arg;
    (void)end;
    job->rows->attention_few(job->a, task, job->scratch + (size_t)thread * job->each, job->part);
}

static void attn_merge_run(void *arg, int64_t begin, int64_t end, int thread)
{
    const attn_job *job = arg;
    (void)thread;
    for (int64_t task = begin; task < end; task++)
        job->rows->attention_merge(job->a, task, job->part);
}

static size_t tile_scratch(int64_t E)
{
    return (size_t)(IM_ATTN_TILE * ((3 + 2 * IM_ATTN_SPAN) * im_pad(E) + IM_ATTN_TILE));
}
static size_t few_scratch(int64_t rows, int64_t E)
{
    return (size_t)(rows * (2 * im_pad(E) + IM_ATTN_CHUNK) + IM_ATTN_CHUNK * im_pad(E));
}
static size_t few_part(int64_t B, int64_t H, int64_t Tq, int64_t Tk, int64_t E)
{
    return (size_t)(B * H * Tq * ((Tk + IM_ATTN_CHUNK - 1) / IM_ATTN_CHUNK) * (im_pad(E) + IM_PAD));
}

size_t im_fast_attention_workspace(const im_op_args *a, int threads)
{
    const int64_t *q = a->v[0].shape, *k = a->v[1].shape, *places = a->v[4].shape;
    size_t floats = (size_t)threads * tile_scratch(q[3]);
    if (q[1] < IM_ATTN_FEW)
        floats = (size_t)threads * few_scratch(q[2] / k[2] * q[1], q[3]) + few_part(q[0], q[2], q[1], places[1], q[3]);
    return floats * sizeof(float);
}

im_status im_fast_attention(const im_kernel_call *c)
{
    im_attn a;
    attn_job job = {.a = &a, .rows = im_nn_rows_of(c->isa), .scratch = c->scratch};
    if (job.rows == NULL)
        return im_plain_attention(c);
    IM_TRY(im_attn_make(c, false, &a));
    if (!im_attn_few(&a)) {
        int64_t tiles = (a.Tq + IM_ATTN_TILE - 1) / IM_ATTN_TILE;
        job.each = tile_scratch(a.E);
        for (job.span = IM_ATTN_SPAN; job.span > 1 && a.B * a.H * ((tiles + job.span - 1) / job.span) < 4 * c->threads;)
            job.span /= 2; /* the cut into tasks changes no bit of a result */
        im_parallel_tasks(c->threads, a.B * a.H * ((tiles + job.span - 1) / job.span), attn_tile_run, &job);
        return IM_OK;
    }
    job.each = few_scratch(a.G * a.Tq, a.E);
    job.part = job.scratch + (size_t)c->threads * job.each;
    im_parallel_tasks(c->threads, a.B * a.K * ((a.Tk + IM_ATTN_CHUNK - 1) / IM_ATTN_CHUNK), attn_few_run, &job);
    im_parallel_ranges(c->threads, a.B * a.K, 16, 1, attn_merge_run, &job);
    return IM_OK;
}

/* ---- attention_grad ------------------------------------------------------------------------------------------------------- */

enum { GRAD_SUMS_MOST = 128 << 20 }; /* bytes that sums of single heads may take */

typedef struct grad_plan {
    bool by_head;           /* tasks are heads, their sums kept until the merge; else tasks are kv heads */
    int64_t tasks, threads; /* no more threads than tasks */
    size_t each, sum, all;  /* floats: a thread's scratch; one dK and dV; the whole workspace */
} grad_plan;

static grad_plan grad_plan_with(int64_t B, int64_t H, int64_t K, int64_t Tk, int64_t E, int threads, bool by_head)
{
    grad_plan p = {.by_head = by_head, .tasks = B * (by_head ? H : K), .sum = (size_t)(2 * Tk * im_pad(E))};
    p.threads = p.tasks < threads ? p.tasks : threads;
    p.each = (size_t)(IM_ATTN_TILE * (5 * im_pad(E) + 2 * IM_ATTN_TILE)) + p.sum; /* tiles, K and V */
    if (!by_head)
        p.each += p.sum * (H > K ? 2 : 1); /* the sum, and the head at hand */
    p.all = (size_t)p.threads * p.each + (by_head ? (size_t)p.tasks * p.sum : 0);
    return p;
}

/* Heads are tasks when kv heads are too few for the threads. The workspace is the larger of both, so that it grows with the threads. */
static grad_plan grad_plan_of(const im_op_args *a, int threads)
{
    const int64_t *q = a->v[0].shape, *k = a->v[1].shape;
    grad_plan group = grad_plan_with(q[0], q[2], k[2], k[1], q[3], threads, false);
    if (q[2] == k[2] || group.tasks >= 2 * (int64_t)threads)
        return group;
    grad_plan head = grad_plan_with(q[0], q[2], k[2], k[1], q[3], threads, true);
    if ((size_t)head.tasks * head.sum * sizeof(float) > GRAD_SUMS_MOST)
        return group;
    head.all = head.all > group.all ? head.all : group.all;
    return head;
}

typedef struct grad_job {
    const im_attn *a;
    const im_nn_rows *rows;
    grad_plan plan;
    float *scratch, *sums;
} grad_job;

static void grad_run(void *arg, int64_t task, int64_t end, int thread)
{
    const grad_job *job = arg;
    const im_attn *a = job->a;
    float *scratch = job->scratch + (size_t)thread * job->plan.each;
    (void)end;
    if (job->plan.by_head) {
        job->rows->attention_grad(a, task / a->H, task % a->H, task % a->H + 1, scratch, job->sums + (size_t)task * job->plan.sum);
        return;
    }
    int64_t b = task / a->K, g = task % a->K;
    float *sum = scratch + job->plan.each - job->plan.sum;
    job->rows->attention_grad(a, b, g * a->G, (g + 1) * a->G, scratch, sum);
    job->rows->attention_grad_merge(a, b, g, 1, sum);
}

static void grad_merge_run(void *arg, int64_t task, int64_t end, int thread)
{
    const grad_job *job = arg;
    const im_attn *a = job->a;
    (void)end;
    (void)thread;
    job->rows->attention_grad_merge(a, task / a->K, task % a->K, a->G, job->sums + (size_t)(task * a->G) * job->plan.sum);
}

size_t im_fast_attention_grad_workspace(const im_op_args *a, int threads)
{
    return grad_plan_of(a, threads).all * sizeof(float);
}

im_status im_fast_attention_grad(const im_kernel_call *c)
{
    im_attn a;
    grad_job job = {.a = &a, .rows = im_nn_rows_of(c->isa), .scratch = c->scratch};
    if (job.rows == NULL)
        return im_plain_attention_grad(c);
    IM_TRY(im_attn_make(c, true, &a));
    job.plan = grad_plan_of(c->args, c->threads);
    job.sums = job.scratch + (size_t)job.plan.threads * job.plan.each;
    im_parallel_tasks((int)job.plan.threads, job.plan.tasks, grad_run, &job);
    if (job.plan.by_head)
        im_parallel_tasks(c->threads, a.B * a.K, grad_merge_run, &job);
    return IM_OK;
}
