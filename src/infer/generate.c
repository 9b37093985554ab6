/* A prompt and its continuation: options in, text out as it comes. */
#include "infer/internal.h"

#include "data/data.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *im_infer_stop_name(im_infer_stop s)
{
    static const char *const name[] = {"length", "eos", "stop string", "asked"};
    return name[s];
}

/* ---- the prompt --------------------------------------------------------------------------------- */

static bool separates(char c)
{
    return c == ',' || c == '\0' || isspace((unsigned char)c);
}

/* "1,2 3": numbers with commas or white space between. */
static im_status parse_ids(im_context *ctx, const im_infer_options *o, const im_model *m, im_infer_result *r)
{
    void *memory;
    IM_TRY(im_alloc(ctx, strlen(o->ids) / 2 + 2, sizeof(int32_t), &memory));
    r->prompt = memory;
    for (const char *at = o->ids; *at;) {
        if (separates(*at)) {
            at++;
            continue;
        }
        char *end;
        long long id = strtoll(at, &end, 10);
        int len = (int)strcspn(at, ", \t\r\n");
        if (end == at || !separates(*end))
            return im_fail(ctx, IM_ERR_ARG, "--ids: \"%.*s\" at character %zu is no id: numbers with commas or spaces between, as in \"1,2,3\"",
                           len < 40 ? len : 40, at, (size_t)(at - o->ids) + 1);
        if (id < 0 || id >= m->arch.V)
            return im_fail(ctx, IM_ERR_ARG, "--ids: %.*s (number %zu): ids are from 0 to %" PRId64 " (%s: vocab_size)", len < 40 ? len : 40, at,
                           r->nprompt + 1, m->arch.V - 1, m->source);
        r->prompt[r->nprompt++] = (int32_t)id;
        at = end;
    }
    if (!r->nprompt)
        return im_fail(ctx, IM_ERR_ARG, "--ids: there is no id in it; at least one, as in \"1,2,3\"");
    return IM_OK;
}

static im_status bytes_of_text(im_context *ctx, const im_infer_options *o, im_infer_result *r)
{
    size_t n = o->prompt_len ? o->prompt_len : strlen(o->prompt);
    void *memory;
    IM_TRY(im_alloc(ctx, n + 1, sizeof(int32_t), &memory));
    r->prompt = memory;
    r->nprompt = n ? n : 1;
    r->prompt[0] = IM_BYTE_EOD; /* what stands before the first byte of a document */
    for (size_t i = 0; i < n; i++)
        r->prompt[i] = (unsigned char)o->prompt[i];
    return IM_OK;
}

/* tok NULL: bytes, of a conversation. */
static im_status tokens_of_text(im_context *ctx, const im_infer_options *o, const im_tok *tok, im_infer_turn_end *end, im_infer_result *r)
{
    im_tok_ids ids = {0};
    size_t n = o->prompt_len ? o->prompt_len : strlen(o->prompt);
    im_status status =
        o->chat ? im_infer_chat_of(ctx, tok, o->chat_format, o->prompt, n, &ids, end) : im_infer_tokens_of(ctx, tok, o->prompt, n, &ids);
    if (status != IM_OK) {
        im_tok_ids_free(&ids);
        return status;
    }
    r->prompt = ids.id;
    r->nprompt = ids.n;
    return IM_OK;
}

static im_status make_prompt(im_context *ctx, const im_infer_options *o, const im_infer *g, const im_tok *tok, im_infer_turn_end *end,
                             im_infer_result *r)
{
    const im_model *m = im_infer_model(g);
    r->bytes = im_infer_is_bytes(g) || tok;
    for (size_t i = 0; i < o->stop.n; i++)
        if (!o->stop.item[i][0])
            return im_fail(ctx, IM_ERR_ARG, "--stop: an empty text would end everything at once");
    if (o->ids && !r->bytes && o->stop.n)
        return im_fail(ctx, IM_ERR_UNSUPPORTED,
                       "--stop: %s has a vocabulary of %" PRId64 " ids, and their text is not known here (there is no tokenizer.json beside it)",
                       m->source, m->arch.V);
    if (o->ids)
        return parse_ids(ctx, o, m, r);
    if (tok || (r->bytes && o->chat))
        return tokens_of_text(ctx, o, tok, end, r);
    if (r->bytes)
        return bytes_of_text(ctx, o, r);
    return im_fail(ctx, IM_ERR_UNSUPPORTED,
                   "--prompt: %s has a vocabulary of %" PRId64
                   " ids, it is no model of bytes (vocabulary %d), and there is no tokenizer.json beside it: put one there, or give --ids \"1,2,3\"",
                   m->source, m->arch.V, IM_BYTE_VOCAB);
}

