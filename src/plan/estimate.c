/* From a timeline to figures: each moment of a rank is compute, communication that nothing hides, or waiting. */
#include "plan/estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t NONE = UINT32_MAX;

const char *im_axis_name(im_axis a)
{
    static const char *const name[IM_AXIS_COUNT] = {"tp", "cp", "dp", "pp", "other"};
    return a < IM_AXIS_COUNT ? name[a] : "?";
}

static im_axis axis_of(const im_bound *x)
{
    if (x->op->collective == IM_COLL_SEND || x->op->collective == IM_COLL_RECV)
        return IM_AXIS_PP;
    switch ((im_group_id)x->op->group) {
    case IM_GROUP_TP:
    case IM_GROUP_KV: return IM_AXIS_TP;
    case IM_GROUP_CP: return IM_AXIS_CP;
    case IM_GROUP_DP: return IM_AXIS_DP;
    case IM_GROUP_PP: return IM_AXIS_PP;
    default: return IM_AXIS_OTHER;
    }
}

static bool is_comm(const im_bound *x)
{
    int c = x->op->collective;
    return !x->op->kind && c != IM_COLL_LOAD && c != IM_COLL_RELEASE && c != IM_COLL_SNAPSHOT;
}

/* ---- where a rank's time goes ------------------------------------------------------------------ */

typedef struct walk {
    const im_program *p;
    const double *start, *end;
    uint32_t *before; /* [op]: the one before it on its queue */
    double *exposed;  /* [op]: seconds in which nothing else was done */
    double bubble;
} walk;

/* The op whose end this one waited for; NONE: nothing. */
static uint32_t blocker(const walk *w, uint32_t i)
{
    const im_bound *x = &w->p->bound[i];
    uint32_t best = w->before[i];
    for (int k = 0; k < x->nwait; k++)
        if (best == NONE || w->end[x->wait[k]] >= w->end[best])
            best = x->wait[k];
    return best;
}

/* [lo, hi) was idle until op j ended, or later: told apart, backward in time. */
static void blame(walk *w, uint32_t j, double lo, double hi)
{
    while (hi > lo) {
        if (j == NONE) {
            w->bubble += hi - lo;
            return;
        }
        double end = fmax(fmin(w->end[j], hi), lo);
        w->bubble += hi - end; /* it was ready, and others were not */
        double start = fmax(fmin(w->start[j], end), lo);
        if (is_comm(&w->p->bound[j]))
            w->exposed[j] += end - start;
        else
            w->bubble += end - start; /* a kernel of this rank: cannot be within a gap */
        hi = start;
        j = blocker(w, j);
    }
}

