/* group: a communicator with a queue of its own, and its calls on tensors. */
#include "api/internal.h"

#include <stdlib.h>

/* ---- life ------------------------------------------------------------------------------------ */

static void end_object(im_api_object *o)
{
    im_group *g = (im_group *)o;
    im_api_object_remove(g->rank, o);
    im_comm_destroy(g->comm);
    free(g->pending);
    if (g->rank->world == g)
        g->rank->world = NULL;
    free(g);
}

im_status im_api_group(im_rank *r, im_comm *comm, double deadline, im_group **out)
{
    /* More groups than queues share them: operations of a queue are in the order of the calls, which is the same on all members. */
    unsigned queue = IM_QUEUE_COMM0 + r->ngroup % (IM_QUEUE_MAX - IM_QUEUE_COMM0);
    void *p;
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_group), &p));
    im_group *g = p;
    *g = (im_group){.rank = r, .comm = comm, .queue = im_device_queue(r->device, queue), .deadline = deadline};
    if (!g->queue) {
        free(g);
        return im_error_code(r->ctx);
    }
    r->ngroup++;
    im_api_object_add(r, &g->object, end_object);
    *out = g;
    return IM_OK;
}

static im_status refuse_exchange(const im_group *g, const char *call)
{
    if (!g->exchanging)
        return IM_OK;
    return im_fail(g->rank->ctx, IM_ERR_ARG, "%s between im_group_exchange_begin and _end: only sends and receives may stand there", call);
}

im_status im_group_split(im_group *parent, const int *ranks, int n, im_group **out)
{
    im_comm *comm;
    IM_TRY(refuse_exchange(parent, "im_group_split"));
    IM_TRY(im_comm_split(parent->comm, ranks, n, &comm));
    im_comm_set_deadline(comm, parent->deadline);
    im_status status = im_api_group(parent->rank, comm, parent->deadline, out);
    if (status != IM_OK)
        im_comm_destroy(comm);
    return status;
}

void im_group_destroy(im_group *g)
{
    if (g && g->rank->world != g)
        end_object(&g->object);
}

int im_group_rank(const im_group *g)
{
    return im_comm_rank(g->comm);
}

int im_group_size(const im_group *g)
{
    return im_comm_size(g->comm);
}

im_rank *im_group_owner(const im_group *g)
{
    return g->rank;
}

void im_group_traffic(const im_group *g, uint64_t *operations, uint64_t *nbytes)
{
    im_comm_count count[IM_COMM_OP_COUNT];
    uint64_t calls = 0, bytes = 0;
    im_comm_counts(g->comm, count);
    for (int i = 0; i < IM_COMM_OP_COUNT; i++) {
        calls += count[i].calls;
        bytes += count[i].nbytes;
    }
    if (operations)
        *operations = calls;
    if (nbytes)
        *nbytes = bytes;
}

/* ---- checks ------------------------------------------------------------------------------------- */

static im_status check_pair(const im_group *g, const char *call, const im_tensor *in, const im_tensor *out)
{
    char x[96], y[96];
    IM_TRY(refuse_exchange(g, call));
    if (in->rank != g->rank || out->rank != g->rank)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: a tensor of another rank", call);
    im_api_shape_text(in, x, sizeof x);
    im_api_shape_text(out, y, sizeof y);
    if (in->view.dtype != out->view.dtype)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: in is %s, out is %s: one dtype", call, x, y);
    return IM_OK;
}

static im_status check_count(const im_group *g, const char *call, const char *what, const im_tensor *t, int64_t want)
{
    char shape[96];
    if (im_tensor_count(t) == want)
        return IM_OK;
    im_api_shape_text(t, shape, sizeof shape);
    return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: %s is %s, %lld elements; it must have %lld", call, what, shape, (long long)im_tensor_count(t),
                   (long long)want);
}

/* In place or apart: the part lies at element `at` of the whole. */
static im_status check_place(const im_group *g, const char *call, const im_tensor *part, const im_tensor *whole, int64_t at)
{
    if (!im_api_overlap(part, whole) || part->view.offset == whole->view.offset + at)
        return IM_OK;
    return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: in and out overlap; they may be apart, or the rank's part where it belongs", call);
}

/* counts of all members; *at: elements before this rank's. */
static im_status fill_counts(const im_group *g, const char *call, int64_t total, const int64_t *given, size_t *counts, int64_t *at)
{
    int size = im_group_size(g), rank = im_group_rank(g);
    int64_t sum = 0;
    for (int i = 0; i < size; i++) {
        int64_t first, end;
        im_part(total, size, i, &first, &end);
        int64_t n = given ? given[i] : end - first;
        if (n < 0 || n > total - sum)
            return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: counts[%d] is %lld; the counts add up to %lld and none is negative", call, i, (long long)n,
                           (long long)total);
        *at = i == rank ? sum : *at;
        sum += n;
        counts[i] = (size_t)n;
    }
    if (sum != total)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: the counts add up to %lld, not to %lld", call, (long long)sum, (long long)total);
    return IM_OK;
}

