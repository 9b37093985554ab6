/* steps: the instruction list of one rank, a pure function of plan, place and mode.
 *
 * A schedule (schedule.h) says in which order a stage runs the forwards and backwards of its micro-batches; what surrounds them (messages, gathers,
 * reductions, the update) is made here and the same for all.
 */
#include "plan/program.h"

#include <string.h>

typedef struct writer {
    const im_plan *plan;
    const im_layout *layout;
    const im_model *model;
    im_arena *arena;
    im_step *step;
    uint32_t n, cap;
    bool failed;
    const int *virtual_stage; /* of each unit */
    int chunks, stage, stages;
    int micro_batches;
    bool train;
} writer;

/* A chunk's units. */
typedef struct run_of_units {
    int virtual_stage, first, end;
    bool head, embed; /* it has them */
} run_of_units;

static void emit(writer *w, im_verb verb, int target, int mb)
{
    if (w->n == w->cap) {
        uint32_t cap = w->cap ? w->cap * 2 : 256;
        im_step *s = IM_ARENA_NEW(w->arena, im_step, cap);
        if (!s) {
            w->failed = true;
            return;
        }
        if (w->n)
            memcpy(s, w->step, sizeof *s * w->n);
        w->step = s;
        w->cap = cap;
    }
    w->step[w->n++] = (im_step){.verb = (uint8_t)verb, .target = (uint16_t)target, .mb = mb};
}

static void message(writer *w, im_verb verb, im_channel channel, int chunk, int mb)
{
    emit(w, verb, channel, mb);
    if (!w->failed)
        w->step[w->n - 1].chunk = (uint8_t)chunk;
}

static run_of_units chunk_units(const writer *w, int chunk)
{
    run_of_units r = {.virtual_stage = chunk * w->stages + w->stage, .first = -1};
    for (int u = 0; u < (int)w->model->nunit; u++) {
        if (w->virtual_stage[u] != r.virtual_stage)
            continue;
        if (r.first < 0)
            r.first = u;
        r.end = u + 1;
    }
    r.embed = r.first == 0;
    r.head = r.end == (int)w->model->nunit;
    return r;
}

/* The neighbour is another rank. */
static bool from_before(const writer *w, const run_of_units *r)
{
    return !r->embed && w->stages > 1;
}

static bool to_next(const writer *w, const run_of_units *r)
{
    return !r->head && w->stages > 1;
}

static bool is_head(const writer *w, int unit)
{
    return unit + 1 == (int)w->model->nunit;
}

static bool reads_weights(const writer *w, im_verb v, int unit)
{
    const im_unit *u = &w->model->unit[unit];
    bool look_up = u->type == IM_UNIT_EMBED && u->param[IM_SLOT_NORM1_W] < 0; /* its gradient needs no table */
    return !(v == IM_BACKWARD && look_up) && v != IM_BACKWARD_WEIGHT;
}

/* GATHER or RELEASE of every bucket the unit uses, once each */
static void unit_buckets(writer *w, im_verb what, int unit, int mb)
{
    uint16_t done[IM_SLOT_COUNT];
    int ndone = 0;
    for (int s = 0; s < IM_SLOT_COUNT; s++) {
        int32_t p = w->model->unit[unit].param[s];
        if (p < 0)
            continue;
        uint16_t b = w->model->param[p].bucket;
        bool seen = false;
        for (int i = 0; i < ndone; i++)
            seen |= done[i] == b;
        if (seen)
            continue;
        done[ndone++] = b;
        emit(w, what, b, mb);
    }
}

static void unit_step(writer *w, im_verb v, int unit, int mb)
{
    bool gathered = w->plan->zero == 3 && reads_weights(w, v, unit);
    if (gathered)
        unit_buckets(w, IM_GATHER, unit, mb);
    emit(w, v, unit, mb);
    if (gathered)
        unit_buckets(w, IM_RELEASE, unit, mb);
}

static bool bucket_is_summed(const im_bucket *b)
{
    return b->held && b->sum;
}

