/* fabric export: Prometheus text written and read, what is not known, PCIe shares between two readings, NCCL's files in base units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fabric/export.h"
#include "fabric/serve.h"

#include <arpa/inet.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct rig {
    im_context *ctx;
    im_arena *a;
    im_prom *p;
    im_str out;
    char at[64];
} rig;

static rig begin(void)
{
    rig r = {.at = "/tmp/imece-export-XXXXXX"};
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    assert_int_equal(im_arena_create(r.ctx, &r.a), IM_OK);
    assert_int_equal(im_prom_create(r.ctx, r.a, &r.p), IM_OK);
    assert_non_null(mkdtemp(r.at));
    return r;
}

static void end(rig *r)
{
    assert_int_equal(im_remove_tree(r->ctx, r->at), IM_OK);
    im_str_free(&r->out);
    im_arena_destroy(r->a);
    im_context_destroy(r->ctx);
}

static const char *written(rig *r)
{
    r->out.len = 0;
    assert_int_equal(im_prom_write(r->ctx, r->p, &r->out), IM_OK);
    return im_str_text(&r->out);
}

static void text_is_written(void **state)
{
    (void)state;
    rig r = begin();
    im_prom_family *a = im_prom_find(r.p, "a_bytes", IM_PROM_GAUGE, "back\\slash\nand line");
    im_prom_family *b = im_prom_find(r.p, "b_total", IM_PROM_COUNTER, "b");
    im_prom_find(r.p, "empty", IM_PROM_GAUGE, "no sample, no line");
    im_prom_add(r.p, a, &(im_prom_label){"l", "z"}, 1, 0.1);
    im_prom_add_count(r.p, b, NULL, 0, UINT64_MAX);
    im_prom_add(r.p, a, (im_prom_label[]){{"l", "q\"b\\n\n\xff\xc3\xbc\xed\xa0\x80"}, {"gone", NULL}}, 2, 57614065934.065941);
    im_prom_add(r.p, a, &(im_prom_label){"l", "z"}, 1, 7);
    im_prom_add(r.p, a, &(im_prom_label){"l", "nan"}, 1, NAN);
    im_prom_add(r.p, a, &(im_prom_label){"l", "inf"}, 1, -INFINITY);
    assert_ptr_equal(im_prom_find(r.p, "a_bytes", IM_PROM_COUNTER, "x"), a);
    assert_string_equal(written(&r), "# HELP a_bytes back\\\\slash\\nand line\n# TYPE a_bytes gauge\n"
                                     "a_bytes{l=\"q\\\"b\\\\n\\n\xef\xbf\xbd\xc3\xbc\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"} 57614065934.065941\n"
                                     "a_bytes{l=\"z\"} 0.1\n# HELP b_total b\n# TYPE b_total counter\nb_total 18446744073709551615\n");
    end(&r);
}

static void lines_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int got;
        double value;
        const char *labels; /* "a=1;b=2;" */
    } rows[] = {
        {"x 1", 1, 1, ""},
        {"x{} 1.5e3 1700000000000", 1, 1500, ""},
        {"x{b=\"2\",a=\"1\"} -3", 1, -3, "a=1;b=2;"},
        {"x{a=\"1\",} 4\r", 1, 4, "a=1;"},
        {" x { a = \"q\\\"\\\\\\n}\" } 5 ", 1, 5, "a=q\"\\\n};"},
        {"x +Inf", 1, INFINITY, ""},
        {"# TYPE x counter", 0, 0, ""},
        {"", 0, 0, ""},
        {"  \r", 0, 0, ""},
        {"x", -1, 0, ""},
        {"9x 1", -1, 0, ""},
        {"x{a=1} 1", -1, 0, ""},
        {"x{a=\"1} 1", -1, 0, ""},
        {"x{a=\"1\" b=\"2\"} 1", -1, 0, ""},
        {"x{a=\"1\",a=\"2\"} 1", -1, 0, ""},
        {"x{a=\"\\t\"} 1", -1, 0, ""},
        {"x{a:b=\"1\"} 1", -1, 0, ""},
        {"x{a=\"1\" ", -1, 0, ""},
        {"x 1 2 3", -1, 0, ""},
        {"x 1garbage", -1, 0, ""},
        {"\xff\xfe 1", -1, 0, ""},
    };
    rig r = begin();
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        im_prom_line l;
        im_str labels = {0};
        const char *why = NULL;
        const int got = im_prom_parse_line(r.a, rows[i].line, strlen(rows[i].line), &l, &why);
        if (got != rows[i].got)
            fail_msg("%s: %d, %s", rows[i].line, got, why ? why : "");
        assert_int_equal(got < 0, why != NULL);
        if (got != 1)
            continue;
        assert_string_equal(l.name, "x");
        assert_true(l.value == rows[i].value);
        for (size_t k = 0; k < l.nlabels; k++)
            im_str_printf(&labels, "%s=%s;", l.label[k].name, l.label[k].value);
        assert_string_equal(im_str_text(&labels), rows[i].labels);
        im_str_free(&labels);
    }
    end(&r);
}

