/* fabric env on machines that are made here: InfiniBand, RoCE, both, a laptop, Grace. The values that guides repeat, their neighbours, other variables of
 * the same kinds, in several versions; and what is suggested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fabric/env.h"
#include "fabric/env_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- machines ------------------------------------------------------------------------------------------ */

#define V4(i, v, last)                                                                            \
    {                                                                                             \
        .index = (i), .raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = (last)}, .version = (v) \
    }
#define LOCAL(i, v)                                                 \
    {                                                               \
        .index = (i), .raw = {0xfe, 0x80, [15] = 7}, .version = (v) \
    }
#define GLOBAL6(i, v)                                            \
    {                                                            \
        .index = (i), .raw = {0xfd, 1, [15] = 7}, .version = (v) \
    }

static im_env_gid usual_gids[] = {LOCAL(0, 1), LOCAL(1, 2), V4(2, 1, 1), V4(3, 2, 1)};
static im_env_gid vf_gids[] = {LOCAL(0, 1), LOCAL(1, 2), V4(6, 1, 1), V4(7, 2, 1)};
static im_env_gid v6_gids[] = {LOCAL(0, 1), LOCAL(1, 2), GLOBAL6(2, 1), GLOBAL6(3, 2)};

#define PORT(name, l, rate, gids, n)                                                                                                   \
    {                                                                                                                                  \
        .device = (name), .port = 1, .link = (l), .active = 1, .gbps = (rate), .table = 256, .gid = (gids), .ngid = (n), .npkey = 128, \
        .traffic_class = -1, .trust = -1, .pfc = -1, .numa = 0                                                                         \
    }
#define ETH(name, gids) PORT(name, IM_ENV_LINK_ETH, 400, gids, 4)
#define IB(name) PORT(name, IM_ENV_LINK_IB, 400, NULL, 0)
#define NET(n, i, ...)                                                  \
    {                                                                   \
        .name = (n), .up = 1, .addressed = 1, .order = (i), __VA_ARGS__ \
    }

static im_env_net usual_nets[] = {NET("lo", 1, .loopback = true), NET("eth0", 2, .hardware = true, .route = true),
                                  NET("docker0", 3, .hardware = false)};
static im_env_net metal_nets[] = {NET("lo", 1, .loopback = true), NET("veth12", 2, .hardware = false),
                                  NET("ens3", 3, .hardware = true, .route = true), NET("ens30", 4, .hardware = true)};
static im_env_port ib_ports[] = {IB("mlx5_0"), IB("mlx5_1"), IB("mlx5_10")};
static im_env_port roce_ports[] = {ETH("mlx5_0", usual_gids), ETH("mlx5_1", usual_gids)};
static im_env_port vf_ports[] = {ETH("mlx5_0", usual_gids), ETH("mlx5_1", vf_gids)};
static im_env_port v6_ports[] = {ETH("mlx5_0", v6_gids)};
static im_env_port mixed_ports[] = {IB("mlx5_0"), IB("mlx5_1"), PORT("mlx5_2", IM_ENV_LINK_ETH, 100, usual_gids, 4)};
static im_env_port slow_ports[] = {IB("mlx5_0"), IB("mlx5_1"), PORT("mlx5_2", IM_ENV_LINK_IB, 100, NULL, 0)};
static im_env_gpu near_gpus[] = {{.address = "0000:18:00.0", .nearest = IM_ENV_PIX, .device = "mlx5_0"}};
static im_env_gpu far_gpus[] = {{.address = "0000:18:00.0", .nearest = IM_ENV_PHB, .device = "mlx5_0"}};

static const im_env_facts ib = {.root = "/ib", .port = ib_ports, .nport = 3, .net = usual_nets, .nnet = 3, .gpu = near_gpus, .ngpu = 1, .c2c = 0};
static const im_env_facts roce = {
    .root = "/roce", .port = roce_ports, .nport = 2, .net = metal_nets, .nnet = 4, .gpu = far_gpus, .ngpu = 1, .c2c = 0};
static const im_env_facts vf = {.root = "/vf", .port = vf_ports, .nport = 2, .net = usual_nets, .nnet = 3, .c2c = 0};
static const im_env_facts v6 = {.root = "/v6", .port = v6_ports, .nport = 1, .net = usual_nets, .nnet = 3, .c2c = 0};
static const im_env_facts mixed = {.root = "/mixed", .port = mixed_ports, .nport = 3, .net = usual_nets, .nnet = 3, .c2c = 0};
static const im_env_facts slow = {.root = "/slow", .port = slow_ports, .nport = 3, .net = usual_nets, .nnet = 3, .c2c = 0};
static const im_env_facts grace = {.root = "/grace", .port = ib_ports, .nport = 3, .net = usual_nets, .nnet = 3, .c2c = 1};
static const im_env_facts laptop = {.root = "/", .net = usual_nets, .nnet = 3, .c2c = 0};

/* ---- verdicts -------------------------------------------------------------------------------------------- */

typedef struct row {
    const im_env_facts *f;
    int nccl;
    const char *set;  /* "A=1 B=2" */
    const char *name; /* the one judged; NULL: findings of none */
    im_env_verdict verdict;
    const char *id; /* a finding that is there; with a leading !, one that is not */
} row;

