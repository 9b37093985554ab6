/* Fuzz target: a .jsonl file. The first byte says how it is read (conversations or texts, bad lines left out or not) and in which pieces; the rest
 * is the file. However it is cut, the same tokens come out; each has a document; only what is in range is counted. */
#include "data/encoder.h"
#include "data/splitter.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct taking {
    im_context *ctx;
    im_batch *batch;
    bool open;
    int64_t line;
} taking;

static im_record *record_of(taking *t)
{
    im_record *r;
    if (!t->open) {
        if (im_batch_record(t->ctx, t->batch, &r) != IM_OK)
            abort();
        r->line = t->line + 1;
        r->first = r->last = true;
        t->open = true;
    }
    return &t->batch->record[t->batch->nrecord - 1];
}

static im_status text(void *arg, const unsigned char *bytes, size_t n)
{
    taking *t = arg;
    im_record *r = record_of(t);
    r->n += n;
    return im_batch_text(t->ctx, t->batch, bytes, n);
}

static im_status end(void *arg, int64_t offset)
{
    taking *t = arg;
    (void)offset;
    t->open = false;
    t->line++;
    return IM_OK;
}

/* The file in pieces of `piece` bytes, encoded. */
static void read_file(im_context *ctx, const im_corpus_config *cfg, const uint8_t *data, size_t size, size_t piece, im_batch *out)
{
    taking t = {.ctx = ctx, .batch = out};
    im_split_sink sink = {.arg = &t, .text = text, .end = end};
    im_splitter *s;
    im_encoder *e;
    *out = (im_batch){.name = "x.jsonl", .format = IM_CORPUS_JSONL};
    if (im_splitter_create(ctx, IM_SPLIT_LINES, NULL, &sink, &s) != IM_OK || im_encoder_create(ctx, cfg, &e) != IM_OK)
        abort();
    im_splitter_begin(s, 0);
    for (size_t at = 0; at < size; at += piece)
        if (im_splitter_feed(s, data + at, size - at < piece ? size - at : piece) != IM_OK)
            abort();
    if (im_splitter_end(s) != IM_OK)
        abort();
    im_encoder_batch(e, out);
    im_encoder_destroy(e);
    im_splitter_destroy(s);
}

static void check(const im_corpus_config *cfg, const im_batch *b)
{
    size_t ids = 0, n = b->status == IM_OK ? b->nrecord : b->failed;
    int64_t bad = 0;
    if (b->status != IM_OK && (b->status != IM_ERR_FORMAT || cfg->skip_bad || !strstr(b->error, "x.jsonl: line ")))
        abort();
    for (size_t i = 0; i < n; i++) {
        ids += b->record[i].nids;
        bad += b->record[i].bad;
    }
    if (ids != b->ids.ids.n || bad != b->bad || (bad && !cfg->skip_bad))
        abort();
    for (size_t i = 0; i < ids; i++)
        if (b->ids.ids.id[i] < 0 || b->ids.ids.id[i] >= IM_BYTE_VOCAB || (cfg->chat && b->ids.counted[i] > 1))
            abort();
}

static void drop(im_batch *b)
{
    free(b->raw);
    free(b->record);
    im_chat_ids_free(&b->ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_batch whole, cut;
    if (size < 1 || im_context_create(&ctx) != IM_OK)
        return 0;
    im_corpus_config cfg = {.eod = IM_CORPUS_EOD_DEFAULT, .chat = data[0] & 1, .chat_format = IM_CHAT_PLAIN, .skip_bad = data[0] >> 1 & 1};
    read_file(ctx, &cfg, data + 1, size - 1, size, &whole);
    read_file(ctx, &cfg, data + 1, size - 1, 1 + (data[0] >> 2), &cut);
    check(&cfg, &whole);
    if (whole.ids.ids.n != cut.ids.ids.n || whole.status != cut.status || whole.bad != cut.bad || strcmp(whole.error, cut.error) ||
        (whole.ids.ids.n && memcmp(whole.ids.ids.id, cut.ids.ids.id, sizeof(int32_t) * whole.ids.ids.n)))
        abort();
    drop(&whole);
    drop(&cut);
    im_context_destroy(ctx);
    return 0;
}
