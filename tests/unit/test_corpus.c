/* src/data: text to token files: documents, .jsonl, packed files, workers, going on after a kill; conversations with a mask; split, merge, import. */
#include "data/change.h"
#include "data/corpus.h"
#include "data/feed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static im_context *ctx;
static im_arena *arena;
static char dir[64]; /* in memory where there is such a place: every build waits for the disk */
static im_tok *tok;

/* Bytes, four merges, and special tokens, as a tokenizer.json. */
static im_tok *make_tokenizer(void)
{
    im_str s = {0};
    im_tok *t;
    im_str_append(&s, "{\"version\":\"1.0\",\"added_tokens\":[");
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 3; i++)
        im_str_printf(
            &s, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}",
            i ? "," : "", 260 + i, special[i]);
    im_str_append(
        &s, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
            "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
            "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
            "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (int b = 0, other = 256; b < 256; b++) { /* GPT-2's letters for bytes */
        int c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++;
        im_str_append(&s, b ? ",\"" : "\"");
        if (c == '"' || c == '\\')
            im_str_append(&s, "\\");
        char utf8[4] = {(char)c};
        if (c >= 128)
            snprintf(utf8, sizeof utf8, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
        im_str_printf(&s, "%s\":%d", utf8, b);
    }
    im_str_append(&s, ",\"th\":256,\"the\":257,\"in\":258,\"on\":259},\"merges\":[\"t h\",\"th e\",\"i n\",\"o n\"]}}");
    if (im_tok_parse(ctx, "tokenizer.json", s.data, s.len, &t) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    im_str_free(&s);
    return t;
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/imece-corpus-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(dir) || im_context_create(&ctx) != IM_OK || im_arena_create(ctx, &arena) != IM_OK)
        return -1;
    tok = make_tokenizer();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    im_tok_close(tok);
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

static void put_file(const char *name, const void *data, size_t n)
{
    ok(im_file_write_atomic(ctx, path(name), data, n));
}

static void put_text(const char *name, const char *text)
{
    put_file(name, text, strlen(text));
}

static im_corpus_config config(const char *const *input, size_t n, const char *out)
{
    return (im_corpus_config){.input = input, .ninput = n, .out = path(out), .eod = IM_CORPUS_EOD_DEFAULT, .workers = 1};
}

/* Builds OUT of one file with these settings (input and out are filled in). */
static im_status build_with(const char *input, const char *out, im_corpus_config cfg, im_corpus_result *r)
{
    const char *const one[] = {path(input)};
    im_corpus_config base = config(one, 1, out);
    cfg.input = base.input;
    cfg.ninput = 1;
    cfg.out = base.out;
    return im_corpus_build(ctx, &cfg, r);
}

/* The documents of NAME as one string: bytes, then | for the end. */
static const char *documents(const char *name)
{
    im_tokens *t;
    im_str s = {0};
    ok(im_tokens_open(ctx, path(name), &t));
    ok(im_tokens_verify(ctx, t));
    for (int64_t d = 0; d < im_tokens_documents(t); d++) {
        int64_t first, n;
        int32_t id = 0;
        ok(im_tokens_document(ctx, t, d, &first, &n));
        for (int64_t i = 0; i < n; i++) {
            ok(im_tokens_read(ctx, t, first + i, 1, &id));
            assert_true(id <= IM_BYTE_EOD);
            char c = id == IM_BYTE_EOD ? '|' : (char)id;
            im_str_append_n(&s, &c, 1);
        }
        if (id != IM_BYTE_EOD) /* cut by position */
            im_str_append(&s, "/");
    }
    im_tokens_close(t);
    const char *out = im_arena_strdup(arena, im_str_text(&s));
    im_str_free(&s);
    return out;
}

static void same_files(const char *a, const char *b)
{
    static const char *const kind[] = {".bin", ".idx", ".mask"};
    for (size_t i = 0; i < IM_COUNT_OF(kind); i++) {
        const char *x = im_arena_printf(arena, "%s%s", path(a), kind[i]), *y = im_arena_printf(arena, "%s%s", path(b), kind[i]);
        char *p, *q;
        size_t n, m;
        assert_int_equal(im_path_exists(x), im_path_exists(y));
        if (!im_path_exists(x))
            continue;
        ok(im_file_read(ctx, x, 1 << 28, &p, &n));
        ok(im_file_read(ctx, y, 1 << 28, &q, &m));
        if (n != m || memcmp(p, q, n))
            fail_msg("%s and %s differ", x, y);
        free(p);
        free(q);
    }
}

/* ---- documents ------------------------------------------------------------------------------------------------- */

static void test_documents(void **state)
{
    (void)state;
    static const struct {
        im_split split;
        const char *separator, *text, *want;
    } cases[] = {
        {IM_SPLIT_FILE, NULL, "a\nb\n", "a\nb\n|"},
        {IM_SPLIT_LINES, NULL, "a\n\nbc\nd", "a|bc|d|"},
        {IM_SPLIT_LINES, NULL, "\n\nbc\n", "bc|"},
        {IM_SPLIT_BLANK, NULL, "a\nb\n\n \t\r\nc\n", "a\nb\n|c\n|"},
        {IM_SPLIT_BLANK, NULL, "\n\n  x\n   \ny", "  x\n|y|"},
        {IM_SPLIT_BLANK, NULL, "x\n   ", "x\n|"},
        {IM_SPLIT_SEPARATOR, "%", "one\n%\ntwo\n%%\n50%\n%\n%\nthree", "one\n|two\n%%\n50%\n|three|"},
        {IM_SPLIT_SEPARATOR, "%", "one\r\n%\r\ntwo\n%", "one\r\n|two\n|"},
        {IM_SPLIT_SEPARATOR, "<|end|>", "a\n<|end|> \n<|end|>\n<|en\nb", "a\n<|end|> \n|<|en\nb|"},
    };
    im_corpus_result r;
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++)
        for (size_t piece = 1; piece <= 40; piece *= 3) { /* however the text arrives */
            put_text("doc.txt", cases[i].text);
            ok(build_with("doc.txt", "doc",
                          (im_corpus_config){.split = cases[i].split, .separator = cases[i].separator, .eod = -2, .read_size = piece, .workers = 2},
                          &r));
            assert_string_equal(documents("doc-train"), cases[i].want);
            assert_false(im_path_exists(path("doc-valid.idx")));
        }
    refused(build_with("doc.txt", "doc", (im_corpus_config){.split = IM_SPLIT_SEPARATOR, .separator = "", .eod = -2}, &r), IM_ERR_ARG, "separator");
    refused(build_with("doc.txt", "doc", (im_corpus_config){.eod = 7}, &r), IM_ERR_ARG, "bytes end with 256");
    ok(build_with("doc.txt", "doc", (im_corpus_config){.eod = -1}, &r));
    assert_string_equal(documents("doc-train"), im_arena_printf(arena, "%s/", cases[IM_COUNT_OF(cases) - 1].text));
}

