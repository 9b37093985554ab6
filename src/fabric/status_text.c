/* A machine's fabric as text. */
#include "fabric/status.h"

#include <stdio.h>
#include <string.h>

typedef struct page {
    im_arena *arena;
    const im_machine *m;
    const im_graph *g;
    im_paint paint;
    im_str *out;
} page;

/* The text, or "?" */
static const char *said(const im_reading *r)
{
    return r->text ? r->text : "?";
}

static void unknown(const page *p, const char *what, const char *why)
{
    im_str_printf(p->out, "%s%s unknown: %s%s", p->paint.faint, what, why ? why : "not told", p->paint.off);
}

static void pci_line(const page *p, const im_pci *pci)
{
    im_str_printf(p->out, "%s", pci->address);
    if (pci->gts > 0 && pci->link_width.is_number && pci->link_width.value > 0 && pci->link_width.value < 255) {
        const bool below =
            (pci->gts_max > 0 && pci->gts < pci->gts_max) || (pci->link_width_max.is_number && pci->link_width.value < pci->link_width_max.value);
        im_str_printf(p->out, "  %s%g GT/s x%lld%s", below ? p->paint.warn : "", pci->gts, (long long)pci->link_width.value,
                      below ? p->paint.off : "");
        if (pci->gts_max > 0 && pci->link_width_max.is_number)
            im_str_printf(p->out, " (of %g GT/s x%lld)", pci->gts_max, (long long)pci->link_width_max.value);
        im_str_printf(p->out, " = %.1f GB/s", im_pci_rate(pci->gts, pci->link_width.value) / 1e9);
    } else {
        im_str_append(p->out, "  ");
        unknown(p, "link", pci->link_speed.why);
    }
    if (pci->numa_node.is_number && pci->numa_node.value >= 0)
        im_str_printf(p->out, "  NUMA %lld", (long long)pci->numa_node.value);
    else
        im_str_append(p->out, "  NUMA ?");
    if (pci->local_cpus.text && *pci->local_cpus.text)
        im_str_printf(p->out, "  CPUs %s", pci->local_cpus.text);
}

/* ---- ports ------------------------------------------------------------------------------- */

/* "4: ACTIVE" -> "ACTIVE" */
static const char *behind_colon(const char *text)
{
    const char *colon = strchr(text, ':');
    return colon ? colon + 1 + strspn(colon + 1, " ") : text;
}

static void state_line(const page *p, const im_rdma_port *port)
{
    const bool active = port->state.is_number && port->state.value == 4;
    const char *colour = !port->state.is_number ? p->paint.faint : active ? p->paint.good : port->state.value > 1 ? p->paint.warn : p->paint.bad;
    im_str_printf(p->out, "  port %d  %s%s%s", port->number, colour, port->state.text ? behind_colon(port->state.text) : "?", p->paint.off);
    im_str_printf(p->out, "  %s", port->phys_state.text ? behind_colon(port->phys_state.text) : "physical state ?");
    if (!port->state.text) {
        im_str_append(p->out, "  ");
        unknown(p, "state", port->state.why);
    }
    im_str_printf(p->out, "  %s", port->link_layer.text ? port->link_layer.text : "link layer ?");
    im_str_printf(p->out, "  %s%s", said(&port->rate_text), active || !port->rate_text.text ? "" : " (means nothing while the port is not active)");
    if (active && port->rate.data_gbps > 0 && port->rate.data_gbps != port->rate.gbps)
        im_str_printf(p->out, ", %.4g Gb/s of data", port->rate.data_gbps);
    im_str_append(p->out, "\n");
}

