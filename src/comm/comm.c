/* comm: the calls. Each is checked here, counted, numbered and pushed; a backend only runs what is right. */
#include "comm/backend.h"

#include <stdlib.h>
#include <string.h>

typedef struct im_comm_split_count {
    uint64_t list; /* hash of its members */
    uint32_t times;
} split_count;

const char *im_comm_op_name(im_comm_op op)
{
    static const char *const names[IM_COMM_OP_COUNT] = {
        [IM_COMM_ALL_REDUCE] = "all_reduce",
        [IM_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [IM_COMM_ALL_GATHER] = "all_gather",
        [IM_COMM_BROADCAST] = "broadcast",
        [IM_COMM_ALL_TO_ALL] = "all_to_all",
        [IM_COMM_SEND] = "send",
        [IM_COMM_RECV] = "recv",
        [IM_COMM_BARRIER] = "barrier",
    };
    return (unsigned)op < IM_COMM_OP_COUNT ? names[op] : "unknown";
}

/* ---- life ------------------------------------------------------------------------- */

im_status im_comm_init(im_comm *c, const im_comm_table *b, im_device *d, int rank, int size, const int *members, uint32_t id, double deadline)
{
    im_context *ctx = im_device_context(d);
    const im_device_config *cfg = im_device_config_of(d);
    im_status status;
    void *p;
    *c = (im_comm){.backend = b, .device = d, .ctx = ctx, .rank = rank, .size = size, .id = id, .deadline = deadline, .queue = IM_QUEUE_MAX};
    if (size > 1 && !cfg->comm_threads && !cfg->comm_inline && !cfg->deferred)
        return im_fail(ctx, IM_ERR_ARG, "a communicator of %d ranks needs a device with comm_threads: an operation waits for the others", size);
    IM_TRY_GOTO(im_alloc(ctx, IM_COMM_CALLS, sizeof *c->call, &p), fini);
    c->call = p;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size * IM_COMM_CALLS, sizeof *c->counts, &p), fini);
    c->counts = p;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size, sizeof *c->sent, &p), fini);
    c->sent = p;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size, sizeof *c->received, &p), fini);
    c->received = p;
    IM_TRY_GOTO(im_alloc(ctx, IM_COMM_PENDING, sizeof *c->pending, &p), fini);
    c->pending = p;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size, sizeof *c->members, &p), fini);
    c->members = p;
    for (int i = 0; i < size; i++)
        c->members[i] = members ? members[i] : i;
    return IM_OK;
fini:
    im_comm_fini(c);
    return status;
}

void im_comm_fini(im_comm *c)
{
    free(c->call);
    free(c->counts);
    free(c->sent);
    free(c->received);
    free(c->pending);
    free(c->members);
    free(c->split);
    *c = (im_comm){0};
}

void im_comm_destroy(im_comm *c)
{
    if (!c)
        return;
    if (c->last.value && im_event_wait(c->device, c->last) != IM_OK)
        im_log(c->ctx, IM_LOG_DEBUG, "comm", "a communicator is destroyed after an error");
    c->backend->destroy(c);
}

int im_comm_rank(const im_comm *c)
{
    return c->rank;
}

int im_comm_size(const im_comm *c)
{
    return c->size;
}

const char *im_comm_backend(const im_comm *c)
{
    while (c->inner)
        c = c->inner;
    return c->backend->name;
}

void im_comm_set_deadline(im_comm *c, double seconds)
{
    for (; c; c = c->inner)
        c->deadline = seconds;
}

double im_comm_deadline(const im_comm *c)
{
    return c->deadline;
}

void im_comm_counts(const im_comm *c, im_comm_count out[IM_COMM_OP_COUNT])
{
    memcpy(out, c->account, sizeof c->account);
}

/* ---- groups ------------------------------------------------------------------------- */

static im_status check_list(im_comm *world, const int *ranks, int n, int *me)
{
    int at = -1;
    if (n < 1)
        return im_fail(world->ctx, IM_ERR_ARG, "a group of %d ranks", n);
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->size)
            return im_fail(world->ctx, IM_ERR_ARG, "a group with rank %d of a world of %d: 0 to %d are possible", ranks[i], world->size,
                           world->size - 1);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return im_fail(world->ctx, IM_ERR_ARG, "a group with rank %d twice", ranks[i]);
        if (ranks[i] == world->rank)
            at = i;
    }
    if (at < 0)
        return im_fail(world->ctx, IM_ERR_ARG, "rank %d makes a group that it is no member of", world->rank);
    *me = at;
    return IM_OK;
}

