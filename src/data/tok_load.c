/* A tokenizer from its file. */
#include "data/tok_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 64 << 20, MOST_CONFIG = 16 << 20, PATH_BYTES = 4096 };

im_status im_tok_refuse(const im_tok_loader *l, const char *part, const char *what, const char *detail)
{
    return im_fail(l->ctx, IM_ERR_UNSUPPORTED, "%s: %s: %.80s is not supported%s%.200s%s", l->t->path, part,
                   *what ? what : "a component without a type", *detail ? " (" : "", detail, *detail ? ")" : "");
}

const char *im_tok_type(const im_json_value *component)
{
    return im_json_string(im_json_get(component, "type"), "");
}

im_status im_tok_load_string(const im_tok_loader *l, const char *part, const im_json_value *object, const char *key, im_tok_string *out)
{
    const im_json_value *v = im_json_get(object, key);
    if (im_json_type_of(v) != IM_JSON_STRING)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: %s must be a text", l->t->path, part, key);
    size_t n = im_json_string_len(v);
    char *s = im_arena_alloc(l->t->arena, n + 1);
    if (!s)
        return im_fail(l->ctx, IM_ERR_NOMEM, "%s: no memory for a text of %zu bytes", l->t->path, n);
    memcpy(s, im_json_string(v, ""), n);
    *out = (im_tok_string){s, (uint32_t)n};
    return IM_OK;
}

im_status im_tok_load_bool(const im_tok_loader *l, const char *part, const im_json_value *object, const char *key, bool fallback, bool *out)
{
    const im_json_value *v = im_json_get(object, key);
    if (im_json_type_of(v) != IM_JSON_BOOL && im_json_type_of(v) != IM_JSON_NULL)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: %s must be true or false", l->t->path, part, key);
    *out = im_json_bool(v, fallback);
    return IM_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------------------- */

/* The id that Hugging Face's library gives a token, whatever the file says: that of the vocabulary, else the next one behind the vocabulary's
 * count and the largest so far. */
static int64_t next_id(const im_tok *t, const im_tok_string *content, int64_t largest)
{
    int32_t known = im_tok_table_find(&t->model.vocab, content->s, content->n);
    if (known >= 0)
        return known;
    return largest >= t->model.vocab.count ? largest + 1 : t->model.vocab.count;
}

static im_status load_one(im_tok_loader *l, const im_json_value *v, im_tok_added *a, int64_t *largest)
{
    static const char part[] = "added_tokens";
    im_tok_string content;
    IM_TRY(im_tok_load_string(l, part, v, "content", &content));
    IM_TRY(im_tok_load_bool(l, part, v, "single_word", false, &a->single_word));
    IM_TRY(im_tok_load_bool(l, part, v, "lstrip", false, &a->lstrip));
    IM_TRY(im_tok_load_bool(l, part, v, "rstrip", false, &a->rstrip));
    IM_TRY(im_tok_load_bool(l, part, v, "normalized", false, &a->normalized));
    IM_TRY(im_tok_load_bool(l, part, v, "special", false, &a->special));
    int64_t id = im_json_int(im_json_get(v, "id"), -1), right = next_id(l->t, &content, *largest);
    if (!content.n || content.n > IM_TOK_ADDED_BYTES)
        return im_fail(l->ctx, IM_ERR_UNSUPPORTED, "%s: added_tokens: \"%.80s\" has %u bytes: from 1 to %d", l->t->path, content.s, content.n,
                       IM_TOK_ADDED_BYTES);
    if (id < 0 || id >= IM_TOK_MOST_IDS)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: added_tokens: \"%.80s\": its id must be a whole number from 0 to %d", l->t->path, content.s,
                       IM_TOK_MOST_IDS - 1);
    if (id != right)
        return im_fail(
            l->ctx, IM_ERR_FORMAT,
            "%s: added_tokens: \"%.80s\" has the id %lld; Hugging Face's tokenizers would read it as %lld (a token of the vocabulary keeps "
            "its id, others follow without a gap)",
            l->t->path, content.s, (long long)id, (long long)right);
    a->content = a->pattern = content.s;
    a->len = a->pattern_len = content.n;
    a->id = (int32_t)id;
    *largest = id > *largest ? id : *largest;
    return IM_OK;
}

