/* engine: parameters in and out, snapshots, and the search for a value that is not finite. */
#include "engine/agree.h"
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------ */

bool im_engine_has_state(const im_engine *e, im_state_kind k)
{
    switch (k) {
    case IM_STATE_WEIGHT: return true;
    case IM_STATE_MASTER: return e->trains && e->plan.precision != IM_F32;
    default: return e->trains;
    }
}

static im_buffer state_buffer(const im_engine *e, im_state_kind k, size_t bucket)
{
    const im_program *p = e->run[0].program;
    int zero = e->plan.zero;
    switch (k) {
    case IM_STATE_WEIGHT: return im_program_bucket_buffer(p, IM_ROLE_WEIGHT, zero == 3, bucket);
    case IM_STATE_GRAD: return im_program_bucket_buffer(p, IM_ROLE_GRAD, zero >= 2, bucket);
    case IM_STATE_MASTER: return im_program_bucket_buffer(p, IM_ROLE_OPT, 0, bucket);
    case IM_STATE_M: return im_program_bucket_buffer(p, IM_ROLE_OPT, 1, bucket);
    default: return im_program_bucket_buffer(p, IM_ROLE_OPT, 2, bucket);
    }
}

static im_dtype state_dtype(const im_engine *e, im_state_kind k)
{
    return k == IM_STATE_WEIGHT ? e->plan.precision : IM_F32;
}

/* The elements of a bucket [*first, *end) of which this rank holds a state: all, or its shard under ZeRO. */
static void held_range(const im_engine *e, im_state_kind k, size_t bucket, size_t *first, size_t *end)
{
    static const uint8_t sharded_from[] = {[IM_STATE_WEIGHT] = 3, [IM_STATE_MASTER] = 1, [IM_STATE_M] = 1, [IM_STATE_V] = 1, [IM_STATE_GRAD] = 2};
    const im_bucket *b = &e->layout->bucket[bucket];
    int r = e->layout->place.dp;
    bool shard = e->plan.zero >= sharded_from[k];
    *first = shard ? b->shard[r] : 0;
    *end = shard ? b->shard[r + 1] : b->count;
}

static im_status check_range(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count)
{
    if (!im_engine_has_state(e, k))
        return im_fail(e->ctx, IM_ERR_ARG, "this run has no such state (%d)", (int)k);
    if (bucket >= e->plan.model->nbucket || !e->layout->bucket[bucket].held)
        return im_fail(e->ctx, IM_ERR_ARG, "bucket %zu is not held by this rank", bucket);
    size_t all = e->layout->bucket[bucket].count;
    if (first > all || count > all - first)
        return im_fail(e->ctx, IM_ERR_ARG, "elements %zu + %zu of bucket %zu, which has %zu", first, count, bucket, all);
    return IM_OK;
}

static void widen(const uint16_t *in, size_t n, float *out)
{
    for (size_t i = n; i-- > 0;) { /* backwards: in may lie at the start of out */
        uint32_t u = (uint32_t)in[i] << 16;
        memcpy(&out[i], &u, 4);
    }
}

im_status im_engine_read(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count, float *out)
{
    size_t low, high, size = im_dtype_size(state_dtype(e, k));
    IM_TRY(check_range(e, k, bucket, first, count));
    held_range(e, k, bucket, &low, &high);
    if (count && (first < low || first + count > high))
        return im_fail(e->ctx, IM_ERR_ARG, "elements %zu + %zu of bucket %zu: this rank holds %zu to %zu", first, count, bucket, low, high);
    IM_TRY(im_device_sync(e->device));
    im_buffer b = state_buffer(e, k, bucket);
    b.offset += (first - low) * size;
    b.nbytes -= (first - low) * size;
    IM_TRY(im_engine_copy_out(e, out, b, count * size));
    if (size == 2)
        widen((const uint16_t *)out, count, out);
    return IM_OK;
}

