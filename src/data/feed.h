/* feed: the samples of a run, out of one token file, several, or a blend of them. A sample is a row of seq_len inputs, each with its target, its
 * position and the segment that its attention stays in. Sample p of a run is a function of p, the files and the options alone: the place of a run in
 * its data is one integer, whatever the layout, and nothing is read at the start in proportion to the corpus (but for packs, see below).
 *
 * Which files (`spec`):
 *   NAME                  a token file
 *   A,B,C                 one corpus in several files: one stream, in this order
 *   0.7:A,0.3:B           a blend: after any n samples, source i has given floor or ceil of n times its share
 *   FILE.yaml             the same, written down; a source may be several files
 *                             sources:
 *                               - {data: web-train, weight: 0.7}
 *                               - {data: [books-1, books-2], weight: 0.3}
 *
 * How samples are made of tokens (`pack`):
 *   STREAM   sample i is tokens iT .. iT+T of the stream; documents are cut anywhere
 *   WHOLE    whole documents, as many as fit a row; the rest of a row is padding
 *   NONE     one document a row, and padding
 * WHOLE and NONE read all document lengths at the start (some 4 s for ten million) and keep 16 bytes of each.
 */
#ifndef IM_DATA_FEED_H
#define IM_DATA_FEED_H

#include "data/data.h"

typedef enum im_pack { IM_PACK_AUTO, IM_PACK_STREAM, IM_PACK_WHOLE, IM_PACK_NONE } im_pack; /* auto: WHOLE for files with a mask, else STREAM */
typedef enum im_reach { IM_REACH_AUTO, IM_REACH_CAUSAL, IM_REACH_DOCUMENT } im_reach;       /* auto: DOCUMENT with WHOLE, else CAUSAL */
typedef enum im_long { IM_LONG_REFUSE, IM_LONG_CUT, IM_LONG_SPLIT, IM_LONG_SKIP } im_long;  /* WHOLE, NONE: documents that no row has room for */

typedef struct im_feed_config {
    int64_t seq_len, vocab;
    im_order order;
    uint64_t seed;
    im_pack pack;
    im_reach attention;
    im_long too_long;
    double valid_share; /* of the tokens of each file: its last documents are for validation */
    bool valid;         /* these are meant: all of the files when valid_share is 0, without weights */
} im_feed_config;

typedef struct im_feed im_feed;
/* Refuses files whose ids the vocabulary does not have, as far as constant time tells, and those that have no sample. */
im_status im_feed_open(im_context *ctx, const char *spec, const im_feed_config *cfg, im_feed **out) IM_MUST_CHECK;
void im_feed_close(im_feed *f); /* NULL is allowed */
/* Warns of each file that surely has ids of another tokenizer than the tokenizer.json in `dir` (NULL, or none there: nothing is known), as far as
 * the file's .json tells: bytes, or a tokenizer of another size. A tokenizer.json that was only written again has other bytes and the same size. */
void im_feed_warn_tokenizer(im_context *ctx, const im_feed *f, const char *dir);

int64_t im_feed_tokens(const im_feed *f);       /* of all files, the parts that are meant */
int64_t im_feed_samples(const im_feed *f);      /* of all sources, each once */
uint64_t im_feed_fingerprint(const im_feed *f); /* of all files and weights */
im_pack im_feed_pack(const im_feed *f);         /* never AUTO */
bool im_feed_documents(const im_feed *f);       /* attention stays within documents */

typedef struct im_feed_source {
    const char *name; /* of its first file */
    size_t files;
    double share; /* of the samples of the run */
    int64_t tokens, samples;
    bool masked;
} im_feed_source;
size_t im_feed_sources(const im_feed *f);
im_feed_source im_feed_source_of(const im_feed *f, size_t i);
/* The files themselves, in the order of the sources. */
typedef struct im_feed_name {
    const char *name;
    uint64_t fingerprint;
    int64_t tokens; /* of the part that is meant */
} im_feed_name;
size_t im_feed_files(const im_feed *f);
im_feed_name im_feed_file_of(const im_feed *f, size_t i);
/* Which source the sample at `position` comes from, and which of its samples it is. */
void im_feed_where(const im_feed *f, int64_t position, size_t *source, int64_t *sample);

/* The sample at `position` (any >= 0): T = seq_len of each. targets: -1 where the loss does not count. pos: from 0, anew in each document when
 * attention stays within documents. seg may be NULL. An id beyond the vocabulary is an error that names file, token and id. */
im_status im_feed_read(im_context *ctx, const im_feed *f, int64_t position, int32_t *ids, int32_t *targets, int32_t *pos, int32_t *seg) IM_MUST_CHECK;
/* STREAM, one source: n inputs from token `at` on. */
im_status im_feed_read_at(im_context *ctx, const im_feed *f, int64_t at, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos,
                          int32_t *seg) IM_MUST_CHECK;

/* The spec with `absolute` applied to each name in it; lives in the arena. NULL: no memory, or a spec that cannot be read. */
const char *im_feed_spec_map(im_context *ctx, im_arena *a, const char *spec, const char *(*absolute)(void *arg, const char *name), void *arg);

#endif
