/* diagnose: what went wrong, by the logs of a job: NCCL, RCCL, UCX, Open MPI, PyTorch, XLA, nccl-tests, perftest, the kernel. And: did it use RDMA?
 *
 * Logs are read once, in blocks, whatever their size; memory does not grow with them. Only lines in which a literal of diagnose_rules.c stands are
 * looked at. Nothing in a log is trusted: any bytes, lines of any length. A Python pickle is refused, as reading one runs code.
 */
#ifndef IM_FABRIC_DIAGNOSE_H
#define IM_FABRIC_DIAGNOSE_H

#include "base/base.h"

#include <stdatomic.h>

typedef struct im_diagnose im_diagnose;
im_status im_diagnose_create(im_context *ctx, im_diagnose **out) IM_MUST_CHECK;
void im_diagnose_free(im_diagnose *d); /* NULL is allowed */

/* A log from a path ("-": standard input), unpacked when it is gzip or Zstandard; a flight recorder's JSON is told by its content. A file that
 * cannot be read, or only in part, becomes a remark and IM_OK, so that the others are read; `quit` (may be NULL) ends the wait for a pipe. */
im_status im_diagnose_path(im_diagnose *d, const char *path, const atomic_bool *quit) IM_MUST_CHECK;
/* The same from memory, in pieces: begin, feed as often as need be, end. */
im_status im_diagnose_begin(im_diagnose *d, const char *name) IM_MUST_CHECK;
im_status im_diagnose_feed(im_diagnose *d, const char *bytes, size_t n) IM_MUST_CHECK;
im_status im_diagnose_end(im_diagnose *d) IM_MUST_CHECK;
/* A flight recorder's JSON from memory: `name` says the rank when it ends in a number (nccl_trace_rank_3.json). */
im_status im_diagnose_recorder(im_diagnose *d, const char *name, const char *text, size_t n) IM_MUST_CHECK;

/* When all is read: which finding led to which, and in what order they are told. Once. */
im_status im_diagnose_finish(im_diagnose *d) IM_MUST_CHECK;

size_t im_diagnose_findings(const im_diagnose *d);               /* faults, slow ones and symptoms without a cause: what an exit code is for */
size_t im_diagnose_unread(const im_diagnose *d);                 /* files that could not be read at all */
int64_t im_diagnose_bytes(const im_diagnose *d);                 /* read so far, unpacked */
int64_t im_diagnose_lines(const im_diagnose *d);                 /* likewise */
const char *im_diagnose_first(const im_diagnose *d);             /* id of the likeliest cause; NULL: no fault found */
int64_t im_diagnose_count(const im_diagnose *d, const char *id); /* lines on which that rule fired */
void im_diagnose_text(const im_diagnose *d, im_str *out);
void im_diagnose_json(const im_diagnose *d, im_str *out);
/* What it knows, as a Markdown table: for docs/diagnose.md. */
void im_diagnose_rules_text(im_str *out);

#endif
