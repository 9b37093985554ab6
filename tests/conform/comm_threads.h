/* comm_threads: runs a case on ranks that are threads of the test. */
#ifndef IM_TESTS_COMM_THREADS_H
#define IM_TESTS_COMM_THREADS_H

#include "conform/comm_suite.h"

typedef struct comm_threads_kind {
    const char *name;
    bool self, deferred;
    int cores;                  /* as told to the world: 64: waits spin first; 1: they sleep at once */
    bool decorated;             /* traced over faulty; rings in trace_dir, or in a directory that is removed */
    const char *trace_dir;      /* ring of rank r: DIR/r */
    const im_comm_fault *fault; /* of the last rank; NULL: one that never comes */
} comm_threads_kind;

/* Prints what failed; false when something did. */
bool comm_run_threads(const comm_threads_kind *kind, const comm_case *what, int size);

#endif
