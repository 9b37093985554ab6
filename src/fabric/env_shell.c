/* Variables in scripts: export, NAME=VALUE command, mpirun -x, --mca, -genv, srun --export, docker -e, ENV of a Dockerfile, here-documents. */
#include "fabric/env_shell.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void read_script(im_shell *sh);

/* Length of NAME before a =, or 0. */
static size_t assigned(const char *word)
{
    size_t n = 0;
    while (isalnum((unsigned char)word[n]) || word[n] == '_')
        n++;
    if (!n || isdigit((unsigned char)*word))
        return 0;
    return word[n] == '=' || (word[n] == '+' && word[n + 1] == '=') ? n : 0;
}

static const char *value_of(const char *word, size_t n)
{
    return word + n + (word[n] == '+') + 1;
}

static im_env_item *add(im_shell *sh, const char *name, size_t n, const char *value, int line, im_env_how how)
{
    if (value && strchr(value, IM_SHELL_UNKNOWN))
        value = NULL;
    return im_env_add(sh->set, name, n, value, sh->file, line, how, sh->layer);
}

/* A word that holds a command of its own: CMD="NCCL_DEBUG=INFO mpirun ...", bash -c "...", ARGS="-x NCCL_...". */
static bool holds_command(const char *text)
{
    static const char *const ours[] = {"NCCL_", "UCX_", "OMPI_MCA", "mca ", "FI_PROVIDER"};
    if (!strpbrk(text, " \t\n"))
        return false;
    for (size_t i = 0; i < IM_COUNT_OF(ours); i++)
        if (strstr(text, ours[i]))
            return true;
    return false;
}

static void read_within(im_shell *sh, const im_shell_word *w, const char *text)
{
    if (sh->depth >= IM_SHELL_DEPTH || !holds_command(text))
        return;
    im_shell in = *sh;
    in.text = text;
    in.len = strlen(text);
    in.at = 0;
    in.line = w->line;
    in.depth++;
    in.no_single = in.no_double = in.no_paren = in.no_brace = in.no_tick = false;
    in.heredoc = NULL;
    read_script(&in);
}

/* The shell's own variable, and, of ours, a setting. */
static void assign(im_shell *sh, const im_shell_word *w, size_t n, im_env_how how)
{
    const char *value = value_of(w->text, n);
    im_env_item *x = add(sh, w->text, n, value, w->line, how);
    if (x && how == IM_ENV_ASSIGN && sh->all_exported)
        x->exported = true;
    if (x && w->text[n] == '+')
        x->value = NULL;
    for (size_t i = 0; x && how == IM_ENV_ASSIGN && !x->exported && i + 1 < sh->set->n; i++) /* it was exported before: it still is */
        if (sh->set->item[i]->exported && sh->set->item[i]->file == x->file && !strcmp(sh->set->item[i]->name, x->name))
            x->exported = true;
    if (how != IM_ENV_INLINE)
        im_shell_put(sh, w->text, n, w->text[n] == '+' ? NULL : value);
    if (!x)
        read_within(sh, w, value);
}

/* export NAME: what was assigned before is exported. */
static void export_name(im_shell *sh, const im_shell_word *w)
{
    bool found = false;
    for (size_t i = 0; i < sh->set->n; i++) {
        im_env_item *x = sh->set->item[i];
        if (x->file == sh->file && !strcmp(x->name, w->text))
            found = x->exported = true;
    }
    if (!found)
        add(sh, w->text, strlen(w->text), NULL, w->line, IM_ENV_PASS);
}

static void unset_name(im_shell *sh, const char *name)
{
    im_env_set *s = sh->set;
    size_t kept = 0, told = 0;
    for (size_t i = 0; i < s->nfinding; i++) { /* what was found about it goes too */
        const im_env_item *x = s->finding[i].item;
        if (!x || x->layer != sh->layer || strcmp(x->name, name) != 0)
            s->finding[told++] = s->finding[i];
    }
    for (size_t i = 0; i < s->n; i++) {
        im_env_item *x = s->item[i];
        if (x->layer != sh->layer || strcmp(x->name, name) != 0)
            s->item[kept++] = x;
    }
    s->n = kept;
    s->nfinding = told;
    im_shell_put(sh, name, strlen(name), NULL);
}

