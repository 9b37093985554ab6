/* Texts of files and standard input, a block at a time: many small ones together, one that is too long for a block in parts. */
#ifndef IM_CLI_TEXTS_H
#define IM_CLI_TEXTS_H

#include "base/base.h"

typedef enum im_cli_split { IM_CLI_SPLIT_FILE, IM_CLI_SPLIT_LINES, IM_CLI_SPLIT_SEPARATOR } im_cli_split;

typedef struct im_cli_text {
    const char *s;
    size_t n;
    bool begins, ends; /* false: more of it came before, will come */
} im_cli_text;

typedef struct im_cli_texts {
    im_context *ctx;
    const char *const *path; /* "-": standard input */
    size_t npath;
    im_cli_split split;
    const char *separator; /* a line that is exactly this ends a text */
    bool with_newline;     /* of LINES: the newline is part of the text */
    int64_t bytes;         /* read so far */
    /* the block */
    im_cli_text *text;
    size_t ntext;
    size_t used; /* set by the caller when the last text does not end: how many of its bytes are done with */
    /* inside */
    size_t text_cap, at;
    int fd;
    bool opened, inside, pending;
    char *buf;
    size_t n, cap, begin;
    size_t *end; /* places in buf where a file ends */
    size_t nend, end_cap;
} im_cli_texts;

/* *more false: all was read. Texts lie in memory that the next call writes over. Only the last text of a block may not end, and then it is
 * the only one that does not begin and end there, or the first. */
im_status im_cli_texts_next(im_cli_texts *t, bool *more) IM_MUST_CHECK;
void im_cli_texts_close(im_cli_texts *t);

#endif