/* Ids from another tokenizer, in pieces of any size. */
static void test_ids(void **state)
{
    (void)state;
    static const char text[] = "1 2  128000\n\n \t7\r\n2147483647";
    static const int32_t want[] = {1, 2, 128000, 9, 7, 9, INT32_MAX, 9};
    im_corpus_result r;
    put_text("ids.txt", text);
    for (size_t piece = 1; piece < sizeof text; piece++) {
        im_tokens *t;
        ok(build_with("ids.txt", "ids", (im_corpus_config){.format = IM_CORPUS_IDS, .eod = 9, .read_size = piece}, &r));
        assert_int_equal(r.documents[0], 3);
        assert_int_equal(r.tokens[0], 8);
        ok(im_tokens_open(ctx, path("ids-train"), &t));
        int32_t got[8];
        ok(im_tokens_read(ctx, t, 0, 8, got));
        assert_memory_equal(got, want, sizeof got);
        im_tokens_close(t);
    }
    static const char *const bad[][2] = {{"1\n2 x", "line 2: byte 0x78"}, {"2147483648", "line 1: an id larger"}, {"-1", "line 1: byte 0x2d"}};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        put_text("bad.txt", bad[i][0]);
        refused(build_with("bad.txt", "ids", (im_corpus_config){.format = IM_CORPUS_IDS, .eod = -1}, &r), IM_ERR_FORMAT, bad[i][1]);
    }
}

static void test_division(void **state)
{
    (void)state;
    enum { N = 4000 };
    im_str text = {0};
    for (int i = 0; i < N; i++)
        im_str_printf(&text, "%d\n", i);
    put_file("div.txt", text.data, text.len);
    im_str_free(&text);
    for (int every = 0; every < 2; every++) {
        im_corpus_result r;
        im_corpus_config cfg = {.split = IM_SPLIT_LINES, .valid_fraction = 0.1, .valid_every = every ? 8 : 0, .seed = 5, .eod = -2, .workers = 3};
        ok(build_with("div.txt", "div", cfg, &r));
        assert_false(r.by_position);
        assert_int_equal(r.documents[0] + r.documents[1], N);
        if (every)
            assert_int_equal(r.documents[1], N / 8);
        else
            assert_true(r.documents[1] > 340 && r.documents[1] < 460); /* 400 +- 3 sigma */
        unsigned char in[2][N] = {{0}};
        for (int k = 0; k < 2; k++)
            for (const char *p = documents(k ? "div-valid" : "div-train"); *p; p = strchr(p, '|') + 1)
                in[k][atoi(p)]++;
        for (int i = 0; i < N; i++) {
            assert_int_equal(in[0][i] + in[1][i], 1);
            if (every)
                assert_int_equal(in[1][i], i % 8 == 7);
        }
        assert_int_equal(in[0][0], 1);
        /* the same documents when they are divided afterwards */
        ok(build_with("div.txt", "all", (im_corpus_config){.split = IM_SPLIT_LINES, .eod = -2}, &r));
        im_tokens *t;
        im_change_result divided;
        ok(im_tokens_open(ctx, path("all-train"), &t));
        ok(im_tokens_split(ctx, t, &(im_split_config){.valid_fraction = 0.1, .valid_every = cfg.valid_every, .seed = 5}, path("all"), &divided));
        im_tokens_close(t);
        same_files("all-train", "div-train");
        same_files("all-valid", "div-valid");
    }
}

static void test_by_position(void **state)
{
    (void)state;
    im_corpus_result r;
    im_corpus_config cfg = {.valid_fraction = 0.25, .eod = -2};
    put_text("pos.txt", "abcdefghijklmno"); /* 16 with its end */
    ok(build_with("pos.txt", "pos", cfg, &r));
    assert_true(r.by_position);
    assert_int_equal(r.tokens[0], 12);
    assert_int_equal(r.tokens[1], 4);
    assert_string_equal(documents("pos-train"), "abcdefghijkl/");
    assert_string_equal(documents("pos-valid"), "mno|");
    put_text("pos.txt", "a");
    refused(build_with("pos.txt", "pos", cfg, &r), IM_ERR_FORMAT, "too few");
    put_text("pos.txt", "");
    refused(build_with("pos.txt", "pos", cfg, &r), IM_ERR_FORMAT, "no text");
    assert_string_equal(documents("pos-valid"), "mno|"); /* a build that failed leaves the old one whole */
    assert_false(im_path_exists(path("pos-train.bin.tmp")));
}

