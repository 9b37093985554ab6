/* Training a tokenizer: the words of a text are counted, and the pair of neighbours that is most frequent becomes a token, again and again.
 *
 * The tokens, and the order of the merges, are those of Hugging Face's BpeTrainer on the same texts and options.
 */
#ifndef IM_DATA_TOK_TRAIN_H
#define IM_DATA_TOK_TRAIN_H

#include "data/tokenizer.h"

/* ---- what the tokenizer will be like --------------------------------------------------------------------- */

typedef enum im_tok_style { IM_TOK_STYLE_GPT2, IM_TOK_STYLE_LLAMA3, IM_TOK_STYLE_QWEN2, IM_TOK_STYLE_SMOLLM2, IM_TOK_STYLE_METASPACE } im_tok_style;
#define IM_TOK_STYLES "gpt2|llama3|qwen2|smollm2|metaspace"

typedef struct im_tok_train_config {
    im_tok_style style;
    const char *like;   /* a tokenizer.json or its directory: its components and special tokens (instead of a style); NULL: none */
    bool prefix_space;  /* a space in front of a text that has none; of styles */
    int64_t vocab_size; /* tokens in all, special ones too */
    int64_t min_frequency;
    int64_t limit_alphabet;   /* most characters of the alphabet; 0: all */
    int64_t max_token_length; /* characters; 0: any */
    bool byte_alphabet;       /* all 256 bytes are tokens, seen or not (byte-level styles) */
    const char *alphabet;     /* characters that are tokens, seen or not; NULL: none */
    const char *const *special;
    size_t nspecial;
} im_tok_train_config;

typedef struct im_tok_trainer im_tok_trainer;
im_status im_tok_trainer_create(im_context *ctx, const im_tok_train_config *cfg, im_tok_trainer **out) IM_MUST_CHECK;
void im_tok_trainer_destroy(im_tok_trainer *t); /* NULL is allowed */

/* ---- counting: a counter for each thread ------------------------------------------------------------------- */

typedef struct im_tok_counter im_tok_counter;
im_status im_tok_counter_create(im_context *ctx, const im_tok_trainer *t, im_tok_counter **out) IM_MUST_CHECK;
void im_tok_counter_destroy(im_tok_counter *c); /* NULL is allowed */
/* Counts the words of a text, or of a part of it as im_tok_encode_part takes them. */
im_status im_tok_counter_add(im_tok_counter *c, const void *bytes, size_t n, bool last, size_t *used) IM_MUST_CHECK;

/* ---- training ------------------------------------------------------------------------------------------------- */

typedef struct im_tok_train_result {
    int64_t tokens, merges, alphabet, words; /* words: different ones */
    bool exhausted;                          /* there was nothing more to merge before vocab_size was reached */
} im_tok_train_result;
/* May be NULL; told now and then; true: stop, IM_ERR_ABORTED. */
typedef bool (*im_tok_train_progress)(void *arg, int64_t tokens, int64_t of);
/* json: the tokenizer.json, which im_tok_parse takes. */
im_status im_tok_trainer_run(im_tok_trainer *t, im_tok_counter *const *counter, size_t ncounter, im_tok_train_progress progress, void *arg,
                             im_str *json, im_tok_train_result *result) IM_MUST_CHECK;

#endif
