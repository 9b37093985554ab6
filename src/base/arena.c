/* Host arena: chunks from calloc, freed together. Not for use by two threads at once. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 16u
#define FIRST_CHUNK ((size_t)4096)
#define LARGEST_CHUNK ((size_t)1 << 20)

typedef struct chunk {
    struct chunk *next;
    size_t used, cap; /* of the bytes behind the header */
} chunk;

#define HEADER ((sizeof(chunk) + ALIGN - 1) / ALIGN * ALIGN)

struct im_arena {
    im_context *ctx;
    chunk *head; /* the chunk being filled */
    size_t next_cap;
};

im_status im_arena_create(im_context *ctx, im_arena **out)
{
    im_arena *a = calloc(1, sizeof *a);
    if (!a)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for an arena");
    a->ctx = ctx;
    a->next_cap = FIRST_CHUNK;
    *out = a;
    return IM_OK;
}

void im_arena_destroy(im_arena *a)
{
    if (!a)
        return;
    for (chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

size_t im_arena_bytes(const im_arena *a)
{
    size_t n = 0;
    for (const chunk *c = a->head; c; c = c->next)
        n += c->used;
    return n;
}

static chunk *add_chunk(im_arena *a, size_t nbytes)
{
    size_t cap = nbytes > a->next_cap / 4 ? nbytes : a->next_cap;
    if (cap > SIZE_MAX - HEADER)
        return NULL;
    chunk *c = calloc(1, HEADER + cap);
    if (!c)
        return NULL;
    c->cap = cap;
    if (cap == a->next_cap || !a->head) {
        c->next = a->head;
        a->head = c;
        if (a->next_cap < LARGEST_CHUNK)
            a->next_cap *= 2;
    } else { /* a large one of its own: the chunk being filled stays in front */
        c->next = a->head->next;
        a->head->next = c;
    }
    return c;
}

void *im_arena_alloc(im_arena *a, size_t nbytes)
{
    if (nbytes > SIZE_MAX - ALIGN) {
        im_fail(a->ctx, IM_ERR_NOMEM, "an allocation of %zu bytes is more than there can be", nbytes);
        return NULL;
    }
    size_t need = nbytes == 0 ? ALIGN : (nbytes + ALIGN - 1) / ALIGN * ALIGN;
    chunk *c = a->head;
    if (!c || c->cap - c->used < need) {
        c = add_chunk(a, need);
        if (!c) {
            im_fail(a->ctx, IM_ERR_NOMEM, "no memory for %zu bytes", nbytes);
            return NULL;
        }
    }
    void *p = (char *)c + HEADER + c->used;
    c->used += need;
    return p;
}

void *im_arena_grow(im_arena *a, void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    size_t next = *cap ? 2 * *cap : 64;
    void *more = next > SIZE_MAX / size ? NULL : im_arena_alloc(a, next * size);
    if (!more)
        return NULL;
    if (n)
        memcpy(more, array, n * size);
    *cap = next;
    return more;
}

char *im_arena_strdup(im_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = im_arena_alloc(a, n);
    if (p)
        memcpy(p, s, n);
    return p;
}

char *im_arena_printf(im_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : im_arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

im_status im_alloc(im_context *ctx, size_t count, size_t size, void **out)
{
    size_t nbytes;
    void *p = __builtin_mul_overflow(count, size, &nbytes) ? NULL : calloc(1, nbytes ? nbytes : 1);
    if (!p)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu times %zu bytes", count, size);
    *out = p;
    return IM_OK;
}
