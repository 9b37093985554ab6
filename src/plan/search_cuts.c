/* Where the blocks are cut. */
#include "plan/search_leaves.h"

#include <math.h>
#include <string.h>

static im_status counted(im_context *ctx, const im_plan *p, im_stages how, im_arena *a, const int64_t **out)
{
    im_plan q = *p;
    int n = p->mesh.pp * im_plan_chunks(p);
    q.stages = how;
    int *stage = IM_ARENA_NEW(a, int, p->model->nunit);
    int64_t *blocks = IM_ARENA_NEW(a, int64_t, n);
    if (!stage || !blocks)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for stages");
    im_plan_virtual_stages(&q, stage);
    for (size_t u = 1; u + 1 < p->model->nunit; u++)
        blocks[stage[u]]++;
    *out = blocks;
    return IM_OK;
}

/* One block at a time goes to the stage that has the least to do, the later of equals: earlier ones keep more micro-batches. Least of the dearest where
 * blocks cost the same. */
static im_status tuned(im_context *ctx, const im_plan *p, const im_piece *q, const im_mini *mini, im_arena *a, const int64_t **out)
{
    int pp = p->mesh.pp, n = pp * im_plan_chunks(p);
    int64_t L = p->model->arch.L, *blocks = IM_ARENA_NEW(a, int64_t, n), left = L - n;
    double *load = IM_ARENA_NEW(a, double, pp), block = 0;
    if (!blocks || !load)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for stages");
    for (int64_t b = 0; b < L; b++)
        block += (q->forward[mini->kind[b]] + q->back[mini->kind[b]] + q->weight[mini->kind[b]]) / (double)L;
    load[0] += q->embed_forward + q->embed_back;
    load[pp - 1] += q->head;
    for (int i = 0; i < n; i++) {
        blocks[i] = 1;
        load[i % pp] += block;
    }
    for (; left > 0; left--) {
        int best = pp - 1, chunk = 0;
        for (int s = pp - 1; s-- > 0;)
            if (load[s] < load[best] * (1 - 1e-12))
                best = s;
        for (int c = 1; c < im_plan_chunks(p); c++)
            if (blocks[c * pp + best] < blocks[chunk * pp + best])
                chunk = c;
        blocks[chunk * pp + best]++;
        load[best] += block;
    }
    *out = blocks;
    return IM_OK;
}

im_status im_search_cut(im_context *ctx, const im_plan *p, const im_piece *piece, const im_mini *mini, int fixed, im_arena *a, im_search_cuts *out)
{
    int n = p->mesh.pp * im_plan_chunks(p);
    *out = (im_search_cuts){.n = 1, .how = {fixed >= 0 ? (im_stages)fixed : IM_STAGES_EVEN}};
    IM_TRY(counted(ctx, p, out->how[0], a, &out->blocks[0]));
    if (fixed >= 0 || p->mesh.pp == 1)
        return IM_OK;
    IM_TRY(tuned(ctx, p, piece, mini, a, &out->blocks[1]));
    out->how[1] = IM_STAGES_GIVEN;
    out->n = 1 + (memcmp(out->blocks[0], out->blocks[1], sizeof(int64_t) * (size_t)n) != 0);
    return IM_OK;
}
