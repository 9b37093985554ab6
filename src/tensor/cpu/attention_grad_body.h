/* attention_grad: the tiles of attention_body.h again, probabilities remade from the log-sum-exp. Included once per instruction set.
 *
 * A task is one (sample, kv head), or one (sample, head) when those would leave threads idle: its keys and values, dK and dV lie in scratch as
 * fp32 for the whole task. For each head and each query tile, over the key tiles in order (five products of the form of tile_body.h):
 *
 *     S^T = K Q^T      P^T = e^(S^T - lse)        dP^T = V dO^T      dS^T = P^T (dP^T - delta)
 *     dV += P^T dO     dK += dS^T Q               dQ^T += K^T dS^T   (Q is scaled; dQ is scaled when written)
 *
 * delta = sum over E of dO O. With dropout, P^T in dV and dP^T in dS carry the mask. One thread does a whole head in a fixed order, and heads
 * are added in order: the same bits whatever the threads.
 */

typedef struct grad_tile { /* the query side of a tile and its scratch */
    tile_places q;
    float *qp, *qt, *op, *ot, *dqt, *st, *dpt; /* Q, Q^T, dO, dO^T, dQ^T, S^T, dP^T */
    float lse[TILE], delta[TILE];
    int64_t b, h, first, nq, nv;
} grad_tile;

/* Rows past nq: dO is 0 and lse +inf, so P and dS are 0. A query without a visible key has lse -inf: +inf here too. */
static void grad_load(const im_attn *a, grad_tile *t)
{
    int64_t P = im_pad(a->E);
    places_load(&a->pos_q, &a->seg_q, t->b, t->first, t->nq, &t->q);
    pack(&a->o, t->b, t->h, t->first, t->nq, TILE, a->E, 1.0f, t->qp); /* O, for delta only */
    pack(&a->dout, t->b, t->h, t->first, t->nq, TILE, a->E, 1.0f, t->op);
    for (int64_t i = 0; i < TILE; i++) {
        vf sum = vf_set(0.0f);
        for (int64_t e = 0; e < P; e += IM_VEC)
            sum = vf_fma(vf_load(t->qp + i * P + e), vf_load(t->op + i * P + e), sum);
        t->delta[i] = vf_sum(sum);
        float lse = i < t->nq ? *im_attn_lse(a, t->b, t->first + i, t->h) : INFINITY;
        t->lse[i] = lse == -INFINITY ? INFINITY : lse;
    }
    pack(&a->q, t->b, t->h, t->first, t->nq, TILE, a->E, a->scale, t->qp);
    transpose(t->qp, P, TILE, P, t->qt, TILE);
    transpose(t->op, P, TILE, P, t->ot, TILE);
    memset(t->dqt, 0, (size_t)(P * TILE) * sizeof(float));
}

/* st: S^T to P^T (with the mask of dropout); dpt: dP^T to dS^T. */
static void grad_scores(const im_attn *a, const grad_tile *t, const tile_places *k, const tile_strip *strip)
{
    for (int64_t v = strip->v; v < strip->v + strip->nv; v++) {
        vf lse = vf_load(t->lse + v * IM_VEC), delta = vf_load(t->delta + v * IM_VEC);
        drop_lanes lanes = drop_begin(a, t->b, t->h, &t->q, v);
        for (int64_t j = strip->low; j < strip->high; j++) {
            float *s = t->st + j * TILE + v * IM_VEC, *d = t->dpt + j * TILE + v * IM_VEC;
            vf p = vf_exp(vf_sub(vf_load(s), lse)), dp = vf_load(d);
            if (a->drop.on) {
                vf keep = drop_next(&a->drop, &lanes, k->pos[j]);
                vf_store(d, vf_mul(p, vf_sub(vf_mul(dp, keep), delta)));
                vf_store(s, vf_mul(p, keep));
            } else {
                vf_store(d, vf_mul(p, vf_sub(dp, delta)));
                vf_store(s, p);
            }
        }
    }
}

/* n a multiple of the vector */
static void run_add(float *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += IM_VEC)
        vf_store(sum + i, vf_add(vf_load(sum + i), vf_load(x + i)));
}

/* One strip. kp, vp, dk, dv: the key tile's rows of P. */
static void grad_strip(const im_attn *a, grad_tile *t, const tile_places *k, const tile_strip *s, bool mask, const float *kp, const float *vp,
                       float *dk, float *dv)
{
    int64_t P = im_pad(a->E), column = s->v * IM_VEC, width = s->nv * IM_VEC, keys = s->high - s->low, from = s->low * P;
    float *st = t->st + s->low * TILE + column, *dpt = t->dpt + s->low * TILE + column;
    mm(keys, s->nv, a->E, kp + from, P, 1, t->qt + column, TILE, st, TILE, false);
    if (a->alibi_heads)
        tile_slope(im_attn_slope(a, t->h), &t->q, k, s, t->st);
    if (mask)
        tile_mask(a, &t->q, k, s, t->st);
    mm(keys, s->nv, a->E, vp + from, P, 1, t->ot + column, TILE, dpt, TILE, false);
    grad_scores(a, t, k, s);
    mm(keys, P / IM_VEC, width, st, TILE, 1, t->op + column * P, P, dv + from, P, true);
    mm(keys, P / IM_VEC, width, dpt, TILE, 1, t->qp + column * P, P, dk + from, P, true);
    mm(a->E, s->nv, keys, kp + from, 1, P, dpt, TILE, t->dqt + column, TILE, true);
}

