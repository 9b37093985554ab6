/* Saving in the background.
 *
 *   caller's thread   start:   rank 0 makes step-N.tmp, both safetensors files get their header and their full size; the others open them
 *   io queue          write:   each owned run of a bucket goes straight to its offset (pwrite from the weights themselves;
 *                              UPDATE of the bucket waits for it, so the bytes are those of one step)
 *   io queue          end:     fsync
 *   io queue, rank 0  publish: small files, checksums, manifest, rename, pointer, prune; with several ranks once poll or finish has
 *                              found that all of them have written
 *
 * A kill at any of these points leaves the previous checkpoint and the pointer to it as they were. An error is kept
 * in the save's own context: it fails the save, on all ranks, not the run.
 */
#include "checkpoint/internal.h"
#include "engine/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { IM_FILE_WEIGHTS, IM_FILE_OPTIMIZER, IM_FILES };
enum { IM_STATES_PER_PARAM = 3 }; /* m, v, master */

typedef struct im_save_file {
    char *path;
    int fd;             /* -1: closed */
    im_st_plan *tensor; /* weights: [param]; optimizer: [param * states + state] */
    size_t count;
} im_save_file;

struct im_checkpoint_save {
    im_context *ctx; /* the caller's: gets the error when the save is finished */
    im_context *own; /* holds it until then */
    im_engine *engine;
    const im_layout *layout;
    im_checkpoint_meta meta;
    im_arena *arena;
    const char *root, *temp, *copy_from;
    char name[32];
    int keep;
    im_dtype stored; /* of the weights */
    size_t nstate;   /* of the optimizer's file: 0, 2, 3 */
    im_save_file file[IM_FILES];
    bool leads, several;   /* rank 0; there are others */
    im_status status;      /* written by the io queue until `done`, then until `published` */
    atomic_ullong moved;   /* bytes written so far by this rank */
    atomic_bool ended;     /* rank 0 has published, or failed to */
    bool publishing, over; /* all ranks have written; the save is over, and all ranks know how */
    im_event done, published;
};

/* ---- bytes to their place ---------------------------------------------------- */

