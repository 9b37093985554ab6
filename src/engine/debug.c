/* engine: what `imece verify` needs of a run: collectives that are wrong on purpose, and what each instruction left behind. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- faults ------------------------------------------------------------------------ */

static bool reduces(const im_op *op)
{
    return op->collective == IM_COLL_ALL_REDUCE || op->collective == IM_COLL_REDUCE_SCATTER;
}

static bool fits(im_engine_fault f, const im_op *op)
{
    return f == IM_ENGINE_STALE ? op->collective == IM_COLL_ALL_GATHER && !op->by_rows : reduces(op);
}

typedef struct scale_job {
    double by;
    size_t count;
    im_dtype t;
} scale_job;

static im_status run_scale(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np, (void)now;
    const scale_job *j = arg;
    float *f = p[0];
    double *d = p[0];
    for (size_t i = 0; i < j->count; i++) {
        if (j->t == IM_F64)
            d[i] *= j->by;
        else
            f[i] *= (float)j->by;
    }
    return IM_OK;
}

/* The result of the reduction times `by`. */
static im_status scale(im_engine *e, const im_bound *x, im_queue *q, double by)
{
    int o = x->op->collective == IM_COLL_REDUCE_SCATTER;
    const im_view *v = &x->op->args.v[o];
    if (!v->ndim)
        return IM_OK;
    if (v->dtype != IM_F32 && v->dtype != IM_F64)
        return im_fail(e->ctx, IM_ERR_UNSUPPORTED, "a fault in a sum of %s: fp32 only", im_dtype_name((im_dtype)v->dtype));
    scale_job *j = IM_ARENA_NEW(e->arena, scale_job, 1); /* one a step, of a run that is broken on purpose */
    if (!j)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for a fault");
    *j = (scale_job){by, (size_t)im_view_count(v), (im_dtype)v->dtype};
    im_work w = {.fn = run_scale, .arg = j, .buf = &x->buf[o], .nbuf = 1, .name = "fault", .tag = UINT32_MAX};
    return im_queue_push(q, &w);
}

static im_status run_copy(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np, (void)now;
    memmove(p[1], p[0], *(const size_t *)arg);
    return IM_OK;
}

/* A reduction of this rank alone: in place, nothing happens; scattered, the own part. */
static im_status alone(im_engine *e, const im_bound *x, const im_step *s, im_queue *q)
{
    size_t counts[1024], before = 0;
    if (x->op->collective == IM_COLL_ALL_REDUCE || !x->op->args.v[1].ndim)
        return IM_OK;
    im_engine_counts(e, x->op, s->target, counts);
    int r = im_comm_rank(e->group[x->op->group][x->op->queue]);
    for (int i = 0; i < r; i++)
        before += counts[i];
    size_t size = im_dtype_size((im_dtype)x->op->args.v[0].dtype), *n = IM_ARENA_NEW(e->arena, size_t, 1);
    if (!n)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for a fault");
    *n = counts[r] * size;
    im_buffer b[2] = {x->buf[0], x->buf[1]};
    b[0].offset += before * size;
    b[0].nbytes = *n;
    im_work w = {.fn = run_copy, .arg = n, .buf = b, .nbuf = 2, .name = "fault", .tag = UINT32_MAX};
    return im_queue_push(q, &w);
}

/* The first time the gather is made and kept; then what was kept takes the place of what it gives. */
static im_status stale(im_engine *e, const im_bound *x, const im_step *s, im_queue *q)
{
    im_buffer whole = x->buf[1];
    IM_TRY(im_engine_collective(e, x, s, q));
    if (e->fault.old)
        return im_queue_upload(q, whole, e->fault.old, e->fault.old_bytes);
    IM_TRY(im_alloc(e->ctx, whole.nbytes, 1, &e->fault.old));
    e->fault.old_bytes = whole.nbytes;
    return im_queue_download(q, e->fault.old, whole, whole.nbytes);
}

