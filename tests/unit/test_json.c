/* JSON and YAML: one tree, places in messages, nothing trusted */
#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int setup(void **state)
{
    return im_context_create((im_context **)state);
}

static int teardown(void **state)
{
    im_context_destroy(*state);
    return 0;
}

static im_json *json(im_context *ctx, const char *text)
{
    im_json *doc = NULL;
    if (im_json_parse(ctx, "t.json", text, strlen(text), &doc) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    return doc;
}

static im_json *yaml(im_context *ctx, const char *text)
{
    im_json *doc = NULL;
    if (im_yaml_parse(ctx, "t.yaml", text, strlen(text), &doc) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    return doc;
}

static void test_json_values(void **state)
{
    im_json *doc = json(*state, "{\"a\": 1, \"b\": [true, null, -2.5, \"x\\u0131y\"], \"c\": {\"d\": 9007199254740993}, \"e\": 1e3}");
    const im_json_value *root = im_json_root(doc);
    assert_int_equal(im_json_type_of(root), IM_JSON_OBJECT);
    assert_int_equal(im_json_length(root), 4);
    assert_int_equal(im_json_int(im_json_get(root, "a"), -1), 1);
    const im_json_value *b = im_json_get(root, "b");
    assert_int_equal(im_json_length(b), 4);
    assert_true(im_json_bool(im_json_at(b, 0), false));
    assert_int_equal(im_json_type_of(im_json_at(b, 1)), IM_JSON_NULL);
    assert_true(im_json_real(im_json_at(b, 2), 0) == -2.5);
    assert_string_equal(im_json_string(im_json_at(b, 3), ""), "xıy");
    assert_null(im_json_at(b, 4));
    assert_true(im_json_int(im_json_get(im_json_get(root, "c"), "d"), 0) == 9007199254740993);
    assert_int_equal(im_json_int(im_json_get(root, "e"), 0), 1000); /* a real that is whole */
    assert_int_equal(im_json_int(im_json_at(b, 2), 77), 77);        /* one that is not */
    assert_null(im_json_get(root, "missing"));
    assert_null(im_json_get(NULL, "a"));
    static const char *const order[] = {"a", "b", "c", "e"};
    for (size_t i = 0; i < 4; i++) {
        const char *key;
        assert_non_null(im_json_member(root, i, &key));
        assert_string_equal(key, order[i]);
    }
    im_json_free(doc);
    im_json_free(NULL);
}

/* more keys than a linear look-up is meant for */
static void test_large_object(void **state)
{
    im_str s = {0};
    im_str_append(&s, "{");
    for (int i = 0; i < 5000; i++)
        im_str_printf(&s, "%s\"key%d\": %d", i ? "," : "", i * 7, i);
    im_str_append(&s, "}");
    for (int form = 0; form < 2; form++) {
        im_json *doc = form ? yaml(*state, s.data) : json(*state, s.data);
        const im_json_value *root = im_json_root(doc);
        assert_int_equal(im_json_length(root), 5000);
        for (int i = 0; i < 5000; i++) {
            char key[32];
            snprintf(key, sizeof key, "key%d", i * 7);
            assert_int_equal(im_json_int(im_json_get(root, key), -1), i);
        }
        assert_null(im_json_get(root, "key1"));
        im_json_free(doc);
    }
    im_str_free(&s);
}

static void test_large_numbers(void **state)
{
    im_json *doc = json(*state, "{\"big\": 18446744073709551616, \"small\": 12, \"real\": 0.5}");
    const im_json_value *root = im_json_root(doc);
    assert_int_equal(im_json_type_of(im_json_get(root, "big")), IM_JSON_REAL);
    assert_true(im_json_real(im_json_get(root, "big"), 0) == 18446744073709551616.0);
    assert_int_equal(im_json_int(im_json_get(root, "big"), -1), -1);
    assert_int_equal(im_json_type_of(im_json_get(root, "small")), IM_JSON_INT);
    assert_int_equal(im_json_int(im_json_get(root, "small"), -1), 12);
    assert_true(im_json_real(im_json_get(root, "real"), 0) == 0.5);
    im_json_free(doc);
}

typedef struct bad {
    const char *text, *says;
} bad;

static void test_bad_json(void **state)
{
    im_context *ctx = *state;
    static const bad cases[] = {
        {"", "t.json: line "},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\":\n\n 1,, }", "line 3"},
        {"{} x", "line 1, column 4"},
        {"{\"a\": \"\xff\"}", "decode byte 0xff"},
        {"{\"a\": 1e999}", "line 1"},
        {"{\"a\": NaN}", "line 1"},
        {"{\"a\": [1, 2}", "line 1"},
        {"{\"a\": 01}", "line 1"},
        {"{a: 1}", "line 1"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_json *doc = NULL;
        assert_int_equal(im_json_parse(ctx, "t.json", cases[i].text, strlen(cases[i].text), &doc), IM_ERR_FORMAT);
        assert_null(doc);
        if (!strstr(im_error_text(ctx), cases[i].says) || strncmp(im_error_text(ctx), "t.json: ", 8) != 0)
            fail_msg("%s: %s", cases[i].text, im_error_text(ctx));
        im_error_clear(ctx);
    }
}

static void test_depth(void **state)
{
    im_context *ctx = *state;
    for (int depth = 60; depth < 70; depth++) {
        char text[256];
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = 0;
        im_json *doc = NULL;
        im_status want = depth <= 64 ? IM_OK : IM_ERR_FORMAT;
        assert_int_equal(im_json_parse(ctx, "deep", text, strlen(text), &doc), want);
        if (want != IM_OK)
            assert_string_equal(im_error_text(ctx), "deep: line 1, column 65: nested deeper than 64");
        im_json_free(doc);
        doc = NULL;
        im_error_clear(ctx);
        assert_int_equal(im_yaml_parse(ctx, "deep", text, strlen(text), &doc), want);
        im_json_free(doc);
        im_error_clear(ctx);
    }
    im_json *doc =
        json(ctx, "[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]"); /* in a string they do not count */
    im_json_free(doc);
}

static void test_yaml_values(void **state)
{
    im_json *doc = yaml(*state, "# a run\n"
                                "model: gpt2\n"
                                "steps: 1000\n"
                                "lr: 3e-4\n"
                                "name: \"12\"\n"
                                "on: yes\n"
                                "tied: true\n"
                                "none: ~\n"
                                "empty:\n"
                                "hex: 0x1F\n"
                                "big: 18446744073709551616\n"
                                "inf: -.inf\n"
                                "version: 1.2.3\n"
                                "dash: --\n"
                                "list: [a, 2]\n"
                                "map:\n  x: 1\n  y:\n    - p\n    - q\n");
    const im_json_value *root = im_json_root(doc);
    assert_string_equal(im_json_string(im_json_get(root, "model"), ""), "gpt2");
    assert_int_equal(im_json_int(im_json_get(root, "steps"), 0), 1000);
    assert_true(im_json_real(im_json_get(root, "lr"), 0) == 3e-4);
    assert_string_equal(im_json_string(im_json_get(root, "name"), ""), "12");
    assert_string_equal(im_json_string(im_json_get(root, "on"), ""), "yes");
    assert_true(im_json_bool(im_json_get(root, "tied"), false));
    assert_int_equal(im_json_type_of(im_json_get(root, "none")), IM_JSON_NULL);
    assert_int_equal(im_json_type_of(im_json_get(root, "empty")), IM_JSON_NULL);
    assert_int_equal(im_json_line(im_json_get(root, "empty")), 9);
    assert_int_equal(im_json_int(im_json_get(root, "hex"), 0), 31);
    assert_int_equal(im_json_type_of(im_json_get(root, "big")), IM_JSON_REAL);
    assert_true(isinf(im_json_real(im_json_get(root, "inf"), 0)));
    assert_string_equal(im_json_string(im_json_get(root, "version"), ""), "1.2.3");
    assert_string_equal(im_json_string(im_json_get(root, "dash"), ""), "--");
    assert_int_equal(im_json_length(im_json_get(root, "list")), 2);
    assert_int_equal(im_json_line(im_json_get(root, "steps")), 3);
    assert_int_equal(im_json_line(im_json_get(im_json_get(root, "map"), "x")), 17);
    assert_string_equal(im_json_string(im_json_at(im_json_get(im_json_get(root, "map"), "y"), 1), ""), "q");
    im_json_free(doc);
    doc = yaml(*state, "# nothing\n");
    assert_int_equal(im_json_type_of(im_json_root(doc)), IM_JSON_NULL);
    im_json_free(doc);
}

static void test_bad_yaml(void **state)
{
    im_context *ctx = *state;
    static const bad cases[] = {
        {"a: 1\na: 2\n", "stands twice"}, {"a: &x 1\n", "line 1, column 4: anchors"}, {"a: 1\nb: *x\n", "line 2, column 4: aliases"},
        {"a: !!int 1\n", "tags"},         {"a: 1\n---\nb: 2\n", "second document"},   {"a: [1, 2\n", "not YAML"},
        {"a: 1\n b: 2\n", "line 2"},      {"[1]: 2\n", "a key must be a word"},       {"a: \"\xff\"\n", "not YAML"},
        {"a:\tb\n\tc: d\n", "t.yaml: "},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_json *doc = NULL;
        assert_int_equal(im_yaml_parse(ctx, "t.yaml", cases[i].text, strlen(cases[i].text), &doc), IM_ERR_FORMAT);
        assert_null(doc);
        if (!strstr(im_error_text(ctx), cases[i].says))
            fail_msg("%s: %s", cases[i].text, im_error_text(ctx));
        im_error_clear(ctx);
    }
}

static void test_need(void **state)
{
    im_context *ctx = *state;
    im_json *doc = json(ctx, "{\"n\": 7, \"r\": 0.5, \"s\": \"word\", \"nul\": \"a\\u0000b\"}");
    const im_json_value *root = im_json_root(doc);
    int64_t n = -1;
    double r = -1;
    const char *s = NULL;
    assert_int_equal(im_json_need_int(ctx, doc, root, "n", 1, 7, &n), IM_OK);
    assert_int_equal(n, 7);
    assert_int_equal(im_json_need_real(ctx, doc, root, "r", 0, 1, &r), IM_OK);
    assert_int_equal(im_json_need_real(ctx, doc, root, "n", 0, 10, &r), IM_OK);
    assert_true(r == 7);
    assert_int_equal(im_json_need_string(ctx, doc, root, "s", &s), IM_OK);
    assert_string_equal(s, "word");

    n = -1;
    assert_int_equal(im_json_need_int(ctx, doc, root, "n", 8, 9, &n), IM_ERR_FORMAT);
    assert_string_equal(im_error_text(ctx), "t.json: \"n\" is 7; it must be an integer from 8 to 9");
    im_error_clear(ctx);
    assert_int_equal(im_json_need_int(ctx, doc, root, "r", 0, 9, &n), IM_ERR_FORMAT);
    im_error_clear(ctx);
    assert_int_equal(im_json_need_int(ctx, doc, root, "vocab_size", 1, 9, &n), IM_ERR_FORMAT);
    assert_string_equal(im_error_text(ctx), "t.json: \"vocab_size\" is missing; it must be an integer from 1 to 9");
    im_error_clear(ctx);
    assert_int_equal(im_json_need_real(ctx, doc, root, "s", 0, 1, &r), IM_ERR_FORMAT);
    assert_string_equal(im_error_text(ctx), "t.json: \"s\" is word (text); it must be a number from 0 to 1");
    im_error_clear(ctx);
    assert_int_equal(im_json_need_string(ctx, doc, root, "nul", &s), IM_ERR_FORMAT);
    assert_int_equal(n, -1);
    im_json_free(doc);

    im_error_clear(ctx);
    doc = yaml(ctx, "a: 1\nn: 12\n");
    assert_int_equal(im_json_need_int(ctx, doc, im_json_root(doc), "n", 0, 9, &n), IM_ERR_FORMAT);
    assert_string_equal(im_error_text(ctx), "t.yaml: line 2: \"n\" is 12; it must be an integer from 0 to 9");
    im_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_json_values, setup, teardown),   cmocka_unit_test_setup_teardown(test_large_object, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_numbers, setup, teardown), cmocka_unit_test_setup_teardown(test_bad_json, setup, teardown),
        cmocka_unit_test_setup_teardown(test_depth, setup, teardown),         cmocka_unit_test_setup_teardown(test_yaml_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_yaml, setup, teardown),      cmocka_unit_test_setup_teardown(test_need, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
