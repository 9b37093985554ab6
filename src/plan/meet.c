/* Which ops of which ranks meet: collectives by group and queue, messages by channel, each in the order of the rank's own list. */
#include "plan/meet.h"

#include <stdlib.h>
#include <string.h>

enum { IM_MEET_KINDS = 64 }; /* groups x queues and channels that one rank uses */

/* What a rank's ops of one kind have in common, and how many there were. */
typedef struct kind_of {
    int kind, anchor, members, ordinal;
} kind_of;

typedef struct finder {
    im_context *ctx;
    const im_program *const *p;
    im_meetings *m;
    kind_of seen[IM_MEET_KINDS]; /* of the rank that is read */
    int nseen;
} finder;

static bool in_group(const im_layout *a, const im_layout *b, int g)
{
    im_place p = a->place, q = b->place;
    bool pp = p.pp == q.pp, dp = p.dp == q.dp, tp = p.tp == q.tp, cp = p.cp == q.cp;
    switch ((im_group_id)g) {
    case IM_GROUP_WORLD: return true;
    case IM_GROUP_TP: return cp && dp && pp;
    case IM_GROUP_CP: return tp && dp && pp;
    case IM_GROUP_DP: return tp && cp && pp;
    case IM_GROUP_PP: return tp && cp && dp;
    case IM_GROUP_TIED: return tp && cp && dp && (q.pp == 0 || q.pp == b->mesh.pp - 1);
    case IM_GROUP_KV: return cp && dp && pp && p.tp / a->share.replicas == q.tp / b->share.replicas;
    default: return a->rank == b->rank;
    }
}

static bool meets(const im_bound *x)
{
    int c = x->op->collective;
    return !x->op->kind &&
           (c == IM_COLL_ALL_REDUCE || c == IM_COLL_REDUCE_SCATTER || c == IM_COLL_ALL_GATHER || c == IM_COLL_SEND || c == IM_COLL_RECV);
}

static bool is_message(const im_bound *x)
{
    return x->op->collective == IM_COLL_SEND || x->op->collective == IM_COLL_RECV;
}

static kind_of new_kind(const finder *f, int r, const im_bound *x, int kind)
{
    const im_program *p = f->p[r];
    const im_step *s = &p->step[x->step];
    kind_of k = {.kind = kind, .anchor = -1};
    if (is_message(x)) {
        bool down = s->target == IM_CH_ACT_OUT || s->target == IM_CH_GRAD_IN;
        im_place q = p->layout->place;
        q.pp = down ? q.pp : (q.pp + p->layout->mesh.pp - 1) % p->layout->mesh.pp; /* the earlier of the two stages */
        k.anchor = im_mesh_rank(&p->layout->mesh, q);
        k.members = 2;
        return k;
    }
    for (int i = 0; i < f->m->n; i++)
        if (in_group(p->layout, f->p[i]->layout, x->op->group)) {
            k.members++;
            if (k.anchor < 0)
                k.anchor = i;
        }
    return k;
}

static kind_of *kind_for(finder *f, int r, const im_bound *x)
{
    const im_step *s = &f->p[r]->step[x->step];
    bool act = s->target == IM_CH_ACT_IN || s->target == IM_CH_ACT_OUT, down = s->target == IM_CH_ACT_OUT || s->target == IM_CH_GRAD_IN;
    int kind = is_message(x) ? 1000 + 2 * act + down : x->op->group * IM_QUEUE_MAX + x->op->queue; /* both ends of a channel: see below */
    for (int i = 0; i < f->nseen; i++)
        if (f->seen[i].kind == kind)
            return &f->seen[i];
    if (f->nseen == IM_MEET_KINDS)
        return NULL;
    f->seen[f->nseen] = new_kind(f, r, x, kind);
    return &f->seen[f->nseen++];
}

static im_status mismatch(const finder *f, const im_meeting *m, int r, uint32_t i)
{
    im_str a = {0}, b = {0};
    im_step_print(&f->p[m->rank]->step[f->p[m->rank]->bound[m->op].step], &a);
    im_step_print(&f->p[r]->step[f->p[r]->bound[i].step], &b);
    im_status s = im_fail(f->ctx, IM_ERR_CHECK, "rank %u is at %s (%s) where rank %d is at %s (%s)", m->rank, im_str_text(&a),
                          f->p[m->rank]->bound[m->op].op->label, r, im_str_text(&b), f->p[r]->bound[i].op->label);
    im_str_free(&a);
    im_str_free(&b);
    return s;
}

