/* Logs in blocks: lines, escapes, the rules that fire on a line. */
#include "fabric/diagnose_state.h"

#include "data/input.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 1 << 20,
    OVERLAP = 1024,    /* of a line that is longer than a block: shown again with the next */
    AROUND = 8192,     /* bytes of a line, before and behind an anchor, that are looked at */
    HEAD = 1 << 16,    /* by which a flight recorder's JSON is told */
    RECORDER = 1 << 30 /* most bytes of one */
};

/* ---- making --------------------------------------------------------------------------------------------- */

static im_status gather_patterns(im_diagnose *d)
{
    size_t n = 0, nfact = im_diag_fact_count();
    for (size_t r = 0; r < d->nrule; r++)
        for (size_t k = 0; k < IM_RULE_PATTERNS && im_rules[r].pattern[k]; k++)
            n++;
    IM_TRY(im_alloc(d->ctx, n + nfact, sizeof *d->pattern, (void **)&d->pattern));
    IM_TRY(im_alloc(d->ctx, n + nfact, sizeof *d->owner, (void **)&d->owner));
    IM_TRY(im_alloc(d->ctx, n + nfact, sizeof *d->stamp, (void **)&d->stamp));
    IM_TRY(im_alloc(d->ctx, n + nfact, sizeof *d->plain, (void **)&d->plain));
    for (size_t r = 0; r < d->nrule; r++)
        for (size_t k = 0; k < IM_RULE_PATTERNS && im_rules[r].pattern[k]; k++) {
            d->owner[d->npattern] = (uint16_t)r;
            d->pattern[d->npattern++] = im_rules[r].pattern[k];
        }
    for (size_t i = 0; i < nfact; i++) {
        d->owner[d->npattern] = (uint16_t)(d->nrule + i);
        d->pattern[d->npattern++] = im_diag_fact_pattern(i);
    }
    for (size_t i = 0; i < d->npattern; i++)
        d->plain[i] = im_scan_is_plain(d->pattern[i]);
    return im_scan_create(d->ctx, d->pattern, d->npattern, &d->scan);
}

im_status im_diagnose_create(im_context *ctx, im_diagnose **out)
{
    im_diagnose *d = NULL;
    im_status status;
    IM_TRY(im_alloc(ctx, 1, sizeof *d, (void **)&d));
    d->ctx = ctx;
    d->nrule = im_rule_count();
    d->most_rank = -1;
    d->first_init = NAN;
    d->cap = BLOCK;
    IM_TRY_GOTO(im_alloc(ctx, BLOCK, 1, (void **)&d->buf), failed);
    IM_TRY_GOTO(im_alloc(ctx, d->nrule, sizeof *d->found, (void **)&d->found), failed);
    IM_TRY_GOTO(im_alloc(ctx, IM_DIAG_MAP, sizeof *d->rank_of, (void **)&d->rank_of), failed);
    IM_TRY_GOTO(im_alloc(ctx, IM_DIAG_HOSTS_ALL, sizeof *d->host, (void **)&d->host), failed);
    IM_TRY_GOTO(im_alloc(ctx, IM_DIAG_RANK_BITS / 8, 1, (void **)&d->ranks), failed);
    IM_TRY_GOTO(gather_patterns(d), failed);
    *out = d;
    return IM_OK;
failed:
    im_diagnose_free(d);
    return status;
}

void im_diagnose_free(im_diagnose *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->nfile; i++) {
        free(d->file[i]->name);
        free(d->file[i]);
    }
    im_scan_free(d->scan);
    free(d->file);
    free(d->pattern);
    free(d->owner);
    free(d->stamp);
    free(d->plain);
    free(d->buf);
    free(d->found);
    free(d->rank_of);
    free(d->wait);
    free(d->host);
    free(d->ranks);
    free(d);
}

im_log_facts *im_diag_file(im_diagnose *d)
{
    return d->file[d->nfile - 1];
}

/* ---- findings ------------------------------------------------------------------------------------------------ */

