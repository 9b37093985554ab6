/* What NCCL's own model says a collective takes: its tables (src/graph/tuning.cc, v2.30), in microseconds and GB/s; tests/golden/published/nccl_tuning_*.csv
 * has the same figures with their source, and a test compares them.
 *
 *   time = latency + bytes / bandwidth, of the algorithm and protocol that is fastest
 *
 * Left out: the caps by channel (how many channels there are is known only to the machine), CollNet and PAT. */
#include "plan/cost_parts.h"

#include <math.h>

typedef enum protocol { LL, LL128, SIMPLE, PROTOCOLS } protocol;
enum { TREE_SIZES = 24 };

static const double base_tree[PROTOCOLS] = {6.8, 14.0, 8.4}, base_ring[PROTOCOLS] = {6.6, 14.0, 8.4};
static const double link_tree[PROTOCOLS] = {0.6, 1.25, 4.0}, link_ring[PROTOCOLS] = {0.6, 1.9, 3.4}; /* NVLink */
static const double net_tree[PROTOCOLS] = {5.0, 8.5, 14}, net_ring[PROTOCOLS] = {2.7, 4.0, 14};
static const double nvls_link = 25, nvls_tree_net = 20.9;
static const double ll_cap[5][3] = {{0}, {39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}; /* by generation; 1, 2, more nodes */
static const double nvls_share[5] = {0, 0, 0, 0.85, 0.74};
/* Trees are faster or slower than the formula by the size, 64 bytes and doubles. */
static const double tree_factor[PROTOCOLS][TREE_SIZES] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
};
static const char *const ring_name[PROTOCOLS] = {"ring LL", "ring LL128", "ring Simple"}, *const tree_name[PROTOCOLS] = {"tree LL", "tree LL128",
                                                                                                                         "tree Simple"};

typedef struct shape {
    const im_cluster *c;
    const im_cost_group *g;
    double bytes, intra, inter; /* GB/s */
    double overhead;            /* us of the host for a step over the network */
    int nodes_index;            /* 0: one, 1: two, 2: more */
} shape;

static void take(im_cost_coll *best, const shape *s, const char *name, double latency_us, double gbs, double inside, double cut)
{
    im_cost_coll k = {.alpha = latency_us * 1e-6, .bandwidth = gbs * 1e9, .algorithm = name};
    k.inside = s->g->local > 1 ? inside : 0;
    k.cut = s->g->domains > 1 ? cut : 0;
    if (gbs <= 0)
        return;
    k.seconds = k.alpha + s->bytes / k.bandwidth;
    if (!best->algorithm || k.seconds < best->seconds)
        *best = k;
}

static void ring(im_cost_coll *best, const shape *s, bool all_reduce)
{
    int n = s->g->ranks, steps = (all_reduce ? 2 : 1) * (n - 1), between = s->g->domains > 1 ? (all_reduce ? 2 : 1) * (s->g->domains - 1) : 0;
    for (int p = 0; p < PROTOCOLS; p++) {
        double bus = fmin(s->intra, s->inter), over = s->overhead * (p == SIMPLE ? 3 : 1);
        if (p == LL)
            bus = fmin(bus / 2, ll_cap[s->c->device.generation][s->nodes_index]);
        if (p == LL128)
            bus *= 0.92;
        double out = s->g->local == 1 && s->g->domains > 1 ? net_tree[p] : net_ring[p]; /* one rank a node: nothing hides the network */
        double in = fmax(link_ring[p], over);
        double latency = base_ring[p] + (steps - between) * in + between * (out + over);
        if (p == SIMPLE && s->g->domains > 1 && s->bytes / n >= 64)
            latency *= all_reduce ? (s->c->device.generation == IM_GENERATION_VOLTA ? 1.9 : 1.4) : 1;
        take(best, s, ring_name[p], latency, bus * n / steps, (double)steps / n, (double)steps / n);
    }
}

static void tree(im_cost_coll *best, const shape *s)
{
    int n = s->g->ranks, nodes = s->g->domains;
    int size = s->bytes < 64 ? 0 : (int)log2(s->bytes / 64);
    for (int p = 0; p < PROTOCOLS; p++) {
        /* within a node all goes up and down the chain; between nodes two trees carry a half each: of two nodes each sends all of it once, of more
         * the busiest one twice */
        double alg = fmin(s->intra / 2, nodes > 1 ? s->inter / (nodes == 2 ? 1 : 2) : INFINITY);
        if (p == SIMPLE)
            alg *= 0.92;
        if (p == LL)
            alg = fmin(alg / 3.8, ll_cap[s->c->device.generation][s->nodes_index] / 2);
        if (p == LL128)
            alg *= nodes == 1 ? 7.0 / 9 : 120.0 / 128;
        if (size < TREE_SIZES - 1)
            alg *= tree_factor[p][size];
        double latency = base_tree[p] + 2 * (((double)n / nodes - 1) * link_tree[p] + log2(nodes) * (net_tree[p] + s->overhead));
        take(best, s, tree_name[p], latency, alg, 2, nodes > 2 ? 2 : 1);
    }
}

static void nvls(im_cost_coll *best, const shape *s)
{
    double inside = s->intra * nvls_share[s->c->device.generation];
    if (s->g->domains == 1)
        take(best, s, "NVLS", nvls_link, inside * 5 / 6, 1, 0);
    else if (s->g->local > 1)
        take(best, s, "NVLS tree", nvls_link + 2 * log2(s->g->domains) * (nvls_tree_net + s->overhead),
             fmin(inside, s->inter / (s->g->domains == 2 ? 1 : 2)) * 5 / 6, 1, s->g->domains > 2 ? 2 : 1);
}

im_cost_coll im_cost_nccl(const im_cluster *c, const im_cost_group *g, im_collective what, double bytes)
{
    shape s = {.c = c, .g = g, .bytes = bytes, .intra = g->intra / 1e9, .inter = g->inter / 1e9};
    bool all_reduce = what == IM_COLL_ALL_REDUCE;
    s.nodes_index = g->domains == 1 ? 0 : g->domains == 2 ? 1 : 2;
    s.overhead = g->domains > 1 ? c->net_overhead * 1e6 : 0;
    im_cost_coll best = {0};
    ring(&best, &s, all_reduce);
    if (all_reduce && g->ranks > 2)
        tree(&best, &s);
    if (all_reduce && g->ranks > 2 && c->domain.multicast && nvls_share[c->device.generation] > 0)
        nvls(&best, &s);
    return best;
}
