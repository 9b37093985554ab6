/* The arithmetic of fabric check: lanes, perftest's output, the tournament and its verdicts, archives; and that the table is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fabric/check.h"
#include "fabric/lanes.h"
#include "fabric/perftest.h"
#include "fabric/tar.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the table ------------------------------------------------------------------------------------ */

static void table_is_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < im_check_table_rows; i++) {
        const im_check_row *row = &im_check_table[i];
        assert_ptr_equal(im_check_find(row->id), row); /* no id twice */
        assert_non_null(row->title);
        assert_true(strlen(row->why) > 20);
        assert_true(row->kind != IM_CHECK_HOST || row->host);
        assert_true(row->kind != IM_CHECK_BETWEEN || row->between);
    }
    assert_null(im_check_find("no-such-check"));
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

static void lanes_of_smpquery(void **state)
{
    (void)state;
    im_lanes l;
    im_lanes_init(&l);
    assert_false(im_lanes_sl2vl("# SL2VL table: Lid 1\nports: in  0, out  0: | 0| 1|\n", &l)); /* cut */
    assert_true(im_lanes_sl2vl("# SL2VL table: Lid 2\n#                 SL: | 0| 1| 2| 3| 4| 5| 6| 7| 8| 9|10|11|12|13|14|15|\n"
                               "ports: in  0, out  0: | 0| 1| 2| 3| 0| 1| 2| 3| 0| 1| 2| 3| 0| 1| 2|15|\n",
                               &l));
    assert_int_equal(l.vl[5], 1);
    assert_int_equal(l.vl[15], 15);
    assert_true(im_lanes_vlarb("# VLArbitration tables: Lid 2 port 1 LowCap 8 HighCap 8\n# Low priority VL Arbitration Table:\n"
                               "VL    : |0x1 |0x2 |0x1 |0x0 |\nWEIGHT: |0x1C|0x4 |0x2 |0x0 |\n# High priority VL Arbitration Table:\n"
                               "VL    : |0x0 |0x0 |\nWEIGHT: |0x4 |0x0 |\n",
                               &l));
    assert_int_equal(l.low[1], 0x1c + 2);
    assert_int_equal(l.low[2], 4);
    assert_int_equal(l.high[0], 4);
    assert_false(im_lanes_vlarb("WEIGHT: |||\nVL    : |0x\n", &l));
}

static void lanes_of_opensm(void **state)
{
    (void)state;
    im_lanes l;
    im_lanes_init(&l);
    im_lanes_opensm("qos FALSE\nqos_sl2vl 0,1\n", &l);
    assert_int_equal(l.qos, 0);
    assert_false(l.map_known); /* OpenSM leaves the tables alone */
    im_lanes_opensm("# qos FALSE\nqos TRUE\nqos_ca_sl2vl (null)\nqos_sl2vl 0,0,3,15\nqos_vlarb_high 3:64,1:2\nqos_vlarb_low 0:8\n", &l);
    assert_int_equal(l.vl[2], 3);
    assert_int_equal(l.vl[3], 15);
    assert_int_equal(l.vl[4], -1);
    assert_int_equal(l.high[3], 64);
    assert_int_equal(l.low[0], 8);
    im_lanes_init(&l);
    im_lanes_opensm("qos TRUE\n", &l); /* its defaults */
    assert_int_equal(l.vl[9], 9);
    assert_int_equal(l.vl[15], 7);
    assert_int_equal(l.high[0], 4);
    im_lanes_policy p;
    im_lanes_policy_parse("any, service-id 0x10603db : 7\nqos-ulps\n default : 2 # all\n any, service-id 0x0000000001061000 : 5\n"
                          "any, service-id 0x00000000010603db : 3\n iser : 4\nend-qos-ulps\n",
                          &p);
    assert_int_equal(p.fallback, 2);
    assert_int_equal(p.storage, 3); /* Lustre's, the first of storage; not the one outside of the section, nor another service's */
    im_lanes_policy_parse("no such file\n: : :\nqos-ulps\nsrp : 99\n", &p);
    assert_int_equal(p.storage, -1);
    im_str s = {0};
    im_lanes_fragment(1, 3, &s);
    im_lanes_init(&l);
    im_lanes_opensm(im_str_text(&s), &l); /* what is advised does what it should */
    im_lanes_policy_parse(im_str_text(&s), &p);
    assert_int_equal(p.storage, 3);
    assert_int_not_equal(l.vl[1], l.vl[3]);
    assert_true(l.high[l.vl[1]] > 0 && l.high[l.vl[3]] == 0 && l.low[l.vl[3]] > 0);
    im_str_free(&s);
}

/* ---- perftest ------------------------------------------------------------------------------------------- */

