/* Oniguruma's syntax (Ruby's) in PCRE2's.
 *
 * The two agree on alternatives, groups and quantifiers. They differ in what a letter behind a backslash means (\h, \v, \s), in sets of sets
 * ([a[bc]], [a&&b]), in lines (^ and $ are of every line there; (?m) there is (?s) here) and in what {n}+ and {n}? mean. A set is written with
 * code points; one that PCRE2 has no form for becomes a group that takes one character: (?:[a]|[^b]) and (?:(?=[a])[b]).
 */
#include "data/tok_syntax.h"

#include "data/tok_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64 };

/* White_Space; PCRE2's own \s has U+180E too. */
#define SPACES "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES                                                                                                                             \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}" \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORDS_ALONE WORDS "\\xb2\\xb3\\xb9\\xbc-\\xbe" /* outside of sets Oniguruma's table of Latin-1 counts these numbers too */
#define HEX "0-9a-fA-F"

typedef struct reader {
    im_context *ctx;
    const char *where, *s;
    size_t n, at;
    im_str *out;
    bool looks_back;
    int depth;
} reader;

static im_status refuse(const reader *r, size_t at, const char *what)
{
    int n = (int)(r->n < 200 ? r->n : 200);
    return im_fail(r->ctx, IM_ERR_UNSUPPORTED, "%s: the pattern \"%.*s\" has %s at byte %zu, which is not supported", r->where, n, r->s, what, at);
}

static bool next_is(const reader *r, const char *text)
{
    size_t k = strlen(text);
    return r->n - r->at >= k && !memcmp(r->s + r->at, text, k);
}

static void put_code(im_str *out, uint32_t c)
{
    im_str_printf(out, "\\x{%x}", c);
}

/* ---- escapes ------------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static im_status read_hex(reader *r, size_t start, size_t most, uint32_t *out)
{
    size_t k = 0;
    *out = 0;
    while (k < most && r->at < r->n && hex_digit(r->s[r->at]) >= 0) {
        *out = *out << 4 | (uint32_t)hex_digit(r->s[r->at++]);
        k++;
    }
    if (!k || *out > 0x10FFFF || (*out >= 0xD800 && *out < 0xE000))
        return refuse(r, start, "a number of no character");
    return IM_OK;
}

/* Behind \x or \u. */
static im_status read_code(reader *r, size_t start, bool u, uint32_t *out)
{
    if (!u && r->at < r->n && r->s[r->at] == '{') {
        r->at++;
        IM_TRY(read_hex(r, start, 8, out));
        if (r->at == r->n || r->s[r->at++] != '}')
            return refuse(r, start, "\\x{ without its end");
        return IM_OK;
    }
    size_t at = r->at;
    IM_TRY(read_hex(r, start, u ? 4 : 2, out));
    if (u && r->at - at != 4)
        return refuse(r, start, "\\u without four digits");
    return !u && *out > 0x7F ? refuse(r, start, "a byte above \\x7f") : IM_OK;
}

/* A character with a letter for its name: \n. */
static bool control(char c, uint32_t *out)
{
    static const char name[] = "ntrfvae";
    static const unsigned char code[] = {10, 9, 13, 12, 11, 7, 27};
    const char *p = c ? strchr(name, c) : NULL;
    if (p)
        *out = code[p - name];
    return p != NULL;
}

typedef struct property {
    const char *name, *items, *rest; /* rest: the items of what does not have it; NULL: write it with ^ outside of a set only */
} property;

/* By name without case, spaces, - and _. */
static const property properties[] = {
    {"letter", "\\p{L}", "\\P{L}"},
    {"mark", "\\p{M}", "\\P{M}"},
    {"number", "\\p{N}", "\\P{N}"},
    {"punctuation", "\\p{P}", "\\P{P}"},
    {"symbol", "\\p{S}", "\\P{S}"},
    {"separator", "\\p{Z}", "\\P{Z}"},
    {"other", "\\p{C}", "\\P{C}"},
    {"digit", "\\p{Nd}", "\\P{Nd}"},
    {"space", SPACES, NO_SPACES},
    {"whitespace", SPACES, NO_SPACES},
    {"word", WORDS, NULL},
    {"alnum", "\\p{Alphabetic}\\p{Nd}", NULL},
    {"alpha", "\\p{Alphabetic}", "\\P{Alphabetic}"},
    {"upper", "\\p{Uppercase}", "\\P{Uppercase}"},
    {"lower", "\\p{Lowercase}", "\\P{Lowercase}"},
    {"cntrl", "\\p{Cc}", "\\P{Cc}"},
    {"xdigit", HEX, NULL},
    {"ascii", "\\x00-\\x7f", "\\x80-\\x{10ffff}"},
    {"any", "\\x00-\\x{10ffff}", NULL},
};

