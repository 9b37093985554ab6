/* The prefilter and the matcher of patterns. */
#include "fabric/diagnose_scan.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BITS = 14, SLOTS = 1 << SLOT_BITS, MOST_ANCHORS = 4096, NONE = 0xffff };

typedef struct anchor {
    char *text; /* in small letters */
    uint16_t len;
    uint16_t window;          /* where in it the bytes lie that are looked for first */
    uint16_t next;            /* another one whose window ends alike; NONE: none */
    uint16_t first, npattern; /* in `pattern` */
} anchor;

struct im_scan {
    anchor *anchor;
    size_t nanchor;
    uint16_t *pattern; /* numbers of patterns, by anchor */
    uint8_t shift[SLOTS];
    uint16_t chain[SLOTS];
};

static inline unsigned char small(unsigned char c)
{
    return (unsigned char)(c - 'A') < 26 ? (unsigned char)(c + 32) : c;
}

/* Letters that differ in case alone come to the same slot; so do some other bytes, which costs a comparison. (A multiplicative hash: Knuth, 6.4.) */
static inline size_t slot_of(uint32_t bytes)
{
    return (((bytes & 0xffffff) | 0x202020) * 2654435761u) >> (32 - SLOT_BITS);
}

static inline size_t slot(const unsigned char *p)
{
    return slot_of((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16);
}

/* The same with one load, of a byte more. */
static inline size_t slot_fast(const unsigned char *p)
{
    uint32_t x;
    memcpy(&x, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap32(x);
#endif
    return slot_of(x);
}

/* ---- the matcher --------------------------------------------------------------------------------------- */

static bool begins(const char *at, size_t left, const char *what, size_t n)
{
    if (left < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (small((unsigned char)at[i]) != small((unsigned char)what[i]))
            return false;
    return true;
}

/* As memmem, in any case. */
static size_t find(const char *line, size_t n, size_t at, const char *what, size_t m)
{
    if (!m)
        return at;
    unsigned char first = small((unsigned char)what[0]);
    bool letter = (unsigned char)(first - 'a') < 26;
    for (size_t i = at; i + m <= n; i++) {
        if (letter) { /* in both cases */
            while (i + m <= n && ((unsigned char)line[i] | 32) != first)
                i++;
        } else {
            const char *p = memchr(line + i, first, n - m + 1 - i);
            i = p ? (size_t)(p - line) : n;
        }
        if (i + m <= n && begins(line + i, n - i, what, m))
            return i;
    }
    return n;
}

size_t im_scan_find(const char *line, size_t n, size_t at, const char *what)
{
    size_t m = strlen(what);
    return at > n || m > n ? n : find(line, n, at, what, m);
}

bool im_scan_stands(const char *line, size_t n, size_t at, const char *what)
{
    return at <= n && begins(line + at, n - at, what, strlen(what));
}

bool im_scan_is_plain(const char *pattern)
{
    return !pattern[strcspn(pattern, "*~")];
}

static bool is_word(char c)
{
    unsigned char s = small((unsigned char)c);
    return (unsigned char)(s - 'a') < 26 || (unsigned char)(s - '0') < 10;
}

/* One piece of a pattern, [p, end), perhaps with ~ at its end: where it ends in line, or n + 1. */
static size_t match_piece(const char *p, const char *end, const char *line, size_t n, size_t at)
{
    bool word = end > p && end[-1] == '~';
    size_t m = (size_t)(end - p) - word;
    for (size_t i = at; m <= n && (i = find(line, n, i, p, m)) + m <= n; i++)
        if (!word || i + m == n || !is_word(line[i + m]))
            return i + m;
    return n + 1;
}

bool im_scan_match(const char *pattern, const char *line, size_t n)
{
    size_t at = 0;
    for (const char *p = pattern; *p;) {
        const char *end = strchr(p, '*');
        end = end ? end : p + strlen(p);
        if (end > p && (at = match_piece(p, end, line, n, at)) > n)
            return false;
        p = *end ? end + 1 : end;
    }
    return true;
}

/* ---- the prefilter --------------------------------------------------------------------------------------- */

static const char *find_anchor(const char *pattern, size_t *len)
{
    const char *best = NULL;
    *len = 0;
    for (const char *p = pattern; *p;) {
        size_t m = strcspn(p, "*~");
        if (m > *len) {
            best = p;
            *len = m;
        }
        p += m + (p[m] != 0);
    }
    return best;
}

static size_t add_anchor(im_scan *s, const char *text, size_t len)
{
    for (size_t i = 0; i < s->nanchor; i++)
        if (s->anchor[i].len == len && begins(text, len, s->anchor[i].text, len))
            return i;
    anchor *a = &s->anchor[s->nanchor];
    if (s->nanchor == MOST_ANCHORS || !(a->text = malloc(len + 1)))
        return NONE;
    for (size_t i = 0; i < len; i++)
        a->text[i] = (char)small((unsigned char)text[i]);
    a->text[len] = 0;
    a->len = (uint16_t)len;
    return s->nanchor++;
}

/* How often a byte stands in logs, roughly: small letters and digits that are frequent cost most. */
static unsigned weight(char c)
{
    return strchr("etaoinsr 0123456789", c) ? 3 : c >= 'a' && c <= 'z' ? 2 : 1;
}

/* Of an anchor IM_SCAN_LEAST bytes are looked for: the rarest, so that ordinary text is passed over in long strides. */
static uint16_t choose_window(const anchor *a)
{
    size_t best = 0;
    unsigned least = 1000;
    for (size_t i = 0; i + IM_SCAN_LEAST <= a->len; i++) {
        unsigned sum = 0;
        for (size_t k = 0; k < IM_SCAN_LEAST; k++)
            sum += weight(a->text[i + k]);
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    return (uint16_t)best;
}

/* Of the slot of each three bytes in the window: how far its end still is. */
static void enter(im_scan *s, size_t number)
{
    anchor *a = &s->anchor[number];
    a->window = choose_window(a);
    for (size_t i = 0; i + 3 <= IM_SCAN_LEAST; i++) {
        size_t at = slot((const unsigned char *)a->text + a->window + i);
        uint8_t left = (uint8_t)(IM_SCAN_LEAST - 3 - i);
        if (left < s->shift[at])
            s->shift[at] = left;
        if (!left) {
            a->next = s->chain[at];
            s->chain[at] = (uint16_t)number;
        }
    }
}

static im_status build(im_context *ctx, im_scan *s, const char *const *pattern, size_t n, uint16_t *of)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = find_anchor(pattern[i], &len);
        if (len < IM_SCAN_LEAST)
            return im_fail(ctx, IM_ERR_ARG, "pattern \"%s\" has no piece of %d bytes", pattern[i], IM_SCAN_LEAST);
        size_t a = add_anchor(s, text, len);
        if (a == NONE)
            return im_fail(ctx, IM_ERR_NOMEM, "no room for the patterns");
        of[i] = (uint16_t)a;
        s->anchor[a].npattern++;
    }
    for (size_t a = 0, at = 0; a < s->nanchor; a++) {
        s->anchor[a].first = (uint16_t)at;
        at += s->anchor[a].npattern;
        s->anchor[a].npattern = 0;
        enter(s, a);
    }
    for (size_t i = 0; i < n; i++) {
        anchor *a = &s->anchor[of[i]];
        s->pattern[a->first + a->npattern++] = (uint16_t)i;
    }
    return IM_OK;
}

im_status im_scan_create(im_context *ctx, const char *const *pattern, size_t n, im_scan **out)
{
    im_scan *s = NULL;
    uint16_t *of = NULL;
    im_status status;
    if (n > MOST_ANCHORS)
        return im_fail(ctx, IM_ERR_ARG, "%zu patterns: at most %d", n, MOST_ANCHORS);
    IM_TRY(im_alloc(ctx, 1, sizeof *s, (void **)&s));
    memset(s->shift, IM_SCAN_LEAST - 2, sizeof s->shift);
    memset(s->chain, 0xff, sizeof s->chain);
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof *s->anchor, (void **)&s->anchor), failed);
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof *s->pattern, (void **)&s->pattern), failed);
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof *of, (void **)&of), failed);
    IM_TRY_GOTO(build(ctx, s, pattern, n, of), failed);
    free(of);
    *out = s;
    return IM_OK;
