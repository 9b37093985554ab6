/* A step as its schedule's tasks in time. A stage does its tasks in order, each when what it needs has come; messages take their time and no stage's. Then
 * gradients are reduced, all wait for the norm, weights are updated and gathered. */
#include "plan/search_parts.h"

#include <math.h>

/* ---- what surrounds the parts: ZeRO's gathers and reductions ------------------------------------- */

static double gather_time(const im_outline *o, double elements)
{
    return elements > 0 && o->plan.mesh.dp > 1
               ? im_cost_collective(o->cost, IM_COLL_ALL_GATHER, IM_GROUP_DP, elements * (double)im_dtype_size(o->plan.precision)).seconds
               : 0;
}

static double reduce_time(const im_outline *o, double elements)
{
    im_collective c = o->plan.zero >= 2 ? IM_COLL_REDUCE_SCATTER : IM_COLL_ALL_REDUCE;
    return elements > 0 && o->plan.mesh.dp > 1 ? im_cost_collective(o->cost, c, IM_GROUP_DP, 4 * elements).seconds : 0;
}

static double tied_time(const im_outline *o)
{
    return o->weights->tied > 0 && o->plan.mesh.pp > 1 ? im_cost_collective(o->cost, IM_COLL_ALL_REDUCE, IM_GROUP_TIED, 4 * o->weights->tied).seconds
                                                       : 0;
}

/* Seconds of bucket work of each kind. */
typedef struct bucket_times {
    double block, embed, head, tied;
} bucket_times;

static bucket_times times_of(const im_outline *o, double (*f)(const im_outline *, double))
{
    return (bucket_times){f(o, o->weights->block), f(o, o->weights->embed), f(o, o->weights->head), f(o, o->weights->tied)};
}

/* ---- a virtual stage's parts ------------------------------------------------------------------------ */

typedef struct part_times {
    double forward, back, weight; /* back: whole, or the first part */
    double exposed;               /* ZeRO 2, 3: of the part that completes gradients, what the first micro-batch does not have (below) */
    double reduce;                /* of all its gradients */
    double last_reduce;           /* what follows the last part, when nothing waited before */
} part_times;

/* ZeRO 2 and 3 add each micro-batch's sum to the shard that the ones before gave, on the queue that computes: from the second one on it waits for the sum. */
static double exposed(const im_outline *o, double elements, double reduce, double sums)
{
    double shard = elements / o->plan.mesh.dp;
    if (o->plan.zero < 2 || elements <= 0)
        return 0;
    return reduce + sums + im_cost_bytes(&im_cost_cluster(o->cost)->device, 12 * shard);
}

/* A unit is computed while the next one's weights come. */
static void pass(double compute, double next_gather, double *sum)
{
    *sum += fmax(compute, next_gather);
}

static part_times parts_of(const im_outline *o, int virtual_stage, const bucket_times *gather, const bucket_times *reduce)
{
    im_run r = im_outline_run(o, virtual_stage);
    const im_piece *q = o->piece;
    bool whole = o->plan.zero == 3, split = im_schedule_of(o->plan.schedule)->splits;
    part_times t = {0};
    double g = whole ? gather->block : 0, ge = whole ? gather->embed + gather->tied : 0, gh = whole ? gather->head + gather->tied : 0;
    double ring = 0; /* when the reductions so far have ended, counted from the beginning of the backward */
    if (r.embed)
        pass(o->share * q->embed_forward, g, &t.forward);
    t.forward += r.embed ? ge : g;
    for (int64_t b = r.first; b < r.first + r.n; b++)
        pass(o->share * q->forward[o->mini->kind[b]], b + 1 < r.first + r.n ? g : 0, &t.forward);
    t.back += r.head ? gh : g;
    double *last = split ? &t.weight : &t.back; /* gradients are whole after this part */
    if (r.head) {
        pass(o->share * q->head, g, &t.back);
        t.exposed += exposed(o, o->weights->head, reduce->head, q->sums[IM_UNIT_HEAD]) + exposed(o, o->weights->tied, reduce->tied, 0);
        ring = t.back + reduce->head + q->sums[IM_UNIT_HEAD];
    }
    for (int64_t b = r.first + r.n; b-- > r.first;) {
        int k = o->mini->kind[b];
        pass(o->share * q->back[k], b > r.first ? g : 0, &t.back);
        t.weight += o->share * q->weight[k];
        t.exposed += exposed(o, o->weights->block, reduce->block, q->sums[IM_UNIT_BLOCK]);
        ring = fmax(ring, *last) + reduce->block + q->sums[IM_UNIT_BLOCK];
    }
    if (r.embed) {
        *last += o->share * q->embed_back;
        t.exposed += exposed(o, o->weights->embed, reduce->embed, q->sums[IM_UNIT_EMBED]);
        ring = fmax(ring, *last) + reduce->embed + q->sums[IM_UNIT_EMBED];
    }
    if (r.embed || (r.head && o->plan.mesh.pp > 1))
        ring = fmax(ring, *last) + reduce->tied + tied_time(o);
    t.last_reduce = fmax(0, ring - *last);
    t.reduce = (double)r.n * (reduce->block + q->sums[IM_UNIT_BLOCK]) + (r.head ? reduce->head + q->sums[IM_UNIT_HEAD] : 0) +
               (r.embed ? reduce->embed + q->sums[IM_UNIT_EMBED] : 0);
    *last += t.exposed;
    return t;
}