static im_status load_added(im_tok_loader *l, const im_json_value *v)
{
    im_tok *t = l->t;
    size_t n = im_json_length(v);
    int64_t largest = -1;
    if (im_json_type_of(v) != IM_JSON_ARRAY && im_json_type_of(v) != IM_JSON_NULL)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: added_tokens: a list is needed", t->path);
    t->added = IM_ARENA_NEW(t->arena, im_tok_added, n + 1);
    if (!t->added)
        return im_fail(l->ctx, IM_ERR_NOMEM, "%s: no memory for %zu added tokens", t->path, n);
    for (size_t i = 0; i < n; i++)
        IM_TRY(load_one(l, im_json_at(v, i), &t->added[i], &largest));
    t->nadded = n;
    t->size = largest + 1 > t->model.vocab.size ? largest + 1 : t->model.vocab.size;
    IM_TRY(im_tok_table_create(l->ctx, &t->names, t->size, n));
    IM_TRY(im_alloc(l->ctx, (size_t)t->size, 1, (void **)&t->special));
    for (size_t i = 0; i < n; i++) {
        const im_tok_added *a = &t->added[i];
        if (!im_tok_table_add(&t->names, a->content, a->len, a->id))
            return im_fail(l->ctx, IM_ERR_FORMAT, "%s: added_tokens: \"%.80s\" is there twice, or its id %d is", t->path, a->content, a->id);
        t->special[a->id] = a->special;
    }
    return IM_OK;
}

/* What a normalized token is found by is what the normalizer makes of it. */
typedef struct pattern_maker {
    im_tok_loader *l;
    im_str text;
} pattern_maker;

static im_status take_pattern(void *arg, const im_tok_text *t, size_t from, size_t to, bool goes_on)
{
    pattern_maker *p = arg;
    (void)goes_on;
    im_str_append_n(&p->text, t->s + from, to - from);
    return IM_OK;
}

static im_status normalize_added(im_tok_loader *l)
{
    im_tok *t = l->t;
    pattern_maker p = {.l = l};
    im_tok_sink sink = {.arg = &p, .word = take_pattern};
    im_tok_walk *walk = NULL;
    im_tok_steps words = t->words; /* only the normalizer here */
    im_status status = IM_OK;
    size_t used;
    t->words.n = 0;
    IM_TRY_GOTO(im_tok_walk_create(l->ctx, t, &sink, false, true, &walk), free_walk);
    for (size_t i = 0; i < t->nadded; i++) {
        im_tok_added *a = &t->added[i];
        if (!a->normalized)
            continue;
        p.text.len = 0;
        IM_TRY_GOTO(im_tok_walk_run(walk, a->content, a->len, true, &used), free_walk);
        char *s = p.text.failed || p.text.len > 4 * IM_TOK_ADDED_BYTES ? NULL : im_arena_alloc(t->arena, p.text.len + 1);
        if (!s) {
            status =
                im_fail(l->ctx, IM_ERR_NOMEM, "%s: added_tokens: \"%.80s\" becomes %zu bytes when it is normalized", t->path, a->content, p.text.len);
            goto free_walk;
        }
        memcpy(s, im_str_text(&p.text), p.text.len);
        a->pattern = s;
        a->pattern_len = p.text.len;
    }
free_walk:
    t->words = words;
    im_tok_walk_free(walk);
    im_str_free(&p.text);
    return status;
}

static im_status make_tries(im_tok_loader *l)
{
    im_tok *t = l->t;
    /* empty ones first: making patterns walks */
    for (int i = 0; i < 2; i++)
        IM_TRY(im_tok_trie_create(l->ctx, t->added, 0, i, &t->trie[i]));
    if (t->normal.n)
        IM_TRY(normalize_added(l));
    for (int i = 0; i < 2; i++) {
        im_tok_trie_free(t->trie[i]);
        t->trie[i] = NULL;
        IM_TRY(im_tok_trie_create(l->ctx, t->added, t->nadded, i, &t->trie[i]));
    }
    return IM_OK;
}

/* ---- what the parts make together ------------------------------------------------------------------------- */

static bool is_split(const im_tok_step *s)
{
    return s->kind == IM_TOK_STEP_SPLIT || s->kind == IM_TOK_STEP_CLASS;
}

/* A text can be cut where its first splitting step ends a word, unless that step looks back or a normalizer looks far. */
static bool streams(const im_tok *t)
{
    for (size_t i = 0; i < t->normal.n; i++) {
        const im_tok_step *s = &t->normal.step[i];
        bool one = s->literal.n && im_tok_char_bytes(s->literal.s[0]) == s->literal.n;
        if (s->kind == IM_TOK_STEP_STRIP || (s->kind == IM_TOK_STEP_REPLACE && (s->regex || !one)))
            return false;
    }
    for (size_t i = 0; i < t->words.n; i++)
        if (is_split(&t->words.step[i]))
            return !t->words.step[i].regex || !im_tok_regex_looks_back(t->words.step[i].regex);
    return true;
}

static bool has_kind(const im_tok_steps *s, im_tok_step_kind kind)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->step[i].kind == kind)
            return true;
    return false;
}

