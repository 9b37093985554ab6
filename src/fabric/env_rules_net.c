/* NCCL besides verbs: interfaces and sockets, the network's name, distances, what is told, buffers and algorithms. */
#include "fabric/env_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- NCCL_SOCKET_IFNAME ------------------------------------------------------------------------------------ */

static bool begins_any(const char *name, const char *const *with, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strncmp(name, with[i], strlen(with[i])))
            return true;
    return false;
}

static const char *poor_interface(const im_env_net *n)
{
    static const char *const inner[] = {"docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "lxc", "kube", "nodelocaldns", "podman"};
    static const char *const tunnel[] = {"ip6tnl", "tunl", "sit", "gre", "tun", "tap", "wg", "dummy"};
    if (n->loopback || !strcmp(n->name, "lo"))
        return "the loopback, which reaches no other node";
    if (begins_any(n->name, inner, IM_COUNT_OF(inner)))
        return "a bridge or pair of this host's containers, which other nodes mostly cannot reach";
    if (begins_any(n->name, tunnel, IM_COUNT_OF(tunnel)))
        return "a tunnel";
    return NULL;
}

static void name_interfaces(const im_env_facts *f, im_str *out)
{
    size_t shown = 0;
    for (size_t i = 0; i < f->nnet; i++)
        if (!f->net[i].loopback && f->net[i].up != 0 && shown++ < 8)
            im_str_printf(out, "%s%s", out->len ? ", " : "", f->net[i].name);
    if (shown > 8)
        im_str_printf(out, " and %zu more", shown - 8);
}

static void absent_interface(im_env_case *c, im_env_item *x, const im_env_list *l)
{
    im_str has = {0}, down = {0};
    name_interfaces(c->f, &has);
    for (size_t i = 0; i < c->f->nnet; i++)
        if (im_env_nccl_list_takes(l, c->f->net[i].name, -1))
            im_str_printf(&down, "%s%s", down.len ? ", " : "", c->f->net[i].name);
    im_env_finding *f;
    if (down.len)
        f = im_env_say(c, IM_ENV_FAIL, "interface-down", x, "it fits only %s, which is down or has no address: initialisation fails",
                       im_str_text(&down));
    else
        f = im_env_say(c, c->rdma_judged ? IM_ENV_FAIL : IM_ENV_UNKNOWN, "interface-absent", x,
                       "it fits no interface of this machine (it has %s): initialisation fails with \"Bootstrap : no socket interface found\"",
                       has.len ? im_str_text(&has) : "none that is up");
    const im_env_net *own[1];
    if (im_env_nccl_interfaces(c->f, NULL, own, 1) && !poor_interface(own[0]))
        im_env_fix(c, f, "unset %s (NCCL takes %s by itself), or %s==%s", x->name, own[0]->name, x->name, own[0]->name);
    im_str_free(&has);
    im_str_free(&down);
}

static void judge_interfaces(im_env_case *c, im_env_item *x, const im_env_list *l)
{
    const im_env_net *got[16];
    size_t n = im_env_nccl_interfaces(c->f, x->value, got, IM_COUNT_OF(got));
    if (!n) {
        absent_interface(c, x, l);
        return;
    }
    const char *poor = poor_interface(got[0]);
    im_str names = {0};
    for (size_t i = 0; i < n && i < 8; i++)
        im_str_printf(&names, "%s%s", i ? ", " : "", got[i]->name);
    if (poor) {
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "interface-poor", x, "the first that it fits is %s: %s%s", got[0]->name, poor,
                                       l->exclude && (got[0]->loopback || !strcmp(got[0]->name, "lo"))
                                           ? ". The ^ holds for the whole list, and what it does not name may be taken"
                                           : "");
        if (l->exclude)
            im_env_fix(c, f, "%s=^lo,docker,veth,br-%s%s", x->name, l->n ? "," : "", l->n ? x->value + 1 + l->exact : "");
    } else if (!l->exclude && !l->exact && n > (size_t)l->n) {
        im_env_fix(c,
                   im_env_say(c, IM_ENV_WARN, "interface-prefix", x,
                              "without = a name is the beginning of names: it fits %s; the bootstrap takes the first", im_str_text(&names)),
                   "%s==%s", x->name, got[0]->name);
    } else if (!l->exclude && !l->exact) {
        im_env_fix(c,
                   im_env_say(c, IM_ENV_NOTE, "interface-no-exact", x,
                              "fits %s here, and must fit on every node; without = it also fits longer names (eth0: eth01, bond0: bond0.100)",
                              im_str_text(&names)),
                   "%s==%s", x->name, x->value);
    } else {
        im_env_say(c, IM_ENV_OK, "interface", x, "fits %s here, and must fit on every node", im_str_text(&names));
    }
    im_str_free(&names);
}

