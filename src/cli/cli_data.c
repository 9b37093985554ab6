/* imece data: build token files from text, and look into them. */
#include "cli/cli.h"
#include "data/data.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- inputs: files, directories, "-" ---------------------------------------------- */

typedef struct inputs {
    im_context *ctx;
    im_arena *arena;
    const char **path;
    size_t n, cap;
    int64_t bytes; /* of regular files */
} inputs;

static im_status add_input(inputs *in, const char *path, int64_t bytes)
{
    if (in->n == in->cap) {
        size_t cap = in->cap ? 2 * in->cap : 64;
        const char **more = realloc(in->path, cap * sizeof *more);
        if (!more)
            return im_fail(in->ctx, IM_ERR_NOMEM, "no memory for %zu input names", cap);
        in->path = more;
        in->cap = cap;
    }
    in->path[in->n] = im_arena_strdup(in->arena, path);
    if (!in->path[in->n])
        return im_fail(in->ctx, IM_ERR_NOMEM, "no memory for input names");
    in->n++;
    in->bytes += bytes;
    return IM_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Directories are walked in the order of their names, so that the same tree is the same corpus everywhere. Links to directories and
 * names that begin with a dot are left out below the directory that was given. */
static im_status walk(inputs *in, const char *dir, int depth)
{
    struct dirent **entry = NULL;
    if (depth > 64)
        return im_fail(in->ctx, IM_ERR_ARG, "%s: directories deeper than 64", dir);
    int n = scandir(dir, &entry, visible, by_name);
    if (n < 0)
        return im_fail_errno(in->ctx, "%s", dir);
    im_status status = IM_OK;
    for (int i = 0; i < n; i++) {
        struct stat link, st;
        char *path = im_arena_printf(in->arena, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", entry[i]->d_name);
        if (status == IM_OK && !path)
            status = im_fail(in->ctx, IM_ERR_NOMEM, "no memory for input names");
        else if (status == IM_OK && (lstat(path, &link) != 0 || stat(path, &st) != 0))
            status = im_fail_errno(in->ctx, "%s", path);
        else if (status == IM_OK && S_ISREG(st.st_mode))
            status = add_input(in, path, st.st_size);
        else if (status == IM_OK && S_ISDIR(link.st_mode))
            status = walk(in, path, depth + 1);
        free(entry[i]);
    }
    free(entry);
    return status;
}

static im_status collect(inputs *in, const im_option_list *given)
{
    bool had_stdin = false;
    for (size_t i = 0; i < given->n; i++) {
        struct stat st;
        const char *path = given->item[i];
        if (strcmp(path, "-") == 0) {
            if (had_stdin)
                return im_fail(in->ctx, IM_ERR_ARG, "- (standard input) can be read once");
            had_stdin = true;
            IM_TRY(add_input(in, path, 0));
        } else if (stat(path, &st) != 0) {
            return im_fail_errno(in->ctx, "%s", path);
        } else if (S_ISDIR(st.st_mode)) {
            size_t before = in->n;
            IM_TRY(walk(in, path, 0));
            if (in->n == before)
                return im_fail(in->ctx, IM_ERR_ARG, "%s: no files in this directory", path);
        } else {
            IM_TRY(add_input(in, path, S_ISREG(st.st_mode) ? st.st_size : 0));
        }
    }
    return IM_OK;
}

/* ---- imece data build ---------------------------------------------------------------- */

typedef struct build_options {
    const char *out;
    int split;
    const char *separator;
    double valid_fraction;
    int64_t valid_every, seed, eod;
    bool ids, force, json;
} build_options;

#define ROW(field) .offset = offsetof(build_options, field)
static const im_option build_rows[] = {
    {.name = "out", .type = IM_OPT_STRING, .value = "NAME", .help = "Write NAME-train.bin, NAME-train.idx and the same for NAME-valid.", ROW(out)},
    {.name = "split",
     .type = IM_OPT_CHOICE,
     .choices = "file|lines|blank",
     .fallback = "file",
     .help = "What ends a document besides the end of a file: nothing, every newline, or blank lines.",
     ROW(split)},
    {.name = "separator",
     .type = IM_OPT_STRING,
     .value = "TEXT",
     .help = "A line that is exactly TEXT ends a document (instead of --split).",
     ROW(separator)},
    {.name = "ids",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "TEXT holds ids in decimal, a document a line: what another tokenizer made.",
     ROW(ids)},
    {.name = "eod",
     .type = IM_OPT_INT,
     .fallback = "-1",
     .min = -1,
     .max = INT32_MAX,
     .help = "With --ids: the id that is put behind each document; -1: none.",
     ROW(eod)},
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
    {.name = "force", .type = IM_OPT_BOOL, .fallback = "false", .help = "Replace existing token files.", ROW(force)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", ROW(json)},
};
#undef ROW

static const char *const pair_suffix[2] = {"-train", "-valid"};

static im_status refuse_existing(im_context *ctx, im_arena *a, const build_options *o, bool valid)
{
    static const char *const kind[2] = {".bin", ".idx"};
    for (int i = 0; i < 4; i++) {
        const char *path = im_arena_printf(a, "%s%s%s", o->out, pair_suffix[i / 2], kind[i % 2]);
        if (!path)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", o->out);
        if (!im_path_exists(path))
            continue;
        if (!o->force)
            return im_fail(ctx, IM_ERR_EXISTS, "%s exists: choose another --out, or --force to replace it", path);
        if (i >= 2 && !valid && unlink(path) != 0) /* it would be taken for the validation text of the new training file */
            return im_fail_errno(ctx, "%s: cannot be removed", path);
    }
    return IM_OK;
}

typedef struct progress {
    im_cli *cli;
    int64_t done, all; /* bytes; all 0: unknown */
    double start, last;
} progress;

static void show_progress(progress *p)
{
    char text[96];
    double now = im_clock_now(), s = now - p->start;
    if (now - p->last < 0.2 || s <= 0)
        return;
    p->last = now;
    if (p->all)
        snprintf(text, sizeof text, "%.1f of %.1f MB | %.0f MB/s", (double)p->done / 1e6, (double)p->all / 1e6, (double)p->done / 1e6 / s);
    else
        snprintf(text, sizeof text, "%.1f MB | %.0f MB/s", (double)p->done / 1e6, (double)p->done / 1e6 / s);
    im_cli_progress(p->cli, text);
}

static im_status feed_file(im_context *ctx, im_corpus *c, const char *path, char *buf, size_t size, progress *p)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return im_fail_errno(ctx, "%s", path);
    im_status status = IM_OK;
    ssize_t n;
    im_corpus_begin_file(c, is_stdin ? "standard input" : path);
    while (status == IM_OK && (n = read(fd, buf, size)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        status = n < 0 ? im_fail_errno(ctx, "%s", is_stdin ? "standard input" : path) : im_corpus_feed(c, buf, (size_t)n);
        p->done += n > 0 ? n : 0;
        show_progress(p);
        if (status == IM_OK && im_cli_signal())
            status = im_fail(ctx, IM_ERR_ABORTED, "stopped by a signal: no token file was written");
    }
    if (!is_stdin)
        close(fd);
    return status == IM_OK ? im_corpus_end_file(c) : status;
}

static im_status build_corpus(im_context *ctx, const build_options *o, const inputs *in, progress *p, im_corpus_result *r)
{
    enum { SIZE = 1 << 20 };
    im_status status;
    char *buf = NULL;
    im_corpus *c = NULL;
    im_corpus_config cfg = {
        .ids = o->ids,
        .eod = (int32_t)o->eod,
        .split = o->separator ? IM_SPLIT_SEPARATOR : (im_split)o->split,
        .separator = o->separator,
        .valid_fraction = o->valid_fraction,
        .valid_every = o->valid_every,
        .seed = (uint64_t)o->seed,
    };
    IM_TRY(im_alloc(ctx, SIZE, 1, (void **)&buf));
    IM_TRY_GOTO(im_corpus_create(ctx, o->out, &cfg, &c), free_buf);
    for (size_t i = 0; i < in->n; i++)
        IM_TRY_GOTO(feed_file(ctx, c, in->path[i], buf, SIZE, p), abandon_corpus);
    status = im_corpus_finish(c, r);
    goto free_buf;
abandon_corpus:
    im_corpus_abandon(c);
free_buf:
    free(buf);
    return status;
}

static void print_build(const build_options *o, const im_corpus_result *r, const progress *p, double seconds)
{
    if (o->json) {
        im_str s = {0};
        im_str_append(&s, "{\"name\": ");
        im_str_json_string(&s, o->out, strlen(o->out));
        im_str_printf(&s, ", \"bytes\": %" PRId64 ", \"seconds\": %.3f, \"train\": {\"documents\": %" PRId64 ", \"tokens\": %" PRId64 "}", p->done,
                      seconds, r->documents[0], r->tokens[0]);
        im_str_printf(&s, ", \"valid\": {\"documents\": %" PRId64 ", \"tokens\": %" PRId64 "}, \"valid_by_position\": %s}", r->documents[1],
                      r->tokens[1], r->by_position ? "true" : "false");
        puts(im_str_text(&s));
        im_str_free(&s);
        return;
    }
    for (int i = 0; i < 2; i++)
        if (r->tokens[i])
            printf("%s%s: %" PRId64 " tokens in %" PRId64 " document%s\n", o->out, pair_suffix[i], r->tokens[i], r->documents[i],
                   r->documents[i] == 1 ? "" : "s");
    if (r->by_position)
        printf("No whole document fell to validation: its text is the last %.3g %% of the input.\n",
               100.0 * (double)r->tokens[1] / (double)(r->tokens[0] + r->tokens[1]));
}

/* The parent of the name is made when it is missing. */
static im_status make_parent(im_context *ctx, im_arena *a, const char *name)
{
    char *dir = im_arena_strdup(a, name), *slash = dir ? strrchr(dir, '/') : NULL;
    if (!slash || slash == dir)
        return IM_OK;
    *slash = '\0';
    return im_mkdirs(ctx, dir);
}

static im_status build(im_cli *cli, const build_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    if (!rest->n)
        return im_fail(ctx, IM_ERR_ARG,
                       "data build: no text given: imece data build TEXT... --out NAME (files, directories, or - for standard input)");
    if (!o->out || !*o->out || o->out[strlen(o->out) - 1] == '/')
        return im_fail(ctx, IM_ERR_ARG, "data build: --out NAME is needed: the token files will be NAME-train.bin, NAME-train.idx, ...");
    im_status status;
    inputs in = {.ctx = ctx, .arena = a};
    im_corpus_result r;
    IM_TRY_GOTO(collect(&in, rest), free_inputs);
    IM_TRY_GOTO(refuse_existing(ctx, a, o, o->valid_every > 0 || o->valid_fraction > 0), free_inputs);
    IM_TRY_GOTO(make_parent(ctx, a, o->out), free_inputs);
    progress p = {.cli = cli, .all = in.bytes, .start = im_clock_now()};
    im_cli_catch_signals();
    status = build_corpus(ctx, o, &in, &p, &r);
    im_cli_progress(cli, NULL);
    if (status == IM_OK)
        print_build(o, &r, &p, im_clock_now() - p.start);
free_inputs:
    free(in.path);
    return status;
}

static int run_build(im_cli *cli, int argc, char **argv)
{
    build_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = build(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

static const im_cli_command build_command = {
    .name = "build",
    .args = "TEXT...",
    .help = "Make token files from text, byte by byte.",
    .about = "TEXT is a file, a directory (walked in the order of names; names that begin with a dot are left out), or - for\n"
             "standard input. Each byte is a token; the id 256 ends each document. Nothing stands under its name before it is whole.\n\n"
             "  imece data build notes.txt --out notes\n"
             "  imece data build books/ --split blank --valid-fraction 0.02 --out books\n"
             "  zcat corpus.gz | imece data build - --separator '<|endoftext|>' --out data/corpus",
    .rows = build_rows,
    .nrows = IM_COUNT_OF(build_rows),
    .run = run_build,
};

/* ---- imece data info ------------------------------------------------------------------- */

typedef struct info_options {
    bool json;
} info_options;

static const im_option info_rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "One JSON object for each name.", .offset = offsetof(info_options, json)},
};

/* Walks all of the file, the index and the ids: a file that passes here can be trained on. */
static im_status info_one(im_context *ctx, const char *name, bool json)
{
    im_tokens *t;
    char size[32];
    IM_TRY(im_tokens_open(ctx, name, &t));
    im_status status = im_tokens_verify(ctx, t);
    if (status != IM_OK)
        goto close_tokens;
    int64_t lo, hi, n = im_tokens_count(t);
    IM_TRY_GOTO(im_tokens_id_range(ctx, t, 0, n, &lo, &hi), close_tokens);
    if (json) {
        im_str s = {0};
        im_str_append(&s, "{\"name\": ");
        im_str_json_string(&s, im_tokens_prefix(t), strlen(im_tokens_prefix(t)));
        im_str_printf(&s,
                      ", \"tokens\": %" PRId64 ", \"documents\": %" PRId64 ", \"dtype\": \"%s\", \"bytes\": %zu, \"min_id\": %" PRId64
                      ", \"max_id\": %" PRId64 ", \"fingerprint\": \"%016" PRIx64 "\"}",
                      n, im_tokens_documents(t), im_tokens_dtype(t), im_tokens_nbytes(t), lo, hi, im_tokens_fingerprint(t));
        puts(im_str_text(&s));
        im_str_free(&s);
    } else {
        printf("%s\n  tokens       %" PRId64 "\n  documents    %" PRId64 "\n  id type      %s\n  size         %s\n", im_tokens_prefix(t), n,
               im_tokens_documents(t), im_tokens_dtype(t), im_format_bytes(size, sizeof size, (double)im_tokens_nbytes(t)));
        if (n)
            printf("  ids          %" PRId64 " to %" PRId64 "%s\n", lo, hi,
                   hi < IM_BYTE_VOCAB && hi >= IM_BYTE_EOD ? " (bytes, and 256 behind each document)" : "");
        printf("  fingerprint  %016" PRIx64 "\n", im_tokens_fingerprint(t));
    }
close_tokens:
    im_tokens_close(t);
    return status;
}

/* NAME itself, or NAME-train (which 0) or NAME-valid (1) when only the pair is there. */
static const char *resolve(im_arena *a, const char *name, int which)
{
    const char *idx = im_arena_printf(a, "%s.idx", name), *pair = im_arena_printf(a, "%s%s", name, pair_suffix[which]);
    const char *pair_idx = im_arena_printf(a, "%s%s.idx", name, pair_suffix[which]);
    if (idx && pair && pair_idx && !im_path_exists(idx) && im_path_exists(pair_idx))
        return pair;
    return name;
}

static im_status info(im_cli *cli, const info_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    if (!rest->n)
        return im_fail(ctx, IM_ERR_ARG, "data info: which token files? imece data info NAME...");
    for (size_t i = 0; i < rest->n; i++) {
        const char *first = resolve(a, rest->item[i], 0), *second = resolve(a, rest->item[i], 1);
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

static const im_cli_command info_command = {
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
    bool ids;
} show_options;

static const im_option show_rows[] = {
    {.name = "document",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Its number, counted from 0.",
     .offset = offsetof(show_options, document)},
    {.name = "ids",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Numbers, also where the ids are bytes.",
     .offset = offsetof(show_options, ids)},
};

static im_status show(im_cli *cli, const show_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    enum { CHUNK = 4096 };
    im_tokens *t;
    int64_t first, n, lo, hi;
    if (rest->n != 1)
        return im_fail(ctx, IM_ERR_ARG, "data show: one name: imece data show NAME --document N");
    IM_TRY(im_tokens_open(ctx, resolve(a, rest->item[0], 0), &t));
    im_status status = im_tokens_document(ctx, t, o->document, &first, &n);
    if (status != IM_OK)
        goto close_tokens;
    IM_TRY_GOTO(im_tokens_id_range(ctx, t, first, n, &lo, &hi), close_tokens);
    bool text = !o->ids && hi < IM_BYTE_VOCAB;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int32_t ids[CHUNK];
        int64_t m = n - at < CHUNK ? n - at : CHUNK;
        IM_TRY_GOTO(im_tokens_read(ctx, t, first + at, m, ids), close_tokens);
        for (int64_t i = 0; i < m; i++)
            if (!text)
                printf("%d%c", ids[i], at + i + 1 < n ? ' ' : '\n');
            else if (ids[i] != IM_BYTE_EOD)
                putchar(ids[i]);
    }
close_tokens:
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

static const im_cli_command show_command = {
    .name = "show",
    .args = "NAME",
    .help = "Print one document.",
    .about = "As text when its ids are bytes, as numbers otherwise.\n\n"
             "  imece data show notes-valid --document 3",
    .rows = show_rows,
    .nrows = IM_COUNT_OF(show_rows),
    .run = run_show,
};

/* ---- imece data ngram ---------------------------------------------------------------------- */

static im_status ngram(im_cli *cli, const info_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    im_tokens *train, *valid = NULL;
    im_ngram_result r;
    if (rest->n < 1 || rest->n > 2)
        return im_fail(ctx, IM_ERR_ARG, "data ngram: imece data ngram NAME, or imece data ngram TRAIN VALID");
    IM_TRY(im_tokens_open(ctx, resolve(a, rest->item[0], 0), &train));
    im_status status = im_tokens_open(ctx, rest->n == 2 ? rest->item[1] : resolve(a, rest->item[0], 1), &valid);
    if (status != IM_OK)
        goto close_train;
    IM_TRY_GOTO(im_ngram_score(ctx, train, valid, &r), close_valid);
    static const char *const name[] = {"uniform", "unigram", "bigram", "trigram"};
    double scale = r.scored_bytes ? (double)r.scored / (double)r.scored_bytes : 1;
    if (o->json)
        printf("{\"scored\": %" PRId64, r.scored);
    for (int k = 0; k <= IM_NGRAM_MAX; k++)
        printf(o->json ? ", \"%s\": %.6f" : "%-8s %7.4f bits per byte\n", name[k], r.bits[k] * scale);
    if (o->json)
        puts("}");
close_valid:
    im_tokens_close(valid);
close_train:
    im_tokens_close(train);
    return status;
}

static int run_ngram(im_cli *cli, int argc, char **argv)
{
    info_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = ngram(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

static const im_cli_command ngram_command = {
    .name = "ngram",
    .args = "NAME | TRAIN VALID",
    .help = "Score interpolated uni-, bi- and trigram models: what counting alone reaches.",
    .about = "Counts the training tokens (bytes), fits the weights of the mixture on a tenth of them that was not counted, and tells\n"
             "bits a byte on the validation tokens: bits of all tokens over the number of those that are bytes, as imece eval does.",
    .rows = info_rows,
    .nrows = IM_COUNT_OF(info_rows),
    .run = run_ngram,
};

static const im_cli_command *const data_commands[] = {&build_command, &info_command, &show_command, &ngram_command};

const im_cli_command im_cli_data_command = {
    .name = "data",
    .help = "Make token files from text, and look into them.",
    .sub = data_commands,
    .nsub = IM_COUNT_OF(data_commands),
};
