/* imece fabric env: the variables of NCCL, UCX, Open MPI and libfabric. lint has a file of its own. */
#include "cli/cli_fabric.h"
#include "cli/cli_fabric_env.h"
#include "fabric/env_facts.h"
#include "topology/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared ---------------------------------------------------------------------------------------- */

im_status im_cli_env_version(im_cli *cli, const char *text, int *out)
{
    *out = text ? im_env_version_parse(text) : 0;
    if (text && !*out)
        return im_fail(cli->ctx, IM_ERR_ARG, "--nccl %.50s: no version of NCCL 2; such as 2.21.5, 2.21 or 22105", text);
    return IM_OK;
}

void im_cli_env_wrap(const char *text, const char *before, int width, im_str *out)
{
    size_t room = (size_t)width - strlen(before);
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n > room) {
            n = room;
            while (n > room / 2 && text[n] != ' ')
                n--;
            if (text[n] != ' ')
                n = strcspn(text, " \n"); /* one long word */
        }
        im_str_append(out, before);
        im_str_append_n(out, text, n);
        im_str_append(out, "\n");
        text += n;
        text += *text == '\n' || *text == ' ';
    }
}

void im_cli_env_machine(const im_env_facts *f, im_str *out)
{
    static const char *const link[] = {"RDMA", "InfiniBand", "RoCE"};
    bool any = false;
    for (size_t i = 0; i < f->nport; i++) {
        const im_env_port *p = &f->port[i];
        size_t same = 0;
        bool first = true;
        for (size_t k = 0; k < f->nport; k++) {
            bool like = f->port[k].link == p->link && f->port[k].gbps == p->gbps && f->port[k].active == p->active;
            same += like;
            first &= !(like && k < i);
        }
        if (!first)
            continue;
        im_str_printf(out, "%s%zu %s%s port%s", any ? ", " : "", same, p->active == 0 ? "inactive " : "", link[p->link], same > 1 ? "s" : "");
        if (p->gbps > 0 && p->active != 0)
            im_str_printf(out, " of %g Gb/s", p->gbps);
        any = true;
    }
    if (!any)
        im_str_append(out, "no RDMA device");
    if (f->ngpu)
        im_str_printf(out, ", %zu GPU%s", f->ngpu, f->ngpu > 1 ? "s" : "");
}

/* ---- suggest ------------------------------------------------------------------------------------------- */

typedef struct suggest_options {
    const char *root, *bundle, *cluster, *nccl;
    int link, form;
    bool json;
} suggest_options;

#define AT(member) offsetof(suggest_options, member)
static const im_option suggest_rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's files.",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "bundle", .type = IM_OPT_STRING, .help = "The same: a support bundle that was unpacked.", .value = "DIR", .offset = AT(bundle)},
    {.name = "cluster",
     .type = IM_OPT_STRING,
     .help = "In place of a machine: a cluster file, or the name of one; say --link too.",
     .value = "FILE",
     .offset = AT(cluster)},
    {.name = "link",
     .type = IM_OPT_CHOICE,
     .fallback = "ib",
     .choices = "ib|roce|tcp",
     .help = "With --cluster: what its network is, which the file does not say.",
     .value = "KIND",
     .offset = AT(link)},
    {.name = "nccl",
     .type = IM_OPT_STRING,
     .help = "NCCL's version; without, what the machine has, else the newest known.",
     .value = "VERSION",
     .offset = AT(nccl)},
    {.name = "form",
     .type = IM_OPT_CHOICE,
     .fallback = "all",
     .choices = "all|shell|conf|mpirun|slurm|kubernetes",
     .help = "How to write the variables.",
     .value = "HOW",
     .offset = AT(form)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = AT(json)},
};
#undef AT

