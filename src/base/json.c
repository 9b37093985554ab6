/* JSON by jansson, copied into our tree: one tree type for both formats, freed at once, and without reference counts. */
#include "base/tree.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* jansson's own limit is 2048 and its tree has no positions, so the depth is counted on the text. */
static im_status check_depth(im_context *ctx, const char *name, int64_t line, const char *text, size_t len)
{
    int depth = 0;
    size_t line_start = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\n') {
            line++;
            line_start = i + 1;
        }
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"')
            quoted = true;
        else if (c == '[' || c == '{') {
            if (++depth > IM_TREE_MAX_DEPTH)
                return im_fail(ctx, IM_ERR_FORMAT, "%s: line %lld, column %zu: nested deeper than %d", name, (long long)line, i - line_start + 1,
                               (int)IM_TREE_MAX_DEPTH);
        } else if (c == ']' || c == '}')
            depth--;
    }
    return IM_OK;
}

static im_status convert(im_json *doc, json_t *from, bool ints_as_real, im_json_value **out) IM_MUST_CHECK;

static im_status convert_object(im_json *doc, json_t *from, bool ints_as_real, im_json_value *v)
{
    v->type = IM_JSON_OBJECT;
    v->member = IM_ARENA_NEW(doc->arena, im_tree_member, json_object_size(from));
    if (!v->member)
        return IM_ERR_NOMEM;
    const char *key;
    json_t *child;
    json_object_foreach (from, key, child) {
        im_tree_member *m = &v->member[v->len];
        m->key = im_arena_strdup(doc->arena, key);
        if (!m->key)
            return IM_ERR_NOMEM;
        IM_TRY(convert(doc, child, ints_as_real, &m->value));
        v->len++;
    }
    const char *twice; /* jansson has refused it already */
    return im_tree_index(doc, v, &twice);
}

static im_status convert_array(im_json *doc, json_t *from, bool ints_as_real, im_json_value *v)
{
    v->type = IM_JSON_ARRAY;
    v->element = IM_ARENA_NEW(doc->arena, im_json_value *, json_array_size(from));
    if (!v->element)
        return IM_ERR_NOMEM;
    for (size_t i = 0; i < json_array_size(from); i++) {
        IM_TRY(convert(doc, json_array_get(from, i), ints_as_real, &v->element[i]));
        v->len++;
    }
    return IM_OK;
}

static im_status convert(im_json *doc, json_t *from, bool ints_as_real, im_json_value **out)
{
    im_json_value *v = IM_ARENA_NEW(doc->arena, im_json_value, 1);
    if (!v)
        return IM_ERR_NOMEM;
    *out = v;
    switch (json_typeof(from)) {
    case JSON_OBJECT: return convert_object(doc, from, ints_as_real, v);
    case JSON_ARRAY: return convert_array(doc, from, ints_as_real, v);
    case JSON_STRING: {
        size_t n = json_string_length(from);
        char *text = im_arena_alloc(doc->arena, n + 1);
        if (!text)
            return IM_ERR_NOMEM;
        memcpy(text, json_string_value(from), n);
        v->type = IM_JSON_STRING;
        v->text = text;
        v->len = n;
        return IM_OK;
    }
    case JSON_INTEGER:
        v->type = IM_JSON_INT;
        v->integer = json_integer_value(from);
        return IM_OK;
    case JSON_REAL:
        v->type = IM_JSON_REAL;
        v->real = json_real_value(from);
        if (ints_as_real && v->real > -0x1p53 && v->real < 0x1p53 && v->real == (double)(int64_t)v->real) {
            v->type = IM_JSON_INT; /* read as a real only because another number of the document needs it */
            v->integer = (int64_t)json_real_value(from);
        }
        return IM_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        v->type = IM_JSON_BOOL;
        v->boolean = json_is_true(from);
        return IM_OK;
    case JSON_NULL: break;
    }
    v->type = IM_JSON_NULL;
    return IM_OK;
}

im_status im_json_parse(im_context *ctx, const char *name, const char *text, size_t len, im_json **out)
{
    return im_json_parse_at(ctx, name, 1, text, len, out);
}

im_status im_json_parse_at(im_context *ctx, const char *name, int64_t line, const char *text, size_t len, im_json **out)
{
    IM_TRY(check_depth(ctx, name, line, text, len));
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_error_t error;
    bool ints_as_real = false;
    json_t *parsed = json_loadb(text, len, flags, &error);
    if (!parsed && json_error_code(&error) == json_error_numeric_overflow) {
        ints_as_real = true; /* an integer beyond int64 */
        parsed = json_loadb(text, len, flags | JSON_DECODE_INT_AS_REAL, &error);
    }
    if (!parsed)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %lld, column %d: not JSON: %s", name, (long long)(line - 1 + error.line), error.column,
                       error.text);
    im_json *doc;
    im_status status;
    IM_TRY_GOTO(im_tree_create(ctx, name, &doc), free_parsed);
    status = convert(doc, parsed, ints_as_real, &doc->root);
    if (status == IM_OK)
        *out = doc;
    else
        im_json_free(doc);
free_parsed:
    json_decref(parsed);
    return status;
}

im_status im_json_load(im_context *ctx, const char *path, size_t max_bytes, im_json **out)
{
    char *text;
    size_t len;
    IM_TRY(im_file_read(ctx, path, max_bytes, &text, &len));
    im_status status = im_json_parse(ctx, path, text, len, out);
    free(text);
    return status;
}
