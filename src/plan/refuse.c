/* refuse: a layout that the model, the batch or the job cannot have, with the nearest ones that they can. */
#include "plan/plan.h"

static int ranks_of(const im_plan *p)
{
    return im_mesh_size(&p->mesh);
}

/* What is asked for, as a job of that many ranks could do it. */
static void add_nearest(const im_plan *asked, bool batch_follows, int ranks, im_str *out)
{
    im_plan p = *asked;
    im_str nearest = {0};
    if (batch_follows)
        p.global_batch = 0;
    im_plan_nearest_text(&p, ranks, &nearest);
    if (nearest.len) /* none where it is the list of stages that is wrong, of one rank */
        im_str_printf(out, "; %s", im_str_text(&nearest));
    im_str_free(&nearest);
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

static im_status refuse_count(im_context *ctx, const im_plan *p, bool batch_follows, int processes)
{
    im_str text = {0};
    int ranks = ranks_of(p);
    im_str_printf(&text, "tp %d x dp %d x pp %d = %d rank%s, but the job has %d process%s: start %d with the launcher (mpirun -n %d)", p->mesh.tp,
                  p->mesh.dp, p->mesh.pp, ranks, ranks == 1 ? "" : "s", processes, processes == 1 ? "" : "es", ranks, ranks);
    add_nearest(p, batch_follows, processes, &text);
    im_status s = im_fail(ctx, IM_ERR_ARG, "%s", im_str_text(&text));
    im_str_free(&text);
    return s;
}

/* The rule's own text, and what else there is. */
static im_status refuse_layout(im_context *ctx, const im_plan *p, bool batch_follows, im_status status, int ranks)
{
    im_str text = {0};
    if (!layout_is_wrong(p))
        return status;
    im_str_append(&text, im_error_text(ctx));
    add_nearest(p, batch_follows, ranks, &text);
    im_error_clear(ctx);
    status = im_fail(ctx, IM_ERR_ARG, "%s", im_str_text(&text)); /* whatever the rule calls it, here it is a wrong option */
    im_str_free(&text);
    return status;
}

im_status im_plan_check_layout(im_context *ctx, const im_plan *p, bool batch_follows, int processes)
{
    int ranks = ranks_of(p);
    if (!processes && ranks > IM_PLAN_MAX_THREADS)
        return im_fail(ctx, IM_ERR_ARG, "tp %d x dp %d x pp %d = %d ranks: at most %d as threads of one process; more as processes (mpirun)",
                       p->mesh.tp, p->mesh.dp, p->mesh.pp, ranks, IM_PLAN_MAX_THREADS);
    im_status status = im_plan_validate(ctx, p);
    if (status != IM_OK)
        return refuse_layout(ctx, p, batch_follows, status, processes ? processes : ranks);
    return processes && processes != ranks ? refuse_count(ctx, p, batch_follows, processes) : IM_OK;
}
