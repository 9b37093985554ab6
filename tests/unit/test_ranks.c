/* ranks, tensors and groups of imece.h: what they compute, who waits for whom, what is refused, and what is told when ranks differ or fail */
#include <imece.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define TRY(expr)                       \
    do {                                \
        im_status try_status_ = (expr); \
        if (try_status_ != IM_OK)       \
            return try_status_;         \
    } while (0)

/* In a rank's function: an error with the place. */
#define NEED(r, condition)                                                                                 \
    do {                                                                                                   \
        if (!(condition))                                                                                  \
            return im_fail(im_rank_context(r), IM_ERR_CHECK, "line %d: not so: %s", __LINE__, #condition); \
    } while (0)

/* The call is refused with this code and a text that has these words; the rank goes on. */
#define REFUSED(r, call, code, words)                                                                                                          \
    do {                                                                                                                                       \
        im_status got_ = (call);                                                                                                               \
        char text_[512];                                                                                                                       \
        snprintf(text_, sizeof text_, "%s", im_error_text(im_rank_context(r)));                                                                \
        im_error_clear(im_rank_context(r));                                                                                                    \
        if (got_ != (code) || !strstr(text_, words))                                                                                           \
            return im_fail(im_rank_context(r), IM_ERR_CHECK, "line %d: %s, \"%s\", not %s with \"%s\"", __LINE__, im_status_name(got_), text_, \
                           im_status_name(code), words);                                                                                       \
    } while (0)

static im_status run(int ranks, double deadline, im_rank_fn fn, void *arg, char *text, size_t size)
{
    im_context *ctx;
    const im_ranks_config cfg = {.ranks = ranks, .threads = 1, .deadline = deadline, .memory = (size_t)8 << 20};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_status status = im_ranks_run(ctx, &cfg, fn, arg);
    snprintf(text, size, "%s", im_error_text(ctx));
    assert_int_equal(status, im_error_code(ctx));
    im_context_destroy(ctx);
    return status;
}

static void run_well(int ranks, im_rank_fn fn, void *arg)
{
    char text[1024];
    if (run(ranks, 60, fn, arg, text, sizeof text) != IM_OK)
        fail_msg("%d ranks: %s", ranks, text);
}

static im_status ints(im_rank *r, int64_t n, im_tensor **out)
{
    return im_tensor_create(r, IM_I64, 1, &n, out);
}

static im_status write_ints(im_tensor *t, int64_t from, int64_t step)
{
    int64_t v[256], n = im_tensor_count(t);
    for (int64_t i = 0; i < n; i++)
        v[i] = from + i * step;
    return im_tensor_write(t, v);
}

/* ---- collectives ------------------------------------------------------------------------------- */

static im_status collectives(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r);
    const int64_t N = im_rank_count(r), me = im_rank_number(r);
    int64_t v[256], counts[16], total = 0, before = 0;
    im_tensor *a, *b, *part, *all, *wide, *back;
    NEED(r, im_group_size(g) == N && im_group_rank(g) == me && im_group_owner(g) == r);

    TRY(ints(r, 5, &a));
    TRY(ints(r, 5, &b));
    TRY(write_ints(a, me, 10)); /* me, me + 10, ... */
    TRY(im_group_all_reduce(g, a, b, IM_SUM));
    TRY(im_tensor_read(b, v));
    for (int i = 0; i < 5; i++)
        NEED(r, v[i] == N * (N - 1) / 2 + N * 10 * i);
    TRY(im_group_all_reduce(g, a, a, IM_MAX)); /* in place */
    TRY(im_tensor_read(a, v));
    NEED(r, v[0] == N - 1 && v[4] == N - 1 + 40);

    for (int64_t i = 0; i < N; i++) { /* uneven: rank i has i elements, the first none */
        counts[i] = i;
        before += i < me ? i : 0;
        total += i;
    }
    TRY(ints(r, total, &wide));
    TRY(ints(r, me, &part));
    TRY(write_ints(wide, 0, 1));
    TRY(im_group_reduce_scatter(g, wide, part, counts, IM_SUM));
    TRY(im_tensor_read(part, v));
    for (int64_t i = 0; i < me; i++)
        NEED(r, v[i] == N * (before + i));
    TRY(ints(r, total, &all));
    TRY(im_group_all_gather(g, part, all, counts));
    TRY(im_tensor_read(all, v));
    for (int64_t i = 0; i < total; i++)
        NEED(r, v[i] == N * i);

    TRY(write_ints(a, me * 100, 1));
    TRY(im_group_broadcast(g, a, (int)N - 1));
    TRY(im_tensor_read(a, v));
    NEED(r, v[0] == (N - 1) * 100 && v[4] == (N - 1) * 100 + 4);

    TRY(ints(r, 2 * N, &wide));
    TRY(ints(r, 2 * N, &back));
    TRY(write_ints(wide, me * 1000, 1));
    TRY(im_group_all_to_all(g, wide, back));
    TRY(im_tensor_read(back, v));
    for (int64_t i = 0; i < N; i++)
        NEED(r, v[2 * i] == i * 1000 + 2 * me && v[2 * i + 1] == i * 1000 + 2 * me + 1);
    return im_group_barrier(g, 0);
}

