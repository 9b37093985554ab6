/* comm_threads: each rank has a thread, a context, a device. */
#include "conform/comm_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rank_thread {
    pthread_t thread;
    const comm_threads_kind *kind;
    const comm_case *what;
    const char *dir;
    im_comm_threads_world *world;
    comm_rig rig;
} rank_thread;

static im_status decorate(rank_thread *t)
{
    static const im_comm_fault never = {.at = UINT64_MAX};
    comm_rig *r = &t->rig;
    char path[512];
    snprintf(path, sizeof path, "%s/%d", t->dir, r->rank);
    IM_TRY(im_comm_faulty(r->world, r->rank == r->size - 1 && t->kind->fault ? t->kind->fault : &never, &r->world));
    return im_comm_traced(r->world, path, &r->world);
}

static im_status open_rank(rank_thread *t)
{
    comm_rig *r = &t->rig;
    im_device_config cfg = {.deferred = t->kind->deferred, .threads = 1, .comm_threads = true, .slow_ns = t->kind->deferred ? 1000 : 0};
    IM_TRY(im_context_create(&r->ctx));
    im_context_set_rank(r->ctx, r->rank);
    IM_TRY(im_device_open(r->ctx, &cfg, &r->device));
    if (t->kind->self)
        IM_TRY(im_comm_self(r->device, &r->world));
    else
        IM_TRY(im_comm_threads_attach(t->world, r->device, r->rank, &r->world));
    return t->kind->decorated ? decorate(t) : IM_OK;
}

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    comm_rig *r = &t->rig;
    if (open_rank(t) != IM_OK)
        snprintf(r->failed, sizeof r->failed, "rank %d did not start: %s", r->rank, im_error_text(r->ctx));
    else
        t->what->run(r);
    if (r->failed[0] && r->world)
        im_comm_abort(r->world); /* or the others would wait for this rank */
    im_comm_destroy(r->world);
    im_device_close(r->device);
    im_context_destroy(r->ctx);
    return NULL;
}

static bool run_in(im_context *ctx, const comm_threads_kind *kind, const comm_case *what, int size, const char *dir)
{
    rank_thread t[COMM_MOST_RANKS];
    im_comm_threads_world *world = NULL;
    double deadline = what->deadline > 0 ? what->deadline : COMM_DEADLINE;
    im_comm_threads_config cfg = {.size = size, .deadline = deadline, .cores = kind->cores};
    if (im_comm_threads_world_create(ctx, &cfg, &world) != IM_OK)
        return false;
    for (int i = 0; i < size; i++) {
        t[i] = (rank_thread){.kind = kind, .what = what, .dir = dir, .world = world, .rig = {.rank = i, .size = size, .deadline = deadline}};
        if (pthread_create(&t[i].thread, NULL, rank_main, &t[i]) != 0)
            abort();
    }
    bool good = true;
    for (int i = 0; i < size; i++) {
        pthread_join(t[i].thread, NULL);
        if (t[i].rig.failed[0])
            fprintf(stderr, "%s, %d ranks: %s\n", kind->name, size, t[i].rig.failed);
        good &= !t[i].rig.failed[0];
    }
    im_comm_threads_world_destroy(world);
    return good;
}

bool comm_run_threads(const comm_threads_kind *kind, const comm_case *what, int size)
{
    char own[] = "/tmp/imece-comm-XXXXXX";
    const char *dir = kind->trace_dir;
    im_context *ctx;
    if (im_context_create(&ctx) != IM_OK)
        return false;
    if (kind->decorated && !dir && !(dir = mkdtemp(own)))
        return false;
    bool good = run_in(ctx, kind, what, size, dir);
    if (dir && dir != kind->trace_dir)
        good &= im_remove_tree(ctx, dir) == IM_OK;
    im_context_destroy(ctx);
    return good;
}
