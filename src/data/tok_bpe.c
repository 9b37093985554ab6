/* The ids of a word.
 *
 * A word is its symbols: characters, or bytes. Of all pairs of neighbours that the file has a merge for, the one with the least rank becomes
 * one symbol (the leftmost, where several are alike), and again, until none is left. Short words look at all pairs each time; long ones keep
 * the pairs in a heap: n log n steps for n symbols.
 *
 * Two things make it quick. Words repeat, so the ids of short ones are kept. And a merge joins only what some merge has side by side: where two
 * symbols meet that never do, a long word falls apart into independent pieces, which are short and repeat too (a text whose tokenizer does not
 * cut it into words is one long word).
 */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEPT_BYTES = 64, /* longest word that is kept */
    KEPT_IDS = 64,
    FIRST_SLOTS = 1 << 8, /* words kept: three quarters of it; then 4 times as many, and so on */
    SLOTS = 1 << 16,      /* at most */
    SLOT_BYTES = 16,      /* room for the text of kept words, and for their ids */
    SHORT = 40            /* symbols: with more a heap pays */
};

typedef struct kept {
    uint64_t hash; /* 0: free */
    uint32_t text, id;
    uint8_t ntext, nid;
} kept;

typedef struct node {
    int32_t id, prev, next; /* id -1: merged into the one before */
} node;

struct im_tok_bpe {
    im_context *ctx;
    const im_tok *t;
    im_str raw, mapped; /* a word with its own bytes; with the characters that stand for them */
    int32_t *symbol;
    size_t nsymbol, symbol_cap;
    node *node;
    size_t node_cap;
    uint64_t *heap; /* rank << 32 | place */
    size_t nheap, heap_cap;
    kept *slot;
    char *text;
    int32_t *id;
    size_t nslot, nkept, ntext, nid;
};

/* Room for nslot words. false: no memory, and what is kept stays as it was. */
static bool widen(im_tok_bpe *b, size_t nslot)
{
    char *text = realloc(b->text, nslot * SLOT_BYTES);
    if (text)
        b->text = text;
    int32_t *id = realloc(b->id, nslot * SLOT_BYTES);
    if (id)
        b->id = id;
    kept *slot = calloc(nslot, sizeof *slot), *old = b->slot;
    if (!text || !id || !slot) {
        free(slot);
        return false;
    }
    for (size_t i = 0; i < b->nslot; i++) {
        size_t at = old[i].hash % nslot;
        if (!old[i].hash)
            continue;
        while (slot[at].hash)
            at = (at + 1) % nslot;
        slot[at] = old[i];
    }
    free(old);
    b->slot = slot;
    b->nslot = nslot;
    return true;
}

im_status im_tok_bpe_create(im_context *ctx, const im_tok *t, im_tok_bpe **out)
{
    im_tok_bpe *b;
    IM_TRY(im_alloc(ctx, 1, sizeof *b, (void **)&b));
    b->ctx = ctx;
    b->t = t;
    if (!widen(b, FIRST_SLOTS)) {
        im_tok_bpe_free(b);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %d words", FIRST_SLOTS);
    }
    *out = b;
    return IM_OK;
}

void im_tok_bpe_free(im_tok_bpe *b)
{
    if (!b)
        return;
    im_str_free(&b->raw);
    im_str_free(&b->mapped);
    free(b->symbol);
    free(b->node);
    free(b->heap);
    free(b->slot);
    free(b->text);
    free(b->id);
    free(b);
}

static im_status room(im_context *ctx, void **array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return IM_OK;
    size_t more = *cap ? *cap : 64;
    while (more < need)
        more *= 2;
    void *p = realloc(*array, more * size);
    if (!p)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu tokens", more);
    *array = p;
    *cap = more;
    return IM_OK;
}

im_status im_tok_ids_room(im_context *ctx, im_tok_ids *ids, size_t more)
{
    return room(ctx, (void **)&ids->id, &ids->cap, ids->n + more, sizeof *ids->id);
}

void im_tok_ids_free(im_tok_ids *ids)
{
    free(ids->id);
    *ids = (im_tok_ids){0};
}

/* ---- words that were seen before --------------------------------------------------------------------- */

static kept *find_kept(im_tok_bpe *b, const char *s, size_t n, uint64_t hash)
{
    for (size_t i = hash % b->nslot;; i = (i + 1) % b->nslot) {
        kept *k = &b->slot[i];
        if (!k->hash || (k->hash == hash && k->ntext == n && !memcmp(b->text + k->text, s, n)))
            return k;
    }
}

