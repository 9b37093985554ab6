/* Where variables are set: the set itself, nccl.conf, parameter files, the environment of a process, and which setting wins. */
#include "fabric/env.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void im_env_set_init(im_context *ctx, im_arena *a, im_env_set *out)
{
    *out = (im_env_set){.ctx = ctx, .arena = a};
}

static void *grow(im_env_set *s, const void *old, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap ? *cap * 2 : 32;
    void *to = im_arena_alloc(s->arena, more * size);
    if (!to) {
        s->failed = true;
        return NULL;
    }
    if (n)
        memcpy(to, old, n * size);
    *cap = more;
    return to;
}

/* NCLL_DEBUG, UXC_TLS: what stands behind the first _ is known, what stands before it is nearly right. */
static bool nearly_ours(const char *name)
{
    static const char *const right[] = {"NCCL", "UCX"};
    const char *under = strchr(name, '_');
    if (!under || under == name || under - name > 5 || strlen(name) > 100)
        return false;
    for (size_t i = 0; i < IM_COUNT_OF(right); i++) {
        char before[8] = {0}, whole[128];
        for (int k = 0; name + k < under; k++)
            before[k] = (char)toupper((unsigned char)name[k]);
        snprintf(whole, sizeof whole, "%s%s", right[i], under);
        for (char *p = whole; *p; p++)
            *p = (char)toupper((unsigned char)*p);
        if (im_edit_distance(before, right[i]) <= 1 && (im_env_find(whole) || im_env_find_history(whole)))
            return true;
    }
    return false;
}

static bool is_name(const char *s, size_t n)
{
    if (!n || n > 200 || isdigit((unsigned char)*s))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_')
            return false;
    return true;
}

im_env_item *im_env_add(im_env_set *s, const char *name, size_t name_len, const char *value, const char *file, int line, im_env_how how,
                        im_env_layer layer)
{
    char own[256];
    if (!is_name(name, name_len) || name_len >= sizeof own || s->n >= IM_ENV_MAX_ITEMS)
        return NULL;
    memcpy(own, name, name_len);
    own[name_len] = '\0';
    if (!im_env_is_ours(own) && !nearly_ours(own))
        return NULL;
    if (s->n == s->cap) {
        im_env_item **to = grow(s, s->item, s->n, &s->cap, sizeof *s->item);
        if (!to)
            return NULL;
        s->item = to;
    }
    im_env_item *x = IM_ARENA_NEW(s->arena, im_env_item, 1);
    const char *kept = im_arena_strdup(s->arena, own), *v = value ? im_arena_strdup(s->arena, value) : NULL;
    if (!x || !kept || (value && !v)) {
        s->failed = true;
        return NULL;
    }
    *x = (im_env_item){
        .name = kept, .value = v, .file = file, .line = line, .how = how, .layer = layer, .exported = how != IM_ENV_ASSIGN, .order = s->n};
    s->item[s->n++] = x;
    return x;
}

im_env_finding *im_env_find_fault(im_env_set *s, im_env_verdict verdict, const char *id, im_env_item *item, const char *fmt, ...)
{
    if (s->nfinding == s->finding_cap) {
        im_env_finding *to = grow(s, s->finding, s->nfinding, &s->finding_cap, sizeof *s->finding);
        if (!to)
            return NULL;
        s->finding = to;
    }
    im_str text = {0};
    va_list ap;
    va_start(ap, fmt);
    im_str_vprintf(&text, fmt, ap);
    va_end(ap);
    char *kept = im_arena_strdup(s->arena, im_str_text(&text));
    if (text.failed || !kept)
        s->failed = true;
    im_str_free(&text);
    im_env_finding *f = &s->finding[s->nfinding++];
    *f = (im_env_finding){.verdict = verdict, .id = id, .text = kept ? kept : "", .item = item};
    if (item) {
        f->name = item->name;
        f->file = item->file;
        f->line = item->line;
        if (verdict > item->verdict)
            item->verdict = verdict;
    }
    return f;
}

/* ---- nccl.conf -------------------------------------------------------------------------------------- */

enum { CONF_VALUE_MOST = 1023 };

static im_env_finding *conf_fault(im_env_set *s, im_env_verdict v, const char *id, im_env_item *x, const char *file, int line, const char *text)
{
    im_env_finding *f = im_env_find_fault(s, v, id, x, "%s", text);
    if (f && !x) {
        f->file = file;
        f->line = line;
    }
    return f;
}

