/* imece data: token files. Each sub-command has a file of its own. */
#include "cli/cli_data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *im_cli_token_name(im_arena *a, const char *name, int which)
{
    static const char *const suffix[2] = {"-train", "-valid"};
    const char *idx = im_arena_printf(a, "%s.idx", name), *pair = im_arena_printf(a, "%s%s", name, suffix[which]);
    const char *pair_idx = im_arena_printf(a, "%s%s.idx", name, suffix[which]);
    if (idx && pair && pair_idx && !im_path_exists(idx) && im_path_exists(pair_idx))
        return pair;
    return name;
}

im_status im_cli_token_out(im_cli *cli, const char *out, const char *what)
{
    if (!out || !*out || out[strlen(out) - 1] == '/')
        return im_fail(cli->ctx, IM_ERR_ARG, "data %s: --out NAME is needed: the token files will begin with NAME", what);
    char *dir = im_arena_strdup(cli->arena, out), *slash = dir ? strrchr(dir, '/') : NULL;
    if (!slash || slash == dir)
        return IM_OK;
    *slash = '\0';
    return im_mkdirs(cli->ctx, dir);
}

im_status im_cli_token_replace(im_cli *cli, const char *name, bool force, bool gone)
{
    static const char *const kind[] = {".idx", ".bin", ".mask", ".json"}; /* the index first: without it the others are no token files */
    for (size_t i = 0; i < IM_COUNT_OF(kind); i++) {
        const char *path = im_arena_printf(cli->arena, "%s%s", name, kind[i]);
        if (!path)
            return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for %s", name);
        if (!im_path_exists(path))
            continue;
        if (!force && i < 2)
            return im_fail(cli->ctx, IM_ERR_EXISTS, "%s exists: choose another --out, or --force to replace it", path);
        if (gone && unlink(path) != 0)
            return im_fail_errno(cli->ctx, "%s: cannot be removed", path);
    }
    return IM_OK;
}

static const im_cli_command *const data_commands[] = {
    &im_cli_data_build_command, &im_cli_data_info_command,   &im_cli_data_show_command,  &im_cli_data_split_command,
    &im_cli_data_merge_command, &im_cli_data_import_command, &im_cli_data_ngram_command,
};

const im_cli_command im_cli_data_command = {
    .name = "data",
    .help = "Make token files from text, and look into them.",
    .sub = data_commands,
    .nsub = IM_COUNT_OF(data_commands),
};