/* When there is no more room, everything is forgotten: what matters comes back soon. */
static void keep(im_tok_bpe *b, const char *s, size_t n, uint64_t hash, const int32_t *id, size_t nid)
{
    size_t most = b->nslot * SLOT_BYTES;
    bool full = b->ntext + n > most || b->nid + nid > most / sizeof(int32_t) || b->nkept >= b->nslot / 4 * 3;
    if (full && (b->nslot >= SLOTS || !widen(b, 4 * b->nslot))) {
        memset(b->slot, 0, b->nslot * sizeof *b->slot);
        b->nkept = b->ntext = b->nid = 0;
    }
    kept *k = find_kept(b, s, n, hash);
    *k = (kept){hash, (uint32_t)b->ntext, (uint32_t)b->nid, (uint8_t)n, (uint8_t)nid};
    memcpy(b->text + b->ntext, s, n);
    memcpy(b->id + b->nid, id, nid * sizeof *id);
    b->ntext += n;
    b->nid += nid;
    b->nkept++;
}

/* ---- symbols -------------------------------------------------------------------------------------------- */

/* A character that has no token: the tokens of its bytes if all have one, else the unknown token, which waits for the next known character
 * and may take others along. *waits: one is waiting. */
static void add_unknown(im_tok_bpe *b, const char *s, size_t n, bool *waits)
{
    const im_tok_model *m = &b->t->model;
    bool bytes = m->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = m->byte[(unsigned char)s[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < n; i++)
            b->symbol[b->nsymbol++] = m->byte[(unsigned char)s[i]];
        return;
    }
    if (m->unk < 0)
        return;
    if (*waits && !m->fuse_unk)
        b->symbol[b->nsymbol++] = m->unk;
    *waits = true;
}

static void add_symbol(im_tok_bpe *b, int32_t id, bool *waits)
{
    if (*waits)
        b->symbol[b->nsymbol++] = b->t->model.unk;
    *waits = false;
    b->symbol[b->nsymbol++] = id;
}

static im_status make_symbols(im_tok_bpe *b, const char *s, size_t n)
{
    const im_tok_model *m = &b->t->model;
    bool waits = false, bytes = b->t->bytes;
    size_t k, most = (bytes ? 2 : 1) * n + 2; /* the character that stands for a byte may fall back to its own two */
    if (n > INT32_MAX / 4)
        return im_fail(b->ctx, IM_ERR_UNSUPPORTED, "a word of %zu bytes: at most %d", n, INT32_MAX / 4);
    IM_TRY(room(b->ctx, (void **)&b->symbol, &b->symbol_cap, most, sizeof *b->symbol));
    b->nsymbol = 0;
    for (size_t i = 0; i < n; i += k) {
        uint32_t c = bytes ? (unsigned char)s[i] : im_tok_char(s + i, &k);
        int32_t id = bytes ? m->byte_symbol[c] : im_tok_symbol(m, c);
        k = bytes ? 1 : k;
        if (id >= 0) {
            add_symbol(b, id, &waits);
        } else {
            char text[IM_TOK_CHAR];
            size_t length = im_tok_put_char(bytes ? im_tok_byte_char((unsigned char)c) : c, text);
            add_unknown(b, text, length, &waits);
        }
    }
    if (waits)
        b->symbol[b->nsymbol++] = m->unk;
    return IM_OK;
}

/* ---- merging ---------------------------------------------------------------------------------------------- */

static void merge_short(im_tok_bpe *b)
{
    const im_tok_merges *merges = &b->t->model.merges;
    const im_tok_merge *pair[SHORT], *m;
    int32_t *s = b->symbol;
    size_t n = b->nsymbol;
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = im_tok_merges_find(merges, s[i], s[i + 1]);
    for (;;) {
        size_t best = 0;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] && pair[i]->rank < rank) {
                rank = pair[i]->rank;
                best = i;
            }
        if (rank == UINT32_MAX)
            break;
        m = pair[best];
        s[best] = m->id;
        memmove(s + best + 1, s + best + 2, (n - best - 2) * sizeof *s);
        if (best + 2 < n)
            memmove(pair + best, pair + best + 1, (n - best - 2) * sizeof *pair);
        n--;
        if (best > 0)
            pair[best - 1] = im_tok_merges_find(merges, s[best - 1], s[best]);
        if (best + 1 < n)
            pair[best] = im_tok_merges_find(merges, s[best], s[best + 1]);
    }
    b->nsymbol = n;
}

