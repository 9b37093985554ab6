/* Levels, over-subscription, twins and rails of a network. */
#include "topology/network_parts.h"

#include <stdlib.h>
#include <string.h>

static bool is_switch(const im_network *net, int node)
{
    return net->node[node].kind == IM_NET_SWITCH;
}

static bool is_host(const im_network *net, int node)
{
    return net->node[node].kind == IM_NET_PORTS && net->node[node].host >= 0;
}

/* ---- levels ------------------------------------------------------------------------------ */

typedef struct seen {
    int hosts, bare, leaves; /* links to hosts, to switches without hosts, to switches with hosts */
} seen;

/* Switches with hosts are the first level. Of a tree's spine that has a host or two (a subnet manager, a storage head) this is wrong: it is
 * told from a leaf by its neighbours, which all have hosts, while there are switches without any. */
static bool is_spine_with_hosts(const seen *s, bool bare_ones)
{
    return bare_ones && s->hosts && !s->bare && s->hosts * 4 < s->leaves;
}

static im_status set_levels(im_net_build *b, const im_net_index *ix)
{
    im_network *net = b->net;
    seen *count = IM_ARENA_NEW(b->a, seen, net->nnodes + 1);
    int *queue = IM_ARENA_NEW(b->a, int, net->nnodes + 1);
    if (!count || !queue)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
    bool bare = false;
    for (size_t i = 0; i < net->nlinks; i++) {
        const im_net_link *l = &net->link[i];
        count[l->a].hosts += is_host(net, l->b);
        count[l->b].hosts += is_host(net, l->a);
    }
    for (size_t i = 0; i < net->nnodes; i++)
        bare = bare || (is_switch(net, (int)i) && !count[i].hosts && net->node[i].nlinks);
    for (size_t i = 0; i < net->nlinks; i++) {
        const im_net_link *l = &net->link[i];
        if (!is_switch(net, l->a) || !is_switch(net, l->b) || l->a == l->b)
            continue;
        *(count[l->b].hosts ? &count[l->a].leaves : &count[l->a].bare) += 1;
        *(count[l->a].hosts ? &count[l->b].leaves : &count[l->b].bare) += 1;
    }
    size_t head = 0, tail = 0;
    for (size_t i = 0; i < net->nnodes; i++)
        if (is_switch(net, (int)i) && count[i].hosts && !is_spine_with_hosts(&count[i], bare)) {
            net->node[i].level = 1;
            queue[tail++] = (int)i;
        }
    while (head < tail) {
        const int at = queue[head++];
        for (int k = ix->first[at]; k < ix->first[at + 1]; k++) {
            const int other = im_net_other(&net->link[ix->of[k]], at);
            if (is_switch(net, other) && !net->node[other].level) {
                net->node[other].level = net->node[at].level + 1;
                queue[tail++] = other;
            }
        }
    }
    for (size_t i = 0; i < net->nnodes; i++)
        net->levels = net->node[i].level > net->levels ? net->node[i].level : net->levels;
    return IM_OK;
}

/* ---- over-subscription ----------------------------------------------------------------------- */

typedef struct sums {
    int down, up, side;
    double down_gbps, up_gbps;
    bool rates; /* all are told */
} sums;

static sums sums_of(const im_network *net, const im_net_index *ix, int node)
{
    sums s = {.rates = true};
    const int level = net->node[node].level;
    for (int k = ix->first[node]; k < ix->first[node + 1]; k++) {
        const im_net_link *l = &net->link[ix->of[k]];
        const int other = im_net_other(l, node), above = net->node[other].level;
        if (!is_switch(net, other) && !is_host(net, other))
            continue; /* aggregation nodes, routers */
        s.rates = s.rates && l->gbps > 0;
        if (!is_switch(net, other) || above < level) {
            s.down++;
            s.down_gbps += l->gbps;
        } else if (above > level) {
            s.up++;
            s.up_gbps += l->gbps;
        } else {
            s.side++;
        }
    }
    return s;
}

