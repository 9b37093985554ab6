/* base: errors, arena, text, files, machine, random numbers */
#include "base/base.h"
#include "base/machine.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static int setup(void **state)
{
    return im_context_create((im_context **)state);
}

static int teardown(void **state)
{
    im_context_destroy(*state);
    return 0;
}

static void make_dir(char *path, size_t size)
{
    snprintf(path, size, "/tmp/imece-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static void put_file(const char *root, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    assert_int_equal(im_mkdirs(NULL, path), IM_OK);
    *slash = '/';
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* ---- errors ---------------------------------------------------------------- */

static void test_first_error_wins(void **state)
{
    im_context *ctx = *state;
    assert_string_equal(im_error_text(ctx), "");
    assert_int_equal(im_fail(ctx, IM_ERR_FORMAT, "%s: byte %d", "a.bin", 7), IM_ERR_FORMAT);
    assert_int_equal(im_fail(ctx, IM_ERR_IO, "later"), IM_ERR_IO);
    assert_string_equal(im_error_text(ctx), "a.bin: byte 7");
    assert_int_equal(im_error_code(ctx), IM_ERR_FORMAT);
    im_error_clear(ctx);
    assert_int_equal(im_error_code(ctx), IM_OK);
    errno = ENOENT;
    assert_int_equal(im_fail_errno(ctx, "%s", "x"), IM_ERR_IO);
    assert_string_equal(im_error_text(ctx), "x: No such file or directory");
}

typedef struct failer {
    im_context *ctx;
    int id;
} failer;

static void *fail_often(void *arg)
{
    failer *f = arg;
    for (int i = 0; i < 200; i++)
        im_fail(f->ctx, (im_status) - (f->id + 1), "thread %d says a rather long sentence so that a torn one would be seen %d", f->id, f->id);
    return NULL;
}

static void test_errors_from_threads(void **state)
{
    pthread_t thread[4];
    failer f[4];
    for (int i = 0; i < 4; i++) {
        f[i] = (failer){*state, i};
        assert_int_equal(pthread_create(&thread[i], NULL, fail_often, &f[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    int who = -im_error_code(*state) - 1;
    char want[128];
    snprintf(want, sizeof want, "thread %d says a rather long sentence so that a torn one would be seen %d", who, who);
    assert_string_equal(im_error_text(*state), want);
}

typedef struct heard {
    int count, rank;
    im_log_level level;
    char part[16], text[64];
} heard;

static void listen_to(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    heard *h = arg;
    h->count++;
    h->rank = rank;
    h->level = level;
    snprintf(h->part, sizeof h->part, "%s", part);
    snprintf(h->text, sizeof h->text, "%s", message);
}

static void test_log(void **state)
{
    heard h = {0};
    im_log(*state, IM_LOG_ERROR, "base", "nobody listens");
    im_context_set_log(*state, listen_to, &h, IM_LOG_WARN);
    im_context_set_rank(*state, 3);
    im_log(*state, IM_LOG_INFO, "base", "too chatty");
    assert_int_equal(h.count, 0);
    im_log(*state, IM_LOG_WARN, "base", "n = %d", 5);
    assert_int_equal(h.count, 1);
    assert_int_equal(h.rank, 3);
    assert_string_equal(h.part, "base");
    assert_string_equal(h.text, "n = 5");
}

/* ---- arena and text --------------------------------------------------------- */

static void test_arena(void **state)
{
    im_arena *a;
    assert_int_equal(im_arena_create(*state, &a), IM_OK);
    static const size_t sizes[] = {0, 1, 15, 16, 17, 1000, 4096, 5000, 100000, 3, 2 << 20, 64};
    unsigned char *block[IM_COUNT_OF(sizes) * 20];
    size_t n = 0;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < IM_COUNT_OF(sizes); i++) {
            unsigned char *p = im_arena_alloc(a, sizes[i]);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                if (p[k])
                    fail_msg("byte %zu of %zu is not zero", k, sizes[i]);
            memset(p, (int)(n % 251) + 1, sizes[i]);
            block[n++] = p;
        }
    }
    for (size_t i = 0; i < n; i++) /* no two overlap */
        for (size_t k = 0; k < sizes[i % IM_COUNT_OF(sizes)]; k++)
            if (block[i][k] != i % 251 + 1)
                fail_msg("block %zu was overwritten", i);
    assert_string_equal(im_arena_strdup(a, "köy"), "köy");
    assert_string_equal(im_arena_printf(a, "%d-%s", 12, "x"), "12-x");
    assert_null(im_arena_alloc(a, SIZE_MAX - 3));
    assert_int_equal(im_error_code(*state), IM_ERR_NOMEM);
    im_arena_destroy(a);
    im_arena_destroy(NULL);
}

static void test_alloc_overflow(void **state)
{
    void *p = state;
    assert_int_equal(im_alloc(*state, SIZE_MAX / 2, 3, &p), IM_ERR_NOMEM);
    assert_ptr_equal(p, state); /* outputs are set only on success */
    assert_int_equal(im_alloc(*state, 0, 8, &p), IM_OK);
    free(p);
}

static void test_str(void **state)
{
    (void)state;
    im_str s = {0};
    assert_string_equal(im_str_text(&s), "");
    for (int i = 0; i < 1000; i++)
        im_str_printf(&s, "%d,", i);
    assert_int_equal(s.len, 10 * 2 + 90 * 3 + 900 * 4);
    assert_memory_equal(s.data, "0,1,2,", 6);
    assert_int_equal(strlen(s.data), s.len);
    im_str_free(&s);
    assert_null(s.data);
}

static void test_json_string(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"a\"b\\c\n\t", 7, "\"a\\\"b\\\\c\\n\\t\""},
        {"\x01\x7f", 2, "\"\\u0001\\u007f\""},
        {"\0", 1, "\"\\u0000\""},
        {"ış€😀", 11, "\"ış€😀\""},
        {"\xff", 1, "\"\xef\xbf\xbd\""},
        {"\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* cut off */
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_str s = {0};
        im_str_json_string(&s, cases[i].in, cases[i].n);
        assert_string_equal(im_str_text(&s), cases[i].out);
        im_str_free(&s);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(im_edit_distance("", "abc"), 3);
    assert_int_equal(im_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(im_edit_distance("tarin", "train"), 1); /* a swap */
    static const char *const names[] = {"train", "generate", "eval"};
    assert_string_equal(im_nearest_name("trian", names, 3), "train");
    assert_string_equal(im_nearest_name("generat", names, 3), "generate");
    assert_null(im_nearest_name("zzzzzz", names, 3));
    char buf[32];
    assert_string_equal(im_format_bytes(buf, sizeof buf, 1234567890), "1.15 GiB");
    assert_string_equal(im_format_bytes(buf, sizeof buf, 512), "512 B");
    assert_string_equal(im_format_bytes(buf, sizeof buf, 0x1p40 * 20), "20.0 TiB");
}

/* ---- files ------------------------------------------------------------------ */

static void test_files(void **state)
{
    im_context *ctx = *state;
    char dir[64], path[PATH_MAX], *data = NULL;
    size_t len = 99;
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a/b/c", dir);
    assert_int_equal(im_mkdirs(ctx, path), IM_OK);
    assert_int_equal(im_mkdirs(ctx, path), IM_OK);
    assert_true(im_path_is_dir(path));
    snprintf(path, sizeof path, "%s/a/b/c/file", dir);
    assert_int_equal(im_file_write_atomic(ctx, path, "hello", 5), IM_OK);
    assert_int_equal(im_file_write_atomic(ctx, path, "again!", 6), IM_OK);
    assert_int_equal(im_file_read(ctx, path, 6, &data, &len), IM_OK);
    assert_int_equal(len, 6);
    assert_string_equal(data, "again!");
    free(data);
    data = NULL;
    assert_int_equal(im_file_read(ctx, path, 5, &data, &len), IM_ERR_FORMAT);
    assert_null(data);
    assert_non_null(strstr(im_error_text(ctx), "at most 5"));
    im_error_clear(ctx);
    snprintf(path, sizeof path, "%s/a/b/c/file.tmp", dir);
    assert_false(im_path_exists(path));

    snprintf(path, sizeof path, "%s/a/b/c/file/below", dir);
    assert_int_equal(im_mkdirs(ctx, path), IM_ERR_EXISTS);
    im_error_clear(ctx);
    assert_int_equal(im_file_read(ctx, path, 5, &data, &len), IM_ERR_IO);
    im_error_clear(ctx);

    char outside[PATH_MAX], link[PATH_MAX];
    snprintf(outside, sizeof outside, "%s/outside", dir);
    snprintf(link, sizeof link, "%s/a/link", dir);
    put_file(outside, "precious", "x");
    assert_int_equal(symlink(outside, link), 0);
    snprintf(path, sizeof path, "%s/a", dir);
    assert_int_equal(im_remove_tree(ctx, path), IM_OK);
    assert_false(im_path_exists(path));
    snprintf(path, sizeof path, "%s/outside/precious", dir);
    assert_true(im_path_exists(path)); /* links are not followed */
    assert_int_equal(im_remove_tree(ctx, dir), IM_OK);
    assert_int_equal(im_remove_tree(ctx, dir), IM_OK); /* absent is fine */
}

static void test_proc_file(void **state)
{
    char *data;
    size_t len;
    assert_int_equal(im_file_read(*state, "/proc/self/maps", 1 << 24, &data, &len), IM_OK); /* has no size */
    assert_true(len > 100);
    free(data);
    assert_int_equal(im_file_read(*state, "/proc/self/maps", 100, &data, &len), IM_ERR_FORMAT);
}

static void test_map(void **state)
{
    char dir[64], path[PATH_MAX];
    make_dir(dir, sizeof dir);
    put_file(dir, "full", "0123456789");
    put_file(dir, "empty", "");
    im_map m = {0};
    snprintf(path, sizeof path, "%s/full", dir);
    assert_int_equal(im_map_open(*state, path, &m), IM_OK);
    assert_int_equal(m.len, 10);
    assert_memory_equal(m.data, "0123456789", 10);
    im_map_close(&m);
    snprintf(path, sizeof path, "%s/empty", dir);
    assert_int_equal(im_map_open(*state, path, &m), IM_OK);
    assert_null(m.data);
    assert_int_equal(m.len, 0);
    im_map_close(&m);
    assert_int_equal(im_map_open(*state, dir, &m), IM_ERR_FORMAT);
    assert_int_equal(im_remove_tree(*state, dir), IM_OK);
}

/* Pages that were read are resident until they are released, and come again. */
static void test_map_release(void **state)
{
    enum { MIB = 1 << 20, ALL = 32 * MIB };
    char dir[64], path[PATH_MAX];
    make_dir(dir, sizeof dir);
    put_file(dir, "long", "begin");
    snprintf(path, sizeof path, "%s/long", dir);
    assert_int_equal(truncate(path, ALL), 0);
    im_map m = {0};
    assert_int_equal(im_map_open(*state, path, &m), IM_OK);
    unsigned sum = 0;
    size_t before = im_process_rss();
    for (size_t i = 1; i < ALL; i += 4096)
        sum += m.data[i];
    size_t read = im_process_rss();
    assert_int_equal(sum, 'e');
    assert_true(read > before + 24 * MIB);
    im_map_release(&m, 5, ALL - 8 * MIB);
    size_t released = im_process_rss();
    assert_true(released < read - 16 * MIB);
    assert_true(released > before + 4 * MIB);
    assert_memory_equal(m.data, "begin", 6);
    im_map_release(&m, ALL - MIB, SIZE_MAX); /* no more than there is */
    im_map_release(&m, ALL, 1);
    im_map_close(&m);
    im_map_release(&m, 0, 1);
    assert_int_equal(im_remove_tree(*state, dir), IM_OK);
}

/* ---- machine ------------------------------------------------------------------ */

static void test_cgroup_v2(void **state)
{
    char dir[64];
    make_dir(dir, sizeof dir);
    put_file(dir, "proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");
    assert_int_equal(im_machine_quota_cores_under(dir), INT_MAX);
    assert_int_equal(im_machine_memory_under(dir), 16000000ull * 1024);
    put_file(dir, "proc/self/cgroup", "0::/job/step\n");
    put_file(dir, "proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
    put_file(dir, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    put_file(dir, "sys/fs/cgroup/job/step/memory.max", "max\n");
    assert_int_equal(im_machine_quota_cores_under(dir), INT_MAX);
    put_file(dir, "sys/fs/cgroup/job/cpu.max", "350000 100000\n"); /* the parent's limit binds too */
    put_file(dir, "sys/fs/cgroup/job/memory.max", "1073741824\n");
    assert_int_equal(im_machine_quota_cores_under(dir), 3);
    assert_int_equal(im_machine_memory_under(dir), 1 << 30);
    put_file(dir, "sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
    assert_int_equal(im_machine_quota_cores_under(dir), 1);
    assert_int_equal(im_remove_tree(*state, dir), IM_OK);
}

static void test_cgroup_v1(void **state)
{
    char dir[64];
    make_dir(dir, sizeof dir);
    put_file(dir, "proc/meminfo", "MemTotal:       16000000 kB\n");
    put_file(dir, "proc/self/cgroup", "5:cpuset:/else\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n");
    /* the container's mount shows its own directory at the top */
    put_file(dir, "proc/self/mountinfo",
             "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
             "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put_file(dir, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put_file(dir, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put_file(dir, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(im_machine_quota_cores_under(dir), INT_MAX);
    assert_int_equal(im_machine_memory_under(dir), 16000000ull * 1024);
    put_file(dir, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put_file(dir, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    assert_int_equal(im_machine_quota_cores_under(dir), 2);
    assert_int_equal(im_machine_memory_under(dir), 2ull << 30);
    assert_int_equal(im_remove_tree(*state, dir), IM_OK);
}

static void test_this_machine(void **state)
{
    (void)state;
    double before = im_clock_now();
    assert_true(im_machine_cores() >= 1);
    assert_true(im_machine_memory() > (size_t)64 << 20);
    size_t rss = im_process_rss();
    assert_true(rss > 100000 && rss <= im_machine_memory());
    assert_true(im_process_rss_peak() >= rss / 2);
    assert_true(im_clock_now() >= before);
}

/* ---- random numbers --------------------------------------------------------------- */

/* the known answers of the authors' own library (Random123, kat_vectors) */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, lo, hi;
        uint32_t out[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        uint32_t out[4];
        im_philox(cases[i].key, cases[i].lo, cases[i].hi, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void test_distributions(void **state)
{
    (void)state;
    assert_true(im_uniform_f32(0) > 0.0f);
    assert_true(im_uniform_f32(UINT32_MAX) < 1.0f);
    enum { N = 1 << 17 };
    double sum = 0, squares = 0, fourth = 0, uniform = 0;
    for (int i = 0; i < N; i++) {
        uint32_t x[4];
        float a, b;
        im_philox(42, (uint64_t)i, 7, x);
        im_normal_pair(x[0], x[1], &a, &b);
        uniform += im_uniform_f32(x[2]);
        sum += a + b;
        squares += (double)a * a + (double)b * b;
        fourth += pow(a, 4) + pow(b, 4);
    }
    assert_true(fabs(uniform / N - 0.5) < 0.004);
    assert_true(fabs(sum / (2 * N)) < 0.01);
    assert_true(fabs(squares / (2 * N) - 1) < 0.015);
    assert_true(fabs(fourth / (2 * N) - 3) < 0.12);
    float a, b;
    im_normal_pair(0, 0, &a, &b); /* the extremes stay finite */
    assert_true(isfinite(a) && isfinite(b));
    im_normal_pair(UINT32_MAX, UINT32_MAX, &a, &b);
    assert_true(isfinite(a) && isfinite(b));
}

static void test_hash(void **state)
{
    (void)state;
    assert_true(im_hash64("", 0, 0) == 0x2d06800538d394c2ull); /* xxhsum -H3 of nothing */
    assert_true(im_hash64("abc", 3, 0) != im_hash64("abd", 3, 0));
    assert_true(im_hash64("abc", 3, 0) != im_hash64("abc", 3, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_first_error_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors_from_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arena, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alloc_overflow, setup, teardown),
        cmocka_unit_test(test_str),
        cmocka_unit_test(test_json_string),
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_proc_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map_release, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup_v2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup_v1, setup, teardown),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
