/* Text buffers, JSON quoting, names that are near. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(im_str *s, size_t more)
{
    if (s->failed)
        return false;
    if (more > SIZE_MAX / 2 - s->len - 1) {
        s->failed = true;
        return false;
    }
    size_t need = s->len + more + 1;
    if (need <= s->cap)
        return true;
    size_t cap = s->cap ? s->cap : 64;
    while (cap < need)
        cap *= 2;
    char *data = realloc(s->data, cap);
    if (!data) {
        s->failed = true;
        return false;
    }
    s->data = data;
    s->cap = cap;
    return true;
}

void im_str_append_n(im_str *s, const char *bytes, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = 0;
}

void im_str_append(im_str *s, const char *text)
{
    im_str_append_n(s, text, strlen(text));
}

void im_str_vprintf(im_str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0)
        s->failed = true;
    else if (reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void im_str_printf(im_str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    im_str_vprintf(s, fmt, ap);
    va_end(ap);
}

const char *im_str_text(const im_str *s)
{
    return s->data ? s->data : "";
}

void im_str_free(im_str *s)
{
    free(s->data);
    *s = (im_str){0};
}

/* Length of the valid UTF-8 character at p (0: none), and its code point. Table 3-7 of the Unicode standard. */
static size_t utf8_char(const unsigned char *p, size_t n, uint32_t *code)
{
    if (n == 0)
        return 0;
    if (p[0] < 0x80) {
        *code = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n)
        return 0;
    uint32_t c = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *code = c;
    return len;
}

void im_str_json_string(im_str *s, const char *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    im_str_append_n(s, "\"", 1);
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t len = utf8_char(p + i, n - i, &c);
        if (len == 0) {
            im_str_append(s, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (c == '"' || c == '\\')
            im_str_printf(s, "\\%c", (char)c);
        else if (c == '\n')
            im_str_append(s, "\\n");
        else if (c == '\t')
            im_str_append(s, "\\t");
        else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff)
            im_str_printf(s, "\\u%04x", (unsigned)c); /* also what YAML does not take as it is */
        else
            im_str_append_n(s, bytes + i, len);
        i += len;
    }
    im_str_append_n(s, "\"", 1);
}

const char *im_format_bytes(char *buf, size_t buflen, double nbytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t i = 0;
    double x = nbytes;
    while ((x >= 1024.0 || x <= -1024.0) && i + 1 < IM_COUNT_OF(unit)) {
        x /= 1024.0;
        i++;
    }
    if (i == 0)
        snprintf(buf, buflen, "%.0f B", x);
    else
        snprintf(buf, buflen, "%.*f %s", x < 10 ? 2 : x < 100 ? 1 : 0, x, unit[i]);
    return buf;
}

/* Optimal string alignment: a swap of two neighbours counts once. Longer names than the rows are cut; they are never near. */
size_t im_edit_distance(const char *a, const char *b)
{
    enum { MOST = 127 };
    size_t na = strnlen(a, MOST), nb = strnlen(b, MOST);
    size_t row[3][MOST + 1];
    size_t *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[nb];
}

const char *im_nearest_name(const char *name, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t d = im_edit_distance(name, names[i]);
        if (d < best_distance && d <= 1 + strlen(name) / 3) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}