static void gid_lines(const page *p, const im_rdma_port *port)
{
    for (size_t i = 0; i < port->ngids; i++) {
        const im_gid *g = &port->gid[i];
        const char *kind = g->roce == 2 ? "RoCE v2" : g->roce == 1 ? "RoCE v1" : port->link_layer.text && !port->ethernet ? "InfiniBand" : "type ?";
        im_str_printf(p->out, "          GID %-3d  %-10s  %s", g->index, kind, g->address ? g->address : g->text);
        if (g->ndev.text && *g->ndev.text)
            im_str_printf(p->out, "  %s", g->ndev.text);
        im_str_append(p->out, "\n");
    }
    if (!port->ngids) {
        im_str_append(p->out, "          ");
        if (port->gid_why)
            unknown(p, "GIDs", port->gid_why);
        else
            im_str_printf(p->out, "%sno GID: nothing can connect over it%s", p->paint.bad, p->paint.off);
        im_str_append(p->out, "\n");
    }
}

static void error_line(const page *p, const im_rdma_port *port)
{
    size_t known = 0, shown = 0;
    im_str_append(p->out, "          errors: ");
    for (size_t i = 0; i < port->ncounters; i++) {
        const im_counter *c = &port->counter[i];
        if (!im_counter_is_error(im_counter_find(c->name)) || !c->known)
            continue;
        known++;
        if (c->value == 0)
            continue;
        im_str_printf(p->out, "%s%s%s %llu%s%s", shown++ ? ", " : "", p->paint.bad, c->name, (unsigned long long)c->value, p->paint.off,
                      im_counter_is_pegged(c) ? " (at its greatest value: clear it)" : "");
    }
    if (!known)
        unknown(p, "counters", port->counters_why ? port->counters_why : port->hw_counters_why);
    else if (!shown)
        im_str_printf(p->out, "none in %zu counters", known);
    im_str_append(p->out, "\n");
}

static void port_lines(const page *p, const im_rdma_port *port)
{
    im_str *out = p->out;
    const char *guid = im_port_guid(p->arena, port);
    state_line(p, port);
    im_str_printf(out, "          LID %s  LMC %s  SM LID %s  GUID %s  capabilities %s\n", said(&port->lid), said(&port->lmc), said(&port->sm_lid),
                  guid ? guid : "?", said(&port->cap_mask));
    im_str_append(out, "          ");
    if (port->mtu_active) {
        im_str_printf(out, "RDMA MTU %d", port->mtu_active);
        if (port->mtu_max)
            im_str_printf(out, " of %d", port->mtu_max);
        im_str_printf(out, " (%s)", port->mtu_from);
    } else {
        unknown(p, "RDMA MTU", port->mtu_why);
    }
    im_str_printf(out, "  net device %s", port->netdev ? port->netdev : "none");
    const im_net *net = im_machine_net(p->m, port->netdev);
    if (net && net->mtu.is_number)
        im_str_printf(out, " (mtu %lld)", (long long)net->mtu.value);
    im_str_append(out, "  pkeys");
    for (size_t i = 0; i < port->npkeys; i++)
        im_str_printf(out, " 0x%04x", port->pkey[i].value);
    if (!port->npkeys)
        im_str_printf(out, " %s", port->pkey_why ? "?" : "none");
    im_str_append(out, "\n");
    gid_lines(p, port);
    error_line(p, port);
}

static void device_lines(const page *p, const im_rdma_device *d)
{
    im_str *out = p->out;
    im_str_printf(out, "%s%s%s  %s  firmware %s  board %s  hardware %s  node GUID %s  image GUID %s", p->paint.bold, d->name, p->paint.off,
                  said(&d->hca_type), d->fw_ver.text && *d->fw_ver.text ? d->fw_ver.text : "?", said(&d->board_id), said(&d->hw_rev),
                  said(&d->node_guid), said(&d->sys_image_guid));
    if (d->uverbs)
        im_str_printf(out, "  %s", d->uverbs);
    im_str_append(out, "\n  PCI     ");
    if (d->pci)
        pci_line(p, d->pci);
    else
        im_str_printf(out, "none: %s", d->pci_why);
    im_str_append(out, "\n");
    for (size_t i = 0; i < d->nports; i++)
        port_lines(p, &d->port[i]);
    if (!d->nports) {
        im_str_append(out, "  ");
        unknown(p, "ports", d->ports_why ? d->ports_why : "there is none");
        im_str_append(out, "\n");
    }
}