/* What a line that NCCL misreads was meant to be: without `export`, blanks and quotes. */
static const char *meant(im_env_set *s, const char *name, size_t n, const char *value)
{
    while (n && isspace((unsigned char)*name))
        name++, n--;
    static const char *const lead[] = {"export", "set", "setenv"};
    for (size_t i = 0; i < IM_COUNT_OF(lead); i++) {
        size_t k = strlen(lead[i]);
        if (n > k && !strncmp(name, lead[i], k) && isspace((unsigned char)name[k])) {
            name += k, n -= k;
            while (n && isspace((unsigned char)*name))
                name++, n--;
        }
    }
    while (n && isspace((unsigned char)name[n - 1]))
        n--;
    while (isspace((unsigned char)*value))
        value++;
    size_t len = strlen(value);
    while (len && isspace((unsigned char)value[len - 1]))
        len--;
    if (len >= 2 && (*value == '"' || *value == '\'') && value[len - 1] == *value)
        value++, len -= 2;
    char own[256];
    if (!is_name(name, n) || n >= sizeof own)
        return NULL;
    snprintf(own, sizeof own, "%.*s", (int)n, name);
    return im_env_is_ours(own) ? im_arena_printf(s->arena, "%s=%.*s", own, (int)len, value) : NULL;
}

static void conf_value(im_env_set *s, im_env_item *x)
{
    const char *v = x->value;
    size_t n = strlen(v);
    if (*v == '"' || *v == '\'') {
        im_env_finding *f =
            conf_fault(s, IM_ENV_FAIL, "conf-quotes", x, NULL, 0, "quotes are not taken off in this file: they are a part of the value");
        if (f)
            f->fix = meant(s, x->name, strlen(x->name), v);
    } else if (n && isspace((unsigned char)v[n - 1])) {
        conf_fault(s, IM_ENV_WARN, "conf-blanks", x, NULL, 0,
                   v[n - 1] == '\r' ? "the line ends with CR LF: all but recent versions of NCCL keep the CR in the value"
                                    : "blanks at the end of the line are a part of the value");
    } else if (isspace((unsigned char)*v)) {
        conf_fault(s, IM_ENV_WARN, "conf-blanks", x, NULL, 0, "blanks behind the = are a part of the value");
    }
    if (strstr(v, " #") || strstr(v, "\t#"))
        conf_fault(s, IM_ENV_FAIL, "conf-comment", x, NULL, 0, "a comment stands only on a line of its own: this one is a part of the value");
    if (strchr(v, '$'))
        conf_fault(s, IM_ENV_FAIL, "conf-expansion", x, NULL, 0, "nothing is expanded in this file: the $ is a part of the value");
}

static void conf_line(im_env_set *s, const char *file, int line, im_env_layer layer, char *text)
{
    size_t n = strcspn(text, "=");
    if (*text == '#')
        return;
    if (!text[n]) { /* NCCL goes on without a word */
        const char *p = text + strspn(text, " \t\r");
        if (*p && *p != '#')
            conf_fault(s, IM_ENV_WARN, "conf-no-equals", NULL, file, line, "a line without = is skipped silently");
        else if (*p == '#')
            return;
        return;
    }
    char *value = text + n + 1;
    if (text[strspn(text, " \t")] == '#')
        return; /* a name that nobody reads */
    if (!is_name(text, n)) {
        const char *fix = meant(s, text, n, value);
        im_env_finding *f =
            conf_fault(s, fix ? IM_ENV_FAIL : IM_ENV_WARN, "conf-name", NULL, file, line,
                       fix ? "everything before the = is the name, blanks and `export` too: a variable of another name is set, and NCCL reads nothing"
                           : "this is no variable's name");
        if (f) {
            f->fix = fix;
            f->name = fix ? im_arena_printf(s->arena, "%.*s", (int)strcspn(fix, "="), fix) : NULL;
        }
        return;
    }
    bool cut = strlen(value) > CONF_VALUE_MOST;
    if (cut)
        value[CONF_VALUE_MOST] = '\0';
    im_env_item *x = im_env_add(s, text, n, value, file, line, IM_ENV_CONF, layer);
    if (!x)
        return;
    if (cut)
        conf_fault(s, IM_ENV_FAIL, "conf-long", x, NULL, 0, "the value is longer than the 1,023 characters that NCCL reads: it is cut");
    conf_value(s, x);
    if (layer != IM_ENV_LAYER_PROCESS && strncmp(x->name, "NCCL_", 5) != 0 && im_env_is_ours(x->name))
        conf_fault(s, IM_ENV_WARN, "conf-foreign", x, NULL, 0,
                   "NCCL sets this when it begins: MPI, UCX and PyTorch have read their variables by then. Set it in the job's environment");
}

