/* YAML by libyaml: one document without anchors, aliases and tags. Plain scalars follow YAML 1.2's core schema
 * (true/false, null, integers, reals; everything else is text), so that `no` and `on` stay words. */
#include "base/tree.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    im_context *ctx;
    im_json *doc;
    const char *name;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
} reader;

static im_status fail_here(reader *r, const char *what)
{
    return im_fail(r->ctx, IM_ERR_FORMAT, "%s: line %zu, column %zu: %s", r->name, r->event.start_mark.line + 1, r->event.start_mark.column + 1,
                   what);
}

/* The next event into r->event. */
static im_status next(reader *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = false;
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        const yaml_parser_t *p = &r->parser;
        if (p->error == YAML_MEMORY_ERROR)
            return im_fail(r->ctx, IM_ERR_NOMEM, "%s: no memory", r->name);
        if (p->error == YAML_READER_ERROR)
            return im_fail(r->ctx, IM_ERR_FORMAT, "%s: byte %zu: not YAML: %s", r->name, p->problem_offset, p->problem);
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: line %zu, column %zu: not YAML: %s", r->name, p->problem_mark.line + 1, p->problem_mark.column + 1,
                       p->problem ? p->problem : "malformed");
    }
    r->has_event = true;
    return IM_OK;
}

static bool is_one_of(const char *s, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0)
            return true;
    return false;
}

/* [-+]digits or 0x or 0o; reals with a point or an exponent; .inf; .nan */
static bool plain_number(const char *s, im_json_value *v)
{
    const char *digits = s + (*s == '-' || *s == '+');
    char *end;
    if (strcmp(digits, ".inf") == 0 || strcmp(digits, ".Inf") == 0 || strcmp(digits, ".INF") == 0) {
        v->type = IM_JSON_REAL;
        v->real = *s == '-' ? -INFINITY : INFINITY;
        return true;
    }
    static const char *const nans[] = {".nan", ".NaN", ".NAN"};
    if (is_one_of(s, nans, 3)) {
        v->type = IM_JSON_REAL;
        v->real = NAN;
        return true;
    }
    bool hex = s[0] == '0' && s[1] == 'x', octal = s[0] == '0' && s[1] == 'o';
    if (hex || octal) {
        const char *from = s + 2, *legal = hex ? "0123456789abcdefABCDEF" : "01234567";
        if (!*from || from[strspn(from, legal)])
            return false;
        errno = 0;
        long long x = strtoll(from, &end, hex ? 16 : 8);
        if (errno)
            return false;
        v->type = IM_JSON_INT;
        v->integer = x;
        return true;
    }
    size_t n = strspn(digits, "0123456789");
    if (digits[n] == 0 && n > 0) {
        errno = 0;
        long long x = strtoll(s, &end, 10);
        if (errno == 0) {
            v->type = IM_JSON_INT;
            v->integer = x;
            return true;
        }
    } else { /* [digits][.digits][e[+-]digits], at least one digit before the exponent */
        const char *p = digits + n;
        size_t fraction = *p == '.' ? strspn(p + 1, "0123456789") : 0;
        if (n + fraction == 0)
            return false;
        p += *p == '.' ? 1 + fraction : 0;
        if (*p == 'e' || *p == 'E') {
            p += 1 + (p[1] == '-' || p[1] == '+');
            size_t e = strspn(p, "0123456789");
            if (e == 0)
                return false;
            p += e;
        }
        if (*p)
            return false;
    }
    v->type = IM_JSON_REAL;
    v->real = strtod(s, &end);
    return true;
}

static im_status read_scalar(reader *r, im_json_value *v)
{
    const char *s = (const char *)r->event.data.scalar.value;
    size_t n = r->event.data.scalar.length;
    char *text = im_arena_alloc(r->doc->arena, n + 1);
    if (!text)
        return IM_ERR_NOMEM;
    memcpy(text, s, n);
    v->type = IM_JSON_STRING;
    v->text = text;
    v->len = n;
    if (r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE || strlen(text) != n)
        return IM_OK;
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    static const char *const trues[] = {"true", "True", "TRUE"};
    static const char *const falses[] = {"false", "False", "FALSE"};
    if (is_one_of(text, nulls, IM_COUNT_OF(nulls)))
        v->type = IM_JSON_NULL;
    else if (is_one_of(text, trues, 3) || is_one_of(text, falses, 3)) {
        v->type = IM_JSON_BOOL;
        v->boolean = text[0] == 't' || text[0] == 'T';
    } else
        plain_number(text, v);
    return IM_OK;
}

/* Pointers gathered while a sequence's or mapping's length is not known yet. */
typedef struct growing {
    im_tree_member *item;
    size_t n, cap;
} growing;

static im_status grow(reader *r, growing *g, im_tree_member item)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 8;
        im_tree_member *more = realloc(g->item, cap * sizeof *more);
        if (!more)
            return im_fail(r->ctx, IM_ERR_NOMEM, "%s: no memory", r->name);
        g->item = more;
        g->cap = cap;
    }
    g->item[g->n++] = item;
    return IM_OK;
}

static im_status read_value(reader *r, int depth, im_json_value **out) IM_MUST_CHECK;

