/* Gradient accumulation: k micro-batches on each of N ranks give the gradient of one big batch on one rank, when sums are divided once by the number
 * of all rows that count. The mean of the micro-batches' means is another number: its rows count more in small micro-batches.
 *     cc accumulate.c $(pkg-config --cflags --libs imece) -lm -o accumulate && ./accumulate 2
 */
#include "example.h"

enum { IN = 96, HIDDEN = 160, OUT = 48, ROWS = 50, MICRO_BATCHES = 3 };
enum { VALUES = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT };
static const double TOLERANCE = 1e-5;

typedef struct model {
    im_rank *rank;
    im_linear *up, *down;
    im_tensor *x, *want; /* the whole batch: inputs and the outputs that are wanted */
} model;

/* A row counts, or not (padding, a question whose answer alone is learned): unevenly over the batch. */
static bool counts(int64_t row)
{
    return row % 7 < 1 + row / 9;
}

static im_status model_create(im_rank *r, im_group *g, model *m)
{
    const im_linear_config up = {.in = IN, .out = HIDDEN, .bias = true, .seed = 1, .name = "up"};
    const im_linear_config down = {.in = HIDDEN, .out = OUT, .bias = true, .seed = 1, .name = "down"};
    m->rank = r;
    TRY(im_column_linear_create(g, &up, &m->up));
    TRY(im_row_linear_create(g, &down, &m->down));
    TRY(example_drawn(r, "x", ROWS, IN, &m->x));
    return example_drawn(r, "want", ROWS, OUT, &m->want);
}

/* Rows [first, first + n): adds the gradient of the loss, the sum over the rows that count of |y - want|^2 / 2, and how many they are. */
static im_status add(model *m, int64_t first, int64_t n, int64_t *counted)
{
    im_tensor *x, *want, *u, *a, *y, *dy, *da;
    im_rank *r = m->rank;
    TRY(im_tensor_rows(m->x, first, n, &x));
    TRY(im_tensor_rows(m->want, first, n, &want));
    TRY(example_empty(r, n, HIDDEN, &u));
    TRY(example_empty(r, n, HIDDEN, &a));
    TRY(example_empty(r, n, HIDDEN, &da));
    TRY(example_empty(r, n, OUT, &y));
    TRY(example_empty(r, n, OUT, &dy));
    TRY(im_linear_forward(m->up, x, u));
    TRY(im_tensor_act(IM_ACT_GELU_TANH, u, a));
    TRY(im_linear_forward(m->down, a, y));
    float *got = example_values(y, 0), *right = example_values(want, 0);
    for (int64_t i = 0; got && right && i < n; i++) {
        *counted += counts(first + i);
        for (int64_t k = i * OUT; k < (i + 1) * OUT; k++)
            got[k] = counts(first + i) ? got[k] - right[k] : 0;
    }
    im_status status = got && right ? im_tensor_write(dy, got) : IM_ERR_NOMEM;
    free(got);
    free(right);
    if (!status)
        status = im_linear_backward(m->down, a, dy, da);
    if (!status)
        status = im_tensor_act_grad(IM_ACT_GELU_TANH, u, da, da);
    if (!status)
        status = im_linear_backward(m->up, x, da, NULL);
    im_tensor *all[] = {x, want, u, a, y, dy, da};
    for (int i = 0; i < 7; i++)
        im_tensor_destroy(all[i]);
    return status;
}

/* Adds all gradients of the model, times `by`, to out[VALUES]. */
static im_status add_gradients(model *m, double by, float *out)
{
    im_linear *layer[] = {m->up, m->down};
    for (int i = 0; i < 4; i++) {
        const im_tensor *t = im_linear_tensor(layer[i / 2], i % 2 ? IM_BIAS_GRADIENT : IM_WEIGHT_GRADIENT);
        float *g = example_values(t, 0);
        if (!g)
            return im_error_code(im_rank_context(m->rank));
        for (int64_t k = 0; k < im_tensor_count(t); k++)
            *out++ += (float)(by * g[k]);
        free(g);
    }
    return IM_OK;
}

static im_status zero(model *m)
{
    TRY(im_linear_zero_gradients(m->up));
    return im_linear_zero_gradients(m->down);
}

