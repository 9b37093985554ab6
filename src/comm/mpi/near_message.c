/* near_message: sends and receives between processes of one machine. A send posts where its bytes lie; the receiver pulls them and says
 * so. A small message is posted with its bytes, and sent with that. */
#include "comm/mpi/world.h"

#include <string.h>

enum { WAITING, POSTED, OVER };

static bool is_small(const im_comm_call *x)
{
    return x->count <= IM_MPI_EAGER / im_dtype_size(x->dtype);
}

/* An earlier one of the same group may still be there. */
static void step_send(im_mpi_comm *m, im_comm_call *x)
{
    im_near_channel *ch = im_near_channel_of(m->near, m->head.rank, x->peer);
    uint64_t taken = atomic_load(&ch->taken);
    if (x->state == WAITING && taken + 1 == x->seq) {
        im_comm_sign(&m->head, x, &ch->frame.sig);
        ch->src = x->src;
        if (is_small(x) && x->in.nbytes)
            memcpy(ch->frame.bytes, x->src, x->in.nbytes);
        atomic_store(&ch->posted, x->seq);
        im_near_ring(im_near_cell_of(m->near, x->peer));
        x->state = is_small(x) ? OVER : POSTED;
    } else if (x->state == POSTED && taken >= x->seq) {
        x->state = OVER;
    }
}

static im_status step_recv(im_mpi_comm *m, im_comm_call *x)
{
    im_near_channel *ch = im_near_channel_of(m->near, x->peer, m->head.rank);
    if (atomic_load(&ch->posted) < x->seq)
        return IM_OK;
    if (ch->frame.sig.count != x->count || ch->frame.sig.dtype != (uint32_t)x->dtype || ch->frame.sig.seq != x->seq) {
        im_comm_signature mine, sent = ch->frame.sig;
        im_comm_sign(&m->head, x, &mine);
        return im_comm_fail_message(&m->head, x->peer, m->head.rank, &sent, &mine);
    }
    if (is_small(x) && x->out.nbytes)
        memcpy(x->dst, ch->frame.bytes, x->out.nbytes);
    else
        IM_TRY(im_mpi_pull(m, x, x->peer, ch->src, x->dst, x->out.nbytes));
    atomic_store(&ch->taken, x->seq);
    im_near_ring(im_near_cell_of(m->near, x->peer));
    x->state = OVER;
    return IM_OK;
}

/* One look at every call that is not over; the first of those, or NULL. */
static im_status step_all(im_mpi_comm *m, im_comm_call *first, im_comm_call **open)
{
    *open = NULL;
    for (im_comm_call *x = first; x; x = x->next) {
        if (x->state != OVER && x->op == IM_COMM_SEND)
            step_send(m, x);
        else if (x->state != OVER)
            IM_TRY(step_recv(m, x));
        if (x->state != OVER && !*open)
            *open = x;
    }
    return IM_OK;
}

static im_status attempt(im_mpi_comm *m, im_comm_call *first)
{
    im_near_wait w = im_mpi_near_wait(m);
    im_comm_call *open = first;
    im_status s = IM_OK;
    for (im_comm_call *x = first; x; x = x->next)
        x->state = WAITING;
    for (;;) {
        s = step_all(m, first, &open);
        if (s != IM_OK || !open)
            break;
        s = im_near_pause(&w);
        if (s != IM_OK)
            break;
    }
    im_near_wait_end(&w);
    if (s == IM_ERR_TIMEOUT)
        return im_comm_fail_late(&m->head, open, m->head.deadline, NULL);
    return s == IM_ERR_ABORTED ? im_mpi_killed(m->head.ctx, m->world, im_comm_op_name(open->op)) : s;
}

im_status im_mpi_near_messages(im_mpi_comm *m, im_comm_call *first)
{
    im_status s = attempt(m, first);
    if (s != IM_OK)
        im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), NULL, NULL);
    return s;
}
