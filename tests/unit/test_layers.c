/* the parallel layers of imece.h: N ranks against one, sizes that divide nothing, wrong and differing calls */
#include <imece.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TRY(expr)                       \
    do {                                \
        im_status try_status_ = (expr); \
        if (try_status_ != IM_OK)       \
            return try_status_;         \
    } while (0)

enum { IN = 7, OUT = 50, ROWS = 5 };

/* What a layer over some ranks gave, as a whole. */
typedef struct result {
    float *y, *dx, *w, *b, *dw, *db;
    int64_t n, in, out;
} result;

typedef struct layer_case {
    bool column, option, bias; /* option: gather_output, input_is_parallel */
    im_dtype dtype;
    int64_t in, out, rows;
    int passes; /* of forward and backward: gradients add up */
    result *got;
} layer_case;

static result result_create(const layer_case *c)
{
    result r = {.n = c->rows, .in = c->in, .out = c->out};
    r.y = calloc((size_t)(c->rows * c->out) + 1, sizeof(float));
    r.dx = calloc((size_t)(c->rows * c->in) + 1, sizeof(float));
    r.w = calloc((size_t)(c->in * c->out), sizeof(float));
    r.dw = calloc((size_t)(c->in * c->out), sizeof(float));
    r.b = calloc((size_t)c->out, sizeof(float));
    r.db = calloc((size_t)c->out, sizeof(float));
    return r;
}

static void result_free(result *r)
{
    free(r->y);
    free(r->dx);
    free(r->w);
    free(r->dw);
    free(r->b);
    free(r->db);
}

/* The columns [first, end) of a drawn (n, cols) matrix; all of them without `part`. */
static im_status drawn(im_rank *r, im_dtype t, const char *name, int64_t n, int64_t cols, int64_t first, int64_t end, im_tensor **out)
{
    float *whole = malloc((size_t)(n * cols + 1) * sizeof *whole), *mine = malloc((size_t)(n * (end - first) + 1) * sizeof *mine);
    im_tensor *all;
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){n, cols}, &all));
    TRY(im_tensor_draw(all, 3, name, 0, 1));
    TRY(im_tensor_read(all, whole));
    im_tensor_destroy(all);
    for (int64_t i = 0; i < n; i++)
        memcpy(mine + i * (end - first), whole + i * cols + first, (size_t)(end - first) * sizeof *mine);
    TRY(im_tensor_create(r, t, 2, (int64_t[]){n, end - first}, out));
    im_status s = im_tensor_write_f32(*out, mine);
    free(whole);
    free(mine);
    return s;
}

/* A matrix whose columns lie on the ranks, put together on rank 0 by another way than the library's: zeros and a sum. */
static im_status put_together(im_group *g, const im_tensor *t, int64_t cols, int64_t first, float *whole)
{
    const int64_t *shape = im_tensor_shape(t);
    int64_t n = shape[0], part = shape[1], count = n * cols;
    float *mine = calloc((size_t)(n * part + 1), sizeof *mine), *all = calloc((size_t)count + 1, sizeof *all);
    im_tensor *sum;
    TRY(im_tensor_read_f32(t, mine));
    for (int64_t i = 0; i < n; i++)
        memcpy(all + i * cols + first, mine + i * part, (size_t)part * sizeof *all);
    TRY(im_tensor_create(im_group_owner(g), IM_F32, 1, &count, &sum));
    TRY(im_tensor_write(sum, all));
    if (part < cols)
        TRY(im_group_all_reduce(g, sum, sum, IM_SUM));
    TRY(im_tensor_read(sum, im_group_rank(g) ? all : whole));
    im_tensor_destroy(sum);
    free(mine);
    free(all);
    return IM_OK;
}

static im_status run_layer(im_rank *r, void *arg)
{
    const layer_case *c = arg;
    im_group *g = im_rank_world(r);
    im_linear_config cfg = {.in = c->in, .out = c->out, .bias = c->bias, .seed = 11, .dtype = c->dtype};
    cfg.gather_output = c->column && c->option;
    cfg.input_is_parallel = !c->column && c->option;
    im_linear *l;
    im_tensor *x, *y, *dy, *dx;
    int64_t first, end;
    TRY(c->column ? im_column_linear_create(g, &cfg, &l) : im_row_linear_create(g, &cfg, &l));
    im_linear_part(l, &first, &end);
    bool split_x = !c->column && c->option, split_y = c->column && !c->option;
    TRY(drawn(r, c->dtype, "x", c->rows, c->in, split_x ? first : 0, split_x ? end : c->in, &x));
    TRY(drawn(r, c->dtype, "dy", c->rows, c->out, split_y ? first : 0, split_y ? end : c->out, &dy));
    TRY(im_tensor_create(r, c->dtype, 2, im_tensor_shape(dy), &y));
    TRY(im_tensor_create(r, c->dtype, 2, im_tensor_shape(x), &dx));
    for (int i = 0; i < c->passes; i++) {
        TRY(im_linear_forward(l, x, y));
        TRY(im_linear_backward(l, x, dy, dx));
    }
    result *w = c->got;
    TRY(put_together(g, y, c->out, split_y ? first : 0, w->y));
    TRY(put_together(g, dx, c->in, split_x ? first : 0, w->dx));
    TRY(im_linear_get(l, IM_WEIGHT, 0, w->w));
    TRY(im_linear_get(l, IM_WEIGHT_GRADIENT, 0, w->dw));
    if (c->bias) {
        TRY(im_linear_get(l, IM_BIAS, 0, w->b));
        TRY(im_linear_get(l, IM_BIAS_GRADIENT, 0, w->db));
    }
    return IM_OK;
}