im_status im_engine_faulty_collective(im_engine *e, const im_bound *x, const im_step *s, im_queue *q)
{
    im_engine_fault f = e->debug->fault;
    bool counts = fits(f, x->op) && (e->debug->group < 0 || e->debug->group == (int)x->op->group);
    int n = counts ? im_comm_size(e->group[x->op->group][x->op->queue]) : 0; /* RELEASE and SNAPSHOT have no communicator */
    if (n < 2 || ++e->fault.seen != e->debug->at)
        return im_engine_collective(e, x, s, q);
    if (e->debug->made)
        *e->debug->made = true;
    switch (f) {
    case IM_ENGINE_MISSING: return IM_OK;
    case IM_ENGINE_GROUP: return alone(e, x, s, q);
    case IM_ENGINE_STALE: return stale(e, x, s, q);
    case IM_ENGINE_SCALE: IM_TRY(im_engine_collective(e, x, s, q)); return scale(e, x, q, 1.0 / n);
    case IM_ENGINE_DOUBLED:
        IM_TRY(im_engine_collective(e, x, s, q));
        /* in place the second sum adds up the first; a scattered one would be the same again, so it counts twice */
        return x->op->collective == IM_COLL_ALL_REDUCE ? im_engine_collective(e, x, s, q) : scale(e, x, q, 2);
    default: return im_engine_collective(e, x, s, q);
    }
}

void im_engine_debug_free(im_engine *e)
{
    free(e->fault.old);
    free(e->fault.edge);
}

/* ---- edges ------------------------------------------------------------------------------ */

/* The last op of [first, end) that writes the edge, and which of its operands that is. */
static bool find_edge(const im_program *p, uint32_t first, uint32_t end, int owner, int index, uint32_t *op, int *operand)
{
    bool found = false;
    for (uint32_t i = first; i < end; i++)
        for (int o = 0; o < p->bound[i].op->args.n; o++) {
            const im_bound *x = &p->bound[i];
            const im_value *v = &x->value[o];
            if (!x->op->args.v[o].ndim || x->op->use[o].access == IM_READ || v->role != IM_ROLE_EDGE || v->owner != owner || v->index != index)
                continue;
            *op = i;
            *operand = o;
            found = true;
        }
    return found;
}

im_status im_engine_tell_edge(im_engine *e, const im_runnable *r, uint32_t first, uint32_t end, const im_op_now *now)
{
    const im_program *p = r->program;
    const im_step *s = &p->step[p->bound[first].step];
    bool forward = s->verb == IM_FORWARD;
    uint32_t op;
    int o;
    if (e->plan.precision != IM_F32 || (!forward && s->verb != IM_LOSS && s->verb != IM_BACKWARD && s->verb != IM_BACKWARD_INPUT) ||
        !find_edge(p, first, end, forward ? s->target : s->target - 1, !forward, &op, &o))
        return IM_OK;
    const im_bound *x = &p->bound[op];
    int dp = e->layout->place.dp;
    im_engine_edge out = {.verb = s->verb,
                          .unit = s->target,
                          .mb = s->mb,
                          .step = now->step,
                          .first_sample = im_plan_first_sample(&e->plan, dp, s->mb),
                          .B = im_plan_micro_batch_size(&e->plan, dp, s->mb),
                          .T = e->plan.seq_len,
                          .D = e->plan.model->arch.D};
    out.rows = out.B * out.T;
    if (e->layout->sequence_parallel) {
        int64_t last;
        im_part(out.B * out.T, e->layout->mesh.tp, e->layout->place.tp, &out.row0, &last);
        out.rows = last - out.row0;
    }
    size_t nbytes = (size_t)(out.rows * out.D) * sizeof(float);
    im_buffer b = x->buf[o];
    b.offset = b.offset + b.nbytes - x->hi[o]; /* where the value itself begins */
    b.nbytes = nbytes;
    if (nbytes > e->fault.edge_bytes) {
        free(e->fault.edge);
        e->fault.edge = malloc(nbytes);
        e->fault.edge_bytes = e->fault.edge ? nbytes : 0;
        if (!e->fault.edge)
            return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for a copy of %zu bytes", nbytes);
    }
    IM_TRY(im_event_wait(e->device, r->done[op]));
    if (nbytes)
        IM_TRY(im_engine_copy_out(e, e->fault.edge, b, nbytes));
    out.data = e->fault.edge;
    return e->debug->edge(e->debug->arg, &out);
}
