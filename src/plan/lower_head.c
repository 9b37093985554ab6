/* lower: the head. LOSS is its forward and, in training, its whole backward, by chunks of rows, so that the logits of a
 * micro-batch are never held at once:
 *
 *   y = norm(x);  for each chunk of c rows:  logits = y W^T (fp32) -> loss, dlogits;  dy = dlogits W;  dW += dlogits^T y
 *
 * Tensor parallel: a rank has some rows of the vocabulary. Each tells for every row its largest logit, the sum of exponentials above it, the target's
 * logit if it has it and the sum of all; these four numbers are gathered, and every rank derives the same loss and its own dlogits from
 * them, in the order of ranks. dy is a partial sum.
 */
#include "plan/lower.h"

enum { IM_LOGITS_BYTES = 64 << 20 };

static im_slot head_weight(const im_lowerer *L)
{
    return L->arch->tied ? IM_SLOT_TOKENS : IM_SLOT_HEAD_W;
}

/* Rows of logits held at once: a multiple of 32 that fits the budget. */
static int64_t chunk_rows(const im_lowerer *L)
{
    int64_t c = IM_LOGITS_BYTES / (L->V * 4) / 32 * 32;
    if (c < 32)
        c = 32;
    return c < L->n ? c : L->n;
}

static im_view slice(im_dtype t, int64_t first, int64_t rows, int64_t cols)
{
    return im_view_2d_stride(t, rows, cols, cols, first * cols);
}

static im_view stat_view(const im_lowerer *L)
{
    return im_view_2d(IM_F32, L->nr, L->arch->norm == IM_NORM_LAYER ? 2 : 1);
}

static im_use read_as(im_use u, im_view v)
{
    u.o.access = IM_READ;
    u.v = v;
    return u;
}

/* logits (fp32) of `rows` given by the view of y */
static void logits_of(im_lowerer *L, im_use y, im_use logits)
{
    const im_arch *a = L->arch;
    im_use w = im_use_weight(head_weight(L), im_view_transpose(im_view_2d(L->A, L->V, a->D)));
    im_lower_op(L, &im_op_matmul, "logits", IM_USES(y, w, logits, im_use_absent()));
}

/* dy of the chunk's rows and the head's weight gradient, from dlogits */
static void chunk_backward(im_lowerer *L, im_use dlogits, im_use y, im_use dy, bool first)
{
    const im_arch *a = L->arch;
    im_slot w = head_weight(L);
    im_op *op = im_lower_op(L, &im_op_matmul, "logits", IM_USES(dlogits, im_use_weight(w, im_view_2d(L->A, L->V, a->D)), dy, im_use_absent()));
    op->partial = L->tp > 1 ? 1u << IM_GROUP_TP : 0;
    im_use dt = read_as(dlogits, im_view_transpose(dlogits.v));
    op = im_lower_op(L, &im_op_matmul, "logits", IM_USES(dt, y, im_use_grad(w, first, im_view_2d(IM_F32, L->V, a->D)), im_use_absent()));
    op->args.i[0] = !first;
}

typedef struct loss_values {
    im_use y, dy, logits, dlogits; /* dlogits is logits itself in fp32 */
    im_use stat, stats;            /* tp > 1: four numbers a row, of this rank and of all */
    bool grads;
} loss_values;

