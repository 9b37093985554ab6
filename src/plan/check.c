/* check: proves the programs of all ranks before they run.
 *
 *   1. states (check_state.c)   every read finds the state it needs, walking the steps in order
 *   2. bytes                    a buffer holds the value that an op reads, and is reused only when its last access
 *                               happens before the next write (vector clocks over the queues, from the waits)
 *   3. meetings                 sends meet their receives, and collectives each other, in one order on all ranks;
 *                               running the lists with rendezvous and no time reaches the end: else it is a deadlock
 */
#include "plan/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- bytes ------------------------------------------------------------------------ */

typedef struct clock {
    int32_t seen[IM_QUEUE_MAX]; /* latest op of each queue that happens before */
} clock;

typedef struct bytes {
    im_context *ctx;
    const im_program *p;
    clock *before; /* [nbound] */
    im_span_map arenas[IM_CLASS_COUNT];
} bytes;

static void merge(clock *into, const clock *from)
{
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        if (from->seen[q] > into->seen[q])
            into->seen[q] = from->seen[q];
}

static void make_clocks(bytes *b)
{
    int32_t last[IM_QUEUE_MAX];
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        last[q] = -1;
    for (uint32_t i = 0; i < b->p->nbound; i++) {
        const im_bound *x = &b->p->bound[i];
        unsigned own = x->op->queue;
        clock *c = &b->before[i];
        for (int q = 0; q < IM_QUEUE_MAX; q++)
            c->seen[q] = -1;
        if (last[own] >= 0)
            merge(c, &b->before[last[own]]);
        c->seen[own] = last[own];
        for (int w = 0; w < x->nwait; w++) {
            unsigned q = b->p->bound[x->wait[w]].op->queue;
            merge(c, &b->before[x->wait[w]]);
            if ((int32_t)x->wait[w] > c->seen[q])
                c->seen[q] = (int32_t)x->wait[w];
        }
        last[own] = (int32_t)i;
    }
}

static bool happens_before(const bytes *b, int32_t a, uint32_t i)
{
    return a < 0 || b->before[i].seen[b->p->bound[a].op->queue] >= a;
}

static im_status fault(const bytes *b, uint32_t i, int o, const char *what, int32_t other)
{
    im_str s = {0}, v = {0}, t = {0};
    const im_bound *x = &b->p->bound[i];
    im_step_print(&b->p->step[x->step], &s);
    im_value_print(&x->value[o], &v);
    if (other >= 0) {
        im_str_append(&t, " of ");
        im_step_print(&b->p->step[b->p->bound[other].step], &t);
    }
    im_status status = im_fail(b->ctx, IM_ERR_CHECK, "rank %d, step %u (%s), %s, %s: %s%s", b->p->layout->rank, x->step, im_str_text(&s),
                               x->op->label, im_str_text(&v), what, im_str_text(&t));
    im_str_free(&s);
    im_str_free(&v);
    im_str_free(&t);
    return status;
}

static im_status check_span(bytes *b, uint32_t i, int o, im_span *s)
{
    const im_bound *x = &b->p->bound[i];
    int access = x->op->use[o].access;
    if (access != IM_WRITE) {
        if (s->owned ? !im_value_equal(&s->value, &x->value[o]) : !im_value_persistent(b->p, &x->value[o]))
            return fault(b, i, o, s->owned ? "its bytes hold another value by then" : "its bytes were never written", s->write);
        if (!happens_before(b, s->write, i))
            return fault(b, i, o, "read while it may still be written by an op", s->write);
    }
    if (access == IM_READ)
        return IM_OK;
    if (!happens_before(b, s->write, i))
        return fault(b, i, o, "written while its bytes may still be written by an op", s->write);
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        if (!happens_before(b, s->read[q], i))
            return fault(b, i, o, "written while its bytes may still be read by an op", s->read[q]);
    return IM_OK;
}

static im_status check_operand(bytes *b, uint32_t i, int o, bool record)
{
    const im_bound *x = &b->p->bound[i];
    im_span_map *m = &b->arenas[x->buf[o].arena];
    size_t at = x->buf[o].offset + x->buf[o].nbytes - x->hi[o], first, end;
    if (at + x->hi[o] > b->p->arena_bytes[x->buf[o].arena])
        return fault(b, i, o, "it lies outside its arena", -1);
    if (!im_span_map_cover(m, at + x->lo[o], at + x->hi[o], &first, &end))
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory to check a program");
    for (size_t k = first; k < end; k++) {
        im_span *s = &m->span[k];
        if (!record) {
            IM_TRY(check_span(b, i, o, s));
        } else if (x->op->use[o].access == IM_READ) {
            s->read[x->op->queue] = (int32_t)i;
        } else {
            s->write = (int32_t)i;
            s->value = x->value[o];
            s->owned = true;
            for (int q = 0; q < IM_QUEUE_MAX; q++)
                s->read[q] = -1;
        }
    }
    return IM_OK;
}

