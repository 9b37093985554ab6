/* The smallest set of variables that a fabric needs, each with its reason. What depends on something that files do not tell is "to consider".
 * Sources: NCCL's user guide 2.30 (environment variables, troubleshooting), UCX's FAQ, Open MPI's documentation. */
#include "fabric/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct want {
    im_env_advices *out;
    const im_env_facts *f;
    const im_env_fabric *net;
    int nccl;
    const im_env_port **port; /* active */
    size_t nport;
    im_env_link link; /* of the training fabric */
    double rate;
    bool narrowed; /* not all active ports belong to it */
} want;

static char *print(want *w, const char *fmt, va_list ap)
{
    im_str s = {0};
    im_str_vprintf(&s, fmt, ap);
    char *kept = im_arena_strdup(w->out->arena, im_str_text(&s));
    if (s.failed || !kept)
        w->out->failed = true;
    im_str_free(&s);
    return kept ? kept : "";
}

static im_env_advice *add(want *w, bool consider, const char *name, const char *value, const char *fmt, ...) IM_PRINTF(5, 6);
static im_env_advice *add(want *w, bool consider, const char *name, const char *value, const char *fmt, ...)
{
    im_env_advices *l = w->out;
    im_env_advice *room = im_arena_grow(l->arena, l->item, l->n, &l->cap, sizeof *room);
    if (!room) {
        l->failed = true;
        return NULL;
    }
    l->item = room;
    va_list ap;
    va_start(ap, fmt);
    im_env_advice *x = &l->item[l->n++];
    *x = (im_env_advice){.name = name, .value = value ? im_arena_strdup(l->arena, value) : NULL, .consider = consider, .reason = print(w, fmt, ap)};
    va_end(ap);
    return x;
}

static void command(want *w, const char *fmt, ...) IM_PRINTF(2, 3);
static void command(want *w, const char *fmt, ...)
{
    im_env_advices *l = w->out;
    const char **room = im_arena_grow(l->arena, l->command, l->ncommand, &l->command_cap, sizeof *room);
    if (!room) {
        l->failed = true;
        return;
    }
    l->command = room;
    va_list ap;
    va_start(ap, fmt);
    l->command[l->ncommand++] = print(w, fmt, ap);
    va_end(ap);
}

static bool from(const want *w, int minor)
{
    return w->nccl / 100 % 100 >= minor;
}

/* ---- which ports --------------------------------------------------------------------------------------- */

static bool in_fabric(const want *w, const im_env_port *p)
{
    return p->link == w->link && (p->gbps >= w->rate || p->gbps <= 0);
}

/* The kind of link, and of it the rate, with the most bandwidth in all. */
static void choose_fabric(want *w)
{
    double best = -1;
    for (size_t i = 0; i < w->nport; i++) {
        double sum = 0;
        for (size_t k = 0; k < w->nport; k++)
            if (w->port[k]->link == w->port[i]->link && w->port[k]->gbps == w->port[i]->gbps)
                sum += w->port[k]->gbps > 0 ? w->port[k]->gbps : 1;
        if (sum > best) {
            best = sum;
            w->link = w->port[i]->link;
            w->rate = w->port[i]->gbps;
        }
    }
    for (size_t i = 0; i < w->nport; i++)
        w->narrowed |= !in_fabric(w, w->port[i]);
}

static size_t ports_of(const want *w, const char *device)
{
    size_t n = 0;
    for (size_t i = 0; i < w->f->nport; i++)
        n += !strcmp(w->f->port[i].device, device);
    return n;
}

static const char *link_name(im_env_link l)
{
    return l == IM_ENV_LINK_IB ? "InfiniBand" : l == IM_ENV_LINK_ETH ? "RoCE" : "RDMA";
}