failed:
    free(of);
    im_scan_free(s);
    return status;
}

void im_scan_free(im_scan *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->anchor && i < s->nanchor; i++)
        free(s->anchor[i].text);
    free(s->anchor);
    free(s->pattern);
    free(s);
}

size_t im_scan_next(const im_scan *s, const char *text, size_t n, size_t at, uint16_t found[IM_SCAN_MOST], size_t *nfound)
{
    const unsigned char *t = (const unsigned char *)text;
    for (size_t i = at + IM_SCAN_LEAST - 3; i + 3 <= n;) { /* i: the last three bytes of the window */
        size_t k = i + 4 <= n ? slot_fast(t + i) : slot(t + i);
        if (s->shift[k]) {
            i += s->shift[k];
            continue;
        }
        size_t window = i + 3 - IM_SCAN_LEAST;
        *nfound = 0;
        for (uint16_t a = s->chain[k]; a != NONE && *nfound < IM_SCAN_MOST; a = s->anchor[a].next) {
            const anchor *x = &s->anchor[a];
            if (window >= x->window && begins(text + window - x->window, n - window + x->window, x->text, x->len))
                found[(*nfound)++] = a;
        }
        if (*nfound)
            return window;
        i++;
    }
    *nfound = 0;
    return n;
}

size_t im_scan_patterns(const im_scan *s, size_t number, const uint16_t **pattern)
{
    *pattern = s->pattern + s->anchor[number].first;
    return s->anchor[number].npattern;
}
