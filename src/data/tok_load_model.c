/* The model of a tokenizer.json: vocabulary and merges. */
#include "data/tok_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- vocabulary -------------------------------------------------------------------------------------- */

static im_status load_vocab(im_tok_loader *l, const im_json_value *v)
{
    int64_t largest = -1;
    size_t n = im_json_length(v);
    const char *key;
    if (im_json_type_of(v) != IM_JSON_OBJECT || !n)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.vocab: a mapping of tokens to ids is needed", l->t->path);
    for (size_t i = 0; i < n; i++) {
        const im_json_value *id = im_json_member(v, i, &key);
        int64_t x = im_json_int(id, -1);
        if (im_json_type_of(id) != IM_JSON_INT || x < 0 || x >= IM_TOK_MOST_IDS)
            return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.vocab: \"%.80s\": its id must be a whole number from 0 to %d", l->t->path, key,
                           IM_TOK_MOST_IDS - 1);
        largest = x > largest ? x : largest;
    }
    im_tok_table *vocab = &l->t->model.vocab;
    IM_TRY(im_tok_table_create(l->ctx, vocab, largest + 1, n));
    for (size_t i = 0; i < n; i++) {
        int32_t id = (int32_t)im_json_int(im_json_member(v, i, &key), 0);
        char *text = im_arena_strdup(l->t->arena, key);
        if (!text)
            return im_fail(l->ctx, IM_ERR_NOMEM, "%s: no memory for %zu tokens", l->t->path, n);
        if (!im_tok_table_add(vocab, text, strlen(text), id))
            return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.vocab: \"%.80s\" and \"%.80s\" have the same id, %d", l->t->path, vocab->token[id].s,
                           key, id);
    }
    return IM_OK;
}

/* ---- merges ------------------------------------------------------------------------------------------------ */

/* The two tokens of an entry: "a b", or ["a", "b"]. */
static bool read_pair(const im_json_value *v, im_tok_string *a, im_tok_string *b)
{
    if (im_json_type_of(v) == IM_JSON_ARRAY) {
        const im_json_value *x = im_json_at(v, 0), *y = im_json_at(v, 1);
        if (im_json_length(v) != 2 || im_json_type_of(x) != IM_JSON_STRING || im_json_type_of(y) != IM_JSON_STRING)
            return false;
        *a = (im_tok_string){im_json_string(x, ""), (uint32_t)im_json_string_len(x)};
        *b = (im_tok_string){im_json_string(y, ""), (uint32_t)im_json_string_len(y)};
        return true;
    }
    const char *s = im_json_string(v, "");
    size_t n = im_json_type_of(v) == IM_JSON_STRING ? im_json_string_len(v) : 0;
    const char *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
        return false;
    *a = (im_tok_string){s, (uint32_t)(space - s)};
    *b = (im_tok_string){space + 1, (uint32_t)(n - (size_t)(space + 1 - s))};
    return true;
}

static im_status need_token(const im_tok_loader *l, size_t i, const char *s, size_t n, int32_t *out)
{
    *out = n ? im_tok_table_find(&l->t->model.vocab, s, n) : -1;
    if (*out < 0)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.merges, entry %zu: \"%.*s\" is not in the vocabulary", l->t->path, i, (int)(n < 80 ? n : 80),
                       s);
    return IM_OK;
}

static im_status load_merges(im_tok_loader *l, const im_json_value *v)
{
    size_t n = im_json_length(v);
    uint32_t rank = 0;
    im_str whole = {0};
    im_status status = IM_OK;
    if (im_json_type_of(v) != IM_JSON_ARRAY)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.merges: a list is needed", l->t->path);
    IM_TRY(im_tok_merges_create(l->ctx, &l->t->model.merges, n));
    for (size_t i = 0; i < n; i++) {
        const im_json_value *entry = im_json_at(v, i);
        im_tok_string a, b;
        int32_t left, right, id;
        if (im_json_type_of(entry) == IM_JSON_STRING && !strncmp(im_json_string(entry, ""), "#version", 8))
            continue;
        if (!read_pair(entry, &a, &b)) {
            status =
                im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.merges, entry %zu: two tokens are needed, as \"a b\" or [\"a\", \"b\"]", l->t->path, i);
            goto free_whole;
        }
        IM_TRY_GOTO(need_token(l, i, a.s, a.n, &left), free_whole);
        IM_TRY_GOTO(need_token(l, i, b.s, b.n, &right), free_whole);
        whole.len = 0;
        im_str_append_n(&whole, a.s, a.n);
        im_str_append_n(&whole, b.s, b.n);
        IM_TRY_GOTO(need_token(l, i, im_str_text(&whole), whole.failed ? 0 : whole.len, &id), free_whole);
        im_tok_merges_put(&l->t->model.merges, left, right, rank++, id);
    }
free_whole:
    im_str_free(&whole);
    return status;
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static im_status load_unknown(im_tok_loader *l, const im_json_value *v)
{
    im_tok_model *m = &l->t->model;
    m->unk = -1;
    if (im_json_type_of(v) == IM_JSON_NULL)
        return IM_OK;
    if (im_json_type_of(v) == IM_JSON_STRING)
        m->unk = im_tok_table_find(&m->vocab, im_json_string(v, ""), im_json_string_len(v));
    if (m->unk < 0)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: model.unk_token \"%.80s\" is not in the vocabulary", l->t->path, im_json_string(v, ""));
    return IM_OK;
}

static im_status refuse_rest(im_tok_loader *l, const im_json_value *model)
{
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < IM_COUNT_OF(affix); i++)
        if (*im_json_string(im_json_get(model, affix[i]), ""))
            return im_tok_refuse(l, "model", affix[i], im_json_string(im_json_get(model, affix[i]), ""));
    if (im_json_real(im_json_get(model, "dropout"), 0) != 0)
        return im_tok_refuse(l, "model", "dropout", "ids would be random");
    return IM_OK;
}

im_status im_tok_load_model(im_tok_loader *l, const im_json_value *model)
{
    im_tok_model *m = &l->t->model;
    const char *type = im_tok_type(model);
    if (im_json_type_of(model) != IM_JSON_OBJECT)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: it has no model: not a tokenizer.json", l->t->path);
    if (*type && strcmp(type, "BPE"))
        return im_tok_refuse(l, "model", type, "BPE is");
    IM_TRY(refuse_rest(l, model));
    IM_TRY(im_tok_load_bool(l, "model", model, "byte_fallback", false, &m->byte_fallback));
    IM_TRY(im_tok_load_bool(l, "model", model, "fuse_unk", false, &m->fuse_unk));
    IM_TRY(im_tok_load_bool(l, "model", model, "ignore_merges", false, &m->ignore_merges));
    IM_TRY(load_vocab(l, im_json_get(model, "vocab")));
    IM_TRY(load_merges(l, im_json_get(model, "merges")));
    IM_TRY(load_unknown(l, im_json_get(model, "unk_token")));
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        m->byte[b] = m->byte_fallback ? im_tok_table_find(&m->vocab, name, 6) : -1;
    }
    return im_tok_model_finish(l->ctx, m);
}
