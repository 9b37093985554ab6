/* attention: tiles of queries against tiles of keys with a running maximum and sum (as in FlashAttention, Dao et al., 2022); the row
 * path for few queries and many keys. Included once per instruction set, after tile_body.h.
 *
 * A task is one (sample, head) and up to IM_ATTN_SPAN query tiles, which share each key tile once it is brought together from its strided
 * rows. It walks over the key tiles that any of its queries can see:
 *
 *     keys ->  0    1    2    3        S^T (keys x queries) = K Q^T          in scratch
 *     q 0    [mix][    skipped  ]      m' = max(m, column maxima)            one query a lane
 *     q 1    [all][mix][skipped]       P^T = e^(S^T - m'), l = l e^(m-m') + column sums
 *     q 2    [all][all][mix][  ]       O^T = O^T e^(m-m') + V^T P^T          in scratch, divided by l at the end
 *
 * Which tiles are skipped or need no mask follows from the least and largest position and segment in each, never from T. A mixed tile is
 * cut into strips of STRIP_VECS vectors of queries, each with the run of keys that any of its queries can see: on the diagonal
 * that leaves out 3 of 8 products (AVX2) or 1 of 4 (AVX-512).
 */

/* Positions and segments of up to TILE tokens, and their ranges. */
typedef struct tile_places {
    int32_t pos[TILE], seg[TILE];
    int32_t pos_low, pos_high, seg_low, seg_high;
} tile_places;

static void places_load(const im_places *pos, const im_places *seg, int64_t b, int64_t first, int64_t n, tile_places *out)
{
    for (int64_t i = 0; i < TILE; i++) { /* the lanes past n repeat the last token: in range, and never stored */
        int64_t at = first + (i < n ? i : n - 1);
        out->pos[i] = im_place(pos, b, at);
        out->seg[i] = seg->p ? im_place(seg, b, at) : 0;
    }
    out->pos_low = out->pos_high = out->pos[0];
    out->seg_low = out->seg_high = out->seg[0];
    for (int64_t i = 1; i < n; i++) {
        out->pos_low = out->pos[i] < out->pos_low ? out->pos[i] : out->pos_low;
        out->pos_high = out->pos[i] > out->pos_high ? out->pos[i] : out->pos_high;
        out->seg_low = out->seg[i] < out->seg_low ? out->seg[i] : out->seg_low;
        out->seg_high = out->seg[i] > out->seg_high ? out->seg[i] : out->seg_high;
    }
}

typedef enum tile_view { TILE_NONE, TILE_SOME, TILE_ALL } tile_view;

/* What of the keys the queries can see. */
static tile_view tile_sight(const im_attn *a, const tile_places *q, const tile_places *k)
{
    int64_t nearest = (int64_t)q->pos_low - k->pos_high, farthest = (int64_t)q->pos_high - k->pos_low; /* bounds of pos_q - pos_k */
    if ((a->causal && farthest < 0) || (a->window > 0 && nearest >= a->window) || q->seg_low > k->seg_high || q->seg_high < k->seg_low)
        return TILE_NONE;
    bool all = (!a->causal || nearest >= 0) && (a->window <= 0 || farthest < a->window) && q->seg_low == q->seg_high && k->seg_low == k->seg_high;
    return all ? TILE_ALL : TILE_SOME;
}

enum { STRIP_VECS = 2 };

/* Vectors [v, v + nv) of a tile's queries and the keys [low, high) that they may see. */
typedef struct tile_strip {
    int64_t v, nv, low, high;
} tile_strip;

static tile_strip strip_of(const im_attn *a, const tile_places *q, const tile_places *k, int64_t nk, int64_t v, int64_t nv)
{
    const int32_t *pos = q->pos + v * IM_VEC, *seg = q->seg + v * IM_VEC;
    int64_t pos_low = pos[0], pos_high = pos[0], seg_low = seg[0], seg_high = seg[0];
    for (int64_t i = 1; i < nv * IM_VEC; i++) {
        pos_low = pos[i] < pos_low ? pos[i] : pos_low;
        pos_high = pos[i] > pos_high ? pos[i] : pos_high;
        seg_low = seg[i] < seg_low ? seg[i] : seg_low;
        seg_high = seg[i] > seg_high ? seg[i] : seg_high;
    }
    tile_strip s = {.v = v, .nv = nv, .low = nk, .high = 0};
    for (int64_t j = 0; j < nk; j++)
        if ((!a->causal || k->pos[j] <= pos_high) && (a->window <= 0 || pos_low - k->pos[j] < a->window) && k->seg[j] >= seg_low &&
            k->seg[j] <= seg_high) {
            s.low = j < s.low ? j : s.low;
            s.high = j + 1;
        }
    return s;
}

