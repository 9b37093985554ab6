/* The cases of comm_suite.h. Reference results are computed here, by loops and in double or 64-bit integers. */
#include "conform/comm_suite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- noting failures ------------------------------------------------------------------------ */

static void note(comm_rig *r, int line, const char *fmt, ...)
{
    if (r->failed[0])
        return;
    int n = snprintf(r->failed, sizeof r->failed, "comm_suite.c:%d: rank %d of %d: ", line, r->rank, r->size);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->failed + n, sizeof r->failed - (size_t)n, fmt, ap);
    va_end(ap);
}

#define CHECK(r, cond)                                                                        \
    do {                                                                                      \
        if (!(cond)) {                                                                        \
            note(r, __LINE__, "%s; error: %s", #cond, im_error_text((r)->ctx));               \
            return;                                                                           \
        }                                                                                     \
    } while (0)
#define OK(r, expr) CHECK(r, (expr) == IM_OK)
#define STOP_IF_FAILED(r)     \
    do {                      \
        if ((r)->failed[0])   \
            return;           \
    } while (0)

/* ---- types ---------------------------------------------------------------------------------------- */

static const im_dtype all_types[] = {IM_F32, IM_F64, IM_BF16, IM_F16, IM_I32, IM_I64, IM_U8};
enum { NTYPES = 7 };

static double decode16(uint16_t h, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int e = (h >> mantissa_bits) & ((1 << exponent_bits) - 1), m = h & ((1 << mantissa_bits) - 1);
    double sign = h & 0x8000 ? -1 : 1;
    if (e == (1 << exponent_bits) - 1)
        return m ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits) : ldexp(m, 1 - bias - mantissa_bits));
}

