/* lower_split: a block's backward in two parts.
 *
 * BACKWARD's op list is written as ever and then cut: ops that give nothing but gradients of parameters belong to BACKWARD_WEIGHT, the others to
 * BACKWARD_INPUT. What the second part reads of the first is kept in between as `stash`: the gradients of the linear layers' outputs, and of
 * norms the sums over rows, which come with the gradient of the norm's input and are added to the bucket later. Rows that sequence parallelism gathers are
 * not kept but gathered again.
 */
#include "plan/lower.h"

#include <string.h>

enum { IM_SPLIT_TEMPS = 256 };

typedef struct split {
    im_lowerer *L;
    const im_op *whole; /* BACKWARD's list */
    uint32_t n;
    int16_t stash[IM_SPLIT_TEMPS];   /* of each temp; -1: it stays one */
    int32_t gather[IM_SPLIT_TEMPS];  /* the op that gathers this temp; -1: it is not gathered */
    int32_t written[IM_SPLIT_TEMPS]; /* the last op that writes it */
    int next;                        /* stash index */
    bool wrong;                      /* a temp changes behind the op that reads it */
} split;

static bool is_temp(const im_op *op, int i)
{
    return op->args.v[i].ndim && op->use[i].role == IM_ROLE_TEMP;
}

static bool is_written(const im_op *op, int i)
{
    return op->args.v[i].ndim && op->use[i].access != IM_READ;
}

static bool only_gradients(const im_op *op)
{
    bool any = false;
    for (int i = 0; i < op->args.n; i++) {
        if (!is_written(op, i))
            continue;
        if (op->use[i].role != IM_ROLE_GRAD)
            return false;
        any = true;
    }
    return any;
}

static bool is_gradient(const im_op *op, int i)
{
    return is_written(op, i) && op->use[i].role == IM_ROLE_GRAD;
}

/* ---- what is kept ----------------------------------------------------------------- */

static void keep(split *s, uint8_t temp)
{
    if (s->stash[temp] < 0)
        s->stash[temp] = (int16_t)s->next++;
}

static void find_kept(split *s)
{
    for (int t = 0; t < IM_SPLIT_TEMPS; t++)
        s->stash[t] = -1, s->gather[t] = -1, s->written[t] = -1;
    for (uint32_t k = 0; k < s->n; k++)
        for (int i = 0; i < s->whole[k].args.n; i++)
            if (is_temp(&s->whole[k], i) && is_written(&s->whole[k], i)) {
                s->written[s->whole[k].use[i].index] = (int32_t)k;
                s->gather[s->whole[k].use[i].index] = s->whole[k].collective == IM_COLL_ALL_GATHER ? (int32_t)k : -1;
            }
    for (uint32_t k = 0; k < s->n; k++) {
        const im_op *op = &s->whole[k];
        for (int i = 0; only_gradients(op) && i < op->args.n; i++) {
            if (!is_temp(op, i))
                continue;
            int32_t g = s->gather[op->use[i].index];
            s->wrong |= s->written[op->use[i].index] > (int32_t)k;
            if (g < 0)
                keep(s, op->use[i].index);
            else if (is_temp(&s->whole[g], 0))
                keep(s, s->whole[g].use[0].index);
        }
    }
}

/* ---- the lists ------------------------------------------------------------------------ */

static im_op *append(split *s, const im_op *op)
{
    im_op *copy = im_lower_op(s->L, op->kind, op->label, NULL, 0);
    *copy = *op;
    for (int i = 0; i < copy->args.n; i++)
        if (is_temp(copy, i) && s->stash[copy->use[i].index] >= 0) {
            copy->use[i].role = IM_ROLE_STASH;
            copy->use[i].index = (uint8_t)s->stash[copy->use[i].index];
        }
    return copy;
}

/* Whether an op of the first part reads the temp. */
static bool first_part_reads(const split *s, uint8_t temp)
{
    for (uint32_t k = 0; k < s->n; k++)
        for (int i = 0; !only_gradients(&s->whole[k]) && i < s->whole[k].args.n; i++)
            if (is_temp(&s->whole[k], i) && s->whole[k].use[i].index == temp && s->whole[k].use[i].access != IM_WRITE)
                return true;
    return false;
}

/* Gradients of parameters that come with others: written to a stash of their own, not added to the bucket. i[0] of such ops says whether they add. */
static void first_part(split *s)
{
    for (uint32_t k = 0; k < s->n; k++) {
        const im_op *op = &s->whole[k];
        if (only_gradients(op) || (op->collective == IM_COLL_ALL_GATHER && is_temp(op, 1) && !first_part_reads(s, op->use[1].index)))
            continue;
        im_op *copy = append(s, op);
        for (int i = 0; i < op->args.n; i++) {
            if (!is_gradient(op, i))
                continue;
            copy->use[i] = (im_operand){.role = IM_ROLE_STASH, .index = (uint8_t)s->next++, .access = IM_WRITE, .slot = IM_SLOT_COUNT};
            copy->args.i[0] = 0;
        }
    }
}

static void add_stash(split *s, const im_op *op, int i)
{
    im_use grad = {.o = op->use[i], .v = op->args.v[i]}, kept = {.v = op->args.v[i]};
    kept.o = (im_operand){.role = IM_ROLE_STASH, .index = (uint8_t)s->next++, .access = IM_READ, .slot = IM_SLOT_COUNT};
    if (grad.o.access == IM_WRITE)
        im_lower_op(s->L, &im_op_copy, op->label, IM_USES(kept, grad));
    else
        im_lower_op(s->L, &im_op_add, op->label, IM_USES(grad, kept, grad));
}

static void second_part(split *s)
{
    bool gathered[IM_SPLIT_TEMPS] = {false};
    for (uint32_t k = 0; k < s->n; k++) {
        const im_op *op = &s->whole[k];
        if (!only_gradients(op)) {
            for (int i = 0; i < op->args.n; i++)
                if (is_gradient(op, i))
                    add_stash(s, op, i);
            continue;
        }
        for (int i = 0; i < op->args.n; i++) {
            uint8_t t = op->use[i].index;
            if (!is_temp(op, i) || s->gather[t] < 0 || gathered[t])
                continue;
            append(s, &s->whole[s->gather[t]]);
            gathered[t] = true;
        }
        append(s, op);
    }
}

im_status im_lower_split(im_lowerer *L, bool weight_part)
{
    split s = {.L = L, .whole = L->op, .n = L->nop};
    if (L->failed)
        return IM_OK; /* told by the caller */
    find_kept(&s);
    L->op = NULL;
    L->nop = L->cap = 0;
    if (weight_part)
        second_part(&s);
    else
        first_part(&s);
    if (s.wrong || s.next > UINT8_MAX)
        return im_fail(L->ctx, IM_ERR_INTERNAL, "the backward of a block cannot be split: %s",
                       s.wrong ? "a value changes behind the product that reads it" : "too many values to keep");
    return IM_OK;
}
