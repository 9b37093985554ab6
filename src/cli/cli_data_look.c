/* imece data info, imece data show. */
#include "cli/cli_data.h"
#include "data/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- imece data info ------------------------------------------------------------------- */

typedef struct info_options {
    bool json;
} info_options;

static const im_option info_rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "One JSON object for each name.", .offset = offsetof(info_options, json)},
};

typedef struct seen {
    int64_t tokens, lo, hi, counted;
} seen;

static im_status look(im_context *ctx, const im_tokens *t, seen *out)
{
    enum { PIECE = 1 << 16 };
    static const size_t most = PIECE;
    unsigned char *counted;
    seen s = {.tokens = im_tokens_count(t)};
    IM_TRY(im_tokens_verify(ctx, t));
    IM_TRY(im_tokens_id_range(ctx, t, 0, s.tokens, &s.lo, &s.hi));
    s.counted = im_tokens_masked(t) ? 0 : s.tokens;
    IM_TRY(im_alloc(ctx, most, 1, (void **)&counted));
    im_status status = IM_OK;
    for (int64_t at = 0, n; im_tokens_masked(t) && status == IM_OK && at < s.tokens; at += n) {
        n = s.tokens - at < PIECE ? s.tokens - at : PIECE;
        status = im_tokens_read_mask(ctx, t, at, n, counted);
        for (int64_t i = 0; status == IM_OK && i < n; i++)
            s.counted += counted[i];
    }
    free(counted);
    if (status == IM_OK)
        *out = s;
    return status;
}

static void info_json(const im_tokens *t, const seen *x)
{
    const im_tokens_about *a = im_tokens_known(t);
    im_str s = {0};
    im_str_append(&s, "{\"name\": ");
    im_str_json_string(&s, im_tokens_prefix(t), strlen(im_tokens_prefix(t)));
    im_str_printf(&s,
                  ", \"tokens\": %" PRId64 ", \"documents\": %" PRId64 ", \"dtype\": \"%s\", \"bytes\": %zu, \"min_id\": %" PRId64
                  ", \"max_id\": %" PRId64 ", \"masked\": %s, \"counted\": %" PRId64,
                  x->tokens, im_tokens_documents(t), im_tokens_dtype(t), im_tokens_nbytes(t), x->lo, x->hi, im_tokens_masked(t) ? "true" : "false",
                  x->counted);
    if (a) {
        im_str_append(&s, ", \"tokenizer\": ");
        im_str_json_string(&s, a->tokenizer, strlen(a->tokenizer));
        im_str_printf(&s, ", \"vocab\": %" PRId64 ", \"eod\": %" PRId64 ", \"longest\": %" PRId64 ", \"text_bytes\": %" PRId64, a->vocab, a->eod,
                      a->longest, a->text_bytes);
    }
    im_str_printf(&s, ", \"fingerprint\": \"%016" PRIx64 "\"}", im_tokens_fingerprint(t));
    puts(im_str_text(&s));
    im_str_free(&s);
}

static void info_text(const im_tokens *t, const seen *x)
{
    const im_tokens_about *a = im_tokens_known(t);
    char size[32];
    printf("%s\n  tokens       %" PRId64 "\n  documents    %" PRId64 "\n  id type      %s\n  size         %s\n", im_tokens_prefix(t), x->tokens,
           im_tokens_documents(t), im_tokens_dtype(t), im_format_bytes(size, sizeof size, (double)im_tokens_nbytes(t)));
    if (x->tokens)
        printf("  ids          %" PRId64 " to %" PRId64 "%s\n", x->lo, x->hi,
               !a && x->hi == IM_BYTE_EOD ? " (bytes, and 256 behind each document)" : "");
    if (im_tokens_masked(t))
        printf("  mask         the loss of %" PRId64 " tokens counts\n", x->counted);
    if (a && a->tokenizer[0])
        printf("  tokenizer    %s, %" PRId64 " ids\n", a->tokenizer, a->vocab);
    if (a && a->eod >= 0)
        printf("  ends with    %" PRId64 " behind each document\n", a->eod);
    if (a)
        printf("  longest      %" PRId64 " tokens\n", a->longest);
    if (a && a->text_bytes > 0 && x->tokens)
        printf("  text         %s, %.2f bytes a token\n", im_format_bytes(size, sizeof size, (double)a->text_bytes),
               (double)a->text_bytes / (double)x->tokens);
    printf("  fingerprint  %016" PRIx64 "\n", im_tokens_fingerprint(t));
}

/* Walks all of the file, the index and the ids: a file that passes here can be trained on. */
static im_status info_one(im_context *ctx, const char *name, bool json)
{
    im_tokens *t;
    seen x;
    IM_TRY(im_tokens_open(ctx, name, &t));
    im_status status = look(ctx, t, &x);
    if (status == IM_OK && json)
        info_json(t, &x);
    else if (status == IM_OK)
        info_text(t, &x);
    im_tokens_close(t);
    return status;
}

static im_status info(im_cli *cli, const info_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    if (!rest->n)
        return im_fail(ctx, IM_ERR_ARG, "data info: which token files? imece data info NAME...");
    for (size_t i = 0; i < rest->n; i++) {
        const char *first = im_cli_token_name(a, rest->item[i], 0), *second = im_cli_token_name(a, rest->item[i], 1);
        if (first != rest->item[i] || second == rest->item[i])
            IM_TRY(info_one(ctx, first, o->json));
        if (second != rest->item[i])
            IM_TRY(info_one(ctx, second, o->json));
    }
    return IM_OK;
}

