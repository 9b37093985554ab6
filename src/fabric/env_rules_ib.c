/* NCCL on InfiniBand and RoCE: which HCAs, which GID, how long to wait, how many queue pairs, which class of service.
 * Sources: NCCL's user guide 2.30 (environment variables, troubleshooting), its transport/net_ib, mlx5_ib's qp.c, RFC 2474 and 3168. */
#include "fabric/env_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *link_name(im_env_link l)
{
    return l == IM_ENV_LINK_IB ? "InfiniBand" : l == IM_ENV_LINK_ETH ? "RoCE" : "unknown link";
}

static const char *root_of(const im_env_case *c)
{
    return c->f->root && strcmp(c->f->root, "/") ? c->f->root : "";
}

static const char *seconds(char *buf, size_t n, double s)
{
    if (s < 1)
        snprintf(buf, n, "%.2g s", s);
    else if (s < 100)
        snprintf(buf, n, "%.3g s", s);
    else
        snprintf(buf, n, "%.0f s (%.1f min)", s, s / 60);
    return buf;
}

/* ---- NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT ------------------------------------------------------------------ */

static double try_seconds(int64_t n)
{
    return 4.096e-6 * (double)((int64_t)1 << n);
}

static void timeout(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t retry = 7;
    char one[40], all[40], dog[40], dflt[40];
    const im_env_step *s = im_env_at(x->name, c->nccl);
    if (v <= 0 || v > 31) {
        im_env_say(c, IM_ENV_FAIL, "timeout-endless", x, "0, and 32 and more, mean no timeout: a lost peer is never noticed. Useful: 18 to 23");
        return;
    }
    if (!im_env_int(c, "NCCL_IB_RETRY_CNT", &retry) || retry < 0 || retry > 7)
        retry = 7;
    double total = try_seconds(v) * (double)retry;
    seconds(one, sizeof one, try_seconds(v));
    seconds(all, sizeof all, total);
    if (total > c->o.watchdog_s)
        im_env_say(
            c, IM_ENV_WARN, "timeout-watchdog", x,
            "%s a try, %s with %lld tries: longer than the %s after which PyTorch ends a collective, so that the NIC's error (status 12, with the "
            "peer's address) never comes",
            one, all, (long long)retry, seconds(dog, sizeof dog, c->o.watchdog_s));
    else if (v >= 25)
        im_env_say(c, IM_ENV_WARN, "timeout-long", x, "%s a try, %s in all: faults are noticed too late", one, all);
    else if (s && s->is_number && v > s->number)
        im_env_say(
            c, IM_ENV_NOTE, "timeout", x,
            "%s a try, %s with %lld tries, where the default %lld gives %s: rides out a link that flaps or a route that changes on a large or lossy "
            "fabric; a dead peer is found that much later",
            one, all, (long long)retry, (long long)s->number, seconds(dflt, sizeof dflt, try_seconds(s->number) * (double)retry));
    else if (s && s->is_number && v < s->number)
        im_env_say(c, total < 5 ? IM_ENV_WARN : IM_ENV_NOTE, "timeout-short", x,
                   "%s a try, %s with %lld tries, less than the default %lld gives (%s): a short congestion or a link that flaps ends the job with "
                   "status 12",
                   one, all, (long long)retry, (long long)s->number, seconds(dflt, sizeof dflt, try_seconds(s->number) * (double)retry));
}

static void retry_count(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v > 7)
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_FAIL, "retry-bits", x, "the NIC's field has three bits: 7 is the most; a longer wait is made with NCCL_IB_TIMEOUT"),
            "NCCL_IB_RETRY_CNT=7");
    else if (v >= 0 && v < 3)
        im_env_say(c, IM_ENV_WARN, "retry-few", x, "so few tries end the job at the first lost packets");
}

/* ---- NCCL_IB_HCA ------------------------------------------------------------------------------------------- */

static double fastest(const im_env_port *const *port, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = port[i]->gbps > most ? port[i]->gbps : most;
    return most;
}

