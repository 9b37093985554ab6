/* share: what a tensor-parallel rank holds of heads, feed-forward and vocabulary (rule 7), and the boxes of each parameter.
 *
 * Heads go in whole kv groups: K 3, H 9, tp 2 gives 2 groups (6 heads) and 1 group (3 heads). Above K, tp is a multiple of K: each kv head
 * lies on tp / K ranks that share its query heads; its gradient is summed over them.
 * A rank with more heads has less of the feed-forward: SmolLM2's 1,536 columns at tp 2 are 688 and 848, and a step waits for nobody.
 */
#include "model/share.h"

#include <math.h>

void im_part(int64_t n, int parts, int i, int64_t *first, int64_t *end)
{
    int64_t each = n / parts, more = n % parts;
    *first = each * i + (i < more ? i : more);
    *end = *first + each + (i < more);
}

static im_share heads_of(const im_arch *a, int tp, int r)
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
    return s;
}

/* Weights of a rank's heads: the rows of q and o, of k and v. */
static int64_t heads_size(const im_arch *a, int tp, int r)
{
    im_share s = heads_of(a, tp, r);
    return 2 * (s.H + s.K) * a->E * a->D;
}

/* Feed-forward columns: where the heads are uneven, so many that the ranks' blocks have about the same weights; as even as they can be otherwise. */
static void feed_forward_of(const im_arch *a, int tp, int r, int64_t *first, int64_t *end)
{
    int64_t column = a->D * (a->gated ? 3 : 2), unit = a->F / tp >= 256 ? 16 : 1; /* whole vectors, where that costs nothing */
    double heads = 0, all = 0, upto = 0;
    bool even = true;
    for (int i = 0; i < tp; i++) {
        int64_t size = heads_size(a, tp, i);
        even = even && size == heads_size(a, tp, 0);
        heads += (double)size;
    }
    if (even) {
        im_part(a->F, tp, r, first, end);
        return;
    }
    double each = (heads + (double)(a->F * column)) / tp;
    for (int i = 0; i < tp; i++)
        all += fmax(each - (double)heads_size(a, tp, i), (double)column);
    *end = 0;
    for (int i = 0; i <= r; i++) {
        upto += fmax(each - (double)heads_size(a, tp, i), (double)column);
        int64_t cut = (int64_t)((double)a->F * (upto / all) / (double)unit + 0.5) * unit;
        int64_t least = *end + 1, most = a->F - (tp - 1 - i); /* each rank has one */
        *first = *end;
        *end = i == tp - 1 || cut > most ? most : cut < least ? least : cut;
    }
}

