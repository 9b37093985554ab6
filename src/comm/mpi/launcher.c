/* launcher: who started this process, by what it leaves in the environment, which the caller reads. */
#include "comm/comm.h"

static bool has(char *(*environment)(const char *name), const char *name)
{
    const char *value = environment(name);
    return value && *value;
}

const char *im_comm_mpi_launcher(char *(*environment)(const char *name))
{
    if (has(environment, "OMPI_COMM_WORLD_SIZE") || has(environment, "PMIX_RANK"))
        return "openmpi";
    return has(environment, "PMI_RANK") ? "mpich" : NULL;
}
