/* backend: what a communicator is made of; for the files of src/comm.
 *
 * comm.c checks each call, gives it its number and a place in the communicator's ring, and pushes one work item on the
 * queue. On the queue's thread, with addresses known, it calls the backend's run, which blocks until the operation is
 * over. So a backend is a blocking function of (rank, call); decorators wrap another communicator's.
 */
#ifndef IM_COMM_BACKEND_H
#define IM_COMM_BACKEND_H

#include "comm/comm.h"

#include <stdatomic.h>

typedef struct im_comm_call {
    struct im_comm_call *next; /* the rest of a group of sends and receives, in the order of the calls; else NULL */
    im_comm_op op;
    im_dtype dtype;
    im_reduce reduce;
    int peer;             /* broadcast: the root; send, recv: the other rank (of this communicator), maybe oneself; else -1 */
    uint64_t seq;         /* from 1. Collectives: of this communicator. Send, recv: of this peer and direction. Twins agree */
    size_t count;         /* reduce_scatter, all_gather: the sum of counts; all_to_all: for one rank; barrier: 0 */
    const size_t *counts; /* reduce_scatter, all_gather: [size], lives as long as the call; else NULL */
    im_buffer in, out;    /* trimmed to the bytes that are read and written; nbytes 0 where there is none */
    const void *src;      /* their addresses, inside run only; NULL where nbytes is 0. Broadcast: src and dst are the */
    void *dst;            /*   same; a message to oneself is a send with both, and a copy from one to the other */
    im_comm *comm;        /* whose call it is: the outermost decorator */
    int state;            /* the backend's, while it runs */
    im_event event;       /* comm.c's: when the place in the ring is free again */
    im_event *done;       /* comm.c's: inside a group, where the caller's event goes */
    uint64_t record;      /* traced's: number of its record */
} im_comm_call;

typedef struct im_comm_group {
    const int *ranks;   /* [size], of the parent */
    const int *members; /* [size], of the world */
    int size, rank;     /* rank: the caller's in the new group */
    uint32_t id;        /* equal on all members; two splits into the same list differ */
} im_comm_group;

typedef struct im_comm_table {
    const char *name;
    /* Queue's thread; blocks until the call (or the group of calls) is over or has failed, then returns what im_fail gave.
     * One run at a time for a communicator; those of several communicators run at once on several threads. A group of
     * sends and receives must not deadlock, whatever its order on the two sides. */
    im_status (*run)(im_comm *c, im_comm_call *call);
    /* The caller's thread, when the call was enqueued; NULL when there is nothing to do. */
    void (*enqueued)(im_comm *c, im_comm_call *call);
    /* Called by all members and nobody else. Allocates, calls im_comm_init, sets *out. */
    im_status (*split)(im_comm *parent, const im_comm_group *g, im_comm **out);
    void (*note)(im_comm *c, int64_t step, const char *what); /* im_comm_note; NULL: of no interest */
    void (*destroy)(im_comm *c);                              /* ends with im_comm_fini and freeing c */
    im_status (*error)(im_comm *c);                           /* any thread; IM_OK, or im_fail with what killed it */
    void (*abort)(im_comm *c, const char *reason);            /* any thread; reason "": none is known */
} im_comm_table;

enum { IM_COMM_CALLS = 512, IM_COMM_PENDING = 64 };

/* First member of each backend's own struct. */
struct im_comm {
    const im_comm_table *backend;
    im_comm *inner; /* what a decorator wraps and destroys; else NULL */
    im_device *device;
    im_context *ctx;
    int rank, size;
    int *members;            /* [size] ranks of the world */
    uint32_t id;             /* 0: the world */
    double deadline;         /* seconds for one operation */
    atomic_bool dead;        /* a run failed, or im_comm_abort */
    const atomic_bool *fate; /* the same of its world; NULL: it has none */

