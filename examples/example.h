/* What the examples share: who the ranks are, and how results are compared.
 *
 *     ./EXAMPLE [RANKS]           ranks are threads
 *     mpirun -n RANKS ./EXAMPLE   ranks are processes
 */
#include <imece.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An error is passed on; where it is met first, its text is in the rank's context. */
#define TRY(call)              \
    do {                       \
        im_status s_ = (call); \
        if (s_ != IM_OK)       \
            return s_;         \
    } while (0)

/* Runs fn on argv[1] ranks (default: `ranks`), or on those of the MPI job that this process belongs to. 0, or 1 with the reason on stderr. */
static inline int example_run(int argc, char **argv, int ranks, im_rank_fn fn, void *arg)
{
    im_context *ctx;
    im_job *job = NULL;
    const im_job_config how = {.environment = getenv};
    if (im_context_create(&ctx) != IM_OK)
        return 1;
    im_status status = im_job_join(ctx, &how, &job);
    const im_ranks_config config = {.ranks = job ? 0 : argc > 1 ? atoi(argv[1]) : ranks, .job = job};
    if (!status)
        status = im_ranks_run(ctx, &config, fn, arg);
    if (status)
        fprintf(stderr, "%s: %s\n", argv[0], im_error_text(ctx));
    fflush(stdout);
    im_job_leave(job);
    im_context_destroy(ctx);
    return status ? 1 : 0;
}

static inline bool example_first(im_rank *r)
{
    return im_rank_number(r) == 0;
}

/* A group of this rank alone: a layer over it is the whole layer. */
static inline im_status example_alone(im_rank *r, im_group **out)
{
    const int me = im_rank_number(r);
    return im_group_split(im_rank_world(r), &me, 1, out);
}

/* (rows, cols) of fp32, drawn: the same values on every rank that draws them. */
static inline im_status example_drawn(im_rank *r, const char *name, int64_t rows, int64_t cols, im_tensor **out)
{
    TRY(im_tensor_create(r, IM_F32, 2, (int64_t[]){rows, cols}, out));
    return im_tensor_draw(*out, 2, name, 0, 1);
}

static inline im_status example_empty(im_rank *r, int64_t rows, int64_t cols, im_tensor **out)
{
    return im_tensor_create(r, IM_F32, 2, (int64_t[]){rows, cols}, out);
}

/* The values of t (of n zeros for NULL) in memory that the caller frees. */
static inline float *example_values(const im_tensor *t, int64_t n)
{
    float *values = calloc((size_t)(t ? im_tensor_count(t) : n) + 1, sizeof *values);
    if (values && t && im_tensor_read(t, values) != IM_OK) {
        free(values);
        return NULL;
    }
    return values;
}

/* |a - b| / |b| over n numbers; prints it, and is an error above the tolerance. */
static inline im_status example_same(im_rank *r, const char *what, const float *a, const float *b, int64_t n, double tolerance)
{
    double diff = 0, size = 0, worst = 0;
    if (!a || !b)
        return im_fail(im_rank_context(r), IM_ERR_NOMEM, "%s: nothing to compare", what);
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)a[i] - b[i];
        diff += d * d;
        size += (double)b[i] * b[i];
        worst = fabs(d) > worst ? fabs(d) : worst;
    }
    const double relative = sqrt(diff) / (sqrt(size) > 0 ? sqrt(size) : 1);
    printf("  %-22s |a-b|/|b| %8.1e   largest difference %8.1e   tolerance %g\n", what, relative, worst, tolerance);
    if (relative <= tolerance)
        return IM_OK;
    return im_fail(im_rank_context(r), IM_ERR_CHECK, "%s: |a-b|/|b| is %.1e, above %g", what, relative, tolerance);
}

/* The same for two tensors of one shape. */
static inline im_status example_same_tensor(im_rank *r, const char *what, const im_tensor *a, const im_tensor *b, double tolerance)
{
    float *x = example_values(a, 0), *y = example_values(b, 0);
    im_status status = example_same(r, what, x, y, im_tensor_count(b), tolerance);
    free(x);
    free(y);
    return status;
}

/* Rank 0 of layer `many`'s group compares a value of it, put together, with the same of `one`, which only rank 0 needs. All ranks call it. */
static inline im_status example_same_value(im_rank *r, const char *what, im_linear *many, im_linear *one, im_layer_value v, int64_t n,
                                           double tolerance)
{
    float *whole = example_first(r) ? example_values(NULL, n) : NULL;
    im_status status = im_linear_get(many, v, 0, whole);
    if (!status && example_first(r)) {
        float *right = example_values(im_linear_tensor(one, v), 0);
        status = example_same(r, what, whole, right, n, tolerance);
        free(right);
    }
    free(whole);
    return status;
}