/* One query tile against all key tiles. kp, vp, dk, dv: (Tk,P). */
static void grad_queries(const im_attn *a, grad_tile *t, const float *kp, const float *vp, float *dk, float *dv)
{
    int64_t P = im_pad(a->E), width = t->nv * IM_VEC;
    tile_places k;
    tile_strip strips[TILE_VECS];
    grad_load(a, t);
    for (int64_t j = 0; j < a->keys; j += TILE) {
        int64_t nk = a->keys - j < TILE ? a->keys - j : TILE;
        places_load(&a->pos_k, &a->seg_k, t->b, j, nk, &k);
        tile_view sight = tile_sight(a, &t->q, &k);
        int n = sight == TILE_NONE ? 0 : tile_strips(a, &t->q, &k, nk, t->nv, sight, strips);
        for (int i = 0; i < n; i++)
            grad_strip(a, t, &k, &strips[i], sight == TILE_SOME, kp + j * P, vp + j * P, dk + j * P, dv + j * P);
    }
    transpose(t->dqt, TILE, P, width, t->qp, P);
    unpack(&a->dq, t->b, t->h, t->first, t->nq, a->E, a->scale, t->qp);
}

/* Heads [head, end) of one kv head: dK and dV (2,Tk,P) into sum. Each head is summed alone, then added, so that heads done as tasks of their own
 * and added by the merge give the same bits. scratch: the tiles, K, V (Tk,P), and with more than one head dK, dV of the one at hand. */
static void attention_grad_heads(const im_attn *a, int64_t b, int64_t head, int64_t end, float *scratch, float *sum)
{
    int64_t P = im_pad(a->E), g = head / a->G, size = a->Tk * P;
    grad_tile t = {.b = b};
    float **part[] = {&t.qp, &t.qt, &t.op, &t.ot, &t.dqt};
    for (size_t i = 0; i < IM_COUNT_OF(part); i++, scratch += TILE * P)
        *part[i] = scratch;
    t.st = scratch;
    t.dpt = t.st + TILE * TILE;
    float *kp = t.dpt + TILE * TILE, *vp = kp + size;
    pack(&a->k, b, g, 0, a->keys, a->keys, a->E, 1.0f, kp);
    pack(&a->v, b, g, 0, a->keys, a->keys, a->E, 1.0f, vp);
    for (t.h = head; t.h < end; t.h++) {
        float *own = t.h == head ? sum : vp + size;
        memset(own, 0, (size_t)(2 * size) * sizeof(float));
        for (t.first = 0; t.first < a->Tq; t.first += TILE) {
            t.nq = a->Tq - t.first < TILE ? a->Tq - t.first : TILE;
            t.nv = (t.nq + IM_VEC - 1) / IM_VEC;
            grad_queries(a, &t, kp, vp, own, own + size);
        }
        if (own != sum)
            run_add(sum, own, 2 * size);
    }
}

/* Adds n sums (2,Tk,P) of kv head g into the first, in order, and writes dK and dV. */
static void attention_grad_merge(const im_attn *a, int64_t b, int64_t g, int64_t n, float *sums)
{
    int64_t size = a->Tk * im_pad(a->E);
    for (int64_t i = 1; i < n; i++)
        run_add(sums, sums + i * 2 * size, 2 * size);
    unpack(&a->dk, b, g, 0, a->Tk, a->E, 1.0f, sums);
    unpack(&a->dv, b, g, 0, a->Tk, a->E, 1.0f, sums + size);
}

#define IM_NN_ROWS                                                                                                                                   \
    {                                                                                                                                                \
        .embed = embed_rows, .embed_grad = embed_grad_columns, .norm = norm_rows, .norm_grad = norm_grad_blocks, .norm_grad_sum = norm_grad_columns, \
        .rope = rope_rows, .act = act_rows, .act_grad = act_grad_rows, .glu = glu_rows, .glu_grad = glu_grad_rows, .dropout = dropout_rows,          \
        .head_sum = head_sum_rows, .head_norm = head_norm_rows, .head_norm_grad = head_norm_grad_blocks,                                             \
        .head_norm_grad_sum = head_norm_grad_columns, .xent = xent_rows, .xent_stat = xent_stat_rows, .xent_merge = xent_merge_rows,                 \
        .attention = attention_task, .attention_few = attention_few, .attention_merge = attention_merge, .attention_grad = attention_grad_heads,     \
        .attention_grad_merge = attention_grad_merge, .dots_bf16 = dots_bf16, .exp = exp_run                                                         \
    }