static im_status read_mapping(reader *r, int depth, im_json_value *v)
{
    growing g = {0};
    im_status status;
    v->type = IM_JSON_OBJECT;
    for (;;) {
        IM_TRY_GOTO(next(r), free_items);
        if (r->event.type == YAML_MAPPING_END_EVENT)
            break;
        im_tree_member m = {0};
        if (r->event.type != YAML_SCALAR_EVENT || strlen((const char *)r->event.data.scalar.value) != r->event.data.scalar.length) {
            status = fail_here(r, "a key must be a word");
            goto free_items;
        }
        m.key = im_arena_strdup(r->doc->arena, (const char *)r->event.data.scalar.value);
        if (!m.key) {
            status = IM_ERR_NOMEM;
            goto free_items;
        }
        size_t line = r->event.start_mark.line + 1;
        IM_TRY_GOTO(next(r), free_items);
        IM_TRY_GOTO(read_value(r, depth + 1, &m.value), free_items);
        if (m.value->type == IM_JSON_NULL)
            m.value->line = (int)line; /* an empty value has its mark on the next line */
        IM_TRY_GOTO(grow(r, &g, m), free_items);
    }
    v->member = IM_ARENA_NEW(r->doc->arena, im_tree_member, g.n);
    if (!v->member) {
        status = IM_ERR_NOMEM;
        goto free_items;
    }
    if (g.n)
        memcpy(v->member, g.item, g.n * sizeof *g.item);
    v->len = g.n;
    const char *twice;
    IM_TRY_GOTO(im_tree_index(r->doc, v, &twice), free_items);
    if (twice)
        status = im_fail(r->ctx, IM_ERR_FORMAT, "%s: line %d: the key \"%s\" stands twice in the mapping that begins here", r->name, v->line, twice);
free_items:
    free(g.item);
    return status;
}

static im_status read_sequence(reader *r, int depth, im_json_value *v)
{
    growing g = {0};
    im_status status;
    v->type = IM_JSON_ARRAY;
    for (;;) {
        IM_TRY_GOTO(next(r), free_items);
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        im_tree_member m = {0};
        IM_TRY_GOTO(read_value(r, depth + 1, &m.value), free_items);
        IM_TRY_GOTO(grow(r, &g, m), free_items);
    }
    v->element = IM_ARENA_NEW(r->doc->arena, im_json_value *, g.n);
    if (!v->element) {
        status = IM_ERR_NOMEM;
        goto free_items;
    }
    for (size_t i = 0; i < g.n; i++)
        v->element[i] = g.item[i].value;
    v->len = g.n;
free_items:
    free(g.item);
    return status;
}

/* The value that begins with the event at hand. */
static im_status read_value(reader *r, int depth, im_json_value **out)
{
    im_json_value *v = IM_ARENA_NEW(r->doc->arena, im_json_value, 1);
    if (!v)
        return IM_ERR_NOMEM;
    v->line = (int)r->event.start_mark.line + 1;
    *out = v;
    const yaml_event_t *e = &r->event;
    bool container = e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
    if (container && depth >= IM_TREE_MAX_DEPTH)
        return fail_here(r, "nested deeper than 64");
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (e->type) {
    case YAML_ALIAS_EVENT: return fail_here(r, "aliases (*name) are not read here; write the value out");
    case YAML_SCALAR_EVENT:
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
        break;
    default: return fail_here(r, "a value must stand here");
    }
    if (anchor)
        return fail_here(r, "anchors (&name) are not read here; write the value out");
    if (tag)
        return fail_here(r, "tags (!name) are not read here");
    if (e->type == YAML_SCALAR_EVENT)
        return read_scalar(r, v);
    return e->type == YAML_MAPPING_START_EVENT ? read_mapping(r, depth, v) : read_sequence(r, depth, v);
}

static im_status read_stream(reader *r)
{
    IM_TRY(next(r)); /* STREAM-START */
    IM_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) { /* nothing but comments: an empty document */
        r->doc->root = IM_ARENA_NEW(r->doc->arena, im_json_value, 1);
        return r->doc->root ? IM_OK : IM_ERR_NOMEM;
    }
    IM_TRY(next(r)); /* behind DOCUMENT-START */
    IM_TRY(read_value(r, 0, &r->doc->root));
    IM_TRY(next(r)); /* DOCUMENT-END */
    IM_TRY(next(r));
    return r->event.type == YAML_STREAM_END_EVENT ? IM_OK : fail_here(r, "a second document; one is read");
}

im_status im_yaml_parse(im_context *ctx, const char *name, const char *text, size_t len, im_json **out)
{
    reader r = {.ctx = ctx, .name = name};
    IM_TRY(im_tree_create(ctx, name, &r.doc));
    if (!yaml_parser_initialize(&r.parser)) {
        im_json_free(r.doc);
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the YAML parser", name);
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    im_status status = read_stream(&r);
    if (r.has_event)
        yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status == IM_OK)
        *out = r.doc;
    else
        im_json_free(r.doc);
    return status;
}

im_status im_yaml_load(im_context *ctx, const char *path, size_t max_bytes, im_json **out)
{
    char *text;
    size_t len;
    IM_TRY(im_file_read(ctx, path, max_bytes, &text, &len));
    im_status status = im_yaml_parse(ctx, path, text, len, out);
    free(text);
    return status;
}
