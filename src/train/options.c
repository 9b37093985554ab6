#include "train/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(im_train_options, member)

const im_option im_train_rows[IM_TRAIN_ROWS] = {
    {"model", IM_OPT_STRING, NULL, 0, 0, NULL, "Model: a Hugging Face directory, a config.json, or the name of a shape (gpt2, llama-15m, ...).",
     "DIR", AT(model), 'm', false, "What is trained"},
    {"data", IM_OPT_STRING, NULL, 0, 0, NULL,
     "What to train on: a token file (the prefix of PREFIX.bin and PREFIX.idx, which imece data build makes), files of one corpus (A,B), a blend "
     "(0.7:A,0.3:B), or a YAML file of these.",
     "PREFIX", AT(data), 'd', false, NULL},
    {"valid", IM_OPT_STRING, NULL, 0, 0, NULL, "Token file (or files: A,B) to evaluate on.", "PREFIX", AT(valid), 0, false, NULL},
    {"valid-share", IM_OPT_REAL, "0", 0, 0.99, NULL,
     "Instead of --valid: evaluate on the last documents of each file of --data, this share of its tokens, and leave them out of the training.",
     "SHARE", AT(valid_share), 0, false, NULL},
    {"tokenizer", IM_OPT_STRING, NULL, 0, 0, NULL,
     "Directory with the tokenizer.json that made the ids: checkpoints get it, and bits per byte are counted with it. Default: the model's "
     "directory, if "
     "it has one.",
     "DIR", AT(tokenizer), 0, false, NULL},
    {"out", IM_OPT_STRING, NULL, 0, 0, NULL, "Run directory to make; one that exists is refused. Default: the first free runs/MODEL-N.", "DIR",
     AT(out), 'o', false, NULL},
    {"init", IM_OPT_CHOICE, "auto", 0, 0, "auto|random",
     "Where the first weights come from: auto takes those in the model's directory if there are any.", "HOW", AT(init), 0, false, NULL},
    {"seed", IM_OPT_INT, "1", 0, 9e18, NULL, "Seed of initial weights, order and dropout.", "N", AT(seed), 0, false, NULL},

    {"steps", IM_OPT_INT, "0", 0, 9e18, NULL,
     "Stop after N steps (0: no such limit). Whichever of steps, tokens and minutes is reached first ends the run.", "N", AT(steps), 0, false,
     "How long"},
    {"tokens", IM_OPT_INT, "0", 0, 9e18, NULL, "Stop after N tokens (0: no such limit).", "N", AT(tokens), 0, false, NULL},
    {"minutes", IM_OPT_REAL, "0", 0, 1e9, NULL, "Stop after N minutes of training (0: no such limit).", "N", AT(minutes), 0, false, NULL},

    {"seq-len", IM_OPT_INT, "256", 1, 1 << 24, NULL, "Tokens of a sequence.", "N", AT(seq_len), 0, false, "Batch and order"},
    {"micro-batch", IM_OPT_INT, "4", 1, 1 << 24, NULL, "Sequences computed at once; more need more memory.", "N", AT(micro_batch), 0, false, NULL},
    {"global-batch", IM_OPT_INT, "0", 0, 1 << 24, NULL,
     "Sequences of a step (0: one micro-batch of each data-parallel rank); it need not be a multiple of the micro-batch.", "N", AT(global_batch), 0,
     false, NULL},
    {"order", IM_OPT_CHOICE, "shuffled", 0, 0, "sequential|shuffled", "Order of the samples.", "HOW", AT(order), 0, false, NULL},
    {"pack", IM_OPT_CHOICE, "auto", 0, 0, "auto|stream|whole|none",
     "What a sample is: a piece of the stream of all documents; whole documents, as many as fit, and padding; or none packed, a document each. "
     "auto: whole for data with a mask, else stream.",
     "HOW", AT(pack), 0, false, NULL},
    {"attention", IM_OPT_CHOICE, "auto", 0, 0, "auto|causal|document",
     "What a token sees: all before it in its sample, or those of its document, whose positions begin at 0. auto: document with --pack whole, else "
     "causal.",
     "REACH", AT(attention), 0, false, NULL},
    {"long", IM_OPT_CHOICE, "refuse", 0, 0, "refuse|cut|split|skip",
     "With --pack whole or none, documents longer than a sample: refuse the data, keep their start, make several of them, or leave them out.", "HOW",
     AT(too_long), 0, false, NULL},

    {"precision", IM_OPT_CHOICE, "fp32", 0, 0, "fp32|bf16", "Type of weights and activations; sums, masters and gradients are fp32 in both.", "TYPE",
     AT(precision), 0, false, "Arithmetic"},
    {"dropout", IM_OPT_REAL, "-1", -1, 0.99, NULL, "Dropout probability (-1: as the model's config says).", "P", AT(dropout), 0, false, NULL},
    {"label-smoothing", IM_OPT_REAL, "0", 0, 0.99, NULL, "Label smoothing.", "S", AT(label_smoothing), 0, false, NULL},

    {"lr", IM_OPT_REAL, "3e-4", 0, 1e6, NULL, "Learning rate after the warmup.", "LR", AT(lr), 0, false, "Optimizer (AdamW)"},
    {"schedule", IM_OPT_CHOICE, "cosine", 0, 0, "constant|linear|cosine|wsd", "How the learning rate falls to min-lr by the end of the run.", "HOW",
     AT(schedule), 0, false, NULL},
    {"warmup", IM_OPT_INT, "0", 0, 9e18, NULL, "Steps over which the learning rate rises.", "N", AT(warmup), 0, false, NULL},
    {"decay", IM_OPT_REAL, "0.2", 0, 1, NULL, "wsd: the last share of the run in which the learning rate falls.", "SHARE", AT(decay), 0, false, NULL},
    {"min-lr", IM_OPT_REAL, "0", 0, 1e6, NULL, "Learning rate at the end.", "LR", AT(min_lr), 0, false, NULL},
    {"beta1", IM_OPT_REAL, "0.9", 0, 0.9999999, NULL, "Decay of the first moment.", "B", AT(beta1), 0, false, NULL},
    {"beta2", IM_OPT_REAL, "0.95", 0, 0.9999999, NULL, "Decay of the second moment.", "B", AT(beta2), 0, false, NULL},
    {"eps", IM_OPT_REAL, "1e-8", 1e-15, 1, NULL, "Added to the root of the second moment.", "E", AT(eps), 0, false, NULL},
    {"weight-decay", IM_OPT_REAL, "0.1", 0, 1e3, NULL, "Decoupled weight decay; not on norms, biases and other 1-D parameters.", "W",
     AT(weight_decay), 0, false, NULL},
    {"clip", IM_OPT_REAL, "1", 0, 1e30, NULL, "Largest norm of the gradient (0: no clipping).", "NORM", AT(clip), 0, false, NULL},

    {"eval-every", IM_OPT_INT, "0", 0, 9e18, NULL, "Evaluate on --valid every N steps (0: at the start and the end).", "N", AT(eval_every), 0, false,
     "Watching and saving"},
    {"eval-batches", IM_OPT_INT, "100", 0, 9e18, NULL, "Micro-batches of an evaluation, from the start of the file (0: the whole file).", "N",
     AT(eval_batches), 0, false, NULL},
    {"save-every", IM_OPT_INT, "0", 0, 9e18, NULL, "Save a checkpoint every N steps (0: at the end).", "N", AT(save_every), 0, false, NULL},
    {"keep", IM_OPT_INT, "3", 0, 1e9, NULL, "Checkpoints that stay (0: all).", "N", AT(keep), 0, false, NULL},
    {"nonfinite", IM_OPT_CHOICE, "stop", 0, 0, "stop|skip|rollback",
     "After a step whose loss or gradient is not finite: stop, leave the step out, or go back to the last checkpoint and leave its samples out.",
     "HOW", AT(nonfinite), 0, false, NULL},
    {"trace", IM_OPT_BOOL, "false", 0, 0, NULL, "Write trace.json (Perfetto) of the last steps.", NULL, AT(trace), 0, false, NULL},

    {"tp", IM_OPT_INT, "1", 1, 1024, NULL, "Tensor parallel: ranks that share out every layer. tp x dp x pp ranks run as threads of this process.",
     "N", AT(tp), 0, false, "Layout"},
    {"cp", IM_OPT_INT, "1", 1, 1024, NULL, "Context parallel: ranks that share out a sequence. Not built yet: 1 alone works.", "N", AT(cp), 0, false, NULL},
    {"dp", IM_OPT_INT, "1", 1, 1024, NULL, "Data parallel: ranks that share out the batch.", "N", AT(dp), 0, false, NULL},
    {"pp", IM_OPT_INT, "1", 1, 64, NULL, "Pipeline parallel: ranks that share out the blocks.", "N", AT(pp), 0, false, NULL},
    {"zero", IM_OPT_INT, "0", 0, 3, NULL, "ZeRO over the dp ranks: 1 shares out the optimizer's state, 2 the gradients too, 3 the weights too.", "N",
     AT(zero), 0, false, NULL},
    {"sequence-parallel", IM_OPT_BOOL, "false", 0, 0, NULL, "With tp: norms, dropout and what is between the layers are shared out by tokens.", NULL,
     AT(sequence_parallel), 0, false, NULL},
    {"recompute", IM_OPT_CHOICE, "none", 0, 0, "none|selective|full",
     "Activations that are computed again instead of kept: none, attention's, or all of a block.", "WHAT", AT(recompute), 0, false, NULL},
    {"pipeline", IM_OPT_CHOICE, "1f1b", 0, 0, "gpipe|1f1b|interleaved|zb-h1|zb-h2",
     "With pp: in which order a stage does its micro-batches' forwards and backwards.", "HOW", AT(pipeline), 0, false, NULL},
    {"chunks", IM_OPT_INT, "0", 0, IM_MAX_CHUNKS, NULL, "Interleaved: runs of blocks that a stage has (0: 2).", "N", AT(chunks), 0, false, NULL},
    {"stages", IM_OPT_STRING, "even", 0, 0, NULL, "Blocks of each stage: even, balanced (by cost, the head counted), or a list such as 8,8,6.", "HOW",
     AT(stages), 0, false, NULL},

    {"threads", IM_OPT_INT, "0", 0, 4096, NULL, "Threads of a rank (0: the usable cores, shared out over the ranks).", "N", AT(threads), 't', false,
     "Machine"},
    {"kernels", IM_OPT_CHOICE, "fast", 0, 0, "fast|plain|paced",
     "Kernels: plain C versions are the reference, and slow. paced computes nothing: each operation sleeps as long as it is planned to take, which "
     "shows a layout's waits truly even where ranks outnumber cores; there is no loss, and nothing is saved.",
     "WHICH", AT(kernels), 0, false, NULL},
    {"pace-flops", IM_OPT_REAL, "0", 0, 1e18, NULL, "Paced kernels: FLOP/s of a rank (0: this machine's, measured).", "RATE", AT(pace_flops), 0,
     false, NULL},
    {"pace-bytes", IM_OPT_REAL, "0", 0, 1e18, NULL, "Paced kernels: bytes of memory that a rank reads and writes a second (0: measured).", "RATE",
     AT(pace_bytes), 0, false, NULL},
    {"deadline", IM_OPT_REAL, "600", 0.1, 1e6, NULL,
     "Seconds that a rank waits for the others in one operation; then all ranks stop, and those that did not come are named.", "N", AT(deadline), 0,
     false, "Failing ranks"},
    {"rings", IM_OPT_BOOL, "true", 0, 0, NULL,
     "With several ranks: keep the last 4,096 operations of each in RUN/rings, which outlive any crash (imece ranks RUN).", NULL, AT(rings), 0, false,
     NULL},
    {"device", IM_OPT_CHOICE, "inline", 0, 0, "inline|deferred",
     "For tests: deferred runs everything later on other threads, memory unreadable in between.", "WHICH", AT(device), 0, true, NULL},

    /* from here on: of one command, not saved */
    {"resume", IM_OPT_STRING, NULL, 0, 0, NULL, "Go on with the run in this directory, with its options; those given anew replace them.", "RUN",
     AT(resume), 'r', false, "Command"},
    {"config", IM_OPT_STRING, NULL, 0, 0, NULL, "YAML file with any of these options (with _ for -); a run's plan.yaml is one.", "FILE", AT(config),
     'c', false, NULL},
    {"hosts", IM_OPT_STRING, NULL, 0, 0, NULL,
     "Start the ranks with mpirun on the machines that this file names, a line each: HOST slots=N. The line that does it is printed.", "FILE",
     AT(hosts), 0, false, NULL},
    {"dry-run", IM_OPT_BOOL, "false", 0, 0, NULL, "Check everything, show the plan and its memory, and stop before anything is written.", NULL,
     AT(dry_run), 'n', false, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "Print the closing summary as JSON on standard output.", NULL, AT(json), 0, false, NULL},
    {"fault", IM_OPT_STRING, NULL, 0, 0, NULL,
     "For tests: KIND,at=N[,step=S][,what=INSTRUCTION][,rank=R][,seconds=S][,within=N,seed=N]: the N-th operation (of step S, of instructions that "
     "begin so) of rank R (default: the last) goes wrong. KIND: delay, drop, die, kill, corrupt, nan, mismatch.",
     "WHAT", AT(fault), 0, true, NULL},
};