static void push(im_tok_bpe *b, uint64_t x)
{
    size_t i = b->nheap++;
    for (; i && b->heap[(i - 1) / 4] > x; i = (i - 1) / 4)
        b->heap[i] = b->heap[(i - 1) / 4];
    b->heap[i] = x;
}

static uint64_t pop(im_tok_bpe *b)
{
    uint64_t top = b->heap[0], x = b->heap[--b->nheap];
    size_t i = 0, n = b->nheap;
    for (;;) {
        size_t child = 4 * i + 1, least = child;
        if (child >= n)
            break;
        for (size_t k = child + 1; k < n && k < child + 4; k++)
            if (b->heap[k] < b->heap[least])
                least = k;
        if (b->heap[least] >= x)
            break;
        b->heap[i] = b->heap[least];
        i = least;
    }
    b->heap[i] = x;
    return top;
}

static void push_pair(im_tok_bpe *b, int32_t left, int32_t right)
{
    const im_tok_merge *m = im_tok_merges_find(&b->t->model.merges, b->node[left].id, b->node[right].id);
    if (m)
        push(b, (uint64_t)m->rank << 32 | (uint32_t)left);
}

static im_status merge_long(im_tok_bpe *b)
{
    int32_t n = (int32_t)b->nsymbol;
    IM_TRY(room(b->ctx, (void **)&b->node, &b->node_cap, (size_t)n, sizeof *b->node));
    IM_TRY(room(b->ctx, (void **)&b->heap, &b->heap_cap, 3 * (size_t)n, sizeof *b->heap)); /* a merge puts in two and was taken out */
    b->nheap = 0;
    for (int32_t i = 0; i < n; i++)
        b->node[i] = (node){b->symbol[i], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < n; i++)
        push_pair(b, i, i + 1);
    while (b->nheap) {
        uint64_t top = pop(b);
        node *left = &b->node[(uint32_t)top];
        if (left->id < 0 || left->next < 0)
            continue;
        node *right = &b->node[left->next];
        const im_tok_merge *m = im_tok_merges_find(&b->t->model.merges, left->id, right->id);
        if (!m || m->rank != top >> 32) /* another pair stands there now */
            continue;
        left->id = m->id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            b->node[left->next].prev = (int32_t)(uint32_t)top;
        if (left->prev >= 0)
            push_pair(b, left->prev, (int32_t)(uint32_t)top);
        if (left->next >= 0)
            push_pair(b, (int32_t)(uint32_t)top, left->next);
    }
    b->nsymbol = 0;
    for (int32_t i = 0; i < n; i++)
        if (b->node[i].id >= 0)
            b->symbol[b->nsymbol++] = b->node[i].id;
    return IM_OK;
}

/* ---- words -------------------------------------------------------------------------------------------------- */

/* The token that is this word as a whole; -1: none. */
static int32_t whole_token(im_tok_bpe *b, const char *s, size_t n)
{
    const im_tok_table *v = &b->t->model.vocab;
    if (n > v->longest)
        return -1;
    if (!b->t->bytes)
        return im_tok_table_find(v, s, n);
    b->mapped.len = 0;
    for (size_t i = 0; i < n; i++) {
        char text[IM_TOK_CHAR];
        size_t k = im_tok_put_char(im_tok_byte_char((unsigned char)s[i]), text);
        im_str_append_n(&b->mapped, text, k);
    }
    return b->mapped.failed ? -1 : im_tok_table_find(v, im_str_text(&b->mapped), b->mapped.len);
}

static im_status compute(im_tok_bpe *b, const char *s, size_t n, bool whole)
{
    int32_t id = whole && b->t->model.ignore_merges ? whole_token(b, s, n) : -1;
    IM_TRY(make_symbols(b, s, n));
    if (id >= 0) {
        b->symbol[0] = id;
        b->nsymbol = 1;
        return IM_OK;
    }
    if (b->nsymbol > SHORT)
        return merge_long(b);
    if (b->nsymbol > 1)
        merge_short(b);
    return IM_OK;
}

