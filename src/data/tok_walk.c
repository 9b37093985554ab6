/* A text as words: added tokens are found, what lies between is normalized and cut by the pre-tokenizers.
 *
 * A text may come in parts. Everything up to a place where a restart finds the same is given; such a place is a cut. Where the text that is
 * there ends, nothing is known: a pattern says whether it looked that far (im_tok_regex_find, `more`), an added token may be half there, and a
 * mark may join the character in front of it. So the part that is walked ends a little earlier, and the last word before that end waits.
 *
 * Steps that make a text remember what they copied, so that a cut in the made text is a place in the text that was given.
 */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

struct im_tok_walk {
    im_context *ctx;
    const im_tok *t;
    im_tok_sink sink;
    bool special_as_text, replace;
    im_tok_match *match;
    im_tok_made scrubbed, normal[IM_TOK_STEPS], made[IM_TOK_STEPS];
    const im_tok_made *chain[2 * IM_TOK_STEPS + 1]; /* from the bytes to the text of now */
    size_t nchain;
    bool begun;  /* the text's first byte is behind us */
    bool inside; /* the next byte goes on with a piece */
    /* of this run */
    bool head;   /* the piece began in an earlier part */
    bool first;  /* the piece begins the text */
    size_t done; /* the last cut */
    bool done_inside;
};

im_status im_tok_walk_create(im_context *ctx, const im_tok *t, const im_tok_sink *sink, bool special_as_text, bool replace, im_tok_walk **out)
{
    im_tok_walk *w;
    IM_TRY(im_alloc(ctx, 1, sizeof *w, (void **)&w));
    w->ctx = ctx;
    w->t = t;
    w->sink = *sink;
    w->special_as_text = special_as_text;
    w->replace = replace;
    im_status status = im_tok_match_create(ctx, &w->match);
    if (status != IM_OK) {
        free(w);
        return status;
    }
    *out = w;
    return IM_OK;
}

void im_tok_walk_free(im_tok_walk *w)
{
    if (!w)
        return;
    im_tok_match_free(w->match);
    im_tok_made_free(&w->scrubbed);
    for (size_t i = 0; i < IM_TOK_STEPS; i++) {
        im_tok_made_free(&w->normal[i]);
        im_tok_made_free(&w->made[i]);
    }
    free(w);
}

void im_tok_walk_reset(im_tok_walk *w)
{
    w->begun = w->inside = false;
}

bool im_tok_walk_begun(const im_tok_walk *w)
{
    return w->begun;
}

/* ---- cuts --------------------------------------------------------------------------------------------- */

/* What was given so far lies in front of `at` of the text of now. */
static void cut(im_tok_walk *w, size_t at, bool inside)
{
    for (size_t i = w->nchain; i-- > 0 && at != SIZE_MAX;)
        at = im_tok_made_source(w->chain[i], at);
    if (at == SIZE_MAX || at <= w->done)
        return;
    w->done = at;
    w->done_inside = inside;
    if (w->sink.cut)
        w->sink.cut(w->sink.arg, at);
}

/* A token could take along white space in front of `at`, or look at the character there. */
static bool reached(const im_tok_trie *trie, const im_tok_text *t, size_t at)
{
    size_t k;
    return im_tok_trie_reaches(trie) &&
           (im_tok_is_space(im_tok_char(t->s + im_tok_char_before(t->s, at), &k)) || im_tok_trie_may_begin(trie, t->s[at]));
}

/* A cut between two words of t. */
static void cut_words(im_tok_walk *w, const im_tok_text *t, size_t at)
{
    if (at > 0 && at < t->n && !reached(w->t->trie[0], t, at) && !reached(w->t->trie[1], t, at))
        cut(w, at, true);
}

/* ---- splitting ------------------------------------------------------------------------------------------ */

static im_status step(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool head, bool open);

typedef struct splitter {
    im_tok_walk *w;
    size_t i; /* of the step */
    const im_tok_step *s;
    const im_tok_text *t;
    size_t base; /* of the piece */
    bool open;
    bool any, is_match; /* a piece waits: [from, to) */
    size_t from, to;
} splitter;

