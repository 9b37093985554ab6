/* From files into the engine, by segments: whatever layout wrote them, whatever layout reads them.
 *
 * Weights are converted to their place by several threads. The optimizer's state goes through one staging piece that
 * several threads fill (the page faults of a mapped file are most of the time), then the engine takes it. Pages of a tensor that is done are
 * given back: each rank maps the files, and what it holds of them beside the arenas would be memory that no plan has.
 */
#include "checkpoint/internal.h"

#include <stdio.h>
#include <stdlib.h>

enum { IM_STAGE = 1 << 22, IM_SLICE = 1 << 18 }; /* elements: of the staging piece, of one thread's slice */

/* Elements [first, first+count) of t as fp32 into stage, count <= IM_STAGE. */
static im_status fill(im_context *ctx, const im_weights *w, const im_st_tensor *t, int64_t first, int64_t count, float *stage)
{
    int failed = IM_OK;
    int64_t slices = (count + IM_SLICE - 1) / IM_SLICE;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < slices; i++) {
        int64_t at = i * IM_SLICE, n = count - at < IM_SLICE ? count - at : IM_SLICE;
        im_status s = im_weights_read(ctx, w, t, first + at, n, IM_F32, stage + at);
        if (s != IM_OK) {
#pragma omp atomic write
            failed = s;
        }
    }
    return (im_status)failed;
}

/* All runs of segment g of tensor t into state k of the bucket. */
static im_status load_segment(im_context *ctx, im_engine *e, const im_weights *w, const im_st_tensor *t, im_state_kind k, size_t bucket,
                              const im_segment *g, float *stage)
{
    bool solid = g->n <= 1 || (g->local_stride == g->run && g->global_stride == g->run);
    size_t runs = solid ? 1 : g->n, run = solid ? g->n * g->run : g->run;
    for (size_t r = 0; r < runs; r++) {
        size_t local = g->local0 + r * g->local_stride, global = g->global0 + r * g->global_stride;
        for (size_t at = 0; at < run; at += IM_STAGE) {
            size_t n = run - at < IM_STAGE ? run - at : IM_STAGE;
            IM_TRY(fill(ctx, w, t, (int64_t)(global + at), (int64_t)n, stage));
            IM_TRY(im_engine_write(e, k, bucket, local + at, n, stage));
        }
    }
    return IM_OK;
}

typedef struct im_weight_source {
    im_context *ctx;
    const im_weights *w;
    const im_st_tensor **tensor; /* of each parameter */
    const im_st_tensor *last;    /* read from; the threads of a run read from one */
} im_weight_source;

static im_status read_values(void *arg, uint32_t param, int64_t first, int64_t count, float *out)
{
    im_weight_source *s = arg;
    const im_st_tensor *last = __atomic_exchange_n(&s->last, s->tensor[param], __ATOMIC_RELAXED);
    if (last && last != s->tensor[param])
        im_weights_release(s->w, last);
    return im_weights_read(s->ctx, s->w, s->tensor[param], first, count, IM_F32, out);
}

im_status im_checkpoint_load_weights(im_context *ctx, im_engine *e, const char *dir)
{
    const im_model *m = im_engine_layout(e)->model;
    im_weight_source source = {.ctx = ctx};
    im_weights *w;
    void *tensor_of = NULL;
    IM_TRY(im_weights_open(ctx, dir, &w));
    im_status status;
    IM_TRY_GOTO(im_alloc(ctx, m->nparam, sizeof(im_st_tensor *), &tensor_of), close_weights);
    source.w = w;
    source.tensor = tensor_of;
    IM_TRY_GOTO(im_weights_match(ctx, w, m, source.tensor), close_weights);
    status = im_checkpoint_fill(ctx, e, read_values, &source);
close_weights:
    free(tensor_of);
    im_weights_close(w);
    return status;
}

/* The tensor PARAM.suffix, with the parameter's shape and fp32. */
static im_status find_state(im_context *ctx, const im_weights *w, const char *path, const im_param *p, const char *suffix, const im_st_tensor **out)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s", p->name, suffix);
    const im_st_tensor *t = im_weights_find(w, name);
    if (!t)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: no tensor %s", path, name);
    bool same = t->known_dtype && t->dtype == IM_F32 && t->ndim == p->ndim;
    for (int d = 0; same && d < p->ndim; d++)
        same = t->shape[d] == p->shape[d];
    if (!same)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s has not the shape of %s, or is not fp32", path, name, p->name);
    *out = t;
    return IM_OK;
}

static im_status load_state(im_context *ctx, im_engine *e, const im_weights *w, const char *path, im_state_kind k, const char *suffix, float *stage)
{
    const im_layout *l = im_engine_layout(e);
    for (size_t b = 0; b < l->model->nbucket; b++) {
        const im_bucket *bucket = &l->bucket[b];
        const im_segment *seg = l->zero ? bucket->owned : bucket->seg; /* ZeRO: a rank holds the state of its shard only */
        size_t nseg = l->zero ? bucket->nowned : bucket->nseg;
        for (size_t i = 0; bucket->held && i < nseg; i++) {
            const im_st_tensor *t = NULL;
            IM_TRY(find_state(ctx, w, path, &l->model->param[seg[i].param], suffix, &t));
            IM_TRY(load_segment(ctx, e, w, t, k, b, &seg[i], stage));
            if (i + 1 == nseg || seg[i + 1].param != seg[i].param)
                im_weights_release(w, t);
        }
    }
    return IM_OK;
}

im_status im_checkpoint_load_optimizer(im_context *ctx, im_engine *e, const char *dir, const im_checkpoint_meta *meta)
{
    static const struct {
        im_state_kind kind;
        const char *suffix;
    } states[] = {{IM_STATE_M, "m"}, {IM_STATE_V, "v"}, {IM_STATE_MASTER, "master"}};
    char path[IM_CHECKPOINT_PATH];
    if (snprintf(path, sizeof path, "%s/%s", dir, IM_CHECKPOINT_OPTIMIZER) >= (int)sizeof path)
        return im_fail(ctx, IM_ERR_ARG, "%s: the path is too long", dir);
    im_weights *w;
    void *stage = NULL;
    IM_TRY(im_weights_open(ctx, path, &w));
    im_status status;
    IM_TRY_GOTO(im_alloc(ctx, IM_STAGE, sizeof(float), &stage), close_weights);
    for (size_t i = 0; i < IM_COUNT_OF(states); i++) {
        if (!im_engine_has_state(e, states[i].kind))
            continue;
        /* a run that goes on in bf16 from an fp32 checkpoint: the weights themselves were the masters, and are set already */
        if (states[i].kind == IM_STATE_MASTER && im_weights_count(w) == 2 * im_engine_layout(e)->model->nparam)
            continue;
        IM_TRY_GOTO(load_state(ctx, e, w, path, states[i].kind, states[i].suffix, stage), close_weights);
    }
    status = im_engine_set_updates(e, meta->updates);
close_weights:
    free(stage);
    im_weights_close(w);
    return status;
}