static im_status write_all_at(im_context *ctx, const im_save_file *f, const void *data, size_t nbytes, uint64_t at)
{
    const char *p = data;
    while (nbytes) {
        size_t piece = nbytes < ((size_t)1 << 30) ? nbytes : (size_t)1 << 30;
        ssize_t n = pwrite(f->fd, p, piece, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return im_fail_errno(ctx, "%s: write of %zu bytes at byte %llu", f->path, nbytes, (unsigned long long)at);
        p += n;
        at += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return IM_OK;
}

/* Writes what of segment g lies in elements [first, first+count) of the bucket; data points at element `first`. */
static im_status write_segment(im_checkpoint_save *s, const im_save_file *f, const im_st_plan *t, const im_segment *g, const char *data, size_t size,
                               size_t first, size_t count)
{
    bool solid = g->n <= 1 || (g->local_stride == g->run && g->global_stride == g->run);
    size_t runs = solid ? 1 : g->n, run = solid ? g->n * g->run : g->run;
    for (size_t r = 0; r < runs; r++) {
        size_t local = g->local0 + r * g->local_stride, global = g->global0 + r * g->global_stride;
        size_t a = local > first ? local : first;
        size_t end = local + run < first + count ? local + run : first + count;
        if (a >= end)
            continue;
        IM_TRY(write_all_at(s->own, f, data + (a - first) * size, (end - a) * size, t->offset + (global + (a - local)) * size));
    }
    return IM_OK;
}

static void fail_save(im_checkpoint_save *s, im_status status)
{
    if (s->status == IM_OK)
        s->status = status;
}

/* im_snapshot.write */
static void write_bucket(void *arg, im_state_kind k, size_t bucket, im_dtype stored, const void *data, size_t first, size_t count)
{
    im_checkpoint_save *s = arg;
    if (s->status != IM_OK || k == IM_STATE_GRAD)
        return;
    size_t state = k == IM_STATE_M ? 0 : k == IM_STATE_V ? 1 : 2;
    bool weight = k == IM_STATE_WEIGHT;
    if (!weight && state >= s->nstate)
        return;
    if (weight ? stored != s->stored : stored != IM_F32) {
        fail_save(s, im_fail(s->own, IM_ERR_INTERNAL, "checkpoint: bucket %zu comes as %s", bucket, im_dtype_name(stored)));
        return;
    }
    const im_save_file *f = &s->file[weight ? IM_FILE_WEIGHTS : IM_FILE_OPTIMIZER];
    const im_bucket *b = &s->layout->bucket[bucket];
    for (size_t i = 0; i < b->nowned; i++) {
        const im_segment *g = &b->owned[i];
        if (!g->owner)
            continue;
        const im_st_plan *t = &f->tensor[weight ? g->param : g->param * s->nstate + state];
        im_status status = write_segment(s, f, t, g, data, im_dtype_size(stored), first, count);
        if (status != IM_OK) {
            fail_save(s, status);
            return;
        }
        atomic_fetch_add(&s->moved, (unsigned long long)(g->n * g->run) * im_dtype_size(stored));
    }
}

/* ---- the small files ------------------------------------------------------------- */

/* Into a directory that nobody reads yet: no rename is needed. */
static im_status write_small(im_context *ctx, const char *dir, const char *name, const void *data, size_t len)
{
    char path[IM_CHECKPOINT_PATH];
    im_save_file f = {.path = path};
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return im_fail(ctx, IM_ERR_ARG, "%s/%s: the path is too long", dir, name);
    f.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f.fd < 0)
        return im_fail_errno(ctx, "%s: create", path);
    im_status status = write_all_at(ctx, &f, data, len, 0);
    if (status == IM_OK && fsync(f.fd))
        status = im_fail_errno(ctx, "%s: fsync", path);
    if (close(f.fd) && status == IM_OK)
        status = im_fail_errno(ctx, "%s: close", path);
    return status;
}

static im_status copy_small(im_context *ctx, const char *from, const char *dir, const char *name)
{
    char path[IM_CHECKPOINT_PATH];
    if (snprintf(path, sizeof path, "%s/%s", from, name) >= (int)sizeof path || !im_path_exists(path))
        return IM_OK;
    char *data;
    size_t len;
    IM_TRY(im_file_read(ctx, path, (size_t)256 << 20, &data, &len));
    im_status status = write_small(ctx, dir, name, data, len);
    free(data);
    return status;
}

/* Ids that end or start a text, as config.json gives them. */
static im_status write_generation_config(im_context *ctx, const char *dir, const im_model *m)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    const im_json_value *root = m->config ? im_json_root(m->config) : NULL;
    im_str text = {0};
    im_str_append(&text, "{\n  \"_from_model_config\": true");
    for (size_t i = 0; i < IM_COUNT_OF(keys); i++) {
        const im_json_value *v = im_json_get(root, keys[i]);
        if (im_json_type_of(v) == IM_JSON_INT)
            im_str_printf(&text, ",\n  \"%s\": %lld", keys[i], (long long)im_json_int(v, 0));
    }
    im_str_append(&text, "\n}\n");
    im_status status = text.failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for generation_config.json")
                                   : write_small(ctx, dir, "generation_config.json", text.data, text.len);
    im_str_free(&text);
    return status;
}

