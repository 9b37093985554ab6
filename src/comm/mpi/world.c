/* world: the keeper, groups, the end. */
#include "comm/mpi/world.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const im_comm_table mpi_table;

/* Seconds. PATIENCE: of a start before it is told; HEAR: between two looks for notices; GRACE: what a rank of a dead world gives the others to
 * come to the end. */
static const double DEADLINE = 300, GRACE = 5, PATIENCE = 20;
static const double SLOW_TRIP = 0.5e-3, SLOW_BANDWIDTH = 1e9; /* a link where a nap of 0.1 ms costs nothing */
static const double NEAR_SPIN = 200e-6;                       /* longer than it takes another core to come, shorter than a time slice */
enum { HEAR_NS = 10000000 };
enum { PIECE = 1 << 30, BLOCK = 256 << 10, QUIT_CODE = 1 };

/* ---- failing ------------------------------------------------------------------------------ */

im_status im_mpi_error(im_comm_mpi_world *w, int error, const char *what)
{
    char text[512];
    w->mpi->explain(error, text, sizeof text);
    return im_fail(w->ctx, IM_ERR_IO, "MPI: %s: %s", what, text);
}

im_status im_mpi_killed(im_context *ctx, im_comm_mpi_world *w, const char *what)
{
    return im_fail(ctx, IM_ERR_ABORTED, "%s: %s", what, w->told.reason);
}

void im_mpi_kill(im_comm_mpi_world *w, const char *verb, const char *reason, const im_comm *c, const im_comm_call *call)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->dead)) {
        w->told = (im_mpi_notice){0};
        if (call)
            w->told = (im_mpi_notice){.mismatch = 1, .group = c->id, .seq = call->seq};
        snprintf(w->told.reason, sizeof w->told.reason, *reason ? "rank %d %s: %s" : "rank %d %s", w->at.rank, verb, reason);
        atomic_store(&w->dead, true);
        for (int i = 0; i < w->at.size; i++)
            if (i != w->at.rank && im_mpi_control_send(w, &w->telling, &w->told, sizeof w->told, i, IM_MPI_TAG_NOTICE) != IM_OK)
                im_log(w->ctx, IM_LOG_WARN, "comm", "rank %d could not be told of the failure", i);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Under the lock. The first notice counts; later ones are heard and forgotten. */
static void hear(im_comm_mpi_world *w)
{
    bool done;
    for (int i = 0; i < w->at.size; i++) {
        if (w->mpi->test(1, w->hearing.request, &done) || !done)
            return;
        w->heard.reason[sizeof w->heard.reason - 1] = '\0';
        if (!atomic_load(&w->dead)) {
            w->told = w->heard;
            atomic_store(&w->dead, true);
        }
        w->hearing.n = 0;
        if (im_mpi_control_receive(w, &w->hearing, &w->heard, sizeof w->heard, -1, IM_MPI_TAG_NOTICE) != IM_OK)
            return;
    }
}

/* ---- the keeper ---------------------------------------------------------------------------- */

/* ---- the start and the end -------------------------------------------------------------------- */

/* Keeper's thread. */
static im_status begin(im_comm_mpi_world *w)
{
    const char *build = im_build_id();
    int e = w->mpi->start(&w->state, im_hash64(build, strlen(build), 0), &w->at);
    if (e) {
        char text[512];
        w->mpi->explain(e, text, sizeof text);
        return im_fail(w->ctx, IM_ERR_IO, "MPI did not start: %s", text);
    }
    if (w->at.other_build >= 0)
        return im_fail(w->ctx, IM_ERR_ARG,
                       "rank %d is another build of imece than rank 0 (`imece --version` tells both): the same program everywhere",
                       w->at.other_build);
    if (w->at.without_level >= 0)
        return im_fail(w->ctx, IM_ERR_UNSUPPORTED,
                       "rank %d: this MPI does not give the thread level MPI_THREAD_SERIALIZED, which is needed: an MPI built with threads",
                       w->at.without_level);
    IM_TRY(im_mpi_measure_links(w));
    IM_TRY(im_mpi_find_neighbours(w));
    return im_mpi_control_receive(w, &w->hearing, &w->heard, sizeof w->heard, -1, IM_MPI_TAG_NOTICE);
}

/* Whether all ranks have come to the end, within the time. */
static bool all_leave(im_comm_mpi_world *w, double seconds)
{
    bool done = false, asked = false;
    char request[64];
    double t0 = im_clock_now();
    do {
        pthread_mutex_lock(&w->lock);
        if (!asked)
            asked = !w->mpi->barrier(w->state, request);
        if (!asked || w->mpi->test(1, request, &done))
            t0 = -seconds;
        hear(w);
        pthread_mutex_unlock(&w->lock);
        if (!done)
            (void)nanosleep(&(struct timespec){.tv_nsec = HEAR_NS / 10}, NULL);
    } while (!done && im_clock_now() - t0 < (atomic_load(&w->dead) && seconds > GRACE ? GRACE : seconds));
    return done;
}

/* A rank that is not there would hold MPI_Finalize for ever; and a world that is dead has messages that nobody receives,
 * so it ends without: the launcher counts that as a failure, as it is one. */
static void end(im_comm_mpi_world *w)
{
    bool all = all_leave(w, w->deadline);
    if (!all) {
        im_log(w->ctx, IM_LOG_ERROR, "comm", "the job is ended: %s", atomic_load(&w->dead) ? w->told.reason : "a rank did not come to the end");
        w->mpi->quit(w->state, QUIT_CODE);
    } else if (atomic_load(&w->dead)) {
        if (w->exit_code && !strncmp(w->at.library, "MPICH", 5)) { /* its launcher may take an end without MPI_Finalize for success (4.2.1) */
            (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* what was told is on its way */
            w->mpi->quit(w->state, w->exit_code);
        }
    } else {
        im_mpi_give_up(w, &w->hearing);
        int e = w->mpi->finish(w->state);
        if (e)
            im_log(w->ctx, IM_LOG_WARN, "comm", "MPI did not end well: error %d", e);
    }
}

static void *keep(void *arg)
{
    im_comm_mpi_world *w = arg;
    im_status s = begin(w);
    pthread_mutex_lock(&w->doorway);
    w->status = s;
    w->started = true;
    pthread_cond_broadcast(&w->changed);
    while (s == IM_OK && !w->stop) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += HEAR_NS;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&w->changed, &w->doorway, &t) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&w->doorway);
        pthread_mutex_lock(&w->lock);
        hear(w);
        pthread_mutex_unlock(&w->lock);
        pthread_mutex_lock(&w->doorway);
    }
    pthread_mutex_unlock(&w->doorway);
    if (s == IM_OK)
        end(w);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------- */

