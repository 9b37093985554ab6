#include "data/encoder.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_encoder {
    im_context *ctx, *own; /* own: of errors that belong to a batch */
    const im_corpus_config *cfg;
    im_tok_coder *coder; /* NULL: bytes */
    im_chat *chat;       /* NULL: texts */
    im_str rest;         /* of a long document: what the coder wants to see again */
    int64_t number;      /* ids: the digits so far as a number, -1: none */
};

im_status im_encoder_create(im_context *ctx, const im_corpus_config *cfg, im_encoder **out)
{
    im_encoder *e;
    im_status status;
    IM_TRY(im_alloc(ctx, 1, sizeof *e, (void **)&e));
    e->ctx = ctx;
    e->cfg = cfg;
    e->number = -1;
    IM_TRY_GOTO(im_context_create(&e->own), destroy);
    if (cfg->tok)
        IM_TRY_GOTO(im_tok_coder_create(ctx, cfg->tok, &cfg->coding, &e->coder), destroy);
    if (cfg->chat)
        IM_TRY_GOTO(im_chat_create(ctx, cfg->tok, cfg->chat_format, &e->chat), destroy);
    *out = e;
    return IM_OK;
destroy:
    im_encoder_destroy(e);
    return status;
}

void im_encoder_destroy(im_encoder *e)
{
    if (!e)
        return;
    im_tok_coder_destroy(e->coder);
    im_chat_destroy(e->chat);
    im_str_free(&e->rest);
    im_context_destroy(e->own);
    free(e);
}

static im_status reserve(im_context *ctx, im_tok_ids *out, size_t n)
{
    if (out->n + n <= out->cap)
        return IM_OK;
    size_t cap = 2 * out->cap > out->n + n ? 2 * out->cap : out->n + n + 4096;
    int32_t *more = realloc(out->id, cap * sizeof *more);
    if (!more)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu tokens", cap);
    out->id = more;
    out->cap = cap;
    return IM_OK;
}

static im_status push(im_context *ctx, im_tok_ids *out, int32_t id)
{
    IM_TRY(reserve(ctx, out, 1));
    out->id[out->n++] = id;
    return IM_OK;
}

static im_status push_bytes(im_context *ctx, im_tok_ids *out, const char *bytes, size_t n)
{
    IM_TRY(reserve(ctx, out, n));
    for (size_t i = 0; i < n; i++)
        out->id[out->n + i] = (unsigned char)bytes[i];
    out->n += n;
    return IM_OK;
}

/* ---- ids in decimal --------------------------------------------------------------------------------------- */

static im_status end_number(im_context *ctx, im_encoder *e, im_tok_ids *out)
{
    int32_t id = (int32_t)e->number;
    if (e->number < 0)
        return IM_OK;
    e->number = -1;
    return push(ctx, out, id);
}

/* The file and line are told by who knows them. */
static im_status decimal_ids(im_context *ctx, im_encoder *e, const unsigned char *p, size_t n, bool last, im_tok_ids *out)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] >= '0' && p[i] <= '9') {
            e->number = (e->number < 0 ? 0 : e->number) * 10 + (p[i] - '0');
            if (e->number > INT32_MAX)
                return im_fail(ctx, IM_ERR_FORMAT, "an id larger than %d", INT32_MAX);
            continue;
        }
        IM_TRY(end_number(ctx, e, out));
        if (!strchr(" \t\r\v\f", p[i]) || !p[i])
            return im_fail(ctx, IM_ERR_FORMAT, "byte 0x%02x; ids are decimal numbers with spaces between them, a document a line", p[i]);
    }
    return last ? end_number(ctx, e, out) : IM_OK;
}

/* ---- whole documents -------------------------------------------------------------------------------------- */

static bool is_blank(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", p[i]) || !p[i])
            return false;
    return true;
}

