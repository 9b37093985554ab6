/* world: what the ranks of one process share, its groups, its end. */
#include "comm/threads/threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const im_comm_table threads_table;

/* Longer than it takes another core to arrive, shorter than a time slice. */
static const double SPIN = 200e-6, DEADLINE = 300;

im_status im_comm_threads_world_create(im_context *ctx, const im_comm_threads_config *cfg, im_comm_threads_world **out)
{
    if (cfg->size < 1)
        return im_fail(ctx, IM_ERR_ARG, "a world of %d ranks", cfg->size);
    if (cfg->deadline < 0)
        return im_fail(ctx, IM_ERR_ARG, "a deadline of %g seconds: above 0, or 0 for %g", cfg->deadline, DEADLINE);
    void *p;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_comm_threads_world), &p));
    im_comm_threads_world *w = p;
    w->size = cfg->size;
    w->deadline = cfg->deadline > 0 ? cfg->deadline : DEADLINE;
    w->spin = cfg->size <= (cfg->cores ? cfg->cores : im_machine_cores()) ? SPIN : 0;
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return IM_OK;
}

/* ---- groups --------------------------------------------------------------------------- */

static void group_free(im_threads_group *g)
{
    if (!g)
        return;
    free(g->member);
    free(g->channel);
    free(g->members);
    free(g->joined);
    free(g);
}

static im_status lines(im_context *ctx, size_t count, size_t size, void **out)
{
    void *p = NULL;
    if (count > SIZE_MAX / size || posix_memalign(&p, IM_THREADS_LINE, count * size))
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a group of ranks");
    memset(p, 0, count * size);
    *out = p;
    return IM_OK;
}

static im_status group_create(im_context *ctx, uint32_t id, int size, const int *members, im_threads_group **out)
{
    im_threads_group *g;
    im_status status;
    void *p;
    size_t n = (size_t)size;
    IM_TRY(lines(ctx, 1, sizeof *g, &p));
    g = p;
    g->size = size;
    g->id = id;
    IM_TRY_GOTO(lines(ctx, n, sizeof *g->member, &p), free_group);
    g->member = p;
    IM_TRY_GOTO(lines(ctx, n * n, sizeof *g->channel, &p), free_group);
    g->channel = p;
    IM_TRY_GOTO(im_alloc(ctx, n, sizeof *g->members, &p), free_group);
    g->members = p;
    IM_TRY_GOTO(im_alloc(ctx, n, sizeof *g->joined, &p), free_group);
    g->joined = p;
    memcpy(g->members, members, sizeof *members * n);
    *out = g;
    return IM_OK;
free_group:
    group_free(g);
    return status;
}

/* The group of this id and list that the rank is not yet in; the first member makes it. */
static im_status join(im_comm_threads_world *w, im_context *ctx, uint32_t id, int size, const int *members, int rank, im_threads_group **out)
{
    im_status status = IM_OK;
    pthread_mutex_lock(&w->lock);
    im_threads_group *g = w->groups;
    while (g && !(g->id == id && g->size == size && !g->joined[rank] && !memcmp(g->members, members, sizeof *members * (size_t)size)))
        g = g->next;
    if (!g && (status = group_create(ctx, id, size, members, &g)) == IM_OK) {
        g->next = w->groups;
        w->groups = g;
    }
    if (status == IM_OK) {
        g->joined[rank] = true;
        *out = g;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* The last member takes it down; when a member never came, the world does. */
static void quit(im_comm_threads_world *w, im_threads_group *g)
{
    pthread_mutex_lock(&w->lock);
    if (++g->left == g->size) {
        im_threads_group **at = &w->groups;
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
        group_free(g);
    }
    pthread_mutex_unlock(&w->lock);
}

void im_comm_threads_world_destroy(im_comm_threads_world *w)
{
    if (!w)
        return;
    for (im_threads_group *g = w->groups, *next; g; g = next) {
        next = g->next;
        group_free(g);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- communicators -------------------------------------------------------------------- */

static void threads_destroy(im_comm *c)
{
    im_threads_comm *t = (im_threads_comm *)c;
    if (t->group)
        quit(t->world, t->group);
    free(t->src);
    free(t->dst);
    im_comm_fini(c);
    free(t);
}

static im_status create(im_comm_threads_world *w, im_device *d, uint32_t id, int rank, int size, const int *members, double deadline, im_comm **out)
{
    im_context *ctx = im_device_context(d);
    im_status status;
    void *p;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_threads_comm), &p));
    im_threads_comm *t = p;
    status = im_comm_init(&t->head, &threads_table, d, rank, size, members, id, deadline);
    if (status != IM_OK) {
        free(t);
        return status;
    }
    t->world = w;
    t->head.fate = &w->dead;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size, sizeof *t->src, &p), destroy);
    t->src = p;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)size, sizeof *t->dst, &p), destroy);
    t->dst = p;
    IM_TRY_GOTO(join(w, ctx, id, size, t->head.members, rank, &t->group), destroy);
    *out = &t->head;
    return IM_OK;