/* "=mlx5_0,mlx5_1": exact names of those of this link and at least this rate */
static void exact_list(const im_env_case *c, const im_env_port *const *port, size_t n, im_env_link link, double rate, im_str *out)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        size_t ports = 0;
        if (port[i]->link != link || port[i]->gbps < rate)
            continue;
        for (size_t k = 0; k < c->f->nport; k++)
            ports += !strcmp(c->f->port[k].device, port[i]->device);
        im_str_printf(out, "%s%s", found++ ? "," : "=", port[i]->device);
        if (ports > 1)
            im_str_printf(out, ":%d", port[i]->port);
    }
}

/* The link layer with the most bandwidth. */
static im_env_link main_link(const im_env_port *const *port, size_t n)
{
    double ib = 0, eth = 0;
    for (size_t i = 0; i < n; i++)
        *(port[i]->link == IM_ENV_LINK_IB ? &ib : &eth) += port[i]->gbps > 0 ? port[i]->gbps : 1;
    return ib >= eth ? IM_ENV_LINK_IB : IM_ENV_LINK_ETH;
}

static void hca_mixed(im_env_case *c, im_env_item *x)
{
    size_t ib = 0, eth = 0;
    double most = fastest(c->chosen, c->nchosen);
    im_str names = {0}, list = {0}, slow = {0};
    for (size_t i = 0; i < c->nchosen; i++) {
        ib += c->chosen[i]->link == IM_ENV_LINK_IB;
        eth += c->chosen[i]->link == IM_ENV_LINK_ETH;
        if (c->chosen[i]->gbps > 0 && c->chosen[i]->gbps < most)
            im_str_printf(&slow, "%s%s:%d (%g Gb/s)", slow.len ? ", " : "", c->chosen[i]->device, c->chosen[i]->port, c->chosen[i]->gbps);
    }
    im_env_link link = main_link(c->chosen, c->nchosen);
    exact_list(c, c->chosen, c->nchosen, link, most, &list);
    im_env_name_ports(c->chosen, c->nchosen, &names);
    if (ib && eth)
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_FAIL, "hca-mixed-links", x,
                       "it takes %zu InfiniBand and %zu RoCE ports (%s): NCCL cannot connect one with the other and warns of incompatible devices",
                       ib, eth, im_str_text(&names)),
            "NCCL_IB_HCA%s%s", list.len ? "=" : "", im_str_text(&list));
    else if (slow.len)
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_WARN, "hca-slow-port", x,
                       "it takes ports of unequal rate: %s beside others of %g Gb/s. Slower ones are mostly for storage or the front end, and the "
                       "slowest sets the pace of a collective",
                       im_str_text(&slow), most),
            "NCCL_IB_HCA=%s", im_str_text(&list));
    else if (x && c->nchosen == c->nport && c->nport)
        im_env_say(c, IM_ENV_NOTE, "hca-all", x, "it takes all %zu active ports of this machine, as NCCL does when it is unset", c->nport);
    im_str_free(&names);
    im_str_free(&list);
    im_str_free(&slow);
}

/* Entries that fit nothing, or more than their own name. */
static void hca_entries(im_env_case *c, im_env_item *x, const im_env_list *l)
{
    for (int e = 0; e < l->n; e++) {
        size_t hits = 0, down = 0, exact = 0;
        im_str more = {0};
        for (size_t i = 0; i < c->f->nport; i++) {
            const im_env_port *p = &c->f->port[i];
            if (!im_env_nccl_entry_matches(l, e, p->device, p->port))
                continue;
            hits++;
            down += p->active == 0;
            if (!strcmp(p->device, l->entry[e].name))
                exact++;
            else
                im_str_printf(&more, "%s%s", more.len ? ", " : "", p->device);
        }
        if (!hits && c->rdma_judged)
            im_env_say(c, l->exclude ? IM_ENV_WARN : IM_ENV_FAIL, "hca-absent", x, "\"%s\" fits no RDMA device of this machine", l->entry[e].name);
        else if (hits && hits == down && !l->exclude)
            im_env_say(c, IM_ENV_WARN, "hca-down", x, "\"%s\" fits only ports that are not active: they are left out", l->entry[e].name);
        if (exact && more.len && !l->exclude)
            im_env_say(c, IM_ENV_WARN, "hca-prefix", x, "without = a name is the beginning of names: \"%s\" also takes %s", l->entry[e].name,
                       im_str_text(&more));
        im_str_free(&more);
    }
}