static im_status load(im_comm_mpi_world *w, const char *path)
{
    w->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!w->library)
        return im_fail(w->ctx, IM_ERR_NOT_FOUND, "the MPI plug-in cannot be opened: %s", dlerror());
    im_mpi_plugin_fn get;
    void *symbol = dlsym(w->library, IM_MPI_PLUGIN_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    w->mpi = get ? get() : NULL;
    if (!w->mpi || w->mpi->table_bytes != sizeof *w->mpi || w->mpi->request_bytes > 64)
        return im_fail(w->ctx, IM_ERR_FORMAT, "%s is not an MPI plug-in of this build", path);
    return IM_OK;
}

/* With a core for each thread that waits beside the one that computes, waits spin. */
static void choose(im_comm_mpi_world *w)
{
    static const char *const how[] = {
        [IM_MPI_SPIN] = "a core to spare for each: waits spin",
        [IM_MPI_YIELD] = "no core to spare: waits give theirs away",
        [IM_MPI_SLEEP] = "no core to spare and slow links: waits sleep",
    };
    static const char *const near_how[] = {"fewer cores than ranks: waits sleep", "a core for each: waits look for a while, then sleep"};
    int cores = w->cores;
    bool slow = w->at.local_size < w->at.size && (w->at.trip > SLOW_TRIP || w->at.bandwidth < SLOW_BANDWIDTH);
    w->waiting = cores >= 2 * w->at.local_size ? IM_MPI_SPIN : slow ? IM_MPI_SLEEP : IM_MPI_YIELD;
    w->spin = cores >= w->at.local_size ? NEAR_SPIN : 0;
    bool near = w->machine[w->at.rank] >= 0;
    if (w->at.rank == 0)
        im_log(w->ctx, IM_LOG_INFO, "comm", "%s: %d ranks, %d on this machine with %d cores%s; 8 bytes there and back in %.1f us, %.2f GB/s%s; %s",
               w->at.library, w->at.size, w->at.local_size, cores, near ? ", which share memory" : "", w->at.trip * 1e6, w->at.bandwidth / 1e9,
               w->way, near && w->at.local_size == w->at.size ? near_how[w->spin > 0] : how[w->waiting]);
}

