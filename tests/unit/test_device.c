/* Devices: arenas, queues, events on both backends; the deferred one makes memory unreadable outside work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/comm.h"
#include "tensor/ops.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct rig {
    im_context *ctx;
    im_device *d;
} rig;

static rig open_rig(bool deferred)
{
    rig r;
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    im_device_config cfg = {.deferred = deferred, .threads = 1, .slow_ns = deferred ? 20000 : 0};
    assert_int_equal(im_device_open(r.ctx, &cfg, &r.d), IM_OK);
    return r;
}

static void close_rig(rig *r)
{
    im_device_close(r->d);
    im_context_destroy(r->ctx);
}

static im_status add_one(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)np, (void)now;
    ++*(int64_t *)p[0];
    return IM_OK;
}

static im_status twice(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)np, (void)now;
    *(int64_t *)p[0] *= 2;
    return IM_OK;
}

static im_status refuse(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)p, (void)np, (void)now;
    return im_fail(arg, IM_ERR_NONFINITE, "refused on purpose");
}

static im_status nap_a_little(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)p, (void)np, (void)now;
    usleep(200);
    return IM_OK;
}

static im_buffer whole(im_class c, size_t nbytes)
{
    return (im_buffer){.arena = (uint8_t)c, .nbytes = nbytes};
}

static void push(im_queue *q, im_work_fn fn, void *arg, im_buffer b)
{
    im_work w = {.fn = fn, .arg = arg, .buf = &b, .nbuf = 1, .name = "test"};
    assert_int_equal(im_queue_push(q, &w), IM_OK);
}

static void test_order(void **state)
{
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        rig r = open_rig(deferred);
        int64_t x = 0;
        assert_int_equal(im_device_reserve(r.d, IM_CLASS_CARRY, 64), IM_OK);
        im_buffer b = whole(IM_CLASS_CARRY, 64);
        im_queue *q[3] = {im_device_queue(r.d, IM_QUEUE_COMPUTE), im_device_queue(r.d, IM_QUEUE_COPY), im_device_queue(r.d, IM_QUEUE_IO)};
        int64_t want = 0;
        for (int i = 0; i < 30; i++) { /* each queue waits for the one before: the order is that of the calls */
            im_queue *now = q[i % 3];
            if (i)
                assert_int_equal(im_queue_wait(now, im_queue_last(q[(i + 2) % 3])), IM_OK);
            push(now, i % 2 ? twice : add_one, NULL, b);
            want = i % 2 ? want * 2 : want + 1;
        }
        assert_int_equal(im_queue_wait(q[1], im_queue_last(q[2])), IM_OK);
        assert_int_equal(im_queue_download(q[1], &x, b, sizeof x), IM_OK);
        assert_int_equal(im_event_wait(r.d, im_queue_last(q[1])), IM_OK);
        assert_int_equal(x, want);
        close_rig(&r);
    }
}

static void test_arenas(void **state)
{
    (void)state;
    rig r = open_rig(false);
    char zero[256] = {0}, got[256];
    assert_int_equal(im_device_reserve(r.d, IM_CLASS_KV, 100), IM_OK);
    assert_int_equal(im_device_reserve(r.d, IM_CLASS_KV, 100), IM_ERR_INTERNAL);
    im_error_clear(r.ctx);
    im_queue *q = im_device_queue(r.d, IM_QUEUE_COPY);
    assert_int_equal(im_queue_download(q, got, whole(IM_CLASS_KV, 100), 100), IM_OK);
    assert_memory_equal(got, zero, 100);
    /* outside the arena, and a copy larger than its buffer */
    assert_int_equal(im_queue_download(q, got, whole(IM_CLASS_KV, 100), 101), IM_ERR_INTERNAL);
    im_error_clear(r.ctx);
    assert_int_equal(im_queue_download(q, got, whole(IM_CLASS_KV, 101), 101), IM_ERR_INTERNAL);
    assert_non_null(strstr(im_error_text(r.ctx), "outside its arena"));
    close_rig(&r);
}

static void test_failure_is_for_ever(void **state)
{
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        rig r = open_rig(deferred);
        assert_int_equal(im_device_reserve(r.d, IM_CLASS_CARRY, 64), IM_OK);
        im_buffer b = whole(IM_CLASS_CARRY, 64);
        im_queue *a = im_device_queue(r.d, IM_QUEUE_IO), *c = im_device_queue(r.d, IM_QUEUE_COPY);
        push(a, add_one, NULL, b);
        im_event good = im_queue_last(a);
        push(a, refuse, r.ctx, b);
        im_event bad = im_queue_last(a);
        push(a, add_one, NULL, b);
        assert_int_equal(im_event_wait(r.d, good), IM_OK);
        assert_int_equal(im_event_wait(r.d, bad), IM_ERR_NONFINITE);
        assert_int_equal(im_event_wait(r.d, im_queue_last(a)), IM_ERR_NONFINITE);
        bool done;
        assert_int_equal(im_event_poll(r.d, bad, &done), IM_ERR_NONFINITE);
        /* who waits for it fails too */
        im_status s = im_queue_wait(c, bad);
        if (s == IM_OK)
            s = im_event_wait(r.d, im_queue_last(c));
        assert_int_equal(s, IM_ERR_NONFINITE);
        assert_int_equal(im_device_sync(r.d), IM_ERR_NONFINITE);
        close_rig(&r);
    }
}