/* Items of a set for what stands behind \p, and of its opposite. `buf` is theirs. */
static im_status read_property(reader *r, size_t start, bool negated, bool *flip, property *out, char buf[2][96])
{
    char name[64];
    size_t k = 0;
    *flip = negated;
    if (r->at == r->n || r->s[r->at++] != '{')
        return refuse(r, start, "\\p without {");
    if (r->at < r->n && r->s[r->at] == '^') {
        *flip = !*flip;
        r->at++;
    }
    size_t from = r->at;
    for (; r->at < r->n && r->s[r->at] != '}'; r->at++) {
        char c = r->s[r->at];
        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) || k + 1 >= sizeof name)
            return refuse(r, start, "a property with this name");
        name[k++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    if (r->at == r->n || !k)
        return refuse(r, start, "\\p{ without its end");
    name[k] = '\0';
    int length = (int)(r->at - from);
    r->at++;
    for (size_t i = 0; i < IM_COUNT_OF(properties); i++)
        if (!strcmp(properties[i].name, name)) {
            *out = properties[i];
            return IM_OK;
        }
    if (k <= 2 && strchr("lmnpszc", name[0])) { /* a general category */
        name[0] = (char)(name[0] - 32);
        snprintf(buf[0], 96, "\\p{%s}", name);
        snprintf(buf[1], 96, "\\P{%s}", name);
    } else { /* PCRE2 would take a script's name for its extensions */
        snprintf(buf[0], 96, "\\p{sc:%.*s}", length, r->s + from);
        snprintf(buf[1], 96, "\\P{sc:%.*s}", length, r->s + from);
    }
    *out = (property){NULL, buf[0], buf[1]};
    return IM_OK;
}