#undef AT
#define AT(member) offsetof(im_train_eval_options, member)

const im_option im_train_eval_rows[IM_TRAIN_EVAL_ROWS] = {
    {"model", IM_OPT_STRING, NULL, 0, 0, NULL, "Model: a Hugging Face directory, a checkpoint, or a run directory (its latest checkpoint).", "DIR",
     AT(model), 'm', false, "What"},
    {"data", IM_OPT_STRING, NULL, 0, 0, NULL, "Token file (the prefix of PREFIX.bin and PREFIX.idx), or files: A,B.", "PREFIX", AT(data), 'd', false,
     NULL},
    {"seq-len", IM_OPT_INT, "256", 1, 1 << 24, NULL, "Tokens of a sequence.", "N", AT(seq_len), 0, false, "How"},
    {"pack", IM_OPT_CHOICE, "auto", 0, 0, "auto|stream|whole|none", "What a sample is, as in imece train.", "HOW", AT(pack), 0, false, NULL},
    {"attention", IM_OPT_CHOICE, "auto", 0, 0, "auto|causal|document", "What a token sees, as in imece train.", "REACH", AT(attention), 0, false,
     NULL},
    {"long", IM_OPT_CHOICE, "refuse", 0, 0, "refuse|cut|split|skip", "Documents longer than a sample, as in imece train.", "HOW", AT(too_long), 0,
     false, NULL},
    {"batch", IM_OPT_INT, "4", 1, 1 << 24, NULL, "Sequences at once.", "N", AT(batch), 'b', false, NULL},
    {"batches", IM_OPT_INT, "0", 0, 9e18, NULL, "Batches (0: the whole file).", "N", AT(batches), 0, false, NULL},
    {"precision", IM_OPT_CHOICE, "fp32", 0, 0, "fp32|bf16", "Type of weights and activations.", "TYPE", AT(precision), 0, false, NULL},
    {"tp", IM_OPT_INT, "1", 1, 1024, NULL,
     "Tensor parallel: ranks that share out every layer. tp x dp x pp ranks run as threads, or as mpirun starts them.", "N", AT(tp), 0, false,
     "Layout"},
    {"dp", IM_OPT_INT, "1", 1, 1024, NULL, "Data parallel: ranks that share out the samples.", "N", AT(dp), 0, false, NULL},
    {"pp", IM_OPT_INT, "1", 1, 64, NULL, "Pipeline parallel: ranks that share out the blocks.", "N", AT(pp), 0, false, NULL},
    {"threads", IM_OPT_INT, "0", 0, 4096, NULL, "Threads of a rank (0: the usable cores, shared out over the ranks).", "N", AT(threads), 't', false,
     "Machine"},
    {"kernels", IM_OPT_CHOICE, "fast", 0, 0, "fast|plain", "Kernels.", "WHICH", AT(kernels), 0, false, NULL},
    {"deadline", IM_OPT_REAL, "600", 0.1, 1e6, NULL, "Seconds that a rank waits for the others in one operation; then all ranks stop.", "N",
     AT(deadline), 0, false, NULL},
    {"device", IM_OPT_CHOICE, "inline", 0, 0, "inline|deferred", "For tests.", "WHICH", AT(device), 0, true, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "Print JSON on standard output.", NULL, AT(json), 0, false, NULL},
};

