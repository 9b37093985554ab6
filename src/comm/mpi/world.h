/* world: ranks that are processes of one MPI job.
 *
 * MPI is owned by one thread at a time (its level SERIALIZED, a lock here): by the rank's keeper, a thread that starts and
 * ends MPI and hears what other ranks have to say of failures; and by the queues' threads inside an operation. Those are
 * threads beside the one that computes, so every operation that is on its way makes progress while there is computing.
 *
 * An operation is messages of our own, so that sums are made in the order of ranks and no wait is without a deadline.
 * Each member first sends every other one a frame: its signature, so that each can compare all, and the bytes of a small
 * operation, which is over then. The bytes of a large one follow in pieces; they are received when all frames agree.
 *
 *     rank 0  frame to all, pieces --.           .-- sum of slice 0 --.
 *     rank 1  frame to all, pieces --+-- agree --+-- sum of slice 1 --+-- gathered
 *     rank 2  frame to all, pieces --'           '-- sum of slice 2 --'
 *
 * A failure is told to all ranks on a channel of its own, which each keeper hears: then the whole world is dead, and its
 * waits end. A message of a failed operation that nobody received stays with MPI, which is then not finalized: the job
 * ends with an error.
 */
#ifndef IM_COMM_MPI_WORLD_H
#define IM_COMM_MPI_WORLD_H

#include "comm/backend.h"
#include "comm/mpi/near.h"
#include "comm/mpi/plugin.h"

#include <pthread.h>

enum { IM_MPI_EAGER = IM_NEAR_EAGER, IM_MPI_REASON = 3072, IM_MPI_DEPTH = 16 };
enum { IM_MPI_FRAME, IM_MPI_BYTES, IM_MPI_SUMS, IM_MPI_LETTER, IM_MPI_LETTER_BYTES, IM_MPI_TAGS }; /* of a communicator: collectives, messages */
enum { IM_MPI_TAG_NOTICE, IM_MPI_TAG_SPLIT };                                                      /* of the control channel */

/* Requests that are waited for together. */
typedef struct im_mpi_set {
    char *request; /* [n], request_bytes each */
    int n, cap;
} im_mpi_set;

/* What a rank that failed tells the others. */
typedef struct im_mpi_notice {
    uint32_t mismatch, group; /* mismatch: in operation seq of this group, where all have come: each sees it by itself */
    uint64_t seq;
    char reason[IM_MPI_REASON]; /* "rank 2 failed: ..." */
} im_mpi_notice;

typedef enum im_mpi_waiting { IM_MPI_SPIN, IM_MPI_YIELD, IM_MPI_SLEEP } im_mpi_waiting;

struct im_comm_mpi_world {
    im_context *ctx;
    void *library; /* dlopen's */
    const im_mpi_table *mpi;
    im_mpi_state *state;
    im_mpi_start at;
    double deadline;
    int exit_code; /* of this process, when the job fails; 0: not known */
    size_t piece; /* bytes of a message, at most */
    size_t block; /* bytes that a sum takes from each rank at a time */
    im_mpi_waiting waiting;
    int cores;     /* of this machine, of its ranks together */
    int *machine;  /* [size] the lowest rank of each rank's machine; -1: its ranks share no memory */
    im_near whole; /* of all ranks, when they share memory */
    bool attached; /* a communicator uses it */
    bool apart;    /* they do not, by the configuration */
    char way[128]; /* of messages between machines, as the line at the start says it */
    double spin;   /* seconds: how long a wait for one of this machine looks before it sleeps */

    pthread_mutex_t lock; /* MPI, and all below */
    im_mpi_set hearing;   /* the one receive for notices */
    im_mpi_set telling;   /* sends of our notice */
    im_mpi_notice heard, told;
    atomic_bool dead; /* told is written before */
    int slot;         /* the lowest one that no group of this rank had: a group has IM_MPI_TAGS tags */

    pthread_t keeper;
    pthread_mutex_t doorway; /* the next four */
    pthread_cond_t changed;
    bool started, stop;
    im_status status; /* of the start */
};

typedef struct im_mpi_comm {
    im_comm head;
    im_comm_mpi_world *world;
    int tag;                   /* first of IM_MPI_TAGS */
    im_near *near;             /* memory that all members share; NULL: they use MPI */
    im_near own;               /* what near is, except for the world's */
    im_mpi_frame *frame;       /* [size]: what came; [rank]: what goes out */
    const im_mpi_frame **seen; /* [size]: those of the operation that runs */
    im_mpi_frame *letter;      /* [nletter] of a group of messages */
    int nletter;
    im_mpi_set frames, pieces, results;
    int depth; /* blocks of a sum that are on their way; 0: none yet */
    im_mpi_set blocks[IM_MPI_DEPTH], sums[IM_MPI_DEPTH];
    size_t *from;     /* [size + 1] where each rank's slice begins, in elements */
    char *staging;    /* depth x size blocks */
    const void **src; /* [size] */
    double start;     /* of the operation that runs */
} im_mpi_comm;

/* ---- requests and waits (wait.c) ----------------------------------------------------------- */