/* ---- options of launchers ----------------------------------------------------------------------------- */

/* "NAME=VALUE" or "NAME" */
static void pair(im_shell *sh, const im_shell_word *w, const char *text, im_env_how how)
{
    size_t n = assigned(text);
    if (n)
        add(sh, text, n, value_of(text, n), w->line, how);
    else
        add(sh, text, strlen(text), NULL, w->line, IM_ENV_PASS);
}

static bool takes_commas(const char *name)
{
    const im_env_var *v = im_env_find(name);
    return v && (v->kind == IM_ENV_HCAS || v->kind == IM_ENV_INTERFACES || v->kind == IM_ENV_CHOICES || v->kind == IM_ENV_NAMES);
}

/* ALL,NAME=VALUE,NAME: commas part the list, also where a value has them */
static void export_list(im_shell *sh, const im_shell_word *w, const char *list)
{
    im_env_item *last = NULL;
    while (*list) {
        size_t n = strcspn(list, ",");
        char *one = im_arena_printf(sh->set->arena, "%.*s", (int)n, list);
        if (!one)
            return;
        size_t name = assigned(one);
        if (name) {
            last = add(sh, one, name, value_of(one, name), w->line, IM_ENV_SRUN);
        } else if (last && takes_commas(last->name) && strcmp(one, "ALL") != 0 && strcmp(one, "NONE") != 0 && *one) {
            im_env_finding *f =
                im_env_find_fault(sh->set, IM_ENV_FAIL, "export-comma", last,
                                  "--export is cut at each comma: the value ends before \"%s\", which is taken for a variable's name", one);
            if (f)
                f->fix = im_arena_printf(sh->set->arena, "export %s=... in the script, and --export=ALL", last->name);
            last = NULL;
        } else {
            add(sh, one, n, NULL, w->line, IM_ENV_PASS);
        }
        list += n + (list[n] == ',');
    }
}

static bool is_one(const char *word, const char *const *of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(word, of[i]))
            return true;
    return false;
}

/* word[i] is an option. Returns how many words behind it belong to it. */
static size_t option(im_shell *sh, const im_shell_word *word, size_t i, size_t n)
{
    static const char *const mca[] = {"--mca", "-mca", "--gmca", "-gmca", "--omca"}, *const prte[] = {"--prtemca", "--pmca"};
    static const char *const env[] = {"-genv", "--genv", "-env", "--env"};
    const char *o = word[i].text;
    size_t left = n - i - 1;
    const im_shell_word *next = left ? &word[i + 1] : NULL;
    if ((is_one(o, mca, IM_COUNT_OF(mca)) || is_one(o, prte, IM_COUNT_OF(prte))) && left >= 2) {
        char *name = im_arena_printf(sh->set->arena, "%s_MCA_%s", o[1] == 'p' || o[2] == 'p' ? "PRTE" : "OMPI", next->text);
        if (name)
            add(sh, name, strlen(name), word[i + 2].text, next->line, IM_ENV_MPIRUN);
        return 2;
    }
    if (!strcmp(o, "-x") && next) {
        pair(sh, next, next->text, IM_ENV_MPIRUN);
        return 1;
    }
    if (is_one(o, env, IM_COUNT_OF(env)) && next) {
        bool two = !assigned(next->text) && left >= 2 && (o[1] == 'g' || o[2] == 'g' || !strcmp(o, "-env"));
        if (two)
            add(sh, next->text, strlen(next->text), word[i + 2].text, next->line, IM_ENV_MPIRUN);
        else
            pair(sh, next, next->text, o[1] == 'g' || o[2] == 'g' ? IM_ENV_MPIRUN : IM_ENV_CONTAINER);
        return two ? 2 : 1;
    }
    if (!strcmp(o, "-e") && next && (assigned(next->text) || im_env_is_ours(next->text))) {
        pair(sh, next, next->text, IM_ENV_CONTAINER);
        return 1;
    }
    if (!strncmp(o, "--env=", 6))
        pair(sh, &word[i], o + 6, IM_ENV_CONTAINER);
    else if (!strncmp(o, "--export=", 9))
        export_list(sh, &word[i], o + 9);
    else if ((!strcmp(o, "--export") || !strcmp(o, "-v")) && next && (strchr(next->text, '=') || !strncmp(next->text, "ALL", 3)))
        return export_list(sh, next, next->text), 1;
    else if ((!strcmp(o, "-genvlist") || !strcmp(o, "-envlist")) && next)
        return export_list(sh, next, next->text), 1;
    else if (o[1] && (o[1] == 'x' || o[1] == 'e') && assigned(o + 2))
        pair(sh, &word[i], o + 2, o[1] == 'x' ? IM_ENV_MPIRUN : IM_ENV_CONTAINER);
    return 0;
}

