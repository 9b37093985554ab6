/* Ports as metrics: state, rate, every counter, GIDs. */
#include "fabric/export.h"
#include "fabric/status.h"

#include <stdio.h>

#define MAX_LABELS 10

/* The port's own two labels stand first. */
typedef struct port_labels {
    im_prom_label label[MAX_LABELS];
    char number[16];
    size_t n;
} port_labels;

static void label(port_labels *l, const char *name, const char *value)
{
    if (l->n < MAX_LABELS)
        l->label[l->n++] = (im_prom_label){name, value && *value ? value : NULL};
}

static void begin(port_labels *l, const im_rdma_device *d, const im_rdma_port *port)
{
    l->n = 0;
    snprintf(l->number, sizeof l->number, "%d", port->number);
    label(l, "device", d->name);
    label(l, "port", l->number);
}

static void gauge(im_prom *p, const port_labels *l, const char *name, const char *help, double value)
{
    im_prom_add(p, im_prom_find(p, name, IM_PROM_GAUGE, help), l->label, l->n, value);
}

static bool is_active(const im_rdma_port *port)
{
    return port->state.is_number && port->state.value == 4;
}

/* ---- counters ----------------------------------------------------------------------------------------- */

static const char *class_of(im_counter_class kind)
{
    switch (kind) {
    case IM_COUNTER_LINK: return "link";
    case IM_COUNTER_LOSS: return "loss";
    case IM_COUNTER_RECEIVER: return "receiver";
    case IM_COUNTER_FATAL: return "fatal";
    default: return NULL;
    }
}

/* What counters.c knows about it: its class, whether it stands at its greatest value. */
static void judged(im_prom *p, const port_labels *port, const im_counter *c)
{
    const im_counter_about *about = im_counter_find(c->name);
    port_labels l = *port;
    if (!about)
        return;
    label(&l, "counter", c->name);
    if (about->bits && !c->hw)
        gauge(p, &l, "imece_fabric_pegged", "1: the counter stands at its greatest value and counts no more until it is cleared.",
              im_counter_is_pegged(c));
    if (about->kind == IM_COUNTER_CONGESTION)
        im_prom_add_count(p,
                          im_prom_find(p, "imece_fabric_congestion_signals_total", IM_PROM_COUNTER,
                                       "Signs of congestion by counter: packets marked, notifications, ticks without credit."),
                          l.label, l.n, c->value);
    if (!im_counter_is_error(about))
        return;
    label(&l, "class", class_of(about->kind));
    im_prom_add_count(
        p,
        im_prom_find(
            p, "imece_fabric_errors_total", IM_PROM_COUNTER,
            "Errors by counter. class: link (cable, connector, routing), loss (sent again), receiver (not ready), fatal (ended a connection)."),
        l.label, l.n, c->value);
}

static void counter(im_prom *p, const port_labels *port, const im_counter *c, bool beside)
{
    if (!c->known)
        return;
    const im_export_counter *known = im_export_counter_find(c->name, c->hw);
    if (known && !beside)
        im_prom_add_count(p, im_prom_find(p, known->metric, IM_PROM_COUNTER, known->help), port->label, port->n, c->value * known->scale);
    if (!known) {
        port_labels l = *port;
        label(&l, "counter", c->name);
        label(&l, "group", c->hw ? "hw_counters" : "counters");
        im_prom_add_count(p,
                          im_prom_find(p, "imece_fabric_events_total", IM_PROM_COUNTER,
                                       "Counters for which node_exporter has no metric, as the kernel's file says."),
                          l.label, l.n, c->value);
    }
    judged(p, port, c);
}

/* ---- GIDs ----------------------------------------------------------------------------------------------- */

static void gids(im_prom *p, const port_labels *port, const im_rdma_port *at)
{
    size_t count[3] = {0};
    bool told = true;
    if (at->gid_why)
        return;
    for (size_t i = 0; i < at->ngids; i++) {
        const im_gid *g = &at->gid[i];
        char index[16];
        port_labels l = *port;
        snprintf(index, sizeof index, "%d", g->index);
        label(&l, "index", index);
        label(&l, "gid", g->text);
        label(&l, "address", g->address);
        label(&l, "type", g->type.text);
        label(&l, "netdev", g->ndev.text);
        gauge(p, &l, "imece_fabric_gid_info", "GIDs of a port: index, type, address and net device.", 1);
        if (at->ethernet && !g->roce)
            told = false;
        else
            count[g->roce == 1 || g->roce == 2 ? g->roce : 0]++;
    }
    static const char *const types[] = {"infiniband", "roce_v1", "roce_v2"};
    for (int i = at->ethernet ? 1 : 0; told && i < (at->ethernet ? 3 : 1); i++) {
        port_labels l = *port;
        label(&l, "type", types[i]);
        gauge(p, &l, "imece_fabric_gids", "How many GIDs of that type the port has. RDMA over routed Ethernet needs roce_v2.", (double)count[i]);
    }
}

/* ---- the port ------------------------------------------------------------------------------------------- */

static void link_of(im_prom *p, const port_labels *port, const im_rdma_port *at, bool beside)
{
    if (at->state.is_number && !beside)
        gauge(p, port, "node_infiniband_state_id", "State of the port: 1 down, 2 initializing, 3 armed, 4 active, 5 active and deferred.",
              (double)at->state.value);
    if (at->phys_state.is_number && !beside)
        gauge(p, port, "node_infiniband_physical_state_id",
              "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovering from errors, 7 test.",
              (double)at->phys_state.value);
    port_labels l = *port;
    label(&l, "link_layer", at->link_layer.text);
    label(&l, "netdev", at->netdev);
    label(&l, "speed", is_active(at) ? at->rate.speed : NULL);
    gauge(p, &l, "imece_fabric_port_info", "Link layer, net device and the name of the speed.", 1);
    if (at->mtu_active > 0)
        gauge(p, port, "imece_fabric_port_mtu_bytes", "Largest RDMA packet in use.", at->mtu_active);
    if (at->mtu_max > 0)
        gauge(p, port, "imece_fabric_port_mtu_max_bytes", "Largest RDMA packet that the port can send.", at->mtu_max);
    if (!is_active(at)) /* drivers write a rate for a port that is down: it means nothing */
        return;
    if (at->rate.gbps > 0 && !beside)
        gauge(p, port, "node_infiniband_rate_bytes_per_second", "Rate of the link as the kernel prints it.", at->rate.gbps * 125e6);
    if (at->rate.data_gbps > 0)
        gauge(p, port, "imece_fabric_port_data_rate_bytes_per_second", "Rate of the link after its encoding.", at->rate.data_gbps * 125e6);
    if (at->rate.width > 0)
        gauge(p, port, "imece_fabric_port_width_lanes", "Lanes of the link.", at->rate.width);
}

void im_export_port(im_prom *p, const im_rdma_device *d, const im_rdma_port *port, bool beside_node_exporter)
{
    port_labels l;
    begin(&l, d, port);
    link_of(p, &l, port, beside_node_exporter);
    for (size_t i = 0; i < port->ncounters; i++)
        counter(p, &l, &port->counter[i], beside_node_exporter);
    gids(p, &l, port);
}
