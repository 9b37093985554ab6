/* The ranks of a run as threads of this process: a crew. Rank 0 is the caller's thread: it plans, speaks and writes the run directory. The
 * others share the model, the data and the plan that it opened, and have a device and an engine of their own.
 *
 *     rank 0     setup | start ------------ go | engine, state | loop | end: joins
 *     others             device, world ----|     engine, state | loop | close
 *
 * An error that all come to alike (IM_ERR_STOPPED, a save that failed, divergence) does not abort the world.
 */
#include "train/internal.h"

#include "comm/crew.h"
#include "engine/agree.h"

#include <stdlib.h>

typedef struct member {
    im_train_team *team;
    im_train_run run;
} member;

struct im_train_team {
    im_crew *crew;
    im_train_env quiet;
    member *member; /* [ranks], 0 unused */
};

/* ---- a member's thread --------------------------------------------------------------------- */

static im_status open_place(im_train_team *t, im_train_run *r)
{
    IM_TRY(im_train_open_device(r));
    IM_TRY(im_comm_threads_attach(im_crew_world(t->crew), r->device, r->rank, &r->world));
    IM_TRY(im_train_decorate(r));
    im_train_watchdog_add(r);
    return IM_OK;
}

static im_status open_member(void *arg)
{
    member *m = arg;
    return open_place(m->team, &m->run);
}

static im_status train_member(im_train_run *r)
{
    IM_TRY(im_train_open_engine(r));
    IM_TRY(im_train_load_state(r, r->from[0] ? r->from : NULL));
    IM_TRY(im_train_share_dir(r));
    IM_TRY(im_train_place_ring(r));
    r->first_step = r->meta.step;
    r->saved_step = r->from[0] ? r->meta.step : -1;
    r->elapsed_before = r->meta.elapsed_s;
    r->loop_began = im_clock_now();
    IM_TRY(im_train_spans_open(r));
    im_status status = im_train_loop(r);
    if (status != IM_OK && status != IM_ERR_STOPPED)
        return status;
    im_status left = im_train_spans_leave(r);
    return status == IM_OK ? left : status;
}

static im_status run_member(void *arg)
{
    member *m = arg;
    im_train_run *r = &m->run;
    im_status status = im_crew_recorded(r->ctx, train_member(r));
    if (status != IM_OK && !r->agreed)
        im_crew_fail(m->team->crew, r->rank, r->world);
    im_train_tell_end(r, status);
    return status;
}

static void close_member(void *arg)
{
    member *m = arg;
    im_train_close_rank(&m->run);
    im_observe_trace_destroy(m->run.trace);
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

static im_status start_member(im_train_run *lead, int rank)
{
    static const im_crew_work work = {open_member, run_member, close_member};
    im_train_team *t = lead->team;
    member *m = &t->member[rank];
    *m = (member){.team = t, .run = *lead};
    m->run.rank = rank;
    m->run.env = &t->quiet;
    m->run.device = NULL;
    m->run.world = NULL;
    IM_TRY(im_crew_context(t->crew, rank, &m->run.ctx));
    return im_crew_start(t->crew, rank, &work, m);
}

static void free_team(im_train_team *t)
{
    im_crew_destroy(t->crew);
    free(t->member);
    free(t);
}

static im_status make_team(im_train_run *r)
{
    void *memory;
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_train_team), &memory));
    im_train_team *t = memory;
    t->quiet = (im_train_env){.models_dir = r->env->models_dir, .began = r->env->began};
    im_status status = im_alloc(r->ctx, (size_t)r->ranks, sizeof(member), &memory);
    if (status == IM_OK) {
        t->member = memory;
        status = im_crew_create(r->ctx, r->ranks, r->o.deadline, &t->crew);
    }
    if (status != IM_OK) {
        free_team(t);
        return status;
    }
    r->team = t;
    return im_train_watchdog_start(r);
}

im_status im_train_team_start(im_train_run *r)
{
    if (r->env->mpi)
        return im_train_processes_start(r);
    if (r->ranks == 1) {
        IM_TRY(im_train_open_device(r));
        return im_comm_self(r->device, &r->world);
    }
    IM_TRY(make_team(r));
    im_status status = IM_OK;
    for (int i = 1; i < r->ranks && status == IM_OK; i++)
        status = start_member(r, i);
    if (status == IM_OK)
        status = open_place(r->team, r);
    return im_crew_go(r->team->crew, status);
}

im_status im_train_team_end(im_train_run *r, im_status status)
{
    im_train_team *t = r->team;
    if (!t)
        return status;
    status = im_crew_recorded(r->ctx, status);
    if (im_crew_ran(t->crew) && status != IM_OK && !r->agreed)
        im_crew_fail(t->crew, r->rank, r->world);
    im_train_tell_end(r, status);
    im_train_close_rank(r);
    status = im_crew_join(t->crew, status);
    if (im_crew_failed(t->crew))
        im_train_watchdog_report(r);
    free_team(t);
    r->team = NULL;
    return status;
}

im_status im_train_share_dir(im_train_run *r)
{
    return im_engine_share(r->engine, r->checkpoints, sizeof r->checkpoints, 0);
}
