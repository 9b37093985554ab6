/* Tokenizers: text to ids and back, as a Hugging Face tokenizer.json of the BPE kind says.
 *
 *   im_tok         what the file says; read only once it is open, so any number of threads may share it
 *   im_tok_coder   what one thread needs to encode: scratch, the cache of words
 *   im_tok_stream  ids to bytes, as they come
 *
 * Text is bytes. What is no UTF-8 keeps its bytes where the tokenizer is byte-level (im_tok_lossless): the text is cut into words as if U+FFFD
 * stood there, and the words then have the bytes themselves. Elsewhere, and with `replace`, U+FFFD takes the place of each maximal part that
 * could begin a character, as Python's bytes.decode("utf-8", "replace") does.
 */
#ifndef IM_DATA_TOKENIZER_H
#define IM_DATA_TOKENIZER_H

#include "base/base.h"

typedef struct im_tok im_tok;
typedef struct im_tok_coder im_tok_coder;

/* ---- the file ------------------------------------------------------------------------------------- */

/* path: a tokenizer.json, or a directory with one. In a directory (or beside the file) tokenizer_config.json tells which token ends a text.
 * A component that this code does not do is IM_ERR_UNSUPPORTED, by its name; a file that makes no sense IM_ERR_FORMAT. */
im_status im_tok_open(im_context *ctx, const char *path, im_tok **out) IM_MUST_CHECK;
/* The same from memory; `name` is what messages call it. */
im_status im_tok_parse(im_context *ctx, const char *name, const char *json, size_t len, im_tok **out) IM_MUST_CHECK;
void im_tok_close(im_tok *t);        /* NULL is allowed */
bool im_tok_in_dir(const char *dir); /* there is a tokenizer.json */

const char *im_tok_path(const im_tok *t);     /* of the tokenizer.json */
int64_t im_tok_vocab(const im_tok *t);        /* every id is below this */
uint64_t im_tok_fingerprint(const im_tok *t); /* of the bytes of tokenizer.json */
bool im_tok_lossless(const im_tok *t);        /* decode(encode(x)) is x for any bytes x without normalized or stripped parts */
int32_t im_tok_eod(const im_tok *t); /* what ends a document: the eos_token of tokenizer_config.json, else a token with a usual name; -1: none */
int32_t im_tok_bos(const im_tok *t); /* likewise; -1: none */
int32_t im_tok_find(const im_tok *t, const char *token); /* the id of a token as the file writes it; -1: none */
/* The token as the file writes it ("Ġthe"); NULL: no such id. */
const char *im_tok_token(const im_tok *t, int32_t id, size_t *len);
bool im_tok_is_special(const im_tok *t, int32_t id);

bool im_tok_set_eod(im_tok *t, const char *token); /* before t is shared; false: no such token */

/* What it is made of, for people. */
typedef struct im_tok_about {
    int64_t tokens, merges, added, special;
    const char *normalizer, *pre_tokenizer, *decoder; /* the names of their parts: "Digits, ByteLevel" */
    bool bytes;                                       /* bytes that are no UTF-8 are kept */
} im_tok_about;
void im_tok_tell(const im_tok *t, im_tok_about *out);

/* ---- text to ids ----------------------------------------------------------------------------------- */

typedef struct im_tok_ids {
    int32_t *id;
    size_t n, cap;
} im_tok_ids;
void im_tok_ids_free(im_tok_ids *ids);

typedef struct im_tok_coding {
    bool special_as_text; /* special tokens that stand in the text are encoded as its letters; false: as themselves, as the file says */
    bool replace;         /* what is no UTF-8 becomes U+FFFD also where it could keep its bytes */
    bool template;        /* ids that the post-processor puts around a text: <s>, <|begin_of_text|>, ... */
} im_tok_coding;

im_status im_tok_coder_create(im_context *ctx, const im_tok *t, const im_tok_coding *how, im_tok_coder **out) IM_MUST_CHECK;
void im_tok_coder_destroy(im_tok_coder *c); /* NULL is allowed */
/* Appends the ids of a whole text. Time and memory are linear in n (a word without end: n log n). */
im_status im_tok_encode(im_tok_coder *c, const void *bytes, size_t n, im_tok_ids *out) IM_MUST_CHECK;
/* A text in pieces, with the ids of the whole. *used of the n bytes are encoded now; the rest must be given again in front of what comes
 * next, and may be all of them (then more bytes are needed to go on: double the buffer). last: the text ends here, all are used, and the next
 * call begins another text. After an error: im_tok_coder_reset. */
im_status im_tok_encode_part(im_tok_coder *c, const void *bytes, size_t n, bool last, im_tok_ids *out, size_t *used) IM_MUST_CHECK;
void im_tok_coder_reset(im_tok_coder *c); /* the next call begins a text */

/* work(arg, thread, i) for each i of [0, n), by several threads at once and in any order; each thread has its own number, from 0. The first
 * error ends it. */
im_status im_tok_each(im_context *ctx, int threads, size_t n, im_status (*work)(void *arg, int thread, size_t i), void *arg) IM_MUST_CHECK;

/* ---- ids to bytes ------------------------------------------------------------------------------------ */

/* Appends the bytes of n ids. skip_special: special tokens give nothing. Ids without a token: IM_ERR_FORMAT. */
im_status im_tok_decode(im_context *ctx, const im_tok *t, const int32_t *ids, size_t n, bool skip_special, im_str *out) IM_MUST_CHECK;

/* One id at a time; what is certain is appended at once. Zeros begin a text. */
enum { IM_TOK_DECODERS = 8 };
typedef struct im_tok_stream {
    struct {
        bool begun;  /* a token has come */
        int cut;     /* characters taken off the front of what is one token now */
        im_str held; /* may still change: bytes of a character, characters that may be the last */
    } stage[IM_TOK_DECODERS];
} im_tok_stream;
im_status im_tok_stream_push(im_context *ctx, const im_tok *t, im_tok_stream *s, int32_t id, bool skip_special, im_str *out) IM_MUST_CHECK;
im_status im_tok_stream_end(im_context *ctx, const im_tok *t, im_tok_stream *s,
                            im_str *out) IM_MUST_CHECK; /* appends what was held; the next push begins a text */
void im_tok_stream_free(im_tok_stream *s);

/* How many bytes a token stands for in the middle of a text: for bits per byte. Special tokens: 0. -1: no such id. */
int64_t im_tok_token_bytes(const im_tok *t, int32_t id);

#endif
