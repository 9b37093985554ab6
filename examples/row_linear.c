/* A row-parallel linear layer, 2048 -> 1024 with bias, on N ranks against one: each rank works on some of the inputs; the partial products are
 * summed, and the bias is added once, after the sum.
 *     cc row_linear.c $(pkg-config --cflags --libs imece) -lm -o row_linear && ./row_linear 4
 */
#include "example.h"

enum { IN = 2048, OUT = 1024, BATCH = 32 };
static const double TOLERANCE = 1e-5;

static im_status pass(im_rank *r, im_linear *layer, im_tensor *x, im_tensor *dy, im_tensor **y, im_tensor **dx)
{
    TRY(example_empty(r, BATCH, OUT, y));
    TRY(example_empty(r, BATCH, IN, dx));
    TRY(im_linear_forward(layer, x, *y));
    return im_linear_backward(layer, x, dy, *dx);
}

static void show_shapes(int ranks)
{
    for (int i = 0; i < ranks; i++) {
        int64_t first, end;
        im_part(IN, ranks, i, &first, &end); /* as im_linear_part tells rank i */
        const long long p = end - first;
        printf("rank %d: inputs %lld to %lld; x (%d,%d), of it (%d,%lld); weight (%d,%lld); partial product (%d,%d), summed; bias (%d)\n", i,
               (long long)first, (long long)end, BATCH, IN, BATCH, p, OUT, p, BATCH, OUT, OUT);
    }
}

/* y is the sum of a layer without bias, plus the bias once; with the bias in every partial product it would be N times in y. */
static im_status check_bias(im_rank *r, im_linear *layer, const im_tensor *x, const im_tensor *y)
{
    const im_linear_config config = {.in = IN, .out = OUT, .seed = 1};
    im_linear *bare;
    im_tensor *sum;
    TRY(im_row_linear_create(im_rank_world(r), &config, &bare));
    TRY(example_empty(r, BATCH, OUT, &sum));
    TRY(im_linear_forward(bare, x, sum));
    float *a = example_values(y, 0), *b = example_values(sum, 0), *bias = example_values(im_linear_tensor(layer, IM_BIAS), 0);
    for (int i = 0; a && b && bias && i < BATCH * OUT; i++)
        b[i] += bias[i % OUT];
    im_status status = example_first(r) ? example_same(r, "y, sum + bias once", a, b, BATCH * OUT, TOLERANCE) : IM_OK;
    free(a);
    free(b);
    free(bias);
    return status;
}

static im_status run(im_rank *r, void *arg)
{
    (void)arg;
    const im_linear_config config = {.in = IN, .out = OUT, .bias = true, .seed = 1};
    im_linear *many, *one = NULL;
    im_group *alone;
    im_tensor *x, *dy, *y, *dx, *y1, *dx1;
    TRY(im_row_linear_create(im_rank_world(r), &config, &many));
    TRY(example_drawn(r, "x", BATCH, IN, &x));
    TRY(example_drawn(r, "dy", BATCH, OUT, &dy));
    TRY(pass(r, many, x, dy, &y, &dx));
    if (example_first(r)) { /* the same layer over a group of one rank */
        show_shapes(im_rank_count(r));
        printf("%d ranks against one:\n", im_rank_count(r));
        TRY(example_alone(r, &alone));
        TRY(im_row_linear_create(alone, &config, &one));
        TRY(pass(r, one, x, dy, &y1, &dx1));
        TRY(example_same_tensor(r, "y = x W^T + b", y, y1, TOLERANCE));
        TRY(example_same_tensor(r, "gradient of x", dx, dx1, TOLERANCE));
    }
    TRY(check_bias(r, many, x, y));
    TRY(example_same_value(r, "weight", many, one, IM_WEIGHT, (int64_t)OUT * IN, 0)); /* drawn by index: the same bits */
    TRY(example_same_value(r, "gradient of the weight", many, one, IM_WEIGHT_GRADIENT, (int64_t)OUT * IN, TOLERANCE));
    return example_same_value(r, "gradient of the bias", many, one, IM_BIAS_GRADIENT, OUT, TOLERANCE);
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, 4, run, NULL);
}
