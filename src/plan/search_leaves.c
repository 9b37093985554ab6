/* Every layout there is: all meshes of the devices, all micro-batches that differ, and what else a plan can say. */
#include "plan/search_leaves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- orders of the ranks --------------------------------------------------------------------------- */

void im_search_place(const im_mesh *m, int order, int *device)
{
    static const uint8_t axes[IM_SEARCH_ORDERS][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}; /* 0 tp, 1 dp, 2 pp */
    const int size[3] = {m->tp, m->dp, m->pp};
    for (int r = 0; r < im_mesh_size(m); r++) {
        im_place p = im_mesh_place(m, r);
        const int at[3] = {p.tp, p.dp, p.pp};
        int stride = 1;
        device[r] = 0;
        for (int i = 0; i < 3; i++) {
            device[r] += at[axes[order][i]] * stride;
            stride *= size[axes[order][i]];
        }
    }
}

/* Orders that place some rank elsewhere than the ones before; one alone where all devices lie in one domain. */
static im_status add_orders(im_context *ctx, im_leaves *l, im_search_mesh *m)
{
    int ranks = im_mesh_size(&m->mesh), fixed = l->r->fix.order;
    const im_cluster *c = l->r->cluster;
    for (int o = 0; o < IM_SEARCH_ORDERS; o++) {
        if (fixed >= 0 ? o != fixed : o > 0 && (c->domain.devices >= im_cluster_devices(c) || ranks <= c->domain.devices))
            continue;
        int *device = NULL;
        if (o > 0) {
            device = IM_ARENA_NEW(l->arena, int, ranks);
            if (!device)
                return im_fail(ctx, IM_ERR_NOMEM, "no memory for the order of %d ranks", ranks);
            im_search_place(&m->mesh, o, device);
        }
        bool seen = false;
        for (int k = 0; device && k < m->norder && !seen; k++) {
            const int *other = m->device[m->order[k]];
            seen = true;
            for (int r = 0; seen && r < ranks; r++)
                seen = device[r] == (other ? other[r] : r);
        }
        if (seen)
            continue;
        m->device[o] = device;
        m->order[m->norder++] = o;
    }
    return IM_OK;
}

/* ---- meshes ------------------------------------------------------------------------------------------ */

static im_status weights_number(im_context *ctx, im_leaves *l, int tp, int *out)
{
    for (*out = 0; *out < l->nweights; ++*out)
        if (l->weights_tp[*out] == tp)
            return IM_OK;
    im_weights *w = realloc(l->weights, sizeof *w * ((size_t)l->nweights + 1));
    l->weights = w ? w : l->weights;
    int *t = realloc(l->weights_tp, sizeof *t * ((size_t)l->nweights + 1));
    l->weights_tp = t ? t : l->weights_tp;
    if (!w || !t)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for layouts");
    IM_TRY(im_weights_of(ctx, &l->mini, tp, &l->weights[l->nweights]));
    l->weights_tp[l->nweights++] = tp;
    return IM_OK;
}

static im_refusal mesh_refusal(im_context *scratch, const im_leaves *l, const im_mesh *m)
{
    const im_search_request *r = l->r;
    im_error_clear(scratch);
    if (im_share_check(scratch, r->base.model, m->tp) != IM_OK)
        return IM_REFUSED_HEADS;
    if (m->pp > r->base.model->arch.L || m->pp > 64)
        return IM_REFUSED_STAGES;
    return r->base.global_batch < m->dp ? IM_REFUSED_BATCH : IM_REFUSED_NOT;
}