/* ---- parsing ----------------------------------------------------------------------- */

/* A run's plan.yaml has the options under `train:`; a file written by hand may have them at the top. */
/* The model that the plan in this file is of: the first such file counts. */
static void note_plan(const im_json *doc, const char *path, im_arena *a, im_train_options *o)
{
    const im_json_value *m = im_json_get(im_json_get(im_json_root(doc), "plan"), "model");
    const char *identity = im_json_string(im_json_get(m, "identity"), NULL);
    if (!identity || o->plan_identity)
        return;
    o->plan_file = im_arena_strdup(a, path);
    o->plan_family = im_arena_strdup(a, im_json_string(im_json_get(m, "family"), "?"));
    o->plan_parameters = im_json_int(im_json_get(m, "parameters"), 0);
    o->plan_identity = im_arena_strdup(a, identity);
}

static im_status read_yaml(im_context *ctx, const char *path, size_t nrows, im_arena *a, im_train_options *o, bool *given)
{
    im_json *doc;
    IM_TRY(im_yaml_load(ctx, path, (size_t)1 << 20, &doc));
    const im_json_value *map = im_json_get(im_json_root(doc), "train");
    im_status status = im_option_from_yaml(ctx, im_train_rows, nrows, a, doc, map ? map : im_json_root(doc), o, given, true);
    note_plan(doc, path, a, o);
    im_json_free(doc);
    return status;
}

