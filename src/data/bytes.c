/* Text to byte-level token files, divided into documents and the documents into training and validation.
 *
 * A stream: pieces of any size come in, nothing larger than a separator line is held. Where a document goes is known when
 * it begins, from its number alone, so the same text gives the same files however it is cut into pieces.
 */
#include "data/data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A line of white space longer than this counts as text. */
enum { HOLD = 4096 };

struct im_corpus {
    im_context *ctx;
    im_corpus_config cfg;
    char *prefix, *separator;
    im_tokens_writer *out[2]; /* train, validation (NULL: none is asked for) */
    int64_t document;         /* number of the current one */
    bool open;                /* it has text already */
    bool line_begun;          /* some of the current line was passed on: it is no separator */
    unsigned char held[HOLD]; /* the current line so far, while it may be a separator */
    size_t nheld;
    int64_t number;    /* ids: the digits so far as a number, -1: none */
    const char *input; /* for messages */
    int64_t line;      /* ids: for messages, from 1 in each file */
};

im_status im_corpus_create(im_context *ctx, const char *prefix, const im_corpus_config *cfg, im_corpus **out)
{
    if (!(cfg->valid_fraction >= 0 && cfg->valid_fraction < 1))
        return im_fail(ctx, IM_ERR_ARG, "valid-fraction %g: from 0 (no validation file) to below 1", cfg->valid_fraction);
    if (cfg->valid_every < 0 || cfg->valid_every == 1)
        return im_fail(ctx, IM_ERR_ARG, "valid-every %lld: 2 or more, or 0 to divide by valid-fraction", (long long)cfg->valid_every);
    const char *separator = cfg->separator ? cfg->separator : "";
    if (cfg->split == IM_SPLIT_SEPARATOR && (!*separator || strlen(separator) >= HOLD || strchr(separator, '\n')))
        return im_fail(ctx, IM_ERR_ARG, "separator \"%s\": the text of one line, 1 to %d bytes", separator, HOLD - 1);
    im_status status = IM_OK;
    im_corpus *c = NULL;
    char *name = NULL;
    size_t n = strlen(prefix);
    IM_TRY(im_alloc(ctx, 1, sizeof *c, (void **)&c));
    c->ctx = ctx;
    c->cfg = *cfg;
    c->number = -1;
    c->input = "the input";
    c->line = 1;
    IM_TRY_GOTO(im_alloc(ctx, n + sizeof "-train", 1, (void **)&name), abandon);
    IM_TRY_GOTO(im_alloc(ctx, strlen(separator) + 1, 1, (void **)&c->separator), abandon);
    memcpy(c->separator, separator, strlen(separator));
    memcpy(name, prefix, n);
    memcpy(name + n, "-train", sizeof "-train");
    im_dtype type = cfg->ids ? IM_I32 : IM_U16;
    IM_TRY_GOTO(im_tokens_create(ctx, name, type, &c->out[0]), abandon);
    if (cfg->valid_every || cfg->valid_fraction > 0) {
        memcpy(name + n, "-valid", sizeof "-valid");
        IM_TRY_GOTO(im_tokens_create(ctx, name, type, &c->out[1]), abandon);
    }
    c->prefix = name;
    *out = c;
    return IM_OK;
abandon:
    free(name);
    im_corpus_abandon(c);
    return status;
}

void im_corpus_abandon(im_corpus *c)
{
    if (!c)
        return;
    im_tokens_abandon(c->out[0]);
    im_tokens_abandon(c->out[1]);
    free(c->prefix);
    free(c->separator);
    free(c);
}

/* The first document always trains, so that there is training text whatever the hash says. */
static bool is_validation(const im_corpus *c)
{
    if (!c->out[1] || c->document == 0)
        return false;
    if (c->cfg.valid_every)
        return (c->document + 1) % c->cfg.valid_every == 0;
    uint64_t key[2] = {c->cfg.seed, (uint64_t)c->document};
    return (double)(im_hash64(key, sizeof key, 0) >> 11) * 0x1p-53 < c->cfg.valid_fraction;
}

static im_tokens_writer *target(const im_corpus *c)
{
    return c->out[is_validation(c)];
}

static im_status text(im_corpus *c, const unsigned char *bytes, size_t n)
{
    if (!n)
        return IM_OK;
    c->open = true;
    return im_tokens_append_bytes(target(c), bytes, n);
}

static im_status end_document(im_corpus *c)
{
    const int32_t eod = c->cfg.ids ? c->cfg.eod : IM_BYTE_EOD;
    if (!c->open)
        return IM_OK;
    if (eod >= 0)
        IM_TRY(im_tokens_append(target(c), &eod, 1));
    IM_TRY(im_tokens_end_document(target(c)));
    c->open = false;
    c->document++;
    return IM_OK;
}

static bool is_space(unsigned char b)
{
    return b == ' ' || b == '\t' || b == '\r' || b == '\v' || b == '\f';
}

/* line: without its newline. May more bytes still make it (whole: is it) a line that ends a document? */
static bool ends_document(const im_corpus *c, const unsigned char *line, size_t n, bool whole)
{
    if (c->cfg.split == IM_SPLIT_BLANK) {
        for (size_t i = 0; i < n; i++)
            if (!is_space(line[i]))
                return false;
        return n < HOLD;
    }
    size_t m = strlen(c->separator);
    if (whole && n == m + 1 && line[m] == '\r')
        n--;
    return (whole ? n == m : n <= m + 1) && memcmp(line, c->separator, n < m ? n : m) == 0;
}

