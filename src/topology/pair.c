/* Which NIC for which GPU, and which NICs are rails. */
#include "topology/graph.h"

#include <stdlib.h>
#include <string.h>

/* Distances weigh so much that an order of names never outweighs one. */
enum { STEP = 100000 };

/* Least-cost assignment of n rows to n columns, cost[n][n] >= 0; col_of[row]. The Hungarian method with potentials: one
 * shortest augmenting path for each row. work: 3 * (n + 1) longs, back: 2 * (n + 1) ints, used: n + 1 bools. */
static void assign(const long *cost, int n, long *work, int *back, bool *used, int *col_of)
{
    long *u = work, *v = work + n + 1, *least = work + 2 * (n + 1);
    int *row_of = back, *from = back + n + 1; /* 1-based; row_of[0] is the row being placed */
    for (int r = 1; r <= n; r++) {
        int at = 0;
        row_of[0] = r;
        for (int c = 0; c <= n; c++) {
            least[c] = INT64_MAX / 4;
            used[c] = false;
        }
        do {
            const int row = row_of[at];
            long delta = INT64_MAX / 4;
            int next = 0;
            used[at] = true;
            for (int c = 1; c <= n; c++) {
                if (used[c])
                    continue;
                const long reduced = cost[(row - 1) * n + c - 1] - u[row] - v[c];
                if (reduced < least[c]) {
                    least[c] = reduced;
                    from[c] = at;
                }
                if (least[c] < delta) {
                    delta = least[c];
                    next = c;
                }
            }
            for (int c = 0; c <= n; c++) {
                if (used[c]) {
                    u[row_of[c]] += delta;
                    v[c] -= delta;
                } else {
                    least[c] -= delta;
                }
            }
            at = next;
        } while (row_of[at]);
        for (; at; at = from[at])
            row_of[at] = row_of[from[at]];
    }
    for (int c = 1; c <= n; c++)
        col_of[row_of[c] - 1] = c - 1;
}

/* ---- rails --------------------------------------------------------------------------------- */

static bool usable(const im_item *n)
{
    return n->active != 0; /* -1: the XML lists what NCCL could use */
}

static size_t alike(const im_graph *g, const im_item *like)
{
    size_t n = 0;
    for (size_t i = 0; i < g->nnics; i++)
        n += usable(&g->nic[i]) && g->nic[i].gbps == like->gbps && g->nic[i].ethernet == like->ethernet;
    return n;
}

/* The fastest; of equals the kind with more NICs, InfiniBand before Ethernet. */
static const im_item *rail_kind(const im_graph *g)
{
    const im_item *best = NULL;
    for (size_t i = 0; i < g->nnics; i++) {
        const im_item *x = &g->nic[i];
        if (!usable(x))
            continue;
        const size_t mine = alike(g, x), other = best ? alike(g, best) : 0;
        if (!best || x->gbps > best->gbps || (x->gbps == best->gbps && (mine > other || (mine == other && best->ethernet && !x->ethernet))))
            best = x;
    }
    return best;
}

static void choose_rails(im_arena *a, const im_graph *g, im_pairing *p)
{
    const im_item *kind = rail_kind(g);
    for (size_t i = 0; i < g->nnics; i++) {
        const im_item *x = &g->nic[i];
        if (kind && usable(x) && x->gbps == kind->gbps && x->ethernet == kind->ethernet) {
            p->rail[p->nrails++] = x;
            continue;
        }
        p->aside_why[p->nasides] = !usable(x)                      ? "no active port"
                                   : x->ethernet != kind->ethernet ? im_arena_printf(a, "%s beside %s", x->ethernet ? "Ethernet" : "InfiniBand",
                                                                                     kind->ethernet ? "Ethernet" : "InfiniBand")
                                                                   : im_arena_printf(a, "%g Gb/s beside %g", x->gbps, kind->gbps);
        p->aside[p->nasides++] = x;
    }
}

/* ---- pairs ------------------------------------------------------------------------------------- */

/* Rows: GPUs, then nobody. Columns: each NIC as often as it must serve, in the order of names. */
static void fill_costs(const im_graph *g, const im_pairing *p, int share, int n, long *cost)
{
    for (int r = 0; r < n; r++)
        for (int c = 0; c < n; c++) {
            long *at = &cost[r * n + c];
            *at = 0;
            if (r >= (int)g->ngpus)
                continue;
            if (c >= (int)p->nrails * share) {
                *at = 20 * STEP;
                continue;
            }
            const int nic = c / share;
            /* of equal distances: GPUs and NICs in the same order */
            const long order = labs((long)r * (long)p->nrails - (long)nic * (long)g->ngpus);
            *at = (long)im_graph_path(g, &g->gpu[r], p->rail[nic]) * STEP + (order < STEP / 64 ? order : STEP / 64);
        }
}

im_status im_graph_pair(im_context *ctx, im_arena *a, const im_graph *g, im_pairing *out)
{
    *out = (im_pairing){.nic = IM_ARENA_NEW(a, const im_item *, g->ngpus + 1),
                        .path = IM_ARENA_NEW(a, im_path, g->ngpus + 1),
                        .rail = IM_ARENA_NEW(a, const im_item *, g->nnics + 1),
                        .aside = IM_ARENA_NEW(a, const im_item *, g->nnics + 1),
                        .aside_why = IM_ARENA_NEW(a, const char *, g->nnics + 1)};
    if (!out->nic || !out->path || !out->rail || !out->aside || !out->aside_why)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a pairing");
    choose_rails(a, g, out);
    if (!g->ngpus || !out->nrails)
        return IM_OK;
    const int share = (int)((g->ngpus + out->nrails - 1) / out->nrails);
    const int columns = (int)out->nrails * share, n = columns > (int)g->ngpus ? columns : (int)g->ngpus;
    if (n > 512)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu GPUs and %zu NICs are more than one machine has", g->source, g->ngpus, g->nnics);
    long *cost = IM_ARENA_NEW(a, long, n *n), *work = IM_ARENA_NEW(a, long, 3 * (n + 1));
    int *back = IM_ARENA_NEW(a, int, 2 * (n + 1)), *col = IM_ARENA_NEW(a, int, n);
    bool *used = IM_ARENA_NEW(a, bool, n + 1);
    if (!cost || !work || !back || !col || !used)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a pairing");
    fill_costs(g, out, share, n, cost);
    assign(cost, n, work, back, used, col);
    for (size_t i = 0; i < g->ngpus; i++) {
        out->nic[i] = col[i] < columns ? out->rail[col[i] / share] : NULL;
        out->path[i] = out->nic[i] ? im_graph_path(g, &g->gpu[i], out->nic[i]) : IM_PATH_UNKNOWN;
    }
    return IM_OK;
}