/* ---- commands ------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* export, declare, set ...: true when the command was one of them. */
static bool builtin(im_shell *sh, const im_shell_word *word, size_t n)
{
    static const char *const declares[] = {"export", "declare", "typeset", "readonly", "local"};
    const char *cmd = word[0].text;
    if (is_one(cmd, declares, IM_COUNT_OF(declares))) {
        bool exports = !strcmp(cmd, "export");
        for (size_t i = 1; i < n; i++) {
            size_t name = assigned(word[i].text);
            if (word[i].text[0] == '-')
                exports = strchr(word[i].text, 'x') || (exports && !strchr(word[i].text, 'n'));
            else if (name)
                assign(sh, &word[i], name, exports ? IM_ENV_EXPORT : IM_ENV_ASSIGN);
            else if (exports)
                export_name(sh, &word[i]);
        }
        return true;
    }
    if ((!strcmp(cmd, "setenv") || !strcmp(cmd, "ENV")) && n >= 2) { /* csh and modules; a Dockerfile */
        if (!assigned(word[1].text)) {
            add(sh, word[1].text, strlen(word[1].text), n > 2 ? word[2].text : "", word[1].line, IM_ENV_EXPORT);
            return true;
        }
        for (size_t i = 1; i < n; i++)
            if (assigned(word[i].text))
                assign(sh, &word[i], assigned(word[i].text), IM_ENV_EXPORT);
        return true;
    }
    if (!strcmp(cmd, "unset") || !strcmp(cmd, "unsetenv")) {
        for (size_t i = 1; i < n; i++)
            unset_name(sh, word[i].text);
        return true;
    }
    if (!strcmp(cmd, "set") && n > 1) {
        const char *o = word[1].text, *name = n > 2 ? word[2].text : "";
        if (strchr(o, 'a') || (o[0] && o[1] == 'o' && !strcmp(name, "allexport")))
            sh->all_exported = *o == '-';
        return true;
    }
    static const char *const tell[] = {"echo", "printf", "grep", "egrep", "sed", "awk", "logger", "unalias", "alias", "test", "["};
    return is_one(base_name(cmd), tell, IM_COUNT_OF(tell)); /* what they say is not set */
}

/* os.environ["NAME"] = "VALUE" of Python: the shell's words of it are os.environ[NAME], = and VALUE. */
static bool python(im_shell *sh, const im_shell_word *word, size_t n)
{
    const char *at = n >= 1 ? strstr(word[0].text, "environ[") : NULL;
    const char *close = at ? strchr(at, ']') : NULL;
    if (!close)
        return false;
    at += strlen("environ[");
    if (close[1] == '=' && close[2] && close[2] != '=')
        add(sh, at, (size_t)(close - at), close + 2, word[0].line, IM_ENV_EXPORT);
    else if (!close[1] && n >= 2 && !strcmp(word[1].text, "="))
        add(sh, at, (size_t)(close - at), n == 3 ? word[2].text : NULL, word[0].line, IM_ENV_EXPORT);
    return true;
}

static void command(im_shell *sh, const im_shell_word *word, size_t n)
{
    if (python(sh, word, n))
        return;
    static const char *const lead[] = {"if", "then", "else", "elif", "do",  "while", "until",   "!",
                                       "{",  "}",    "time", "exec", "RUN", "CMD",   "command", "nohup"};
    size_t at = 0, first;
    while (at < n && is_one(word[at].text, lead, IM_COUNT_OF(lead)))
        at++;
    for (first = at; at < n && assigned(word[at].text); at++)
        ;
    bool alone = at == n;
    for (size_t i = first; i < at; i++)
        assign(sh, &word[i], assigned(word[i].text), alone ? IM_ENV_ASSIGN : IM_ENV_INLINE);
    if (alone || builtin(sh, word + at, n - at))
        return;
    for (size_t i = at; i < n; i++) {
        const char *text = word[i].text;
        size_t name = assigned(text);
        if (*text == '-')
            i += option(sh, word, i, n);
        else if (name)
            assign(sh, &word[i], name, IM_ENV_INLINE); /* env NAME=VALUE ..., ssh host NAME=VALUE ... */
        else
            read_within(sh, &word[i], text);
    }
}

