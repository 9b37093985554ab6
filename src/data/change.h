/* change: token files from token files, and from what other programs write. */
#ifndef IM_DATA_CHANGE_H
#define IM_DATA_CHANGE_H

#include "data/data.h"

typedef struct im_split_config {
    double valid_fraction; /* of the documents, by a hash of (seed, document number) */
    int64_t valid_every;   /* every N-th document; 0: by fraction */
    uint64_t seed;
} im_split_config;
typedef struct im_change_result {
    int64_t documents[2], tokens[2];
} im_change_result;

/* Whole documents to OUT-train and OUT-valid: the same ones as im_corpus_build chooses. */
im_status im_tokens_split(im_context *ctx, const im_tokens *from, const im_split_config *cfg, const char *out,
                          im_change_result *result) IM_MUST_CHECK;
/* The documents of all files, one behind the other, to OUT. All have a mask or none; of one tokenizer, as far as that is known. */
im_status im_tokens_merge(im_context *ctx, const char *const *name, size_t n, const char *out, im_change_result *result) IM_MUST_CHECK;

/* AUTO: by the first bytes (llm.c, .npy), never RAW.
 *   LLMC   .bin shards of llm.c and modded-nanogpt: 256 int32 of header (magic 20240520, version 1: uint16; 20240801, version 7: uint32), then ids
 *   NPY    a NumPy array of whole numbers, 1-D, or 2-D: a document a row
 *   RAW    ids and nothing else, of `dtype`, little-endian (nanoGPT's train.bin: uint16) */
typedef enum im_import_format { IM_IMPORT_AUTO, IM_IMPORT_LLMC, IM_IMPORT_NPY, IM_IMPORT_RAW } im_import_format;
typedef enum im_import_dtype { IM_IMPORT_U16, IM_IMPORT_U32, IM_IMPORT_I32, IM_IMPORT_U8, IM_IMPORT_I64 } im_import_dtype;
typedef struct im_import_config {
    im_import_format format;
    im_import_dtype dtype; /* RAW */
    int64_t begins;        /* an id that begins each document; -1: none */
    int64_t ends;          /* an id that ends each document; -1: none. Without both, a file is a document */
} im_import_config;
im_status im_tokens_import(im_context *ctx, const char *const *file, size_t n, const im_import_config *cfg, const char *out,
                           im_change_result *result) IM_MUST_CHECK;

/* Which documents are for validation: shared by split and im_corpus_build. */
bool im_split_is_valid(const im_split_config *cfg, int64_t document);

#endif
