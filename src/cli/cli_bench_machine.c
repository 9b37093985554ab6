/* imece bench machine: this machine, or the machines of a job, measured into a cluster file. */
#include "cli/bench_comm.h"
#include "cli/bench_ranks.h"
#include "cli/launch.h"
#include "tensor/rate.h"
#include "topology/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct machine_options {
    const char *out, *storage;
    int64_t ranks, threads, most, written;
    double seconds;
} machine_options;

#define ROW(field) .offset = offsetof(machine_options, field)
static const im_option rows[] = {
    {.name = "out", .type = IM_OPT_STRING, .value = "FILE", .short_name = 'o', .help = "Write the cluster file here; else it is printed.", ROW(out)},
    {.name = "ranks",
     .type = IM_OPT_INT,
     .value = "N",
     .fallback = "2",
     .min = 1,
     .max = 64,
     .help = "Ranks, which measure at the same time. Under mpirun or srun each process is one.",
     ROW(ranks)},
    {.name = "threads",
     .type = IM_OPT_INT,
     .value = "N",
     .fallback = "0",
     .min = 0,
     .max = 4096,
     .help = "Threads of a rank (0: the usable cores, shared out over the ranks).",
     ROW(threads)},
    {.name = "max", .type = IM_OPT_INT, .value = "BYTES", .fallback = "16Mi", .min = 1024, .max = 1e12, .help = "Largest message.", ROW(most)},
    {.name = "seconds",
     .type = IM_OPT_REAL,
     .value = "S",
     .fallback = "0.1",
     .min = 0.001,
     .max = 60,
     .help = "Seconds for each size of a matrix product.",
     ROW(seconds)},
    {.name = "storage", .type = IM_OPT_STRING, .value = "DIR", .help = "Measure how fast files are written to this directory too.", ROW(storage)},
    {.name = "written",
     .type = IM_OPT_INT,
     .value = "BYTES",
     .fallback = "256Mi",
     .min = 1 << 20,
     .max = 1e12,
     .help = "Bytes that --storage writes.",
     ROW(written)},
};
#undef ROW

enum { SIZES = 6, COMM_ROWS = 2 * 24, TURNS = 5 };
static const int64_t sizes[SIZES] = {32, 64, 128, 256, 512, 1024};
static const im_dtype types[2] = {IM_F32, IM_BF16};

typedef struct machine_rank {
    im_context *ctx;
    im_comm_mpi_world *mpi;
    const machine_options *o;
    int rank, size, local, threads; /* ranks in all, of a host */
    double flops[2][SIZES], launch;
    im_memory_rate memory;
    im_bench_comm_row row[COMM_ROWS]; /* within the host: all_reduce, then sendrecv */
    size_t reduces, n;
    im_bench_comm_row far[24]; /* sendrecv between the first ranks of the hosts */
    size_t nfar;
} machine_rank;

/* ---- one rank -------------------------------------------------------------------- */

static im_status measure_device(machine_rank *b)
{
    im_op_args a = {.n = 3, .threads = (uint16_t)b->threads};
    float x[16] = {0}, y[16] = {0}, z[16];
    void *p[IM_OP_MAX_OPERANDS] = {x, y, z};
    im_op_direct how = {.kernels = IM_KERNELS_FAST, .threads = b->threads, .isa = IM_ISA_COUNT};
    IM_TRY(im_tensor_memory_rate(b->ctx, b->threads, &b->memory));
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < SIZES; i++) {
            im_rate_product r = {.M = sizes[i], .N = sizes[i], .K = sizes[i], .type = types[t], .kernels = IM_KERNELS_FAST, .threads = b->threads};
            r.seconds = b->o->seconds;
            IM_TRY(im_tensor_product_rate(b->ctx, &r, &b->flops[t][i]));
        }
    for (int i = 0; i < 3; i++)
        a.v[i] = im_view_1d(IM_F32, 16);
    return im_tensor_time_op(b->ctx, &im_op_add, &a, &how, p, 0.01, &b->launch);
}

/* Of `world` those ranks that b's host has, or the first rank of each host. */
static im_status split(machine_rank *b, im_comm *world, bool hosts, im_comm **out)
{
    int ranks[4096], n = hosts ? b->size / b->local : b->local;
    if (n > (int)IM_COUNT_OF(ranks))
        return im_fail(b->ctx, IM_ERR_ARG, "%d ranks of a kind are too many to measure", n);
    for (int i = 0; i < n; i++)
        ranks[i] = hosts ? i * b->local : b->rank - b->rank % b->local + i;
    return im_comm_split(world, ranks, n, out);
}

