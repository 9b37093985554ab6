/* run_rig: whole training runs of a tiny model in a temporary directory, for tests that stop, kill, resume and compare. */
#ifndef IM_TESTS_RUN_RIG_H
#define IM_TESTS_RUN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/train.h"

/* The thread sanitizer sleeps a second at each exit; the tests have hundreds of children. A test may want more. */
#ifndef RUN_RIG_TSAN
#define RUN_RIG_TSAN ""
#endif
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0" RUN_RIG_TSAN;
}

static im_context *ctx;
static im_arena *arena;
static char dir[64]; /* in memory where there is such a place: the tests save hundreds of checkpoints, and each waits for the disk */

/* Warnings are collected, not printed: a test says which it expects. */
static char warned[8192];

static inline void collect(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    (void)arg, (void)rank, (void)part;
    if (level <= IM_LOG_WARN)
        snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", message);
}

static inline void ok(im_status s)
{
    if (s != IM_OK)
        fail_msg("%s: %s", im_status_name(s), im_error_text(ctx));
}

static inline void no_warnings(void)
{
    if (*warned)
        fail_msg("unexpected warnings: %s", warned);
}

static inline const char *at(const char *name)
{
    char *p = im_arena_printf(arena, "%s/%s", dir, name);
    assert_non_null(p);
    return p;
}

/* A Llama with sizes that divide nothing; untied. */
static inline void write_model(const char *name, bool tied)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 257, \"hidden_size\": 12, "
                     "\"intermediate_size\": 19, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 4, "
                     "\"max_position_embeddings\": 64, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, "
                     "\"initializer_range\": 0.02, \"tie_word_embeddings\": %s, \"bos_token_id\": 256, \"eos_token_id\": 256}",
                     tied ? "true" : "false");
    ok(im_file_write_atomic(ctx, at(name), text, (size_t)n));
}

/* `n` tokens of text-like bytes. */
static inline void write_tokens(const char *name, int n, uint64_t key)
{
    im_tokens_writer *w;
    ok(im_tokens_create(ctx, at(name), IM_U16, &w));
    for (int i = 0; i < n; i++) {
        uint32_t r[4];
        im_philox(key, (uint64_t)i / 3, 0, r);
        int32_t id = (int32_t)('a' + (r[0] + (uint32_t)(i % 3)) % 26);
        ok(im_tokens_append(w, &id, 1));
    }
    ok(im_tokens_end_document(w));
    ok(im_tokens_finish(w));
}

static inline int rig_setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/imece-run-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(dir) || im_context_create(&ctx) != IM_OK || im_arena_create(ctx, &arena) != IM_OK)
        return -1;
    im_context_set_log(ctx, collect, NULL, IM_LOG_WARN);
    write_model("model.json", false);
    write_model("tied.json", true);
    write_tokens("data", 7 * 16 + 1, 1); /* 7 samples of 16: a few steps are an epoch */
    write_tokens("valid", 16 * 5 + 4, 2);
    return 0;
}

static inline int rig_teardown(void **state)
{
    (void)state;
    im_error_clear(ctx);
    im_status s = im_remove_tree(ctx, dir);
    im_arena_destroy(arena);
    im_context_destroy(ctx);
    return s == IM_OK ? 0 : -1;
}

/* Options as a command line would give them; ends with NULL. */
static inline im_train_options options(const char *first, ...)
{
    char *argv[64] = {(char *)(uintptr_t)first};
    int argc = 1;
    va_list ap;
    va_start(ap, first);
    while (argc < 63 && (argv[argc] = va_arg(ap, char *)))
        argc++;
    va_end(ap);
    im_train_options o;
    ok(im_train_options_parse(ctx, arena, argc, argv, &o));
    return o;
}

/* The usual tiny run into `out`: global batch 5 in micro-batches of 2, 2 and 1. */
static inline im_train_options tiny(const char *out, int steps)
{
    char n[16];
    snprintf(n, sizeof n, "%d", steps);
    return options("--model", at("model.json"), "--data", at("data"), "--out", at(out), "--steps", n, "--seq-len", "16", "--micro-batch", "2",
                   "--global-batch", "5", "--lr", "1e-2", "--warmup", "2", "--min-lr", "1e-3", "--threads", "1", NULL);
}

static inline im_train_options resume(const char *run)
{
    return options("--resume", at(run), NULL);
}

/* Stops after `left` steps, as a signal would. */
typedef struct stopper {
    int left; /* < 0: never */
    char text[4096];
} stopper;

static inline void note_text(void *arg, im_train_text kind, const char *text)
{
    stopper *s = arg;
    if (kind == IM_TRAIN_TEXT_PROGRESS && s->left > 0)
        s->left--;
    if (kind == IM_TRAIN_TEXT_EVENT || kind == IM_TRAIN_TEXT_WARNING)
        snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "%s\n", text);
}

static inline bool stop_now(void *arg)
{
    return ((stopper *)arg)->left == 0;
}

static inline im_status run_until(const im_train_options *o, int steps, stopper *s)
{
    *s = (stopper){.left = steps};
    im_train_env env = {.arg = s, .text = note_text, .stop = stop_now};
    return im_train_execute(ctx, o, &env);
}

static inline void run_whole(const im_train_options *o)
{
    stopper s;
    ok(run_until(o, -1, &s));
}

static inline bool same_file(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;
    ok(im_file_read(ctx, at(a), 1 << 24, &x, &n));
    ok(im_file_read(ctx, at(b), 1 << 24, &y, &m));
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

/* Weights and optimizer of step N of two runs. */
static inline void assert_same_state(const char *a, const char *b, int step)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char x[256], y[256];
        snprintf(x, sizeof x, "%s/checkpoints/step-%d/%s", a, step, files[i]);
        snprintf(y, sizeof y, "%s/checkpoints/step-%d/%s", b, step, files[i]);
        if (!same_file(x, y))
            fail_msg("%s and %s differ", x, y);
    }
}

#endif
