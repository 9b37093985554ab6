/* crew: the ranks of a run as threads of this process. Rank 0 is the caller's thread; each of the others has a thread and a context of its own.
 *
 *     rank 0     create, start the others | opens | go -- runs | join
 *     others                  work.open ------------|-- work.run | work.close
 *
 * Until `go` no rank may wait for another in a communicator, so that one that cannot open is told at once. From there on a rank that fails aborts
 * the world. */
#ifndef IM_COMM_CREW_H
#define IM_COMM_CREW_H

#include "comm/comm.h"

typedef struct im_crew im_crew;

typedef struct im_crew_work {
    im_status (*open)(void *arg); /* device and communicator */
    im_status (*run)(void *arg);  /* once all ranks have opened */
    void (*close)(void *arg);     /* in any case */
} im_crew_work;

/* ranks: >= 1. deadline: of the world's operations, in seconds; 0: im_comm's own. */
im_status im_crew_create(im_context *ctx, int ranks, double deadline, im_crew **out) IM_MUST_CHECK;
void im_crew_destroy(im_crew *c); /* after join; NULL is allowed */
im_comm_threads_world *im_crew_world(im_crew *c);
/* A context of rank 1 to ranks - 1, whose errors are told where the crew's context tells its own. The crew keeps it. */
im_status im_crew_context(im_crew *c, int rank, im_context **out) IM_MUST_CHECK;
/* The rank's thread; im_crew_context came before. arg stays the caller's, until join. */
im_status im_crew_start(im_crew *c, int rank, const im_crew_work *work, void *arg) IM_MUST_CHECK;
/* Rank 0, with how its own opening ended. Waits until all threads have opened: IM_OK lets all run, else they leave. */
im_status im_crew_go(im_crew *c, im_status status) IM_MUST_CHECK;
bool im_crew_ran(const im_crew *c); /* go let them */
/* After go, any thread: an error of this rank alone. world: NULL is allowed. */
void im_crew_fail(im_crew *c, int rank, im_comm *world);
bool im_crew_failed(const im_crew *c); /* after join: some rank called im_crew_fail, or could not open */
/* Rank 0, with how it ended, closed: waits for all threads. Returned is the error that says most of the cause, of several the first one, as rank 0's. */
im_status im_crew_join(im_crew *c, im_status status);

/* How a rank ended: by the first error that it met, whose text is kept; what it was told after that is an echo. */
im_status im_crew_recorded(im_context *ctx, im_status status);
/* Before anything runs there is nothing to tell about the operation in which a rank heard of another's failure: the error from that rank's name on. */
im_status im_crew_as_told(im_context *ctx, im_status status);

#endif