static void hcas(want *w)
{
    im_str nccl = {0}, ucx = {0}, left = {0};
    size_t n = 0;
    for (size_t i = 0; i < w->nport; i++) {
        const im_env_port *p = w->port[i];
        if (!in_fabric(w, p)) {
            im_str_printf(&left, "%s%s:%d (%s, %g Gb/s)", left.len ? ", " : "", p->device, p->port, link_name(p->link), p->gbps);
            continue;
        }
        im_str_printf(&nccl, "%s%s", n ? "," : "=", p->device);
        if (ports_of(w, p->device) > 1)
            im_str_printf(&nccl, ":%d", p->port);
        im_str_printf(&ucx, "%s%s:%d", n++ ? "," : "", p->device, p->port);
    }
    if (w->narrowed) {
        add(w, false, "NCCL_IB_HCA", im_str_text(&nccl),
            "%zu %s port%s of %g Gb/s for the training; NCCL by itself would also take %s. Exact names (=): a name alone is the beginning of "
            "names",
            n, link_name(w->link), n > 1 ? "s" : "", w->rate, im_str_text(&left));
        add(w, false, "UCX_NET_DEVICES", im_str_text(&ucx), "the same ports for UCX, which names them with their number");
    }
    im_str_free(&nccl);
    im_str_free(&ucx);
    im_str_free(&left);
}

/* ---- RoCE ------------------------------------------------------------------------------------------------- */

static int v2_gid(const im_env_port *p, bool *v4)
{
    int v6 = -1;
    *v4 = false;
    for (size_t i = 0; i < p->ngid; i++) {
        const im_env_gid *g = &p->gid[i];
        if (g->version != 2 || im_env_gid_is_link_local(g))
            continue;
        if (im_env_gid_is_v4(g)) {
            *v4 = true;
            return g->index;
        }
        v6 = v6 < 0 ? g->index : v6;
    }
    return v6;
}

static void old_gid(want *w, int index, bool one)
{
    char value[16];
    snprintf(value, sizeof value, "%d", index);
    if (one && index >= 0)
        add(w, false, "NCCL_IB_GID_INDEX", value,
            "before 2.21 NCCL takes index 0, mostly a link-local GID of RoCE v1; RoCE v2 with a routable address is at %d on every port here. It "
            "must be so on every host: compare",
            index);
    else
        add(w, true, NULL, NULL,
            "before 2.21 NCCL needs NCCL_IB_GID_INDEX, and no single index is RoCE v2 on all ports here: give the ports their addresses in the same "
            "order, or take "
            "NCCL 2.21");
}

static void gids(want *w)
{
    int index = -1;
    bool one = true, any_v4 = false, wrong = false, seen = false;
    for (size_t i = 0; i < w->nport; i++) {
        const im_env_port *p = w->port[i];
        bool v4;
        if (!in_fabric(w, p) || !p->ngid)
            continue;
        int mine = v2_gid(p, &v4);
        any_v4 |= v4;
        one &= !seen || mine == index;
        index = mine;
        const im_env_gid *chosen = im_env_gid_at(p, im_env_nccl_gid(p, false, 2));
        wrong |= !chosen || chosen->version == 1 || im_env_gid_is_link_local(chosen);
        seen = true;
        if (mine < 0)
            add(w, true, NULL, NULL, "%s:%d has no routable RoCE v2 GID: give %s an IP address (ip addr add ADDRESS/LENGTH dev %s)", p->device,
                p->port, p->netdev ? p->netdev : "its interface", p->netdev ? p->netdev : "IF");
    }
    if (!seen)
        return;
    if (!from(w, 21))
        old_gid(w, index, one);
    else if (wrong && !any_v4 && index >= 0)
        add(w, false, "NCCL_IB_ADDR_FAMILY", "AF_INET6",
            "the RoCE ports have IPv6 addresses alone, and NCCL looks for IPv4 ones: it would stay at index 0, a link-local RoCE v1 GID");
}

static int lossless_priority(const want *w, bool *known, int *trust)
{
    int found = -1;
    *known = false;
    *trust = -1;
    for (size_t i = 0; i < w->nport; i++) {
        const im_env_port *p = w->port[i];
        if (!in_fabric(w, p))
            continue;
        *trust = p->trust >= 0 ? p->trust : *trust;
        if (p->pfc < 0)
            continue;
        *known = true;
        for (int k = 0; k < 8 && found < 0; k++)
            found = p->pfc >> k & 1 ? k : -1;
    }
    return found;
}

