/* infer: a model that goes on with what it is given.
 *
 * Ranks share the model as in training, tensor and pipeline parallel. Rank 0 is the caller's: it is fed, asked and alone decides; the others, threads or
 * processes of an MPI job, follow its orders (orders.c). One rank draws an id and tells all, so that all have the same sequence.
 *
 * Two levels. A generator: ids in, the next id out, through a key/value cache. `im_infer_generate`: a prompt in, text out as it
 * comes, until an end; the command line and the public interface are built on it.
 */
#ifndef IM_INFER_H
#define IM_INFER_H

#include "base/option.h"
#include "checkpoint/session.h"
#include "observe/observe.h"
#include "data/tokenizer.h"

/* ---- generator: one sequence ------------------------------------------------------------------ */

typedef struct im_infer im_infer;

/* what: as im_checkpoint_session_open. Reads the config; memory and weights come with start. */
im_status im_infer_open(im_context *ctx, const char *what, const char *models_dir, im_infer **out) IM_MUST_CHECK;
void im_infer_close(im_infer *g); /* NULL is allowed */
const im_model *im_infer_model(const im_infer *g);
bool im_infer_is_bytes(const im_infer *g);           /* ids 0..255 are bytes, 256 ends a document */
bool im_infer_is_end(const im_infer *g, int32_t id); /* one of the config's eos_token_id; 256 for bytes */

typedef struct im_infer_config {
    int64_t positions;    /* most ids of the sequence, given and generated; 0: all the model has */
    int64_t first_feed;   /* ids of the first feed where that is known: then it has a program of its size; 0: not known */
    bool prompt_logprobs; /* feed can tell log-probabilities */
    double temperature;   /* 0: the likeliest id */
    double top_p;         /* 1: all */
    int64_t top_k;        /* 0: all */
    uint64_t seed;
    im_dtype precision;
    int threads; /* 0: all usable cores */
    im_kernels kernels;
    bool deferred;
    int tp, pp;             /* ranks; 0: 1 */
    double deadline;        /* seconds that a rank waits for the others in one operation; 0: 300 */
    im_comm_mpi_world *mpi; /* this process is a rank of it; NULL: the other ranks are threads */
} im_infer_config;

/* Programs, memory, weights; the sequence is empty. May be called again with another config, unless ranks are processes. Of an MPI job: rank 0. */
im_status im_infer_start(im_infer *g, const im_infer_config *cfg) IM_MUST_CHECK;
/* A process above rank 0, in place of im_infer_start and all that comes behind it: does what rank 0 says until that one closes its generator. How ids
 * are drawn, and how many, is rank 0's to say. */
im_status im_infer_follow(im_infer *g, const im_infer_config *cfg) IM_MUST_CHECK;
/* How the ranks end: those of the generator are told so. status: how the caller ended. Returned is what says most of the cause. */
im_status im_infer_end(im_infer *g, im_status status) IM_MUST_CHECK;
int im_infer_ranks(const im_infer *g);
/* After the start: bytes of all ranks [ranks], as they were predicted and as they lie in memory. */
im_status im_infer_memory(im_infer *g, im_observe_memory *out) IM_MUST_CHECK;
/* Appends ids to the sequence; nothing is allocated. logprob (NULL, or n entries; only with prompt_logprobs): of each id under the
 * model given those before it; NaN for the first of each feed, before which nothing was computed. After an error the sequence is undefined:
 * start again. */
im_status im_infer_feed(im_infer *g, const int32_t *ids, size_t n, float *logprob) IM_MUST_CHECK;
/* The next id, which becomes part of the sequence. logprob: its log-probability under the plain softmax, whatever the temperature.
 * The same config and the same feeds give the same ids, however they are cut: randomness is keyed by the seed and the position. */
im_status im_infer_next(im_infer *g, int32_t *id, float *logprob) IM_MUST_CHECK;
int64_t im_infer_length(const im_infer *g); /* ids of the sequence */
int64_t im_infer_room(const im_infer *g);   /* ids that still fit */
void im_infer_rewind(im_infer *g);          /* an empty sequence */

/* ---- bytes to text ------------------------------------------------------------------------------ */

/* Bytes in any pieces, whole characters out. What is no UTF-8 becomes U+FFFD, one for each maximal part that could begin a character
 * (the practice of Unicode's chapter 3.9, as Python's "replace"). */
typedef struct im_infer_utf8 {
    unsigned char held[4];
    uint8_t n, need, low, high; /* bytes held, bytes of the character, bounds of the next byte */
} im_infer_utf8;
void im_infer_utf8_push(im_infer_utf8 *u, const char *bytes, size_t n, im_str *out); /* appends */
void im_infer_utf8_end(im_infer_utf8 *u, im_str *out);                               /* a character that is cut short: U+FFFD */

/* Finds stop strings in a stream of bytes; holds back what may be the beginning of one. */
typedef struct im_infer_stops {
    const char *const *text;
    size_t n;
    im_str held;
} im_infer_stops;
/* Appends to out what is certainly not part of a stop string. Returns the index of the one that ended with this byte: what stands before it
 * is in out, and the stream is over. -1: none. */
