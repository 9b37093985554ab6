/* Best first over all layouts: a heap of leaves by their bounds (search.h). */
#include "plan/search_leaves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *im_refusal_name(im_refusal r)
{
    static const char *const name[IM_REFUSED_COUNT] = {"not",         "heads",  "stages", "batch", "micro-batches", "tied-with-zero",
                                                       "other rules", "memory", "slower"};
    return r < IM_REFUSED_COUNT ? name[r] : "?";
}

im_search_fix im_search_free(void)
{
    return (im_search_fix){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
}

const char *im_search_order_name(int order)
{
    static const char *const name[IM_SEARCH_ORDERS] = {"tp-dp-pp", "tp-pp-dp", "dp-tp-pp", "dp-pp-tp", "pp-tp-dp", "pp-dp-tp"};
    return order >= 0 && order < IM_SEARCH_ORDERS ? name[order] : "?";
}

/* ---- the heap ------------------------------------------------------------------------------------ */

typedef struct entry {
    double key, second; /* second: among equals */
    uint32_t leaf;
    uint8_t level, order;
} entry;

typedef struct hunt {
    im_context *ctx;
    const im_search_request *r;
    im_search *out;
    im_leaves leaves;
    entry *heap;
    size_t n, cap;
    im_task_room room;
} hunt;

static bool before(const entry *a, const entry *b)
{
    if (a->key != b->key)
        return a->key < b->key;
    if (a->level != b->level)
        return a->level > b->level; /* what is known before what is bounded */
    if (a->second != b->second)
        return a->second < b->second;
    return a->leaf != b->leaf ? a->leaf < b->leaf : a->order < b->order;
}

static bool push(hunt *h, entry e)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 4096;
        entry *more = realloc(h->heap, cap * sizeof *more);
        if (!more)
            return false;
        h->heap = more;
        h->cap = cap;
    }
    size_t i = h->n++;
    for (; i && before(&e, &h->heap[(i - 1) / 2]); i = (i - 1) / 2)
        h->heap[i] = h->heap[(i - 1) / 2];
    h->heap[i] = e;
    return true;
}

static entry pop(hunt *h)
{
    entry top = h->heap[0], last = h->heap[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && before(&h->heap[child + 1], &h->heap[child]))
            child++;
        if (!before(&h->heap[child], &last))
            break;
        h->heap[i] = h->heap[child];
    }
    h->heap[i] = last;
    return top;
}

/* ---- what is looked for ----------------------------------------------------------------------------- */

static double price_of(const hunt *h, int ranks, double seconds)
{
    const im_cluster *c = h->r->cluster;
    double watts = ranks * c->device.power + ceil((double)ranks / c->devices_per_node) * c->node_power;
    return ranks * c->device_hour * seconds / 3600 + c->kwh * watts * (c->pue > 0 ? c->pue : 1) * seconds / 3.6e6;
}

/* Without prices a device-second is what counts. */
static double key_of(const hunt *h, int ranks, double seconds, double bytes)
{
    if (h->r->objective == IM_OBJECTIVE_MEMORY)
        return bytes;
    if (h->r->objective == IM_OBJECTIVE_TIME)
        return seconds;
    double money = price_of(h, ranks, seconds);
    return money > 0 ? money : ranks * seconds;
}

static double second_of(const hunt *h, double seconds, double bytes)
{
    return h->r->objective == IM_OBJECTIVE_MEMORY ? seconds : bytes;
}

static const char *why_not(hunt *h, const im_plan *p, int order)
{
    if (p->model->planning_only)
        return im_arena_printf(h->out->arena, "family %s", p->model->family);
    if (order)
        return im_arena_printf(h->out->arena, "order %s", im_search_order_name(order));
    if (p->mesh.tp > 1024 || p->mesh.dp > 1024)
        return "more than 1,024 ranks of an axis";
    return NULL;
}

static void note_least(hunt *h, const im_outline *o, double bytes, int fullest)
{
    im_search_found *l = &h->out->least;
    if (l->memory > 0 && l->memory <= bytes)
        return;
    *l = (im_search_found){.plan = o->plan, .memory = bytes, .fullest = fullest};
}

/* A search without bounds takes every leaf to the end. */
static im_status push_or_fail(hunt *h, entry e)
{
    if (h->r->whole && e.level < 2)
        e.key = e.second = 0;
    return push(h, e) ? IM_OK : im_fail(h->ctx, IM_ERR_NOMEM, "no memory for %zu layouts", h->n);
}

/* Level 0: most leaves end here, at what their layout alone needs. */
static im_status first_look(hunt *h, uint32_t i)
{
    im_outline o;
    IM_TRY(im_leaf_outline(h->ctx, &h->leaves, i, 0, false, &o));
    double batch = (double)o.plan.micro_batch, bytes = im_outline_memory_bound(&o, batch);
    double seconds = im_leaf_floor(&h->leaves, &o);
    int orders[IM_SEARCH_ORDERS], n = im_leaf_orders(&h->leaves, i, orders);
    h->out->leaves += n;
    if (bytes > h->out->room && !h->r->whole) {
        h->out->refused[IM_REFUSED_MEMORY] += n;
        note_least(h, &o, bytes, 0);
        return IM_OK;
    }
    entry e = {.key = key_of(h, im_mesh_size(&o.plan.mesh), seconds, bytes), .second = second_of(h, seconds, bytes), .leaf = i};
    return push_or_fail(h, e);
}

