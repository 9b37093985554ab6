/* The ranks of a run as processes of an MPI job: each of them plans for itself, and before anything large is allocated they compare what
 * they planned. Rank 0 speaks and writes; the others are quiet. A rank that fails tells all others. */
#include "train/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

im_status im_train_processes_join(im_train_run *r)
{
    if (!r->env->mpi)
        return IM_OK;
    im_comm_mpi_place at = im_comm_mpi_where(r->env->mpi);
    if (at.size != r->ranks)
        return im_fail(r->ctx, IM_ERR_ARG,
                       "tp %" PRId64 " x dp %" PRId64 " x pp %" PRId64
                       " = %d ranks, but the job has %d process%s: start %d with the launcher (mpirun -n %d), or change tp, dp, pp",
                       r->o.tp, r->o.dp, r->o.pp, r->ranks, at.size, at.size == 1 ? "" : "es", r->ranks, r->ranks);
    r->rank = at.rank;
    return IM_OK;
}

/* What must be the same on all ranks. */
static uint64_t digest(const im_train_run *r)
{
    im_str text = {0};
    const im_plan *p = &r->plan;
    im_str_printf(&text, "%s %s %d %d %d %d %d %d %d ", IM_VERSION_STRING, r->from, p->mesh.tp, p->mesh.cp, p->mesh.dp, p->mesh.pp, p->zero,
                  p->sequence_parallel, p->recompute);
    im_str_printf(&text, "%d %d %s ", (int)p->schedule, im_plan_chunks(p), r->o.stages);
    im_str_printf(&text, "%" PRId64 " %" PRId64 " %" PRId64 " %d %.17g %.17g %.17g %.17g %.17g %.17g %" PRIu64 " ", p->seq_len, p->micro_batch,
                  p->global_batch, (int)p->precision, p->dropout, p->label_smoothing, p->beta1, p->beta2, p->eps, p->weight_decay, p->seed);
    im_str_printf(&text, "%" PRIx64 " %" PRIx64 " %" PRId64 " %" PRId64 " %" PRId64 " %d ", im_feed_fingerprint(r->data),
                  r->valid ? im_feed_fingerprint(r->valid) : 0, r->total_steps, r->o.eval_every, r->o.save_every, r->o.order);
    im_str_printf(&text, "%d %d %d ", p->documents, im_feed_pack(r->data), r->o.too_long);
    im_str_printf(&text, "%.17g %d %" PRId64 " %.17g %.17g %.17g %zu %d", r->o.lr, r->o.schedule, r->o.warmup, r->o.decay, r->o.min_lr, r->o.clip,
                  r->model->nparam, r->o.nonfinite);
    uint64_t h = im_hash64(im_str_text(&text), text.len, 0);
    for (size_t i = 0; i < r->model->nparam; i++)
        h = im_hash64(r->model->param[i].shape, sizeof r->model->param[i].shape, h);
    im_str_free(&text);
    return h;
}

/* What each rank tells the others first. */
typedef struct hello {
    uint64_t digest;
    im_process process;
} hello;

static im_status compare_with(im_train_run *r, const hello *all)
{
    im_str other = {0};
    for (int i = 1; i < r->ranks; i++)
        if (all[i].digest != all[0].digest)
            im_str_printf(&other, " %d", i);
    im_status s = IM_OK;
    if (other.len)
        s = im_fail(r->ctx, IM_ERR_ARG,
                    "rank%s planned another run than rank 0: other options, data, model or version; every process gets the same command line",
                    im_str_text(&other));
    im_str_free(&other);
    return s;
}

static im_status exchange(im_train_run *r, hello *all)
{
    hello mine = {.digest = digest(r), .process = im_process_self()};
    size_t counts[IM_TRAIN_MAX_RANKS], nbytes = (size_t)r->ranks * sizeof mine;
    im_queue *q = im_device_queue(r->device, IM_QUEUE_COMM0);
    im_buffer out = {.arena = IM_CLASS_COMM, .nbytes = nbytes},
              in = {.arena = IM_CLASS_COMM, .offset = (size_t)r->rank * sizeof mine, .nbytes = sizeof mine};
    int list[IM_TRAIN_MAX_RANKS];
    if (!q)
        return im_error_code(r->ctx);
    for (int i = 0; i < r->ranks; i++) {
        counts[i] = sizeof mine;
        list[i] = i;
    }
    im_comm *c; /* of its own: the world's queue is the engine's choice */
    IM_TRY(im_comm_split(r->world, list, r->ranks, &c));
    im_status status;
    IM_TRY_GOTO(im_device_reserve(r->device, IM_CLASS_COMM, nbytes), destroy_comm);
    IM_TRY_GOTO(im_queue_upload(q, in, &mine, sizeof mine), destroy_comm);
    IM_TRY_GOTO(im_comm_all_gather(c, q, in, out, counts, IM_U8, NULL), destroy_comm);
    IM_TRY_GOTO(im_queue_download(q, all, out, nbytes), destroy_comm);
    IM_TRY_GOTO(im_device_sync(r->device), destroy_comm);
destroy_comm:
    im_comm_destroy(c);
    im_device_release(r->device, IM_CLASS_COMM);
    return status;
}

static im_status compare(im_train_run *r)
{
    hello all[IM_TRAIN_MAX_RANKS];
    im_process process[IM_TRAIN_MAX_RANKS];
    IM_TRY(exchange(r, all));
    for (int i = 0; i < r->ranks; i++) {
        all[i].process.host[sizeof all[i].process.host - 1] = 0;
        process[i] = all[i].process;
    }
    if (r->watchdog)
        im_train_watchdog_peers(r, process);
    return compare_with(r, all);
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
    return compare(r);
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