static void sum_levels(im_network *net, const im_net_index *ix)
{
    bool rates[IM_NET_LEVELS + 1];
    memset(rates, 1, sizeof rates);
    for (size_t i = 0; i < net->nnodes; i++) {
        const int level = net->node[i].level;
        if (level < 1 || level > IM_NET_LEVELS)
            continue;
        const sums s = sums_of(net, ix, (int)i);
        im_net_level *at = &net->level[level];
        at->switches++;
        at->down_links += s.down;
        at->up_links += s.up;
        at->side_links += s.side;
        at->down_gbps += s.down_gbps;
        at->up_gbps += s.up_gbps;
        rates[level] = rates[level] && s.rates;
        if (!s.rates || s.up_gbps <= 0 || !s.down)
            continue;
        const double over = s.down_gbps / s.up_gbps;
        at->over_min = at->over_min == 0 || over < at->over_min ? over : at->over_min;
        at->over_max = over > at->over_max ? over : at->over_max;
    }
    for (int level = 1; level <= IM_NET_LEVELS; level++) {
        net->level[level].side_links /= 2; /* both ends counted them */
        if (!rates[level])
            net->level[level].down_gbps = net->level[level].up_gbps = net->level[level].over_min = net->level[level].over_max = 0;
    }
}

/* ---- twins ------------------------------------------------------------------------------------- */

/* Links are twins when their ends are of the same level and the same product; switches likewise. */
typedef struct twin {
    int64_t key[4];
    int value; /* index of the link, or of the node */
    int count; /* of switches: up links or down links */
} twin;

