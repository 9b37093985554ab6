/* lower: what happens to buckets and scalars at the end of a step, and ZeRO's gathers and reductions.
 *
 *   ZeRO 0   REDUCE: all-reduce of the gradient bucket once a step; every rank updates all of it
 *   ZeRO 1   REDUCE: all-reduce once a step; a rank updates its shard; GATHER after UPDATE
 *   ZeRO 2   REDUCE per micro-batch: reduce-scatter, into the fp32 shard or added to it; GATHER after UPDATE
 *   ZeRO 3   as 2, and the whole weight lives only between GATHER and RELEASE
 */
#include "plan/lower.h"

typedef struct range {
    size_t from, to; /* elements of the flat bucket this rank updates */
} range;

static range own_range(const im_program *p, const im_bucket *b)
{
    if (!p->plan->zero)
        return (range){0, b->count};
    int r = p->layout->place.dp;
    return (range){b->shard[r], b->shard[r + 1]};
}

static im_view flat(im_dtype t, size_t n)
{
    return im_view_1d(t, (int64_t)n);
}

/* The gradient this rank updates from: [from, to) of the whole, or the shard. */
static im_use own_grad(const im_program *p, const im_bucket *b, size_t from, size_t n)
{
    if (p->plan->zero < 2)
        return im_use_bucket(IM_ROLE_GRAD, 0, IM_READ, from, flat(IM_F32, n));
    return im_use_bucket(IM_ROLE_GRAD, 1, IM_READ, from - own_range(p, b).from, flat(IM_F32, n));
}

static im_use own_weight(const im_program *p, const im_bucket *b, im_access access, size_t from, size_t n)
{
    if (p->plan->zero < 3)
        return im_use_bucket(IM_ROLE_WEIGHT, 0, access, from, flat(p->plan->precision, n));
    return im_use_bucket(IM_ROLE_WEIGHT, 1, access, from - own_range(p, b).from, flat(p->plan->precision, n));
}

static im_use own_opt(const im_program *p, const im_bucket *b, int index, im_access access, size_t from, size_t n)
{
    return im_use_bucket(IM_ROLE_OPT, index, access, p->plan->zero ? from - own_range(p, b).from : from, flat(IM_F32, n));
}

static void lower_gather(im_lowerer *L, const im_bucket *b)
{
    im_use whole = im_use_bucket(IM_ROLE_WEIGHT, 0, L->program->plan->zero == 3 ? IM_WRITE : IM_MODIFY, 0, flat(L->A, b->count));
    range r = own_range(L->program, b);
    im_use shard = L->program->plan->zero == 3 && r.to > r.from ? own_weight(L->program, b, IM_READ, r.from, r.to - r.from) : im_use_absent();
    im_lower_collective(L, IM_COLL_ALL_GATHER, IM_GROUP_DP, IM_QUEUE_GATHER, "gather weights", IM_USES(shard, whole));
}

static size_t end_of(const im_segment *s)
{
    return s->local0 + (s->n - 1) * s->local_stride + s->run;
}

/* Sums the gradients of those segments of a bucket that are partial over a group: neighbours in one message. */
static void reduce_segments(im_lowerer *L, const im_bucket *b, im_group_id g, const char *label)
{
    for (size_t i = 0; i < b->nseg; i++) {
        if (!(b->seg[i].sum >> g & 1))
            continue;
        size_t from = b->seg[i].local0, to = from;
        for (; i < b->nseg && b->seg[i].sum >> g & 1; i++) /* bands of one matrix lie between each other: up to the last end */
            to = end_of(&b->seg[i]) > to ? end_of(&b->seg[i]) : to;
        im_use part = im_use_bucket(IM_ROLE_GRAD, 0, IM_MODIFY, from, flat(IM_F32, to - from));
        im_lower_collective(L, IM_COLL_ALL_REDUCE, g, IM_QUEUE_REDUCE, label, &part, 1);
    }
}

