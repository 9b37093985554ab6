/* the public interface: the whole way, and what it refuses */
#include "infer/infer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef struct fixture {
    im_context *ctx;
    char dir[64], text[128], data[128], train[128], valid[128], run[128];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    if (!f || im_context_create(&f->ctx) != IM_OK)
        return 1;
    strcpy(f->dir, "/tmp/imece-api-XXXXXX");
    if (!mkdtemp(f->dir))
        return 1;
    snprintf(f->text, sizeof f->text, "%s/text", f->dir);
    snprintf(f->data, sizeof f->data, "%s/d", f->dir);
    snprintf(f->train, sizeof f->train, "%s/d-train", f->dir);
    snprintf(f->valid, sizeof f->valid, "%s/d-valid", f->dir);
    snprintf(f->run, sizeof f->run, "%s/run", f->dir);
    FILE *out = fopen(f->text, "w");
    for (int i = 0; out && i < 60; i++)
        fprintf(out, "line %d: the village works together\n", i);
    return !out || fclose(out) != 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    int failed = im_remove_tree(f->ctx, f->dir) != IM_OK;
    im_context_destroy(f->ctx);
    free(f);
    return failed;
}

typedef struct heard {
    int kinds[IM_TEXT_JSON + 1];
    int asked, stop_after;
    size_t pieces;
    im_step_report step; /* the last */
} heard;

static void hear_text(void *arg, im_text_kind kind, const char *text)
{
    heard *h = arg;
    assert_non_null(text);
    h->kinds[kind]++;
}

static void hear_step(void *arg, const im_step_report *step)
{
    heard *h = arg;
    assert_int_equal(step->step, h->step.step + 1);
    assert_true(step->loss > 0 && step->loss < 8 && step->grad_norm > 0 && step->lr > 0 && step->tokens_per_s > 0);
    assert_int_equal(step->tokens, step->step * 16);
    h->step = *step;
}

static void hear_piece(void *arg, const char *utf8, size_t n)
{
    heard *h = arg;
    assert_non_null(utf8);
    h->pieces += n;
}

static bool asked(void *arg)
{
    heard *h = arg;
    h->asked++;
    return h->stop_after && h->asked > h->stop_after;
}

static im_status train(fixture *f, const char *steps, const im_hooks *hooks)
{
    const char *options[] = {
        "--model", "llama-bytes-tiny", "--data", f->train,         "--out", f->run,      "--steps", steps, "--seq-len",
        "16",      "--micro-batch",    "1",      "--global-batch", "1",     "--threads", "1",
    };
    return im_train(f->ctx, options, COUNT(options), hooks);
}

