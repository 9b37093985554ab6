/* imece fabric bundle: what status, check and env read of a machine, copied to take along. */
#include "cli/cli_fabric.h"
#include "cli/cli_fabric_jobs.h"
#include "fabric/bundle.h"
#include "fabric/check.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

typedef struct bundle_options {
    const char *root;
    double interval;
    bool commands;
} bundle_options;

#define AT(member) offsetof(bundle_options, member)
static const im_option rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's files.",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "interval",
     .type = IM_OPT_REAL,
     .fallback = "1",
     .min = 0,
     .max = 3600,
     .help = "Seconds between two readings of this machine's counters, so that a check can tell what rises; 0: one reading.",
     .value = "S",
     .offset = AT(interval)},
    {.name = "commands",
     .type = IM_OPT_BOOL,
     .fallback = "true",
     .help = "Run ip, ibv_devinfo, rdma, mlnx_qos, dcb and smpquery, where they are, for what no file tells. Each only asks.",
     .offset = AT(commands)},
};

typedef struct packer {
    im_cli *cli;
    const bundle_options *o;
    im_bundle_to to;
    char *part; /* its name until it is whole */
    im_root *root;
    im_machine *m;
    size_t files;
} packer;

/* ---- commands ------------------------------------------------------------------------------------- */

static im_status run_one(packer *p, const char *file, char *const *argv)
{
    im_cli_job job;
    IM_TRY(im_cli_job_run(p->cli->ctx, argv, IM_CLI_STDERR_DROP, 20, &job));
    im_status status = IM_OK;
    if (job.started && job.code == 0 && !job.late && job.out.len) {
        status = im_bundle_add(p->cli->ctx, &p->to, im_arena_printf(p->cli->arena, IM_BUNDLE_DIR "/%s", file), im_str_text(&job.out), job.out.len);
        p->files++;
    }
    im_cli_job_free(&job);
    return status;
}

#define RUN(file, ...) IM_TRY(run_one(p, file, (char *[]){__VA_ARGS__, NULL}))

static im_status ask_port(packer *p, const im_rdma_device *d, const im_rdma_port *port)
{
    im_arena *a = p->cli->arena;
    char *net = port->netdev ? im_arena_strdup(a, port->netdev) : NULL, *dev = im_arena_strdup(a, d->name);
    char *number = im_arena_printf(a, "%d", port->number);
    if (port->ethernet && net) {
        RUN(im_arena_printf(a, "mlnx_qos-%s.txt", net), "mlnx_qos", "-i", net);
        RUN(im_arena_printf(a, "dcb-pfc-%s.txt", net), "dcb", "pfc", "show", "dev", net);
        RUN(im_arena_printf(a, "dcb-app-%s.txt", net), "dcb", "app", "show", "dev", net);
    } else if (port->lid.is_number && port->lid.value > 0) {
        char *lid = im_arena_printf(a, "%lld", (long long)port->lid.value);
        RUN(im_arena_printf(a, "smpquery-sl2vl-%s-%d.txt", dev, port->number), "smpquery", "-C", dev, "-P", number, "sl2vl", lid, number);
        RUN(im_arena_printf(a, "smpquery-vlarb-%s-%d.txt", dev, port->number), "smpquery", "-C", dev, "-P", number, "vlarb", lid, number);
    }
    return IM_OK;
}

static im_status ask(packer *p)
{
    RUN("ip-addr.json", "ip", "-j", "addr");
    if (!p->m->nrdma)
        return IM_OK;
    RUN("ibv_devinfo.txt", "ibv_devinfo", "-v");
    RUN("rdma-link.json", "rdma", "-j", "link");
    for (size_t i = 0; i < p->m->nrdma; i++)
        for (size_t k = 0; k < p->m->rdma[i].nports; k++)
            IM_TRY(ask_port(p, &p->m->rdma[i], &p->m->rdma[i].port[k]));
    return IM_OK;
}

/* Of this process: variables of communication libraries alone. */
static im_status add_variables(packer *p)
{
    im_str s = {0};
    for (char **e = environ; *e; e++) {
        const size_t n = strcspn(*e, "=");
        char *name = im_arena_printf(p->cli->arena, "%.*s", (int)n, *e);
        if (name && im_env_is_ours(name) && !strchr(*e, '\n'))
            im_str_printf(&s, "%s\n", *e);
    }
    const im_status status = im_bundle_add(p->cli->ctx, &p->to, IM_CHECK_ENV_FILE, im_str_text(&s), s.len);
    im_str_free(&s);
    return status;
}

/* The counters as they were when the machine was read; the tree gets those of now. */
static im_status add_counters(packer *p, double since)
{
    im_str s = {0};
    const double left = p->o->interval - (im_clock_now() - since);
    if (left > 0)
        nanosleep(&(struct timespec){.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)}, NULL);
    im_check_counters_write(p->m, im_clock_now() - since, &s);
    const im_status status = im_bundle_add(p->cli->ctx, &p->to, IM_CHECK_COUNTERS_FILE, im_str_text(&s), s.len);
    im_str_free(&s);
    return status;
}

