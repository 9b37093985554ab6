/* Ids to bytes.
 *
 * The decoders of the file, one behind the other, each with what it has to remember between two tokens. Every stage takes pieces: the start of
 * a token or more of it (once a stage has made all tokens one).
 */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct decoding {
    im_context *ctx;
    const im_tok *t;
    im_tok_stream *s;
    im_str *out;
} decoding;

/* s[0, n) enters stage i; fresh: it begins a token. */
static void enter(decoding *d, size_t i, const char *s, size_t n, bool fresh);

static void end_stage(decoding *d, size_t i);

/* Characters back to bytes; a token with a character that stands for none is its own bytes. */
static void to_bytes(decoding *d, size_t i, const char *s, size_t n)
{
    size_t k;
    for (size_t at = 0; at < n; at += k)
        if (im_tok_char_byte(im_tok_char(s + at, &k)) < 0) {
            enter(d, i + 1, s, n, true);
            return;
        }
    char bytes[64];
    size_t held = 0;
    bool fresh = true;
    for (size_t at = 0; at < n || fresh; at += k) {
        k = 0;
        if (at < n)
            bytes[held++] = (char)im_tok_char_byte(im_tok_char(s + at, &k));
        if (held == sizeof bytes || at + k >= n) {
            enter(d, i + 1, bytes, held, fresh);
            held = 0;
            fresh = false;
        }
    }
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0x0A>" names; -1: it names none. */
static int byte_of(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0)
        return -1;
    return hex(s[3]) << 4 | hex(s[4]);
}

/* A run of bytes is a token when it is UTF-8, else a U+FFFD for each. */
static void end_bytes(decoding *d, size_t i)
{
    im_str *held = &d->s->stage[i].held;
    im_tok_made none = {0};
    im_tok_text text;
    if (!held->len)
        return;
    bool valid = im_tok_scrub(d->ctx, &none, held->data, held->len, false, &text) == IM_OK && text.s == held->data;
    im_tok_made_free(&none);
    for (size_t b = 0; b < (valid ? 1 : held->len); b++)
        enter(d, i + 1, valid ? held->data : "\xEF\xBF\xBD", valid ? held->len : 3, true);
    held->len = 0;
}

static void fall_back(decoding *d, size_t i, const char *s, size_t n)
{
    int byte = byte_of(s, n);
    if (byte >= 0) {
        char b = (char)byte;
        im_str_append_n(&d->s->stage[i].held, &b, 1);
        return;
    }
    end_bytes(d, i);
    enter(d, i + 1, s, n, true);
}

static void replace(decoding *d, size_t i, const char *s, size_t n, bool fresh)
{
    const im_tok_decoder *r = &d->t->decoder[i];
    size_t at = 0;
    while (r->find.n) {
        const char *p = memmem(s + at, n - at, r->find.s, r->find.n);
        if (!p)
            break;
        enter(d, i + 1, s + at, (size_t)(p - s) - at, fresh);
        enter(d, i + 1, r->put.s, r->put.n, false);
        fresh = false;
        at = (size_t)(p - s) + r->find.n;
    }
    enter(d, i + 1, s + at, n - at, fresh);
}

static void metaspace(decoding *d, size_t i, const char *s, size_t n)
{
    const im_tok_decoder *m = &d->t->decoder[i];
    bool first = !d->s->stage[i].begun;
    size_t k;
    enter(d, i + 1, s, 0, true);
    for (size_t at = 0; at < n; at += k) {
        bool space = im_tok_char(s + at, &k) == m->character;
        if (!space)
            enter(d, i + 1, s + at, k, false);
        else if (!first || m->scheme == IM_TOK_NEVER)
            enter(d, i + 1, " ", 1, false);
    }
}

/* Up to `stop` of the characters held for the end of a token are dropped. */
static void end_strip(decoding *d, size_t i)
{
    const im_tok_decoder *r = &d->t->decoder[i];
    im_str *held = &d->s->stage[i].held;
    char c[IM_TOK_CHAR];
    size_t n = im_tok_put_char(r->character, c), keep = held->len / n > (size_t)r->stop ? held->len - (size_t)r->stop * n : 0;
    if (keep)
        enter(d, i + 1, held->data, keep, false);
    held->len = 0;
}

/* Takes up to `start` of its character off the front of a token, and up to `stop` off its end. */
static void strip(decoding *d, size_t i, const char *s, size_t n, bool fresh)
{
    const im_tok_decoder *r = &d->t->decoder[i];
    im_str *held = &d->s->stage[i].held;
    int *cut = &d->s->stage[i].cut;
    size_t k;
    if (fresh) {
        end_strip(d, i);
        *cut = 0;
        enter(d, i + 1, s, 0, true);
    }
    for (size_t at = 0; at < n; at += k) {
        bool is = im_tok_char(s + at, &k) == r->character;
        if (is && *cut < r->start) {
            ++*cut;
            continue;
        }
        *cut = r->start;
        if (is && r->stop) {
            im_str_append_n(held, s + at, k);
            continue;
        }
        if (held->len) {
            enter(d, i + 1, held->data, held->len, false);
            held->len = 0;
        }
        enter(d, i + 1, s + at, k, false);
    }
}