static im_status write_extras(im_checkpoint_save *s)
{
    static const char *const extras[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
                                         "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};
    const im_model *m = s->layout->model;
    im_str config = {0};
    IM_TRY(im_model_config_text(s->own, m, s->stored, &config));
    im_status status = write_small(s->own, s->temp, "config.json", config.data, config.len);
    im_str_free(&config);
    IM_TRY(status);
    IM_TRY(write_generation_config(s->own, s->temp, m));
    for (size_t i = 0; s->copy_from && i < IM_COUNT_OF(extras); i++)
        IM_TRY(copy_small(s->own, s->copy_from, s->temp, extras[i]));
    return IM_OK;
}

/* ---- the end ----------------------------------------------------------------------- */

static im_status close_files(im_checkpoint_save *s)
{
    im_status status = IM_OK;
    for (int i = 0; i < IM_FILES; i++) {
        im_save_file *f = &s->file[i];
        if (f->fd < 0)
            continue;
        if (status == IM_OK && fsync(f->fd))
            status = im_fail_errno(s->own, "%s: fsync", f->path);
        if (close(f->fd) && status == IM_OK)
            status = im_fail_errno(s->own, "%s: close", f->path);
        f->fd = -1;
    }
    return status;
}

static im_status complete(im_checkpoint_save *s)
{
    IM_TRY(write_extras(s));
    IM_TRY(im_checkpoint_write_manifest(s->own, s->temp, &s->meta));
    IM_TRY(im_fsync_dir(s->own, s->temp));
    IM_TRY(im_checkpoint_publish(s->own, s->root, s->temp, s->name));
    return im_checkpoint_prune(s->own, s->root, s->keep);
}

/* What a failed save wrote is worth nothing; the space it takes may be. */
static void discard(im_checkpoint_save *s)
{
    for (int i = 0; i < IM_FILES; i++) {
        if (s->file[i].fd >= 0)
            close(s->file[i].fd);
        s->file[i].fd = -1;
    }
    im_status ignored = s->leads && s->temp ? im_remove_tree(s->own, s->temp) : IM_OK;
    (void)ignored; /* the first error stays the one that is told */
}

static void publish(im_checkpoint_save *s)
{
    if (s->status == IM_OK)
        s->status = complete(s);
    if (s->status != IM_OK)
        discard(s);
    atomic_store(&s->ended, true);
}

/* im_snapshot.end */
static void end_save(void *arg)
{
    im_checkpoint_save *s = arg;
    if (s->status == IM_OK)
        s->status = close_files(s);
    if (!s->several)
        publish(s);
}

static im_status run_publish(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)p, (void)np, (void)now;
    publish(arg);
    return IM_OK;
}

/* ---- the start --------------------------------------------------------------------- */

static void set_tensor(im_st_plan *t, const im_param *p, const char *name, im_dtype dtype)
{
    *t = (im_st_plan){.name = name, .dtype = dtype, .ndim = p->ndim};
    for (int d = 0; d < p->ndim; d++)
        t->shape[d] = p->shape[d];
}

/* Tables of both files, from the parameter table. */
static im_status plan_tensors(im_checkpoint_save *s)
{
    static const char *const suffix[IM_STATES_PER_PARAM] = {"m", "v", "master"};
    const im_model *m = s->layout->model;
    im_save_file *w = &s->file[IM_FILE_WEIGHTS], *o = &s->file[IM_FILE_OPTIMIZER];
    w->count = m->nparam;
    o->count = m->nparam * s->nstate;
    w->tensor = IM_ARENA_NEW(s->arena, im_st_plan, w->count + 1);
    o->tensor = IM_ARENA_NEW(s->arena, im_st_plan, o->count + 1);
    if (!w->tensor || !o->tensor)
        return im_fail(s->own, IM_ERR_NOMEM, "no memory for the tables of a checkpoint of %zu tensors", w->count + o->count);
    for (size_t p = 0; p < m->nparam; p++) {
        set_tensor(&w->tensor[p], &m->param[p], m->param[p].name, s->stored);
        for (size_t k = 0; k < s->nstate; k++) {
            const char *name = im_arena_printf(s->arena, "%s.%s", m->param[p].name, suffix[k]);
            if (!name)
                return im_fail(s->own, IM_ERR_NOMEM, "no memory for the names of a checkpoint");
            set_tensor(&o->tensor[p * s->nstate + k], &m->param[p], name, IM_F32);
        }
    }
    return IM_OK;
}

/* Rank 0 makes the file with its header and its whole size: a disk that is full is found here, where the file system can tell. */
static im_status create_file(im_checkpoint_save *s, im_save_file *f, const char *name)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    im_str header = {0};
    uint64_t size;
    im_status status;
    f->path = im_arena_printf(s->arena, "%s/%s", s->temp, name);
    if (!f->path)
        return im_fail(s->own, IM_ERR_NOMEM, "no memory for a path");
    IM_TRY_GOTO(im_st_layout(s->own, f->tensor, f->count, metadata, &header, &size), free_header);
    if (!s->leads)
        goto free_header; /* the offsets are all that another rank needs */
    f->fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        status = im_fail_errno(s->own, "%s: create", f->path);
        goto free_header;
    }
    if (fallocate(f->fd, 0, 0, (off_t)size) && errno != EOPNOTSUPP && errno != ENOSYS) {
        status = im_fail_errno(s->own, "%s: %llu bytes", f->path, (unsigned long long)size);
        goto free_header;
    }
    if (ftruncate(f->fd, (off_t)size)) {
        status = im_fail_errno(s->own, "%s: size %llu", f->path, (unsigned long long)size);
        goto free_header;
    }
    status = write_all_at(s->own, f, header.data, header.len, 0);
