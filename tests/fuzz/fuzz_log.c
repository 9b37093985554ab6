/* Any bytes as logs and as a flight recorder's dump: read in pieces of odd sizes, reasoned over, told as text and as JSON that can be read. */
#include "base/json.h"
#include "fabric/diagnose.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_logs(im_diagnose *d, const char *text, size_t n)
{
    static const size_t steps[] = {1 << 20, 13};
    for (size_t k = 0; k < IM_COUNT_OF(steps); k++) {
        if (im_diagnose_begin(d, k ? "b" : "a") != IM_OK)
            return;
        for (size_t i = 0; i < n; i += steps[k])
            if (im_diagnose_feed(d, text + i, n - i < steps[k] ? n - i : steps[k]) != IM_OK)
                abort();
        if (im_diagnose_end(d) != IM_OK)
            abort();
    }
}

static void tell(im_context *ctx, im_diagnose *d)
{
    im_str text = {0}, json = {0};
    im_json *doc;
    im_diagnose_text(d, &text);
    im_diagnose_json(d, &json);
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] < 32 && text.data[i] != '\n') /* nothing that a terminal obeys */
            abort();
    if (im_json_parse(ctx, "json", im_str_text(&json), json.len, &doc) != IM_OK)
        abort();
    im_json_free(doc);
    im_str_free(&text);
    im_str_free(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_diagnose *d;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_diagnose_create(ctx, &d) == IM_OK) {
        read_logs(d, (const char *)data, size);
        if (im_diagnose_begin(d, "nccl_trace_rank_3.json") == IM_OK) {
            if (im_diagnose_recorder(d, "nccl_trace_rank_3.json", (const char *)data, size) != IM_OK)
                im_error_clear(ctx);
            if (im_diagnose_end(d) != IM_OK)
                abort();
        }
        if (im_diagnose_finish(d) != IM_OK)
            abort();
        tell(ctx, d);
        im_diagnose_free(d);
    }
    im_context_destroy(ctx);
    return 0;
}
