/* self: the communicator of one rank. Every operation over one rank is a copy, or nothing where in and out are the same.
 * Messages to oneself are matched by comm.c and come as one copy. */
#include "comm/backend.h"

#include <stdlib.h>

static const im_comm_table self_table;

static im_status self_create(im_device *d, const im_comm_group *g, im_comm **out)
{
    void *p;
    im_context *ctx = im_device_context(d);
    IM_TRY(im_alloc(ctx, 1, sizeof(im_comm), &p));
    im_status status = im_comm_init(p, &self_table, d, 0, 1, g ? g->members : NULL, g ? g->id : 0, 0);
    if (status != IM_OK) {
        free(p);
        return status;
    }
    *out = p;
    return IM_OK;
}

static im_status self_run(im_comm *c, im_comm_call *call)
{
    (void)c;
    im_comm_copy(call);
    return IM_OK;
}

static im_status self_split(im_comm *parent, const im_comm_group *g, im_comm **out)
{
    return self_create(parent->device, g, out);
}

static void self_destroy(im_comm *c)
{
    im_comm_fini(c);
    free(c);
}

static im_status self_error(im_comm *c)
{
    return atomic_load(&c->dead) ? im_fail(c->ctx, IM_ERR_ABORTED, "the communicator was aborted") : IM_OK;
}

static void self_abort(im_comm *c, const char *reason)
{
    (void)reason;
    atomic_store(&c->dead, true);
}

static const im_comm_table self_table = {
    .name = "self",
    .run = self_run,
    .split = self_split,
    .destroy = self_destroy,
    .error = self_error,
    .abort = self_abort,
};

im_status im_comm_self(im_device *d, im_comm **out)
{
    return self_create(d, NULL, out);
}