const im_log_where *im_diag_where(im_diagnose *d, im_log_line *l)
{
    if (l->known)
        return &l->where;
    l->known = true;
    im_log_where_read(l->s, l->n, l->at, &l->where);
    im_log_where *w = &l->where;
    im_rank_of *known = w->rank < 0 && w->pid >= 0 ? im_diag_rank_of(d, w->host, w->pid, false) : NULL;
    if (known)
        w->rank = known->rank;
    if (w->rank >= 0 && w->rank < IM_DIAG_RANK_BITS) {
        d->ranks[w->rank / 8] |= (uint8_t)(1 << w->rank % 8);
        d->most_rank = w->rank > d->most_rank ? w->rank : d->most_rank;
    }
    im_diag_host(d, w->host);
    return w;
}

/* What a terminal may be shown: no control bytes. */
static void copy_text(char *to, size_t cap, const char *s, size_t n)
{
    size_t k = 0;
    while (n && (s[0] == ' ' || s[0] == '\t')) {
        s++;
        n--;
    }
    for (size_t i = 0; i < n && k + 1 < cap; i++)
        to[k++] = (unsigned char)s[i] < 32 || s[i] == 127 ? ' ' : s[i];
    while (k && to[k - 1] == ' ')
        k--;
    while (k && k + 1 == cap && ((unsigned char)to[k - 1] & 0xc0) == 0x80) /* not in the middle of a character */
        k--;
    to[k] = 0;
}

void im_diag_evidence(im_diagnose *d, im_log_line *l, im_evidence *out)
{
    const im_log_where *w = im_diag_where(d, l);
    size_t begin = l->at > IM_DIAG_TEXT * 2 / 3 ? l->at - IM_DIAG_TEXT / 3 : 0; /* the message, also where its prefix is long */
    for (size_t i = l->at; i > begin; i--)
        if (l->s[i - 1] == '\r') { /* behind a progress bar */
            begin = i;
            break;
        }
    *out = (im_evidence){.line = l->number, .file = l->file, .rank = w->rank, .time = w->time};
    memcpy(out->host, w->host, sizeof out->host);
    copy_text(out->text, sizeof out->text, l->s + begin, l->n - begin);
}

static bool is_earlier(const im_evidence *a, const im_evidence *b)
{
    if (!isnan(a->time) && !isnan(b->time) && a->time != b->time)
        return a->time < b->time;
    return a->file != b->file ? a->file < b->file : a->line < b->line;
}

static bool add_host(im_finding *f, const char *host)
{
    for (size_t i = 0; i < f->nhost; i++)
        if (!strcmp(f->host[i], host))
            return false;
    if (f->nhost == IM_DIAG_HOSTS)
        f->more_hosts = true;
    else if (*host)
        memcpy(f->host[f->nhost++], host, sizeof f->host[0]);
    return *host != 0;
}

/* In ascending order. */
static bool add_rank(im_finding *f, int rank)
{
    size_t i = f->nrank;
    if (rank < 0)
        return false;
    while (i > 0 && f->rank[i - 1] > rank)
        i--;
    if (i > 0 && f->rank[i - 1] == rank)
        return false;
    if (f->nrank == IM_DIAG_RANKS) {
        f->more_ranks = true;
        return false;
    }
    memmove(f->rank + i + 1, f->rank + i, (f->nrank - i) * sizeof *f->rank);
    f->rank[i] = rank;
    f->nrank++;
    return true;
}

/* Kept are the first, and lines of hosts and ranks that were not there before. */
void im_diag_add(im_diagnose *d, size_t rule, const im_evidence *e)
{
    im_finding *f = &d->found[rule];
    bool is_new = add_host(f, e->host);
    is_new = add_rank(f, e->rank) || is_new;
    f->count++;
    if (f->nkept && is_earlier(e, &f->kept[0])) {
        im_evidence first = f->kept[0];
        f->kept[0] = *e;
        if (f->nkept < IM_DIAG_KEPT)
            f->kept[f->nkept++] = first;
        return;
    }
    if (f->nkept < IM_DIAG_KEPT && (f->nkept < 3 || is_new))
        f->kept[f->nkept++] = *e;
}

/* A link that is down while a machine starts is no event. */
static bool is_boot(im_diagnose *d, const char *id, im_log_line *l)
{
    return (!strcmp(id, "port-error") || !strcmp(id, "cable")) && im_diag_where(d, l)->uptime < 180;
}

