/* Fuzz target: a token index. The input's first 8 bytes are the size of the .bin; the rest is the .idx. An index that opens is
 * walked whole, and each document that it gives must lie inside the .bin. */
#include "data/index.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    if (size < 8 || im_context_create(&ctx) != IM_OK)
        return 0;
    uint64_t bin_len;
    memcpy(&bin_len, data, 8);
    bin_len &= INT64_MAX;                                /* no file is larger */
    unsigned char *idx = malloc(size - 8 + !(size - 8)); /* its own block: an overrun by one byte shows */
    memcpy(idx, data + 8, size - 8);
    im_index x;
    const im_index_file file = {.path = "x.idx", .bytes = idx, .fd = -1, .len = size - 8};
    if (im_index_parse(ctx, &file, "x.bin", bin_len, &x) == IM_OK) {
        bool whole = im_index_check_sequences(ctx, &x, 0, x.sequences) == IM_OK && im_index_check_documents(ctx, &x, 0, x.documents) == IM_OK;
        for (int64_t i = 0; i < x.documents; i++) {
            int64_t first, n;
            if (im_index_document(ctx, &x, i, &first, &n) == IM_OK) {
                if (first < 0 || n < 0 || first > x.tokens - n)
                    abort();
            } else if (whole)
                abort();
        }
        for (int64_t at = 0; at < x.tokens; at += 1 + x.tokens / 50) { /* the document of a token has it; a sound index tells one for each */
            int64_t d, place[2];
            if (im_index_find(ctx, &x, at, &d) == IM_OK && im_index_places(ctx, &x, d, 1, place) == IM_OK) {
                if (at < place[0] || at >= place[1])
                    abort();
            } else if (whole)
                abort();
        }
    }
    free(idx);
    im_context_destroy(ctx);
    return 0;
}