/* ---- GPUs, net devices ------------------------------------------------------------------------ */

/* Every NIC at the least distance. */
static void nearest(const page *p, const im_item *gpu)
{
    im_path best = IM_PATH_UNKNOWN;
    for (size_t i = 0; i < p->g->nnics; i++) {
        const im_path d = im_graph_path(p->g, gpu, &p->g->nic[i]);
        best = d < best ? d : best;
    }
    if (!p->g->nnics)
        return;
    im_str_printf(p->out, "  nearest NIC (%s):", im_path_name(best));
    for (size_t i = 0; i < p->g->nnics; i++)
        if (im_graph_path(p->g, gpu, &p->g->nic[i]) == best)
            im_str_printf(p->out, " %s", p->g->nic[i].name);
}

static void gpu_lines(const page *p)
{
    const im_machine *m = p->m;
    im_str_printf(p->out, "\n%sGPUs%s: ", p->paint.bold, p->paint.off);
    if (m->pci_why)
        unknown(p, "PCI functions", m->pci_why);
    else
        im_str_printf(p->out, "%zu", m->ngpus);
    im_str_append(p->out, "\n");
    for (size_t i = 0; i < m->ngpus; i++) {
        const im_pci *pci = m->gpu[i].pci;
        const char *vendor = im_pci_vendor(pci->vendor.value);
        im_str_printf(p->out, "%-6s  %s %s  ", m->gpu[i].name, vendor ? vendor : said(&pci->vendor), said(&pci->device));
        pci_line(p, pci);
        nearest(p, &p->g->gpu[i]);
        im_str_append(p->out, "\n");
    }
}

bool im_net_is_bootstrap(const im_net *n)
{
    static const char *const inside[] = {"docker", "virbr", "veth", "br-", "cni", "flannel", "cali", "tunl", "kube-ipvs"};
    if (n->type.is_number && n->type.value == 772)
        return false; /* loopback */
    for (size_t i = 0; i < IM_COUNT_OF(inside); i++)
        if (strncmp(n->name, inside[i], strlen(inside[i])) == 0)
            return false;
    const bool up = n->operstate.text && (strcmp(n->operstate.text, "up") == 0 || strcmp(n->operstate.text, "unknown") == 0);
    return up && (n->naddrs || n->addr_why);
}

static void net_lines(const page *p)
{
    size_t left = 0;
    im_str_printf(p->out, "\n%sNet devices that could carry bootstrap traffic%s\n", p->paint.bold, p->paint.off);
    if (p->m->net_why) {
        unknown(p, "net devices", p->m->net_why);
        im_str_append(p->out, "\n");
    }
    for (size_t i = 0; i < p->m->nnets; i++) {
        const im_net *n = &p->m->net[i];
        if (!im_net_is_bootstrap(n)) {
            left++;
            continue;
        }
        im_str_printf(p->out, "%-12s  %s  mtu %s", n->name, said(&n->operstate), said(&n->mtu));
        if (n->speed.is_number)
            im_str_printf(p->out, "  %g Gb/s", (double)n->speed.value / 1000);
        if (n->type.is_number && n->type.value == 32)
            im_str_append(p->out, "  IP over InfiniBand");
        for (size_t k = 0; k < n->naddrs; k++)
            im_str_printf(p->out, "  %s", n->addr[k]);
        if (!n->naddrs)
            im_str_printf(p->out, "  %saddresses unknown%s", p->paint.faint, p->paint.off);
        if (n->pci)
            im_str_printf(p->out, "  PCI %s", n->pci->address);
        im_str_append(p->out, "\n");
    }
    if (left)
        im_str_printf(p->out, "%s%zu others: down, without an address, loopback, or of containers%s\n", p->paint.faint, left, p->paint.off);
}

/* ---- limits ---------------------------------------------------------------------------------------- */