/* "[rank3]: ValueError: ...": the name of an exception stands alone before its colon; a log line that says "error: " does not. */
static bool is_no_exception(const char *id, const im_log_line *l)
{
    if (strcmp(id, "rank-exception") != 0)
        return false;
    size_t i = im_scan_find(l->s, l->n, 0, "[rank"), k;
    while (i < l->n && l->s[i] != ' ')
        i++;
    for (k = ++i; k < l->n && (isalnum((unsigned char)l->s[k]) || l->s[k] == '_' || l->s[k] == '.'); k++) {}
    bool ends = k == l->n || strchr(": \r\"", l->s[k]);
    static const char *const names[] = {"Error", "Exception", "Interrupt", "Exit"};
    for (size_t j = 0; ends && j < IM_COUNT_OF(names); j++) {
        size_t n = strlen(names[j]);
        if (k > i + n && memcmp(l->s + k - n, names[j], n) == 0)
            return false;
    }
    return true;
}

void im_diag_record(im_diagnose *d, size_t rule, im_log_line *l)
{
    im_evidence e;
    if (is_boot(d, im_rules[rule].id, l) || is_no_exception(im_rules[rule].id, l))
        return;
    im_diag_evidence(d, l, &e);
    im_diag_add(d, rule, &e);
}

/* ---- a line ------------------------------------------------------------------------------------------------------ */

static bool has_piece(const char *pieces, const char *s, size_t n)
{
    char piece[64];
    while (pieces && *pieces) {
        size_t m = strcspn(pieces, "|");
        if (m < sizeof piece) {
            memcpy(piece, pieces, m);
            piece[m] = 0;
            if (im_scan_find(s, n, 0, piece) < n)
                return true;
        }
        pieces += m + (pieces[m] == '|');
    }
    return false;
}

enum { MOST_FIRED = 32 };

static void note_fired(size_t fired[MOST_FIRED], size_t *n, size_t rule)
{
    for (size_t i = 0; i < *n; i++)
        if (fired[i] == rule)
            return;
    if (*n < MOST_FIRED)
        fired[(*n)++] = rule;
}

static bool is_beaten(const size_t *fired, size_t n, size_t rule)
{
    const char *group = im_rules[rule].group;
    for (size_t i = 0; group && i < n; i++)
        if (fired[i] < rule && im_rules[fired[i]].group && !strcmp(im_rules[fired[i]].group, group))
            return true;
    return false;
}

static void try_anchor(im_diagnose *d, im_log_line *l, uint16_t anchor, size_t fired[MOST_FIRED], size_t *nfired)
{
    const uint16_t *pattern;
    size_t n = im_scan_patterns(d->scan, anchor, &pattern);
    for (size_t i = 0; i < n; i++) {
        uint16_t p = pattern[i];
        if (d->stamp[p] == d->serial)
            continue;
        d->stamp[p] = d->serial;
        if (!d->plain[p] && !im_scan_match(d->pattern[p], l->s, l->n))
            continue;
        if (d->owner[p] >= d->nrule)
            im_diag_fact(d, d->owner[p] - d->nrule, l);
        else if (!has_piece(im_rules[d->owner[p]].unless, l->s, l->n))
            note_fired(fired, nfired, d->owner[p]);
    }
}

/* text[begin, end) is a line, or what is looked at of one, with an anchor at `at`. */
static void look_at_line(im_diagnose *d, const char *text, size_t begin, size_t end, size_t at, int64_t number)
{
    size_t fired[MOST_FIRED], nfired = 0, nanchor;
    uint16_t anchor[IM_SCAN_MOST];
    im_log_line l = {.s = text + begin, .n = end - begin, .at = at - begin, .number = number, .file = d->nfile - 1};
    d->serial++;
    for (size_t i = l.at; (i = im_scan_next(d->scan, l.s, l.n, i, anchor, &nanchor)) < l.n; i++)
        for (size_t k = 0; k < nanchor; k++)
            try_anchor(d, &l, anchor[k], fired, &nfired);
    for (size_t i = 0; i < nfired; i++)
        if (!is_beaten(fired, nfired, fired[i]))
            im_diag_record(d, fired[i], &l);
}

/* ---- a block ------------------------------------------------------------------------------------------------------ */

