/* What the files of this folder share. */
#ifndef IM_CHECKPOINT_INTERNAL_H
#define IM_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

#define IM_CHECKPOINT_MANIFEST "imece.json"
#define IM_CHECKPOINT_WEIGHTS "model.safetensors"
#define IM_CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define IM_CHECKPOINT_POINTER "latest"

enum { IM_CHECKPOINT_FORMAT = 1, IM_CHECKPOINT_MAX_FILES = 24, IM_CHECKPOINT_PATH = 4096 };

/* ---- manifest.c */
/* Hashes each regular file of dir, then writes and fsyncs the manifest. */
im_status im_checkpoint_write_manifest(im_context *ctx, const char *dir, const im_checkpoint_meta *meta) IM_MUST_CHECK;
/* The weights of one of our checkpoints are what was written: size and hash; a directory without a manifest passes. */
im_status im_checkpoint_check_weights(im_context *ctx, const char *dir) IM_MUST_CHECK;
/* As im_checkpoint_meta_read; *nbytes (may be NULL) gets the bytes of all files. */
im_status im_checkpoint_read_manifest(im_context *ctx, const char *dir, bool verify, im_checkpoint_meta *out, uint64_t *nbytes) IM_MUST_CHECK;

/* ---- publish.c */
/* "step-N" exactly; the number, or -1. */
int64_t im_checkpoint_step_of(const char *name);
/* Removes what an interrupted save left behind: step-N.tmp, step-N.old. */
im_status im_checkpoint_clean(im_context *ctx, const char *root) IM_MUST_CHECK;
/* temp (complete, fsynced) becomes root/name, then the pointer names it. */
im_status im_checkpoint_publish(im_context *ctx, const char *root, const char *temp, const char *name) IM_MUST_CHECK;
/* Keeps the newest `keep` complete ones, the one the pointer names among them; 0 keeps all. */
im_status im_checkpoint_prune(im_context *ctx, const char *root, int keep) IM_MUST_CHECK;

#endif
