/* Batches of documents on their way from the reader over the workers to the writer. Internal to src/data. */
#ifndef IM_DATA_BATCH_H
#define IM_DATA_BATCH_H

#include "data/corpus.h"
#include <stdatomic.h>

/* A document, or a part of one that is long. */
typedef struct im_record {
    size_t at, n; /* bytes of raw */
    int64_t line; /* .jsonl and ids: for messages */
    bool first, last;
    bool too_long; /* .jsonl: its bytes were not kept */
    /* results */
    size_t nids;        /* of the batch's ids, in order */
    int64_t text_bytes; /* of text */
    bool bad;
} im_record;

/* Where a document ends: the next one begins there. */
typedef struct im_corpus_at {
    int64_t input, offset, line; /* number of the input, byte of its (unpacked) text, lines before it */
    int64_t before, text;        /* bytes of the inputs before it on the disk; of all text so far */
} im_corpus_at;

typedef struct im_batch {
    const char *name; /* of the input */
    im_corpus_format format;
    unsigned char *raw;
    size_t nraw, raw_cap;
    im_record *record;
    size_t nrecord, record_cap;
    bool at_end; /* the last record ends a document, at `end` */
    im_corpus_at end;
    int64_t taken, text; /* bytes of all inputs so far, on the disk and unpacked */
    bool last;           /* nothing comes behind it */
    /* results */
    im_chat_ids ids;  /* counted: only in chats */
    bool as_bytes;    /* the records are written as they are */
    im_status status; /* of the reader, behind the records; or of a worker */
    char error[512];
    size_t failed; /* records from this one on are not made: status is not IM_OK */
    int64_t bad;
    char first_bad[512];
} im_batch;

typedef struct im_belt im_belt;
im_status im_belt_create(im_context *ctx, int workers, im_belt **out) IM_MUST_CHECK;
void im_belt_destroy(im_belt *r); /* after all threads have ended; NULL is allowed */
const atomic_bool *im_belt_quit_flag(const im_belt *r);
/* The reader's: the next batch to fill (NULL: quit), empty; and that it is filled. It waits while too much is under way. */
im_batch *im_belt_fill(im_belt *r);
void im_belt_filled(im_belt *r, im_batch *b);
/* A worker's: the next batch to work on (NULL: quit, or none will come); and that it is done. */
im_batch *im_belt_take(im_belt *r);
void im_belt_done(im_belt *r, im_batch *b);
/* The writer's: the next batch in order, when it is done (NULL: not within some tenths of a second); and that it is free again. */
im_batch *im_belt_next(im_belt *r);
void im_belt_free(im_belt *r, im_batch *b);
void im_belt_quit(im_belt *r); /* wakes everybody */

im_status im_batch_text(im_context *ctx, im_batch *b, const unsigned char *bytes, size_t n) IM_MUST_CHECK; /* appends to raw */
im_status im_batch_record(im_context *ctx, im_batch *b, im_record **out) IM_MUST_CHECK;                    /* a new one, zeros, at the end of raw */

#endif
