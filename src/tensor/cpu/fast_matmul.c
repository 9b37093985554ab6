/* Fast matmul: oneDNN's sgemm for fp32; for bf16 a oneDNN primitive where the processor multiplies bf16, else panels.
 *
 * Panels: below AVX-512 with bf16 no library multiplies bf16 fast. So blocks of a and b are widened to fp32 in scratch and
 * multiplied there; c (or a panel of it, when c is bf16) collects the blocks over K. Widening a block of 1024 x 1024 costs about 1/40 of multiplying it
 * by another one, and the scratch stays at three such blocks, 12 MiB, whatever the sizes.
 */
#include "tensor/cpu/core_kernels.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/gemm.h"
#include "tensor/ops.h"

enum { PANEL = 1024 };

/* A matrix as the library wants it; false: strides that it cannot express (the plain kernel runs). */
typedef struct matrix {
    int64_t rows, cols, ld;
    bool transposed;
} matrix;

static bool matrix_of(const im_view *v, matrix *out)
{
    int d = v->ndim - 2;
    int64_t R = v->shape[d], C = v->shape[d + 1], sr = v->stride[d], sc = v->stride[d + 1];
    if ((C <= 1 || sc == 1) && (R <= 1 || sr >= C)) {
        *out = (matrix){R, C, R <= 1 ? C : sr, false};
        return true;
    }
    if ((R <= 1 || sr == 1) && (C <= 1 || sc >= R)) {
        *out = (matrix){R, C, C <= 1 ? R : sc, true};
        return true;
    }
    return false;
}

typedef struct shapes {
    matrix a, b, c;
    int64_t batch, M, N, K;
    int64_t step[3]; /* elements from one matrix of the batch to the next */
} shapes;

static bool shapes_of(const im_op_args *args, shapes *s)
{
    const im_view *a = &args->v[0];
    bool batched = a->ndim == 3;
    if (!matrix_of(&args->v[0], &s->a) || !matrix_of(&args->v[1], &s->b) || !matrix_of(&args->v[2], &s->c) || s->c.transposed)
        return false;
    s->batch = batched ? a->shape[0] : 1;
    s->M = s->a.rows;
    s->K = s->a.cols;
    s->N = s->b.cols;
    for (int i = 0; i < 3; i++)
        s->step[i] = batched ? args->v[i].stride[0] : 0;
    return true;
}

/* ---- parts of c before the product: bias, zeros --------------------------------------------------------------------------- */

typedef struct start {
    float *c;
    int64_t ldc, N;
    im_isa isa;
    im_dtype bias_type;
    const void *bias; /* NULL: zeros */
    bool accumulate;
} start;

static void start_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    const start *s = arg;
    (void)thread;
    for (int64_t m = begin; m < end; m++) {
        float *row = s->c + m * s->ldc;
        if (s->accumulate)
            for (int64_t n = 0; n < s->N; n++)
                row[n] += im_load(s->bias_type, s->bias, n);
        else if (s->bias == NULL)
            memset(row, 0, (size_t)s->N * sizeof(float));
        else if (s->bias_type == IM_F32)
            memcpy(row, s->bias, (size_t)s->N * sizeof(float));
        else
            im_bf16_widen(s->isa, s->bias, row, s->N);
    }
}

/* Puts into c what the product is added to, and tells the beta of the first product. */
static float start_c(const im_kernel_call *call, float *c, int64_t ldc, int64_t M, int64_t n0, int64_t N, int64_t K)
{
    bool accumulate = call->args->i[0] != 0, has_bias = call->np > 3 && call->p[3] != NULL;
    if (!has_bias && (accumulate || K > 0))
        return accumulate ? 1.0f : 0.0f;
    start s = {.c = c, .ldc = ldc, .N = N, .isa = call->isa, .accumulate = accumulate};
    if (has_bias) {
        s.bias_type = (im_dtype)call->args->v[3].dtype;
        s.bias = (const char *)call->p[3] + (size_t)n0 * im_dtype_size(s.bias_type);
    }
    im_parallel_ranges(call->threads, M, 1 + 16384 / (N + 1), 1, start_rows, &s);
    return 1.0f;
}

/* ---- fp32 ---------------------------------------------------------------------------------------------------------------- */

static im_status multiply_f32(const im_kernel_call *call, const shapes *s)
{
    for (int64_t g = 0; g < s->batch; g++) {
        im_gemm_matrix a = {(const float *)call->p[0] + g * s->step[0], s->a.ld, s->a.transposed};
        im_gemm_matrix b = {(const float *)call->p[1] + g * s->step[1], s->b.ld, s->b.transposed};
        float *c = (float *)call->p[2] + g * s->step[2];
        float beta = start_c(call, c, s->c.ld, s->M, 0, s->N, s->K);
        if (s->K > 0)
            IM_TRY(im_gemm_f32(call->ctx, s->M, s->N, s->K, a, b, beta, c, s->c.ld));
    }
    return IM_OK;
}

