/* UCX, Open MPI and libfabric: do they reach the RDMA ports that a machine has?
 * Sources: UCX's configuration and FAQ (1.13 to 1.22), Open MPI's documentation (4.1, 5.0). */
#include "fabric/env_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKENS = 64 };

typedef struct names {
    bool deny;
    const char *one[TOKENS];
    size_t n;
} names;

static names list_of(im_env_case *c, const char *text)
{
    names l = {.deny = *text == '^'};
    l.n = im_env_split(c->set->arena, text + l.deny, ',', l.one, TOKENS);
    return l;
}

static bool has(const names *l, const char *const *of, size_t n)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < n; k++)
            if (!strcasecmp(l->one[i], of[k]))
                return true;
    return false;
}

/* ---- UCX ------------------------------------------------------------------------------------------------- */

static const char *const transports[] = {
    "all",    "rc",      "rc_v", "rc_x",      "rc_verbs", "rc_mlx5",  "ud",     "ud_v",      "ud_x",     "ud_verbs", "ud_mlx5", "dc",
    "dc_x",   "dc_mlx5", "ib",   "srd",       "sm",       "shm",      "posix",  "sysv",      "cma",      "knem",     "xpmem",   "mm",
    "self",   "tcp",     "cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm",   "rocm_copy", "rocm_ipc", "rocm_gdr", "ze",      "ze_copy",
    "ze_ipc", "ze_gdr",  "ugni", "gga_mlx5",  "gga",      "ud:aux",   "rc:aux", "tcp:aux",   "mm:aux",
};
static const char *const over_ib[] = {"all",  "rc",       "rc_v",    "rc_x", "rc_verbs", "rc_mlx5", "ud", "ud_v",
                                      "ud_x", "ud_verbs", "ud_mlx5", "dc",   "dc_x",     "dc_mlx5", "ib", "srd"};
