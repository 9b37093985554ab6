/* bench_comm: times of collectives, one of many in the queue and one at a time. */
#include "cli/bench_comm.h"

#include <stdlib.h>
#include <string.h>

enum { TURNS = 7, MOST_RANKS = 1024 };

const char *const im_bench_comm_ops[IM_BENCH_COMM_OPS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "sendrecv"};

typedef im_bench_comm_rank rank_bench;

/* Even as far as it goes: the first ranks take one more. */
static void share_out(const rank_bench *b, size_t *counts)
{
    size_t size = (size_t)im_comm_size(b->c);
    for (size_t i = 0; i < size; i++)
        counts[i] = b->n / size + (i < b->n % size);
}

/* The operations that have a form in place, in `out`. */
static im_status once_in_place(const rank_bench *b, im_event *done)
{
    size_t counts[MOST_RANKS];
    im_buffer own = b->out;
    share_out(b, counts);
    for (int i = 0; i < im_comm_rank(b->c); i++)
        own.offset += counts[i] * sizeof(float);
    own.nbytes = counts[im_comm_rank(b->c)] * sizeof(float);
    switch (b->op) {
    case 0: return im_comm_all_reduce(b->c, b->q, b->out, b->out, b->n, IM_F32, IM_SUM, done);
    case 1: return im_comm_reduce_scatter(b->c, b->q, b->out, own, counts, IM_F32, IM_SUM, done);
    default: return im_comm_all_gather(b->c, b->q, own, b->out, counts, IM_F32, done);
    }
}

static im_status once(const rank_bench *b, im_event *done)
{
    size_t counts[MOST_RANKS], size = (size_t)im_comm_size(b->c);
    int rank = im_comm_rank(b->c);
    im_event *end = b->op == 5 ? NULL : done;
    if (b->in_place)
        return once_in_place(b, done);
    share_out(b, counts);
    switch (b->op) {
    case 0: return im_comm_all_reduce(b->c, b->q, b->in, b->out, b->n, IM_F32, IM_SUM, end);
    case 1: return im_comm_reduce_scatter(b->c, b->q, b->in, b->out, counts, IM_F32, IM_SUM, end);
    case 2: return im_comm_all_gather(b->c, b->q, b->in, b->out, counts, IM_F32, end);
    case 3: return im_comm_broadcast(b->c, b->q, rank ? b->out : b->in, b->n, IM_F32, 0, end);
    case 4: return im_comm_all_to_all(b->c, b->q, b->in, b->out, b->n / size, IM_F32, end);
    default:
        IM_TRY(im_comm_group_begin(b->c));
        IM_TRY(im_comm_send(b->c, b->q, b->in, b->n, IM_F32, (rank + 1) % (int)size, NULL));
        IM_TRY(im_comm_recv(b->c, b->q, b->out, b->n, IM_F32, (rank + (int)size - 1) % (int)size, done));
        return im_comm_group_end(b->c);
    }
}

