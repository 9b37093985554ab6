#include "engine/agree.h"

#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

enum { IM_SHARE_BYTES = IM_AGREE_VALUES * sizeof(double) }; /* of the probe buffer */

int im_engine_ranks(const im_engine *e)
{
    return im_comm_size(e->world);
}

int im_engine_rank(const im_engine *e)
{
    return im_comm_rank(e->world);
}

double im_engine_deadline(const im_engine *e)
{
    return im_comm_deadline(e->world);
}

/* The world's communicator that programs reduce on, on its queue: both are idle between programs. */
static im_comm *world_of(im_engine *e, im_queue **q)
{
    *q = im_device_queue(e->device, IM_QUEUE_REDUCE);
    return e->group[IM_GROUP_WORLD][IM_QUEUE_REDUCE];
}

im_status im_engine_combine(im_engine *e, double *value, size_t n, im_reduce r)
{
    im_queue *q;
    im_event done;
    if (im_engine_ranks(e) == 1)
        return IM_OK;
    if (n > IM_AGREE_VALUES)
        return im_fail(e->ctx, IM_ERR_INTERNAL, "%zu values to combine, at most %d", n, IM_AGREE_VALUES);
    im_comm *c = world_of(e, &q);
    if (!q)
        return im_error_code(e->ctx);
    im_buffer b = e->probe;
    b.nbytes = n * sizeof *value;
    IM_TRY(im_engine_copy_in(e, b, value, b.nbytes));
    IM_TRY(im_comm_all_reduce(c, q, b, b, n, IM_F64, r, &done));
    IM_TRY(im_event_wait(e->device, done));
    return im_engine_copy_out(e, value, b, b.nbytes);
}

im_status im_engine_share(im_engine *e, void *data, size_t nbytes, int root)
{
    im_queue *q;
    im_event done;
    if (im_engine_ranks(e) == 1)
        return IM_OK;
    im_comm *c = world_of(e, &q);
    if (!q)
        return im_error_code(e->ctx);
    char *at = data;
    for (size_t n; nbytes; at += n, nbytes -= n) {
        n = nbytes < IM_SHARE_BYTES ? nbytes : IM_SHARE_BYTES;
        im_buffer b = e->probe;
        b.nbytes = n;
        IM_TRY(im_engine_copy_in(e, b, at, n));
        IM_TRY(im_comm_broadcast(c, q, b, n, IM_U8, root, &done));
        IM_TRY(im_event_wait(e->device, done));
        IM_TRY(im_engine_copy_out(e, at, b, n));
    }
    return IM_OK;
}

im_status im_engine_agree(im_engine *e, im_context *ctx, im_status own)
{
    struct {
        int32_t code;
        char text[508];
    } error = {.code = own};
    int ranks = im_engine_ranks(e), rank = im_engine_rank(e);
    double first = own != IM_OK ? rank : ranks;
    if (ranks == 1)
        return own;
    IM_TRY(im_engine_combine(e, &first, 1, IM_MIN));
    if (first >= ranks)
        return IM_OK;
    if (rank == (int)first)
        snprintf(error.text, sizeof error.text, "%s", im_error_text(ctx));
    IM_TRY(im_engine_share(e, &error, sizeof error, (int)first));
    error.text[sizeof error.text - 1] = 0;
    return own != IM_OK ? own : im_fail(ctx, (im_status)error.code, "rank %d: %s", (int)first, error.text);
}

_Static_assert((int)IM_CLASS_COUNT <= (int)IM_AGREE_VALUES, "one all-reduce tells a rank's classes");

im_status im_engine_rank_memory(im_engine *e, int rank, im_observe_memory *out)
{
    double predicted[IM_CLASS_COUNT], touched[IM_CLASS_COUNT];
    im_memory m;
    im_engine_memory(e, &m);
    for (int c = 0; c < IM_CLASS_COUNT; c++) {
        bool mine = rank == im_engine_rank(e);
        predicted[c] = mine ? (double)m.by_class[c] : 0;
        touched[c] = mine ? (double)im_engine_touched(e, (im_class)c) : 0;
    }
    IM_TRY(im_engine_combine(e, predicted, IM_CLASS_COUNT, IM_SUM));
    IM_TRY(im_engine_combine(e, touched, IM_CLASS_COUNT, IM_SUM));
    *out = (im_observe_memory){.rank = rank, .n = IM_CLASS_COUNT};
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        out->by_class[c] = (im_class_bytes){.name = im_class_name((im_class)c), .predicted = predicted[c], .measured = touched[c]};
    return IM_OK;
}

void im_engine_abort(im_engine *e)
{
    if (im_engine_ranks(e) > 1)
        im_comm_abort(e->world);
}
