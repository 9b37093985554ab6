/* rig: one model, one device, one engine, as the trainer holds them; for tests that compare numbers.
 *
 * Everything here fails the running cmocka test with the context's error text.
 */
#ifndef IM_TESTS_GOLDEN_RIG_H
#define IM_TESTS_GOLDEN_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "model/safetensors.h"

typedef struct rig_how {
    im_kernels kernels;
    bool deferred;
    int slow_ns, threads; /* threads 0: 2 */
    im_dtype precision;
    int64_t micro_batch, global_batch, seq_len;
    double label_smoothing, weight_decay;
    bool documents;
} rig_how;

typedef struct rig {
    im_context *ctx;
    im_model *model;
    im_device *device;
    im_comm *world;
    im_engine *engine;
    im_plan plan;
} rig;

/* Samples of a step in host memory, (samples, T) each. pos NULL: 0, 1, ... from now->pos. seg NULL: none. */
typedef struct rig_batch {
    const int32_t *ids, *targets, *pos, *seg;
} rig_batch;

static inline void rig_check(im_context *ctx, im_status status, const char *file, int line)
{
    if (status != IM_OK) {
        print_error("%s:%d: %s: %s\n", file, line, im_status_name(status), im_error_text(ctx));
        _fail(file, line);
    }
}
#define RIG_OK(ctx, expr) rig_check((ctx), (expr), __FILE__, __LINE__)

static inline void *rig_alloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    assert_non_null(p);
    return p;
}

/* A warning or an error that nobody expects fails the test. */
static inline void rig_log(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    (void)arg, (void)rank;
    if (level <= IM_LOG_WARN)
        fail_msg("unexpected %s: %s: %s", level == IM_LOG_WARN ? "warning" : "error", part, message);
}

static inline void rig_open_model(rig *r, const char *what)
{
    *r = (rig){0};
    RIG_OK(NULL, im_context_create(&r->ctx));
    im_context_set_log(r->ctx, rig_log, NULL, IM_LOG_WARN);
    RIG_OK(r->ctx, im_model_open(r->ctx, what, NULL, &r->model));
}

static inline void rig_open_engine(rig *r, rig_how how, const im_program_want *want, size_t nwant)
{
    im_plan_defaults(&r->plan, r->model);
    r->plan.seq_len = how.seq_len;
    r->plan.micro_batch = how.micro_batch;
    r->plan.global_batch = how.global_batch;
    r->plan.precision = how.precision;
    r->plan.dropout = 0;
    r->plan.label_smoothing = how.label_smoothing;
    r->plan.beta1 = 0.9, r->plan.beta2 = 0.95, r->plan.eps = 1e-8;
    r->plan.weight_decay = how.weight_decay;
    r->plan.threads = how.threads ? how.threads : 2;
    r->plan.documents = how.documents;
    RIG_OK(r->ctx, im_plan_validate(r->ctx, &r->plan));
    im_device_config dc = {.deferred = how.deferred, .threads = r->plan.threads, .kernels = how.kernels, .slow_ns = how.slow_ns};
    RIG_OK(r->ctx, im_device_open(r->ctx, &dc, &r->device));
    RIG_OK(r->ctx, im_comm_self(r->device, &r->world));
    im_engine_config ec = {.plan = &r->plan, .device = r->device, .world = r->world, .want = want, .nwant = nwant};
    RIG_OK(r->ctx, im_engine_open(r->ctx, &ec, &r->engine));
}

static inline void rig_close_engine(rig *r)
{
    im_engine_close(r->engine);
    im_comm_destroy(r->world);
    im_device_close(r->device);
    r->engine = NULL, r->world = NULL, r->device = NULL;
}

static inline void rig_close(rig *r)
{
    rig_close_engine(r);
    im_model_close(r->model);
    im_context_destroy(r->ctx);
}