/* The items of \s, \d, \w, \h and of their opposites; false: c is none of these. */
static bool shorthand(char c, property *out, bool *flip)
{
    *flip = c >= 'A' && c <= 'Z';
    switch (c | 32) {
    case 's': *out = (property){NULL, SPACES, NO_SPACES}; return true;
    case 'd': *out = (property){NULL, "\\p{Nd}", "\\P{Nd}"}; return true;
    case 'w': *out = (property){NULL, WORDS, NULL}; return true;
    case 'h': *out = (property){NULL, HEX, NULL}; return true;
    default: return false;
    }
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* ---- sets ------------------------------------------------------------------------------------------------ */

static im_status read_set(reader *r, im_str *out);

/* One operand of a set: plain items, and sets inside it as groups that take one character. */
typedef struct operand {
    im_str items, groups; /* groups: "|(?:..)|[^..]" */
} operand;

static void operand_free(operand *o)
{
    im_str_free(&o->items);
    im_str_free(&o->groups);
}

static void add_property(operand *o, const property *p, bool flip)
{
    if (!flip || p->rest)
        im_str_append(&o->items, flip ? p->rest : p->items);
    else
        im_str_printf(&o->groups, "|[^%s]", p->items);
}

/* An escape inside a set: *code when it is a character (*is_code), else added to o. */
static im_status set_escape(reader *r, operand *o, bool *is_code, uint32_t *code)
{
    size_t start = r->at++;
    if (r->at == r->n)
        return refuse(r, start, "a \\ at its end");
    char c = r->s[r->at++];
    property p;
    bool flip;
    char buf[2][96];
    *is_code = true;
    if (control(c, code))
        return IM_OK;
    if (c == 'b') {
        *code = 8;
        return IM_OK;
    }
    if (c == 'x' || c == 'u')
        return read_code(r, start, c == 'u', code);
    *is_code = false;
    if (c == 'p' || c == 'P') {
        IM_TRY(read_property(r, start, c == 'P', &flip, &p, buf));
        add_property(o, &p, flip);
        return IM_OK;
    }
    if (shorthand(c, &p, &flip)) {
        add_property(o, &p, flip);
        return IM_OK;
    }
    if (is_alnum(c))
        return refuse(r, start, "this escape");
    size_t k;
    r->at--;
    *code = im_tok_char(r->s + r->at, &k);
    r->at += k;
    *is_code = true;
    return IM_OK;
}

/* [:alpha:], [:^alpha:] */
static im_status posix_class(reader *r, operand *o)
{
    size_t start = r->at;
    r->at += 2;
    bool flip = r->at < r->n && r->s[r->at] == '^';
    r->at += flip;
    size_t from = r->at;
    while (r->at < r->n && is_alnum(r->s[r->at]))
        r->at++;
    for (size_t i = 0; i < IM_COUNT_OF(properties) && next_is(r, ":]"); i++)
        if (strlen(properties[i].name) == r->at - from && !memcmp(properties[i].name, r->s + from, r->at - from)) {
            add_property(o, &properties[i], flip);
            r->at += 2;
            return IM_OK;
        }
    return refuse(r, start, "a class with this name");
}

static im_status set_item(reader *r, operand *o)
{
    uint32_t from, to;
    bool is_code = true;
    size_t k, start = r->at;
    if (next_is(r, "[:"))
        return posix_class(r, o);
    if (r->s[r->at] == '[') {
        im_str_append(&o->groups, "|");
        return read_set(r, &o->groups);
    }
    if (r->s[r->at] == '\\') {
        IM_TRY(set_escape(r, o, &is_code, &from));
        if (!is_code)
            return IM_OK;
    } else {
        from = im_tok_char(r->s + r->at, &k);
        r->at += k;
    }
    put_code(&o->items, from);
    if (!next_is(r, "-") || r->n - r->at < 2 || r->s[r->at + 1] == ']' || r->s[r->at + 1] == '[')
        return IM_OK;
    r->at++;
    if (r->s[r->at] == '\\') {
        IM_TRY(set_escape(r, o, &is_code, &to));
        if (!is_code)
            return refuse(r, start, "a range that ends in a class");
    } else {
        to = im_tok_char(r->s + r->at, &k);
        r->at += k;
    }
    if (to < from)
        return refuse(r, start, "a range that ends before it begins");
    im_str_append(&o->items, "-");
    put_code(&o->items, to);
    return IM_OK;
}

/* What takes one character of the operand. */
static void put_operand(const operand *o, bool negated, im_str *out)
{
    if (!o->groups.len) {
        im_str_printf(out, o->items.len ? "[%s%s]" : negated ? "(?s:.)" : "(?!)", negated ? "^" : "", im_str_text(&o->items));
        return;
    }
    im_str_append(out, negated ? "(?:(?!" : "(?:");
    if (o->items.len)
        im_str_printf(out, "[%s]%s", im_str_text(&o->items), im_str_text(&o->groups));
    else
        im_str_append(out, im_str_text(&o->groups) + 1);
    im_str_append(out, negated ? ")(?s:.))" : ")");
}

/* From [ to ]: appends what takes one character. */
static im_status read_set(reader *r, im_str *out)
{
    im_status status = IM_OK;
    size_t start = r->at++;
    bool negated = next_is(r, "^"), first = true, several = false;
    operand o = {0};
    im_str parts = {0}; /* operands in front of the last && as (?=..) */
    if (++r->depth > DEEPEST)
        return refuse(r, start, "sets too deep in each other");
    r->at += negated;
    while (r->at < r->n && (first || r->s[r->at] != ']')) {
        first = false;
        if (next_is(r, "&&")) {
            r->at += 2;
            several = true;
            im_str_append(&parts, "(?=");
            put_operand(&o, false, &parts);
            im_str_append(&parts, ")");
            operand_free(&o);
            o = (operand){0};
            continue;
        }
        IM_TRY_GOTO(set_item(r, &o), free_parts);
    }
    if (r->at == r->n) {
        status = refuse(r, start, "a [ without its ]");
        goto free_parts;
    }
    r->at++;
    r->depth--;
    if (!several) {
        put_operand(&o, negated, out);
        goto free_parts;
    }
    im_str_printf(out, negated ? "(?:(?!%s" : "(?:%s", im_str_text(&parts));
    put_operand(&o, false, out);
    im_str_append(out, negated ? ")(?s:.))" : ")");
free_parts:
    operand_free(&o);
    im_str_free(&parts);
    return status;
}

/* ---- outside of sets ---------------------------------------------------------------------------------------- */

static im_status read_escape(reader *r)
{
    size_t start = r->at++, k;
    uint32_t code;
    property p;
    bool flip;
    char buf[2][96];
    if (r->at == r->n)
        return refuse(r, start, "a \\ at its end");
    char c = r->s[r->at++];
    if (control(c, &code)) {
        put_code(r->out, code);
        return IM_OK;
    }
    if (c == 'x' || c == 'u') {
        IM_TRY(read_code(r, start, c == 'u', &code));
        put_code(r->out, code);
        return IM_OK;
    }
    if (c == 'p' || c == 'P')
        IM_TRY(read_property(r, start, c == 'P', &flip, &p, buf));
    if (c == 'p' || c == 'P' || shorthand(c, &p, &flip)) {
        im_str_printf(r->out, "[%s%s]", flip ? "^" : "", strcmp(p.items, WORDS) ? p.items : WORDS_ALONE);
        return IM_OK;
    }
    switch (c) {
    case 'b': im_str_append(r->out, "(?:(?<=[" WORDS_ALONE "])(?![" WORDS_ALONE "])|(?<![" WORDS_ALONE "])(?=[" WORDS_ALONE "]))"); break;
    case 'B': im_str_append(r->out, "(?:(?<=[" WORDS_ALONE "])(?=[" WORDS_ALONE "])|(?<![" WORDS_ALONE "])(?![" WORDS_ALONE "]))"); break;
    case 'A': im_str_append(r->out, "\\A"); break;
    case 'z': im_str_append(r->out, "\\z"); return IM_OK;
    case 'Z': im_str_append(r->out, "\\Z"); return IM_OK;
    case 'R': im_str_append(r->out, "\\R"); return IM_OK;
    case 'N': im_str_append(r->out, "."); return IM_OK;
    case 'O': im_str_append(r->out, "(?s:.)"); return IM_OK;
    default:
        if (is_alnum(c))
            return refuse(r, start, "this escape");
        r->at--;
        put_code(r->out, im_tok_char(r->s + r->at, &k));
        r->at += k;
        return IM_OK;
    }
    r->looks_back = true;
    return IM_OK;
}

/* (?i), (?i-m:, ...: m is s here. */
static im_status read_options(reader *r, size_t start)
{
    im_str_append(r->out, "(?");
    for (; r->at < r->n && r->s[r->at] != ':' && r->s[r->at] != ')'; r->at++) {
        char c = r->s[r->at];
        if (c != 'i' && c != 'm' && c != '-')
            return refuse(r, start, "this kind of group");
        im_str_printf(r->out, "%c", c == 'm' ? 's' : c);
    }
    if (r->at == r->n)
        return refuse(r, start, "a ( without its )");
    im_str_printf(r->out, "%c", r->s[r->at++]);
    return IM_OK;
}

/* *lasting: options to the end of the group around them, alternatives included: a group of its own that ends there. */
static im_status read_group(reader *r, bool *lasting)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    size_t start = r->at;
    *lasting = false;
    for (size_t i = 0; i < IM_COUNT_OF(same); i++)
        if (next_is(r, same[i])) {
            im_str_append(r->out, same[i]);
            r->at += strlen(same[i]);
            r->looks_back = r->looks_back || i >= 4;
            return IM_OK;
        }
    if (next_is(r, "(*"))
        return refuse(r, start, "a verb");
    if (next_is(r, "(?")) {
        r->at += 2;
        IM_TRY(read_options(r, start));
        *lasting = r->s[r->at - 1] == ')';
        if (*lasting && !r->out->failed)
            r->out->data[r->out->len - 1] = ':';
        return IM_OK;
    }
    r->at++;
    im_str_append(r->out, "(?:"); /* nothing here asks for what a group took */
    return IM_OK;
}

