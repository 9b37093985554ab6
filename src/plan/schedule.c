/* The schedules there are. */
#include "plan/schedule.h"

static const im_schedule_kind *const schedules[IM_SCHEDULE_COUNT] = {
    [IM_SCHEDULE_GPIPE] = &im_schedule_gpipe,
    [IM_SCHEDULE_1F1B] = &im_schedule_1f1b,
    [IM_SCHEDULE_INTERLEAVED] = &im_schedule_interleaved,
    [IM_SCHEDULE_ZB_H1] = &im_schedule_zb_h1,
    [IM_SCHEDULE_ZB_H2] = &im_schedule_zb_h2,
};

const im_schedule_kind *im_schedule_of(im_schedule s)
{
    return s >= 0 && s < IM_SCHEDULE_COUNT ? schedules[s] : NULL;
}
