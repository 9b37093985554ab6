/* tensor: memory of a rank, and who waits for whom. */
#include "api/internal.h"

#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* elements that are drawn or converted at once */

/* ---- stores -------------------------------------------------------------------------------- */

static im_status zero_work(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)np;
    memset(p[0], 0, (size_t)now->pos);
    return IM_OK;
}

static im_status store_create(im_rank *r, im_api_use use, size_t nbytes, im_api_store **out)
{
    void *p;
    bool zero;
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_api_store), &p));
    im_api_store *s = p;
    im_status status = im_api_heap_take(r->ctx, &r->heap, nbytes, &s->block, &zero);
    if (status == IM_OK && !zero) {
        const im_buffer b = {.arena = IM_CLASS_ACTIVATIONS, .offset = s->block->offset, .nbytes = s->block->nbytes};
        const im_work w = {.fn = zero_work, .buf = &b, .nbuf = 1, .now.pos = (int64_t)b.nbytes, .name = "zero", .tag = UINT32_MAX};
        status = im_queue_push(r->compute, &w);
        s->wrote = s->used[IM_QUEUE_COMPUTE] = im_queue_last(r->compute);
        if (status != IM_OK)
            im_api_heap_give(&r->heap, s->block);
    }
    if (status != IM_OK) {
        free(s);
        return status;
    }
    s->use = use;
    s->refs = 1;
    r->bytes[use] += s->block->nbytes;
    if (r->bytes[IM_API_STAGING] > r->staging_peak)
        r->staging_peak = r->bytes[IM_API_STAGING];
    *out = s;
    return IM_OK;
}

void im_api_store_release(im_rank *r, im_api_store *s)
{
    if (--s->refs)
        return;
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        if (s->used[q].value && im_event_wait(r->device, s->used[q]) != IM_OK)
            im_log(r->ctx, IM_LOG_DEBUG, "api", "a tensor is destroyed after an error");
    r->bytes[s->use] -= s->block->nbytes;
    im_api_heap_give(&r->heap, s->block);
    free(s);
}

im_status im_api_before(const im_tensor *t, im_queue *q, bool write)
{
    const im_api_store *s = t->store;
    if (!write)
        return im_queue_wait(q, s->wrote);
    for (int i = 0; i < IM_QUEUE_MAX; i++)
        IM_TRY(im_queue_wait(q, s->used[i]));
    return IM_OK;
}

void im_api_after(const im_tensor *t, im_event e, bool write)
{
    if (!e.value)
        return;
    t->store->used[e.queue] = e;
    if (write)
        t->store->wrote = e;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void end_object(im_api_object *o)
{
    im_tensor *t = (im_tensor *)o;
    im_api_object_remove(t->rank, o);
    im_api_store_release(t->rank, t->store);
    free(t);
}

void im_api_tensor_end(im_tensor *t)
{
    if (t)
        end_object(&t->object);
}

void im_tensor_destroy(im_tensor *t)
{
    if (t && !t->of_layer)
        im_api_tensor_end(t);
}

static im_status check_shape(im_context *ctx, im_dtype t, int ndim, const int64_t *shape, size_t *nbytes)
{
    size_t size = (unsigned)t < IM_DTYPE_COUNT ? im_dtype_size(t) : 0;
    if (!size)
        return im_fail(ctx, IM_ERR_ARG, "im_tensor_create: %d is no dtype", (int)t);
    if (ndim < 1 || ndim > 4)
        return im_fail(ctx, IM_ERR_ARG, "im_tensor_create: %d dims; 1 to 4 are possible", ndim);
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0)
            return im_fail(ctx, IM_ERR_ARG, "im_tensor_create: dim %d is %lld", d, (long long)shape[d]);
    for (int d = 0; d < ndim; d++)
        if (shape[d] && (__builtin_mul_overflow(count, shape[d], &count) || count > INT64_MAX / 64))
            return im_fail(ctx, IM_ERR_NOMEM, "im_tensor_create: more elements than an address space has bytes");
    for (int d = 0; d < ndim; d++)
        count *= shape[d] != 0;
    *nbytes = (size_t)count * size;
    return IM_OK;
}

