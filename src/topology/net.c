/* Net devices and their addresses. */
#include "base/json.h"
#include "topology/internal.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_ADDRS = 64, MAX_JSON = 4 << 20 };

static im_net *find_net(im_machine *m, const char *name)
{
    for (size_t i = 0; i < m->nnets; i++)
        if (strcmp(m->net[i].name, name) == 0)
            return &m->net[i];
    return NULL;
}

const im_net *im_machine_net(const im_machine *m, const char *name)
{
    return name ? find_net((im_machine *)m, name) : NULL;
}

static void add_address(im_arena *a, im_net *net, const char *address, int prefix)
{
    if (!net->addr)
        net->addr = IM_ARENA_NEW(a, const char *, MAX_ADDRS);
    const char *text = prefix < 0 ? im_arena_strdup(a, address) : im_arena_printf(a, "%s/%d", address, prefix);
    if (net->addr && text && net->naddrs < MAX_ADDRS)
        net->addr[net->naddrs++] = text;
}

/* ---- three sources of addresses ----------------------------------------------------------- */

static int prefix_of(const unsigned char *mask, size_t n)
{
    int bits = 0;
    for (size_t i = 0; i < n; i++)
        for (int b = 7; b >= 0; b--)
            bits += mask[i] >> b & 1;
    return bits;
}

static bool from_kernel(im_root *root, im_machine *m)
{
    struct ifaddrs *list;
    if (!im_root_is_live(root) || getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *p = list; p; p = p->ifa_next) {
        im_net *net = find_net(m, p->ifa_name);
        char text[INET6_ADDRSTRLEN];
        const int family = p->ifa_addr ? p->ifa_addr->sa_family : AF_UNSPEC;
        if (!net || !p->ifa_netmask || (family != AF_INET && family != AF_INET6))
            continue;
        const bool four = family == AF_INET;
        const size_t n = four ? 4 : 16;
        const void *from = four ? (const void *)&((const struct sockaddr_in *)(const void *)p->ifa_addr)->sin_addr
                                : (const void *)&((const struct sockaddr_in6 *)(const void *)p->ifa_addr)->sin6_addr;
        const void *mask = four ? (const void *)&((const struct sockaddr_in *)(const void *)p->ifa_netmask)->sin_addr
                                : (const void *)&((const struct sockaddr_in6 *)(const void *)p->ifa_netmask)->sin6_addr;
        if (inet_ntop(family, from, text, sizeof text))
            add_address(im_root_arena(root), net, text, prefix_of(mask, n));
    }
    freeifaddrs(list);
    return true;
}

/* ip -j addr */
static bool from_json(im_root *root, im_machine *m)
{
    im_arena *a = im_root_arena(root);
    const im_reading r = im_root_read(root, IM_BUNDLE_DIR "/ip-addr.json");
    im_context *quiet = NULL; /* a broken file is a source less, no failure */
    im_json *doc = NULL;
    if (!r.text || im_context_create(&quiet) != IM_OK)
        return false;
    const bool parsed = im_json_parse(quiet, r.path, r.text, strlen(r.text), &doc) == IM_OK;
    const im_json_value *list = parsed ? im_json_root(doc) : NULL;
    for (size_t i = 0; i < im_json_length(list); i++) {
        const im_json_value *link = im_json_at(list, i), *info = im_json_get(link, "addr_info");
        im_net *net = find_net(m, im_json_string(im_json_get(link, "ifname"), ""));
        for (size_t k = 0; net && k < im_json_length(info); k++) {
            const im_json_value *one = im_json_at(info, k);
            const char *local = im_json_string(im_json_get(one, "local"), "");
            const int64_t prefix = im_json_int(im_json_get(one, "prefixlen"), -1);
            unsigned char raw[16];
            if (prefix >= 0 && prefix <= 128 && (inet_pton(AF_INET, local, raw) == 1 || inet_pton(AF_INET6, local, raw) == 1))
                add_address(a, net, local, (int)prefix);
        }
    }
    im_json_free(doc);
    im_context_destroy(quiet);
    return parsed;
}

