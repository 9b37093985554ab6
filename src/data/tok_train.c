/* From texts to a tokenizer.json: words are counted by the steps of the tokenizer to be, become symbols, and are learned from. */
#include "data/tok_train_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 64 << 20, MOST_TOKENS = 1 << 24, PATH_BYTES = 4096 };

struct im_tok_trainer {
    im_context *ctx;
    im_tok_train_config cfg;
    im_arena *arena;
    im_tok_shell shell;
    im_tok *steps; /* the tokenizer to be, without a vocabulary: it cuts texts into words */
    const char **special;
    size_t nspecial, special_cap;
};

/* A word that counts once the text is known to be cut behind it. */
typedef struct pending {
    size_t at, n; /* in text */
} pending;

struct im_tok_counter {
    im_tok_counts counts;
    im_tok_walk *walk;
    im_str raw;
    bool certain; /* the text ends in this run: words count at once */
    pending *word;
    size_t nword, word_cap, settled; /* settled: words in front of the last cut */
    im_str text;
};

/* ---- create --------------------------------------------------------------------------------------------- */

static im_status need_utf8(im_context *ctx, const char *what, const char *s)
{
    im_tok_made none = {0};
    im_tok_text text;
    size_t n = strlen(s);
    im_status status = im_tok_scrub(ctx, &none, s, n, false, &text);
    if (status == IM_OK && text.s != s)
        status = im_fail(ctx, IM_ERR_ARG, "%s \"%.80s\" is not UTF-8", what, text.s);
    im_tok_made_free(&none);
    return status;
}

static im_status add_special(im_tok_trainer *t, const char *token)
{
    IM_TRY(need_utf8(t->ctx, "special token", token));
    if (!*token || strlen(token) > IM_TOK_ADDED_BYTES)
        return im_fail(t->ctx, IM_ERR_ARG, "special token \"%.80s\": from 1 to %d bytes", token, IM_TOK_ADDED_BYTES);
    for (size_t i = 0; i < t->nspecial; i++)
        if (!strcmp(t->special[i], token))
            return IM_OK;
    if (t->nspecial == t->special_cap) {
        size_t cap = t->special_cap ? 2 * t->special_cap : 16;
        const char **more = realloc(t->special, cap * sizeof *more);
        if (!more)
            return im_fail(t->ctx, IM_ERR_NOMEM, "no memory for %zu special tokens", cap);
        t->special = more;
        t->special_cap = cap;
    }
    t->special[t->nspecial] = im_arena_strdup(t->arena, token);
    return t->special[t->nspecial++] ? IM_OK : im_fail(t->ctx, IM_ERR_NOMEM, "no memory for special tokens");
}

/* Its components; its special tokens too, unless others are given. */
static im_status load_like(im_tok_trainer *t)
{
    char path[PATH_BYTES];
    im_json *doc;
    bool dir = im_path_is_dir(t->cfg.like);
    if (snprintf(path, sizeof path, "%s%s", t->cfg.like, dir ? "/tokenizer.json" : "") >= (int)sizeof path)
        return im_fail(t->ctx, IM_ERR_ARG, "%s: the path is too long", t->cfg.like);
    IM_TRY(im_json_load(t->ctx, path, MOST_BYTES, &doc));
    im_status status = IM_OK;
    const im_json_value *added = im_json_get(im_json_root(doc), "added_tokens");
    im_tok_shell_of_json(im_json_root(doc), &t->shell);
    for (size_t i = 0; i < im_json_length(added) && !t->cfg.nspecial; i++)
        if (im_json_bool(im_json_get(im_json_at(added, i), "special"), false))
            IM_TRY_GOTO(add_special(t, im_json_string(im_json_get(im_json_at(added, i), "content"), "")), free_doc);
    const im_json_value *unk = im_json_get(im_json_get(im_json_root(doc), "model"), "unk_token");
    if (im_json_type_of(unk) == IM_JSON_STRING)
        IM_TRY_GOTO(add_special(t, im_json_string(unk, "")), free_doc);
free_doc:
    im_json_free(doc);
    return status;
}

