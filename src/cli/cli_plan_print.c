/* imece plan: the answers as text, JSON and a plan. */
#include "cli/cli_plan_parts.h"

#include <stdio.h>
#include <string.h>

static const char *const recompute_name[] = {"none", "selective", "full"};

static double tokens(const im_cli_search *s)
{
    return (double)s->request.base.global_batch * (double)s->request.base.seq_len;
}

static double mfu(const im_cli_search *s, const im_search_found *f)
{
    const im_plan *p = &f->plan;
    double peak = s->cluster->device.peak[p->precision == IM_F32 ? IM_NUMBER_FP32 : IM_NUMBER_BF16];
    return im_model_flops_per_token(p->model, p->seq_len) * tokens(s) / (f->step * peak * im_mesh_size(&p->mesh));
}

static const char *seconds_text(char *buf, size_t n, double s)
{
    snprintf(buf, n, s >= 1 ? "%.3f s" : "%.2f ms", s >= 1 ? s : s * 1e3);
    return buf;
}

static void stages_text(const im_plan *p, im_str *out)
{
    if (p->stages != IM_STAGES_GIVEN)
        im_str_append(out, p->stages == IM_STAGES_EVEN ? "even" : "balanced");
    for (int i = 0; p->stages == IM_STAGES_GIVEN && i < p->mesh.pp * im_plan_chunks(p); i++)
        im_str_printf(out, "%s%lld", i ? "," : "", (long long)p->cut[i]);
}

void im_cli_plan_layout_text(const im_search_found *f, im_str *out)
{
    const im_plan *p = &f->plan;
    im_str_printf(out, "tp %d x pp %d x dp %d", p->mesh.tp, p->mesh.pp, p->mesh.dp);
    if (p->mesh.pp > 1)
        im_str_printf(out, ", %s", im_schedule_of(p->schedule)->name);
    if (im_plan_chunks(p) > 1)
        im_str_printf(out, " of %d chunks", im_plan_chunks(p));
    if (p->mesh.pp > 1 && p->stages == IM_STAGES_GIVEN) {
        im_str_append(out, ", stages ");
        stages_text(p, out);
    }
    if (p->mesh.dp > 1)
        im_str_printf(out, ", ZeRO %d", p->zero);
    im_str_printf(out, ", micro-batch %lld (%d)", (long long)p->micro_batch, im_plan_micro_batches(p, 0));
    if (p->sequence_parallel)
        im_str_append(out, ", sequence parallel");
    if (p->recompute)
        im_str_printf(out, ", recompute %s", recompute_name[p->recompute]);
    if (f->order)
        im_str_printf(out, ", ranks %s", im_search_order_name(f->order));
}

/* ---- text --------------------------------------------------------------------------------------- */

static void print_found(const im_cli_search *s, size_t i, im_str *out)
{
    const im_search_found *f = &s->found.found[i];
    char a[32], b[32];
    im_str layout = {0};
    im_cli_plan_layout_text(f, &layout);
    im_str_printf(out, "%4zu  %10s%s %11.0f %6.1f %%  %9s%s  %s", i + 1, seconds_text(a, sizeof a, f->step), f->run ? " " : "~", tokens(s) / f->step,
                  100 * mfu(s, f), im_format_bytes(b, sizeof b, f->memory), f->placed ? " " : "~", im_str_text(&layout));
    if (f->cost > 0)
        im_str_printf(out, "; %.4g %s a step", f->cost, s->cluster->currency ? s->cluster->currency : "");
    if (f->why_not)
        im_str_printf(out, "  runnable: no (%s)", f->why_not);
    im_str_append(out, "\n");
    im_str_free(&layout);
}

static const char *refusal_words(im_refusal r)
{
    static const char *const words[IM_REFUSED_COUNT] = {
        [IM_REFUSED_HEADS] = "heads: a tp that the model's heads cannot have",
        [IM_REFUSED_STAGES] = "stages: more than there are blocks, or than 64",
        [IM_REFUSED_BATCH] = "batch: fewer sequences than dp ranks",
        [IM_REFUSED_MICRO_BATCHES] = "micro-batches: more of them than a program may have",
        [IM_REFUSED_TIED] = "tied: ZeRO 2 or 3 over stages that share the token table",
        [IM_REFUSED_RULE] = "other rules of plans",
        [IM_REFUSED_MEMORY] = "memory",
        [IM_REFUSED_SLOWER] = "worse than those above, by a bound",
    };
    return words[r];
}

