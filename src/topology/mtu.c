/* RDMA MTU of a port, which sysfs has no file for: from the verbs library, a recorded ibv_devinfo, or the net device. */
#include "topology/internal.h"

#include <stdlib.h>
#include <string.h>

/* What the kernel takes off a net device's MTU for RoCE: GRH 40, UDP 8, BTH 12, the longest extension headers 28 + 4, ICRC 4
 * (include/rdma/ib_addr.h), then down to a step. */
enum { ROCE_HEADERS = 40 + 8 + 12 + 4 + 28 + 4 };

static int step_below(int64_t bytes)
{
    for (int mtu = 4096; mtu >= 256; mtu /= 2)
        if (bytes >= mtu)
            return mtu;
    return 0;
}

/* The section of "hca_id: NAME", the one of "port: N" in it, and there "active_mtu: 4096 (5)". */
static bool from_devinfo(im_root *root, const char *text, const char *device, im_rdma_port *port)
{
    bool here = false;
    int number = 0;
    im_arena *a = im_root_arena(root);
    for (const char *line = text; line && *line;) {
        const char *end = strchr(line, '\n');
        const size_t n = end ? (size_t)(end - line) : strlen(line);
        char *one = im_arena_alloc(a, n + 1);
        if (!one)
            return false;
        memcpy(one, line, n);
        const char *hca = im_text_value(a, one, "hca_id"), *at = im_text_value(a, one, "port");
        const char *active = im_text_value(a, one, "active_mtu"), *max = im_text_value(a, one, "max_mtu");
        if (hca) {
            here = strcmp(hca, device) == 0;
            number = 0;
        }
        if (at)
            number = atoi(at);
        if (here && number == port->number && active)
            port->mtu_active = step_below(atoi(active));
        if (here && number == port->number && max)
            port->mtu_max = step_below(atoi(max));
        line = end ? end + 1 : NULL;
    }
    return port->mtu_active != 0;
}

static void find_netdev(im_root *root, im_machine *m, const im_rdma_device *d, im_rdma_port *port)
{
    for (size_t i = 0; i < port->ngids && !port->netdev; i++)
        if (port->gid[i].ndev.text && *port->gid[i].ndev.text)
            port->netdev = port->gid[i].ndev.text;
    for (size_t i = 0; i < d->netdevs.n && !port->netdev; i++) {
        const im_reading at = im_root_number(root, "%s/device/net/%s/dev_port", d->path, d->netdevs.item[i]);
        const im_net *net = im_machine_net(m, d->netdevs.item[i]);
        const bool kind = !net || !net->type.is_number || (net->type.value == 1) == port->ethernet;
        if (kind && (d->nports == 1 || (at.is_number && at.value == port->number - 1)))
            port->netdev = d->netdevs.item[i];
    }
    if (!port->netdev) {
        const im_reading parent = im_root_read(root, "%s/parent", d->path); /* rxe, siw */
        port->netdev = parent.text && *parent.text && port->ethernet ? parent.text : NULL;
    }
}

static void from_netdev(const im_machine *m, im_arena *a, im_rdma_port *port)
{
    const im_net *net = im_machine_net(m, port->netdev);
    if (!port->ethernet) {
        port->mtu_why = "sysfs does not tell it on InfiniBand: ask ibv_devinfo, or put its output into " IM_BUNDLE_DIR "/ibv_devinfo.txt";
        return;
    }
    if (!net || !net->mtu.is_number) {
        port->mtu_why = "no net device whose MTU could be read";
        return;
    }
    port->mtu_active = step_below(net->mtu.value - ROCE_HEADERS);
    port->mtu_from = im_arena_printf(a, "mtu of %s", net->name);
    if (!port->mtu_active)
        port->mtu_why = im_arena_printf(a, "mtu %lld of %s is too small for RoCE", (long long)net->mtu.value, net->name);
}

void im_read_port_mtu(im_root *root, im_machine *m)
{
    const im_reading devinfo = im_root_read(root, IM_BUNDLE_DIR "/ibv_devinfo.txt");
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++) {
            im_rdma_port *port = &m->rdma[d].port[p];
            const char *why = NULL;
            find_netdev(root, m, &m->rdma[d], port);
            if (im_root_is_live(root) && im_verbs_mtu(m->rdma[d].name, port->number, &port->mtu_active, &port->mtu_max, &why))
                port->mtu_from = "ibv_query_port";
            else if (devinfo.text && from_devinfo(root, devinfo.text, m->rdma[d].name, port))
                port->mtu_from = "ibv_devinfo";
            else
                from_netdev(m, im_root_arena(root), port);
        }
}
