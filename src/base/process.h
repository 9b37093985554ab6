/* process: other processes of this machine, as /proc shows them: whether a rank that does not answer is dead, stopped or alive. */
#ifndef IM_BASE_PROCESS_H
#define IM_BASE_PROCESS_H

#include "base/base.h"

/* A process for as long as the machine runs: its number alone is given out again. */
typedef struct im_process {
    int32_t pid;
    uint64_t birth;   /* clock ticks after the machine's start */
    uint64_t machine; /* where the number counts: one start of one machine, one container; 0: not known */
    char host[64];
} im_process;

im_process im_process_self(void);
bool im_process_is_local(const im_process *p); /* of this machine: the two below can tell */
/* 'R', 'S', 'D', 'T' (stopped), ...; 'X': it is over; 0: nobody can tell from here. */
char im_process_state(const im_process *p);
/* A file descriptor that poll() finds readable when the process is over; -1: the system has none for it. */
int im_process_watch(const im_process *p);

#endif
