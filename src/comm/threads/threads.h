/* threads: ranks of one process. What the members of a group share, and how they wait.
 *
 * A collective is one or two meetings. At the first each member has published what it calls and where its buffers lie;
 * all compare, so that a mismatch is seen by every member. Small operations carry their bytes in the published cell and
 * are over after the first meeting; others read and write the buffers of their peers where they lie, until the second.
 *
 *     rank 0  publish --.           .-- slice 0 of all -> slice 0 of all --.
 *     rank 1  publish --+-- meet ---+-- slice 1 of all -> slice 1 of all --+-- meet
 *     rank 2  publish --'           '-- slice 2 of all -> slice 2 of all --'
 *
 * Nobody leaves while a peer may touch its buffers: who gives up sets the world's dead flag first, then waits for the
 * members that are `busy`; who becomes busy looks at the dead flag after saying so.
 */
#ifndef IM_COMM_THREADS_THREADS_H
#define IM_COMM_THREADS_THREADS_H

#include "comm/backend.h"

#include <pthread.h>

enum { IM_THREADS_EAGER = 8192, IM_THREADS_REASON = 3072, IM_THREADS_LINE = 64 };

/* Rung after a change that a sleeper may wait for. */
typedef struct im_threads_bell {
    atomic_uint rings; /* futex */
    atomic_int sleepers;
} im_threads_bell;

/* What a member calls; two, by the parity of the meeting: a member is at most one operation ahead. (Not by the operation's number: who left one out
 * would write where the others still read.) */
typedef struct im_threads_cell {
    im_comm_signature sig;
    const void *src;
    void *dst;
    _Alignas(IM_THREADS_LINE) unsigned char bytes[IM_THREADS_EAGER];
} im_threads_cell;

typedef struct im_threads_member {
    _Alignas(IM_THREADS_LINE) atomic_ullong meeting; /* the last one that it came to */
    atomic_int busy;                                 /* it touches buffers of others */
    im_threads_bell bell;                            /* a message of its was posted or taken */
    im_threads_cell cell[2];
} im_threads_member;

/* One direction between two members. Message k may be posted when k-1 was taken. */
typedef struct im_threads_channel {
    _Alignas(IM_THREADS_LINE) atomic_ullong posted;
    im_comm_signature sig;
    const void *src;
    _Alignas(IM_THREADS_LINE) atomic_ullong taken;
} im_threads_channel;

typedef struct im_threads_group {
    _Alignas(IM_THREADS_LINE) atomic_ullong arrivals; /* all meetings together */
    _Alignas(IM_THREADS_LINE) atomic_ullong met;      /* meetings that are over */
    im_threads_bell bell;
    im_threads_member *member;   /* [size] */
    im_threads_channel *channel; /* [from * size + to] */
    int size;
    uint32_t id;
    int *members; /* [size] ranks of the world */
    bool *joined; /* [size]; by the world's lock */
    int left;     /* members that destroyed their communicator; by the world's lock */
    struct im_threads_group *next;
} im_threads_group;

struct im_comm_threads_world {
    int size;
    double deadline, spin; /* seconds */
    pthread_mutex_t lock;  /* groups, and the first failure */
    im_threads_group *groups;
    atomic_bool dead;
    char reason[IM_THREADS_REASON]; /* "rank 2 failed: ..."; written before dead */
};

typedef struct im_threads_comm {
    im_comm head;
    im_comm_threads_world *world;
    im_threads_group *group;
    uint64_t meeting; /* the last one that this rank came to */
    unsigned turn;    /* of the cells, in this operation */
    const void **src; /* [size] */
    void **dst;       /* [size] */
} im_threads_comm;

/* ---- waiting (wait.c) -------------------------------------------------------------------- */

void im_threads_ring(im_threads_bell *b);
/* A wait: for (;;) { look; if there: break; IM_TRY(im_threads_pause(...)); }. Spins for a while, then sleeps until the bell
 * rings; an error when the world is dead or the deadline over. */
typedef struct im_threads_wait {
    im_threads_comm *t;
    im_comm_call *call;
    im_threads_bell *bell;
    unsigned seen; /* rings, before looking */
    bool asleep;   /* counted as a sleeper: the next pause may sleep */
    unsigned spins;
    double start;
} im_threads_wait;
im_threads_wait im_threads_wait_begin(im_threads_comm *t, im_comm_call *call, im_threads_bell *b);
im_status im_threads_pause(im_threads_wait *w) IM_MUST_CHECK; /* IM_ERR_TIMEOUT without a text: the deadline is over */
void im_threads_wait_end(im_threads_wait *w);

/* Comes to the next meeting and waits for the others. */
im_status im_threads_meet(im_threads_comm *t, im_comm_call *call) IM_MUST_CHECK;
/* Between these a rank may touch what its peers published. */
im_status im_threads_busy_begin(im_threads_comm *t, im_comm_call *call) IM_MUST_CHECK;
void im_threads_busy_end(im_threads_comm *t);

/* ---- failing (world.c) ------------------------------------------------------------------------ */

/* Kills the world; the first one's reason stays. verb: "failed", "gave up". */
void im_threads_kill(im_threads_comm *t, const char *verb, const char *reason);
im_status im_threads_killed(im_threads_comm *t, const char *what) IM_MUST_CHECK; /* the error that tells why */
/* After an error: kills the world and waits until nobody touches this rank's buffers. Returns s. */
im_status im_threads_leave(im_threads_comm *t, im_status s) IM_MUST_CHECK;

/* ---- operations --------------------------------------------------------------------------------- */

im_status im_threads_collective(im_threads_comm *t, im_comm_call *call) IM_MUST_CHECK; /* collective.c */
im_status im_threads_messages(im_threads_comm *t, im_comm_call *first) IM_MUST_CHECK;  /* message.c */

#endif
