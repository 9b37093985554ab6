/* What topology a network is. */
#include "topology/network_parts.h"

#include <stdlib.h>
#include <string.h>

/* Most pairs that ought to be joined are: a cable may be out. */
static const double NEARLY = 0.9;

typedef struct shaper {
    im_net_build *b;
    im_network *net;
    int *parent;        /* union-find over nodes */
    int *first, *of;    /* neighbours of each switch that are switches, sorted, each once */
    int *size, *number; /* by group */
} shaper;

static int root_of(int *parent, int x)
{
    while (parent[x] != x)
        x = parent[x] = parent[parent[x]];
    return x;
}

static void join(shaper *s, int x, int y)
{
    s->parent[root_of(s->parent, x)] = root_of(s->parent, y);
}

static bool is_switch(const shaper *s, int node)
{
    return s->net->node[node].kind == IM_NET_SWITCH && s->net->node[node].level;
}

static int by_int(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void set_neighbours(shaper *s, const im_net_index *ix)
{
    int n = 0;
    for (size_t i = 0; i < s->net->nnodes; i++) {
        const int from = n;
        s->first[i] = n;
        if (!is_switch(s, (int)i))
            continue;
        for (int k = ix->first[i]; k < ix->first[i + 1]; k++) {
            const int other = im_net_other(&s->net->link[ix->of[k]], (int)i);
            if (other != (int)i && is_switch(s, other))
                s->of[n++] = other;
        }
        qsort(s->of + from, (size_t)(n - from), sizeof *s->of, by_int);
        int kept = from;
        for (int k = from; k < n; k++)
            if (kept == from || s->of[kept - 1] != s->of[k])
                s->of[kept++] = s->of[k];
        n = kept;
    }
    s->first[s->net->nnodes] = n;
}

static int common(const shaper *s, int x, int y)
{
    int n = 0;
    for (int i = s->first[x], k = s->first[y]; i < s->first[x + 1] && k < s->first[y + 1];) {
        n += s->of[i] == s->of[k];
        const int d = s->of[i] - s->of[k];
        i += d <= 0;
        k += d >= 0;
    }
    return n;
}

/* Numbers the sets of the union-find that hold a switch; *n of them. */
static void number_groups(shaper *s, int *n)
{
    *n = 0;
    for (size_t i = 0; i < s->net->nnodes; i++)
        s->number[i] = -1;
    for (size_t i = 0; i < s->net->nnodes; i++) {
        if (!is_switch(s, (int)i))
            continue;
        int *number = &s->number[root_of(s->parent, (int)i)];
        if (*number < 0) {
            *number = (*n)++;
            s->size[*number] = 0;
        }
        s->net->node[i].group = *number;
        s->size[*number]++;
    }
}

static void forget_groups(shaper *s)
{
    for (size_t i = 0; i < s->net->nnodes; i++) {
        s->parent[i] = (int)i;
        s->net->node[i].group = -1;
    }
}

static int cmp_pair(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The share of all pairs of groups that a link joins. */
static double joined_groups(shaper *s, int groups)
{
    int64_t *pair = IM_ARENA_NEW(s->b->a, int64_t, s->first[s->net->nnodes] + 1);
    size_t n = 0, different = 0;
    if (!pair || groups < 2)
        return 0;
    for (size_t i = 0; i < s->net->nnodes; i++)
        for (int k = s->first[i]; k < s->first[i + 1]; k++) {
            const int x = s->net->node[i].group, y = s->net->node[s->of[k]].group;
            if (x < y)
                pair[n++] = (int64_t)x * groups + y;
        }
    qsort(pair, n, sizeof *pair, cmp_pair);
    for (size_t i = 0; i < n; i++)
        different += !i || pair[i] != pair[i - 1];
    return (double)different / ((double)groups * (groups - 1) / 2);
}

/* The share of the pairs inside groups that are joined: all pairs, or leaf with spine. */
static double joined_inside(const shaper *s, int groups, bool bipartite)
{
    double have = 0, want = 0;
    int *leaves = IM_ARENA_NEW(s->b->a, int, groups + 1);
    if (!leaves)
        return 0;
    for (size_t i = 0; i < s->net->nnodes; i++) {
        if (!is_switch(s, (int)i))
            continue;
        leaves[s->net->node[i].group] += s->net->node[i].level == 1;
        for (int k = s->first[i]; k < s->first[i + 1]; k++)
            have += s->net->node[i].group == s->net->node[s->of[k]].group;
    }
    for (int g = 0; g < groups; g++)
        want += bipartite ? 2.0 * leaves[g] * (s->size[g] - leaves[g]) : (double)s->size[g] * (s->size[g] - 1);
    return want > 0 ? have / want : 0;
}

static void say(shaper *s, im_net_shape shape, const char *why)
{
    s->net->shape = shape;
    s->net->why = why ? why : "";
}

/* The groups that come of it when switches with at least `least` common neighbours are one group: do they look like a dragonfly's? */
static bool groups_fit(shaper *s, const int *shared, int least)
{
    int groups;
    forget_groups(s);
    for (size_t i = 0; i < s->net->nnodes; i++)
        for (int k = s->first[i]; k < s->first[i + 1]; k++)
            if (shared[k] >= least)
                join(s, (int)i, s->of[k]);
    number_groups(s, &groups);
    const double inside = joined_inside(s, groups, false);
    if (inside < NEARLY)
        return false;
    if (groups == 1) {
        say(s, IM_SHAPE_MESH, im_arena_printf(s->b->a, "%d switches, %.0f %% of the pairs joined", s->size[0], 100 * inside));
        return true;
    }
    const double between = joined_groups(s, groups);
    if (between < NEARLY)
        return false;
    s->net->groups = groups;
    say(s, IM_SHAPE_DRAGONFLY,
        im_arena_printf(s->b->a, "%d groups of %d switches; %.0f %% of the pairs in a group joined, %.0f %% of the pairs of groups", groups,
                        s->size[0], 100 * inside, 100 * between));
    return true;
}

/* Switches of one group have the group's other switches as common neighbours, those of two groups hardly any: where the line is, is tried out. */
static bool try_dragonfly(shaper *s)
{
    enum { MAX_PORTS = 4096, MAX_TRIES = 128 };
    int *shared = IM_ARENA_NEW(s->b->a, int, s->first[s->net->nnodes] + 1), most = 0;
    for (size_t i = 0; i < s->net->nnodes; i++)
        if (!shared || s->first[i + 1] - s->first[i] > MAX_PORTS)
            return false; /* no switch has so many ports, and the search would take for ever */
    for (size_t i = 0; i < s->net->nnodes; i++)
        for (int k = s->first[i]; k < s->first[i + 1]; k++) {
            shared[k] = common(s, (int)i, s->of[k]);
            most = shared[k] > most ? shared[k] : most;
        }
    for (int least = most; least > 0 && least > most - MAX_TRIES; least--)
        if (groups_fit(s, shared, least))
            return true;
    return false;
}

static bool try_dragonfly_plus(shaper *s)
{
    int groups;
    for (size_t i = 0; i < s->net->nnodes; i++)
        for (int k = s->first[i]; k < s->first[i + 1]; k++)
            if (s->net->node[i].level != s->net->node[s->of[k]].level)
                join(s, (int)i, s->of[k]);
    number_groups(s, &groups);
    const double between = joined_groups(s, groups), inside = joined_inside(s, groups, true);
    if (groups < 2 || between < NEARLY || inside < NEARLY)
        return false;
    s->net->groups = groups;
    say(s, IM_SHAPE_DRAGONFLY_PLUS,
        im_arena_printf(s->b->a, "%d groups of %d leaves and spines; %.0f %% of the pairs of groups joined, through spines", groups, s->size[0],
                        100 * between));
    return true;
}

/* Networks that no link joins; adapters with several ports join, hosts with several adapters do not. */
static int count_parts(shaper *s)
{
    int n = 0;
    for (size_t i = 0; i < s->net->nlinks; i++)
        join(s, s->net->link[i].a, s->net->link[i].b);
    for (size_t i = 0; i < s->net->nnodes; i++)
        s->number[i] = 0;
    for (size_t i = 0; i < s->net->nnodes; i++)
        if (is_switch(s, (int)i) && !s->number[root_of(s->parent, (int)i)]++)
            n++;
    return n;
}

static void decide(shaper *s)
{
    im_network *net = s->net;
    int switches = 0, side = 0;
    const int pairs = s->first[net->nnodes] / 2; /* of joined switches */
    for (int l = 1; l <= IM_NET_LEVELS; l++) {
        switches += net->level[l].switches;
        side += net->level[l].side_links;
    }
    net->parts = count_parts(s);
    forget_groups(s);
    if (!switches) {
        say(s, IM_SHAPE_NONE, "no switch has a host");
    } else if (net->parts > 1) {
        const bool rail_only = net->rails == net->parts;
        say(s, IM_SHAPE_PARTS,
            im_arena_printf(s->b->a, "%d networks that no link joins%s", net->parts,
                            rail_only ? ": one for each rail (rail-only: traffic from rail to rail goes inside of hosts)" : ""));
    } else if (switches == 1) {
        say(s, IM_SHAPE_SINGLE, "all hosts are one switch apart");
    } else if (!side && pairs == switches - 1) {
        say(s, IM_SHAPE_TREE, im_arena_printf(s->b->a, "%d levels, and one way only between any two switches", net->levels));
    } else if (!side && net->levels > 1) {
        say(s, IM_SHAPE_FAT_TREE, im_arena_printf(s->b->a, "%d levels, and links join neighbouring levels only", net->levels));
    } else {
        const bool found = net->levels == 1 ? try_dragonfly(s) : net->levels == 2 && !net->level[1].side_links && try_dragonfly_plus(s);
        if (found)
            return;
        forget_groups(s);
        say(s, IM_SHAPE_OTHER,
            im_arena_printf(s->b->a, "%d level%s, %d links between switches of one level", net->levels, net->levels == 1 ? "" : "s", side));
    }
}

im_status im_net_shape_of(im_net_build *b, const im_net_index *ix)
{
    const size_t n = b->net->nnodes;
    shaper s = {.b = b,
                .net = b->net,
                .parent = IM_ARENA_NEW(b->a, int, n + 1),
                .first = IM_ARENA_NEW(b->a, int, n + 2),
                .of = IM_ARENA_NEW(b->a, int, 2 * b->net->nlinks + 1),
                .size = IM_ARENA_NEW(b->a, int, n + 1),
                .number = IM_ARENA_NEW(b->a, int, n + 1)};
    if (!s.parent || !s.first || !s.of || !s.size || !s.number)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
    forget_groups(&s);
    set_neighbours(&s, ix);
    decide(&s);
    return IM_OK;
}