im_status im_api_tensor(im_rank *r, im_api_use use, im_dtype t, int ndim, const int64_t *shape, im_tensor **out)
{
    size_t nbytes = 0;
    void *p;
    IM_TRY(check_shape(r->ctx, t, ndim, shape, &nbytes));
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_tensor), &p));
    im_tensor *made = p;
    im_status status = store_create(r, use, nbytes, &made->store);
    if (status != IM_OK) {
        free(made);
        return status;
    }
    made->rank = r;
    made->view = im_view_make(t, ndim, shape);
    made->of_layer = use == IM_API_WEIGHTS || use == IM_API_GRADIENTS;
    if (!made->of_layer) /* the layer ends it */
        im_api_object_add(r, &made->object, end_object);
    *out = made;
    return IM_OK;
}

im_status im_api_matrix(im_rank *r, im_api_use use, im_dtype t, int64_t rows, int64_t cols, im_tensor **out)
{
    return im_api_tensor(r, use, t, 2, (int64_t[]){rows, cols}, out);
}

im_status im_tensor_create(im_rank *r, im_dtype t, int ndim, const int64_t *shape, im_tensor **out)
{
    return im_api_tensor(r, IM_API_TENSORS, t, ndim, shape, out);
}

im_status im_tensor_rows(im_tensor *t, int64_t first, int64_t n, im_tensor **out)
{
    char shape[96];
    void *p;
    im_api_shape_text(t, shape, sizeof shape);
    if (first < 0 || n < 0 || first > t->view.shape[0] || n > t->view.shape[0] - first)
        return im_fail(t->rank->ctx, IM_ERR_ARG, "im_tensor_rows: rows %lld to %lld of %s", (long long)first, (long long)(first + n), shape);
    IM_TRY(im_alloc(t->rank->ctx, 1, sizeof(im_tensor), &p));
    im_tensor *made = p;
    made->rank = t->rank;
    made->store = t->store;
    made->store->refs++;
    made->view = t->view;
    made->view.shape[0] = n;
    made->view.offset += first * t->view.stride[0];
    im_api_object_add(t->rank, &made->object, end_object);
    *out = made;
    return IM_OK;
}

im_dtype im_tensor_dtype(const im_tensor *t)
{
    return (im_dtype)t->view.dtype;
}

int im_tensor_ndim(const im_tensor *t)
{
    return t->view.ndim;
}

const int64_t *im_tensor_shape(const im_tensor *t)
{
    return t->view.shape;
}

int64_t im_tensor_count(const im_tensor *t)
{
    return im_view_count(&t->view);
}

im_buffer im_api_buffer(const im_tensor *t)
{
    size_t size = im_dtype_size((im_dtype)t->view.dtype);
    return (im_buffer){.arena = IM_CLASS_ACTIVATIONS,
                       .offset = t->store->block->offset + (size_t)t->view.offset * size,
                       .nbytes = (size_t)im_tensor_count(t) * size};
}

bool im_api_overlap(const im_tensor *a, const im_tensor *b)
{
    im_buffer x = im_api_buffer(a), y = im_api_buffer(b);
    return a->store == b->store && x.offset < y.offset + y.nbytes && y.offset < x.offset + x.nbytes;
}

void im_api_shape_text(const im_tensor *t, char *text, size_t size)
{
    int n = snprintf(text, size, "(");
    for (int d = 0; d < t->view.ndim; d++)
        n += snprintf(text + n, size - (size_t)n, "%s%lld", d ? "," : "", (long long)t->view.shape[d]);
    snprintf(text + n, size - (size_t)n, ") %s", im_dtype_name((im_dtype)t->view.dtype));
}

/* ---- values -------------------------------------------------------------------------------------- */

im_status im_tensor_write(im_tensor *t, const void *values)
{
    im_rank *r = t->rank;
    im_buffer b = im_api_buffer(t);
    IM_TRY(im_api_before(t, r->compute, true));
    IM_TRY(im_queue_upload(r->compute, b, values, b.nbytes));
    im_api_after(t, im_queue_last(r->compute), true);
    return im_event_wait(r->device, im_queue_last(r->compute));
}

