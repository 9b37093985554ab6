/* Rotary positions: the config's spellings.
 *
 * Transformers 4 writes rope_theta and rope_scaling ({"rope_type" or, older, "type": ...}); Transformers 5 writes
 * rope_parameters with rope_theta inside. A file may hold several; when they say different things it is refused,
 * because each version of Transformers would read another model from it. rope_table.c makes numbers of what is read here.
 */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double default_theta = 10000; /* where Transformers has it, for every family here */
static const char *const type_names[IM_ROPE_COUNT] = {[IM_ROPE_PLAIN] = "default", [IM_ROPE_LINEAR] = "linear", [IM_ROPE_DYNAMIC] = "dynamic",
                                                      [IM_ROPE_LLAMA3] = "llama3", [IM_ROPE_YARN] = "yarn",     [IM_ROPE_LONG] = "longrope"};

/* One description of rotary positions in a file: an object (may be null), and how messages call it. */
typedef struct reading {
    im_context *ctx;
    const im_json *doc;
    const im_json_value *object;
    const char *path;
    const im_rope_look *look;
} reading;

static im_status fail_two(const reading *r, const char *outer, double a, const char *inner, double b)
{
    return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s is %.17g but %s%s is %.17g: they must be equal, or only one be given", im_json_name(r->doc), outer,
                   a, r->path, inner, b);
}

/* A number that stands at the top under one of two keys, or in the object. */
static im_status read_either(const reading *r, const char *key, const char *other, double min, double max, double fallback, double *out)
{
    const im_json_value *root = im_json_root(r->doc);
    double outer = fallback, second, inner;
    const char *where = key;
    IM_TRY(im_config_real(r->ctx, r->doc, root, "", key, min, max, fallback, &outer));
    if (other && im_config_present(root, other)) {
        IM_TRY(im_config_real(r->ctx, r->doc, root, "", other, min, max, fallback, &second));
        if (im_config_present(root, key) && second != outer)
            return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s is %.17g but %s is %.17g: they must be equal, or only one be given", im_json_name(r->doc),
                           key, outer, other, second);
        outer = second;
        where = other;
    }
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, key, min, max, outer, &inner));
    if (im_config_present(root, where) && inner != outer)
        return fail_two(r, where, outer, key, inner);
    *out = inner;
    return IM_OK;
}

/* ---- types ------------------------------------------------------------------- */

static void list_types(unsigned types, char *buf, size_t size)
{
    size_t at = 0;
    int left = __builtin_popcount(types);
    for (int i = 0; i < IM_ROPE_COUNT && at < size; i++)
        if (types >> i & 1) {
            left--;
            at += (size_t)snprintf(buf + at, size - at, "%s%s", type_names[i], left > 1 ? ", " : left == 1 ? " and " : "");
        }
}

static im_status read_type(const reading *r, im_rope_scaling *out)
{
    const char *key = im_config_present(r->object, "rope_type") ? "rope_type" : "type", *type = "default";
    if (im_config_present(r->object, key))
        IM_TRY(im_json_need_string(r->ctx, r->doc, r->object, key, &type));
    const unsigned can = r->look->types;
    /* Phi-3's configs call it su or yarn in older files */
    const bool older = (can >> IM_ROPE_LONG & 1) && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    for (int i = 0; i < IM_ROPE_COUNT; i++)
        if ((can >> i & 1) && (strcmp(type, type_names[i]) == 0 || (older && i == IM_ROPE_LONG))) {
            *out = (im_rope_scaling)i;
            return IM_OK;
        }
    char known[120] = "";
    list_types(can, known, sizeof known);
    return im_fail(r->ctx, IM_ERR_UNSUPPORTED, "%s: %s%s is \"%.60s\": that rope type is not implemented for this family; %s are",
                   im_json_name(r->doc), r->path, key, type, known);
}

/* A key that no rope type here knows would be left out unseen. */
static im_status refuse_unknown(const reading *r)
{
    static const char *const known[] = {"rope_type", "type",         "rope_theta",       "partial_rotary_factor",
                                        "factor",    "truncate",     "low_freq_factor",  "high_freq_factor",
                                        "beta_fast", "beta_slow",    "attention_factor", "original_max_position_embeddings",
                                        "mscale",    "short_factor", "long_factor",      "mscale_all_dim",
                                        "finetuned" /* a note */};
    for (size_t i = 0; i < im_json_length(r->object); i++) {
        const char *key;
        const im_json_value *v = im_json_member(r->object, i, &key);
        bool is_known = im_json_type_of(v) == IM_JSON_NULL;
        for (size_t k = 0; k < IM_COUNT_OF(known) && !is_known; k++)
            is_known = strcmp(key, known[k]) == 0;
        if (!is_known)
            return im_fail(r->ctx, IM_ERR_UNSUPPORTED, "%s: %s%.60s is not implemented: remove it if it changes nothing", im_json_name(r->doc),
                           r->path, key);
    }
    return IM_OK;
}

