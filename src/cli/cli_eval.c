/* imece eval: the loss of a model on a token file. */
#include "cli/launch.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct report {
    im_cli *cli;
    im_train_eval_options o;
    im_str memory_text, memory_json; /* of the ranks, in their order */
} report;

static void show(void *arg, im_train_text kind, const char *text)
{
    const report *r = arg;
    if (kind == IM_TRAIN_TEXT_PROGRESS)
        im_cli_progress(r->cli, text);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

static void memory(void *arg, int rank, const im_class_bytes *classes, size_t n)
{
    report *r = arg;
    im_observe_memory m = {.rank = rank, .n = n};
    memcpy(m.by_class, classes, sizeof *classes * n);
    im_str_append(&r->memory_text, rank ? "               " : "memory         ");
    im_observe_memory_text(&m, &r->memory_text);
    im_str_append(&r->memory_text, "\n");
    im_str_append(&r->memory_json, rank ? ", {" : "{");
    im_observe_memory_json(&m, &r->memory_json);
    im_str_append(&r->memory_json, "}");
}

static void print_result(const im_observe_eval *e, const report *r)
{
    printf("loss           %.5f nats a token (%" PRId64 " tokens)\n", e->loss, e->counted);
    printf("perplexity     %.5g\n", exp(e->loss));
    printf("bits a token   %.5f\n", e->loss / M_LN2);
    if (e->bits_per_byte >= 0)
        printf("bits per byte  %.5f\n", e->bits_per_byte);
    printf("time           %.2f s, %.4g tokens/s\n", e->seconds, e->seconds > 0 ? (double)e->counted / e->seconds : 0);
    printf("%s", im_str_text(&r->memory_text));
}

static void print_json(const im_observe_eval *e, const report *r)
{
    printf("{\"loss\": %.9g, \"perplexity\": %.9g, \"bits_per_token\": %.9g, \"bits_per_byte\": ", e->loss, exp(e->loss), e->loss / M_LN2);
    if (e->bits_per_byte >= 0)
        printf("%.9g", e->bits_per_byte);
    else
        printf("null");
    printf(", \"tokens\": %" PRId64 ", \"seconds\": %.6g, \"memory\": [%s]}\n", e->counted, e->seconds, im_str_text(&r->memory_json));
}

static im_status evaluate(im_cli *cli, void *arg, im_comm_mpi_world *mpi, bool quiet)
{
    report *r = arg;
    im_observe_eval e;
    im_train_env env = {.arg = r,
                        .text = quiet ? NULL : show,
                        .stop = stop,
                        .memory = quiet ? NULL : memory,
                        .models_dir = cli->models_dir,
                        .began = cli->start,
                        .mpi = mpi};
    im_status status = im_train_eval_model(cli->ctx, &r->o, &env, &e);
    if (!quiet)
        im_cli_progress(cli, NULL);
    if (status == IM_OK && !isfinite(e.loss))
        status = im_fail(cli->ctx, IM_ERR_NONFINITE, "%s: the loss is %s: its weights hold values that are not finite, or overflow", r->o.model,
                         isnan(e.loss) ? "NaN" : "infinite");
    if (status != IM_OK || quiet)
        return status;
    if (r->memory_text.failed || r->memory_json.failed)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the result");
    if (r->o.json)
        print_json(&e, r);
    else
        print_result(&e, r);
    return IM_OK;
}

static int run_eval(im_cli *cli, int argc, char **argv)
{
    report r = {.cli = cli};
    im_status parsed = im_cli_options(cli, argc, argv, &r.o, NULL, NULL);
    int code = im_cli_run_as_job(cli, r.o.deadline, parsed, evaluate, &r);
    im_str_free(&r.memory_text);
    im_str_free(&r.memory_json);
    return code;
}

const im_cli_command im_cli_eval_command = {
    .name = "eval",
    .help = "Loss, perplexity and bits per byte of a model on a token file.",
    .about = "The loss is the sum over all tokens of the file divided by their number, whatever the batch. Bits per byte are told for models\n"
             "of bytes and for those with a tokenizer.json beside them; without one the number of bytes behind a token is not known.\n"
             "\n"
             "Several ranks share the work as in imece train and tell the loss of one: as threads of this process, or as mpirun starts them.\n"
             "\n"
             "  imece eval --model run --data book-valid\n"
             "  imece eval --model ./SmolLM2-135M --data corpus --tp 2 --pp 2\n"
             "  mpirun -n 4 imece eval --model run --data book-valid --dp 4",
    .rows = im_train_eval_rows,
    .nrows = IM_TRAIN_EVAL_ROWS,
    .run = run_eval,
};
