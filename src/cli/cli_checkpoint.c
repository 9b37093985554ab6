/* imece checkpoint: list what a run has saved, verify it. */
#include "cli/cli.h"
#include "checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct checkpoint_options {
    bool json;
} checkpoint_options;

static const im_option rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = offsetof(checkpoint_options, json)},
};

static im_status parse(im_cli *cli, int argc, char **argv, checkpoint_options *o, im_option_list *paths)
{
    IM_TRY(im_cli_options(cli, argc, argv, o, NULL, paths));
    if (!paths->n)
        return im_fail(cli->ctx, IM_ERR_ARG, "which run? give a run directory or its checkpoints directory");
    return IM_OK;
}

/* RUN, or RUN/checkpoints. */
static const char *root_of(im_cli *cli, const char *path)
{
    char *inside = im_arena_printf(cli->arena, "%s/checkpoints", path);
    return inside && im_path_is_dir(inside) ? inside : path;
}

/* ---- list ------------------------------------------------------------------------ */

static void print_text(const im_checkpoint_entry *e, size_t n)
{
    char size[32];
    for (size_t i = 0; i < n; i++)
        printf("%-16s %10s  %s%s%s\n", e[i].name, im_format_bytes(size, sizeof size, (double)e[i].nbytes),
               e[i].complete ? "complete" : "not complete: ", e[i].reason, e[i].latest ? "  <- latest" : "");
}

static void print_json(const im_checkpoint_entry *e, size_t n)
{
    im_str out = {0};
    for (size_t i = 0; i < n; i++) {
        im_str_printf(&out, "%s{\"name\": \"%s\", \"step\": %" PRId64 ", \"bytes\": %" PRIu64 ", \"complete\": %s, \"latest\": %s, \"reason\": ",
                      i ? ", " : "", e[i].name, e[i].step, e[i].nbytes, e[i].complete ? "true" : "false", e[i].latest ? "true" : "false");
        im_str_json_string(&out, e[i].reason, strlen(e[i].reason));
        im_str_append(&out, "}");
    }
    printf("[%s]\n", im_str_text(&out));
    im_str_free(&out);
}

static int run_list(im_cli *cli, int argc, char **argv)
{
    checkpoint_options o = {0};
    im_option_list paths = {0};
    im_status status = parse(cli, argc, argv, &o, &paths);
    for (size_t i = 0; status == IM_OK && i < paths.n; i++) {
        im_checkpoint_entry *list;
        size_t n;
        status = im_checkpoint_list(cli->ctx, root_of(cli, paths.item[i]), &list, &n);
        if (status != IM_OK)
            break;
        if (o.json)
            print_json(list, n);
        else
            print_text(list, n);
        free(list);
    }
    return im_cli_exit(cli, status);
}

/* ---- verify ------------------------------------------------------------------------ */

/* One checkpoint: its own line, whatever it is; *bad counts those that are not as they were written. */
static im_status verify_one(im_cli *cli, const char *dir, bool json, int *bad)
{
    im_checkpoint_meta meta;
    im_status status = im_checkpoint_meta_read(cli->ctx, dir, true, &meta);
    im_str line = {0};
    const char *why = status == IM_OK ? "" : im_error_text(cli->ctx);
    if (json) {
        im_str_append(&line, "{\"checkpoint\": ");
        im_str_json_string(&line, dir, strlen(dir));
        im_str_printf(&line, ", \"ok\": %s, \"reason\": ", status == IM_OK ? "true" : "false");
        im_str_json_string(&line, why, strlen(why));
        im_str_append(&line, "}");
    } else if (status == IM_OK) {
        im_str_printf(&line, "%s: whole (step %" PRId64 ", %" PRId64 " tokens)", dir, meta.step, meta.tokens);
    } else {
        im_str_printf(&line, "%s: BAD: %s", dir, why);
    }
    printf("%s\n", im_str_text(&line));
    im_str_free(&line);
    if (status != IM_OK) {
        (*bad)++;
        im_error_clear(cli->ctx);
    }
    return IM_OK;
}

/* A checkpoint itself, or all of a run. */
static im_status verify_path(im_cli *cli, const char *path, bool json, int *bad)
{
    char *manifest = im_arena_printf(cli->arena, "%s/imece.json", path);
    if (manifest && im_path_exists(manifest))
        return verify_one(cli, path, json, bad);
    im_checkpoint_entry *list;
    size_t n;
    const char *root = root_of(cli, path);
    IM_TRY(im_checkpoint_list(cli->ctx, root, &list, &n));
    im_status status = n ? IM_OK : im_fail(cli->ctx, IM_ERR_NOT_FOUND, "%s: no checkpoints (directories named step-N) in it", root);
    for (size_t i = 0; status == IM_OK && i < n; i++) {
        char *dir = im_arena_printf(cli->arena, "%s/%s", root, list[i].name);
        status = dir ? verify_one(cli, dir, json, bad) : im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a path");
    }
    free(list);
    return status;
}

static int run_verify(im_cli *cli, int argc, char **argv)
{
    checkpoint_options o = {0};
    im_option_list paths = {0};
    int bad = 0;
    im_status status = parse(cli, argc, argv, &o, &paths);
    for (size_t i = 0; status == IM_OK && i < paths.n; i++)
        status = verify_path(cli, paths.item[i], o.json, &bad);
    if (status == IM_OK && bad)
        status = im_fail(cli->ctx, IM_ERR_CHECK, "%d checkpoints are not as they were written", bad);
    return im_cli_exit(cli, status);
}

static const im_cli_command list_command = {
    .name = "list",
    .args = "RUN...",
    .help = "What a run has saved.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_list,
};
static const im_cli_command verify_command = {
    .name = "verify",
    .args = "RUN|CHECKPOINT...",
    .help = "Sizes and checksums of every file; exit code 3 when one differs.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_verify,
};
static const im_cli_command *const subs[] = {&list_command, &verify_command};

const im_cli_command im_cli_checkpoint_command = {
    .name = "checkpoint",
    .help = "List and verify checkpoints.",
    .about = "A checkpoint is a directory step-N that Transformers opens as it is; imece.json in it has the size and the XXH3 of each file\n"
             "(xxhsum -H3 gives the same).",
    .sub = subs,
    .nsub = IM_COUNT_OF(subs),
};
