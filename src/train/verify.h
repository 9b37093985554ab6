/* verify: any layout computes what one rank computes (DESIGN rule 1), shown on the user's own model.
 *
 * One rank runs some steps and its losses, gradient norms, first gradients, and a digest of every edge of every step are kept. Then
 * each layout runs the same steps, ranks as threads, and is compared. Weights are in memory once, the reference's gradients too.
 */
#ifndef IM_TRAIN_VERIFY_H
#define IM_TRAIN_VERIFY_H

#include "train/train.h"

/* ---- layouts ---------------------------------------------------------------------------- */

typedef struct im_train_verify_layout {
    int tp, dp, pp, zero;
    im_schedule schedule; /* with pp */
    int chunks;           /* of the interleaved schedule; else 1 */
    bool sp;
    im_recompute recompute;
    int64_t micro_batch;
} im_train_verify_layout;

enum { IM_TRAIN_VERIFY_NAME = 96, IM_TRAIN_VERIFY_REASON = 400 };
/* "tp2+sp+dp2+zero1+pp2+interleaved2+full+mb1"; what is 1, 0 or none is left out, except the micro-batch. */
void im_train_verify_name(const im_train_verify_layout *l, char *buf, size_t size);
/* Parts in any order joined by +, each once: tpN dpN ppN zeroN mbN sp selective full, and with ppN a schedule (1f1b when none is named): gpipe 1f1b
 * interleavedN (N chunks; 2 when it is left out) zb-h1. micro_batch: where no mbN is given. */
im_status im_train_verify_parse(im_context *ctx, const char *text, int64_t micro_batch, im_train_verify_layout *out) IM_MUST_CHECK;

typedef struct im_train_verify_refusal {
    char first[IM_TRAIN_VERIFY_NAME]; /* a layout that is refused so */
    char reason[IM_TRAIN_VERIFY_REASON];
    int count; /* how many */
} im_train_verify_refusal;

typedef struct im_train_verify_set {
    im_train_verify_layout *layout;
    size_t n;
    im_train_verify_refusal *refused; /* each reason once */
    size_t nrefused;
} im_train_verify_set;
/* What 1 to `ranks` ranks allow of the model: `base` says everything else of the plan (its global and micro-batch sizes decide too).
 * `which`: "all", "pairwise" (every two values of two factors that occur together in some layout do so in one of the set), or names
 * separated by commas: those that cannot be are IM_ERR_ARG. micro[nmicro]: the micro-batch sizes to try. Pipelines come with every schedule,
 * interleaved with 2 chunks; more chunks come by name. */
im_status im_train_verify_layouts(im_context *ctx, const im_plan *base, int ranks, const char *which, const int64_t *micro, size_t nmicro,
                                  im_train_verify_set *out) IM_MUST_CHECK;
void im_train_verify_set_free(im_train_verify_set *s);
/* The plan of a layout: base with its mesh, ZeRO, schedule, recompute, micro-batch. */
im_plan im_train_verify_plan(const im_plan *base, const im_train_verify_layout *l);

/* The pairs of factors' values, for the cover and its test: layout l shows value(l, f) of factor f. */
enum { IM_TRAIN_VERIFY_FACTORS = 8 };
int64_t im_train_verify_factor(const im_train_verify_layout *l, int factor);

/* ---- running ------------------------------------------------------------------------------ */

typedef struct im_train_verify_options {
    const char *model, *data;
    int64_t ranks;
    const char *layouts;
    int64_t steps, seq_len, micro_batch, global_batch, seed;
    double tolerance, dropout, lr;
    int kernels;
    const char *fault; /* KIND[@K][:GROUP]: one collective is wrong on purpose */
    bool strict;       /* no allowance for rounding */
    bool json;         /* for the command line */
} im_train_verify_options;
enum { IM_TRAIN_VERIFY_ROWS = 16 };
extern const im_option im_train_verify_rows[IM_TRAIN_VERIFY_ROWS];

/* ROUNDING: over the tolerance, but within ten times what one rank's own numbers change when the last bits of its weights do. */
typedef enum im_train_verify_verdict {
    IM_TRAIN_VERIFY_SAME,
    IM_TRAIN_VERIFY_ROUNDING,
    IM_TRAIN_VERIFY_DIFFERS,
    IM_TRAIN_VERIFY_FAILED
} im_train_verify_verdict;
const char *im_train_verify_verdict_name(im_train_verify_verdict v);

typedef struct im_train_verify_row {
    im_train_verify_layout layout;
    char name[IM_TRAIN_VERIFY_NAME];
    int ranks;
    double loss, norm, gradient; /* largest relative differences; NaN and infinity count as infinity */
    const char *param;           /* whose gradient differs most; "" when none does */
    int64_t index;               /* of the element that differs most there */
    size_t predicted, measured;  /* bytes of all ranks: the plan's, and what the process grew by */
    double seconds;
    im_train_verify_verdict verdict;
    char first[400]; /* DIFFERS: the first instruction whose result differs; FAILED: the error; else "", or that the fault was not made */
} im_train_verify_row;

typedef struct im_train_verify_report {
    const char *model; /* as given */
    int64_t ranks, steps, seq_len, global_batch;
    double tolerance;
    bool strict;
    bool drawn;                             /* weights are drawn, not loaded */
    double loss, grad_norm;                 /* one rank's, of the first step */
    im_train_verify_row reference, rounded; /* rounded: one rank again, the last bits of its weights moved; not with `strict` */
    const im_train_verify_set *set;
    const im_train_verify_row *row; /* of set->layout, in order */
    size_t nrow, wrong;
    double seconds;
} im_train_verify_report;

typedef struct im_train_verify_env {
    void *arg;
    void (*begin)(void *arg, const im_train_verify_report *r);                             /* the reference is done, the layouts are known */
    void (*row)(void *arg, const im_train_verify_report *r, const im_train_verify_row *x); /* a layout is done */
    void (*progress)(void *arg, const char *text);
    bool (*stop)(void *arg);
    const char *models_dir;
} im_train_verify_env;

/* Every function of env may be NULL. `end` is called with the whole report, whatever was found. IM_ERR_CHECK when a layout differs or failed. */
im_status im_train_verify_execute(im_context *ctx, const im_train_verify_options *o, const im_train_verify_env *env,
                                  void (*end)(void *arg, const im_train_verify_report *r)) IM_MUST_CHECK;

#endif
