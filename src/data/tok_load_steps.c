/* The components of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor, decoder. */
#include "data/tok_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char gpt2_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/* of the `regex` library, whose \w has joiners too */
#define WORD "\\p{Alpha}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
static const char whitespace_words[] = "[" WORD "]+|[^" WORD "\\s]+";

static im_status add_step(im_tok_loader *l, const char *part, im_tok_steps *steps, const im_tok_step *step)
{
    if (steps->n + 1 >= IM_TOK_STEPS) /* one more for the text they begin with */
        return im_tok_refuse(l, part, "a sequence of so many steps", "");
    steps->step[steps->n++] = *step;
    return IM_OK;
}

/* {"String": "..."} or {"Regex": "..."}, into a step that is added even when it fails: it is freed with the tokenizer. */
static im_status load_pattern(im_tok_loader *l, const char *part, const im_json_value *v, im_tok_step *step)
{
    char where[600];
    const im_json_value *regex = im_json_get(v, "Regex");
    if (im_json_type_of(regex) == IM_JSON_STRING) {
        snprintf(where, sizeof where, "%.500s: %s", l->t->path, part);
        return im_tok_regex_compile(l->ctx, where, im_json_string(regex, ""), im_json_string_len(regex), &step->regex);
    }
    if (im_json_type_of(v) == IM_JSON_STRING) /* as older files have it */
        step->literal = (im_tok_string){im_arena_strdup(l->t->arena, im_json_string(v, "")), (uint32_t)im_json_string_len(v)};
    else
        IM_TRY(im_tok_load_string(l, part, v, "String", &step->literal));
    return step->literal.n ? IM_OK : im_tok_refuse(l, part, "an empty pattern", "");
}

/* Each of a list of components, through `load`. */
static im_status load_list(im_tok_loader *l, const char *part, const im_json_value *list, int depth,
                           im_status (*load)(im_tok_loader *, const im_json_value *, int))
{
    if (im_json_type_of(list) != IM_JSON_ARRAY)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: a Sequence without its list", l->t->path, part);
    if (depth >= IM_TOK_NESTED)
        return im_tok_refuse(l, part, "Sequence", "so deep in each other");
    for (size_t i = 0; i < im_json_length(list); i++)
        IM_TRY(load(l, im_json_at(list, i), depth + 1));
    return IM_OK;
}

/* ---- normalizer ------------------------------------------------------------------------------------------ */

im_status im_tok_load_normalizer(im_tok_loader *l, const im_json_value *v, int depth)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    static const char part[] = "normalizer";
    const char *type = im_tok_type(v);
    im_tok_steps *steps = &l->t->normal;
    im_tok_step step = {0};
    if (im_json_type_of(v) == IM_JSON_NULL)
        return IM_OK;
    if (!strcmp(type, "Sequence"))
        return load_list(l, part, im_json_get(v, "normalizers"), depth, im_tok_load_normalizer);
    for (size_t i = 0; i < IM_COUNT_OF(forms); i++)
        if (!strcmp(type, forms[i])) {
            step.form = (im_tok_form)i;
            return add_step(l, part, steps, &step);
        }
    if (!strcmp(type, "Prepend")) {
        step.kind = IM_TOK_STEP_PREPEND;
        IM_TRY(im_tok_load_string(l, part, v, "prepend", &step.literal));
        return add_step(l, part, steps, &step);
    }
    if (!strcmp(type, "Replace")) {
        step.kind = IM_TOK_STEP_REPLACE;
        IM_TRY(im_tok_load_string(l, part, v, "content", &step.with));
        IM_TRY(add_step(l, part, steps, &step));
        return load_pattern(l, part, im_json_get(v, "pattern"), &steps->step[steps->n - 1]);
    }
    if (!strcmp(type, "Strip")) {
        step.kind = IM_TOK_STEP_STRIP;
        IM_TRY(im_tok_load_bool(l, part, v, "strip_left", false, &step.left));
        IM_TRY(im_tok_load_bool(l, part, v, "strip_right", false, &step.right));
        return add_step(l, part, steps, &step);
    }
    if (!strcmp(type, "ByteLevel")) {
        step.kind = IM_TOK_STEP_BYTES;
        return add_step(l, part, steps, &step);
    }
    return im_tok_refuse(l, part, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, ByteLevel and Sequence are");
}

/* ---- pre_tokenizer ------------------------------------------------------------------------------------------ */

static const char pre[] = "pre_tokenizer";

static im_status add_class(im_tok_loader *l, im_tok_class of, uint32_t character, im_tok_behavior behavior)
{
    im_tok_step step = {.kind = IM_TOK_STEP_CLASS, .of = of, .character = character, .behavior = behavior};
    return add_step(l, pre, &l->t->words, &step);
}

