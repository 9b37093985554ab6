/* Files of a machine, read under a root directory: "/" is this machine, anything else a copy of one (a support bundle).
 *
 * Symbolic links are followed inside the root only: an absolute link, or one with too many "..", starts again at the
 * root and cannot leave it. What is absent, vanishes or may not be read is a reading without a text and with a reason,
 * never an error and never 0. Only regular files are read (a pipe in a bundle would block), 64 KiB of each at most,
 * 4 MiB below /proc and /commands.
 */
#ifndef IM_TOPOLOGY_ROOT_H
#define IM_TOPOLOGY_ROOT_H

#include "base/base.h"

typedef struct im_root im_root;

typedef struct im_reading {
    const char *path; /* as asked for, below the root: the evidence */
    const char *text; /* what stands there, blanks at both ends cut; may be ""; NULL: unknown */
    const char *why;  /* NULL: known; else "absent", "cannot be read: Permission denied", "is not a number" ... */
    int64_t value;    /* only where is_number */
    bool is_number;
} im_reading;

typedef struct im_names {
    const char **item; /* sorted: mlx5_2 stands before mlx5_10 */
    size_t n;
    const char *why; /* NULL, or why the folder could not be listed (n is 0 then) */
} im_names;

/* `dir` NULL, "" or "/": this machine. IM_ERR_IO when dir is no directory. Everything that is read lives in `a`. */
im_status im_root_open(im_context *ctx, im_arena *a, const char *dir, im_root **out) IM_MUST_CHECK;
void im_root_close(im_root *root); /* NULL is allowed; readings stay as long as the arena */
/* The same root with readings in another arena: for samples that die soon. Close both. */
im_status im_root_with_arena(const im_root *root, im_arena *a, im_root **out) IM_MUST_CHECK;
bool im_root_is_live(const im_root *root);    /* this machine, not a copy */
const char *im_root_dir(const im_root *root); /* as given; "/" for this machine */
im_arena *im_root_arena(const im_root *root);

/* `path` with every link followed, below the root ("/sys/devices/..."); NULL: absent (errno says why). */
const char *im_root_resolve(im_root *root, const char *path);
bool im_root_exists(im_root *root, const char *path);
/* The last component of what the link at `path` leads to ("mlx5_core" of .../device/driver). */
im_reading im_root_link_name(im_root *root, const char *path);
/* A file's text. Bytes that do not print become '?' (a newline and a tab stay); the path is printf-made. */
im_reading im_root_read(im_root *root, const char *fmt, ...) IM_PRINTF(2, 3);
/* The same, a decimal, 0x or negative number; text behind it ("4: ACTIVE") is allowed after a blank or a colon. */
im_reading im_root_number(im_root *root, const char *fmt, ...) IM_PRINTF(2, 3);
/* Up to `max` raw bytes; *len is 0 where nothing can be read; the reading's text is NULL unless why is NULL, then "". */
im_reading im_root_bytes(im_root *root, const char *path, unsigned char *into, size_t max, size_t *len);
im_names im_root_list(im_root *root, const char *fmt, ...) IM_PRINTF(2, 3);

/* What could not be read though it is there (an absent file is not counted): the first 64, and how many there were. */
typedef struct im_trouble {
    const char *path, *why;
} im_trouble;
size_t im_root_troubles(const im_root *root, const im_trouble **first, size_t *nfirst);

/* The number at the start of text, as im_root_number takes it; false: there is none. */
bool im_parse_number(const char *text, int64_t *value);
/* The line's value behind "key" and blanks, '=' or ':' in a text of such lines, in `a`; NULL: no such line. */
const char *im_text_value(im_arena *a, const char *text, const char *key);

#endif
