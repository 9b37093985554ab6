/* The parts of a tokenizer. Internal to src/data.
 *
 *   bytes -> text -> pieces and added tokens -> normalized -> words -> symbols -> ids
 *
 *   tok_text      text made from text: what is no UTF-8, and where each part came from
 *   tok_unicode   utf8proc: classes of characters, normal forms
 *   tok_regex     PCRE2: a pattern as tokenizer files write it (Oniguruma's syntax) finds its matches
 *   tok_vocab     tokens by id and ids by token; merges by pair
 *   tok_added     tokens that are found in the text before anything else
 *   tok_steps     normalizers and pre-tokenizers
 *   tok_bpe       the ids of a word
 *   tok_load      all of this from a tokenizer.json
 */
#ifndef IM_DATA_TOK_PARTS_H
#define IM_DATA_TOK_PARTS_H

#include "base/json.h"
#include "data/tokenizer.h"

enum { IM_TOK_STEPS = 16, IM_TOK_ADDED_BYTES = 1024, IM_TOK_CHAR = 4 };

/* ---- text ------------------------------------------------------------------------------------------ */

/* A U+FFFD of a text that stands for bytes which are no UTF-8. */
typedef struct im_tok_mark {
    size_t at;
    unsigned char n, raw[3];
} im_tok_mark;

/* UTF-8, always valid. */
typedef struct im_tok_text {
    const char *s;
    size_t n;
    const im_tok_mark *mark; /* by place */
    size_t nmark;
} im_tok_text;

/* Bytes [at, at + n) are bytes [from, from + n) of the text this one was made from. */
typedef struct im_tok_copy {
    size_t at, from, n;
} im_tok_copy;

/* A text that was made from another one. */
typedef struct im_tok_made {
    im_str text;
    im_tok_mark *mark;
    size_t nmark, mark_cap;
    im_tok_copy *copy;
    size_t ncopy, copy_cap;
    bool traced; /* copies are recorded */
    bool failed; /* no memory */
} im_tok_made;

void im_tok_made_begin(im_tok_made *m, bool traced); /* empty; memory is kept */
void im_tok_made_free(im_tok_made *m);
void im_tok_made_copy(im_tok_made *m, const im_tok_text *t, size_t from, size_t to);
void im_tok_made_put(im_tok_made *m, const char *s, size_t n);
im_status im_tok_made_end(im_context *ctx, const im_tok_made *m, im_tok_text *out) IM_MUST_CHECK; /* out: a view of m */
/* The place of the source that byte `at` of m was copied from, or that a copy ended at; SIZE_MAX: neither. */
size_t im_tok_made_source(const im_tok_made *m, size_t at);

/* What is no UTF-8 becomes U+FFFD, one for each maximal part that could begin a character, and a mark when `keep`. Text that is all UTF-8 is
 * not copied: out views it. */
im_status im_tok_scrub(im_context *ctx, im_tok_made *m, const char *s, size_t n, bool keep, im_tok_text *out) IM_MUST_CHECK;
/* Bytes at the end of s that begin a character which is not whole. */
size_t im_tok_cut_short(const char *s, size_t n);
/* The first mark at or behind `at`. */
size_t im_tok_first_mark(const im_tok_text *t, size_t at);
bool im_tok_has_mark(const im_tok_text *t, size_t from, size_t to);

/* The character at s, which is valid UTF-8, and its bytes. */
static inline uint32_t im_tok_char(const char *s, size_t *n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n = 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *n = 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *n = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}
static inline size_t im_tok_char_bytes(char first)
{
    unsigned char b = (unsigned char)first;
    return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}
size_t im_tok_put_char(uint32_t c, char out[IM_TOK_CHAR]); /* bytes */
size_t im_tok_char_before(const char *s, size_t at);       /* where the character in front of `at` (> 0) begins */
/* GPT-2's alphabet: the character that stands for a byte, and back (-1: none does). */
uint32_t im_tok_byte_char(unsigned char byte);
int im_tok_char_byte(uint32_t c);

/* ---- Unicode ---------------------------------------------------------------------------------------- */