static void lower_reduce(im_lowerer *L, const im_bucket *b)
{
    const im_program *p = L->program;
    im_use whole = im_use_bucket(IM_ROLE_GRAD, 0, IM_MODIFY, 0, flat(IM_F32, b->count));
    if (b->sum >> IM_GROUP_TIED & 1)
        im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_TIED, IM_QUEUE_REDUCE, "sum of the tied gradient", &whole, 1);
    reduce_segments(L, b, IM_GROUP_TP, "sum of the norms' gradients");
    reduce_segments(L, b, IM_GROUP_KV, "sum of the kv heads' gradients");
    if (!(b->sum >> IM_GROUP_DP & 1))
        return;
    if (p->plan->zero < 2) {
        im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_DP, IM_QUEUE_REDUCE, "reduce gradients", &whole, 1);
        return;
    }
    range r = own_range(p, b);
    size_t n = r.to - r.from;
    bool first = L->key->first; /* of the micro-batches: straight into the shard */
    im_use shard = im_use_bucket(IM_ROLE_GRAD, 1, first ? IM_WRITE : IM_MODIFY, 0, flat(IM_F32, n));
    im_use sums = !n ? im_use_absent() : first ? shard : im_use_temp(im_lower_temp(L), IM_WRITE, flat(IM_F32, n));
    whole.o.access = IM_READ;
    im_lower_collective(L, IM_COLL_REDUCE_SCATTER, IM_GROUP_DP, IM_QUEUE_REDUCE, "reduce gradients", IM_USES(whole, sums));
    if (first || !n)
        return;
    sums.o.access = IM_READ;
    im_use before = shard;
    before.o.access = IM_READ;
    im_lower_op(L, &im_op_add, "gradient shard", IM_USES(before, sums, shard));
}

/* Loss and count of the whole batch: the first tensor-parallel rank of the last stage tells them, the others add nothing. */
static void lower_count(im_lowerer *L)
{
    bool tells = L->program->goal.has_head && L->program->layout->place.tp == 0;
    for (int i = 0; i < 2; i++) {
        im_scalar s = i ? IM_SCALAR_TOKENS : IM_SCALAR_LOSS;
        if (!tells)
            im_lower_op(L, &im_op_fill, "counted elsewhere", IM_USES(im_use_scalar(s, IM_WRITE, flat(IM_F64, 1))));
        im_use u = im_use_scalar(s, IM_MODIFY, flat(IM_F64, 1));
        im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_WORLD, IM_QUEUE_REDUCE, i ? "token count" : "loss", &u, 1);
    }
}

/* Squares of the runs [from, to) of a bucket that this rank owns: every logical element once over all ranks. Padding is zero and may be in a run. */
static bool squares_of(im_lowerer *L, size_t bucket, bool first)
{
    const im_program *p = L->program;
    const im_bucket *b = &p->layout->bucket[bucket];
    for (size_t i = 0; i < b->nowned; i++) {
        if (!b->owned[i].owner)
            continue;
        size_t from = b->owned[i].local0, to = from;
        for (; i < b->nowned && b->owned[i].owner; i++)
            to = end_of(&b->owned[i]) > to ? end_of(&b->owned[i]) : to;
        im_op *op = im_lower_op(L, &im_op_sumsq, "squares of the gradient",
                                IM_USES(own_grad(p, b, from, to - from), im_use_scalar(IM_SCALAR_SUMSQ, first ? IM_WRITE : IM_ADD, flat(IM_F64, 1))));
        op->args.i[0] = !first;
        op->bucket = (int32_t)bucket;
        first = false;
    }
    return first;
}

static void lower_clip(im_lowerer *L)
{
    bool first = true;
    for (size_t i = 0; i < L->model->nbucket; i++)
        if (L->program->layout->bucket[i].held)
            first = squares_of(L, i, first);
    if (first)
        im_lower_op(L, &im_op_fill, "no squares here", IM_USES(im_use_scalar(IM_SCALAR_SUMSQ, IM_WRITE, flat(IM_F64, 1))));
    im_use sum = im_use_scalar(IM_SCALAR_SUMSQ, IM_MODIFY, flat(IM_F64, 1));
    im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_WORLD, IM_QUEUE_REDUCE, "norm", &sum, 1);
    im_lower_op(L, &im_op_clip, "clip",
                IM_USES(im_use_scalar(IM_SCALAR_SUMSQ, IM_READ, flat(IM_F64, 1)), im_use_scalar(IM_SCALAR_TOKENS, IM_READ, flat(IM_F64, 1)),
                        im_use_scalar(IM_SCALAR_LOSS, IM_READ, flat(IM_F64, 1)),
                        im_use_scalar(IM_SCALAR_HYPER, IM_READ, flat(IM_F64, IM_HYPER_COUNT)),
                        im_use_scalar(IM_SCALAR_CLIP, IM_MODIFY, flat(IM_F64, IM_CLIP_COUNT))));
    im_lower_op(L, &im_op_fill, "no bad weights yet", IM_USES(im_use_scalar(IM_SCALAR_BAD, IM_WRITE, flat(IM_F64, 1))));
}

