/* The MPI communicator: the suite under mpirun, with each MPI that is here, over memory that ranks share ("near") and over MPI's messages
 * ("apart"); deaths of processes too. The program starts mpirun with itself: test_comm_mpi --rank PLUGIN WHAT DIR is one rank. */
#include "comm/ring.h"
#include "conform/comm_suite.h"
#include "mpi_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- one rank ---------------------------------------------------------------------------------- */

typedef struct process {
    im_context *ctx;
    im_device *device;
    im_comm_mpi_world *mpi;
    im_comm *world;
    im_comm_mpi_place at;
} process;

static void say(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    (void)arg, (void)level;
    fprintf(stderr, "%d %s: %s\n", rank, part, message);
}

/* How the ranks of a job are connected: of WHAT's first letters. */
typedef struct how {
    bool apart, cut; /* cut: everything in many messages and blocks */
} how;

static bool open_process(process *p, const char *plugin, double deadline, how h)
{
    im_comm_mpi_config cfg = {.plugin = plugin, .deadline = deadline, .piece = h.cut ? 2304 : 0, .block = h.cut ? 1024 : 0, .apart = h.apart};
    im_device_config device = {.threads = 1, .comm_threads = true};
    if (im_context_create(&p->ctx) != IM_OK)
        return false;
    im_context_set_log(p->ctx, say, NULL, IM_LOG_INFO);
    bool good = im_comm_mpi_world_create(p->ctx, &cfg, &p->mpi) == IM_OK;
    if (good) {
        p->at = im_comm_mpi_where(p->mpi);
        im_context_set_rank(p->ctx, p->at.rank);
        good = im_device_open(p->ctx, &device, &p->device) == IM_OK && im_comm_mpi_attach(p->mpi, p->device, &p->world) == IM_OK;
    }
    if (!good)
        fprintf(stderr, "%s\n", im_error_text(p->ctx));
    return good;
}

static void close_process(process *p)
{
    im_comm_destroy(p->world);
    im_device_close(p->device);
    (void)fflush(stdout);
    im_comm_mpi_world_exit_code(p->mpi, 3); /* for a job that failed */
    im_comm_mpi_world_destroy(p->mpi);
    im_context_destroy(p->ctx);
}

/* A case on a communicator of its own, so that it counts its operations from 1. */
static bool run_case(process *p, const comm_case *what, double deadline)
{
    int all[COMM_MOST_RANKS];
    comm_rig r = {.ctx = p->ctx, .device = p->device, .rank = p->at.rank, .size = p->at.size, .deadline = deadline};
    for (int i = 0; i < r.size; i++)
        all[i] = i;
    if (im_comm_split(p->world, all, r.size, &r.world) != IM_OK)
        snprintf(r.failed, sizeof r.failed, "no communicator: %s", im_error_text(p->ctx));
    else
        what->run(&r);
    if (r.failed[0]) {
        fprintf(stderr, "FAIL %s: %s\n", what->name, r.failed);
        if (r.world)
            im_comm_abort(r.world);
    }
    im_comm_destroy(r.world);
    if (im_device_sync(p->device) != IM_OK && !what->fatal)
        fprintf(stderr, "%s: %s\n", what->name, im_error_text(p->ctx));
    im_device_release(p->device, IM_CLASS_COMM);
    return !r.failed[0];
}

static int run_ops(const char *plugin, how h)
{
    process p = {0};
    if (!open_process(&p, plugin, COMM_DEADLINE, h))
        return 1;
    bool good = true;
    for (size_t i = 0; i < comm_nop_cases && good; i++)
        good = p.at.size < comm_op_cases[i].least || run_case(&p, &comm_op_cases[i], COMM_DEADLINE);
    if (good)
        printf("PASS rank\n");
    (void)fflush(stdout);
    close_process(&p);
    return good ? 0 : 1;
}

static int run_fatal(const char *plugin, const char *name, how h)
{
    process p = {0};
    size_t i = 0;
    while (i < comm_nfault_cases && strcmp(comm_fault_cases[i].name, name) != 0)
        i++;
    if (i == comm_nfault_cases)
        return 1;
    double deadline = comm_fault_cases[i].deadline > 0 ? comm_fault_cases[i].deadline : COMM_DEADLINE;
    if (!open_process(&p, plugin, deadline, h))
        return 1;
    bool good = run_case(&p, &comm_fault_cases[i], deadline);
    if (good)
        printf("PASS rank\n");
    (void)fflush(stdout);
    close_process(&p);
    return 3; /* as a program that was told of the failure */
}

