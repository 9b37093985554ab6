/* The diagnosis of logs: every rule fires in the words of several versions and under every prefix, and on nothing else; causes come before what follows
 * from them, also in noise; healthy logs have no fault; RDMA or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "diagnose_cases.h"
#include "diagnose_logs.h"
#include "base/json.h"
#include "fabric/diagnose.h"
#include "fabric/diagnose_rule.h"
#include "fabric/diagnose_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    im_context *ctx;
    im_diagnose *d;
    im_str text, json;
} run;

static run begin(void)
{
    run r = {0};
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    assert_int_equal(im_diagnose_create(r.ctx, &r.d), IM_OK);
    return r;
}

static void give(run *r, const char *name, const char *text, size_t n)
{
    assert_int_equal(im_diagnose_begin(r->d, name), IM_OK);
    assert_int_equal(im_diagnose_feed(r->d, text, n), IM_OK);
    assert_int_equal(im_diagnose_end(r->d), IM_OK);
}

static void finish(run *r)
{
    assert_int_equal(im_diagnose_finish(r->d), IM_OK);
    im_diagnose_text(r->d, &r->text);
    im_diagnose_json(r->d, &r->json);
    im_json *doc; /* what is written is JSON */
    if (im_json_parse(r->ctx, "json", im_str_text(&r->json), r->json.len, &doc) != IM_OK)
        fail_msg("%s\n%s", im_error_text(r->ctx), im_str_text(&r->json));
    im_json_free(doc);
}

static void end(run *r)
{
    im_str_free(&r->text);
    im_str_free(&r->json);
    im_diagnose_free(r->d);
    im_context_destroy(r->ctx);
}

static run of_text(const char *text)
{
    run r = begin();
    give(&r, "a.log", text, strlen(text));
    finish(&r);
    return r;
}

static void expect_first(const char *what, run *r, const char *id)
{
    const char *first = im_diagnose_first(r->d);
    if (!first ? id != NULL : !id || strcmp(first, id) != 0)
        fail_msg("%s: first is %s, not %s\n%s", what, first ? first : "no fault", id ? id : "no fault", im_str_text(&r->text));
}

static void expect_text(run *r, const char *what)
{
    if (!strstr(im_str_text(&r->text), what))
        fail_msg("no \"%s\" in\n%s", what, im_str_text(&r->text));
}

/* ---- prefixes ------------------------------------------------------------------------------------------------ */

static void put_json_escaped(im_str *out, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&')
            im_str_printf(out, "\\u%04x", *s);
        else if (*s == '"' || *s == '\\')
            im_str_printf(out, "\\%c", *s);
        else if (*s == '\t')
            im_str_append(out, "\\t");
        else if (*s == 27)
            im_str_append(out, "\\u001b");
        else
            im_str_append_n(out, s, 1);
}

static void put_coloured(im_str *out, const char *s)
{
    im_str_append(out, "\033[33m");
    for (; *s; s++) {
        im_str_append_n(out, s, 1);
        if (*s == ' ')
            im_str_append(out, "\033[0m\033[1;31m");
    }
    im_str_append(out, "\033[0m");
}

enum { PREFIXES = 12 };

static void put_line(im_str *out, int prefix, const char *line)
{
    static const char *const plain[] = {"",
                                        "2026-12-01T12:00:00.123456789Z stderr F ",
                                        "[pod/train-0/main] 2026-12-01T12:00:00.1Z ",
                                        "3: ",
                                        "[1,3]<stderr>:",
                                        "(RayWorkerWrapper pid=4009) ",
                                        "Dec  1 12:00:00 nodeA train[123]: ",
                                        "[2026-12-01 12:00:00,123] ",
                                        "worker-1 | ",
                                        "[default3]:"};
    im_str coloured = {0};
    if (prefix < (int)IM_COUNT_OF(plain)) {
        im_str_append(out, plain[prefix]);
        im_str_append(out, line);
    } else if (prefix == (int)IM_COUNT_OF(plain)) {
        put_coloured(out, line);
    } else {
        put_coloured(&coloured, line);
        im_str_append(out, "{\"log\":\"");
        put_json_escaped(out, im_str_text(&coloured));
        im_str_append(out, "\\n\",\"stream\":\"stderr\",\"time\":\"2026-12-01T12:00:00.123456789Z\"}");
        im_str_free(&coloured);
    }
    im_str_append(out, "\n");
}

