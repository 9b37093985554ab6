/* A plan on a cluster: what each op of its programs takes. */
#include "plan/cost_parts.h"

#include <math.h>
#include <string.h>

struct im_cost {
    im_context *ctx;
    const im_cluster *c;
    im_plan plan;
    im_cost_options o;
    im_number number;
    im_cost_group group[IM_GROUP_COUNT];
    im_cost_group *hop; /* [pp] */
    im_arena *arena;
};

/* ---- collectives -------------------------------------------------------------------------------- */

/* Rings, trees and their combinations with the cluster's own latencies. n ranks, N domains, k in each; a step is a message. */
static im_cost_coll plain(const im_cluster *c, const im_cost_group *g, bool all_reduce, double bytes)
{
    double n = g->ranks, N = g->domains, k = n / N, twice = all_reduce ? 2 : 1;
    double between = N > 1 ? twice * (N - 1) : 0, steps = twice * (n - 1);
    double ring = twice * (n - 1) / n, once = twice * (k - 1) / k;
    im_cost_coll row[4] = {{.algorithm = "ring",
                            .alpha = (steps - between) * g->alpha_in + between * g->alpha_out,
                            .bandwidth = fmin(k > 1 || N == 1 ? g->intra : INFINITY, g->inter) / ring,
                            .inside = k > 1 ? ring : 0,
                            .cut = N > 1 ? ring : 0}};
    int rows = 1;
    if (N > 1 && k > 1) /* a part each within the domain, these over the network, and back */
        row[rows++] = (im_cost_coll){.algorithm = "hierarchical",
                                     .alpha = twice * (k - 1) * g->alpha_in + twice * (N - 1) * g->alpha_out,
                                     .bandwidth = 1 / (once / g->intra + twice * (N - 1) / N / g->inter),
                                     .inside = once,
                                     .cut = twice * (N - 1) / N};
    if (all_reduce && n > 2) {
        double up = k > 1 ? 2 : 0, out = N > 2 ? 2 : N > 1 ? 1 : 0;
        row[rows++] = (im_cost_coll){.algorithm = "tree",
                                     .alpha = 2 * (ceil(log2(k)) * g->alpha_in + ceil(log2(N)) * g->alpha_out),
                                     .bandwidth = fmin(up > 0 ? g->intra / up : INFINITY, out > 0 ? g->inter / out : INFINITY),
                                     .inside = up,
                                     .cut = out};
    }
    if (all_reduce && N > 1 && c->network.sharp)
        row[rows++] = (im_cost_coll){.algorithm = "in-network",
                                     .alpha = 2 * (k - 1) * g->alpha_in + 2 * g->alpha_out,
                                     .bandwidth = 1 / (once / g->intra + 1 / g->inter),
                                     .inside = once,
                                     .cut = 1};
    im_cost_coll best = {.seconds = INFINITY};
    for (int i = 0; i < rows; i++) {
        row[i].seconds = row[i].alpha + (isinf(row[i].bandwidth) ? 0 : bytes / row[i].bandwidth);
        if (row[i].seconds < best.seconds)
            best = row[i];
    }
    return best;
}

/* The measured curve is of R ranks; another number moves 2(n-1)/n of the bytes instead of 2(R-1)/R, in as many more steps. */
static im_cost_coll measured(const im_cluster *c, const im_cost_group *g, bool all_reduce, double bytes)
{
    double R = c->all_reduce_ranks, n = g->ranks;
    double alpha = c->all_reduce.y[0] * (n - 1) / (R - 1), volume = ((n - 1) / n) / ((R - 1) / R), half = all_reduce ? 1 : 0.5;
    int last = c->all_reduce.n - 1;
    double t = im_curve_at(&c->all_reduce, bytes);
    if (bytes > c->all_reduce.x[last])
        t = c->all_reduce.y[last] * bytes / c->all_reduce.x[last];
    double moved = fmax(t - c->all_reduce.y[0], 0) * volume;
    im_cost_coll k = {.algorithm = "measured", .alpha = alpha * half, .seconds = (alpha + moved) * half, .inside = 2 * half * (n - 1) / n};
    k.bandwidth = moved > 0 ? bytes / (moved * half) : INFINITY;
    return k;
}

