/* share.h (internal to model): the boxes that a tensor-parallel rank holds of a parameter. */
#ifndef IM_MODEL_SHARE_H
#define IM_MODEL_SHARE_H

#include "model/layout.h"

/* n runs of `run` elements of the logical tensor, and where they lie in what the rank holds of it. */
typedef struct im_box {
    size_t n, run, global0, global_stride, local0, local_stride;
    bool kv; /* of keys or values: with more ranks than kv heads, several ranks hold it */
} im_box;

/* The boxes of a parameter by what it does; side by side in the local matrix when they are bands, one after the other when they are rows.
 * `fused`: qkv in one, or gate and up in one. Locally all q lie before all k before all v, however the tensor has them. */
int im_share_boxes(const im_arch *a, const im_share *s, im_slot slot, bool fused, int64_t count, im_box box[IM_LAYOUT_MAX_BOXES]);
bool im_share_replicated(const im_arch *a, im_slot slot); /* every tensor-parallel rank holds all of it */

#endif
