/* The cases of comm_suite.h that end a world: calls that differ, ranks that stop. Whoever is left gets an error that names them. */
#include "conform/comm_suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- mismatches --------------------------------------------------------------------------------------------------------- */

void comm_expect_error(comm_rig *r, int line, im_status got, im_status want, double t0, const char *const *words, int n)
{
    double limit = r->deadline < COMM_DEADLINE ? r->deadline + 10 : 20; /* the machine may be busy; it never waits out a long deadline */
    if (got != want || im_clock_now() - t0 > limit) {
        comm_note(r, line, "%s after %.2f s, not %s; %s", im_status_name(got), im_clock_now() - t0, im_status_name(want), im_error_text(r->ctx));
        return;
    }
    for (int i = 0; i < n; i++)
        if (!strstr(im_error_text(r->ctx), words[i]))
            comm_note(r, line, "\"%s\" is missing in: %s", words[i], im_error_text(r->ctx));
}

im_status comm_outcome(comm_rig *r, im_status called, im_event done)
{
    return called == IM_OK ? im_event_wait(r->device, done) : called;
}

/* The last rank calls something else in operation 3. */
static void mismatch(comm_rig *r, int kind)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 65536));
    bool odd = r->rank == r->size - 1;
    im_queue *q = b.q;
    im_comm *c = r->world;
    size_t counts[COMM_MOST_RANKS];
    for (int i = 0; i < r->size; i++)
        counts[i] = (size_t)(i + 1) * 10;
    if (odd && kind == 6) {
        counts[0] += 5;
        counts[1] -= 5;
    }
    OK(r, im_comm_barrier(c, q, NULL));
    OK(r, im_comm_all_reduce(c, q, b.in, b.out, 5000, IM_F32, IM_SUM, NULL));
    double t0 = im_clock_now();
    im_event done = {0};
    switch (kind) {
    case 0:
        if (odd)
            OK(r, im_comm_barrier(c, q, &done));
        else
            OK(r, im_comm_all_reduce(c, q, b.in, b.out, 5000, IM_F32, IM_SUM, &done));
        break;
    case 1: OK(r, im_comm_all_reduce(c, q, b.in, b.out, odd ? 4999 : 5000, IM_F32, IM_SUM, &done)); break;
    case 2: OK(r, im_comm_all_reduce(c, q, b.in, b.out, odd ? 2 : 3, odd ? IM_F64 : IM_F32, IM_SUM, &done)); break;
    case 3: OK(r, im_comm_all_reduce(c, q, b.in, b.out, 3, IM_F32, odd ? IM_MAX : IM_SUM, &done)); break;
    case 4: OK(r, im_comm_broadcast(c, q, b.in, 3000, IM_F32, odd ? 1 : 0, &done)); break;
    case 5: /* in one it is small, in the other large */ OK(r, im_comm_all_reduce(c, q, b.in, b.out, odd ? 1 : 16384, IM_F32, IM_SUM, &done)); break;
    default: OK(r, im_comm_all_gather(c, q, b.in, b.out, counts, IM_F32, &done));
    }
    static const char *const words[7][3] = {
        {"operation 3", "barrier", "all_reduce of 5000 x fp32 sum"},
        {"operation 3", "4999", "5000"},
        {"operation 3", "fp64", "fp32"},
        {"operation 3", "max", "sum"},
        {"operation 3", "root 0", "root 1"},
        {"operation 3", "of 1 x", "16384"},
        {"operation 3", "(10 20", "(15 15"},
    };
    comm_expect_error(r, __LINE__, im_event_wait(r->device, done), IM_ERR_ARG, t0, words[kind], 3);
    char last[32];
    snprintf(last, sizeof last, "rank %d called", r->size - 1);
    if (!strstr(im_error_text(r->ctx), last))
        comm_note(r, __LINE__, "%s is missing in: %s", last, im_error_text(r->ctx));
    im_error_clear(r->ctx);
    CHECK(r, im_comm_barrier(c, q, NULL) != IM_OK); /* dead */
    comm_bench_drop(&b);
}

static void mismatch_op(comm_rig *r)
{
    mismatch(r, 0);
}
static void mismatch_count(comm_rig *r)
{
    mismatch(r, 1);
}
static void mismatch_dtype(comm_rig *r)
{
    mismatch(r, 2);
}
static void mismatch_reduce(comm_rig *r)
{
    mismatch(r, 3);
}
static void mismatch_root(comm_rig *r)
{
    mismatch(r, 4);
}
static void mismatch_small_large(comm_rig *r)
{
    mismatch(r, 5);
}
static void mismatch_counts(comm_rig *r)
{
    mismatch(r, 6);
}

static void mismatch_message(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 65536));
    double t0 = im_clock_now();
    im_event done = {0};
    if (r->rank == 0)
        OK(r, im_comm_send(r->world, b.q, b.in, 700, IM_F32, 1, &done));
    else if (r->rank == 1)
        OK(r, im_comm_recv(r->world, b.q, b.in, 701, IM_F32, 0, &done));
    im_status s = r->rank > 1 ? im_comm_barrier(r->world, b.q, &done) : IM_OK; /* refused at once, when the world is dead already */
    static const char *const words[] = {"message 1 from rank 0 to rank 1", "700 x fp32", "701 x fp32"};
    comm_expect_error(r, __LINE__, comm_outcome(r, s, done), r->rank == 1 ? IM_ERR_ARG : IM_ERR_ABORTED, t0, words, 3);
    comm_bench_drop(&b);
}

