/* near_message: sends and receives over memory that both share: a belt for each direction, the signature with the first piece. A large
 * message is sent when it was taken; so who sent what nobody expected learns of it. */
#include "comm/mpi/world.h"

#include <string.h>

enum { OVER = -1 }; /* of a call's state; else: pieces that are done */

static size_t bytes_of(const im_comm_call *x)
{
    return x->count * im_dtype_size(x->dtype);
}

static uint64_t pieces_of(const im_comm_call *x)
{
    uint64_t n = (bytes_of(x) + IM_NEAR_LANE_PIECE - 1) / IM_NEAR_LANE_PIECE;
    return n ? n : 1;
}

static size_t cut(const im_comm_call *x, int j, size_t *begin)
{
    *begin = (size_t)j * IM_NEAR_LANE_PIECE;
    size_t left = bytes_of(x) - *begin;
    return left < IM_NEAR_LANE_PIECE ? left : IM_NEAR_LANE_PIECE;
}

static bool step_send(im_mpi_comm *m, im_comm_call *x)
{
    im_near *near = m->near;
    uint64_t *g = &near->sent[x->peer];
    size_t begin, n;
    char *bytes;
    if ((uint64_t)x->state == pieces_of(x)) {
        im_near_slot *last = im_near_lane_slot(near, m->head.rank, x->peer, *g - 1, &bytes);
        if (bytes_of(x) > IM_MPI_EAGER && !im_near_fill_begin(last))
            return false;
        x->state = OVER;
        return true;
    }
    im_near_slot *s = im_near_lane_slot(near, m->head.rank, x->peer, *g, &bytes);
    if (!im_near_fill_begin(s))
        return false;
    if (!x->state)
        im_comm_sign(&m->head, x, &s->sig);
    n = cut(x, x->state, &begin);
    if (n)
        memcpy(bytes, (const char *)x->src + begin, n);
    im_near_fill_end(s, (*g)++, 1);
    im_near_ring(im_near_cell_of(near, x->peer));
    x->state++;
    return true;
}

static im_status step_recv(im_mpi_comm *m, im_comm_call *x, bool *moved)
{
    im_near *near = m->near;
    uint64_t *g = &near->received[x->peer];
    size_t begin, n;
    char *bytes;
    im_near_slot *s = im_near_lane_slot(near, x->peer, m->head.rank, *g, &bytes);
    *moved = im_near_is_filled(s, *g);
    if (!*moved)
        return IM_OK;
    if (!x->state && (s->sig.count != x->count || s->sig.dtype != (uint32_t)x->dtype || s->sig.seq != x->seq)) {
        im_comm_signature mine, sent = s->sig;
        im_comm_sign(&m->head, x, &mine);
        return im_comm_fail_message(&m->head, x->peer, m->head.rank, &sent, &mine);
    }
    n = cut(x, x->state, &begin);
    if (n)
        memcpy((char *)x->dst + begin, bytes, n);
    im_near_take(s);
    im_near_ring(im_near_cell_of(near, x->peer));
    ++*g;
    if ((uint64_t)++x->state == pieces_of(x))
        x->state = OVER;
    return IM_OK;
}

/* Whether an earlier one of the same direction and peer is still on its way: a belt keeps the order. */
static bool is_behind(const im_comm_call *first, const im_comm_call *x)
{
    for (; first != x; first = first->next)
        if (first->op == x->op && first->peer == x->peer && first->state != OVER)
            return true;
    return false;
}

/* One step of every message that can make one; the first that is not over, or NULL. */
static im_status step_all(im_mpi_comm *m, im_comm_call *first, im_comm_call **open, bool *moved)
{
    *open = NULL;
    *moved = false;
    for (im_comm_call *x = first; x; x = x->next) {
        bool one = false;
        if (x->state != OVER && !is_behind(first, x)) {
            if (x->op == IM_COMM_SEND)
                one = step_send(m, x);
            else
                IM_TRY(step_recv(m, x, &one));
        }
        *moved |= one;
        if (x->state != OVER && !*open)
            *open = x;
    }
    return IM_OK;
}

static im_status attempt(im_mpi_comm *m, im_comm_call *first)
{
    im_near_wait w = {.mine = im_near_cell_of(m->near, m->head.rank), .dead = &m->world->dead, .spin = m->world->spin, .deadline = m->head.deadline};
    im_comm_call *open = first;
    im_status s = IM_OK;
    for (im_comm_call *x = first; x; x = x->next)
        x->state = 0;
    while (s == IM_OK) {
        bool moved;
        s = step_all(m, first, &open, &moved);
        if (s != IM_OK || !open)
            break;
        if (moved)
            im_near_went_on(&w);
        else
            s = im_near_pause(&w);
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