/* How often this list was split off before; counts this time. */
static im_status count_split(im_comm *c, uint64_t list, uint32_t *times)
{
    for (int i = 0; i < c->nsplit; i++)
        if (c->split[i].list == list) {
            *times = c->split[i].times++;
            return IM_OK;
        }
    split_count *more = realloc(c->split, sizeof *more * (size_t)(c->nsplit + 1));
    if (!more)
        return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for a group");
    c->split = more;
    c->split[c->nsplit++] = (split_count){.list = list, .times = 1};
    *times = 0;
    return IM_OK;
}

im_status im_comm_split(im_comm *world, const int *ranks, int n, im_comm **out)
{
    im_comm_group g = {.ranks = ranks, .size = n};
    IM_TRY(world->backend->error(world));
    IM_TRY(check_list(world, ranks, n, &g.rank));
    void *p;
    IM_TRY(im_alloc(world->ctx, (size_t)n, sizeof(int), &p));
    int *members = p;
    for (int i = 0; i < n; i++)
        members[i] = world->members[ranks[i]];
    g.members = members;
    uint64_t list = im_hash64(members, sizeof(int) * (size_t)n, world->id);
    uint32_t times;
    im_status status = count_split(world, list, &times);
    if (status == IM_OK) {
        uint32_t id = (uint32_t)im_hash64(&times, sizeof times, list);
        g.id = id ? id : 1; /* 0 is the world */
        status = world->backend->split(world, &g, out);
    }
    free(members);
    return status;
}

/* ---- checks --------------------------------------------------------------------------- */

static im_status check_alive(im_comm *c, im_comm_op op)
{
    IM_TRY(c->backend->error(c));
    if (atomic_load_explicit(&c->dead, memory_order_relaxed))
        return im_fail(c->ctx, IM_ERR_ABORTED, "%s: the communicator is dead: an operation on it failed", im_comm_op_name(op));
    return IM_OK;
}

static im_status check_queue(im_comm *c, im_queue *q, im_comm_op op)
{
    if (c->size == 1)
        return IM_OK;
    unsigned id = im_queue_last(q).queue;
    if (id < IM_QUEUE_COMM0)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s on queue %u: a communicator of %d ranks needs a queue from %d up, which has a thread",
                       im_comm_op_name(op), id, c->size, IM_QUEUE_COMM0);
    if (c->queue != IM_QUEUE_MAX && c->queue != id)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s on queue %u: this communicator is used on queue %u; split off another one for another queue",
                       im_comm_op_name(op), id, c->queue);
    c->queue = id;
    return IM_OK;
}

/* Trims b to count elements, which must lie in it and in its arena. */
static im_status fit(im_comm *c, im_comm_op op, im_buffer *b, size_t count, im_dtype t)
{
    size_t size = im_dtype_size(t);
    if (!size || count > SIZE_MAX / size || count * size > b->nbytes)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: %zu x %s do not fit a buffer of %zu bytes", im_comm_op_name(op), count, im_dtype_name(t),
                       b->nbytes);
    b->nbytes = count * size;
    if (!b->nbytes)
        return IM_OK;
    size_t whole = b->arena < IM_CLASS_COUNT ? im_device_reserved(c->device, (im_class)b->arena) : 0;
    if (b->offset > whole || b->nbytes > whole - b->offset)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: buffer %s+%zu, %zu bytes, is outside its arena of %zu bytes", im_comm_op_name(op),
                       im_class_name((im_class)b->arena), b->offset, b->nbytes, whole);
    return IM_OK;
}

static bool overlap(const im_buffer *a, const im_buffer *b)
{
    return a->nbytes && b->nbytes && a->arena == b->arena && a->offset < b->offset + b->nbytes && b->offset < a->offset + a->nbytes;
}

/* The one way that in and out may share memory: `part` at byte `at` of `whole`. */
static im_status check_overlap(im_comm *c, im_comm_op op, const im_buffer *part, const im_buffer *whole, size_t at)
{
    if (!overlap(part, whole) || (part->offset == whole->offset + at))
        return IM_OK;
    return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: the buffers overlap, %s+%zu and +%zu; in place they would be %zu bytes apart", im_comm_op_name(op),
                   im_class_name((im_class)part->arena), part->offset, whole->offset, at);
}