/* The nearest 16-bit number, ties to the even one; by arithmetic, not by bits. */
static uint16_t encode16(double x, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1, e;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (a != a)
        return (uint16_t)(sign | top << mantissa_bits | 1 << (mantissa_bits - 1));
    if (a == 0)
        return sign;
    frexp(a, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    double units = rint(ldexp(a, mantissa_bits - e)); /* the default rounding: ties to even */
    if (units >= ldexp(2, mantissa_bits)) {
        units /= 2;
        e++;
    }
    if (isinf(a) || e + bias >= top)
        return (uint16_t)(sign | top << mantissa_bits);
    int m = (int)units, exponent = m >> mantissa_bits ? e + bias : 0;
    return (uint16_t)(sign | exponent << mantissa_bits | (m & ((1 << mantissa_bits) - 1)));
}

static void put(void *p, im_dtype t, size_t i, double v)
{
    switch (t) {
    case IM_F32: ((float *)p)[i] = (float)v; break;
    case IM_F64: ((double *)p)[i] = v; break;
    case IM_BF16: ((uint16_t *)p)[i] = encode16(v, 8); break;
    case IM_F16: ((uint16_t *)p)[i] = encode16(v, 5); break;
    case IM_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case IM_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    default: ((uint8_t *)p)[i] = (uint8_t)v;
    }
}

static double get(const void *p, im_dtype t, size_t i)
{
    switch (t) {
    case IM_F32: return ((const float *)p)[i];
    case IM_F64: return ((const double *)p)[i];
    case IM_BF16: return decode16(((const uint16_t *)p)[i], 8);
    case IM_F16: return decode16(((const uint16_t *)p)[i], 5);
    case IM_I32: return ((const int32_t *)p)[i];
    case IM_I64: return (double)((const int64_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

/* ---- memory, queues ---------------------------------------------------------------------------------- */

typedef struct bench {
    im_queue *q;
    im_buffer in, out;
    char *host, *back; /* [nbytes] each */
    size_t nbytes;
} bench;

static im_queue *queue(comm_rig *r, unsigned k)
{
    return im_device_queue(r->device, IM_QUEUE_COMM0 + k);
}

static bool make_bench(comm_rig *r, bench *b, size_t nbytes)
{
    *b = (bench){.q = queue(r, 0), .nbytes = nbytes};
    if (im_device_reserve(r->device, IM_CLASS_COMM, 2 * nbytes) != IM_OK)
        return false;
    b->in = (im_buffer){.arena = IM_CLASS_COMM, .nbytes = nbytes};
    b->out = (im_buffer){.arena = IM_CLASS_COMM, .offset = nbytes, .nbytes = nbytes};
    b->host = calloc(1, nbytes);
    b->back = calloc(1, nbytes);
    return b->q && b->host && b->back;
}

static void drop_bench(bench *b)
{
    free(b->host);
    free(b->back);
}

/* host -> in, and 0xEE everywhere in out (so that what was not written shows). */
static im_status load(bench *b)
{
    IM_TRY(im_queue_upload(b->q, b->in, b->host, b->nbytes));
    memset(b->back, 0xEE, b->nbytes);
    return im_queue_upload(b->q, b->out, b->back, b->nbytes);
}

static im_status fetch(comm_rig *r, bench *b, im_buffer from)
{
    IM_TRY(im_event_wait(r->device, im_queue_last(b->q)));
    IM_TRY(im_queue_download(b->q, b->back, from, b->nbytes));
    return im_event_wait(r->device, im_queue_last(b->q));
}

static bool untouched(const bench *b, size_t from)
{
    for (size_t i = from; i < b->nbytes; i++)
        if ((unsigned char)b->back[i] != 0xEE)
            return false;
    return true;
}

static im_buffer part(im_buffer b, size_t at, size_t nbytes)
{
    return (im_buffer){.arena = b.arena, .offset = b.offset + at, .nbytes = nbytes};
}

/* Element i of a member: small integers, so that every sum is exact in every type. */
static double value(int rank, size_t i, im_dtype t)
{
    int v = (int)((i * 7 + (size_t)rank * 5 + i / 13) % 16);
    return t == IM_U8 ? v : v - 8;
}

static double reduced(int size, size_t i, im_dtype t, im_reduce op)
{
    double a = value(0, i, t);
    for (int k = 1; k < size; k++) {
        double b = value(k, i, t);
        a = op == IM_SUM ? a + b : op == IM_MAX ? fmax(a, b) : fmin(a, b);
    }
    return a;
}

/* Uneven, some of them zero. */
static size_t count_of(int member, size_t scale)
{
    static const size_t weight[] = {3, 0, 1, 5, 2, 0, 7, 1};
    return weight[member % 8] * scale;
}

/* ---- collectives --------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 3, 1021, 9001};
enum { NSIZES = 5, MOST = 9001, MOST_RANKS = 64 };

static void all_reduce(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, MOST * 8));
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < NSIZES; si++)
            for (int k = 0; k < 4; k++) { /* sum, max, min, sum in place */
                im_dtype t = all_types[ti];
                size_t n = sizes[si], nbytes = n * im_dtype_size(t);
                im_reduce op = k == 3 ? IM_SUM : (im_reduce)k;
                im_buffer out = k == 3 ? b.in : b.out;
                im_event done = {0};
                for (size_t i = 0; i < n; i++)
                    put(b.host, t, i, value(r->rank, i, t));
                memset(b.host + nbytes, 0xEE, b.nbytes - nbytes);
                OK(r, load(&b));
                OK(r, im_comm_all_reduce(r->world, b.q, b.in, out, n, t, op, &done));
                OK(r, im_event_wait(r->device, done));
                OK(r, fetch(r, &b, out));
                for (size_t i = 0; i < n; i++)
                    if (get(b.back, t, i) != reduced(r->size, i, t, op)) {
                        note(r, __LINE__, "all_reduce %s, %zu x %s, element %zu: %g, not %g", k == 3 ? "in place" : "", n, im_dtype_name(t), i,
                             get(b.back, t, i), reduced(r->size, i, t, op));
                        return;
                    }
                CHECK(r, untouched(&b, nbytes));
            }
    drop_bench(&b);
}

/* in place: the result lies where the own part of the input was; counts even or not */
static void scatter(comm_rig *r, bench *b, im_dtype t, size_t scale, bool even, bool in_place)
{
    size_t counts[MOST_RANKS], total = 0, before = 0, esize = im_dtype_size(t);
    for (int i = 0; i < r->size; i++) {
        counts[i] = even ? scale : count_of(i, scale);
        before += i < r->rank ? counts[i] : 0;
        total += counts[i];
    }
    size_t mine = counts[r->rank], at = in_place ? before * esize : 0;
    for (size_t i = 0; i < total; i++)
        put(b->host, t, i, value(r->rank, i, t));
    OK(r, load(b));
    im_buffer out = in_place ? b->in : b->out;
    OK(r, im_comm_reduce_scatter(r->world, b->q, b->in, part(out, at, mine * esize), counts, t, IM_SUM, NULL));
    memset(counts, 0xFF, sizeof counts); /* the list is the caller's again */
    OK(r, fetch(r, b, out));
    for (size_t i = 0; i < mine; i++)
        if (get(b->back + at, t, i) != reduced(r->size, before + i, t, IM_SUM)) {
            note(r, __LINE__, "reduce_scatter %s, %zu x %s, element %zu: %g", in_place ? "in place" : "", total, im_dtype_name(t), i,
                 get(b->back + at, t, i));
            return;
        }
    if (!in_place)
        CHECK(r, untouched(b, mine * esize));
}

static void gather(comm_rig *r, bench *b, im_dtype t, size_t scale, bool even, bool in_place)
{
    size_t counts[MOST_RANKS], total = 0, before = 0, esize = im_dtype_size(t), i = 0;
    for (int k = 0; k < r->size; k++) {
        counts[k] = even ? scale : count_of(k, scale);
        before += k < r->rank ? counts[k] : 0;
        total += counts[k];
    }
    size_t mine = counts[r->rank], at = in_place ? before * esize : 0;
    memset(b->host, 0xEE, b->nbytes);
    for (i = 0; i < mine; i++)
        put(b->host + at, t, i, value(r->rank, i, t));
    OK(r, load(b));
    im_buffer out = in_place ? b->in : b->out;
    OK(r, im_comm_all_gather(r->world, b->q, part(b->in, at, mine * esize), out, counts, t, NULL));
    OK(r, fetch(r, b, out));
    size_t place = 0;
    for (int k = 0; k < r->size; k++)
        for (i = 0; i < counts[k]; i++, place++)
            if (get(b->back, t, place) != value(k, i, t)) {
                note(r, __LINE__, "all_gather %s, %zu x %s, element %zu of rank %d: %g", in_place ? "in place" : "", total, im_dtype_name(t), i, k,
                     get(b->back, t, place));
                return;
            }
    CHECK(r, untouched(b, total * esize));
}

static void scatter_and_gather(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, (size_t)r->size * 1021 * 8 * 7 + 64));
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < 4; si++)
            for (int k = 0; k < 4; k++) {
                scatter(r, &b, all_types[ti], sizes[si], k & 1, k >> 1);
                STOP_IF_FAILED(r);
                gather(r, &b, all_types[ti], sizes[si], k & 1, k >> 1);
                STOP_IF_FAILED(r);
            }
    drop_bench(&b);
}

