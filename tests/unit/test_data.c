/* src/data: token files (written, read, refused), the order of samples, n-grams. */
#include "data/feed.h"
#include "data/index.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static im_context *ctx;
static char dir[] = "/tmp/imece-data-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) && im_context_create(&ctx) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_status s = im_remove_tree(ctx, dir);
    im_context_destroy(ctx);
    return s == IM_OK ? 0 : -1;
}

static const char *path(const char *name)
{
    static char buf[4][256];
    static int at;
    char *p = buf[at++ % 4];
    snprintf(p, sizeof buf[0], "%s/%s", dir, name);
    return p;
}

static void ok(im_status s)
{
    if (s != IM_OK)
        fail_msg("%s: %s", im_status_name(s), im_error_text(ctx));
}

/* The call failed with `want` and its message contains `part`. */
static void refused(im_status got, im_status want, const char *part)
{
    if (got != want)
        fail_msg("got %s (%s), want %s", im_status_name(got), im_error_text(ctx), im_status_name(want));
    if (!strstr(im_error_text(ctx), part))
        fail_msg("message \"%s\" lacks \"%s\"", im_error_text(ctx), part);
    im_error_clear(ctx);
}

static void write_file(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* documents of the given lengths; ids count up from 0, modulo `wrap` */
static void build(const char *name, im_dtype t, const int64_t *lengths, size_t n, int32_t wrap)
{
    im_tokens_writer *w;
    ok(im_tokens_create(ctx, path(name), t, &w));
    int32_t id = 0;
    for (size_t d = 0; d < n; d++) {
        for (int64_t i = 0; i < lengths[d]; i++, id++) {
            int32_t x = id % wrap;
            ok(im_tokens_append(w, &x, 1));
        }
        ok(im_tokens_end_document(w));
    }
    ok(im_tokens_finish(w));
}

static void test_round_trip(void **state)
{
    (void)state;
    static const struct {
        im_dtype t;
        const char *name;
        int32_t wrap;
    } kinds[] = {{IM_U16, "uint16", 65536}, {IM_I32, "int32", INT32_MAX}};
    for (size_t k = 0; k < 2; k++) {
        int64_t lengths[] = {3, 70000, 1, 0, 17};
        build("rt", kinds[k].t, lengths, 5, kinds[k].wrap);
        im_tokens *t;
        ok(im_tokens_open(ctx, path(k ? "rt.bin" : "rt"), &t));
        assert_string_equal(im_tokens_dtype(t), kinds[k].name);
        assert_int_equal(im_tokens_count(t), 70021);
        assert_int_equal(im_tokens_documents(t), 4); /* the empty one is none */
        ok(im_tokens_verify(ctx, t));
        int32_t *ids = malloc(70021 * sizeof *ids);
        ok(im_tokens_read(ctx, t, 0, 70021, ids));
        for (int32_t i = 0; i < 70021; i++)
            assert_int_equal(ids[i], i % kinds[k].wrap);
        int64_t first, n, want = 0, docs[] = {3, 70000, 1, 17};
        for (int64_t d = 0; d < 4; d++) {
            ok(im_tokens_document(ctx, t, d, &first, &n));
            assert_int_equal(first, want);
            assert_int_equal(n, docs[d]);
            want += n;
        }
        refused(im_tokens_document(ctx, t, 4, &first, &n), IM_ERR_ARG, "there are 4");
        refused(im_tokens_read(ctx, t, 70020, 2, ids), IM_ERR_ARG, "there are 70021");
        refused(im_tokens_read(ctx, t, -1, 2, ids), IM_ERR_ARG, "-1");
        refused(im_tokens_read(ctx, t, INT64_MAX, 2, ids), IM_ERR_ARG, "there are");
        int64_t lo, hi;
        ok(im_tokens_id_range(ctx, t, 0, 70021, &lo, &hi));
        assert_int_equal(lo, 0);
        assert_int_equal(hi, k ? 70020 : 65535);
        ok(im_tokens_id_range(ctx, t, 5, 0, &lo, &hi));
        assert_int_equal(hi, -1);
        free(ids);
        im_tokens_close(t);
    }
}

/* The bytes as Megatron's IndexedDatasetBuilder writes them for documents [1 2 3] and [4 5]. */
static const unsigned char golden_idx[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0,
                                           0,   0,   3,   0,   0,   0,   0,   0, 0, 0,                                            /* header */
                                           3,   0,   0,   0,   2,   0,   0,   0,                                                  /* lengths */
                                           0,   0,   0,   0,   0,   0,   0,   0, 6, 0, 0, 0, 0, 0, 0, 0,                          /* pointers */
                                           0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}; /* documents */
static const unsigned char golden_bin[] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0};

