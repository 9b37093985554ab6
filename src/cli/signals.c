/* Ctrl-C and SIGTERM: the first asks, the second leaves.
 *
 * No handler runs: both signals are blocked and a thread of their own waits for them. A handler would push its frame onto the
 * stack of whichever thread the kernel picks, and the generated matmul kernels of oneDNN (2.6.3) use the stack pointer's
 * register for data, so the frame would be written into the heap.
 */
#include "cli/cli.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int caught;

static void *wait_for_signals(void *arg)
{
    sigset_t set = *(const sigset_t *)arg;
    for (int number; sigwait(&set, &number) == 0;) {
        if (atomic_load(&caught))
            _exit(128 + number); /* files get their names only when whole, so nothing is torn */
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
