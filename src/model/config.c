/* Reading the values of a config.json, and writing them back. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool im_config_present(const im_json_value *object, const char *key)
{
    return im_json_type_of(im_json_get(object, key)) != IM_JSON_NULL;
}

/* The value as a message shows it: JSON, cut when long. */
static void show(const im_json_value *v, char *buf, size_t size)
{
    im_str s = {0};
    im_config_write_value(v, &s);
    const char *text = im_str_text(&s);
    if (s.len < size)
        snprintf(buf, size, "%s", text);
    else
        snprintf(buf, size, "%.*s...", (int)(size - 5), text);
    im_str_free(&s);
}

im_status im_config_int(im_context *ctx, const im_json *doc, const im_json_value *object, const char *path, const char *key, int64_t min, int64_t max,
                        int64_t fallback, int64_t *out)
{
    const im_json_value *v = im_json_get(object, key);
    if (im_json_type_of(v) == IM_JSON_NULL) {
        *out = fallback;
        return IM_OK;
    }
    char shown[64];
    show(v, shown, sizeof shown);
    /* im_json_int takes reals with an integer value; two fallbacks tell whether it took this one */
    if (im_json_int(v, 0) != im_json_int(v, 1) || im_json_int(v, 0) < min || im_json_int(v, 0) > max)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s%s is %s: it must be a whole number from %lld to %lld", im_json_name(doc), path, key, shown,
                       (long long)min, (long long)max);
    *out = im_json_int(v, 0);
    return IM_OK;
}

im_status im_config_need_int(im_context *ctx, const im_json *doc, const char *key, const char *alias, int64_t max, int64_t *out)
{
    const im_json_value *root = im_json_root(doc);
    const char *use = !im_config_present(root, key) && alias && im_config_present(root, alias) ? alias : key;
    if (!im_config_present(root, use))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s is missing: it must be a whole number from 1 to %lld", im_json_name(doc), key, (long long)max);
    return im_config_int(ctx, doc, root, "", use, 1, max, 0, out);
}

im_status im_config_real(im_context *ctx, const im_json *doc, const im_json_value *object, const char *path, const char *key, double min, double max,
                         double fallback, double *out)
{
    const im_json_value *v = im_json_get(object, key);
    if (im_json_type_of(v) == IM_JSON_NULL) {
        *out = fallback;
        return IM_OK;
    }
    double x = im_json_real(v, NAN);
    if (!(x >= min && x <= max)) {
        char shown[64];
        show(v, shown, sizeof shown);
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s%s is %s: it must be a number from %g to %g", im_json_name(doc), path, key, shown, min, max);
    }
    *out = x;
    return IM_OK;
}

im_status im_config_flag(im_context *ctx, const im_json *doc, const char *key, bool fallback, bool *out)
{
    const im_json_value *v = im_json_get(im_json_root(doc), key);
    if (im_json_type_of(v) == IM_JSON_NULL) {
        *out = fallback;
        return IM_OK;
    }
    if (im_json_type_of(v) != IM_JSON_BOOL) {
        char shown[64];
        show(v, shown, sizeof shown);
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s is %s: it must be true or false", im_json_name(doc), key, shown);
    }
    *out = im_json_bool(v, fallback);
    return IM_OK;
}

im_status im_config_refuse(im_context *ctx, const im_json *doc, const char *key)
{
    bool set;
    IM_TRY(im_config_flag(ctx, doc, key, false, &set));
    if (set)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: %s is true: that is not implemented; false works", im_json_name(doc), key);
    return IM_OK;
}

im_status im_config_activation(im_context *ctx, const im_json *doc, const char *key, im_act fallback, im_act *out)
{
    static const struct {
        const char *name;
        im_act act;
    } known[] = {
        {"gelu", IM_ACT_GELU_ERF},
        {"gelu_python", IM_ACT_GELU_ERF},
        {"gelu_new", IM_ACT_GELU_TANH},
        {"gelu_fast", IM_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", IM_ACT_GELU_TANH},
        {"gelu_python_tanh", IM_ACT_GELU_TANH},
        {"silu", IM_ACT_SILU},
        {"swish", IM_ACT_SILU},
        {"relu", IM_ACT_RELU},
    };
    if (!im_config_present(im_json_root(doc), key)) {
        *out = fallback;
        return IM_OK;
    }
    const char *name;
    IM_TRY(im_json_need_string(ctx, doc, im_json_root(doc), key, &name));
    for (size_t i = 0; i < IM_COUNT_OF(known); i++) {
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].act;
            return IM_OK;
        }
    }
    return im_fail(ctx, IM_ERR_UNSUPPORTED,
                   "%s: %s is \"%.60s\": that activation is not implemented; gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu and relu are",
                   im_json_name(doc), key, name);
}

im_status im_config_head_size(im_context *ctx, const im_json *doc, const char *hidden_key, int64_t hidden, const char *heads_key, int64_t heads,
                              int64_t *out)
{
    if (hidden % heads != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s %lld is not a multiple of %s %lld", im_json_name(doc), hidden_key, (long long)hidden, heads_key,
                       (long long)heads);
    *out = hidden / heads;
    return IM_OK;
}

void im_config_write_real(double x, im_str *out)
{
    char text[40];
    if (fabs(x) < 1e15 && x == trunc(x)) { /* 1000000.0 rather than 1e+06 */
        im_str_printf(out, "%.1f", x);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    im_str_append(out, text);
    /* a real stays a real when it is read again */
    if (!strpbrk(text, ".e"))
        im_str_append(out, ".0");
}

void im_config_write_value(const im_json_value *v, im_str *out)
{
    switch (im_json_type_of(v)) {
    case IM_JSON_NULL: im_str_append(out, "null"); break;
    case IM_JSON_BOOL: im_str_append(out, im_json_bool(v, false) ? "true" : "false"); break;
    case IM_JSON_INT: im_str_printf(out, "%lld", (long long)im_json_int(v, 0)); break;
    case IM_JSON_REAL: im_config_write_real(im_json_real(v, 0), out); break;
    case IM_JSON_STRING: im_str_json_string(out, im_json_string(v, ""), im_json_string_len(v)); break;
    case IM_JSON_ARRAY:
        im_str_append(out, "[");
        for (size_t i = 0; i < im_json_length(v); i++) {
            im_str_append(out, i ? ", " : "");
            im_config_write_value(im_json_at(v, i), out);
        }
        im_str_append(out, "]");
        break;
    case IM_JSON_OBJECT:
        im_str_append(out, "{");
        for (size_t i = 0; i < im_json_length(v); i++) {
            const char *key;
            const im_json_value *member = im_json_member(v, i, &key);
            im_str_append(out, i ? ", " : "");
            im_str_json_string(out, key, strlen(key));
            im_str_append(out, ": ");
            im_config_write_value(member, out);
        }
        im_str_append(out, "}");
        break;
    }
}