static void hca(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    im_env_list l;
    im_env_nccl_list(x->value, &l);
    im_env_list_faults(c, x, &l);
    if (l.turned || !c->machine || !c->f->nport) {
        if (!l.exact && !l.exclude)
            im_env_fix(
                c,
                im_env_say(
                    c, IM_ENV_NOTE, "hca-no-exact", x,
                    "without = each name is the beginning of names: mlx5 takes every port of all mlx5 NICs, those of storage and front end too, "
                    "and mlx5_1 takes mlx5_10 too"),
                "NCCL_IB_HCA==mlx5_0,mlx5_1,... (the NICs of the training fabric)");
        if (c->o.here && c->machine && !l.turned)
            im_env_say(c, IM_ENV_WARN, "hca-none-here", x, "this machine has no RDMA device: NCCL goes to TCP sockets");
        else if (!c->f->nport)
            im_env_say(c, IM_ENV_UNKNOWN, "machine-unknown", x, "which NICs that takes depends on the machine: --root BUNDLE examines one");
        return;
    }
    hca_entries(c, x, &l);
    if (!c->nchosen && c->nport)
        im_env_say(c, IM_ENV_FAIL, "hca-nothing-left", x,
                   "none of the %zu active ports is left: NCCL says \"NET/IB : No device found\" at INFO and goes to TCP sockets", c->nport);
    hca_mixed(c, x);
    if (!l.exact && !l.exclude && x->verdict < IM_ENV_WARN) {
        im_str list = {0};
        exact_list(c, c->chosen, c->nchosen, main_link(c->chosen, c->nchosen), 0, &list);
        im_env_fix(c,
                   im_env_say(c, IM_ENV_NOTE, "hca-no-exact", x,
                              "without = each name is the beginning of names; a NIC that is added later may fit too. NCCL's manual recommends the ="),
                   "NCCL_IB_HCA=%s", im_str_text(&list));
        im_str_free(&list);
    }
}

/* ---- NCCL_IB_GID_INDEX ------------------------------------------------------------------------------------------ */

/* The index of the RoCE v2 GID with an IPv4 address, or a global IPv6 one; -1: none. */
static int good_gid(const im_env_port *p)
{
    int v6 = -1;
    for (size_t i = 0; i < p->ngid; i++) {
        const im_env_gid *g = &p->gid[i];
        if (g->version != 2 || im_env_gid_is_link_local(g))
            continue;
        if (im_env_gid_is_v4(g))
            return g->index;
        if (v6 < 0)
            v6 = g->index;
    }
    return v6;
}

static const char *gid_fault(const im_env_port *p, int64_t index)
{
    const im_env_gid *g = index < 0 || index > 65535 ? NULL : im_env_gid_at(p, (int)index);
    if (!g)
        return "is empty: the connection fails (ibv_modify_qp: Invalid argument)";
    if (g->version == 1)
        return "is RoCE v1: it is not routed, and no peer with v2 can be reached";
    if (im_env_gid_is_link_local(g))
        return "is link-local: it reaches no other subnet";
    return NULL;
}

