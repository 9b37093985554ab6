/* Costs by hand: products, bytes, collectives on the links that they cross, NCCL's tables. */
#include "plan/cost.h"
#include "world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-9 * fabs(b))

/* 64 nodes of 8; leaves of 16 nodes, over-subscribed 4:1 */
static const char rack[] =
    "name: rack\nnodes: 64\ndevices_per_node: 8\n"
    "device: {name: d, peak: {fp32: 10 TFLOP/s, bf16: 100 TFLOP/s}, matmul: {bf16: [[1, 0.5]]}, memory: 80 GB, memory_rate: 1 TB/s,\n"
    "  memory_curve: [[1 B, 0.5]]}\n"
    "domain: {devices: 8, rate: 200 GB/s, latency: 2 us}\n"
    "network: {kind: fat-tree, nics: 8, link: 100 Gb/s, latency: 5 us, hop: 1 us, levels: [{name: leaf, nodes: 16, oversubscription: 4},"
    " {name: spine, nodes: 64, oversubscription: 1}]}\n";

static im_cluster *cluster_of(im_context *ctx, const char *text)
{
    im_cluster *c = NULL;
    if (im_cluster_parse(ctx, "test.yaml", text, strlen(text), &c) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    return c;
}

static int open_world(void **state)
{
    return make_world(state, rack, "gpt3-6.7b");
}

static im_cost *cost_of(world *w, const im_cluster *c, int tp, int dp, int pp, const int *device)
{
    im_plan p;
    im_cost *k = NULL;
    im_cost_options o = {.device = device};
    im_plan_defaults(&p, w->m);
    p.mesh = (im_mesh){tp, 1, dp, pp};
    p.precision = IM_BF16;
    if (im_cost_open(w->ctx, c, &p, &o, &k) != IM_OK)
        fail_msg("%s", im_error_text(w->ctx));
    return k;
}

static void test_device(void **state)
{
    world *w = *state;
    const im_cluster_device *d = &w->c->device;
    NEAR(im_cost_product(d, IM_NUMBER_BF16, 1, 1000, 1000, 1000, 0), 2e9 / 50e12);
    NEAR(im_cost_product(d, IM_NUMBER_BF16, 1, 1000, 1000, 1000, 1e9), 1e9 / 0.5e12); /* the memory is slower */
    NEAR(im_cost_bytes(d, 1e6), 2e-6);
    im_cluster_device tiles = *d;
    tiles.tile_m = tiles.tile_n = 100;
    tiles.units = 64;
    NEAR(im_cost_product(&tiles, IM_NUMBER_BF16, 1, 1000, 1000, 1000, 0), 2e9 / (50e12 * 100 / 128));          /* 100 tiles, two waves of 64 */
    NEAR(im_cost_product(&tiles, IM_NUMBER_BF16, 1, 50, 6400, 100, 0), 2.0 * 50 * 6400 * 100 / (50e12 * 0.5)); /* tiles half full */
}

static void test_groups(void **state)
{
    world *w = *state;
    im_cost *k = cost_of(w, w->c, 8, 64, 1, NULL);
    const im_cost_group *tp = im_cost_group_of(k, IM_GROUP_TP), *dp = im_cost_group_of(k, IM_GROUP_DP), *all = im_cost_group_of(k, IM_GROUP_WORLD);
    assert_int_equal(tp->domains, 1);
    NEAR(tp->intra, 200e9);
    assert_int_equal(dp->domains, 64);
    assert_int_equal(dp->local, 1);
    assert_int_equal(dp->levels, 2);
    /* 8 groups leave each leaf of 16 nodes, whose 16*8*12.5/4 = 400 GB/s they share; a link of its own would give 12.5 */
    NEAR(dp->inter, 12.5e9);
    NEAR(dp->alpha_out, 6e-6);
    assert_int_equal(all->local, 8);
    NEAR(all->inter, 100e9);
    im_cost_close(k);
    /* in another order of the ranks every step of the ring leaves its leaf: 16 nodes x 8 groups share 400 GB/s */
    int device[512];
    for (int r = 0; r < 512; r++)
        device[r] = (r / 8 % 4 * 16 + r / 8 / 4) * 8 + r % 8;
    k = cost_of(w, w->c, 8, 64, 1, device);
    NEAR(im_cost_group_of(k, IM_GROUP_DP)->inter, 400e9 / 128);
    im_cost_close(k);
    /* tp over two nodes: each group has 8 links */
    k = cost_of(w, w->c, 16, 32, 1, NULL);
    NEAR(im_cost_group_of(k, IM_GROUP_TP)->inter, 100e9);
    im_cost_close(k);
    /* stages of one node each, and of a part of one */
    k = cost_of(w, w->c, 8, 1, 4, NULL);
    NEAR(im_cost_hop(k, 0)->flow, 12.5e9);
    NEAR(im_cost_message(k, 0, 12.5e6), 1e-3 + 5e-6);
    im_cost_close(k);
    k = cost_of(w, w->c, 2, 1, 4, NULL);
    NEAR(im_cost_message(k, 0, 200e6), 1e-3 + 2e-6);
    im_cost_close(k);
}

static void test_collectives(void **state)
{
    world *w = *state;
    im_cost *k = cost_of(w, w->c, 8, 2, 1, NULL);
    double S = 1e9;
    im_cost_coll r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, S);
    assert_string_equal(r.algorithm, "ring");
    NEAR(r.seconds, 14 * 2e-6 + 2 * 7.0 / 8 * S / 200e9);
    NEAR(im_cost_collective(k, IM_COLL_ALL_GATHER, IM_GROUP_TP, S).seconds, 7 * 2e-6 + 7.0 / 8 * S / 200e9);
    NEAR(im_cost_collective(k, IM_COLL_REDUCE_SCATTER, IM_GROUP_TP, S).seconds, 7 * 2e-6 + 7.0 / 8 * S / 200e9);
    NEAR(im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_DP, S).seconds, 2 * 5e-6 + S / 12.5e9);
    assert_string_equal(im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, 1000).algorithm, "tree"); /* few steps */
    NEAR(im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, 0).seconds, 2 * 3 * 2e-6);
    assert_true(im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_CP, S).seconds == 0);
    im_cost_close(k);
}

