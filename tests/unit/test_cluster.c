/* Cluster files: units, ranges, presets, and that a written file reads back the same. */
#include "topology/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char good[] = "name: two boxes\n"
                           "nodes: 2\n"
                           "devices_per_node: 4\n"
                           "device:\n"
                           "  name: card\n"
                           "  peak: {fp32: 10 TFLOP/s, bf16: 100 TFLOP/s}\n"
                           "  matmul: {bf16: [[100, 0.1], [10000, 0.9]]}\n"
                           "  memory: 16 GB\n"
                           "  memory_rate: 1 TB/s\n"
                           "domain: {devices: 4, rate: 100 GB/s}\n"
                           "network: {kind: tree, nics: 1, link: 100 Gb/s}\n";

static im_status parse(im_context *ctx, const char *text, im_cluster **out)
{
    return im_cluster_parse(ctx, "c.yaml", text, strlen(text), out);
}

/* `good` with the first `from` replaced; "" as `to` takes the line out. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    assert_non_null(at);
    char *text = calloc(1, sizeof good + strlen(to) + 1);
    memcpy(text, good, (size_t)(at - good));
    strcat(text, to);
    strcat(text, at + strlen(from));
    return text;
}

static void test_units(void **state)
{
    (void)state;
    static const struct {
        im_quantity q;
        const char *text;
        double value;
    } rows[] = {
        {IM_QUANTITY_BYTES, "80 GB", 80e9},
        {IM_QUANTITY_BYTES, "64GiB", 64 * 0x1p30},
        {IM_QUANTITY_BYTE_RATE, "200 Gb/s", 25e9},
        {IM_QUANTITY_BYTE_RATE, "1.5 TB/s", 1.5e12},
        {IM_QUANTITY_FLOP_RATE, "312 TFLOP/s", 312e12},
        {IM_QUANTITY_SECONDS, "1.3 us", 1.3e-6},
        {IM_QUANTITY_SECONDS, "2 h", 7200},
        {IM_QUANTITY_WATTS, "3.3 kW", 3300},
        {IM_QUANTITY_SECONDS, "1e-3 s", 1e-3},
    };
    const char *why;
    double x;
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        char buf[64];
        assert_true(im_quantity_parse(rows[i].q, rows[i].text, &x, &why));
        assert_true(fabs(x - rows[i].value) <= 1e-12 * rows[i].value);
        double again;
        assert_true(im_quantity_parse(rows[i].q, im_quantity_format(rows[i].q, x, buf, sizeof buf), &again, &why));
        assert_true(fabs(again - x) <= 1e-10 * x);
    }
    static const char *const bad[] = {"80", "80 GHz", "", "GB", "-1 GB", "nan GB", "1e999 GB", "0x10 GB", "8 0 GB", "80 gb"};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++)
        assert_false(im_quantity_parse(IM_QUANTITY_BYTES, bad[i], &x, &why));
    assert_true(im_quantity_parse(IM_QUANTITY_BYTES, "8e1 GB", &x, &why) && x == 80e9);
    assert_false(im_quantity_parse(IM_QUANTITY_BYTES, "80", &x, &why));
    assert_non_null(strstr(why, "no unit"));
}

static void test_good(void **state)
{
    im_context *ctx = *state;
    im_cluster *c;
    assert_int_equal(parse(ctx, good, &c), IM_OK);
    assert_int_equal(im_cluster_devices(c), 8);
    assert_true(c->network.link == 12.5e9 && c->domain.rate == 100e9 && c->device.peak[IM_NUMBER_BF16] == 1e14);
    assert_true(fabs(im_curve_at(&c->device.matmul[IM_NUMBER_BF16], 1000) - 0.5) < 1e-12); /* the middle on a log scale */
    assert_true(im_curve_at(&c->device.matmul[IM_NUMBER_BF16], 1) == 0.1 && im_curve_at(&c->device.matmul[IM_NUMBER_BF16], 1e9) == 0.9);
    /* what the file leaves out is listed */
    bool reach = false;
    for (size_t i = 0; i < c->nassumed; i++)
        reach |= !strncmp(c->assumed[i], "network.reach: 1 ", 17);
    assert_true(reach);
    im_cluster_close(c);
}

