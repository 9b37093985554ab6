/* imece simulate: a plan's step on a cluster that need not be here. */
#include "cli/layout_rows.h"
#include "plan/estimate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct simulate_options {
    im_cli_layout layout; /* first: see layout_rows.h */
    const char *cluster, *svg, *trace;
    int attention, overlap;
    double tokens, restart;
    bool explain, whole, json;
} simulate_options;

#define AT(field) offsetof(simulate_options, field)
static const im_option rows[] = {
    IM_CLI_LAYOUT_ROWS,
    {"cluster", IM_OPT_STRING, NULL, 0, 0, NULL, "The machines: a cluster file (docs/clusters.md), or the name of one.", "C", AT(cluster), 'c', false,
     "Machines"},
    {"attention", IM_OPT_CHOICE, "fused", 0, 0, "fused|unfused", "Unfused: the scores go through memory, as before flash attention.", "HOW",
     AT(attention), 0, false, NULL},
    {"overlap", IM_OPT_CHOICE, "all", 0, 0, "all|dp|none",
     "Communication that goes on while a device computes: all, as here; of dp alone; or none, as in "
     "some other systems.",
     "WHICH", AT(overlap), 0, false, NULL},
    {"tokens", IM_OPT_REAL, "0", 0, 1e18, NULL, "Tell the days until so many tokens are trained on (0: not told).", "N", AT(tokens), 0, false,
     "Result"},
    {"restart", IM_OPT_REAL, "300", 0, 1e7, NULL, "Seconds from a failure until the run goes on, when the cluster says how often devices fail.", "S",
     AT(restart), 0, false, NULL},
    {"explain", IM_OPT_BOOL, "false", 0, 0, NULL, "Print the step as a sum of parts, each with its formula and inputs.", NULL, AT(explain), 0, false,
     NULL},
    {"svg", IM_OPT_STRING, NULL, 0, 0, NULL, "Write the pipeline as a picture to this file.", "FILE", AT(svg), 0, false, NULL},
    {"trace", IM_OPT_STRING, NULL, 0, 0, NULL, "Write all spans to this file, for Perfetto.", "FILE", AT(trace), 0, false, NULL},
    {"whole", IM_OPT_BOOL, "false", 0, 0, NULL, "Every rank for itself, not one for all that do the same: slow, to compare.", NULL, AT(whole), 0,
     false, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "The result as one JSON object.", NULL, AT(json), 0, false, NULL},
};
#undef AT

typedef struct result {
    const simulate_options *o;
    const im_plan *plan;
    const im_cluster *c;
    im_estimate e;
    double room;     /* bytes of a device that a plan gets */
    double save;     /* seconds of a checkpoint; 0: not known */
    im_goodput good; /* of failures, when they are known */
    bool failures;
} result;

static void money_and_failures(result *r)
{
    double mtbf = r->c->device_mtbf / r->e.devices;
    r->room = r->c->device.memory - r->c->device.memory_reserved;
    if (r->c->storage_write > 0) /* master, two moments, in fp32 */
        r->save = 12.0 * (double)im_model_param_count(r->plan->model) / r->c->storage_write;
    r->failures = r->save > 0 && r->c->device_mtbf > 0;
    if (r->failures)
        r->good = im_goodput_of(r->save, mtbf, r->o->restart);
}

static double tokens_per_s(const result *r)
{
    return r->e.tokens / r->e.step;
}

static double days(const result *r)
{
    return r->o->tokens / tokens_per_s(r) / 86400 / (r->failures ? r->good.goodput : 1);
}

/* ---- text -------------------------------------------------------------------------------- */

static const char *seconds_text(char *buf, size_t n, double s)
{
    if (s >= 1)
        snprintf(buf, n, "%.3f s", s);
    else if (s >= 1e-3)
        snprintf(buf, n, "%.3f ms", s * 1e3);
    else
        snprintf(buf, n, "%.2f us", s * 1e6);
    return buf;
}

