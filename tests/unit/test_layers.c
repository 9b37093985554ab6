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

/* ---- a vocabulary that no number of ranks divides -------------------------------------------------- */

enum { VOCABULARY = 101, DIM = 6, TOKENS = 9 };

typedef struct vocabulary_result {
    im_dtype dtype;
    float table[VOCABULARY * DIM], dtable[VOCABULARY * DIM], y[TOKENS * DIM], dlogits[TOKENS * VOCABULARY], dhead[VOCABULARY * DIM];
    double loss;
} vocabulary_result;

/* Vectors of ids, a head over them, cross-entropy, and back. */
static im_status run_vocabulary(im_rank *r, void *arg)
{
    vocabulary_result *w = arg;
    im_group *g = im_rank_world(r);
    const im_embedding_config table = {.vocabulary = VOCABULARY, .dim = DIM, .seed = 5, .std = 1, .dtype = w->dtype};
    const im_linear_config projection = {.in = DIM, .out = VOCABULARY, .seed = 5, .name = "head"};
    const int32_t id[TOKENS] = {0, 100, 50, 51, 33, 34, 7, 7, 100}, want[TOKENS] = {100, -1, 0, 51, 50, 33, 34, -100, 67};
    im_embedding *e;
    im_linear *head;
    im_tensor *ids, *targets, *x, *x32, *logits, *dx, *dx_e, *loss;
    int64_t first, end, n = TOKENS;
    TRY(im_embedding_create(g, &table, &e));
    TRY(im_column_linear_create(g, &projection, &head));
    im_linear_part(head, &first, &end);
    TRY(im_tensor_create(r, IM_I32, 1, &n, &ids));
    TRY(im_tensor_create(r, IM_I32, 1, &n, &targets));
    TRY(im_tensor_create(r, w->dtype, 2, (int64_t[]){n, DIM}, &x));
    TRY(im_tensor_create(r, w->dtype, 2, (int64_t[]){n, DIM}, &dx_e));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){n, DIM}, &x32));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){n, DIM}, &dx));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){n, end - first}, &logits));
    TRY(im_tensor_create(r, IM_F64, 1, (int64_t[]){1}, &loss));
    TRY(im_tensor_write(ids, id));
    TRY(im_tensor_write(targets, want));
    TRY(im_embedding_forward(e, ids, x));
    TRY(im_tensor_copy(x, x32));
    TRY(im_linear_forward(head, x32, logits));
    TRY(im_cross_entropy(g, VOCABULARY, logits, targets, loss, NULL)); /* twice: it overwrites the loss, and changes nothing without dlogits */
    TRY(im_cross_entropy(g, VOCABULARY, logits, targets, loss, logits));
    TRY(im_linear_backward(head, x32, logits, dx));
    TRY(im_tensor_copy(dx, dx_e));
    TRY(im_embedding_backward(e, ids, dx_e));
    TRY(put_together(g, logits, VOCABULARY, first, w->dlogits));
    TRY(im_linear_get(head, IM_WEIGHT_GRADIENT, 0, w->dhead));
    TRY(im_embedding_get(e, IM_WEIGHT, 0, w->table));
    TRY(im_embedding_get(e, IM_WEIGHT_GRADIENT, 0, w->dtable));
    im_tensor *mine = im_embedding_tensor(e, IM_WEIGHT);
    im_embedding_part(e, &first, &end);
    if (im_tensor_shape(mine)[0] != end - first || im_tensor_shape(mine)[1] != DIM || im_embedding_tensor(e, IM_BIAS))
        return im_fail(im_rank_context(r), IM_ERR_CHECK, "the rank's part of the table has another shape");
    if (im_group_rank(g))
        return IM_OK;
    TRY(im_tensor_read_f32(x, w->y));
    return im_tensor_read(loss, &w->loss);
}