static void every_rule_fires(void **state)
{
    (void)state;
    size_t lines = 0;
    run r = begin();
    for (size_t i = 0; i < IM_COUNT_OF(diagnose_cases); i++)
        for (int p = 0; p < PREFIXES; p++) {
            const diagnose_case *c = &diagnose_cases[i];
            im_diagnose *d;
            assert_int_equal(im_diagnose_create(r.ctx, &d), IM_OK);
            for (size_t k = 0; k < CASE_LINES && c->line[k]; k++, lines++) {
                im_str text = {0};
                int64_t before = im_diagnose_count(d, c->id);
                put_line(&text, p, c->line[k]);
                assert_int_equal(im_diagnose_begin(d, "a"), IM_OK);
                assert_int_equal(im_diagnose_feed(d, text.data, text.len), IM_OK);
                assert_int_equal(im_diagnose_end(d), IM_OK);
                if (im_diagnose_count(d, c->id) != before + 1)
                    fail_msg("%s does not fire once on, prefix %d: %s", c->id, p, im_str_text(&text));
                im_str_free(&text);
            }
            im_diagnose_free(d);
        }
    assert_true(lines > 250 * PREFIXES);
    end(&r);
}

/* Each rule has three lines of different words above, or a log of its own below. */
static void every_rule_has_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < im_rule_count(); i++) {
        size_t n = 0;
        for (size_t k = 0; k < IM_COUNT_OF(diagnose_cases); k++)
            if (!strcmp(diagnose_cases[k].id, im_rules[i].id))
                while (n < CASE_LINES && diagnose_cases[k].line[n])
                    n++;
        bool log = false;
        for (size_t k = 0; k < IM_COUNT_OF(diagnose_logs); k++)
            log = log || (diagnose_logs[k].first && !strcmp(diagnose_logs[k].first, im_rules[i].id));
        if (n < (im_rules[i].pattern[0] ? 3 : 1) && !log)
            fail_msg("rule %s: %zu lines and no log", im_rules[i].id, n);
        assert_true(im_rules[i].cause && im_rules[i].why && im_rules[i].source && im_rules[i].next[0]);
        for (size_t k = i + 1; k < im_rule_count(); k++)
            assert_string_not_equal(im_rules[i].id, im_rules[k].id);
        for (const char *p = im_rules[i].from; p && *p;) { /* what is named is there */
            char id[64];
            size_t m = strcspn(p, " ");
            snprintf(id, sizeof id, "%.*s", (int)m, p);
            if (strcmp(id, "any") != 0 && id[m - 1] != '*' && im_rule_find(id) == im_rule_count())
                fail_msg("rule %s: no rule %s", im_rules[i].id, id);
            p += m + (p[m] == ' ');
        }
    }
}

/* ---- noise ------------------------------------------------------------------------------------------------------ */

static void put_noise(im_str *out, size_t n, unsigned seed)
{
    static const char *const words[] = {"INFO",       "step",       "loss",    "GET",    "/healthz", "200",    "user",   "connected", "error",
                                        "retry",      "connection", "timeout", "closed", "refused",  "device", "memory", "failed",    "worker",
                                        "checkpoint", "saved",      "epoch",   "NCCL",   "mlx5_0",   "eth0",   "rank",   "status=12", "error 12",
                                        "network",    "via",        "Using",   "socket", "port",     "cache"};
    uint32_t r[4];
    for (size_t i = 0; i < n; i++) {
        im_philox(seed, i, 0, r);
        im_str_printf(out, "2026-11-30 08:%02u:%02u app[%u]:", r[0] % 60, r[1] % 60, r[2] % 9999);
        for (size_t k = 0; k < 4 + r[3] % 9; k++) {
            uint32_t w[4];
            im_philox(seed, i, k + 1, w);
            im_str_printf(out, " %s", words[w[0] % IM_COUNT_OF(words)]);
        }
        im_str_append(out, "\n");
    }
}

