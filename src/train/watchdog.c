/* The watchdog of a process whose run has several ranks: a thread that needs nobody.
 *
 * Waits end by themselves: each has a deadline and watches whether the world is dead. What is left is what cannot end by itself.
 *
 *   - It gives a sign of life in the ring of each rank here; one that is stopped gives none.
 *   - Where ranks are processes, it learns at once of the end of another one on this machine: it notes that in the ring, tells all ranks and
 *     has them stop. The launcher may end this process a moment later.
 *   - When the world is dead and ranks of this process do not come back (they compute, or wait for a disk), it tells what the rings
 *     know and has the process ended.
 */
#include "train/internal.h"

#include "comm/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TICK_MS = 100 };
static const double GRACE = 5; /* seconds that ranks of a dead world have to come back */

struct im_train_watchdog {
    im_train_run *lead; /* of this process */
    pthread_t thread;
    int end[2]; /* pipe: closed to end the thread */
    pthread_mutex_t lock;
    im_comm **world;     /* [ranks] of the ranks of this process, by rank; NULL: not open (any more); guarded */
    im_process *peer;    /* [ranks], guarded until npoll > 1 */
    struct pollfd *poll; /* [1 + ranks]: the pipe, processes */
    int *rank_of;        /* [1 + ranks] of poll */
    int npoll;           /* guarded */
    double dead_since;   /* 0: it lives */
    atomic_bool reported;
};

/* ---- its thread ------------------------------------------------------------------------- */

/* True: some rank of this process has a world, and it is dead. */
static bool beat(im_train_watchdog *w)
{
    bool dead = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->lead->ranks; i++)
        if (w->world[i]) {
            im_comm_ring_beat(w->world[i]);
            dead |= im_comm_dead(w->world[i]);
        }
    pthread_mutex_unlock(&w->lock);
    return dead;
}

/* Once. */
static void report(im_train_watchdog *w)
{
    if (!atomic_exchange(&w->reported, true))
        im_train_report(w->lead);
}

/* Others are over too: a launcher ends all when one ends, and who was the first cannot be seen any more. */
static bool others_are_gone(const im_train_watchdog *w, int rank)
{
    for (int i = 0; i < w->lead->ranks; i++)
        if (i != rank && w->peer[i].pid != w->peer[rank].pid && im_process_state(&w->peer[i]) == 'X')
            return true;
    return false;
}

static void peer_is_gone(im_train_watchdog *w, int rank)
{
    im_train_run *r = w->lead;
    char reason[256];
    const im_process *p = &w->peer[rank];
    bool news = false;
    snprintf(reason, sizeof reason, "rank %d is gone: process %d on %s ended without a word, as after a kill", rank, (int)p->pid, p->host);
    pthread_mutex_lock(&w->lock);
    if (w->world[r->rank] && !im_comm_dead(w->world[r->rank])) {
        if (!others_are_gone(w, rank))
            im_comm_ring_saw(w->world[r->rank], rank);
        news = true;
    }
    pthread_mutex_unlock(&w->lock);
    if (!news)
        return; /* the run is over, or has failed: then it ends as it should */
    im_comm_mpi_world_give_up(r->env->mpi, reason);
    if (!im_train_watchdog_speaks(r))
        return;
    im_train_cry(r, reason);
    report(w);
}

/* The one moment at which nothing can be waited for any more. */
static void give_up(im_train_watchdog *w)
{
    im_train_run *r = w->lead;
    if (!r->env->lost)
        return;
    report(w);
    im_train_cry(r, "ranks of this process do not come back; it ends");
    r->env->lost(r->env->arg);
}

static void *watch(void *arg)
{
    im_train_watchdog *w = arg;
    for (bool given_up = false;;) {
        pthread_mutex_lock(&w->lock);
        int n = w->npoll;
        pthread_mutex_unlock(&w->lock);
        int ready = poll(w->poll, (nfds_t)n, TICK_MS);
        if (ready > 0 && w->poll[0].revents)
            return NULL;
        for (int i = 1; ready > 0 && i < n; i++)
            if (w->poll[i].revents) {
                w->poll[i].fd = -1 - w->poll[i].fd; /* negative: poll leaves it out; it is closed at the end */
                peer_is_gone(w, w->rank_of[i]);
            }
        double now = im_clock_now();
        if (beat(w) && w->dead_since == 0)
            w->dead_since = now;
        if (w->dead_since > 0 && now - w->dead_since > GRACE && !given_up) {
            given_up = true;
            give_up(w);
        }
    }
}