/* Level 1: priced parts; the orders of the ranks part here. */
static im_status second_look(hunt *h, const entry *e)
{
    im_outline o;
    int fullest = 0;
    h->out->looked_at++;
    double bytes = 0; /* the same in every order */
    int orders[IM_SEARCH_ORDERS], n = im_leaf_orders(&h->leaves, e->leaf, orders);
    for (int k = 0; k < n; k++) {
        IM_TRY(im_leaf_outline(h->ctx, &h->leaves, e->leaf, orders[k], true, &o));
        if (k == 0) {
            bytes = im_outline_memory(&o, &fullest, &h->room);
            if (bytes < 0)
                return im_fail(h->ctx, IM_ERR_NOMEM, "no memory to look at a layout");
        }
        double seconds = im_outline_time_bound(&o);
        if (bytes > h->out->room) {
            h->out->refused[IM_REFUSED_MEMORY] += n;
            note_least(h, &o, bytes, fullest);
            return IM_OK;
        }
        entry next = {.key = key_of(h, im_mesh_size(&o.plan.mesh), seconds, bytes),
                      .second = second_of(h, seconds, bytes),
                      .leaf = e->leaf,
                      .level = 1,
                      .order = (uint8_t)orders[k]};
        IM_TRY(push_or_fail(h, next));
    }
    return IM_OK;
}

static im_status third_look(hunt *h, const entry *e)
{
    im_outline o;
    int fullest = 0;
    IM_TRY(im_leaf_outline(h->ctx, &h->leaves, e->leaf, e->order, true, &o));
    double bytes = im_outline_memory(&o, &fullest, &h->room), seconds = im_outline_time(&o, &h->room);
    if (seconds < 0)
        return im_fail(h->ctx, IM_ERR_NOMEM, "no memory to run a layout in time");
    h->out->run++;
    entry next = *e;
    next.level = 2;
    next.key = key_of(h, im_mesh_size(&o.plan.mesh), seconds, bytes);
    next.second = second_of(h, seconds, bytes);
    return push_or_fail(h, next);
}

static im_status answer(hunt *h, const entry *e)
{
    im_search *s = h->out;
    im_outline o;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        im_search_found *more = realloc(s->found, cap * sizeof *more);
        if (!more)
            return im_fail(h->ctx, IM_ERR_NOMEM, "no memory for answers");
        s->found = more;
        s->cap = cap;
    }
    IM_TRY(im_leaf_outline(h->ctx, &h->leaves, e->leaf, e->order, true, &o));
    im_search_found *f = &s->found[s->n++];
    *f = (im_search_found){.plan = o.plan, .order = e->order, .device = im_leaf_devices(&h->leaves, e->leaf, e->order)};
    f->memory = im_outline_memory(&o, &f->fullest, &h->room);
    f->step = im_outline_time(&o, &h->room);
    f->cost = price_of(h, im_mesh_size(&o.plan.mesh), f->step);
    f->why_not = why_not(h, &o.plan, e->order);
    return IM_OK;
}

static im_status hunt_down(hunt *h)
{
    bool runs = false;
    int most = h->r->top > 0 ? h->r->top : 1;
    while (h->n && ((int)h->out->n < most || (!runs && !h->r->base.model->planning_only))) {
        entry e = pop(h);
        if (e.level == 0)
            IM_TRY(second_look(h, &e));
        else if (e.level == 1)
            IM_TRY(third_look(h, &e));
        else {
            bool keep = (int)h->out->n < most;
            IM_TRY(answer(h, &e));
            im_search_found *f = &h->out->found[h->out->n - 1];
            runs |= !f->why_not;
            if (!keep && f->why_not) { /* beyond those asked for, only one that runs */
                h->out->n--;
                h->out->refused[IM_REFUSED_SLOWER]++;
            }
        }
    }
    for (size_t i = 0; i < h->n; i++) { /* what was not told apart by its orders yet stands for all of them */
        int orders[IM_SEARCH_ORDERS];
        h->out->refused[IM_REFUSED_SLOWER] += h->heap[i].level ? 1 : im_leaf_orders(&h->leaves, h->heap[i].leaf, orders);
    }
    return IM_OK;
}

/* ---- all together ------------------------------------------------------------------------------------ */

im_status im_search_open(im_context *ctx, const im_search_request *r, im_search *out)
{
    hunt h = {.ctx = ctx, .r = r, .out = out};
    im_status status;
    *out = (im_search){.room = r->room > 0 ? r->room : r->cluster->device.memory - r->cluster->device.memory_reserved};
    IM_TRY(im_arena_create(ctx, &out->arena));
    IM_TRY_GOTO(im_leaves_open(ctx, r, out->arena, &h.leaves), search);
    for (int i = 0; i < IM_REFUSED_COUNT; i++)
        out->refused[i] = h.leaves.refused[i];
    for (int i = 0; i < IM_REFUSED_COUNT; i++)
        out->leaves += h.leaves.refused[i];
    for (uint32_t i = 0; i < h.leaves.n; i++)
        IM_TRY_GOTO(first_look(&h, i), leaves);
    IM_TRY_GOTO(hunt_down(&h), leaves);
leaves:
    free(h.heap);
    im_task_room_free(&h.room);
    im_leaves_close(&h.leaves);
search:
    if (status != IM_OK)
        im_search_close(out);
    return status;
}

void im_search_close(im_search *s)
{
    free(s->found);
    im_arena_destroy(s->arena);
    *s = (im_search){0};
}

const im_search_found *im_search_winner(const im_search *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!s->found[i].why_not)
            return &s->found[i];
    return NULL;
}
