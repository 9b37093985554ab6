/* mpirun: the line of MPI's launcher that starts the ranks of a run on the machines of a hosts file. */
#include "cli/launch.h"
#include "train/hosts.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct line {
    im_arena *arena;
    char **word; /* NULL behind the last */
    size_t n, cap;
    bool failed;
} line;

static void put(line *l, const char *word)
{
    if (!word || l->n + 1 >= l->cap) {
        l->failed = true;
        return;
    }
    l->word[l->n++] = (char *)(uintptr_t)word;
    l->word[l->n] = NULL;
}

void im_cli_quote(const char *word, im_str *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
    if (*word && word[strspn(word, plain)] == '\0') {
        im_str_append(out, word);
        return;
    }
    im_str_append(out, "'");
    for (; *word; word++)
        im_str_append_n(out, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    im_str_append(out, "'");
}

/* ---- which launcher --------------------------------------------------------------------- */

static const char *in_path(im_cli *cli, const char *program)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        const char *full = im_arena_printf(cli->arena, "%.*s/%s", (int)n, path, program);
        if (n && full && access(full, X_OK) == 0)
            return full;
        path += n + (path[n] == ':');
    }
    return NULL;
}

/* "openmpi", "mpich" or NULL, by what it says of itself. */
static const char *flavour_of(const char *program)
{
    im_str command = {0};
    char said[4096];
    im_cli_quote(program, &command);
    im_str_append(&command, " --version 2>&1 </dev/null");
    FILE *p = popen(im_str_text(&command), "r");
    im_str_free(&command);
    if (!p)
        return NULL;
    size_t n = fread(said, 1, sizeof said - 1, p);
    said[n] = '\0';
    (void)pclose(p);
    return strstr(said, "Open MPI") || strstr(said, "OpenRTE") ? "openmpi" : strstr(said, "HYDRA") || strstr(said, "MPICH") ? "mpich" : NULL;
}

typedef struct launcher {
    const char *program, *flavour;
} launcher;

/* The first one that this build can run under. */
static im_status find_launcher(im_cli *cli, launcher *out)
{
    static const char *const names[] = {"mpirun.openmpi", "mpirun.mpich", "mpirun", "mpiexec.hydra"};
    const char *other = NULL;
    for (size_t i = 0; i < IM_COUNT_OF(names); i++) {
        launcher l = {.program = in_path(cli, names[i])};
        l.flavour = l.program ? flavour_of(l.program) : NULL;
        if (l.flavour && im_cli_plugin(cli, l.flavour)) {
            l.program = names[i];
            *out = l;
            return IM_OK;
        }
        other = l.flavour ? names[i] : other;
    }
    if (other)
        return im_fail(cli->ctx, IM_ERR_NOT_FOUND,
                       "--hosts: %s is here, but imece was built without its MPI (Debian: libopenmpi-dev or libmpich-dev, then build again)", other);
    return im_fail(cli->ctx, IM_ERR_NOT_FOUND, "--hosts: no mpirun in PATH (Debian: openmpi-bin, or mpich)");
}

/* ---- the line ------------------------------------------------------------------------------ */

static const char *host_list(im_cli *cli, const im_train_hosts *h)
{
    im_str s = {0};
    for (size_t i = 0; i < h->n; i++)
        im_str_printf(&s, "%s%s:%d", i ? "," : "", h->host[i].name, h->host[i].slots);
    const char *list = im_arena_strdup(cli->arena, im_str_text(&s));
    im_str_free(&s);
    return list;
}

/* Open MPI hands only what it is told to the other machines; MPICH hands on everything. */
static void put_environment(line *l, im_arena *a)
{
    static const char *const names[] = {"LD_LIBRARY_PATH=", "IMECE_", "UCX_", "OMP_", "NO_COLOR="};
    for (char **v = environ; *v; v++)
        for (size_t i = 0; i < IM_COUNT_OF(names); i++)
            if (!strncmp(*v, names[i], strlen(names[i]))) {
                put(l, "-x");
                put(l, im_arena_printf(a, "%.*s", (int)strcspn(*v, "="), *v));
            }
}

/* Ranks get the cores that they share out themselves, so mpirun must not bind them; after a signal they get the time to finish their step
 * and to save. */
