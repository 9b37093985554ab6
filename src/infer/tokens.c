/* Text through the tokenizer in the model's directory. */
#include "data/chat.h"
#include "infer/infer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

im_status im_infer_open_tokenizer(im_context *ctx, const im_infer *g, im_tok **out)
{
    const im_model *m = im_infer_model(g);
    im_tok *t;
    *out = NULL;
    if (im_infer_is_bytes(g) || !m->dir || !im_tok_in_dir(m->dir))
        return IM_OK;
    IM_TRY(im_tok_open(ctx, m->dir, &t));
    if (im_tok_vocab(t) > m->arch.V) {
        im_status status = im_fail(ctx, IM_ERR_FORMAT, "%s has ids up to %" PRId64 ", the model's vocabulary is %" PRId64 " (%s: vocab_size)",
                                   im_tok_path(t), im_tok_vocab(t) - 1, m->arch.V, m->source);
        im_tok_close(t);
        return status;
    }
    *out = t;
    return IM_OK;
}

/* What stands in front of a text that is empty. */
static im_status begin_text(im_context *ctx, const im_tok *t, im_tok_ids *out)
{
    int32_t id = im_tok_bos(t) >= 0 ? im_tok_bos(t) : im_tok_eod(t);
    void *memory;
    if (out->n)
        return IM_OK;
    if (id < 0)
        return im_fail(ctx, IM_ERR_ARG, "--prompt: an empty text, and %s has no token that begins or ends one", im_tok_path(t));
    IM_TRY(im_alloc(ctx, 1, sizeof(int32_t), &memory));
    im_tok_ids_free(out);
    *out = (im_tok_ids){memory, 1, 1};
    out->id[0] = id;
    return IM_OK;
}

im_status im_infer_tokens_of(im_context *ctx, const im_tok *t, const char *text, size_t n, im_tok_ids *out)
{
    im_tok_coding how = {.template = true};
    im_tok_coder *coder;
    IM_TRY(im_tok_coder_create(ctx, t, &how, &coder));
    im_status status = im_tok_encode(coder, text, n, out);
    im_tok_coder_destroy(coder);
    return status == IM_OK ? begin_text(ctx, t, out) : status;
}

/* ---- conversations ---------------------------------------------------------------------------------- */

static void tell(im_context *ctx, const im_tok *t, im_chat_format wanted, im_chat_format f)
{
    static const char *const name[] = {[IM_CHAT_CHATML] = "ChatML", [IM_CHAT_LLAMA3] = "Llama 3", [IM_CHAT_PLAIN] = "plain (User:, Assistant:)"};
    if (wanted != IM_CHAT_AUTO)
        im_log(ctx, IM_LOG_INFO, "generate", "conversation in the form %s, by --chat-format", name[f]);
    else if (t)
        im_log(ctx, IM_LOG_INFO, "generate", "conversation in the form %s, by the special tokens of %s", name[f], im_tok_path(t));
    else
        im_log(ctx, IM_LOG_INFO, "generate", "conversation in the form %s: a model of bytes", name[f]);
}

im_status im_infer_chat_of(im_context *ctx, const im_tok *t, int format, const char *text, size_t n, im_tok_ids *out, im_infer_turn_end *end)
{
    const im_chat_turn user = {.role = "user", .text = text, .n = n};
    im_chat_ids ids = {0};
    im_chat *c;
    IM_TRY(im_chat_create(ctx, t, (im_chat_format)format, &c));
    im_status status = im_chat_turns(c, &user, 1, true, &ids);
    if (status == IM_OK) {
        tell(ctx, t, (im_chat_format)format, im_chat_format_of(c));
        *end = (im_infer_turn_end){.id = im_chat_end(c), .text = im_chat_format_of(c) == IM_CHAT_PLAIN ? "\nUser:" : NULL};
        *out = ids.ids;
        ids.ids = (im_tok_ids){0};
    }
    im_chat_ids_free(&ids);
    im_chat_destroy(c);
    return status;
}
