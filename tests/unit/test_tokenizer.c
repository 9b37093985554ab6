/* Tokenizers: ids of Hugging Face's library (tests/golden/tokenizer, made by make_tokenizer.py), any bytes back as they were, texts in pieces, what
 * is refused, and training. */
#include "data/tok_train.h"
#include "data/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static im_context *ctx;
#define GOLDEN IM_TEST_DIR "/golden/tokenizer/"

static int setup(void **state)
{
    (void)state;
    return im_context_create(&ctx) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_context_destroy(ctx);
    return 0;
}

static void ok(im_status s)
{
    if (s != IM_OK)
        fail_msg("%s", im_error_text(ctx));
}

static im_tok *open_golden(const char *name)
{
    char path[512];
    im_tok *t;
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    ok(im_tok_open(ctx, path, &t));
    return t;
}

/* In one piece, or grown by `step` bytes at a time. Each piece is a block of its own, so that reading past its end shows. */
static void encode(const im_tok *t, const im_tok_coding *how, const char *s, size_t n, size_t step, im_tok_ids *out)
{
    im_tok_coder *c;
    size_t from = 0, have = step && step < n ? step : n, used;
    ok(im_tok_coder_create(ctx, t, how, &c));
    out->n = 0;
    for (;;) {
        bool last = have == n;
        char *copy = malloc(have - from + 1);
        memcpy(copy, s + from, have - from);
        ok(im_tok_encode_part(c, copy, have - from, last, out, &used));
        free(copy);
        from += used;
        if (last)
            break;
        size_t more = used ? step : have - from;
        have = have + more < n ? have + more : n;
    }
    im_tok_coder_destroy(c);
}

static void same(const im_tok_ids *got, const im_json_value *want, const char *file, size_t i)
{
    bool equal = got->n == im_json_length(want);
    for (size_t k = 0; equal && k < got->n; k++)
        equal = got->id[k] == im_json_int(im_json_at(want, k), -1);
    if (!equal)
        fail_msg("%s: text %zu: %zu ids, not the %zu of the other library", file, i, got->n, im_json_length(want));
}

static const char *const kinds[] = {"gpt2", "llama3", "qwen2", "smollm2", "llama2", "metaspace", "falcon", "gemma"};

static void test_ids_of_the_other_library(void **state)
{
    (void)state;
    im_json *doc;
    ok(im_json_load(ctx, GOLDEN "vectors.json", 1 << 24, &doc));
    const im_json_value *root = im_json_root(doc), *texts = im_json_get(root, "texts");
    assert_true(im_json_length(texts) > 50);
    for (size_t k = 0; k < IM_COUNT_OF(kinds); k++) {
        im_tok *t = open_golden(kinds[k]);
        const im_json_value *kind = im_json_get(im_json_get(root, "kinds"), kinds[k]);
        im_tok_ids ids = {0};
        for (size_t i = 0; i < im_json_length(texts); i++) {
            const im_json_value *text = im_json_at(texts, i);
            const char *s = im_json_string(text, "");
            size_t n = im_json_string_len(text);
            im_tok_coding plain = {0}, around = {.template = true}, letters = {.special_as_text = true};
            encode(t, &plain, s, n, 0, &ids);
            same(&ids, im_json_at(im_json_get(kind, "ids"), i), kinds[k], i);
            im_str back = {0};
            ok(im_tok_decode(ctx, t, ids.id, ids.n, false, &back));
            const im_json_value *want = im_json_at(im_json_get(kind, "decoded"), i);
            if (!strchr(im_json_string(want, ""), (char)0xEF)) /* where the other side has U+FFFD, ours has the bytes */
                assert_string_equal(im_str_text(&back), im_json_string(want, ""));
            im_str_free(&back);
            encode(t, &around, s, n, 0, &ids);
            same(&ids, im_json_at(im_json_get(kind, "around"), i), kinds[k], i);
            encode(t, &letters, s, n, 0, &ids);
            same(&ids, im_json_at(im_json_get(kind, "letters"), i), kinds[k], i);
            for (size_t step = 1; step < 64; step = 2 * step + 1) { /* in pieces: the ids of the whole */
                encode(t, &plain, s, n, step, &ids);
                same(&ids, im_json_at(im_json_get(kind, "ids"), i), kinds[k], i);
            }
        }
        im_tok_ids_free(&ids);
        im_tok_close(t);
    }
    im_json_free(doc);
}