/* The strips of a tile that have keys at all; one for the whole tile when everything is seen. Returns how many. */
static int tile_strips(const im_attn *a, const tile_places *q, const tile_places *k, int64_t nk, int64_t nv, tile_view sight,
                       tile_strip out[TILE_VECS])
{
    if (sight == TILE_ALL) {
        out[0] = (tile_strip){.v = 0, .nv = nv, .low = 0, .high = nk};
        return 1;
    }
    int n = 0;
    for (int64_t v = 0; v < nv; v += STRIP_VECS) {
        out[n] = strip_of(a, q, k, nk, v, nv - v < STRIP_VECS ? nv - v : STRIP_VECS);
        n += out[n].low < out[n].high;
    }
    return n;
}

/* -inf in St (keys x queries) where the query does not see the key. */
static void tile_mask(const im_attn *a, const tile_places *q, const tile_places *k, const tile_strip *strip, float *st)
{
    const vf hidden = vf_set(-INFINITY);
    int64_t window = a->window > 0 && a->window < INT32_MAX ? a->window : INT32_MAX;
    const vi reach = vi_set((int32_t)(window - 1)), zero = vi_set(0);
    for (int64_t v = strip->v; v < strip->v + strip->nv; v++) {
        vi pos = vi_load(q->pos + v * IM_VEC), seg = vi_load(q->seg + v * IM_VEC);
        for (int64_t j = strip->low; j < strip->high; j++) {
            vi distance = vi_sub(pos, vi_set(k->pos[j]));
            vm seen = vi_eq(seg, vi_set(k->seg[j]));
            if (a->causal)
                seen = vm_and(seen, vi_ge(distance, zero));
            if (a->window > 0)
                seen = vm_and(seen, vi_ge(reach, distance));
            float *s = st + j * TILE + v * IM_VEC;
            vf_store(s, vf_pick(seen, vf_load(s), hidden));
        }
    }
}

/* Adds slope * (pos_k - pos_q) to St. */
static void tile_slope(float slope, const tile_places *q, const tile_places *k, const tile_strip *strip, float *st)
{
    const vf steep = vf_set(slope);
    for (int64_t v = strip->v; v < strip->v + strip->nv; v++) {
        vi pos = vi_load(q->pos + v * IM_VEC);
        for (int64_t j = strip->low; j < strip->high; j++) {
            float *s = st + j * TILE + v * IM_VEC;
            vf_store(s, vf_fma(steep, vf_of_vi(vi_sub(vi_set(k->pos[j]), pos)), vf_load(s)));
        }
    }
}

/* What dropout multiplies P^T with, for one vector of queries: 0 or scale, one key after the other. Four keys at neighbouring
 * positions share a counter, so the words are kept from key to key. */
typedef struct drop_lanes {
    vi word[4];
    int64_t group; /* pos_k / 4 of these words; INT64_MIN: none yet */
    vi pos_q, sample, head;
} drop_lanes;

VEC drop_lanes drop_begin(const im_attn *a, int64_t b, int64_t h, const tile_places *q, int64_t v)
{
    uint64_t hi = im_attn_counter_hi(a->sample0 + b, a->head0 + h);
    return (drop_lanes){.group = INT64_MIN,
                        .pos_q = vi_load(q->pos + v * IM_VEC),
                        .sample = vi_set((int32_t)(uint32_t)hi),
                        .head = vi_set((int32_t)(uint32_t)(hi >> 32))};
}

