/* launch: whether an MPI launcher started this process, by the environment that it leaves; and starting one. */
#ifndef IM_CLI_LAUNCH_H
#define IM_CLI_LAUNCH_H

#include "cli/cli.h"
#include "train/train.h"

/* *out: the world of the job; NULL when no launcher started this process. IM_ERR_ARG: another kind of launcher did, with the line that does
 * the same; IM_ERR_NOT_FOUND: no plug-in for its MPI is installed; IM_ERR_TIMEOUT: not all processes came within `seconds` (0: 300), and this
 * one is to end at once. What all ranks come to alike, only rank 0 is left to tell: the log of the others is off then. */
im_status im_cli_join_job(im_cli *cli, double seconds, im_comm_mpi_world **out) IM_MUST_CHECK;
/* The end of a command that has joined: tells the error, if there is one, and the launcher. mpi NULL is allowed. Returns the exit code. */
int im_cli_leave_job(im_cli *cli, im_comm_mpi_world *mpi, im_status status);
/* For a command whose ranks are threads alone: IM_ERR_ARG when a launcher started several of it; rank 0 tells. */
im_status im_cli_refuse_job(im_cli *cli) IM_MUST_CHECK;
/* A command whose ranks may be the processes of a job: joins it, and runs. mpi as above. quiet: this is not rank 0, which speaks for all; what fails
 * here is told by rank 0, or was. parsed: of the options, an error is told to the others, who wait. Returns the exit code. */
int im_cli_run_as_job(im_cli *cli, double deadline, im_status parsed, im_status (*run)(im_cli *cli, void *arg, im_comm_mpi_world *mpi, bool quiet),
                      void *arg);
/* The plug-in for "openmpi" or "mpich"; NULL: none is installed. */
const char *im_cli_plugin(im_cli *cli, const char *flavour);

/* Open MPI 5's mpirun (PRRTE) started this process. It gives what it has of an unfinished line of stdout out with stderr, and loses what a process
 * writes just before its end. */
bool im_cli_under_prrte(void);

/* --hosts: prints mpirun's line and becomes mpirun. Returns only errors. argv stands behind the command's name. */
im_status im_cli_start_job(im_cli *cli, const im_train_options *o, int argc, char **argv) IM_MUST_CHECK;
/* IM_ERR_NOT_FOUND when the program cannot be started on a host: by ssh, without a password. Hosts of this machine, and other ways than ssh
 * that MPI was told of, are not asked. */
im_status im_cli_reach(im_cli *cli, const char *host, const char *program) IM_MUST_CHECK;
/* Appends a word as a shell reads it back. */
void im_cli_quote(const char *word, im_str *out);

#endif