static void test_format_bytes(void **state)
{
    (void)state;
    im_tokens_writer *w;
    ok(im_tokens_create(ctx, path("g"), IM_U16, &w));
    ok(im_tokens_append(w, (const int32_t[]){1, 2, 3}, 3));
    ok(im_tokens_end_document(w));
    ok(im_tokens_append(w, (const int32_t[]){4, 5}, 2));
    assert_false(im_path_exists(path("g.idx")));
    assert_false(im_path_exists(path("g.bin"))); /* nothing under its name before it is whole */
    ok(im_tokens_finish(w));
    assert_false(im_path_exists(path("g.bin.tmp")));
    char *data;
    size_t len;
    ok(im_file_read(ctx, path("g.idx"), 1000, &data, &len));
    assert_int_equal(len, sizeof golden_idx);
    assert_memory_equal(data, golden_idx, len);
    free(data);
    ok(im_file_read(ctx, path("g.bin"), 1000, &data, &len));
    assert_int_equal(len, sizeof golden_bin);
    assert_memory_equal(data, golden_bin, len);
    free(data);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    im_tokens_writer *w, *other;
    refused(im_tokens_create(ctx, path("w"), IM_F32, &w), IM_ERR_ARG, "16- or 32-bit");
    refused(im_tokens_create(ctx, path("absent/w"), IM_U16, &w), IM_ERR_IO, "absent/w");
    ok(im_tokens_create(ctx, path("w"), IM_U16, &w));
    refused(im_tokens_create(ctx, path("w"), IM_U16, &other), IM_ERR_EXISTS, "another program");
    refused(im_tokens_append(w, (const int32_t[]){1, 65536}, 2), IM_ERR_ARG, "token 1 would be the id 65536");
    assert_int_not_equal(im_tokens_append(w, (const int32_t[]){1}, 1), IM_OK);
    assert_int_not_equal(im_tokens_finish(w), IM_OK); /* a hole: never finished */
    im_error_clear(ctx);
    assert_false(im_path_exists(path("w.bin")) || im_path_exists(path("w.bin.tmp")) || im_path_exists(path("w.idx.tmp")));
}

static void put(unsigned char *b, size_t at, uint64_t v, size_t n)
{
    memcpy(b + at, &v, n);
}