static void settle(im_tok *t)
{
    bool mapped = has_kind(&t->normal, IM_TOK_STEP_BYTES);
    for (size_t i = 0; i + 1 < t->words.n; i++)
        mapped = mapped || t->words.step[i].kind == IM_TOK_STEP_BYTES;
    t->bytes = !mapped && t->words.n && t->words.step[t->words.n - 1].kind == IM_TOK_STEP_BYTES;
    t->words.n -= t->bytes;
    t->keeps = mapped || t->bytes;
    t->streams = streams(t);
}

/* ---- what ends and begins a text ----------------------------------------------------------------------------- */

static int32_t first_known(const im_tok *t, const char *const *name, size_t n)
{
    int32_t id = -1;
    for (size_t i = 0; i < n && id < 0; i++)
        id = im_tok_table_find(&t->names, name[i], strlen(name[i]));
    return id;
}

static void guess_ends(im_tok *t)
{
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "<|im_end|>", "[EOS]", "<EOS>"};
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<BOS>"};
    t->eod = first_known(t, ends, IM_COUNT_OF(ends));
    t->bos = first_known(t, begins, IM_COUNT_OF(begins));
}

/* A text, or an object with it as `content`. */
static int32_t named(const im_tok *t, const im_json_value *v, int32_t fallback)
{
    if (im_json_type_of(v) == IM_JSON_OBJECT)
        v = im_json_get(v, "content");
    int32_t id = im_json_type_of(v) == IM_JSON_STRING ? im_tok_find(t, im_json_string(v, "")) : -1;
    return id >= 0 ? id : fallback;
}

