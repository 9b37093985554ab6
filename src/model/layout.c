/* layout: parameters of one rank as segments of flat buckets.
 *
 *     a bucket of a block, dp 2, ZeRO 1:    | q k v | o | pad | norm1 | gate up | down |
 *                                           |<------- shard 0 ------>|<--- shard 1 --->|
 *
 * The cut ignores parameter borders: rank i updates elements [shard[i], shard[i+1]) of the flat run. A box of a split parameter
 * that a cut goes through becomes up to three segments: the rest of a run, whole runs, the start of a run.
 */
#include "model/share.h"

enum { IM_ALIGN = 16 /* elements: 64 bytes of fp32 */, IM_MAX_CUTS = 3 * IM_LAYOUT_MAX_BOXES };

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

/* ---- what a parameter is ---------------------------------------------------------- */

typedef struct use_of {
    im_slot slot;
    bool fused;      /* a qkv weight or bias that holds all three, a gate that holds up too */
    uint64_t stages; /* as bits */
} use_of;

static use_of find_use(const im_model *m, size_t param, const int *stage_of_unit)
{
    use_of u = {.slot = IM_SLOT_COUNT};
    for (size_t i = 0; i < m->nunit; i++)
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[i].param[s] == (int32_t)param) {
                u.slot = (im_slot)s;
                const int32_t *p = m->unit[i].param;
                u.fused = (s == IM_SLOT_Q_W && p[IM_SLOT_K_W] < 0) || (s == IM_SLOT_Q_B && p[IM_SLOT_K_B] < 0) ||
                          (s == IM_SLOT_GATE_W && p[IM_SLOT_UP_W] < 0);
                u.stages |= (uint64_t)1 << stage_of_unit[i];
            }
    return u;
}

static int lowest_bit(uint64_t x)
{
    int i = 0;
    while (x && !(x & 1)) {
        x >>= 1;
        i++;
    }
    return i;
}

static bool is_norm(im_slot s)
{
    return s == IM_SLOT_NORM1_W || s == IM_SLOT_NORM1_B || s == IM_SLOT_NORM2_W || s == IM_SLOT_NORM2_B;
}

/* The groups over which the gradient of one of a parameter's boxes is a partial sum. */
static uint32_t sums_of(const im_layout *l, const use_of *u, const im_box *box)
{
    uint32_t sum = l->mesh.dp > 1 || l->zero >= 2 ? 1u << IM_GROUP_DP : 0; /* ZeRO 2 and 3 reduce into a shard, of one rank too */
    bool one_of_all_heads = (u->slot == IM_SLOT_Q_NORM_W || u->slot == IM_SLOT_K_NORM_W) && im_share_replicated(&l->model->arch, u->slot);
    if (u->stages & (u->stages - 1))
        sum |= 1u << IM_GROUP_TIED;
    if (box->kv && l->share.replicas > 1)
        sum |= 1u << IM_GROUP_KV;
    if (l->mesh.tp > 1 && (one_of_all_heads || (l->sequence_parallel && is_norm(u->slot)))) /* each rank has seen its heads, its rows only */
        sum |= 1u << IM_GROUP_TP;
    return sum;
}

static bool owns(const im_layout *l, const use_of *u, const im_box *box)
{
    bool first_stage = l->place.pp == lowest_bit(u->stages);
    bool replicated = im_share_replicated(&l->model->arch, u->slot);
    bool first_copy = replicated ? l->place.tp == 0 : box->kv ? l->place.tp % l->share.replicas == 0 : true;
    return first_stage && first_copy;
}

/* ---- buckets ------------------------------------------------------------------------- */

/* The segments of one parameter at element `at` of its bucket; returns the elements held. */
static size_t place_param(const im_layout *l, size_t param, const use_of *u, size_t at, im_bucket *b, im_segment *seg)
{
    im_box box[IM_LAYOUT_MAX_BOXES];
    int n = im_share_boxes(&l->model->arch, &l->share, u->slot, u->fused, im_param_count(&l->model->param[param]), box);
    size_t held = 0;
    for (int i = 0; i < n; i++) {
        im_segment s = {.param = (uint32_t)param,
                        .n = box[i].n,
                        .run = box[i].run,
                        .global0 = box[i].global0,
                        .global_stride = box[i].global_stride,
                        .local0 = at + box[i].local0,
                        .local_stride = box[i].n > 1 ? box[i].local_stride : 0,
                        .sum = sums_of(l, u, &box[i]),
                        .owner = owns(l, u, &box[i])};
        b->sum |= s.sum;
        if (s.n && s.run)
            seg[b->nseg++] = s;
        held += box[i].n * box[i].run;
    }
    return held;
}

static void place_bucket(im_layout *l, im_bucket *b, size_t *local, size_t *count, im_segment *seg, const int *stage_of_unit)
{
    size_t at = 0;
    for (size_t i = 0; i < b->nparam; i++) {
        size_t p = (size_t)b->first_param + i;
        use_of u = find_use(l->model, p, stage_of_unit);
        if (u.stages >> l->place.pp & 1)
            b->held = true;
        if (!l->model->param[p].glue)
            at = round_up(at);
        local[p] = at;
        count[p] = place_param(l, p, &u, at, b, seg);
        at += count[p];
    }
    b->count = round_up(at);
    b->seg = seg;
}

