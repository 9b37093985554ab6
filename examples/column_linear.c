/* A column-parallel linear layer, 1024 -> 2048 with bias, on N ranks against one: each rank has some of the outputs.
 *     cc column_linear.c $(pkg-config --cflags --libs imece) -lm -o column_linear && ./column_linear 4
 */
#include "example.h"

enum { IN = 1024, OUT = 2048, BATCH = 32 };
static const double TOLERANCE = 1e-5;

/* What each rank holds, told by rank 0. */
static im_status show_shapes(im_rank *r, im_linear *layer)
{
    im_tensor *mine, *all;
    int64_t part[2], n = im_rank_count(r);
    im_linear_part(layer, &part[0], &part[1]);
    TRY(im_tensor_create(r, IM_I64, 1, (int64_t[]){2}, &mine));
    TRY(im_tensor_create(r, IM_I64, 2, (int64_t[]){n, 2}, &all));
    TRY(im_tensor_write(mine, part));
    TRY(im_group_all_gather(im_rank_world(r), mine, all, NULL));
    int64_t *told = calloc((size_t)n, sizeof part);
    im_status status = told ? im_tensor_read(all, told) : IM_ERR_NOMEM;
    for (int64_t i = 0; !status && example_first(r) && i < n; i++) {
        const long long first = told[2 * i], end = told[2 * i + 1], p = end - first;
        printf("rank %lld: outputs %lld to %lld; weight (%lld,%d), bias (%lld), x (%d,%d), y (%d,%lld) gathered to (%d,%d)\n", (long long)i, first,
               end, p, IN, p, BATCH, IN, BATCH, p, BATCH, OUT);
    }
    free(told);
    return status;
}

static im_status pass(im_rank *r, im_linear *layer, im_tensor *x, im_tensor *dy, im_tensor **y, im_tensor **dx)
{
    TRY(example_empty(r, BATCH, OUT, y));
    TRY(example_empty(r, BATCH, IN, dx));
    TRY(im_linear_forward(layer, x, *y));
    return im_linear_backward(layer, x, dy, *dx);
}

static im_status run(im_rank *r, void *arg)
{
    (void)arg;
    const im_linear_config config = {.in = IN, .out = OUT, .bias = true, .seed = 1, .gather_output = true};
    im_linear *many, *one = NULL;
    im_group *alone;
    im_tensor *x, *dy, *y, *dx, *y1, *dx1;
    TRY(im_column_linear_create(im_rank_world(r), &config, &many));
    TRY(show_shapes(r, many));
    TRY(example_drawn(r, "x", BATCH, IN, &x));
    TRY(example_drawn(r, "dy", BATCH, OUT, &dy));
    TRY(pass(r, many, x, dy, &y, &dx));
    if (example_first(r)) { /* the same layer over a group of one rank */
        printf("%d ranks against one:\n", im_rank_count(r));
        TRY(example_alone(r, &alone));
        TRY(im_column_linear_create(alone, &config, &one));
        TRY(pass(r, one, x, dy, &y1, &dx1));
        TRY(example_same_tensor(r, "y = x W^T + b", y, y1, TOLERANCE));
        TRY(example_same_tensor(r, "gradient of x", dx, dx1, TOLERANCE));
    }
    TRY(example_same_value(r, "weight", many, one, IM_WEIGHT, (int64_t)OUT * IN, 0)); /* drawn by index: the same bits */
    TRY(example_same_value(r, "gradient of the weight", many, one, IM_WEIGHT_GRADIENT, (int64_t)OUT * IN, TOLERANCE));
    return example_same_value(r, "gradient of the bias", many, one, IM_BIAS_GRADIENT, OUT, TOLERANCE);
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, 4, run, NULL);
}
