/* Variables in YAML: containers' env lists, compose files, config maps, and the commands that stand in it. Read line by line, so that templates
 * and several documents in one file are no hindrance. */
#include "fabric/env.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    im_env_set *set;
    const char *file;
    im_env_layer layer;
    int line;
    /* an entry of a list that is being read: - name: X, value: "Y" */
    char name[256];
    size_t name_len;
    int name_line, dash; /* dash: column of its -; -1: none */
    const char *value;   /* NULL: none yet */
    bool plain_number;   /* not quoted, and no string to YAML */
    bool from;           /* valueFrom */
    const char *word[3]; /* an option of a launcher and what belongs to it */
    int words;
} reader;

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

/* A scalar at p; *next: behind it. *plain: it has no quotes. In the arena. */
static const char *scalar(reader *r, const char *p, const char *end, const char *stops, bool *plain, const char **next)
{
    im_str out = {0};
    p = skip_blanks(p, end);
    *plain = true;
    if (p < end && (*p == '"' || *p == '\'')) {
        char q = *p++;
        *plain = false;
        while (p < end && *p != q) {
            if (q == '"' && *p == '\\' && p + 1 < end)
                p++;
            im_str_append_n(&out, p++, 1);
        }
        p += p < end;
    } else {
        const char *from = p;
        while (p < end && !strchr(stops, *p) && !(*p == '#' && p > from && p[-1] == ' '))
            p++;
        const char *last = p;
        while (last > from && isspace((unsigned char)last[-1]))
            last--;
        im_str_append_n(&out, from, (size_t)(last - from));
    }
    *next = p;
    char *kept = im_arena_printf(r->set->arena, "%s", im_str_text(&out));
    if (!kept || out.failed)
        r->set->failed = true;
    im_str_free(&out);
    return kept ? kept : "";
}

/* What YAML reads as something else than a string. */
static bool not_string(const char *v)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "null", "~", "True", "False", "Yes", "No"};
    char *end;
    for (size_t i = 0; i < IM_COUNT_OF(words); i++)
        if (!strcmp(v, words[i]))
            return true;
    if (!*v)
        return true;
    strtod(v, &end);
    return !*end;
}

static void flush(reader *r)
{
    if (r->name_len && (r->value || r->from)) {
        im_env_item *x = im_env_add(r->set, r->name, r->name_len, r->value && !strstr(r->value, "{{") && !strstr(r->value, "$(") ? r->value : NULL,
                                    r->file, r->name_line, IM_ENV_CONTAINER, r->layer);
        if (x && r->plain_number) {
            im_env_finding *f =
                im_env_find_fault(r->set, IM_ENV_FAIL, "yaml-not-string", x,
                                  "value: %s is no string to YAML, and Kubernetes refuses the object: values of env are strings", r->value);
            if (f)
                f->fix = im_arena_printf(r->set->arena, "value: \"%s\"", r->value);
        }
    }
    r->name_len = 0;
    r->value = NULL;
    r->plain_number = r->from = false;
}

static bool key_is(const char *p, const char *end, const char *key, const char **behind)
{
    size_t n = strlen(key);
    if (end - p > 2 && (*p == '"' || *p == '\'') && (size_t)(end - p) > n + 2 && !memcmp(p + 1, key, n) && p[n + 1] == *p) {
        p += 2;
    } else if ((size_t)(end - p) <= n || memcmp(p, key, n) != 0) {
        return false;
    }
    p = skip_blanks(p + n, end);
    if (p >= end || *p != ':')
        return false;
    *behind = p + 1;
    return true;
}

static void set_name(reader *r, const char *name)
{
    size_t n = strlen(name);
    if (n < sizeof r->name) {
        memcpy(r->name, name, n + 1);
        r->name_len = n;
        r->name_line = r->line;
    }
}

/* One field of an entry; true when it was name, value or valueFrom. */
static bool field(reader *r, const char *p, const char *end, const char *stops, const char **next)
{
    const char *behind;
    bool plain;
    if (key_is(p, end, "name", &behind)) {
        set_name(r, scalar(r, behind, end, stops, &plain, next));
        return true;
    }
    if (key_is(p, end, "value", &behind)) {
        r->value = scalar(r, behind, end, stops, &plain, next);
        r->plain_number = plain && not_string(r->value) && !strstr(r->value, "{{");
        return true;
    }
    if (key_is(p, end, "valueFrom", &behind)) {
        r->from = true;
        *next = behind;
        return true;
    }
    return false;
}

/* {name: X, value: "Y"} */
static void flow(reader *r, const char *p, const char *end)
{
    while (p < end) {
        const char *next = p;
        p = skip_blanks(p, end);
        if (p < end && (*p == '{' || *p == ',')) {
            p++;
            continue;
        }
        if (p >= end || *p == '}' || !field(r, p, end, ",}", &next) || next <= p)
            break;
        p = next;
    }
    flush(r);
}

