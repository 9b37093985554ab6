#include "data/reader.h"
#include "data/splitter.h"

#include <stdio.h>
#include <stdlib.h>

/* A batch is sent when it has so much text, or so many documents. A document of text above LONG goes on in parts; a line of a .jsonl file cannot. */
enum { BATCH_BYTES = 256 << 10, BATCH_RECORDS = 4096, LONG = 4 << 20, MOST_LINE = 256 << 20 };

typedef struct reading {
    const im_reader *r;
    im_context *ctx;
    im_batch *batch;   /* being filled; NULL: none */
    im_record *record; /* of the document that has begun; NULL: none has */
    im_corpus_format format;
    const char *name;
    int64_t input, line;  /* line: complete ones of this input */
    int64_t taken_before; /* bytes on the disk of the inputs before this one */
    int64_t text_before;  /* bytes of their text */
    int64_t offset;       /* bytes of text of this one that came */
    const im_input *source;
    bool quit;
} reading;

static void send_batch(reading *g)
{
    if (!g->batch)
        return;
    g->batch->taken = g->taken_before + (g->source ? im_input_taken(g->source) : 0);
    g->batch->text = g->text_before + g->offset;
    im_belt_filled(g->r->belt, g->batch);
    g->batch = NULL;
    g->record = NULL;
}

static im_status need_batch(reading *g)
{
    if (g->batch)
        return IM_OK;
    g->batch = im_belt_fill(g->r->belt);
    g->quit = !g->batch;
    if (g->quit)
        return im_fail(g->ctx, IM_ERR_ABORTED, "stopped");
    g->batch->name = g->name;
    g->batch->format = g->format;
    return IM_OK;
}

static im_status need_record(reading *g, bool first)
{
    IM_TRY(need_batch(g));
    if (g->record)
        return IM_OK;
    IM_TRY(im_batch_record(g->ctx, g->batch, &g->record));
    g->record->line = g->line + 1;
    g->record->first = first;
    g->batch->at_end = false;
    return IM_OK;
}

static im_status text(void *arg, const unsigned char *bytes, size_t n)
{
    reading *g = arg;
    bool line = g->format == IM_CORPUS_JSONL;
    IM_TRY(need_record(g, true));
    if (line && g->record->n + n > MOST_LINE) {
        g->record->too_long = true;
        g->batch->nraw = g->record->at;
        g->record->n = 0;
    }
    if (g->record->too_long)
        return IM_OK;
    IM_TRY(im_batch_text(g->ctx, g->batch, bytes, n));
    g->record->n += n;
    if (line || g->record->n < LONG)
        return IM_OK;
    send_batch(g);
    return need_record(g, false);
}

/* An empty document leaves no record. */
static im_status end(void *arg, int64_t offset)
{
    reading *g = arg;
    g->line++;
    IM_TRY(need_batch(g));
    if (g->record) {
        if (!g->record->n && g->record->first && !g->record->too_long)
            g->batch->nrecord--;
        else
            g->record->last = true;
    }
    g->record = NULL;
    g->batch->at_end = true;
    g->batch->end = (im_corpus_at){g->input, offset, g->line, g->taken_before, g->text_before + offset};
    if (g->batch->nraw >= BATCH_BYTES || g->batch->nrecord >= BATCH_RECORDS)
        send_batch(g);
    return IM_OK;
}

static im_corpus_format format_of(const im_corpus_config *cfg, const char *path)
{
    if (cfg->format != IM_CORPUS_AUTO)
        return cfg->format;
    return cfg->chat || im_input_is_jsonl(path) ? IM_CORPUS_JSONL : IM_CORPUS_TEXT;
}

static im_status read_all(reading *g, im_input *in, im_splitter *s, unsigned char *buf, size_t size)
{
    for (size_t got;;) {
        IM_TRY(im_input_read(in, buf, size, &got));
        if (!got)
            return im_splitter_end(s);
        g->offset += (int64_t)got;
        IM_TRY(im_splitter_feed(s, buf, got));
    }
}

static im_status read_input(reading *g, const char *path, im_corpus_at from, unsigned char *buf, size_t size)
{
    const im_corpus_config *cfg = g->r->cfg;
    im_split_sink sink = {.arg = g, .text = text, .end = end};
    im_splitter *s = NULL;
    im_input *in;
    g->name = path;
    g->format = format_of(cfg, path);
    g->line = from.line;
    g->offset = from.offset;
    IM_TRY(im_input_open(g->ctx, path, im_belt_quit_flag(g->r->belt), &in));
    g->source = in;
    g->name = path[0] == '-' && !path[1] ? "standard input" : path;
    im_status status = im_splitter_create(g->ctx, g->format == IM_CORPUS_TEXT ? cfg->split : IM_SPLIT_LINES, cfg->separator, &sink, &s);
    if (status == IM_OK && from.offset)
        status = im_input_skip(in, from.offset);
    if (status == IM_OK) {
        im_splitter_begin(s, from.offset);
        status = read_all(g, in, s, buf, size);
    }
    if (status == IM_OK)
        send_batch(g); /* a batch is of one input */
    g->source = NULL;
    g->taken_before += im_input_taken(in);
    g->text_before += g->offset;
    g->offset = 0;
    im_splitter_destroy(s);
    im_input_close(in);
    return status;
}

static im_status read_inputs(reading *g)
{
    enum { DEFAULT_SIZE = 256 << 10 };
    size_t size = g->r->cfg->read_size ? g->r->cfg->read_size : DEFAULT_SIZE;
    unsigned char *buf;
    IM_TRY(im_alloc(g->ctx, size, 1, (void **)&buf));
    im_status status = IM_OK;
    g->taken_before = g->r->from.before;
    g->text_before = g->r->from.text - g->r->from.offset;
    for (g->input = g->r->from.input; status == IM_OK && g->input < (int64_t)g->r->inputs->n; g->input++) {
        im_corpus_at from = {0};
        if (g->input == g->r->from.input)
            from = g->r->from;
        status = read_input(g, g->r->inputs->path[g->input], from, buf, size);
    }
    free(buf);
    return status;
}

void *im_reader_thread(void *arg)
{
    reading g = {.r = arg, .name = ""};
    im_status status = im_context_create(&g.ctx);
    if (status == IM_OK)
        status = read_inputs(&g);
    if (g.record && status != IM_OK) { /* the document that was cut off is none */
        g.batch->nrecord--;
        g.record = NULL;
    }
    if (!g.quit && need_batch(&g) == IM_OK) {
        g.batch->last = true;
        g.batch->status = status;
        g.batch->failed = g.batch->nrecord;
        snprintf(g.batch->error, sizeof g.batch->error, "%s", status == IM_OK ? "" : im_error_text(g.ctx));
        send_batch(&g);
    }
    im_context_destroy(g.ctx);
    return NULL;
}
