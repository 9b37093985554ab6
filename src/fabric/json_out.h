/* JSON that is written as it goes: commas and quotes in one place. */
#ifndef IM_FABRIC_JSON_OUT_H
#define IM_FABRIC_JSON_OUT_H

#include "topology/root.h"

typedef struct im_json_out {
    im_str *out;
    bool comma; /* something stands before, in this object or array */
} im_json_out;

/* key NULL: an element of an array, or the whole document. kind '{' or '['. */
void im_json_out_open(im_json_out *w, const char *key, char kind);
void im_json_out_close(im_json_out *w, char kind);                        /* '}' or ']' */
void im_json_out_text(im_json_out *w, const char *key, const char *text); /* text NULL: nothing is written */
void im_json_out_int(im_json_out *w, const char *key, int64_t v);
void im_json_out_uint(im_json_out *w, const char *key, uint64_t v);
void im_json_out_real(im_json_out *w, const char *key, double v); /* not finite: nothing is written */
void im_json_out_bool(im_json_out *w, const char *key, bool v);
/* A known reading's text, or its number where it is one; an unknown one is left out. */
void im_json_out_reading(im_json_out *w, const char *key, const im_reading *r);

#endif
