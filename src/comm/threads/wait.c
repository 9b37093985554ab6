/* wait: bells, meetings, and who is busy with the buffers of others. */
#include "comm/threads/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 64 }; /* between two looks at the clock while spinning */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Pairs with the sleeper, which counts itself before it looks: either it sees the change, or we see the sleeper. */
void im_threads_ring(im_threads_bell *b)
{
    atomic_fetch_add(&b->rings, 1);
    if (atomic_load(&b->sleepers))
        syscall(SYS_futex, &b->rings, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

im_threads_wait im_threads_wait_begin(im_threads_comm *t, im_comm_call *call, im_threads_bell *b)
{
    return (im_threads_wait){.t = t, .call = call, .bell = b};
}

void im_threads_wait_end(im_threads_wait *w)
{
    if (w->asleep)
        atomic_fetch_sub(&w->bell->sleepers, 1);
    w->asleep = false;
}

static void sleep_for(im_threads_wait *w, double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    syscall(SYS_futex, &w->bell->rings, FUTEX_WAIT_PRIVATE, w->seen, &t, NULL, 0);
}

im_status im_threads_pause(im_threads_wait *w)
{
    im_comm_threads_world *world = w->t->world;
    if (atomic_load(&world->dead))
        return im_threads_killed(w->t, im_comm_op_name(w->call->op));
    if (!w->asleep && world->spin > 0 && ++w->spins % LOOKS) {
        relax();
        return IM_OK;
    }
    double now = im_clock_now();
    if (w->start == 0)
        w->start = now;
    if (!w->asleep) {
        if (now - w->start < world->spin) {
            sched_yield(); /* the one that is waited for may stand in line for this core */
            return IM_OK;
        }
        atomic_fetch_add(&w->bell->sleepers, 1);
        w->asleep = true;
    } else {
        double left = w->start + w->t->head.deadline - now;
        if (left <= 0)
            return IM_ERR_TIMEOUT;
        sleep_for(w, left);
    }
    w->seen = atomic_load(&w->bell->rings); /* then the caller looks again, and may come back to sleep */
    return IM_OK;
}

/* ---- meetings ---------------------------------------------------------------------------- */

static im_status late(im_threads_comm *t, im_comm_call *call)
{
    void *p;
    IM_TRY(im_alloc(t->head.ctx, (size_t)t->group->size, sizeof(bool), &p));
    bool *arrived = p;
    for (int i = 0; i < t->group->size; i++)
        arrived[i] = atomic_load(&t->group->member[i].meeting) >= t->meeting;
    im_status s = im_comm_fail_late(&t->head, call, t->head.deadline, arrived);
    free(arrived);
    return s;
}

im_status im_threads_meet(im_threads_comm *t, im_comm_call *call)
{
    im_threads_group *g = t->group;
    uint64_t n = ++t->meeting;
    atomic_store_explicit(&g->member[t->head.rank].meeting, n, memory_order_release);
    if (atomic_fetch_add(&g->arrivals, 1) + 1 == n * (uint64_t)g->size) { /* the last one opens the door */
        atomic_store(&g->met, n);
        im_threads_ring(&g->bell);
        return IM_OK;
    }
    im_threads_wait w = im_threads_wait_begin(t, call, &g->bell);
    im_status s = IM_OK;
    while (atomic_load(&g->met) < n && s == IM_OK)
        s = im_threads_pause(&w);
    im_threads_wait_end(&w);
    if (s != IM_OK && atomic_load(&g->met) >= n) /* met after all: what the others see, this rank sees */
        return IM_OK;
    return s == IM_ERR_TIMEOUT ? late(t, call) : s;
}

/* ---- busy -------------------------------------------------------------------------------------- */

im_status im_threads_busy_begin(im_threads_comm *t, im_comm_call *call)
{
    atomic_int *busy = &t->group->member[t->head.rank].busy;
    atomic_store(busy, 1);
    if (!atomic_load(&t->world->dead))
        return IM_OK;
    atomic_store(busy, 0);
    return im_threads_killed(t, im_comm_op_name(call->op));
}

void im_threads_busy_end(im_threads_comm *t)
{
    atomic_store_explicit(&t->group->member[t->head.rank].busy, 0, memory_order_release);
}