/* ---- ranks that stop ---------------------------------------------------------------------------------------------------------- */

static im_status operation(comm_rig *r, comm_bench *b, int k, im_event *done)
{
    size_t counts[COMM_MOST_RANKS];
    for (int i = 0; i < r->size; i++)
        counts[i] = 50;
    switch (k) {
    case 0: return im_comm_all_reduce(r->world, b->q, b->in, b->out, 3, IM_F32, IM_SUM, done);
    case 1: return im_comm_all_reduce(r->world, b->q, b->in, b->out, 5000, IM_F32, IM_SUM, done);
    default: return im_comm_all_gather(r->world, b->q, b->in, b->out, counts, IM_F32, done);
    }
}

/* The last rank never comes to operation 4: whoever waits names it. */
static void absent_rank(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 65536));
    for (int k = 0; k < 3; k++)
        OK(r, operation(r, &b, k, NULL));
    OK(r, im_device_sync(r->device));
    if (r->rank < r->size - 1) {
        im_event done = {0};
        char who[32];
        double t0 = im_clock_now();
        OK(r, operation(r, &b, 0, &done));
        snprintf(who, sizeof who, "not arrived: rank %d;", r->size - 1);
        const char *words[] = {"all_reduce of 3 x fp32 sum", "operation 4", who};
        im_status s = im_event_wait(r->device, done);
        comm_expect_error(r, __LINE__, s, s == IM_ERR_ABORTED ? s : IM_ERR_TIMEOUT, t0, words, 3);
    } else {
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)r->deadline, .tv_nsec = (long)(fmod(r->deadline, 1) * 1e9)}, NULL);
        for (int i = 0; i < 1000 && im_comm_error(r->world) == IM_OK; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        CHECK(r, im_comm_error(r->world) == IM_ERR_ABORTED);
    }
    comm_bench_drop(&b);
}

/* Nobody sends. */
static void absent_message(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 65536));
    if (r->rank == 0) {
        im_event done = {0};
        double t0 = im_clock_now();
        OK(r, im_comm_recv(r->world, b.q, b.in, 11, IM_F32, 1, &done));
        const char *words[] = {"recv of 11 x fp32 from rank 1", "message 1", "rank 1 has not come to its send"};
        comm_expect_error(r, __LINE__, im_event_wait(r->device, done), IM_ERR_TIMEOUT, t0, words, 3);
    } else {
        for (int i = 0; i < 3000 && im_comm_error(r->world) == IM_OK; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        CHECK(r, im_comm_error(r->world) == IM_ERR_ABORTED);
    }
    comm_bench_drop(&b);
}

/* The last rank fails and says so; the others wait in the world, in a group, and for a message. */
static void failing_rank(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 65536));
    int all[COMM_MOST_RANKS];
    for (int i = 0; i < r->size; i++)
        all[i] = i;
    im_comm *other;
    OK(r, im_comm_split(r->world, all, r->size, &other));
    OK(r, operation(r, &b, 1, NULL));
    OK(r, im_device_sync(r->device));
    if (r->rank == r->size - 1) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        CHECK(r, im_fail(r->ctx, IM_ERR_NONFINITE, "the loss is not finite") == IM_ERR_NONFINITE);
        im_comm_abort(r->world);
    } else {
        im_event done = {0}, also = {0};
        double t0 = im_clock_now();
        char who[32];
        im_status s = operation(r, &b, 1, &done), second;
        if (r->rank % 2)
            second = im_comm_recv(other, comm_queue(r, 1), comm_part(b.in, 0, 4), 1, IM_F32, r->size - 1, &also);
        else
            second = im_comm_barrier(other, comm_queue(r, 1), &also);
        snprintf(who, sizeof who, "rank %d failed", r->size - 1);
        const char *words[] = {who, "the loss is not finite"};
        comm_expect_error(r, __LINE__, comm_outcome(r, s, done), IM_ERR_ABORTED, t0, words, 2);
        comm_expect_error(r, __LINE__, comm_outcome(r, second, also), IM_ERR_ABORTED, t0, words, 2);
    }
    im_comm_destroy(other);
    comm_bench_drop(&b);
}

const comm_case comm_fault_cases[] = {
    {"mismatch: op", mismatch_op, 2, 0, true},         {"mismatch: count", mismatch_count, 2, 0, true},
    {"mismatch: dtype", mismatch_dtype, 2, 0, true},   {"mismatch: reduce", mismatch_reduce, 2, 0, true},
    {"mismatch: root", mismatch_root, 2, 0, true},     {"mismatch: small and large", mismatch_small_large, 2, 0, true},
    {"mismatch: counts", mismatch_counts, 2, 0, true}, {"mismatch: message", mismatch_message, 2, 0, true},
    {"absent rank", absent_rank, 2, 0.7, true},        {"absent message", absent_message, 2, 0.7, true},
    {"failing rank", failing_rank, 2, 0, true},
};
const size_t comm_nfault_cases = IM_COUNT_OF(comm_fault_cases);
