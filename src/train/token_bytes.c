/* How many bytes of text each id of a model stands for: what bits per byte are counted with. */
#include "train/internal.h"

im_status im_train_token_bytes(im_context *ctx, const im_model *m, int32_t **out)
{
    const int64_t V = m->arch.V;
    int32_t *bytes;
    *out = NULL;
    if (V != IM_BYTE_VOCAB)
        return IM_OK;
    IM_TRY(im_alloc(ctx, (size_t)V, sizeof *bytes, (void **)&bytes));
    for (int32_t id = 0; id < V; id++)
        bytes[id] = id < IM_BYTE_EOD;
    *out = bytes;
    return IM_OK;
}
