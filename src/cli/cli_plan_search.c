/* imece plan: the layouts of a model on a cluster, the best first. */
#include "cli/cli_plan_parts.h"

#include "checkpoint/checkpoint.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(im_cli_plan_options, field)
const im_option im_cli_plan_rows[IM_CLI_PLAN_ROWS] = {
    {"model", IM_OPT_STRING, NULL, 0, 0, NULL, "Model: a Hugging Face directory, a config.json, or the name of a shape.", "DIR", AT(model), 'm',
     false, "What"},
    {"cluster", IM_OPT_LIST, NULL, 0, 0, NULL,
     "The machines: a cluster file (docs/clusters.md), or the name of one. Given several times, they are compared.", "C", AT(cluster), 'c', false,
     NULL},
    {"global-batch", IM_OPT_INT, "0", 0, 1 << 24, NULL, "Sequences of a step.", "N", AT(global_batch), 0, false, NULL},
    {"seq-len", IM_OPT_INT, "0", 0, 1 << 24, NULL, "Tokens of a sequence.", "N", AT(seq_len), 0, false, NULL},
    {"precision", IM_OPT_CHOICE, "auto", 0, 0, "auto|fp32|bf16", "Type of weights and activations; auto: bf16 where the device has it.", "TYPE",
     AT(precision), 0, false, NULL},
    {"attention", IM_OPT_CHOICE, "fused", 0, 0, "fused|unfused", "Unfused: the scores go through memory, as before flash attention.", "HOW",
     AT(attention), 0, false, NULL},
    {"devices", IM_OPT_INT, "0", 0, IM_CLUSTER_MAX_DEVICES, NULL, "Devices that the run has, all of which are used (0: all of the cluster).", "N",
     AT(devices), 0, false, "Which layouts"},
    {"fix", IM_OPT_LIST, NULL, 0, 0, NULL,
     "Only layouts with this: tp=8, dp, pp, zero, micro-batch, pipeline, chunks, sequence-parallel=true, recompute=full, stages=even, "
     "order=tp-dp-pp.",
     "KEY=VALUE", AT(fix), 0, false, NULL},
    {"objective", IM_OPT_CHOICE, "time", 0, 0, "time|memory|cost",
     "What is best: the shortest step, the fullest rank's least memory, or the cheapest step; cost also tries fewer devices (divisors).", "WHAT",
     AT(objective), 0, false, NULL},
    {"top", IM_OPT_INT, "10", 1, 1000, NULL, "Layouts that are told.", "N", AT(top), 0, false, "Result"},
    {"out", IM_OPT_STRING, "plan.yaml", 0, 0, NULL, "Write the best layout that this version runs to this file; empty: do not.", "FILE", AT(out), 'o',
     false, NULL},
    {"data", IM_OPT_STRING, NULL, 0, 0, NULL, "Name this token file in the plan.", "PREFIX", AT(data), 'd', false, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "The result as one JSON object.", NULL, AT(json), 0, false, NULL},
};
#undef AT

enum { IM_CONFIRM_OPS = 400000 }; /* of all programs that are run to the end, so that an answer comes soon */

/* A file of another kind, such as a run's plan.yaml, is not written over. */
static im_status check_out(im_context *ctx, const char *path)
{
    char head[sizeof IM_CLI_PLAN_HEAD] = "";
    FILE *f = *path ? fopen(path, "r") : NULL;
    if (!f)
        return IM_OK;
    size_t n = fread(head, 1, sizeof head - 1, f);
    fclose(f);
    return !n || !strcmp(head, IM_CLI_PLAN_HEAD)
               ? IM_OK
               : im_fail(ctx, IM_ERR_ARG, "%s is there, and not from imece plan: give another --out FILE, or --out ''", path);
}

