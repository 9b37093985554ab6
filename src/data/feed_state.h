/* The feed itself: shared by feed_open.c and feed.c. */
#ifndef IM_DATA_FEED_STATE_H
#define IM_DATA_FEED_STATE_H

#include "data/feed_parts.h"

/* The part of a token file that is meant: tokens [first, first+count), documents [document0, document0+documents). */
typedef struct im_feed_file {
    im_tokens *tokens;
    int64_t first, count, document0, documents;
    int64_t start; /* where it lies in the stream of its source */
} im_feed_file;

typedef struct im_feed_group {
    im_feed_file *file;
    size_t nfile;
    int64_t tokens, samples;
    im_rows rows; /* WHOLE, NONE */
    uint64_t seed;
    bool masked;
} im_feed_group;

struct im_feed {
    im_feed_config cfg; /* pack and attention resolved */
    im_feed_group *group;
    size_t ngroup;
    bool weighted;
    im_blend blend;
    bool masked;
    uint64_t fingerprint;
    im_arena *arena;
};

#endif