static void interfaces(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    im_env_list l;
    if (strlen(x->value) <= 1) {
        im_env_say(c, IM_ENV_WARN, "interface-short", x, "one character alone is ignored: NCCL chooses by itself");
        return;
    }
    im_env_nccl_list(x->value, &l);
    im_env_list_faults(c, x, &l);
    if (c->machine && c->f->nnet && !l.turned)
        judge_interfaces(c, x, &l);
    else if (!l.turned)
        im_env_say(c, IM_ENV_UNKNOWN, "machine-unknown", x,
                   "%s must be up, with an address that the others reach, on every node, or initialisation fails; whether it is depends on the "
                   "machines (--root "
                   "BUNDLE)%s. It is used for the bootstrap also when data goes over InfiniBand",
                   l.exclude ? "what is left" : x->value,
                   l.exact || l.exclude ? "" : ". Without = it is the beginning of names: eth0 also fits eth01");
}

static void socket_threads(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t threads = 1, socks = 1;
    im_env_int(c, "NCCL_SOCKET_NTHREADS", &threads);
    im_env_int(c, "NCCL_NSOCKS_PERTHREAD", &socks);
    (void)v;
    threads = threads < 1 ? 1 : threads;
    socks = socks < 1 ? 1 : socks;
    if (threads <= 64 && socks <= 64 && threads * socks > 64)
        im_env_say(c, IM_ENV_FAIL, "sockets-many", x,
                   "%lld threads x %lld connections are more than the 64 that NCCL allows: it warns and takes fewer", (long long)threads,
                   (long long)socks);
}

/* ---- NCCL_NET ------------------------------------------------------------------------------------------------ */

static void net(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (!strcasecmp(x->value, "IB")) {
        if (c->machine && c->rdma_judged && !c->nport)
            im_env_say(c, IM_ENV_FAIL, "net-no-rdma", x, "this machine has no active RDMA port: initialisation fails");
        else
            im_env_say(c, IM_ENV_OK, "net-guard", x,
                       "a guard: where InfiniBand and RoCE cannot be used initialisation fails, and no job runs over TCP unnoticed");
    } else if (!strcasecmp(x->value, "Socket")) {
        if (c->nport)
            im_env_fix(c,
                       im_env_say(c, IM_ENV_FAIL, "net-socket", x, "TCP sockets, although this machine has %zu active RDMA port%s", c->nport,
                                  c->nport > 1 ? "s" : ""),
                       "NCCL_NET=IB");
        else
            im_env_say(c, IM_ENV_NOTE, "net-socket", x, "TCP sockets, also where there is InfiniBand or RoCE");
    } else {
        im_env_say(c, IM_ENV_NOTE, "net-plugin", x,
                   "a plug-in's own name: initialisation fails where its library (libnccl-net*.so) is not found or names itself otherwise");
    }
}

/* ---- distances ------------------------------------------------------------------------------------------------- */

