/* neighbours: which ranks are processes of one machine that may read one another's memory. */
#include "comm/mpi/world.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What each rank tells the others about its machine. */
typedef struct card {
    int32_t machine, good;   /* good: it reached all others of its machine */
    im_near_door door;       /* fd: of the machine's lowest rank */
    const uint64_t *mark_at; /* in its process */
    uint64_t mark;
    cpu_set_t cores; /* that it may use */
} card;

static im_status share(im_comm_mpi_world *w, const card *mine, card *all)
{
    int e = w->mpi->share(w->state, mine, sizeof *mine, all);
    return e ? im_mpi_error(w, e, "an exchange at the start") : IM_OK;
}

/* Processes may have other process numbers for one another, or no right to look: so what is there is compared with what it should be. */
static bool reaches(im_comm_mpi_world *w, const card *all, im_near *x)
{
    const card *lowest = &all[w->at.machine];
    uint64_t mark;
    if (!x->base && im_near_enter(NULL, lowest->door, w->at.local_size, w->at.local_rank, x) != IM_OK)
        return false;
    memcpy(&mark, im_near_cell_of(x, 0)->call[0].frame.bytes, sizeof mark);
    if (mark != lowest->mark)
        return false;
    for (int i = 0; i < w->at.size; i++)
        if (all[i].machine == w->at.machine && (!im_near_pull(all[i].door.pid, all[i].mark_at, &mark, sizeof mark) || mark != all[i].mark))
            return false;
    return true;
}

/* Cores that the ranks of this machine may use together: a launcher may bind each to some of them. A quota counts for all. */
static int count_cores(const im_comm_mpi_world *w, const card *all)
{
    cpu_set_t any = all[w->at.rank].cores;
    int mine = CPU_COUNT(&any), usable = im_machine_cores();
    for (int i = 0; i < w->at.size; i++)
        if (all[i].machine == w->at.machine)
            CPU_OR(&any, &any, &all[i].cores);
    return usable < mine ? usable : CPU_COUNT(&any);
}

/* The lowest rank of each machine makes a memory with its mark in it. When all ranks share one, it becomes the world's. */
static im_status look(im_comm_mpi_world *w, card *all)
{
    im_near x = {.fd = -1};
    double now = im_clock_now();
    uint64_t mark = im_hash64(&now, sizeof now, (uint64_t)w->at.rank);
    bool several = !w->apart && w->at.local_size > 1, made = false;
    if (several && w->at.machine == w->at.rank)
        made = im_near_make(NULL, w->at.local_size, 0, &x) == IM_OK;
    if (made)
        memcpy(im_near_cell_of(&x, 0)->call[0].frame.bytes, &mark, sizeof mark);
    card mine = {.machine = w->at.machine, .door = im_near_door_of(&x), .mark_at = &mark, .mark = mark};
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores))
        CPU_ZERO(&mine.cores);
    im_status s = share(w, &mine, all);
    if (s == IM_OK) {
        mine.good = several && reaches(w, all, &x);
        s = share(w, &mine, all); /* nobody needs the mark any more */
    }
    w->cores = s == IM_OK ? count_cores(w, all) : 1;
    for (int i = 0; i < w->at.size && s == IM_OK; i++)
        w->machine[i] = all[i].machine;
    for (int i = 0; i < w->at.size && s == IM_OK; i++) /* one that is not good is enough */
        for (int k = 0; k < w->at.size && !all[i].good; k++)
            if (all[k].machine == all[i].machine)
                w->machine[k] = -1;
    if (s == IM_OK && w->at.local_size == w->at.size && w->machine[0] >= 0) {
        for (int i = 0; i < w->at.size; i++)
            x.pid[i] = all[i].door.pid;
        im_near_close_door(&x);
        w->whole = x;
    } else {
        im_near_leave(&x);
    }
    return s;
}

im_status im_mpi_find_neighbours(im_comm_mpi_world *w)
{
    void *p;
    w->whole.fd = -1;
    IM_TRY(im_alloc(w->ctx, (size_t)w->at.size, sizeof *w->machine, &p));
    w->machine = p;
    IM_TRY(im_alloc(w->ctx, (size_t)w->at.size, sizeof(card), &p));
    im_status s = look(w, p);
    free(p);
    return s;
}

bool im_mpi_all_near(const im_comm_mpi_world *w, const int *members, int n)
{
    for (int i = 0; i < n; i++)
        if (w->machine[members[i]] < 0 || w->machine[members[i]] != w->machine[members[0]])
            return false;
    return n > 1;
}

im_near_wait im_mpi_near_wait(im_mpi_comm *m)
{
    return (im_near_wait){
        .mine = im_near_cell_of(m->near, m->head.rank), .dead = &m->world->dead, .spin = m->world->spin, .deadline = m->head.deadline};
}

im_status im_mpi_pull(im_mpi_comm *m, const im_comm_call *call, int member, const void *from, void *to, size_t nbytes)
{
    enum { TURNS = 100, NAP_NS = 10000000 };
    if (im_near_pull(m->near->pid[member], from, to, nbytes))
        return IM_OK;
    int error = errno;
    for (int i = 0; i < TURNS && !atomic_load(&m->world->dead); i++) /* it will be heard of soon why */
        (void)nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (atomic_load(&m->world->dead))
        return im_mpi_killed(m->head.ctx, m->world, im_comm_op_name(call->op));
    return im_fail(m->head.ctx, IM_ERR_IO, "%s: the memory of rank %d cannot be read: %s", im_comm_op_name(call->op), m->head.members[member],
                   strerror(error));
}