free_header:
    im_str_free(&header);
    return status;
}

static im_status prepare(im_checkpoint_save *s, const char *root, const char *copy_from)
{
    snprintf(s->name, sizeof s->name, "step-%lld", (long long)s->meta.step);
    s->root = im_arena_strdup(s->arena, root);
    s->temp = im_arena_printf(s->arena, "%s/%s.tmp", root, s->name);
    s->copy_from = copy_from ? im_arena_strdup(s->arena, copy_from) : NULL;
    if (!s->root || !s->temp || (copy_from && !s->copy_from))
        return im_fail(s->own, IM_ERR_NOMEM, "no memory for paths");
    if (s->leads) {
        IM_TRY(im_mkdirs(s->own, root));
        IM_TRY(im_checkpoint_clean(s->own, root));
        IM_TRY(im_mkdirs(s->own, s->temp));
    }
    IM_TRY(plan_tensors(s));
    IM_TRY(create_file(s, &s->file[IM_FILE_WEIGHTS], IM_CHECKPOINT_WEIGHTS));
    return s->nstate ? create_file(s, &s->file[IM_FILE_OPTIMIZER], IM_CHECKPOINT_OPTIMIZER) : IM_OK;
}

/* A rank other than 0, once the files are there. */
static im_status open_files(im_checkpoint_save *s)
{
    for (int i = 0; i < IM_FILES; i++) {
        im_save_file *f = &s->file[i];
        if (f->fd >= 0 || !f->path)
            continue;
        f->fd = open(f->path, O_RDWR | O_CLOEXEC);
        if (f->fd < 0)
            return im_fail_errno(s->own, "%s: open", f->path);
    }
    return IM_OK;
}

static void destroy(im_checkpoint_save *s)
{
    im_context_destroy(s->own);
    im_arena_destroy(s->arena);
    free(s);
}

/* The error of the save's own context becomes the caller's. */
static im_status hand_over(im_checkpoint_save *s, im_status status)
{
    return status == IM_OK ? IM_OK : im_fail(s->ctx, status, "%s", im_error_text(s->own));
}

/* Where the ranks settle what went wrong; own errors and those of the communicator alike. */
static im_status settle(im_checkpoint_save *s, im_status own)
{
    return s->several ? im_engine_agree(s->engine, s->own, own) : own;
}

static im_status begin(im_checkpoint_save *s, const char *root, const char *copy_from)
{
    IM_TRY(settle(s, prepare(s, root, copy_from)));
    IM_TRY(settle(s, open_files(s)));
    im_snapshot snapshot = {.arg = s, .write = write_bucket, .end = end_save};
    im_status status = im_engine_snapshot(s->engine, &snapshot, &s->done);
    if (status != IM_OK)
        im_engine_abort(s->engine); /* the others have begun to write */
    return status;
}

im_status im_checkpoint_start(im_context *ctx, im_engine *e, const char *root, const im_checkpoint_meta *meta, const char *copy_from, int keep,
                              im_checkpoint_save **out)
{
    void *memory;
    if (im_device_config_of(im_engine_device(e))->kernels == IM_KERNELS_PACED) /* on all ranks alike */
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: with paced kernels nothing is computed: there is nothing to save", root);
    im_status status = im_alloc(ctx, 1, sizeof(im_checkpoint_save), &memory);
    if (status != IM_OK) {
        im_engine_abort(e); /* the others are about to wait for this rank */
        return status;
    }
    im_checkpoint_save *s = memory;
    bool master = im_engine_has_state(e, IM_STATE_MASTER), optimizer = im_engine_has_state(e, IM_STATE_M);
    s->ctx = ctx;
    s->engine = e;
    s->layout = im_engine_layout(e);
    s->meta = *meta;
    s->keep = keep;
    s->several = im_engine_ranks(e) > 1;
    s->leads = im_engine_rank(e) == 0;
    s->stored = master ? IM_BF16 : IM_F32;
    s->nstate = !optimizer ? 0 : master ? 3 : 2;
    s->file[0].fd = s->file[1].fd = -1;
    IM_TRY_GOTO(im_arena_create(ctx, &s->arena), leave);
    IM_TRY_GOTO(im_context_create(&s->own), leave);
    status = begin(s, root, copy_from);
    if (status == IM_OK) {
        *out = s;
        return IM_OK;
    }
    discard(s);
    status = hand_over(s, status); /* of the engine's errors its own context has the text */
    destroy(s);
    return status;
leave:
    im_engine_abort(e);
    destroy(s);
    return status;
}

