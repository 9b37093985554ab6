/* The order in which a run reads a token file.
 *
 * Shuffled: a permutation of 0..n-1 that is computed, not stored, so that a run starts as fast on a terabyte as on a megabyte and
 * its position is one integer. A Feistel network over 2h bits is a bijection of 0..4^h-1 whatever its round function; h is the
 * least that covers n (but at least 4, so that the rounds have something to mix), and an image outside 0..n-1 is mapped again
 * until it is inside ("cycle walking"; on average fewer than 4 times when 4^h < 4n). The key is a hash of seed and epoch.
 */
#include "data/data.h"

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

int64_t im_sampler_index(const im_sampler *s, int64_t position)
{
    int64_t epoch = position / s->samples, i = position % s->samples;
    if (s->order == IM_ORDER_SEQUENTIAL)
        return i;
    uint64_t key = mix(mix(s->seed + 0x632be59bd9b4e019u) + (uint64_t)epoch * 0x9e3779b97f4a7c15u);
    return permute(key, s->samples, i);
}
