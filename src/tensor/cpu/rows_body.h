/* rows: norm, act, glu, rope, dropout, embed and their gradients, one row after the other. Included once per instruction set. */

VEC void *row_at(const im_kernel_call *c, int i, int64_t r)
{
    const im_view *v = &c->args->v[i];
    return (char *)c->p[i] + (size_t)(r * v->stride[0]) * (v->dtype == IM_BF16 ? 2 : 4);
}
VEC void *row_if(const im_kernel_call *c, int i, int64_t r)
{
    return im_op_has(c->args, i) ? row_at(c, i, r) : NULL;
}

/* Calls body with the dtype as a constant, so that each loop exists once per format. */
#define BY_TYPE(t, call32, call16) \
    do {                           \
        if ((t) == IM_BF16) {      \
            call16;                \
        } else {                   \
            call32;                \
        }                          \
    } while (0)

/* ---- embed ------------------------------------------------------------------------------------------------------------- */

VEC void embed_row(im_dtype t, const void *table, const void *table2, float scale, int64_t D, void *out)
{
    vf s = vf_set(scale);
    for (int64_t d = 0; d < D; d += IM_VEC) {
        int64_t w = vec_left(D, d);
        vf x = table ? vf_get(t, table, d, w) : vf_set(0.0f); /* NULL: another part of the vocabulary has the row */
        x = table2 ? vf_fma(x, s, vf_get(t, table2, d, w)) : vf_mul(x, s);
        vf_put(t, out, d, w, x);
    }
}

static void embed_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    const im_op_args *a = c->args;
    im_dtype t = (im_dtype)a->v[1].dtype;
    float scale = (float)a->f[0];
    for (int64_t r = begin; r < end; r++) {
        int32_t id = ((const int32_t *)c->p[0])[r * a->v[0].stride[0]];
        void *out = row_at(c, 2, r), *first = im_table_row(a, 1, id - a->i[0]) ? row_at(c, 1, id - a->i[0]) : NULL, *second = NULL;
        if (im_op_has(a, 4))
            second = row_at(c, 4, ((const int32_t *)c->p[3])[r * a->v[3].stride[0]]);
        BY_TYPE(t, embed_row(IM_F32, first, second, scale, a->v[2].shape[1], out), embed_row(IM_BF16, first, second, scale, a->v[2].shape[1], out));
    }
}

/* dtable[id of r, column] += dy[r, column] for the columns [begin, end), r ascending. */
VEC void embed_grad_body(const im_kernel_call *c, im_dtype t, int64_t begin, int64_t end)
{
    const im_op_args *a = c->args;
    for (int64_t r = 0; r < a->v[0].shape[0]; r++) {
        const void *dy = row_at(c, 1, r);
        int64_t id = ((const int32_t *)c->p[0])[r * a->v[0].stride[0]] - a->i[1];
        if (!im_table_row(a, 2, id))
            continue;
        float *to = row_at(c, 2, id);
        for (int64_t d = begin; d < end; d += IM_VEC) {
            int64_t w = vec_left(end, d);
            vf_put(IM_F32, to, d, w, vf_add(vf_get(IM_F32, to, d, w), vf_get(t, dy, d, w)));
        }
    }
}

static void embed_grad_columns(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    if (c->args->i[0] == 0)
        for (int64_t v = 0; v < c->args->v[2].shape[0]; v++)
            memset((float *)row_at(c, 2, v) + begin, 0, (size_t)(end - begin) * sizeof(float));
    BY_TYPE(c->args->v[1].dtype, embed_grad_body(c, IM_F32, begin, end), embed_grad_body(c, IM_BF16, begin, end));
}

/* ---- norm -------------------------------------------------------------------------------------------------------------- */

