/* The cases of comm_suite.h. Reference results are computed here, by loops and in double or 64-bit integers. */
#include "conform/comm_suite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- noting failures ------------------------------------------------------------------------ */

void comm_note(comm_rig *r, int line, const char *fmt, ...)
{
    if (r->failed[0])
        return;
    int n = snprintf(r->failed, sizeof r->failed, "suite line %d: rank %d of %d: ", line, r->rank, r->size);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->failed + n, sizeof r->failed - (size_t)n, fmt, ap);
    va_end(ap);
}

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

im_queue *comm_queue(comm_rig *r, unsigned k)
{
    return im_device_queue(r->device, IM_QUEUE_COMM0 + k);
}

bool comm_bench_make(comm_rig *r, comm_bench *b, size_t nbytes)
{
    *b = (comm_bench){.q = comm_queue(r, 0), .nbytes = nbytes};
    if (im_device_reserve(r->device, IM_CLASS_COMM, 2 * nbytes) != IM_OK)
        return false;
    b->in = (im_buffer){.arena = IM_CLASS_COMM, .nbytes = nbytes};
    b->out = (im_buffer){.arena = IM_CLASS_COMM, .offset = nbytes, .nbytes = nbytes};
    b->host = calloc(1, nbytes);
    b->back = calloc(1, nbytes);
    return b->q && b->host && b->back;
}

void comm_bench_drop(comm_bench *b)
{
    free(b->host);
    free(b->back);
}

/* host -> in, and 0xEE everywhere in out (so that what was not written shows). */
static im_status load(comm_bench *b)
{
    IM_TRY(im_queue_upload(b->q, b->in, b->host, b->nbytes));
    memset(b->back, 0xEE, b->nbytes);
    return im_queue_upload(b->q, b->out, b->back, b->nbytes);
}

static im_status fetch(comm_rig *r, comm_bench *b, im_buffer from)
{
    IM_TRY(im_event_wait(r->device, im_queue_last(b->q)));
    IM_TRY(im_queue_download(b->q, b->back, from, b->nbytes));
    return im_event_wait(r->device, im_queue_last(b->q));
}

static bool untouched(const comm_bench *b, size_t from)
{
    for (size_t i = from; i < b->nbytes && i < from + 512; i++)
        if ((unsigned char)b->back[i] != 0xEE)
            return false;
    return true;
}

im_buffer comm_part(im_buffer b, size_t at, size_t nbytes)
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

/* elements: none, one, few; in one piece and in several of a backend's */
static const size_t sizes[] = {0, 1, 3, 131, 4099};
enum { NSIZES = 5, MOST = 4099, SCALE = 131 };

static void all_reduce(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, MOST * 8));
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
                        comm_note(r, __LINE__, "all_reduce %s, %zu x %s, element %zu: %g, not %g", k == 3 ? "in place" : "", n, im_dtype_name(t), i,
                                  get(b.back, t, i), reduced(r->size, i, t, op));
                        return;
                    }
                CHECK(r, untouched(&b, nbytes));
            }
    comm_bench_drop(&b);
}

/* in place: the result lies where the own part of the input was; counts even or not */
static void scatter(comm_rig *r, comm_bench *b, im_dtype t, size_t scale, bool even, bool in_place)
{
    size_t counts[COMM_MOST_RANKS], total = 0, before = 0, esize = im_dtype_size(t);
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
    OK(r, im_comm_reduce_scatter(r->world, b->q, b->in, comm_part(out, at, mine * esize), counts, t, IM_SUM, NULL));
    memset(counts, 0xFF, sizeof counts); /* the list is the caller's again */
    OK(r, fetch(r, b, out));
    for (size_t i = 0; i < mine; i++)
        if (get(b->back + at, t, i) != reduced(r->size, before + i, t, IM_SUM)) {
            comm_note(r, __LINE__, "reduce_scatter %s, %zu x %s, element %zu: %g", in_place ? "in place" : "", total, im_dtype_name(t), i,
                      get(b->back + at, t, i));
            return;
        }
    if (!in_place)
        CHECK(r, untouched(b, mine * esize));
}

static void gather(comm_rig *r, comm_bench *b, im_dtype t, size_t scale, bool even, bool in_place)
{
    size_t counts[COMM_MOST_RANKS], total = 0, before = 0, esize = im_dtype_size(t), i = 0;
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
    OK(r, im_comm_all_gather(r->world, b->q, comm_part(b->in, at, mine * esize), out, counts, t, NULL));
    OK(r, fetch(r, b, out));
    size_t place = 0;
    for (int k = 0; k < r->size; k++)
        for (i = 0; i < counts[k]; i++, place++)
            if (get(b->back, t, place) != value(k, i, t)) {
                comm_note(r, __LINE__, "all_gather %s, %zu x %s, element %zu of rank %d: %g", in_place ? "in place" : "", total, im_dtype_name(t), i,
                          k, get(b->back, t, place));
                return;
            }
    CHECK(r, untouched(b, total * esize));
}

