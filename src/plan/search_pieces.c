/* What the parts of a program take and keep: from the program of a model with one block of each kind, built as
 * the whole one would be. The second of its two micro-batches is the one that is looked at: the first writes gradients that the others add to. */
#include "plan/search_parts.h"

#include "plan/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the small model -------------------------------------------------------------------------- */

static im_status find_kinds(im_context *ctx, const im_model *m, im_arena *a, im_mini *out, size_t *unit_of_kind)
{
    uint8_t *kind = IM_ARENA_NEW(a, uint8_t, m->arch.L + 1);
    if (!kind)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a small model");
    for (int64_t b = 0; b < m->arch.L; b++) {
        int k = 0;
        while (k < out->kinds && m->unit[unit_of_kind[k]].window != m->unit[b + 1].window)
            k++;
        if (k == IM_SEARCH_KINDS)
            return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: blocks with more than %d windows", m->source, IM_SEARCH_KINDS);
        if (k == out->kinds)
            unit_of_kind[out->kinds++] = (size_t)b + 1;
        kind[b] = (uint8_t)k;
    }
    out->kind = kind;
    return IM_OK;
}

static void take_unit(const im_model *m, size_t u, bool *param)
{
    for (int s = 0; s < IM_SLOT_COUNT; s++)
        if (m->unit[u].param[s] >= 0)
            param[m->unit[u].param[s]] = true;
}

/* Parameters of the units that stay, numbered anew with their buckets, in their order. */
static void number_params(const im_model *m, const bool *keep, int32_t *number, im_model *out)
{
    int32_t n = 0;
    int bucket = -1, before = -1;
    for (size_t p = 0; p < m->nparam; p++) {
        if (!keep[p])
            continue;
        if (m->param[p].bucket != before)
            bucket++;
        before = m->param[p].bucket;
        out->param[n] = m->param[p];
        out->param[n].bucket = (uint16_t)bucket;
        number[p] = n++;
    }
    out->nparam = (size_t)n;
    out->nbucket = (size_t)bucket + 1;
}

im_status im_mini_make(im_context *ctx, const im_model *m, im_arena *a, im_mini *out)
{
    size_t from[IM_SEARCH_KINDS + 2] = {0};
    *out = (im_mini){.model = *m};
    IM_TRY(find_kinds(ctx, m, a, out, from + 1));
    size_t nunit = (size_t)out->kinds + 2;
    from[nunit - 1] = m->nunit - 1;
    bool *keep = IM_ARENA_NEW(a, bool, m->nparam + 1);
    int32_t *number = IM_ARENA_NEW(a, int32_t, m->nparam + 1);
    out->model.param = IM_ARENA_NEW(a, im_param, m->nparam + 1);
    out->model.unit = IM_ARENA_NEW(a, im_unit, nunit);
    if (!keep || !number || !out->model.param || !out->model.unit)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a small model");
    for (size_t u = 0; u < nunit; u++)
        take_unit(m, from[u], keep);
    number_params(m, keep, number, &out->model);
    for (size_t u = 0; u < nunit; u++) {
        out->model.unit[u] = m->unit[from[u]];
        out->model.unit[u].block = u && u + 1 < nunit ? (int32_t)u - 1 : -1;
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[from[u]].param[s] >= 0)
                out->model.unit[u].param[s] = number[m->unit[from[u]].param[s]];
    }
    out->model.nunit = nunit;
    out->model.arch.L = out->kinds;
    return IM_OK;
}

/* ---- weights ------------------------------------------------------------------------------------- */

/* Runs of parameters that agree on decay: an op of the update each. */
static int update_ops(const im_model *m, const im_bucket *b)
{
    int n = 1;
    for (int i = 1; i < b->nparam; i++)
        n += m->param[b->first_param + i].decay != m->param[b->first_param + i - 1].decay;
    return n;
}