static void gid_on_ports(im_env_case *c, im_env_item *x, int64_t v)
{
    size_t right = 0, judged = 0;
    bool same = true, one_index = true;
    int good = -1;
    for (size_t i = 0; i < c->nuse; i++) {
        const im_env_port *p = c->use[i];
        if (p->link != IM_ENV_LINK_ETH || !p->ngid)
            continue;
        int mine = good_gid(p);
        judged++;
        one_index &= good < 0 || mine == good;
        good = mine;
        same &= im_env_nccl_gid(p, false, 2) == v;
        const char *fault = gid_fault(p, v);
        right += !fault;
        if (!fault)
            continue;
        char text[64] = "";
        const im_env_gid *g = v < 0 || v > 65535 ? NULL : im_env_gid_at(p, (int)v);
        if (g)
            im_env_gid_text(g, text);
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "gid-wrong", x, "GID %lld of %s:%d%s%s%s %s", (long long)v, p->device, p->port, g ? " (" : "",
                                       text, g ? ")" : "", fault);
        im_env_evidence(c, f, "%s/sys/class/infiniband/%s/ports/%d/gids/%lld", root_of(c), p->device, p->port, (long long)v);
        if (im_env_from(c, 22100) != 0)
            im_env_fix(c, f, "unset NCCL_IB_GID_INDEX");
        else if (mine >= 0)
            im_env_fix(c, f, "NCCL_IB_GID_INDEX=%d", mine);
    }
    if (!judged) {
        im_env_say(c, IM_ENV_UNKNOWN, "machine-unknown", x,
                   "the GID tables of the RoCE ports cannot be read here: what index %lld holds is not known", (long long)v);
        return;
    }
    if (!one_index)
        im_env_say(c, IM_ENV_FAIL, "gid-differs", x, "the right index is not the same on all ports of this machine: no single number can be right");
    if (right != judged)
        return;
    if (im_env_from(c, 22100) == 0)
        im_env_say(c, IM_ENV_OK, "gid-right", x,
                   "right here: RoCE v2 on %zu of %zu ports; the default before 2.21 is index 0, mostly a link-local GID of RoCE v1", right, judged);
    else
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_WARN, "gid-pinned", x,
                       "%s on this machine, but from 2.21 on NCCL chooses for each port, and its manual says not to set it: the index moves when "
                       "addresses are set anew, and differs in containers, virtual functions and bonds%s",
                       same ? "the one that NCCL would choose" : "a usable one", c->nccl_known ? "" : " (before 2.21 it is needed)"),
            "unset NCCL_IB_GID_INDEX");
}

static void gid_index(im_env_case *c, im_env_item *x, int64_t v)
{
    int dynamic = im_env_from(c, 22100);
    if (v == -1 && dynamic != 0)
        return;
    if (c->machine && c->nport && c->nib && !c->neth)
        return; /* said already: no effect */
    if (v == -1) {
        im_env_say(c, IM_ENV_FAIL, "gid-wrong", x, "-1 means \"choose\" from 2.21 on only; before, it is no index");
        return;
    }
    if (c->machine && c->neth) {
        gid_on_ports(c, x, v);
        return;
    }
    if (dynamic == 0)
        im_env_say(
            c, IM_ENV_UNKNOWN, "machine-unknown", x,
            "needed before 2.21 on RoCE (the default 0 is RoCE v1), and right when index %lld is the RoCE v2 IPv4 GID of every NIC on every host: "
            "show_gids tells, or --root BUNDLE",
            (long long)v);
    else
        im_env_fix(
            c,
            im_env_say(
                c, IM_ENV_WARN, "gid-pinned", x,
                "from 2.21 on NCCL chooses the GID for each port, and its manual says not to set it. It is ignored on InfiniBand. Index %lld %s%s",
                (long long)v,
                v == 3 ? "is RoCE v2 with IPv4 on a host with one IPv4 address, and something else in containers, virtual functions, bonds"
                       : "holds different things on different hosts",
                c->nccl_known ? "" : "; before 2.21 it is needed"),
            "unset NCCL_IB_GID_INDEX");
}

