/* Tokens by id, ids by token, merges by pair: tables with open addressing that are filled once. */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

static size_t power_above(size_t n)
{
    size_t p = 16;
    while (p < 2 * n)
        p *= 2;
    return p;
}

im_status im_tok_table_create(im_context *ctx, im_tok_table *v, int64_t size, size_t count)
{
    void *tokens, *slots;
    IM_TRY(im_alloc(ctx, (size_t)size + 1, sizeof(im_tok_string), &tokens));
    size_t nslot = power_above(count);
    im_status status = im_alloc(ctx, nslot, sizeof(int32_t), &slots);
    if (status != IM_OK) {
        free(tokens);
        return status;
    }
    memset(slots, 0xff, nslot * sizeof(int32_t));
    *v = (im_tok_table){.token = tokens, .size = size, .slot = slots, .nslot = nslot};
    return IM_OK;
}

void im_tok_table_free(im_tok_table *v)
{
    free(v->token);
    free(v->slot);
    *v = (im_tok_table){0};
}

static size_t place(const im_tok_table *v, const char *s, size_t n)
{
    for (size_t i = (size_t)im_hash64(s, n, 0) & (v->nslot - 1);; i = (i + 1) & (v->nslot - 1)) {
        const im_tok_string *t = v->slot[i] < 0 ? NULL : &v->token[v->slot[i]];
        if (!t || (t->n == n && !memcmp(t->s, s, n)))
            return i;
    }
}

bool im_tok_table_add(im_tok_table *v, const char *s, size_t n, int32_t id)
{
    size_t i = place(v, s, n);
    if (v->slot[i] >= 0 || v->token[id].s)
        return false;
    v->slot[i] = id;
    v->token[id] = (im_tok_string){s, (uint32_t)n};
    v->count++;
    v->longest = n > v->longest ? n : v->longest;
    return true;
}

int32_t im_tok_table_find(const im_tok_table *v, const char *s, size_t n)
{
    return v->nslot ? v->slot[place(v, s, n)] : -1;
}

/* ---- merges -------------------------------------------------------------------------------------- */

im_status im_tok_merges_create(im_context *ctx, im_tok_merges *m, size_t n)
{
    size_t nslot = power_above(n);
    IM_TRY(im_alloc(ctx, nslot, sizeof *m->slot, (void **)&m->slot));
    for (size_t i = 0; i < nslot; i++)
        m->slot[i].pair = IM_TOK_NO_PAIR;
    m->nslot = nslot;
    m->n = 0;
    return IM_OK;
}

void im_tok_merges_free(im_tok_merges *m)
{
    free(m->slot);
    *m = (im_tok_merges){0};
}

void im_tok_merges_put(im_tok_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    im_tok_merge *found = (im_tok_merge *)im_tok_merges_find(m, left, right);
    if (found) {
        found->rank = rank;
        found->id = id;
        return;
    }
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 20) & (m->nslot - 1);
    while (m->slot[i].pair != IM_TOK_NO_PAIR)
        i = (i + 1) & (m->nslot - 1);
    m->slot[i] = (im_tok_merge){pair, rank, id};
    m->n++;
}

/* ---- where no merge reaches across ------------------------------------------------------------------ */

/* The symbols at both ends of each token. A token is a symbol (a character, a byte's token, the unknown one), or made by merges, whose
 * parts are shorter. One that is both, or has two ways to end, makes it unknowable: then words are not divided. */
typedef struct ends {
    int32_t *first, *last; /* [size]; -1: not known yet */
} ends;

static bool is_symbol(const im_tok_model *m, int32_t id)
{
    const im_tok_string *t = &m->vocab.token[id];
    if (id == m->unk || (t->n && im_tok_char_bytes(t->s[0]) == t->n))
        return true;
    for (int b = 0; m->byte_fallback && t->n == 6 && b < 256; b++)
        if (m->byte[b] == id)
            return true;
    return false;
}

typedef struct made {
    uint32_t length, left, right, id;
} made;

static int by_length(const void *a, const void *b)
{
    uint32_t x = ((const made *)a)->length, y = ((const made *)b)->length;
    return (x > y) - (x < y);
}

