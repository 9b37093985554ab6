/* Evaluation: the sum of the losses of all counted tokens over their count (rule 3). A feed of n samples of T tokens and a tail is read by up to three programs: (B,T) as often as it fits, (n mod B, T), and (1, tail).
 */
#include "train/internal.h"

#include "engine/agree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void im_train_mean_add(im_train_mean *m, double sum, double count)
{
    m->sum += sum;
    m->count += count;
}

double im_train_mean_value(const im_train_mean *m)
{
    return m->count > 0 ? m->sum / m->count : NAN;
}

static void add_part(im_train_eval *v, int64_t batch, int64_t seq_len, int64_t runs, int64_t first, int64_t samples, bool tail)
{
    if (batch < 1 || seq_len < 1 || runs < 1)
        return;
    v->part[v->nparts].batch = batch;
    v->part[v->nparts].seq_len = seq_len;
    v->part[v->nparts].runs = runs;
    v->part[v->nparts].first = first;
    v->part[v->nparts].samples = samples;
    v->part[v->nparts].tail = tail;
    v->nparts++;
}

void im_train_eval_plan(const im_feed *f, int64_t seq_len, int64_t batch, int64_t max_batches, const int32_t *token_bytes, im_train_eval *out)
{
    im_train_eval v = {.feed = f, .seq_len = seq_len, .token_bytes = token_bytes};
    int64_t samples = im_feed_samples(f), full = samples / batch;
    bool all = max_batches == 0 || full < max_batches;
    if (!all)
        full = max_batches;
    add_part(&v, batch, seq_len, full, 0, full * batch, false);
    if (all) {
        add_part(&v, samples % batch, seq_len, 1, full * batch, samples % batch, false);
        if (im_feed_pack(f) == IM_PACK_STREAM)
            add_part(&v, 1, im_feed_tokens(f) - 1 - samples * seq_len, 1, samples * seq_len, 1, true);
    }
    *out = v;
}

void im_train_eval_split(im_train_eval *v, int64_t batch, int dp)
{
    if (dp == 1)
        return;
    im_train_eval old = *v;
    int64_t samples = 0;
    v->nparts = 0;
    for (int p = 0; p < old.nparts; p++)
        samples += old.part[p].tail ? 0 : old.part[p].samples;
    int64_t share = (samples + dp - 1) / dp;
    if (share < batch)
        batch = share;
    if (batch)
        add_part(v, batch, old.seq_len, (share + batch - 1) / batch, 0, samples, false);
    for (int p = 0; p < old.nparts; p++) /* of one rank, the others join with padding */
        if (old.part[p].tail)
            add_part(v, 1, old.part[p].seq_len, 1, old.part[p].first, 1, true);
}

void im_train_eval_want(im_train_eval *v, im_program_want *want, size_t *nwant)
{
    v->program0 = *nwant;
    for (int i = 0; i < v->nparts; i++)
        want[(*nwant)++] = (im_program_want){.mode = IM_MODE_EVAL, .batch = v->part[i].batch, .seq_len = v->part[i].seq_len};
}

/* ---- reading ---------------------------------------------------------------------- */

typedef struct im_eval_source {
    im_context *ctx;
    const im_train_eval *v;
    int64_t first, samples; /* of the part */
    bool tail;
    int64_t batch0; /* of the run's batch: this rank's first sample */
    double bytes;   /* of text, of the targets that count */
} im_eval_source;

/* A place of the batch that no sample is left for. */
static void pad(int64_t T, int32_t *ids, int32_t *targets, int32_t *pos, int32_t *seg)
{
    for (int64_t i = 0; i < T; i++) {
        ids[i] = 0;
        targets[i] = -1;
        pos[i] = (int32_t)i;
    }
    if (seg)
        memset(seg, 0, sizeof *seg * (size_t)T);
}

/* im_source.load: sample i of a part is sample first + i of the feed; the tail begins at token `first`. */
static im_status load(void *arg, const im_op_now *now, int64_t first_sample, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    im_eval_source *s = arg;
    for (int64_t b = 0; b < B; b++) {
        int64_t i = now->sample0 + s->batch0 + first_sample + b;
        int32_t *x = ids + b * T, *y = targets + b * T, *p = pos + b * T, *g = seg ? seg + b * T : NULL;
        if (i >= s->samples) {
            pad(T, x, y, p, g);
            continue;
        }
        IM_TRY(s->tail ? im_feed_read_at(s->ctx, s->v->feed, s->first, T, x, y, p, g) : im_feed_read(s->ctx, s->v->feed, s->first + i, x, y, p, g));
        for (int64_t t = 0; s->v->token_bytes && t < T; t++)
            s->bytes += y[t] >= 0 ? s->v->token_bytes[y[t]] : 0;
    }
    return IM_OK;
}

static void tell_progress(const im_train_env *env, int64_t done, int64_t runs)
{
    char line[80];
    if (!env || !env->text || done == runs)
        return;
    snprintf(line, sizeof line, "evaluating | batch %" PRId64 "/%" PRId64, done, runs);
    env->text(env->arg, IM_TRAIN_TEXT_PROGRESS, line);
}

/* Rank 0 hears of the signal. */
static im_status go_on(im_context *ctx, im_engine *e, const im_train_env *env)
{
    double stop = env && env->stop && env->stop(env->arg);
    IM_TRY(im_engine_combine(e, &stop, 1, IM_MAX));
    return stop != 0 ? im_fail(ctx, IM_ERR_STOPPED, "stopped during the evaluation") : IM_OK;
}

im_status im_train_eval_run(im_context *ctx, im_engine *e, const im_train_eval *v, const im_train_env *env, im_observe_eval *out)
{
    im_train_mean mean = {0};
    im_eval_source arg = {.ctx = ctx, .v = v};
    im_source source = {.arg = &arg, .load = load};
    const im_layout *l = im_engine_layout(e);
    double t0 = im_clock_now();
    int64_t runs = 0, done = 0;
    for (int p = 0; p < v->nparts; p++)
        runs += v->part[p].runs;
    for (int p = 0; p < v->nparts; p++) {
        arg.first = v->part[p].first;
        arg.tail = v->part[p].tail;
        arg.samples = v->part[p].samples;
        arg.batch0 = l->place.dp * v->part[p].batch;
        for (int64_t i = 0; i < v->part[p].runs; i++) {
            IM_TRY(go_on(ctx, e, env));
            im_op_now now = {.sample0 = i * v->part[p].batch * l->mesh.dp};
            im_metrics m;
            IM_TRY(im_engine_run(e, v->program0 + (size_t)p, &now, &source));
            IM_TRY(im_engine_metrics(e, &m));
            im_train_mean_add(&mean, m.loss_sum, m.tokens);
            tell_progress(env, ++done, runs);
        }
    }
    if (l->place.tp || l->place.pp) /* each sample's bytes once */
        arg.bytes = 0;
    IM_TRY(im_engine_combine(e, &arg.bytes, 1, IM_SUM));
    *out = (im_observe_eval){
        .step = out->step, .loss = im_train_mean_value(&mean), .counted = (int64_t)mean.count, .bits_per_byte = -1, .seconds = im_clock_now() - t0};
    if (v->token_bytes && arg.bytes > 0)
        out->bits_per_byte = mean.sum / M_LN2 / arg.bytes;
    return IM_OK;
}
