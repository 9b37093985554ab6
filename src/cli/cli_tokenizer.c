/* imece tokenizer encode, decode, info. */
#include "cli/cli_tokenizer.h"
#include "cli/texts.h"
#include "data/tokenizer.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- imece tokenizer encode ---------------------------------------------------------------------------- */

typedef struct encode_options {
    const char *tokenizer, *separator;
    int split, invalid, special;
    bool template, tokens, json;
    int64_t threads;
} encode_options;

#define TOKENIZER_ROW(options)                                                                                                            \
    {                                                                                                                                     \
        .name = "tokenizer", .type = IM_OPT_STRING, .value = "FILE", .short_name = 't',                                                   \
        .help = "A Hugging Face tokenizer.json, or a directory with one (a model, a checkpoint).", .offset = offsetof(options, tokenizer) \
    }

#define ROW(field) .offset = offsetof(encode_options, field)
static const im_option encode_rows[] = {
    TOKENIZER_ROW(encode_options),
    {.name = "split",
     .type = IM_OPT_CHOICE,
     .choices = "file|lines",
     .fallback = "file",
     .help = "What a text is: a whole file, or each line (without its newline).",
     ROW(split)},
    {.name = "separator",
     .type = IM_OPT_STRING,
     .value = "TEXT",
     .help = "A line that is exactly TEXT ends a text (instead of --split).",
     ROW(separator)},
    {.name = "template",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Put the ids around each text that the tokenizer's post_processor does: a <s> in front, say.",
     ROW(template)},
    {.name = "special",
     .type = IM_OPT_CHOICE,
     .choices = "token|text",
     .fallback = "token",
     .help = "What a special token is that stands in the text: its id, as the file says, or its letters.",
     ROW(special)},
    {.name = "invalid",
     .type = IM_OPT_CHOICE,
     .choices = "keep|replace",
     .fallback = "keep",
     .help = "Bytes that are no UTF-8: kept where the tokenizer is of bytes, or U+FFFD for each part that could begin a character.",
     ROW(invalid)},
    {.name = "tokens", .type = IM_OPT_BOOL, .fallback = "false", .help = "With --json: the tokens too, as the file writes them.", ROW(tokens)},
    {.name = "threads",
     .type = IM_OPT_INT,
     .fallback = "0",
     .max = 1024,
     .help = "Threads (0: all usable cores); texts are shared out.",
     ROW(threads)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "A JSON object for each text.", ROW(json)},
};
#undef ROW

typedef struct encoding {
    im_cli *cli;
    const encode_options *o;
    im_tok *tok;
    im_tok_coder **coder;
    im_tok_ids *ids; /* of the texts of a block */
    size_t cap;
    const im_cli_texts *t;
    size_t first; /* text of the block that work 0 is */
    im_str line;
} encoding;

static im_status encode_one(void *arg, int thread, size_t i)
{
    encoding *e = arg;
    const im_cli_text *x = &e->t->text[e->first + i];
    return im_tok_encode(e->coder[thread], x->s, x->n, &e->ids[e->first + i]);
}

/* begins and ends: of the text whose ids these are. */
static im_status print_ids(encoding *e, const im_tok_ids *ids, bool begins, bool ends)
{
    im_str *s = &e->line;
    s->len = 0;
    if (begins && e->o->json)
        im_str_append(s, "{\"ids\": [");
    for (size_t i = 0; i < ids->n; i++)
        im_str_printf(s, "%s%d", begins && !i ? "" : e->o->json ? ", " : " ", ids->id[i]);
    if (ends && e->o->json && e->o->tokens) {
        im_str_append(s, "], \"tokens\": [");
        for (size_t i = 0; i < ids->n; i++) {
            size_t n = 0;
            const char *token = im_tok_token(e->tok, ids->id[i], &n);
            im_str_append(s, i ? ", " : "");
            im_str_json_string(s, token ? token : "", n);
        }
    }
    if (ends)
        im_str_append(s, e->o->json ? "]}\n" : "\n");
    if (s->failed)
        return im_fail(e->cli->ctx, IM_ERR_NOMEM, "no memory for a line of %zu ids", ids->n);
    fwrite(im_str_text(s), 1, s->len, stdout);
    return IM_OK;
}

static im_status room(encoding *e, size_t n)
{
    if (n <= e->cap)
        return IM_OK;
    im_tok_ids *more = realloc(e->ids, n * sizeof *more);
    if (!more)
        return im_fail(e->cli->ctx, IM_ERR_NOMEM, "no memory for %zu texts", n);
    memset(more + e->cap, 0, (n - e->cap) * sizeof *more);
    e->ids = more;
    e->cap = n;
    return IM_OK;
}