/* ---- where it goes ------------------------------------------------------------------------------------ */

static bool is_archive(const char *out)
{
    const size_t n = strlen(out);
    return strcmp(out, "-") == 0 || (n > 7 && strcmp(out + n - 7, ".tar.gz") == 0) || (n > 4 && strcmp(out + n - 4, ".tgz") == 0);
}

static im_status open_to(packer *p, const char *out)
{
    im_context *ctx = p->cli->ctx;
    if (!is_archive(out)) {
        if (im_path_exists(out))
            return im_fail(ctx, IM_ERR_ARG, "%s is there already: a bundle goes into a new directory, or a file .tar.gz", out);
        p->to.dir = p->part;
        return im_mkdirs(ctx, p->part);
    }
    const int fd = strcmp(out, "-") == 0 ? dup(1) : open(p->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot be written", out);
    return im_tar_create(ctx, fd, &p->to.tar);
}

/* What was written gets its name when it is whole; else it goes. */
static im_status settle(packer *p, const char *out, im_status status)
{
    im_context *ctx = p->cli->ctx;
    const bool begun = p->to.dir || p->to.tar;
    const im_status ended = im_tar_finish(p->to.tar);
    status = status == IM_OK ? ended : status;
    if (!begun || strcmp(out, "-") == 0)
        return status;
    if (status == IM_OK && rename(p->part, out))
        status = im_fail_errno(ctx, "%s: cannot be written", out);
    if (status != IM_OK) {
        im_context *own; /* what is told is why */
        if (im_context_create(&own) == IM_OK) {
            im_status ignored = im_remove_tree(own, p->part);
            (void)ignored;
            im_context_destroy(own);
        }
    }
    return status;
}

static im_status pack(packer *p, const char *out)
{
    const double since = im_clock_now();
    p->part =
        im_arena_printf(p->cli->arena, "%.*s.part-%d", (int)(strlen(out) - (strlen(out) > 1 && out[strlen(out) - 1] == '/')), out, (int)getpid());
    if (!p->part)
        return im_fail(p->cli->ctx, IM_ERR_NOMEM, "no memory for a name");
    IM_TRY(im_root_open(p->cli->ctx, p->cli->arena, p->o->root, &p->root));
    IM_TRY(im_machine_read(p->cli->ctx, p->root, &p->m));
    IM_TRY(open_to(p, out));
    if (im_root_is_live(p->root)) {
        if (p->o->commands)
            IM_TRY(ask(p));
        IM_TRY(add_variables(p));
        if (p->o->interval > 0 && p->m->nrdma)
            IM_TRY(add_counters(p, since));
    }
    size_t copied = 0;
    IM_TRY(im_bundle_write(p->cli->ctx, p->root, &p->to, &copied));
    p->files += copied;
    return IM_OK;
}

static int run_bundle(im_cli *cli, int argc, char **argv)
{
    bundle_options o = {0};
    im_option_list rest = {0};
    packer p = {.cli = cli, .o = &o};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK && rest.n != 1)
        status = im_fail(cli->ctx, IM_ERR_ARG, "imece fabric bundle OUT: one name, of a new directory or of a file .tar.gz; - is standard output");
    if (status == IM_OK && strcmp(rest.item[0], "-") == 0 && isatty(1))
        status = im_fail(cli->ctx, IM_ERR_ARG, "standard output is a terminal: imece fabric bundle - > FILE.tar.gz");
    if (status == IM_OK) {
        im_cli_catch_signals();
        status = settle(&p, rest.item[0], pack(&p, rest.item[0]));
    }
    im_root_close(p.root);
    if (status == IM_OK && strcmp(rest.item[0], "-") != 0)
        printf("%s: %zu files of %s\n", rest.item[0], p.files, p.m->hostname.text ? p.m->hostname.text : o.root);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_fabric_bundle_command = {
    .name = "bundle",
    .args = "OUT",
    .help = "Copy what the checks read of a machine, to look at it elsewhere.",
    .about =
        "OUT is a new directory, a file .tar.gz, or - for standard output. In it: parts of /sys, /proc and /dev, names of NCCL's libraries, "
        "OpenSM's\n"
        "and NCCL's settings, variables of communication libraries, and what a few commands print. Host name, addresses and GUIDs are in it; keys,\n"
        "logs and user data are not. As root it is complete: configuration spaces of PCI functions and smpquery need it.\n"
        "\n"
        "  sudo imece fabric bundle node07.tar.gz\n"
        "  imece fabric check node07.tar.gz\n"
        "  imece fabric status --root node07/",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_bundle,
};
