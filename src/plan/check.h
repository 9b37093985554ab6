/* check.h (internal): the parts of im_program_check. */
#ifndef IM_PLAN_CHECK_H
#define IM_PLAN_CHECK_H

#include "plan/values.h"

/* Every read finds the state it needs, in program order; the goal is reached at the end. */
im_status im_check_states(im_context *ctx, const im_program *p) IM_MUST_CHECK;

#endif
