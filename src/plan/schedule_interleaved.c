/* Interleaved 1F1B (Narayanan et al., 2021): a stage has v chunks of blocks, and micro-batches go round the stages v times. The idle time is 1F1B's over v,
 * for more messages and more activations.
 *
 * Micro-batches go in groups of p: chunk 0 of the group, chunk 1 of the group, ... so that the next chunk's input is there when a stage comes to it. When p
 * does not divide m the last group is the larger one (p to 2p - 1): a smaller one would leave later stages waiting for forwards that stand behind
 * backwards which wait for them.
 */
#include "plan/schedule.h"

static int group_size(int p, int m, int first)
{
    int left = m - first;
    return left >= 2 * p ? p : left;
}

/* Chunk and micro-batch of the i-th forward or backward of any stage. */
static im_task nth(int p, int m, int v, bool backward, int i)
{
    int first = 0;
    for (int n; i >= (n = group_size(p, m, first)) * v; first += n)
        i -= n * v;
    int n = group_size(p, m, first), chunk = i / n;
    return (im_task){backward ? IM_PART_BACKWARD : IM_PART_FORWARD, (uint8_t)(backward ? v - 1 - chunk : chunk), first + i % n};
}

/* Forwards before the first backward. */
static int warmup(int p, int m, int v, int stage)
{
    int largest = m < p ? m : p + m % p;
    int n = v > 1 ? 2 * (p - 1 - stage) + (v - 1) * largest : p - 1 - stage;
    return n < m * v ? n : m * v;
}

static size_t tasks(int p, int m, int v, int stage, im_task *out)
{
    size_t n = 0;
    int total = m * v, ahead = warmup(p, m, v, stage);
    for (int i = 0; i < ahead; i++)
        out[n++] = nth(p, m, v, false, i);
    for (int i = 0; i < total; i++) {
        if (i + ahead < total)
            out[n++] = nth(p, m, v, false, i + ahead);
        out[n++] = nth(p, m, v, true, i);
    }
    return n;
}

static int alive(int p, int m, int v, int stage)
{
    int ahead = warmup(p, m, v, stage);
    return ahead < m * v ? ahead + 1 : m * v;
}

static double bubble(int p, int m, int v)
{
    return m % p ? -1 : (double)(p - 1) / (m * v + p - 1);
}

const im_schedule_kind im_schedule_interleaved = {.name = "interleaved", .chunks = true, .tasks = tasks, .alive = alive, .bubble = bubble};
