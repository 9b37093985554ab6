/* share: what a tensor-parallel rank holds of heads, feed-forward and vocabulary (rule 7), and the boxes of each parameter.
 *
 * Heads go in whole kv groups: K 3, H 9, tp 2 gives 2 groups (6 heads) and 1 group (3 heads). Above K, tp is a multiple of K: each kv head
 * lies on tp / K ranks that share its query heads; its gradient is summed over them.
 */
#include "model/share.h"

void im_part(int64_t n, int parts, int i, int64_t *first, int64_t *end)
{
    int64_t each = n / parts, more = n % parts;
    *first = each * i + (i < more ? i : more);
    *end = *first + each + (i < more);
}

im_share im_share_of(const im_arch *a, int tp, int r)
{
    im_share s = {.replicas = tp > a->K ? (int)(tp / a->K) : 1};
    int64_t end, group = a->H / a->K;
    if (s.replicas == 1) {
        im_part(a->K, tp, r, &s.k0, &end);
        s.K = end - s.k0;
        s.h0 = s.k0 * group;
        s.H = s.K * group;
    } else {
        s.k0 = r / s.replicas;
        s.K = 1;
        im_part(group, s.replicas, r % s.replicas, &s.h0, &end);
        s.H = end - s.h0;
        s.h0 += s.k0 * group;
    }
    im_part(a->F, tp, r, &s.f0, &end);
    s.F = end - s.f0;
    im_part(a->V, tp, r, &s.v0, &end);
    s.V = end - s.v0;
    return s;
}

im_status im_share_check(im_context *ctx, const im_model *m, int tp)
{
    const im_arch *a = &m->arch;
    if (tp < 1)
        return im_fail(ctx, IM_ERR_ARG, "tp %d: 1 or more", tp);
    if (tp > a->K && (tp % a->K || tp / a->K > a->H / a->K)) {
        int64_t below = tp / a->K * a->K, most = a->H / a->K * a->K;
        if (below > most)
            below = most;
        if (below + a->K > most)
            return im_fail(
                ctx, IM_ERR_ARG,
                "tp %d is neither up to the %lld kv heads nor a multiple of them up to the %lld heads (%s: num_key_value_heads); nearest: %lld", tp,
                (long long)a->K, (long long)a->H, m->source, (long long)below);
        return im_fail(
            ctx, IM_ERR_ARG,
            "tp %d is neither up to the %lld kv heads nor a multiple of them up to the %lld heads (%s: num_key_value_heads); nearest: %lld, %lld", tp,
            (long long)a->K, (long long)a->H, m->source, (long long)below, (long long)(below + a->K));
    }
    if (tp > a->F || tp > a->V)
        return im_fail(ctx, IM_ERR_ARG, "tp %d is above the feed-forward size %lld or the vocabulary %lld (%s); at most the smaller", tp,
                       (long long)a->F, (long long)a->V, m->source);
    return IM_OK;
}

/* ---- boxes -------------------------------------------------------------------------- */

/* n runs, whole rows or a band of columns of a (rows, cols) matrix; local rows are as long as what is held */
static im_box rows_box(int64_t first, int64_t n, int64_t cols)
{
    return (im_box){.n = 1, .run = (size_t)(n * cols), .global0 = (size_t)(first * cols)};
}

static im_box band_box(int64_t rows, int64_t cols, int64_t first, int64_t n)
{
    return (im_box){.n = (size_t)rows, .run = (size_t)n, .global0 = (size_t)first, .global_stride = (size_t)cols};
}

/* q, k and v of a fused weight or bias, `out` counted in heads of E */
static int fused_boxes(const im_arch *a, const im_share *s, bool in_out, int64_t rows, im_box *box)
{
    const int64_t first[3] = {s->h0, a->H + s->k0, a->H + a->K + s->k0}, n[3] = {s->H, s->K, s->K};
    int64_t W = (a->H + 2 * a->K) * a->E;
    for (int i = 0; i < 3; i++)
        box[i] = in_out ? band_box(rows, W, first[i] * a->E, n[i] * a->E) : rows_box(first[i] * a->E, n[i] * a->E, rows);
    return 3;
}

/* A column-parallel weight: `n` of `all` outputs from `first`, K inputs each. */
static im_box column_box(bool in_out, int64_t inputs, int64_t all, int64_t first, int64_t n)
{
    return in_out ? band_box(inputs, all, first, n) : rows_box(first, n, inputs);
}

/* A row-parallel weight: `n` of `all` inputs from `first`, `outputs` each. */
static im_box row_box(bool in_out, int64_t outputs, int64_t all, int64_t first, int64_t n)
{
    return in_out ? rows_box(first, n, outputs) : band_box(outputs, all, first, n);
}

int im_share_boxes(const im_arch *a, const im_share *s, im_slot slot, bool fused_qkv, int64_t count, im_box box[3])
{
    bool io = a->weights_in_out;
    int64_t E = a->E;
    if (s->H == a->H && s->F == a->F && s->V == a->V) { /* tp 1: one run */
        box[0] = (im_box){.n = 1, .run = (size_t)count};
        return 1;
    }
    switch (slot) {
    case IM_SLOT_TOKENS:
    case IM_SLOT_HEAD_W: box[0] = rows_box(s->v0, s->V, a->D); return 1;
    case IM_SLOT_Q_W:
        if (fused_qkv)
            return fused_boxes(a, s, io, a->D, box);
        box[0] = column_box(io, a->D, a->H * E, s->h0 * E, s->H * E);
        return 1;
    case IM_SLOT_K_W:
    case IM_SLOT_V_W: box[0] = column_box(io, a->D, a->K * E, s->k0 * E, s->K * E); return 1;
    case IM_SLOT_Q_B:
        if (fused_qkv)
            return fused_boxes(a, s, false, 1, box);
        box[0] = rows_box(s->h0 * E, s->H * E, 1);
        return 1;
    case IM_SLOT_K_B:
    case IM_SLOT_V_B: box[0] = rows_box(s->k0 * E, s->K * E, 1); return 1;
    case IM_SLOT_O_W: box[0] = row_box(io, a->D, a->H * E, s->h0 * E, s->H * E); return 1;
    case IM_SLOT_UP_W:
    case IM_SLOT_GATE_W: box[0] = column_box(io, a->D, a->F, s->f0, s->F); return 1;
    case IM_SLOT_UP_B:
    case IM_SLOT_GATE_B: box[0] = rows_box(s->f0, s->F, 1); return 1;
    case IM_SLOT_DOWN_W: box[0] = row_box(io, a->D, a->F, s->f0, s->F); return 1;
    default: box[0] = (im_box){.n = 1, .run = (size_t)count}; return 1; /* replicated */
    }
}

bool im_share_replicated(im_slot slot)
{
    switch (slot) {
    case IM_SLOT_POSITIONS:
    case IM_SLOT_NORM1_W:
    case IM_SLOT_NORM1_B:
    case IM_SLOT_NORM2_W:
    case IM_SLOT_NORM2_B:
    case IM_SLOT_O_B:
    case IM_SLOT_DOWN_B: return true;
    default: return false;
    }
}
