/* src/data: what a run reads: streams of several files, blends, rows of whole documents, masks, documents that end within a sample. */
#include "data/feed_parts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static im_context *ctx;
static im_arena *arena;
static char dir[] = "/tmp/imece-feed-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) && im_context_create(&ctx) == IM_OK && im_arena_create(ctx, &arena) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_status s = im_remove_tree(ctx, dir);
    im_arena_destroy(arena);
    im_context_destroy(ctx);
    return s == IM_OK ? 0 : -1;
}

static const char *path(const char *name)
{
    const char *p = im_arena_printf(arena, "%s/%s", dir, name);
    assert_non_null(p);
    return p;
}

static void ok(im_status s)
{
    if (s != IM_OK)
        fail_msg("%s: %s", im_status_name(s), im_error_text(ctx));
}

static void refused(im_status got, im_status want, const char *part)
{
    if (got != want)
        fail_msg("got %s (%s), want %s", im_status_name(got), im_error_text(ctx), im_status_name(want));
    if (!strstr(im_error_text(ctx), part))
        fail_msg("message \"%s\" lacks \"%s\"", im_error_text(ctx), part);
    im_error_clear(ctx);
}

/* A file of documents of the given lengths; ids count up from `id`. masked: token i counts when i % 3 is not 0. */
static void build(const char *name, const int64_t *length, int n, int32_t id, bool masked)
{
    im_tokens_writer *w;
    ok(im_tokens_create_at(ctx, path(name), &(im_tokens_kind){.dtype = IM_I32, .masked = masked}, NULL, &w));
    for (int d = 0; d < n; d++) {
        for (int64_t i = 0; i < length[d]; i++, id++) {
            unsigned char counted = id % 3 != 0;
            ok(im_tokens_append_masked(w, &id, masked ? &counted : NULL, 1));
        }
        ok(im_tokens_end_document(w));
    }
    ok(im_tokens_finish(w));
}

static im_feed *open_feed(const char *spec, im_feed_config cfg)
{
    im_feed *f;
    if (!cfg.vocab)
        cfg.vocab = INT32_MAX;
    ok(im_feed_open(ctx, spec, &cfg, &f));
    return f;
}

static im_status try_feed(const char *spec, im_feed_config cfg)
{
    im_feed *f;
    if (!cfg.vocab)
        cfg.vocab = INT32_MAX;
    im_status s = im_feed_open(ctx, spec, &cfg, &f);
    if (s == IM_OK)
        im_feed_close(f);
    return s;
}

enum { MOST = 256 };
typedef struct row {
    int32_t id[MOST], target[MOST], pos[MOST], seg[MOST];
} row;

static row read_row(const im_feed *f, int64_t position)
{
    row r;
    memset(&r, 0x55, sizeof r);
    ok(im_feed_read(ctx, f, position, r.id, r.target, r.pos, r.seg));
    return r;
}

/* ---- one stream -------------------------------------------------------------------------------------- */

static void test_samples(void **state)
{
    (void)state;
    const int64_t n = 101; /* 10 samples of 10: tokens 0..100 */
    build("s", &n, 1, 0, false);
    im_feed *f = open_feed(path("s"), (im_feed_config){.seq_len = 10, .vocab = 101});
    assert_int_equal(im_feed_samples(f), 10);
    assert_int_equal(im_feed_pack(f), IM_PACK_STREAM);
    assert_false(im_feed_documents(f));
    for (int64_t p = 0; p < 25; p++) {
        row r = read_row(f, p);
        for (int i = 0; i < 10; i++) {
            assert_int_equal(r.id[i], p % 10 * 10 + i);
            assert_int_equal(r.target[i], r.id[i] + 1);
            assert_int_equal(r.pos[i], i);
            assert_int_equal(r.seg[i], 0);
        }
    }
    im_feed_close(f);
    f = open_feed(path("s.bin"), (im_feed_config){.seq_len = 100});
    assert_int_equal(im_feed_samples(f), 1);
    im_feed_close(f);
    refused(try_feed(path("s"), (im_feed_config){.seq_len = 101}), IM_ERR_ARG, "needs 102");
    refused(try_feed(path("s"), (im_feed_config){.seq_len = 0}), IM_ERR_ARG, "at least 1");
}

