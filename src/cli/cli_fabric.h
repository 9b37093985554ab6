/* The sub-commands of imece fabric. */
#ifndef IM_CLI_FABRIC_H
#define IM_CLI_FABRIC_H

#include "cli/cli.h"

extern const im_cli_command im_cli_fabric_status_command, im_cli_fabric_topo_command, im_cli_fabric_env_command, im_cli_fabric_diagnose_command,
    im_cli_fabric_export_command, im_cli_fabric_check_command, im_cli_fabric_bundle_command;

#endif