static im_status need_real(const reading *r, const char *key, double min, double max, double *out)
{
    if (!im_config_present(r->object, key))
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s%s is missing: this rope type needs a number from %g to %g", im_json_name(r->doc), r->path, key,
                       min, max);
    return im_config_real(r->ctx, r->doc, r->object, r->path, key, min, max, 0, out);
}

/* ---- what each type needs -------------------------------------------------------- */

static im_status read_original(const reading *r, bool need, im_arch *a)
{
    static const char key[] = "original_max_position_embeddings";
    const im_json_value *root = im_json_root(r->doc);
    double n;
    if (need && !im_config_present(root, key)) {
        IM_TRY(need_real(r, key, 1, IM_CONFIG_MAX_POSITIONS, &n));
    } else {
        IM_TRY(read_either(r, key, NULL, 1, IM_CONFIG_MAX_POSITIONS, (double)(r->look->original ? r->look->original : a->P), &n));
    }
    a->rope_original_positions = (int64_t)n;
    if (r->look->original && !im_config_present(root, key) && a->rope_original_positions != r->look->original)
        return fail_two(r, key, (double)r->look->original, key, n); /* this family's own default, which Transformers lets win */
    return IM_OK;
}

static im_status read_llama3(const reading *r, im_arch *a)
{
    IM_TRY(need_real(r, "low_freq_factor", 1e-3, 1e6, &a->rope_low_freq));
    IM_TRY(need_real(r, "high_freq_factor", 1e-3, 1e6, &a->rope_high_freq));
    IM_TRY(read_original(r, true, a));
    if (a->rope_low_freq >= a->rope_high_freq)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %slow_freq_factor %g must be below high_freq_factor %g", im_json_name(r->doc), r->path,
                       a->rope_low_freq, a->rope_high_freq);
    return IM_OK;
}

static double yarn_attention(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static im_status read_yarn(const reading *r, im_arch *a)
{
    double mscale, all, given;
    IM_TRY(read_original(r, false, a));
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "beta_fast", 1e-3, 1e6, 32, &a->rope_beta_fast));
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "beta_slow", 1e-3, 1e6, 1, &a->rope_beta_slow));
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "mscale", 0, 1e3, 0, &mscale));
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "mscale_all_dim", 0, 1e3, 0, &all));
    const double f = a->rope_factor;
    const double usual = mscale != 0 && all != 0 ? yarn_attention(f, mscale) / yarn_attention(f, all) : yarn_attention(f, 1);
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "attention_factor", 1e-3, 1e3, usual, &given));
    a->rope_attention = given;
    const im_json_value *truncate = im_json_get(r->object, "truncate");
    if (im_json_type_of(truncate) != IM_JSON_NULL && im_json_type_of(truncate) != IM_JSON_BOOL)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %struncate must be true or false", im_json_name(r->doc), r->path);
    a->rope_truncate = im_json_bool(truncate, true);
    if (a->rope_theta <= 1 || a->rope_beta_fast < a->rope_beta_slow)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %srope_type yarn needs a rope_theta above 1 (%g) and beta_fast %g at least beta_slow %g",
                       im_json_name(r->doc), r->path, a->rope_theta, a->rope_beta_fast, a->rope_beta_slow);
    return IM_OK;
}

/* What Transformers makes of LongRoPE's stretch when nothing else is said. */
static double long_attention(const im_arch *a, double stretch)
{
    return stretch <= 1 ? 1 : sqrt(1 + log(stretch) / log((double)a->rope_original_positions));
}

static im_status read_factors(const reading *r, const char *key, int64_t pairs, double *out)
{
    const im_json_value *list = im_json_get(r->object, key);
    if (im_json_type_of(list) != IM_JSON_ARRAY || (int64_t)im_json_length(list) != pairs || pairs > IM_ROPE_MAX_PAIRS)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s%s must be a list of %lld numbers, one a pair of rotary dims, at most %d", im_json_name(r->doc),
                       r->path, key, (long long)pairs, IM_ROPE_MAX_PAIRS);
    for (int64_t i = 0; i < pairs; i++) {
        const double x = im_json_real(im_json_at(list, (size_t)i), NAN);
        if (!(x >= 1e-6 && x <= 1e9))
            return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s%s[%lld] must be a number from 1e-6 to 1e9", im_json_name(r->doc), r->path, key,
                           (long long)i);
        out[i] = x;
    }
    return IM_OK;
}