static const char *const over_gpu[] = {"all", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc", "ze", "ze_copy"};

static void tls(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    static const char *const rc[] = {"rc"}, *const dc[] = {"dc"}, *const ib[] = {"ib", "all"};
    for (size_t i = 0; i < l.n; i++) {
        names one = {.one = {l.one[i]}, .n = 1};
        if (!has(&one, transports, IM_COUNT_OF(transports))) {
            const char *near = im_nearest_name(l.one[i], transports, IM_COUNT_OF(transports));
            im_env_finding *f = im_env_say(c, IM_ENV_WARN, "ucx-transport", x, "\"%s\" is no transport that is known here%s%s", l.one[i],
                                           strpbrk(l.one[i], " \t") ? " (blanks are a part of names)" : "",
                                           *l.one[i] == '^' ? ": ^ stands once, before the list" : "");
            if (near && !strpbrk(l.one[i], " ^"))
                im_env_fix(c, f, "%s", near);
        }
    }
    bool no_rdma = l.deny ? has(&l, ib, 2) || (has(&l, rc, 1) && has(&l, dc, 1)) : !has(&l, over_ib, IM_COUNT_OF(over_ib));
    if (no_rdma && c->nport) {
        im_str ports = {0};
        im_env_name_ports(c->port, c->nport, &ports);
        im_env_fix(c,
                   im_env_say(c, IM_ENV_FAIL, "ucx-no-rdma", x,
                              "no transport over InfiniBand or RoCE is left (rc, dc, ud), although %s %s active: MPI and UCX go over %s",
                              im_str_text(&ports), c->nport > 1 ? "are" : "is", l.deny ? "what is left" : x->value),
                   l.deny ? "unset UCX_TLS" : "UCX_TLS=rc,%s", x->value);
        im_str_free(&ports);
    } else if (no_rdma && !c->rdma_judged) {
        im_env_say(c, IM_ENV_WARN, "ucx-no-rdma", x, "where there is InfiniBand or RoCE, UCX does not use it with this list");
    }
    if (!l.deny && c->f->ngpu && !has(&l, over_gpu, IM_COUNT_OF(over_gpu)))
        im_env_say(c, IM_ENV_WARN, "ucx-no-gpu", x,
                   "a list of what may be used must name cuda (or rocm) too where GPU memory is sent: this machine has %zu GPU%s", c->f->ngpu,
                   c->f->ngpu > 1 ? "s" : "");
    static const char *const near_by[] = {"all", "sm", "shm", "posix", "sysv", "mm", "cma", "knem", "xpmem"};
    if (!l.deny && !has(&l, near_by, IM_COUNT_OF(near_by)))
        im_env_say(c, IM_ENV_NOTE, "ucx-no-shm", x, "without sm the ranks of a node talk through the network device");
}

static const im_env_net *find_net(const im_env_facts *f, const char *name)
{
    for (size_t i = 0; i < f->nnet; i++)
        if (!strcmp(f->net[i].name, name))
            return &f->net[i];
    return NULL;
}

static const im_env_port *find_port(const im_env_facts *f, const char *name, size_t n, int port)
{
    for (size_t i = 0; i < f->nport; i++)
        if (strlen(f->port[i].device) == n && !memcmp(f->port[i].device, name, n) && (port < 0 || f->port[i].port == port))
            return &f->port[i];
    return NULL;
}

/* One name of UCX_NET_DEVICES: 1 an RDMA port, 2 an interface, 0 neither (told). */
static int ucx_device(im_env_case *c, im_env_item *x, const char *name)
{
    const char *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    const im_env_port *p = find_port(c->f, name, n, colon ? atoi(colon + 1) : -1);
    if (strpbrk(name, "*[?"))
        return 1; /* a pattern */
    if (p && !colon) {
        im_env_fix(c, im_env_say(c, IM_ENV_FAIL, "ucx-no-port", x, "UCX names RDMA devices with their port: \"%s\" fits none", name), "%s:%d", name,
                   p->port);
        return 0;
    }
    if (p) {
        if (p->active == 0)
            im_env_say(c, IM_ENV_FAIL, "ucx-device-down", x, "%s is not active", name);
        return 1;
    }
    if (!colon && find_net(c->f, name))
        return 2;
    const char *all[TOKENS], *near;
    size_t k = 0;
    for (size_t i = 0; i < c->f->nport && k < TOKENS; i++)
        if ((all[k] = im_arena_printf(c->set->arena, "%s:%d", c->f->port[i].device, c->f->port[i].port)))
            k++;
    near = im_nearest_name(name, all, k);
    im_env_finding *f = im_env_say(c, c->rdma_judged ? IM_ENV_FAIL : IM_ENV_UNKNOWN, "ucx-device-absent", x,
                                   "this machine has no network device \"%s\": UCX warns, and does not use it", name);
    if (near)
        im_env_fix(c, f, "%s", near);
    return 0;
}

static void net_devices(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    size_t rdma = 0, nets = 0;
    const char *t = im_env_text(c, "UCX_TLS");
    if (!c->machine || !strcmp(x->value, "all")) {
        if (strcmp(x->value, "all") != 0 && !l.deny)
            im_env_say(c, IM_ENV_UNKNOWN, "machine-unknown", x, "whether there are such devices depends on the machine: --root BUNDLE");
        return;
    }
    for (size_t i = 0; i < l.n; i++) {
        int kind = ucx_device(c, x, l.one[i]);
        rdma += kind == 1;
        nets += kind == 2;
    }
    if (l.deny)
        return;
    if (nets && !rdma && c->nport)
        im_env_say(c, IM_ENV_FAIL, "ucx-tcp-devices", x, "only interfaces: UCX goes over TCP, although this machine has %zu active RDMA port%s",
                   c->nport, c->nport > 1 ? "s" : "");
    if (t && *t != '^' && !strstr(t, "all")) {
        names tl = list_of(c, t);
        static const char *const tcp[] = {"tcp"};
        bool ib = has(&tl, over_ib, IM_COUNT_OF(over_ib));
        if (ib && !has(&tl, tcp, 1) && nets && !rdma)
            im_env_say(c, IM_ENV_FAIL, "ucx-conflict", x, "UCX_TLS=%s needs RDMA devices, and only interfaces may be used: no transport is left", t);
        if (!ib && has(&tl, tcp, 1) && rdma && !nets)
            im_env_say(c, IM_ENV_FAIL, "ucx-conflict", x,
                       "UCX_TLS=%s needs interfaces, and only RDMA devices may be used: no transport is left between nodes", t);
    }
}

static void ucx_gid(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (strcasecmp(x->value, "auto") && !(c->machine && c->nib && !c->neth))
        im_env_fix(c,
                   im_env_say(c, IM_ENV_WARN, "gid-pinned", x,
                              "UCX chooses RoCE v2 with IPv4 for each port by itself; an index that is set is wrong where tables differ"),
                   "unset UCX_IB_GID_INDEX");
}

static void ucx_pkey(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    char *end;
    long v = strtol(x->value, &end, 0);
    if (end != x->value && !*end && v >= 0 && v < 128)
        im_env_say(c, IM_ENV_WARN, "pkey-value", x, "UCX takes the key itself (0x7fff), NCCL_IB_PKEY an index: %ld looks like an index", v);
}

/* ---- Open MPI ----------------------------------------------------------------------------------------------- */

static void caret_within(im_env_case *c, im_env_item *x)
{
    const char *at = strchr(x->value + 1, '^');
    if (*x->value && at)
        im_env_say(c, IM_ENV_FAIL, "mca-caret", x, "the ^ stands once, before the whole list; Open MPI refuses it elsewhere");
}

static void pml(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    static const char *const ucx[] = {"ucx"}, *const ob1[] = {"ob1"}, *const cm[] = {"cm"};
    caret_within(c, x);
    bool none = l.deny ? has(&l, ucx, 1) : has(&l, ob1, 1) && !has(&l, ucx, 1) && !has(&l, cm, 1);
    const char *btl = im_env_text(c, "OMPI_MCA_btl");
    if (none && c->nport)
        im_env_fix(
            c,
            im_env_say(
                c, btl && strstr(btl, "openib") && *btl != '^' ? IM_ENV_WARN : IM_ENV_FAIL, "mpi-no-rdma", x,
                "%s: MPI goes over TCP, although this machine has %zu active RDMA port%s (btl openib, the old way there, has gone in Open MPI 5)",
                l.deny ? "without pml ucx" : "pml ob1", c->nport, c->nport > 1 ? "s" : ""),
            "OMPI_MCA_pml=ucx (--mca pml ucx)");
    else if (none && !c->rdma_judged)
        im_env_say(c, IM_ENV_WARN, "mpi-no-rdma", x, "where there is InfiniBand or RoCE, MPI does not use it: --mca pml ucx does");
}

static void btl(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    static const char *const self[] = {"self"}, *const openib[] = {"openib"}, *const tcp[] = {"tcp"};
    const char *p = im_env_text(c, "OMPI_MCA_pml");
    caret_within(c, x);
    if (!l.deny && !has(&l, self, 1))
        im_env_fix(c, im_env_say(c, IM_ENV_FAIL, "mpi-no-self", x, "a list of what may be used must name self: a rank cannot send to itself without"),
                   "OMPI_MCA_btl=%s,self", x->value);
    if (has(&l, openib, 1) && !l.deny)
        im_env_say(c, IM_ENV_WARN, "mpi-openib", x, "btl openib has gone in Open MPI 5: the way over RDMA is pml ucx");
    if (!l.deny && has(&l, tcp, 1) && !has(&l, openib, 1) && c->nport && !(p && strstr(p, "ucx") && *p != '^'))
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_WARN, "mpi-btl-tcp", x,
                       "if pml ob1 runs, MPI goes over TCP, although this machine has %zu active RDMA port%s; the list means nothing to pml ucx",
                       c->nport, c->nport > 1 ? "s" : ""),
            "OMPI_MCA_pml=ucx (--mca pml ucx)");
}

