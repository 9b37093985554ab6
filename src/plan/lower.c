/* lower: an instruction becomes ops. This file: the lowerer, its operands, linear layers and norms. */
#include "plan/lower.h"

#include <string.h>

/* ---- operands ------------------------------------------------------------- */

static im_use use_make(im_role role, int index, im_access access, im_view v)
{
    return (im_use){.o = {.role = (uint8_t)role, .index = (uint8_t)index, .access = (uint8_t)access, .slot = IM_SLOT_COUNT}, .v = v};
}

im_use im_use_weight(im_slot slot, im_view v)
{
    im_use u = use_make(IM_ROLE_WEIGHT, 0, IM_READ, v);
    u.o.slot = (uint8_t)slot;
    return u;
}

im_use im_use_grad(im_slot slot, bool first, im_view v)
{
    im_use u = use_make(IM_ROLE_GRAD, 0, first ? IM_WRITE : IM_ADD, v);
    u.o.slot = (uint8_t)slot;
    return u;
}

im_use im_use_edge(int unit, int index, im_access access, im_view v)
{
    im_use u = use_make(IM_ROLE_EDGE, index, access, v);
    u.o.unit = (int8_t)unit;
    return u;
}

im_use im_use_saved(im_saved s, im_access access, im_view v)
{
    return use_make(IM_ROLE_SAVED, (int)s, access, v);
}

im_use im_use_temp(int index, im_access access, im_view v)
{
    return use_make(IM_ROLE_TEMP, index, access, v);
}

im_use im_use_scalar(im_scalar s, im_access access, im_view v)
{
    return use_make(IM_ROLE_SCALAR, (int)s, access, v);
}

im_use im_use_carry(im_carry c, im_access access, im_view v)
{
    return use_make(IM_ROLE_CARRY, (int)c, access, v);
}

im_use im_use_kv(int index, im_access access, im_view v)
{
    return use_make(IM_ROLE_KV, index, access, v);
}

im_use im_use_bucket(im_role role, int index, im_access access, size_t first, im_view v)
{
    im_use u = use_make(role, index, access, v);
    u.o.first = first;
    return u;
}

im_use im_use_absent(void)
{
    return (im_use){.v = {.ndim = 0}};
}

int im_lower_temp(im_lowerer *L)
{
    return L->next_temp++;
}

bool im_lower_has(const im_lowerer *L, im_slot slot)
{
    return slot < IM_SLOT_COUNT && L->unit->param[slot] >= 0;
}

/* ---- ops ----------------------------------------------------------------------- */

static im_op *new_op(im_lowerer *L, const im_use *use, int n)
{
    if (L->nop == L->cap) {
        uint32_t cap = L->cap ? L->cap * 2 : 32;
        im_op *op = IM_ARENA_NEW(L->program->arena, im_op, cap);
        if (!op) {
            L->failed = true;
            L->nop = 0; /* the list is thrown away; write into what is there */
        } else {
            if (L->nop)
                memcpy(op, L->op, sizeof *op * L->nop);
            L->op = op;
            L->cap = cap;
        }
    }
    im_op *op = &L->op[L->nop++];
    *op = (im_op){.site_arg = -1, .sample_arg = -1, .bucket = -1};
    op->args.n = (uint8_t)n;
    op->args.threads = L->program->threads;
    for (int i = 0; i < n; i++) {
        op->use[i] = use[i].o;
        op->args.v[i] = use[i].v;
    }
    return op;
}

im_op *im_lower_op(im_lowerer *L, const im_op_kind *kind, const char *label, const im_use *use, int n)
{
    im_op *op = new_op(L, use, n);
    op->kind = kind;
    op->label = label;
    op->queue = IM_QUEUE_COMPUTE;
    return op;
}

im_op *im_lower_collective(im_lowerer *L, im_collective c, im_group_id group, unsigned queue, const char *label, const im_use *use, int n)
{
    im_op *op = new_op(L, use, n);
    op->collective = (uint8_t)c;
    op->group = (uint8_t)group;
    op->queue = (uint8_t)queue;
    op->label = label;
    return op;
}

/* ---- linear --------------------------------------------------------------------- */

/* The weight as matmul's (K,N) operand, whichever way the family stores it. */
static im_view weight_kn(const im_lowerer *L, int64_t K, int64_t N)
{
    return L->arch->weights_in_out ? im_view_2d(L->A, K, N) : im_view_transpose(im_view_2d(L->A, N, K));
}

