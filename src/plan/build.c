/* build: steps and their ops, with every operand named. Lowerings are shared by instructions of the same key. */
#include "plan/program.h"

#include <string.h>

typedef struct cached {
    im_lower_key key;
    im_lowering lowering;
} cached;

typedef struct builder {
    im_context *ctx;
    im_program *p;
    cached *cache;
    uint32_t ncache, cap_cache;
    uint32_t *lowering; /* of each step: its place in the cache */
    bool *contributed;  /* [nbucket]: the gradient has a contribution since the last reduction */
    bool *reduced;      /* [nbucket]: the shard has a contribution */
    bool loss_seen;
} builder;

static im_status grow(builder *b, void **array, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return IM_OK;
    uint32_t want = *cap ? *cap * 2 : 64;
    void *more = im_arena_alloc(b->p->arena, size * want);
    if (!more)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a program of %u ops", want);
    if (n)
        memcpy(more, *array, size * n);
    *array = more;
    *cap = want;
    return IM_OK;
}

static void micro_batch_sizes(const im_program *p, int mb, int64_t *B, int64_t *T)
{
    *B = p->spec.mode == IM_PROGRAM_TRAIN ? im_plan_micro_batch_size(p->plan, p->layout->place.dp, mb) : p->spec.batch;
    *T = p->spec.mode == IM_PROGRAM_TRAIN ? p->plan->seq_len : p->spec.seq_len;
}

static bool is_unit_verb(int verb)
{
    return verb == IM_FORWARD || verb == IM_BACKWARD || verb == IM_BACKWARD_INPUT || verb == IM_BACKWARD_WEIGHT || verb == IM_RECOMPUTE ||
           verb == IM_LOSS || verb == IM_SAMPLE;
}

static bool adds_gradients(int verb)
{
    return verb == IM_LOSS || verb == IM_BACKWARD || verb == IM_BACKWARD_WEIGHT;
}

/* The bucket of the unit's own parameters and the tied table's; -1: none. */
static void buckets_of(const im_model *m, int unit, int *own, int *tied)
{
    *own = *tied = -1;
    for (int s = 0; s < IM_SLOT_COUNT; s++) {
        int32_t q = m->unit[unit].param[s];
        if (q < 0)
            continue;
        if (s == IM_SLOT_TOKENS && m->arch.tied)
            *tied = m->param[q].bucket;
        else
            *own = m->param[q].bucket;
    }
}

static im_lower_key key_of(builder *b, const im_step *s)
{
    im_lower_key k;
    memset(&k, 0, sizeof k); /* compared with memcmp */
    k.verb = s->verb;
    k.mode = (uint8_t)b->p->spec.mode;
    if (s->mb >= 0)
        micro_batch_sizes(b->p, s->mb, &k.B, &k.T);
    if (!is_unit_verb(s->verb)) {
        k.target = s->verb == IM_LOAD ? 0 : s->target;
        if (s->verb == IM_REDUCE) {
            k.first = !b->reduced[s->target];
            b->reduced[s->target] = true;
            if (b->p->plan->zero >= 2)
                b->contributed[s->target] = false;
        }
        return k;
    }
    int own, tied;
    buckets_of(b->p->plan->model, s->target, &own, &tied);
    k.unit_type = (uint8_t)b->p->plan->model->unit[s->target].type;
    k.window = b->p->plan->model->unit[s->target].window;
    k.first = own >= 0 && !b->contributed[own];
    k.tied_first = tied >= 0 && !b->contributed[tied];
    if (s->verb == IM_BACKWARD_INPUT) /* it adds to none */
        k.first = k.tied_first = false;
    if (adds_gradients(s->verb)) {
        if (own >= 0)
            b->contributed[own] = true;
        if (tied >= 0)
            b->contributed[tied] = true;
    }
    if (s->verb == IM_LOSS) {
        k.first_loss = !b->loss_seen;
        b->loss_seen = true;
    }
    return k;
}

static im_status lowering_of(builder *b, const im_step *s, uint32_t *out)
{
    im_lower_key key = key_of(b, s);
    for (uint32_t i = 0; i < b->ncache; i++)
        if (!memcmp(&b->cache[i].key, &key, sizeof key)) {
            *out = i;
            return IM_OK;
        }
    void *cache = b->cache;
    IM_TRY(grow(b, &cache, b->ncache, &b->cap_cache, sizeof(struct cached)));
    b->cache = cache;
    cached *c = &b->cache[b->ncache];
    c->key = key;
    IM_TRY(im_lower(b->ctx, b->p, &c->key, b->p->arena, &c->lowering));
    *out = b->ncache++;
    return IM_OK;
}

