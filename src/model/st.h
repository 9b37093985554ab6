/* st: one safetensors file, parsed from memory. Private to src/model and the fuzz target. */
#ifndef IM_MODEL_ST_H
#define IM_MODEL_ST_H

#include "model/safetensors.h"

enum {
    IM_ST_MAX_HEADER = 100000000, /* bytes, the format's own limit */
    IM_ST_MAX_DIMS = 8
};

typedef struct im_st_dtype {
    const char *name; /* as the header says */
    uint8_t bits;     /* of an element */
    int dtype;        /* im_dtype, -1: cannot be read here */
} im_st_dtype;
const im_st_dtype *im_st_find_dtype(const char *name); /* NULL: unknown */
const im_st_dtype *im_st_dtype_of(im_dtype t);         /* NULL: the format has none */

typedef struct im_st_file {
    im_st_tensor *tensor; /* by offset */
    size_t n;
    const char **metadata; /* key, value, ... */
    size_t nmetadata;      /* pairs */
} im_st_file;

/* `data` is the whole file of `len` bytes, `name` its path for messages, `file` what goes into im_st_tensor.file. Everything kept lies in
 * arena a. Checked: the header's length, that it is JSON of the format's shape, each dtype and shape against its bytes, that tensors lie within
 * the file, on multiples of their element size, without overlaps, holes or bytes after the last. */
im_status im_st_parse(im_context *ctx, const char *name, const unsigned char *data, size_t len, int file, im_arena *a, im_st_file *out) IM_MUST_CHECK;

/* A name from a file as a message shows it: control characters replaced, cut at the buffer's size. Returns buf. */
const char *im_st_show(char *buf, size_t size, const char *name);
/* shape as "[2, 3]" */
const char *im_st_show_shape(char *buf, size_t size, const int64_t *shape, int ndim);

#endif