/* ---- the end of a step ----------------------------------------------------------------------------------- */

static double bytes_time(const im_outline *o, double bytes, int ops)
{
    const im_cluster_device *d = &im_cost_cluster(o->cost)->device;
    return bytes > 0 ? im_cost_bytes(d, bytes) + (ops > 1 ? (ops - 1) * d->launch : 0) : 0;
}

/* Seconds of work on the own part of every bucket of a stage; AdamW reads and writes the states and the weight, and reads the gradient. */
typedef struct tail {
    double squares, update, gather;
} tail;

static void add_bucket(const im_outline *o, double elements, int ops, int64_t times, tail *t)
{
    double e = (double)im_dtype_size(o->plan.precision), own = o->plan.zero ? elements / o->plan.mesh.dp : elements;
    if (elements <= 0)
        return;
    t->squares += (double)times * bytes_time(o, own * 4, 1);
    t->update += (double)times * bytes_time(o, own * (4 + 2 * e + 16 + (e < 4 ? 8 : 0)), ops);
    t->gather += o->plan.zero == 1 || o->plan.zero == 2 ? (double)times * gather_time(o, elements) : 0;
}

static tail tail_of(const im_outline *o, int stage)
{
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp;
    const im_weights *w = o->weights;
    tail t = {0};
    int64_t blocks = 0;
    for (int c = 0; c < v; c++)
        blocks += o->blocks[c * pp + stage];
    add_bucket(o, w->block, w->block_ops, blocks, &t);
    if (stage == 0)
        add_bucket(o, w->embed, w->embed_ops, 1, &t);
    if (stage + 1 == pp)
        add_bucket(o, w->head, w->head_ops, 1, &t);
    if (stage == 0 || stage + 1 == pp)
        add_bucket(o, w->tied, 1, 1, &t);
    return t;
}

static double norm_time(const im_outline *o)
{
    return im_mesh_size(&o->plan.mesh) > 1 ? im_cost_collective(o->cost, IM_COLL_ALL_REDUCE, IM_GROUP_WORLD, 8).seconds : 0;
}

/* From the end of a stage's last reduction: squares of the last bucket, all ranks' norm, update, gathers. */
static double after(const im_outline *o, const double *ready)
{
    double from = 0, most = 0;
    for (int s = 0; s < o->plan.mesh.pp; s++)
        from = fmax(from, ready[s] + tail_of(o, s).squares);
    from += norm_time(o);
    for (int s = 0; s < o->plan.mesh.pp; s++) {
        tail t = tail_of(o, s);
        most = fmax(most, fmax(t.update, t.gather) + (t.gather > 0 && t.update > 0 ? fmin(t.update, t.gather) / (double)o->mini->model.nunit : 0));
    }
    return from + most;
}

/* ---- tasks in time ---------------------------------------------------------------------------------------------- */

typedef struct stage_state {
    im_task *task;
    size_t n, next;
    double free, reduced; /* when it has time; when its reductions so far have ended */
} stage_state;

typedef struct run {
    const im_outline *o;
    part_times *part; /* [pp * v] */
    double *hop;      /* [pp] */
    stage_state *stage;
    double *forward_end, *back_end; /* [pp * v][m]; < 0: not yet */
    int m;
    double last_end[64]; /* of each stage's last part that gives gradients, by stage: when the last reduction may begin */
} run;

