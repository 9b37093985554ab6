/* imece bench comm: what communication between ranks costs here. */
#include "cli/bench_comm.h"
#include "cli/bench_ranks.h"
#include "cli/launch.h"

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
    im_bench_comm_row row[MOST_ROWS];
    size_t n;
} bench_rank;

typedef struct bench {
    const comm_options *o;
    im_comm_mpi_world *mpi;
    bench_rank *rank; /* [ranks]; of a job, this process's alone */
} bench;

static im_status run_rank(void *arg, const im_bench_seat *s)
{
    bench *b = arg;
    bench_rank *r = &b->rank[b->mpi ? 0 : s->rank];
    const char *only = b->o->op ? im_bench_comm_ops[b->o->op - 1] : NULL;
    return im_bench_comm(s->c, s->d, only, (size_t)b->o->least, (size_t)b->o->most, r->row, &r->n);
}

static void print_rows(const bench *b, im_str *out)
{
    const comm_options *o = b->o;
    const bench_rank *mine = &b->rank[0];
    const char *backend = b->mpi ? "mpi" : o->backend == 0 ? "threads" : "self";
    int cores = b->mpi ? im_comm_mpi_where(b->mpi).cores : im_machine_cores();
    if (o->json)
        im_str_printf(out, "{\"backend\":\"%s\",\"ranks\":%lld,\"cores\":%d,\"rows\":[", backend, (long long)o->ranks, cores);
    else
        im_str_printf(out, "%lld ranks (%s), %d cores, fp32; medians of rank 0\n%-16s%12s%12s%12s%12s%12s\n", (long long)o->ranks, backend, cores,
                      "operation", "bytes", "us queued", "us waited", "alg GB/s", "bus GB/s");
    for (size_t i = 0; i < mine->n; i++) {
        const im_bench_comm_row *r = &mine->row[i];
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

static im_status all_right(im_cli *cli, const bench *b)
{
    int first = b->mpi ? im_comm_mpi_where(b->mpi).rank : 0;
    for (int64_t k = 0; k < (b->mpi ? 1 : b->o->ranks); k++)
        for (size_t i = 0; i < b->rank[k].n; i++)
            if (!b->rank[k].row[i].good)
                return im_fail(cli->ctx, IM_ERR_CHECK, "rank %lld: %s of %zu bytes gave a wrong result", (long long)(first + k), b->rank[k].row[i].op,
                               b->rank[k].row[i].nbytes);
    return IM_OK;
}

static im_status measure(im_cli *cli, const comm_options *o, im_comm_mpi_world *mpi)
{
    void *memory;
    im_str out = {0};
    IM_TRY(im_alloc(cli->ctx, mpi ? 1 : (size_t)o->ranks, sizeof(bench_rank), &memory));
    bench b = {.o = o, .mpi = mpi, .rank = memory};
    const im_bench_ranks how = {
        .ranks = (int)o->ranks, .threads = 1, .deadline = 120, .mpi = mpi, .self = o->backend == 1, .work = run_rank, .arg = &b};
    im_status status = im_bench_on_ranks(cli->ctx, &how);
    if (status == IM_OK && !(mpi && im_comm_mpi_where(mpi).rank)) {
        print_rows(&b, &out);
        fputs(im_str_text(&out), stdout);
    }
    if (status == IM_OK)
        status = all_right(cli, &b);
    im_str_free(&out);
    free(b.rank);
    return status;
}

static int run_comm(im_cli *cli, int argc, char **argv)
{
    comm_options o;
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
    if (status == IM_OK)
        status = measure(cli, &o, mpi);
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
