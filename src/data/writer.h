/* The inside of im_tokens_writer, shared by indexed_writer.c and indexed_finish.c. */
#ifndef IM_DATA_WRITER_H
#define IM_DATA_WRITER_H

#include "data/index.h"
#include <stdio.h>

enum { IM_TEXT_UNTOLD = -1, IM_TEXT_UNKNOWN = -2 }; /* text_bytes: nothing was told of it yet; not known any more */

struct im_tokens_writer {
    im_context *ctx;
    char *prefix, *bin_path, *idx_path, *mask_path, *about_path, *bin_tmp, *idx_tmp, *mask_tmp;
    FILE *bin, *idx, *mask; /* mask: NULL when the file has none */
    size_t id_size;
    int code;
    im_tokens_place at;
    int64_t in_sequence;   /* tokens since the last sequence began */
    int64_t in_document;   /* tokens since the last document began */
    im_tokens_about about; /* what im_tokens_tell told */
    im_status broken;
};

/* n bytes at an offset of a temporary file; flushed before. */
im_status im_tokens_writer_read(im_tokens_writer *w, FILE *f, const char *path, void *to, size_t n, int64_t offset) IM_MUST_CHECK;
void im_tokens_writer_free(im_tokens_writer *w);

#endif