static void test_whole_way(void **state)
{
    fixture *f = *state;
    const char *files[] = {f->text};
    heard h = {0};
    const im_hooks hooks = {.arg = &h, .text = hear_text, .step = hear_step, .piece = hear_piece, .stop = asked, .models_dir = IM_SOURCE_MODELS_DIR};
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, 0.1), IM_OK);
    if (train(f, "3", &hooks) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    assert_int_equal(h.step.step, 3);
    assert_int_equal(h.kinds[IM_TEXT_PLAN], 1);
    assert_true(h.kinds[IM_TEXT_PROGRESS] >= 3);
    assert_int_equal(h.kinds[IM_TEXT_SUMMARY], 1);
    assert_int_equal(h.kinds[IM_TEXT_JSON], 1);

    im_evaluation e = {0};
    const char *evaluation[] = {"--model", f->run, "--data", f->valid, "--seq-len", "16", "--threads", "1"};
    if (im_evaluate(f->ctx, evaluation, COUNT(evaluation), &hooks, &e) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    assert_true(e.tokens > 100);
    assert_true(e.loss > 0 && e.loss < 8);
    assert_true(e.bits_per_byte > 0);

    char *text = NULL;
    const char *generation[] = {"--model", f->run, "--prompt", "line", "--max-tokens", "5", "--threads", "1"};
    if (im_generate(f->ctx, generation, COUNT(generation), &hooks, &text) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    assert_non_null(text);
    assert_true(h.pieces >= strlen(text));
    free(text);
}

/* id by id: the bytes of im_generate */
static void test_generator(void **state)
{
    fixture *f = *state;
    const char *files[] = {f->text};
    const im_hooks hooks = {.models_dir = IM_SOURCE_MODELS_DIR};
    const char *generation[] = {"--model", f->run, "--temperature", "0", "--threads", "1", "--max-tokens", "10", "--prompt", "line"};
    const char *opening[] = {"--model", f->run, "--temperature", "0", "--threads", "1", "--max-tokens", "14", "--logprobs-of-prompt"};
    const int32_t line[] = {'l', 'i', 'n', 'e'};
    float p[4] = {0};
    char *text = NULL;
    im_generator *g = NULL;
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, 0), IM_OK);
    assert_int_equal(train(f, "2", &hooks), IM_OK);
    assert_int_equal(im_generate(f->ctx, generation, COUNT(generation), NULL, &text), IM_OK);
    assert_int_equal(im_generator_open(f->ctx, generation, COUNT(generation), NULL, &g), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(f->ctx), "--prompt"));
    im_error_clear(f->ctx);
    if (im_generator_open(f->ctx, opening, COUNT(opening), NULL, &g) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    assert_int_equal(im_generator_vocabulary(g), 257);
    assert_true(im_generator_is_end(g, 256) && !im_generator_is_end(g, 'a'));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(im_generator_room(g), 14);
        assert_int_equal(im_generator_feed(g, line, 4, p), IM_OK);
        assert_true(isnan(p[0]) && p[1] < 0 && p[2] < 0 && p[3] < 0);
        int n = 0;
        im_infer_utf8 u = {0};
        im_str by_id = {0};
        for (int32_t id = 0; n < 10 && !im_generator_is_end(g, id); n++) {
            assert_int_equal(im_generator_next(g, &id, p), IM_OK);
            assert_true(p[0] < 0);
            if (id < 256)
                im_infer_utf8_push(&u, (char[]){(char)id}, 1, &by_id);
        }
        im_infer_utf8_end(&u, &by_id);
        assert_int_equal(im_generator_room(g), 10 - n);
        assert_string_equal(im_str_text(&by_id), text);
        im_str_free(&by_id);
        im_generator_rewind(g);
    }
    free(text);
    im_generator_close(g);
    im_generator_close(NULL);
}

static void test_stop(void **state)
{
    fixture *f = *state;
    const char *files[] = {f->text};
    heard h = {.stop_after = 2};
    const im_hooks hooks = {.arg = &h, .stop = asked, .models_dir = IM_SOURCE_MODELS_DIR};
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, 0), IM_OK);
    assert_int_equal(train(f, "100000", &hooks), IM_ERR_STOPPED);
    char latest[160];
    snprintf(latest, sizeof latest, "%s/checkpoints/latest", f->run);
    assert_true(im_path_exists(latest)); /* saved */
    im_error_clear(f->ctx);
    char *text = (char *)"untouched";
    const char *generation[] = {"--model", f->run, "--prompt", "line", "--threads", "1"};
    assert_int_equal(im_generate(f->ctx, generation, COUNT(generation), &hooks, &text), IM_ERR_STOPPED);
    assert_string_equal(text, "untouched");
}

/* ---- bytes by class ------------------------------------------------------------------------------- */

typedef struct told {
    int calls, ranks; /* ranks: bit set */
    double predicted[3], measured[3];
} told;

static void hear_memory(void *arg, int rank, const im_class_bytes *classes, size_t n)
{
    static const char *const names[] = {"weights", "gradients", "optimizer"};
    told *t = arg;
    t->calls++;
    t->ranks |= 1 << rank;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            if (!strcmp(classes[i].name, names[k])) {
                t->predicted[k] = classes[i].predicted;
                t->measured[k] = classes[i].measured;
            }
}

