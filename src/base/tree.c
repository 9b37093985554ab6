/* Reading the tree: look-ups, conversions, required values. */
#include "base/tree.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SMALL_OBJECT = 8 }; /* up to here a look-up compares all keys */

im_status im_tree_create(im_context *ctx, const char *name, im_json **out)
{
    im_arena *arena;
    IM_TRY(im_arena_create(ctx, &arena));
    im_json *doc = IM_ARENA_NEW(arena, im_json, 1);
    if (doc) {
        doc->arena = arena;
        doc->name = im_arena_strdup(arena, name);
    }
    if (!doc || !doc->name) {
        im_arena_destroy(arena);
        return IM_ERR_NOMEM;
    }
    *out = doc;
    return IM_OK;
}

void im_json_free(im_json *doc)
{
    if (doc)
        im_arena_destroy(doc->arena); /* doc lies in it */
}

const im_json_value *im_json_root(const im_json *doc)
{
    return doc->root;
}

const char *im_json_name(const im_json *doc)
{
    return doc->name;
}

/* ---- objects -------------------------------------------------------------- */

static const im_json_value *find_slot(const im_json_value *o, const char *key, size_t *where)
{
    size_t i = (size_t)im_hash64(key, strlen(key), 0) & (o->nslot - 1);
    for (; o->slot[i]; i = (i + 1) & (o->nslot - 1))
        if (strcmp(o->member[o->slot[i] - 1].key, key) == 0)
            return o->member[o->slot[i] - 1].value;
    *where = i;
    return NULL;
}

im_status im_tree_index(im_json *doc, im_json_value *o, const char **twice)
{
    *twice = NULL;
    if (o->len <= SMALL_OBJECT) {
        for (size_t i = 1; i < o->len && !*twice; i++)
            for (size_t j = 0; j < i; j++)
                if (strcmp(o->member[i].key, o->member[j].key) == 0)
                    *twice = o->member[i].key;
        return IM_OK;
    }
    size_t n = 16;
    while (n < 2 * o->len)
        n *= 2;
    o->slot = IM_ARENA_NEW(doc->arena, uint32_t, n);
    if (!o->slot)
        return IM_ERR_NOMEM;
    o->nslot = n;
    for (size_t i = 0; i < o->len && !*twice; i++) {
        size_t at = 0;
        if (find_slot(o, o->member[i].key, &at))
            *twice = o->member[i].key;
        else
            o->slot[at] = (uint32_t)i + 1;
    }
    return IM_OK;
}

const im_json_value *im_json_get(const im_json_value *o, const char *key)
{
    if (!o || o->type != IM_JSON_OBJECT)
        return NULL;
    if (o->slot) {
        size_t at;
        return find_slot(o, key, &at);
    }
    for (size_t i = 0; i < o->len; i++)
        if (strcmp(o->member[i].key, key) == 0)
            return o->member[i].value;
    return NULL;
}

const im_json_value *im_json_member(const im_json_value *o, size_t i, const char **key)
{
    if (!o || o->type != IM_JSON_OBJECT || i >= o->len)
        return NULL;
    if (key)
        *key = o->member[i].key;
    return o->member[i].value;
}

size_t im_json_length(const im_json_value *v)
{
    return v && (v->type == IM_JSON_OBJECT || v->type == IM_JSON_ARRAY) ? v->len : 0;
}

const im_json_value *im_json_at(const im_json_value *v, size_t i)
{
    return v && v->type == IM_JSON_ARRAY && i < v->len ? v->element[i] : NULL;
}

/* ---- scalars -------------------------------------------------------------- */

im_json_type im_json_type_of(const im_json_value *v)
{
    return v ? v->type : IM_JSON_NULL;
}

bool im_json_bool(const im_json_value *v, bool fallback)
{
    return v && v->type == IM_JSON_BOOL ? v->boolean : fallback;
}