/* Time never falls when a link is slower or carries more. */
static void test_monotone(void **state)
{
    world *w = *state;
    static const im_collective what[] = {IM_COLL_ALL_REDUCE, IM_COLL_ALL_GATHER, IM_COLL_REDUCE_SCATTER};
    static const int tps[] = {1, 2, 8, 16};
    for (int library = 0; library < 2; library++)
        for (int slow = 0; slow < 3; slow++)
            for (size_t t = 0; t < IM_COUNT_OF(tps); t++) {
                im_cluster *fast = cluster_of(w->ctx, rack), *other = cluster_of(w->ctx, rack);
                fast->library = other->library = library ? IM_LIBRARY_NCCL : IM_LIBRARY_RING;
                fast->device.generation = other->device.generation = IM_GENERATION_HOPPER;
                fast->domain.multicast = other->domain.multicast = true;
                if (slow == 0)
                    other->domain.rate *= 0.7;
                else if (slow == 1)
                    other->network.link *= 0.7;
                else
                    other->network.level[0].uplink *= 0.1;
                im_cost *a = cost_of(w, fast, tps[t], 16, 2, NULL), *b = cost_of(w, other, tps[t], 16, 2, NULL);
                for (int g = 0; g < IM_GROUP_COUNT; g++)
                    for (size_t i = 0; i < IM_COUNT_OF(what); i++)
                        for (double S = 1024; S < 1e10; S *= 1.9) {
                            double x = im_cost_collective(a, what[i], (im_group_id)g, S).seconds,
                                   y = im_cost_collective(b, what[i], (im_group_id)g, S).seconds;
                            assert_true(y >= x * (1 - 1e-12));
                            assert_true(im_cost_group_of(a, (im_group_id)g)->ranks == 1 || x > 0);
                        }
                assert_true(im_cost_message(b, 0, 1e6) >= im_cost_message(a, 0, 1e6));
                im_cost_close(a);
                im_cost_close(b);
                im_cluster_close(fast);
                im_cluster_close(other);
            }
}

