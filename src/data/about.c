#include "data/about.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, MOST_BYTES = 1 << 16 };

im_status im_tokens_about_write(im_context *ctx, const char *path, const im_tokens_about *a)
{
    im_str s = {0};
    im_str_printf(&s, "{\"format\": %d, \"tokens\": %" PRId64 ", \"documents\": %" PRId64 ", \"longest\": %" PRId64, FORMAT, a->tokens, a->documents,
                  a->longest);
    im_str_printf(&s, ", \"min_id\": %" PRId64 ", \"max_id\": %" PRId64 ", \"counted\": %" PRId64 ", \"text_bytes\": %" PRId64, a->min_id, a->max_id,
                  a->counted, a->text_bytes);
    im_str_append(&s, ", \"tokenizer\": ");
    im_str_json_string(&s, a->tokenizer, strlen(a->tokenizer));
    im_str_printf(&s, ", \"tokenizer_fingerprint\": \"%016" PRIx64 "\", \"vocab\": %" PRId64 ", \"eod\": %" PRId64, a->tokenizer_fingerprint,
                  a->vocab, a->eod);
    im_str_printf(&s, ", \"fingerprint\": \"%016" PRIx64 "\"}\n", a->fingerprint);
    im_status status = s.failed ? im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for its text", path) : im_file_write_atomic(ctx, path, s.data, s.len);
    im_str_free(&s);
    return status;
}

static im_status need_hex(im_context *ctx, const im_json *doc, const char *key, uint64_t *out)
{
    const char *text;
    char *end;
    IM_TRY(im_json_need_string(ctx, doc, im_json_root(doc), key, &text));
    *out = strtoull(text, &end, 16);
    if (end == text || *end || strlen(text) > 16)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s is \"%s\", not up to 16 hexadecimal digits", im_json_name(doc), key, text);
    return IM_OK;
}

static im_status parse(im_context *ctx, const im_json *doc, im_tokens_about *a)
{
    const im_json_value *root = im_json_root(doc);
    const char *tokenizer;
    int64_t format;
    const struct {
        const char *key;
        int64_t least, *to;
    } rows[] = {{"tokens", 0, &a->tokens},          {"documents", 0, &a->documents}, {"longest", 0, &a->longest},
                {"min_id", -1, &a->min_id},         {"max_id", -1, &a->max_id},      {"counted", 0, &a->counted},
                {"text_bytes", -1, &a->text_bytes}, {"vocab", 0, &a->vocab},         {"eod", -1, &a->eod}};
    IM_TRY(im_json_need_int(ctx, doc, root, "format", FORMAT, FORMAT, &format));
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++)
        IM_TRY(im_json_need_int(ctx, doc, root, rows[i].key, rows[i].least, INT64_MAX, rows[i].to));
    IM_TRY(need_hex(ctx, doc, "fingerprint", &a->fingerprint));
    IM_TRY(need_hex(ctx, doc, "tokenizer_fingerprint", &a->tokenizer_fingerprint));
    IM_TRY(im_json_need_string(ctx, doc, root, "tokenizer", &tokenizer));
    if (strlen(tokenizer) >= sizeof a->tokenizer)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: tokenizer: longer than %zu bytes", im_json_name(doc), sizeof a->tokenizer - 1);
    memcpy(a->tokenizer, tokenizer, strlen(tokenizer) + 1);
    return IM_OK;
}

im_status im_tokens_about_read(im_context *ctx, const char *path, im_tokens_about *out)
{
    im_json *doc;
    im_tokens_about a = {0};
    IM_TRY(im_json_load(ctx, path, MOST_BYTES, &doc));
    im_status status = parse(ctx, doc, &a);
    im_json_free(doc);
    if (status == IM_OK)
        *out = a;
    return status;
}
