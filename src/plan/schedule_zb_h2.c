/* Zero bubble, H2 (Qi et al., 2023): as H1 with everything put off twice as far. Stage s does 2(p-1-s) forwards more before its first backward, so that it never
 * waits for one, and puts the weights' part off by 2s micro-batches, so that no stage waits in its last ones. Each stage works without a gap from its first
 * forward to its last part; it begins s forwards after the first stage and ends as much later.
 *
 * What the method gains over H1 is there only where a stage's next step need not wait for the last stage's end. Here the norm of the gradient, which clips it,
 * waits for all, so that a step takes as long as with H1 and keeps up to 2p-1 activations: H2 is of use to look at, and for steps that do not wait.
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
    int ahead = least(2 * (p - 1 - stage), m), weights = 0;
    for (int mb = 0; mb < ahead; mb++)
        out[n++] = (im_task){IM_PART_FORWARD, 0, mb};
    for (int mb = 0; mb < m; mb++) {
        bool forward = mb + ahead < m;
        if (forward)
            out[n++] = (im_task){IM_PART_FORWARD, 0, mb + ahead};
        out[n++] = (im_task){IM_PART_INPUT, 0, mb};
        if (mb >= 2 * stage)
            out[n++] = (im_task){IM_PART_WEIGHT, 0, weights++};
    }
    while (weights < m)
        out[n++] = (im_task){IM_PART_WEIGHT, 0, weights++};
    return n;
}

static int alive(int p, int m, int v, int stage)
{
    (void)v, (void)stage;
    return least(2 * p - 1, m);
}

static double bubble(int p, int m, int v)
{
    (void)v;
    return m < 2 * p - 1 ? -1 : (double)(p - 1) / (3 * m + p - 1);
}

const im_schedule_kind im_schedule_zb_h2 = {.name = "zb-h2", .splits = true, .tasks = tasks, .alive = alive, .bubble = bubble};