static im_status give(splitter *p)
{
    if (p->any)
        p->w->first = p->w->first && p->from == p->base;
    if (p->any && p->from < p->to && !(p->s->behavior == IM_TOK_REMOVED && p->is_match))
        IM_TRY(step(p->w, p->i + 1, p->t, p->from, p->to, false, false));
    if (p->any && p->open)
        cut_words(p->w, p->t, p->to);
    p->any = false;
    return IM_OK;
}

/* The next stretch, a match of the pattern or what lies between two: joined with the one that waits, or put in its place. */
static im_status stretch(splitter *p, size_t from, size_t to, bool is_match)
{
    is_match = is_match != p->s->invert;
    bool joins = false;
    switch (p->s->behavior) {
    case IM_TOK_CONTIGUOUS: joins = p->any && p->is_match == is_match; break;
    case IM_TOK_WITH_PREVIOUS: joins = p->any && is_match && !p->is_match; break;
    case IM_TOK_WITH_NEXT: joins = p->any && !is_match && p->is_match; break;
    default: break;
    }
    if (!joins)
        IM_TRY(give(p));
    p->from = joins ? p->from : from;
    p->to = to;
    p->is_match = is_match;
    p->any = true;
    return IM_OK;
}

static bool in_class(const im_tok_step *s, uint32_t c)
{
    switch (s->of) {
    case IM_TOK_CLASS_NUMBER: return im_tok_is_number(c);
    case IM_TOK_CLASS_PUNCTUATION: return im_tok_is_punctuation(c);
    case IM_TOK_CLASS_SPACE: return im_tok_is_space(c);
    default: return c == s->character;
    }
}

/* The next match at or behind `at` of x[0, n). */
static im_status find(const splitter *p, const char *x, size_t n, size_t at, im_tok_found *found, size_t *start, size_t *end)
{
    const im_tok_step *s = p->s;
    size_t k;
    *found = p->open ? IM_TOK_OPEN : IM_TOK_NONE;
    if (s->kind == IM_TOK_STEP_SPLIT && s->regex)
        return im_tok_regex_find(p->w->ctx, s->regex, p->w->match, x, n, at, p->open, found, start, end);
    if (s->kind == IM_TOK_STEP_SPLIT) {
        const char *m = s->literal.n ? memmem(x + at, n - at, s->literal.s, s->literal.n) : NULL;
        if (m) {
            *start = (size_t)(m - x);
            *end = *start + s->literal.n;
            *found = IM_TOK_FOUND;
        }
        return IM_OK;
    }
    for (; at < n; at += k)
        if (in_class(s, im_tok_char(x + at, &k))) {
            *start = at;
            *end = at + k;
            *found = IM_TOK_FOUND;
            return IM_OK;
        }
    return IM_OK;
}

/* Of an open piece, what lies behind the last match waits, and so does a piece that may grow. An empty match right behind another one does not
 * count; the search goes on one character further. */
static im_status split(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool open)
{
    splitter p = {.w = w, .i = i, .s = &w->t->words.step[i], .t = t, .base = from, .open = open};
    const char *x = t->s + from;
    size_t n = to - from, at = 0, done = 0, start, end, last = SIZE_MAX;
    im_tok_found found = IM_TOK_NONE;
    while (at <= n) {
        IM_TRY(find(&p, x, n, at, &found, &start, &end));
        if (found != IM_TOK_FOUND)
            break;
        if (start == end && end == last) {
            at += at < n ? im_tok_char_bytes(x[at]) : 1;
            continue;
        }
        if (done < start)
            IM_TRY(stretch(&p, from + done, from + start, false));
        IM_TRY(stretch(&p, from + start, from + end, true));
        done = at = last = end;
    }
    if (open)
        return IM_OK;
    if (done < n)
        IM_TRY(stretch(&p, from + done, from + n, false));
    return give(&p);
}

/* ---- steps that make a text -------------------------------------------------------------------------------- */

static im_status made_step(im_tok_walk *w, size_t i, bool head, bool open)
{
    im_tok_text t;
    IM_TRY(im_tok_made_end(w->ctx, &w->made[i], &t));
    w->chain[w->nchain++] = &w->made[i];
    im_status status = step(w, i + 1, &t, 0, t.n, head, open);
    w->nchain--;
    return status;
}