static void scatter_and_gather(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, (size_t)r->size * SCALE * 8 * 7 + 64));
    for (int ti = 0; ti < NTYPES; ti++)
        for (int si = 0; si < 4; si++)
            for (int k = 0; k < 4; k++) {
                scatter(r, &b, all_types[ti], sizes[si], k & 1, k >> 1);
                STOP_IF_FAILED(r);
                gather(r, &b, all_types[ti], sizes[si], k & 1, k >> 1);
                STOP_IF_FAILED(r);
            }
    comm_bench_drop(&b);
}

static void broadcast(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, MOST * 8));
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
    comm_bench_drop(&b);
}

static void all_to_all(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, (size_t)r->size * SCALE * 8));
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
    comm_bench_drop(&b);
}

static void barrier(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 64));
    for (int i = 0; i < 50; i++) {
        im_event done = {0};
        OK(r, im_comm_barrier(r->world, b.q, &done));
        CHECK(r, done.value > 0);
        if (i % 7 == 0)
            OK(r, im_event_wait(r->device, done));
    }
    OK(r, im_device_sync(r->device));
    comm_bench_drop(&b);
}

/* Nobody leaves a barrier before the slowest has come. */
static void barrier_waits(comm_rig *r)
{
    double t0 = im_clock_now();
    if (r->rank == r->size - 1)
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    OK(r, im_comm_barrier(r->world, comm_queue(r, 0), NULL));
    OK(r, im_device_sync(r->device));
    if (r->size > 1 && r->rank == r->size - 1)
        CHECK(r, im_clock_now() - t0 >= 0.05);
    OK(r, im_comm_barrier(r->world, comm_queue(r, 0), NULL));
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
    comm_bench b;
    enum { N = 3001 };
    CHECK(r, comm_bench_make(r, &b, N * 8));
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
                comm_note(r, __LINE__, "sum of %s, element %zu: %.9g, in the order of ranks it is %.9g", im_dtype_name(t), i, get(b.back, t, i),
                          in_order(r->size, i, t));
                return;
            }
    }
    comm_bench_drop(&b);
}

static void non_finite(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 4096 * 8));
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
    comm_bench_drop(&b);
}

/* Sums of integers wrap in their own type. */
static void wrap(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 64));
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
    comm_bench_drop(&b);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

/* Everyone to the next, everyone from the one before, in both orders within the group. */
static void ring(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, MOST * 8));
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
    comm_bench_drop(&b);
}

/* A pipeline without groups: stage by stage, many messages, none of them waits for the host. */
static void pipeline(comm_rig *r)
{
    enum { N = 33, TURNS = 40 };
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, N * TURNS * 4));
    for (size_t i = 0; i < N * TURNS; i++)
        ((int32_t *)b.host)[i] = (int32_t)i * 3;
    OK(r, load(&b));
    for (size_t k = 0; k < TURNS; k++) {
        im_buffer to = comm_part(b.out, k * N * 4, N * 4), from = comm_part(b.in, k * N * 4, N * 4);
        if (r->rank > 0)
            OK(r, im_comm_recv(r->world, b.q, to, N, IM_I32, r->rank - 1, NULL));
        if (r->rank + 1 < r->size)
            OK(r, im_comm_send(r->world, b.q, r->rank ? to : from, N, IM_I32, r->rank + 1, NULL));
    }
    OK(r, fetch(r, &b, b.out));
    for (size_t i = 0; i < N * TURNS && r->rank; i++)
        CHECK(r, ((int32_t *)b.back)[i] == (int32_t)i * 3);
    comm_bench_drop(&b);
}

