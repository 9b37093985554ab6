/* Options: values from the command line and from YAML into a struct, by one table. */
#include "base/option.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 512 }; /* of one command; a larger table is a mistake */

/* Where a value came from, for messages: "--lr" or "run.yaml: line 3: lr". */
typedef struct origin {
    im_context *ctx;
    im_arena *arena;
    const char *where;
} origin;

static im_status bad_value(const origin *o, const char *text, const char *wanted)
{
    return im_fail(o->ctx, IM_ERR_ARG, "%s: \"%.200s\" is not %s", o->where, text, wanted);
}

/* "an integer from 1 to 8" */
static const char *range_text(const im_option *row, char *buf, size_t size)
{
    const char *kind = row->type == IM_OPT_INT ? "an integer" : "a number";
    if (row->min == 0 && row->max == 0)
        snprintf(buf, size, "%s", kind);
    else if (row->max >= 1e12)
        snprintf(buf, size, "%s of at least %.15g", kind, row->min);
    else
        snprintf(buf, size, "%s from %.15g to %.15g", kind, row->min, row->max);
    return buf;
}

static bool in_range(const im_option *row, double x)
{
    return (row->min == 0 && row->max == 0) || (x >= row->min && x <= row->max);
}

static im_status set_bool(const origin *o, const char *text, void *at)
{
    static const char *const yes[] = {"true", "yes", "on", "1", "True", "TRUE"};
    static const char *const no[] = {"false", "no", "off", "0", "False", "FALSE"};
    for (size_t i = 0; i < IM_COUNT_OF(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *(bool *)at = strcmp(text, yes[i]) == 0;
            return IM_OK;
        }
    }
    return bad_value(o, text, "true or false");
}

/* 0: none; -1: no such suffix */
static int64_t suffix_factor(const char *s)
{
    static const struct {
        const char *name;
        int64_t factor;
    } table[] = {
        {"", 1}, {"k", 1000}, {"M", 1000000}, {"G", 1000000000}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
    };
    for (size_t i = 0; i < IM_COUNT_OF(table); i++)
        if (strcmp(s, table[i].name) == 0)
            return table[i].factor;
    return -1;
}

static im_status set_int(const origin *o, const im_option *row, const char *text, void *at)
{
    char wanted[128];
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    int64_t factor = end == text ? -1 : suffix_factor(end), value;
    if (errno == 0 && end != text && factor < 0) { /* 1.5M, 2e9: fine when whole */
        double real = strtod(text, &end);
        factor = suffix_factor(end);
        real *= (double)factor;
        if (factor > 0 && real == floor(real) && fabs(real) < 0x1p53) {
            x = (long long)real;
            factor = 1;
        } else
            factor = -1;
    }
    if (errno || factor < 0 || __builtin_mul_overflow((int64_t)x, factor, &value) || !in_range(row, (double)value))
        return bad_value(o, text, range_text(row, wanted, sizeof wanted));
    *(int64_t *)at = value;
    return IM_OK;
}

static im_status set_real(const origin *o, const im_option *row, const char *text, void *at)
{
    char wanted[128];
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x) || !in_range(row, x))
        return bad_value(o, text, range_text(row, wanted, sizeof wanted));
    *(double *)at = x;
    return IM_OK;
}

static im_status set_choice(const origin *o, const im_option *row, const char *text, void *at)
{
    size_t n = strlen(text);
    int index = 0;
    for (const char *p = row->choices; p; index++) {
        const char *end = strchr(p, '|');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (len == n && memcmp(p, text, n) == 0) {
            *(int *)at = index;
            return IM_OK;
        }
        p = end ? end + 1 : NULL;
    }
    im_str wanted = {0};
    im_str_append(&wanted, "one of ");
    for (const char *p = row->choices; *p; p++)
        im_str_append_n(&wanted, *p == '|' ? ", " : p, *p == '|' ? 2 : 1);
    im_status status = bad_value(o, text, im_str_text(&wanted));
    im_str_free(&wanted);
    return status;
}

static im_status list_add(const origin *o, im_option_list *list, const char *text)
{
    const char **item = IM_ARENA_NEW(o->arena, const char *, list->n + 1);
    char *copy = im_arena_strdup(o->arena, text);
    if (!item || !copy)
        return IM_ERR_NOMEM;
    if (list->n)
        memcpy(item, list->item, list->n * sizeof *item);
    item[list->n] = copy;
    list->item = item;
    list->n++;
    return IM_OK;
}

