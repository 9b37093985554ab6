/* imece fabric export: the fabric as Prometheus text, once, into a file, or over HTTP. */
#include "cli/cli_fabric.h"
#include "fabric/export.h"
#include "fabric/serve.h"

#include <string.h>
#include <time.h>

typedef struct export_options {
    const char *root, *textfile, *listen, *nccl, *run;
    bool once, beside_node_exporter;
    double interval, sample, nccl_age, expect;
} export_options;

#define AT(member) offsetof(export_options, member)
static const im_option rows[] = {
    {.name = "root",
     .type = IM_OPT_STRING,
     .fallback = "/",
     .help = "The machine: / is this one, another directory a copy of one's /sys, /proc and /dev.",
     .value = "DIR",
     .offset = AT(root)},
    {.name = "once", .type = IM_OPT_BOOL, .fallback = "false", .help = "Print the metrics and end.", .offset = AT(once)},
    {.name = "textfile",
     .type = IM_OPT_STRING,
     .help = "Write them into this file, whole or not at all: for node_exporter's textfile collector. Its name ends in .prom.",
     .value = "FILE",
     .offset = AT(textfile)},
    {.name = "listen",
     .type = IM_OPT_STRING,
     .help = "Answer Prometheus at http://ADDRESS/metrics until Ctrl-C: 127.0.0.1:9410, or another address that is said. A port alone is on "
             "127.0.0.1; port 0 "
             "is one that is free.",
     .value = "ADDRESS",
     .offset = AT(listen)},
    {.name = "interval",
     .type = IM_OPT_REAL,
     .fallback = "0",
     .min = 0,
     .max = 86400,
     .help = "Write --textfile again every so many seconds, until Ctrl-C; 0: once.",
     .value = "S",
     .offset = AT(interval)},
    {.name = "sample",
     .type = IM_OPT_REAL,
     .fallback = "1",
     .min = 0,
     .max = 3600,
     .help =
         "Seconds between the two readings that tell how busy a PCIe link is, where there is no earlier one; 0: one reading, and that is left out.",
     .value = "S",
     .offset = AT(sample)},
    {.name = "beside-node-exporter",
     .type = IM_OPT_BOOL,
     .fallback = "false",
     .help = "Leave out the metrics that node_exporter's infiniband collector has itself.",
     .offset = AT(beside_node_exporter)},
    {.name = "expect",
     .type = IM_OPT_REAL,
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "Gb/s that each active port must have: the check of that name. 0: not asked.",
     .value = "GBPS",
     .offset = AT(expect)},
    {.name = "nccl",
     .type = IM_OPT_STRING,
     .help = "Add the files (*.prom) of NCCL's inspector plug-in in this directory.",
     .value = "DIR",
     .offset = AT(nccl)},
    {.name = "nccl-age",
     .type = IM_OPT_REAL,
     .fallback = "300",
     .min = 0,
     .max = 1e9,
     .help = "Leave out files of --nccl that are older than so many seconds: their job has ended. 0: none is too old.",
     .value = "S",
     .offset = AT(nccl_age)},
    {.name = "run", .type = IM_OPT_STRING, .help = "Add the last step of a training run in this directory.", .value = "DIR", .offset = AT(run)},
};

static void pause_for(double seconds)
{
    const double when = im_clock_now() + seconds;
    double left;
    while ((left = when - im_clock_now()) > 0 && !im_cli_signal()) {
        const double nap = left < 0.05 ? left : 0.05;
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
    }
}

/* A reading that is only compared with. */
static im_status first_reading(im_cli *cli, const export_options *o, im_exporter *x)
{
    im_str text = {0};
    if (o->sample <= 0)
        return IM_OK;
    const im_status status = im_exporter_collect(cli->ctx, x, im_clock_now(), &text);
    im_str_free(&text);
    pause_for(o->sample < 0.5 ? 0.5 : o->sample);
    return status;
}

