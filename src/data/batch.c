/* The belt that batches travel on: batch i lies in slot i mod n, and goes through filled, taken, done and free in this order. */
#include "data/batch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNDER_WAY = 64 << 20, KEEP = 4 << 20 }; /* bytes of text at once, when there is more than one batch; a buffer that is kept */

typedef struct slot {
    im_batch batch;
    bool done;
} slot;

struct im_belt {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool quit; /* written under the lock, read by who waits for an input */
    bool ended;       /* the last batch was filled */
    int64_t filled, taken, written;
    size_t bytes; /* of batches that are filled and not yet free */
    int nslot;
    slot *slot;
};

im_status im_belt_create(im_context *ctx, int workers, im_belt **out)
{
    im_belt *r;
    IM_TRY(im_alloc(ctx, 1, sizeof *r, (void **)&r));
    r->nslot = 2 * workers + 3;
    im_status status = im_alloc(ctx, (size_t)r->nslot, sizeof *r->slot, (void **)&r->slot);
    if (status != IM_OK) {
        free(r);
        return status;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    *out = r;
    return IM_OK;
}

void im_belt_destroy(im_belt *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->nslot; i++) {
        free(r->slot[i].batch.raw);
        free(r->slot[i].batch.record);
        im_chat_ids_free(&r->slot[i].batch.ids);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r->slot);
    free(r);
}

const atomic_bool *im_belt_quit_flag(const im_belt *r)
{
    return &r->quit;
}

static slot *slot_of(im_belt *r, int64_t i)
{
    return &r->slot[i % r->nslot];
}

static void empty(im_batch *b)
{
    im_batch keep = *b;
    if (keep.raw_cap > KEEP) {
        free(keep.raw);
        keep.raw = NULL;
        keep.raw_cap = 0;
    }
    if (keep.ids.ids.cap > KEEP) {
        im_chat_ids_free(&keep.ids);
        keep.ids = (im_chat_ids){0};
    }
    keep.ids.ids.n = 0;
    *b = (im_batch){.raw = keep.raw, .raw_cap = keep.raw_cap, .record = keep.record, .record_cap = keep.record_cap, .ids = keep.ids};
}

im_batch *im_belt_fill(im_belt *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->quit && (r->filled - r->written >= r->nslot || (r->bytes > UNDER_WAY && r->filled > r->written)))
        pthread_cond_wait(&r->changed, &r->lock);
    im_batch *b = r->quit ? NULL : &slot_of(r, r->filled)->batch;
    pthread_mutex_unlock(&r->lock);
    if (b)
        empty(b);
    return b;
}

void im_belt_filled(im_belt *r, im_batch *b)
{
    pthread_mutex_lock(&r->lock);
    slot_of(r, r->filled)->done = false;
    r->filled++;
    r->bytes += b->nraw;
    r->ended |= b->last;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

im_batch *im_belt_take(im_belt *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->quit && r->taken == r->filled && !r->ended)
        pthread_cond_wait(&r->changed, &r->lock);
    im_batch *b = r->quit || r->taken == r->filled ? NULL : &slot_of(r, r->taken++)->batch;
    pthread_mutex_unlock(&r->lock);
    return b;
}

void im_belt_done(im_belt *r, im_batch *b)
{
    pthread_mutex_lock(&r->lock);
    ((slot *)b)->done = true; /* the batch is the slot's first member */
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

im_batch *im_belt_next(im_belt *r)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    im_batch *b = NULL;
    pthread_mutex_lock(&r->lock);
    for (bool late = false; !b; late = pthread_cond_timedwait(&r->changed, &r->lock, &until) != 0) {
        slot *s = slot_of(r, r->written);
        if (r->written < r->filled && s->done)
            b = &s->batch;
        else if (late)
            break;
    }
    pthread_mutex_unlock(&r->lock);
    return b;
}

void im_belt_free(im_belt *r, im_batch *b)
{
    pthread_mutex_lock(&r->lock);
    r->written++;
    r->bytes -= b->nraw;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void im_belt_quit(im_belt *r)
{
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- filling --------------------------------------------------------------------------------------------- */

static im_status reserve(im_context *ctx, void **p, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap)
        return IM_OK;
    size_t more = 2 * *cap > n ? 2 * *cap : n + 1024;
    void *q = realloc(*p, more * size);
    if (!q)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu bytes of text", more * size);
    *p = q;
    *cap = more;
    return IM_OK;
}

im_status im_batch_text(im_context *ctx, im_batch *b, const unsigned char *bytes, size_t n)
{
    IM_TRY(reserve(ctx, (void **)&b->raw, &b->raw_cap, b->nraw + n, 1));
    memcpy(b->raw + b->nraw, bytes, n);
    b->nraw += n;
    return IM_OK;
}

im_status im_batch_record(im_context *ctx, im_batch *b, im_record **out)
{
    IM_TRY(reserve(ctx, (void **)&b->record, &b->record_cap, b->nrecord + 1, sizeof *b->record));
    *out = &b->record[b->nrecord++];
    **out = (im_record){.at = b->nraw};
    return IM_OK;
}
