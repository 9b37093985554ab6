/* GPipe (Huang et al., 2019): all forwards, then all backwards. */
#include "plan/schedule.h"

static size_t tasks(int p, int m, int v, int stage, im_task *out)
{
    (void)p, (void)v, (void)stage;
    size_t n = 0;
    for (int mb = 0; mb < m; mb++)
        out[n++] = (im_task){IM_PART_FORWARD, 0, mb};
    for (int mb = 0; mb < m; mb++)
        out[n++] = (im_task){IM_PART_BACKWARD, 0, mb};
    return n;
}

static int alive(int p, int m, int v, int stage)
{
    (void)p, (void)v, (void)stage;
    return m;
}

static double bubble(int p, int m, int v)
{
    (void)v;
    return (double)(p - 1) / (m + p - 1);
}

const im_schedule_kind im_schedule_gpipe = {.name = "gpipe", .tasks = tasks, .alive = alive, .bubble = bubble};
