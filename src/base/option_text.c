/* What the option table looks like to a reader: --help, the man page, the shell completion. */
#include "base/option.h"

#include <stdio.h>
#include <string.h>

static const char *value_name(const im_option *row)
{
    if (row->type == IM_OPT_CHOICE)
        return row->choices;
    if (row->value)
        return row->value;
    switch (row->type) {
    case IM_OPT_INT: return "N";
    case IM_OPT_REAL: return "X";
    default: return "TEXT";
    }
}

/* "[default: 8; 1 to 64; may be repeated]" or nothing */
static void notes(const im_option *row, im_str *out)
{
    im_str s = {0};
    if (row->fallback && *row->fallback && !(row->type == IM_OPT_BOOL && strcmp(row->fallback, "false") == 0))
        im_str_printf(&s, "default: %s", row->fallback);
    if ((row->type == IM_OPT_INT || row->type == IM_OPT_REAL) && (row->min != 0 || row->max != 0)) {
        if (row->max >= 1e12)
            im_str_printf(&s, "%sat least %.15g", s.len ? "; " : "", row->min);
        else
            im_str_printf(&s, "%s%.15g to %.15g", s.len ? "; " : "", row->min, row->max);
    }
    if (row->type == IM_OPT_LIST)
        im_str_printf(&s, "%smay be repeated", s.len ? "; " : "");
    if (s.len)
        im_str_printf(out, " [%s]", s.data);
    im_str_free(&s);
}

/* A switch that is on by default is listed by the flag that turns it off. */
static void flag_text(const im_option *row, im_str *out)
{
    if (row->short_name)
        im_str_printf(out, "-%c, ", row->short_name);
    bool on = row->type == IM_OPT_BOOL && row->fallback && strcmp(row->fallback, "true") == 0;
    im_str_printf(out, "--%s%s", on ? "[no-]" : "", row->name);
    if (row->type != IM_OPT_BOOL)
        im_str_printf(out, " %s", value_name(row));
}

/* Wraps text behind `indent` columns; the cursor is already there. */
static void wrap(const char *text, int indent, int width, im_str *out)
{
    int column = indent;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (column > indent && column + 1 + (int)n > width) {
            im_str_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            im_str_append(out, " ");
            column++;
        }
        im_str_append_n(out, p, n);
        column += (int)n;
        p += n + strspn(p + n, " ");
    }
    im_str_append(out, "\n");
}

void im_option_help(const im_option *rows, size_t n, int width, im_str *out)
{
    enum { COLUMN = 30 };
    for (size_t i = 0; i < n; i++) {
        const im_option *row = &rows[i];
        if (row->hidden)
            continue;
        if (row->section)
            im_str_printf(out, "%s%s\n", out->len ? "\n" : "", row->section);
        im_str flag = {0}, text = {0};
        im_str_append(&flag, row->short_name ? "  " : "      ");
        flag_text(row, &flag);
        im_str_append(&text, row->help ? row->help : "");
        notes(row, &text);
        im_str_append(out, im_str_text(&flag));
        if (flag.len + 2 > COLUMN)
            im_str_printf(out, "\n%*s", COLUMN, "");
        else
            im_str_printf(out, "%*s", COLUMN - (int)flag.len, "");
        wrap(im_str_text(&text), COLUMN, width > COLUMN + 20 ? width : COLUMN + 20, out);
        im_str_free(&flag);
        im_str_free(&text);
    }
}

/* ---- man page ------------------------------------------------------------- */

static void roff(const char *text, im_str *out)
{
    for (const char *p = text; *p; p++) {
        if (*p == '-')
            im_str_append(out, "\\-");
        else if (*p == '\\')
            im_str_append(out, "\\e");
        else if ((*p == '.' || *p == '\'') && (p == text || p[-1] == '\n'))
            im_str_printf(out, "\\&%c", *p);
        else
            im_str_append_n(out, p, 1);
    }
}

void im_option_man(const im_option *rows, size_t n, im_str *out)
{
    for (size_t i = 0; i < n; i++) {
        const im_option *row = &rows[i];
        if (row->hidden)
            continue;
        if (row->section) {
            im_str_append(out, ".P\n\\fI");
            roff(row->section, out);
            im_str_append(out, "\\fR\n");
        }
        im_str_append(out, ".TP\n");
        if (row->short_name)
            im_str_printf(out, "\\fB\\-%c\\fR, ", row->short_name);
        bool on = row->type == IM_OPT_BOOL && row->fallback && strcmp(row->fallback, "true") == 0;
        im_str_append(out, on ? "\\fB\\-\\-[no\\-]" : "\\fB\\-\\-");
        roff(row->name, out);
        im_str_append(out, "\\fR");
        if (row->type != IM_OPT_BOOL) {
            im_str_append(out, " \\fI");
            roff(value_name(row), out);
            im_str_append(out, "\\fR");
        }
        im_str text = {0};
        im_str_append(&text, row->help ? row->help : "");
        notes(row, &text);
        im_str_append(out, "\n");
        roff(im_str_text(&text), out);
        im_str_append(out, "\n");
        im_str_free(&text);
    }
}

/* ---- bash completion ------------------------------------------------------ */

/* The inside of a function that knows $cur and $prev: first what may follow a flag, then the flags. */
void im_option_completion(const im_option *rows, size_t n, im_str *out)
{
    im_str_append(out, "case \"$prev\" in\n");
    for (size_t i = 0; i < n; i++) {
        const im_option *row = &rows[i];
        if (row->hidden || row->type == IM_OPT_BOOL)
            continue;
        im_str_printf(out, "--%s", row->name);
        if (row->short_name)
            im_str_printf(out, "|-%c", row->short_name);
        if (row->type == IM_OPT_CHOICE) {
            im_str_append(out, ") COMPREPLY=($(compgen -W \"");
            for (const char *p = row->choices; *p; p++)
                im_str_append_n(out, *p == '|' ? " " : p, 1);
            im_str_append(out, "\" -- \"$cur\")); return ;;\n");
        } else if (row->type == IM_OPT_INT || row->type == IM_OPT_REAL)
            im_str_append(out, ") return ;;\n");
        else
            im_str_printf(out, ") COMPREPLY=($(compgen %s -- \"$cur\")); return ;;\n", row->value && strcmp(row->value, "DIR") == 0 ? "-d" : "-f");
    }
    im_str_append(out, "esac\nCOMPREPLY=($(compgen -W \"");
    for (size_t i = 0; i < n; i++)
        if (!rows[i].hidden)
            im_str_printf(out, "--%s ", rows[i].name);
    im_str_append(out, "--help\" -- \"$cur\"))\n");
}