static void pcie_rates(void **state)
{
    (void)state;
    static const struct {
        double gts;
        int64_t width;
        double gigabytes; /* FABRIC_FACTS d.3's table, from the header sizes of Intel AN 708 */
    } rows[] = {{8, 16, 14.40},   {16, 16, 28.80}, {32, 16, 57.61}, {16, 8, 14.40}, {8, 8, 7.20},
                {2.5, 1, 0.2286}, {64, 16, 121.0}, {0, 16, 0},      {16, 0, 0}};
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++)
        assert_true(fabs(im_export_pcie_usable(rows[i].gts, rows[i].width) / 1e9 - rows[i].gigabytes) < 0.01);
}

static void nccl_files(void **state)
{
    (void)state;
    rig r = begin();
    const char *why = NULL;
    const char good[] = "nccl_bus_bandwidth_gbs{gpu=\"0\",collective=\"AllReduce\"} 12.5\n"
                        "nccl_collective_exec_time_microseconds{gpu=\"0\",collective=\"AllReduce\"} 250\n"
                        "nccl_other_total{gpu=\"0\"} 3\nnccl_hidden NaN\n";
    assert_true(im_export_nccl_text(r.a, r.p, good, sizeof good - 1, &why));
    const char *bad[] = {"nccl_p2p_exec_time_microseconds 1\nnccl_x{ 1\n", "nccl_p2p_exec_time_microseconds 1\nnode_infiniband_state_id 4\n"};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        assert_false(im_export_nccl_text(r.a, r.p, bad[i], strlen(bad[i]), &why));
        assert_memory_equal(why, "line 2: ", 8);
    }
    const char *text = written(&r);
    assert_non_null(strstr(text, "\nnccl_bus_bandwidth_bytes_per_second{collective=\"AllReduce\",gpu=\"0\"} 12500000000\n"));
    assert_non_null(strstr(text, "\nnccl_collective_exec_seconds{collective=\"AllReduce\",gpu=\"0\"} 0.00025\n"));
    assert_non_null(strstr(text, "# TYPE nccl_other_total counter\n"));
    assert_null(strstr(text, "hidden"));
    assert_null(strstr(text, "p2p"));
    assert_null(strstr(text, "node_"));
    end(&r);
}

/* ---- a machine ------------------------------------------------------------------------------------------- */

static void make_tree(const rig *r, const char *what)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "python3 %s/fabric/make_tree.py %s/t %s", IM_TEST_DIR, r->at, what);
    assert_int_equal(system(command), 0);
}

static void put_counter(const rig *r, int device, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/t/sys/class/infiniband/mlx5_%d/ports/1/%s", r->at, device, name);
    if (text)
        assert_int_equal(im_file_write_atomic(r->ctx, path, text, strlen(text)), IM_OK);
    else
        assert_int_equal(unlink(path), 0);
}

/* The value of the line that begins with this; NAN: there is none. */
static double value_of(const im_str *text, const char *begin_with)
{
    char line[300];
    snprintf(line, sizeof line, "\n%s", begin_with);
    const char *at = strstr(im_str_text(text), line), *value = at ? strstr(at, "} ") : NULL;
    return value ? atof(value + 2) : NAN;
}

#define SHARE "imece_fabric_pcie_saturation_ratio{device=\"mlx5_0\",address=\"0000:41:00.0\",kind=\"nic\",direction=\"transmit\""

static void collect(rig *r, im_exporter *x, double seconds)
{
    r->out.len = 0;
    assert_int_equal(im_exporter_collect(r->ctx, x, seconds, &r->out), IM_OK);
}

