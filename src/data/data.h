/* data: token files and the order in which a run reads them. Byte-level ids are the embedded default. */
#ifndef IM_DATA_H
#define IM_DATA_H

#include "device/device.h"

/* ---- byte-level ids: 0..255 the bytes, then special ids ---------------------- */
enum { IM_BYTE_EOD = 256, IM_BYTE_VOCAB = 257 };

/* ---- token files: Megatron's indexed dataset, PREFIX.bin and PREFIX.idx ------- */

/* Beside them may stand PREFIX.mask, a byte a token: 1 where the loss of predicting it counts, 0 where not; and PREFIX.json, what
 * `imece data` knows of the files. */
typedef struct im_tokens_about {
    int64_t tokens, documents;
    int64_t longest;        /* tokens of the longest document */
    int64_t min_id, max_id; /* no tokens: 0 and -1 */
    int64_t counted;        /* tokens whose loss counts: all of them without a mask */
    int64_t text_bytes;     /* of the text that they were made of; -1: not known */
    char tokenizer[512];    /* "bytes", the path of a tokenizer.json, or "": not known */
    uint64_t tokenizer_fingerprint;
    int64_t vocab; /* of the tokenizer; 0: not known */
    int64_t eod;   /* the id behind each document; -1: none */
    uint64_t fingerprint;
} im_tokens_about;

typedef struct im_tokens im_tokens;
/* prefix, or the name of the .bin or .idx file. Nothing is trusted: magic, version, dtype, counts, offsets. Read with pread by any number of
 * threads; a file that is shortened meanwhile is an error of the read. */
im_status im_tokens_open(im_context *ctx, const char *prefix, im_tokens **out) IM_MUST_CHECK;
void im_tokens_close(im_tokens *t); /* NULL is allowed */
int64_t im_tokens_count(const im_tokens *t);
int64_t im_tokens_documents(const im_tokens *t);
uint64_t im_tokens_fingerprint(const im_tokens *t); /* of sizes and sampled pages of index, ids and mask: constant time */
const char *im_tokens_prefix(const im_tokens *t);
const char *im_tokens_dtype(const im_tokens *t);            /* as numpy names it: "uint16" */
size_t im_tokens_nbytes(const im_tokens *t);                /* of the .bin */
bool im_tokens_masked(const im_tokens *t);                  /* there is a .mask */
const im_tokens_about *im_tokens_known(const im_tokens *t); /* NULL: there is no .json of these files */
/* ids [first, first+n) as i32. */
im_status im_tokens_read(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int32_t *out) IM_MUST_CHECK;
im_status im_tokens_read_mask(im_context *ctx, const im_tokens *t, int64_t first, int64_t n,
                              unsigned char *out) IM_MUST_CHECK; /* without mask: ones */
im_status im_tokens_id_range(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int64_t *least,
                             int64_t *largest) IM_MUST_CHECK; /* n 0: 0 and -1 */
/* Refuses ids beyond a model's vocabulary as far as constant time tells: by the description, else by sampled pages. */
im_status im_tokens_check_vocab(im_context *ctx, const im_tokens *t, int64_t vocab) IM_MUST_CHECK;
/* Document i is tokens [*first, *first + *n). Its index entries are checked here: opening looks only at some. */
im_status im_tokens_document(im_context *ctx, const im_tokens *t, int64_t i, int64_t *first, int64_t *n) IM_MUST_CHECK;
/* place[0..n]: where documents first, ..., first+n-1 begin, and where the last of them ends. */
im_status im_tokens_places(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int64_t *place) IM_MUST_CHECK;
im_status im_tokens_find(im_context *ctx, const im_tokens *t, int64_t at, int64_t *document) IM_MUST_CHECK; /* the one that token `at` lies in */
/* begins[i]: 1 when a document begins at token first+i. */
im_status im_tokens_begins(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, unsigned char *begins) IM_MUST_CHECK;
/* Walks the whole index (time in proportion to the number of sequences): every pointer, every length, every document. */
im_status im_tokens_verify(im_context *ctx, const im_tokens *t) IM_MUST_CHECK;

