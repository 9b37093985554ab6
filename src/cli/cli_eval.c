/* imece eval: the loss of a model on a token file. */
#include "cli/cli.h"
#include "train/train.h"

#include <inttypes.h>
#include <math.h>

static void show(void *arg, im_train_text kind, const char *text)
{
    if (kind == IM_TRAIN_TEXT_PROGRESS)
        im_cli_progress(arg, text);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

static void print_result(const im_observe_eval *e)
{
    printf("loss           %.5f nats a token (%" PRId64 " tokens)\n", e->loss, e->counted);
    printf("perplexity     %.5g\n", exp(e->loss));
    printf("bits a token   %.5f\n", e->loss / M_LN2);
    if (e->bits_per_byte >= 0)
        printf("bits per byte  %.5f\n", e->bits_per_byte);
    printf("time           %.2f s, %.4g tokens/s\n", e->seconds, e->seconds > 0 ? (double)e->counted / e->seconds : 0);
}

static void print_json(const im_observe_eval *e)
{
    printf("{\"loss\": %.9g, \"perplexity\": %.9g, \"bits_per_token\": %.9g, \"bits_per_byte\": ", e->loss, exp(e->loss), e->loss / M_LN2);
    if (e->bits_per_byte >= 0)
        printf("%.9g", e->bits_per_byte);
    else
        printf("null");
    printf(", \"tokens\": %" PRId64 ", \"seconds\": %.6g}\n", e->counted, e->seconds);
}

static int run_eval(im_cli *cli, int argc, char **argv)
{
    im_train_eval_options o = {0};
    im_observe_eval e;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, NULL);
    if (status != IM_OK)
        return im_cli_exit(cli, status);
    im_cli_catch_signals();
    im_train_env env = {.arg = cli, .text = show, .stop = stop, .models_dir = cli->models_dir, .began = cli->start};
    status = im_train_eval_model(cli->ctx, &o, &env, &e);
    im_cli_progress(cli, NULL);
    if (status == IM_OK && !isfinite(e.loss))
        status = im_fail(cli->ctx, IM_ERR_NONFINITE, "%s: the loss is %s: its weights hold values that are not finite, or overflow", o.model,
                         isnan(e.loss) ? "NaN" : "infinite");
    if (status == IM_OK) {
        if (o.json)
            print_json(&e);
        else
            print_result(&e);
    }
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_eval_command = {
    .name = "eval",
    .help = "Loss, perplexity and bits per byte of a model on a token file.",
    .about = "The loss is the sum over all tokens of the file divided by their number, whatever the batch. Bits per byte are told for models\n"
             "of bytes and for those with a tokenizer.json beside them; without one the number of bytes behind a token is not known.\n"
             "\n"
             "  imece eval --model run --data book-valid",
    .rows = im_train_eval_rows,
    .nrows = IM_TRAIN_EVAL_ROWS,
    .run = run_eval,
};
