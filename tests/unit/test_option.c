/* options: one table, read from a command line and from YAML, written back, shown */
#include "base/option.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct opts {
    bool fast, keep;
    int64_t steps, batch;
    double lr;
    const char *model;
    int schedule;
    im_option_list data;
} opts;

#define AT(field) offsetof(opts, field)
static const im_option rows[] = {
    {.name = "fast", .type = IM_OPT_BOOL, .help = "Be fast.", .offset = AT(fast), .section = "General:"},
    {.name = "keep", .type = IM_OPT_BOOL, .fallback = "true", .help = "Keep files.", .offset = AT(keep)},
    {.name = "steps", .type = IM_OPT_INT, .fallback = "100", .min = 1, .max = 1e12, .help = "Steps to run.", .offset = AT(steps), .short_name = 'n'},
    {.name = "micro-batch", .type = IM_OPT_INT, .fallback = "8", .min = 1, .max = 4096, .help = "Sequences.", .offset = AT(batch)},
    {.name = "lr", .type = IM_OPT_REAL, .fallback = "3e-4", .min = 0, .max = 10, .help = "Learning rate.", .offset = AT(lr), .section = "Optimizer:"},
    {.name = "model", .type = IM_OPT_STRING, .help = "The model.", .value = "DIR", .offset = AT(model), .short_name = 'm'},
    {.name = "schedule",
     .type = IM_OPT_CHOICE,
     .fallback = "cosine",
     .choices = "constant|linear|cosine|wsd",
     .help = "How lr moves.",
     .offset = AT(schedule)},
    {.name = "data",
     .type = IM_OPT_LIST,
     .help = "Token files, which may be several, with a help text that is long enough to need a second line.",
     .value = "PREFIX",
     .offset = AT(data)},
};
#define N IM_COUNT_OF(rows)

typedef struct fixture {
    im_context *ctx;
    im_arena *arena;
    opts o;
    bool given[N];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return !f || im_context_create(&f->ctx) || im_arena_create(f->ctx, &f->arena) || im_option_defaults(f->ctx, rows, N, f->arena, &f->o);
}

static int teardown(void **state)
{
    fixture *f = *state;
    im_arena_destroy(f->arena);
    im_context_destroy(f->ctx);
    free(f);
    return 0;
}

#define PARSE(f, rest, ...)                                                                                                                   \
    im_option_parse((f)->ctx, rows, N, (f)->arena, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__}, &(f)->o, \
                    (f)->given, rest)

static void test_defaults(void **state)
{
    fixture *f = *state;
    assert_false(f->o.fast);
    assert_true(f->o.keep);
    assert_int_equal(f->o.steps, 100);
    assert_true(f->o.lr == 3e-4);
    assert_null(f->o.model);
    assert_int_equal(f->o.schedule, 2);
    assert_int_equal(f->o.data.n, 0);
}

static void test_command_line(void **state)
{
    fixture *f = *state;
    im_option_list rest = {0};
    assert_int_equal(PARSE(f, &rest, "one", "--fast", "--no-keep", "--steps=2k", "--micro-batch", "4", "-m", "dir", "--lr", "0.5", "--schedule",
                           "wsd", "--data", "a", "-", "--data=b", "--", "--fast"),
                     IM_OK);
    assert_true(f->o.fast);
    assert_false(f->o.keep);
    assert_int_equal(f->o.steps, 2000);
    assert_int_equal(f->o.batch, 4);
    assert_string_equal(f->o.model, "dir");
    assert_true(f->o.lr == 0.5);
    assert_int_equal(f->o.schedule, 3);
    assert_int_equal(f->o.data.n, 2);
    assert_string_equal(f->o.data.item[1], "b");
    assert_int_equal(rest.n, 3);
    assert_string_equal(rest.item[0], "one");
    assert_string_equal(rest.item[1], "-");
    assert_string_equal(rest.item[2], "--fast");
    for (size_t i = 0; i < N; i++)
        assert_true(f->given[i]);
    assert_int_equal(PARSE(f, NULL, "-n7", "--fast=no", "--data", "c"), IM_OK);
    assert_int_equal(f->o.steps, 7);
    assert_false(f->o.fast);
    assert_int_equal(f->o.data.n, 1); /* a second line of arguments replaces the list */
}

