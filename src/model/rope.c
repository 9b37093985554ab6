/* Rotary positions: the config's spellings, the frequencies, the tables.
 *
 * Transformers 4 writes rope_theta and rope_scaling ({"rope_type" or, older, "type": ...}); Transformers 5 writes
 * rope_parameters with rope_theta inside. A file may hold several; when they say different things it is refused,
 * because each version of Transformers would read another model from it.
 */
#include "model/family.h"

#include <math.h>
#include <string.h>

static const double default_theta = 10000; /* where Transformers' LlamaConfig has it */

static im_status read_theta(im_context *ctx, const im_json *doc, const im_json_value *scaling, const char *path, double *out)
{
    const im_json_value *root = im_json_root(doc);
    double outer, inner;
    IM_TRY(im_config_real(ctx, doc, root, "", "rope_theta", 1e-3, 1e15, default_theta, &outer));
    IM_TRY(im_config_real(ctx, doc, scaling, path, "rope_theta", 1e-3, 1e15, outer, &inner));
    if (im_config_present(root, "rope_theta") && inner != outer)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: rope_theta is %.17g but %srope_theta is %.17g: they must be equal, or only one be given",
                       im_json_name(doc), outer, path, inner);
    *out = inner;
    return IM_OK;
}

static im_status read_type(im_context *ctx, const im_json *doc, const im_json_value *scaling, const char *path, im_rope_scaling *out)
{
    const char *key = im_config_present(scaling, "rope_type") ? "rope_type" : "type";
    const char *type = "default";
    if (im_config_present(scaling, key))
        IM_TRY(im_json_need_string(ctx, doc, scaling, key, &type));
    if (strcmp(type, "default") == 0)
        *out = IM_ROPE_PLAIN;
    else if (strcmp(type, "linear") == 0)
        *out = IM_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        *out = IM_ROPE_LLAMA3;
    else
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: %s%s is \"%.60s\": that rope type is not implemented; default, linear and llama3 are",
                       im_json_name(doc), path, key, type);
    return IM_OK;
}

static im_status need_real(im_context *ctx, const im_json *doc, const im_json_value *object, const char *path, const char *key, double min,
                           double max, double *out)
{
    if (!im_config_present(object, key))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s%s is missing: this rope type needs a number from %g to %g", im_json_name(doc), path, key, min,
                       max);
    return im_config_real(ctx, doc, object, path, key, min, max, 0, out);
}

/* One description of the rotary positions: the fields of `a` from `scaling` (may be null). */
static im_status read_one(im_context *ctx, const im_json *doc, const im_json_value *scaling, const char *path, im_arch *a)
{
    if (im_json_type_of(scaling) != IM_JSON_NULL && im_json_type_of(scaling) != IM_JSON_OBJECT)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %.*s must be an object, or null", im_json_name(doc), (int)strlen(path) - 1, path);
    IM_TRY(read_theta(ctx, doc, scaling, path, &a->rope_theta));
    IM_TRY(read_type(ctx, doc, scaling, path, &a->rope_scaling));
    double whole;
    IM_TRY(im_config_real(ctx, doc, scaling, path, "partial_rotary_factor", 0, 1, 1, &whole));
    if (whole != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: %spartial_rotary_factor is %g: only 1 is implemented", im_json_name(doc), path, whole);
    a->rope_factor = 1;
    if (a->rope_scaling != IM_ROPE_PLAIN)
        IM_TRY(need_real(ctx, doc, scaling, path, "factor", 1, 1e6, &a->rope_factor));
    if (a->rope_scaling != IM_ROPE_LLAMA3)
        return IM_OK;
    double positions;
    IM_TRY(need_real(ctx, doc, scaling, path, "low_freq_factor", 1e-3, 1e6, &a->rope_low_freq));
    IM_TRY(need_real(ctx, doc, scaling, path, "high_freq_factor", 1e-3, 1e6, &a->rope_high_freq));
    IM_TRY(need_real(ctx, doc, scaling, path, "original_max_position_embeddings", 1, IM_CONFIG_MAX_POSITIONS, &positions));
    a->rope_original_positions = (int64_t)positions;
    if (a->rope_low_freq >= a->rope_high_freq)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %slow_freq_factor %g must be below high_freq_factor %g", im_json_name(doc), path, a->rope_low_freq,
                       a->rope_high_freq);
    return IM_OK;
}

