/* place: an address for every value.
 *
 * Persistent values (weights, gradients, optimizer state, scalars, carries, caches) have fixed places for the whole run. The
 * others live from their first to their last access in program order, a gathered weight from GATHER to RELEASE, each time: walk
 * the ops, give a new value the smallest free block that holds it, free it after its last access. Cost: ops x free blocks. Where two queues are involved, link makes the next
 * owner wait for the last access of the one before.
 */
#include "plan/values.h"

#include <stdlib.h>
#include <string.h>

enum { IM_PLACE_ALIGN = 64 };

static size_t align_up(size_t n)
{
    return (n + IM_PLACE_ALIGN - 1) / IM_PLACE_ALIGN * IM_PLACE_ALIGN;
}

/* ---- persistent values -------------------------------------------------------- */

typedef struct persistent {
    im_value_map map;
    size_t *nbytes, *offset; /* by number in map */
    uint32_t cap;
    size_t end[IM_CLASS_COUNT];
} persistent;

static im_class class_of(const im_value *v)
{
    switch ((im_role)v->role) {
    case IM_ROLE_WEIGHT: return IM_CLASS_WEIGHTS;
    case IM_ROLE_GRAD: return IM_CLASS_GRADIENTS;
    case IM_ROLE_OPT: return IM_CLASS_OPTIMIZER;
    case IM_ROLE_KV: return IM_CLASS_KV;
    case IM_ROLE_SCALAR:
    case IM_ROLE_CARRY: return IM_CLASS_CARRY;
    default: return IM_CLASS_ACTIVATIONS;
    }
}

/* Elements of the shards before bucket b on this rank, or of all when b is the number of buckets. */
static size_t shard_offset(const im_layout *l, size_t b)
{
    size_t at = 0;
    int r = l->place.dp;
    for (size_t i = 0; i < b; i++)
        if (l->bucket[i].held)
            at += l->bucket[i].shard[r + 1] - l->bucket[i].shard[r];
    return at;
}

/* Where the layout puts a bucket's value; the same for every program of a run. */
static size_t bucket_offset(const im_program *p, const im_value *v)
{
    const im_layout *l = p->layout;
    bool sharded = v->role == IM_ROLE_OPT ? p->plan->zero >= 1 : v->index == 1;
    size_t element = v->role == IM_ROLE_WEIGHT ? im_dtype_size(p->plan->precision) : 4;
    size_t at = sharded ? shard_offset(l, v->owner) : l->bucket[v->owner].offset;
    if (v->role == IM_ROLE_OPT) { /* regions: m, v, master */
        static const uint8_t region[3] = {2, 0, 1};
        size_t all = p->plan->zero >= 1 ? shard_offset(l, p->plan->model->nbucket) : l->count;
        at += region[v->index] * all;
    }
    return at * element;
}

im_buffer im_program_bucket_buffer(const im_program *p, im_role role, int index, size_t bucket)
{
    im_value v = {.role = (uint8_t)role, .index = (uint8_t)index, .owner = (uint16_t)bucket, .mb = -1};
    const im_bucket *b = &p->layout->bucket[bucket];
    int r = p->layout->place.dp;
    bool sharded = role == IM_ROLE_OPT ? p->plan->zero >= 1 : index == 1;
    size_t element = role == IM_ROLE_WEIGHT ? im_dtype_size(p->plan->precision) : 4;
    size_t count = sharded ? b->shard[r + 1] - b->shard[r] : b->count;
    return (im_buffer){.arena = (uint8_t)class_of(&v), .offset = bucket_offset(p, &v), .nbytes = count * element};
}

static im_status note_persistent(im_context *ctx, persistent *s, const im_value *v, size_t hi)
{
    uint32_t i = im_value_map_add(&s->map, v);
    if (i == UINT32_MAX)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to place values");
    if (i >= s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 256;
        size_t *nbytes = realloc(s->nbytes, sizeof *nbytes * cap);
        if (nbytes)
            s->nbytes = nbytes;
        size_t *offset = realloc(s->offset, sizeof *offset * cap);
        if (offset)
            s->offset = offset;
        if (!nbytes || !offset)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory to place values");
        memset(s->nbytes + s->cap, 0, sizeof *nbytes * (cap - s->cap));
        memset(s->offset + s->cap, 0, sizeof *offset * (cap - s->cap));
        s->cap = cap;
    }
    if (hi > s->nbytes[i])
        s->nbytes[i] = hi;
    return IM_OK;
}