void im_mpi_set_free(im_mpi_set *s);
/* Adds messages of at most world->piece bytes each; nbytes 0: none. peer: of the communicator. tag: IM_MPI_FRAME, ... */
im_status im_mpi_send(im_mpi_comm *m, im_mpi_set *s, const void *p, size_t nbytes, int peer, int tag, bool sync) IM_MUST_CHECK;
im_status im_mpi_receive(im_mpi_comm *m, im_mpi_set *s, void *p, size_t nbytes, int peer, int tag) IM_MUST_CHECK;
/* On the control channel, by ranks of the world; under the lock. */
im_status im_mpi_control_send(im_comm_mpi_world *w, im_mpi_set *s, const void *p, size_t nbytes, int to, int tag) IM_MUST_CHECK;
im_status im_mpi_control_receive(im_comm_mpi_world *w, im_mpi_set *s, void *p, size_t nbytes, int from, int tag) IM_MUST_CHECK;
/* One look, which makes progress. from, n: of these requests alone. */
im_status im_mpi_test(im_comm_mpi_world *w, im_mpi_set *s, int from, int n, bool *done) IM_MUST_CHECK;

/* for (;;) { look; if there: break; IM_TRY(im_mpi_pause(&p)); }. Errors have no text: IM_ERR_TIMEOUT, the deadline is over;
 * IM_ERR_ABORTED, the world is dead (unless deaf). */
typedef struct im_mpi_pause_state {
    im_comm_mpi_world *w;
    double start, deadline; /* seconds from start; start 0: at the first pause */
    bool deaf;
    unsigned looks, naps;
    double first; /* pause */
} im_mpi_wait;
im_status im_mpi_pause(im_mpi_wait *p) IM_MUST_CHECK;
/* Until all of s are done; then it is empty. The same errors. */
im_status im_mpi_wait_all(im_mpi_set *s, im_mpi_wait *p) IM_MUST_CHECK;
void im_mpi_give_up(im_comm_mpi_world *w, im_mpi_set *s); /* nothing is received into its buffers any more; it is empty */

/* ---- failing (world.c) ----------------------------------------------------------------------- */

im_status im_mpi_error(im_comm_mpi_world *w, int error, const char *what) IM_MUST_CHECK; /* MPI's */
/* Tells all ranks, unless the world is dead already. verb: "failed", "gave up". call: of a mismatch, or NULL. */
void im_mpi_kill(im_comm_mpi_world *w, const char *verb, const char *reason, const im_comm *c, const im_comm_call *call);
im_status im_mpi_killed(im_context *ctx, im_comm_mpi_world *w, const char *what) IM_MUST_CHECK;

/* ---- neighbours (neighbours.c) --------------------------------------------------------------------- */

/* Sets machine and whole. Keeper's thread, at the start; all ranks. */
im_status im_mpi_find_neighbours(im_comm_mpi_world *w) IM_MUST_CHECK;
bool im_mpi_all_near(const im_comm_mpi_world *w, const int *members, int n); /* of one machine, and may read one another's memory */

/* ---- links (links.c) ---------------------------------------------------------------------------- */

/* Sets the start's trip and bandwidth, and way. Keeper's thread, at the start; all ranks. */
im_status im_mpi_measure_links(im_comm_mpi_world *w) IM_MUST_CHECK;

/* ---- operations ------------------------------------------------------------------------------- */

im_status im_mpi_collective(im_mpi_comm *m, im_comm_call *call) IM_MUST_CHECK; /* collective.c */
im_status im_mpi_messages(im_mpi_comm *m, im_comm_call *first) IM_MUST_CHECK;  /* message.c */
/* The same over shared memory. */
im_status im_mpi_near_collective(im_mpi_comm *m, im_comm_call *call) IM_MUST_CHECK; /* near_collective.c */
im_status im_mpi_near_messages(im_mpi_comm *m, im_comm_call *first) IM_MUST_CHECK;  /* near_message.c */
im_near_wait im_mpi_near_wait(im_mpi_comm *m);
/* nbytes at `from` in a member's process, for call; a rank that gave up may have freed its memory. */
im_status im_mpi_pull(im_mpi_comm *m, const im_comm_call *call, int member, const void *from, void *to, size_t nbytes) IM_MUST_CHECK;

/* What both kinds have in common (collective.c). */
bool im_mpi_is_small(const im_mpi_comm *m, const im_comm_call *call); /* on all members alike: whether the bytes fit into the frames */
void im_mpi_write_frame(im_mpi_comm *m, im_comm_call *call, bool small, im_mpi_frame *out);
im_status im_mpi_compare(im_mpi_comm *m, im_comm_call *call) IM_MUST_CHECK; /* m->seen; a mismatch kills the world */
void im_mpi_act_small(im_mpi_comm *m, const im_comm_call *call);            /* out of m->seen */
void im_mpi_slice(im_mpi_comm *m, const im_comm_call *call);                /* m->from */
/* A wait ended with status: its text. arrived [size]; NULL: all members came. */
im_status im_mpi_explain(im_mpi_comm *m, const im_comm_call *call, im_status status, const bool *arrived) IM_MUST_CHECK;

#endif
