/* Any bytes as a cluster file: refused with a message, or a cluster whose file reads back to the same text. */
#include "topology/cluster.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_cluster *c, *again;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_cluster_parse(ctx, "fuzz", (const char *)data, size, &c) == IM_OK) {
        im_str one = {0}, two = {0};
        if (c->device.memory <= 0 || c->device.memory_rate <= 0 || im_cluster_devices(c) < 1 || im_cluster_devices(c) > IM_CLUSTER_MAX_DEVICES)
            abort();
        im_cluster_to_yaml(c, &one);
        if (im_cluster_parse(ctx, "fuzz", one.data, one.len, &again) != IM_OK)
            abort();
        im_cluster_to_yaml(again, &two);
        if (strcmp(one.data, two.data))
            abort();
        im_str_free(&one);
        im_str_free(&two);
        im_cluster_close(again);
        im_cluster_close(c);
    } else if (!*im_error_text(ctx)) {
        abort();
    }
    im_context_destroy(ctx);
    return 0;
}
