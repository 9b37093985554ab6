/* Fast fill, copy, add, colsum, sumsq, finite: bound by memory, so vectors over contiguous runs and one run a thread. */
#include "tensor/cpu/core_kernels.h"
#include "tensor/cpu/cpu.h"
#include "tensor/ops.h"

enum { GRAIN = 16384 }; /* elements below which a second thread costs more than it brings */

static im_dtype type_of(const im_kernel_call *c, int i)
{
    return (im_dtype)c->args->v[i].dtype;
}

/* ---- shapes: dims of size 1 dropped, dims merged that lie behind each other in every view ---------------------------------- */

typedef struct runs {
    int n;            /* views */
    int ndim;         /* outer dims, 0..3 */
    int64_t shape[4]; /* of the outer dims */
    int64_t stride[3][4];
    int64_t count;   /* product of the outer dims */
    int64_t len;     /* inner length */
    int64_t step[3]; /* inner strides */
} runs;

static runs runs_of(const im_view *const *v, int n)
{
    runs r = {.n = n, .count = 1, .len = 1};
    int64_t shape[4], stride[3][4];
    int ndim = 0;
    for (int d = 0; d < v[0]->ndim; d++) {
        if (v[0]->shape[d] == 1)
            continue;
        bool merge = ndim > 0;
        for (int i = 0; merge && i < n; i++)
            merge = stride[i][ndim - 1] == v[i]->stride[d] * v[0]->shape[d];
        if (!merge)
            shape[ndim++] = 1;
        shape[ndim - 1] *= v[0]->shape[d];
        for (int i = 0; i < n; i++)
            stride[i][ndim - 1] = v[i]->stride[d];
    }
    for (int i = 0; i < n; i++)
        r.step[i] = 1;
    if (ndim > 0) {
        r.len = shape[ndim - 1];
        for (int i = 0; i < n; i++)
            r.step[i] = stride[i][ndim - 1];
        r.ndim = ndim - 1;
    }
    for (int d = 0; d < r.ndim; d++) {
        r.shape[d] = shape[d];
        r.count *= shape[d];
        for (int i = 0; i < n; i++)
            r.stride[i][d] = stride[i][d];
    }
    return r;
}

/* Element offset of run j in view i. */
static int64_t run_offset(const runs *r, int i, int64_t j)
{
    int64_t offset = 0;
    for (int d = r->ndim - 1; d >= 0; d--) {
        offset += j % r->shape[d] * r->stride[i][d];
        j /= r->shape[d];
    }
    return offset;
}

/* A job over elements [begin, end) of the row-major index space, cut at the ends of runs. */
typedef struct job {
    const im_kernel_call *c;
    runs r;
} job;
typedef void (*piece_fn)(const job *j, const int64_t *offset, int64_t n);

static void pieces(const job *j, int64_t begin, int64_t end, piece_fn fn)
{
    const runs *r = &j->r;
    for (int64_t at = begin; at < end;) {
        int64_t row = at / r->len, col = at % r->len, n = r->len - col;
        if (n > end - at)
            n = end - at;
        int64_t offset[3];
        for (int i = 0; i < r->n; i++)
            offset[i] = run_offset(r, i, row) + col * r->step[i];
        fn(j, offset, n);
        at += n;
    }
}

/* ---- fill ---------------------------------------------------------------------------------------------------------------- */

#define FILL(type)                                                          \
    do {                                                                    \
        type *p = (type *)c->p[0] + offset[0], value = (type)c->args->f[0]; \
        for (int64_t i = 0; i < n; i++)                                     \
            p[i * step] = value;                                            \
    } while (0)

static void fill_piece(const job *j, const int64_t *offset, int64_t n)
{
    const im_kernel_call *c = j->c;
    int64_t step = j->r.step[0];
    im_dtype t = type_of(c, 0);
    size_t size = im_dtype_size(t);
    if (c->args->f[0] == 0.0 && !signbit(c->args->f[0]) && step == 1) {
        memset((char *)c->p[0] + (size_t)offset[0] * size, 0, (size_t)n * size);
        return;
    }
    switch (t) {
    case IM_F32: FILL(float); break;
    case IM_F64: FILL(double); break;
    case IM_I32: FILL(int32_t); break;
    case IM_I64: FILL(int64_t); break;
    case IM_U8: FILL(uint8_t); break;
    case IM_U16: FILL(uint16_t); break;
    default: {
        uint16_t value = t == IM_BF16 ? im_f32_bf16((float)c->args->f[0]) : im_f32_f16((float)c->args->f[0]);
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)c->p[0])[offset[0] + i * step] = value;
    }
    }
}

