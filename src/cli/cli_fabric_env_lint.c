/* imece fabric env lint: files, scripts, environments; nccl.conf beside them; findings as text or JSON. */
#include "cli/cli_fabric_env.h"
#include "fabric/env_facts.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

typedef struct lint_options {
    const char *root, *nccl;
    int format, level;
    double watchdog;
    bool only, json;
} lint_options;

#define AT(member) offsetof(lint_options, member)
static const im_option lint_rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's files (a support bundle).",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "nccl",
     .type = IM_OPT_STRING,
     .help = "NCCL's version; without, what the machine has, else the newest known.",
     .value = "VERSION",
     .offset = AT(nccl)},
    {.name = "format",
     .type = IM_OPT_CHOICE,
     .fallback = "auto",
     .choices = "auto|conf|shell|yaml|environ|params",
     .help = "What the files are; auto: by name and content.",
     .value = "HOW",
     .offset = AT(format)},
    {.name = "only",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Only what is named: not nccl.conf and Open MPI's parameter files too.",
     .offset = AT(only)},
    {.name = "watchdog",
     .type = IM_OPT_REAL,
     .fallback = "600",
     .min = 1,
     .max = 1e7,
     .help = "Seconds after which the framework ends a collective.",
     .value = "S",
     .offset = AT(watchdog)},
    {.name = "level",
     .type = IM_OPT_CHOICE,
     .fallback = "ok",
     .choices = "ok|note|unknown|warn|fail",
     .help = "Show findings from this verdict up.",
     .value = "VERDICT",
     .offset = AT(level)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = AT(json)},
};
#undef AT

typedef struct lint {
    im_cli *cli;
    const lint_options *o;
    im_env_set set;
    im_env_facts facts;
    const char *prefix; /* of paths: "" or the root */
    const char *conf;   /* the same for nccl.conf and its like: of a process, its own root (a container's) */
    const char **read;  /* files that were read */
    size_t nread, read_cap;
    int version;
} lint;

/* ---- reading ---------------------------------------------------------------------------------------- */

