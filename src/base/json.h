/* JSON and YAML as one read-only tree, with the place of each value for error messages.
 * JSON by jansson, YAML (one document, no anchors, no tags) by libyaml.
 */
#ifndef IM_BASE_JSON_H
#define IM_BASE_JSON_H

#include "base/base.h"

typedef enum im_json_type { IM_JSON_NULL, IM_JSON_BOOL, IM_JSON_INT, IM_JSON_REAL, IM_JSON_STRING, IM_JSON_ARRAY, IM_JSON_OBJECT } im_json_type;
typedef struct im_json im_json;             /* a whole document: owns all values */
typedef struct im_json_value im_json_value; /* borrowed from its document */

/* `name` is what messages call the document (its path). Duplicate keys, depth over 64, trailing text
 * and text that is not UTF-8 are errors with line and column. Large integers beyond int64 are reals. */
im_status im_json_parse(im_context *ctx, const char *name, const char *text, size_t len, im_json **out) IM_MUST_CHECK;
/* The same of a text that begins at `line` of what `name` calls: a line of a .jsonl file. */
im_status im_json_parse_at(im_context *ctx, const char *name, int64_t line, const char *text, size_t len, im_json **out) IM_MUST_CHECK;
im_status im_json_load(im_context *ctx, const char *path, size_t max_bytes, im_json **out) IM_MUST_CHECK;
im_status im_yaml_parse(im_context *ctx, const char *name, const char *text, size_t len, im_json **out) IM_MUST_CHECK;
im_status im_yaml_load(im_context *ctx, const char *path, size_t max_bytes, im_json **out) IM_MUST_CHECK;
void im_json_free(im_json *doc); /* NULL is allowed */
const im_json_value *im_json_root(const im_json *doc);
const char *im_json_name(const im_json *doc);

im_json_type im_json_type_of(const im_json_value *v);                           /* NULL value: IM_JSON_NULL */
const im_json_value *im_json_get(const im_json_value *object, const char *key); /* NULL: absent or not an object */
size_t im_json_length(const im_json_value *v);                                  /* members or elements */
const im_json_value *im_json_at(const im_json_value *array, size_t i);
/* i-th member of an object, in file order. */
const im_json_value *im_json_member(const im_json_value *object, size_t i, const char **key);
bool im_json_bool(const im_json_value *v, bool fallback);
int64_t im_json_int(const im_json_value *v, int64_t fallback); /* reals with an integer value count */
double im_json_real(const im_json_value *v, double fallback);  /* integers count */
const char *im_json_string(const im_json_value *v, const char *fallback);
size_t im_json_string_len(const im_json_value *v);
/* A scalar as text: as it was written (YAML), or shortest form in buf (JSON numbers; 32 bytes are enough). */
const char *im_json_text(const im_json_value *v, char *buf, size_t buflen);
int im_json_line(const im_json_value *v); /* 1-based for YAML; 0 where unknown (JSON) */

/* Required values: an absent key, a wrong type or a value outside [min, max] is an IM_ERR_FORMAT that
 * names the document, the key and the range. */
im_status im_json_need_int(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, int64_t min, int64_t max,
                           int64_t *out) IM_MUST_CHECK;
im_status im_json_need_real(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, double min, double max,
                            double *out) IM_MUST_CHECK;
im_status im_json_need_string(im_context *ctx, const im_json *doc, const im_json_value *object, const char *key, const char **out) IM_MUST_CHECK;

#endif
