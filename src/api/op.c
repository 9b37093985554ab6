/* op: kernels on tensors. An op is prepared once for its shapes; the last IM_API_OPS of them are kept. */
#include "api/internal.h"

#include <stdlib.h>
#include <string.h>

static bool same_view(const im_view *a, const im_view *b)
{
    if (a->ndim != b->ndim || a->dtype != b->dtype || a->offset != b->offset)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || a->stride[d] != b->stride[d])
            return false;
    return true;
}

static bool same_args(const im_op_args *a, const im_op_args *b)
{
    if (a->n != b->n || a->threads != b->threads || memcmp(a->f, b->f, sizeof a->f) != 0 || memcmp(a->i, b->i, sizeof a->i) != 0)
        return false;
    for (int i = 0; i < a->n; i++)
        if (!same_view(&a->v[i], &b->v[i]))
            return false;
    return true;
}

static im_status prepared(im_rank *r, const im_op_kind *k, const im_op_args *a, im_api_op **out)
{
    im_api_op *oldest = r->op, made = {.kind = k, .args = *a};
    im_op_cost cost;
    for (int i = 0; i < IM_API_OPS; i++) {
        im_api_op *o = &r->op[i];
        if (o->kind == k && same_args(&o->args, a)) {
            *out = o;
            return IM_OK;
        }
        oldest = !o->kind || (oldest->kind && o->last < oldest->last) ? o : oldest;
    }
    IM_TRY(im_op_describe(r->ctx, k, a, &cost));
    IM_TRY(im_op_prepare(r->device, k, a, &made.state));
    made.workspace = cost.workspace;
    if (oldest->kind) { /* it may be on its way still */
        im_status status = im_event_wait(r->device, im_queue_last(r->compute));
        if (status != IM_OK) {
            im_op_destroy(made.state);
            return status;
        }
        im_op_destroy(oldest->state);
    }
    *oldest = made;
    *out = oldest;
    return IM_OK;
}

/* The scratch of kernels grows to what was needed at most; only the compute queue uses it. */
static im_status need_scratch(im_rank *r, size_t nbytes)
{
    if (nbytes <= im_device_reserved(r->device, IM_CLASS_SCRATCH))
        return IM_OK;
    IM_TRY(im_event_wait(r->device, im_queue_last(r->compute)));
    im_device_release(r->device, IM_CLASS_SCRATCH);
    return im_device_reserve(r->device, IM_CLASS_SCRATCH, nbytes);
}

/* Whether there is anything to write. */
static bool has_work(const im_op_kind *k, const im_op_args *a)
{
    for (int i = 0; i < a->n; i++) {
        char access = im_op_access(k, a, i);
        if ((access == 'W' || access == 'M') && im_view_count(&a->v[i]) > 0)
            return true;
    }
    return false;
}

im_status im_api_run(im_rank *r, const im_op_kind *k, im_op_args *a, im_tensor *const *t)
{
    im_buffer buf[IM_OP_MAX_OPERANDS] = {{0}};
    const im_op_now now = {0};
    im_api_op *op;
    if (!has_work(k, a))
        return IM_OK;
    a->threads = (uint16_t)im_device_config_of(r->device)->threads;
    IM_TRY(prepared(r, k, a, &op));
    op->last = ++r->clock;
    IM_TRY(need_scratch(r, op->workspace));
    for (int i = 0; i < a->n; i++) {
        if (!t[i])
            continue;
        IM_TRY(im_api_before(t[i], r->compute, im_op_access(k, a, i) != 'R'));
        buf[i] = (im_buffer){.arena = IM_CLASS_ACTIVATIONS, .offset = t[i]->store->block->offset, .nbytes = t[i]->store->block->nbytes};
    }
    const im_buffer scratch = {.arena = IM_CLASS_SCRATCH, .nbytes = op->workspace};
    im_status status = im_op_run(op->state, r->compute, buf, scratch, &now, UINT32_MAX);
    for (int i = 0; i < a->n; i++)
        if (t[i])
            im_api_after(t[i], im_queue_last(r->compute), im_op_access(k, a, i) != 'R');
    return status;
}

void im_api_ops_end(im_rank *r)
{
    for (int i = 0; i < IM_API_OPS; i++)
        im_op_destroy(r->op[i].state);
    memset(r->op, 0, sizeof r->op);
}

/* ---- matrices ------------------------------------------------------------------------------------ */

im_api_operand im_api_whole(const im_tensor *t)
{
    return (im_api_operand){.t = t, .v = t->view};
}

im_api_operand im_api_transposed(const im_tensor *t)
{
    return (im_api_operand){.t = t, .v = im_view_transpose(t->view)};
}

im_api_operand im_api_columns(const im_tensor *t, int64_t first, int64_t end)
{
    im_api_operand o = im_api_whole(t);
    o.v.shape[1] = end - first;
    o.v.offset += first;
    return o;
}

im_status im_api_matmul(im_rank *r, im_api_operand a, im_api_operand b, im_api_operand c, const im_tensor *bias, bool add)
{
    im_op_args args = {.n = 3, .v = {a.v, b.v, c.v}};
    im_tensor *t[] = {(im_tensor *)a.t, (im_tensor *)b.t, (im_tensor *)c.t, (im_tensor *)bias};
    if (a.v.shape[1] == 0) { /* a sum of nothing */
        im_op_args zero = {.n = 1, .v = {c.v}};
        if (add)
            return IM_OK;
        return im_api_run(r, &im_op_fill, &zero, &t[2]);
    }
    args.i[0] = add;
    if (bias)
        args.v[args.n++] = bias->view;
    return im_api_run(r, &im_op_matmul, &args, t);
}

im_status im_api_copy(im_rank *r, im_api_operand from, im_api_operand to)
{
    im_op_args args = {.n = 2, .v = {from.v, to.v}};
    im_tensor *t[] = {(im_tensor *)from.t, (im_tensor *)to.t};
    return im_api_run(r, &im_op_copy, &args, t);
}
