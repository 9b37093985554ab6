/* comm: one communicator = one list of ranks, used on one queue. Backends: self (one rank), threads (ranks of one
 * process), mpi; the decorators traced and faulty wrap any. docs/comm.md maps each call to NCCL's and MPI's.
 *
 * Calls enqueue and return; the result is there when *done is. A count is in elements and never without its dtype.
 * Sums of bf16 and fp16 are made in fp32, in the order of ranks, so that the same layout twice gives the same bits.
 *
 * Buffers of a call are the same place, or do not overlap; all_gather's own part may lie where it will be in `out`, and
 * reduce_scatter's result may lie where the own part is in `in`. All members call the same operations in the same order
 * with the same arguments; where they differ, each of them gets an error that names who called what. Sums of integers
 * wrap; a NaN is kept by sums, MAX and MIN alike.
 *
 * A communicator and its queue are used by one thread; im_comm_error and im_comm_abort by any. Every wait has a
 * deadline. After an error or an abort a communicator is dead, and so is every other one of its world.
 */
#ifndef IM_COMM_H
#define IM_COMM_H

#include "device/device.h"

typedef struct im_comm im_comm; /* im_reduce: imece.h */

/* ---- worlds ------------------------------------------------------------------------ */

im_status im_comm_self(im_device *d, im_comm **out) IM_MUST_CHECK; /* the world of one rank */

/* Ranks as threads of this process; each has a context and a device with comm_threads (or deferred). */
typedef struct im_comm_threads_world im_comm_threads_world;
typedef struct im_comm_threads_config {
    int size;
    double deadline; /* seconds that a rank waits for the others in one operation; 0: 300 */
    int cores;       /* shared by the ranks; 0: im_machine_cores(). With fewer cores than ranks, waits sleep at once */
} im_comm_threads_config;
im_status im_comm_threads_world_create(im_context *ctx, const im_comm_threads_config *cfg, im_comm_threads_world **out) IM_MUST_CHECK;
void im_comm_threads_world_destroy(im_comm_threads_world *w); /* after the communicators of all its ranks; NULL is allowed */
im_status im_comm_threads_attach(im_comm_threads_world *w, im_device *d, int rank, im_comm **out) IM_MUST_CHECK;

/* Ranks are the processes of an MPI job, one world a process. MPI is loaded from a plug-in, imece_openmpi.so or
 * imece_mpich.so: the one of the launcher that started the job. */
/* Which of them a launcher left in the environment: "openmpi" (mpirun; srun --mpi=pmix), "mpich" (mpirun; srun --mpi=pmi2), NULL: none. */
const char *im_comm_mpi_launcher(char *(*environment)(const char *name));
typedef struct im_comm_mpi_world im_comm_mpi_world;
typedef struct im_comm_mpi_config {
    const char *plugin;  /* path */
    double deadline;     /* seconds that a rank waits for the others in one operation; 0: 300 */
    double start;        /* seconds that it waits for all others to start MPI; 0: 300 */
    int cores;           /* of this machine, shared by its ranks; 0: all that they may use. With two for each rank, waits spin */
    size_t piece, block; /* bytes of a message at most, and of a step of a sum (multiple of 64); 0: 1 GiB, 256 KiB */
    bool apart;          /* MPI's messages also between ranks of one machine, which else share memory */
} im_comm_mpi_config;
typedef struct im_comm_mpi_place {
    int rank, size, local_rank, local_size; /* local: of this machine */
    int cores;                              /* of this machine, that its ranks may use together: each may be bound to some */
    const char *library;                    /* "Open MPI v4.1.4"; lives as long as the world */
} im_comm_mpi_place;
/* All ranks refuse alike: a rank that is another build of this program (IM_ERR_ARG), an MPI without the thread level SERIALIZED
 * (IM_ERR_UNSUPPORTED). IM_ERR_TIMEOUT: some process of the job did not come; then the caller ends its process, as MPI is half started. */
im_status im_comm_mpi_world_create(im_context *ctx, const im_comm_mpi_config *cfg, im_comm_mpi_world **out) IM_MUST_CHECK;
im_comm_mpi_place im_comm_mpi_where(const im_comm_mpi_world *w);
void im_comm_mpi_world_deadline(im_comm_mpi_world *w, double seconds); /* in place of the configured one; before ranks attach */
/* After the communicators. Waits for all ranks. After a failure it does not finalize MPI, so that the launcher ends the job
 * with an error; when ranks do not come to it in time it ends the processes of the job. NULL is allowed. */
void im_comm_mpi_world_destroy(im_comm_mpi_world *w);
/* With what code this process is about to end; before destroy, which may tell the launcher of a job that failed. */
void im_comm_mpi_world_exit_code(im_comm_mpi_world *w, int code);
/* As im_comm_abort, when there may be no communicator yet. */
void im_comm_mpi_world_abort(im_comm_mpi_world *w, const char *reason);
void im_comm_mpi_world_give_up(im_comm_mpi_world *w, const char *reason); /* the same, when it is not this rank that failed */
im_status im_comm_mpi_attach(im_comm_mpi_world *w, im_device *d, im_comm **out) IM_MUST_CHECK;

