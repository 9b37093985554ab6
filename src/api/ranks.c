/* ranks: one function on several ranks, as threads of this process or in the process of a job.
 *
 *     rank 0     starts the others | open --.                .-- fn | close | joins
 *     rank 1                        open --- all are there --+-- fn | close
 *     rank 2                        open --'                '-- fn | close
 *
 * Before all are there nobody waits in a communicator, so that one that cannot open is told at once.
 */
#include "api/internal.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct team team;

typedef struct member {
    team *team;
    im_rank rank;
    pthread_t thread;
    bool running;
    im_status status;
} member;

struct team {
    im_context *ctx; /* of the caller */
    im_api_place place;
    im_rank_fn fn;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int opened, expected; /* members that have opened, well or not; that will */
    bool refused;         /* one of them could not open: no function is called */
    int failed;           /* the first member that failed; -1: none */
    member *member;       /* [place.count] */
};

static void note_failure(team *t, int number)
{
    pthread_mutex_lock(&t->lock);
    if (t->failed < 0)
        t->failed = number;
    pthread_mutex_unlock(&t->lock);
}

/* Waits until all have opened; false: one could not. By then others may run already, and fail: that is another matter. */
static bool all_opened(team *t, bool well)
{
    pthread_mutex_lock(&t->lock);
    t->opened++;
    t->refused |= !well;
    pthread_cond_broadcast(&t->changed);
    while (t->opened < t->expected)
        pthread_cond_wait(&t->changed, &t->lock);
    bool good = !t->refused;
    pthread_mutex_unlock(&t->lock);
    return good;
}

/* The function, and what it left on its way. */
static im_status run(im_rank *r, im_rank_fn fn, void *arg)
{
    im_status status = fn(r, arg), end = im_rank_wait(r);
    if (status == IM_OK)
        status = end;
    if (status != IM_OK && im_error_code(r->ctx) == IM_OK)
        (void)im_fail(r->ctx, status, "the rank's function returned %s", im_status_name(status));
    return status;
}

static void *member_main(void *arg)
{
    member *m = arg;
    team *t = m->team;
    im_rank *r = &m->rank;
    im_api_place place = t->place;
    place.number = (int)(m - t->member);
    m->status = im_api_rank_open(r, &place);
    if (m->status != IM_OK)
        note_failure(t, place.number);
    if (all_opened(t, m->status == IM_OK)) {
        m->status = run(r, t->fn, t->arg);
        if (m->status != IM_OK) {
            note_failure(t, place.number);
            im_api_abort(r);
        }
    }
    im_api_rank_close(r);
    return NULL;
}

/* ---- threads ------------------------------------------------------------------------------------ */

static im_status make_member(team *t, int number)
{
    member *m = &t->member[number];
    m->team = t;
    IM_TRY(im_context_create(&m->rank.ctx));
    im_context_set_rank(m->rank.ctx, number);
    im_context_copy_log(m->rank.ctx, t->ctx, IM_LOG_DEBUG);
    return IM_OK;
}

static im_status start_members(team *t)
{
    for (int i = 0; i < t->place.count; i++)
        IM_TRY(make_member(t, i));
    t->expected = t->place.count;
    for (int i = 1; i < t->place.count; i++) {
        if (pthread_create(&t->member[i].thread, NULL, member_main, &t->member[i])) {
            pthread_mutex_lock(&t->lock); /* those that run wait for no others, and leave */
            t->expected = i;
            t->refused = true;
            t->failed = 0;
            pthread_mutex_unlock(&t->lock);
            t->member[0].status = im_fail(t->member[0].rank.ctx, IM_ERR_NOMEM, "no thread for rank %d", i);
            return t->member[0].status;
        }
        t->member[i].running = true;
    }
    return IM_OK;
}

static im_status first_error(team *t)
{
    const member *m = t->failed < 0 ? NULL : &t->member[t->failed];
    if (!m)
        return IM_OK;
    if (t->place.count == 1)
        return im_fail(t->ctx, m->status, "%s", im_error_text(m->rank.ctx));
    return im_fail(t->ctx, m->status, "rank %d: %s", t->failed, im_error_text(m->rank.ctx));
}

