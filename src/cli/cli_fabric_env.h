/* imece fabric env: its sub-commands, and what they share. */
#ifndef IM_CLI_FABRIC_ENV_H
#define IM_CLI_FABRIC_ENV_H

#include "cli/cli.h"
#include "fabric/env.h"

extern const im_cli_command im_cli_fabric_env_lint_command;

/* --nccl's text as a number; 0 for none. IM_ERR_ARG when it is no version. */
im_status im_cli_env_version(im_cli *cli, const char *text, int *out);
/* Text in lines of `width`, each behind `before`; a line of its own begins behind each newline. */
void im_cli_env_wrap(const char *text, const char *before, int width, im_str *out);
/* "8 InfiniBand ports of 400 Gb/s, 8 GPUs" */
void im_cli_env_machine(const im_env_facts *f, im_str *out);

#endif
