/* Any bytes as a hosts file: refused with a message that names the line, or hosts with names and slots within their bounds. */
#include "train/hosts.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const im_train_hosts *h)
{
    int64_t slots = 0;
    if (!h->n)
        abort();
    for (size_t i = 0; i < h->n; i++) {
        if (h->host[i].slots < 1 || !*h->host[i].name || h->host[i].name[0] == '-' || strpbrk(h->host[i].name, " \t\r\n:,'\"$`;&|"))
            abort();
        slots += h->host[i].slots;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(h->host[i].name, h->host[k].name))
                abort();
    }
    if (slots != h->slots)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_arena *a;
    im_train_hosts h;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK) {
        if (im_train_hosts_parse(ctx, a, "fuzz", (const char *)data, size, &h) == IM_OK)
            check(&h);
        else if (!strstr(im_error_text(ctx), "fuzz"))
            abort();
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
    return 0;
}