im_cost_coll im_cost_collective_on(const im_cluster *c, const im_cost_group *g, im_collective what, double bytes)
{
    if (g->ranks < 2)
        return (im_cost_coll){.bandwidth = INFINITY, .algorithm = "alone"};
    bool all_reduce = what == IM_COLL_ALL_REDUCE;
    if (c->library == IM_LIBRARY_MEASURED && g->domains == 1)
        return measured(c, g, all_reduce, bytes);
    im_cost_coll best = c->library == IM_LIBRARY_NCCL ? im_cost_nccl(c, g, what, bytes) : plain(c, g, all_reduce, bytes);
    if (c->library == IM_LIBRARY_NCCL && c->network.sharp && g->domains > 1) {
        im_cost_coll other = plain(c, g, all_reduce, bytes);
        if (!strcmp(other.algorithm, "in-network") && other.seconds < best.seconds)
            return other;
    }
    return best;
}

im_cost_coll im_cost_collective(const im_cost *k, im_collective c, im_group_id g, double bytes)
{
    return im_cost_collective_on(k->c, &k->group[g], c, bytes);
}

double im_cost_message(const im_cost *k, int stage, double bytes)
{
    const im_cost_group *g = &k->hop[stage];
    return (g->domains > 1 ? g->alpha_out : g->alpha_in) + (isinf(g->flow) || g->flow <= 0 ? 0 : bytes / g->flow);
}

/* ---- ops ------------------------------------------------------------------------------------------ */

static im_number number_of(const im_cost *k, uint8_t dtype)
{
    im_number n = dtype == IM_F32 ? IM_NUMBER_FP32 : IM_NUMBER_BF16;
    return k->c->device.peak[n] > 0 ? n : k->number;
}

static void note_product(const im_cost *k, im_cost_op *o, im_number number, int64_t batch, int64_t M, int64_t N, int64_t K, double bytes)
{
    const im_cluster_device *d = &k->c->device;
    if (batch <= 0 || M <= 0 || N <= 0 || K <= 0)
        return;
    double t = im_cost_product(d, number, batch, M, N, K, bytes), share = im_cost_product_share(d, number, batch, M, N, K);
    double flops = 2.0 * (double)batch * (double)M * (double)N * (double)K;
    o->seconds += t;
    o->flops += flops;
    o->bytes += bytes;
    o->peak = d->peak[number];
    o->share = share;
    o->by_memory = t > flops / (o->peak * share) * (1 + 1e-9);
}

/* Attention as several kernels that store the scores S = Tq x Tk of every head. Elements: 2 bytes, a mask of dropout 1. */
static void unfused_attention(const im_cost *k, im_cost_op *o, const im_op_args *a, bool grad)
{
    const im_cluster_device *d = &k->c->device;
    const im_view *q = &a->v[0], *key = &a->v[1];
    int64_t B = q->shape[0], Tq = q->shape[1], H = q->shape[2], E = q->shape[3], Tk = key->shape[1];
    im_number number = number_of(k, q->dtype);
    double e = (double)im_dtype_size((im_dtype)q->dtype), S = (double)B * (double)H * (double)Tq * (double)Tk;
    double rows = (double)B * (double)H * (double)(Tq + Tk) * (double)E * e, bytes = S * e + rows;
    int passes = grad ? 2 : 1; /* of each product: two gradients */
    for (int i = 0; i < passes; i++) {
        note_product(k, o, number, B * H, Tq, Tk, E, bytes); /* scores; their gradient */
        note_product(k, o, number, B * H, Tq, E, Tk, bytes); /* times the values; gradients of q, k, v */
    }
    double softmax = S * e * (grad ? 3 : 2), drop = k->o.drop > 0 ? S * (2 * e + 1) : 0;
    o->seconds += im_cost_bytes(d, softmax) + im_cost_bytes(d, drop);
    o->bytes += softmax + drop;
}