/* ---- collectives ---------------------------------------------------------------------------------- */

static im_status before(im_group *g, const im_tensor *in, const im_tensor *out)
{
    IM_TRY(im_api_before(in, g->queue, in == out));
    return in == out ? IM_OK : im_api_before(out, g->queue, true);
}

/* What was started of an operation, though it failed, is on the queue too. */
static void after(im_group *g, const im_tensor *in, const im_tensor *out)
{
    im_event e = im_queue_last(g->queue);
    im_api_after(in, e, false);
    im_api_after(out, e, true);
}

im_status im_group_all_reduce(im_group *g, const im_tensor *in, im_tensor *out, im_reduce op)
{
    const char *call = "im_group_all_reduce";
    IM_TRY(check_pair(g, call, in, out));
    IM_TRY(check_count(g, call, "out", out, im_tensor_count(in)));
    IM_TRY(check_place(g, call, in, out, 0));
    IM_TRY(before(g, in, out));
    IM_TRY(im_comm_all_reduce(g->comm, g->queue, im_api_buffer(in), im_api_buffer(out), (size_t)im_tensor_count(in), im_tensor_dtype(in), op, NULL));
    after(g, in, out);
    return IM_OK;
}

static im_status alloc_counts(const im_group *g, size_t **out)
{
    void *p;
    IM_TRY(im_alloc(g->rank->ctx, (size_t)im_group_size(g), sizeof(size_t), &p));
    *out = p;
    return IM_OK;
}

static im_status reduce_scatter(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *given, im_reduce op, size_t *counts)
{
    const char *call = "im_group_reduce_scatter";
    int64_t at = 0;
    IM_TRY(fill_counts(g, call, im_tensor_count(in), given, counts, &at));
    IM_TRY(check_count(g, call, "out", out, (int64_t)counts[im_group_rank(g)]));
    IM_TRY(check_place(g, call, out, in, at));
    IM_TRY(before(g, in, out));
    IM_TRY(im_comm_reduce_scatter(g->comm, g->queue, im_api_buffer(in), im_api_buffer(out), counts, im_tensor_dtype(in), op, NULL));
    after(g, in, out);
    return IM_OK;
}

im_status im_group_reduce_scatter(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *counts, im_reduce op)
{
    size_t *all;
    IM_TRY(check_pair(g, "im_group_reduce_scatter", in, out));
    IM_TRY(alloc_counts(g, &all));
    im_status status = reduce_scatter(g, in, out, counts, op, all);
    free(all);
    return status;
}

static im_status all_gather(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *given, size_t *counts)
{
    const char *call = "im_group_all_gather";
    int64_t at = 0;
    IM_TRY(fill_counts(g, call, im_tensor_count(out), given, counts, &at));
    IM_TRY(check_count(g, call, "in", in, (int64_t)counts[im_group_rank(g)]));
    IM_TRY(check_place(g, call, in, out, at));
    IM_TRY(before(g, in, out));
    IM_TRY(im_comm_all_gather(g->comm, g->queue, im_api_buffer(in), im_api_buffer(out), counts, im_tensor_dtype(in), NULL));
    after(g, in, out);
    return IM_OK;
}

im_status im_group_all_gather(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *counts)
{
    size_t *all;
    IM_TRY(check_pair(g, "im_group_all_gather", in, out));
    IM_TRY(alloc_counts(g, &all));
    im_status status = all_gather(g, in, out, counts, all);
    free(all);
    return status;
}

im_status im_group_broadcast(im_group *g, im_tensor *t, int root)
{
    IM_TRY(check_pair(g, "im_group_broadcast", t, t));
    IM_TRY(before(g, t, t));
    IM_TRY(im_comm_broadcast(g->comm, g->queue, im_api_buffer(t), (size_t)im_tensor_count(t), im_tensor_dtype(t), root, NULL));
    after(g, t, t);
    return IM_OK;
}

im_status im_group_all_to_all(im_group *g, const im_tensor *in, im_tensor *out)
{
    const char *call = "im_group_all_to_all";
    int64_t count = im_tensor_count(in), size = im_group_size(g);
    IM_TRY(check_pair(g, call, in, out));
    if (count % size)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: %lld elements are no %lld equal pieces", call, (long long)count, (long long)size);
    IM_TRY(check_count(g, call, "out", out, count));
    if (im_api_overlap(in, out))
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: in and out overlap", call);
    IM_TRY(before(g, in, out));
    IM_TRY(im_comm_all_to_all(g->comm, g->queue, im_api_buffer(in), im_api_buffer(out), (size_t)(count / size), im_tensor_dtype(in), NULL));
    after(g, in, out);
    return IM_OK;
}

im_status im_group_error(im_group *g)
{
    return im_comm_error(g->comm);
}