static void mca_interfaces(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    char other[128];
    const char *in = strstr(x->name, "_if_include");
    if (!in && !strstr(x->name, "_MCA_"))
        in = x->name; /* Gloo, TensorPipe, libfabric: whole names too, and none that are left out */
    if (in && in != x->name) {
        snprintf(other, sizeof other, "%.*s_if_exclude", (int)(in - x->name), x->name);
        if (im_env_is_set(c, other))
            im_env_say(c, IM_ENV_FAIL, "mpi-include-exclude", x, "%s is set too: the two exclude each other, and Open MPI refuses to start", other);
    }
    for (size_t i = 0; i < l.n && c->machine && c->f->nnet; i++) {
        const im_env_net *n = find_net(c->f, l.one[i]);
        if (strchr(l.one[i], '/') || !*l.one[i])
            continue;
        if (in && !n)
            im_env_say(c, c->rdma_judged ? IM_ENV_FAIL : IM_ENV_UNKNOWN, "interface-absent", x,
                       "this machine has no interface \"%s\" (whole names, no beginnings)%s", l.one[i],
                       find_port(c->f, l.one[i], strlen(l.one[i]), -1) ? ": it is an RDMA device" : "");
        else if (in && n->loopback)
            im_env_say(c, IM_ENV_FAIL, "interface-poor", x, "the loopback reaches no other node");
        else if (in && (n->up == 0 || n->addressed == 0))
            im_env_say(c, IM_ENV_FAIL, "interface-down", x, "%s is down or has no address", l.one[i]);
    }
    if (!in && !strstr(x->value, "lo") && !strstr(x->value, "127."))
        im_env_say(c, IM_ENV_WARN, "mpi-exclude-lo", x, "it replaces the default 127.0.0.1/8,sppp: the loopback may be taken now");
}

/* ---- libfabric --------------------------------------------------------------------------------------------------- */