static void test_any_bytes_come_back(void **state)
{
    (void)state;
    static const char *const bytes[] = {"gpt2", "llama3", "falcon"};
    for (size_t k = 0; k < IM_COUNT_OF(bytes); k++) {
        im_tok *t = open_golden(bytes[k]);
        im_tok_ids ids = {0}, parts = {0};
        assert_true(im_tok_lossless(t));
        for (uint64_t round = 0; round < 2000; round++) {
            char s[64];
            uint32_t r[4];
            size_t n = round % sizeof s;
            for (size_t i = 0; i < n; i++) { /* random bytes, half of them of a few that make UTF-8 and words */
                im_philox(round, i, k, r);
                s[i] = r[0] & 1 ? (char)r[1]
                                : "\xE4\xB8\xAD \n\xF0\x9F\x98\x80"
                                  "a1"[r[1] % 11];
            }
            im_str back = {0};
            encode(t, NULL, s, n, 0, &ids);
            ok(im_tok_decode(ctx, t, ids.id, ids.n, false, &back));
            assert_int_equal(back.len, n);
            assert_memory_equal(im_str_text(&back), s, n);
            im_str_free(&back);
            encode(t, NULL, s, n, 1 + round % 17, &parts);
            assert_int_equal(parts.n, ids.n);
            if (ids.n)
                assert_memory_equal(parts.id, ids.id, ids.n * sizeof *ids.id);
        }
        im_tok_ids_free(&ids);
        im_tok_ids_free(&parts);
        im_tok_close(t);
    }
}

static void test_replaced_as_python_does(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text; /* of bytes.decode("utf-8", "replace") */
    } cases[] = {{"a\xFFz", "a\uFFFDz"},
                 {"\xE4\xB8", "\uFFFD"},
                 {"\xE4\xB8z", "\uFFFDz"},
                 {"\xF0\x9F\x98", "\uFFFD"},
                 {"\xC0\x80", "\uFFFD\uFFFD"},
                 {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
                 {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                 {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"}};
    im_tok *t = open_golden("gpt2");
    im_tok_coding replace = {.replace = true};
    im_tok_ids a = {0}, b = {0};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        encode(t, &replace, cases[i].bytes, strlen(cases[i].bytes), 0, &a);
        encode(t, NULL, cases[i].text, strlen(cases[i].text), 0, &b);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
    }
    im_tok_ids_free(&a);
    im_tok_ids_free(&b);
    im_tok_close(t);
}

/* A word of a megabyte: n log n. */
static void test_a_long_word(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *s = malloc(N);
    static const char *const names[] = {"gpt2", "llama2"};
    for (int kind = 0; kind < 4; kind++) {
        im_tok *t = open_golden(names[kind & 1]);
        im_tok_ids ids = {0};
        for (size_t i = 0; i < N; i++)
            s[i] = kind < 2 ? 'e' : (char)('a' + (i * i / 7) % 26);
        encode(t, NULL, s, N, 0, &ids);
        assert_true(ids.n > 0 && ids.n <= N + 1);
        im_tok_ids_free(&ids);
        im_tok_close(t);
    }
    free(s);
}

#define MODEL(rest) "{\"model\": {\"type\": \"BPE\", " rest "}"
#define SMALL "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [[\"a\", \"b\"]]}"

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *why;
        im_status code;
    } cases[] = {
        {"{", "not JSON", IM_ERR_FORMAT},
        {"[]", "it has no model", IM_ERR_FORMAT},
        {"{\"model\": {\"type\": \"Unigram\"}}", "model: Unigram is not supported", IM_ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"WordPiece\"}}", "model: WordPiece is not supported", IM_ERR_UNSUPPORTED},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}"), "\"a\" and \"b\" have the same id, 0", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": -1}, \"merges\": []}"), "a whole number from 0", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 4000000000}, \"merges\": []}"), "a whole number from 0", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}"), "not JSON", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [[\"a\", \"b\"]]}"), "entry 0: \"ab\" is not in the vocabulary", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b c\"]}"), "entry 0: two tokens are needed", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": \"<unk>\"}"), "unk_token \"<unk>\" is not in the vocabulary", IM_ERR_FORMAT},
        {MODEL("\"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}"), "dropout is not supported", IM_ERR_UNSUPPORTED},
        {MODEL("\"vocab\": {\"a\": 0}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}"), "end_of_word_suffix is not supported",
         IM_ERR_UNSUPPORTED},
        {SMALL ", \"normalizer\": {\"type\": \"BertNormalizer\"}}", "normalizer: BertNormalizer is not supported", IM_ERR_UNSUPPORTED},
        {SMALL ", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", "pre_tokenizer: UnicodeScripts is not supported", IM_ERR_UNSUPPORTED},
        {SMALL ", \"decoder\": {\"type\": \"CTC\"}}", "decoder: CTC is not supported", IM_ERR_UNSUPPORTED},
        {SMALL ", \"post_processor\": {\"type\": \"Odd\"}}", "post_processor: Odd is not supported", IM_ERR_UNSUPPORTED},
        {SMALL ", \"added_tokens\": [{\"id\": 10, \"content\": \"<x>\"}]}", "has the id 10; Hugging Face's tokenizers would read it as 3",
         IM_ERR_FORMAT},
        {SMALL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}}", "a ( without its )",
         IM_ERR_UNSUPPORTED},
        {SMALL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\p{Nope}\"}, \"behavior\": \"Isolated\"}}", "PCRE2",
         IM_ERR_UNSUPPORTED},
        {SMALL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?<n>a)\\\\g<n>\"}, \"behavior\": \"Isolated\"}}",
         "not supported", IM_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_tok *t = NULL;
        im_error_clear(ctx);
        assert_int_equal(im_tok_parse(ctx, "x.json", cases[i].json, strlen(cases[i].json), &t), cases[i].code);
        assert_null(t);
        if (!strstr(im_error_text(ctx), cases[i].why))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, im_error_text(ctx), cases[i].why);
    }
    im_error_clear(ctx);
}

