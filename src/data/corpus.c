/* Building a corpus: the caller's part of the pipeline. It writes the batches in order, divides the documents into training and validation by their
 * numbers, and from time to time notes how far it is. */
#include "data/corpus.h"
#include "data/change.h"
#include "data/encoder.h"
#include "data/note.h"
#include "data/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WORKERS = 256 };
#define NOTE_EVERY ((int64_t)1 << 30)

typedef struct corpus {
    im_context *ctx;
    const im_corpus_config *cfg;
    im_arena *arena;
    im_inputs inputs;
    char *note_path;
    im_note note; /* the newest, when have_note; options and inputs in any case */
    bool have_note;
    int32_t eod;
    im_tokens_writer *out[2]; /* train, validation (NULL: none is asked for) */
    im_encoder *encoder;      /* of long documents */
    im_tok_ids part;
    int64_t document; /* number of the current one */
    bool open;        /* it has tokens already */
    int64_t text;     /* bytes of its text; < 0: not known */
    im_belt *belt;
    int64_t noted; /* bytes of text at the newest note */
    im_corpus_result result;
} corpus;

/* ---- documents ------------------------------------------------------------------------------------------------ */

static bool is_validation(const corpus *c)
{
    im_split_config split = {.valid_fraction = c->cfg->valid_fraction, .valid_every = c->cfg->valid_every, .seed = c->cfg->seed};
    return c->out[1] && im_split_is_valid(&split, c->document);
}

static im_tokens_writer *target(const corpus *c)
{
    return c->out[is_validation(c)];
}

static im_status put_ids(corpus *c, const int32_t *ids, const unsigned char *counted, size_t n)
{
    c->open |= n > 0;
    return im_tokens_append_masked(target(c), ids, counted, n);
}

static im_status put_bytes(corpus *c, const unsigned char *bytes, size_t n)
{
    c->open |= n > 0;
    return im_tokens_append_bytes(target(c), bytes, n);
}

static void count_text(corpus *c, int64_t n)
{
    c->text = n < 0 || c->text < 0 ? -1 : c->text + n;
}

