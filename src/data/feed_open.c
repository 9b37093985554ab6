/* Opening a feed: the files of a spec, the parts of them that are meant, rows, the turns of a blend. */
#include "data/feed_state.h"
#include "data/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void im_feed_close(im_feed *f)
{
    if (!f)
        return;
    for (size_t g = 0; g < f->ngroup; g++) {
        for (size_t i = 0; i < f->group[g].nfile; i++)
            im_tokens_close(f->group[g].file[i].tokens);
        im_rows_free(&f->group[g].rows);
    }
    im_blend_free(&f->blend);
    im_arena_destroy(f->arena);
    free(f);
}

/* ---- validation by document ---------------------------------------------------------------------- */

/* The document boundary nearest to the last `share` of the tokens, with at least one document on each side. */
static im_status find_cut(im_context *ctx, const im_tokens *t, double share, int64_t *document, int64_t *token)
{
    int64_t all = im_tokens_count(t), documents = im_tokens_documents(t), d, place[2];
    if (all < 2)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %lld tokens cannot be divided into training and validation", im_tokens_prefix(t), (long long)all);
    int64_t want = llround((1 - share) * (double)all);
    want = want < 0 ? 0 : want >= all ? all - 1 : want;
    IM_TRY(im_tokens_find(ctx, t, want, &d));
    IM_TRY(im_tokens_places(ctx, t, d, 1, place));
    bool begin = place[0] > 0 && (place[1] >= all || want - place[0] <= place[1] - want);
    if (!begin && place[1] >= all)
        return im_fail(ctx, IM_ERR_FORMAT,
                       "%s: valid-share takes whole documents, and it holds one: divide it with imece data build --valid-fraction",
                       im_tokens_prefix(t));
    *document = begin ? d : d + 1;
    *token = place[!begin];
    if (*document > documents)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: its documents end before its tokens", im_tokens_prefix(t));
    return IM_OK;
}

static im_status choose_part(im_context *ctx, const im_feed *f, im_feed_file *x)
{
    int64_t all = im_tokens_count(x->tokens), documents = im_tokens_documents(x->tokens), document = 0, token = 0;
    x->count = all;
    x->documents = documents;
    if (f->cfg.valid_share <= 0)
        return IM_OK;
    IM_TRY(find_cut(ctx, x->tokens, f->cfg.valid_share, &document, &token));
    if (f->cfg.valid) {
        x->first = token;
        x->count = all - token;
        x->document0 = document;
        x->documents = documents - document;
    } else {
        x->count = token;
        x->documents = document;
    }
    return IM_OK;
}

/* ---- sources ---------------------------------------------------------------------------------------- */

static im_status open_group(im_context *ctx, im_feed *f, const im_spec_source *s, size_t index, im_feed_group *g)
{
    g->file = IM_ARENA_NEW(f->arena, im_feed_file, s->n);
    if (!g->file)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu files", s->n);
    g->seed = index ? im_hash64(&index, sizeof index, f->cfg.seed) : f->cfg.seed;
    for (size_t i = 0; i < s->n; i++) {
        im_feed_file *x = &g->file[i];
        IM_TRY(im_tokens_open(ctx, s->name[i], &x->tokens));
        g->nfile++;
        IM_TRY(im_tokens_check_vocab(ctx, x->tokens, f->cfg.vocab));
        IM_TRY(choose_part(ctx, f, x));
        x->start = g->tokens;
        g->tokens += x->count;
        g->masked |= im_tokens_masked(x->tokens);
    }
    f->masked |= g->masked;
    return IM_OK;
}

