/* Lines of Prometheus text, as other programs write them. Any bytes may come. */
#include "observe/prometheus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LABELS 64

typedef struct cursor {
    const char *at, *end;
    im_arena *arena;
    const char *why;
} cursor;

static void blanks(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
        c->at++;
}

static bool fail(cursor *c, const char *why)
{
    c->why = why;
    return false;
}

static char *copy(cursor *c, const char *from, size_t n)
{
    char *text = IM_ARENA_NEW(c->arena, char, n + 1);
    if (text)
        memcpy(text, from, n);
    else
        c->why = "no memory";
    return text;
}

/* A name; in `out`. */
static bool name(cursor *c, bool label, const char **out)
{
    const char *from = c->at;
    while (c->at < c->end && !strchr(" \t{}=,\"", *c->at) && *c->at)
        c->at++;
    if (!im_prom_is_name(from, (size_t)(c->at - from), label))
        return fail(c, label ? "a label's name is expected" : "a metric's name is expected");
    *out = copy(c, from, (size_t)(c->at - from));
    return *out != NULL;
}

/* "..." with \\ \" \n */
static bool quoted(cursor *c, const char **out)
{
    if (c->at == c->end || *c->at != '"')
        return fail(c, "a label's value stands in quotes");
    c->at++;
    char *text = copy(c, c->at, (size_t)(c->end - c->at)), *to = text;
    if (!text)
        return false;
    while (c->at < c->end && *c->at != '"') {
        char ch = *c->at++;
        if (ch == '\0')
            return fail(c, "a byte 0");
        if (ch == '\\') {
            if (c->at == c->end || !strchr("\\\"n", *c->at) || !*c->at)
                return fail(c, "a backslash stands before \\, \" or n");
            ch = *c->at == 'n' ? '\n' : *c->at;
            c->at++;
        }
        *to++ = ch;
    }
    if (c->at == c->end)
        return fail(c, "a label's value does not end");
    c->at++;
    *to = '\0';
    *out = text;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const im_prom_label *)a)->name, ((const im_prom_label *)b)->name);
}

static bool labels(cursor *c, im_prom_line *out)
{
    im_prom_label list[MAX_LABELS];
    size_t n = 0;
    c->at++;
    for (blanks(c); c->at < c->end && *c->at != '}'; blanks(c)) {
        if (n == MAX_LABELS)
            return fail(c, "more than 64 labels");
        if (!name(c, true, &list[n].name))
            return false;
        blanks(c);
        if (c->at == c->end || *c->at++ != '=')
            return fail(c, "= is expected behind a label's name");
        blanks(c);
        if (!quoted(c, &list[n].value))
            return false;
        n++;
        blanks(c);
        if (c->at < c->end && *c->at == ',')
            c->at++;
        else if (c->at == c->end || *c->at != '}')
            return fail(c, "labels are parted by commas and end with }");
    }
    if (c->at == c->end)
        return fail(c, "labels do not end");
    c->at++;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(list[i].name, list[i - 1].name) == 0)
            return fail(c, "a label stands twice");
    out->label = IM_ARENA_NEW(c->arena, im_prom_label, n + 1);
    if (!out->label)
        return fail(c, "no memory");
    memcpy(out->label, list, n * sizeof *list);
    out->nlabels = n;
    return true;
}

static bool number(cursor *c, double *out)
{
    char text[64], *end;
    size_t n = 0;
    for (blanks(c); c->at < c->end && *c->at != ' ' && *c->at != '\t' && *c->at != '\r' && n + 1 < sizeof text; c->at++)
        text[n++] = *c->at;
    text[n] = '\0';
    *out = strtod(text, &end);
    return n && end == text + n ? true : fail(c, "a number is expected");
}

int im_prom_parse_line(im_arena *a, const char *line, size_t n, im_prom_line *out, const char **why)
{
    cursor c = {.at = line, .end = line + n, .arena = a};
    double stamp;
    *out = (im_prom_line){0};
    blanks(&c);
    if (c.at < c.end && *c.at == '\r')
        c.at++;
    if (c.at == c.end || *c.at == '#')
        return 0;
    bool good = name(&c, false, &out->name);
    if (good) {
        blanks(&c);
        good = (c.at == c.end || *c.at != '{') || labels(&c, out);
    }
    good = good && number(&c, &out->value);
    if (good) {
        blanks(&c);
        if (c.at < c.end && *c.at != '\r')
            good = number(&c, &stamp);
        blanks(&c);
        if (good && c.at < c.end && *c.at == '\r')
            c.at++;
        if (good && c.at != c.end)
            good = fail(&c, "something stands behind the value");
    }
    *why = c.why;
    return good ? 1 : -1;
}