static void gid_choice(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t index;
    if (!strcmp(x->name, "NCCL_IB_ROCE_VERSION_NUM") && v == 1)
        im_env_say(c, IM_ENV_WARN, "roce-v1", x, "RoCE v1 is not routed: only peers in the same layer 2 network with v1 can be reached");
    if (!strcmp(x->name, "NCCL_IB_ADDR_RANGE") && !strchr(x->value, '/'))
        im_env_say(c, IM_ENV_FAIL, "range-no-slash", x, "a network needs its length (10.0.0.0/16): without it the variable is ignored");
    if (im_env_is_set(c, "NCCL_IB_GID_INDEX") && im_env_int(c, "NCCL_IB_GID_INDEX", &index) && index >= 0)
        im_env_say(c, IM_ENV_WARN, "gid-choice-unused", x, "not used while NCCL_IB_GID_INDEX=%lld is set", (long long)index);
}

/* ---- NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_SPLIT_DATA_ON_QPS -------------------------------------------------------- */

static void qps(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v < 2 || v > 128)
        return;
    if (c->machine && c->nib && !c->neth)
        im_env_fix(
            c,
            im_env_say(c, IM_ENV_WARN, "qps-infiniband", x,
                       "the ports here are InfiniBand, where adaptive routing spreads one queue pair over the paths: 1, the default, is right; more "
                       "queue pairs cost room in the NIC's cache"),
            "unset NCCL_IB_QPS_PER_CONNECTION");
    else if (c->machine && c->neth)
        im_env_say(c, IM_ENV_NOTE, "qps", x,
                   "helps where switches choose a path for each flow by hash (ECMP, bonds), as is usual on RoCE; %lld queue pairs a connection cost "
                   "room in the "
                   "NIC's cache. Without NCCL_IB_SPLIT_DATA_ON_QPS=1 whole messages go over them in turn",
                   (long long)v);
    else
        im_env_say(c, IM_ENV_NOTE, "qps", x,
                   "helps on RoCE where switches choose a path for each flow by hash (ECMP, bonds); on InfiniBand with adaptive routing the default "
                   "1 is right");
    if (v > 16)
        im_env_say(c, IM_ENV_WARN, "qps-many", x, "so many queue pairs crowd the NIC's cache: 2 to 8 are usual");
}

static void split(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t n = 1;
    bool known = im_env_int(c, "NCCL_IB_QPS_PER_CONNECTION", &n);
    if (known && n <= 1)
        im_env_say(c, IM_ENV_NOTE, "split-one-qp", x, "without effect: a connection has one queue pair (NCCL_IB_QPS_PER_CONNECTION is %s)",
                   im_env_is_set(c, "NCCL_IB_QPS_PER_CONNECTION") ? "1" : "not set");
    else if (v)
        im_env_say(c, IM_ENV_WARN, "split", x,
                   "each message is cut over %lld queue pairs: even load, but small messages become smaller ones and lose efficiency; the default "
                   "from 2.20 on "
                   "is 0, whole messages in turn",
                   (long long)n);
}

/* ---- traffic class, service level ------------------------------------------------------------------------------------ */

static const char *ecn_name(int64_t ecn)
{
    static const char *const name[] = {"not ECN-capable", "ECT(1)", "ECT(0)", "CE"};
    return name[ecn & 3];
}

/* Traffic class that gives the priority by the usual map (DSCP / 8): DSCP 8p+2, ECT(0); 106 for 3. */
static int usual_tc(int priority)
{
    return (8 * priority + 2) << 2 | 2;
}