/* One whole parameter between a logical (global) array and the engine, run by run of its segments. */
static inline void rig_param_io(rig *r, im_state_kind kind, size_t param, float *read, const float *write)
{
    const im_layout *l = im_engine_layout(r->engine);
    size_t bucket = r->model->param[param].bucket;
    for (size_t s = 0; s < l->bucket[bucket].nseg; s++) {
        const im_segment *seg = &l->bucket[bucket].seg[s];
        if (seg->param != param)
            continue;
        for (size_t i = 0; i < seg->n; i++) {
            size_t global = seg->global0 + i * seg->global_stride, local = seg->local0 + i * seg->local_stride;
            if (read)
                RIG_OK(r->ctx, im_engine_read(r->engine, kind, bucket, local, seg->run, read + global));
            else
                RIG_OK(r->ctx, im_engine_write(r->engine, kind, bucket, local, seg->run, write + global));
        }
    }
}

static inline size_t rig_param_count(const rig *r, size_t param)
{
    return (size_t)im_param_count(&r->model->param[param]);
}

static inline float *rig_param_read(rig *r, im_state_kind kind, size_t param)
{
    float *out = rig_alloc(rig_param_count(r, param), sizeof(float));
    rig_param_io(r, kind, param, out, NULL);
    return out;
}

/* All parameters from a Hugging Face directory. */
static inline void rig_load_weights(rig *r, const char *dir)
{
    im_weights *w;
    RIG_OK(r->ctx, im_weights_open(r->ctx, dir, &w));
    const im_st_tensor **t = rig_alloc(r->model->nparam, sizeof(*t));
    RIG_OK(r->ctx, im_weights_match(r->ctx, w, r->model, t));
    for (size_t p = 0; p < r->model->nparam; p++) {
        size_t n = rig_param_count(r, p);
        float *values = rig_alloc(n, sizeof(float));
        RIG_OK(r->ctx, im_weights_read(r->ctx, w, t[p], 0, (int64_t)n, IM_F32, values));
        rig_param_io(r, IM_STATE_WEIGHT, p, NULL, values);
        free(values);
    }
    free(t);
    im_weights_close(w);
}

static inline im_status rig_load(void *arg, const im_op_now *now, int64_t first_sample, int64_t B, int64_t T, int32_t *ids, int32_t *targets,
                                 int32_t *pos, int32_t *seg)
{
    const rig_batch *b = arg;
    size_t at = (size_t)(first_sample * T), n = (size_t)(B * T);
    if (ids)
        memcpy(ids, b->ids + at, n * sizeof(*ids));
    if (targets)
        memcpy(targets, b->targets + at, n * sizeof(*targets));
    for (size_t i = 0; pos && i < n; i++)
        pos[i] = b->pos ? b->pos[at + i] : (int32_t)(now->pos + (int64_t)(i % (size_t)T));
    if (seg && b->seg)
        memcpy(seg, b->seg + at, n * sizeof(*seg));
    return IM_OK;
}

/* Runs program i on a batch and waits. */
static inline im_metrics rig_run(rig *r, size_t i, im_op_now now, const rig_batch *b)
{
    im_metrics m = {0};
    im_source src = {.arg = (void *)(uintptr_t)b, .load = rig_load};
    RIG_OK(r->ctx, im_engine_run(r->engine, i, &now, &src));
    RIG_OK(r->ctx, im_engine_metrics(r->engine, &m));
    return m;
}

/* One training step at a learning rate. */
static inline im_metrics rig_step(rig *r, size_t i, int64_t step, double lr, double clip, const rig_batch *b)
{
    RIG_OK(r->ctx, im_engine_set_hyper(r->engine, lr, clip));
    return rig_run(r, i, (im_op_now){.step = step, .sample0 = step * r->plan.global_batch}, b);
}

/* ||a - b|| / ||b||; 0 for two zero arrays, infinite when only b is zero. */
static inline double rig_relative(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return d == 0 ? 0 : s == 0 ? INFINITY : isnan(d) ? INFINITY : sqrt(d / s);
}

static inline double rig_max_abs(const float *a, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, isnan(a[i]) ? INFINITY : fabs((double)a[i]));
    return m;
}

static inline void rig_assert_close(double got, double want, double relative, const char *what, const char *file, int line)
{
    if (!(fabs(got - want) <= relative * fabs(want))) {
        print_error("%s:%d: %s: %.9g, should be %.9g (relative %.2e, allowed %.1e)\n", file, line, what, got, want, fabs(got - want) / fabs(want),
                    relative);
        _fail(file, line);
    }
}
#define RIG_CLOSE(got, want, relative, what) rig_assert_close((got), (want), (relative), (what), __FILE__, __LINE__)

#endif
