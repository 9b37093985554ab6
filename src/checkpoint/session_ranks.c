/* The ranks of a session. As threads: rank 0 is the caller's, the others have a context, a device and an engine of their own and share its model. Until all
 * have a device and the world's communicator no rank waits for another in it, so that one that cannot start is told at once. From there on a
 * rank that fails aborts the world. */
#include "checkpoint/session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
    im_checkpoint_team *team;
    im_checkpoint_session session;
    im_context *ctx;
    im_status status;
    pthread_t thread;
    bool running;
} member;

struct im_checkpoint_team {
    im_checkpoint_join how;
    im_comm_threads_world *world;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ready;        /* threads that have come to `go`, well or not */
    int verdict;      /* 0: wait; 1: go; -1: do not */
    int first_failed; /* rank; -1: none */
    int ranks;
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

/* ---- a thread -------------------------------------------------------------------------------- */

static void note_failure(im_checkpoint_team *t, int rank)
{
    pthread_mutex_lock(&t->lock);
    if (t->first_failed < 0)
        t->first_failed = rank;
    pthread_mutex_unlock(&t->lock);
}

static void fail_rank(im_checkpoint_team *t, im_checkpoint_session *s)
{
    note_failure(t, s->rank);
    if (s->world)
        im_comm_abort(s->world);
}

static im_status open_place(im_checkpoint_team *t, im_checkpoint_session *s)
{
    IM_TRY(open_device(s, &t->how));
    return im_comm_threads_attach(t->world, s->device, s->rank, &s->world);
}

static bool wait_for_go(im_checkpoint_team *t)
{
    pthread_mutex_lock(&t->lock);
    t->ready++;
    pthread_cond_broadcast(&t->changed);
    while (!t->verdict)
        pthread_cond_wait(&t->changed, &t->lock);
    bool go = t->verdict > 0;
    pthread_mutex_unlock(&t->lock);
    return go;
}

/* How a rank ended: by the first error that it met, whose text is kept; what it was told after that is an echo. */
static im_status recorded(im_checkpoint_session *s, im_status status)
{
    im_status first = im_error_code(s->ctx);
    return status != IM_OK && first != IM_OK ? first : status;
}

static void *member_thread(void *arg)
{
    member *m = arg;
    im_checkpoint_team *t = m->team;
    im_checkpoint_session *s = &m->session;
    m->status = open_place(t, s);
    if (m->status != IM_OK)
        note_failure(t, s->rank);
    if (wait_for_go(t) && m->status == IM_OK) {
        m->status = recorded(s, t->how.others(t->how.arg, s));
        if (m->status != IM_OK)
            fail_rank(t, s);
    }
    close_rank(s);
    return NULL;
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

static im_status start_member(im_checkpoint_session *lead, int rank)
{
    member *m = &lead->team->member[rank];
    IM_TRY(im_context_create(&m->ctx));
    im_context_set_rank(m->ctx, rank);
    im_context_copy_log(m->ctx, lead->ctx, IM_LOG_ERROR);
    m->team = lead->team;
    m->session = *lead;
    m->session.ctx = m->ctx;
    m->session.rank = rank;
    m->session.team = NULL;
    if (pthread_create(&m->thread, NULL, member_thread, m))
        return im_fail(lead->ctx, IM_ERR_NOMEM, "rank %d: no thread", rank);
    m->running = true;
    return IM_OK;
}

/* `running` threads have come to wait_for_go, or all of them leave. */
static bool decide(im_checkpoint_team *t, int running, bool go)
{
    pthread_mutex_lock(&t->lock);
    while (t->ready < running)
        pthread_cond_wait(&t->changed, &t->lock);
    go = go && t->first_failed < 0;
    t->verdict = go ? 1 : -1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return go;
}

static im_status make_team(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    void *memory;
    IM_TRY(im_alloc(s->ctx, 1, sizeof(im_checkpoint_team), &memory));
    im_checkpoint_team *t = memory;
    if (im_alloc(s->ctx, (size_t)s->ranks, sizeof(member), &memory) != IM_OK) {
        free(t);
        return im_error_code(s->ctx);
    }
    t->how = *how;
    t->member = memory;
    t->ranks = s->ranks;
    t->first_failed = -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    s->team = t;
    im_comm_threads_config config = {.size = s->ranks, .deadline = how->deadline};
    return im_comm_threads_world_create(s->ctx, &config, &t->world);
}

static im_status start_threads(im_checkpoint_session *s, const im_checkpoint_join *how)
{
    int running = 0;
    IM_TRY(make_team(s, how));
    im_checkpoint_team *t = s->team;
    im_status status = IM_OK;
    for (int i = 1; i < s->ranks && status == IM_OK; i++) {
        status = start_member(s, i);
        running += status == IM_OK;
    }
    if (status == IM_OK)
        status = open_place(t, s);
    if (decide(t, running, status == IM_OK) || status != IM_OK)
        return status;
    const member *m = &t->member[t->first_failed];
    return im_fail(s->ctx, m->status, "rank %d: %s", t->first_failed, im_error_text(m->ctx));
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

/* How much a rank's error says of the cause: what others told it says least, then that somebody did not come. */
static int weight(im_status s)
{
    return s == IM_OK ? 0 : s == IM_ERR_ABORTED ? 1 : s == IM_ERR_TIMEOUT ? 2 : 3;
}

/* The error of all ranks that says most of the cause, of several rank 0's, as rank 0's. */
static im_status tell_first(im_checkpoint_session *s, im_status status)
{
    const im_checkpoint_team *t = s->team;
    int best = 0;
    im_status error = status;
    for (int i = 1; i < t->ranks && t->verdict > 0; i++)
        if (weight(t->member[i].status) > weight(error)) {
            best = i;
            error = t->member[i].status;
        }
    if (!best)
        return status;
    im_error_clear(s->ctx);
    return im_fail(s->ctx, error, "rank %d: %s", best, im_error_text(t->member[best].ctx));
}

static im_status end_threads(im_checkpoint_session *s, im_status status)
{
    im_checkpoint_team *t = s->team;
    if (t->verdict > 0 && status != IM_OK)
        fail_rank(t, s);
    close_rank(s);
    for (int i = 1; i < t->ranks; i++)
        if (t->member[i].running)
            pthread_join(t->member[i].thread, NULL);
    status = tell_first(s, status);
    im_comm_threads_world_destroy(t->world);
    for (int i = 1; i < t->ranks; i++)
        im_context_destroy(t->member[i].ctx);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->member);
    free(t);
    s->team = NULL;
    return status;
}

/* Before anything runs there is nothing to tell about the operation in which a rank heard of another's failure. */
static im_status as_told(im_checkpoint_session *s, im_status status)
{
    char text[1024];
    const char *from = strstr(im_error_text(s->ctx), "rank ");
    if (status != IM_ERR_ABORTED || !from)
        return status;
    snprintf(text, sizeof text, "%s", from);
    im_error_clear(s->ctx);
    return im_fail(s->ctx, status, "%s", text);
}

im_status im_checkpoint_session_stop(im_checkpoint_session *s, im_status status)
{
    if (status != IM_OK && s->ctx)
        status = recorded(s, status);
    if (s->team)
        return end_threads(s, status);
    if (status != IM_OK && s->mpi) {
        im_comm_mpi_world_abort(s->mpi, im_error_text(s->ctx));
        status = as_told(s, status);
    }
    close_rank(s);
    return status;
}
