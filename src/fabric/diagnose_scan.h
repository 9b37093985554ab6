/* Many patterns over much text: a literal prefilter (Wu and Manber, "A fast algorithm for multi-pattern searching", 1994) and a small matcher.
 *
 * A pattern is text, compared without regard to the case of ASCII letters, in which
 *     *  stands for any bytes, none too       ~  for the end of a word: no letter and no digit comes next
 * Its longest piece without * or ~ is its anchor: at least IM_SCAN_LEAST bytes. Only a line that holds an anchor is looked at.
 */
#ifndef IM_FABRIC_DIAGNOSE_SCAN_H
#define IM_FABRIC_DIAGNOSE_SCAN_H

#include "base/base.h"

enum { IM_SCAN_LEAST = 7, IM_SCAN_MOST = 16 };

typedef struct im_scan im_scan;
/* The patterns stay the caller's, and must live as long. A pattern without an anchor is an IM_ERR_ARG that names it. */
im_status im_scan_create(im_context *ctx, const char *const *pattern, size_t n, im_scan **out) IM_MUST_CHECK;
void im_scan_free(im_scan *s); /* NULL is allowed */
/* Of text[0..n), the first place from `at` on that lies in an anchor, at the same distance from its beginning always, and the numbers of the anchors, at most
 * IM_SCAN_MOST; n: there is none. The text is read once, and of most bytes only every fifth is looked at. */
size_t im_scan_next(const im_scan *s, const char *text, size_t n, size_t at, uint16_t anchor[IM_SCAN_MOST], size_t *nanchor);
/* The patterns that have this anchor; returns how many. */
size_t im_scan_patterns(const im_scan *s, size_t anchor, const uint16_t **pattern);

bool im_scan_is_plain(const char *pattern); /* without * and ~: where its anchor lies, it matches */
bool im_scan_match(const char *pattern, const char *line, size_t n);
/* Where `what` (plain text, any case) begins in line, from `at` on; n: nowhere. */
size_t im_scan_find(const char *line, size_t n, size_t at, const char *what);
/* Whether `what` (plain text, any case) stands at line[at]. */
bool im_scan_stands(const char *line, size_t n, size_t at, const char *what);

#endif
