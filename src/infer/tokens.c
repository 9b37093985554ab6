/* Text through the tokenizer in the model's directory. */
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

im_infer_chat im_infer_chat_of(const im_tok *t, int32_t *end)
{
    int32_t turn = im_tok_find(t, "<|im_end|>"), eot = im_tok_find(t, "<|eot_id|>");
    *end = -1;
    if (turn >= 0 && im_tok_find(t, "<|im_start|>") >= 0) {
        *end = turn;
        return IM_INFER_CHAT_ML;
    }
    if (eot >= 0 && im_tok_find(t, "<|start_header_id|>") >= 0 && im_tok_find(t, "<|end_header_id|>") >= 0) {
        *end = eot;
        return IM_INFER_CHAT_LLAMA3;
    }
    return IM_INFER_CHAT_PLAIN;
}

/* What a user says, up to where the answer begins. */
static void write_chat(im_infer_chat form, const char *text, size_t n, im_str *out)
{
    static const char *const front[] = {"User: ", "<|im_start|>user\n", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"};
    static const char *const behind[] = {"\nAssistant:", "<|im_end|>\n<|im_start|>assistant\n",
                                         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"};
    im_str_append(out, front[form]);
    im_str_append_n(out, text, n);
    im_str_append(out, behind[form]);
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

im_status im_infer_tokens_of(im_context *ctx, const im_tok *t, const char *text, size_t n, bool chat, im_tok_ids *out)
{
    static const char *const name[] = {"plain (User:, Assistant:)", "ChatML", "Llama 3"};
    int32_t end;
    im_str s = {0};
    im_infer_chat form = im_infer_chat_of(t, &end);
    im_tok_coding how = {.template = !chat || form == IM_INFER_CHAT_PLAIN};
    im_tok_coder *coder = NULL;
    im_status status = IM_OK;
    if (chat) {
        write_chat(form, text, n, &s);
        im_log(ctx, IM_LOG_INFO, "generate", "conversation in the form %s, by the special tokens of %s", name[form], im_tok_path(t));
        text = im_str_text(&s);
        n = s.len;
    }
    IM_TRY_GOTO(im_tok_coder_create(ctx, t, &how, &coder), free_all);
    IM_TRY_GOTO(im_tok_encode(coder, text, n, out), free_all);
    status = begin_text(ctx, t, out);
free_all:
    im_tok_coder_destroy(coder);
    im_str_free(&s);
    return status;
}
