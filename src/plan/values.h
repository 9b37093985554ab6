/* values.h (internal): a map from values to a number 0..n-1, and a map of the bytes of an arena. */
#ifndef IM_PLAN_VALUES_H
#define IM_PLAN_VALUES_H

#include "plan/program.h"

typedef struct im_value_map {
    im_value *key; /* by number */
    uint32_t n, cap;
    uint32_t *slot; /* open addressing: number + 1, 0 empty */
    uint32_t nslot; /* a power of two */
} im_value_map;

/* The number of v, new when it is not there; UINT32_MAX without memory. */
uint32_t im_value_map_add(im_value_map *m, const im_value *v);
uint32_t im_value_map_find(const im_value_map *m, const im_value *v); /* UINT32_MAX: not there */
void im_value_map_free(im_value_map *m);

/* Who touched a range of bytes last: one write and, for each queue, the last read. Op numbers; -1: nobody. */
typedef struct im_span {
    size_t lo, hi;
    im_value value; /* whose bytes these are */
    bool owned;     /* value is set */
    int32_t write;
    int32_t read[IM_QUEUE_MAX];
} im_span;

typedef struct im_span_map {
    im_span *span; /* sorted, disjoint; gaps are untouched bytes */
    size_t n, cap;
} im_span_map;

/* Splits so that [lo, hi) is covered by whole spans, new ones filled in where nothing was; *first..*end are theirs. false: no memory. */
bool im_span_map_cover(im_span_map *m, size_t lo, size_t hi, size_t *first, size_t *end);
void im_span_map_free(im_span_map *m);

#endif
