#include "plan/events.h"

#include <stdlib.h>

static const char *what_differs(const im_plan *p)
{
    im_share first = im_share_of(&p->model->arch, p->mesh.tp, 0);
    for (int r = 1; r < p->mesh.tp; r++) {
        im_share s = im_share_of(&p->model->arch, p->mesh.tp, r);
        if (s.H != first.H || s.F != first.F || s.V != first.V)
            return s.H != first.H ? "heads" : s.F != first.F ? "feed-forward columns" : "rows of the vocabulary";
    }
    if (p->global_batch % ((int64_t)p->micro_batch * p->mesh.dp))
        return "micro-batches";
    return NULL;
}

static im_status add_rank(im_context *ctx, im_fold *f, int rank, const int *stage)
{
    im_program_spec spec = {.mode = IM_PROGRAM_TRAIN};
    const im_plan *p = &f->plan;
    im_layout **l = &f->layout[f->n];
    im_program **q = &f->program[f->n];
    IM_TRY(im_layout_create(ctx, p->model, p->mesh, rank, p->zero, p->sequence_parallel, stage, l));
    im_status status = im_program_build(ctx, p, *l, &spec, NULL, 0, q);
    if (status != IM_OK) {
        im_layout_destroy(*l);
        return status;
    }
    f->n++; /* im_fold_close frees it */
    IM_TRY(im_program_place(ctx, q, 1));
    return im_program_link(ctx, *q);
}

im_status im_fold_open(im_context *ctx, const im_plan *p, bool whole, im_fold *out)
{
    *out = (im_fold){.plan = *p, .uneven = what_differs(p)};
    IM_TRY(im_arena_create(ctx, &out->arena));
    int world = im_mesh_size(&p->mesh), most = whole ? world : p->mesh.pp;
    out->plan.threads = 1;
    out->stands_for = world / most;
    out->layout = IM_ARENA_NEW(out->arena, im_layout *, most);
    out->program = IM_ARENA_NEW(out->arena, im_program *, most);
    int *stage = IM_ARENA_NEW(out->arena, int, p->model->nunit + 1);
    im_status status = out->layout && out->program && stage ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for %d programs", most);
    if (status == IM_OK)
        im_plan_stages(p, stage);
    for (int i = 0; status == IM_OK && i < most; i++)
        status = add_rank(ctx, out, i * (world / most), stage);
    if (status != IM_OK)
        im_fold_close(out);
    return status;
}

void im_fold_close(im_fold *f)
{
    for (int i = 0; i < f->n; i++) {
        im_program_destroy(f->program[i]);
        im_layout_destroy(f->layout[i]);
    }
    im_arena_destroy(f->arena);
    *f = (im_fold){0};
}
