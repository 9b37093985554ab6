/* imece data split, merge, import: token files from token files, and from what other programs write. */
#include "cli/cli_data.h"
#include "data/change.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct change_options {
    const char *out;
    bool force, json;
    double valid_fraction;
    int64_t valid_every, seed, begins, ends;
    int format, dtype;
} change_options;

#define ROW(field) .offset = offsetof(change_options, field)
#define ROW_FORCE                                                                                                      \
    {                                                                                                                  \
        .name = "force", .type = IM_OPT_BOOL, .fallback = "false", .help = "Replace existing token files.", ROW(force) \
    }
#define ROW_JSON                                                                                           \
    {                                                                                                      \
        .name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", ROW(json) \
    }
static const im_option split_rows[] = {
    {.name = "out", .type = IM_OPT_STRING, .value = "NEW", .help = "Write NEW-train and NEW-valid.", ROW(out)},
    {.name = "valid-fraction",
     .type = IM_OPT_REAL,
     .fallback = "0.05",
     .min = 0,
     .max = 0.99,
     .help = "Share of the documents that go to NEW-valid, chosen by a hash of their number.",
     ROW(valid_fraction)},
    {.name = "valid-every",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Every N-th document goes to NEW-valid (instead of --valid-fraction); 0: off.",
     ROW(valid_every)},
    {.name = "seed", .type = IM_OPT_INT, .fallback = "0", .min = 0, .max = 1e15, .help = "Chooses other validation documents.", ROW(seed)},
    ROW_FORCE,
    ROW_JSON,
};
static const im_option merge_rows[] = {
    {.name = "out", .type = IM_OPT_STRING, .value = "NEW", .help = "Write NEW.bin and NEW.idx.", ROW(out)},
    ROW_FORCE,
    ROW_JSON,
};
static const im_option import_rows[] = {
    {.name = "out", .type = IM_OPT_STRING, .value = "NEW", .help = "Write NEW.bin and NEW.idx.", ROW(out)},
    {.name = "format",
     .type = IM_OPT_CHOICE,
     .choices = "auto|llmc|npy|raw",
     .fallback = "auto",
     .help = "Shards of llm.c, NumPy arrays of whole numbers, or ids and nothing else; auto: by the first bytes, never raw.",
     ROW(format)},
    {.name = "dtype",
     .type = IM_OPT_CHOICE,
     .choices = "uint16|uint32|int32|uint8|int64",
     .fallback = "uint16",
     .help = "raw: the type of an id, little-endian.",
     ROW(dtype)},
    {.name = "begins",
     .type = IM_OPT_INT,
     .value = "ID",
     .fallback = "-1",
     .min = -1,
     .max = INT32_MAX,
     .help = "The id that begins each document (llm.c's GPT-2 shards: 50256); -1: none.",
     ROW(begins)},
    {.name = "ends",
     .type = IM_OPT_INT,
     .value = "ID",
     .fallback = "-1",
     .min = -1,
     .max = INT32_MAX,
     .help = "The id that ends each document; -1: none. Without both, a file (or a row of a 2-D array) is a document.",
     ROW(ends)},
    ROW_FORCE,
    ROW_JSON,
};
#undef ROW
#undef ROW_FORCE
#undef ROW_JSON

static void print_result(const change_options *o, const im_change_result *r, bool pair)
{
    static const char *const suffix[2] = {"-train", "-valid"};
    for (int i = 0; i < (pair ? 2 : 1); i++) {
        if (!o->json) {
            printf("%s%s: %" PRId64 " tokens in %" PRId64 " document%s\n", o->out, pair ? suffix[i] : "", r->tokens[i], r->documents[i],
                   r->documents[i] == 1 ? "" : "s");
            continue;
        }
        im_str s = {0}, name = {0};
        im_str_printf(&name, "%s%s", o->out, pair ? suffix[i] : "");
        im_str_append(&s, "{\"name\": ");
        im_str_json_string(&s, im_str_text(&name), name.len);
        im_str_printf(&s, ", \"tokens\": %" PRId64 ", \"documents\": %" PRId64 "}", r->tokens[i], r->documents[i]);
        puts(im_str_text(&s));
        im_str_free(&s);
        im_str_free(&name);
    }
}

/* ---- split ------------------------------------------------------------------------------------------------- */

static im_status split(im_cli *cli, const change_options *o, const im_option_list *rest)
{
    im_tokens *t;
    im_change_result r;
    im_split_config cfg = {.valid_fraction = o->valid_fraction, .valid_every = o->valid_every, .seed = (uint64_t)o->seed};
    if (rest->n != 1)
        return im_fail(cli->ctx, IM_ERR_ARG, "data split: one name: imece data split NAME --out NEW");
    IM_TRY(im_cli_token_out(cli, o->out, "split"));
    for (int i = 0; i < 2; i++) {
        const char *name = im_arena_printf(cli->arena, "%s%s", o->out, i ? "-valid" : "-train");
        if (!name)
            return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a name");
        IM_TRY(im_cli_token_replace(cli, name, o->force, false));
    }
    IM_TRY(im_tokens_open(cli->ctx, rest->item[0], &t));
    im_status status = im_tokens_split(cli->ctx, t, &cfg, o->out, &r);
    im_tokens_close(t);
    if (status == IM_OK)
        print_result(o, &r, true);
    return status;
}

static int run_split(im_cli *cli, int argc, char **argv)
{
    change_options o = {0};
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = split(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_split_command = {
    .name = "split",
    .args = "NAME",
    .help = "Divide the documents of a token file into training and validation.",
    .about = "Whole documents, the same ones as imece data build chooses. A mask goes with them.\n\n"
             "  imece data split corpus --valid-fraction 0.01 --out corpus",
    .rows = split_rows,
    .nrows = IM_COUNT_OF(split_rows),
    .run = run_split,
};

/* ---- merge ------------------------------------------------------------------------------------------------- */

static im_status merge(im_cli *cli, const change_options *o, const im_option_list *rest)
{
    im_change_result r;
    if (!rest->n)
        return im_fail(cli->ctx, IM_ERR_ARG, "data merge: which token files? imece data merge NAME... --out NEW");
    IM_TRY(im_cli_token_out(cli, o->out, "merge"));
    for (size_t i = 0; i < rest->n; i++)
        if (!strcmp(rest->item[i], o->out))
            return im_fail(cli->ctx, IM_ERR_ARG, "data merge: --out %s is one of the files to merge", o->out);
    IM_TRY(im_cli_token_replace(cli, o->out, o->force, false));
    IM_TRY(im_tokens_merge(cli->ctx, rest->item, rest->n, o->out, &r));
    print_result(o, &r, false);
    return IM_OK;
}

static int run_merge(im_cli *cli, int argc, char **argv)
{
    change_options o = {0};
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = merge(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_merge_command = {
    .name = "merge",
    .args = "NAME...",
    .help = "One token file of several.",
    .about = "The documents of all of them, in order. A run can also read several as they are: --data A,B.\n\n"
             "  imece data merge part-1 part-2 --out whole",
    .rows = merge_rows,
    .nrows = IM_COUNT_OF(merge_rows),
    .run = run_merge,
};

/* ---- import ------------------------------------------------------------------------------------------------ */

static im_status import(im_cli *cli, const change_options *o, const bool *given, const im_option_list *rest)
{
    im_change_result r;
    im_import_config cfg = {.format = (im_import_format)o->format, .dtype = (im_import_dtype)o->dtype, .begins = o->begins, .ends = o->ends};
    if (!rest->n)
        return im_fail(cli->ctx, IM_ERR_ARG, "data import: which files? imece data import FILE... --out NEW");
    for (size_t i = 0; i < IM_COUNT_OF(import_rows); i++)
        if (given[i] && !strcmp(import_rows[i].name, "dtype") && cfg.format != IM_IMPORT_RAW)
            return im_fail(cli->ctx, IM_ERR_ARG, "--dtype is of --format raw: the others say themselves what their ids are");
    IM_TRY(im_cli_token_out(cli, o->out, "import"));
    IM_TRY(im_cli_token_replace(cli, o->out, o->force, false));
    IM_TRY(im_tokens_import(cli->ctx, rest->item, rest->n, &cfg, o->out, &r));
    print_result(o, &r, false);
    return IM_OK;
}

static int run_import(im_cli *cli, int argc, char **argv)
{
    change_options o = {0};
    bool given[IM_COUNT_OF(import_rows)] = {false};
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, given, &rest);
    if (status == IM_OK)
        status = import(cli, &o, given, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_import_command = {
    .name = "import",
    .args = "FILE...",
    .help = "Token files from ids that other programs wrote.",
    .about = "Token files of Megatron-LM need no import.\n\n"
             "  imece data import fineweb_train_*.bin --begins 50256 --out fineweb\n"
             "  imece data import train.bin --format raw --dtype uint16 --out shakespeare\n"
             "  imece data import ids.npy --out ids",
    .rows = import_rows,
    .nrows = IM_COUNT_OF(import_rows),
    .run = run_import,
};