static void broadcast(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, MOST * 8));
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < NSIZES; si++) {
            im_dtype t = all_types[ti];
            size_t n = sizes[si], nbytes = n * im_dtype_size(t);
            int root = (ti + si) % r->size;
            memset(b.host, 0xEE, b.nbytes);
            for (size_t i = 0; i < n && r->rank == root; i++)
                put(b.host, t, i, value(root, i, t));
            OK(r, load(&b));
            OK(r, im_comm_broadcast(r->world, b.q, b.in, n, t, root, NULL));
            OK(r, fetch(r, &b, b.in));
            for (size_t i = 0; i < n; i++)
                CHECK(r, get(b.back, t, i) == value(root, i, t));
            CHECK(r, untouched(&b, nbytes));
        }
    drop_bench(&b);
}

static void all_to_all(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, (size_t)r->size * 1021 * 8));
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < 4; si++) {
            im_dtype t = all_types[ti];
            size_t n = sizes[si];
            for (size_t i = 0; i < n * (size_t)r->size; i++)
                put(b.host, t, i, value(r->rank, i, t));
            OK(r, load(&b));
            OK(r, im_comm_all_to_all(r->world, b.q, b.in, b.out, n, t, NULL));
            OK(r, fetch(r, &b, b.out));
            for (int k = 0; k < r->size; k++)
                for (size_t i = 0; i < n; i++)
                    CHECK(r, get(b.back, t, (size_t)k * n + i) == value(k, (size_t)r->rank * n + i, t));
            CHECK(r, untouched(&b, n * (size_t)r->size * im_dtype_size(t)));
        }
    drop_bench(&b);
}

static void barrier(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 64));
    for (int i = 0; i < 50; i++) {
        im_event done = {0};
        OK(r, im_comm_barrier(r->world, b.q, &done));
        CHECK(r, done.value > 0);
        if (i % 7 == 0)
            OK(r, im_event_wait(r->device, done));
    }
    OK(r, im_device_sync(r->device));
    drop_bench(&b);
}

/* Nobody leaves a barrier before the slowest has come. */
static void barrier_waits(comm_rig *r)
{
    double t0 = im_clock_now();
    if (r->rank == r->size - 1)
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    OK(r, im_comm_barrier(r->world, queue(r, 0), NULL));
    OK(r, im_device_sync(r->device));
    if (r->size > 1 && r->rank == r->size - 1)
        CHECK(r, im_clock_now() - t0 >= 0.05);
    OK(r, im_comm_barrier(r->world, queue(r, 0), NULL));
    OK(r, im_device_sync(r->device));
    CHECK(r, im_clock_now() - t0 >= (r->rank == r->size - 1 ? 0.05 : 0.0));
}

/* ---- the order of summation --------------------------------------------------------------------------------- */

static double uneven(int rank, size_t i)
{
    uint32_t x[4];
    im_philox(7, i, (uint64_t)rank, x);
    return ldexp((double)(x[0] >> 8) - (double)(1 << 23), (int)(x[1] % 12) - 20);
}

/* As the header says: fp32 (or fp64) in the order of ranks, rounded once. */
static double in_order(int size, size_t i, im_dtype t)
{
    char a[8];
    if (t == IM_F64) {
        double sum = 0;
        for (int k = 0; k < size; k++)
            sum = k ? sum + uneven(k, i) : uneven(k, i);
        return sum;
    }
    float sum = 0;
    for (int k = 0; k < size; k++) {
        put(a, t, 0, uneven(k, i));
        sum = k ? sum + (float)get(a, t, 0) : (float)get(a, t, 0);
    }
    put(a, t, 0, sum);
    return get(a, t, 0);
}