static void print_head(const result *r, im_str *out)
{
    const im_plan *p = r->plan;
    const im_mesh *m = &p->mesh;
    im_str_printf(out, "%d of %d devices of %s (%s): tp %d x pp %d x dp %d", r->e.devices, im_cluster_devices(r->c), r->c->name, r->c->device.name,
                  m->tp, m->pp, m->dp);
    if (m->pp > 1)
        im_str_printf(out, ", %s", im_schedule_of(p->schedule)->name);
    if (im_plan_chunks(p) > 1)
        im_str_printf(out, " of %d chunks", im_plan_chunks(p));
    im_str_printf(out, ", ZeRO %d, %d micro-batch%s of %lld x %lld tokens\n", p->zero, im_plan_micro_batches(p, 0),
                  im_plan_micro_batches(p, 0) > 1 ? "es" : "", (long long)p->micro_batch, (long long)p->seq_len);
}

static void print_time(const result *r, im_str *out)
{
    const im_estimate *e = &r->e;
    char buf[64];
    im_str_printf(out, "step        %s, %.0f tokens/s, MFU %.1f %%, HFU %.1f %% of %.4g TFLOP/s a device\n", seconds_text(buf, sizeof buf, e->step),
                  tokens_per_s(r), 100 * e->mfu, 100 * e->hfu, e->peak / 1e12);
    im_str_printf(out, "of it       compute %.1f %% (update %.1f %%), bubble %.1f %%", 100 * e->mean.compute / e->step,
                  100 * e->mean.update / e->step, 100 * e->mean.bubble / e->step);
    for (int a = 0; a < IM_AXIS_COUNT; a++)
        if (e->mean.exposed[a] > 0)
            im_str_printf(out, ", %s %.1f %%", im_axis_name((im_axis)a), 100 * e->mean.exposed[a] / e->step);
    im_str_append(out, e->fold.n > 1 ? " (mean of the stages; communication that nothing hides)\n" : " (communication that nothing hides)\n");
}

static void print_memory(const result *r, im_str *out)
{
    const im_estimate *e = &r->e;
    const im_estimate_stage *g = &e->stage[e->fullest];
    char a[32], b[32];
    im_str step = {0};
    im_str_printf(out, "memory      %s a rank%s", im_format_bytes(a, sizeof a, (double)g->total), e->fold.n > 1 ? "" : "");
    if (e->fold.n > 1)
        im_str_printf(out, " of stage %d", e->fullest);
    im_str_printf(out, ", of %s:", im_format_bytes(b, sizeof b, r->room));
    const char *comma = "";
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        if (c != IM_CLASS_PROGRAMS && (double)g->memory[c] >= 0.0005 * (double)g->total) {
            im_str_printf(out, "%s %s %s", comma, im_class_name((im_class)c), im_format_bytes(a, sizeof a, (double)g->memory[c]));
            comma = ",";
        }
    im_step_print(&e->fold.program[e->fullest]->step[g->peak_step], &step);
    im_str_printf(out, "; most activations at %s\n", im_str_text(&step));
    im_str_free(&step);
}

/* What would make it smaller, of the class that is largest. */
static const char *advice(const result *r)
{
    const im_plan *p = r->plan;
    const im_estimate_stage *g = &r->e.stage[r->e.fullest];
    size_t most = g->memory[IM_CLASS_OPTIMIZER] + g->memory[IM_CLASS_GRADIENTS] + g->memory[IM_CLASS_WEIGHTS];
    if (g->memory[IM_CLASS_ACTIVATIONS] > most) {
        if (p->micro_batch > 1)
            return "activations are the most: a smaller micro-batch";
        if (p->recompute < IM_RECOMPUTE_FULL)
            return "activations are the most: recompute selective or full";
        return p->mesh.tp > 1 && !p->sequence_parallel ? "activations are the most: sequence parallelism" : "activations are the most: more tp or pp";
    }
    if (p->mesh.dp > 1 && p->zero < 1)
        return "optimizer state is the most: ZeRO 1";
    if (p->mesh.dp > 1 && p->zero < 3)
        return "weights and gradients are the most: a higher ZeRO stage";
    return "weights and their state are the most: more tp or pp, or ZeRO over more dp";
}

