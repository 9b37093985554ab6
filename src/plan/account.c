#include "plan/account.h"

double im_account_zero(double params, int stage, int dp, double k)
{
    double weights = stage >= 3 ? 2.0 / dp : 2, gradients = stage >= 2 ? 2.0 / dp : 2, optimizer = stage >= 1 ? k / dp : k;
    return params * (weights + gradients + optimizer);
}

double im_account_layer(double s, double b, double h, double a, double t, bool sequence_parallel, im_recompute recompute)
{
    double sbh = s * b * h, scores = recompute == IM_RECOMPUTE_NONE ? 5 * a * s / (h * t) : 0;
    if (recompute == IM_RECOMPUTE_FULL)
        return 2 * sbh;
    return sbh * ((sequence_parallel ? 34 / t : 10 + 24 / t) + scores);
}

double im_account_first_stage(double layer, double L, double p, double v)
{
    return layer * L * (v > 1 ? 1 + (p - 1) / (p * v) : 1);
}

double im_account_fsdp(double params, double unit, int dp)
{
    return 16.0 * params / dp + 2 * 2.0 * unit;
}