VEC vf drop_next(const im_dropout *drop, drop_lanes *lanes, int32_t pos_k)
{
    uint32_t group = (uint32_t)pos_k >> 2;
    if ((int64_t)group != lanes->group) {
        vi_philox(drop->key, vi_set((int32_t)group), lanes->pos_q, lanes->sample, lanes->head, lanes->word);
        lanes->group = group;
    }
    return vf_pick(vi_ge_unsigned(lanes->word[(uint32_t)pos_k & 3], vi_set((int32_t)drop->threshold)), vf_set(drop->scale), vf_set(0.0f));
}

/* The softmax of one strip, in place: St becomes P^T. m and l (one a query) are brought forward, O^T is shrunk by e^(old m - new m), unless
 * that is 1 for all. -inf maxima (no key seen yet) count as 0, so that nothing is subtracted from -inf. */
static void strip_softmax(const im_attn *a, int64_t b, int64_t h, const tile_places *q, const tile_places *k, const tile_strip *strip, float *st,
                          float *m, float *l, float *ot)
{
    for (int64_t v = strip->v; v < strip->v + strip->nv; v++) {
        float *s = st + v * IM_VEC;
        vf before = vf_load(m + v * IM_VEC), top = before, top2 = before;
        for (int64_t j = strip->low; j + 2 <= strip->high; j += 2) {
            top = vf_max(vf_load(s + j * TILE), top);
            top2 = vf_max(vf_load(s + (j + 1) * TILE), top2);
        }
        top = vf_max(vf_load(s + (strip->high - 1) * TILE), vf_max(top, top2));
        vf base = vf_pick(vf_lt(vf_set(-INFINITY), top), top, vf_set(0.0f)), sum = vf_set(0.0f);
        for (int64_t j = strip->low; j < strip->high; j++) {
            vf p = vf_exp(vf_sub(vf_load(s + j * TILE), base));
            sum = vf_add(sum, p);
            vf_store(s + j * TILE, p);
        }
        vf shrink = vf_exp(vf_sub(before, base));
        vf_store(m + v * IM_VEC, top);
        vf_store(l + v * IM_VEC, vf_fma(vf_load(l + v * IM_VEC), shrink, sum));
        if (vm_any(vf_neq(shrink, vf_set(1.0f))))
            for (int64_t e = 0; e < a->E; e++)
                vf_store(ot + e * TILE + v * IM_VEC, vf_mul(vf_load(ot + e * TILE + v * IM_VEC), shrink));
        if (a->drop.on) {
            drop_lanes lanes = drop_begin(a, b, h, q, v);
            for (int64_t j = strip->low; j < strip->high; j++)
                vf_store(s + j * TILE, vf_mul(vf_load(s + j * TILE), drop_next(&a->drop, &lanes, k->pos[j])));
        }
    }
}

/* Divides by the sums, writes O and the log-sum-exp. qp is free by now: it takes O row by row. */
static void tile_finish(const im_attn *a, int64_t b, int64_t h, int64_t first, int64_t nq, int64_t nv, float *ot, const float *m, const float *l,
                        float *rows)
{
    int64_t P = im_pad(a->E);
    for (int64_t v = 0; v < nv; v++) {
        vf sum = vf_load(l + v * IM_VEC), inverse = vf_div(vf_set(1.0f), sum);
        inverse = vf_pick(vf_neq(sum, vf_set(0.0f)), inverse, vf_set(0.0f));
        for (int64_t e = 0; e < a->E; e++)
            vf_store(ot + e * TILE + v * IM_VEC, vf_mul(vf_load(ot + e * TILE + v * IM_VEC), inverse));
    }
    transpose(ot, TILE, P, nv * IM_VEC, rows, P);
    unpack(&a->o, b, h, first, nq, a->E, 1.0f, rows);
    for (int64_t i = 0; i < nq; i++)
        *im_attn_lse(a, b, first + i, h) = l[i] == 0.0f ? -INFINITY : (float)((double)m[i] + log((double)l[i]));
}

/* The query side of a tile, and what has been summed over the key tiles so far. */
typedef struct query_tile {
    tile_places at;
    float m[TILE], l[TILE]; /* running maximum and sum, one a query */
    float *qt, *ot;         /* Q^T, O^T (P,TILE) */
    int64_t first, nq, nv;  /* queries first.., in nv vectors */
    tile_view sight;        /* of the key tile at hand */
} query_tile;