static const char *level_fault(im_env_case *c, im_env_item *x, int *level, bool *legacy)
{
    *level = im_env_nccl_level(x->value, legacy);
    if (*level >= 0)
        return im_env_level_names[*level];
    if (!strcmp(x->name, "NCCL_NET_MERGE_LEVEL") && !strcmp(x->value, "PORT"))
        return NULL;
    im_env_finding *f =
        im_env_say(c, IM_ENV_FAIL, "level", x,
                   "\"%s\" is no level (LOC, NVL, PIX, PXB, PHB, SYS; capitals, and nothing behind): NCCL ignores it without a word", x->value);
    for (int i = 0; i < IM_ENV_LEVELS; i++)
        if (!strcasecmp(x->value, im_env_level_names[i]))
            im_env_fix(c, f, "%s=%s", x->name, im_env_level_names[i]);
    return NULL;
}

static void gdr_machine(im_env_case *c, im_env_item *x, int level)
{
    size_t far = 0, needs = 0;
    const im_env_gpu *one = NULL;
    for (size_t i = 0; i < c->f->ngpu; i++) {
        const im_env_gpu *g = &c->f->gpu[i];
        if (g->nearest > level && g->nearest >= 0) {
            far++;
            one = one ? one : g;
        }
        needs += g->nearest > IM_ENV_PXB;
    }
    if (far) {
        im_env_finding *f =
            im_env_say(c, IM_ENV_WARN, "gdr-too-near", x,
                       "GPU %s is %s from its nearest NIC (%s): beyond this level, GPUDirect RDMA is off for %zu of %zu GPUs and their data goes "
                       "through host memory",
                       one->address, im_env_level_names[one->nearest], one->device, far, c->f->ngpu);
        if (one->nearest == IM_ENV_PHB)
            im_env_fix(c, f, "%s=PHB", x->name);
    } else if (level > IM_ENV_PXB && c->f->ngpu && !needs) {
        im_env_say(c, IM_ENV_NOTE, "gdr-no-need", x, "no GPU of this machine is further than PXB from its nearest NIC: the default does");
    }
}

static void gdr_level(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    int level;
    bool legacy;
    const char *name = level_fault(c, x, &level, &legacy);
    if (!name)
        return;
    if (legacy)
        x->reads = name;
    int c2c_rule = im_env_from(c, 22900);
    if (legacy)
        im_env_fix(c, im_env_say(c, IM_ENV_NOTE, "level-number", x, "a number of the old table: %s. NCCL's manual discourages numbers", name),
                   "%s=%s", x->name, name);
    if (level == IM_ENV_LOC)
        im_env_fix(c, im_env_say(c, IM_ENV_WARN, "gdr-off", x, "LOC: GPUDirect RDMA is off; all data goes through host memory"),
                   "unset NCCL_NET_GDR_LEVEL");
    if (level < IM_ENV_P2C && c->c2c == 1 && c2c_rule != 0) {
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_FAIL, "gdr-c2c", x,
                       "GPU and CPU are linked here (C2C), where NCCL from 2.29 on takes P2C by itself: %s turns GPUDirect RDMA over that link off%s",
                       name, c2c_rule < 0 ? " (up to 2.28 it does not)" : ""),
            "unset NCCL_NET_GDR_LEVEL");
        return;
    }
    if (level == IM_ENV_PXB)
        im_env_fix(c,
                   im_env_say(c, IM_ENV_NOTE, "gdr-default", x, "PXB is the default%s",
                              c->c2c == 0 || c2c_rule == 0 ? ": the line changes nothing"
                                                           : ", but on machines with C2C (Grace) from 2.29 on, where it turns "
                                                             "GPUDirect RDMA over that link off"),
                   "unset NCCL_NET_GDR_LEVEL");
    if (level == IM_ENV_SYS)
        im_env_say(c, IM_ENV_WARN, "gdr-far", x, "SYS: GPUDirect RDMA also across the link between sockets, which is mostly slower than host memory");
    if (level != IM_ENV_LOC)
        gdr_machine(c, x, level);
}

