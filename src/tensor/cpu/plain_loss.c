/* Plain xent, count, clip, sample. count, clip and sample have no other version (sample only spreads rows over threads). */
#include "tensor/cpu/nn_kernels.h"

#include <stdlib.h>

/* ---- xent ---------------------------------------------------------------------------------------------------------------- */

im_status im_check_targets(const im_kernel_call *c)
{
    const im_view *target = &c->args->v[1];
    const int32_t *t = c->p[1];
    for (int64_t r = 0; r < target->shape[0]; r++) {
        int64_t id = t[r * target->stride[0]];
        if (id >= c->args->i[0])
            return im_fail(c->ctx, IM_ERR_ARG, "xent: target %lld at row %lld is outside the vocabulary of %lld", (long long)id, (long long)r,
                           (long long)c->args->i[0]);
    }
    return IM_OK;
}

/* One row: its loss; dlogits and the log-probability where they are asked for. */
static double xent_row(const im_kernel_call *c, int64_t r)
{
    const im_view *logits = &c->args->v[0], *grad = &c->args->v[3];
    const float *z = (const float *)c->p[0] + r * logits->stride[0];
    int64_t V = logits->shape[1], real = c->args->i[0], target = ((const int32_t *)c->p[1])[r * c->args->v[1].stride[0]];
    double smooth = c->args->f[0], top = -INFINITY, sum = 0.0, shifted = 0.0, loss = 0.0, logp = 0.0;
    bool counted = target >= 0;
    if (counted) {
        for (int64_t j = 0; j < real; j++)
            top = z[j] > top || isnan(z[j]) ? z[j] : top;
        for (int64_t j = 0; j < real; j++) {
            sum += exp(z[j] - top);
            shifted += z[j] - top;
        }
        logp = z[target] - top - log(sum);
        loss = -(1.0 - smooth) * logp;
        if (smooth > 0.0)
            loss += smooth * (log(sum) - shifted / (double)real);
    }
    for (int64_t j = 0; j < V && im_op_has(c->args, 3); j++) {
        double g = 0.0;
        if (counted && j < real)
            g = exp(z[j] - top) / sum - smooth / (double)real - (j == target ? 1.0 - smooth : 0.0);
        im_store((im_dtype)grad->dtype, c->p[3], r * grad->stride[0] + j, (float)g);
    }
    if (im_op_has(c->args, 4))
        ((float *)c->p[4])[r * c->args->v[4].stride[0]] = (float)logp;
    return loss;
}

im_status im_plain_xent(const im_kernel_call *c)
{
    IM_TRY(im_check_targets(c));
    double *loss = c->p[2], sum = c->args->i[1] != 0 ? *loss : 0.0;
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        sum += xent_row(c, r);
    *loss = sum;
    return IM_OK;
}

/* ---- count, clip --------------------------------------------------------------------------------------------------------- */

im_status im_plain_count(const im_kernel_call *c)
{
    const im_view *target = &c->args->v[0];
    int64_t n = 0;
    for (int64_t r = 0; r < target->shape[0]; r++)
        n += ((const int32_t *)c->p[0])[r * target->stride[0]] >= 0;
    double *count = c->p[1];
    *count = (c->args->i[0] != 0 ? *count : 0.0) + (double)n;
    return IM_OK;
}

im_status im_plain_clip(const im_kernel_call *c)
{
    double sumsq = *(const double *)c->p[0], count = *(const double *)c->p[1], loss = *(const double *)c->p[2];
    const double *hyper = c->p[3];
    double *out = c->p[4], limit = hyper[IM_HYPER_CLIP];
    bool finite = isfinite(sumsq) && isfinite(loss) && isfinite(count);
    double norm = count > 0.0 ? sqrt(sumsq) / count : 0.0;
    double scale = count > 0.0 ? 1.0 / count : 0.0;
    if (limit > 0.0 && limit / (norm + 1e-6) < 1.0)
        scale *= limit / (norm + 1e-6);
    out[IM_CLIP_SCALE] = scale;
    out[IM_CLIP_NORM] = norm;
    out[IM_CLIP_FINITE] = finite ? 1.0 : 0.0;
    out[IM_CLIP_T] += finite ? 1.0 : 0.0;
    out[IM_CLIP_LOSS] = count > 0.0 ? loss / count : 0.0;
    out[IM_CLIP_TOKENS] = count;
    return IM_OK;
}

/* ---- sample --------------------------------------------------------------------------------------------------------------- */

typedef struct candidate {
    double p; /* exp((logit - top) / temperature) */
    int64_t id;
} candidate;

/* Larger probability first, then the lower id. */
static int by_probability(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->p != b->p)
        return a->p > b->p ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

size_t im_plain_sample_workspace(const im_op_args *a, int threads)
{
    return (size_t)threads * (size_t)a->v[0].shape[1] * sizeof(candidate);
}

/* Restores a heap with the least likely candidate at its root, after x[at] changed. */
static void sift(candidate *x, int64_t n, int64_t at)
{
    for (;;) {
        int64_t worst = at;
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (by_probability(&x[child], &x[worst]) > 0)
                worst = child;
        if (worst == at)
            return;
        candidate t = x[at];
        x[at] = x[worst];
        x[worst] = t;
        at = worst;
    }
}

