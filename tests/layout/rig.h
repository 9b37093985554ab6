/* rig.h: runs a plan on N ranks as threads of this process and brings the result together as logical tensors. */
#ifndef IM_TEST_LAYOUT_RIG_H
#define IM_TEST_LAYOUT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIG_RANKS = 8, RIG_STEPS = 8 };

typedef struct rig_result {
    int steps;
    double loss[RIG_STEPS], norm[RIG_STEPS], tokens[RIG_STEPS];
    double eval_loss;
    int64_t updates;
    float **weight, **grad; /* [nparam]: logical tensors; gradients of the last step, of the sum over tokens */
    char error[512];        /* of the first rank that failed */
} rig_result;

/* States of parameters as some rank holds them; every other that holds an element must have the same bits. */
enum { RIG_STATES = 5 };
typedef struct rig_held {
    float *value[RIG_STATES];
    unsigned char *seen[RIG_STATES];
} rig_held;

typedef struct rig_job {
    const im_plan *plan;
    int steps;
    bool deferred;
    im_kernels kernels;
    int64_t eval_batch;
    rig_result *out;
    im_comm_threads_world *world;
    pthread_mutex_t lock;
    struct rig_hooks *hooks;               /* NULL: none */
    rig_held *held;                        /* [nparam]; NULL: ranks are not compared */
    im_metrics seen[RIG_RANKS][RIG_STEPS]; /* of each rank */
} rig_job;

typedef struct rig_rank {
    rig_job *job;
    int rank;
    im_status status;
} rig_rank;

/* What a test does between the steps, on every rank. */
typedef struct rig_hooks {
    void *arg;
    int first_step;
    bool agree;                                                      /* what several ranks hold, and what each was told, must be the same bits */
    const im_source *source;                                         /* of the batches; NULL: rig_load */
    im_status (*start)(rig_rank *me, im_context *ctx, im_engine *e); /* sets the weights; NULL: rig_init */
    im_status (*before)(rig_rank *me, im_context *ctx, im_engine *e, int i); /* step i, and after the last (i = steps) */
} rig_hooks;

/* Sample s of the run: ids by position, some targets not counted; the same whatever the layout. */
static im_status rig_load(void *arg, const im_op_now *now, int64_t first, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                          int32_t *seg)
{
    const im_plan *p = arg;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            uint32_t r[4];
            uint64_t sample = (uint64_t)(now->sample0 + first + b);
            im_philox(77, sample, (uint64_t)t, r);
            int64_t i = b * T + t, V = p->model->arch.V;
            ids[i] = (int32_t)(r[0] % (uint64_t)V);
            /* samples differ in how many tokens count: a mean of means would be wrong */
            targets[i] = r[2] % 7 < 1 + sample % 7 ? (int32_t)((r[0] + 1 + r[1] % 3) % (uint64_t)V) : -1;
            pos[i] = (int32_t)t;
            if (seg)
                seg[i] = (int32_t)(t / 5);
        }
    return IM_OK;
}

static im_status rig_init(im_engine *e, const im_plan *p)
{
    const im_layout *l = im_engine_layout(e);
    for (size_t b = 0; b < p->model->nbucket; b++) {
        const im_bucket *k = &l->bucket[b];
        for (size_t i = 0; k->held && i < k->nseg; i++)
            for (size_t r = 0; r < k->seg[i].n; r++) {
                float *x = malloc(k->seg[i].run * sizeof *x);
                const im_param *q = &p->model->param[k->seg[i].param];
                /* norms of q and k stay near 1: scores of 20 would make a softmax that multiplies every rounding */
                const float scale = strstr(q->name, "q_norm") || strstr(q->name, "k_norm") ? 1.0f : 3.0f;
                im_param_init(q, 5, (int64_t)(k->seg[i].global0 + r * k->seg[i].global_stride), (int64_t)k->seg[i].run, x);
                for (size_t j = 0; j < k->seg[i].run; j++) { /* norms and biases too are not all alike, and logits not all near zero */
                    uint32_t w[4];
                    im_philox(9, k->seg[i].global0 + r * k->seg[i].global_stride + j, k->seg[i].param, w);
                    x[j] = x[j] * scale + 0.1f * (im_uniform_f32(w[0]) - 0.5f);
                }
                im_status s = im_engine_write(e, IM_STATE_WEIGHT, b, k->seg[i].local0 + r * k->seg[i].local_stride, k->seg[i].run, x);
                free(x);
                IM_TRY(s);
            }
    }
    return IM_OK;
}

