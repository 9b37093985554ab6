/* Prometheus text (exposition format 0.0.4): families of samples, kept until they are written.
 *
 * A family's samples stand together under one HELP and one TYPE whatever the order in which they came; the same series
 * twice is written once, the first one. What is not known is simply not added. All memory is the arena's.
 */
#ifndef IM_OBSERVE_PROMETHEUS_H
#define IM_OBSERVE_PROMETHEUS_H

#include "base/base.h"

#define IM_PROM_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef enum im_prom_kind { IM_PROM_GAUGE, IM_PROM_COUNTER, IM_PROM_UNTYPED } im_prom_kind;

typedef struct im_prom_label {
    const char *name, *value; /* value NULL: the label is left out */
} im_prom_label;

typedef struct im_prom im_prom;
typedef struct im_prom_family im_prom_family;

im_status im_prom_create(im_context *ctx, im_arena *a, im_prom **out) IM_MUST_CHECK;
/* Makes the family, or finds it; help and kind are those of the first call. NULL: no memory (im_prom_write says so). */
im_prom_family *im_prom_find(im_prom *p, const char *name, im_prom_kind kind, const char *help);
/* A sample. A value that is not finite is not added. f NULL: nothing happens. */
void im_prom_add(im_prom *p, im_prom_family *f, const im_prom_label *label, size_t nlabels, double value);
/* The same with an integer, written digit by digit. */
void im_prom_add_count(im_prom *p, im_prom_family *f, const im_prom_label *label, size_t nlabels, uint64_t value);
/* How many samples were added. */
size_t im_prom_samples(const im_prom *p);
/* Families in the order in which they were made, samples by their labels. IM_ERR_NOMEM: something is missing. */
im_status im_prom_write(im_context *ctx, const im_prom *p, im_str *out) IM_MUST_CHECK;

/* [a-zA-Z_:][a-zA-Z0-9_:]*; labels: without the colon. */
bool im_prom_is_name(const char *text, size_t n, bool label);

/* ---- reading ----------------------------------------------------------------------------------------- */

typedef struct im_prom_line {
    const char *name;
    im_prom_label *label; /* sorted by name, unescaped */
    size_t nlabels;
    double value; /* NaN and infinities are values too */
} im_prom_line;

/* One line of text without its newline: 1 a sample, 0 a comment or blank, -1 not of this format (or no memory); *why says what is
 * wrong. A timestamp behind the value is taken and dropped. */
int im_prom_parse_line(im_arena *a, const char *line, size_t n, im_prom_line *out, const char **why);

#endif
