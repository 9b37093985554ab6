/* Added tokens: found in the text before it is cut into words, the leftmost first, and the longest of those that begin there.
 *
 * A tree of their bytes. A token has at most IM_TOK_ADDED_BYTES of them, which bounds the steps at each place; most places end at the first
 * byte.
 */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct branch {
    unsigned char byte;
    int32_t node;
} branch;

typedef struct tree_node {
    int32_t token;     /* that ends here; -1: none */
    uint32_t first, n; /* branches, by byte */
} tree_node;

struct im_tok_trie {
    const im_tok_added *added;
    tree_node *node;
    branch *branch;
    size_t nnode, nbranch;
    int32_t root[256]; /* node of the first byte; -1: none */
    size_t longest;
    bool reaches;
};

typedef struct pattern {
    const char *s;
    size_t n;
    int32_t token;
} pattern;

static int by_text(const void *a, const void *b)
{
    const pattern *x = a, *y = b;
    int order = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (order)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* The node of sorted patterns [from, to), which agree in their first `depth` bytes. Deep recursion is bounded by IM_TOK_ADDED_BYTES. */
static int32_t build(im_tok_trie *t, const pattern *p, size_t from, size_t to, size_t depth)
{
    int32_t me = (int32_t)t->nnode++;
    t->node[me].token = -1;
    if (p[from].n == depth)
        t->node[me].token = p[from].token; /* of several alike the first in the file */
    while (from < to && p[from].n == depth)
        from++;
    uint32_t first = (uint32_t)t->nbranch, n = 0;
    for (size_t i = from; i < to; i++)
        n += i == from || p[i].s[depth] != p[i - 1].s[depth];
    t->nbranch += n;
    t->node[me].first = first;
    t->node[me].n = n;
    for (uint32_t k = 0; k < n; k++) {
        size_t end = from + 1;
        while (end < to && p[end].s[depth] == p[from].s[depth])
            end++;
        t->branch[first + k].byte = (unsigned char)p[from].s[depth];
        t->branch[first + k].node = build(t, p, from, end, depth + 1);
        from = end;
    }
    return me;
}

im_status im_tok_trie_create(im_context *ctx, const im_tok_added *added, size_t n, bool normalized, im_tok_trie **out)
{
    im_status status = IM_OK;
    im_tok_trie *t;
    pattern *p = NULL;
    size_t np = 0, bytes = 1;
    IM_TRY(im_alloc(ctx, 1, sizeof *t, (void **)&t));
    t->added = added;
    IM_TRY_GOTO(im_alloc(ctx, n + 1, sizeof *p, (void **)&p), free_trie);
    for (size_t i = 0; i < n; i++) {
        const im_tok_added *a = &added[i];
        if (a->normalized != normalized || !a->pattern_len)
            continue;
        p[np++] = (pattern){a->pattern, a->pattern_len, (int32_t)i};
        bytes += a->pattern_len;
        t->longest = a->pattern_len > t->longest ? a->pattern_len : t->longest;
        t->reaches = t->reaches || a->single_word || a->lstrip || a->rstrip;
    }
    IM_TRY_GOTO(im_alloc(ctx, bytes + 1, sizeof *t->node, (void **)&t->node), free_trie);
    IM_TRY_GOTO(im_alloc(ctx, bytes + 1, sizeof *t->branch, (void **)&t->branch), free_trie);
    memset(t->root, 0xff, sizeof t->root);
    if (np) {
        qsort(p, np, sizeof *p, by_text);
        build(t, p, 0, np, 0);
        for (uint32_t k = 0; k < t->node[0].n; k++)
            t->root[t->branch[t->node[0].first + k].byte] = t->branch[t->node[0].first + k].node;
    }
    free(p);
    *out = t;
    return IM_OK;
free_trie:
    free(p);
    im_tok_trie_free(t);
    return status;
}

void im_tok_trie_free(im_tok_trie *t)
{
    if (!t)
        return;
    free(t->node);
    free(t->branch);
    free(t);
}

size_t im_tok_trie_longest(const im_tok_trie *t)
{
    return t->longest;
}

bool im_tok_trie_reaches(const im_tok_trie *t)
{
    return t->reaches;
}

bool im_tok_trie_may_begin(const im_tok_trie *t, char first)
{
    return t->longest && t->root[(unsigned char)first] >= 0;
}

static int32_t child(const im_tok_trie *t, const tree_node *node, unsigned char byte)
{
    uint32_t low = 0, high = node->n;
    const branch *b = t->branch + node->first;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (b[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < node->n && b[low].byte == byte ? b[low].node : -1;
}

/* The longest token at s; *len: its bytes. -1: none. */
static int32_t longest_at(const im_tok_trie *t, const char *s, size_t n, size_t *len)
{
    int32_t found = -1, node = t->root[(unsigned char)s[0]];
    for (size_t i = 1; node >= 0; i++) {
        if (t->node[node].token >= 0) {
            found = t->node[node].token;
            *len = i;
        }
        if (i == n)
            break;
        node = child(t, &t->node[node], (unsigned char)s[i]);
    }
    return found;
}

static bool stands_alone(const char *s, size_t n, size_t start, size_t end)
{
    size_t k;
    if (start > 0 && im_tok_is_word(im_tok_char(s + im_tok_char_before(s, start), &k)))
        return false;
    return end == n || !im_tok_is_word(im_tok_char(s + end, &k));
}

const im_tok_added *im_tok_trie_find(const im_tok_trie *t, const char *s, size_t n, bool special_as_text, size_t *at, size_t bound, size_t *start,
                                     size_t *end)
{
    size_t len = 0, k;
    if (!t->longest)
        return NULL;
    for (size_t i = *at; i < n; i++) {
        if (t->root[(unsigned char)s[i]] < 0)
            continue;
        int32_t found = longest_at(t, s + i, n - i, &len);
        if (found < 0)
            continue;
        const im_tok_added *a = &t->added[found];
        *at = i + len;
        if ((a->single_word && !stands_alone(s, n, i, i + len)) || (a->special && special_as_text)) {
            i += len - 1; /* its place is taken all the same */
            continue;
        }
        *start = i;
        *end = i + len;
        while (a->lstrip && *start > bound && im_tok_is_space(im_tok_char(s + im_tok_char_before(s, *start), &k)))
            *start = im_tok_char_before(s, *start);
        while (a->rstrip && *end < n && im_tok_is_space(im_tok_char(s + *end, &k)))
            *end += k;
        return a;
    }
    return NULL;
}
