/* Measured rates of this machine: matrix products through the matmul op, memory by three simple loops. */
#include "tensor/rate.h"

#include "tensor/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* ---- products ------------------------------------------------------------------------------------------------------------ */

static im_view stored(im_dtype t, int64_t rows, int64_t cols, bool transposed)
{
    return transposed ? im_view_transpose(im_view_2d(t, cols, rows)) : im_view_2d(t, rows, cols);
}

/* Zeros would let some processors use less power, so that they run faster than with real values. */
static void fill(im_dtype t, void *p, int64_t n)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        im_store(t, p, i, (float)(int32_t)x * 0x1p-31f);
    }
}

im_status im_tensor_time_op(im_context *ctx, const im_op_kind *k, const im_op_args *a, const im_op_direct *how, void *const *p, double seconds,
                            double *best)
{
    im_op_state *s;
    void *scratch = NULL;
    size_t nscratch = im_op_workspace(k, a, how->kernels, how->threads);
    im_status status;
    im_op_now now = {0};
    IM_TRY(im_op_prepare_direct(ctx, k, a, how, &s));
    IM_TRY_GOTO(im_alloc(ctx, nscratch + 128, 1, &scratch), destroy_op);
    void *aligned = (char *)scratch + (64 - (uintptr_t)scratch % 64) % 64;
    double least = INFINITY, start = im_clock_now();
    for (int run = 0; run < 2 || im_clock_now() - start < seconds; run++) {
        double t0 = im_clock_now();
        IM_TRY_GOTO(im_op_call_direct(s, p, aligned, &now), free_scratch);
        double took = im_clock_now() - t0;
        if (took < least)
            least = took;
        if (took > 1.0) /* plain kernels on large shapes; the first run of a fast one may make code for a tenth of a second */
            break;
    }
    *best = least;
free_scratch:
    free(scratch);
destroy_op:
    im_op_destroy(s);
    return status;
}

im_status im_tensor_product_rate(im_context *ctx, const im_rate_product *r, double *flops_per_s)
{
    im_op_args a = {.n = 4};
    a.v[0] = stored(r->type, r->M, r->K, r->trans_a);
    a.v[1] = stored(r->type, r->K, r->N, r->trans_b);
    a.v[2] = im_view_2d(r->accumulate ? IM_F32 : r->type, r->M, r->N);
    if (r->bias)
        a.v[3] = im_view_1d(r->type, r->N);
    a.i[0] = r->accumulate;
    void *p[4] = {NULL};
    im_status status = IM_OK;
    for (int i = 0; i < 4; i++) {
        if (a.v[i].ndim == 0)
            continue;
        IM_TRY_GOTO(im_alloc(ctx, im_view_extent(&a.v[i]), 1, &p[i]), free_operands);
        fill((im_dtype)a.v[i].dtype, p[i], im_view_count(&a.v[i]));
    }
    im_op_direct how = {.kernels = r->kernels, .threads = r->threads, .isa = IM_ISA_COUNT};
    double best;
    IM_TRY_GOTO(im_tensor_time_op(ctx, &im_op_matmul, &a, &how, p, r->seconds, &best), free_operands);
    *flops_per_s = 2.0 * (double)r->M * (double)r->N * (double)r->K / best;
free_operands:
    for (int i = 0; i < 4; i++)
        free(p[i]);
    return status;
}

/* Processor time, not the clock: of a fast machine that others use, it is little. */
static double processor_seconds(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* r becomes the largest square of 128 to 1024 whose product takes at most LONGEST, by what the one before took: 1024 takes minutes where a
 * processor is emulated, and would hold training up for a figure. */
static im_status largest_square(im_context *ctx, im_rate_product *r)
{
    const double longest = 0.3; /* seconds */
    double rate;
    r->M = r->N = r->K = 128;
    IM_TRY(im_tensor_product_rate(ctx, r, &rate)); /* makes the code; how long that took says nothing */
    while (r->M < 1024) {
        double began = processor_seconds();
        IM_TRY(im_tensor_product_rate(ctx, r, &rate)); /* two runs */
        if (8 * (processor_seconds() - began) / (2 * r->threads) > longest)
            break;
        r->M = r->N = r->K = 2 * r->M;
    }
    return IM_OK;
}

im_status im_tensor_machine_rate(im_context *ctx, im_dtype t, int threads, double *flops_per_s)
{
    double wide = 0;
    im_rate_product r = {.trans_b = true, .type = t, .kernels = IM_KERNELS_FAST, .threads = threads};
    IM_TRY(largest_square(ctx, &r));
    r.seconds = 0.08;
    IM_TRY(im_tensor_product_rate(ctx, &r, flops_per_s));
    if (r.M == 1024) {
        r.N = 3072;
        r.K = 768;
        IM_TRY(im_tensor_product_rate(ctx, &r, &wide));
    }
    *flops_per_s = fmax(*flops_per_s, wide);
    return IM_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

enum { LOOP_COPY, LOOP_TRIAD, LOOP_UPDATE, LOOPS };

typedef struct memory_job {
    int loop;
    im_isa isa;
    float *a, *b, *c;
} memory_job;

IM_BODY void memory_loop_body(int loop, float *restrict a, const float *restrict b, const float *restrict c, int64_t n)
{
    if (loop == LOOP_COPY) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            a[i] = b[i];
    } else if (loop == LOOP_TRIAD) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            a[i] = b[i] + 0.5f * c[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            a[i] = a[i] + 0.5f * b[i];
    }
}
IM_CLONES(memory_loop, (int loop, float *restrict a, const float *restrict b, const float *restrict c, int64_t n), (loop, a, b, c, n))

static void memory_range(void *arg, int64_t begin, int64_t end, int thread)
{
    const memory_job *j = arg;
    (void)thread;
    memory_loop(j->isa)(j->loop, j->a + begin, j->b + begin, j->c + begin, end - begin);
}

im_status im_tensor_memory_rate(im_context *ctx, int threads, im_memory_rate *out)
{
    const int64_t n = (int64_t)48 << 20; /* 192 MiB each; shared caches of servers are larger, so three of them */
    static const double bytes[LOOPS] = {8.0, 12.0, 12.0};
    double best[LOOPS];
    size_t nbytes = (size_t)(3 * n) * sizeof(float);
    float *all = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return im_fail_errno(ctx, "the memory bench needs %zu bytes", nbytes);
    (void)madvise(all, nbytes, MADV_HUGEPAGE); /* as the arenas of a device */
    fill(IM_F32, all, 3 * n);
    memory_job j = {.isa = im_cpu_isa(), .a = all, .b = all + n, .c = all + 2 * n};
    for (j.loop = 0; j.loop < LOOPS; j.loop++) {
        best[j.loop] = INFINITY;
        for (int run = 0; run < 4; run++) {
            double t0 = im_clock_now();
            im_parallel_ranges(threads, n, 1, 64, memory_range, &j);
            double took = im_clock_now() - t0;
            if (took < best[j.loop])
                best[j.loop] = took;
        }
    }
    munmap(all, nbytes);
    out->copy = bytes[LOOP_COPY] * (double)n / best[LOOP_COPY];
    out->triad = bytes[LOOP_TRIAD] * (double)n / best[LOOP_TRIAD];
    out->update = bytes[LOOP_UPDATE] * (double)n / best[LOOP_UPDATE];
    return IM_OK;
}