/* Each entry damages the good index in one place. */
static void test_bad_index(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        size_t n;
        im_status status;
        const char *part;
    } damage[] = {
        {0, 'X', 1, IM_ERR_FORMAT, "byte 0"},
        {8, 1, 1, IM_ERR_FORMAT, "byte 0"},
        {9, 2, 8, IM_ERR_UNSUPPORTED, "version 2"},
        {17, 0, 1, IM_ERR_FORMAT, "id type 0"},
        {17, 9, 1, IM_ERR_FORMAT, "id type 9"},
        {17, 6, 1, IM_ERR_UNSUPPORTED, "float64"},
        {17, 7, 1, IM_ERR_UNSUPPORTED, "float32"},
        {18, 3, 8, IM_ERR_FORMAT, "byte 26"},
        {18, 1, 8, IM_ERR_FORMAT, "after the document list"},
        {18, UINT64_MAX, 8, IM_ERR_FORMAT, "sequences need"},
        {18, UINT64_MAX / 12 + 2, 8, IM_ERR_FORMAT, "sequences need"},
        {26, 0, 8, IM_ERR_FORMAT, "byte 26"},
        {26, 4, 8, IM_ERR_FORMAT, "byte 26"},
        {26, UINT64_MAX, 8, IM_ERR_FORMAT, "byte 26"},
        {26, (UINT64_MAX >> 3) + 4, 8, IM_ERR_FORMAT, "byte 26"},
        {34, 0xffffffff, 4, IM_ERR_FORMAT, "length -1"},
        {34, 4, 4, IM_ERR_FORMAT, "ends at 8"},
        {38, 3, 4, IM_ERR_FORMAT, "has 10 bytes"},
        {38, 1, 4, IM_ERR_FORMAT, "do not belong together"},
        {42, 2, 8, IM_ERR_FORMAT, "not at 0"},
        {50, 5, 8, IM_ERR_FORMAT, "begins at byte 5"},
        {50, 4, 8, IM_ERR_FORMAT, "begins at byte 4"},
        {50, 12, 8, IM_ERR_FORMAT, "begins at byte 12"},
        {50, UINT64_MAX, 8, IM_ERR_FORMAT, "begins at byte -1"},
        {50, INT64_MAX, 8, IM_ERR_FORMAT, "9223372036854775807"},
        {58, 1, 8, IM_ERR_FORMAT, "begins with 1"},
        {66, 3, 8, IM_ERR_FORMAT, "document 0"},
        {66, UINT64_MAX, 8, IM_ERR_FORMAT, "document 0"},
        {74, 1, 8, IM_ERR_FORMAT, "ends with 1"},
        {74, 3, 8, IM_ERR_FORMAT, "ends with 3"},
    };
    im_tokens *t = NULL;
    write_file("b.bin", golden_bin, sizeof golden_bin);
    for (size_t i = 0; i < IM_COUNT_OF(damage); i++) {
        unsigned char b[sizeof golden_idx];
        memcpy(b, golden_idx, sizeof b);
        put(b, damage[i].at, damage[i].value, damage[i].n);
        write_file("b.idx", b, sizeof b);
        refused(im_tokens_open(ctx, path("b"), &t), damage[i].status, damage[i].part);
    }
    for (size_t n = 0; n < sizeof golden_idx; n++) { /* cut anywhere */
        write_file("b.idx", golden_idx, n);
        refused(im_tokens_open(ctx, path("b"), &t), IM_ERR_FORMAT, "b.idx");
    }
    write_file("b.idx", golden_idx, sizeof golden_idx);
    for (size_t n = 0; n < sizeof golden_bin; n++) {
        write_file("b.bin", golden_bin, n);
        refused(im_tokens_open(ctx, path("b"), &t), IM_ERR_FORMAT, "b.bin");
    }
    assert_null(t);
    write_file("b.bin", golden_bin, sizeof golden_bin);
    ok(im_tokens_open(ctx, path("b"), &t));
    im_tokens_close(t);
}

static void test_absent(void **state)
{
    (void)state;
    im_tokens *t;
    refused(im_tokens_open(ctx, path("nowhere"), &t), IM_ERR_NOT_FOUND, "nowhere.idx");
    write_file("text.txt", "hello", 5);
    refused(im_tokens_open(ctx, path("text.txt"), &t), IM_ERR_NOT_FOUND, "imece data build");
    int64_t one = 5;
    build("pair-train", IM_U16, &one, 1, 10);
    refused(im_tokens_open(ctx, path("pair"), &t), IM_ERR_NOT_FOUND, "pair-train");
    unlink(path("pair-train.bin"));
    refused(im_tokens_open(ctx, path("pair-train"), &t), IM_ERR_NOT_FOUND, "pair-train.bin");
}

/* Ids of each width that Megatron may write, negative and too large ones refused where they are read. */
static void test_id_types(void **state)
{
    (void)state;
    static const struct {
        int code;
        size_t size;
        bool has_sign;
    } kinds[] = {{1, 1, false}, {2, 1, true}, {3, 2, true}, {4, 4, true}, {5, 8, true}, {8, 2, false}};
    for (size_t k = 0; k < IM_COUNT_OF(kinds); k++) {
        unsigned char idx[34 + 12 + 16], bin[3 * 8];
        memcpy(idx, golden_idx, 34);
        idx[17] = (unsigned char)kinds[k].code;
        put(idx, 18, 1, 8);
        put(idx, 26, 2, 8);
        put(idx, 34, 3, 4);
        put(idx, 38, 0, 8);
        put(idx, 46, 0, 8);
        put(idx, 54, 1, 8);
        uint64_t values[3] = {7, 100, UINT64_MAX}; /* all ones: -1, or the largest */
        for (size_t i = 0; i < 3; i++)
            put(bin, i * kinds[k].size, values[i], kinds[k].size);
        write_file("k.idx", idx, sizeof idx);
        write_file("k.bin", bin, 3 * kinds[k].size);
        im_tokens *t;
        ok(im_tokens_open(ctx, path("k"), &t));
        int32_t ids[3];
        ok(im_tokens_read(ctx, t, 0, 2, ids));
        assert_int_equal(ids[0], 7);
        assert_int_equal(ids[1], 100);
        if (kinds[k].has_sign) {
            refused(im_tokens_read(ctx, t, 0, 3, ids), IM_ERR_FORMAT, "token 2 is the id -1");
        } else {
            ok(im_tokens_read(ctx, t, 0, 3, ids));
            assert_int_equal(ids[2], kinds[k].size == 1 ? 255 : 65535);
        }
        im_tokens_close(t);
    }
}

