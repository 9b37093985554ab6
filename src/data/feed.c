/* What the sample at a position is. Nothing is allocated here: this runs within steps, on every rank. */
#include "data/feed_state.h"

#include <string.h>

int64_t im_feed_tokens(const im_feed *f)
{
    int64_t n = 0;
    for (size_t i = 0; i < f->ngroup; i++)
        n += f->group[i].tokens;
    return n;
}

int64_t im_feed_samples(const im_feed *f)
{
    int64_t n = 0;
    for (size_t i = 0; i < f->ngroup; i++)
        n += f->group[i].samples;
    return n;
}

uint64_t im_feed_fingerprint(const im_feed *f)
{
    return f->fingerprint;
}

im_pack im_feed_pack(const im_feed *f)
{
    return f->cfg.pack;
}

bool im_feed_documents(const im_feed *f)
{
    return f->cfg.attention == IM_REACH_DOCUMENT;
}

size_t im_feed_sources(const im_feed *f)
{
    return f->ngroup;
}

im_feed_source im_feed_source_of(const im_feed *f, size_t i)
{
    const im_feed_group *g = &f->group[i];
    return (im_feed_source){.name = im_tokens_prefix(g->file[0].tokens),
                            .files = g->nfile,
                            .share = f->weighted ? (double)f->blend.weight[i] / (double)f->blend.period : 1,
                            .tokens = g->tokens,
                            .samples = g->samples,
                            .masked = g->masked};
}

size_t im_feed_files(const im_feed *f)
{
    size_t n = 0;
    for (size_t g = 0; g < f->ngroup; g++)
        n += f->group[g].nfile;
    return n;
}

im_feed_name im_feed_file_of(const im_feed *f, size_t i)
{
    size_t g = 0;
    while (i >= f->group[g].nfile)
        i -= f->group[g++].nfile;
    const im_feed_file *x = &f->group[g].file[i];
    return (im_feed_name){im_tokens_prefix(x->tokens), im_tokens_fingerprint(x->tokens), x->count};
}

void im_feed_where(const im_feed *f, int64_t position, size_t *source, int64_t *sample)
{
    size_t g = 0;
    int64_t turn = position;
    if (f->weighted)
        im_blend_at(&f->blend, position, &g, &turn);
    im_sampler s = {.samples = f->group[g].samples, .order = f->cfg.order, .seed = f->group[g].seed};
    *source = g;
    *sample = im_sampler_index(&s, turn);
}

/* ---- ranges of a source's stream ----------------------------------------------------------------- */

/* The file that token `at` of the stream lies in. */
static const im_feed_file *file_at(const im_feed_group *g, int64_t at)
{
    size_t low = 0, high = g->nfile;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (g->file[middle].start <= at)
            low = middle;
        else
            high = middle;
    }
    return &g->file[low];
}

/* How many of n tokens from `at` on lie in x, and the number of the first of them in the file. */
static int64_t part_of(const im_feed_file *x, int64_t at, int64_t n, int64_t *first)
{
    int64_t left = x->start + x->count - at;
    *first = x->first + (at - x->start);
    return n < left ? n : left;
}

static im_status fail_vocab(im_context *ctx, const im_feed *f, const im_feed_file *x, int64_t at, int32_t id)
{
    return im_fail(ctx, IM_ERR_FORMAT,
                   "%s.bin: token %lld is the id %d, but the model's vocabulary has %lld ids (0 to %lld): data and model are of different tokenizers",
                   im_tokens_prefix(x->tokens), (long long)at, id, (long long)f->cfg.vocab, (long long)f->cfg.vocab - 1);
}

static im_status read_ids(im_context *ctx, const im_feed *f, const im_feed_group *g, int64_t at, int64_t n, int32_t *out)
{
    while (n > 0) {
        int64_t first;
        const im_feed_file *x = file_at(g, at);
        int64_t k = part_of(x, at, n, &first);
        IM_TRY(im_tokens_read(ctx, x->tokens, first, k, out));
        for (int64_t i = 0; i < k; i++)
            if (out[i] >= f->cfg.vocab)
                return fail_vocab(ctx, f, x, first + i, out[i]);
        at += k;
        n -= k;
        out += k;
    }
    return IM_OK;
}

/* out[i]: of token at+i, whether its loss counts, or whether a document begins there. */
static im_status read_flags(im_context *ctx, const im_feed_group *g, bool mask, int64_t at, int64_t n, unsigned char *out)
{
    while (n > 0) {
        int64_t first;
        const im_feed_file *x = file_at(g, at);
        int64_t k = part_of(x, at, n, &first);
        if (mask)
            IM_TRY(im_tokens_read_mask(ctx, x->tokens, first, k, out));
        else
            IM_TRY(im_tokens_begins(ctx, x->tokens, first, k, out));
        at += k;
        n -= k;
        out += k;
    }
    return IM_OK;
}