/* The fastest of some turns, for sizes that grow by 4. */
static im_status turns(im_bench_comm_rank *r, im_comm *c, const char *op, size_t most, im_bench_comm_row *row, size_t *n)
{
    r->c = c;
    for (size_t nbytes = 1024; nbytes <= most; nbytes *= 4, (*n)++)
        for (int turn = 0; turn < TURNS; turn++) {
            im_bench_comm_row one;
            int many = nbytes > 1 << 20 ? 4 : 32;
            IM_TRY(im_bench_comm_turn(r, op, nbytes, many, &one));
            if (!turn || one.seconds < row[*n].seconds)
                row[*n] = one;
        }
    return IM_OK;
}

static im_status measure_links(machine_rank *b, im_device *d, im_comm *world)
{
    im_comm *local = NULL, *far = NULL;
    im_bench_comm_rank r;
    size_t most = (size_t)b->o->most / 4 * 4;
    bool several = b->size > b->local, first = b->rank % b->local == 0;
    if (b->size < 2)
        return IM_OK;
    IM_TRY(im_bench_comm_open(world, d, most, &r));
    im_status status = several && b->local > 1 ? split(b, world, false, &local) : IM_OK;
    if (status == IM_OK && b->local > 1)
        status = turns(&r, local ? local : world, "all_reduce", most, b->row, &b->reduces);
    b->n = b->reduces;
    if (status == IM_OK && b->local > 1)
        status = turns(&r, local ? local : world, "sendrecv", most, b->row, &b->n);
    if (status == IM_OK && several && first)
        status = split(b, world, true, &far);
    if (status == IM_OK && far)
        status = turns(&r, far, "sendrecv", most, b->far, &b->nfar);
    im_comm_destroy(far);
    im_comm_destroy(local);
    return status;
}

static im_status run_rank(void *arg, const im_bench_seat *s)
{
    machine_rank *all = arg, *b = all->mpi ? all : &all[s->rank];
    b->ctx = s->ctx;
    b->rank = s->rank;
    IM_TRY(measure_device(b));
    return measure_links(b, s->d, s->c);
}

/* ---- storage ----------------------------------------------------------------------- */

static im_status measure_storage(im_cli *cli, const machine_options *o, double *rate)
{
    char *path = im_arena_printf(cli->arena, "%s/.imece-bench-%d", o->storage, (int)getpid());
    unsigned char *data = malloc((size_t)o->written);
    if (!path || !data) {
        free(data);
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for %lld bytes to write", (long long)o->written);
    }
    for (int64_t i = 0; i < o->written; i++)
        data[i] = (unsigned char)((uint64_t)i * 0x9e3779b97f4a7c15u >> 56);
    double start = im_clock_now();
    im_status status = im_file_write_atomic(cli->ctx, path, data, (size_t)o->written); /* to the disk, as a checkpoint */
    *rate = (double)o->written / (im_clock_now() - start);
    unlink(path);
    free(data);
    return status;
}

/* ---- the file ------------------------------------------------------------------------ */

static void curve(im_cluster *c, int t, const double *flops)
{
    im_number n = t ? IM_NUMBER_BF16 : IM_NUMBER_FP32;
    im_curve *k = &c->device.matmul[n];
    for (int i = 0; i < SIZES; i++)
        c->device.peak[n] = fmax(c->device.peak[n], flops[i]);
    for (k->n = 0; k->n < SIZES; k->n++) {
        k->x[k->n] = (double)sizes[k->n];
        k->y[k->n] = flops[k->n] / c->device.peak[n];
    }
}

/* A message as alpha and beta: the smallest, and the largest. */
static void message(const im_bench_comm_row *row, size_t n, double *alpha, double *rate)
{
    *alpha = row[0].seconds;
    *rate = (double)row[n - 1].nbytes / row[n - 1].seconds;
}

static void links(im_cluster *c, const machine_rank *b)
{
    c->domain.devices = b->local > 1 ? b->local : 1;
    if (b->local > 1) {
        c->domain.kind = b->mpi ? "processes of one machine" : "threads of one process";
        c->domain.reach = 1;
        message(b->row + b->reduces, b->n - b->reduces, &c->domain.latency, &c->domain.rate);
        c->library = IM_LIBRARY_MEASURED;
        c->all_reduce_ranks = b->local;
        for (size_t i = 0; i < b->reduces && i < IM_CLUSTER_POINTS; i++, c->all_reduce.n++) {
            c->all_reduce.x[i] = (double)b->row[i].nbytes;
            c->all_reduce.y[i] = b->row[i].seconds;
        }
    }
    if (b->nfar) {
        c->network = (im_cluster_network){.kind = IM_NETWORK_TREE, .nics = 1, .reach = 1, .nlevel = 1};
        message(b->far, b->nfar, &c->network.latency, &c->network.link);
        c->network.level[0] =
            (im_cluster_level){.name = "switch", .nodes = c->nodes, .uplink = INFINITY, .per_peer = INFINITY, .oversubscription = 1};
    }
}