static im_status check_options(im_context *ctx, const im_infer_options *o)
{
    if (o->prompt && o->ids)
        return im_fail(ctx, IM_ERR_ARG, "--prompt and --ids: one of them");
    if (o->ids && o->chat)
        return im_fail(ctx, IM_ERR_ARG, "--chat is for a --prompt: --ids are taken as they are");
    if (o->chat_format && !o->chat)
        return im_fail(ctx, IM_ERR_ARG, "--chat-format says how --chat writes: give --chat too");
    if (o->model && !o->prompt && !o->ids)
        return im_fail(ctx, IM_ERR_ARG, "--prompt is missing: a text, - for standard input, or --ids");
    return IM_OK;
}

/* How many new ids: what was asked for, within the model's positions. */
static im_status count_new(im_context *ctx, const im_infer_options *o, const im_model *m, size_t nprompt, int64_t *out)
{
    int64_t P = m->arch.P ? m->arch.P : INT32_MAX, left = P - (int64_t)nprompt; /* some families have no last position */
    if (left < 0 || (left == 0 && o->max_tokens != 0))
        return im_fail(ctx, IM_ERR_ARG, "the prompt has %zu tokens, and the model %" PRId64 " positions for prompt and new tokens (%s): shorten it",
                       nprompt, P, m->source);
    if (o->max_tokens > left)
        return im_fail(ctx, IM_ERR_ARG,
                       "--max-tokens %" PRId64 " behind a prompt of %zu tokens is beyond the model's %" PRId64 " positions (%s): at most %" PRId64,
                       o->max_tokens, nprompt, P, m->source, left);
    *out = o->max_tokens >= 0 ? o->max_tokens : left < IM_INFER_DEFAULT_TOKENS ? left : IM_INFER_DEFAULT_TOKENS;
    return IM_OK;
}

/* ---- the continuation ------------------------------------------------------------------------------ */

typedef struct writer {
    im_context *ctx;
    const im_tok *tok; /* NULL: a model of bytes, or ids as numbers */
    im_tok_stream stream;
    im_str piece;     /* bytes of the ids so far that did not go through stops yet */
    int32_t chat_end; /* -1: none */
    im_infer_stops stops;
    im_infer_utf8 utf8;
    im_str bytes; /* free of stop strings, not yet decoded */
    const im_infer_sink *sink;
    im_infer_result *r;
} writer;

/* Decodes what is certain, and shows it. */
static void show(writer *w, bool end)
{
    size_t before = w->r->text.len;
    im_infer_utf8_push(&w->utf8, im_str_text(&w->bytes), w->bytes.len, &w->r->text);
    if (end)
        im_infer_utf8_end(&w->utf8, &w->r->text);
    w->bytes.len = 0;
    size_t n = w->r->text.len - before;
    if (n && w->sink->text)
        w->sink->text(w->sink->arg, w->r->text.data + before, n);
}

/* Text that is not known here: the id as a number. */
static void show_id(writer *w, int32_t id)
{
    size_t before = w->r->text.len;
    im_str_printf(&w->r->text, "%s%d", before ? " " : "", id);
    if (w->sink->text && !w->r->text.failed)
        w->sink->text(w->sink->arg, w->r->text.data + before, w->r->text.len - before);
}

/* true: the stream ends here. */
static bool take_byte(writer *w, int32_t id)
{
    int stop = im_infer_stops_push(&w->stops, (char)id, &w->bytes);
    if (stop >= 0) {
        w->r->stop = IM_INFER_STOP_STRING;
        w->r->stop_string = w->stops.text[stop];
    }
    show(w, stop >= 0);
    return stop >= 0;
}

/* true: a stop string came. */
static bool take_piece(writer *w)
{
    bool stops = false;
    for (size_t i = 0; i < w->piece.len && !stops; i++)
        stops = take_byte(w, (unsigned char)w->piece.data[i]);
    w->piece.len = 0;
    return stops;
}

/* Special tokens give no text, and neither do ids that the tokenizer does not have (a vocabulary may be padded). */
static im_status take_token(writer *w, int32_t id, bool *stops)
{
    size_t n;
    *stops = false;
    if (!im_tok_token(w->tok, id, &n))
        return IM_OK;
    IM_TRY(im_tok_stream_push(w->ctx, w->tok, &w->stream, id, true, &w->piece));
    *stops = take_piece(w);
    return IM_OK;
}