/* Parts as even as can be when no counts are given; bf16 summed in fp32. */
static im_status even_parts(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r);
    int64_t first, end, n = 7;
    float v[8];
    im_tensor *x, *part, *all, *h;
    im_part(n, im_group_size(g), im_group_rank(g), &first, &end);
    TRY(im_tensor_create(r, IM_F32, 1, &n, &x));
    TRY(im_tensor_create(r, IM_F32, 1, (int64_t[]){end - first}, &part));
    TRY(im_tensor_create(r, IM_F32, 1, &n, &all));
    TRY(im_tensor_draw(x, 1, "x", 0, 1));
    TRY(im_group_reduce_scatter(g, x, part, NULL, IM_MIN));
    TRY(im_group_all_gather(g, part, all, NULL));
    float one[8];
    TRY(im_tensor_read(x, one));
    TRY(im_tensor_read(all, v));
    NEED(r, !memcmp(v, one, sizeof(float) * 7));
    TRY(im_tensor_create(r, IM_BF16, 1, (int64_t[]){1}, &h));
    TRY(im_tensor_fill(h, im_rank_number(r) ? 1.0 / 256 : 1)); /* 1 + 1/256 + 1/256 + ...: each one alone would be lost in bf16 */
    TRY(im_group_all_reduce(g, h, h, IM_SUM));
    TRY(im_tensor_read_f32(h, v));
    NEED(r, im_rank_count(r) != 5 || v[0] == 1 + 4.0f / 256);
    return IM_OK;
}

static im_status groups(im_rank *r, void *arg)
{
    (void)arg;
    im_group *world = im_rank_world(r), *g, *alone, *pair;
    const int N = im_rank_count(r), me = im_rank_number(r);
    int list[16], n = 0, at = -1;
    int64_t v;
    im_tensor *t;
    for (int i = N - 1; i >= 0; i--) /* odd ranks and even ranks, each from the last to the first */
        if (i % 2 == me % 2) {
            at = i == me ? n : at;
            list[n++] = i;
        }
    TRY(im_group_split(world, list, n, &g));
    NEED(r, im_group_size(g) == n && im_group_rank(g) == at);
    TRY(ints(r, 1, &t));
    TRY(write_ints(t, me, 0));
    TRY(im_group_all_reduce(g, t, t, IM_SUM));
    TRY(im_tensor_read(t, &v));
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += list[i];
    NEED(r, v == sum);
    if (n > 1) { /* a group of a group: its ranks are numbered as in that */
        const int both[] = {0, 1};
        if (at < 2) {
            TRY(im_group_split(g, both, 2, &pair));
            NEED(r, im_group_rank(pair) == at);
            TRY(im_group_barrier(pair, 0));
            im_group_destroy(pair);
        }
    }
    for (int k = 0; k < 20; k++) { /* more groups than queues */
        TRY(im_group_split(world, &me, 1, &alone));
        TRY(im_group_all_reduce(alone, t, t, IM_SUM));
    }
    uint64_t operations, nbytes;
    im_group_traffic(g, &operations, &nbytes);
    NEED(r, operations == 1 && nbytes == 8);
    im_group_destroy(world); /* is left alone */
    return im_group_barrier(world, 0);
}