/* scratch (pad(D)): the row as fp32. */
VEC void norm_row(const im_kernel_call *c, im_dtype t, bool layer, int64_t r, float *row)
{
    const im_op_args *a = c->args;
    int64_t D = a->v[0].shape[1];
    float share = D > 0 ? 1.0f / (float)D : 0.0f;
    const void *x = row_at(c, 0, r), *w = c->p[1], *bias = im_op_has(a, 2) ? c->p[2] : NULL, *res = row_if(c, 5, r);
    void *y = row_at(c, 3, r), *sum = row_if(c, 6, r);
    float *stat = row_at(c, 4, r);
    vf total = vf_set(0.0f);
    for (int64_t d = 0; d < D; d += IM_VEC) {
        int64_t n = vec_left(D, d);
        vf v = vf_get(t, x, d, n);
        if (res) {
            v = vf_add(v, vf_get(t, res, d, n));
            if (t == IM_BF16) { /* what is stored is what is normalised */
                uint16_t rounded[IM_VEC];
                vf_store_bf16(rounded, v);
                v = vf_load_bf16(rounded);
            }
        }
        if (sum)
            vf_put(t, sum, d, n, v);
        vf_store(row + d, v);
        total = vf_add(total, v);
    }
    float center = layer ? vf_sum(total) * share : 0.0f;
    vf mean = vf_set(center), square = vf_set(0.0f);
    for (int64_t d = 0; d < D; d += IM_VEC) {
        vf off = vf_sub(vf_load(row + d), mean);
        if (d + IM_VEC > D)
            off = vf_pick(vm_first(D - d), off, vf_set(0.0f));
        square = vf_fma(off, off, square);
    }
    float rstd = 1.0f / sqrtf(vf_sum(square) * share + (float)a->f[0]);
    if (layer)
        stat[0] = center;
    stat[layer ? 1 : 0] = rstd;
    vf rs = vf_set(rstd);
    for (int64_t d = 0; d < D; d += IM_VEC) {
        int64_t n = vec_left(D, d);
        vf v = vf_mul(vf_mul(vf_sub(vf_load(row + d), mean), rs), vf_get(t, w, d, n));
        vf_put(t, y, d, n, bias ? vf_add(v, vf_get(t, bias, d, n)) : v);
    }
}

static void norm_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    im_dtype t = (im_dtype)c->args->v[0].dtype;
    bool layer = c->args->i[1] == IM_NORM_LAYER;
    for (int64_t r = begin; r < end; r++)
        BY_TYPE(t, norm_row(c, IM_F32, layer, r, scratch), norm_row(c, IM_BF16, layer, r, scratch));
}

/* One row of dx, and its share of dw and db, which are fp32 rows of this block. */
VEC void norm_grad_row(const im_kernel_call *c, im_dtype t, bool layer, int64_t r, float *dw, float *db)
{
    int64_t D = c->args->v[0].shape[1];
    const void *x = row_at(c, 0, r), *w = c->p[1], *dy = row_at(c, 3, r), *dres = row_if(c, 7, r);
    void *dx = row_at(c, 4, r);
    const float *stat = row_at(c, 2, r);
    vf mean = vf_set(layer ? stat[0] : 0.0f), rstd = vf_set(stat[layer ? 1 : 0]);
    vf along = vf_set(0.0f), across = vf_set(0.0f); /* sums of g * xhat and of g, g = dy * w */
    for (int64_t d = 0; d < D; d += IM_VEC) {
        int64_t n = vec_left(D, d);
        vf g = vf_mul(vf_get(t, dy, d, n), vf_get(t, w, d, n));
        vf xhat = vf_mul(vf_sub(vf_get(t, x, d, n), mean), rstd);
        along = vf_fma(g, xhat, along);
        across = vf_add(across, g);
    }
    vf a = vf_set(vf_sum(along) / (float)D), b = vf_set(layer ? vf_sum(across) / (float)D : 0.0f);
    for (int64_t d = 0; d < D; d += IM_VEC) {
        int64_t n = vec_left(D, d);
        vf o = vf_get(t, dy, d, n), g = vf_mul(o, vf_get(t, w, d, n));
        vf xhat = vf_mul(vf_sub(vf_get(t, x, d, n), mean), rstd);
        vf v = vf_mul(rstd, vf_fnma(xhat, a, vf_sub(g, b)));
        vf_store(dw + d, vf_fma(o, xhat, vf_load(dw + d)));
        if (db)
            vf_store(db + d, vf_add(o, vf_load(db + d)));
        vf_put(t, dx, d, n, dres ? vf_add(v, vf_get(t, dres, d, n)) : v);
    }
}

/* Blocks of rows. The call's scratch holds, for each block, dw and db: two rows of pad(D). */
static void norm_grad_blocks(const im_kernel_call *c, int64_t begin, int64_t end, float *unused)
{
    (void)unused;
    im_dtype t = (im_dtype)c->args->v[0].dtype;
    bool layer = c->args->i[1] == IM_NORM_LAYER;
    int64_t n = c->args->v[0].shape[0], rows = im_norm_grad_rows(n), stride = im_pad(c->args->v[0].shape[1]);
    for (int64_t block = begin; block < end; block++) {
        float *dw = (float *)c->scratch + block * 2 * stride, *db = im_op_has(c->args, 6) ? dw + stride : NULL;
        memset(dw, 0, (size_t)(2 * stride) * sizeof(float));
        for (int64_t r = block * rows; r < (block + 1) * rows && r < n; r++)
            BY_TYPE(t, norm_grad_row(c, IM_F32, layer, r, dw, db), norm_grad_row(c, IM_BF16, layer, r, dw, db));
    }
}

