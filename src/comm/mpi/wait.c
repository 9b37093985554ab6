/* wait: requests, and how to wait for them with few cores. */
#include "comm/mpi/world.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOKS = 32 }; /* between two looks at the clock */

/* How long a wait looks again and again before it sleeps between looks, by im_mpi_waiting; a sleep below 100 us takes a
 * core from who computes without an answer that comes earlier. */
static const double AWAKE[] = {[IM_MPI_SPIN] = 2e-3, [IM_MPI_YIELD] = 1e-3, [IM_MPI_SLEEP] = 20e-6};
enum {
    NAP_NS = 100000,
    NAPS = 8,
    LONGEST = 4
}; /* naps of one length; after them they are longer, up to 0.4 ms: the system's buffers last for that */

void im_mpi_set_free(im_mpi_set *s)
{
    free(s->request);
    *s = (im_mpi_set){0};
}

static void *at(const im_comm_mpi_world *w, const im_mpi_set *s, int i)
{
    return s->request + (size_t)i * w->mpi->request_bytes;
}

static im_status grow(im_comm_mpi_world *w, im_mpi_set *s)
{
    if (s->n < s->cap)
        return IM_OK;
    int cap = s->cap ? 2 * s->cap : 16;
    char *more = realloc(s->request, (size_t)cap * w->mpi->request_bytes);
    if (!more)
        return im_fail(w->ctx, IM_ERR_NOMEM, "no memory for %d messages", cap);
    s->request = more;
    s->cap = cap;
    return IM_OK;
}

im_status im_mpi_send(im_mpi_comm *m, im_mpi_set *s, const void *p, size_t nbytes, int peer, int tag, bool sync)
{
    im_comm_mpi_world *w = m->world;
    for (size_t done = 0, n; done < nbytes; done += n) {
        n = nbytes - done < w->piece ? nbytes - done : w->piece;
        IM_TRY(grow(w, s));
        pthread_mutex_lock(&w->lock);
        int e = w->mpi->send(w->state, IM_MPI_DATA, (const char *)p + done, n, m->head.members[peer], m->tag + tag, sync, at(w, s, s->n));
        pthread_mutex_unlock(&w->lock);
        if (e)
            return im_mpi_error(w, e, "send");
        s->n++;
    }
    return IM_OK;
}

im_status im_mpi_receive(im_mpi_comm *m, im_mpi_set *s, void *p, size_t nbytes, int peer, int tag)
{
    im_comm_mpi_world *w = m->world;
    for (size_t done = 0, n; done < nbytes; done += n) {
        n = nbytes - done < w->piece ? nbytes - done : w->piece;
        IM_TRY(grow(w, s));
        pthread_mutex_lock(&w->lock);
        int e = w->mpi->receive(w->state, IM_MPI_DATA, (char *)p + done, n, m->head.members[peer], m->tag + tag, at(w, s, s->n));
        pthread_mutex_unlock(&w->lock);
        if (e)
            return im_mpi_error(w, e, "receive");
        s->n++;
    }
    return IM_OK;
}

im_status im_mpi_control_send(im_comm_mpi_world *w, im_mpi_set *s, const void *p, size_t nbytes, int to, int tag)
{
    IM_TRY(grow(w, s));
    int e = w->mpi->send(w->state, IM_MPI_CONTROL, p, nbytes, to, tag, false, at(w, s, s->n));
    if (e)
        return im_mpi_error(w, e, "send");
    s->n++;
    return IM_OK;
}

im_status im_mpi_control_receive(im_comm_mpi_world *w, im_mpi_set *s, void *p, size_t nbytes, int from, int tag)
{
    IM_TRY(grow(w, s));
    int e = w->mpi->receive(w->state, IM_MPI_CONTROL, p, nbytes, from, tag, at(w, s, s->n));
    if (e)
        return im_mpi_error(w, e, "receive");
    s->n++;
    return IM_OK;
}

im_status im_mpi_test(im_comm_mpi_world *w, im_mpi_set *s, int from, int n, bool *done)
{
    if (n <= 0) {
        *done = true;
        return IM_OK;
    }
    pthread_mutex_lock(&w->lock);
    int e = w->mpi->test(n, at(w, s, from), done);
    pthread_mutex_unlock(&w->lock);
    return e ? im_mpi_error(w, e, "an operation") : IM_OK;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void nap(im_mpi_wait *p)
{
    unsigned length = 1 + p->naps++ / NAPS;
    (void)nanosleep(&(struct timespec){.tv_nsec = (length < LONGEST ? length : LONGEST) * NAP_NS}, NULL);
}

im_status im_mpi_pause(im_mpi_wait *p)
{
    im_comm_mpi_world *w = p->w;
    if (!p->deaf && atomic_load_explicit(&w->dead, memory_order_relaxed))
        return IM_ERR_ABORTED;
    if (w->waiting == IM_MPI_SPIN && ++p->looks % LOOKS) {
        relax();
        return IM_OK;
    }
    double now = im_clock_now();
    if (p->first == 0)
        p->first = now;
    if (p->start == 0)
        p->start = now;
    if (now - p->start > p->deadline)
        return IM_ERR_TIMEOUT;
    if (now - p->first < AWAKE[w->waiting])
        (void)sched_yield();
    else
        nap(p);
    return IM_OK;
}

im_status im_mpi_wait_all(im_mpi_set *s, im_mpi_wait *p)
{
    bool done;
    for (;;) {
        IM_TRY(im_mpi_test(p->w, s, 0, s->n, &done));
        if (done)
            break;
        IM_TRY(im_mpi_pause(p));
    }
    s->n = 0;
    p->first = 0;
    p->looks = p->naps = 0;
    return IM_OK;
}

void im_mpi_give_up(im_comm_mpi_world *w, im_mpi_set *s)
{
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < s->n; i++)
        (void)w->mpi->cancel(at(w, s, i));
    pthread_mutex_unlock(&w->lock);
    s->n = 0;
}