    /* below: comm.c's */
    im_comm_call *call;        /* [IM_COMM_CALLS], a ring */
    size_t *counts;            /* [IM_COMM_CALLS][size] */
    uint64_t ncall;            /* calls so far */
    uint64_t seq;              /* collectives so far */
    uint64_t *sent, *received; /* [size] messages so far */
    im_event last;
    unsigned queue; /* the one it is used on; IM_QUEUE_MAX: none yet */
    int group_depth;
    im_queue *group_queue; /* of the open group; NULL: no call yet */
    im_comm_call *group_first, *group_last;
    uint64_t group_at;     /* ncall when the open group got its first call */
    im_comm_call *pending; /* [IM_COMM_PENDING] messages to oneself without their twin: all sends, or all receives */
    int npending;
    im_comm_count account[IM_COMM_OP_COUNT];
    struct im_comm_split_count *split; /* how often each list was split off */
    int nsplit;
};

/* members NULL: 0..size-1 (a world). On failure nothing is left to undo. */
im_status im_comm_init(im_comm *c, const im_comm_table *b, im_device *d, int rank, int size, const int *members, uint32_t id,
                       double deadline) IM_MUST_CHECK;
void im_comm_fini(im_comm *c); /* half-built too */

/* ---- what was called (call.c) ----------------------------------------------------------- */

enum { IM_COMM_TOLD_COUNTS = 8 };

/* All that must agree between the members of a collective, or between send and recv; plain bytes, may be sent around. */
typedef struct im_comm_signature {
    uint64_t seq, count, counts_hash;
    uint32_t op, dtype, reduce;
    int32_t peer;
    uint64_t counts[IM_COMM_TOLD_COUNTS]; /* the first ones, to be told */
    uint32_t ncounts, pad;
} im_comm_signature;

void im_comm_sign(const im_comm *c, const im_comm_call *call, im_comm_signature *out);
bool im_comm_same(const im_comm_signature *a, const im_comm_signature *b);
/* "all_reduce 1024 x fp32 sum"; "" is written when it does not fit. */
void im_comm_describe(const im_comm_signature *s, char *text, size_t size);
/* "0-2 5": the world's ranks of the members for which yes is true. yes NULL: all. */
void im_comm_rank_list(const im_comm *c, const bool *yes, im_str *out);
/* "operation 7 of group 0-3 differs: ranks 0 1 called all_reduce ..., rank 2 called ..."; sig[size], by member. */
im_status im_comm_fail_mismatch(im_comm *c, const im_comm_signature *sig) IM_MUST_CHECK;
/* The deadline passed: names the call, who has arrived and who has not. arrived[size]; NULL for a message. */
im_status im_comm_fail_late(im_comm *c, const im_comm_call *call, double seconds, const bool *arrived) IM_MUST_CHECK;
/* A send whose twin is another message: of whom, what was sent, what was expected. */
im_status im_comm_fail_message(im_comm *c, int from, int to, const im_comm_signature *sent, const im_comm_signature *expected) IM_MUST_CHECK;

/* Any operation of a communicator of one rank, and a message to oneself: bytes from src to dst. */
void im_comm_copy(const im_comm_call *call);

/* ---- arithmetic (reduce.c) ----------------------------------------------------------------- */

bool im_comm_can_reduce(im_dtype t); /* fp32, fp64, bf16, fp16, i32, i64, u8 */
/* dst[i] = src[0][i] op src[1][i] op ... in that order, for i in [0, n). bf16 and fp16 are accumulated in fp32 and rounded
 * once (to nearest even). dst may be a src; else they do not overlap. nsrc >= 1. */
void im_comm_fold(void *dst, const void *const *src, int nsrc, size_t n, im_dtype t, im_reduce r);
/* The same to ndst places, written past the caches: for what other cores have read and will read. */
void im_comm_fold_past(void *const *dst, int ndst, const void *const *src, int nsrc, size_t n, im_dtype t, im_reduce r);
void im_comm_copy_past(void *dst, const void *src, size_t nbytes);

#endif
