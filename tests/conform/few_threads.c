/* An MPI without threads: preloaded, it stands between the program and MPI's own start, and gives the level SINGLE. With FEW_THREADS_ON=R only on
 * rank R. Built with the plug-ins, for tests/cli/launch.sh. */
#include <mpi.h>
#include <stdlib.h>

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const char *on = getenv("FEW_THREADS_ON");
    int rank, error = PMPI_Init_thread(argc, argv, required, provided);
    if (!error)
        error = PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!error && (!on || atoi(on) == rank))
        *provided = MPI_THREAD_SINGLE;
    return error;
}
