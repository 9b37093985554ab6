/* The sub-commands of imece data, and what they share. */
#ifndef IM_CLI_DATA_H
#define IM_CLI_DATA_H

#include "cli/cli.h"
#include "data/data.h"

extern const im_cli_command im_cli_data_build_command, im_cli_data_info_command, im_cli_data_show_command, im_cli_data_split_command,
    im_cli_data_merge_command, im_cli_data_import_command, im_cli_data_ngram_command;

/* NAME itself, or NAME-train (which 0) or NAME-valid (1) when only the pair is there. */
const char *im_cli_token_name(im_arena *a, const char *name, int which);
/* --out: it is there, and names no directory; the parent is made when it is missing. */
im_status im_cli_token_out(im_cli *cli, const char *out, const char *what) IM_MUST_CHECK;
/* Token files NAME that exist: refused, unless force. `gone`: they are removed: they would be taken for what belongs to new ones. */
im_status im_cli_token_replace(im_cli *cli, const char *name, bool force, bool gone) IM_MUST_CHECK;

#endif