/* Columns of dw and db: the blocks' sums, in order. */
static void norm_grad_columns(const im_kernel_call *c, int64_t begin, int64_t end, float *unused)
{
    (void)unused;
    int64_t n = c->args->v[0].shape[0], rows = im_norm_grad_rows(n), stride = im_pad(c->args->v[0].shape[1]);
    for (int which = 0; which < 2; which++) {
        float *to = im_op_has(c->args, 5 + which) ? c->p[5 + which] : NULL;
        for (int64_t d = begin; to && d < end; d += IM_VEC) {
            int64_t w = vec_left(end, d);
            vf sum = vf_set(0.0f);
            for (int64_t block = 0; block * rows < n; block++)
                sum = vf_add(sum, vf_load((const float *)c->scratch + (block * 2 + which) * stride + d));
            vf_put(IM_F32, to, d, w, c->args->i[0] != 0 ? vf_add(sum, vf_get(IM_F32, to, d, w)) : sum);
        }
    }
}

/* ---- rope -------------------------------------------------------------------------------------------------------------- */

VEC void rope_halves(im_dtype t, const void *x, void *y, const float *table, int64_t half, vf sign)
{
    const char *x2 = (const char *)x + (size_t)half * (t == IM_BF16 ? 2 : 4);
    char *y2 = (char *)y + (size_t)half * (t == IM_BF16 ? 2 : 4);
    for (int64_t j = 0; j < half; j += IM_VEC) {
        int64_t w = vec_left(half, j);
        vf cosine = vf_get(IM_F32, table, j, w), sine = vf_mul(sign, vf_get(IM_F32, table, half + j, w));
        vf a = vf_get(t, x, j, w), b = vf_get(t, x2, j, w);
        vf_put(t, y, j, w, vf_fnma(b, sine, vf_mul(a, cosine)));
        vf_put(t, y2, j, w, vf_fma(a, sine, vf_mul(b, cosine)));
    }
}

VEC void rope_pairs(im_dtype t, const void *x, void *y, const float *table, int64_t half, float sign)
{
    for (int64_t j = 0; j < half; j++) {
        float cosine = table[j], sine = sign * table[half + j], a = im_load(t, x, 2 * j), b = im_load(t, x, 2 * j + 1);
        im_store(t, y, 2 * j, a * cosine - b * sine);
        im_store(t, y, 2 * j + 1, b * cosine + a * sine);
    }
}

VEC void rope_row(const im_kernel_call *c, im_dtype t, int64_t r)
{
    const im_view *xv = &c->args->v[0], *yv = &c->args->v[1];
    int64_t half = c->args->v[3].shape[1] / 2, size = t == IM_BF16 ? 2 : 4;
    float sign = c->args->i[0] != 0 ? -1.0f : 1.0f;
    const float *table = row_at(c, 3, ((const int32_t *)c->p[2])[r * c->args->v[2].stride[0]]);
    for (int64_t h = 0; h < xv->shape[1]; h++) {
        const char *x = (const char *)row_at(c, 0, r) + h * xv->stride[1] * size;
        char *y = (char *)row_at(c, 1, r) + h * yv->stride[1] * size;
        if (c->args->i[1] != 0)
            rope_pairs(t, x, y, table, half, sign);
        else
            rope_halves(t, x, y, table, half, vf_set(sign));
        if (x != y && 2 * half < xv->shape[2])
            memcpy(y + 2 * half * size, x + 2 * half * size, (size_t)((xv->shape[2] - 2 * half) * size));
    }
}

static void rope_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    for (int64_t r = begin; r < end; r++)
        BY_TYPE(c->args->v[0].dtype, rope_row(c, IM_F32, r), rope_row(c, IM_BF16, r));
}

/* ---- act, glu ---------------------------------------------------------------------------------------------------------- */

/* erfc(z) and e^-z^2 for z = x / sqrt(2), x >= 0: erfc(z) = e^-z^2 t P(t), t = 1 / (1 + 0.4 z); P is a minimax polynomial, relative
 * error 1e-8. The exponent is taken from x: a rounded z would cost z^2 ulps. */
