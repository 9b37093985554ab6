#include "data/chat.h"
#include "data/data.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct im_chat {
    im_context *ctx;
    const im_tok *tok; /* NULL: bytes */
    im_tok_coder *coder;
    im_chat_format format;
    int32_t begin, end_header, end_turn, begin_text, eod; /* -1: none */
    im_tok_ids scratch;
    im_str text; /* what is to be encoded at once */
};

const char *im_chat_format_name(im_chat_format f)
{
    static const char *const names[] = {"auto", "chatml", "llama3", "plain"};
    return names[f];
}

im_chat_format im_chat_format_of(const im_chat *c)
{
    return c->format;
}

int32_t im_chat_end(const im_chat *c)
{
    return c->format == IM_CHAT_PLAIN ? c->eod : c->end_turn;
}

/* ---- formats -------------------------------------------------------------------------------------------- */

typedef struct need {
    const char *token[4]; /* NULL: end */
} need;
static const need needs[] = {[IM_CHAT_CHATML] = {{"<|im_start|>", "<|im_end|>"}},
                             [IM_CHAT_LLAMA3] = {{"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
                             [IM_CHAT_PLAIN] = {{NULL}}};

static int32_t find(const im_tok *t, const char *token)
{
    return t ? im_tok_find(t, token) : -1;
}

/* The first token of the format that the tokenizer lacks; NULL: none. */
static const char *lacks(const im_tok *t, im_chat_format f)
{
    for (size_t i = 0; i < 4 && needs[f].token[i]; i++)
        if (find(t, needs[f].token[i]) < 0)
            return needs[f].token[i];
    return NULL;
}

static im_status choose(im_chat *c, im_chat_format wanted)
{
    c->format = wanted;
    if (wanted == IM_CHAT_AUTO)
        c->format = !lacks(c->tok, IM_CHAT_CHATML) ? IM_CHAT_CHATML : !lacks(c->tok, IM_CHAT_LLAMA3) ? IM_CHAT_LLAMA3 : IM_CHAT_PLAIN;
    const char *missing = lacks(c->tok, c->format);
    if (missing)
        return im_fail(c->ctx, IM_ERR_ARG, "chat format %s needs the token %s, which %s does not have; plain needs none", im_chat_format_name(wanted),
                       missing, c->tok ? im_tok_path(c->tok) : "a model of bytes");
    c->begin = c->end_header = c->end_turn = c->begin_text = -1;
    if (c->format == IM_CHAT_CHATML) {
        c->begin = find(c->tok, "<|im_start|>");
        c->end_turn = find(c->tok, "<|im_end|>");
    } else if (c->format == IM_CHAT_LLAMA3) {
        c->begin = find(c->tok, "<|start_header_id|>");
        c->end_header = find(c->tok, "<|end_header_id|>");
        c->end_turn = find(c->tok, "<|eot_id|>");
        c->begin_text = find(c->tok, "<|begin_of_text|>");
    }
    c->eod = c->tok ? im_tok_eod(c->tok) : IM_BYTE_EOD;
    return IM_OK;
}

/* <s> before a plain text, where the tokenizer's own template puts it. */
static im_status find_begin(im_chat *c)
{
    im_tok_coding how = {.template = true};
    im_tok_coder *with_template;
    int32_t bos = im_tok_bos(c->tok);
    if (c->format != IM_CHAT_PLAIN || bos < 0 || bos == c->eod)
        return IM_OK;
    IM_TRY(im_tok_coder_create(c->ctx, c->tok, &how, &with_template));
    im_status status = im_tok_encode(with_template, "", 0, &c->scratch);
    if (status == IM_OK && c->scratch.n && c->scratch.id[0] == bos)
        c->begin_text = bos;
    im_tok_coder_destroy(with_template);
    return status;
}

im_status im_chat_create(im_context *ctx, const im_tok *tok, im_chat_format format, im_chat **out)
{
    im_chat *c;
    im_status status;
    im_tok_coding how = {.special_as_text = true};
    IM_TRY(im_alloc(ctx, 1, sizeof *c, (void **)&c));
    c->ctx = ctx;
    c->tok = tok;
    IM_TRY_GOTO(choose(c, format), destroy);
    if (tok) {
        IM_TRY_GOTO(im_tok_coder_create(ctx, tok, &how, &c->coder), destroy);
        IM_TRY_GOTO(find_begin(c), destroy);
    }
    *out = c;
    return IM_OK;
destroy:
    im_chat_destroy(c);
    return status;
}

void im_chat_destroy(im_chat *c)
{
    if (!c)
        return;
    im_tok_coder_destroy(c->coder);
    im_tok_ids_free(&c->scratch);
    im_str_free(&c->text);
    free(c);
}

/* ---- ids with their marks ------------------------------------------------------------------------------------ */

void im_chat_ids_free(im_chat_ids *x)
{
    im_tok_ids_free(&x->ids);
    free(x->counted);
    *x = (im_chat_ids){0};
}

/* Marks for the ids from `from` on. */
static im_status mark(im_chat *c, im_chat_ids *x, size_t from, bool counted)
{
    if (x->ids.n > x->cap) {
        size_t cap = 2 * x->ids.n;
        unsigned char *more = realloc(x->counted, cap);
        if (!more)
            return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for a mask of %zu tokens", cap);
        x->counted = more;
        x->cap = cap;
    }
    memset(x->counted + from, counted, x->ids.n - from);
    return IM_OK;
}

static im_status put_id(im_chat *c, int32_t id, bool counted, im_chat_ids *x)
{
    size_t from = x->ids.n;
    if (id < 0)
        return IM_OK;
    if (x->ids.n == x->ids.cap) {
        size_t cap = x->ids.cap ? 2 * x->ids.cap : 256;
        int32_t *more = realloc(x->ids.id, cap * sizeof *more);
        if (!more)
            return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for %zu tokens", cap);
        x->ids.id = more;
        x->ids.cap = cap;
    }
    x->ids.id[x->ids.n++] = id;
    return mark(c, x, from, counted);
}

/* What c->text holds, which is empty then. */
static im_status put_text(im_chat *c, bool counted, im_chat_ids *x)
{
    size_t from = x->ids.n, n = c->text.len;
    if (c->text.failed)
        return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for a turn");
    c->text.len = 0;
    if (c->coder) {
        if (n)
            IM_TRY(im_tok_encode(c->coder, c->text.data, n, &x->ids));
        return mark(c, x, from, counted);
    }
    for (size_t i = 0; i < n; i++)
        IM_TRY(put_id(c, (unsigned char)c->text.data[i], counted, x));
    return IM_OK;
}

/* ---- turns ---------------------------------------------------------------------------------------------------- */

static bool is_assistant(const char *role)
{
    return strcmp(role, "assistant") == 0;
}

static void trim(const char **text, size_t *n)
{
    while (*n && isspace((unsigned char)**text)) {
        ++*text;
        --*n;
    }
    while (*n && isspace((unsigned char)(*text)[*n - 1]))
        --*n;
}

/* All before the text of a turn; what stays in c->text is encoded together with the text. */
static im_status put_header(im_chat *c, const char *role, im_chat_ids *x)
{
    if (c->format == IM_CHAT_PLAIN) {
        char first = (char)toupper((unsigned char)role[0]);
        im_str_append_n(&c->text, &first, role[0] != 0);
        im_str_printf(&c->text, "%s:", role[0] ? role + 1 : "");
        return IM_OK;
    }
    IM_TRY(put_id(c, c->begin, false, x));
    im_str_append(&c->text, role);
    if (c->format == IM_CHAT_CHATML) {
        im_str_append(&c->text, "\n");
        return IM_OK;
    }
    IM_TRY(put_text(c, false, x));
    IM_TRY(put_id(c, c->end_header, false, x));
    im_str_append(&c->text, "\n\n");
    return IM_OK;
}

static im_status put_turn(im_chat *c, const im_chat_turn *t, bool last, im_chat_ids *x)
{
    const char *text = t->text;
    size_t n = t->n;
    bool assistant = is_assistant(t->role), counted = assistant && t->counted;
    if (c->format == IM_CHAT_LLAMA3)
        trim(&text, &n);
    IM_TRY(put_header(c, t->role, x));
    if (assistant)
        IM_TRY(put_text(c, false, x));
    if (c->format == IM_CHAT_PLAIN) /* with the text, not the header: tokens of words have their space in front */
        im_str_append(&c->text, " ");
    im_str_append_n(&c->text, text, n);
    if (c->format == IM_CHAT_PLAIN) { /* the next turn's header goes on with it, but behind an assistant's */
        bool ends = assistant && last && c->eod >= 0;
        if (!ends)
            im_str_append(&c->text, "\n");
        if (assistant)
            IM_TRY(put_text(c, counted, x));
        return ends ? put_id(c, c->eod, counted, x) : IM_OK;
    }
    IM_TRY(put_text(c, counted, x));
    IM_TRY(put_id(c, c->end_turn, counted, x));
    if (c->format == IM_CHAT_CHATML)
        im_str_append(&c->text, "\n");
    return c->format == IM_CHAT_CHATML ? put_text(c, false, x) : IM_OK;
}

im_status im_chat_turns(im_chat *c, const im_chat_turn *turn, size_t n, bool open, im_chat_ids *out)
{
    c->text.len = 0;
    IM_TRY(put_id(c, c->begin_text, false, out));
    for (size_t i = 0; i < n; i++)
        IM_TRY(put_turn(c, &turn[i], i + 1 == n, out));
    if (open)
        IM_TRY(put_header(c, "assistant", out));
    return put_text(c, false, out);
}

im_status im_chat_completion(im_chat *c, const char *prompt, size_t nprompt, const char *completion, size_t ncompletion, im_chat_ids *out)
{
    c->text.len = 0;
    if (c->format == IM_CHAT_PLAIN || c->format == IM_CHAT_LLAMA3)
        IM_TRY(put_id(c, c->begin_text, false, out));
    im_str_append_n(&c->text, prompt, nprompt);
    IM_TRY(put_text(c, false, out));
    im_str_append_n(&c->text, completion, ncompletion);
    IM_TRY(put_text(c, true, out));
    return put_id(c, c->eod, true, out);
}
