/* layout_rows: the options of commands that look at a plan before it runs: the plan of a run or a file, and what replaces it on the command line. */
#ifndef IM_CLI_LAYOUT_ROWS_H
#define IM_CLI_LAYOUT_ROWS_H

#include "cli/cli.h"
#include "plan/plan.h"
#include "train/train.h"

#include <stddef.h>

typedef struct im_cli_layout {
    const char *model, *stages;
    int64_t tp, dp, pp, zero, chunks, seq_len, micro_batch, global_batch;
    int pipeline, recompute, precision;
    bool sequence_parallel;
} im_cli_layout;

/* Rows of an options struct whose first member is an im_cli_layout. */
#define IM_CLI_LAYOUT_AT(field) offsetof(im_cli_layout, field)
#define IM_CLI_LAYOUT_ROWS                                                                                                                             \
    {"model", IM_OPT_STRING,           NULL, 0,     0,     NULL, "Model: a Hugging Face directory, a config.json, or the name of a shape.",            \
     "DIR",   IM_CLI_LAYOUT_AT(model), 'm',  false, "What"},                                                                                           \
        {"tp", IM_OPT_INT, "1", 1, 1 << 16, NULL, "Tensor parallel ranks.", "N", IM_CLI_LAYOUT_AT(tp), 0, false, "Layout"},                            \
        {"dp", IM_OPT_INT, "1", 1, 1 << 20, NULL, "Data parallel ranks.", "N", IM_CLI_LAYOUT_AT(dp), 0, false, NULL},                                  \
        {"pp", IM_OPT_INT, "1", 1, 1024, NULL, "Stages of the pipeline.", "N", IM_CLI_LAYOUT_AT(pp), 0, false, NULL},                                  \
        {"zero", IM_OPT_INT, "0", 0, 3, NULL, "ZeRO stage.", "N", IM_CLI_LAYOUT_AT(zero), 0, false, NULL}, {"sequence-parallel",                       \
                                                                                                            IM_OPT_BOOL,                               \
                                                                                                            "false",                                   \
                                                                                                            0,                                         \
                                                                                                            0,                                         \
                                                                                                            NULL,                                      \
                                                                                                            "With tp: sequence parallelism.",          \
                                                                                                            NULL,                                      \
                                                                                                            IM_CLI_LAYOUT_AT(sequence_parallel),       \
                                                                                                            0,                                         \
                                                                                                            false,                                     \
                                                                                                            NULL},                                     \
        {"recompute", IM_OPT_CHOICE, "none", 0, 0, "none|selective|full", "Activations that are computed again.", "WHAT", IM_CLI_LAYOUT_AT(recompute), \
         0,           false,         NULL},                                                                                                            \
        {"pipeline", IM_OPT_CHOICE, "1f1b", 0, 0, "gpipe|1f1b|interleaved|zb-h1|zb-h2", "The pipeline's schedule.", "HOW", IM_CLI_LAYOUT_AT(pipeline), \
         0,          false,         NULL},                                                                                                             \
        {"chunks", IM_OPT_INT, "0", 0, IM_MAX_CHUNKS, NULL, "Interleaved: runs of blocks that a stage has (0: 2).", "N", IM_CLI_LAYOUT_AT(chunks),     \
         0,        false,      NULL},                                                                                                                  \
        {"stages",                                                                                                                                     \
         IM_OPT_STRING,                                                                                                                                \
         "even",                                                                                                                                       \
         0,                                                                                                                                            \
         0,                                                                                                                                            \
         NULL,                                                                                                                                         \
         "Blocks of each stage: even, balanced, or a list such as 8,8,6.",                                                                             \
         "HOW",                                                                                                                                        \
         IM_CLI_LAYOUT_AT(stages),                                                                                                                     \
         0,                                                                                                                                            \
         false,                                                                                                                                        \
         NULL},                                                                                                                                        \
        {"seq-len", IM_OPT_INT, "256", 1, 1 << 24, NULL, "Tokens of a sequence.", "N", IM_CLI_LAYOUT_AT(seq_len), 0, false, "Batch"},                  \
        {"micro-batch", IM_OPT_INT, "1", 1, 1 << 24, NULL, "Sequences computed at once.", "N", IM_CLI_LAYOUT_AT(micro_batch), 0, false, NULL},         \
        {"global-batch", IM_OPT_INT, "8", 1, 1 << 24, NULL, "Sequences of a step.", "N", IM_CLI_LAYOUT_AT(global_batch), 0, false, NULL},              \
    {                                                                                                                                                  \
        "precision", IM_OPT_CHOICE, "fp32", 0, 0, "fp32|bf16", "Type of weights and activations.", "TYPE", IM_CLI_LAYOUT_AT(precision), 0, false,      \
            NULL                                                                                                                                       \
    }

/* The options of a training run: those of the run or file that `words` name (one at most; none: defaults), with those given on the command line in
 * their place. `rows`, `given`: of the command. */
im_status im_cli_layout_options(im_cli *cli, const im_option_list *words, const im_option *rows, size_t nrows, const im_cli_layout *from,
                                const bool *given, im_train_options *out) IM_MUST_CHECK;
/* Their model and plan; the model is the caller's to close. */
im_status im_cli_layout_plan(im_cli *cli, const im_train_options *t, im_model **model, im_plan *plan) IM_MUST_CHECK;

#endif
