/* check: states. One walk over the ops of a rank, with the state of every value:
 *
 *   weights    version (updates so far), whole or scattered over the data-parallel ranks, gathered or not (ZeRO 3)
 *   gradients  for each use (unit) the next micro-batch that must contribute, in ascending order; the groups over which the
 *              sum is still partial
 *   scalars    contributions, and whether they are summed over the ranks
 *   others     written, by which step; still there
 *
 * What must be reached stands in the goal and the layout, not in the list: so a missing instruction is noticed.
 */
#include "plan/check.h"

#include <stdlib.h>
#include <string.h>

typedef struct bucket_state {
    int version;       /* of the whole weight as the forward reads it */
    int shard_version; /* ZeRO 3: of the own shard */
    bool gathered;     /* ZeRO 3: the whole is there */
    bool scattered;    /* own shard is newer than the rest */
    bool summed;       /* ZeRO 0, 1: the gradient is complete over the ranks */
    int reduced;       /* ZeRO 2, 3: micro-batches that are in the shard */
    int opt_version;
    int last_mb, last_unit; /* of the latest contribution to the gradient */
    bool snapshot;
} bucket_state;

typedef struct value_state {
    bool live;
    uint32_t writer;  /* step */
    uint32_t partial; /* groups over which it is still a partial sum */
} value_state;

typedef struct walker {
    im_context *ctx;
    const im_program *p;
    const im_model *m;
    bucket_state *bucket;
    uint32_t *summed_over; /* [nparam][boxes]: groups over which the REDUCE under way has summed the segments of a bucket */
    int *next_mb;          /* [nunit][nbucket]: the next micro-batch whose contribution is due */
    int64_t *last_step;    /* [nunit][nbucket]: step that contributed last: its other ops belong to the same contribution */
    im_value_map map;
    value_state *value;
    uint32_t cap;
    int scalar_mb[IM_SCALAR_COUNT];
    int64_t scalar_step[IM_SCALAR_COUNT];
    bool scalar_done[IM_SCALAR_COUNT];
    int live_now, live_most; /* micro-batches between their first FORWARD and last BACKWARD here */
    bool sampled;
    uint32_t i; /* op */
    int o;      /* operand */
} walker;

static im_status fault(const walker *w, const char *what)
{
    const im_bound *x = &w->p->bound[w->i];
    im_str s = {0}, v = {0};
    im_step_print(&w->p->step[x->step], &s);
    im_value_print(&x->value[w->o], &v);
    im_status status = im_fail(w->ctx, IM_ERR_CHECK, "rank %d, step %u (%s), %s: %s %s", w->p->layout->rank, x->step, im_str_text(&s), x->op->label,
                               im_str_text(&v), what);
    im_str_free(&s);
    im_str_free(&v);
    return status;
}

/* ---- weights ---------------------------------------------------------------------- */

static im_status weight_whole(walker *w, bucket_state *b, int verb, int access)
{
    int zero = w->p->plan->zero;
    switch (verb) {
    case IM_UPDATE:
        if (b->version > 1 || b->scattered)
            return fault(w, "is updated after a gather");
        if (b->version == 1)
            return IM_OK; /* the next run of the same update; a second UPDATE fails at the optimizer state */
        b->version = 1;
        return IM_OK;
    case IM_GATHER:
        if (zero == 3) {
            if (b->gathered)
                return fault(w, "is gathered while it is there already");
            b->gathered = true;
            b->version = b->shard_version;
            return IM_OK;
        }
        if (!b->scattered)
            return fault(w, "is gathered before the shards are updated, or twice");
        b->scattered = false;
        return IM_OK;
    case IM_RELEASE:
        if (!b->gathered)
            return fault(w, "is released, but is not there");
        b->gathered = false;
        return IM_OK;
    case IM_SNAPSHOT:
        if (b->version != 1 || b->scattered)
            return fault(w, "is captured before it is updated everywhere");
        b->snapshot = true;
        return IM_OK;
    default:
        if (access != IM_READ)
            return fault(w, "may change only in UPDATE");
        if (zero == 3 && !b->gathered)
            return fault(w, "is read, but not gathered");
        if (b->version != 0 || b->scattered)
            return fault(w, "is read after its update");
        return IM_OK;
    }
}

