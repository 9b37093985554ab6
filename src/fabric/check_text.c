/* A report as text: what is wrong first, each with why and what to type; then what is not known; then what is well. */
#include "fabric/check.h"

#include <stdio.h>
#include <string.h>

typedef struct printer {
    im_str *out;
    im_paint paint;
    int width;
    bool all;
} printer;

/* Words of text, wrapped; the first line begins at column `at` already. */
static void wrap(const printer *p, const char *text, int at, int indent)
{
    int column = at;
    bool glue = true; /* nothing stands before the next word of its line */
    for (const char *w = text; w && *w;) {
        w += strspn(w, " ");
        const int n = (int)strcspn(w, " \n");
        if (!glue && column + 1 + n > p->width) {
            im_str_printf(p->out, "\n%*s", indent, "");
            column = indent;
        } else if (!glue) {
            im_str_append(p->out, " ");
            column++;
        }
        im_str_append_n(p->out, w, (size_t)n);
        column += n;
        w += n;
        glue = false;
        if (*w == '\n') {
            im_str_printf(p->out, "\n%*s", indent, "");
            column = indent;
            glue = true;
            w++;
        }
    }
    im_str_append(p->out, "\n");
}

/* A command is not wrapped: it is to be copied. Each line under the first. */
static void command(const printer *p, const char *mend)
{
    const char *head = "type: ";
    for (const char *line = mend; line && *line;) {
        const size_t n = strcspn(line, "\n");
        im_str_printf(p->out, "      %s%s%.*s%s\n", head, p->paint.bold, (int)n, line, p->paint.off);
        head = "      ";
        line = line[n] ? line + n + 1 : NULL;
    }
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static void print_items(const printer *p, const im_check_result *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const im_check_item *x = &r->item[i];
        im_str_printf(p->out, "    - ");
        char head[96] = "";
        if (x->where)
            snprintf(head, sizeof head, "%s: ", x->where);
        im_str_append(p->out, head);
        if (x->verdict == IM_VERDICT_UNKNOWN && r->verdict != IM_VERDICT_UNKNOWN)
            im_str_append(p->out, "(not known) ");
        wrap(p, x->says, 6 + (int)strlen(head), 6);
        if (x->path || x->value)
            im_str_printf(p->out, "      %sseen: %s%s%s%s\n", p->paint.faint, x->path ? x->path : "", x->path && x->value ? " = " : "",
                          x->value ? x->value : "", p->paint.off);
        if (x->mend && !(i + 1 < r->n && same(x->mend, r->item[i + 1].mend))) /* once for items of one cure */
            command(p, x->mend);
    }
}

static const char *colour_of(const printer *p, im_verdict v)
{
    return v == IM_VERDICT_FAIL ? p->paint.bad : v == IM_VERDICT_WARN ? p->paint.warn : v == IM_VERDICT_OK ? p->paint.good : p->paint.faint;
}

static void print_result(const printer *p, const im_check_result *r)
{
    static const char *const head[] = {"ok", "????", "WARN", "FAIL"};
    im_str_printf(p->out, "%s%s%s  %s%s%s [%s]\n", colour_of(p, r->verdict), head[r->verdict], p->paint.off, p->paint.bold, r->row->title,
                  p->paint.off, r->row->id);
    if (r->verdict >= IM_VERDICT_WARN) {
        im_str_printf(p->out, "    why: ");
        wrap(p, r->row->why, 9, 9);
    }
    print_items(p, r);
}

static size_t count(const im_check_part *part, im_verdict v)
{
    size_t n = 0;
    for (size_t i = 0; i < part->n; i++)
        n += part->result[i].verdict == v;
    return n;
}

/* "ok: a (note), b, c" in lines. */
static void print_ok(const printer *p, const im_check_part *part)
{
    im_str s = {0};
    if (!count(part, IM_VERDICT_OK))
        return;
    if (p->all) {
        for (size_t i = 0; i < part->n; i++)
            if (part->result[i].verdict == IM_VERDICT_OK)
                im_str_printf(p->out, "%sok%s    %s [%s]%s%s\n", p->paint.good, p->paint.off, part->result[i].row->title, part->result[i].row->id,
                              part->result[i].note ? ": " : "", part->result[i].note ? part->result[i].note : "");
        return;
    }
    for (size_t i = 0; i < part->n; i++)
        if (part->result[i].verdict == IM_VERDICT_OK)
            im_str_printf(&s, "%s%s", s.len ? ", " : "", part->result[i].row->id);
    im_str_printf(p->out, "%sok%s    ", p->paint.good, p->paint.off);
    wrap(p, im_str_text(&s), 6, 6);
    im_str_free(&s);
}

static void print_part(const printer *p, const im_check_part *part)
{
    im_str_printf(p->out, "%s%s%s", p->paint.bold, part->name, p->paint.off);
    if (part->source && strcmp(part->source, part->name) != 0)
        im_str_printf(p->out, " (%s)", strcmp(part->source, "/") == 0 ? "this machine" : part->source);
    im_str_printf(p->out, ": %zu fail, %zu warn, %zu not known, %zu ok\n\n", count(part, IM_VERDICT_FAIL), count(part, IM_VERDICT_WARN),
                  count(part, IM_VERDICT_UNKNOWN), count(part, IM_VERDICT_OK));
    for (int v = IM_VERDICT_FAIL; v > IM_VERDICT_OK; v--)
        for (size_t i = 0; i < part->n; i++)
            if ((int)part->result[i].verdict == v) {
                print_result(p, &part->result[i]);
                im_str_append(p->out, "\n");
            }
    print_ok(p, part);
}

/* With several hosts: what is wrong where, in a table, before the pages. */
static void print_summary(const printer *p, const im_check_report *report)
{
    size_t most = 4;
    for (size_t i = 0; i < report->n; i++)
        if (strlen(report->part[i].name) > most && strlen(report->part[i].name) < 40)
            most = strlen(report->part[i].name);
    for (size_t i = 0; i < report->n; i++) {
        im_str s = {0};
        const im_check_part *part = &report->part[i];
        for (int v = IM_VERDICT_FAIL; v >= IM_VERDICT_WARN; v--)
            for (size_t k = 0; k < part->n; k++)
                if ((int)part->result[k].verdict == v)
                    im_str_printf(&s, "%s%s%s", s.len ? ", " : "", v == IM_VERDICT_FAIL ? "FAIL " : "", part->result[k].row->id);
        im_str_printf(p->out, "%-*s  ", (int)most, part->name);
        wrap(p, s.len ? im_str_text(&s) : "nothing wrong found", (int)most + 2, (int)most + 2);
        im_str_free(&s);
    }
    im_str_append(p->out, "\n");
}

void im_check_text(const im_check_report *report, const im_look *look, bool all, im_str *out)
{
    const printer p = {.out = out,
                       .paint = im_paint_of(look),
                       .width = look->columns < 60    ? 60
                                : look->columns > 120 ? 120
                                                      : look->columns,
                       .all = all};
    if (report->n > 1)
        print_summary(&p, report);
    for (size_t i = 0; i < report->n; i++) {
        if (i)
            im_str_append(out, "\n");
        print_part(&p, &report->part[i]);
    }
}