static void forward(writer *w, int chunk, int mb)
{
    run_of_units r = chunk_units(w, chunk);
    if (chunk == 0)
        emit(w, IM_LOAD, 0, mb); /* every stage needs the positions */
    if (from_before(w, &r))
        message(w, IM_RECV, IM_CH_ACT_IN, chunk, mb);
    for (int u = r.first; u < r.end; u++)
        if (!is_head(w, u))
            unit_step(w, IM_FORWARD, u, mb);
    if (to_next(w, &r))
        message(w, IM_SEND, IM_CH_ACT_OUT, chunk, mb);
}

/* the smallest unit of this stage that uses the bucket: its BACKWARD is the last contribution of a micro-batch */
static int last_user(const writer *w, size_t bucket)
{
    for (int u = 0; u < (int)w->model->nunit; u++)
        for (int s = 0; w->virtual_stage[u] % w->stages == w->stage && s < IM_SLOT_COUNT; s++) {
            int32_t p = w->model->unit[u].param[s];
            if (p >= 0 && w->model->param[p].bucket == bucket)
                return u;
        }
    return -1;
}

static void reduce_after(writer *w, int unit, int mb)
{
    for (size_t b = 0; b < w->model->nbucket; b++)
        if (bucket_is_summed(&w->layout->bucket[b]) && last_user(w, b) == unit)
            emit(w, IM_REDUCE, (int)b, mb);
}

/* The gradients that a unit's part completes, once a micro-batch or once a step. */
static void reduce_unit(writer *w, int unit, int mb)
{
    if (w->plan->zero >= 2)
        reduce_after(w, unit, mb);
    else if (mb == w->micro_batches - 1)
        reduce_after(w, unit, -1);
}

static bool is_recomputed(const writer *w, int unit)
{
    return w->plan->recompute != IM_RECOMPUTE_NONE && w->model->unit[unit].type == IM_UNIT_BLOCK;
}

/* The whole backward, or its first part: blocks give the gradient of their input and keep what BACKWARD_WEIGHT needs. LOSS is the head's whole backward
 * in both, and the table's gradient belongs to the second part. */
static void backward(writer *w, int chunk, int mb, bool whole)
{
    run_of_units r = chunk_units(w, chunk);
    if (to_next(w, &r))
        message(w, IM_RECV, IM_CH_GRAD_IN, chunk, mb);
    for (int u = r.end - 1; u >= r.first; u--) {
        bool block = w->model->unit[u].type == IM_UNIT_BLOCK;
        if (!whole && !block && !is_head(w, u))
            continue;
        if (is_recomputed(w, u))
            unit_step(w, IM_RECOMPUTE, u, mb);
        unit_step(w, is_head(w, u) ? IM_LOSS : whole ? IM_BACKWARD : IM_BACKWARD_INPUT, u, mb);
        if (whole || !block)
            reduce_unit(w, u, mb);
    }
    if (from_before(w, &r))
        message(w, IM_SEND, IM_CH_GRAD_OUT, chunk, mb);
}

static void weight_part(writer *w, int chunk, int mb)
{
    run_of_units r = chunk_units(w, chunk);
    for (int u = r.end - 1; u >= r.first; u--) {
        if (is_head(w, u))
            continue;
        unit_step(w, w->model->unit[u].type == IM_UNIT_BLOCK ? IM_BACKWARD_WEIGHT : IM_BACKWARD, u, mb);
        reduce_unit(w, u, mb);
    }
}

static im_status scheduled(im_context *ctx, writer *w)
{
    size_t cap = (size_t)3 * (size_t)w->micro_batches * (size_t)w->chunks;
    im_task *task = IM_ARENA_NEW(w->arena, im_task, cap + 1);
    if (!task)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a schedule of %zu parts", cap);
    size_t n = im_schedule_of(w->plan->schedule)->tasks(w->stages, w->micro_batches, w->chunks, w->stage, task);
    for (size_t i = 0; i < n; i++)
        switch ((im_part_kind)task[i].part) {
        case IM_PART_FORWARD: forward(w, task[i].chunk, task[i].mb); break;
        case IM_PART_BACKWARD: backward(w, task[i].chunk, task[i].mb, true); break;
        case IM_PART_INPUT: backward(w, task[i].chunk, task[i].mb, false); break;
        case IM_PART_WEIGHT: weight_part(w, task[i].chunk, task[i].mb); break;
        }
    return IM_OK;
}