/* Errors go into e->own. */
static im_status json_line(im_encoder *e, const im_batch *b, im_record *r, im_chat_ids *out)
{
    const char *line = (const char *)b->raw + r->at, *text;
    im_json *doc;
    size_t n;
    if (r->too_long)
        return im_fail(e->own, IM_ERR_FORMAT, "%s: line %lld: longer than 256 MiB", b->name, (long long)r->line);
    if (is_blank(b->raw + r->at, r->n))
        return IM_OK;
    IM_TRY(im_json_parse_at(e->own, b->name, r->line, line, r->n, &doc));
    im_status status;
    if (e->chat) {
        status = im_jsonl_chat(e->own, doc, r->line, e->chat, out);
        if (status != IM_OK && im_error_code(e->ctx) != IM_OK) /* the encoding failed, not the line */
            status = im_fail(e->own, status, "%s: line %lld: %s", b->name, (long long)r->line, im_error_text(e->ctx));
    } else {
        const char *field = e->cfg->field ? e->cfg->field : "text";
        status = im_jsonl_text(e->own, doc, r->line, field, &text, &n);
        if (status == IM_OK) {
            r->text_bytes = (int64_t)n;
            status = e->coder ? im_tok_encode(e->coder, text, n, &out->ids) : push_bytes(e->own, &out->ids, text, n);
        }
    }
    im_json_free(doc);
    return status;
}

static im_status one(im_encoder *e, const im_batch *b, im_record *r, im_chat_ids *out)
{
    const unsigned char *p = b->raw + r->at;
    if (b->format == IM_CORPUS_JSONL)
        return json_line(e, b, r, out);
    r->text_bytes = (int64_t)r->n;
    if (b->format == IM_CORPUS_TEXT)
        return im_tok_encode(e->coder, p, r->n, &out->ids);
    r->text_bytes = -1;
    im_status status = decimal_ids(e->ctx, e, p, r->n, true, &out->ids);
    if (status != IM_OK)
        status = im_fail(e->own, status, "%s: line %lld: %s", b->name, (long long)r->line, im_error_text(e->ctx));
    return status;
}

/* What an error of this record means: a line that is left out, or the end. */
static bool leave_out(im_encoder *e, im_batch *b, size_t i, im_status status)
{
    const char *text = im_error_code(e->own) != IM_OK ? im_error_text(e->own) : im_error_text(e->ctx);
    bool skip = status == IM_ERR_FORMAT && b->format == IM_CORPUS_JSONL && e->cfg->skip_bad;
    if (skip) {
        if (!b->bad++)
            snprintf(b->first_bad, sizeof b->first_bad, "%s", text);
        b->record[i].bad = true;
    } else if (b->status == IM_OK || i < b->failed) {
        b->status = status;
        b->failed = i;
        snprintf(b->error, sizeof b->error, "%s", text);
    }
    im_error_clear(e->own);
    im_error_clear(e->ctx);
    if (e->coder)
        im_tok_coder_reset(e->coder);
    e->number = -1;
    return skip;
}

void im_encoder_batch(im_encoder *e, im_batch *b)
{
    b->as_bytes = b->format == IM_CORPUS_TEXT && !e->coder;
    for (size_t i = 0; i < b->nrecord && !b->as_bytes; i++) {
        im_record *r = &b->record[i];
        size_t before = b->ids.ids.n;
        if (!r->first || !r->last)
            continue; /* the writer's */
        im_status status = one(e, b, r, &b->ids);
        if (status != IM_OK) {
            b->ids.ids.n = before;
            if (!leave_out(e, b, i, status))
                return;
        }
        r->nids = b->ids.ids.n - before;
    }
}

/* ---- long documents ----------------------------------------------------------------------------------------- */

im_status im_encoder_part(im_encoder *e, const unsigned char *bytes, size_t n, bool last, im_tok_ids *out)
{
    size_t used;
    if (!e->coder)
        return decimal_ids(e->ctx, e, bytes, n, last, out);
    im_str_append_n(&e->rest, (const char *)bytes, n);
    if (e->rest.failed)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for a part of a long document");
    IM_TRY(im_tok_encode_part(e->coder, e->rest.data, e->rest.len, last, out, &used));
    memmove(e->rest.data, e->rest.data + used, e->rest.len - used);
    e->rest.len -= used;
    return IM_OK;
}
