/* Merges from counted words.
 *
 * Hugging Face's trainer, step for step, so that the same text gives the same tokens: the pair with the highest count (of several the one with
 * the smaller ids) becomes a token in all words where it is known to be, which changes the counts of the pairs around it. Pairs are kept with the
 * places where they were seen, as entries in a heap by count; a count may have changed since, then the entry goes back with the new one.
 *
 * A pair can have several entries: when a token comes up again (ab+c and a+bc are both abc), its pairs do. Each entry merges in its own words only,
 * and when its turn comes; a merge that happens twice counts from the second time. That library works so, and so the files agree.
 *
 * It differs in what a step costs. There a step looks through the words of its pair; here places are positions in one array, a merge touches its
 * neighbours alone, and a word of a megabyte is as good as many short ones: all merges together are n log n steps for n symbols.
 *
 *   symbol   t h e . a n d .          -1 ends a word, -2 was merged into what is in front of it
 *   span     1 1 1   1 1 1            symbols that one covers, at its first and its last position
 */
#include "data/tok_train_parts.h"

#include <stdlib.h>
#include <string.h>

enum { END = -1, GONE = -2, NONE = -1 };

typedef struct entry {
    uint64_t pair;
    uint32_t *at; /* positions, ascending */
    size_t n, cap;
    int32_t same; /* next entry of the same pair */
} entry;

typedef struct pair_count {
    uint64_t pair; /* IM_TOK_NO_PAIR: free */
    int64_t count;
    int32_t entries; /* the first waiting one */
    int32_t open;    /* the one that this step fills */
} pair_count;

typedef struct waiting {
    uint64_t count, pair;
    int32_t entry;
} waiting;

typedef struct school {
    im_context *ctx;
    im_tok_lesson *l;
    uint32_t *span;
    entry *entry;
    size_t nentry, entry_cap;
    int32_t free_entry; /* chain of entries that are done */
    pair_count *slot;
    size_t nslot, npair;
    waiting *heap;
    size_t nheap, heap_cap;
    int32_t *opened; /* entries of this step */
    size_t nopened, opened_cap;
    im_tok_learned *merge;
    size_t nmerge, merge_cap;
} school;

static im_status no_memory(const school *s)
{
    return im_fail(s->ctx, IM_ERR_NOMEM, "no memory to train on %zu symbols", s->l->nsymbol);
}

static im_status room(const school *s, void **array, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return IM_OK;
    size_t more = *cap ? 2 * *cap : 16;
    void *p = realloc(*array, more * size);
    if (!p)
        return no_memory(s);
    *array = p;
    *cap = more;
    return IM_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static pair_count *place(const school *s, uint64_t pair)
{
    size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 20) & (s->nslot - 1);
    while (s->slot[i].pair != pair && s->slot[i].pair != IM_TOK_NO_PAIR)
        i = (i + 1) & (s->nslot - 1);
    return &s->slot[i];
}

static im_status widen(school *s)
{
    size_t old = s->nslot, n = old ? 2 * old : 1 << 12;
    pair_count *was = s->slot, *slots = malloc(n * sizeof *slots);
    if (!slots)
        return no_memory(s);
    for (size_t i = 0; i < n; i++)
        slots[i].pair = IM_TOK_NO_PAIR;
    s->slot = slots;
    s->nslot = n;
    for (size_t i = 0; i < old; i++)
        if (was[i].pair != IM_TOK_NO_PAIR)
            *place(s, was[i].pair) = was[i];
    free(was);
    return IM_OK;
}

static im_status count_of(school *s, uint64_t pair, pair_count **out)
{
    if (2 * (s->npair + 1) > s->nslot)
        IM_TRY(widen(s));
    pair_count *p = place(s, pair);
    if (p->pair == IM_TOK_NO_PAIR) {
        *p = (pair_count){pair, 0, NONE, NONE};
        s->npair++;
    }
    *out = p;
    return IM_OK;
}

static im_status take_entry(school *s, uint64_t pair, int32_t *out)
{
    int32_t e = s->free_entry;
    if (e != NONE) {
        s->free_entry = s->entry[e].same;
    } else {
        IM_TRY(room(s, (void **)&s->entry, &s->entry_cap, s->nentry, sizeof *s->entry));
        e = (int32_t)s->nentry++;
    }
    s->entry[e] = (entry){.pair = pair, .same = NONE};
    *out = e;
    return IM_OK;
}

static void drop_entry(school *s, int32_t e)
{
    free(s->entry[e].at);
    s->entry[e] = (entry){.same = s->free_entry};
    s->free_entry = e;
}

