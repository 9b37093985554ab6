/* schedule: in which order a pipeline stage does the forwards and backwards of its micro-batches.
 *
 * A schedule is one pure function in a file of its own, and a row of the table in schedule.c; docs/add-a-schedule.md shows one being added. What surrounds
 * the parts (messages, gathers, reductions, the update) is the same for all and made in steps.c; im_program_check proves the result.
 *
 * Words: p stages, m micro-batches a step, v chunks of blocks a stage (virtual stage = chunk * p + stage).
 */
#ifndef IM_PLAN_SCHEDULE_H
#define IM_PLAN_SCHEDULE_H

#include "base/base.h"

typedef enum im_schedule { IM_SCHEDULE_GPIPE, IM_SCHEDULE_1F1B, IM_SCHEDULE_INTERLEAVED, IM_SCHEDULE_ZB_H1, IM_SCHEDULE_ZB_H2, IM_SCHEDULE_COUNT } im_schedule;

typedef enum im_part {
    IM_PART_FORWARD,
    IM_PART_BACKWARD, /* whole */
    IM_PART_INPUT,    /* gradient of the input alone; ... */
    IM_PART_WEIGHT    /* ... that of the weights, later */
} im_part_kind;

typedef struct im_task {
    uint8_t part; /* im_part_kind */
    uint8_t chunk;
    int32_t mb;
} im_task;

enum { IM_MAX_CHUNKS = 16 };

typedef struct im_schedule_kind {
    const char *name;
    bool chunks; /* takes v > 1 */
    bool splits; /* the backward comes in two parts */
    /* The tasks of a stage in their order; `out` holds 3*m*v, the result is how many. */
    size_t (*tasks)(int p, int m, int v, int stage, im_task *out);
    /* Forwards that a stage has done and not yet finished the backward of, at most: what its activations need (chunks x micro-batches). */
    int (*alive)(int p, int m, int v, int stage);
    /* Idle share of a step whose stages cost the same, backward twice the forward (each part as much as the forward), messages free; < 0: no closed
     * formula for these sizes. */
    double (*bubble)(int p, int m, int v);
} im_schedule_kind;

extern const im_schedule_kind im_schedule_gpipe, im_schedule_1f1b, im_schedule_interleaved, im_schedule_zb_h1, im_schedule_zb_h2;

/* NULL: no such schedule. */
const im_schedule_kind *im_schedule_of(im_schedule s);

#endif
