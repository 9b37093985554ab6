/* Families and samples, and the text that they make. */
#include "observe/prometheus.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024

typedef struct sample {
    struct sample *next;
    const char *labels; /* "{a=\"b\"}", or "" */
    const char *value;
    size_t order;
} sample;

struct im_prom_family {
    im_prom_family *next, *beside; /* beside: in its bucket */
    const char *name, *help;
    im_prom_kind kind;
    sample *first, *last;
    size_t n;
};

struct im_prom {
    im_arena *arena;
    im_prom_family *first, *last;
    im_prom_family *bucket[BUCKETS]; /* by the hash of the name: a file may hold many names */
    size_t samples;
    bool failed; /* no memory */
};

im_status im_prom_create(im_context *ctx, im_arena *a, im_prom **out)
{
    im_prom *p = IM_ARENA_NEW(a, im_prom, 1);
    if (!p)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for metrics");
    p->arena = a;
    *out = p;
    return IM_OK;
}

im_prom_family *im_prom_find(im_prom *p, const char *name, im_prom_kind kind, const char *help)
{
    im_prom_family **bucket = &p->bucket[im_hash64(name, strlen(name), 0) % BUCKETS];
    for (im_prom_family *f = *bucket; f; f = f->beside)
        if (strcmp(f->name, name) == 0)
            return f;
    im_prom_family *f = IM_ARENA_NEW(p->arena, im_prom_family, 1);
    char *own = im_arena_strdup(p->arena, name);
    if (!f || !own) {
        p->failed = true;
        return NULL;
    }
    *f = (im_prom_family){.name = own, .kind = kind, .help = help, .beside = *bucket};
    *bucket = f;
    if (p->last)
        p->last->next = f;
    else
        p->first = f;
    p->last = f;
    return f;
}

/* Length of the UTF-8 character at p; 0: it is none. */
static size_t utf8_length(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

/* Help texts escape backslash and newline; label values the quote too. What is not UTF-8 becomes U+FFFD: a reader would refuse all. */
static void escaped(im_str *out, const char *text, bool quote)
{
    while (*text) {
        const size_t n = utf8_length(text);
        if (*text == '\\')
            im_str_append(out, "\\\\");
        else if (*text == '\n')
            im_str_append(out, "\\n");
        else if (*text == '"' && quote)
            im_str_append(out, "\\\"");
        else if (n)
            im_str_append_n(out, text, n);
        else
            im_str_append(out, "\xef\xbf\xbd");
        text += n ? n : 1;
    }
}

static void add(im_prom *p, im_prom_family *f, const im_prom_label *label, size_t nlabels, const char *value)
{
    im_str labels = {0};
    bool some = false;
    for (size_t i = 0; i < nlabels; i++)
        if (label[i].value) {
            im_str_append(&labels, some ? "," : "{");
            im_str_printf(&labels, "%s=\"", label[i].name);
            escaped(&labels, label[i].value, true);
            im_str_append(&labels, "\"");
            some = true;
        }
    if (some)
        im_str_append(&labels, "}");
    sample *s = IM_ARENA_NEW(p->arena, sample, 1);
    char *own = im_arena_strdup(p->arena, im_str_text(&labels)), *text = im_arena_strdup(p->arena, value);
    if (s && own && text && !labels.failed) {
        *s = (sample){.labels = own, .value = text, .order = p->samples++};
        if (f->last)
            f->last->next = s;
        else
            f->first = s;
        f->last = s;
        f->n++;
    } else {
        p->failed = true;
    }
    im_str_free(&labels);
}

void im_prom_add(im_prom *p, im_prom_family *f, const im_prom_label *label, size_t nlabels, double value)
{
    im_str text = {0};
    if (!f || !isfinite(value))
        return;
    im_str_printf(&text, "%.15g", value);
    if (strtod(im_str_text(&text), NULL) != value) {
        text.len = 0;
        im_str_printf(&text, "%.17g", value);
    }
    p->failed = p->failed || text.failed;
    add(p, f, label, nlabels, im_str_text(&text));
    im_str_free(&text);
}

void im_prom_add_count(im_prom *p, im_prom_family *f, const im_prom_label *label, size_t nlabels, uint64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    if (!f)
        return;
    *--at = '\0';
    do
        *--at = (char)('0' + value % 10);
    while (value /= 10);
    add(p, f, label, nlabels, at);
}

size_t im_prom_samples(const im_prom *p)
{
    return p->samples;
}

static int by_labels(const void *a, const void *b)
{
    const sample *const *x = a, *const *y = b;
    const int c = strcmp((*x)->labels, (*y)->labels);
    return c ? c : ((*x)->order > (*y)->order) - ((*x)->order < (*y)->order);
}

static im_status write_family(im_context *ctx, const im_prom_family *f, im_str *out)
{
    static const char *const kinds[] = {[IM_PROM_GAUGE] = "gauge", [IM_PROM_COUNTER] = "counter", [IM_PROM_UNTYPED] = "untyped"};
    sample **all;
    size_t n = 0;
    if (!f->n)
        return IM_OK;
    IM_TRY(im_alloc(ctx, f->n, sizeof *all, (void **)&all));
    for (sample *s = f->first; s; s = s->next)
        all[n++] = s;
    qsort(all, n, sizeof *all, by_labels);
    im_str_printf(out, "# HELP %s ", f->name);
    escaped(out, f->help, false);
    im_str_printf(out, "\n# TYPE %s %s\n", f->name, kinds[f->kind]);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(all[i]->labels, all[i - 1]->labels) != 0)
            im_str_printf(out, "%s%s %s\n", f->name, all[i]->labels, all[i]->value);
    free(all);
    return IM_OK;
}

im_status im_prom_write(im_context *ctx, const im_prom *p, im_str *out)
{
    for (const im_prom_family *f = p->first; f; f = f->next)
        IM_TRY(write_family(ctx, f, out));
    if (p->failed || out->failed)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the metrics");
    return IM_OK;
}

bool im_prom_is_name(const char *text, size_t n, bool label)
{
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c == ':' && !label);
        if (!letter && !(i && c >= '0' && c <= '9'))
            return false;
    }
    return n > 0;
}
