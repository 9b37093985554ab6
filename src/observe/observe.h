/* observe: what a run tells: metrics.jsonl, the progress line, the closing summary, the trace that Perfetto opens.
 *
 * Nothing here prints: texts go into buffers that the caller hands to its sink.
 */
#ifndef IM_OBSERVE_H
#define IM_OBSERVE_H

#include "base/base.h"

/* ---- metrics.jsonl: one JSON object a line -------------------------------------------- */

/* One step. Units in the names; loss and grad_norm may be NaN (written as null, finite false). */
typedef struct im_observe_step {
    int64_t step;     /* steps done: the first line of a run is 1 */
    int64_t tokens;   /* tokens consumed so far, all ranks */
    double loss;      /* nats a counted token */
    double grad_norm; /* before clipping */
    double lr;
    double step_s;
    double tokens_per_s;
    double mfu; /* 0..1; < 0: not known yet (null) */
    size_t rss_bytes, mem_peak_bytes, mem_predicted_bytes;
    bool finite;
} im_observe_step;

typedef struct im_observe_eval {
    int64_t step;
    double loss;          /* nats a counted token, over all of them */
    int64_t counted;      /* tokens */
    double bits_per_byte; /* < 0: not known (null) */
    double seconds;
} im_observe_eval;

typedef struct im_observe_file im_observe_file;
/* Appends to path (created when absent). */
im_status im_observe_open(im_context *ctx, const char *path, im_observe_file **out) IM_MUST_CHECK;
/* A line is written whole or not at all: after a failed write the file is cut back to its last whole line. */
im_status im_observe_put_step(im_observe_file *f, const im_observe_step *s) IM_MUST_CHECK;
im_status im_observe_put_eval(im_observe_file *f, const im_observe_eval *e) IM_MUST_CHECK;
/* {"step": .., "event": NAME, "text": ..}; text may be NULL. */
im_status im_observe_put_event(im_observe_file *f, int64_t step, const char *name, const char *text) IM_MUST_CHECK;
/* Bytes of one rank, by class. */
typedef struct im_observe_memory {
    int rank;
    size_t n; /* 0: not known */
    im_class_bytes by_class[12];
} im_observe_memory;
/* {"step": .., "event": "memory", "rank": .., "predicted": {CLASS: bytes, ..}, "measured": {..}} */
im_status im_observe_put_memory(im_observe_file *f, int64_t step, const im_observe_memory *m) IM_MUST_CHECK;
/* "rank": .., "predicted": {CLASS: bytes, ..}, "measured": {..} */
void im_observe_memory_json(const im_observe_memory *m, im_str *out);
/* "rank 1, predicted and touched: weights 26.1 MiB 26.1 MiB, ..." of the classes that have bytes */
void im_observe_memory_text(const im_observe_memory *m, im_str *out);
/* Calls `to` with the classes that have bytes. */
void im_observe_memory_pass(const im_observe_memory *m, void (*to)(void *arg, int rank, const im_class_bytes *classes, size_t n), void *arg);
void im_observe_close(im_observe_file *f); /* NULL is allowed */
/* Cuts a torn last line and then, from the end, the lines of steps after `step`. An absent file is fine. */
im_status im_observe_cut(im_context *ctx, const char *path, int64_t step) IM_MUST_CHECK;

void im_observe_step_json(const im_observe_step *s, im_str *out); /* without newline */
void im_observe_eval_json(const im_observe_eval *e, im_str *out);

/* ---- texts ------------------------------------------------------------------------------ */

/* "step 120/2000 | loss 3.4567 | 12.3k tokens/s | MFU 61 % | 1.23 GiB | ETA 2m13s". total 0: no known end; eta_s < 0: unknown. */
void im_observe_progress(const im_observe_step *s, int64_t total, double eta_s, im_str *out);
/* 133.4 -> "2m13s"; returns buf */
const char *im_observe_duration(char *buf, size_t size, double seconds);
/* 12345 -> "12.3k"; returns buf */
const char *im_observe_count(char *buf, size_t size, double n);

typedef struct im_observe_summary {
    int64_t steps, tokens;        /* of this run of the program */
    int64_t left_out;             /* of the steps: not finite, so they changed nothing or were gone back on */
    double seconds, first_step_s; /* first_step_s: from the command to the start of the first step */
    double first_loss, last_loss;
    bool have_valid;
    int64_t first_valid_step, last_valid_step, end_step;   /* steps of the run when it was validated first and last, and at the end */
    double first_valid, last_valid, first_bits, last_bits; /* bits per byte < 0: not known */
    double tokens_per_s, mfu;
    size_t mem_predicted, mem_peak;
    size_t mem_start;         /* resident when the command began */
    im_observe_memory memory; /* of the rank that needs most */
    const char *run;          /* directory */
    const char *checkpoint;   /* NULL: none */
} im_observe_summary;
void im_observe_summary_text(const im_observe_summary *s, im_str *out); /* lines, each with newline */
void im_observe_summary_json(const im_observe_summary *s, im_str *out);

/* ---- trace.json ---------------------------------------------------------------------------- */

typedef struct im_observe_trace im_observe_trace;
/* A ring of `capacity` spans: the oldest make room. */
im_status im_observe_trace_create(im_context *ctx, size_t capacity, im_observe_trace **out) IM_MUST_CHECK;
void im_observe_trace_destroy(im_observe_trace *t); /* NULL is allowed */
/* Spans until the end belong to this step and program; others are not kept. Any thread. Each begin is a run, numbered from 1: a step may be run twice. */
void im_observe_trace_begin(im_observe_trace *t, int64_t step, size_t program);
void im_observe_trace_end(im_observe_trace *t); /* closes the step's own span */
/* The first of the newest `runs` of which all spans are still there. */
uint64_t im_observe_trace_first(im_observe_trace *t, uint64_t runs);
void im_observe_trace_shift(im_observe_trace *t, double seconds); /* all spans: to the clock of another machine */
/* arg is the trace: fits im_device_on_span. Any thread. */
void im_observe_trace_span(void *arg, unsigned queue, const char *name, uint32_t tag, double t0, double t1);
/* What else a span tells. */
typedef struct im_observe_span_info {
    const char *instruction; /* beside its name; NULL: nothing. Lives until the next call */
    uint64_t flow;           /* the message that it sends or receives, the same at both ends; 0: none */
    bool receives;
} im_observe_span_info;
typedef void (*im_observe_info_fn)(void *arg, size_t program, uint64_t run, uint32_t tag, im_observe_span_info *out);
/* Events of the runs from `first` on in Chrome's trace format, each behind a comma; process `rank`, time as im_clock_now(). queue_name[queue] names the
 * rows (nqueue of them; NULL: none of that number). For one file `first` is the same on all ranks: a message has two ends. */
void im_observe_trace_part(im_observe_trace *t, int rank, uint64_t first, const char *const *queue_name, size_t nqueue, im_observe_info_fn info,
                           void *arg, im_str *out);
/* The parts of all ranks as one file, which Perfetto opens. */
im_status im_observe_trace_join(im_context *ctx, const char *path, const char *const *part, size_t n) IM_MUST_CHECK;
/* Spans of the newest run, if it was of this program, as they ended. */
typedef void (*im_observe_each_fn)(void *arg, uint32_t tag, double t0, double t1);
void im_observe_trace_each(im_observe_trace *t, size_t program, im_observe_each_fn fn, void *arg);

#endif