static void test_integers(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"1", 1},         {"3k", 3000},     {"2M", 2000000},   {"1G", 1000000000},  {"2Ki", 2048},
        {"1Mi", 1 << 20}, {"1Gi", 1 << 30}, {"1.5M", 1500000}, {"2e9", 2000000000}, {"0.5Ki", 512},
    };
    for (size_t i = 0; i < IM_COUNT_OF(good); i++) {
        assert_int_equal(PARSE(f, NULL, "--steps", (char *)good[i].text), IM_OK);
        assert_true(f->o.steps == good[i].value);
    }
    static const char *const bad[] = {"", "x", "1x", "1.5", "0", "-1", "1e30", "9223372036854775808", "9223372036854775807G", "nan", "0.0001k", "1 "};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        if (PARSE(f, NULL, "--steps", (char *)bad[i]) != IM_ERR_ARG)
            fail_msg("\"%s\" was taken", bad[i]);
        im_error_clear(f->ctx);
    }
}

static void test_bad_command_lines(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *word, *value, *says;
    } cases[] = {
        {"--step", "5", "unknown option --step; did you mean --steps?"},
        {"--micro_batch", "5", "did you mean --micro-batch?"},
        {"--zzzzzz", "5", "--help lists them"},
        {"--no-steps", "5", "unknown option --no-steps"},
        {"-x", "5", "unknown option -x"},
        {"--lr", "abc", "--lr: \"abc\" is not a number from 0 to 10"},
        {"--lr", "11", "from 0 to 10"},
        {"--lr", "inf", "from 0 to 10"},
        {"--schedule", "cos", "--schedule: \"cos\" is not one of constant, linear, cosine, wsd"},
        {"--fast=maybe", "x", "true or false"},
        {"--steps", "--fast", "--steps needs a value"},
        {"word", "x", "\"word\" is not expected here"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        assert_int_equal(PARSE(f, NULL, (char *)cases[i].word, (char *)cases[i].value), IM_ERR_ARG);
        if (!strstr(im_error_text(f->ctx), cases[i].says))
            fail_msg("%s: %s", cases[i].word, im_error_text(f->ctx));
        im_error_clear(f->ctx);
    }
    assert_int_equal(PARSE(f, NULL, "--lr"), IM_ERR_ARG);
    assert_string_equal(im_error_text(f->ctx), "--lr needs a value");
}

static im_status from_yaml(fixture *f, const char *text, bool keep)
{
    im_json *doc = NULL;
    IM_TRY(im_yaml_parse(f->ctx, "run.yaml", text, strlen(text), &doc));
    im_status status = im_option_from_yaml(f->ctx, rows, N, f->arena, doc, im_json_root(doc), &f->o, f->given, keep);
    im_json_free(doc);
    return status;
}