static im_status check_bytes(im_context *ctx, const im_program *p)
{
    bytes b = {.ctx = ctx, .p = p};
    im_status status = IM_OK;
    b.before = calloc((size_t)p->nbound + 1, sizeof *b.before);
    if (!b.before)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to check a program");
    make_clocks(&b);
    for (uint32_t i = 0; i < p->nbound && status == IM_OK; i++)
        for (int record = 0; record < 2 && status == IM_OK; record++)
            for (int o = 0; o < p->bound[i].op->args.n && status == IM_OK; o++)
                if (p->bound[i].hi[o] > p->bound[i].lo[o])
                    status = check_operand(&b, i, o, record);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        im_span_map_free(&b.arenas[c]);
    free(b.before);
    return status;
}

/* ---- meetings ---------------------------------------------------------------------- */

/* Where ops of several ranks meet: the k-th op of a group on a queue, or the k-th message of a channel. */
typedef struct meeting {
    int kind;   /* group * queues + queue, or channels after them */
    int anchor; /* the lowest rank taking part */
    int ordinal;
    int members, arrived;
    uint32_t rank, op; /* who came first */
} meeting;

typedef struct lists {
    im_context *ctx;
    const im_program *const *p;
    int n;
    int32_t **meet; /* [rank][op]: index of its meeting, -1: alone */
    meeting *meeting;
    size_t nmeeting, cap;
} lists;

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

static meeting where(const lists *l, int r, const im_bound *x)
{
    const im_program *p = l->p[r];
    const im_step *s = &p->step[x->step];
    meeting m = {.members = 0, .anchor = -1};
    if (x->op->collective == IM_COLL_SEND || x->op->collective == IM_COLL_RECV) {
        bool act = s->target == IM_CH_ACT_IN || s->target == IM_CH_ACT_OUT, down = s->target == IM_CH_ACT_OUT || s->target == IM_CH_GRAD_IN;
        im_place q = p->layout->place;
        q.pp = down ? q.pp : (q.pp + p->layout->mesh.pp - 1) % p->layout->mesh.pp; /* the earlier of the two stages */
        m.anchor = im_mesh_rank(&p->layout->mesh, q);
        m.kind = 1000 + act;
        m.members = 2;
        return m;
    }
    for (int k = 0; k < l->n; k++)
        if (in_group(p->layout, l->p[k]->layout, x->op->group)) {
            m.members++;
            if (m.anchor < 0)
                m.anchor = k;
        }
    m.kind = x->op->group * IM_QUEUE_MAX + x->op->queue;
    return m;
}

static bool meets(const im_bound *x)
{
    int c = x->op->collective;
    return !x->op->kind &&
           (c == IM_COLL_ALL_REDUCE || c == IM_COLL_REDUCE_SCATTER || c == IM_COLL_ALL_GATHER || c == IM_COLL_SEND || c == IM_COLL_RECV);
}

static im_status mismatch(const lists *l, const meeting *m, int r, uint32_t i)
{
    im_str a = {0}, b = {0};
    im_step_print(&l->p[m->rank]->step[l->p[m->rank]->bound[m->op].step], &a);
    im_step_print(&l->p[r]->step[l->p[r]->bound[i].step], &b);
    im_status s = im_fail(l->ctx, IM_ERR_CHECK, "rank %u is at %s (%s) where rank %d is at %s (%s)", m->rank, im_str_text(&a),
                          l->p[m->rank]->bound[m->op].op->label, r, im_str_text(&b), l->p[r]->bound[i].op->label);
    im_str_free(&a);
    im_str_free(&b);
    return s;
}

/* Two ops that meet do the same thing to the same value. */
static bool agree(const im_bound *a, const im_bound *b)
{
    bool messages = a->op->collective == IM_COLL_SEND || a->op->collective == IM_COLL_RECV;
    if (messages ? a->op->collective == b->op->collective : a->op->collective != b->op->collective)
        return false;
    int whole = a->op->collective == IM_COLL_ALL_GATHER ? 1 : 0; /* own parts may differ in size, or be empty */
    im_value va = a->value[whole], vb = b->value[whole];
    if (va.role == IM_ROLE_TEMP) /* numbered by step, which other ranks count otherwise */
        va.mb = vb.mb = 0;
    return im_value_equal(&va, &vb) && a->hi[whole] - a->lo[whole] == b->hi[whole] - b->lo[whole];
}

static im_status add_meeting(lists *l, int r, uint32_t i)
{
    const im_bound *x = &l->p[r]->bound[i];
    meeting m = where(l, r, x);
    for (uint32_t k = 0; k < i; k++) /* its number among this rank's own ops of that kind */
        if (l->meet[r][k] >= 0 && l->meeting[l->meet[r][k]].kind == m.kind && l->meeting[l->meet[r][k]].anchor == m.anchor)
            m.ordinal++;
    for (size_t k = 0; k < l->nmeeting; k++) {
        meeting *o = &l->meeting[k];
        if (o->kind != m.kind || o->anchor != m.anchor || o->ordinal != m.ordinal)
            continue;
        if (!agree(&l->p[o->rank]->bound[o->op], x))
            return mismatch(l, o, r, i);
        l->meet[r][i] = (int32_t)k;
        return IM_OK;
    }
    if (l->nmeeting == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        meeting *more = realloc(l->meeting, sizeof *more * cap);
        if (!more)
            return im_fail(l->ctx, IM_ERR_NOMEM, "no memory to check programs");
        l->meeting = more;
        l->cap = cap;
    }
    m.rank = (uint32_t)r;
    m.op = i;
    l->meet[r][i] = (int32_t)l->nmeeting;
    l->meeting[l->nmeeting++] = m;
    return IM_OK;
}