/* ---- lines of JSON --------------------------------------------------------------------------------------------- */

static void test_jsonl(void **state)
{
    (void)state;
    im_corpus_result r;
    static const char text[] =
        "{\"text\": \"bir\\niki\", \"n\": 1}\r\n\n   \n{\"n\": 2, \"text\": \"\"}\n{\"text\": \"\\u00fc\\u0000!\", \"url\": null}";
    put_text("a.jsonl", text);
    for (size_t piece = 1; piece < 60; piece += 7) {
        ok(build_with("a.jsonl", "j", (im_corpus_config){.eod = -2, .read_size = piece, .workers = 2}, &r));
        im_tokens *t;
        ok(im_tokens_open(ctx, path("j-train"), &t));
        assert_int_equal(im_tokens_documents(t), 2); /* the empty one is none */
        int32_t id[13];
        static const int32_t want[] = {'b', 'i', 'r', '\n', 'i', 'k', 'i', 256, 0xc3, 0xbc, 0, '!', 256};
        assert_int_equal(im_tokens_count(t), 13);
        ok(im_tokens_read(ctx, t, 0, 13, id));
        assert_memory_equal(id, want, sizeof want);
        assert_int_equal(im_tokens_known(t)->text_bytes, 11);
        assert_int_equal(im_tokens_known(t)->max_id, 256);
        im_tokens_close(t);
    }
    put_text("b.jsonl", "{\"body\": \"x\"}\n");
    refused(build_with("b.jsonl", "j", (im_corpus_config){.eod = -2}, &r), IM_ERR_FORMAT, "b.jsonl: line 1: no key \"text\"");
    ok(build_with("b.jsonl", "j", (im_corpus_config){.eod = -2, .field = "body"}, &r));

    static const char *const bad[][2] = {
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "bad.jsonl: line 2, column"},
        {"{\"text\": \"a\"}\n\n[1]\n", "bad.jsonl: line 3: an object is expected, not a list"},
        {"{\"text\": \"a\"}\n{\"text\": 7}\n", "bad.jsonl: line 2: \"text\" is a number; a text is expected"},
        {"{\"text\": \"a\"}\n{\"text\": \"a\", \"text\": \"b\"}\n", "bad.jsonl: line 2, column"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "bad.jsonl: line 2, column"},
        {"{\"text\": \"a\"}\nnot json\n", "bad.jsonl: line 2, column"},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"} {}\n", "bad.jsonl: line 2, column"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        im_str s = {0};
        put_text("bad.jsonl", bad[i][0]);
        refused(build_with("bad.jsonl", "j2", (im_corpus_config){.eod = -2, .workers = 2}, &r), IM_ERR_FORMAT, bad[i][1]);
        assert_false(im_path_exists(path("j2-train.bin.tmp")));
        im_str_printf(&s, "%s{\"text\": \"z\"}\n", bad[i][0]); /* with --skip-bad the rest is built */
        put_file("bad.jsonl", s.data, s.len);
        im_str_free(&s);
        ok(build_with("bad.jsonl", "j2", (im_corpus_config){.eod = -2, .skip_bad = true}, &r));
        assert_string_equal(documents("j2-train"), "a|z|");
        assert_int_equal(r.bad, 1);
        assert_non_null(strstr(r.first_bad, bad[i][1]));
    }
    put_text("bad.jsonl", "x\ny\n");
    refused(build_with("bad.jsonl", "j3", (im_corpus_config){.eod = -2, .skip_bad = true}, &r), IM_ERR_FORMAT, "or was left out");
}

/* ---- packed files ------------------------------------------------------------------------------------------------ */

