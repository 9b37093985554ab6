#include "data/change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 16 };

/* The first document always trains, so that there is training text whatever the hash says. */
bool im_split_is_valid(const im_split_config *cfg, int64_t document)
{
    if (document == 0)
        return false;
    if (cfg->valid_every)
        return (document + 1) % cfg->valid_every == 0;
    uint64_t key[2] = {cfg->seed, (uint64_t)document};
    return (double)(im_hash64(key, sizeof key, 0) >> 11) * 0x1p-53 < cfg->valid_fraction;
}

typedef struct buffers {
    int32_t id[CHUNK];
    unsigned char counted[CHUNK];
} buffers;

static im_status copy_document(im_context *ctx, const im_tokens *t, int64_t document, buffers *b, im_tokens_writer *to)
{
    int64_t first, n;
    bool masked = im_tokens_masked(t);
    IM_TRY(im_tokens_document(ctx, t, document, &first, &n));
    for (int64_t done = 0, k; done < n; done += k) {
        k = n - done < CHUNK ? n - done : CHUNK;
        IM_TRY(im_tokens_read(ctx, t, first + done, k, b->id));
        if (masked)
            IM_TRY(im_tokens_read_mask(ctx, t, first + done, k, b->counted));
        IM_TRY(im_tokens_append_masked(to, b->id, masked ? b->counted : NULL, (size_t)k));
    }
    return im_tokens_end_document(to);
}

/* Are all ids of the file below 2^16? As far as its type or its description tells. */
static bool is_small(const im_tokens *t)
{
    const im_tokens_about *a = im_tokens_known(t);
    const char *type = im_tokens_dtype(t);
    return (a && a->max_id < 65536) || !strcmp(type, "uint16") || !strcmp(type, "uint8") || !strcmp(type, "int8") || !strcmp(type, "int16");
}

static void tell_same(im_tokens_writer *w, const im_tokens_about *a)
{
    if (a)
        im_tokens_tell(w, a->tokenizer, a->tokenizer_fingerprint, a->vocab, a->eod);
}

static void note_result(im_change_result *r, int i, const im_tokens_writer *w)
{
    r->documents[i] = im_tokens_written_documents(w);
    r->tokens[i] = im_tokens_written(w);
}

/* ---- split --------------------------------------------------------------------------------------------------- */

static im_status split_all(im_context *ctx, const im_tokens *from, const im_split_config *cfg, buffers *b, im_tokens_writer *const w[2])
{
    int64_t number = 0; /* of documents that are not empty, as when a corpus is built */
    for (int64_t d = 0; d < im_tokens_documents(from); d++) {
        int64_t first, n;
        IM_TRY(im_tokens_document(ctx, from, d, &first, &n));
        if (n)
            IM_TRY(copy_document(ctx, from, d, b, w[im_split_is_valid(cfg, number++)]));
    }
    if (im_tokens_written(w[1]) == 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: none of its %lld documents fell to validation: a larger share, another seed, or valid-every",
                       im_tokens_prefix(from), (long long)im_tokens_documents(from));
    return IM_OK;
}

im_status im_tokens_split(im_context *ctx, const im_tokens *from, const im_split_config *cfg, const char *out, im_change_result *result)
{
    static const char *const suffix[2] = {"-train", "-valid"};
    im_tokens_writer *w[2] = {NULL, NULL};
    im_change_result r = {0};
    buffers *b = NULL;
    im_status status;
    im_tokens_kind kind = {.dtype = is_small(from) ? IM_U16 : IM_I32, .masked = im_tokens_masked(from)};
    if (!(cfg->valid_fraction >= 0 && cfg->valid_fraction < 1) || cfg->valid_every < 0 || cfg->valid_every == 1 ||
        (!cfg->valid_every && cfg->valid_fraction <= 0))
        return im_fail(ctx, IM_ERR_ARG, "valid-fraction %g: above 0 and below 1; or valid-every %lld: 2 or more", cfg->valid_fraction,
                       (long long)cfg->valid_every);
    IM_TRY(im_alloc(ctx, 1, sizeof *b, (void **)&b));
    for (int i = 0; i < 2; i++) {
        char *name = NULL;
        if (asprintf(&name, "%s%s", out, suffix[i]) < 0) {
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for a name");
            goto abandon;
        }
        status = im_tokens_create_at(ctx, name, &kind, NULL, &w[i]);
        free(name);
        if (status != IM_OK)
            goto abandon;
        tell_same(w[i], im_tokens_known(from));
    }
    IM_TRY_GOTO(split_all(ctx, from, cfg, b, w), abandon);
    for (int i = 1; i >= 0; i--) {
        im_tokens_writer *one = w[i];
        note_result(&r, i, one);
        w[i] = NULL;
        IM_TRY_GOTO(im_tokens_finish(one), abandon);
    }
    *result = r;
abandon:
    im_tokens_abandon(w[0]);
    im_tokens_abandon(w[1]);
    free(b);
    return status;
}

