/* Machines and networks as text. */
#include "fabric/topo.h"

#include <stdio.h>
#include <string.h>

static const im_item *item(const im_graph *g, size_t i)
{
    return i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus];
}

/* "PIX", or "NV18" */
static const char *cell(const im_graph *g, const im_item *x, const im_item *y, char buf[16])
{
    const im_path p = im_graph_path(g, x, y);
    if (p != IM_PATH_NVLINK)
        return im_path_name(p);
    snprintf(buf, 16, "NV%d", g->nvlink[(size_t)(x - g->gpu) * g->ngpus + (size_t)(y - g->gpu)]);
    return buf;
}

static const char *colour_of(const im_paint *paint, im_path p)
{
    return p == IM_PATH_NVLINK || p == IM_PATH_PIX || p == IM_PATH_PXB ? paint->good
           : p == IM_PATH_SYS                                          ? paint->bad
           : p == IM_PATH_UNKNOWN                                      ? paint->faint
                                                                       : "";
}

static void matrix(const im_graph *g, const im_paint *paint, im_str *out)
{
    const size_t n = g->ngpus + g->nnics;
    int width = 5;
    for (size_t i = 0; i < n; i++)
        width = (int)strlen(item(g, i)->name) + 1 > width ? (int)strlen(item(g, i)->name) + 1 : width;
    im_str_printf(out, "%*s", width, "");
    for (size_t i = 0; i < n; i++)
        im_str_printf(out, "%*s", width, item(g, i)->name);
    im_str_append(out, "  NUMA  CPUs\n");
    for (size_t i = 0; i < n; i++) {
        const im_item *x = item(g, i);
        im_str_printf(out, "%-*s", width, x->name);
        for (size_t k = 0; k < n; k++) {
            char buf[16];
            const im_item *y = item(g, k);
            im_str_printf(out, "%s%*s%s", colour_of(paint, im_graph_path(g, x, y)), width, cell(g, x, y, buf), *paint->off ? paint->off : "");
        }
        if (x->numa >= 0)
            im_str_printf(out, "  %4d", x->numa);
        else
            im_str_append(out, "     ?");
        im_str_printf(out, "  %s\n", x->cpus ? x->cpus : "?");
    }
    im_str_append(out,
                  "\nPIX one PCIe switch, PXB several, PHB through the CPU's host bridge, NODE two host bridges of a NUMA node, SYS two NUMA nodes");
    im_str_append(out, g->nvlink_known ? ", NVn that many NVLinks\n"
                                       : "\nNVLink is not told here: a dump of NCCL has it (NCCL_TOPO_DUMP_FILE), read with --nccl-xml\n");
}

static void rate_of(const im_item *x, im_str *out)
{
    if (x->gbps > 0)
        im_str_printf(out, "  %g Gb/s", x->gbps);
    if (x->active >= 0)
        im_str_printf(out, "  %s", x->ethernet ? "RoCE" : "InfiniBand");
    if (x->pci_bytes > 0)
        im_str_printf(out, "  PCIe %.1f GB/s", x->pci_bytes / 1e9);
    if (x->pci_bytes > 0 && x->gbps * 1.25e8 > x->pci_bytes)
        im_str_append(out, ": less than the network");
}

static void pairing(const im_graph *g, const im_pairing *p, const im_paint *paint, im_str *out)
{
    if (g->ngpus && p->nrails)
        im_str_printf(out, "\n%sPairing%s\n", paint->bold, paint->off);
    for (size_t i = 0; i < g->ngpus && p->nrails; i++) {
        im_path best = IM_PATH_UNKNOWN;
        for (size_t k = 0; k < p->nrails; k++) {
            const im_path d = im_graph_path(g, &g->gpu[i], p->rail[k]);
            best = d < best ? d : best;
        }
        im_str_printf(out, "%-6s  %-8s  %s%s%s%s\n", g->gpu[i].name, p->nic[i] ? p->nic[i]->name : "none", colour_of(paint, p->path[i]),
                      im_path_name(p->path[i]), paint->off, p->path[i] > best ? "  (nearer ones are taken)" : "");
    }
    im_str_printf(out, "\n%sRails%s: %zu\n", paint->bold, paint->off, p->nrails);
    for (size_t r = 0; r < p->nrails; r++) {
        im_str_printf(out, "%4zu  %-8s", r, p->rail[r]->name);
        rate_of(p->rail[r], out);
        for (size_t i = 0; i < g->ngpus; i++)
            if (p->nic[i] == p->rail[r])
                im_str_printf(out, "  %s", g->gpu[i].name);
        im_str_append(out, "\n");
    }
    for (size_t i = 0; i < p->nasides; i++)
        im_str_printf(out, "not a rail: %s (%s)\n", p->aside[i]->name, p->aside_why[i]);
}