static bool was_read(const lint *l, const char *path)
{
    struct stat a, b;
    if (stat(path, &a) != 0)
        return false;
    for (size_t i = 0; i < l->nread; i++)
        if (stat(l->read[i], &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return true;
    return false;
}

static im_status remember(lint *l, const char *path)
{
    const char **room = im_arena_grow(l->cli->arena, l->read, l->nread, &l->read_cap, sizeof *room);
    if (!room)
        return im_fail(l->cli->ctx, IM_ERR_NOMEM, "no memory for %s", path);
    l->read = room;
    l->read[l->nread++] = path;
    return IM_OK;
}

/* A file that need not be there. One that cannot be read is told, and not fatal. */
static im_status read_default(lint *l, const char *path, im_env_format format, im_env_layer layer)
{
    if (!path || access(path, F_OK) != 0 || was_read(l, path))
        return path ? IM_OK : im_fail(l->cli->ctx, IM_ERR_NOMEM, "no memory for a path");
    IM_TRY(remember(l, path));
    im_status status = im_env_read_file(&l->set, path, path, format, layer);
    if (status != IM_OK && status != IM_ERR_NOMEM) {
        im_log(l->cli->ctx, IM_LOG_WARN, "env", "%s", im_error_text(l->cli->ctx));
        im_error_clear(l->cli->ctx);
        return IM_OK;
    }
    return status;
}

/* Home directories whose .nccl.conf may be read: NCCL asks the password file, not HOME. */
static im_status read_user_conf(lint *l, uid_t uid)
{
    im_arena *a = l->cli->arena;
    im_env_resolve(&l->set);
    const im_env_item *named = im_env_used(&l->set, "NCCL_CONF_FILE");
    if (named && named->exported && named->value && *named->value)
        return read_default(l, im_arena_printf(a, "%s%s", l->conf, named->value), IM_ENV_FORMAT_CONF, IM_ENV_LAYER_USER);
    if (*l->conf) /* another password file: root's home */
        return read_default(l, im_arena_printf(a, "%s/root/.nccl.conf", l->conf), IM_ENV_FORMAT_CONF, IM_ENV_LAYER_USER);
    const struct passwd *p = getpwuid(uid);
    return p ? read_default(l, im_arena_printf(a, "%s/.nccl.conf", p->pw_dir), IM_ENV_FORMAT_CONF, IM_ENV_LAYER_USER) : IM_OK;
}

static im_status read_defaults(lint *l, uid_t uid)
{
    im_arena *a = l->cli->arena;
    IM_TRY(read_user_conf(l, uid));
    IM_TRY(read_default(l, im_arena_printf(a, "%s/etc/nccl.conf", l->conf), IM_ENV_FORMAT_CONF, IM_ENV_LAYER_SYSTEM));
    static const char *const params[] = {"/etc/openmpi/openmpi-mca-params.conf", "/etc/ucx/ucx.conf", "/usr/etc/ucx/ucx.conf"};
    for (size_t i = 0; i < IM_COUNT_OF(params); i++)
        IM_TRY(read_default(l, im_arena_printf(a, "%s%s", l->conf, params[i]), IM_ENV_FORMAT_PARAMS, IM_ENV_LAYER_PARAMS));
    return IM_OK;
}

static im_status read_stdin(lint *l)
{
    im_str text = {0};
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0 && text.len <= IM_ENV_MAX_FILE;)
        im_str_append_n(&text, piece, n);
    im_status status = IM_OK;
    if (text.failed || text.len > IM_ENV_MAX_FILE)
        status = im_fail(l->cli->ctx, IM_ERR_FORMAT, "standard input: more than %d bytes", IM_ENV_MAX_FILE);
    else
        im_env_read_text(&l->set, "standard input", (im_env_format)l->o->format, IM_ENV_LAYER_PROCESS, im_str_text(&text), text.len);
    im_str_free(&text);
    return status;
}

static im_status read_process(lint *l, const char *pid, uid_t *uid)
{
    struct stat st;
    char *path = im_arena_printf(l->cli->arena, "%s/proc/%s/environ", l->prefix, pid);
    if (!path)
        return im_fail(l->cli->ctx, IM_ERR_NOMEM, "no memory for a path");
    if (stat(path, &st) != 0)
        return im_fail(l->cli->ctx, IM_ERR_NOT_FOUND, "no process %s (%s: %s); a file of that name is ./%s", pid, path, strerror(errno), pid);
    *uid = st.st_uid;
    struct stat own, its;
    char *root = im_arena_printf(l->cli->arena, "%s/proc/%s/root", l->prefix, pid);
    if (root && !*l->prefix && stat(root, &its) == 0 && stat("/", &own) == 0 && (own.st_dev != its.st_dev || own.st_ino != its.st_ino))
        l->conf = root;
    return im_env_read_file(&l->set, path, path, IM_ENV_FORMAT_ENVIRON, IM_ENV_LAYER_PROCESS);
}

static im_env_layer layer_of(const char *path, im_env_format format)
{
    size_t n = strlen(path);
    if (format == IM_ENV_FORMAT_PARAMS)
        return IM_ENV_LAYER_PARAMS;
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (format != IM_ENV_FORMAT_CONF || !strstr(base, "nccl"))
        return IM_ENV_LAYER_PROCESS;
    return n >= 14 && !strcmp(path + n - 14, "/etc/nccl.conf") ? IM_ENV_LAYER_SYSTEM : IM_ENV_LAYER_USER;
}

static im_status read_named(lint *l, const char *path)
{
    char *text;
    size_t len;
    IM_TRY(remember(l, path));
    IM_TRY(im_file_read(l->cli->ctx, path, IM_ENV_MAX_FILE, &text, &len));
    im_env_format format = l->o->format ? (im_env_format)l->o->format : im_env_guess(path, text, len);
    im_env_read_text(&l->set, path, format, layer_of(path, format), text, len);
    free(text);
    return l->set.failed ? im_fail(l->cli->ctx, IM_ERR_NOMEM, "%s: no memory for its variables", path) : IM_OK;
}

static im_status read_all(lint *l, const im_option_list *rest, bool dashes, bool *here)
{
    uid_t uid = getuid();
    *here = false;
    if (!rest->n && (dashes || !*l->prefix)) {
        im_env_read_environ(&l->set, "the environment", environ);
        *here = !*l->prefix;
    } else if (!rest->n) {
        *here = true; /* the bundle's own files */
    }
    for (size_t i = 0; i < rest->n; i++) {
        const char *what = rest->item[i];
        if (*what && strspn(what, "0123456789") == strlen(what)) {
            IM_TRY(read_process(l, what, &uid));
            *here = true;
        } else if (!strcmp(what, "-")) {
            IM_TRY(read_stdin(l));
        } else {
            IM_TRY(read_named(l, what));
        }
    }
    return l->o->only ? IM_OK : read_defaults(l, uid);
}

/* ---- text --------------------------------------------------------------------------------------------- */

static const char *const colours[] = {"\033[32m", "", "\033[36m", "\033[33m", "\033[31m"};

static void place(const char *file, int line, im_str *out)
{
    if (file)
        im_str_append(out, file);
    if (file && line)
        im_str_printf(out, ":%d", line);
}

static void print_finding(const lint *l, const im_env_finding *f, im_str *out)
{
    int width = l->cli->columns < 60 ? 60 : l->cli->columns > 110 ? 110 : l->cli->columns;
    bool colour = l->cli->out_is_terminal && l->cli->colour;
    im_str text = {0};
    im_str_printf(&text, "%s%s%s: %s [%s]", colour ? colours[f->verdict] : "", im_env_verdict_names[f->verdict],
                  colour && *colours[f->verdict] ? "\033[0m" : "", f->text, f->id);
    im_cli_env_wrap(im_str_text(&text), "    ", width, out);
    if (f->evidence)
        im_str_printf(out, "      seen in %s\n", f->evidence);
    if (f->fix)
        im_str_printf(out, "      -> %s\n", f->fix);
    im_str_free(&text);
}

static bool shown(const lint *l, const im_env_finding *f)
{
    return (int)f->verdict >= l->o->level;
}

static void print_item(const lint *l, const im_env_item *x, im_str *out)
{
    const im_env_var *v = im_env_find(x->name);
    bool any = false;
    for (size_t i = 0; i < l->set.nfinding; i++)
        any |= l->set.finding[i].item == x && shown(l, &l->set.finding[i]);
    if (!any && (l->o->level > IM_ENV_OK || x->how == IM_ENV_PASS))
        return;
    place(x->file, x->line, out);
    im_str_printf(out, "  %s", x->name);
    if (x->value)
        im_str_printf(out, "=%s", x->value);
    if (x->reads)
        im_str_printf(out, "  (read as %s)", x->reads);
    im_str_append(out, "\n");
    for (size_t i = 0; i < l->set.nfinding; i++)
        if (l->set.finding[i].item == x && shown(l, &l->set.finding[i]))
            print_finding(l, &l->set.finding[i], out);
    if (!any)
        im_str_printf(out, "    ok: %s\n", v ? v->what : "known");
}

static void print_text(const lint *l, bool nccl_known, im_str *out)
{
    size_t count[5] = {0}, used = 0;
    char version[16];
    im_env_version_text(l->version, version);
    if (l->o->nccl)
        im_str_printf(out, "NCCL %s\n", version);
    else if (nccl_known)
        im_str_printf(out, "NCCL %s (%s)\n", version, l->facts.nccl_where);
    else
        im_str_printf(out, "NCCL's version is not known: judged as %s (--nccl VERSION says another)\n", version);
    if (l->version / 100 > IM_ENV_NCCL_NEWEST / 100 || l->version / 100 < IM_ENV_NCCL_OLDEST / 100)
        im_str_append(out, "the tables know 2.7 to 2.30: others are judged as the nearest of these\n");
    im_str_printf(out, "machine %s: ", l->facts.root);
    im_cli_env_machine(&l->facts, out);
    im_str_append(out, "\n\n");
    for (size_t i = 0; i < l->set.nfinding; i++) {
        const im_env_finding *f = &l->set.finding[i];
        count[f->verdict]++;
        if (f->item || !shown(l, f))
            continue;
        place(f->file, f->line, out);
        im_str_append(out, f->file ? "\n" : "all together\n");
        print_finding(l, f, out);
    }
    for (size_t i = 0; i < l->set.n; i++) {
        print_item(l, l->set.item[i], out);
        used += !l->set.item[i]->by;
    }
    if (!l->set.n)
        im_str_append(out, "No variable of NCCL, UCX, Open MPI or libfabric is set.\n");
    im_str_printf(out, "\n%zu variables set: %zu fail, %zu warn, %zu unknown, %zu notes\n", used, count[IM_ENV_FAIL], count[IM_ENV_WARN],
                  count[IM_ENV_UNKNOWN], count[IM_ENV_NOTE]);
}

/* ---- JSON ------------------------------------------------------------------------------------------------ */

static void json_text(im_str *out, const char *key, const char *text)
{
    if (!text)
        return;
    im_str_printf(out, ", \"%s\": ", key);
    im_str_json_string(out, text, strlen(text));
}

static void json_place(im_str *out, const char *file, int line)
{
    json_text(out, "file", file);
    if (file && line)
        im_str_printf(out, ", \"line\": %d", line);
}

static void json_finding(const im_env_finding *f, bool with_place, im_str *out)
{
    im_str_printf(out, "{\"verdict\": \"%s\", \"id\": \"%s\"", im_env_verdict_names[f->verdict], f->id);
    if (with_place) {
        json_text(out, "name", f->name);
        json_place(out, f->file, f->line);
    }
    json_text(out, "text", f->text);
    json_text(out, "fix", f->fix);
    json_text(out, "evidence", f->evidence);
    im_str_append(out, "}");
}

static void json_item(const lint *l, const im_env_item *x, im_str *out)
{
    static const char *const how[] = {"environment", "conf", "export", "assignment", "inline", "launcher", "srun", "container", "passed"};
    size_t n = 0;
    im_str_append(out, "{\"name\": ");
    im_str_json_string(out, x->name, strlen(x->name));
    json_text(out, "value", x->value);
    json_text(out, "reads", x->reads);
    json_place(out, x->file, x->line);
    im_str_printf(out, ", \"how\": \"%s\", \"used\": %s, \"verdict\": \"%s\", \"findings\": [", how[x->how], x->by || !x->exported ? "false" : "true",
                  im_env_verdict_names[x->verdict]);
    for (size_t i = 0; i < l->set.nfinding; i++)
        if (l->set.finding[i].item == x && shown(l, &l->set.finding[i])) {
            im_str_append(out, n++ ? ", " : "");
            json_finding(&l->set.finding[i], false, out);
        }
    im_str_append(out, "]}");
}

static void print_json(const lint *l, bool nccl_known, im_str *out)
{
    char version[16];
    size_t n = 0;
    im_str_printf(out, "{\"nccl\": \"%s\", \"nccl_known\": %s", im_env_version_text(l->version, version), nccl_known ? "true" : "false");
    json_text(out, "root", l->facts.root);
    im_str_append(out, ", \"variables\": [");
    for (size_t i = 0; i < l->set.n; i++) {
        im_str_append(out, i ? ",\n" : "\n");
        json_item(l, l->set.item[i], out);
    }
    im_str_append(out, "], \"findings\": [");
    for (size_t i = 0; i < l->set.nfinding; i++)
        if (!l->set.finding[i].item && shown(l, &l->set.finding[i])) {
            im_str_append(out, n++ ? ",\n" : "\n");
            json_finding(&l->set.finding[i], true, out);
        }
    im_str_append(out, "]}\n");
}

/* ---- the command -------------------------------------------------------------------------------------------- */

static im_status lint_all(im_cli *cli, const lint_options *o, const im_option_list *rest, bool dashes)
{
    lint l = {.cli = cli, .o = o};
    bool here;
    im_env_lint_options how = {.watchdog_s = o->watchdog};
    IM_TRY(im_cli_env_version(cli, o->nccl, &how.nccl));
    IM_TRY(im_env_facts_read(cli->ctx, cli->arena, o->root, &l.facts));
    l.prefix = l.conf = strcmp(l.facts.root, "/") ? l.facts.root : "";
    im_env_set_init(cli->ctx, cli->arena, &l.set);
    IM_TRY(read_all(&l, rest, dashes, &here));
    how.here = here || *l.prefix;
    im_env_lint(&l.set, &l.facts, &how);
    if (l.set.failed)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the findings");
    l.version = how.nccl ? how.nccl : l.facts.nccl ? l.facts.nccl : IM_ENV_NCCL_NEWEST;
    im_str out = {0};
    if (o->json)
        print_json(&l, how.nccl || l.facts.nccl, &out);
    else
        print_text(&l, how.nccl || l.facts.nccl, &out);
    fputs(im_str_text(&out), stdout);
    bool failed = out.failed;
    im_str_free(&out);
    if (failed)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the text");
    size_t faults = 0;
    for (size_t i = 0; i < l.set.nfinding; i++)
        faults += l.set.finding[i].verdict >= IM_ENV_WARN;
    return faults ? im_fail(cli->ctx, IM_ERR_CHECK, "%zu finding%s to look at (warn or fail)", faults, faults > 1 ? "s" : "") : IM_OK;
}

static int run_lint(im_cli *cli, int argc, char **argv)
{
    lint_options o;
    im_option_list rest = {0};
    bool dashes = false;
    for (int i = 0; i < argc; i++)
        dashes |= !strcmp(argv[i], "--");
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = lint_all(cli, &o, &rest, dashes);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_fabric_env_lint_command = {
    .name = "lint",
    .args = "[FILE|PID|-|--]...",
    .help = "Judge the variables that NCCL, UCX, Open MPI and libfabric are given.",
    .about = "FILE is an nccl.conf, a launch script (export, NAME=VALUE command, mpirun -x and --mca, -genv, srun --export, docker -e, #SBATCH), a "
             "Kubernetes "
             "or compose file, or an env file; a number is a process, - is standard input. Without one, or with --, the environment of this command "
             "is read. "
             "nccl.conf and Open MPI's parameter files of the machine are read too, and it is said which setting wins.\n\n"
             "Verdicts: fail (does not do what it says), warn (works against you), unknown (depends on what cannot be seen here), note, ok. Exit "
             "code 3: something "
             "is warn or fail.\n\nimece fabric env lint job.sh --nccl 2.21\nimece fabric env lint 12345\nimece fabric env lint --root bundle job.sh",
    .rows = lint_rows,
    .nrows = IM_COUNT_OF(lint_rows),
    .run = run_lint,
};