static void print_least(const im_cli_search *s, im_str *out)
{
    const im_search_found *l = &s->found.least;
    char a[32], b[32], c[32];
    im_str layout = {0};
    im_cli_plan_layout_text(l, &layout);
    im_str_printf(out, "; the nearest needs %s or more of %s, %s too much: %s", im_format_bytes(a, sizeof a, l->memory),
                  im_format_bytes(b, sizeof b, s->found.room), im_format_bytes(c, sizeof c, l->memory - s->found.room), im_str_text(&layout));
    im_str_free(&layout);
}

static void print_refused(const im_cli_search *s, im_str *out)
{
    const char *head = "refused";
    for (int r = 1; r < IM_REFUSED_COUNT; r++) {
        if (!s->found.refused[r])
            continue;
        im_str_printf(out, "%-9s %10lld  %s", head, (long long)s->found.refused[r], refusal_words((im_refusal)r));
        if (r == IM_REFUSED_MEMORY && s->found.least.memory > s->found.room)
            print_least(s, out);
        im_str_append(out, "\n");
        head = "";
    }
}

static void print_assumed(const im_cli_search *s, im_str *out)
{
    const im_plan *p = &s->request.base;
    im_str_append(out, "assumed   ");
    if (s->precision_assumed)
        im_str_printf(out, "precision %s, which the device has a peak of; ", p->precision == IM_BF16 ? "bf16" : "fp32");
    im_str_printf(out, "attention is %s; AdamW with fp32 sums; alike ranks stand for each other; a fault-free run",
                  s->o->attention == IM_ATTENTION_FUSED ? "one kernel" : "several kernels that store the scores");
    if (p->model->planning_only)
        im_str_printf(out, "; %s is computed as the family that its shape names", p->model->family);
    im_str_append(out, "\n");
    for (size_t i = 0; i < s->cluster->nassumed; i++)
        im_str_printf(out, "          %s\n", s->cluster->assumed[i]);
}

void im_cli_plan_text(const im_cli_search *s, im_str *out)
{
    const im_plan *p = &s->request.base;
    bool about = false;
    im_str_printf(out, "%s on %d of %d devices of %s (%s), %lld sequences of %lld tokens, %s: %lld layouts\n", s->o->model, s->request.devices,
                  im_cluster_devices(s->cluster), s->cluster->name, s->cluster->device.name, (long long)p->global_batch, (long long)p->seq_len,
                  p->precision == IM_F32 ? "fp32" : "bf16", (long long)s->found.leaves);
    if (s->found.n)
        im_str_printf(out, "%4s  %10s  %11s %8s  %9s   %s\n", "", "step", "tokens/s", "MFU", "memory", "layout (micro-batches)");
    for (size_t i = 0; i < s->found.n; i++) {
        print_found(s, i, out);
        about |= !s->found.found[i].run || !s->found.found[i].placed;
    }
    if (about)
        im_str_append(out, "      ~ of the outline: tasks of the schedule in time; imece simulate runs all ops\n");
    if (!s->found.n && s->found.least.memory > 0)
        im_str_append(out, "no layout fits\n");
    else if (!s->found.n)
        im_str_printf(out, "no tp x pp x dp of %d devices is allowed with this model, batch and --fix\n", s->request.devices);
    print_refused(s, out);
    for (const char *line = im_str_text(&s->advice); *line; line += strcspn(line, "\n") + 1)
        im_str_printf(out, "%-9s %.*s\n", line == s->advice.data ? "fits with" : "", (int)strcspn(line, "\n"), line);
    print_assumed(s, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static void json_string(const char *s, im_str *out)
{
    im_str_json_string(out, s, strlen(s));
}

static void json_found(const im_cli_search *s, const im_search_found *f, im_str *out)
{
    const im_plan *p = &f->plan;
    im_str_printf(
        out,
        "{\"tp\": %d, \"pp\": %d, \"dp\": %d, \"zero\": %d, \"pipeline\": \"%s\", \"chunks\": %d, \"micro_batch\": %lld, \"micro_batches\": "
        "%d, \"sequence_parallel\": %s, \"recompute\": \"%s\", \"order\": \"%s\", \"stages\": \"",
        p->mesh.tp, p->mesh.pp, p->mesh.dp, p->zero, im_schedule_of(p->schedule)->name, im_plan_chunks(p), (long long)p->micro_batch,
        im_plan_micro_batches(p, 0), p->sequence_parallel ? "true" : "false", recompute_name[p->recompute], im_search_order_name(f->order));
    stages_text(p, out);
    im_str_printf(out, "\", \"memory_bytes\": %.0f, \"fullest_stage\": %d, \"memory_placed\": %s", f->memory, f->fullest,
                  f->placed ? "true" : "false");
    if (f->step > 0)
        im_str_printf(out, ", \"step_s\": %.9g, \"step_run\": %s, \"tokens_per_s\": %.9g, \"mfu\": %.6g", f->step, f->run ? "true" : "false",
                      tokens(s) / f->step, mfu(s, f));
    if (f->cost > 0)
        im_str_printf(out, ", \"money\": %.9g", f->cost);
    im_str_printf(out, ", \"runnable\": %s", f->why_not ? "false" : "true");
    if (f->why_not) {
        im_str_append(out, ", \"why_not\": ");
        json_string(f->why_not, out);
    }
    im_str_append(out, "}");
}

void im_cli_plan_json(const im_cli_search *s, im_str *out)
{
    const im_search *r = &s->found;
    const im_search_found *w = im_search_winner(r);
    im_str_append(out, "{\"cluster\": ");
    json_string(s->cluster->name, out);
    im_str_printf(out, ", \"devices\": %d, \"layouts\": %lld, \"room_bytes\": %.0f, \"precision\": \"%s\",\n\"plans\": [", s->request.devices,
                  (long long)r->leaves, r->room, s->request.base.precision == IM_F32 ? "fp32" : "bf16");
    for (size_t i = 0; i < r->n; i++) {
        im_str_append(out, i ? ",\n" : "\n");
        json_found(s, &r->found[i], out);
    }
    im_str_printf(out, "],\n\"winner\": ");
    if (w)
        im_str_printf(out, "%zu", (size_t)(w - r->found));
    else
        im_str_append(out, "null");
    im_str_append(out, ", \"refused\": {");
    for (int i = 1; i < IM_REFUSED_COUNT; i++)
        im_str_printf(out, "%s\"%s\": %lld", i > 1 ? ", " : "", im_refusal_name((im_refusal)i), (long long)r->refused[i]);
    im_str_append(out, "}");
    if (r->least.memory > r->room) {
        im_str_append(out, ",\n\"nearest\": ");
        json_found(s, &r->least, out);
    }
    im_str_append(out, ",\n\"fits_with\": [");
    for (const char *line = im_str_text(&s->advice); *line; line += strcspn(line, "\n") + 1) {
        im_str_append(out, line == s->advice.data ? "" : ", ");
        im_str_json_string(out, line, strcspn(line, "\n"));
    }
    im_str_append(out, "],\n\"assumed\": [");
    for (size_t i = 0; i < s->cluster->nassumed; i++) {
        im_str_append(out, i ? ",\n" : "");
        json_string(s->cluster->assumed[i], out);
    }
    if (s->precision_assumed)
        im_str_printf(out, "%s\"precision\"", s->cluster->nassumed ? ", " : "");
    im_str_append(out, "]}");
}

/* ---- a plan ------------------------------------------------------------------------------------------- */

static void indented(const char *text, im_str *out)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        im_str_printf(out, "  %.*s\n", (int)strcspn(line, "\n"), line);
        if (!line[strcspn(line, "\n")])
            break;
    }
}