im_status im_group_barrier(im_group *g, double seconds)
{
    im_device *d = g->rank->device;
    IM_TRY(refuse_exchange(g, "im_group_barrier"));
    if (!(seconds >= 0))
        return im_fail(g->rank->ctx, IM_ERR_ARG, "im_group_barrier: %g seconds; 0 is the group's deadline", seconds);
    IM_TRY(im_event_wait(d, im_queue_last(g->queue))); /* nobody else reads the deadline now */
    if (seconds > 0)
        im_comm_set_deadline(g->comm, seconds);
    im_status status = im_comm_barrier(g->comm, g->queue, NULL);
    im_status end = im_event_wait(d, im_queue_last(g->queue));
    im_comm_set_deadline(g->comm, g->deadline);
    return status != IM_OK ? status : end;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

enum { MOST_PENDING = 512 };

static im_status note(im_group *g, const im_tensor *t, bool write)
{
    void *p;
    if (!g->pending) {
        IM_TRY(im_alloc(g->rank->ctx, MOST_PENDING, sizeof *g->pending, &p));
        g->pending = p;
    }
    if (g->npending == MOST_PENDING)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "an exchange of more than %d messages", MOST_PENDING);
    t->store->refs++; /* it may be destroyed before the exchange ends */
    g->pending[g->npending].store = t->store;
    g->pending[g->npending++].write = write;
    return IM_OK;
}

static im_status message(im_group *g, const im_tensor *t, int peer, bool send)
{
    const char *call = send ? "im_group_send" : "im_group_recv";
    size_t count = (size_t)im_tensor_count(t);
    if (t->rank != g->rank)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: a tensor of another rank", call);
    if (peer == im_group_rank(g))
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: rank %d to itself; im_tensor_copy does that", call, peer);
    IM_TRY(im_api_before(t, g->queue, !send));
    if (g->exchanging)
        IM_TRY(note(g, t, !send));
    IM_TRY(send ? im_comm_send(g->comm, g->queue, im_api_buffer(t), count, im_tensor_dtype(t), peer, NULL)
                : im_comm_recv(g->comm, g->queue, im_api_buffer(t), count, im_tensor_dtype(t), peer, NULL));
    if (!g->exchanging)
        im_api_after(t, im_queue_last(g->queue), !send);
    return IM_OK;
}

im_status im_group_send(im_group *g, const im_tensor *t, int peer)
{
    return message(g, t, peer, true);
}

im_status im_group_recv(im_group *g, im_tensor *t, int peer)
{
    return message(g, t, peer, false);
}

im_status im_group_exchange_begin(im_group *g)
{
    IM_TRY(refuse_exchange(g, "im_group_exchange_begin"));
    IM_TRY(im_comm_group_begin(g->comm));
    g->exchanging = true;
    return IM_OK;
}

im_status im_group_exchange_end(im_group *g)
{
    if (!g->exchanging)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "im_group_exchange_end without im_group_exchange_begin");
    g->exchanging = false;
    im_status status = im_comm_group_end(g->comm);
    im_event e = im_queue_last(g->queue);
    for (int i = 0; i < g->npending; i++) {
        im_tensor t = {.rank = g->rank, .store = g->pending[i].store};
        im_api_after(&t, e, g->pending[i].write);
        im_api_store_release(g->rank, t.store);
    }
    g->npending = 0;
    return status;
}

/* ---- columns -------------------------------------------------------------------------------------------- */

static im_status gather_blocks(im_group *g, const im_tensor *part, im_tensor *blocks, im_tensor *all)
{
    int64_t rows = all->view.shape[0], cols = all->view.shape[1], first, end;
    int size = im_group_size(g);
    void *p;
    IM_TRY(im_alloc(g->rank->ctx, (size_t)size, sizeof(int64_t), &p));
    int64_t *counts = p;
    for (int i = 0; i < size; i++) {
        im_part(cols, size, i, &first, &end);
        counts[i] = rows * (end - first);
    }
    im_status status = im_group_all_gather(g, part, blocks, counts);
    for (int i = 0; i < size && status == IM_OK; i++) {
        im_part(cols, size, i, &first, &end);
        im_api_operand from = {.t = blocks, .v = im_view_2d(im_tensor_dtype(all), rows, end - first)};
        from.v.offset = rows * first;
        status = im_api_copy(g->rank, from, im_api_columns(all, first, end));
    }
    free(p);
    return status;
}

/* Blocks come one after the other, (n, p) of each rank; then each is copied into its columns. */
im_status im_api_gather_columns(im_group *g, const im_tensor *part, im_tensor *all)
{
    int64_t count = im_tensor_count(all);
    im_tensor *blocks;
    IM_TRY(im_api_tensor(g->rank, IM_API_STAGING, im_tensor_dtype(all), 1, &count, &blocks));
    im_status status = gather_blocks(g, part, blocks, all);
    im_api_tensor_end(blocks);
    return status;
}