/* An id that the model does not have is told before the first step, with the description of the files or without; where neither tells, when its
 * sample comes up. */
static void test_vocabulary(void **state)
{
    (void)state;
    const int64_t n = 3000000;
    build("v", &n, 1, 0, false);
    refused(try_feed(path("v"), (im_feed_config){.seq_len = 10, .vocab = 2999999}), IM_ERR_FORMAT, "the id 2999999, but the model's vocabulary has");
    assert_int_equal(unlink(path("v.json")), 0);
    refused(try_feed(path("v"), (im_feed_config){.seq_len = 10, .vocab = 2999999}), IM_ERR_FORMAT, "the id 2999999 (from token");
    int fd = open(path("v.bin"), O_RDWR);
    int32_t id = 5000000;
    assert_int_equal(pwrite(fd, &id, 4, 4 * 10001), 4); /* of no page that is looked at */
    close(fd);
    im_feed *f = open_feed(path("v"), (im_feed_config){.seq_len = 10, .vocab = 3000000});
    int32_t ids[10], targets[10], pos[10];
    ok(im_feed_read(ctx, f, 999, ids, targets, pos, NULL));
    refused(im_feed_read(ctx, f, 1000, ids, targets, pos, NULL), IM_ERR_FORMAT, "token 10001 is the id 5000000");
    im_feed_close(f);
    unlink(path("v.bin"));
}

/* A file that becomes shorter while a run has it open: an error with its name. */
static void test_shortened(void **state)
{
    (void)state;
    const int64_t n = 100000;
    build("short", &n, 1, 0, false);
    im_feed *f = open_feed(path("short"), (im_feed_config){.seq_len = 10, .attention = IM_REACH_DOCUMENT});
    read_row(f, 9000);
    assert_int_equal(truncate(path("short.bin"), 4096), 0);
    assert_int_equal(truncate(path("short.idx"), 40), 0);
    int32_t ids[10], targets[10], pos[10];
    ok(im_feed_read(ctx, f, 5, ids, targets, pos, NULL));
    refused(im_feed_read(ctx, f, 9000, ids, targets, pos, NULL), IM_ERR_IO, "short.bin: it has no byte");
    im_feed_close(f);
}

/* Several files are one stream. */
static void test_files(void **state)
{
    (void)state;
    const int64_t a[] = {30, 11}, b[] = {5}, c[] = {60};
    build("a", a, 2, 0, false);
    build("b", b, 1, 41, false);
    build("c", c, 1, 46, false);
    const char *spec = im_arena_printf(arena, "%s,%s,%s", path("a"), path("b"), path("c"));
    im_feed *f = open_feed(spec, (im_feed_config){.seq_len = 7});
    assert_int_equal(im_feed_tokens(f), 106);
    assert_int_equal(im_feed_samples(f), 15);
    assert_int_equal(im_feed_sources(f), 1);
    assert_int_equal(im_feed_source_of(f, 0).files, 3);
    for (int64_t p = 0; p < 15; p++) {
        row r = read_row(f, p);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(r.id[i], p * 7 + i);
            assert_int_equal(r.target[i], p * 7 + i + 1);
        }
    }
    uint64_t print = im_feed_fingerprint(f);
    im_feed_close(f);
    f = open_feed(im_arena_printf(arena, "%s,%s,%s", path("b"), path("a"), path("c")), (im_feed_config){.seq_len = 7});
    assert_true(print != im_feed_fingerprint(f)); /* another order is another stream */
    im_feed_close(f);
    refused(try_feed(im_arena_printf(arena, "%s,nowhere", path("a")), (im_feed_config){.seq_len = 7}), IM_ERR_NOT_FOUND, "nowhere.idx");
}

/* ---- blends ------------------------------------------------------------------------------------------- */