void im_lower_linear(im_lowerer *L, const char *label, bool row, im_use x, im_slot w, im_slot b, int64_t K, int64_t N, im_use y)
{
    bool biased = im_lower_has(L, b) && (!row || L->program->layout->place.tp == 0);
    im_use bias = biased ? im_use_weight(b, im_view_1d(L->A, N)) : im_use_absent();
    im_op *op = im_lower_op(L, &im_op_matmul, label, IM_USES(x, im_use_weight(w, weight_kn(L, K, N)), y, bias));
    op->partial = row && L->tp > 1 ? 1u << IM_GROUP_TP : 0;
}

static im_use as(im_use u, im_access access, im_view v)
{
    u.o.access = (uint8_t)access;
    u.v = v;
    return u;
}

static void linear_weight_grad(im_lowerer *L, const char *label, im_use x, im_use dy, im_slot w, int64_t K, int64_t N, bool first)
{
    im_use dyt = as(dy, IM_READ, im_view_transpose(dy.v)), xt = as(x, IM_READ, im_view_transpose(x.v));
    im_op *op;
    if (L->arch->weights_in_out)
        op = im_lower_op(L, &im_op_matmul, label,
                         IM_USES(xt, as(dy, IM_READ, dy.v), im_use_grad(w, first, im_view_2d(IM_F32, K, N)), im_use_absent()));
    else
        op =
            im_lower_op(L, &im_op_matmul, label, IM_USES(dyt, as(x, IM_READ, x.v), im_use_grad(w, first, im_view_2d(IM_F32, N, K)), im_use_absent()));
    op->args.i[0] = !first;
}

void im_lower_linear_grad(im_lowerer *L, const char *label, bool row, im_use x, im_use dy, im_slot w, im_slot b, int64_t K, int64_t N, bool first,
                          im_use dx)
{
    if (dx.v.ndim) {
        im_op *op = im_lower_op(L, &im_op_matmul, label,
                                IM_USES(as(dy, IM_READ, dy.v), im_use_weight(w, im_view_transpose(weight_kn(L, K, N))), dx, im_use_absent()));
        op->partial = !row && L->tp > 1 ? 1u << IM_GROUP_TP : 0; /* each rank has a part of the outputs */
    }
    linear_weight_grad(L, label, x, dy, w, K, N, first);
    if (im_lower_has(L, b)) {
        im_op *op = im_lower_op(L, &im_op_colsum, label, IM_USES(as(dy, IM_READ, dy.v), im_use_grad(b, first, im_view_1d(IM_F32, N))));
        op->args.i[0] = !first;
    }
}

/* ---- tensor parallelism -------------------------------------------------------------------- */

static im_view all_rows_view(const im_lowerer *L)
{
    return im_view_2d(L->A, L->n, L->arch->D);
}

im_use im_lower_partial(im_lowerer *L, im_use y)
{
    return L->sp ? im_use_temp(im_lower_temp(L), IM_WRITE, all_rows_view(L)) : y;
}

void im_lower_sum(im_lowerer *L, const char *label, im_use partial, im_use y)
{
    if (L->tp == 1)
        return;
    if (!L->sp) {
        y.o.access = IM_MODIFY;
        im_lower_collective(L, IM_COLL_ALL_REDUCE, IM_GROUP_TP, IM_QUEUE_TP, label, &y, 1);
        return;
    }
    partial.o.access = IM_READ;
    im_op *op = im_lower_collective(L, IM_COLL_REDUCE_SCATTER, IM_GROUP_TP, IM_QUEUE_TP, label, IM_USES(partial, y));
    op->by_rows = true;
    op->rows = L->n;
    op->cols = L->arch->D;
}

im_use im_lower_all_rows(im_lowerer *L, const char *label, im_use x)
{
    if (!L->sp)
        return x;
    im_use all = im_use_temp(im_lower_temp(L), IM_WRITE, all_rows_view(L));
    im_op *op = im_lower_collective(L, IM_COLL_ALL_GATHER, IM_GROUP_TP, IM_QUEUE_TP, label, IM_USES(x, all));
    op->by_rows = true;
    op->rows = L->n;
    op->cols = L->arch->D;
    all.o.access = IM_READ;
    return all;
}

/* ---- norm, dropout ----------------------------------------------------------------- */