static void print_links(const result *r, im_str *out)
{
    char a[32];
    im_str_append(out, "links      ");
    for (int i = 0; i < r->e.nlink; i++) {
        const im_estimate_link *l = &r->e.link[i];
        im_str_printf(out, "%s %s %s (%.1f %% busy)", i ? ";" : "", l->name, im_format_bytes(a, sizeof a, l->bytes), 100 * l->use);
    }
    if (r->e.nlink)
        im_str_printf(out, "; the busiest: %s\n", r->e.link[r->e.busiest].name);
    else
        im_str_append(out, " none\n");
}

static void print_rest(const result *r, im_str *out)
{
    const im_estimate *e = &r->e;
    char a[64], b[64];
    if (r->failures)
        im_str_printf(out, "failures    one in %.1f h; a checkpoint takes %s; best every %s (Young %s); %.1f %% of the time goes on\n",
                      r->c->device_mtbf / e->devices / 3600, seconds_text(a, sizeof a, r->save), seconds_text(b, sizeof b, r->good.daly),
                      seconds_text((char[64]){0}, 64, r->good.young), 100 * r->good.goodput);
    if (r->o->tokens > 0)
        im_str_printf(out, "%-11.4g tokens take %.2f days", r->o->tokens, days(r));
    double steps = r->o->tokens / e->tokens;
    if (r->o->tokens > 0 && e->joules > 0)
        im_str_printf(out, ", %.4g MWh", e->joules * steps / 3.6e9);
    if (r->o->tokens > 0 && e->money > 0)
        im_str_printf(out, ", %.4g %s", e->money * steps, r->c->currency);
    if (r->o->tokens > 0)
        im_str_append(out, "\n");
    if (e->joules > 0)
        im_str_printf(out, "a step      %.4g kWh%s", e->joules / 3.6e6, e->money > 0 ? "" : "\n");
    if (e->money > 0)
        im_str_printf(out, "%s%.4g %s\n", e->joules > 0 ? ", " : "a step      ", e->money, r->c->currency);
}

static void print_assumed(const result *r, im_str *out)
{
    im_str_append(out, "assumed     alike ranks stand for each other; a fault-free run; what one axis does at once shares links");
    if (r->o->attention == IM_ATTENTION_FUSED)
        im_str_append(out, "; attention is one kernel");
    if (r->e.fold.uneven && !r->o->whole)
        im_str_printf(out, "; ranks differ in their %s: the first rank stands for all", r->e.fold.uneven);
    if (r->plan->model->planning_only)
        im_str_printf(out, "; %s is computed as the family that its shape names, and cannot run in this version", r->plan->model->family);
    im_str_append(out, "\n");
    for (size_t i = 0; i < r->c->nassumed; i++)
        im_str_printf(out, "            %s\n", r->c->assumed[i]);
}

/* ---- --explain ------------------------------------------------------------------------------ */

static void explain_part(const im_estimate_part *p, im_str *out)
{
    char each[64], bytes[32];
    double n = (double)p->count;
    if (p->comm) {
        seconds_text(each, sizeof each, p->alone / n);
        im_format_bytes(bytes, sizeof bytes, p->bytes / n);
        im_str_printf(out, "%lld x %s", (long long)p->count, each);
        if (p->coll.algorithm)
            im_str_printf(out, " = %s: %.2f us + %s / %.4g GB/s", p->coll.algorithm, p->coll.alpha * 1e6, bytes, p->coll.bandwidth / 1e9);
        if (p->alone > p->seconds * (1 + 1e-9))
            im_str_printf(out, "; %.0f %% of it hidden", 100 * (1 - p->seconds / p->alone));
        return;
    }
    seconds_text(each, sizeof each, p->seconds / n);
    im_format_bytes(bytes, sizeof bytes, p->bytes / n);
    im_str_printf(out, "%lld x %s", (long long)p->count, each);
    if (p->peak > 0)
        im_str_printf(out, " = %.4g GFLOP / (%.4g TFLOP/s x %.2f), %s moved", p->flops / n / 1e9, p->peak / 1e12, p->flops / (p->seconds * p->peak),
                      bytes);
    else
        im_str_printf(out, " = %s / %.4g GB/s", bytes, p->bytes / p->seconds / 1e9);
}

