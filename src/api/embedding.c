/* embedding, cross-entropy: a vocabulary whose rows lie on the ranks of a group, as even as can be. */
#include "api/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_embedding {
    im_api_object object;
    im_group *group;
    im_embedding_config cfg;
    int64_t first, end; /* ids of this rank */
    im_api_split split;
    im_tensor *table, *gradient;
};

static void end_object(im_api_object *o)
{
    im_embedding *e = (im_embedding *)o;
    im_api_object_remove(e->group->rank, o);
    im_api_tensor_end(e->table);
    im_api_tensor_end(e->gradient);
    free(e);
}

void im_embedding_destroy(im_embedding *e)
{
    if (e)
        end_object(&e->object);
}

static im_status check_config(im_context *ctx, const im_embedding_config *c)
{
    const char *call = "im_embedding_create";
    if (c->vocabulary < 1 || c->vocabulary > INT32_MAX || c->dim < 1 || c->dim > INT64_MAX / 64 / c->vocabulary)
        return im_fail(ctx, IM_ERR_ARG, "%s: vocabulary %lld, dim %lld; 1 or more, ids are 32 bits", call, (long long)c->vocabulary,
                       (long long)c->dim);
    if (c->dtype != IM_F32 && c->dtype != IM_BF16)
        return im_fail(ctx, IM_ERR_ARG, "%s: dtype %d is not IM_F32 or IM_BF16", call, (int)c->dtype);
    if (!(c->std >= 0) || isinf(c->std))
        return im_fail(ctx, IM_ERR_ARG, "%s: std %g; above 0, or 0 for 0.02", call, c->std);
    return IM_OK;
}

im_status im_embedding_create(im_group *g, const im_embedding_config *cfg, im_embedding **out)
{
    im_embedding_config c = *cfg;
    void *p;
    IM_TRY(check_config(g->rank->ctx, cfg));
    c.std = c.std > 0 ? c.std : 0.02;
    c.name = c.name ? c.name : "embedding";
    const im_api_wish wish = {.layer = "embedding", .in = c.vocabulary, .out = c.dim, .seed = c.seed, .name = c.name, .std = c.std, .dtype = c.dtype};
    IM_TRY(im_api_compare(g, &wish));
    IM_TRY(im_alloc(g->rank->ctx, 1, sizeof(im_embedding), &p));
    im_embedding *e = p;
    *e = (im_embedding){.group = g, .cfg = c, .split = {.rows = c.vocabulary, .cols = c.dim}};
    e->cfg.name = NULL; /* the caller's */
    im_api_split_part(&e->split, g, im_group_rank(g), &e->first, &e->end);
    im_api_object_add(g->rank, &e->object, end_object);
    im_status status;
    IM_TRY_GOTO(im_api_split_create(g, &e->split, IM_API_WEIGHTS, c.dtype, 2, &e->table), end_embedding);
    IM_TRY_GOTO(im_api_split_create(g, &e->split, IM_API_GRADIENTS, IM_F32, 2, &e->gradient), end_embedding);
    IM_TRY_GOTO(im_api_split_draw(g, &e->split, e->table, c.seed, c.name, c.std), end_embedding);
    *out = e;
    return IM_OK;
end_embedding:
    end_object(&e->object);
    return status;
}

/* ---- forward, backward -------------------------------------------------------------------------- */

static im_status refuse(im_group *g, const char *call, const char *what, const im_tensor *t, const char *want)
{
    char shape[96];
    im_api_shape_text(t, shape, sizeof shape);
    return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: %s is %s, it must be %s", call, what, shape, want);
}

static im_status check(im_embedding *e, const char *call, const im_tensor *ids, const im_tensor *y, const char *what)
{
    char want[96];
    if (ids->rank != e->group->rank || y->rank != e->group->rank)
        return im_fail(e->group->rank->ctx, IM_ERR_ARG, "%s: a tensor of another rank", call);
    if (ids->view.ndim != 1 || ids->view.dtype != IM_I32)
        return refuse(e->group, call, "ids", ids, "(n) i32");
    const im_view *v = &y->view;
    if (v->ndim == 2 && v->shape[0] == ids->view.shape[0] && v->shape[1] == e->cfg.dim && v->dtype == e->cfg.dtype)
        return IM_OK;
    snprintf(want, sizeof want, "(%lld,%lld) %s", (long long)ids->view.shape[0], (long long)e->cfg.dim, im_dtype_name(e->cfg.dtype));
    return refuse(e->group, call, what, y, want);
}

im_status im_embedding_forward(im_embedding *e, const im_tensor *ids, im_tensor *y)
{
    im_op_args a = {.n = 3, .v = {ids->view, e->table->view, y->view}, .f = {1}, .i = {e->first, e->cfg.vocabulary}};
    im_tensor *t[] = {(im_tensor *)ids, e->table, y};
    IM_TRY(check(e, "im_embedding_forward", ids, y, "y"));
    if (e->end > e->first)
        IM_TRY(im_api_run(e->group->rank, &im_op_embed, &a, t));
    else
        IM_TRY(im_tensor_fill(y, 0));
    return im_group_size(e->group) > 1 ? im_group_all_reduce(e->group, y, y, IM_SUM) : IM_OK;
}

im_status im_embedding_backward(im_embedding *e, const im_tensor *ids, const im_tensor *dy)
{
    im_op_args a = {.n = 3, .v = {ids->view, dy->view, e->gradient->view}, .i = {1, e->first, e->cfg.vocabulary}};
    im_tensor *t[] = {(im_tensor *)ids, (im_tensor *)dy, e->gradient};
    IM_TRY(check(e, "im_embedding_backward", ids, dy, "dy"));
    return im_api_run(e->group->rank, &im_op_embed_grad, &a, t);
}