static void query_load(const im_attn *a, int64_t b, int64_t h, query_tile *q, float *rows)
{
    int64_t P = im_pad(a->E);
    for (int i = 0; i < TILE; i++) {
        q->m[i] = -INFINITY;
        q->l[i] = 0.0f;
    }
    places_load(&a->pos_q, &a->seg_q, b, q->first, q->nq, &q->at);
    pack(&a->q, b, h, q->first, q->nq, TILE, a->E, a->scale, rows);
    transpose(rows, P, q->nv * IM_VEC, P, q->qt, TILE);
    memset(q->ot, 0, (size_t)(P * TILE) * sizeof(float));
}

/* One key tile (kp, vp: nk rows of P) for one query tile. */
static void query_step(const im_attn *a, int64_t b, int64_t h, query_tile *q, const tile_places *k, int64_t nk, const float *kp, const float *vp,
                       float *st)
{
    int64_t P = im_pad(a->E);
    tile_strip strips[TILE_VECS];
    int n = tile_strips(a, &q->at, k, nk, q->nv, q->sight, strips);
    for (int i = 0; i < n; i++) {
        const tile_strip *s = &strips[i];
        int64_t column = s->v * IM_VEC, keys = s->high - s->low;
        float *scores = st + s->low * TILE + column;
        mm(keys, s->nv, a->E, kp + s->low * P, P, 1, q->qt + column, TILE, scores, TILE, false);
        if (a->alibi_heads)
            tile_slope(im_attn_slope(a, h), &q->at, k, s, st);
        if (q->sight == TILE_SOME)
            tile_mask(a, &q->at, k, s, st);
        strip_softmax(a, b, h, &q->at, k, s, st, q->m, q->l, q->ot);
        mm(a->E, s->nv, keys, vp + s->low * P, 1, P, scores, TILE, q->ot + column, TILE, true);
    }
}

/* Query tiles [first, first + n) of a head. scratch: rows, K, V (TILE,P), S^T (TILE,TILE), then Q^T and O^T (P,TILE) for each query tile. */
static void attention_task(const im_attn *a, int64_t b, int64_t h, int64_t first, int64_t n, float *scratch)
{
    int64_t P = im_pad(a->E);
    float *rows = scratch, *kp = rows + TILE * P, *vp = kp + TILE * P, *st = vp + TILE * P, *own = st + TILE * TILE;
    query_tile q[IM_ATTN_SPAN];
    tile_places k;
    for (int64_t i = 0; i < n; i++) {
        int64_t left = a->Tq - (first + i) * TILE;
        q[i].first = (first + i) * TILE;
        q[i].nq = left < TILE ? left : TILE;
        q[i].nv = (q[i].nq + IM_VEC - 1) / IM_VEC;
        q[i].qt = own + i * 2 * P * TILE;
        q[i].ot = q[i].qt + P * TILE;
        query_load(a, b, h, &q[i], rows);
    }
    for (int64_t j = 0; j < a->keys; j += TILE) {
        int64_t nk = a->keys - j < TILE ? a->keys - j : TILE;
        bool seen = false;
        places_load(&a->pos_k, &a->seg_k, b, j, nk, &k);
        for (int64_t i = 0; i < n; i++) {
            q[i].sight = tile_sight(a, &q[i].at, &k);
            seen |= q[i].sight != TILE_NONE;
        }
        if (!seen)
            continue;
        pack(&a->k, b, h / a->G, j, nk, nk, a->E, 1.0f, kp);
        pack(&a->v, b, h / a->G, j, nk, nk, a->E, 1.0f, vp);
        for (int64_t i = 0; i < n; i++)
            if (q[i].sight != TILE_NONE)
                query_step(a, b, h, &q[i], &k, nk, kp, vp, st);
    }
    for (int64_t i = 0; i < n; i++)
        tile_finish(a, b, h, q[i].first, q[i].nq, q[i].nv, q[i].ot, q[i].m, q[i].l, rows);
}

