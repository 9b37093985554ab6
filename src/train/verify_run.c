/* verify: one layout, its ranks as threads of this process. */
#include "train/verify_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_of {
    im_train_verify_job *job;
    int rank;
    bool rounded;                 /* the reference's second pass: the last bits of the weights are moved */
    im_train_verify_trace *trace; /* NULL: no digests */
    im_context *ctx;
} rank_of;

enum { IM_PIECE = 1 << 18 }; /* elements read at once */

/* ---- what goes in ------------------------------------------------------------------------ */

/* im_source.load: samples of the token file in order, from its start again when it ends; or drawn ids, of which samples count different shares, so
 * that a mean of means would be wrong. */
static im_status load(void *arg, const im_op_now *now, int64_t first, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    const rank_of *me = arg;
    const im_train_verify_batch *d = me->job->batch;
    for (int64_t i = 0; i < B * T; i++) {
        int64_t sample = now->sample0 + first + i / T, t = i % T;
        pos[i] = (int32_t)t;
        if (seg)
            seg[i] = 0;
        if (d->tokens) {
            int32_t two[2];
            IM_TRY(im_tokens_read(me->ctx, d->tokens, sample % d->samples * T + t, 2, two));
            for (int k = 0; k < 2; k++)
                if (two[k] < 0 || two[k] >= d->vocab)
                    return im_fail(me->ctx, IM_ERR_FORMAT, "%s.bin: token %lld has id %d, the model's vocabulary is %lld",
                                   im_tokens_prefix(d->tokens), (long long)(sample % d->samples * T + t + k), two[k], (long long)d->vocab);
            ids[i] = two[0];
            targets[i] = two[1];
            continue;
        }
        uint32_t r[4], next[4];
        im_philox(d->seed, (uint64_t)sample, (uint64_t)t, r);
        im_philox(d->seed, (uint64_t)sample, (uint64_t)t + 1, next);
        ids[i] = (int32_t)(r[0] % (uint64_t)d->vocab);
        targets[i] = r[1] % 7 < 2 + (uint64_t)sample % 6 ? (int32_t)(next[0] % (uint64_t)d->vocab) : -1;
    }
    return IM_OK;
}

static im_status values(void *arg, uint32_t param, int64_t first, int64_t count, float *out)
{
    const rank_of *me = arg;
    memcpy(out, me->job->weight[param] + first, (size_t)count * sizeof *out);
    if (me->rounded) /* up or down by two to four units in the last place */
        for (int64_t i = 0; i < count; i++) {
            uint64_t x = ((uint64_t)(first + i) + 1) * 0x9E3779B97F4A7C15u;
            out[i] *= (x ^ x >> 29) * 0xBF58476D1CE4E5B9u >> 63 ? 1 + 0x1p-22f : 1 - 0x1p-22f;
        }
    return IM_OK;
}

/* ---- what comes out ------------------------------------------------------------------------ */

static double relative(double a, double b)
{
    double d = fabs(a - b) / (fabs(b) > 1e-30 ? fabs(b) : 1e-30);
    return d < INFINITY ? d : INFINITY;
}

static void note_metrics(rank_of *me, int64_t step, const im_metrics *m)
{
    im_train_verify_job *j = me->job;
    im_train_verify_reference *ref = j->reference;
    if (j->first && !me->rounded) {
        ref->loss[step] = m->loss;
        ref->norm[step] = m->grad_norm;
        ref->tokens[step] = m->tokens;
        return;
    }
    double loss = m->tokens == ref->tokens[step] ? relative(m->loss, ref->loss[step]) : INFINITY, norm = relative(m->grad_norm, ref->norm[step]);
    if (me->rounded) { /* the most of any step: one may be small by chance */
        ref->loss_rounding = ref->loss_rounding > loss ? ref->loss_rounding : loss;
        ref->norm_rounding = ref->norm_rounding > norm ? ref->norm_rounding : norm;
        return;
    }
    pthread_mutex_lock(&j->lock);
    if (!(loss <= im_train_verify_limit(j->tolerance, ref->loss_rounding)) && (j->loss_step < 0 || step < j->loss_step))
        j->loss_step = step;
    if (!(norm <= im_train_verify_limit(j->tolerance, ref->norm_rounding)) && (j->norm_step < 0 || step < j->norm_step))
        j->norm_step = step;
    j->loss = loss > j->loss ? loss : j->loss;
    j->norm = norm > j->norm ? norm : j->norm;
    pthread_mutex_unlock(&j->lock);
}

static void compare_run(im_train_verify_tensor *t, const float *a, const float *b, int64_t first, size_t n)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d < INFINITY))
            d = INFINITY;
        squares += d * d;
        if (d > t->worst) {
            t->worst = d;
            t->index = first + (int64_t)i;
        }
    }
    t->squares += squares;
    t->seen += (int64_t)n;
}

