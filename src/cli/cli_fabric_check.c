/* imece fabric check: the table of checks on this machine, on a copy of one, or on several. */
#include "cli/cli_fabric_check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

extern char **environ;

#define AT(member) offsetof(check_options, member)
static const im_option rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's files (a support bundle).",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "peer",
     .type = IM_OPT_STRING,
     .help = "Another host to look at beside this one, and to compare with it.",
     .value = "HOST",
     .offset = AT(peer)},
    {.name = "hosts",
     .type = IM_OPT_STRING,
     .help = "Hosts to look at instead of this one: a file, one name a line.",
     .value = "FILE",
     .offset = AT(hosts)},
    {.name = "via",
     .type = IM_OPT_STRING,
     .fallback = "ssh -o BatchMode=yes {host}",
     .help = "How a command is run on a host; for instance \"mpirun -n 1 --host {host}\" or \"srun -N 1 -n 1 -w {host}\".",
     .value = "COMMAND",
     .offset = AT(via)},
    {.name = "remote",
     .type = IM_OPT_STRING,
     .fallback = "imece",
     .help = "The program imece on the other hosts.",
     .value = "PATH",
     .offset = AT(remote)},
    {.name = "expect",
     .type = IM_OPT_REAL,
     .fallback = "0",
     .min = 0,
     .max = 100000,
     .help = "Gb/s that every port for training must have: a rate that is the same everywhere may be wrong everywhere.",
     .value = "RATE",
     .offset = AT(expect)},
    {.name = "interval",
     .type = IM_OPT_REAL,
     .fallback = "1",
     .min = 0,
     .max = 3600,
     .help = "Seconds between two readings of this machine's counters; 0: one reading, which cannot tell what rises.",
     .value = "S",
     .offset = AT(interval)},
    {.name = "storage-sl",
     .type = IM_OPT_INT,
     .fallback = "-1",
     .min = -1,
     .max = 15,
     .help = "InfiniBand service level of storage; -1: as OpenSM's policy says.",
     .value = "N",
     .offset = AT(storage_sl)},
    {.name = "bandwidth",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Run ib_write_bw and ib_read_lat of perftest between all pairs of hosts, on each rail; with --peer or --hosts.",
     .offset = AT(bandwidth)},
    {.name = "seconds",
     .type = IM_OPT_INT,
     .fallback = "5",
     .min = 0,
     .max = 600,
     .help = "Of each run of ib_write_bw; 0: 1000 messages.",
     .value = "N",
     .offset = AT(seconds)},
    {.name = "size",
     .type = IM_OPT_INT,
     .fallback = "1Mi",
     .min = 2,
     .max = 1 << 30,
     .help = "Bytes of a message of ib_write_bw.",
     .value = "N",
     .offset = AT(size)},
    {.name = "all", .type = IM_OPT_BOOL, .fallback = "false", .help = "What is well too, one line each.", .offset = AT(all)},
    {.name = "html", .type = IM_OPT_STRING, .help = "Write the report as a page to this file too.", .value = "FILE", .offset = AT(html)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The report as JSON.", .offset = AT(json)},
    {.name = "list", .type = IM_OPT_BOOL, .fallback = "false", .help = "The checks there are, and nothing else.", .offset = AT(list)},
};

typedef struct checker {
    im_cli *cli;
    const check_options *o;
    im_check_options how;
    im_check_report report;
    check_places places;
    im_check_host *host;
    const im_check_host **each; /* pointers to the hosts, in order */
    const char **name;          /* how to reach each; NULL: this machine */
    im_root **root;
    size_t n, nagain;
} checker;

static int list_rows(im_cli *cli, bool json)
{
    static const char *const kinds[] = {"host", "between", "bandwidth"};
    im_str s = {0};
    if (json)
        im_str_append(&s, "[");
    for (size_t i = 0; i < im_check_table_rows; i++) {
        const im_check_row *row = &im_check_table[i];
        if (!json) {
            im_str_printf(&s, "%-16s %s\n", row->id, row->title);
            continue;
        }
        im_str_printf(&s, "%s{\"id\": \"%s\", \"kind\": \"%s\", \"title\": ", i ? ",\n " : "", row->id, kinds[row->kind]);
        im_str_json_string(&s, row->title, strlen(row->title));
        im_str_append(&s, ", \"why\": ");
        im_str_json_string(&s, row->why, strlen(row->why));
        im_str_append(&s, "}");
    }
    if (json)
        im_str_append(&s, "]\n");
    fputs(im_str_text(&s), stdout);
    im_str_free(&s);
    return im_cli_exit(cli, IM_OK);
}

