/* engine: runs a program: for each op, its waits, then the kernel or the collective on its queue. */
#include "engine/internal.h"
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

/* ---- batches ------------------------------------------------------------------- */

static im_status load_batch(im_engine *e, const im_bound *x, const im_step *s, const im_op_now *now, const im_source *src)
{
    im_staging *st = &e->staging[s->mb];
    const im_view *v = &x->op->args.v[0];
    size_t n = (size_t)im_view_count(v);
    IM_TRY(im_event_wait(e->device, st->uploaded)); /* the host copy is free again */
    int32_t *part[4];
    for (int i = 0; i < 4; i++)
        part[i] = x->op->args.v[i].ndim ? st->host + (size_t)i * st->count : NULL;
    bool train = e->want[e->last_run].mode == IM_MODE_TRAIN;
    int64_t first = train ? im_plan_first_sample(&e->plan, e->layout->place.dp, s->mb) : 0;
    IM_TRY(src->load(src->arg, now, first, v->shape[0], v->shape[1], part[0], part[1], part[2], part[3]));
    im_queue *q = im_device_queue(e->device, x->op->queue);
    for (int i = 0; i < 4; i++)
        if (part[i])
            IM_TRY(im_queue_upload(q, x->buf[i], part[i], n * sizeof(int32_t)));
    st->uploaded = im_queue_last(q);
    return IM_OK;
}

/* ---- collectives ------------------------------------------------------------------ */

const size_t *im_engine_counts(im_engine *e, const im_op *op, size_t bucket, size_t *counts)
{
    int n = op->by_rows ? im_comm_size(e->group[op->group][op->queue]) : e->layout->mesh.dp;
    for (int r = 0; r < n; r++) {
        int64_t first, end;
        im_part(op->rows, n, r, &first, &end);
        counts[r] = op->by_rows ? (size_t)((end - first) * op->cols) : e->layout->bucket[bucket].shard[r + 1] - e->layout->bucket[bucket].shard[r];
    }
    return counts;
}

/* The other stage's place in the channel's communicator of two: 1 the later stage. */
static int neighbour(unsigned channel)
{
    return channel == IM_CH_ACT_OUT || channel == IM_CH_GRAD_IN ? 1 : 0;
}

/* Where the operand's view begins. */
static im_buffer at_view(const im_bound *x, int i)
{
    im_buffer b = x->buf[i];
    size_t skip = b.nbytes - (x->hi[i] - x->lo[i]);
    b.offset += skip;
    b.nbytes -= skip;
    return b;
}

im_status im_engine_collective(im_engine *e, const im_bound *x, const im_step *s, im_queue *q)
{
    im_comm *c = e->group[x->op->group][x->op->queue];
    const im_view *v = x->op->args.v;
    im_dtype t = (im_dtype)v[0].dtype;
    size_t n = v[0].ndim ? (size_t)im_view_count(&v[0]) : 0;
    size_t counts[1024];
    if (e->layout->mesh.dp > 1024 || e->layout->mesh.tp > 1024)
        return im_fail(e->ctx, IM_ERR_UNSUPPORTED, "tp %d, dp %d: at most 1024 each", e->layout->mesh.tp, e->layout->mesh.dp);
    switch ((im_collective)x->op->collective) {
    case IM_COLL_ALL_REDUCE: return im_comm_all_reduce(c, q, x->buf[0], x->buf[0], n, t, IM_SUM, NULL);
    case IM_COLL_REDUCE_SCATTER:
        return im_comm_reduce_scatter(c, q, x->buf[0], x->buf[1], im_engine_counts(e, x->op, s->target, counts), t, IM_SUM, NULL);
    case IM_COLL_ALL_GATHER: {
        im_buffer whole = at_view(x, 1), own = at_view(x, 0);
        im_engine_counts(e, x->op, s->target, counts);
        t = (im_dtype)v[1].dtype;
        if (!v[0].ndim) { /* in place: the own part lies where it will be */
            const im_bucket *b = &e->layout->bucket[s->target];
            int r = e->layout->place.dp;
            own = whole;
            own.offset += b->shard[r] * im_dtype_size(t);
            own.nbytes = counts[r] * im_dtype_size(t);
        }
        return im_comm_all_gather(c, q, own, whole, counts, t, NULL);
    }
    case IM_COLL_SEND: return im_comm_send(c, q, x->buf[0], n, t, neighbour(s->target), NULL);
    case IM_COLL_RECV: return im_comm_recv(c, q, x->buf[0], n, t, neighbour(s->target), NULL);
    default: return IM_OK; /* RELEASE and SNAPSHOT mark places in the program */
    }
}

/* ---- ops ------------------------------------------------------------------------------ */

