/* NAME.build: how far a build has come, so that one that was interrupted can be gone on with. Internal to src/data. */
#ifndef IM_DATA_NOTE_H
#define IM_DATA_NOTE_H

#include "data/batch.h"

typedef struct im_note {
    char *options;   /* what decides about the result, as text: KEY=VALUE;... */
    uint64_t inputs; /* names, sizes and times */
    im_corpus_at at; /* the documents before it are written */
    int64_t document, bad, read;
    char first_bad[512];
    int writers; /* 1, or 2 with validation */
    im_tokens_place place[2];
} im_note;

im_status im_note_write(im_context *ctx, const char *path, const im_note *n) IM_MUST_CHECK;
/* out->options: free(). */
im_status im_note_read(im_context *ctx, const char *path, im_note *out) IM_MUST_CHECK;
/* IM_ERR_ARG: the first option that is another now, or that the inputs are. */
im_status im_note_compare(im_context *ctx, const char *path, const im_note *was, const im_note *is) IM_MUST_CHECK;

#endif