int im_infer_stops_push(im_infer_stops *s, char byte, im_str *out);
void im_infer_stops_end(im_infer_stops *s, im_str *out); /* nothing more comes: appends what was held */
void im_infer_stops_free(im_infer_stops *s);

/* ---- a prompt and its continuation ---------------------------------------------------------------- */

typedef struct im_infer_options {
    const char *model, *prompt, *ids;
    size_t prompt_len;  /* of prompt, which may have zero bytes in it; 0: it has none, and ends where a text ends */
    int64_t max_tokens; /* -1: 256, or as many as the model's positions allow */
    double temperature, top_p;
    int64_t top_k, seed;
    im_option_list stop;
    bool prompt_logprobs;
    int precision; /* 1: bf16 */
    int64_t threads;
    int kernels, device; /* im_kernels; 1: deferred */
    int64_t tp, pp;
    double deadline;
    bool json;       /* for the command line */
    bool chat;       /* the prompt is what a user says */
    int chat_format; /* im_chat_format */
} im_infer_options;
enum { IM_INFER_ROWS = 20 };
extern const im_option im_infer_rows[IM_INFER_ROWS];

/* ---- text through the model's tokenizer (tokens.c) ------------------------------------------------- */

/* *out NULL: the model's directory has no tokenizer.json. Refused: one with more ids than the model. */
im_status im_infer_open_tokenizer(im_context *ctx, const im_infer *g, im_tok **out) IM_MUST_CHECK;
/* The ids of a prompt, as Transformers makes them; of an empty one what stands in front of a text. */
im_status im_infer_tokens_of(im_context *ctx, const im_tok *t, const char *text, size_t n, im_tok_ids *out) IM_MUST_CHECK;

/* What ends an answer. */
typedef struct im_infer_turn_end {
    int32_t id;       /* -1: none */
    const char *text; /* where a turn begins with letters, those of the user's next one; NULL: none */
} im_infer_turn_end;
/* A user's turn up to where the answer begins: the ids that training has there (data/chat.h). The format is told to the log. t NULL: bytes. */
im_status im_infer_chat_of(im_context *ctx, const im_tok *t, int format, const char *text, size_t n, im_tok_ids *out,
                           im_infer_turn_end *end) IM_MUST_CHECK;

/* Drawing and machine as the options say; sizes are the caller's. */
im_infer_config im_infer_config_of(const im_infer_options *o);

enum { IM_INFER_DEFAULT_TOKENS = 256, IM_INFER_POSITIONS = 2048 }; /* the second where neither caller nor model tells how many positions */

typedef enum im_infer_stop { IM_INFER_STOP_LENGTH, IM_INFER_STOP_EOS, IM_INFER_STOP_STRING, IM_INFER_STOP_ASKED } im_infer_stop;
const char *im_infer_stop_name(im_infer_stop s); /* "length", "eos", "stop string", "asked" */

typedef struct im_infer_sink {
    void *arg;
    void (*text)(void *arg, const char *utf8,
                 size_t n);                           /* whole characters, as soon as they are certain; other models: ids in decimal; may be NULL */
    void (*id)(void *arg, int32_t id, float logprob); /* each new id; may be NULL */
    bool (*stop)(void *arg);                          /* asked before each id; may be NULL */
} im_infer_sink;

typedef struct im_infer_result {
    size_t nprompt, n;
    int32_t *prompt, *id;            /* id: everything generated, an end of document and a stop string included */
    float *prompt_logprob, *logprob; /* prompt_logprob NULL unless asked for; its first is NaN */
    im_str text;                     /* of a byte model: UTF-8, without end and stop string; else the ids in decimal */
    im_infer_stop stop;
    const char *stop_string;         /* of the options; NULL when that was not the reason */
    bool bytes;                      /* text is text, not ids: a model of bytes, or one with a tokenizer.json */
    double load_s, prompt_s, next_s; /* seconds: until ready, for the prompt, for the new ids */
    int ranks;
    im_observe_memory *memory; /* [ranks] */
} im_infer_result;

/* Options as the table's rows say. Refused: no prompt or two, text for a model that is not of bytes, ids that are none or not below the
 * vocabulary, more positions than the model has, layouts that it cannot have. mpi: this process is a rank of the job; NULL: ranks are threads. Rank 0 alone
 * reads the prompt, and has a result; the others' is empty. */
im_status im_infer_generate(im_context *ctx, const im_infer_options *o, const char *models_dir, im_comm_mpi_world *mpi, const im_infer_sink *sink,
                            im_infer_result *out) IM_MUST_CHECK;
void im_infer_result_free(im_infer_result *r);
/* {"prompt_ids": [..], "ids": [..], "logprobs": [..], "text": .. or null, "stop": .., "stop_string": .. or null,
 * "memory": [{"rank": 0, "predicted": {CLASS: bytes, ..}, "measured": {..}}, ..]}; with prompt_logprobs those too. */
void im_infer_result_json(const im_infer_result *r, im_str *out);

#endif