static void test_a_pattern_without_end(void **state)
{
    (void)state;
    static const char json[] = SMALL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a+)+[xy]\"}, \"behavior\": \"Isolated\"}}";
    im_tok *t;
    im_tok_coder *c;
    im_tok_ids ids = {0};
    char s[64];
    memset(s, 'a', sizeof s);
    ok(im_tok_parse(ctx, "x.json", json, strlen(json), &t));
    ok(im_tok_coder_create(ctx, t, NULL, &c));
    assert_int_equal(im_tok_encode(c, s, sizeof s, &ids), IM_ERR_UNSUPPORTED);
    assert_non_null(strstr(im_error_text(ctx), "back and forth without end"));
    im_error_clear(ctx);
    im_tok_ids_free(&ids);
    im_tok_coder_destroy(c);
    im_tok_close(t);
}

/* The other library's \w: Latin-1's small numbers outside of sets only, other numbers that are no digits never. */
static void test_what_a_word_is(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        size_t n;
        int32_t ids[3];
    } cases[] = {{"\\\\w", 1, {2}}, {"\\\\p{Word}", 1, {2}}, {"[\\\\w]", 2, {1, 2}}, {"[[:word:]]", 2, {1, 2}}, {"\\\\W", 2, {0, 1}}, {"[^\\\\w]", 1, {0}}};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_tok *t;
        im_tok_ids ids = {0};
        im_str json = {0};
        im_str_printf(&json,
                      "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"²\": 1, \"①\": 2}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
                      "\"Split\", \"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Removed\"}}",
                      cases[i].pattern);
        ok(im_tok_parse(ctx, "x.json", json.data, json.len, &t));
        encode(t, NULL, "a²①", strlen("a²①"), 0, &ids);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.id, cases[i].ids, ids.n * sizeof *ids.id);
        im_tok_ids_free(&ids);
        im_str_free(&json);
        im_tok_close(t);
    }
}

/* The same vocabulary and merges as the other library's trainer, which made the golden file from the same texts. */
static void test_training(void **state)
{
    (void)state;
    im_json *doc, *mine;
    ok(im_json_load(ctx, GOLDEN "vectors.json", 1 << 24, &doc));
    const im_json_value *texts = im_json_get(im_json_root(doc), "train");
    static const char *const special[] = {"<|endoftext|>"};
    static const struct {
        const char *name;
        im_tok_style style;
        int64_t longest;
    } cases[] = {{"gpt2", IM_TOK_STYLE_GPT2, 0}, {"llama3", IM_TOK_STYLE_LLAMA3, 0}, {"short", IM_TOK_STYLE_GPT2, 4}};
    for (size_t k = 0; k < IM_COUNT_OF(cases); k++) {
        const im_json_value *want = im_json_get(im_json_get(im_json_root(doc), "trained"), cases[k].name);
        im_tok_train_config cfg = {.style = cases[k].style,
                                   .vocab_size = im_json_int(im_json_get(want, "vocab_size"), 0),
                                   .max_token_length = cases[k].longest,
                                   .byte_alphabet = true,
                                   .special = special,
                                   .nspecial = 1};
        im_tok_trainer *t;
        im_tok_counter *c[2];
        im_tok_train_result r;
        im_str json = {0};
        size_t used;
        ok(im_tok_trainer_create(ctx, &cfg, &t));
        for (int i = 0; i < 2; i++)
            ok(im_tok_counter_create(ctx, t, &c[i]));
        for (size_t i = 0; i < im_json_length(texts); i++)
            ok(im_tok_counter_add(c[i % 2], im_json_string(im_json_at(texts, i), ""), im_json_string_len(im_json_at(texts, i)), true, &used));
        ok(im_tok_trainer_run(t, c, 2, NULL, NULL, &json, &r));
        ok(im_json_parse(ctx, "trained", json.data, json.len, &mine));
        const im_json_value *merges = im_json_get(im_json_get(im_json_root(mine), "model"), "merges"), *right = im_json_get(want, "merges");
        assert_int_equal(im_json_length(merges), im_json_length(right));
        for (size_t i = 0; i < im_json_length(right); i++)
            for (size_t x = 0; x < 2; x++)
                assert_string_equal(im_json_string(im_json_at(im_json_at(merges, i), x), ""),
                                    im_json_string(im_json_at(im_json_at(right, i), x), ""));
        im_json_free(mine);
        im_str_free(&json);
        for (int i = 0; i < 2; i++)
            im_tok_counter_destroy(c[i]);
        im_tok_trainer_destroy(t);
    }
    im_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_the_other_library),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_replaced_as_python_does),
        cmocka_unit_test(test_a_long_word),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_a_pattern_without_end),
        cmocka_unit_test(test_what_a_word_is),
        cmocka_unit_test(test_training),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, setup, teardown);
}