im_status im_tensor_read(const im_tensor *t, void *values)
{
    im_rank *r = t->rank;
    im_buffer b = im_api_buffer(t);
    IM_TRY(im_api_before(t, r->compute, false));
    IM_TRY(im_queue_download(r->compute, values, b, b.nbytes));
    im_api_after(t, im_queue_last(r->compute), false);
    return im_event_wait(r->device, im_queue_last(r->compute));
}

/* t's elements [at, at + n) as a tensor of one dim. */
static im_tensor piece_of(const im_tensor *t, int64_t at, int64_t n)
{
    im_tensor p = *t;
    p.view = im_view_1d((im_dtype)t->view.dtype, n);
    p.view.offset = t->view.offset + at;
    return p;
}

im_status im_api_put(im_tensor *t, int64_t at, int64_t n, const float *values)
{
    im_tensor part = piece_of(t, at, n), *staged;
    if (t->view.dtype == IM_F32 || !n)
        return n ? im_tensor_write(&part, values) : IM_OK;
    IM_TRY(im_api_tensor(t->rank, IM_API_STAGING, IM_F32, 1, &n, &staged));
    im_status status = im_tensor_write(staged, values);
    if (status == IM_OK)
        status = im_api_copy(t->rank, im_api_whole(staged), im_api_whole(&part));
    im_api_tensor_end(staged);
    return status;
}

im_status im_api_take(const im_tensor *t, int64_t at, int64_t n, float *values)
{
    im_tensor part = piece_of(t, at, n), *staged;
    if (t->view.dtype == IM_F32 || !n)
        return n ? im_tensor_read(&part, values) : IM_OK;
    IM_TRY(im_api_tensor(t->rank, IM_API_STAGING, IM_F32, 1, &n, &staged));
    im_status status = im_api_copy(t->rank, im_api_whole(&part), im_api_whole(staged));
    if (status == IM_OK)
        status = im_tensor_read(staged, values);
    im_api_tensor_end(staged);
    return status;
}

static im_status need_float(const im_tensor *t, const char *call)
{
    im_dtype d = im_tensor_dtype(t);
    if (d == IM_F32 || d == IM_F64 || d == IM_BF16 || d == IM_F16)
        return IM_OK;
    return im_fail(t->rank->ctx, IM_ERR_ARG, "%s: the tensor is %s; fp32, fp64, bf16 and fp16 convert", call, im_dtype_name(d));
}

im_status im_tensor_write_f32(im_tensor *t, const float *values)
{
    int64_t count = im_tensor_count(t);
    IM_TRY(need_float(t, "im_tensor_write_f32"));
    for (int64_t at = 0; at < count; at += PIECE)
        IM_TRY(im_api_put(t, at, count - at < PIECE ? count - at : PIECE, values + at));
    return IM_OK;
}

im_status im_tensor_read_f32(const im_tensor *t, float *values)
{
    int64_t count = im_tensor_count(t);
    IM_TRY(need_float(t, "im_tensor_read_f32"));
    for (int64_t at = 0; at < count; at += PIECE)
        IM_TRY(im_api_take(t, at, count - at < PIECE ? count - at : PIECE, values + at));
    return IM_OK;
}

im_status im_tensor_fill(im_tensor *t, double value)
{
    im_op_args a = {.n = 1, .v = {t->view}, .f = {value}};
    return im_api_run(t->rank, &im_op_fill, &a, &t);
}

im_status im_tensor_draw(im_tensor *t, uint64_t seed, const char *name, int64_t first, double std)
{
    const im_param p = {.name = name, .init = {.kind = IM_INIT_NORMAL, .std = std}};
    int64_t count = im_tensor_count(t);
    void *memory;
    IM_TRY(need_float(t, "im_tensor_draw"));
    if (first < 0 || first > INT64_MAX - count)
        return im_fail(t->rank->ctx, IM_ERR_ARG, "im_tensor_draw: element %lld", (long long)first);
    IM_TRY(im_alloc(t->rank->ctx, PIECE, sizeof(float), &memory));
    im_status status = IM_OK;
    for (int64_t at = 0; at < count && status == IM_OK; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        im_param_init(&p, seed, first + at, n, memory);
        status = im_api_put(t, at, n, memory);
    }
    free(memory);
    return status;
}

