/* safetensors: files of named tensors. Nothing in a header is trusted. */
#ifndef IM_MODEL_SAFETENSORS_H
#define IM_MODEL_SAFETENSORS_H

#include "model/model.h"

typedef struct im_st_tensor {
    const char *name;
    im_dtype dtype;
    bool known_dtype; /* false: a dtype we cannot read (F8_E4M3 ...); dtype_name tells */
    const char *dtype_name;
    uint8_t ndim;
    int64_t shape[8];
    uint64_t offset, nbytes; /* from the file's start; no multiple of the element size in files whose writer did not pad */
    int file;                /* index of the shard */
} im_st_tensor;

typedef struct im_weights im_weights;

/* One file, or a directory: model.safetensors, or model.safetensors.index.json with its shards. */
im_status im_weights_open(im_context *ctx, const char *path, im_weights **out) IM_MUST_CHECK;
void im_weights_close(im_weights *w); /* NULL is allowed */
size_t im_weights_count(const im_weights *w);
const im_st_tensor *im_weights_at(const im_weights *w, size_t i);
const im_st_tensor *im_weights_find(const im_weights *w, const char *name);
const char *im_weights_metadata(const im_weights *w, const char *key);   /* __metadata__ of the first file; NULL: absent */
const char *im_weights_path(const im_weights *w, const im_st_tensor *t); /* of the file that holds t */
/* Elements [first, first+count) of a tensor as fp32 (from F32, F16, BF16, F64) or bit for bit when `as` is its own type. */
im_status im_weights_read(im_context *ctx, const im_weights *w, const im_st_tensor *t, int64_t first, int64_t count, im_dtype as,
                          void *out) IM_MUST_CHECK;
/* What was read of t is not needed in memory any more: a mapped file counts as the process's memory while its pages are there. */
void im_weights_release(const im_weights *w, const im_st_tensor *t);
/* Every parameter of m is there with its shape (missing and unexpected ones by name; lm_head of a tied model: equal or refused);
 * tensor_of[m->nparam] gets the tensor of each. Names with or without the "model."/"transformer." prefix are found. */
im_status im_weights_match(im_context *ctx, const im_weights *w, const im_model *m, const im_st_tensor **tensor_of) IM_MUST_CHECK;

/* Writing: lay the tensors out, then anyone writes slices at their offsets. */
typedef struct im_st_plan {
    const char *name;
    im_dtype dtype;
    uint8_t ndim;
    int64_t shape[8];
    uint64_t offset, nbytes; /* filled: from the file's start */
} im_st_plan;
/* Fills offset and nbytes and appends the header bytes (8-byte length, JSON padded to 8) to `header`; *file_size is the whole.
 * metadata: alternating key, value; NULL-terminated; may be NULL. */
im_status im_st_layout(im_context *ctx, im_st_plan *t, size_t n, const char *const *metadata, im_str *header, uint64_t *file_size) IM_MUST_CHECK;

#endif
