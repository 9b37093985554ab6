/* steps: the instruction list of one rank, a pure function of plan, place and mode.
 *
 * A schedule is a function that says in which order a stage runs the forwards and backwards of its micro-batches;
 * what surrounds them (messages, gathers, reductions, the update) is the same for all.
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
    int first_unit, end_unit; /* of this stage */
    int micro_batches;
    bool train;
} writer;

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

void im_plan_stages(const im_plan *p, int *stage_of_unit)
{
    int64_t L = p->model->arch.L, pp = p->mesh.pp;
    size_t nunit = p->model->nunit;
    for (size_t u = 0; u < nunit; u++) {
        int64_t block = p->model->unit[u].block;
        if (u == 0)
            stage_of_unit[u] = 0;
        else if (u + 1 == nunit)
            stage_of_unit[u] = (int)pp - 1;
        else /* the first L % pp stages have one block more */
            stage_of_unit[u] = (int)(block < (L % pp) * (L / pp + 1) ? block / (L / pp + 1) : (block - L % pp) / (L / pp));
    }
}

static bool is_head(const writer *w, int unit)
{
    return unit + 1 == (int)w->model->nunit;
}

static bool reads_weights(const writer *w, im_verb v, int unit)
{
    return !(v == IM_BACKWARD && w->model->unit[unit].type == IM_UNIT_EMBED); /* the gradient of a look-up needs no table */
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

static void forward(writer *w, int mb)
{
    bool first = w->first_unit == 0, last = w->end_unit == (int)w->model->nunit;
    emit(w, IM_LOAD, 0, mb); /* every stage needs the positions */
    if (!first)
        emit(w, IM_RECV, IM_CH_ACT_IN, mb);
    for (int u = w->first_unit; u < w->end_unit; u++)
        if (!is_head(w, u))
            unit_step(w, IM_FORWARD, u, mb);
    if (!last)
        emit(w, IM_SEND, IM_CH_ACT_OUT, mb);
}

/* the smallest unit of this stage that uses the bucket: its BACKWARD is the last contribution of a micro-batch */
static int last_user(const writer *w, size_t bucket)
{
    for (int u = w->first_unit; u < w->end_unit; u++)
        for (int s = 0; s < IM_SLOT_COUNT; s++) {
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

static void backward(writer *w, int mb)
{
    bool first = w->first_unit == 0, last = w->end_unit == (int)w->model->nunit;
    bool per_micro_batch = w->plan->zero >= 2;
    if (!last)
        emit(w, IM_RECV, IM_CH_GRAD_IN, mb);
    for (int u = w->end_unit - 1; u >= w->first_unit; u--) {
        if (w->plan->recompute != IM_RECOMPUTE_NONE && w->train && w->model->unit[u].type == IM_UNIT_BLOCK)
            unit_step(w, IM_RECOMPUTE, u, mb);
        unit_step(w, is_head(w, u) ? IM_LOSS : IM_BACKWARD, u, mb);
        if (per_micro_batch && w->train)
            reduce_after(w, u, mb);
        else if (w->train && mb == w->micro_batches - 1)
            reduce_after(w, u, -1);
    }
    if (!first)
        emit(w, IM_SEND, IM_CH_GRAD_OUT, mb);
}

static void schedule_gpipe(writer *w)
{
    for (int mb = 0; mb < w->micro_batches; mb++)
        forward(w, mb);
    for (int mb = 0; mb < w->micro_batches; mb++)
        backward(w, mb);
}

/* One forward, one backward: a stage starts p - 1 - stage micro-batches ahead, then alternates (Narayanan et al., 2021). */
static void schedule_1f1b(writer *w)
{
    int m = w->micro_batches, ahead = w->plan->mesh.pp - 1 - w->layout->place.pp;
    if (ahead > m)
        ahead = m;
    for (int mb = 0; mb < ahead; mb++)
        forward(w, mb);
    for (int mb = 0; mb < m; mb++) {
        if (mb + ahead < m)
            forward(w, mb + ahead);
        backward(w, mb);
    }
}

/* ---- ZeRO 3: gathers a unit ahead -------------------------------------------------------- */

static bool computes(const im_step *s)
{
    return s->verb == IM_FORWARD || s->verb == IM_RECOMPUTE || s->verb == IM_LOSS || s->verb == IM_SAMPLE || s->verb == IM_BACKWARD;
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
    writer w = {.plan = p, .layout = l, .model = p->model, .arena = a, .train = spec->mode == IM_PROGRAM_TRAIN};
    int *stage = IM_ARENA_NEW(a, int, p->model->nunit);
    if (!stage)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the stages of %zu units", p->model->nunit);
    im_plan_stages(p, stage);
    for (int u = (int)p->model->nunit - 1; u >= 0; u--)
        if (stage[u] == l->place.pp)
            w.first_unit = u;
    for (int u = 0; u < (int)p->model->nunit; u++)
        if (stage[u] == l->place.pp)
            w.end_unit = u + 1;
    w.micro_batches = w.train ? im_plan_micro_batches(p, l->place.dp) : 1;
    if (w.train && p->schedule == IM_SCHEDULE_1F1B) {
        schedule_1f1b(&w);
    } else if (w.train) {
        schedule_gpipe(&w);
    } else {
        forward(&w, 0);
        if (w.end_unit == (int)p->model->nunit)
            unit_step(&w, spec->mode == IM_PROGRAM_EVAL ? IM_LOSS : IM_SAMPLE, w.end_unit - 1, 0);
    }
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