static void p2p_level(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    int level;
    bool legacy;
    const char *name = level_fault(c, x, &level, &legacy);
    if (!name)
        return;
    if (legacy)
        x->reads = name;
    if (legacy)
        im_env_fix(c, im_env_say(c, IM_ENV_NOTE, "level-number", x, "a number of the old table: %s. NCCL's manual discourages numbers", name),
                   "%s=%s", x->name, name);
    if (level == IM_ENV_LOC && strstr(x->name, "P2P"))
        im_env_say(c, IM_ENV_WARN, "p2p-off", x, "LOC: no direct copies between GPUs, NVLink included");
}

static void p2p_disable(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v == 1)
        im_env_fix(
            c,
            im_env_say(
                c, IM_ENV_WARN, "p2p-off", x,
                "no direct copies between GPUs, NVLink included: data goes through shared memory of the host. A leftover of a search for ACS or "
                "IOMMU faults?"),
            "unset NCCL_P2P_DISABLE");
    else if (v != 0)
        im_env_say(c, IM_ENV_WARN, "p2p-number", x, "only 1 switches it off: this does nothing");
}

static void shm_disable(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t p2p = 0;
    if (v == 0)
        return;
    im_env_int(c, "NCCL_P2P_DISABLE", &p2p);
    im_env_fix(
        c,
        im_env_say(c, IM_ENV_WARN, "shm-off", x, "GPUs of one node that have no direct path use the network in place of shared memory%s",
                   p2p == 1 ? ": with NCCL_P2P_DISABLE=1 that is all of them" : ". Too small a /dev/shm is made larger (--shm-size), not avoided"),
        "unset NCCL_SHM_DISABLE");
}

/* ---- what is told ------------------------------------------------------------------------------------------------ */

static void debug(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (!strcasecmp(x->value, "WARN") || !strcasecmp(x->value, "VERSION")) {
        im_env_finding *f =
            im_env_say(c, IM_ENV_NOTE, "debug-quiet", x,
                       "right for running, wrong for finding out: that NCCL fell back to TCP, GPUDirect RDMA off, the NICs chosen are told at "
                       "INFO alone%s",
                       im_env_is_set(c, "NCCL_NET") ? "" : ". NCCL_NET=IB makes the fall-back an error");
        im_env_fix(c, f, "once, to look: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV NCCL_DEBUG_FILE=/tmp/nccl.%%h.%%p.log");
    } else if (!strcasecmp(x->value, "INFO")) {
        im_env_say(c, IM_ENV_NOTE, "debug-info", x, "right for a start that is looked at; in production hundreds of lines a rank%s",
                   im_env_is_set(c, "NCCL_DEBUG_FILE") ? "" : ", those of all ranks mixed (NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log parts them)");
        if (!im_env_is_set(c, "NCCL_DEBUG_SUBSYS"))
            im_env_say(c, IM_ENV_NOTE, "debug-no-net", x, "by itself it does not tell of the network: NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV does");
    } else if (!strcasecmp(x->value, "TRACE")) {
        im_env_say(c, IM_ENV_NOTE, "debug-trace", x, "only a library built with TRACE=1 tells more than INFO");
    } else if (!strcasecmp(x->value, "ABORT")) {
        im_env_say(c, IM_ENV_WARN, "debug-abort", x, "the process aborts at the first warning");
    }
}

static bool tells_info(const im_env_case *c)
{
    const char *d = im_env_text(c, "NCCL_DEBUG");
    return d && (!strcasecmp(d, "INFO") || !strcasecmp(d, "TRACE") || !strcasecmp(d, "ABORT"));
}

static void subsystems(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (!tells_info(c) && !(im_env_is_set(c, "NCCL_DEBUG") && !im_env_text(c, "NCCL_DEBUG")))
        im_env_say(c, IM_ENV_NOTE, "debug-unused", x, "without effect unless NCCL_DEBUG is INFO");
}

