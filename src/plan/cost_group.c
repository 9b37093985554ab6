/* How groups of ranks lie on a cluster, and what each gets when all of an axis communicate at once. Linear in the ranks. */
#include "plan/cost_parts.h"

#include <math.h>
#include <stdlib.h>

/* A family of groups: each has `count` ranks, `stride` apart. */
typedef struct family {
    int stride, count, world;
    int first_below; /* TIED: only ranks below this begin a group; else world */
} family;

static family family_of(im_group_id g, const im_mesh *m, int replicas)
{
    int tp = m->tp, cp = m->cp, dp = m->dp, pp = m->pp, world = im_mesh_size(m);
    switch (g) {
    case IM_GROUP_TP: return (family){1, tp, world, world};
    case IM_GROUP_CP: return (family){tp, cp, world, world};
    case IM_GROUP_DP: return (family){tp * cp, dp, world, world};
    case IM_GROUP_PP: return (family){tp * cp * dp, pp, world, world};
    case IM_GROUP_KV: return (family){1, replicas, world, world};
    case IM_GROUP_TIED: return pp > 1 ? (family){tp * cp * dp * (pp - 1), 2, world, tp * cp * dp} : (family){1, 1, world, world};
    default: return (family){1, world, world, world};
    }
}

typedef struct scan {
    const im_cluster *c;
    const int *device; /* of a rank; NULL: the same number */
    double *load[IM_CLUSTER_LEVELS];
    double most[IM_CLUSTER_LEVELS];
    int *stamp, *count; /* [domains]: the group that was here last, and how many of its ranks */
    int *order;         /* domains of the group at hand, as they first appear */
    int *rep;           /* a device in each */
} scan;

static int device_of(const scan *s, int rank)
{
    return s->device ? s->device[rank] : rank;
}

static int unit_of(const im_cluster *c, int device, int level)
{
    return device / c->devices_per_node / c->network.level[level].nodes;
}

/* The highest level at which two devices of different domains part, from 1; their traffic loads the units below it. */
static int cross(scan *s, int a, int b)
{
    int levels = 1;
    for (int l = 0; l < s->c->network.nlevel; l++)
        if (unit_of(s->c, a, l) != unit_of(s->c, b, l)) {
            double *load = &s->load[l][unit_of(s->c, a, l)];
            s->most[l] = fmax(s->most[l], ++*load);
            levels = l + 2;
        }
    return levels;
}

static double nic_rate(const im_cluster *c)
{
    return c->network.nics * c->network.link * c->network.reach / c->devices_per_node;
}

/* What one of those that load the levels gets, `own` at most. */
static double share(const scan *s, int levels, double own)
{
    const im_cluster_network *w = &s->c->network;
    for (int l = 0; l + 1 < levels && l < w->nlevel; l++)
        if (s->most[l] > 0)
            own = fmin(own, fmin(w->level[l].uplink, w->level[l].per_peer) * w->reach / s->most[l]);
    return own;
}

static bool scan_open(scan *s, const im_cluster *c, const int *device)
{
    size_t devices = (size_t)im_cluster_devices(c);
    *s = (scan){.c = c, .device = device};
    s->stamp = calloc(devices + 1, sizeof *s->stamp);
    s->count = calloc(devices + 1, sizeof *s->count);
    s->order = calloc(devices + 1, sizeof *s->order);
    s->rep = calloc(devices + 1, sizeof *s->rep);
    bool ok = s->stamp && s->count && s->order && s->rep;
    for (int l = 0; l < c->network.nlevel; l++) {
        s->load[l] = calloc((size_t)c->nodes / (size_t)c->network.level[l].nodes + 2, sizeof *s->load[l]);
        ok &= s->load[l] != NULL;
    }
    return ok;
}

static void scan_close(scan *s)
{
    free(s->stamp);
    free(s->count);
    free(s->order);
    free(s->rep);
    for (int l = 0; l < IM_CLUSTER_LEVELS; l++)
        free(s->load[l]);
}