static im_status prefix(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    if (head || t->s[from] == ' ')
        return step(w, i + 1, t, from, to, head, open);
    im_tok_made_begin(&w->made[i], open);
    im_tok_made_put(&w->made[i], " ", 1);
    im_tok_made_copy(&w->made[i], t, from, to);
    return made_step(w, i, head, open);
}

/* Spaces become the step's character, which is put in front too; then pieces begin with it. The splitting is the next step of the list. */
static im_status metaspace(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    const im_tok_step *s = &w->t->words.step[i];
    im_tok_made *m = &w->made[i];
    char mark[IM_TOK_CHAR];
    size_t n = im_tok_put_char(s->character, mark), at = from;
    bool has = t->s[from] == ' ' || (to - from >= n && !memcmp(t->s + from, mark, n));
    im_tok_made_begin(m, open);
    if (!head && !has && (s->scheme == IM_TOK_ALWAYS || (s->scheme == IM_TOK_FIRST && w->first)))
        im_tok_made_put(m, mark, n);
    while (at < to) {
        const char *space = memchr(t->s + at, ' ', to - at);
        size_t end = space ? (size_t)(space - t->s) : to;
        im_tok_made_copy(m, t, at, end);
        if (space)
            im_tok_made_put(m, mark, n);
        at = end + (space != NULL);
    }
    return made_step(w, i, head, open);
}

/* Appends the characters that stand for the bytes of [from, to). */
static void map_bytes(im_tok_made *m, const im_tok_text *t, size_t from, size_t to)
{
    size_t mark = im_tok_first_mark(t, from), k;
    for (size_t at = from; at < to; at += k) {
        const unsigned char *s = (const unsigned char *)t->s + at;
        size_t n = k = im_tok_char_bytes(t->s[at]);
        if (mark < t->nmark && t->mark[mark].at == at) {
            s = t->mark[mark].raw;
            n = t->mark[mark++].n;
        } else if (n == 1 && *s > ' ' && *s < 127) {
            im_tok_made_copy(m, t, at, at + 1);
            continue;
        }
        for (size_t b = 0; b < n; b++) {
            char text[IM_TOK_CHAR];
            im_tok_made_put(m, text, im_tok_put_char(im_tok_byte_char(s[b]), text));
        }
    }
}

static im_status bytes(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    im_tok_made_begin(&w->made[i], open);
    map_bytes(&w->made[i], t, from, to);
    return made_step(w, i, head, open);
}

static im_status word(im_tok_walk *w, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    if (!open)
        return w->sink.word(w->sink.arg, t, from, to, head);
    if (!w->sink.part)
        return IM_OK;
    size_t used;
    IM_TRY(w->sink.part(w->sink.arg, t, from, to, head, &used));
    if (used > from)
        cut_words(w, t, used);
    return IM_OK;
}

/* Step i and those behind it. head: [from, to) goes on with what an earlier part began; open: more of it will come. */
static im_status step(im_tok_walk *w, size_t i, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    if (from == to)
        return IM_OK;
    if (i == w->t->words.n)
        return word(w, t, from, to, head, open);
    switch (w->t->words.step[i].kind) {
    case IM_TOK_STEP_PREFIX: return prefix(w, i, t, from, to, head, open);
    case IM_TOK_STEP_METASPACE: return metaspace(w, i, t, from, to, head, open);
    case IM_TOK_STEP_BYTES: return bytes(w, i, t, from, to, head, open);
    default: return split(w, i, t, from, to, open);
    }
}

/* ---- normalizers ----------------------------------------------------------------------------------------------- */

