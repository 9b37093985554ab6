/* RDMA devices and their ports: /sys/class/infiniband. */
#include "topology/internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- rate ------------------------------------------------------------------------------ */

/* The kernel prints the signalling rate of SDR, DDR and QDR (8b/10b); 56 of FDR is before 64b/66b, the others are data rates
 * (InfiniBand spec vol. 2; drivers/infiniband/core/sysfs.c). */
static double data_share(const char *speed)
{
    static const char *const coded_8b10b[] = {"SDR", "DDR", "QDR"};
    for (size_t i = 0; speed && i < IM_COUNT_OF(coded_8b10b); i++)
        if (strcmp(speed, coded_8b10b[i]) == 0)
            return 0.8;
    return speed && strcmp(speed, "FDR") == 0 ? 64.0 / 66 : 1;
}

im_rate im_rate_parse(im_arena *a, const char *text, bool ethernet)
{
    im_rate r = {0};
    if (!text || !isdigit((unsigned char)*text))
        return r;
    char *end;
    const double gbps = strtod(text, &end);
    if (!(gbps >= 0 && gbps < 1e6))
        return r;
    r.gbps = gbps;
    const char *open = strchr(end, '(');
    if (open && isdigit((unsigned char)open[1])) {
        const long width = strtol(open + 1, &end, 10);
        r.width = *end == 'X' && width > 0 && width <= 12 ? (int)width : 0;
        end += *end == 'X';
        end += strspn(end, " ");
        const size_t n = strcspn(end, ") ");
        char *speed = n && n < 8 ? im_arena_alloc(a, n + 1) : NULL;
        if (speed)
            memcpy(speed, end, n);
        r.speed = speed;
    }
    const char *speed = r.speed ? r.speed : r.width && gbps == 2.5 * r.width ? "SDR" : NULL; /* older kernels leave SDR out */
    r.data_gbps = ethernet ? gbps : gbps * data_share(speed);
    return r;
}

/* ---- GIDs, pkeys -------------------------------------------------------------------------- */

bool im_gid_parse(const char *text, unsigned char raw[16])
{
    return text && inet_pton(AF_INET6, text, raw) == 1;
}

static void describe_gid(im_root *root, const char *port, im_gid *g)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff}, link_local[8] = {0xfe, 0x80};
    char address[INET6_ADDRSTRLEN] = "";
    g->is_ipv4 = memcmp(g->raw, mapped, sizeof mapped) == 0;
    g->is_link_local = memcmp(g->raw, link_local, sizeof link_local) == 0;
    inet_ntop(g->is_ipv4 ? AF_INET : AF_INET6, g->is_ipv4 ? g->raw + 12 : g->raw, address, sizeof address);
    g->address = im_arena_strdup(im_root_arena(root), address);
    g->type = im_root_read(root, "%s/gid_attrs/types/%d", port, g->index);
    g->ndev = im_root_read(root, "%s/gid_attrs/ndevs/%d", port, g->index);
    if (g->type.text && *g->type.text)
        g->roce = strcmp(g->type.text, "RoCE v2") == 0 ? 2 : strcmp(g->type.text, "IB/RoCE v1") == 0 || strcmp(g->type.text, "RoCE v1") == 0 ? 1 : 0;
}

static bool small_index(const char *name, int *index)
{
    char *end;
    errno = 0;
    const long v = strtol(name, &end, 10);
    if (!isdigit((unsigned char)*name) || *end || errno || v < 0 || v > 65535)
        return false;
    *index = (int)v;
    return true;
}

static void read_gids(im_root *root, im_rdma_port *port)
{
    const im_names names = im_root_list(root, "%s/gids", port->path);
    static const unsigned char zero[16];
    port->gid_why = names.why;
    port->gid_slots = names.n;
    port->gid = IM_ARENA_NEW(im_root_arena(root), im_gid, names.n + 1);
    for (size_t i = 0; port->gid && i < names.n; i++) {
        im_gid g = {0};
        if (!small_index(names.item[i], &g.index))
            continue;
        const im_reading r = im_root_read(root, "%s/gids/%d", port->path, g.index);
        if (!im_gid_parse(r.text, g.raw) || memcmp(g.raw, zero, sizeof zero) == 0)
            continue;
        g.text = r.text;
        describe_gid(root, port->path, &g);
        if (!port->ethernet && port->link_layer.text)
            g.roce = 0; /* the kernel writes "IB/RoCE v1" for both */
        port->gid[port->ngids++] = g;
    }
}