/* The arenas that follow from the layout alone. */
static void layout_arenas(const im_program *p, bool trains, size_t *end)
{
    const im_layout *l = p->layout;
    size_t element = im_dtype_size(p->plan->precision), all = l->count, shard = shard_offset(l, p->plan->model->nbucket);
    int zero = p->plan->zero;
    end[IM_CLASS_WEIGHTS] = (zero == 3 ? shard : all) * element;
    if (!trains)
        return;
    end[IM_CLASS_GRADIENTS] = (zero >= 2 ? shard : all) * 4;
    end[IM_CLASS_OPTIMIZER] = (zero >= 1 ? shard : all) * 4 * (element == 4 ? 2 : 3);
}

static im_status place_persistent(im_context *ctx, persistent *s, im_program *const *of_run, size_t n)
{
    bool trains = false;
    for (size_t k = 0; k < n; k++) {
        const im_program *p = of_run[k];
        trains |= p->spec.mode == IM_PROGRAM_TRAIN;
        for (uint32_t i = 0; i < p->nbound; i++)
            for (int o = 0; o < p->bound[i].op->args.n; o++)
                if (p->bound[i].op->args.v[o].ndim && im_value_persistent(p, &p->bound[i].value[o]))
                    IM_TRY(note_persistent(ctx, s, &p->bound[i].value[o], p->bound[i].hi[o]));
    }
    layout_arenas(of_run[0], trains, s->end);
    for (uint32_t i = 0; i < s->map.n; i++) {
        const im_value *v = &s->map.key[i];
        im_class c = class_of(v);
        if (c == IM_CLASS_WEIGHTS || c == IM_CLASS_GRADIENTS || c == IM_CLASS_OPTIMIZER) {
            s->offset[i] = bucket_offset(of_run[0], v);
            continue;
        }
        s->offset[i] = s->end[c];
        s->end[c] += align_up(s->nbytes[i]);
    }
    return IM_OK;
}

/* ---- values with a life time ------------------------------------------------------ */

typedef struct life {
    uint32_t first, last; /* ops */
    uint32_t next;        /* the value's next life; UINT32_MAX: none */
    uint32_t dies_too;    /* another life that ends at the same op; UINT32_MAX: none */
    bool comm;            /* in the arena of communication */
    size_t nbytes, offset;
} life;

/* The lives of all values; `now` is the one that a value is in. */
typedef struct lives {
    im_value_map map;
    life *life;
    uint32_t n, cap;
    uint32_t *now, *born; /* [map.n]: its life now, its first */
    uint32_t nvalue;
} lives;

typedef struct hole {
    size_t lo, hi;
} hole;

/* The free blocks of an arena whose end may still grow. */
typedef struct heap {
    hole *free;
    size_t n, cap, end;
} heap;

static bool heap_reserve(heap *h)
{
    if (h->n < h->cap)
        return true;
    size_t cap = h->cap ? h->cap * 2 : 64;
    hole *f = realloc(h->free, sizeof *f * cap);
    if (!f)
        return false;
    h->free = f;
    h->cap = cap;
    return true;
}

static size_t heap_take(heap *h, size_t nbytes)
{
    size_t best = h->n;
    for (size_t i = 0; i < h->n; i++) {
        size_t room = h->free[i].hi - h->free[i].lo;
        if (room >= nbytes && (best == h->n || room < h->free[best].hi - h->free[best].lo))
            best = i;
    }
    if (best < h->n) {
        size_t at = h->free[best].lo;
        h->free[best].lo += nbytes;
        if (h->free[best].lo == h->free[best].hi)
            memmove(h->free + best, h->free + best + 1, sizeof *h->free * (--h->n - best));
        return at;
    }
    if (h->n && h->free[h->n - 1].hi == h->end) { /* the last block grows */
        size_t at = h->free[--h->n].lo;
        h->end = at + nbytes;
        return at;
    }
    size_t at = h->end;
    h->end += nbytes;
    return at;
}

static bool heap_give(heap *h, size_t lo, size_t nbytes)
{
    size_t i = 0, hi = lo + nbytes;
    while (i < h->n && h->free[i].lo < lo)
        i++;
    bool left = i > 0 && h->free[i - 1].hi == lo, right = i < h->n && h->free[i].lo == hi;
    if (left && right) {
        h->free[i - 1].hi = h->free[i].hi;
        memmove(h->free + i, h->free + i + 1, sizeof *h->free * (--h->n - i));
    } else if (left) {
        h->free[i - 1].hi = hi;
    } else if (right) {
        h->free[i].lo = lo;
    } else {
        if (!heap_reserve(h))
            return false;
        memmove(h->free + i + 1, h->free + i, sizeof *h->free * (h->n++ - i));
        h->free[i] = (hole){lo, hi};
    }
    return true;
}

static im_class life_class(const im_value *v)
{
    return v->role == IM_ROLE_WEIGHT || v->role == IM_ROLE_GRAD ? IM_CLASS_COMM : IM_CLASS_ACTIVATIONS;
}