VEC vf erfc_of(vf x, vf *gauss)
{
    vf z = vf_mul(x, vf_set(0.70710678f)), t = vf_div(vf_set(1.0f), vf_fma(vf_set(0.4f), z, vf_set(1.0f)));
    vf p = vf_fma(vf_set(-0.02772371609f), t, vf_set(0.1879008944f));
    p = vf_fma(p, t, vf_set(-0.4751584045f));
    p = vf_fma(p, t, vf_set(0.5160843417f));
    p = vf_fma(p, t, vf_set(-0.2584750449f));
    p = vf_fma(p, t, vf_set(0.2582812948f));
    p = vf_fma(p, t, vf_set(0.1344004183f));
    p = vf_fma(p, t, vf_set(0.2139183813f));
    p = vf_fma(p, t, vf_set(0.2250709692f));
    p = vf_fma(p, t, vf_set(0.2257008762f));
    vf half = vf_mul(vf_set(0.5f), x), square = vf_mul(half, x), error = vf_fnma(half, x, square); /* exact; put back after the exponential */
    *gauss = vf_exp(vf_sub(vf_set(0.0f), square));
    *gauss = vf_fma(*gauss, error, *gauss);
    return vf_mul(vf_mul(*gauss, t), p);
}

/* act(x) = x * gate(x) and its slope gate + x * gate'. x is taken as finite in products, so that -inf gives 0. */
VEC vf act_at(im_act kind, vf x, vf *slope)
{
    const vf zero = vf_set(0.0f), one = vf_set(1.0f);
    if (kind == IM_ACT_RELU) {
        vm negative = vf_lt(x, zero);
        *slope = vf_pick(vf_lt(zero, x), one, vf_pick(vf_neq(x, x), x, zero));
        return vf_pick(negative, zero, x);
    }
    vf finite = vf_max(vf_set(-FLT_MAX), x), gate, gate_slope, inner = vf_min(vf_set(1e4f), vf_max(vf_set(-1e4f), x));
    if (kind == IM_ACT_SILU) {
        gate = vf_div(one, vf_add(one, vf_exp(vf_sub(zero, x))));
        gate_slope = vf_mul(gate, vf_sub(one, gate));
    } else if (kind == IM_ACT_GELU_TANH) {                                /* (1 + tanh(u)) / 2 = sigmoid(2u) */
        const vf root = vf_set(1.5957691216f), cubic = vf_set(0.044715f); /* 2 sqrt(2/pi) */
        vf square = vf_mul(inner, inner);
        vf twice = vf_mul(root, vf_mul(inner, vf_fma(cubic, square, one)));
        gate = vf_div(one, vf_add(one, vf_exp(vf_sub(zero, twice))));
        gate_slope = vf_mul(vf_mul(gate, vf_sub(one, gate)), vf_mul(root, vf_fma(vf_mul(vf_set(3.0f), cubic), square, one)));
    } else {
        vf gauss, tail, magnitude = vf_max(inner, vf_sub(zero, inner));
        tail = vf_mul(vf_set(0.5f), erfc_of(magnitude, &gauss));
        gate = vf_pick(vf_lt(inner, zero), tail, vf_sub(one, tail));
        gate_slope = vf_mul(vf_set(0.39894228f), gauss);
    }
    *slope = vf_fma(inner, gate_slope, gate);
    return vf_mul(finite, gate);
}

VEC void act_body(const im_kernel_call *c, im_dtype t, im_act kind, bool grad, int64_t begin, int64_t end)
{
    int64_t F = c->args->v[0].shape[1];
    for (int64_t r = begin; r < end; r++) {
        const void *x = row_at(c, 0, r), *dy = row_at(c, 1, r);
        void *out = row_at(c, grad ? 2 : 1, r);
        for (int64_t f = 0; f < F; f += IM_VEC) {
            int64_t w = vec_left(F, f);
            vf slope, value = act_at(kind, vf_get(t, x, f, w), &slope);
            vf_put(t, out, f, w, grad ? vf_mul(slope, vf_get(t, dy, f, w)) : value);
        }
    }
}

VEC void glu_body(const im_kernel_call *c, im_dtype t, im_act kind, bool grad, int64_t begin, int64_t end)
{
    int64_t F = c->args->v[1].shape[1], size = t == IM_BF16 ? 2 : 4;
    for (int64_t r = begin; r < end; r++) {
        const char *gate = row_at(c, 0, r), *up = gate + F * size, *dy = row_at(c, 1, r);
        char *out = row_at(c, grad ? 2 : 1, r);
        for (int64_t f = 0; f < F; f += IM_VEC) {
            int64_t w = vec_left(F, f);
            vf slope, value = act_at(kind, vf_get(t, gate, f, w), &slope), u = vf_get(t, up, f, w);
            if (!grad) {
                vf_put(t, out, f, w, vf_mul(value, u));
                continue;
            }
            vf g = vf_get(t, dy, f, w);
            vf_put(t, out, f, w, vf_mul(vf_mul(g, u), slope));
            vf_put(t, out + F * size, f, w, vf_mul(g, value));
        }
    }
}

