/* Commands that a fabric command runs: started without a shell, read until they end or their time is over. */
#ifndef IM_CLI_FABRIC_JOBS_H
#define IM_CLI_FABRIC_JOBS_H

#include "cli/cli.h"

#include <sys/types.h>

typedef struct im_cli_job {
    pid_t pid;
    int fd;       /* of its output; -1: it was closed */
    im_str out;   /* stdout; stderr too where it was asked for */
    bool started; /* false: there is no such program */
    bool over;    /* it ended; then code */
    bool late;    /* it was ended, as its time was over */
    int code;     /* exit code; 128 + signal */
} im_cli_job;

typedef enum im_cli_stderr {
    IM_CLI_STDERR_KEEP,
    IM_CLI_STDERR_MERGE,
    IM_CLI_STDERR_DROP
} im_cli_stderr; /* to this program's; to the output; nowhere */

/* stdin is empty. A program that is not there is no error: started stays false. */
im_status im_cli_job_start(im_context *ctx, char *const *argv, im_cli_stderr where, im_cli_job *out) IM_MUST_CHECK;
/* Reads from all until the first `wait_for` of them have ended, or `seconds` have passed; then, and at Ctrl-C, ends those that still run. */
void im_cli_jobs_finish(im_cli_job *jobs, size_t n, size_t wait_for, double seconds);
void im_cli_job_free(im_cli_job *job);
/* Start, finish; argv ends with NULL. */
im_status im_cli_job_run(im_context *ctx, char *const *argv, im_cli_stderr where, double seconds, im_cli_job *out) IM_MUST_CHECK;

/* The words of `via` ("ssh -o BatchMode=yes {host}"), {host} replaced (at the end where it is not named), then argv. NULL-terminated, in `a`. */
char **im_cli_via(im_arena *a, const char *via, const char *host, char *const *argv);

#endif