static void read_pkeys(im_root *root, im_rdma_port *port)
{
    const im_names names = im_root_list(root, "%s/pkeys", port->path);
    port->pkey_why = names.why;
    port->pkey = IM_ARENA_NEW(im_root_arena(root), im_pkey, names.n + 1);
    for (size_t i = 0; port->pkey && i < names.n; i++) {
        int index;
        if (!small_index(names.item[i], &index))
            continue;
        const im_reading r = im_root_number(root, "%s/pkeys/%d", port->path, index);
        if (r.is_number && r.value > 0 && r.value <= 0xffff)
            port->pkey[port->npkeys++] = (im_pkey){index, (uint16_t)r.value};
    }
}

/* ---- counters ------------------------------------------------------------------------------ */

static void read_counter(im_root *root, im_counter *c)
{
    const im_reading r = im_root_read(root, "%s", c->path);
    char *end = NULL;
    c->known = false;
    c->why = r.why;
    if (!r.text)
        return;
    errno = 0;
    c->value = strtoull(r.text, &end, 10);
    c->known = isdigit((unsigned char)*r.text) && !*end && !errno;
    c->why = c->known ? NULL : im_arena_printf(im_root_arena(root), "says \"%.40s\"", r.text);
    if (!c->known)
        c->value = 0;
}

static const char *read_counters(im_root *root, const char *dir, bool hw, im_rdma_port *port)
{
    im_arena *a = im_root_arena(root);
    const im_names names = im_root_list(root, "%s", dir);
    im_counter *all = IM_ARENA_NEW(a, im_counter, port->ncounters + names.n + 1);
    if (!all)
        return "no memory";
    if (port->ncounters)
        memcpy(all, port->counter, port->ncounters * sizeof *all);
    port->counter = all;
    for (size_t i = 0; i < names.n; i++) {
        if (strcmp(names.item[i], "lifespan") == 0)
            continue; /* how long the kernel keeps a value, in ms */
        im_counter c = {.name = names.item[i], .path = im_arena_printf(a, "%s/%s", dir, names.item[i]), .hw = hw};
        if (!c.path)
            return "no memory";
        read_counter(root, &c);
        port->counter[port->ncounters++] = c;
    }
    return names.why;
}

const im_counter *im_port_counter(const im_rdma_port *port, const char *name)
{
    for (size_t i = 0; i < port->ncounters; i++)
        if (strcmp(port->counter[i].name, name) == 0)
            return &port->counter[i];
    return NULL;
}

void im_port_refresh(im_root *root, im_rdma_port *port)
{
    port->state = im_root_number(root, "%s/state", port->path);
    port->phys_state = im_root_number(root, "%s/phys_state", port->path);
    for (size_t i = 0; i < port->ncounters; i++)
        read_counter(root, &port->counter[i]);
}

/* ---- ports, devices --------------------------------------------------------------------------- */