void im_cli_plan_yaml(const im_cli_search *s, const im_search_found *f, im_str *out)
{
    const im_plan *p = &f->plan;
    im_str plan = {0};
    im_str_printf(out,
                  IM_CLI_PLAN_HEAD " (imece %s). `imece train --config THIS%s --steps N` runs it on %d ranks.\ntrain:\n  model: ", IM_VERSION_STRING,
                  s->o->data ? "" : " --data PREFIX", im_mesh_size(&p->mesh));
    json_string(s->o->model, out);
    if (s->o->data) {
        im_str_append(out, "\n  data: ");
        json_string(s->o->data, out);
    }
    im_str_printf(out,
                  "\n  seq_len: %lld\n  micro_batch: %lld\n  global_batch: %lld\n  precision: %s\n  tp: %d\n  dp: %d\n  pp: %d\n  zero: %d\n  "
                  "sequence_parallel: %s\n  recompute: %s\n  pipeline: %s\n  chunks: %d\n  stages: \"",
                  (long long)p->seq_len, (long long)p->micro_batch, (long long)p->global_batch, p->precision == IM_F32 ? "fp32" : "bf16", p->mesh.tp,
                  p->mesh.dp, p->mesh.pp, p->zero, p->sequence_parallel ? "true" : "false", recompute_name[p->recompute],
                  im_schedule_of(p->schedule)->name, im_plan_chunks(p));
    stages_text(p, out);
    im_str_append(out, "\"\nplan:\n");
    im_plan_to_yaml(p, &plan);
    indented(im_str_text(&plan), out);
    im_str_free(&plan);
    im_str_append(out, "predicted:\n  cluster: ");
    json_string(s->cluster->name, out);
    im_str_printf(out, "\n  step_s: %.9g\n  memory_bytes: %.0f\n  fullest_stage: %d\n", f->step, f->memory, f->fullest);
}