static void fill_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    pieces(arg, begin, end, fill_piece);
}

im_status im_fast_fill(const im_kernel_call *c)
{
    const im_view *v[1] = {&c->args->v[0]};
    job j = {.c = c, .r = runs_of(v, 1)};
    im_parallel_ranges(c->threads, im_view_count(v[0]), GRAIN, 64, fill_range, &j);
    return IM_OK;
}

/* ---- copy ---------------------------------------------------------------------------------------------------------------- */

IM_BODY void widen_body(const uint16_t *restrict in, float *restrict out, int64_t n)
{
    im_row_load(IM_BF16, in, n, out);
}
IM_CLONES(widen, (const uint16_t *restrict in, float *restrict out, int64_t n), (in, out, n))
IM_BODY void narrow_body(const float *restrict in, uint16_t *restrict out, int64_t n)
{
    im_row_store(IM_BF16, in, n, out);
}
IM_CLONES(narrow, (const float *restrict in, uint16_t *restrict out, int64_t n), (in, out, n))

void im_bf16_widen(im_isa isa, const uint16_t *in, float *out, int64_t n)
{
    widen(isa)(in, out, n);
}
void im_bf16_narrow(im_isa isa, const float *in, uint16_t *out, int64_t n)
{
    narrow(isa)(in, out, n);
}

static void copy_strided(size_t size, const char *in, int64_t si, char *out, int64_t so, int64_t n)
{
    switch (size) {
    case 2:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i * so] = ((const uint16_t *)in)[i * si];
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)out)[i * so] = ((const uint32_t *)in)[i * si];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            memcpy(out + (size_t)(i * so) * size, in + (size_t)(i * si) * size, size);
    }
}

static void copy_piece(const job *j, const int64_t *offset, int64_t n)
{
    const im_kernel_call *c = j->c;
    im_dtype from = type_of(c, 0), to = type_of(c, 1);
    size_t size = im_dtype_size(from);
    int64_t si = j->r.step[0], so = j->r.step[1];
    const char *in = (const char *)c->p[0] + (size_t)offset[0] * size;
    char *out = (char *)c->p[1] + (size_t)offset[1] * im_dtype_size(to);
    if (from == to && si == 1 && so == 1)
        memcpy(out, in, (size_t)n * size);
    else if (from == to)
        copy_strided(size, in, si, out, so, n);
    else if (from == IM_BF16 && to == IM_F32 && si == 1 && so == 1)
        im_bf16_widen(c->isa, (const uint16_t *)in, (float *)out, n);
    else if (from == IM_F32 && to == IM_BF16 && si == 1 && so == 1)
        im_bf16_narrow(c->isa, (const float *)in, (uint16_t *)out, n);
    else
        for (int64_t i = 0; i < n; i++)
            im_store(to, out, i * so, im_load(from, in, i * si));
}

static void copy_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    pieces(arg, begin, end, copy_piece);
}

im_status im_fast_copy(const im_kernel_call *c)
{
    const im_view *v[2] = {&c->args->v[0], &c->args->v[1]};
    job j = {.c = c, .r = runs_of(v, 2)};
    im_parallel_ranges(c->threads, im_view_count(v[0]), GRAIN, 64, copy_range, &j);
    return IM_OK;
}

/* ---- add ----------------------------------------------------------------------------------------------------------------- */

/* out may be a or b: the same index is read before it is written, so vectors are fine. */
IM_BODY void add_f32_body(const float *a, const float *b, float *out, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}
IM_CLONES(add_f32, (const float *a, const float *b, float *out, int64_t n), (a, b, out, n))

IM_BODY void add_bf16_body(const uint16_t *a, const uint16_t *b, uint16_t *out, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = im_f32_bf16(im_bf16_f32(a[i]) + im_bf16_f32(b[i]));
}
IM_CLONES(add_bf16, (const uint16_t *a, const uint16_t *b, uint16_t *out, int64_t n), (a, b, out, n))

static void add_piece(const job *j, const int64_t *offset, int64_t n)
{
    const im_kernel_call *c = j->c;
    const int64_t *step = j->r.step;
    im_dtype t = type_of(c, 0);
    bool dense = step[0] == 1 && step[1] == 1 && step[2] == 1;
    if (dense && t == IM_F32)
        add_f32(c->isa)((const float *)c->p[0] + offset[0], (const float *)c->p[1] + offset[1], (float *)c->p[2] + offset[2], n);
    else if (dense)
        add_bf16(c->isa)((const uint16_t *)c->p[0] + offset[0], (const uint16_t *)c->p[1] + offset[1], (uint16_t *)c->p[2] + offset[2], n);
    else
        for (int64_t i = 0; i < n; i++)
            im_store(t, c->p[2], offset[2] + i * step[2],
                     im_load(t, c->p[0], offset[0] + i * step[0]) + im_load(t, c->p[1], offset[1] + i * step[1]));
}

