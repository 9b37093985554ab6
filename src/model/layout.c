/* layout: parameters of one rank as segments of flat buckets.
 *
 *     bucket 2 of a block, dp 2, ZeRO 1:    | q k v | o | pad | norm1 | gate up | down |
 *                                           |<------- shard 0 ------>|<--- shard 1 --->|
 *
 * The cut ignores parameter borders: rank i updates elements [shard[i], shard[i+1]) of the flat run.
 */
#include "model/layout.h"

enum { IM_ALIGN = 16 }; /* elements: 64 bytes of fp32 */

int im_mesh_size(const im_mesh *m)
{
    return m->tp * m->cp * m->dp * m->pp;
}

im_place im_mesh_place(const im_mesh *m, int rank)
{
    im_place p = {.tp = rank % m->tp};
    rank /= m->tp;
    p.cp = rank % m->cp;
    rank /= m->cp;
    p.dp = rank % m->dp;
    p.pp = rank / m->dp;
    return p;
}

int im_mesh_rank(const im_mesh *m, im_place p)
{
    return p.tp + m->tp * (p.cp + m->cp * (p.dp + m->dp * p.pp));
}

static size_t round_up(size_t n)
{
    return (n + IM_ALIGN - 1) / IM_ALIGN * IM_ALIGN;
}

/* Which stages use each parameter, as bits; more than one: a tied parameter over stages. */
static uint64_t stages_of_param(const im_model *m, size_t param, const int *stage_of_unit)
{
    uint64_t stages = 0;
    for (size_t u = 0; u < m->nunit; u++)
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[u].param[s] == (int32_t)param)
                stages |= (uint64_t)1 << stage_of_unit[u];
    return stages;
}

/* The part of a segment of the whole bucket that lies in [from, to). Segments here are single runs. */
static bool cut(const im_segment *whole, size_t from, size_t to, im_segment *out)
{
    size_t a = whole->local0 > from ? whole->local0 : from;
    size_t end = whole->local0 + whole->run, b = end < to ? end : to;
    if (a >= b)
        return false;
    *out = *whole;
    out->run = b - a;
    out->global0 = whole->global0 + (a - whole->local0);
    out->local0 = a;
    return true;
}

static void place_bucket(im_layout *l, im_bucket *b, size_t *local, im_segment *seg, const int *stage_of_unit)
{
    const im_model *m = l->model;
    size_t at = 0;
    int first_stage_of_bucket = 0;
    for (size_t i = 0; i < b->nparam; i++) {
        size_t p = (size_t)b->first_param + i;
        uint64_t stages = stages_of_param(m, p, stage_of_unit);
        bool tied_over_stages = (stages & (stages - 1)) != 0;
        if (stages >> l->place.pp & 1)
            b->held = true;
        while (stages && !(stages & 1)) {
            stages >>= 1;
            first_stage_of_bucket++;
        }
        if (!m->param[p].glue)
            at = round_up(at);
        size_t n = (size_t)im_param_count(&m->param[p]);
        local[p] = at;
        uint32_t sum = l->mesh.dp > 1 || l->zero >= 2 ? 1u << IM_GROUP_DP : 0; /* ZeRO 2 and 3 reduce into a shard, of one rank too */
        if (tied_over_stages)
            sum |= 1u << IM_GROUP_TIED;
        seg[i] = (im_segment){.param = (uint32_t)p, .n = 1, .run = n, .local0 = at, .sum = sum,
                              .owner = l->place.pp == first_stage_of_bucket && l->place.dp == 0};
        first_stage_of_bucket = 0;
        at += n;
    }
    b->count = round_up(at);
    b->seg = seg;
    b->nseg = b->nparam;
}

/* shard cuts, multiples of IM_ALIGN, as equal as they can be; the last shards may be empty */
static void shard_bucket(const im_layout *l, im_bucket *b, size_t *shard, im_segment *owned)
{
    int dp = l->mesh.dp;
    size_t blocks = b->count / IM_ALIGN;
    for (int r = 0; r <= dp; r++)
        shard[r] = blocks * (size_t)r / (size_t)dp * IM_ALIGN;
    b->shard = shard;
    size_t from = l->zero ? shard[l->place.dp] : 0, to = l->zero ? shard[l->place.dp + 1] : b->count;
    b->owned = owned;
    for (size_t i = 0; i < b->nseg; i++) {
        im_segment s;
        if (!cut(&b->seg[i], from, to, &s))
            continue;
        /* under ZeRO the cut itself decides who owns; the tied copy of a later stage never does */
        bool first_stage = b->seg[i].owner || l->place.dp != 0;
        if (l->zero)
            s.owner = first_stage && (b->seg[i].sum >> IM_GROUP_TIED & 1 ? l->place.pp == 0 : true);
        owned[b->nowned++] = s;
    }
}

im_status im_layout_create(im_context *ctx, const im_model *m, im_mesh mesh, int rank, int zero, const int *stage_of_unit, im_layout **out)
{
    if (mesh.tp != 1 || mesh.cp != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "tp %d, cp %d: this build lays parameters out for tp 1 and cp 1 only", mesh.tp, mesh.cp);
    im_arena *a;
    im_status status = im_arena_create(ctx, &a);
    if (status != IM_OK)
        return status;
    im_layout *l = IM_ARENA_NEW(a, im_layout, 1);
    size_t *local = IM_ARENA_NEW(a, size_t, m->nparam);
    im_segment *seg = IM_ARENA_NEW(a, im_segment, m->nparam), *owned = IM_ARENA_NEW(a, im_segment, m->nparam);
    size_t *shard = IM_ARENA_NEW(a, size_t, m->nbucket * ((size_t)mesh.dp + 1));
    im_bucket *bucket = IM_ARENA_NEW(a, im_bucket, m->nbucket);
    if (!l || !local || !seg || !owned || !shard || !bucket) {
        im_arena_destroy(a);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the layout of %zu parameters", m->nparam);
    }
    *l = (im_layout){.mesh = mesh, .rank = rank, .zero = zero, .place = im_mesh_place(&mesh, rank), .model = m,
                     .bucket = bucket, .param_local = local, .arena = a};
    for (size_t p = 0; p < m->nparam; p++) {
        im_bucket *b = &bucket[m->param[p].bucket];
        if (!b->nparam++)
            b->first_param = (uint16_t)p;
    }
    for (size_t i = 0; i < m->nbucket; i++) {
        im_bucket *b = &bucket[i];
        size_t p = b->first_param;
        place_bucket(l, b, local, seg + p, stage_of_unit);
        shard_bucket(l, b, shard + i * ((size_t)mesh.dp + 1), owned + p);
        if (!b->held) {
            for (size_t k = 0; k < b->nparam; k++)
                local[p + k] = SIZE_MAX;
            continue;
        }
        b->offset = l->count;
        l->count += b->count;
    }
    *out = l;
    return IM_OK;
}

void im_layout_destroy(im_layout *l)
{
    if (l)
        im_arena_destroy(l->arena);
}