static bool is_given(const bool *given, const char *name)
{
    for (size_t i = 0; i < IM_TRAIN_ROWS; i++)
        if (!strcmp(im_train_rows[i].name, name))
            return given[i];
    return false;
}

/* What the command line asks for and the other options leave without effect. */
static im_status refuse_idle(im_context *ctx, const im_train_options *o, const bool *on_command_line)
{
    if (is_given(on_command_line, "decay") && o->schedule != IM_TRAIN_WSD)
        return im_fail(ctx, IM_ERR_ARG, "--decay is of --schedule wsd alone; the other schedules fall from the warmup to the end");
    for (int i = 0; i < 2; i++)
        if (is_given(on_command_line, i ? "pace-bytes" : "pace-flops") && o->kernels != IM_KERNELS_PACED)
            return im_fail(ctx, IM_ERR_ARG, "--%s is of --kernels paced: other kernels take the time that they take",
                           i ? "pace-bytes" : "pace-flops");
    if (is_given(on_command_line, "eval-batches") && !o->valid && o->valid_share <= 0)
        return im_fail(ctx, IM_ERR_ARG, "--eval-batches needs --valid PREFIX or --valid-share: without one nothing is evaluated");
    return IM_OK;
}

im_status im_train_options_parse(im_context *ctx, im_arena *a, int argc, char *const *argv, im_train_options *out)
{
    bool given[IM_TRAIN_ROWS] = {false}, on_command_line[IM_TRAIN_ROWS];
    im_train_options o = {0};
    const size_t n = IM_TRAIN_ROWS;
    IM_TRY(im_option_defaults(ctx, im_train_rows, n, a, &o));
    IM_TRY(im_option_parse(ctx, im_train_rows, n, a, argc, argv, &o, given, NULL));
    memcpy(on_command_line, given, sizeof given);
    for (size_t i = 0; o.resume && i < n; i++)
        if (given[i] && !strcmp(im_train_rows[i].name, "out"))
            return im_fail(ctx, IM_ERR_ARG, "--out and --resume together: a resumed run goes on in its own directory, %s", o.resume);
    for (size_t i = 0; o.resume && i < n; i++)
        if (given[i] && (!strcmp(im_train_rows[i].name, "model") || !strcmp(im_train_rows[i].name, "init")))
            return im_fail(ctx, IM_ERR_ARG,
                           "--%s and --resume together: a resumed run goes on with its own model and weights; for another start: "
                           "imece train --model %s/checkpoints/step-N --out NEW",
                           im_train_rows[i].name, o.resume);
    if (o.config)
        IM_TRY(read_yaml(ctx, o.config, IM_TRAIN_SAVED_ROWS, a, &o, given));
    if (o.resume) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/plan.yaml", o.resume) >= (int)sizeof path)
            return im_fail(ctx, IM_ERR_ARG, "--resume %s: the path is too long", o.resume);
        if (!im_path_exists(path))
            return im_fail(ctx, IM_ERR_ARG, "--resume %s: not a run directory (no plan.yaml in it)", o.resume);
        IM_TRY(read_yaml(ctx, path, IM_TRAIN_SAVED_ROWS, a, &o, given));
        if (!o.model || !o.data)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: the run's %s is not in it: the file is damaged; its options may be given anew with --resume",
                           path, o.model ? "data" : "model");
    }
    if (o.out && !*o.out)
        return im_fail(ctx, IM_ERR_ARG, "--out is empty: give the name of the run's directory");
    IM_TRY(refuse_idle(ctx, &o, on_command_line));
    *out = o;
    return IM_OK;
}

