/* imece train: options in, a run directory out. */
#include "cli/launch.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct terminal {
    im_cli *cli;
    bool json;
    double shown; /* when the progress line was shown last */
} terminal;

static void show(void *arg, im_train_text kind, const char *text)
{
    terminal *t = arg;
    double now = im_clock_now();
    if (kind == IM_TRAIN_TEXT_PROGRESS) {
        if (now - t->shown < 0.1) /* a tiny model makes a thousand steps a second */
            return;
        t->shown = now;
        im_cli_progress(t->cli, text);
        return;
    }
    if (kind == IM_TRAIN_TEXT_EVENT || kind == IM_TRAIN_TEXT_WARNING) {
        im_log(t->cli->ctx, kind == IM_TRAIN_TEXT_EVENT ? IM_LOG_INFO : IM_LOG_WARN, "train", "%s", text);
        return;
    }
    if (kind == IM_TRAIN_TEXT_JSON) {
        if (t->json)
            printf("%s\n", text);
        return;
    }
    if (kind == IM_TRAIN_TEXT_PLAN && t->cli->level < IM_LOG_INFO)
        return;
    im_cli_progress(t->cli, NULL);
    FILE *to = t->json ? stderr : stdout; /* with --json, standard output is for the program that reads it */
    fprintf(to, "%s%s\n", kind == IM_TRAIN_TEXT_SUMMARY ? "\n" : "", text);
    fflush(to);
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0;
}

/* Nothing can be waited for any more; what was to be told is told. */
static void lost(void *arg)
{
    (void)arg;
    _exit(IM_EXIT_FAILED);
}

static im_status run(im_cli *cli, void *arg, im_comm_mpi_world *mpi, bool quiet)
{
    const im_train_options *o = arg;
    terminal t = {.cli = cli, .json = o->json};
    im_train_env env = {.arg = &t,
                        .text = quiet ? NULL : show,
                        .stop = stop,
                        .lost = lost,
                        .measure_rate = !quiet,
                        .models_dir = cli->models_dir,
                        .began = cli->start,
                        .mpi = mpi};
    return im_train_execute(cli->ctx, o, &env);
}

/* `imece train plan.yaml` is `imece train --config plan.yaml`. */
static im_status name_plan(im_cli *cli, int argc, char **argv)
{
    size_t n = argc ? strlen(argv[0]) : 0;
    if (n < 6 || argv[0][0] == '-' || strcmp(argv[0] + n - 5, ".yaml"))
        return IM_OK;
    argv[0] = im_arena_printf(cli->arena, "--config=%s", argv[0]);
    return argv[0] ? IM_OK : im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a name");
}

static int run_train(im_cli *cli, int argc, char **argv)
{
    im_train_options o;
    im_status named = name_plan(cli, argc, argv);
    if (named != IM_OK)
        return im_cli_exit(cli, named);
    im_status parsed = im_train_options_parse(cli->ctx, cli->arena, argc, argv, &o);
    if (parsed == IM_OK && o.hosts && !im_comm_mpi_launcher(getenv))
        return im_cli_exit(cli, im_cli_start_job(cli, &o, argc, argv));
    if (parsed == IM_OK && o.hosts)
        parsed = im_fail(cli->ctx, IM_ERR_ARG, "--hosts starts the processes itself: leave out either --hosts or mpirun (srun)");
    return im_cli_run_as_job(cli, parsed == IM_OK ? o.deadline : 0, parsed, run, &o);
}

const im_cli_command im_cli_train_command = {
    .name = "train",
    .args = "[PLAN.yaml]",
    .help = "Train a model on a token file.",
    .about = "Trains --model on --data until --steps, --tokens or --minutes is reached, and leaves a run directory with the options\n"
             "(plan.yaml), a line a step (metrics.jsonl) and checkpoints that Transformers opens as they are. Ctrl-C or SIGTERM finish the\n"
             "step and save; --resume RUN goes on, with the same bits as if it had not been stopped.\n"
             "\n"
             "  imece data build book.txt --out book\n"
             "  imece train --model llama-15m --data book-train --valid book-valid --minutes 10 --out run\n"
             "  imece train --resume run --minutes 20\n"
             "  imece train plan.yaml --data book-train --steps 1000\n"
             "  imece train --model ./SmolLM2-135M --data corpus --steps 1000 --lr 5e-5 --precision bf16\n"
             "  imece train --model llama-15m --data book-train --steps 1000 --tp 2 --dp 2 --hosts machines.txt",
    .rows = im_train_rows,
    .nrows = IM_TRAIN_ROWS,
    .run = run_train,
};
