/* draw: the step of a pipeline as a picture, a row a rank: planned (from a timeline) or measured (from spans that the engine recorded). */
#ifndef IM_PLAN_DRAW_H
#define IM_PLAN_DRAW_H

#include "plan/simulate.h"

typedef enum im_draw_kind {
    IM_DRAW_FORWARD,
    IM_DRAW_BACKWARD, /* whole, or the part for the input */
    IM_DRAW_WEIGHT,   /* the part for the weights */
    IM_DRAW_HEAD,     /* the head and the loss, forward and backward at once */
    IM_DRAW_UPDATE,   /* count, clip, optimizer */
    IM_DRAW_COMM,     /* messages, gathers, reductions, collectives of tensor parallelism */
    IM_DRAW_KIND_COUNT
} im_draw_kind;

typedef struct im_draw_span {
    int rank;
    uint8_t kind; /* im_draw_kind */
    uint8_t chunk;
    int32_t mb; /* -1: the step */
    double start, end;
} im_draw_span;

typedef struct im_drawing {
    im_draw_span *span;
    size_t n, cap;
    int ranks;
    double end;  /* seconds */
    bool failed; /* out of memory: spans are missing */
} im_drawing;

/* Op i of rank r ran from start to end; neighbouring ops of one part become one span. To be called in the order of each rank's program, or of time. */
void im_drawing_add(im_drawing *d, const im_program *p, uint32_t op, double start, double end);
void im_drawing_append(im_drawing *d, im_draw_span s); /* as it is */
im_status im_drawing_of_timeline(im_context *ctx, const im_program *const *ranks, const im_timeline *t, im_drawing *out) IM_MUST_CHECK;
void im_drawing_free(im_drawing *d);
/* Idle share of the ranks' compute from the step's beginning to the end of the last backward. */
double im_drawing_bubble(const im_drawing *d);
/* Rows of `width` characters; colour: with ANSI backgrounds. Micro-batches as their last digit. */
void im_drawing_text(const im_drawing *d, const char *title, int width, bool colour, im_str *out);
/* One picture, the drawings below one another on one scale of time. A document of its own. */
void im_drawing_svg(const im_drawing *const *d, const char *const *title, size_t n, im_str *out);

#endif