/* ---- few queries --------------------------------------------------------------------------------------------------------- */

/* With one query (decoding) a task is one chunk of keys for the G heads of a kv head: keys and values are read once, where they lie
 * when they are fp32. Each chunk gives o, m and l of its own; the merge adds them in order, whatever the threads.
 * part: (B,H,Tq,chunks, P + IM_PAD): o, then m and l. */
static float *few_part(const im_attn *a, int64_t b, int64_t h, int64_t t, int64_t chunk, const float *part)
{
    int64_t chunks = (a->Tk + IM_ATTN_CHUNK - 1) / IM_ATTN_CHUNK;
    return (float *)(uintptr_t)part + (((b * a->H + h) * a->Tq + t) * chunks + chunk) * (im_pad(a->E) + IM_PAD);
}

VEC float few_dot(im_dtype t, const float *q, const void *k, int64_t E)
{
    vf sum = vf_set(0.0f);
    for (int64_t e = 0; e < E; e += IM_VEC)
        sum = vf_fma(vf_load(q + e), vf_get(t, k, e, vec_left(E, e)), sum);
    return vf_sum(sum);
}

/* Scores of one query of head h against keys [first, first + n): -inf where a key is not seen. Returns whether any is. */
static bool few_scores(const im_attn *a, int64_t b, int64_t t, int64_t h, const float *q, int64_t first, int64_t n, float *s)
{
    int32_t pos_q = im_place(&a->pos_q, b, t), seg_q = a->seg_q.p ? im_place(&a->seg_q, b, t) : 0;
    float slope = im_attn_slope(a, h);
    int64_t g = h / a->G;
    bool any = false;
    for (int64_t j = 0; j < n; j++) {
        int32_t seg_k = a->seg_k.p ? im_place(&a->seg_k, b, first + j) : 0, pos_k = im_place(&a->pos_k, b, first + j);
        if (!im_attn_visible(a, pos_q, pos_k, seg_q, seg_k)) {
            s[j] = -INFINITY;
            continue;
        }
        any = true;
        const void *k = im_head_row(&a->k, b, first + j, g);
        if (j + PREFETCH < n)
            row_prefetch(&a->k, k, PREFETCH, a->E);
        s[j] = a->k.type == IM_BF16 ? few_dot(IM_BF16, q, k, a->E) : few_dot(IM_F32, q, k, a->E);
        s[j] += slope * (float)((int64_t)pos_k - pos_q);
    }
    return any;
}

/* s becomes e^(s - m), with dropout; returns m and l. */
static void few_softmax(const im_attn *a, int64_t b, int64_t t, int64_t h, int64_t first, int64_t n, float *s, float *m, float *l)
{
    vf top = vf_set(-INFINITY), sum = vf_set(0.0f);
    for (int64_t j = 0; j < n; j += IM_VEC) {
        int64_t w = vec_left(n, j);
        top = vf_max(vf_pick(vm_first(w), vf_get(IM_F32, s, j, w), vf_set(-INFINITY)), top);
    }
    *m = vf_top(top);
    vf base = vf_set(*m > -INFINITY ? *m : 0.0f);
    for (int64_t j = 0; j < n; j += IM_VEC) {
        int64_t w = vec_left(n, j);
        vf p = vf_pick(vm_first(w), vf_exp(vf_sub(vf_get(IM_F32, s, j, w), base)), vf_set(0.0f));
        sum = vf_add(sum, p);
        vf_put(IM_F32, s, j, w, p);
    }
    *l = vf_sum(sum);
    for (int64_t j = 0; a->drop.on && j < n; j++) {
        uint32_t word = im_attn_word(&a->drop, a->sample0 + b, a->head0 + h, im_place(&a->pos_q, b, t), im_place(&a->pos_k, b, first + j));
        s[j] *= word >= a->drop.threshold ? a->drop.scale : 0.0f;
    }
}

