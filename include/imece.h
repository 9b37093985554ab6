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
/* Records an error as the library does, unless there is one already, and returns `code`: for functions that are given to the library. */
im_status im_fail(im_context *ctx, im_status code, const char *fmt, ...) IM_PRINTF(3, 4);

typedef enum im_log_level { IM_LOG_ERROR, IM_LOG_WARN, IM_LOG_INFO, IM_LOG_DEBUG } im_log_level;
/* Receives one finished message without newline, from any thread. `part` is the folder's noun. */
typedef void (*im_log_sink)(void *arg, im_log_level level, int rank, const char *part, const char *message);
void im_context_set_log(im_context *ctx, im_log_sink sink, void *arg, im_log_level max_level);

/* ---- jobs of MPI ---------------------------------------------------------------------------
 *
 * mpirun (Open MPI, MPICH) and srun start a program once for each rank. A program that can be one rank of many joins the job first. */

typedef struct im_job im_job;
typedef struct im_job_config {
    char *(*environment)(const char *name); /* getenv: a launcher is known by what it leaves there; the library reads nothing else of it */
    const char *plugins;                    /* directory of imece_openmpi.so and imece_mpich.so; NULL: those installed with the library */
    double deadline;                        /* seconds that a rank waits for the others in one operation; 0: 300 */
} im_job_config;
/* *out: the job that this process is a rank of; NULL (and IM_OK) when no launcher started it. Once in a process; MPI is started in it, so the
 * program must not do so itself. IM_ERR_NOT_FOUND: the library was built without the launcher's MPI. */
im_status im_job_join(im_context *ctx, const im_job_config *cfg, im_job **out) IM_MUST_CHECK;
int im_job_rank(const im_job *job); /* NULL: 0 */
int im_job_size(const im_job *job); /* NULL: 1 */
/* This rank failed, outside a call that tells the others itself (im_ranks_run and im_train do): their waits end. */
void im_job_abort(im_job *job, const char *reason);
/* Waits for all ranks. After a failure MPI is not finalized, so that the launcher ends the job with an error. NULL is allowed. */
void im_job_leave(im_job *job);

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

/* The bytes of one class ("weights", "gradients", "optimizer", "activations", "communication", ...) on one rank. */
typedef struct im_class_bytes {
    const char *name;
    double predicted; /* what the plan says */
    double measured;  /* pages that lie in memory, in steps of the system's page; NaN: nothing was run */
} im_class_bytes;