/* Which value an operand of this instruction is, and where in it the operand starts (bytes). */
static im_value value_of(const im_program *p, uint32_t istep, const im_op *op, const im_operand *o, size_t element, size_t *base)
{
    const im_step *s = &p->step[istep];
    im_value v = {.role = o->role, .index = o->index, .mb = -1};
    *base = 0;
    switch ((im_role)o->role) {
    case IM_ROLE_WEIGHT:
    case IM_ROLE_GRAD:
    case IM_ROLE_OPT:
        if (o->slot < IM_SLOT_COUNT) {
            size_t q = (size_t)p->plan->model->unit[s->target].param[o->slot];
            v.owner = p->plan->model->param[q].bucket;
            *base = p->layout->param_local[q] * element;
        } else {
            v.owner = op->bucket >= 0 ? (uint16_t)op->bucket : s->target;
            *base = o->first * element;
        }
        break;
    case IM_ROLE_EDGE: {
        bool message = s->verb == IM_SEND || s->verb == IM_RECV;
        int unit = !message ? s->target + o->unit : o->unit ? p->goal.first_unit[s->chunk] - 1 : p->goal.end_unit[s->chunk] - 1;
        v.owner = (uint16_t)unit;
        v.mb = s->mb;
        break;
    }
    case IM_ROLE_SAVED:
    case IM_ROLE_STASH:
        v.owner = s->target;
        v.mb = s->mb;
        break;
    case IM_ROLE_TEMP: v.mb = (int32_t)istep; break;
    case IM_ROLE_KV: v.owner = s->target; break;
    case IM_ROLE_CARRY:
        if (o->index <= IM_CARRY_SEG)
            v.mb = s->mb;
        break;
    default: break;
    }
    return v;
}

/* Constants that depend on the unit or the micro-batch. */
static im_status patch_args(builder *b, const im_step *s, im_bound *x)
{
    const im_op *op = x->op;
    x->args = &op->args;
    if (op->site_arg < 0 && op->sample_arg < 0)
        return IM_OK;
    im_op_args *args = IM_ARENA_NEW(b->p->arena, im_op_args, 1);
    if (!args)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a program");
    *args = op->args;
    if (op->site_arg >= 0)
        args->i[op->site_arg] += 8 * (int64_t)s->target;
    if (op->sample_arg >= 0)
        args->i[op->sample_arg] = b->p->spec.mode == IM_PROGRAM_TRAIN ? im_plan_first_sample(b->p->plan, b->p->layout->place.dp, s->mb) : 0;
    x->args = args;
    return IM_OK;
}

static im_status make_operands(builder *b, im_bound *x)
{
    im_arena *a = b->p->arena;
    int n = x->op->args.n;
    x->value = IM_ARENA_NEW(a, im_value, n);
    x->lo = IM_ARENA_NEW(a, size_t, 2 * n);
    x->buf = IM_ARENA_NEW(a, im_buffer, n);
    if (!x->value || !x->lo || !x->buf)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a program");
    x->hi = x->lo + n;
    return IM_OK;
}

static im_status bind_step(builder *b, uint32_t istep, const im_lowering *l)
{
    im_program *p = b->p;
    for (uint32_t i = 0; i < l->nop; i++) {
        im_bound *x = &p->bound[p->nbound];
        *x = (im_bound){.op = &l->op[i], .step = istep};
        IM_TRY(make_operands(b, x));
        IM_TRY(patch_args(b, &p->step[istep], x));
        for (int k = 0; k < l->op[i].args.n; k++) {
            const im_view *v = &l->op[i].args.v[k];
            if (!v->ndim)
                continue;
            size_t element = im_dtype_size((im_dtype)v->dtype), base;
            x->value[k] = value_of(p, istep, x->op, &x->op->use[k], element, &base);
            x->lo[k] = base + (size_t)v->offset * element;
            x->hi[k] = base + im_view_extent(v);
            if (x->hi[k] < x->lo[k]) /* no elements */
                x->hi[k] = x->lo[k];
            x->buf[k] = (im_buffer){.offset = base, .nbytes = x->hi[k] - base}; /* place adds the value's address */
        }
        p->nbound++;
    }
    return IM_OK;
}