static im_status weight_shard(walker *w, bucket_state *b, int verb)
{
    if (verb == IM_UPDATE) {
        b->shard_version = 1;
        return IM_OK;
    }
    if (verb == IM_SNAPSHOT) {
        if (b->shard_version != 1)
            return fault(w, "is captured before its update");
        b->snapshot = true;
        return IM_OK;
    }
    return b->shard_version == 0 ? IM_OK : fault(w, "is gathered after its update");
}

/* ---- gradients ------------------------------------------------------------------------ */

static bool uses_bucket(const walker *w, int unit, size_t bucket)
{
    for (int s = 0; s < IM_SLOT_COUNT; s++) {
        int32_t q = w->m->unit[unit].param[s];
        if (q >= 0 && w->m->param[q].bucket == bucket)
            return true;
    }
    return false;
}

/* Every use on this rank has contributed its micro-batches 0 .. n-1. */
static bool complete(const walker *w, size_t bucket, int n)
{
    for (int u = 0; u < (int)w->m->nunit; u++)
        if (im_goal_has(&w->p->goal, u) && uses_bucket(w, u, bucket) && w->next_mb[(size_t)u * w->m->nbucket + bucket] != n)
            return false;
    return true;
}

static im_status contribute(walker *w, size_t bucket, const im_step *s, uint32_t istep)
{
    size_t at = (size_t)s->target * w->m->nbucket + bucket;
    if (w->last_step[at] == istep)
        return IM_OK;
    if (w->bucket[bucket].summed)
        return fault(w, "gets a contribution after its reduction");
    if (w->next_mb[at] != s->mb)
        return fault(w, "gets the contributions of its micro-batches out of order, or one twice or never");
    if (w->p->plan->zero >= 2 && w->bucket[bucket].reduced != s->mb)
        return fault(w, "gets a contribution before the micro-batch before is reduced");
    /* a tied gradient has several uses: by micro-batch, then from the last unit to the first, so that the bits are always the same */
    bucket_state *b = &w->bucket[bucket];
    if (b->last_mb > s->mb || (b->last_mb == s->mb && b->last_unit < s->target))
        return fault(w, "gets the contributions of its uses out of order");
    b->last_mb = s->mb;
    b->last_unit = s->target;
    w->next_mb[at]++;
    w->last_step[at] = istep;
    return IM_OK;
}

static bool needs_reduce(const walker *w, size_t bucket)
{
    return w->p->layout->bucket[bucket].sum != 0;
}

/* Of a bucket's segments, in order. */
static uint32_t *summed_over(const walker *w, const im_bucket *b)
{
    return w->summed_over + (size_t)b->first_param * IM_LAYOUT_MAX_BOXES;
}

/* Which segments of the bucket a collective covers. */
static void note_sum(walker *w, size_t bucket)
{
    const im_bound *x = &w->p->bound[w->i];
    const im_bucket *b = &w->p->layout->bucket[bucket];
    if (x->op->collective != IM_COLL_ALL_REDUCE && x->op->collective != IM_COLL_REDUCE_SCATTER)
        return;
    for (size_t i = 0; i < b->nseg; i++) {
        const im_segment *s = &b->seg[i];
        size_t from = s->local0 * 4, to = (s->local0 + (s->n - 1) * s->local_stride + s->run) * 4;
        if (x->lo[w->o] <= from && to <= x->hi[w->o])
            summed_over(w, b)[i] |= 1u << x->op->group;
    }
}