static void test_yaml(void **state)
{
    fixture *f = *state;
    assert_int_equal(PARSE(f, NULL, "--lr", "0.25"), IM_OK);
    assert_int_equal(from_yaml(f, "lr: 0.5\nmicro_batch: 2\nfast: yes\nsteps: 4k\nmodel: 007\ndata: [p, 12]\nschedule: linear\n", true), IM_OK);
    assert_true(f->o.lr == 0.25); /* the command line wins */
    assert_int_equal(f->o.batch, 2);
    assert_int_equal(f->o.steps, 4000);
    assert_true(f->o.fast);
    assert_string_equal(f->o.model, "007"); /* as written, not as a number */
    assert_int_equal(f->o.data.n, 2);
    assert_string_equal(f->o.data.item[1], "12");
    assert_int_equal(f->o.schedule, 1);
    assert_int_equal(from_yaml(f, "lr: 0.5\n", false), IM_OK);
    assert_true(f->o.lr == 0.5);
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"steps: 1\nmicrobatch: 2\n", "run.yaml: line 2: microbatch: unknown key; did you mean micro_batch?"},
        {"micro-batch: 2\n", "did you mean micro_batch?"},
        {"lr: fast\n", "run.yaml: line 1: lr: \"fast\" is not a number from 0 to 10"},
        {"lr: [1]\n", "one value is needed"},
        {"lr:\n", "a value is needed"},
        {"data: x\n", "a list is needed"},
        {"- 1\n", "a mapping of options is needed"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        im_error_clear(f->ctx);
        assert_int_not_equal(from_yaml(f, bad[i].text, false), IM_OK);
        if (!strstr(im_error_text(f->ctx), bad[i].says))
            fail_msg("%s: %s", bad[i].text, im_error_text(f->ctx));
    }
}

static void test_round_trip(void **state)
{
    fixture *f = *state;
    static char odd[] = "a \"b\"\n\\: # ş 😀 \x7f {x}";
    assert_int_equal(PARSE(f, NULL, "--fast", "--no-keep", "--steps", "123456789012", "--lr", "0.1", "--model", odd, "--data", "", "--data", "null",
                           "--schedule", "wsd"),
                     IM_OK);
    f->o.lr = 1.0 / 3;
    im_str text = {0};
    im_option_to_yaml(rows, N, &f->o, &text);
    opts before = f->o;
    assert_int_equal(im_option_defaults(f->ctx, rows, N, f->arena, &f->o), IM_OK);
    if (from_yaml(f, text.data, false) != IM_OK)
        fail_msg("%s\n%s", im_error_text(f->ctx), text.data);
    assert_int_equal(f->o.fast, before.fast);
    assert_int_equal(f->o.keep, before.keep);
    assert_true(f->o.steps == before.steps);
    assert_true(f->o.lr == before.lr);
    assert_string_equal(f->o.model, odd);
    assert_int_equal(f->o.schedule, before.schedule);
    assert_int_equal(f->o.data.n, 2);
    assert_string_equal(f->o.data.item[0], "");
    assert_string_equal(f->o.data.item[1], "null");
    im_str_free(&text);
    f->o.model = NULL;
    im_option_to_yaml(rows, N, &f->o, &text);
    assert_int_equal(from_yaml(f, text.data, false), IM_OK);
    assert_null(f->o.model);
    im_str_free(&text);
}

static void test_help(void **state)
{
    (void)state;
    im_str s = {0};
    im_option_help(rows, N, 72, &s);
    static const char *const says[] = {
        "General:\n",      "\nOptimizer:\n",
        "  -n, --steps N", "[default: 100; at least 1]",
        "--[no-]keep",     "--schedule constant|linear|cosine|wsd\n",
        "-m, --model DIR", "may be repeated]",
    };
    for (size_t i = 0; i < IM_COUNT_OF(says); i++)
        if (!strstr(s.data, says[i]))
            fail_msg("no \"%s\" in\n%s", says[i], s.data);
    for (char *line = s.data; *line;) {
        size_t n = strcspn(line, "\n");
        assert_true(n <= 72);
        line += n + (line[n] == '\n');
    }
    im_str_free(&s);
    im_option_man(rows, N, &s);
    assert_non_null(strstr(s.data, ".TP\n\\fB\\-n\\fR, \\fB\\-\\-steps\\fR \\fIN\\fR\nSteps to run. [default: 100"));
    im_str_free(&s);
    im_option_completion(rows, N, &s);
    assert_non_null(strstr(s.data, "--schedule) COMPREPLY=($(compgen -W \"constant linear cosine wsd\""));
    assert_non_null(strstr(s.data, "--model|-m) COMPREPLY=($(compgen -d"));
    assert_non_null(strstr(s.data, "--fast --keep --steps"));
    im_str_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_command_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_integers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_command_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_yaml, setup, teardown),
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