/* ---- arithmetic -------------------------------------------------------------------------------------- */

static im_status same_shape(const char *call, const im_tensor *a, const im_tensor *b, bool dtype)
{
    bool same = a->view.ndim == b->view.ndim && (!dtype || a->view.dtype == b->view.dtype);
    for (int d = 0; same && d < a->view.ndim; d++)
        same = a->view.shape[d] == b->view.shape[d];
    if (same && a->rank == b->rank)
        return IM_OK;
    char x[96], y[96];
    im_api_shape_text(a, x, sizeof x);
    im_api_shape_text(b, y, sizeof y);
    return im_fail(a->rank->ctx, IM_ERR_ARG, "%s: %s and %s%s", call, x, y, same ? " of another rank" : "");
}

/* In place, or apart. */
static im_status same_or_apart(const char *call, const im_tensor *a, const im_tensor *b)
{
    if (!im_api_overlap(a, b) || a->view.offset == b->view.offset)
        return IM_OK;
    return im_fail(a->rank->ctx, IM_ERR_ARG, "%s: two tensors overlap; they are the same place, or apart", call);
}

im_status im_tensor_copy(const im_tensor *x, im_tensor *y)
{
    IM_TRY(same_shape("im_tensor_copy", x, y, false));
    if (im_api_overlap(x, y))
        return im_fail(x->rank->ctx, IM_ERR_ARG, "im_tensor_copy: the tensors overlap");
    return im_api_copy(x->rank, im_api_whole(x), im_api_whole(y));
}

im_status im_tensor_add(const im_tensor *a, const im_tensor *b, im_tensor *y)
{
    im_op_args args = {.n = 3, .v = {a->view, b->view, y->view}};
    im_tensor *t[] = {(im_tensor *)a, (im_tensor *)b, y};
    IM_TRY(same_shape("im_tensor_add", a, b, true));
    IM_TRY(same_shape("im_tensor_add", a, y, true));
    IM_TRY(same_or_apart("im_tensor_add", a, y));
    IM_TRY(same_or_apart("im_tensor_add", b, y));
    return im_api_run(a->rank, &im_op_add, &args, t);
}

static im_status check_act(const char *call, im_act act, const im_tensor *x)
{
    if ((unsigned)act <= IM_ACT_RELU && x->view.ndim == 2)
        return IM_OK;
    char shape[96];
    im_api_shape_text(x, shape, sizeof shape);
    return im_fail(x->rank->ctx, IM_ERR_ARG, "%s: activation %d of %s; GELU_TANH, GELU_ERF, SILU or RELU of 2 dims", call, (int)act, shape);
}

im_status im_tensor_act(im_act act, const im_tensor *x, im_tensor *y)
{
    im_op_args args = {.n = 2, .v = {x->view, y->view}, .i = {act}};
    im_tensor *t[] = {(im_tensor *)x, y};
    IM_TRY(check_act("im_tensor_act", act, x));
    IM_TRY(same_shape("im_tensor_act", x, y, true));
    IM_TRY(same_or_apart("im_tensor_act", x, y));
    return im_api_run(x->rank, &im_op_act, &args, t);
}

im_status im_tensor_act_grad(im_act act, const im_tensor *x, const im_tensor *dy, im_tensor *dx)
{
    im_op_args args = {.n = 3, .v = {x->view, dy->view, dx->view}, .i = {act}};
    im_tensor *t[] = {(im_tensor *)x, (im_tensor *)dy, dx};
    IM_TRY(check_act("im_tensor_act_grad", act, x));
    IM_TRY(same_shape("im_tensor_act_grad", x, dy, true));
    IM_TRY(same_shape("im_tensor_act_grad", x, dx, true));
    if (im_api_overlap(x, dx))
        return im_fail(x->rank->ctx, IM_ERR_ARG, "im_tensor_act_grad: dx overlaps x");
    IM_TRY(same_or_apart("im_tensor_act_grad", dy, dx));
    return im_api_run(x->rank, &im_op_act_grad, &args, t);
}