static void print_explained(const result *r, im_str *out)
{
    const im_estimate *e = &r->e;
    const im_estimate_stage *g = &e->stage[e->slowest];
    char buf[64];
    double sum = 0, hidden = 0;
    im_str_printf(out, "\nthe step of stage %d, which computes the longest, as a sum\n", e->slowest);
    for (size_t i = 0; i < e->npart; i++) {
        const im_estimate_part *p = &e->part[i];
        if (p->comm && p->seconds <= 0) {
            hidden += p->alone;
            continue;
        }
        char name[80];
        snprintf(name, sizeof name, "%s%s: %s", p->verb, p->comm ? im_axis_name(p->axis)[0] == 'o' ? " (comm)" : "" : "", p->label);
        im_str_printf(out, "%12s %5.1f %%  %-44s ", seconds_text(buf, sizeof buf, p->seconds), 100 * p->seconds / e->step, name);
        if (p->comm)
            im_str_printf(out, "[%s] ", im_axis_name(p->axis));
        explain_part(p, out);
        im_str_append(out, "\n");
        sum += p->seconds;
    }
    im_str_printf(out, "%12s %5.1f %%  %-44s the pipeline fills and drains, and unequal stages\n", seconds_text(buf, sizeof buf, g->bubble),
                  100 * g->bubble / e->step, "bubble: nothing to do, others work");
    im_str_printf(out, "%12s          the step\n", seconds_text(buf, sizeof buf, sum + g->bubble));
    if (hidden > 0)
        im_str_printf(out, "%12s          communication behind compute, in no sum\n", seconds_text(buf, sizeof buf, hidden));
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static void json_string(const char *s, im_str *out)
{
    im_str_json_string(out, s, strlen(s));
}

static void json_stage(const im_estimate *e, const im_estimate_stage *g, im_str *out)
{
    im_str_printf(out, "{\"compute_s\": %.9g, \"update_s\": %.9g, \"bubble_s\": %.9g, \"exposed_s\": {", g->compute, g->update, g->bubble);
    for (int a = 0; a < IM_AXIS_COUNT; a++)
        im_str_printf(out, "%s\"%s\": %.9g", a ? ", " : "", im_axis_name((im_axis)a), g->exposed[a]);
    im_str_append(out, "}");
    if (g != &e->mean) {
        im_str_append(out, ", \"memory_bytes\": {");
        for (int c = 0; c < IM_CLASS_COUNT; c++)
            if (c != IM_CLASS_PROGRAMS) {
                im_str_append(out, c ? ", " : "");
                json_string(im_class_name((im_class)c), out);
                im_str_printf(out, ": %zu", g->memory[c]);
            }
        im_str peak = {0};
        im_step_print(&e->fold.program[g - e->stage]->step[g->peak_step], &peak);
        im_str_printf(out, "}, \"total_bytes\": %zu, \"peak_at\": \"%s\", \"sent_domain_bytes\": %.9g, \"sent_network_bytes\": %.9g", g->total,
                      im_str_text(&peak), g->sent_domain, g->sent_network);
        im_str_free(&peak);
    }
    im_str_append(out, "}");
}

static void json_part(const im_estimate_part *p, im_str *out)
{
    im_str_append(out, "{\"verb\": ");
    json_string(p->verb, out);
    im_str_append(out, ", \"label\": ");
    json_string(p->label, out);
    im_str_printf(out, ", \"count\": %lld, \"seconds\": %.9g, \"flops\": %.9g, \"bytes\": %.9g", (long long)p->count, p->seconds, p->flops, p->bytes);
    if (p->comm)
        im_str_printf(out, ", \"axis\": \"%s\", \"alone_s\": %.9g, \"algorithm\": \"%s\"", im_axis_name(p->axis), p->alone,
                      p->coll.algorithm ? p->coll.algorithm : "");
    im_str_append(out, "}");
}

static void print_json(const result *r, im_str *out)
{
    const im_estimate *e = &r->e;
    const im_mesh *m = &r->plan->mesh;
    im_str_append(out, "{\"cluster\": ");
    json_string(r->c->name, out);
    im_str_printf(out,
                  ", \"devices\": %d, \"tp\": %d, \"pp\": %d, \"dp\": %d, \"step_s\": %.9g, \"tokens_per_s\": %.9g, \"mfu\": %.6g, \"hfu\": %.6g",
                  e->devices, m->tp, m->pp, m->dp, e->step, tokens_per_s(r), e->mfu, e->hfu);
    im_str_printf(out, ", \"bubble\": %.6g, \"model_flops\": %.9g, \"hardware_flops\": %.9g", e->mean.bubble / e->step, e->model_flops,
                  e->hardware_flops);
    im_str_printf(out, ", \"memory_bytes\": %zu, \"memory_limit_bytes\": %.0f, \"fits\": %s", e->stage[e->fullest].total, r->room,
                  (double)e->stage[e->fullest].total <= r->room ? "true" : "false");
    im_str_append(out, ",\n\"mean\": ");
    json_stage(e, &e->mean, out);
    im_str_append(out, ",\n\"stages\": [");
    for (int i = 0; i < e->fold.n; i++) {
        im_str_append(out, i ? ",\n" : "");
        json_stage(e, &e->stage[i], out);
    }
    im_str_append(out, "],\n\"links\": [");
    for (int i = 0; i < e->nlink; i++) {
        im_str_append(out, i ? ", {\"name\": " : "{\"name\": ");
        json_string(e->link[i].name, out);
        im_str_printf(out, ", \"bytes\": %.9g, \"rate\": %.9g, \"use\": %.6g}", e->link[i].bytes, e->link[i].rate, e->link[i].use);
    }
    im_str_append(out, "]");
    if (e->nlink) {
        im_str_append(out, ", \"busiest\": ");
        json_string(e->link[e->busiest].name, out);
    }
    if (r->failures)
        im_str_printf(out, ", \"goodput\": %.6g, \"checkpoint_interval_s\": %.6g", r->good.goodput, r->good.daly);
    if (r->o->tokens > 0)
        im_str_printf(out, ", \"days\": %.6g", days(r));
    if (e->joules > 0)
        im_str_printf(out, ", \"joules\": %.6g", e->joules);
    if (e->money > 0)
        im_str_printf(out, ", \"money\": %.6g, \"currency\": \"%s\"", e->money, r->c->currency);
    im_str_append(out, ",\n\"parts\": [");
    for (size_t i = 0; i < e->npart && r->o->explain; i++) {
        im_str_append(out, i ? ",\n" : "");
        json_part(&e->part[i], out);
    }
    im_str_append(out, "],\n\"assumed\": [");
    for (size_t i = 0; i < r->c->nassumed; i++) {
        im_str_append(out, i ? ",\n" : "");
        json_string(r->c->assumed[i], out);
    }
    im_str_append(out, "]}\n");
}

/* ---- the command -------------------------------------------------------------------------------- */

static im_status write_files(im_cli *cli, const result *r)
{
    im_status status = IM_OK;
    im_str text = {0};
    if (r->o->trace) {
        im_estimate_trace(&r->e, &text);
        status =
            text.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a trace") : im_file_write_atomic(cli->ctx, r->o->trace, text.data, text.len);
        im_str_free(&text);
    }
    if (status != IM_OK || !r->o->svg)
        return status;
    im_drawing d;
    char title[200];
    IM_TRY(im_estimate_drawing(cli->ctx, &r->e, &d));
    snprintf(title, sizeof title, r->e.fold.stands_for > 1 ? "%s on %s, planned; rank N is stage N, %lld alike" : "%s on %s, planned",
             im_schedule_of(r->plan->schedule)->name, r->c->name, (long long)r->e.fold.stands_for);
    im_drawing_svg((const im_drawing *const[]){&d}, (const char *const[]){title}, 1, &text);
    status =
        text.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a picture") : im_file_write_atomic(cli->ctx, r->o->svg, text.data, text.len);
    im_str_free(&text);
    im_drawing_free(&d);
    return status;
}

static int show(const result *r)
{
    im_str text = {0};
    const im_estimate *e = &r->e;
    double over = (double)e->stage[e->fullest].total - r->room;
    if (r->o->json) {
        print_json(r, &text);
    } else {
        char a[32];
        print_head(r, &text);
        print_time(r, &text);
        print_memory(r, &text);
        if (over > 0)
            im_str_printf(&text, "            does not fit: %s too much; %s\n", im_format_bytes(a, sizeof a, over), advice(r));
        print_links(r, &text);
        print_rest(r, &text);
        print_assumed(r, &text);
        if (r->o->explain)
            print_explained(r, &text);
    }
    fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    return over > 0 ? IM_EXIT_FOUND : IM_EXIT_DONE;
}

static im_status simulate(im_cli *cli, const simulate_options *o, const im_train_options *t, int *code)
{
    im_model *m;
    im_cluster *c;
    im_plan p;
    im_status status;
    if (!o->cluster)
        return im_fail(cli->ctx, IM_ERR_ARG, "--cluster: which machines? A cluster file, or one of those in %s", cli->clusters_dir);
    IM_TRY(im_cluster_open(cli->ctx, o->cluster, cli->clusters_dir, &c));
    IM_TRY_GOTO(im_cli_layout_plan(cli, t, &m, &p), cluster);
    IM_TRY_GOTO(im_plan_validate_shape(cli->ctx, &p), model);
    im_estimate_options eo = {.cost = {.attention = (im_attention_kind)o->attention, .drop = p.dropout < 0 ? m->arch.dropout_attn : p.dropout},
                              .whole = o->whole,
                              .tp_blocks = o->overlap > 0,
                              .dp_blocks = o->overlap > 1};
    result r = {.o = o, .plan = &p, .c = c};
    IM_TRY_GOTO(im_estimate_open(cli->ctx, &p, c, &eo, &r.e), model);
    money_and_failures(&r);
    status = write_files(cli, &r);
    if (status == IM_OK)
        *code = show(&r);
    im_estimate_close(&r.e);
model:
    im_model_close(m);
cluster:
    im_cluster_close(c);
    return status;
}

static int run(im_cli *cli, int argc, char **argv)
{
    simulate_options o;
    bool given[IM_COUNT_OF(rows)] = {false};
    im_option_list rest;
    im_train_options t;
    int code = IM_EXIT_DONE;
    im_status status = im_cli_options(cli, argc, argv, &o, given, &rest);
    if (status == IM_OK)
        status = im_cli_layout_options(cli, &rest, rows, IM_COUNT_OF(rows), &o.layout, given, &t);
    if (status == IM_OK)
        status = simulate(cli, &o, &t, &code);
    return status == IM_OK ? code : im_cli_exit(cli, status);
}

const im_cli_command im_cli_simulate_command = {
    .name = "simulate",
    .args = "[RUN|PLAN.yaml]",
    .help = "Time a plan's step on a cluster that need not be here.",
    .about = "The programs that training would execute are run in time by discrete events, each op priced with the cluster's figures. Of ranks that "
             "do the "
             "same one stands for all. Exit code 3: the plan does not fit the devices' memory.\n\n"
             "imece simulate --model gpt3-175b --tp 8 --pp 8 --dp 16 --seq-len 2048 --global-batch 1536 --precision bf16 --cluster selene\n"
             "imece simulate run/plan.yaml --cluster h100 --explain --svg pipeline.svg",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run,
};