static im_perf recorded(const char *name)
{
    char path[PATH_MAX];
    char *text;
    size_t len;
    im_context *ctx;
    im_perf out;
    snprintf(path, sizeof path, IM_TEST_DIR "/fabric/records/perftest/%s.out", name);
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_file_read(ctx, path, 1 << 20, &text, &len), IM_OK);
    im_perf_parse(text, &out);
    free(text);
    im_context_destroy(ctx);
    return out;
}

static void perftest_records(void **state)
{
    (void)state;
    im_perf p = recorded("ib_write_bw-gbits.client");
    assert_true(p.known && !p.latency && p.ethernet);
    assert_float_equal(p.gbps, 0.14, 1e-4);
    assert_float_equal(p.peak_gbps, 0.16, 1e-4);
    assert_int_equal(p.mtu, 4096);
    assert_int_equal(p.bytes, 65536);
    p = recorded("ib_write_bw-all.client"); /* the largest size */
    assert_int_equal(p.bytes, 8388608);
    assert_true(p.known && p.gbps > 0.05 && p.gbps < 1);
    p = recorded("ib_write_bw.client"); /* MiB/s */
    assert_true(p.known && p.gbps > 0.05 && p.gbps < 1);
    p = recorded("ib_read_lat.client");
    assert_true(p.known && p.latency);
    assert_float_equal(p.typical_us, 582.03, 1e-4);
    assert_float_equal(p.p99_us, 2755.29, 1e-4);
    p = recorded("err-no-device");
    assert_false(p.known);
    assert_non_null(strstr(p.error, "mlx5_9 not found"));
    assert_false(p.not_listening);
    p = recorded("err-refused");
    assert_true(p.not_listening && *p.error);
}

static void perftest_other_forms(void **state)
{
    (void)state;
    im_perf p;
    im_perf_parse(" #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
                  "Conflicting CPU frequency values detected: 800.0 != 2400.0. CPU Frequency is not max.\n 8388608    3    5000    0.00    391.52    0.005834\n",
                  &p);
    assert_float_equal(p.gbps, 391.52, 1e-4);
    im_perf_parse(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      5000   11681.51   11680.92   0.186895\n", &p);
    assert_float_equal(p.gbps, 11680.92 * 1048576 * 8 / 1e9, 1e-3);
    im_perf_parse(" #bytes        #iterations       t_avg[usec]    tps average\n 2       1000            1.71        584795.32\n", &p);
    assert_true(p.latency);
    assert_float_equal(p.typical_us, 1.71, 1e-4);
    im_perf_parse(" #bytes BW[Gb/sec]\n99999999999999999999999999 1 1e999 1\n#bytes", &p); /* no crash, whatever it is */
    im_perf_parse("", &p);
    assert_false(p.known);
    /* FABRIC: 400G RoCE of MTU 4096 gave 392.1, 1024 gives 370.3; InfiniBand 0.994 */
    assert_float_equal(im_perf_expected(400, 4096, true), 392.15, 0.01);
    assert_float_equal(im_perf_expected(400, 1024, true), 370.34, 0.01);
    assert_float_equal(im_perf_expected(200, 4096, false) / 200, 0.9937, 1e-4);
}

/* ---- tournament --------------------------------------------------------------------------------------------- */

static void all_meet_all(void **state)
{
    (void)state;
    enum { MOST = 65 };
    for (size_t n = 0; n < MOST; n++) {
        bool met[MOST][MOST] = {{false}};
        size_t a[MOST], b[MOST], all = 0;
        for (size_t r = 0; r < im_perf_rounds(n); r++) {
            bool busy[MOST] = {false};
            const size_t pairs = im_perf_round(n, r, a, b);
            for (size_t i = 0; i < pairs; i++) {
                assert_true(a[i] < b[i] && b[i] < n);
                assert_false(busy[a[i]] || busy[b[i]] || met[a[i]][b[i]]);
                busy[a[i]] = busy[b[i]] = met[a[i]][b[i]] = true;
                all++;
            }
        }
        assert_int_equal(all, n < 2 ? 0 : n * (n - 1) / 2);
    }
}

enum { HOSTS = 5, RAILS = 2 };

/* Every match at 0.98, but where slow() says otherwise. */
static size_t judged(bool (*slow)(size_t from, size_t to, size_t rail), size_t hosts, im_perf_blame *out)
{
    im_perf_match m[HOSTS * HOSTS * RAILS];
    size_t n = 0, found;
    im_context *ctx;
    im_arena *a;
    im_perf_blame *blame;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_arena_create(ctx, &a), IM_OK);
    for (size_t i = 0; i < hosts; i++)
        for (size_t k = 0; k < hosts; k++)
            for (size_t r = 0; r < RAILS && i != k; r++)
                m[n++] = (im_perf_match){.from = i, .to = k, .rail = r, .share = slow(i, k, r) ? 0.5 : 0.98};
    assert_int_equal(im_perf_judge(ctx, a, m, n, hosts, RAILS, 0.95, &blame, &found), IM_OK);
    for (size_t i = 0; i < found && i < 8; i++)
        out[i] = blame[i];
    im_arena_destroy(a);
    im_context_destroy(ctx);
    return found;
}