static im_status gradient(walker *w, size_t bucket, const im_step *s, uint32_t istep, int access)
{
    bucket_state *b = &w->bucket[bucket];
    int zero = w->p->plan->zero, m = w->p->goal.micro_batches;
    bool shard = w->p->bound[w->i].value[w->o].index == 1;
    if (s->verb == IM_REDUCE) {
        note_sum(w, bucket);
        if (shard)
            return IM_OK; /* counted with the read of the whole */
        bool again = w->last_step[(size_t)w->m->nunit * w->m->nbucket + bucket] == istep;
        if (again)
            return IM_OK;
        w->last_step[(size_t)w->m->nunit * w->m->nbucket + bucket] = istep;
        if (zero >= 2) {
            if (s->mb != b->reduced || !complete(w, bucket, s->mb + 1))
                return fault(w, "is reduced before its contributions are complete, or out of order");
            b->reduced++;
            return IM_OK;
        }
        if (b->summed || !complete(w, bucket, m))
            return fault(w, "is reduced before its contributions are complete, or twice");
        b->summed = true;
        return IM_OK;
    }
    if (s->verb == IM_CLIP || s->verb == IM_UPDATE) {
        if (!complete(w, bucket, m))
            return fault(w, "is read before its contributions are complete");
        if (needs_reduce(w, bucket) && (zero >= 2 ? b->reduced != m : !b->summed))
            return fault(w, "is read while it is a partial sum");
        return IM_OK;
    }
    if (access == IM_READ)
        return fault(w, "is read by an instruction that should not");
    return contribute(w, bucket, s, istep);
}

/* ---- optimizer, scalars ------------------------------------------------------------------ */

static im_status optimizer(walker *w, bucket_state *b, const im_step *s, uint32_t istep, size_t bucket)
{
    size_t at = ((size_t)w->m->nunit + 1) * w->m->nbucket + bucket;
    if (s->verb == IM_SNAPSHOT)
        return b->opt_version == 1 ? IM_OK : fault(w, "is captured before its update");
    if (s->verb != IM_UPDATE)
        return fault(w, "may change only in UPDATE");
    if (w->last_step[at] == istep)
        return IM_OK;
    if (b->opt_version)
        return fault(w, "is updated twice");
    w->last_step[at] = istep;
    b->opt_version = 1;
    return IM_OK;
}

static im_status scalar(walker *w, int index, const im_step *s, uint32_t istep, int access)
{
    bool last = w->p->goal.has_head;
    if (index == IM_SCALAR_HYPER)
        return IM_OK;
    if (index == IM_SCALAR_CLIP || index == IM_SCALAR_BAD) { /* this rank's own */
        if (s->verb == IM_CLIP) {
            if (w->scalar_done[index])
                return fault(w, "is computed twice");
            w->scalar_done[index] = true;
            return IM_OK;
        }
        return w->scalar_done[index] ? IM_OK : fault(w, "is read before CLIP");
    }
    if (s->verb == IM_SAMPLE)
        return IM_OK;
    if (s->verb == IM_LOSS) {
        if (w->scalar_step[index] == istep)
            return IM_OK;
        if (w->scalar_mb[index] != s->mb || w->scalar_done[index])
            return fault(w, "gets the contributions of its micro-batches out of order, or one twice or never");
        w->scalar_mb[index]++;
        w->scalar_step[index] = istep;
        return IM_OK;
    }
    bool sums = (s->verb == IM_COUNT && index != IM_SCALAR_SUMSQ) || (s->verb == IM_CLIP && index == IM_SCALAR_SUMSQ);
    if (sums && access != IM_READ) {
        const im_op *op = w->p->bound[w->i].op;
        if (op->collective != IM_COLL_ALL_REDUCE)
            return IM_OK; /* the parts that are summed here */
        if (w->scalar_done[index])
            return fault(w, "is summed over the ranks twice");
        if (index != IM_SCALAR_SUMSQ && last && w->scalar_mb[index] != w->p->goal.micro_batches)
            return fault(w, "is summed over the ranks before every micro-batch is in it");
        w->scalar_done[index] = true;
        return IM_OK;
    }
    return w->scalar_done[index] ? IM_OK : fault(w, "is read before it is summed over the ranks");
}

/* ---- all others ------------------------------------------------------------------------------ */

