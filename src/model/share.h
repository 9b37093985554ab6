/* share.h (internal to model): the boxes that a tensor-parallel rank holds of a parameter. */
#ifndef IM_MODEL_SHARE_H
#define IM_MODEL_SHARE_H

#include "model/layout.h"

/* n runs of `run` elements of the logical tensor. */
typedef struct im_box {
    size_t n, run, global0, global_stride;
} im_box;

/* The boxes of a parameter by what it does; side by side in the local matrix when they are bands, one after the other when they are rows. */
int im_share_boxes(const im_arch *a, const im_share *s, im_slot slot, bool fused_qkv, int64_t count, im_box box[3]);
bool im_share_replicated(im_slot slot); /* every tensor-parallel rank holds all of it */

#endif