/* /proc/net/if_inet6: "fe80...0001 02 40 20 80 eth0": address, index, prefix length, scope, flags, name, all hexadecimal. */
static bool from_inet6(im_root *root, im_machine *m)
{
    const im_reading r = im_root_read(root, "/proc/net/if_inet6");
    for (const char *line = r.text; line && *line;) {
        char hex[33], name[64], text[INET6_ADDRSTRLEN];
        unsigned index, prefix, scope, flags;
        unsigned char raw[16];
        if (sscanf(line, "%32s %x %x %x %x %63s", hex, &index, &prefix, &scope, &flags, name) == 6 && strlen(hex) == 32 && prefix <= 128) {
            bool good = true;
            for (size_t i = 0; i < 16; i++)
                good = good && sscanf(hex + 2 * i, "%2hhx", &raw[i]) == 1;
            im_net *net = good ? find_net(m, name) : NULL;
            if (net && inet_ntop(AF_INET6, raw, text, sizeof text))
                add_address(im_root_arena(root), net, text, (int)prefix);
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return r.text != NULL;
}

/* A RoCE GID that is IPv4-mapped is an address of its net device. */
static void from_gids(im_root *root, im_machine *m)
{
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++)
            for (size_t g = 0; g < m->rdma[d].port[p].ngids; g++) {
                const im_gid *gid = &m->rdma[d].port[p].gid[g];
                im_net *net = gid->is_ipv4 && gid->ndev.text ? find_net(m, gid->ndev.text) : NULL;
                bool known = !net || !gid->address;
                for (size_t k = 0; !known && k < net->naddrs; k++)
                    known = strncmp(net->addr[k], gid->address, strlen(gid->address)) == 0 && strchr("/", net->addr[k][strlen(gid->address)]);
                if (!known)
                    add_address(im_root_arena(root), net, gid->address, -1); /* how long the prefix is, it does not tell */
            }
}

static void read_addresses(im_root *root, im_machine *m)
{
    if (from_kernel(root, m) || from_json(root, m))
        return;
    from_inet6(root, m);
    from_gids(root, m);
    for (size_t i = 0; i < m->nnets; i++)
        if (!m->net[i].naddrs)
            m->net[i].addr_why = "a copy of sysfs has no IPv4 addresses: put the output of `ip -j addr` into " IM_BUNDLE_DIR "/ip-addr.json";
}

/* ---- devices ------------------------------------------------------------------------------- */

static void read_one(im_root *root, const im_machine *m, im_net *n)
{
    char dir[128], link[160];
    snprintf(dir, sizeof dir, "/sys/class/net/%.64s", n->name);
    n->operstate = im_root_read(root, "%s/operstate", dir);
    n->carrier = im_root_number(root, "%s/carrier", dir); /* EINVAL while it is down */
    n->speed = im_root_number(root, "%s/speed", dir);
    if (n->speed.is_number && n->speed.value <= 0) {
        n->speed.is_number = false;
        n->speed.why = "the driver does not tell";
    }
    n->mtu = im_root_number(root, "%s/mtu", dir);
    n->address = im_root_read(root, "%s/address", dir);
    n->type = im_root_number(root, "%s/type", dir);
    n->ifindex = im_root_number(root, "%s/ifindex", dir);
    n->flags = im_root_number(root, "%s/flags", dir);
    n->carrier_changes = im_root_number(root, "%s/carrier_changes", dir);
    snprintf(link, sizeof link, "%s/master", dir);
    n->master = im_root_link_name(root, link);
    snprintf(link, sizeof link, "%s/device/driver", dir);
    n->driver = im_root_link_name(root, link);
    snprintf(link, sizeof link, "%s/device", dir);
    const char *path = im_root_resolve(root, dir), *why;
    n->is_virtual = !im_root_exists(root, link) || (path && strstr(path, "/devices/virtual/"));
    n->pci = n->is_virtual ? NULL : im_pci_of_device(root, m, link, &why);
}

void im_read_net(im_root *root, im_machine *m)
{
    const im_names names = im_root_list(root, "/sys/class/net");
    m->net_why = names.why;
    m->net = IM_ARENA_NEW(im_root_arena(root), im_net, names.n + 1);
    for (size_t i = 0; m->net && i < names.n; i++) {
        char dir[512];
        snprintf(dir, sizeof dir, "/sys/class/net/%.255s", names.item[i]);
        const im_names inside = im_root_list(root, "%s", dir);
        if (inside.why) /* bonding_masters is a file */
            continue;
        m->net[m->nnets] = (im_net){.name = names.item[i]};
        read_one(root, m, &m->net[m->nnets++]);
    }
    read_addresses(root, m);
}
