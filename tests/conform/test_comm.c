/* Communicators: the suite on self and threads, 1 to 8 ranks, plain and decorated; and the arithmetic by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/backend.h"
#include "conform/comm_suite.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a world of threads ------------------------------------------------------------------- */

typedef struct world_kind {
    const char *name;
    bool self, deferred;
    int cores; /* as told to the world: 64: waits spin first; 1: they sleep at once */
    int most;  /* ranks */
} world_kind;

static const world_kind kinds[] = {
    {"self", true, false, 1, 1},
    {"self, deferred", true, true, 1, 1},
    {"threads, spinning", false, false, 64, 8},
    {"threads, sleeping", false, false, 1, 8},
    {"threads, deferred", false, true, 1, 8},
};

typedef struct rank_thread {
    pthread_t thread;
    const world_kind *kind;
    const comm_case *what;
    im_comm_threads_world *world;
    comm_rig rig;
} rank_thread;

static im_status open_rank(rank_thread *t)
{
    comm_rig *r = &t->rig;
    im_device_config cfg = {.deferred = t->kind->deferred, .threads = 1, .comm_threads = true, .slow_ns = t->kind->deferred ? 1000 : 0};
    IM_TRY(im_context_create(&r->ctx));
    im_context_set_rank(r->ctx, r->rank);
    IM_TRY(im_device_open(r->ctx, &cfg, &r->device));
    if (t->kind->self)
        return im_comm_self(r->device, &r->world);
    return im_comm_threads_attach(t->world, r->device, r->rank, &r->world);
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

static void run_world(const world_kind *kind, const comm_case *what, int size)
{
    rank_thread t[8];
    im_context *ctx;
    im_comm_threads_world *world = NULL;
    double deadline = what->deadline > 0 ? what->deadline : COMM_DEADLINE;
    im_comm_threads_config cfg = {.size = size, .deadline = deadline, .cores = kind->cores};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_comm_threads_world_create(ctx, &cfg, &world), IM_OK);
    for (int i = 0; i < size; i++) {
        t[i] = (rank_thread){.kind = kind, .what = what, .world = world, .rig = {.rank = i, .size = size, .deadline = deadline}};
        assert_int_equal(pthread_create(&t[i].thread, NULL, rank_main, &t[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(t[i].thread, NULL);
    im_comm_threads_world_destroy(world);
    im_context_destroy(ctx);
    bool failed = false;
    for (int i = 0; i < size; i++) {
        if (t[i].rig.failed[0])
            print_error("%s, %d ranks: %s\n", kind->name, size, t[i].rig.failed);
        failed |= t[i].rig.failed[0] != 0;
    }
    assert_false(failed);
}

/* A case that waits for a deadline is not run in every size. */
static void run_case(void **state)
{
    const comm_case *what = *state;
    for (size_t k = 0; k < IM_COUNT_OF(kinds); k++)
        for (int size = what->least; size <= kinds[k].most; size += what->deadline > 0 ? 6 : 1) {
            alarm(120);
            run_world(&kinds[k], what, size);
        }
    alarm(0);
}

/* ---- 16-bit floats: every number there and back, and the halves between two ------------------- */

static double decode(uint16_t h, int exponent_bits)
{
    int m_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, e = (h >> m_bits) & ((1 << exponent_bits) - 1);
    double m = h & ((1 << m_bits) - 1), a = e ? ldexp(m + (1 << m_bits), e - bias - m_bits) : ldexp(m, 1 - bias - m_bits);
    return h & 0x8000 ? -a : a;
}

/* h + 0 = h for every h; and the sum of two numbers is their exact sum's nearest, ties to even. */
static void test_halves(void **state)
{
    (void)state;
    static uint16_t a[65536], b[65536], zero[65536];
    for (int k = 0; k < 2; k++) {
        im_dtype t = k ? IM_F16 : IM_BF16;
        int e_bits = k ? 5 : 8, m_bits = 15 - e_bits;
        uint16_t inf = (uint16_t)(((1 << e_bits) - 1) << m_bits);
        for (int i = 0; i < 65536; i++) {
            a[i] = (uint16_t)i;
            zero[i] = i & 0x8000; /* -0 + -0 = -0 */
        }
        im_comm_fold((void *[]){b}, 1, (const void *[]){a, zero}, 2, 65536, t, IM_SUM);
        for (int i = 0; i < 65536; i++) {
            if ((i & 0x7fff) > inf)
                assert_true((b[i] & 0x7fff) > inf && (b[i] & 0x8000) == (i & 0x8000));
            else
                assert_int_equal(b[i], i);
        }
        /* x - y of numbers near each other is exact in fp32: what is stored is its nearest, ties to the even one */
        int first = k ? 0 : 20 << m_bits; /* bf16: above fp32's subnormals */
        for (int i = first; i < inf - (2 << m_bits); i++) {
            uint16_t got, x = (uint16_t)(i + (1 << m_bits)), y = (uint16_t)((i + 1) | 0x8000);
            double exact = decode(x, e_bits) + decode(y, e_bits);
            im_comm_fold((void *[]){&got}, 1, (const void *[]){&x, &y}, 2, 1, t, IM_SUM);
            double error = fabs(decode(got, e_bits) - exact), up = fabs(decode((uint16_t)(got + 1), e_bits) - exact);
            double down = got & 0x7fff ? fabs(decode((uint16_t)(got - 1), e_bits) - exact) : INFINITY;
            assert_true(error <= up && error <= down);
            if (error == up || error == down)
                assert_true((got & 1) == 0);
        }
        uint16_t big[2] = {(uint16_t)(inf - 1), (uint16_t)(inf - 1)}, got;
        im_comm_fold((void *[]){&got}, 1, (const void *[]){&big[0], &big[1]}, 2, 1, t, IM_SUM);
        assert_int_equal(got, inf); /* overflow */
    }
}

int main(void)
{
    static struct CMUnitTest tests[64];
    size_t n = 0;
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_halves);
    for (size_t i = 0; i < comm_ncases; i++)
        tests[n++] = (struct CMUnitTest){.name = comm_cases[i].name, .test_func = run_case, .initial_state = (void *)(uintptr_t)&comm_cases[i]};
    return _cmocka_run_group_tests("comm", tests, n, NULL, NULL);
}
