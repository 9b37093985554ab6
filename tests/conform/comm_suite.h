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

extern const comm_case comm_cases[];
extern const size_t comm_ncases;

enum { COMM_DEADLINE = 60 };

#endif