static void debug_file(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (!strstr(x->value, "%p"))
        im_env_fix(c,
                   im_env_say(c, IM_ENV_WARN, "debug-file-shared", x, "without %%p the ranks of a host write over each other's file%s",
                              strstr(x->value, "%h") ? "" : ", and without %h those of all hosts on a shared file system"),
                   "NCCL_DEBUG_FILE=%s.%%h.%%p", x->value);
    if (*x->value == '~')
        im_env_say(c, IM_ENV_FAIL, "path-tilde", x, "the ~ is not expanded: no such file can be made");
}

static void path(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (*x->value == '~')
        im_env_say(c, IM_ENV_FAIL, "path-tilde", x, "the ~ is not expanded: no such file");
    else if (c->machine && *x->value == '/' && c->rdma_judged) {
        char *full = im_arena_printf(c->set->arena, "%s%s", strcmp(c->f->root, "/") ? c->f->root : "", x->value);
        if (full && !im_path_exists(full))
            im_env_say(c, IM_ENV_WARN, "path-absent", x, "there is no such file on this machine");
    }
}

/* ---- buffers, algorithms --------------------------------------------------------------------------------------------- */

static void buffer_size(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v > 0 && v < 64 << 10)
        im_env_say(c, IM_ENV_FAIL, "buffer-small", x,
                   "%lld bytes: a buffer below 64 KiB makes every collective crawl; suffixes are not read, 4 MiB is 4194304", (long long)v);
}

static void protocols(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    if (*x->value != '^' && strcasestr(x->value, "LL128"))
        im_env_say(c, IM_ENV_WARN, "proto-ll128", x,
                   "LL128 forced where GPUs or the way between them do not keep 128-byte writes whole gives wrong data: NCCL uses it by itself where "
                   "it is safe");
}

static void channels(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t least, most;
    if (strstr(x->name, "CTAS") && v > 32 && v <= 64 && im_env_from(c, 22500) == 0)
        im_env_say(c, IM_ENV_FAIL, "int-range", x, "before 2.25 the most is 32");
    if (!strncmp(x->name, "NCCL_MIN_", 9)) {
        char other[64];
        snprintf(other, sizeof other, "NCCL_MAX_%s", x->name + 9);
        if (im_env_is_set(c, other) && im_env_int(c, other, &most) && im_env_int(c, x->name, &least) && least > most)
            im_env_say(c, IM_ENV_FAIL, "min-max", x, "more than %s=%lld", other, (long long)most);
    }
}

static void collnet(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v == 1)
        im_env_say(c, IM_ENV_NOTE, "collnet", x,
                   "needs the SHARP plug-in, sharp_am in the fabric and InfiniBand switches with SHARP; without them NCCL goes on as before");
}

static void affinity(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v == 1)
        im_env_say(c, IM_ENV_NOTE, "affinity", x, "helps where the launcher binds ranks to the wrong CPUs; better is to bind them rightly");
}

static void nets_policy(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    const char *v = x->value;
    if (strcasecmp(v, "AUTO") && strcasecmp(v, "ALL") && (strncasecmp(v, "MAX:", 4) || im_env_nccl_int(v + 4).value < 1))
        im_env_say(c, IM_ENV_FAIL, "choice", x, "\"%s\" is none of AUTO, ALL, MAX:N", v);
}