static void unrelated_logs_fire_nothing(void **state)
{
    (void)state;
    im_str noise = {0};
    put_noise(&noise, 20000, 7);
    im_str_append(&noise, diagnose_unrelated);
    run r = of_text(im_str_text(&noise));
    expect_first("unrelated", &r, NULL);
    for (size_t i = 0; i < im_rule_count(); i++)
        if (im_diagnose_count(r.d, im_rules[i].id))
            fail_msg("rule %s fires on an unrelated log\n%s", im_rules[i].id, im_str_text(&r.text));
    expect_text(&r, "no fault found");
    im_str_free(&noise);
    end(&r);
}

/* The next piece of the noise, a part of so many: whole lines. */
static void put_piece(im_str *out, const char *noise, size_t *at, size_t parts)
{
    size_t n = strlen(noise), end = *at + n / parts;
    end = end < n ? end + strcspn(noise + end, "\n") : n;
    end += end < n;
    im_str_append_n(out, noise + *at, end - *at);
    *at = end;
}

static void put_log(im_str *out, const char *text, int prefix, const char *noise)
{
    char line[4096];
    size_t at = 0, parts = 1;
    for (const char *p = text; *p; p++)
        parts += *p == '\n';
    while (*text) {
        size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        put_piece(out, noise, &at, parts);
        put_line(out, prefix, line);
        text += n + (text[n] == '\n');
    }
    im_str_append(out, noise + at);
}

/* The stated cause first: as it is, under prefixes, and in 10,000 lines of noise. */
static void logs_give_their_cause(void **state)
{
    (void)state;
    im_str noise = {0};
    put_noise(&noise, 10000, 1);
    for (size_t i = 0; i < IM_COUNT_OF(diagnose_logs); i++) {
        const diagnose_log *c = &diagnose_logs[i];
        static const int prefixes[] = {0, 10, 11, 1, 2};
        for (size_t k = 0; k <= IM_COUNT_OF(prefixes); k++) {
            im_str text = {0};
            put_log(&text, c->text, k < IM_COUNT_OF(prefixes) ? prefixes[k] : 0, k < IM_COUNT_OF(prefixes) ? "" : im_str_text(&noise));
            run r = of_text(im_str_text(&text));
            char what[64];
            snprintf(what, sizeof what, "%s, form %zu", c->name, k);
            expect_first(what, &r, c->first);
            if (!c->first)
                expect_text(&r, "no fault found");
            if (c->says)
                expect_text(&r, c->says);
            if (c->also)
                expect_text(&r, c->also);
            im_str_free(&text);
            end(&r);
        }
    }
    im_str_free(&noise);
}

/* ---- order -------------------------------------------------------------------------------------------------------- */

