/* The best answers once more, as the whole programs say: built, placed, and run by events where that does not take too long. */
#include "plan/search.h"

#include "plan/estimate.h"

#include <stdlib.h>
#include <string.h>

enum { OPS_OF_A_BLOCK = 70 }; /* forward and backward */

/* Ops of all stages' programs, about. */
static double ops_of(const im_plan *p, int m)
{
    return (double)(p->model->arch.L + 2) * m * OPS_OF_A_BLOCK;
}

/* More micro-batches need no more memory at once, but for GPipe. */
static int enough(const im_plan *p)
{
    int m = im_plan_micro_batches(p, 0), most = 3 * p->mesh.pp + (p->schedule == IM_SCHEDULE_INTERLEAVED ? m % p->mesh.pp : 0);
    return p->schedule == IM_SCHEDULE_GPIPE || m < most ? m : most;
}

static im_status confirm_memory(im_context *ctx, im_search_found *f)
{
    im_fold fold;
    im_plan p = f->plan;
    p.global_batch = (int64_t)enough(&p) * p.micro_batch * p.mesh.dp;
    IM_TRY(im_fold_open(ctx, &p, false, &fold));
    f->memory = 0;
    for (int s = 0; s < fold.n; s++) {
        double bytes = 0;
        for (int c = 0; c < IM_CLASS_COUNT; c++)
            bytes += c == IM_CLASS_PROGRAMS ? 0 : (double)fold.program[s]->arena_bytes[c];
        if (bytes > f->memory) {
            f->memory = bytes;
            f->fullest = s;
        }
    }
    im_fold_close(&fold);
    f->placed = true;
    return IM_OK;
}

static im_status confirm_all(im_context *ctx, const im_cluster *c, const im_cost_options *o, im_search_found *f)
{
    im_estimate e;
    im_estimate_options eo = {.cost = *o};
    double before = f->step;
    eo.cost.device = f->device;
    IM_TRY(im_estimate_open(ctx, &f->plan, c, &eo, &e));
    f->step = e.step;
    f->cost *= e.step / before;
    f->memory = (double)e.stage[e.fullest].total;
    f->fullest = e.fullest;
    f->placed = f->run = true;
    im_estimate_close(&e);
    return IM_OK;
}

static double worth(const im_search_found *f, im_objective objective)
{
    if (objective == IM_OBJECTIVE_MEMORY)
        return f->memory;
    return objective == IM_OBJECTIVE_TIME ? f->step : f->cost > 0 ? f->cost : f->step * im_mesh_size(&f->plan.mesh);
}

/* Insertion: of equals the first stays before the second. */
static void sort(im_search *s, im_objective objective)
{
    for (size_t i = 1; i < s->n; i++) {
        im_search_found f = s->found[i];
        size_t at = i;
        for (; at && worth(&f, objective) < worth(&s->found[at - 1], objective); at--)
            s->found[at] = s->found[at - 1];
        s->found[at] = f;
    }
}

static void drop(im_search *s, size_t i)
{
    s->refused[IM_REFUSED_MEMORY]++;
    memmove(s->found + i, s->found + i + 1, sizeof *s->found * (s->n - i - 1));
    s->n--;
}

im_status im_search_confirm(im_context *ctx, im_search *s, const im_search_request *r, double ops)
{
    for (size_t i = 0; i < s->n;) {
        im_search_found *f = &s->found[i];
        double whole = ops_of(&f->plan, im_plan_micro_batches(&f->plan, 0)), memory = ops_of(&f->plan, enough(&f->plan));
        if (whole <= ops) {
            IM_TRY(confirm_all(ctx, r->cluster, &r->cost, f));
            ops -= whole;
        } else if (memory <= ops) {
            IM_TRY(confirm_memory(ctx, f));
            ops -= memory;
        }
        if (f->memory > s->room)
            drop(s, i);
        else
            i++;
    }
    sort(s, r->objective);
    return IM_OK;
}
