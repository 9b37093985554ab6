/* heap: first fit over a list of blocks. A rank has dozens of tensors, not millions: the list is walked. */
#include "api/internal.h"

#include <stdlib.h>

enum { STEP = 64 };

im_status im_api_heap_init(im_context *ctx, im_api_heap *h, size_t size)
{
    void *p;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_api_block), &p));
    *h = (im_api_heap){.first = p, .size = size / STEP * STEP};
    h->first->nbytes = h->size;
    return IM_OK;
}

void im_api_heap_fini(im_api_heap *h)
{
    for (im_api_block *b = h->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *h = (im_api_heap){0};
}

static size_t free_bytes(const im_api_heap *h, size_t *largest)
{
    size_t sum = 0;
    *largest = 0;
    for (const im_api_block *b = h->first; b; b = b->next) {
        sum += b->used ? 0 : b->nbytes;
        *largest = !b->used && b->nbytes > *largest ? b->nbytes : *largest;
    }
    return sum;
}

static im_status refuse(im_context *ctx, const im_api_heap *h, size_t nbytes)
{
    char want[32], whole[32], left[32], most[32];
    size_t largest, sum = free_bytes(h, &largest);
    return im_fail(ctx, IM_ERR_NOMEM, "a tensor of %s: the rank has %s for tensors, of which %s are free, %s in one piece (im_ranks_config.memory)",
                   im_format_bytes(want, sizeof want, (double)nbytes), im_format_bytes(whole, sizeof whole, (double)h->size),
                   im_format_bytes(left, sizeof left, (double)sum), im_format_bytes(most, sizeof most, (double)largest));
}

im_status im_api_heap_take(im_context *ctx, im_api_heap *h, size_t nbytes, im_api_block **out, bool *zero)
{
    im_api_block *b = h->first;
    void *p;
    if (nbytes > h->size)
        return refuse(ctx, h, nbytes);
    size_t need = (nbytes + STEP - 1) / STEP * STEP;
    need = need ? need : STEP;
    while (b && (b->used || b->nbytes < need))
        b = b->next;
    if (!b)
        return refuse(ctx, h, nbytes);
    if (b->nbytes > need) {
        IM_TRY(im_alloc(ctx, 1, sizeof *b, &p));
        im_api_block *rest = p;
        *rest = (im_api_block){.prev = b, .next = b->next, .offset = b->offset + need, .nbytes = b->nbytes - need};
        if (b->next)
            b->next->prev = rest;
        b->next = rest;
        b->nbytes = need;
    }
    b->used = true;
    *zero = b->offset >= h->fresh;
    if (b->offset + b->nbytes > h->fresh)
        h->fresh = b->offset + b->nbytes;
    *out = b;
    return IM_OK;
}

/* `next` becomes part of b. */
static void merge(im_api_block *b, im_api_block *next)
{
    b->nbytes += next->nbytes;
    b->next = next->next;
    if (next->next)
        next->next->prev = b;
    free(next);
}

void im_api_heap_give(im_api_heap *h, im_api_block *b)
{
    (void)h;
    b->used = false;
    if (b->next && !b->next->used)
        merge(b, b->next);
    if (b->prev && !b->prev->used)
        merge(b->prev, b);
}
