/* Any bytes as a file of NCCL's inspector plug-in: left out with a reason, or samples whose text reads back line by line, with finite values. */
#include "fabric/export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_back(im_arena *a, const char *text)
{
    while (*text) {
        const char *end = strchr(text, '\n'), *why = NULL;
        im_prom_line line;
        if (!end || im_prom_parse_line(a, text, (size_t)(end - text), &line, &why) < 0 || (line.name && !isfinite(line.value)))
            abort();
        text = end + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_arena *a = NULL;
    im_prom *p;
    im_str out = {0};
    const char *why = NULL;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK && im_prom_create(ctx, a, &p) == IM_OK) {
        const bool good = im_export_nccl_text(a, p, (const char *)data, size, &why);
        if (!good && (!why || im_prom_samples(p)))
            abort();
        if (im_prom_write(ctx, p, &out) != IM_OK)
            abort();
        read_back(a, im_str_text(&out));
        im_export_run_text(p, ctx, (const char *)data, size);
    }
    im_str_free(&out);
    im_arena_destroy(a);
    im_context_destroy(ctx);
    return 0;
}