im_status im_weights_of(im_context *ctx, const im_mini *mini, int tp, im_weights *out)
{
    im_layout *l;
    const im_model *m = &mini->model;
    int stage[IM_SEARCH_KINDS + 2] = {0};
    IM_TRY(im_layout_create(ctx, m, (im_mesh){tp, 1, 1, 1}, 0, 0, false, stage, &l));
    *out = (im_weights){0};
    for (size_t u = 0; u < m->nunit; u++) {
        int tied = m->arch.tied ? m->unit[u].param[IM_SLOT_TOKENS] : -1, own = -1;
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[u].param[s] >= 0 && (tied < 0 || m->param[m->unit[u].param[s]].bucket != m->param[tied].bucket))
                own = m->param[m->unit[u].param[s]].bucket;
        double count = own >= 0 ? (double)l->bucket[own].count : 0;
        int ops = own >= 0 ? update_ops(m, &l->bucket[own]) : 0;
        if (tied >= 0)
            out->tied = (double)l->bucket[m->param[tied].bucket].count;
        if (m->unit[u].type == IM_UNIT_EMBED) {
            out->embed = count;
            out->embed_ops = ops;
        } else if (m->unit[u].type == IM_UNIT_HEAD) {
            out->head = count;
            out->head_ops = ops;
        } else {
            out->block = fmax(out->block, count);
            out->block_ops = ops;
        }
    }
    im_layout_destroy(l);
    return IM_OK;
}

/* ---- time ----------------------------------------------------------------------------------------- */

static bool is_chain(const im_bound *x)
{
    return x->op->queue == IM_QUEUE_COMPUTE || x->op->queue == IM_QUEUE_TP;
}

static void add_time(im_piece *q, const im_unit *u, int kind, int verb, double seconds)
{
    double *to = NULL;
    if (u->type == IM_UNIT_EMBED)
        to = verb == IM_FORWARD ? &q->embed_forward : &q->embed_back;
    else if (u->type == IM_UNIT_HEAD)
        to = &q->head;
    else
        to = verb == IM_FORWARD ? &q->forward[kind] : verb == IM_BACKWARD_WEIGHT ? &q->weight[kind] : &q->back[kind];
    *to += seconds;
}

static bool is_part(const im_step *s)
{
    return s->verb == IM_FORWARD || s->verb == IM_RECOMPUTE || s->verb == IM_LOSS || s->verb == IM_BACKWARD || s->verb == IM_BACKWARD_INPUT ||
           s->verb == IM_BACKWARD_WEIGHT;
}

/* Of the unit whose own bucket it is; the tied table's sum is not over tp. */
static im_unit_type type_of_bucket(const im_model *m, int bucket)
{
    for (size_t u = 0; u < m->nunit; u++)
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[u].param[s] >= 0 && m->param[m->unit[u].param[s]].bucket == bucket)
                return m->unit[u].type;
    return IM_UNIT_BLOCK;
}

/* One touches what the other writes, or the other way round. */
static bool conflict(const im_bound *a, const im_bound *b)
{
    for (int i = 0; i < a->op->args.n; i++)
        for (int k = 0; k < b->op->args.n; k++)
            if (a->hi[i] > a->lo[i] && b->hi[k] > b->lo[k] && (a->op->use[i].access != IM_READ || b->op->use[k].access != IM_READ) &&
                a->lo[i] < b->hi[k] && b->lo[k] < a->hi[i] && im_value_equal(&a->value[i], &b->value[k]))
                return true;
    return false;
}

enum { MOST_OPS = 256 }; /* of an instruction that is told apart; in longer ones all wait for each other */