/* With the bytes that marks stand for. */
static void restore(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to)
{
    b->raw.len = 0;
    for (size_t i = im_tok_first_mark(t, from); i < t->nmark && t->mark[i].at < to; i++) {
        im_str_append_n(&b->raw, t->s + from, t->mark[i].at - from);
        im_str_append_n(&b->raw, (const char *)t->mark[i].raw, t->mark[i].n);
        from = t->mark[i].at + 3;
    }
    im_str_append_n(&b->raw, t->s + from, to - from);
}

/* whole: [from, to) is all of a word. */
static im_status add(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to, bool whole, im_tok_ids *out)
{
    const char *s = t->s + from;
    size_t n = to - from;
    if (b->t->bytes && im_tok_has_mark(t, from, to)) {
        restore(b, t, from, to);
        if (b->raw.failed)
            return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for a word of %zu bytes", n);
        s = b->raw.data;
        n = b->raw.len;
    }
    uint64_t hash = 0;
    if (n <= KEPT_BYTES) {
        hash = im_hash64(s, n, whole) | 1;
        const kept *k = find_kept(b, s, n, hash);
        if (k->hash) {
            IM_TRY(im_tok_ids_room(b->ctx, out, k->nid));
            memcpy(out->id + out->n, b->id + k->id, k->nid * sizeof *b->id);
            out->n += k->nid;
            return IM_OK;
        }
    }
    IM_TRY(compute(b, s, n, whole));
    IM_TRY(im_tok_ids_room(b->ctx, out, b->nsymbol));
    if (b->nsymbol)
        memcpy(out->id + out->n, b->symbol, b->nsymbol * sizeof *b->symbol);
    out->n += b->nsymbol;
    if (n <= KEPT_BYTES && b->nsymbol <= KEPT_IDS)
        keep(b, s, n, hash, b->symbol, b->nsymbol);
    return IM_OK;
}

/* The first place behind `at` where a character begins that no merge joins with the one before; `to`: there is none. */
static size_t next_seam(const im_tok_bpe *b, const im_tok_text *t, size_t at, size_t to)
{
    const im_tok_model *m = &b->t->model;
    size_t k, mark = t->nmark ? im_tok_first_mark(t, at) : 0;
    int32_t before = -1; /* the symbol in front of `at`; -1: none, no seam here */
    for (; at < to; at += k) {
        uint32_t c = im_tok_char(t->s + at, &k);
        bool marked = mark < t->nmark && t->mark[mark].at == at;
        int32_t first, last;
        if (b->t->bytes) {
            unsigned char head = (unsigned char)t->s[at], tail = (unsigned char)t->s[at + k - 1];
            first = m->byte_symbol[head];
            last = m->byte_symbol[tail];
            if (before >= 0 && first >= 0 && !marked && !(m->byte_seam[(unsigned char)t->s[at - 1]][head >> 3] >> (head & 7) & 1))
                return at;
        } else {
            first = last = im_tok_symbol(m, c);
            if (before >= 0 && first >= 0 && !im_tok_merges_find(&m->seam, before, first))
                return at;
        }
        before = marked ? -1 : last;
        mark += marked;
    }
    return to;
}

im_status im_tok_bpe_word(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to, bool goes_on, im_tok_ids *out)
{
    const im_tok_model *m = &b->t->model;
    bool whole = !goes_on;
    if (to - from <= KEPT_BYTES || !m->divides)
        return add(b, t, from, to, whole, out);
    if (whole && m->ignore_merges && (im_tok_has_mark(t, from, to) ? to - from <= 3 * m->vocab.longest : whole_token(b, t->s + from, to - from) >= 0))
        return add(b, t, from, to, true, out);
    while (from < to) {
        size_t end = next_seam(b, t, from, to);
        IM_TRY(add(b, t, from, end, false, out));
        from = end;
    }
    return IM_OK;
}

im_status im_tok_bpe_part(im_tok_bpe *b, const im_tok_text *t, size_t from, size_t to, bool goes_on, im_tok_ids *out, size_t *used)
{
    const im_tok_model *m = &b->t->model;
    *used = from;
    if (!goes_on && m->ignore_merges && to - from <= 3 * m->vocab.longest) /* it may be a token as a whole */
        return IM_OK;
    while (m->divides) {
        size_t end = next_seam(b, t, from, to);
        if (end == to)
            break;
        IM_TRY(add(b, t, from, end, false, out));
        *used = from = end;
    }
    return IM_OK;
}