static int by_key(const void *pa, const void *pb)
{
    const twin *x = pa, *y = pb;
    for (int i = 0; i < 4; i++)
        if (x->key[i] != y->key[i])
            return x->key[i] < y->key[i] ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

static bool same_key(const twin *x, const twin *y)
{
    return memcmp(x->key, y->key, sizeof x->key) == 0;
}

static bool same_rate(const im_net_link *x, const im_net_link *y)
{
    return x->width == y->width && x->gbps == y->gbps;
}

static const char *end_of(im_arena *a, const im_network *net, int node, int port)
{
    return im_arena_printf(a, "%s [%d]", net->node[node].text, port);
}

/* The commonest rate of a group of twins (of equals the faster); links below it are findings. */
static void judge_links(im_net_build *b, const twin *t, size_t n)
{
    im_network *net = b->net;
    const im_net_link *mode = NULL;
    size_t most = 0;
    for (size_t i = 0; i < n && i < 64; i++) { /* the commonest is among the first, or no rate is common */
        const im_net_link *l = &net->link[t[i].value];
        size_t same = 0;
        for (size_t k = 0; k < n; k++)
            same += same_rate(l, &net->link[t[k].value]);
        if (same > most || (same == most && mode && l->gbps > mode->gbps)) {
            most = same;
            mode = l;
        }
    }
    for (size_t i = 0; i < n; i++) {
        im_net_link *l = &net->link[t[i].value];
        l->twins = (int)n - 1;
        if (!mode || !mode->speed || !l->speed || l->gbps <= 0 || l->gbps >= mode->gbps)
            continue;
        l->below = im_arena_printf(b->a, "%s: %dx%s, %zu of %zu twins %dx%s", l->width < mode->width ? "narrower" : "slower", l->width, l->speed,
                                   most, n - 1, mode->width, mode->speed);
        im_net_find(b, "link %s to %s is %s", end_of(b->a, net, l->a, l->a_port), end_of(b->a, net, l->b, l->b_port), l->below);
    }
}

static im_status compare_links(im_net_build *b)
{
    im_network *net = b->net;
    twin *t = IM_ARENA_NEW(b->a, twin, net->nlinks + 1);
    if (!t)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
    for (size_t i = 0; i < net->nlinks; i++) {
        const im_net_node *x = &net->node[net->link[i].a], *y = &net->node[net->link[i].b];
        const bool turn = x->level < y->level || (x->level == y->level && x->device < y->device);
        t[i] = (twin){.key = {turn ? y->level : x->level, turn ? x->level : y->level, turn ? y->device : x->device, turn ? x->device : y->device},
                      .value = (int)i};
    }
    qsort(t, net->nlinks, sizeof *t, by_key);
    for (size_t from = 0, to; from < net->nlinks; from = to) {
        for (to = from + 1; to < net->nlinks && same_key(&t[from], &t[to]);)
            to++;
        judge_links(b, t + from, to - from);
    }
    return IM_OK;
}

static void judge_switches(im_net_build *b, const twin *t, size_t n, const char *which)
{
    int mode = 0;
    size_t most = 0;
    for (size_t i = 0; i < n && i < 64; i++) {
        size_t same = 0;
        for (size_t k = 0; k < n; k++)
            same += t[k].count == t[i].count;
        if (same > most || (same == most && t[i].count > mode)) {
            most = same;
            mode = t[i].count;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (t[i].count < mode && most * 2 > n)
            im_net_find(b, "switch %s has %d %s links, %zu of %zu twins have %d", b->net->node[t[i].value].text, t[i].count, which, most, n - 1,
                        mode);
}

static im_status compare_switches(im_net_build *b, const im_net_index *ix, bool up)
{
    im_network *net = b->net;
    twin *t = IM_ARENA_NEW(b->a, twin, net->nnodes + 1);
    size_t n = 0;
    if (!t)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
    for (size_t i = 0; i < net->nnodes; i++) {
        const im_net_node *x = &net->node[i];
        if (x->kind != IM_NET_SWITCH || !x->level || (!up && x->level == 1))
            continue; /* leaves have as many hosts as there are */
        const sums s = sums_of(net, ix, (int)i);
        t[n++] = (twin){.key = {x->level, x->device, x->ports, 0}, .value = (int)i, .count = up ? s.up : s.down};
    }
    qsort(t, n, sizeof *t, by_key);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && same_key(&t[from], &t[to]);)
            to++;
        judge_switches(b, t + from, to - from, up ? "up" : "down");
    }
    return IM_OK;
}

/* ---- rails -------------------------------------------------------------------------------------- */

typedef struct adapter {
    int host, node, leaf;
    const char *text;
} adapter;

static int by_host(const void *pa, const void *pb)
{
    const adapter *x = pa, *y = pb;
    if (x->host != y->host)
        return (x->host > y->host) - (x->host < y->host);
    const int order = strverscmp(x->text, y->text);
    return order ? order : (x->node > y->node) - (x->node < y->node);
}

/* rail_of[leaf] is the rail that it serves, + 1; false when a leaf serves two, or a host has two adapters there. */
static bool rails_fit(const adapter *t, size_t n, int rails, int *rail_of)
{
    for (size_t i = 0; i < n; i++) {
        const int rail = (int)(i % (size_t)rails) + 1;
        if (t[i].leaf < 0 || t[i].host != t[i - (size_t)(rail - 1)].host || (rail_of[t[i].leaf] && rail_of[t[i].leaf] != rail))
            return false;
        rail_of[t[i].leaf] = rail;
    }
    return true;
}

static im_status find_rails(im_net_build *b, const im_net_index *ix)
{
    im_network *net = b->net;
    adapter *t = IM_ARENA_NEW(b->a, adapter, net->nnodes + 1);
    int *rail_of = IM_ARENA_NEW(b->a, int, net->nnodes + 1);
    size_t n = 0;
    if (!t || !rail_of)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
    for (size_t i = 0; i < net->nnodes; i++) {
        if (!is_host(net, (int)i) || !net->node[i].nlinks)
            continue;
        const int at = im_net_other(&net->link[ix->of[ix->first[i]]], (int)i);
        t[n++] = (adapter){net->node[i].host, (int)i, is_switch(net, at) ? at : -1, net->node[i].text};
    }
    const int each = net->nhosts ? (int)(n / net->nhosts) : 0;
    if (each < 2 || n != net->nhosts * (size_t)each)
        return IM_OK;
    qsort(t, n, sizeof *t, by_host);
    if (rails_fit(t, n, each, rail_of))
        net->rails = each;
    return IM_OK;
}

im_status im_net_analyse(im_net_build *b)
{
    im_net_index ix;
    IM_TRY(im_net_index_of(b, &ix));
    IM_TRY(set_levels(b, &ix));
    sum_levels(b->net, &ix);
    IM_TRY(find_rails(b, &ix));
    IM_TRY(compare_links(b));
    IM_TRY(im_net_shape_of(b, &ix));
    const im_net_shape shape = b->net->shape;
    bool rated = false; /* Slurm's file tells of no links that could be missing */
    for (size_t i = 0; i < b->net->nlinks && !rated; i++)
        rated = b->net->link[i].speed != NULL;
    if (!rated || (shape != IM_SHAPE_FAT_TREE && shape != IM_SHAPE_TREE && shape != IM_SHAPE_PARTS))
        return IM_OK;
    IM_TRY(compare_switches(b, &ix, true));
    return compare_switches(b, &ix, false);
}