static im_status add_mesh(im_context *ctx, im_context *scratch, im_leaves *l, im_mesh mesh)
{
    const im_search_fix *f = &l->r->fix;
    if ((f->tp >= 0 && f->tp != mesh.tp) || (f->dp >= 0 && f->dp != mesh.dp) || (f->pp >= 0 && f->pp != mesh.pp))
        return IM_OK;
    im_refusal why = mesh_refusal(scratch, l, &mesh);
    if (why != IM_REFUSED_NOT) {
        l->refused[why]++;
        return IM_OK;
    }
    if (l->nmesh == l->capmesh) {
        int cap = l->capmesh ? l->capmesh * 2 : 64;
        im_search_mesh *more = realloc(l->mesh, sizeof *more * (size_t)cap);
        if (!more || cap > UINT16_MAX)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for %d meshes", cap);
        l->mesh = more;
        l->capmesh = cap;
    }
    im_search_mesh *m = &l->mesh[l->nmesh];
    *m = (im_search_mesh){.mesh = mesh};
    l->nmesh++;
    IM_TRY(weights_number(ctx, l, mesh.tp, &m->weights));
    return add_orders(ctx, l, m);
}

static im_status add_meshes(im_context *ctx, im_context *scratch, im_leaves *l, int devices)
{
    for (int pp = 1; pp <= devices; pp++)
        for (int tp = 1; devices % pp == 0 && tp <= devices / pp; tp++)
            if (devices / pp % tp == 0)
                IM_TRY(add_mesh(ctx, scratch, l, (im_mesh){.tp = tp, .cp = 1, .dp = devices / pp / tp, .pp = pp}));
    return IM_OK;
}

/* ---- costs and pieces ----------------------------------------------------------------------------------- */

static im_status mesh_cost(im_context *ctx, im_leaves *l, im_search_mesh *m, int order, im_cost **out)
{
    if (!m->cost[order]) {
        im_plan p = l->r->base;
        im_cost_options o = l->r->cost;
        p.mesh = m->mesh;
        o.device = m->device[order];
        IM_TRY(im_cost_open(ctx, l->r->cluster, &p, &o, &m->cost[order]));
        const im_cost_group *tp = im_cost_group_of(m->cost[order], IM_GROUP_TP), *kv = im_cost_group_of(m->cost[order], IM_GROUP_KV);
        int k = 0;
        while (k < l->ntp && (memcmp(&l->tp_groups[k][0], tp, sizeof *tp) || memcmp(&l->tp_groups[k][1], kv, sizeof *kv)))
            k++;
        if (k == l->captp) {
            int cap = l->captp ? l->captp * 2 : 32;
            void *more = realloc(l->tp_groups, sizeof *l->tp_groups * (size_t)cap);
            if (!more)
                return im_fail(ctx, IM_ERR_NOMEM, "no memory for layouts");
            l->tp_groups = more;
            l->captp = cap;
        }
        if (k == l->ntp) {
            l->tp_groups[k][0] = *tp;
            l->tp_groups[k][1] = *kv;
            l->ntp++;
        }
        m->tp_class[order] = k + 1;
    }
    *out = m->cost[order];
    return IM_OK;
}