/* Newlines, eight bytes at a time: a byte of x that is 0 leaves its highest bit. */
static int64_t count_lines(const char *s, size_t n)
{
    static const uint64_t ones = 0x0101010101010101, low = 0x7f7f7f7f7f7f7f7f;
    int64_t k = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t x;
        memcpy(&x, s + i, 8);
        x ^= ones * '\n';
        x = ~(((x & low) + low) | x | low) >> 7;
        k += (int64_t)(x * ones >> 56);
    }
    for (; i < n; i++)
        k += s[i] == '\n';
    return k;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One \ escape of JSON at s[*i] -> a byte; what is not ASCII becomes '?'. */
static char unescape(const char *s, size_t n, size_t *i)
{
    char c = s[*i + 1];
    *i += 2;
    if (c == 'n' || c == 'r' || c == 't' || c == 'b' || c == 'f')
        return ' ';
    if (c != 'u' || *i + 4 > n)
        return c;
    int v = 0;
    for (size_t k = 0; k < 4; k++) {
        int h = hex_value(s[*i + k]);
        if (h < 0)
            return c;
        v = v * 16 + h;
    }
    *i += 4;
    return v < 128 ? (char)v : '?';
}

/* Behind the ESC at s[i]: where its sequence ends (ECMA-48). */
static size_t escape_end(const char *s, size_t n, size_t i)
{
    if (i + 1 >= n)
        return n;
    if (s[i + 1] == ']') { /* up to BEL or ESC \ */
        for (i += 2; i < n && s[i] != 7 && s[i] != 27; i++) {}
        return i < n ? i + 1 + (s[i] == 27 && i + 1 < n) : n;
    }
    if (s[i + 1] != '[')
        return i + 2;
    for (i += 2; i < n && ((unsigned char)s[i] < 64 || (unsigned char)s[i] > 126); i++) {}
    return i < n ? i + 1 : n;
}

/* Takes the escapes out of one line, in place; returns its new length. A newline is never taken out. */
static size_t clean_line(char *s, size_t n)
{
    size_t k = 0, front = 0, m = n;
    while (front < n && front < 200 && s[front] != '{')
        front++;
    if (front < n && s[front] == '{' && memchr(s, '\\', n)) {
        for (size_t i = k = 0; i < n;)
            if (s[i] == '\\' && i + 1 < n)
                s[k++] = unescape(s, n, &i);
            else
                s[k++] = s[i++];
        m = k;
    }
    if (!memchr(s, 27, m))
        return m;
    k = 0;
    for (size_t i = 0; i < m;)
        if (s[i] == 27)
            i = escape_end(s, m, i);
        else
            s[k++] = s[i++];
    return k;
}

static size_t clean_block(char *s, size_t n)
{
    if (!memchr(s, 27, n) && !memchr(s, '\\', n))
        return n;
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        char *end = memchr(s + i, '\n', n - i);
        size_t m = end ? (size_t)(end - (s + i)) : n - i, next = i + m + (end != NULL);
        size_t left = clean_line(s + i, m);
        memmove(s + k, s + i, left);
        k += left;
        if (end)
            s[k++] = '\n';
        i = next;
    }
    return k;
}

/* Where the line begins that holds s[at], and where it ends. */
static void line_around(const char *s, size_t n, size_t at, size_t *begin, size_t *end)
{
    size_t low = at > AROUND ? at - AROUND : 0, most = n - at < AROUND ? n - at : AROUND;
    const char *before = memrchr(s + low, '\n', at - low), *behind = memchr(s + at, '\n', most);
    *begin = before ? (size_t)(before - s) + 1 : low;
    *end = behind ? (size_t)(behind - s) : at + most;
}

/* Looks through d->buf[0, n): whole lines, or a piece of one that is longer than the block. */
static void look_through(im_diagnose *d, size_t n)
{
    int64_t number = d->line;
    size_t m = clean_block(d->buf, n), counted = 0, nanchor;
    uint16_t anchor[IM_SCAN_MOST];
    for (size_t at = 0; (at = im_scan_next(d->scan, d->buf, m, at, anchor, &nanchor)) < m;) {
        size_t begin, end;
        line_around(d->buf, m, at, &begin, &end);
        if (end <= d->seen) { /* shown before */
            at = end;
            continue;
        }
        number += begin > counted ? count_lines(d->buf + counted, begin - counted) : 0;
        counted = begin > counted ? begin : counted;
        look_at_line(d, d->buf, begin, end, at, number);
        at = end;
    }
    number += count_lines(d->buf + counted, m - counted);
    int64_t lines = number - d->line;
    d->line = number;
    im_diag_file(d)->lines += lines;
    d->total_lines += lines;
    d->seen = 0;
}