static void read_port(im_root *root, const im_rdma_device *d, im_rdma_port *port)
{
    im_arena *a = im_root_arena(root);
    const char *p = port->path;
    port->state = im_root_number(root, "%s/state", p);
    port->phys_state = im_root_number(root, "%s/phys_state", p);
    port->link_layer = im_root_read(root, "%s/link_layer", p);
    port->ethernet = port->link_layer.text && strcmp(port->link_layer.text, "Ethernet") == 0;
    port->rate_text = im_root_read(root, "%s/rate", p);
    port->rate = im_rate_parse(a, port->rate_text.text, port->ethernet);
    port->lid = im_root_number(root, "%s/lid", p);
    port->sm_lid = im_root_number(root, "%s/sm_lid", p);
    port->sm_sl = im_root_number(root, "%s/sm_sl", p);
    port->lmc = im_root_number(root, "%s/lid_mask_count", p);
    port->cap_mask = im_root_number(root, "%s/cap_mask", p);
    port->traffic_class = im_root_read(root, "%s/tc/%d/traffic_class", d->path, port->number);
    read_gids(root, port);
    read_pkeys(root, port);
    port->counters_why = read_counters(root, im_arena_printf(a, "%s/counters", p), false, port);
    const char *hw = im_arena_printf(a, "%s/hw_counters", p), *of_device = im_arena_printf(a, "%s/hw_counters", d->path);
    /* newer drivers of one-port devices have them at the device */
    if (hw && of_device)
        port->hw_counters_why = read_counters(root, im_root_exists(root, hw) || d->nports != 1 ? hw : of_device, true, port);
}

static void read_ports(im_root *root, im_rdma_device *d)
{
    const im_names names = im_root_list(root, "%s/ports", d->path);
    d->ports_why = names.why;
    d->port = IM_ARENA_NEW(im_root_arena(root), im_rdma_port, names.n + 1);
    for (size_t i = 0; d->port && i < names.n; i++) {
        int number;
        if (small_index(names.item[i], &number))
            d->port[d->nports++] = (im_rdma_port){.number = number, .path = im_arena_printf(im_root_arena(root), "%s/ports/%d", d->path, number)};
    }
    for (size_t i = 0; i < d->nports; i++)
        if (d->port[i].path)
            read_port(root, d, &d->port[i]);
}

static void find_uverbs(im_root *root, im_machine *m)
{
    const im_names names = im_root_list(root, "/sys/class/infiniband_verbs");
    for (size_t i = 0; i < names.n; i++) {
        const im_reading r = im_root_read(root, "/sys/class/infiniband_verbs/%s/ibdev", names.item[i]);
        for (size_t d = 0; r.text && strncmp(names.item[i], "uverbs", 6) == 0 && d < m->nrdma; d++)
            if (strcmp(m->rdma[d].name, r.text) == 0)
                m->rdma[d].uverbs = names.item[i];
    }
}

static void read_device(im_root *root, const im_machine *m, im_rdma_device *d)
{
    im_arena *a = im_root_arena(root);
    const char *device = im_arena_printf(a, "%s/device", d->path);
    d->node_type = im_root_number(root, "%s/node_type", d->path);
    d->node_guid = im_root_read(root, "%s/node_guid", d->path);
    d->sys_image_guid = im_root_read(root, "%s/sys_image_guid", d->path);
    d->node_desc = im_root_read(root, "%s/node_desc", d->path);
    d->fw_ver = im_root_read(root, "%s/fw_ver", d->path);
    d->hw_rev = im_root_read(root, "%s/hw_rev", d->path);
    d->hca_type = im_root_read(root, "%s/hca_type", d->path);
    d->board_id = im_root_read(root, "%s/board_id", d->path);
    if (device)
        d->pci = im_pci_of_device(root, m, device, &d->pci_why);
    d->netdevs = im_root_list(root, "%s/device/net", d->path);
    read_ports(root, d);
}

void im_read_rdma(im_root *root, im_machine *m)
{
    const im_names names = im_root_list(root, "/sys/class/infiniband");
    im_arena *a = im_root_arena(root);
    m->rdma_why = names.why;
    m->rdma = IM_ARENA_NEW(a, im_rdma_device, names.n + 1);
    for (size_t i = 0; m->rdma && i < names.n; i++) {
        const char *path = im_arena_printf(a, "/sys/class/infiniband/%s", names.item[i]);
        if (!path || !im_root_exists(root, path))
            continue; /* it went while we looked, or the link leads nowhere */
        im_rdma_device *d = &m->rdma[m->nrdma++];
        *d = (im_rdma_device){.name = names.item[i], .path = path};
        read_device(root, m, d);
    }
    find_uverbs(root, m);
}
