/* The ranks of a run as processes of an MPI job: each of them plans for itself, and before anything large is allocated they compare what
 * they planned. Rank 0 speaks and writes; the others are quiet. A rank that fails tells all others. */
#include "train/internal.h"

#include "comm/crew.h"

/* What each rank tells the others first. */
typedef struct hello {
    im_train_fact fact[IM_TRAIN_FACTS];
    im_process process;
} hello;

static im_status exchange(im_train_run *r, im_comm *c, const hello *mine, hello *all, const size_t *counts)
{
    size_t nbytes = (size_t)r->ranks * sizeof *mine;
    im_queue *q = im_device_queue(r->device, IM_QUEUE_COMM0);
    im_buffer out = {.arena = IM_CLASS_COMM, .nbytes = nbytes},
              in = {.arena = IM_CLASS_COMM, .offset = (size_t)r->rank * sizeof *mine, .nbytes = sizeof *mine};
    if (!q)
        return im_error_code(r->ctx);
    IM_TRY(im_device_reserve(r->device, IM_CLASS_COMM, nbytes));
    IM_TRY(im_queue_upload(q, in, mine, sizeof *mine));
    IM_TRY(im_comm_all_gather(c, q, in, out, counts, IM_U8, NULL));
    IM_TRY(im_queue_download(q, all, out, nbytes));
    return im_device_sync(r->device);
}

static void meet(im_train_run *r, hello *all, im_process *process)
{
    for (int i = 0; i < r->ranks; i++) {
        all[i].process.host[sizeof all[i].process.host - 1] = 0;
        process[i] = all[i].process;
    }
    if (r->watchdog)
        im_train_watchdog_peers(r, process);
}

static im_status compare(im_train_run *r)
{
    size_t n = (size_t)r->ranks;
    hello *mine = IM_ARENA_NEW(r->arena, hello, 1), *all = IM_ARENA_NEW(r->arena, hello, n);
    im_process *process = IM_ARENA_NEW(r->arena, im_process, n);
    size_t *counts = IM_ARENA_NEW(r->arena, size_t, n);
    int *list = IM_ARENA_NEW(r->arena, int, n);
    im_comm *c; /* of its own: the world's queue is the engine's choice */
    if (!mine || !all || !process || !counts || !list)
        return im_fail(r->ctx, IM_ERR_NOMEM, "no memory to compare %d ranks", r->ranks);
    IM_TRY(im_train_facts(r, mine->fact));
    mine->process = im_process_self();
    for (int i = 0; i < r->ranks; i++) {
        counts[i] = sizeof *mine;
        list[i] = i;
    }
    IM_TRY(im_comm_split(r->world, list, r->ranks, &c));
    im_status status = exchange(r, c, mine, all, counts);
    im_comm_destroy(c);
    im_device_release(r->device, IM_CLASS_COMM);
    IM_TRY(status);
    meet(r, all, process);
    for (int i = 1; i < r->ranks && status == IM_OK; i++)
        status = im_train_facts_compare(r, i, all[i].fact, all[0].fact);
    return status;
}

im_status im_train_processes_start(im_train_run *r)
{
    im_comm_mpi_world_deadline(r->env->mpi, r->o.deadline);
    IM_TRY(im_train_open_device(r));
    IM_TRY(im_comm_mpi_attach(r->env->mpi, r->device, &r->world));
    if (r->ranks > 1) {
        IM_TRY(im_train_decorate(r));
        IM_TRY(im_train_watchdog_start(r));
        im_train_watchdog_add(r);
    }
    return im_crew_as_told(r->ctx, compare(r));
}

/* Rank 0 speaks for all; when it cannot, the lowest that can. A rank that waited in vain says so in any case: whom it waited for may
 * be who speaks. */
void im_train_processes_end(im_train_run *r, im_status status)
{
    if (status == IM_OK || r->agreed)
        return;
    im_comm_mpi_world_abort(r->env->mpi, im_error_text(r->ctx));
    bool speaks = im_train_watchdog_speaks(r);
    if (r->rank > 0 && (speaks || status == IM_ERR_TIMEOUT))
        im_train_cry(r, im_error_text(r->ctx));
    if (speaks)
        im_train_watchdog_report(r);
}