static im_status messages(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r);
    const int N = im_rank_count(r), me = im_rank_number(r), next = (me + 1) % N, last = (me + N - 1) % N;
    int64_t v[256];
    im_tensor *a, *b, *mine, *row;
    TRY(ints(r, 200, &a));
    TRY(ints(r, 200, &b));
    TRY(write_ints(a, me, 1));
    TRY(im_group_exchange_begin(g)); /* a ring: all send at once */
    TRY(im_group_send(g, a, next));
    TRY(im_group_recv(g, b, last));
    TRY(im_group_exchange_end(g));
    TRY(im_tensor_read(b, v));
    NEED(r, v[0] == last && v[199] == last + 199);
    TRY(im_tensor_create(r, IM_I64, 2, (int64_t[]){N, 3}, &mine)); /* rows of a tensor, one from each, in order */
    for (int i = 0; me == 0 && i < N; i++) {
        TRY(im_tensor_rows(mine, i, 1, &row));
        if (i)
            TRY(im_group_recv(g, row, i));
        else
            TRY(write_ints(row, 0, 1));
        im_tensor_destroy(row);
    }
    if (me) {
        im_tensor *three;
        TRY(ints(r, 3, &three));
        TRY(write_ints(three, me * 10, 1));
        TRY(im_group_send(g, three, 0));
        im_tensor_destroy(three); /* waits until it is sent */
        return IM_OK;
    }
    TRY(im_tensor_read(mine, v));
    for (int i = 0; i < N; i++)
        NEED(r, v[3 * i] == i * 10 && v[3 * i + 2] == i * 10 + 2);
    return IM_OK;
}

static void test_collectives(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        run_well(ranks, collectives, NULL);
    for (int ranks = 1; ranks <= 8; ranks++)
        run_well(ranks, even_parts, NULL);
}

static void test_groups(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 6; ranks++)
        run_well(ranks, groups, NULL);
}

static void test_messages(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 6; ranks++)
        run_well(ranks, messages, NULL);
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

/* A collective on its way: what writes to its tensors waits, what reads its result waits, tensors that it does not touch do not matter. */
static im_status order(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r), *other;
    const int64_t n = 40000, N = im_rank_count(r);
    int all[16];
    float *v = malloc((size_t)n * sizeof *v);
    im_tensor *a, *b, *c;
    for (int i = 0; i < N; i++)
        all[i] = i;
    TRY(im_group_split(g, all, (int)N, &other)); /* on a queue of its own */
    TRY(im_tensor_create(r, IM_F32, 1, &n, &a));
    TRY(im_tensor_create(r, IM_F32, 1, &n, &b));
    TRY(im_tensor_create(r, IM_F32, 1, &n, &c));
    for (int round = 1; round < 30; round++) {
        TRY(im_tensor_fill(a, round));
        TRY(im_group_all_reduce(g, a, b, IM_SUM));     /* b = N round */
        TRY(im_tensor_fill(a, 1000));                  /* not before it was read */
        TRY(im_group_all_reduce(other, b, c, IM_SUM)); /* another queue: not before b is there */
        TRY(im_tensor_add(b, c, c));                   /* N round + N N round */
        TRY(im_group_all_reduce(g, c, c, IM_MAX));
        TRY(im_tensor_read(c, v));
        NEED(r, v[0] == (float)(N * round * (N + 1)) && v[n - 1] == v[0]);
    }
    free(v);
    return IM_OK;
}