/* The shell around a vocabulary of nothing but one token, through the loader: what it does not do is refused before anything is read. */
static im_status make_steps(im_tok_trainer *t)
{
    im_str json = {0};
    im_str_printf(
        &json, "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"x\": 0}, \"merges\": []}, \"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": %s}",
        im_str_text(&t->shell.normalizer), im_str_text(&t->shell.pre_tokenizer), im_str_text(&t->shell.decoder));
    im_status status = json.failed ? im_fail(t->ctx, IM_ERR_NOMEM, "no memory for a tokenizer")
                                   : im_tok_parse(t->ctx, t->cfg.like ? t->cfg.like : "the style", json.data, json.len, &t->steps);
    im_str_free(&json);
    return status;
}

static im_status check_config(im_context *ctx, const im_tok_train_config *c)
{
    if (c->vocab_size < 1 || c->vocab_size > MOST_TOKENS)
        return im_fail(ctx, IM_ERR_ARG, "vocab-size %lld: from 1 to %d", (long long)c->vocab_size, MOST_TOKENS);
    if (c->min_frequency < 0 || c->limit_alphabet < 0 || c->max_token_length < 0)
        return im_fail(ctx, IM_ERR_ARG, "min-frequency, limit-alphabet and max-token-length are 0 or more");
    return c->alphabet ? need_utf8(ctx, "alphabet", c->alphabet) : IM_OK;
}

/* A style whose alphabet is not the bytes meets characters that it has no token for: they become this one, if it is there. */
static void name_unknown(im_tok_trainer *t)
{
    static const char unknown[] = "<unk>";
    for (size_t i = 0; i < t->cfg.nspecial; i++)
        if (!strcmp(t->cfg.special[i], unknown)) {
            im_str_free(&t->shell.unk);
            t->shell.unk = (im_str){0};
            im_str_json_string(&t->shell.unk, unknown, strlen(unknown));
        }
}

im_status im_tok_trainer_create(im_context *ctx, const im_tok_train_config *cfg, im_tok_trainer **out)
{
    im_status status = IM_OK;
    im_tok_trainer *t;
    IM_TRY(check_config(ctx, cfg));
    IM_TRY(im_alloc(ctx, 1, sizeof *t, (void **)&t));
    t->ctx = ctx;
    t->cfg = *cfg;
    IM_TRY_GOTO(im_arena_create(ctx, &t->arena), destroy);
    for (size_t i = 0; i < cfg->nspecial; i++)
        IM_TRY_GOTO(add_special(t, cfg->special[i]), destroy);
    if (cfg->like)
        IM_TRY_GOTO(load_like(t), destroy);
    else
        im_tok_shell_of_style(cfg->style, cfg->prefix_space, &t->shell);
    if (!cfg->like && cfg->style == IM_TOK_STYLE_METASPACE)
        name_unknown(t);
    IM_TRY_GOTO(make_steps(t), destroy);
    *out = t;
    return IM_OK;
destroy:
    im_tok_trainer_destroy(t);
    return status;
}

void im_tok_trainer_destroy(im_tok_trainer *t)
{
    if (!t)
        return;
    im_tok_shell_free(&t->shell);
    im_tok_close(t->steps);
    im_arena_destroy(t->arena);
    free(t->special);
    free(t);
}

/* ---- counting ---------------------------------------------------------------------------------------------- */

static im_status hold(im_tok_counter *c, const char *s, size_t n)
{
    if (c->certain)
        return im_tok_counts_add(&c->counts, s, n, 1);
    if (c->nword == c->word_cap) {
        size_t cap = c->word_cap ? 2 * c->word_cap : 1024;
        pending *more = realloc(c->word, cap * sizeof *more);
        if (!more)
            return im_fail(c->counts.ctx, IM_ERR_NOMEM, "no memory for %zu words", cap);
        c->word = more;
        c->word_cap = cap;
    }
    c->word[c->nword++] = (pending){c->text.len, n};
    im_str_append_n(&c->text, s, n);
    return c->text.failed ? im_fail(c->counts.ctx, IM_ERR_NOMEM, "no memory for %zu bytes of words", n) : IM_OK;
}

