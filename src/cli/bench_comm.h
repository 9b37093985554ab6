/* bench_comm: what `imece bench comm` runs on one rank, whatever its world is made of. */
#ifndef IM_CLI_BENCH_COMM_H
#define IM_CLI_BENCH_COMM_H

#include "comm/comm.h"

typedef struct im_bench_comm_row {
    const char *op;
    size_t nbytes;            /* as nccl-tests count: of the whole, reduced or gathered; of one message */
    double seconds, blocking; /* medians: one of many in a queue; one that the host waits for */
    double in_place;          /* as seconds, in place; a turn's, where there is such a form */
    double share;             /* bus bandwidth = share x algorithm bandwidth: what crosses a link */
    bool good;                /* the result was right */
} im_bench_comm_row;

enum { IM_BENCH_COMM_OPS = 6 };
extern const char *const im_bench_comm_ops[IM_BENCH_COMM_OPS];

/* What a rank times with: its communicator, and two buffers of most bytes. */
typedef struct im_bench_comm_rank {
    im_comm *c;
    im_device *d;
    im_queue *q;
    im_buffer in, out;
    int op;
    bool in_place;
    size_t n; /* fp32 elements of the whole */
} im_bench_comm_rank;

/* Called by all ranks alike, with nothing reserved on the device. */
im_status im_bench_comm_open(im_comm *world, im_device *d, size_t most, im_bench_comm_rank *out) IM_MUST_CHECK;
/* One turn instead of medians: one of `many` calls that are queued, one of `many` that are waited for. nbytes <= most. */
im_status im_bench_comm_turn(im_bench_comm_rank *b, const char *op, size_t nbytes, int many, im_bench_comm_row *row) IM_MUST_CHECK;

/* Called by all ranks alike, with nothing reserved on the device; the figures are of this rank. done[ops chosen x sizes] is
 * filled up to *n. only: the op's name, NULL: all. Sizes from least to most, times 4 (8 B to 16 MiB: 12). */
im_status im_bench_comm(im_comm *world, im_device *d, const char *only, size_t least, size_t most, im_bench_comm_row *row, size_t *n) IM_MUST_CHECK;

#endif
