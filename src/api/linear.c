/* linear: column- and row-parallel (Shoeybi et al., Megatron-LM, 2019).
 *
 *     column, 2 ranks:   y = x [W0 W1]^T = [x W0^T, x W1^T]         dx = dy0 W0 + dy1 W1          summed
 *     row, 2 ranks:      y = [x0 x1] [W0 W1]^T = x0 W0^T + x1 W1^T   dx = [dy W0, dy W1]            side by side
 *
 * So a column layer, an activation and a row layer need one all-reduce forward and one backward. The gradient of the weight needs none.
 */
#include "api/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_linear {
    im_api_object object;
    im_group *group;
    im_linear_config cfg;
    bool column;
    int64_t first, end; /* this rank's outputs or inputs */
    im_api_split weight, bias;
    im_tensor *value[4]; /* by im_layer_value */
    char *name;          /* of the weight, and behind its end of the bias */
};

static void end_object(im_api_object *o)
{
    im_linear *l = (im_linear *)o;
    im_api_object_remove(l->group->rank, o);
    for (int i = 0; i < 4; i++)
        im_api_tensor_end(l->value[i]);
    free(l->name);
    free(l);
}

void im_linear_destroy(im_linear *l)
{
    if (l)
        end_object(&l->object);
}

/* ---- create --------------------------------------------------------------------------------------- */

static im_status check_config(im_context *ctx, const char *call, const im_linear_config *c, bool column)
{
    if (c->in < 1 || c->out < 1)
        return im_fail(ctx, IM_ERR_ARG, "%s: in %lld, out %lld; 1 or more", call, (long long)c->in, (long long)c->out);
    if (c->in > INT64_MAX / 64 / c->out)
        return im_fail(ctx, IM_ERR_ARG, "%s: in %lld, out %lld are too many elements", call, (long long)c->in, (long long)c->out);
    if (c->dtype != IM_F32 && c->dtype != IM_BF16)
        return im_fail(ctx, IM_ERR_ARG, "%s: dtype %d is not IM_F32 or IM_BF16", call, (int)c->dtype);
    if (!(c->std >= 0) || isinf(c->std))
        return im_fail(ctx, IM_ERR_ARG, "%s: std %g; above 0, or 0 for 1 / sqrt(in)", call, c->std);
    if (column && c->input_is_parallel)
        return im_fail(ctx, IM_ERR_ARG, "%s: input_is_parallel is for row layers; a column layer reads the whole input", call);
    if (!column && c->gather_output)
        return im_fail(ctx, IM_ERR_ARG, "%s: gather_output is for column layers; every rank gets a row layer's whole output", call);
    return IM_OK;
}

static im_status take_names(im_linear *l)
{
    const char *name = l->cfg.name ? l->cfg.name : "linear";
    size_t n = strlen(name) + sizeof ".weight";
    void *p;
    IM_TRY(im_alloc(l->group->rank->ctx, 2, n, &p));
    l->name = p;
    snprintf(l->name, n, "%s.weight", name);
    snprintf(l->name + n, n, "%s.bias", name);
    l->cfg.name = l->name;
    return IM_OK;
}

static const char *bias_name(const im_linear *l)
{
    return l->name + strlen(l->name) + 1;
}

static im_status make_values(im_linear *l)
{
    const im_linear_config *c = &l->cfg;
    im_group *g = l->group;
    im_tensor **v = l->value;
    IM_TRY(im_api_split_create(g, &l->weight, IM_API_WEIGHTS, c->dtype, 2, &v[IM_WEIGHT]));
    IM_TRY(im_api_split_create(g, &l->weight, IM_API_GRADIENTS, IM_F32, 2, &v[IM_WEIGHT_GRADIENT]));
    IM_TRY(im_api_split_draw(g, &l->weight, v[IM_WEIGHT], c->seed, l->name, c->std));
    if (!c->bias)
        return IM_OK;
    IM_TRY(im_api_split_create(g, &l->bias, IM_API_WEIGHTS, c->dtype, 1, &v[IM_BIAS]));
    IM_TRY(im_api_split_create(g, &l->bias, IM_API_GRADIENTS, IM_F32, 1, &v[IM_BIAS_GRADIENT]));
    return im_api_split_draw(g, &l->bias, v[IM_BIAS], c->seed, bias_name(l), c->std);
}