static void provider(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    names l = list_of(c, x->value);
    static const char *const slow[] = {"tcp", "sockets", "udp", "net"}, *const verbs[] = {"verbs", "verbs;ofi_rxm"};
    bool efa = false;
    for (size_t i = 0; i < c->f->nport; i++)
        efa |= strstr(c->f->port[i].device, "efa") != NULL || strstr(c->f->port[i].device, "rdmap") != NULL;
    if (!l.deny && c->nport && has(&l, slow, IM_COUNT_OF(slow)) && l.n == 1)
        im_env_say(c, IM_ENV_FAIL, "ofi-no-rdma", x, "libfabric goes over TCP, although this machine has %zu active RDMA port%s", c->nport,
                   c->nport > 1 ? "s" : "");
    if (!l.deny && c->machine && c->rdma_judged && !c->nport && has(&l, verbs, IM_COUNT_OF(verbs)))
        im_env_say(c, IM_ENV_FAIL, "ofi-no-verbs", x, "this machine has no active RDMA port");
    if (!l.deny && c->machine && c->nport && !efa && !strcmp(x->value, "efa"))
        im_env_say(c, IM_ENV_FAIL, "ofi-no-efa", x, "this machine has no EFA device");
}

const im_env_rule im_env_rules_mpi[] = {
    {"UCX_TLS", tls},
    {"UCX_NET_DEVICES", net_devices},
    {"UCX_IB_GID_INDEX", ucx_gid},
    {"UCX_IB_PKEY", ucx_pkey},
    {"OMPI_MCA_pml", pml},
    {"OMPI_MCA_btl", btl},
    {"OMPI_MCA_btl_tcp_if_include", mca_interfaces},
    {"OMPI_MCA_btl_tcp_if_exclude", mca_interfaces},
    {"OMPI_MCA_oob_tcp_if_include", mca_interfaces},
    {"OMPI_MCA_oob_tcp_if_exclude", mca_interfaces},
    {"PRTE_MCA_prte_if_include", mca_interfaces},
    {"GLOO_SOCKET_IFNAME", mca_interfaces},
    {"TP_SOCKET_IFNAME", mca_interfaces},
    {"FI_TCP_IFACE", mca_interfaces},
    {"FI_PROVIDER", provider},
};
const size_t im_env_rules_mpi_count = IM_COUNT_OF(im_env_rules_mpi);

/* UCX_NET_DEVICES and NCCL_IB_HCA take different ports: mostly one was forgotten. */
static void two_lists(im_env_case *c)
{
    const char *devices = im_env_text(c, "UCX_NET_DEVICES");
    if (!devices || *devices == '^' || strpbrk(devices, "*[?") || !im_env_text(c, "NCCL_IB_HCA") || !c->nchosen)
        return;
    names l = list_of(c, devices);
    size_t same = 0, ports = 0;
    for (size_t i = 0; i < l.n; i++) {
        const char *colon = strchr(l.one[i], ':');
        const im_env_port *p = colon ? find_port(c->f, l.one[i], (size_t)(colon - l.one[i]), atoi(colon + 1)) : NULL;
        ports += p != NULL;
        for (size_t k = 0; p && k < c->nchosen; k++)
            same += c->chosen[k] == p;
    }
    if (ports && same < ports)
        im_env_say(c, IM_ENV_NOTE, "lists-differ", im_env_used(c->set, "UCX_NET_DEVICES"),
                   "%zu of its %zu RDMA ports are not among those of NCCL_IB_HCA", ports - same, ports);
}

void im_env_rules_mpi_whole(im_env_case *c)
{
    two_lists(c);
    im_env_item *pml_item = im_env_used(c->set, "OMPI_MCA_pml"), *t = im_env_used(c->set, "UCX_TLS");
    if (pml_item && t && pml_item->value && t->value && !strcmp(pml_item->value, "ob1"))
        im_env_say(c, IM_ENV_NOTE, "ucx-unused", t, "MPI does not use UCX with pml ob1");
    int64_t gid;
    const char *ucx = im_env_text(c, "UCX_IB_GID_INDEX");
    if (ucx && strcasecmp(ucx, "auto") && im_env_is_set(c, "NCCL_IB_GID_INDEX") && im_env_int(c, "NCCL_IB_GID_INDEX", &gid) && gid >= 0 &&
        im_env_nccl_int(ucx).value != gid)
        im_env_say(c, IM_ENV_WARN, "gid-two", im_env_used(c->set, "UCX_IB_GID_INDEX"),
                   "NCCL_IB_GID_INDEX is %lld: at least one of the two is wrong on the same ports", (long long)gid);
}