/* The part of the elements that this rank holds. */
static im_status write_stored(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count, const float *in)
{
    size_t low, high, size = im_dtype_size(state_dtype(e, k));
    held_range(e, k, bucket, &low, &high);
    size_t from = first > low ? first : low, to = first + count < high ? first + count : high;
    if (from >= to)
        return IM_OK;
    in += from - first;
    count = to - from;
    im_buffer b = state_buffer(e, k, bucket);
    b.offset += (from - low) * size;
    b.nbytes -= (from - low) * size;
    if (size == 4)
        return im_engine_copy_in(e, b, in, count * 4);
    uint16_t *half = (uint16_t *)e->convert;
    for (size_t at = 0; at < count; at += IM_CONVERT_ELEMENTS) {
        size_t n = count - at < IM_CONVERT_ELEMENTS ? count - at : IM_CONVERT_ELEMENTS;
        im_bf16_round(in + at, n, half);
        IM_TRY(im_engine_copy_in(e, b, half, n * 2));
        b.offset += n * 2;
        b.nbytes -= n * 2;
    }
    return IM_OK;
}

im_status im_engine_write(im_engine *e, im_state_kind k, size_t bucket, size_t first, size_t count, const float *in)
{
    IM_TRY(check_range(e, k, bucket, first, count));
    IM_TRY(im_device_sync(e->device));
    if (k == IM_STATE_WEIGHT && im_engine_has_state(e, IM_STATE_MASTER))
        IM_TRY(write_stored(e, IM_STATE_MASTER, bucket, first, count, in));
    return write_stored(e, k, bucket, first, count, in);
}

typedef struct fill_job {
    im_fill_fn fill;
    void *arg;
    im_dtype stored;
} fill_job;

static im_status run_fill(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np, (void)now;
    fill_job *job = arg;
    return job->fill(job->arg, p[0], job->stored, p[1]);
}

im_status im_engine_fill(im_engine *e, size_t bucket, im_fill_fn fill, void *arg)
{
    IM_TRY(check_range(e, IM_STATE_WEIGHT, bucket, 0, 0));
    if (e->plan.zero)
        return im_fail(e->ctx, IM_ERR_UNSUPPORTED, "filling whole buckets under ZeRO %d", e->plan.zero);
    IM_TRY(im_device_sync(e->device));
    fill_job job = {fill, arg, e->plan.precision};
    im_buffer b[2] = {state_buffer(e, IM_STATE_WEIGHT, bucket), {0}};
    if (im_engine_has_state(e, IM_STATE_MASTER))
        b[1] = state_buffer(e, IM_STATE_MASTER, bucket);
    im_queue *q = im_device_queue(e->device, IM_QUEUE_COPY);
    if (!q)
        return im_error_code(e->ctx);
    im_work w = {.fn = run_fill, .arg = &job, .buf = b, .nbuf = 2, .name = "fill weights", .tag = UINT32_MAX};
    IM_TRY(im_queue_push(q, &w));
    return im_event_wait(e->device, im_queue_last(q));
}

/* ---- snapshots ---------------------------------------------------------------------- */

static im_status run_item(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np, (void)now;
    const im_snapshot_item *it = arg;
    it->job->write(it->job->arg, it->kind, it->bucket, it->stored, p[0], it->first, it->count);
    return IM_OK;
}

static im_status run_end(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)p, (void)np, (void)now;
    const im_snapshot *job = arg;
    job->end(job->arg);
    return IM_OK;
}

static im_status push_state(im_engine *e, im_queue *io, im_state_kind k, size_t bucket, size_t *nitem)
{
    im_buffer buf = state_buffer(e, k, bucket);
    size_t first, end;
    held_range(e, k, bucket, &first, &end);
    im_snapshot_item *it = &e->item[(*nitem)++];
    *it = (im_snapshot_item){.job = &e->snapshot, .kind = k, .bucket = bucket, .first = first, .count = end - first, .stored = state_dtype(e, k)};
    im_work w = {.fn = run_item, .arg = it, .buf = &buf, .nbuf = 1, .name = "write checkpoint", .tag = UINT32_MAX};
    return im_queue_push(io, &w);
}