/* An integer, or a real that is one and fits. */
static bool as_int(const im_json_value *v, int64_t *out)
{
    if (v && v->type == IM_JSON_INT) {
        *out = v->integer;
        return true;
    }
    if (v && v->type == IM_JSON_REAL && v->real >= -0x1p63 && v->real < 0x1p63 && v->real == floor(v->real)) {
        *out = (int64_t)v->real;
        return true;
    }
    return false;
}

static bool as_real(const im_json_value *v, double *out)
{
    if (v && (v->type == IM_JSON_INT || v->type == IM_JSON_REAL)) {
        *out = v->type == IM_JSON_INT ? (double)v->integer : v->real;
        return true;
    }
    return false;
}

int64_t im_json_int(const im_json_value *v, int64_t fallback)
{
    int64_t x;
    return as_int(v, &x) ? x : fallback;
}

double im_json_real(const im_json_value *v, double fallback)
{
    double x;
    return as_real(v, &x) ? x : fallback;
}

const char *im_json_string(const im_json_value *v, const char *fallback)
{
    return v && v->type == IM_JSON_STRING ? v->text : fallback;
}

size_t im_json_string_len(const im_json_value *v)
{
    return v && v->type == IM_JSON_STRING ? v->len : 0;
}

int im_json_line(const im_json_value *v)
{
    return v ? v->line : 0;
}

const char *im_json_text(const im_json_value *v, char *buf, size_t buflen)
{
    if (!v)
        return "null";
    if (v->text)
        return v->text;
    switch (v->type) {
    case IM_JSON_NULL: return "null";
    case IM_JSON_BOOL: return v->boolean ? "true" : "false";
    case IM_JSON_INT: snprintf(buf, buflen, "%lld", (long long)v->integer); return buf;
    case IM_JSON_REAL:
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(buf, buflen, "%.*g", digits, v->real);
            double back;
            if (sscanf(buf, "%lf", &back) == 1 && back == v->real)
                break;
        }
        return buf;
    case IM_JSON_STRING: return "";
    case IM_JSON_ARRAY: return "a list";
    case IM_JSON_OBJECT: return "a mapping";
    }
    return "";
}

/* ---- required values ------------------------------------------------------ */

/* "PATH: line 3" or "PATH" */
static const char *place(const im_json *doc, const im_json_value *v, char *buf, size_t size)
{
    if (v && v->line > 0)
        snprintf(buf, size, "%s: line %d", doc->name, v->line);
    else
        snprintf(buf, size, "%s", doc->name);
    return buf;
}

static im_status wrong_value(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, const char *wanted)
{
    char where[1024], text[64];
    const im_json_value *v = im_json_get(object, key);
    if (!v)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: \"%s\" is missing; it must be %s", place(doc, object, where, sizeof where), key, wanted);
    return im_fail(ctx, IM_ERR_FORMAT, "%s: \"%s\" is %.80s%s; it must be %s", place(doc, v, where, sizeof where), key,
                   im_json_text(v, text, sizeof text), v->type == IM_JSON_STRING ? " (text)" : "", wanted);
}

im_status im_json_need_int(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, int64_t min, int64_t max, int64_t *out)
{
    int64_t x;
    if (as_int(im_json_get(object, key), &x) && x >= min && x <= max) {
        *out = x;
        return IM_OK;
    }
    char wanted[96];
    snprintf(wanted, sizeof wanted, "an integer from %lld to %lld", (long long)min, (long long)max);
    return wrong_value(ctx, doc, object, key, wanted);
}

im_status im_json_need_real(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, double min, double max, double *out)
{
    double x;
    if (as_real(im_json_get(object, key), &x) && x >= min && x <= max) {
        *out = x;
        return IM_OK;
    }
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
    return wrong_value(ctx, doc, object, key, wanted);
}

im_status im_json_need_string(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, const char **out)
{
    const im_json_value *v = im_json_get(object, key);
    if (v && v->type == IM_JSON_STRING && strlen(v->text) == v->len) { /* a NUL inside would cut it */
        *out = v->text;
        return IM_OK;
    }
    return wrong_value(ctx, doc, object, key, "a string");
}
