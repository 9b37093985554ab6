/* The parts of a tokenizer.json, read one by one. Internal to src/data. */
#ifndef IM_DATA_TOK_LOAD_H
#define IM_DATA_TOK_LOAD_H

#include "data/tok_parts.h"

typedef struct im_tok_loader {
    im_context *ctx;
    im_tok *t;
    const im_json *doc;
} im_tok_loader;

enum { IM_TOK_MOST_IDS = 1 << 24, IM_TOK_NESTED = 8 };

/* IM_ERR_UNSUPPORTED: `part` of the file is or has `what`. */
im_status im_tok_refuse(const im_tok_loader *l, const char *part, const char *what, const char *detail);
/* A text, copied to the tokenizer. */
im_status im_tok_load_string(const im_tok_loader *l, const char *part, const im_json_value *object, const char *key,
                             im_tok_string *out) IM_MUST_CHECK;
im_status im_tok_load_bool(const im_tok_loader *l, const char *part, const im_json_value *object, const char *key, bool fallback,
                           bool *out) IM_MUST_CHECK;
const char *im_tok_type(const im_json_value *component); /* "" when it has none */

im_status im_tok_load_model(im_tok_loader *l, const im_json_value *model) IM_MUST_CHECK;
im_status im_tok_load_normalizer(im_tok_loader *l, const im_json_value *v, int depth) IM_MUST_CHECK;
im_status im_tok_load_pre_tokenizer(im_tok_loader *l, const im_json_value *v, int depth) IM_MUST_CHECK;
im_status im_tok_load_template(im_tok_loader *l, const im_json_value *v, int depth) IM_MUST_CHECK;
im_status im_tok_load_decoder(im_tok_loader *l, const im_json_value *v, int depth) IM_MUST_CHECK;

#endif