/* Makes room in the block: all lines that are whole in it are looked at. */
static void flush_block(im_diagnose *d, bool last)
{
    const char *end = last ? NULL : memrchr(d->buf, '\n', d->n);
    size_t whole = end ? (size_t)(end - d->buf) + 1 : d->n, keep = d->n - whole;
    char tail[OVERLAP];
    bool cut = !end && !last;
    size_t overlap = cut ? (d->n < OVERLAP ? d->n : OVERLAP) : 0;
    memcpy(tail, d->buf + d->n - overlap, overlap);
    if (whole)
        look_through(d, whole);
    memmove(d->buf, d->buf + whole, keep);
    if (cut) {
        memcpy(d->buf, tail, overlap);
        keep = d->seen = overlap;
    }
    d->n = keep;
}

/* ---- feeding --------------------------------------------------------------------------------------------------------- */

im_status im_diagnose_begin(im_diagnose *d, const char *name)
{
    if (d->nfile == IM_DIAG_FILES)
        return im_fail(d->ctx, IM_ERR_ARG, "more than %d logs at once", IM_DIAG_FILES);
    if (d->nfile == d->file_cap) {
        size_t cap = d->file_cap ? 2 * d->file_cap : 16;
        im_log_facts **more = realloc(d->file, cap * sizeof *more);
        if (!more)
            return im_fail(d->ctx, IM_ERR_NOMEM, "no memory for %zu logs", cap);
        d->file = more;
        d->file_cap = cap;
    }
    im_log_facts *f;
    IM_TRY(im_alloc(d->ctx, 1, sizeof *f, (void **)&f));
    f->name = strdup(name);
    d->file[d->nfile++] = f;
    if (!f->name)
        return im_fail(d->ctx, IM_ERR_NOMEM, "no memory for a name");
    d->n = d->seen = 0;
    d->line = 1;
    return IM_OK;
}

im_status im_diagnose_feed(im_diagnose *d, const char *bytes, size_t n)
{
    im_diag_file(d)->bytes += (int64_t)n;
    d->total_bytes += (int64_t)n;
    while (n) {
        if (d->n == d->cap)
            flush_block(d, false);
        size_t k = n < d->cap - d->n ? n : d->cap - d->n;
        memcpy(d->buf + d->n, bytes, k);
        d->n += k;
        bytes += k;
        n -= k;
    }
    return IM_OK;
}

im_status im_diagnose_end(im_diagnose *d)
{
    bool open_line = d->n > d->seen && d->buf[d->n - 1] != '\n';
    flush_block(d, true);
    im_diag_file(d)->lines += open_line;
    d->total_lines += open_line;
    return IM_OK;
}

/* ---- files --------------------------------------------------------------------------------------------------------------- */

/* What is not a log, by its first bytes: NULL, or what to do instead. */
static const char *refuse(const char *s, size_t n)
{
    if (n >= 2 && (unsigned char)s[0] == 0x80 && s[1] >= 2 && s[1] <= 5)
        return "a Python pickle: not read, as opening one runs code; make JSON of a flight recorder's dump on the machine it comes from: "
               "torchfrtrace -j DIR";
    if (n >= 4 && memcmp(s, "PK\3\4", 4) == 0)
        return "a zip archive (or a PyTorch file): not read; unpack it first";
    if (n >= 4 && memcmp(s, "\177ELF", 4) == 0)
        return "a program, no log: not read";
    return NULL;
}

static bool is_recorder(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t'))
        i++;
    if (i == n || s[i] != '{' || im_scan_find(s, n, i, "\"entries\"") >= n)
        return false;
    static const char *const keys[] = {"\"pg_config\"", "\"profiling_name\"", "\"collective_seq_id\"", "\"nccl_comm_state\"", "\"pg_status\""};
    for (size_t k = 0; k < IM_COUNT_OF(keys); k++)
        if (im_scan_find(s, n, i, keys[k]) < n)
            return true;
    return false;
}

