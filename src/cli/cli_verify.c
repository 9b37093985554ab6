/* imece verify: layouts against one rank, as a table. */
#include "cli/cli.h"
#include "cli/launch.h"
#include "train/verify.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct table {
    im_cli *cli;
    bool json;
    int width; /* of the names */
} table;

static FILE *where(const table *t)
{
    return t->json ? stderr : stdout; /* with --json, standard output is for the program that reads it */
}

static void progress(void *arg, const char *text)
{
    const table *t = arg;
    im_cli_progress(t->cli, text);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

static int width_of_names(const im_train_verify_set *s)
{
    size_t width = 12;
    for (size_t i = 0; i < s->n; i++) {
        char name[IM_TRAIN_VERIFY_NAME];
        im_train_verify_name(&s->layout[i], name, sizeof name);
        width = strlen(name) > width ? strlen(name) : width;
    }
    return (int)width;
}

static void begin(void *arg, const im_train_verify_report *r)
{
    table *t = arg;
    char a[32], b[32];
    FILE *to = where(t);
    im_cli_progress(t->cli, NULL);
    t->width = width_of_names(r->set);
    fprintf(to, "%s, weights %s; %" PRId64 " steps of %" PRId64 " sequences of %" PRId64 " tokens; tolerance %g\n", r->model,
            r->drawn ? "drawn" : "loaded", r->steps, r->global_batch, r->seq_len, r->tolerance);
    fprintf(to, "one rank: loss %.6f, gradient norm %.6g in the first step; memory %s predicted, %s measured; %.1f s\n", r->loss, r->grad_norm,
            im_format_bytes(a, sizeof a, (double)r->reference.predicted), im_format_bytes(b, sizeof b, (double)r->reference.measured),
            r->reference.seconds);
    if (!r->strict)
        fprintf(
            to,
            "one rank again, the last bits of its weights moved: loss %.1e, norm %.1e, gradient %.1e (%s); ten times that is no fault of a layout\n",
            r->rounded.loss, r->rounded.norm, r->rounded.gradient, r->rounded.param);
    for (size_t i = 0; i < r->set->nrefused; i++) {
        const im_train_verify_refusal *x = &r->set->refused[i];
        fprintf(to, "refused: %s", x->first);
        if (x->count > 1)
            fprintf(to, " and %d more", x->count - 1);
        fprintf(to, ": %s\n", x->reason);
    }
    fprintf(to, "\n%-*s %5s  %8s %8s %8s  %10s %10s %7s  %s\n", t->width, "layout", "ranks", "loss", "norm", "gradient", "predicted", "measured",
            "seconds", "verdict");
    fflush(to);
}

static void row(void *arg, const im_train_verify_report *r, const im_train_verify_row *x)
{
    const table *t = arg;
    (void)r;
    char a[32], b[32];
    FILE *to = where(t);
    im_cli_progress(t->cli, NULL);
    fprintf(to, "%-*s %5d  %8.1e %8.1e %8.1e  %10s %10s %7.1f  %s", t->width, x->name, x->ranks, x->loss, x->norm, x->gradient,
            im_format_bytes(a, sizeof a, (double)x->predicted), im_format_bytes(b, sizeof b, (double)x->measured), x->seconds,
            im_train_verify_verdict_name(x->verdict));
    if (x->verdict == IM_TRAIN_VERIFY_FAILED)
        fprintf(to, ": %s", x->first);
    else if (*x->param)
        fprintf(to, "  %s[%" PRId64 "]", x->param, x->index);
    if (x->verdict == IM_TRAIN_VERIFY_DIFFERS)
        fprintf(to, "\n    first difference: %s", x->first);
    else if (x->verdict != IM_TRAIN_VERIFY_FAILED && *x->first)
        fprintf(to, "\n    %s", x->first);
    fprintf(to, "\n");
    fflush(to);
}

static void text_member(im_str *s, const char *key, const char *text)
{
    im_str_printf(s, "\"%s\": ", key);
    im_str_json_string(s, text, strlen(text));
}

static void number_member(im_str *s, const char *key, double v)
{
    if (isfinite(v))
        im_str_printf(s, ", \"%s\": %.9g", key, v);
    else
        im_str_printf(s, ", \"%s\": null", key);
}

static void row_json(im_str *s, const im_train_verify_row *x)
{
    const im_train_verify_layout *l = &x->layout;
    static const char *const recompute[] = {"none", "selective", "full"};
    im_str_append(s, "{");
    text_member(s, "layout", x->name);
    im_str_printf(s,
                  ", \"ranks\": %d, \"tp\": %d, \"sp\": %s, \"dp\": %d, \"pp\": %d, \"schedule\": %s%s%s, \"chunks\": %d, \"zero\": %d, "
                  "\"recompute\": \"%s\", \"micro_batch\": %" PRId64,
                  x->ranks, l->tp, l->sp ? "true" : "false", l->dp, l->pp, l->pp > 1 ? "\"" : "",
                  l->pp > 1 ? im_schedule_of(l->schedule)->name : "null", l->pp > 1 ? "\"" : "", l->chunks, l->zero, recompute[l->recompute],
                  l->micro_batch);
    number_member(s, "loss", x->loss);
    number_member(s, "grad_norm", x->norm);
    number_member(s, "gradient", x->gradient);
    im_str_append(s, ", ");
    text_member(s, "parameter", x->param);
    im_str_printf(s, ", \"index\": %" PRId64 ", \"predicted_bytes\": %zu, \"measured_bytes\": %zu, \"seconds\": %.3f, \"verdict\": \"%s\", ",
                  x->index, x->predicted, x->measured, x->seconds, im_train_verify_verdict_name(x->verdict));
    text_member(s, x->verdict == IM_TRAIN_VERIFY_FAILED ? "error" : "first_difference", x->first);
    im_str_append(s, "}");
}

static void print_json(const im_train_verify_report *r)
{
    im_str s = {0};
    im_str_append(&s, "{");
    text_member(&s, "model", r->model);
    im_str_printf(&s,
                  ", \"weights\": \"%s\", \"max_ranks\": %" PRId64 ", \"steps\": %" PRId64 ", \"seq_len\": %" PRId64 ", \"global_batch\": %" PRId64,
                  r->drawn ? "drawn" : "loaded", r->ranks, r->steps, r->seq_len, r->global_batch);
    number_member(&s, "tolerance", r->tolerance);
    number_member(&s, "loss", r->loss);
    number_member(&s, "grad_norm", r->grad_norm);
    im_str_append(&s, ", \"rounding\": ");
    if (r->strict) {
        im_str_append(&s, "null");
    } else {
        im_str_append(&s, "{\"parameter\": ");
        im_str_json_string(&s, r->rounded.param, strlen(r->rounded.param));
        number_member(&s, "loss", r->rounded.loss);
        number_member(&s, "grad_norm", r->rounded.norm);
        number_member(&s, "gradient", r->rounded.gradient);
        im_str_append(&s, "}");
    }
    im_str_append(&s, ", \"layouts\": [");
    for (size_t i = 0; i < r->nrow; i++) {
        im_str_append(&s, i ? ", " : "");
        row_json(&s, &r->row[i]);
    }
    im_str_append(&s, "], \"refused\": [");
    for (size_t i = 0; i < r->set->nrefused; i++) {
        im_str_append(&s, i ? ", {" : "{");
        text_member(&s, "layout", r->set->refused[i].first);
        im_str_printf(&s, ", \"count\": %d, ", r->set->refused[i].count);
        text_member(&s, "reason", r->set->refused[i].reason);
        im_str_append(&s, "}");
    }
    im_str_printf(&s, "], \"seconds\": %.3f, \"wrong\": %zu, \"verdict\": \"%s\"}", r->seconds, r->wrong, r->wrong ? "differs" : "same");
    puts(im_str_text(&s));
    im_str_free(&s);
}

static void end(void *arg, const im_train_verify_report *r)
{
    const table *t = arg;
    im_cli_progress(t->cli, NULL);
    if (t->json)
        print_json(r);
    else if (!r->wrong)
        printf("\n%zu layouts compute what one rank computes (%.1f s)\n", r->nrow, r->seconds);
}

static int run_verify(im_cli *cli, int argc, char **argv)
{
    im_train_verify_options o = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status == IM_OK)
        status = im_cli_refuse_job(cli);
    if (status != IM_OK)
        return im_cli_exit(cli, status);
    im_cli_catch_signals();
    table t = {.cli = cli, .json = o.json};
    im_train_verify_env env = {.arg = &t, .begin = begin, .row = row, .progress = progress, .stop = stop, .models_dir = cli->models_dir};
    return im_cli_exit(cli, im_train_verify_execute(cli->ctx, &o, &env, end));
}

const im_cli_command im_cli_verify_command = {
    .name = "verify",
    .help = "Prove that layouts compute what one rank computes.",
    .about = "Runs some steps of the model on one rank, then on every layout in the set, ranks as threads, from the same weights on the same\n"
             "data, and compares losses, gradient norms and every parameter's first gradient. Exit 3 when one is over the tolerance (and, without\n"
             "--strict, over ten times what one rank itself changes when the last bits of its weights do: verdict rounding); the\n"
             "first instruction and unit that differ are told. Weights are loaded when the model has them, else drawn.\n"
             "\n"
             "  imece verify --model ./SmolLM2-135M --ranks 4\n"
             "  imece verify --model llama-bytes-tiny --data book-train --ranks 8 --layouts all\n"
             "  imece verify --model gpt2 --layouts tp2+sp,dp2+zero3,tp2+dp2+full,pp2+gpipe,pp4+interleaved3",
    .rows = im_train_verify_rows,
    .nrows = IM_TRAIN_VERIFY_ROWS,
    .run = run_verify,
};