/* The owned elements of a state into logical tensors. `whole` states (weights, unsharded gradients) are read by their owner alike. */
static im_status rig_collect(im_engine *e, const im_plan *p, im_state_kind kind, float **out)
{
    const im_layout *l = im_engine_layout(e);
    for (size_t b = 0; b < p->model->nbucket; b++) {
        const im_bucket *k = &l->bucket[b];
        for (size_t i = 0; k->held && i < k->nowned; i++) {
            const im_segment *s = &k->owned[i];
            for (size_t r = 0; s->owner && r < s->n; r++)
                IM_TRY(im_engine_read(e, kind, b, s->local0 + r * s->local_stride, s->run, out[s->param] + s->global0 + r * s->global_stride));
        }
    }
    return IM_OK;
}

/* What this rank holds of a segment against what others hold of it; bucket: elements from `from` on. */
static im_status rig_agree_on(rig_held *h, const im_param *q, im_context *ctx, im_state_kind k, const im_segment *s, const float *bucket, size_t from)
{
    for (size_t r = 0; r < s->n; r++) {
        size_t at = s->global0 + r * s->global_stride;
        const float *x = bucket + (s->local0 + r * s->local_stride - from);
        for (size_t i = 0; i < s->run; i++, at++, x++) {
            if (h->seen[k][at] && memcmp(&h->value[k][at], x, sizeof *x))
                return im_fail(ctx, IM_ERR_CHECK, "state %d of %s, element %zu: %.9g, another rank holds %.9g", (int)k, q->name, at, (double)*x,
                               (double)h->value[k][at]);
            h->seen[k][at] = 1;
            h->value[k][at] = *x;
        }
    }
    return IM_OK;
}

static im_status rig_agree_in(rig_rank *me, im_context *ctx, im_engine *e, im_state_kind k, size_t b)
{
    static const int sharded_from[RIG_STATES] = {
        [IM_STATE_WEIGHT] = 3, [IM_STATE_MASTER] = 1, [IM_STATE_M] = 1, [IM_STATE_V] = 1, [IM_STATE_GRAD] = 2};
    const im_layout *l = im_engine_layout(e);
    const im_bucket *x = &l->bucket[b];
    bool shard = l->zero >= sharded_from[k];
    size_t from = shard ? x->shard[l->place.dp] : 0, to = shard ? x->shard[l->place.dp + 1] : x->count;
    const im_segment *s = shard ? x->owned : x->seg;
    if (!x->held || from == to)
        return IM_OK;
    float *v = malloc((to - from) * sizeof *v);
    im_status status = v ? im_engine_read(e, k, b, from, to - from, v) : IM_ERR_NOMEM;
    for (size_t i = 0; i < (shard ? x->nowned : x->nseg) && status == IM_OK; i++)
        status = rig_agree_on(&me->job->held[s[i].param], &l->model->param[s[i].param], ctx, k, &s[i], v, from);
    free(v);
    return status;
}

/* Every element that several ranks hold (replicated, tied, a shared kv head, copies over dp) has the same bits on all of them. */
static im_status rig_agree(rig_rank *me, im_context *ctx, im_engine *e)
{
    im_status status = IM_OK;
    if (!me->job->held || !me->job->steps)
        return IM_OK;
    pthread_mutex_lock(&me->job->lock);
    for (int k = 0; k < RIG_STATES; k++)
        for (size_t b = 0; b < im_engine_layout(e)->model->nbucket && im_engine_has_state(e, (im_state_kind)k) && status == IM_OK; b++)
            status = rig_agree_in(me, ctx, e, (im_state_kind)k, b);
    pthread_mutex_unlock(&me->job->lock);
    return status;
}

