/* The words of a shell script: quotes, comments, continued lines, $NAME and ${NAME:-word}. What a command would print is not known. */
#include "fabric/env_shell.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { VARS_MOST = 512, NEST_MOST = 8, VALUE_MOST = 4096, WORD_MOST = 1 << 16, FAR = 4096 };

const char *im_shell_get(const im_shell *sh, const char *name, size_t n)
{
    for (const im_shell_var *v = sh->vars; v; v = v->next)
        if (strlen(v->name) == n && !memcmp(v->name, name, n))
            return v->value;
    return NULL;
}

void im_shell_put(im_shell *sh, const char *name, size_t n, const char *value)
{
    if (value && (strchr(value, IM_SHELL_UNKNOWN) || strlen(value) > VALUE_MOST)) /* values that double at each line end here */
        value = NULL;
    for (im_shell_var *v = sh->vars; v; v = v->next)
        if (strlen(v->name) == n && !memcmp(v->name, name, n)) {
            v->value = value ? im_arena_strdup(sh->set->arena, value) : NULL;
            return;
        }
    if (sh->nvars++ >= VARS_MOST)
        return;
    im_shell_var *v = IM_ARENA_NEW(sh->set->arena, im_shell_var, 1);
    if (!v)
        return;
    v->name = im_arena_printf(sh->set->arena, "%.*s", (int)n, name);
    v->value = value ? im_arena_strdup(sh->set->arena, value) : NULL;
    v->next = sh->vars;
    if (v->name)
        sh->vars = v;
}

/* ---- expansions ------------------------------------------------------------------------------------ */

/* The place of the bracket that closes the one before p[0], or NULL. */
static const char *closing(const char *p, const char *end, char open, char close)
{
    int depth = 1;
    for (; p < end; p++) {
        if (*p == '\\' && p + 1 < end)
            p++;
        else if (*p == open)
            depth++;
        else if (*p == close && --depth == 0)
            return p;
    }
    return NULL;
}

static size_t name_length(const char *p, const char *end)
{
    size_t n = 0;
    while (p + n < end && (isalnum((unsigned char)p[n]) || p[n] == '_'))
        n++;
    return n && !isdigit((unsigned char)*p) ? n : 0;
}

static void unknown(im_str *out)
{
    im_str_append_n(out, (char[]){IM_SHELL_UNKNOWN}, 1);
}

static size_t expand(im_shell *sh, const char *p, const char *end, int depth, im_str *out);

/* The word behind ${NAME:- */
static void expand_text(im_shell *sh, const char *p, const char *end, int depth, im_str *out)
{
    while (p < end) {
        if (*p == '$') {
            p += expand(sh, p, end, depth + 1, out);
        } else if (*p == '\\' && p + 1 < end) {
            im_str_append_n(out, p + 1, 1);
            p += 2;
        } else {
            if (*p != '"' && *p != '\'')
                im_str_append_n(out, p, 1);
            p++;
        }
    }
}

/* ${...}: inside it is p to end */
static void expand_braces(im_shell *sh, const char *p, const char *end, int depth, im_str *out)
{
    size_t n = name_length(p, end);
    const char *value = n ? im_shell_get(sh, p, n) : NULL;
    const char *rest = p + n;
    bool colon = rest < end && *rest == ':';
    rest += colon;
    if (!n || depth > NEST_MOST) {
        unknown(out);
    } else if (p + n == end) {
        value ? im_str_append(out, value) : unknown(out);
    } else if (rest < end && (*rest == '-' || *rest == '=')) {
        if (value && (*value || !colon))
            im_str_append(out, value);
        else
            expand_text(sh, rest + 1, end, depth, out);
    } else {
        unknown(out); /* ${X%...} and its like */
    }
}

/* p[0] is $: appends what it stands for, returns how many characters that took. */
static size_t expand(im_shell *sh, const char *p, const char *end, int depth, im_str *out)
{
    if (out->len > WORD_MOST)
        return 1; /* no variable of ours is that long */
    if (p + 1 < end && p[1] == '{' && !sh->no_brace) {
        const char *close = closing(p + 2, end, '{', '}');
        if (close) {
            expand_braces(sh, p + 2, close, depth, out);
            return (size_t)(close - p) + 1;
        }
        sh->no_brace = end == sh->text + sh->len || end - p > FAR;
    }
    if (p + 1 < end && p[1] == '(' && !sh->no_paren) {
        const char *close = closing(p + 2, end, '(', ')');
        if (close) {
            unknown(out);
            return (size_t)(close - p) + 1;
        }
        sh->no_paren = end == sh->text + sh->len || end - p > FAR;
    }
    size_t n = name_length(p + 1, end);
    if (n) {
        const char *value = im_shell_get(sh, p + 1, n);
        value ? im_str_append(out, value) : unknown(out);
        return n + 1;
    }
    if (p + 1 < end && strchr("@*#?$!-0123456789", p[1])) {
        unknown(out);
        return 2;
    }
    im_str_append_n(out, "$", 1);
    return 1;
}

/* ---- words -------------------------------------------------------------------------------------------- */

static void count_lines(im_shell *sh, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        sh->line += sh->text[i] == '\n';
}

/* At a quote: appends what it encloses, or the quote itself when nothing closes it. */
static void single_quoted(im_shell *sh, im_str *out)
{
    const char *p = sh->text + sh->at + 1, *end = sh->text + sh->len;
    const char *close = sh->no_single ? NULL : memchr(p, '\'', (size_t)(end - p));
    if (!close) {
        sh->no_single = true;
        im_str_append_n(out, "'", 1);
        sh->at++;
        return;
    }
    im_str_append_n(out, p, (size_t)(close - p));
    size_t next = (size_t)(close - sh->text) + 1;
    count_lines(sh, sh->at, next);
    sh->at = next;
}

