#include "train/planned.h"

#include <math.h>
#include <stdlib.h>

typedef struct pricer {
    im_context *ctx;
    const im_train_rates *rates;
} pricer;

static double price(void *arg, const im_program *p, const im_bound *x)
{
    const pricer *c = arg;
    im_op_cost cost;
    double bytes = 0;
    (void)p;
    if (x->op->kind)
        return im_op_describe(c->ctx, x->op->kind, x->args, &cost) == IM_OK ? im_op_seconds(&cost, &c->rates->pace) : 0;
    if (x->op->collective == IM_COLL_LOAD || x->op->collective == IM_COLL_RELEASE || x->op->collective == IM_COLL_SNAPSHOT)
        return 0;
    for (int i = 0; i < x->op->args.n; i++)
        bytes = fmax(bytes, (double)(x->hi[i] - x->lo[i]));
    return c->rates->latency + 2 * bytes / c->rates->pace.bytes;
}

typedef struct ranks {
    int n;
    im_layout *layout[IM_PLANNED_RANKS];
    im_program *program[IM_PLANNED_RANKS];
} ranks;

static im_status build(im_context *ctx, const im_plan *p, int n, ranks *out)
{
    im_program_spec spec = {.mode = IM_PROGRAM_TRAIN};
    int *stage = calloc(p->model->nunit + 1, sizeof *stage);
    im_status status = stage ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for the stages");
    if (stage)
        im_plan_stages(p, stage);
    for (; status == IM_OK && out->n < n; out->n++) {
        im_layout **l = &out->layout[out->n];
        im_program **q = &out->program[out->n];
        status = im_layout_create(ctx, p->model, p->mesh, out->n, p->zero, p->sequence_parallel, stage, l);
        if (status != IM_OK)
            break;
        status = im_program_build(ctx, p, *l, &spec, NULL, 0, q);
        if (status != IM_OK) {
            im_layout_destroy(*l);
            break;
        }
        status = im_program_place(ctx, q, 1);
        if (status == IM_OK)
            status = im_program_link(ctx, *q);
    }
    free(stage);
    return status;
}

im_status im_train_planned(im_context *ctx, const im_plan *p, const im_train_rates *rates, im_drawing *out)
{
    int n = im_mesh_size(&p->mesh);
    if (n > IM_PLANNED_RANKS)
        return im_fail(ctx, IM_ERR_ARG, "tp %d x dp %d x pp %d = %d ranks: a picture has at most %d rows", p->mesh.tp, p->mesh.dp, p->mesh.pp, n,
                       IM_PLANNED_RANKS);
    ranks r = {0};
    pricer c = {ctx, rates};
    im_timeline time = {0};
    im_status status = build(ctx, p, n, &r);
    if (status == IM_OK)
        status = im_simulate(ctx, (const im_program *const *)r.program, n, price, &c, &time);
    if (status == IM_OK)
        status = im_drawing_of_timeline(ctx, (const im_program *const *)r.program, &time, out);
    im_timeline_free(&time);
    for (int i = 0; i < r.n; i++) {
        im_program_destroy(r.program[i]);
        im_layout_destroy(r.layout[i]);
    }
    return status;
}
