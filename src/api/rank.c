/* rank: opened where its function runs, closed behind it with everything that was made of it. */
#include "api/internal.h"

#include <stdlib.h>

void im_api_object_add(im_rank *r, im_api_object *o, void (*end)(im_api_object *o))
{
    *o = (im_api_object){.next = r->objects, .end = end};
    if (r->objects)
        r->objects->prev = o;
    r->objects = o;
}

void im_api_object_remove(im_rank *r, im_api_object *o)
{
    if (o->next)
        o->next->prev = o->prev;
    if (o->prev)
        o->prev->next = o->next;
    else if (r->objects == o)
        r->objects = o->next;
    *o = (im_api_object){0};
}

static im_status join_world(im_rank *r, const im_api_place *p, im_comm **out)
{
    if (p->threads_world)
        return im_comm_threads_attach(p->threads_world, r->device, r->number, out);
    if (p->mpi_world)
        return im_comm_mpi_attach(p->mpi_world, r->device, out);
    return im_comm_self(r->device, out);
}

im_status im_api_rank_open(im_rank *r, const im_api_place *p)
{
    const im_device_config cfg = {.threads = p->threads, .comm_threads = p->count > 1};
    im_comm *comm;
    r->number = p->number;
    r->count = p->count;
    IM_TRY(im_device_open(r->ctx, &cfg, &r->device));
    r->compute = im_device_queue(r->device, IM_QUEUE_COMPUTE);
    if (!r->compute)
        return im_error_code(r->ctx);
    IM_TRY(im_device_reserve(r->device, IM_CLASS_ACTIVATIONS, p->memory));
    IM_TRY(im_api_heap_init(r->ctx, &r->heap, p->memory));
    IM_TRY(join_world(r, p, &comm));
    if (p->deadline > 0)
        im_comm_set_deadline(comm, p->deadline);
    im_status status = im_api_group(r, comm, im_comm_deadline(comm), &r->world);
    if (status != IM_OK)
        im_comm_destroy(comm);
    return status;
}

void im_api_rank_close(im_rank *r)
{
    while (r->objects)
        r->objects->end(r->objects);
    im_api_ops_end(r);
    im_api_heap_fini(&r->heap);
    im_device_close(r->device);
    r->device = NULL;
}

void im_api_abort(im_rank *r)
{
    if (r->world)
        im_comm_abort(r->world->comm);
}

int im_rank_number(const im_rank *r)
{
    return r->number;
}

int im_rank_count(const im_rank *r)
{
    return r->count;
}

im_context *im_rank_context(const im_rank *r)
{
    return r->ctx;
}

im_group *im_rank_world(im_rank *r)
{
    return r->world;
}

im_status im_rank_wait(im_rank *r)
{
    return im_device_sync(r->device);
}

void im_rank_memory(const im_rank *r, im_rank_bytes *out)
{
    *out = (im_rank_bytes){
        .weights = r->bytes[IM_API_WEIGHTS],
        .gradients = r->bytes[IM_API_GRADIENTS],
        .tensors = r->bytes[IM_API_TENSORS],
        .scratch = r->staging_peak + im_device_reserved(r->device, IM_CLASS_SCRATCH),
        .touched = im_device_touched(r->device, IM_CLASS_ACTIVATIONS) + im_device_touched(r->device, IM_CLASS_SCRATCH),
    };
}
