/* traced: notes each operation in the rank's ring, then lets the wrapped communicator do it. */
#include "comm/traced/writer.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct im_traced_comm {
    im_comm head;
    im_ring_writer *ring;
} im_traced_comm;

static const im_comm_table traced_table;

static im_status wrap(im_comm *inner, im_ring_writer *ring, im_comm **out)
{
    void *p;
    IM_TRY(im_alloc(inner->ctx, 1, sizeof(im_traced_comm), &p));
    im_traced_comm *t = p;
    im_status status = im_comm_init(&t->head, &traced_table, inner->device, inner->rank, inner->size, inner->members, inner->id, inner->deadline);
    if (status != IM_OK) {
        free(t);
        return status;
    }
    t->head.inner = inner;
    t->ring = ring;
    *out = &t->head;
    return IM_OK;
}

im_status im_comm_traced(im_comm *inner, const char *path, im_comm **out)
{
    im_ring_writer *ring;
    IM_TRY(im_ring_create(inner, path, &ring));
    im_status status = wrap(inner, ring, out);
    if (status != IM_OK)
        im_ring_release(ring);
    return status;
}

static void traced_enqueued(im_comm *c, im_comm_call *call)
{
    im_ring_enqueued(((im_traced_comm *)c)->ring, c, call);
    if (c->inner->backend->enqueued)
        c->inner->backend->enqueued(c->inner, call);
}

static im_status traced_run(im_comm *c, im_comm_call *call)
{
    im_ring_writer *ring = ((im_traced_comm *)c)->ring;
    for (im_comm_call *x = call; x; x = x->next)
        im_ring_started(ring, x);
    im_status s = c->inner->backend->run(c->inner, call);
    for (im_comm_call *x = call; x; x = x->next)
        im_ring_ended(ring, x, s);
    return s;
}

static im_status traced_split(im_comm *parent, const im_comm_group *g, im_comm **out)
{
    im_ring_writer *ring = ((im_traced_comm *)parent)->ring;
    im_comm *inner;
    IM_TRY(parent->inner->backend->split(parent->inner, g, &inner));
    im_status status = wrap(inner, ring, out);
    if (status != IM_OK) {
        im_comm_destroy(inner);
        return status;
    }
    ring->refs++;
    im_ring_add_group(ring, *out);
    return IM_OK;
}

static void traced_note(im_comm *c, int64_t step, const char *what)
{
    im_ring_note(((im_traced_comm *)c)->ring, step, what);
}

static void traced_destroy(im_comm *c)
{
    im_ring_release(((im_traced_comm *)c)->ring);
    im_comm_destroy(c->inner);
    im_comm_fini(c);
    free(c);
}

static im_status traced_error(im_comm *c)
{
    return c->inner->backend->error(c->inner);
}

static void traced_abort(im_comm *c, const char *reason)
{
    c->inner->backend->abort(c->inner, reason);
}

static const im_comm_table traced_table = {
    .name = "traced",
    .run = traced_run,
    .enqueued = traced_enqueued,
    .split = traced_split,
    .note = traced_note,
    .destroy = traced_destroy,
    .error = traced_error,
    .abort = traced_abort,
};

/* ---- the rank's own state ------------------------------------------------------------------ */

static im_ring_writer *ring_of(im_comm *c)
{
    while (c && c->backend != &traced_table)
        c = c->inner;
    return c ? ((im_traced_comm *)c)->ring : NULL;
}

im_status im_comm_ring_place(im_comm *c, const char *path)
{
    im_ring_writer *ring = ring_of(c);
    return ring ? im_ring_place(ring, c->ctx, path) : IM_OK;
}

void im_comm_ring_beat(im_comm *c)
{
    im_ring_writer *ring = ring_of(c);
    if (!ring)
        return;
    im_ring_header *h = ring->header;
    double now = im_clock_now();
    if (h->alive > 0 && now - h->alive > h->silent_to - h->silent_from) {
        h->silent_from = h->alive;
        h->silent_to = now;
    }
    h->alive = now;
}

void im_comm_ring_saw(im_comm *c, int rank)
{
    im_ring_writer *ring = ring_of(c);
    if (!ring || ring->header->saw)
        return;
    ring->header->saw_at = im_clock_now();
    __atomic_store_n(&ring->header->saw, rank + 1, __ATOMIC_RELEASE);
}

void im_comm_ring_end(im_comm *c, im_status status, const char *error)
{
    im_ring_writer *ring = ring_of(c);
    if (!ring)
        return;
    im_ring_header *h = ring->header;
    h->end = error ? IM_RING_ERROR : IM_RING_ENDED;
    h->status = status;
    snprintf(h->text, sizeof h->text, "%s", error ? error : "");
    __atomic_thread_fence(__ATOMIC_RELEASE);
    h->ended = im_clock_now();
}