static void root_goes_before_what_follows(void **state)
{
    (void)state;
    static const char a[] =
        "[2026-05-05 06:17:20] nodeB:73076:73185 [4] net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer nodeA<37948> with status=12 opcode=2 "
        "len=1 vendor err 129\n"
        "[2026-05-05 06:17:21] nodeB:73076:73185 [4] net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer nodeA<37948> with status=5 opcode=2 "
        "len=1 vendor err 249\n"
        "[2026-05-05 06:17:22] nodeB:73076:73185 [4] socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer nodeA<1>\n";
    static const char b[] = "[2026-05-05 06:16:47] nodeA:34050:34121 [0] net_ib.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n";
    run r = begin();
    give(&r, "b.log", a, strlen(a)); /* what follows is read first */
    give(&r, "a.log", b, strlen(b));
    finish(&r);
    expect_first("port error", &r, "port-error");
    expect_text(&r, "on nodeA; first at 2026-05-05 06:16:47, a.log:1");
    assert_int_equal(im_diagnose_findings(r.d), 1);
    assert_non_null(strstr(im_str_text(&r.json), "\"id\": \"wc-12\", \"kind\": \"fault\""));
    assert_non_null(strstr(im_str_text(&r.json), "\"follows_from\": \"port-error\""));
    end(&r);
    /* a port error an hour later did not cause it */
    static const char late[] = "[2026-05-05 07:16:47] nodeA:34050:34121 [0] net_ib.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n";
    r = begin();
    give(&r, "b.log", a, strlen(a));
    give(&r, "a.log", late, strlen(late));
    finish(&r);
    assert_int_equal(im_diagnose_findings(r.d), 2);
    end(&r);
}

static void times_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"2026-12-01T12:00:00+02:00 nodeA kernel: mlx5_core 0000:1a:00.0 eth0: Link down", "on nodeA; first at 2026-12-01 10:00:00, a.log:1"},
        {"[1796067784.277994] [nodeA:505  :0] ib_device.c:475 UCX WARN IB Async event on mlx5_0: port error on port 1",
         "on nodeA; first at 2026-11-30 19:43:04.277"},
        {"Dec  1 12:00:00 nodeB kernel: [ 9000.500000] mlx5_core 0000:1a:00.0 ib0: Link down", "on nodeB; first at 12-01 12:00:00"},
        {"[Tue Dec  1 12:00:00 2026] mlx5_core 0000:1a:00.0 ib0: Link down", "first at 2026-12-01 12:00:00"},
        {"[rank13]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] RuntimeError: CUDA error: an illegal memory access was encountered",
         "rank 13; first at 03-21 02:07:08.408"},
        {"[1,7]<stderr>:nodeC:1:2 [0] NCCL WARN NET/IB : Got async event : port error", "on nodeC (rank 7)"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        run r = of_text(cases[i].line);
        expect_text(&r, cases[i].says);
        end(&r);
    }
}

static void boot_is_no_event(void **state)
{
    (void)state;
    run r = of_text("[   12.345678] mlx5_core 0000:1a:00.0 eth0: Link down\n[   11.1] x\n[   14.000001] mlx5_core 0000:1a:00.0: Port module event: "
                    "module 1, Cable unplugged\n");
    expect_first("boot", &r, NULL);
    end(&r);
}

/* ---- ranks out of step ------------------------------------------------------------------------------------------------ */

static void recorder(im_str *out, int64_t seq, const char *op, int64_t enqueued)
{
    im_str_printf(out,
                  "{\"entries\": [{\"collective_seq_id\": %lld, \"profiling_name\": \"nccl:%s\", \"process_group\": [\"0\", \"default_pg\"], "
                  "\"state\": \"scheduled\", "
                  "\"input_sizes\": [[4, 8]], \"time_created_ns\": 1796067784277994000}], \"pg_config\": {}, "
                  "\"pg_status\": {\"0\": {\"last_enqueued_collective\": %lld, \"last_completed_collective\": 6}}, \"version\": \"2.4\"}",
                  (long long)seq, op, (long long)enqueued);
}

static void recorders_are_compared(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        run r = begin();
        for (int rank = 0; rank < 4; rank++) {
            im_str text = {0};
            char name[64];
            recorder(&text, order ? 7 : rank == 2 ? 7 : 9, order && rank == 2 ? "all_gather" : "all_reduce", rank == 2 && !order ? 7 : 9);
            snprintf(name, sizeof name, "/tmp/nccl_trace_rank_%d.json", rank);
            assert_int_equal(im_diagnose_begin(r.d, name), IM_OK);
            assert_int_equal(im_diagnose_recorder(r.d, name, text.data, text.len), IM_OK);
            assert_int_equal(im_diagnose_end(r.d), IM_OK);
            im_str_free(&text);
        }
        finish(&r);
        expect_first("recorders", &r, order ? "desync-order" : "desync-behind");
        expect_text(&r, order ? "rank 2 in all_gather" : "Behind are the ranks 2:");
        end(&r);
    }
}

