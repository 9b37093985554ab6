/* Starting commands, reading what they say, and ending them in time. */
#include "cli/cli_fabric_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST = 64 << 20 }; /* bytes of output that are kept */

im_status im_cli_job_start(im_context *ctx, char *const *argv, im_cli_stderr where, im_cli_job *out)
{
    int pipe_of[2];
    posix_spawn_file_actions_t act;
    posix_spawnattr_t attr;
    *out = (im_cli_job){.fd = -1};
    if (pipe2(pipe_of, O_CLOEXEC) != 0)
        return im_fail_errno(ctx, "no pipe for %s", argv[0]);
    posix_spawn_file_actions_init(&act);
    posix_spawn_file_actions_addopen(&act, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&act, pipe_of[1], 1);
    if (where == IM_CLI_STDERR_MERGE)
        posix_spawn_file_actions_adddup2(&act, pipe_of[1], 2);
    else if (where == IM_CLI_STDERR_DROP)
        posix_spawn_file_actions_addopen(&act, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr); /* a group of its own: what it started ends with it, and Ctrl-C is ours to handle */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attr, 0);
    const int failed = posix_spawnp(&out->pid, argv[0], &act, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&act);
    posix_spawnattr_destroy(&attr);
    close(pipe_of[1]);
    if (failed) {
        close(pipe_of[0]);
        if (failed == ENOENT || failed == EACCES) {
            out->over = true;
            out->code = 127;
            return IM_OK;
        }
        return im_fail(ctx, IM_ERR_IO, "%s: cannot be started: %s", argv[0], strerror(failed));
    }
    out->started = true;
    out->fd = pipe_of[0];
    return IM_OK;
}

/* Reads what is there; at the end of the output: waits for the process. */
static void take(im_cli_job *job)
{
    char buf[65536];
    const ssize_t n = read(job->fd, buf, sizeof buf);
    if (n > 0) {
        if (job->out.len < MOST)
            im_str_append_n(&job->out, buf, (size_t)n);
        return;
    }
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    close(job->fd);
    job->fd = -1;
}

static void reap(im_cli_job *job, bool block)
{
    int status;
    if (!job->started || job->over)
        return;
    const pid_t got = waitpid(job->pid, &status, block ? 0 : WNOHANG);
    if (got != job->pid)
        return;
    job->over = true;
    job->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void end(im_cli_job *job)
{
    if (!job->started || job->over)
        return;
    job->late = true;
    kill(-job->pid, SIGTERM);
    for (int i = 0; i < 20 && !job->over; i++) {
        poll(NULL, 0, 50);
        reap(job, false);
    }
    if (!job->over)
        kill(-job->pid, SIGKILL);
    reap(job, true);
}

void im_cli_jobs_finish(im_cli_job *jobs, size_t n, size_t wait_for, double seconds)
{
    const double until = im_clock_now() + seconds;
    struct pollfd *fds = calloc(n + 1, sizeof *fds);
    while (fds && im_clock_now() < until && !im_cli_signal()) {
        bool running = false;
        for (size_t i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = jobs[i].fd, .events = POLLIN};
            if (jobs[i].fd < 0)
                reap(&jobs[i], false);
            running = running || (i < wait_for && jobs[i].started && (!jobs[i].over || jobs[i].fd >= 0));
        }
        if (!running)
            break;
        if (poll(fds, n, 50) > 0)
            for (size_t i = 0; i < n; i++)
                if (fds[i].revents)
                    take(&jobs[i]);
    }
    free(fds);
    for (size_t i = 0; i < n; i++) {
        end(&jobs[i]);
        while (jobs[i].fd >= 0 && poll(&(struct pollfd){.fd = jobs[i].fd, .events = POLLIN}, 1, 100) > 0)
            take(&jobs[i]);
        if (jobs[i].fd >= 0)
            close(jobs[i].fd);
        jobs[i].fd = -1;
    }
}

void im_cli_job_free(im_cli_job *job)
{
    im_str_free(&job->out);
}

im_status im_cli_job_run(im_context *ctx, char *const *argv, im_cli_stderr where, double seconds, im_cli_job *out)
{
    IM_TRY(im_cli_job_start(ctx, argv, where, out));
    im_cli_jobs_finish(out, 1, 1, seconds);
    return IM_OK;
}

char **im_cli_via(im_arena *a, const char *via, const char *host, char *const *argv)
{
    size_t words = 0, n = 0, args = 0;
    for (const char *p = via; *p; p++)
        words += *p == ' ';
    while (argv[args])
        args++;
    char **out = IM_ARENA_NEW(a, char *, words + args + 4);
    bool named = false;
    for (const char *p = via + strspn(via, " "); out && *p;) {
        const int len = (int)strcspn(p, " ");
        char *word = im_arena_printf(a, "%.*s", len, p), *at = word ? strstr(word, "{host}") : NULL;
        if (at) {
            word = im_arena_printf(a, "%.*s%s%s", (int)(at - word), word, host, at + 6);
            named = true;
        }
        out[n++] = word;
        p += len + strspn(p + len, " ");
    }
    if (!out)
        return NULL;
    if (!named && *via)
        out[n++] = im_arena_strdup(a, host);
    for (size_t i = 0; i < args; i++)
        out[n++] = argv[i];
    return out;
}
