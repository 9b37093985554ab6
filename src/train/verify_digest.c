/* verify: digests of edges. For each sample the squares of its rows, and eight sums into which its elements are dealt with random signs, keyed by the
 * row and column in the sample: of a difference d of two edges the squares of the eight differences add up to |d|^2 on average. Sums
 * add up over ranks that have parts of the rows, so any layout's digests compare with one rank's; a digest is 80 bytes.
 */
#include "train/verify_internal.h"

#include <math.h>
#include <stdlib.h>

im_status im_train_verify_trace_create(im_context *ctx, int64_t steps, int64_t nunit, int64_t samples, im_train_verify_trace *out)
{
    void *digest;
    IM_TRY(im_alloc(ctx, (size_t)(steps * 2 * nunit * samples), sizeof(im_train_verify_digest), &digest));
    *out = (im_train_verify_trace){steps, nunit, samples, digest};
    return IM_OK;
}

void im_train_verify_trace_free(im_train_verify_trace *t)
{
    free(t->digest);
    *t = (im_train_verify_trace){0};
}

static im_train_verify_digest *at(const im_train_verify_trace *t, int64_t step, bool backward, int64_t unit, int64_t sample)
{
    return &t->digest[((step * 2 + backward) * t->nunit + unit) * t->samples + sample];
}

/* 64 random bits (splitmix64) */
static uint64_t bits_of(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Columns go in turn to the eight sums, from a first one that the row draws. The loops are eight wide, for vectors. */
static void add_row(im_train_verify_digest *d, const float *x, int64_t row, int64_t cols)
{
    enum { LANES = IM_TRAIN_VERIFY_PROJECTIONS };
    double sum[LANES] = {0}, squares[LANES] = {0};
    int64_t c = 0;
    for (; c + LANES <= cols; c += LANES) {
        uint64_t bits = bits_of((uint64_t)row << 32 | (uint64_t)c);
        for (int i = 0; i < LANES; i++) {
            double v = x[c + i];
            squares[i] += v * v;
            sum[i] += (1.0 - 2.0 * (double)(int)(bits >> i & 1)) * v;
        }
    }
    for (int i = 0; c < cols; c++, i++) {
        double v = x[c];
        squares[i] += v * v;
        sum[i] += bits_of((uint64_t)row << 32 | (uint64_t)c) & 1 ? -v : v;
    }
    unsigned first = (unsigned)(bits_of((uint64_t)row) % LANES);
    d->rows++;
    for (unsigned i = 0; i < LANES; i++) {
        d->squares += squares[i];
        d->projection[(first + i) % LANES] += sum[i];
    }
}

im_status im_train_verify_edge(const im_train_verify_trace *t, const im_engine_edge *x)
{
    if (x->step >= t->steps)
        return IM_OK;
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t row = x->row0 + r;
        add_row(at(t, x->step, x->verb != IM_FORWARD, x->unit, x->first_sample + row / x->T), x->data + r * x->D, row % x->T, x->D);
    }
    return IM_OK;
}

/* ---- comparison ------------------------------------------------------------------------ */

static double distance(const im_train_verify_digest *a, const im_train_verify_digest *b, double floor)
{
    double d = 0, norm = sqrt(b->squares) > floor ? sqrt(b->squares) : floor;
    for (int i = 0; i < IM_TRAIN_VERIFY_PROJECTIONS; i++)
        d += (a->projection[i] - b->projection[i]) * (a->projection[i] - b->projection[i]);
    d = sqrt(d) / norm;
    double s = fabs(sqrt(a->squares) - sqrt(b->squares)) / norm;
    return !(d < INFINITY) || !(s < INFINITY) ? INFINITY : d > s ? d : s;
}