/* The last rank is killed before, or stands still at, its 3rd operation; the others have a ring that says where they wait. */
static int run_loss(const char *plugin, const char *dir, bool hang, how h)
{
    process p = {0};
    char path[512];
    im_comm_fault never = {.at = UINT64_MAX}, fault = {.kind = hang ? IM_FAULT_DELAY : IM_FAULT_DIE, .at = 3, .process = true, .seconds = 100};
    if (!open_process(&p, plugin, 1.5, h))
        return 1;
    snprintf(path, sizeof path, "%s/%d", dir, p.at.rank);
    if (im_comm_faulty(p.world, p.at.rank == p.at.size - 1 ? &fault : &never, &p.world) != IM_OK || im_comm_traced(p.world, path, &p.world) != IM_OK)
        return 1;
    im_event done = {0};
    im_status s = IM_OK;
    for (int i = 0; i < 3 && s == IM_OK; i++)
        s = im_comm_barrier(p.world, im_device_queue(p.device, IM_QUEUE_COMM0), &done);
    s = s == IM_OK ? im_event_wait(p.device, done) : s;
    if (s != IM_OK)
        printf("TOLD %s\n", im_error_text(p.ctx));
    (void)fflush(stdout);
    close_process(&p);
    return s == IM_OK ? 0 : 3;
}

/* The last rank does not come to make a group. */
static int run_absent(const char *plugin, how h)
{
    process p = {0};
    im_comm *c = NULL;
    static const int all[] = {0, 1, 2};
    if (!open_process(&p, plugin, 1.5, h))
        return 1;
    if (p.at.rank == p.at.size - 1)
        (void)sleep(100); /* the job is over before */
    if (im_comm_split(p.world, all, p.at.size, &c) != IM_OK)
        printf("TOLD %s\n", im_error_text(p.ctx));
    (void)fflush(stdout);
    im_comm_destroy(c);
    close_process(&p);
    return 3;
}

static int rank_main(const char *plugin, const char *what, const char *dir)
{
    how h = {.apart = !strncmp(what, "apart ", 6)};
    alarm(150);
    what = strchr(what, ' ') + 1; /* behind "near" or "apart" */
    h.cut = !strcmp(what, "cut");
    if (!strcmp(what, "ops") || h.cut)
        return run_ops(plugin, h);
    if (!strcmp(what, "kill") || !strcmp(what, "hang"))
        return run_loss(plugin, dir, what[0] == 'h', h);
    if (!strcmp(what, "absent"))
        return run_absent(plugin, h);
    return run_fatal(plugin, what, h);
}

/* ---- mpirun ------------------------------------------------------------------------------------------ */

static char dir[] = "/tmp/imece-mpi-XXXXXX";

static int job(const mpi_flavour *f, int ranks, const char *what, char *out, size_t size)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments, "'%s' %s", what, dir);
    return mpi_job(f, ranks, arguments, out, size);
}

static void expect(const mpi_flavour *f, int ranks, const char *what, bool ends_well)
{
    char out[65536];
    double t0 = im_clock_now();
    int code = job(f, ranks, what, out, sizeof out);
    if ((code == 0) != ends_well || mpi_count(out, "PASS rank") != ranks) {
        print_error("%s, %d ranks, %s: exit %d, %d ranks passed\n%s\n", f->name, ranks, what, code, mpi_count(out, "PASS rank"), out);
        fail();
    }
    print_message("%s, %d ranks, %s: %.1f s\n", f->name, ranks, what, im_clock_now() - t0);
}

static void test_operations(void **state)
{
    const mpi_flavour *f = mpi_here(state);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        expect(f, ranks, "near ops", true);
    expect(f, 2, "apart ops", true);
    expect(f, 3, "near cut", true);
    expect(f, 3, "apart cut", true);
}

static void test_failures(void **state)
{
    const mpi_flavour *f = mpi_here(state);
    for (size_t i = 0; i < comm_nfault_cases; i++) {
        char what[128];
        bool apart = (i + (f != mpi_flavours)) % 2; /* each case both ways, with one of the two */
        snprintf(what, sizeof what, "%s %s", apart ? "apart" : "near", comm_fault_cases[i].name);
        expect(f, i % 3 ? 2 : 4, what, false);
    }
}