/* task: (b, kv head, chunk). scratch: the G*Tq queries (rows of P), their scores (rows of CHUNK), values as fp32 (CHUNK,P), o (rows of P) */
static void attention_few(const im_attn *a, int64_t task, float *scratch, float *part)
{
    int64_t P = im_pad(a->E), chunks = (a->Tk + IM_ATTN_CHUNK - 1) / IM_ATTN_CHUNK, rows = a->G * a->Tq;
    int64_t chunk = task % chunks, g = task / chunks % a->K, b = task / chunks / a->K, first = chunk * IM_ATTN_CHUNK;
    int64_t n = a->keys - first < IM_ATTN_CHUNK ? a->keys - first : IM_ATTN_CHUNK;
    float *q = scratch, *s = q + rows * P, *o = s + rows * IM_ATTN_CHUNK, *v = o + rows * P;
    bool seen = false;
    if (n <= 0)
        return;
    for (int64_t r = 0; r < rows; r++) {
        int64_t h = g * a->G + r / a->Tq, t = r % a->Tq;
        pack(&a->q, b, h, t, 1, 1, a->E, a->scale, q + r * P);
        seen |= few_scores(a, b, t, h, q + r * P, first, n, s + r * IM_ATTN_CHUNK);
        float *to = few_part(a, b, h, t, chunk, part);
        few_softmax(a, b, t, h, first, n, s + r * IM_ATTN_CHUNK, to + P, to + P + 1);
    }
    if (!seen) { /* the whole chunk lies outside the window: its values are not read */
        for (int64_t r = 0; r < rows; r++)
            memset(few_part(a, b, g * a->G + r / a->Tq, r % a->Tq, chunk, part), 0, (size_t)P * sizeof(float));
        return;
    }
    bool lie = a->v.type == IM_F32 && a->E == P; /* as the product reads them */
    if (!lie)
        pack(&a->v, b, g, first, n, n, a->E, 1.0f, v);
    int64_t run = lie && a->v.block ? IM_KV_BLOCK : n; /* tokens in one piece; the sums go on in the same order */
    for (int64_t j = 0; j < n; j += run)
        mm(rows, P / IM_VEC, n - j < run ? n - j : run, s + j, IM_ATTN_CHUNK, 1, lie ? im_head_row(&a->v, b, first + j, g) : v + j * P,
           lie ? a->v.t : P, o, P, j > 0);
    for (int64_t r = 0; r < rows; r++)
        memcpy(few_part(a, b, g * a->G + r / a->Tq, r % a->Tq, chunk, part), o + r * P, (size_t)P * sizeof(float));
}

/* task: (b, kv head). The chunks of each of its queries, in order. */
static void attention_merge(const im_attn *a, int64_t task, const float *part)
{
    int64_t P = im_pad(a->E), g = task % a->K, b = task / a->K, chunks = (a->keys + IM_ATTN_CHUNK - 1) / IM_ATTN_CHUNK;
    for (int64_t r = 0; r < a->G * a->Tq; r++) {
        int64_t h = g * a->G + r / a->Tq, t = r % a->Tq;
        float m = -INFINITY, *sum = few_part(a, b, h, t, 0, part); /* chunk 0's place takes the sum */
        double l = 0.0;
        for (int64_t i = 0; i < chunks; i++) {
            const float *x = few_part(a, b, h, t, i, part);
            m = x[P] > m ? x[P] : m;
        }
        float base = m > -INFINITY ? m : 0.0f;
        for (int64_t i = 0; i < chunks; i++) {
            const float *x = few_part(a, b, h, t, i, part);
            float f = expf(x[P] - base);
            l += (double)f * x[P + 1];
            for (int64_t e = 0; e < P; e += IM_VEC)
                vf_store(sum + e, i == 0 ? vf_mul(vf_set(f), vf_load(x + e)) : vf_fma(vf_set(f), vf_load(x + e), vf_load(sum + e)));
        }
        float none[IM_PAD] = {0};
        if (chunks == 0) {
            for (int64_t e = 0; e < a->E; e++)
                im_store(a->o.type, im_head_row(&a->o, b, t, h), e, none[0]);
        } else
            unpack(&a->o, b, h, t, 1, a->E, l == 0.0 ? 0.0f : (float)(1.0 / l), sum);
        *im_attn_lse(a, b, t, h) = l == 0.0 ? -INFINITY : (float)((double)m + log(l));
    }
}