static im_status tensors(im_rank *r, void *arg)
{
    (void)arg;
    im_tensor *t, *u, *view;
    im_rank_bytes m, after;
    float x[24], y[24];
    double d[24];
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){6, 4}, &t));
    NEED(r, im_tensor_ndim(t) == 2 && im_tensor_shape(t)[0] == 6 && im_tensor_shape(t)[1] == 4 && im_tensor_count(t) == 24);
    NEED(r, im_tensor_dtype(t) == IM_F32);
    TRY(im_tensor_read(t, x));
    for (int i = 0; i < 24; i++)
        NEED(r, x[i] == 0);
    /* element i is the same whoever draws it */
    TRY(im_tensor_draw(t, 9, "name", 0, 2));
    TRY(im_tensor_read(t, x));
    TRY(im_tensor_rows(t, 2, 3, &view));
    TRY(im_tensor_create(r, IM_F64, 2, (int64_t[]){3, 4}, &u));
    TRY(im_tensor_draw(u, 9, "name", 8, 2));
    TRY(im_tensor_read(u, d));
    for (int i = 0; i < 12; i++)
        NEED(r, d[i] == (double)x[8 + i]);
    /* a view writes where the whole lies, and lives on */
    TRY(im_tensor_fill(view, 5));
    TRY(im_tensor_read(t, y));
    for (int i = 0; i < 24; i++)
        NEED(r, y[i] == (i >= 8 && i < 20 ? 5 : x[i]));
    im_rank_memory(r, &m);
    im_tensor_destroy(t);
    TRY(im_tensor_read(view, y));
    NEED(r, y[0] == 5 && y[11] == 5);
    im_tensor_destroy(view);
    im_rank_memory(r, &after);
    NEED(r, m.tensors == 128 + 128 && after.tensors == 128 && m.weights == 0 && m.gradients == 0); /* 96 bytes each, in steps of 64 */
    NEED(r, m.touched > 0);
    im_tensor_destroy(u);
    im_tensor_destroy(NULL);
    /* memory that was used before is zero again */
    TRY(im_tensor_create(r, IM_U8, 1, (int64_t[]){7 << 20}, &t));
    TRY(im_tensor_fill(t, 255));
    im_tensor_destroy(t);
    uint8_t *bytes = malloc(7 << 20);
    TRY(im_tensor_create(r, IM_U8, 1, (int64_t[]){7 << 20}, &t));
    TRY(im_tensor_read(t, bytes));
    for (int i = 0; i < 7 << 20; i++)
        NEED(r, bytes[i] == 0);
    free(bytes);
    REFUSED(r, im_tensor_create(r, IM_U8, 1, (int64_t[]){2 << 20}, &u), IM_ERR_NOMEM, "8.00 MiB for tensors, of which 1.00 MiB are free");
    im_tensor_destroy(t);
    TRY(im_tensor_create(r, IM_U8, 1, (int64_t[]){2 << 20}, &u));
    im_tensor_destroy(u);
    /* nothing is fine */
    TRY(im_tensor_create(r, IM_BF16, 2, (int64_t[]){0, 4}, &t));
    TRY(im_tensor_write_f32(t, x));
    TRY(im_tensor_draw(t, 1, "x", 0, 1));
    TRY(im_tensor_fill(t, 1));
    return im_group_all_reduce(im_rank_world(r), t, t, IM_SUM);
}

static im_status arithmetic(im_rank *r, void *arg)
{
    (void)arg;
    im_tensor *x, *y, *h;
    float v[6], w[6];
    const float in[] = {-2, -1, 0, 0.5f, 1, 3};
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){2, 3}, &x));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){2, 3}, &y));
    TRY(im_tensor_create(r, IM_BF16, 2, (int64_t[]){2, 3}, &h));
    TRY(im_tensor_write(x, in));
    TRY(im_tensor_act(IM_ACT_GELU_ERF, x, y));
    TRY(im_tensor_read(y, v));
    for (int i = 0; i < 6; i++)
        NEED(r, fabs(v[i] - 0.5 * in[i] * (1 + erf(in[i] / sqrt(2)))) < 1e-6);
    TRY(im_tensor_fill(y, 1));
    TRY(im_tensor_act_grad(IM_ACT_RELU, x, y, y));
    TRY(im_tensor_read(y, v));
    NEED(r, v[0] == 0 && v[3] == 1 && v[5] == 1);
    TRY(im_tensor_add(x, x, x));
    TRY(im_tensor_copy(x, h)); /* converts */
    TRY(im_tensor_read_f32(h, w));
    for (int i = 0; i < 6; i++)
        NEED(r, w[i] == 2 * in[i]);
    return IM_OK;
}

