/* --help, the man page and the bash completion, from the tables of commands and options. */
#include "cli/cli.h"

#include <string.h>

static int text_width(const im_cli *cli)
{
    return cli->columns < 60 ? 60 : cli->columns > 110 ? 110 : cli->columns;
}

static void list_commands(const im_cli_command *const *list, size_t n, im_str *out)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i]->hidden)
            im_str_printf(out, "  %-12s %s\n", list[i]->name, list[i]->help);
}

void im_cli_help_top(const im_cli *cli, const im_cli_command *const *commands, size_t n, im_str *out)
{
    (void)cli;
    im_str_append(out, "imece trains and runs language models.\n\n"
                       "usage: imece [-v|-q] COMMAND [options]\n"
                       "       imece COMMAND --help\n"
                       "       imece --version\n\n"
                       "commands:\n");
    list_commands(commands, n, out);
    im_str_append(out, "\n-v tells more, -q only warnings and errors. Exit codes: 0 done, 1 failed, 2 usage,\n"
                       "3 a check found something, 4 stopped by a signal, state saved.\n");
}

void im_cli_help_command(const im_cli *cli, const im_cli_command *c, const char *path, im_str *out)
{
    im_str_printf(out, "%s: %s\n\nusage: %s", path, c->help, path);
    if (c->nsub)
        im_str_append(out, " COMMAND");
    im_str_printf(out, " [options]%s%s\n", c->args ? " " : "", c->args ? c->args : "");
    if (c->about)
        im_str_printf(out, "\n%s\n", c->about);
    if (c->nsub) {
        im_str_append(out, "\ncommands:\n");
        list_commands(c->sub, c->nsub, out);
    }
    if (c->nrows) {
        im_str_append(out, "\n");
        im_str rows = {0};
        im_option_help(c->rows, c->nrows, text_width(cli), &rows);
        im_str_append(out, im_str_text(&rows));
        im_str_free(&rows);
    }
}

/* ---- man page --------------------------------------------------------------- */

/* Plain text as roff: lines that begin with a space stand as they are, an empty line parts paragraphs. */
static void roff_text(const char *text, im_str *out)
{
    bool literal = false;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        bool wants = *line == ' ';
        if (wants != literal && n > 0) {
            im_str_append(out, wants ? ".nf\n" : ".fi\n");
            literal = wants;
        }
        if (n == 0)
            im_str_append(out, ".P\n");
        else if (*line == '.' || *line == '\'')
            im_str_append(out, "\\&");
        for (size_t i = 0; i < n; i++) {
            if (line[i] == '-')
                im_str_append(out, "\\-");
            else if (line[i] == '\\')
                im_str_append(out, "\\e");
            else
                im_str_append_n(out, line + i, 1);
        }
        if (n > 0)
            im_str_append(out, "\n");
        line += n + (line[n] == '\n');
    }
    if (literal)
        im_str_append(out, ".fi\n");
}

static void man_command(const im_cli_command *c, const char *path, im_str *out)
{
    if (c->hidden)
        return;
    im_str full = {0};
    im_str_printf(&full, "%s%s%s", path, *path ? " " : "", c->name);
    im_str_printf(out, ".SS %s%s%s\n", im_str_text(&full), c->args ? " " : "", c->args ? c->args : "");
    roff_text(c->help, out);
    if (c->about) {
        im_str_append(out, ".P\n");
        roff_text(c->about, out);
    }
    im_option_man(c->rows, c->nrows, out);
    for (size_t i = 0; i < c->nsub; i++)
        man_command(c->sub[i], im_str_text(&full), out);
    im_str_free(&full);
}

void im_cli_man(const im_cli_command *const *commands, size_t n, im_str *out)
{
    im_str_append(out, ".TH IMECE 1 \"\" \"imece " IM_VERSION_STRING "\" \"User Commands\"\n"
                       ".SH NAME\nimece \\- train and run language models\n"
                       ".SH SYNOPSIS\n.B imece\n[\\-v|\\-q] COMMAND [options]\n.br\n.B imece\nCOMMAND \\-\\-help\n.br\n.B imece\n\\-\\-version\n"
                       ".SH COMMANDS\n");
    for (size_t i = 0; i < n; i++)
        man_command(commands[i], "", out);
    im_str_append(out, ".SH EXIT STATUS\n0 done, 1 failed, 2 usage, 3 a check found something, 4 stopped by a signal with the state saved.\n"
                       ".SH ENVIRONMENT\n.TP\n.B IMECE_MODELS\ndirectory of named model shapes\n.TP\n.B IMECE_CLUSTERS\ndirectory of named "
                       "clusters\n.TP\n.B NO_COLOR\nwhen not empty: no colour\n");
}

/* ---- completion ---------------------------------------------------------------- */

static void completion_names(const im_cli_command *const *list, size_t n, im_str *out)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i]->hidden)
            im_str_printf(out, "%s ", list[i]->name);
}

/* What may stand behind the command's name, which is the word `depth` before. */
static void completion_command(const im_cli_command *c, int depth, im_str *out)
{
    if (!c->nsub) {
        im_option_completion(c->rows, c->nrows, out);
        return;
    }
    im_str_printf(out, "if [ $((i+%d)) -ge $COMP_CWORD ]; then COMPREPLY=($(compgen -W \"", depth);
    completion_names(c->sub, c->nsub, out);
    im_str_printf(out, "--help\" -- \"$cur\")); return; fi\ncase \"${COMP_WORDS[i+%d]}\" in\n", depth);
    for (size_t k = 0; k < c->nsub; k++) {
        im_str_printf(out, "%s)\n", c->sub[k]->name);
        completion_command(c->sub[k], depth + 1, out);
        im_str_append(out, ";;\n");
    }
    im_str_append(out, "esac\n");
}

void im_cli_completion(const im_cli_command *const *commands, size_t n, im_str *out)
{
    im_str_append(out, "# bash completion for imece; made by `imece completion`\n"
                       "_imece() {\n"
                       "local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" i=1 command=\"\"\n"
                       "COMPREPLY=()\n"
                       "while [ $i -lt $COMP_CWORD ] && [[ ${COMP_WORDS[i]} == -* ]]; do i=$((i+1)); done\n"
                       "if [ $i -ge $COMP_CWORD ]; then COMPREPLY=($(compgen -W \"");
    completion_names(commands, n, out);
    im_str_append(out, "--help --version\" -- \"$cur\")); return; fi\n"
                       "command=\"${COMP_WORDS[i]}\"\n"
                       "case \"$command\" in\n");
    for (size_t i = 0; i < n; i++) {
        const im_cli_command *c = commands[i];
        if (c->hidden)
            continue;
        im_str_printf(out, "%s)\n", c->name);
        completion_command(c, 1, out);
        im_str_append(out, ";;\n");
    }
    im_str_append(out, "esac\n"
                       "[ ${#COMPREPLY[@]} -eq 0 ] && [[ $cur != -* ]] && COMPREPLY=($(compgen -f -- \"$cur\"))\n"
                       "}\n"
                       "complete -o filenames -F _imece imece\n");
}
