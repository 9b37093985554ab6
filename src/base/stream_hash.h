/* XXH3 of bytes that arrive in pieces; the same value as `xxhsum -H3` of the file. */
#ifndef IM_BASE_STREAM_HASH_H
#define IM_BASE_STREAM_HASH_H

#include "base/base.h"

/* Hashes a whole file through a small buffer (never maps it, so that it does not count as the process's memory).
 * *nbytes (may be NULL) gets its length. */
im_status im_file_hash(im_context *ctx, const char *path, uint64_t *hash, uint64_t *nbytes) IM_MUST_CHECK;

#endif