static void put_watchdog(im_str *out, int rank, int seq, int enqueued)
{
    im_str_printf(out,
                  "[rank%d]:[E1218 20:27:2%d.4 ProcessGroupNCCL.cpp:629] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, "
                  "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
                  "Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n"
                  "[rank%d]:[E1218 20:27:2%d.5 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank %d] Exception (either an error or "
                  "timeout) detected by watchdog at work: %d, last "
                  "enqueued NCCL work: %d, last completed NCCL work: %d.\n",
                  rank, rank % 10, rank, seq, rank, rank % 10, rank, seq, enqueued, seq - 1);
}

static void the_rank_behind_is_named(void **state)
{
    (void)state;
    im_str text = {0};
    im_str_append(&text,
                  "nodeA:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init COMPLETE\n");
    for (int rank = 0; rank < 8; rank++)
        if (rank != 5)
            put_watchdog(&text, rank, 100, 103);
    run r = of_text(im_str_text(&text));
    expect_first("absent", &r, "desync-behind");
    expect_text(&r, "of rank 5 there is no such line");
    end(&r);
    put_watchdog(&text, 5, 90, 91); /* now it speaks, and is behind */
    r = of_text(im_str_text(&text));
    expect_first("behind", &r, "desync-behind");
    expect_text(&r, "Behind are the ranks 5:");
    end(&r);
    im_str_free(&text);
    for (int rank = 0; rank < 8; rank++)
        put_watchdog(&text, rank, 100, 103);
    r = of_text(im_str_text(&text));
    expect_first("all there", &r, "hang-all");
    end(&r);
    im_str_free(&text);
}

/* ---- hostile bytes ------------------------------------------------------------------------------------------------------ */

static void any_bytes_are_safe(void **state)
{
    (void)state;
    size_t n = 5 << 20;
    char *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i += 16) {
        uint32_t w[4];
        im_philox(3, i, 0, w);
        memcpy(bytes + i, w, 16);
    }
    run r = begin();
    give(&r, "binary", bytes, n);
    memset(bytes, 'x', n); /* one line of 5 MiB, a message in its middle, over the border of a block */
    static const char message[] = " NCCL WARN NET/IB : Got async event : port error ";
    memcpy(bytes + (1 << 20) - 20, message, sizeof message - 1);
    give(&r, "long", bytes, n);
    memset(bytes, 0, n);
    memcpy(bytes + 3000000, message, sizeof message - 1);
    give(&r, "zeros", bytes, n);
    memset(bytes, 27, n);
    give(&r, "escapes", bytes, n);
    memset(bytes, '\n', n);
    give(&r, "empty lines", bytes, n);
    give(&r, "nothing", "", 0);
    finish(&r);
    expect_first("bytes", &r, "port-error");
    expect_text(&r, "long:1: ");
    expect_text(&r, "zeros:1: ");
    free(bytes);
    end(&r);
}

/* Whatever the pieces that a log comes in. */
static void pieces_do_not_matter(void **state)
{
    (void)state;
    im_str text = {0}, noise = {0};
    put_noise(&noise, 12000, 5);
    put_log(&text, diagnose_logs[0].text, 0, im_str_text(&noise));
    im_str_free(&noise);
    run whole = of_text(im_str_text(&text));
    static const size_t step[] = {1, 7, 4096, 1 << 20};
    for (size_t k = 0; k < IM_COUNT_OF(step); k++) {
        run r = begin();
        assert_int_equal(im_diagnose_begin(r.d, "a.log"), IM_OK);
        for (size_t i = 0; i < text.len; i += step[k])
            assert_int_equal(im_diagnose_feed(r.d, text.data + i, text.len - i < step[k] ? text.len - i : step[k]), IM_OK);
        assert_int_equal(im_diagnose_end(r.d), IM_OK);
        finish(&r);
        assert_string_equal(im_str_text(&r.text), im_str_text(&whole.text));
        end(&r);
    }
    im_str_free(&text);
    end(&whole);
}

