/* Discrete events in the order of time.
 *
 *   op     waits until its queue's last op and the ops that it names have ended; then it runs
 *   flow   communication under way: starts when all who take part have come; keeps the sending side of some devices' links busy and the receiving side of
 *          some; of k flows on one side of a link each goes on at 1/k of its speed, at its busiest link
 *
 * When a flow begins or ends, those that share a link with it get a new end; the old ones in the heap are told by their version. */
#include "plan/events.h"

#include "plan/meet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_DOMAIN_OUT, SIDE_DOMAIN_IN, SIDE_NETWORK_OUT, SIDE_NETWORK_IN, SIDES };
enum { NONE = -1 };

typedef struct link_side {
    int32_t flow[IM_QUEUE_MAX];
    int n;
} link_side;

typedef struct flow {
    int32_t member; /* first of a list of ops */
    int arrived, members;
    double left, since, rate; /* seconds of work alone; when that was so; 0..1 */
    uint32_t version;
    bool active, network, blocks;
} flow;

typedef struct member {
    int32_t rank, next;
    uint32_t op;
    bool out, in;
} member;

typedef struct event {
    double time;
    uint64_t order; /* of making, so that ties are the same everywhere */
    int32_t flow;   /* NONE: op */
    int32_t rank;
    uint32_t op; /* of a flow: the version */
} event;

typedef struct rank_state {
    uint32_t *next;              /* [op]: the next of its queue, nbound at the end */
    uint32_t head[IM_QUEUE_MAX]; /* nbound: done */
    bool running[IM_QUEUE_MAX];  /* the head has started, or arrived where others are missing */
    link_side side[SIDES];
    int blocked;       /* flows under way that stop computing */
    const im_op **key; /* prices by op: open addressing */
    im_event_price *price;
    uint32_t nslot;
} rank_state;

typedef struct engine {
    im_context *ctx;
    const im_program *const *p;
    int n;
    im_event_price_fn price;
    void *arg;
    im_meetings meetings;
    flow *flow; /* [meetings] */
    member *members;
    size_t nmember, cap_member;
    rank_state *rank;
    event *heap;
    size_t nheap, cap_heap;
    uint64_t order;
    im_timeline t;
    bool failed; /* out of memory */
} engine;

/* ---- heap -------------------------------------------------------------------------- */