static void tc_on_ports(im_env_case *c, im_env_item *x, int64_t v, int priority)
{
    bool known = false;
    for (size_t i = 0; i < c->nuse; i++) {
        const im_env_port *p = c->use[i];
        if (p->link != IM_ENV_LINK_ETH)
            continue;
        if (p->traffic_class >= 0 && p->traffic_class != v)
            im_env_evidence(c,
                            im_env_say(c, IM_ENV_FAIL, "tc-overridden", x,
                                       "%s:%d has a traffic class of its own, %d, which wins over what programs ask for", p->device, p->port,
                                       p->traffic_class),
                            "%s/sys/class/infiniband/%s/tc/%d/traffic_class", root_of(c), p->device, p->port);
        if (p->trust == 0)
            im_env_fix(c,
                       im_env_say(c, IM_ENV_FAIL, "tc-trust-pcp", x,
                                  "%s trusts the VLAN priority (pcp), not DSCP: the traffic class chooses no queue there",
                                  p->netdev ? p->netdev : p->device),
                       "mlnx_qos -i %s --trust dscp", p->netdev ? p->netdev : "IF");
        if (p->pfc >= 0) {
            known = true;
            int lossless = 0;
            while (lossless < 8 && !(p->pfc >> lossless & 1))
                lossless++;
            if (!(p->pfc >> priority & 1))
                im_env_fix(c,
                           im_env_say(c, IM_ENV_FAIL, "tc-unprotected", x,
                                      "priority %d has no PFC on %s (PFC is on %s%.*s): this traffic can be dropped", priority,
                                      p->netdev ? p->netdev : p->device, lossless < 8 ? "priority " : "none", lossless < 8,
                                      &"01234567"[lossless & 7]),
                           "%s=%d", x->name, usual_tc(lossless < 8 ? lossless : 3));
        }
    }
    if (!known)
        im_env_fix(
            c,
            im_env_say(c, priority == 3 ? IM_ENV_UNKNOWN : IM_ENV_WARN, "tc-fabric-unknown", x,
                       "right only where NICs and switches map DSCP %lld to the lossless queue; that is not known here. %s", (long long)(v >> 2),
                       priority == 3 ? "By the usual map it is priority 3, where PFC mostly is"
                                     : "By the usual map (DSCP / 8) RoCE is on priority 3, with traffic class 106: this one is unprotected there"),
            "mlnx_qos -i IF (trust, PFC, DSCP map), and the same on the switches");
}

static void traffic_class(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t ucx = 106, fifo;
    int priority = (int)(v >> 5 & 7);
    bool gin = !strcmp(x->name, "NCCL_GIN_IB_TC"), nccl = !strcmp(x->name, "NCCL_IB_TC");
    if (v < 0 || v > 255 || v == 0)
        return;
    if (c->machine && c->nib && !c->neth)
        return; /* said already: no effect */
    im_env_say(c, IM_ENV_NOTE, "tc", x, "%lld = 0x%02llx: DSCP %lld, ECN bits %lld (%s), priority %d by the usual map (DSCP / 8)", (long long)v,
               (long long)v, (long long)(v >> 2), (long long)(v & 3), ecn_name(v), priority);
    if ((v & 3) == 1 || (v & 3) == 3)
        im_env_fix(c,
                   im_env_say(c, IM_ENV_WARN, "tc-ecn", x,
                              "%s mlx5 NICs drop these two bits, so that %lld works as %lld there; others put them on the wire",
                              (v & 3) == 3 ? "ECN bits 3 mean \"congestion met\", which senders then see on every packet."
                                           : "ECN bits 1, ECT(1), are those of L4S: switches may treat them apart.",
                              (long long)v, (long long)(v & ~3)),
                   "%s=%lld", x->name, (long long)((v & ~3) | 2));
    if (gin)
        return;
    tc_on_ports(c, x, v, priority);
    if (!nccl)
        return;
    const char *other = im_env_text(c, "UCX_IB_TRAFFIC_CLASS");
    if (other && strcmp(other, "auto") != 0)
        ucx = im_env_nccl_int(other).value;
    if (other && ucx >> 2 != v >> 2)
        im_env_say(c, IM_ENV_WARN, "tc-ucx-differs", x, "UCX_IB_TRAFFIC_CLASS is %s: the job's MPI and NCCL traffic lie in two classes", other);
    else if (!other && v >> 2 != 106 >> 2)
        im_env_fix(c, im_env_say(c, IM_ENV_NOTE, "tc-ucx-differs", x, "if the job uses UCX too: that takes 106 on RoCE by itself, another class"),
                   "UCX_IB_TRAFFIC_CLASS=%lld", (long long)((v & 1) ? (v & ~3) | 2 : v));
    if ((c->nccl / 100 == 222 || c->nccl / 100 == 223) && im_env_int(c, "NCCL_IB_FIFO_TC", &fifo) && fifo == 0)
        im_env_fix(c, im_env_say(c, IM_ENV_WARN, "tc-fifo", x, "in 2.22 and 2.23 control messages stay in class 0 unless NCCL_IB_FIFO_TC is set too"),
                   "NCCL_IB_FIFO_TC=%lld", (long long)v);
}

