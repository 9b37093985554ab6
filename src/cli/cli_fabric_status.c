/* imece fabric status: what a machine has, and what passes over its ports. */
#include "cli/cli_fabric.h"
#include "fabric/status.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct status_options {
    const char *root;
    bool watch, json;
    double interval;
    int64_t count;
} status_options;

#define AT(member) offsetof(status_options, member)
static const im_option rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's /sys, /proc and /dev.",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "watch",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "A table of rates from the counters, again and again, until Ctrl-C.",
     .offset = AT(watch)},
    {.name = "interval",
     .type = IM_OPT_REAL,
     .fallback = "1",
     .min = 0.05,
     .max = 3600,
     .help = "Seconds between two samples of --watch.",
     .value = "S",
     .offset = AT(interval)},
    {.name = "count",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Tables of --watch; 0: no end.",
     .value = "N",
     .offset = AT(count)},
    {.name = "json",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "The result as JSON, with --watch one line for each sample. What is not known is left out; its reason stands under \"unknown\".",
     .offset = AT(json)},
};

/* ---- watch -------------------------------------------------------------------------------- */

typedef struct watcher {
    im_cli *cli;
    const status_options *o;
    im_machine *m;
    im_rdma_port *before; /* copies with counters of their own, one for each port, in order */
    im_port_rates *rates;
    size_t nports;
} watcher;

/* Keeps what the ports say now. */
static im_status keep(watcher *w)
{
    im_rdma_port *at = w->before;
    for (size_t d = 0; d < w->m->nrdma; d++)
        for (size_t p = 0; p < w->m->rdma[d].nports; p++, at++) {
            const im_rdma_port *port = &w->m->rdma[d].port[p];
            im_counter *own = at->counter ? at->counter : IM_ARENA_NEW(w->cli->arena, im_counter, port->ncounters + 1);
            if (!own)
                return im_fail(w->cli->ctx, IM_ERR_NOMEM, "no memory for the counters");
            if (port->ncounters)
                memcpy(own, port->counter, port->ncounters * sizeof *own);
            *at = *port;
            at->counter = own;
        }
    return IM_OK;
}

static void pause_until(double when)
{
    double left;
    while ((left = when - im_clock_now()) > 0 && !im_cli_signal()) {
        const double nap = left < 0.05 ? left : 0.05;
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
    }
}

static void show(const watcher *w, const im_look *look, double seconds)
{
    im_str text = {0};
    if (w->o->json) {
        im_rates_json(w->m, w->rates, seconds, &text);
    } else {
        const bool screen = w->cli->out_is_terminal;
        im_str_printf(&text, "%s%s  every %.3g s%s\n", screen ? "\033[H\033[J" : "", w->m->hostname.text ? w->m->hostname.text : w->o->root, seconds,
                      screen ? "  Ctrl-C ends" : "");
        im_rates_text(w->m, w->rates, look, &text);
    }
    fputs(im_str_text(&text), stdout);
    fflush(stdout);
    im_str_free(&text);
}

/* One sample in an arena of its own; *old, which the ports' texts of before stand in, goes away. */
static im_status sample(watcher *w, const im_root *root, im_arena **old, double seconds)
{
    im_arena *fresh = NULL;
    im_root *look = NULL;
    IM_TRY(im_arena_create(w->cli->ctx, &fresh));
    im_status status = im_root_with_arena(root, fresh, &look);
    if (status == IM_OK) {
        size_t i = 0;
        for (size_t d = 0; d < w->m->nrdma; d++)
            for (size_t p = 0; p < w->m->rdma[d].nports; p++, i++) {
                im_port_refresh(look, &w->m->rdma[d].port[p]);
                im_port_rates_of(&w->before[i], &w->m->rdma[d].port[p], seconds, &w->rates[i]);
            }
        im_root_close(look);
        status = keep(w);
    }
    im_arena_destroy(*old);
    *old = fresh;
    return status;
}

static im_status watch(watcher *w, const im_root *root, const im_look *look)
{
    im_arena *old = NULL;
    im_status status = IM_OK;
    for (size_t d = 0; d < w->m->nrdma; d++)
        w->nports += w->m->rdma[d].nports;
    if (!w->nports)
        return im_fail(w->cli->ctx, IM_ERR_CHECK, "there is no RDMA port to watch (%s/sys/class/infiniband: %s)",
                       strcmp(w->o->root, "/") ? w->o->root : "", w->m->rdma_why ? w->m->rdma_why : "no device has a port");
    w->before = IM_ARENA_NEW(w->cli->arena, im_rdma_port, w->nports);
    w->rates = IM_ARENA_NEW(w->cli->arena, im_port_rates, w->nports);
    if (!w->before || !w->rates)
        return im_fail(w->cli->ctx, IM_ERR_NOMEM, "no memory for the counters");
    IM_TRY(keep(w));
    double last = im_clock_now();
    for (int64_t n = 0; status == IM_OK && !im_cli_signal() && (!w->o->count || n < w->o->count); n++) {
        pause_until(last + w->o->interval);
        const double now = im_clock_now();
        if (im_cli_signal())
            break;
        status = sample(w, root, &old, now - last);
        if (status == IM_OK)
            show(w, look, now - last);
        last = now;
    }
    im_arena_destroy(old);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------ */

static im_status print(im_cli *cli, const status_options *o, const im_machine *m, const im_look *look)
{
    im_str text = {0};
    const im_status status = o->json ? im_status_json(cli->ctx, cli->arena, m, &text) : im_status_text(cli->ctx, cli->arena, m, look, &text);
    if (status == IM_OK)
        fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    return status;
}

static int run_status(im_cli *cli, int argc, char **argv)
{
    status_options o = {0};
    im_root *root = NULL;
    watcher w = {.cli = cli, .o = &o};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = im_root_open(cli->ctx, cli->arena, o.root, &root);
    if (status == IM_OK)
        status = im_machine_read(cli->ctx, root, &w.m);
    const char *plain = getenv("NO_COLOR");
    const im_look look = {.colour = cli->out_is_terminal && !(plain && *plain), .columns = cli->columns};
    if (status == IM_OK && o.watch) {
        im_cli_catch_signals();
        status = watch(&w, root, &look);
    } else if (status == IM_OK) {
        status = print(cli, &o, w.m, &look);
    }
    im_root_close(root);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_fabric_status_command = {
    .name = "status",
    .help = "RDMA devices and ports, GPUs, net devices and limits of a machine.",
    .about =
        "Reads /sys, /proc and /dev: no tool is run, root is not needed. State, rate, LID, GUIDs and firmware are what ibstat and `rdma link` say.\n"
        "A copy of another machine's files is read with --root; its folder commands/ may hold the outputs of `ip -j addr` (ip-addr.json) and of\n"
        "`ibv_devinfo -v` (ibv_devinfo.txt), which no file has. What is absent or may not be read is said to be unknown, with the reason.\n"
        "\n"
        "--watch needs two samples of the counters: bits are those of port_xmit_data and port_rcv_data, which Soft-RoCE has not.\n"
        "\n"
        "  imece fabric status\n"
        "  imece fabric status --watch\n"
        "  imece fabric status --root bundle/node07 --json",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_status,
};
