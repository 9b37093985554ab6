/* Verbs ports out of files as the kernel has them: mlx5 on InfiniBand with IPoIB, rxe, efa; ports that are down, without counters, without sense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"
#include "comm/mpi/plugin.h"
#include "comm/mpi/ports.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tree {
    im_context *ctx;
    char at[64];
} tree;

static tree plant(void)
{
    tree t = {.at = "/tmp/imece-ports-XXXXXX"};
    assert_int_equal(im_context_create(&t.ctx), IM_OK);
    assert_non_null(mkdtemp(t.at));
    return t;
}

static void fell(tree *t)
{
    assert_int_equal(im_remove_tree(t->ctx, t->at), IM_OK);
    im_context_destroy(t->ctx);
}

/* A file below class/, with its directories. */
static void put(const tree *t, const char *file, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/class/%s", t->at, file);
    *strrchr(path, '/') = '\0';
    assert_int_equal(im_mkdirs(t->ctx, path), IM_OK);
    path[strlen(path)] = '/';
    assert_int_equal(im_file_write_atomic(t->ctx, path, text, strlen(text)), IM_OK);
}

static void machines_without(void **state)
{
    (void)state;
    tree t = plant();
    im_mpi_ports p;
    uint64_t bytes;
    im_mpi_ports_read("/no/such/place", &p);
    assert_int_equal(p.n, 0);
    put(&t, "net/eth0/type", "1\n");
    put(&t, "net/eth0/statistics/tx_bytes", "12345\n");
    im_mpi_ports_read(t.at, &p);
    assert_int_equal(p.n, 0);
    assert_int_equal(p.ip, 0);
    assert_null(im_mpi_ports_busiest(&p, &p, &bytes));
    assert_int_equal(bytes, 0);
    fell(&t);
}

static void ports_are_read(void **state)
{
    (void)state;
    tree t = plant();
    im_mpi_ports p;
    put(&t, "infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put(&t, "infiniband/mlx5_0/ports/1/counters/port_xmit_data", "1000\n");
    put(&t, "infiniband/mlx5_0/ports/1/hw_counters/sent_pkts", "7\n"); /* the better one counts */
    put(&t, "infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
    put(&t, "infiniband/mlx5_0/ports/2/counters/port_xmit_data", "1000\n");
    put(&t, "infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
    put(&t, "infiniband/rxe0/ports/1/hw_counters/sent_pkts", "3\n");
    put(&t, "infiniband/efa_0/ports/1/state", "4: ACTIVE\n");
    put(&t, "infiniband/efa_0/ports/1/hw_counters/tx_bytes", "5\n");
    put(&t, "infiniband/siw0/ports/1/state", "4: ACTIVE\n"); /* counts nothing */
    put(&t, "infiniband/odd0/ports/1/state", "4: ACTIVE\n");
    put(&t, "infiniband/odd0/ports/1/counters/port_xmit_data", "N/A\n");
    put(&t, "net/ib0/type", "32\n");
    put(&t, "net/ib0/statistics/tx_bytes", "300\n");
    im_mpi_ports_read(t.at, &p);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.ip, 300);
    static const struct {
        const char *name;
        uint64_t bytes;
    } want[] = {{"mlx5_0/1", 4000}, {"rxe0/1", 3 * 4096}, {"efa_0/1", 5}};
    for (size_t i = 0; i < IM_COUNT_OF(want); i++) {
        int found = 0;
        for (int k = 0; k < p.n; k++)
            found += !strcmp(p.port[k].name, want[i].name) && p.port[k].bytes == want[i].bytes;
        assert_int_equal(found, 1);
    }
    fell(&t);
}

static void the_busiest_is_named(void **state)
{
    (void)state;
    im_mpi_ports before = {.n = 2, .port = {{"a/1", 100}, {"b/1", 5000}}, .ip = 10}, after = before;
    uint64_t bytes;
    assert_non_null(im_mpi_ports_busiest(&before, &after, &bytes)); /* there is one, and it did nothing */
    assert_int_equal(bytes, 0);
    after.port[0].bytes += 50;
    after.port[1].bytes += 40;
    assert_string_equal(im_mpi_ports_busiest(&before, &after, &bytes)->name, "a/1");
    assert_int_equal(bytes, 50);
    after.ip += 45; /* TCP over InfiniBand is none of it */
    assert_string_equal(im_mpi_ports_busiest(&before, &after, &bytes)->name, "a/1");
    assert_int_equal(bytes, 5);
    after.port[0].bytes = 0; /* a driver that was loaded again */
    assert_string_equal(im_mpi_ports_busiest(&before, &after, &bytes)->name, "b/1");
    assert_int_equal(bytes, 0);
}

/* All ranks measure with somebody, and both of a pair know it at the same time. */
static void pairs(void **state)
{
    (void)state;
    for (int n = 1; n <= 64; n++)
        for (int i = 0; i < n; i++) {
            int with = 0;
            for (int k = 0; k < IM_MPI_PAIRS; k++) {
                int peer = im_mpi_pair(i, n, k);
                assert_true(peer < n && peer != i);
                assert_true(peer < 0 || im_mpi_pair(peer, n, k) == i);
                with += peer >= 0;
            }
            assert_true(n == 1 || with > 0);
        }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_without),
        cmocka_unit_test(ports_are_read),
        cmocka_unit_test(the_busiest_is_named),
        cmocka_unit_test(pairs),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
