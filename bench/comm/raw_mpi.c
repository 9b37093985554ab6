/* raw_mpi FIFO MOST: MPI's own calls, timed on demand, for bench_comm.py. Knows nothing of imece.
 *
 * Rank r reads lines "OP BYTES TIMES" from FIFO.r (so that a rank without work sleeps), and does OP with each call that MPI has
 * for it: blocking and non-blocking, in place where that is the same operation. Rank 0 answers a line of "NAME SECONDS" pairs,
 * seconds of one of TIMES calls in a row. Buffers are pre-touched, in huge pages where the system gives them. fp32 sums.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct job {
    float *in, *out;
    int n, share; /* elements of the whole, of each rank */
    int rank, size;
    int *counts;
} job;

typedef void (*call_fn)(const job *j);

static void wait_for(MPI_Request *r)
{
    MPI_Wait(r, MPI_STATUS_IGNORE);
}

/* ---- the calls ---------------------------------------------------------------------- */

static void allreduce(const job *j)
{
    MPI_Allreduce(j->in, j->out, j->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allreduce_in_place(const job *j)
{
    MPI_Allreduce(MPI_IN_PLACE, j->out, j->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void iallreduce(const job *j)
{
    MPI_Request r;
    MPI_Iallreduce(j->in, j->out, j->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void iallreduce_in_place(const job *j)
{
    MPI_Request r;
    MPI_Iallreduce(MPI_IN_PLACE, j->out, j->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void reduce_scatter_block(const job *j)
{
    MPI_Reduce_scatter_block(j->in, j->out, j->share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter_block_in_place(const job *j)
{
    MPI_Reduce_scatter_block(MPI_IN_PLACE, j->out, j->share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(const job *j)
{
    MPI_Reduce_scatter(j->in, j->out, j->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void ireduce_scatter_block(const job *j)
{
    MPI_Request r;
    MPI_Ireduce_scatter_block(j->in, j->out, j->share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void allgather(const job *j)
{
    MPI_Allgather(j->in, j->share, MPI_FLOAT, j->out, j->share, MPI_FLOAT, MPI_COMM_WORLD);
}

static void allgather_in_place(const job *j)
{
    MPI_Allgather(MPI_IN_PLACE, j->share, MPI_FLOAT, j->out, j->share, MPI_FLOAT, MPI_COMM_WORLD);
}

static void iallgather(const job *j)
{
    MPI_Request r;
    MPI_Iallgather(j->in, j->share, MPI_FLOAT, j->out, j->share, MPI_FLOAT, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void bcast(const job *j)
{
    MPI_Bcast(j->out, j->n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void ibcast(const job *j)
{
    MPI_Request r;
    MPI_Ibcast(j->out, j->n, MPI_FLOAT, 0, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void alltoall(const job *j)
{
    MPI_Alltoall(j->in, j->share, MPI_FLOAT, j->out, j->share, MPI_FLOAT, MPI_COMM_WORLD);
}

static void ialltoall(const job *j)
{
    MPI_Request r;
    MPI_Ialltoall(j->in, j->share, MPI_FLOAT, j->out, j->share, MPI_FLOAT, MPI_COMM_WORLD, &r);
    wait_for(&r);
}

static void sendrecv(const job *j)
{
    MPI_Sendrecv(j->in, j->n, MPI_FLOAT, (j->rank + 1) % j->size, 1, j->out, j->n, MPI_FLOAT, (j->rank + j->size - 1) % j->size, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static void isend_irecv(const job *j)
{
    MPI_Request r[2];
    MPI_Irecv(j->out, j->n, MPI_FLOAT, (j->rank + j->size - 1) % j->size, 1, MPI_COMM_WORLD, &r[0]);
    MPI_Isend(j->in, j->n, MPI_FLOAT, (j->rank + 1) % j->size, 1, MPI_COMM_WORLD, &r[1]);
    MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
}

static const struct {
    const char *op, *name;
    call_fn fn;
} calls[] = {
    {"all_reduce", "MPI_Allreduce", allreduce},
    {"all_reduce", "MPI_Allreduce,in_place", allreduce_in_place},
    {"all_reduce", "MPI_Iallreduce", iallreduce},
    {"all_reduce", "MPI_Iallreduce,in_place", iallreduce_in_place},
    {"reduce_scatter", "MPI_Reduce_scatter_block", reduce_scatter_block},
    {"reduce_scatter", "MPI_Reduce_scatter_block,in_place", reduce_scatter_block_in_place},
    {"reduce_scatter", "MPI_Reduce_scatter", reduce_scatter},
    {"reduce_scatter", "MPI_Ireduce_scatter_block", ireduce_scatter_block},
    {"all_gather", "MPI_Allgather", allgather},
    {"all_gather", "MPI_Allgather,in_place", allgather_in_place},
    {"all_gather", "MPI_Iallgather", iallgather},
    {"broadcast", "MPI_Bcast", bcast},
    {"broadcast", "MPI_Ibcast", ibcast},
    {"all_to_all", "MPI_Alltoall", alltoall},
    {"all_to_all", "MPI_Ialltoall", ialltoall},
    {"sendrecv", "MPI_Sendrecv", sendrecv},
    {"sendrecv", "MPI_Isend+Irecv", isend_irecv},
};

/* ---- turns ---------------------------------------------------------------------------- */

static float *buffer(size_t nbytes)
{
    size_t most = nbytes + 4096;
    void *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, most, MADV_HUGEPAGE);
    memset(p, 0, most);
    return p;
}

static double timed(const job *j, call_fn fn, int times)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double t0 = MPI_Wtime();
    for (int i = 0; i < times; i++)
        fn(j);
    return (MPI_Wtime() - t0) / times;
}

static void turn(job *j, const char *op, size_t nbytes, int times)
{
    j->n = (int)(nbytes / sizeof(float));
    j->share = j->n / j->size;
    for (int i = 0; i < j->size; i++)
        j->counts[i] = j->share;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].op, op) != 0)
            continue;
        calls[i].fn(j);
        double seconds = timed(j, calls[i].fn, times);
        if (!j->rank)
            printf("%s %.9f ", calls[i].name, seconds);
    }
    if (!j->rank) {
        putchar('\n');
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    job j = {0};
    char path[4096], op[64];
    size_t nbytes, most;
    int times;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &j.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j.size);
    if (argc != 3)
        return 2;
    most = (size_t)strtoull(argv[2], NULL, 10);
    snprintf(path, sizeof path, "%s.%d", argv[1], j.rank);
    FILE *f = fopen(path, "r");
    j.in = buffer(most);
    j.out = buffer(most);
    j.counts = calloc((size_t)j.size, sizeof *j.counts);
    if (!f || !j.in || !j.out || !j.counts)
        MPI_Abort(MPI_COMM_WORLD, 1);
    while (fscanf(f, "%63s %zu %d", op, &nbytes, &times) == 3 && nbytes <= most)
        turn(&j, op, nbytes, times);
    MPI_Finalize();
    return 0;
}
