/* lower: the embedding, forward and backward: table rows [+ positions] [-> norm] [-> dropout].
 *
 * Tensor parallel: the table's rows are split. A rank gives zero for ids of the others, and the first one adds the positions; the sum is the
 * embedding. What comes behind it is done on this rank's rows.
 */
#include "plan/lower.h"

static im_view share(const im_lowerer *L)
{
    return im_view_2d(L->A, L->nr, L->arch->D);
}

static im_view ids_view(const im_lowerer *L)
{
    return im_view_1d(IM_I32, L->n);
}

static im_view stat_view(const im_lowerer *L)
{
    return im_view_2d(IM_F32, L->nr, L->arch->norm == IM_NORM_LAYER ? 2 : 1);
}

static im_use read_of(im_use u)
{
    u.o.access = IM_READ;
    return u;
}

static im_use new_rows(im_lowerer *L)
{
    return im_use_temp(im_lower_temp(L), IM_WRITE, share(L));
}

/* The sum of the tables' rows, into y. */
static void look_up(im_lowerer *L, im_use y)
{
    const im_arch *a = L->arch;
    bool learned = a->learned_positions && L->program->layout->place.tp == 0;
    im_use found = im_lower_partial(L, y);
    im_op *op = im_lower_op(L, &im_op_embed, "embedding",
                            IM_USES(im_use_carry(IM_CARRY_IDS, IM_READ, ids_view(L)), im_use_weight(IM_SLOT_TOKENS, im_view_2d(L->A, L->V, a->D)),
                                    found, learned ? im_use_carry(IM_CARRY_POS, IM_READ, ids_view(L)) : im_use_absent(),
                                    learned ? im_use_weight(IM_SLOT_POSITIONS, im_view_2d(L->A, a->P, a->D)) : im_use_absent()));
    op->args.f[0] = 1;
    op->args.i[0] = L->v0;
    op->args.i[1] = a->V;
    op->partial = L->tp > 1 ? 1u << IM_GROUP_TP : 0;
    im_lower_sum(L, "embedding", found, y);
}

void im_lower_embed_forward(im_lowerer *L)
{
    bool normed = im_lower_has(L, IM_SLOT_NORM1_W), train = L->key->mode == IM_PROGRAM_TRAIN;
    double p = im_lower_dropout_p(L, L->arch->dropout_embed);
    im_use out = im_use_edge(0, 0, IM_WRITE, share(L)), y = p > 0 ? new_rows(L) : out;
    if (normed) { /* not remade by RECOMPUTE, which is of blocks: kept whatever the policy */
        im_use x = train ? im_use_saved(IM_SAVED_SUM, IM_WRITE, share(L)) : new_rows(L);
        im_use stat = train ? im_use_saved(IM_SAVED_STAT1, IM_WRITE, stat_view(L)) : im_use_temp(im_lower_temp(L), IM_WRITE, stat_view(L));
        look_up(L, x);
        im_lower_norm(L, "embedding's norm", read_of(x), IM_SLOT_NORM1_W, IM_SLOT_NORM1_B, y, stat, im_use_absent(), im_use_absent());
    } else {
        look_up(L, y);
    }
    if (p > 0)
        im_lower_dropout(L, "embedding dropout", p, 0, read_of(y), out, im_use_absent());
}

void im_lower_embed_backward(im_lowerer *L)
{
    const im_arch *a = L->arch;
    double p = im_lower_dropout_p(L, a->dropout_embed);
    im_use dy = im_use_edge(0, 1, IM_READ, share(L));
    if (p > 0) {
        im_use dx = new_rows(L);
        im_lower_dropout(L, "embedding dropout", p, 0, dy, dx, im_use_absent());
        dy = read_of(dx);
    }
    if (im_lower_has(L, IM_SLOT_NORM1_W)) {
        im_use dx = new_rows(L);
        im_lower_norm_grad(L, "embedding's norm", im_use_saved(IM_SAVED_SUM, IM_READ, share(L)), IM_SLOT_NORM1_W, IM_SLOT_NORM1_B,
                           im_use_saved(IM_SAVED_STAT1, IM_READ, stat_view(L)), dy, dx, im_use_absent(), L->key->first);
        dy = read_of(dx);
    }
    dy = im_lower_all_rows(L, "embedding", dy);
    bool first = a->tied ? L->key->tied_first : L->key->first;
    im_op *op = im_lower_op(
        L, &im_op_embed_grad, "embedding",
        IM_USES(im_use_carry(IM_CARRY_IDS, IM_READ, ids_view(L)), dy, im_use_grad(IM_SLOT_TOKENS, first, im_view_2d(IM_F32, L->V, a->D))));
    op->args.i[0] = !first;
    op->args.i[1] = L->v0;
    op->args.i[2] = a->V;
    if (a->learned_positions) { /* every rank has all rows here: the same sum on each */
        op = im_lower_op(L, &im_op_embed_grad, "positions",
                         IM_USES(im_use_carry(IM_CARRY_POS, IM_READ, ids_view(L)), dy,
                                 im_use_grad(IM_SLOT_POSITIONS, L->key->first, im_view_2d(IM_F32, a->P, a->D))));
        op->args.i[0] = !L->key->first;
    }
}
