/* What the machine's reader makes of trees of files: healthy ones, broken ones, recorded ones, and ones that mean harm. */
#include "fabric/status.h"
#include "topology/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char top[64];

static int setup(void **state)
{
    (void)state;
    snprintf(top, sizeof top, "/dev/shm/imece-machine-XXXXXX"); /* thousands of small files: in memory where that goes */
    if (mkdtemp(top))
        return 0;
    snprintf(top, sizeof top, "/tmp/imece-machine-XXXXXX");
    return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_remove_tree(ctx, top), IM_OK);
    im_context_destroy(ctx);
    return 0;
}

typedef struct seen {
    im_context *ctx;
    im_arena *arena;
    im_root *root;
    im_machine *m;
} seen;

static void shell(const char *fmt, ...) IM_PRINTF(1, 2);
static void shell(const char *fmt, ...)
{
    char command[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    if (system(command) != 0)
        fail_msg("failed: %s", command);
}

/* The tree that make_tree.py writes for these words. */
static void make(const char *words)
{
    shell("python3 %s/fabric/make_tree.py %s/t %s", IM_TEST_DIR, top, words);
}

static seen look_at(const char *dir)
{
    seen s;
    assert_int_equal(im_context_create(&s.ctx), IM_OK);
    assert_int_equal(im_arena_create(s.ctx, &s.arena), IM_OK);
    assert_int_equal(im_root_open(s.ctx, s.arena, dir, &s.root), IM_OK);
    assert_int_equal(im_machine_read(s.ctx, s.root, &s.m), IM_OK);
    return s;
}

static seen look(void)
{
    char dir[80];
    snprintf(dir, sizeof dir, "%s/t", top);
    return look_at(dir);
}

static void done(seen *s)
{
    im_root_close(s->root);
    im_arena_destroy(s->arena);
    im_context_destroy(s->ctx);
}

static void test_infiniband(void **state)
{
    (void)state;
    make("ib-ndr");
    seen s = look();
    const im_machine *m = s.m;
    assert_int_equal(m->nrdma, 8);
    assert_int_equal(m->ngpus, 8); /* the console's VGA is none */
    const im_rdma_device *d = im_machine_rdma(m, "mlx5_7");
    assert_non_null(d);
    assert_string_equal(d->hca_type.text, "MT4129");
    assert_string_equal(d->uverbs, "uverbs7");
    assert_string_equal(d->pci->address, "0000:83:00.0");
    assert_string_equal(d->pci->host_bridge, "pci0000:80");
    assert_int_equal(d->pci->nbridges, 3);
    assert_string_equal(d->pci->bridge[0], "0000:80:01.0");
    assert_int_equal(d->pci->numa_node.value, 1);
    assert_string_equal(d->pci->driver.text, "mlx5_core");
    assert_true(d->pci->gts == 32 && d->pci->link_width.value == 16);
    const im_rdma_port *p = &d->port[0];
    assert_int_equal(p->state.value, 4);
    assert_int_equal(p->phys_state.value, 5);
    assert_int_equal(p->lid.value, 0x9d);
    assert_true(p->rate.gbps == 400 && p->rate.width == 4);
    assert_string_equal(p->rate.speed, "NDR");
    assert_int_equal(p->ngids, 1);
    assert_int_equal(p->gid[0].roce, 0); /* InfiniBand, though the kernel writes IB/RoCE v1 */
    assert_int_equal(p->npkeys, 2);
    assert_int_equal(p->mtu_active, 4096);
    assert_string_equal(p->mtu_from, "ibv_devinfo");
    assert_string_equal(p->netdev, "ib7");
    const im_counter *c = im_port_counter(p, "port_xmit_data");
    assert_true(c && c->known && c->value == 123456789 && !c->hw);
    assert_true(im_port_counter(p, "out_of_sequence")->hw);
    assert_null(im_port_counter(p, "lifespan"));
    assert_int_equal(im_machine_pci(m, "0000:10:01.0")->acs, IM_ACS_OFF);
    assert_true(im_machine_module(m, "nvidia_peermem")->loaded);
    assert_false(im_machine_module(m, "rdma_rxe")->loaded);
    assert_string_equal(m->peer_memory.text, "550.90.07");
    assert_int_equal(m->memlock_soft, -1);
    assert_int_equal(m->shm_bytes, (int64_t)512 << 30);
    assert_int_equal(m->nnumas, 2);
    assert_int_equal(m->governor[0].cpus, 64);
    assert_string_equal(m->iommu_type.text, "identity");
    assert_int_equal(m->dev_infiniband.n, 17);
    const im_net *eno1 = im_machine_net(m, "eno1");
    assert_true(eno1->naddrs == 1 && strcmp(eno1->addr[0], "192.0.2.17/24") == 0 && eno1->speed.value == 10000);
    assert_true(im_machine_net(m, "lo")->is_virtual);
    done(&s);
}

static void test_roce(void **state)
{
    (void)state;
    make("roce8 --break mtu --break acs --break pcie-narrow");
    seen s = look();
    const im_rdma_port *p = &im_machine_rdma(s.m, "mlx5_3")->port[0];
    assert_true(p->ethernet);
    assert_int_equal(p->ngids, 4);
    assert_int_equal(p->gid[3].roce, 2);
    assert_true(p->gid[3].is_ipv4);
    assert_string_equal(p->gid[3].address, "10.1.3.11");
    assert_string_equal(p->gid[3].ndev.text, "ens4f0np0");
    assert_true(p->gid[0].roce == 1 && p->gid[0].is_link_local && !p->gid[0].is_ipv4);
    assert_string_equal(p->netdev, "ens4f0np0");
    assert_int_equal(p->mtu_active, 1024); /* 1500 less the headers */
    assert_int_equal(p->mtu_max, 0);       /* nobody told */
    assert_int_equal(im_machine_pci(s.m, "0000:10:01.0")->acs, IM_ACS_ON);
    const im_pci *card = im_machine_rdma(s.m, "mlx5_7")->pci;
    assert_true(card->link_width.value == 8 && card->link_width_max.value == 16);
    done(&s);
}

static void test_virtual(void **state)
{
    (void)state;
    make("vm");
    seen s = look();
    assert_true(s.m->is_virtual && !s.m->in_container);
    assert_int_equal(im_machine_pci(s.m, "0000:00:04.0")->acs, IM_ACS_NONE);
    assert_int_equal(im_machine_rdma(s.m, "mlx5_0")->pci->numa_node.value, -1);
    assert_int_equal(s.m->iommu_groups, 0);
    assert_non_null(s.m->governor_why);
    done(&s);
    make("container-bare");
    s = look();
    assert_true(s.m->in_container);
    assert_int_equal(s.m->dev_infiniband.n, 0);
    assert_string_equal(s.m->dev_infiniband.why, "absent");
    assert_int_equal(s.m->shm_bytes, 64 << 20);
    assert_int_equal(s.m->memlock_hard, 65536);
    done(&s);
}

static void test_recorded(void **state)
{
    (void)state;
    for (int down = 0; down < 2; down++) {
        shell("python3 %s/fabric/make_tree.py %s/t --record %s/fabric/records/%s", IM_TEST_DIR, top, IM_TEST_DIR, down ? "down" : "idle");
        seen s = look();
        assert_int_equal(s.m->nrdma, 1);
        const im_rdma_device *d = &s.m->rdma[0];
        const im_rdma_port *p = &d->port[0];
        assert_string_equal(d->fw_ver.text, "");
        assert_null(d->hca_type.text);
        assert_string_equal(d->hca_type.why, "absent");
        assert_null(d->pci);
        assert_int_equal(p->state.value, down ? 1 : 4);
        assert_int_equal(p->phys_state.value, down ? 3 : 5);
        assert_true(p->rate.gbps == 2.5 && p->rate.width == 1);
        assert_string_equal(p->counters_why, "absent");
        assert_null(p->hw_counters_why);
        assert_true(im_port_counter(p, "sent_pkts")->known);
        assert_int_equal(p->mtu_active, 4096);
        assert_string_equal(p->gid[1].address, "10.77.0.1");
        assert_int_equal(p->gid[1].roce, 2);
        done(&s);
    }
}

/* Nothing at all: everything is unknown, with a reason, and nothing is 0. */
static void test_empty(void **state)
{
    (void)state;
    shell("rm -rf %s/t && mkdir %s/t", top, top);
    seen s = look();
    assert_int_equal(s.m->nrdma, 0);
    assert_string_equal(s.m->rdma_why, "absent");
    assert_int_equal(s.m->memlock_soft, -2);
    assert_int_equal(s.m->shm_bytes, -1);
    assert_non_null(s.m->shm_why);
    assert_non_null(s.m->modules_why);
    assert_string_equal(s.m->iommu_why, "absent");
    assert_null(s.m->kernel.text);
    const im_trouble *t;
    size_t n;
    assert_int_equal(im_root_troubles(s.root, &t, &n), 0); /* absent is no trouble */
    done(&s);
}

/* Links that want out, a pipe, links in a circle, a folder in a file's place, binary garbage. */
static void test_hostile(void **state)
{
    (void)state;
    make("dual");
    shell("cd %s/t && echo secret > %s/secret && P=sys/class/infiniband/mlx5_0/ports/1 && rm $P/state $P/rate $P/lid $P/phys_state $P/sm_lid &&"
          "ln -s %s/secret $P/state && ln -s ../../../../../../../../../../../../../../../../%s/secret $P/phys_state && mkfifo $P/rate &&"
          "ln -s lid $P/lid && mkdir $P/sm_lid && head -c 300000 /dev/urandom > $P/counters/symbol_error && printf '\\1\\377N/A (no PMA)\\0' > "
          "$P/counters/link_downed &&"
          "echo 99999999999999999999999999 > $P/counters/port_xmit_data && ln -s /proc/sys/kernel/hostname sys/class/infiniband/mlx5_0/extra",
          top, top, top, top);
    seen s = look();
    const im_rdma_port *p = &im_machine_rdma(s.m, "mlx5_0")->port[0];
    assert_null(p->state.text);
    assert_null(p->phys_state.text);
    assert_null(p->rate_text.text);
    assert_true(p->rate.gbps == 0);
    assert_null(p->lid.text);
    assert_null(p->sm_lid.text);
    assert_false(im_port_counter(p, "symbol_error")->known);
    assert_false(im_port_counter(p, "link_downed")->known);
    assert_false(im_port_counter(p, "port_xmit_data")->known);
    assert_true(im_port_counter(p, "port_rcv_data")->known);
    /* an absolute link stays inside: it leads to the tree's own host name */
    assert_string_equal(im_root_read(s.root, "/sys/class/infiniband/mlx5_0/extra").text, "dual01");
    assert_string_equal(im_root_resolve(s.root, "/sys/class/infiniband/mlx5_0/extra"), "/proc/sys/kernel/hostname");
    const im_trouble *t;
    size_t n;
    assert_int_equal(im_root_troubles(s.root, &t, &n), 3); /* the pipe, the circle, the folder */
    done(&s);
}

static void test_parts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ethernet;
        double gbps, data;
        int width;
        const char *speed;
    } rates[] = {
        {"400 Gb/sec (4X NDR)", false, 400, 400, 4, "NDR"},
        {"2.5 Gb/sec (1X SDR)", false, 2.5, 2, 1, "SDR"},
        {"40 Gb/sec (4X QDR)", false, 40, 32, 4, "QDR"},
        {"40 Gb/sec (4X QDR)", true, 40, 40, 4, "QDR"},
        {"40 Gb/sec (4X FDR10)", false, 40, 40, 4, "FDR10"},
        {"10 Gb/sec (4X)", false, 10, 8, 4, NULL},
        {"100 Gb/sec", false, 100, 100, 0, NULL},
        {"100 Gb/sec (2X HDR) extra", false, 100, 100, 2, "HDR"},
        {"fast", false, 0, 0, 0, NULL},
        {"-5 Gb/sec (4X", false, 0, 0, 0, NULL},
        {"1e999 Gb/sec (99X NDRNDRNDR)", false, 0, 0, 0, NULL},
    };
    seen s = look_at("/");
    for (size_t i = 0; i < IM_COUNT_OF(rates); i++) {
        const im_rate r = im_rate_parse(s.arena, rates[i].text, rates[i].ethernet);
        if (r.gbps != rates[i].gbps || r.data_gbps != rates[i].data || r.width != rates[i].width || !r.speed != !rates[i].speed ||
            (r.speed && strcmp(r.speed, rates[i].speed) != 0))
            fail_msg("%s: %g, %g, %d, %s", rates[i].text, r.gbps, r.data_gbps, r.width, r.speed ? r.speed : "-");
    }
    int64_t v;
    assert_true(im_parse_number("4: ACTIVE", &v) && v == 4);
    assert_true(im_parse_number("0x11c", &v) && v == 0x11c);
    assert_true(im_parse_number("-1", &v) && v == -1);
    assert_true(im_parse_number("010", &v) && v == 10);
    assert_false(im_parse_number("", &v));
    assert_false(im_parse_number("0x", &v));
    assert_false(im_parse_number("12abc", &v));
    assert_true((int64_t)im_pci_rate(16, 16) == 31507692307);
    assert_true(im_pci_rate(0, 16) == 0 && im_pci_rate(8, 255) == 0);
    assert_true(s.m->nnets > 0); /* this machine: whatever it has, reading it works */
    done(&s);
}