im_share im_share_of(const im_arch *a, int tp, int r)
{
    im_share s = heads_of(a, tp, r);
    int64_t end;
    feed_forward_of(a, tp, r, &s.f0, &end);
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

static im_box of_kv(im_box b)
{
    b.kv = true;
    return b;
}

/* Part i (q, k, v) of a fused weight or bias that lies by kv head: the queries of its group, its keys, its values; each of `rows` inputs. */
static im_box by_head_box(const im_arch *a, const im_share *s, int64_t rows, int i)
{
    int64_t group = a->H / a->K, head = a->E * rows, each = i ? 1 : s->K ? s->H / s->K : 0;
    int64_t first = s->k0 * (group + 2) + (i ? group + i - 1 : s->h0 - s->k0 * group);
    return (im_box){
        .n = (size_t)s->K, .run = (size_t)(each * head), .global0 = (size_t)(first * head), .global_stride = (size_t)((group + 2) * head)};
}

/* q, k and v of a fused weight or bias: `rows` inputs */
static void fused_qkv(const im_arch *a, const im_share *s, bool in_out, int64_t rows, im_box *box)
{
    const int64_t first[3] = {s->h0, a->H + s->k0, a->H + a->K + s->k0}, n[3] = {s->H, s->K, s->K};
    for (int i = 0; i < 3; i++) {
        box[i] = a->qkv_by_head ? by_head_box(a, s, rows, i) : column_box(in_out, rows, (a->H + 2 * a->K) * a->E, first[i] * a->E, n[i] * a->E);
        box[i].kv = i > 0;
    }
}

static int boxes_of(const im_arch *a, const im_share *s, im_slot slot, bool fused, int64_t count, im_box *box)
{
    bool io = a->weights_in_out, all_heads = a->qk_norm == IM_QK_NORM_ALL;
    int64_t E = a->E;
    switch (slot) {
    case IM_SLOT_TOKENS:
    case IM_SLOT_HEAD_W: box[0] = rows_box(s->v0, s->V, a->D); return 1;
    case IM_SLOT_Q_W:
    case IM_SLOT_Q_B: {
        int64_t rows = slot == IM_SLOT_Q_W ? a->D : 1;
        if (fused) {
            fused_qkv(a, s, io && slot == IM_SLOT_Q_W, rows, box);
            return 3;
        }
        box[0] = column_box(io && slot == IM_SLOT_Q_W, rows, a->H * E, s->h0 * E, s->H * E);
        return 1;
    }
    case IM_SLOT_K_W:
    case IM_SLOT_V_W: box[0] = of_kv(column_box(io, a->D, a->K * E, s->k0 * E, s->K * E)); return 1;
    case IM_SLOT_K_B:
    case IM_SLOT_V_B: box[0] = of_kv(rows_box(s->k0 * E, s->K * E, 1)); return 1;
    case IM_SLOT_Q_NORM_W: box[0] = all_heads ? rows_box(s->h0 * E, s->H * E, 1) : rows_box(0, E, 1); return 1;
    case IM_SLOT_K_NORM_W: box[0] = all_heads ? of_kv(rows_box(s->k0 * E, s->K * E, 1)) : rows_box(0, E, 1); return 1;
    case IM_SLOT_O_W: box[0] = row_box(io, a->D, a->H * E, s->h0 * E, s->H * E); return 1;
    case IM_SLOT_UP_W:
    case IM_SLOT_GATE_W: {
        int64_t width = fused ? 2 * a->F : a->F;
        for (int i = 0; i < 1 + fused; i++)
            box[i] = column_box(io, a->D, width, i * a->F + s->f0, s->F);
        return 1 + fused;
    }
    case IM_SLOT_UP_B:
    case IM_SLOT_GATE_B: box[0] = rows_box(s->f0, s->F, 1); return 1;
    case IM_SLOT_DOWN_W: box[0] = row_box(io, a->D, a->F, s->f0, s->F); return 1;
    default: box[0] = (im_box){.n = 1, .run = (size_t)count}; return 1; /* replicated */
    }
}

int im_share_boxes(const im_arch *a, const im_share *s, im_slot slot, bool fused, int64_t count, im_box box[IM_LAYOUT_MAX_BOXES])
{
    bool whole = s->H == a->H && s->F == a->F && s->V == a->V; /* tp 1 */
    bool by_head = fused && a->qkv_by_head && (slot == IM_SLOT_Q_W || slot == IM_SLOT_Q_B);
    if (whole && !by_head) { /* one run */
        box[0] = (im_box){.n = 1, .run = (size_t)count};
        return 1;
    }
    int n = boxes_of(a, s, slot, fused, count, box);
    size_t width = 0, local = 0;
    for (int i = 0; i < n; i++)
        width += box[i].run;
    for (int i = 0; i < n; i++) {
        bool bands = box[i].n > 1 && !by_head;
        box[i].local0 = local;
        box[i].local_stride = bands ? width : box[i].run;
        local += bands ? box[i].run : box[i].n * box[i].run;
    }
    return n;
}

bool im_share_replicated(const im_arch *a, im_slot slot)
{
    switch (slot) {
    case IM_SLOT_POSITIONS:
    case IM_SLOT_NORM1_W:
    case IM_SLOT_NORM1_B:
    case IM_SLOT_NORM2_W:
    case IM_SLOT_NORM2_B:
    case IM_SLOT_O_B:
    case IM_SLOT_DOWN_B: return true;
    case IM_SLOT_Q_NORM_W:
    case IM_SLOT_K_NORM_W: return a->qk_norm == IM_QK_NORM_HEAD;
    default: return false;
    }
}