static im_status other(walker *w, uint32_t istep, int access)
{
    const im_value *v = &w->p->bound[w->i].value[w->o];
    if (v->role == IM_ROLE_KV || (v->role == IM_ROLE_CARRY && v->index > IM_CARRY_SEG))
        return IM_OK;
    uint32_t before = w->map.n, k = im_value_map_add(&w->map, v);
    if (k != UINT32_MAX && k >= w->cap) {
        uint32_t cap = w->cap ? w->cap * 2 : 256;
        value_state *more = realloc(w->value, sizeof *more * cap);
        if (!more)
            return im_fail(w->ctx, IM_ERR_NOMEM, "no memory to check a program");
        w->value = more;
        w->cap = cap;
    }
    if (k == UINT32_MAX)
        return im_fail(w->ctx, IM_ERR_NOMEM, "no memory to check a program");
    if (w->map.n > before)
        w->value[k] = (value_state){.live = false};
    value_state *s = &w->value[k];
    const im_op *op = w->p->bound[w->i].op;
    bool sums = op->collective == IM_COLL_ALL_REDUCE || op->collective == IM_COLL_REDUCE_SCATTER;
    if (access == IM_WRITE) {
        if (s->live && s->writer != istep)
            return fault(w, "is written a second time");
        s->live = true;
        s->writer = istep;
        s->partial = op->partial;
        return IM_OK;
    }
    if (!s->live)
        return fault(w, "is read before it is written");
    if (sums && !(s->partial >> op->group & 1))
        return fault(w, "is summed over a group over which it is complete");
    if (!sums && s->partial)
        return fault(w, "is read while it is a partial sum over a group");
    if (access != IM_READ)
        s->partial = sums ? s->partial & ~(1u << op->group) : op->partial;
    return IM_OK;
}

/* ---- the walk ----------------------------------------------------------------------------------- */

static im_status operand(walker *w)
{
    const im_bound *x = &w->p->bound[w->i];
    const im_value *v = &x->value[w->o];
    const im_step *s = &w->p->step[x->step];
    int access = x->op->use[w->o].access;
    bucket_state *b = v->role <= IM_ROLE_OPT ? &w->bucket[v->owner] : NULL;
    switch ((im_role)v->role) {
    case IM_ROLE_WEIGHT: return v->index ? weight_shard(w, b, s->verb) : weight_whole(w, b, s->verb, access);
    case IM_ROLE_GRAD: return gradient(w, v->owner, s, x->step, access);
    case IM_ROLE_OPT: return optimizer(w, b, s, x->step, v->owner);
    case IM_ROLE_SCALAR: return scalar(w, v->index, s, x->step, access);
    default: return other(w, x->step, access);
    }
}

/* What an instruction does as a whole, after its last op. */
static im_status close_step(walker *w, const im_step *s)
{
    const im_bucket *l = &w->p->layout->bucket[s->verb == IM_REDUCE ? s->target : 0];
    for (size_t i = 0; s->verb == IM_REDUCE && i < l->nseg; i++)
        if (l->seg[i].sum & ~summed_over(w, l)[i])
            return im_fail(w->ctx, IM_ERR_CHECK, "rank %d: REDUCE %u leaves the gradient of %s a partial sum", w->p->layout->rank, s->target,
                           w->m->param[l->seg[i].param].name);
    if (s->verb == IM_REDUCE)
        memset(summed_over(w, l), 0, l->nseg * sizeof *w->summed_over);
    if (s->verb == IM_UPDATE && w->p->plan->zero && w->p->plan->zero < 3)
        w->bucket[s->target].scattered = true;
    if (s->verb == IM_SAMPLE)
        w->sampled = true;
    for (int c = 0; c < w->p->goal.chunks; c++) {
        if (s->target != w->p->goal.first_unit[c])
            continue;
        if (s->verb == IM_FORWARD && ++w->live_now > w->live_most)
            w->live_most = w->live_now;
        if (s->verb == IM_BACKWARD || s->verb == IM_BACKWARD_WEIGHT)
            w->live_now--;
    }
    return IM_OK;
}

static im_status unmet(const walker *w, const char *what, long which)
{
    return im_fail(w->ctx, IM_ERR_CHECK, "rank %d, at the end: %s (%ld)", w->p->layout->rank, what, which);
}

static im_status edges_made(const walker *w)
{
    for (int u = 0; u + 1 < (int)w->m->nunit; u++)
        for (int mb = 0; im_goal_has(&w->p->goal, u) && mb < w->p->goal.micro_batches; mb++) {
            im_value v = {.role = IM_ROLE_EDGE, .owner = (uint16_t)u, .mb = mb};
            uint32_t k = im_value_map_find(&w->map, &v);
            if (k == UINT32_MAX || !w->value[k].live)
                return unmet(w, "a unit has no FORWARD for some micro-batch; unit", u);
        }
    return IM_OK;
}