im_status im_engine_snapshot(im_engine *e, const im_snapshot *s, im_event *done)
{
    bool over = true;
    IM_TRY(im_event_poll(e->device, e->snapshot_end, &over));
    if (!over)
        return im_fail(e->ctx, IM_ERR_INTERNAL, "a snapshot is still being written");
    im_queue *io = im_device_queue(e->device, IM_QUEUE_IO);
    if (!io)
        return im_error_code(e->ctx);
    e->snapshot = *s;
    for (unsigned q = 0; q < IM_QUEUE_MAX; q++)
        if (q != IM_QUEUE_IO && e->used[q])
            IM_TRY(im_queue_wait(io, im_queue_last(im_device_queue(e->device, q))));
    size_t nitem = 0;
    for (size_t b = 0; b < e->plan.model->nbucket; b++) {
        if (!e->layout->bucket[b].held)
            continue;
        static const im_state_kind kinds[] = {IM_STATE_WEIGHT, IM_STATE_MASTER, IM_STATE_M, IM_STATE_V};
        for (size_t k = 0; k < IM_COUNT_OF(kinds); k++)
            if (im_engine_has_state(e, kinds[k]))
                IM_TRY(push_state(e, io, kinds[k], b, &nitem));
        e->written[b] = im_queue_last(io);
    }
    im_work w = {.fn = run_end, .arg = &e->snapshot, .name = "end of checkpoint", .tag = UINT32_MAX};
    IM_TRY(im_queue_push(io, &w));
    e->snapshot_end = im_queue_last(io);
    if (done)
        *done = e->snapshot_end;
    return IM_OK;
}

/* ---- diagnosis ------------------------------------------------------------------------ */

/* Index of the first value of a buffer that is not finite, -1 when all are. */
static im_status probe(im_engine *e, im_buffer b, im_dtype t, double out[2])
{
    im_op_args a = {.n = 2};
    a.v[0] = im_view_1d(t, (int64_t)(b.nbytes / im_dtype_size(t)));
    a.v[1] = im_view_1d(IM_F64, 2);
    im_op_state *s = NULL;
    IM_TRY(im_op_prepare(e->device, &im_op_finite, &a, &s));
    im_queue *q = im_device_queue(e->device, IM_QUEUE_COMPUTE);
    im_buffer both[2] = {b, e->probe};
    im_op_now now = {0};
    im_status status = im_op_run(s, q, both, e->scratch, &now, UINT32_MAX);
    if (status == IM_OK)
        status = im_event_wait(e->device, im_queue_last(q));
    im_op_destroy(s);
    IM_TRY(status);
    return im_engine_copy_out(e, out, e->probe, 2 * sizeof(double));
}

static const char *kind_of(double x)
{
    return x != x ? "NaN" : x > 0 ? "infinity" : "-infinity";
}

static im_status probe_weights(im_engine *e, im_str *out, bool *found)
{
    for (size_t b = 0; b < e->plan.model->nbucket; b++) {
        const im_bucket *k = &e->layout->bucket[b];
        size_t low, high;
        double at[2];
        held_range(e, IM_STATE_WEIGHT, b, &low, &high);
        if (!k->held || low == high)
            continue;
        IM_TRY(probe(e, state_buffer(e, IM_STATE_WEIGHT, b), e->plan.precision, at));
        if (at[0] < 0)
            continue;
        at[0] += (double)low;
        size_t i = 0;
        while (i + 1 < k->nseg && k->seg[i + 1].local0 <= (size_t)at[0])
            i++;
        im_str_printf(out, "parameter %s: %s at element %.0f", e->plan.model->param[k->seg[i].param].name, kind_of(at[1]),
                      at[0] - (double)k->seg[i].local0);
        *found = true;
        return IM_OK;
    }
    return IM_OK;
}

static void tell(const im_engine *e, const im_program *p, const im_bound *x, int o, const double at[2], im_str *out)
{
    const im_step *s = &p->step[x->step];
    bool unit = s->verb == IM_FORWARD || s->verb == IM_BACKWARD || s->verb == IM_LOSS;
    if (unit) {
        const im_unit *u = &e->plan.model->unit[s->target];
        if (u->type == IM_UNIT_BLOCK)
            im_str_printf(out, "block %d, ", u->block);
        else
            im_str_append(out, u->type == IM_UNIT_EMBED ? "embedding, " : "head, ");
    }
    im_str_printf(out, "%s of %s",
                  x->value[o].role == IM_ROLE_GRAD ? "parameter gradient"
                  : s->verb == IM_BACKWARD         ? "gradient"
                                                   : "output",
                  x->op->label);
    if (s->mb >= 0)
        im_str_printf(out, ", micro-batch %d", s->mb);
    im_str_printf(out, ": %s at element %.0f (", kind_of(at[1]), at[0]);
    im_step_print(s, out);
    im_str_append(out, ")");
}

static bool is_float(int t)
{
    return t == IM_F32 || t == IM_F64 || t == IM_BF16;
}

