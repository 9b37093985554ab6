/* Parts of the feed: what is written in a spec, whose turn it is in a blend, documents in rows. Internal to src/data (and its tests). */
#ifndef IM_DATA_FEED_PARTS_H
#define IM_DATA_FEED_PARTS_H

#include "data/feed.h"

/* ---- spec.c ------------------------------------------------------------------------------------ */

typedef struct im_spec_source {
    const char *weight; /* as it was written; NULL: none */
    const char **name;
    size_t n;
} im_spec_source;
typedef struct im_spec {
    im_spec_source *source;
    size_t n;
    bool file; /* it was a YAML file */
} im_spec;
/* Strings live in the arena. Either all sources have a weight or there is one source. */
im_status im_spec_parse(im_context *ctx, im_arena *a, const char *text, im_spec *out) IM_MUST_CHECK;

/* ---- blend.c ----------------------------------------------------------------------------------- */

enum { IM_BLEND_SOURCES = 256, IM_BLEND_PERIOD = 1000000 };
/* Weights as whole numbers whose sum is the period; in it, source s of slot t has had before[t] of its weight[s] turns. */
typedef struct im_blend {
    size_t n;
    int64_t weight[IM_BLEND_SOURCES], period;
    uint16_t *source;
    uint32_t *before;
} im_blend;
/* Decimal weights, taken exactly: 0.7 and 0.3 are 7 and 3 of 10. */
im_status im_blend_init(im_context *ctx, const char *const *weight, size_t n, im_blend *out) IM_MUST_CHECK;
void im_blend_free(im_blend *b);
/* Whose turn it is at position p, and how many it had before. */
void im_blend_at(const im_blend *b, int64_t p, size_t *source, int64_t *turn);

/* ---- rows.c ------------------------------------------------------------------------------------ */

typedef struct im_piece {
    int64_t first; /* token of the stream */
    int32_t n;     /* tokens: n - 1 inputs */
    int32_t next;  /* the next piece of the row; -1: the last */
} im_piece;
typedef struct im_rows {
    im_piece *piece;
    int64_t npiece;
    int32_t *head; /* of each row; NULL: row i is piece i */
    int64_t n;
} im_rows;
typedef struct im_rows_config {
    int64_t seq_len;
    bool pack;
    im_long too_long;
} im_rows_config;
/* Collects documents in order. */
typedef struct im_rows_builder im_rows_builder;
im_status im_rows_begin(im_context *ctx, const im_rows_config *cfg, im_rows_builder **out) IM_MUST_CHECK;
/* name and number: for messages, name borrowed until the end. Documents of fewer than 2 tokens have no target, and no row. */
im_status im_rows_add(im_rows_builder *b, int64_t first, int64_t n, const char *name, int64_t number) IM_MUST_CHECK;
im_status im_rows_end(im_rows_builder *b, im_rows *out) IM_MUST_CHECK; /* frees b in every case */
void im_rows_abandon(im_rows_builder *b);                              /* NULL is allowed */
void im_rows_free(im_rows *r);

#endif