/* One pass over a rank: every queue runs its first op that is not done, when its waits are. Returns whether something moved. */
typedef struct runner {
    bool *done, *arrived;
    uint32_t *next; /* [queue]: position in the op list */
} runner;

static bool advance(lists *l, runner *run, int r)
{
    const im_program *p = l->p[r];
    bool moved = false;
    for (unsigned q = 0; q < IM_QUEUE_MAX; q++) {
        uint32_t *i = &run[r].next[q];
        for (;;) {
            while (*i < p->nbound && (p->bound[*i].op->queue != q || run[r].done[*i]))
                ++*i;
            if (*i == p->nbound)
                break;
            bool ready = true;
            for (int w = 0; w < p->bound[*i].nwait; w++)
                ready &= run[r].done[p->bound[*i].wait[w]];
            if (!ready)
                break;
            int32_t m = l->meet[r][*i];
            if (m >= 0 && !run[r].arrived[*i]) {
                run[r].arrived[*i] = true;
                l->meeting[m].arrived++;
                moved = true;
            }
            if (m >= 0 && l->meeting[m].arrived < l->meeting[m].members)
                break;
            run[r].done[*i] = true;
            moved = true;
        }
    }
    return moved;
}

static im_status stuck(const lists *l, const runner *run)
{
    im_str s = {0};
    for (int r = 0; r < l->n; r++)
        for (uint32_t i = 0; i < l->p[r]->nbound; i++)
            if (!run[r].done[i]) {
                im_str_printf(&s, "%srank %d at ", s.len ? ", " : "", r);
                im_step_print(&l->p[r]->step[l->p[r]->bound[i].step], &s);
                break;
            }
    im_status status = IM_OK;
    if (s.len)
        status = im_fail(l->ctx, IM_ERR_CHECK, "deadlock: %s", im_str_text(&s));
    im_str_free(&s);
    return status;
}

static im_status run_lists(lists *l, runner *run)
{
    for (int r = 0; r < l->n; r++) {
        size_t nb = l->p[r]->nbound;
        run[r].done = calloc(nb + 1, 1);
        run[r].arrived = calloc(nb + 1, 1);
        run[r].next = calloc(IM_QUEUE_MAX, sizeof(uint32_t));
        l->meet[r] = malloc((nb + 1) * sizeof(int32_t));
        if (!run[r].done || !run[r].arrived || !run[r].next || !l->meet[r])
            return im_fail(l->ctx, IM_ERR_NOMEM, "no memory to check programs");
        for (uint32_t i = 0; i < nb; i++)
            l->meet[r][i] = -1;
        for (uint32_t i = 0; i < nb; i++)
            if (meets(&l->p[r]->bound[i]))
                IM_TRY(add_meeting(l, r, i));
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < l->n; r++)
            moved |= advance(l, run, r);
    }
    return stuck(l, run);
}

static im_status check_meetings(im_context *ctx, const im_program *const *p, unsigned n)
{
    lists l = {.ctx = ctx, .p = p, .n = (int)n};
    runner *run = calloc(n, sizeof *run);
    l.meet = calloc(n, sizeof *l.meet);
    im_status status = run && l.meet ? run_lists(&l, run) : im_fail(ctx, IM_ERR_NOMEM, "no memory to check programs");
    for (unsigned r = 0; r < n; r++) {
        if (run) {
            free(run[r].done);
            free(run[r].arrived);
            free(run[r].next);
        }
        if (l.meet)
            free(l.meet[r]);
    }
    free(run);
    free(l.meet);
    free(l.meeting);
    return status;
}

im_status im_program_check_rank(im_context *ctx, const im_program *p)
{
    IM_TRY(im_check_states(ctx, p));
    return check_bytes(ctx, p);
}

im_status im_program_check(im_context *ctx, const im_program *const *ranks, int n)
{
    if (n < 1)
        return im_fail(ctx, IM_ERR_ARG, "no programs to check");
    for (int r = 0; r < n; r++) {
        if (ranks[r]->layout->rank != r || im_mesh_size(&ranks[r]->layout->mesh) != n)
            return im_fail(ctx, IM_ERR_CHECK, "program %d of %d is of rank %d of a mesh of %d", r, n, ranks[r]->layout->rank,
                           im_mesh_size(&ranks[r]->layout->mesh));
        IM_TRY(im_program_check_rank(ctx, ranks[r]));
    }
    return check_meetings(ctx, ranks, (unsigned)n);
}