static void order(comm_rig *r)
{
    bench b;
    enum { N = 3001 };
    CHECK(r, make_bench(r, &b, N * 8));
    static const im_dtype types[] = {IM_F32, IM_F64, IM_BF16, IM_F16};
    for (int k = 0; k < 8; k++) {
        im_dtype t = types[k % 4];
        size_t n = k < 4 ? N : 100; /* both ways through a backend */
        for (size_t i = 0; i < n; i++)
            put(b.host, t, i, uneven(r->rank, i));
        OK(r, load(&b));
        if ((r->rank + k) % r->size == 0) /* whoever is late */
            (void)nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, n, t, IM_SUM, NULL));
        OK(r, fetch(r, &b, b.out));
        for (size_t i = 0; i < n; i++)
            if (get(b.back, t, i) != in_order(r->size, i, t)) {
                note(r, __LINE__, "sum of %s, element %zu: %.9g, in the order of ranks it is %.9g", im_dtype_name(t), i, get(b.back, t, i),
                     in_order(r->size, i, t));
                return;
            }
    }
    drop_bench(&b);
}

static void non_finite(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 4096 * 8));
    static const im_dtype types[] = {IM_F32, IM_F64, IM_BF16, IM_F16};
    for (int k = 0; k < 12; k++) {
        im_dtype t = types[k % 4];
        size_t n = 4001;
        for (size_t i = 0; i < n; i++)
            put(b.host, t, i, i % 3 == 0 && (int)(i % (size_t)r->size) == r->rank ? (i % 2 ? (double)NAN : (double)INFINITY) : 1);
        OK(r, load(&b));
        OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, n, t, (im_reduce)(k / 4), NULL));
        OK(r, fetch(r, &b, b.out));
        for (size_t i = 0; i < n; i++) {
            double got = get(b.back, t, i);
            if (i % 3 == 0 && i % 2)
                CHECK(r, got != got);
            else if (i % 3 == 0)
                CHECK(r, k / 4 == IM_MIN && r->size > 1 ? got == 1 : isinf(got));
            else
                CHECK(r, got == (k / 4 == IM_SUM ? r->size : 1));
        }
    }
    drop_bench(&b);
}

/* Sums of integers wrap in their own type. */
static void wrap(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 64));
    int32_t big = INT32_MAX - r->rank, got;
    uint32_t sum = 0;
    for (int k = 0; k < r->size; k++)
        sum += (uint32_t)(INT32_MAX - k);
    memcpy(b.host, &big, sizeof big);
    OK(r, load(&b));
    OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, 1, IM_I32, IM_SUM, NULL));
    OK(r, fetch(r, &b, b.out));
    memcpy(&got, b.back, sizeof got);
    CHECK(r, (uint32_t)got == sum);
    drop_bench(&b);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

/* Everyone to the next, everyone from the one before, in both orders within the group. */
static void ring(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, MOST * 8));
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < NSIZES; si++) {
            im_dtype t = all_types[ti];
            size_t n = sizes[si], nbytes = n * im_dtype_size(t);
            im_event sent = {0}, got = {0};
            for (size_t i = 0; i < n; i++)
                put(b.host, t, i, value(r->rank, i, t));
            OK(r, load(&b));
            OK(r, im_comm_group_begin(r->world));
            if ((r->rank + si) % 2)
                OK(r, im_comm_recv(r->world, b.q, b.out, n, t, before, &got));
            OK(r, im_comm_send(r->world, b.q, b.in, n, t, next, &sent));
            if ((r->rank + si) % 2 == 0)
                OK(r, im_comm_recv(r->world, b.q, b.out, n, t, before, &got));
            OK(r, im_comm_group_end(r->world));
            if (r->size > 1)
                CHECK(r, got.value && sent.value);
            OK(r, fetch(r, &b, b.out));
            for (size_t i = 0; i < n; i++)
                CHECK(r, get(b.back, t, i) == value(before, i, t));
            CHECK(r, untouched(&b, nbytes));
        }
    drop_bench(&b);
}

/* A pipeline without groups: stage by stage, many messages, none of them waits for the host. */
static void pipeline(comm_rig *r)
{
    enum { N = 33, TURNS = 40 };
    bench b;
    CHECK(r, make_bench(r, &b, N * TURNS * 4));
    for (size_t i = 0; i < N * TURNS; i++)
        ((int32_t *)b.host)[i] = (int32_t)i * 3;
    OK(r, load(&b));
    for (size_t k = 0; k < TURNS; k++) {
        im_buffer to = part(b.out, k * N * 4, N * 4), from = part(b.in, k * N * 4, N * 4);
        if (r->rank > 0)
            OK(r, im_comm_recv(r->world, b.q, to, N, IM_I32, r->rank - 1, NULL));
        if (r->rank + 1 < r->size)
            OK(r, im_comm_send(r->world, b.q, r->rank ? to : from, N, IM_I32, r->rank + 1, NULL));
    }
    OK(r, fetch(r, &b, b.out));
    for (size_t i = 0; i < N * TURNS && r->rank; i++)
        CHECK(r, ((int32_t *)b.back)[i] == (int32_t)i * 3);
    drop_bench(&b);
}

