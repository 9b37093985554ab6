/* A feed-forward block, 3456 -> 13824 -> GELU -> 3456, at tensor parallelism 1 to N: a column layer leaves its outputs on the ranks, the
 * activation works on them there, and a row layer takes them as they are. One all-reduce forward, one backward.
 *     cc mlp.c $(pkg-config --cflags --libs imece) -lm -o mlp && ./mlp 8
 * Other sizes: ./mlp RANKS D F
 */
#include "example.h"

enum { BATCH = 32 };
static int64_t D = 3456, F = 13824; /* outside and inside of the block; set once, in main */
static const double TOLERANCE = 1e-5;

typedef struct block {
    im_linear *up, *down;
    im_tensor *u, *a, *y, *da, *dx; /* before and after the activation, the output; gradients of the activation's output and of x */
} block;

static im_status block_create(im_group *g, block *b)
{
    im_rank *r = im_group_owner(g);
    int64_t first, end;
    const im_linear_config up = {.in = D, .out = F, .bias = true, .seed = 1, .name = "up"};
    const im_linear_config down = {.in = F, .out = D, .bias = true, .seed = 1, .name = "down", .input_is_parallel = true};
    TRY(im_column_linear_create(g, &up, &b->up));
    TRY(im_row_linear_create(g, &down, &b->down));
    im_linear_part(b->up, &first, &end);
    TRY(example_empty(r, BATCH, end - first, &b->u));
    TRY(example_empty(r, BATCH, end - first, &b->a));
    TRY(example_empty(r, BATCH, end - first, &b->da));
    TRY(example_empty(r, BATCH, D, &b->y));
    return example_empty(r, BATCH, D, &b->dx);
}

static void block_destroy(block *b)
{
    im_tensor *t[] = {b->u, b->a, b->y, b->da, b->dx};
    for (int i = 0; i < 5; i++)
        im_tensor_destroy(t[i]);
    im_linear_destroy(b->up);
    im_linear_destroy(b->down);
}

static im_status forward(block *b, const im_tensor *x)
{
    TRY(im_linear_forward(b->up, x, b->u));
    TRY(im_tensor_act(IM_ACT_GELU_TANH, b->u, b->a));
    return im_linear_forward(b->down, b->a, b->y);
}

static im_status backward(block *b, const im_tensor *x, const im_tensor *dy)
{
    TRY(im_linear_backward(b->down, b->a, dy, b->da));
    TRY(im_tensor_act_grad(IM_ACT_GELU_TANH, b->u, b->da, b->da));
    return im_linear_backward(b->up, x, b->da, b->dx);
}

/* Weights and gradients of the rank with the most columns: what is allocated against what the sizes say. */
static im_status check_bytes(im_rank *r, int tp)
{
    im_rank_bytes m;
    const size_t d = (size_t)D, p = (size_t)((F + tp - 1) / tp), expected = (2 * p * d + p + d) * sizeof(float);
    im_rank_memory(r, &m);
    printf("tp %d: %6.1f MB of weights on a rank, %5.1f %% of the whole, as predicted (%.1f); as much of gradients\n", tp, (double)m.weights / 1e6,
           100 * (double)m.weights / (sizeof(float) * (2.0 * (double)(F * D) + (double)(F + D))), (double)expected / 1e6);
    if (m.weights >= expected && m.weights < expected + 4 * 64 && m.gradients >= expected &&
        m.gradients < expected + 4 * 64) /* each rounded up to 64 */
        return IM_OK;
    return im_fail(im_rank_context(r), IM_ERR_CHECK, "tp %d: %zu bytes of weights and %zu of gradients, not %zu", tp, m.weights, m.gradients,
                   expected);
}