/* Messages that the neighbours wait for are the meetings' business; what this rank alone owes is checked here. */
static im_status end_state(const walker *w)
{
    const im_goal *g = &w->p->goal;
    bool last = g->has_head, train = g->mode == IM_PROGRAM_TRAIN;
    IM_TRY(edges_made(w));
    if (g->mode == IM_PROGRAM_INFER)
        return !last || w->sampled ? IM_OK : unmet(w, "nothing was sampled; micro-batch", 0);
    for (int s = IM_SCALAR_LOSS; s <= IM_SCALAR_TOKENS; s++) {
        if (last && w->scalar_mb[s] != g->micro_batches)
            return unmet(w, "micro-batches are missing in the loss; there are", w->scalar_mb[s]);
        if (!w->scalar_done[s])
            return unmet(w, "the loss or its token count was not summed over the ranks; scalar", s);
    }
    for (size_t b = 0; train && b < w->m->nbucket; b++) {
        const bucket_state *k = &w->bucket[b];
        const im_bucket *l = &w->p->layout->bucket[b];
        bool has_shard = !w->p->plan->zero || l->shard[w->p->layout->place.dp + 1] > l->shard[w->p->layout->place.dp];
        if (!l->held)
            continue;
        if (k->gathered)
            return unmet(w, "a gathered weight was not released; bucket", (long)b);
        if (k->scattered)
            return unmet(w, "an updated weight was not gathered; bucket", (long)b);
        if (has_shard && !k->opt_version)
            return unmet(w, "a bucket was not updated; bucket", (long)b);
        if (g->snapshot && has_shard && !k->snapshot)
            return unmet(w, "no place for a snapshot of the updated weights; bucket", (long)b);
    }
    int bound = im_schedule_of(w->p->plan->schedule)->alive(w->p->plan->mesh.pp, g->micro_batches, g->chunks, w->p->layout->place.pp);
    if (train && w->live_most > bound)
        return unmet(w, "more micro-batches are alive than the schedule allows; at most", w->live_most);
    return IM_OK;
}

static im_status walk(walker *w)
{
    uint32_t step = 0;
    for (w->i = 0; w->i < w->p->nbound; w->i++) {
        const im_bound *x = &w->p->bound[w->i];
        for (; step < x->step; step++)
            IM_TRY(close_step(w, &w->p->step[step]));
        for (int pass = 0; pass < 2; pass++) /* reads before writes */
            for (w->o = 0; w->o < x->op->args.n; w->o++)
                if (x->op->args.v[w->o].ndim && (x->op->use[w->o].access == IM_WRITE) == pass)
                    IM_TRY(operand(w));
    }
    for (; step < w->p->nstep; step++)
        IM_TRY(close_step(w, &w->p->step[step]));
    return end_state(w);
}

im_status im_check_states(im_context *ctx, const im_program *p)
{
    walker w = {.ctx = ctx, .p = p, .m = p->plan->model};
    size_t cells = (p->plan->model->nunit + 2) * p->plan->model->nbucket;
    w.bucket = calloc(w.m->nbucket + 1, sizeof *w.bucket);
    w.summed_over = calloc((w.m->nparam + 1) * IM_LAYOUT_MAX_BOXES, sizeof *w.summed_over);
    w.next_mb = calloc(cells + 1, sizeof *w.next_mb);
    w.last_step = malloc((cells + 1) * sizeof *w.last_step);
    im_status status;
    if (!w.bucket || !w.summed_over || !w.next_mb || !w.last_step) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to check a program");
        goto state;
    }
    for (size_t i = 0; i < cells; i++)
        w.last_step[i] = -1;
    for (int s = 0; s < IM_SCALAR_COUNT; s++)
        w.scalar_step[s] = -1;
    for (size_t b = 0; b < w.m->nbucket; b++)
        w.bucket[b].last_mb = -1;
    status = walk(&w);
state:
    free(w.bucket);
    free(w.summed_over);
    free(w.next_mb);
    free(w.last_step);
    free(w.value);
    im_value_map_free(&w.map);
    return status;
}
