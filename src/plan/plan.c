/* plan: defaults, cross-field rules, micro-batches. */
#include "plan/plan.h"

void im_plan_defaults(im_plan *p, const im_model *m)
{
    *p = (im_plan){.model = m,
                   .mesh = {1, 1, 1, 1},
                   .schedule = IM_SCHEDULE_1F1B,
                   .seq_len = m->arch.P && m->arch.P < 256 ? m->arch.P : 256,
                   .micro_batch = 4,
                   .global_batch = 4,
                   .precision = IM_F32,
                   .dropout = 0,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .eps = 1e-8,
                   .weight_decay = 0.1};
}

static im_status rule_mesh(im_context *ctx, const im_plan *p)
{
    IM_TRY(im_share_check(ctx, p->model, p->mesh.tp));
    if (p->mesh.cp != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "cp %d: context parallelism is in the plan, but not built yet; cp 1", p->mesh.cp);
    if (p->mesh.dp < 1 || p->mesh.pp < 1)
        return im_fail(ctx, IM_ERR_ARG, "dp %d, pp %d: both are at least 1", p->mesh.dp, p->mesh.pp);
    if (p->mesh.pp > p->model->arch.L)
        return im_fail(ctx, IM_ERR_ARG, "pp %d stages, but %s has %lld blocks; at most that many stages", p->mesh.pp, p->model->source,
                       (long long)p->model->arch.L);
    if (p->mesh.pp > 64)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "pp %d: at most 64 stages", p->mesh.pp);
    return IM_OK;
}

static im_status rule_schedule(im_context *ctx, const im_plan *p)
{
    const im_schedule_kind *k = im_schedule_of(p->schedule);
    int v = im_plan_chunks(p);
    if (!k)
        return im_fail(ctx, IM_ERR_ARG, "schedule %d: there is none of that number", (int)p->schedule);
    if (v > 1 && !k->chunks)
        return im_fail(ctx, IM_ERR_ARG, "chunks %d with the schedule %s: chunks are of the interleaved schedule; chunks 1, or pipeline interleaved",
                       v, k->name);
    if (v < 1 || v > IM_MAX_CHUNKS)
        return im_fail(ctx, IM_ERR_ARG, "chunks %d: 1 to %d", v, IM_MAX_CHUNKS);
    if ((int64_t)v * p->mesh.pp > p->model->arch.L)
        return im_fail(ctx, IM_ERR_ARG, "pp %d x chunks %d = %d runs of blocks, but %s has %lld blocks; at most %lld chunks", p->mesh.pp, v,
                       p->mesh.pp * v, p->model->source, (long long)p->model->arch.L, (long long)(p->model->arch.L / p->mesh.pp));
    int64_t sum = 0;
    for (int i = 0; p->stages == IM_STAGES_GIVEN && i < p->mesh.pp * v; i++) {
        if (p->cut[i] < 1)
            return im_fail(ctx, IM_ERR_ARG, "stages: number %d has %lld blocks; each needs one at least", i + 1, (long long)p->cut[i]);
        sum += p->cut[i];
    }
    if (p->stages == IM_STAGES_GIVEN && sum != p->model->arch.L)
        return im_fail(ctx, IM_ERR_ARG, "stages: %lld blocks in all, but %s has %lld", (long long)sum, p->model->source, (long long)p->model->arch.L);
    return IM_OK;
}

/* The sum over the two stages that hold a tied table would have to meet once a micro-batch, in an order that 1F1B does not have: the program
 * check finds a deadlock. */
static im_status rule_tied_zero(im_context *ctx, const im_plan *p)
{
    if (p->model->arch.tied && p->mesh.pp > 1 && p->zero >= 2)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "zero %d with pp %d and tied embeddings (%s: tie_word_embeddings): zero 0 or 1, or pp 1", p->zero,
                       p->mesh.pp, p->model->source);
    return IM_OK;
}

static im_status rule_seq_len(im_context *ctx, const im_plan *p)
{
    if (p->seq_len < 1)
        return im_fail(ctx, IM_ERR_ARG, "seq-len %lld: 1 or more", (long long)p->seq_len);
    if (p->model->arch.learned_positions && p->seq_len > p->model->arch.P)
        return im_fail(ctx, IM_ERR_ARG, "seq-len %lld is beyond the model's %lld positions (%s: n_positions); at most %lld", (long long)p->seq_len,
                       (long long)p->model->arch.P, p->model->source, (long long)p->model->arch.P);
    if (p->model->arch.P && p->seq_len > p->model->arch.P)
        return im_fail(ctx, IM_ERR_ARG, "seq-len %lld is beyond the model's %lld positions (%s: max_position_embeddings); at most %lld",
                       (long long)p->seq_len, (long long)p->model->arch.P, p->model->source, (long long)p->model->arch.P);
    return IM_OK;
}