typedef struct patience {
    unsigned long long moved;
    double since; /* when it was that; 0: not looked yet */
} patience;

/* Waits for an event for a moment. A disk may be much slower than any operation between ranks: while one waits for it, all go on to
 * ask one another. It is given up when nothing has moved for ten times the ranks' deadline. */
static im_status wait_a_moment(im_checkpoint_save *s, im_event e, patience *p, bool *over)
{
    enum { NAP_NS = 1000000, MOST_NS = 20000000 };
    const double moment = 0.5, most = 10 * im_engine_deadline(s->engine);
    double t0 = im_clock_now();
    bool done = false;
    for (int ns = NAP_NS;; ns = ns < MOST_NS ? ns * 2 : ns) {
        IM_TRY(im_event_poll(im_engine_device(s->engine), e, &done));
        double now = im_clock_now();
        unsigned long long moved = atomic_load(&s->moved) + s->publishing;
        if (p->since == 0 || moved != p->moved)
            *p = (patience){.moved = moved, .since = now};
        if (done || now - t0 > moment)
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    }
    *over = done;
    if (done || im_clock_now() - p->since < most)
        return IM_OK;
    return im_fail(s->ctx, IM_ERR_TIMEOUT, "%s: the disk does not answer: rank %d wrote nothing for %.3g s", s->temp, im_engine_rank(s->engine),
                   most);
}

/* Several ranks: all of them call, and agree on how far the save is. `wait`: to its end. */
static im_status advance(im_checkpoint_save *s, bool wait)
{
    im_device *d = im_engine_device(s->engine);
    patience p = {0};
    while (!s->over) {
        im_event next = s->publishing ? s->published : s->done;
        bool mine = true; /* nothing left to do here */
        if (!s->publishing || s->leads)
            IM_TRY(wait ? wait_a_moment(s, next, &p, &mine) : im_event_poll(d, next, &mine));
        double all = mine;
        IM_TRY(im_engine_combine(s->engine, &all, 1, IM_MIN));
        if (all == 0 && wait)
            continue;
        if (all == 0)
            return IM_OK;
        s->status = im_engine_agree(s->engine, s->own, s->status);
        if (s->publishing || s->status != IM_OK) {
            if (!s->publishing)
                discard(s);
            s->over = true;
        } else {
            im_queue *io = im_device_queue(d, IM_QUEUE_IO);
            im_work w = {.fn = run_publish, .arg = s, .name = "publish checkpoint", .tag = UINT32_MAX};
            if (s->leads)
                IM_TRY(im_queue_push(io, &w));
            s->published = im_queue_last(io);
            s->publishing = true;
        }
    }
    return IM_OK;
}

im_status im_checkpoint_poll(im_checkpoint_save *s, bool *done)
{
    if (s->several) {
        IM_TRY(advance(s, false));
        *done = s->over;
        return s->over ? s->status : IM_OK;
    }
    bool ended = atomic_load(&s->ended);
    if (!ended) {
        bool ignored;
        IM_TRY(im_event_poll(im_engine_device(s->engine), s->done, &ignored)); /* a dead io queue never ends it */
    }
    *done = ended;
    return ended ? s->status : IM_OK;
}

im_status im_checkpoint_finish(im_checkpoint_save *s)
{
    im_status status = s->several ? advance(s, true) : im_event_wait(im_engine_device(s->engine), s->done);
    if (status != IM_OK && s->several) { /* the run is lost; nothing of this rank may write any more */
        im_engine_abort(s->engine);
        im_status ignored = im_event_wait(im_engine_device(s->engine), s->publishing ? s->published : s->done);
        (void)ignored;
    }
    if (status != IM_OK && !atomic_load(&s->ended))
        discard(s);
    if (status == IM_OK)
        status = hand_over(s, s->status);
    destroy(s);
    return status;
}
