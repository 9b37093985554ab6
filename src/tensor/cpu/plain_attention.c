/* Plain attention and its gradient: one query after the other, every score computed where it is needed. The oracle. */
#include "tensor/cpu/nn_kernels.h"

static im_heads heads_of(const im_kernel_call *c, int i)
{
    const im_view *v = &c->args->v[i];
    return (im_heads){.p = c->p[i], .type = (im_dtype)v->dtype, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2]};
}

static im_places places_of(const im_kernel_call *c, int i)
{
    const im_view *v = &c->args->v[i];
    return (im_places){.p = im_op_has(c->args, i) ? c->p[i] : NULL, .b = v->stride[0], .t = v->stride[1]};
}

/* k and v lie in blocks. Those that are read must be there. */
static im_status use_blocks(const im_kernel_call *c, im_attn *x)
{
    const im_op_args *a = c->args;
    int64_t n = a->v[1].shape[0];
    x->k.block = x->v.block = (const int32_t *)c->p[9];
    x->k.blocks = x->v.blocks = a->v[9].shape[1];
    for (int64_t b = 0; b < x->B; b++)
        for (int64_t i = 0; i * IM_KV_BLOCK < x->keys; i++)
            if (x->k.block[b * x->k.blocks + i] < 0 || x->k.block[b * x->k.blocks + i] >= n)
                return im_fail(c->ctx, IM_ERR_ARG, "attention: block %lld of sequence %lld is number %d of the cache's %lld", (long long)i,
                               (long long)b, x->k.block[b * x->k.blocks + i], (long long)n);
    return IM_OK;
}

/* operands: q k v pos_q pos_k seg_q seg_k o lse [do dq dk dv], or behind lse [table] */
im_status im_attn_make(const im_kernel_call *c, bool grad, im_attn *out)
{
    const im_op_args *a = c->args;
    im_attn x = {
        .B = a->v[0].shape[0], .Tq = a->v[0].shape[1], .H = a->v[0].shape[2], .E = a->v[0].shape[3], .Tk = a->v[4].shape[1], .K = a->v[1].shape[2]};
    x.G = x.K > 0 ? x.H / x.K : 0;
    x.keys = x.Tk;
    if (a->i[4] != 0) {
        if (c->now->kv_len < 0 || c->now->kv_len > x.Tk)
            return im_fail(c->ctx, IM_ERR_ARG, "attention: %lld valid keys, but the cache has places for %lld", (long long)c->now->kv_len,
                           (long long)x.Tk);
        x.keys = c->now->kv_len;
    }
    x.q = heads_of(c, 0);
    x.k = heads_of(c, 1);
    x.v = heads_of(c, 2);
    x.o = heads_of(c, 7);
    if (grad) {
        x.dout = heads_of(c, 9);
        x.dq = heads_of(c, 10);
        x.dk = heads_of(c, 11);
        x.dv = heads_of(c, 12);
    }
    x.pos_q = places_of(c, 3);
    x.pos_k = places_of(c, 4);
    x.seg_q = places_of(c, 5);
    x.seg_k = places_of(c, 6);
    x.lse = c->p[8];
    x.lse_b = a->v[8].stride[0];
    x.lse_t = a->v[8].stride[1];
    x.lse_h = a->v[8].stride[2];
    x.causal = a->i[0] != 0;
    x.window = a->i[1];
    x.alibi_heads = a->i[7];
    x.scale = (float)a->f[0];
    x.drop = im_dropout_make(a->f[1], a->i[2], a->i[3]);
    x.sample0 = c->now->sample0 + a->i[5];
    x.head0 = a->i[6];
    if (!grad && im_op_has(a, 9))
        IM_TRY(use_blocks(c, &x));
    *out = x;
    return IM_OK;
}

static bool visible(const im_attn *a, int64_t b, int64_t t, int64_t j)
{
    int32_t seg_q = a->seg_q.p ? im_place(&a->seg_q, b, t) : 0, seg_k = a->seg_k.p ? im_place(&a->seg_k, b, j) : 0;
    return im_attn_visible(a, im_place(&a->pos_q, b, t), im_place(&a->pos_k, b, j), seg_q, seg_k);
}

static double dot(const im_heads *x, int64_t xb, int64_t xt, int64_t xh, const im_heads *y, int64_t yt, int64_t yh, int64_t E)
{
    const void *p = im_head_row(x, xb, xt, xh), *q = im_head_row(y, xb, yt, yh);
    double sum = 0.0;
    for (int64_t e = 0; e < E; e++)
        sum += (double)im_load(x->type, p, e) * im_load(y->type, q, e);
    return sum;
}

static double score(const im_attn *a, int64_t b, int64_t t, int64_t h, int64_t j)
{
    double bias = a->alibi_heads ? im_alibi_slope(a->head0 + h, a->alibi_heads) * ((double)im_place(&a->pos_k, b, j) - im_place(&a->pos_q, b, t)) : 0;
    return dot(&a->q, b, t, h, &a->k, j, h / a->G, a->E) * a->scale + bias;
}