/* The runs of one owned segment, as many at once as a piece holds: bands of a matrix lie between each other. */
static im_status take_segment(im_engine *e, const rank_of *me, size_t bucket, const im_segment *s, im_train_verify_tensor *mine, float *piece)
{
    float *ref = me->job->reference->gradient[s->param];
    bool keep = me->job->first && !me->rounded;
    im_train_verify_tensor *t = &mine[s->param];
    t->sum |= s->sum;
    for (size_t r = 0; r < s->n;) {
        size_t local = s->local0 + r * s->local_stride, runs = 1;
        if (s->run <= IM_PIECE && s->local_stride)
            runs += (IM_PIECE - s->run) / s->local_stride;
        runs = runs < s->n - r ? runs : s->n - r;
        size_t extent = (runs - 1) * s->local_stride + s->run;
        for (size_t at = 0; at < extent; at += IM_PIECE) { /* a run longer than a piece comes alone */
            size_t n = extent - at < IM_PIECE ? extent - at : IM_PIECE;
            IM_TRY(im_engine_read(e, IM_STATE_GRAD, bucket, local + at, n, piece));
            for (size_t k = 0; k < runs; k++) {
                size_t global = s->global0 + (r + k) * s->global_stride + at, len = runs > 1 ? s->run : n;
                const float *from = piece + k * s->local_stride;
                if (keep)
                    memcpy(ref + global, from, len * sizeof *from);
                compare_run(t, from, ref + global, (int64_t)global, len);
            }
        }
        r += runs;
    }
    return IM_OK;
}

static void merge(im_train_verify_job *j, const im_train_verify_tensor *mine)
{
    pthread_mutex_lock(&j->lock);
    for (size_t q = 0; q < j->plan->model->nparam; q++) {
        im_train_verify_tensor *t = &j->tensor[q];
        t->squares += mine[q].squares;
        t->seen += mine[q].seen;
        t->sum |= mine[q].sum;
        if (mine[q].worst > t->worst) {
            t->worst = mine[q].worst;
            t->index = mine[q].index;
        }
    }
    pthread_mutex_unlock(&j->lock);
}