/* One function for each of the eight (activation, format) pairs of a body. */
#define BY_ACT_TYPE(body, t, grad)                                                \
    switch (c->args->i[0]) {                                                      \
    case IM_ACT_GELU_TANH: body(c, t, IM_ACT_GELU_TANH, grad, begin, end); break; \
    case IM_ACT_GELU_ERF: body(c, t, IM_ACT_GELU_ERF, grad, begin, end); break;   \
    case IM_ACT_SILU: body(c, t, IM_ACT_SILU, grad, begin, end); break;           \
    default: body(c, t, IM_ACT_RELU, grad, begin, end); break;                    \
    }
#define ACT_ROWS(name, body, grad)                                                        \
    static void name(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch) \
    {                                                                                     \
        (void)scratch;                                                                    \
        if (c->args->v[0].dtype == IM_BF16)                                               \
            BY_ACT_TYPE(body, IM_BF16, grad)                                              \
        else                                                                              \
            BY_ACT_TYPE(body, IM_F32, grad)                                               \
    }
ACT_ROWS(act_rows, act_body, false)
ACT_ROWS(act_grad_rows, act_body, true)
ACT_ROWS(glu_rows, glu_body, false)
ACT_ROWS(glu_grad_rows, glu_body, true)

/* ---- dropout ------------------------------------------------------------------------------------------------------------ */

/* Columns are numbered from i[4]. A run of 64 of them, aligned to 64, takes 16 counters with 4 words each (im_dropout_word). */
VEC void dropout_row(const im_kernel_call *c, im_dtype t, const im_dropout *drop, int64_t r)
{
    const im_op_args *a = c->args;
    const void *x = row_at(c, 0, r), *res = row_if(c, 2, r);
    void *y = row_at(c, 1, r);
    int64_t D = a->v[0].shape[1], first = a->i[4];
    int64_t row = r + a->i[5];
    uint64_t sample = (uint64_t)(c->now->sample0 + a->i[3] + row / a->i[2]);
    vi position = vi_set((int32_t)(row % a->i[2])), lo = vi_set((int32_t)(uint32_t)sample), hi = vi_set((int32_t)(uint32_t)(sample >> 32));
    vf scale = vf_set(drop->scale), zero = vf_set(0.0f);
    vi threshold = vi_set((int32_t)drop->threshold);
    uint32_t words[64];
    for (int64_t block = first >> 6; block << 6 < first + D; block++) {
        for (int lane = 0; lane < 16; lane += IM_VEC) {
            vi w[4];
            vi_philox(drop->key, vi_add(vi_set((int32_t)(block << 4 | lane)), vi_lanes()), position, lo, hi, w);
            for (int i = 0; i < 4; i++)
                vi_store(words + 16 * i + lane, w[i]);
        }
        int64_t from = block << 6 < first ? first & 63 : 0;
        for (int64_t i = from; i < 64; i += IM_VEC) {
            int64_t d = (block << 6) + i - first, w = 64 - i < IM_VEC ? 64 - i : IM_VEC;
            if (d >= D)
                break;
            w = D - d < w ? D - d : w;
            uint32_t tail[IM_VEC];
            const uint32_t *word = words + i;
            if (i + IM_VEC > 64) {
                memset(tail, 0, sizeof tail);
                memcpy(tail, words + i, (size_t)(64 - i) * 4);
                word = tail;
            }
            vm keep = vi_ge_unsigned(vi_load((const int32_t *)word), threshold);
            vf v = vf_pick(keep, vf_mul(scale, vf_get(t, x, d, w)), zero);
            vf_put(t, y, d, w, res ? vf_add(vf_get(t, res, d, w), v) : v);
        }
    }
}

static void dropout_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    im_dropout drop = im_dropout_make(c->args->f[0], c->args->i[0], c->args->i[1]);
    for (int64_t r = begin; r < end; r++)
        BY_TYPE(c->args->v[0].dtype, dropout_row(c, IM_F32, &drop, r), dropout_row(c, IM_BF16, &drop, r));
}

/* ---- for tests ---------------------------------------------------------------------------------------------------------- */

static void exp_run(const float *x, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += IM_VEC)
        vf_put(IM_F32, out, i, vec_left(n, i), vf_exp(vf_get(IM_F32, x, i, vec_left(n, i))));
}
