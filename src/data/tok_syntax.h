/* Patterns of tokenizer files, rewritten for PCRE2. Internal to src/data. */
#ifndef IM_DATA_TOK_SYNTAX_H
#define IM_DATA_TOK_SYNTAX_H

#include "base/base.h"

/* pattern: as Oniguruma reads it with Ruby's syntax. Appends the same for PCRE2 (with UTF and UCP). What has no translation here is
 * IM_ERR_UNSUPPORTED, with its place. *looks_back: the pattern may look at what stands before a match. */
im_status im_tok_syntax_translate(im_context *ctx, const char *where, const char *pattern, size_t len, im_str *out, bool *looks_back) IM_MUST_CHECK;

#endif
