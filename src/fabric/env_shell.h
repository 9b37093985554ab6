/* Words of a shell script, as far as variables need them. Only src/fabric's env_*.c include this. */
#ifndef IM_FABRIC_ENV_SHELL_H
#define IM_FABRIC_ENV_SHELL_H

#include "fabric/env.h"

enum { IM_SHELL_WORDS = 4096, IM_SHELL_DEPTH = 4 };
#define IM_SHELL_UNKNOWN '\x01' /* stands in a word for what an expansion would give */

typedef struct im_shell_var {
    const char *name, *value; /* NULL: not known */
    struct im_shell_var *next;
} im_shell_var;

typedef struct im_shell {
    im_env_set *set;
    const char *file;
    im_env_layer layer;
    const char *text;
    size_t len, at;
    int line, depth;
    bool no_single, no_double, no_paren, no_brace, no_tick; /* there is no closing one from here on */
    bool all_exported;                                      /* set -a */
    im_shell_var *vars;
    size_t nvars;
    const char *heredoc; /* delimiter of a body that begins at the next line */
    bool heredoc_tabs;
} im_shell;

typedef struct im_shell_word {
    char *text;
    int line;
} im_shell_word;

/* The words up to the next newline, ; & | ( or ); false at the end of the text. n may be 0. */
bool im_shell_command(im_shell *sh, im_shell_word *word, size_t *n);
/* What the variable holds at this place of the script. NULL: not set there, or not known. */
const char *im_shell_get(const im_shell *sh, const char *name, size_t n);
void im_shell_put(im_shell *sh, const char *name, size_t n, const char *value);

#endif