static im_status check_traffic(im_rank *r, im_group *g, int tp, uint64_t before, uint64_t bytes_before, const char *what)
{
    uint64_t operations, nbytes, sum = (uint64_t)(BATCH * D) * sizeof(float);
    im_group_traffic(g, &operations, &nbytes);
    operations -= before;
    nbytes -= bytes_before;
    if (operations == (tp > 1) && nbytes == (tp > 1 ? sum : 0))
        return IM_OK;
    return im_fail(im_rank_context(r), IM_ERR_CHECK, "tp %d: %s took %llu operations and %llu bytes, not one of %llu", tp, what,
                   (unsigned long long)operations, (unsigned long long)nbytes, (unsigned long long)sum);
}

/* The result of a block on rank 0, put together; of tp 1 it is what the others are compared with. */
typedef struct result {
    float *y, *dx, *up, *down;
} result;

static void result_free(result *x)
{
    free(x->y);
    free(x->dx);
    free(x->up);
    free(x->down);
}

/* All ranks of the block call it. */
static im_status take_result(im_rank *r, block *b, result *out)
{
    if (example_first(r))
        *out = (result){example_values(b->y, 0), example_values(b->dx, 0), example_values(NULL, D * F), example_values(NULL, D * F)};
    TRY(im_linear_get(b->up, IM_WEIGHT_GRADIENT, 0, out->up));
    return im_linear_get(b->down, IM_WEIGHT_GRADIENT, 0, out->down);
}

static im_status compare(im_rank *r, const result *a, const result *one)
{
    TRY(example_same(r, "y", a->y, one->y, BATCH * D, TOLERANCE));
    TRY(example_same(r, "gradient of x", a->dx, one->dx, BATCH * D, TOLERANCE));
    TRY(example_same(r, "gradient of up", a->up, one->up, D * F, TOLERANCE));
    return example_same(r, "gradient of down", a->down, one->down, D * F, TOLERANCE);
}

/* Forward and backward over g, the first tp ranks. */
static im_status run_block(im_rank *r, im_group *g, block *b, im_tensor *x, im_tensor *dy, result *out)
{
    uint64_t operations, nbytes;
    const int tp = im_group_size(g);
    TRY(block_create(g, b));
    im_group_traffic(g, &operations, &nbytes);
    TRY(forward(b, x));
    TRY(check_traffic(r, g, tp, operations, nbytes, "forward"));
    im_group_traffic(g, &operations, &nbytes);
    TRY(backward(b, x, dy));
    TRY(check_traffic(r, g, tp, operations, nbytes, "backward"));
    if (example_first(r))
        TRY(check_bytes(r, tp));
    return take_result(r, b, out);
}

static im_status run_tp(im_rank *r, int tp, im_tensor *x, im_tensor *dy, result *one)
{
    block b = {0};
    result many = {0};
    im_group *g;
    int ranks[64];
    for (int i = 0; i < tp; i++)
        ranks[i] = i;
    TRY(im_group_split(im_rank_world(r), ranks, tp, &g));
    im_status status = run_block(r, g, &b, x, dy, tp == 1 ? one : &many);
    if (!status && tp > 1 && example_first(r))
        status = compare(r, &many, one);
    result_free(&many);
    block_destroy(&b);
    im_group_destroy(g);
    return status;
}

static im_status run(im_rank *r, void *arg)
{
    (void)arg;
    im_tensor *x, *dy;
    result one = {0};
    im_status status = IM_OK;
    if (im_rank_count(r) > 64)
        return im_fail(im_rank_context(r), IM_ERR_ARG, "at most 64 ranks");
    TRY(example_drawn(r, "x", BATCH, D, &x));
    TRY(example_drawn(r, "dy", BATCH, D, &dy));
    for (int tp = 1; tp <= im_rank_count(r) && !status; tp++)
        if (im_rank_number(r) < tp)
            status = run_tp(r, tp, x, dy, &one);
    result_free(&one);
    if (!status && example_first(r))
        printf("forward and backward: one all-reduce each, of %zu bytes\n", (size_t)(BATCH * D) * sizeof(float));
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 3) {
        D = atoi(argv[2]);
        F = atoi(argv[3]);
    }
    return example_run(argc, argv, 8, run, NULL);
}
