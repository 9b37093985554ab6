/* The variables that steer NCCL, UCX, Open MPI and libfabric, as tables: what there is, in which versions, of which type, with which default.
 *
 * What a variable means: env_table_nccl.c and env_table_others.c. In which versions of NCCL it exists with which default: env_nccl_history.c, made
 * from NCCL's source by tools/nccl-history/make-table.py. Versions of NCCL are numbers, 2.21.5 = 22105; the history knows minor versions alone. */
#ifndef IM_FABRIC_ENV_TABLE_H
#define IM_FABRIC_ENV_TABLE_H

#include "base/base.h"

enum { IM_ENV_HISTORY_STEPS = 6, IM_ENV_NCCL_OLDEST = 20700, IM_ENV_NCCL_NEWEST = 23007 };

typedef struct im_env_step {
    int minor; /* of NCCL 2 */
    bool is_number;
    int64_t number;
    const char *text; /* the default; "unset"; NULL: the variable has gone */
} im_env_step;

typedef struct im_env_history {
    const char *name;
    int nstep;
    im_env_step step[IM_ENV_HISTORY_STEPS];
} im_env_history;
extern const im_env_history im_env_nccl_history[];
extern const size_t im_env_nccl_history_count;

typedef enum im_env_family { IM_ENV_NCCL, IM_ENV_NCCL_PLUGIN, IM_ENV_TORCH, IM_ENV_UCX, IM_ENV_MCA, IM_ENV_OFI } im_env_family;

typedef enum im_env_kind {
    IM_ENV_TEXT,       /* anything */
    IM_ENV_INT,        /* NCCL: strtoll with base 0 */
    IM_ENV_SWITCH,     /* the same; 0 and 1 mean something */
    IM_ENV_CHOICE,     /* one of choices */
    IM_ENV_CHOICES,    /* a list of choices, with ^ before it where flags say so */
    IM_ENV_LEVEL,      /* NCCL's path levels */
    IM_ENV_HCAS,       /* [^][=]device[:port],... */
    IM_ENV_INTERFACES, /* [^][=]name,... */
    IM_ENV_PATH,       /* a file */
    IM_ENV_NUMBER,     /* UCX, libfabric: an integer, or a word of choices */
    IM_ENV_SIZE,       /* UCX: bytes with K, M, G, or a word */
    IM_ENV_TERNARY,    /* UCX: y, n, try, auto */
    IM_ENV_NAMES       /* UCX: a list of names, ^ before it negates */
} im_env_kind;

enum {
    IM_ENV_TUNES = 1,    /* NCCL's manual: for experiments, not to be kept in production */
    IM_ENV_CASELESS = 2, /* words in any case */
    IM_ENV_CARET = 4,    /* a list may begin with ^ */
    IM_ENV_ON_IB = 8,    /* without effect on Ethernet ports */
    IM_ENV_ON_ROCE = 16  /* without effect on InfiniBand ports */
};

typedef struct im_env_var {
    const char *name;
    im_env_family family;
    im_env_kind kind;
    int64_t min, max;     /* both 0: any */
    const char *choices;  /* "A|B" */
    const char *fallback; /* the default as text, where no history tells it */
    int since;            /* minor version of NCCL 2 in which it came, where the history does not tell; 0 otherwise */
    unsigned flags;
    const char *instead; /* gone or renamed: what to write in its place, or why it went */
    const char *what;    /* a sentence */
} im_env_var;

extern const im_env_var im_env_nccl_vars[];
extern const size_t im_env_nccl_vars_count;
extern const im_env_var im_env_other_vars[];
extern const size_t im_env_other_vars_count;

/* NULL: not in the tables. */
const im_env_var *im_env_find(const char *name);
const im_env_history *im_env_find_history(const char *name);
/* Does this name belong to what is judged here (NCCL_*, UCX_*, OMPI_MCA_*, FI_*, ...)? */
bool im_env_is_ours(const char *name);
/* A name of whose makers there is no complete table here (plug-ins, libfabric's providers): unknown is not misspelt. NULL or who owns it. */
const char *im_env_open_family(const char *name);
/* The nearest name of all tables, or NULL. */
const char *im_env_nearest(im_arena *a, const char *name);
/* The step of the history in force at version (22105); NULL: the variable is not in that version, or has no history. */
const im_env_step *im_env_at(const char *name, int version);
/* First version as a number (22100), 0: unknown; *gone: the first version without it, 0: none. */
int im_env_since(const char *name, int *gone);
/* "2.21.5", "2.21", "22105" -> 22105, 22100; 0: neither. */
int im_env_version_parse(const char *text);
/* 22105 -> "2.21"; into buf */
const char *im_env_version_text(int version, char buf[16]);
/* "the default 20 (18 from 2.14 to 2.22, 14 before)" for a variable with a history; "" otherwise. */
void im_env_describe_default(const char *name, im_str *out);

#endif