static void test_tensors(void **state)
{
    (void)state;
    run_well(1, tensors, NULL);
    run_well(2, tensors, NULL);
    run_well(1, arithmetic, NULL);
    for (int ranks = 1; ranks <= 5; ranks++)
        run_well(ranks, order, NULL);
}

/* ---- wrong calls ------------------------------------------------------------------------------------------ */

/* None of them disturbs the others: at the end the ranks still work together. */
static im_status wrong_calls(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r), *made;
    im_tensor *a, *b, *h, *i32, *made_t, *first, *second;
    const int twice[] = {0, 0}, far[] = {0, 9}, others[] = {1 - im_rank_number(r)};
    float v[4] = {0};
    REFUSED(r, im_tensor_create(r, IM_F32, 0, NULL, &made_t), IM_ERR_ARG, "0 dims");
    REFUSED(r, im_tensor_create(r, IM_F32, 5, (int64_t[]){1, 1, 1, 1, 1}, &made_t), IM_ERR_ARG, "5 dims");
    REFUSED(r, im_tensor_create(r, IM_F32, 2, (int64_t[]){3, -1}, &made_t), IM_ERR_ARG, "dim 1 is -1");
    REFUSED(r, im_tensor_create(r, (im_dtype)99, 1, (int64_t[]){3}, &made_t), IM_ERR_ARG, "no dtype");
    REFUSED(r, im_tensor_create(r, IM_F64, 4, (int64_t[]){INT64_MAX, INT64_MAX, 2, 2}, &made_t), IM_ERR_NOMEM, "address space");
    REFUSED(r, im_tensor_create(r, IM_F32, 2, (int64_t[]){1 << 20, 1 << 20}, &made_t), IM_ERR_NOMEM, "for tensors");
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){2, 4}, &a));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){4, 2}, &b));
    TRY(im_tensor_create(r, IM_BF16, 2, (int64_t[]){2, 4}, &h));
    TRY(im_tensor_create(r, IM_I32, 1, (int64_t[]){4}, &i32));
    REFUSED(r, im_tensor_rows(a, 1, 2, &made_t), IM_ERR_ARG, "rows 1 to 3 of (2,4) fp32");
    REFUSED(r, im_tensor_rows(a, -1, 1, &made_t), IM_ERR_ARG, "rows -1");
    REFUSED(r, im_tensor_add(a, b, a), IM_ERR_ARG, "(2,4) fp32 and (4,2) fp32");
    REFUSED(r, im_tensor_add(a, a, h), IM_ERR_ARG, "bf16");
    REFUSED(r, im_tensor_copy(a, i32), IM_ERR_ARG, "i32");
    REFUSED(r, im_tensor_copy(a, a), IM_ERR_ARG, "overlap");
    REFUSED(r, im_tensor_act((im_act)7, a, a), IM_ERR_ARG, "activation 7");
    REFUSED(r, im_tensor_write_f32(i32, v), IM_ERR_ARG, "i32");
    REFUSED(r, im_tensor_draw(i32, 1, "x", 0, 1), IM_ERR_ARG, "i32");
    REFUSED(r, im_tensor_draw(a, 1, "x", -1, 1), IM_ERR_ARG, "element -1");
    TRY(im_tensor_rows(b, 0, 2, &first));
    TRY(im_tensor_rows(b, 1, 2, &second));
    REFUSED(r, im_tensor_add(first, first, second), IM_ERR_ARG, "overlap");
    REFUSED(r, im_group_all_reduce(g, a, i32, IM_SUM), IM_ERR_ARG, "one dtype");
    REFUSED(r, im_group_all_reduce(g, a, first, IM_SUM), IM_ERR_ARG, "4 elements; it must have 8");
    REFUSED(r, im_group_all_reduce(g, first, second, IM_SUM), IM_ERR_ARG, "overlap");
    REFUSED(r, im_group_all_reduce(g, a, a, (im_reduce)9), IM_ERR_ARG, "none of sum");
    REFUSED(r, im_group_reduce_scatter(g, a, first, (int64_t[]){4, 5}, IM_SUM), IM_ERR_ARG, "counts[1] is 5");
    REFUSED(r, im_group_reduce_scatter(g, a, first, (int64_t[]){4, 3}, IM_SUM), IM_ERR_ARG, "add up to 7, not to 8");
    REFUSED(r, im_group_all_gather(g, first, a, (int64_t[]){-1, 9}), IM_ERR_ARG, "counts[0] is -1");
    REFUSED(r, im_group_broadcast(g, a, 2), IM_ERR_ARG, "root 2");
    REFUSED(r, im_group_all_to_all(g, a, a), IM_ERR_ARG, "overlap");
    REFUSED(r, im_group_send(g, a, im_rank_number(r)), IM_ERR_ARG, "to itself");
    REFUSED(r, im_group_send(g, a, 7), IM_ERR_ARG, "peer 7");
    REFUSED(r, im_group_exchange_end(g), IM_ERR_ARG, "without");
    TRY(im_group_exchange_begin(g));
    REFUSED(r, im_group_all_reduce(g, a, a, IM_SUM), IM_ERR_ARG, "only sends and receives");
    REFUSED(r, im_group_barrier(g, 0), IM_ERR_ARG, "only sends and receives");
    REFUSED(r, im_group_exchange_begin(g), IM_ERR_ARG, "only sends and receives");
    TRY(im_group_exchange_end(g));
    REFUSED(r, im_group_barrier(g, -1), IM_ERR_ARG, "-1 seconds");
    REFUSED(r, im_group_split(g, twice, 2, &made), IM_ERR_ARG, "twice");
    REFUSED(r, im_group_split(g, far, 2, &made), IM_ERR_ARG, "rank 9");
    REFUSED(r, im_group_split(g, others, 1, &made), IM_ERR_ARG, "no member");
    REFUSED(r, im_group_split(g, others, 0, &made), IM_ERR_ARG, "0 ranks");
    TRY(im_tensor_create(r, IM_U16, 1, (int64_t[]){4}, &made_t));
    REFUSED(r, im_group_all_reduce(g, made_t, made_t, IM_SUM), IM_ERR_UNSUPPORTED, "can be reduced");
    TRY(im_group_all_reduce(g, a, a, IM_SUM));
    return im_group_barrier(g, 0);
}

