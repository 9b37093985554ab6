/* Sliding windows: which blocks have one, and how long it is. */
#include "model/family.h"

#include <string.h>

im_status im_window_read(im_context *ctx, const im_json *doc, int64_t fallback, int64_t *out)
{
    const im_json_value *root = im_json_root(doc);
    if (im_json_get(root, "sliding_window") && !im_config_present(root, "sliding_window"))
        fallback = 0; /* null says none; no key at all says what Transformers does without one */
    return im_config_int(ctx, doc, root, "", "sliding_window", 1, IM_CONFIG_MAX_POSITIONS, fallback, out);
}

static const char *layer_type(const im_json *doc, int64_t block)
{
    return im_json_string(im_json_at(im_json_get(im_json_root(doc), "layer_types"), (size_t)block), "");
}

im_status im_window_check(im_context *ctx, const im_json *doc, int64_t L)
{
    const im_json_value *root = im_json_root(doc), *types = im_json_get(root, "layer_types");
    if (!im_config_present(root, "layer_types"))
        return IM_OK;
    if (im_json_type_of(types) != IM_JSON_ARRAY || (int64_t)im_json_length(types) != L)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: layer_types must be a list of %lld names, one a block", im_json_name(doc), (long long)L);
    for (int64_t i = 0; i < L; i++)
        if (strcmp(layer_type(doc, i), "full_attention") != 0 && strcmp(layer_type(doc, i), "sliding_attention") != 0)
            return im_fail(ctx, IM_ERR_UNSUPPORTED,
                           "%s: layer_types[%lld] is \"%.60s\": that is not implemented; full_attention and sliding_attention are", im_json_name(doc),
                           (long long)i, layer_type(doc, i));
    return IM_OK;
}

bool im_window_slides(const im_json *doc, int64_t block, int64_t first)
{
    if (im_config_present(im_json_root(doc), "layer_types"))
        return strcmp(layer_type(doc, block), "sliding_attention") == 0;
    return block >= first;
}

enum { SOME_LENGTH = 4096, SOME_FROM = 28 }; /* where no key says anything */

im_status im_window_read_some(im_context *ctx, const im_json *doc, int64_t L)
{
    bool used;
    int64_t length, from;
    IM_TRY(im_config_flag(ctx, doc, "use_sliding_window", false, &used));
    IM_TRY(im_window_read(ctx, doc, SOME_LENGTH, &length));
    IM_TRY(im_config_int(ctx, doc, im_json_root(doc), "", "max_window_layers", 0, IM_CONFIG_MAX_BLOCKS, SOME_FROM, &from));
    IM_TRY(im_window_check(ctx, doc, L));
    for (int64_t i = 0; (!used || !length) && im_config_present(im_json_root(doc), "layer_types") && i < L; i++)
        if (im_window_slides(doc, i, 0))
            return im_fail(ctx, IM_ERR_FORMAT, "%s: layer_types[%lld] is \"sliding_attention\", but %s: there is no window", im_json_name(doc),
                           (long long)i, used ? "sliding_window is null" : "use_sliding_window is not true");
    return IM_OK;
}

int64_t im_window_of_some(const im_json *doc, int64_t block)
{
    const im_json_value *root = im_json_root(doc), *length = im_json_get(root, "sliding_window");
    if (!im_json_bool(im_json_get(root, "use_sliding_window"), false))
        return 0;
    return im_window_slides(doc, block, im_json_int(im_json_get(root, "max_window_layers"), SOME_FROM))
               ? length ? im_json_int(length, 0) : SOME_LENGTH
               : 0;
}