/* Everyone with everyone, several messages each way, in one group; oneself included. */
static void everyone(comm_rig *r)
{
    enum { N = 17, EACH = 3 };
    bench b;
    size_t slots = (size_t)r->size * EACH;
    CHECK(r, make_bench(r, &b, slots * N * 4));
    for (size_t i = 0; i < slots * N; i++)
        ((int32_t *)b.host)[i] = r->rank * 100000 + (int32_t)i;
    OK(r, load(&b));
    OK(r, im_comm_group_begin(r->world));
    for (int k = 0; k < EACH; k++)
        for (int p = 0; p < r->size; p++) {
            size_t at = ((size_t)p * EACH + (size_t)k) * N * 4;
            OK(r, im_comm_send(r->world, b.q, part(b.in, at, N * 4), N, IM_I32, p, NULL));
        }
    for (int k = 0; k < EACH; k++)
        for (int p = r->size; p-- > 0;) {
            size_t at = ((size_t)p * EACH + (size_t)k) * N * 4;
            OK(r, im_comm_recv(r->world, b.q, part(b.out, at, N * 4), N, IM_I32, p, NULL));
        }
    OK(r, im_comm_group_end(r->world));
    OK(r, fetch(r, &b, b.out));
    for (int p = 0; p < r->size; p++)
        for (size_t i = 0; i < EACH * N; i++)
            CHECK(r, ((int32_t *)b.back)[(size_t)p * EACH * N + i] == p * 100000 + (int32_t)((size_t)r->rank * EACH * N + i));
    drop_bench(&b);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

typedef struct group {
    im_comm *c;
    im_buffer b;
    uint64_t want; /* a member brings 1 << rank, so that a sum tells who was there */
} group;

/* The list of group g; n = 0 when the rank is no member. */
static int list_of(const comm_rig *r, int g, int *list)
{
    int n = 0;
    bool in = false;
    for (int k = 0; k < r->size; k++) {
        int rank = g == 3 ? r->size - 1 - k : k;
        bool member = g == 0 ? rank % 2 == r->rank % 2 : g == 1 ? rank <= r->size / 2 : g == 2 ? rank >= r->size / 2 : true;
        if (member) {
            list[n++] = rank;
            in |= rank == r->rank;
        }
    }
    return in ? n : 0;
}

/* Overlapping groups, two of the same list, one in reverse order; each on a queue of its own, all at once. */
static void groups(comm_rig *r)
{
    enum { GROUPS = 5, TURNS = 30, N = 600 };
    group g[GROUPS] = {{0}};
    int list[MOST_RANKS];
    OK(r, im_device_reserve(r->device, IM_CLASS_COMM, GROUPS * N * 8));
    uint64_t start[N], back[N];
    for (int k = 0; k < GROUPS; k++) {
        int n = list_of(r, k, list);
        g[k].b = (im_buffer){.arena = IM_CLASS_COMM, .offset = (size_t)k * N * 8, .nbytes = N * 8};
        if (!n)
            continue;
        OK(r, im_comm_split(r->world, list, n, &g[k].c));
        CHECK(r, im_comm_size(g[k].c) == n && list[im_comm_rank(g[k].c)] == r->rank);
        for (int i = 0; i < n; i++)
            g[k].want += (uint64_t)1 << list[i];
        for (int i = 1; i < TURNS; i++)
            g[k].want *= (uint64_t)n;
        for (size_t i = 0; i < N; i++)
            start[i] = (uint64_t)1 << r->rank;
        OK(r, im_queue_upload(queue(r, (unsigned)k), g[k].b, start, sizeof start));
        OK(r, im_event_wait(r->device, im_queue_last(queue(r, (unsigned)k))));
    }
    for (int i = 0; i < TURNS; i++)
        for (int j = 0; j < GROUPS; j++) {
            int k = (j + i + r->rank) % GROUPS; /* ranks enqueue in different orders: channels are independent */
            size_t n = i % 3 ? N : N / 2; /* small and large */
            if (!g[k].c)
                continue;
            OK(r, im_comm_all_reduce(g[k].c, queue(r, (unsigned)k), g[k].b, g[k].b, n, IM_I64, IM_SUM, NULL));
        }
    OK(r, im_device_sync(r->device));
    for (int k = 0; k < GROUPS; k++) {
        if (!g[k].c)
            continue;
        OK(r, im_queue_download(queue(r, (unsigned)k), back, g[k].b, sizeof back));
        OK(r, im_event_wait(r->device, im_queue_last(queue(r, (unsigned)k))));
        CHECK(r, back[0] == g[k].want && back[N / 2 - 1] == g[k].want);
        im_comm_destroy(g[k].c);
    }
}

/* Groups of groups: halves of halves, down to one rank. */
static void split_again(comm_rig *r)
{
    im_comm *c = r->world, *made[8];
    int depth = 0;
    OK(r, im_device_reserve(r->device, IM_CLASS_COMM, 64));
    while (im_comm_size(c) > 1) {
        int n = im_comm_size(c), half = (n + 1) / 2, list[MOST_RANKS], m = 0;
        bool low = im_comm_rank(c) < half;
        for (int i = low ? 0 : half; i < (low ? half : n); i++)
            list[m++] = i;
        OK(r, im_comm_split(c, list, m, &made[depth]));
        c = made[depth++];
        CHECK(r, im_comm_size(c) == m);
        im_buffer b = {.arena = IM_CLASS_COMM, .nbytes = 8};
        int64_t one = 1, sum = 0;
        im_queue *q = queue(r, (unsigned)depth);
        OK(r, im_queue_upload(q, b, &one, 8));
        OK(r, im_comm_all_reduce(c, q, b, b, 1, IM_I64, IM_SUM, NULL));
        OK(r, im_queue_download(q, &sum, b, 8));
        OK(r, im_event_wait(r->device, im_queue_last(q)));
        CHECK(r, sum == m);
    }
    while (depth)
        im_comm_destroy(made[--depth]);
}

/* ---- many at once -------------------------------------------------------------------------------------------------- */

/* More calls than a queue holds, without a wait by the host: each adds up what the one before left. */
static void in_flight(comm_rig *r)
{
    enum { TURNS = 1500 };
    bench b;
    CHECK(r, make_bench(r, &b, 64));
    double one = 1;
    memcpy(b.host, &one, sizeof one);
    OK(r, load(&b));
    for (int i = 0; i < TURNS; i++) {
        if (i % 5 == 0)
            OK(r, im_comm_all_reduce(r->world, b.q, b.in, b.out, 1, IM_F64, IM_SUM, NULL));
        else
            OK(r, im_comm_all_reduce(r->world, b.q, b.out, b.out, 1, IM_F64, IM_MAX, NULL));
    }
    OK(r, fetch(r, &b, b.out));
    memcpy(&one, b.back, sizeof one);
    CHECK(r, one == r->size);
    im_comm_count n[IM_COMM_OP_COUNT];
    im_comm_counts(r->world, n);
    CHECK(r, n[IM_COMM_ALL_REDUCE].calls == TURNS && n[IM_COMM_ALL_REDUCE].nbytes == TURNS * 8);
    drop_bench(&b);
}

/* ---- refusals that touch nobody else ---------------------------------------------------------------------------------- */

#define REFUSED(r, expr, code, part)                              \
    do {                                                          \
        CHECK(r, (expr) == (code));                               \
        CHECK(r, strstr(im_error_text((r)->ctx), part) != NULL);  \
        im_error_clear((r)->ctx);                                 \
    } while (0)

static void refusals(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 4096));
    im_comm *c = r->world, *other = NULL;
    im_buffer shifted = part(b.in, 4, 2048), far = part(b.in, 8000, 4096), big = b.in;
    size_t counts[MOST_RANKS];
    for (int i = 0; i < MOST_RANKS; i++)
        counts[i] = SIZE_MAX / 2 + 2;
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, b.out, 1025, IM_F32, IM_SUM, NULL), IM_ERR_INTERNAL, "do not fit");
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, b.out, SIZE_MAX / 2, IM_F32, IM_SUM, NULL), IM_ERR_INTERNAL, "do not fit");
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, shifted, 100, IM_F32, IM_SUM, NULL), IM_ERR_INTERNAL, "overlap");
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, far, 1024, IM_F32, IM_SUM, NULL), IM_ERR_INTERNAL, "outside its arena");
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, b.out, 1, IM_U16, IM_SUM, NULL), IM_ERR_UNSUPPORTED, "u16");
    REFUSED(r, im_comm_all_reduce(c, b.q, b.in, b.out, 1, IM_F32, (im_reduce)9, NULL), IM_ERR_ARG, "reduction 9");
    if (r->size > 1) {
        REFUSED(r, im_comm_all_gather(c, b.q, b.in, b.out, counts, IM_U8, NULL), IM_ERR_INTERNAL, "address space");
        REFUSED(r, im_comm_all_to_all(c, b.q, b.in, b.in, 1, IM_F32, NULL), IM_ERR_INTERNAL, "overlap");
        REFUSED(r, im_comm_barrier(c, im_device_queue(r->device, IM_QUEUE_COMPUTE), NULL), IM_ERR_INTERNAL, "needs a queue");
    }
    REFUSED(r, im_comm_broadcast(c, b.q, b.in, 1, IM_F32, r->size, NULL), IM_ERR_ARG, "root");
    REFUSED(r, im_comm_send(c, b.q, b.in, 1, IM_F32, -1, NULL), IM_ERR_ARG, "peer -1");
    REFUSED(r, im_comm_recv(c, b.q, b.in, 1, IM_F32, r->size, NULL), IM_ERR_ARG, "peer");
    REFUSED(r, im_comm_group_end(c), IM_ERR_ARG, "without group_begin");
    int twice[2] = {r->rank, r->rank}, absent[1] = {r->size};
    REFUSED(r, im_comm_split(c, twice, 2, &other), IM_ERR_ARG, "twice");
    REFUSED(r, im_comm_split(c, absent, 1, &other), IM_ERR_ARG, "rank");
    REFUSED(r, im_comm_split(c, twice, 0, &other), IM_ERR_ARG, "group of 0");
    OK(r, im_comm_group_begin(c));
    REFUSED(r, im_comm_barrier(c, b.q, NULL), IM_ERR_ARG, "send and recv only");
    OK(r, im_comm_group_end(c));
    /* nothing of it was counted or sent: the world works */
    big.nbytes = 8;
    OK(r, im_comm_all_reduce(c, b.q, big, big, 1, IM_I64, IM_SUM, NULL));
    OK(r, im_comm_barrier(c, b.q, NULL));
    if (r->size > 1)
        REFUSED(r, im_comm_barrier(c, queue(r, 3), NULL), IM_ERR_INTERNAL, "split off another one");
    OK(r, im_device_sync(r->device));
    drop_bench(&b);
}

