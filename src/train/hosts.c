/* hosts: the file that says which machines a run may use, and how many ranks each takes. */
#include "train/hosts.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 1 << 20, MOST_SLOTS = 4096 };

static const char shapes[] = "HOST, HOST slots=N or HOST:N, N from 1 to 4096";

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i], letter = (char)(c | 32);
        if (!((letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_'))
            return false;
    }
    return n > 0 && n < 256 && text[0] != '-';
}

/* 1..MOST_SLOTS in n digits; 0: it is no such number. */
static int slots_of(const char *text, size_t n)
{
    int v = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || v > MOST_SLOTS)
            return 0;
        v = v * 10 + (text[i] - '0');
    }
    return v <= MOST_SLOTS ? v : 0;
}

/* One that is named again has more slots. */
static im_status add(im_context *ctx, im_arena *a, const char *name, size_t n, int slots, im_train_hosts *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (strlen(h->host[i].name) == n && !memcmp(h->host[i].name, name, n)) {
            h->host[i].slots += slots;
            h->slots += slots;
            return IM_OK;
        }
    if ((h->n & (h->n - 1)) == 0) { /* a power of two: full */
        im_train_host *more = IM_ARENA_NEW(a, im_train_host, h->n ? 2 * h->n : 1);
        if (!more)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for the list of hosts");
        if (h->n)
            memcpy(more, h->host, h->n * sizeof *more);
        h->host = more;
    }
    char *copy = im_arena_printf(a, "%.*s", (int)n, name);
    if (!copy)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the list of hosts");
    h->host[h->n++] = (im_train_host){.name = copy, .slots = slots};
    h->slots += slots;
    return IM_OK;
}

static im_status refuse(im_context *ctx, const char *file, int line, const char *text, size_t n)
{
    char shown[64];
    size_t k = 0;
    for (; k < n && k + 1 < sizeof shown; k++)
        shown[k] = text[k] >= ' ' && text[k] < 127 ? text[k] : '?';
    shown[k] = 0;
    return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: \"%s\" is none of %s", file, line, shown, shapes);
}

/* text[0..n): a line without its comment and without blanks at its ends. */
static im_status parse_line(im_context *ctx, im_arena *a, const char *file, int line, const char *text, size_t n, im_train_hosts *h)
{
    size_t name = 0;
    while (name < n && !is_blank(text[name]) && text[name] != ':')
        name++;
    size_t at = name;
    int slots = 1;
    if (at < n && text[at] == ':') {
        slots = slots_of(text + at + 1, n - at - 1);
    } else if (at < n) {
        while (at < n && is_blank(text[at]))
            at++;
        static const char key[] = "slots=";
        slots = n - at > strlen(key) && !memcmp(text + at, key, strlen(key)) ? slots_of(text + at + strlen(key), n - at - strlen(key)) : 0;
    }
    if (!is_name(text, name) || !slots || h->slots > 1 << 20)
        return refuse(ctx, file, line, text, n);
    return add(ctx, a, text, name, slots, h);
}

im_status im_train_hosts_parse(im_context *ctx, im_arena *a, const char *file, const char *text, size_t len, im_train_hosts *out)
{
    im_train_hosts h = {0};
    int line = 1;
    for (size_t at = 0; at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (text + at)) : len - at, next = at + n + 1;
        const char *comment = memchr(text + at, '#', n);
        const char *first = text + at;
        n = comment ? (size_t)(comment - first) : n;
        for (; n && is_blank(*first); n--)
            first++;
        while (n && is_blank(first[n - 1]))
            n--;
        if (n)
            IM_TRY(parse_line(ctx, a, file, line, first, n, &h));
        at = next;
    }
    if (!h.n)
        return im_fail(ctx, IM_ERR_FORMAT, "%s names no host; a line is %s", file, shapes);
    *out = h;
    return IM_OK;
}

im_status im_train_hosts_read(im_context *ctx, im_arena *a, const char *path, im_train_hosts *out)
{
    char *text;
    size_t len;
    IM_TRY(im_file_read(ctx, path, FILE_BYTES, &text, &len));
    im_status status = im_train_hosts_parse(ctx, a, path, text, len, out);
    free(text);
    return status;
}
