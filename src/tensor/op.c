/* op: views, and the life of an op: describe, prepare, run, destroy. */
#include "tensor/op.h"

#include "tensor/cpu/cpu.h"
#include "tensor/kind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- views ------------------------------------------------------------------------------------------------------------- */

im_view im_view_make(im_dtype t, int ndim, const int64_t *shape)
{
    im_view v = {.ndim = (uint8_t)ndim, .dtype = (uint8_t)t};
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        v.shape[d] = shape[d];
        v.stride[d] = stride;
        stride *= shape[d];
    }
    return v;
}

im_view im_view_1d(im_dtype t, int64_t n)
{
    return im_view_make(t, 1, &n);
}

im_view im_view_2d(im_dtype t, int64_t rows, int64_t cols)
{
    return im_view_make(t, 2, (int64_t[]){rows, cols});
}

im_view im_view_2d_stride(im_dtype t, int64_t rows, int64_t cols, int64_t row_stride, int64_t offset)
{
    im_view v = im_view_2d(t, rows, cols);
    v.stride[0] = row_stride;
    v.offset = offset;
    return v;
}

im_view im_view_transpose(im_view v)
{
    if (v.ndim < 2)
        return v;
    int i = v.ndim - 2, j = v.ndim - 1;
    int64_t shape = v.shape[i], stride = v.stride[i];
    v.shape[i] = v.shape[j];
    v.stride[i] = v.stride[j];
    v.shape[j] = shape;
    v.stride[j] = stride;
    return v;
}

int64_t im_view_count(const im_view *v)
{
    if (v->ndim == 0)
        return 0;
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++)
        n *= v->shape[d];
    return n;
}

size_t im_view_extent(const im_view *v)
{
    if (im_view_count(v) == 0)
        return 0;
    int64_t last = v->offset;
    for (int d = 0; d < v->ndim; d++)
        last += (v->shape[d] - 1) * v->stride[d];
    return (size_t)(last + 1) * im_dtype_size((im_dtype)v->dtype);
}

bool im_view_is_dense(const im_view *v)
{
    int64_t stride = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->shape[d] == 0)
            return true;
        if (v->shape[d] > 1 && v->stride[d] != stride)
            return false;
        stride *= v->shape[d];
    }
    return true;
}

/* ---- checks ------------------------------------------------------------------------------------------------------------ */

static void append_shape(im_str *s, int ndim, const int64_t *shape)
{
    im_str_append(s, "(");
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            im_str_append(s, d ? ",any" : "any");
        else
            im_str_printf(s, "%s%lld", d ? "," : "", (long long)shape[d]);
    }
    im_str_append(s, ")");
}

im_status im_op_bad(im_context *ctx, const im_op_kind *k, const im_op_args *a, int operand, const char *fmt, ...)
{
    im_str s = {0};
    const im_view *v = &a->v[operand];
    im_str_printf(&s, "%s: operand %s ", k->name, k->operand[operand].name ? k->operand[operand].name : "?");
    append_shape(&s, v->ndim, v->shape);
    im_str_printf(&s, " %s: ", v->dtype < IM_DTYPE_COUNT ? im_dtype_name((im_dtype)v->dtype) : "?");
    va_list ap;
    va_start(ap, fmt);
    im_str_vprintf(&s, fmt, ap);
    va_end(ap);
    im_status status = im_fail(ctx, IM_ERR_ARG, "%s", im_str_text(&s));
    im_str_free(&s);
    return status;
}

im_status im_op_need_dtype(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, im_dtype t)
{
    if (!im_op_has(a, i) || a->v[i].dtype == t)
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "must be %s", im_dtype_name(t));
}

im_status im_op_need_activation(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    if (!im_op_has(a, i) || a->v[i].dtype == IM_F32 || a->v[i].dtype == IM_BF16)
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "must be fp32 or bf16");
}

im_status im_op_need_same_dtype(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int j)
{
    if (!im_op_has(a, i) || !im_op_has(a, j) || a->v[i].dtype == a->v[j].dtype)
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "must be %s as operand %s is", im_dtype_name((im_dtype)a->v[j].dtype), k->operand[j].name);
}

im_status im_op_need_shape(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int ndim, const int64_t *shape)
{
    if (!im_op_has(a, i))
        return IM_OK;
    bool same = a->v[i].ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = shape[d] < 0 || shape[d] == a->v[i].shape[d];
    if (same)
        return IM_OK;
    im_str s = {0};
    append_shape(&s, ndim, shape);
    im_status status = im_op_bad(ctx, k, a, i, "the shape must be %s", im_str_text(&s));
    im_str_free(&s);
    return status;
}

im_status im_op_need_same_shape(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int j)
{
    if (!im_op_has(a, j))
        return IM_OK;
    return im_op_need_shape(ctx, k, a, i, a->v[j].ndim, a->v[j].shape);
}

im_status im_op_need_dense(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    if (!im_op_has(a, i) || im_view_is_dense(&a->v[i]))
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "must be contiguous");
}

