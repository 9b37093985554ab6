/* Ctrl-C and SIGTERM: the first asks, the second leaves. SIGUSR1 only asks: launchers and batch systems hand it on. SIGHUP too, which may
 * come twice when a terminal closes, from the shell and from the kernel; a process that was told to ignore it (nohup) does.
 *
 * mpirun of Open MPI ends a job by SIGCONT, SIGTERM after a time (odls_base_sigkill_timeout, 1 s) and SIGKILL after that time once more. So a
 * SIGCONT from it to a process that was not stopped asks too, and the SIGTERM behind it is no second one.
 *
 * No handler runs: the signals are blocked and a thread of their own waits for them. A handler would push its frame onto the
 * stack of whichever thread the kernel picks, and the generated matmul kernels of oneDNN (2.6.3) use the stack pointer's
 * register for data, so the frame would be written into the heap.
 */
#include "cli/cli.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_int caught;

static bool started_by_open_mpi(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK");
}

/* A process that was stopped has not ticked. */
static const double TICK = 0.1, STOPPED = 0.5;

static void *wait_for_signals(void *arg)
{
    sigset_t set = *(const sigset_t *)arg;
    bool ticks = sigismember(&set, SIGCONT) == 1, asked = false;
    double last = im_clock_now();
    for (;;) {
        siginfo_t from;
        const struct timespec tick = {.tv_nsec = (long)(TICK * 1e9)};
        int number = ticks ? sigtimedwait(&set, &from, &tick) : sigwaitinfo(&set, &from);
        double now = im_clock_now();
        bool stopped = now - last > STOPPED;
        last = now;
        if (number < 0 || (number == SIGCONT && (stopped || from.si_pid != getppid())))
            continue;
        bool hard = number == SIGINT || number == SIGTERM;
        if (hard && asked)
            _exit(128 + number); /* files get their names only when whole, so nothing is torn */
        asked |= hard;
        atomic_store(&caught, number);
    }
    return NULL;
}

/* Before any other thread is made: they inherit the mask. */
void im_cli_catch_signals(void)
{
    static sigset_t set;
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&set, SIGHUP);
    if (started_by_open_mpi())
        sigaddset(&set, SIGCONT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, wait_for_signals, &set) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* then a signal ends the program: nothing is torn by that either */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL); /* a reader that leaves must not kill a training run */
}

int im_cli_signal(void)
{
    return atomic_load(&caught);
}