static void judge(const row *x, bool here)
{
    im_context *ctx;
    im_arena *a;
    im_env_set s;
    im_env_lint_options o = {.nccl = x->nccl, .here = here};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_arena_create(ctx, &a), IM_OK);
    im_env_set_init(ctx, a, &s);
    char text[512];
    snprintf(text, sizeof text, "export %s\n", x->set);
    im_env_read_text(&s, "job.sh", IM_ENV_FORMAT_SHELL, IM_ENV_LAYER_PROCESS, text, strlen(text));
    im_env_lint(&s, x->f, &o);
    const im_env_item *item = x->name ? im_env_used(&s, x->name) : NULL;
    bool absent = x->id && *x->id == '!', seen = false;
    for (size_t i = 0; i < s.nfinding; i++)
        if (s.finding[i].item == item && x->id && !strcmp(s.finding[i].id, x->id + absent))
            seen = absent || s.finding[i].verdict == x->verdict;
    if (x->name && !item)
        fail_msg("%s: %s is not read", x->set, x->name);
    if (item && item->verdict != x->verdict) {
        for (size_t i = 0; i < s.nfinding; i++)
            print_message("  %s %s: %s\n", im_env_verdict_names[s.finding[i].verdict], s.finding[i].id, s.finding[i].text);
        fail_msg("%s on %s, NCCL %d: %s is %s, not %s", x->set, x->f ? x->f->root : "nothing", x->nccl, x->name, im_env_verdict_names[item->verdict],
                 im_env_verdict_names[x->verdict]);
    }
    if (x->id && seen == absent)
        fail_msg("%s on %s, NCCL %d: %s%s", x->set, x->f ? x->f->root : "nothing", x->nccl,
                 absent ? "told: " : "not told, or not so: ", x->id + absent);
    im_arena_destroy(a);
    im_context_destroy(ctx);
}

static void judge_all(const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        judge(&rows[i], false);
}

