/* Zero bubble, H1 (Qi et al., 2023): the backward in two parts. The gradient of the input goes to the stage before at once; that of the weights waits for a
 * gap. Stage s puts it off by s micro-batches, so that no stage keeps more than p activations, 1F1B's first stage's number, and at the end, when
 * gradients come one part apart, the weights' parts fill the gaps between them. A third of 1F1B's idle time stays.
 */
#include "plan/schedule.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static size_t tasks(int p, int m, int v, int stage, im_task *out)
{
    (void)v;
    size_t n = 0;
    int ahead = least(p - 1 - stage, m), weights = 0;
    for (int mb = 0; mb < ahead; mb++)
        out[n++] = (im_task){IM_PART_FORWARD, 0, mb};
    for (int mb = 0; mb < m; mb++) {
        bool forward = mb + ahead < m;
        if (forward)
            out[n++] = (im_task){IM_PART_FORWARD, 0, mb + ahead};
        out[n++] = (im_task){IM_PART_INPUT, 0, mb};
        if (!forward || mb >= stage)
            out[n++] = (im_task){IM_PART_WEIGHT, 0, weights++};
    }
    while (weights < m)
        out[n++] = (im_task){IM_PART_WEIGHT, 0, weights++};
    return n;
}

static int alive(int p, int m, int v, int stage)
{
    (void)v, (void)stage;
    return least(p, m);
}

static double bubble(int p, int m, int v)
{
    (void)v;
    return m < p ? -1 : (double)(p - 1) / (3 * m + p - 1);
}

const im_schedule_kind im_schedule_zb_h1 = {.name = "zb-h1", .splits = true, .tasks = tasks, .alive = alive, .bubble = bubble};
