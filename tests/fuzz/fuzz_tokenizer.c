/* Fuzz target: tokenizer.json. One that is read encodes and decodes a few texts; its ids are below its vocabulary, and a lossless one gives any
 * bytes back. */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static const char text[] = "ab  c\xC3\xA9 <s>\n12 \xFF\xE2\x96\x81x \xF0\x9F\x98\x80'll";

static void try_text(im_context *ctx, const im_tok *t)
{
    im_tok_coder *c;
    im_tok_ids ids = {0};
    im_str back = {0};
    im_tok_coding how = {.template = false};
    if (im_tok_coder_create(ctx, t, &how, &c) != IM_OK)
        return;
    if (im_tok_encode(c, text, sizeof text - 1, &ids) == IM_OK) {
        for (size_t i = 0; i < ids.n; i++)
            if (ids.id[i] < 0 || ids.id[i] >= im_tok_vocab(t))
                abort();
        if (im_tok_decode(ctx, t, ids.id, ids.n, false, &back) != IM_OK)
            abort();
        if (im_tok_lossless(t) && (back.len != sizeof text - 1 || memcmp(back.data, text, back.len)))
            abort();
    }
    im_str_free(&back);
    im_tok_ids_free(&ids);
    im_tok_coder_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_tok *t = NULL;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_tok_parse(ctx, "x.json", (const char *)data, size, &t) == IM_OK) {
        im_tok_about about;
        im_tok_tell(t, &about);
        for (int32_t id = 0; id < im_tok_vocab(t) && id < 1000; id++)
            im_tok_token_bytes(t, id);
        try_text(ctx, t);
    } else if (t || !*im_error_text(ctx)) {
        abort(); /* an error leaves no output, and says what it was */
    }
    im_tok_close(t);
    im_context_destroy(ctx);
    return 0;
}
