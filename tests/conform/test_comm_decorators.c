/* Decorators: what the ring of a rank tells, also after its death; what each fault does to the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/ring.h"
#include "conform/comm_threads.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[] = "/tmp/imece-ring-XXXXXX"; /* of the whole program */

static im_comm_ring read_ring(im_context *ctx, int rank)
{
    char path[64];
    im_comm_ring ring;
    snprintf(path, sizeof path, "%s/%d", dir, rank);
    im_status s = im_comm_ring_read(ctx, path, &ring);
    if (s != IM_OK)
        print_error("%s\n", im_error_text(ctx));
    assert_int_equal(s, IM_OK);
    return ring;
}

static void run(const im_comm_fault *fault, void (*fn)(comm_rig *r), int size, double deadline)
{
    const comm_threads_kind kind = {.name = "decorated", .cores = 1, .decorated = true, .trace_dir = dir, .fault = fault};
    const comm_case what = {.name = "", .run = fn, .least = 1, .deadline = deadline};
    alarm(60);
    assert_true(comm_run_threads(&kind, &what, size));
    alarm(0);
}

/* ---- the ring ------------------------------------------------------------------------------ */

/* 1 barrier, 1 all_reduce, 1 group of send and recv, and in a group of the even ranks 2 broadcasts from its last. */
static void a_few(comm_rig *r)
{
    comm_bench b;
    int even[COMM_MOST_RANKS], n = 0;
    CHECK(r, comm_bench_make(r, &b, 4096));
    for (int i = 0; i < r->size; i += 2)
        even[n++] = i;
    OK(r, im_comm_barrier(r->world, b.q, NULL));
    OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, 77, IM_BF16, IM_MAX, NULL));
    OK(r, im_comm_group_begin(r->world));
    OK(r, im_comm_send(r->world, b.q, b.in, 5, IM_I32, (r->rank + 1) % r->size, NULL));
    OK(r, im_comm_recv(r->world, b.q, b.out, 5, IM_I32, (r->rank + r->size - 1) % r->size, NULL));
    OK(r, im_comm_group_end(r->world));
    OK(r, im_device_sync(r->device)); /* the broadcasts use another queue, and write what is sent here */
    im_comm *c = NULL;
    if (r->rank % 2 == 0) {
        OK(r, im_comm_split(r->world, even, n, &c));
        for (int i = 0; i < 2; i++)
            OK(r, im_comm_broadcast(c, comm_queue(r, 1), b.in, 9, IM_U8, n - 1, NULL));
    }
    OK(r, im_device_sync(r->device));
    CHECK(r, strcmp(im_comm_backend(r->world), "threads") == 0);
    im_comm_destroy(c);
    comm_bench_drop(&b);
}

static void test_ring(void **state)
{
    (void)state;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    run(NULL, a_few, 5, 0);
    uint32_t even = 0;
    for (int rank = 0; rank < 5; rank++) {
        im_comm_ring g = read_ring(ctx, rank);
        assert_int_equal(g.header.rank, rank);
        assert_int_equal(g.header.world, 5);
        assert_string_equal(g.header.backend, "threads");
        assert_int_equal(g.header.groups, rank % 2 ? 1 : 2);
        assert_int_equal(g.nrecord, rank % 2 ? 4 : 6);
        static const im_comm_op ops[] = {IM_COMM_BARRIER, IM_COMM_ALL_REDUCE, IM_COMM_SEND, IM_COMM_RECV, IM_COMM_BROADCAST, IM_COMM_BROADCAST};
        static const uint64_t seqs[] = {1, 2, 1, 1, 1, 2};
        for (size_t i = 0; i < g.nrecord; i++) {
            const im_ring_record *x = &g.record[i];
            assert_int_equal(x->number, i + 1);
            assert_int_equal(x->op, ops[i]);
            assert_int_equal(x->seq, seqs[i]);
            assert_int_equal(x->state, IM_RING_DONE);
            assert_true(x->enqueued > 0 && x->enqueued <= x->started && x->started <= x->ended);
        }
        assert_int_equal(g.record[1].count, 77);
        assert_int_equal(g.record[1].dtype, IM_BF16);
        assert_int_equal(g.record[1].reduce, IM_MAX);
        assert_int_equal(g.record[2].peer, (rank + 1) % 5);
        if (rank % 2 == 0) { /* the root is told as a rank of the world, the group by its members, equal ids everywhere */
            assert_int_equal(g.record[4].peer, 4);
            assert_int_equal(g.group[1].size, 3);
            assert_int_equal(g.group[1].rank, rank / 2);
            assert_int_equal(g.record[4].group, g.group[1].id);
            assert_true(!even || even == g.group[1].id);
            even = g.group[1].id;
            for (int i = 0; i < 3; i++)
                assert_int_equal(g.member[g.group[1].members + (uint32_t)i], 2 * i);
            im_str text = {0};
            im_comm_ring_describe(&g, &g.record[4], g.record[4].ended + 1, &text);
            assert_non_null(strstr(im_str_text(&text), "broadcast of 9 x u8 from root 4, operation 1 of group [0 2 4]: done 1.000 s ago"));
            im_str_free(&text);
        }
        im_comm_ring_free(&g);
    }
    im_context_destroy(ctx);
}

