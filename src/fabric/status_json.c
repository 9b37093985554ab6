/* A machine's fabric as JSON. What is not known is left out; its reason stands under "unknown" of the same object. */
#include "fabric/json_out.h"
#include "fabric/status.h"

#include <string.h>

typedef struct reason_row {
    const char *key;
    const im_reading *r;
} reason_row;

/* The readings, then "unknown": {key: reason} of those that have none. */
static void readings(im_json_out *w, const reason_row *row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        im_json_out_reading(w, row[i].key, row[i].r);
    bool any = false;
    for (size_t i = 0; i < n; i++)
        if (!row[i].r->text || row[i].r->why) {
            if (!any)
                im_json_out_open(w, "unknown", '{');
            any = true;
            im_json_out_text(w, row[i].key, row[i].r->why ? row[i].r->why : "not told");
        }
    if (any)
        im_json_out_close(w, '}');
}

static void names(im_json_out *w, const char *key, const im_names *list)
{
    im_json_out_open(w, key, '[');
    for (size_t i = 0; i < list->n; i++)
        im_json_out_text(w, NULL, list->item[i]);
    im_json_out_close(w, ']');
}

static void pci_object(im_json_out *w, const im_pci *p)
{
    static const char *const acs[] = {NULL, "none", "off", "on"};
    im_json_out_open(w, "pci", '{');
    im_json_out_text(w, "address", p->address);
    im_json_out_text(w, "host_bridge", p->host_bridge);
    im_json_out_open(w, "bridges", '[');
    for (size_t i = 0; i < p->nbridges; i++)
        im_json_out_text(w, NULL, p->bridge[i]);
    im_json_out_close(w, ']');
    if (p->gts > 0)
        im_json_out_real(w, "gt_per_second", p->gts);
    if (p->gts_max > 0)
        im_json_out_real(w, "gt_per_second_max", p->gts_max);
    if (p->link_width.is_number && im_pci_rate(p->gts, p->link_width.value) > 0)
        im_json_out_real(w, "bytes_per_second", im_pci_rate(p->gts, p->link_width.value));
    im_json_out_text(w, "acs", acs[p->acs]);
    const reason_row row[] = {
        {"vendor", &p->vendor},         {"device", &p->device},
        {"numa_node", &p->numa_node},   {"local_cpus", &p->local_cpus},
        {"link_speed", &p->link_speed}, {"link_speed_max", &p->link_speed_max},
        {"link_width", &p->link_width}, {"link_width_max", &p->link_width_max},
        {"driver", &p->driver},         {"iommu_group", &p->iommu_group},
    };
    readings(w, row, IM_COUNT_OF(row));
    im_json_out_close(w, '}');
}

