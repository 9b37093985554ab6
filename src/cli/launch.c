/* launch: mpirun of Open MPI and of MPICH, srun with PMIx or PMI-2; torchrun is recognised. */
#include "cli/launch.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double START = 300; /* seconds */

static bool has(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static const char *value_of(const char *name, const char *otherwise)
{
    return has(name) ? getenv(name) : otherwise;
}

/* Of the first variable that is there; 0 without any. */
static int number_of(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (has(names[i]))
            return atoi(getenv(names[i]));
    return 0;
}

/* Among the processes of the job, and among those of this machine, as the launcher says it before MPI does. */
static int job_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"};
    return number_of(names, IM_COUNT_OF(names));
}

static int job_local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    return number_of(names, IM_COUNT_OF(names));
}

/* What goes wrong alike on all ranks is told once. */
/* The one that tells is given the time: launchers end a job, words on their way included, with the first process that fails. */
static im_status told_by_one(im_cli *cli, bool one, im_status status)
{
    const struct timespec moment = {.tv_nsec = 300000000};
    if (one || status == IM_OK)
        return status;
    im_context_set_log(cli->ctx, NULL, NULL, IM_LOG_ERROR);
    nanosleep(&moment, NULL);
    return status;
}

bool im_cli_under_prrte(void)
{
    return has("PRTE_LAUNCHED");
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
const char *im_cli_plugin(im_cli *cli, const char *flavour)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    static const char *const beside[] = {"", "../" IM_LIBDIR "/imece/"};
    for (size_t i = 0; slash && i < IM_COUNT_OF(beside); i++) {
        char *path = im_arena_printf(cli->arena, "%.*s/%simece_%s.so", (int)(slash - exe), exe, beside[i], flavour);
        if (path && im_path_exists(path))
            return path;
    }
    char *installed = im_arena_printf(cli->arena, "%s/imece_%s.so", IM_PLUGIN_DIR, flavour);
    return installed && im_path_exists(installed) ? installed : NULL;
}

im_status im_cli_join_job(im_cli *cli, double seconds, im_comm_mpi_world **out)
{
    const char *name = im_comm_mpi_launcher(getenv);
    *out = NULL;
    if (!name && (has("TORCHELASTIC_RUN_ID") || (has("WORLD_SIZE") && has("RANK") && has("MASTER_ADDR"))))
        return told_by_one(cli, job_rank() == 0, refuse_torchrun(cli));
    if (!name && has("SLURM_STEP_NUM_TASKS") && atoi(getenv("SLURM_STEP_NUM_TASKS")) > 1)
        return told_by_one(cli, job_rank() == 0, refuse_plain_srun(cli));
    if (!name)
        return IM_OK;
    im_context_set_rank(cli->ctx, job_rank());
    const char *plugin = im_cli_plugin(cli, name);
    if (!plugin) /* perhaps on one machine only */
        return told_by_one(cli, job_local_rank() == 0,
                           im_fail(cli->ctx, IM_ERR_NOT_FOUND,
                                   "%s started this process, but imece was built without it: there is no imece_%s.so (Debian: lib%s-dev, then build "
                                   "again)",
                                   strcmp(name, "mpich") == 0 ? "MPICH" : "Open MPI", name, name));
    /* rank 0 gives up first, and the launcher ends the others; when it is rank 0 that is not there, they tell it */
    im_comm_mpi_config config = {.plugin = plugin, .start = (seconds > 0 ? seconds : START) + (job_rank() ? 3 : 0)};
    im_status status = im_comm_mpi_world_create(cli->ctx, &config, out);
    bool alike = status == IM_ERR_ARG || status == IM_ERR_UNSUPPORTED; /* other builds, no threads: all ranks have compared them */
    if (status != IM_OK)
        return told_by_one(cli, !alike || job_rank() == 0, status);
    im_context_set_rank(cli->ctx, im_comm_mpi_where(*out).rank);
    return IM_OK;
}

im_status im_cli_refuse_job(im_cli *cli)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    int n = im_comm_mpi_launcher(getenv) ? number_of(sizes, IM_COUNT_OF(sizes)) : 0;
    if (n < 2)
        return IM_OK;
    im_context_set_rank(cli->ctx, job_rank());
    return told_by_one(cli, job_rank() == 0,
                       im_fail(cli->ctx, IM_ERR_ARG,
                               "imece %s starts its ranks itself, as threads of one process: without mpirun or srun (%d processes)",
                               cli->command->name, n));
}

int im_cli_leave_job(im_cli *cli, im_comm_mpi_world *mpi, im_status status)
{
    int code = im_cli_exit(cli, status);
    if (mpi)
        im_comm_mpi_world_exit_code(mpi, code);
    im_comm_mpi_world_destroy(mpi);
    return code;
}

int im_cli_run_as_job(im_cli *cli, double deadline, im_status parsed, im_status (*run)(im_cli *cli, void *arg, im_comm_mpi_world *mpi, bool quiet),
                      void *arg)
{
    im_comm_mpi_world *mpi;
    im_cli_catch_signals();
    im_status status = im_cli_join_job(cli, parsed == IM_OK ? deadline : 0, &mpi);
    if (status != IM_OK) {
        int code = im_cli_exit(cli, status);
        if (status == IM_ERR_TIMEOUT)
            _exit(code); /* MPI is half started: nothing of it may be waited for */
        return code;
    }
    bool quiet = mpi && im_comm_mpi_where(mpi).rank > 0;
    if (quiet)
        im_context_copy_log(cli->ctx, cli->ctx, IM_LOG_ERROR);
    status = parsed;
    if (parsed == IM_OK)
        status = run(cli, arg, mpi, quiet);
    else if (mpi)
        im_comm_mpi_world_abort(mpi, im_error_text(cli->ctx));
    if (quiet) /* told already: by rank 0, or by this rank when that one does not answer */
        im_context_set_log(cli->ctx, NULL, NULL, IM_LOG_ERROR);
    return im_cli_leave_job(cli, mpi, status);
}