/* Words that are bytes are counted with their own bytes. */
static im_status count_word(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on)
{
    im_tok_counter *c = arg;
    (void)goes_on;
    if (!im_tok_has_mark(t, from, to))
        return hold(c, t->s + from, to - from);
    c->raw.len = 0;
    for (size_t i = im_tok_first_mark(t, from); i < t->nmark && t->mark[i].at < to; i++) {
        im_str_append_n(&c->raw, t->s + from, t->mark[i].at - from);
        im_str_append_n(&c->raw, (const char *)t->mark[i].raw, t->mark[i].n);
        from = t->mark[i].at + 3;
    }
    im_str_append_n(&c->raw, t->s + from, to - from);
    if (c->raw.failed)
        return im_fail(c->counts.ctx, IM_ERR_NOMEM, "no memory for a word of %zu bytes", to - from);
    return hold(c, c->raw.data, c->raw.len);
}

/* im_tok_sink.cut: only the number of words is noted; they are counted after the run, whose errors it can tell. */
static void note_cut(void *arg, size_t at)
{
    im_tok_counter *c = arg;
    (void)at;
    c->settled = c->nword;
}

im_status im_tok_counter_create(im_context *ctx, const im_tok_trainer *t, im_tok_counter **out)
{
    im_status status = IM_OK;
    im_tok_counter *c;
    IM_TRY(im_alloc(ctx, 1, sizeof *c, (void **)&c));
    im_tok_sink sink = {.arg = c, .word = count_word, .cut = note_cut};
    IM_TRY_GOTO(im_tok_counts_create(ctx, &c->counts), destroy);
    IM_TRY_GOTO(im_tok_walk_create(ctx, t->steps, &sink, false, !t->steps->bytes, &c->walk), destroy);
    *out = c;
    return IM_OK;
destroy:
    im_tok_counter_destroy(c);
    return status;
}

void im_tok_counter_destroy(im_tok_counter *c)
{
    if (!c)
        return;
    im_tok_walk_free(c->walk);
    im_tok_counts_free(&c->counts);
    im_str_free(&c->raw);
    im_str_free(&c->text);
    free(c->word);
    free(c);
}

im_status im_tok_counter_add(im_tok_counter *c, const void *bytes, size_t n, bool last, size_t *used)
{
    c->certain = last;
    c->nword = c->settled = 0;
    c->text.len = 0;
    IM_TRY(im_tok_walk_run(c->walk, bytes, n, last, used));
    for (size_t i = 0; i < c->settled; i++)
        IM_TRY(im_tok_counts_add(&c->counts, c->text.data + c->word[i].at, c->word[i].n, 1));
    return IM_OK;
}

/* ---- the alphabet ----------------------------------------------------------------------------------------------- */

typedef struct letter {
    uint32_t c;
    uint64_t count;
} letter;

enum { CHARACTERS = 0x110000 };

static int by_count(const void *a, const void *b) /* the rarest first; of those alike the last ones of Unicode */
{
    const letter *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return x->c > y->c ? -1 : x->c < y->c;
}

static int by_code(const void *a, const void *b)
{
    uint32_t x = ((const letter *)a)->c, y = ((const letter *)b)->c;
    return (x > y) - (x < y);
}

/* The characters that a word is made of: its own, or those that stand for its bytes. */
static inline uint32_t next_letter(const im_tok_trainer *t, const char *s, size_t *k)
{
    if (!t->steps->bytes)
        return im_tok_char(s, k);
    *k = 1;
    return im_tok_byte_char((unsigned char)*s);
}

static void count_letters(const im_tok_trainer *t, const im_tok_counts *words, uint64_t *count)
{
    size_t k;
    for (size_t i = 0; i < words->nslot; i++)
        for (size_t at = 0; words->slot[i].s && at < words->slot[i].n; at += k)
            count[next_letter(t, words->slot[i].s + at, &k)] += words->slot[i].count;
    for (int b = 0; b < 256 && t->cfg.byte_alphabet && t->steps->keeps; b++)
        count[im_tok_byte_char((unsigned char)b)] = UINT64_MAX;
    for (const char *s = t->cfg.alphabet; s && *s; s += k)
        count[im_tok_char(s, &k)] = UINT64_MAX;
    count[0] = 0; /* no name in a JSON file can have it */
}