static im_status check_reduce(im_comm *c, im_comm_op op, im_dtype t, im_reduce r)
{
    if (!im_comm_can_reduce(t))
        return im_fail(c->ctx, IM_ERR_UNSUPPORTED, "%s of %s: fp32, fp64, bf16, fp16, i32, i64 and u8 can be reduced", im_comm_op_name(op),
                       im_dtype_name(t));
    if (r != IM_SUM && r != IM_MAX && r != IM_MIN)
        return im_fail(c->ctx, IM_ERR_ARG, "%s: reduction %d is none of sum, max, min", im_comm_op_name(op), (int)r);
    return IM_OK;
}

static im_status check_peer(im_comm *c, im_comm_op op, int peer)
{
    if (peer >= 0 && peer < c->size)
        return IM_OK;
    return im_fail(c->ctx, IM_ERR_ARG, "%s: %s %d in a communicator of %d ranks", im_comm_op_name(op), op == IM_COMM_BROADCAST ? "root" : "peer",
                   peer, c->size);
}

/* ---- the ring and the queue --------------------------------------------------------------- */

/* A free place, with its copy of counts. Waits only when IM_COMM_CALLS are on their way, as a queue does. */
static im_status place_call(im_comm *c, const im_comm_call *call, im_comm_call **out)
{
    if (c->group_first && c->ncall - c->group_at >= IM_COMM_CALLS)
        return im_fail(c->ctx, IM_ERR_ARG, "%s: a group takes at most %d messages", im_comm_op_name(call->op), IM_COMM_CALLS);
    size_t i = c->ncall % IM_COMM_CALLS;
    im_comm_call *p = &c->call[i];
    if (p->event.value)
        IM_TRY(im_event_wait(c->device, p->event));
    size_t *counts = c->counts + i * (size_t)c->size;
    *p = *call;
    p->comm = c;
    p->event = (im_event){0};
    if (call->counts) {
        memcpy(counts, call->counts, sizeof *counts * (size_t)c->size);
        p->counts = counts;
    }
    c->ncall++;
    *out = p;
    return IM_OK;
}

static const void *address(void *const *base, const im_buffer *b)
{
    return b->nbytes ? (const char *)base[b->arena] + b->offset : NULL;
}

/* base: the arenas, by class */
static im_status run_calls(void *arg, void *const *base, int nbase, const im_op_now *now)
{
    (void)nbase, (void)now;
    im_comm_call *first = arg;
    im_comm *c = first->comm;
    for (im_comm_call *x = first; x; x = x->next) {
        x->src = address(base, &x->in);
        x->dst = (void *)(uintptr_t)address(base, &x->out);
    }
    im_status s = c->backend->run(c, first);
    if (s != IM_OK)
        atomic_store(&c->dead, true);
    return s;
}

static im_status push(im_comm *c, im_queue *q, im_comm_call *first)
{
    im_buffer arena[IM_CLASS_COUNT] = {{0}};
    for (im_comm_call *x = first; x; x = x->next) {
        const im_buffer *both[2] = {&x->in, &x->out};
        for (int i = 0; i < 2; i++)
            if (both[i]->nbytes)
                arena[both[i]->arena] = (im_buffer){.arena = both[i]->arena, .nbytes = im_device_reserved(c->device, (im_class)both[i]->arena)};
        c->account[x->op].calls++;
        c->account[x->op].nbytes += x->in.nbytes > x->out.nbytes ? x->in.nbytes : x->out.nbytes;
        if (c->backend->enqueued)
            c->backend->enqueued(c, x);
    }
    im_work w = {.fn = run_calls, .arg = first, .buf = arena, .nbuf = IM_CLASS_COUNT, .name = im_comm_op_name(first->op), .tag = UINT32_MAX};
    im_status s = im_queue_push(q, &w);
    c->last = im_queue_last(q);
    for (im_comm_call *x = first; x; x = x->next) {
        x->event = c->last;
        if (x->done)
            *x->done = c->last;
    }
    return s;
}

static im_status push_one(im_comm *c, im_queue *q, const im_comm_call *call)
{
    im_comm_call *p = NULL;
    IM_TRY(place_call(c, call, &p));
    return push(c, q, p);
}

/* ---- collectives ------------------------------------------------------------------------------ */

static im_status begin_collective(im_comm *c, im_queue *q, im_comm_op op)
{
    IM_TRY(check_alive(c, op));
    if (c->group_depth)
        return im_fail(c->ctx, IM_ERR_ARG, "%s between group_begin and group_end: a group takes send and recv only", im_comm_op_name(op));
    return check_queue(c, q, op);
}

static im_status push_collective(im_comm *c, im_queue *q, im_comm_call *call)
{
    call->seq = c->seq + 1;
    IM_TRY(push_one(c, q, call));
    c->seq++;
    return IM_OK;
}