/* What the loss must be, from the logits' gradient: p - 1 at the target, p elsewhere, nothing in rows that do not count. */
static void check_loss(const vocabulary_result *w)
{
    const int32_t want[TOKENS] = {100, -1, 0, 51, 50, 33, 34, -100, 67};
    double loss = 0;
    for (int i = 0; i < TOKENS; i++) {
        double sum = 0;
        for (int k = 0; k < VOCABULARY; k++)
            sum += w->dlogits[i * VOCABULARY + k];
        assert_true(fabs(sum) < 1e-5);
        if (want[i] >= 0)
            loss -= log(1 + (double)w->dlogits[i * VOCABULARY + want[i]]);
        else
            assert_true(w->dlogits[i * VOCABULARY] == 0);
    }
    assert_true(loss > 1 && fabs(loss - w->loss) < 1e-4 * loss);
}

static void test_vocabulary(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        vocabulary_result one = {.dtype = bf16 ? IM_BF16 : IM_F32};
        run_on(1, run_vocabulary, &one);
        check_loss(&one);
        for (int i = 0; i < DIM; i++)
            assert_true(one.y[DIM + i] == one.table[100 * DIM + i] && one.y[8 * DIM + i] == one.table[100 * DIM + i]);
        for (int ranks = 2; ranks <= 8; ranks++) {
            vocabulary_result many = {.dtype = one.dtype};
            run_on(ranks, run_vocabulary, &many);
            assert_memory_equal(many.table, one.table, sizeof one.table);
            assert_memory_equal(many.y, one.y, sizeof one.y); /* the other parts are zero */
            assert_true(fabs(many.loss - one.loss) <= 1e-6 * one.loss);
            near("dlogits", many.dlogits, one.dlogits, TOKENS * VOCABULARY, 1e-5);
            near("gradient of the head", many.dhead, one.dhead, VOCABULARY * DIM, 1e-5);
            near("gradient of the table", many.dtable, one.dtable, VOCABULARY * DIM, bf16 ? 1e-2 : 1e-5);
        }
    }
}

/* ---- values of the program's own ---------------------------------------------------------------------- */

static im_status set_and_get(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r);
    float w[OUT * IN], b[OUT], got[OUT * IN] = {0};
    const int root = im_group_size(g) - 1;
    for (int i = 0; i < OUT * IN; i++)
        w[i] = (float)i;
    for (int i = 0; i < OUT; i++)
        b[i] = (float)-i;
    for (int column = 0; column < 2; column++) {
        const im_linear_config cfg = {.in = IN, .out = OUT, .bias = true, .seed = 1};
        im_linear *l;
        int64_t first, end;
        TRY(column ? im_column_linear_create(g, &cfg, &l) : im_row_linear_create(g, &cfg, &l));
        TRY(im_linear_set(l, IM_WEIGHT, w));
        TRY(im_linear_set(l, IM_BIAS, b));
        im_linear_part(l, &first, &end);
        if (end > first) { /* the first value of this rank's part */
            float value[OUT * IN];
            TRY(im_tensor_read(im_linear_tensor(l, IM_WEIGHT), value));
            if (value[0] != (float)(column ? first * IN : first))
                return im_fail(im_rank_context(r), IM_ERR_CHECK, "%g is not where the part begins", value[0]);
        }
        for (int v = 0; v < 2; v++) {
            const float *right = v ? b : w;
            const size_t n = v ? OUT : OUT * IN;
            TRY(im_linear_get(l, v ? IM_BIAS : IM_WEIGHT, root, im_group_rank(g) == root ? got : NULL));
            if (im_group_rank(g) == root && memcmp(got, right, n * sizeof *got))
                return im_fail(im_rank_context(r), IM_ERR_CHECK, "another value came back");
        }
        im_linear_destroy(l);
    }
    im_rank_bytes m;
    im_rank_memory(r, &m);
    return m.weights || m.gradients || m.tensors ? im_fail(im_rank_context(r), IM_ERR_CHECK, "a layer left memory behind") : IM_OK;
}