static im_status add_regex(im_tok_loader *l, const char *pattern, im_tok_behavior behavior, bool invert)
{
    im_tok_step step = {.kind = IM_TOK_STEP_SPLIT, .behavior = behavior, .invert = invert};
    IM_TRY(add_step(l, pre, &l->t->words, &step));
    return im_tok_regex_compile(l->ctx, pre, pattern, strlen(pattern), &l->t->words.step[l->t->words.n - 1].regex);
}

static im_status load_behavior(im_tok_loader *l, const im_json_value *v, const char *fallback, im_tok_behavior *out)
{
    static const char *const name[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *given = im_json_string(im_json_get(v, "behavior"), fallback);
    for (size_t i = 0; i < IM_COUNT_OF(name); i++)
        if (!strcmp(name[i], given)) {
            *out = (im_tok_behavior)i;
            return IM_OK;
        }
    return im_tok_refuse(l, pre, "behavior", given);
}

static im_status load_byte_level(im_tok_loader *l, const im_json_value *v)
{
    bool space, regex;
    IM_TRY(im_tok_load_bool(l, pre, v, "add_prefix_space", true, &space));
    IM_TRY(im_tok_load_bool(l, pre, v, "use_regex", true, &regex));
    im_tok_step prefix = {.kind = IM_TOK_STEP_PREFIX}, bytes = {.kind = IM_TOK_STEP_BYTES};
    if (space)
        IM_TRY(add_step(l, pre, &l->t->words, &prefix));
    if (regex)
        IM_TRY(add_regex(l, gpt2_words, IM_TOK_ISOLATED, false));
    return add_step(l, pre, &l->t->words, &bytes);
}

static im_status load_split(im_tok_loader *l, const im_json_value *v)
{
    im_tok_step step = {.kind = IM_TOK_STEP_SPLIT};
    IM_TRY(load_behavior(l, v, "", &step.behavior));
    IM_TRY(im_tok_load_bool(l, pre, v, "invert", false, &step.invert));
    IM_TRY(add_step(l, pre, &l->t->words, &step));
    return load_pattern(l, pre, im_json_get(v, "pattern"), &l->t->words.step[l->t->words.n - 1]);
}

/* A text of one character. */
static im_status load_character(const im_tok_loader *l, const char *part, const im_json_value *v, const char *key, uint32_t fallback, uint32_t *out)
{
    size_t n;
    *out = fallback;
    if (fallback && im_json_type_of(im_json_get(v, key)) == IM_JSON_NULL)
        return IM_OK;
    im_tok_string s;
    IM_TRY(im_tok_load_string(l, part, v, key, &s));
    if (!s.n || im_tok_char_bytes(s.s[0]) != s.n)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: %s \"%.40s\" is not one character", l->t->path, part, key, s.s);
    *out = im_tok_char(s.s, &n);
    return IM_OK;
}

/* prepend_scheme, or add_prefix_space as older files have it. */
static im_status load_scheme(const im_tok_loader *l, const char *part, const im_json_value *v, im_tok_scheme *out)
{
    static const char *const name[] = {"always", "first", "never"};
    const char *given = im_json_string(im_json_get(v, "prepend_scheme"), NULL);
    bool space;
    IM_TRY(im_tok_load_bool(l, part, v, "add_prefix_space", true, &space));
    *out = space ? IM_TOK_ALWAYS : IM_TOK_NEVER;
    for (size_t i = 0; given && i < IM_COUNT_OF(name); i++)
        if (!strcmp(given, name[i])) {
            *out = (im_tok_scheme)i;
            given = NULL;
        }
    if (given)
        return im_tok_refuse(l, part, "prepend_scheme", given);
    if (!space && *out != IM_TOK_NEVER)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: add_prefix_space false and a prepend_scheme that is not never", l->t->path, part);
    return IM_OK;
}

static im_status load_metaspace(im_tok_loader *l, const im_json_value *v)
{
    im_tok_step step = {.kind = IM_TOK_STEP_METASPACE};
    IM_TRY(load_character(l, pre, v, "replacement", 0, &step.character));
    IM_TRY(load_scheme(l, pre, v, &step.scheme));
    IM_TRY(im_tok_load_bool(l, pre, v, "split", true, &step.split));
    IM_TRY(add_step(l, pre, &l->t->words, &step));
    return step.split ? add_class(l, IM_TOK_CLASS_CHAR, step.character, IM_TOK_WITH_NEXT) : IM_OK;
}