/* The first text of a block may be the rest of one, or the beginning: that is one coder's, in its order. */
static im_status encode_block(encoding *e, im_cli_texts *t)
{
    e->t = t;
    e->first = 0;
    IM_TRY(room(e, t->ntext));
    for (size_t i = 0; i < t->ntext; i++)
        e->ids[i].n = 0;
    const im_cli_text *x = t->text;
    bool part = t->ntext && !(x->begins && x->ends);
    if (part) {
        size_t used;
        IM_TRY(im_tok_encode_part(e->coder[0], x->s, x->n, x->ends, &e->ids[0], &used));
        t->used = used;
        e->first = 1;
    }
    IM_TRY(im_tok_each(e->cli->ctx, (int)e->o->threads, t->ntext - e->first, encode_one, e));
    for (size_t i = 0; i < t->ntext; i++)
        IM_TRY(print_ids(e, &e->ids[i], t->text[i].begins, t->text[i].ends));
    if (im_cli_signal())
        return im_fail(e->cli->ctx, IM_ERR_STOPPED, "stopped by a signal after %" PRId64 " bytes", t->bytes);
    return IM_OK;
}

static im_status encode(im_cli *cli, encode_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_status status = IM_OK;
    static const char *const standard[] = {"-"};
    encoding e = {.cli = cli, .o = o};
    im_cli_texts t = {.ctx = ctx, .path = rest->n ? rest->item : standard, .npath = rest->n ? rest->n : 1};
    bool more = true;
    t.split = o->separator ? IM_CLI_SPLIT_SEPARATOR : (im_cli_split)o->split;
    t.separator = o->separator;
    if (!o->tokenizer)
        return im_fail(ctx, IM_ERR_ARG, "tokenizer encode: --tokenizer FILE is missing: a tokenizer.json, or a directory with one");
    if (o->separator && (!*o->separator || strchr(o->separator, '\n')))
        return im_fail(ctx, IM_ERR_ARG, "--separator \"%s\": the text of one line", o->separator);
    if (o->tokens && !o->json)
        return im_fail(ctx, IM_ERR_ARG, "--tokens are part of the JSON object: give --json too");
    o->threads = o->threads ? o->threads : im_machine_cores();
    im_tok_coding how = {.special_as_text = o->special == 1, .replace = o->invalid == 1, .template = o->template};
    IM_TRY_GOTO(im_tok_open(ctx, o->tokenizer, &e.tok), free_all);
    IM_TRY_GOTO(im_alloc(ctx, (size_t)o->threads, sizeof(im_tok_coder *), (void **)&e.coder), free_all);
    for (int64_t i = 0; i < o->threads; i++)
        IM_TRY_GOTO(im_tok_coder_create(ctx, e.tok, &how, &e.coder[i]), free_all);
    while (more) {
        IM_TRY_GOTO(im_cli_texts_next(&t, &more), free_all);
        IM_TRY_GOTO(encode_block(&e, &t), free_all);
    }
free_all:
    for (int64_t i = 0; e.coder && i < o->threads; i++)
        im_tok_coder_destroy(e.coder[i]);
    for (size_t i = 0; i < e.cap; i++)
        im_tok_ids_free(&e.ids[i]);
    free(e.coder);
    free(e.ids);
    im_str_free(&e.line);
    im_cli_texts_close(&t);
    im_tok_close(e.tok);
    return status;
}