static void add_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    pieces(arg, begin, end, add_piece);
}

im_status im_fast_add(const im_kernel_call *c)
{
    const im_view *v[3] = {&c->args->v[0], &c->args->v[1], &c->args->v[2]};
    job j = {.c = c, .r = runs_of(v, 3)};
    im_parallel_ranges(c->threads, im_view_count(v[0]), GRAIN, 64, add_range, &j);
    return IM_OK;
}

/* ---- colsum -------------------------------------------------------------------------------------------------------------- */

/* Columns are cut into blocks whose fp64 sums stay in the first cache; eight rows are added in fp32 before they go there. Every
 * column is summed in one order whatever the threads. */
enum { COLSUM_COLS = 512, COLSUM_ROWS = 8 };

IM_BODY void colsum_body(im_dtype t, const void *x, int64_t rows, int64_t stride, int64_t cols, bool acc, float *out)
{
    double sum[COLSUM_COLS] = {0.0};
    float part[COLSUM_COLS], row[COLSUM_COLS];
    for (int64_t i = 0; i < rows; i += COLSUM_ROWS) {
        int64_t end = i + COLSUM_ROWS < rows ? i + COLSUM_ROWS : rows;
        im_row_load(t, (const char *)x + (size_t)(i * stride) * (t == IM_F32 ? 4 : 2), cols, part);
        for (int64_t r = i + 1; r < end; r++) {
            const float *in = (const float *)x + r * stride;
            if (t != IM_F32) {
                im_row_load(t, (const uint16_t *)x + r * stride, cols, row);
                in = row;
            }
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                part[c] += in[c];
        }
#pragma omp simd
        for (int64_t c = 0; c < cols; c++)
            sum[c] += (double)part[c];
    }
    for (int64_t c = 0; c < cols; c++)
        out[c] = (acc ? out[c] : 0.0f) + (float)sum[c];
}
IM_CLONES(colsum, (im_dtype t, const void *x, int64_t rows, int64_t stride, int64_t cols, bool acc, float *out), (t, x, rows, stride, cols, acc, out))

static void colsum_range(void *arg, int64_t begin, int64_t end, int thread)
{
    const im_kernel_call *c = arg;
    const im_view *x = &c->args->v[0];
    im_dtype t = type_of(c, 0);
    (void)thread;
    for (int64_t at = begin; at < end; at += COLSUM_COLS) {
        int64_t cols = end - at < COLSUM_COLS ? end - at : COLSUM_COLS;
        colsum(c->isa)(t, (const char *)c->p[0] + (size_t)at * im_dtype_size(t), x->shape[0], x->stride[0], cols, c->args->i[0] != 0,
                       (float *)c->p[1] + at);
    }
}

im_status im_fast_colsum(const im_kernel_call *c)
{
    const im_view *x = &c->args->v[0];
    int64_t grain = GRAIN / (x->shape[0] > 0 ? x->shape[0] : 1);
    im_parallel_ranges(c->threads, x->shape[1], grain, 16, colsum_range, (void *)c);
    return IM_OK;
}

/* ---- sumsq --------------------------------------------------------------------------------------------------------------- */

size_t im_fast_sumsq_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)((im_view_count(&a->v[0]) + IM_SUMSQ_BLOCK - 1) / IM_SUMSQ_BLOCK) * sizeof(double);
}

/* Four vectors of partial sums, of the same width whatever the instruction set: enough to hide the latency of an addition. */
typedef float vec8f __attribute__((vector_size(32), aligned(4)));
typedef double vec8d __attribute__((vector_size(64)));

#define ADD_SQUARES(sum, x)                                                             \
    do {                                                                                \
        vec8d wide = __builtin_convertvector(*(const vec8f *)(const void *)(x), vec8d); \
        (sum) += wide * wide;                                                           \
    } while (0)

