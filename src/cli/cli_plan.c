/* imece plan: what a layout does, before it runs. */
#include "cli/cli_plan_parts.h"
#include "cli/layout_rows.h"
#include "train/planned.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- imece plan draw --------------------------------------------------------------- */

typedef struct draw_options {
    im_cli_layout layout; /* first: see layout_rows.h */
    const char *svg;
    int64_t width;
    bool json;
} draw_options;

#define AT(field) offsetof(draw_options, field)
static const im_option draw_rows[] = {
    IM_CLI_LAYOUT_ROWS,
    {"svg", IM_OPT_STRING, NULL, 0, 0, NULL, "Write the picture to this file too.", "FILE", AT(svg), 0, false, "Picture"},
    {"width", IM_OPT_INT, "0", 0, 1000, NULL, "Characters of a row (0: the terminal's).", "N", AT(width), 0, false, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "Print the step's time, the bubble and the spans as JSON.", NULL, AT(json), 0, false, NULL},
};
#undef AT

static void print_json(const im_drawing *d, const im_train_rates *r, im_str *out)
{
    static const char *const kind[IM_DRAW_KIND_COUNT] = {"forward", "backward", "weight", "head", "update", "communication"};
    im_str_printf(out, "{\"step_s\": %.9g, \"bubble\": %.6g, \"ranks\": %d, \"flops_per_s\": %.6g, \"bytes_per_s\": %.6g, \"spans\": [", d->end,
                  im_drawing_bubble(d), d->ranks, r->pace.flops, r->pace.bytes);
    for (size_t i = 0; i < d->n; i++) {
        const im_draw_span *s = &d->span[i];
        im_str_printf(out, "%s\n{\"rank\": %d, \"kind\": \"%s\", \"chunk\": %d, \"micro_batch\": %d, \"start_s\": %.9g, \"end_s\": %.9g}",
                      i ? "," : "", s->rank, kind[s->kind], s->chunk, s->mb, s->start, s->end);
    }
    im_str_append(out, "]}\n");
}

static im_status show(im_cli *cli, const draw_options *o, const im_plan *p, const im_drawing *d, const im_train_rates *r)
{
    im_str text = {0};
    char title[200];
    snprintf(title, sizeof title, "planned, %s%s", im_schedule_of(p->schedule)->name, p->mesh.pp == 1 ? "" : " pipeline");
    if (o->json) {
        print_json(d, r, &text);
    } else {
        int width = o->width ? (int)o->width : cli->columns - 14;
        im_drawing_text(d, title, width, cli->out_is_terminal && cli->colour, &text);
        double formula = im_schedule_of(p->schedule)->bubble(p->mesh.pp, im_plan_micro_batches(p, 0), im_plan_chunks(p));
        if (formula >= 0)
            im_str_printf(&text, "%s of equal stages and free messages: bubble %.1f %%\n", im_schedule_of(p->schedule)->name, 100 * formula);
        im_str_printf(&text, "priced with this machine: %.1f GFLOP/s and %.1f GB/s a rank of %d thread%s\n", r->pace.flops / 1e9, r->pace.bytes / 1e9,
                      p->threads, p->threads > 1 ? "s" : "");
    }
    fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    if (!o->svg)
        return IM_OK;
    im_str svg = {0};
    const char *titles[] = {title};
    im_drawing_svg(&d, titles, 1, &svg);
    im_status status =
        svg.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a picture") : im_file_write_atomic(cli->ctx, o->svg, svg.data, svg.len);
    im_str_free(&svg);
    return status;
}

static im_status draw(im_cli *cli, const draw_options *o, const im_train_options *t)
{
    im_model *m;
    im_drawing d = {0};
    im_plan p;
    im_train_rates rates = {.latency = 10e-6};
    im_status status;
    IM_TRY(im_cli_layout_plan(cli, t, &m, &p));
    int cores = im_machine_cores(), n = im_mesh_size(&p.mesh);
    p.threads = t->threads ? (int)t->threads : cores > n ? cores / n : 1;
    IM_TRY_GOTO(im_plan_validate(cli->ctx, &p), model);
    IM_TRY_GOTO(im_cli_machine_rates(cli->ctx, p.precision, p.threads, &rates.pace.flops, &rates.pace.bytes), model);
    IM_TRY_GOTO(im_train_planned(cli->ctx, &p, &rates, &d), model);
    status = show(cli, o, &p, &d, &rates);
    im_drawing_free(&d);
model:
    im_model_close(m);
    return status;
}

static int run_draw(im_cli *cli, int argc, char **argv)
{
    draw_options o;
    bool given[IM_COUNT_OF(draw_rows)] = {false};
    im_option_list rest;
    im_train_options t;
    im_status status = im_cli_options(cli, argc, argv, &o, given, &rest);
    if (status == IM_OK)
        status = im_cli_layout_options(cli, &rest, draw_rows, IM_COUNT_OF(draw_rows), &o.layout, given, &t);
    if (status == IM_OK)
        status = draw(cli, &o, &t);
    return im_cli_exit(cli, status);
}

static const im_cli_command draw_command = {
    .name = "draw",
    .args = "[RUN|PLAN.yaml]",
    .help = "Draw a step: a row a rank, when it computes, updates, communicates, waits.",
    .about =
        "The picture comes from running the programs that training executes in time, each op priced with this machine's measured rates, messages as "
        "copies "
        "in memory. Numbers are micro-batches.\n\nimece plan draw --model gpt2 --pp 4 --global-batch 8\nimece plan draw run --pipeline gpipe --svg "
        "gpipe.svg",
    .rows = draw_rows,
    .nrows = IM_COUNT_OF(draw_rows),
    .run = run_draw,
};

static const im_cli_command *const sub[] = {&draw_command, &im_cli_plan_export_command};
const im_cli_command im_cli_plan_command = {
    .name = "plan",
    .help = "Find the best layout of a model on a cluster; look at plans before they run.",
    .about =
        "Enumerates every layout (tp, pp, dp, schedule and chunks, stage boundaries, micro-batch, ZeRO, sequence parallelism, recompute, order of "
        "the "
        "ranks), discards by bounds what cannot be among the best, and prints the best, what is refused and why, and what was assumed. The best one "
        "that this version runs is written as a plan. Exit code 3: nothing fits; then what would make it fit is told.\n\n"
        "imece plan --model gpt3-175b --cluster selene --devices 1024 --global-batch 1536 --seq-len 2048\n"
        "imece plan --model llama2-7b --cluster a100-80 --cluster h100 --devices 8 --global-batch 64 --seq-len 4096 --fix zero=1 --objective memory",
    .rows = im_cli_plan_rows,
    .nrows = IM_CLI_PLAN_ROWS,
    .run = im_cli_plan_run,
    .sub = sub,
    .nsub = IM_COUNT_OF(sub),
};
