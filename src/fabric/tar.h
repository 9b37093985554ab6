/* tar archives (POSIX ustar, GNU and pax long names), compressed or not: what a bundle travels in.
 *
 * Extraction trusts nothing: names without "..", never through a symbolic link, nothing overwritten, no devices, owners or modes; what is
 * beyond IM_TAR_FILE bytes of a file, IM_TAR_ALL in all or IM_TAR_ENTRIES entries is an error.
 */
#ifndef IM_FABRIC_TAR_H
#define IM_FABRIC_TAR_H

#include "base/base.h"

enum { IM_TAR_FILE = 16 << 20, IM_TAR_ALL = 512 << 20, IM_TAR_ENTRIES = 400000 };

typedef struct im_tar im_tar;
/* Writes a compressed archive to the file descriptor, which im_tar_finish closes. */
im_status im_tar_create(im_context *ctx, int fd, im_tar **out) IM_MUST_CHECK;
/* path: with or without "/" at its start. target NULL: a regular file of these bytes, else a symbolic link. */
im_status im_tar_add(im_tar *t, const char *path, const char *target, const void *data, size_t len) IM_MUST_CHECK;
im_status im_tar_add_dir(im_tar *t, const char *path) IM_MUST_CHECK;
/* Ends and frees. NULL is allowed. */
im_status im_tar_finish(im_tar *t) IM_MUST_CHECK;

/* Puts the archive `file` below the directory `into`, which exists. IM_ERR_FORMAT where it is no tar, with the offset. */
im_status im_tar_extract(im_context *ctx, const char *file, const char *into) IM_MUST_CHECK;

#endif