static void test_refused(void **state)
{
    world *w = *state;
    im_plan p;
    im_cost *k;
    im_plan_defaults(&p, w->m);
    p.mesh = (im_mesh){8, 1, 65, 1};
    p.precision = IM_BF16;
    assert_int_equal(im_cost_open(w->ctx, w->c, &p, NULL, &k), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(w->ctx), "520 ranks: rack has 512 devices"));
    im_error_clear(w->ctx);
    p.mesh.dp = 1;
    w->c->device.peak[IM_NUMBER_BF16] = 0;
    assert_int_equal(im_cost_open(w->ctx, w->c, &p, NULL, &k), IM_ERR_UNSUPPORTED);
    assert_non_null(strstr(im_error_text(w->ctx), "device.peak.bf16"));
}

/* ---- NCCL: the tables of the code are the published ones --------------------------------- */

static void table_has(const char *file, const char *row)
{
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/golden/published/%s", IM_TEST_DIR, file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    bool found = false;
    while (fgets(line, sizeof line, f))
        found |= !strncmp(line, row, strlen(row));
    fclose(f);
    if (!found)
        fail_msg("%s has no line \"%s\"", file, row);
}

static void test_nccl(void **state)
{
    world *w = *state;
    /* what the figures below are made of */
    table_has("nccl_tuning_base_latency_us.csv", "Ring,6.6,14.0,8.4,");
    table_has("nccl_tuning_base_latency_us.csv", "Tree,6.8,14.0,8.4,");
    table_has("nccl_tuning_hw_latency_us.csv", "NVLINK,Ring,0.6,1.9,3.4,");
    table_has("nccl_tuning_hw_latency_us.csv", "NVLINK,Tree,0.6,1.25,4.0,");
    table_has("nccl_tuning_hw_latency_us.csv", "NET,Ring,2.7,4.0,14,");
    table_has("nccl_tuning_hw_latency_us.csv", "NET,Tree,5.0,8.5,14,");
    table_has("nccl_tuning_hw_latency_us.csv", "NVLINK,NVLS,,,25,");
    table_has("nccl_tuning_bandwidth_caps.csv", "llMaxBws,\"39,39,20.4\",\"87.7,22.5,19\",\"141,45,35\",\"282,90,70\",");
    table_has("nccl_tuning_bandwidth_caps.csv", "nvlsEfficiency,,,0.85,0.74,");
    im_cluster *c = w->c;
    c->library = IM_LIBRARY_NCCL;
    c->device.generation = IM_GENERATION_AMPERE;
    c->net_overhead = 2e-6;
    im_cost *k = cost_of(w, c, 8, 2, 1, NULL);
    /* 16 GiB over 8 ranks: ring Simple, 8.4 + 14*3.4 us and 2*7/8 of the bytes */
    im_cost_coll r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, 0x1p34);
    assert_string_equal(r.algorithm, "ring Simple");
    NEAR(r.seconds, (8.4 + 14 * 3.4) * 1e-6 + 0x1p34 * 1.75 / 200e9);
    /* 8 bytes: tree LL, 6.8 + 2*7*0.6 us against ring LL's 6.6 + 14*0.6 */
    r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, 8);
    assert_string_equal(r.algorithm, "ring LL");
    NEAR(r.alpha, (6.6 + 14 * 0.6) * 1e-6);
    /* 4 KiB from two nodes, one rank each: ring LL with the network's step */
    r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_DP, 4096);
    NEAR(r.alpha, (6.6 + 2 * (5.0 + 2)) * 1e-6);
    im_cost_close(k);
    c->device.generation = IM_GENERATION_HOPPER;
    c->domain.multicast = true;
    k = cost_of(w, c, 8, 2, 1, NULL);
    r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_TP, 0x1p34);
    assert_string_equal(r.algorithm, "NVLS");
    NEAR(r.seconds, 25e-6 + 0x1p34 / (200e9 * 0.85 * 5 / 6));
    im_cost_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_device, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_groups, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_collectives, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_monotone, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_refused, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_nccl, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