im_status im_tok_load_pre_tokenizer(im_tok_loader *l, const im_json_value *v, int depth)
{
    const char *type = im_tok_type(v);
    if (im_json_type_of(v) == IM_JSON_NULL)
        return IM_OK;
    if (!strcmp(type, "Sequence"))
        return load_list(l, pre, im_json_get(v, "pretokenizers"), depth, im_tok_load_pre_tokenizer);
    if (!strcmp(type, "ByteLevel"))
        return load_byte_level(l, v);
    if (!strcmp(type, "Split"))
        return load_split(l, v);
    if (!strcmp(type, "Metaspace"))
        return load_metaspace(l, v);
    if (!strcmp(type, "Digits")) {
        bool individual;
        IM_TRY(im_tok_load_bool(l, pre, v, "individual_digits", false, &individual));
        return add_class(l, IM_TOK_CLASS_NUMBER, 0, individual ? IM_TOK_ISOLATED : IM_TOK_CONTIGUOUS);
    }
    if (!strcmp(type, "Punctuation")) {
        im_tok_behavior behavior;
        IM_TRY(load_behavior(l, v, "Isolated", &behavior));
        return add_class(l, IM_TOK_CLASS_PUNCTUATION, 0, behavior);
    }
    if (!strcmp(type, "WhitespaceSplit"))
        return add_class(l, IM_TOK_CLASS_SPACE, 0, IM_TOK_REMOVED);
    if (!strcmp(type, "Whitespace"))
        return add_regex(l, whitespace_words, IM_TOK_REMOVED, true);
    if (!strcmp(type, "BertPreTokenizer")) {
        IM_TRY(add_class(l, IM_TOK_CLASS_SPACE, 0, IM_TOK_REMOVED));
        return add_class(l, IM_TOK_CLASS_PUNCTUATION, 0, IM_TOK_ISOLATED);
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        uint32_t c;
        IM_TRY(load_character(l, pre, v, "delimiter", 0, &c));
        return add_class(l, IM_TOK_CLASS_CHAR, c, IM_TOK_REMOVED);
    }
    return im_tok_refuse(l, pre, type,
                         "ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit and "
                         "Sequence are");
}

/* ---- post_processor -------------------------------------------------------------------------------------------- */

static const char post[] = "post_processor";

/* One more id in front of the list, or behind it. */
static im_status add_id(im_tok_loader *l, bool front, int64_t id, int32_t **list, size_t *n)
{
    if (id < 0 || id >= IM_TOK_MOST_IDS)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: an id of %lld", l->t->path, post, (long long)id);
    int32_t *more = realloc(*list, (*n + 1) * sizeof **list);
    if (!more)
        return im_fail(l->ctx, IM_ERR_NOMEM, "%s: no memory for its template", l->t->path);
    *list = more;
    if (front)
        memmove(more + 1, more, *n * sizeof *more);
    more[front ? 0 : *n] = (int32_t)id;
    ++*n;
    return IM_OK;
}

/* The ids of the special token of one piece of a template. */
static im_status load_special(im_tok_loader *l, const im_json_value *special, const im_json_value *tokens, int32_t **list, size_t *n)
{
    const char *name = im_json_string(im_json_get(special, "id"), "");
    const im_json_value *ids = im_json_get(im_json_get(tokens, name), "ids");
    if (im_json_type_of(ids) != IM_JSON_ARRAY)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: special_tokens has no ids for \"%.80s\"", l->t->path, post, name);
    for (size_t i = 0; i < im_json_length(ids); i++)
        IM_TRY(add_id(l, false, im_json_int(im_json_at(ids, i), -1), list, n));
    return IM_OK;
}

/* Pieces in front of the text go in front of what is there already, those behind it behind. */
static im_status load_processing(im_tok_loader *l, const im_json_value *v)
{
    const im_json_value *single = im_json_get(v, "single"), *tokens = im_json_get(v, "special_tokens");
    int32_t *list[2] = {NULL, NULL};
    size_t n[2] = {0, 0}, texts = 0;
    im_status status = IM_OK;
    for (size_t i = 0; i < im_json_length(single); i++) {
        const im_json_value *piece = im_json_at(single, i), *special = im_json_get(piece, "SpecialToken");
        if (im_json_type_of(special) == IM_JSON_OBJECT)
            IM_TRY_GOTO(load_special(l, special, tokens, &list[texts > 0], &n[texts > 0]), free_lists);
        else
            texts++;
    }
    if (texts != 1) {
        status = im_tok_refuse(l, post, "TemplateProcessing", "whose single is not one Sequence and special tokens");
        goto free_lists;
    }
    for (size_t i = n[0]; i-- > 0;)
        IM_TRY_GOTO(add_id(l, true, list[0][i], &l->t->before, &l->t->nbefore), free_lists);
    for (size_t i = 0; i < n[1]; i++)
        IM_TRY_GOTO(add_id(l, false, list[1][i], &l->t->after, &l->t->nafter), free_lists);
free_lists:
    free(list[0]);
    free(list[1]);
    return status;
}