/* Moves the k likeliest of n candidates to the front, in any order. */
static void select_best(candidate *x, int64_t n, int64_t k)
{
    for (int64_t i = k / 2; i-- > 0;)
        sift(x, k, i);
    for (int64_t i = k; i < n; i++)
        if (by_probability(&x[i], &x[0]) < 0) {
            x[0] = x[i];
            sift(x, k, 0);
        }
}

/* Keeps the likeliest candidates: at most k of them (0: all), and the fewest whose sum reaches share of the whole. Returns how many;
 * *total is their sum. Candidates below (1 - share) / n of the whole cannot be needed to reach the share: they are not sorted. */
static int64_t narrow(candidate *x, int64_t n, int64_t k, double share, double *total)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i].p;
    bool limited = k > 0 && k < n;
    if (limited) {
        select_best(x, n, k);
        n = k;
    }
    if (!limited && share < 1.0) {
        double least = (1.0 - share) * sum / (double)n;
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (x[i].p >= least)
                x[m++] = x[i];
        n = m;
    }
    if (limited || share < 1.0)
        qsort(x, (size_t)n, sizeof *x, by_probability);
    if (limited) {
        sum = 0.0;
        for (int64_t i = 0; i < n; i++)
            sum += x[i].p;
    }
    *total = sum;
    if (share >= 1.0)
        return n;
    double reached = 0.0;
    for (int64_t i = 0; i < n; i++) {
        reached += x[i].p;
        if (reached >= share * sum) {
            *total = reached;
            return i + 1;
        }
    }
    *total = reached;
    return n;
}

static int64_t draw(const im_kernel_call *c, int64_t r, const float *z, double top, candidate *x)
{
    int64_t V = c->args->i[2], n = V;
    for (int64_t j = 0; j < V; j++)
        x[j] = (candidate){.p = exp((z[j] - top) / c->args->f[0]), .id = j};
    double total;
    n = narrow(x, n, c->args->i[0], c->args->f[1], &total);
    uint32_t w[4];
    im_philox((uint64_t)c->args->i[1], (uint64_t)c->now->pos, (uint64_t)r, w);
    double u = ((double)w[0] + ((double)w[1] + 0.5) * 0x1p-32) * 0x1p-32 * total, reached = 0.0;
    for (int64_t i = 0; i < n; i++) {
        reached += x[i].p;
        if (u < reached && x[i].p > 0.0)
            return x[i].id;
    }
    int64_t last = n - 1; /* rounding left u at the very end */
    while (last > 0 && x[last].p == 0.0)
        last--;
    return x[last].id;
}

static im_status sample_row(const im_kernel_call *c, int64_t r, candidate *x)
{
    const im_view *logits = &c->args->v[0];
    const float *z = (const float *)c->p[0] + r * logits->stride[0];
    int64_t V = c->args->i[2], best = 0;
    for (int64_t j = 0; j < V; j++) {
        if (isnan(z[j]) || z[j] == INFINITY)
            return im_fail(c->ctx, IM_ERR_NONFINITE, "sample: the logit of id %lld in row %lld is %f", (long long)j, (long long)r, (double)z[j]);
        if (z[j] > z[best])
            best = j;
    }
    if (z[best] == -INFINITY)
        return im_fail(c->ctx, IM_ERR_NONFINITE, "sample: every logit of row %lld is -inf", (long long)r);
    double top = z[best], sum = 0.0;
    for (int64_t j = 0; j < V; j++)
        sum += exp(z[j] - top);
    int64_t id = c->args->f[0] > 0.0 ? draw(c, r, z, top, x) : best;
    ((int32_t *)c->p[1])[r * c->args->v[1].stride[0]] = (int32_t)id;
    ((float *)c->p[2])[r * c->args->v[2].stride[0]] = (float)(z[id] - top - log(sum));
    return IM_OK;
}

typedef struct sample_job {
    const im_kernel_call *c;
    im_status status[64]; /* by thread: the first failure's message is in the context */
} sample_job;

static void sample_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    sample_job *job = arg;
    candidate *x = (candidate *)job->c->scratch + (size_t)thread * (size_t)job->c->args->v[0].shape[1];
    for (int64_t r = begin; r < end; r++) {
        im_status s = sample_row(job->c, r, x);
        if (s != IM_OK)
            job->status[thread] = s;
    }
}

im_status im_fast_sample(const im_kernel_call *c)
{
    sample_job job = {.c = c};
    int64_t n = c->args->v[0].shape[0];
    im_parallel_ranges(c->threads < 64 ? c->threads : 64, n, 1, 1, sample_rows, &job);
    for (int i = 0; i < 64; i++)
        IM_TRY(job.status[i]);
    return IM_OK;
}

im_status im_plain_sample(const im_kernel_call *c)
{
    for (int64_t r = 0; r < c->args->v[0].shape[0]; r++)
        IM_TRY(sample_row(c, r, c->scratch));
    return IM_OK;
}