/* ---- rules over several fields ------------------------------------------------------- */

static im_status rule_model_and_data(im_context *ctx, const im_train_options *o)
{
    if (!o->model)
        return im_fail(ctx, IM_ERR_ARG, "--model is missing: a Hugging Face directory, a config.json, or a shape's name such as llama-bytes-small");
    if (!o->data)
        return im_fail(ctx, IM_ERR_ARG, "--data is missing: the prefix of a token file; `imece data build TEXT --out PREFIX` makes one");
    return IM_OK;
}

static im_status rule_some_end(im_context *ctx, const im_train_options *o)
{
    if (o->steps <= 0 && o->tokens <= 0 && o->minutes <= 0)
        return im_fail(ctx, IM_ERR_ARG, "nothing says when to stop: give --steps, --tokens or --minutes");
    return IM_OK;
}

static im_status rule_learning_rates(im_context *ctx, const im_train_options *o)
{
    if (o->min_lr > o->lr)
        return im_fail(ctx, IM_ERR_ARG, "min-lr %g is larger than lr %g; it must be between 0 and lr", o->min_lr, o->lr);
    return IM_OK;
}

static im_status rule_eval_needs_valid(im_context *ctx, const im_train_options *o)
{
    if (o->eval_every > 0 && !o->valid && o->valid_share <= 0)
        return im_fail(ctx, IM_ERR_ARG, "eval-every %" PRId64 " needs --valid PREFIX or --valid-share", o->eval_every);
    if (o->valid && o->valid_share > 0)
        return im_fail(ctx, IM_ERR_ARG, "valid %s and valid-share %g: the validation is one of them", o->valid, o->valid_share);
    return IM_OK;
}

