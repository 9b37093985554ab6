/* launch: mpirun of Open MPI and of MPICH, srun with PMIx or PMI-2; torchrun is recognised. */
#include "cli/launch.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static const char *value_of(const char *name, const char *otherwise)
{
    return has(name) ? getenv(name) : otherwise;
}

/* torchrun starts processes that meet over TCP; here MPI's launcher does both. */
static im_status refuse_torchrun(im_cli *cli)
{
    const char *world = value_of("WORLD_SIZE", "N"), *local = value_of("LOCAL_WORLD_SIZE", world);
    im_str line = {0};
    im_str_printf(&line, "mpirun -n %s", world);
    if (strcmp(world, local) != 0)
        im_str_printf(&line, " --map-by ppr:%s:node -H HOST1,HOST2", local);
    im_status s =
        im_fail(cli->ctx, IM_ERR_ARG, "torchrun started this process (WORLD_SIZE=%s, RANK=%s); MPI's launcher does the same: %s imece %s ...", world,
                value_of("RANK", "?"), im_str_text(&line), cli->command->name);
    im_str_free(&line);
    return s;
}

static im_status refuse_plain_srun(im_cli *cli)
{
    return im_fail(cli->ctx, IM_ERR_ARG, "srun started %s processes without MPI's start-up: srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)",
                   getenv("SLURM_STEP_NUM_TASKS"));
}

/* imece_NAME.so: beside the program (a build), where it is installed from there, as configured. */
static const char *find_plugin(im_cli *cli, const char *name)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    static const char *const beside[] = {"", "../" IM_LIBDIR "/imece/"};
    for (size_t i = 0; slash && i < IM_COUNT_OF(beside); i++) {
        char *path = im_arena_printf(cli->arena, "%.*s/%simece_%s.so", (int)(slash - exe), exe, beside[i], name);
        if (path && im_path_exists(path))
            return path;
    }
    return im_arena_printf(cli->arena, "%s/imece_%s.so", IM_PLUGIN_DIR, name);
}

im_status im_cli_join_job(im_cli *cli, im_comm_mpi_world **out)
{
    const char *name = im_comm_mpi_launcher(getenv);
    if (!name && (has("TORCHELASTIC_RUN_ID") || (has("WORLD_SIZE") && has("RANK") && has("MASTER_ADDR"))))
        return refuse_torchrun(cli);
    if (!name && has("SLURM_STEP_NUM_TASKS") && atoi(getenv("SLURM_STEP_NUM_TASKS")) > 1)
        return refuse_plain_srun(cli);
    if (!name) {
        *out = NULL;
        return IM_OK;
    }
    const char *plugin = find_plugin(cli, name);
    if (!plugin || !im_path_exists(plugin))
        return im_fail(cli->ctx, IM_ERR_NOT_FOUND,
                       "%s started this process, but imece was built without it: %s is not there (Debian: lib%s-dev, then build again)",
                       strcmp(name, "mpich") == 0 ? "MPICH" : "Open MPI", plugin ? plugin : name, name);
    im_comm_mpi_config config = {.plugin = plugin};
    IM_TRY(im_comm_mpi_world_create(cli->ctx, &config, out));
    im_context_set_rank(cli->ctx, im_comm_mpi_where(*out).rank);
    return IM_OK;
}