void im_lower_norm(im_lowerer *L, const char *label, im_use x, im_slot w, im_slot b, im_use y, im_use stat, im_use res, im_use sum)
{
    int64_t D = L->arch->D;
    im_use bias = im_lower_has(L, b) ? im_use_weight(b, im_view_1d(L->A, D)) : im_use_absent();
    im_op *op = im_lower_op(L, &im_op_norm, label, IM_USES(x, im_use_weight(w, im_view_1d(L->A, D)), bias, y, stat, res, sum));
    op->args.i[1] = L->arch->norm;
    op->args.f[0] = L->arch->norm_eps;
}

void im_lower_norm_grad(im_lowerer *L, const char *label, im_use x, im_slot w, im_slot b, im_use stat, im_use dy, im_use dx, im_use dres, bool first)
{
    int64_t D = L->arch->D;
    im_use db = im_lower_has(L, b) ? im_use_grad(b, first, im_view_1d(IM_F32, D)) : im_use_absent();
    im_op *op = im_lower_op(L, &im_op_norm_grad, label,
                            IM_USES(x, im_use_weight(w, im_view_1d(L->A, D)), stat, dy, dx, im_use_grad(w, first, im_view_1d(IM_F32, D)), db, dres));
    op->args.i[0] = !first;
    op->args.i[1] = L->arch->norm;
}

double im_lower_dropout_p(const im_lowerer *L, double of_config)
{
    if (L->key->mode != IM_PROGRAM_TRAIN)
        return 0;
    return L->program->plan->dropout < 0 ? of_config : L->program->plan->dropout;
}

void im_lower_dropout(im_lowerer *L, const char *label, double p, int site, im_use x, im_use y, im_use res)
{
    im_op *op = im_lower_op(L, &im_op_dropout, label, IM_USES(x, y, res));
    op->args.f[0] = p;
    op->args.i[0] = (int64_t)(L->program->plan->seed & INT64_MAX);
    op->args.i[1] = site;
    op->args.i[2] = L->T;
    op->args.i[5] = L->row0;
    op->site_arg = 1;
    op->sample_arg = 3;
}

/* ---- the entry --------------------------------------------------------------------- */

/* A unit of that type on this stage: all of them have the same slots and the same places within their buckets. */
static const im_unit *unit_of_type(const im_program *p, im_unit_type t)
{
    const im_model *m = p->plan->model;
    for (int i = 0; i < (int)m->nunit; i++)
        if (im_goal_has(&p->goal, i) && m->unit[i].type == t)
            return &m->unit[i];
    return &m->unit[0];
}

static void lower_load(im_lowerer *L)
{
    im_view v = im_view_2d(IM_I32, L->B, L->T);
    bool infer = L->key->mode == IM_PROGRAM_INFER;
    im_use seg = L->program->plan->documents ? im_use_carry(IM_CARRY_SEG, IM_WRITE, v) : im_use_absent();
    im_use targets = !infer || L->program->spec.all_logits ? im_use_carry(IM_CARRY_TARGETS, IM_WRITE, v) : im_use_absent();
    im_lower_collective(L, IM_COLL_LOAD, IM_GROUP_WORLD, IM_QUEUE_COPY, "batch",
                        IM_USES(im_use_carry(IM_CARRY_IDS, IM_WRITE, v), targets, im_use_carry(IM_CARRY_POS, IM_WRITE, v), seg));
}

/* A message between stages: what FORWARD or BACKWARD of the neighbouring unit gave. The target tells the channel. */
static void lower_message(im_lowerer *L)
{
    im_channel ch = (im_channel)L->key->target;
    bool in = ch == IM_CH_ACT_IN || ch == IM_CH_GRAD_IN, act = ch == IM_CH_ACT_IN || ch == IM_CH_ACT_OUT;
    im_view v = im_view_2d(L->A, L->nr, L->arch->D);
    /* unit -1: the last unit of the stage before (ACT_IN, GRAD_OUT), 0: the last unit of this stage */
    int unit = ch == IM_CH_ACT_IN || ch == IM_CH_GRAD_OUT ? -1 : 0;
    im_lower_collective(L, in ? IM_COLL_RECV : IM_COLL_SEND, IM_GROUP_PP, IM_QUEUE_PIPE + (unsigned)ch, act ? "activations" : "gradients",
                        IM_USES(im_use_edge(unit, act ? 0 : 1, in ? IM_WRITE : IM_READ, v)));
}