/* Predicted without data, and by the run itself: the same, and what lies in memory. */
static void test_memory(void **state)
{
    fixture *f = *state;
    const char *files[] = {f->text};
    told plan = {0}, run = {0};
    const im_hooks asks = {.arg = &plan, .memory = hear_memory, .models_dir = IM_SOURCE_MODELS_DIR},
                   trains = {.arg = &run, .memory = hear_memory, .models_dir = IM_SOURCE_MODELS_DIR};
    const char *options[] = {
        "--model", "llama-bytes-tiny", "--seq-len", "16",    "--threads", "1",       "--dp", "2", "--zero",
        "2",       "--data",           f->train,    "--out", f->run,      "--steps", "1",
    };
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, 0), IM_OK);
    if (im_predict(f->ctx, options, 10, &asks) != IM_OK || im_train(f->ctx, options, COUNT(options), &trains) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    assert_int_equal(plan.calls, 1);
    assert_int_equal(run.calls, 2);
    assert_int_equal(run.ranks, 3);
    for (int k = 0; k < 3; k++) {
        assert_true(plan.predicted[k] > 1000 && isnan(plan.measured[k]));
        assert_true(fabs(run.predicted[k] - plan.predicted[k]) <= 4096); /* the two ranks' shards */
        assert_true(fabs(run.measured[k] - run.predicted[k]) <= 8192 + 0.02 * run.predicted[k]);
    }
    assert_true(plan.predicted[1] < 0.51 * plan.predicted[0] &&
                plan.predicted[2] < 1.02 * plan.predicted[0]); /* gradients and moments are shared out */
    const char *wrong[] = {"--model", "llama-bytes-tiny", "--tp", "5"};
    assert_int_equal(im_predict(f->ctx, wrong, 4, &asks), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(f->ctx), "tp 5"));
    assert_int_equal(plan.calls, 1);
}

/* ---- jobs ------------------------------------------------------------------------------------------- */

static char *no_launcher(const char *name)
{
    (void)name;
    return NULL;
}

static char *open_mpi(const char *name)
{
    static char two[] = "2";
    return strcmp(name, "OMPI_COMM_WORLD_SIZE") == 0 ? two : NULL;
}

static void test_job(void **state)
{
    fixture *f = *state;
    im_job *job = (im_job *)f;
    const im_job_config none = {.environment = no_launcher}, absent = {.environment = open_mpi, .plugins = f->dir}, not_asked = {0},
                        wrong = {.environment = no_launcher, .deadline = -1};
    assert_int_equal(im_job_join(f->ctx, &none, &job), IM_OK);
    assert_null(job);
    assert_int_equal(im_job_join(f->ctx, &not_asked, &job), IM_OK);
    assert_int_equal(im_job_size(job), 1);
    assert_int_equal(im_job_rank(job), 0);
    im_job_leave(job);
    assert_int_equal(im_job_join(f->ctx, &absent, &job), IM_ERR_NOT_FOUND);
    assert_non_null(strstr(im_error_text(f->ctx), "Open MPI started this process, but"));
    assert_null(job);
    im_error_clear(f->ctx);
    assert_int_equal(im_job_join(f->ctx, &wrong, &job), IM_ERR_ARG);
}

static void test_refuses(void **state)
{
    fixture *f = *state;
    const char *none[] = {"/nonexistent/file"}, *files[] = {f->text};
    assert_int_equal(im_data_build(f->ctx, f->data, none, 1, 0.1), IM_ERR_IO);
    assert_non_null(strstr(im_error_text(f->ctx), "/nonexistent/file"));
    im_error_clear(f->ctx);
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, 1.0), IM_ERR_ARG);
    im_error_clear(f->ctx);
    assert_int_equal(im_data_build(f->ctx, f->data, files, 1, NAN), IM_ERR_ARG);
    im_error_clear(f->ctx);
    assert_int_not_equal(im_data_build(f->ctx, f->data, NULL, 0, 0.1), IM_OK); /* no text */
    im_error_clear(f->ctx);
    assert_false(im_path_exists(f->train));

    const char *unknown[] = {"--modle", "gpt2"};
    im_evaluation e;
    char *text;
    assert_int_equal(im_train(f->ctx, unknown, 2, NULL), IM_ERR_ARG);
    assert_string_equal(im_error_text(f->ctx), "unknown option --modle; did you mean --model?");
    im_error_clear(f->ctx);
    assert_int_equal(im_evaluate(f->ctx, unknown, 2, NULL, &e), IM_ERR_ARG);
    im_error_clear(f->ctx);
    assert_int_equal(im_generate(f->ctx, unknown, 2, NULL, &text), IM_ERR_ARG);
    im_error_clear(f->ctx);
    assert_int_equal(im_generate(f->ctx, NULL, 0, NULL, &text), IM_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole_way, setup, teardown), cmocka_unit_test_setup_teardown(test_generator, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup, teardown),      cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_job, setup, teardown),       cmocka_unit_test_setup_teardown(test_refuses, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
