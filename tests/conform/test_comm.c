/* Communicators: the suite on self and threads, 1 to 8 ranks, plain and decorated; and the arithmetic by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/backend.h"
#include "conform/comm_threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const comm_threads_kind kinds[] = {
    {.name = "self", .self = true, .cores = 1},
    {.name = "self, deferred", .self = true, .deferred = true, .cores = 1},
    {.name = "threads, spinning", .cores = 64},
    {.name = "threads, sleeping", .cores = 1},
    {.name = "threads, deferred", .deferred = true, .cores = 1},
    {.name = "threads, decorated", .cores = 1, .decorated = true},
};

/* Sizes to step over: a case that waits for a deadline is not run in every one, nor does the slow sanitizer run all. */
static int step(const comm_case *what)
{
#if defined(__SANITIZE_THREAD__)
    return what->deadline > 0 ? 6 : 2;
#else
    return what->deadline > 0 ? 6 : 1;
#endif
}

static void run_case(void **state)
{
    const comm_case *what = *state;
    for (size_t k = 0; k < IM_COUNT_OF(kinds); k++)
        for (int size = what->least; size <= (kinds[k].self ? 1 : 8); size += step(what)) {
            alarm(120);
            assert_true(comm_run_threads(&kinds[k], what, size));
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
        im_comm_fold(b, (const void *[]){a, zero}, 2, 65536, t, IM_SUM);
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
            im_comm_fold(&got, (const void *[]){&x, &y}, 2, 1, t, IM_SUM);
            double error = fabs(decode(got, e_bits) - exact), up = fabs(decode((uint16_t)(got + 1), e_bits) - exact);
            double down = got & 0x7fff ? fabs(decode((uint16_t)(got - 1), e_bits) - exact) : INFINITY;
            assert_true(error <= up && error <= down);
            if (error == up || error == down)
                assert_true((got & 1) == 0);
        }
        uint16_t big[2] = {(uint16_t)(inf - 1), (uint16_t)(inf - 1)}, got;
        im_comm_fold(&got, (const void *[]){&big[0], &big[1]}, 2, 1, t, IM_SUM);
        assert_int_equal(got, inf); /* overflow */
    }
}

/* ---- counts above 2^31 ------------------------------------------------------------------------- */

static const size_t LARGE = ((size_t)1 << 31) + 9;
static const size_t ends[] = {0, ((size_t)1 << 31) - 1, ((size_t)1 << 31) + 8};

static im_status put_ends(im_queue *q, im_buffer b, const unsigned char v[3])
{
    for (int i = 0; i < 3; i++)
        IM_TRY(im_queue_upload(q, comm_part(b, ends[i], 1), &v[i], 1));
    return IM_OK;
}

static im_status get_ends(comm_rig *r, im_queue *q, im_buffer b, unsigned char v[3])
{
    for (int i = 0; i < 3; i++)
        IM_TRY(im_queue_download(q, &v[i], comm_part(b, ends[i], 1), 1));
    return im_event_wait(r->device, im_queue_last(q));
}

/* Pages that nobody wrote are not there: 2 GiB a rank at most. */
static void large_counts(comm_rig *r)
{
    im_queue *q = comm_queue(r, 0);
    im_buffer b = {.arena = IM_CLASS_COMM, .nbytes = LARGE};
    unsigned char v[3] = {(unsigned char)(1 + r->rank), (unsigned char)(3 + r->rank), (unsigned char)(5 + r->rank)}, got[3];
    OK(r, im_device_reserve(r->device, IM_CLASS_COMM, LARGE));
    OK(r, put_ends(q, b, v));
    OK(r, im_comm_all_reduce(r->world, q, b, b, LARGE, IM_U8, IM_SUM, NULL));
    OK(r, get_ends(r, q, b, got));
    CHECK(r, got[0] == 3 && got[1] == 7 && got[2] == 11);
    OK(r, put_ends(q, b, v));
    OK(r, r->rank ? im_comm_recv(r->world, q, b, LARGE, IM_U8, 0, NULL) : im_comm_send(r->world, q, b, LARGE, IM_U8, 1, NULL));
    OK(r, get_ends(r, q, b, got));
    CHECK(r, got[0] == 1 && got[1] == 3 && got[2] == 5);
    OK(r, put_ends(q, b, v));
    OK(r, im_comm_broadcast(r->world, q, b, LARGE, IM_U8, 1, NULL));
    OK(r, get_ends(r, q, b, got));
    CHECK(r, got[0] == 2 && got[1] == 4 && got[2] == 6);
}

