/* train: the loop around the engine. Options in, a run directory out.
 *
 *   RUN/plan.yaml       every option of the run, and the plan they became
 *   RUN/metrics.jsonl   a line a step, a line an evaluation
 *   RUN/logs/           what was said
 *   RUN/rings/          the last operations of each rank, when there are several
 *   RUN/checkpoints/    step-N, latest
 *   RUN/trace.json      with --trace
 */
#ifndef IM_TRAIN_H
#define IM_TRAIN_H

#include "base/option.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "data/feed.h"
#include "observe/observe.h"

typedef enum im_train_init { IM_TRAIN_INIT_AUTO, IM_TRAIN_INIT_RANDOM } im_train_init;
typedef enum im_train_precision { IM_TRAIN_FP32, IM_TRAIN_BF16 } im_train_precision;
typedef enum im_train_nonfinite { IM_TRAIN_NONFINITE_STOP, IM_TRAIN_NONFINITE_SKIP, IM_TRAIN_NONFINITE_ROLLBACK } im_train_nonfinite;
typedef enum im_train_schedule { IM_TRAIN_CONSTANT, IM_TRAIN_LINEAR, IM_TRAIN_COSINE, IM_TRAIN_WSD } im_train_schedule;

typedef struct im_train_options {
    const char *model, *data, *valid, *tokenizer, *out;
    double valid_share;
    int64_t steps, tokens;
    double minutes;
    int64_t seq_len, micro_batch, global_batch;
    int order;     /* im_order */
    int pack;      /* im_pack */
    int attention; /* im_reach */
    int too_long;  /* im_long */
    int precision; /* im_train_precision */
    int init;      /* im_train_init */
    double lr;
    int schedule; /* im_train_schedule */
    int64_t warmup;
    double decay, min_lr, beta1, beta2, eps, weight_decay, clip, dropout, label_smoothing;
    int64_t seed, eval_every, eval_batches, save_every, keep;
    int nonfinite; /* im_train_nonfinite */
    int64_t tp, cp, dp, pp, zero;
    bool sequence_parallel;
    int recompute; /* im_recompute */
    int pipeline;  /* im_schedule */
    int64_t chunks;
    const char *stages;
    int64_t threads;
    int kernels; /* im_kernels */
    double pace_flops, pace_bytes;
    int device; /* 1: deferred */
    bool trace;
    double deadline;
    bool rings;
    /* of one command, not of the run */
    const char *resume, *config, *hosts;
    const char *plan_file, *plan_family, *plan_identity; /* of the plan that came with the options; NULL: none did */
    int64_t plan_parameters;
    bool dry_run, json;
    const char *fault;
} im_train_options;

/* The one table; the first IM_TRAIN_SAVED_ROWS are echoed in plan.yaml. */
enum { IM_TRAIN_ROWS = 60, IM_TRAIN_SAVED_ROWS = 54 };
extern const im_option im_train_rows[IM_TRAIN_ROWS];
/* Flags over --config over, with --resume, the run's plan.yaml over defaults. Strings live in `a`. */
im_status im_train_options_parse(im_context *ctx, im_arena *a, int argc, char *const *argv, im_train_options *out) IM_MUST_CHECK;
/* Cross-field rules, each a small named function. */
im_status im_train_options_check(im_context *ctx, const im_train_options *o) IM_MUST_CHECK;
enum { IM_TRAIN_CUTS = 64 * IM_MAX_CHUNKS };
/* The plan that the options make of a model; cut[IM_TRAIN_CUTS] must live as long as it. Not validated. */
im_status im_train_plan(im_context *ctx, const im_train_options *o, const im_model *m, int64_t *cut, im_plan *p) IM_MUST_CHECK;
/* --fault: what goes wrong, and on which of n ranks. */
im_status im_train_fault_parse(im_context *ctx, const char *text, int n, im_comm_fault *out, int *rank) IM_MUST_CHECK;

/* ---- learning rate ------------------------------------------------------------------------ */

typedef struct im_train_clock {
    int64_t step;         /* the step about to run, from 0 */
    int64_t total_steps;  /* 0: no such limit */
    double elapsed_s;     /* so far */
    double total_s;       /* 0: no such limit */
    double warmup_done_s; /* elapsed when the warmup ended; < 0: it has not */
} im_train_clock;
/* Warmup: lr * (step + 1) / warmup. Then p = the share of the rest that is done (of steps or of time, whichever is further), and
 *   linear  lr + (min - lr) p        cosine  min + (lr - min) (1 + cos(pi p)) / 2
 *   wsd     lr, and over the last `decay` of the rest linearly to min        constant  lr */
double im_train_lr(const im_train_options *o, const im_train_clock *c);
/* Steps after which --steps or --tokens end the run, whichever is first; 0: neither is given. */
int64_t im_train_total_steps(const im_train_options *o);

/* Bytes of text that each id stands for: *out [vocabulary], free(); NULL when it is not known. */
im_status im_train_token_bytes(im_context *ctx, const im_model *m, const char *tokenizer_dir, int32_t **out) IM_MUST_CHECK;

/* ---- evaluation (rule 3): one sum, one count ------------------------------------------------- */