/* ---- hosts ------------------------------------------------------------------------------------------ */

static void wait_for(double seconds)
{
    const double until = im_clock_now() + seconds;
    double left;
    while ((left = until - im_clock_now()) > 0 && !im_cli_signal()) {
        const double nap = left < 0.05 ? left : 0.05;
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
    }
}

static const char *user_conf(im_cli *cli)
{
    const char *named = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
    return named ? named : home ? im_arena_printf(cli->arena, "%s/.nccl.conf", home) : NULL;
}

/* A machine in a directory becomes the next host. */
static im_status add_directory(checker *c, const char *dir, const char *source)
{
    im_cli *cli = c->cli;
    im_check_host *h = &c->host[c->n];
    IM_TRY(im_root_open(cli->ctx, cli->arena, dir, &c->root[c->n]));
    c->n++;
    const bool live = im_root_is_live(h->root = c->root[c->n - 1]);
    IM_TRY(im_check_host_read(cli->ctx, h->root, source, live ? environ : NULL, live ? user_conf(cli) : NULL, h));
    if (live && c->o->interval > 0 && h->m->nrdma) {
        const double from = im_clock_now();
        wait_for(c->o->interval);
        IM_TRY(im_check_host_again(cli->ctx, h, im_clock_now() - from));
    }
    return IM_OK;
}

static im_status make_room(checker *c, size_t n)
{
    c->host = IM_ARENA_NEW(c->cli->arena, im_check_host, n + 1);
    c->each = IM_ARENA_NEW(c->cli->arena, const im_check_host *, n + 1);
    c->name = IM_ARENA_NEW(c->cli->arena, const char *, n + 1);
    c->root = IM_ARENA_NEW(c->cli->arena, im_root *, 2 * n + 2); /* --bandwidth reads each host twice */
    return c->host && c->each && c->name && c->root ? IM_OK : im_fail(c->cli->ctx, IM_ERR_NOMEM, "no memory for %zu hosts", n);
}

static im_status add_bundle(checker *c, const char *bundle)
{
    const char *dir;
    IM_TRY(im_check_place_of(&c->places, bundle, &dir));
    return add_directory(c, dir, bundle);
}

static im_status look_at_hosts(checker *c)
{
    im_option_list hosts;
    IM_TRY(im_check_hosts_read(c->cli, c->o->hosts, c->o->peer, &hosts));
    IM_TRY(make_room(c, hosts.n + 1));
    const char **dirs = IM_ARENA_NEW(c->cli->arena, const char *, hosts.n + 1);
    if (!dirs)
        return im_fail(c->cli->ctx, IM_ERR_NOMEM, "no memory for %zu hosts", hosts.n);
    if (!c->o->hosts)
        IM_TRY(add_directory(c, c->o->root, c->o->root));
    IM_TRY(im_check_fetch(&c->places, c->o, &hosts, dirs));
    for (size_t i = 0; i < hosts.n; i++)
        if (dirs[i]) {
            c->name[c->n] = hosts.item[i];
            IM_TRY(add_directory(c, dirs[i], hosts.item[i]));
        }
    return IM_OK;
}

static im_status look(checker *c, const im_option_list *bundles)
{
    if (c->o->hosts || c->o->peer)
        return look_at_hosts(c);
    IM_TRY(make_room(c, bundles->n + 1));
    for (size_t i = 0; i < bundles->n; i++)
        IM_TRY(add_bundle(c, bundles->item[i]));
    return bundles->n ? IM_OK : add_directory(c, c->o->root, c->o->root);
}

/* Host h once more: its counters after the traffic. m stays NULL when it does not answer. */
static im_status read_again(void *arg, size_t h, im_check_host *out)
{
    checker *c = arg;
    const char *dir = c->o->root;
    if (c->name[h]) {
        check_options once = *c->o;
        once.interval = 0;
        IM_TRY(im_check_fetch(&c->places, &once, &(im_option_list){.item = &c->name[h], .n = 1}, &dir));
    }
    if (!dir)
        return IM_OK;
    im_root **root = &c->root[c->n + c->nagain];
    IM_TRY(im_root_open(c->cli->ctx, c->cli->arena, dir, root));
    c->nagain++;
    return im_check_host_read(c->cli->ctx, *root, c->host[h].source, NULL, NULL, out);
}