/* A chunk's part of the head's product for all `rows` of the micro-batch. Of its three sizes two are the vocabulary and the hidden size. */
static im_cost_op of_head(const im_cost *k, const im_program *p, const im_bound *x)
{
    const im_view *l = &x->args->v[0], *r = &x->args->v[1];
    int64_t size[3] = {l->shape[0], r->shape[1], l->shape[1]}, D = p->plan->model->arch.D, V = p->layout->share.V;
    int64_t rows = im_plan_micro_batch_size(p->plan, p->layout->place.dp, p->step[x->step].mb) * p->plan->seq_len;
    double share = 1, e = (double)im_dtype_size((im_dtype)l->dtype);
    for (int i = 0; i < 3; i++)
        if (size[i] != D && size[i] != V) {
            share = (double)size[i] / (double)rows;
            size[i] = rows;
            break;
        }
    im_cost_op o = {0};
    note_product(k, &o, number_of(k, l->dtype), 1, size[0], size[1], size[2], e * ((double)rows * (double)(D + V) + (double)D * (double)V));
    o.seconds *= share;
    o.flops *= share;
    o.bytes *= share;
    return o;
}

static im_cost_op of_kernel(const im_cost *k, const im_program *p, const im_bound *x)
{
    im_cost_op o = {0};
    im_op_cost cost;
    const im_op_args *a = x->args;
    bool grad = x->op->kind == &im_op_attention_grad;
    if (im_op_describe(k->ctx, x->op->kind, a, &cost) != IM_OK)
        return o;
    double bytes = (double)cost.read + (double)cost.written;
    if (x->op->kind == &im_op_matmul) {
        const im_view *l = &a->v[0], *r = &a->v[1];
        if (k->o.head_whole && p->step[x->step].verb == IM_LOSS && l->ndim == 2)
            return of_head(k, p, x);
        int64_t batch = l->ndim == 3 ? l->shape[0] : 1;
        note_product(k, &o, number_of(k, l->dtype), batch, l->shape[l->ndim - 2], r->shape[r->ndim - 1], l->shape[l->ndim - 1], bytes);
    } else if (x->op->kind == &im_op_attention || grad) {
        if (k->o.attention == IM_ATTENTION_UNFUSED) {
            unfused_attention(k, &o, a, grad);
            return o;
        }
        const im_view *q = &a->v[0];
        int64_t T = a->v[1].shape[1], E = q->shape[3];
        im_number number = number_of(k, q->dtype);
        o = (im_cost_op){.flops = cost.flops, .bytes = bytes, .peak = k->c->device.peak[number]};
        o.share = im_curve_at(&k->c->device.matmul[number], cbrt((double)q->shape[1] * (double)T * (double)E)); /* a head's product at a time */
        double work = cost.flops / (o.peak * o.share), memory = im_cost_bytes(&k->c->device, bytes);
        o.by_memory = memory > work;
        o.seconds = fmax(work, memory);
    } else {
        if (x->op->kind == &im_op_adamw)
            bytes += k->o.update_more * (double)im_view_count(&a->v[4]);
        o = (im_cost_op){.seconds = im_cost_bytes(&k->c->device, bytes), .bytes = bytes, .flops = cost.flops, .by_memory = true};
    }
    return o;
}

static double bytes_of(const im_bound *x)
{
    size_t most = 0;
    for (int i = 0; i < x->op->args.n; i++)
        if (x->hi[i] - x->lo[i] > most)
            most = x->hi[i] - x->lo[i];
    return (double)most;
}

/* The boundary that a message crosses, by the stage before it. */
static int boundary(const im_program *p, const im_bound *x)
{
    int channel = p->step[x->step].target, pp = p->plan->mesh.pp, stage = p->layout->place.pp;
    bool down = channel == IM_CH_ACT_OUT || channel == IM_CH_GRAD_IN;
    return down ? stage : (stage + pp - 1) % pp;
}

im_cost_op im_cost_of(im_cost *k, const im_program *p, const im_bound *x)
{
    if (x->op->kind)
        return of_kernel(k, p, x);
    im_cost_op o = {0};
    switch ((im_collective)x->op->collective) {
    case IM_COLL_ALL_REDUCE:
    case IM_COLL_REDUCE_SCATTER:
    case IM_COLL_ALL_GATHER:
        o.bytes = bytes_of(x);
        o.coll = im_cost_collective(k, (im_collective)x->op->collective, (im_group_id)x->op->group, o.bytes);
        o.seconds = o.coll.seconds;
        break;
    case IM_COLL_SEND:
    case IM_COLL_RECV: {
        const im_cost_group *g = &k->hop[boundary(p, x)];
        o.bytes = bytes_of(x);
        o.seconds = im_cost_message(k, boundary(p, x), o.bytes);
        o.coll =
            (im_cost_coll){.seconds = o.seconds, .alpha = g->domains > 1 ? g->alpha_out : g->alpha_in, .bandwidth = g->flow, .algorithm = "message"};
        break;
    }
    default: break;
    }
    return o;
}

