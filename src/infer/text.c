/* Bytes to text: whole characters, and stop strings that may be cut anywhere. */
#include "infer/infer.h"

#include <string.h>

/* ---- UTF-8 ---------------------------------------------------------------------------------- */

static const char replacement[] = "\xEF\xBF\xBD";

/* Bytes of the character that `b` begins, and the bounds of the byte behind it, which shut out overlong forms, surrogates and what is above
 * U+10FFFF; 0: no character begins so. */
static uint8_t begin(unsigned char b, uint8_t *low, uint8_t *high)
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

static void push_byte(im_infer_utf8 *u, unsigned char b, im_str *out)
{
    if (u->n && (b < u->low || b > u->high)) { /* what was held goes no further; b may begin something */
        im_str_append(out, replacement);
        u->n = 0;
    }
    if (!u->n) {
        u->need = begin(b, &u->low, &u->high);
        if (!u->need) {
            im_str_append(out, replacement);
            return;
        }
    } else {
        u->low = 0x80;
        u->high = 0xBF;
    }
    u->held[u->n++] = b;
    if (u->n == u->need) {
        im_str_append_n(out, (const char *)u->held, u->n);
        u->n = 0;
    }
}

void im_infer_utf8_push(im_infer_utf8 *u, const char *bytes, size_t n, im_str *out)
{
    for (size_t i = 0; i < n; i++)
        push_byte(u, (unsigned char)bytes[i], out);
}

void im_infer_utf8_end(im_infer_utf8 *u, im_str *out)
{
    if (u->n)
        im_str_append(out, replacement);
    u->n = 0;
}

/* ---- stop strings --------------------------------------------------------------------------------- */

/* The longest end of what is held that a stop string begins with. */
static size_t may_become_stop(const im_infer_stops *s)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t len = strlen(s->text[i]), most = len - 1 < s->held.len ? len - 1 : s->held.len;
        for (size_t k = most; k > longest; k--)
            if (!memcmp(s->held.data + s->held.len - k, s->text[i], k)) {
                longest = k;
                break;
            }
    }
    return longest;
}

static void drop_front(im_str *s, size_t n)
{
    memmove(s->data, s->data + n, s->len - n + 1);
    s->len -= n;
}

int im_infer_stops_push(im_infer_stops *s, char byte, im_str *out)
{
    if (!s->n) {
        im_str_append_n(out, &byte, 1);
        return -1;
    }
    im_str_append_n(&s->held, &byte, 1);
    if (s->held.failed) { /* told by whoever reads `out` */
        out->failed = true;
        return -1;
    }
    for (size_t i = 0; i < s->n; i++) {
        size_t len = strlen(s->text[i]);
        if (len <= s->held.len && !memcmp(s->held.data + s->held.len - len, s->text[i], len)) {
            im_str_append_n(out, s->held.data, s->held.len - len);
            s->held.len = 0;
            return (int)i;
        }
    }
    size_t keep = may_become_stop(s), free_bytes = s->held.len - keep;
    im_str_append_n(out, s->held.data, free_bytes);
    drop_front(&s->held, free_bytes);
    return -1;
}

void im_infer_stops_end(im_infer_stops *s, im_str *out)
{
    if (s->held.len)
        im_str_append_n(out, s->held.data, s->held.len);
    s->held.len = 0;
}

void im_infer_stops_free(im_infer_stops *s)
{
    im_str_free(&s->held);
}
