/* near: how the members of a group meet when all of them are processes of one machine that may read one another's memory. Then MPI
 * carries nothing. They share a small memory, where each has a cell with its frame (what it calls, the bytes of a small operation,
 * where those of a large one lie); the bytes themselves are pulled, once, from where they lie (process_vm_readv).
 *
 *     rank 0  frame --.           .-- pulls what it needs --.
 *     rank 1  frame --+-- meet ---+-- pulls what it needs --+-- meet
 *     rank 2  frame --'           '-- pulls what it needs --'
 *
 * Nobody writes into another process, so a rank that gives up may free its buffers. A memory that both sides write (a ring of pieces,
 * say) would be slower: writing lines that another core has read is what costs most. All zero is the beginning. Who waits looks for a
 * while, then sleeps on its bell, which is rung by those who arrive.
 */
#ifndef IM_COMM_MPI_NEAR_H
#define IM_COMM_MPI_NEAR_H

#include "comm/backend.h"

enum { IM_NEAR_LINE = 64, IM_NEAR_EAGER = 2048 };

typedef struct im_mpi_frame {
    im_comm_signature sig;
    unsigned char bytes[IM_NEAR_EAGER];
} im_mpi_frame;

typedef struct im_near_cell {
    _Alignas(IM_NEAR_LINE) atomic_ullong arrived; /* the last meeting that it came to */
    _Alignas(IM_NEAR_LINE) atomic_uint rings;     /* futex */
    atomic_int asleep;
    struct {
        const void *src, *dst; /* in its process */
        im_mpi_frame frame;
    } call[2]; /* by the parity of the operation: a member is at most one ahead */
} im_near_cell;

/* One direction between two members. Message k may be posted when k-1 was taken. */
typedef struct im_near_channel {
    _Alignas(IM_NEAR_LINE) atomic_ullong posted;
    const void *src;
    im_mpi_frame frame;
    _Alignas(IM_NEAR_LINE) atomic_ullong taken;
} im_near_channel;

/* This process's view of a group's memory. */
typedef struct im_near {
    char *base;
    size_t nbytes;
    int fd; /* of the member that made it: open as long as others may come; else -1 */
    int size, rank;
    uint64_t meetings, operations; /* so far */
    int32_t *pid;                  /* [size] */
} im_near;

/* What a process tells so that others find its memory: /proc/PID/fd/FD. */
typedef struct im_near_door {
    int32_t pid, fd;
} im_near_door;

/* pid is the caller's to fill. */
im_status im_near_make(im_context *ctx, int size, int rank, im_near *out) IM_MUST_CHECK;
im_near_door im_near_door_of(const im_near *x);
/* IM_ERR_NOT_FOUND: this process cannot reach it, or it is not such a memory. */
im_status im_near_enter(im_context *ctx, im_near_door door, int size, int rank, im_near *out) IM_MUST_CHECK;
void im_near_close_door(im_near *x); /* nobody else will come */
void im_near_leave(im_near *x);      /* .fd = -1 alone is fine */

im_near_cell *im_near_cell_of(const im_near *x, int member);
im_near_channel *im_near_channel_of(const im_near *x, int from, int to);
/* nbytes at `from` in a process; false: errno says why. */
bool im_near_pull(int32_t pid, const void *from, void *to, size_t nbytes);

/* Comes to the next meeting; and whether all have. */
void im_near_arrive(im_near *x);
bool im_near_is_met(const im_near *x);
void im_near_ring(im_near_cell *c); /* after a change, by a plain atomic_store, that the member may wait for */

/* for (;;) { look; if there: break; IM_TRY(im_near_pause(&w)); }, and im_near_wait_end at the end, or after progress. Errors have no
 * text: IM_ERR_TIMEOUT; IM_ERR_ABORTED when *dead. */
typedef struct im_near_wait {
    im_near_cell *mine;
    const atomic_bool *dead;
    double spin;            /* seconds of looking before it sleeps; 0: at once, as there are fewer cores than ranks */
    double start, deadline; /* start 0: at the first pause; seconds from start */
    double idle;            /* since when nothing happened; 0: not known yet */
    unsigned looks, seen;
} im_near_wait;
im_status im_near_pause(im_near_wait *w) IM_MUST_CHECK;
void im_near_wait_end(im_near_wait *w);

#endif