static void service_level(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v <= 0 || v > 15) {
        if (v == 0 && c->nccl / 100 >= 226 && !strcmp(x->name, "NCCL_IB_SL"))
            im_env_say(c, IM_ENV_NOTE, "default", x, "0 is what is used without it, unless the program sets a traffic class for a communicator");
        return;
    }
    if (!c->machine || c->nib || !c->nport)
        im_env_fix(
            c,
            im_env_say(
                c, IM_ENV_UNKNOWN, "sl-fabric-unknown", x,
                "on InfiniBand the subnet manager maps service level %lld to a virtual lane: right only where it is configured to; else connections "
                "fail or share the lane of everything else",
                (long long)v),
            "smpquery sl2vl LID PORT, and OpenSM's qos_* settings");
    if (!c->machine || c->neth || !c->nport) {
        int trust = -1;
        for (size_t i = 0; i < c->nuse; i++)
            if (c->use[i]->link == IM_ENV_LINK_ETH && c->use[i]->trust >= 0)
                trust = c->use[i]->trust;
        im_env_say(c, trust == 1 ? IM_ENV_NOTE : IM_ENV_UNKNOWN, "sl-roce", x,
                   "on RoCE it is the VLAN priority %lld%s: it counts only on a tagged VLAN whose ports trust pcp%s", (long long)(v & 7),
                   v > 7 ? " (the low three bits)" : "", trust == 1 ? "; here they trust DSCP, so that the traffic class decides" : "");
    }
}

static void ucx_value(im_env_case *c, im_env_item *x, int64_t unused)
{
    (void)unused;
    im_env_number n = im_env_nccl_int(x->value); /* UCX reads numbers alike, but takes no trailing letters */
    if (n.digits && !*n.trailing && strcmp(x->name, "UCX_IB_SL") != 0)
        traffic_class(c, x, n.value);
    else if (n.digits && !*n.trailing)
        service_level(c, x, n.value);
}

static void pkey(im_env_case *c, im_env_item *x, int64_t v)
{
    for (size_t i = 0; i < c->nuse; i++)
        if (c->use[i]->npkey > 0 && v >= c->use[i]->npkey) {
            im_env_say(c, IM_ENV_FAIL, "pkey-index", x,
                       "an index into the table, which has %d entries on %s:%d; the key itself (0x8001) is what UCX_IB_PKEY takes", c->use[i]->npkey,
                       c->use[i]->device, c->use[i]->port);
            return;
        }
    if (v >= 0x7fff)
        im_env_say(c, IM_ENV_FAIL, "pkey-index", x,
                   "this is an index into the port's table, not the key: a key such as 0x%llx is what UCX_IB_PKEY takes", (long long)v);
}

/* ---- the rest ----------------------------------------------------------------------------------------------------------- */

static void ib_disable(im_env_case *c, im_env_item *x, int64_t v)
{
    im_str names = {0};
    const char *net = im_env_text(c, "NCCL_NET");
    if (v == 0)
        return;
    im_env_name_ports(c->port, c->nport, &names);
    if (net && !strcasecmp(net, "IB"))
        im_env_say(c, IM_ENV_FAIL, "net-conflict", x, "NCCL_NET=%s wants what this switches off: initialisation fails", net);
    if (c->nport) {
        im_env_finding *f = im_env_say(
            c, IM_ENV_FAIL, "ib-disabled", x,
            "the %s port%s of this machine %s not used (%s): NCCL goes to TCP sockets, and says so at INFO alone. A plug-in such as "
            "HPC-X's is not reached by it (NCCL_IBEXT_DISABLE)",
            c->nib && c->neth ? "RDMA" : link_name(c->port[0]->link), c->nport > 1 ? "s" : "", c->nport > 1 ? "are" : "is", im_str_text(&names));
        im_env_fix(c, f, "unset NCCL_IB_DISABLE");
    } else if (c->machine && c->rdma_judged) {
        im_env_say(c, IM_ENV_NOTE, "ib-disabled-no-rdma", x, "this machine has no active RDMA port: it changes nothing here");
    } else {
        im_env_fix(c,
                   im_env_say(c, IM_ENV_WARN, "ib-disabled", x,
                              "where there is InfiniBand or RoCE it is not used, and NCCL says so at INFO alone: a leftover of an experiment?"),
                   "unset NCCL_IB_DISABLE");
    }
    im_str_free(&names);
}