/* Everyone with everyone, several messages each way, in one group; oneself included. */
static void everyone(comm_rig *r)
{
    enum { N = 17, EACH = 3 };
    comm_bench b;
    size_t slots = (size_t)r->size * EACH;
    CHECK(r, comm_bench_make(r, &b, slots * N * 4));
    for (size_t i = 0; i < slots * N; i++)
        ((int32_t *)b.host)[i] = r->rank * 100000 + (int32_t)i;
    OK(r, load(&b));
    OK(r, im_comm_group_begin(r->world));
    for (int k = 0; k < EACH; k++)
        for (int p = 0; p < r->size; p++) {
            size_t at = ((size_t)p * EACH + (size_t)k) * N * 4;
            OK(r, im_comm_send(r->world, b.q, comm_part(b.in, at, N * 4), N, IM_I32, p, NULL));
        }
    for (int k = 0; k < EACH; k++)
        for (int p = r->size; p-- > 0;) {
            size_t at = ((size_t)p * EACH + (size_t)k) * N * 4;
            OK(r, im_comm_recv(r->world, b.q, comm_part(b.out, at, N * 4), N, IM_I32, p, NULL));
        }
    OK(r, im_comm_group_end(r->world));
    OK(r, fetch(r, &b, b.out));
    for (int p = 0; p < r->size; p++)
        for (size_t i = 0; i < EACH * N; i++)
            CHECK(r, ((int32_t *)b.back)[(size_t)p * EACH * N + i] == p * 100000 + (int32_t)((size_t)r->rank * EACH * N + i));
    comm_bench_drop(&b);
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
    int list[COMM_MOST_RANKS];
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
        OK(r, im_queue_upload(comm_queue(r, (unsigned)k), g[k].b, start, sizeof start));
        OK(r, im_event_wait(r->device, im_queue_last(comm_queue(r, (unsigned)k))));
    }
    for (int i = 0; i < TURNS; i++)
        for (int j = 0; j < GROUPS; j++) {
            int k = (j + i + r->rank) % GROUPS; /* ranks enqueue in different orders: channels are independent */
            size_t n = i % 3 ? N : N / 2;       /* small and large */
            if (!g[k].c)
                continue;
            OK(r, im_comm_all_reduce(g[k].c, comm_queue(r, (unsigned)k), g[k].b, g[k].b, n, IM_I64, IM_SUM, NULL));
        }
    OK(r, im_device_sync(r->device));
    for (int k = 0; k < GROUPS; k++) {
        if (!g[k].c)
            continue;
        OK(r, im_queue_download(comm_queue(r, (unsigned)k), back, g[k].b, sizeof back));
        OK(r, im_event_wait(r->device, im_queue_last(comm_queue(r, (unsigned)k))));
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
        int n = im_comm_size(c), half = (n + 1) / 2, list[COMM_MOST_RANKS], m = 0;
        bool low = im_comm_rank(c) < half;
        for (int i = low ? 0 : half; i < (low ? half : n); i++)
            list[m++] = i;
        OK(r, im_comm_split(c, list, m, &made[depth]));
        c = made[depth++];
        CHECK(r, im_comm_size(c) == m);
        im_buffer b = {.arena = IM_CLASS_COMM, .nbytes = 8};
        int64_t one = 1, sum = 0;
        im_queue *q = comm_queue(r, (unsigned)depth);
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
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 64));
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
    comm_bench_drop(&b);
}

/* ---- refusals that touch nobody else ---------------------------------------------------------------------------------- */

#define REFUSED(r, expr, code, part)                             \
    do {                                                         \
        CHECK(r, (expr) == (code));                              \
        CHECK(r, strstr(im_error_text((r)->ctx), part) != NULL); \
        im_error_clear((r)->ctx);                                \
    } while (0)

static void refusals(comm_rig *r)
{
    comm_bench b;
    CHECK(r, comm_bench_make(r, &b, 4096));
    im_comm *c = r->world, *other = NULL;
    im_buffer shifted = comm_part(b.in, 4, 2048), far = comm_part(b.in, 8000, 4096), big = b.in;
    size_t counts[COMM_MOST_RANKS];
    for (int i = 0; i < COMM_MOST_RANKS; i++)
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
        REFUSED(r, im_comm_barrier(c, comm_queue(r, 3), NULL), IM_ERR_INTERNAL, "split off another one");
    OK(r, im_device_sync(r->device));
    comm_bench_drop(&b);
}

const comm_case comm_op_cases[] = {
    {"all_reduce", all_reduce, 1, 0, false},     {"reduce_scatter, all_gather", scatter_and_gather, 1, 0, false},
    {"broadcast", broadcast, 1, 0, false},       {"all_to_all", all_to_all, 1, 0, false},
    {"barrier", barrier, 1, 0, false},           {"barrier waits", barrier_waits, 1, 0, false},
    {"order of sums", order, 1, 0, false},       {"non-finite", non_finite, 1, 0, false},
    {"integers wrap", wrap, 1, 0, false},        {"ring", ring, 1, 0, false},
    {"pipeline", pipeline, 1, 0, false},         {"everyone with everyone", everyone, 1, 0, false},
    {"overlapping groups", groups, 1, 0, false}, {"groups of groups", split_again, 1, 0, false},
    {"in flight", in_flight, 1, 0, false},       {"refusals", refusals, 1, 0, false},
};
const size_t comm_nop_cases = IM_COUNT_OF(comm_op_cases);
