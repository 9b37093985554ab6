/* stages: which blocks each stage of the pipeline has. */
#include "plan/plan.h"

int im_plan_chunks(const im_plan *p)
{
    return p->chunks ? p->chunks : 1;
}

/* What a stage costs in a step, in multiplications a token: weights of the blocks and attention's products; the head's table is the last stage's. The look-up
 * of the embedding costs next to nothing. */
static double cost_of(const im_plan *p, int64_t blocks, bool last)
{
    const im_arch *a = &p->model->arch;
    double block = 0;
    const im_unit *u = &p->model->unit[1];
    for (int s = 0; s < IM_SLOT_COUNT; s++)
        if (u->param[s] >= 0)
            block += (double)im_param_count(&p->model->param[u->param[s]]);
    block += (double)p->seq_len * (double)(a->H * a->E); /* scores and their sum over the values, half of each masked */
    return (double)blocks * block + (last ? (double)a->V * (double)a->D : 0);
}

/* Blocks of virtual stage s, when no stage may cost more than `most`; stages after it need one each. */
static int64_t fit(const im_plan *p, int s, int n, int64_t left, double most)
{
    int64_t k = 1, keep = n - 1 - s;
    while (k < left - keep && cost_of(p, k + 1, s + 1 == n) <= most)
        k++;
    return k;
}

static bool fits(const im_plan *p, int n, double most)
{
    int64_t left = p->model->arch.L;
    for (int s = 0; s < n; s++) {
        int64_t k = fit(p, s, n, left, most);
        if (cost_of(p, k, s + 1 == n) > most)
            return false;
        left -= k;
    }
    return left == 0;
}

/* The least cost of the dearest stage: one of the costs that a stage can have. */
static double least_most(const im_plan *p, int n)
{
    int64_t L = p->model->arch.L;
    double best = cost_of(p, L, true);
    for (int64_t k = 1; k <= L; k++)
        for (int last = 0; last < 2; last++) {
            double c = cost_of(p, k, last);
            if (c < best && fits(p, n, c))
                best = c;
        }
    return best;
}

/* Among the cuts that keep to the least cost of the dearest stage, the one that is nearest to even: the last stage takes what it can, the others share. */
static void balance(const im_plan *p, int n, int64_t *blocks)
{
    int64_t L = p->model->arch.L;
    double most = least_most(p, n);
    int64_t last = 1;
    while (last < L - (n - 1) && cost_of(p, last + 1, true) <= most && last + 1 <= (L + n - 1) / n)
        last++;
    if (n == 1)
        last = L;
    for (int s = 0; s + 1 < n; s++)
        blocks[s] = (L - last) / (n - 1) + (s < (L - last) % (n - 1));
    blocks[n - 1] = last;
}

void im_plan_virtual_stages(const im_plan *p, int *stage_of_unit)
{
    int64_t L = p->model->arch.L;
    int n = p->mesh.pp * im_plan_chunks(p);
    size_t nunit = p->model->nunit;
    int64_t even[64 * IM_MAX_CHUNKS];
    const int64_t *blocks = p->stages == IM_STAGES_GIVEN ? p->cut : even;
    if (p->stages == IM_STAGES_BALANCED)
        balance(p, n, even);
    else if (p->stages == IM_STAGES_EVEN) /* the first L % n have one block more */
        for (int s = 0; s < n; s++)
            even[s] = L / n + (s < L % n);
    int s = 0;
    int64_t end = blocks[0];
    for (size_t u = 0; u < nunit; u++) {
        while (u > 0 && u + 1 < nunit && p->model->unit[u].block >= end)
            end += blocks[++s];
        stage_of_unit[u] = u == 0 ? 0 : u + 1 == nunit ? n - 1 : s;
    }
}

void im_plan_stages(const im_plan *p, int *stage_of_unit)
{
    im_plan_virtual_stages(p, stage_of_unit);
    for (size_t u = 0; u < p->model->nunit; u++)
        stage_of_unit[u] %= p->mesh.pp;
}