/* Seconds of the ops [first, end) of an instruction: kernels in order, collectives over tp in order, and each waits for what it needs of the other kind. */
static double part_time(const im_program *p, uint32_t first, uint32_t end, const double *seconds)
{
    double ended[MOST_OPS], queue[2] = {0, 0};
    for (uint32_t i = first; i < end; i++) {
        const im_bound *x = &p->bound[i];
        bool tp = x->op->queue == IM_QUEUE_TP;
        if (!is_chain(x))
            continue;
        double start = queue[tp];
        for (uint32_t k = first; k < i && i - first < MOST_OPS; k++)
            if (is_chain(&p->bound[k]) && (p->bound[k].op->queue == IM_QUEUE_TP) != tp && ended[k - first] > start && conflict(x, &p->bound[k]))
                start = ended[k - first];
        if (end - first > MOST_OPS)
            start = fmax(queue[0], queue[1]);
        queue[tp] = start + seconds[i - first];
        if (i - first < MOST_OPS)
            ended[i - first] = queue[tp];
    }
    return fmax(queue[0], queue[1]);
}

static bool sum_times(const im_program *p, im_cost *cost, im_piece *q)
{
    const im_model *m = p->plan->model;
    double *seconds = malloc(sizeof *seconds * ((size_t)p->nbound + 1));
    for (uint32_t i = 0, end; seconds && i < p->nbound; i = end) {
        const im_step *s = &p->step[p->bound[i].step];
        bool part = is_part(s) && s->mb == 1, sums = s->verb == IM_REDUCE && s->mb < 0;
        const im_unit *u = &m->unit[part ? s->target : 0];
        for (end = i; end < p->nbound && p->bound[end].step == p->bound[i].step; end++) {
            if (!part && !sums)
                continue;
            im_cost_op c = im_cost_of(cost, p, &p->bound[end]);
            seconds[end - i] = c.seconds;
            if (sums)
                q->sums[type_of_bucket(m, s->target)] += c.seconds;
            else if (p->bound[end].op->kind && u->type != IM_UNIT_EMBED)
                *(u->type == IM_UNIT_HEAD ? &q->head_flops : &q->flops[u->block]) += c.flops;
        }
        if (part)
            add_time(q, u, u->block, s->verb, part_time(p, i, end, seconds));
    }
    q->sums[IM_UNIT_BLOCK] /= (double)(m->nunit - 2); /* of a block */
    free(seconds);
    return seconds != NULL;
}

/* ---- memory ---------------------------------------------------------------------------------------- */

typedef struct life {
    uint32_t first, last; /* ops */
    size_t bytes;
} life;

typedef struct lives {
    im_value_map map;
    life *life;
    uint32_t cap;
} lives;

static bool note(lives *l, const im_bound *x, int k, uint32_t op)
{
    uint32_t v = im_value_map_add(&l->map, &x->value[k]);
    if (v == UINT32_MAX)
        return false;
    if (v >= l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 256;
        life *more = realloc(l->life, sizeof *more * cap);
        if (!more)
            return false;
        for (uint32_t i = l->cap; i < cap; i++)
            more[i] = (life){.first = UINT32_MAX};
        l->life = more;
        l->cap = cap;
    }
    life *f = &l->life[v];
    if (f->first == UINT32_MAX)
        f->first = op;
    f->last = op;
    f->bytes = x->hi[k] > f->bytes ? x->hi[k] : f->bytes;
    return true;
}

static int verb_of(const im_program *p, uint32_t op)
{
    return p->step[p->bound[op].step].verb;
}

/* What lives from the forward until the backward, or between the parts of that, is counted for each micro-batch; the rest is work. */
static bool is_kept(const im_program *p, const im_value *v, const life *f, im_piece *q)
{
    const im_unit *u = &p->plan->model->unit[v->owner];
    int from = verb_of(p, f->first), to = verb_of(p, f->last);
    bool block = u->type == IM_UNIT_BLOCK;
    double bytes = (double)((f->bytes + 63) / 64 * 64);
    if (v->mb != 1 || (v->role != IM_ROLE_EDGE && v->role != IM_ROLE_SAVED && v->role != IM_ROLE_STASH))
        return false;
    if (from == IM_FORWARD && to != IM_FORWARD) {
        if (v->role == IM_ROLE_EDGE)
            q->edge = fmax(q->edge, bytes);
        else if (block)
            q->kept[u->block] += bytes;
        if (block && to == IM_BACKWARD_WEIGHT)
            q->stash[u->block] += bytes;
        return true;
    }
    if (block && to == IM_BACKWARD_WEIGHT && from != IM_BACKWARD_WEIGHT) {
        q->stash[u->block] += bytes;
        return true;
    }
    return false;
}

