/* A tokenizer.json from its parts. */
#include "data/tok_train_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- components ------------------------------------------------------------------------------------------- */

static void byte_level(im_str *out, bool prefix_space, bool trim, bool regex)
{
    im_str_printf(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": %s, \"use_regex\": %s}",
                  prefix_space ? "true" : "false", trim ? "true" : "false", regex ? "true" : "false");
}

/* A pattern, then bytes. */
static void pattern_and_bytes(im_str *out, const char *pattern, bool prefix_space)
{
    im_str_append(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    im_str_json_string(out, pattern, strlen(pattern));
    im_str_append(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    byte_level(out, prefix_space, true, false);
    im_str_append(out, "]}");
}

/* The patterns of Llama 3 and of Qwen 2: contractions, words with what stands in front, numbers of up to three digits or of one, other characters,
 * line ends, spaces. */
#define WORDS_THEN "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define THEN_OTHERS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

void im_tok_shell_of_style(im_tok_style style, bool prefix_space, im_tok_shell *out)
{
    static const char metaspace[] = "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"always\", \"split\": true}";
    *out = (im_tok_shell){0};
    im_str_append(&out->unk, "null");
    im_str_append(&out->normalizer, style == IM_TOK_STYLE_QWEN2 ? "{\"type\": \"NFC\"}" : "null");
    switch (style) {
    case IM_TOK_STYLE_LLAMA3: pattern_and_bytes(&out->pre_tokenizer, WORDS_THEN "\\p{N}{1,3}" THEN_OTHERS, prefix_space); break;
    case IM_TOK_STYLE_QWEN2: pattern_and_bytes(&out->pre_tokenizer, WORDS_THEN "\\p{N}" THEN_OTHERS, prefix_space); break;
    case IM_TOK_STYLE_SMOLLM2:
        im_str_append(&out->pre_tokenizer, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, ");
        byte_level(&out->pre_tokenizer, prefix_space, true, true);
        im_str_append(&out->pre_tokenizer, "]}");
        break;
    case IM_TOK_STYLE_METASPACE:
        im_str_append(&out->pre_tokenizer, metaspace);
        im_str_append(&out->post_processor, "null");
        im_str_append(&out->decoder, metaspace);
        return;
    default: byte_level(&out->pre_tokenizer, prefix_space, true, true);
    }
    byte_level(&out->post_processor, prefix_space, false, true);
    byte_level(&out->decoder, true, true, true);
}

static void put_value(const im_json_value *v, im_str *out)
{
    char number[32];
    const char *key;
    size_t n = im_json_length(v);
    switch (im_json_type_of(v)) {
    case IM_JSON_NULL: im_str_append(out, "null"); break;
    case IM_JSON_BOOL: im_str_append(out, im_json_bool(v, false) ? "true" : "false"); break;
    case IM_JSON_STRING: im_str_json_string(out, im_json_string(v, ""), im_json_string_len(v)); break;
    case IM_JSON_ARRAY:
        im_str_append(out, "[");
        for (size_t i = 0; i < n; i++) {
            im_str_append(out, i ? ", " : "");
            put_value(im_json_at(v, i), out);
        }
        im_str_append(out, "]");
        break;
    case IM_JSON_OBJECT:
        im_str_append(out, "{");
        for (size_t i = 0; i < n; i++) {
            const im_json_value *child = im_json_member(v, i, &key);
            im_str_append(out, i ? ", " : "");
            im_str_json_string(out, key, strlen(key));
            im_str_append(out, ": ");
            put_value(child, out);
        }
        im_str_append(out, "}");
        break;
    default: im_str_append(out, im_json_text(v, number, sizeof number));
    }
}

void im_tok_shell_of_json(const im_json_value *root, im_tok_shell *out)
{
    const im_json_value *model = im_json_get(root, "model");
    *out = (im_tok_shell){.byte_fallback = im_json_bool(im_json_get(model, "byte_fallback"), false),
                          .fuse_unk = im_json_bool(im_json_get(model, "fuse_unk"), false),
                          .ignore_merges = im_json_bool(im_json_get(model, "ignore_merges"), false)};
    put_value(im_json_get(root, "normalizer"), &out->normalizer);
    put_value(im_json_get(root, "pre_tokenizer"), &out->pre_tokenizer);
    put_value(im_json_get(root, "post_processor"), &out->post_processor);
    put_value(im_json_get(root, "decoder"), &out->decoder);
    put_value(im_json_get(model, "unk_token"), &out->unk);
}

void im_tok_shell_free(im_tok_shell *s)
{
    im_str_free(&s->normalizer);
    im_str_free(&s->pre_tokenizer);
    im_str_free(&s->post_processor);
    im_str_free(&s->decoder);
    im_str_free(&s->unk);
}

/* ---- a post_processor for other ids ----------------------------------------------------------------------- */

static im_status put_id(im_context *ctx, const im_tok_table *v, const im_json_value *name, im_str *out)
{
    int32_t id = im_tok_table_find(v, im_json_string(name, ""), im_json_string_len(name));
    if (id < 0)
        return im_fail(ctx, IM_ERR_ARG, "the post_processor puts \"%.80s\" beside a text, which is not among the special tokens: name it as one",
                       im_json_string(name, ""));
    im_str_printf(out, "%d", id);
    return IM_OK;
}

static im_status put_post(im_context *ctx, const im_json_value *v, const im_tok_table *vocab, im_str *out);

/* An object; the ids beside "tokens" are those of the tokens. */
static im_status put_post_object(im_context *ctx, const im_json_value *v, const im_tok_table *vocab, im_str *out)
{
    const im_json_value *tokens = im_json_get(v, "tokens");
    const char *key;
    im_str_append(out, "{");
    for (size_t i = 0; i < im_json_length(v); i++) {
        const im_json_value *child = im_json_member(v, i, &key);
        im_str_append(out, i ? ", " : "");
        im_str_json_string(out, key, strlen(key));
        im_str_append(out, ": ");
        if (strcmp(key, "ids") || im_json_type_of(tokens) != IM_JSON_ARRAY) {
            IM_TRY(put_post(ctx, child, vocab, out));
            continue;
        }
        im_str_append(out, "[");
        for (size_t k = 0; k < im_json_length(tokens); k++) {
            im_str_append(out, k ? ", " : "");
            IM_TRY(put_id(ctx, vocab, im_json_at(tokens, k), out));
        }
        im_str_append(out, "]");
    }
    im_str_append(out, "}");
    return IM_OK;
}

/* Lists too: ["</s>", 2] is a token and its id. */
static im_status put_post(im_context *ctx, const im_json_value *v, const im_tok_table *vocab, im_str *out)
{
    size_t n = im_json_length(v);
    if (im_json_type_of(v) == IM_JSON_OBJECT)
        return put_post_object(ctx, v, vocab, out);
    if (im_json_type_of(v) != IM_JSON_ARRAY) {
        put_value(v, out);
        return IM_OK;
    }
    bool pair = n == 2 && im_json_type_of(im_json_at(v, 0)) == IM_JSON_STRING && im_json_type_of(im_json_at(v, 1)) == IM_JSON_INT;
    im_str_append(out, "[");
    for (size_t i = 0; i < n; i++) {
        im_str_append(out, i ? ", " : "");
        IM_TRY(pair && i ? put_id(ctx, vocab, im_json_at(v, 0), out) : put_post(ctx, im_json_at(v, i), vocab, out));
    }
    im_str_append(out, "]");
    return IM_OK;
}

static im_status write_post(im_context *ctx, const im_tok_shell *s, const im_tok_table *v, im_str *out)
{
    im_json *doc;
    IM_TRY(im_json_parse(ctx, "post_processor", im_str_text(&s->post_processor), s->post_processor.len, &doc));
    im_status status = put_post(ctx, im_json_root(doc), v, out);
    im_json_free(doc);
    return status;
}

/* ---- the file --------------------------------------------------------------------------------------------- */

static void write_added(const im_tok_table *v, size_t nspecial, im_str *out)
{
    im_str_append(out, "  \"added_tokens\": [");
    for (size_t i = 0; i < nspecial; i++) {
        im_str_printf(out, "%s\n    {\"id\": %zu, \"content\": ", i ? "," : "", i);
        im_str_json_string(out, v->token[i].s, v->token[i].n);
        im_str_append(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}");
    }
    im_str_append(out, nspecial ? "\n  ],\n" : "],\n");
}

/* Merges in their order; one that happened twice has the place of the second time. */
static im_status write_merges(im_context *ctx, const im_tok_table *v, const im_tok_learned *merge, size_t n, im_str *out)
{
    im_tok_merges last;
    bool first = true;
    IM_TRY(im_tok_merges_create(ctx, &last, n));
    for (size_t i = 0; i < n; i++)
        im_tok_merges_put(&last, merge[i].left, merge[i].right, (uint32_t)i, merge[i].id);
    im_str_append(out, "    \"merges\": [");
    for (size_t i = 0; i < n; i++) {
        const im_tok_string *a = &v->token[merge[i].left], *b = &v->token[merge[i].right];
        if (im_tok_merges_find(&last, merge[i].left, merge[i].right)->rank != i)
            continue;
        im_str_append(out, first ? "\n      [" : ",\n      [");
        im_str_json_string(out, a->s, a->n);
        im_str_append(out, ", ");
        im_str_json_string(out, b->s, b->n);
        im_str_append(out, "]");
        first = false;
    }
    im_str_append(out, first ? "]\n" : "\n    ]\n");
    im_tok_merges_free(&last);
    return IM_OK;
}

im_status im_tok_write(im_context *ctx, const im_tok_shell *s, const im_tok_table *v, size_t nspecial, const im_tok_learned *merge, size_t nmerge,
                       im_str *out)
{
    im_str_append(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    write_added(v, nspecial, out);
    im_str_printf(out, "  \"normalizer\": %s,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": ", im_str_text(&s->normalizer),
                  im_str_text(&s->pre_tokenizer));
    IM_TRY(write_post(ctx, s, v, out));
    im_str_printf(out,
                  ",\n  \"decoder\": %s,\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": %s,\n"
                  "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n"
                  "    \"ignore_merges\": %s,\n    \"vocab\": {",
                  im_str_text(&s->decoder), im_str_text(&s->unk), s->fuse_unk ? "true" : "false", s->byte_fallback ? "true" : "false",
                  s->ignore_merges ? "true" : "false");
    for (int64_t i = 0; i < v->count; i++) {
        im_str_append(out, i ? ",\n      " : "\n      ");
        im_str_json_string(out, v->token[i].s, v->token[i].n);
        im_str_printf(out, ": %" PRId64, i);
    }
    im_str_append(out, "\n    },\n");
    IM_TRY(write_merges(ctx, v, merge, nmerge, out));
    im_str_append(out, "  }\n}\n");
    return out->failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for a tokenizer.json of %lld tokens", (long long)v->count) : IM_OK;
}
