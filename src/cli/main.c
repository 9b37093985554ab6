/* imece: finds the command, gives it a context, turns its status into an exit code. */
#include "cli/cli.h"
#include "cli/launch.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Every command has its line here. */
static const im_cli_command *const commands[] = {
    &im_cli_train_command,      &im_cli_eval_command,
    &im_cli_generate_command,   &im_cli_data_command,
    &im_cli_tokenizer_command,  &im_cli_model_command,
    &im_cli_checkpoint_command, &im_cli_ranks_command,
    &im_cli_verify_command,     &im_cli_bench_command,
    &im_cli_plan_command,       &im_cli_fabric_command,
    &im_cli_simulate_command,   NULL, /* ends the list */
};
enum { NCOMMANDS = IM_COUNT_OF(commands) - 1 };

im_status im_cli_options(im_cli *cli, int argc, char **argv, void *into, bool *given, im_option_list *rest)
{
    const im_cli_command *c = cli->command;
    IM_TRY(im_option_defaults(cli->ctx, c->rows, c->nrows, cli->arena, into));
    return im_option_parse(cli->ctx, c->rows, c->nrows, cli->arena, argc, argv, into, given, rest);
}

int im_cli_exit(im_cli *cli, im_status status)
{
    im_cli_progress(cli, NULL);
    if (status != IM_OK) {
        const char *text = im_error_text(cli->ctx);
        const char *part = cli->command ? cli->command->name : "cli";
        im_log(cli->ctx, status == IM_ERR_STOPPED ? IM_LOG_WARN : IM_LOG_ERROR, part, "%s", *text ? text : im_status_name(status));
    }
    switch (status) {
    case IM_OK: return IM_EXIT_DONE;
    case IM_ERR_ARG: return IM_EXIT_USAGE;
    case IM_ERR_CHECK: return IM_EXIT_FOUND;
    case IM_ERR_STOPPED: return IM_EXIT_STOPPED;
    default: return IM_EXIT_FAILED;
    }
}

/* ---- the log ---------------------------------------------------------------- */

/* time level rank part message; the date only where the line may be read on another day */
static void to_stderr(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    const im_cli *cli = arg;
    static const char *const name[] = {"error", "warn", "info", "debug"};
    static const char *const colour[] = {"\033[31m", "\033[33m", "", "\033[2m"};
    struct timespec now;
    struct tm local;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(when, sizeof when, cli->err_is_terminal ? "%H:%M:%S" : "%Y-%m-%dT%H:%M:%S", &local);
    flockfile(stderr); /* ranks are threads: lines stay whole */
    fprintf(stderr, "%s%s.%03ld %s%s%s %d %s %s\n", cli->err_is_terminal ? "\r\033[K" : "", when, now.tv_nsec / 1000000,
            cli->colour ? colour[level] : "", name[level], cli->colour && *colour[level] ? "\033[0m" : "", rank, part, message);
    funlockfile(stderr);
}

void im_cli_progress(im_cli *cli, const char *text)
{
    if (!cli->err_is_terminal)
        return;
    int n = text ? (int)strlen(text) : 0;
    fprintf(stderr, "\r\033[K%.*s", n < cli->columns ? n : cli->columns - 1, text ? text : "");
    fflush(stderr);
}

/* ---- finding things ------------------------------------------------------------- */

/* Named shapes and clusters: where the variable says; the installed ones beside the program; the source tree's beside build/; as configured. */
static const char *find_named(im_arena *arena, const char *what, const char *variable, const char *installed, const char *source)
{
    const char *named = getenv(variable);
    if (named && *named)
        return named;
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    static const char *const beside[] = {"../share/imece/", "../"};
    for (size_t i = 0; slash && i < IM_COUNT_OF(beside); i++) {
        char *path = im_arena_printf(arena, "%.*s/%s%s", (int)(slash - exe), exe, beside[i], what);
        if (path && im_path_is_dir(path))
            return path;
    }
    return im_path_is_dir(installed) ? installed : source;
}

static const im_cli_command *find_command(im_cli *cli, const im_cli_command *const *list, size_t n, const char *word, const char *path)
{
    const char *names[64];
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i]->name, word) == 0)
            return list[i];
        if (!list[i]->hidden && count < IM_COUNT_OF(names))
            names[count++] = list[i]->name;
    }
    const char *near = im_nearest_name(word, names, count);
    if (near)
        im_fail(cli->ctx, IM_ERR_ARG, "unknown command \"%.100s\"; did you mean %s %s?", word, path, near);
    else
        im_fail(cli->ctx, IM_ERR_ARG, "unknown command \"%.100s\"; %s --help lists them", word, path);
    return NULL;
}

