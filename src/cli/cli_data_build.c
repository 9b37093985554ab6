/* imece data build: text to token files. */
#include "cli/cli_data.h"
#include "data/corpus.h"
#include "observe/observe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct build_options {
    const char *out;
    int format, split;
    const char *separator, *field, *tokenizer, *eod;
    bool ids, template;
    int special, invalid, chat;
    double valid_fraction;
    int64_t valid_every, seed, workers, note_every;
    bool skip_bad, resume, force, json;
} build_options;

enum { CHAT_NO, CHAT_AUTO }; /* then im_chat_format in its order */

#define ROW(field) .offset = offsetof(build_options, field)
static const im_option build_rows[] = {
    {.name = "out",
     .type = IM_OPT_STRING,
     .value = "NAME",
     .help = "Write NAME-train.bin, NAME-train.idx and the same for NAME-valid.",
     ROW(out),
     .section = "Files"},
    {.name = "format",
     .type = IM_OPT_CHOICE,
     .choices = "auto|text|jsonl",
     .fallback = "auto",
     .help = "What the inputs are; auto: jsonl when the name says so (.jsonl, .ndjson, also with .gz or .zst), else text.",
     ROW(format)},
    {.name = "field", .type = IM_OPT_STRING, .value = "KEY", .fallback = "text", .help = "jsonl: the key of the text.", ROW(field)},
    {.name = "skip-bad",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "jsonl: leave out lines that are not what they should be, and tell how many; else the first one ends the build.",
     ROW(skip_bad)},
    {.name = "force", .type = IM_OPT_BOOL, .fallback = "false", .help = "Replace existing token files.", ROW(force)},
    {.name = "resume",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Go on with the build of this name that was interrupted (else it starts over).",
     ROW(resume)},

    {.name = "tokenizer",
     .type = IM_OPT_STRING,
     .value = "PATH",
     .help = "A tokenizer.json, or a directory with one; without it each byte is a token.",
     ROW(tokenizer),
     .section = "Tokens"},
    {.name = "eod",
     .type = IM_OPT_STRING,
     .value = "TOKEN",
     .help =
         "What is put behind each document: the number or the name of a token, or none. Default: what the tokenizer's files say; bytes: 256; --ids: "
         "none.",
     ROW(eod)},
    {.name = "template",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "With the tokens that the tokenizer puts around a text (<s>, <|begin_of_text|>).",
     ROW(template)},
    {.name = "special",
     .type = IM_OPT_CHOICE,
     .choices = "token|text",
     .fallback = "token",
     .help = "What special tokens that stand in the text are: themselves, or their letters.",
     ROW(special)},
    {.name = "invalid",
     .type = IM_OPT_CHOICE,
     .choices = "keep|replace",
     .fallback = "keep",
     .help = "Bytes that are no UTF-8: kept where the tokenizer can, or replaced by U+FFFD.",
     ROW(invalid)},
    {.name = "ids",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "TEXT holds ids in decimal, a document a line: what another tokenizer made.",
     ROW(ids)},

    {.name = "split",
     .type = IM_OPT_CHOICE,
     .choices = "file|lines|blank",
     .fallback = "file",
     .help = "What ends a document of text besides the end of a file: nothing, every newline, or blank lines.",
     ROW(split),
     .section = "Documents"},
    {.name = "separator",
     .type = IM_OPT_STRING,
     .value = "TEXT",
     .help = "A line that is exactly TEXT ends a document (instead of --split).",
     ROW(separator)},
    {.name = "chat",
     .type = IM_OPT_CHOICE,
     .choices = "no|auto|chatml|llama3|plain",
     .fallback = "no",
     .help =
         "jsonl: conversations (messages, or prompt and completion) for fine-tuning, in this format, with a mask that counts the loss of what the "
         "assistant says. auto: by the special tokens of the tokenizer.",
     ROW(chat)},
    {.name = "valid-fraction",
     .type = IM_OPT_REAL,
     .fallback = "0.05",
     .min = 0,
     .max = 0.99,
     .help = "Share of the documents that go to NAME-valid, chosen by a hash of their number; 0: no validation file.",
     ROW(valid_fraction)},
    {.name = "valid-every",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Every N-th document goes to NAME-valid (instead of --valid-fraction); 0: off.",
     ROW(valid_every)},
    {.name = "seed", .type = IM_OPT_INT, .fallback = "0", .min = 0, .max = 1e15, .help = "Chooses other validation documents.", ROW(seed)},

    {.name = "workers",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 256,
     .help = "Threads that encode; 0: the usable cores. The files are the same with any number.",
     ROW(workers),
     .section = "Machine"},
    {.name = "note-every",
     .type = IM_OPT_INT,
     .value = "BYTES",
     .fallback = "1G",
     .min = 1,
     .max = 1e18,
     .help = "Bytes of text after which the place is noted for --resume.",
     ROW(note_every)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", ROW(json)},
};
#undef ROW

/* ---- progress ---------------------------------------------------------------------------------------------- */

typedef struct watcher {
    im_cli *cli;
    double start, last;
    int64_t begun; /* bytes of the inputs that an interrupted build had read; -1: not known yet */
    int64_t read, text;
} watcher;

static void show_progress(void *arg, const im_corpus_progress *p)
{
    watcher *w = arg;
    char line[160], left[48] = "", of[48] = "", eta[32], tokens[32];
    double now = im_clock_now(), s = now - w->start;
    if (w->begun < 0)
        w->begun = p->read;
    w->read = p->read;
    w->text = p->text;
    if (now - w->last < 0.2 || s <= 0)
        return;
    w->last = now;
    double speed = (double)(p->read - w->begun) / s;
    if (p->all > 0) {
        snprintf(of, sizeof of, " of %.1f", (double)p->all / 1e6);
        if (speed > 0 && p->all >= p->read)
            snprintf(left, sizeof left, " | %s left", im_observe_duration(eta, sizeof eta, (double)(p->all - p->read) / speed));
    }
    snprintf(line, sizeof line, "%.1f%s MB | %.1f MB/s | %s tokens%s", (double)p->read / 1e6, of, speed / 1e6,
             im_observe_count(tokens, sizeof tokens, (double)p->tokens), left);
    im_cli_progress(w->cli, line);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

/* ---- options to a configuration ------------------------------------------------------------------------------ */

/* "none", a number, or a token's name. */
static im_status read_eod(im_context *ctx, const char *text, const im_tok *tok, int32_t *out)
{
    char *end;
    *out = IM_CORPUS_EOD_DEFAULT;
    if (!text)
        return IM_OK;
    *out = IM_CORPUS_EOD_NONE;
    if (strcmp(text, "none") == 0)
        return IM_OK;
    int32_t id = tok ? im_tok_find(tok, text) : -1;
    errno = 0;
    long long n = id >= 0 ? id : strtoll(text, &end, 10);
    if (id < 0 && (errno || end == text || *end || n < -1 || n > INT32_MAX))
        return im_fail(ctx, IM_ERR_ARG, "eod \"%s\": none, the number of a token%s", text,
                       tok ? ", or its name as the tokenizer's file writes it; it has no such token" : "; names need --tokenizer");
    *out = (int32_t)n;
    return IM_OK;
}

static im_status check_options(im_context *ctx, const build_options *o, const bool *given)
{
    bool jsonl_only = false;
    const char *idle = NULL;
    for (size_t i = 0; i < IM_COUNT_OF(build_rows); i++) {
        const char *name = build_rows[i].name;
        bool coding = !strcmp(name, "template") || !strcmp(name, "special") || !strcmp(name, "invalid");
        if (given[i] && coding && !o->tokenizer)
            return im_fail(ctx, IM_ERR_ARG, "--%s is about a tokenizer: give --tokenizer", name);
        if (given[i] && !strcmp(name, "field") && o->chat)
            idle = "--field has no effect with --chat: conversations have keys of their own";
        jsonl_only |= given[i] && (!strcmp(name, "field") || !strcmp(name, "skip-bad"));
    }
    if (idle)
        return im_fail(ctx, IM_ERR_ARG, "%s", idle);
    if (o->ids && (o->tokenizer || o->format || o->chat || jsonl_only))
        return im_fail(ctx, IM_ERR_ARG, "--ids reads ids that are there already: no --tokenizer, --format, --chat, --field or --skip-bad with it");
    if (jsonl_only && o->format == IM_CORPUS_TEXT)
        return im_fail(ctx, IM_ERR_ARG, "--field and --skip-bad are about lines of JSON, not --format text");
    if (o->chat && o->eod)
        return im_fail(ctx, IM_ERR_ARG, "--eod has no effect with --chat: the format says what ends a turn");
    if (o->chat && o->template)
        return im_fail(ctx, IM_ERR_ARG, "--template has no effect with --chat: the format says what begins a conversation");
    return IM_OK;
}

static void print_build(const build_options *o, const im_corpus_result *r, double seconds)
{
    static const char *const suffix[2] = {"-train", "-valid"};
    if (o->json) {
        im_str s = {0};
        im_str_append(&s, "{\"name\": ");
        im_str_json_string(&s, o->out, strlen(o->out));
        im_str_printf(&s, ", \"bytes\": %" PRId64 ", \"text_bytes\": %" PRId64 ", \"seconds\": %.3f, \"bad_lines\": %" PRId64, r->read, r->text,
                      seconds, r->bad);
        for (int i = 0; i < 2; i++)
            im_str_printf(&s, ", \"%s\": {\"documents\": %" PRId64 ", \"tokens\": %" PRId64 ", \"counted\": %" PRId64 "}", suffix[i] + 1,
                          r->documents[i], r->tokens[i], r->counted[i]);
        im_str_printf(&s, ", \"valid_by_position\": %s}", r->by_position ? "true" : "false");
        puts(im_str_text(&s));
        im_str_free(&s);
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!r->tokens[i])
            continue;
        printf("%s%s: %" PRId64 " tokens in %" PRId64 " document%s", o->out, suffix[i], r->tokens[i], r->documents[i],
               r->documents[i] == 1 ? "" : "s");
        if (o->chat)
            printf(", the loss of %" PRId64 " counts", r->counted[i]);
        printf("\n");
    }
    if (r->bad)
        printf("%" PRId64 " line%s left out, the first: %s\n", r->bad, r->bad == 1 ? " was" : "s were", r->first_bad);
    if (r->by_position)
        printf("No whole document fell to validation: its text is the last %.3g %% of the input.\n",
               100.0 * (double)r->tokens[1] / (double)(r->tokens[0] + r->tokens[1]));
}

static im_status refuse_existing(im_cli *cli, const build_options *o)
{
    bool valid = o->valid_every > 0 || o->valid_fraction > 0;
    const char *train = im_arena_printf(cli->arena, "%s-train", o->out), *held = im_arena_printf(cli->arena, "%s-valid", o->out);
    if (!train || !held)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for %s", o->out);
    IM_TRY(im_cli_token_replace(cli, train, o->force, false));
    return im_cli_token_replace(cli, held, o->force, !valid); /* it would be taken for the validation text of the new training file */
}

static im_status run_corpus(im_cli *cli, const build_options *o, const im_option_list *rest, const im_tok *tok)
{
    im_context *ctx = cli->ctx;
    im_corpus_result r;
    watcher w = {.cli = cli, .start = im_clock_now(), .begun = -1};
    im_corpus_config cfg = {
        .input = rest->item,
        .ninput = rest->n,
        .out = o->out,
        .format = o->ids ? IM_CORPUS_IDS : (im_corpus_format)o->format,
        .split = o->separator ? IM_SPLIT_SEPARATOR : (im_split)o->split,
        .separator = o->separator,
        .field = o->field,
        .chat = o->chat != CHAT_NO,
        .chat_format = o->chat != CHAT_NO ? (im_chat_format)(o->chat - CHAT_AUTO) : IM_CHAT_AUTO,
        .tok = tok,
        .coding = {.special_as_text = o->special == 1, .replace = o->invalid == 1, .template = o->template},
        .valid_fraction = o->valid_fraction,
        .valid_every = o->valid_every,
        .seed = (uint64_t)o->seed,
        .workers = (int)o->workers,
        .skip_bad = o->skip_bad,
        .resume = o->resume,
        .note_every = o->note_every,
        .arg = &w,
        .progress = show_progress,
        .stop = stop,
    };
    IM_TRY(read_eod(ctx, o->eod, tok, &cfg.eod));
    bool interrupted = im_corpus_interrupted(o->out);
    if (interrupted && !o->resume)
        im_log(ctx, IM_LOG_WARN, "data", "an interrupted build of %s is left behind; this one starts over (--resume would have gone on)", o->out);
    if (!interrupted && o->resume)
        im_log(ctx, IM_LOG_INFO, "data", "there is no interrupted build of %s: it starts at the beginning", o->out);
    im_cli_catch_signals();
    im_status status = im_corpus_build(ctx, &cfg, &r);
    im_cli_progress(cli, NULL);
    if (status == IM_OK && r.resumed)
        im_log(ctx, IM_LOG_INFO, "data", "went on behind %" PRId64 " documents of the interrupted build", r.resumed);
    if (status == IM_OK)
        print_build(o, &r, im_clock_now() - w.start);
    else if (status != IM_ERR_STOPPED && im_corpus_interrupted(o->out))
        im_log(ctx, IM_LOG_INFO, "data", "what was built of %s is kept: --resume goes on with it", o->out);
    return status;
}

static im_status build(im_cli *cli, const build_options *o, const bool *given, const im_option_list *rest)
{
    im_tok *tok = NULL;
    if (!rest->n)
        return im_fail(cli->ctx, IM_ERR_ARG,
                       "data build: no text given: imece data build TEXT... --out NAME (files, directories, or - for standard input)");
    IM_TRY(check_options(cli->ctx, o, given));
    if (o->out && *o->out)
        IM_TRY(refuse_existing(cli, o));
    IM_TRY(im_cli_token_out(cli, o->out, "build"));
    if (o->tokenizer)
        IM_TRY(im_tok_open(cli->ctx, o->tokenizer, &tok));
    im_status status = run_corpus(cli, o, rest, tok);
    im_tok_close(tok);
    return status;
}

static int run_build(im_cli *cli, int argc, char **argv)
{
    build_options o;
    bool given[IM_COUNT_OF(build_rows)] = {false};
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, given, &rest);
    if (status == IM_OK)
        status = build(cli, &o, given, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_build_command = {
    .name = "build",
    .args = "TEXT...",
    .help = "Make token files from text.",
    .about = "TEXT is a file, a directory (walked in the order of names; names that begin with a dot are left out), or - for\n"
             "standard input; gzip and Zstandard files are unpacked. Each document is its tokens and one that ends it. Nothing stands\n"
             "under its name before it is whole.\n\n"
             "  imece data build notes.txt --out notes\n"
             "  imece data build books/ --split blank --valid-fraction 0.02 --out books\n"
             "  imece data build web/*.jsonl.zst --tokenizer SmolLM2-135M --out web\n"
             "  imece data build chats.jsonl --chat auto --tokenizer SmolLM2-135M --out chats",
    .rows = build_rows,
    .nrows = IM_COUNT_OF(build_rows),
    .run = run_build,
};