static void lives_free(lives *l)
{
    im_value_map_free(&l->map);
    free(l->life);
    free(l->now);
    free(l->born);
}

static bool lives_reserve(lives *l)
{
    if (l->n >= l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 256;
        life *more = realloc(l->life, sizeof *more * cap);
        if (!more)
            return false;
        l->life = more;
        l->cap = cap;
    }
    if (l->map.n > l->nvalue) {
        uint32_t cap = l->map.cap;
        uint32_t *now = realloc(l->now, sizeof *now * cap), *born = now ? realloc(l->born, sizeof *born * cap) : NULL;
        l->now = now ? now : l->now;
        l->born = born ? born : l->born;
        if (!now || !born)
            return false;
    }
    return true;
}

/* Whether op i is where value v, which was there before, begins anew: a weight that is gathered again (ZeRO 3), and the gradient of the next
 * micro-batch when the one before was reduced (ZeRO 2, 3). In between its bytes are free. */
static bool begins_anew(const im_program *p, const im_value *v, uint32_t i, int o, uint32_t last)
{
    const im_bound *x = &p->bound[i];
    if (v->role == IM_ROLE_WEIGHT)
        return p->step[x->step].verb == IM_GATHER && x->op->use[o].access == IM_WRITE;
    return v->role == IM_ROLE_GRAD && p->step[p->bound[last].step].verb == IM_REDUCE && x->step != p->bound[last].step;
}

static bool note_access(const im_program *p, lives *l, uint32_t i, int o)
{
    const im_bound *x = &p->bound[i];
    uint32_t before = l->map.n, k = im_value_map_add(&l->map, &x->value[o]);
    if (k == UINT32_MAX || !lives_reserve(l))
        return false;
    bool first = l->map.n > before;
    if (first || begins_anew(p, &x->value[o], i, o, l->life[l->now[k]].last)) {
        l->life[l->n] = (life){.first = i, .next = UINT32_MAX, .comm = life_class(&x->value[o]) == IM_CLASS_COMM};
        if (first)
            l->born[k] = l->n;
        else
            l->life[l->now[k]].next = l->n;
        l->now[k] = l->n++;
    }
    l->nvalue = l->map.n;
    life *now = &l->life[l->now[k]];
    now->last = i;
    now->nbytes = x->hi[o] > now->nbytes ? x->hi[o] : now->nbytes;
    return true;
}

/* First and last access and size of every life of every value that is not persistent. */
static im_status find_lives(im_context *ctx, const im_program *p, lives *l)
{
    for (uint32_t i = 0; i < p->nbound; i++)
        for (int o = 0; o < p->bound[i].op->args.n; o++)
            if (p->bound[i].op->args.v[o].ndim && !im_value_persistent(p, &p->bound[i].value[o]) && !note_access(p, l, i, o))
                return im_fail(ctx, IM_ERR_NOMEM, "no memory to place values");
    for (uint32_t k = 0; k < l->map.n; k++)
        l->now[k] = l->born[k];
    return IM_OK;
}

/* The life that value k is in at op i. */
static life *life_at(lives *l, const im_value *v, uint32_t i)
{
    uint32_t *now = &l->now[im_value_map_find(&l->map, v)];
    if (l->life[*now].next != UINT32_MAX && l->life[l->life[*now].next].first == i)
        *now = l->life[*now].next;
    return &l->life[*now];
}

/* The op that is `ahead` messages of gradients behind op i, or the last. */
static uint32_t later_message(const im_program *p, uint32_t i, int ahead)
{
    for (uint32_t k = i + 1; k < p->nbound; k++)
        if (p->bound[k].op->queue == IM_QUEUE_PIPE + IM_CH_GRAD_OUT && !--ahead)
            return k;
    return p->nbound - 1;
}

/* Stages stand in a circle: with chunks, and any two of them, by activations one way and gradients the other. If what a stage receives into, or computes into, were memory whose message may still be waiting for its
 * receiver, all of them could wait for one another. So a message's memory is kept until something that this rank has to wait for anyway shows that it
 * has arrived: an activation's gradient has come back; so many gradients later, what was computed in between needed forwards that the receiver did
 * behind its backward of this one. */