/* The sum of counts, and of those of the ranks before this one. */
static im_status add_counts(im_comm *c, im_comm_op op, const size_t *counts, size_t *total, size_t *before)
{
    size_t sum = 0;
    for (int i = 0; i < c->size; i++) {
        if (i == c->rank)
            *before = sum;
        if (counts[i] > SIZE_MAX - sum)
            return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: the counts of %d ranks add up to more than an address space", im_comm_op_name(op), c->size);
        sum += counts[i];
    }
    *total = sum;
    return IM_OK;
}

im_status im_comm_all_reduce(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count, im_dtype t, im_reduce r, im_event *done)
{
    im_comm_op op = IM_COMM_ALL_REDUCE;
    IM_TRY(begin_collective(c, q, op));
    IM_TRY(check_reduce(c, op, t, r));
    IM_TRY(fit(c, op, &in, count, t));
    IM_TRY(fit(c, op, &out, count, t));
    IM_TRY(check_overlap(c, op, &in, &out, 0));
    im_comm_call call = {.op = op, .dtype = t, .reduce = r, .peer = -1, .count = count, .in = in, .out = out, .done = done};
    return push_collective(c, q, &call);
}

im_status im_comm_reduce_scatter(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_reduce r, im_event *done)
{
    im_comm_op op = IM_COMM_REDUCE_SCATTER;
    size_t total = 0, before = 0;
    IM_TRY(begin_collective(c, q, op));
    IM_TRY(check_reduce(c, op, t, r));
    IM_TRY(add_counts(c, op, counts, &total, &before));
    IM_TRY(fit(c, op, &in, total, t));
    IM_TRY(fit(c, op, &out, counts[c->rank], t));
    IM_TRY(check_overlap(c, op, &out, &in, before * im_dtype_size(t)));
    im_comm_call call = {.op = op, .dtype = t, .reduce = r, .peer = -1, .count = total, .counts = counts, .in = in, .out = out, .done = done};
    return push_collective(c, q, &call);
}

im_status im_comm_all_gather(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_event *done)
{
    im_comm_op op = IM_COMM_ALL_GATHER;
    size_t total = 0, before = 0;
    IM_TRY(begin_collective(c, q, op));
    IM_TRY(add_counts(c, op, counts, &total, &before));
    IM_TRY(fit(c, op, &in, counts[c->rank], t));
    IM_TRY(fit(c, op, &out, total, t));
    IM_TRY(check_overlap(c, op, &in, &out, before * im_dtype_size(t)));
    im_comm_call call = {.op = op, .dtype = t, .peer = -1, .count = total, .counts = counts, .in = in, .out = out, .done = done};
    return push_collective(c, q, &call);
}

im_status im_comm_broadcast(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int root, im_event *done)
{
    im_comm_op op = IM_COMM_BROADCAST;
    IM_TRY(begin_collective(c, q, op));
    IM_TRY(check_peer(c, op, root));
    IM_TRY(fit(c, op, &b, count, t));
    im_comm_call call = {.op = op, .dtype = t, .peer = root, .count = count, .in = b, .out = b, .done = done};
    return push_collective(c, q, &call);
}

im_status im_comm_all_to_all(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count_per_rank, im_dtype t, im_event *done)
{
    im_comm_op op = IM_COMM_ALL_TO_ALL;
    IM_TRY(begin_collective(c, q, op));
    if (count_per_rank > SIZE_MAX / (size_t)c->size)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: %zu elements for each of %d ranks are more than an address space", im_comm_op_name(op),
                       count_per_rank, c->size);
    IM_TRY(fit(c, op, &in, count_per_rank * (size_t)c->size, t));
    IM_TRY(fit(c, op, &out, count_per_rank * (size_t)c->size, t));
    if (c->size > 1 && overlap(&in, &out))
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: the buffers overlap; it has no form in place", im_comm_op_name(op));
    IM_TRY(check_overlap(c, op, &in, &out, 0));
    im_comm_call call = {.op = op, .dtype = t, .peer = -1, .count = count_per_rank, .in = in, .out = out, .done = done};
    return push_collective(c, q, &call);
}

im_status im_comm_barrier(im_comm *c, im_queue *q, im_event *done)
{
    IM_TRY(begin_collective(c, q, IM_COMM_BARRIER));
    im_comm_call call = {.op = IM_COMM_BARRIER, .dtype = IM_U8, .peer = -1, .done = done};
    return push_collective(c, q, &call);
}

/* ---- messages ---------------------------------------------------------------------------------- */