enum { IM_TRAIN_EVAL_PARTS = 3 };
/* Which programs read all that a feed has: full batches, the rest of the samples, the tokens behind the last whole sample. */
typedef struct im_train_eval {
    const im_feed *feed;
    int64_t seq_len;
    int nparts;
    struct {
        int64_t batch, seq_len; /* of the EVAL program */
        int64_t runs;
        int64_t first;   /* sample it begins with; the tail: token */
        int64_t samples; /* that count; those behind them, in the last run, are padding */
        bool tail;
    } part[IM_TRAIN_EVAL_PARTS];
    size_t program0;            /* index of the first part's program in the engine */
    const int32_t *token_bytes; /* [vocabulary]: bytes of text that an id stands for; NULL: not known */
} im_train_eval;
/* max_batches 0: all. token_bytes is borrowed. */
void im_train_eval_plan(const im_feed *f, int64_t seq_len, int64_t batch, int64_t max_batches, const int32_t *token_bytes, im_train_eval *out);
/* Shares the samples out over dp ranks: the same ones, whatever dp is. `batch` as above, of each rank. Before im_train_eval_want. */
void im_train_eval_split(im_train_eval *v, int64_t batch, int dp);
/* Adds the programs the parts need; program0 is set. */
void im_train_eval_want(im_train_eval *v, im_program_want *want, size_t *nwant);
/* All ranks call it, and get the same result. env (may be NULL) may end it early: IM_ERR_STOPPED. out->step is left alone. */
typedef struct im_train_env im_train_env;
im_status im_train_eval_run(im_context *ctx, im_engine *e, const im_train_eval *v, const im_train_env *env, im_observe_eval *out) IM_MUST_CHECK;

/* A loss of n counted tokens, added up: sums, never means of means. */
typedef struct im_train_mean {
    double sum, count;
} im_train_mean;
void im_train_mean_add(im_train_mean *m, double sum, double count);
double im_train_mean_value(const im_train_mean *m); /* NaN when nothing was counted */

/* ---- a run ------------------------------------------------------------------------------------- */

typedef enum im_train_text {
    IM_TRAIN_TEXT_PLAN,
    IM_TRAIN_TEXT_PROGRESS,
    IM_TRAIN_TEXT_EVENT,
    IM_TRAIN_TEXT_WARNING, /* an event that went wrong: a step left out, a save that failed */
    IM_TRAIN_TEXT_SUMMARY,
    IM_TRAIN_TEXT_JSON
} im_train_text;

struct im_train_env {
    void *arg;
    void (*text)(void *arg, im_train_text kind, const char *text); /* may be NULL; PROGRESS replaces the one before it */
    void (*step)(void *arg, const im_observe_step *s);             /* each step, as its line in metrics.jsonl; may be NULL */
    /* true once a signal came: all ranks finish the step, save, and return IM_ERR_STOPPED. Each process is asked. May be NULL */
    bool (*stop)(void *arg);
    /* From another thread: the run has failed and has told so, but ranks of this process do not come back. Ends the process. NULL: it is waited
     * for them */
    void (*lost)(void *arg);
    bool measure_rate;      /* measure the machine's matmul rate after the first step, for MFU */
    const char *models_dir; /* of named shapes; NULL: none */
    void (*memory)(void *arg, int rank, const im_class_bytes *classes, size_t n); /* each rank's bytes, at the end; may be NULL */
    double began;                                                                 /* im_clock_now() when the command began; 0: now */
    im_comm_mpi_world *mpi; /* this process is a rank of it; NULL: all ranks are threads of this process */
};

/* FLOPs a second of the machines that a job's ranks are on, by those of this one, where `ranks_here` of the ranks are: machines are taken to be alike.
 * The tokens of a step are those of all ranks, so MFU must be over the machines of all. here <= 0 (not known) stays. */
double im_train_job_rate(double here, int ranks, int ranks_here);

/* Trains. Statuses beside the usual: IM_ERR_STOPPED (saved), IM_ERR_NONFINITE, IM_ERR_EXISTS (output directory). */
im_status im_train_execute(im_context *ctx, const im_train_options *o, const im_train_env *env) IM_MUST_CHECK;

/* Tells env->memory what the rank that needs most would need; --data and an end need not be given. Nothing is allocated. */
im_status im_train_predict(im_context *ctx, const im_train_options *o, const im_train_env *env) IM_MUST_CHECK;

/* Weights: from the model's directory, or drawn (every layout the same bits). */
im_status im_train_init_weights(im_context *ctx, im_engine *e, uint64_t seed) IM_MUST_CHECK;

/* `imece eval`: loss of a model directory on a token file. */
typedef struct im_train_eval_options {
    const char *model, *data;
    int64_t seq_len, batch, batches, threads;
    int precision, kernels, device;
    int pack, attention, too_long; /* im_pack, im_reach, im_long */
    int64_t tp, dp, pp;
    double deadline;
    bool json;
} im_train_eval_options;
enum { IM_TRAIN_EVAL_ROWS = 17 };
extern const im_option im_train_eval_rows[IM_TRAIN_EVAL_ROWS];
/* All ranks get the result. env->memory hears each rank's bytes at the end. */
im_status im_train_eval_model(im_context *ctx, const im_train_eval_options *o, const im_train_env *env, im_observe_eval *out) IM_MUST_CHECK;

#endif