/* ---- mismatches --------------------------------------------------------------------------------------------------------- */

/* After a failed operation: an error of this kind, soon, whose text has all of these words. */
static void expect_error(comm_rig *r, int line, im_status got, im_status want, double t0, const char *const *words, int n)
{
    double limit = r->deadline < COMM_DEADLINE ? r->deadline + 10 : 20; /* the machine may be busy; it never waits out a long deadline */
    if (got != want || im_clock_now() - t0 > limit) {
        note(r, line, "%s after %.2f s, not %s; %s", im_status_name(got), im_clock_now() - t0, im_status_name(want), im_error_text(r->ctx));
        return;
    }
    for (int i = 0; i < n; i++)
        if (!strstr(im_error_text(r->ctx), words[i]))
            note(r, line, "\"%s\" is missing in: %s", words[i], im_error_text(r->ctx));
}

/* The last rank calls something else in operation 3. */
static void mismatch(comm_rig *r, int kind)
{
    bench b;
    CHECK(r, make_bench(r, &b, 65536));
    bool odd = r->rank == r->size - 1;
    im_queue *q = b.q;
    im_comm *c = r->world;
    size_t counts[MOST_RANKS];
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
    case 5: /* in one it is small, in the other large */
        OK(r, im_comm_all_reduce(c, q, b.in, b.out, odd ? 1 : 16384, IM_F32, IM_SUM, &done));
        break;
    default: OK(r, im_comm_all_gather(c, q, b.in, b.out, counts, IM_F32, &done));
    }
    static const char *const words[7][3] = {
        {"operation 3", "barrier", "all_reduce of 5000 x fp32 sum"}, {"operation 3", "4999", "5000"}, {"operation 3", "fp64", "fp32"},
        {"operation 3", "max", "sum"}, {"operation 3", "root 0", "root 1"}, {"operation 3", "of 1 x", "16384"}, {"operation 3", "(10 20", "(15 15"},
    };
    expect_error(r, __LINE__, im_event_wait(r->device, done), IM_ERR_ARG, t0, words[kind], 3);
    char last[32];
    snprintf(last, sizeof last, "rank %d called", r->size - 1);
    if (!strstr(im_error_text(r->ctx), last))
        note(r, __LINE__, "%s is missing in: %s", last, im_error_text(r->ctx));
    im_error_clear(r->ctx);
    CHECK(r, im_comm_barrier(c, q, NULL) != IM_OK); /* dead */
    drop_bench(&b);
}

