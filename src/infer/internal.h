/* What the generator's files share: its state, and what the ranks do together. */
#ifndef IM_INFER_INTERNAL_H
#define IM_INFER_INTERNAL_H

#include "infer/infer.h"

enum { IM_MAX_PROGRAMS = 8, IM_MAX_ENDS = 16 };

struct im_infer {
    im_context *ctx;
    im_checkpoint_session own, *session; /* of this rank: its own, or a thread's */
    int32_t end[IM_MAX_ENDS];            /* ids that end a document */
    size_t nend;
    im_infer_config cfg, asked;    /* asked: as it was before the ranks met */
    int64_t size[IM_MAX_PROGRAMS]; /* ids of each program, descending; the last is the one that samples */
    size_t nprogram;
    int64_t pos;   /* ids in the cache */
    bool has_last; /* an id of the sequence that is not in the cache yet */
    int32_t last;
    const int32_t *piece, *next; /* what load gives; next NULL: no targets */
    int32_t *memory;             /* of the three below */
    int32_t *block, *unused;     /* blocks of the cache, [of all]: the sequence's in its order, and those that are free */
    int64_t nblock, nunused;
    int32_t *given;    /* [positions]: ids that rank 0 was fed, on their way to the others */
    im_status failure; /* of what the ranks did together: they are no longer of one mind */
};

/* ---- generator.c: all ranks alike, in the same order */
im_status im_infer_start_programs(im_infer *g) IM_MUST_CHECK; /* after the config is the same on all */
/* told: log-probabilities are asked for; logprob: where they go on rank 0, NULL on the others */
im_status im_infer_do_feed(im_infer *g, const int32_t *ids, size_t n, bool told, float *logprob) IM_MUST_CHECK;
im_status im_infer_do_next(im_infer *g, float *logprob) IM_MUST_CHECK;
void im_infer_do_rewind(im_infer *g);

/* ---- orders.c */
typedef enum im_infer_what { IM_INFER_END, IM_INFER_FEED, IM_INFER_NEXT, IM_INFER_REWIND, IM_INFER_MEMORY } im_infer_what;
/* Rank 0 tells the others what all ranks do next. Alone it has nobody to tell. */
im_status im_infer_order(im_infer *g, im_infer_what what, const int32_t *ids, size_t n, bool told) IM_MUST_CHECK;
im_status im_infer_done(im_infer *g, im_status status) IM_MUST_CHECK; /* remembers a failure */

#endif
