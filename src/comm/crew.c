#include "comm/crew.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
    im_crew *crew;
    int rank;
    im_context *ctx;
    im_crew_work work;
    void *arg;
    im_status status;
    pthread_t thread;
    bool running;
} member;

struct im_crew {
    im_context *ctx; /* of rank 0 */
    int ranks;
    im_comm_threads_world *world;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int running;      /* threads that were started */
    int ready;        /* of them, that have come to `go`, well or not */
    int verdict;      /* 0: wait; 1: go; -1: do not */
    int first_failed; /* rank; -1: none */
    member *member;   /* [ranks], 0 unused */
};

im_status im_crew_create(im_context *ctx, int ranks, double deadline, im_crew **out)
{
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_crew), &memory));
    im_crew *c = memory;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->ctx = ctx;
    c->ranks = ranks;
    c->first_failed = -1;
    im_comm_threads_config config = {.size = ranks, .deadline = deadline};
    im_status status = im_alloc(ctx, (size_t)ranks, sizeof(member), &memory);
    if (status == IM_OK) {
        c->member = memory;
        status = im_comm_threads_world_create(ctx, &config, &c->world);
    }
    if (status == IM_OK)
        *out = c;
    else
        im_crew_destroy(c);
    return status;
}

void im_crew_destroy(im_crew *c)
{
    if (!c)
        return;
    im_comm_threads_world_destroy(c->world);
    for (int i = 1; c->member && i < c->ranks; i++)
        im_context_destroy(c->member[i].ctx);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->member);
    free(c);
}

im_comm_threads_world *im_crew_world(im_crew *c)
{
    return c->world;
}

/* ---- a thread ------------------------------------------------------------------------------ */

static void note_failure(im_crew *c, int rank)
{
    pthread_mutex_lock(&c->lock);
    if (c->first_failed < 0)
        c->first_failed = rank;
    pthread_mutex_unlock(&c->lock);
}

void im_crew_fail(im_crew *c, int rank, im_comm *world)
{
    note_failure(c, rank);
    if (world)
        im_comm_abort(world);
}

static bool wait_for_go(im_crew *c)
{
    pthread_mutex_lock(&c->lock);
    c->ready++;
    pthread_cond_broadcast(&c->changed);
    while (!c->verdict)
        pthread_cond_wait(&c->changed, &c->lock);
    bool go = c->verdict > 0;
    pthread_mutex_unlock(&c->lock);
    return go;
}

static void *member_thread(void *arg)
{
    member *m = arg;
    m->status = m->work.open(m->arg);
    if (m->status != IM_OK)
        note_failure(m->crew, m->rank);
    if (wait_for_go(m->crew)) /* all have opened */
        m->status = m->work.run(m->arg);
    m->work.close(m->arg);
    return NULL;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

im_status im_crew_context(im_crew *c, int rank, im_context **out)
{
    member *m = &c->member[rank];
    IM_TRY(im_context_create(&m->ctx));
    im_context_set_rank(m->ctx, rank);
    im_context_copy_log(m->ctx, c->ctx, IM_LOG_ERROR);
    *out = m->ctx;
    return IM_OK;
}

im_status im_crew_start(im_crew *c, int rank, const im_crew_work *work, void *arg)
{
    member *m = &c->member[rank];
    m->crew = c;
    m->rank = rank;
    m->work = *work;
    m->arg = arg;
    if (pthread_create(&m->thread, NULL, member_thread, m))
        return im_fail(c->ctx, IM_ERR_NOMEM, "rank %d: no thread", rank);
    m->running = true;
    c->running++;
    return IM_OK;
}

im_status im_crew_go(im_crew *c, im_status status)
{
    pthread_mutex_lock(&c->lock);
    while (c->ready < c->running)
        pthread_cond_wait(&c->changed, &c->lock);
    bool go = status == IM_OK && c->first_failed < 0;
    c->verdict = go ? 1 : -1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (go || status != IM_OK)
        return status;
    const member *m = &c->member[c->first_failed];
    return im_fail(c->ctx, m->status, "rank %d: %s", c->first_failed, im_error_text(m->ctx));
}

bool im_crew_ran(const im_crew *c)
{
    return c->verdict > 0;
}

bool im_crew_failed(const im_crew *c)
{
    return c->first_failed >= 0;
}

/* How much a rank's error says of the cause: what others told it says least, then that somebody did not come. */
static int weight(im_status s)
{
    return s == IM_OK ? 0 : s == IM_ERR_ABORTED ? 1 : s == IM_ERR_TIMEOUT ? 2 : 3;
}

static im_status tell_first(im_crew *c, im_status status)
{
    if (c->first_failed < 0 || c->verdict < 0)
        return status;
    int best = c->first_failed;
    im_status error = best ? c->member[best].status : status;
    for (int i = 0; i < c->ranks; i++) {
        im_status of = i ? c->member[i].status : status;
        if (weight(of) > weight(error)) {
            best = i;
            error = of;
        }
    }
    if (!best)
        return status;
    im_error_clear(c->ctx);
    return im_fail(c->ctx, error, "rank %d: %s", best, im_error_text(c->member[best].ctx));
}

im_status im_crew_join(im_crew *c, im_status status)
{
    for (int i = 1; i < c->ranks; i++)
        if (c->member[i].running)
            pthread_join(c->member[i].thread, NULL);
    return tell_first(c, status);
}

/* ---- what is told --------------------------------------------------------------------------------- */

im_status im_crew_recorded(im_context *ctx, im_status status)
{
    im_status first = im_error_code(ctx);
    return status != IM_OK && first != IM_OK ? first : status;
}

im_status im_crew_as_told(im_context *ctx, im_status status)
{
    char text[1024];
    const char *from = strstr(im_error_text(ctx), "rank ");
    if (status != IM_ERR_ABORTED || !from)
        return status;
    snprintf(text, sizeof text, "%s", from);
    im_error_clear(ctx);
    return im_fail(ctx, status, "%s", text);
}