static im_status add_documents(im_context *ctx, const im_feed_file *x, im_rows_builder *b)
{
    enum { PIECE = 1024 };
    int64_t place[PIECE + 1];
    for (int64_t d = 0; d < x->documents; d += PIECE) {
        int64_t n = x->documents - d < PIECE ? x->documents - d : PIECE;
        IM_TRY(im_tokens_places(ctx, x->tokens, x->document0 + d, n, place));
        for (int64_t i = 0; i < n; i++)
            IM_TRY(im_rows_add(b, place[i] - x->first + x->start, place[i + 1] - place[i], im_tokens_prefix(x->tokens), x->document0 + d + i));
    }
    return IM_OK;
}

static im_status make_rows(im_context *ctx, const im_feed *f, im_feed_group *g)
{
    im_rows_config cfg = {.seq_len = f->cfg.seq_len, .pack = f->cfg.pack == IM_PACK_WHOLE, .too_long = f->cfg.too_long};
    im_rows_builder *b;
    IM_TRY(im_rows_begin(ctx, &cfg, &b));
    for (size_t i = 0; i < g->nfile; i++) {
        im_status status = add_documents(ctx, &g->file[i], b);
        if (status != IM_OK) {
            im_rows_abandon(b);
            return status;
        }
    }
    IM_TRY(im_rows_end(b, &g->rows));
    g->samples = g->rows.n;
    if (!g->samples)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: no document that makes a sample: one needs 2 tokens and, with --long skip, room in seq-len %lld",
                       im_tokens_prefix(g->file[0].tokens), (long long)f->cfg.seq_len);
    return IM_OK;
}

static im_status count_samples(im_context *ctx, const im_feed *f, im_feed_group *g)
{
    int64_t T = f->cfg.seq_len;
    if (f->cfg.pack != IM_PACK_STREAM)
        return make_rows(ctx, f, g);
    g->samples = g->tokens > 0 ? (g->tokens - 1) / T : 0;
    if (g->samples || (f->cfg.valid && g->tokens >= 2)) /* an evaluation reads what is left of a sample too */
        return IM_OK;
    if (f->cfg.valid)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %lld tokens; at least 2 are needed to predict one", im_tokens_prefix(g->file[0].tokens),
                       (long long)g->tokens);
    return im_fail(
        ctx, IM_ERR_ARG, "%s: %lld tokens are less than one sample of seq-len %lld, which needs %lld; the longest seq-len for this file is %lld",
        im_tokens_prefix(g->file[0].tokens), (long long)g->tokens, (long long)T, (long long)T + 1, g->tokens > 1 ? (long long)g->tokens - 1 : 0LL);
}

/* That of the file when it is one file, whole: as it was before there were blends. */
static uint64_t fingerprint(const im_feed *f, const im_spec *s)
{
    uint64_t h = im_tokens_fingerprint(f->group[0].file[0].tokens);
    if (!f->weighted && f->group[0].nfile == 1 && f->cfg.valid_share <= 0)
        return h;
    for (size_t g = 0; g < f->ngroup; g++) {
        int64_t of[2] = {f->weighted ? f->blend.weight[g] : 1, (int64_t)s->source[g].n};
        h = im_hash64(of, sizeof of, h);
        for (size_t i = 0; i < f->group[g].nfile; i++) {
            uint64_t one[3] = {im_tokens_fingerprint(f->group[g].file[i].tokens), (uint64_t)f->group[g].file[i].first,
                               (uint64_t)f->group[g].file[i].count};
            h = im_hash64(one, sizeof one, h);
        }
    }
    return h;
}

/* Validation reads all files, each once: one source. */
static im_status join_sources(im_context *ctx, im_arena *a, im_spec *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->source[i].n;
    const char **name = IM_ARENA_NEW(a, const char *, n);
    if (!name)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu names", n);
    n = 0;
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->source[i].n; k++)
            name[n++] = s->source[i].name[k];
    s->source[0] = (im_spec_source){.name = name, .n = n};
    s->n = 1;
    return IM_OK;
}