/* More than 2^31 tokens, as a sparse file; values at both sides of 2^31 are found again. */
static void test_large(void **state)
{
    (void)state;
    const int64_t n = ((int64_t)1 << 31) + 1000, marks[] = {0, 1, INT32_MAX, (int64_t)1 << 31, ((int64_t)1 << 31) + 999};
    unsigned char idx[34 + 2 * 12 + 2 * 8];
    for (int k = 0; k < 2; k++) {
        size_t size = k ? 4 : 2;
        memcpy(idx, golden_idx, 34);
        idx[17] = k ? 4 : 8;
        put(idx, 18, 2, 8);
        put(idx, 26, 2, 8);
        put(idx, 34, INT32_MAX, 4);
        put(idx, 38, (uint64_t)(n - INT32_MAX), 4);
        put(idx, 42, 0, 8);
        put(idx, 50, (uint64_t)INT32_MAX * size, 8);
        put(idx, 58, 0, 8);
        put(idx, 66, 2, 8);
        write_file("large.idx", idx, sizeof idx);
        int fd = open(path("large.bin"), O_RDWR | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, n * (off_t)size), 0);
        for (size_t i = 0; i < IM_COUNT_OF(marks); i++) {
            uint32_t v = 1000 + (uint32_t)i;
            assert_int_equal(pwrite(fd, &v, size, marks[i] * (off_t)size), size);
        }
        close(fd);
        im_tokens *t;
        ok(im_tokens_open(ctx, path("large"), &t));
        assert_true(im_tokens_count(t) == n);
        int64_t first, count;
        ok(im_tokens_document(ctx, t, 0, &first, &count));
        assert_true(first == 0 && count == n);
        for (size_t i = 0; i < IM_COUNT_OF(marks); i++) {
            int32_t id;
            ok(im_tokens_read(ctx, t, marks[i], 1, &id));
            assert_int_equal(id, 1000 + (int)i);
        }
        im_feed *f;
        int32_t ids[999], targets[999], pos[999];
        ok(im_feed_open(ctx, path("large"), &(im_feed_config){.seq_len = 999, .vocab = 2000}, &f));
        assert_true(im_feed_samples(f) == (n - 1) / 999);
        ok(im_feed_read(ctx, f, marks[3] / 999, ids, targets, pos, NULL));
        assert_int_equal(ids[marks[3] % 999], 1003);
        assert_int_equal(targets[marks[3] % 999 - 1], 1003);
        im_feed_close(f);
        ok(im_feed_open(ctx, path("large"), &(im_feed_config){.seq_len = 1, .vocab = 2000, .order = IM_ORDER_SHUFFLED}, &f));
        size_t source;
        int64_t sample;
        im_feed_where(f, im_feed_samples(f) - 1, &source, &sample); /* of 2^31 + 999 */
        assert_true(sample >= 0 && sample < im_feed_samples(f));
        im_feed_close(f);
        (void)im_tokens_fingerprint(t);
        im_tokens_close(t);
        unlink(path("large.bin"));
    }
}

