/* Fuzz target: text. The first byte chooses a tokenizer and how the text is cut; in pieces it has the ids of the whole, and tokenizers of bytes
 * give it back. */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define VOCAB                                                                                                                                   \
    "\"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"\xE2\x96\x81\": 4, \"\xE2\x96\x81"                                              \
    "a\": 5, \"\xC3\xA9\": 6, \"aa\": 7, \"aaaa\": 8, \"<0xFF>\": 9, \" \": 10}, "                                                              \
    "\"merges\": [[\"a\", \"a\"], [\"a\", \"b\"], [\"\xE2\x96\x81\", \"a\"], [\"aa\", \"aa\"]], \"unk_token\": \"<unk>\", \"fuse_unk\": true, " \
    "\"byte_fallback\": true}"
#define ADDED                                                                                                        \
    "\"added_tokens\": [{\"id\": 11, \"content\": \"<s>\", \"special\": true, \"lstrip\": true, \"rstrip\": true}, " \
    "{\"id\": 12, \"content\": \"ba\", \"normalized\": true, \"single_word\": true}]"

static const char *const tokenizers[] = {
    "{\"model\": {\"type\": \"BPE\", " VOCAB ", " ADDED
    ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Prepend\", \"prepend\": \"\xE2\x96\x81\"}, "
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xE2\x96\x81\"}]}}",
    "{\"model\": {\"type\": \"BPE\", " VOCAB ", " ADDED ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\"}}",
    "{\"model\": {\"type\": \"BPE\", " VOCAB ", " ADDED
    ", \"normalizer\": {\"type\": \"NFKC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, {\"type\": "
    "\"Punctuation\", \"behavior\": \"MergedWithNext\"}, {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s+(?!\\\\S)|\\\\w+\"}, \"behavior\": "
    "\"MergedWithPrevious\"}]}}",
};

/* A tokenizer of all bytes, with a pattern. */
static void bytes_tokenizer(im_str *out)
{
    im_str_append(out, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int b = 0; b < 256; b++) {
        int c = b <= 32 ? 256 + b : b >= 127 && b <= 160 ? 289 + b - 127 : b == 173 ? 323 : b;
        im_str_printf(out, "%s\"\\u%04x\": %d", b ? ", " : "", c, b);
    }
    im_str_append(
        out, ", \"ab\": 256, \"\\u0120a\": 257}, \"merges\": [[\"\\u0120\", \"a\"], [\"a\", \"b\"]]}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
             "\"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [{\"id\": 258, \"content\": \"<s>\", "
             "\"special\": true}]}");
}

/* Made once: reading a tokenizer takes far longer than encoding a short text. */
static const im_tok *tokenizer(size_t kind)
{
    static im_context *ctx;
    static im_tok *kept[IM_COUNT_OF(tokenizers) + 1];
    im_str json = {0};
    if (kept[kind])
        return kept[kind];
    if (!ctx && im_context_create(&ctx) != IM_OK)
        abort();
    if (kind == IM_COUNT_OF(tokenizers))
        bytes_tokenizer(&json);
    else
        im_str_append(&json, tokenizers[kind]);
    if (im_tok_parse(ctx, "fuzz", json.data, json.len, &kept[kind]) != IM_OK)
        abort();
    im_str_free(&json);
    return kept[kind];
}

static void encode(im_context *ctx, const im_tok *t, const uint8_t *data, size_t size, size_t step, im_tok_ids *out)
{
    im_tok_coder *c;
    size_t from = 0, have = step < size ? step : size, used = 0;
    if (im_tok_coder_create(ctx, t, NULL, &c) != IM_OK)
        abort();
    for (bool last = false; !last;) {
        last = have == size;
        uint8_t *copy = malloc(have - from + 1);
        memcpy(copy, data + from, have - from);
        if (im_tok_encode_part(c, copy, have - from, last, out, &used) != IM_OK || used > have - from)
            abort();
        free(copy);
        from += used;
        size_t more = used ? step : have - from;
        have = have + more < size ? have + more : size;
    }
    im_tok_coder_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_str back = {0};
    im_tok_ids whole = {0}, parts = {0};
    if (!size || im_context_create(&ctx) != IM_OK)
        return 0;
    size_t kind = data[0] % 4, step = 1 + data[0] / 4;
    const im_tok *t = tokenizer(kind);
    encode(ctx, t, data + 1, size - 1, size, &whole);
    encode(ctx, t, data + 1, size - 1, step, &parts);
    if (whole.n != parts.n || (whole.n && memcmp(whole.id, parts.id, whole.n * sizeof *whole.id)))
        abort();
    if (im_tok_decode(ctx, t, whole.id, whole.n, false, &back) != IM_OK)
        abort();
    if (kind == 3 && (back.len != size - 1 || memcmp(im_str_text(&back), data + 1, back.len)))
        abort();
    im_str_free(&back);
    im_tok_ids_free(&whole);
    im_tok_ids_free(&parts);
    im_context_destroy(ctx);
    return 0;
}