static void gid_objects(im_json_out *w, const im_rdma_port *p)
{
    im_json_out_open(w, "gids", '[');
    for (size_t i = 0; i < p->ngids; i++) {
        const im_gid *g = &p->gid[i];
        im_json_out_open(w, NULL, '{');
        im_json_out_int(w, "index", g->index);
        im_json_out_text(w, "gid", g->text);
        im_json_out_text(w, "address", g->address);
        im_json_out_text(w, "type", g->type.text);
        if (g->roce)
            im_json_out_int(w, "roce_version", g->roce);
        im_json_out_text(w, "netdev", g->ndev.text);
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
}

static void counter_objects(im_json_out *w, const im_rdma_port *p)
{
    for (int hw = 0; hw < 2; hw++) {
        im_json_out_open(w, hw ? "hw_counters" : "counters", '{');
        for (size_t i = 0; i < p->ncounters; i++)
            if (p->counter[i].hw == (hw == 1) && p->counter[i].known)
                im_json_out_uint(w, p->counter[i].name, p->counter[i].value);
        im_json_out_close(w, '}');
    }
    im_json_out_text(w, "counters_unknown", p->counters_why);
    im_json_out_text(w, "hw_counters_unknown", p->hw_counters_why);
}

static void port_object(im_json_out *w, im_arena *a, const im_rdma_port *p)
{
    im_json_out_open(w, NULL, '{');
    im_json_out_int(w, "port", p->number);
    if (p->state.is_number) /* in the words of ibstat */
        im_json_out_text(w, "state_name", im_port_state_ibstat(p->state.value));
    if (p->phys_state.is_number)
        im_json_out_text(w, "phys_state_name", im_port_phys_ibstat(p->phys_state.value));
    if (p->rate.gbps > 0) {
        im_json_out_real(w, "rate_gbps", p->rate.gbps);
        im_json_out_real(w, "data_gbps", p->rate.data_gbps);
    }
    if (p->rate.width)
        im_json_out_int(w, "width", p->rate.width);
    im_json_out_text(w, "speed", p->rate.speed);
    im_json_out_text(w, "port_guid", im_port_guid(a, p));
    im_json_out_text(w, "netdev", p->netdev);
    if (p->mtu_active)
        im_json_out_int(w, "mtu_active", p->mtu_active);
    if (p->mtu_max)
        im_json_out_int(w, "mtu_max", p->mtu_max);
    im_json_out_text(w, "mtu_from", p->mtu_from);
    im_json_out_text(w, "mtu_unknown", p->mtu_why);
    const reason_row row[] = {
        {"state", &p->state}, {"phys_state", &p->phys_state}, {"rate", &p->rate_text}, {"link_layer", &p->link_layer}, {"lid", &p->lid},
        {"lmc", &p->lmc},     {"sm_lid", &p->sm_lid},         {"sm_sl", &p->sm_sl},    {"cap_mask", &p->cap_mask},
    };
    readings(w, row, IM_COUNT_OF(row));
    gid_objects(w, p);
    im_json_out_text(w, "gids_unknown", p->gid_why);
    im_json_out_open(w, "pkeys", '[');
    for (size_t i = 0; i < p->npkeys; i++)
        im_json_out_int(w, NULL, p->pkey[i].value);
    im_json_out_close(w, ']');
    counter_objects(w, p);
    im_json_out_close(w, '}');
}

static void device_object(im_json_out *w, im_arena *a, const im_rdma_device *d)
{
    im_json_out_open(w, NULL, '{');
    im_json_out_text(w, "name", d->name);
    const reason_row row[] = {
        {"node_type", &d->node_type}, {"node_guid", &d->node_guid}, {"sys_image_guid", &d->sys_image_guid},
        {"node_desc", &d->node_desc}, {"fw_ver", &d->fw_ver},       {"hw_rev", &d->hw_rev},
        {"hca_type", &d->hca_type},   {"board_id", &d->board_id},
    };
    readings(w, row, IM_COUNT_OF(row));
    im_json_out_text(w, "uverbs", d->uverbs);
    if (d->pci)
        pci_object(w, d->pci);
    im_json_out_text(w, "pci_unknown", d->pci_why);
    im_json_out_open(w, "ports", '[');
    for (size_t i = 0; i < d->nports; i++)
        port_object(w, a, &d->port[i]);
    im_json_out_close(w, ']');
    im_json_out_close(w, '}');
}

static void gpu_objects(im_json_out *w, const im_machine *m, const im_graph *g)
{
    im_json_out_open(w, "gpus", '[');
    for (size_t i = 0; i < m->ngpus; i++) {
        im_json_out_open(w, NULL, '{');
        im_json_out_text(w, "name", m->gpu[i].name);
        pci_object(w, m->gpu[i].pci);
        im_json_out_open(w, "distance", '{');
        for (size_t k = 0; k < g->nnics; k++)
            im_json_out_text(w, g->nic[k].name, im_path_name(im_graph_path(g, &g->gpu[i], &g->nic[k])));
        im_json_out_close(w, '}');
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
}

static void net_objects(im_json_out *w, const im_machine *m)
{
    im_json_out_open(w, "net", '[');
    for (size_t i = 0; i < m->nnets; i++) {
        const im_net *n = &m->net[i];
        im_json_out_open(w, NULL, '{');
        im_json_out_text(w, "name", n->name);
        im_json_out_bool(w, "virtual", n->is_virtual);
        im_json_out_bool(w, "bootstrap", im_net_is_bootstrap(n));
        const reason_row row[] = {
            {"operstate", &n->operstate}, {"mtu", &n->mtu}, {"address", &n->address}, {"type", &n->type}, {"carrier_changes", &n->carrier_changes},
        };
        readings(w, row, IM_COUNT_OF(row));
        if (n->speed.is_number)
            im_json_out_int(w, "speed_mbps", n->speed.value);
        if (n->pci)
            im_json_out_text(w, "pci_address", n->pci->address);
        im_json_out_text(w, "master", n->master.text);
        im_json_out_open(w, "addresses", '[');
        for (size_t k = 0; k < n->naddrs; k++)
            im_json_out_text(w, NULL, n->addr[k]);
        im_json_out_close(w, ']');
        im_json_out_text(w, "addresses_unknown", n->addr_why);
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
}

static void limits(im_json_out *w, const im_machine *m)
{
    im_json_out_open(w, "modules", '{');
    for (size_t i = 0; i < m->nmodules && !m->modules_why; i++)
        if (m->module[i].loaded)
            im_json_out_text(w, m->module[i].name, m->module[i].version.text ? m->module[i].version.text : "");
    im_json_out_close(w, '}');
    im_json_out_text(w, "modules_unknown", m->modules_why);
    names(w, "dev_infiniband", &m->dev_infiniband);
    im_json_out_text(w, "dev_infiniband_unknown", m->dev_infiniband.why);
    if (!m->memlock_why && m->memlock_soft >= 0)
        im_json_out_int(w, "memlock_bytes", m->memlock_soft);
    else if (!m->memlock_why)
        im_json_out_text(w, "memlock_bytes", "unlimited");
    im_json_out_text(w, "memlock_unknown", m->memlock_why);
    if (!m->shm_why)
        im_json_out_int(w, "shm_bytes", m->shm_bytes);
    im_json_out_text(w, "shm_unknown", m->shm_why);
    im_json_out_open(w, "governors", '{');
    for (size_t i = 0; i < m->ngovernors; i++)
        im_json_out_int(w, m->governor[i].name, m->governor[i].cpus);
    im_json_out_close(w, '}');
    im_json_out_text(w, "governors_unknown", m->governor_why);
    if (!m->iommu_why)
        im_json_out_int(w, "iommu_groups", (int64_t)m->iommu_groups);
    im_json_out_text(w, "iommu_groups_unknown", m->iommu_why);
    im_json_out_text(w, "iommu_type", m->iommu_type.text);
}

static void troubles(im_json_out *w, const im_machine *m)
{
    const im_trouble *t;
    size_t n;
    const size_t all = im_root_troubles(m->root, &t, &n);
    im_json_out_int(w, "unreadable_files", (int64_t)all);
    im_json_out_open(w, "unreadable", '{');
    for (size_t i = 0; i < n; i++) {
        bool twice = false;
        for (size_t k = 0; k < i; k++)
            twice = twice || strcmp(t[k].path, t[i].path) == 0;
        if (!twice)
            im_json_out_text(w, t[i].path, t[i].why);
    }
    im_json_out_close(w, '}');
}

im_status im_status_json(im_context *ctx, im_arena *a, const im_machine *m, im_str *out)
{
    im_graph *g;
    IM_TRY(im_graph_from_machine(ctx, a, m, &g));
    im_json_out w = {out, false};
    im_json_out_open(&w, NULL, '{');
    im_json_out_text(&w, "root", im_root_dir(m->root));
    im_json_out_text(&w, "host", m->hostname.text);
    im_json_out_text(&w, "kernel", m->kernel.text);
    im_json_out_text(&w, "processor", m->cpu_model);
    if (m->nnumas)
        im_json_out_int(&w, "numa_nodes", (int64_t)m->nnumas);
    im_json_out_bool(&w, "virtual_machine", m->is_virtual);
    im_json_out_bool(&w, "container", m->in_container);
    im_json_out_open(&w, "rdma", '[');
    for (size_t i = 0; i < m->nrdma; i++)
        device_object(&w, a, &m->rdma[i]);
    im_json_out_close(&w, ']');
    im_json_out_text(&w, "rdma_unknown", m->rdma_why);
    gpu_objects(&w, m, g);
    im_json_out_text(&w, "gpus_unknown", m->pci_why);
    net_objects(&w, m);
    limits(&w, m);
    troubles(&w, m);
    im_json_out_close(&w, '}');
    im_str_append(out, "\n");
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the status") : IM_OK;
}
