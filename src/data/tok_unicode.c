/* Unicode by utf8proc: classes of characters and normal forms. */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <utf8proc.h>

bool im_tok_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Alphabetic (letters, letter numbers, and circled and squared letters, which are symbols), marks, decimal digits, connectors, joiners */
bool im_tok_is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

bool im_tok_is_number(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* Hugging Face's tokenizers take what Unicode 8 called punctuation (asked of its Punctuation, version 0.23, for every character): these came later. */
static bool is_younger_punctuation(uint32_t c)
{
    static const uint32_t range[][2] = {
        {0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},     {0xc84, 0xc84},     {0x1b4e, 0x1b4f},   {0x1b7d, 0x1b7f},
        {0x2e43, 0x2e4f},   {0x2e52, 0x2e5d},   {0x10ead, 0x10ead}, {0x10ed0, 0x10ed0}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x113d4, 0x113d5},
        {0x113d7, 0x113d8}, {0x1144b, 0x1144f}, {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1183b, 0x1183b},
        {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46}, {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11be1, 0x11be1},
        {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16d6d, 0x16d6f},
        {0x16e97, 0x16e9a}, {0x16fe2, 0x16fe2}, {0x1e5ff, 0x1e5ff}, {0x1e95e, 0x1e95f},
    };
    size_t low = 0, high = IM_COUNT_OF(range);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > range[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < IM_COUNT_OF(range) && c >= range[low][0];
}

bool im_tok_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    if (c == 0x166D || c == 0x111C9) /* no longer, since Unicode 12 and 11 */
        return true;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO && !is_younger_punctuation(c);
}

/* ---- normal forms ------------------------------------------------------------------------------------ */

/* Characters below this are in every canonical form and take no mark from the left. Compatibility forms change some from U+00A0 on. */
enum { PLAIN = 0x300, PLAIN_COMPATIBLE = 0xA0, PLAIN_DECOMPOSED = 0xC0 };

static utf8proc_option_t options(im_tok_form form)
{
    static const utf8proc_option_t of[] = {
        [IM_TOK_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [IM_TOK_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [IM_TOK_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [IM_TOK_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    return of[form];
}

static uint32_t plain_below(im_tok_form form)
{
    return form == IM_TOK_NFC ? PLAIN : form == IM_TOK_NFD ? PLAIN_DECOMPOSED : PLAIN_COMPATIBLE;
}

static im_status transform(im_context *ctx, im_tok_form form, const im_tok_text *t, size_t from, size_t to, im_tok_made *out)
{
    const utf8proc_uint8_t *s = (const utf8proc_uint8_t *)t->s + from;
    utf8proc_ssize_t n = (utf8proc_ssize_t)(to - from), room = n + 16;
    utf8proc_int32_t *c = malloc(((size_t)room + 1) * sizeof *c);
    utf8proc_ssize_t k = c ? utf8proc_decompose(s, n, c, room, options(form)) : UTF8PROC_ERROR_NOMEM;
    if (k > room) { /* it told how much is needed */
        utf8proc_int32_t *more = realloc(c, ((size_t)k + 1) * sizeof *c);
        if (!more) {
            k = UTF8PROC_ERROR_NOMEM;
        } else {
            c = more;
            k = utf8proc_decompose(s, n, c, k, options(form));
        }
    }
    if (k > 0)
        k = utf8proc_reencode(c, k, options(form));
    if (k > 0)
        im_tok_made_put(out, (const char *)c, (size_t)k);
    free(c);
    if (k < 0)
        return im_fail(ctx, k == UTF8PROC_ERROR_NOMEM ? IM_ERR_NOMEM : IM_ERR_FORMAT, "normalizing %zu bytes of text: %s", to - from,
                       utf8proc_errmsg(k));
    return IM_OK;
}

/* Stretches of plain characters are copied; what lies between, with the character in front of it, is transformed. A U+FFFD that stands for
 * bytes is copied too: it begins something new and joins with nothing. */
im_status im_tok_normal_form(im_context *ctx, im_tok_form form, const im_tok_text *t, size_t from, size_t to, im_tok_made *out)
{
    const uint32_t below = plain_below(form);
    size_t done = from, at = from, last = from, n; /* last: where the character before `at` begins */
    size_t mark = t->nmark ? im_tok_first_mark(t, from) : 0;
    while (at < to) {
        size_t stop = mark < t->nmark && t->mark[mark].at < to ? t->mark[mark].at : to;
        while (at < stop && im_tok_char(t->s + at, &n) < below) {
            last = at;
            at += n;
        }
        if (at == stop) {
            size_t end = stop < to ? stop + 3 : stop;
            im_tok_made_copy(out, t, done, end);
            mark += stop < to;
            done = at = last = end;
            continue;
        }
        im_tok_made_copy(out, t, done, last);
        size_t begin = last;
        while (at < stop && im_tok_char(t->s + at, &n) >= below)
            at += n;
        IM_TRY(transform(ctx, form, t, begin, at, out));
        done = last = at;
    }
    im_tok_made_copy(out, t, done, to);
    return IM_OK;
}
