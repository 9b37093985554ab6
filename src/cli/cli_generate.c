/* imece generate: what a model goes on with. */
#include "cli/launch.h"
#include "infer/infer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PROMPT = 64 << 20 };

typedef struct screen {
    bool json;
    bool lines; /* whole lines alone: what Open MPI 5's mpirun (PRRTE) has of a line that is not at its end, it gives out with stderr */
    char last;  /* byte shown last */
} screen;

static void show_text(void *arg, const char *utf8, size_t n)
{
    screen *s = arg;
    if (s->json || !n)
        return;
    fwrite(utf8, 1, n, stdout);
    if (!s->lines)
        fflush(stdout);
    s->last = utf8[n - 1];
}

static bool stop(void *arg)
{
    (void)arg;
    return im_cli_signal() != 0 || ferror(stdout);
}

/* All of standard input, NUL behind it. */
static im_status read_stdin(im_cli *cli, char **out, size_t *len)
{
    im_str s = {0};
    char piece[65536];
    ssize_t n;
    while ((n = read(STDIN_FILENO, piece, sizeof piece)) > 0 && s.len <= MOST_PROMPT && !s.failed)
        im_str_append_n(&s, piece, (size_t)n);
    im_status status = IM_OK;
    char *text = NULL;
    if (n < 0)
        status = im_fail_errno(cli->ctx, "standard input");
    else if (s.len > MOST_PROMPT)
        status = im_fail(cli->ctx, IM_ERR_ARG, "standard input: a prompt of more than %d MiB", MOST_PROMPT >> 20);
    else if (s.failed || !(text = im_arena_alloc(cli->arena, s.len + 1)))
        status = im_fail(cli->ctx, IM_ERR_NOMEM, "standard input: no memory for the prompt");
    else
        memcpy(text, im_str_text(&s), s.len);
    *len = s.len;
    *out = text;
    im_str_free(&s);
    return status;
}

static bool is_dash(const char *text)
{
    return text && !strcmp(text, "-");
}

/* "-" as --prompt, --ids or alone: standard input. */
static im_status resolve_prompt(im_cli *cli, const im_option_list *rest, im_infer_options *o)
{
    if (rest->n > 1 || (rest->n == 1 && !is_dash(rest->item[0])))
        return im_fail(cli->ctx, IM_ERR_ARG, "\"%.100s\": a prompt stands behind --prompt; - alone reads it from standard input",
                       rest->item[rest->n - 1]);
    if (rest->n && (o->prompt || o->ids))
        return im_fail(cli->ctx, IM_ERR_ARG, "-: standard input is the prompt, and %s gives one too; one of them", o->prompt ? "--prompt" : "--ids");
    if (o->prompt && o->ids)
        return im_fail(cli->ctx, IM_ERR_ARG, "--prompt and --ids: one of them");
    bool text = rest->n || is_dash(o->prompt);
    if (!text && !is_dash(o->ids))
        return IM_OK;
    char *in;
    size_t n;
    IM_TRY(read_stdin(cli, &in, &n));
    if (!text) {
        o->ids = in;
        if (strlen(in) != n)
            return im_fail(cli->ctx, IM_ERR_ARG, "--ids: standard input has a zero byte at %zu; numbers with commas or spaces between", strlen(in));
        return IM_OK;
    }
    if (n && in[n - 1] == '\n')
        in[--n] = '\0';
    o->prompt = in;
    o->prompt_len = n;
    return IM_OK;
}

static void print_json(const im_infer_result *r)
{
    im_str s = {0};
    im_infer_result_json(r, &s);
    printf("%s\n", im_str_text(&s));
    im_str_free(&s);
}

static void sum_up(im_cli *cli, const im_infer_result *r)
{
    const char *why = r->stop == IM_INFER_STOP_EOS ? "the model's end of text" : im_infer_stop_name(r->stop);
    im_log(cli->ctx, IM_LOG_INFO, "generate", "%zu tokens read in %.2f s, %zu new at %.4g/s, ready after %.2f s; stopped by %s%s%s", r->nprompt,
           r->prompt_s, r->n, r->n && r->next_s > 0 ? (double)r->n / r->next_s : 0, r->load_s, why, r->stop_string ? " " : "",
           r->stop_string ? r->stop_string : "");
    for (int i = 0; i < r->ranks; i++) {
        im_str text = {0};
        im_observe_memory_text(&r->memory[i], &text);
        im_log(cli->ctx, IM_LOG_INFO, "generate", "memory of %s", im_str_text(&text));
        im_str_free(&text);
    }
}