/* Runs op i and looks at what it wrote. */
static im_status probe_op(im_engine *e, im_runnable *r, uint32_t i, const im_op_now *now, const im_source *src, im_str *out, bool *found)
{
    const im_bound *x = &r->program->bound[i];
    IM_TRY(im_engine_enqueue_op(e, r, i, now, src));
    if (!x->op->kind)
        return IM_OK; /* a message may wait for one that comes later in the program; what it brings is looked at where it is used */
    IM_TRY(im_event_wait(e->device, r->done[i]));
    for (int o = 0; o < x->op->args.n; o++) {
        im_buffer b = x->buf[o];
        if (x->op->use[o].access == IM_READ || !x->op->args.v[o].ndim || !is_float(x->op->args.v[o].dtype) || x->hi[o] == x->lo[o])
            continue;
        size_t skip = b.nbytes - (x->hi[o] - x->lo[o]);
        b.offset += skip;
        b.nbytes -= skip;
        double at[2];
        IM_TRY(probe(e, b, (im_dtype)x->op->args.v[o].dtype, at));
        /* a query that sees nothing has a log-sum-exp of -inf: not an error */
        if (at[0] < 0 || (x->value[o].role == IM_ROLE_SAVED && x->value[o].index == IM_SAVED_LSE))
            continue;
        tell(e, r->program, x, o, at, out);
        *found = true;
        return IM_OK;
    }
    return IM_OK;
}

/* Looks at each op until one's result is not finite; *at is its index. The other ranks' collectives still have to be met. */
static im_status probe_program(im_engine *e, im_runnable *r, const im_op_now *now, const im_source *src, im_str *out, bool *found, uint32_t *at)
{
    bool alone = im_engine_ranks(e) == 1;
    for (uint32_t k = 0; k < r->program->nbound && !(*found && alone); k++) {
        int verb = r->program->step[r->program->bound[k].step].verb;
        if (verb == IM_CLIP || verb == IM_UPDATE || verb == IM_COUNT)
            break; /* nothing may change */
        if (*found) {
            IM_TRY(im_engine_enqueue_op(e, r, k, now, src));
            continue;
        }
        IM_TRY(probe_op(e, r, k, now, src, out, found));
        *at = k;
    }
    return im_device_sync(e->device);
}

/* The finding of the rank that came to it first, on all ranks. */
static im_status share_finding(im_engine *e, uint32_t at, im_str *out, bool *found)
{
    char text[512];
    int ranks = im_engine_ranks(e);
    if (ranks == 1)
        return IM_OK;
    double none = 1e18, key = *found ? (double)at * ranks + im_engine_rank(e) : none;
    IM_TRY(im_engine_combine(e, &key, 1, IM_MIN));
    *found = key < none;
    if (!*found)
        return IM_OK;
    int first = (int)((int64_t)key % ranks);
    snprintf(text, sizeof text, "%s, on rank %d", im_str_text(out), first);
    IM_TRY(im_engine_share(e, text, sizeof text, first));
    text[sizeof text - 1] = 0;
    out->len = 0;
    im_str_append(out, text);
    return IM_OK;
}

im_status im_engine_diagnose(im_engine *e, size_t i, const im_op_now *now, const im_source *src, im_str *out)
{
    bool found = false;
    uint32_t at = 0;
    im_comm_note(e->world, now->step + 1, "search for what is not finite");
    IM_TRY(im_device_sync(e->device));
    IM_TRY(probe_weights(e, out, &found));
    if (found)
        im_str_append(out, ", before the step");
    double anywhere = found;
    IM_TRY(im_engine_combine(e, &anywhere, 1, IM_MAX));
    e->last_run = i;
    if (!anywhere)
        IM_TRY(probe_program(e, &e->run[i], now, src, out, &found, &at));
    IM_TRY(share_finding(e, at, out, &found));
    if (!found)
        im_str_append(out, "every unit's values are finite; the sum of squares is not (gradients too large for fp32)");
    return IM_OK;
}

im_status im_engine_find_bad_weight(im_engine *e, im_str *out)
{
    bool found = false;
    IM_TRY(im_device_sync(e->device));
    IM_TRY(probe_weights(e, out, &found));
    IM_TRY(share_finding(e, 0, out, &found));
    if (!found)
        im_str_append(out, "a master weight that bf16 still holds");
    return IM_OK;
}