/* When what the task needs is there; < 0: not yet. */
static double needs(const run *r, int s, const im_task *t)
{
    int pp = r->o->plan.mesh.pp, n = pp * im_plan_chunks(&r->o->plan), vs = t->chunk * pp + s;
    double at = 0;
    if (t->part == IM_PART_WEIGHT)
        return 0;
    if (t->part == IM_PART_FORWARD) {
        if (vs == 0)
            return 0;
        at = r->forward_end[(size_t)(vs - 1) * (size_t)r->m + (size_t)t->mb];
        return at < 0 ? at : at + (pp > 1 ? r->hop[(s + pp - 1) % pp] : 0);
    }
    if (vs + 1 == n)
        return 0;
    at = r->back_end[(size_t)(vs + 1) * (size_t)r->m + (size_t)t->mb];
    return at < 0 ? at : at + (pp > 1 ? r->hop[s] : 0);
}

static void finish_task(run *r, int s, const im_task *t, double start)
{
    int pp = r->o->plan.mesh.pp, vs = t->chunk * pp + s;
    stage_state *g = &r->stage[s];
    const part_times *p = &r->part[vs];
    bool split = im_schedule_of(r->o->plan.schedule)->splits;
    double end = start + (t->part == IM_PART_FORWARD ? p->forward : t->part == IM_PART_WEIGHT ? p->weight : p->back);
    bool completes = t->part == IM_PART_WEIGHT || (t->part == IM_PART_BACKWARD && !split);
    if (completes && t->mb == 0)
        end -= p->exposed;
    if (t->part == IM_PART_FORWARD)
        r->forward_end[(size_t)vs * (size_t)r->m + (size_t)t->mb] = end;
    else if (t->part != IM_PART_WEIGHT)
        r->back_end[(size_t)vs * (size_t)r->m + (size_t)t->mb] = end;
    g->free = end;
    if (completes)
        r->last_end[s] = end;
    if (completes && t->mb + 1 == r->m && (r->o->plan.zero < 2 || r->m == 1)) /* one chunk's after the other's, on their own queue */
        g->reduced = fmax(g->reduced + p->reduce, end + p->last_reduce);
}

/* A message goes into memory that mostly the part before has just done with: it comes after that part. Seconds of a virtual stage's; 0: none comes. */
static double received(const run *r, int virtual_stage, bool forward)
{
    int pp = r->o->plan.mesh.pp, s = virtual_stage % pp, n = pp * im_plan_chunks(&r->o->plan);
    if (pp == 1 || (forward ? virtual_stage == 0 : virtual_stage + 1 == n))
        return 0;
    return forward ? r->hop[(s + pp - 1) % pp] : r->hop[s];
}

static void advance(run *r)
{
    int pp = r->o->plan.mesh.pp;
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < pp; s++) {
            stage_state *g = &r->stage[s];
            for (double at; g->next < g->n && (at = needs(r, s, &g->task[g->next])) >= 0; g->next++) {
                const im_task *t = &g->task[g->next];
                double message = t->part == IM_PART_WEIGHT ? 0 : received(r, t->chunk * pp + s, t->part == IM_PART_FORWARD);
                finish_task(r, s, t, fmax(at, g->free + message));
                moved = true;
            }
        }
    }
}

/* The tied table's sum stands first in the last stage's queue of reductions, and waits for the first stage, which comes to it last. */
static void wait_for_tied(const run *r, double *ready)
{
    const im_outline *o = r->o;
    int pp = o->plan.mesh.pp;
    if (o->weights->tied <= 0 || pp == 1 || o->plan.zero >= 2)
        return;
    ready[pp - 1] = fmax(ready[pp - 1], ready[0]);
    for (int c = 0; c < im_plan_chunks(&o->plan); c++)
        ready[pp - 1] += r->part[c * pp + pp - 1].reduce;
}