static im_status write_out(im_cli *cli, const export_options *o, im_exporter *x)
{
    im_str text = {0};
    im_status status = im_exporter_collect(cli->ctx, x, im_clock_now(), &text);
    if (status == IM_OK && o->textfile)
        status = im_file_write_atomic(cli->ctx, o->textfile, im_str_text(&text), text.len);
    else if (status == IM_OK)
        fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    return status;
}

static im_status work(im_cli *cli, const export_options *o, im_exporter *x)
{
    im_cli_catch_signals();
    IM_TRY(first_reading(cli, o, x));
    while (!im_cli_signal()) {
        IM_TRY(write_out(cli, o, x));
        if (!o->textfile || o->interval <= 0)
            break;
        pause_for(o->interval);
    }
    return IM_OK;
}

/* ---- over HTTP --------------------------------------------------------------------------------- */

static im_status page(void *arg, im_context *ctx, im_str *out)
{
    return im_exporter_collect(ctx, arg, im_clock_now(), out);
}

static void ready(void *arg, const char *url)
{
    (void)arg;
    printf("listening on %s\n", url);
    fflush(stdout);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

static im_status serve(im_cli *cli, const export_options *o, im_exporter *x)
{
    im_str text = {0};
    const im_serve_options serving = {
        .listen = o->listen, .path = "/metrics", .type = IM_PROM_CONTENT_TYPE, .page = page, .ready = ready, .stop = stop, .arg = x};
    im_cli_catch_signals();
    const im_status status = im_exporter_collect(cli->ctx, x, im_clock_now(), &text); /* what cannot be read at all is said now, not to each scrape */
    im_str_free(&text);
    return status == IM_OK ? im_serve(cli->ctx, &serving) : status;
}

/* ---- the command -------------------------------------------------------------------------------- */

static im_status valid(im_cli *cli, const export_options *o)
{
    const size_t n = o->textfile ? strlen(o->textfile) : 0;
    if (o->once + (o->textfile != NULL) + (o->listen != NULL) != 1)
        return im_fail(cli->ctx, IM_ERR_ARG, "one of --once, --textfile FILE and --listen 127.0.0.1:9410 says where the metrics go");
    if (o->textfile && (n < 6 || strcmp(o->textfile + n - 5, ".prom") != 0))
        return im_fail(cli->ctx, IM_ERR_ARG, "--textfile %s: node_exporter reads names that end in .prom", o->textfile);
    if (o->interval > 0 && !o->textfile)
        return im_fail(cli->ctx, IM_ERR_ARG, "--interval goes with --textfile");
    return IM_OK;
}

static int run_export(im_cli *cli, int argc, char **argv)
{
    export_options o = {0};
    im_exporter *x = NULL;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = valid(cli, &o);
    const im_export_options export = {.root = o.root,
                                      .beside_node_exporter = o.beside_node_exporter,
                                      .nccl = o.nccl,
                                      .run = o.run,
                                      .expect_gbps = o.expect,
                                      .nccl_age = o.nccl_age};
    if (status == IM_OK)
        status = im_exporter_create(cli->ctx, &export, &x);
    if (status == IM_OK)
        status = o.listen ? serve(cli, &o, x) : work(cli, &o, x);
    im_exporter_destroy(x);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_fabric_export_command = {
    .name = "export",
    .help = "Ports, counters, PCIe links, checks' verdicts and NCCL's times as Prometheus metrics.",
    .about =
        "Names and labels are those of node_exporter's infiniband collector where it has them (node_infiniband_*), else imece_fabric_*. Units are\n"
        "bytes, seconds and ratios of 1. What cannot be read has no sample. node_exporter refuses a series that it exports itself: in a directory\n"
        "of its textfile collector use --beside-node-exporter, or run it with --no-collector.infiniband.\n"
        "\n"
        "How busy a card's PCIe link is comes from two readings of its ports' counters; with --listen each request is compared with\n"
        "the one before.\n"
        "\n"
        "  imece fabric export --once\n"
        "  imece fabric export --textfile /var/lib/prometheus/node-exporter/fabric.prom --beside-node-exporter --interval 15\n"
        "  imece fabric export --listen 127.0.0.1:9410\n"
        "  imece fabric export --once --nccl /var/run/nccl-inspector",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_export,
};
