/* Fuzz target: JSON. A document that is read is walked whole; every value answers every question about it, and a mapping finds
 * each of its own keys. */
#include "base/json.h"
#include <stdlib.h>
#include <string.h>

static void walk(const im_json_value *v, int depth)
{
    char buf[64];
    if (depth > 65 || !im_json_text(v, buf, sizeof buf))
        abort();
    im_json_int(v, 0);
    im_json_real(v, 0);
    im_json_bool(v, false);
    if (im_json_type_of(v) == IM_JSON_STRING && im_json_string(v, NULL)[im_json_string_len(v)] != 0)
        abort();
    for (size_t i = 0; i < im_json_length(v); i++) {
        const char *key;
        const im_json_value *child = im_json_at(v, i);
        if (im_json_type_of(v) == IM_JSON_OBJECT) {
            child = im_json_member(v, i, &key);
            if (im_json_get(v, key) != child)
                abort();
        }
        walk(child, depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_json *doc = NULL;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_json_parse(ctx, "x.json", (const char *)data, size, &doc) == IM_OK)
        walk(im_json_root(doc), 0);
    else if (doc || !*im_error_text(ctx))
        abort(); /* an error leaves no output, and says what it was */
    im_json_free(doc);
    im_context_destroy(ctx);
    return 0;
}
