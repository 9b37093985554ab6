/* What is known of a token file beside its ids: PREFIX.json, which `imece data` writes. Other writers' files have none, and need none.
 *
 *   {"format": 1, "tokens": 123, "documents": 4, "longest": 60, "min_id": 0, "max_id": 256, "counted": 100, "text_bytes": 119,
 *    "tokenizer": "bytes", "tokenizer_fingerprint": "", "vocab": 257, "eod": 256, "fingerprint": "16 hex digits"}
 *
 * It tells at the start of a run, without reading the ids, whether they are of the model's vocabulary. It belongs to the files whose
 * fingerprint it has; beside others it is left aside. Internal to src/data. */
#ifndef IM_DATA_ABOUT_H
#define IM_DATA_ABOUT_H

#include "data/data.h"

im_status im_tokens_about_write(im_context *ctx, const char *path, const im_tokens_about *a) IM_MUST_CHECK;
/* IM_ERR_FORMAT when the file is no such description. */
im_status im_tokens_about_read(im_context *ctx, const char *path, im_tokens_about *out) IM_MUST_CHECK;

#endif
