/* Several hosts: what differs between them is a finding. Each check collects (what, value) pairs of each host; for each "what" the value
 * that most hosts have is taken for right, and the others are told. */
#include "fabric/check_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fact {
    const char *what, *value, *path;
    size_t host;
} fact;

typedef struct facts {
    im_check_result *r;
    const im_check_host *const *host;
    size_t nhosts, at; /* the host that is read */
    fact *item;
    size_t n, cap;
} facts;

static void add(facts *f, const char *what, const char *value, const char *path)
{
    if (!value)
        return; /* not known: not compared */
    fact *room = im_arena_grow(f->r->arena, f->item, f->n, &f->cap, sizeof *room);
    if (!room) {
        f->r->failed = true;
        return;
    }
    f->item = room;
    f->item[f->n++] = (fact){.what = what, .value = value, .path = path, .host = f->at};
}

static void add_reading(facts *f, const char *what, const im_reading *v)
{
    add(f, what, v->text && *v->text ? v->text : NULL, v->path);
}

static const char *text(facts *f, const char *fmt, ...) IM_PRINTF(2, 3);
static const char *text(facts *f, const char *fmt, ...)
{
    char buf[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    const char *kept = im_arena_strdup(f->r->arena, buf);
    f->r->failed = f->r->failed || !kept;
    return kept ? kept : "";
}

/* The commonest value of items [from, to); of equals the first. */
static const char *commonest(const fact *item, size_t n, size_t *votes)
{
    const char *best = NULL;
    *votes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t v = 0;
        for (size_t j = 0; j < n; j++)
            v += strcmp(item[i].value, item[j].value) == 0;
        if (v > *votes) {
            *votes = v;
            best = item[i].value;
        }
    }
    return best;
}

static int by_what(const void *a, const void *b)
{
    const fact *x = a, *y = b;
    const int c = strcmp(x->what, y->what);
    return c ? c : x->host < y->host ? -1 : x->host > y->host;
}

/* Says what differs; mend is a printf format without arguments. */
static void compare(facts *f, im_verdict verdict, const char *mend)
{
    size_t kinds = 0;
    if (f->n)
        qsort(f->item, f->n, sizeof *f->item, by_what);
    for (size_t i = 0, end; i < f->n; i = end) {
        size_t votes;
        for (end = i; end < f->n && strcmp(f->item[end].what, f->item[i].what) == 0;)
            end++;
        kinds++;
        const char *most = commonest(f->item + i, end - i, &votes);
        const bool clear = 2 * votes > end - i;
        for (size_t k = i; k < end; k++) {
            const fact *x = &f->item[k];
            if (strcmp(x->value, most) == 0)
                continue;
            im_check_say(f->r, verdict, f->host[x->host]->name, x->path, x->value,
                         clear ? "%s: %s here, %s on %zu of %zu hosts" : "%s: %s here, %s on %zu of %zu hosts (no majority)", x->what, x->value, most,
                         votes, end - i);
            im_check_mend(f->r, "%s", mend);
        }
    }
    im_check_note(f->r, f->nhosts < 2 ? "one host: nothing to compare" : "%zu hosts, %zu values compared", f->nhosts, kinds);
}

#define BETWEEN(name, collect, verdict, mend)                                         \
    void im_check_##name(const im_check_host *const *h, size_t n, im_check_result *r) \
    {                                                                                 \
        facts f = {.r = r, .host = h, .nhosts = n};                                   \
        for (f.at = 0; f.at < n; f.at++)                                              \
            collect(&f, h[f.at]);                                                     \
        compare(&f, verdict, mend);                                                   \
    }

/* ---- what each check collects ---------------------------------------------------------------------- */

static void devices(facts *f, const im_check_host *h)
{
    add(f, "RDMA devices", text(f, "%zu", h->m->nrdma), "/sys/class/infiniband");
    add(f, "rails (NICs for training)", text(f, "%zu", h->pairing.nrails), "/sys/class/infiniband");
    add(f, "GPUs", text(f, "%zu", h->m->ngpus), "/sys/bus/pci/devices");
    for (size_t i = 0; i < h->m->nrdma; i++) {
        const im_rdma_device *d = &h->m->rdma[i];
        add_reading(f, text(f, "board of %s", d->name), &d->board_id);
        add_reading(f, text(f, "type of %s", d->name), &d->hca_type);
        if (d->nports)
            add_reading(f, text(f, "link layer of %s", d->name), &d->port[0].link_layer);
        if (d->pci)
            add(f, text(f, "PCI address of %s", d->name), d->pci->address, d->pci->path);
    }
}
BETWEEN(hosts_devices, devices, IM_VERDICT_WARN,
        "imece fabric status    # on the host that differs: a card missing, another slot, or other names (udev, NAME_KERNEL)")

