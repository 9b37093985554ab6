/* The parts of a trainer. Internal to src/data. */
#ifndef IM_DATA_TOK_TRAIN_PARTS_H
#define IM_DATA_TOK_TRAIN_PARTS_H

#include "data/tok_parts.h"
#include "data/tok_train.h"

/* ---- counted words ------------------------------------------------------------------------------------ */

typedef struct im_tok_count {
    const char *s; /* NULL: free */
    size_t n;
    uint64_t count;
} im_tok_count;

typedef struct im_tok_counts {
    im_context *ctx;
    im_arena *text;
    im_tok_count *slot; /* open addressing */
    size_t nslot, n;
} im_tok_counts;
im_status im_tok_counts_create(im_context *ctx, im_tok_counts *c) IM_MUST_CHECK;
void im_tok_counts_free(im_tok_counts *c);
/* The text is copied. */
im_status im_tok_counts_add(im_tok_counts *c, const char *s, size_t n, uint64_t count) IM_MUST_CHECK;

/* ---- merging -------------------------------------------------------------------------------------------- */

typedef struct im_tok_learned {
    int32_t left, right, id;
} im_tok_learned;

/* Words as symbols, one behind the other: *symbol ends each word with -1. */
typedef struct im_tok_lesson {
    int32_t *symbol;
    uint32_t *word;  /* of each symbol */
    uint64_t *count; /* of each word */
    size_t nsymbol, nword;
    im_tok_table *vocab; /* has room for vocab_size tokens */
    im_arena *arena;     /* of their texts */
    int64_t vocab_size;
    uint64_t min_frequency;
    size_t max_length; /* characters; SIZE_MAX: any */
} im_tok_lesson;

/* Fills vocab; *out is freed by the caller. symbol and word are spoiled. */
im_status im_tok_learn(im_context *ctx, im_tok_lesson *lesson, im_tok_train_progress progress, void *arg, im_tok_learned **out, size_t *n,
                       bool *exhausted) IM_MUST_CHECK;

/* ---- the file ------------------------------------------------------------------------------------------- */

/* The components around the model, as JSON. */
typedef struct im_tok_shell {
    im_str normalizer, pre_tokenizer, post_processor, decoder, unk; /* unk: null, or a token */
    bool byte_fallback, fuse_unk, ignore_merges;
} im_tok_shell;
void im_tok_shell_free(im_tok_shell *s);
void im_tok_shell_of_style(im_tok_style style, bool prefix_space, im_tok_shell *out);
void im_tok_shell_of_json(const im_json_value *root, im_tok_shell *out);
/* A tokenizer.json. special: ids below nspecial are added tokens. `post` may be rewritten: ids behind the names of tokens become those of v. */
im_status im_tok_write(im_context *ctx, const im_tok_shell *s, const im_tok_table *v, size_t nspecial, const im_tok_learned *merge, size_t nmerge,
                       im_str *out) IM_MUST_CHECK;

#endif
