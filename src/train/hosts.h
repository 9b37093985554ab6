/* hosts: machines that a run may use.
 *
 *   # two PCs and a cable
 *   big   slots=2
 *   small:1
 */
#ifndef IM_TRAIN_HOSTS_H
#define IM_TRAIN_HOSTS_H

#include "base/base.h"

typedef struct im_train_host {
    const char *name;
    int slots; /* ranks that it takes */
} im_train_host;

typedef struct im_train_hosts {
    im_train_host *host; /* [n], in the file's order, each once */
    size_t n;
    int slots; /* of all */
} im_train_hosts;

/* The result lives in `a`. IM_ERR_FORMAT names file and line. */
im_status im_train_hosts_read(im_context *ctx, im_arena *a, const char *path, im_train_hosts *out) IM_MUST_CHECK;
im_status im_train_hosts_parse(im_context *ctx, im_arena *a, const char *file, const char *text, size_t len, im_train_hosts *out) IM_MUST_CHECK;

#endif