/* {n}, {n,}, {,m}, {n,m}: *end behind it; false: not a quantifier. */
static bool interval(const reader *r, long *least, long *most, size_t *end)
{
    size_t i = r->at + 1, digits = 0;
    *least = 0;
    *most = -1;
    for (; i < r->n && r->s[i] >= '0' && r->s[i] <= '9' && digits < 6; i++, digits++)
        *least = *least * 10 + (r->s[i] - '0');
    if (i < r->n && r->s[i] == '}' && digits) {
        *most = *least;
        *end = i + 1;
        return true;
    }
    if (i == r->n || r->s[i++] != ',')
        return false;
    size_t more = 0;
    long number = 0;
    for (; i < r->n && r->s[i] >= '0' && r->s[i] <= '9' && more < 6; i++, more++)
        number = number * 10 + (r->s[i] - '0');
    if (i == r->n || r->s[i] != '}' || (!digits && !more))
        return false;
    *most = more ? number : -1;
    *end = i + 1;
    return true;
}

static void insert(im_str *out, size_t at, const char *text)
{
    size_t k = strlen(text);
    im_str_append(out, text);
    if (out->failed)
        return;
    memmove(out->data + at + k, out->data + at, out->len - k - at);
    memcpy(out->data + at, text, k);
}

/* atom: where what is repeated begins in out. A {n}+ repeats again, and so does a {n}?. */
static im_status read_interval(reader *r, size_t atom)
{
    long least, most;
    size_t end;
    if (!interval(r, &least, &most, &end)) {
        r->at++;
        im_str_append(r->out, "\\{");
        return IM_OK;
    }
    if (most >= 0 && most < least)
        return refuse(r, r->at, "an interval that ends before it begins");
    char follows = end < r->n ? r->s[end] : '\0';
    bool again = follows == '+' || (follows == '?' && least == most);
    if (again)
        insert(r->out, atom, "(?:");
    im_str_printf(r->out, "{%ld", least);
    if (most != least)
        im_str_append(r->out, ",");
    if (most != least && most >= 0)
        im_str_printf(r->out, "%ld", most);
    im_str_append(r->out, again ? "})" : "}");
    r->at = end;
    if (again || follows == '?') {
        im_str_printf(r->out, "%c", follows);
        r->at++;
    }
    return IM_OK;
}

