/* engine_rig: a tiny model in an engine, for tests of checkpoints alone. On top of run_rig. */
#ifndef IM_TESTS_ENGINE_RIG_H
#define IM_TESTS_ENGINE_RIG_H

#include "fault/run_rig.h"

typedef struct holder {
    im_model *model;
    im_device *device;
    im_comm *world;
    im_engine *engine;
    im_plan plan;
} holder;

static inline void hold(holder *h, const char *model, im_dtype precision)
{
    static const im_program_want want = {.mode = IM_MODE_TRAIN};
    *h = (holder){0};
    ok(im_model_open(ctx, model, NULL, &h->model));
    im_plan_defaults(&h->plan, h->model);
    h->plan.seq_len = 8;
    h->plan.micro_batch = h->plan.global_batch = 1;
    h->plan.precision = precision;
    h->plan.threads = 1;
    im_device_config config = {.threads = 1, .kernels = IM_KERNELS_PLAIN};
    ok(im_device_open(ctx, &config, &h->device));
    ok(im_comm_self(h->device, &h->world));
    im_engine_config engine = {.plan = &h->plan, .device = h->device, .world = h->world, .want = &want, .nwant = 1};
    ok(im_engine_open(ctx, &engine, &h->engine));
}

static inline void let_go(holder *h)
{
    im_engine_close(h->engine);
    im_comm_destroy(h->world);
    im_device_close(h->device);
    im_model_close(h->model);
}

/* Every element of a state, by bucket in order; free(). */
static inline float *all_of(holder *h, im_state_kind k, size_t *n)
{
    const im_layout *l = im_engine_layout(h->engine);
    float *out = calloc(l->count, sizeof *out);
    assert_non_null(out);
    for (size_t b = 0; b < l->model->nbucket; b++)
        ok(im_engine_read(h->engine, k, b, 0, l->bucket[b].count, out + l->bucket[b].offset));
    *n = l->count;
    return out;
}

/* Values that no other (state, seed) has, in every parameter element; padding stays as it is. */
static inline void fill_state(holder *h, im_state_kind k, uint64_t seed)
{
    const im_layout *l = im_engine_layout(h->engine);
    for (size_t b = 0; b < l->model->nbucket; b++) {
        const im_bucket *bucket = &l->bucket[b];
        for (size_t s = 0; s < bucket->nseg; s++) {
            size_t n = bucket->seg[s].run;
            float *x = calloc(n, sizeof *x);
            assert_non_null(x);
            for (size_t i = 0; i < n; i++) {
                uint32_t r[4];
                im_philox(seed * 16 + (uint64_t)k, i, bucket->seg[s].param, r);
                x[i] = im_uniform_f32(r[0]);
            }
            ok(im_engine_write(h->engine, k, b, bucket->seg[s].local0, n, x));
            free(x);
        }
    }
}

static inline void fill_all(holder *h, uint64_t seed)
{
    static const im_state_kind kinds[] = {IM_STATE_WEIGHT, IM_STATE_M, IM_STATE_V};
    for (size_t i = 0; i < IM_COUNT_OF(kinds); i++)
        fill_state(h, kinds[i], seed);
}

static inline im_checkpoint_meta meta_of(int64_t step)
{
    im_checkpoint_meta m = {.step = step,
                            .position = 5 * step,
                            .tokens = 80 * step,
                            .updates = step,
                            .seed = UINT64_MAX - 1,
                            .data_fingerprint = 0x8000000000000001u,
                            .last_loss = 1.0 / 3,
                            .elapsed_s = 12.5,
                            .warmup_done_s = -1,
                            .threads = 3,
                            .isa = "some \"set\"",
                            .plan_key = "a=1 b=2",
                            .nskip = 1};
    m.skip[0] = (im_checkpoint_skip){7, 2};
    return m;
}

static inline im_status save_step(holder *h, const char *root, int64_t step, int keep)
{
    im_checkpoint_meta m = meta_of(step);
    im_checkpoint_save *s;
    IM_TRY(im_checkpoint_start(ctx, h->engine, root, &m, NULL, keep, &s));
    return im_checkpoint_finish(s);
}

static inline int entries(const char *root, im_checkpoint_entry **out)
{
    size_t n;
    ok(im_checkpoint_list(ctx, root, out, &n));
    return (int)n;
}

#endif
