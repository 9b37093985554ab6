/* Any bytes as a safetensors file: refused, or every tensor lies within the bytes and can be laid out again. */
#include "model/st.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const im_st_file *f, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < f->n; i++) {
        const im_st_tensor *t = &f->tensor[i];
        if (t->offset > size || t->nbytes > size - t->offset || !t->name || !t->dtype_name || t->ndim > IM_ST_MAX_DIMS)
            abort();
        sum += t->nbytes;
    }
    if (sum > size)
        abort(); /* without overlaps all of them fit */
}

static void parse(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_arena *a;
    im_st_file f;
    if (im_context_create(&ctx) != IM_OK)
        return;
    if (im_arena_create(ctx, &a) == IM_OK) {
        if (im_st_parse(ctx, "fuzz", data, size, 0, a, &f) == IM_OK)
            check(&f, size);
        else if (!*im_error_text(ctx))
            abort(); /* refused without a word */
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
}

/* As it is; and with the length that its last brace asks for, so that mutations of the JSON get past the first check. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size);
    const uint8_t *brace = size > 8 ? memrchr(data + 8, '}', size - 8) : NULL;
    uint8_t *copy = brace ? malloc(size) : NULL;
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    const uint64_t length = (uint64_t)(brace + 1 - (data + 8));
    for (int i = 0; i < 8; i++)
        copy[i] = (uint8_t)(length >> (8 * i));
    parse(copy, size);
    free(copy);
    return 0;
}