im_status im_embedding_zero_gradients(im_embedding *e)
{
    return im_tensor_fill(e->gradient, 0);
}

void im_embedding_part(const im_embedding *e, int64_t *first, int64_t *end)
{
    *first = e->first;
    *end = e->end;
}

im_tensor *im_embedding_tensor(im_embedding *e, im_layer_value v)
{
    return v == IM_WEIGHT ? e->table : v == IM_WEIGHT_GRADIENT ? e->gradient : NULL;
}

static im_status find(im_embedding *e, const char *call, im_layer_value v, im_tensor **t)
{
    *t = im_embedding_tensor(e, v);
    return *t ? IM_OK : im_fail(e->group->rank->ctx, IM_ERR_ARG, "%s: value %d: an embedding has a weight and its gradient", call, (int)v);
}

im_status im_embedding_set(im_embedding *e, im_layer_value v, const float *whole)
{
    im_tensor *t;
    IM_TRY(find(e, "im_embedding_set", v, &t));
    return im_api_split_set(e->group, &e->split, t, whole);
}

im_status im_embedding_get(im_embedding *e, im_layer_value v, int root, float *whole)
{
    im_tensor *t;
    IM_TRY(find(e, "im_embedding_get", v, &t));
    return im_api_split_get(e->group, &e->split, t, root, whole);
}

/* ---- cross-entropy: what each rank knows of its part, then all of that put together ------------------- */

static im_status check_loss(im_group *g, int64_t vocabulary, int64_t p, const im_tensor *logits, const im_tensor *targets, const im_tensor *loss,
                            const im_tensor *dlogits)
{
    const char *call = "im_cross_entropy";
    char want[96];
    const im_view *v = &logits->view;
    if (vocabulary < 1 || vocabulary > INT32_MAX)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: a vocabulary of %lld", call, (long long)vocabulary);
    if (logits->rank != g->rank || targets->rank != g->rank || loss->rank != g->rank || (dlogits && dlogits->rank != g->rank))
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: a tensor of another rank", call);
    snprintf(want, sizeof want, "(n,%lld) fp32: this rank's part of %lld", (long long)p, (long long)vocabulary);
    if (v->ndim != 2 || v->shape[1] != p || v->dtype != IM_F32)
        return refuse(g, call, "logits", logits, want);
    if (targets->view.ndim != 1 || targets->view.shape[0] != v->shape[0] || targets->view.dtype != IM_I32)
        return refuse(g, call, "targets", targets, "(n) i32, a target for each row of logits");
    if (loss->view.ndim != 1 || loss->view.shape[0] != 1 || loss->view.dtype != IM_F64)
        return refuse(g, call, "loss", loss, "(1) fp64");
    if (dlogits && (dlogits->view.ndim != 2 || dlogits->view.shape[0] != v->shape[0] || dlogits->view.shape[1] != p || dlogits->view.dtype != IM_F32))
        return refuse(g, call, "dlogits", dlogits, "as logits are");
    if (dlogits && im_api_overlap(logits, dlogits) && logits->view.offset != dlogits->view.offset)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "%s: logits and dlogits overlap; they are the same place, or apart", call);
    return IM_OK;
}

static im_status merge(im_group *g, int64_t vocabulary, int64_t first, const im_tensor *logits, const im_tensor *targets, im_tensor *stats,
                       im_tensor *loss, im_tensor *dlogits)
{
    im_op_args a = {.n = 5, .v = {logits->view, targets->view, stats->view, loss->view}, .i = {first, 0, vocabulary}};
    im_tensor *t[] = {(im_tensor *)logits, (im_tensor *)targets, stats, loss, dlogits};
    if (dlogits)
        a.v[4] = dlogits->view;
    return im_api_run(g->rank, &im_op_xent_merge, &a, t);
}

static im_status split_loss(im_group *g, int64_t vocabulary, int64_t first, const im_tensor *logits, const im_tensor *targets, im_tensor *stats,
                            im_tensor *loss, im_tensor *dlogits)
{
    im_tensor *mine;
    int64_t n = logits->view.shape[0], rank = im_group_rank(g);
    IM_TRY(im_tensor_rows(stats, rank, 1, &mine));
    mine->view = im_view_2d(IM_F64, n, 4);
    mine->view.offset = stats->view.offset + rank * n * 4;
    im_op_args a = {.n = 3, .v = {logits->view, targets->view, mine->view}, .i = {first, 0, vocabulary}};
    im_tensor *t[] = {(im_tensor *)logits, (im_tensor *)targets, mine};
    im_status status = im_api_run(g->rank, &im_op_xent_stat, &a, t);
    if (status == IM_OK)
        status = im_group_all_gather(g, mine, stats, NULL);
    im_tensor_destroy(mine);
    return status == IM_OK ? merge(g, vocabulary, first, logits, targets, stats, loss, dlogits) : status;
}

im_status im_cross_entropy(im_group *g, int64_t vocabulary, const im_tensor *logits, const im_tensor *targets, im_tensor *loss, im_tensor *dlogits)
{
    int64_t first, end;
    im_tensor *stats;
    im_part(vocabulary > 0 ? vocabulary : 0, im_group_size(g), im_group_rank(g), &first, &end);
    IM_TRY(check_loss(g, vocabulary, end - first, logits, targets, loss, dlogits));
    IM_TRY(im_api_tensor(g->rank, IM_API_STAGING, IM_F64, 3, (int64_t[]){im_group_size(g), logits->view.shape[0], 4}, &stats));
    im_status status = split_loss(g, vocabulary, first, logits, targets, stats, loss, dlogits);
    im_api_tensor_end(stats);
    return status;
}
