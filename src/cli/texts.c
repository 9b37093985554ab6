#include "cli/texts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_BLOCK = 8 << 20 };

static im_status room(im_cli_texts *t, void **array, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return IM_OK;
    size_t more = *cap ? 2 * *cap : 256;
    void *p = realloc(*array, more * size);
    if (!p)
        return im_fail(t->ctx, IM_ERR_NOMEM, "no memory for %zu texts", more);
    *array = p;
    *cap = more;
    return IM_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static const char *name(const im_cli_texts *t)
{
    return strcmp(t->path[t->at], "-") ? t->path[t->at] : "standard input";
}

static im_status end_file(im_cli_texts *t)
{
    if (t->fd != STDIN_FILENO)
        close(t->fd);
    t->opened = false;
    t->at++;
    IM_TRY(room(t, (void **)&t->end, &t->end_cap, t->nend, sizeof *t->end));
    t->end[t->nend++] = t->n;
    return IM_OK;
}

/* Until the buffer is full, or there is nothing more. */
static im_status fill(im_cli_texts *t)
{
    while (t->n < t->cap && t->at < t->npath) {
        if (!t->opened) {
            bool standard = !strcmp(t->path[t->at], "-");
            t->fd = standard ? STDIN_FILENO : open(t->path[t->at], O_RDONLY | O_CLOEXEC);
            if (t->fd < 0)
                return im_fail_errno(t->ctx, "%s", t->path[t->at]);
            t->opened = true;
        }
        ssize_t k = read(t->fd, t->buf + t->n, t->cap - t->n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return im_fail_errno(t->ctx, "%s", name(t));
        t->n += (size_t)k;
        t->bytes += k;
        if (!k)
            IM_TRY(end_file(t));
    }
    return IM_OK;
}

/* What the caller is done with goes; a buffer that was no use is doubled. */
static im_status make_room(im_cli_texts *t)
{
    size_t done = t->begin + (t->pending ? t->used : 0);
    bool stuck = t->pending && !t->used && t->begin == 0;
    if (!t->buf) {
        t->cap = FIRST_BLOCK;
        t->buf = malloc(t->cap);
    } else if (stuck) {
        char *more = realloc(t->buf, 2 * t->cap);
        if (!more)
            return im_fail(t->ctx, IM_ERR_NOMEM, "no memory for a text of more than %zu bytes that cannot be cut", t->cap);
        t->buf = more;
        t->cap *= 2;
    }
    if (!t->buf)
        return im_fail(t->ctx, IM_ERR_NOMEM, "no memory for %zu bytes of text", t->cap);
    if (t->pending)
        t->inside = t->inside || t->used > 0;
    if (done)
        memmove(t->buf, t->buf + done, t->n - done);
    t->n -= done;
    for (size_t i = 0; i < t->nend; i++)
        t->end[i] -= done;
    t->begin = 0;
    t->pending = false;
    return IM_OK;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static im_status give(im_cli_texts *t, size_t from, size_t to, bool ends)
{
    IM_TRY(room(t, (void **)&t->text, &t->text_cap, t->ntext, sizeof *t->text));
    t->text[t->ntext++] = (im_cli_text){t->buf + from, to - from, !t->inside, ends};
    t->inside = t->inside && !ends;
    return IM_OK;
}

/* The end of a text that begins (or goes on) at `from`, before `stop`, where its file ends (whole) or the buffer does; *next: where the next one
 * begins. false: its end is not known yet. */
static bool find_end(const im_cli_texts *t, size_t from, size_t stop, bool whole, size_t *end, size_t *next)
{
    const char *b = t->buf;
    size_t k = t->split == IM_CLI_SPLIT_SEPARATOR ? strlen(t->separator) : 0;
    *end = *next = stop;
    for (size_t line = from; t->split != IM_CLI_SPLIT_FILE && line < stop;) {
        const char *newline = memchr(b + line, '\n', stop - line);
        size_t behind = newline ? (size_t)(newline - b) + 1 : stop, n = behind - line - (newline != NULL);
        if (t->split == IM_CLI_SPLIT_LINES && newline) {
            *end = t->with_newline ? behind : behind - 1;
            *next = behind;
            return true;
        }
        bool is = k && (newline || whole) && (n == k || (n == k + 1 && b[line + k] == '\r')) && !memcmp(b + line, t->separator, k);
        if (is) {
            *end = line;
            *next = behind;
            return true;
        }
        line = behind;
    }
    return whole;
}

/* Of a text without an end: up to a last line that may become the separator. */
static size_t open_end(const im_cli_texts *t, size_t from)
{
    if (t->split != IM_CLI_SPLIT_SEPARATOR)
        return t->n;
    const char *newline = memrchr(t->buf + from, '\n', t->n - from);
    size_t line = newline ? (size_t)(newline - t->buf) + 1 : from;
    return t->n - line <= strlen(t->separator) + 1 ? line : t->n;
}

im_status im_cli_texts_next(im_cli_texts *t, bool *more)
{
    size_t file = 0;
    IM_TRY(make_room(t));
    IM_TRY(fill(t));
    t->ntext = 0;
    while (file < t->nend || t->begin < t->n) {
        bool whole = file < t->nend;
        size_t stop = whole ? t->end[file] : t->n, end, next;
        bool empty = t->begin == stop && (t->split != IM_CLI_SPLIT_FILE || t->inside);
        if (whole && t->begin == stop) {
            if (!empty || t->inside)
                IM_TRY(give(t, stop, stop, true));
            file++;
            continue;
        }
        if (!find_end(t, t->begin, stop, whole, &end, &next))
            break;
        if (end > t->begin || t->inside || t->split == IM_CLI_SPLIT_LINES)
            IM_TRY(give(t, t->begin, end, true));
        t->begin = next;
        if (whole && next == stop)
            file++;
    }
    if (file)
        memmove(t->end, t->end + file, (t->nend - file) * sizeof *t->end);
    t->nend -= file;
    if (!t->ntext && t->begin < t->n) {
        t->pending = true;
        t->used = 0;
        IM_TRY(give(t, t->begin, open_end(t, t->begin), false));
    }
    *more = t->ntext > 0 || t->at < t->npath;
    return IM_OK;
}

void im_cli_texts_close(im_cli_texts *t)
{
    if (t->opened && t->fd != STDIN_FILENO)
        close(t->fd);
    free(t->buf);
    free(t->text);
    free(t->end);
    *t = (im_cli_texts){0};
}