enum { PIECE = 4096 };

/* Inputs [at, at+n) and their targets, a token further on; those that do not count are -1. */
static im_status read_pair(im_context *ctx, const im_feed *f, const im_feed_group *g, int64_t at, int64_t n, int32_t *ids, int32_t *targets)
{
    IM_TRY(read_ids(ctx, f, g, at, n, ids));
    memcpy(targets, ids + 1, sizeof *ids * (size_t)(n - 1));
    IM_TRY(read_ids(ctx, f, g, at + n, 1, targets + n - 1));
    for (int64_t t = 0, k; g->masked && t < n; t += k) {
        unsigned char counted[PIECE];
        k = n - t < PIECE ? n - t : PIECE;
        IM_TRY(read_flags(ctx, g, true, at + t + 1, k, counted));
        for (int64_t i = 0; i < k; i++)
            if (!counted[i])
                targets[t + i] = -1;
    }
    return IM_OK;
}

/* Positions that go on, in one segment. */
static void one_segment(int64_t n, int32_t first, int32_t segment, int32_t *pos, int32_t *seg)
{
    for (int64_t t = 0; t < n; t++)
        pos[t] = first + (int32_t)t;
    for (int64_t t = 0; seg && t < n; t++)
        seg[t] = segment;
}

/* A document that begins within the row begins anew: positions from 0, a segment of its own, and nobody predicts its first token. */
static im_status split_documents(im_context *ctx, const im_feed_group *g, int64_t at, int64_t n, int32_t *targets, int32_t *pos, int32_t *seg)
{
    int32_t segment = 0, position = 0;
    for (int64_t t = 0, k; t < n; t += k) {
        unsigned char begins[PIECE]; /* of the targets */
        k = n - t < PIECE ? n - t : PIECE;
        IM_TRY(read_flags(ctx, g, false, at + t + 1, k, begins));
        for (int64_t i = 0; i < k; i++) {
            pos[t + i] = position++;
            if (seg)
                seg[t + i] = segment;
            if (!begins[i])
                continue;
            targets[t + i] = -1;
            segment++;
            position = 0;
        }
    }
    return IM_OK;
}

static im_status read_stream(im_context *ctx, const im_feed *f, const im_feed_group *g, int64_t at, int64_t n, int32_t *ids, int32_t *targets,
                             int32_t *pos, int32_t *seg)
{
    IM_TRY(read_pair(ctx, f, g, at, n, ids, targets));
    if (im_feed_documents(f))
        return split_documents(ctx, g, at, n, targets, pos, seg);
    one_segment(n, 0, 0, pos, seg);
    return IM_OK;
}

static im_status read_row(im_context *ctx, const im_feed *f, const im_feed_group *g, int64_t row, int32_t *ids, int32_t *targets, int32_t *pos,
                          int32_t *seg)
{
    const int64_t T = f->cfg.seq_len;
    const bool anew = im_feed_documents(f);
    int64_t t = 0;
    int32_t segment = 0;
    for (int32_t p = g->rows.head ? g->rows.head[row] : (int32_t)row; p >= 0; p = g->rows.piece[p].next) {
        const im_piece *x = &g->rows.piece[p];
        int64_t n = x->n - 1;
        IM_TRY(read_pair(ctx, f, g, x->first, n, ids + t, targets + t));
        one_segment(n, anew ? 0 : (int32_t)t, segment, pos + t, seg ? seg + t : NULL);
        segment += anew;
        t += n;
    }
    one_segment(T - t, anew ? 0 : (int32_t)t, segment, pos + t, seg ? seg + t : NULL);
    for (; t < T; t++) {
        ids[t] = 0;
        targets[t] = -1;
    }
    return IM_OK;
}

im_status im_feed_read(im_context *ctx, const im_feed *f, int64_t position, int32_t *ids, int32_t *targets, int32_t *pos, int32_t *seg)
{
    size_t g;
    int64_t sample;
    im_feed_where(f, position, &g, &sample);
    if (f->cfg.pack == IM_PACK_STREAM)
        return read_stream(ctx, f, &f->group[g], sample * f->cfg.seq_len, f->cfg.seq_len, ids, targets, pos, seg);
    return read_row(ctx, f, &f->group[g], sample, ids, targets, pos, seg);
}

im_status im_feed_read_at(im_context *ctx, const im_feed *f, int64_t at, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos, int32_t *seg)
{
    if (f->ngroup != 1 || at < 0 || n < 1 || at > f->group[0].tokens - n - 1)
        return im_fail(ctx, IM_ERR_ARG, "tokens %lld to %lld of a stream of %lld", (long long)at, (long long)(at + n + 1),
                       (long long)f->group[0].tokens);
    return read_stream(ctx, f, &f->group[0], at, n, ids, targets, pos, seg);
}