/* ---- what the ranks call -------------------------------------------------------------------- */

im_status im_train_watchdog_start(im_train_run *lead)
{
    im_status status;
    void *p;
    size_t n = (size_t)lead->ranks;
    IM_TRY(im_alloc(lead->ctx, 1, sizeof(im_train_watchdog), &p));
    im_train_watchdog *w = p;
    w->lead = lead;
    w->end[0] = w->end[1] = -1;
    w->npoll = 1;
    pthread_mutex_init(&w->lock, NULL);
    IM_TRY_GOTO(im_alloc(lead->ctx, n, sizeof *w->world, &p), free_watchdog);
    w->world = p;
    IM_TRY_GOTO(im_alloc(lead->ctx, n, sizeof *w->peer, &p), free_watchdog);
    w->peer = p;
    IM_TRY_GOTO(im_alloc(lead->ctx, n + 1, sizeof *w->poll, &p), free_watchdog);
    w->poll = p;
    IM_TRY_GOTO(im_alloc(lead->ctx, n + 1, sizeof *w->rank_of, &p), free_watchdog);
    w->rank_of = p;
    if (pipe2(w->end, O_CLOEXEC)) {
        status = im_fail_errno(lead->ctx, "no pipe for the watchdog");
        goto free_watchdog;
    }
    w->poll[0] = (struct pollfd){.fd = w->end[0], .events = POLLIN};
    if (pthread_create(&w->thread, NULL, watch, w)) {
        status = im_fail(lead->ctx, IM_ERR_NOMEM, "no thread for the watchdog");
        goto close_pipe;
    }
    lead->watchdog = w;
    return IM_OK;
close_pipe:
    close(w->end[0]);
    close(w->end[1]);
free_watchdog:
    pthread_mutex_destroy(&w->lock);
    free(w->world);
    free(w->peer);
    free(w->poll);
    free(w->rank_of);
    free(w);
    return status;
}

void im_train_watchdog_stop(im_train_run *lead)
{
    im_train_watchdog *w = lead->watchdog;
    if (!w)
        return;
    close(w->end[1]);
    pthread_join(w->thread, NULL);
    close(w->end[0]);
    for (int i = 1; i < w->npoll; i++)
        close(w->poll[i].fd < 0 ? -1 - w->poll[i].fd : w->poll[i].fd);
    pthread_mutex_destroy(&w->lock);
    free(w->world);
    free(w->peer);
    free(w->poll);
    free(w->rank_of);
    free(w);
    lead->watchdog = NULL;
}

static void set_world(im_train_run *r, im_comm *world)
{
    if (!r->watchdog)
        return;
    pthread_mutex_lock(&r->watchdog->lock);
    r->watchdog->world[r->rank] = world;
    pthread_mutex_unlock(&r->watchdog->lock);
}

void im_train_watchdog_add(im_train_run *r)
{
    set_world(r, r->world);
}

void im_train_watchdog_remove(im_train_run *r)
{
    set_world(r, NULL);
}

void im_train_watchdog_peers(im_train_run *r, const im_process *all)
{
    im_train_watchdog *w = r->watchdog;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < r->ranks; i++) {
        w->peer[i] = all[i];
        int fd = i == r->rank ? -1 : im_process_watch(&all[i]);
        if (fd < 0)
            continue;
        w->poll[w->npoll] = (struct pollfd){.fd = fd, .events = POLLIN};
        w->rank_of[w->npoll++] = i;
    }
    pthread_mutex_unlock(&w->lock);
}

bool im_train_watchdog_speaks(const im_train_run *r)
{
    for (int i = 0; i < r->rank; i++) {
        char state = r->watchdog ? im_process_state(&r->watchdog->peer[i]) : 0;
        if (state != 'X' && state != 'T')
            return false;
    }
    return true;
}

void im_train_watchdog_report(im_train_run *r)
{
    if (r->watchdog)
        report(r->watchdog);
}