static rig_held *rig_held_new(const im_model *m)
{
    rig_held *h = calloc(m->nparam, sizeof *h);
    for (size_t i = 0; i < m->nparam; i++)
        for (int k = 0; k < RIG_STATES; k++) {
            h[i].value[k] = calloc((size_t)im_param_count(&m->param[i]), sizeof(float));
            h[i].seen[k] = calloc((size_t)im_param_count(&m->param[i]), 1);
        }
    return h;
}

static void rig_held_free(const im_model *m, rig_held *h)
{
    for (size_t i = 0; i < m->nparam; i++)
        for (int k = 0; k < RIG_STATES; k++) {
            free(h[i].value[k]);
            free(h[i].seen[k]);
        }
    free(h);
}

/* All ranks were told the same loss, norm and count. */
static bool rig_same_metrics(const rig_job *j, int n, char *why, size_t size)
{
    for (int i = 0; i < j->steps; i++)
        for (int r = 1; r < n; r++) {
            const im_metrics *a = &j->seen[0][i], *b = &j->seen[r][i];
            if (memcmp(&a->loss, &b->loss, sizeof a->loss) || memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm) || a->tokens != b->tokens ||
                a->updates != b->updates || a->finite != b->finite)
                return snprintf(why, size, "step %d: rank %d has loss %.17g, norm %.17g of %g tokens, rank 0 %.17g, %.17g of %g", i, r, b->loss,
                                b->grad_norm, b->tokens, a->loss, a->grad_norm, a->tokens) < 0;
        }
    return true;
}

static im_status rig_run(rig_rank *me, im_context *ctx, im_device *d, im_comm *world)
{
    rig_job *j = me->job;
    const im_plan *p = j->plan;
    im_engine *e = NULL;
    im_program_want want[2] = {{.mode = IM_MODE_TRAIN}, {.mode = IM_MODE_EVAL, .batch = j->eval_batch, .seq_len = p->seq_len}};
    im_engine_config cfg = {.plan = p, .device = d, .world = world, .want = want, .nwant = p->mesh.dp == 1 ? 2 : 1};
    const rig_hooks *h = j->hooks;
    im_source src = {.arg = (void *)(uintptr_t)p, .load = rig_load};
    if (h && h->source)
        src = *h->source;
    im_status status = im_engine_open(ctx, &cfg, &e);
    if (status != IM_OK)
        return status;
    int first = h ? h->first_step : 0;
    status = h && h->start ? h->start(me, ctx, e) : rig_init(e, p);
    for (int i = 0; status == IM_OK && i < j->steps; i++) {
        im_op_now now = {.step = first + i, .sample0 = (first + i) * p->global_batch};
        im_metrics m;
        if (h && h->before)
            IM_TRY_GOTO(h->before(me, ctx, e, i), engine);
        IM_TRY_GOTO(im_engine_set_hyper(e, 1e-3, 1.0), engine);
        IM_TRY_GOTO(im_engine_run(e, 0, &now, &src), engine);
        IM_TRY_GOTO(im_engine_metrics(e, &m), engine);
        pthread_mutex_lock(&j->lock);
        j->seen[me->rank][i] = m;
        if (me->rank == 0) {
            j->out->loss[i] = m.loss;
            j->out->norm[i] = m.grad_norm;
            j->out->tokens[i] = m.tokens;
            j->out->updates = m.updates;
        }
        pthread_mutex_unlock(&j->lock);
    }
    if (status == IM_OK && h && h->before)
        status = h->before(me, ctx, e, j->steps);
    if (status == IM_OK && cfg.nwant == 2) {
        im_op_now now = {.step = j->steps, .sample0 = 1000};
        im_metrics m;
        IM_TRY_GOTO(im_engine_run(e, 1, &now, &src), engine);
        IM_TRY_GOTO(im_engine_metrics(e, &m), engine);
        if (me->rank == 0)
            j->out->eval_loss = m.loss;
    }
    if (status == IM_OK)
        status = rig_collect(e, p, IM_STATE_WEIGHT, j->out->weight);
    if (status == IM_OK)
        status = rig_collect(e, p, IM_STATE_GRAD, j->out->grad);
    if (status == IM_OK)
        status = rig_agree(me, ctx, e);
engine:
    if (status != IM_OK)
        im_comm_abort(world);
    im_engine_close(e);
    return status;
}