im_status im_topo_text(im_context *ctx, im_arena *a, const im_graph *g, const im_look *look, im_str *out)
{
    const im_paint paint = im_paint_of(look);
    im_pairing p;
    IM_TRY(im_graph_pair(ctx, a, g, &p));
    im_str_printf(out, "%s%s%s: %zu GPUs, %zu NICs", paint.bold, g->source, paint.off, g->ngpus, g->nnics);
    if (g->numas)
        im_str_printf(out, ", %d NUMA node%s", g->numas, g->numas == 1 ? "" : "s");
    if (g->hosts > 1)
        im_str_printf(out, ", %d machines", g->hosts);
    im_str_append(out, "\n");
    if (g->ngpus + g->nnics) {
        im_str_append(out, "\n");
        matrix(g, &paint, out);
        pairing(g, &p, &paint, out);
    }
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the topology") : IM_OK;
}

/* ---- networks ------------------------------------------------------------------------------ */

static void level_line(const im_network *net, int n, im_str *out)
{
    const im_net_level *l = &net->level[n];
    im_str_printf(out, "level %d  %d switches  %d links down", n, l->switches, l->down_links);
    if (l->down_gbps > 0)
        im_str_printf(out, " (%.4g Tb/s)", l->down_gbps / 1000);
    im_str_printf(out, "  %d up", l->up_links);
    if (l->up_gbps > 0)
        im_str_printf(out, " (%.4g Tb/s)", l->up_gbps / 1000);
    if (l->side_links)
        im_str_printf(out, "  %d to its own level", l->side_links);
    if (l->over_max > 0 && l->over_max - l->over_min < 0.005)
        im_str_printf(out, "  over-subscribed %.3g : 1", l->over_max);
    else if (l->over_max > 0)
        im_str_printf(out, "  over-subscribed %.3g to %.3g : 1", l->over_min, l->over_max);
    im_str_append(out, "\n");
}

im_status im_topo_network_text(im_context *ctx, im_arena *a, const im_network *net, const im_look *look, im_str *out)
{
    (void)a;
    const im_paint paint = im_paint_of(look);
    size_t switches = 0, adapters = 0, lost = 0;
    for (size_t i = 0; i < net->nnodes; i++) {
        switches += net->node[i].kind == IM_NET_SWITCH;
        adapters += net->node[i].host >= 0;
        lost += net->node[i].kind == IM_NET_SWITCH && !net->node[i].level;
    }
    im_str_printf(out, "%s%s%s: %zu switches, %zu hosts with %zu adapters, %zu links\n", paint.bold, net->source, paint.off, switches, net->nhosts,
                  adapters, net->nlinks);
    im_str_printf(out, "topology: %s%s%s: %s\n", paint.bold, im_net_shape_name(net->shape), paint.off, net->why);
    for (int i = 1; i <= net->levels && i <= IM_NET_LEVELS; i++)
        level_line(net, i, out);
    if (net->levels > IM_NET_LEVELS)
        im_str_printf(out, "%d more levels\n", net->levels - IM_NET_LEVELS);
    if (lost)
        im_str_printf(out, "%zu switches reach no host\n", lost);
    if (net->rails)
        im_str_printf(out, "rails: %d: adapter n of every host is at a leaf that serves adapters n alone\n", net->rails);
    for (size_t i = 0; i < net->nfindings; i++)
        im_str_printf(out, "%s%s%s\n", paint.bad, net->finding[i], paint.off);
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the topology") : IM_OK;
}