/* In MPI_Init ranks wait for one another, for ever. */
static bool wait_for_start(im_comm_mpi_world *w, double deadline)
{
    double t0 = im_clock_now();
    bool told = false;
    pthread_mutex_lock(&w->doorway);
    while (!w->started && im_clock_now() - t0 < deadline) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec++;
        (void)pthread_cond_timedwait(&w->changed, &w->doorway, &t);
        if (!w->started && !told && im_clock_now() - t0 > PATIENCE) {
            im_log(w->ctx, IM_LOG_WARN, "comm", "MPI is starting since %.0f s: not all processes of the job have come to it", PATIENCE);
            told = true;
        }
    }
    bool started = w->started;
    if (!started)
        w->ctx = NULL; /* the caller's context may end before the keeper does */
    pthread_mutex_unlock(&w->doorway);
    return started;
}

/* Not the library: MPI's threads and handlers at exit are in it. */
static void world_free(im_comm_mpi_world *w)
{
    im_mpi_set_free(&w->hearing);
    im_mpi_set_free(&w->telling);
    im_near_leave(&w->whole);
    free(w->machine);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->doorway);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

im_status im_comm_mpi_world_create(im_context *ctx, const im_comm_mpi_config *cfg, im_comm_mpi_world **out)
{
    im_status status;
    void *p;
    if (cfg->deadline < 0 || cfg->start < 0)
        return im_fail(ctx, IM_ERR_ARG, "a deadline of %g seconds: above 0, or 0 for %g", cfg->deadline < 0 ? cfg->deadline : cfg->start, DEADLINE);
    if ((cfg->piece && cfg->piece < sizeof(im_mpi_frame)) || cfg->piece > PIECE || cfg->block % 64)
        return im_fail(ctx, IM_ERR_ARG, "messages of %zu bytes in blocks of %zu: %zu to %d, and a multiple of 64", cfg->piece, cfg->block,
                       sizeof(im_mpi_frame), PIECE);
    IM_TRY(im_alloc(ctx, 1, sizeof(im_comm_mpi_world), &p));
    im_comm_mpi_world *w = p;
    w->ctx = ctx;
    w->deadline = cfg->deadline > 0 ? cfg->deadline : DEADLINE;
    w->piece = cfg->piece ? cfg->piece : PIECE;
    w->block = cfg->block ? cfg->block : BLOCK;
    w->apart = cfg->apart;
    w->slot = 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->doorway, NULL);
    pthread_cond_init(&w->changed, NULL);
    IM_TRY_GOTO(load(w, cfg->plugin), free_world);
    if (pthread_create(&w->keeper, NULL, keep, w)) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no thread for MPI");
        goto free_world;
    }
    double most = cfg->start > 0 ? cfg->start : DEADLINE;
    if (!wait_for_start(w, most))
        return im_fail(ctx, IM_ERR_TIMEOUT,
                       "MPI did not start in %g s: a process of the job ended before it came to that, or has not come yet, or cannot be reached",
                       most); /* w is the keeper's, which may still be in MPI_Init */
    status = w->status;
    if (status != IM_OK) {
        pthread_join(w->keeper, NULL);
        goto free_world;
    }
    w->cores = cfg->cores ? cfg->cores : w->cores;
    choose(w);
    *out = w;
    return IM_OK;
free_world:
    world_free(w);
    return status;
}

void im_comm_mpi_world_destroy(im_comm_mpi_world *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->doorway);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->doorway);
    pthread_join(w->keeper, NULL);
    if (!atomic_load(&w->dead)) /* else MPI still knows buffers in it */
        world_free(w);
}

void im_comm_mpi_world_abort(im_comm_mpi_world *w, const char *reason)
{
    im_mpi_kill(w, "failed", reason, NULL, NULL);
}

void im_comm_mpi_world_exit_code(im_comm_mpi_world *w, int code)
{
    w->exit_code = code;
}

void im_comm_mpi_world_deadline(im_comm_mpi_world *w, double seconds)
{
    w->deadline = seconds;
}

void im_comm_mpi_world_give_up(im_comm_mpi_world *w, const char *reason)
{
    im_mpi_kill(w, "gave up", reason, NULL, NULL);
}

im_comm_mpi_place im_comm_mpi_where(const im_comm_mpi_world *w)
{
    return (im_comm_mpi_place){.cores = w->cores,
                               .rank = w->at.rank,
                               .size = w->at.size,
                               .local_rank = w->at.local_rank,
                               .local_size = w->at.local_size,
                               .library = w->at.library};
}