static void *rig_thread(void *arg)
{
    rig_rank *me = arg;
    rig_job *j = me->job;
    im_context *ctx = NULL;
    im_device *d = NULL;
    im_comm *world = NULL;
    int n = im_mesh_size(&j->plan->mesh);
    me->status = im_context_create(&ctx);
    im_context_set_rank(ctx, me->rank);
    im_device_config cfg = {.deferred = j->deferred, .threads = 1, .kernels = j->kernels, .comm_threads = n > 1};
    if (me->status == IM_OK)
        me->status = im_device_open(ctx, &cfg, &d);
    if (me->status == IM_OK)
        me->status = n > 1 ? im_comm_threads_attach(j->world, d, me->rank, &world) : im_comm_self(d, &world);
    if (me->status == IM_OK)
        me->status = rig_run(me, ctx, d, world);
    if (me->status != IM_OK) {
        pthread_mutex_lock(&j->lock);
        if (!j->out->error[0])
            snprintf(j->out->error, sizeof j->out->error, "rank %d: %s", me->rank, im_error_text(ctx));
        pthread_mutex_unlock(&j->lock);
    }
    im_comm_destroy(world);
    im_device_close(d);
    im_context_destroy(ctx);
    return NULL;
}

static float **rig_tensors(const im_model *m)
{
    float **t = calloc(m->nparam, sizeof *t);
    for (size_t i = 0; i < m->nparam; i++) {
        size_t n = (size_t)im_param_count(&m->param[i]);
        t[i] = malloc(n * sizeof(float));
        for (size_t k = 0; k < n; k++)
            t[i][k] = NAN; /* an element that nobody owns is noticed */
    }
    return t;
}

static im_status rig_train_with(const im_plan *p, int steps, bool deferred, im_kernels kernels, rig_hooks *hooks, rig_result *out)
{
    rig_job j = {.plan = p, .steps = steps, .deferred = deferred, .kernels = kernels, .eval_batch = 3, .out = out, .hooks = hooks};
    rig_rank ranks[RIG_RANKS];
    pthread_t threads[RIG_RANKS];
    int n = im_mesh_size(&p->mesh);
    im_context *ctx;
    assert_true(n <= RIG_RANKS && steps <= RIG_STEPS);
    *out = (rig_result){.steps = steps, .weight = rig_tensors(p->model), .grad = rig_tensors(p->model)};
    pthread_mutex_init(&j.lock, NULL);
    j.held = n > 1 && hooks && hooks->agree ? rig_held_new(p->model) : NULL;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_comm_threads_config cfg = {.size = n, .deadline = 60};
    if (n > 1)
        assert_int_equal(im_comm_threads_world_create(ctx, &cfg, &j.world), IM_OK);
    for (int r = 0; r < n; r++) {
        ranks[r] = (rig_rank){.job = &j, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, rig_thread, &ranks[r]), 0);
    }
    im_status status = IM_OK;
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
        if (status == IM_OK)
            status = ranks[r].status;
    }
    im_comm_threads_world_destroy(j.world);
    im_context_destroy(ctx);
    pthread_mutex_destroy(&j.lock);
    if (j.held)
        rig_held_free(p->model, j.held);
    if (status == IM_OK && hooks && hooks->agree && !rig_same_metrics(&j, n, out->error, sizeof out->error))
        status = IM_ERR_CHECK;
    return status;
}

static inline im_status rig_train(const im_plan *p, int steps, bool deferred, im_kernels kernels, rig_result *out)
{
    return rig_train_with(p, steps, deferred, kernels, NULL, out);
}

static void rig_free(const im_model *m, rig_result *r)
{
    if (!r->weight)
        return;
    for (size_t i = 0; i < m->nparam; i++) {
        free(r->weight[i]);
        free(r->grad[i]);
    }
    free(r->weight);
    free(r->grad);
}

/* |a - b| / |b| of a tensor; where b is all but zero (a key bias' gradient) |a - b| against `floor`. */
static inline double rig_distance(const float *a, const float *b, size_t n, double floor)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    if (d != d)
        return INFINITY;
    return sqrt(d) / (sqrt(s) > floor ? sqrt(s) : floor);
}

#endif
