/* Machines and networks as JSON. */
#include "fabric/json_out.h"
#include "fabric/topo.h"

static const im_item *item(const im_graph *g, size_t i)
{
    return i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus];
}

static void item_object(im_json_out *w, const im_item *x)
{
    im_json_out_open(w, NULL, '{');
    im_json_out_text(w, "name", x->name);
    im_json_out_text(w, "kind", x->kind == IM_ITEM_GPU ? "gpu" : "nic");
    im_json_out_text(w, "pci_address", *x->address ? x->address : NULL);
    if (x->numa >= 0)
        im_json_out_int(w, "numa_node", x->numa);
    im_json_out_text(w, "cpus", x->cpus);
    im_json_out_open(w, "switches", '[');
    for (size_t i = 0; i < x->nswitches; i++)
        im_json_out_text(w, NULL, x->pci_switch[i]);
    im_json_out_close(w, ']');
    if (x->pci_bytes > 0)
        im_json_out_real(w, "pci_bytes_per_second", x->pci_bytes);
    if (x->gbps > 0)
        im_json_out_real(w, "gbps", x->gbps);
    if (x->active >= 0) {
        im_json_out_int(w, "active_ports", x->active);
        im_json_out_int(w, "ports", x->ports);
    }
    if (x->nvlinks)
        im_json_out_int(w, "nvlinks", x->nvlinks);
    im_json_out_close(w, '}');
}

static void pair_objects(im_json_out *w, const im_graph *g, const im_pairing *p)
{
    im_json_out_open(w, "pairing", '[');
    for (size_t i = 0; i < g->ngpus; i++) {
        im_json_out_open(w, NULL, '{');
        im_json_out_text(w, "gpu", g->gpu[i].name);
        im_json_out_text(w, "nic", p->nic[i] ? p->nic[i]->name : NULL);
        im_json_out_text(w, "path", p->nic[i] ? im_path_name(p->path[i]) : NULL);
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
    im_json_out_open(w, "rails", '[');
    for (size_t r = 0; r < p->nrails; r++)
        im_json_out_text(w, NULL, p->rail[r]->name);
    im_json_out_close(w, ']');
    im_json_out_open(w, "not_rails", '{');
    for (size_t i = 0; i < p->nasides; i++)
        im_json_out_text(w, p->aside[i]->name, p->aside_why[i]);
    im_json_out_close(w, '}');
}

static void machine_object(im_json_out *w, const im_graph *g, const im_pairing *p)
{
    const size_t n = g->ngpus + g->nnics;
    im_json_out_open(w, "machine", '{');
    im_json_out_text(w, "source", g->source);
    im_json_out_open(w, "items", '[');
    for (size_t i = 0; i < n; i++)
        item_object(w, item(g, i));
    im_json_out_close(w, ']');
    im_json_out_open(w, "distance", '{');
    for (size_t i = 0; i < n; i++) {
        im_json_out_open(w, item(g, i)->name, '{');
        for (size_t k = 0; k < n; k++)
            im_json_out_text(w, item(g, k)->name, im_path_name(im_graph_path(g, item(g, i), item(g, k))));
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, '}');
    im_json_out_bool(w, "nvlink_known", g->nvlink_known);
    pair_objects(w, g, p);
    im_json_out_close(w, '}');
}

static void network_object(im_json_out *w, const im_network *net)
{
    im_json_out_open(w, NULL, '{');
    im_json_out_text(w, "source", net->source);
    im_json_out_text(w, "topology", im_net_shape_name(net->shape));
    im_json_out_text(w, "why", net->why);
    im_json_out_int(w, "hosts", (int64_t)net->nhosts);
    im_json_out_int(w, "links", (int64_t)net->nlinks);
    if (net->groups)
        im_json_out_int(w, "groups", net->groups);
    im_json_out_int(w, "parts", net->parts);
    if (net->rails)
        im_json_out_int(w, "rails", net->rails);
    im_json_out_open(w, "levels", '[');
    for (int i = 1; i <= net->levels && i <= IM_NET_LEVELS; i++) {
        const im_net_level *l = &net->level[i];
        im_json_out_open(w, NULL, '{');
        im_json_out_int(w, "switches", l->switches);
        im_json_out_int(w, "down_links", l->down_links);
        im_json_out_int(w, "up_links", l->up_links);
        im_json_out_int(w, "side_links", l->side_links);
        if (l->down_gbps > 0)
            im_json_out_real(w, "down_gbps", l->down_gbps);
        if (l->up_gbps > 0)
            im_json_out_real(w, "up_gbps", l->up_gbps);
        if (l->over_max > 0) {
            im_json_out_real(w, "oversubscription_min", l->over_min);
            im_json_out_real(w, "oversubscription_max", l->over_max);
        }
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
    im_json_out_open(w, "switches", '[');
    for (size_t i = 0; i < net->nnodes; i++) {
        const im_net_node *n = &net->node[i];
        if (n->kind != IM_NET_SWITCH)
            continue;
        im_json_out_open(w, NULL, '{');
        im_json_out_text(w, "id", n->id);
        im_json_out_text(w, "name", n->text);
        if (n->level)
            im_json_out_int(w, "level", n->level);
        if (n->group >= 0)
            im_json_out_int(w, "group", n->group);
        im_json_out_int(w, "links", n->nlinks);
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
    im_json_out_open(w, "findings", '[');
    for (size_t i = 0; i < net->nfindings; i++)
        im_json_out_text(w, NULL, net->finding[i]);
    im_json_out_close(w, ']');
    im_json_out_close(w, '}');
}

im_status im_topo_json(im_context *ctx, im_arena *a, const im_graph *g, const im_network *const *net, size_t nnets, im_str *out)
{
    im_json_out w = {out, false};
    im_json_out_open(&w, NULL, '{');
    if (g) {
        im_pairing p;
        IM_TRY(im_graph_pair(ctx, a, g, &p));
        machine_object(&w, g, &p);
    }
    im_json_out_open(&w, "networks", '[');
    for (size_t i = 0; i < nnets; i++)
        network_object(&w, net[i]);
    im_json_out_close(&w, ']');
    im_json_out_close(&w, '}');
    im_str_append(out, "\n");
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the topology") : IM_OK;
}
