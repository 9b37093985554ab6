/* corpus: text files, packed or not, to token files (docs/data.md). A pipeline of threads:
 *
 *   reader    unpacks the inputs in order and cuts them into documents: batches of some 256 KiB
 *   workers   batches to ids
 *   caller    writes the batches in order, so that the files are the same whatever the number of workers
 *
 * Memory is bounded by the number of batches under way, and by the longest line of a .jsonl file. Of text, a document of any length is written
 * as it comes.
 */
#ifndef IM_DATA_CORPUS_H
#define IM_DATA_CORPUS_H

#include "data/chat.h"
#include "data/data.h"

/* AUTO: by the names of the files. IDS: ids in decimal, a document a line, from another tokenizer. */
typedef enum im_corpus_format { IM_CORPUS_AUTO, IM_CORPUS_TEXT, IM_CORPUS_JSONL, IM_CORPUS_IDS } im_corpus_format;

/* What ends a document of text. IM_SPLIT_FILE: the end of the file. LINES: every newline (which is dropped). BLANK: a run of lines of white
 * space only. SEPARATOR: a line that is exactly `separator`. Empty documents are dropped. */
typedef enum im_split { IM_SPLIT_FILE, IM_SPLIT_LINES, IM_SPLIT_BLANK, IM_SPLIT_SEPARATOR } im_split;

enum { IM_CORPUS_EOD_DEFAULT = -2, IM_CORPUS_EOD_NONE = -1 };

typedef struct im_corpus_progress {
    int64_t read, all; /* bytes of the input files, as they lie on the disk; all 0: not known */
    int64_t text;      /* bytes of text, unpacked */
    int64_t tokens;
} im_corpus_progress;

typedef struct im_corpus_config {
    const char *const *input; /* files, directories, "-" */
    size_t ninput;
    const char *out; /* OUT-train and, when some validation is asked for, OUT-valid */
    im_corpus_format format;
    im_split split;        /* of text */
    const char *separator; /* NULL: none */
    const char *field;     /* .jsonl: the key of the text; NULL: "text" */
    bool chat;             /* .jsonl: conversations, with a mask; the field is not looked at */
    im_chat_format chat_format;
    const im_tok *tok; /* NULL: bytes */
    im_tok_coding coding;
    int32_t eod;           /* behind each document; or IM_CORPUS_EOD_... */
    double valid_fraction; /* of the documents, by a hash of (seed, document number); 0: none; ignored with valid_every */
    int64_t valid_every;   /* every N-th document; 0: by fraction */
    uint64_t seed;
    int workers;        /* 0: the usable cores */
    bool skip_bad;      /* .jsonl: leave lines out that are not what they should be */
    bool resume;        /* go on with a build that was interrupted */
    int64_t note_every; /* bytes of text after which the place is noted for that; 0: a GB */
    size_t read_size;   /* bytes at once; 0: 256 KiB */
    void *arg;
    void (*progress)(void *arg, const im_corpus_progress *p); /* often; may be NULL */
    bool (*stop)(void *arg);                                  /* true: IM_ERR_STOPPED, and what was done can be gone on with; may be NULL */
} im_corpus_config;

typedef struct im_corpus_result {
    int64_t documents[2], tokens[2], counted[2]; /* train, validation; counted: of the mask, all without one */
    int64_t read, text;                          /* bytes, as above */
    int64_t bad;                                 /* lines left out */
    char first_bad[512];                         /* what was wrong with the first of them */
    bool by_position;                            /* no document fell to validation: the last part of the text did */
    int64_t resumed;                             /* documents that an interrupted build had written; 0: it began at the start */
} im_corpus_result;

/* IM_ERR_FORMAT when there was no text, or too little to have both files. Token files of that name that exist are replaced. */
im_status im_corpus_build(im_context *ctx, const im_corpus_config *cfg, im_corpus_result *out) IM_MUST_CHECK;
/* An interrupted build of that name can be gone on with. */
bool im_corpus_interrupted(const char *out);

#endif