im_status im_op_need_rows(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    if (!im_op_has(a, i))
        return IM_OK;
    const im_view *v = &a->v[i];
    if (v->stride[v->ndim - 1] == 1 || v->shape[v->ndim - 1] <= 1)
        return IM_OK;
    return im_op_bad(ctx, k, a, i, "the last stride is %lld, it must be 1", (long long)v->stride[v->ndim - 1]);
}

static im_status check_operand(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i)
{
    const im_view *v = &a->v[i];
    const im_operand *o = &k->operand[i];
    if (v->ndim == 0) {
        if (o->optional || i >= k->min_operands)
            return IM_OK;
        return im_fail(ctx, IM_ERR_ARG, "%s: operand %s is missing", k->name, o->name);
    }
    if (v->ndim > 4)
        return im_fail(ctx, IM_ERR_ARG, "%s: operand %s has %d dims, at most 4 are possible", k->name, o->name, v->ndim);
    if (v->dtype >= IM_DTYPE_COUNT)
        return im_fail(ctx, IM_ERR_ARG, "%s: operand %s has the unknown dtype %d", k->name, o->name, v->dtype);
    if (v->offset < 0)
        return im_op_bad(ctx, k, a, i, "the offset is %lld", (long long)v->offset);
    int64_t count = 1;
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] < 0 || v->stride[d] < 0)
            return im_op_bad(ctx, k, a, i, "dim %d has size %lld and stride %lld, neither may be negative", d, (long long)v->shape[d],
                             (long long)v->stride[d]);
        if (__builtin_mul_overflow(count, v->shape[d], &count) || count > INT64_MAX / 64)
            return im_op_bad(ctx, k, a, i, "too many elements");
    }
    return IM_OK;
}

char im_op_access(const im_op_kind *k, const im_op_args *a, int i)
{
    if (!im_op_has(a, i))
        return 0;
    char access = k->operand[i].access;
    if (access == 'A')
        return a->i[k->operand[i].acc] != 0 ? 'M' : 'W';
    return access;
}

const char *im_op_name(const im_op_kind *k)
{
    return k->name;
}

bool im_op_has_fast(const im_op_kind *k)
{
    return k->fast.run != NULL;
}

static const im_kernel *kernel_of(const im_op_kind *k, im_kernels kernels)
{
    return kernels == IM_KERNELS_FAST && k->fast.run != NULL ? &k->fast : &k->plain;
}

size_t im_op_workspace(const im_op_kind *k, const im_op_args *a, im_kernels kernels, int threads)
{
    const im_kernel *kernel = kernel_of(k, kernels);
    size_t n = kernel->workspace != NULL ? kernel->workspace(a, threads) : 0;
    return (n + 63) & ~(size_t)63;
}

static im_status check(im_context *ctx, const im_op_kind *k, const im_op_args *a)
{
    if (a->n < k->min_operands || a->n > k->max_operands)
        return im_fail(ctx, IM_ERR_ARG, "%s: %d operands, it takes %d to %d", k->name, a->n, k->min_operands, k->max_operands);
    for (int i = 0; i < a->n; i++)
        IM_TRY(check_operand(ctx, k, a, i));
    return k->check != NULL ? k->check(ctx, k, a) : IM_OK;
}

im_status im_op_describe(im_context *ctx, const im_op_kind *k, const im_op_args *a, im_op_cost *cost)
{
    IM_TRY(check(ctx, k, a));
    im_op_cost c = {0};
    for (int i = 0; i < a->n; i++) {
        char access = im_op_access(k, a, i);
        size_t nbytes = (size_t)im_view_count(&a->v[i]) * (access ? im_dtype_size((im_dtype)a->v[i].dtype) : 0);
        if (access == 'R' || access == 'M')
            c.read += nbytes;
        if (access == 'W' || access == 'M')
            c.written += nbytes;
    }
    if (k->cost != NULL)
        k->cost(a, &c);
    /* A device may run either kind of kernels, with up to all usable cores. */
    if (k->plain.workspace != NULL || k->fast.workspace != NULL) {
        int cores = a->threads ? a->threads : im_machine_cores();
        size_t plain = im_op_workspace(k, a, IM_KERNELS_PLAIN, cores), fast = im_op_workspace(k, a, IM_KERNELS_FAST, cores);
        c.workspace = plain > fast ? plain : fast;
    }
    *cost = c;
    return IM_OK;
}