static im_status of_cluster(im_cli *cli, const suggest_options *o, im_env_fabric *out)
{
    im_cluster *c;
    static const im_env_link link[] = {IM_ENV_LINK_IB, IM_ENV_LINK_ETH, IM_ENV_LINK_UNKNOWN};
    IM_TRY(im_cluster_open(cli->ctx, o->cluster, cli->clusters_dir, &c));
    *out = (im_env_fabric){.link = link[o->link],
                           .gbps = c->network.link * 8 / 1e9,
                           .nics = c->network.kind == IM_NETWORK_NONE ? 0 : c->network.nics,
                           .rails = c->network.rails,
                           .adaptive = c->network.adaptive,
                           .sharp = c->network.sharp};
    im_cluster_close(c);
    return IM_OK;
}

static void suggest_json(const im_env_advices *l, int nccl, im_str *out)
{
    char version[16];
    im_str_printf(out, "{\"nccl\": \"%s\", \"set\": [", im_env_version_text(nccl, version));
    for (int pass = 0; pass < 2; pass++) {
        size_t n = 0;
        for (size_t i = 0; i < l->n; i++) {
            const im_env_advice *x = &l->item[i];
            if (x->consider != (pass == 1))
                continue;
            im_str_printf(out, "%s\n{", n++ ? "," : "");
            if (x->name) {
                im_str_printf(out, "\"name\": \"%s\", \"value\": ", x->name);
                im_str_json_string(out, x->value, strlen(x->value));
                im_str_append(out, ", ");
            }
            im_str_append(out, "\"reason\": ");
            im_str_json_string(out, x->reason, strlen(x->reason));
            im_str_append(out, "}");
        }
        im_str_append(out, pass ? "], \"commands\": [" : "], \"consider\": [");
    }
    for (size_t i = 0; i < l->ncommand; i++) {
        im_str_append(out, i ? ", " : "");
        im_str_json_string(out, l->command[i], strlen(l->command[i]));
    }
    im_str_append(out, "]}\n");
}

static void suggest_text(im_cli *cli, const im_env_advices *l, im_str *out)
{
    int width = cli->columns < 60 ? 60 : cli->columns > 110 ? 110 : cli->columns;
    for (int pass = 0; pass < 2; pass++) {
        im_str_append(out, pass ? "\nto consider\n" : "to set\n");
        size_t n = 0;
        for (size_t i = 0; i < l->n; i++) {
            const im_env_advice *x = &l->item[i];
            if (x->consider != (pass == 1))
                continue;
            n++;
            if (x->name)
                im_str_printf(out, "  %s=%s\n", x->name, x->value);
            im_cli_env_wrap(x->reason, x->name ? "      " : "  ", width, out);
        }
        if (!n)
            im_str_append(out, "  nothing: the defaults are right\n");
    }
    for (int form = 0; form < IM_ENV_FORMS; form++) {
        im_str_printf(out, "\n---- %s\n", im_env_form_names[form]);
        im_env_write(l, (im_env_form)form, out);
    }
    if (l->ncommand)
        im_str_append(out, "\n---- classes of service (an administrator's; nothing of it is run here)\n");
    for (size_t i = 0; i < l->ncommand; i++)
        im_str_printf(out, "%s\n", l->command[i]);
}