static size_t memory_available(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && !kib && fgets(line, sizeof line, f))
        (void)sscanf(line, "MemAvailable: %zu", &kib);
    if (f)
        fclose(f);
    return kib * 1024 < im_machine_memory() ? kib * 1024 : im_machine_memory();
}

static void test_large_counts(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const bool sanitized = true; /* shadow memory for every byte */
#else
    const bool sanitized = false;
#endif
    if (sanitized || memory_available() < (size_t)8 << 30)
        skip();
    const comm_case what = {.name = "large counts", .run = large_counts, .least = 2};
    alarm(200);
    assert_true(comm_run_threads(&(comm_threads_kind){.name = "large counts", .cores = 1}, &what, 2));
    alarm(0);
}

/* ---- small parts of a sum of 16-bit values (A15, B12) ----------------------------------------------- */

enum { ONE = 0x3f80, MILLI = 0x3a83 }; /* bf16 of 1 and of 0.001; 1 + 0.001 is 1 again in bf16 */

static void test_small_parts(void **state)
{
    (void)state;
    static const uint16_t one = ONE, milli = MILLI;
    const void *parts[257] = {&one};
    uint16_t got;
    for (int i = 1; i < 257; i++)
        parts[i] = &milli;
    im_comm_fold(&got, parts, 257, 1, IM_BF16, IM_SUM); /* 1.25586; rounded once */
    assert_true(decode(got, 8) == 1.2578125);
}

/* 64 ranks: 1 and 63 times 0.001, in bf16 and, widened before, in fp32. */
static void small_parts(comm_rig *r)
{
    comm_bench b;
    size_t counts[COMM_MOST_RANKS];
    const uint16_t mine = r->rank ? MILLI : ONE;
    double exact = 1 + (r->size - 1) * decode(MILLI, 8);
    CHECK(r, comm_bench_make(r, &b, COMM_MOST_RANKS * sizeof(float)));
    for (int i = 0; i < r->size; i++) {
        ((uint16_t *)(void *)b.host)[i] = mine;
        counts[i] = 1;
    }
    OK(r, im_queue_upload(b.q, b.in, b.host, b.nbytes));
    OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, (size_t)r->size, IM_BF16, IM_SUM, NULL));
    OK(r, im_queue_download(b.q, b.back, b.out, b.nbytes));
    OK(r, im_event_wait(r->device, im_queue_last(b.q)));
    for (int i = 0; i < r->size; i++)
        CHECK(r, fabs(decode(((uint16_t *)(void *)b.back)[i], 8) - exact) <= 0x1p-8);
    OK(r, im_comm_reduce_scatter(r->world, b.q, b.in, comm_part(b.out, 0, sizeof mine), counts, IM_BF16, IM_SUM, NULL));
    OK(r, im_queue_download(b.q, b.back, b.out, b.nbytes));
    OK(r, im_event_wait(r->device, im_queue_last(b.q)));
    CHECK(r, fabs(decode(*(uint16_t *)(void *)b.back, 8) - exact) <= 0x1p-8);
    for (int i = 0; i < r->size; i++)
        ((float *)(void *)b.host)[i] = (float)decode(mine, 8);
    OK(r, im_queue_upload(b.q, b.in, b.host, b.nbytes));
    OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, (size_t)r->size, IM_F32, IM_SUM, NULL));
    OK(r, im_queue_download(b.q, b.back, b.out, b.nbytes));
    OK(r, im_event_wait(r->device, im_queue_last(b.q)));
    for (int i = 0; i < r->size; i++)
        CHECK(r, fabs(((float *)(void *)b.back)[i] - exact) <= 1e-5);
    comm_bench_drop(&b);
}

static void test_small_parts_of_64(void **state)
{
    (void)state;
    const comm_case what = {.name = "small parts", .run = small_parts, .least = 2};
    alarm(120);
    assert_true(comm_run_threads(&(comm_threads_kind){.name = "small parts", .cores = 1}, &what, COMM_MOST_RANKS));
    alarm(0);
}

int main(void)
{
    static struct CMUnitTest tests[64];
    size_t n = 0;
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_halves);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_small_parts);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_small_parts_of_64);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_large_counts);
    for (size_t i = 0; i < comm_nop_cases + comm_nfault_cases; i++) {
        const comm_case *c = i < comm_nop_cases ? &comm_op_cases[i] : &comm_fault_cases[i - comm_nop_cases];
        tests[n++] = (struct CMUnitTest){.name = c->name, .test_func = run_case, .initial_state = (void *)(uintptr_t)c};
    }
    return _cmocka_run_group_tests("comm", tests, n, NULL, NULL);
}