static void gzip_to(const char *name, const char *text, size_t n, const char *mode)
{
    gzFile f = gzopen(path(name), mode);
    assert_non_null(f);
    assert_int_equal(gzwrite(f, text, (unsigned)n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

static size_t zstd_of(const char *text, size_t n, char *out, size_t cap)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1); /* as the program zstd does: without it damage may pass */
    size_t k = ZSTD_compress2(z, out, cap, text, n);
    ZSTD_freeCCtx(z);
    assert_false(ZSTD_isError(k));
    return k;
}

static void test_packed(void **state)
{
    (void)state;
    im_corpus_result r;
    im_str text = {0};
    for (int i = 0; i < 25000; i++) {
        uint32_t x[4];
        im_philox(1, (uint64_t)i, 0, x);
        im_str_printf(&text, "%u satir %d\n", x[0], i);
    }
    const char *half = text.data + text.len / 3;
    size_t nhalf = text.len / 3;
    im_corpus_config cfg = {.split = IM_SPLIT_LINES, .eod = -2, .workers = 2};
    put_file("plain.txt", text.data, text.len);
    ok(build_with("plain.txt", "plain", cfg, &r));
    assert_int_equal(r.text, text.len);
    gzip_to("t.gz", text.data, nhalf, "wb");
    gzip_to("t.gz", half, text.len - nhalf, "ab"); /* a second member */
    ok(build_with("t.gz", "packed", cfg, &r));
    same_files("plain-train", "packed-train");
    assert_int_equal(r.text, text.len);
    struct stat st;
    assert_int_equal(stat(path("t.gz"), &st), 0);
    assert_int_equal(r.read, st.st_size);
    FILE *tape = fopen(path("t.gz"), "ab"); /* padded with zeros */
    for (int i = 0; i < 10240; i++)
        fputc(0, tape);
    fclose(tape);
    ok(build_with("t.gz", "packed", cfg, &r));
    same_files("plain-train", "packed-train");

    char *z = malloc(ZSTD_compressBound(text.len) + 100);
    size_t n = zstd_of(text.data, nhalf, z, ZSTD_compressBound(text.len));
    n += zstd_of(half, text.len - nhalf, z + n, ZSTD_compressBound(text.len)); /* two frames */
    put_file("t.zst", z, n);
    for (size_t piece = 999; piece < 1000000; piece *= 31) {
        cfg.read_size = piece;
        ok(build_with("t.zst", "packed", cfg, &r));
        same_files("plain-train", "packed-train");
    }
    cfg.read_size = 0;
    put_file("without-its-name", z, n); /* told by the first bytes */
    ok(build_with("without-its-name", "packed", cfg, &r));
    same_files("plain-train", "packed-train");

    char *gz;
    size_t ngz;
    ok(im_file_read(ctx, path("t.gz"), 1 << 28, &gz, &ngz));
    ngz -= 10240;
    for (size_t cut = 5; cut < n; cut += n / 7 + 1) { /* cut anywhere: named, and nothing is left */
        put_file("cut.zst", z, cut);
        refused(build_with("cut.zst", "cut", cfg, &r), IM_ERR_FORMAT, "cut.zst: ends early, at byte");
        put_file("cut.gz", gz, cut < ngz ? cut : ngz - 1);
        refused(build_with("cut.gz", "cut", cfg, &r), IM_ERR_FORMAT, "cut.gz: ends early, at byte");
        assert_false(im_path_exists(path("cut-train.idx")));
        assert_false(im_path_exists(path("cut-train.bin.tmp")));
    }
    gz[ngz / 2] ^= 0x55;
    put_file("broken.gz", gz, ngz);
    refused(build_with("broken.gz", "cut", cfg, &r), IM_ERR_FORMAT, "broken.gz: ");
    z[n / 2] ^= 0x55;
    put_file("broken.zst", z, n);
    refused(build_with("broken.zst", "cut", cfg, &r), IM_ERR_FORMAT, "broken.zst: ");
    put_text("text.gz", "not packed");
    refused(build_with("text.gz", "cut", cfg, &r), IM_ERR_FORMAT, "its name says gzip");
    put_text("empty.zst", "");
    refused(build_with("empty.zst", "cut", cfg, &r), IM_ERR_FORMAT, "the file is empty");
    free(z);
    free(gz);
    im_str_free(&text);
}

/* ---- the pipeline -------------------------------------------------------------------------------------------------- */

/* Several inputs of several kinds, documents of all sizes, one of 5 MB. */
static size_t make_inputs(const char **input)
{
    im_str s = {0};
    ok(im_mkdirs(ctx, path("in/sub")));
    for (int i = 0; i < 5 << 20; i += 16)
        im_str_printf(&s, "the uzun %-6x\n", (unsigned)i * 2654435761u >> 12);
    put_file("in/a-long.txt", s.data, s.len);
    s.len = 0;
    for (int i = 0; i < 12000; i++) {
        uint32_t r[4];
        im_philox(9, (uint64_t)i, 0, r);
        im_str_printf(&s, "{\"text\": \"%d on the in ", i);
        for (uint32_t k = 0; k < r[0] % 60; k++)
            im_str_printf(&s, "%u ", r[1] % 97 + k);
        im_str_append(&s, "\"}\n");
    }
    put_file("in/b.jsonl", s.data, s.len);
    gzip_to("in/sub/c.jsonl.gz", s.data, s.len, "wb");
    put_text("in/d.txt", "the end");
    put_text("in/.hidden", "x");
    im_str_free(&s);
    input[0] = path("in");
    input[1] = path("in/d.txt");
    return 2;
}

static void test_workers(void **state)
{
    (void)state;
    const char *input[2];
    size_t n = make_inputs(input);
    im_corpus_result one, r;
    for (int with_tok = 0; with_tok < 2; with_tok++) {
        im_corpus_config cfg = config(input, n, "w1");
        cfg.valid_fraction = 0.2;
        cfg.tok = with_tok ? tok : NULL;
        ok(im_corpus_build(ctx, &cfg, &one));
        assert_int_equal(one.documents[0] + one.documents[1], 24003);
        static const struct {
            int workers;
            size_t read_size;
        } ways[] = {{2, 0}, {3, 4097}, {7, 65536}, {1, 1 << 24}};
        for (size_t i = 0; i < IM_COUNT_OF(ways); i++) {
            cfg.out = path("w2");
            cfg.workers = ways[i].workers;
            cfg.read_size = ways[i].read_size;
            ok(im_corpus_build(ctx, &cfg, &r));
            same_files("w1-train", "w2-train");
            same_files("w1-valid", "w2-valid");
            assert_int_equal(r.text, one.text);
        }
        im_tokens *t;
        ok(im_tokens_open(ctx, path("w1-train"), &t));
        const im_tokens_about *a = im_tokens_known(t);
        assert_non_null(a);
        assert_int_equal(a->vocab, with_tok ? 263 : 257);
        assert_int_equal(a->eod, with_tok ? 260 : 256);
        assert_int_equal(a->tokens, im_tokens_count(t));
        im_tokens_close(t);
    }
    /* a long document has the ids of the whole */
    const char *long_one[] = {path("in/a-long.txt")};
    char *text;
    size_t len;
    im_tok_coder *coder;
    im_tok_ids ids = {0};
    im_corpus_config cfg = config(long_one, 1, "w3");
    cfg.tok = tok;
    ok(im_corpus_build(ctx, &cfg, &r));
    ok(im_file_read(ctx, long_one[0], 1 << 28, &text, &len));
    ok(im_tok_coder_create(ctx, tok, &cfg.coding, &coder));
    ok(im_tok_encode(coder, text, len, &ids));
    im_tokens *t;
    ok(im_tokens_open(ctx, path("w3-train"), &t));
    assert_int_equal(im_tokens_count(t), ids.n + 1);
    int32_t *got = malloc(sizeof *got * ids.n);
    ok(im_tokens_read(ctx, t, 0, (int64_t)ids.n, got));
    assert_memory_equal(got, ids.id, sizeof *got * ids.n);
    assert_int_equal(im_tokens_known(t)->text_bytes, len);
    free(got);
    free(text);
    im_tokens_close(t);
    im_tok_ids_free(&ids);
    im_tok_coder_destroy(coder);
}

/* The first error in the order of the inputs is told, whatever the workers do first. */
static void test_first_error(void **state)
{
    (void)state;
    im_str s = {0};
    for (int i = 0; i < 50000; i++)
        im_str_printf(&s, i == 37000 || i > 45000 ? "broken %d\n" : "{\"text\": \"%d\"}\n", i);
    put_file("e.jsonl", s.data, s.len);
    im_str_free(&s);
    im_corpus_result r;
    for (int i = 0; i < 5; i++)
        refused(build_with("e.jsonl", "e", (im_corpus_config){.eod = -2, .workers = 4}, &r), IM_ERR_FORMAT, "line 37001, column");
}

/* ---- interrupted ------------------------------------------------------------------------------------------------- */

typedef struct stopper {
    int64_t at;
    int64_t tokens;
} stopper;

static void watch(void *arg, const im_corpus_progress *p)
{
    ((stopper *)arg)->tokens = p->tokens;
}

static bool stop_there(void *arg)
{
    const stopper *s = arg;
    return s->tokens >= s->at;
}

/* Stopped by a signal at any place, again and again, a build ends in the files of one that was left alone. */
static void test_stopped(void **state)
{
    (void)state;
    const char *input[2];
    size_t n = make_inputs(input);
    im_corpus_result whole, r;
    im_corpus_config cfg = config(input, n, "s1");
    cfg.valid_fraction = 0.1;
    cfg.tok = tok;
    ok(im_corpus_build(ctx, &cfg, &whole));
    stopper s = {0};
    cfg.out = path("s2");
    cfg.arg = &s;
    cfg.progress = watch;
    cfg.stop = stop_there;
    cfg.workers = 2;
    int64_t all = whole.tokens[0] + whole.tokens[1], before = -1;
    int stops = 0;
    for (s.at = 1;; s.at = s.tokens + all / 12) {
        im_status status = im_corpus_build(ctx, &cfg, &r);
        if (status == IM_OK)
            break;
        assert_int_equal(status, IM_ERR_STOPPED);
        im_error_clear(ctx);
        assert_false(im_path_exists(path("s2-train.idx")));
        assert_true(s.tokens > before);
        before = s.tokens;
        stops++;
        cfg.resume = true;
    }
    assert_true(stops >= 4);
    same_files("s1-train", "s2-train");
    same_files("s1-valid", "s2-valid");
    assert_true(r.resumed > 0);
    assert_int_equal(r.text, whole.text);
    assert_false(im_corpus_interrupted(path("s2")));
    im_tokens *a, *b;
    ok(im_tokens_open(ctx, path("s1-train"), &a));
    ok(im_tokens_open(ctx, path("s2-train"), &b));
    assert_memory_equal(im_tokens_known(a), im_tokens_known(b), sizeof(im_tokens_about));
    im_tokens_close(a);
    im_tokens_close(b);
}

static im_status stop_at(im_corpus_config cfg, int64_t tokens)
{
    stopper s = {.at = tokens};
    im_corpus_result r;
    cfg.arg = &s;
    cfg.progress = watch;
    cfg.stop = stop_there;
    im_status status = im_corpus_build(ctx, &cfg, &r);
    im_error_clear(ctx);
    return status;
}

/* What cannot be gone on with: other options, other inputs, files that became shorter. Without --resume it starts over. */
static void test_not_resumed(void **state)
{
    (void)state;
    const char *input[2];
    size_t n = make_inputs(input);
    im_corpus_result r;
    im_corpus_config cfg = config(input, n, "n"), other;
    assert_int_equal(stop_at(cfg, 5500000), IM_ERR_STOPPED);
    assert_true(im_corpus_interrupted(path("n")));
    other = cfg;
    other.resume = true;
    other.tok = tok;
    refused(im_corpus_build(ctx, &other, &r), IM_ERR_ARG, "had tokenizer=0000000000000000, this one has tokenizer=");
    other = cfg;
    other.resume = true;
    other.seed = 4;
    refused(im_corpus_build(ctx, &other, &r), IM_ERR_ARG, "had seed=0, this one has seed=4");
    other = cfg;
    other.resume = true;
    other.ninput = 1;
    refused(im_corpus_build(ctx, &other, &r), IM_ERR_ARG, "the inputs are not those");
    put_text("in/d.txt", "the other end");
    other = cfg;
    other.resume = true;
    refused(im_corpus_build(ctx, &other, &r), IM_ERR_ARG, "the inputs are not those");
    put_text("in/d.txt", "the end");
    assert_int_equal(stop_at(cfg, 5500000), IM_ERR_STOPPED); /* over again: the times of the inputs have changed */
    assert_int_equal(truncate(path("n-train.bin.tmp"), 1000), 0);
    other = cfg;
    other.resume = true;
    refused(im_corpus_build(ctx, &other, &r), IM_ERR_FORMAT, "n-train.bin.tmp: 1000 bytes; the build that is to go on had written");
    assert_true(im_corpus_interrupted(path("n"))); /* a refusal takes nothing away */
    ok(im_corpus_build(ctx, &cfg, &r));
    assert_int_equal(r.resumed, 0);
    assert_false(im_corpus_interrupted(path("n")));
    ok(build_with("in/d.txt", "n2", (im_corpus_config){.eod = -2, .resume = true}, &r)); /* nothing to go on with: from the start */
    assert_int_equal(r.resumed, 0);
}

/* kill -9 at any moment: what is there under its name is whole, and the build goes on to the same files. */
static void test_killed(void **state)
{
    (void)state;
    const char *input[2];
    size_t n = make_inputs(input);
    im_corpus_result r;
    im_corpus_config cfg = config(input, n, "k1");
    cfg.note_every = 1 << 20;
    ok(im_corpus_build(ctx, &cfg, &r));
    cfg.out = path("k2");
    cfg.resume = true;
    int kills = 0;
    for (int wait_us = 300; kills < 100; wait_us += 300 + wait_us / 4) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            _exit(im_corpus_build(ctx, &cfg, &r) == IM_OK ? 0 : 1);
        usleep((useconds_t)wait_us);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        kills++;
        if (im_path_exists(path("k2-train.idx"))) { /* killed between the index and the end of the program */
            same_files("k1-train", "k2-train");
            break;
        }
    }
    if (!im_path_exists(path("k2-train.idx"))) /* a slow machine */
        ok(im_corpus_build(ctx, &cfg, &r));
    assert_true(kills > 0);
    same_files("k1-train", "k2-train");
}