static void enter(decoding *d, size_t i, const char *s, size_t n, bool fresh)
{
    if (i == d->t->ndecoder) {
        im_str_append_n(d->out, s, n);
        return;
    }
    switch (d->t->decoder[i].kind) {
    case IM_TOK_DECODE_BYTES: to_bytes(d, i, s, n); break;
    case IM_TOK_DECODE_FALLBACK: fall_back(d, i, s, n); break;
    case IM_TOK_DECODE_FUSE: enter(d, i + 1, s, n, !d->s->stage[i].begun); break;
    case IM_TOK_DECODE_REPLACE: replace(d, i, s, n, fresh); break;
    case IM_TOK_DECODE_STRIP: strip(d, i, s, n, fresh); break;
    case IM_TOK_DECODE_METASPACE: metaspace(d, i, s, n); break;
    case IM_TOK_DECODE_SPACES:
        if (d->s->stage[i].begun)
            enter(d, i + 1, " ", 1, true);
        enter(d, i + 1, s, n, true);
        break;
    }
    d->s->stage[i].begun = true;
}

static void end_stage(decoding *d, size_t i)
{
    if (i == d->t->ndecoder)
        return;
    if (d->t->decoder[i].kind == IM_TOK_DECODE_FALLBACK)
        end_bytes(d, i);
    if (d->t->decoder[i].kind == IM_TOK_DECODE_STRIP)
        end_strip(d, i);
    d->s->stage[i].begun = false;
    d->s->stage[i].cut = 0;
    end_stage(d, i + 1);
}

static im_status settle(const decoding *d)
{
    bool failed = d->out->failed;
    for (size_t i = 0; i < d->t->ndecoder; i++)
        failed = failed || d->s->stage[i].held.failed;
    return failed ? im_fail(d->ctx, IM_ERR_NOMEM, "no memory for the text of ids") : IM_OK;
}

im_status im_tok_stream_push(im_context *ctx, const im_tok *t, im_tok_stream *s, int32_t id, bool skip_special, im_str *out)
{
    decoding d = {ctx, t, s, out};
    size_t n;
    const char *token = im_tok_token(t, id, &n);
    if (!token)
        return im_fail(ctx, IM_ERR_FORMAT, "id %d has no token in %s (ids are from 0 to %lld)", id, t->path, (long long)t->size - 1);
    if (!(skip_special && im_tok_is_special(t, id)))
        enter(&d, 0, token, n, true);
    return settle(&d);
}

im_status im_tok_stream_end(im_context *ctx, const im_tok *t, im_tok_stream *s, im_str *out)
{
    decoding d = {ctx, t, s, out};
    end_stage(&d, 0);
    return settle(&d);
}

void im_tok_stream_free(im_tok_stream *s)
{
    for (size_t i = 0; i < IM_TOK_DECODERS; i++)
        im_str_free(&s->stage[i].held);
    *s = (im_tok_stream){0};
}

im_status im_tok_decode(im_context *ctx, const im_tok *t, const int32_t *ids, size_t n, bool skip_special, im_str *out)
{
    im_tok_stream s = {0};
    im_status status = IM_OK;
    for (size_t i = 0; i < n; i++)
        IM_TRY_GOTO(im_tok_stream_push(ctx, t, &s, ids[i], skip_special, out), free_stream);
    status = im_tok_stream_end(ctx, t, &s, out);
free_stream:
    im_tok_stream_free(&s);
    return status;
}

/* In the middle of a text: every stage has begun, and has taken off what it takes off in front. */
int64_t im_tok_token_bytes(const im_tok *t, int32_t id)
{
    size_t n;
    const char *token = im_tok_token(t, id, &n);
    if (!token)
        return -1;
    if (im_tok_is_special(t, id))
        return 0;
    for (size_t i = 0; i < t->ndecoder; i++)
        if (t->decoder[i].kind == IM_TOK_DECODE_FALLBACK && byte_of(token, n) >= 0)
            return 1;
    im_tok_stream s = {0};
    im_str text = {0};
    decoding d = {NULL, t, &s, &text};
    for (size_t i = 0; i < t->ndecoder; i++) {
        s.stage[i].begun = true;
        s.stage[i].cut = t->decoder[i].start;
    }
    enter(&d, 0, token, n, true);
    end_stage(&d, 0);
    int64_t bytes = (int64_t)text.len - (t->ndecoder && t->decoder[0].kind == IM_TOK_DECODE_SPACES);
    im_tok_stream_free(&s);
    im_str_free(&text);
    return bytes;
}
