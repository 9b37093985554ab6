/* Any bytes as ibnetdiscover's output, or with an 's' in front as Slurm's topology.conf: refused with a message that names the file, or a network
 * whose links join its nodes and whose JSON is JSON. */
#include "base/json.h"
#include "fabric/topo.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(im_context *ctx, im_arena *a, const im_network *net)
{
    const im_look look = {.columns = 80};
    im_str text = {0}, json = {0};
    im_json *doc;
    size_t ends = 0;
    for (size_t i = 0; i < net->nlinks; i++)
        if (net->link[i].a < 0 || net->link[i].b < 0 || (size_t)net->link[i].a >= net->nnodes || (size_t)net->link[i].b >= net->nnodes)
            abort();
    for (size_t i = 0; i < net->nnodes; i++) {
        ends += (size_t)net->node[i].nlinks;
        if (net->node[i].host >= (int)net->nhosts || net->node[i].level > net->levels)
            abort();
    }
    if (ends != 2 * net->nlinks)
        abort();
    if (im_topo_network_text(ctx, a, net, &look, &text) != IM_OK || im_topo_json(ctx, a, NULL, &net, 1, &json) != IM_OK)
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
    im_network *net;
    if (size < 1 || im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK) {
        const char *text = (const char *)data + 1;
        const im_status status = data[0] == 's' ? im_network_from_slurm(ctx, a, "fuzz", text, size - 1, &net)
                                                : im_network_from_ibnetdiscover(ctx, a, "fuzz", text, size - 1, &net);
        if (status == IM_OK)
            check(ctx, a, net);
        else if (!strstr(im_error_text(ctx), "fuzz"))
            abort();
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
    return 0;
}