static void put_openmpi(line *l, im_cli *cli, const im_train_hosts *h)
{
    static const char *const words[] = {"--map-by", "slot", "--bind-to", "none", "--mca", "odls_base_sigkill_timeout", "60"};
    put(l, "--host");
    put(l, host_list(cli, h));
    for (size_t i = 0; i < IM_COUNT_OF(words); i++)
        put(l, words[i]);
    if (geteuid() == 0)
        put(l, "--allow-run-as-root");
    put_environment(l, cli->arena);
}

static void put_mpich(line *l, im_cli *cli, const im_train_hosts *h)
{
    put(l, "-hosts");
    put(l, host_list(cli, h));
}

/* This command line without --hosts. */
static void put_command(line *l, const im_cli *cli, const char *exe, int argc, char **argv)
{
    put(l, exe);
    if (cli->level != IM_LOG_INFO)
        put(l, cli->level > IM_LOG_INFO ? "-v" : "-q");
    put(l, cli->command->name);
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--hosts"))
            i++;
        else if (strncmp(argv[i], "--hosts=", strlen("--hosts=")) != 0)
            put(l, argv[i]);
    }
}

static im_status make_line(im_cli *cli, const launcher *how, const im_train_hosts *h, int ranks, const char *exe, int argc, char **argv, line *l)
{
    size_t environment = 0;
    while (environ[environment])
        environment++;
    *l = (line){.arena = cli->arena, .cap = 32 + 2 * environment + (size_t)argc};
    l->word = IM_ARENA_NEW(cli->arena, char *, l->cap);
    if (!l->word)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the command line");
    put(l, how->program);
    put(l, "-n");
    put(l, im_arena_printf(cli->arena, "%d", ranks));
    if (!strcmp(how->flavour, "openmpi"))
        put_openmpi(l, cli, h);
    else
        put_mpich(l, cli, h);
    put_command(l, cli, exe, argc, argv);
    return l->failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the command line") : IM_OK;
}

static void show_line(const im_cli *cli, const line *l)
{
    im_str s = {0};
    for (size_t i = 0; i < l->n; i++) {
        im_str_append(&s, i ? " " : "");
        im_cli_quote(l->word[i], &s);
    }
    if (cli->level >= IM_LOG_INFO)
        fprintf(stderr, "%s\n", im_str_text(&s));
    im_str_free(&s);
}

/* ---- starting ----------------------------------------------------------------------------------- */

static void tell_unused(im_cli *cli, const im_train_hosts *h, int ranks)
{
    int before = 0;
    for (size_t i = 0; i < h->n; before += h->host[i++].slots)
        if (before >= ranks)
            im_log(cli->ctx, IM_LOG_WARN, "train", "%s is not used: the hosts before it have room for all %d ranks", h->host[i].name, ranks);
}

im_status im_cli_start_job(im_cli *cli, const im_train_options *o, int argc, char **argv)
{
    im_train_hosts h;
    launcher how = {0};
    line l;
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    int64_t ranks = o->tp * o->dp * o->pp;
    IM_TRY(im_train_options_check(cli->ctx, o));
    IM_TRY(im_train_hosts_read(cli->ctx, cli->arena, o->hosts, &h));
    if (ranks > h.slots)
        return im_fail(cli->ctx, IM_ERR_ARG,
                       "tp %lld x dp %lld x pp %lld = %lld ranks, but %s has %d slot%s: more slots=, more hosts, or a layout of at most %d ranks",
                       (long long)o->tp, (long long)o->dp, (long long)o->pp, (long long)ranks, o->hosts, h.slots, h.slots == 1 ? "" : "s", h.slots);
    IM_TRY(find_launcher(cli, &how));
    for (int i = 0, room = 0; room < ranks; room += h.host[i++].slots)
        IM_TRY(im_cli_reach(cli, h.host[i].name, exe));
    IM_TRY(make_line(cli, &how, &h, (int)ranks, exe, argc, argv, &l));
    tell_unused(cli, &h, (int)ranks);
    show_line(cli, &l);
    execvp(l.word[0], l.word);
    return im_fail_errno(cli->ctx, "%s cannot be started", l.word[0]);
}
