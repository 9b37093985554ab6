/* links: how fast messages are, and whether those between machines go through the machines' verbs ports, where they have some. MPI chooses its way
 * silently; the ports' counters before and after the measurement tell which it was. */
#include "comm/mpi/ports.h"
#include "comm/mpi/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SYS[] = "/sys";

/* What a machine's lowest rank saw. */
typedef struct view {
    int32_t machine;
    uint64_t bytes;                               /* that `port` sent meanwhile */
    char port[sizeof((im_mpi_port *)NULL)->name]; /* the one that sent most; "" without any */
} view;

/* Whether some rank of a machine measures with a rank of another. */
static bool reaches_out(const view *all, int n, int machine)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < IM_MPI_PAIRS && all[i].machine == machine; k++) {
            int peer = im_mpi_pair(i, n, k);
            if (peer >= 0 && all[peer].machine != machine)
                return true;
        }
    return false;
}

/* Half of what is sent is enough: what else a port may have to do at this moment is less. */
static void judge(im_comm_mpi_world *w, const view *all)
{
    int out = 0, through = 0, past = -1;
    for (int i = 0; i < w->at.size; i++) {
        if (all[i].machine != i || !reaches_out(all, w->at.size, i))
            continue;
        out++;
        if (all[i].bytes >= IM_MPI_MEASURED / 2)
            through++;
        else if (all[i].port[0] && past < 0)
            past = i;
    }
    if (out && through == out)
        snprintf(w->way, sizeof w->way, ", between machines through verbs ports (here %s)", all[0].port);
    else if (out && past < 0 && !through)
        snprintf(w->way, sizeof w->way, ", between machines through no verbs port (there is none)");
    else if (out && w->at.rank == 0 && past >= 0)
        im_log(w->ctx, IM_LOG_WARN, "comm",
               "%s: messages between machines do not go through the verbs port %s of rank %d's machine: %llu of %d bytes did", w->at.library,
               all[past].port, past, (unsigned long long)all[past].bytes, (int)IM_MPI_MEASURED);
}

im_status im_mpi_measure_links(im_comm_mpi_world *w)
{
    im_mpi_ports before, after;
    view mine = {.machine = w->at.machine};
    void *all;
    bool looks = w->at.local_rank == 0 && w->at.local_size < w->at.size;
    if (looks)
        im_mpi_ports_read(SYS, &before);
    int e = w->mpi->measure(w->state, &w->at);
    if (e)
        return im_mpi_error(w, e, "measuring links at the start");
    if (w->at.local_size == w->at.size)
        return IM_OK;
    if (looks) {
        im_mpi_ports_read(SYS, &after);
        const im_mpi_port *port = im_mpi_ports_busiest(&before, &after, &mine.bytes);
        memcpy(mine.port, port ? port->name : "", port ? sizeof mine.port : 1);
    }
    IM_TRY(im_alloc(w->ctx, (size_t)w->at.size, sizeof mine, &all));
    e = w->mpi->share(w->state, &mine, sizeof mine, all);
    if (!e)
        judge(w, all);
    free(all);
    return e ? im_mpi_error(w, e, "an exchange at the start") : IM_OK;
}