/* ---- merge --------------------------------------------------------------------------------------------------- */

static im_status check_alike(im_context *ctx, const im_tokens *a, const im_tokens *b)
{
    const im_tokens_about *x = im_tokens_known(a), *y = im_tokens_known(b);
    if (im_tokens_masked(a) != im_tokens_masked(b))
        return im_fail(ctx, IM_ERR_ARG, "%s has a mask and %s has none: in one file all tokens have one or none do",
                       im_tokens_prefix(im_tokens_masked(a) ? a : b), im_tokens_prefix(im_tokens_masked(a) ? b : a));
    if (x && y && x->vocab && y->vocab && (x->tokenizer_fingerprint != y->tokenizer_fingerprint || x->vocab != y->vocab))
        return im_fail(ctx, IM_ERR_ARG, "%s was made with %s, %s with %s: ids of two tokenizers do not go into one file", im_tokens_prefix(a),
                       x->tokenizer, im_tokens_prefix(b), y->tokenizer);
    return IM_OK;
}

static im_status merge_all(im_context *ctx, im_tokens *const *t, size_t n, buffers *b, im_tokens_writer *w)
{
    for (size_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < im_tokens_documents(t[i]); d++)
            IM_TRY(copy_document(ctx, t[i], d, b, w));
        im_tokens_count_text(w, im_tokens_known(t[i]) ? im_tokens_known(t[i])->text_bytes : -1);
    }
    return IM_OK;
}

static im_status merge_open(im_context *ctx, im_tokens *const *t, size_t n, const char *out, im_change_result *result)
{
    im_tokens_kind kind = {.dtype = IM_U16, .masked = im_tokens_masked(t[0])};
    const im_tokens_about *known = im_tokens_known(t[0]);
    im_tokens_writer *w;
    buffers *b;
    im_change_result r = {0};
    for (size_t i = 0; i < n; i++) {
        IM_TRY(check_alike(ctx, t[0], t[i]));
        if (!is_small(t[i]))
            kind.dtype = IM_I32;
        if (!im_tokens_known(t[i]))
            known = NULL;
    }
    IM_TRY(im_alloc(ctx, 1, sizeof *b, (void **)&b));
    im_status status = im_tokens_create_at(ctx, out, &kind, NULL, &w);
    if (status != IM_OK)
        goto free_buffers;
    tell_same(w, known);
    status = merge_all(ctx, t, n, b, w);
    if (status != IM_OK) {
        im_tokens_abandon(w);
        goto free_buffers;
    }
    note_result(&r, 0, w);
    status = im_tokens_finish(w);
    if (status == IM_OK)
        *result = r;
free_buffers:
    free(b);
    return status;
}

im_status im_tokens_merge(im_context *ctx, const char *const *name, size_t n, const char *out, im_change_result *result)
{
    im_tokens **t;
    im_status status = IM_OK;
    if (n < 1)
        return im_fail(ctx, IM_ERR_ARG, "no token files to merge");
    IM_TRY(im_alloc(ctx, n, sizeof(im_tokens *), (void **)&t));
    for (size_t i = 0; i < n && status == IM_OK; i++)
        status = im_tokens_open(ctx, name[i], &t[i]);
    if (status == IM_OK)
        status = merge_open(ctx, t, n, out, result);
    for (size_t i = 0; i < n; i++)
        im_tokens_close(t[i]);
    free(t);
    return status;
}