static int run_info(im_cli *cli, int argc, char **argv)
{
    info_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = info(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_info_command = {
    .name = "info",
    .args = "NAME...",
    .help = "Check token files whole and tell what is in them.",
    .about = "NAME stands for NAME.bin and NAME.idx, or for NAME-train and NAME-valid. Every entry of the index and every id is read.",
    .rows = info_rows,
    .nrows = IM_COUNT_OF(info_rows),
    .run = run_info,
};

/* ---- imece data show -------------------------------------------------------------------- */

typedef struct show_options {
    int64_t document;
    const char *tokenizer;
    bool ids, counted;
} show_options;

static const im_option show_rows[] = {
    {.name = "document",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Its number, counted from 0.",
     .offset = offsetof(show_options, document)},
    {.name = "ids", .type = IM_OPT_BOOL, .fallback = "false", .help = "Numbers, also where there is text.", .offset = offsetof(show_options, ids)},
    {.name = "tokenizer",
     .type = IM_OPT_STRING,
     .value = "PATH",
     .help = "A tokenizer.json, or a directory with one. Default: the one that the data was made with, when it is still there.",
     .offset = offsetof(show_options, tokenizer)},
    {.name = "counted",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Only the tokens whose loss counts.",
     .offset = offsetof(show_options, counted)},
};

typedef struct document {
    int32_t *id;
    size_t n;
} document;

/* The ids of a document, or those of them that count. */
static im_status read_document(im_context *ctx, const im_tokens *t, const show_options *o, document *out)
{
    int64_t first, n;
    int32_t *id;
    unsigned char *counted;
    IM_TRY(im_tokens_document(ctx, t, o->document, &first, &n));
    IM_TRY(im_alloc(ctx, (size_t)n + 1, sizeof *id, (void **)&id));
    im_status status;
    IM_TRY_GOTO(im_alloc(ctx, (size_t)n + 1, 1, (void **)&counted), free_ids);
    status = im_tokens_read(ctx, t, first, n, id);
    if (status == IM_OK)
        status = im_tokens_read_mask(ctx, t, first, n, counted);
    size_t m = 0;
    for (int64_t i = 0; status == IM_OK && i < n; i++)
        if (counted[i] || !o->counted)
            id[m++] = id[i];
    free(counted);
    if (status == IM_OK) {
        *out = (document){id, m};
        return IM_OK;
    }
free_ids:
    free(id);
    return status;
}

static void print_ids(const document *d)
{
    for (size_t i = 0; i < d->n; i++)
        printf("%d%c", d->id[i], i + 1 < d->n ? ' ' : '\n');
}

static void print_bytes(const document *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->id[i] != IM_BYTE_EOD)
            putchar(d->id[i]);
}

static im_status print_decoded(im_context *ctx, const im_tok *tok, const document *d)
{
    im_str s = {0};
    im_status status = im_tok_decode(ctx, tok, d->id, d->n, false, &s);
    if (status == IM_OK && s.failed)
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the text");
    if (status == IM_OK)
        fwrite(s.data, 1, s.len, stdout);
    if (status == IM_OK && (!s.len || s.data[s.len - 1] != '\n'))
        putchar('\n');
    im_str_free(&s);
    return status;
}

/* The tokenizer that was named, or the one of the data; NULL: neither. */
static im_status find_tokenizer(im_context *ctx, const im_tokens *t, const show_options *o, im_tok **out)
{
    const im_tokens_about *a = im_tokens_known(t);
    *out = NULL;
    if (o->tokenizer)
        return im_tok_open(ctx, o->tokenizer, out);
    if (o->ids || !a || !a->tokenizer_fingerprint || !im_path_exists(a->tokenizer))
        return IM_OK;
    IM_TRY(im_tok_open(ctx, a->tokenizer, out));
    if (im_tok_fingerprint(*out) == a->tokenizer_fingerprint)
        return IM_OK;
    im_log(ctx, IM_LOG_WARN, "data", "%s is not any more what the data was made with: numbers are shown", a->tokenizer);
    im_tok_close(*out);
    *out = NULL;
    return IM_OK;
}

static im_status show(im_cli *cli, const show_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_tokens *t;
    im_tok *tok = NULL;
    document d = {0};
    if (rest->n != 1)
        return im_fail(ctx, IM_ERR_ARG, "data show: one name: imece data show NAME --document N");
    if (o->ids && o->tokenizer)
        return im_fail(ctx, IM_ERR_ARG, "--ids and --tokenizer: numbers, or text");
    IM_TRY(im_tokens_open(ctx, im_cli_token_name(cli->arena, rest->item[0], 0), &t));
    im_status status;
    IM_TRY_GOTO(find_tokenizer(ctx, t, o, &tok), close_tokens);
    IM_TRY_GOTO(read_document(ctx, t, o, &d), close_tokens);
    bool bytes = !tok && !o->ids && (!im_tokens_known(t) || !strcmp(im_tokens_known(t)->tokenizer, "bytes"));
    for (size_t i = 0; bytes && i < d.n; i++)
        bytes = d.id[i] < IM_BYTE_VOCAB;
    if (tok)
        status = print_decoded(ctx, tok, &d);
    else if (bytes)
        print_bytes(&d);
    else
        print_ids(&d);
    free(d.id);
close_tokens:
    im_tok_close(tok);
    im_tokens_close(t);
    return status;
}

static int run_show(im_cli *cli, int argc, char **argv)
{
    show_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = show(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_show_command = {
    .name = "show",
    .args = "NAME",
    .help = "Print one document.",
    .about = "As text when its ids are bytes, or their tokenizer is at hand; as numbers otherwise.\n\n"
             "  imece data show notes-valid --document 3\n"
             "  imece data show chats-train --counted",
    .rows = show_rows,
    .nrows = IM_COUNT_OF(show_rows),
    .run = run_show,
};
