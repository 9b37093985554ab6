/* Ctrl-C and SIGTERM: the first asks, the second leaves. */
#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t caught; /* a handler has no other way to tell */

static void on_signal(int number)
{
    if (caught)
        _exit(128 + number); /* files get their names only when whole, so nothing is torn */
    caught = number;
}

void im_cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL); /* a reader that leaves must not kill a training run */
}

int im_cli_signal(void)
{
    return caught;
}