/* After any n samples, source i has had floor or ceil of n times its share. */
static void check_shares(const char *const *weight, size_t n)
{
    im_blend b;
    ok(im_blend_init(ctx, weight, n, &b));
    int64_t had[IM_BLEND_SOURCES] = {0}, many = 3 * b.period < 200000 ? 3 * b.period : b.period;
    for (int64_t p = 0; p < many; p++) {
        size_t s;
        int64_t turn;
        im_blend_at(&b, p, &s, &turn);
        assert_true(s < n && turn == had[s]); /* each of its samples in order, none left out */
        had[s]++;
        for (size_t i = 0; i < n; i++) {
            int64_t low = (p + 1) * b.weight[i] / b.period, high = ((p + 1) * b.weight[i] + b.period - 1) / b.period;
            if (had[i] < low || had[i] > high)
                fail_msg("after %lld samples source %zu had %lld, not %lld or %lld", (long long)p + 1, i, (long long)had[i], (long long)low,
                         (long long)high);
        }
    }
    im_blend_free(&b);
}

static void test_shares(void **state)
{
    (void)state;
    static const char *const by_hand[][8] = {{"0.7", "0.3"},
                                             {"1"},
                                             {"1", "1", "1"},
                                             {"0.5", "0.25", "0.125", "0.125"},
                                             {"99", "1"},
                                             {"0.001", "0.999"},
                                             {"3", "2.5", "0.125"},
                                             {"0.333", "0.333", "0.334"},
                                             {"5", "7", "11", "13", "17", "19", "23", "29"},
                                             {"0.6", "0.1", "0.1", "0.1", "0.1"}};
    for (size_t i = 0; i < IM_COUNT_OF(by_hand); i++) {
        size_t n = 0;
        while (n < 8 && by_hand[i][n])
            n++;
        check_shares(by_hand[i], n);
    }
    for (uint64_t key = 0; key < 200; key++) { /* drawn: up to 12 sources, from even to very uneven */
        char text[12][16];
        const char *w[12];
        uint32_t r[4];
        im_philox(key, 1, 1, r);
        size_t n = 1 + r[0] % 12;
        for (size_t i = 0; i < n; i++) {
            uint32_t x[4];
            im_philox(key, 2, i, x);
            snprintf(text[i], sizeof text[i], "%u", 1 + x[0] % (key % 3 ? 40 : 1 + x[1] % 900));
            w[i] = text[i];
        }
        check_shares(w, n);
    }
    im_blend b;
    const struct {
        const char *w[3], *part;
    } bad[] = {{{"0", "1"}, "weight \"0\""},
               {{"-1", "1"}, "weight \"-1\""},
               {{"1e3", "1"}, "weight \"1e3\""},
               {{"", "1"}, "weight \"\""},
               {{".", "1"}, "weight \".\""},
               {{"123456789", "987654321"}, "such as 0.111111, 0.888889"},
               {{"100000000000000", "1"}, "weight"},
               {{"1000000000", "0.000000001"}, "round only after"},
               {{"0.1234567891", "1"}, "at most 9 decimals"}};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++)
        refused(im_blend_init(ctx, bad[i].w, 2, &b), IM_ERR_ARG, bad[i].part);
    const char *million[] = {"0.999999", "0.000001"};
    check_shares(million, 2);
}