/* Loss (added to the scalar unless `start`) and, where wanted, dlogits of c rows from row r; log-probabilities of the targets to `row`. */
static void cross_entropy(im_lowerer *L, const loss_values *t, int64_t r, int64_t c, bool start, im_use row)
{
    const im_arch *a = L->arch;
    im_use logits = t->logits, dlogits = t->dlogits, target = im_use_carry(IM_CARRY_TARGETS, IM_READ, im_view_1d(IM_I32, c));
    im_use loss = im_use_scalar(IM_SCALAR_LOSS, start ? IM_WRITE : IM_ADD, im_view_1d(IM_F64, 1));
    logits = read_as(logits, im_view_2d(IM_F32, c, L->V));
    dlogits.v = im_view_2d(L->A, c, L->V);
    dlogits.o.access = L->A == IM_F32 ? IM_MODIFY : IM_WRITE;
    if (!t->grads)
        dlogits = im_use_absent();
    target.v.offset = r;
    double smoothing = L->key->mode == IM_PROGRAM_TRAIN ? L->program->plan->label_smoothing : 0;
    im_op *op;
    if (L->tp == 1) {
        op = im_lower_op(L, &im_op_xent, "cross-entropy", IM_USES(logits, target, loss, dlogits, row));
        op->args.i[0] = a->V;
    } else {
        im_use stat = t->stat, stats = t->stats;
        stat.v = im_view_2d(IM_F64, c, 4);
        stats.v = im_view_make(IM_F64, 3, (int64_t[]){L->tp, c, 4});
        op = im_lower_op(L, &im_op_xent_stat, "cross-entropy", IM_USES(logits, target, stat));
        op->args.i[0] = L->v0;
        op->args.i[2] = a->V;
        op = im_lower_collective(L, IM_COLL_ALL_GATHER, IM_GROUP_TP, IM_QUEUE_TP, "cross-entropy", IM_USES(read_as(stat, stat.v), stats));
        op->by_rows = true;
        op->rows = c * L->tp; /* c rows from each */
        op->cols = 4;
        op = im_lower_op(L, &im_op_xent_merge, "cross-entropy", IM_USES(logits, target, read_as(stats, stats.v), loss, dlogits, row));
        op->args.i[0] = L->v0;
        op->args.i[2] = a->V;
    }
    op->args.i[1] = !start;
    op->args.f[0] = smoothing;
}

static loss_values loss_temps(im_lowerer *L, int64_t c, bool grads)
{
    loss_values t = {.grads = grads};
    t.logits = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(IM_F32, c, L->V));
    t.dlogits = L->A == IM_F32 || !grads ? t.logits : im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(L->A, c, L->V));
    if (L->tp > 1) {
        t.stat = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(IM_F64, c, 4));
        t.stats = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_make(IM_F64, 3, (int64_t[]){L->tp, c, 4}));
    }
    return t;
}

static void loss_chunk(im_lowerer *L, const loss_values *t, int64_t r, int64_t c)
{
    const im_arch *a = L->arch;
    im_use logits = t->logits, y = read_as(t->y, slice(L->A, r, c, a->D));
    logits.v = im_view_2d(IM_F32, c, L->V);
    logits_of(L, y, logits);
    cross_entropy(L, t, r, c, r == 0 && L->key->first_loss, im_use_absent());
    if (!t->grads)
        return;
    im_use dy = t->dy;
    dy.v = slice(L->A, r, c, a->D);
    chunk_backward(L, read_as(t->dlogits, im_view_2d(L->A, c, L->V)), y, dy, r == 0 && (a->tied ? L->key->tied_first : L->key->first));
}

void im_lower_loss(im_lowerer *L)
{
    const im_arch *a = L->arch;
    im_view share = im_view_2d(L->A, L->nr, a->D), rows = im_view_2d(L->A, L->n, a->D);
    bool grads = L->key->mode == IM_PROGRAM_TRAIN, start = L->key->first_loss;
    int64_t c = chunk_rows(L);
    im_use x = im_use_edge(-1, 0, IM_READ, share), stat = im_use_temp(im_lower_temp(L), IM_WRITE, stat_view(L));
    im_use y = im_use_temp(im_lower_temp(L), IM_WRITE, share);
    loss_values t = loss_temps(L, c, grads);
    im_lower_norm(L, "last norm", x, IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, y, stat, im_use_absent(), im_use_absent());
    t.y = im_lower_all_rows(L, "last norm", read_as(y, share));
    im_use dy = im_use_temp(im_lower_temp(L), IM_WRITE, share);
    t.dy = im_lower_partial(L, dy);
    im_op *op = im_lower_op(L, &im_op_count, "token count",
                            IM_USES(im_use_carry(IM_CARRY_TARGETS, IM_READ, im_view_1d(IM_I32, L->n)),
                                    im_use_scalar(IM_SCALAR_TOKENS, start ? IM_WRITE : IM_ADD, im_view_1d(IM_F64, 1))));
    op->args.i[0] = !start;
    int64_t r = 0;
    do { /* a micro-batch without samples too: its gradients are zero, and written */
        loss_chunk(L, &t, r, r + c < L->n ? c : L->n - r);
        r += c;
    } while (r < L->n);
    if (!grads)
        return;
    t.dy.v = rows;
    im_lower_sum(L, "logits", t.dy, dy);
    im_lower_norm_grad(L, "last norm", x, IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, read_as(stat, stat.v), read_as(dy, share),
                       im_use_edge(-1, 1, IM_WRITE, share), im_use_absent(), L->key->first);
}