/* Each rank's input is its number + 1; the first and the last element of the result tell. */
static im_status is_right(const rank_bench *b, bool *good)
{
    int size = im_comm_size(b->c), rank = im_comm_rank(b->c);
    size_t counts[MOST_RANKS], n = b->n;
    float sum = (float)size * (float)(size + 1) / 2, first = sum, last = sum, got[2];
    im_event done = {0};
    share_out(b, counts);
    if (b->op == 1)
        n = counts[rank];
    else if (b->op == 2 || b->op == 4)
        first = 1, last = (float)(n < (size_t)size ? n : (size_t)size);
    else if (b->op == 3)
        first = last = 1;
    else if (b->op == 5)
        first = last = (float)((rank + size - 1) % size + 1);
    if (b->op == 4)
        n = n / (size_t)size * (size_t)size;
    IM_TRY(once(b, &done));
    if (n) {
        im_buffer from = b->op == 3 && !rank ? b->in : b->out, end = from;
        end.offset += (n - 1) * sizeof(float);
        from.nbytes = end.nbytes = sizeof(float);
        IM_TRY(im_queue_download(b->q, &got[0], from, sizeof(float)));
        IM_TRY(im_queue_download(b->q, &got[1], end, sizeof(float)));
    }
    IM_TRY(im_event_wait(b->d, im_queue_last(b->q)));
    *good = !n || (got[0] == first && got[1] == last);
    return IM_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of one of `many` calls; the host waits after each, or after the last. */
static im_status time_once(const rank_bench *b, int many, bool blocking, double *seconds)
{
    im_event done = {0};
    IM_TRY(im_comm_barrier(b->c, b->q, &done));
    IM_TRY(im_event_wait(b->d, done));
    double t0 = im_clock_now();
    for (int i = 0; i < many; i++) {
        IM_TRY(once(b, &done));
        if (blocking)
            IM_TRY(im_event_wait(b->d, done));
    }
    IM_TRY(im_event_wait(b->d, done));
    *seconds = (im_clock_now() - t0) / many;
    return IM_OK;
}

/* Median of TURNS. */
static im_status time_calls(const rank_bench *b, int many, bool blocking, double *seconds)
{
    double t[TURNS];
    for (int turn = 0; turn < TURNS; turn++)
        IM_TRY(time_once(b, many, blocking, &t[turn]));
    qsort(t, TURNS, sizeof t[0], ascending);
    *seconds = t[TURNS / 2];
    return IM_OK;
}

static im_status fill(const rank_bench *b, size_t most)
{
    enum { CHUNK = 65536 };
    float *x = malloc(CHUNK * sizeof *x);
    if (!x)
        return im_fail(im_device_context(b->d), IM_ERR_NOMEM, "no memory for the bench");
    for (size_t i = 0; i < CHUNK; i++)
        x[i] = (float)(im_comm_rank(b->c) + 1);
    im_status s = IM_OK;
    for (size_t at = 0; at < most && s == IM_OK; at += CHUNK * sizeof *x) {
        im_buffer part = b->in;
        part.offset += at;
        part.nbytes = most - at < CHUNK * sizeof *x ? most - at : CHUNK * sizeof *x;
        s = im_queue_upload(b->q, part, x, part.nbytes);
    }
    if (s == IM_OK)
        s = im_event_wait(b->d, im_queue_last(b->q));
    free(x);
    return s;
}

static im_status bench_row(rank_bench *b, size_t nbytes, im_bench_comm_row *row)
{
    double size = im_comm_size(b->c);
    int many = nbytes < 4096 ? 200 : nbytes < (1 << 18) ? 50 : 5;
    *row = (im_bench_comm_row){.op = im_bench_comm_ops[b->op], .nbytes = nbytes};
    row->share = b->op == 0 ? 2 * (size - 1) / size : b->op == 3 || b->op == 5 ? 1 : (size - 1) / size;
    b->n = nbytes / sizeof(float);
    IM_TRY(is_right(b, &row->good)); /* warms up, too */
    IM_TRY(time_calls(b, many, false, &row->seconds));
    return time_calls(b, many / 5 + 1, true, &row->blocking);
}

im_status im_bench_comm_open(im_comm *world, im_device *d, size_t most, im_bench_comm_rank *out)
{
    rank_bench b = {.c = world, .d = d, .q = im_device_queue(d, IM_QUEUE_COMM0)};
    if (!b.q)
        return im_error_code(im_device_context(d));
    if (im_comm_size(world) > MOST_RANKS)
        return im_fail(im_device_context(d), IM_ERR_UNSUPPORTED, "%d ranks: the bench runs at most %d", im_comm_size(world), MOST_RANKS);
    IM_TRY(im_device_reserve(d, IM_CLASS_COMM, 2 * most));
    b.in = (im_buffer){.arena = IM_CLASS_COMM, .nbytes = most};
    b.out = (im_buffer){.arena = IM_CLASS_COMM, .offset = most, .nbytes = most};
    IM_TRY(fill(&b, most));
    *out = b;
    return IM_OK;
}

im_status im_bench_comm_turn(im_bench_comm_rank *b, const char *op, size_t nbytes, int many, im_bench_comm_row *row)
{
    for (b->op = 0; b->op < IM_BENCH_COMM_OPS && strcmp(op, im_bench_comm_ops[b->op]) != 0;)
        b->op++;
    if (b->op == IM_BENCH_COMM_OPS || many < 1)
        return im_fail(im_device_context(b->d), IM_ERR_ARG, "no operation %s, or %d times of it", op, many);
    b->n = nbytes / sizeof(float);
    *row = (im_bench_comm_row){.op = im_bench_comm_ops[b->op], .nbytes = nbytes};
    IM_TRY(is_right(b, &row->good));
    IM_TRY(time_once(b, many, false, &row->seconds));
    IM_TRY(time_once(b, many, true, &row->blocking));
    if (b->op > 2)
        return IM_OK;
    b->in_place = true;
    im_status s = time_once(b, many, false, &row->in_place);
    b->in_place = false;
    return s;
}

im_status im_bench_comm(im_comm *world, im_device *d, const char *only, size_t least, size_t most, im_bench_comm_row *row, size_t *n)
{
    rank_bench b;
    IM_TRY(im_bench_comm_open(world, d, most, &b));
    size_t rows = 0;
    for (b.op = 0; b.op < IM_BENCH_COMM_OPS; b.op++) {
        if (only && strcmp(only, im_bench_comm_ops[b.op]) != 0)
            continue;
        for (size_t nbytes = least; nbytes <= most; nbytes *= 4)
            IM_TRY(bench_row(&b, nbytes, &row[rows++]));
    }
    *n = rows;
    return IM_OK;
}
