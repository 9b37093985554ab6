/* The ranks of a session. As threads they are a crew: rank 0 is the caller's, the others have a device and an engine of their own and share its model. */
#include "checkpoint/session.h"

#include "comm/crew.h"

#include <stdlib.h>

typedef struct member {
    im_checkpoint_team *team;
    im_checkpoint_session session;
} member;

struct im_checkpoint_team {
    im_checkpoint_join how;
    im_crew *crew;
    member *member; /* [ranks], 0 unused */
};

/* ---- one rank ----------------------------------------------------------------------------- */

static im_status open_device(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    /* forward alone: activations go from stage to stage, and what a group sums is read at once */
    im_device_config config = {.deferred = how->deferred, .threads = s->plan.threads, .kernels = how->kernels, .comm_inline = s->ranks > 1};
    return im_device_open(s->ctx, &config, &s->device);
}

static void close_rank(im_checkpoint_session *s)
{
    im_engine_close(s->engine);
    im_comm_destroy(s->world);
    im_device_close(s->device);
    s->engine = NULL;
    s->world = NULL;
    s->device = NULL;
}

/* ---- threads ------------------------------------------------------------------------------- */

static im_status open_place(im_checkpoint_team *t, im_checkpoint_session *s)
{
    IM_TRY(open_device(s, &t->how));
    return im_comm_threads_attach(im_crew_world(t->crew), s->device, s->rank, &s->world);
}

static im_status open_member(void *arg)
{
    member *m = arg;
    return open_place(m->team, &m->session);
}

static im_status run_member(void *arg)
{
    member *m = arg;
    im_checkpoint_team *t = m->team;
    im_status status = im_crew_recorded(m->session.ctx, t->how.others(t->how.arg, &m->session));
    if (status != IM_OK)
        im_crew_fail(t->crew, m->session.rank, m->session.world);
    return status;
}

static void close_member(void *arg)
{
    member *m = arg;
    close_rank(&m->session);
}

static im_status start_member(im_checkpoint_session *lead, int rank)
{
    static const im_crew_work work = {open_member, run_member, close_member};
    im_checkpoint_team *t = lead->team;
    member *m = &t->member[rank];
    *m = (member){.team = t, .session = *lead};
    m->session.rank = rank;
    m->session.team = NULL;
    IM_TRY(im_crew_context(t->crew, rank, &m->session.ctx));
    return im_crew_start(t->crew, rank, &work, m);
}

static void free_team(im_checkpoint_team *t)
{
    im_crew_destroy(t->crew);
    free(t->member);
    free(t);
}

static im_status make_team(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    void *memory;
    IM_TRY(im_alloc(s->ctx, 1, sizeof(im_checkpoint_team), &memory));
    im_checkpoint_team *t = memory;
    t->how = *how;
    im_status status = im_alloc(s->ctx, (size_t)s->ranks, sizeof(member), &memory);
    if (status == IM_OK) {
        t->member = memory;
        status = im_crew_create(s->ctx, s->ranks, how->deadline, &t->crew);
    }
    if (status == IM_OK)
        s->team = t;
    else
        free_team(t);
    return status;
}

static im_status start_threads(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    IM_TRY(make_team(s, how));
    im_status status = IM_OK;
    for (int i = 1; i < s->ranks && status == IM_OK; i++)
        status = start_member(s, i);
    if (status == IM_OK)
        status = open_place(s->team, s);
    return im_crew_go(s->team->crew, status);
}

im_status im_checkpoint_session_join(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    IM_TRY(im_checkpoint_session_stop(s, IM_OK));
    im_comm_mpi_place at = {.size = 0};
    if (how->mpi)
        at = im_comm_mpi_where(how->mpi);
    IM_TRY(im_plan_check_layout(s->ctx, &s->plan, how->batch_follows, at.size));
    s->mpi = how->mpi;
    s->ranks = im_mesh_size(&s->plan.mesh);
    s->rank = how->mpi ? at.rank : 0;
    s->ranks_here = how->mpi ? at.local_size : s->ranks;
    int cores = how->mpi ? at.cores : im_machine_cores(); /* of all ranks here: each may be bound to some */
    if (!s->plan.threads)
        s->plan.threads = cores > s->ranks_here ? cores / s->ranks_here : 1;
    if (!how->mpi && s->ranks > 1)
        return start_threads(s, how);
    IM_TRY(open_device(s, how));
    if (!how->mpi)
        return im_comm_self(s->device, &s->world);
    if (how->deadline > 0)
        im_comm_mpi_world_deadline(how->mpi, how->deadline);
    return im_comm_mpi_attach(how->mpi, s->device, &s->world);
}

/* ---- the end --------------------------------------------------------------------------------------- */

static im_status end_threads(im_checkpoint_session *s, im_status status)
{
    im_checkpoint_team *t = s->team;
    if (im_crew_ran(t->crew) && status != IM_OK)
        im_crew_fail(t->crew, s->rank, s->world);
    close_rank(s);
    status = im_crew_join(t->crew, status);
    free_team(t);
    s->team = NULL;
    return status;
}

im_status im_checkpoint_session_stop(im_checkpoint_session *s, im_status status)
{
    if (status != IM_OK && s->ctx)
        status = im_crew_recorded(s->ctx, status);
    if (s->team)
        return end_threads(s, status);
    if (status != IM_OK && s->mpi) {
        im_comm_mpi_world_abort(s->mpi, im_error_text(s->ctx));
        status = im_crew_as_told(s->ctx, status);
    }
    close_rank(s);
    return status;
}