static im_status end_document(corpus *c)
{
    int64_t text = c->text;
    c->text = 0;
    if (!c->open)
        return IM_OK;
    if (c->eod >= 0)
        IM_TRY(im_tokens_append(target(c), &c->eod, 1));
    im_tokens_count_text(target(c), text);
    IM_TRY(im_tokens_end_document(target(c)));
    c->open = false;
    c->document++;
    return IM_OK;
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

static im_status write_record(corpus *c, const im_batch *b, const im_record *r, size_t *id)
{
    const unsigned char *bytes = b->raw + r->at;
    if (r->bad)
        return IM_OK;
    if (b->as_bytes) {
        count_text(c, (int64_t)r->n);
        IM_TRY(put_bytes(c, bytes, r->n));
    } else if (r->first && r->last) {
        count_text(c, r->text_bytes);
        IM_TRY(put_ids(c, b->ids.ids.id + *id, c->cfg->chat ? b->ids.counted + *id : NULL, r->nids));
        *id += r->nids;
    } else {
        count_text(c, b->format == IM_CORPUS_TEXT ? (int64_t)r->n : -1);
        c->part.n = 0;
        im_status status = im_encoder_part(c->encoder, bytes, r->n, r->last, &c->part);
        if (status != IM_OK) {
            char text[512];
            snprintf(text, sizeof text, "%s", im_error_text(c->ctx));
            im_error_clear(c->ctx);
            return im_fail(c->ctx, status, "%s: line %lld: %s", b->name, (long long)r->line, text);
        }
        IM_TRY(put_ids(c, c->part.id, NULL, c->part.n));
    }
    return r->last ? end_document(c) : IM_OK;
}

static im_status write_batch(corpus *c, const im_batch *b)
{
    size_t id = 0, n = b->status == IM_OK ? b->nrecord : b->failed;
    for (size_t i = 0; i < n; i++)
        IM_TRY(write_record(c, b, &b->record[i], &id));
    if (b->status != IM_OK)
        return im_fail(c->ctx, b->status, "%s", b->error);
    if (b->bad && !c->result.bad)
        snprintf(c->result.first_bad, sizeof c->result.first_bad, "%s", b->first_bad);
    c->result.bad += b->bad;
    c->result.read = b->taken;
    c->result.text = b->text;
    return IM_OK;
}

/* ---- going on later --------------------------------------------------------------------------------------------- */

/* All that decides about the files. */
static char *options_text(const corpus *c)
{
    const im_corpus_config *o = c->cfg;
    static const char *const format[] = {"auto", "text", "jsonl", "ids"}, *const split[] = {"file", "lines", "blank", "separator"};
    return im_arena_printf(c->arena,
                           "format=%s;split=%s;separator=%s;field=%s;chat=%s;tokenizer=%016" PRIx64 ";special=%d;invalid=%d;template=%d;eod=%d;"
                           "valid-fraction=%.17g;valid-every=%" PRId64 ";seed=%" PRIu64 ";skip-bad=%d",
                           format[o->format], split[o->split], o->separator ? o->separator : "", o->field ? o->field : "text",
                           o->chat ? im_chat_format_name(o->chat_format) : "no", o->tok ? im_tok_fingerprint(o->tok) : 0, o->coding.special_as_text,
                           o->coding.replace, o->coding.template, c->eod, o->valid_fraction, o->valid_every, o->seed, o->skip_bad);
}

static im_status take_note(corpus *c, im_corpus_at at)
{
    im_note *n = &c->note;
    n->at = at;
    n->document = c->document;
    n->bad = c->result.bad;
    n->read = c->result.read;
    snprintf(n->first_bad, sizeof n->first_bad, "%s", c->result.first_bad);
    for (int i = 0; i < n->writers; i++)
        IM_TRY(im_tokens_writer_place(c->out[i], &n->place[i]));
    IM_TRY(im_note_write(c->ctx, c->note_path, n));
    c->have_note = true;
    c->noted = at.text;
    return IM_OK;
}

bool im_corpus_interrupted(const char *out)
{
    char *path = NULL;
    bool is = asprintf(&path, "%s.build", out) >= 0 && im_path_exists(path);
    free(path);
    return is;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static im_status write_all(corpus *c)
{
    const im_corpus_config *o = c->cfg;
    int64_t every = o->note_every ? o->note_every : NOTE_EVERY;
    im_corpus_at at = {0};
    bool at_end = false;
    for (bool last = false; !last;) {
        if (o->stop && o->stop(o->arg)) {
            if (at_end && !c->inputs.has_stdin)
                IM_TRY(take_note(c, at));
            return im_fail(c->ctx, IM_ERR_STOPPED, "stopped by a signal: no token file was written%s",
                           c->have_note ? "; --resume goes on with what was done" : "");
        }
        im_batch *b = im_belt_next(c->belt);
        if (!b)
            continue;
        last = b->last;
        IM_TRY(write_batch(c, b));
        at_end = b->at_end && !c->open;
        at = b->end;
        im_belt_free(c->belt, b);
        if (at_end && !last && !c->inputs.has_stdin && at.text - c->noted >= every)
            IM_TRY(take_note(c, at));
        im_corpus_progress p = {.read = c->result.read, .all = c->inputs.has_stdin ? 0 : c->inputs.bytes, .text = c->result.text};
        for (int i = 0; i < 2; i++)
            p.tokens += c->out[i] ? im_tokens_written(c->out[i]) : 0;
        if (o->progress)
            o->progress(o->arg, &p);
    }
    return IM_OK;
}

typedef struct worker {
    im_belt *belt;
    const im_corpus_config *cfg;
    pthread_t thread;
} worker;

static void *worker_thread(void *arg)
{
    worker *w = arg;
    im_context *ctx = NULL;
    im_encoder *e = NULL;
    im_status made = im_context_create(&ctx);
    if (made == IM_OK)
        made = im_encoder_create(ctx, w->cfg, &e);
    for (im_batch *b; (b = im_belt_take(w->belt)); im_belt_done(w->belt, b)) {
        if (made == IM_OK) {
            im_encoder_batch(e, b);
            continue;
        }
        b->status = made;
        b->failed = 0;
        snprintf(b->error, sizeof b->error, "%s", ctx ? im_error_text(ctx) : "no memory for a worker");
    }
    im_encoder_destroy(e);
    im_context_destroy(ctx);
    return NULL;
}

/* Starts the threads, writes what they make, and ends them whatever happens. */
static im_status run_pipeline(corpus *c, int workers, im_corpus_at from)
{
    im_status status = IM_OK;
    worker w[MOST_WORKERS];
    im_reader r = {.cfg = c->cfg, .inputs = &c->inputs, .from = from};
    pthread_t reader;
    int n = 0;
    bool reading = false;
    IM_TRY(im_belt_create(c->ctx, workers, &c->belt));
    r.belt = c->belt;
    reading = pthread_create(&reader, NULL, im_reader_thread, &r) == 0;
    for (; reading && n < workers; n++) {
        w[n] = (worker){.belt = c->belt, .cfg = c->cfg};
        if (pthread_create(&w[n].thread, NULL, worker_thread, &w[n]))
            break;
    }
    status = n == workers ? write_all(c) : im_fail(c->ctx, IM_ERR_NOMEM, "no threads for %d workers", workers);
    im_belt_quit(c->belt);
    if (reading)
        pthread_join(reader, NULL);
    for (int i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    im_belt_destroy(c->belt);
    c->belt = NULL;
    return status;
}

/* ---- the files ---------------------------------------------------------------------------------------------------- */

static im_tokens_kind kind_of(const im_corpus_config *o)
{
    im_tokens_kind k = {.masked = o->chat, .dtype = IM_U16};
    if (o->format == IM_CORPUS_IDS || (o->tok && im_tok_vocab(o->tok) > 65536))
        k.dtype = IM_I32;
    return k;
}

static im_status create_writer(corpus *c, int i)
{
    const im_corpus_config *o = c->cfg;
    im_tokens_kind kind = kind_of(o);
    const char *name = im_arena_printf(c->arena, "%s-%s", o->out, i ? "valid" : "train");
    if (!name)
        return im_fail(c->ctx, IM_ERR_NOMEM, "no memory for a name");
    IM_TRY(im_tokens_create_at(c->ctx, name, &kind, c->have_note ? &c->note.place[i] : NULL, &c->out[i]));
    if (o->tok)
        im_tokens_tell(c->out[i], im_tok_path(o->tok), im_tok_fingerprint(o->tok), im_tok_vocab(o->tok), c->eod);
    else if (o->format != IM_CORPUS_IDS)
        im_tokens_tell(c->out[i], "bytes", 0, IM_BYTE_VOCAB, c->eod);
    else
        im_tokens_tell(c->out[i], "", 0, 0, c->eod);
    return IM_OK;
}

static im_status check_config(im_context *ctx, const im_corpus_config *o)
{
    if (!(o->valid_fraction >= 0 && o->valid_fraction < 1))
        return im_fail(ctx, IM_ERR_ARG, "valid-fraction %g: from 0 (no validation file) to below 1", o->valid_fraction);
    if (o->valid_every < 0 || o->valid_every == 1)
        return im_fail(ctx, IM_ERR_ARG, "valid-every %lld: 2 or more, or 0 to divide by valid-fraction", (long long)o->valid_every);
    if (o->workers < 0 || o->workers > MOST_WORKERS)
        return im_fail(ctx, IM_ERR_ARG, "workers %d: up to %d, or 0 for the usable cores", o->workers, MOST_WORKERS);
    if (o->chat && (o->format == IM_CORPUS_TEXT || o->format == IM_CORPUS_IDS))
        return im_fail(ctx, IM_ERR_ARG, "conversations are lines of JSON: format jsonl");
    if (o->format == IM_CORPUS_IDS && o->tok)
        return im_fail(ctx, IM_ERR_ARG, "ids are there already: no tokenizer");
    if (!o->tok && o->format != IM_CORPUS_IDS && o->eod >= 0 && o->eod != IM_BYTE_EOD)
        return im_fail(ctx, IM_ERR_ARG, "eod %d: bytes end with %d, or with nothing (none)", o->eod, IM_BYTE_EOD);
    if (o->tok && o->eod >= im_tok_vocab(o->tok))
        return im_fail(ctx, IM_ERR_ARG, "eod %d: %s has %lld ids", o->eod, im_tok_path(o->tok), (long long)im_tok_vocab(o->tok));
    return IM_OK;
}

static im_status choose_eod(corpus *c)
{
    const im_corpus_config *o = c->cfg;
    c->eod = o->eod;
    if (o->chat)
        c->eod = -1; /* the format ends its turns itself */
    else if (o->eod == IM_CORPUS_EOD_DEFAULT)
        c->eod = o->tok ? im_tok_eod(o->tok) : o->format == IM_CORPUS_IDS ? -1 : IM_BYTE_EOD;
    if (!o->chat && o->eod == IM_CORPUS_EOD_DEFAULT && o->tok && c->eod < 0)
        return im_fail(c->ctx, IM_ERR_ARG, "%s does not say which token ends a document: give its name or number with --eod, or --eod none",
                       im_tok_path(o->tok));
    return IM_OK;
}

static im_status begin(corpus *c)
{
    const im_corpus_config *o = c->cfg;
    im_note was = {0};
    IM_TRY(choose_eod(c));
    IM_TRY(im_inputs_collect(c->ctx, c->arena, o->input, o->ninput, &c->inputs));
    c->note_path = im_arena_printf(c->arena, "%s.build", o->out);
    c->note.options = options_text(c);
    c->note.inputs = c->inputs.print;
    c->note.writers = o->valid_every || o->valid_fraction > 0 ? 2 : 1;
    if (!c->note_path || !c->note.options)
        return im_fail(c->ctx, IM_ERR_NOMEM, "no memory to build %s", o->out);
    if (o->resume && c->inputs.has_stdin)
        return im_fail(c->ctx, IM_ERR_ARG, "standard input cannot be gone on with: nobody knows where it was");
    if (o->resume && im_path_exists(c->note_path)) {
        IM_TRY(im_note_read(c->ctx, c->note_path, &was));
        im_status status = im_note_compare(c->ctx, c->note_path, &was, &c->note);
        free(was.options);
        IM_TRY(status);
        was.options = c->note.options;
        c->note = was;
        c->have_note = true;
    }
    for (int i = 0; i < c->note.writers; i++)
        IM_TRY(create_writer(c, i));
    if (!c->have_note) /* under the lock of the files: the note of an older build is of no use any more */
        unlink(c->note_path);
    c->document = c->result.resumed = c->note.document;
    c->result.bad = c->note.bad;
    c->noted = c->note.at.text;
    memcpy(c->result.first_bad, c->note.first_bad, sizeof c->result.first_bad);
    return im_encoder_create(c->ctx, o, &c->encoder);
}

/* No document fell to validation: the last part of the training text moves there, whatever documents it belongs to. */
static im_status divide_by_position(corpus *c)
{
    int64_t all = im_tokens_written(c->out[0]);
    double share = c->cfg->valid_every ? 1.0 / (double)c->cfg->valid_every : c->cfg->valid_fraction;
    int64_t moved = (int64_t)llround(share * (double)all);
    if (c->cfg->chat)
        return im_fail(c->ctx, IM_ERR_FORMAT, "%s: none of %lld conversations fell to validation: give more, another seed, or valid-fraction 0",
                       c->cfg->out, (long long)c->document);
    if (moved < 2)
        moved = 2;
    if (all - moved < 2)
        return im_fail(c->ctx, IM_ERR_FORMAT,
                       "%s: %lld tokens are too few to divide into training and validation; give more text, or valid-fraction 0", c->cfg->out,
                       (long long)all);
    c->result.by_position = true;
    return im_tokens_move_tail(c->out[0], all - moved, c->out[1]);
}

static im_status finish(corpus *c)
{
    if (im_tokens_written(c->out[0]) == 0)
        return im_fail(c->ctx, IM_ERR_FORMAT, "%s: no text was given: every input is empty%s", c->cfg->out, c->result.bad ? ", or was left out" : "");
    if (c->out[1] && im_tokens_written_documents(c->out[1]) == 0)
        IM_TRY(divide_by_position(c));
    for (int i = 1; i >= 0; i--) {
        im_tokens_writer *w = c->out[i];
        im_tokens_place place;
        if (!w)
            continue;
        IM_TRY(im_tokens_writer_place(w, &place));
        c->result.tokens[i] = place.tokens;
        c->result.documents[i] = place.documents;
        c->result.counted[i] = place.counted;
        c->out[i] = NULL;
        IM_TRY(im_tokens_finish(w));
    }
    unlink(c->note_path);
    return IM_OK;
}

/* What a failed build leaves: with a note, all that is needed to go on; else nothing. */
static void clean_up(corpus *c)
{
    for (int i = 0; i < 2; i++) {
        if (c->have_note)
            im_tokens_leave(c->out[i]);
        else
            im_tokens_abandon(c->out[i]);
    }
    im_encoder_destroy(c->encoder);
    im_tok_ids_free(&c->part);
    im_inputs_free(&c->inputs);
    im_arena_destroy(c->arena);
}

im_status im_corpus_build(im_context *ctx, const im_corpus_config *cfg, im_corpus_result *out)
{
    corpus c = {.ctx = ctx, .cfg = cfg};
    im_status status;
    int workers = cfg->workers ? cfg->workers : im_machine_cores();
    IM_TRY(check_config(ctx, cfg));
    IM_TRY(im_arena_create(ctx, &c.arena));
    IM_TRY_GOTO(begin(&c), clean_up);
    IM_TRY_GOTO(run_pipeline(&c, workers > MOST_WORKERS ? MOST_WORKERS : workers, c.note.at), clean_up);
    IM_TRY_GOTO(finish(&c), clean_up);
    *out = c.result;
clean_up:
    clean_up(&c);
    return status;
}
