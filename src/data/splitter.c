/* What ends a document: the end of the input, a newline, blank lines, a separator line. The same text gives the same documents however it is cut
 * into pieces. */
#include "data/splitter.h"

#include <stdlib.h>
#include <string.h>

struct im_splitter {
    im_split split;
    char *separator;
    im_split_sink sink;
    int64_t offset;                    /* bytes of the input that came */
    bool line_begun;                   /* some of the current line was passed on: it is no separator */
    unsigned char held[IM_SPLIT_HOLD]; /* the current line so far, while it may be a separator */
    size_t nheld;
};

im_status im_splitter_create(im_context *ctx, im_split split, const char *separator, const im_split_sink *sink, im_splitter **out)
{
    const char *text = separator ? separator : "";
    if (split == IM_SPLIT_SEPARATOR && (!*text || strlen(text) >= IM_SPLIT_HOLD || strchr(text, '\n')))
        return im_fail(ctx, IM_ERR_ARG, "separator \"%s\": the text of one line, 1 to %d bytes", text, IM_SPLIT_HOLD - 1);
    im_splitter *s;
    IM_TRY(im_alloc(ctx, 1, sizeof *s, (void **)&s));
    s->split = split;
    s->sink = *sink;
    s->separator = strdup(text);
    if (!s->separator) {
        free(s);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a separator");
    }
    *out = s;
    return IM_OK;
}

void im_splitter_destroy(im_splitter *s)
{
    if (!s)
        return;
    free(s->separator);
    free(s);
}

void im_splitter_begin(im_splitter *s, int64_t offset)
{
    s->offset = offset;
    s->nheld = 0;
    s->line_begun = false;
}

static im_status text(im_splitter *s, const unsigned char *bytes, size_t n)
{
    return n ? s->sink.text(s->sink.arg, bytes, n) : IM_OK;
}

static bool is_space(unsigned char b)
{
    return b == ' ' || b == '\t' || b == '\r' || b == '\v' || b == '\f';
}

/* line: without its newline. May more bytes still make it (whole: is it) a line that ends a document? */
static bool ends_document(const im_splitter *s, const unsigned char *line, size_t n, bool whole)
{
    if (s->split == IM_SPLIT_BLANK) {
        for (size_t i = 0; i < n; i++)
            if (!is_space(line[i]))
                return false;
        return n < IM_SPLIT_HOLD;
    }
    size_t m = strlen(s->separator);
    if (whole && n == m + 1 && line[m] == '\r')
        n--;
    return (whole ? n == m : n <= m + 1) && memcmp(line, s->separator, n < m ? n : m) == 0;
}

/* A part of a line, `newline` when it is the last part; offset: behind it. */
static im_status line_part(im_splitter *s, const unsigned char *part, size_t n, bool newline, int64_t offset)
{
    if (!s->line_begun && s->nheld + n < IM_SPLIT_HOLD) {
        memcpy(s->held + s->nheld, part, n);
        s->nheld += n;
        if (ends_document(s, s->held, s->nheld, newline)) {
            if (!newline)
                return IM_OK;
            s->nheld = 0;
            return s->sink.end(s->sink.arg, offset);
        }
        n = 0;
    }
    IM_TRY(text(s, s->held, s->nheld));
    IM_TRY(text(s, part, n));
    if (newline)
        IM_TRY(text(s, (const unsigned char *)"\n", 1));
    s->nheld = 0;
    s->line_begun = !newline;
    return IM_OK;
}

im_status im_splitter_feed(im_splitter *s, const void *bytes, size_t n)
{
    const unsigned char *start = bytes, *p = start, *end = start + n;
    if (s->split == IM_SPLIT_FILE) {
        s->offset += (int64_t)n;
        return text(s, p, n);
    }
    while (p < end) {
        const unsigned char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t part = (size_t)((newline ? newline : end) - p);
        int64_t behind = s->offset + (p - start) + (int64_t)part + (newline != NULL);
        if (s->split == IM_SPLIT_LINES) {
            IM_TRY(text(s, p, part));
            if (newline)
                IM_TRY(s->sink.end(s->sink.arg, behind));
        } else {
            IM_TRY(line_part(s, p, part, newline != NULL, behind));
        }
        p += part + (newline ? 1 : 0);
    }
    s->offset += (int64_t)n;
    return IM_OK;
}

im_status im_splitter_end(im_splitter *s)
{
    bool separator = s->nheld && ends_document(s, s->held, s->nheld, true); /* the last line, without a newline */
    if (!separator)
        IM_TRY(text(s, s->held, s->nheld));
    s->nheld = 0;
    s->line_begun = false;
    return s->sink.end(s->sink.arg, s->offset);
}