static im_status check(im_context *ctx, const im_cli *cli, const im_cli_plan_options *o)
{
    if (!o->model)
        return im_fail(ctx, IM_ERR_ARG, "--model: which one? A Hugging Face directory, a config.json, or the name of a shape (imece model list)");
    if (!o->cluster.n)
        return im_fail(ctx, IM_ERR_ARG, "--cluster: which machines? A cluster file, or one of those in %s", cli->clusters_dir);
    if (!o->global_batch)
        return im_fail(ctx, IM_ERR_ARG, "--global-batch: how many sequences has a step?");
    if (!o->seq_len)
        return im_fail(ctx, IM_ERR_ARG, "--seq-len: how many tokens has a sequence?");
    return check_out(ctx, o->out);
}

/* What no layout can help. */
static im_status check_rest(im_context *ctx, const im_cli_search *s)
{
    im_plan p = s->request.base;
    p.micro_batch = 1;
    p.global_batch = 1;
    IM_TRY(im_plan_validate_shape(ctx, &p));
    if (s->request.devices > im_cluster_devices(s->cluster))
        return im_fail(ctx, IM_ERR_ARG, "--devices %d: %s has %d", s->request.devices, s->cluster->name, im_cluster_devices(s->cluster));
    return IM_OK;
}

static im_status make_request(im_cli *cli, im_cli_search *s)
{
    const im_cli_plan_options *o = s->o;
    im_search_request *r = &s->request;
    *r = (im_search_request){.cluster = s->cluster,
                             .devices = o->devices ? (int)o->devices : im_cluster_devices(s->cluster),
                             .fix = im_search_free(),
                             .objective = (im_objective)o->objective,
                             .top = (int)o->top};
    im_plan_defaults(&r->base, s->model);
    r->base.seq_len = o->seq_len;
    r->base.global_batch = o->global_batch;
    r->base.dropout = -1; /* as the model's config says */
    s->precision_assumed = o->precision == 0;
    bool half = o->precision == 2 || (!o->precision && s->cluster->device.peak[IM_NUMBER_BF16] > 0);
    r->base.precision = half ? IM_BF16 : IM_F32;
    r->cost = (im_cost_options){.attention = (im_attention_kind)o->attention, .drop = s->model->arch.dropout_attn};
    for (size_t i = 0; i < o->fix.n; i++)
        IM_TRY(im_cli_plan_fix(cli->ctx, o->fix.item[i], &r->fix));
    return check_rest(cli->ctx, s);
}

static im_status search(im_cli *cli, im_cli_search *s)
{
    IM_TRY(make_request(cli, s));
    IM_TRY(im_search_open(cli->ctx, &s->request, &s->found));
    IM_TRY(im_search_confirm(cli->ctx, &s->found, &s->request, IM_CONFIRM_OPS));
    return s->found.n ? IM_OK : im_cli_plan_advise(cli->ctx, &s->request, s->found.least.memory > 0, &s->advice);
}

/* ---- several clusters ------------------------------------------------------------------------------ */

static double worth(const im_cli_search *s)
{
    const im_search_found *f = s->found.found;
    switch (s->request.objective) {
    case IM_OBJECTIVE_MEMORY: return f->memory;
    case IM_OBJECTIVE_COST: return f->cost > 0 ? f->cost : f->step * im_mesh_size(&f->plan.mesh);
    default: return f->step;
    }
}

/* The search whose best answer is the best of all; that runs, if there is one. */
static const im_cli_search *best_of(const im_cli_search *s, size_t n, bool runs)
{
    const im_cli_search *best = NULL;
    for (size_t i = 0; i < n; i++)
        if (s[i].found.n && (!runs || im_search_winner(&s[i].found)) && (!best || worth(&s[i]) < worth(best)))
            best = &s[i];
    return best;
}

