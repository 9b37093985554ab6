/* The tree that the JSON and the YAML reader both fill. Only src/base includes this. */
#ifndef IM_BASE_TREE_H
#define IM_BASE_TREE_H

#include "base/json.h"

enum { IM_TREE_MAX_DEPTH = 64 };

typedef struct im_tree_member {
    const char *key;
    im_json_value *value;
} im_tree_member;

struct im_json_value {
    im_json_type type;
    int line;
    union {
        bool boolean;
        int64_t integer;
        double real;
    };
    const char *text; /* scalars: as written (YAML) or the string; NULL for JSON numbers, booleans and null */
    size_t len;       /* of a string; members; elements */
    union {
        im_json_value **element;
        im_tree_member *member;
    };
    uint32_t *slot; /* larger objects: open addressing over members, index + 1; nslot is a power of two */
    size_t nslot;
};

struct im_json {
    im_arena *arena;
    const char *name;
    im_json_value *root;
};

im_status im_tree_create(im_context *ctx, const char *name, im_json **out) IM_MUST_CHECK;
/* Builds the key table; *twice is the first key that stands there twice, or NULL. */
im_status im_tree_index(im_json *doc, im_json_value *object, const char **twice) IM_MUST_CHECK;

#endif
