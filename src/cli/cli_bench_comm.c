/* imece bench comm: what communication between ranks costs here. */
#include "cli/bench_comm.h"
#include "cli/launch.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct comm_options {
    int64_t ranks, least, most;
    int backend, op;
    bool json;
} comm_options;

#define ROW(field) .offset = offsetof(comm_options, field)
static const im_option rows[] = {
    {.name = "ranks",
     .type = IM_OPT_INT,
     .value = "N",
     .fallback = "2",
     .min = 1,
     .max = 64,
     .help = "Ranks. Under mpirun or srun each process is one.",
     ROW(ranks)},
    {.name = "backend", .type = IM_OPT_CHOICE, .choices = "threads|self", .fallback = "threads", .help = "What carries the data.", ROW(backend)},
    {.name = "op",
     .type = IM_OPT_CHOICE,
     .choices = "all|all_reduce|reduce_scatter|all_gather|broadcast|all_to_all|sendrecv",
     .fallback = "all",
     .help = "Only this operation.",
     ROW(op)},
    {.name = "min",
     .type = IM_OPT_INT,
     .value = "BYTES",
     .fallback = "8",
     .min = 4,
     .max = 1e12,
     .help = "Smallest size; the next is 4 times as large.",
     ROW(least)},
    {.name = "max", .type = IM_OPT_INT, .value = "BYTES", .fallback = "16Mi", .min = 4, .max = 1e12, .help = "Largest size.", ROW(most)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as one JSON object.", ROW(json)},
};
#undef ROW

enum { MOST_ROWS = IM_BENCH_COMM_OPS * 24 };

typedef struct bench_rank {
    pthread_t thread;
    im_context *ctx;
    im_comm_threads_world *world;
    im_comm_mpi_world *mpi; /* both NULL: self */
    const comm_options *o;
    int rank;
    im_status status;
    im_bench_comm_row row[MOST_ROWS];
    size_t n;
} bench_rank;

static im_status run_rank(bench_rank *b)
{
    im_device *d;
    im_comm *c = NULL;
    const comm_options *o = b->o;
    IM_TRY(im_device_open(b->ctx, &(im_device_config){.threads = 1, .comm_threads = true}, &d));
    im_status status;
    if (b->mpi)
        IM_TRY_GOTO(im_comm_mpi_attach(b->mpi, d, &c), close_device);
    else
        IM_TRY_GOTO(b->world ? im_comm_threads_attach(b->world, d, b->rank, &c) : im_comm_self(d, &c), close_device);
    const char *only = o->op ? im_bench_comm_ops[o->op - 1] : NULL;
    status = im_bench_comm(c, d, only, (size_t)o->least, (size_t)o->most, b->row, &b->n);
    if (status != IM_OK)
        im_comm_abort(c);
    im_comm_destroy(c);
close_device:
    im_device_close(d);
    return status;
}

static void *rank_main(void *arg)
{
    bench_rank *b = arg;
    b->status = run_rank(b);
    return NULL;
}

static void print_rows(const comm_options *o, const bench_rank *b, im_str *out)
{
    const char *backend = b->mpi ? "mpi" : b->world ? "threads" : "self";
    int cores = b->mpi ? im_comm_mpi_where(b->mpi).cores : im_machine_cores();
    if (o->json)
        im_str_printf(out, "{\"backend\":\"%s\",\"ranks\":%lld,\"cores\":%d,\"rows\":[", backend, (long long)o->ranks, cores);
    else
        im_str_printf(out, "%lld ranks (%s), %d cores, fp32; medians of rank 0\n%-16s%12s%12s%12s%12s%12s\n", (long long)o->ranks, backend, cores,
                      "operation", "bytes", "us queued", "us waited", "alg GB/s", "bus GB/s");
    for (size_t i = 0; i < b->n; i++) {
        const im_bench_comm_row *r = &b->row[i];
        double rate = (double)r->nbytes / r->seconds;
        if (o->json)
            im_str_printf(
                out, "%s{\"op\":\"%s\",\"bytes\":%zu,\"ranks\":%lld,\"us\":%.5g,\"us_blocking\":%.5g,\"algbw\":%.5g,\"busbw\":%.5g,\"right\":%s}",
                i ? "," : "", r->op, r->nbytes, (long long)o->ranks, r->seconds * 1e6, r->blocking * 1e6, rate, rate * r->share,
                r->good ? "true" : "false");
        else
            im_str_printf(out, "%-16s%12zu%12.2f%12.2f%12.3f%12.3f%s\n", r->op, r->nbytes, r->seconds * 1e6, r->blocking * 1e6, rate * 1e-9,
                          rate * r->share * 1e-9, r->good ? "" : "  WRONG");
    }
    if (o->json)
        im_str_append(out, "]}\n");
}

/* This process is one rank. */
static im_status run_process(im_cli *cli, bench_rank *b, im_comm_mpi_world *mpi)
{
    b->mpi = mpi;
    b->ctx = cli->ctx;
    b->rank = im_comm_mpi_where(mpi).rank;
    return run_rank(b);
}

/* Ranks are threads; the first error of one is told as the command's. */
static im_status run_ranks(im_cli *cli, const comm_options *o, bench_rank *b, im_comm_mpi_world *mpi)
{
    b->o = o;
    if (mpi)
        return run_process(cli, b, mpi);
    im_comm_threads_world *world = NULL;
    int n = 0;
    im_status status = IM_OK;
    if (o->backend == 0)
        IM_TRY(im_comm_threads_world_create(cli->ctx, &(im_comm_threads_config){.size = (int)o->ranks, .deadline = 120}, &world));
    for (; n < o->ranks && status == IM_OK; n++) {
        b[n].world = world;
        b[n].o = o;
        b[n].rank = n;
        status = im_context_create(&b[n].ctx);
        if (status == IM_OK && pthread_create(&b[n].thread, NULL, rank_main, &b[n]) != 0) {
            im_context_destroy(b[n].ctx);
            status = im_fail(cli->ctx, IM_ERR_NOMEM, "no thread for rank %d", n);
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(b[i].thread, NULL);
        if (b[i].status != IM_OK && status == IM_OK)
            status = im_fail(cli->ctx, b[i].status, "rank %d: %s", i, im_error_text(b[i].ctx));
        im_context_destroy(b[i].ctx);
    }
    im_comm_threads_world_destroy(world);
    return status;
}

static int run_comm(im_cli *cli, int argc, char **argv)
{
    comm_options o;
    im_str out = {0};
    bench_rank *b = NULL;
    im_comm_mpi_world *mpi = NULL;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK && o.backend == 0)
        status = im_cli_join_job(cli, 0, &mpi);
    if (mpi)
        o.ranks = im_comm_mpi_where(mpi).size;
    if (status == IM_OK && o.backend == 1 && o.ranks != 1)
        status = im_fail(cli->ctx, IM_ERR_ARG, "--backend self has one rank, not %lld", (long long)o.ranks);
    if (status == IM_OK && (o.least > o.most || o.least % 4 || o.most % 4))
        status =
            im_fail(cli->ctx, IM_ERR_ARG, "sizes from --min %lld to --max %lld: multiples of 4, ascending", (long long)o.least, (long long)o.most);
    if (status == IM_OK && !(b = calloc((size_t)o.ranks, sizeof *b)))
        status = im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for %lld ranks", (long long)o.ranks);
    if (status == IM_OK)
        status = run_ranks(cli, &o, b, mpi);
    if (status == IM_OK && !(mpi && b->rank)) {
        print_rows(&o, &b[0], &out);
        fputs(im_str_text(&out), stdout);
    }
    for (int64_t k = 0; status == IM_OK && k < (mpi ? 1 : o.ranks); k++)
        for (size_t i = 0; i < b[k].n && status == IM_OK; i++)
            if (!b[k].row[i].good)
                status =
                    im_fail(cli->ctx, IM_ERR_CHECK, "rank %d: %s of %zu bytes gave a wrong result", b[k].rank, b[k].row[i].op, b[k].row[i].nbytes);
    im_str_free(&out);
    free(b);
    return im_cli_leave_job(cli, mpi, status);
}

const im_cli_command im_cli_bench_comm_command = {
    .name = "comm",
    .help = "Measure communication between ranks.",
    .about = "For each operation and size: the time of one of many that are queued one after the other, and of one that the caller waits\n"
             "for; the algorithm bandwidth (bytes / time) and the bus bandwidth (what crosses the link of a rank, as nccl-tests count).\n"
             "Every operation's result is checked; a wrong one ends the command with 3. Under an MPI launcher the ranks are its\n"
             "processes: mpirun -n 2 imece bench comm.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_comm,
};