/* A blend of files: shares, each source in an order of its own over its own epochs, any position without those before it. */
static void test_blend(void **state)
{
    (void)state;
    const int64_t a = 51, b = 21, c = 31; /* 10, 4 and 6 samples of 5 */
    build("ba", &a, 1, 0, false);
    build("bb", &b, 1, 1000, false);
    build("bc", &c, 1, 2000, false);
    const char *spec = im_arena_printf(arena, "0.5:%s,0.3:%s,0.2:%s", path("ba"), path("bb"), path("bc"));
    for (int order = 0; order < 2; order++) {
        im_feed_config cfg = {.seq_len = 5, .order = (im_order)order, .seed = 9};
        im_feed *f = open_feed(spec, cfg);
        assert_int_equal(im_feed_sources(f), 3);
        assert_int_equal(im_feed_samples(f), 20);
        assert_true(im_feed_source_of(f, 1).share == 0.3);
        int64_t had[3] = {0}, samples[3] = {10, 4, 6};
        for (int64_t p = 0; p < 100; p++) {
            size_t s;
            int64_t sample;
            im_feed_where(f, p, &s, &sample);
            if (!order)
                assert_int_equal(sample, had[s] % samples[s]);
            had[s]++;
            row r = read_row(f, p);
            assert_int_equal(r.id[0], (int)s * 1000 + sample * 5);
            assert_int_equal(r.target[4], r.id[0] + 5);
        }
        assert_int_equal(had[0], 50);
        assert_int_equal(had[1], 30);
        assert_int_equal(had[2], 20);
        im_feed *again = open_feed(spec, cfg); /* a new process that begins in the middle */
        for (int64_t p = 99; p >= 0; p -= 7) {
            row x = read_row(f, p), y = read_row(again, p);
            assert_memory_equal(&x, &y, sizeof x);
        }
        assert_true(im_feed_fingerprint(f) == im_feed_fingerprint(again));
        im_feed_close(again);
        again = open_feed(im_arena_printf(arena, "0.5:%s,0.2:%s,0.3:%s", path("ba"), path("bb"), path("bc")), cfg);
        assert_true(im_feed_fingerprint(f) != im_feed_fingerprint(again));
        im_feed_close(again);
        im_feed_close(f);
    }
    refused(try_feed(spec, (im_feed_config){.seq_len = 30}), IM_ERR_ARG, "bb: 21 tokens are less than one sample");
    refused(try_feed(spec, (im_feed_config){.seq_len = 5, .valid = true}), IM_ERR_ARG, "names without weights");
}

static void write_text(const char *name, const char *text)
{
    ok(im_file_write_atomic(ctx, path(name), text, strlen(text)));
}

static void test_spec(void **state)
{
    (void)state;
    const int64_t n = 20;
    build("odd,name", &n, 1, 0, false);
    build("x", &n, 1, 0, false);
    im_spec s;
    ok(im_spec_parse(ctx, arena, path("odd,name"), &s)); /* a file that is there, whatever letters it has */
    assert_int_equal(s.n, 1);
    assert_int_equal(s.source[0].n, 1);
    ok(im_spec_parse(ctx, arena, "a,b/c,d", &s));
    assert_int_equal(s.n, 1);
    assert_int_equal(s.source[0].n, 3);
    assert_string_equal(s.source[0].name[1], "b/c");
    ok(im_spec_parse(ctx, arena, "2:a,0.25:b:c", &s));
    assert_int_equal(s.n, 2);
    assert_string_equal(s.source[1].weight, "0.25");
    assert_string_equal(s.source[1].name[0], "b:c");
    static const char *const bad[][2] = {{"", "has no name"},
                                         {"a,", "item 2 has no name"},
                                         {"1:a,b", "either each item"},
                                         {"a,1:b", "either each item"},
                                         {"1:", "item 1 has no name"}};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++)
        refused(im_spec_parse(ctx, arena, bad[i][0], &s), IM_ERR_ARG, bad[i][1]);

    write_text("b.yaml", "sources:\n  - {data: x, weight: 0.7}\n  - data: [x, /else/where]\n    weight: 0.3\n");
    ok(im_spec_parse(ctx, arena, path("b.yaml"), &s));
    assert_int_equal(s.n, 2);
    assert_string_equal(s.source[0].weight, "0.7");
    assert_string_equal(s.source[0].name[0], path("x")); /* beside the file */
    assert_string_equal(s.source[1].name[1], "/else/where");
    write_text("l.yaml", "sources: [x, x]\n");
    ok(im_spec_parse(ctx, arena, path("l.yaml"), &s));
    assert_int_equal(s.n, 1);
    assert_int_equal(s.source[0].n, 2);
    assert_null(s.source[0].weight);
    static const char *const yaml[][2] = {{"a: 1\n", "one key is expected"},
                                          {"sources: []\n", "one key is expected"},
                                          {"sources:\n  - {data: x}\n  - {data: x, weight: 1}\n", "1 of 2 sources have a weight"},
                                          {"sources:\n  - {data: x, wieght: 1}\n", "line 2: unknown key wieght"},
                                          {"sources:\n  - {weight: 1}\n", "line 2: a source without data"},
                                          {"sources:\n  - {data: x, weight: 1}\n  - x\n", "line 3: names and sources"},
                                          {"sources:\n  - x\n  - {data: x}\n", "line 3: the name of a token file"}};
    for (size_t i = 0; i < IM_COUNT_OF(yaml); i++) {
        write_text("bad.yaml", yaml[i][0]);
        refused(im_spec_parse(ctx, arena, path("bad.yaml"), &s), IM_ERR_FORMAT, yaml[i][1]);
    }
    refused(im_spec_parse(ctx, arena, path("absent.yaml"), &s), IM_ERR_IO, "absent.yaml");
    im_feed *f = open_feed(path("l.yaml"), (im_feed_config){.seq_len = 3});
    assert_int_equal(im_feed_tokens(f), 40);
    im_feed_close(f);
}

