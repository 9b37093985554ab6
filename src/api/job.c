/* job: this process as a rank of an MPI job; and where the library is installed. */
#include "api/internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_job {
    im_comm_mpi_world *world;
};

/* Where the library lies tells where the rest is, so that an installation may be moved. */
const char *im_api_installed(const char *what, const char *otherwise, char *buf)
{
    Dl_info info;
    if (dladdr((const void *)im_api_installed, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        int n = snprintf(buf, PATH_MAX, "%.*s/%s", slash ? (int)(slash - info.dli_fname) : 1, slash ? info.dli_fname : ".", what);
        if (n < PATH_MAX && im_path_is_dir(buf))
            return buf;
    }
    return otherwise;
}

static im_status join(im_context *ctx, const im_job_config *cfg, const char *library, im_job *job)
{
    char dir[PATH_MAX], path[PATH_MAX];
    const char *plugins = cfg->plugins ? cfg->plugins : im_api_installed(IM_PLUGINS_FROM_LIB, IM_PLUGINS_DIR, dir);
    if (snprintf(path, sizeof path, "%s/imece_%s.so", plugins, library) >= (int)sizeof path)
        return im_fail(ctx, IM_ERR_ARG, "im_job_join: %s: the path is too long", plugins);
    if (!im_path_exists(path))
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s started this process, but %s is not there: the library was built without it (Debian: lib%s-dev)",
                       strcmp(library, "mpich") == 0 ? "MPICH" : "Open MPI", path, library);
    const im_comm_mpi_config config = {.plugin = path, .deadline = cfg->deadline};
    IM_TRY(im_comm_mpi_world_create(ctx, &config, &job->world));
    im_context_set_rank(ctx, im_job_rank(job));
    return IM_OK;
}

im_status im_job_join(im_context *ctx, const im_job_config *cfg, im_job **out)
{
    const char *library = cfg->environment ? im_comm_mpi_launcher(cfg->environment) : NULL;
    void *p;
    if (!(cfg->deadline >= 0))
        return im_fail(ctx, IM_ERR_ARG, "im_job_join: a deadline of %g seconds", cfg->deadline);
    if (!library) {
        *out = NULL;
        return IM_OK;
    }
    IM_TRY(im_alloc(ctx, 1, sizeof(im_job), &p));
    im_status status = join(ctx, cfg, library, p);
    if (status == IM_OK)
        *out = p;
    else
        free(p);
    return status;
}

void im_job_abort(im_job *job, const char *reason)
{
    im_comm_mpi_world_abort(job->world, reason);
}

void im_job_leave(im_job *job)
{
    if (job)
        im_comm_mpi_world_destroy(job->world);
    free(job);
}

int im_job_rank(const im_job *job)
{
    return job ? im_comm_mpi_where(job->world).rank : 0;
}

int im_job_size(const im_job *job)
{
    return job ? im_comm_mpi_where(job->world).size : 1;
}

im_comm_mpi_world *im_api_job_world(const im_job *job)
{
    return job->world;
}