static void firmware(facts *f, const im_check_host *h)
{
    for (size_t i = 0; i < h->m->nrdma; i++)
        if (h->m->rdma[i].board_id.text && *h->m->rdma[i].board_id.text)
            add_reading(f, text(f, "firmware of %s (%s)", h->m->rdma[i].name, h->m->rdma[i].board_id.text), &h->m->rdma[i].fw_ver);
}
BETWEEN(hosts_firmware, firmware, IM_VERDICT_WARN, "mlxfwmanager --query    # then flash the version of the others, and mlxfwreset")

static void drivers(facts *f, const im_check_host *h)
{
    add_reading(f, "kernel", &h->m->kernel);
    for (size_t i = 0; i < h->m->nmodules; i++) {
        const im_module *m = &h->m->module[i];
        if (!h->m->modules_why)
            add(f, text(f, "module %s", m->name),
                !m->loaded        ? "not loaded"
                : m->version.text ? m->version.text
                                  : "loaded",
                text(f, "/sys/module/%s", m->name));
    }
    add_reading(f, "nvidia driver", &h->m->nvidia_version);
    if (h->facts.nccl)
        add(f, "NCCL", text(f, "%d", h->facts.nccl), h->facts.nccl_where);
}
BETWEEN(hosts_driver, drivers, IM_VERDICT_WARN,
        "uname -r; ofed_info -s; modinfo mlx5_core | grep ^version; nvidia-smi    # then install what the others have")

static void rates(facts *f, const im_check_host *h)
{
    IM_EACH_PORT(h)
    {
        if (im_port_is_active(p))
            add_reading(f, text(f, "rate of %s/%d", d->name, p->number), &p->rate_text);
        else if (p->state.is_number)
            add(f, text(f, "rate of %s/%d", d->name, p->number), text(f, "no rate: state %s", p->state.text), p->state.path);
    }
}
BETWEEN(hosts_rate, rates, IM_VERDICT_FAIL,
        "imece fabric check    # on the host that differs: port-down, link-rate; then its cable and the switch's port")

static void mtus(facts *f, const im_check_host *h)
{
    IM_EACH_PORT(h)
    {
        const im_net *net = p->netdev ? im_machine_net(h->m, p->netdev) : NULL;
        if (im_port_is_active(p) && p->mtu_active)
            add(f, text(f, "RDMA MTU of %s/%d", d->name, p->number), text(f, "%d", p->mtu_active), p->mtu_from);
        if (im_port_is_active(p) && net && p->ethernet)
            add_reading(f, text(f, "MTU of %s/%d's net device", d->name, p->number), &net->mtu);
    }
}
BETWEEN(hosts_mtu, mtus, IM_VERDICT_FAIL, "ip link set dev IF mtu 9000    # on every host alike, and on the switch's ports")

static void gids(facts *f, const im_check_host *h)
{
    const char *family = im_check_env(h, "NCCL_IB_ADDR_FAMILY"), *pinned = im_check_env(h, "NCCL_IB_GID_INDEX");
    if (!pinned)
        return; /* each host chooses for itself: indices may differ */
    add(f, "NCCL_IB_GID_INDEX", pinned, "the environment");
    IM_EACH_PORT(h)
    {
        const im_env_port *port = im_check_facts(h, d, p);
        if (p->ethernet && im_port_is_active(p) && port && p->ngids)
            add(f, text(f, "index of the RoCE v2 GID of %s/%d", d->name, p->number),
                text(f, "%d", im_env_nccl_gid(port, family && strcmp(family, "AF_INET6") == 0, 2)), text(f, "%s/gids", p->path));
    }
}
BETWEEN(hosts_gid, gids, IM_VERDICT_FAIL,
        "unset NCCL_IB_GID_INDEX    # from NCCL 2.21 on each host chooses; NCCL_IB_ADDR_RANGE=10.0.0.0/16 steers it")