typedef struct request {
    im_infer_options o;
    im_option_list rest;
} request;

static void tell(im_cli *cli, const im_infer_options *o, const screen *s, const im_infer_result *r)
{
    if (o->json)
        print_json(r);
    else if (r->n && s->last != '\n' && (cli->out_is_terminal || !r->bytes || s->lines))
        putchar('\n');
    fflush(stdout);
    if (!ferror(stdout)) /* else main tells */
        sum_up(cli, r);
}

/* Rank 0 alone reads standard input, and writes. */
static im_status read_prompt(im_cli *cli, request *q, bool quiet)
{
    if (q->o.prompt_logprobs && !q->o.json)
        return im_fail(cli->ctx, IM_ERR_ARG, "--logprobs-of-prompt is part of the JSON object: give --json too");
    if (!quiet)
        return resolve_prompt(cli, &q->rest, &q->o);
    if (!q->o.prompt && !q->o.ids)
        q->o.prompt = "-"; /* rank 0's */
    return IM_OK;
}

static im_status generate(im_cli *cli, void *arg, im_comm_mpi_world *mpi, bool quiet)
{
    request *q = arg;
    im_status status = read_prompt(cli, q, quiet);
    if (status != IM_OK) {
        if (mpi)
            im_comm_mpi_world_abort(mpi, im_error_text(cli->ctx));
        return status;
    }
    screen s = {.json = q->o.json, .lines = im_cli_under_prrte()};
    if (s.lines)
        setvbuf(stdout, NULL, _IOLBF, 0);
    im_infer_sink sink = {.arg = &s, .text = show_text, .stop = stop};
    im_infer_result r;
    IM_TRY(im_infer_generate(cli->ctx, &q->o, cli->models_dir, mpi, &sink, &r));
    if (!quiet)
        tell(cli, &q->o, &s, &r);
    if (im_cli_signal() && r.stop == IM_INFER_STOP_ASKED)
        status = im_fail(cli->ctx, IM_ERR_STOPPED, "stopped after %zu new tokens", r.n);
    im_infer_result_free(&r);
    return status;
}

static int run_generate(im_cli *cli, int argc, char **argv)
{
    request q = {0};
    im_status parsed = im_cli_options(cli, argc, argv, &q.o, NULL, &q.rest);
    return im_cli_run_as_job(cli, q.o.deadline, parsed, generate, &q);
}

const im_cli_command im_cli_generate_command = {
    .name = "generate",
    .args = "[-]",
    .help = "Go on with a prompt: text, or ids.",
    .about =
        "Writes what the model goes on with, as it comes; the prompt is not repeated. Ids are drawn at temperature 0.8 from the likeliest\n"
        "95 %, with a fixed seed: the same command writes the same text, another --seed another one, and --temperature 0 always takes the\n"
        "likeliest. It ends after --max-tokens, at the model's end of text (eos_token_id in its config), or before a --stop text.\n"
        "\n"
        "Text goes through the tokenizer.json in the model's directory; models of bytes (what imece data build makes) need none. Only whole\n"
        "characters are written, bytes that are no UTF-8 become U+FFFD. Without a tokenizer give --ids; ids are written then.\n"
        "\n"
        "  imece generate --model run --prompt \"Once \" --max-tokens 200 --seed 7\n"
        "  imece generate --model ./SmolLM2-135M-Instruct --chat --prompt \"Where is Ankara?\" --temperature 0\n"
        "  imece generate --model ./SmolLM2-135M --ids 504,260 --temperature 0 --json\n"
        "  imece generate --model run - < letter.txt\n"
        "\n"
        "Several ranks share the model as in imece train: each has its part of the weights and of the cache, one of them draws, and the ids are\n"
        "those of one rank. They are threads of this process, or as mpirun starts them.\n"
        "\n"
        "  imece generate --model ./SmolLM2-135M --prompt \"Once\" --tp 2\n"
        "  mpirun -n 4 imece generate --model ./SmolLM2-135M --prompt \"Once\" --tp 2 --pp 2",
    .rows = im_infer_rows,
    .nrows = IM_INFER_ROWS,
    .run = run_generate,
};
