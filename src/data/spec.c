/* What --data says: a name, names, weights, or a YAML file of them. */
#include "data/feed_parts.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

static bool is_yaml(const char *text)
{
    return has_suffix(text, ".yaml") || has_suffix(text, ".yml");
}

/* Bytes of a weight at the start of an item ("0.7:"), without the colon; 0: it has none. */
static size_t weight_length(const char *item, size_t n)
{
    size_t i = strspn(item, "0123456789.");
    return i > 0 && i < n && item[i] == ':' ? i : 0;
}

static bool is_token_file(im_arena *a, const char *name)
{
    const char *idx = im_arena_printf(a, "%s.idx", name);
    return has_suffix(name, ".idx") || has_suffix(name, ".bin") || (idx && im_path_exists(idx));
}

static char *copy(im_arena *a, const char *s, size_t n)
{
    char *out = im_arena_alloc(a, n + 1);
    return out ? memcpy(out, s, n) : NULL;
}

static im_status no_memory(im_context *ctx)
{
    return im_fail(ctx, IM_ERR_NOMEM, "no memory for the names of the data");
}

/* One source with room for n names. */
static im_status new_source(im_context *ctx, im_arena *a, im_spec *s, size_t n)
{
    im_spec_source *x = &s->source[s->n];
    x->name = IM_ARENA_NEW(a, const char *, n);
    if (!x->name)
        return no_memory(ctx);
    s->n++;
    return IM_OK;
}

/* ---- A,B and 0.7:A,0.3:B -------------------------------------------------------------------------- */

static im_status parse_items(im_context *ctx, im_arena *a, const char *text, im_spec *s)
{
    size_t items = 1, weighted = 0, seen = 0;
    for (const char *p = text; *p; p++)
        items += *p == ',';
    s->source = IM_ARENA_NEW(a, im_spec_source, items);
    if (!s->source)
        return no_memory(ctx);
    for (const char *p = text;; seen++) {
        size_t n = strcspn(p, ","), w = weight_length(p, n), from = w ? w + 1 : 0;
        if (n == from)
            return im_fail(ctx, IM_ERR_ARG, "--data %s: item %zu has no name; NAME, A,B or 0.7:A,0.3:B", text, seen + 1);
        if (w || s->n == 0)
            IM_TRY(new_source(ctx, a, s, w ? 1 : items));
        im_spec_source *x = &s->source[s->n - 1];
        weighted += w > 0;
        if (weighted && weighted != seen + 1)
            return im_fail(ctx, IM_ERR_ARG, "--data %s: either each item has a weight (0.7:A,0.3:B) or none (A,B: one corpus in two files)", text);
        x->weight = w ? copy(a, p, w) : NULL;
        x->name[x->n++] = copy(a, p + from, n - from);
        if ((w && !x->weight) || !x->name[x->n - 1])
            return no_memory(ctx);
        p += n;
        if (!*p++)
            return IM_OK;
    }
}

/* ---- FILE.yaml ------------------------------------------------------------------------------------- */

/* A name in a YAML file is relative to the file. */
static im_status add_name(im_context *ctx, im_arena *a, const im_json *doc, const im_json_value *v, im_spec_source *x)
{
    const char *path = im_json_name(doc), *slash = strrchr(path, '/'), *name = im_json_type_of(v) == IM_JSON_STRING ? im_json_string(v, "") : "";
    if (!*name)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: the name of a token file is expected", path, im_json_line(v));
    x->name[x->n] = *name == '/' || !slash ? im_arena_strdup(a, name) : im_arena_printf(a, "%.*s/%s", (int)(slash - path), path, name);
    return x->name[x->n++] ? IM_OK : no_memory(ctx);
}

static im_status add_names(im_context *ctx, im_arena *a, const im_json *doc, const im_json_value *v, im_spec *s)
{
    bool list = im_json_type_of(v) == IM_JSON_ARRAY;
    size_t n = list ? im_json_length(v) : 1;
    if (!n)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: no names", im_json_name(doc), im_json_line(v));
    IM_TRY(new_source(ctx, a, s, n));
    for (size_t i = 0; i < n; i++)
        IM_TRY(add_name(ctx, a, doc, list ? im_json_at(v, i) : v, &s->source[s->n - 1]));
    return IM_OK;
}