/* tokenizer_config.json beside the file, when there is one. */
static im_status read_config(im_context *ctx, im_tok *t)
{
    char path[PATH_BYTES];
    const char *slash = strrchr(t->path, '/');
    im_json *doc;
    if (snprintf(path, sizeof path, "%.*stokenizer_config.json", slash ? (int)(slash - t->path) + 1 : 0, t->path) >= (int)sizeof path ||
        !im_path_exists(path))
        return IM_OK;
    IM_TRY(im_json_load(ctx, path, MOST_CONFIG, &doc));
    t->eod = named(t, im_json_get(im_json_root(doc), "eos_token"), t->eod);
    t->bos = named(t, im_json_get(im_json_root(doc), "bos_token"), t->bos);
    im_json_free(doc);
    return IM_OK;
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

/* The types of a component and of those in it. */
static void name_parts(const im_json_value *v, im_str *out)
{
    static const char *const list[] = {"normalizers", "pretokenizers", "decoders"};
    const char *type = im_tok_type(v);
    if (strcmp(type, "Sequence")) {
        im_str_printf(out, "%s%s", out->len ? ", " : "", *type ? type : "none");
        return;
    }
    for (size_t i = 0; i < IM_COUNT_OF(list); i++)
        for (size_t k = 0; k < im_json_length(im_json_get(v, list[i])); k++)
            name_parts(im_json_at(im_json_get(v, list[i]), k), out);
}

static im_status load_all(im_tok_loader *l)
{
    const im_json_value *root = im_json_root(l->doc);
    static const char *const part[] = {"normalizer", "pre_tokenizer", "decoder"};
    for (size_t i = 0; i < IM_COUNT_OF(part); i++)
        name_parts(im_json_get(root, part[i]), &l->t->part[i]);
    IM_TRY(im_tok_load_model(l, im_json_get(root, "model")));
    IM_TRY(load_added(l, im_json_get(root, "added_tokens")));
    IM_TRY(im_tok_load_normalizer(l, im_json_get(root, "normalizer"), 0));
    IM_TRY(im_tok_load_pre_tokenizer(l, im_json_get(root, "pre_tokenizer"), 0));
    IM_TRY(im_tok_load_template(l, im_json_get(root, "post_processor"), 0));
    IM_TRY(im_tok_load_decoder(l, im_json_get(root, "decoder"), 0));
    settle(l->t);
    IM_TRY(make_tries(l));
    for (size_t i = 0; i < l->t->nbefore + l->t->nafter; i++) {
        int32_t id = i < l->t->nbefore ? l->t->before[i] : l->t->after[i - l->t->nbefore];
        size_t n;
        if (!im_tok_token(l->t, id, &n))
            return im_fail(l->ctx, IM_ERR_FORMAT, "%s: post_processor: there is no token with the id %d", l->t->path, id);
    }
    guess_ends(l->t);
    return IM_OK;
}

im_status im_tok_parse(im_context *ctx, const char *name, const char *json, size_t len, im_tok **out)
{
    im_status status = IM_OK;
    im_json *doc = NULL;
    im_tok *t;
    IM_TRY(im_alloc(ctx, 1, sizeof *t, (void **)&t));
    IM_TRY_GOTO(im_arena_create(ctx, &t->arena), close_tok);
    t->path = im_arena_strdup(t->arena, name);
    if (!t->path) {
        status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory", name);
        goto close_tok;
    }
    t->fingerprint = im_hash64(json, len, 0);
    IM_TRY_GOTO(im_json_parse(ctx, name, json, len, &doc), close_tok);
    im_tok_loader l = {ctx, t, doc};
    IM_TRY_GOTO(load_all(&l), close_tok);
    im_json_free(doc);
    *out = t;
    return IM_OK;
close_tok:
    im_json_free(doc);
    im_tok_close(t);
    return status;
}

bool im_tok_in_dir(const char *dir)
{
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/tokenizer.json", dir) < (int)sizeof path && im_path_exists(path);
}

im_status im_tok_open(im_context *ctx, const char *path, im_tok **out)
{
    char file[PATH_BYTES];
    char *text;
    size_t len;
    im_tok *t;
    bool dir = im_path_is_dir(path);
    if (snprintf(file, sizeof file, "%s%s", path,
                 !dir                            ? ""
                 : path[strlen(path) - 1] == '/' ? "tokenizer.json"
                                                 : "/tokenizer.json") >= (int)sizeof file)
        return im_fail(ctx, IM_ERR_ARG, "%s: the path is too long", path);
    if (dir && !im_path_exists(file))
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no tokenizer.json in this directory", path);
    IM_TRY(im_file_read(ctx, file, MOST_BYTES, &text, &len));
    im_status status = im_tok_parse(ctx, file, text, len, &t);
    free(text);
    IM_TRY(status);
    status = read_config(ctx, t);
    if (status == IM_OK)
        *out = t;
    else
        im_tok_close(t);
    return status;
}

static void free_steps(im_tok_steps *s)
{
    for (size_t i = 0; i < IM_TOK_STEPS; i++)
        im_tok_regex_free(s->step[i].regex);
}

void im_tok_close(im_tok *t)
{
    if (!t)
        return;
    im_tok_model_free(&t->model);
    im_tok_table_free(&t->names);
    im_tok_trie_free(t->trie[0]);
    im_tok_trie_free(t->trie[1]);
    free_steps(&t->normal);
    free_steps(&t->words);
    free(t->before);
    free(t->after);
    free(t->special);
    for (size_t i = 0; i < IM_COUNT_OF(t->part); i++)
        im_str_free(&t->part[i]);
    im_arena_destroy(t->arena);
    free(t);
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

const char *im_tok_path(const im_tok *t)
{
    return t->path;
}

int64_t im_tok_vocab(const im_tok *t)
{
    return t->size;
}

uint64_t im_tok_fingerprint(const im_tok *t)
{
    return t->fingerprint;
}

bool im_tok_lossless(const im_tok *t)
{
    bool all = t->keeps && !t->normal.n && t->ndecoder == 1 && t->decoder[0].kind == IM_TOK_DECODE_BYTES &&
               !has_kind(&t->words, IM_TOK_STEP_PREFIX) && !has_kind(&t->words, IM_TOK_STEP_METASPACE);
    for (size_t i = 0; i < t->words.n; i++)
        all = all && !(is_split(&t->words.step[i]) && t->words.step[i].behavior == IM_TOK_REMOVED);
    for (size_t i = 0; i < t->nadded; i++)
        all = all && !t->added[i].lstrip && !t->added[i].rstrip;
    for (int b = 0; b < 256; b++)
        all = all && t->model.byte_symbol[b] >= 0;
    return all;
}

int32_t im_tok_eod(const im_tok *t)
{
    return t->eod;
}

int32_t im_tok_bos(const im_tok *t)
{
    return t->bos;
}

int32_t im_tok_find(const im_tok *t, const char *token)
{
    int32_t id = im_tok_table_find(&t->names, token, strlen(token));
    return id >= 0 ? id : im_tok_table_find(&t->model.vocab, token, strlen(token));
}

const char *im_tok_token(const im_tok *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->size)
        return NULL;
    const im_tok_string *s = &t->names.token[id];
    if (!s->s && id < t->model.vocab.size)
        s = &t->model.vocab.token[id];
    *len = s->n;
    return s->s;
}

bool im_tok_is_special(const im_tok *t, int32_t id)
{
    return id >= 0 && id < t->size && t->special[id];
}

bool im_tok_set_eod(im_tok *t, const char *token)
{
    int32_t id = im_tok_find(t, token);
    if (id >= 0)
        t->eod = id;
    return id >= 0;
}

void im_tok_tell(const im_tok *t, im_tok_about *out)
{
    *out = (im_tok_about){.tokens = t->model.vocab.count, .merges = (int64_t)t->model.merges.n, .added = (int64_t)t->nadded, .bytes = t->keeps};
    out->normalizer = im_str_text(&t->part[0]);
    out->pre_tokenizer = im_str_text(&t->part[1]);
    out->decoder = im_str_text(&t->part[2]);
    for (size_t i = 0; i < t->nadded; i++)
        out->special += t->added[i].special;
}