/* A killed process: the job ends with an error, soon; the ring of each rank, the dead one's too, says how far it came. */
static void test_killed(void **state)
{
    const mpi_flavour *f = mpi_here(state);
    char out[65536], path[64];
    double t0 = im_clock_now();
    im_context *ctx;
    im_comm_ring g;
    assert_int_not_equal(job(f, 3, f == mpi_flavours ? "near kill" : "apart kill", out, sizeof out), 0);
    assert_true(im_clock_now() - t0 < 30);
    assert_int_equal(im_context_create(&ctx), IM_OK);
    for (int rank = 0; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/%d", dir, rank);
        assert_int_equal(im_comm_ring_read(ctx, path, &g), IM_OK);
        assert_true(g.nrecord >= 2);
        for (size_t i = 2; i < g.nrecord; i++)
            assert_int_not_equal(g.record[i].state, IM_RING_DONE);
        im_comm_ring_free(&g);
    }
    im_context_destroy(ctx);
}

/* A rank that stands still: the others tell its number when the deadline is over, and the job ends with an error. */
static void test_hanging(void **state)
{
    const mpi_flavour *f = mpi_here(state);
    char out[65536];
    double t0 = im_clock_now();
    int code = job(f, 3, f == mpi_flavours ? "apart hang" : "near hang", out, sizeof out);
    if (code == 0 || im_clock_now() - t0 > 40 || mpi_count(out, "not arrived: rank 2; arrived: rank 0 1") < 2 || mpi_count(out, "TOLD") < 2) {
        print_error("exit %d after %.1f s\n%s\n", code, im_clock_now() - t0, out);
        fail();
    }
    code = job(f, 3, f == mpi_flavours ? "near absent" : "apart absent", out, sizeof out);
    if (code == 0 || mpi_count(out, "not arrived: rank 2") < 2 || mpi_count(out, "TOLD") < 2) {
        print_error("exit %d\n%s\n", code, out);
        fail();
    }
}

/* Without a plug-in, or with a file that is none: an error that says so, and no job is needed for it. */
static void test_no_plugin(void **state)
{
    (void)state;
    im_context *ctx;
    im_comm_mpi_world *w;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_int_equal(im_comm_mpi_world_create(ctx, &(im_comm_mpi_config){.plugin = "/nowhere/imece_openmpi.so"}, &w), IM_ERR_NOT_FOUND);
    assert_non_null(strstr(im_error_text(ctx), "/nowhere/imece_openmpi.so"));
    im_error_clear(ctx);
    assert_int_equal(im_comm_mpi_world_create(ctx, &(im_comm_mpi_config){.plugin = "libm.so.6"}, &w), IM_ERR_FORMAT);
    im_error_clear(ctx);
    assert_int_equal(im_comm_mpi_world_create(ctx, &(im_comm_mpi_config){.plugin = "", .piece = 100}, &w), IM_ERR_ARG);
    im_error_clear(ctx);
    assert_int_equal(im_comm_mpi_world_create(ctx, &(im_comm_mpi_config){.plugin = "", .deadline = -1}, &w), IM_ERR_ARG);
    im_context_destroy(ctx);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return im_remove_tree(NULL, dir) == IM_OK ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--rank"))
        return rank_main(argv[2], argv[3], argv[4]);
    static const struct {
        const char *name;
        CMUnitTestFunction fn;
    } kinds[] = {{"operations", test_operations}, {"failures", test_failures}, {"killed_process", test_killed}, {"hanging_process", test_hanging}};
    struct CMUnitTest tests[MPI_FLAVOURS * IM_COUNT_OF(kinds) + 1] = {cmocka_unit_test(test_no_plugin)};
    char names[IM_COUNT_OF(tests)][64];
    size_t k = 1;
    for (size_t f = 0; f < MPI_FLAVOURS; f++)
        for (size_t i = 0; i < IM_COUNT_OF(kinds); i++, k++) {
            snprintf(names[k], sizeof names[k], "%s_%s", mpi_flavours[f].name, kinds[i].name);
            tests[k] = (struct CMUnitTest){.name = names[k], .test_func = kinds[i].fn, .initial_state = (void *)(uintptr_t)&mpi_flavours[f]};
        }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