/* ---- communicators ------------------------------------------------------------------------------ */

static void mpi_destroy(im_comm *c)
{
    im_mpi_comm *m = (im_mpi_comm *)c;
    im_mpi_set_free(&m->frames);
    im_mpi_set_free(&m->pieces);
    im_mpi_set_free(&m->results);
    for (int i = 0; i < IM_MPI_DEPTH; i++) {
        im_mpi_set_free(&m->blocks[i]);
        im_mpi_set_free(&m->sums[i]);
    }
    if (!atomic_load(&m->world->dead)) { /* else MPI may still know them */
        free(m->frame);
        free(m->letter);
        free(m->staging);
    }
    im_near_leave(&m->own);
    free(m->from);
    free(m->src);
    free(m->seen);
    im_comm_fini(c);
    free(m);
}

/* own: memory of this group, which it takes over when it succeeds; or NULL. */
static im_status create(im_comm_mpi_world *w, im_device *d, const im_comm_group *g, int slot, im_near *own, im_comm **out)
{
    im_context *ctx = im_device_context(d);
    im_status status;
    void *p;
    size_t n = (size_t)g->size;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_mpi_comm), &p));
    im_mpi_comm *m = p;
    status = im_comm_init(&m->head, &mpi_table, d, g->rank, g->size, g->members, g->id, w->deadline);
    if (status != IM_OK) {
        free(m);
        return status;
    }
    m->world = w;
    m->head.fate = &w->dead;
    m->own.fd = -1;
    m->tag = slot * IM_MPI_TAGS;
    IM_TRY_GOTO(im_alloc(ctx, n, sizeof *m->frame, &p), destroy);
    m->frame = p;
    IM_TRY_GOTO(im_alloc(ctx, n, sizeof *m->src, &p), destroy);
    m->src = p;
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof *m->from, &p), destroy);
    m->from = p;
    IM_TRY_GOTO(im_alloc(ctx, n, sizeof *m->seen, &p), destroy);
    m->seen = p;
    if (own && own->base) {
        m->own = *own;
        m->near = &m->own;
    } else if (!g->id && w->whole.base && !w->attached) { /* its counts go on from one communicator only */
        m->near = &w->whole;
        w->attached = true;
    }
    *out = &m->head;
    return IM_OK;
destroy:
    mpi_destroy(&m->head);
    return status;
}

im_status im_comm_mpi_attach(im_comm_mpi_world *w, im_device *d, im_comm **out)
{
    im_comm_group all = {.size = w->at.size, .rank = w->at.rank};
    return create(w, d, &all, 0, NULL, out);
}

/* ---- groups: their tags and their memory ------------------------------------------------------------- */

typedef struct proposal {
    uint32_t group;
    int32_t slot;      /* the lowest that the member never used; in the second round: the one that all take */
    im_near_door door; /* fd: of the first member */
} proposal;

/* Whose proposal did not come: the first requests of the set are those of the other members, in their order. */
static im_status not_all_came(im_comm_mpi_world *w, im_context *ctx, const im_comm_group *g, im_mpi_set *set)
{
    const im_comm group = {.size = g->size, .members = (int *)(uintptr_t)g->members}; /* only read */
    im_str who = {0};
    void *p;
    IM_TRY(im_alloc(ctx, (size_t)g->size, sizeof(bool), &p));
    bool *missing = p;
    im_status s = IM_OK;
    for (int i = 0, k = 0; i < g->size && s == IM_OK; i++) {
        bool came = true;
        if (i != g->rank)
            s = im_mpi_test(w, set, k++, 1, &came);
        missing[i] = !came;
    }
    im_comm_rank_list(&group, missing, &who);
    if (s == IM_OK)
        s = im_fail(ctx, IM_ERR_TIMEOUT, "a group of %d ranks: not all of them came to make it in %g s: not arrived: rank %s", g->size, w->deadline,
                    im_str_text(&who));
    im_str_free(&who);
    free(missing);
    return s;
}