static void qos_commands(want *w, int priority, int tc, int trust)
{
    command(w, "# As root on each host, for each RoCE port; the same classes belong on the switches. Printed, not run.");
    for (size_t i = 0; i < w->nport; i++) {
        const im_env_port *p = w->port[i];
        if (!in_fabric(w, p))
            continue;
        const char *dev = p->netdev ? p->netdev : "IF";
        if (trust != 1 || p->pfc < 0 || !(p->pfc >> priority & 1))
            command(w, "mlnx_qos -i %s --trust dscp --pfc %d,%d,%d,%d,%d,%d,%d,%d", dev, priority == 0, priority == 1, priority == 2, priority == 3,
                    priority == 4, priority == 5, priority == 6, priority == 7);
        command(w, "cma_roce_tos -d %s -t %d", p->device, tc);
        command(w, "echo 1 > /sys/class/net/%s/ecn/roce_np/enable/%d; echo 1 > /sys/class/net/%s/ecn/roce_rp/enable/%d", dev, priority, dev,
                priority);
        command(w, "ip link set dev %s mtu 4200   # at least, for an RDMA MTU of 4096; or 9000 throughout", dev);
    }
}

static void classes(want *w)
{
    bool known;
    int trust, priority = lossless_priority(w, &known, &trust), p = priority >= 0 ? priority : 3;
    int tc = (8 * p + 2) << 2 | 2; /* DSCP 8p+2, ECT(0): 106 for priority 3 */
    char value[16], pcp[16];
    snprintf(value, sizeof value, "%d", tc);
    snprintf(pcp, sizeof pcp, "%d", p);
    if (known && priority >= 0 && trust == 0) {
        add(w, false, "NCCL_IB_SL", pcp, "the ports trust the VLAN priority: PFC is on priority %d, and on RoCE the service level is that priority",
            p);
        add(w, false, "UCX_IB_SL", pcp, "the same for UCX");
    } else if (known && priority >= 0) {
        add(w, false, "NCCL_IB_TC", value,
            "PFC is on priority %d: DSCP %d with ECN bits 2 goes there by the usual map (DSCP / 8); the default 0 is unprotected", p, tc >> 2);
        if (w->nccl / 100 == 222 || w->nccl / 100 == 223)
            add(w, false, "NCCL_IB_FIFO_TC", value, "in 2.22 and 2.23 control messages stay in class 0 unless this is set");
        if (tc != 106)
            add(w, false, "UCX_IB_TRAFFIC_CLASS", value, "the same class for UCX, which takes 106 by itself");
    } else if (known) {
        add(w, true, "NCCL_IB_TC", value,
            "no priority has PFC here: the network may drop packets. With PFC or ECN on priority 3 (below), this class goes there");
    } else {
        add(w, true, "NCCL_IB_TC", value,
            "if the fabric has its lossless queue on priority 3, as most have: DSCP 26. What it has is not known here (mlnx_qos -i IF); UCX takes "
            "106 by itself");
    }
    for (size_t i = 0; i < w->nport; i++)
        if (in_fabric(w, w->port[i]) && w->port[i]->traffic_class >= 0)
            add(w, true, NULL, NULL, "%s:%d has a traffic class of its own, %d, which wins over NCCL_IB_TC", w->port[i]->device, w->port[i]->port,
                w->port[i]->traffic_class);
    qos_commands(w, p, tc, trust);
}

static void roce(want *w)
{
    if (w->f) {
        gids(w);
        classes(w);
    } else {
        add(w, true, "NCCL_IB_TC", "106", "if the fabric has its lossless queue on priority 3, as most have: DSCP 26; UCX takes 106 by itself");
        if (!from(w, 21))
            add(w, true, "NCCL_IB_GID_INDEX", "3",
                "if that is the RoCE v2 IPv4 GID of every port (show_gids): before 2.21 NCCL takes index 0, RoCE v1");
        command(w, "mlnx_qos -i IF --trust dscp --pfc 0,0,0,1,0,0,0,0");
        command(w, "cma_roce_tos -d DEVICE -t 106");
    }
    if (from(w, 10) && !(w->net && w->net->adaptive))
        add(w, true, "NCCL_IB_QPS_PER_CONNECTION", "4",
            "if the switches choose paths by hash (ECMP) and links are unevenly used: more flows; measure both");
}