/* Seconds of a step of m micro-batches; < 0: no memory. */
static double step_of(run *r, int m, im_task_room *room)
{
    const im_outline *o = r->o;
    int pp = o->plan.mesh.pp, v = im_plan_chunks(&o->plan);
    size_t n = (size_t)pp * (size_t)v * (size_t)m;
    double ready[64], total = -1;
    r->m = m;
    r->forward_end = im_task_room_ends(room, 2 * n);
    im_task *task = im_task_room_for(room, (size_t)pp * 3 * (size_t)m * (size_t)v);
    if (r->forward_end && task) {
        r->back_end = r->forward_end + n;
        for (size_t i = 0; i < 2 * n; i++)
            r->forward_end[i] = -1;
        for (int s = 0; s < pp; s++) {
            im_task *own = task + (size_t)s * 3 * (size_t)m * (size_t)v;
            r->stage[s] = (stage_state){.task = own, .n = im_schedule_of(o->plan.schedule)->tasks(pp, m, v, s, own)};
        }
        advance(r);
        for (int s = 0; s < pp; s++) {
            ready[s] = fmax(r->last_end[s], r->stage[s].reduced);
        }
        wait_for_tied(r, ready);
        total = after(o, ready);
    }
    return total;
}

static void open_run(run *r, part_times *part, double *hop, stage_state *stage)
{
    const im_outline *o = r->o;
    int pp = o->plan.mesh.pp, n = pp * im_plan_chunks(&o->plan);
    bucket_times gather = times_of(o, gather_time), reduce = times_of(o, reduce_time);
    int share = o->plan.sequence_parallel ? o->plan.mesh.tp : 1;
    double rows = ceil(o->share * (double)o->plan.micro_batch * (double)o->plan.seq_len / share);
    double bytes = rows * (double)o->plan.model->arch.D * (double)im_dtype_size(o->plan.precision);
    r->part = part;
    r->hop = hop;
    r->stage = stage;
    for (int i = 0; i < n; i++) {
        bool again = i > 1 && i + 1 < n && o->mini->kinds == 1 && o->blocks[i] == o->blocks[i - 1]; /* as the one before */
        part[i] = again ? part[i - 1] : parts_of(o, i, &gather, &reduce);
    }
    for (int s = 0; s < pp && pp > 1; s++)
        hop[s] = im_cost_message(o->cost, s, bytes);
}

/* Seconds that a stage has to do with each micro-batch. */
static double busy(const run *r, int s)
{
    int pp = r->o->plan.mesh.pp;
    double t = 0;
    for (int c = 0; c < im_plan_chunks(&r->o->plan); c++)
        t += r->part[c * pp + s].forward + r->part[c * pp + s].back + r->part[c * pp + s].weight + received(r, c * pp + s, true) +
             received(r, c * pp + s, false);
    return t;
}

/* So many micro-batches reach the steady state; each one more then takes as long as the last did. */
enum { STEADY = 4 };

double im_outline_time(const im_outline *o, im_task_room *room)
{
    part_times part[64 * IM_MAX_CHUNKS];
    stage_state stage[64];
    double hop[64];
    run r = {.o = o};
    int pp = o->plan.mesh.pp, most = STEADY * pp + (o->m % pp);
    open_run(&r, part, hop, stage);
    if (o->m <= most + pp)
        return step_of(&r, o->m, room);
    double a = step_of(&r, most, room), b = step_of(&r, most + pp, room), slope = (b - a) / pp;
    for (int s = 0; s < pp; s++)
        slope = fmax(slope, busy(&r, s));
    return a < 0 || b < 0 ? -1 : b + slope * (o->m - most - pp);
}

double im_outline_time_bound(const im_outline *o)
{
    part_times part[64 * IM_MAX_CHUNKS];
    stage_state stage[64];
    double hop[64], ready[64], fill = 0, drain = 0;
    run r = {.o = o};
    int pp = o->plan.mesh.pp;
    bool split = im_schedule_of(o->plan.schedule)->splits;
    open_run(&r, part, hop, stage);
    for (int s = 0; s < pp; s++) {
        double own = o->m * busy(&r, s) - received(&r, s, true), rest = o->m > 1 && o->plan.zero >= 2 ? 0 : part[0].last_reduce;
        for (int c = 0; c < im_plan_chunks(&o->plan); c++)
            own -= part[c * pp + s].exposed; /* the first micro-batch's */
        ready[s] = fill + own + (o->m > 1 && o->plan.zero >= 2 ? 0 : part[s].last_reduce);
        if (s > 0) /* its last gradient goes down to the first stage; a split backward may end with weights */
            ready[0] = fmax(ready[0], fill + own - (split ? o->m * part[s].weight : 0) + drain + rest);
        fill += part[s].forward + (pp > 1 ? hop[s] : 0);
        drain += part[s].back - (o->m == 1 && !split ? part[s].exposed : 0) + (pp > 1 ? hop[s] : 0);
    }
    wait_for_tied(&r, ready);
    return after(o, ready);
}