static im_status write_file(im_cli *cli, const machine_options *o, const machine_rank *b, double storage)
{
    static const char *const source[] = {
        "device.peak: measured: the best product of fp32 or bf16, all ranks at once",
        "device.matmul: measured: products of n x n x n",
        "device.memory: this machine's memory shared out over its ranks",
        "device.memory_rate: measured: a = b + s*c of large arrays, all ranks at once",
        "device.launch: measured: an addition of 16 numbers",
        "domain.rate: measured: messages between neighbours, all at once",
        "collectives.all_reduce: measured: one of many that are queued, the fastest of five turns",
        "storage.write: measured: one file, written to the disk",
        "network.link: measured: messages between the first ranks of the machines, all at once",
    };
    char name[64];
    const char *said[IM_COUNT_OF(source)];
    im_cluster c = {.nodes = b->size / b->local, .devices_per_node = b->local, .name = name, .host_memory = (double)im_machine_memory()};
    snprintf(name, sizeof name, "measured: %d x %d ranks of %d thread%s", c.nodes, b->local, b->threads, b->threads > 1 ? "s" : "");
    c.device = (im_cluster_device){.name = im_isa_name(im_cpu_isa()), .memory = c.host_memory / b->local, .memory_rate = b->memory.triad};
    c.device.launch = b->launch;
    c.device.memory_curve = (im_curve){.n = 1, .x = {1}, .y = {1}};
    for (int t = 0; t < 2; t++)
        curve(&c, t, b->flops[t]);
    links(&c, b);
    c.storage_write = storage;
    c.source = said;
    for (size_t i = 0; i < IM_COUNT_OF(source); i++) {
        bool without = (!strncmp(source[i], "storage", 7) && storage <= 0) || (!strncmp(source[i], "network", 7) && !b->nfar) ||
                       ((!strncmp(source[i], "domain", 6) || !strncmp(source[i], "collectives", 11)) && b->local < 2);
        if (!without)
            said[c.nsource++] = source[i];
    }
    im_str text = {0};
    im_cluster_to_yaml(&c, &text);
    im_status status = text.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a cluster file") : IM_OK;
    if (status == IM_OK && o->out)
        status = im_file_write_atomic(cli->ctx, o->out, text.data, text.len);
    else if (status == IM_OK)
        fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    return status;
}

/* ---- the command ------------------------------------------------------------------------ */

static im_status measure(im_cli *cli, machine_options *o, im_comm_mpi_world *mpi)
{
    double storage = 0;
    if (mpi)
        o->ranks = im_comm_mpi_where(mpi).size;
    machine_rank *b = calloc(mpi ? 1 : (size_t)o->ranks, sizeof *b);
    if (!b)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for %lld ranks", (long long)o->ranks);
    *b = (machine_rank){.o = o, .mpi = mpi, .size = (int)o->ranks, .local = (int)o->ranks};
    int cores = im_machine_cores();
    im_status status = IM_OK;
    if (mpi) {
        im_comm_mpi_place at = im_comm_mpi_where(mpi);
        cores = at.cores;
        b->rank = at.rank;
        b->local = at.local_size;
        if (at.size % at.local_size || at.rank % at.local_size != at.local_rank)
            status = im_fail(cli->ctx, IM_ERR_ARG,
                             "the machines have different numbers of ranks, or their ranks are not neighbours: start them with as many "
                             "on each, machine by machine");
    }
    b->threads = o->threads ? (int)o->threads : cores > b->local ? cores / b->local : 1;
    for (int64_t i = 1; !mpi && i < o->ranks; i++)
        b[i] = b[0];
    const im_bench_ranks how = {
        .ranks = (int)o->ranks, .threads = b->threads, .deadline = 300, .mpi = mpi, .self = !mpi && o->ranks == 1, .work = run_rank, .arg = b};
    if (status == IM_OK)
        status = im_bench_on_ranks(cli->ctx, &how);
    bool tells = !mpi || !b->rank;
    if (status == IM_OK && tells && o->storage)
        status = measure_storage(cli, o, &storage);
    if (status == IM_OK && tells)
        status = write_file(cli, o, b, storage);
    free(b);
    return status;
}

static int run(im_cli *cli, int argc, char **argv)
{
    machine_options o;
    im_comm_mpi_world *mpi = NULL;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = im_cli_join_job(cli, 0, &mpi);
    if (status == IM_OK)
        status = measure(cli, &o, mpi);
    return im_cli_leave_job(cli, mpi, status);
}

const im_cli_command im_cli_bench_machine_command = {
    .name = "machine",
    .help = "Measure this machine, or those of a job, into a cluster file.",
    .about = "What imece simulate --cluster takes: products by size and type, memory, messages and all-reduces between ranks, storage. All ranks "
             "measure at\n"
             "the same time, as they work in a run. Under an MPI launcher the ranks are its processes, as many on each machine:\n"
             "mpirun -n 2 imece bench machine --out cluster.yaml.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run,
};