static im_status read_long(const reading *r, im_arch *a)
{
    double factor;
    IM_TRY(read_original(r, false, a));
    if (a->rope_original_positions < 2)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %soriginal_max_position_embeddings must be 2 or more for this rope type", im_json_name(r->doc),
                       r->path);
    IM_TRY(read_factors(r, "short_factor", a->rope_dims / 2, a->rope_short));
    IM_TRY(read_factors(r, "long_factor", a->rope_dims / 2, a->rope_long));
    IM_TRY(im_config_real(r->ctx, r->doc, r->object, r->path, "factor", 1e-3, 1e6, (double)a->P / (double)a->rope_original_positions, &factor));
    const double usual = long_attention(a, factor);
    return im_config_real(r->ctx, r->doc, r->object, r->path, "attention_factor", 1e-3, 1e3, usual, &a->rope_attention);
}

/* ---- one description, and all of them ------------------------------------------------ */

static im_status read_dims(const reading *r, im_arch *a)
{
    double part;
    if (!r->look->part_key) {
        IM_TRY(read_either(r, "partial_rotary_factor", NULL, 0, 1, 1, &part));
        if (part != 1)
            return im_fail(r->ctx, IM_ERR_UNSUPPORTED, "%s: partial_rotary_factor is %g: only 1 is implemented for this family", im_json_name(r->doc),
                           part);
    } else {
        IM_TRY(read_either(r, "partial_rotary_factor", r->look->part_key, 0, 1, r->look->part, &part));
    }
    a->rope_part = part;
    a->rope_dims = (int64_t)((double)a->E * part); /* as Python's int() */
    if (part == 1 && a->E % 2)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: head_dim is %lld (given, or hidden_size / num_attention_heads): rotary positions need an even one",
                       im_json_name(r->doc), (long long)a->E);
    if (a->rope_dims < 2 || a->rope_dims % 2)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %lld of a head's %lld dims are rotary (%s %g): rotary positions need an even number, 2 or more",
                       im_json_name(r->doc), (long long)a->rope_dims, (long long)a->E,
                       r->look->part_key ? r->look->part_key : "partial_rotary_factor", part);
    return IM_OK;
}

static im_status read_one(const reading *r, im_arch *a)
{
    if (im_json_type_of(r->object) != IM_JSON_NULL && im_json_type_of(r->object) != IM_JSON_OBJECT)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %.*s must be an object, or null", im_json_name(r->doc), (int)strlen(r->path) - 1, r->path);
    IM_TRY(read_either(r, "rope_theta", r->look->theta_key, 1e-3, 1e15, default_theta, &a->rope_theta));
    IM_TRY(read_type(r, &a->rope_scaling));
    IM_TRY(refuse_unknown(r));
    IM_TRY(read_dims(r, a));
    a->rope_factor = a->rope_attention = 1;
    if (a->rope_scaling != IM_ROPE_PLAIN && a->rope_scaling != IM_ROPE_LONG)
        IM_TRY(need_real(r, "factor", 1, 1e6, &a->rope_factor));
    switch (a->rope_scaling) {
    case IM_ROPE_LLAMA3: return read_llama3(r, a);
    case IM_ROPE_YARN: return read_yarn(r, a);
    case IM_ROPE_LONG: return read_long(r, a);
    default: return IM_OK;
    }
}

static bool same(const im_arch *a, const im_arch *b)
{
    return a->rope_dims == b->rope_dims && a->rope_scaling == b->rope_scaling && a->rope_factor == b->rope_factor &&
           a->rope_low_freq == b->rope_low_freq && a->rope_high_freq == b->rope_high_freq &&
           a->rope_original_positions == b->rope_original_positions && a->rope_attention == b->rope_attention &&
           a->rope_beta_fast == b->rope_beta_fast && a->rope_beta_slow == b->rope_beta_slow && a->rope_truncate == b->rope_truncate &&
           memcmp(a->rope_short, b->rope_short, sizeof a->rope_short) == 0 && memcmp(a->rope_long, b->rope_long, sizeof a->rope_long) == 0;
}

