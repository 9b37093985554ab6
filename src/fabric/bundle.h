/* A bundle: a copy of what status, check and env read of a machine, as a tree of files that --root and `check BUNDLE` take.
 *
 * Text files are copied as text, the links of sysfs as links, device nodes as empty files of their name, and configuration spaces of PCI
 * functions as bytes. Nothing else of the machine is in it: no addresses of peers, no keys, no logs; of variables only those of
 * communication libraries. What could not be read stands in commands/unreadable.txt.
 */
#ifndef IM_FABRIC_BUNDLE_H
#define IM_FABRIC_BUNDLE_H

#include "fabric/tar.h"
#include "topology/root.h"

/* Where a bundle goes: into an archive, or below a directory that exists. */
typedef struct im_bundle_to {
    im_tar *tar;
    const char *dir;
} im_bundle_to;

/* Copies the files of the machine under root; *files: how many. */
im_status im_bundle_write(im_context *ctx, im_root *root, const im_bundle_to *to, size_t *files) IM_MUST_CHECK;
/* One more file, such as the output of a command. */
im_status im_bundle_add(im_context *ctx, const im_bundle_to *to, const char *path, const void *data, size_t len) IM_MUST_CHECK;

#endif