/* What dropout multiplies the probability with. */
static double kept(const im_attn *a, int64_t b, int64_t t, int64_t h, int64_t j)
{
    if (!a->drop.on)
        return 1.0;
    uint32_t word = im_attn_word(&a->drop, a->sample0 + b, a->head0 + h, im_place(&a->pos_q, b, t), im_place(&a->pos_k, b, j));
    return word >= a->drop.threshold ? a->drop.scale : 0.0;
}

/* sum[e] += f * row[e] */
static void accumulate(double *sum, double f, im_dtype t, const void *row, int64_t E)
{
    for (int64_t e = 0; e < E; e++)
        sum[e] += f * im_load(t, row, e);
}

static void store_row(const im_heads *x, int64_t b, int64_t t, int64_t h, const double *from, int64_t E)
{
    for (int64_t e = 0; e < E; e++)
        im_store(x->type, im_head_row(x, b, t, h), e, (float)from[e]);
}

/* o: scratch of E */
static void forward_query(const im_attn *a, int64_t b, int64_t t, int64_t h, double *o)
{
    double top = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < a->keys; j++)
        if (visible(a, b, t, j)) {
            double s = score(a, b, t, h, j);
            top = s > top || isnan(s) ? s : top;
        }
    for (int64_t j = 0; j < a->keys; j++)
        if (visible(a, b, t, j))
            sum += exp(score(a, b, t, h, j) - top);
    memset(o, 0, (size_t)a->E * sizeof *o);
    for (int64_t j = 0; j < a->keys; j++)
        if (visible(a, b, t, j))
            accumulate(o, exp(score(a, b, t, h, j) - top) / sum * kept(a, b, t, h, j), a->v.type, im_head_row(&a->v, b, j, h / a->G), a->E);
    store_row(&a->o, b, t, h, o, a->E);
    *im_attn_lse(a, b, t, h) = sum == 0.0 ? -INFINITY : (float)(top + log(sum));
}

size_t im_plain_attention_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)a->v[0].shape[3] * sizeof(double);
}

im_status im_plain_attention(const im_kernel_call *c)
{
    im_attn a;
    IM_TRY(im_attn_make(c, false, &a));
    for (int64_t b = 0; b < a.B; b++)
        for (int64_t t = 0; t < a.Tq; t++)
            for (int64_t h = 0; h < a.H; h++)
                forward_query(&a, b, t, h, c->scratch);
    return IM_OK;
}

/* One query: its dq (E), and what it adds to dk and dv (Tk,E). dS = P * (dP - delta) * scale, with dP and delta after dropout. */
static void backward_query(const im_attn *a, int64_t b, int64_t t, int64_t h, double *dq, double *dk, double *dv)
{
    double delta = dot(&a->dout, b, t, h, &a->o, t, h, a->E), lse = *im_attn_lse(a, b, t, h);
    memset(dq, 0, (size_t)a->E * sizeof *dq);
    for (int64_t j = 0; j < a->keys; j++) {
        if (!visible(a, b, t, j))
            continue;
        double keep = kept(a, b, t, h, j), p = exp(score(a, b, t, h, j) - lse);
        double ds = p * (dot(&a->dout, b, t, h, &a->v, j, h / a->G, a->E) * keep - delta) * a->scale;
        accumulate(dq, ds, a->k.type, im_head_row(&a->k, b, j, h / a->G), a->E);
        accumulate(dk + j * a->E, ds, a->q.type, im_head_row(&a->q, b, t, h), a->E);
        accumulate(dv + j * a->E, p * keep, a->dout.type, im_head_row(&a->dout, b, t, h), a->E);
    }
    store_row(&a->dq, b, t, h, dq, a->E);
}

size_t im_plain_attention_grad_workspace(const im_op_args *a, int threads)
{
    (void)threads;
    return (size_t)(a->v[0].shape[3] * (1 + 2 * a->v[1].shape[1])) * sizeof(double);
}

im_status im_plain_attention_grad(const im_kernel_call *c)
{
    im_attn a;
    IM_TRY(im_attn_make(c, true, &a));
    double *dq = c->scratch, *dk = dq + a.E, *dv = dk + a.Tk * a.E;
    for (int64_t b = 0; b < a.B; b++)
        for (int64_t g = 0; g < a.K; g++) {
            memset(dk, 0, (size_t)(2 * a.Tk * a.E) * sizeof *dk);
            for (int64_t h = g * a.G; h < (g + 1) * a.G; h++)
                for (int64_t t = 0; t < a.Tq; t++)
                    backward_query(&a, b, t, h, dq, dk, dv);
            for (int64_t j = 0; j < a.Tk; j++) {
                store_row(&a.dk, b, j, g, dk + j * a.E, a.E);
                store_row(&a.dv, b, j, g, dv + j * a.E, a.E);
            }
        }
    return IM_OK;
}