static void test_bad(void **state)
{
    im_context *ctx = *state;
    static const struct {
        const char *from, *to, *says;
    } rows[] = {
        {"16 GB", "16", "line 8: device.memory: \"16\" has no unit"},
        {"16 GB", "16 GHz", "no unit of memory"},
        {"16 GB", "0 GB", "device.memory: 0 GB cannot be"},
        {"memory_rate: 1 TB/s", "memory_rat: 1 TB/s", "device.memory_rat: unknown key; did you mean memory_rate?"},
        {"  memory_rate: 1 TB/s\n", "", "device.memory_rate: is missing"},
        {"[10000, 0.9]", "[10000, 1.1]", "point 2: y is 1.1; it is above 0 and at most 1"},
        {"[10000, 0.9]", "[100, 0.9]", "x must rise"},
        {"devices: 4, rate: 100 GB/s", "devices: 3, rate: 100 GB/s", "domain.devices: 3 and devices_per_node 4"},
        {"devices: 4, rate: 100 GB/s", "devices: 4", "domain.rate: is missing"},
        {"network: {kind: tree, nics: 1, link: 100 Gb/s}\n", "", "network.kind: is missing"},
        {"kind: tree", "kind: torus", "network.kind: \"torus\" is none of none|tree|fat-tree|dragonfly"},
        {"link: 100 Gb/s", "link: 100 Gb/s, reach: 1.2", "network.reach: 1.2 cannot be; it is from 0.01 to 1"},
        {"link: 100 Gb/s", "link: 100 Gb/s, levels: [{name: leaf, nodes: 1}]", "the last level, leaf, joins 1 of the 2 nodes"},
        {"link: 100 Gb/s", "link: 100 Gb/s, levels: [{name: leaf, nodes: 1, uplink: 200 Gb/s}, {nodes: 2}]", "at most 12.5 GB/s"},
        {"nodes: 2", "nodes: 2.5", "nodes: 2.5 is no whole number"},
        {"nodes: 2", "nodes: 4000000", "are more than"},
        {"name: two boxes", "collectives: {library: nccl}\nname: two boxes", "device.generation: NCCL"},
        {"name: two boxes", "price: {device_hour: 2}\nname: two boxes", "is no price; write for example 2.5 USD"},
        {"name: two boxes", "price: {device_hour: 2 USD, kwh: 1 EUR}\nname: two boxes", "one currency"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        im_cluster *c;
        char *text = changed(rows[i].from, rows[i].to);
        im_error_clear(ctx);
        assert_int_equal(parse(ctx, text, &c), IM_ERR_FORMAT);
        if (!strstr(im_error_text(ctx), rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", im_error_text(ctx), rows[i].says);
        assert_non_null(strstr(im_error_text(ctx), "c.yaml"));
        free(text);
    }
}

static void test_presets(void **state)
{
    im_context *ctx = *state;
    im_arena *a;
    const char **names;
    size_t n;
    assert_int_equal(im_arena_create(ctx, &a), IM_OK);
    assert_int_equal(im_cluster_list(ctx, IM_SOURCE_CLUSTERS_DIR, a, &names, &n), IM_OK);
    assert_true(n >= 9);
    for (size_t i = 0; i < n; i++) {
        im_cluster *c, *again;
        im_str text = {0}, twice = {0};
        assert_int_equal(im_cluster_open(ctx, names[i], IM_SOURCE_CLUSTERS_DIR, &c), IM_OK);
        im_cluster_to_yaml(c, &text);
        assert_int_equal(im_cluster_parse(ctx, names[i], text.data, text.len, &again), IM_OK);
        im_cluster_to_yaml(again, &twice);
        assert_string_equal(text.data, twice.data);
        assert_true(c->device.memory == again->device.memory && c->network.nlevel == again->network.nlevel);
        for (size_t k = 0; k < c->nassumed; k++) /* a preset says of every figure where it is from */
            if (strstr(c->assumed[k], "(not given)"))
                fail_msg("%s: %s", names[i], c->assumed[k]);
        static const char *const sourced[] = {"device.peak", "device.memory", "device.memory_rate", "device.matmul"};
        for (size_t k = 0; k < IM_COUNT_OF(sourced); k++) {
            bool said = false;
            for (size_t j = 0; j < c->nsource; j++)
                said |= !strncmp(c->source[j], sourced[k], strlen(sourced[k]));
            if (!said)
                fail_msg("%s: no source for %s", names[i], sourced[k]);
        }
        im_str_free(&text);
        im_str_free(&twice);
        im_cluster_close(again);
        im_cluster_close(c);
    }
    im_cluster *c;
    im_error_clear(ctx);
    assert_int_equal(im_cluster_open(ctx, "h10", IM_SOURCE_CLUSTERS_DIR, &c), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(ctx), "did you mean h100?"));
    im_arena_destroy(a);
}

static int open_ctx(void **state)
{
    im_context *ctx;
    if (im_context_create(&ctx) != IM_OK)
        return -1;
    *state = ctx;
    return 0;
}

static int close_ctx(void **state)
{
    im_context_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),
        cmocka_unit_test_setup_teardown(test_good, open_ctx, close_ctx),
        cmocka_unit_test_setup_teardown(test_bad, open_ctx, close_ctx),
        cmocka_unit_test_setup_teardown(test_presets, open_ctx, close_ctx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