/* #SBATCH --export=..., #PBS -v ... are comments to the shell */
static void directives(im_shell *sh, im_shell_word *word)
{
    int line = 1;
    for (size_t at = 0; at < sh->len;) {
        const char *p = sh->text + at, *nl = memchr(p, '\n', sh->len - at);
        size_t n = nl ? (size_t)(nl - p) : sh->len - at, words;
        bool slurm = n > 8 && !memcmp(p, "#SBATCH ", 8), pbs = n > 5 && !memcmp(p, "#PBS ", 5);
        if (slurm || pbs) {
            im_shell one = *sh;
            one.text = p + (slurm ? 8 : 5);
            one.len = n - (slurm ? 8 : 5);
            one.at = 0;
            one.line = line;
            while (im_shell_command(&one, word, &words))
                for (size_t i = 0; i < words; i++)
                    if (word[i].text[0] == '-')
                        i += option(&one, word, i, words);
        }
        at += n + 1;
        line++;
    }
}

/* The body of a here-document: a configuration file, YAML, or a script for another host. */
static void heredoc(im_shell *sh, bool conf)
{
    const char *p = sh->text + sh->at;
    size_t n = 0, stop = strlen(sh->heredoc), left = sh->len - sh->at;
    int first = sh->line, lines = 0;
    for (;;) {
        const char *line = p + n, *nl = n < left ? memchr(line, '\n', left - n) : NULL;
        size_t len = nl ? (size_t)(nl - line) : left - n, skip = 0;
        while (sh->heredoc_tabs && skip < len && line[skip] == '\t')
            skip++;
        size_t cr = len > skip && line[len - 1] == '\r';
        bool over = n >= left || (len - skip - cr == stop && !memcmp(line + skip, sh->heredoc, stop));
        if (over) {
            im_env_format format = conf ? IM_ENV_FORMAT_CONF : im_env_guess("", p, n);
            im_env_layer layer = conf ? IM_ENV_LAYER_SYSTEM : sh->layer;
            size_t before = sh->set->n, faults = sh->set->nfinding;
            if (format == IM_ENV_FORMAT_SHELL && sh->depth < IM_SHELL_DEPTH) {
                im_shell in = *sh;
                in.text = p, in.len = n, in.at = 0, in.depth++, in.heredoc = NULL;
                read_script(&in);
            } else if (format != IM_ENV_FORMAT_SHELL) {
                im_env_read_text(sh->set, sh->file, format, layer, p, n);
                for (size_t i = before; i < sh->set->n; i++)
                    sh->set->item[i]->line += first - 1;
                for (size_t i = faults; i < sh->set->nfinding; i++)
                    sh->set->finding[i].line += first - 1;
            }
            sh->at = nl ? sh->at + n + len + 1 : sh->len;
            sh->line = first + lines + 1;
            sh->heredoc = NULL;
            return;
        }
        n += len + (nl != NULL);
        lines++;
    }
}

static void read_script(im_shell *sh)
{
    im_shell_word *word = malloc(IM_SHELL_WORDS * sizeof *word);
    size_t n;
    if (!word) {
        sh->set->failed = true;
        return;
    }
    if (!sh->depth)
        directives(sh, word);
    bool conf = false;
    while (im_shell_command(sh, word, &n)) {
        for (size_t i = 0; i < n; i++)
            conf |= sh->heredoc && strstr(word[i].text, "nccl") && strstr(word[i].text, ".conf");
        if (n)
            command(sh, word, n);
        if (sh->heredoc && sh->at && sh->text[sh->at - 1] == '\n') {
            heredoc(sh, conf);
            conf = false;
        }
    }
    free(word);
}

void im_env_read_shell(im_env_set *s, const char *name, im_env_layer layer, const char *text, size_t len, int line)
{
    im_shell sh = {.set = s, .file = name, .layer = layer, .text = text, .len = len, .line = line};
    read_script(&sh);
}
