/* Documents to ids: what one thread needs for it. Internal to src/data (and its fuzz target). */
#ifndef IM_DATA_ENCODER_H
#define IM_DATA_ENCODER_H

#include "base/json.h"
#include "data/batch.h"

typedef struct im_encoder im_encoder;
im_status im_encoder_create(im_context *ctx, const im_corpus_config *cfg, im_encoder **out) IM_MUST_CHECK;
void im_encoder_destroy(im_encoder *e); /* NULL is allowed */
/* The whole documents of a batch. Errors are in the batch: the first document that is not what it should be ends it, or (skip_bad) is marked. */
void im_encoder_batch(im_encoder *e, im_batch *b);
/* The next part of a long document of text; its ids are those of the whole. */
im_status im_encoder_part(im_encoder *e, const unsigned char *bytes, size_t n, bool last, im_tok_ids *out) IM_MUST_CHECK;

/* jsonl.c: a line of a .jsonl file. The text of its field, which the document owns; or the turns of a conversation as ids. */
im_status im_jsonl_text(im_context *ctx, const im_json *doc, int64_t line, const char *field, const char **text, size_t *n) IM_MUST_CHECK;
im_status im_jsonl_chat(im_context *ctx, const im_json *doc, int64_t line, im_chat *chat, im_chat_ids *out) IM_MUST_CHECK;

#endif
