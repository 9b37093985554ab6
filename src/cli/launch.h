/* launch: whether an MPI launcher started this process, by the environment that it leaves. */
#ifndef IM_CLI_LAUNCH_H
#define IM_CLI_LAUNCH_H

#include "cli/cli.h"
#include "comm/comm.h"

/* *out: the world of the job; NULL when no launcher started this process. IM_ERR_ARG: another kind of launcher did, with the line that does
 * the same; IM_ERR_NOT_FOUND: no plug-in for its MPI is installed. */
im_status im_cli_join_job(im_cli *cli, im_comm_mpi_world **out) IM_MUST_CHECK;

#endif
