/* Addresses: RoCE v2 GIDs, the one that NCCL takes, net devices for the bootstrap; and the lint of variables. */
#include "fabric/check_rows.h"

#include <stdlib.h>
#include <string.h>

static bool is_routable_v2(const im_gid *g)
{
    return g->roce == 2 && !g->is_link_local;
}

static const char *gid_path(im_check_result *r, const im_rdma_port *p, int index)
{
    return im_arena_printf(r->arena, "%s/gids/%d", p->path, index);
}

void im_check_roce_v2(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    IM_EACH_PORT(h)
    {
        size_t routable = 0, v2 = 0, untyped = 0;
        if (!p->ethernet || !im_port_is_active(p))
            continue;
        const char *where = im_check_port_name(r->arena, d, p), *table = im_arena_printf(r->arena, "%s/gids", p->path);
        n++;
        for (size_t i = 0; i < p->ngids; i++) {
            routable += is_routable_v2(&p->gid[i]);
            v2 += p->gid[i].roce == 2;
            untyped += p->gid[i].roce == 0;
        }
        if (routable)
            continue;
        if (p->gid_why) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, table, NULL, "its GIDs are not known: %s", p->gid_why);
        } else if (!p->ngids) {
            im_check_say(r, IM_VERDICT_FAIL, where, table, "empty",
                         "the port has no GID: its net device is down or has no address, or (in a container) belongs to another network namespace");
            im_check_mend(r, "ip addr add 10.0.0.1/24 dev %s; ip link set dev %s up    # an address of your plan", im_check_netdev(p),
                          im_check_netdev(p));
        } else if (untyped == p->ngids) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, im_arena_printf(r->arena, "%s/gid_attrs/types", p->path), p->gid[0].type.text,
                         "the types of its GIDs cannot be read: %s", p->gid[0].type.why ? p->gid[0].type.why : "unknown words");
        } else if (v2) {
            im_check_say(r, IM_VERDICT_FAIL, where, table, NULL, "its RoCE v2 GIDs are link-local alone: %s has no address", im_check_netdev(p));
            im_check_mend(r, "ip addr add 10.0.0.1/24 dev %s    # an address of your plan", im_check_netdev(p));
        } else {
            im_check_say(r, IM_VERDICT_FAIL, where, table, p->gid[0].type.text, "the port has GIDs of RoCE v1 alone");
            im_check_mend(
                r, "cma_roce_mode -d %s -p %d -m 2; modprobe -r mlx5_ib && modprobe mlx5_ib    # RoCE v2; mlxconfig -d %s query | grep -i roce",
                d->name, p->number, d->name);
        }
    }
    im_check_note(r, n ? "%zu active RoCE ports" : "no active RoCE port", n);
}

/* ---- the choice ------------------------------------------------------------------------------- */

static const im_gid *gid_at(const im_rdma_port *p, int index)
{
    for (size_t i = 0; i < p->ngids; i++)
        if (p->gid[i].index == index)
            return &p->gid[i];
    return NULL;
}

static const char *gid_shown(im_check_result *r, const im_gid *g)
{
    return g ? im_arena_printf(r->arena, "%s (%s)", g->address ? g->address : g->text, g->type.text ? g->type.text : "type not told") : "empty";
}

/* A pinned index. */
static void judge_pinned(im_check_result *r, const char *where, const im_rdma_port *p, int pinned, int own, const im_env_item *var)
{
    const im_gid *g = gid_at(p, pinned), *ours = gid_at(p, own);
    const char *set = im_arena_printf(r->arena, "NCCL_IB_GID_INDEX=%s (%s)", var->value, var->file ? var->file : "the environment");
    if (!g || !is_routable_v2(g)) {
        const bool unknown = g && g->roce == 0;
        im_check_say(r, unknown ? IM_VERDICT_UNKNOWN : IM_VERDICT_FAIL, where, gid_path(r, p, pinned), gid_shown(r, g), "%s points to %s%s%s", set,
                     !g             ? "an empty entry"
                     : unknown      ? "a GID whose type cannot be read"
                     : g->roce == 1 ? "a GID of RoCE v1"
                                    : "a link-local GID",
                     ours && is_routable_v2(ours) ? "; by itself NCCL takes " : "",
                     ours && is_routable_v2(ours) ? im_arena_printf(r->arena, "index %d", own) : "");
        im_check_mend(r, "unset NCCL_IB_GID_INDEX    # NCCL from 2.21 on chooses by itself; NCCL_IB_ADDR_RANGE=10.0.0.0/16 steers it");
    } else if (pinned != own) {
        im_check_say(r, IM_VERDICT_WARN, where, gid_path(r, p, pinned), gid_shown(r, g),
                     "%s; by itself NCCL takes index %d, %s: right only if the subnet of index %d is meant", set, own, gid_shown(r, ours), pinned);
        im_check_mend(r, "unset NCCL_IB_GID_INDEX    # or NCCL_IB_ADDR_RANGE=SUBNET/LENGTH, which holds on every host");
    }
}