/* ---- bf16 by panels ------------------------------------------------------------------------------------------------------ */

/* A size cut into equal panels of at most PANEL, rounded up to whole vectors. */
static int64_t panel_of(int64_t n)
{
    int64_t parts = (n + PANEL - 1) / PANEL;
    return parts <= 1 ? n : ((n + parts - 1) / parts + 15) / 16 * 16;
}

static size_t panel_floats(const im_op_args *args, size_t *a, size_t *b, size_t *c)
{
    int d = args->v[0].ndim - 2;
    size_t M = (size_t)panel_of(args->v[0].shape[d]), K = (size_t)panel_of(args->v[0].shape[d + 1]), N = (size_t)panel_of(args->v[1].shape[d + 1]);
    *a = (M * K + 15) / 16 * 16;
    *b = (K * N + 15) / 16 * 16;
    *c = args->v[2].dtype == IM_BF16 ? (M * N + 15) / 16 * 16 : 0;
    return *a + *b + *c;
}

/* What a primitive is allowed for each thread. Measured with 2.6.3 and 3.7.2 for 1 to 64 threads and K up to 50,000: 0.1 to 1 MiB; beyond 16
 * threads the library sometimes cuts long sums and asks for a copy of c a thread: then the panels run instead. */
enum { PRIMITIVE_SCRATCH = 2 << 20 };

size_t im_fast_matmul_workspace(const im_op_args *a, int threads)
{
    if (a->v[0].dtype != IM_BF16)
        return 0;
    size_t pa, pb, pc, panels = panel_floats(a, &pa, &pb, &pc) * sizeof(float), primitive = (size_t)threads * PRIMITIVE_SCRATCH;
    return panels > primitive ? panels : primitive;
}

typedef struct widen_job {
    im_isa isa;
    const uint16_t *in;
    int64_t ld_in;
    float *out;
    int64_t len; /* of a stored row */
} widen_job;

static void widen_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    const widen_job *j = arg;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        im_bf16_widen(j->isa, j->in + r * j->ld_in, j->out + r * j->len, j->len);
}

/* Rows [r0, r0+R), columns [c0, c0+C) of m as fp32 in `out`, in the order in which they are stored. */
static im_gemm_matrix widen_panel(const im_kernel_call *call, const uint16_t *p, const matrix *m, int64_t r0, int64_t R, int64_t c0, int64_t C,
                                  float *out)
{
    int64_t rows = m->transposed ? C : R, len = m->transposed ? R : C;
    widen_job j = {.isa = call->isa, .in = p + (m->transposed ? c0 * m->ld + r0 : r0 * m->ld + c0), .ld_in = m->ld, .out = out, .len = len};
    im_parallel_ranges(call->threads, rows, 1 + 16384 / (len + 1), 1, widen_rows, &j);
    return (im_gemm_matrix){out, len, m->transposed};
}

typedef struct narrow_job {
    im_isa isa;
    const float *in;
    uint16_t *out;
    int64_t ld_out, len;
} narrow_job;

static void narrow_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    const narrow_job *j = arg;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        im_bf16_narrow(j->isa, j->in + r * j->len, j->out + r * j->ld_out, j->len);
}

/* One panel of c: rows [m0, m0+M), columns [n0, n0+N). *a_is tells which panel of a is widened already (K panel, -1: none). */
static im_status multiply_panel(const im_kernel_call *call, const shapes *s, int64_t g, int64_t m0, int64_t M, int64_t n0, int64_t N, int64_t *a_is)
{
    size_t na, nb, nc;
    panel_floats(call->args, &na, &nb, &nc);
    float *pa = call->scratch, *pb = pa + na, *pc = pb + nb;
    const uint16_t *a = (const uint16_t *)call->p[0] + g * s->step[0], *b = (const uint16_t *)call->p[1] + g * s->step[1];
    int64_t at = g * s->step[2] + m0 * s->c.ld + n0, kp = panel_of(s->K), ldc = nc > 0 ? N : s->c.ld;
    float *c = nc > 0 ? pc : (float *)call->p[2] + at;
    float beta = start_c(call, c, ldc, M, n0, N, s->K);
    for (int64_t k0 = 0; k0 < s->K; k0 += kp) {
        int64_t K = s->K - k0 < kp ? s->K - k0 : kp;
        im_gemm_matrix wa = {pa, s->a.transposed ? M : K, s->a.transposed};
        if (*a_is != k0)
            wa = widen_panel(call, a, &s->a, m0, M, k0, K, pa);
        *a_is = k0;
        im_gemm_matrix wb = widen_panel(call, b, &s->b, k0, K, n0, N, pb);
        IM_TRY(im_gemm_f32(call->ctx, M, N, K, wa, wb, beta, c, ldc));
        beta = 1.0f;
    }
    if (nc > 0) {
        narrow_job j = {.isa = call->isa, .in = pc, .out = (uint16_t *)call->p[2] + at, .ld_out = s->c.ld, .len = N};
        im_parallel_ranges(call->threads, M, 1 + 16384 / (N + 1), 1, narrow_rows, &j);
    }
    return IM_OK;
}