static void amount(const page *p, const char *what, int64_t bytes, const char *why)
{
    char buf[32];
    if (why)
        unknown(p, what, why);
    else if (bytes < 0)
        im_str_printf(p->out, "%s unlimited", what);
    else
        im_str_printf(p->out, "%s %s", what, im_format_bytes(buf, sizeof buf, (double)bytes));
}

static void system_lines(const page *p)
{
    const im_machine *m = p->m;
    im_str *out = p->out;
    im_str_printf(out, "\n%sLimits and kernel%s\n", p->paint.bold, p->paint.off);
    if (m->modules_why)
        unknown(p, "modules", m->modules_why);
    else
        im_str_append(out, "modules: ");
    for (size_t i = 0; i < m->nmodules && !m->modules_why; i++)
        if (m->module[i].loaded)
            im_str_printf(out, "%s ", m->module[i].name);
    im_str_printf(out, "\n/dev/infiniband: ");
    for (size_t i = 0; i < m->dev_infiniband.n; i++)
        im_str_printf(out, "%s ", m->dev_infiniband.item[i]);
    if (!m->dev_infiniband.n)
        im_str_append(out, m->dev_infiniband.why ? m->dev_infiniband.why : "empty");
    im_str_append(out, "\n");
    amount(p, "locked memory", m->memlock_soft, m->memlock_why);
    im_str_append(out, "  ");
    amount(p, "/dev/shm", m->shm_bytes, m->shm_why);
    im_str_append(out, "\n");
    if (m->ngovernors)
        im_str_append(out, "CPU governor: ");
    for (size_t i = 0; i < m->ngovernors; i++)
        im_str_printf(out, "%s (%d CPUs) ", m->governor[i].name, m->governor[i].cpus);
    if (!m->ngovernors)
        unknown(p, "CPU governor", m->governor_why);
    im_str_append(out, "  IOMMU: ");
    if (m->iommu_groups)
        im_str_printf(out, "%zu groups, %s", m->iommu_groups, said(&m->iommu_type));
    else if (m->iommu_why && strcmp(m->iommu_why, "absent") != 0)
        unknown(p, "groups", m->iommu_why);
    else
        im_str_append(out, "no groups");
    im_str_append(out, "\n");
}

static void trouble_lines(const page *p)
{
    const im_trouble *t;
    size_t n;
    const size_t all = im_root_troubles(p->m->root, &t, &n);
    if (!all)
        return;
    im_str_printf(p->out, "\n%s%zu files are there and could not be read:%s\n", p->paint.warn, all, p->paint.off);
    for (size_t i = 0; i < n && i < 8; i++)
        im_str_printf(p->out, "  %s %s\n", t[i].path, t[i].why);
}

im_status im_status_text(im_context *ctx, im_arena *a, const im_machine *m, const im_look *look, im_str *out)
{
    im_graph *g;
    IM_TRY(im_graph_from_machine(ctx, a, m, &g));
    const page p = {a, m, g, im_paint_of(look), out};
    char nodes[32] = "NUMA nodes ?";
    if (m->nnumas)
        snprintf(nodes, sizeof nodes, "%zu NUMA node%s", m->nnumas, m->nnumas == 1 ? "" : "s");
    im_str_printf(out, "%s%s%s  Linux %s  %s  %s%s%s\n\n", p.paint.bold, m->hostname.text ? m->hostname.text : im_root_dir(m->root), p.paint.off,
                  said(&m->kernel), m->cpu_model ? m->cpu_model : "processor ?", nodes, m->is_virtual ? "  virtual machine" : "",
                  m->in_container ? "  container" : "");
    im_str_printf(out, "%sRDMA devices%s: %zu%s%s\n", p.paint.bold, p.paint.off, m->nrdma, m->rdma_why ? "  /sys/class/infiniband: " : "",
                  m->rdma_why ? m->rdma_why : "");
    for (size_t i = 0; i < m->nrdma; i++)
        device_lines(&p, &m->rdma[i]);
    gpu_lines(&p);
    net_lines(&p);
    system_lines(&p);
    trouble_lines(&p);
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the status") : IM_OK;
}