typedef struct im_tokens_writer im_tokens_writer;
typedef struct im_tokens_kind {
    im_dtype dtype; /* IM_U16, IM_I32 (Megatron's codes 8 and 4) */
    bool masked;    /* there is a PREFIX.mask */
} im_tokens_kind;
/* How far a writer is: all that is needed to go on with its temporary files. */
typedef struct im_tokens_place {
    int64_t tokens, sequences, documents, longest, min_id, max_id, counted, text_bytes;
} im_tokens_place;
/* Writes to temporary names (PREFIX.bin.tmp, .idx.tmp, .mask.tmp, locked against a second writer); only finish makes PREFIX.bin and the rest, in
 * place of older ones, the .idx last. A document of more than 2^31-1 tokens becomes several sequences. An append to a writer that has failed
 * fails again. */
im_status im_tokens_create(im_context *ctx, const char *prefix, im_dtype dtype, im_tokens_writer **out) IM_MUST_CHECK; /* without mask */
/* from: a place that im_tokens_writer_place told; what its temporary files have behind it is dropped. NULL: the start. */
im_status im_tokens_create_at(im_context *ctx, const char *prefix, const im_tokens_kind *kind, const im_tokens_place *from,
                              im_tokens_writer **out) IM_MUST_CHECK;
im_status im_tokens_append(im_tokens_writer *w, const int32_t *ids, size_t n) IM_MUST_CHECK;
im_status im_tokens_append_masked(im_tokens_writer *w, const int32_t *ids, const unsigned char *counted,
                                  size_t n) IM_MUST_CHECK;                                        /* NULL: all count */
im_status im_tokens_append_bytes(im_tokens_writer *w, const void *bytes, size_t n) IM_MUST_CHECK; /* byte-level ids */
im_status im_tokens_end_document(im_tokens_writer *w) IM_MUST_CHECK;                              /* without a token since the last end: nothing */
/* For PREFIX.json: what the ids are; of how much text (< 0: not known from here on). */
void im_tokens_tell(im_tokens_writer *w, const char *tokenizer, uint64_t fingerprint, int64_t vocab, int64_t eod);
void im_tokens_count_text(im_tokens_writer *w, int64_t nbytes);
int64_t im_tokens_written(const im_tokens_writer *w);
int64_t im_tokens_written_documents(const im_tokens_writer *w); /* ended ones */
/* Moves the tokens from `first` on to the (empty) writer `to`, documents with them; the one that `first` cuts becomes two. Not with a mask. */
im_status im_tokens_move_tail(im_tokens_writer *w, int64_t first, im_tokens_writer *to) IM_MUST_CHECK;
/* Between documents: all that was written is on the disk, and this is how far it goes. */
im_status im_tokens_writer_place(im_tokens_writer *w, im_tokens_place *out) IM_MUST_CHECK;
im_status im_tokens_finish(im_tokens_writer *w) IM_MUST_CHECK; /* frees w in every case */
void im_tokens_abandon(im_tokens_writer *w);                   /* removes the temporary files */
void im_tokens_leave(im_tokens_writer *w);                     /* leaves them, for a writer that goes on */

/* ---- what counting can do: interpolated n-gram models of ids below 257 ---------- */

enum { IM_NGRAM_MAX = 3 };
typedef struct im_ngram_result {
    double bits[IM_NGRAM_MAX + 1]; /* bits[k]: per scored token of `valid`, order k; bits[0]: all ids alike */
    int64_t scored, scored_bytes;  /* tokens 1.. of valid, and those that are bytes */
} im_ngram_result;
/* Jelinek-Mercer interpolation with a weight for each size class of the context's count, fitted by EM on a tenth of `train` held
 * out from the counts; then counts of all of `train` score `valid`. Memory: 68 MB. */
im_status im_ngram_score(im_context *ctx, const im_tokens *train, const im_tokens *valid, im_ngram_result *out) IM_MUST_CHECK;

/* ---- order ------------------------------------------------------------------- */
typedef enum im_order { IM_ORDER_SEQUENTIAL, IM_ORDER_SHUFFLED } im_order;
typedef struct im_sampler {
    int64_t samples; /* per epoch */
    im_order order;
    uint64_t seed;
} im_sampler;
/* Which of the samples stands at `position` (any >= 0; the epoch is position / samples). Shuffled: a keyed permutation per epoch (Feistel with
 * cycle walking), computed on the fly. */
int64_t im_sampler_index(const im_sampler *s, int64_t position);

#endif
