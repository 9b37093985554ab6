/* Patterns by PCRE2, compiled to machine code where it can.
 *
 * A pattern comes from a file that nobody vouches for: the steps of one attempt, the heap and the stack are bounded, and a pattern that
 * reaches a bound fails with that as its reason.
 */
#include "data/tok_parts.h"
#include "data/tok_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h> /* its version */

enum { MOST_STEPS = 10 * 1000 * 1000, MOST_HEAP_KIB = 256 << 10, STACK_FIRST = 64 << 10, STACK_MOST = 64 << 20, MOST_PATTERN = 64 << 10 };

struct im_tok_regex {
    pcre2_code *code;
    bool jit, looks_back;
    char *where;
};

struct im_tok_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static im_status compile(im_context *ctx, im_tok_regex *r, const im_str *text)
{
    pcre2_compile_context *how = pcre2_compile_context_create(NULL);
    if (!how)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a pattern", r->where);
    pcre2_set_newline(how, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(how, PCRE2_BSR_UNICODE);
    int error;
    PCRE2_SIZE at;
    r->code = pcre2_compile((PCRE2_SPTR)im_str_text(text), text->len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, how);
    pcre2_compile_context_free(how);
    if (!r->code) {
        unsigned char reason[160];
        pcre2_get_error_message(error, reason, sizeof reason);
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: the pattern \"%.200s\" is not one that PCRE2 takes: %s (at byte %zu)", r->where,
                       im_str_text(text), (char *)reason, (size_t)at);
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return IM_OK;
}

im_status im_tok_regex_compile(im_context *ctx, const char *where, const char *pattern, size_t len, im_tok_regex **out)
{
    im_tok_regex *r;
    im_str text = {0};
    if (len > MOST_PATTERN)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: a pattern of %zu bytes; at most %d", where, len, MOST_PATTERN);
    IM_TRY(im_alloc(ctx, 1, sizeof *r, (void **)&r));
    im_status status = IM_OK;
    r->where = strdup(where);
    if (!r->where) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory for a pattern");
        goto free_regex;
    }
    IM_TRY_GOTO(im_tok_syntax_translate(ctx, where, pattern, len, &text, &r->looks_back), free_regex);
    IM_TRY_GOTO(compile(ctx, r, &text), free_regex);
    im_str_free(&text);
    *out = r;
    return IM_OK;
free_regex:
    im_str_free(&text);
    im_tok_regex_free(r);
    return status;
}

void im_tok_regex_free(im_tok_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->where);
    free(r);
}

bool im_tok_regex_looks_back(const im_tok_regex *r)
{
    uint32_t behind = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    return r->looks_back || behind > 0;
}

im_status im_tok_match_create(im_context *ctx, im_tok_match **out)
{
    im_tok_match *m;
    IM_TRY(im_alloc(ctx, 1, sizeof *m, (void **)&m));
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL); /* NULL where there is no JIT */
    if (!m->data || !m->context) {
        im_tok_match_free(m);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to match patterns");
    }
    pcre2_set_match_limit(m->context, MOST_STEPS);
    pcre2_set_heap_limit(m->context, MOST_HEAP_KIB);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return IM_OK;
}

void im_tok_match_free(im_tok_match *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static im_status tell(im_context *ctx, const im_tok_regex *r, int error, size_t n, size_t at)
{
    unsigned char reason[160];
    if (error == PCRE2_ERROR_MATCHLIMIT || error == PCRE2_ERROR_DEPTHLIMIT || error == PCRE2_ERROR_HEAPLIMIT || error == PCRE2_ERROR_JIT_STACKLIMIT)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: its pattern goes back and forth without end in a piece of %zu bytes (at byte %zu): given up",
                       r->where, n, at);
    pcre2_get_error_message(error, reason, sizeof reason);
    return im_fail(ctx, IM_ERR_FORMAT, "%s: its pattern, in a piece of %zu bytes (at byte %zu): %s", r->where, n, at, (char *)reason);
}

im_status im_tok_regex_find(im_context *ctx, const im_tok_regex *r, im_tok_match *m, const char *s, size_t n, size_t at, bool more,
                            im_tok_found *found, size_t *start, size_t *end)
{
    int k = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)s, n, at, more ? PCRE2_PARTIAL_HARD : 0, m->data, m->context)
                   : pcre2_match(r->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | (more ? PCRE2_PARTIAL_HARD : 0), m->data, m->context);
    if (k == PCRE2_ERROR_PARTIAL) {
        *found = IM_TOK_OPEN;
        return IM_OK;
    }
    if (k == PCRE2_ERROR_NOMATCH) {
        *found = more ? IM_TOK_OPEN : IM_TOK_NONE;
        return IM_OK;
    }
    if (k < 0)
        return tell(ctx, r, k, n, at);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
    *start = v[0];
    *end = v[1];
    *found = IM_TOK_FOUND;
    return IM_OK;
}

void im_tok_unicode_versions(im_str *out)
{
    char version[64] = "", unicode[64] = "";
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof version)
        pcre2_config(PCRE2_CONFIG_VERSION, version);
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) <= (int)sizeof unicode)
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode);
    version[strcspn(version, " ")] = '\0';
    im_str_printf(out, "PCRE2 %s (Unicode %s), utf8proc %s (Unicode %s)", version, unicode, utf8proc_version(), utf8proc_unicode_version());
}