/* Runs [first, end) of a segment. */
static im_segment some_runs(const im_segment *s, size_t first, size_t end)
{
    im_segment r = *s;
    r.n = end - first;
    r.global0 += first * s->global_stride;
    r.local0 += first * s->local_stride;
    return r;
}

/* The part of run `i` in [from, to). */
static void part_of_run(const im_segment *s, size_t i, size_t from, size_t to, im_segment *out, size_t *nout)
{
    im_segment r = some_runs(s, i, i + 1);
    size_t a = r.local0 > from ? r.local0 : from, end = r.local0 + r.run, b = end < to ? end : to;
    if (a >= b)
        return;
    r.global0 += a - r.local0;
    r.local0 = a;
    r.run = b - a;
    out[(*nout)++] = r;
}

/* The part of a segment in elements [from, to) of its bucket, as at most three segments. */
static void cut(const im_segment *s, size_t from, size_t to, im_segment *out, size_t *nout)
{
    if (s->n == 1) {
        part_of_run(s, 0, from, to, out, nout);
        return;
    }
    size_t first = 0, end = s->n; /* runs that lie wholly inside */
    while (first < s->n && s->local0 + first * s->local_stride < from)
        first++;
    while (end > first && s->local0 + (end - 1) * s->local_stride + s->run > to)
        end--;
    if (first)
        part_of_run(s, first - 1, from, to, out, nout);
    if (end > first)
        out[(*nout)++] = some_runs(s, first, end);
    if (end < s->n && end >= first)
        part_of_run(s, end, from, to, out, nout);
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
    for (size_t i = 0; i < b->nseg; i++)
        cut(&b->seg[i], from, to, owned, &b->nowned);
    for (size_t i = 0; i < b->nowned; i++)
        owned[i].owner = owned[i].owner && (l->zero || l->place.dp == 0); /* under ZeRO the cut itself decides */
}

static im_status fill_layout(im_context *ctx, im_layout *l, const int *stage_of_unit)
{
    const im_model *m = l->model;
    size_t dp1 = (size_t)l->mesh.dp + 1;
    size_t *local = IM_ARENA_NEW(l->arena, size_t, m->nparam), *count = IM_ARENA_NEW(l->arena, size_t, m->nparam);
    im_segment *seg = IM_ARENA_NEW(l->arena, im_segment, m->nparam * IM_LAYOUT_MAX_BOXES),
               *owned = IM_ARENA_NEW(l->arena, im_segment, m->nparam * IM_MAX_CUTS);
    size_t *shard = IM_ARENA_NEW(l->arena, size_t, m->nbucket * dp1);
    im_bucket *bucket = IM_ARENA_NEW(l->arena, im_bucket, m->nbucket);
    if (!local || !count || !seg || !owned || !shard || !bucket)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the layout of %zu parameters", m->nparam);
    for (size_t p = 0; p < m->nparam; p++) {
        im_bucket *b = &bucket[m->param[p].bucket];
        if (!b->nparam++)
            b->first_param = (uint16_t)p;
    }
    for (size_t i = 0; i < m->nbucket; i++) {
        im_bucket *b = &bucket[i];
        size_t p = b->first_param;
        place_bucket(l, b, local, count, seg + p * IM_LAYOUT_MAX_BOXES, stage_of_unit);
        shard_bucket(l, b, shard + i * dp1, owned + p * IM_MAX_CUTS);
        if (!b->held) {
            for (size_t k = 0; k < b->nparam; k++)
                local[p + k] = SIZE_MAX;
            continue;
        }
        b->offset = l->count;
        l->count += b->count;
    }
    l->bucket = bucket;
    l->param_local = local;
    l->param_count = count;
    return IM_OK;
}

im_status im_layout_create(im_context *ctx, const im_model *m, im_mesh mesh, int rank, int zero, bool sequence_parallel, const int *stage_of_unit,
                           im_layout **out)
{
    if (mesh.cp != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "cp %d: context parallelism is in the plan, but not built yet; cp 1", mesh.cp);
    IM_TRY(im_share_check(ctx, m, mesh.tp));
    im_arena *a;
    IM_TRY(im_arena_create(ctx, &a));
    im_layout *l = IM_ARENA_NEW(a, im_layout, 1);
    if (!l) {
        im_arena_destroy(a);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a layout");
    }
    im_place place = im_mesh_place(&mesh, rank);
    *l = (im_layout){.mesh = mesh,
                     .rank = rank,
                     .zero = zero,
                     .sequence_parallel = sequence_parallel && mesh.tp > 1,
                     .place = place,
                     .model = m,
                     .arena = a,
                     .share = im_share_of(&m->arch, mesh.tp, place.tp)};
    im_status status = fill_layout(ctx, l, stage_of_unit);
    if (status != IM_OK) {
        im_arena_destroy(a);
        return status;
    }
    *out = l;
    return IM_OK;
}

void im_layout_destroy(im_layout *l)
{
    if (l)
        im_arena_destroy(l->arena);
}