static bool never(size_t from, size_t to, size_t rail)
{
    (void)from, (void)to, (void)rail;
    return false;
}
static bool cable_of_2(size_t from, size_t to, size_t rail)
{
    return rail == 1 && (from == 2 || to == 2);
}
static bool sender_2(size_t from, size_t to, size_t rail)
{
    (void)to;
    return rail == 1 && from == 2;
}
static bool host_3(size_t from, size_t to, size_t rail)
{
    (void)rail;
    return from == 3 || to == 3;
}
static bool path_0_4(size_t from, size_t to, size_t rail)
{
    return rail == 0 && ((from == 0 && to == 4) || (from == 4 && to == 0));
}
static bool two_cables(size_t from, size_t to, size_t rail)
{
    return rail == 0 && (from == 1 || to == 1 || from == 3 || to == 3);
}
static bool first_rail(size_t from, size_t to, size_t rail)
{
    (void)from, (void)to;
    return rail == 0;
}

static void the_slow_one_is_named(void **state)
{
    (void)state;
    im_perf_blame x[8] = {{0}};
    assert_int_equal(judged(never, HOSTS, x), 0);
    assert_int_equal(judged(cable_of_2, HOSTS, x), 1);
    assert_int_equal(x[0].who, IM_PERF_HOST_RAIL);
    assert_true(x[0].host == 2 && x[0].rail == 1 && x[0].direction == 0 && x[0].slow == 8 && x[0].matches == 8);
    assert_int_equal(judged(sender_2, HOSTS, x), 1);
    assert_true(x[0].who == IM_PERF_HOST_RAIL && x[0].host == 2 && x[0].direction == 1);
    assert_int_equal(judged(host_3, HOSTS, x), 1);
    assert_true(x[0].who == IM_PERF_HOST && x[0].host == 3);
    assert_int_equal(judged(path_0_4, HOSTS, x), 1);
    assert_true(x[0].who == IM_PERF_PATH && x[0].host + x[0].other == 4 && x[0].slow == 2);
    assert_int_equal(judged(two_cables, HOSTS, x), 2);
    assert_true(x[0].host + x[1].host == 4 && x[0].who == IM_PERF_HOST_RAIL && x[1].who == IM_PERF_HOST_RAIL);
    assert_int_equal(judged(first_rail, 2, x), 1);
    assert_int_equal(x[0].who, IM_PERF_PAIR); /* nobody else to compare with */
}

/* ---- archives ------------------------------------------------------------------------------------------------- */

static void archive_there_and_back(void **state)
{
    (void)state;
    char at[] = "/tmp/imece-tar-XXXXXX", file[64], path[PATH_MAX], longest[300];
    im_context *ctx;
    im_tar *t;
    char *text;
    size_t len;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_non_null(mkdtemp(at));
    snprintf(file, sizeof file, "%s.tgz", at);
    memset(longest, 'd', sizeof longest);
    memcpy(longest, "/sys/", 5);
    longest[150] = '/';
    longest[280] = '\0';
    assert_int_equal(im_tar_create(ctx, open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600), &t), IM_OK);
    assert_int_equal(im_tar_add_dir(t, "/sys/empty"), IM_OK);
    assert_int_equal(im_tar_add(t, "/sys/a/b", NULL, "hello", 5), IM_OK);
    assert_int_equal(im_tar_add(t, longest, NULL, "", 0), IM_OK);
    assert_int_equal(im_tar_add(t, "/sys/link", "a/b", NULL, 0), IM_OK);
    assert_int_equal(im_tar_finish(t), IM_OK);
    assert_int_equal(im_tar_extract(ctx, file, at), IM_OK);
    snprintf(path, sizeof path, "%s/sys/link", at);
    assert_int_equal(im_file_read(ctx, path, 100, &text, &len), IM_OK);
    assert_int_equal(len, 5);
    free(text);
    snprintf(path, sizeof path, "%s%s", at, longest);
    assert_true(im_path_exists(path));
    snprintf(path, sizeof path, "%s/sys/empty", at);
    assert_true(im_path_is_dir(path));
    assert_int_equal(im_remove_tree(ctx, at), IM_OK);
    unlink(file);
    im_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_whole),        cmocka_unit_test(lanes_of_smpquery),      cmocka_unit_test(lanes_of_opensm),
        cmocka_unit_test(perftest_records),      cmocka_unit_test(perftest_other_forms),   cmocka_unit_test(all_meet_all),
        cmocka_unit_test(the_slow_one_is_named), cmocka_unit_test(archive_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