static uint64_t hash_piece(const im_piece_key *k, int class)
{
    uint64_t h = (uint64_t)k->batch * 0x9e3779b97f4a7c15u + (uint64_t)k->tp * 0xc2b2ae3d27d4eb4fu + (uint64_t) class * 0x165667b19e3779f9u;
    h += (uint64_t)k->recompute * 4 + (uint64_t)k->sequence_parallel * 2 + k->splits;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

static bool same_piece(const im_piece_slot *s, const im_piece_key *k, int class)
{
    return s->tp_class == class && s->key.tp == k->tp && s->key.batch == k->batch && s->key.sequence_parallel == k->sequence_parallel &&
           s->key.splits == k->splits && s->key.recompute == k->recompute;
}

static im_piece_slot *find_slot(im_piece_slot *slot, size_t n, const im_piece_key *k, int class)
{
    size_t at = hash_piece(k, class) & (n - 1);
    while (slot[at].piece && !same_piece(&slot[at], k, class))
        at = (at + 1) & (n - 1);
    return &slot[at];
}

static im_status grow_pieces(im_context *ctx, im_leaves *l)
{
    size_t n = l->nslot ? l->nslot * 2 : 1024;
    im_piece_slot *more = calloc(n, sizeof *more);
    if (!more)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for prices");
    for (size_t i = 0; i < l->nslot; i++)
        if (l->slot[i].piece)
            *find_slot(more, n, &l->slot[i].key, l->slot[i].tp_class) = l->slot[i];
    free(l->slot);
    l->slot = more;
    l->nslot = n;
    return IM_OK;
}

im_status im_leaf_piece(im_context *ctx, im_leaves *l, const im_leaf *f, int order, const im_piece **out)
{
    im_search_mesh *m = &l->mesh[f->mesh];
    im_piece_key k = {.tp = m->mesh.tp,
                      .batch = order < 0 ? 1 : f->batch,
                      .sequence_parallel = f->sequence_parallel,
                      .splits = im_schedule_of((im_schedule)f->schedule)->splits,
                      .recompute = (im_recompute)f->recompute};
    im_cost *cost;
    if (l->used * 2 >= l->nslot)
        IM_TRY(grow_pieces(ctx, l));
    int class = 0;
    if (order >= 0) {
        IM_TRY(mesh_cost(ctx, l, m, order, &cost));
        class = m->tp_class[order];
    }
    im_piece_slot *s = find_slot(l->slot, l->nslot, &k, class);
    if (!s->piece) {
        if (order < 0)
            IM_TRY(mesh_cost(ctx, l, m, m->order[0], &cost));
        im_piece *p = IM_ARENA_NEW(l->arena, im_piece, 1);
        if (!p)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for prices");
        IM_TRY(im_piece_price(ctx, &l->mini, &l->r->base, cost, &k, p));
        *s = (im_piece_slot){.key = k, .tp_class = class, .piece = p};
        l->used++;
    }
    *out = s->piece;
    return IM_OK;
}

/* ---- leaves ------------------------------------------------------------------------------------------------- */

static im_status add_leaf(im_context *ctx, im_leaves *l, im_leaf f)
{
    for (int i = 0; i < f.cuts->n; i++) {
        if (l->n == l->cap) {
            uint32_t cap = l->cap ? l->cap * 2 : 4096;
            im_leaf *more = realloc(l->leaf, sizeof *more * cap);
            if (!more)
                return im_fail(ctx, IM_ERR_NOMEM, "no memory for %u layouts", cap);
            l->leaf = more;
            l->cap = cap;
        }
        f.cut = (uint8_t)i;
        l->leaf[l->n++] = f;
    }
    return IM_OK;
}

static bool wanted(int fixed, int value)
{
    return fixed < 0 || fixed == value;
}

static im_plan plan_of(const im_leaves *l, const im_leaf *f)
{
    im_plan p = l->r->base;
    p.mesh = l->mesh[f->mesh].mesh;
    p.zero = f->zero;
    p.schedule = (im_schedule)f->schedule;
    p.chunks = f->chunks;
    p.sequence_parallel = f->sequence_parallel;
    p.recompute = (im_recompute)f->recompute;
    p.micro_batch = f->batch;
    p.stages = f->cuts ? f->cuts->how[f->cut] : IM_STAGES_EVEN;
    p.cut = f->cuts && p.stages == IM_STAGES_GIVEN ? f->cuts->blocks[f->cut] : NULL;
    return p;
}

/* ZeRO, sequence parallelism and recompute of a leaf that has the rest. */
static im_status add_rest(im_context *ctx, im_leaves *l, im_leaf f)
{
    const im_search_fix *x = &l->r->fix;
    const im_mesh *m = &l->mesh[f.mesh].mesh;
    for (int zero = 0; zero <= (m->dp > 1 || x->zero > 0 ? 3 : 0); zero++)
        for (int sp = 0; sp <= (m->tp > 1); sp++)
            for (int re = 0; re <= IM_RECOMPUTE_FULL; re++) {
                if (!wanted(x->zero, zero) || !wanted(x->sequence_parallel, sp) || !wanted(x->recompute, re))
                    continue;
                f.zero = (uint8_t)zero;
                f.sequence_parallel = sp;
                f.recompute = (uint8_t)re;
                if (zero >= 2 && m->pp > 1 && l->r->base.model->arch.tied)
                    l->refused[IM_REFUSED_TIED] += f.cuts->n;
                else
                    IM_TRY(add_leaf(ctx, l, f));
            }
    return IM_OK;
}

/* All micro-batches that differ: those of so many sequences that one less would make more of them. */
static im_status add_batches(im_context *ctx, im_context *scratch, im_leaves *l, im_leaf f)
{
    const im_plan *base = &l->r->base;
    const im_mesh *m = &l->mesh[f.mesh].mesh;
    int64_t n = (base->global_batch + m->dp - 1) / m->dp, fixed = l->r->fix.micro_batch;
    for (int64_t b = 1, next; b <= n; b = next) {
        int64_t count = (n + b - 1) / b;
        next = count > 1 ? (n + count - 2) / (count - 1) : n + 1;
        if (fixed > 0) {
            if (b > 1)
                break;
            b = fixed < n ? fixed : n;
            count = (n + b - 1) / b;
            next = n + 1;
        }
        f.batch = (int32_t)b;
        f.m = (int32_t)count;
        im_plan p = plan_of(l, &f);
        p.sequence_parallel = false;
        im_error_clear(scratch);
        if (im_plan_validate_shape(scratch, &p) != IM_OK) {
            p.global_batch = m->dp; /* one micro-batch */
            p.micro_batch = 1;
            im_error_clear(scratch);
            l->refused[im_plan_validate_shape(scratch, &p) == IM_OK ? IM_REFUSED_MICRO_BATCHES : IM_REFUSED_RULE]++;
            continue;
        }
        IM_TRY(add_rest(ctx, l, f));
    }
    return IM_OK;
}

static im_status add_schedule(im_context *ctx, im_context *scratch, im_leaves *l, im_leaf f)
{
    const im_piece *piece;
    im_search_cuts *cuts = IM_ARENA_NEW(l->arena, im_search_cuts, 1);
    if (!cuts)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for stages");
    f.batch = 1;
    IM_TRY(im_leaf_piece(ctx, l, &f, -1, &piece));
    im_plan p = plan_of(l, &f);
    IM_TRY(im_search_cut(ctx, &p, piece, &l->mini, l->r->fix.stages, l->arena, cuts));
    f.cuts = cuts;
    return add_batches(ctx, scratch, l, f);
}

static im_status add_mesh_leaves(im_context *ctx, im_context *scratch, im_leaves *l, int mesh)
{
    const im_search_fix *x = &l->r->fix;
    int pp = l->mesh[mesh].mesh.pp;
    int64_t L = l->r->base.model->arch.L;
    for (int s = 0; s < IM_SCHEDULE_COUNT; s++) {
        bool chunks = im_schedule_of((im_schedule)s)->chunks;
        if (!wanted(x->schedule, s) || (pp == 1 && s != IM_SCHEDULE_1F1B && x->schedule < 0))
            continue;
        if (chunks && (pp == 1 || 2 * pp > L)) {
            l->refused[IM_REFUSED_STAGES] += 2 * pp > L;
            continue;
        }
        for (int v = chunks ? 2 : 1; v <= (chunks ? IM_MAX_CHUNKS : 1) && (int64_t)v * pp <= L; v++)
            if (wanted(x->chunks, v))
                IM_TRY(add_schedule(ctx, scratch, l, (im_leaf){.mesh = (uint16_t)mesh, .schedule = (uint8_t)s, .chunks = (uint8_t)v}));
    }
    return IM_OK;
}

/* ---- all together -------------------------------------------------------------------------------------------- */

static double best_rate(const im_cluster_device *d)
{
    double best = 0;
    for (int n = 0; n < IM_NUMBER_COUNT; n++) {
        double share = d->matmul[n].n ? 0 : 1;
        for (int i = 0; i < d->matmul[n].n; i++)
            share = fmax(share, d->matmul[n].y[i]);
        best = n == IM_NUMBER_FP8 ? best : fmax(best, d->peak[n] * share);
    }
    return best;
}

static im_status add_all(im_context *ctx, im_context *scratch, im_leaves *l)
{
    int devices = l->r->devices;
    for (int d = l->r->objective == IM_OBJECTIVE_COST ? 1 : devices; d <= devices; d++)
        if (devices % d == 0)
            IM_TRY(add_meshes(ctx, scratch, l, d));
    for (int m = 0; m < l->nmesh; m++)
        IM_TRY(add_mesh_leaves(ctx, scratch, l, m));
    return IM_OK;
}

im_status im_leaves_open(im_context *ctx, const im_search_request *r, im_arena *a, im_leaves *out)
{
    im_context *scratch; /* refusals are no errors */
    *out = (im_leaves){.r = r, .arena = a, .best_rate = best_rate(&r->cluster->device)};
    IM_TRY(im_context_create(&scratch));
    im_status status = im_mini_make(ctx, r->base.model, a, &out->mini);
    if (status == IM_OK)
        status = add_all(ctx, scratch, out);
    im_context_destroy(scratch);
    if (status != IM_OK)
        im_leaves_close(out);
    return status;
}

void im_leaves_close(im_leaves *l)
{
    for (int m = 0; m < l->nmesh; m++)
        for (int o = 0; o < IM_SEARCH_ORDERS; o++)
            im_cost_close(l->mesh[m].cost[o]);
    free(l->mesh);
    free(l->weights);
    free(l->weights_tp);
    free(l->leaf);
    free(l->slot);
    free(l->tp_groups);
    *l = (im_leaves){0};
}

im_status im_leaf_outline(im_context *ctx, im_leaves *l, uint32_t leaf, int order, bool exact, im_outline *out)
{
    const im_leaf *f = &l->leaf[leaf];
    im_search_mesh *m = &l->mesh[f->mesh];
    im_cost *cost = NULL;
    *out = (im_outline){.plan = plan_of(l, f), .mini = &l->mini, .weights = &l->weights[m->weights], .blocks = f->cuts->blocks[f->cut], .m = f->m};
    int64_t sequences = (out->plan.global_batch + m->mesh.dp - 1) / m->mesh.dp;
    out->share = (double)sequences / ((double)f->m * f->batch);
    IM_TRY(im_leaf_piece(ctx, l, f, exact ? order : -1, &out->piece));
    if (exact)
        IM_TRY(mesh_cost(ctx, l, m, order, &cost));
    out->cost = cost;
    return IM_OK;
}

double im_leaf_floor(const im_leaves *l, const im_outline *o)
{
    int pp = o->plan.mesh.pp, v = im_plan_chunks(&o->plan);
    double block = INFINITY, batch = (double)o->plan.micro_batch, fill = 0, most = 0;
    for (int k = 0; k < l->mini.kinds; k++)
        block = fmin(block, o->piece->flops[k]);
    bool split = im_schedule_of(o->plan.schedule)->splits;
    for (int s = 0; s < pp; s++) {
        double own = s + 1 == pp ? o->piece->head_flops : 0;
        for (int c = 0; c < v; c++)
            own += (double)o->blocks[c * pp + s] * block;
        most = fmax(most, o->m * own + fill);
        fill += split ? 0 : (double)o->blocks[s] * block; /* the first chunk's forward and its backward, which ends the step */
    }
    return most * batch * o->share / l->best_rate;
}

int im_leaf_orders(const im_leaves *l, uint32_t leaf, int out[IM_SEARCH_ORDERS])
{
    const im_search_mesh *m = &l->mesh[l->leaf[leaf].mesh];
    memcpy(out, m->order, sizeof m->order);
    return m->norder;
}

const int *im_leaf_devices(const im_leaves *l, uint32_t leaf, int order)
{
    return l->mesh[l->leaf[leaf].mesh].device[order];
}