/* A second builder of the same name is refused by the first one's lock, whatever it wants. */
static void test_two_builders(void **state)
{
    (void)state;
    im_tokens_writer *w;
    im_corpus_result r;
    put_text("two.txt", "abc");
    ok(im_tokens_create(ctx, path("two-train"), IM_U16, &w));
    refused(build_with("two.txt", "two", (im_corpus_config){.eod = -2}, &r), IM_ERR_EXISTS, "two-train.bin.tmp: another program is writing it");
    ok(im_tokens_append(w, (const int32_t[]){1, 2}, 2));
    ok(im_tokens_finish(w));
    ok(build_with("two.txt", "two", (im_corpus_config){.eod = -2}, &r));
    assert_string_equal(documents("two-train"), "abc|");
}

/* ---- conversations ------------------------------------------------------------------------------------------------- */

/* The ids of a document as text: special tokens as written, ids whose loss counts in [brackets]. */
static const char *marked(const im_tok *t, const char *name, int64_t document)
{
    im_tokens *f;
    im_str s = {0};
    int64_t first, n;
    bool inside = false;
    ok(im_tokens_open(ctx, path(name), &f));
    ok(im_tokens_document(ctx, f, document, &first, &n));
    for (int64_t i = 0; i < n; i++) {
        int32_t id;
        unsigned char counted;
        ok(im_tokens_read(ctx, f, first + i, 1, &id));
        ok(im_tokens_read_mask(ctx, f, first + i, 1, &counted));
        if (counted != inside)
            im_str_append(&s, inside ? "]" : "[");
        inside = counted;
        char byte = (char)id;
        if (t)
            ok(im_tok_decode(ctx, t, &id, 1, false, &s));
        else
            im_str_append_n(&s, id == IM_BYTE_EOD ? "|" : &byte, 1);
    }
    if (inside)
        im_str_append(&s, "]");
    im_tokens_close(f);
    const char *out = im_arena_strdup(arena, im_str_text(&s));
    im_str_free(&s);
    return out;
}

