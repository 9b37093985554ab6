/* Seconds of a kernel on a device. */
#include "plan/cost.h"

#include <math.h>

/* Share of the last wave that computes: tiles of the result, `units` at a time. A product may take the tile either way round. */
static double waves(const im_cluster_device *d, double batch, int64_t M, int64_t N)
{
    if (!d->units)
        return 1;
    double best = 0;
    for (int turn = 0; turn < 2; turn++) {
        double m = turn ? (double)d->tile_n : (double)d->tile_m, n = turn ? (double)d->tile_m : (double)d->tile_n;
        double tiles = batch * ceil((double)M / m) * ceil((double)N / n);
        double full = batch * (double)M * (double)N / (m * n); /* tiles at the edges are not full either */
        best = fmax(best, full / (ceil(tiles / (double)d->units) * (double)d->units));
    }
    return best;
}

double im_cost_product_share(const im_cluster_device *d, im_number number, int64_t batch, int64_t M, int64_t N, int64_t K)
{
    double size = cbrt((double)batch * (double)M * (double)N * (double)K); /* a batch fills the device as one product of its size does */
    return im_curve_at(&d->matmul[number], size) * waves(d, (double)batch, M, N);
}

double im_cost_product(const im_cluster_device *d, im_number number, int64_t batch, int64_t M, int64_t N, int64_t K, double bytes)
{
    if (M <= 0 || N <= 0 || K <= 0 || batch <= 0)
        return 0;
    double work = 2.0 * (double)batch * (double)M * (double)N * (double)K / (d->peak[number] * im_cost_product_share(d, number, batch, M, N, K));
    return fmax(fmax(work, bytes / (d->memory_rate * im_curve_at(&d->memory_curve, bytes))), d->launch);
}

double im_cost_bytes(const im_cluster_device *d, double bytes)
{
    return bytes <= 0 ? 0 : fmax(bytes / (d->memory_rate * im_curve_at(&d->memory_curve, bytes)), d->launch);
}