static void test_events(void **state)
{
    (void)state;
    rig r = open_rig(true);
    bool done = false;
    assert_int_equal(im_event_poll(r.d, (im_event){0}, &done), IM_OK);
    assert_true(done);
    assert_int_equal(im_event_poll(r.d, (im_event){.queue = IM_QUEUE_COPY, .value = 7}, &done), IM_ERR_INTERNAL);
    close_rig(&r);
}

static im_status keep_address(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np, (void)now;
    *(void **)arg = p[0];
    *(char *)p[0] = 1;
    return IM_OK;
}

/* A host pointer that was kept faults on the deferred device, in a child. */
static void test_unreadable_outside_work(void **state)
{
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            signal(SIGBUS, SIG_DFL);
            rig r = open_rig(deferred);
            void *at = NULL;
            if (im_device_reserve(r.d, IM_CLASS_CARRY, 64) != IM_OK)
                _exit(9);
            im_buffer b = whole(IM_CLASS_CARRY, 64);
            im_work w = {.fn = keep_address, .arg = &at, .buf = &b, .nbuf = 1};
            if (im_queue_push(im_device_queue(r.d, IM_QUEUE_COMPUTE), &w) != IM_OK || im_device_sync(r.d) != IM_OK)
                _exit(9);
            volatile char *c = at;
            _exit(*c == 1 ? 7 : 8);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (deferred)
            assert_false(WIFEXITED(status) && (WEXITSTATUS(status) == 7 || WEXITSTATUS(status) == 8 || WEXITSTATUS(status) == 9));
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
}

/* Many items: more than the ring holds. */
static void test_long_queue(void **state)
{
    (void)state;
    rig r = open_rig(true);
    int64_t x = 0;
    assert_int_equal(im_device_reserve(r.d, IM_CLASS_CARRY, 64), IM_OK);
    im_buffer b = whole(IM_CLASS_CARRY, 64);
    im_queue *q = im_device_queue(r.d, IM_QUEUE_IO);
    for (int i = 0; i < 3000; i++)
        push(q, add_one, NULL, b);
    assert_int_equal(im_queue_download(q, &x, b, sizeof x), IM_OK);
    assert_int_equal(im_device_sync(r.d), IM_OK);
    assert_int_equal(x, 3000);
    close_rig(&r);
}

/* Sleepers for different values of one queue, the later one first: each wakes for its own. */
static void test_sleepers(void **state)
{
    (void)state;
    alarm(60);
    for (int turn = 0; turn < 20; turn++) {
        im_context *ctx;
        im_device *d;
        im_device_config cfg = {.threads = 1, .comm_threads = true};
        assert_int_equal(im_context_create(&ctx), IM_OK);
        assert_int_equal(im_device_open(ctx, &cfg, &d), IM_OK);
        assert_int_equal(im_device_reserve(d, IM_CLASS_CARRY, 64), IM_OK);
        im_buffer b = whole(IM_CLASS_CARRY, 64);
        im_queue *io = im_device_queue(d, IM_QUEUE_IO), *q[3];
        im_event at[3];
        for (int i = 0; i < 3; i++) {
            q[i] = im_device_queue(d, IM_QUEUE_COMM0 + (unsigned)i);
            for (int k = 0; k < 4; k++) {
                im_work w = {.fn = nap_a_little, .buf = &b, .nbuf = 1, .name = "nap"};
                assert_int_equal(im_queue_push(io, &w), IM_OK);
            }
            at[i] = im_queue_last(io);
        }
        for (int i = 3; i-- > 0;)
            assert_int_equal(im_queue_wait(q[i], at[i]), IM_OK);
        for (int i = 3; i-- > 0;)
            assert_int_equal(im_event_wait(d, im_queue_last(q[i])), IM_OK);
        assert_int_equal(im_device_sync(d), IM_OK);
        im_device_close(d);
        im_context_destroy(ctx);
    }
    alarm(0);
}

/* Work of the queues of communication runs once and in order, whether its own thread runs it or who waits for it: x -> 3 x + k by k turns of
 * two queues that wait for each other, with the host waiting now and then. */
