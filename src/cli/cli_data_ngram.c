/* imece data ngram: what counting alone reaches. */
#include "cli/cli_data.h"
#include <inttypes.h>

typedef struct ngram_options {
    bool json;
} ngram_options;

static const im_option ngram_rows[] = {
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "One JSON object.", .offset = offsetof(ngram_options, json)},
};

static im_status ngram(im_cli *cli, const ngram_options *o, const im_option_list *rest)
{
    im_context *ctx = cli->ctx;
    im_arena *a = cli->arena;
    im_tokens *train, *valid = NULL;
    im_ngram_result r;
    if (rest->n < 1 || rest->n > 2)
        return im_fail(ctx, IM_ERR_ARG, "data ngram: imece data ngram NAME, or imece data ngram TRAIN VALID");
    IM_TRY(im_tokens_open(ctx, im_cli_token_name(a, rest->item[0], 0), &train));
    im_status status = im_tokens_open(ctx, rest->n == 2 ? rest->item[1] : im_cli_token_name(a, rest->item[0], 1), &valid);
    if (status != IM_OK)
        goto close_train;
    IM_TRY_GOTO(im_ngram_score(ctx, train, valid, &r), close_valid);
    static const char *const name[] = {"uniform", "unigram", "bigram", "trigram"};
    double scale = r.scored_bytes ? (double)r.scored / (double)r.scored_bytes : 1;
    if (o->json)
        printf("{\"scored\": %" PRId64, r.scored);
    for (int k = 0; k <= IM_NGRAM_MAX; k++)
        printf(o->json ? ", \"%s\": %.6f" : "%-8s %7.4f bits per byte\n", name[k], r.bits[k] * scale);
    if (o->json)
        puts("}");
close_valid:
    im_tokens_close(valid);
close_train:
    im_tokens_close(train);
    return status;
}

static int run_ngram(im_cli *cli, int argc, char **argv)
{
    ngram_options o;
    im_option_list rest = {0};
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &rest);
    if (status == IM_OK)
        status = ngram(cli, &o, &rest);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_data_ngram_command = {
    .name = "ngram",
    .args = "NAME | TRAIN VALID",
    .help = "Score interpolated uni-, bi- and trigram models: what counting alone reaches.",
    .about = "Counts the training tokens (bytes), fits the weights of the mixture on a tenth of them that was not counted, and tells\n"
             "bits a byte on the validation tokens: bits of all tokens over the number of those that are bytes, as imece eval does.",
    .rows = ngram_rows,
    .nrows = IM_COUNT_OF(ngram_rows),
    .run = run_ngram,
};
