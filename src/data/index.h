/* The .idx file of Megatron's indexed dataset. Internal to src/data (and its fuzz target).
 *
 *   offset 0   "MMIDIDX\0\0"                    9 bytes
 *          9   version = 1                      u64
 *         17   id type (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16)   u8
 *         18   S, number of sequences           u64
 *         26   N, entries of the document list  u64: documents + 1
 *         34   length of each sequence          S x i32, in tokens
 *              place of each sequence           S x i64, bytes from the start of the .bin
 *              first sequence of each document  N x i64: 0 ... S
 *              (mode of each sequence           S x i8, only in multimodal files)
 *
 * All little-endian and unaligned. The .bin is the ids and nothing else, so a run that reads the corpus as one stream needs only
 * its size: opening looks at a bounded number of entries, however many there are.
 *
 * An index is read from memory or with pread, never mapped: a file that somebody shortens then is an error with its name, not the end of the process.
 */
#ifndef IM_DATA_INDEX_H
#define IM_DATA_INDEX_H

#include "data/data.h"

enum { IM_INDEX_HEADER = 34 };
#define IM_INDEX_MAGIC "MMIDIDX\0"

/* Where the index is: all of it in memory, or a file. Borrowed. */
typedef struct im_index_file {
    const char *path;
    const unsigned char *bytes; /* NULL: read from fd */
    int fd;
    size_t len;
} im_index_file;

typedef struct im_index {
    im_index_file file;
    const char *bin_path; /* for messages, borrowed */
    uint64_t bin_len;
    int code;
    size_t id_size;
    int64_t sequences, documents, tokens;
    size_t lengths_at, pointers_at, documents_at; /* offsets into the file */
} im_index;

/* Everything that is not proven here is checked when it is used (im_index_sequence, im_index_document). */
im_status im_index_parse(im_context *ctx, const im_index_file *file, const char *bin_path, uint64_t bin_len, im_index *out) IM_MUST_CHECK;
/* Sequence i is `n` tokens from token `first` on, inside the .bin. */
im_status im_index_sequence(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n) IM_MUST_CHECK;
im_status im_index_document(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n) IM_MUST_CHECK;
/* Every entry of [first, last) of sequences, or of documents. */
im_status im_index_check_sequences(im_context *ctx, const im_index *x, int64_t first, int64_t last) IM_MUST_CHECK;
im_status im_index_check_documents(im_context *ctx, const im_index *x, int64_t first, int64_t last) IM_MUST_CHECK;

/* ---- places of documents ---------------------------------------------------------------- */

/* Where documents [first, first+n) begin, in tokens, in the order of the file. place has n + 1 entries: the last is the end of the last one. */
im_status im_index_places(im_context *ctx, const im_index *x, int64_t first, int64_t n, int64_t *place) IM_MUST_CHECK;
/* The document that token `at` (0 .. tokens-1) lies in. By bisection: some 30 reads for 10^9 documents. */
im_status im_index_find(im_context *ctx, const im_index *x, int64_t at, int64_t *document) IM_MUST_CHECK;

const char *im_index_dtype_name(int code); /* NULL: no such code */
size_t im_index_dtype_size(int code);

/* n bytes at `at` of a file that had `len` when it was opened; fewer are an error that says that it was shortened. */
im_status im_index_pread(im_context *ctx, const char *path, int fd, uint64_t len, uint64_t at, void *out, size_t n) IM_MUST_CHECK;

#endif