double im_cost_price(void *cost, const im_program *p, const im_bound *x)
{
    return im_cost_of(cost, p, x).seconds;
}

const im_cost_group *im_cost_path(const im_cost *k, const im_program *p, const im_bound *x)
{
    if (x->op->kind)
        return NULL;
    switch ((im_collective)x->op->collective) {
    case IM_COLL_SEND:
    case IM_COLL_RECV: return &k->hop[boundary(p, x)];
    case IM_COLL_ALL_REDUCE:
    case IM_COLL_REDUCE_SCATTER:
    case IM_COLL_ALL_GATHER: return &k->group[x->op->group];
    default: return NULL;
    }
}

im_cost_traffic im_cost_traffic_of(const im_cost *k, const im_program *p, const im_bound *x)
{
    im_cost_traffic t = {0};
    const im_cost_group *g = im_cost_path(k, p, x);
    bool message = x->op->collective == IM_COLL_SEND;
    if (!g || g->ranks < 2 || x->op->collective == IM_COLL_RECV)
        return t;
    double bytes = bytes_of(x), cut = g->domains > 1 ? bytes : 0;
    if (message) {
        t.network = cut;
        t.domain = bytes - cut;
    } else {
        im_cost_coll c = im_cost_collective_on(k->c, g, (im_collective)x->op->collective, bytes);
        cut = c.cut * bytes;
        t.network = cut * g->domains / g->ranks; /* its ranks of a domain share what leaves it */
        t.domain = c.inside * bytes;
    }
    for (int l = 0; l < k->c->network.nlevel && g->domains > 1; l++)
        t.level[l] = cut * g->load[l];
    return t;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static im_status fits(im_context *ctx, const im_cluster *c, const im_plan *p)
{
    int ranks = im_mesh_size(&p->mesh), devices = im_cluster_devices(c);
    im_number n = p->precision == IM_F32 ? IM_NUMBER_FP32 : IM_NUMBER_BF16;
    if (ranks > devices)
        return im_fail(ctx, IM_ERR_ARG, "tp %d x cp %d x dp %d x pp %d = %d ranks: %s has %d devices", p->mesh.tp, p->mesh.cp, p->mesh.dp, p->mesh.pp,
                       ranks, c->name, devices);
    if (c->device.peak[n] <= 0)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: device.peak.%s: is missing, and the plan's products are of that type", c->file,
                       im_number_name(n));
    return IM_OK;
}

im_status im_cost_open(im_context *ctx, const im_cluster *c, const im_plan *p, const im_cost_options *o, im_cost **out)
{
    im_arena *a;
    IM_TRY(fits(ctx, c, p));
    IM_TRY(im_arena_create(ctx, &a));
    im_cost *k = IM_ARENA_NEW(a, im_cost, 1);
    im_status status = k ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for costs");
    if (k) {
        *k = (im_cost){.ctx = ctx, .c = c, .plan = *p, .number = p->precision == IM_F32 ? IM_NUMBER_FP32 : IM_NUMBER_BF16, .arena = a};
        if (o)
            k->o = *o;
        k->hop = IM_ARENA_NEW(a, im_cost_group, p->mesh.pp + 1);
        status = k->hop ? im_cost_groups(ctx, c, &p->mesh, im_share_of(&p->model->arch, p->mesh.tp, 0).replicas, k->o.device, k->group)
                        : im_fail(ctx, IM_ERR_NOMEM, "no memory for costs");
    }
    if (status == IM_OK)
        status = im_cost_hops(ctx, c, &p->mesh, k->o.device, k->hop);
    if (status == IM_OK)
        *out = k;
    else
        im_arena_destroy(a);
    return status;
}

void im_cost_close(im_cost *k)
{
    if (k)
        im_arena_destroy(k->arena);
}

const im_cluster *im_cost_cluster(const im_cost *k)
{
    return k->c;
}

const im_cost_group *im_cost_group_of(const im_cost *k, im_group_id g)
{
    return &k->group[g];
}

const im_cost_group *im_cost_hop(const im_cost *k, int stage)
{
    return &k->hop[stage];
}
