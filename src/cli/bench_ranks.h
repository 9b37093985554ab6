/* bench_ranks: the same work on all ranks of a measurement: threads of this process, or this one process of a job. */
#ifndef IM_CLI_BENCH_RANKS_H
#define IM_CLI_BENCH_RANKS_H

#include "comm/comm.h"

/* What a rank has, opened. */
typedef struct im_bench_seat {
    int rank;
    im_context *ctx;
    im_device *d;
    im_comm *c; /* of all ranks */
} im_bench_seat;

typedef struct im_bench_ranks {
    int ranks, threads;                                   /* threads: of each rank */
    double deadline;                                      /* seconds of an operation, where ranks are threads */
    im_comm_mpi_world *mpi;                               /* this process is one rank; NULL: all ranks are threads of it */
    bool self;                                            /* one rank that needs no world */
    im_status (*work)(void *arg, const im_bench_seat *s); /* by each rank, at the same time */
    void *arg;
} im_bench_ranks;

/* Returns when all have ended. Of errors the one that says most of the cause. */
im_status im_bench_on_ranks(im_context *ctx, const im_bench_ranks *how) IM_MUST_CHECK;

#endif