static void infiniband(want *w)
{
    command(w, "# On InfiniBand classes are the subnet manager's. With storage on the same fabric, in opensm.conf (then restart opensm):");
    command(w, "qos TRUE");
    command(w, "qos_max_vls 4");
    command(w, "qos_high_limit 255");
    command(w, "qos_vlarb_high 0:0,1:192,2:0,3:0");
    command(w, "qos_vlarb_low 0:64,1:64,2:64,3:64");
    command(w, "qos_sl2vl 0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,3   # then NCCL_IB_SL=1 and UCX_IB_SL=1 put training on lane 1");
}

/* ---- interfaces ---------------------------------------------------------------------------------------------- */

static bool is_inner(const char *name)
{
    static const char *const with[] = {"docker", "veth", "br-", "virbr",  "cni", "flannel", "cali",   "lxc",
                                       "kube",   "tun",  "tap", "ip6tnl", "sit", "dummy",   "podman", "wg"};
    for (size_t i = 0; i < IM_COUNT_OF(with); i++)
        if (!strncmp(name, with[i], strlen(with[i])))
            return true;
    return false;
}

/* The interface for the bootstrap: the default route's, else the first real one that is up and has an address. */
static const im_env_net *best_net(const im_env_facts *f)
{
    const im_env_net *best = NULL;
    for (size_t i = 0; i < f->nnet; i++) {
        const im_env_net *n = &f->net[i];
        if (n->loopback || n->up == 0 || n->addressed == 0 || is_inner(n->name))
            continue;
        if (!best || (n->route && !best->route) || (n->route == best->route && n->hardware && !best->hardware))
            best = n;
    }
    return best;
}

static void interface(want *w)
{
    const im_env_net *got[16], *best = best_net(w->f);
    size_t n = im_env_nccl_interfaces(w->f, NULL, got, IM_COUNT_OF(got));
    if (!w->f->nnet || !best || !n || got[0] == best)
        return;
    bool poor = got[0]->loopback || is_inner(got[0]->name);
    char exact[128];
    snprintf(exact, sizeof exact, "=%s", best->name);
    if (poor) {
        add(w, false, "NCCL_SOCKET_IFNAME", exact,
            "NCCL by itself takes %s, which other nodes cannot reach; %s%s. It must have this name on every node", got[0]->name, best->name,
            best->route ? " has the default route" : " is up and has an address");
        add(w, true, "OMPI_MCA_btl_tcp_if_include", best->name, "the same for Open MPI over TCP");
    } else if (best->route && !got[0]->route) {
        add(w, true, "NCCL_SOCKET_IFNAME", exact,
            "if the nodes cannot reach each other over %s, which NCCL takes by itself for the bootstrap: %s has the default route", got[0]->name,
            best->name);
    }
}

static void sockets(want *w)
{
    double rate = w->net ? w->net->gbps : 0;
    const im_env_net *best = w->f ? best_net(w->f) : NULL;
    if (best)
        rate = best->gbps;
    add(w, true, NULL, NULL, "%s: NCCL goes over TCP", w->f ? "no RDMA port is active here" : "a network without RDMA");
    if (rate >= 100) {
        add(w, true, "NCCL_SOCKET_NTHREADS", "4", "one thread does not fill %g Gb/s; threads x connections may be 64 at most", rate);
        add(w, true, "NCCL_NSOCKS_PERTHREAD", "4", "with the threads: 16 connections to a peer");
    }
}

/* ---- GPUs --------------------------------------------------------------------------------------------------------- */