static bool before(const event *a, const event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push(engine *s, event e)
{
    if (s->nheap == s->cap_heap) {
        size_t cap = s->cap_heap ? s->cap_heap * 2 : 1024;
        event *more = realloc(s->heap, cap * sizeof *more);
        if (!more) {
            s->failed = true;
            return;
        }
        s->heap = more;
        s->cap_heap = cap;
    }
    e.order = s->order++;
    size_t i = s->nheap++;
    for (; i && before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}

static event pop(engine *s)
{
    event top = s->heap[0], last = s->heap[--s->nheap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->nheap; i = child) {
        if (child + 1 < s->nheap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* ---- prices ------------------------------------------------------------------------- */

static im_event_price price_of(engine *s, int r, const im_bound *x)
{
    rank_state *k = &s->rank[r];
    uintptr_t h = (uintptr_t)x->op;
    uint32_t at = (uint32_t)((h >> 4) * 0x9e3779b1u) & (k->nslot - 1);
    for (; k->key[at] && k->key[at] != x->op; at = (at + 1) & (k->nslot - 1))
        ;
    if (!k->key[at]) {
        k->key[at] = x->op;
        k->price[at] = s->price(s->arg, s->p[r], x);
    }
    return k->price[at];
}

/* ---- flows --------------------------------------------------------------------------- */

static int side_of(const flow *f, bool out)
{
    return f->network ? out ? SIDE_NETWORK_OUT : SIDE_NETWORK_IN : out ? SIDE_DOMAIN_OUT : SIDE_DOMAIN_IN;
}

/* How many flows the busiest side of a link that it uses has. */
static int crowd(const engine *s, const flow *f)
{
    int most = 1;
    for (int32_t m = f->member; m != NONE; m = s->members[m].next)
        for (int out = 0; out < 2; out++)
            if (out ? s->members[m].out : s->members[m].in) {
                int n = s->rank[s->members[m].rank].side[side_of(f, out)].n;
                most = n > most ? n : most;
            }
    return most;
}

static void reprice(engine *s, int32_t i, double now)
{
    flow *f = &s->flow[i];
    double rate = 1.0 / crowd(s, f);
    if (rate == f->rate)
        return;
    f->left = fmax(0, f->left - (now - f->since) * f->rate);
    f->since = now;
    f->rate = rate;
    push(s, (event){.time = now + f->left / rate, .flow = i, .op = ++f->version});
}

static void touch_sides(engine *s, int32_t i, bool add, double now)
{
    const flow *f = &s->flow[i];
    for (int32_t m = f->member; m != NONE; m = s->members[m].next)
        for (int out = 0; out < 2; out++) {
            if (!(out ? s->members[m].out : s->members[m].in))
                continue;
            link_side *side = &s->rank[s->members[m].rank].side[side_of(f, out)];
            if (add) {
                if (side->n < IM_QUEUE_MAX)
                    side->flow[side->n++] = i;
            } else {
                for (int k = 0; k < side->n; k++)
                    if (side->flow[k] == i) {
                        side->flow[k--] = side->flow[--side->n];
                        break;
                    }
            }
        }
    for (int32_t m = f->member; m != NONE; m = s->members[m].next)
        for (int out = 0; out < 2; out++) {
            if (!(out ? s->members[m].out : s->members[m].in))
                continue;
            const link_side *side = &s->rank[s->members[m].rank].side[side_of(f, out)];
            for (int k = 0; k < side->n; k++)
                if (side->flow[k] != i)
                    reprice(s, side->flow[k], now);
        }
}

static void begin_flow(engine *s, int32_t i, double now)
{
    flow *f = &s->flow[i];
    for (int32_t m = f->member; m != NONE; m = s->members[m].next)
        s->t.start[s->members[m].rank][s->members[m].op] = now;
    for (int32_t m = f->member; m != NONE; m = s->members[m].next)
        s->rank[s->members[m].rank].blocked += f->blocks;
    f->active = true;
    f->since = now;
    f->rate = 0;
    if (f->left <= 0) { /* nothing is sent */
        f->active = false;
        push(s, (event){.time = now, .flow = i, .op = ++f->version});
        return;
    }
    touch_sides(s, i, true, now);
    reprice(s, i, now);
}

static void arrive(engine *s, int r, uint32_t op, int32_t meeting, double now)
{
    const im_bound *x = &s->p[r]->bound[op];
    flow *f = &s->flow[meeting];
    im_event_price price = price_of(s, r, x);
    if (s->nmember == s->cap_member) {
        size_t cap = s->cap_member ? s->cap_member * 2 : 1024;
        member *more = realloc(s->members, cap * sizeof *more);
        if (!more) {
            s->failed = true;
            return;
        }
        s->members = more;
        s->cap_member = cap;
    }
    bool send = x->op->collective == IM_COLL_SEND, recv = x->op->collective == IM_COLL_RECV;
    s->members[s->nmember] = (member){.rank = r, .op = op, .next = f->member, .out = !recv, .in = !send};
    f->member = (int32_t)s->nmember++;
    f->network |= price.network;
    f->blocks |= price.blocks;
    f->left = fmax(f->left, price.seconds);
    if (++f->arrived == s->meetings.meeting[meeting].members)
        begin_flow(s, meeting, now);
}

/* ---- ops ------------------------------------------------------------------------------- */

static bool may_start(const engine *s, int r, uint32_t op)
{
    const im_bound *x = &s->p[r]->bound[op];
    for (int w = 0; w < x->nwait; w++)
        if (s->t.end[r][x->wait[w]] < 0)
            return false;
    return true;
}

static void start_heads(engine *s, int r, double now)
{
    rank_state *k = &s->rank[r];
    for (unsigned q = IM_QUEUE_MAX; q-- > 0;) { /* communication first: what blocks has begun when computing asks */
        uint32_t op = k->head[q];
        if (op >= s->p[r]->nbound || k->running[q] || (q == IM_QUEUE_COMPUTE && k->blocked) || !may_start(s, r, op))
            continue;
        k->running[q] = true;
        int32_t meeting = s->meetings.of[r][op];
        if (meeting >= 0) {
            arrive(s, r, op, meeting, now);
            continue;
        }
        s->t.start[r][op] = now;
        push(s, (event){.time = now + price_of(s, r, &s->p[r]->bound[op]).seconds, .flow = NONE, .rank = r, .op = op});
    }
}

static void end_op(engine *s, int r, uint32_t op, double now)
{
    rank_state *k = &s->rank[r];
    unsigned q = s->p[r]->bound[op].op->queue;
    s->t.end[r][op] = now;
    s->t.total = fmax(s->t.total, now);
    k->head[q] = k->next[op];
    k->running[q] = false;
}

static void step(engine *s, const event *e)
{
    if (e->flow == NONE) {
        end_op(s, e->rank, e->op, e->time);
        start_heads(s, e->rank, e->time);
        return;
    }
    flow *f = &s->flow[e->flow];
    if (f->version != e->op)
        return;
    if (f->active) {
        f->active = false;
        touch_sides(s, e->flow, false, e->time);
    }
    for (int32_t m = f->member; m != NONE; m = s->members[m].next) {
        s->rank[s->members[m].rank].blocked -= f->blocks;
        end_op(s, s->members[m].rank, s->members[m].op, e->time);
    }
    for (int32_t m = f->member; m != NONE;) {
        int32_t next = s->members[m].next, r = s->members[m].rank; /* arrivals may move the array */
        start_heads(s, r, e->time);
        m = next;
    }
}

/* ---- from programs to a timeline --------------------------------------------------------- */

static bool open_rank(engine *s, int r)
{
    const im_program *p = s->p[r];
    rank_state *k = &s->rank[r];
    uint32_t last[IM_QUEUE_MAX];
    k->nslot = 64;
    while (k->nslot < 2 * p->nbound && k->nslot < 1u << 20)
        k->nslot *= 2;
    k->next = malloc(sizeof *k->next * ((size_t)p->nbound + 1));
    k->key = calloc(k->nslot, sizeof *k->key);
    k->price = calloc(k->nslot, sizeof *k->price);
    s->t.start[r] = malloc(sizeof(double) * ((size_t)p->nbound + 1));
    s->t.end[r] = malloc(sizeof(double) * ((size_t)p->nbound + 1));
    if (!k->next || !k->key || !k->price || !s->t.start[r] || !s->t.end[r])
        return false;
    for (unsigned q = 0; q < IM_QUEUE_MAX; q++)
        k->head[q] = last[q] = p->nbound;
    for (uint32_t i = 0; i < p->nbound; i++) {
        unsigned q = p->bound[i].op->queue;
        *(last[q] == p->nbound ? &k->head[q] : &k->next[last[q]]) = i;
        k->next[i] = p->nbound;
        last[q] = i;
        s->t.start[r][i] = s->t.end[r][i] = -1;
    }
    return true;
}

static im_status open_engine(engine *s)
{
    IM_TRY(im_meetings_find(s->ctx, s->p, s->n, &s->meetings));
    s->flow = calloc((size_t)s->meetings.count + 1, sizeof *s->flow);
    s->rank = calloc((size_t)s->n + 1, sizeof *s->rank);
    s->t.start = calloc((size_t)s->n + 1, sizeof *s->t.start);
    s->t.end = calloc((size_t)s->n + 1, sizeof *s->t.end);
    bool ok = s->flow && s->rank && s->t.start && s->t.end;
    for (int r = 0; ok && r < s->n; r++)
        ok = open_rank(s, r);
    for (uint32_t i = 0; ok && i < s->meetings.count; i++)
        s->flow[i].member = NONE;
    return ok ? IM_OK : im_fail(s->ctx, IM_ERR_NOMEM, "no memory to run %d programs in time", s->n);
}

static void close_engine(engine *s)
{
    for (int r = 0; s->rank && r < s->n; r++) {
        free(s->rank[r].next);
        free(s->rank[r].key);
        free(s->rank[r].price);
    }
    free(s->rank);
    free(s->flow);
    free(s->members);
    free(s->heap);
    im_meetings_free(&s->meetings);
}

static im_status stuck(const engine *s)
{
    im_str text = {0};
    for (int r = 0; r < s->n; r++)
        for (uint32_t i = 0; i < s->p[r]->nbound; i++)
            if (s->t.end[r][i] < 0) {
                im_str_printf(&text, "%srank %d at ", text.len ? ", " : "", s->p[r]->layout->rank);
                im_step_print(&s->p[r]->step[s->p[r]->bound[i].step], &text);
                break;
            }
    im_status status = text.len ? im_fail(s->ctx, IM_ERR_CHECK, "deadlock: %s", im_str_text(&text)) : IM_OK;
    im_str_free(&text);
    return status;
}

im_status im_events_run(im_context *ctx, const im_program *const *ranks, int n, im_event_price_fn price, void *arg, im_timeline *out)
{
    engine s = {.ctx = ctx, .p = ranks, .n = n, .price = price, .arg = arg, .t = {.n = n}};
    im_status status = open_engine(&s);
    for (int r = 0; status == IM_OK && r < n; r++)
        start_heads(&s, r, 0);
    while (status == IM_OK && s.nheap && !s.failed) {
        event e = pop(&s);
        step(&s, &e);
    }
    if (s.failed)
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to run %d programs in time", n);
    if (status == IM_OK)
        status = stuck(&s);
    close_engine(&s);
    if (status == IM_OK)
        *out = s.t;
    else
        im_timeline_free(&s.t);
    return status;
}