static im_status begin_blend(im_context *ctx, im_feed *f, const im_spec *s)
{
    const char *weight[IM_BLEND_SOURCES];
    if (s->n == 1 && !s->source[0].weight)
        return IM_OK;
    for (size_t i = 0; i < s->n && i < IM_BLEND_SOURCES; i++)
        weight[i] = s->source[i].weight;
    IM_TRY(im_blend_init(ctx, weight, s->n, &f->blend));
    f->weighted = true;
    return IM_OK;
}

static im_status open_sources(im_context *ctx, im_feed *f, const char *text)
{
    im_spec s;
    IM_TRY(im_spec_parse(ctx, f->arena, text, &s));
    bool weights = s.source[0].weight != NULL;
    if (f->cfg.valid && weights && f->cfg.valid_share <= 0)
        return im_fail(ctx, IM_ERR_ARG, "--valid %s: a validation reads every token of its files once; names without weights: A,B", text);
    if (f->cfg.valid)
        IM_TRY(join_sources(ctx, f->arena, &s));
    IM_TRY(begin_blend(ctx, f, &s));
    f->group = IM_ARENA_NEW(f->arena, im_feed_group, s.n);
    if (!f->group)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu sources", s.n);
    for (size_t i = 0; i < s.n; i++) {
        f->ngroup++;
        IM_TRY(open_group(ctx, f, &s.source[i], i, &f->group[i]));
    }
    if (f->cfg.pack == IM_PACK_AUTO)
        f->cfg.pack = f->masked ? IM_PACK_WHOLE : IM_PACK_STREAM;
    if (f->cfg.attention == IM_REACH_AUTO)
        f->cfg.attention = f->cfg.pack == IM_PACK_WHOLE ? IM_REACH_DOCUMENT : IM_REACH_CAUSAL;
    for (size_t i = 0; i < s.n; i++)
        IM_TRY(count_samples(ctx, f, &f->group[i]));
    f->fingerprint = fingerprint(f, &s);
    return IM_OK;
}

im_status im_feed_open(im_context *ctx, const char *spec, const im_feed_config *cfg, im_feed **out)
{
    im_feed *f;
    if (cfg->seq_len < 1)
        return im_fail(ctx, IM_ERR_ARG, "seq-len %lld: at least 1", (long long)cfg->seq_len);
    IM_TRY(im_alloc(ctx, 1, sizeof *f, (void **)&f));
    f->cfg = *cfg;
    im_status status = im_arena_create(ctx, &f->arena);
    if (status == IM_OK)
        status = open_sources(ctx, f, spec);
    if (status == IM_OK)
        *out = f;
    else
        im_feed_close(f);
    return status;
}

/* tok: NULL when its file cannot be read; bytes are no tokenizer's ids all the same. */
static bool other_tokenizer(const im_tokens_about *a, const im_tok *tok)
{
    if (!a)
        return false;
    if (!strcmp(a->tokenizer, "bytes"))
        return true;
    return tok && a->tokenizer_fingerprint && a->tokenizer_fingerprint != im_tok_fingerprint(tok) && a->vocab != im_tok_vocab(tok);
}

void im_feed_warn_tokenizer(im_context *ctx, const im_feed *f, const char *dir)
{
    im_tok *tok = NULL;
    if (!dir || !im_tok_in_dir(dir))
        return;
    if (im_tok_open(ctx, dir, &tok) != IM_OK) {
        im_error_clear(ctx);
        tok = NULL;
    }
    for (size_t g = 0; g < f->ngroup; g++)
        for (size_t i = 0; i < f->group[g].nfile; i++) {
            const im_tokens *t = f->group[g].file[i].tokens;
            const im_tokens_about *a = im_tokens_known(t);
            if (other_tokenizer(a, tok))
                im_log(ctx, IM_LOG_WARN, "data",
                       "%s was made with %s, but the model's tokenizer is %s/tokenizer.json: its ids stand for other text; imece data build "
                       "--tokenizer makes ids of the model",
                       im_tokens_prefix(t), a->tokenizer, dir);
        }
    im_tok_close(tok);
}