/* Under ZeRO 2 and 3 a gradient bucket lives for one micro-batch, in memory that others have used: the gaps between its
 * parameters are cleared before the first contribution, since the reduction reads the whole run. */
static void clear_padding(im_lowerer *L, bool own, bool tied)
{
    const im_program *p = L->program;
    for (int s = 0; s < IM_SLOT_COUNT && p->plan->zero >= 2; s++) {
        int32_t q = L->unit->param[s];
        if (q < 0 || !(s == IM_SLOT_TOKENS && L->arch->tied ? tied : own))
            continue;
        const im_bucket *b = &p->layout->bucket[L->model->param[q].bucket];
        bool last = q + 1 == b->first_param + b->nparam;
        size_t n = p->layout->param_count[q], from = p->layout->param_local[q] + n;
        size_t to = last ? b->count : p->layout->param_local[q + 1];
        if (to == from)
            continue;
        im_view gap = im_view_1d(IM_F32, (int64_t)(to - from));
        gap.offset = (int64_t)n;
        im_use u = im_use_grad((im_slot)s, true, gap);
        im_lower_op(L, &im_op_fill, "padding of the gradient", &u, 1);
    }
}

static im_status lower_unit_verb(im_lowerer *L)
{
    bool forward = L->key->verb == IM_FORWARD;
    if (L->key->verb == IM_RECOMPUTE) {
        im_lower_block_recompute(L);
        return IM_OK;
    }
    if (!forward)
        clear_padding(L, L->key->first, L->key->tied_first);
    switch ((im_unit_type)L->key->unit_type) {
    case IM_UNIT_EMBED: forward ? im_lower_embed_forward(L) : im_lower_embed_backward(L); return IM_OK;
    case IM_UNIT_BLOCK: forward ? im_lower_block_forward(L) : im_lower_block_backward(L); return IM_OK;
    default: return im_fail(L->ctx, IM_ERR_INTERNAL, "%s of the head: LOSS or SAMPLE is meant", im_verb_name((im_verb)L->key->verb));
    }
}

im_status im_lower(im_context *ctx, const im_program *p, const im_lower_key *key, im_arena *a, im_lowering *out)
{
    (void)a;
    im_lowerer L = {.ctx = ctx,
                    .program = p,
                    .arch = &p->plan->model->arch,
                    .model = p->plan->model,
                    .key = key,
                    .unit = unit_of_type(p, (im_unit_type)key->unit_type),
                    .A = p->plan->precision,
                    .B = key->B,
                    .T = key->T,
                    .n = key->B * key->T};
    const im_layout *l = p->layout;
    L.tp = l->mesh.tp;
    L.sp = l->sequence_parallel && p->spec.mode != IM_PROGRAM_INFER;
    L.H = l->share.H;
    L.K = l->share.K;
    L.F = l->share.F;
    L.V = l->share.V;
    L.v0 = l->share.v0;
    L.nr = L.n;
    if (L.sp) {
        int64_t end;
        im_part(L.n, L.tp, l->place.tp, &L.row0, &end);
        L.nr = end - L.row0;
    }
    switch ((im_verb)key->verb) {
    case IM_LOAD: lower_load(&L); break;
    case IM_SEND:
    case IM_RECV: lower_message(&L); break;
    case IM_FORWARD:
    case IM_RECOMPUTE:
    case IM_BACKWARD: IM_TRY(lower_unit_verb(&L)); break;
    case IM_BACKWARD_INPUT:
    case IM_BACKWARD_WEIGHT:
        IM_TRY(lower_unit_verb(&L));
        IM_TRY(im_lower_split(&L, key->verb == IM_BACKWARD_WEIGHT));
        break;
    case IM_LOSS:
        if (key->mode == IM_PROGRAM_TRAIN)
            clear_padding(&L, key->first, key->tied_first);
        im_lower_loss(&L);
        break;
    case IM_SAMPLE: im_lower_sample(&L); break;
    case IM_GATHER:
    case IM_RELEASE:
    case IM_REDUCE:
    case IM_COUNT:
    case IM_CLIP:
    case IM_UPDATE:
    case IM_SNAPSHOT: im_lower_bucket_verb(&L); break;
    default: return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s is not built by this version", im_verb_name((im_verb)key->verb));
    }
    if (L.failed)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the ops of %s", im_verb_name((im_verb)key->verb));
    *out = (im_lowering){L.op, L.nop};
    return IM_OK;
}