/* The k-th send to oneself and the k-th receive from oneself are one copy, pushed when the second of them is called. */
static im_status post_to_self(im_comm *c, im_queue *q, const im_comm_call *call)
{
    if (!c->npending || c->pending[0].op == call->op) {
        if (c->npending == IM_COMM_PENDING)
            return im_fail(c->ctx, IM_ERR_ARG, "%s: %d messages to itself have no twin", im_comm_op_name(call->op), IM_COMM_PENDING);
        c->pending[c->npending] = *call;
        c->pending[c->npending++].done = NULL;
        if (call->done)
            *call->done = im_queue_last(q);
        return IM_OK;
    }
    const im_comm_call *first = &c->pending[0], *s = call->op == IM_COMM_SEND ? call : first, *w = call->op == IM_COMM_SEND ? first : call;
    if (s->count != w->count || s->dtype != w->dtype)
        return im_fail(c->ctx, IM_ERR_ARG, "rank %d sends itself %zu x %s, but receives %zu x %s", c->rank, s->count, im_dtype_name(s->dtype),
                       w->count, im_dtype_name(w->dtype));
    im_comm_call copy = *s;
    copy.out = w->out;
    copy.done = call->done;
    memmove(c->pending, c->pending + 1, sizeof *c->pending * (size_t)--c->npending);
    IM_TRY(check_overlap(c, IM_COMM_SEND, &copy.in, &copy.out, 0));
    return push_one(c, q, &copy);
}

static im_status join_group(im_comm *c, im_queue *q, const im_comm_call *call)
{
    if (c->group_queue && c->group_queue != q)
        return im_fail(c->ctx, IM_ERR_ARG, "%s: a group on two queues", im_comm_op_name(call->op));
    im_comm_call *p = NULL;
    IM_TRY(place_call(c, call, &p));
    if (c->group_last)
        c->group_last->next = p;
    else {
        c->group_first = p;
        c->group_at = c->ncall - 1;
    }
    c->group_last = p;
    c->group_queue = q;
    return IM_OK;
}

static im_status post(im_comm *c, im_queue *q, im_comm_op op, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    IM_TRY(check_alive(c, op));
    IM_TRY(check_queue(c, q, op));
    IM_TRY(check_peer(c, op, peer));
    IM_TRY(fit(c, op, &b, count, t));
    im_comm_call call = {.op = op, .dtype = t, .peer = peer, .count = count, .done = done};
    *(op == IM_COMM_SEND ? &call.in : &call.out) = b;
    uint64_t *n = op == IM_COMM_SEND ? &c->sent[peer] : &c->received[peer];
    call.seq = *n + 1;
    if (peer == c->rank)
        IM_TRY(post_to_self(c, q, &call));
    else if (c->group_depth)
        IM_TRY(join_group(c, q, &call));
    else
        IM_TRY(push_one(c, q, &call));
    ++*n;
    return IM_OK;
}

im_status im_comm_send(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    return post(c, q, IM_COMM_SEND, b, count, t, peer, done);
}

im_status im_comm_recv(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    return post(c, q, IM_COMM_RECV, b, count, t, peer, done);
}

im_status im_comm_group_begin(im_comm *c)
{
    IM_TRY(c->backend->error(c));
    c->group_depth++;
    return IM_OK;
}

im_status im_comm_group_end(im_comm *c)
{
    if (!c->group_depth)
        return im_fail(c->ctx, IM_ERR_ARG, "group_end without group_begin");
    if (--c->group_depth || !c->group_first)
        return IM_OK;
    im_comm_call *first = c->group_first;
    im_queue *q = c->group_queue;
    c->group_first = c->group_last = NULL;
    c->group_queue = NULL;
    return push(c, q, first);
}

void im_comm_note(im_comm *c, int64_t step, const char *what)
{
    for (; c; c = c->inner)
        if (c->backend->note)
            c->backend->note(c, step, what);
}

/* ---- failure ---------------------------------------------------------------------------------------- */

im_status im_comm_error(im_comm *c)
{
    IM_TRY(c->backend->error(c));
    if (atomic_load(&c->dead))
        return im_fail(c->ctx, IM_ERR_ABORTED, "the communicator is dead: an operation on it failed");
    return IM_OK;
}

void im_comm_abort(im_comm *c)
{
    atomic_store(&c->dead, true);
    c->backend->abort(c, im_error_text(c->ctx));
}

bool im_comm_dead(const im_comm *c)
{
    for (; c; c = c->inner)
        if (atomic_load(&c->dead) || (c->fate && atomic_load(c->fate)))
            return true;
    return false;
}