static im_status rule_batch(im_context *ctx, const im_plan *p)
{
    if (p->micro_batch < 1)
        return im_fail(ctx, IM_ERR_ARG, "micro-batch %lld: 1 or more", (long long)p->micro_batch);
    if (p->global_batch < p->mesh.dp)
        return im_fail(ctx, IM_ERR_ARG, "global-batch %lld: at least one sequence for each of the dp %d ranks", (long long)p->global_batch,
                       p->mesh.dp);
    if (p->seq_len > INT32_MAX / p->micro_batch)
        return im_fail(ctx, IM_ERR_ARG, "micro-batch %lld x seq-len %lld: at most 2^31 tokens a micro-batch", (long long)p->micro_batch,
                       (long long)p->seq_len);
    return IM_OK;
}

enum { IM_BLOCK_STEPS = 60000 }; /* blocks x micro-batches of a step: op lists of some 13 KB each */

/* The program of a step names every op of every micro-batch: it must stay well below the machine's memory. */
static im_status rule_program_size(im_context *ctx, const im_plan *p)
{
    int64_t blocks = p->model->arch.L / p->mesh.pp + 2, per_rank = (p->global_batch + p->mesh.dp - 1) / p->mesh.dp;
    int64_t n = (per_rank + p->micro_batch - 1) / p->micro_batch, most = IM_BLOCK_STEPS / blocks > 1 ? IM_BLOCK_STEPS / blocks : 1;
    if (n <= most)
        return IM_OK;
    int64_t larger = (per_rank + most - 1) / most;
    return im_fail(
        ctx, IM_ERR_ARG,
        "global-batch %lld in micro-batches of %lld makes %lld micro-batches a step, at most %lld for %lld blocks: micro-batch %lld or more, "
        "or a smaller global-batch",
        (long long)p->global_batch, (long long)p->micro_batch, (long long)n, (long long)most, (long long)p->model->arch.L, (long long)larger);
}

static im_status rule_precision(im_context *ctx, const im_plan *p)
{
    if (p->precision != IM_F32 && p->precision != IM_BF16)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "precision %s: fp32 or bf16", im_dtype_name(p->precision));
    if (p->dropout >= 1)
        return im_fail(ctx, IM_ERR_ARG, "dropout %g: below 1", p->dropout);
    if (p->label_smoothing < 0 || p->label_smoothing >= 1)
        return im_fail(ctx, IM_ERR_ARG, "label-smoothing %g: from 0 to below 1", p->label_smoothing);
    if (p->zero < 0 || p->zero > 3)
        return im_fail(ctx, IM_ERR_ARG, "zero %d: 0, 1, 2 or 3", p->zero);
    return IM_OK;
}

im_status im_plan_validate(im_context *ctx, const im_plan *p)
{
    IM_TRY(im_model_need_runnable(ctx, p->model));
    return im_plan_validate_shape(ctx, p);
}

im_status im_plan_validate_shape(im_context *ctx, const im_plan *p)
{
    IM_TRY(rule_mesh(ctx, p));
    IM_TRY(rule_schedule(ctx, p));
    IM_TRY(rule_tied_zero(ctx, p));
    IM_TRY(rule_seq_len(ctx, p));
    IM_TRY(rule_batch(ctx, p));
    IM_TRY(rule_program_size(ctx, p));
    return rule_precision(ctx, p);
}

/* Sequences of one dp rank: the first global_batch % dp ranks have one more. */
static int64_t rank_batch(const im_plan *p, int dp_rank)
{
    return p->global_batch / p->mesh.dp + (dp_rank < p->global_batch % p->mesh.dp);
}

/* The largest share decides how many micro-batches all ranks make: their collectives must meet. */
int im_plan_micro_batches(const im_plan *p, int dp_rank)
{
    (void)dp_rank;
    return (int)((rank_batch(p, 0) + p->micro_batch - 1) / p->micro_batch);
}

int64_t im_plan_micro_batch_size(const im_plan *p, int dp_rank, int mb)
{
    int64_t m = im_plan_micro_batches(p, dp_rank), n = rank_batch(p, dp_rank);
    return n / m + (mb < n % m);
}

int64_t im_plan_first_sample(const im_plan *p, int dp_rank, int mb)
{
    int64_t m = im_plan_micro_batches(p, dp_rank), n = rank_batch(p, dp_rank), first = 0;
    for (int r = 0; r < dp_rank; r++)
        first += rank_batch(p, r);
    int64_t extra = n % m;
    return first + n / m * mb + (mb < extra ? mb : extra);
}

void im_plan_to_yaml(const im_plan *p, im_str *out)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    im_str_printf(out,
                  "layout:\n  tp: %d\n  cp: %d\n  dp: %d\n  pp: %d\n  order: [tp, cp, dp, pp]\n  zero: %d\n  schedule: %s\n  chunks: %d\n  "
                  "sequence_parallel: %s\n "
                  " recompute: %s\n",
                  p->mesh.tp, p->mesh.cp, p->mesh.dp, p->mesh.pp, p->zero, im_schedule_of(p->schedule)->name, im_plan_chunks(p),
                  p->sequence_parallel ? "true" : "false", recompute[p->recompute]);
    im_str_printf(out, "  micro_batches: %d\n  threads: %d\n", im_plan_micro_batches(p, 0), p->threads);
    im_str_printf(out, "model:\n  family: %s\n  parameters: %lld\n  identity: \"%016llx\"\n", p->model->family,
                  (long long)im_model_param_count(p->model), (unsigned long long)im_model_identity(p->model));
}
