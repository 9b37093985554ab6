/* How many bytes of text each id of a model stands for: what bits per byte are counted with. */
#include "train/internal.h"

#include "data/tokenizer.h"

/* As the tokenizer in the model's directory says; ids that it does not have stand for nothing. */
static im_status from_tokenizer(im_context *ctx, const im_model *m, const char *dir, int32_t **out)
{
    im_tok *tok;
    void *bytes;
    IM_TRY(im_tok_open(ctx, dir, &tok));
    im_status status = im_alloc(ctx, (size_t)m->arch.V, sizeof(int32_t), &bytes);
    for (int32_t id = 0; status == IM_OK && id < m->arch.V; id++) {
        int64_t n = im_tok_token_bytes(tok, id);
        ((int32_t *)bytes)[id] = n > 0 ? (int32_t)n : 0;
    }
    if (status == IM_OK)
        *out = bytes;
    im_tok_close(tok);
    return status;
}

im_status im_train_token_bytes(im_context *ctx, const im_model *m, const char *dir, int32_t **out)
{
    const int64_t V = m->arch.V;
    int32_t *bytes;
    *out = NULL;
    if (V != IM_BYTE_VOCAB)
        return dir && im_tok_in_dir(dir) ? from_tokenizer(ctx, m, dir, out) : IM_OK;
    IM_TRY(im_alloc(ctx, (size_t)V, sizeof *bytes, (void **)&bytes));
    for (int32_t id = 0; id < V; id++)
        bytes[id] = id < IM_BYTE_EOD;
    *out = bytes;
    return IM_OK;
}
