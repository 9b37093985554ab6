/* imece model: what a model is, before anything runs. */
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* 124439808 -> "124.4 M" */
static const char *format_count(char *buf, size_t size, double n)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};
    for (size_t i = 0; i < IM_COUNT_OF(units); i++) {
        /* 999.96 M rounds up to the next unit */
        if (n >= units[i].unit * 0.99995) {
            snprintf(buf, size, "%.1f %s", n / units[i].unit, units[i].name);
            return buf;
        }
    }
    snprintf(buf, size, "%.0f", n);
    return buf;
}

/* ---- imece model show ------------------------------------------------------------- */

typedef struct show_options {
    int64_t seq_len;
    bool params, json;
} show_options;

#define ROW(field) .offset = offsetof(show_options, field)
static const im_option show_rows[] = {
    {.name = "seq-len",
     .type = IM_OPT_INT,
     .value = "T",
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Tokens of a sequence, for the FLOPs a token; 0: the model's positions, 4096 at most.",
     ROW(seq_len)},
    {.name = "params", .type = IM_OPT_BOOL, .fallback = "false", .help = "List every parameter: name, shape, bucket.", ROW(params)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as one JSON object.", ROW(json)},
};
#undef ROW

/* The weights beside a config: how many tensors, of which type. */
typedef struct weights_info {
    bool there;
    size_t tensors;
    const char *dtype; /* of the first parameter; "" when they differ */
} weights_info;

/* A directory that has files of weights is checked against its config; one without them is fine. */
static im_status look_at_weights(im_context *ctx, im_arena *a, const im_model *m, weights_info *out)
{
    *out = (weights_info){0};
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json"};
    bool there = false;
    for (size_t i = 0; i < IM_COUNT_OF(files) && m->dir; i++) {
        const char *path = im_arena_printf(a, "%s/%s", m->dir, files[i]);
        there = there || (path && im_path_exists(path));
    }
    if (!there || m->planning_only)
        return IM_OK;
    im_weights *w;
    const im_st_tensor **tensor_of = IM_ARENA_NEW(a, const im_st_tensor *, m->nparam);
    if (!tensor_of)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu parameters", m->nparam);
    IM_TRY(im_weights_open(ctx, m->dir, &w));
    im_status status = im_weights_match(ctx, w, m, tensor_of);
    if (status == IM_OK) {
        *out = (weights_info){.there = true, .tensors = im_weights_count(w), .dtype = tensor_of[0]->dtype_name};
        for (size_t i = 1; i < m->nparam; i++)
            if (strcmp(tensor_of[i]->dtype_name, out->dtype) != 0)
                out->dtype = "";
        out->dtype = im_arena_strdup(a, out->dtype);
        if (!out->dtype)
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the names of types");
    }
    im_weights_close(w);
    return status;
}

static void print_params_json(const im_model *m, im_str *s)
{
    im_str_append(s, ", \"params\": [");
    for (size_t i = 0; i < m->nparam; i++) {
        const im_param *p = &m->param[i];
        im_str_printf(s, "%s{\"name\": \"%s\", \"shape\": [", i ? ", " : "", p->name);
        for (int d = 0; d < p->ndim; d++)
            im_str_printf(s, "%s%" PRId64, d ? ", " : "", p->shape[d]);
        im_str_printf(s, "], \"bucket\": %d, \"decay\": %s}", p->bucket, p->decay ? "true" : "false");
    }
    im_str_append(s, "]");
}

static void print_json(const im_model *m, const show_options *o, const weights_info *w)
{
    const im_arch *a = &m->arch;
    im_str s = {0};
    im_str_append(&s, "{\"source\": ");
    im_str_json_string(&s, m->source, strlen(m->source));
    im_str_append(&s, ", \"family\": ");
    im_str_json_string(&s, m->family, strlen(m->family));
    im_str_printf(&s, ", \"planning_only\": %s, \"parameters\": %" PRId64 ", \"tensors\": %zu, \"units\": %zu, \"buckets\": %zu",
                  m->planning_only ? "true" : "false", im_model_param_count(m), m->nparam, m->nunit, m->nbucket);
    im_str_printf(&s,
                  ", \"blocks\": %" PRId64 ", \"hidden\": %" PRId64 ", \"heads\": %" PRId64 ", \"kv_heads\": %" PRId64 ", \"head_size\": %" PRId64,
                  a->L, a->D, a->H, a->K, a->E);
    im_str_printf(&s, ", \"feed_forward\": %" PRId64 ", \"vocabulary\": %" PRId64 ", \"positions\": %" PRId64 ", \"tied\": %s", a->F, a->V, a->P,
                  a->tied ? "true" : "false");
    im_str_printf(&s, ", \"seq_len\": %" PRId64 ", \"flops_per_token\": %.0f, \"bytes_fp32\": %.0f, \"bytes_bf16\": %.0f", o->seq_len,
                  im_model_flops_per_token(m, o->seq_len), 4.0 * (double)im_model_param_count(m), 2.0 * (double)im_model_param_count(m));
    if (w->there)
        im_str_printf(&s, ", \"weights\": {\"tensors\": %zu, \"dtype\": \"%s\"}", w->tensors, w->dtype);
    if (o->params)
        print_params_json(m, &s);
    im_str_append(&s, "}");
    puts(im_str_text(&s));
    im_str_free(&s);
}

/* "4096 in 28 of 32 blocks"; empty without windows */
static void describe_windows(const im_model *m, char *buf, size_t size)
{
    int64_t most = 0, blocks = 0;
    for (size_t u = 0; u < m->nunit; u++) {
        most = m->unit[u].window > most ? m->unit[u].window : most;
        blocks += m->unit[u].window > 0;
    }
    buf[0] = '\0';
    if (blocks)
        snprintf(buf, size, ", the last %" PRId64 " positions in %s%" PRId64 " blocks", most, blocks == m->arch.L ? "all " : "", blocks);
}

static void print_attention(const im_model *m)
{
    static const char *const norms[] = {
        [IM_QK_NORM_NONE] = "", [IM_QK_NORM_HEAD] = ", each head's queries and keys normed", [IM_QK_NORM_ALL] = ", queries and keys normed"};
    const im_arch *a = &m->arch;
    char windows[80];
    describe_windows(m, windows, sizeof windows);
    printf("  attention     %" PRId64 " heads of %" PRId64, a->H, a->E);
    if (a->K != a->H)
        printf(", %" PRId64 " for keys and values", a->K);
    printf("%s%s\n", norms[a->qk_norm], windows);
}

static void print_positions(const im_arch *a)
{
    static const char *const scalings[IM_ROPE_COUNT] = {[IM_ROPE_PLAIN] = "",
                                                        [IM_ROPE_LINEAR] = ", linear scaling",
                                                        [IM_ROPE_DYNAMIC] = ", dynamic scaling",
                                                        [IM_ROPE_LLAMA3] = ", llama3 scaling",
                                                        [IM_ROPE_YARN] = ", YaRN scaling",
                                                        [IM_ROPE_LONG] = ", LongRoPE scaling"};
    if (a->alibi) {
        printf("  positions     no limit, ALiBi\n");
        return;
    }
    printf("  positions     %" PRId64, a->P);
    if (!a->rope_dims) {
        printf(", learned\n");
        return;
    }
    printf(", rotary, theta %g%s", a->rope_theta, scalings[a->rope_scaling]);
    if (a->rope_dims < a->E)
        printf(", %" PRId64 " of a head's %" PRId64 " dims", a->rope_dims, a->E);
    printf("\n");
}

static void print_arch(const im_model *m)
{
    static const char *const acts[] = {
        [IM_ACT_GELU_TANH] = "GELU (tanh)", [IM_ACT_GELU_ERF] = "GELU (erf)", [IM_ACT_SILU] = "SiLU", [IM_ACT_RELU] = "ReLU"};
    static const char *const residuals[] = {[IM_RESIDUAL_PRE] = "",
                                            [IM_RESIDUAL_POST] = ", norms behind the branches",
                                            [IM_RESIDUAL_PARALLEL] = ", attention and feed-forward side by side"};
    const im_arch *a = &m->arch;
    printf("  family        %s%s\n", m->family, m->planning_only ? " (planning only: this family is not implemented)" : "");
    printf("  blocks        %" PRId64 ", hidden %" PRId64 ", feed-forward %" PRId64 " %s%s%s\n", a->L, a->D, a->F, a->gated ? "gated, " : "",
           acts[a->act], residuals[a->residual]);
    print_attention(m);
    printf("  vocabulary    %" PRId64 ", head %s\n", a->V, a->tied ? "tied to the token table" : "of its own");
    print_positions(a);
}

static void print_text(const im_model *m, const show_options *o, const weights_info *w)
{
    char count[32], fp32[32], bf16[32];
    const double n = (double)im_model_param_count(m);
    printf("%s\n", m->source);
    print_arch(m);
    printf("  parameters    %" PRId64 " (%s) in %zu tensors, %zu units, %zu buckets\n", im_model_param_count(m), format_count(count, sizeof count, n),
           m->nparam, m->nunit, m->nbucket);
    printf("  weights       %s in fp32, %s in bf16\n", im_format_bytes(fp32, sizeof fp32, 4 * n), im_format_bytes(bf16, sizeof bf16, 2 * n));
    printf("  training      %.4g FLOPs a token at %" PRId64 " tokens a sequence\n", im_model_flops_per_token(m, o->seq_len), o->seq_len);
    if (w->there)
        printf("  files         %zu tensors%s%s, all as the config says\n", w->tensors, *w->dtype ? ", " : " of several types", w->dtype);
    const char *note = im_json_string(im_json_get(im_json_root(m->config), "imece_note"), NULL);
    if (note)
        printf("  note          %s\n", note);
    for (size_t i = 0; i < m->nparam && o->params; i++) {
        const im_param *p = &m->param[i];
        char shape[64];
        if (p->ndim == 2)
            snprintf(shape, sizeof shape, "%" PRId64 " x %" PRId64, p->shape[0], p->shape[1]);
        else
            snprintf(shape, sizeof shape, "%" PRId64, p->shape[0]);
        printf("  %5d  %-16s %s\n", p->bucket, shape, p->name);
    }
}

static im_status show(im_cli *cli, show_options *o, const im_option_list *rest)
{
    if (rest->n != 1)
        return im_fail(cli->ctx, IM_ERR_ARG, "model show: one model: imece model show NAME, or imece model show DIR");
    im_model *m;
    weights_info w;
    char dir[4096];
    IM_TRY(im_checkpoint_resolve(cli->ctx, rest->item[0], dir, sizeof dir));
    IM_TRY(im_model_open(cli->ctx, dir, cli->models_dir, &m));
    if (!o->seq_len)
        o->seq_len = m->arch.P && m->arch.P < 4096 ? m->arch.P : 4096;
    im_status status = look_at_weights(cli->ctx, cli->arena, m, &w);
    if (status == IM_OK) {
        if (o->json)
            print_json(m, o, &w);
        else
            print_text(m, o, &w);
    }
    im_model_close(m);
    return status;
}

static int run_show(im_cli *cli, int argc, char **argv)
{
    show_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = show(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

static const im_cli_command show_command = {
    .name = "show",
    .args = "NAME | DIR | RUN | FILE.json",
    .help = "Tell a model's sizes, parameters and FLOPs; check the files of weights beside it.",
    .about = "NAME is one of imece model list; DIR a Hugging Face directory, RUN a run's, of which the latest checkpoint is taken: when weights\n"
             "are there, every tensor's name, shape and type is checked against the config. FLOPs count forward and backward, attention unmasked "
             "(see docs/metrics.md).\n\n"
             "  imece model show gpt2\n"
             "  imece model show runs/first/checkpoints/step-100 --params",
    .rows = show_rows,
    .nrows = IM_COUNT_OF(show_rows),
    .run = run_show,
};

/* ---- imece model list --------------------------------------------------------------- */

typedef struct list_options {
    bool json;
} list_options;

static const im_option list_rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "One JSON object for each shape.", .offset = offsetof(list_options, json)},
};

static im_status list(im_cli *cli, const list_options *o)
{
    const char **names;
    size_t n;
    IM_TRY(im_model_list(cli->ctx, cli->models_dir, cli->arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        im_model *m;
        char count[32];
        IM_TRY(im_model_open(cli->ctx, names[i], cli->models_dir, &m));
        const char *only = m->planning_only ? "planning only" : "";
        if (o->json)
            printf("{\"name\": \"%s\", \"family\": \"%s\", \"parameters\": %" PRId64 ", \"planning_only\": %s}\n", names[i], m->family,
                   im_model_param_count(m), m->planning_only ? "true" : "false");
        else
            printf("%-20s %-6s %10s  %s\n", names[i], m->family, format_count(count, sizeof count, (double)im_model_param_count(m)), only);
        im_model_close(m);
    }
    return IM_OK;
}

static int run_list(im_cli *cli, int argc, char **argv)
{
    list_options o;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = list(cli, &o);
    return im_cli_exit(cli, status);
}

static const im_cli_command list_command = {
    .name = "list",
    .help = "List the named shapes.",
    .about = "Each is a config file that --model takes by name; Transformers reads them too. IMECE_MODELS names another directory.",
    .rows = list_rows,
    .nrows = IM_COUNT_OF(list_rows),
    .run = run_list,
};

static const im_cli_command *const model_commands[] = {&show_command, &list_command};

const im_cli_command im_cli_model_command = {
    .name = "model",
    .help = "Tell what a model is: sizes, parameters, FLOPs; list the named shapes.",
    .sub = model_commands,
    .nsub = IM_COUNT_OF(model_commands),
};
