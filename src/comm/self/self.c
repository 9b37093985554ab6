/* self: the communicator of one rank. A sum over one rank is a copy; a message to oneself waits for its twin.
 *
 * Sends and receives between the one rank and itself meet in a FIFO: inside a group (or one after the other) the
 * k-th send is copied to the k-th receive when both are there.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

enum { IM_SELF_PENDING = 64 };

typedef struct im_self_message {
    im_buffer buf;
    size_t nbytes;
    im_dtype dtype;
} im_self_message;

struct im_comm {
    im_device *device;
    im_context *ctx;
    im_self_message sent[IM_SELF_PENDING], wanted[IM_SELF_PENDING];
    int nsent, nwanted;
    int group_depth;
    bool dead;
};

im_status im_comm_self(im_device *d, im_comm **out)
{
    void *p;
    IM_TRY(im_alloc(im_device_context(d), 1, sizeof(im_comm), &p));
    im_comm *c = p;
    c->device = d;
    c->ctx = im_device_context(d);
    *out = c;
    return IM_OK;
}

im_status im_comm_split(im_comm *world, const int *ranks, int n, im_comm **out)
{
    if (n != 1 || ranks[0] != 0)
        return im_fail(world->ctx, IM_ERR_ARG, "a group of %d ranks in a world of 1: only [0] is possible", n);
    return im_comm_self(world->device, out);
}

void im_comm_destroy(im_comm *c)
{
    free(c);
}

int im_comm_rank(const im_comm *c)
{
    (void)c;
    return 0;
}

int im_comm_size(const im_comm *c)
{
    (void)c;
    return 1;
}

const char *im_comm_backend(const im_comm *c)
{
    (void)c;
    return "self";
}

static im_status move_bytes(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)np;
    memmove(p[1], p[0], (size_t)now->pos);
    return IM_OK;
}

static im_status check(im_comm *c, const char *what, size_t count, im_dtype t, const im_buffer *b, size_t *nbytes)
{
    if (c->dead)
        return im_fail(c->ctx, IM_ERR_ABORTED, "%s: the communicator was aborted", what);
    size_t size = im_dtype_size(t);
    if (!size || count > SIZE_MAX / size || count * size > b->nbytes)
        return im_fail(c->ctx, IM_ERR_INTERNAL, "%s: %zu x %s do not fit a buffer of %zu bytes", what, count,
                       im_dtype_name(t), b->nbytes);
    *nbytes = count * size;
    return IM_OK;
}

/* out = in, as one work item; nothing to do in place */
static im_status copy(im_comm *c, im_queue *q, const char *what, im_buffer in, im_buffer out, size_t count, im_dtype t, im_event *done)
{
    size_t nbytes;
    IM_TRY(check(c, what, count, t, &in, &nbytes));
    IM_TRY(check(c, what, count, t, &out, &nbytes));
    bool same = in.arena == out.arena && in.offset == out.offset;
    if (nbytes && !same) {
        im_buffer both[2] = {in, out};
        im_work w = {.fn = move_bytes, .buf = both, .nbuf = 2, .name = what, .tag = UINT32_MAX};
        w.now.pos = (int64_t)nbytes;
        IM_TRY(im_queue_push(q, &w));
    }
    if (done)
        *done = im_queue_last(q);
    return IM_OK;
}

im_status im_comm_all_reduce(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count, im_dtype t, im_reduce r, im_event *done)
{
    (void)r;
    return copy(c, q, "all_reduce", in, out, count, t, done);
}

im_status im_comm_reduce_scatter(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_reduce r, im_event *done)
{
    (void)r;
    return copy(c, q, "reduce_scatter", in, out, counts[0], t, done);
}

im_status im_comm_all_gather(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_event *done)
{
    return copy(c, q, "all_gather", in, out, counts[0], t, done);
}

im_status im_comm_broadcast(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int root, im_event *done)
{
    if (root != 0)
        return im_fail(c->ctx, IM_ERR_ARG, "broadcast: root %d in a world of 1", root);
    return copy(c, q, "broadcast", b, b, count, t, done);
}

im_status im_comm_all_to_all(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count_per_rank, im_dtype t, im_event *done)
{
    return copy(c, q, "all_to_all", in, out, count_per_rank, t, done);
}

/* Copies every send that has its receive. */
static im_status match(im_comm *c, im_queue *q)
{
    while (c->nsent && c->nwanted) {
        im_self_message s = c->sent[0], w = c->wanted[0];
        if (s.nbytes != w.nbytes || s.dtype != w.dtype)
            return im_fail(c->ctx, IM_ERR_ARG, "send of %zu bytes of %s meets a receive of %zu bytes of %s", s.nbytes,
                           im_dtype_name(s.dtype), w.nbytes, im_dtype_name(w.dtype));
        memmove(c->sent, c->sent + 1, sizeof c->sent[0] * (size_t)--c->nsent);
        memmove(c->wanted, c->wanted + 1, sizeof c->wanted[0] * (size_t)--c->nwanted);
        IM_TRY(copy(c, q, "send", s.buf, w.buf, s.nbytes, IM_U8, NULL));
    }
    return IM_OK;
}

static im_status post(im_comm *c, im_queue *q, bool send, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    const char *what = send ? "send" : "recv";
    size_t nbytes;
    if (peer != 0)
        return im_fail(c->ctx, IM_ERR_ARG, "%s: peer %d in a world of 1", what, peer);
    IM_TRY(check(c, what, count, t, &b, &nbytes));
    int *n = send ? &c->nsent : &c->nwanted;
    im_self_message *list = send ? c->sent : c->wanted;
    if (*n == IM_SELF_PENDING)
        return im_fail(c->ctx, IM_ERR_ARG, "%s: %d messages to itself have no twin", what, IM_SELF_PENDING);
    list[(*n)++] = (im_self_message){b, nbytes, t};
    if (!c->group_depth)
        IM_TRY(match(c, q));
    if (done)
        *done = im_queue_last(q);
    return IM_OK;
}

im_status im_comm_send(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    return post(c, q, true, b, count, t, peer, done);
}

im_status im_comm_recv(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done)
{
    return post(c, q, false, b, count, t, peer, done);
}

im_status im_comm_barrier(im_comm *c, im_queue *q, im_event *done)
{
    if (c->dead)
        return im_fail(c->ctx, IM_ERR_ABORTED, "barrier: the communicator was aborted");
    if (done)
        *done = im_queue_last(q);
    return IM_OK;
}

im_status im_comm_group_begin(im_comm *c)
{
    c->group_depth++;
    return IM_OK;
}

im_status im_comm_group_end(im_comm *c)
{
    if (!c->group_depth)
        return im_fail(c->ctx, IM_ERR_ARG, "group_end without group_begin");
    if (--c->group_depth == 0)
        return match(c, im_device_queue(c->device, IM_QUEUE_COMM0));
    return IM_OK;
}

im_status im_comm_error(im_comm *c)
{
    return c->dead ? im_fail(c->ctx, IM_ERR_ABORTED, "the communicator was aborted") : IM_OK;
}

void im_comm_abort(im_comm *c)
{
    c->dead = true;
}
