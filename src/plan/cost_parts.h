/* cost_parts.h (internal): between the files of cost. */
#ifndef IM_PLAN_COST_PARTS_H
#define IM_PLAN_COST_PARTS_H

#include "plan/cost.h"

/* out[IM_GROUP_COUNT]; replicas: ranks that hold the same kv head. */
im_status im_cost_groups(im_context *ctx, const im_cluster *c, const im_mesh *m, int replicas, const int *device, im_cost_group *out) IM_MUST_CHECK;
/* out[pp]: from each stage to the next, the last one to the first. */
im_status im_cost_hops(im_context *ctx, const im_cluster *c, const im_mesh *m, const int *device, im_cost_group *out) IM_MUST_CHECK;

/* As NCCL's own model has it (cost_nccl.c). */
im_cost_coll im_cost_nccl(const im_cluster *c, const im_cost_group *g, im_collective what, double bytes);

#endif
