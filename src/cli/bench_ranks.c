#include "cli/bench_ranks.h"

#include "comm/crew.h"

#include <stdlib.h>

typedef struct seat {
    im_bench_seat at;
    const im_bench_ranks *how;
    im_crew *crew; /* NULL: this rank is the process */
} seat;

static im_status open_seat(void *arg)
{
    seat *s = arg;
    const im_bench_ranks *how = s->how;
    IM_TRY(im_device_open(s->at.ctx, &(im_device_config){.threads = how->threads, .comm_threads = true}, &s->at.d));
    if (how->mpi)
        return im_comm_mpi_attach(how->mpi, s->at.d, &s->at.c);
    return s->crew ? im_comm_threads_attach(im_crew_world(s->crew), s->at.d, s->at.rank, &s->at.c) : im_comm_self(s->at.d, &s->at.c);
}

static im_status run_seat(void *arg)
{
    seat *s = arg;
    im_status status = im_crew_recorded(s->at.ctx, s->how->work(s->how->arg, &s->at));
    if (status != IM_OK && s->crew)
        im_crew_fail(s->crew, s->at.rank, s->at.c);
    else if (status != IM_OK)
        im_comm_abort(s->at.c);
    return status;
}

static void close_seat(void *arg)
{
    seat *s = arg;
    im_comm_destroy(s->at.c);
    im_device_close(s->at.d);
}

static im_status on_process(im_context *ctx, const im_bench_ranks *how)
{
    seat s = {.at = {.ctx = ctx, .rank = how->mpi ? im_comm_mpi_where(how->mpi).rank : 0}, .how = how};
    im_status status = open_seat(&s);
    if (status == IM_OK)
        status = run_seat(&s);
    close_seat(&s);
    return status;
}

static im_status on_threads(im_context *ctx, const im_bench_ranks *how)
{
    static const im_crew_work work = {open_seat, run_seat, close_seat};
    im_crew *crew;
    void *memory;
    IM_TRY(im_alloc(ctx, (size_t)how->ranks, sizeof(seat), &memory));
    seat *s = memory;
    im_status status = im_crew_create(ctx, how->ranks, how->deadline, &crew);
    if (status != IM_OK) {
        free(s);
        return status;
    }
    for (int i = 0; i < how->ranks && status == IM_OK; i++) {
        s[i] = (seat){.at = {.ctx = ctx, .rank = i}, .how = how, .crew = crew};
        if (i)
            status = im_crew_context(crew, i, &s[i].at.ctx);
        if (i && status == IM_OK)
            status = im_crew_start(crew, i, &work, &s[i]);
    }
    if (status == IM_OK)
        status = open_seat(&s[0]);
    status = im_crew_go(crew, status);
    if (status == IM_OK)
        status = run_seat(&s[0]);
    close_seat(&s[0]);
    status = im_crew_join(crew, status);
    im_crew_destroy(crew);
    free(s);
    return status;
}

im_status im_bench_on_ranks(im_context *ctx, const im_bench_ranks *how)
{
    return how->mpi || how->self ? on_process(ctx, how) : on_threads(ctx, how);
}