/* An index of 10^8 sequences opens without being read: 1.2 GB (sparse), of which few pages become resident. */
static void test_constant_open(void **state)
{
    (void)state;
    const uint64_t sequences = 100000000, documents_at = 34 + 12 * sequences;
    unsigned char head[34], last[8];
    memcpy(head, golden_idx, 34);
    put(head, 18, sequences, 8);
    put(head, 26, 2, 8);
    put(last, 0, sequences, 8);
    int fd = open(path("many.idx"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(pwrite(fd, head, 34, 0), 34);
    assert_int_equal(pwrite(fd, last, 8, (off_t)documents_at + 8), 8);
    close(fd);
    write_file("many.bin", "", 0);
    size_t before = im_process_rss();
    im_tokens *t;
    ok(im_tokens_open(ctx, path("many"), &t));
    (void)im_tokens_fingerprint(t);
    size_t after = im_process_rss();
    assert_int_equal(im_tokens_documents(t), 1);
    if (after > before + ((size_t)128 << 20))
        fail_msg("%zu bytes became resident", after - before);
    im_tokens_close(t);
    unlink(path("many.idx"));
}

static void test_fingerprint(void **state)
{
    (void)state;
    int64_t n[] = {300000, 5};
    build("f1", IM_U16, n, 2, 60000);
    build("f2", IM_U16, n, 2, 60000);
    im_tokens *a, *b;
    ok(im_tokens_open(ctx, path("f1"), &a));
    ok(im_tokens_open(ctx, path("f2"), &b));
    uint64_t same = im_tokens_fingerprint(a);
    assert_true(same == im_tokens_fingerprint(b)); /* names do not matter */
    im_tokens_close(b);
    int fd = open(path("f2.bin"), O_RDWR);
    assert_int_equal(pwrite(fd, "x", 1, 300000), 1);
    close(fd);
    ok(im_tokens_open(ctx, path("f2"), &b));
    assert_true(same != im_tokens_fingerprint(b));
    im_tokens_close(b);
    n[0]--, n[1]++; /* the same ids, other documents */
    build("f2", IM_U16, n, 2, 60000);
    ok(im_tokens_open(ctx, path("f2"), &b));
    assert_true(same != im_tokens_fingerprint(b));
    im_tokens_close(a);
    im_tokens_close(b);
}

/* ---- order -------------------------------------------------------------------- */

static im_sampler bare(int64_t samples, uint64_t seed)
{
    return (im_sampler){.samples = samples, .order = IM_ORDER_SHUFFLED, .seed = seed};
}

static void test_permutation(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 2000; n++) {
        im_sampler s = bare(n, (uint64_t)n);
        unsigned char seen[2000] = {0};
        int64_t epoch = n % 3, same = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t x = im_sampler_index(&s, epoch * n + i);
            assert_true(x >= 0 && x < n);
            assert_int_equal(seen[x]++, 0);
            same += x == im_sampler_index(&s, (epoch + 1) * n + i);
        }
        if (n > 20) /* fixed points of one epoch's order in the next: 1 on average, never many */
            assert_true(same <= 10);
    }
}

/* chi-square of (place, sample) over epochs and over seeds: with 10 x 10 cells in 20000 draws, 81 degrees of freedom */
static void test_uniform(void **state)
{
    (void)state;
    enum { N = 10, DRAWS = 20000 };
    for (int by_seed = 0; by_seed < 2; by_seed++) {
        int64_t cell[N][N] = {{0}}, follows[N][N] = {{0}};
        for (int64_t e = 0; e < DRAWS; e++) {
            im_sampler s = bare(N, by_seed ? (uint64_t)e : 7);
            int64_t before = -1;
            for (int64_t i = 0; i < N; i++) {
                int64_t x = im_sampler_index(&s, (by_seed ? 0 : e * N) + i);
                cell[i][x]++;
                if (before >= 0)
                    follows[before][x]++;
                before = x;
            }
        }
        double chi = 0, pairs = 0, want = (double)DRAWS / N, want_pair = (double)DRAWS * (N - 1) / (N * (N - 1));
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                chi += ((double)cell[i][j] - want) * ((double)cell[i][j] - want) / want;
                if (i != j)
                    pairs += ((double)follows[i][j] - want_pair) * ((double)follows[i][j] - want_pair) / want_pair;
            }
        assert_true(chi > 30 && chi < 160);
        assert_true(pairs > 30 && pairs < 170);
    }
}

/* B41: the samples of a run that stops and goes on are those of the run that does not, for any way of cutting and of sharing out:
 * they depend on the global position alone. */