static im_status go_on(im_infer *g, writer *w, int64_t most)
{
    im_infer_result *r = w->r;
    const im_infer_sink *sink = w->sink;
    r->stop = IM_INFER_STOP_LENGTH;
    while ((int64_t)r->n < most) {
        if (sink->stop && sink->stop(sink->arg)) {
            r->stop = IM_INFER_STOP_ASKED;
            return IM_OK;
        }
        int32_t id = 0;
        float p = 0;
        IM_TRY(im_infer_next(g, &id, &p));
        r->id[r->n] = id;
        r->logprob[r->n++] = p;
        if (sink->id)
            sink->id(sink->arg, id, p);
        if (im_infer_is_end(g, id) || id == w->chat_end) {
            r->stop = IM_INFER_STOP_EOS;
            return IM_OK;
        }
        if (w->tok) {
            bool stops;
            IM_TRY(take_token(w, id, &stops));
            if (stops)
                return IM_OK;
        } else if (!r->bytes)
            show_id(w, id);
        else if (id < IM_BYTE_EOD && take_byte(w, id))
            return IM_OK;
    }
    return IM_OK;
}

/* The stop texts of the options, and what ends an answer. */
static im_status gather_stops(im_context *ctx, const im_infer_options *o, const im_infer_turn_end *end, const char ***out)
{
    void *memory;
    IM_TRY(im_alloc(ctx, o->stop.n + 1, sizeof(const char *), &memory));
    *out = memory;
    for (size_t i = 0; i < o->stop.n; i++)
        (*out)[i] = o->stop.item[i];
    (*out)[o->stop.n] = end->text;
    return IM_OK;
}

static im_status write_all(im_context *ctx, im_infer *g, const im_infer_options *o, const im_tok *tok, const im_infer_turn_end *end, int64_t most,
                           const im_infer_sink *sink, im_infer_result *r)
{
    const char **stops;
    IM_TRY(gather_stops(ctx, o, end, &stops));
    writer w = {.ctx = ctx, .tok = tok, .chat_end = end->id, .stops = {.text = stops, .n = o->stop.n + (end->text != NULL)}, .sink = sink, .r = r};
    im_status status = go_on(g, &w, most);
    if (status == IM_OK && tok && r->stop != IM_INFER_STOP_STRING) { /* bytes that waited for more */
        status = im_tok_stream_end(ctx, tok, &w.stream, &w.piece);
        take_piece(&w);
    }
    im_tok_stream_free(&w.stream);
    im_str_free(&w.piece);
    im_infer_stops_end(&w.stops, &w.bytes); /* a stop string that did not come whole is text */
    show(&w, true);
    if (status == IM_OK && (w.bytes.failed || r->text.failed))
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the text");
    if (end->text && r->stop_string == end->text) { /* the answer's end, in letters */
        r->stop = IM_INFER_STOP_EOS;
        r->stop_string = NULL;
    }
    im_infer_stops_free(&w.stops);
    im_str_free(&w.bytes);
    free(stops);
    return status;
}

static im_status make_room(im_context *ctx, const im_infer_options *o, int64_t most, im_infer_result *r)
{
    void *id, *logprob, *prompt = NULL;
    IM_TRY(im_alloc(ctx, (size_t)most + 1, sizeof(int32_t), &id));
    r->id = id;
    IM_TRY(im_alloc(ctx, (size_t)most + 1, sizeof(float), &logprob));
    r->logprob = logprob;
    if (o->prompt_logprobs)
        IM_TRY(im_alloc(ctx, r->nprompt, sizeof(float), &prompt));
    r->prompt_logprob = prompt;
    return IM_OK;
}

static im_status generate(im_context *ctx, im_infer *g, const im_infer_options *o, im_infer_config cfg, const im_tok *tok, const im_infer_sink *sink,
                          im_infer_result *r)
{
    int64_t most = 0;
    double t0 = im_clock_now();
    im_infer_turn_end end = {.id = -1};
    IM_TRY(make_prompt(ctx, o, g, tok, &end, r));
    IM_TRY(count_new(ctx, o, im_infer_model(g), r->nprompt, &most));
    IM_TRY(make_room(ctx, o, most, r));
    cfg.positions = (int64_t)r->nprompt + most;
    cfg.first_feed = (int64_t)r->nprompt;
    IM_TRY(im_infer_start(g, &cfg));
    double t1 = im_clock_now();
    IM_TRY(im_infer_feed(g, r->prompt, r->nprompt, r->prompt_logprob));
    double t2 = im_clock_now();
    IM_TRY(write_all(ctx, g, o, tok, &end, most, sink, r));
    r->load_s = t1 - t0;
    r->prompt_s = t2 - t1;
    r->next_s = im_clock_now() - t2;
    void *memory;
    IM_TRY(im_alloc(ctx, (size_t)im_infer_ranks(g), sizeof(im_observe_memory), &memory));
    r->memory = memory;
    r->ranks = im_infer_ranks(g);
    return im_infer_memory(g, r->memory);
}