/* Members wait for one another here, so ranks split in the same order. What is still to be received after an error goes into all. */
static im_status swap(im_comm_mpi_world *w, im_context *ctx, const im_comm_group *g, proposal *all, im_mpi_set *set)
{
    im_status s = IM_OK;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < g->size && s == IM_OK; i++)
        if (i != g->rank)
            s = im_mpi_control_receive(w, set, &all[i], sizeof *all, g->members[i], IM_MPI_TAG_SPLIT);
    for (int i = 0; i < g->size && s == IM_OK; i++)
        if (i != g->rank)
            s = im_mpi_control_send(w, set, &all[g->rank], sizeof *all, g->members[i], IM_MPI_TAG_SPLIT);
    pthread_mutex_unlock(&w->lock);
    IM_TRY(s);
    im_mpi_wait wait = {.w = w, .deadline = w->deadline};
    s = im_mpi_wait_all(set, &wait);
    if (s == IM_ERR_TIMEOUT)
        return not_all_came(w, ctx, g, set);
    if (s == IM_ERR_ABORTED)
        return im_mpi_killed(ctx, w, "a group was made");
    IM_TRY(s);
    for (int i = 0; i < g->size; i++)
        if (all[i].group != g->id)
            return im_fail(ctx, IM_ERR_ARG, "rank %d makes another group than rank %d: groups are made in the same order", g->members[i], w->at.rank);
    return IM_OK;
}

/* The slot is the highest of those that members say, so it is free on all. The memory's door closes when all are in. */
static im_status agree(im_comm_mpi_world *w, im_context *ctx, const im_comm_group *g, proposal *all, im_mpi_set *set, im_near *near)
{
    int slot = 0;
    bool share = im_mpi_all_near(w, g->members, g->size);
    if (share && g->rank == 0)
        IM_TRY(im_near_make(ctx, g->size, g->rank, near));
    all[g->rank] = (proposal){.group = g->id, .slot = w->slot, .door = im_near_door_of(near)};
    IM_TRY(swap(w, ctx, g, all, set));
    for (int i = 0; i < g->size; i++)
        slot = all[i].slot > slot ? all[i].slot : slot;
    if (slot >= w->at.most_tag / IM_MPI_TAGS)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "more than %d groups: this MPI has tags up to %d", slot, w->at.most_tag);
    w->slot = slot + 1;
    if (!share)
        return IM_OK;
    if (g->rank != 0)
        IM_TRY(im_near_enter(ctx, all[0].door, g->size, g->rank, near));
    for (int i = 0; i < g->size; i++)
        near->pid[i] = all[i].door.pid;
    all[g->rank].slot = slot;
    IM_TRY(swap(w, ctx, g, all, set));
    im_near_close_door(near);
    return IM_OK;
}

static im_status mpi_split(im_comm *parent, const im_comm_group *g, im_comm **out)
{
    im_comm_mpi_world *w = ((im_mpi_comm *)parent)->world;
    im_mpi_set set = {0};
    im_near near = {.fd = -1};
    void *p;
    IM_TRY(im_alloc(parent->ctx, (size_t)g->size, sizeof(proposal), &p));
    im_status s = agree(w, parent->ctx, g, p, &set, &near);
    if (s != IM_OK) { /* what is still to be received goes into p */
        im_mpi_kill(w, "gave up", im_error_text(parent->ctx), NULL, NULL);
        im_mpi_give_up(w, &set);
    }
    im_mpi_set_free(&set);
    if (s == IM_OK) {
        free(p);
        s = create(w, parent->device, g, w->slot - 1, &near, out);
    }
    if (s != IM_OK)
        im_near_leave(&near);
    return s;
}

static im_status mpi_run(im_comm *c, im_comm_call *call)
{
    im_mpi_comm *m = (im_mpi_comm *)c;
    if (atomic_load(&m->world->dead))
        return im_mpi_killed(c->ctx, m->world, im_comm_op_name(call->op));
    if (call->op != IM_COMM_SEND && call->op != IM_COMM_RECV)
        return m->near ? im_mpi_near_collective(m, call) : im_mpi_collective(m, call);
    if (call->peer != c->rank)
        return m->near ? im_mpi_near_messages(m, call) : im_mpi_messages(m, call);
    if (call->out.nbytes && call->dst != call->src)
        memcpy(call->dst, call->src, call->out.nbytes);
    return IM_OK;
}

static im_status mpi_error(im_comm *c)
{
    im_comm_mpi_world *w = ((im_mpi_comm *)c)->world;
    return atomic_load(&w->dead) ? im_mpi_killed(c->ctx, w, "communicator") : IM_OK;
}

static void mpi_abort(im_comm *c, const char *reason)
{
    im_mpi_kill(((im_mpi_comm *)c)->world, "failed", reason, NULL, NULL);
}

static const im_comm_table mpi_table = {
    .name = "mpi",
    .run = mpi_run,
    .split = mpi_split,
    .destroy = mpi_destroy,
    .error = mpi_error,
    .abort = mpi_abort,
};
