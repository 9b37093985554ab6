/* Trains a small model on the bytes of a text file and lets it write.
 *     cc train.c $(pkg-config --cflags --libs imece) -o train && ./train TEXT RUN_DIRECTORY [STEPS]
 */
#include <imece.h>
#include <stdio.h>
#include <stdlib.h>

static void show(void *arg, im_text_kind kind, const char *text)
{
    (void)arg;
    if (kind == IM_TEXT_PROGRESS)
        fprintf(stderr, "\r%s", text);
    else if (kind != IM_TEXT_JSON)
        fprintf(stderr, "\n%s\n", text);
}

static im_status run(im_context *ctx, const char *text, const char *dir, const char *steps)
{
    char data[4096], train[4200], valid[4200];
    const im_hooks hooks = {.text = show};
    const char *files[] = {text};
    snprintf(data, sizeof data, "%s-data", dir);
    snprintf(train, sizeof train, "%s-train", data);
    snprintf(valid, sizeof valid, "%s-valid", data);

    /* the options are those of `imece train --help` and so on */
    const char *training[] = {
        "--model", "llama-bytes-tiny", "--data", train, "--valid", valid, "--out", dir, "--steps", steps, "--seq-len", "64", "--lr", "3e-3",
    };
    const char *evaluation[] = {"--model", dir, "--data", valid};
    const char *generation[] = {"--model", dir, "--prompt", "The ", "--max-tokens", "60"};
    im_evaluation e;
    char *written;
    im_status status = im_data_build(ctx, data, files, 1, 0.05); /* a token a byte; a part is set aside */
    if (!status)
        status = im_train(ctx, training, sizeof training / sizeof *training, &hooks);
    if (!status)
        status = im_evaluate(ctx, evaluation, 4, NULL, &e);
    if (!status)
        status = im_generate(ctx, generation, 6, NULL, &written);
    if (status)
        return status;
    printf("validation: %.3f bits per byte over %lld tokens\nThe %s\n", e.bits_per_byte, (long long)e.tokens, written);
    free(written);
    return IM_OK;
}

int main(int argc, char **argv)
{
    im_context *ctx;
    if (argc < 3 || im_context_create(&ctx) != IM_OK)
        return 2;
    im_status status = run(ctx, argv[1], argv[2], argc > 3 ? argv[3] : "50");
    if (status)
        fprintf(stderr, "train: %s\n", im_error_text(ctx));
    im_context_destroy(ctx);
    return status ? 1 : 0;
}
