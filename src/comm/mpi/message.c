/* message: sends and receives. A letter carries the signature and the bytes of a small message; those of a large one are
 * sent beside it, and received when the letter was read. They are sent so that the send ends when that has happened: who
 * sent what nobody expected learns of it. */
#include "comm/mpi/world.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { WAITING, READ };

static bool is_small(const im_comm_call *x)
{
    return x->count <= IM_MPI_EAGER / im_dtype_size(x->dtype);
}

/* One letter for each message, requests in their order. */
static im_status write_letters(im_mpi_comm *m, im_comm_call *first)
{
    int n = 0;
    for (im_comm_call *x = first; x; x = x->next)
        n++;
    if (n > m->nletter) {
        void *p = realloc(m->letter, sizeof *m->letter * (size_t)n);
        if (!p)
            return im_fail(m->head.ctx, IM_ERR_NOMEM, "no memory for %d messages", n);
        m->letter = p;
        m->nletter = n;
    }
    im_mpi_frame *l = m->letter;
    for (im_comm_call *x = first; x; x = x->next, l++) {
        size_t nbytes = sizeof *l;
        x->state = WAITING;
        if (x->op == IM_COMM_RECV) {
            IM_TRY(im_mpi_receive(m, &m->frames, l, nbytes, x->peer, IM_MPI_LETTER));
            continue;
        }
        im_comm_sign(&m->head, x, &l->sig);
        nbytes = offsetof(im_mpi_frame, bytes) + (is_small(x) ? x->in.nbytes : 0);
        if (is_small(x) && x->in.nbytes)
            memcpy(l->bytes, x->src, x->in.nbytes);
        IM_TRY(im_mpi_send(m, &m->frames, l, nbytes, x->peer, IM_MPI_LETTER, false));
        if (!is_small(x))
            IM_TRY(im_mpi_send(m, &m->pieces, x->src, x->in.nbytes, x->peer, IM_MPI_LETTER_BYTES, true));
    }
    return IM_OK;
}

static im_status read_letter(im_mpi_comm *m, im_comm_call *x, const im_mpi_frame *l)
{
    if (l->sig.count != x->count || l->sig.dtype != (uint32_t)x->dtype || l->sig.seq != x->seq) {
        im_comm_signature mine;
        im_comm_sign(&m->head, x, &mine);
        return im_comm_fail_message(&m->head, x->peer, m->head.rank, &l->sig, &mine);
    }
    if (!is_small(x))
        return im_mpi_receive(m, &m->pieces, x->dst, x->out.nbytes, x->peer, IM_MPI_LETTER_BYTES);
    if (x->out.nbytes)
        memcpy(x->dst, l->bytes, x->out.nbytes);
    return IM_OK;
}

/* Whether an earlier message from the same rank is still on its way: its bytes are received first. */
static bool is_behind(const im_comm_call *first, const im_comm_call *x)
{
    for (; first != x; first = first->next)
        if (first->op == IM_COMM_RECV && first->peer == x->peer && first->state == WAITING)
            return true;
    return false;
}

/* One look at every letter; those that came are read. The first that did not, or NULL. */
static im_status look(im_mpi_comm *m, im_comm_call *first, im_comm_call **open)
{
    int i = 0;
    *open = NULL;
    for (im_comm_call *x = first; x; x = x->next, i++) {
        bool done;
        if (x->state == READ)
            continue;
        IM_TRY(im_mpi_test(m->world, &m->frames, i, 1, &done));
        if (done && x->op == IM_COMM_RECV) {
            if (is_behind(first, x))
                done = false;
            else
                IM_TRY(read_letter(m, x, &m->letter[i]));
        }
        if (done)
            x->state = READ;
        else if (!*open)
            *open = x;
    }
    return IM_OK;
}

static im_status attempt(im_mpi_comm *m, im_comm_call *first)
{
    im_comm_call *open;
    im_mpi_wait wait = {.w = m->world, .deadline = m->head.deadline};
    im_status s;
    IM_TRY(write_letters(m, first));
    for (;;) {
        IM_TRY(look(m, first, &open));
        if (!open)
            break;
        s = im_mpi_pause(&wait);
        if (s != IM_OK)
            goto waited;
    }
    m->frames.n = 0;
    for (open = first; open->next && is_small(open);)
        open = open->next; /* told when it is late: the first that can be */
    s = im_mpi_wait_all(&m->pieces, &wait);
waited:
    if (s == IM_ERR_TIMEOUT)
        return im_comm_fail_late(&m->head, open, m->head.deadline, NULL);
    return s == IM_ERR_ABORTED ? im_mpi_killed(m->head.ctx, m->world, im_comm_op_name(open->op)) : s;
}

im_status im_mpi_messages(im_mpi_comm *m, im_comm_call *first)
{
    im_status s = attempt(m, first);
    if (s == IM_OK)
        return IM_OK;
    im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), NULL, NULL);
    im_mpi_give_up(m->world, &m->frames);
    im_mpi_give_up(m->world, &m->pieces);
    return s;
}