/* ---- documents -------------------------------------------------------------------------------------- */

/* What a stream of documents must give, from the lengths alone. */
static void check_documents(const im_feed *f, const int64_t *length, int n, bool masked, int T)
{
    int64_t all = 0;
    int begins[1024] = {0};
    for (int d = 0; d < n; all += length[d++])
        if (length[d])
            begins[all] = 1;
    for (int64_t p = 0; p < im_feed_samples(f); p++) {
        row r = read_row(f, p);
        int pos = 0, seg = 0;
        for (int t = 0; t < T; t++) {
            int64_t at = p * T + t;
            if (t && begins[at]) {
                pos = 0;
                seg++;
            }
            assert_int_equal(r.id[t], at);
            assert_int_equal(r.pos[t], pos++);
            assert_int_equal(r.seg[t], seg);
            bool counts = !begins[at + 1] && !(masked && (at + 1) % 3 == 0);
            assert_int_equal(r.target[t], counts ? at + 1 : -1);
        }
    }
}

static void test_document_attention(void **state)
{
    (void)state;
    const int64_t length[] = {5, 1, 1, 16, 32, 3, 64, 7, 1}; /* ends at, before and behind the ends of samples of 8 and 16 */
    const int n = IM_COUNT_OF(length);
    for (int masked = 0; masked < 2; masked++) {
        build("d", length, n, 0, masked);
        for (int T = 1; T < 40; T++) {
            im_feed *f = open_feed(path("d"), (im_feed_config){.seq_len = T, .attention = IM_REACH_DOCUMENT, .pack = IM_PACK_STREAM});
            assert_true(im_feed_documents(f));
            check_documents(f, length, n, masked, T);
            im_feed_close(f);
        }
        build("d1", length, 4, 0, masked); /* the same in two files */
        build("d2", length + 4, n - 4, 23, masked);
        const char *spec = im_arena_printf(arena, "%s,%s", path("d1"), path("d2"));
        im_feed *f = open_feed(spec, (im_feed_config){.seq_len = 8, .attention = IM_REACH_DOCUMENT, .pack = IM_PACK_STREAM});
        check_documents(f, length, n, masked, 8);
        im_feed_close(f);
    }
}

/* Many short documents: more than are looked up at once, and an index too large to be held. */
static void test_many_documents(void **state)
{
    (void)state;
    enum { N = 120000, T = 200 };
    static int64_t length[N];
    for (int d = 0; d < N; d++)
        length[d] = 1 + d % 3;
    build("m", length, N, 0, false);
    im_feed *f = open_feed(path("m"), (im_feed_config){.seq_len = T, .attention = IM_REACH_DOCUMENT});
    for (int64_t p = 0; p < im_feed_samples(f); p += 371) {
        row r = read_row(f, p);
        for (int t = 0; t < T; t++) {
            int64_t at = p * T + t, next = (at + 1) % 6;
            assert_int_equal(r.id[t], at);
            assert_int_equal(r.target[t], next == 0 || next == 1 || next == 3 ? -1 : at + 1); /* 1, 2 and 3 tokens in turn */
        }
    }
    im_feed_close(f);
}