static void forward_only(writer *w, im_verb end)
{
    for (int c = 0; c < w->chunks; c++)
        forward(w, c, 0);
    int head = (int)w->model->nunit - 1;
    if (w->virtual_stage[head] % w->stages == w->stage)
        unit_step(w, end, head, 0);
}

/* ---- ZeRO 3: gathers a unit ahead -------------------------------------------------------- */

static bool computes(const im_step *s)
{
    return s->verb == IM_FORWARD || s->verb == IM_RECOMPUTE || s->verb == IM_LOSS || s->verb == IM_SAMPLE || s->verb == IM_BACKWARD ||
           s->verb == IM_BACKWARD_INPUT || s->verb == IM_BACKWARD_WEIGHT;
}

/* A GATHER goes before the computing that its unit's follows, so that the weights arrive while that goes on; not past the RELEASE of the same
 * bucket, a message, or another micro-batch's LOAD. Two units' weights are whole at a time, no more. */
static void gather_ahead(writer *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        im_step g = w->step[i];
        uint32_t at = i;
        int passed = 0;
        if (g.verb != IM_GATHER)
            continue;
        while (at > 0) {
            const im_step *s = &w->step[at - 1];
            bool stop = s->verb == IM_GATHER || s->verb == IM_LOAD || s->verb == IM_SEND || s->verb == IM_RECV ||
                        (s->verb == IM_RELEASE && (passed || s->target == g.target)) || (computes(s) && passed);
            if (stop)
                break;
            passed += computes(s);
            at--;
        }
        memmove(w->step + at + 1, w->step + at, sizeof g * (i - at));
        w->step[at] = g;
    }
}

/* A bucket that is gathered right after its release stays. */
static void keep_gathered(writer *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const im_step *s = &w->step[i], *next = i + 1 < w->n ? s + 1 : NULL;
        if (s->verb == IM_RELEASE && next && next->verb == IM_GATHER && next->target == s->target)
            i++;
        else
            w->step[n++] = *s;
    }
    w->n = n;
}

static void finish(writer *w)
{
    emit(w, IM_COUNT, 0, -1);
    if (!w->train)
        return;
    emit(w, IM_CLIP, 0, -1);
    for (size_t b = 0; b < w->model->nbucket; b++)
        if (w->layout->bucket[b].held)
            emit(w, IM_UPDATE, (int)b, -1);
    if (w->plan->zero == 1 || w->plan->zero == 2)
        for (size_t b = 0; b < w->model->nbucket; b++)
            if (w->layout->bucket[b].held)
                emit(w, IM_GATHER, (int)b, -1);
    emit(w, IM_SNAPSHOT, 0, -1);
}

im_status im_program_steps(im_context *ctx, const im_plan *p, const im_layout *l, const im_program_spec *spec, im_arena *a, im_step **steps,
                           uint32_t *n)
{
    writer w = {.plan = p,
                .layout = l,
                .model = p->model,
                .arena = a,
                .train = spec->mode == IM_PROGRAM_TRAIN,
                .chunks = im_plan_chunks(p),
                .stage = l->place.pp,
                .stages = p->mesh.pp};
    int *stage = IM_ARENA_NEW(a, int, p->model->nunit);
    if (!stage)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the stages of %zu units", p->model->nunit);
    im_plan_virtual_stages(p, stage);
    w.virtual_stage = stage;
    w.micro_batches = w.train ? im_plan_micro_batches(p, l->place.dp) : 1;
    if (w.train)
        IM_TRY(scheduled(ctx, &w));
    else
        forward_only(&w, spec->mode == IM_PROGRAM_EVAL ? IM_LOSS : IM_SAMPLE);
    if (spec->mode != IM_PROGRAM_INFER)
        finish(&w);
    if (p->zero == 3) {
        gather_ahead(&w);
        keep_gathered(&w);
    }
    if (w.failed)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the instructions");
    *steps = w.step;
    *n = w.n;
    return IM_OK;
}