static im_status rule_long_needs_rows(im_context *ctx, const im_train_options *o)
{
    if (o->too_long != IM_LONG_REFUSE && o->pack == IM_PACK_STREAM)
        return im_fail(ctx, IM_ERR_ARG, "long is of --pack whole and none: a stream is cut anywhere, and has no document that is too long");
    return IM_OK;
}

static im_status rule_sequence_parallel(im_context *ctx, const im_train_options *o)
{
    if (o->sequence_parallel && o->tp < 2)
        return im_fail(ctx, IM_ERR_ARG,
                       "sequence-parallel shares tokens out over tensor-parallel ranks; with tp 1 there is nobody to share with: tp 2 or more, or "
                       "--no-sequence-parallel");
    return IM_OK;
}

/* What needs values. */
static im_status rule_paced(im_context *ctx, const im_train_options *o)
{
    const struct {
        const char *name;
        bool asked;
    } needs[] = {{"resume", o->resume}, {"save-every", o->save_every > 0}, {"valid", o->valid}, {"valid-share", o->valid_share > 0}};
    for (size_t i = 0; o->kernels == IM_KERNELS_PACED && i < IM_COUNT_OF(needs); i++)
        if (needs[i].asked)
            return im_fail(ctx, IM_ERR_ARG,
                           "--%s with --kernels paced: nothing is computed, so there is no loss and nothing to save; leave out one of the two",
                           needs[i].name);
    return IM_OK;
}

static im_status rule_fault(im_context *ctx, const im_train_options *o)
{
    im_comm_fault fault;
    int rank;
    return o->fault ? im_train_fault_parse(ctx, o->fault, (int)(o->tp * o->dp * o->pp), &fault, &rank) : IM_OK;
}

im_status im_train_options_check(im_context *ctx, const im_train_options *o)
{
    IM_TRY(rule_model_and_data(ctx, o));
    IM_TRY(rule_some_end(ctx, o));
    IM_TRY(rule_learning_rates(ctx, o));
    IM_TRY(rule_sequence_parallel(ctx, o));
    IM_TRY(rule_paced(ctx, o));
    IM_TRY(rule_fault(ctx, o));
    IM_TRY(rule_long_needs_rows(ctx, o));
    return rule_eval_needs_valid(ctx, o);
}