/* Every pair of a token and the next of the same document, once, whatever the way into rows; ids are unique. */
static void check_rows(im_feed *f, const int64_t *length, int n, int T, im_long too_long, bool pack)
{
    enum { ALL = 4096 };
    int seen[ALL] = {0};
    int64_t used = 0;
    for (int64_t p = 0; p < im_feed_samples(f); p++) {
        row r = read_row(f, p);
        int parts = 0;
        for (int t = 0; t < T; t++) {
            if (r.target[t] >= 0) {
                assert_int_equal(r.target[t], r.id[t] + 1);
                seen[r.id[t]]++;
                used++;
            }
            if (t && r.target[t - 1] >= 0 && r.target[t] >= 0 && r.seg[t] == r.seg[t - 1]) {
                assert_int_equal(r.id[t], r.id[t - 1] + 1);
                assert_int_equal(r.pos[t], r.pos[t - 1] + 1);
            }
            if (t == 0 || r.seg[t] != r.seg[t - 1]) {
                assert_int_equal(r.pos[t], 0);
                assert_int_equal(r.seg[t], parts);
                parts++;
            }
        }
        if (!pack)
            assert_true(parts <= 2); /* the document and, perhaps, padding */
    }
    int64_t id = 0;
    for (int d = 0; d < n; id += length[d++])
        for (int64_t i = 0; i < length[d]; i++) {
            bool pair = i + 1 < length[d];
            if (length[d] > T + 1)
                pair = too_long == IM_LONG_SPLIT ? pair : too_long == IM_LONG_CUT ? i < T : false;
            assert_int_equal(seen[id + i], pair);
        }
    if (pack && im_feed_samples(f) > 20)
        assert_true((double)used / (double)(im_feed_samples(f) * T) > 0.9);
}

static void test_rows(void **state)
{
    (void)state;
    enum { N = 150, T = 64 };
    int64_t length[N], longest = 0;
    for (int d = 0; d < N; d++) {
        uint32_t r[4];
        im_philox(3, (uint64_t)d, 0, r);
        length[d] = d % 17 == 3 ? 1 : d == 70 ? T + 1 : d % 50 == 49 ? 150 : 2 + r[0] % 30;
        longest = length[d] > longest ? length[d] : longest;
    }
    build("r", length, N, 0, false);
    for (int pack = 0; pack < 2; pack++)
        for (int order = 0; order < 2; order++)
            for (int l = IM_LONG_CUT; l <= IM_LONG_SKIP; l++) {
                im_feed_config cfg = {
                    .seq_len = T, .pack = pack ? IM_PACK_WHOLE : IM_PACK_NONE, .too_long = (im_long)l, .attention = IM_REACH_DOCUMENT};
                cfg.order = (im_order)order;
                im_feed *f = open_feed(path("r"), cfg);
                check_rows(f, length, N, T, (im_long)l, pack);
                im_feed_close(f);
            }
    refused(try_feed(path("r"), (im_feed_config){.seq_len = T, .pack = IM_PACK_WHOLE}), IM_ERR_ARG, "3 of 150 documents are longer than seq-len 64");
    refused(try_feed(path("r"), (im_feed_config){.seq_len = T, .pack = IM_PACK_NONE}), IM_ERR_ARG, "has 150 tokens: seq-len 149");
    const int64_t ones[] = {1, 1};
    build("ones", ones, 2, 0, false);
    refused(try_feed(path("ones"), (im_feed_config){.seq_len = T, .pack = IM_PACK_NONE}), IM_ERR_FORMAT, "no document that makes a sample");
    im_feed *f = open_feed(path("r"), (im_feed_config){.seq_len = 150, .pack = IM_PACK_WHOLE, .attention = IM_REACH_CAUSAL});
    row r = read_row(f, 0); /* packed, and they see one another: positions go on */
    for (int t = 0; t < 150; t++) {
        assert_int_equal(r.pos[t], t);
        assert_int_equal(r.seg[t], 0);
    }
    im_feed_close(f);
}