/* Of one sample: the largest distance of any rank that has all its rows, or of the sum of those that have parts. */
static double sample_distance(const im_train_verify_digest *b, const im_train_verify_trace *rank, int nrank, int64_t step, bool backward,
                              int64_t unit, int64_t sample, int64_t rows, double floor)
{
    im_train_verify_digest sum = {0};
    double worst = 0;
    for (int r = 0; r < nrank; r++) {
        const im_train_verify_digest *a = at(&rank[r], step, backward, unit, sample);
        if (a->rows == rows) {
            double d = distance(a, b, floor);
            worst = d > worst ? d : worst;
            continue;
        }
        sum.rows += a->rows;
        sum.squares += a->squares;
        for (int i = 0; i < IM_TRAIN_VERIFY_PROJECTIONS; i++)
            sum.projection[i] += a->projection[i];
    }
    if (sum.rows) {
        double d = sum.rows == rows ? distance(&sum, b, floor) : INFINITY;
        worst = d > worst ? d : worst;
    }
    return worst;
}

/* All samples of micro-batch mb, of every data parallel rank. */
static double edge_distance(const im_plan *p, const im_train_verify_trace *ref, const im_train_verify_trace *rank, int nrank, int64_t step,
                            bool backward, int64_t unit, int mb)
{
    double mean = 0, worst = 0;
    for (int64_t s = 0; s < ref->samples; s++)
        mean += at(ref, step, backward, unit, s)->squares;
    double floor = 1e-3 * sqrt(mean / (double)ref->samples) + 1e-30; /* a sample without counted tokens has no gradient */
    for (int dp = 0; dp < p->mesh.dp; dp++) {
        int64_t first = im_plan_first_sample(p, dp, mb), n = im_plan_micro_batch_size(p, dp, mb);
        for (int64_t s = first; s < first + n; s++) {
            double d = sample_distance(at(ref, step, backward, unit, s), rank, nrank, step, backward, unit, s, p->seq_len, floor);
            worst = d > worst ? d : worst;
        }
    }
    return worst;
}

/* Of all units of a pass: one edge's rounding may be small by chance. */
static double rounding_of(const im_plan *p, const im_train_verify_reference *ref, int64_t step, bool backward)
{
    im_plan one = *p; /* whose samples are one micro-batch */
    one.mesh = (im_mesh){1, 1, 1, 1};
    one.micro_batch = one.global_batch;
    double worst = 0;
    for (int64_t u = backward; ref->rounded.digest && u < ref->trace.nunit - !backward; u++) {
        double d = edge_distance(&one, &ref->trace, &ref->rounded, 1, step, backward, u, 0);
        worst = d > worst ? d : worst;
    }
    return worst;
}

im_train_verify_place im_train_verify_first(const im_plan *p, const im_train_verify_reference *reference, const im_train_verify_trace *rank,
                                            int nrank, double tolerance)
{
    int64_t U = reference->trace.nunit;
    bool splits = im_schedule_of(p->schedule)->splits;
    for (int64_t step = 0; step < reference->trace.steps; step++) {
        double limit[2];
        for (int b = 0; b < 2; b++)
            limit[b] = im_train_verify_limit(2 * tolerance, rounding_of(p, reference, step, b));
        for (int mb = 0; mb < im_plan_micro_batches(p, 0); mb++)
            for (int64_t i = 0; i < 2 * U - 2; i++) { /* FORWARD 0 .. U-2, LOSS U-1, BACKWARD or its first part U-2 .. 1 */
                bool backward = i >= U - 1;
                int64_t unit = backward ? 2 * U - 2 - i : i;
                double d = edge_distance(p, &reference->trace, rank, nrank, step, backward, unit, mb);
                im_verb back = unit == U - 1 ? IM_LOSS : splits && p->model->unit[unit].type == IM_UNIT_BLOCK ? IM_BACKWARD_INPUT : IM_BACKWARD;
                if (!(d <= limit[backward]))
                    return (im_train_verify_place){true, backward ? back : IM_FORWARD, (int)unit, mb, step, d};
            }
    }
    return (im_train_verify_place){0};
}
