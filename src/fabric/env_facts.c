/* Facts of a machine for env: ports with their GIDs, interfaces, GPUs and their nearest NIC, NCCL's version where a file's name tells it. */
#include "fabric/env_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- QoS ------------------------------------------------------------------------------------------- */

void im_env_qos_parse(const char *text, int *pfc, int *trust)
{
    const char *t = strstr(text, "trust state:"), *p = strstr(text, "PFC configuration");
    *pfc = *trust = -1;
    if (t) {
        t += strlen("trust state:");
        t += strspn(t, " \t");
        *trust = !strncmp(t, "dscp", 4) ? 1 : !strncmp(t, "pcp", 3) ? 0 : -1;
    }
    p = p ? strstr(p, "enabled") : NULL;
    if (!p)
        return;
    int bits = 0, n = 0;
    for (p += strlen("enabled"); n < 8; n++) {
        p += strspn(p, " \t");
        if (*p != '0' && *p != '1')
            return;
        bits |= (*p == '1') << n;
        p++;
    }
    *pfc = bits;
}

/* The kernel's file of the driver, and what mlnx_qos printed, when a bundle has it. */
static void read_qos(im_root *root, const char *netdev, im_env_port *p)
{
    im_reading r = im_root_read(root, "/sys/class/net/%s/qos/trust", netdev);
    if (r.text)
        p->trust = !strcmp(r.text, "dscp") ? 1 : !strcmp(r.text, "pcp") ? 0 : -1;
    r = im_root_read(root, IM_BUNDLE_DIR "/mlnx_qos-%s.txt", netdev);
    if (r.text) {
        int pfc, trust;
        im_env_qos_parse(r.text, &pfc, &trust);
        p->pfc = pfc;
        p->trust = trust >= 0 ? trust : p->trust;
    }
}

/* ---- ports ------------------------------------------------------------------------------------------- */

static im_status read_port(im_context *ctx, im_arena *a, im_root *root, const im_rdma_device *d, const im_rdma_port *from, im_env_port *out)
{
    *out = (im_env_port){.device = d->name,
                         .port = from->number,
                         .active = from->state.is_number ? from->state.value == 4 : -1,
                         .gbps = from->rate.gbps,
                         .table = (int)from->gid_slots,
                         .npkey = (int)from->npkeys,
                         .netdev = from->netdev,
                         .traffic_class = -1,
                         .trust = -1,
                         .pfc = -1,
                         .numa = -1};
    if (from->link_layer.text)
        out->link = from->ethernet ? IM_ENV_LINK_ETH : !strcmp(from->link_layer.text, "InfiniBand") ? IM_ENV_LINK_IB : IM_ENV_LINK_UNKNOWN;
    if (from->pkey_why || !from->npkeys)
        out->npkey = 0;
    else
        out->npkey = from->pkey[from->npkeys - 1].index < 127 ? 128 : from->pkey[from->npkeys - 1].index + 1; /* 128 is what NICs have */
    if (from->traffic_class.text) {
        const char *eq = strchr(from->traffic_class.text, '='); /* "Global tclass=106" */
        out->traffic_class = eq ? atoi(eq + 1) : from->traffic_class.is_number ? (int)from->traffic_class.value : -1;
    }
    if (d->pci && d->pci->numa_node.is_number)
        out->numa = (int)d->pci->numa_node.value;
    out->gid = IM_ARENA_NEW(a, im_env_gid, from->ngids + 1);
    if (!out->gid)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the GIDs of %s", d->name);
    for (size_t i = 0; i < from->ngids; i++) {
        const im_gid *g = &from->gid[i];
        im_env_gid *to = &out->gid[out->ngid++];
        *to = (im_env_gid){.index = g->index, .version = g->roce, .netdev = g->ndev.text};
        memcpy(to->raw, g->raw, sizeof to->raw);
    }
    if (out->link == IM_ENV_LINK_ETH && out->netdev)
        read_qos(root, out->netdev, out);
    return IM_OK;
}

static im_status read_ports(im_context *ctx, im_arena *a, im_root *root, const im_machine *m, im_env_facts *out)
{
    size_t n = 0;
    for (size_t i = 0; i < m->nrdma; i++)
        n += m->rdma[i].nports;
    out->port = IM_ARENA_NEW(a, im_env_port, n + 1);
    if (!out->port)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu ports", n);
    for (size_t i = 0; i < m->nrdma; i++)
        for (size_t k = 0; k < m->rdma[i].nports; k++)
            IM_TRY(read_port(ctx, a, root, &m->rdma[i], &m->rdma[i].port[k], &out->port[out->nport++]));
    return IM_OK;
}