IM_BODY void square_body(const float *restrict x, int64_t n, double *out)
{
    vec8d a = {0.0}, b = {0.0}, c = {0.0}, d = {0.0}; /* named, so that they stay in registers */
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __builtin_prefetch(x + i + 1024); /* one stream of reads: the processor alone does not look far enough ahead */
        __builtin_prefetch(x + i + 1040);
        ADD_SQUARES(a, x + i);
        ADD_SQUARES(b, x + i + 8);
        ADD_SQUARES(c, x + i + 16);
        ADD_SQUARES(d, x + i + 24);
    }
    double sum = 0.0;
    for (; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    a = (a + b) + (c + d);
    for (int l = 0; l < 8; l++)
        sum += a[l];
    *out = sum;
}
IM_CLONES(square, (const float *restrict x, int64_t n, double *out), (x, n, out))

static void sumsq_range(void *arg, int64_t begin, int64_t end, int thread)
{
    const im_kernel_call *c = arg;
    int64_t n = im_view_count(&c->args->v[0]);
    (void)thread;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * IM_SUMSQ_BLOCK, len = n - at < IM_SUMSQ_BLOCK ? n - at : IM_SUMSQ_BLOCK;
        square(c->isa)((const float *)c->p[0] + at, len, (double *)c->scratch + b);
    }
}

im_status im_fast_sumsq(const im_kernel_call *c)
{
    int64_t blocks = (im_view_count(&c->args->v[0]) + IM_SUMSQ_BLOCK - 1) / IM_SUMSQ_BLOCK;
    double *out = c->p[1], total = 0.0;
    im_parallel_ranges(c->threads, blocks, 1, 1, sumsq_range, (void *)c);
    for (int64_t b = 0; b < blocks; b++)
        total += ((const double *)c->scratch)[b];
    *out = (c->args->i[0] != 0 ? *out : 0.0) + total;
    return IM_OK;
}

/* ---- finite -------------------------------------------------------------------------------------------------------------- */

enum { FINITE_BLOCK = 4096 };

IM_BODY void any_bad_f32_body(const uint32_t *x, int64_t n, uint32_t *bad)
{
    uint32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int64_t i = 0; i < n; i++)
        any |= (x[i] & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    *bad = any;
}
IM_CLONES(any_bad_f32, (const uint32_t *x, int64_t n, uint32_t *bad), (x, n, bad))

IM_BODY void any_bad_bf16_body(const uint16_t *x, int64_t n, uint32_t *bad)
{
    uint16_t any = 0;
#pragma omp simd reduction(| : any)
    for (int64_t i = 0; i < n; i++)
        any |= (uint16_t)((x[i] & 0x7f80u) == 0x7f80u ? 1u : 0u);
    *bad = any;
}
IM_CLONES(any_bad_bf16, (const uint16_t *x, int64_t n, uint32_t *bad), (x, n, bad))

typedef struct finite_job {
    const im_kernel_call *c;
    int64_t *first; /* per thread, in scratch */
} finite_job;

size_t im_fast_finite_workspace(const im_op_args *a, int threads)
{
    (void)a;
    return (size_t)threads * sizeof(int64_t);
}

static double value_at(im_dtype t, const void *x, int64_t i)
{
    return t == IM_F64 ? ((const double *)x)[i] : (double)im_load(t, x, i);
}

static void finite_range(void *arg, int64_t begin, int64_t end, int thread)
{
    const finite_job *j = arg;
    const im_kernel_call *c = j->c;
    im_dtype t = type_of(c, 0);
    for (int64_t at = begin; at < end; at += FINITE_BLOCK) {
        int64_t n = end - at < FINITE_BLOCK ? end - at : FINITE_BLOCK;
        uint32_t bad = 1;
        if (t == IM_F32)
            any_bad_f32(c->isa)((const uint32_t *)c->p[0] + at, n, &bad);
        else if (t == IM_BF16)
            any_bad_bf16(c->isa)((const uint16_t *)c->p[0] + at, n, &bad);
        for (int64_t i = at; bad && i < at + n; i++)
            if (!isfinite(value_at(t, c->p[0], i))) {
                j->first[thread] = i;
                return;
            }
    }
}

im_status im_fast_finite(const im_kernel_call *c)
{
    finite_job j = {.c = c, .first = c->scratch};
    for (int t = 0; t < c->threads; t++)
        j.first[t] = -1;
    im_parallel_ranges(c->threads, im_view_count(&c->args->v[0]), GRAIN, FINITE_BLOCK, finite_range, &j);
    double *out = c->p[1];
    out[0] = -1.0;
    out[1] = 0.0;
    for (int t = c->threads - 1; t >= 0; t--)
        if (j.first[t] >= 0) { /* the threads' ranges ascend */
            out[0] = (double)j.first[t];
            out[1] = value_at(type_of(c, 0), c->p[0], j.first[t]);
        }
    return IM_OK;
}