static im_status create(im_group *g, const im_linear_config *cfg, bool column, im_linear **out)
{
    const char *call = column ? "im_column_linear_create" : "im_row_linear_create";
    im_rank *r = g->rank;
    im_linear_config c = *cfg;
    void *p;
    IM_TRY(check_config(r->ctx, call, &c, column));
    c.std = c.std > 0 ? c.std : 1 / sqrt((double)c.in);
    const im_api_wish wish = {.layer = column ? "column linear" : "row linear",
                              .in = c.in,
                              .out = c.out,
                              .seed = c.seed,
                              .name = c.name ? c.name : "linear",
                              .std = c.std,
                              .dtype = c.dtype,
                              .bias = c.bias,
                              .gather_output = c.gather_output,
                              .input_is_parallel = c.input_is_parallel};
    IM_TRY(im_api_compare(g, &wish));
    IM_TRY(im_alloc(r->ctx, 1, sizeof(im_linear), &p));
    im_linear *l = p;
    *l = (im_linear){.group = g, .cfg = c, .column = column};
    l->weight = (im_api_split){.rows = c.out, .cols = c.in, .by_columns = !column};
    l->bias = (im_api_split){.rows = c.out, .cols = 1, .replicated = !column};
    im_part(column ? c.out : c.in, im_group_size(g), im_group_rank(g), &l->first, &l->end);
    im_api_object_add(r, &l->object, end_object);
    im_status status = take_names(l);
    if (status == IM_OK)
        status = make_values(l);
    if (status == IM_OK)
        *out = l;
    else
        end_object(&l->object);
    return status;
}

im_status im_column_linear_create(im_group *g, const im_linear_config *cfg, im_linear **out)
{
    return create(g, cfg, true, out);
}

