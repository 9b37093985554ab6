/* reach: whether mpirun can start the program on a machine: by ssh without a password, at the same path. Asked before, because mpirun's own
 * answer to a name that is not known or a password that is asked for is long, or never comes. */
#include "cli/launch.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* This machine: it has the name, or an address that the name stands for. */
static bool is_here(const char *host)
{
    char name[256] = "";
    struct addrinfo *list, hint = {.ai_socktype = SOCK_DGRAM};
    bool here = !strcmp(host, "localhost") || (gethostname(name, sizeof name - 1) == 0 && !strcmp(host, name));
    if (here || getaddrinfo(host, NULL, &hint, &list) != 0)
        return here;
    for (struct addrinfo *a = list; a && !here; a = a->ai_next) {
        int s = socket(a->ai_family, a->ai_socktype, 0);
        here = s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0;
        if (s >= 0)
            close(s);
    }
    freeaddrinfo(list);
    return here;
}

/* MPI was told of another way to start programs elsewhere. */
static bool has_other_way(void)
{
    static const char *const names[] = {"OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent", "PRTE_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent",
                                        "HYDRA_LAUNCHER",         "HYDRA_LAUNCHER_EXEC",     "SLURM_JOB_ID",           "PBS_JOBID"};
    for (size_t i = 0; i < IM_COUNT_OF(names); i++)
        if (getenv(names[i]))
            return true;
    return false;
}

im_status im_cli_reach(im_cli *cli, const char *host, const char *program)
{
    if (has_other_way() || is_here(host))
        return IM_OK;
    im_str there = {0}, command = {0};
    im_str_append(&there, "test -x ");
    im_cli_quote(program, &there);
    im_str_printf(&command, "ssh -o BatchMode=yes -o ConnectTimeout=10 %s ", host);
    im_cli_quote(im_str_text(&there), &command);
    im_str_append(&command, " </dev/null");
    int code = system(im_str_text(&command));
    im_str_free(&there);
    im_str_free(&command);
    if (code == 0)
        return IM_OK;
    if (code != -1 && WIFEXITED(code) && WEXITSTATUS(code) == 1)
        return im_fail(cli->ctx, IM_ERR_NOT_FOUND, "%s: there is no program %s there; imece must be at the same path on every machine", host,
                       program);
    return im_fail(cli->ctx, IM_ERR_NOT_FOUND, "%s cannot be reached: `ssh %s true` must work without a password", host, host);
}