static im_status add_token(im_tok_trainer *t, im_tok_table *v, const char *s, size_t n)
{
    if (im_tok_table_find(v, s, n) >= 0)
        return IM_OK;
    char *text = im_arena_alloc(t->arena, n + 1);
    if (!text)
        return im_fail(t->ctx, IM_ERR_NOMEM, "no memory for tokens");
    memcpy(text, s, n);
    return im_tok_table_add(v, text, n, (int32_t)v->count) ? IM_OK : im_fail(t->ctx, IM_ERR_INTERNAL, "training: a token twice");
}

/* Special tokens, the tokens of bytes where the model falls back to them, then the alphabet. */
static im_status begin_vocab(im_tok_trainer *t, const uint64_t *count, im_tok_table *v, int64_t *alphabet)
{
    letter *list;
    size_t n = 0, drop = 0;
    im_status status = IM_OK;
    for (uint32_t c = 0; c < CHARACTERS; c++)
        n += count[c] > 0;
    IM_TRY(im_alloc(t->ctx, n + 1, sizeof *list, (void **)&list));
    n = 0;
    for (uint32_t c = 0; c < CHARACTERS; c++)
        if (count[c])
            list[n++] = (letter){c, count[c]};
    if (t->cfg.limit_alphabet && n > (size_t)t->cfg.limit_alphabet) {
        drop = n - (size_t)t->cfg.limit_alphabet;
        qsort(list, n, sizeof *list, by_count);
        qsort(list + drop, n - drop, sizeof *list, by_code);
    }
    IM_TRY_GOTO(
        im_tok_table_create(t->ctx, v, (int64_t)(t->nspecial + 256 + n) + t->cfg.vocab_size, t->nspecial + 256 + n + (size_t)t->cfg.vocab_size),
        free_list);
    for (size_t i = 0; i < t->nspecial; i++)
        IM_TRY_GOTO(add_token(t, v, t->special[i], strlen(t->special[i])), free_list);
    for (int b = 0; b < 256 && t->shell.byte_fallback; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        IM_TRY_GOTO(add_token(t, v, name, 6), free_list);
    }
    for (size_t i = drop; i < n; i++) {
        char text[IM_TOK_CHAR];
        size_t k = im_tok_put_char(list[i].c, text);
        IM_TRY_GOTO(add_token(t, v, text, k), free_list);
    }
    *alphabet = (int64_t)(n - drop);
free_list:
    free(list);
    return status;
}

/* ---- words as symbols --------------------------------------------------------------------------------------------- */

static int by_words_text(const void *a, const void *b)
{
    const im_tok_count *x = a, *y = b;
    int order = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* In the order of their texts, so that the same words are the same lesson whatever thread counted them. Characters that are no token are left
 * out. */
static im_status make_lesson(im_tok_trainer *t, const im_tok_counts *words, const im_tok_table *v, im_tok_lesson *l)
{
    im_status status = IM_OK;
    im_tok_count *list = NULL;
    int32_t *id_of = NULL;
    size_t n = 0, symbols = 0, k;
    IM_TRY_GOTO(im_alloc(t->ctx, words->n + 1, sizeof *list, (void **)&list), free_list);
    IM_TRY_GOTO(im_alloc(t->ctx, CHARACTERS, sizeof *id_of, (void **)&id_of), free_list);
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        char text[IM_TOK_CHAR];
        size_t bytes = im_tok_put_char(c, text);
        id_of[c] = im_tok_table_find(v, text, bytes);
    }
    for (size_t i = 0; i < words->nslot; i++)
        if (words->slot[i].s) {
            list[n++] = words->slot[i];
            symbols += words->slot[i].n + 1;
        }
    qsort(list, n, sizeof *list, by_words_text);
    IM_TRY_GOTO(im_alloc(t->ctx, symbols + 1, sizeof *l->symbol, (void **)&l->symbol), free_list);
    IM_TRY_GOTO(im_alloc(t->ctx, symbols + 1, sizeof *l->word, (void **)&l->word), free_list);
    IM_TRY_GOTO(im_alloc(t->ctx, n + 1, sizeof *l->count, (void **)&l->count), free_list);
    for (size_t i = 0; i < n; i++) {
        l->count[i] = list[i].count;
        for (size_t at = 0; at < list[i].n; at += k) {
            int32_t id = id_of[next_letter(t, list[i].s + at, &k)];
            if (id < 0)
                continue;
            l->word[l->nsymbol] = (uint32_t)i;
            l->symbol[l->nsymbol++] = id;
        }
        l->word[l->nsymbol] = (uint32_t)i;
        l->symbol[l->nsymbol++] = -1;
    }
    l->nword = n;
free_list:
    free(list);
    free(id_of);
    return status;
}