/* Sets one row from text; a list gets one more item. */
static im_status set_value(const origin *o, const im_option *row, const char *text, void *into)
{
    void *at = (char *)into + row->offset;
    switch (row->type) {
    case IM_OPT_BOOL: return set_bool(o, text, at);
    case IM_OPT_INT: return set_int(o, row, text, at);
    case IM_OPT_REAL: return set_real(o, row, text, at);
    case IM_OPT_CHOICE: return set_choice(o, row, text, at);
    case IM_OPT_LIST: return list_add(o, at, text);
    case IM_OPT_STRING: {
        char *copy = im_arena_strdup(o->arena, text);
        if (!copy)
            return IM_ERR_NOMEM;
        *(const char **)at = copy;
        return IM_OK;
    }
    }
    return im_fail(o->ctx, IM_ERR_INTERNAL, "%s: no such option type", o->where);
}

im_status im_option_defaults(im_context *ctx, const im_option *rows, size_t n, im_arena *a, void *into)
{
    for (size_t i = 0; i < n; i++) {
        void *at = (char *)into + rows[i].offset;
        switch (rows[i].type) {
        case IM_OPT_BOOL: *(bool *)at = false; break;
        case IM_OPT_INT: *(int64_t *)at = 0; break;
        case IM_OPT_REAL: *(double *)at = 0; break;
        case IM_OPT_CHOICE: *(int *)at = 0; break;
        case IM_OPT_STRING: *(const char **)at = NULL; break;
        case IM_OPT_LIST: *(im_option_list *)at = (im_option_list){0}; break;
        }
        origin o = {ctx, a, rows[i].name};
        im_option free_row = rows[i]; /* a default may stand outside the range: "not given" */
        free_row.min = free_row.max = 0;
        if (rows[i].fallback)
            IM_TRY(set_value(&o, &free_row, rows[i].fallback, into));
    }
    return IM_OK;
}

/* ---- command line --------------------------------------------------------- */

typedef struct parser {
    im_context *ctx;
    const im_option *rows;
    size_t n;
    im_arena *arena;
    void *into;
    bool seen[MOST_ROWS]; /* on this command line: a list's first item replaces what was there */
} parser;

static im_status unknown(const parser *p, const char *flag, size_t len)
{
    const char *names[MOST_ROWS];
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (!p->rows[i].hidden)
            names[n++] = p->rows[i].name;
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), flag);
    for (char *c = name; *c; c++)
        if (*c == '_')
            *c = '-';
    const char *near = im_nearest_name(name, names, n);
    if (near)
        return im_fail(p->ctx, IM_ERR_ARG, "unknown option --%s; did you mean --%s?", name, near);
    return im_fail(p->ctx, IM_ERR_ARG, "unknown option --%s; --help lists them", name);
}

static size_t find_long(const parser *p, const char *flag, size_t len)
{
    for (size_t i = 0; i < p->n; i++)
        if (strlen(p->rows[i].name) == len && memcmp(p->rows[i].name, flag, len) == 0)
            return i;
    return p->n;
}

static im_status take(parser *p, size_t i, const char *text, bool *given)
{
    const im_option *row = &p->rows[i];
    char where[128];
    snprintf(where, sizeof where, "--%s", row->name);
    origin o = {p->ctx, p->arena, where};
    if (row->type == IM_OPT_LIST && !p->seen[i])
        *(im_option_list *)((char *)p->into + row->offset) = (im_option_list){0};
    IM_TRY(set_value(&o, row, text, p->into));
    p->seen[i] = true;
    if (given)
        given[i] = true;
    return IM_OK;
}

/* Row i stands at argv[*at] without a value of its own: it is the next argument. */
static im_status take_next(parser *p, size_t i, int argc, char *const *argv, int *at, bool *given)
{
    if (p->rows[i].type == IM_OPT_BOOL)
        return take(p, i, "true", given);
    const char *value = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (!value || (value[0] == '-' && value[1] == '-'))
        return im_fail(p->ctx, IM_ERR_ARG, "--%s needs a value%s%s", p->rows[i].name,
                       value ? "; write --NAME=VALUE when it begins with --, not " : "", value ? value : "");
    (*at)++;
    return take(p, i, value, given);
}