static void many(comm_rig *r)
{
    for (int i = 0; i < IM_RING_RECORDS + 100; i++)
        OK(r, im_comm_barrier(r->world, comm_queue(r, 0), NULL));
    OK(r, im_device_sync(r->device));
}

static void test_ring_wraps(void **state)
{
    (void)state;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    run(NULL, many, 2, 0);
    im_comm_ring g = read_ring(ctx, 1);
    assert_int_equal(g.header.written, IM_RING_RECORDS + 100);
    assert_int_equal(g.nrecord, IM_RING_RECORDS);
    for (size_t i = 0; i < g.nrecord; i++) {
        assert_int_equal(g.record[i].number, 101 + i);
        assert_int_equal(g.record[i].seq, 101 + i);
        assert_int_equal(g.record[i].state, IM_RING_DONE);
    }
    im_comm_ring_free(&g);
    im_context_destroy(ctx);
}

/* A process is killed while it waits in its 3rd operation and has a 4th in its queue: the file says so. */
static void killed(comm_rig *r)
{
    for (int i = 0; i < (r->rank ? 2 : 4); i++)
        OK(r, im_comm_barrier(r->world, comm_queue(r, 0), NULL));
    (void)nanosleep(&(struct timespec){.tv_sec = 60}, NULL);
}

static bool waits_in_third(im_context *ctx)
{
    char path[64];
    im_comm_ring g;
    snprintf(path, sizeof path, "%s/0", dir);
    if (im_comm_ring_read(ctx, path, &g) != IM_OK) {
        im_error_clear(ctx);
        return false;
    }
    bool yes = g.nrecord == 4 && g.record[1].state == IM_RING_DONE && g.record[2].state == IM_RING_STARTED && g.record[3].state == IM_RING_ENQUEUED;
    im_comm_ring_free(&g);
    return yes;
}

static void test_ring_survives(void **state)
{
    (void)state;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    char path[64];
    snprintf(path, sizeof path, "%s/0", dir);
    (void)remove(path);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const comm_threads_kind kind = {.name = "killed", .cores = 1, .decorated = true, .trace_dir = dir};
        const comm_case what = {.run = killed, .least = 1};
        _exit(comm_run_threads(&kind, &what, 2) ? 0 : 1);
    }
    bool seen = false;
    for (int i = 0; i < 2000 && !seen; i++) {
        seen = waits_in_third(ctx);
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(seen);
    assert_true(waits_in_third(ctx));
    im_context_destroy(ctx);
}

/* Every byte of the header and the first records wrong in turn: an error or a ring, never a crash. */
static void test_ring_is_not_trusted(void **state)
{
    (void)state;
    im_context *ctx;
    im_comm_ring g;
    char *data, path[64];
    size_t len;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    run(NULL, a_few, 3, 0);
    snprintf(path, sizeof path, "%s/0", dir);
    assert_int_equal(im_file_read(ctx, path, 1 << 24, &data, &len), IM_OK);
    snprintf(path, sizeof path, "%s/bad", dir);
    int refused = 0;
    for (size_t i = 0; i < sizeof(im_ring_header) + 2 * sizeof(im_ring_group); i++) {
        char old = data[i];
        data[i] ^= (char)0x81;
        assert_int_equal(im_file_write_atomic(ctx, path, data, len), IM_OK);
        if (im_comm_ring_read(ctx, path, &g) == IM_OK)
            im_comm_ring_free(&g);
        else
            refused++;
        im_error_clear(ctx);
        data[i] = old;
    }
    assert_true(refused > 40);
    static const size_t cut[] = {0, 7, 100, 5000};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(im_file_write_atomic(ctx, path, data, i < 3 ? cut[i] : len - 1), IM_OK);
        assert_int_equal(im_comm_ring_read(ctx, path, &g), IM_ERR_FORMAT);
        assert_non_null(strstr(im_error_text(ctx), "bad"));
        im_error_clear(ctx);
    }
    free(data);
    im_context_destroy(ctx);
}

