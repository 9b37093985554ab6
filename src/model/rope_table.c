/* Rotary positions: the frequencies and the tables. The formulas are those of Transformers' modeling_rope_utils.py, in fp64. */
#include "model/family.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925286766559;

/* Long waves are slowed down by the factor, short ones stay, those between are mixed (_compute_llama3_parameters). */
static double llama3_frequency(const im_arch *a, double f)
{
    const double original = (double)a->rope_original_positions, wave = two_pi / f;
    if (wave > original / a->rope_low_freq)
        return f / a->rope_factor;
    if (wave < original / a->rope_high_freq)
        return f;
    const double smooth = (original / wave - a->rope_low_freq) / (a->rope_high_freq - a->rope_low_freq);
    return (1 - smooth) * f / a->rope_factor + smooth * f;
}

/* The pair (a real number) that turns `turns` times within the original positions. */
static double yarn_pair(const im_arch *a, double turns)
{
    return (double)a->rope_dims * log((double)a->rope_original_positions / (turns * two_pi)) / (2 * log(a->rope_theta));
}

/* Pairs that turn often stay, those that turn seldom are slowed down, a ramp between (Peng et al., 2023; _compute_yarn_parameters). */
static double yarn_frequency(const im_arch *a, double f, int64_t i)
{
    double low = yarn_pair(a, a->rope_beta_fast), high = yarn_pair(a, a->rope_beta_slow);
    if (a->rope_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)a->rope_dims - 1);
    if (low == high)
        high += 0.001;
    const double slowed = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return f / a->rope_factor * slowed + f * (1 - slowed);
}

double im_rope_frequency(const im_arch *a, int64_t reach, int64_t i)
{
    const double f = pow(a->rope_theta, -2.0 * (double)i / (double)a->rope_dims);
    switch (a->rope_scaling) {
    case IM_ROPE_LINEAR: return f / a->rope_factor;
    case IM_ROPE_LLAMA3: return llama3_frequency(a, f);
    case IM_ROPE_YARN: return yarn_frequency(a, f, i);
    case IM_ROPE_LONG: return f / (reach > a->rope_original_positions ? a->rope_long[i] : a->rope_short[i]);
    default: return f;
    }
}

void im_rope_table(const im_arch *a, int64_t reach, int64_t first, int64_t n, float *out)
{
    const int64_t half = a->rope_dims / 2;
    for (int64_t i = 0; i < half; i++) {
        const double f = im_rope_frequency(a, reach, i);
        for (int64_t p = 0; p < n; p++) {
            const double angle = f * (double)(first + p);
            out[p * a->rope_dims + i] = (float)(cos(angle) * a->rope_attention);
            out[p * a->rope_dims + half + i] = (float)(sin(angle) * a->rope_attention);
        }
    }
}
