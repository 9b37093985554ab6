/* cli: the commands. One file each: parse, call, print. Only here: exit codes, stdout, the environment, signals.
 *
 * A command is a constant im_cli_command in its own file (cli_NAME.c, im_cli_NAME_command), declared below and
 * listed once in main.c. Its option rows give --help, the man page and the completion.
 */
#ifndef IM_CLI_H
#define IM_CLI_H

#include "base/option.h"

#include <stdio.h>

enum { IM_EXIT_DONE = 0, IM_EXIT_FAILED = 1, IM_EXIT_USAGE = 2, IM_EXIT_FOUND = 3, IM_EXIT_STOPPED = 4 };

typedef struct im_cli im_cli;

typedef struct im_cli_command {
    const char *name;
    const char *args;  /* what follows the options in the usage line: "TEXT..."; NULL: nothing */
    const char *help;  /* one line */
    const char *about; /* paragraphs behind it in --help and the man page, examples too; may be NULL */
    const im_option *rows;
    size_t nrows;
    /* argv[0..argc) stands behind the command's name. Returns an exit code. NULL when the command has only sub-commands. */
    int (*run)(im_cli *cli, int argc, char **argv);
    const struct im_cli_command *const *sub; /* "data build": build is a sub-command of data */
    size_t nsub;
    bool hidden;
} im_cli_command;

struct im_cli {
    im_context *ctx;
    im_arena *arena;                               /* lives until the program ends */
    const im_cli_command *command;                 /* the one that runs */
    const char *models_dir;                        /* of named shapes: IMECE_MODELS, or beside the program */
    const char *clusters_dir;                      /* of named clusters: IMECE_CLUSTERS, or beside the program */
    double start;                                  /* im_clock_now() when the program began */
    bool out_is_terminal, err_is_terminal, colour; /* colour: of stderr; NO_COLOR is honoured */
    int columns;                                   /* of the terminal, 80 when there is none */
    im_log_level level;
};

/* Defaults, then argv, by the running command's rows. rest as in im_option_parse. */
im_status im_cli_options(im_cli *cli, int argc, char **argv, void *into, bool *given, im_option_list *rest) IM_MUST_CHECK;
/* The end of every run function: tells the context's error, if there is one, and returns the exit code. */
int im_cli_exit(im_cli *cli, im_status status);

/* SIGINT and SIGTERM: the first is remembered, the second ends the program at once (128 + signal). SIGUSR1 and SIGHUP are only remembered. */
void im_cli_catch_signals(void);
int im_cli_signal(void); /* 0, or the signal that came */

/* The last line of a terminal: shows text (no newline) in place of what stood there; NULL or "" clears it. Log lines
 * go above it. Nothing on a pipe. */
void im_cli_progress(im_cli *cli, const char *text);

/* Of this machine, measured with so many threads: FLOP/s of matrix products of that type (im_dtype), bytes per second of memory. */
im_status im_cli_machine_rates(im_context *ctx, int dtype, int threads, double *flops, double *bytes) IM_MUST_CHECK;

/* ---- help (help.c) ------------------------------------------------------------- */
void im_cli_help_top(const im_cli *cli, const im_cli_command *const *commands, size_t n, im_str *out);
void im_cli_help_command(const im_cli *cli, const im_cli_command *c, const char *path, im_str *out);
void im_cli_man(const im_cli_command *const *commands, size_t n, im_str *out);
void im_cli_completion(const im_cli_command *const *commands, size_t n, im_str *out);
void im_cli_version(im_str *out);

/* ---- commands ------------------------------------------------------------------- */
extern const im_cli_command im_cli_fabric_command;
extern const im_cli_command im_cli_data_command, im_cli_tokenizer_command, im_cli_model_command, im_cli_verify_command;
extern const im_cli_command im_cli_ranks_command, im_cli_plan_command, im_cli_simulate_command;
extern const im_cli_command im_cli_train_command, im_cli_eval_command, im_cli_generate_command, im_cli_checkpoint_command, im_cli_bench_command,
    im_cli_bench_comm_command, im_cli_bench_machine_command;

#endif