static void test_resume(void **state)
{
    (void)state;
    enum { SAMPLES = 10, GLOBAL = 4, STEPS = 9 };
    static const int stops[][2] = {{0, 0}, {3, 3}, {4, 4}, {1, 2}, {5, 6}}; /* two stops each; 3 and more are in epoch 2 */
    im_sampler s = bare(SAMPLES, 3);
    int64_t whole[GLOBAL * STEPS];
    for (int64_t p = 0; p < GLOBAL * STEPS; p++)
        whole[p] = im_sampler_index(&s, p);
    for (size_t k = 0; k < IM_COUNT_OF(stops); k++)
        for (int dp = 1; dp <= 4; dp *= 2) {
            int64_t got[GLOBAL * STEPS], consumed = 0;
            int ends[3] = {stops[k][0], stops[k][1], STEPS};
            for (int run = 0; run < 3; run++) {
                im_sampler again = bare(SAMPLES, 3); /* a new process: only `consumed` is known */
                for (; consumed < (int64_t)ends[run] * GLOBAL; consumed += GLOBAL)
                    for (int rank = 0; rank < dp; rank++)
                        for (int64_t i = rank * GLOBAL / dp; i < (rank + 1) * GLOBAL / dp; i++)
                            got[consumed + i] = im_sampler_index(&again, consumed + i);
            }
            assert_memory_equal(got, whole, sizeof whole);
        }
}

/* B47: 10 samples, micro-batch 2, dp 3, global batch 6: disjoint ranks, as many batches each, the epoch turns at one position. */
static void test_partition(void **state)
{
    (void)state;
    enum { SAMPLES = 10, DP = 3, MICRO = 2, GLOBAL = 6 };
    im_sampler s = bare(SAMPLES, 11);
    int uses[SAMPLES] = {0};
    for (int64_t step = 0; step < 5; step++) { /* 30 samples: three epochs exactly */
        int64_t seen[GLOBAL];
        for (int64_t rank = 0; rank < DP; rank++)
            for (int64_t i = 0; i < MICRO; i++) {
                int64_t position = step * GLOBAL + rank * MICRO + i, x = im_sampler_index(&s, position);
                seen[rank * MICRO + i] = position / SAMPLES * SAMPLES + x; /* equal only within an epoch */
                uses[x]++;
            }
        for (int a = 0; a < GLOBAL; a++)
            for (int b = 0; b < a; b++)
                assert_true(seen[a] != seen[b]);
    }
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(uses[i], 3);
}

/* ---- text ---------------------------------------------------------------------- */

/* The documents of NAME as one string: bytes, then | for the end. Other ids fail. */
static char *documents(const char *name)
{
    static char text[1 << 16];
    im_tokens *t;
    ok(im_tokens_open(ctx, path(name), &t));
    ok(im_tokens_verify(ctx, t));
    size_t at = 0;
    for (int64_t d = 0; d < im_tokens_documents(t); d++) {
        int64_t first, n;
        int32_t id = 0;
        ok(im_tokens_document(ctx, t, d, &first, &n));
        for (int64_t i = 0; i < n; i++) {
            ok(im_tokens_read(ctx, t, first + i, 1, &id));
            assert_true(id <= IM_BYTE_EOD);
            text[at++] = id == IM_BYTE_EOD ? '|' : (char)id;
        }
        if (id != IM_BYTE_EOD) /* cut by position */
            text[at++] = '/';
    }
    text[at] = 0;
    im_tokens_close(t);
    return text;
}