static im_status take_gradients(rank_of *me, im_engine *e)
{
    const im_layout *l = im_engine_layout(e);
    void *mine = NULL, *piece = NULL;
    im_status status;
    IM_TRY(im_alloc(me->ctx, l->model->nparam, sizeof(im_train_verify_tensor), &mine));
    IM_TRY_GOTO(im_alloc(me->ctx, IM_PIECE, sizeof(float), &piece), arrays);
    for (size_t b = 0; b < l->model->nbucket; b++)
        for (size_t i = 0; l->bucket[b].held && i < l->bucket[b].nowned; i++)
            if (l->bucket[b].owned[i].owner)
                IM_TRY_GOTO(take_segment(e, me, b, &l->bucket[b].owned[i], mine, piece), arrays);
    merge(me->job, mine);
arrays:
    free(piece);
    free(mine);
    return status;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static im_status run_steps(rank_of *me, im_engine *e)
{
    im_train_verify_job *j = me->job;
    im_source src = {.arg = me, .load = load};
    for (int64_t i = 0; i < j->steps; i++) {
        im_op_now now = {.step = i, .sample0 = i * j->plan->global_batch};
        im_metrics m;
        IM_TRY(im_engine_set_hyper(e, j->lr, 1.0));
        IM_TRY(im_engine_run(e, 0, &now, &src));
        IM_TRY(im_engine_metrics(e, &m));
        note_metrics(me, i, &m);
        if (i == 0)
            IM_TRY(take_gradients(me, e));
    }
    size_t resident = im_process_rss(); /* the first rank that is here sees all of them */
    pthread_mutex_lock(&j->lock);
    j->resident = resident > j->resident ? resident : j->resident;
    pthread_mutex_unlock(&j->lock);
    return IM_OK;
}

/* Moments as before the first step. One rank, no ZeRO. */
static im_status reset_optimizer(rank_of *me, im_engine *e)
{
    static const im_state_kind kinds[] = {IM_STATE_M, IM_STATE_V};
    const im_layout *l = im_engine_layout(e);
    void *zeros;
    im_status status = IM_OK;
    IM_TRY(im_alloc(me->ctx, IM_PIECE, sizeof(float), &zeros));
    for (size_t b = 0; b < l->model->nbucket; b++)
        for (size_t k = 0; k < IM_COUNT_OF(kinds); k++)
            for (size_t at = 0, count = l->bucket[b].count; at < count; at += IM_PIECE)
                IM_TRY_GOTO(im_engine_write(e, kinds[k], b, at, count - at < IM_PIECE ? count - at : IM_PIECE, zeros), zeros);
    status = im_engine_set_updates(e, 0);
zeros:
    free(zeros);
    return status;
}

/* The reference again, in the same engine, from weights whose last bits are moved. */
static im_status run_rounded(rank_of *me, im_engine *e)
{
    im_train_verify_job *j = me->job;
    const im_model *m = j->plan->model;
    for (size_t q = 0; q < m->nparam; q++) {
        if (j->tensor[q].seen != im_param_count(&m->param[q]))
            return im_fail(me->ctx, IM_ERR_INTERNAL, "one rank owns %lld of the %lld elements of %s", (long long)j->tensor[q].seen,
                           (long long)im_param_count(&m->param[q]), m->param[q].name);
        j->tensor[q] = (im_train_verify_tensor){0};
    }
    me->rounded = true;
    me->trace = &j->reference->rounded;
    IM_TRY(im_checkpoint_fill(me->ctx, e, values, me));
    IM_TRY(reset_optimizer(me, e));
    return run_steps(me, e);
}

static im_status tell_edge(void *arg, const im_engine_edge *x)
{
    const rank_of *me = arg;
    return im_train_verify_edge(me->trace, x);
}

static im_status run_rank(rank_of *me)
{
    im_train_verify_job *j = me->job;
    int n = im_mesh_size(&j->plan->mesh);
    im_device *d = NULL;
    im_comm *world = NULL;
    im_engine *e = NULL;
    im_status status;
    im_device_config device = {.threads = j->plan->threads, .kernels = j->kernels, .comm_threads = n > 1};
    IM_TRY(im_device_open(me->ctx, &device, &d));
    IM_TRY_GOTO(n > 1 ? im_comm_threads_attach(j->world, d, me->rank, &world) : im_comm_self(d, &world), close_device);
    im_program_want want = {.mode = IM_MODE_TRAIN};
    bool made = false;
    im_engine_debug debug = {
        .fault = j->fault, .at = j->fault_at, .group = j->fault_group, .made = &made, .arg = me, .edge = me->trace ? tell_edge : NULL};
    im_engine_config cfg = {.plan = j->plan, .device = d, .world = world, .want = &want, .nwant = 1, .debug = &debug};
    IM_TRY_GOTO(im_engine_open(me->ctx, &cfg, &e), abort_world);
    IM_TRY_GOTO(im_checkpoint_fill(me->ctx, e, values, me), abort_world);
    status = run_steps(me, e);
    if (status == IM_OK && j->first && j->reference->rounded.digest)
        status = run_rounded(me, e);
abort_world:
    if (status != IM_OK)
        im_comm_abort(world);
    im_engine_close(e);
    pthread_mutex_lock(&j->lock);
    j->broken |= made;
    pthread_mutex_unlock(&j->lock);
    im_comm_destroy(world);
close_device:
    im_device_close(d);
    return status;
}

static void *rank_thread(void *arg)
{
    rank_of *me = arg;
    im_train_verify_job *j = me->job;
    im_status status = run_rank(me);
    if (status == IM_OK)
        return NULL;
    pthread_mutex_lock(&j->lock);
    /* who was only told of another's failure is not the cause */
    if (j->status == IM_OK || (j->status == IM_ERR_ABORTED && status != IM_ERR_ABORTED)) {
        j->status = status;
        snprintf(j->error, sizeof j->error, "rank %d: %s", me->rank, im_error_text(me->ctx));
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static im_status start_ranks(im_context *ctx, im_train_verify_job *j, rank_of *rank, pthread_t *thread, int n)
{
    int started = 0;
    im_status status = IM_OK;
    for (; started < n && status == IM_OK; started++) {
        rank[started] = (rank_of){.job = j, .rank = started, .trace = j->trace ? &j->trace[started] : NULL};
        status = im_context_create(&rank[started].ctx);
        if (status == IM_OK) {
            im_context_set_rank(rank[started].ctx, started);
            if (pthread_create(&thread[started], NULL, rank_thread, &rank[started]) != 0)
                status = im_fail(ctx, IM_ERR_NOMEM, "no thread for rank %d", started);
        }
        if (status != IM_OK) {
            im_context_destroy(rank[started].ctx);
            break;
        }
    }
    /* the ranks that run wait for the missing one until their deadline, and end */
    for (int r = 0; r < started; r++) {
        pthread_join(thread[r], NULL);
        im_context_destroy(rank[r].ctx);
    }
    return status;
}

im_status im_train_verify_run(im_context *ctx, im_train_verify_job *j)
{
    int n = im_mesh_size(&j->plan->mesh);
    void *rank = NULL, *thread = NULL;
    im_status status;
    j->loss_step = j->norm_step = -1;
    pthread_mutex_init(&j->lock, NULL);
    IM_TRY_GOTO(im_alloc(ctx, (size_t)n, sizeof(rank_of), &rank), ranks);
    IM_TRY_GOTO(im_alloc(ctx, (size_t)n, sizeof(pthread_t), &thread), ranks);
    im_comm_threads_config world = {.size = n, .deadline = 120};
    if (n > 1)
        IM_TRY_GOTO(im_comm_threads_world_create(ctx, &world, &j->world), ranks);
    status = start_ranks(ctx, j, rank, thread, n);
    im_comm_threads_world_destroy(j->world);
    j->world = NULL;
ranks:
    free(thread);
    free(rank);
    pthread_mutex_destroy(&j->lock);
    return status;
}