static im_status take_long(parser *p, int argc, char *const *argv, int *at, bool *given)
{
    const char *flag = argv[*at] + 2, *equals = strchr(flag, '=');
    size_t len = equals ? (size_t)(equals - flag) : strlen(flag), i = find_long(p, flag, len);
    if (i < p->n)
        return equals ? take(p, i, equals + 1, given) : take_next(p, i, argc, argv, at, given);
    if (len > 3 && memcmp(flag, "no-", 3) == 0 && !equals) {
        i = find_long(p, flag + 3, len - 3);
        if (i < p->n && p->rows[i].type == IM_OPT_BOOL)
            return take(p, i, "false", given);
    }
    return unknown(p, flag, len);
}

static im_status take_short(parser *p, int argc, char *const *argv, int *at, bool *given)
{
    const char *flag = argv[*at];
    for (size_t i = 0; i < p->n; i++) {
        if (!p->rows[i].short_name || p->rows[i].short_name != flag[1])
            continue;
        if (flag[2] == 0)
            return take_next(p, i, argc, argv, at, given);
        if (p->rows[i].type != IM_OPT_BOOL)
            return take(p, i, flag + 2 + (flag[2] == '='), given);
    }
    return im_fail(p->ctx, IM_ERR_ARG, "unknown option %.100s; --help lists them", flag);
}

im_status im_option_parse(im_context *ctx, const im_option *rows, size_t n, im_arena *a, int argc, char *const *argv, void *into, bool *given,
                          im_option_list *rest)
{
    if (n > MOST_ROWS)
        return im_fail(ctx, IM_ERR_INTERNAL, "%zu options in one table", n);
    parser p = {.ctx = ctx, .rows = rows, .n = n, .arena = a, .into = into};
    origin o = {ctx, a, ""};
    im_option_list words = {0};
    bool ended = false;
    for (int at = 0; at < argc; at++) {
        const char *word = argv[at];
        if (ended || word[0] != '-' || word[1] == 0) {
            if (!rest)
                return im_fail(ctx, IM_ERR_ARG, "\"%.200s\" is not expected here: only options are", word);
            IM_TRY(list_add(&o, &words, word));
        } else if (strcmp(word, "--") == 0)
            ended = true;
        else if (word[1] == '-')
            IM_TRY(take_long(&p, argc, argv, &at, given));
        else
            IM_TRY(take_short(&p, argc, argv, &at, given));
    }
    if (rest)
        *rest = words;
    return IM_OK;
}

/* ---- YAML ----------------------------------------------------------------- */

static void yaml_key(const char *name, char *key, size_t size)
{
    snprintf(key, size, "%s", name);
    for (char *c = key; *c; c++)
        if (*c == '-')
            *c = '_';
}

static im_status unknown_key(im_context *ctx, const im_option *rows, size_t n, const char *where, const char *word)
{
    char key[MOST_ROWS][64];
    const char *names[MOST_ROWS];
    for (size_t i = 0; i < n; i++) {
        yaml_key(rows[i].name, key[i], sizeof key[i]);
        names[i] = key[i];
    }
    const char *near = im_nearest_name(word, names, n);
    if (near)
        return im_fail(ctx, IM_ERR_ARG, "%s: unknown key; did you mean %s?", where, near);
    return im_fail(ctx, IM_ERR_ARG, "%s: unknown key", where);
}