/* ---- faults: always at the last rank's third operation ------------------------------------------- */

static im_status third(comm_rig *r, comm_bench *b, im_event *done)
{
    for (int i = 0; i < 2; i++)
        IM_TRY(im_comm_barrier(r->world, b->q, NULL));
    return im_comm_all_reduce(r->world, b->q, b->in, b->out, 1000, IM_I32, IM_SUM, done);
}

static void delayed(comm_rig *r)
{
    comm_bench b;
    im_event done = {0};
    CHECK(r, comm_bench_make(r, &b, 4096));
    double t0 = im_clock_now();
    OK(r, third(r, &b, &done));
    OK(r, im_event_wait(r->device, done));
    CHECK(r, im_clock_now() - t0 >= 0.2);
    comm_bench_drop(&b);
}

static void dropped(comm_rig *r)
{
    comm_bench b;
    im_event done = {0};
    char who[32];
    CHECK(r, comm_bench_make(r, &b, 4096));
    double t0 = im_clock_now();
    im_status s = comm_outcome(r, third(r, &b, &done), done);
    snprintf(who, sizeof who, "not arrived: rank %d;", r->size - 1);
    const char *words[] = {who, "operation 3"};
    if (r->rank == r->size - 1)
        CHECK(r, s == IM_OK);
    else
        comm_expect_error(r, __LINE__, s, s == IM_ERR_ABORTED ? s : IM_ERR_TIMEOUT, t0, words, 2);
    comm_bench_drop(&b);
}

static void died(comm_rig *r)
{
    comm_bench b;
    im_event done = {0};
    char who[32];
    CHECK(r, comm_bench_make(r, &b, 4096));
    double t0 = im_clock_now();
    im_status s = comm_outcome(r, third(r, &b, &done), done);
    snprintf(who, sizeof who, "rank %d failed", r->size - 1);
    const char *words[] = {"died on purpose before operation 3", who};
    bool victim = r->rank == r->size - 1;
    comm_expect_error(r, __LINE__, s, victim ? IM_ERR_INTERNAL : IM_ERR_ABORTED, t0, words, victim ? 1 : 2);
    comm_bench_drop(&b);
}

/* A NaN on the last rank, none elsewhere. */
static void poisoned(comm_rig *r)
{
    comm_bench b;
    float got[1000];
    int nans = 0;
    CHECK(r, comm_bench_make(r, &b, 4096));
    for (int i = 0; i < 2; i++)
        OK(r, im_comm_barrier(r->world, b.q, NULL));
    OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, 1000, IM_F32, IM_SUM, NULL));
    OK(r, im_queue_download(b.q, got, b.out, sizeof got));
    OK(r, im_device_sync(r->device));
    for (int i = 0; i < 1000; i++)
        nans += isnan(got[i]);
    CHECK(r, nans == (r->rank == r->size - 1));
    comm_bench_drop(&b);
}

/* Everybody learns who called what. */
static void mismatched(comm_rig *r)
{
    comm_bench b;
    im_event done = {0};
    char who[64];
    CHECK(r, comm_bench_make(r, &b, 4096));
    double t0 = im_clock_now();
    im_status s = comm_outcome(r, third(r, &b, &done), done);
    snprintf(who, sizeof who, "rank %d called all_reduce of 1000 x fp32", r->size - 1);
    const char *words[] = {"operation 3", who};
    comm_expect_error(r, __LINE__, s, IM_ERR_ARG, t0, words, 2);
    comm_bench_drop(&b);
}

/* One bit on the last rank, none elsewhere. */
static void corrupted(comm_rig *r)
{
    comm_bench b;
    im_event done = {0};
    int32_t got[1000];
    int bits = 0;
    CHECK(r, comm_bench_make(r, &b, 4096));
    OK(r, third(r, &b, &done));
    OK(r, im_queue_download(b.q, got, b.out, sizeof got));
    OK(r, im_device_sync(r->device));
    for (int i = 0; i < 1000; i++)
        bits += __builtin_popcount((unsigned)got[i]); /* the sum of zeros */
    CHECK(r, bits == (r->rank == r->size - 1));
    comm_bench_drop(&b);
}

