/* api: the calls of imece.h that use more than one folder. */
#include "api/internal.h"
#include "data/corpus.h"
#include "infer/infer.h"
#include "train/train.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const im_hooks no_hooks;

/* buf has PATH_MAX bytes. */
static const char *models_dir(const im_hooks *hooks, char *buf)
{
    return hooks->models_dir ? hooks->models_dir : im_api_installed(IM_MODELS_FROM_LIB, IM_MODELS_DIR, buf);
}

/* ---- data -------------------------------------------------------------------------- */

im_status im_data_build(im_context *ctx, const char *name, const char *const *files, size_t n, double valid_fraction)
{
    if (!(valid_fraction >= 0 && valid_fraction <= 0.99))
        return im_fail(ctx, IM_ERR_ARG, "im_data_build: valid_fraction %g is not from 0 to 0.99", valid_fraction);
    const im_corpus_config cfg = {.input = files, .ninput = n, .out = name, .eod = IM_CORPUS_EOD_DEFAULT, .valid_fraction = valid_fraction};
    im_corpus_result result;
    return im_corpus_build(ctx, &cfg, &result);
}

/* ---- training and evaluation --------------------------------------------------------- */

static void pass_text(void *arg, im_train_text kind, const char *text)
{
    static const im_text_kind kinds[] = {
        [IM_TRAIN_TEXT_PLAN] = IM_TEXT_PLAN,     [IM_TRAIN_TEXT_PROGRESS] = IM_TEXT_PROGRESS, [IM_TRAIN_TEXT_EVENT] = IM_TEXT_EVENT,
        [IM_TRAIN_TEXT_WARNING] = IM_TEXT_EVENT, [IM_TRAIN_TEXT_SUMMARY] = IM_TEXT_SUMMARY,   [IM_TRAIN_TEXT_JSON] = IM_TEXT_JSON,
    };
    const im_hooks *hooks = arg;
    if (hooks->text)
        hooks->text(hooks->arg, kinds[kind], text);
}

static void pass_step(void *arg, const im_observe_step *s)
{
    const im_hooks *hooks = arg;
    const im_step_report report = {.step = s->step,
                                   .tokens = s->tokens,
                                   .loss = s->loss,
                                   .grad_norm = s->grad_norm,
                                   .lr = s->lr,
                                   .seconds = s->step_s,
                                   .tokens_per_s = s->tokens_per_s};
    if (hooks->step)
        hooks->step(hooks->arg, &report);
}

static bool pass_stop(void *arg)
{
    const im_hooks *hooks = arg;
    return hooks->stop && hooks->stop(hooks->arg);
}

static void pass_memory(void *arg, int rank, const im_class_bytes *classes, size_t n)
{
    const im_hooks *hooks = arg;
    if (hooks->memory)
        hooks->memory(hooks->arg, rank, classes, n);
}

static im_train_env make_env(const im_hooks *hooks, char *buf)
{
    im_train_env env = {
        .arg = (void *)hooks, /* read only */
        .text = pass_text,
        .step = pass_step,
        .stop = pass_stop,
        .memory = pass_memory,
        .measure_rate = true,
        .models_dir = models_dir(hooks, buf),
    };
    if (im_job_rank(hooks->job) > 0) { /* rank 0 speaks for all */
        env.text = NULL;
        env.step = NULL;
        env.stop = NULL;
        env.measure_rate = false;
    }
    return env;
}

im_status im_train(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks)
{
    char buf[PATH_MAX];
    im_arena *arena;
    im_train_options o;
    IM_TRY(im_arena_create(ctx, &arena));
    im_train_env env = make_env(hooks ? hooks : &no_hooks, buf);
    env.mpi = hooks && hooks->job ? im_api_job_world(hooks->job) : NULL;
    im_status status = im_train_options_parse(ctx, arena, (int)n, (char *const *)options, &o);
    if (status == IM_OK)
        status = im_train_execute(ctx, &o, &env);
    im_arena_destroy(arena);
    return status;
}

im_status im_predict(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks)
{
    char buf[PATH_MAX];
    im_arena *arena;
    im_train_options o;
    IM_TRY(im_arena_create(ctx, &arena));
    im_train_env env = make_env(hooks ? hooks : &no_hooks, buf);
    im_status status = im_train_options_parse(ctx, arena, (int)n, (char *const *)options, &o);
    if (status == IM_OK)
        status = im_train_predict(ctx, &o, &env);
    im_arena_destroy(arena);
    return status;
}

/* Defaults, then the words, by a table. Only options may stand there. */
static im_status parse(im_context *ctx, im_arena *a, const im_option *rows, size_t nrows, const char *const *options, size_t n, void *into)
{
    IM_TRY(im_option_defaults(ctx, rows, nrows, a, into));
    return im_option_parse(ctx, rows, nrows, a, (int)n, (char *const *)options, into, NULL, NULL);
}