static im_status run_threads(team *t)
{
    im_status status = start_members(t);
    if (status == IM_OK)
        member_main(&t->member[0]);
    else if (t->expected)
        all_opened(t, false); /* releases those that were started */
    for (int i = 1; i < t->place.count; i++)
        if (t->member[i].running)
            pthread_join(t->member[i].thread, NULL);
    status = t->failed < 0 && status != IM_OK ? im_fail(t->ctx, status, "no memory for a rank") : first_error(t);
    for (int i = 0; i < t->place.count; i++)
        im_context_destroy(t->member[i].rank.ctx);
    return status;
}

static im_status run_team(im_context *ctx, const im_api_place *p, im_rank_fn fn, void *arg)
{
    team t = {.ctx = ctx, .place = *p, .fn = fn, .arg = arg, .failed = -1};
    const im_comm_threads_config world = {.size = p->count, .deadline = p->deadline};
    void *memory;
    IM_TRY(im_alloc(ctx, (size_t)p->count, sizeof(member), &memory));
    t.member = memory;
    im_status status = p->count > 1 ? im_comm_threads_world_create(ctx, &world, &t.place.threads_world) : IM_OK;
    if (status == IM_OK) {
        pthread_mutex_init(&t.lock, NULL);
        pthread_cond_init(&t.changed, NULL);
        status = run_threads(&t);
        pthread_cond_destroy(&t.changed);
        pthread_mutex_destroy(&t.lock);
        im_comm_threads_world_destroy(t.place.threads_world);
    }
    free(t.member);
    return status;
}

/* ---- a job --------------------------------------------------------------------------------------- */

static im_status run_process(im_context *ctx, const im_api_place *p, im_rank_fn fn, void *arg)
{
    im_rank r = {.ctx = ctx};
    im_status status = im_api_rank_open(&r, p);
    if (status == IM_OK)
        status = run(&r, fn, arg);
    if (status != IM_OK)
        im_comm_mpi_world_abort(p->mpi_world, im_error_text(ctx));
    im_api_rank_close(&r);
    return status;
}

im_status im_ranks_run(im_context *ctx, const im_ranks_config *cfg, im_rank_fn fn, void *arg)
{
    enum { MOST = 4096 };
    im_comm_mpi_world *world = cfg->job ? im_api_job_world(cfg->job) : NULL;
    im_comm_mpi_place at = world ? im_comm_mpi_where(world) : (im_comm_mpi_place){.size = cfg->ranks, .local_size = cfg->ranks};
    int cores = im_machine_cores();
    if (world && cfg->ranks && cfg->ranks != at.size)
        return im_fail(ctx, IM_ERR_ARG, "im_ranks_run: %d ranks in a job of %d; 0 takes what the job has", cfg->ranks, at.size);
    if (at.size < 1 || at.size > MOST)
        return im_fail(ctx, IM_ERR_ARG, "im_ranks_run: %d ranks; 1 to %d", at.size, MOST);
    if (cfg->threads < 0 || cfg->threads > UINT16_MAX)
        return im_fail(ctx, IM_ERR_ARG, "im_ranks_run: %d threads; 0 shares the cores out", cfg->threads);
    if (!(cfg->deadline >= 0))
        return im_fail(ctx, IM_ERR_ARG, "im_ranks_run: a deadline of %g seconds", cfg->deadline);
    const im_api_place place = {
        .number = at.rank,
        .count = at.size,
        .threads = cfg->threads            ? cfg->threads
                   : cores > at.local_size ? cores / at.local_size
                                           : 1,
        .deadline = cfg->deadline,
        .memory = cfg->memory ? cfg->memory : im_machine_memory() / (size_t)at.local_size,
        .mpi_world = world,
    };
    return world ? run_process(ctx, &place, fn, arg) : run_team(ctx, &place, fn, arg);
}