im_status im_engine_enqueue_op(im_engine *e, im_runnable *r, uint32_t i, const im_op_now *now, const im_source *src)
{
    const im_bound *x = &r->program->bound[i];
    const im_step *s = &r->program->step[x->step];
    im_queue *q = im_device_queue(e->device, x->op->queue);
    if (!q)
        return im_error_code(e->ctx);
    for (int w = 0; w < x->nwait; w++)
        IM_TRY(im_queue_wait(q, r->done[x->wait[w]]));
    if (s->verb == IM_UPDATE) /* a snapshot of these weights may still be on its way to the disk */
        IM_TRY(im_queue_wait(q, e->written[s->target]));
    im_queue_tag(q, i);
    if (x->op->kind)
        IM_TRY(im_op_run(r->state[i], q, x->buf, e->scratch, now, i));
    else if (x->op->collective == IM_COLL_LOAD)
        IM_TRY(load_batch(e, x, s, now, src));
    else if (e->debug && e->debug->fault)
        IM_TRY(im_engine_faulty_collective(e, x, s, q));
    else
        IM_TRY(im_engine_collective(e, x, s, q));
    im_queue_tag(q, UINT32_MAX);
    r->done[i] = im_queue_last(q);
    return IM_OK;
}

/* Programs share memory: each queue starts after everything of the program before. */
static im_status after_last_program(im_engine *e)
{
    for (unsigned a = 0; a < IM_QUEUE_MAX; a++) {
        if (a == IM_QUEUE_IO)
            continue;
        for (unsigned b = 0; b < IM_QUEUE_MAX; b++)
            if (a != b && b != IM_QUEUE_IO && e->used[a] && e->used[b])
                IM_TRY(im_queue_wait(im_device_queue(e->device, a), im_queue_last(im_device_queue(e->device, b))));
    }
    return IM_OK;
}

im_status im_engine_run(im_engine *e, size_t i, const im_op_now *now, const im_source *src)
{
    if (i >= e->nrun)
        return im_fail(e->ctx, IM_ERR_ARG, "program %zu of %zu", i, e->nrun);
    im_runnable *r = &e->run[i];
    for (uint32_t k = 0; k < r->program->nbound; k++)
        if (!e->used[r->program->bound[k].op->queue]) {
            e->used[r->program->bound[k].op->queue] = true;
            if (!im_device_queue(e->device, r->program->bound[k].op->queue))
                return im_error_code(e->ctx);
        }
    IM_TRY(after_last_program(e));
    e->last_run = i;
    e->fault.seen = 0;
    bool tells = e->debug && e->debug->edge && e->want[i].mode == IM_MODE_TRAIN;
    int64_t step = e->want[i].mode == IM_MODE_TRAIN ? now->step + 1 : 0;
    for (uint32_t k = 0, first = 0, n = r->program->nbound; k < n; k++) {
        if (!k || r->program->bound[k].step != r->program->bound[k - 1].step)
            im_comm_note(e->world, step, r->label[r->program->bound[k].step]);
        IM_TRY(im_engine_enqueue_op(e, r, k, now, src));
        if (!tells || (k + 1 < n && r->program->bound[k + 1].step == r->program->bound[k].step))
            continue;
        IM_TRY(im_engine_tell_edge(e, r, first, k + 1, now));
        first = k + 1;
    }
    return IM_OK;
}

/* ---- scalars ----------------------------------------------------------------------------- */

static im_buffer scalar(const im_engine *e, im_scalar s)
{
    return e->scalar[s];
}

/* The host may touch device memory only when the queues are quiet. */
static im_status quiet(im_engine *e)
{
    for (unsigned q = 0; q < IM_QUEUE_MAX; q++)
        if (q != IM_QUEUE_IO && e->used[q])
            IM_TRY(im_event_wait(e->device, im_queue_last(im_device_queue(e->device, q))));
    return IM_OK;
}

im_status im_engine_set_hyper(im_engine *e, double lr, double clip)
{
    im_buffer b = scalar(e, IM_SCALAR_HYPER);
    if (!b.nbytes)
        return im_fail(e->ctx, IM_ERR_ARG, "a run without a training program has no learning rate");
    IM_TRY(quiet(e));
    e->hyper[IM_HYPER_LR] = lr;
    e->hyper[IM_HYPER_CLIP] = clip;
    return im_engine_copy_in(e, b, e->hyper, sizeof e->hyper);
}

im_status im_engine_set_updates(im_engine *e, int64_t updates)
{
    double clip[IM_CLIP_COUNT] = {0};
    im_buffer b = scalar(e, IM_SCALAR_CLIP);
    if (!b.nbytes)
        return im_fail(e->ctx, IM_ERR_ARG, "a run without a training program has no update count");
    clip[IM_CLIP_T] = (double)updates;
    IM_TRY(quiet(e));
    return im_engine_copy_in(e, b, clip, sizeof clip);
}

