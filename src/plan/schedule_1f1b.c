/* One forward, one backward (Narayanan et al., 2021): a stage starts p - 1 - stage micro-batches ahead, then alternates. As much idle time as GPipe, and
 * p activations at most instead of m. */
#include "plan/schedule.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static size_t tasks(int p, int m, int v, int stage, im_task *out)
{
    (void)v;
    size_t n = 0;
    int ahead = least(p - 1 - stage, m);
    for (int mb = 0; mb < ahead; mb++)
        out[n++] = (im_task){IM_PART_FORWARD, 0, mb};
    for (int mb = 0; mb < m; mb++) {
        if (mb + ahead < m)
            out[n++] = (im_task){IM_PART_FORWARD, 0, mb + ahead};
        out[n++] = (im_task){IM_PART_BACKWARD, 0, mb};
    }
    return n;
}

static int alive(int p, int m, int v, int stage)
{
    (void)v;
    return least(p - stage, m);
}

static double bubble(int p, int m, int v)
{
    (void)v;
    return (double)(p - 1) / (m + p - 1);
}

const im_schedule_kind im_schedule_1f1b = {.name = "1f1b", .tasks = tasks, .alive = alive, .bubble = bubble};