destroy:
    threads_destroy(&t->head);
    return status;
}

im_status im_comm_threads_attach(im_comm_threads_world *w, im_device *d, int rank, im_comm **out)
{
    if (rank < 0 || rank >= w->size)
        return im_fail(im_device_context(d), IM_ERR_ARG, "rank %d of a world of %d", rank, w->size);
    return create(w, d, 0, rank, w->size, NULL, w->deadline, out);
}

static im_status threads_split(im_comm *parent, const im_comm_group *g, im_comm **out)
{
    im_threads_comm *t = (im_threads_comm *)parent;
    return create(t->world, parent->device, g->id, g->rank, g->size, g->members, parent->deadline, out);
}

static im_status threads_run(im_comm *c, im_comm_call *call)
{
    im_threads_comm *t = (im_threads_comm *)c;
    bool message = call->op == IM_COMM_SEND || call->op == IM_COMM_RECV;
    if (c->size == 1 || (message && call->peer == c->rank)) {
        im_comm_copy(call);
        return IM_OK;
    }
    return message ? im_threads_messages(t, call) : im_threads_collective(t, call);
}

/* ---- failing ------------------------------------------------------------------------------ */

void im_threads_kill(im_threads_comm *t, const char *verb, const char *reason)
{
    im_comm_threads_world *w = t->world;
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->dead)) {
        int rank = t->head.members[t->head.rank];
        snprintf(w->reason, sizeof w->reason, *reason ? "rank %d %s: %s" : "rank %d %s", rank, verb, reason);
        atomic_store(&w->dead, true);
        for (im_threads_group *g = w->groups; g; g = g->next) {
            im_threads_ring(&g->bell);
            for (int i = 0; i < g->size; i++)
                im_threads_ring(&g->member[i].bell);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

im_status im_threads_killed(im_threads_comm *t, const char *what)
{
    return im_fail(t->head.ctx, IM_ERR_ABORTED, "%s: %s", what, t->world->reason);
}

im_status im_threads_leave(im_threads_comm *t, im_status s)
{
    im_threads_kill(t, "gave up", im_error_text(t->head.ctx));
    for (int i = 0; i < t->group->size; i++)
        while (atomic_load(&t->group->member[i].busy)) /* a copy that is under way */
            sched_yield();
    return s;
}

static im_status threads_error(im_comm *c)
{
    im_threads_comm *t = (im_threads_comm *)c;
    return atomic_load(&t->world->dead) ? im_threads_killed(t, "communicator") : IM_OK;
}

static void threads_abort(im_comm *c, const char *reason)
{
    im_threads_kill((im_threads_comm *)c, "failed", reason);
}

static const im_comm_table threads_table = {
    .name = "threads",
    .run = threads_run,
    .split = threads_split,
    .destroy = threads_destroy,
    .error = threads_error,
    .abort = threads_abort,
};