im_status im_evaluate(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, im_evaluation *out)
{
    char buf[PATH_MAX];
    im_arena *arena;
    im_train_eval_options o;
    im_observe_eval e = {0};
    IM_TRY(im_arena_create(ctx, &arena));
    im_train_env env = make_env(hooks ? hooks : &no_hooks, buf);
    env.mpi = hooks && hooks->job ? im_api_job_world(hooks->job) : NULL;
    im_status status = parse(ctx, arena, im_train_eval_rows, IM_TRAIN_EVAL_ROWS, options, n, &o);
    if (status == IM_OK)
        status = im_train_eval_model(ctx, &o, &env, &e);
    if (status == IM_OK)
        *out = (im_evaluation){.loss = e.loss, .tokens = e.counted, .bits_per_byte = e.bits_per_byte};
    im_arena_destroy(arena);
    return status;
}

/* ---- generation ------------------------------------------------------------------------ */

static im_status generate(im_context *ctx, const im_infer_options *o, const im_hooks *hooks, char **text)
{
    const im_infer_sink sink = {.arg = hooks->arg, .text = hooks->piece, .stop = hooks->stop};
    char buf[PATH_MAX];
    im_infer_result r;
    IM_TRY(im_infer_generate(ctx, o, models_dir(hooks, buf), hooks->job ? im_api_job_world(hooks->job) : NULL, &sink, &r));
    im_status status = IM_OK;
    void *copy = NULL;
    for (int i = 0; i < r.ranks && hooks->memory; i++)
        im_observe_memory_pass(&r.memory[i], hooks->memory, hooks->arg);
    if (r.stop == IM_INFER_STOP_ASKED)
        status = im_fail(ctx, IM_ERR_STOPPED, "stopped after %zu new tokens", r.n);
    else
        status = im_alloc(ctx, r.text.len + 1, 1, &copy);
    if (status == IM_OK) {
        memcpy(copy, im_str_text(&r.text), r.text.len);
        *text = copy;
    }
    im_infer_result_free(&r);
    return status;
}

im_status im_generate(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, char **text)
{
    im_arena *arena;
    im_infer_options o = {0};
    IM_TRY(im_arena_create(ctx, &arena));
    im_status status = parse(ctx, arena, im_infer_rows, IM_INFER_ROWS, options, n, &o);
    if (status == IM_OK)
        status = generate(ctx, &o, hooks ? hooks : &no_hooks, text);
    im_arena_destroy(arena);
    return status;
}

/* ---- generation id by id ------------------------------------------------------------------ */

struct im_generator {
    im_infer *infer;
};

/* What a sequence without a given prompt has no use for. */
static im_status refuse_prompt(im_context *ctx, const im_infer_options *o)
{
    const char *name = o->prompt ? "--prompt" : o->ids ? "--ids" : o->stop.n ? "--stop" : NULL;
    if (name)
        return im_fail(ctx, IM_ERR_ARG, "im_generator_open: %s is for im_generate; a generator is fed ids", name);
    if (o->max_tokens == 0)
        return im_fail(ctx, IM_ERR_ARG, "im_generator_open: --max-tokens 0: room for at least one id");
    return IM_OK;
}

static im_status start(im_context *ctx, const im_infer_options *o, const im_hooks *hooks, im_generator *g)
{
    char buf[PATH_MAX];
    IM_TRY(refuse_prompt(ctx, o));
    IM_TRY(im_infer_open(ctx, o->model, models_dir(hooks, buf), &g->infer));
    im_infer_config cfg = im_infer_config_of(o);
    cfg.positions = o->max_tokens > 0 ? o->max_tokens : 0;
    return im_infer_start(g->infer, &cfg);
}

im_status im_generator_open(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, im_generator **out)
{
    im_arena *arena;
    im_infer_options o = {0};
    void *memory = NULL;
    IM_TRY(im_arena_create(ctx, &arena));
    im_status status = parse(ctx, arena, im_infer_rows, IM_INFER_ROWS, options, n, &o);
    if (status == IM_OK)
        status = im_alloc(ctx, 1, sizeof(im_generator), &memory);
    if (status == IM_OK)
        status = start(ctx, &o, hooks ? hooks : &no_hooks, memory);
    im_arena_destroy(arena);
    if (status == IM_OK)
        *out = memory;
    else
        im_generator_close(memory);
    return status;
}

void im_generator_close(im_generator *g)
{
    if (g)
        im_infer_close(g->infer);
    free(g);
}

int64_t im_generator_vocabulary(const im_generator *g)
{
    return im_infer_model(g->infer)->arch.V;
}

bool im_generator_is_end(const im_generator *g, int32_t id)
{
    return im_infer_is_end(g->infer, id);
}

int64_t im_generator_room(const im_generator *g)
{
    return im_infer_room(g->infer);
}

im_status im_generator_feed(im_generator *g, const int32_t *ids, size_t n, float *logprob)
{
    return im_infer_feed(g->infer, ids, n, logprob);
}

im_status im_generator_next(im_generator *g, int32_t *id, float *logprob)
{
    return im_infer_next(g->infer, id, logprob);
}

void im_generator_rewind(im_generator *g)
{
    im_infer_rewind(g->infer);
}