/* The pair gained `count` at a position. */
static im_status gain(school *s, uint64_t pair, int64_t count, size_t at)
{
    pair_count *p;
    IM_TRY(count_of(s, pair, &p));
    p->count += count;
    if (p->open == NONE) {
        IM_TRY(room(s, (void **)&s->opened, &s->opened_cap, s->nopened, sizeof *s->opened));
        IM_TRY(take_entry(s, pair, &p->open));
        s->opened[s->nopened++] = p->open;
    }
    entry *e = &s->entry[p->open];
    IM_TRY(room(s, (void **)&e->at, &e->cap, e->n, sizeof *e->at));
    e->at[e->n++] = (uint32_t)at;
    return IM_OK;
}

static im_status lose(school *s, uint64_t pair, int64_t count)
{
    pair_count *p;
    IM_TRY(count_of(s, pair, &p));
    p->count -= count;
    return IM_OK;
}

/* ---- heap ----------------------------------------------------------------------------------------------------- */

static bool before(const waiting *a, const waiting *b)
{
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static im_status push(school *s, waiting x)
{
    IM_TRY(room(s, (void **)&s->heap, &s->heap_cap, s->nheap, sizeof *s->heap));
    size_t i = s->nheap++;
    for (; i && before(&x, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
    return IM_OK;
}

static waiting pop(school *s)
{
    waiting top = s->heap[0], x = s->heap[--s->nheap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->nheap)
            break;
        if (child + 1 < s->nheap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &x))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = x;
    return top;
}

/* Entries that this step filled wait from now on, unless their pair has no count left. */
static im_status close_opened(school *s)
{
    for (size_t i = 0; i < s->nopened; i++) {
        int32_t e = s->opened[i];
        pair_count *p = place(s, s->entry[e].pair);
        p->open = NONE;
        if (p->count <= 0) {
            drop_entry(s, e);
            continue;
        }
        s->entry[e].same = p->entries;
        p->entries = e;
        IM_TRY(push(s, (waiting){(uint64_t)p->count, p->pair, e}));
    }
    s->nopened = 0;
    return IM_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------------- */

static im_status count_pairs(school *s)
{
    const im_tok_lesson *l = s->l;
    for (size_t i = 0; i + 1 < l->nsymbol; i++)
        if (l->symbol[i] >= 0 && l->symbol[i + 1] >= 0)
            IM_TRY(gain(s, pair_of(l->symbol[i], l->symbol[i + 1]), (int64_t)l->count[l->word[i]], i));
    return close_opened(s);
}

/* Merges what stands at `at`, if the pair is (still) there. */
static im_status merge_at(school *s, size_t at, int32_t left, int32_t right, int32_t id)
{
    im_tok_lesson *l = s->l;
    int32_t *symbol = l->symbol;
    if (symbol[at] != left)
        return IM_OK;
    size_t next = at + s->span[at];
    if (symbol[next] != right)
        return IM_OK;
    int64_t count = (int64_t)l->count[l->word[at]];
    size_t span = s->span[at] + s->span[next], behind = at + span;
    symbol[at] = id;
    symbol[next] = GONE;
    s->span[at] = s->span[behind - 1] = (uint32_t)span;
    if (at > 0 && symbol[at - 1] != END) {
        size_t front = at - s->span[at - 1];
        IM_TRY(lose(s, pair_of(symbol[front], left), count));
        if (s->span[front] + span < l->max_length)
            IM_TRY(gain(s, pair_of(symbol[front], id), count, front));
    }
    if (symbol[behind] != END) {
        IM_TRY(lose(s, pair_of(right, symbol[behind]), count));
        if (s->span[behind] + span < l->max_length)
            IM_TRY(gain(s, pair_of(id, symbol[behind]), count, at));
    }
    return IM_OK;
}

static int by_position(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool has_word(const school *s, const entry *e, uint32_t word)
{
    size_t low = 0, high = e->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->l->word[e->at[middle]] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low < e->n && s->l->word[e->at[low]] == word;
}

/* Positions of the pair's other entries that are in words of e: a word is merged as a whole. */
static im_status gather(school *s, int32_t e, int32_t first)
{
    size_t own = s->entry[e].n, n = own;
    uint32_t *all = NULL;
    for (int32_t x = first; x != NONE; x = s->entry[x].same)
        n += s->entry[x].n;
    all = malloc((n + 1) * sizeof *all);
    if (!all)
        return no_memory(s);
    memcpy(all, s->entry[e].at, own * sizeof *all);
    n = own;
    for (int32_t x = first; x != NONE; x = s->entry[x].same) {
        entry *other = &s->entry[x];
        size_t kept = 0;
        for (size_t i = 0; x != e && i < other->n; i++) {
            if (has_word(s, &s->entry[e], s->l->word[other->at[i]]))
                all[n++] = other->at[i];
            else
                other->at[kept++] = other->at[i];
        }
        if (x != e)
            other->n = kept;
    }
    qsort(all, n, sizeof *all, by_position);
    free(s->entry[e].at);
    s->entry[e].at = all;
    s->entry[e].n = s->entry[e].cap = n;
    return IM_OK;
}

/* Takes e off its pair's chain. */
static void unchain(school *s, pair_count *p, int32_t e)
{
    int32_t *link = &p->entries;
    while (*link != e)
        link = &s->entry[*link].same;
    *link = s->entry[e].same;
}

static im_status merge_entry(school *s, int32_t e, int32_t id)
{
    uint64_t pair = s->entry[e].pair;
    pair_count *p = place(s, pair);
    unchain(s, p, e);
    if (p->entries != NONE && s->entry[e].n)
        IM_TRY(gather(s, e, p->entries));
    for (size_t i = 0; i < s->entry[e].n; i++) /* gain may move the entries */
        IM_TRY(merge_at(s, s->entry[e].at[i], (int32_t)(pair >> 32), (int32_t)(uint32_t)pair, id));
    drop_entry(s, e);
    return close_opened(s);
}

/* The token of both parts: a new one, unless their text is one already. */
static im_status token_of(school *s, int32_t left, int32_t right, int32_t *out)
{
    im_tok_table *v = s->l->vocab;
    const im_tok_string *a = &v->token[left], *b = &v->token[right];
    size_t n = (size_t)a->n + b->n;
    char *text = im_arena_alloc(s->l->arena, n + 1);
    if (!text)
        return no_memory(s);
    memcpy(text, a->s, a->n);
    memcpy(text + a->n, b->s, b->n);
    *out = im_tok_table_find(v, text, n);
    if (*out >= 0)
        return IM_OK;
    *out = (int32_t)v->count;
    if (*out >= v->size || !im_tok_table_add(v, text, n, *out))
        return im_fail(s->ctx, IM_ERR_INTERNAL, "training: no place for token %d", *out);
    return IM_OK;
}

static im_status learn(school *s, im_tok_train_progress progress, void *arg, bool *exhausted)
{
    const im_tok_lesson *l = s->l;
    *exhausted = false;
    while (l->vocab->count < l->vocab_size) {
        if (!s->nheap) {
            *exhausted = true;
            break;
        }
        waiting top = pop(s);
        uint64_t now = (uint64_t)place(s, top.pair)->count;
        if (top.count != now) {
            top.count = now;
            IM_TRY(push(s, top));
            continue;
        }
        if (top.count < 1 || top.count < l->min_frequency) {
            *exhausted = true;
            break;
        }
        im_tok_learned m = {(int32_t)(top.pair >> 32), (int32_t)(uint32_t)top.pair, 0};
        IM_TRY(token_of(s, m.left, m.right, &m.id));
        IM_TRY(room(s, (void **)&s->merge, &s->merge_cap, s->nmerge, sizeof *s->merge));
        s->merge[s->nmerge++] = m;
        IM_TRY(merge_entry(s, top.entry, m.id));
        if (progress && s->nmerge % 256 == 0 && progress(arg, l->vocab->count, l->vocab_size))
            return im_fail(s->ctx, IM_ERR_ABORTED, "training was stopped after %zu merges", s->nmerge);
    }
    return IM_OK;
}

im_status im_tok_learn(im_context *ctx, im_tok_lesson *lesson, im_tok_train_progress progress, void *arg, im_tok_learned **out, size_t *n,
                       bool *exhausted)
{
    school s = {.ctx = ctx, .l = lesson, .free_entry = NONE};
    im_status status = IM_OK;
    if (lesson->nsymbol >= UINT32_MAX)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "training: %zu symbols in different words; at most %u", lesson->nsymbol, UINT32_MAX - 1);
    IM_TRY_GOTO(im_alloc(ctx, lesson->nsymbol + 1, sizeof *s.span, (void **)&s.span), free_school);
    IM_TRY_GOTO(widen(&s), free_school);
    for (size_t i = 0; i < lesson->nsymbol; i++)
        s.span[i] = 1;
    IM_TRY_GOTO(count_pairs(&s), free_school);
    IM_TRY_GOTO(learn(&s, progress, arg, exhausted), free_school);
    *out = s.merge;
    *n = s.nmerge;
    s.merge = NULL;
free_school:
    for (size_t i = 0; i < s.nentry; i++)
        free(s.entry[i].at);
    free(s.merge);
    free(s.span);
    free(s.entry);
    free(s.slot);
    free(s.heap);
    free(s.opened);
    return status;
}