im_status im_tok_load_template(im_tok_loader *l, const im_json_value *v, int depth)
{
    const char *type = im_tok_type(v);
    if (im_json_type_of(v) == IM_JSON_NULL || !strcmp(type, "ByteLevel")) /* it moves offsets, which are not made here */
        return IM_OK;
    if (!strcmp(type, "Sequence"))
        return load_list(l, post, im_json_get(v, "processors"), depth, im_tok_load_template);
    if (!strcmp(type, "TemplateProcessing"))
        return load_processing(l, v);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        IM_TRY(add_id(l, true, im_json_int(im_json_at(im_json_get(v, "cls"), 1), -1), &l->t->before, &l->t->nbefore));
        return add_id(l, false, im_json_int(im_json_at(im_json_get(v, "sep"), 1), -1), &l->t->after, &l->t->nafter);
    }
    return im_tok_refuse(l, post, type, "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing and Sequence are");
}

/* ---- decoder ------------------------------------------------------------------------------------------------------ */

static const char dec[] = "decoder";

static im_status add_decoder(im_tok_loader *l, const im_tok_decoder *d)
{
    if (l->t->ndecoder == IM_TOK_DECODERS)
        return im_tok_refuse(l, dec, "a sequence of so many decoders", "");
    l->t->decoder[l->t->ndecoder++] = *d;
    return IM_OK;
}

/* Behind Fuse all is one token: only what looks at single characters can be done as they come. */
static im_status refuse_behind_fuse(const im_tok_loader *l, const char *type, bool characters)
{
    for (size_t i = 0; i < l->t->ndecoder; i++)
        if (l->t->decoder[i].kind == IM_TOK_DECODE_FUSE && !characters)
            return im_tok_refuse(l, dec, type, "behind Fuse");
    return IM_OK;
}

static im_status load_replace_decoder(im_tok_loader *l, const im_json_value *v)
{
    im_tok_decoder d = {.kind = IM_TOK_DECODE_REPLACE};
    const im_json_value *pattern = im_json_get(v, "pattern");
    if (im_json_type_of(im_json_get(pattern, "Regex")) != IM_JSON_NULL)
        return im_tok_refuse(l, dec, "Replace", "with a Regex");
    IM_TRY(im_tok_load_string(l, dec, pattern, "String", &d.find));
    IM_TRY(im_tok_load_string(l, dec, v, "content", &d.put));
    if (!d.find.n)
        return im_tok_refuse(l, dec, "Replace", "of nothing");
    IM_TRY(refuse_behind_fuse(l, "Replace", im_tok_char_bytes(d.find.s[0]) == d.find.n));
    return add_decoder(l, &d);
}

static im_status load_strip_decoder(im_tok_loader *l, const im_json_value *v)
{
    im_tok_decoder d = {.kind = IM_TOK_DECODE_STRIP};
    int64_t start = im_json_int(im_json_get(v, "start"), -1), stop = im_json_int(im_json_get(v, "stop"), -1);
    IM_TRY(load_character(l, dec, v, "content", ' ', &d.character));
    if (start < 0 || stop < 0 || start > 1 << 20 || stop > 1 << 20)
        return im_fail(l->ctx, IM_ERR_FORMAT, "%s: %s: Strip with start %lld and stop %lld", l->t->path, dec, (long long)start, (long long)stop);
    d.start = (int)start;
    d.stop = (int)stop;
    return add_decoder(l, &d);
}

im_status im_tok_load_decoder(im_tok_loader *l, const im_json_value *v, int depth)
{
    const char *type = im_tok_type(v);
    im_tok_decoder d = {.kind = IM_TOK_DECODE_SPACES};
    if (im_json_type_of(v) == IM_JSON_NULL)
        return add_decoder(l, &d);
    if (!strcmp(type, "Sequence"))
        return load_list(l, dec, im_json_get(v, "decoders"), depth, im_tok_load_decoder);
    if (!strcmp(type, "Replace"))
        return load_replace_decoder(l, v);
    if (!strcmp(type, "Strip"))
        return load_strip_decoder(l, v);
    if (!strcmp(type, "Fuse")) {
        d.kind = IM_TOK_DECODE_FUSE;
        return add_decoder(l, &d);
    }
    if (!strcmp(type, "ByteLevel")) {
        d.kind = IM_TOK_DECODE_BYTES;
    } else if (!strcmp(type, "ByteFallback")) {
        d.kind = IM_TOK_DECODE_FALLBACK;
    } else if (!strcmp(type, "Metaspace")) {
        d.kind = IM_TOK_DECODE_METASPACE;
        IM_TRY(load_character(l, dec, v, "replacement", 0, &d.character));
        IM_TRY(load_scheme(l, dec, v, &d.scheme));
    } else {
        return im_tok_refuse(l, dec, type, "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and Sequence are");
    }
    IM_TRY(refuse_behind_fuse(l, type, false));
    return add_decoder(l, &d);
}
