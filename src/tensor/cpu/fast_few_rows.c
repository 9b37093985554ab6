/* A product of a few bf16 rows with a bf16 matrix: what generation does for each token.
 *
 * The matrix is read once, widened in registers and never stored as fp32: the time is that of reading it. A matrix stored by outputs
 * (out, in) gives dot products; one stored by inputs (in, out) is added up row by row into a strip of outputs that stays in the first cache.
 */
#include "tensor/cpu/core_kernels.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/nn_kernels.h"

enum { STRIP = 1024 };

/* out[n] = a . w[n] for N rows of w. */
static void dots(im_isa isa, const float *a, const uint16_t *w, int64_t ldw, int64_t N, int64_t K, float *out)
{
    const im_nn_rows *rows = im_nn_rows_of(isa);
    if (rows != NULL) {
        rows->dots_bf16(a, w, ldw, N, K, out);
        return;
    }
    for (int64_t n = 0; n < N; n++) {
        float s = 0.0f;
        for (int64_t k = 0; k < K; k++)
            s += a[k] * im_bf16_f32(w[n * ldw + k]);
        out[n] = s;
    }
}

/* out[n] = sum over k of a[k] w[k][n]. */
IM_BODY void strip_body(const float *restrict a, const uint16_t *restrict w, int64_t ldw, int64_t N, int64_t K, float *restrict out)
{
    memset(out, 0, (size_t)N * sizeof(float));
    int64_t k = 0;
    for (; k + 4 <= K; k += 4) {
        const uint16_t *w0 = w + k * ldw, *w1 = w0 + ldw, *w2 = w1 + ldw, *w3 = w2 + ldw;
        float a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
#pragma omp simd
        for (int64_t n = 0; n < N; n++)
            out[n] += a0 * im_bf16_f32(w0[n]) + a1 * im_bf16_f32(w1[n]) + a2 * im_bf16_f32(w2[n]) + a3 * im_bf16_f32(w3[n]);
    }
    for (; k < K; k++) {
#pragma omp simd
        for (int64_t n = 0; n < N; n++)
            out[n] += a[k] * im_bf16_f32(w[k * ldw + n]);
    }
}
IM_CLONES(strip, (const float *restrict a, const uint16_t *restrict w, int64_t ldw, int64_t N, int64_t K, float *restrict out),
          (a, w, ldw, N, K, out))

static void outputs(void *arg, int64_t begin, int64_t end, int thread)
{
    const im_few_rows *f = arg;
    (void)thread;
    int64_t step = f->transposed ? 256 : STRIP;
    for (int64_t n = begin; n < end; n += step) {
        int64_t len = end - n < step ? end - n : step;
        for (int64_t m = 0; m < f->M; m++) { /* the part of the matrix stays in the cache for all rows */
            const float *a = f->a + m * f->K;
            if (f->transposed)
                dots(f->isa, a, f->w + n * f->ldw, f->ldw, len, f->K, f->out + m * f->N + n);
            else
                strip(f->isa)(a, f->w + n, f->ldw, len, f->K, f->out + m * f->N + n);
        }
    }
}

void im_few_rows_multiply(const im_few_rows *f, int threads)
{
    im_parallel_ranges(threads, f->N, 1 + 65536 / (f->K + 1), 64, outputs, (void *)f);
}