im_status im_row_linear_create(im_group *g, const im_linear_config *cfg, im_linear **out)
{
    return create(g, cfg, false, out);
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

static int64_t x_cols(const im_linear *l)
{
    return l->column || !l->cfg.input_is_parallel ? l->cfg.in : l->end - l->first;
}

static int64_t y_cols(const im_linear *l)
{
    return !l->column || l->cfg.gather_output ? l->cfg.out : l->end - l->first;
}

static im_status need(const im_linear *l, const char *call, const char *what, const im_tensor *t, int64_t rows, int64_t cols)
{
    im_rank *r = l->group->rank;
    char shape[96], n[24] = "n";
    const im_view *v = &t->view;
    if (t->rank != r)
        return im_fail(r->ctx, IM_ERR_ARG, "%s: %s is of another rank", call, what);
    if (v->ndim == 2 && (rows < 0 || v->shape[0] == rows) && v->shape[1] == cols && v->dtype == l->cfg.dtype)
        return IM_OK;
    im_api_shape_text(t, shape, sizeof shape);
    if (rows >= 0)
        snprintf(n, sizeof n, "%lld", (long long)rows);
    return im_fail(r->ctx, IM_ERR_ARG, "%s of %s linear %lld -> %lld: %s is %s, it must be (%s,%lld) %s", call, l->column ? "column" : "row",
                   (long long)l->cfg.in, (long long)l->cfg.out, what, shape, n, (long long)cols, im_dtype_name(l->cfg.dtype));
}

static im_status apart(const im_linear *l, const char *call, const im_tensor *a, const im_tensor *b)
{
    if (!im_api_overlap(a, b))
        return IM_OK;
    return im_fail(l->group->rank->ctx, IM_ERR_ARG, "%s: its tensors overlap", call);
}

/* The columns of x or dy that this rank works on. */
static im_api_operand own(const im_linear *l, const im_tensor *t, int64_t whole)
{
    return t->view.shape[1] == whole ? im_api_columns(t, l->first, l->end) : im_api_whole(t);
}

/* ---- forward -------------------------------------------------------------------------------------------- */

static im_status forward_column(im_linear *l, const im_tensor *x, im_tensor *y)
{
    im_rank *r = l->group->rank;
    im_tensor *part = y;
    bool gather = l->cfg.gather_output && im_group_size(l->group) > 1;
    if (gather)
        IM_TRY(im_api_matrix(r, IM_API_STAGING, l->cfg.dtype, x->view.shape[0], l->end - l->first, &part));
    im_status status = im_api_matmul(r, im_api_whole(x), im_api_transposed(l->value[IM_WEIGHT]), im_api_whole(part), l->value[IM_BIAS], false);
    if (gather) {
        if (status == IM_OK)
            status = im_api_gather_columns(l->group, part, y);
        im_api_tensor_end(part);
    }
    return status;
}

/* y += bias, once, behind the sum. */
static im_status add_bias(im_linear *l, im_tensor *y)
{
    const im_tensor *b = l->value[IM_BIAS];
    im_view rows = y->view; /* every row is the bias */
    rows.stride[0] = 0;
    rows.offset = b->view.offset;
    im_op_args a = {.n = 3, .v = {y->view, rows, y->view}};
    im_tensor *t[] = {y, (im_tensor *)b, y};
    return im_api_run(l->group->rank, &im_op_add, &a, t);
}

static im_status forward_row(im_linear *l, const im_tensor *x, im_tensor *y)
{
    IM_TRY(im_api_matmul(l->group->rank, own(l, x, l->cfg.in), im_api_transposed(l->value[IM_WEIGHT]), im_api_whole(y), NULL, false));
    if (im_group_size(l->group) > 1)
        IM_TRY(im_group_all_reduce(l->group, y, y, IM_SUM));
    return l->cfg.bias ? add_bias(l, y) : IM_OK;
}

im_status im_linear_forward(im_linear *l, const im_tensor *x, im_tensor *y)
{
    const char *call = "im_linear_forward";
    IM_TRY(need(l, call, "x", x, -1, x_cols(l)));
    IM_TRY(need(l, call, "y", y, x->view.shape[0], y_cols(l)));
    IM_TRY(apart(l, call, x, y));
    return l->column ? forward_column(l, x, y) : forward_row(l, x, y);
}

/* ---- backward -------------------------------------------------------------------------------------------- */

static im_status add_gradients(im_linear *l, im_api_operand x, im_api_operand dy)
{
    im_rank *r = l->group->rank;
    im_api_operand dyt = {.t = dy.t, .v = im_view_transpose(dy.v)};
    IM_TRY(im_api_matmul(r, dyt, x, im_api_whole(l->value[IM_WEIGHT_GRADIENT]), NULL, true));
    if (!l->cfg.bias)
        return IM_OK;
    im_tensor *db = l->value[IM_BIAS_GRADIENT], *t[] = {(im_tensor *)dy.t, db};
    im_op_args a = {.n = 2, .v = {dy.v, db->view}, .i = {1}};
    return im_api_run(r, &im_op_colsum, &a, t);
}

/* The sum of dx is on its way while the gradient of the weight is computed. */
static im_status backward_column(im_linear *l, const im_tensor *x, const im_tensor *dy, im_tensor *dx)
{
    im_api_operand mine = own(l, dy, l->cfg.out);
    if (dx) {
        IM_TRY(im_api_matmul(l->group->rank, mine, im_api_whole(l->value[IM_WEIGHT]), im_api_whole(dx), NULL, false));
        if (im_group_size(l->group) > 1)
            IM_TRY(im_group_all_reduce(l->group, dx, dx, IM_SUM));
    }
    return add_gradients(l, im_api_whole(x), mine);
}

static im_status backward_row(im_linear *l, const im_tensor *x, const im_tensor *dy, im_tensor *dx)
{
    im_rank *r = l->group->rank;
    im_tensor *part = dx;
    bool gather = dx && !l->cfg.input_is_parallel && im_group_size(l->group) > 1;
    IM_TRY(add_gradients(l, own(l, x, l->cfg.in), im_api_whole(dy)));
    if (!dx)
        return IM_OK;
    if (gather)
        IM_TRY(im_api_matrix(r, IM_API_STAGING, l->cfg.dtype, x->view.shape[0], l->end - l->first, &part));
    im_status status = im_api_matmul(r, im_api_whole(dy), im_api_whole(l->value[IM_WEIGHT]), im_api_whole(part), NULL, false);
    if (gather) {
        if (status == IM_OK)
            status = im_api_gather_columns(l->group, part, dx);
        im_api_tensor_end(part);
    }
    return status;
}

im_status im_linear_backward(im_linear *l, const im_tensor *x, const im_tensor *dy, im_tensor *dx)
{
    const char *call = "im_linear_backward";
    int64_t rows = x->view.ndim ? x->view.shape[0] : 0;
    IM_TRY(need(l, call, "x", x, -1, x_cols(l)));
    IM_TRY(need(l, call, "dy", dy, rows, y_cols(l)));
    if (dx) {
        IM_TRY(need(l, call, "dx", dx, rows, x_cols(l)));
        IM_TRY(apart(l, call, x, dx));
        IM_TRY(apart(l, call, dy, dx));
    }
    return l->column ? backward_column(l, x, dy, dx) : backward_row(l, x, dy, dx);
}

im_status im_linear_zero_gradients(im_linear *l)
{
    IM_TRY(im_tensor_fill(l->value[IM_WEIGHT_GRADIENT], 0));
    return l->cfg.bias ? im_tensor_fill(l->value[IM_BIAS_GRADIENT], 0) : IM_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

void im_linear_part(const im_linear *l, int64_t *first, int64_t *end)
{
    *first = l->first;
    *end = l->end;
}

im_tensor *im_linear_tensor(im_linear *l, im_layer_value v)
{
    return (unsigned)v < IM_COUNT_OF(l->value) ? l->value[v] : NULL;
}

static im_status find(im_linear *l, const char *call, im_layer_value v, im_tensor **t, const im_api_split **s)
{
    *t = im_linear_tensor(l, v);
    *s = v == IM_WEIGHT || v == IM_WEIGHT_GRADIENT ? &l->weight : &l->bias;
    return *t ? IM_OK : im_fail(l->group->rank->ctx, IM_ERR_ARG, "%s: value %d: the layer has no such value", call, (int)v);
}

im_status im_linear_set(im_linear *l, im_layer_value v, const float *whole)
{
    im_tensor *t;
    const im_api_split *s;
    IM_TRY(find(l, "im_linear_set", v, &t, &s));
    return im_api_split_set(l->group, s, t, whole);
}

im_status im_linear_get(im_linear *l, im_layer_value v, int root, float *whole)
{
    im_tensor *t;
    const im_api_split *s;
    IM_TRY(find(l, "im_linear_get", v, &t, &s));
    return im_api_split_get(l->group, s, t, root, whole);
}