static void keep_messages(const im_program *p, lives *l)
{
    if (p->plan->mesh.pp == 1)
        return;
    int pp = p->plan->mesh.pp, before = (p->layout->place.pp + pp - 1) % pp;
    int ahead = im_schedule_of(p->plan->schedule)->alive(pp, p->goal.micro_batches, p->goal.chunks, before);
    for (uint32_t i = 0; i < p->nbound; i++) {
        const im_bound *x = &p->bound[i];
        if (x->op->collective != IM_COLL_SEND)
            continue;
        uint32_t until = p->nbound - 1;
        im_value answer = x->value[0];
        answer.index = 1;
        uint32_t k = im_value_map_find(&l->map, &answer);
        if (p->spec.mode == IM_PROGRAM_TRAIN && x->value[0].index == 0 && k != UINT32_MAX)
            until = l->life[l->born[k]].first;
        else if (p->spec.mode == IM_PROGRAM_TRAIN && x->value[0].index == 1)
            until = later_message(p, i, ahead);
        life *m = &l->life[l->born[im_value_map_find(&l->map, &x->value[0])]];
        m->last = until > m->last ? until : m->last;
    }
}

/* dies[i]: the first of the lives that end at op i, or UINT32_MAX; NULL without memory. */
static uint32_t *ends_of_lives(const im_program *p, lives *l)
{
    uint32_t *dies = malloc(sizeof *dies * ((size_t)p->nbound + 1));
    if (!dies)
        return NULL;
    memset(dies, 0xff, sizeof *dies * ((size_t)p->nbound + 1));
    for (uint32_t k = l->n; k-- > 0;) {
        l->life[k].dies_too = dies[l->life[k].last];
        dies[l->life[k].last] = k;
    }
    return dies;
}

static im_status place_lives(im_context *ctx, im_program *p, size_t *end)
{
    lives l = {0};
    heap heaps[2] = {{0}, {0}}; /* activations, communication */
    uint32_t *dies = NULL;
    im_status status;
    IM_TRY_GOTO(find_lives(ctx, p, &l), maps);
    keep_messages(p, &l);
    dies = ends_of_lives(p, &l);
    if (!dies) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to place values");
        goto maps;
    }
    for (uint32_t i = 0; i < p->nbound; i++) {
        im_bound *x = &p->bound[i];
        for (int o = 0; o < x->op->args.n; o++) { /* take all before giving any back */
            if (!x->op->args.v[o].ndim || im_value_persistent(p, &x->value[o]))
                continue;
            life *now = life_at(&l, &x->value[o], i);
            if (now->first == i) {
                now->offset = heap_take(&heaps[now->comm], align_up(now->nbytes));
                now->first = UINT32_MAX; /* taken */
            }
            x->buf[o].arena = (uint8_t)life_class(&x->value[o]);
            x->buf[o].offset += now->offset;
        }
        for (uint32_t k = dies[i]; k != UINT32_MAX; k = l.life[k].dies_too)
            if (l.life[k].nbytes && !heap_give(&heaps[l.life[k].comm], l.life[k].offset, align_up(l.life[k].nbytes))) {
                status = im_fail(ctx, IM_ERR_NOMEM, "no memory to place values");
                goto maps;
            }
    }
    end[IM_CLASS_ACTIVATIONS] = heaps[0].end > end[IM_CLASS_ACTIVATIONS] ? heaps[0].end : end[IM_CLASS_ACTIVATIONS];
    end[IM_CLASS_COMM] = heaps[1].end > end[IM_CLASS_COMM] ? heaps[1].end : end[IM_CLASS_COMM];
    status = IM_OK;
maps:
    free(dies);
    free(heaps[0].free);
    free(heaps[1].free);
    lives_free(&l);
    return status;
}

im_status im_program_place(im_context *ctx, im_program *const *of_run, size_t n)
{
    persistent s = {0};
    im_status status;
    size_t scratch = 0;
    IM_TRY_GOTO(place_persistent(ctx, &s, of_run, n), persistent);
    for (size_t k = 0; k < n; k++) {
        im_program *p = of_run[k];
        for (uint32_t i = 0; i < p->nbound; i++)
            for (int o = 0; o < p->bound[i].op->args.n; o++) {
                const im_value *v = &p->bound[i].value[o];
                if (!p->bound[i].op->args.v[o].ndim || !im_value_persistent(p, v))
                    continue;
                p->bound[i].buf[o].arena = (uint8_t)class_of(v);
                p->bound[i].buf[o].offset += s.offset[im_value_map_find(&s.map, v)];
            }
        IM_TRY_GOTO(place_lives(ctx, p, s.end), persistent);
        size_t need = im_program_scratch(ctx, p);
        scratch = need > scratch ? need : scratch;
    }
    s.end[IM_CLASS_SCRATCH] = align_up(scratch);
    for (size_t k = 0; k < n; k++)
        memcpy(of_run[k]->arena_bytes, s.end, sizeof s.end);
    status = IM_OK;
persistent:
    im_value_map_free(&s.map);
    free(s.nbytes);
    free(s.offset);
    return status;
}
