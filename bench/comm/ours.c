/* ours threads RANKS FIFO MOST | ours PLUGIN FIFO MOST: imece's communicators, timed on demand, for bench_comm.py; the twin of
 * raw_mpi.c. With threads all ranks are in this process; with an MPI plug-in, started by mpirun, this process is one.
 *
 * Rank r reads lines "OP BYTES TIMES" from FIFO.r; rank 0 answers "queued SECONDS waited SECONDS": of one of TIMES calls that
 * are queued one after the other, and of one that the caller waits for; and "queued,in_place SECONDS" where there is such a form.
 */
#include "cli/bench_comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_main {
    pthread_t thread;
    im_context *ctx;
    im_comm_threads_world *threads;
    im_comm_mpi_world *mpi;
    const char *fifo;
    size_t most;
    int rank;
    im_status status;
} rank_main;

static im_status turns(rank_main *r, im_bench_comm_rank *b)
{
    char path[4096], op[64];
    size_t nbytes;
    int times;
    snprintf(path, sizeof path, "%s.%d", r->fifo, r->rank);
    FILE *f = fopen(path, "r");
    if (!f)
        return im_fail(r->ctx, IM_ERR_IO, "%s cannot be opened", path);
    im_status s = IM_OK;
    while (s == IM_OK && fscanf(f, "%63s %zu %d", op, &nbytes, &times) == 3 && nbytes <= r->most) {
        im_bench_comm_row row;
        s = im_bench_comm_turn(b, op, nbytes, times, &row);
        if (s == IM_OK && !row.good)
            s = im_fail(r->ctx, IM_ERR_CHECK, "%s of %zu bytes gave a wrong result", op, nbytes);
        if (s == IM_OK && !r->rank) {
            printf("queued %.9f waited %.9f", row.seconds, row.blocking);
            if (row.in_place > 0)
                printf(" queued,in_place %.9f", row.in_place);
            putchar('\n');
            fflush(stdout);
        }
    }
    fclose(f);
    return s;
}

static im_status run_rank(rank_main *r)
{
    im_device *d;
    im_comm *c;
    im_bench_comm_rank b;
    im_status status;
    IM_TRY(im_device_open(r->ctx, &(im_device_config){.threads = 1, .comm_threads = true}, &d));
    IM_TRY_GOTO(r->mpi ? im_comm_mpi_attach(r->mpi, d, &c) : im_comm_threads_attach(r->threads, d, r->rank, &c), close_device);
    status = im_bench_comm_open(c, d, r->most, &b);
    if (status == IM_OK)
        status = turns(r, &b);
    if (status != IM_OK) {
        fprintf(stderr, "ours: rank %d: %s\n", r->rank, im_error_text(r->ctx));
        im_comm_abort(c);
    }
    im_comm_destroy(c);
close_device:
    im_device_close(d);
    return status;
}

static void *thread_main(void *arg)
{
    rank_main *r = arg;
    r->status = run_rank(r);
    return NULL;
}

static int run_threads(im_context *ctx, int size, const char *fifo, size_t most)
{
    enum { MOST_RANKS = 64 };
    static rank_main r[MOST_RANKS];
    im_comm_threads_world *world;
    int bad = 0;
    if (size < 1 || size > MOST_RANKS || im_comm_threads_world_create(ctx, &(im_comm_threads_config){.size = size}, &world) != IM_OK)
        return 1;
    for (int i = 0; i < size; i++) {
        r[i] = (rank_main){.threads = world, .fifo = fifo, .most = most, .rank = i};
        if (im_context_create(&r[i].ctx) != IM_OK || pthread_create(&r[i].thread, NULL, thread_main, &r[i]))
            return 1;
    }
    for (int i = 0; i < size; i++) {
        pthread_join(r[i].thread, NULL);
        bad |= r[i].status != IM_OK;
        im_context_destroy(r[i].ctx);
    }
    im_comm_threads_world_destroy(world);
    return bad;
}

int main(int argc, char **argv)
{
    im_context *ctx;
    if (argc < 4 || im_context_create(&ctx) != IM_OK)
        return 2;
    size_t most = (size_t)strtoull(argv[argc - 1], NULL, 10);
    if (strcmp(argv[1], "threads") == 0 && argc == 5)
        return run_threads(ctx, atoi(argv[2]), argv[3], most);
    rank_main r = {.ctx = ctx, .fifo = argv[2], .most = most};
    if (im_comm_mpi_world_create(ctx, &(im_comm_mpi_config){.plugin = argv[1]}, &r.mpi) != IM_OK) {
        fprintf(stderr, "ours: %s\n", im_error_text(ctx));
        return 1;
    }
    r.rank = im_comm_mpi_where(r.mpi).rank;
    im_status s = run_rank(&r);
    im_comm_mpi_world_destroy(r.mpi);
    im_context_destroy(ctx);
    return s != IM_OK;
}