static im_status multiply_bf16(const im_kernel_call *call, const shapes *s)
{
    int64_t mp = panel_of(s->M), np = panel_of(s->N);
    for (int64_t g = 0; g < s->batch; g++)
        for (int64_t m0 = 0; m0 < s->M; m0 += mp) {
            int64_t M = s->M - m0 < mp ? s->M - m0 : mp, a_is = -1;
            for (int64_t n0 = 0; n0 < s->N; n0 += np) {
                int64_t N = s->N - n0 < np ? s->N - n0 : np;
                IM_TRY(multiply_panel(call, s, g, m0, M, n0, N, &a_is));
            }
        }
    return IM_OK;
}

/* ---- a few bf16 rows ----------------------------------------------------------------------------------------------------- */

enum { FEW = 3 }; /* from four rows on, panels, or the processor's bf16 arithmetic, cost less than widening for each row */

/* The products stand in scratch before they are rounded, or added to c. */
static void finish_few(const im_kernel_call *call, const shapes *s, const float *product, int64_t at)
{
    bool accumulate = call->args->i[0] != 0, bias = call->np > 3 && call->p[3] != NULL;
    im_dtype t = (im_dtype)call->args->v[2].dtype;
    for (int64_t m = 0; m < s->M; m++)
        for (int64_t n = 0; n < s->N; n++) {
            int64_t to = at + m * s->c.ld + n;
            float value = product[m * s->N + n] + (bias ? im_load(IM_BF16, call->p[3], n) : 0.0f);
            im_store(t, call->p[2], to, accumulate ? im_load(t, call->p[2], to) + value : value);
        }
}

static bool are_few(const im_op_args *args, int threads, const shapes *s)
{
    size_t need = (size_t)(s->M * (s->K + s->N)) * sizeof(float);
    return s->M <= FEW && !s->a.transposed && need <= im_fast_matmul_workspace(args, threads);
}

static void multiply_few(const im_kernel_call *call, const shapes *s)
{
    float *rows = call->scratch, *product = rows + s->M * s->K;
    for (int64_t g = 0; g < s->batch; g++) {
        const uint16_t *a = (const uint16_t *)call->p[0] + g * s->step[0];
        for (int64_t m = 0; m < s->M; m++)
            im_bf16_widen(call->isa, a + m * s->a.ld, rows + m * s->K, s->K);
        im_few_rows f = {.a = rows,
                         .w = (const uint16_t *)call->p[1] + g * s->step[1],
                         .M = s->M,
                         .N = s->N,
                         .K = s->K,
                         .ldw = s->b.ld,
                         .transposed = s->b.transposed,
                         .isa = call->isa,
                         .out = product};
        im_few_rows_multiply(&f, call->threads);
        finish_few(call, s, product, g * s->step[2]);
    }
}

/* ---- kernel -------------------------------------------------------------------------------------------------------------- */

im_status im_fast_matmul_prepare(const im_kernel_setup *setup, void **prepared)
{
    const im_op_args *a = setup->args;
    shapes s;
    if (a->v[0].dtype != IM_BF16 || setup->isa < IM_ISA_AVX512_BF16 || !shapes_of(a, &s) || s.batch * s.M * s.N * s.K == 0)
        return IM_OK;
    if (are_few(a, setup->threads, &s)) /* bound by memory: the library's product of one row reads the weights at half its rate */
        return IM_OK;
    im_gemm_primitive *g;
    im_cpu_team(setup->threads);
    IM_TRY(im_gemm_primitive_create(setup->ctx, a, &g));
    if (g != NULL && im_gemm_primitive_scratch(g) > im_fast_matmul_workspace(a, setup->threads)) {
        im_gemm_primitive_destroy(g);
        g = NULL;
    }
    *prepared = g;
    return IM_OK;
}

void im_fast_matmul_destroy(void *prepared)
{
    im_gemm_primitive_destroy(prepared);
}

im_status im_fast_matmul(const im_kernel_call *c)
{
    shapes s;
    if (!im_gemm_available() || !shapes_of(c->args, &s))
        return im_plain_matmul(c);
    if (s.M == 0 || s.N == 0)
        return IM_OK;
    if (c->prepared != NULL)
        return im_gemm_primitive_run(c->ctx, c->prepared, c->p, c->np, c->scratch);
    if (c->args->v[0].dtype == IM_F32)
        return multiply_f32(c, &s);
    if (!are_few(c->args, c->threads, &s))
        return multiply_bf16(c, &s);
    multiply_few(c, &s);
    return IM_OK;
}