/* Merges, those that make shorter tokens first: the ends of both parts are known then. */
static im_status list_by_length(im_context *ctx, const im_tok_model *m, made **out)
{
    size_t n = 0;
    IM_TRY(im_alloc(ctx, m->merges.n + 1, sizeof **out, (void **)out));
    for (size_t i = 0; i < m->merges.nslot; i++) {
        const im_tok_merge *g = &m->merges.slot[i];
        if (g->pair != IM_TOK_NO_PAIR)
            (*out)[n++] = (made){m->vocab.token[g->id].n, (uint32_t)(g->pair >> 32), (uint32_t)g->pair, (uint32_t)g->id};
    }
    qsort(*out, n, sizeof **out, by_length);
    return IM_OK;
}

/* false: x has another one already. */
static bool set_end(int32_t *x, int32_t symbol)
{
    if (*x >= 0 && *x != symbol)
        return false;
    *x = symbol;
    return true;
}

static void add_seam(im_tok_model *m, const int *byte_of, int32_t left, int32_t right)
{
    im_tok_merges_put(&m->seam, left, right, 0, 0);
    if (byte_of[left] >= 0 && byte_of[right] >= 0)
        m->byte_seam[byte_of[left]][byte_of[right] >> 3] |= (unsigned char)(1 << (byte_of[right] & 7));
}

/* The seams of all merges; false: unknowable. A part that no merge makes and that is no symbol never comes up. */
static bool find_seams(im_tok_model *m, const made *list, ends *e, const int *byte_of)
{
    for (size_t i = 0; i < m->merges.n; i++) {
        const made *g = &list[i];
        int32_t first = e->first[g->left], middle_left = e->last[g->left], middle_right = e->first[g->right], last = e->last[g->right];
        if (first < 0 || last < 0)
            continue;
        add_seam(m, byte_of, middle_left, middle_right);
        if (is_symbol(m, (int32_t)g->id) || !set_end(&e->first[g->id], first) || !set_end(&e->last[g->id], last))
            return false;
    }
    return true;
}

static im_status list_seams(im_context *ctx, im_tok_model *m)
{
    im_status status = IM_OK;
    made *list = NULL;
    void *memory = NULL, *bytes = NULL;
    size_t n = (size_t)m->vocab.size;
    ends e;
    IM_TRY_GOTO(im_alloc(ctx, 2 * n + 1, sizeof(int32_t), &memory), free_list);
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof(int), &bytes), free_list);
    IM_TRY_GOTO(list_by_length(ctx, m, &list), free_list);
    IM_TRY_GOTO(im_tok_merges_create(ctx, &m->seam, m->merges.n), free_list);
    e = (ends){memory, (int32_t *)memory + n};
    int *byte_of = bytes;
    for (size_t i = 0; i < n; i++) {
        bool symbol = m->vocab.token[i].s && is_symbol(m, (int32_t)i);
        e.first[i] = e.last[i] = symbol ? (int32_t)i : -1;
        byte_of[i] = -1;
    }
    for (int b = 0; b < 256; b++)
        if (m->byte_symbol[b] >= 0)
            byte_of[m->byte_symbol[b]] = b;
    m->divides = find_seams(m, list, &e, byte_of);
free_list:
    free(list);
    free(memory);
    free(bytes);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------------------ */

enum { PAGES = 0x1100, PAGE = 256 };

static im_status fill_pages(im_context *ctx, im_tok_model *m)
{
    IM_TRY(im_alloc(ctx, PAGES, sizeof *m->page, (void **)&m->page));
    for (int64_t i = 0; i < m->vocab.size; i++) {
        const im_tok_string *t = &m->vocab.token[i];
        size_t n;
        if (!t->s || !t->n || im_tok_char_bytes(t->s[0]) != t->n)
            continue;
        uint32_t c = im_tok_char(t->s, &n);
        int32_t **page = &m->page[c / PAGE];
        if (!*page) {
            IM_TRY(im_alloc(ctx, PAGE, sizeof **page, (void **)page));
            memset(*page, 0xff, PAGE * sizeof **page);
        }
        (*page)[c % PAGE] = (int32_t)i;
    }
    for (int b = 0; b < 256; b++)
        m->byte_symbol[b] = im_tok_symbol(m, im_tok_byte_char((unsigned char)b));
    return IM_OK;
}

im_status im_tok_model_finish(im_context *ctx, im_tok_model *m)
{
    IM_TRY(fill_pages(ctx, m));
    return list_seams(ctx, m);
}

void im_tok_model_free(im_tok_model *m)
{
    for (size_t i = 0; m->page && i < PAGES; i++)
        free(m->page[i]);
    free(m->page);
    im_tok_table_free(&m->vocab);
    im_tok_merges_free(&m->merges);
    im_tok_merges_free(&m->seam);
}
