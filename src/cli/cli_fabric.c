/* imece fabric: InfiniBand and RoCE under NCCL and UCX. Each sub-command has a file of its own. */
#include "cli/cli_fabric.h"

static const im_cli_command *const fabric_commands[] = {
    &im_cli_fabric_status_command, &im_cli_fabric_topo_command,     &im_cli_fabric_check_command,  &im_cli_fabric_bundle_command,
    &im_cli_fabric_env_command,    &im_cli_fabric_diagnose_command, &im_cli_fabric_export_command, NULL, /* ends the list */
};

const im_cli_command im_cli_fabric_command = {
    .name = "fabric",
    .help = "InfiniBand and RoCE: see the devices and the topology, check the machine, judge the variables of NCCL, UCX and MPI, say why a job went "
            "wrong, export to Prometheus.",
    .sub = fabric_commands,
    .nsub = IM_COUNT_OF(fabric_commands) - 1,
};