static void gid_index(void **state)
{
    (void)state;
#define GID "NCCL_IB_GID_INDEX"
    static const row rows[] = {
        {&ib, 22105, GID "=3", GID, IM_ENV_NOTE, "no-effect-on-infiniband"},
        {&ib, 21800, GID "=0", GID, IM_ENV_NOTE, "default"},
        {&roce, 22105, GID "=3", GID, IM_ENV_WARN, "gid-pinned"},
        {&roce, 0, GID "=3", GID, IM_ENV_WARN, "gid-pinned"},
        {&roce, 21800, GID "=3", GID, IM_ENV_OK, "gid-right"},
        {&roce, 21800, GID "=2", GID, IM_ENV_FAIL, "gid-wrong"}, /* v1 */
        {&roce, 22105, GID "=1", GID, IM_ENV_FAIL, "gid-wrong"}, /* link-local */
        {&roce, 22105, GID "=5", GID, IM_ENV_FAIL, "gid-wrong"}, /* empty */
        {&roce, 22105, GID "=03", GID, IM_ENV_WARN, "!int-octal"},
        {&roce, 21800, GID "=0", GID, IM_ENV_FAIL, "gid-wrong"}, /* the default of that version is wrong here */
        {&roce, 22105, GID "=-1", GID, IM_ENV_NOTE, "default"},
        {&roce, 21800, GID "=-1", GID, IM_ENV_FAIL, "gid-wrong"},
        {&vf, 21800, GID "=3", GID, IM_ENV_FAIL, "gid-differs"},
        {&laptop, 0, GID "=3", GID, IM_ENV_WARN, "gid-pinned"},
        {&laptop, 21800, GID "=3", GID, IM_ENV_UNKNOWN, "machine-unknown"},
        {&roce, 22105, "NCCL_IB_GID_INDEX=3 NCCL_IB_ADDR_RANGE=10.0.0.0/8", "NCCL_IB_ADDR_RANGE", IM_ENV_WARN, "gid-choice-unused"},
        {&roce, 22105, "NCCL_IB_ADDR_RANGE=10.0.0.0", "NCCL_IB_ADDR_RANGE", IM_ENV_FAIL, "range-no-slash"},
        {&roce, 22105, "NCCL_IB_ADDR_FAMILY=af_inet6", "NCCL_IB_ADDR_FAMILY", IM_ENV_FAIL, "choice"},
        {&roce, 21800, "NCCL_IB_ADDR_FAMILY=AF_INET6", "NCCL_IB_ADDR_FAMILY", IM_ENV_WARN, "version-new"},
        {&roce, 22105, "UCX_IB_GID_INDEX=3", "UCX_IB_GID_INDEX", IM_ENV_WARN, "gid-pinned"},
        {&roce, 22105, "UCX_IB_GID_INDEX=auto", "UCX_IB_GID_INDEX", IM_ENV_OK, "!gid-pinned"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

static void gid_choice(void **state)
{
    (void)state;
    assert_int_equal(im_env_nccl_gid(&roce_ports[0], false, 2), 3);
    assert_int_equal(im_env_nccl_gid(&vf_ports[1], false, 2), 7);
    assert_int_equal(im_env_nccl_gid(&v6_ports[0], false, 2), 0); /* IPv6 alone: it stays at a link-local v1 GID */
    assert_int_equal(im_env_nccl_gid(&v6_ports[0], true, 2), 3);
    im_env_gid two[] = {LOCAL(0, 1), LOCAL(1, 2), V4(2, 1, 1), V4(3, 2, 1), V4(4, 1, 2), V4(5, 2, 2)};
    im_env_port p = {.gid = two, .ngid = 6, .table = 8};
    assert_int_equal(im_env_nccl_gid(&p, false, 2), 3); /* the first v2 stays */
    assert_int_equal(im_env_nccl_gid(&p, false, 1), 2);
}

static void waiting(void **state)
{
    (void)state;
#define TO "NCCL_IB_TIMEOUT"
    static const row rows[] = {
        {&ib, 22301, TO "=22", TO, IM_ENV_NOTE, "timeout"},
        {&ib, 22301, TO "=20", TO, IM_ENV_NOTE, "default"},
        {&ib, 22105, TO "=18", TO, IM_ENV_NOTE, "default"},
        {&ib, 22301, TO "=18", TO, IM_ENV_NOTE, "timeout-short"},
        {&ib, 22301, TO "=14", TO, IM_ENV_WARN, "timeout-short"},
        {&ib, 22301, TO "=25", TO, IM_ENV_WARN, "timeout-watchdog"},
        {&ib, 22301, TO "=24", TO, IM_ENV_NOTE, "timeout"},
        {&ib, 22301, TO "=32", TO, IM_ENV_FAIL, "int-range"},
        {&ib, 22301, TO "=0", TO, IM_ENV_FAIL, "timeout-endless"},
        {&ib, 22301, TO "=0x16", TO, IM_ENV_NOTE, "int-hex"},
        {&ib, 22301, TO "=022", TO, IM_ENV_FAIL, "int-octal"},
        {&ib, 22301, TO "=22s", TO, IM_ENV_FAIL, "int-trailing"},
        {&ib, 22301, TO "=99999999999999999999", TO, IM_ENV_FAIL, "int-overflow"},
        {&ib, 22301, TO "=", TO, IM_ENV_NOTE, "empty"},
        {&ib, 22301, "NCCL_IB_TIMEOUT=25 NCCL_IB_RETRY_CNT=1", TO, IM_ENV_WARN, "timeout-long"},
        {&ib, 22301, "NCCL_IB_RETRY_CNT=12", "NCCL_IB_RETRY_CNT", IM_ENV_FAIL, "retry-bits"},
        {&ib, 22301, "NCCL_IB_RETRY_CNT=7", "NCCL_IB_RETRY_CNT", IM_ENV_NOTE, "default"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

static void hcas(void **state)
{
    (void)state;
#define HCA "NCCL_IB_HCA"
    static const row rows[] = {
        {&ib, 0, HCA "=mlx5", HCA, IM_ENV_NOTE, "hca-all"},
        {&ib, 0, HCA "==mlx5_0,mlx5_1,mlx5_10", HCA, IM_ENV_NOTE, "!hca-no-exact"},
        {&ib, 0, HCA "=mlx5_1", HCA, IM_ENV_WARN, "hca-prefix"},
        {&ib, 0, HCA "==mlx5_1", HCA, IM_ENV_OK, "!hca-prefix"},
        {&ib, 0, HCA "=mlx5_0", HCA, IM_ENV_NOTE, "hca-no-exact"},
        {&ib, 0, HCA "=mthca0", HCA, IM_ENV_FAIL, "hca-nothing-left"},
        {&ib, 0, HCA "==mlx5_0,mlx5_7", HCA, IM_ENV_FAIL, "hca-absent"},
        {&ib, 0, HCA "=^mlx5", HCA, IM_ENV_FAIL, "hca-nothing-left"},
        {&ib, 0, HCA "='=mlx5_0, mlx5_1'", HCA, IM_ENV_FAIL, "list-blanks"},
        {&ib, 0, HCA "='=^mlx5_0'", HCA, IM_ENV_FAIL, "list-turned"},
        {&mixed, 0, HCA "=mlx5", HCA, IM_ENV_FAIL, "hca-mixed-links"},
        {&mixed, 0, HCA "=^mlx5_2", HCA, IM_ENV_OK, "!hca-mixed-links"},
        {&mixed, 0, "NCCL_DEBUG=WARN", NULL, IM_ENV_WARN, "hca-mixed-links"},
        {&slow, 0, HCA "=mlx5", HCA, IM_ENV_WARN, "hca-slow-port"},
        {&laptop, 0, HCA "=mlx5", HCA, IM_ENV_UNKNOWN, "hca-no-exact"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows) - 1; i++)
        judge(&rows[i], false);
    row last = rows[IM_COUNT_OF(rows) - 1];
    last.id = "machine-unknown";
    judge(&last, false);
}

static void interfaces(void **state)
{
    (void)state;
#define IFNAME "NCCL_SOCKET_IFNAME"
    static const row rows[] = {
        {&ib, 0, IFNAME "=eth0", IFNAME, IM_ENV_NOTE, "interface-no-exact"},
        {&ib, 0, IFNAME "==eth0", IFNAME, IM_ENV_OK, "interface"},
        {&roce, 0, IFNAME "=eth0", IFNAME, IM_ENV_FAIL, "interface-absent"},
        {&roce, 0, IFNAME "=ens3", IFNAME, IM_ENV_WARN, "interface-prefix"},
        {&roce, 0, IFNAME "==ens3", IFNAME, IM_ENV_OK, "interface"},
        {&ib, 0, IFNAME "=^docker0", IFNAME, IM_ENV_FAIL, "interface-poor"}, /* lo is left, and first */
        {&ib, 0, IFNAME "=^lo,docker", IFNAME, IM_ENV_OK, "interface"},
        {&ib, 0, IFNAME "=lo", IFNAME, IM_ENV_FAIL, "interface-poor"},
        {&ib, 0, IFNAME "=e", IFNAME, IM_ENV_WARN, "interface-short"},
        {&ib, 0, IFNAME "=eno1,eth0", IFNAME, IM_ENV_NOTE, "interface-no-exact"},
        {&roce, 0, "NCCL_DEBUG=WARN", NULL, IM_ENV_WARN, "interface-poor"}, /* by itself it takes veth12 */
        {&laptop, 0, IFNAME "=ens9", IFNAME, IM_ENV_UNKNOWN, "interface-absent"},
        {NULL, 0, IFNAME "=eth0", IFNAME, IM_ENV_UNKNOWN, "machine-unknown"},
        {&roce, 0, "OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_btl_tcp_if_include", IM_ENV_FAIL, "interface-absent"},
        {&roce, 0, "OMPI_MCA_btl_tcp_if_include=10.0.0.0/8,ens3", "OMPI_MCA_btl_tcp_if_include", IM_ENV_OK, "!interface-absent"},
        {&roce, 0, "OMPI_MCA_btl_tcp_if_include=ens3 OMPI_MCA_btl_tcp_if_exclude=lo", "OMPI_MCA_btl_tcp_if_include", IM_ENV_FAIL,
         "mpi-include-exclude"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
    row here = {&laptop, 0, IFNAME "=ens9", IFNAME, IM_ENV_FAIL, "interface-absent"};
    judge(&here, true);
}

static void classes(void **state)
{
    (void)state;
#define TC "NCCL_IB_TC"
    im_env_port qos_ports[] = {ETH("mlx5_0", usual_gids), ETH("mlx5_1", usual_gids)};
    qos_ports[0].pfc = qos_ports[1].pfc = 1 << 3;
    qos_ports[0].trust = qos_ports[1].trust = 1;
    im_env_facts qos = roce;
    qos.port = qos_ports;
    im_env_port own_ports[] = {ETH("mlx5_0", usual_gids)};
    own_ports[0].traffic_class = 96;
    im_env_facts own = roce;
    own.port = own_ports;
    own.nport = 1;
    im_env_port pcp_ports[] = {ETH("mlx5_0", usual_gids)};
    pcp_ports[0].trust = 0;
    pcp_ports[0].pfc = 1 << 3;
    im_env_facts pcp = own;
    pcp.port = pcp_ports;
    const row rows[] = {
        {&ib, 0, TC "=41", TC, IM_ENV_NOTE, "no-effect-on-infiniband"},
        {&roce, 0, TC "=41", TC, IM_ENV_WARN, "tc-ecn"},
        {&roce, 0, TC "=40", TC, IM_ENV_WARN, "tc-fabric-unknown"},
        {&roce, 0, TC "=106", TC, IM_ENV_UNKNOWN, "tc-fabric-unknown"},
        {&roce, 0, TC "=107", TC, IM_ENV_WARN, "tc-ecn"},
        {&roce, 0, TC "=256", TC, IM_ENV_FAIL, "int-range"},
        {&roce, 0, TC "=0x6a", TC, IM_ENV_UNKNOWN, "tc-fabric-unknown"},
        {&qos, 0, TC "=106", TC, IM_ENV_NOTE, "!tc-unprotected"},
        {&qos, 0, TC "=104", TC, IM_ENV_NOTE, "!tc-ucx-differs"},
        {&qos, 0, TC "=41", TC, IM_ENV_FAIL, "tc-unprotected"},
        {&qos, 0, TC "=162", TC, IM_ENV_FAIL, "tc-unprotected"},
        {&own, 0, TC "=106", TC, IM_ENV_FAIL, "tc-overridden"},
        {&own, 0, TC "=96", TC, IM_ENV_UNKNOWN, "!tc-overridden"},
        {&pcp, 0, TC "=106", TC, IM_ENV_FAIL, "tc-trust-pcp"},
        {&qos, 22205, TC "=106", TC, IM_ENV_WARN, "tc-fifo"},
        {&qos, 22403, TC "=106", TC, IM_ENV_NOTE, "!tc-fifo"},
        {&qos, 0, TC "=106 UCX_IB_TRAFFIC_CLASS=96", TC, IM_ENV_WARN, "tc-ucx-differs"},
        {&ib, 22105, "NCCL_IB_SL=0", "NCCL_IB_SL", IM_ENV_NOTE, "default"},
        {&ib, 0, "NCCL_IB_SL=0", "NCCL_IB_SL", IM_ENV_NOTE, "default"},
        {&ib, 0, "NCCL_IB_SL=1", "NCCL_IB_SL", IM_ENV_UNKNOWN, "sl-fabric-unknown"},
        {&ib, 0, "NCCL_IB_SL=16", "NCCL_IB_SL", IM_ENV_FAIL, "int-range"},
        {&roce, 0, "NCCL_IB_SL=3", "NCCL_IB_SL", IM_ENV_UNKNOWN, "sl-roce"},
        {&qos, 0, "NCCL_IB_SL=3", "NCCL_IB_SL", IM_ENV_NOTE, "sl-roce"},
        {&roce, 0, "NCCL_IB_PKEY=0x8001", "NCCL_IB_PKEY", IM_ENV_FAIL, "pkey-index"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

static void queue_pairs(void **state)
{
    (void)state;
#define QPS "NCCL_IB_QPS_PER_CONNECTION"
#define SPLIT "NCCL_IB_SPLIT_DATA_ON_QPS"
    static const row rows[] = {
        {&ib, 0, QPS "=4", QPS, IM_ENV_WARN, "qps-infiniband"},
        {&roce, 0, QPS "=4", QPS, IM_ENV_NOTE, "qps"},
        {&roce, 0, QPS "=1", QPS, IM_ENV_NOTE, "default"},
        {&roce, 0, QPS "=0", QPS, IM_ENV_FAIL, "int-range"},
        {&roce, 0, QPS "=129", QPS, IM_ENV_FAIL, "int-range"},
        {&roce, 0, QPS "=64", QPS, IM_ENV_WARN, "qps-many"},
        {&roce, 20900, QPS "=4", QPS, IM_ENV_WARN, "version-new"},
        {&roce, 0, SPLIT "=0", SPLIT, IM_ENV_NOTE, "default"},
        {&roce, 21805, SPLIT "=0", SPLIT, IM_ENV_NOTE, "!default"},
        {&roce, 21805, SPLIT "=1", SPLIT, IM_ENV_NOTE, "default"},
        {&roce, 22105, SPLIT "=1", SPLIT, IM_ENV_NOTE, "split-one-qp"},
        {&roce, 22105, SPLIT "=1 " QPS "=4", SPLIT, IM_ENV_WARN, "split"},
        {&roce, 0, SPLIT "=2 " QPS "=4", SPLIT, IM_ENV_WARN, "switch-number"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

static void distances(void **state)
{
    (void)state;
#define GDR "NCCL_NET_GDR_LEVEL"
    static const row rows[] = {
        {&ib, 0, GDR "=2", GDR, IM_ENV_NOTE, "level-number"},
        {&ib, 0, GDR "=PXB", GDR, IM_ENV_NOTE, "gdr-default"},
        {&ib, 0, GDR "=pxb", GDR, IM_ENV_FAIL, "level"},
        {&ib, 0, GDR "='PXB '", GDR, IM_ENV_FAIL, "level"},
        {&ib, 0, GDR "=0", GDR, IM_ENV_WARN, "gdr-off"},
        {&ib, 0, GDR "=5", GDR, IM_ENV_WARN, "gdr-far"},
        {&ib, 0, GDR "=PHB", GDR, IM_ENV_NOTE, "gdr-no-need"},
        {&roce, 0, GDR "=2", GDR, IM_ENV_WARN, "gdr-too-near"},
        {&roce, 0, GDR "=PHB", GDR, IM_ENV_NOTE, "!gdr-no-need"},
        {&grace, 22907, GDR "=2", GDR, IM_ENV_FAIL, "gdr-c2c"},
        {&grace, 22809, GDR "=2", GDR, IM_ENV_NOTE, "gdr-default"},
        {&grace, 0, GDR "=PXB", GDR, IM_ENV_FAIL, "gdr-c2c"},
        {&grace, 23007, GDR "=SYS", GDR, IM_ENV_WARN, "!gdr-c2c"},
        {&ib, 0, "NCCL_P2P_LEVEL=nvl", "NCCL_P2P_LEVEL", IM_ENV_FAIL, "level"},
        {&ib, 0, "NCCL_P2P_LEVEL=NVL", "NCCL_P2P_LEVEL", IM_ENV_NOTE, "!level"},
        {&ib, 0, "NCCL_P2P_DISABLE=1", "NCCL_P2P_DISABLE", IM_ENV_WARN, "p2p-off"},
        {&ib, 0, "NCCL_P2P_DISABLE=2", "NCCL_P2P_DISABLE", IM_ENV_FAIL, "int-range"},
        {&ib, 0, "NCCL_SHM_DISABLE=1", "NCCL_SHM_DISABLE", IM_ENV_WARN, "shm-off"},
        {&ib, 0, "NCCL_P2P_DISABLE=0", "NCCL_P2P_DISABLE", IM_ENV_NOTE, "default"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

static void the_rest(void **state)
{
    (void)state;
    static const row rows[] = {
        {&ib, 0, "NCCL_DEBUG=WARN", "NCCL_DEBUG", IM_ENV_NOTE, "debug-quiet"},
        {&ib, 0, "NCCL_DEBUG=warn", "NCCL_DEBUG", IM_ENV_NOTE, "!choice"},
        {&ib, 0, "NCCL_DEBUG=WARNING", "NCCL_DEBUG", IM_ENV_FAIL, "choice"},
        {&ib, 0, "NCCL_DEBUG=INFO", "NCCL_DEBUG", IM_ENV_NOTE, "debug-no-net"},
        {&ib, 0, "NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET", "NCCL_DEBUG_SUBSYS", IM_ENV_NOTE, "debug-unused"},
        {&ib, 0, "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NETWORK", "NCCL_DEBUG_SUBSYS", IM_ENV_WARN, "list-choice"},
        {&ib, 0, "NCCL_DEBUG_FILE=/tmp/a.%h.log", "NCCL_DEBUG_FILE", IM_ENV_WARN, "debug-file-shared"},
        {&ib, 0, "NCCL_DEBUG_FILE=/tmp/a.%h.%p.log", "NCCL_DEBUG_FILE", IM_ENV_OK, "!debug-file-shared"},
        {&ib, 0, "NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE", IM_ENV_FAIL, "ib-disabled"},
        {&ib, 0, "NCCL_IB_DISABLE=0", "NCCL_IB_DISABLE", IM_ENV_NOTE, "default"},
        {&ib, 0, "NCCL_IB_DISABLE=true", "NCCL_IB_DISABLE", IM_ENV_FAIL, "int-word"},
        {&laptop, 0, "NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE", IM_ENV_WARN, "ib-disabled"},
        {&ib, 0, "NCCL_IB_DISABLE=1 NCCL_NET=IB", "NCCL_IB_DISABLE", IM_ENV_FAIL, "net-conflict"},
        {&ib, 0, "NCCL_NET=IB", "NCCL_NET", IM_ENV_OK, "net-guard"},
        {&ib, 0, "NCCL_NET=socket", "NCCL_NET", IM_ENV_FAIL, "net-socket"},
        {&ib, 0, "NCCL_DEBUG=WARN", NULL, IM_ENV_NOTE, "no-guard"},
        {&ib, 0, "NCCL_NET=IB", NULL, IM_ENV_NOTE, "!no-guard"},
        {&ib, 0, "NCCL_BUFFSIZE=4M", "NCCL_BUFFSIZE", IM_ENV_FAIL, "int-trailing"},
        {&ib, 0, "NCCL_BUFFSIZE=8388608", "NCCL_BUFFSIZE", IM_ENV_NOTE, "experiment"},
        {&ib, 0, "NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "NCCL_SOCKET_NTHREADS", IM_ENV_FAIL, "sockets-many"},
        {&ib, 0, "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4", "NCCL_SOCKET_NTHREADS", IM_ENV_OK, "!sockets-many"},
        {&ib, 22403, "NCCL_ALGO=Ring,foo", "NCCL_ALGO", IM_ENV_FAIL, "list-choice"},
        {&ib, 22304, "NCCL_ALGO=Ring,foo", "NCCL_ALGO", IM_ENV_WARN, "list-choice"},
        {&ib, 22403, "NCCL_ALGO='allreduce:tree,ring;broadcast:ring'", "NCCL_ALGO", IM_ENV_NOTE, "!list-choice"},
        {&ib, 22304, "NCCL_ALGO='allreduce:tree'", "NCCL_ALGO", IM_ENV_FAIL, "version-syntax"},
        {&ib, 0, "NCCL_PROTO=LL128", "NCCL_PROTO", IM_ENV_WARN, "proto-ll128"},
        {&ib, 0, "NCCL_PROTO=^LL128", "NCCL_PROTO", IM_ENV_NOTE, "!proto-ll128"},
        {&ib, 0, "NCCL_IB_CUDA_SUPPORT=1", "NCCL_IB_CUDA_SUPPORT", IM_ENV_WARN, "name-obsolete"},
        {&ib, 22304, "NCCL_WORK_FIFO_DEPTH=65536", "NCCL_WORK_FIFO_DEPTH", IM_ENV_WARN, "name-obsolete"},
        {&ib, 21805, "NCCL_WORK_FIFO_DEPTH=1024", "NCCL_WORK_FIFO_DEPTH", IM_ENV_NOTE, "name-obsolete"},
        {&ib, 0, "UCX_IB_TRAFFIC_CLASS=106", "UCX_IB_TRAFFIC_CLASS", IM_ENV_NOTE, "no-effect-on-infiniband"},
        {&roce, 0, "UCX_IB_TRAFFIC_CLASS=41", "UCX_IB_TRAFFIC_CLASS", IM_ENV_WARN, "tc-ecn"},
        {&roce, 0, "UCX_IB_TRAFFIC_CLASS=auto", "UCX_IB_TRAFFIC_CLASS", IM_ENV_OK, "!tc"},
        {&ib, 0, "UCX_IB_SL=2", "UCX_IB_SL", IM_ENV_UNKNOWN, "sl-fabric-unknown"},
        {&ib, 0, "NCCL_IB_HCA==mlx5_0 UCX_NET_DEVICES=mlx5_1:1", "UCX_NET_DEVICES", IM_ENV_NOTE, "lists-differ"},
        {&ib, 0, "NCCL_IB_HCA==mlx5_0 UCX_NET_DEVICES=mlx5_0:1", "UCX_NET_DEVICES", IM_ENV_OK, "!lists-differ"},
        {&roce, 0, "GLOO_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME", IM_ENV_FAIL, "interface-absent"},
        {&roce, 0, "GLOO_SOCKET_IFNAME=ens3", "GLOO_SOCKET_IFNAME", IM_ENV_OK, "!interface-absent"},
        {&ib, 0, "NCCL_ASYNC_ERROR_HANDLING=1", "NCCL_ASYNC_ERROR_HANDLING", IM_ENV_WARN, "name-obsolete"},
        {&ib, 0, "NCCL_IB_QPS_PER_CONECTION=4", "NCCL_IB_QPS_PER_CONECTION", IM_ENV_FAIL, "name-misspelt"},
        {&ib, 0, "NCLL_DEBUG=INFO", "NCLL_DEBUG", IM_ENV_FAIL, "name-misspelt"},
        {&ib, 0, "NCCL_COFFEE_MACHINE=1", "NCCL_COFFEE_MACHINE", IM_ENV_WARN, "name-unknown"},
        {&ib, 0, "NCCL_FASTRAK_USE_SNAP=1", "NCCL_FASTRAK_USE_SNAP", IM_ENV_UNKNOWN, "name-unknown"},
        {&ib, 20400, "NCCL_IB_DISABLE=0", "NCCL_IB_DISABLE", IM_ENV_NOTE, "!version-new"},
        {&ib, 0, "NCCL_CROSS_NIC=3", "NCCL_CROSS_NIC", IM_ENV_FAIL, "int-range"},
        {&ib, 0, "NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=16", "NCCL_MIN_CTAS", IM_ENV_FAIL, "min-max"},
        {&ib, 0, "NCCL_NTHREADS=100", "NCCL_NTHREADS", IM_ENV_FAIL, "int-choice"},
        {&ib, 0, "UCX_TLS=tcp,self", "UCX_TLS", IM_ENV_FAIL, "ucx-no-rdma"},
        {&ib, 0, "UCX_TLS=^rc,ud,dc", "UCX_TLS", IM_ENV_FAIL, "ucx-no-rdma"},
        {&ib, 0, "UCX_TLS=rc,sm,self", "UCX_TLS", IM_ENV_WARN, "ucx-no-gpu"},
        {&ib, 0, "UCX_TLS=rc,sm,self,cuda", "UCX_TLS", IM_ENV_OK, "!ucx-no-gpu"},
        {&ib, 0, "UCX_TLS=rcx,sm,self,cuda,rc", "UCX_TLS", IM_ENV_WARN, "ucx-transport"},
        {&ib, 0, "UCX_NET_DEVICES=mlx5_0", "UCX_NET_DEVICES", IM_ENV_FAIL, "ucx-no-port"},
        {&ib, 0, "UCX_NET_DEVICES=mlx5_0:1", "UCX_NET_DEVICES", IM_ENV_OK, "!ucx-no-port"},
        {&ib, 0, "UCX_NET_DEVICES=mlx5_3:1", "UCX_NET_DEVICES", IM_ENV_FAIL, "ucx-device-absent"},
        {&ib, 0, "UCX_NET_DEVICES=eth0", "UCX_NET_DEVICES", IM_ENV_FAIL, "ucx-tcp-devices"},
        {&ib, 0, "UCX_TLS=rc,sm,self,cuda UCX_NET_DEVICES=eth0", "UCX_NET_DEVICES", IM_ENV_FAIL, "ucx-conflict"},
        {&ib, 0, "UCX_RC_RETRY_COUNT=9", "UCX_RC_RETRY_COUNT", IM_ENV_FAIL, "number-range"},
        {&ib, 0, "UCX_IB_AR_ENABLE=maybe", "UCX_IB_AR_ENABLE", IM_ENV_FAIL, "choice"},
        {&ib, 0, "UCX_MIN_RNDV_CHUNK_SIZE=16k", "UCX_MIN_RNDV_CHUNK_SIZE", IM_ENV_OK, "!size"},
        {&ib, 0, "OMPI_MCA_pml=ob1", "OMPI_MCA_pml", IM_ENV_FAIL, "mpi-no-rdma"},
        {&ib, 0, "OMPI_MCA_pml=^ucx", "OMPI_MCA_pml", IM_ENV_FAIL, "mpi-no-rdma"},
        {&ib, 0, "OMPI_MCA_pml=ucx", "OMPI_MCA_pml", IM_ENV_OK, "!mpi-no-rdma"},
        {&ib, 0, "OMPI_MCA_btl=tcp", "OMPI_MCA_btl", IM_ENV_FAIL, "mpi-no-self"},
        {&ib, 0, "OMPI_MCA_btl=tcp,self", "OMPI_MCA_btl", IM_ENV_WARN, "mpi-btl-tcp"},
        {&ib, 0, "OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ucx", "OMPI_MCA_btl", IM_ENV_OK, "!mpi-btl-tcp"},
        {&ib, 0, "OMPI_MCA_btl=^openib", "OMPI_MCA_btl", IM_ENV_OK, "!mpi-no-self"},
        {&ib, 0, "FI_PROVIDER=tcp", "FI_PROVIDER", IM_ENV_FAIL, "ofi-no-rdma"},
    };
    judge_all(rows, IM_COUNT_OF(rows));
}

/* ---- suggestions -------------------------------------------------------------------------------------------- */

/* The set as "A=1 B=2", what is to be considered behind a |. */
static void suggested(const im_env_facts *f, int nccl, char *out, size_t n)
{
    im_context *ctx;
    im_arena *a;
    im_env_advices l;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_arena_create(ctx, &a), IM_OK);
    assert_int_equal(im_env_suggest(ctx, a, f, NULL, nccl, &l), IM_OK);
    *out = '\0';
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < l.n; i++)
            if (l.item[i].name && l.item[i].consider == (pass == 1))
                snprintf(out + strlen(out), n - strlen(out), "%s%s=%s", *out ? " " : "", l.item[i].name, l.item[i].value);
        snprintf(out + strlen(out), n - strlen(out), "%s", pass ? "" : " |");
    }
    for (size_t i = 0; i < l.n; i++)
        assert_true(l.item[i].reason && *l.item[i].reason);
    for (int form = 0; form < IM_ENV_FORMS; form++) { /* the forms hold the set, and read back to it */
        im_env_set s;
        im_str text = {0};
        static const im_env_format as[] = {IM_ENV_FORMAT_SHELL, IM_ENV_FORMAT_CONF, IM_ENV_FORMAT_SHELL, IM_ENV_FORMAT_SHELL, IM_ENV_FORMAT_YAML};
        im_env_write(&l, (im_env_form)form, &text);
        im_env_set_init(ctx, a, &s);
        im_env_read_text(&s, "x", as[form], IM_ENV_LAYER_PROCESS, im_str_text(&text), text.len);
        im_env_resolve(&s);
        for (size_t i = 0; i < l.n; i++) {
            if (!l.item[i].name || (form == IM_ENV_FORM_CONF && strncmp(l.item[i].name, "NCCL_", 5) != 0))
                continue;
            const im_env_item *x = im_env_used(&s, l.item[i].name);
            assert_int_equal(x != NULL, !l.item[i].consider);
            if (x)
                assert_string_equal(x->value, l.item[i].value);
        }
        im_str_free(&text);
    }
    im_arena_destroy(a);
    im_context_destroy(ctx);
}

static void suggestions(void **state)
{
    (void)state;
    char got[1024];
    suggested(&ib, 22105, got, sizeof got);
    assert_string_equal(got, "NCCL_NET=IB OMPI_MCA_pml=ucx | NCCL_IB_TIMEOUT=20 NCCL_DEBUG=WARN");
    suggested(&ib, 23007, got, sizeof got);
    assert_string_equal(got, "NCCL_NET=IB OMPI_MCA_pml=ucx | NCCL_DEBUG=WARN");
    suggested(&mixed, 23007, got, sizeof got);
    assert_string_equal(got, "NCCL_NET=IB NCCL_IB_HCA==mlx5_0,mlx5_1 UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1 OMPI_MCA_pml=ucx | NCCL_DEBUG=WARN");
    suggested(&roce, 23007, got, sizeof got);
    assert_string_equal(got,
                        "NCCL_NET=IB OMPI_MCA_pml=ucx NCCL_SOCKET_IFNAME==ens3 NCCL_NET_GDR_LEVEL=PHB | NCCL_IB_TC=106 NCCL_IB_QPS_PER_CONNECTION=4 "
                        "OMPI_MCA_btl_tcp_if_include=ens3 NCCL_DEBUG=WARN");
    suggested(&roce, 21805, got, sizeof got);
    assert_non_null(strstr(got, "NCCL_IB_GID_INDEX=3"));
    suggested(&vf, 21805, got, sizeof got);
    assert_null(strstr(got, "NCCL_IB_GID_INDEX"));
    suggested(&v6, 23007, got, sizeof got);
    assert_non_null(strstr(got, "NCCL_IB_ADDR_FAMILY=AF_INET6"));
    suggested(&laptop, 0, got, sizeof got);
    assert_string_equal(got, " | NCCL_DEBUG=WARN");
    im_env_port qos[] = {ETH("mlx5_0", usual_gids)};
    im_env_facts f = vf;
    qos[0].pfc = 1 << 5;
    qos[0].trust = 1;
    f.port = qos;
    f.nport = 1;
    suggested(&f, 22205, got, sizeof got);
    assert_non_null(strstr(got, "NCCL_IB_TC=170 NCCL_IB_FIFO_TC=170 UCX_IB_TRAFFIC_CLASS=170"));
    qos[0].trust = 0;
    suggested(&f, 22205, got, sizeof got);
    assert_non_null(strstr(got, "NCCL_IB_SL=5 UCX_IB_SL=5"));
    assert_null(strstr(got, "NCCL_IB_TC"));
}

static void qos_text(void **state)
{
    (void)state;
    int pfc, trust;
    im_env_qos_parse("DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n\nPFC configuration:\n\tpriority    0   1   2   3   "
                     "4   5   6   7\n"
                     "\tenabled     0   0   0   1   0   0   0   0   \n\tbuffer      0\n",
                     &pfc, &trust);
    assert_int_equal(pfc, 8);
    assert_int_equal(trust, 1);
    im_env_qos_parse("PFC configuration:\n\tenabled     0   1", &pfc, &trust);
    assert_int_equal(pfc, -1);
    assert_int_equal(trust, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gid_index),  cmocka_unit_test(gid_choice),  cmocka_unit_test(waiting),     cmocka_unit_test(hcas),
        cmocka_unit_test(interfaces), cmocka_unit_test(classes),     cmocka_unit_test(queue_pairs), cmocka_unit_test(distances),
        cmocka_unit_test(the_rest),   cmocka_unit_test(suggestions), cmocka_unit_test(qos_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
