/* Inputs of a corpus: which files, and their bytes, unpacked when they are gzip or Zstandard. Internal to src/data (and its tests). */
#ifndef IM_DATA_INPUT_H
#define IM_DATA_INPUT_H

#include "base/base.h"
#include <stdatomic.h>

typedef struct im_inputs {
    const char **path; /* "-": standard input */
    size_t n, cap;
    int64_t bytes;  /* of the regular files, as they lie on the disk */
    uint64_t print; /* of names, sizes and times */
    bool has_stdin;
} im_inputs;
/* Files, directories (walked in the order of names; names that begin with a dot and links to directories are left out), and "-". Strings live in
 * the arena; im_inputs_free frees the list. */
im_status im_inputs_collect(im_context *ctx, im_arena *a, const char *const *given, size_t n, im_inputs *out) IM_MUST_CHECK;
void im_inputs_free(im_inputs *in);

/* x.jsonl, x.ndjson, also with .gz or .zst behind. */
bool im_input_is_jsonl(const char *path);

typedef struct im_input im_input;
/* What begins as a gzip or a Zstandard file is unpacked; a file of that name that is none is refused. `quit` (may be NULL) ends a wait for
 * standard input. */
im_status im_input_open(im_context *ctx, const char *path, const atomic_bool *quit, im_input **out) IM_MUST_CHECK;
/* Up to n bytes; *got 0 at the end. A packed file that ends early, or whose checksum does not agree, is an error. */
im_status im_input_read(im_input *in, void *to, size_t n, size_t *got) IM_MUST_CHECK;
/* Goes to byte `offset` of what the file holds (unpacked): at once in a plain file, by reading in a packed one. */
im_status im_input_skip(im_input *in, int64_t offset) IM_MUST_CHECK;
int64_t im_input_taken(const im_input *in); /* bytes of the file itself so far */
const char *im_input_name(const im_input *in);
void im_input_close(im_input *in); /* NULL is allowed */

#endif