double im_op_seconds(const im_op_cost *cost, const im_pace *pace)
{
    return fmax(cost->flops / pace->flops, (double)(cost->read + cost->written) / pace->bytes);
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

struct im_op_state {
    im_context *ctx;
    const im_op_kind *kind;
    const im_kernel *kernel;
    im_op_args args;
    int threads;
    im_isa isa;
    size_t workspace;
    void *prepared;
    double seconds; /* paced: what it takes; else 0 */
};

im_status im_op_prepare_direct(im_context *ctx, const im_op_kind *k, const im_op_args *a, const im_op_direct *how, im_op_state **out)
{
    im_status status;
    IM_TRY(check(ctx, k, a));
    im_op_state *s;
    IM_TRY(im_alloc(ctx, 1, sizeof *s, (void **)&s));
    im_isa machine = im_cpu_isa();
    s->ctx = ctx;
    s->kind = k;
    s->kernel = kernel_of(k, how->kernels);
    s->args = *a;
    s->threads = how->threads < 1 ? 1 : how->threads;
    s->isa = how->isa < machine ? how->isa : machine;
    s->workspace = im_op_workspace(k, a, how->kernels, s->threads);
    if (s->kernel->prepare != NULL) {
        im_kernel_setup setup = {.ctx = ctx, .args = &s->args, .threads = s->threads, .isa = s->isa};
        IM_TRY_GOTO(s->kernel->prepare(&setup, &s->prepared), free_state);
    }
    *out = s;
    return IM_OK;
free_state:
    free(s);
    return status;
}

/* An op that takes its time and does nothing: no kernel. */
static im_status prepare_paced(im_context *ctx, const im_op_kind *k, const im_op_args *a, const im_pace *pace, im_op_state **out)
{
    im_op_cost cost;
    void *s;
    IM_TRY(im_op_describe(ctx, k, a, &cost));
    IM_TRY(im_alloc(ctx, 1, sizeof(im_op_state), &s));
    *(im_op_state *)s = (im_op_state){.ctx = ctx, .kind = k, .args = *a, .seconds = im_op_seconds(&cost, pace)};
    *out = s;
    return IM_OK;
}

im_status im_op_prepare(im_device *d, const im_op_kind *k, const im_op_args *a, im_op_state **out)
{
    const im_device_config *cfg = im_device_config_of(d);
    if (cfg->kernels == IM_KERNELS_PACED)
        return prepare_paced(im_device_context(d), k, a, &cfg->pace, out);
    /* im_op_describe counts the workspace for the usable cores: no op uses more threads than that. */
    int cores = a->threads ? a->threads : im_machine_cores();
    im_op_direct how = {.kernels = cfg->kernels, .threads = cfg->threads > cores ? cores : cfg->threads, .isa = IM_ISA_COUNT};
    return im_op_prepare_direct(im_device_context(d), k, a, &how, out);
}

void im_op_destroy(im_op_state *s)
{
    if (s == NULL)
        return;
    if (s->prepared != NULL && s->kernel != NULL && s->kernel->destroy != NULL)
        s->kernel->destroy(s->prepared);
    free(s);
}

im_status im_op_call_direct(im_op_state *s, void *const *p, void *scratch, const im_op_now *now)
{
    void *at[IM_OP_MAX_OPERANDS] = {NULL};
    for (int i = 0; i < s->args.n; i++) {
        const im_view *v = &s->args.v[i];
        if (v->ndim > 0 && p[i] != NULL)
            at[i] = (char *)p[i] + (size_t)v->offset * im_dtype_size((im_dtype)v->dtype);
    }
    im_kernel_call call = {.ctx = s->ctx,
                           .args = &s->args,
                           .p = at,
                           .np = s->args.n,
                           .scratch = scratch,
                           .now = now,
                           .threads = s->threads,
                           .isa = s->isa,
                           .prepared = s->prepared};
    im_cpu_team(s->threads);
    return s->kernel->run(&call);
}

/* The work item of an op: its operands' buffers, then the scratch. */
static im_status run_work(void *arg, void *const *p, int np, const im_op_now *now)
{
    return im_op_call_direct(arg, p, p[np - 1], now);
}

im_status im_op_run(im_op_state *s, im_queue *q, const im_buffer *b, im_buffer scratch, const im_op_now *now, uint32_t tag)
{
    im_buffer buf[IM_OP_MAX_OPERANDS + 1];
    int n = s->args.n;
    for (int i = 0; i < n; i++) {
        size_t need = im_view_extent(&s->args.v[i]);
        if (s->args.v[i].ndim > 0 && b[i].nbytes < need)
            return im_fail(s->ctx, IM_ERR_INTERNAL, "%s: the buffer of operand %s has %zu bytes, %zu are needed", s->kind->name,
                           s->kind->operand[i].name, b[i].nbytes, need);
        buf[i] = b[i];
    }
    if (scratch.nbytes < s->workspace)
        return im_fail(s->ctx, IM_ERR_INTERNAL, "%s: %zu bytes of scratch, %zu are needed", s->kind->name, scratch.nbytes, s->workspace);
    buf[n] = scratch;
    im_work w = {.fn = s->kernel ? run_work : NULL,
                 .seconds = s->seconds,
                 .arg = s,
                 .buf = buf,
                 .nbuf = n + 1,
                 .now = *now,
                 .name = s->kind->name,
                 .tag = tag};
    return im_queue_push(q, &w);
}