static im_status nothing(im_rank *r, void *arg)
{
    (void)r;
    atomic_fetch_add((atomic_int *)arg, 1);
    return IM_OK;
}

static void test_wrong_calls(void **state)
{
    (void)state;
    im_context *ctx;
    atomic_int calls = 0;
    run_well(2, wrong_calls, NULL);
    assert_int_equal(im_context_create(&ctx), IM_OK);
    const im_ranks_config wrong[] = {{.ranks = 0}, {.ranks = -1}, {.ranks = 5000}, {.ranks = 1, .threads = -1}, {.ranks = 1, .deadline = -1}};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(im_ranks_run(ctx, &wrong[i], nothing, &calls), IM_ERR_ARG);
        im_error_clear(ctx);
    }
    const im_ranks_config good = {.ranks = 7, .threads = 1};
    assert_int_equal(im_ranks_run(ctx, &good, nothing, &calls), IM_OK); /* memory not given */
    assert_int_equal(calls, 7);
    const im_ranks_config large = {.ranks = 2, .threads = 1, .memory = SIZE_MAX / 2};
    assert_int_equal(im_ranks_run(ctx, &large, nothing, &calls), IM_ERR_NOMEM); /* before any function is called */
    assert_non_null(strstr(im_error_text(ctx), "rank "));
    assert_int_equal(calls, 7);
    im_context_destroy(ctx);
}

/* ---- ranks that differ, fail, or do not come ----------------------------------------------------------------- */

typedef enum misdeed { OTHER_OPERATION, OTHER_COUNT, OTHER_DTYPE, OTHER_ROOT, OTHER_COUNTS, RETURNS, FAILS, STAYS_AWAY } misdeed;
typedef struct trouble {
    misdeed what;
    atomic_int told; /* ranks whose error names it */
    const char *words;
} trouble;

