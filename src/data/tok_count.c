/* Counted words. */
#include "data/tok_train_parts.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 12 };

im_status im_tok_counts_create(im_context *ctx, im_tok_counts *c)
{
    *c = (im_tok_counts){.ctx = ctx, .nslot = FIRST_SLOTS};
    IM_TRY(im_arena_create(ctx, &c->text));
    im_status status = im_alloc(ctx, c->nslot, sizeof *c->slot, (void **)&c->slot);
    if (status != IM_OK)
        im_arena_destroy(c->text);
    return status;
}

void im_tok_counts_free(im_tok_counts *c)
{
    im_arena_destroy(c->text);
    free(c->slot);
    *c = (im_tok_counts){0};
}

static im_tok_count *place(const im_tok_counts *c, const char *s, size_t n)
{
    size_t i = (size_t)im_hash64(s, n, 0) & (c->nslot - 1);
    while (c->slot[i].s && (c->slot[i].n != n || memcmp(c->slot[i].s, s, n)))
        i = (i + 1) & (c->nslot - 1);
    return &c->slot[i];
}

static im_status widen(im_tok_counts *c)
{
    im_tok_count *was = c->slot, *slots;
    size_t old = c->nslot;
    IM_TRY(im_alloc(c->ctx, 2 * old, sizeof *slots, (void **)&slots));
    c->slot = slots;
    c->nslot = 2 * old;
    for (size_t i = 0; i < old; i++)
        if (was[i].s)
            *place(c, was[i].s, was[i].n) = was[i];
    free(was);
    return IM_OK;
}

im_status im_tok_counts_add(im_tok_counts *c, const char *s, size_t n, uint64_t count)
{
    im_tok_count *p = place(c, s, n);
    if (p->s) {
        p->count += count;
        return IM_OK;
    }
    if (2 * (c->n + 1) > c->nslot) {
        IM_TRY(widen(c));
        p = place(c, s, n);
    }
    char *text = im_arena_alloc(c->text, n + 1);
    if (!text)
        return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for %zu different words", c->n + 1);
    memcpy(text, s, n);
    *p = (im_tok_count){text, n, count};
    c->n++;
    return IM_OK;
}