static bool is_variable(const char *p, size_t n)
{
    char own[256];
    if (!n || n >= sizeof own)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && p[i] != '_')
            return false;
    memcpy(own, p, n);
    own[n] = '\0';
    return im_env_is_ours(own) && n > 4;
}

/* NAME: VALUE of a mapping; - NAME=VALUE of a list */
static bool direct(reader *r, const char *p, const char *end)
{
    char quote = p < end && (*p == '"' || *p == '\'') ? *p : 0;
    const char *from = p + (quote != 0), *q = from, *next;
    bool plain;
    while (q < end && (isalnum((unsigned char)*q) || *q == '_'))
        q++;
    if (!is_variable(from, (size_t)(q - from)) || q >= end)
        return false;
    if (*q == '=') {
        char *value = im_arena_printf(r->set->arena, "%.*s", (int)(end - q - 1), q + 1);
        size_t n = value ? strlen(value) : 0;
        while (n && isspace((unsigned char)value[n - 1]))
            value[--n] = '\0';
        if (quote && n && value[n - 1] == quote)
            value[--n] = '\0';
        if (!quote && value && strpbrk(value, " \\"))
            return false; /* a command */
        im_env_add(r->set, from, (size_t)(q - from), value, r->file, r->line, IM_ENV_CONTAINER, r->layer);
        return true;
    }
    const char *colon = q + (quote && *q == quote);
    if (colon >= end || *colon != ':')
        return false;
    const char *value = scalar(r, colon + 1, end, "", &plain, &next);
    if (strstr(value, "{{") || strstr(value, "${") || *value == '|' || *value == '>')
        value = NULL;
    im_env_add(r->set, from, (size_t)(q - from), value, r->file, r->line, IM_ENV_CONTAINER, r->layer);
    return true;
}

/* - --mca, - pml, - ob1: the words of a command, each on a line of its own. */
static bool sequence(reader *r, const char *p, const char *end)
{
    static const char *const options[] = {"--mca", "-mca", "--gmca", "-genv", "--prtemca"};
    bool plain;
    const char *next, *word = scalar(r, p, end, ",", &plain, &next);
    if (!r->words) {
        for (size_t i = 0; i < IM_COUNT_OF(options); i++)
            if (!strcmp(word, options[i])) {
                r->words = 1;
                r->word[0] = word;
                return true;
            }
        return false;
    }
    r->word[r->words++] = word;
    if (r->words == 3) {
        char *line = im_arena_printf(r->set->arena, "x %s %s '%s'", r->word[0], r->word[1], r->word[2]);
        if (line && !strchr(r->word[1], ' ') && !strchr(r->word[2], '\''))
            im_env_read_shell(r->set, r->file, r->layer, line, strlen(line), r->line);
        r->words = 0;
    }
    return true;
}

static void yaml_line(reader *r, const char *p, const char *end)
{
    const char *begin = p, *next;
    while (end > p && (end[-1] == '\r' || end[-1] == ' '))
        end--;
    p = skip_blanks(p, end);
    if (p == end || *p == '#')
        return;
    int column = (int)(p - begin);
    if (*p == '-' && (p + 1 == end || p[1] == ' ')) {
        flush(r);
        r->dash = column;
        p = skip_blanks(p + 1, end);
    } else if (r->dash >= 0 && column <= r->dash) {
        flush(r);
        r->dash = -1;
    }
    if (p < end && *p == '{' && p + 1 == end) { /* JSON: an object over several lines */
        flush(r);
        r->dash = column;
        return;
    }
    if (p < end && *p == '{') {
        flow(r, p, end);
        return;
    }
    if (p < end && *p == '}') {
        flush(r);
        r->dash = -1;
        return;
    }
    if (sequence(r, p, end))
        return;
    if (r->dash >= 0 && field(r, p, end, "", &next))
        return;
    if (direct(r, p, end))
        return;
    static const char *const signs[] = {"NCCL_", "UCX_", "OMPI_MCA_", "mca ", "FI_PROVIDER"};
    char *text = im_arena_printf(r->set->arena, "%.*s", (int)(end - p), p);
    for (size_t i = 0; text && i < IM_COUNT_OF(signs); i++)
        if (strstr(text, signs[i])) {
            /* ["bash", "-c", "export ..."]: brackets and commas part words */
            for (char *c = text; *c; c++)
                if (*c == '[' || *c == ']' || (*c == ',' && (c[1] == ' ' || c[1] == '"')))
                    *c = ' ';
            im_env_read_shell(r->set, r->file, r->layer, text, strlen(text), r->line);
            return;
        }
}

void im_env_read_yaml(im_env_set *s, const char *name, im_env_layer layer, const char *text, size_t len)
{
    reader r = {.set = s, .file = name, .layer = layer, .dash = -1};
    for (size_t at = 0; at < len && !s->failed;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - (text + at)) : len - at;
        r.line++;
        yaml_line(&r, text + at, text + at + n);
        at += n + (nl != NULL);
    }
    flush(&r);
}