static im_port_rates between(const char *name, bool hw, uint64_t was, uint64_t is, double seconds)
{
    im_counter before = {.name = name, .hw = hw, .known = true, .value = was}, after = {.name = name, .hw = hw, .known = true, .value = is};
    const im_rdma_port x = {.counter = &before, .ncounters = 1}, y = {.counter = &after, .ncounters = 1};
    im_port_rates r;
    im_port_rates_of(&x, &y, seconds, &r);
    return r;
}

/* Units of 4 bytes, counters that stand still at their greatest value, that wrap at 32 bits, that somebody cleared. */
static void test_rates(void **state)
{
    (void)state;
    im_port_rates r = between("port_xmit_data", false, 1000, 1000 + 12500000, 0.5);
    assert_true(r.tx_bits == 8e8 && r.rx_bits < 0 && !r.errors && !r.reset);
    r = between("port_rcv_data", false, 5, 4, 1);
    assert_true(r.rx_bits < 0 && r.reset); /* cleared: no rate, and none of 2^64 */
    r = between("port_xmit_data", false, 5, 6, 0);
    assert_true(r.tx_bits < 0);
    r = between("sent_pkts", true, 10, 30, 2);
    assert_true(r.tx_packets == 10 && r.tx_bits < 0);
    r = between("np_cnp_sent", true, UINT32_MAX - 9, 10, 1);
    assert_true(r.congestion == 20 && r.reset);
    r = between("out_of_buffer", true, 3, 8, 1);
    assert_true(r.errors == 5 && r.errors_standing == 8 && r.worst_by == 5);
    assert_string_equal(r.worst, "out_of_buffer");
    const im_counter pegged = {.name = "link_downed", .known = true, .value = 255}, below = {.name = "link_downed", .known = true, .value = 254};
    const im_counter soft = {.name = "link_downed", .known = true, .hw = true, .value = 255};
    assert_true(im_counter_is_pegged(&pegged) && !im_counter_is_pegged(&below) && !im_counter_is_pegged(&soft));
    assert_true(im_counter_is_error(im_counter_find("symbol_error")) && !im_counter_is_error(im_counter_find("port_xmit_wait")));
    assert_false(im_counter_is_error(im_counter_find("no_such_counter")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_infiniband), cmocka_unit_test(test_roce),    cmocka_unit_test(test_virtual), cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_empty),      cmocka_unit_test(test_hostile), cmocka_unit_test(test_parts),   cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