static void test_set_and_get(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        run_on(ranks, set_and_get, NULL);
}

/* ---- wrong and differing calls ------------------------------------------------------------------------------ */

#define REFUSED(r, call, words)                                                                                                                \
    do {                                                                                                                                       \
        im_status got_ = (call);                                                                                                               \
        char text_[1024];                                                                                                                      \
        snprintf(text_, sizeof text_, "%s", im_error_text(im_rank_context(r)));                                                                \
        im_error_clear(im_rank_context(r));                                                                                                    \
        if (got_ != IM_ERR_ARG || !strstr(text_, words))                                                                                       \
            return im_fail(im_rank_context(r), IM_ERR_CHECK, "line %d: %s, \"%s\", not \"%s\"", __LINE__, im_status_name(got_), text_, words); \
    } while (0)

static im_status wrong_calls(im_rank *r, void *arg)
{
    (void)arg;
    im_group *g = im_rank_world(r);
    const im_linear_config good = {.in = IN, .out = OUT, .seed = 1};
    im_linear *l = NULL, *column, *row;
    im_embedding *e = NULL;
    im_tensor *x, *y, *part, *flat, *h, *loss;
    float w[OUT * IN] = {0};
    im_linear_config c = good;
    c.in = 0;
    REFUSED(r, im_column_linear_create(g, &c, &l), "in 0");
    c.in = INT64_MAX;
    REFUSED(r, im_row_linear_create(g, &c, &l), "too many elements");
    c = good;
    c.out = -3;
    REFUSED(r, im_row_linear_create(g, &c, &l), "out -3");
    c = good;
    c.dtype = IM_F16;
    REFUSED(r, im_column_linear_create(g, &c, &l), "not IM_F32 or IM_BF16");
    c = good;
    c.std = -1;
    REFUSED(r, im_column_linear_create(g, &c, &l), "std -1");
    c = good;
    c.input_is_parallel = true;
    REFUSED(r, im_column_linear_create(g, &c, &l), "input_is_parallel is for row layers");
    c = good;
    c.gather_output = true;
    REFUSED(r, im_row_linear_create(g, &c, &l), "gather_output is for column layers");
    REFUSED(r, im_embedding_create(g, &(im_embedding_config){.vocabulary = 0, .dim = 3}, &e), "vocabulary 0");
    REFUSED(r, im_embedding_create(g, &(im_embedding_config){.vocabulary = (int64_t)1 << 40, .dim = 3}, &e), "ids are 32 bits");
    if (l || e)
        return im_fail(im_rank_context(r), IM_ERR_CHECK, "an output was set by a call that failed");
    TRY(im_column_linear_create(g, &good, &column));
    TRY(im_row_linear_create(g, &good, &row));
    int64_t first, end;
    im_linear_part(column, &first, &end);
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){ROWS, IN}, &x));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){ROWS, OUT}, &y));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){ROWS, end - first}, &part));
    TRY(im_tensor_create(r, IM_F32, 1, (int64_t[]){IN}, &flat));
    TRY(im_tensor_create(r, IM_BF16, 2, (int64_t[]){ROWS, IN}, &h));
    TRY(im_tensor_create(r, IM_F64, 1, (int64_t[]){1}, &loss));
    REFUSED(r, im_linear_forward(column, y, part), "im_linear_forward of column linear 7 -> 50: x is (5,50) fp32, it must be (n,7) fp32");
    REFUSED(r, im_linear_forward(column, x, y), "y is (5,50) fp32, it must be (5,25) fp32");
    REFUSED(r, im_linear_forward(column, h, part), "x is (5,7) bf16");
    REFUSED(r, im_linear_forward(row, flat, y), "x is (7) fp32");
    REFUSED(r, im_linear_backward(row, x, x, x), "dy is (5,7) fp32");
    REFUSED(r, im_linear_backward(row, x, y, x), "overlap");
    REFUSED(r, im_linear_set(row, IM_BIAS, w), "no such value");
    REFUSED(r, im_linear_get(row, (im_layer_value)9, 0, w), "no such value");
    REFUSED(r, im_linear_get(row, IM_WEIGHT, 2, w), "root 2 of a group of 2");
    REFUSED(r, im_cross_entropy(g, 50, part, flat, loss, NULL), "targets is (7) fp32");
    REFUSED(r, im_cross_entropy(g, 51, y, flat, loss, NULL), "this rank's part of 51");
    if (im_linear_tensor(row, IM_BIAS) || im_linear_tensor(row, (im_layer_value)9))
        return im_fail(im_rank_context(r), IM_ERR_CHECK, "a bias that is none");
    im_tensor_destroy(im_linear_tensor(row, IM_WEIGHT)); /* the layer's */
    TRY(im_linear_forward(row, x, y));
    return im_linear_forward(column, x, part);
}