static void run_on(int ranks, im_rank_fn fn, void *arg)
{
    im_context *ctx;
    const im_ranks_config cfg = {.ranks = ranks, .threads = 1, .deadline = 60, .memory = (size_t)64 << 20};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    if (im_ranks_run(ctx, &cfg, fn, arg) != IM_OK)
        fail_msg("%d ranks: %s", ranks, im_error_text(ctx));
    im_context_destroy(ctx);
}

static void near(const char *what, const float *a, const float *b, int64_t n, double tolerance)
{
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    if (!(sqrt(diff) <= tolerance * sqrt(size)))
        fail_msg("%s: |a - b| / |b| is %g", what, sqrt(diff / size));
}

/* y = x W^T + b and its gradients, in double. */
static void by_hand(const layer_case *c, const float *x, const float *dy, const result *r)
{
    result e = result_create(c);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t o = 0; o < c->out; o++) {
            double sum = c->bias ? r->b[o] : 0;
            for (int64_t k = 0; k < c->in; k++) {
                sum += (double)x[i * c->in + k] * r->w[o * c->in + k];
                e.dx[i * c->in + k] += dy[i * c->out + o] * r->w[o * c->in + k];
                e.dw[o * c->in + k] += (float)c->passes * dy[i * c->out + o] * x[i * c->in + k];
            }
            e.y[i * c->out + o] = (float)sum;
            e.db[o] += (float)c->passes * dy[i * c->out + o];
        }
    double tolerance = c->dtype == IM_BF16 ? 1e-2 : 1e-5;
    near("y by hand", r->y, e.y, c->rows * c->out, tolerance);
    near("dx by hand", r->dx, e.dx, c->rows * c->in, tolerance);
    near("dw by hand", r->dw, e.dw, c->in * c->out, tolerance);
    if (c->bias)
        near("db by hand", r->db, e.db, c->out, tolerance);
    result_free(&e);
}

static im_status read_inputs(im_rank *r, void *arg)
{
    layer_case *c = arg;
    im_tensor *x, *dy;
    TRY(drawn(r, c->dtype, "x", c->rows, c->in, 0, c->in, &x));
    TRY(drawn(r, c->dtype, "dy", c->rows, c->out, 0, c->out, &dy));
    TRY(im_tensor_read_f32(x, c->got->dx));
    return im_tensor_read_f32(dy, c->got->y);
}

static void compare_ranks(layer_case c, int most)
{
    result one = result_create(&c), inputs = result_create(&c);
    c.got = &inputs;
    run_on(1, read_inputs, &c);
    c.got = &one;
    run_on(1, run_layer, &c);
    by_hand(&c, inputs.dx, inputs.y, &one);
    for (int ranks = 2; ranks <= most; ranks++) {
        result many = result_create(&c);
        double tolerance = c.dtype == IM_BF16 ? 1e-2 : 1e-5;
        c.got = &many;
        run_on(ranks, run_layer, &c);
        assert_memory_equal(many.w, one.w, (size_t)(c.in * c.out) * sizeof(float)); /* drawn by global index: the same bits */
        assert_memory_equal(many.b, one.b, (size_t)c.out * sizeof(float));
        near("y", many.y, one.y, c.rows * c.out, tolerance);
        near("dx", many.dx, one.dx, c.rows * c.in, tolerance);
        near("dw", many.dw, one.dw, c.in * c.out, tolerance);
        near("db", many.db, one.db, c.bias ? c.out : 0, tolerance);
        result_free(&many);
    }
    result_free(&one);
    result_free(&inputs);
}

static void test_column(void **state)
{
    (void)state;
    compare_ranks((layer_case){.column = true, .bias = true, .in = IN, .out = OUT, .rows = ROWS, .passes = 1}, 8);
    compare_ranks((layer_case){.column = true, .option = true, .bias = true, .in = IN, .out = OUT, .rows = ROWS, .passes = 2}, 8);
    compare_ranks((layer_case){.column = true, .option = true, .in = 33, .out = 3, .rows = 1, .passes = 1}, 5); /* more ranks than outputs */
}

static void test_row(void **state)
{
    (void)state;
    compare_ranks((layer_case){.bias = true, .in = OUT, .out = IN, .rows = ROWS, .passes = 1}, 8);
    compare_ranks((layer_case){.option = true, .bias = true, .in = IN, .out = OUT, .rows = ROWS, .passes = 2}, 8); /* at 8 one has no input */
    compare_ranks((layer_case){.option = true, .in = 3, .out = 33, .rows = 1, .passes = 1}, 5);
}

static void test_bf16(void **state)
{
    (void)state;
    for (int column = 0; column < 2; column++)
        for (int option = 0; option < 2; option++)
            compare_ranks(
                (layer_case){.column = column, .option = option, .bias = true, .dtype = IM_BF16, .in = 96, .out = OUT, .rows = ROWS, .passes = 1}, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column),
        cmocka_unit_test(test_row),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
