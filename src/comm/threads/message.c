/* message: sends and receives. A send posts where its bytes lie; the receiver copies them and says so. */
#include "comm/threads/threads.h"

#include <string.h>

enum { WAITING, POSTED, OVER };

static im_threads_channel *channel(const im_threads_comm *t, int from, int to)
{
    return &t->group->channel[(size_t)from * (size_t)t->head.size + (size_t)to];
}

static im_status step_send(im_threads_comm *t, im_comm_call *call)
{
    im_threads_channel *ch = channel(t, t->head.rank, call->peer);
    uint64_t taken = atomic_load(&ch->taken);
    if (call->state == WAITING && taken + 1 == call->seq) { /* an earlier one of the same group may still be there */
        im_comm_sign(&t->head, call, &ch->sig);
        ch->src = call->src;
        atomic_store(&ch->posted, call->seq);
        im_threads_ring(&t->group->member[call->peer].bell);
        call->state = POSTED;
    } else if (call->state == POSTED && taken >= call->seq) {
        call->state = OVER;
    }
    return IM_OK;
}

static im_status step_recv(im_threads_comm *t, im_comm_call *call)
{
    im_threads_channel *ch = channel(t, call->peer, t->head.rank);
    if (atomic_load(&ch->posted) < call->seq)
        return IM_OK;
    if (ch->sig.count != call->count || ch->sig.dtype != (uint32_t)call->dtype) {
        im_comm_signature mine;
        im_comm_sign(&t->head, call, &mine);
        return im_comm_fail_message(&t->head, call->peer, t->head.rank, &ch->sig, &mine);
    }
    IM_TRY(im_threads_busy_begin(t, call));
    if (call->out.nbytes)
        memcpy(call->dst, ch->src, call->out.nbytes);
    atomic_store(&ch->taken, call->seq);
    im_threads_busy_end(t);
    im_threads_ring(&t->group->member[call->peer].bell);
    call->state = OVER;
    return IM_OK;
}

/* One look at every call that is not over; the first of those, or NULL. */
static im_status step_all(im_threads_comm *t, im_comm_call *first, im_comm_call **open)
{
    im_comm_call *left = NULL;
    for (im_comm_call *x = first; x; x = x->next) {
        if (x->state != OVER)
            IM_TRY(x->op == IM_COMM_SEND ? step_send(t, x) : step_recv(t, x));
        if (x->state != OVER && !left)
            left = x;
    }
    *open = left;
    return IM_OK;
}

static im_status attempt(im_threads_comm *t, im_comm_call *first)
{
    im_threads_wait w = im_threads_wait_begin(t, first, &t->group->member[t->head.rank].bell);
    im_comm_call *open = first;
    im_status s = IM_OK;
    for (;;) {
        s = step_all(t, first, &open);
        if (s != IM_OK || !open)
            break;
        w.call = open;
        s = im_threads_pause(&w);
        if (s != IM_OK)
            break;
    }
    im_threads_wait_end(&w);
    return s == IM_ERR_TIMEOUT ? im_comm_fail_late(&t->head, open, t->head.deadline, NULL) : s;
}

im_status im_threads_messages(im_threads_comm *t, im_comm_call *first)
{
    for (im_comm_call *x = first; x; x = x->next)
        x->state = WAITING;
    im_status s = attempt(t, first);
    return s == IM_OK ? IM_OK : im_threads_leave(t, s);
}