/* An id outside the vocabulary, on the rank that would have it or not. */
static im_status outside(im_rank *r, void *arg)
{
    const im_embedding_config table = {.vocabulary = VOCABULARY, .dim = DIM};
    im_embedding *e;
    im_tensor *ids, *y;
    TRY(im_embedding_create(im_rank_world(r), &table, &e));
    TRY(im_tensor_create(r, IM_I32, 1, (int64_t[]){1}, &ids));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){1, DIM}, &y));
    TRY(im_tensor_write(ids, arg));
    TRY(im_embedding_forward(e, ids, y));
    return im_rank_wait(r);
}

/* Ranks that ask for different layers, or give different rows. */
static im_status differing(im_rank *r, void *arg)
{
    const int what = *(const int *)arg;
    const bool odd = im_rank_number(r) == 1;
    im_linear_config c = {.in = IN, .out = OUT, .bias = true, .seed = 1, .dtype = IM_F32};
    im_linear *l;
    im_tensor *x, *y;
    if (what == 0)
        c.seed += odd;
    if (what == 1)
        c.out += odd;
    if (what == 2)
        c.name = odd ? "other" : "linear";
    TRY(what == 3 && odd ? im_column_linear_create(im_rank_world(r), &c, &l) : im_row_linear_create(im_rank_world(r), &c, &l));
    const int64_t rows = ROWS + (what == 4 && odd);
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){rows, IN}, &x));
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){rows, OUT}, &y));
    TRY(im_linear_forward(l, x, y));
    return im_rank_wait(r);
}

static void expect_failure(int ranks, im_rank_fn fn, void *arg, const char *words)
{
    im_context *ctx;
    const im_ranks_config cfg = {.ranks = ranks, .threads = 1, .deadline = 20, .memory = (size_t)1 << 20};
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_status status = im_ranks_run(ctx, &cfg, fn, arg);
    if (status == IM_OK || !strstr(im_error_text(ctx), words))
        fail_msg("%s: %s, not \"%s\"", im_status_name(status), im_error_text(ctx), words);
    im_context_destroy(ctx);
}

static void test_wrong_calls(void **state)
{
    (void)state;
    run_on(2, wrong_calls, NULL);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int k = 0; k < 2; k++) {
            int32_t id = k ? VOCABULARY : -1;
            expect_failure(ranks, outside, &id, k ? "101" : "-1");
        }
}

static void test_differing(void **state)
{
    (void)state;
    static const char *const words[] = {"rank 1: row linear 7 -> 50 fp32, seed 2", "rank 1: row linear 7 -> 51 fp32", "name \"other\"",
                                        "rank 1: column linear 7 -> 50", "rank 1 called all_reduce of 300 x fp32"};
    for (int what = 0; what < 5; what++)
        expect_failure(3, differing, &what, words[what]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column),      cmocka_unit_test(test_row),         cmocka_unit_test(test_bf16),      cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_set_and_get), cmocka_unit_test(test_wrong_calls), cmocka_unit_test(test_differing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
