/* data: token files and the order in which a run reads them. Byte-level ids are the embedded default. */
#ifndef IM_DATA_H
#define IM_DATA_H

#include "device/device.h"

/* ---- byte-level ids: 0..255 the bytes, then special ids ---------------------- */
enum { IM_BYTE_EOD = 256, IM_BYTE_VOCAB = 257 };

/* ---- token files: Megatron's indexed dataset, PREFIX.bin and PREFIX.idx ------- */
typedef struct im_tokens im_tokens;
/* prefix, or the name of the .bin or .idx file. Mapped; nothing is trusted: magic, version, dtype, counts, offsets. */
im_status im_tokens_open(im_context *ctx, const char *prefix, im_tokens **out) IM_MUST_CHECK;
void im_tokens_close(im_tokens *t); /* NULL is allowed */
int64_t im_tokens_count(const im_tokens *t);
int64_t im_tokens_documents(const im_tokens *t);
uint64_t im_tokens_fingerprint(const im_tokens *t); /* of sizes, the index and sampled pages: constant time */
const char *im_tokens_prefix(const im_tokens *t);
/* ids [first, first+n) as i32. */
im_status im_tokens_read(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int32_t *out) IM_MUST_CHECK;
int32_t im_tokens_max_id(const im_tokens *t, int64_t first, int64_t n); /* largest id in a range */

typedef struct im_tokens_writer im_tokens_writer;
/* dtype IM_U16, IM_I32 (as Megatron's codes 8 and 4). Writes to temporary names; only finish makes PREFIX.bin and .idx. */
im_status im_tokens_create(im_context *ctx, const char *prefix, im_dtype dtype, im_tokens_writer **out) IM_MUST_CHECK;
im_status im_tokens_append(im_tokens_writer *w, const int32_t *ids, size_t n) IM_MUST_CHECK;
im_status im_tokens_end_document(im_tokens_writer *w) IM_MUST_CHECK;
im_status im_tokens_finish(im_tokens_writer *w) IM_MUST_CHECK; /* frees w in every case */
void im_tokens_abandon(im_tokens_writer *w);                   /* removes the temporary files */

/* ---- order ------------------------------------------------------------------- */
typedef enum im_order { IM_ORDER_SEQUENTIAL, IM_ORDER_SHUFFLED } im_order;
typedef struct im_sampler {
    const im_tokens *tokens;
    int64_t seq_len;     /* T: sample i is tokens i*T .. i*T+T inclusive */
    int64_t samples;     /* per epoch: (count - 1) / T */
    im_order order;
    uint64_t seed;
} im_sampler;
/* Refuses data shorter than one sample. */
im_status im_sampler_init(im_context *ctx, im_sampler *s, const im_tokens *t, int64_t seq_len, im_order order, uint64_t seed) IM_MUST_CHECK;
/* Index in the file of the sample at global position `position` (any >= 0; the epoch is position / samples). Shuffled: a keyed
 * permutation per epoch (Feistel with cycle walking), computed on the fly. */
int64_t im_sampler_index(const im_sampler *s, int64_t position);
/* T ids and T targets of the sample at `position`. An id >= vocab is an error that names file, offset and id. */
im_status im_sampler_read(im_context *ctx, const im_sampler *s, int64_t position, int64_t vocab, int32_t *ids, int32_t *targets) IM_MUST_CHECK;

#endif
