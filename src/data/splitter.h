/* Text to documents, a piece at a time: nothing larger than a separator line is held. Internal to src/data (and its tests). */
#ifndef IM_DATA_SPLITTER_H
#define IM_DATA_SPLITTER_H

#include "data/corpus.h"

typedef struct im_splitter im_splitter;
typedef struct im_split_sink {
    void *arg;
    im_status (*text)(void *arg, const unsigned char *bytes, size_t n); /* more of the current document; n > 0 */
    /* The document ends, perhaps without any text. offset: bytes of the input that are behind it; inside an input's last bytes, or at its end. */
    im_status (*end)(void *arg, int64_t offset);
} im_split_sink;

/* Longest separator, and longest line of white space that still ends a document. */
enum { IM_SPLIT_HOLD = 4096 };
im_status im_splitter_create(im_context *ctx, im_split split, const char *separator, const im_split_sink *sink, im_splitter **out) IM_MUST_CHECK;
void im_splitter_destroy(im_splitter *s);
void im_splitter_begin(im_splitter *s, int64_t offset); /* an input, from its byte `offset` on, where a document begins */
im_status im_splitter_feed(im_splitter *s, const void *bytes, size_t n) IM_MUST_CHECK;
im_status im_splitter_end(im_splitter *s) IM_MUST_CHECK; /* of the input, and so of a document */

#endif