/* A value that is no scalar where one is needed, or the other way round, is refused here. */
static im_status from_value(const origin *o, const im_option *row, const im_json_value *v, void *into)
{
    void *at = (char *)into + row->offset;
    char buf[64];
    im_json_type type = im_json_type_of(v);
    if (row->type == IM_OPT_LIST) {
        im_option_list list = {0};
        if (type != IM_JSON_ARRAY && type != IM_JSON_NULL)
            return im_fail(o->ctx, IM_ERR_ARG, "%s: a list is needed: [a, b]", o->where);
        for (size_t i = 0; i < im_json_length(v); i++) {
            const im_json_value *item = im_json_at(v, i);
            if (im_json_type_of(item) == IM_JSON_ARRAY || im_json_type_of(item) == IM_JSON_OBJECT)
                return im_fail(o->ctx, IM_ERR_ARG, "%s: item %zu must be plain text", o->where, i);
            IM_TRY(list_add(o, &list, im_json_text(item, buf, sizeof buf)));
        }
        *(im_option_list *)at = list;
        return IM_OK;
    }
    if (type == IM_JSON_ARRAY || type == IM_JSON_OBJECT)
        return im_fail(o->ctx, IM_ERR_ARG, "%s: one value is needed, not %s", o->where, im_json_text(v, buf, sizeof buf));
    if (type == IM_JSON_NULL) {
        if (row->type != IM_OPT_STRING)
            return im_fail(o->ctx, IM_ERR_ARG, "%s: a value is needed", o->where);
        *(const char **)at = NULL;
        return IM_OK;
    }
    const char *text = im_json_text(v, buf, sizeof buf);
    if (type == IM_JSON_STRING && strlen(text) != im_json_string_len(v))
        return im_fail(o->ctx, IM_ERR_ARG, "%s: a zero byte in the value", o->where);
    return set_value(o, row, text, into);
}

im_status im_option_from_yaml(im_context *ctx, const im_option *rows, size_t n, im_arena *a, const im_json *doc, const im_json_value *map, void *into,
                              bool *given, bool keep_given)
{
    if (n > MOST_ROWS)
        return im_fail(ctx, IM_ERR_INTERNAL, "%zu options in one table", n);
    if (im_json_type_of(map) != IM_JSON_OBJECT && im_json_type_of(map) != IM_JSON_NULL)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: a mapping of options is needed: key: value", im_json_name(doc));
    for (size_t k = 0; k < im_json_length(map); k++) {
        const char *key = NULL;
        const im_json_value *v = im_json_member(map, k, &key);
        char where[1024], name[64];
        if (im_json_line(v) > 0)
            snprintf(where, sizeof where, "%s: line %d: %.100s", im_json_name(doc), im_json_line(v), key);
        else
            snprintf(where, sizeof where, "%s: %.100s", im_json_name(doc), key);
        size_t i = 0;
        for (; i < n; i++) {
            yaml_key(rows[i].name, name, sizeof name);
            if (strcmp(name, key) == 0)
                break;
        }
        if (i == n)
            return unknown_key(ctx, rows, n, where, key);
        if (keep_given && given && given[i])
            continue;
        origin o = {ctx, a, where};
        IM_TRY(from_value(&o, &rows[i], v, into));
        if (given)
            given[i] = true;
    }
    return IM_OK;
}

static void quoted(im_str *out, const char *text)
{
    im_str_json_string(out, text, strlen(text)); /* JSON's quoting is legal YAML */
}

static void real_text(double x, im_str *out)
{
    char buf[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, x);
        if (strtod(buf, NULL) == x)
            break;
    }
    im_str_append(out, buf);
}

static void choice_text(const char *choices, int index, im_str *out)
{
    const char *p = choices;
    for (; index > 0 && p; index--) {
        p = strchr(p, '|');
        p = p ? p + 1 : NULL;
    }
    if (p)
        im_str_append_n(out, p, strcspn(p, "|"));
}

void im_option_to_yaml(const im_option *rows, size_t n, const void *from, im_str *out)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)from + rows[i].offset;
        char key[64];
        yaml_key(rows[i].name, key, sizeof key);
        im_str_printf(out, "%s: ", key);
        switch (rows[i].type) {
        case IM_OPT_BOOL: im_str_append(out, *(const bool *)at ? "true" : "false"); break;
        case IM_OPT_INT: im_str_printf(out, "%lld", (long long)*(const int64_t *)at); break;
        case IM_OPT_REAL: real_text(*(const double *)at, out); break;
        case IM_OPT_CHOICE: choice_text(rows[i].choices, *(const int *)at, out); break;
        case IM_OPT_STRING:
            if (*(const char *const *)at)
                quoted(out, *(const char *const *)at);
            else
                im_str_append(out, "null");
            break;
        case IM_OPT_LIST: {
            const im_option_list *list = at;
            im_str_append(out, "[");
            for (size_t k = 0; k < list->n; k++) {
                im_str_append(out, k ? ", " : "");
                quoted(out, list->item[k]);
            }
            im_str_append(out, "]");
            break;
        }
        }
        im_str_append(out, "\n");
    }
}