static void test_chat(void **state)
{
    (void)state;
    im_corpus_result r;
    put_text("c.jsonl", "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Hi <|im_end|>\"}, "
                        "{\"role\": \"assistant\", \"content\": \"Yo!\\n\"}, {\"role\": \"user\", \"content\": \"Bye\"}, {\"role\": \"assistant\", "
                        "\"content\": \"the end\"}]}\n"
                        "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n"
                        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", "
                        "\"content\": \"c\"}], "
                        "\"completion\": [{\"role\": \"assistant\", \"content\": \"d\"}]}\n");
    ok(build_with("c.jsonl", "c", (im_corpus_config){.eod = -2, .chat = true, .tok = tok, .workers = 2}, &r));
    assert_string_equal(marked(tok, "c-train", 0),
                        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
                        "[Yo!\n<|im_end|>]\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n[the end<|im_end|>]\n");
    assert_string_equal(marked(tok, "c-train", 1), "2+2=[4<|endoftext|>]");
    assert_string_equal(marked(tok, "c-train", 2),
                        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
                        "<|im_start|>assistant\n[d<|im_end|>]\n");
    im_tokens *t; /* what a user writes is no turn */
    int32_t id[64];
    ok(im_tokens_open(ctx, path("c-train"), &t));
    ok(im_tokens_read(ctx, t, 0, 64, id));
    int ends = 0;
    for (int i = 0; i < 40; i++)
        ends += id[i] == 262;
    assert_int_equal(ends, 2);
    im_tokens_close(t);

    ok(build_with("c.jsonl", "p", (im_corpus_config){.eod = -2, .chat = true}, &r)); /* bytes: plain */
    assert_string_equal(marked(NULL, "p-train", 0), "System: Be brief.\nUser: Hi <|im_end|>\nAssistant:[ Yo!\n\n]User: Bye\nAssistant:[ the end|]");
    assert_string_equal(marked(NULL, "p-train", 1), "2+2=[4|]");
    assert_int_equal(r.counted[0], 4 + 9 + 2 + 3 + 2);
    im_feed *f; /* such files are read packed, a document for itself, and only the answers count */
    int32_t ids[64], targets[64], pos[64], seg[64];
    ok(im_feed_open(ctx, path("p-train"), &(im_feed_config){.seq_len = 64, .vocab = 257, .too_long = IM_LONG_SPLIT}, &f));
    int64_t counted = 0;
    for (int64_t i = 0; i < im_feed_samples(f); i++) {
        ok(im_feed_read(ctx, f, i, ids, targets, pos, seg));
        for (int k = 0; k < 64; k++)
            counted += targets[k] >= 0;
    }
    assert_int_equal(counted, r.counted[0]);
    im_feed_close(f);

    refused(build_with("c.jsonl", "q", (im_corpus_config){.eod = -2, .chat = true, .tok = tok, .chat_format = IM_CHAT_LLAMA3}, &r), IM_ERR_ARG,
            "needs the token <|start_header_id|>");
    static const char *const bad[][2] = {
        {"{\"messages\": []}", "line 1: a list of messages is expected"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "no message of the assistant"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [1]}, {\"role\": \"assistant\", \"content\": \"x\"}]}", "content is a text, not a list"},
        {"{\"messages\": [{\"role\": \"a\\nb\", \"content\": \"x\"}]}", "a message's role is a word"},
        {"{\"messages\": [{\"content\": \"x\"}]}", "a message's role is a word"},
        {"{\"prompt\": \"x\"}", "\"messages\", or \"prompt\" and \"completion\""},
        {"{\"prompt\": \"x\", \"completion\": 5}", "a list of messages is expected"},
        {"{\"text\": \"x\"}", "\"messages\", or"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        put_text("bad.jsonl", bad[i][0]);
        refused(build_with("bad.jsonl", "q", (im_corpus_config){.eod = -2, .chat = true}, &r), IM_ERR_FORMAT, bad[i][1]);
    }
    put_text("one.jsonl", "{\"prompt\": \"x\", \"completion\": \"y\"}\n");
    refused(build_with("one.jsonl", "q", (im_corpus_config){.eod = -2, .chat = true, .valid_fraction = 0.1}, &r), IM_ERR_FORMAT,
            "none of 1 conversations");
    /* a build without a mask takes an older mask away */
    put_text("plain.txt", "text");
    ok(build_with("plain.txt", "p", (im_corpus_config){.eod = -2}, &r));
    assert_false(im_path_exists(path("p-train.mask")));
}

/* ---- from token files ------------------------------------------------------------------------------------------------ */

static void test_merge(void **state)
{
    (void)state;
    im_corpus_result r;
    im_change_result m;
    put_text("m1.txt", "a\nb\n");
    put_text("m2.txt", "c\n");
    put_text("m12.txt", "a\nb\nc\n");
    im_corpus_config cfg = {.split = IM_SPLIT_LINES, .eod = -2};
    ok(build_with("m1.txt", "m1", cfg, &r));
    ok(build_with("m2.txt", "m2", cfg, &r));
    ok(build_with("m12.txt", "m12", cfg, &r));
    const char *const names[] = {path("m1-train"), path("m2-train")};
    ok(im_tokens_merge(ctx, names, 2, path("m"), &m));
    same_files("m", "m12-train");
    assert_int_equal(m.documents[0], 3);
    im_tokens *t;
    ok(im_tokens_open(ctx, path("m"), &t));
    assert_string_equal(im_tokens_known(t)->tokenizer, "bytes");
    assert_int_equal(im_tokens_known(t)->text_bytes, 3);
    im_tokens_close(t);
    cfg.tok = tok;
    ok(build_with("m2.txt", "m2", cfg, &r));
    refused(im_tokens_merge(ctx, names, 2, path("m"), &m), IM_ERR_ARG, "ids of two tokenizers");
    cfg.tok = NULL;
    cfg.chat = true;
    put_text("m.jsonl", "{\"prompt\": \"x\", \"completion\": \"y\"}\n");
    ok(build_with("m.jsonl", "m2", cfg, &r));
    refused(im_tokens_merge(ctx, names, 2, path("m"), &m), IM_ERR_ARG, "has a mask and");
    const char *const twice[] = {path("m2-train"), path("m2-train")};
    ok(im_tokens_merge(ctx, twice, 2, path("m"), &m));
    assert_string_equal(marked(NULL, "m", 1), "x[y|]");
}

static void test_import(void **state)
{
    (void)state;
    im_change_result r;
    im_tokens *t;
    int32_t id[8];
    /* a shard of llm.c: 256 int32, then uint16 */
    unsigned char shard[1024 + 12] = {0};
    const int32_t head[] = {20240520, 1, 6};
    const uint16_t ids[] = {50256, 1, 2, 50256, 3, 4};
    memcpy(shard, head, sizeof head);
    memcpy(shard + 1024, ids, sizeof ids);
    put_file("shard.bin", shard, sizeof shard);
    const char *file[] = {path("shard.bin")};
    im_import_config cfg = {.begins = 50256, .ends = -1};
    ok(im_tokens_import(ctx, file, 1, &cfg, path("i"), &r));
    assert_int_equal(r.documents[0], 2);
    assert_int_equal(r.tokens[0], 6);
    ok(im_tokens_open(ctx, path("i"), &t));
    assert_string_equal(im_tokens_dtype(t), "uint16");
    int64_t first, n;
    ok(im_tokens_document(ctx, t, 1, &first, &n));
    assert_int_equal(first, 3);
    ok(im_tokens_read(ctx, t, 0, 6, id));
    assert_int_equal(id[3], 50256);
    im_tokens_close(t);
    put_file("shard.bin", shard, sizeof shard - 1);
    refused(im_tokens_import(ctx, file, 1, &cfg, path("i"), &r), IM_ERR_FORMAT, "its header tells of 6 ids of 2 bytes; 11 bytes are behind it");
    put_file("shard.bin", shard, 500);
    refused(im_tokens_import(ctx, file, 1, &cfg, path("i"), &r), IM_ERR_FORMAT, "shard.bin");

    /* the same ids as nothing else, ended by an id, and in 32 bits */
    put_file("raw.bin", ids, sizeof ids);
    file[0] = path("raw.bin");
    refused(im_tokens_import(ctx, file, 1, &(im_import_config){.begins = -1, .ends = -1}, path("i"), &r), IM_ERR_FORMAT, "--format raw");
    ok(im_tokens_import(ctx, file, 1, &(im_import_config){.format = IM_IMPORT_RAW, .begins = -1, .ends = 2}, path("i"), &r));
    assert_int_equal(r.documents[0], 2);
    ok(im_tokens_import(ctx, file, 1, &(im_import_config){.format = IM_IMPORT_RAW, .dtype = IM_IMPORT_U8, .begins = -1, .ends = -1}, path("i"), &r));
    assert_int_equal(r.tokens[0], 12);
    put_file("raw.bin", (const int32_t[]){1, -2}, 8);
    refused(
        im_tokens_import(ctx, file, 1, &(im_import_config){.format = IM_IMPORT_RAW, .dtype = IM_IMPORT_I32, .begins = -1, .ends = -1}, path("i"), &r),
        IM_ERR_FORMAT, "byte 4: the id is negative");

    /* NumPy */
    static const struct {
        const char *header;
        size_t values; /* of 2 bytes */
        int documents;
        const char *error;
    } npy[] = {
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }", 6, 1, NULL},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }", 6, 2, NULL},
        {"{'shape': (6,), 'fortran_order': True, 'descr': '<u2'}", 6, 1, NULL},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (6,), }", 6, 1, "is negative"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (6,), }", 6, 1, "big-endian ('>u2')"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 6, 1, "its values are"},
        {"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (6,), }", 6, 1, "its values are"},
        {"{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }", 6, 1, "Fortran"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }", 6, 1, "its shape is ()"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (1,2,3), }", 6, 1, "its shape is (1,2,3)"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }", 6, 1, "tells of 7 ids"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }", 6, 1, "its shape is"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6", 6, 1, "its shape is"},
        {"{", 6, 1, "its values are not told"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(npy); i++) {
        char data[256] = "\x93NUMPY\1";
        size_t len = strlen(npy[i].header);
        data[8] = (char)len;
        memcpy(data + 10, npy[i].header, len);
        memcpy(data + 10 + len, ids, 2 * npy[i].values);
        put_file("x.npy", data, 10 + len + 2 * npy[i].values);
        file[0] = path("x.npy");
        im_status status = im_tokens_import(ctx, file, 1, &(im_import_config){.begins = -1, .ends = -1}, path("i"), &r);
        if (npy[i].error) {
            assert_int_not_equal(status, IM_OK);
            refused(status, status, npy[i].error);
        } else {
            ok(status);
            assert_int_equal(r.documents[0], npy[i].documents);
            assert_int_equal(r.tokens[0], 6);
        }
        for (size_t cut = 6; cut < 10 + len; cut++) { /* cut short anywhere */
            put_file("x.npy", data, cut);
            assert_int_not_equal(im_tokens_import(ctx, file, 1, &(im_import_config){.begins = -1, .ends = -1}, path("i"), &r), IM_OK);
            im_error_clear(ctx);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents), cmocka_unit_test(test_ids),         cmocka_unit_test(test_division), cmocka_unit_test(test_by_position),
        cmocka_unit_test(test_jsonl),     cmocka_unit_test(test_packed),      cmocka_unit_test(test_workers),  cmocka_unit_test(test_first_error),
        cmocka_unit_test(test_stopped),   cmocka_unit_test(test_not_resumed), cmocka_unit_test(test_killed),   cmocka_unit_test(test_two_builders),
        cmocka_unit_test(test_chat),      cmocka_unit_test(test_merge),       cmocka_unit_test(test_import),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