static void mismatch_op(comm_rig *r) { mismatch(r, 0); }
static void mismatch_count(comm_rig *r) { mismatch(r, 1); }
static void mismatch_dtype(comm_rig *r) { mismatch(r, 2); }
static void mismatch_reduce(comm_rig *r) { mismatch(r, 3); }
static void mismatch_root(comm_rig *r) { mismatch(r, 4); }
static void mismatch_small_large(comm_rig *r) { mismatch(r, 5); }
static void mismatch_counts(comm_rig *r) { mismatch(r, 6); }

static void mismatch_message(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 65536));
    double t0 = im_clock_now();
    im_event done = {0};
    if (r->rank == 0)
        OK(r, im_comm_send(r->world, b.q, b.in, 700, IM_F32, 1, &done));
    else if (r->rank == 1)
        OK(r, im_comm_recv(r->world, b.q, b.in, 701, IM_F32, 0, &done));
    im_status s = r->rank > 1 ? im_comm_barrier(r->world, b.q, &done) : IM_OK; /* refused at once, when the world is dead already */
    static const char *const words[] = {"message 1 from rank 0 to rank 1", "700 x fp32", "701 x fp32"};
    expect_error(r, __LINE__, s == IM_OK ? im_event_wait(r->device, done) : s, r->rank == 1 ? IM_ERR_ARG : IM_ERR_ABORTED, t0, words, 3);
    drop_bench(&b);
}