const im_env_rule im_env_rules_net[] = {
    {"NCCL_SOCKET_IFNAME", interfaces},
    {"NCCL_SOCKET_NTHREADS", socket_threads},
    {"NCCL_NSOCKS_PERTHREAD", socket_threads},
    {"NCCL_NET", net},
    {"NCCL_NET_GDR_LEVEL", gdr_level},
    {"NCCL_IB_GDR_LEVEL", gdr_level},
    {"NCCL_P2P_LEVEL", p2p_level},
    {"NCCL_NET_MERGE_LEVEL", p2p_level},
    {"NCCL_P2P_DISABLE", p2p_disable},
    {"NCCL_SHM_DISABLE", shm_disable},
    {"NCCL_DEBUG", debug},
    {"NCCL_DEBUG_SUBSYS", subsystems},
    {"NCCL_DEBUG_FILE", debug_file},
    {"NCCL_TOPO_FILE", path},
    {"NCCL_GRAPH_FILE", path},
    {"NCCL_CONF_FILE", path},
    {"NCCL_BUFFSIZE", buffer_size},
    {"NCCL_PROTO", protocols},
    {"NCCL_MIN_NCHANNELS", channels},
    {"NCCL_MIN_CTAS", channels},
    {"NCCL_MAX_CTAS", channels},
    {"NCCL_COLLNET_ENABLE", collnet},
    {"NCCL_IGNORE_CPU_AFFINITY", affinity},
    {"NCCL_NETDEVS_POLICY", nets_policy},
};
const size_t im_env_rules_net_count = IM_COUNT_OF(im_env_rules_net);

/* ---- several together ------------------------------------------------------------------------------------------------------ */

static bool any_nccl(const im_env_case *c)
{
    for (size_t i = 0; i < c->set->n; i++)
        if (!strncmp(c->set->item[i]->name, "NCCL_", 5))
            return true;
    return false;
}

void im_env_rules_net_whole(im_env_case *c)
{
    int64_t off = 0;
    bool uses = any_nccl(c);
    if (c->nport && uses && c->f->verbs == 0)
        im_env_fix(
            c,
            im_env_evidence(
                c,
                im_env_say(c, IM_ENV_WARN, "no-verbs-device", NULL,
                           "%zu RDMA port%s active, but there is no /dev/infiniband/uverbs*: programs cannot use %s, whatever the variables say",
                           c->nport, c->nport > 1 ? "s are" : " is", c->nport > 1 ? "them" : "it"),
                "%s/dev/infiniband", strcmp(c->f->root, "/") ? c->f->root : ""),
            "a container: --device /dev/infiniband, or the cluster's RDMA device plug-in");
    if (c->nport && uses && !im_env_is_set(c, "NCCL_NET") && !(im_env_is_set(c, "NCCL_IB_DISABLE") && im_env_int(c, "NCCL_IB_DISABLE", &off) && off))
        im_env_fix(c,
                   im_env_say(c, IM_ENV_NOTE, "no-guard", NULL,
                              "NCCL_NET is not set: when RDMA cannot be used (a port down, no /dev/infiniband in a container) the job runs over TCP, "
                              "and NCCL warns "
                              "of nothing"),
                   "NCCL_NET=IB (or the name of the plug-in that is used)");
    if (c->nport && uses && !im_env_is_set(c, "NCCL_IB_HCA") && c->nib && c->neth) {
        im_str names = {0};
        im_env_name_ports(c->port, c->nport, &names);
        im_env_say(c, IM_ENV_WARN, "hca-mixed-links", NULL,
                   "NCCL_IB_HCA is not set and %zu InfiniBand and %zu RoCE ports are active (%s): NCCL takes all and cannot connect one with the "
                   "other; `imece "
                   "fabric env suggest` prints a list",
                   c->nib, c->neth, im_str_text(&names));
        im_str_free(&names);
    }
    const im_env_net *got[1];
    if (c->machine && c->f->nnet && uses && !im_env_is_set(c, "NCCL_SOCKET_IFNAME") && im_env_nccl_interfaces(c->f, NULL, got, 1)) {
        const char *poor = poor_interface(got[0]);
        if (poor && c->rdma_judged)
            im_env_say(c, IM_ENV_WARN, "interface-poor", NULL, "NCCL_SOCKET_IFNAME is not set, and what NCCL takes by itself is %s: %s", got[0]->name,
                       poor);
    }
}
