/* Text to ids: words of the walk, through the merges. */
#include "data/tok_parts.h"

#include <stdlib.h>
#include <string.h>

struct im_tok_coder {
    im_context *ctx;
    const im_tok *t;
    im_tok_coding how;
    im_tok_walk *walk;
    im_tok_bpe *bpe;
    im_tok_ids *out; /* of this call */
    size_t certain;  /* ids in front of the last cut */
};

static im_status take_word(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on)
{
    im_tok_coder *c = arg;
    return im_tok_bpe_word(c->bpe, t, from, to, goes_on, c->out);
}

static im_status take_part(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on, size_t *used)
{
    im_tok_coder *c = arg;
    return im_tok_bpe_part(c->bpe, t, from, to, goes_on, c->out, used);
}

static im_status take_token(void *arg, int32_t id)
{
    im_tok_coder *c = arg;
    IM_TRY(im_tok_ids_room(c->ctx, c->out, 1));
    c->out->id[c->out->n++] = id;
    return IM_OK;
}

static void take_cut(void *arg, size_t at)
{
    im_tok_coder *c = arg;
    (void)at;
    c->certain = c->out->n;
}

im_status im_tok_coder_create(im_context *ctx, const im_tok *t, const im_tok_coding *how, im_tok_coder **out)
{
    static const im_tok_coding plain = {0};
    im_status status = IM_OK;
    im_tok_coder *c;
    IM_TRY(im_alloc(ctx, 1, sizeof *c, (void **)&c));
    c->ctx = ctx;
    c->t = t;
    c->how = how ? *how : plain;
    im_tok_sink sink = {.arg = c, .word = take_word, .part = take_part, .token = take_token, .cut = take_cut};
    IM_TRY_GOTO(im_tok_walk_create(ctx, t, &sink, c->how.special_as_text, c->how.replace, &c->walk), destroy);
    IM_TRY_GOTO(im_tok_bpe_create(ctx, t, &c->bpe), destroy);
    *out = c;
    return IM_OK;
destroy:
    im_tok_coder_destroy(c);
    return status;
}

void im_tok_coder_destroy(im_tok_coder *c)
{
    if (!c)
        return;
    im_tok_walk_free(c->walk);
    im_tok_bpe_free(c->bpe);
    free(c);
}

void im_tok_coder_reset(im_tok_coder *c)
{
    im_tok_walk_reset(c->walk);
}

static im_status add_all(im_tok_coder *c, const int32_t *id, size_t n)
{
    IM_TRY(im_tok_ids_room(c->ctx, c->out, n));
    if (n)
        memcpy(c->out->id + c->out->n, id, n * sizeof *id);
    c->out->n += n;
    return IM_OK;
}

im_status im_tok_encode_part(im_tok_coder *c, const void *bytes, size_t n, bool last, im_tok_ids *out, size_t *used)
{
    size_t before = out->n;
    c->out = out;
    c->certain = before;
    if (c->how.template && !im_tok_walk_begun(c->walk))
        IM_TRY(add_all(c, c->t->before, c->t->nbefore));
    IM_TRY(im_tok_walk_run(c->walk, bytes, n, last, used));
    if (!last)
        out->n = c->certain;
    else if (c->how.template)
        IM_TRY(add_all(c, c->t->after, c->t->nafter));
    return IM_OK;
}

im_status im_tok_encode(im_tok_coder *c, const void *bytes, size_t n, im_tok_ids *out)
{
    size_t used;
    return im_tok_encode_part(c, bytes, n, true, out, &used);
}