static void walk_rank(walk *w, double total)
{
    uint32_t last[IM_QUEUE_MAX], latest = NONE;
    double busy_until = 0;
    memset(last, 0xff, sizeof last);
    for (uint32_t i = 0; i < w->p->nbound; i++) {
        unsigned q = w->p->bound[i].op->queue;
        w->before[i] = last[q];
        last[q] = i;
        if (latest == NONE || w->end[i] >= w->end[latest])
            latest = i;
    }
    for (uint32_t i = 0; i < w->p->nbound; i++) {
        if (w->p->bound[i].op->queue != IM_QUEUE_COMPUTE)
            continue;
        if (w->start[i] > busy_until)
            blame(w, blocker(w, i), busy_until, w->start[i]);
        busy_until = w->end[i];
    }
    if (total > busy_until)
        blame(w, latest, busy_until, total);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

typedef struct sums {
    im_cost *cost;
    const im_op **key; /* costs of ops that were seen */
    im_cost_op *seen;
    size_t nslot;
} sums;

static const im_cost_op *cost_of(sums *s, const im_program *p, const im_bound *x)
{
    size_t at = ((uintptr_t)x->op >> 4) * 0x9e3779b1u & (s->nslot - 1);
    for (; s->key[at] && s->key[at] != x->op; at = (at + 1) & (s->nslot - 1))
        ;
    if (!s->key[at]) {
        s->key[at] = x->op;
        s->seen[at] = im_cost_of(s->cost, p, x);
    }
    return &s->seen[at];
}

static im_estimate_part *part_of(im_estimate *e, size_t cap, const char *verb, const char *label, bool comm)
{
    for (size_t i = 0; i < e->npart; i++)
        if (e->part[i].verb == verb && e->part[i].comm == comm && !strcmp(e->part[i].label, label))
            return &e->part[i];
    if (e->npart == cap)
        return NULL;
    e->part[e->npart] = (im_estimate_part){.verb = verb, .label = label, .comm = comm};
    return &e->part[e->npart++];
}

enum { IM_ESTIMATE_PARTS = 512 };

static bool collect_parts(im_estimate *e, int r, sums *s, const double *exposed)
{
    const im_program *p = e->fold.program[r];
    for (uint32_t i = 0; i < p->nbound; i++) {
        const im_bound *x = &p->bound[i];
        double took = e->time.end[r][i] - e->time.start[r][i];
        bool comm = is_comm(x);
        if (took <= 0 || (!comm && !x->op->kind))
            continue;
        im_estimate_part *part = part_of(e, IM_ESTIMATE_PARTS, im_verb_name((im_verb)p->step[x->step].verb), x->op->label, comm);
        const im_cost_op *c = cost_of(s, p, x);
        if (!part)
            return false;
        part->count++;
        part->axis = axis_of(x);
        part->seconds += comm ? exposed[i] : took;
        part->alone += comm ? took : 0;
        part->flops += c->flops;
        part->bytes += c->bytes;
        part->peak = c->share > 0 ? c->peak : part->peak;
        part->coll = c->coll;
    }
    return true;
}

static int longest_first(const void *a, const void *b)
{
    const im_estimate_part *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? 1 : -1;
    int c = strcmp(x->verb, y->verb);
    return c ? c : strcmp(x->label, y->label);
}

/* FLOPs that count: of products, and of attention's whole square whatever a kernel leaves out. */
static double counted_flops(const im_bound *x, const im_cost_op *c)
{
    bool grad = x->op->kind == &im_op_attention_grad;
    if (x->op->kind == &im_op_attention || grad) {
        const im_view *q = &x->args->v[0];
        return (grad ? 8.0 : 4.0) * (double)q->shape[0] * (double)q->shape[1] * (double)q->shape[2] * (double)q->shape[3] *
               (double)x->args->v[1].shape[1];
    }
    return x->op->kind == &im_op_matmul ? c->flops : 0;
}

/* ---- a stage ----------------------------------------------------------------------------------------- */

static bool is_update(const im_step *s)
{
    return s->verb == IM_COUNT || s->verb == IM_CLIP || s->verb == IM_UPDATE;
}

static im_status sum_stage(im_context *ctx, im_estimate *e, int r, sums *s, double *exposed, double *level)
{
    const im_program *p = e->fold.program[r];
    im_estimate_stage *g = &e->stage[r];
    for (uint32_t i = 0; i < p->nbound; i++) {
        const im_bound *x = &p->bound[i];
        double took = e->time.end[r][i] - e->time.start[r][i];
        if (is_comm(x)) {
            im_cost_traffic t = im_cost_traffic_of(s->cost, p, x);
            g->exposed[axis_of(x)] += exposed[i];
            g->sent_domain += t.domain;
            g->sent_network += t.network;
            for (int l = 0; l < IM_CLUSTER_LEVELS; l++)
                level[l] = t.level[l] > 0 ? level[l] + t.level[l] : level[l];
        } else if (x->op->kind) {
            g->compute += took;
            g->update += is_update(&p->step[x->step]) ? took : 0;
            g->flops += counted_flops(x, cost_of(s, p, x));
        }
    }
    for (int c = 0; c < IM_CLASS_COUNT; c++) {
        g->memory[c] = p->arena_bytes[c];
        g->total += c == IM_CLASS_PROGRAMS ? 0 : p->arena_bytes[c];
    }
    return im_estimate_peak(ctx, p, &g->peak_live, &g->peak_step);
}

static im_status look_at_stage(im_context *ctx, im_estimate *e, im_cost *cost, int r, double *level, bool parts)
{
    const im_program *p = e->fold.program[r];
    walk w = {.p = p, .start = e->time.start[r], .end = e->time.end[r]};
    sums s = {.cost = cost, .nslot = 4096};
    while (s.nslot < 2 * (size_t)p->nbound)
        s.nslot *= 2;
    w.before = calloc((size_t)p->nbound + 1, sizeof *w.before);
    w.exposed = calloc((size_t)p->nbound + 1, sizeof *w.exposed);
    s.key = calloc(s.nslot, sizeof *s.key);
    s.seen = malloc(s.nslot * sizeof *s.seen);
    im_status status = w.before && w.exposed && s.key && s.seen ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for an estimate");
    if (status == IM_OK) {
        walk_rank(&w, e->time.total);
        if (parts && !collect_parts(e, r, &s, w.exposed))
            status = im_fail(ctx, IM_ERR_INTERNAL, "a step has more than %d kinds of parts", IM_ESTIMATE_PARTS);
        else if (!parts)
            status = sum_stage(ctx, e, r, &s, w.exposed, level);
        e->stage[r].bubble = w.bubble;
    }
    free(w.before);
    free(w.exposed);
    free(s.key);
    free(s.seen);
    return status;
}

/* ---- links, energy ------------------------------------------------------------------------------------ */

static void add_link(im_estimate *e, const char *name, double bytes, double rate, double total)
{
    im_estimate_link *l = &e->link[e->nlink];
    *l = (im_estimate_link){.name = name, .bytes = bytes, .rate = rate, .total = total};
    l->use = rate > 0 && e->step > 0 ? bytes / (rate * e->step) : 0;
    if (l->use > e->link[e->busiest].use)
        e->busiest = e->nlink;
    e->nlink++;
}

static void links(im_estimate *e, const im_cluster *c, const double *level)
{
    const im_cluster_network *w = &c->network;
    double domain = 0, network = 0, domain_all = 0, network_all = 0;
    for (int r = 0; r < e->fold.n; r++) {
        domain = fmax(domain, e->stage[r].sent_domain);
        network = fmax(network, e->stage[r].sent_network);
        domain_all += e->stage[r].sent_domain * (double)e->fold.stands_for;
        network_all += e->stage[r].sent_network * (double)e->fold.stands_for;
    }
    if (c->domain.devices > 1)
        add_link(e, c->domain.kind ? c->domain.kind : "domain", domain, c->domain.rate * c->domain.reach, domain_all);
    if (w->kind != IM_NETWORK_NONE)
        add_link(e, "network", network, w->nics * w->link * w->reach / c->devices_per_node, network_all);
    for (int l = 0; l < w->nlevel; l++)
        if (isfinite(w->level[l].uplink))
            add_link(e, w->level[l].name, level[l], fmin(w->level[l].uplink, w->level[l].per_peer) * w->reach, 0);
}

static void energy(im_estimate *e, const im_cluster *c)
{
    const im_cluster_device *d = &c->device;
    double nodes = ceil((double)e->devices / c->devices_per_node);
    if (d->power > 0) {
        double idle = d->idle_power > 0 ? d->idle_power : d->power, busy = e->mean.compute / e->step;
        double watts = e->devices * (busy * d->power + (1 - busy) * idle) + nodes * c->node_power;
        e->joules = watts * e->step * (c->pue > 0 ? c->pue : 1);
    }
    e->money = e->devices * c->device_hour * e->step / 3600 + c->kwh * e->joules / 3.6e6;
}

/* ---- all together --------------------------------------------------------------------------------------- */

static void averages(im_estimate *e)
{
    im_estimate_stage *m = &e->mean;
    for (int r = 0; r < e->fold.n; r++) {
        const im_estimate_stage *g = &e->stage[r];
        m->compute += g->compute / e->fold.n;
        m->update += g->update / e->fold.n;
        m->bubble += g->bubble / e->fold.n;
        m->flops += g->flops / e->fold.n;
        for (int a = 0; a < IM_AXIS_COUNT; a++)
            m->exposed[a] += g->exposed[a] / e->fold.n;
        if (g->compute > e->stage[e->slowest].compute)
            e->slowest = r;
        if (g->total > e->stage[e->fullest].total)
            e->fullest = r;
    }
}

typedef struct pricing {
    im_cost *cost;
    const im_estimate_options *o;
} pricing;

/* What FORWARD of the unit takes more than RECOMPUTE does; both are of the same micro-batch size. */
static double left_out(const pricing *k, const im_program *p, uint32_t step)
{
    double again = 0, forward = 0;
    for (uint32_t i = 0; i < p->nbound; i++) {
        const im_step *s = &p->step[p->bound[i].step], *r = &p->step[step];
        if (s->target != r->target || s->mb != r->mb || (s->verb != IM_FORWARD && s->verb != IM_RECOMPUTE))
            continue;
        *(s->verb == IM_FORWARD ? &forward : &again) += im_cost_price(k->cost, p, &p->bound[i]);
    }
    return fmax(0, forward - again);
}

static im_event_price event_price(void *arg, const im_program *p, const im_bound *x)
{
    const pricing *k = arg;
    const im_cost_group *g = im_cost_path(k->cost, p, x);
    im_event_price price = {.seconds = im_cost_price(k->cost, p, x), .network = g && g->domains > 1};
    im_axis axis = axis_of(x);
    price.blocks = g && g->ranks > 1 && ((axis == IM_AXIS_TP && k->o->tp_blocks) || (axis == IM_AXIS_DP && k->o->dp_blocks));
    if (k->o->recompute_block && p->plan->recompute == IM_RECOMPUTE_FULL && x->op->kind && p->step[x->step].verb == IM_RECOMPUTE &&
        (x == p->bound || x[-1].step != x->step))
        price.seconds += left_out(k, p, x->step);
    return price;
}

static im_status fill(im_context *ctx, im_estimate *e, im_cost *k, const im_plan *p, const im_cluster *c, const im_estimate_options *o)
{
    pricing how = {k, o};
    double level[IM_CLUSTER_LEVELS] = {0};
    IM_TRY(im_events_run(ctx, (const im_program *const *)e->fold.program, e->fold.n, event_price, &how, &e->time));
    e->stage = IM_ARENA_NEW(e->fold.arena, im_estimate_stage, e->fold.n);
    e->part = IM_ARENA_NEW(e->fold.arena, im_estimate_part, IM_ESTIMATE_PARTS);
    if (!e->stage || !e->part)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for an estimate");
    e->step = e->time.total;
    for (int r = 0; r < e->fold.n; r++) {
        double own[IM_CLUSTER_LEVELS] = {0};
        IM_TRY(look_at_stage(ctx, e, k, r, own, false));
        for (int l = 0; l < IM_CLUSTER_LEVELS; l++)
            level[l] = fmax(level[l], own[l]);
    }
    averages(e);
    IM_TRY(look_at_stage(ctx, e, k, e->slowest, NULL, true));
    qsort(e->part, e->npart, sizeof *e->part, longest_first);
    e->devices = im_mesh_size(&p->mesh);
    e->tokens = (double)p->global_batch * (double)p->seq_len;
    e->model_flops = im_model_flops_per_token(p->model, p->seq_len) * e->tokens;
    e->hardware_flops = e->mean.flops * e->devices;
    e->peak = c->device.peak[p->precision == IM_F32 ? IM_NUMBER_FP32 : IM_NUMBER_BF16];
    e->mfu = e->model_flops / (e->step * e->devices * e->peak);
    e->hfu = e->hardware_flops / (e->step * e->devices * e->peak);
    links(e, c, level);
    energy(e, c);
    return IM_OK;
}

im_status im_estimate_open(im_context *ctx, const im_plan *p, const im_cluster *c, const im_estimate_options *o, im_estimate *out)
{
    im_cost *k;
    *out = (im_estimate){0};
    IM_TRY(im_cost_open(ctx, c, p, &o->cost, &k));
    im_status status = im_fold_open(ctx, p, o->whole, &out->fold);
    if (status == IM_OK) {
        status = fill(ctx, out, k, p, c, o);
        if (status != IM_OK)
            im_estimate_close(out);
    }
    im_cost_close(k);
    return status;
}

void im_estimate_close(im_estimate *e)
{
    im_timeline_free(&e->time);
    im_fold_close(&e->fold);
    *e = (im_estimate){0};
}

im_status im_estimate_drawing(im_context *ctx, const im_estimate *e, im_drawing *out)
{
    IM_TRY(im_drawing_of_timeline(ctx, (const im_program *const *)e->fold.program, &e->time, out));
    for (size_t i = 0; i < out->n; i++)
        out->span[i].rank /= (int)e->fold.stands_for;
    out->ranks = e->fold.n;
    return IM_OK;
}

void im_estimate_trace(const im_estimate *e, im_str *out)
{
    const char *comma = "";
    im_str_append(out, "{\"traceEvents\":[\n");
    for (int r = 0; r < e->fold.n; r++) {
        const im_program *p = e->fold.program[r];
        im_str_printf(out, "%s{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", comma, r, p->layout->rank);
        comma = ",\n";
        for (uint32_t i = 0; i < p->nbound; i++) {
            const im_bound *x = &p->bound[i];
            double t = e->time.start[r][i], d = e->time.end[r][i] - t;
            im_str step = {0};
            if (d <= 0)
                continue;
            im_step_print(&p->step[x->step], &step);
            im_str_printf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.4f,\"dur\":%.4f,\"name\":", r, x->op->queue, t * 1e6, d * 1e6);
            im_str_json_string(out, x->op->label, strlen(x->op->label));
            im_str_printf(out, ",\"args\":{\"step\":\"%s\"}}", im_str_text(&step));
            im_str_free(&step);
        }
    }
    im_str_append(out, "\n]}\n");
}

im_goodput im_goodput_of(double write, double mtbf, double restart)
{
    im_goodput g = {.young = sqrt(2 * write * mtbf)};
    double x = sqrt(write / (2 * mtbf));
    g.daly = write < 2 * mtbf ? g.young * (1 + x / 3 + x * x / 9) - write : mtbf;
    /* exponential failures: the time until a segment of daly + write is done, restarts included (Daly 2006, eq. 20) */
    double segment = mtbf * exp(restart / mtbf) * expm1((g.daly + write) / mtbf);
    g.goodput = g.daly > 0 && isfinite(segment) ? g.daly / segment : 0;
    return g;
}