static void read_conf(im_env_set *s, const char *file, im_env_layer layer, const char *text, size_t len)
{
    int line = 0;
    for (size_t at = 0; at < len && !s->failed;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - (text + at)) : len - at;
        char *own = im_arena_alloc(s->arena, n + 1);
        if (!own) {
            s->failed = true;
            return;
        }
        memcpy(own, text + at, n); /* a NUL ends the line, as it does for NCCL */
        conf_line(s, file, ++line, layer, own);
        at += n + (nl != NULL);
    }
}

/* ---- openmpi-mca-params.conf, ucx.conf: key = value ------------------------------------------------------ */

static void read_params(im_env_set *s, const char *file, const char *text, size_t len)
{
    int line = 0;
    for (size_t at = 0; at < len && !s->failed;) {
        const char *nl = memchr(text + at, '\n', len - at), *p = text + at;
        size_t n = nl ? (size_t)(nl - p) : len - at;
        const char *eq = memchr(p, '=', n), *end = p + n;
        line++;
        at += n + (nl != NULL);
        while (p < end && isspace((unsigned char)*p))
            p++;
        if (p == end || *p == '#' || *p == ';' || *p == '[' || !eq || eq < p)
            continue;
        const char *stop = eq, *value = eq + 1;
        while (stop > p && isspace((unsigned char)stop[-1]))
            stop--;
        while (value < end && isspace((unsigned char)*value))
            value++;
        while (end > value && isspace((unsigned char)end[-1]))
            end--;
        bool whole = (size_t)(stop - p) > 4 && (!strncmp(p, "UCX_", 4) || !strncmp(p, "OMPI", 4) || !strncmp(p, "NCCL", 4));
        char *name = im_arena_printf(s->arena, "%s%.*s", whole ? "" : "OMPI_MCA_", (int)(stop - p), p);
        char *v = im_arena_printf(s->arena, "%.*s", (int)(end - value), value);
        if (name && v)
            im_env_add(s, name, strlen(name), v, file, line, IM_ENV_CONF, IM_ENV_LAYER_PARAMS);
        else
            s->failed = true;
    }
}

/* ---- environments ------------------------------------------------------------------------------------------ */

static void add_pair(im_env_set *s, const char *file, const char *pair)
{
    const char *eq = strchr(pair, '=');
    if (eq)
        im_env_add(s, pair, (size_t)(eq - pair), eq + 1, file, 0, IM_ENV_ENVIRON, IM_ENV_LAYER_PROCESS);
}

void im_env_read_environ(im_env_set *s, const char *name, char *const *environ)
{
    for (; environ && *environ; environ++)
        add_pair(s, name, *environ);
}

static void read_environ_file(im_env_set *s, const char *file, const char *text, size_t len)
{
    for (size_t at = 0; at < len && !s->failed;) {
        size_t n = strnlen(text + at, len - at);
        char *pair = im_arena_printf(s->arena, "%.*s", (int)(n < IM_ENV_MAX_FILE ? n : IM_ENV_MAX_FILE), text + at);
        if (!pair)
            s->failed = true;
        else
            add_pair(s, file, pair);
        at += n + 1;
    }
}

/* ---- formats ------------------------------------------------------------------------------------------------- */

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), k = strlen(with);
    return n >= k && !strcmp(s + n - k, with);
}

/* Of the first lines: how many are NAME=VALUE or comments, and does YAML show? */
static im_env_format guess_lines(const char *text, size_t len)
{
    int pairs = 0, others = 0, yaml = 0, shell = 0;
    for (size_t at = 0; at < len && pairs + others < 2000;) {
        const char *nl = memchr(text + at, '\n', len - at), *p = text + at;
        size_t n = nl ? (size_t)(nl - p) : len - at;
        at += n + (nl != NULL);
        size_t lead = 0;
        while (lead < n && (p[lead] == ' ' || p[lead] == '\t'))
            lead++;
        p += lead;
        n -= lead;
        if (!n || *p == '#' || *p == '\r')
            continue;
        const char *eq = memchr(p, '=', n);
        if (!strncmp(p, "apiVersion:", n < 11 ? n : 11) || !strncmp(p, "- name:", n < 7 ? n : 7) || !strncmp(p, "services:", n < 9 ? n : 9) ||
            !strncmp(p, "- {name", n < 7 ? n : 7) || !strncmp(p, "kind:", n < 5 ? n : 5) || !strncmp(p, "env:", n < 4 ? n : 4))
            yaml++;
        if (n > 7 && !strncmp(p, "export ", 7) && pairs == 0)
            shell++;
        if (n > 1 && p[n - 1] == '\\')
            shell++;
        if (eq && is_name(p, (size_t)(eq - p)))
            pairs++;
        else
            others++;
    }
    if (yaml)
        return IM_ENV_FORMAT_YAML;
    return pairs && !others && !shell ? IM_ENV_FORMAT_CONF : IM_ENV_FORMAT_SHELL;
}

