/* Any bytes as NCCL's topology XML: refused with a message that names the file, or a graph whose distances agree both ways and whose JSON is JSON. */
#include "base/json.h"
#include "fabric/topo.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const im_item *item(const im_graph *g, size_t i)
{
    return i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus];
}

static void check(im_context *ctx, im_arena *a, const im_graph *g)
{
    const size_t n = g->ngpus + g->nnics;
    const im_look look = {.columns = 80};
    im_str text = {0}, json = {0};
    im_json *doc;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) {
            const im_path there = im_graph_path(g, item(g, i), item(g, k)), back = im_graph_path(g, item(g, k), item(g, i));
            if (there != back && there != IM_PATH_NVLINK && back != IM_PATH_NVLINK)
                abort();
        }
    if (im_topo_text(ctx, a, g, &look, &text) != IM_OK || im_topo_json(ctx, a, g, NULL, 0, &json) != IM_OK)
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
    im_arena *a;
    im_graph *g;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK) {
        if (im_graph_from_nccl(ctx, a, "fuzz", (const char *)data, size, &g) == IM_OK)
            check(ctx, a, g);
        else if (!strstr(im_error_text(ctx), "fuzz"))
            abort();
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
    return 0;
}