static void qos(facts *f, const im_check_host *h)
{
    for (size_t i = 0; i < h->facts.nport; i++) {
        const im_env_port *p = &h->facts.port[i];
        if (p->trust >= 0)
            add(f, text(f, "trust of %s/%d", p->device, p->port), p->trust ? "dscp" : "pcp",
                text(f, "/sys/class/net/%s/qos/trust", p->netdev ? p->netdev : "IF"));
        if (p->pfc >= 0)
            add(f, text(f, "PFC of %s/%d", p->device, p->port), text(f, "priorities 0x%02x", p->pfc),
                text(f, "mlnx_qos -i %s", p->netdev ? p->netdev : "IF"));
        if (p->link == IM_ENV_LINK_ETH)
            add(f, text(f, "traffic class of %s/%d", p->device, p->port), p->traffic_class >= 0 ? text(f, "%d", p->traffic_class) : "no override",
                text(f, "/sys/class/infiniband/%s/tc/%d/traffic_class", p->device, p->port));
    }
}
BETWEEN(hosts_qos, qos, IM_VERDICT_WARN, "mlnx_qos -i IF    # make it what the others have: --trust dscp --pfc ...")

/* Variables that any host has: one that is not set is a value too. */
static void variables(facts *f, const im_check_host *h)
{
    for (size_t k = 0; k < f->nhosts; k++)
        for (size_t i = 0; i < f->host[k]->env.n; i++) {
            const char *name = f->host[k]->env.item[i]->name;
            bool seen = false;
            for (size_t j = 0; j < f->n && !seen; j++)
                seen = f->item[j].host == f->at && strcmp(f->item[j].what, name) == 0;
            const im_env_item *item = seen ? NULL : im_env_used(&h->env, name);
            const bool own = strstr(name, "SOCKET_IFNAME") || strstr(name, "_FILE"); /* may differ by right */
            if (!seen && !own)
                add(f, name, item && item->value ? item->value : "not set", item && item->file ? item->file : IM_CHECK_ENV_FILE);
        }
}
BETWEEN(hosts_env, variables, IM_VERDICT_WARN,
        "cat /etc/nccl.conf; env | grep -e ^NCCL -e ^UCX    # set it for all ranks: mpirun -x NAME=VALUE, srun --export")

static void systems(facts *f, const im_check_host *h)
{
    char bytes[32];
    const im_reading numa = im_root_number(h->root, "/proc/sys/kernel/numa_balancing");
    add(f, "memlock",
        h->m->memlock_soft == -2   ? NULL
        : h->m->memlock_soft == -1 ? "unlimited"
                                   : text(f, "%lld", (long long)h->m->memlock_soft),
        "/proc/self/limits");
    add(f, "/dev/shm", h->m->shm_bytes < 0 ? NULL : text(f, "%s", im_format_bytes(bytes, sizeof bytes, (double)h->m->shm_bytes)),
        "/proc/self/mounts");
    add(f, "governor", h->m->ngovernors == 1 ? h->m->governor[0].name : h->m->ngovernors ? "several" : NULL, "/sys/devices/system/cpu");
    add(f, "IOMMU", h->m->iommu_type.text ? h->m->iommu_type.text : h->m->iommu_why ? NULL : "none", "/sys/kernel/iommu_groups");
    add(f, "NUMA balancing", numa.text, numa.path);
    add(f, "CPU", h->m->cpu_model, "/proc/cpuinfo");
    for (size_t i = 0; i < h->m->nrdma; i++)
        if (h->m->rdma[i].pci && h->m->rdma[i].pci->link_width.is_number)
            add(f, text(f, "PCIe link of %s", h->m->rdma[i].name),
                text(f, "%s x%lld", h->m->rdma[i].pci->link_speed.text ? h->m->rdma[i].pci->link_speed.text : "speed not told",
                     (long long)h->m->rdma[i].pci->link_width.value),
                h->m->rdma[i].pci->path);
}
BETWEEN(hosts_system, systems, IM_VERDICT_WARN, "imece fabric check    # on the host that differs: its own findings say what to type")