im_env_format im_env_guess(const char *name, const char *text, size_t len)
{
    const char *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    if (!strcmp(base, "environ") && strstr(name, "proc"))
        return IM_ENV_FORMAT_ENVIRON;
    if (strstr(base, "nccl") && ends(base, ".conf"))
        return IM_ENV_FORMAT_CONF;
    if (!strcmp(base, "ucx.conf") || strstr(base, "mca-params"))
        return IM_ENV_FORMAT_PARAMS;
    if (ends(base, ".env") || !strcmp(base, ".env"))
        return IM_ENV_FORMAT_CONF;
    if (ends(base, ".yaml") || ends(base, ".yml") || ends(base, ".json"))
        return IM_ENV_FORMAT_YAML;
    if (ends(base, ".sh") || ends(base, ".slurm") || ends(base, ".sbatch") || (len > 2 && !memcmp(text, "#!", 2)))
        return IM_ENV_FORMAT_SHELL;
    const char *zero = len ? memchr(text, '\0', len) : NULL;
    if (zero && memchr(text, '=', (size_t)(zero - text)) && !memchr(text, '\n', (size_t)(zero - text)))
        return IM_ENV_FORMAT_ENVIRON;
    return guess_lines(text, len);
}

void im_env_read_text(im_env_set *s, const char *name, im_env_format format, im_env_layer layer, const char *text, size_t len)
{
    switch (format == IM_ENV_FORMAT_AUTO ? im_env_guess(name, text, len) : format) {
    case IM_ENV_FORMAT_CONF: read_conf(s, name, layer, text, len); break;
    case IM_ENV_FORMAT_PARAMS: read_params(s, name, text, len); break;
    case IM_ENV_FORMAT_ENVIRON: read_environ_file(s, name, text, len); break;
    case IM_ENV_FORMAT_YAML: im_env_read_yaml(s, name, layer, text, len); break;
    default: im_env_read_shell(s, name, layer, text, len, 1); break;
    }
}

im_status im_env_read_file(im_env_set *s, const char *path, const char *shown, im_env_format format, im_env_layer layer)
{
    char *text;
    size_t len;
    IM_TRY(im_file_read(s->ctx, path, IM_ENV_MAX_FILE, &text, &len));
    im_env_read_text(s, shown, format, layer, text, len);
    free(text);
    return s->failed ? im_fail(s->ctx, IM_ERR_NOMEM, "%s: no memory for its variables", path) : IM_OK;
}

/* ---- who wins ----------------------------------------------------------------------------------------------------- */

/* Of two settings of one name, a stands before b. */
static bool second_wins(const im_env_item *a, const im_env_item *b)
{
    if (a->layer != b->layer)
        return b->layer < a->layer;
    if (!a->exported || !a->value)
        return b->exported; /* handed on, or not exported: anything that sets it is more */
    if (!b->exported || (!b->value && b->how == IM_ENV_PASS))
        return false;
    return a->how != IM_ENV_CONF || a->layer == IM_ENV_LAYER_PARAMS; /* in nccl.conf the first line stays */
}

static int by_name(const void *a, const void *b)
{
    const im_env_item *x = *(im_env_item *const *)a, *y = *(im_env_item *const *)b;
    int names = strcmp(x->name, y->name);
    return names ? names : (x->order > y->order) - (x->order < y->order);
}

void im_env_resolve(im_env_set *s)
{
    im_env_item **sorted = s->n ? IM_ARENA_NEW(s->arena, im_env_item *, s->n) : NULL;
    if (!sorted)
        return;
    memcpy(sorted, s->item, s->n * sizeof *sorted);
    qsort(sorted, s->n, sizeof *sorted, by_name);
    for (size_t i = 0, end; i < s->n; i = end) {
        im_env_item *best = sorted[i];
        for (end = i + 1; end < s->n && !strcmp(sorted[i]->name, sorted[end]->name); end++)
            if (second_wins(best, sorted[end]))
                best = sorted[end];
        for (size_t k = i; k < end; k++)
            sorted[k]->by = sorted[k] == best ? NULL : best;
    }
}

im_env_item *im_env_used(const im_env_set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!s->item[i]->by && !strcmp(s->item[i]->name, name))
            return s->item[i];
    return NULL;
}