im_status im_rope_read(im_context *ctx, const im_json *doc, im_arch *arch)
{
    const im_json_value *root = im_json_root(doc);
    const im_json_value *scaling = im_json_get(root, "rope_scaling"), *parameters = im_json_get(root, "rope_parameters");
    im_arch old = *arch, new = *arch;
    IM_TRY(read_one(ctx, doc, scaling, "rope_scaling.", &old));
    IM_TRY(read_one(ctx, doc, parameters, "rope_parameters.", &new));
    const bool both = im_config_present(root, "rope_scaling") && im_config_present(root, "rope_parameters");
    if (both && (old.rope_scaling != new.rope_scaling || old.rope_factor != new.rope_factor || old.rope_low_freq != new.rope_low_freq ||
                 old.rope_high_freq != new.rope_high_freq || old.rope_original_positions != new.rope_original_positions))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: rope_scaling and rope_parameters say different things: give one of them", im_json_name(doc));
    *arch = im_config_present(root, "rope_parameters") ? new : old;
    return IM_OK;
}

static void write_scaling(const im_arch *a, im_str *out)
{
    static const char *const names[] = {[IM_ROPE_PLAIN] = "default", [IM_ROPE_LINEAR] = "linear", [IM_ROPE_LLAMA3] = "llama3"};
    im_str_printf(out, "\"rope_type\": \"%s\"", names[a->rope_scaling]);
    if (a->rope_scaling == IM_ROPE_PLAIN)
        return;
    im_str_append(out, ", \"factor\": ");
    im_config_write_real(a->rope_factor, out);
    if (a->rope_scaling != IM_ROPE_LLAMA3)
        return;
    im_str_append(out, ", \"low_freq_factor\": ");
    im_config_write_real(a->rope_low_freq, out);
    im_str_append(out, ", \"high_freq_factor\": ");
    im_config_write_real(a->rope_high_freq, out);
    im_str_printf(out, ", \"original_max_position_embeddings\": %lld", (long long)a->rope_original_positions);
}

void im_rope_write(const im_arch *a, im_str *out)
{
    im_str_append(out, ",\n  \"rope_theta\": ");
    im_config_write_real(a->rope_theta, out);
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
    im_str_append(out, ", ");
    write_scaling(a, out);
    im_str_append(out, "}");
}

double im_rope_frequency(const im_arch *a, int64_t i)
{
    const double two_pi = 6.283185307179586476925286766559;
    const double f = pow(a->rope_theta, -2.0 * (double)i / (double)a->rope_dims);
    if (a->rope_scaling == IM_ROPE_PLAIN)
        return f;
    if (a->rope_scaling == IM_ROPE_LINEAR)
        return f / a->rope_factor;
    /* Long waves are slowed down by the factor, short ones stay, those between are mixed (Transformers,
     * _compute_llama3_parameters). */
    const double original = (double)a->rope_original_positions, wave = two_pi / f;
    if (wave > original / a->rope_low_freq)
        return f / a->rope_factor;
    if (wave < original / a->rope_high_freq)
        return f;
    const double smooth = (original / wave - a->rope_low_freq) / (a->rope_high_freq - a->rope_low_freq);
    return (1 - smooth) * f / a->rope_factor + smooth * f;
}

void im_rope_table(const im_arch *a, int64_t first, int64_t n, float *out)
{
    const int64_t half = a->rope_dims / 2;
    for (int64_t i = 0; i < half; i++) {
        const double f = im_rope_frequency(a, i);
        for (int64_t p = 0; p < n; p++) {
            const double angle = f * (double)(first + p);
            out[p * a->rope_dims + i] = (float)cos(angle);
            out[p * a->rope_dims + half + i] = (float)sin(angle);
        }
    }
}
