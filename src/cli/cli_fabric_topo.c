/* imece fabric topo: how a machine and a network hang together. */
#include "cli/cli_fabric.h"
#include "fabric/topo.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20, MAX_NETWORKS = 2 };

typedef struct topo_options {
    const char *root, *nccl_xml, *ibnetdiscover, *slurm;
    bool json;
} topo_options;

#define AT(member) offsetof(topo_options, member)
static const im_option rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's /sys and /proc.",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "nccl-xml",
     .type = IM_OPT_STRING,
     .help = "The machine as NCCL wrote it with NCCL_TOPO_DUMP_FILE; it has the NVLinks.",
     .value = "FILE",
     .offset = AT(nccl_xml)},
    {.name = "ibnetdiscover", .type = IM_OPT_STRING, .help = "A network: the output of ibnetdiscover.", .value = "FILE", .offset = AT(ibnetdiscover)},
    {.name = "slurm", .type = IM_OPT_STRING, .help = "A network: Slurm's topology.conf (topology/tree).", .value = "FILE", .offset = AT(slurm)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = AT(json)},
};

typedef struct topo {
    im_cli *cli;
    topo_options o;
    bool root_given;
    im_graph *machine; /* NULL: not asked for */
    im_network *net[MAX_NETWORKS];
    size_t nnets;
} topo;

typedef im_status (*network_reader)(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_network **out);

static im_status read_network(topo *t, const char *path, network_reader reader)
{
    char *text;
    size_t len;
    if (!path)
        return IM_OK;
    IM_TRY(im_file_read(t->cli->ctx, path, MAX_FILE, &text, &len));
    const im_status status = reader(t->cli->ctx, t->cli->arena, path, text, len, &t->net[t->nnets]);
    free(text);
    t->nnets += status == IM_OK;
    return status;
}

static im_status read_machine(topo *t)
{
    im_context *ctx = t->cli->ctx;
    if (t->o.nccl_xml) {
        char *text;
        size_t len;
        IM_TRY(im_file_read(ctx, t->o.nccl_xml, MAX_FILE, &text, &len));
        const im_status status = im_graph_from_nccl(ctx, t->cli->arena, t->o.nccl_xml, text, len, &t->machine);
        free(text);
        return status;
    }
    im_root *root = NULL;
    im_machine *m;
    IM_TRY(im_root_open(ctx, t->cli->arena, t->o.root, &root));
    im_status status = im_machine_read(ctx, root, &m);
    if (status == IM_OK)
        status = im_graph_from_machine(ctx, t->cli->arena, m, &t->machine);
    im_root_close(root);
    return status;
}

static im_status read_all(topo *t)
{
    const bool networks = t->o.ibnetdiscover || t->o.slurm;
    if (t->o.nccl_xml && t->root_given)
        return im_fail(t->cli->ctx, IM_ERR_ARG, "--root and --nccl-xml both name the machine: give one of them");
    if (!networks || t->o.nccl_xml || t->root_given)
        IM_TRY(read_machine(t));
    IM_TRY(read_network(t, t->o.ibnetdiscover, im_network_from_ibnetdiscover));
    return read_network(t, t->o.slurm, im_network_from_slurm);
}

static im_status print(const topo *t)
{
    const char *plain = getenv("NO_COLOR");
    const im_look look = {.colour = t->cli->out_is_terminal && !(plain && *plain), .columns = t->cli->columns};
    im_context *ctx = t->cli->ctx;
    im_str text = {0};
    im_status status = IM_OK;
    if (t->o.json) {
        const im_network *nets[MAX_NETWORKS] = {t->net[0], t->net[1]};
        status = im_topo_json(ctx, t->cli->arena, t->machine, nets, t->nnets, &text);
    } else {
        if (t->machine)
            status = im_topo_text(ctx, t->cli->arena, t->machine, &look, &text);
        for (size_t i = 0; i < t->nnets && status == IM_OK; i++) {
            if (text.len)
                im_str_append(&text, "\n");
            status = im_topo_network_text(ctx, t->cli->arena, t->net[i], &look, &text);
        }
    }
    if (status == IM_OK)
        fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    return status;
}

static int run_topo(im_cli *cli, int argc, char **argv)
{
    topo t = {.cli = cli};
    bool given[IM_COUNT_OF(rows)] = {false};
    size_t findings = 0;
    im_status status = im_cli_options(cli, argc, argv, &t.o, given, NULL);
    t.root_given = given[0];
    if (status == IM_OK)
        status = read_all(&t);
    if (status == IM_OK)
        status = print(&t);
    for (size_t i = 0; i < t.nnets; i++)
        findings += t.net[i]->nfindings;
    const int code = im_cli_exit(cli, status);
    return status == IM_OK && findings ? IM_EXIT_FOUND : code;
}

const im_cli_command im_cli_fabric_topo_command = {
    .name = "topo",
    .help = "Distances of GPUs, NICs and CPUs, which NIC for which GPU, the rails; and the network's shape.",
    .about =
        "Of a machine: the matrix of distances (the words of `nvidia-smi topo -m`), a NIC for each GPU so that all distances together are least,\n"
        "and the rails: NICs of the fastest kind that is active. From sysfs, or from the XML of NCCL, which alone has the NVLinks.\n"
        "\n"
        "Of a network: switches by level, hosts, over-subscription, the topology (tree, fat-tree, dragonfly, dragonfly+, full mesh, other),\n"
        "and what differs from its twins: links that are slower or narrower, switches with fewer links. With such findings the exit code is 3.\n"
        "\n"
        "  imece fabric topo\n"
        "  NCCL_TOPO_DUMP_FILE=t.xml ./job; imece fabric topo --nccl-xml t.xml\n"
        "  ibnetdiscover >net.txt; imece fabric topo --ibnetdiscover net.txt\n"
        "  imece fabric topo --slurm /etc/slurm/topology.conf",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_topo,
};
