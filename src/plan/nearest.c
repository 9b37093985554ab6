/* nearest: what a number of ranks could do instead of a layout that is refused. Whether a mesh is possible is asked of the rules themselves. */
#include "plan/plan.h"

#include <math.h>
#include <string.h>

enum { IM_NEAREST = 3 };

/* Octaves that the axes are away. */
static double distance(const im_mesh *a, const im_mesh *b)
{
    return fabs(log2((double)a->tp / b->tp)) + fabs(log2((double)a->dp / b->dp)) + fabs(log2((double)a->pp / b->pp));
}

static bool possible(im_context *scratch, const im_plan *base, const im_mesh *mesh)
{
    im_plan p = *base;
    p.mesh = *mesh;
    p.sequence_parallel = base->sequence_parallel && mesh->tp > 1;
    if (mesh->pp != base->mesh.pp) { /* these are of as many stages as it has */
        p.stages = IM_STAGES_EVEN;
        p.cut = NULL;
    }
    if (mesh->pp == 1)
        p.chunks = 0;
    if (!p.global_batch)
        p.global_batch = p.micro_batch * mesh->dp;
    im_error_clear(scratch);
    return im_plan_validate(scratch, &p) == IM_OK;
}

/* Inserts where it belongs; the farthest falls out. Of equals the first stays before the second. */
static void keep(const im_plan *p, const im_mesh *mesh, im_mesh *list, int *n, int most)
{
    int at = *n;
    while (at > 0 && distance(&list[at - 1], &p->mesh) > distance(mesh, &p->mesh))
        at--;
    if (at >= most)
        return;
    *n += *n < most;
    memmove(list + at + 1, list + at, sizeof *list * (size_t)(*n - at - 1));
    list[at] = *mesh;
}

int im_plan_nearest(const im_plan *p, int ranks, im_mesh *out, int most)
{
    im_context *scratch; /* refusals are no errors */
    int n = 0;
    im_plan base = *p;
    base.mesh.tp = base.mesh.tp > 0 ? base.mesh.tp : 1;
    base.mesh.dp = base.mesh.dp > 0 ? base.mesh.dp : 1;
    base.mesh.pp = base.mesh.pp > 0 ? base.mesh.pp : 1;
    if (im_context_create(&scratch) != IM_OK)
        return 0;
    for (int pp = 1; pp <= ranks; pp++)
        for (int tp = 1; ranks % pp == 0 && tp <= ranks / pp; tp++) {
            im_mesh mesh = {.tp = tp, .cp = 1, .dp = ranks / pp / tp, .pp = pp};
            if (ranks / pp % tp == 0 && possible(scratch, &base, &mesh))
                keep(&base, &mesh, out, &n, most);
        }
    im_context_destroy(scratch);
    return n;
}

static void mesh_text(const im_mesh *m, im_str *out)
{
    const struct {
        const char *key;
        int value;
    } axis[] = {{"tp", m->tp}, {"dp", m->dp}, {"pp", m->pp}};
    const char *before = "";
    for (size_t i = 0; i < IM_COUNT_OF(axis); i++)
        if (axis[i].value > 1) {
            im_str_printf(out, "%s%s %d", before, axis[i].key, axis[i].value);
            before = " x ";
        }
    if (!*before)
        im_str_append(out, "tp 1");
}

void im_plan_nearest_text(const im_plan *p, int ranks, im_str *out)
{
    im_mesh mesh[IM_NEAREST];
    int of = ranks, n = im_plan_nearest(p, of, mesh, IM_NEAREST);
    bool one_run = !n && im_plan_chunks(p) > 1; /* as many ranks in another order are nearer than fewer of them */
    if (one_run) {
        im_plan q = *p;
        q.chunks = 1;
        q.stages = IM_STAGES_EVEN; /* a list is of as many chunks as it was made for */
        q.cut = NULL;
        n = im_plan_nearest(&q, of, mesh, IM_NEAREST);
        one_run = n > 0;
    }
    for (int away = 1; !n && away < ranks; away++) { /* one rank is always there at the end, unless it is not the layout that is wrong */
        of = ranks - away;
        n = im_plan_nearest(p, of, mesh, IM_NEAREST);
        if (!n) {
            of = ranks + away;
            n = im_plan_nearest(p, of, mesh, IM_NEAREST);
        }
    }
    if (n && of != ranks)
        im_str_printf(out, "no layout of %d ranks is possible; ", ranks);
    if (n)
        im_str_printf(out, "layouts of %d rank%s: ", of, of == 1 ? "" : "s");
    for (int i = 0; i < n; i++) {
        im_str_append(out, i ? ", " : "");
        mesh_text(&mesh[i], out);
    }
    if (one_run)
        im_str_append(out, "; with chunks 1");
}