/* Two functions of one card: their bytes together over the one link. */
static void shares_of_a_link(void **state)
{
    (void)state;
    rig r = begin();
    im_exporter *x;
    make_tree(&r, "dual");
    char dir[100];
    snprintf(dir, sizeof dir, "%s/t", r.at);
    assert_int_equal(im_exporter_create(r.ctx, &(im_export_options){.root = dir}, &x), IM_OK);
    put_counter(&r, 0, "counters/port_xmit_data", "1000");
    put_counter(&r, 1, "counters/port_xmit_data", "1000");
    collect(&r, x, 100);
    assert_true(isnan(value_of(&r.out, SHARE))); /* one reading tells no rate */
    const double usable = value_of(&r.out, "imece_fabric_pcie_usable_bytes_per_second{device=\"mlx5_0\"");
    assert_true(usable > 1e9);
    put_counter(&r, 0, "counters/port_xmit_data", "2000001000");
    put_counter(&r, 1, "counters/port_xmit_data", "1000001000");
    collect(&r, x, 102);
    assert_true(fabs(value_of(&r.out, SHARE) - 12e9 / 2 / usable) < 1e-9);
    collect(&r, x, 102.1); /* too soon: still over the time since 100 */
    assert_true(fabs(value_of(&r.out, SHARE) - 12e9 / 2.1 / usable) < 1e-9);
    collect(&r, x, 104);
    assert_true(value_of(&r.out, SHARE) == 0);
    put_counter(&r, 1, "counters/port_xmit_data", "5"); /* cleared */
    collect(&r, x, 106);
    assert_true(isnan(value_of(&r.out, SHARE)));
    put_counter(&r, 1, "counters/port_xmit_data", NULL);
    collect(&r, x, 108);
    assert_true(isnan(value_of(&r.out, SHARE)));
    im_exporter_destroy(x);
    end(&r);
}

static void unknown_is_absent(void **state)
{
    (void)state;
    rig r = begin();
    im_exporter *x;
    char dir[100];
    make_tree(&r, "ib-ndr");
    snprintf(dir, sizeof dir, "%s/t", r.at);
    put_counter(&r, 0, "counters/symbol_error", "N/A (no PMA)\n");
    put_counter(&r, 0, "state", "four\n");
    put_counter(&r, 1, "state", "1: DOWN\n");
    put_counter(&r, 2, "counters/port_xmit_data", "250\n");
    put_counter(&r, 2, "counters/link_downed", "255\n");
    put_counter(&r, 2, "hw_counters/req_transport_retries_exceeded", "3\n");
    assert_int_equal(im_exporter_create(r.ctx, &(im_export_options){.root = dir}, &x), IM_OK);
    collect(&r, x, 1);
    assert_true(isnan(value_of(&r.out, "node_infiniband_symbol_error_total{device=\"mlx5_0\"")));
    assert_true(isnan(value_of(&r.out, "node_infiniband_state_id{device=\"mlx5_0\"")));
    assert_true(value_of(&r.out, "node_infiniband_state_id{device=\"mlx5_1\"") == 1);
    assert_true(isnan(value_of(&r.out, "node_infiniband_rate_bytes_per_second{device=\"mlx5_1\""))); /* what a port that is down says of its rate */
    assert_true(value_of(&r.out, "node_infiniband_rate_bytes_per_second{device=\"mlx5_2\"") == 50e9);
    assert_true(value_of(&r.out, "node_infiniband_port_data_transmitted_bytes_total{device=\"mlx5_2\"") == 1000);
    assert_true(value_of(&r.out, "imece_fabric_pegged{device=\"mlx5_2\",port=\"1\",counter=\"link_downed\"") == 1);
    assert_true(value_of(&r.out, "imece_fabric_pegged{device=\"mlx5_3\",port=\"1\",counter=\"link_downed\"") == 0);
    assert_true(
        value_of(&r.out, "imece_fabric_errors_total{device=\"mlx5_2\",port=\"1\",counter=\"req_transport_retries_exceeded\",class=\"fatal\"") == 3);
    im_exporter_destroy(x);
    end(&r);
}

