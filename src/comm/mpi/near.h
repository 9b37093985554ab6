/* near: memory that the members of a group share when all of them are processes of one machine. Then MPI carries nothing:
 * each byte is copied twice between two caches, without a system call, while both copies go on at once.
 *
 * Each member has a cell with its frame (what it calls, and the bytes of a small operation), and a belt: a ring of slots of
 * which it fills one after the other, and which the readers of a slot empty. Which piece of an operation lies in which slot
 * follows from the arguments alone, which are known to agree when the frames do; so nothing is negotiated.
 *
 *     rank 0  frame --.            .-- fills slots 0, 1, 2, ... 0, 1, ... --.   over when its pieces lie in slots and
 *     rank 1  frame --+-- compare -+-- fills slots, empties rank 0's      --+-  those of the others are taken
 *     rank 2  frame --'            '-- fills slots, empties rank 0's      --'
 *
 * Messages between two members have a belt of their own for each direction. All zero is the beginning: nothing is set up.
 * Who waits looks for a while, then sleeps on its bell, which is rung by those who fill, empty or arrive.
 */
#ifndef IM_COMM_MPI_NEAR_H
#define IM_COMM_MPI_NEAR_H

#include "comm/backend.h"

#include <sys/types.h>

enum { IM_NEAR_LINE = 64, IM_NEAR_EAGER = 2048, IM_NEAR_LANE_SLOTS = 8, IM_NEAR_LANE_PIECE = 32 << 10 };

typedef struct im_mpi_frame {
    im_comm_signature sig;
    unsigned char bytes[IM_NEAR_EAGER];
} im_mpi_frame;

/* Piece g of a belt lies in slot g mod slots. It is filled when left is 0, read when filled is g + 1. */
typedef struct im_near_slot {
    _Alignas(IM_NEAR_LINE) atomic_ullong filled;
    _Alignas(IM_NEAR_LINE) atomic_int left; /* readers that have not taken it */
    im_comm_signature sig;                  /* of a message: in its first piece */
} im_near_slot;

typedef struct im_near_cell {
    _Alignas(IM_NEAR_LINE) atomic_ullong arrived; /* the last operation that it came to */
    _Alignas(IM_NEAR_LINE) atomic_uint rings;     /* futex */
    atomic_int asleep;
    im_mpi_frame frame[2]; /* by the parity of the operation: a member is at most one ahead */
} im_near_cell;

/* This process's view of a group's memory. */
typedef struct im_near {
    char *base;
    size_t nbytes;
    int fd; /* of the member that made it: open as long as others may come; else -1 */
    int size, rank;
    int slots;                 /* of a member's belt, at least 2 x size */
    size_t piece;              /* bytes of a slot of it */
    uint64_t meetings;         /* operations so far */
    uint64_t *at;              /* [size] pieces that went over each member's belt */
    uint64_t *in;              /* [size] of the operation that runs: pieces taken from each */
    uint64_t *sent, *received; /* [size] pieces of messages to and from each */
} im_near;

/* What a process tells so that others find its memory: /proc/PID/fd/FD. */
typedef struct im_near_door {
    int32_t pid, fd;
} im_near_door;

im_status im_near_make(im_context *ctx, int size, int rank, im_near *out) IM_MUST_CHECK;
im_near_door im_near_door_of(const im_near *x);
/* IM_ERR_NOT_FOUND: this process cannot reach it, or it is not such a memory. */
im_status im_near_enter(im_context *ctx, im_near_door door, int size, int rank, im_near *out) IM_MUST_CHECK;
void im_near_close_door(im_near *x); /* nobody else will come */
void im_near_leave(im_near *x);      /* .fd = -1 alone is fine */

im_near_cell *im_near_cell_of(const im_near *x, int member);
im_near_slot *im_near_slot_of(const im_near *x, int member, uint64_t g, char **bytes);         /* of a member's belt */
im_near_slot *im_near_lane_slot(const im_near *x, int from, int to, uint64_t g, char **bytes); /* of the belt from a member to another */
bool im_near_fill_begin(im_near_slot *s);                                                      /* whether it is free */
void im_near_fill_end(im_near_slot *s, uint64_t g, int readers);                               /* piece g is in it */
bool im_near_is_filled(im_near_slot *s, uint64_t g);
void im_near_take(im_near_slot *s);
/* After a change that the member may wait for. */
void im_near_ring(im_near_cell *c);

/* for (;;) { look; if there: break; IM_TRY(im_near_pause(&w)); }, with im_near_went_on after progress and im_near_wait_end at
 * the end. Errors have no text: IM_ERR_TIMEOUT; IM_ERR_ABORTED when *dead. */
typedef struct im_near_wait {
    im_near_cell *mine;
    const atomic_bool *dead;
    double spin;            /* seconds of looking before it sleeps; 0: at once, as there are fewer cores than ranks */
    double start, deadline; /* of the operation; seconds from start */
    double idle;            /* since when nothing happened; 0: not known yet */
    unsigned looks, seen;
} im_near_wait;
im_status im_near_pause(im_near_wait *w) IM_MUST_CHECK;
void im_near_went_on(im_near_wait *w);
#define im_near_wait_end im_near_went_on

#endif
