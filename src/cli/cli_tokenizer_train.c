/* imece tokenizer train: a tokenizer for a text. */
#include "cli/cli_tokenizer.h"
#include "cli/texts.h"
#include "data/tok_train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct train_options {
    const char *out, *like, *separator, *alphabet, *eos;
    int style, split;
    im_option_list special;
    int64_t vocab_size, min_frequency, limit_alphabet, max_token_length, threads;
    bool prefix_space, byte_alphabet, force, json;
} train_options;

#define ROW(field) .offset = offsetof(train_options, field)
static const im_option train_rows[] = {
    {.name = "out",
     .type = IM_OPT_STRING,
     .value = "DIR",
     .short_name = 'o',
     .help = "Write DIR/tokenizer.json and DIR/tokenizer_config.json.",
     ROW(out)},
    {.name = "vocab-size",
     .type = IM_OPT_INT,
     .fallback = "32000",
     .min = 1,
     .max = 1 << 24,
     .help = "Tokens in all, special ones too.",
     ROW(vocab_size)},
    {.name = "style",
     .type = IM_OPT_CHOICE,
     .choices = IM_TOK_STYLES,
     .fallback = "gpt2",
     .help = "How text is cut into words: as these models do it. All but metaspace are of bytes.",
     ROW(style)},
    {.name = "like",
     .type = IM_OPT_STRING,
     .value = "FILE",
     .help = "A tokenizer.json (or its directory) whose components and special tokens are taken (instead of --style).",
     ROW(like)},
    {.name = "prefix-space", .type = IM_OPT_BOOL, .fallback = "false", .help = "A space in front of a text that has none.", ROW(prefix_space)},
    {.name = "special",
     .type = IM_OPT_LIST,
     .value = "TOKEN",
     .help = "A special token; may be given several times, ids in this order. \"\": none. Default: <|endoftext|>; metaspace: <unk>, <s>, </s>.",
     ROW(special)},
    {.name = "eos",
     .type = IM_OPT_STRING,
     .value = "TOKEN",
     .help = "The special token that ends a text. Default: the first with a usual name.",
     ROW(eos)},
    {.name = "min-frequency", .type = IM_OPT_INT, .fallback = "0", .max = 1e15, .help = "A pair that is rarer is not merged.", ROW(min_frequency)},
    {.name = "byte-alphabet",
     .type = IM_OPT_BOOL,
     .fallback = "true",
     .help = "All 256 bytes are tokens, seen or not, so that any text can be encoded (where words are bytes).",
     ROW(byte_alphabet)},
    {.name = "alphabet", .type = IM_OPT_STRING, .value = "TEXT", .help = "Characters that are tokens, seen or not.", ROW(alphabet)},
    {.name = "limit-alphabet",
     .type = IM_OPT_INT,
     .fallback = "0",
     .max = 1 << 21,
     .help = "Most characters of the alphabet, the frequent ones; 0: all.",
     ROW(limit_alphabet)},
    {.name = "max-token-length",
     .type = IM_OPT_INT,
     .fallback = "0",
     .max = 1e9,
     .help = "Longest token, in characters; 0: any.",
     ROW(max_token_length)},
    {.name = "split",
     .type = IM_OPT_CHOICE,
     .choices = "file|lines",
     .fallback = "file",
     .help = "What a text is: a whole file, or each line with its newline (as tokenizers' train does with files). No token crosses its end.",
     ROW(split)},
    {.name = "separator",
     .type = IM_OPT_STRING,
     .value = "TEXT",
     .help = "A line that is exactly TEXT ends a text (instead of --split).",
     ROW(separator)},
    {.name = "threads", .type = IM_OPT_INT, .fallback = "0", .max = 1024, .help = "Threads that count words (0: all usable cores).", ROW(threads)},
    {.name = "force", .type = IM_OPT_BOOL, .fallback = "false", .help = "Replace an existing tokenizer.", ROW(force)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", ROW(json)},
};
#undef ROW

typedef struct training {
    im_cli *cli;
    const train_options *o;
    int threads;
    im_tok_trainer *trainer;
    im_tok_counter **counter;
    const im_cli_texts *t;
    size_t first;
    double start, count_s, learn_s, told;
} training;

/* ---- words ----------------------------------------------------------------------------------------------- */

static im_status count_one(void *arg, int thread, size_t i)
{
    training *r = arg;
    const im_cli_text *x = &r->t->text[r->first + i];
    size_t used;
    return im_tok_counter_add(r->counter[thread], x->s, x->n, true, &used);
}

static im_status count_block(training *r, im_cli_texts *t)
{
    const im_cli_text *x = t->text;
    r->t = t;
    r->first = 0;
    if (t->ntext && !(x->begins && x->ends)) {
        size_t used;
        IM_TRY(im_tok_counter_add(r->counter[0], x->s, x->n, x->ends, &used));
        t->used = used;
        r->first = 1;
    }
    return im_tok_each(r->cli->ctx, r->threads, t->ntext - r->first, count_one, r);
}

static im_status check_signal(const training *r)
{
    return im_cli_signal() ? im_fail(r->cli->ctx, IM_ERR_STOPPED, "stopped by a signal: nothing was written") : IM_OK;
}

static im_status count_all(training *r, const im_option_list *rest, int64_t *bytes)
{
    const train_options *o = r->o;
    im_status status = IM_OK;
    bool more = true;
    im_cli_texts t = {.ctx = r->cli->ctx,
                      .path = rest->item,
                      .npath = rest->n,
                      .split = o->separator ? IM_CLI_SPLIT_SEPARATOR : (im_cli_split)o->split,
                      .separator = o->separator,
                      .with_newline = true};
    while (more) {
        char text[96];
        IM_TRY_GOTO(im_cli_texts_next(&t, &more), close_texts);
        IM_TRY_GOTO(count_block(r, &t), close_texts);
        IM_TRY_GOTO(check_signal(r), close_texts);
        snprintf(text, sizeof text, "counting words | %.1f MB | %.0f MB/s", (double)t.bytes / 1e6,
                 (double)t.bytes / 1e6 / (im_clock_now() - r->start + 1e-9));
        im_cli_progress(r->cli, text);
    }
    *bytes = t.bytes;
close_texts:
    im_cli_texts_close(&t);
    im_cli_progress(r->cli, NULL);
    return status;
}

/* im_tok_train_progress */
static bool tell(void *arg, int64_t tokens, int64_t of)
{
    training *r = arg;
    char text[96];
    double now = im_clock_now();
    if (now - r->told > 0.1) {
        r->told = now;
        snprintf(text, sizeof text, "merging | %" PRId64 " of %" PRId64 " tokens", tokens, of);
        im_cli_progress(r->cli, text);
    }
    return im_cli_signal() != 0;
}

/* ---- files ------------------------------------------------------------------------------------------------- */

/* What Transformers needs beside tokenizer.json to open the directory. */
static im_status write_config(im_context *ctx, const char *path, const im_tok *t)
{
    static const char *const role[] = {"bos_token", "eos_token"};
    int32_t id[2] = {im_tok_bos(t), im_tok_eod(t)};
    im_str s = {0};
    im_str_append(&s, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        const char *token = im_tok_token(t, id[i], &n);
        if (id[i] < 0 || !token)
            continue;
        im_str_printf(&s, ",\n  \"%s\": ", role[i]);
        im_str_json_string(&s, token, n);
    }
    int32_t unk = im_tok_find(t, "<unk>");
    if (unk >= 0)
        im_str_append(&s, ",\n  \"unk_token\": \"<unk>\"");
    im_str_append(&s, ",\n  \"clean_up_tokenization_spaces\": false\n}\n");
    im_status status = s.failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", path) : im_file_write_atomic(ctx, path, im_str_text(&s), s.len);
    im_str_free(&s);
    return status;
}

static im_status write_files(training *r, const im_str *json)
{
    im_context *ctx = r->cli->ctx;
    const char *file = im_arena_printf(r->cli->arena, "%s/tokenizer.json", r->o->out);
    const char *config = im_arena_printf(r->cli->arena, "%s/tokenizer_config.json", r->o->out);
    im_tok *t;
    if (!file || !config)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", r->o->out);
    IM_TRY(im_tok_parse(ctx, file, im_str_text(json), json->len, &t)); /* it must be one that is read back */
    im_status status = IM_OK;
    if (r->o->eos && !im_tok_set_eod(t, r->o->eos)) {
        status = im_fail(ctx, IM_ERR_ARG, "--eos \"%.80s\" is not a token: name it with --special too", r->o->eos);
        goto close_tok;
    }
    IM_TRY_GOTO(im_mkdirs(ctx, r->o->out), close_tok);
    IM_TRY_GOTO(write_config(ctx, config, t), close_tok);
    status = im_file_write_atomic(ctx, file, im_str_text(json), json->len);
close_tok:
    im_tok_close(t);
    return status;
}

static void print_result(const training *r, const im_tok_train_result *x, int64_t bytes)
{
    if (r->o->json) {
        im_str s = {0};
        im_str_append(&s, "{\"out\": ");
        im_str_json_string(&s, r->o->out, strlen(r->o->out));
        im_str_printf(&s,
                      ", \"tokens\": %" PRId64 ", \"merges\": %" PRId64 ", \"alphabet\": %" PRId64 ", \"words\": %" PRId64 ", \"bytes\": %" PRId64
                      ", \"count_seconds\": %.3f, \"merge_seconds\": %.3f, \"exhausted\": %s}",
                      x->tokens, x->merges, x->alphabet, x->words, bytes, r->count_s, r->learn_s, x->exhausted ? "true" : "false");
        puts(im_str_text(&s));
        im_str_free(&s);
        return;
    }
    printf("%s/tokenizer.json: %" PRId64 " tokens, %" PRId64 " merges, from %.1f MB with %" PRId64
           " different words (%.1f s to count, %.1f s to merge)\n",
           r->o->out, x->tokens, x->merges, (double)bytes / 1e6, x->words, r->count_s, r->learn_s);
    if (x->exhausted)
        printf("Fewer than --vocab-size: no pair is left that comes up %s.\n", r->o->min_frequency > 1 ? "often enough" : "at all");
    if (x->tokens > r->o->vocab_size)
        printf("More than --vocab-size: special tokens and alphabet alone are that many; --limit-alphabet makes them fewer.\n");
}

/* ---- run ----------------------------------------------------------------------------------------------------- */

static im_status check(im_cli *cli, train_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    if (!rest->n)
        return im_fail(ctx, IM_ERR_ARG, "tokenizer train: no text given: imece tokenizer train TEXT... --out DIR (files, or - for standard input)");
    if (!o->out || !*o->out)
        return im_fail(ctx, IM_ERR_ARG, "tokenizer train: --out DIR is missing: where tokenizer.json goes");
    if (!o->force && im_tok_in_dir(o->out))
        return im_fail(ctx, IM_ERR_EXISTS, "%s/tokenizer.json exists: choose another --out, or --force to replace it", o->out);
    if (o->separator && (!*o->separator || strchr(o->separator, '\n')))
        return im_fail(ctx, IM_ERR_ARG, "--separator \"%s\": the text of one line", o->separator);
    if (o->like && o->prefix_space)
        return im_fail(ctx, IM_ERR_ARG, "--prefix-space is of a --style; --like takes all components as they are");
    if (o->eos && !*o->eos)
        return im_fail(ctx, IM_ERR_ARG, "--eos: a token with at least one character");
    return IM_OK;
}

static im_tok_train_config config_of(const train_options *o)
{
    static const char *const of_bytes[] = {"<|endoftext|>"}, *const of_metaspace[] = {"<unk>", "<s>", "</s>"};
    bool bytes = o->style != IM_TOK_STYLE_METASPACE;
    im_tok_train_config c = {.style = (im_tok_style)o->style,
                             .like = o->like,
                             .prefix_space = o->prefix_space,
                             .vocab_size = o->vocab_size,
                             .min_frequency = o->min_frequency,
                             .limit_alphabet = o->limit_alphabet,
                             .max_token_length = o->max_token_length,
                             .byte_alphabet = o->byte_alphabet,
                             .alphabet = o->alphabet,
                             .special = o->special.item,
                             .nspecial = o->special.n};
    if (c.nspecial == 1 && !c.special[0][0])
        c.nspecial = 0;
    else if (!c.nspecial && !o->like) {
        c.special = bytes ? of_bytes : of_metaspace;
        c.nspecial = bytes ? IM_COUNT_OF(of_bytes) : IM_COUNT_OF(of_metaspace);
    }
    return c;
}

static im_status train(im_cli *cli, train_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_status status = IM_OK;
    training r = {.cli = cli, .o = o, .start = im_clock_now()};
    im_tok_train_config cfg = config_of(o);
    im_tok_train_result result;
    im_str json = {0};
    int64_t bytes = 0;
    IM_TRY(check(cli, o, rest));
    r.threads = (int)(o->threads ? o->threads : im_machine_cores());
    IM_TRY_GOTO(im_tok_trainer_create(ctx, &cfg, &r.trainer), free_all);
    IM_TRY_GOTO(im_alloc(ctx, (size_t)r.threads, sizeof(im_tok_counter *), (void **)&r.counter), free_all);
    for (int i = 0; i < r.threads; i++)
        IM_TRY_GOTO(im_tok_counter_create(ctx, r.trainer, &r.counter[i]), free_all);
    IM_TRY_GOTO(count_all(&r, rest, &bytes), free_all);
    double counted = im_clock_now();
    r.count_s = counted - r.start;
    status = im_tok_trainer_run(r.trainer, r.counter, (size_t)r.threads, tell, &r, &json, &result);
    im_cli_progress(cli, NULL);
    r.learn_s = im_clock_now() - counted;
    if (status == IM_OK)
        status = check_signal(&r);
    if (status != IM_OK)
        goto free_all;
    IM_TRY_GOTO(write_files(&r, &json), free_all);
    print_result(&r, &result, bytes);
free_all:
    for (int i = 0; r.counter && i < r.threads; i++)
        im_tok_counter_destroy(r.counter[i]);
    free(r.counter);
    im_tok_trainer_destroy(r.trainer);
    im_str_free(&json);
    return status;
}

static int run_train(im_cli *cli, int argc, char **argv)
{
    train_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    im_cli_catch_signals();
    if (status == IM_OK)
        status = train(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_tokenizer_train_command = {
    .name = "train",
    .args = "TEXT...",
    .help = "Make a tokenizer from text: byte-pair encoding.",
    .about = "TEXT is a file, or - for standard input. The pair of neighbours that is most frequent becomes a token, again and again, until\n"
             "there are --vocab-size of them. Tokens and merges are those of Hugging Face's BpeTrainer on the same texts and options, and its\n"
             "library and Transformers open what is written.\n\n"
             "  imece tokenizer train book.txt --vocab-size 4096 --out tok\n"
             "  imece tokenizer train corpus.txt --separator '<|end|>' --style llama3 --special '<|endoftext|>' --special '<|im_start|>'\\\n"
             "      --special '<|im_end|>' --out tok\n"
             "  imece tokenizer train text.txt --like ./SmolLM2-135M --vocab-size 16000 --out tok",
    .rows = train_rows,
    .nrows = IM_COUNT_OF(train_rows),
    .run = run_train,
};