/* Files with a mask are packed by themselves, and targets that do not count are -1. */
static void test_mask(void **state)
{
    (void)state;
    const int64_t length[] = {9, 4, 12, 7, 20};
    build("k", length, 5, 0, true);
    im_feed *f = open_feed(path("k"), (im_feed_config){.seq_len = 24});
    assert_int_equal(im_feed_pack(f), IM_PACK_WHOLE);
    assert_true(im_feed_documents(f));
    assert_true(im_feed_source_of(f, 0).masked);
    int counted = 0;
    for (int64_t p = 0; p < im_feed_samples(f); p++) {
        row r = read_row(f, p);
        for (int t = 0; t < 24; t++)
            if (r.target[t] >= 0) {
                assert_true(r.target[t] % 3 != 0);
                counted++;
            }
    }
    int want = 0;
    for (int d = 0, id = 0; d < 5; id += (int)length[d++])
        for (int i = 1; i < length[d]; i++)
            want += (id + i) % 3 != 0;
    assert_int_equal(counted, want);
    uint64_t print = im_feed_fingerprint(f);
    im_feed_close(f);
    int fd = open(path("k.mask"), O_RDWR);
    assert_int_equal(pwrite(fd, "\1", 1, 3), 1);
    f = open_feed(path("k"), (im_feed_config){.seq_len = 24});
    assert_true(print != im_feed_fingerprint(f)); /* another mask is other data */
    im_feed_close(f);
    assert_int_equal(pwrite(fd, "\7", 1, 3), 1);
    close(fd);
    f = open_feed(path("k"), (im_feed_config){.seq_len = 24, .pack = IM_PACK_NONE});
    row r;
    refused(im_feed_read(ctx, f, 0, r.id, r.target, r.pos, r.seg), IM_ERR_FORMAT, "k.mask: byte 3 is 7");
    im_feed_close(f);
    assert_int_equal(truncate(path("k.mask"), 51), 0);
    refused(try_feed(path("k"), (im_feed_config){.seq_len = 24}), IM_ERR_FORMAT, "k.mask: 51 bytes; one for each of the 52 tokens");
}

/* ---- validation by document ------------------------------------------------------------------------- */

static void test_valid_share(void **state)
{
    (void)state;
    const int64_t length[] = {40, 10, 0, 30, 20};
    build("p", length, 5, 0, false);
    static const struct {
        double share;
        int64_t train;
    } cases[] = {{0.01, 80}, {0.2, 80}, {0.3, 80}, {0.34, 80}, {0.45, 50}, {0.5, 50}, {0.9, 40}, {0.99, 40}};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_feed_config cfg = {.seq_len = 5, .valid_share = cases[i].share};
        im_feed *train = open_feed(path("p"), cfg);
        cfg.valid = true;
        im_feed *valid = open_feed(path("p"), cfg);
        assert_int_equal(im_feed_tokens(train), cases[i].train);
        assert_int_equal(im_feed_tokens(valid), 100 - cases[i].train);
        assert_int_equal(read_row(valid, 0).id[0], cases[i].train);
        for (int64_t p = 0; p < im_feed_samples(train); p++)
            assert_true(read_row(train, p).target[4] < cases[i].train);
        im_feed_close(train);
        im_feed_close(valid);
    }
    const int64_t one = 100;
    build("p1", &one, 1, 100, false);
    refused(try_feed(path("p1"), (im_feed_config){.seq_len = 5, .valid_share = 0.1}), IM_ERR_FORMAT, "it holds one");
    build("p2", length, 5, 100, false); /* a blend: the last documents of each file */
    const char *spec = im_arena_printf(arena, "0.9:%s,0.1:%s", path("p"), path("p2"));
    im_feed *valid = open_feed(spec, (im_feed_config){.seq_len = 5, .valid_share = 0.2, .valid = true});
    assert_int_equal(im_feed_tokens(valid), 40);
    row r;
    ok(im_feed_read_at(ctx, valid, 15, 24, r.id, r.target, r.pos, r.seg));
    assert_int_equal(r.id[4], 99);
    assert_int_equal(r.id[5], 180);
    refused(im_feed_read_at(ctx, valid, 15, 25, r.id, r.target, r.pos, r.seg), IM_ERR_ARG, "of a stream of 40");
    im_feed_close(valid);
}