/* ---- interfaces ---------------------------------------------------------------------------------------- */

static bool has_default_route(const char *table, const char *name)
{
    size_t k = strlen(name);
    for (const char *p = table; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (!strncmp(p, name, k) && (p[k] == '\t' || p[k] == ' ')) {
            const char *to = p + k + strspn(p + k, " \t");
            if (!strncmp(to, "00000000", 8))
                return true;
        }
    return false;
}

static int is_up(const im_net *n)
{
    if (!n->operstate.text)
        return n->carrier.is_number ? n->carrier.value != 0 : -1;
    if (!strcmp(n->operstate.text, "up"))
        return 1;
    if (!strcmp(n->operstate.text, "unknown")) /* the loopback and many virtual ones */
        return n->flags.is_number ? (int)(n->flags.value & 1) : -1;
    return 0;
}

static im_status read_nets(im_context *ctx, im_arena *a, im_root *root, const im_machine *m, im_env_facts *out)
{
    im_reading routes = im_root_read(root, "/proc/net/route");
    out->net = IM_ARENA_NEW(a, im_env_net, m->nnets + 1);
    if (!out->net)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu interfaces", m->nnets);
    for (size_t i = 0; i < m->nnets; i++) {
        const im_net *n = &m->net[i];
        out->net[out->nnet++] = (im_env_net){
            .name = n->name,
            .up = is_up(n),
            .addressed = n->naddrs     ? 1
                         : n->addr_why ? -1
                                       : 0,
            .loopback = n->type.is_number && n->type.value == 772,
            .hardware = !n->is_virtual,
            .gbps = n->speed.is_number && n->speed.value > 0 ? (double)n->speed.value / 1000 : 0,
            .order = n->ifindex.is_number ? (int)n->ifindex.value : 100000 + (int)i,
            .route = routes.text && has_default_route(routes.text, n->name),
        };
    }
    return IM_OK;
}

/* ---- GPUs ------------------------------------------------------------------------------------------------ */

/* As NCCL counts: PIX one PCIe switch, PXB several, PHB through the CPU of one NUMA node, SYS between two; -1: not known. */
static int distance(const im_pci *x, const im_pci *y)
{
    size_t same = 0;
    if (!x || !y)
        return -1;
    while (same < x->nbridges && same < y->nbridges && !strcmp(x->bridge[same], y->bridge[same]))
        same++;
    if (same && x->host_bridge && y->host_bridge && !strcmp(x->host_bridge, y->host_bridge)) {
        size_t down = x->nbridges > y->nbridges ? x->nbridges : y->nbridges;
        if (same > 1 || down == same)
            return down - same <= 1 ? IM_ENV_PIX : IM_ENV_PXB; /* below a switch: its own downstream bridge, and no more */
    }
    if (x->host_bridge && y->host_bridge && !strcmp(x->host_bridge, y->host_bridge))
        return IM_ENV_PHB;
    if (!x->numa_node.is_number || !y->numa_node.is_number || x->numa_node.value < 0 || y->numa_node.value < 0)
        return -1;
    return x->numa_node.value == y->numa_node.value ? IM_ENV_PHB : IM_ENV_SYS;
}

static im_status read_gpus(im_context *ctx, im_arena *a, const im_machine *m, im_env_facts *out)
{
    out->gpu = IM_ARENA_NEW(a, im_env_gpu, m->ngpus + 1);
    if (!out->gpu)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu GPUs", m->ngpus);
    out->gpus_known = !m->pci_why;
    for (size_t i = 0; i < m->ngpus; i++) {
        im_env_gpu *g = &out->gpu[out->ngpu++];
        *g = (im_env_gpu){.address = m->gpu[i].pci ? m->gpu[i].pci->address : m->gpu[i].name, .nearest = -1};
        for (size_t k = 0; k < m->nrdma; k++) {
            bool active = false;
            for (size_t p = 0; p < m->rdma[k].nports; p++)
                active |= m->rdma[k].port[p].state.is_number && m->rdma[k].port[p].state.value == 4;
            int d = active ? distance(m->gpu[i].pci, m->rdma[k].pci) : -1;
            if (d >= 0 && (g->nearest < 0 || d < g->nearest)) {
                g->nearest = d;
                g->device = m->rdma[k].name;
            }
        }
    }
    return IM_OK;
}

/* Grace's cores are Neoverse V2 (implementer 0x41, part 0xd4f): with an NVIDIA GPU beside them they are linked by C2C. */
static int has_c2c(im_root *root, const im_machine *m)
{
    im_reading cpu = im_root_read(root, "/proc/cpuinfo");
    bool nvidia = false;
    for (size_t i = 0; i < m->ngpus; i++)
        nvidia |= m->gpu[i].pci && m->gpu[i].pci->vendor.is_number && m->gpu[i].pci->vendor.value == 0x10de;
    if (!cpu.text)
        return -1;
    if (strstr(cpu.text, "vendor_id"))
        return 0; /* x86 */
    if (strstr(cpu.text, "0xd4f"))
        return nvidia ? 1 : -1;
    return strstr(cpu.text, "CPU part") ? 0 : -1;
}

/* ---- NCCL's version ----------------------------------------------------------------------------------------- */

static bool try_version(im_arena *a, const char *dir, const char *file, const char *prefix, im_env_facts *out)
{
    size_t n = strlen(prefix);
    char own[32];
    if (strncmp(file, prefix, n) != 0)
        return false;
    size_t k = strspn(file + n, "0123456789.");
    if (!k || k >= sizeof own)
        return false;
    snprintf(own, sizeof own, "%.*s", (int)k, file + n);
    while (k && own[k - 1] == '.')
        own[--k] = '\0';
    int version = im_env_version_parse(own);
    if (!version || version <= out->nccl)
        return false;
    out->nccl = version;
    out->nccl_where = im_arena_printf(a, "%s/%s", dir, file);
    return true;
}

static void find_in(im_arena *a, im_root *root, const char *dir, im_env_facts *out)
{
    static const char *const prefix[] = {"libnccl.so.", "nvidia_nccl_cu11-", "nvidia_nccl_cu12-", "nvidia_nccl_cu13-", "nvidia_nccl-"};
    im_names names = im_root_list(root, "%s", dir);
    for (size_t i = 0; i < names.n; i++)
        for (size_t k = 0; k < IM_COUNT_OF(prefix); k++)
            try_version(a, dir, names.item[i], prefix[k], out);
}

static void read_nccl(im_arena *a, im_root *root, im_env_facts *out)
{
    static const char *const libs[] = {
        "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",           "/usr/lib", "/usr/local/lib",
        "/usr/local/nccl/lib",       "/opt/nccl/build/lib",        "/usr/local/cuda/lib64"};
    static const char *const pythons[] = {"/usr/lib", "/usr/local/lib", "/opt/conda/lib", "/opt/venv/lib"};
    static const char *const packages[] = {"dist-packages", "site-packages"};
    for (size_t i = 0; i < IM_COUNT_OF(libs); i++)
        find_in(a, root, libs[i], out);
    if (out->nccl)
        return; /* the system's own; the Python package may differ, and a job uses one or the other */
    for (size_t i = 0; i < IM_COUNT_OF(pythons); i++) {
        im_names names = im_root_list(root, "%s", pythons[i]);
        for (size_t k = 0; k < names.n; k++)
            for (size_t p = 0; p < IM_COUNT_OF(packages) && !strncmp(names.item[k], "python3", 7); p++) {
                char *dir = im_arena_printf(a, "%s/%s/%s", pythons[i], names.item[k], packages[p]);
                if (dir)
                    find_in(a, root, dir, out);
            }
    }
}

/* ---- the whole ------------------------------------------------------------------------------------------------ */

im_status im_env_facts_of(im_context *ctx, im_arena *a, im_root *root, const im_machine *m, im_env_facts *out)
{
    *out = (im_env_facts){.root = im_root_dir(root), .c2c = -1, .verbs = -1};
    IM_TRY(read_ports(ctx, a, root, m, out));
    IM_TRY(read_nets(ctx, a, root, m, out));
    IM_TRY(read_gpus(ctx, a, m, out));
    out->c2c = has_c2c(root, m);
    out->is_virtual = m->is_virtual;
    out->verbs = im_root_exists(root, "/dev") || m->in_container ? 0 : -1; /* a copy of a host may have left /dev out */
    for (size_t i = 0; i < m->dev_infiniband.n; i++)
        if (!strncmp(m->dev_infiniband.item[i], "uverbs", 6))
            out->verbs = 1;
    if (out->verbs == 0 && m->dev_infiniband.why && strcmp(m->dev_infiniband.why, "absent") != 0)
        out->verbs = -1;
    read_nccl(a, root, out);
    return IM_OK;
}

im_status im_env_facts_read(im_context *ctx, im_arena *a, const char *root, im_env_facts *out)
{
    im_root *at;
    im_machine *m;
    IM_TRY(im_root_open(ctx, a, root, &at));
    im_status status = im_machine_read(ctx, at, &m);
    if (status == IM_OK)
        status = im_env_facts_of(ctx, a, at, m, out);
    im_root_close(at);
    return status;
}