/* Sums over the ranks: the gradients, and how many rows counted. */
static im_status sum_over_ranks(model *m, int64_t *counted)
{
    im_group *world = im_rank_world(m->rank);
    im_tensor *n;
    for (int v = IM_WEIGHT_GRADIENT; v <= IM_BIAS_GRADIENT; v++) {
        im_tensor *up = im_linear_tensor(m->up, (im_layer_value)v), *down = im_linear_tensor(m->down, (im_layer_value)v);
        TRY(im_group_all_reduce(world, up, up, IM_SUM));
        TRY(im_group_all_reduce(world, down, down, IM_SUM));
    }
    TRY(im_tensor_create(m->rank, IM_I64, 1, (int64_t[]){1}, &n));
    TRY(im_tensor_write(n, counted));
    TRY(im_group_all_reduce(world, n, n, IM_SUM));
    TRY(im_tensor_read(n, counted));
    im_tensor_destroy(n);
    return IM_OK;
}

/* The rank's micro-batches, summed; the sum over the ranks divided by all rows that counted. */
static im_status accumulate(model *m, float *right_sum)
{
    int64_t counted = 0, first, end;
    const int parts = im_rank_count(m->rank) * MICRO_BATCHES, mine = im_rank_number(m->rank) * MICRO_BATCHES;
    TRY(zero(m));
    for (int i = mine; i < mine + MICRO_BATCHES; i++) {
        im_part(ROWS, parts, i, &first, &end); /* no two need be equal */
        TRY(add(m, first, end - first, &counted));
    }
    TRY(sum_over_ranks(m, &counted));
    return add_gradients(m, 1.0 / (double)counted, right_sum);
}

/* What goes wrong: each micro-batch divided by its own rows, then the mean of all. */
static im_status mean_of_means(model *m, float *wrong)
{
    int64_t first, end;
    const int parts = im_rank_count(m->rank) * MICRO_BATCHES;
    for (int i = 0; i < parts; i++) {
        int64_t counted = 0;
        im_part(ROWS, parts, i, &first, &end);
        TRY(zero(m));
        TRY(add(m, first, end - first, &counted));
        TRY(add_gradients(m, counted ? 1.0 / (double)counted / parts : 0, wrong));
    }
    return IM_OK;
}

static im_status compare(im_rank *r, model *m, const float *accumulated, float *big, float *wrong)
{
    int64_t counted = 0;
    double diff = 0, size = 0;
    TRY(zero(m));
    TRY(add(m, 0, ROWS, &counted));
    TRY(add_gradients(m, 1.0 / (double)counted, big));
    TRY(mean_of_means(m, wrong));
    printf("%d ranks x %d micro-batches; %lld of %d rows count\n", im_rank_count(r), MICRO_BATCHES, (long long)counted, ROWS);
    TRY(example_same(r, "sums, divided once", accumulated, big, VALUES, TOLERANCE));
    for (int i = 0; i < VALUES; i++) {
        diff += ((double)wrong[i] - big[i]) * ((double)wrong[i] - big[i]);
        size += (double)big[i] * big[i];
    }
    printf("  %-22s |a-b|/|b| %8.1e   another gradient\n", "the mean of means", sqrt(diff / size));
    return sqrt(diff / size) > 1e-2 ? IM_OK : im_fail(im_rank_context(r), IM_ERR_CHECK, "the mean of means was to differ");
}

static im_status run(im_rank *r, void *arg)
{
    (void)arg;
    im_group *alone; /* every rank has the whole model */
    model m;
    if (im_rank_count(r) * MICRO_BATCHES > ROWS)
        return im_fail(im_rank_context(r), IM_ERR_ARG, "at most %d ranks", ROWS / MICRO_BATCHES);
    TRY(example_alone(r, &alone));
    TRY(model_create(r, alone, &m));
    float *sum = example_values(NULL, VALUES), *big = example_values(NULL, VALUES), *wrong = example_values(NULL, VALUES);
    im_status status = sum && big && wrong ? accumulate(&m, sum) : IM_ERR_NOMEM;
    if (!status && example_first(r))
        status = compare(r, &m, sum, big, wrong);
    free(sum);
    free(big);
    free(wrong);
    return status;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, 2, run, NULL);
}
