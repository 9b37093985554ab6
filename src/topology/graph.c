/* The graph of a machine from its PCI tree; distances. */
#include "topology/graph.h"

#include <string.h>

const char *im_path_name(im_path p)
{
    static const char *const name[] = {"X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "?"};
    return name[p];
}

/* Above a device stand: root port, then an upstream and a downstream port for each switch. */
static im_status place(im_context *ctx, im_arena *a, const im_machine *m, const im_pci *p, im_item *x)
{
    x->address = p->address;
    x->host_bridge = p->host_bridge;
    x->numa = p->numa_node.is_number ? (int)p->numa_node.value : -1;
    if (x->numa < 0 && m->nnumas == 1)
        x->numa = m->numa[0].id; /* there is only one */
    x->cpus = p->local_cpus.text && *p->local_cpus.text ? p->local_cpus.text : NULL;
    x->pci_bytes = p->link_width.is_number ? im_pci_rate(p->gts, p->link_width.value) : 0;
    x->port = p->nbridges ? p->bridge[p->nbridges - 1] : NULL;
    x->pci_switch = IM_ARENA_NEW(a, const char *, p->nbridges + 1);
    if (!x->pci_switch)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a machine's graph");
    for (size_t i = 1; i < p->nbridges; i += 2)
        x->pci_switch[x->nswitches++] = p->bridge[i];
    return IM_OK;
}

static void count_ports(const im_rdma_device *d, im_item *x)
{
    x->ports = (int)d->nports;
    for (size_t i = 0; i < d->nports; i++) {
        const im_rdma_port *p = &d->port[i];
        x->ethernet = x->ethernet || p->ethernet;
        if (!p->state.is_number || p->state.value != 4)
            continue; /* the rate of a port that is not active means nothing */
        x->active++;
        x->gbps += p->rate.gbps;
    }
}

im_status im_graph_from_machine(im_context *ctx, im_arena *a, const im_machine *m, im_graph **out)
{
    im_graph *g = IM_ARENA_NEW(a, im_graph, 1);
    *out = NULL;
    if (!g || !(g->gpu = IM_ARENA_NEW(a, im_item, m->ngpus + 1)) || !(g->nic = IM_ARENA_NEW(a, im_item, m->nrdma + 1)))
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a machine's graph");
    g->source = im_root_dir(m->root);
    g->numas = (int)m->nnumas;
    g->hosts = 1;
    for (size_t i = 0; i < m->ngpus; i++) {
        im_item *x = &g->gpu[g->ngpus++];
        *x = (im_item){.kind = IM_ITEM_GPU, .name = m->gpu[i].name};
        IM_TRY(place(ctx, a, m, m->gpu[i].pci, x));
    }
    for (size_t i = 0; i < m->nrdma; i++) {
        if (!m->rdma[i].pci)
            continue; /* a software device has no place */
        im_item *x = &g->nic[g->nnics++];
        *x = (im_item){.kind = IM_ITEM_NIC, .name = m->rdma[i].name};
        IM_TRY(place(ctx, a, m, m->rdma[i].pci, x));
        count_ports(&m->rdma[i], x);
    }
    *out = g;
    return IM_OK;
}

/* "0000:41:00.0" and "0000:41:00.1" */
static bool same_card(const im_item *x, const im_item *y)
{
    const size_t n = strlen(x->address);
    return n > 2 && n == strlen(y->address) && strncasecmp(x->address, y->address, n - 2) == 0;
}

im_path im_graph_path(const im_graph *g, const im_item *x, const im_item *y)
{
    if (x == y)
        return IM_PATH_SELF;
    if (x->kind == IM_ITEM_GPU && y->kind == IM_ITEM_GPU && g->nvlink && g->nvlink[(size_t)(x - g->gpu) * g->ngpus + (size_t)(y - g->gpu)] > 0)
        return IM_PATH_NVLINK;
    if (x->host != y->host)
        return IM_PATH_UNKNOWN;
    if (same_card(x, y))
        return IM_PATH_PIX;
    const bool one_bridge = !x->host_bridge || !y->host_bridge || strcmp(x->host_bridge, y->host_bridge) == 0;
    const bool told = x->numa >= 0 && y->numa >= 0;
    size_t common = 0;
    while (one_bridge && common < x->nswitches && common < y->nswitches && strcmp(x->pci_switch[common], y->pci_switch[common]) == 0)
        common++;
    if (common && common == x->nswitches && common == y->nswitches)
        return IM_PATH_PIX;
    if (common)
        return IM_PATH_PXB;
    if (x->host_bridge && y->host_bridge && one_bridge)
        return IM_PATH_PHB;
    if (!told)
        return IM_PATH_UNKNOWN;
    if (x->numa != y->numa)
        return IM_PATH_SYS;
    return x->host_bridge && y->host_bridge ? IM_PATH_NODE : IM_PATH_PHB; /* the XML does not know host bridges */
}
