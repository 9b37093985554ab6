/* Values into the engine's weights, by segments and by several threads: from files, or drawn. */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { IM_SLICE = 1 << 15, IM_STAGE = 1 << 22 }; /* elements: of one thread's piece; of the staging piece under ZeRO */

typedef struct im_fill {
    const im_bucket *bucket;
    im_checkpoint_values_fn values;
    void *arg;
} im_fill;

/* One slice: fp32 values go straight to their place; bf16 through the master, or through a buffer of this thread's stack. */
static im_status slice(const im_fill *f, uint32_t param, size_t global, size_t local, size_t n, void *weight, im_dtype stored, float *master)
{
    if (stored == IM_F32)
        return f->values(f->arg, param, (int64_t)global, (int64_t)n, (float *)weight + local);
    uint16_t *half = (uint16_t *)weight + local;
    float piece[1024];
    for (size_t at = 0; at < n;) {
        size_t k = master ? n : n - at < IM_COUNT_OF(piece) ? n - at : IM_COUNT_OF(piece);
        float *full = master ? master + local : piece;
        IM_TRY(f->values(f->arg, param, (int64_t)(global + at), (int64_t)k, full));
        im_bf16_round(full, k, half + at);
        at += k;
    }
    return IM_OK;
}

/* A run of n elements, global and local starts given. */
static im_status fill_run(const im_fill *f, uint32_t param, size_t global, size_t local, size_t n, void *weight, im_dtype stored, float *master)
{
    int failed = IM_OK;
    int64_t slices = (int64_t)((n + IM_SLICE - 1) / IM_SLICE);
#pragma omp parallel for schedule(dynamic) if (slices > 1)
    for (int64_t i = 0; i < slices; i++) {
        size_t at = (size_t)i * IM_SLICE, k = n - at < IM_SLICE ? n - at : IM_SLICE;
        im_status s = slice(f, param, global + at, local + at, k, weight, stored, master);
        if (s != IM_OK) {
#pragma omp atomic write
            failed = s;
        }
    }
    return (im_status)failed;
}

/* im_fill_fn */
static im_status fill_bucket(void *arg, void *weight, im_dtype stored, float *master)
{
    const im_fill *f = arg;
    for (size_t i = 0; i < f->bucket->nseg; i++) {
        const im_segment *g = &f->bucket->seg[i];
        for (size_t r = 0; r < g->n; r++)
            IM_TRY(fill_run(f, g->param, g->global0 + r * g->global_stride, g->local0 + r * g->local_stride, g->run, weight, stored, master));
    }
    return IM_OK;
}

/* ZeRO holds shards: piece by piece through the host. */
static im_status write_bucket(im_engine *e, const im_fill *f, size_t bucket, float *stage)
{
    for (size_t i = 0; i < f->bucket->nseg; i++) {
        const im_segment *g = &f->bucket->seg[i];
        for (size_t r = 0; r < g->n; r++)
            for (size_t at = 0; at < g->run; at += IM_STAGE) {
                size_t n = g->run - at < IM_STAGE ? g->run - at : IM_STAGE;
                IM_TRY(fill_run(f, g->param, g->global0 + r * g->global_stride + at, 0, n, stage, IM_F32, NULL));
                IM_TRY(im_engine_write(e, IM_STATE_WEIGHT, bucket, g->local0 + r * g->local_stride + at, n, stage));
            }
    }
    return IM_OK;
}

im_status im_checkpoint_fill(im_context *ctx, im_engine *e, im_checkpoint_values_fn values, void *arg)
{
    const im_layout *l = im_engine_layout(e);
    void *stage = NULL;
    if (l->zero)
        IM_TRY(im_alloc(ctx, IM_STAGE, sizeof(float), &stage));
    im_status status = IM_OK;
    for (size_t b = 0; status == IM_OK && b < l->model->nbucket; b++) {
        im_fill f = {.bucket = &l->bucket[b], .values = values, .arg = arg};
        if (f.bucket->held)
            status = l->zero ? write_bucket(e, &f, b, stage) : im_engine_fill(e, b, fill_bucket, &f);
    }
    free(stage);
    return status;
}
