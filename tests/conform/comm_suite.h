/* comm_suite: what every communicator must do. A case runs once on each rank of a world, as a thread or as a process; it
 * never asserts, but notes its first failure in its rig, which the program that made the world looks at.
 */
#ifndef IM_TESTS_COMM_SUITE_H
#define IM_TESTS_COMM_SUITE_H

#include "comm/comm.h"

typedef struct comm_rig {
    im_context *ctx;
    im_device *device; /* comm_threads, or deferred; nothing reserved yet */
    im_comm *world;
    int rank, size;
    double deadline;   /* of the world, seconds */
    char failed[1024]; /* "" while all is well: file:line: what */
} comm_rig;

typedef struct comm_case {
    const char *name;
    void (*run)(comm_rig *r);
    int least;       /* ranks */
    double deadline; /* of the world, seconds; 0: COMM_DEADLINE. Short where the case waits for it */
    bool fatal;      /* it kills its world: a process runs no other case after it */
} comm_case;

extern const comm_case comm_op_cases[], comm_fault_cases[]; /* all is well; the world ends */
extern const size_t comm_nop_cases, comm_nfault_cases;

enum { COMM_DEADLINE = 60 };

/* ---- what cases are made of ------------------------------------------------------------------ */

void comm_note(comm_rig *r, int line, const char *fmt, ...) IM_PRINTF(3, 4);

#define CHECK(r, cond)                                                               \
    do {                                                                             \
        if (!(cond)) {                                                               \
            comm_note(r, __LINE__, "%s; error: %s", #cond, im_error_text((r)->ctx)); \
            return;                                                                  \
        }                                                                            \
    } while (0)
#define OK(r, expr) CHECK(r, (expr) == IM_OK)
#define STOP_IF_FAILED(r)   \
    do {                    \
        if ((r)->failed[0]) \
            return;         \
    } while (0)

/* Two buffers of nbytes on the device, two on the host. */
typedef struct comm_bench {
    im_queue *q;
    im_buffer in, out;
    char *host, *back; /* [nbytes] each */
    size_t nbytes;
} comm_bench;

bool comm_bench_make(comm_rig *r, comm_bench *b, size_t nbytes);
void comm_bench_drop(comm_bench *b);
im_queue *comm_queue(comm_rig *r, unsigned k);
im_buffer comm_part(im_buffer b, size_t at, size_t nbytes);

enum { COMM_MOST_RANKS = 64 };

/* After a failed operation: this error, soon, and its text has all of these words. */
void comm_expect_error(comm_rig *r, int line, im_status got, im_status want, double t0, const char *const *words, int n);
/* What became of a call: its refusal, or its operation's error. */
im_status comm_outcome(comm_rig *r, im_status called, im_event done);

#endif
