/* meet.h (internal): where ops of several ranks meet. */
#ifndef IM_PLAN_MEET_H
#define IM_PLAN_MEET_H

#include "plan/program.h"

/* The k-th op of a group on a queue, or the k-th message of a channel. */
typedef struct im_meeting {
    int kind;   /* group * queues + queue, or channels after them */
    int anchor; /* the lowest rank taking part, of a channel the earlier stage */
    int ordinal;
    int members;
    uint32_t rank, op; /* who names it first */
} im_meeting;

typedef struct im_meetings {
    int32_t **of; /* [rank][op]: index of its meeting, -1: alone */
    int n;        /* ranks */
    im_meeting *meeting;
    uint32_t count, cap;
    uint32_t *slot; /* open addressing: number + 1, 0 empty */
    uint32_t nslot;
} im_meetings;

/* IM_ERR_CHECK: two ranks do different things where they should meet. ranks[r] is rank r's program. */
im_status im_meetings_find(im_context *ctx, const im_program *const *ranks, int n, im_meetings *out) IM_MUST_CHECK;
void im_meetings_free(im_meetings *m);

#endif
