/* refuse: a layout that the model, the batch or the job cannot have, with the nearest ones that they can. */
#include "train/internal.h"

#include <inttypes.h>

/* What is asked for, as a job of that many ranks could do it. */
static void add_nearest(const im_train_run *r, int ranks, im_str *out)
{
    im_plan p = r->plan;
    if (r->batch_follows)
        p.global_batch = 0;
    im_str_append(out, "; ");
    im_plan_nearest_text(&p, ranks, out);
}

/* Whether it is the layout that is refused, and not what every layout would be refused for. */
static bool layout_is_wrong(const im_plan *p)
{
    im_context *scratch;
    im_plan one = *p;
    if (im_context_create(&scratch) != IM_OK)
        return false;
    one.mesh = (im_mesh){1, 1, 1, 1};
    one.zero = 0;
    one.chunks = 0;
    one.stages = IM_STAGES_EVEN;
    one.cut = NULL;
    one.sequence_parallel = false;
    bool wrong = im_plan_validate(scratch, &one) == IM_OK;
    im_context_destroy(scratch);
    return wrong;
}

static im_status refuse_count(im_train_run *r, int processes)
{
    im_str text = {0};
    im_str_printf(&text,
                  "tp %" PRId64 " x dp %" PRId64 " x pp %" PRId64
                  " = %d rank%s, but the job has %d process%s: start %d with the launcher (mpirun -n %d)",
                  r->o.tp, r->o.dp, r->o.pp, r->ranks, r->ranks == 1 ? "" : "s", processes, processes == 1 ? "" : "es", r->ranks, r->ranks);
    add_nearest(r, processes, &text);
    im_status s = im_fail(r->ctx, IM_ERR_ARG, "%s", im_str_text(&text));
    im_str_free(&text);
    return s;
}

/* The rule's own text, and what else there is. */
static im_status refuse_layout(im_train_run *r, im_status status, int ranks)
{
    im_str text = {0};
    if (!layout_is_wrong(&r->plan))
        return status;
    im_str_append(&text, im_error_text(r->ctx));
    add_nearest(r, ranks, &text);
    im_error_clear(r->ctx);
    status = im_fail(r->ctx, IM_ERR_ARG, "%s", im_str_text(&text)); /* whatever the rule calls it, here it is a wrong option */
    im_str_free(&text);
    return status;
}

im_status im_train_check_layout(im_train_run *r)
{
    int processes = r->env->mpi ? im_comm_mpi_where(r->env->mpi).size : 0;
    if (!processes && r->ranks > IM_TRAIN_MAX_RANKS)
        return im_fail(r->ctx, IM_ERR_ARG,
                       "tp %" PRId64 " x dp %" PRId64 " x pp %" PRId64
                       " = %d ranks: at most %d as threads of one process; more as processes (mpirun)",
                       r->o.tp, r->o.dp, r->o.pp, r->ranks, IM_TRAIN_MAX_RANKS);
    im_status status = im_plan_validate(r->ctx, &r->plan);
    if (status != IM_OK)
        return refuse_layout(r, status, processes ? processes : r->ranks);
    return processes && processes != r->ranks ? refuse_count(r, processes) : IM_OK;
}