/* ---- generation ----------------------------------------------------------------- */

/* Log-probabilities of given targets for all rows; the loss scalar of the program is overwritten. */
static void row_logprobs(im_lowerer *L, im_use y)
{
    int64_t c = chunk_rows(L);
    loss_values t = loss_temps(L, c, false);
    for (int64_t r = 0; r < L->n; r += c) {
        int64_t k = r + c < L->n ? c : L->n - r;
        im_use logits = t.logits, row = im_use_carry(IM_CARRY_ROW, IM_WRITE, im_view_1d(IM_F32, k));
        logits.v = im_view_2d(IM_F32, k, L->V);
        row.v.offset = r;
        logits_of(L, read_as(y, slice(L->A, r, k, L->arch->D)), logits);
        cross_entropy(L, &t, r, k, r == 0, row);
    }
}

/* (B,V) of the last token of each sequence, from all ranks that have rows of the vocabulary. */
static im_use last_logits(im_lowerer *L, im_use y)
{
    const im_arch *a = L->arch;
    im_use own = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(IM_F32, L->B, L->V));
    logits_of(L, read_as(y, im_view_2d_stride(L->A, L->B, a->D, L->T * a->D, (L->T - 1) * a->D)), own);
    if (L->tp == 1)
        return read_as(own, own.v);
    im_use all = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(IM_F32, L->B, a->V));
    for (int64_t b = 0; b < L->B; b++) {
        im_use part = read_as(own, slice(IM_F32, b, 1, L->V)), row = all;
        row.v = slice(IM_F32, b, 1, a->V);
        im_op *op = im_lower_collective(L, IM_COLL_ALL_GATHER, IM_GROUP_TP, IM_QUEUE_TP, "logits", IM_USES(part, row));
        op->by_rows = true;
        op->rows = a->V;
        op->cols = 1;
    }
    return read_as(all, all.v);
}

void im_lower_sample(im_lowerer *L)
{
    const im_arch *a = L->arch;
    const im_program_spec *s = &L->program->spec;
    im_use y = im_use_temp(im_lower_temp(L), IM_WRITE, im_view_2d(L->A, L->n, a->D)), stat = im_use_temp(im_lower_temp(L), IM_WRITE, stat_view(L));
    im_lower_norm(L, "last norm", im_use_edge(-1, 0, IM_READ, y.v), IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, y, stat, im_use_absent(), im_use_absent());
    if (s->all_logits)
        row_logprobs(L, y);
    im_use logits = last_logits(L, y);
    if (L->program->layout->place.tp) /* the first rank draws */
        return;
    im_op *op = im_lower_op(L, &im_op_sample, "sample",
                            IM_USES(logits, im_use_carry(IM_CARRY_SAMPLE_ID, IM_WRITE, im_view_1d(IM_I32, L->B)),
                                    im_use_carry(IM_CARRY_SAMPLE_LOGPROB, IM_WRITE, im_view_1d(IM_F32, L->B))));
    op->args.f[0] = s->temperature;
    op->args.f[1] = s->top_p;
    op->args.i[0] = s->top_k;
    op->args.i[1] = (int64_t)(s->seed & INT64_MAX);
    op->args.i[2] = a->V;
}