static int run_encode(im_cli *cli, int argc, char **argv)
{
    encode_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    im_cli_catch_signals();
    if (status == IM_OK)
        status = encode(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

static const im_cli_command encode_command = {
    .name = "encode",
    .args = "[TEXT...]",
    .help = "Ids of texts: a line of decimal ids for each.",
    .about = "TEXT is a file, or - for standard input (which is read when no file is named). The lines are what imece data build --ids and\n"
             "imece tokenizer decode take.\n\n"
             "  echo 'Ankara 1923' | imece tokenizer encode -t ./SmolLM2-135M\n"
             "  imece tokenizer encode -t tok corpus.txt --separator '<|end|>' > corpus.ids",
    .rows = encode_rows,
    .nrows = IM_COUNT_OF(encode_rows),
    .run = run_encode,
};

/* ---- imece tokenizer decode ------------------------------------------------------------------------------- */

typedef struct decode_options {
    const char *tokenizer;
    bool skip_special, json;
} decode_options;

static const im_option decode_rows[] = {
    TOKENIZER_ROW(decode_options),
    {.name = "skip-special",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Special tokens give nothing.",
     .offset = offsetof(decode_options, skip_special)},
    {.name = "json",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "A JSON object for each line of ids.",
     .offset = offsetof(decode_options, json)},
};

typedef struct decoding {
    im_cli *cli;
    const decode_options *o;
    im_tok *tok;
    im_tok_stream stream;
    im_str text;
    int64_t number, line; /* number: the digits so far, -1: none */
    bool began;           /* a line's text */
} decoding;

static im_status end_id(decoding *d)
{
    int64_t id = d->number;
    d->number = -1;
    return id < 0 ? IM_OK : im_tok_stream_push(d->cli->ctx, d->tok, &d->stream, (int32_t)id, d->o->skip_special, &d->text);
}

static void flush(decoding *d)
{
    if (d->o->json)
        return;
    fwrite(im_str_text(&d->text), 1, d->text.len, stdout);
    d->text.len = 0;
}

static im_status end_line(decoding *d)
{
    IM_TRY(end_id(d));
    IM_TRY(im_tok_stream_end(d->cli->ctx, d->tok, &d->stream, &d->text));
    if (d->o->json) {
        im_str s = {0};
        im_str_append(&s, "{\"text\": ");
        im_str_json_string(&s, im_str_text(&d->text), d->text.len);
        im_str_append(&s, "}");
        puts(im_str_text(&s));
        im_str_free(&s);
        d->text.len = 0;
    }
    flush(d);
    return IM_OK;
}

/* Between two texts stands a newline; a single text comes back as it was. */
static im_status decode_bytes(decoding *d, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (isdigit((unsigned char)c)) {
            if (!d->began && d->line > 1 && !d->o->json)
                putchar('\n');
            d->began = true;
            d->number = (d->number < 0 ? 0 : d->number) * 10 + (c - '0');
            if (d->number > INT32_MAX)
                return im_fail(d->cli->ctx, IM_ERR_FORMAT, "line %" PRId64 ": an id larger than %d", d->line, INT32_MAX);
            continue;
        }
        IM_TRY(end_id(d));
        if (c == '\n') {
            if (!d->began && d->line > 1 && !d->o->json)
                putchar('\n');
            IM_TRY(end_line(d));
            d->line++;
            d->began = false;
        } else if (c != ',' && !isspace((unsigned char)c)) {
            return im_fail(d->cli->ctx, IM_ERR_FORMAT, "line %" PRId64 ": byte 0x%02x; ids are decimal numbers with spaces or commas between them",
                           d->line, (unsigned char)c);
        }
    }
    flush(d);
    return IM_OK;
}

static im_status decode(im_cli *cli, const decode_options *o, const im_option_list *rest)
{
    static const char *const standard[] = {"-"};
    im_status status = IM_OK;
    decoding d = {.cli = cli, .o = o, .number = -1, .line = 1};
    im_cli_texts t = {.ctx = cli->ctx, .path = rest->n ? rest->item : standard, .npath = rest->n ? rest->n : 1};
    bool more = true;
    if (!o->tokenizer)
        return im_fail(cli->ctx, IM_ERR_ARG, "tokenizer decode: --tokenizer FILE is missing: a tokenizer.json, or a directory with one");
    IM_TRY_GOTO(im_tok_open(cli->ctx, o->tokenizer, &d.tok), free_all);
    while (more) {
        IM_TRY_GOTO(im_cli_texts_next(&t, &more), free_all);
        for (size_t i = 0; i < t.ntext; i++) {
            IM_TRY_GOTO(decode_bytes(&d, t.text[i].s, t.text[i].n), free_all);
            t.used = t.text[i].n;
        }
        if (im_cli_signal()) {
            status = im_fail(cli->ctx, IM_ERR_STOPPED, "stopped by a signal");
            goto free_all;
        }
    }
    if (d.began)
        status = end_line(&d);
free_all:
    im_tok_stream_free(&d.stream);
    im_str_free(&d.text);
    im_cli_texts_close(&t);
    im_tok_close(d.tok);
    return status;
}

static int run_decode(im_cli *cli, int argc, char **argv)
{
    decode_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    im_cli_catch_signals();
    if (status == IM_OK)
        status = decode(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

static const im_cli_command decode_command = {
    .name = "decode",
    .args = "[IDS...]",
    .help = "The text of ids: decimal numbers, a text a line.",
    .about = "IDS is a file, or - for standard input (which is read when no file is named). The bytes are written as they are, with a newline\n"
             "between two texts; in JSON what is no UTF-8 becomes U+FFFD.\n\n"
             "  imece tokenizer encode -t tok < letter.txt | imece tokenizer decode -t tok | cmp - letter.txt",
    .rows = decode_rows,
    .nrows = IM_COUNT_OF(decode_rows),
    .run = run_decode,
};

/* ---- imece tokenizer info ------------------------------------------------------------------------------------- */

typedef struct info_options {
    const char *tokenizer;
    bool json;
} info_options;

static const im_option info_rows[] = {
    TOKENIZER_ROW(info_options),
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as one JSON object.", .offset = offsetof(info_options, json)},
};

static void put_token(const im_tok *t, int32_t id, bool json, im_str *out)
{
    size_t n = 0;
    const char *s = im_tok_token(t, id, &n);
    if (id < 0 || !s)
        im_str_append(out, json ? "null" : "none");
    else if (json)
        im_str_json_string(out, s, n);
    else
        im_str_printf(out, "%d (%.*s)", id, (int)n, s);
}

static void print_info(const im_tok *t, const im_tok_about *a)
{
    im_str s = {0};
    printf("%s\n  ids           %" PRId64 " (%" PRId64 " tokens in the vocabulary, %" PRId64 " added, of which %" PRId64 " special)\n",
           im_tok_path(t), im_tok_vocab(t), a->tokens, a->added, a->special);
    printf("  merges        %" PRId64 "\n  normalizer    %s\n  pre-tokenizer %s\n  decoder       %s\n", a->merges, a->normalizer, a->pre_tokenizer,
           a->decoder);
    put_token(t, im_tok_eod(t), false, &s);
    printf("  end of text   %s\n", im_str_text(&s));
    s.len = 0;
    put_token(t, im_tok_bos(t), false, &s);
    printf("  begin of text %s\n", im_str_text(&s));
    printf("  any bytes     %s\n", im_tok_lossless(t) ? "come back as they were"
                                   : a->bytes         ? "are kept, but text may come back changed"
                                                      : "that are no UTF-8 become U+FFFD");
    printf("  fingerprint   %016" PRIx64 "\n", im_tok_fingerprint(t));
    im_str_free(&s);
}

static void print_info_json(const im_tok *t, const im_tok_about *a)
{
    im_str s = {0};
    im_str_append(&s, "{\"path\": ");
    im_str_json_string(&s, im_tok_path(t), strlen(im_tok_path(t)));
    im_str_printf(&s,
                  ", \"vocab_size\": %" PRId64 ", \"tokens\": %" PRId64 ", \"added\": %" PRId64 ", \"special\": %" PRId64 ", \"merges\": %" PRId64,
                  im_tok_vocab(t), a->tokens, a->added, a->special, a->merges);
    im_str_printf(&s, ", \"eos_id\": %d, \"eos_token\": ", im_tok_eod(t));
    put_token(t, im_tok_eod(t), true, &s);
    im_str_printf(&s, ", \"bos_id\": %d, \"bos_token\": ", im_tok_bos(t));
    put_token(t, im_tok_bos(t), true, &s);
    im_str_printf(&s, ", \"byte_level\": %s, \"lossless\": %s, \"fingerprint\": \"%016" PRIx64 "\"}", a->bytes ? "true" : "false",
                  im_tok_lossless(t) ? "true" : "false", im_tok_fingerprint(t));
    puts(im_str_text(&s));
    im_str_free(&s);
}

static im_status info(im_cli *cli, const info_options *o, const im_option_list *rest)
{
    const char *path = o->tokenizer ? o->tokenizer : rest->n ? rest->item[0] : NULL;
    im_tok *t;
    im_tok_about a;
    if (!path || rest->n > 1 || (rest->n && o->tokenizer))
        return im_fail(cli->ctx, IM_ERR_ARG, "tokenizer info: one tokenizer.json, or one directory with it");
    IM_TRY(im_tok_open(cli->ctx, path, &t));
    im_tok_tell(t, &a);
    if (o->json)
        print_info_json(t, &a);
    else
        print_info(t, &a);
    im_tok_close(t);
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

static const im_cli_command info_command = {
    .name = "info",
    .args = "[FILE]",
    .help = "What a tokenizer.json is: sizes, components, the tokens that end and begin a text.",
    .about = "A component that is not supported is named, here as everywhere.\n\n  imece tokenizer info ./SmolLM2-135M",
    .rows = info_rows,
    .nrows = IM_COUNT_OF(info_rows),
    .run = run_info,
};

static const im_cli_command *const commands[] = {&im_cli_tokenizer_train_command, &encode_command, &decode_command, &info_command};

const im_cli_command im_cli_tokenizer_command = {
    .name = "tokenizer",
    .help = "Train a tokenizer; text to ids and back.",
    .sub = commands,
    .nsub = IM_COUNT_OF(commands),
};