static im_status parse_source(im_context *ctx, im_arena *a, const im_json *doc, const im_json_value *v, im_spec *s)
{
    char number[32];
    for (size_t i = 0; i < im_json_length(v); i++) {
        const char *key;
        (void)im_json_member(v, i, &key);
        if (strcmp(key, "data") && strcmp(key, "weight"))
            return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: unknown key %s; a source has data and weight", im_json_name(doc), im_json_line(v), key);
    }
    const im_json_value *data = im_json_get(v, "data"), *weight = im_json_get(v, "weight");
    if (!data)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: a source without data", im_json_name(doc), im_json_line(v));
    IM_TRY(add_names(ctx, a, doc, data, s));
    if (!weight)
        return IM_OK;
    s->source[s->n - 1].weight = im_arena_strdup(a, im_json_text(weight, number, sizeof number));
    return s->source[s->n - 1].weight ? IM_OK : no_memory(ctx);
}

static im_status parse_yaml(im_context *ctx, im_arena *a, const im_json *doc, im_spec *s)
{
    const im_json_value *root = im_json_root(doc), *list = im_json_get(root, "sources");
    size_t n = im_json_length(list), weighted = 0;
    if (im_json_type_of(list) != IM_JSON_ARRAY || !n || im_json_length(root) != 1)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: one key is expected, sources: a list of names, or of {data: NAME, weight: 0.7}", im_json_name(doc));
    s->source = IM_ARENA_NEW(a, im_spec_source, n);
    if (!s->source)
        return no_memory(ctx);
    if (im_json_type_of(im_json_at(list, 0)) != IM_JSON_OBJECT)
        return add_names(ctx, a, doc, list, s);
    for (size_t i = 0; i < n; i++) {
        const im_json_value *v = im_json_at(list, i);
        if (im_json_type_of(v) != IM_JSON_OBJECT)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: line %d: names and sources with weights in one list", im_json_name(doc), im_json_line(v));
        IM_TRY(parse_source(ctx, a, doc, v, s));
        weighted += s->source[s->n - 1].weight != NULL;
    }
    if (weighted != n && n > 1)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu of %zu sources have a weight; all, or one source with all files", im_json_name(doc), weighted, n);
    return IM_OK;
}

im_status im_spec_parse(im_context *ctx, im_arena *a, const char *text, im_spec *out)
{
    im_spec s = {0};
    if (is_yaml(text)) {
        im_json *doc;
        s.file = true;
        IM_TRY(im_yaml_load(ctx, text, (size_t)16 << 20, &doc));
        im_status status = parse_yaml(ctx, a, doc, &s);
        im_json_free(doc);
        IM_TRY(status);
    } else if (is_token_file(a, text)) { /* whatever letters its name has */
        s.source = IM_ARENA_NEW(a, im_spec_source, 1);
        if (!s.source)
            return no_memory(ctx);
        IM_TRY(new_source(ctx, a, &s, 1));
        s.source[0].name[s.source[0].n++] = im_arena_strdup(a, text);
        if (!s.source[0].name[0])
            return no_memory(ctx);
    } else {
        IM_TRY(parse_items(ctx, a, text, &s));
    }
    *out = s;
    return IM_OK;
}

const char *im_feed_spec_map(im_context *ctx, im_arena *a, const char *spec, const char *(*absolute)(void *arg, const char *name), void *arg)
{
    im_spec s;
    if (is_yaml(spec))
        return absolute(arg, spec);
    if (im_spec_parse(ctx, a, spec, &s) != IM_OK)
        return NULL;
    const char *out = "";
    for (size_t i = 0; out && i < s.n; i++)
        for (size_t k = 0; out && k < s.source[i].n; k++) {
            const im_spec_source *x = &s.source[i];
            out = im_arena_printf(a, "%s%s%s%s%s", out, *out ? "," : "", x->weight ? x->weight : "", x->weight ? ":" : "", absolute(arg, x->name[k]));
        }
    return out;
}