bool im_tok_is_space(uint32_t c);  /* White_Space */
bool im_tok_is_word(uint32_t c);   /* \w of Unicode's regular expressions */
bool im_tok_is_number(uint32_t c); /* Nd, Nl, No */
bool im_tok_is_punctuation(uint32_t c);
typedef enum im_tok_form { IM_TOK_NFC, IM_TOK_NFD, IM_TOK_NFKC, IM_TOK_NFKD } im_tok_form;
/* Appends the normal form of [from, to) of t. */
im_status im_tok_normal_form(im_context *ctx, im_tok_form form, const im_tok_text *t, size_t from, size_t to, im_tok_made *out) IM_MUST_CHECK;
void im_tok_unicode_versions(im_str *out); /* "utf8proc 2.8.0, PCRE2 10.42 ..." */

/* ---- patterns ------------------------------------------------------------------------------------------ */

typedef struct im_tok_regex im_tok_regex;
typedef struct im_tok_match im_tok_match; /* scratch of one thread */
/* `where` is for messages: "x.json: pre_tokenizer". */
im_status im_tok_regex_compile(im_context *ctx, const char *where, const char *pattern, size_t len, im_tok_regex **out) IM_MUST_CHECK;
void im_tok_regex_free(im_tok_regex *r);
bool im_tok_regex_looks_back(const im_tok_regex *r); /* a match may depend on what stands before its start */
im_status im_tok_match_create(im_context *ctx, im_tok_match **out) IM_MUST_CHECK;
void im_tok_match_free(im_tok_match *m);
typedef enum im_tok_found { IM_TOK_NONE, IM_TOK_FOUND, IM_TOK_OPEN } im_tok_found; /* OPEN: more text could change the answer (only with `more`) */
/* The first match in s at or behind `at`. */
im_status im_tok_regex_find(im_context *ctx, const im_tok_regex *r, im_tok_match *m, const char *s, size_t n, size_t at, bool more,
                            im_tok_found *found, size_t *start, size_t *end) IM_MUST_CHECK;

/* ---- vocabulary and merges -------------------------------------------------------------------------------- */

typedef struct im_tok_string {
    const char *s; /* NULL: no token has this id */
    uint32_t n;
} im_tok_string;

typedef struct im_tok_table {
    im_tok_string *token; /* [size] */
    int64_t size, count;
    int32_t *slot; /* open addressing over texts; -1: free */
    size_t nslot;
    size_t longest; /* bytes */
} im_tok_table;

/* room: ids, tokens. */
im_status im_tok_table_create(im_context *ctx, im_tok_table *v, int64_t size, size_t count) IM_MUST_CHECK;
void im_tok_table_free(im_tok_table *v);
/* The text must outlive v. false: the id or the text is taken. */
bool im_tok_table_add(im_tok_table *v, const char *s, size_t n, int32_t id);
int32_t im_tok_table_find(const im_tok_table *v, const char *s, size_t n); /* -1: none */

typedef struct im_tok_merge {
    uint64_t pair; /* left << 32 | right; IM_TOK_NO_PAIR: free */
    uint32_t rank;
    int32_t id;
} im_tok_merge;
#define IM_TOK_NO_PAIR UINT64_MAX

typedef struct im_tok_merges {
    im_tok_merge *slot;
    size_t nslot, n;
} im_tok_merges;
im_status im_tok_merges_create(im_context *ctx, im_tok_merges *m, size_t n) IM_MUST_CHECK;
void im_tok_merges_free(im_tok_merges *m);
void im_tok_merges_put(im_tok_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id); /* the last one of a pair counts */
static inline const im_tok_merge *im_tok_merges_find(const im_tok_merges *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 20) & (m->nslot - 1);; i = (i + 1) & (m->nslot - 1)) {
        if (m->slot[i].pair == pair)
            return &m->slot[i];
        if (m->slot[i].pair == IM_TOK_NO_PAIR)
            return NULL;
    }
}

