/* Text made from text. */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD";
enum { REPLACEMENT = 3 };

/* ---- made texts ---------------------------------------------------------------------------------- */

void im_tok_made_begin(im_tok_made *m, bool traced)
{
    m->text.len = 0;
    m->text.failed = false;
    m->nmark = 0;
    m->ncopy = 0;
    m->traced = traced;
    m->failed = false;
}

void im_tok_made_free(im_tok_made *m)
{
    im_str_free(&m->text);
    free(m->mark);
    free(m->copy);
    *m = (im_tok_made){0};
}

/* Room for one more of `size` bytes in an array; NULL: no memory. */
static void *grow(im_tok_made *m, void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    size_t more = *cap ? 2 * *cap : 64;
    void *p = realloc(array, more * size);
    if (!p) {
        m->failed = true;
        return NULL;
    }
    *cap = more;
    return p;
}

static void add_mark(im_tok_made *m, const im_tok_mark *from, size_t at)
{
    im_tok_mark *p = grow(m, m->mark, m->nmark, &m->mark_cap, sizeof *p);
    if (!p)
        return;
    m->mark = p;
    m->mark[m->nmark] = *from;
    m->mark[m->nmark++].at = at;
}

static void add_copy(im_tok_made *m, size_t from, size_t n)
{
    im_tok_copy *p = grow(m, m->copy, m->ncopy, &m->copy_cap, sizeof *p);
    if (!p)
        return;
    m->copy = p;
    im_tok_copy *last = m->ncopy ? &m->copy[m->ncopy - 1] : NULL;
    if (last && last->at + last->n == m->text.len && last->from + last->n == from)
        last->n += n;
    else
        m->copy[m->ncopy++] = (im_tok_copy){m->text.len, from, n};
}

void im_tok_made_copy(im_tok_made *m, const im_tok_text *t, size_t from, size_t to)
{
    if (from >= to)
        return;
    for (size_t i = t->nmark ? im_tok_first_mark(t, from) : 0; i < t->nmark && t->mark[i].at < to; i++)
        add_mark(m, &t->mark[i], m->text.len + (t->mark[i].at - from));
    if (m->traced)
        add_copy(m, from, to - from);
    im_str_append_n(&m->text, t->s + from, to - from);
}

void im_tok_made_put(im_tok_made *m, const char *s, size_t n)
{
    im_str_append_n(&m->text, s, n);
}

im_status im_tok_made_end(im_context *ctx, const im_tok_made *m, im_tok_text *out)
{
    if (m->failed || m->text.failed)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu bytes of text", m->text.len);
    *out = (im_tok_text){im_str_text(&m->text), m->text.len, m->mark, m->nmark};
    return IM_OK;
}

size_t im_tok_made_source(const im_tok_made *m, size_t at)
{
    size_t low = 0, high = m->ncopy; /* the last copy that begins at or before `at` */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->copy[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low)
        return SIZE_MAX;
    const im_tok_copy *c = &m->copy[low - 1];
    return at - c->at <= c->n ? c->from + (at - c->at) : SIZE_MAX;
}

size_t im_tok_first_mark(const im_tok_text *t, size_t at)
{
    size_t low = 0, high = t->nmark;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->mark[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool im_tok_has_mark(const im_tok_text *t, size_t from, size_t to)
{
    if (!t->nmark)
        return false;
    size_t i = im_tok_first_mark(t, from);
    return i < t->nmark && t->mark[i].at < to;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------ */

/* Bytes of the character that `b` begins, and the bounds of the byte behind it; 0: none begins so. */
static size_t begin(unsigned char b, unsigned char *low, unsigned char *high)
{
    *low = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    *high = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (b < 0x80)
        return 1;
    if (b >= 0xC2 && b <= 0xDF)
        return 2;
    if (b >= 0xE0 && b <= 0xEF)
        return 3;
    return b >= 0xF0 && b <= 0xF4 ? 4 : 0;
}

/* The longest part of s[0, n) that could begin a character; *whole: it is one. At least 1. */
static size_t part(const unsigned char *s, size_t n, bool *whole)
{
    unsigned char low, high;
    size_t need = begin(s[0], &low, &high), i = 1;
    while (i < need && i < n && s[i] >= low && s[i] <= high) {
        low = 0x80;
        high = 0xBF;
        i++;
    }
    *whole = need && i == need;
    return i;
}

/* Bytes from the start of s that are UTF-8. */
static size_t valid_run(const unsigned char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        bool whole;
        while (i + 8 <= n && (memcpy(&word, s + i, 8), !(word & 0x8080808080808080u)))
            i += 8;
        if (i >= n)
            break;
        size_t k = part(s + i, n - i, &whole);
        if (!whole)
            return i;
        i += k;
    }
    return i;
}

im_status im_tok_scrub(im_context *ctx, im_tok_made *m, const char *s, size_t n, bool keep, im_tok_text *out)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t at = valid_run(p, n);
    im_tok_text in = {s, n, NULL, 0};
    if (at == n) {
        *out = in;
        return IM_OK;
    }
    im_tok_made_begin(m, true);
    im_tok_made_copy(m, &in, 0, at);
    while (at < n) {
        bool whole;
        size_t bad = part(p + at, n - at, &whole), good;
        im_tok_mark mark = {.n = (unsigned char)bad};
        memcpy(mark.raw, p + at, bad); /* a part that is no character has at most 3 bytes */
        if (keep)
            add_mark(m, &mark, m->text.len);
        im_tok_made_put(m, replacement, REPLACEMENT);
        at += bad;
        good = valid_run(p + at, n - at);
        im_tok_made_copy(m, &in, at, at + good);
        at += good;
    }
    return im_tok_made_end(ctx, m, out);
}

size_t im_tok_cut_short(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        bool whole;
        unsigned char low, high;
        if (p[n - k] >= 0x80 && p[n - k] < 0xC0)
            continue;
        return part(p + n - k, k, &whole) == k && !whole && begin(p[n - k], &low, &high) ? k : 0;
    }
    return 0;
}

size_t im_tok_put_char(uint32_t c, char out[IM_TOK_CHAR])
{
    unsigned char *p = (unsigned char *)out;
    if (c < 0x80) {
        p[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        p[0] = (unsigned char)(0xC0 | c >> 6);
        p[1] = (unsigned char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        p[0] = (unsigned char)(0xE0 | c >> 12);
        p[1] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
        p[2] = (unsigned char)(0x80 | (c & 0x3F));
        return 3;
    }
    p[0] = (unsigned char)(0xF0 | c >> 18);
    p[1] = (unsigned char)(0x80 | (c >> 12 & 0x3F));
    p[2] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    p[3] = (unsigned char)(0x80 | (c & 0x3F));
    return 4;
}

size_t im_tok_char_before(const char *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80);
    return at;
}

/* ---- characters for bytes ------------------------------------------------------------------------------ */

/* Bytes that are printed stand for themselves; the others, in their order, for U+0100 and on: 0..32, 127..160, 173. */
uint32_t im_tok_byte_char(unsigned char byte)
{
    if (byte <= 32)
        return 256u + byte;
    if (byte >= 127 && byte <= 160)
        return 256u + 33 + (byte - 127u);
    return byte == 173 ? 256u + 33 + 34 : byte;
}

int im_tok_char_byte(uint32_t c)
{
    if (c < 256)
        return im_tok_byte_char((unsigned char)c) == c ? (int)c : -1;
    if (c <= 256 + 32)
        return (int)c - 256;
    if (c < 256 + 33 + 34)
        return (int)c - 256 - 33 + 127;
    return c == 256 + 33 + 34 ? 173 : -1;
}