typedef struct groups {
    size_t at[DEEPEST]; /* where each begins in out */
    bool lasting[DEEPEST];
    size_t n;
} groups;

static void close_lasting(reader *r, groups *g)
{
    for (; g->n && g->lasting[g->n - 1]; g->n--)
        im_str_append(r->out, ")");
}

static im_status read_one(reader *r, size_t *atom, groups *g)
{
    char c = r->s[r->at];
    size_t before = r->out->len, k;
    switch (c) {
    case '(':
        if (g->n == DEEPEST)
            return refuse(r, r->at, "groups too deep in each other");
        IM_TRY(read_group(r, &g->lasting[g->n]));
        g->at[g->n++] = before;
        break;
    case ')':
        close_lasting(r, g);
        if (!g->n)
            return refuse(r, r->at, "a ) without its (");
        r->at++;
        im_str_append(r->out, ")");
        *atom = g->at[--g->n];
        return IM_OK;
    case '[': IM_TRY(read_set(r, r->out)); break;
    case '\\': IM_TRY(read_escape(r)); break;
    case '{': return read_interval(r, *atom);
    case '*':
    case '+':
    case '?':
    case '|':
    case '.':
        r->at++;
        im_str_append_n(r->out, &c, 1);
        if (c == '*' || c == '+' || c == '?')
            return IM_OK;
        break;
    case '^':
        r->looks_back = true;
        r->at++;
        im_str_append(r->out, "(?m:^)");
        break;
    case '$':
        r->at++;
        im_str_append(r->out, "(?m:$)");
        break;
    default: put_code(r->out, im_tok_char(r->s + r->at, &k)); r->at += k;
    }
    *atom = before;
    return IM_OK;
}

im_status im_tok_syntax_translate(im_context *ctx, const char *where, const char *pattern, size_t len, im_str *out, bool *looks_back)
{
    reader r = {.ctx = ctx, .where = where, .s = pattern, .n = len, .out = out};
    groups g = {.n = 0};
    size_t atom = 0;
    while (r.at < r.n)
        IM_TRY(read_one(&r, &atom, &g));
    close_lasting(&r, &g);
    if (g.n)
        return refuse(&r, r.n, "a ( without its )");
    if (out->failed)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a pattern", where);
    *looks_back = r.looks_back;
    return IM_OK;
}