static im_status triple_and_add(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)arg, (void)np;
    uint64_t *x = p[0];
    *x = *x * 3 + (uint64_t)now->pos;
    return IM_OK;
}

static void test_waiters_help(void **state)
{
    (void)state;
    alarm(60);
    im_context *ctx;
    im_device *d;
    im_device_config cfg = {.threads = 1, .comm_threads = true};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_device_open(ctx, &cfg, &d), IM_OK);
    assert_int_equal(im_device_reserve(d, IM_CLASS_CARRY, 64), IM_OK);
    im_buffer b = whole(IM_CLASS_CARRY, 64);
    im_queue *q[3] = {im_device_queue(d, IM_QUEUE_COMM0), im_device_queue(d, IM_QUEUE_COMM0 + 1), im_device_queue(d, IM_QUEUE_COMPUTE)};
    im_event last = {0};
    uint64_t want = 0, got;
    for (int k = 0; k < 20000; k++) {
        int i = (k * 7 + k / 5) % 3;
        im_work w = {.fn = triple_and_add, .buf = &b, .nbuf = 1, .now = {.pos = k}, .name = "triple"};
        assert_int_equal(im_queue_wait(q[i], last), IM_OK); /* on the compute queue this waits here */
        assert_int_equal(im_queue_push(q[i], &w), IM_OK);
        last = im_queue_last(q[i]);
        want = want * 3 + (uint64_t)k;
        if (k % 11 == 0)
            assert_int_equal(im_event_wait(d, last), IM_OK);
    }
    assert_int_equal(im_event_wait(d, last), IM_OK);
    assert_int_equal(im_queue_download(q[2], &got, b, sizeof got), IM_OK);
    assert_true(got == want);
    im_device_close(d);
    im_context_destroy(ctx);
    alarm(0);
}

/* ---- the self communicator -------------------------------------------------------------- */

typedef struct comm_rig {
    rig r;
    im_comm *c;
    im_queue *q;
    im_buffer a, b;
} comm_rig;

static comm_rig open_comm(bool deferred)
{
    comm_rig k = {.r = open_rig(deferred)};
    assert_int_equal(im_comm_self(k.r.d, &k.c), IM_OK);
    assert_int_equal(im_device_reserve(k.r.d, IM_CLASS_COMM, 4096), IM_OK);
    k.q = im_device_queue(k.r.d, IM_QUEUE_COMM0);
    k.a = (im_buffer){.arena = IM_CLASS_COMM, .nbytes = 1024};
    k.b = (im_buffer){.arena = IM_CLASS_COMM, .offset = 2048, .nbytes = 1024};
    return k;
}

static void test_self(void **state)
{
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        comm_rig k = open_comm(deferred);
        float in[256], out[256];
        for (int i = 0; i < 256; i++)
            in[i] = (float)i - 0.5f;
        assert_int_equal(im_comm_size(k.c), 1);
        assert_string_equal(im_comm_backend(k.c), "self");
        const size_t sizes[] = {0, 1, 3, 255, 256};
        for (int op = 0; op < 6; op++)
            for (size_t s = 0; s < 5; s++) {
                im_event done = {0};
                size_t n = sizes[s];
                memset(out, 0, sizeof out);
                assert_int_equal(im_queue_upload(k.q, k.a, in, sizeof in), IM_OK);
                assert_int_equal(im_queue_upload(k.q, k.b, out, sizeof out), IM_OK);
                im_status st = op == 0   ? im_comm_all_reduce(k.c, k.q, k.a, k.b, n, IM_F32, IM_SUM, &done)
                               : op == 1 ? im_comm_reduce_scatter(k.c, k.q, k.a, k.b, &n, IM_F32, IM_SUM, &done)
                               : op == 2 ? im_comm_all_gather(k.c, k.q, k.a, k.b, &n, IM_F32, &done)
                               : op == 3 ? im_comm_all_to_all(k.c, k.q, k.a, k.b, n, IM_F32, &done)
                                         : IM_OK;
                if (op == 4) {
                    st = im_comm_send(k.c, k.q, k.a, n, IM_F32, 0, &done);
                    assert_int_equal(st, IM_OK);
                    st = im_comm_recv(k.c, k.q, k.b, n, IM_F32, 0, &done);
                } else if (op == 5) {
                    assert_int_equal(im_comm_group_begin(k.c), IM_OK);
                    assert_int_equal(im_comm_recv(k.c, k.q, k.b, n, IM_F32, 0, NULL), IM_OK);
                    assert_int_equal(im_comm_send(k.c, k.q, k.a, n, IM_F32, 0, NULL), IM_OK);
                    st = im_comm_group_end(k.c);
                    done = im_queue_last(k.q);
                }
                assert_int_equal(st, IM_OK);
                assert_int_equal(im_event_wait(k.r.d, done), IM_OK);
                assert_int_equal(im_queue_download(k.q, out, k.b, sizeof out), IM_OK);
                assert_int_equal(im_device_sync(k.r.d), IM_OK);
                assert_memory_equal(out, in, n * 4);
                for (size_t i = n; i < 256; i++)
                    assert_true(out[i] == 0);
            }
        im_comm_destroy(k.c);
        close_rig(&k.r);
    }
}