static im_status suggest(im_cli *cli, const suggest_options *o, const bool *given)
{
    im_env_facts facts;
    im_env_fabric net;
    im_env_advices advices;
    int nccl;
    im_str out = {0};
    IM_TRY(im_cli_env_version(cli, o->nccl, &nccl));
    if (o->cluster && (o->bundle || given[0]))
        return im_fail(cli->ctx, IM_ERR_ARG, "--cluster in place of a machine: not with --root or --bundle");
    if (!o->cluster && given[3])
        return im_fail(cli->ctx, IM_ERR_ARG, "--link goes with --cluster: a machine tells what its ports are");
    if (o->bundle && given[0])
        return im_fail(cli->ctx, IM_ERR_ARG, "--root and --bundle mean the same: one of them");
    if (o->cluster)
        IM_TRY(of_cluster(cli, o, &net));
    else
        IM_TRY(im_env_facts_read(cli->ctx, cli->arena, o->bundle ? o->bundle : o->root, &facts));
    IM_TRY(im_env_suggest(cli->ctx, cli->arena, o->cluster ? NULL : &facts, o->cluster ? &net : NULL, nccl, &advices));
    if (!nccl)
        nccl = !o->cluster && facts.nccl ? facts.nccl : IM_ENV_NCCL_NEWEST;
    if (o->json) {
        suggest_json(&advices, nccl, &out);
    } else if (o->form) {
        im_env_write(&advices, (im_env_form)(o->form - 1), &out);
    } else {
        char version[16];
        im_str_printf(&out, "for NCCL %s%s\n", im_env_version_text(nccl, version),
                      o->nccl || (!o->cluster && facts.nccl) ? "" : " (not known: the newest; --nccl VERSION says another)");
        if (!o->cluster) {
            im_str_printf(&out, "machine %s: ", facts.root);
            im_cli_env_machine(&facts, &out);
            im_str_append(&out, "\n");
        }
        im_str_append(&out, "\n");
        suggest_text(cli, &advices, &out);
    }
    fputs(im_str_text(&out), stdout);
    im_status status = out.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the text") : IM_OK;
    im_str_free(&out);
    return status;
}

static int run_suggest(im_cli *cli, int argc, char **argv)
{
    suggest_options o;
    bool given[IM_COUNT_OF(suggest_rows)] = {false};
    im_status status = im_cli_options(cli, argc, argv, &o, given, NULL);
    if (status == IM_OK)
        status = suggest(cli, &o, given);
    return im_cli_exit(cli, status);
}

static const im_cli_command suggest_command = {
    .name = "suggest",
    .help = "The variables in which this fabric needs something else than the defaults.",
    .about =
        "Prints the smallest set with the reason for each, what to consider and under which condition, all of it as shell exports, nccl.conf, mpirun "
        "arguments, for Slurm and for Kubernetes, and commands for classes of service. It runs none of them.\n\nimece fabric env suggest --nccl 2.21 "
        "--form shell\n"
        "imece fabric env suggest --cluster h100 --link ib",
    .rows = suggest_rows,
    .nrows = IM_COUNT_OF(suggest_rows),
    .run = run_suggest,
};

/* ---- explain --------------------------------------------------------------------------------------------- */

typedef struct explain_options {
    bool json;
} explain_options;

static const im_option explain_rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "One JSON object for each name.", .offset = offsetof(explain_options, json)},
};

static int run_explain(im_cli *cli, int argc, char **argv)
{
    explain_options o;
    im_option_list rest = {0};
    im_str out = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK && !rest.n)
        status = im_fail(cli->ctx, IM_ERR_ARG, "which variable? imece fabric env explain NAME...");
    for (size_t i = 0; i < rest.n && status == IM_OK; i++)
        status = o.json ? im_env_explain_json(cli->ctx, cli->arena, rest.item[i], &out) : im_env_explain(cli->ctx, cli->arena, rest.item[i], &out);
    fputs(im_str_text(&out), stdout);
    im_str_free(&out);
    return im_cli_exit(cli, status);
}

static const im_cli_command explain_command = {
    .name = "explain",
    .args = "NAME...",
    .help = "What a variable does, takes and is by default, in which versions.",
    .about = "imece fabric env explain NCCL_IB_GID_INDEX",
    .rows = explain_rows,
    .nrows = IM_COUNT_OF(explain_rows),
    .run = run_explain,
};

static const im_cli_command *const env_commands[] = {&im_cli_fabric_env_lint_command, &suggest_command, &explain_command};

const im_cli_command im_cli_fabric_env_command = {
    .name = "env",
    .help = "The variables of NCCL, UCX, Open MPI and libfabric: judge, suggest, explain.",
    .sub = env_commands,
    .nsub = IM_COUNT_OF(env_commands),
};