static im_status misbehave(im_rank *r, misdeed what)
{
    im_group *g = im_rank_world(r);
    const bool odd = im_rank_number(r) == 1;
    im_tensor *a, *part;
    int64_t n = what == OTHER_COUNT && odd ? 11 : 10, N = im_rank_count(r);
    int64_t counts[] = {4, 4, 2}, others[] = {4, 3, 3};
    TRY(im_tensor_create(r, what == OTHER_DTYPE && odd ? IM_I32 : IM_F32, 1, &n, &a));
    switch (what) {
    case OTHER_OPERATION: TRY(odd ? im_group_broadcast(g, a, 0) : im_group_all_reduce(g, a, a, IM_SUM)); break;
    case OTHER_ROOT: TRY(im_group_broadcast(g, a, odd)); break;
    case OTHER_COUNTS:
        TRY(im_tensor_create(r, IM_F32, 1, &(odd ? others : counts)[im_rank_number(r)], &part));
        TRY(im_group_reduce_scatter(g, a, part, odd ? others : counts, IM_SUM));
        break;
    case RETURNS:
        if (odd)
            return IM_ERR_STOPPED; /* without a text */
        TRY(im_group_all_reduce(g, a, a, IM_SUM));
        break;
    case FAILS:
        if (odd)
            return im_fail(im_rank_context(r), IM_ERR_FORMAT, "the data of rank %lld of %lld is damaged", 1LL, (long long)N);
        TRY(im_group_barrier(g, 0));
        break;
    case STAYS_AWAY:
        for (int i = 0; odd && i < 6000; i++) { /* until it hears of it */
            TRY(im_group_error(g));
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
        TRY(im_group_barrier(g, 0.2));
        break;
    default: TRY(im_group_all_reduce(g, a, a, IM_SUM));
    }
    return im_rank_wait(r);
}

static im_status in_trouble(im_rank *r, void *arg)
{
    trouble *t = arg;
    im_status status = misbehave(r, t->what);
    const char *text = im_error_text(im_rank_context(r));
    if (status != IM_OK && strstr(text, t->words))
        t->told++;
    else if (text[0])
        fprintf(stderr, "rank %d was told: %s\n", im_rank_number(r), text);
    return status;
}

static void test_trouble(void **state)
{
    (void)state;
    const struct {
        misdeed what;
        im_status status; /* of the run; IM_OK: any error */
        int told;         /* at least */
        const char *words;
    } cases[] = {
        {OTHER_OPERATION, IM_OK, 3, "rank 0 2 called all_reduce of 10 x fp32 sum; rank 1 called broadcast of 10 x fp32 from root 0"},
        {OTHER_COUNT, IM_OK, 3, "rank 1 called all_reduce of 11 x fp32"},
        {OTHER_DTYPE, IM_OK, 3, "rank 1 called all_reduce of 10 x i32"},
        {OTHER_ROOT, IM_OK, 3, "rank 1 called broadcast of 10 x fp32 from root 1"},
        {OTHER_COUNTS, IM_OK, 3, "rank 1 called reduce_scatter of 10 x fp32 (4 3 3)"},
        {RETURNS, IM_ERR_STOPPED, 2, "rank 1 failed: the rank's function returned stopped"},
        {FAILS, IM_ERR_FORMAT, 3, "the data of rank 1 of 3 is damaged"},
        {STAYS_AWAY, IM_OK, 3, "not arrived: rank 1; arrived: rank 0 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trouble t = {.what = cases[i].what, .words = cases[i].words};
        char text[2048];
        im_status status = run(3, 20, in_trouble, &t, text, sizeof text);
        assert_int_not_equal(status, IM_OK);
        if (cases[i].status != IM_OK)
            assert_int_equal(status, cases[i].status);
        if (t.told < cases[i].told)
            fail_msg("case %zu: %d ranks were told \"%s\"; the run says: %s", i, t.told, cases[i].words, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives), cmocka_unit_test(test_groups),      cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tensors),     cmocka_unit_test(test_wrong_calls), cmocka_unit_test(test_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