static void gpus(want *w)
{
    size_t far = 0, across = 0;
    const im_env_gpu *one = NULL;
    for (size_t i = 0; i < w->f->ngpu; i++) {
        const im_env_gpu *g = &w->f->gpu[i];
        if (g->nearest == IM_ENV_PHB) {
            far++;
            one = one ? one : g;
        }
        across += g->nearest == IM_ENV_SYS;
    }
    if (far && w->f->is_virtual)
        add(w, true, "NCCL_NET_GDR_LEVEL", "PHB",
            "if GPUs and NICs are near each other in the host: the PCI tree of a virtual machine is flat, and NCCL takes them for far. Better is the "
            "provider's "
            "topology file (NCCL_TOPO_FILE)");
    else if (far && w->f->c2c != 1)
        add(w, false, "NCCL_NET_GDR_LEVEL", "PHB",
            "GPU %s and its nearest NIC %s meet at the CPU (PHB), as for %zu of %zu GPUs: the default PXB would turn GPUDirect RDMA off. Measure "
            "both: some CPUs "
            "forward it slowly",
            one->address, one->device, far, w->f->ngpu);
    if (across)
        add(w, true, NULL, NULL, "%zu of %zu GPUs have no NIC on their own socket: their data crosses the link between sockets, through host memory",
            across, w->f->ngpu);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

static bool rdma(want *w)
{
    bool plug_in = false;
    for (size_t i = 0; i < w->nport; i++)
        plug_in |= w->port[i]->link == IM_ENV_LINK_UNKNOWN || strstr(w->port[i]->device, "efa") || !strncmp(w->port[i]->device, "rdmap", 5);
    if (w->f ? !w->nport : w->net->link == IM_ENV_LINK_UNKNOWN || !w->net->nics)
        return false;
    if (plug_in)
        add(w, true, "NCCL_NET", "AWS Libfabric",
            "if these are EFA devices: they are used by the libfabric plug-in alone, and this makes a job fail that would go over TCP");
    else if (from(w, 10))
        add(w, false, "NCCL_NET", "IB",
            "a guard: without it NCCL goes over TCP when RDMA cannot be used, and warns of nothing; with it the job fails at its start. A network "
            "plug-in has a "
            "name of its own, which is then the one to write");
    if (w->f && w->f->verbs == 0)
        add(w, true, NULL, NULL,
            "there is no /dev/infiniband/uverbs* here: programs cannot use the RDMA ports until the container is given it (--device "
            "/dev/infiniband); no variable "
            "mends that");
    if (w->f)
        hcas(w);
    if (w->link == IM_ENV_LINK_ETH)
        roce(w);
    else if (w->link == IM_ENV_LINK_IB)
        infiniband(w);
    if (!from(w, 14))
        add(w, false, "NCCL_IB_TIMEOUT", "20",
            "before 2.14 a try waits 67 ms, 0.5 s in all: a short congestion ends the job. 20 is the default from 2.23 on");
    else if (!from(w, 23))
        add(w, true, "NCCL_IB_TIMEOUT", "20", "on a large fabric: the default before 2.23 gives up after 7.5 s, this one after 30 s");
    add(w, false, "OMPI_MCA_pml", "ucx", "a guard for MPI: without it Open MPI goes over TCP when UCX finds no device it likes");
    return true;
}

static void network(want *w)
{
    const im_env_fabric *n = w->net;
    if (n->rails && n->nics > 1)
        add(w, true, "NCCL_CROSS_NIC", "0",
            "if the rails are not joined by spines, or slowly: rings stay on their rail, and PXN carries what must change");
    if (n->adaptive && n->link == IM_ENV_LINK_ETH && from(w, 16))
        add(w, false, "NCCL_IB_ADAPTIVE_ROUTING", "1",
            "the network routes adaptively; on RoCE NCCL does not expect that by itself. NICs must take packets out of order");
    if (n->sharp && n->link == IM_ENV_LINK_IB)
        add(w, true, "NCCL_COLLNET_ENABLE", "1", "the switches sum (SHARP): with its plug-in and sharp_am all-reduce needs half the traffic");
}

im_status im_env_suggest(im_context *ctx, im_arena *a, const im_env_facts *f, const im_env_fabric *net, int nccl, im_env_advices *out)
{
    *out = (im_env_advices){.arena = a};
    want w = {.out = out, .f = f, .net = f ? NULL : net, .nccl = nccl ? nccl : f && f->nccl ? f->nccl : IM_ENV_NCCL_NEWEST};
    w.port = IM_ARENA_NEW(a, const im_env_port *, f ? f->nport + 1 : 1);
    if (!w.port)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the ports");
    for (size_t i = 0; f && i < f->nport; i++)
        if (f->port[i].active != 0)
            w.port[w.nport++] = &f->port[i];
    if (f)
        choose_fabric(&w);
    else
        w.link = net->link;
    bool has = rdma(&w);
    if (f)
        interface(&w);
    if (!has)
        sockets(&w);
    else if (f)
        gpus(&w);
    if (!f)
        network(&w);
    add(&w, true, "NCCL_DEBUG", "WARN", "for running. Once, to see what is used: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV");
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the suggestions") : IM_OK;
}

/* ---- forms -------------------------------------------------------------------------------------------------------------- */

const char *const im_env_form_names[IM_ENV_FORMS] = {"shell", "conf", "mpirun", "slurm", "kubernetes"};

static bool in_form(const im_env_advice *x, im_env_form form)
{
    bool nccl = x->name && !strncmp(x->name, "NCCL_", 5);
    return x->name && (form != IM_ENV_FORM_CONF || nccl); /* nccl.conf is NCCL's */
}

static void one_form(const im_env_advice *x, im_env_form form, im_str *out)
{
    const char *q = strpbrk(x->value, " =,;&|<>()$`\"'*?[]#~") ? "'" : "";
    bool mca = !strncmp(x->name, "OMPI_MCA_", 9);
    if (form == IM_ENV_FORM_MPIRUN && mca)
        im_str_printf(out, "%s  --mca %s %s%s%s", x->consider ? "#" : "", x->name + 9, q, x->value, q);
    else if (form == IM_ENV_FORM_MPIRUN)
        im_str_printf(out, "%s  -x %s=%s%s%s", x->consider ? "#" : "", x->name, q, x->value, q);
    else if (form == IM_ENV_FORM_KUBERNETES)
        im_str_printf(out, "%s  - {name: %s, value: \"%s\"}", x->consider ? "#" : "", x->name, x->value);
    else if (form == IM_ENV_FORM_CONF)
        im_str_printf(out, "%s%s=%s", x->consider ? "#" : "", x->name, x->value);
    else
        im_str_printf(out, "%sexport %s=%s%s%s", x->consider ? "#" : "", x->name, q, x->value, q);
}

static void comment(const im_env_advice *x, const char *before, im_str *out)
{
    im_str_printf(out, "%s# %s%s\n", before, x->consider && x->name ? "consider: " : "", x->reason);
}

void im_env_write(const im_env_advices *l, im_env_form form, im_str *out)
{
    const char *before = form == IM_ENV_FORM_KUBERNETES ? "  " : "";
    if (form == IM_ENV_FORM_KUBERNETES)
        im_str_append(out, "env:\n");
    if (form == IM_ENV_FORM_MPIRUN) { /* an argument list has no comments */
        im_str_append(out, "mpirun");
        for (size_t i = 0; i < l->n; i++)
            if (!l->item[i].consider && in_form(&l->item[i], form)) {
                im_str_append(out, " \\\n");
                one_form(&l->item[i], form, out);
            }
        im_str_append(out, " \\\n  PROGRAM\n");
        return;
    }
    for (size_t i = 0; i < l->n; i++) {
        const im_env_advice *x = &l->item[i];
        if (!in_form(x, form))
            continue;
        comment(x, before, out);
        one_form(x, form, out);
        im_str_append(out, "\n");
    }
    if (form == IM_ENV_FORM_SLURM)
        im_str_append(out, "srun --export=ALL PROGRAM   # values with commas cannot stand in --export itself\n");
}