static void note_work(const im_program *p, uint32_t op, double live, im_piece *q)
{
    const im_step *s = &p->step[p->bound[op].step];
    if (!is_part(s))
        return;
    const im_unit *u = &p->plan->model->unit[s->target];
    double *to = u->type == IM_UNIT_EMBED        ? &q->work_embed
                 : u->type == IM_UNIT_HEAD       ? &q->work_head
                 : s->verb == IM_FORWARD         ? &q->work_forward
                 : s->verb == IM_BACKWARD_WEIGHT ? &q->work_weight
                                                 : &q->work_back;
    *to = fmax(*to, live);
}

static bool sum_memory(const im_program *p, im_piece *q)
{
    lives l = {0};
    double *change = calloc((size_t)p->nbound + 2, sizeof *change), live = 0;
    bool ok = change != NULL;
    for (uint32_t i = 0; ok && i < p->nbound; i++)
        for (int k = 0; ok && k < p->bound[i].op->args.n; k++)
            if (p->bound[i].hi[k] > p->bound[i].lo[k])
                ok = note(&l, &p->bound[i], k, i);
    for (uint32_t v = 0; ok && v < l.map.n; v++) {
        const im_value *x = &l.map.key[v];
        const life *f = &l.life[v];
        double bytes = (double)((f->bytes + 63) / 64 * 64);
        if (x->role == IM_ROLE_CARRY || x->role == IM_ROLE_SCALAR)
            *(x->role == IM_ROLE_CARRY && x->mb == 1 ? &q->carry : &q->fixed) += x->mb == 0 ? 0 : bytes;
        if (im_value_persistent(p, x) || x->mb == 0 || is_kept(p, x, f, q))
            continue;
        change[f->first] += bytes;
        change[f->last + 1] -= bytes;
    }
    for (uint32_t i = 0; ok && i < p->nbound; i++) {
        live += change[i];
        if (p->step[p->bound[i].step].mb == 1)
            note_work(p, i, live, q);
    }
    free(change);
    free(l.life);
    im_value_map_free(&l.map);
    return ok;
}

/* ---- a piece ------------------------------------------------------------------------------------------ */

im_status im_piece_price(im_context *ctx, const im_mini *mini, const im_plan *base, im_cost *cost, const im_piece_key *key, im_piece *out)
{
    im_plan p = *base;
    im_layout *l;
    im_program *q;
    im_program_spec spec = {.mode = IM_PROGRAM_TRAIN};
    int stage[IM_SEARCH_KINDS + 2] = {0};
    p.model = &mini->model;
    p.mesh = (im_mesh){key->tp, 1, 1, 1};
    p.zero = 0;
    p.schedule = key->splits ? IM_SCHEDULE_ZB_H1 : IM_SCHEDULE_1F1B;
    p.chunks = 1;
    p.stages = IM_STAGES_EVEN;
    p.sequence_parallel = key->sequence_parallel;
    p.recompute = key->recompute;
    p.micro_batch = key->batch;
    p.global_batch = 2 * key->batch;
    p.threads = 1;
    IM_TRY(im_layout_create(ctx, p.model, p.mesh, 0, 0, p.sequence_parallel, stage, &l));
    im_status status = im_program_build(ctx, &p, l, &spec, NULL, 0, &q);
    if (status == IM_OK) {
        *out = (im_piece){.scratch = (double)im_program_scratch(ctx, q)};
        if (!sum_times(q, cost, out) || !sum_memory(q, out))
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory to look at a program");
        im_program_destroy(q);
    }
    im_layout_destroy(l);
    return status;
}