static im_status replace(im_tok_walk *w, const im_tok_step *s, const im_tok_text *t, im_tok_made *m)
{
    size_t at = 0, done = 0, start = 0, end = 0, last = SIZE_MAX;
    while (at <= t->n) {
        im_tok_found found = IM_TOK_NONE;
        if (s->regex)
            IM_TRY(im_tok_regex_find(w->ctx, s->regex, w->match, t->s, t->n, at, false, &found, &start, &end));
        const char *p = !s->regex && s->literal.n ? memmem(t->s + at, t->n - at, s->literal.s, s->literal.n) : NULL;
        if (p) {
            start = (size_t)(p - t->s);
            end = start + s->literal.n;
        } else if (found != IM_TOK_FOUND) {
            break;
        }
        if (start == end && end == last) {
            at += at < t->n ? im_tok_char_bytes(t->s[at]) : 1;
            continue;
        }
        im_tok_made_copy(m, t, done, start);
        im_tok_made_put(m, s->with.s, s->with.n);
        done = at = last = end;
    }
    im_tok_made_copy(m, t, done, t->n);
    return IM_OK;
}

static void strip(const im_tok_step *s, const im_tok_text *t, im_tok_made *m)
{
    size_t from = 0, to = t->n, k;
    while (s->left && from < to && im_tok_is_space(im_tok_char(t->s + from, &k)))
        from += k;
    while (s->right && to > from && im_tok_is_space(im_tok_char(t->s + im_tok_char_before(t->s, to), &k)))
        to = im_tok_char_before(t->s, to);
    im_tok_made_copy(m, t, from, to);
}

static im_status normal_step(im_tok_walk *w, const im_tok_step *s, const im_tok_text *t, im_tok_made *m)
{
    switch (s->kind) {
    case IM_TOK_STEP_FORM: return im_tok_normal_form(w->ctx, s->form, t, 0, t->n, m);
    case IM_TOK_STEP_REPLACE: return replace(w, s, t, m);
    case IM_TOK_STEP_STRIP: strip(s, t, m); return IM_OK;
    case IM_TOK_STEP_BYTES: map_bytes(m, t, 0, t->n); return IM_OK;
    default: /* PREPEND */
        if (t->n && !w->head)
            im_tok_made_put(m, s->literal.s, s->literal.n);
        im_tok_made_copy(m, t, 0, t->n);
        return IM_OK;
    }
}

