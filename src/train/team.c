/* The ranks of a run as threads of this process. Rank 0 is the caller's thread: it plans, speaks and writes the run directory. The
 * others share the model, the data and the plan that it opened, and have a context, a device and an engine of their own.
 *
 *     rank 0     setup | start ------------ go | engine, state | loop | end: joins
 *     others             device, world ----|     engine, state | loop | close
 *
 * Until `go` no rank waits for another in a communicator, so that one that cannot start is told at once. From there on a rank that fails
 * aborts the world; an error that all come to alike (IM_ERR_STOPPED, a save that failed, divergence) does not.
 */
#include "train/internal.h"

#include "engine/agree.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct member {
    im_train_team *team;
    im_train_run run;
    im_context *ctx;
    im_status status;
    pthread_t thread;
    bool running;
} member;

struct im_train_team {
    int ranks;
    im_comm_threads_world *world;
    im_train_env quiet;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ready;        /* members that have come to `go`, well or not */
    int verdict;      /* 0: wait; 1: go; -1: do not */
    int first_failed; /* rank; -1: none */
    member *member;   /* [ranks], 0 unused */
};

static void note_failure(im_train_team *t, int rank)
{
    pthread_mutex_lock(&t->lock);
    if (t->first_failed < 0)
        t->first_failed = rank;
    pthread_mutex_unlock(&t->lock);
}

/* After go: an error of this rank alone. */
static void fail_run(im_train_team *t, im_train_run *r)
{
    note_failure(t, r->rank);
    im_comm_abort(r->world);
}

/* ---- a member's thread --------------------------------------------------------------------- */

static im_status open_place(im_train_team *t, im_train_run *r)
{
    IM_TRY(im_train_open_device(r));
    IM_TRY(im_comm_threads_attach(t->world, r->device, r->rank, &r->world));
    IM_TRY(im_train_decorate(r));
    im_train_watchdog_add(r);
    return IM_OK;
}

static bool wait_for_go(im_train_team *t)
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

static im_status run_member(im_train_run *r)
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

static void *member_thread(void *arg)
{
    member *m = arg;
    im_train_team *t = m->team;
    im_train_run *r = &m->run;
    m->status = open_place(t, r);
    if (m->status != IM_OK)
        note_failure(t, r->rank);
    if (wait_for_go(t)) {
        m->status = im_train_recorded(r, run_member(r));
        if (m->status != IM_OK && !r->agreed)
            fail_run(t, r);
        im_train_tell_end(r, m->status);
    }
    im_train_close_rank(r);
    im_observe_trace_destroy(r->trace);
    return NULL;
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

static im_status start_member(im_train_run *lead, int rank)
{
    im_train_team *t = lead->team;
    member *m = &t->member[rank];
    IM_TRY(im_context_create(&m->ctx));
    im_context_set_rank(m->ctx, rank);
    im_context_copy_log(m->ctx, lead->ctx, IM_LOG_ERROR);
    m->team = t;
    m->run = *lead;
    m->run.ctx = m->ctx;
    m->run.rank = rank;
    m->run.env = &t->quiet;
    m->run.device = NULL;
    m->run.world = NULL;
    if (pthread_create(&m->thread, NULL, member_thread, m))
        return im_fail(lead->ctx, IM_ERR_NOMEM, "rank %d: no thread", rank);
    m->running = true;
    return IM_OK;
}

/* `running` members have come to wait_for_go, or all of them leave. */
static void decide(im_train_team *t, int running, bool *go)
{
    pthread_mutex_lock(&t->lock);
    while (t->ready < running)
        pthread_cond_wait(&t->changed, &t->lock);
    *go = *go && t->first_failed < 0;
    t->verdict = *go ? 1 : -1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static im_status make_team(im_train_run *r)
{
    void *memory;
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_train_team), &memory));
    im_train_team *t = memory;
    if (im_alloc(r->ctx, (size_t)r->ranks, sizeof(member), &memory) != IM_OK) {
        free(t);
        return im_error_code(r->ctx);
    }
    t->member = memory;
    t->ranks = r->ranks;
    t->first_failed = -1;
    t->quiet = (im_train_env){.models_dir = r->env->models_dir, .began = r->env->began};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    r->team = t;
    im_comm_threads_config config = {.size = r->ranks, .deadline = r->o.deadline};
    IM_TRY(im_comm_threads_world_create(r->ctx, &config, &t->world));
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
    im_train_team *t = r->team;
    int running = 0;
    im_status status = IM_OK;
    for (int i = 1; i < r->ranks && status == IM_OK; i++) {
        status = start_member(r, i);
        running += status == IM_OK;
    }
    if (status == IM_OK)
        status = open_place(t, r);
    bool go = status == IM_OK;
    decide(t, running, &go);
    return go || status != IM_OK
               ? status
               : im_fail(r->ctx, t->member[t->first_failed].status, "rank %d: %s", t->first_failed, im_error_text(t->member[t->first_failed].ctx));
}

/* How much a rank's error says of the cause: what others told it says least, then that somebody did not come. */
static int weight(im_status s)
{
    return s == IM_OK ? 0 : s == IM_ERR_ABORTED ? 1 : s == IM_ERR_TIMEOUT ? 2 : 3;
}

/* The error of all ranks that says most of the cause, of several the first one, as rank 0's. */
static im_status tell_first(im_train_run *r, im_status status)
{
    const im_train_team *t = r->team;
    if (t->first_failed < 0 || t->verdict < 0)
        return status;
    int best = t->first_failed;
    im_status error = best ? t->member[best].status : status;
    for (int i = 0; i < t->ranks; i++) {
        im_status of = i ? t->member[i].status : status;
        if (weight(of) > weight(error)) {
            best = i;
            error = of;
        }
    }
    if (!best)
        return status;
    im_error_clear(r->ctx);
    return im_fail(r->ctx, error, "rank %d: %s", best, im_error_text(t->member[best].ctx));
}

im_status im_train_team_end(im_train_run *r, im_status status)
{
    im_train_team *t = r->team;
    if (!t)
        return status;
    status = im_train_recorded(r, status);
    if (t->verdict > 0 && status != IM_OK && !r->agreed)
        fail_run(t, r);
    im_train_tell_end(r, status);
    im_train_close_rank(r);
    for (int i = 1; i < t->ranks; i++)
        if (t->member[i].running)
            pthread_join(t->member[i].thread, NULL);
    status = tell_first(r, status);
    if (t->first_failed >= 0)
        im_train_watchdog_report(r);
    im_comm_threads_world_destroy(t->world);
    for (int i = 1; i < t->ranks; i++)
        im_context_destroy(t->member[i].ctx);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->member);
    free(t);
    r->team = NULL;
    return status;
}

im_status im_train_share_dir(im_train_run *r)
{
    return im_engine_share(r->engine, r->checkpoints, sizeof r->checkpoints, 0);
}