/* Two ops that meet do the same thing to the same value. */
static bool agree(const im_bound *a, const im_bound *b)
{
    if (is_message(a) ? a->op->collective == b->op->collective : a->op->collective != b->op->collective)
        return false;
    int whole = a->op->collective == IM_COLL_ALL_GATHER ? 1 : 0; /* own parts may differ in size, or be empty */
    im_value va = a->value[whole], vb = b->value[whole];
    if (va.role == IM_ROLE_TEMP) /* numbered by step, which other ranks count otherwise */
        va.mb = vb.mb = 0;
    return im_value_equal(&va, &vb) && a->hi[whole] - a->lo[whole] == b->hi[whole] - b->lo[whole];
}

static uint32_t hash_of(const im_meeting *m)
{
    uint64_t h = (uint64_t)(uint32_t)m->kind * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t)m->anchor * 0xc2b2ae3d27d4eb4fu +
                 (uint64_t)(uint32_t)m->ordinal * 0x165667b19e3779f9u;
    return (uint32_t)(h ^ h >> 29 ^ h >> 47);
}

static bool grow(im_meetings *m)
{
    uint32_t cap = m->cap ? m->cap * 2 : 256;
    im_meeting *more = realloc(m->meeting, sizeof *more * cap);
    if (!more)
        return false;
    m->meeting = more;
    uint32_t *slot = calloc((size_t)cap * 2, sizeof *slot);
    if (!slot)
        return false;
    free(m->slot);
    m->slot = slot;
    m->nslot = cap * 2;
    m->cap = cap;
    for (uint32_t k = 0; k < m->count; k++) {
        uint32_t at = hash_of(&m->meeting[k]) & (m->nslot - 1);
        while (m->slot[at])
            at = (at + 1) & (m->nslot - 1);
        m->slot[at] = k + 1;
    }
    return true;
}

static im_status add(finder *f, int r, uint32_t i)
{
    im_meetings *l = f->m;
    const im_bound *x = &f->p[r]->bound[i];
    kind_of *k = kind_for(f, r, x);
    if (!k)
        return im_fail(f->ctx, IM_ERR_INTERNAL, "rank %d uses more than %d groups and queues", r, IM_MEET_KINDS);
    if (l->count == l->cap && !grow(l))
        return im_fail(f->ctx, IM_ERR_NOMEM, "no memory to check programs");
    im_meeting m = {.kind = is_message(x) ? 1000 + (k->kind & 2) : k->kind, /* a channel has one name at both ends */
                    .anchor = k->anchor,
                    .ordinal = k->ordinal++,
                    .members = k->members,
                    .rank = (uint32_t)r,
                    .op = i};
    uint32_t at = hash_of(&m) & (l->nslot - 1);
    for (; l->slot[at]; at = (at + 1) & (l->nslot - 1)) {
        const im_meeting *o = &l->meeting[l->slot[at] - 1];
        if (o->kind != m.kind || o->anchor != m.anchor || o->ordinal != m.ordinal)
            continue;
        if (!agree(&f->p[o->rank]->bound[o->op], x))
            return mismatch(f, o, r, i);
        l->of[r][i] = (int32_t)l->slot[at] - 1;
        return IM_OK;
    }
    l->slot[at] = l->count + 1;
    l->of[r][i] = (int32_t)l->count;
    l->meeting[l->count++] = m;
    return IM_OK;
}

im_status im_meetings_find(im_context *ctx, const im_program *const *ranks, int n, im_meetings *out)
{
    finder f = {.ctx = ctx, .p = ranks, .m = out};
    im_status status = IM_ERR_NOMEM;
    *out = (im_meetings){.n = n};
    out->of = calloc((size_t)n + 1, sizeof *out->of);
    for (int r = 0; out->of && r < n; r++) {
        out->of[r] = malloc(((size_t)ranks[r]->nbound + 1) * sizeof(int32_t));
        f.nseen = 0;
        for (uint32_t i = 0; out->of[r] && i < ranks[r]->nbound; i++) {
            out->of[r][i] = -1;
            if (meets(&ranks[r]->bound[i]))
                IM_TRY_GOTO(add(&f, r, i), meetings);
        }
        if (!out->of[r])
            break;
        if (r + 1 == n)
            return IM_OK;
    }
    status = im_fail(ctx, IM_ERR_NOMEM, "no memory to check programs");
meetings:
    im_meetings_free(out);
    return status;
}

void im_meetings_free(im_meetings *m)
{
    for (int r = 0; m->of && r < m->n; r++)
        free(m->of[r]);
    free(m->of);
    free(m->meeting);
    free(m->slot);
    *m = (im_meetings){0};
}
