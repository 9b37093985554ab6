/* Blends: whose turn it is.
 *
 * With whole weights a_1 ... a_k of sum A, after n samples source i is to have floor or ceil of n a_i / A. So its j-th sample (from 0) may not come
 * before slot floor(j A / a_i) and must have come by slot ceil((j + 1) A / a_i). These are jobs of one slot with whole release times and deadlines,
 * and together they fit (shares add up to 1), so taking the released job with the earliest deadline meets them all (Liu and Layland 1973; Baruah,
 * Cohen, Plaxton and Varvel 1996 for these windows). After A slots everybody has had exactly a_i, and it begins anew: one period in a table
 * answers for every position.
 *
 *   7:3   slot    0 1 2 3 4 5 6 7 8 9
 *         source  0 0 1 0 0 1 0 0 1 0      (for example)
 */
#include "data/feed_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DECIMALS = 9 };
#define MOST_WHOLE 100000000 /* with a digit more and MOST_DECIMALS behind it, below 2^63 */

/* "0.25" as 25 with 2 decimals. */
static im_status read_decimal(im_context *ctx, const char *text, int64_t *digits, int *decimals)
{
    int64_t x = 0;
    int after = -1;
    const char *p = text;
    for (; *p; p++) {
        if (*p == '.' && after < 0) {
            after = 0;
            continue;
        }
        if (*p < '0' || *p > '9')
            break;
        if ((after < 0 && x > MOST_WHOLE) || after >= MOST_DECIMALS)
            break;
        x = 10 * x + (*p - '0');
        after += after >= 0;
    }
    if (*p || p == text || x == 0)
        return im_fail(ctx, IM_ERR_ARG, "weight \"%s\": a decimal number above 0, such as 0.7 or 3, with at most %d decimals", text, MOST_DECIMALS);
    *digits = x;
    *decimals = after > 0 ? after : 0;
    return IM_OK;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* The weights with 6 decimals, as a suggestion. */
static im_status fail_period(im_context *ctx, const im_blend *b, double sum)
{
    im_str near = {0};
    for (size_t i = 0; i < b->n && i < 8; i++) {
        double w = (double)b->weight[i] / sum;
        im_str_printf(&near, "%s%.6f", i ? ", " : "", w < 1e-6 ? 1e-6 : w);
    }
    im_status status = im_fail(ctx, IM_ERR_ARG, "the weights come round only after %.0f samples; at most %d: fewer digits will do, such as %s%s", sum,
                               IM_BLEND_PERIOD, im_str_text(&near), b->n > 8 ? ", ..." : "");
    im_str_free(&near);
    return status;
}

static im_status whole_weights(im_context *ctx, const char *const *text, im_blend *b)
{
    int decimals[IM_BLEND_SOURCES], most = 0;
    int64_t divisor = 0;
    double sum = 0;
    for (size_t i = 0; i < b->n; i++) {
        IM_TRY(read_decimal(ctx, text[i], &b->weight[i], &decimals[i]));
        most = decimals[i] > most ? decimals[i] : most;
    }
    for (size_t i = 0; i < b->n; i++) {
        for (int d = decimals[i]; d < most; d++)
            if (__builtin_mul_overflow(b->weight[i], (int64_t)10, &b->weight[i]))
                return im_fail(ctx, IM_ERR_ARG, "weight \"%s\" beside one with %d decimals: too many digits; fewer decimals, or smaller numbers",
                               text[i], most);
        divisor = common_divisor(b->weight[i], divisor);
    }
    for (size_t i = 0; i < b->n; i++) {
        b->weight[i] /= divisor;
        sum += (double)b->weight[i];
    }
    if (sum > IM_BLEND_PERIOD)
        return fail_period(ctx, b, sum);
    b->period = (int64_t)sum;
    return IM_OK;
}

static void fill_period(im_blend *b)
{
    int64_t turns[IM_BLEND_SOURCES] = {0}, release[IM_BLEND_SOURCES] = {0}, deadline[IM_BLEND_SOURCES];
    const int64_t A = b->period;
    for (size_t i = 0; i < b->n; i++)
        deadline[i] = (A + b->weight[i] - 1) / b->weight[i];
    for (int64_t t = 0; t < A; t++) {
        size_t best = b->n;
        for (size_t i = 0; i < b->n; i++)
            if (release[i] <= t && (best == b->n || deadline[i] < deadline[best]))
                best = i;
        int64_t j = turns[best]++ + 1, a = b->weight[best];
        b->source[t] = (uint16_t)best;
        b->before[t] = (uint32_t)(j - 1);
        release[best] = j < a ? j * A / a : A; /* the next period's are not of this table */
        deadline[best] = ((j + 1) * A + a - 1) / a;
    }
}

im_status im_blend_init(im_context *ctx, const char *const *weight, size_t n, im_blend *out)
{
    im_blend b = {.n = n};
    if (n < 1 || n > IM_BLEND_SOURCES)
        return im_fail(ctx, IM_ERR_ARG, "%zu weighted sources; 1 to %d are blended (several files can be one source)", n, IM_BLEND_SOURCES);
    IM_TRY(whole_weights(ctx, weight, &b));
    IM_TRY(im_alloc(ctx, (size_t)b.period, sizeof *b.source, (void **)&b.source));
    im_status status = im_alloc(ctx, (size_t)b.period, sizeof *b.before, (void **)&b.before);
    if (status != IM_OK) {
        im_blend_free(&b);
        return status;
    }
    fill_period(&b);
    *out = b;
    return IM_OK;
}

void im_blend_free(im_blend *b)
{
    free(b->source);
    free(b->before);
    *b = (im_blend){0};
}

void im_blend_at(const im_blend *b, int64_t p, size_t *source, int64_t *turn)
{
    int64_t slot = p % b->period;
    *source = b->source[slot];
    *turn = p / b->period * b->weight[*source] + b->before[slot];
}