/* ---- size ---------------------------------------------------------------------------------------------- */

/* 2^40 bytes (sparse) in 2^30 documents open as a small file does: what is read is counted, not timed. */
static void test_terabyte(void **state)
{
    (void)state;
    const uint64_t documents = (uint64_t)1 << 20, each = (uint64_t)1 << 19; /* 2^39 tokens of 2 bytes */
    unsigned char head[34] = "MMIDIDX\0\0";
    uint64_t version = 1, entries = documents + 1;
    memcpy(head + 9, &version, 8);
    head[17] = 8;
    memcpy(head + 18, &documents, 8);
    memcpy(head + 26, &entries, 8);
    FILE *idx = fopen(path("tb.idx"), "wb");
    fwrite(head, 1, 34, idx);
    for (uint64_t i = 0; i < documents; i++)
        fwrite(&(int32_t){(int32_t)each}, 4, 1, idx);
    for (uint64_t i = 0; i < documents; i++)
        fwrite(&(int64_t){(int64_t)(i * each * 2)}, 8, 1, idx);
    for (uint64_t i = 0; i <= documents; i++)
        fwrite(&i, 8, 1, idx);
    assert_int_equal(fclose(idx), 0);
    int fd = open(path("tb.bin"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int too_large = ftruncate(fd, (off_t)(documents * each * 2));
    if (too_large) { /* a file system without files of a terabyte */
        close(fd);
        skip();
    }
    uint16_t mark = 77;
    assert_int_equal(pwrite(fd, &mark, 2, (off_t)(documents - 1) * (off_t)(each * 2)), 2);
    close(fd);
    size_t before = im_process_rss();
    double t0 = im_clock_now();
    im_feed *f = open_feed(path("tb"), (im_feed_config){.seq_len = 64, .attention = IM_REACH_DOCUMENT, .order = IM_ORDER_SHUFFLED});
    row r = read_row(f, im_feed_samples(f) / 2);
    double t1 = im_clock_now();
    (void)r;
    assert_true(im_feed_tokens(f) == (int64_t)(documents * each));
    im_feed_close(f);
    f = open_feed(path("tb"), (im_feed_config){.seq_len = 64, .attention = IM_REACH_DOCUMENT});
    r = read_row(f, (int64_t)((documents - 1) * each / 64));
    assert_int_equal(r.id[0], 77);
    assert_int_equal(r.pos[63], 63);
    r = read_row(f, (int64_t)((documents - 1) * each / 64) - 1);
    assert_int_equal(r.target[63], -1); /* the next document begins there */
    im_feed_close(f);
    print_message("a terabyte opens, and its first sample is read, in %.4f s\n", t1 - t0);
    if (im_process_rss() > before + ((size_t)16 << 20))
        fail_msg("%zu bytes became resident", im_process_rss() - before);
    unlink(path("tb.bin"));
    unlink(path("tb.idx"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_shortened),      cmocka_unit_test(test_files),
        cmocka_unit_test(test_shares),         cmocka_unit_test(test_blend),
        cmocka_unit_test(test_spec),           cmocka_unit_test(test_document_attention),
        cmocka_unit_test(test_many_documents), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_mask),           cmocka_unit_test(test_valid_share),
        cmocka_unit_test(test_terabyte),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