/* Lowers every step, then binds them into one array. */
static im_status bind_steps(builder *b)
{
    im_program *p = b->p;
    size_t nbound = 0;
    b->lowering = IM_ARENA_NEW(p->arena, uint32_t, p->nstep + 1);
    if (!b->lowering)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a program");
    for (uint32_t i = 0; i < p->nstep; i++) {
        IM_TRY(lowering_of(b, &p->step[i], &b->lowering[i]));
        nbound += b->cache[b->lowering[i]].lowering.nop;
    }
    p->bound = IM_ARENA_NEW(p->arena, im_bound, nbound + 1);
    if (!p->bound)
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a program of %zu ops", nbound);
    for (uint32_t i = 0; i < p->nstep; i++)
        IM_TRY(bind_step(b, i, &b->cache[b->lowering[i]].lowering));
    return IM_OK;
}

static void set_goal(im_program *p)
{
    const im_model *m = p->plan->model;
    p->goal = (im_goal){.mode = (int)p->spec.mode, .chunks = im_plan_chunks(p->plan), .snapshot = p->spec.mode == IM_PROGRAM_TRAIN};
    p->goal.micro_batches = p->spec.mode == IM_PROGRAM_TRAIN ? im_plan_micro_batches(p->plan, p->layout->place.dp) : 1;
    int *of_unit = IM_ARENA_NEW(p->arena, int, m->nunit);
    if (!of_unit)
        return;
    im_plan_virtual_stages(p->plan, of_unit);
    for (int u = 0; u < (int)m->nunit; u++) {
        if (of_unit[u] % p->plan->mesh.pp != p->layout->place.pp)
            continue;
        int chunk = of_unit[u] / p->plan->mesh.pp;
        if (!p->goal.end_unit[chunk])
            p->goal.first_unit[chunk] = u;
        p->goal.end_unit[chunk] = u + 1;
        p->goal.has_head |= u + 1 == (int)m->nunit;
    }
}

bool im_goal_has(const im_goal *g, int unit)
{
    for (int c = 0; c < g->chunks; c++)
        if (unit >= g->first_unit[c] && unit < g->end_unit[c])
            return true;
    return false;
}

im_status im_program_build(im_context *ctx, const im_plan *plan, const im_layout *layout, const im_program_spec *spec, const im_step *steps,
                           uint32_t nstep, im_program **out)
{
    im_arena *a;
    IM_TRY(im_arena_create(ctx, &a));
    im_status status = IM_ERR_NOMEM;
    im_program *p = IM_ARENA_NEW(a, im_program, 1);
    builder b = {.ctx = ctx, .p = p};
    b.contributed = IM_ARENA_NEW(a, bool, plan->model->nbucket + 1);
    b.reduced = IM_ARENA_NEW(a, bool, plan->model->nbucket + 1);
    if (!p || !b.contributed || !b.reduced) {
        (void)im_fail(ctx, IM_ERR_NOMEM, "no memory for a program");
        goto arena;
    }
    *p = (im_program){.plan = plan, .layout = layout, .spec = *spec, .arena = a};
    set_goal(p);
    p->threads = (uint16_t)(plan->threads > 0 ? plan->threads : im_machine_cores());
    if (steps) {
        p->step = IM_ARENA_NEW(a, im_step, nstep + 1);
        if (!p->step) {
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for a program");
            goto arena;
        }
        memcpy(p->step, steps, sizeof *steps * nstep);
        p->nstep = nstep;
    } else {
        IM_TRY_GOTO(im_program_steps(ctx, plan, layout, spec, a, &p->step, &p->nstep), arena);
    }
    IM_TRY_GOTO(bind_steps(&b), arena);
    *out = p;
    return IM_OK;
arena:
    im_arena_destroy(a);
    return status;
}

void im_program_destroy(im_program *p)
{
    if (p)
        im_arena_destroy(p->arena);
}

size_t im_program_scratch(im_context *ctx, const im_program *p)
{
    size_t most = 0;
    const im_op *last = NULL;
    for (uint32_t i = 0; i < p->nbound; i++) {
        im_op_cost cost;
        if (!p->bound[i].op->kind || p->bound[i].op == last)
            continue;
        last = p->bound[i].op;
        if (im_op_describe(ctx, p->bound[i].op->kind, p->bound[i].args, &cost) == IM_OK && cost.workspace > most)
            most = cost.workspace;
    }
    return most;
}