im_status im_engine_metrics(im_engine *e, im_metrics *out)
{
    double loss = 0, tokens = 0, clip[IM_CLIP_COUNT] = {0}, bad = 0;
    bool train = e->want[e->last_run].mode == IM_MODE_TRAIN;
    IM_TRY(quiet(e));
    if (im_device_config_of(e->device)->kernels == IM_KERNELS_PACED) {
        *out = (im_metrics){.loss = NAN, .loss_sum = NAN, .grad_norm = NAN, .finite = true};
        return IM_OK;
    }
    IM_TRY(im_engine_copy_out(e, &loss, scalar(e, IM_SCALAR_LOSS), sizeof loss));
    IM_TRY(im_engine_copy_out(e, &tokens, scalar(e, IM_SCALAR_TOKENS), sizeof tokens));
    if (train)
        IM_TRY(im_engine_copy_out(e, clip, scalar(e, IM_SCALAR_CLIP), sizeof clip));
    if (train)
        IM_TRY(im_engine_copy_out(e, &bad, scalar(e, IM_SCALAR_BAD), sizeof bad));
    *out = (im_metrics){.loss = tokens > 0 ? loss / tokens : 0,
                        .tokens = tokens,
                        .loss_sum = loss,
                        .grad_norm = clip[IM_CLIP_NORM],
                        .finite = train ? clip[IM_CLIP_FINITE] != 0 : __builtin_isfinite(loss),
                        .updates = (int64_t)clip[IM_CLIP_T],
                        .bad_weights = bad != 0};
    return IM_OK;
}

int64_t im_engine_kv_blocks(const im_engine *e)
{
    return (int64_t)(e->kv_table.nbytes / sizeof(int32_t));
}

im_status im_engine_place_block(im_engine *e, int64_t sequence, int64_t i, int32_t block)
{
    int64_t n = im_engine_kv_blocks(e), each = 0;
    for (size_t k = 0; k < e->nrun && !each; k++) /* kv_max is the same in all INFER programs */
        each = e->want[k].mode == IM_MODE_INFER ? im_kv_blocks(e->want[k].kv_max) : 0;
    int64_t at = sequence * each + i;
    if (sequence < 0 || i < 0 || i >= each || at >= n || block < 0 || block >= n)
        return im_fail(e->ctx, IM_ERR_ARG, "block %d for run %lld of sequence %lld: the cache has %lld blocks, a sequence at most %lld", block,
                       (long long)i, (long long)sequence, (long long)n, (long long)each);
    im_buffer b = e->kv_table;
    b.offset += (size_t)at * sizeof block;
    b.nbytes = sizeof block;
    IM_TRY(quiet(e));
    return im_engine_copy_in(e, b, &block, sizeof block);
}

bool im_engine_samples(const im_engine *e)
{
    return e->layout->place.pp == e->layout->mesh.pp - 1 && e->layout->place.tp == 0;
}

im_status im_engine_sampled(im_engine *e, size_t i, int32_t *ids, float *logprob, float *row)
{
    if (i >= e->nrun || e->want[i].mode != IM_MODE_INFER)
        return im_fail(e->ctx, IM_ERR_ARG, "program %zu does not sample", i);
    if (e->layout->place.pp != e->layout->mesh.pp - 1 || ((ids || logprob) && !im_engine_samples(e)))
        return im_fail(e->ctx, IM_ERR_ARG, "program %zu samples on another rank", i);
    IM_TRY(quiet(e));
    size_t B = (size_t)e->want[i].batch, n = B * (size_t)e->want[i].seq_len;
    if (ids)
        IM_TRY(im_engine_copy_out(e, ids, im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_SAMPLE_ID, -1), B * 4));
    if (logprob)
        IM_TRY(im_engine_copy_out(e, logprob, im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_SAMPLE_LOGPROB, -1), B * 4));
    if (row && !e->want[i].all_logits)
        return im_fail(e->ctx, IM_ERR_ARG, "program %zu was not asked for all log-probabilities", i);
    if (row)
        IM_TRY(im_engine_copy_out(e, row, im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_ROW, -1), n * 4));
    return IM_OK;
}

const im_program *im_engine_program(const im_engine *e, size_t i)
{
    return i < e->nrun ? e->run[i].program : NULL;
}

const char *im_engine_instruction(const im_engine *e, size_t program, uint32_t tag, im_str *buf)
{
    buf->len = 0;
    const im_program *p = program < e->nrun ? e->run[program].program : NULL;
    if (!p || tag >= p->nbound)
        return "";
    im_step_print(&p->step[p->bound[tag].step], buf);
    return im_str_text(buf);
}
