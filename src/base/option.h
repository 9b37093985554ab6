/* Options: one row each. The row gives the YAML key, the --flag, --help, the man page, the completion
 * and the echo in the run directory. No option is read anywhere else.
 */
#ifndef IM_BASE_OPTION_H
#define IM_BASE_OPTION_H

#include "base/base.h"
#include "base/json.h"

typedef enum im_option_type {
    IM_OPT_BOOL,   /* bool; --x, --no-x, --x=true */
    IM_OPT_INT,    /* int64_t; suffixes k, M, G (powers of ten) and Ki, Mi, Gi */
    IM_OPT_REAL,   /* double */
    IM_OPT_STRING, /* const char *, in the set's arena */
    IM_OPT_CHOICE, /* int: index into `choices`, names separated by | */
    IM_OPT_LIST    /* im_option_list: --x a --x b, or a YAML sequence */
} im_option_type;

typedef struct im_option_list {
    const char **item;
    size_t n;
} im_option_list;

typedef struct im_option {
    const char *name; /* "micro-batch": --micro-batch, and micro_batch in YAML */
    im_option_type type;
    const char *fallback; /* default as text; NULL: none (string NULL, list empty) */
    double min, max;      /* for INT and REAL; both 0: unbounded */
    const char *choices;  /* "constant|linear|cosine|wsd" */
    const char *help;     /* one sentence, with the unit */
    const char *value;    /* what --help calls the value: "N", "DIR", "FILE" */
    size_t offset;        /* into the options struct */
    char short_name;      /* 0: none */
    bool hidden;
    const char *section; /* heading in --help; NULL: as the row before */
} im_option;

/* Fills `into` with the defaults. Strings live in `a`. */
im_status im_option_defaults(im_context *ctx, const im_option *rows, size_t n, im_arena *a, void *into) IM_MUST_CHECK;
/* Parses argv[0..argc): options may stand anywhere, "--" ends them. Positional arguments are collected in
 * `rest` (may be NULL: then one is an error). Unknown: IM_ERR_ARG with the nearest name. `given` (may be
 * NULL, n entries) is set true for each row that was set. */
im_status im_option_parse(im_context *ctx, const im_option *rows, size_t n, im_arena *a, int argc, char *const *argv, void *into, bool *given,
                          im_option_list *rest) IM_MUST_CHECK;
/* Sets rows from a mapping (keys with _ ); `given` rows already true are left alone when keep_given. */
im_status im_option_from_yaml(im_context *ctx, const im_option *rows, size_t n, im_arena *a, const im_json *doc, const im_json_value *map, void *into,
                              bool *given, bool keep_given) IM_MUST_CHECK;
/* One "key: value" line for every row, as im_option_from_yaml reads it back to the same value. */
void im_option_to_yaml(const im_option *rows, size_t n, const void *from, im_str *out);
/* The --help text of the rows, `width` columns. */
void im_option_help(const im_option *rows, size_t n, int width, im_str *out);
/* roff and bash forms. */
void im_option_man(const im_option *rows, size_t n, im_str *out);
void im_option_completion(const im_option *rows, size_t n, im_str *out);

#endif
