/* Interpolated n-gram models of byte-level ids: what a model must beat to have learned more than counting can.
 *
 *   P_0(x) = 1/257
 *   P_k(x | h) = w_k[s] * c(h,x)/c(h) + (1 - w_k[s]) * P_{k-1}(x | h')     h: the k-1 ids before x, h': without the oldest
 *
 * (Jelinek and Mercer 1980). s is the size class of c(h), floor(log2), 0 for an unseen history, whose weight is 0. The weights are
 * fitted by EM on every tenth block of the training tokens, with counts of the other nine; then all of it is counted. Order k's
 * weights are fitted with those below fixed. Cost: one pass a fit for the counts and one a round of EM, O(257^3) memory.
 */
#include "data/data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = IM_BYTE_VOCAB, CLASSES = 33, BLOCK = 4096, TENTH = 10, ROUNDS = 12 };

typedef struct counts {
    uint32_t *c[IM_NGRAM_MAX + 1];   /* c[k]: V^k, how often these k ids stood in a row */
    uint32_t *sum[IM_NGRAM_MAX + 1]; /* sum[k]: V^(k-1), how often its history had a next id */
    double weight[IM_NGRAM_MAX + 1][CLASSES];
} counts;

static void free_counts(counts *m)
{
    for (int k = 1; k <= IM_NGRAM_MAX; k++) {
        free(m->c[k]);
        free(m->sum[k]);
    }
}

static im_status make_counts(im_context *ctx, counts *m)
{
    im_status status = IM_OK;
    size_t n = 1;
    memset(m, 0, sizeof *m);
    for (int k = 1; k <= IM_NGRAM_MAX; k++) {
        IM_TRY_GOTO(im_alloc(ctx, n, sizeof(uint32_t), (void **)&m->sum[k]), free_counts);
        n *= V;
        IM_TRY_GOTO(im_alloc(ctx, n, sizeof(uint32_t), (void **)&m->c[k]), free_counts);
    }
    return IM_OK;
free_counts:
    free_counts(m);
    return status;
}

/* Calls `each` for tokens first..first+n of t with up to two ids before them: h = older * V + newer (fewer at the file's start). */
typedef void (*each_fn)(void *arg, int64_t at, const int32_t *ids, int known);
static im_status walk(im_context *ctx, const im_tokens *t, int64_t begin, int64_t end, each_fn each, void *arg)
{
    int32_t buf[IM_NGRAM_MAX - 1 + BLOCK];
    for (int64_t at = begin; at < end;) {
        int64_t back = at < IM_NGRAM_MAX - 1 ? at : IM_NGRAM_MAX - 1, n = end - at < BLOCK ? end - at : BLOCK;
        IM_TRY(im_tokens_read(ctx, t, at - back, back + n, buf));
        for (int64_t i = 0; i < back + n; i++)
            if (buf[i] >= V)
                return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: token %lld is the id %d; n-grams are counted of byte-level ids (below %d)",
                               im_tokens_prefix(t), (long long)(at - back + i), buf[i], V);
        for (int64_t i = 0; i < n; i++) {
            int64_t known = back + i;
            each(arg, at + i, buf + back + i, known > IM_NGRAM_MAX - 1 ? IM_NGRAM_MAX - 1 : (int)known);
        }
        at += n;
    }
    return IM_OK;
}

/* Index of the history of order k (k-1 ids before *x). */
static size_t history(const int32_t *x, int k)
{
    size_t h = 0;
    for (int j = k - 1; j >= 1; j--)
        h = h * V + (size_t)x[-j];
    return h;
}

typedef struct counting {
    counts *m;
    bool skip_tenth;
} counting;

static bool held_out(int64_t at)
{
    return at / BLOCK % TENTH == TENTH / 2;
}

static void count_one(void *arg, int64_t at, const int32_t *x, int known)
{
    counting *c = arg;
    if (c->skip_tenth && held_out(at))
        return;
    for (int k = 1; k <= known + 1; k++) {
        size_t h = history(x, k);
        c->m->c[k][h * V + (size_t)*x]++;
        c->m->sum[k][h]++;
    }
}

static int size_class(uint32_t c)
{
    int s = 0;
    for (; c; c >>= 1)
        s++;
    return s;
}