static void free_lesson(im_tok_lesson *l)
{
    free(l->symbol);
    free(l->word);
    free(l->count);
}

/* ---- training ------------------------------------------------------------------------------------------------------ */

/* All counters' words in one table. */
static im_status gather(im_tok_trainer *t, im_tok_counter *const *counter, size_t n, im_tok_counts *all)
{
    IM_TRY(im_tok_counts_create(t->ctx, all));
    for (size_t i = 0; i < n; i++) {
        const im_tok_counts *c = &counter[i]->counts;
        for (size_t k = 0; k < c->nslot; k++)
            if (c->slot[k].s)
                IM_TRY(im_tok_counts_add(all, c->slot[k].s, c->slot[k].n, c->slot[k].count));
    }
    return IM_OK;
}

static im_status train(im_tok_trainer *t, const im_tok_counts *words, im_tok_train_progress progress, void *arg, im_str *json,
                       im_tok_train_result *result)
{
    im_status status = IM_OK;
    im_tok_table v = {0};
    im_tok_lesson l = {.vocab = &v, .arena = t->arena, .vocab_size = t->cfg.vocab_size, .min_frequency = (uint64_t)t->cfg.min_frequency};
    im_tok_learned *merge = NULL;
    size_t nmerge = 0;
    uint64_t *count = NULL;
    im_tok_train_result r = {.words = (int64_t)words->n};
    l.max_length = t->cfg.max_token_length ? (size_t)t->cfg.max_token_length : SIZE_MAX;
    IM_TRY_GOTO(im_alloc(t->ctx, CHARACTERS, sizeof *count, (void **)&count), free_all);
    count_letters(t, words, count);
    IM_TRY_GOTO(begin_vocab(t, count, &v, &r.alphabet), free_all);
    IM_TRY_GOTO(make_lesson(t, words, &v, &l), free_all);
    IM_TRY_GOTO(im_tok_learn(t->ctx, &l, progress, arg, &merge, &nmerge, &r.exhausted), free_all);
    IM_TRY_GOTO(im_tok_write(t->ctx, &t->shell, &v, t->nspecial, merge, nmerge, json), free_all);
    r.tokens = v.count;
    r.merges = (int64_t)nmerge;
    *result = r;
free_all:
    free(count);
    free(merge);
    free_lesson(&l);
    im_tok_table_free(&v);
    return status;
}

im_status im_tok_trainer_run(im_tok_trainer *t, im_tok_counter *const *counter, size_t ncounter, im_tok_train_progress progress, void *arg,
                             im_str *json, im_tok_train_result *result)
{
    im_tok_counts all = {0};
    const im_tok_counts *words = &all;
    im_status status = IM_OK;
    if (ncounter == 1)
        words = &counter[0]->counts;
    else
        IM_TRY_GOTO(gather(t, counter, ncounter, &all), free_counts);
    if (!words->n) {
        status = im_fail(t->ctx, IM_ERR_FORMAT, "training: there is no text: every input is empty");
        goto free_counts;
    }
    status = train(t, words, progress, arg, json, result);
free_counts:
    im_tok_counts_free(&all);
    return status;
}
