/* imece: train and run language models that do not fit one device.
 *
 * The public C interface; the command line is built on the same functions. Every function that can fail returns
 * im_status: 0, or a negative code; the text of the first error is in the context (im_error_text). Outputs are set
 * only on success. Nothing here exits, prints or reads the environment. A context and what is made with it is used
 * by one thread at a time; two contexts are independent. examples/train.c shows it at work.
 */
#ifndef IMECE_H
#define IMECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IM_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define IM_MUST_CHECK __attribute__((warn_unused_result))
#define IM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define IM_MUST_CHECK
#define IM_PRINTF(fmt, args)
#endif

typedef enum im_status {
    IM_OK = 0,
    IM_ERR_ARG = -1,         /* an option or argument has an impossible value (exit 2) */
    IM_ERR_IO = -2,          /* the operating system refused a read, write, open ... */
    IM_ERR_FORMAT = -3,      /* a file's content is not what its format allows */
    IM_ERR_NOMEM = -4,       /* more memory than there is */
    IM_ERR_UNSUPPORTED = -5, /* well formed, but not implemented here; named */
    IM_ERR_NOT_FOUND = -6,
    IM_ERR_EXISTS = -7,
    IM_ERR_CHECK = -8,     /* a check found something (exit 3) */
    IM_ERR_NONFINITE = -9, /* a NaN or an infinity where a number should be */
    IM_ERR_STOPPED = -10,  /* a signal asked to stop; state is saved (exit 4) */
    IM_ERR_TIMEOUT = -11,  /* a wait passed its deadline */
    IM_ERR_ABORTED = -12,  /* another rank failed */
    IM_ERR_INTERNAL = -13  /* a bug of ours */
} im_status;

/* ---- context: errors and messages ---------------------------------------------------- */

typedef struct im_context im_context;
im_status im_context_create(im_context **out) IM_MUST_CHECK;
void im_context_destroy(im_context *ctx); /* NULL is allowed */

/* The first error since the context was made or cleared; "" when there is none. */
const char *im_error_text(const im_context *ctx);
im_status im_error_code(const im_context *ctx);
void im_error_clear(im_context *ctx);
const char *im_status_name(im_status s); /* "format", "io", ... */

typedef enum im_log_level { IM_LOG_ERROR, IM_LOG_WARN, IM_LOG_INFO, IM_LOG_DEBUG } im_log_level;
/* Receives one finished message without newline, from any thread. `part` is the folder's noun. */
typedef void (*im_log_sink)(void *arg, im_log_level level, int rank, const char *part, const char *message);
void im_context_set_log(im_context *ctx, im_log_sink sink, void *arg, im_log_level max_level);

/* ---- what a long call tells, and asks -------------------------------------------------- */

typedef enum im_text_kind {
    IM_TEXT_PLAN,     /* before the first step: what will be done, and in how much memory */
    IM_TEXT_PROGRESS, /* one line, in place of the one before */
    IM_TEXT_EVENT,    /* something that happened: an evaluation, a checkpoint */
    IM_TEXT_SUMMARY,  /* at the end, some lines */
    IM_TEXT_JSON      /* the summary as one JSON object */
} im_text_kind;

/* A step of training, as its line in metrics.jsonl (docs/metrics.md). */
typedef struct im_step_report {
    int64_t step, tokens; /* done so far */
    double loss;          /* nats a token; NaN in a step that was not finite */
    double grad_norm, lr, seconds, tokens_per_s;
} im_step_report;

typedef struct im_hooks {
    void *arg;                                                    /* first argument of the functions below, each of which may be NULL */
    void (*text)(void *arg, im_text_kind kind, const char *text); /* without newline at its end */
    void (*step)(void *arg, const im_step_report *step);          /* im_train: after each */
    void (*piece)(void *arg, const char *utf8, size_t n);         /* im_generate: whole characters, as they come */
    bool (*stop)(void *arg);                                      /* true: finish the step, save, return IM_ERR_STOPPED */
    const char *models_dir;                                       /* of named shapes; NULL: those installed with the library */
} im_hooks;

/* ---- data, training, evaluation, generation ----------------------------------------------
 *
 * `options` are n words as on the command line of `imece train`, `imece eval` and `imece generate` (each --help lists
 * them): {"--model", "llama-15m", "--steps", "100"}. hooks may be NULL. */

/* Text files to token files of bytes: NAME-train.bin and .idx, and, with valid_fraction (0 to 0.99) above 0, NAME-valid. Each
 * file is a document. */
im_status im_data_build(im_context *ctx, const char *name, const char *const *files, size_t n, double valid_fraction) IM_MUST_CHECK;

/* Trains until --steps, --tokens or --minutes is reached. IM_ERR_STOPPED: hooks->stop said so, the state is saved. */
im_status im_train(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks) IM_MUST_CHECK;

typedef struct im_evaluation {
    double loss;          /* nats a counted token, over all of them */
    int64_t tokens;       /* counted */
    double bits_per_byte; /* negative when the tokens are no bytes */
} im_evaluation;
im_status im_evaluate(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, im_evaluation *out) IM_MUST_CHECK;

/* Goes on with --prompt or --ids. *text: what was generated, UTF-8 (ids in decimal for models that are not of bytes); free() it. */
im_status im_generate(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, char **text) IM_MUST_CHECK;

/* ---- generation id by id --------------------------------------------------------------------
 *
 * A generator is one sequence of ids over a key/value cache. Nothing is allocated after it was opened. After an error
 * of feed or next only close is allowed. */
typedef struct im_generator im_generator;
/* The options of im_generate without --prompt, --ids and --stop; --max-tokens is the room for all ids, given and new (not given:
 * as many as the model has positions). --logprobs-of-prompt lets feed tell log-probabilities. */
im_status im_generator_open(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, im_generator **out) IM_MUST_CHECK;
void im_generator_close(im_generator *g);                    /* NULL is allowed */
int64_t im_generator_vocabulary(const im_generator *g);      /* ids are 0 to this, exclusive; 257: bytes, and 256 ends a document */
bool im_generator_is_end(const im_generator *g, int32_t id); /* one of the model's eos_token_id */
int64_t im_generator_room(const im_generator *g);            /* ids that still fit */
/* Appends n ids. logprob: NULL, or n entries: the log-probability of each id given those before it; NaN for the first of each feed. */
im_status im_generator_feed(im_generator *g, const int32_t *ids, size_t n, float *logprob) IM_MUST_CHECK;
/* The next id, which becomes part of the sequence, and (unless NULL) its log-probability. How ids are fed, at once or one by one, changes
 * nothing: randomness is keyed by the seed and the position. */
im_status im_generator_next(im_generator *g, int32_t *id, float *logprob) IM_MUST_CHECK;
void im_generator_rewind(im_generator *g); /* an empty sequence again */

#ifdef __cplusplus
}
#endif
#endif
