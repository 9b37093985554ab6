/* checkpoint: logical tensors on disk, any layout in, any layout out (DESIGN rules 10 and 11).
 *
 * A checkpoint is a directory that Transformers opens as it is:
 *   config.json, generation_config.json, model.safetensors   weights, Hugging Face names (stored in the run's precision)
 *   optimizer.safetensors   for every parameter NAME: NAME.m, NAME.v and, in bf16, NAME.master, all fp32
 *   imece.json              manifest: format version, step, updates, position in the data, seed, fingerprint of the data, options
 *                           that must agree, thread count and instruction set, size and XXH3 of each file
 * Written to DIR.tmp, fsynced, checksummed, renamed; the file `latest` beside it (one line, the directory's name) moves last.
 */
#ifndef IM_CHECKPOINT_H
#define IM_CHECKPOINT_H

#include "engine/engine.h"
#include "model/safetensors.h"

enum { IM_CHECKPOINT_MAX_SKIPS = 64 };
typedef struct im_checkpoint_skip {
    int64_t from, count; /* samples that a rollback left out: [from, from + count) */
} im_checkpoint_skip;

typedef struct im_checkpoint_meta {
    int64_t step;     /* steps done */
    int64_t position; /* samples consumed */
    int64_t tokens;   /* tokens consumed */
    int64_t updates;  /* Adam's step count */
    uint64_t seed;
    uint64_t data_fingerprint;
    double last_loss;
    double elapsed_s;     /* seconds trained so far, over all resumes */
    double warmup_done_s; /* elapsed_s when the warmup ended; < 0: it has not */
    int threads;
    char isa[64];       /* instruction set and kernel backend */
    char plan_key[256]; /* what must agree for bit-equal resume, as text */
    int nskip;
    im_checkpoint_skip skip[IM_CHECKPOINT_MAX_SKIPS];
} im_checkpoint_meta;

typedef struct im_checkpoint_save im_checkpoint_save;
/* Begins to save into ROOT/step-N in the background: lays out the files, takes the snapshot from the engine (io queue). Several extra
 * files (tokenizer.json ...) are copied from copy_from when there (NULL: none). *out tells later; one save at a time. keep: how many
 * complete checkpoints stay (0: all; the newest always).
 * With several ranks all of them call start, poll and finish, in the same places, and get the same answers: each writes what it owns,
 * rank 0 makes the files and publishes them (meta, copy_from and keep are its own), and an error of one rank fails the save on all. */
im_status im_checkpoint_start(im_context *ctx, im_engine *e, const char *root, const im_checkpoint_meta *meta, const char *copy_from, int keep,
                              im_checkpoint_save **out) IM_MUST_CHECK;
/* done tells whether it ended; a save that failed returns its error (and frees nothing). */
im_status im_checkpoint_poll(im_checkpoint_save *s, bool *done) IM_MUST_CHECK;
/* Waits, returns the save's own status, frees s. */
im_status im_checkpoint_finish(im_checkpoint_save *s) IM_MUST_CHECK;

/* The newest complete checkpoint under root (by `latest`; when that one is torn or missing, the newest complete one, said in a warning). */
im_status im_checkpoint_latest(im_context *ctx, const char *root, char *dir, size_t dir_size) IM_MUST_CHECK;
/* The same, and the checksums must agree too. */
im_status im_checkpoint_latest_verified(im_context *ctx, const char *root, char *dir, size_t dir_size) IM_MUST_CHECK;
/* What a user may point at: a model directory or file (returned as it is), a run directory or its checkpoints/ (its latest checkpoint). */
im_status im_checkpoint_resolve(im_context *ctx, const char *path, char *dir, size_t dir_size) IM_MUST_CHECK;
/* Reads the manifest, verifies sizes (and checksums when `verify`). */
im_status im_checkpoint_meta_read(im_context *ctx, const char *dir, bool verify, im_checkpoint_meta *out) IM_MUST_CHECK;

typedef struct im_checkpoint_entry {
    int64_t step;
    bool complete;    /* manifest reads, every file has its size */
    bool latest;      /* the pointer names it */
    uint64_t nbytes;  /* of its files */
    char name[32];    /* step-N */
    char reason[256]; /* when not complete: why */
} im_checkpoint_entry;
/* All step-N directories under root, ascending. Free *out with free(). */
im_status im_checkpoint_list(im_context *ctx, const char *root, im_checkpoint_entry **out, size_t *n) IM_MUST_CHECK;

/* Elements [first, first+count) of a parameter as fp32; called by several threads at once. */
typedef im_status (*im_checkpoint_values_fn)(void *arg, uint32_t param, int64_t first, int64_t count, float *out);
/* All weights (and, in bf16, their masters) of the engine from such a function, by segments. */
im_status im_checkpoint_fill(im_context *ctx, im_engine *e, im_checkpoint_values_fn values, void *arg) IM_MUST_CHECK;
/* Weights (any Hugging Face directory) into the engine, by segments. */
im_status im_checkpoint_load_weights(im_context *ctx, im_engine *e, const char *dir) IM_MUST_CHECK;
/* Masters, m, v and updates of one of our checkpoints. */
im_status im_checkpoint_load_optimizer(im_context *ctx, im_engine *e, const char *dir, const im_checkpoint_meta *meta) IM_MUST_CHECK;

#endif