static im_status judge(checker *c)
{
    for (size_t i = 0; i < c->n; i++) {
        c->each[i] = &c->host[i];
        IM_TRY(im_check_run(c->cli->ctx, &c->report, &c->host[i], &c->how));
    }
    if (c->n > 1)
        IM_TRY(im_check_run_between(c->cli->ctx, &c->report, c->each, c->n));
    if (!c->o->bandwidth)
        return IM_OK;
    if (c->n < 2)
        return im_fail(c->cli->ctx, IM_ERR_CHECK, "--bandwidth needs two hosts, and %s", c->n ? "one alone answered" : "none answered");
    return im_check_bandwidth(c->cli, c->o, &c->report, c->host, c->name, c->n, read_again, c);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static im_status show(checker *c)
{
    im_cli *cli = c->cli;
    im_str s = {0};
    const char *plain = getenv("NO_COLOR");
    const im_look look = {.colour = cli->out_is_terminal && !(plain && *plain), .columns = cli->out_is_terminal ? cli->columns : 110};
    im_status status = IM_OK;
    if (c->o->html) {
        im_check_html(&c->report, &s);
        status = im_file_write_atomic(cli->ctx, c->o->html, im_str_text(&s), s.len);
        im_str_free(&s);
        s = (im_str){0};
    }
    if (c->o->json)
        im_check_json(&c->report, &s);
    else
        im_check_text(&c->report, &look, c->o->all, &s);
    if (s.failed && status == IM_OK)
        status = im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the report");
    fputs(im_str_text(&s), stdout);
    im_str_free(&s);
    return status;
}

static int run_check(im_cli *cli, int argc, char **argv)
{
    check_options o = {0};
    im_option_list bundles = {0};
    checker c = {.cli = cli, .o = &o};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &bundles);
    if (status == IM_OK && o.list)
        return list_rows(cli, o.json);
    if (status == IM_OK && bundles.n && strcmp(o.root, "/") != 0)
        status = im_fail(cli->ctx, IM_ERR_ARG, "--root %s and bundles (%s): one or the other", o.root, bundles.item[0]);
    if (status == IM_OK && bundles.n && (o.hosts || o.peer))
        status = im_fail(cli->ctx, IM_ERR_ARG, "--hosts or --peer, and bundles (%s): one or the other", bundles.item[0]);
    if (status == IM_OK && o.bandwidth && !o.hosts && !o.peer)
        status = im_fail(cli->ctx, IM_ERR_ARG, "--bandwidth needs --peer HOST or --hosts FILE: perftest runs at both ends");
    c.places.cli = cli;
    c.how = (im_check_options){.expect_gbps = o.expect, .storage_sl = (int)o.storage_sl};
    im_check_report_init(cli->arena, &c.report);
    im_cli_catch_signals();
    if (status == IM_OK)
        status = look(&c, &bundles);
    if (status == IM_OK)
        status = judge(&c);
    if (status == IM_OK)
        status = show(&c);
    for (size_t i = 0; i < c.n + c.nagain; i++)
        im_root_close(c.root[i]);
    im_check_places_end(&c.places);
    const int code = im_cli_exit(cli, status);
    if (code == IM_EXIT_DONE && im_check_worst(&c.report) == IM_VERDICT_FAIL)
        return IM_EXIT_FOUND;
    return code == IM_EXIT_DONE && c.places.missing ? IM_EXIT_FAILED : code;
}

const im_cli_command im_cli_fabric_check_command = {
    .name = "check",
    .args = "[BUNDLE...]",
    .help = "What is wrong with a machine's fabric, why it matters, and what to type.",
    .about =
        "Ports, counters, addresses, variables, PCIe, GPUs, limits and quality of service: --list names the checks, docs/fabric-check.md explains\n"
        "them. Nothing is changed; but for --bandwidth no tool is run on this machine. Each finding shows the file and the value it rests on. "
        "Verdicts: fail, warn, not "
        "known (with\n"
        "the reason), ok. Exit code 3 when a check fails.\n"
        "\n"
        "Bundles (imece fabric bundle: directories or .tar.gz) are looked at instead of this machine. Several hosts are compared with each other:\n"
        "what differs between them is a finding. --hosts and --peer fetch a bundle from each host, where imece must be installed.\n"
        "--bandwidth loads the links: all pairs, one after the other, both ways; the result is compared with what rate and MTU must give, and the\n"
        "slow host, rail or path is named. Error counters are read before and after.\n"
        "\n"
        "  imece fabric check\n"
        "  imece fabric check --expect 400 --peer node02 --bandwidth\n"
        "  imece fabric check node01.tar.gz node02.tar.gz --html report.html\n"
        "  imece fabric check --hosts hosts.txt --via \"mpirun -n 1 --host {host}\"",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_check,
};