/* A part of a line, `newline` when it is the last part. */
static im_status line_part(im_corpus *c, const unsigned char *part, size_t n, bool newline)
{
    if (!c->line_begun && c->nheld + n < HOLD) {
        memcpy(c->held + c->nheld, part, n);
        c->nheld += n;
        if (ends_document(c, c->held, c->nheld, newline)) {
            if (!newline)
                return IM_OK;
            c->nheld = 0;
            return end_document(c);
        }
        n = 0;
    }
    IM_TRY(text(c, c->held, c->nheld));
    IM_TRY(text(c, part, n));
    if (newline)
        IM_TRY(text(c, (const unsigned char *)"\n", 1));
    c->nheld = 0;
    c->line_begun = !newline;
    return IM_OK;
}

/* ---- ids in decimal --------------------------------------------------------------- */

static im_status end_number(im_corpus *c)
{
    if (c->number < 0)
        return IM_OK;
    int32_t id = (int32_t)c->number;
    c->number = -1;
    c->open = true;
    return im_tokens_append(target(c), &id, 1);
}

static im_status feed_ids(im_corpus *c, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] >= '0' && p[i] <= '9') {
            c->number = (c->number < 0 ? 0 : c->number) * 10 + (p[i] - '0');
            if (c->number > INT32_MAX)
                return im_fail(c->ctx, IM_ERR_FORMAT, "%s: line %lld: an id larger than %d", c->input, (long long)c->line, INT32_MAX);
            continue;
        }
        IM_TRY(end_number(c));
        if (p[i] == '\n') {
            IM_TRY(end_document(c));
            c->line++;
        } else if (!is_space(p[i])) {
            return im_fail(c->ctx, IM_ERR_FORMAT, "%s: line %lld: byte 0x%02x; ids are decimal numbers with spaces between them, a document a line",
                           c->input, (long long)c->line, p[i]);
        }
    }
    return IM_OK;
}

/* ---- pieces and files --------------------------------------------------------------- */

void im_corpus_begin_file(im_corpus *c, const char *name)
{
    c->input = name;
    c->line = 1;
}

im_status im_corpus_feed(im_corpus *c, const void *bytes, size_t n)
{
    const unsigned char *p = bytes, *end = p + n;
    if (c->cfg.ids)
        return feed_ids(c, p, n);
    if (c->cfg.split == IM_SPLIT_FILE)
        return text(c, p, n);
    while (p < end) {
        const unsigned char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t part = (size_t)((newline ? newline : end) - p);
        if (c->cfg.split == IM_SPLIT_LINES) {
            IM_TRY(text(c, p, part));
            if (newline)
                IM_TRY(end_document(c));
        } else {
            IM_TRY(line_part(c, p, part, newline != NULL));
        }
        p += part + (newline ? 1 : 0);
    }
    return IM_OK;
}

im_status im_corpus_end_file(im_corpus *c)
{
    IM_TRY(end_number(c));
    c->line = 1;
    bool separator = c->nheld && ends_document(c, c->held, c->nheld, true); /* the last line, without a newline */
    if (!separator)
        IM_TRY(text(c, c->held, c->nheld));
    c->nheld = 0;
    c->line_begun = false;
    return end_document(c);
}

/* No document fell to validation: the last part of the training text moves there, whatever documents it belongs to. */
static im_status divide_by_position(im_corpus *c)
{
    int64_t all = im_tokens_written(c->out[0]);
    double share = c->cfg.valid_every ? 1.0 / (double)c->cfg.valid_every : c->cfg.valid_fraction;
    int64_t moved = (int64_t)llround(share * (double)all);
    if (moved < 2)
        moved = 2;
    if (all - moved < 2)
        return im_fail(c->ctx, IM_ERR_FORMAT,
                       "%s: %lld tokens are too few to divide into training and validation; give more text, or valid-fraction 0", c->prefix,
                       (long long)all);
    return im_tokens_move_tail(c->out[0], all - moved, c->out[1]);
}

im_status im_corpus_finish(im_corpus *c, im_corpus_result *out)
{
    im_status status = IM_OK;
    im_corpus_result r = {0};
    IM_TRY_GOTO(im_corpus_end_file(c), abandon);
    if (im_tokens_written(c->out[0]) == 0) {
        status = im_fail(c->ctx, IM_ERR_FORMAT, "%s: no text was given: every input is empty", c->prefix);
        goto abandon;
    }
    if (c->out[1] && im_tokens_written_documents(c->out[1]) == 0) {
        r.by_position = true;
        IM_TRY_GOTO(divide_by_position(c), abandon);
    }
    for (int i = 1; i >= 0; i--) {
        im_tokens_writer *w = c->out[i];
        if (!w)
            continue;
        r.tokens[i] = im_tokens_written(w);
        r.documents[i] = im_tokens_written_documents(w);
        c->out[i] = NULL;
        IM_TRY_GOTO(im_tokens_finish(w), abandon);
    }
    im_corpus_abandon(c);
    *out = r;
    return IM_OK;
abandon:
    im_corpus_abandon(c);
    return status;
}