static void test_self_refuses(void **state)
{
    (void)state;
    comm_rig k = open_comm(false);
    im_comm *half;
    im_event done;
    int both[2] = {0, 1};
    assert_int_equal(im_comm_split(k.c, both, 2, &half), IM_ERR_ARG);
    im_error_clear(k.r.ctx);
    assert_int_equal(im_comm_all_reduce(k.c, k.q, k.a, k.b, 257, IM_F32, IM_SUM, &done), IM_ERR_INTERNAL);
    im_error_clear(k.r.ctx);
    assert_int_equal(im_comm_send(k.c, k.q, k.a, 1, IM_F32, 1, &done), IM_ERR_ARG);
    im_error_clear(k.r.ctx);
    assert_int_equal(im_comm_broadcast(k.c, k.q, k.a, 1, IM_F32, 2, &done), IM_ERR_ARG);
    im_error_clear(k.r.ctx);
    assert_int_equal(im_comm_send(k.c, k.q, k.a, 2, IM_F32, 0, &done), IM_OK);
    assert_int_equal(im_comm_recv(k.c, k.q, k.b, 3, IM_F32, 0, &done), IM_ERR_ARG); /* sizes that differ */
    im_error_clear(k.r.ctx);
    im_comm_abort(k.c);
    assert_int_equal(im_comm_error(k.c), IM_ERR_ABORTED);
    im_error_clear(k.r.ctx);
    assert_int_equal(im_comm_barrier(k.c, k.q, &done), IM_ERR_ABORTED);
    im_comm_destroy(k.c);
    close_rig(&k.r);
}

/* Paced kernels: an op takes its planned time at least, and its results are as they were. */
static void test_paced(void **state)
{
    (void)state;
    rig r = {0};
    im_device_config cfg = {.threads = 1, .kernels = IM_KERNELS_PACED, .pace = {.flops = 1e9, .bytes = 1e6}};
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    im_device_config none = cfg;
    none.pace.bytes = 0;
    assert_int_equal(im_device_open(r.ctx, &none, &r.d), IM_ERR_ARG);
    im_error_clear(r.ctx);
    assert_int_equal(im_device_open(r.ctx, &cfg, &r.d), IM_OK);
    assert_int_equal(im_device_reserve(r.d, IM_CLASS_WEIGHTS, 4096), IM_OK);
    im_queue *q = im_device_queue(r.d, IM_QUEUE_COMPUTE);
    float values[1000], back[1000];
    for (int i = 0; i < 1000; i++)
        values[i] = (float)i;
    im_buffer b = {.arena = IM_CLASS_WEIGHTS, .nbytes = sizeof values};
    im_op_args a = {.n = 1, .v = {im_view_1d(IM_F32, 1000)}, .f = {7}}; /* writes 4000 bytes: 4 ms */
    im_op_state *fill;
    im_op_now now = {0};
    assert_int_equal(im_op_prepare(r.d, &im_op_fill, &a, &fill), IM_OK);
    assert_int_equal(im_queue_upload(q, b, values, sizeof values), IM_OK);
    double t0 = im_clock_now();
    for (int i = 0; i < 10; i++)
        assert_int_equal(im_op_run(fill, q, &b, (im_buffer){0}, &now, 0), IM_OK);
    assert_int_equal(im_event_wait(r.d, im_queue_last(q)), IM_OK);
    assert_true(im_clock_now() - t0 >= 0.0399);
    assert_int_equal(im_queue_download(q, back, b, sizeof back), IM_OK);
    assert_int_equal(im_event_wait(r.d, im_queue_last(q)), IM_OK);
    assert_memory_equal(back, values, sizeof back);
    im_op_destroy(fill);
    im_op_cost cost = {.flops = 3e9, .read = 1000000, .written = 1000000};
    assert_true(im_op_seconds(&cost, &cfg.pace) == 3);
    cost.written = 4000000;
    assert_true(im_op_seconds(&cost, &cfg.pace) == 5);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_arenas),
        cmocka_unit_test(test_failure_is_for_ever),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_unreadable_outside_work),
        cmocka_unit_test(test_long_queue),
        cmocka_unit_test(test_sleepers),
        cmocka_unit_test(test_waiters_help),
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_self_refuses),
        cmocka_unit_test(test_paced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