static void adaptive_routing(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v == 1 && c->machine && c->neth)
        im_env_say(c, IM_ENV_UNKNOWN, "ar-roce", x,
                   "right on RoCE only where the switches route adaptively and the NICs take packets out of order (Spectrum-X)");
    if (v == 0 && c->machine && c->nib)
        im_env_say(c, IM_ENV_WARN, "ar-off", x, "on InfiniBand adaptive routing is on by itself; without it large messages stay on one path");
}

static void out_of_order(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t ar = -2;
    if (v == 1 && (!im_env_int(c, "NCCL_IB_ADAPTIVE_ROUTING", &ar) || ar == 0 || (ar == -2 && c->neth && !c->nib)))
        im_env_say(c, IM_ENV_WARN, "ooo-no-ar", x, "it needs adaptive routing (NCCL_IB_ADAPTIVE_ROUTING=1), on both sides: NCCL warns without");
}

static void relaxed_ordering(im_env_case *c, im_env_item *x, int64_t v)
{
    if (v == 0)
        im_env_say(c, IM_ENV_WARN, "ro-off", x,
                   "without relaxed ordering GPUDirect RDMA is slow in virtual machines and on AMD CPUs; the default 2 uses it where it can");
}

static void fifo_tc(im_env_case *c, im_env_item *x, int64_t v)
{
    int64_t tc = 0;
    if (v > 0 && v <= 255 && !(c->machine && c->nib && !c->neth) && im_env_int(c, "NCCL_IB_TC", &tc) && tc >= 0 && tc >> 2 != v >> 2)
        im_env_say(c, IM_ENV_NOTE, "tc-fifo", x,
                   "control messages in DSCP %lld, data in DSCP %lld: right where switches serve the first strictly before", (long long)(v >> 2),
                   (long long)(tc >> 2));
}

const im_env_rule im_env_rules_ib[] = {
    {"NCCL_IB_TIMEOUT", timeout},
    {"NCCL_IB_RETRY_CNT", retry_count},
    {"NCCL_IB_HCA", hca},
    {"NCCL_IB_GID_INDEX", gid_index},
    {"NCCL_IB_ADDR_FAMILY", gid_choice},
    {"NCCL_IB_ADDR_RANGE", gid_choice},
    {"NCCL_IB_ROCE_VERSION_NUM", gid_choice},
    {"NCCL_IB_QPS_PER_CONNECTION", qps},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", split},
    {"NCCL_IB_TC", traffic_class},
    {"NCCL_GIN_IB_TC", traffic_class},
    {"UCX_IB_TRAFFIC_CLASS", ucx_value},
    {"UCX_IB_SL", ucx_value},
    {"NCCL_IB_FIFO_TC", fifo_tc},
    {"NCCL_IB_SL", service_level},
    {"NCCL_IB_PKEY", pkey},
    {"NCCL_IB_DISABLE", ib_disable},
    {"NCCL_IB_ADAPTIVE_ROUTING", adaptive_routing},
    {"NCCL_IB_OOO_RQ", out_of_order},
    {"NCCL_IB_PCI_RELAXED_ORDERING", relaxed_ordering},
};
const size_t im_env_rules_ib_count = IM_COUNT_OF(im_env_rules_ib);