static im_status read_recorder(im_diagnose *d, im_input *in, const char *name, im_str *text)
{
    size_t got;
    do {
        IM_TRY(im_input_read(in, d->buf, d->cap, &got));
        im_str_append_n(text, d->buf, got);
        if (text->failed || text->len > RECORDER)
            return im_fail(d->ctx, IM_ERR_FORMAT, "%s: a flight recorder's dump of more than %d bytes", name, RECORDER);
    } while (got);
    return im_diagnose_recorder(d, name, text->data, text->len);
}

static im_status read_log(im_diagnose *d, im_input *in)
{
    size_t got;
    do {
        if (d->n == d->cap)
            flush_block(d, false);
        IM_TRY(im_input_read(in, d->buf + d->n, d->cap - d->n, &got));
        d->n += got;
        im_diag_file(d)->bytes += (int64_t)got;
        d->total_bytes += (int64_t)got;
    } while (got);
    return IM_OK;
}

static void remark(im_diagnose *d, const char *text, bool unread)
{
    im_log_facts *f = im_diag_file(d);
    const char *name = f->name;
    size_t n = strlen(name);
    if (!strncmp(text, name, n) && text[n] == ':') /* the name stands before it anyway */
        text += n + 1 + (text[n + 1] == ' ');
    copy_text(f->remark, sizeof f->remark, text, strlen(text));
    f->unread = unread;
}

static im_status read_head(im_diagnose *d, im_input *in)
{
    size_t got = 1;
    im_status status = IM_OK;
    while (status == IM_OK && got && d->n < HEAD) {
        status = im_input_read(in, d->buf + d->n, HEAD - d->n, &got);
        d->n += status == IM_OK ? got : 0;
    }
    im_diag_file(d)->bytes = (int64_t)d->n;
    d->total_bytes += (int64_t)d->n;
    return status;
}

/* By its first bytes: a log, a flight recorder, or what is not read. */
static im_status read_input(im_diagnose *d, im_input *in, const char *name)
{
    im_status status = read_head(d, in);
    const char *why = refuse(d->buf, d->n);
    if (why) {
        remark(d, why, true);
        return IM_OK;
    }
    if (status != IM_OK || !is_recorder(d->buf, d->n))
        return status != IM_OK ? status : read_log(d, in);
    im_str text = {0};
    im_str_append_n(&text, d->buf, d->n);
    status = read_recorder(d, in, name, &text);
    if (status == IM_ERR_FORMAT)
        im_diag_file(d)->bytes = 0; /* all or nothing */
    d->n = 0;
    im_str_free(&text);
    return status;
}

im_status im_diagnose_path(im_diagnose *d, const char *path, const atomic_bool *quit)
{
    im_input *in;
    IM_TRY(im_diagnose_begin(d, strcmp(path, "-") == 0 ? "standard input" : path));
    im_status status = im_input_open(d->ctx, path, quit, &in);
    bool opened = status == IM_OK;
    if (opened) {
        status = read_input(d, in, path);
        im_input_close(in);
    }
    if (status == IM_ERR_NOMEM || status == IM_ERR_ABORTED)
        return status;
    if (status != IM_OK) {
        remark(d, im_error_text(d->ctx), !opened || !im_diag_file(d)->bytes);
        im_error_clear(d->ctx);
    }
    if (im_diag_file(d)->unread)
        d->n = 0;
    return im_diagnose_end(d);
}

/* ---- counts --------------------------------------------------------------------------------------------------------------- */

size_t im_diagnose_unread(const im_diagnose *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->nfile; i++)
        n += d->file[i]->unread;
    return n;
}

int64_t im_diagnose_bytes(const im_diagnose *d)
{
    return d->total_bytes;
}

int64_t im_diagnose_lines(const im_diagnose *d)
{
    return d->total_lines;
}

int64_t im_diagnose_count(const im_diagnose *d, const char *id)
{
    size_t r = im_rule_find(id);
    return r < d->nrule ? d->found[r].count : 0;
}
