/* bench_comm: what `imece bench comm` runs on one rank, whatever its world is made of. */
#ifndef IM_CLI_BENCH_COMM_H
#define IM_CLI_BENCH_COMM_H

#include "comm/comm.h"

typedef struct im_bench_comm_row {
    const char *op;
    size_t nbytes;            /* as nccl-tests count: of the whole, reduced or gathered; of one message */
    double seconds, blocking; /* medians: one of many in a queue; one that the host waits for */
    double share;             /* bus bandwidth = share x algorithm bandwidth: what crosses a link */
    bool good;                /* the result was right */
} im_bench_comm_row;

enum { IM_BENCH_COMM_OPS = 6 };
extern const char *const im_bench_comm_ops[IM_BENCH_COMM_OPS];

/* Called by all ranks alike, with nothing reserved on the device; the figures are of this rank. done[ops chosen x sizes] is
 * filled up to *n. only: the op's name, NULL: all. Sizes from least to most, times 4 (8 B to 16 MiB: 12). */
im_status im_bench_comm(im_comm *world, im_device *d, const char *only, size_t least, size_t most, im_bench_comm_row *row, size_t *n) IM_MUST_CHECK;

#endif