/* One group, which begins at `first`: its domains are a ring, each of which is left once. */
static void add_group(scan *s, const family *f, int first, im_cost_group *out)
{
    int domains = 0, fewest = f->count;
    for (int i = 0; i < f->count; i++) {
        int device = device_of(s, first + i * f->stride), d = device / s->c->domain.devices;
        if (s->stamp[d] != first + 1) {
            s->stamp[d] = first + 1;
            s->count[d] = 0;
            s->order[domains] = d;
            s->rep[domains++] = device;
        }
        s->count[d]++;
    }
    for (int i = 0; i < domains; i++) {
        if (s->count[s->order[i]] < fewest)
            fewest = s->count[s->order[i]];
        if (domains > 1) {
            int levels = cross(s, s->rep[i], s->rep[(i + 1) % domains]);
            out->levels = levels > out->levels ? levels : out->levels;
        }
    }
    out->domains = domains > out->domains ? domains : out->domains;
    out->local = fewest < out->local ? fewest : out->local;
}

static void rates(const scan *s, im_cost_group *g)
{
    const im_cluster *c = s->c;
    g->intra = g->local > 1 || g->domains == 1 ? c->domain.rate * c->domain.reach : INFINITY;
    if (g->ranks < 2 || c->domain.devices < 2)
        g->intra = INFINITY;
    g->alpha_in = c->domain.latency;
    g->inter = INFINITY;
    for (int l = 0; l < c->network.nlevel; l++)
        g->load[l] = s->most[l];
    if (g->domains > 1) {
        g->inter = share(s, g->levels, g->local * nic_rate(c));
        g->alpha_out = c->network.latency + c->network.hop * (g->levels - 1);
    }
}

im_status im_cost_groups(im_context *ctx, const im_cluster *c, const im_mesh *m, int replicas, const int *device, im_cost_group *out)
{
    for (int g = 0; g < IM_GROUP_COUNT; g++) {
        family f = family_of((im_group_id)g, m, replicas);
        scan s;
        if (!scan_open(&s, c, device)) {
            scan_close(&s);
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for the links of %d devices", im_cluster_devices(c));
        }
        out[g] = (im_cost_group){.ranks = f.count, .local = f.count};
        for (int r = 0; r < f.first_below; r++)
            if (f.first_below < f.world || r / f.stride % f.count == 0)
                add_group(&s, &f, r, &out[g]);
        rates(&s, &out[g]);
        scan_close(&s);
    }
    return IM_OK;
}

static int next_stage(const im_mesh *m, int rank)
{
    int world = im_mesh_size(m), slice = world / m->pp;
    return rank + slice < world ? rank + slice : rank + slice - world;
}

/* All boundaries send at once: their loads add up before any is priced. */
im_status im_cost_hops(im_context *ctx, const im_cluster *c, const im_mesh *m, const int *device, im_cost_group *out)
{
    scan s;
    int world = im_mesh_size(m), slice = world / m->pp;
    if (!scan_open(&s, c, device)) {
        scan_close(&s);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the links of %d devices", im_cluster_devices(c));
    }
    for (int r = 0; r < world && m->pp > 1; r++) {
        int a = device_of(&s, r), b = device_of(&s, next_stage(m, r));
        im_cost_group *g = &out[r / slice];
        if (r % slice == 0)
            *g = (im_cost_group){.ranks = 2, .local = 2, .domains = 1};
        if (a / c->domain.devices == b / c->domain.devices)
            continue;
        int levels = cross(&s, a, b);
        g->domains = 2;
        g->local = 1;
        g->levels = levels > g->levels ? levels : g->levels;
    }
    for (int i = 0; i < m->pp && m->pp > 1; i++) {
        im_cost_group *g = &out[i];
        g->intra = c->domain.rate * c->domain.reach;
        g->alpha_in = c->domain.latency;
        g->alpha_out = c->network.latency + c->network.hop * (g->levels ? g->levels - 1 : 0);
        g->inter = g->domains > 1 ? share(&s, g->levels, nic_rate(c)) : INFINITY;
        g->flow = g->domains > 1 ? g->inter : g->intra;
        for (int l = 0; l < c->network.nlevel; l++)
            g->load[l] = s.most[l];
    }
    scan_close(&s);
    return IM_OK;
}