void im_check_gid_choice(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    int first = -1;
    const im_env_item *var = im_env_used(&h->env, "NCCL_IB_GID_INDEX");
    const char *family = im_check_env(h, "NCCL_IB_ADDR_FAMILY");
    const im_env_number pin = var && var->value ? im_env_nccl_int(var->value) : (im_env_number){.value = -1};
    IM_EACH_PORT(h)
    {
        const im_env_port *f = im_check_facts(h, d, p);
        if (!p->ethernet || !im_port_is_active(p) || !p->ngids || !f)
            continue;
        const char *where = im_check_port_name(r->arena, d, p);
        /* before 2.21 NCCL took index 0 */
        const int own = h->facts.nccl && h->facts.nccl < 22100 ? 0 : im_env_nccl_gid(f, family && strcmp(family, "AF_INET6") == 0, 2);
        const im_gid *g = gid_at(p, own);
        n++;
        first = first < 0 ? own : first;
        if (pin.digits && pin.value >= 0 && pin.value < 4096) {
            judge_pinned(r, where, p, (int)pin.value, own, var);
        } else if (!g || !is_routable_v2(g)) {
            bool six = false, any = false;
            for (size_t i = 0; i < p->ngids; i++) {
                any = any || is_routable_v2(&p->gid[i]);
                six = six || (is_routable_v2(&p->gid[i]) && !p->gid[i].is_ipv4);
            }
            if (g && g->roce == 0) {
                im_check_say(r, IM_VERDICT_UNKNOWN, where, gid_path(r, p, own), gid_shown(r, g),
                             "NCCL takes index %d, whose type cannot be read here", own);
                continue;
            }
            im_check_say(r, IM_VERDICT_FAIL, where, gid_path(r, p, own), gid_shown(r, g), "NCCL takes index %d by itself, which is %s", own,
                         !g             ? "empty"
                         : g->roce == 1 ? "RoCE v1"
                                        : "link-local");
            if (h->facts.nccl && h->facts.nccl < 22100)
                im_check_mend(r, "export NCCL_IB_GID_INDEX=3    # NCCL before 2.21 does not choose; better: a newer NCCL");
            else if (any && six)
                im_check_mend(r, "export NCCL_IB_ADDR_FAMILY=AF_INET6    # this fabric has IPv6 addresses");
            else
                im_check_mend(r, "ip addr add 10.0.0.1/24 dev %s    # an address of your plan: then a RoCE v2 GID appears", im_check_netdev(p));
        }
    }
    im_check_note(r, n ? "NCCL takes index %2$d on %1$zu RoCE ports" : "no RoCE port with GIDs", n, first);
}

/* ---- bootstrap, variables -------------------------------------------------------------------------- */

void im_check_bootstrap(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const im_net *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < h->m->nnets; i++)
        if (im_net_is_bootstrap(&h->m->net[i])) {
            first = first ? first : &h->m->net[i];
            n++;
        }
    if (n) {
        im_check_note(r, "%zu devices, the first is %s", n, first->name);
    } else if (!h->m->nnets) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/sys/class/net", h->m->net_why, "the net devices cannot be listed: %s",
                     h->m->net_why ? h->m->net_why : "none is there");
    } else {
        im_check_say(r, IM_VERDICT_FAIL, NULL, "/sys/class/net", NULL,
                     "no net device that is up has an address, but for loopback and bridges of containers");
        im_check_mend(r, "ip -br addr    # then give one an address that all hosts reach, and: export NCCL_SOCKET_IFNAME==NAME");
    }
}

void im_check_variables(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    for (size_t i = 0; i < h->env.nfinding; i++) {
        const im_env_finding *f = &h->env.finding[i];
        if (f->verdict != IM_ENV_WARN && f->verdict != IM_ENV_FAIL)
            continue;
        const char *at = f->file && f->line ? im_arena_printf(r->arena, "%s:%d", f->file, f->line) : f->file;
        im_check_say(r, f->verdict == IM_ENV_FAIL ? IM_VERDICT_FAIL : IM_VERDICT_WARN, f->name, at, f->item ? f->item->value : f->evidence, "%s [%s]",
                     f->text, f->id);
        if (f->fix)
            im_check_mend(r, "%s", f->fix);
        else if (f->name)
            im_check_mend(r, "imece fabric env explain %s", f->name);
    }
    im_check_note(r, h->env.n ? "%zu variables; imece fabric env lint tells more" : "%zu variables are set", h->env.n);
}