/* The last rank's third operation is a send: what arrives is wrong, what was sent is not. */
static void corrupted_send(comm_rig *r)
{
    comm_bench b;
    int32_t got[1000];
    int bits = 0;
    CHECK(r, comm_bench_make(r, &b, 4096));
    for (int i = 0; i < 2; i++)
        OK(r, im_comm_barrier(r->world, b.q, NULL));
    if (r->rank == r->size - 1)
        OK(r, im_comm_send(r->world, b.q, b.in, 1000, IM_I32, 0, NULL));
    else if (r->rank == 0)
        OK(r, im_comm_recv(r->world, b.q, b.in, 1000, IM_I32, r->size - 1, NULL));
    OK(r, im_queue_download(b.q, got, b.in, sizeof got));
    OK(r, im_device_sync(r->device));
    for (int i = 0; i < 1000; i++)
        bits += __builtin_popcount((unsigned)got[i]);
    CHECK(r, bits == (r->rank == 0));
    comm_bench_drop(&b);
}

static void test_faults(void **state)
{
    (void)state;
    for (int size = 2; size < 5; size += 2) {
        run(&(im_comm_fault){.kind = IM_FAULT_DELAY, .at = 3, .seconds = 0.2}, delayed, size, 0);
        run(&(im_comm_fault){.kind = IM_FAULT_DROP, .at = 3}, dropped, size, 0.7);
        run(&(im_comm_fault){.kind = IM_FAULT_DIE, .at = 3}, died, size, 0);
        run(&(im_comm_fault){.kind = IM_FAULT_CORRUPT, .at = 3, .seed = (uint64_t)size}, corrupted, size, 0);
        run(&(im_comm_fault){.kind = IM_FAULT_CORRUPT, .at = 3, .seed = (uint64_t)size}, corrupted_send, size, 0);
        run(&(im_comm_fault){.kind = IM_FAULT_NAN, .at = 3}, poisoned, size, 0);
        run(&(im_comm_fault){.kind = IM_FAULT_MISMATCH, .at = 3}, mismatched, size, 0);
    }
}

/* A failed operation is in the ring of who failed and of who waited. */
static void test_failure_in_ring(void **state)
{
    (void)state;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    run(&(im_comm_fault){.kind = IM_FAULT_DIE, .at = 3}, died, 3, 0);
    for (int rank = 0; rank < 3; rank++) {
        im_comm_ring g = read_ring(ctx, rank);
        if (rank == 2) /* the others may have been told before they called */
            assert_int_equal(g.nrecord, 3);
        for (size_t i = 0; i < g.nrecord; i++) {
            bool last = g.record[i].op == IM_COMM_ALL_REDUCE;
            assert_int_equal(g.record[i].state, last ? IM_RING_FAILED : IM_RING_DONE);
            assert_int_equal(g.record[i].status, !last ? IM_OK : rank == 2 ? IM_ERR_INTERNAL : IM_ERR_ABORTED);
        }
        im_comm_ring_free(&g);
    }
    im_context_destroy(ctx);
}

static void test_bad_faults(void **state)
{
    (void)state;
    im_context *ctx;
    im_device *d;
    im_comm *c, *out;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_device_open(ctx, &(im_device_config){.threads = 1}, &d), IM_OK);
    assert_int_equal(im_comm_self(d, &c), IM_OK);
    assert_int_equal(im_comm_faulty(c, &(im_comm_fault){.kind = IM_FAULT_DROP}, &out), IM_ERR_ARG);
    im_error_clear(ctx);
    assert_int_equal(im_comm_faulty(c, &(im_comm_fault){.kind = IM_FAULT_DELAY, .at = 1, .seconds = -1}, &out), IM_ERR_ARG);
    im_error_clear(ctx);
    assert_int_equal(im_comm_traced(c, "/nowhere/ring", &out), IM_ERR_IO);
    assert_non_null(strstr(im_error_text(ctx), "/nowhere/ring"));
    im_comm_destroy(c);
    im_device_close(d);
    im_context_destroy(ctx);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return im_remove_tree(NULL, dir) == IM_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),          cmocka_unit_test(test_ring_wraps),
        cmocka_unit_test(test_ring_survives), cmocka_unit_test(test_ring_is_not_trusted),
        cmocka_unit_test(test_faults),        cmocka_unit_test(test_failure_in_ring),
        cmocka_unit_test(test_bad_faults),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