/* [from, to) of t, normalized: *out views it, and places in it are found through the chain. Without normalizers it is t, from `from` on. */
static im_status normalize(im_tok_walk *w, const im_tok_text *t, size_t from, size_t to, bool open, im_tok_text *out)
{
    im_tok_text now = {t->s + from, to - from, NULL, 0};
    im_tok_made *m = &w->normal[0];
    im_tok_made_begin(m, open); /* first a copy: marks count from the piece's start */
    im_tok_made_copy(m, t, from, to);
    IM_TRY(im_tok_made_end(w->ctx, m, &now));
    w->chain[w->nchain++] = m;
    for (size_t i = 0; i < w->t->normal.n; i++) {
        m = &w->normal[i + 1];
        im_tok_made_begin(m, open);
        IM_TRY(normal_step(w, &w->t->normal.step[i], &now, m));
        IM_TRY(im_tok_made_end(w->ctx, m, &now));
        w->chain[w->nchain++] = m;
    }
    *out = now;
    return IM_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* The last place at or in front of `to` where a character begins that joins with nothing in front of it, in any normal form. */
static size_t settled(const char *s, size_t from, size_t to, size_t n)
{
    for (size_t at = to, k; at > from; at--) {
        if (at == n || ((unsigned char)s[at] & 0xC0) == 0x80)
            continue;
        uint32_t c = im_tok_char(s + at, &k);
        if (c < 0x300 || (c >= 0x370 && c < 0x483) || (c >= 0x620 && c < 0x64B) || (c >= 0x3041 && c < 0x3097) || (c >= 0x30A1 && c < 0x30FB) ||
            (c >= 0x4E00 && c < 0xA000))
            return at;
    }
    return from;
}

static bool has_form(const im_tok *t)
{
    for (size_t i = 0; i < t->normal.n; i++)
        if (t->normal.step[i].kind == IM_TOK_STEP_FORM)
            return true;
    return false;
}

/* Where an open piece of t has to end: a token may begin behind it. */
static size_t last_known(const im_tok_trie *trie, const im_tok_text *t, size_t from)
{
    size_t longest = im_tok_trie_longest(trie);
    size_t end = t->n > longest ? t->n - longest : 0;
    while (end > from && end < t->n && ((unsigned char)t->s[end] & 0xC0) == 0x80)
        end--;
    return end > from ? end : from;
}

/* A token was found that the bytes to come could make longer, or take away: what is walked ends in front of it. */
static bool undecided(const im_tok_trie *trie, const im_tok_text *t, size_t from, size_t start, size_t end)
{
    return start > last_known(trie, t, from) || (im_tok_trie_reaches(trie) && end + IM_TOK_CHAR > t->n);
}

static im_status words(im_tok_walk *w, const im_tok_text *t, size_t from, size_t to, bool head, bool open)
{
    return step(w, 0, t, from, to, head, open);
}

/* What lies between added tokens of the text as it was given: normalized, and tokens found there. */
static im_status piece(im_tok_walk *w, const im_tok_text *t, size_t from, size_t to, bool open)
{
    im_tok_text x;
    size_t at = 0, done = 0, start, end, waits = SIZE_MAX, chain = w->nchain;
    const im_tok_added *a;
    const im_tok_trie *trie = w->t->trie[1];
    bool head = w->head;
    im_status status = IM_OK;
    if (from == to)
        return IM_OK;
    if (!w->t->normal.n && !im_tok_trie_longest(trie))
        return words(w, t, from, to, head, open);
    IM_TRY_GOTO(normalize(w, t, from, to, open, &x), unchain);
    while (w->sink.token && (a = im_tok_trie_find(trie, x.s, x.n, w->special_as_text, &at, done, &start, &end))) {
        if (open && undecided(trie, &x, done, start, end)) {
            waits = start;
            break;
        }
        if (done < start)
            IM_TRY_GOTO(words(w, &x, done, start, head, false), unchain);
        IM_TRY_GOTO(w->sink.token(w->sink.arg, a->id), unchain);
        done = end;
        head = w->first = false;
    }
    size_t stop = open && w->sink.token ? last_known(trie, &x, done) : x.n;
    IM_TRY_GOTO(words(w, &x, done, waits < stop ? waits : stop, head, open), unchain);
unchain:
    w->nchain = chain;
    return status;
}

static im_status pieces(im_tok_walk *w, const im_tok_text *t, bool open)
{
    size_t at = 0, done = 0, start, end, waits = SIZE_MAX;
    const im_tok_added *a;
    const im_tok_trie *trie = w->t->trie[0];
    w->head = w->inside;
    w->first = !w->begun;
    while (w->sink.token && (a = im_tok_trie_find(trie, t->s, t->n, w->special_as_text, &at, done, &start, &end))) {
        if (open && undecided(trie, t, done, start, end)) {
            waits = start;
            break;
        }
        if (done < start)
            IM_TRY(piece(w, t, done, start, false));
        IM_TRY(w->sink.token(w->sink.arg, a->id));
        done = end;
        w->head = w->first = false;
        if (open && !im_tok_trie_reaches(trie))
            cut(w, done, false);
    }
    size_t stop = open && w->sink.token ? last_known(trie, t, done) : t->n;
    stop = waits < stop ? waits : stop;
    if (open && has_form(w->t))
        stop = settled(t->s, done, stop, t->n);
    return piece(w, t, done, stop, open);
}

im_status im_tok_walk_run(im_tok_walk *w, const char *s, size_t n, bool last, size_t *used)
{
    im_tok_text t;
    w->nchain = 0;
    w->done = 0;
    *used = 0;
    if (!last && !w->t->streams)
        return IM_OK;
    if (!last)
        n -= im_tok_cut_short(s, n);
    IM_TRY(im_tok_scrub(w->ctx, &w->scrubbed, s, n, w->t->keeps && !w->replace, &t));
    if (t.s != s)
        w->chain[w->nchain++] = &w->scrubbed;
    IM_TRY(pieces(w, &t, !last));
    w->nchain = 0;
    *used = last ? n : w->done;
    w->begun = !last && (w->begun || w->done);
    w->inside = !last && (w->done ? w->done_inside : w->inside);
    return IM_OK;
}