/* P of *x under orders 0..known+1 at most `top`; p[k], and the part of order k's own counts in own[k]. */
static int probabilities(const counts *m, const int32_t *x, int known, int top, double *p, double *own, int *class)
{
    p[0] = 1.0 / V;
    int last = known + 1 < top ? known + 1 : top;
    for (int k = 1; k <= last; k++) {
        size_t h = history(x, k);
        uint32_t sum = m->sum[k][h];
        class[k] = size_class(sum);
        double w = sum ? m->weight[k][class[k]] : 0;
        own[k] = sum ? m->c[k][h * V + (size_t)*x] / (double)sum : 0;
        p[k] = w * own[k] + (1 - w) * p[k - 1];
    }
    for (int k = last + 1; k <= top; k++)
        p[k] = p[k - 1];
    return last;
}

typedef struct fitting {
    counts *m;
    int order;
    double own[CLASSES], all[CLASSES]; /* expected uses of the order's own counts, and uses */
} fitting;

static void fit_one(void *arg, int64_t at, const int32_t *x, int known)
{
    (void)at;
    fitting *f = arg;
    double p[IM_NGRAM_MAX + 1], own[IM_NGRAM_MAX + 1];
    int class[IM_NGRAM_MAX + 1], k = f->order;
    if (probabilities(f->m, x, known, k, p, own, class) < k || class[k] == 0)
        return;
    f->own[class[k]] += f->m->weight[k][class[k]] * own[k] / p[k];
    f->all[class[k]] += 1;
}

static im_status fit_weights(im_context *ctx, const im_tokens *t, counts *m)
{
    int64_t n = im_tokens_count(t);
    for (int k = 1; k <= IM_NGRAM_MAX; k++) {
        for (int s = 1; s < CLASSES; s++)
            m->weight[k][s] = (s + 1.0) / (s + 3.0); /* also what classes keep that the held-out part never meets */
        for (int round = 0; round < ROUNDS; round++) {
            fitting f = {.m = m, .order = k};
            for (int64_t at = BLOCK * (int64_t)(TENTH / 2); at < n; at += BLOCK * (int64_t)TENTH)
                IM_TRY(walk(ctx, t, at, at + BLOCK < n ? at + BLOCK : n, fit_one, &f));
            for (int s = 1; s < CLASSES; s++)
                if (f.all[s] > 0)
                    m->weight[k][s] = fmin(f.own[s] / f.all[s], 1 - 1e-6); /* below 1: a chain of weights of 1 would give P = 0 */
        }
    }
    return IM_OK;
}

typedef struct scoring {
    const counts *m;
    im_ngram_result r;
} scoring;

static void score_one(void *arg, int64_t at, const int32_t *x, int known)
{
    (void)at;
    scoring *s = arg;
    double p[IM_NGRAM_MAX + 1], own[IM_NGRAM_MAX + 1];
    int class[IM_NGRAM_MAX + 1];
    probabilities(s->m, x, known, IM_NGRAM_MAX, p, own, class);
    for (int k = 0; k <= IM_NGRAM_MAX; k++)
        s->r.bits[k] -= log2(p[k]);
    s->r.scored++;
    s->r.scored_bytes += *x < 256;
}

im_status im_ngram_score(im_context *ctx, const im_tokens *train, const im_tokens *valid, im_ngram_result *out)
{
    im_status status = IM_OK;
    int64_t n = im_tokens_count(train), nv = im_tokens_count(valid);
    if (n < 1 || n > UINT32_MAX || nv < 2)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s and %s: %lld and %lld tokens; n-grams are counted for 1 to %u, and scored on 2 or more",
                       im_tokens_prefix(train), im_tokens_prefix(valid), (long long)n, (long long)nv, UINT32_MAX);
    counts m;
    IM_TRY(make_counts(ctx, &m));
    counting c = {.m = &m, .skip_tenth = true};
    IM_TRY_GOTO(walk(ctx, train, 0, n, count_one, &c), free_counts);
    IM_TRY_GOTO(fit_weights(ctx, train, &m), free_counts);
    /* the held-out tenth is counted now too */
    for (int64_t at = BLOCK * (int64_t)(TENTH / 2); at < n; at += BLOCK * (int64_t)TENTH) {
        counting rest = {.m = &m};
        IM_TRY_GOTO(walk(ctx, train, at, at + BLOCK < n ? at + BLOCK : n, count_one, &rest), free_counts);
    }
    scoring s = {.m = &m};
    IM_TRY_GOTO(walk(ctx, valid, 1, nv, score_one, &s), free_counts);
    for (int k = 0; k <= IM_NGRAM_MAX; k++)
        s.r.bits[k] /= (double)s.r.scored;
    *out = s.r;
free_counts:
    free_counts(&m);
    return status;
}