static void double_quoted(im_shell *sh, im_str *out)
{
    const char *p = sh->text + sh->at + 1, *end = sh->text + sh->len, *close = p;
    while (!sh->no_double && close < end && *close != '"')
        close += *close == '\\' && close + 1 < end ? 2 : 1;
    if (sh->no_double || close >= end) {
        sh->no_double = true;
        im_str_append_n(out, "\"", 1);
        sh->at++;
        return;
    }
    while (p < close) {
        if (*p == '$') {
            p += expand(sh, p, close, 0, out);
        } else if (*p == '`') {
            const char *tick = memchr(p + 1, '`', (size_t)(close - p - 1));
            unknown(out);
            p = tick ? tick + 1 : close;
        } else if (*p == '\\' && p + 1 < close && strchr("\\\"$`\n", p[1])) {
            if (p[1] != '\n')
                im_str_append_n(out, p + 1, 1);
            p += 2;
        } else {
            im_str_append_n(out, p++, 1);
        }
    }
    size_t next = (size_t)(close - sh->text) + 1;
    count_lines(sh, sh->at, next);
    sh->at = next;
}

static bool ends_word(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')' || c == '<' || c == '>';
}

/* One piece of a word that is not a plain character. False: the character is plain. */
static bool special(im_shell *sh, im_str *out)
{
    const char *end = sh->text + sh->len;
    char c = sh->text[sh->at];
    if (c == '\'') {
        single_quoted(sh, out);
    } else if (c == '"') {
        double_quoted(sh, out);
    } else if (c == '$') {
        size_t n = expand(sh, sh->text + sh->at, end, 0, out);
        count_lines(sh, sh->at, sh->at + n);
        sh->at += n;
    } else if (c == '`' && !sh->no_tick) {
        const char *tick = memchr(sh->text + sh->at + 1, '`', sh->len - sh->at - 1);
        sh->no_tick = !tick;
        unknown(out);
        size_t next = tick ? (size_t)(tick - sh->text) + 1 : sh->at + 1;
        count_lines(sh, sh->at, next);
        sh->at = next;
    } else if (c == '\\' && sh->at + 1 < sh->len) {
        bool crlf = sh->text[sh->at + 1] == '\r' && sh->at + 2 < sh->len && sh->text[sh->at + 2] == '\n';
        if (crlf)
            sh->at++;
        if (sh->text[sh->at + 1] == '\n')
            sh->line++;
        else
            im_str_append_n(out, sh->text + sh->at + 1, 1);
        sh->at += 2;
    } else {
        return false;
    }
    return true;
}

/* << and its delimiter: its body is told by sh->heredoc. Other redirections: their target is a word like any other. */
static void redirection(im_shell *sh)
{
    size_t at = sh->at;
    while (at < sh->len && (sh->text[at] == '<' || sh->text[at] == '>'))
        at++;
    bool here = at - sh->at == 2 && sh->text[sh->at] == '<' && sh->text[sh->at + 1] == '<';
    sh->at = at;
    if (!here)
        return;
    sh->heredoc_tabs = sh->at < sh->len && sh->text[sh->at] == '-';
    sh->at += sh->heredoc_tabs;
    while (sh->at < sh->len && (sh->text[sh->at] == ' ' || sh->text[sh->at] == '\t'))
        sh->at++;
    size_t from = sh->at;
    while (sh->at < sh->len && !ends_word(sh->text[sh->at]))
        sh->at++;
    const char *p = sh->text + from;
    size_t n = sh->at - from;
    if (n && *p == '\\')
        p++, n--;
    if (n > 2 && (*p == '\'' || *p == '"') && p[n - 1] == *p)
        p++, n -= 2;
    sh->heredoc = n && n < 200 ? im_arena_printf(sh->set->arena, "%.*s", (int)n, p) : NULL;
}

static char *next_word(im_shell *sh)
{
    im_str out = {0};
    bool any = false;
    while (sh->at < sh->len && !ends_word(sh->text[sh->at])) {
        any = true;
        if (!special(sh, &out)) {
            char c = sh->text[sh->at++];
            if (c) /* no shell keeps a NUL */
                im_str_append_n(&out, &c, 1);
        }
    }
    char *word = any ? im_arena_printf(sh->set->arena, "%s", im_str_text(&out)) : NULL;
    if (out.failed || (any && !word))
        sh->set->failed = true;
    im_str_free(&out);
    return word;
}

bool im_shell_command(im_shell *sh, im_shell_word *word, size_t *n)
{
    *n = 0;
    if (sh->at >= sh->len || sh->set->failed)
        return false;
    while (sh->at < sh->len) {
        char c = sh->text[sh->at];
        if (c == ' ' || c == '\t' || c == '\r') {
            sh->at++;
        } else if (c == '#') {
            const char *nl = memchr(sh->text + sh->at, '\n', sh->len - sh->at);
            sh->at = nl ? (size_t)(nl - sh->text) : sh->len;
        } else if (c == '<' || c == '>') {
            redirection(sh);
        } else if (c == '\\' && sh->at + 1 < sh->len && sh->text[sh->at + 1] == '\n') {
            sh->line++;
            sh->at += 2;
        } else if (ends_word(c)) {
            sh->at++;
            if (c == '\n')
                sh->line++;
            return true;
        } else {
            int line = sh->line;
            char *text = next_word(sh);
            if (text && *n < IM_SHELL_WORDS)
                word[(*n)++] = (im_shell_word){text, line};
        }
    }
    return true;
}
