/* imece fabric diagnose: why a job went wrong, and whether it used RDMA, by its logs. */
#include "cli/cli_fabric.h"
#include "fabric/diagnose.h"

#include <stdatomic.h>
#include <string.h>

typedef struct diagnose_options {
    bool json, rules;
} diagnose_options;

#define AT(member) offsetof(diagnose_options, member)
static const im_option rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = AT(json)},
    {.name = "rules",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "List the causes that it knows, with their sources, and end.",
     .offset = AT(rules)},
};

static int print(im_cli *cli, im_str *text)
{
    fputs(im_str_text(text), stdout);
    bool failed = text->failed;
    im_str_free(text);
    return im_cli_exit(cli, failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the text") : IM_OK);
}

static im_status read_all(im_cli *cli, const im_option_list *paths, im_diagnose *d)
{
    char line[160];
    for (size_t i = 0; i < paths->n; i++) {
        snprintf(line, sizeof line, "reading %zu of %zu: %.100s", i + 1, paths->n, paths->item[i]);
        im_cli_progress(cli, line);
        IM_TRY(im_diagnose_path(d, paths->item[i], NULL));
    }
    im_cli_progress(cli, NULL);
    return im_diagnose_finish(d);
}

static int run_diagnose(im_cli *cli, int argc, char **argv)
{
    diagnose_options o = {0};
    im_option_list paths = {0};
    im_diagnose *d = NULL;
    im_str out = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &paths);
    if (status == IM_OK && o.rules) {
        im_diagnose_rules_text(&out);
        return print(cli, &out);
    }
    if (status == IM_OK && !paths.n)
        status = im_fail(cli->ctx, IM_ERR_ARG, "which logs? give files, or - for standard input");
    if (status == IM_OK)
        status = im_diagnose_create(cli->ctx, &d);
    if (status == IM_OK)
        status = read_all(cli, &paths, d);
    if (status != IM_OK) {
        im_diagnose_free(d);
        return im_cli_exit(cli, status);
    }
    if (o.json)
        im_diagnose_json(d, &out);
    else
        im_diagnose_text(d, &out);
    bool found = im_diagnose_findings(d) > 0, unread = im_diagnose_unread(d) > 0;
    im_diagnose_free(d);
    int code = print(cli, &out);
    return code != IM_EXIT_DONE ? code : found ? IM_EXIT_FOUND : unread ? IM_EXIT_FAILED : IM_EXIT_DONE;
}

const im_cli_command im_cli_fabric_diagnose_command = {
    .name = "diagnose",
    .args = "LOG...",
    .help = "Say why a job went wrong, by its logs, and whether it used RDMA.",
    .about = "Reads any mix of logs of NCCL, RCCL, UCX, Open MPI, PyTorch (watchdog, flight recorder as JSON), XLA, nccl-tests, perftest and the "
             "kernel (dmesg),\n"
             "of one rank or of all, also with colours, under the prefixes of Kubernetes, Docker, Slurm, mpirun and torchrun, packed (.gz, .zst), or "
             "from a pipe (-).\n"
             "Prints the causes in order of likelihood, each with its lines, what followed from it, and what to type next; then the transport of "
             "each log.\n"
             "Exit code 3: a fault was found; 0: none; 1: none, and a file could not be read.\n"
             "\n"
             "  imece fabric diagnose slurm-4711.out node*.dmesg\n"
             "  kubectl logs -l job-name=train --prefix --timestamps | imece fabric diagnose -",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_diagnose,
};