static bool asks_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* Results go to stdout whole, or the program fails. */
static int print_text(im_cli *cli, im_str *text)
{
    fputs(im_str_text(text), stdout);
    bool failed = text->failed;
    im_str_free(text);
    return failed ? im_cli_exit(cli, im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the text")) : IM_EXIT_DONE;
}

static int run_command(im_cli *cli, const im_cli_command *c, const char *path, int argc, char **argv)
{
    bool help = asks_help(argc, argv), to_sub = c->nsub > 0 && argc > 0 && argv[0][0] != '-';
    if (help && !to_sub) {
        im_str text = {0};
        im_cli_help_command(cli, c, path, &text);
        return print_text(cli, &text);
    }
    cli->command = c;
    if (to_sub) {
        const im_cli_command *sub = find_command(cli, c->sub, c->nsub, argv[0], path);
        const char *longer = sub ? im_arena_printf(cli->arena, "%s %s", path, sub->name) : NULL;
        return longer ? run_command(cli, sub, longer, argc - 1, argv + 1) : im_cli_exit(cli, im_error_code(cli->ctx));
    }
    if (!c->run)
        return im_cli_exit(cli, im_fail(cli->ctx, IM_ERR_ARG, "%s needs a command behind it; %s --help lists them", path, path));
    return c->run(cli, argc, argv);
}

/* imece help COMMAND...: as imece COMMAND... --help */
static int help(im_cli *cli, int argc, char **argv)
{
    im_str text = {0};
    if (!argc) {
        im_cli_help_top(cli, commands, NCOMMANDS, &text);
        return print_text(cli, &text);
    }
    char **words = IM_ARENA_NEW(cli->arena, char *, (size_t)argc + 2);
    const im_cli_command *c = words ? find_command(cli, commands, NCOMMANDS, argv[0], "imece") : NULL;
    const char *path = c ? im_arena_printf(cli->arena, "imece %s", c->name) : NULL;
    if (!path)
        return im_cli_exit(cli, words ? im_error_code(cli->ctx) : im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the text"));
    memcpy(words, argv + 1, sizeof *words * ((size_t)argc - 1));
    words[argc - 1] = "--help";
    return run_command(cli, c, path, argc, words);
}

/* The words before the command: --help, --version, -v, -q. */
static int run(im_cli *cli, int argc, char **argv)
{
    im_str text = {0};
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        const char *word = argv[at];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            im_cli_help_top(cli, commands, NCOMMANDS, &text);
            return print_text(cli, &text);
        }
        if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
            im_cli_version(&text);
            return print_text(cli, &text);
        }
        if (strcmp(word, "-v") == 0 || strcmp(word, "--verbose") == 0)
            cli->level = IM_LOG_DEBUG;
        else if (strcmp(word, "-q") == 0 || strcmp(word, "--quiet") == 0)
            cli->level = IM_LOG_WARN;
        else
            return im_cli_exit(cli, im_fail(cli->ctx, IM_ERR_ARG, "unknown option %.100s; imece --help lists what there is", word));
    }
    im_context_set_log(cli->ctx, to_stderr, cli, cli->level);
    if (at == argc) {
        im_cli_help_top(cli, commands, NCOMMANDS, &text);
        fputs(im_str_text(&text), stderr);
        im_str_free(&text);
        return IM_EXIT_USAGE;
    }
    if (strcmp(argv[at], "man") == 0 && at + 1 == argc) { /* for the build: not in the list */
        im_cli_man(commands, NCOMMANDS, &text);
        return print_text(cli, &text);
    }
    if (strcmp(argv[at], "completion") == 0 && at + 1 == argc) {
        im_cli_completion(commands, NCOMMANDS, &text);
        return print_text(cli, &text);
    }
    if (strcmp(argv[at], "help") == 0)
        return help(cli, argc - at - 1, argv + at + 1);
    const im_cli_command *c = find_command(cli, commands, NCOMMANDS, argv[at], "imece");
    const char *path = c ? im_arena_printf(cli->arena, "imece %s", c->name) : NULL;
    return path ? run_command(cli, c, path, argc - at - 1, argv + at + 1) : im_cli_exit(cli, im_error_code(cli->ctx));
}

/* libgomp's teams spin for milliseconds at every barrier by default: on a machine that others use too, that made an evaluation ten times
 * slower than spinning for some 0.1 ms and then sleeping. It reads the setting when it is loaded, so the program starts once more with it. */
static void spin_less(char **argv)
{
#ifdef IM_HAVE_OPENMP
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || setenv("GOMP_SPINCOUNT", "3000", 1) != 0)
        return;
    execv("/proc/self/exe", argv); /* on failure: as it was */
#else
    (void)argv;
#endif
}

int main(int argc, char **argv)
{
    spin_less(argv);
    im_cli cli = {.start = im_clock_now(), .columns = 80, .level = IM_LOG_INFO};
    if (im_context_create(&cli.ctx) != IM_OK || im_arena_create(cli.ctx, &cli.arena) != IM_OK) {
        fputs("imece: no memory to begin with\n", stderr);
        return IM_EXIT_FAILED;
    }
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    struct winsize size;
    cli.out_is_terminal = isatty(STDOUT_FILENO);
    cli.err_is_terminal = isatty(STDERR_FILENO);
    cli.colour = cli.err_is_terminal && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    if (ioctl(cli.err_is_terminal ? STDERR_FILENO : STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        cli.columns = size.ws_col;
    im_context_set_log(cli.ctx, to_stderr, &cli, cli.level);
    cli.models_dir = find_named(cli.arena, "models", "IMECE_MODELS", IM_MODELS_DIR, IM_SOURCE_MODELS_DIR);
    cli.clusters_dir = find_named(cli.arena, "clusters", "IMECE_CLUSTERS", IM_CLUSTERS_DIR, IM_SOURCE_CLUSTERS_DIR);
    int code = run(&cli, argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        im_error_clear(cli.ctx);
        int failed = im_cli_exit(&cli, im_fail_errno(cli.ctx, "cannot write to standard output"));
        code = code == IM_EXIT_DONE ? failed : code;
    }
    im_arena_destroy(cli.arena);
    im_context_destroy(cli.ctx);
    if (im_cli_under_prrte())
        usleep(100000); /* so that it hands on what was written last */
    return code;
}