typedef struct im_tok_model {
    im_tok_table vocab;
    im_tok_merges merges;
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;              /* -1: none */
    int32_t byte[256];        /* byte_fallback: <0xNN>; -1: none */
    int32_t byte_symbol[256]; /* of the characters that stand for bytes; -1: none */
    int32_t **page;           /* symbols of characters: page[c >> 8][c & 255]; NULL pages: none */
    /* Which symbols may stand side by side within a token. Where two others meet, no merge reaches across, so a long word falls apart there. */
    bool divides;
    im_tok_merges seam;
    unsigned char byte_seam[256][32]; /* the same for the symbols of bytes, as bits */
} im_tok_model;
/* Fills byte_symbol, page, seam, byte_seam and divides from the rest. */
im_status im_tok_model_finish(im_context *ctx, im_tok_model *m) IM_MUST_CHECK;
void im_tok_model_free(im_tok_model *m);
static inline int32_t im_tok_symbol(const im_tok_model *m, uint32_t c)
{
    const int32_t *page = m->page[c >> 8];
    return page ? page[c & 255] : -1;
}

/* ---- added tokens ------------------------------------------------------------------------------------------ */

typedef struct im_tok_added {
    const char *content, *pattern; /* pattern: the content, normalized where that is asked for */
    size_t len, pattern_len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} im_tok_added;

typedef struct im_tok_trie im_tok_trie;
im_status im_tok_trie_create(im_context *ctx, const im_tok_added *added, size_t n, bool normalized, im_tok_trie **out) IM_MUST_CHECK;
void im_tok_trie_free(im_tok_trie *t);
size_t im_tok_trie_longest(const im_tok_trie *t); /* 0: no token in it */
bool im_tok_trie_reaches(const im_tok_trie *t);   /* some token looks at what stands around it */
bool im_tok_trie_may_begin(const im_tok_trie *t, char first);
/* The next token in s[0, n) that counts. *at: where to look, and afterwards where to look on. bound: in front of it white space belongs to
 * others. [*start, *end): the token, with the white space that it takes along. NULL: none. */
const im_tok_added *im_tok_trie_find(const im_tok_trie *t, const char *s, size_t n, bool special_as_text, size_t *at, size_t bound, size_t *start,
                                     size_t *end);

/* ---- steps --------------------------------------------------------------------------------------------------- */

typedef enum im_tok_step_kind {
    IM_TOK_STEP_FORM, /* normalizers */
    IM_TOK_STEP_PREPEND,
    IM_TOK_STEP_REPLACE,
    IM_TOK_STEP_STRIP,
    IM_TOK_STEP_BYTES, /* normalizer and pre-tokenizer: characters that stand for bytes */
    IM_TOK_STEP_SPLIT, /* pre-tokenizers */
    IM_TOK_STEP_CLASS,
    IM_TOK_STEP_PREFIX, /* a space in front of what has none */
    IM_TOK_STEP_METASPACE
} im_tok_step_kind;

typedef enum im_tok_behavior { IM_TOK_REMOVED, IM_TOK_ISOLATED, IM_TOK_WITH_PREVIOUS, IM_TOK_WITH_NEXT, IM_TOK_CONTIGUOUS } im_tok_behavior;
typedef enum im_tok_class { IM_TOK_CLASS_NUMBER, IM_TOK_CLASS_PUNCTUATION, IM_TOK_CLASS_SPACE, IM_TOK_CLASS_CHAR } im_tok_class;
typedef enum im_tok_scheme { IM_TOK_ALWAYS, IM_TOK_FIRST, IM_TOK_NEVER } im_tok_scheme;

typedef struct im_tok_step {
    im_tok_step_kind kind;
    im_tok_form form;
    im_tok_regex *regex;      /* REPLACE, SPLIT; NULL: the literal */
    im_tok_string literal;    /* what is found; PREPEND: what is put */
    im_tok_string with;       /* REPLACE */
    bool left, right;         /* STRIP */
    im_tok_behavior behavior; /* SPLIT, CLASS */
    bool invert;
    im_tok_class of;
    uint32_t character;   /* CLASS_CHAR, METASPACE */
    im_tok_scheme scheme; /* METASPACE */
    bool split;
} im_tok_step;