static void update_run(im_lowerer *L, const im_bucket *b, size_t from, size_t to, bool decay)
{
    const im_program *p = L->program;
    size_t n = to - from;
    im_use master = L->A == IM_F32 ? im_use_absent() : own_opt(p, b, 0, IM_MODIFY, from, n);
    im_op *op = im_lower_op(
        L, &im_op_adamw, "AdamW",
        IM_USES(own_weight(p, b, IM_MODIFY, from, n), master, own_opt(p, b, 1, IM_MODIFY, from, n), own_opt(p, b, 2, IM_MODIFY, from, n),
                own_grad(p, b, from, n), im_use_scalar(IM_SCALAR_CLIP, IM_READ, flat(IM_F64, IM_CLIP_COUNT)),
                im_use_scalar(IM_SCALAR_HYPER, IM_READ, flat(IM_F64, IM_HYPER_COUNT)), im_use_scalar(IM_SCALAR_BAD, IM_MODIFY, flat(IM_F64, 1))));
    op->args.f[0] = p->plan->beta1;
    op->args.f[1] = p->plan->beta2;
    op->args.f[2] = p->plan->eps;
    op->args.f[3] = decay ? p->plan->weight_decay : 0;
}

/* One op for each run of parameters that agree on weight decay, cut to what this rank updates. */
static void lower_update(im_lowerer *L, const im_bucket *b)
{
    range own = own_range(L->program, b);
    size_t start = 0;
    for (size_t i = 0; i < b->nparam; i++) {
        const im_param *q = &L->model->param[b->first_param + i];
        bool last = i + 1 == b->nparam;
        if (!last && q[1].decay == q->decay)
            continue;
        size_t end = last ? b->count : L->program->layout->param_local[b->first_param + i + 1];
        size_t from = start > own.from ? start : own.from, to = end < own.to ? end : own.to;
        if (from < to)
            update_run(L, b, from, to, q->decay);
        start = end;
    }
}

static void lower_snapshot(im_lowerer *L)
{
    const im_program *p = L->program;
    for (size_t i = 0; i < L->model->nbucket; i++) {
        const im_bucket *b = &p->layout->bucket[i];
        range r = own_range(p, b);
        size_t n = r.to - r.from;
        if (!b->held || !n)
            continue;
        im_use master = L->A == IM_F32 ? im_use_absent() : own_opt(p, b, 0, IM_READ, r.from, n);
        im_op *op = im_lower_collective(
            L, IM_COLL_SNAPSHOT, IM_GROUP_WORLD, IM_QUEUE_COMPUTE, "snapshot",
            IM_USES(own_weight(p, b, IM_READ, r.from, n), master, own_opt(p, b, 1, IM_READ, r.from, n), own_opt(p, b, 2, IM_READ, r.from, n)));
        op->bucket = (int32_t)i;
    }
}

void im_lower_bucket_verb(im_lowerer *L)
{
    const im_bucket *b = &L->program->layout->bucket[L->key->target < L->model->nbucket ? L->key->target : 0];
    switch ((im_verb)L->key->verb) {
    case IM_GATHER: lower_gather(L, b); break;
    case IM_RELEASE: {
        im_use whole = im_use_bucket(IM_ROLE_WEIGHT, 0, IM_READ, 0, flat(L->A, b->count));
        im_lower_collective(L, IM_COLL_RELEASE, IM_GROUP_DP, IM_QUEUE_COMPUTE, "release weights", &whole, 1);
        break;
    }
    case IM_REDUCE: lower_reduce(L, b); break;
    case IM_COUNT: lower_count(L); break;
    case IM_CLIP: lower_clip(L); break;
    case IM_UPDATE: lower_update(L, b); break;
    case IM_SNAPSHOT: lower_snapshot(L); break;
    default: break;
    }
}
