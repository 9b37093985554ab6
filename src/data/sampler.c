/* The order in which a run reads a token file.
 *
 * Shuffled: a permutation of 0..n-1 that is computed, not stored, so that a run starts as fast on a terabyte as on a megabyte and
 * its position is one integer. A Feistel network over 2h bits is a bijection of 0..4^h-1 whatever its round function; h is the
 * least that covers n (but at least 4, so that the rounds have something to mix), and an image outside 0..n-1 is mapped again
 * until it is inside ("cycle walking"; on average fewer than 4 times when 4^h < 4n). The key is a hash of seed and epoch.
 */
#include "data/data.h"
#include <string.h>

enum { ROUNDS = 8, LEAST_HALF = 4 };

/* SplitMix64's finisher: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t feistel(uint64_t key, unsigned half, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t f = mix(key + (round + 1) * 0x9e3779b97f4a7c15u + mix(right)) & mask;
        uint64_t next = left ^ f;
        left = right;
        right = next;
    }
    return left << half | right;
}

static int64_t permute(uint64_t key, int64_t n, int64_t i)
{
    unsigned half = LEAST_HALF;
    while (half < 32 && (uint64_t)(n - 1) >> 2 * half)
        half++;
    uint64_t x = (uint64_t)i;
    do
        x = feistel(key, half, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

im_status im_sampler_init(im_context *ctx, im_sampler *s, const im_tokens *t, int64_t seq_len, im_order order, uint64_t seed)
{
    int64_t count = im_tokens_count(t);
    if (seq_len < 1)
        return im_fail(ctx, IM_ERR_ARG, "seq-len %lld: at least 1", (long long)seq_len);
    if (count < 2 || (count - 1) / seq_len < 1)
        return im_fail(ctx, IM_ERR_ARG,
                       "%s: %lld tokens are less than one sample of seq-len %lld, which needs %lld; the longest seq-len for this file is %lld",
                       im_tokens_prefix(t), (long long)count, (long long)seq_len, (long long)seq_len + 1, count > 1 ? (long long)count - 1 : 0LL);
    *s = (im_sampler){.tokens = t, .seq_len = seq_len, .samples = (count - 1) / seq_len, .order = order, .seed = seed};
    return IM_OK;
}

int64_t im_sampler_index(const im_sampler *s, int64_t position)
{
    int64_t epoch = position / s->samples, i = position % s->samples;
    if (s->order == IM_ORDER_SEQUENTIAL)
        return i;
    uint64_t key = mix(mix(s->seed + 0x632be59bd9b4e019u) + (uint64_t)epoch * 0x9e3779b97f4a7c15u);
    return permute(key, s->samples, i);
}

static im_status fail_vocab(im_context *ctx, const im_sampler *s, int64_t at, int32_t id, int64_t vocab)
{
    return im_fail(ctx, IM_ERR_FORMAT,
                   "%s.bin: token %lld is the id %d, but the model's vocabulary has %lld ids (0 to %lld): data and model are of different tokenizers",
                   im_tokens_prefix(s->tokens), (long long)at, id, (long long)vocab, (long long)vocab - 1);
}

im_status im_sampler_read(im_context *ctx, const im_sampler *s, int64_t position, int64_t vocab, int32_t *ids, int32_t *targets)
{
    int64_t T = s->seq_len, first = im_sampler_index(s, position) * T;
    IM_TRY(im_tokens_read(ctx, s->tokens, first, T, ids));
    memcpy(targets, ids + 1, sizeof *ids * (size_t)(T - 1));
    IM_TRY(im_tokens_read(ctx, s->tokens, first + T, 1, targets + T - 1));
    if (ids[0] >= vocab)
        return fail_vocab(ctx, s, first, ids[0], vocab);
    for (int64_t t = 0; t < T; t++)
        if (targets[t] >= vocab)
            return fail_vocab(ctx, s, first + t + 1, targets[t], vocab);
    return IM_OK;
}