/* As rank 0, which has the prompt. */
static im_status lead(im_context *ctx, im_infer *g, const im_infer_options *o, im_infer_config cfg, const im_infer_sink *sink, im_infer_result *r)
{
    static const im_infer_sink none = {0};
    im_tok *tok = NULL;
    im_status status = im_infer_open_tokenizer(ctx, g, &tok);
    if (status == IM_OK)
        status = generate(ctx, g, o, cfg, tok, sink ? sink : &none, r);
    im_tok_close(tok);
    return status;
}

im_status im_infer_generate(im_context *ctx, const im_infer_options *o, const char *models_dir, im_comm_mpi_world *mpi, const im_infer_sink *sink,
                            im_infer_result *out)
{
    im_infer_result r = {0};
    im_infer *g = NULL;
    im_infer_config cfg = im_infer_config_of(o);
    cfg.mpi = mpi;
    im_status status = check_options(ctx, o);
    if (status == IM_OK)
        status = im_infer_open(ctx, o->model, models_dir, &g);
    if (status == IM_OK)
        status = mpi && im_comm_mpi_where(mpi).rank ? im_infer_follow(g, &cfg) : lead(ctx, g, o, cfg, sink, &r);
    bool met = g && g->session->mpi; /* then the others are told as they wait */
    if (g)
        status = im_infer_end(g, status);
    if (status != IM_OK && mpi && !met)
        im_comm_mpi_world_abort(mpi, im_error_text(ctx));
    im_infer_close(g);
    if (status == IM_OK)
        *out = r;
    else
        im_infer_result_free(&r);
    return status;
}

void im_infer_result_free(im_infer_result *r)
{
    free(r->prompt);
    free(r->id);
    free(r->prompt_logprob);
    free(r->logprob);
    free(r->memory);
    im_str_free(&r->text);
    *r = (im_infer_result){0};
}

/* ---- JSON -------------------------------------------------------------------------------------------- */

static void put_ids(const char *key, const int32_t *id, size_t n, im_str *out)
{
    im_str_printf(out, "\"%s\": [", key);
    for (size_t i = 0; i < n; i++)
        im_str_printf(out, "%s%d", i ? ", " : "", id[i]);
    im_str_append(out, "], ");
}

static void put_logprobs(const char *key, const float *p, size_t n, im_str *out)
{
    im_str_printf(out, "\"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        im_str_append(out, i ? ", " : "");
        if (isfinite(p[i]))
            im_str_printf(out, "%.7g", (double)p[i]);
        else
            im_str_append(out, "null");
    }
    im_str_append(out, "], ");
}

static void put_text(const char *key, const char *text, size_t n, im_str *out)
{
    im_str_printf(out, "\"%s\": ", key);
    if (text)
        im_str_json_string(out, text, n);
    else
        im_str_append(out, "null");
}

void im_infer_result_json(const im_infer_result *r, im_str *out)
{
    im_str_append(out, "{");
    put_ids("prompt_ids", r->prompt, r->nprompt, out);
    if (r->prompt_logprob)
        put_logprobs("prompt_logprobs", r->prompt_logprob, r->nprompt, out);
    put_ids("ids", r->id, r->n, out);
    put_logprobs("logprobs", r->logprob, r->n, out);
    put_text("text", r->bytes ? im_str_text(&r->text) : NULL, r->text.len, out);
    im_str_printf(out, ", \"stop\": \"%s\", ", im_infer_stop_name(r->stop));
    put_text("stop_string", r->stop_string, r->stop_string ? strlen(r->stop_string) : 0, out);
    im_str_append(out, ", \"memory\": [");
    for (int i = 0; i < r->ranks; i++) {
        im_str_append(out, i ? ", {" : "{");
        im_observe_memory_json(&r->memory[i], out);
        im_str_append(out, "}");
    }
    im_str_append(out, "]}");
}