static void compare(const im_cli_search *s, size_t n, im_str *out)
{
    const im_cli_search *best = best_of(s, n, false);
    im_str_append(out, "\nthe clusters compared, the best layout of each\n");
    for (size_t i = 0; i < n; i++) {
        const im_search_found *f = s[i].found.found;
        im_str layout = {0};
        char bytes[32];
        if (!s[i].found.n) {
            im_str_printf(out, "  %-28s nothing fits\n", s[i].cluster->name);
            continue;
        }
        im_cli_plan_layout_text(f, &layout);
        im_str_printf(out, "%c %-28s %6d devices %10.3f s a step, %11.0f tokens/s, %9s", &s[i] == best ? '*' : ' ', s[i].cluster->name,
                      im_mesh_size(&f->plan.mesh), f->step, (double)f->plan.global_batch * (double)f->plan.seq_len / f->step,
                      im_format_bytes(bytes, sizeof bytes, f->memory));
        if (f->cost > 0)
            im_str_printf(out, ", %.4g %s", f->cost, s[i].cluster->currency ? s[i].cluster->currency : "");
        im_str_printf(out, ": %s\n", im_str_text(&layout));
        im_str_free(&layout);
    }
}

static im_status write_plan(im_cli *cli, const im_cli_search *s, size_t n, im_str *text)
{
    const im_cli_search *best = best_of(s, n, true);
    im_str yaml = {0};
    if (!cli || !*s->o->out || !best)
        return IM_OK;
    im_cli_plan_yaml(best, im_search_winner(&best->found), &yaml);
    im_status status =
        yaml.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a plan") : im_file_write_atomic(cli->ctx, s->o->out, yaml.data, yaml.len);
    im_str_free(&yaml);
    im_str_printf(text, "written   %s: number %zu%s%s\n", s->o->out, (size_t)(im_search_winner(&best->found) - best->found.found) + 1,
                  n > 1 ? " on " : "", n > 1 ? best->cluster->name : "");
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------- */

static im_status show(im_cli *cli, const im_cli_search *s, size_t n)
{
    im_str text = {0}, written = {0};
    im_status status = write_plan(cli, s, n, &written);
    if (s->o->json && n > 1)
        im_str_append(&text, "[");
    for (size_t i = 0; i < n; i++) {
        im_str_append(&text, i ? s->o->json ? ",\n" : "\n" : "");
        (s->o->json ? im_cli_plan_json : im_cli_plan_text)(&s[i], &text);
    }
    if (!s->o->json && n > 1)
        compare(s, n, &text);
    im_str_append(&text, !s->o->json ? im_str_text(&written) : n > 1 ? "]\n" : "\n");
    if (text.failed && status == IM_OK)
        status = im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the result");
    if (status == IM_OK)
        fputs(im_str_text(&text), stdout);
    im_str_free(&text);
    im_str_free(&written);
    return status;
}

static im_status plan(im_cli *cli, const im_cli_plan_options *o, int *code)
{
    char dir[4096];
    im_model *m;
    size_t n = o->cluster.n;
    IM_TRY(check(cli->ctx, cli, o));
    im_cli_search *s = IM_ARENA_NEW(cli->arena, im_cli_search, n);
    if (!s)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a search");
    IM_TRY(im_checkpoint_resolve(cli->ctx, o->model, dir, sizeof dir));
    IM_TRY(im_model_open(cli->ctx, dir, cli->models_dir, &m));
    im_status status = IM_OK;
    for (size_t i = 0; status == IM_OK && i < n; i++) {
        s[i].o = o;
        s[i].model = m;
        status = im_cluster_open(cli->ctx, o->cluster.item[i], cli->clusters_dir, &s[i].cluster);
        if (status == IM_OK)
            status = search(cli, &s[i]);
    }
    if (status == IM_OK)
        status = show(cli, s, n);
    if (status == IM_OK)
        *code = best_of(s, n, false) ? IM_EXIT_DONE : IM_EXIT_FOUND;
    for (size_t i = 0; i < n; i++) {
        im_search_close(&s[i].found);
        im_cluster_close(s[i].cluster);
        im_str_free(&s[i].advice);
    }
    im_model_close(m);
    return status;
}

int im_cli_plan_run(im_cli *cli, int argc, char **argv)
{
    im_cli_plan_options o;
    int code = IM_EXIT_DONE;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = plan(cli, &o, &code);
    return status == IM_OK ? code : im_cli_exit(cli, status);
}