typedef struct im_tok_steps {
    im_tok_step step[IM_TOK_STEPS];
    size_t n;
} im_tok_steps;

/* ---- decoders ---------------------------------------------------------------------------------------------------- */

typedef enum im_tok_decoder_kind {
    IM_TOK_DECODE_BYTES,
    IM_TOK_DECODE_FALLBACK,
    IM_TOK_DECODE_FUSE,
    IM_TOK_DECODE_REPLACE,
    IM_TOK_DECODE_STRIP,
    IM_TOK_DECODE_METASPACE,
    IM_TOK_DECODE_SPACES /* no decoder: tokens with a space between */
} im_tok_decoder_kind;

typedef struct im_tok_decoder {
    im_tok_decoder_kind kind;
    im_tok_string find, put;
    uint32_t character;
    int start, stop;
    im_tok_scheme scheme;
} im_tok_decoder;

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

struct im_tok {
    im_arena *arena;
    const char *path;
    uint64_t fingerprint;
    im_tok_model model;
    im_tok_added *added;
    size_t nadded;
    im_tok_table names;   /* added tokens by their texts */
    im_tok_trie *trie[2]; /* found in the text; in the normalized text */
    im_tok_steps normal, words;
    im_str part[3];          /* names of the parts of normalizer, pre_tokenizer and decoder */
    bool bytes;              /* words are bytes when they reach the model: the last step maps them, and is not run */
    bool keeps;              /* bytes that are no UTF-8 can be kept */
    bool streams;            /* a text can be cut, in principle */
    int32_t *before, *after; /* the template */
    size_t nbefore, nafter;
    im_tok_decoder decoder[IM_TOK_DECODERS];
    size_t ndecoder;
    int64_t size; /* every id is below this */
    int32_t eod, bos;
    unsigned char *special; /* [size] */
};

/* ---- ids of a word ------------------------------------------------------------------------------------------------------ */

/* Scratch and cache of one thread. */
typedef struct im_tok_bpe im_tok_bpe;
im_status im_tok_bpe_create(im_context *ctx, const im_tok *t, im_tok_bpe **out) IM_MUST_CHECK;
void im_tok_bpe_free(im_tok_bpe *b);
/* Appends the ids of the word [from, to). goes_on: it began earlier, at a place where no merge reaches across. */
im_status im_tok_bpe_word(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to, bool goes_on, im_tok_ids *out) IM_MUST_CHECK;
/* The same for a word of which more will come: up to *used, where no merge reaches across. */
im_status im_tok_bpe_part(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to, bool goes_on, im_tok_ids *out, size_t *used) IM_MUST_CHECK;

im_status im_tok_ids_room(im_context *ctx, im_tok_ids *ids, size_t more) IM_MUST_CHECK;

/* ---- a text as words ------------------------------------------------------------------------------------------------------- */

typedef struct im_tok_sink {
    void *arg;
    /* [from, to) of t; goes_on: the word began before that (in a text that comes in parts). */
    im_status (*word)(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on);
    /* The same of a word of which more will come; *used: how far it went. NULL: such words are held until they are whole. */
    im_status (*part)(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on, size_t *used);
    im_status (*token)(void *arg, int32_t id); /* an added token; NULL: added tokens are text */
    void (*cut)(void *arg, size_t at);         /* the text can be cut at this byte: what was given until now is all in front of it */
} im_tok_sink;

typedef struct im_tok_walk im_tok_walk; /* scratch of one thread, and where in a text it is */
im_status im_tok_walk_create(im_context *ctx, const im_tok *t, const im_tok_sink *sink, bool special_as_text, bool replace,
                             im_tok_walk **out) IM_MUST_CHECK;
void im_tok_walk_free(im_tok_walk *w);
void im_tok_walk_reset(im_tok_walk *w); /* the next bytes begin a text */
bool im_tok_walk_begun(const im_tok_walk *w);
/* Not `last`: what was given to the sink behind its last cut is void, and *used is where that cut was (0: there was none). */
im_status im_tok_walk_run(im_tok_walk *w, const char *s, size_t n, bool last, size_t *used) IM_MUST_CHECK;

#endif