im_status im_rope_read(im_context *ctx, const im_json *doc, const im_rope_look *look, im_arch *arch)
{
    const im_json_value *root = im_json_root(doc);
    const bool five = im_config_present(root, "rope_parameters"), four = im_config_present(root, "rope_scaling") || !five;
    im_arch old = *arch, new = *arch;
    if (four)
        IM_TRY(read_one(&(reading){ctx, doc, im_json_get(root, "rope_scaling"), "rope_scaling.", look}, &old));
    if (five)
        IM_TRY(read_one(&(reading){ctx, doc, im_json_get(root, "rope_parameters"), "rope_parameters.", look}, &new));
    if (four && five && !same(&old, &new))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: rope_scaling and rope_parameters say different things: give one of them", im_json_name(doc));
    *arch = five ? new : old;
    return IM_OK;
}

/* ---- writing --------------------------------------------------------------------- */

bool im_rope_writes(const im_rope_look *look, const char *key)
{
    static const char *const always[] = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"};
    for (size_t i = 0; i < IM_COUNT_OF(always); i++)
        if (strcmp(key, always[i]) == 0)
            return true;
    return (look->theta_key && strcmp(key, look->theta_key) == 0) || (look->part_key && strcmp(key, look->part_key) == 0);
}

static void write_real(const char *key, double x, im_str *out)
{
    im_str_printf(out, ", \"%s\": ", key);
    im_config_write_real(x, out);
}

static void write_factors(const char *key, const double *x, int64_t n, im_str *out)
{
    im_str_printf(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < n; i++) {
        im_str_append(out, i ? ", " : "");
        im_config_write_real(x[i], out);
    }
    im_str_append(out, "]");
}

static void write_scaling(const im_arch *a, im_str *out)
{
    const int64_t pairs = a->rope_dims / 2;
    /* Transformers 4 takes LongRoPE's three keys and no other, under this name */
    im_str_printf(out, "\"%s\": \"%s\"", a->rope_scaling == IM_ROPE_LONG ? "type" : "rope_type", type_names[a->rope_scaling]);
    if (a->rope_scaling == IM_ROPE_LONG) {
        write_factors("short_factor", a->rope_short, pairs, out);
        write_factors("long_factor", a->rope_long, pairs, out);
        if (a->rope_attention != long_attention(a, (double)a->P / (double)a->rope_original_positions))
            write_real("attention_factor", a->rope_attention, out);
        return;
    }
    if (a->rope_scaling == IM_ROPE_PLAIN)
        return;
    write_real("factor", a->rope_factor, out);
    if (a->rope_scaling == IM_ROPE_LLAMA3) {
        write_real("low_freq_factor", a->rope_low_freq, out);
        write_real("high_freq_factor", a->rope_high_freq, out);
    }
    if (a->rope_scaling == IM_ROPE_YARN) {
        write_real("beta_fast", a->rope_beta_fast, out);
        write_real("beta_slow", a->rope_beta_slow, out);
        write_real("attention_factor", a->rope_attention, out);
        im_str_append(out, a->rope_truncate ? "" : ", \"truncate\": false");
    }
    if (a->rope_scaling == IM_ROPE_LLAMA3 || a->rope_scaling == IM_ROPE_YARN)
        im_str_printf(out, ", \"original_max_position_embeddings\": %lld", (long long)a->rope_original_positions);
}

void im_rope_write(const im_arch *a, const im_rope_look *look, im_str *out)
{
    const char *const theta[] = {"rope_theta", look->theta_key}, *const part[] = {"partial_rotary_factor", look->part_key};
    for (int i = 0; i < 2 && theta[i]; i++) {
        im_str_printf(out, ",\n  \"%s\": ", theta[i]);
        im_config_write_real(a->rope_theta, out);
    }
    for (int i = 0; i < 2 && look->part_key && (!i || strcmp(part[0], part[1])); i++) {
        im_str_printf(out, ",\n  \"%s\": ", part[i]);
        im_config_write_real(a->rope_part, out);
    }
    im_str_append(out, ",\n  \"rope_scaling\": ");
    if (a->rope_scaling == IM_ROPE_PLAIN) {
        im_str_append(out, "null");
    } else {
        im_str_append(out, "{");
        write_scaling(a, out);
        im_str_append(out, "}");
    }
    im_str_append(out, ",\n  \"rope_parameters\": {\"rope_theta\": ");
    im_config_write_real(a->rope_theta, out);
    if (look->part_key)
        write_real("partial_rotary_factor", a->rope_part, out);
    im_str_append(out, ", ");
    write_scaling(a, out);
    im_str_append(out, "}");
}