/* ---- the prefilter against the plain way ---------------------------------------------------------------------------------- */

static void prefilter_finds_all(void **state)
{
    (void)state;
    static const char *const pattern[] = {"Got completion", "got completion with", "ompletion*error 12~", "port error", "error port", "abcabcabc",
                                          "bcabcab",        "xyzxyz*abcabca"};
    im_context *ctx;
    im_scan *s;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_scan_create(ctx, pattern, IM_COUNT_OF(pattern), &s), IM_OK);
    for (uint64_t t = 0; t < 3000; t++) {
        char text[160];
        size_t n = 0;
        for (uint64_t k = 0; n < 120; k++) { /* pieces of patterns, in any case */
            static const char *const piece[] = {"Got ", "completion", " with", "error ", "port",           "12", "abc", "ab", "xyz",
                                                " ",    "C",          "P",     "ORT",    "gOT COMPLETION", "3"};
            uint32_t r[4];
            im_philox(t, k, 1, r);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", piece[r[0] % IM_COUNT_OF(piece)]);
        }
        bool hit[IM_COUNT_OF(pattern)] = {0};
        uint16_t anchor[IM_SCAN_MOST];
        size_t nanchor;
        for (size_t i = 0; (i = im_scan_next(s, text, n, i, anchor, &nanchor)) < n; i++)
            for (size_t k = 0; k < nanchor; k++) {
                const uint16_t *p;
                size_t m = im_scan_patterns(s, anchor[k], &p);
                for (size_t j = 0; j < m; j++)
                    hit[p[j]] = true;
            }
        for (size_t k = 0; k < IM_COUNT_OF(pattern); k++)
            if (im_scan_match(pattern[k], text, n) && !hit[k])
                fail_msg("\"%s\" is not seen in \"%s\"", pattern[k], text);
    }
    static const char *const few[] = {"abc*de"};
    im_scan *none;
    assert_int_equal(im_scan_create(ctx, few, 1, &none), IM_ERR_ARG);
    im_scan_free(s);
    im_context_destroy(ctx);
}

static void patterns_match(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *line;
        bool match;
    } cases[] = {{"error 1~", "with error 12, x", false},
                 {"error 1~", "error 12 error 1,", true},
                 {"error 1~", "error 1", true},
                 {"a*b*c", "xAxxBxC", true},
                 {"a*b*c", "acb", false},
                 {"*b", "ab", true},
                 {"abc", "ab", false},
                 {"", "x", true},
                 {"a*a", "a", false},
                 {"status=12~", "STATUS=12_", true}};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++)
        assert_int_equal(im_scan_match(cases[i].pattern, cases[i].line, strlen(cases[i].line)), cases[i].match);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match),
        cmocka_unit_test(prefilter_finds_all),
        cmocka_unit_test(every_rule_has_cases),
        cmocka_unit_test(every_rule_fires),
        cmocka_unit_test(logs_give_their_cause),
        cmocka_unit_test(unrelated_logs_fire_nothing),
        cmocka_unit_test(root_goes_before_what_follows),
        cmocka_unit_test(times_are_read),
        cmocka_unit_test(boot_is_no_event),
        cmocka_unit_test(recorders_are_compared),
        cmocka_unit_test(the_rank_behind_is_named),
        cmocka_unit_test(any_bytes_are_safe),
        cmocka_unit_test(pieces_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