/* Every place to cut three documents, and the longest of them in pieces. */
static void test_move_tail(void **state)
{
    (void)state;
    for (int64_t at = 1; at < 12; at++) {
        im_tokens_writer *w, *to;
        ok(im_tokens_create(ctx, path("head"), IM_U16, &w));
        ok(im_tokens_create(ctx, path("tail"), IM_I32, &to));
        static const char *docs[] = {"abc", "defgh", "ijkl"};
        for (int d = 0; d < 3; d++) {
            ok(im_tokens_append_bytes(w, docs[d], strlen(docs[d])));
            ok(im_tokens_end_document(w));
        }
        ok(im_tokens_move_tail(w, at, to));
        assert_int_equal(im_tokens_written(w), at);
        assert_int_equal(im_tokens_written(to), 12 - at);
        ok(im_tokens_finish(w));
        ok(im_tokens_finish(to));
        char all[64], want[64];
        snprintf(all, sizeof all, "%s|", documents("head"));
        strcat(all, documents("tail"));
        snprintf(want, sizeof want, "%.*s/|%s/", (int)at, "abcdefghijkl", &"abcdefghijkl"[at]);
        char plain[64] = "", *q = plain;
        for (const char *p = all; *p; p++)
            if (*p != '/' || p[1] == '|')
                *q++ = *p;
        *q = 0;
        want[strlen(want) - 1] = 0;
        assert_string_equal(plain, want);
        im_tokens *t;
        ok(im_tokens_open(ctx, path("tail"), &t));
        assert_int_equal(im_tokens_documents(t), at < 3 ? 3 : at < 8 ? 2 : 1);
        im_tokens_close(t);
        ok(im_tokens_open(ctx, path("head"), &t));
        assert_int_equal(im_tokens_documents(t), at <= 3 ? 1 : at <= 8 ? 2 : 3);
        assert_non_null(im_tokens_known(t));
        assert_int_equal(im_tokens_known(t)->longest, at <= 3 ? at : at <= 6 ? 3 : at <= 8 ? at - 3 : 5);
        im_tokens_close(t);
    }
    im_tokens_writer *w, *to;
    ok(im_tokens_create(ctx, path("head"), IM_U16, &w));
    ok(im_tokens_create(ctx, path("tail"), IM_U16, &to));
    ok(im_tokens_append_bytes(w, "abc", 3));
    refused(im_tokens_move_tail(w, 3, to), IM_ERR_ARG, "token 3 of 3");
    im_tokens_abandon(w);
    im_tokens_abandon(to);
}

/* ---- n-grams --------------------------------------------------------------------- */

static void test_ngram(void **state)
{
    (void)state;
    enum { N = 200000 };
    /* a second-order source: the next of 8 letters depends on the two before, right 3 times of 4; entropy is known */
    im_tokens_writer *w[2];
    ok(im_tokens_create(ctx, path("n-train"), IM_U16, &w[0]));
    ok(im_tokens_create(ctx, path("n-valid"), IM_U16, &w[1]));
    int32_t a = 0, b = 1;
    for (int64_t i = 0; i < 2 * N; i++) {
        uint32_t r[4];
        im_philox(9, (uint64_t)i, 0, r);
        int32_t x = r[0] % 4 ? 'a' + (3 * a + 5 * b + 1) % 8 : 'a' + (int32_t)(r[1] % 8);
        ok(im_tokens_append(w[i >= N], &x, 1));
        a = b;
        b = x - 'a';
    }
    ok(im_tokens_finish(w[0]));
    ok(im_tokens_finish(w[1]));
    im_tokens *t, *v;
    ok(im_tokens_open(ctx, path("n-train"), &t));
    ok(im_tokens_open(ctx, path("n-valid"), &v));
    im_ngram_result r;
    ok(im_ngram_score(ctx, t, v, &r));
    double right = 0.75 + 0.25 / 8, entropy = -right * log2(right) - (1 - right) * log2((1 - right) / 7);
    assert_int_equal(r.scored, N - 1);
    assert_int_equal(r.scored_bytes, N - 1);
    assert_true(fabs(r.bits[0] - log2(257)) < 1e-9);
    assert_true(r.bits[1] > 2.9 && r.bits[1] < 3.01);
    assert_true(r.bits[2] > entropy + 0.5);
    assert_true(fabs(r.bits[3] - entropy) < 0.03);
    im_tokens_close(t);
    ok(im_tokens_open(ctx, path("n-valid"), &t));
    build("wide", IM_U16, (const int64_t[]){400}, 1, 400);
    im_tokens_close(v);
    ok(im_tokens_open(ctx, path("wide"), &v));
    refused(im_ngram_score(ctx, t, v, &r), IM_ERR_UNSUPPORTED, "id 257");
    im_tokens_close(t);
    im_tokens_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_format_bytes),  cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_bad_index),   cmocka_unit_test(test_absent),        cmocka_unit_test(test_id_types),
        cmocka_unit_test(test_large),       cmocka_unit_test(test_constant_open), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_permutation), cmocka_unit_test(test_uniform),       cmocka_unit_test(test_resume),
        cmocka_unit_test(test_partition),   cmocka_unit_test(test_move_tail),     cmocka_unit_test(test_ngram),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