/* ---- ranks that stop ---------------------------------------------------------------------------------------------------------- */

static im_status operation(comm_rig *r, bench *b, int k, im_event *done)
{
    size_t counts[MOST_RANKS];
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
    bench b;
    CHECK(r, make_bench(r, &b, 65536));
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
        expect_error(r, __LINE__, s, s == IM_ERR_ABORTED ? s : IM_ERR_TIMEOUT, t0, words, 3);
    } else {
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)r->deadline, .tv_nsec = (long)(fmod(r->deadline, 1) * 1e9)}, NULL);
        for (int i = 0; i < 1000 && im_comm_error(r->world) == IM_OK; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        CHECK(r, im_comm_error(r->world) == IM_ERR_ABORTED);
    }
    drop_bench(&b);
}

/* Nobody sends. */
static void absent_message(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 65536));
    if (r->rank == 0) {
        im_event done = {0};
        double t0 = im_clock_now();
        OK(r, im_comm_recv(r->world, b.q, b.in, 11, IM_F32, 1, &done));
        const char *words[] = {"recv of 11 x fp32 from rank 1", "message 1", "rank 1 has not come to its send"};
        expect_error(r, __LINE__, im_event_wait(r->device, done), IM_ERR_TIMEOUT, t0, words, 3);
    } else {
        for (int i = 0; i < 3000 && im_comm_error(r->world) == IM_OK; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        CHECK(r, im_comm_error(r->world) == IM_ERR_ABORTED);
    }
    drop_bench(&b);
}

/* The last rank fails and says so; the others wait in the world, in a group, and for a message. */
static void failing_rank(comm_rig *r)
{
    bench b;
    CHECK(r, make_bench(r, &b, 65536));
    int all[MOST_RANKS];
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
        OK(r, operation(r, &b, 1, &done));
        if (r->rank % 2)
            OK(r, im_comm_recv(other, queue(r, 1), part(b.in, 0, 4), 1, IM_F32, r->size - 1, &also));
        else
            OK(r, im_comm_barrier(other, queue(r, 1), &also));
        snprintf(who, sizeof who, "rank %d failed", r->size - 1);
        const char *words[] = {who, "the loss is not finite"};
        expect_error(r, __LINE__, im_event_wait(r->device, done), IM_ERR_ABORTED, t0, words, 2);
        expect_error(r, __LINE__, im_event_wait(r->device, also), IM_ERR_ABORTED, t0, words, 2);
    }
    im_comm_destroy(other);
    drop_bench(&b);
}

const comm_case comm_cases[] = {
    {"all_reduce", all_reduce, 1, 0, false},
    {"reduce_scatter, all_gather", scatter_and_gather, 1, 0, false},
    {"broadcast", broadcast, 1, 0, false},
    {"all_to_all", all_to_all, 1, 0, false},
    {"barrier", barrier, 1, 0, false},
    {"barrier waits", barrier_waits, 1, 0, false},
    {"order of sums", order, 1, 0, false},
    {"non-finite", non_finite, 1, 0, false},
    {"integers wrap", wrap, 1, 0, false},
    {"ring", ring, 1, 0, false},
    {"pipeline", pipeline, 1, 0, false},
    {"everyone with everyone", everyone, 1, 0, false},
    {"overlapping groups", groups, 1, 0, false},
    {"groups of groups", split_again, 1, 0, false},
    {"in flight", in_flight, 1, 0, false},
    {"refusals", refusals, 1, 0, false},
    {"mismatch: op", mismatch_op, 2, 0, true},
    {"mismatch: count", mismatch_count, 2, 0, true},
    {"mismatch: dtype", mismatch_dtype, 2, 0, true},
    {"mismatch: reduce", mismatch_reduce, 2, 0, true},
    {"mismatch: root", mismatch_root, 2, 0, true},
    {"mismatch: small and large", mismatch_small_large, 2, 0, true},
    {"mismatch: counts", mismatch_counts, 2, 0, true},
    {"mismatch: message", mismatch_message, 2, 0, true},
    {"absent rank", absent_rank, 2, 0.7, true},
    {"absent message", absent_message, 2, 0.7, true},
    {"failing rank", failing_rank, 2, 0, true},
};
const size_t comm_ncases = IM_COUNT_OF(comm_cases);