typedef struct im_hooks {
    void *arg;                                                    /* first argument of the functions below, each of which may be NULL */
    void (*text)(void *arg, im_text_kind kind, const char *text); /* without newline at its end */
    void (*step)(void *arg, const im_step_report *step);          /* im_train: after each */
    void (*piece)(void *arg, const char *utf8, size_t n);         /* im_generate: whole characters, as they come */
    bool (*stop)(void *arg);                                      /* true: finish the step, save, return IM_ERR_STOPPED */
    const char *models_dir;                                       /* of named shapes; NULL: those installed with the library */
    /* im_train, im_evaluate, im_generate: at their end for each rank, im_predict: for the rank that needs most; the classes that are not empty */
    void (*memory)(void *arg, int rank, const im_class_bytes *classes, size_t n);
    /* im_train, im_evaluate, im_generate: their ranks are the processes of the job, each of which makes the same call; rank 0 alone hears text, step,
     * piece and stop. NULL: they are threads */
    im_job *job;
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

/* The bytes that im_train would need with these options (--data and --out may be left out), told to hooks->memory: nothing is read but the
 * model's shape, nothing is allocated. */
im_status im_predict(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks) IM_MUST_CHECK;

typedef struct im_evaluation {
    double loss;          /* nats a counted token, over all of them */
    int64_t tokens;       /* counted */
    double bits_per_byte; /* negative when the tokens are no bytes */
} im_evaluation;
im_status im_evaluate(im_context *ctx, const char *const *options, size_t n, const im_hooks *hooks, im_evaluation *out) IM_MUST_CHECK;

/* Goes on with --prompt or --ids. *text: what was generated, UTF-8 (ids in decimal for models that are not of bytes); free() it. Of
 * a job's ranks only rank 0 has it, the others an empty text. */
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

/* ---- ranks ----------------------------------------------------------------------------------
 *
 * A rank runs a function beside others: as a thread of this process, or as a process of an MPI job. It has memory of its own, in which its
 * tensors lie; groups of ranks sum, gather and exchange them; layers split over a group compute what one rank would (docs/api.md).
 *
 * Calls on tensors start in the order in which they are made, and may return before the result is there. What uses a result waits for it by
 * itself; a collective may be on its way while the rank computes on other tensors. im_tensor_read, im_rank_wait and the end of the rank's function
 * wait, and return the error of what went wrong meanwhile.
 *
 * All members of a group make the same calls on it, in the same order and with the same shapes; where they differ each gets an error that names who
 * called what (IM_ERR_ARG). Every wait has a deadline (IM_ERR_TIMEOUT: who has not come). When a rank fails, the waits of all others end
 * (IM_ERR_ABORTED: who failed and why). After any of these the ranks can only leave: later calls on groups fail at once. A wrong argument that a call
 * finds before it starts (IM_ERR_ARG, IM_ERR_UNSUPPORTED, IM_ERR_NOMEM) changes nothing, and the rank may go on.
 *
 * What is made of a rank is used by its thread alone. It ends with im_..._destroy, or with the rank. */

typedef struct im_rank im_rank;
typedef struct im_group im_group; /* a communicator: some ranks in some order, numbered from 0 */
typedef struct im_tensor im_tensor;

typedef struct im_ranks_config {
    int ranks;       /* how many; with a job 0, or its size */
    im_job *job;     /* NULL: ranks are threads of this process */
    int threads;     /* of each rank's kernels; 0: the machine's cores shared out, at least 1 */
    double deadline; /* seconds that a rank waits for the others in one operation; 0: 300 */
    size_t memory;   /* bytes for the tensors of a rank, taken when they are touched; 0: the machine's memory shared out */
} im_ranks_config;

typedef im_status (*im_rank_fn)(im_rank *rank, void *arg);
/* Calls fn on each rank: rank 0 of threads in the caller's thread, the others in threads that are gone afterwards; with a job once, in the
 * caller's thread. A rank whose function returns an error ends the waits of all others. Returns the first error of this process's ranks,
 * with the text of that rank in ctx. */
im_status im_ranks_run(im_context *ctx, const im_ranks_config *cfg, im_rank_fn fn, void *arg) IM_MUST_CHECK;

int im_rank_number(const im_rank *r);          /* 0 to count - 1 */
int im_rank_count(const im_rank *r);           /* ranks of the run */
im_context *im_rank_context(const im_rank *r); /* its errors; messages go where those of im_ranks_run's context go */
im_group *im_rank_world(im_rank *r);           /* all ranks, by number; not to be destroyed */
im_status im_rank_wait(im_rank *r) IM_MUST_CHECK;

typedef struct im_rank_bytes {
    size_t weights, gradients; /* of the rank's layers */
    size_t tensors;            /* made by im_tensor_create */
    size_t scratch;            /* of kernels and collectives; grows to what was needed at most */
    size_t touched;            /* pages of all this that lie in memory, once used ones too */
} im_rank_bytes;
/* Bytes that are allocated now: elements times their size, each tensor rounded up to 64. */
void im_rank_memory(const im_rank *r, im_rank_bytes *out);

/* ---- tensors: up to 4 dims, row-major --------------------------------------------------------- */

typedef enum im_dtype { IM_F32, IM_F64, IM_BF16, IM_F16, IM_I32, IM_I64, IM_U8, IM_U16, IM_DTYPE_COUNT } im_dtype;
size_t im_dtype_size(im_dtype t);      /* bytes of an element; 0 for what is no dtype */
const char *im_dtype_name(im_dtype t); /* "fp32", "bf16", ... */

/* Zeros. A dim may be 0. IM_ERR_ARG: ndim not 1 to 4, a negative dim; IM_ERR_NOMEM: more than the rank's memory. */
im_status im_tensor_create(im_rank *r, im_dtype t, int ndim, const int64_t *shape, im_tensor **out) IM_MUST_CHECK;
/* Rows [first, first + n) of dim 0, in place: writing to one writes to the other. Lives on when `t` is destroyed. */
im_status im_tensor_rows(im_tensor *t, int64_t first, int64_t n, im_tensor **out) IM_MUST_CHECK;
void im_tensor_destroy(im_tensor *t); /* waits for what uses it. NULL, and a layer's own tensors, are left alone */

im_dtype im_tensor_dtype(const im_tensor *t);
int im_tensor_ndim(const im_tensor *t);
const int64_t *im_tensor_shape(const im_tensor *t); /* [ndim] */
int64_t im_tensor_count(const im_tensor *t);        /* elements */

/* All elements from and to memory of the program, which is free on return. _f32: converted (fp32, fp64, bf16, fp16; to nearest, ties to even). */
im_status im_tensor_write(im_tensor *t, const void *values) IM_MUST_CHECK;
im_status im_tensor_read(const im_tensor *t, void *values) IM_MUST_CHECK;
im_status im_tensor_write_f32(im_tensor *t, const float *values) IM_MUST_CHECK;
im_status im_tensor_read_f32(const im_tensor *t, float *values) IM_MUST_CHECK;
im_status im_tensor_fill(im_tensor *t, double value) IM_MUST_CHECK;
/* Elements first, first + 1, ... of the normal numbers with mean 0 and deviation `std` that (seed, name) names. Element i is the same whoever draws
 * it, so ranks draw parts of one whole. fp32, fp64, bf16, fp16. */
im_status im_tensor_draw(im_tensor *t, uint64_t seed, const char *name, int64_t first, double std) IM_MUST_CHECK;

/* Of tensors of one shape and, but for copy, one dtype (fp32 or bf16). y may be x. */
im_status im_tensor_copy(const im_tensor *x, im_tensor *y) IM_MUST_CHECK; /* converts between floating-point types */
im_status im_tensor_add(const im_tensor *a, const im_tensor *b, im_tensor *y) IM_MUST_CHECK;
typedef enum im_act { IM_ACT_GELU_TANH, IM_ACT_GELU_ERF, IM_ACT_SILU, IM_ACT_RELU } im_act;
im_status im_tensor_act(im_act act, const im_tensor *x, im_tensor *y) IM_MUST_CHECK;                            /* 2 dims */
im_status im_tensor_act_grad(im_act act, const im_tensor *x, const im_tensor *dy, im_tensor *dx) IM_MUST_CHECK; /* dx may be dy */

/* ---- groups ------------------------------------------------------------------------------------
 *
 * Sums are made in the order of ranks: the same group and values twice give the same bits. bf16 and fp16 are summed in fp32 and rounded once; integers
 * wrap; MAX and MIN keep a NaN. fp32, fp64, bf16, fp16, i32, i64 and u8 can be reduced (IM_ERR_UNSUPPORTED), all can be moved. `in` may be `out`
 * where their counts are equal. Counts are in elements. */

typedef enum im_reduce { IM_SUM, IM_MAX, IM_MIN } im_reduce;

/* ranks: n of the parent's, in any order. Called by those alone, all with the same list. */
im_status im_group_split(im_group *parent, const int *ranks, int n, im_group **out) IM_MUST_CHECK;
void im_group_destroy(im_group *g);   /* after its layers. NULL and the world are left alone */
int im_group_rank(const im_group *g); /* of the caller in the group */
int im_group_size(const im_group *g);
im_rank *im_group_owner(const im_group *g); /* the rank whose end of the group this is */
/* Operations that this rank has started on the group, and the bytes of their larger tensors. Each may be NULL. */
void im_group_traffic(const im_group *g, uint64_t *operations, uint64_t *nbytes);

im_status im_group_all_reduce(im_group *g, const im_tensor *in, im_tensor *out, im_reduce op) IM_MUST_CHECK; /* counts equal */
/* out: the rank's part of the sum. counts: [size] elements of each rank, adding up to in's; NULL: as even as can be, the first ranks one more. */
im_status im_group_reduce_scatter(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *counts, im_reduce op) IM_MUST_CHECK;
/* out: all parts in the order of ranks. counts as above, adding up to out's. */
im_status im_group_all_gather(im_group *g, const im_tensor *in, im_tensor *out, const int64_t *counts) IM_MUST_CHECK;
im_status im_group_broadcast(im_group *g, im_tensor *t, int root) IM_MUST_CHECK;
/* Piece i of `in` becomes piece `rank` of rank i's `out`; size pieces of one count. in is not out. */
im_status im_group_all_to_all(im_group *g, const im_tensor *in, im_tensor *out) IM_MUST_CHECK;
/* Messages between two ranks keep their order. A send is over when it was received. peer is not the caller. */
im_status im_group_send(im_group *g, const im_tensor *t, int peer) IM_MUST_CHECK;
im_status im_group_recv(im_group *g, im_tensor *t, int peer) IM_MUST_CHECK;
/* The sends and receives between the two go as one, in any order on both sides: both directions at once need it. Nothing else may stand between. */
im_status im_group_exchange_begin(im_group *g) IM_MUST_CHECK;
im_status im_group_exchange_end(im_group *g) IM_MUST_CHECK;
/* What went wrong so far, without waiting: another rank failed, say. For ranks that are busy with something else. */
im_status im_group_error(im_group *g) IM_MUST_CHECK;
/* Returns when all have come to it. IM_ERR_TIMEOUT: not all did within `seconds` (0: the group's deadline); the text names who has not. */
im_status im_group_barrier(im_group *g, double seconds) IM_MUST_CHECK;

/* ---- layers that are split over a group -----------------------------------------------------------
 *
 * A layer over N ranks computes what it computes over one: its first values are keyed by (seed, name, index in the whole), and outputs, gradients
 * and sums of floating-point numbers differ by rounding alone. Sizes need not divide: part i of n is as even as can be, the first n % N ranks have one
 * more, and a part may be empty. Weights are (out, in) in the layer's dtype; gradients are fp32, and each backward adds to them.
 * create is called by all members; where they differ in the configuration each gets IM_ERR_ARG, naming who asked for what. */

/* Elements [first, end) of n that are part i of `parts`. */
void im_part(int64_t n, int parts, int i, int64_t *first, int64_t *end);

typedef struct im_linear im_linear;
typedef struct im_linear_config {
    int64_t in, out; /* of the whole layer */
    bool bias;
    uint64_t seed;
    const char *name;       /* two layers of one seed need two names; NULL: "linear" */
    double std;             /* deviation of the first values, of the bias too; 0: 1 / sqrt(in) */
    im_dtype dtype;         /* IM_F32, IM_BF16: of weights, inputs and outputs */
    bool gather_output;     /* column: every rank gets all outputs */
    bool input_is_parallel; /* row: the input is the rank's columns already, as a column layer leaves them */
} im_linear_config;
/* Column: the rank has some of the outputs, and gets the whole input. Row: the rank has some of the inputs; the partial products are summed, then the
 * bias is added, once. */
im_status im_column_linear_create(im_group *g, const im_linear_config *cfg, im_linear **out) IM_MUST_CHECK;
im_status im_row_linear_create(im_group *g, const im_linear_config *cfg, im_linear **out) IM_MUST_CHECK;
void im_linear_destroy(im_linear *l); /* NULL is allowed */

/* y = x W^T + bias. Let p be the rank's part (im_linear_part), n any number of rows.
 *
 *                                  x           y
 *     column                       (n, in)     (n, p)          no communication
 *     column, gather_output        (n, in)     (n, out)        all-gather of n x out
 *     row                          (n, in)     (n, out)        all-reduce of n x out
 *     row, input_is_parallel       (n, p)      (n, out)        all-reduce of n x out
 *
 * IM_ERR_ARG: another shape or dtype; the text says which. */
im_status im_linear_forward(im_linear *l, const im_tensor *x, im_tensor *y) IM_MUST_CHECK;
/* x as it was given to forward, dy of y's shape (equal on all ranks where y is). Adds the gradients of weight and bias; dx, of x's shape, is
 * overwritten with that of x; NULL: not wanted. Column: all-reduce of n x in; row without input_is_parallel: all-gather of n x in. */
im_status im_linear_backward(im_linear *l, const im_tensor *x, const im_tensor *dy, im_tensor *dx) IM_MUST_CHECK;
im_status im_linear_zero_gradients(im_linear *l) IM_MUST_CHECK;

/* Outputs (column) or inputs (row) [first, end) that this rank has. */
void im_linear_part(const im_linear *l, int64_t *first, int64_t *end);
typedef enum im_layer_value { IM_WEIGHT, IM_BIAS, IM_WEIGHT_GRADIENT, IM_BIAS_GRADIENT } im_layer_value;
/* The rank's part: weights (p, in) or (out, p); bias (p) of a column layer, (out) of a row layer. Owned by the layer. NULL without a bias. */
im_tensor *im_linear_tensor(im_linear *l, im_layer_value v);
/* The whole from and to the program's memory, (out, in) or (out), fp32. set: each rank takes its part of the same `whole`. get: all members call it;
 * rank `root` of the group gets the whole, the others may give NULL. */
im_status im_linear_set(im_linear *l, im_layer_value v, const float *whole) IM_MUST_CHECK;
im_status im_linear_get(im_linear *l, im_layer_value v, int root, float *whole) IM_MUST_CHECK;

/* A table of token vectors, its rows split. */
typedef struct im_embedding im_embedding;
typedef struct im_embedding_config {
    int64_t vocabulary, dim;
    uint64_t seed;
    const char *name; /* NULL: "embedding" */
    double std;       /* 0: 0.02 */
    im_dtype dtype;   /* IM_F32, IM_BF16 */
} im_embedding_config;
im_status im_embedding_create(im_group *g, const im_embedding_config *cfg, im_embedding **out) IM_MUST_CHECK;
void im_embedding_destroy(im_embedding *e); /* NULL is allowed */
/* ids (n) i32, equal on all ranks; y (n, dim): all-reduce of n x dim. An id outside the vocabulary is found when the work is done and fails the rank. */
im_status im_embedding_forward(im_embedding *e, const im_tensor *ids, im_tensor *y) IM_MUST_CHECK;
im_status im_embedding_backward(im_embedding *e, const im_tensor *ids, const im_tensor *dy) IM_MUST_CHECK; /* dy (n, dim), equal on all ranks */
im_status im_embedding_zero_gradients(im_embedding *e) IM_MUST_CHECK;
void im_embedding_part(const im_embedding *e, int64_t *first, int64_t *end);                     /* ids that this rank has */
im_tensor *im_embedding_tensor(im_embedding *e, im_layer_value v);                               /* (p, dim); IM_BIAS: NULL */
im_status im_embedding_set(im_embedding *e, im_layer_value v, const float *whole) IM_MUST_CHECK; /* (vocabulary, dim) */
im_status im_embedding_get(im_embedding *e, im_layer_value v, int root, float *whole) IM_MUST_CHECK;

/* Cross-entropy over logits (n, p) fp32 that a column layer of `vocabulary` outputs leaves. targets (n) i32, equal on all ranks; below 0: not counted. loss (1)
 * fp64: the sum over the counted rows, in nats, equal on all ranks. dlogits (n, p) fp32, may be logits; NULL: not wanted: gradient of that sum. */
im_status im_cross_entropy(im_group *g, int64_t vocabulary, const im_tensor *logits, const im_tensor *targets, im_tensor *loss,
                           im_tensor *dlogits) IM_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