static void names_of_counters(void **state)
{
    (void)state;
    rig r = begin();
    static const char *const files[] = {"port_xmit_data", "port_rcv_data", "VL15_dropped", "symbol_error", "port_xmit_wait"};
    for (size_t i = 0; i < IM_COUNT_OF(files); i++) {
        assert_non_null(im_export_counter_find(files[i], false));
        assert_null(im_export_counter_find(files[i], true));
    }
    assert_int_equal(im_export_counter_find("port_rcv_data", false)->scale, 4);
    assert_string_equal(im_export_counter_find("roce_slow_restart", true)->metric, "node_infiniband_roce_slow_restart_used_total");
    assert_string_equal(im_export_counter_find("rp_cnp_ignored", true)->metric, "node_infiniband_rp_cnp_ignored_packets_received_total");
    assert_null(im_export_counter_find("lifespan", true));
    end(&r);
}

static void steps_of_a_run(void **state)
{
    (void)state;
    static const char step7[] = "{\"step\": 7, \"loss\": 2.5, \"step_s\": 0.25, \"tokens_per_s\": 4096, \"mfu\": null}\n";
    static const struct {
        const char *before, *behind;
        bool found;
    } rows[] = {
        {"", "", true},
        {"{\"step\": 6, \"step_s\": 9}\n", "{\"step\": 8, \"step_s\": 0.3", true}, /* the writer is not done */
        {"garbage\n\n", "\n\xff\xfe\n{\"event\": \"eval\", \"step_s\": 5}\n[]\n", true},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        rig r = begin();
        im_str text = {0};
        im_str_printf(&text, "%s%s%s", rows[i].before, step7, rows[i].behind);
        assert_int_equal(im_export_run_text(r.p, r.ctx, im_str_text(&text), text.len), rows[i].found);
        const char *said = written(&r);
        assert_non_null(strstr(said, "\nimece_train_step_seconds 0.25\n"));
        assert_non_null(strstr(said, "\nimece_train_steps 7\n"));
        assert_null(strstr(said, "utilization"));
        im_str_free(&text);
        end(&r);
    }
    rig r = begin();
    assert_false(im_export_run_text(r.p, r.ctx, "\n\n{}\n", 5));
    assert_false(im_export_run_text(r.p, r.ctx, "", 0));
    assert_false(im_export_run_text(r.p, r.ctx, "{\"step\": 1, \"step_s\": 1}", 24));
    assert_string_equal(written(&r), "");
    end(&r);
}

static void addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host; /* host NULL: refused */
        int port;
    } rows[] = {
        {"127.0.0.1:9410", "127.0.0.1", 9410},
        {"9410", "127.0.0.1", 9410},
        {"localhost:1", "127.0.0.1", 1},
        {"0.0.0.0:0", "0.0.0.0", 0},
        {"[::1]:9410", "::1", 9410},
        {"[::]:65535", "::", 65535},
        {":9410", NULL, 0},
        {"", NULL, 0},
        {"127.0.0.1", NULL, 0},
        {"127.0.0.1:", NULL, 0},
        {"127.0.0.1:65536", NULL, 0},
        {"127.0.0.1:-1", NULL, 0},
        {"127.0.0.1:9x", NULL, 0},
        {"[::1:9410", NULL, 0},
        {"[]:9410", NULL, 0},
        {"::1:9410", NULL, 0},
        {"node07:9410", NULL, 0},
        {"999999999999999999999999999999999999999999999999999999999999999999999999999:1", NULL, 0},
    };
    rig r = begin();
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        struct sockaddr_storage at;
        char host[INET6_ADDRSTRLEN] = "";
        const im_status status = im_serve_address(r.ctx, rows[i].text, &at);
        if (status != (rows[i].host ? IM_OK : IM_ERR_ARG))
            fail_msg("%s: %d", rows[i].text, status);
        im_error_clear(r.ctx);
        if (!rows[i].host)
            continue;
        const bool six = at.ss_family == AF_INET6;
        const struct sockaddr_in *a4 = (const struct sockaddr_in *)&at;
        const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)&at;
        inet_ntop(at.ss_family, six ? (const void *)&a6->sin6_addr : (const void *)&a4->sin_addr, host, sizeof host);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(ntohs(six ? a6->sin6_port : a4->sin_port), rows[i].port);
    }
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_written),   cmocka_unit_test(lines_are_read),   cmocka_unit_test(pcie_rates),
        cmocka_unit_test(nccl_files),        cmocka_unit_test(shares_of_a_link), cmocka_unit_test(unknown_is_absent),
        cmocka_unit_test(names_of_counters), cmocka_unit_test(addresses),        cmocka_unit_test(steps_of_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