/* ---- decorators: they take `inner` over when they succeed; what is split off is decorated too ------ */

/* Keeps the last 4,096 operations of a rank, all its groups together, in a mapped file (ring.h). Replaces the file. path NULL: in memory,
 * until im_comm_ring_place. */
im_status im_comm_traced(im_comm *inner, const char *path, im_comm **out) IM_MUST_CHECK;

typedef enum im_comm_fault_kind {
    IM_FAULT_DELAY,   /* the operation starts `seconds` late */
    IM_FAULT_DROP,    /* it is not done here, and counts as done */
    IM_FAULT_DIE,     /* the rank fails before it; with `process` the process is killed by SIGKILL */
    IM_FAULT_CORRUPT, /* one bit of its result (of a send: of what arrives) is flipped */
    IM_FAULT_NAN,     /* the first value of its result is NaN; of integers all bits are set */
    IM_FAULT_MISMATCH /* the others of the group find that this rank calls it with another type */
} im_comm_fault_kind;
typedef struct im_comm_fault {
    im_comm_fault_kind kind;
    uint64_t at;     /* the operation, counted over all communicators of this rank in the order of the calls, from 1; */
    uint64_t within; /* 0: one of 1..within, drawn from the seed */
    int64_t step;    /* above 0: counted are the operations of this step alone (im_comm_note); */
    char what[40];   /* and of the instructions that begin so */
    double seconds;
    uint64_t seed;
    bool process;
} im_comm_fault;
im_status im_comm_faulty(im_comm *inner, const im_comm_fault *f, im_comm **out) IM_MUST_CHECK;

/* ---- groups -------------------------------------------------------------------------- */

/* ranks are of `world`; every one of them calls with the same list, in the same order of splits. */
im_status im_comm_split(im_comm *world, const int *ranks, int n, im_comm **out) IM_MUST_CHECK;
void im_comm_destroy(im_comm *c); /* waits for its operations; before its device is closed. NULL is allowed */
int im_comm_rank(const im_comm *c);
int im_comm_size(const im_comm *c);
const char *im_comm_backend(const im_comm *c); /* "threads"; of a decorator: what it wraps */
/* Seconds that later operations of this communicator wait for the others; set while none is on its way. What is split off has its parent's. */
void im_comm_set_deadline(im_comm *c, double seconds);
double im_comm_deadline(const im_comm *c);

/* ---- operations ------------------------------------------------------------------------ */

im_status im_comm_all_reduce(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count, im_dtype t, im_reduce r,
                             im_event *done) IM_MUST_CHECK;
/* in: sum of counts[0..size) elements; out: counts[rank]. */
im_status im_comm_reduce_scatter(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_reduce r,
                                 im_event *done) IM_MUST_CHECK;
im_status im_comm_all_gather(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_event *done) IM_MUST_CHECK;
im_status im_comm_broadcast(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int root, im_event *done) IM_MUST_CHECK;
im_status im_comm_all_to_all(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count_per_rank, im_dtype t, im_event *done) IM_MUST_CHECK;
/* Messages between two ranks keep their order. A send is done when its buffer is free, at the latest when it was received.
 * A message to oneself is there when the later of its two calls is. */
im_status im_comm_send(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done) IM_MUST_CHECK;
im_status im_comm_recv(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done) IM_MUST_CHECK;
im_status im_comm_barrier(im_comm *c, im_queue *q, im_event *done) IM_MUST_CHECK;
/* Sends and receives between the two (nothing else) go as one; their *done is written by group_end. */
im_status im_comm_group_begin(im_comm *c) IM_MUST_CHECK;
im_status im_comm_group_end(im_comm *c) IM_MUST_CHECK;

/* What this rank does from now on, in a step (0: in none): rings keep it with the operations that are called next, on all communicators of the
 * rank. By the thread that calls them; c: any of them. */
void im_comm_note(im_comm *c, int64_t step, const char *what);

/* ---- failure ------------------------------------------------------------------------------ */

im_status im_comm_error(im_comm *c) IM_MUST_CHECK; /* asynchronous error, polled by the watchdog */
/* Wakes every waiter of every rank and communicator of the world; all of it is dead. The others are told this rank and
 * the text of its context's error. */
void im_comm_abort(im_comm *c);
bool im_comm_dead(const im_comm *c); /* an operation of it failed, or it was aborted; any thread, and no error is recorded */

/* ---- accounts ------------------------------------------------------------------------------- */

typedef enum im_comm_op {
    IM_COMM_ALL_REDUCE,
    IM_COMM_REDUCE_SCATTER,
    IM_COMM_ALL_GATHER,
    IM_COMM_BROADCAST,
    IM_COMM_ALL_TO_ALL,
    IM_COMM_SEND,
    IM_COMM_RECV,
    IM_COMM_BARRIER,
    IM_COMM_OP_COUNT
} im_comm_op;
const char *im_comm_op_name(im_comm_op op); /* "all_reduce" */

typedef struct im_comm_count {
    uint64_t calls, nbytes; /* nbytes: of the larger of the rank's two buffers */
} im_comm_count;
void im_comm_counts(const im_comm *c, im_comm_count out[IM_COMM_OP_COUNT]); /* of what was enqueued */

#endif
