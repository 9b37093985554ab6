/* imece.json: where the run stood, and what every file of the checkpoint weighs. */
#include "checkpoint/internal.h"
#include "base/stream_hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static im_status path_of(im_context *ctx, char *out, const char *dir, const char *name)
{
    if (snprintf(out, IM_CHECKPOINT_PATH, "%s/%s", dir, name) >= IM_CHECKPOINT_PATH)
        return im_fail(ctx, IM_ERR_ARG, "%s/%s: the path is too long", dir, name);
    return IM_OK;
}

static void append_real(im_str *out, const char *key, double x)
{
    if (isfinite(x))
        im_str_printf(out, "  \"%s\": %.17g,\n", key, x);
    else
        im_str_printf(out, "  \"%s\": null,\n", key);
}

static void append_text(im_str *out, const char *key, const char *text)
{
    im_str_printf(out, "  \"%s\": ", key);
    im_str_json_string(out, text, strlen(text));
    im_str_append(out, ",\n");
}

static void append_meta(im_str *out, const im_checkpoint_meta *m)
{
    im_str_printf(out, "{\n  \"format\": %d,\n  \"imece\": \"%s\",\n", IM_CHECKPOINT_FORMAT, IM_VERSION_STRING);
    im_str_printf(out, "  \"step\": %" PRId64 ",\n  \"position\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n  \"updates\": %" PRId64 ",\n", m->step,
                  m->position, m->tokens, m->updates);
    /* 64-bit values as text: JSON readers round numbers beyond 2^53 */
    im_str_printf(out, "  \"seed\": \"%" PRIu64 "\",\n  \"data_fingerprint\": \"%016" PRIx64 "\",\n", m->seed, m->data_fingerprint);
    append_real(out, "last_loss", m->last_loss);
    append_real(out, "elapsed_s", m->elapsed_s);
    append_real(out, "warmup_done_s", m->warmup_done_s);
    im_str_printf(out, "  \"threads\": %d,\n", m->threads);
    append_text(out, "isa", m->isa);
    append_text(out, "plan_key", m->plan_key);
    im_str_append(out, "  \"skipped\": [");
    for (int i = 0; i < m->nskip; i++)
        im_str_printf(out, "%s[%" PRId64 ", %" PRId64 "]", i ? ", " : "", m->skip[i].from, m->skip[i].count);
    im_str_append(out, "],\n");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(name[i]);
}

/* Names of the files in dir, sorted; free_names. */
static im_status file_names(im_context *ctx, const char *dir, char **name, size_t *n)
{
    DIR *d = opendir(dir);
    if (!d)
        return im_fail_errno(ctx, "%s: open", dir);
    im_status status = IM_OK;
    size_t count = 0;
    for (struct dirent *entry; status == IM_OK && (entry = readdir(d));) {
        if (entry->d_name[0] == '.')
            continue;
        if (count == IM_CHECKPOINT_MAX_FILES)
            status = im_fail(ctx, IM_ERR_INTERNAL, "%s: more than %d files", dir, IM_CHECKPOINT_MAX_FILES);
        else if (!(name[count] = strdup(entry->d_name)))
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for a file name");
        else
            count++;
    }
    closedir(d);
    if (status != IM_OK) {
        free_names(name, count);
        return status;
    }
    qsort(name, count, sizeof *name, by_name);
    *n = count;
    return IM_OK;
}

im_status im_checkpoint_write_manifest(im_context *ctx, const char *dir, const im_checkpoint_meta *meta)
{
    char path[IM_CHECKPOINT_PATH], *name[IM_CHECKPOINT_MAX_FILES];
    size_t n = 0;
    im_str text = {0};
    im_status status;
    append_meta(&text, meta);
    im_str_append(&text, "  \"files\": {");
    IM_TRY_GOTO(file_names(ctx, dir, name, &n), free_text);
    for (size_t i = 0; i < n; i++) {
        uint64_t hash, size;
        IM_TRY_GOTO(path_of(ctx, path, dir, name[i]), free_list);
        IM_TRY_GOTO(im_file_hash(ctx, path, &hash, &size), free_list);
        im_str_printf(&text, "%s\n    ", i ? "," : "");
        im_str_json_string(&text, name[i], strlen(name[i]));
        im_str_printf(&text, ": {\"size\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64 "\"}", size, hash);
    }
    im_str_append(&text, "\n  }\n}\n");
    IM_TRY_GOTO(path_of(ctx, path, dir, IM_CHECKPOINT_MANIFEST), free_list);
    status = text.failed ? im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the manifest", dir) : im_file_write_atomic(ctx, path, text.data, text.len);
free_list:
    free_names(name, n);
free_text:
    im_str_free(&text);
    return status;
}

/* ---- reading ------------------------------------------------------------------------ */

static im_status need_hex(im_context *ctx, const im_json *doc, const im_json_value *at, const char *key, int base, uint64_t *out)
{
    const char *text;
    IM_TRY(im_json_need_string(ctx, doc, at, key, &text));
    char *end;
    errno = 0;
    uint64_t x = strtoull(text, &end, base);
    if (errno || end == text || *end || text[0] == '-')
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s is \"%s\", not a 64-bit number", im_json_name(doc), key, text);
    *out = x;
    return IM_OK;
}

static im_status need_text(im_context *ctx, const im_json *doc, const char *key, char *out, size_t size)
{
    const char *text;
    IM_TRY(im_json_need_string(ctx, doc, im_json_root(doc), key, &text));
    if (strlen(text) >= size)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %s is longer than %zu bytes", im_json_name(doc), key, size - 1);
    snprintf(out, size, "%s", text);
    return IM_OK;
}

static im_status read_skips(im_context *ctx, const im_json *doc, im_checkpoint_meta *m)
{
    const im_json_value *list = im_json_get(im_json_root(doc), "skipped");
    size_t n = im_json_type_of(list) == IM_JSON_ARRAY ? im_json_length(list) : 0;
    if (n > IM_CHECKPOINT_MAX_SKIPS)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: skipped has %zu entries, at most %d are written", im_json_name(doc), n, IM_CHECKPOINT_MAX_SKIPS);
    for (size_t i = 0; i < n; i++) {
        const im_json_value *pair = im_json_at(list, i);
        int64_t from = im_json_int(im_json_at(pair, 0), -1), count = im_json_int(im_json_at(pair, 1), -1);
        if (from < 0 || count < 1 || from > INT64_MAX - count)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: skipped[%zu] is not [from >= 0, count >= 1]", im_json_name(doc), i);
        m->skip[i] = (im_checkpoint_skip){from, count};
    }
    m->nskip = (int)n;
    return IM_OK;
}

static im_status read_meta(im_context *ctx, const im_json *doc, im_checkpoint_meta *m)
{
    const im_json_value *root = im_json_root(doc);
    int64_t format, threads;
    IM_TRY(im_json_need_int(ctx, doc, root, "format", 1, INT64_MAX, &format));
    if (format != IM_CHECKPOINT_FORMAT)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: format %" PRId64 "; this build reads %d", im_json_name(doc), format, IM_CHECKPOINT_FORMAT);
    IM_TRY(im_json_need_int(ctx, doc, root, "step", 0, INT64_MAX, &m->step));
    IM_TRY(im_json_need_int(ctx, doc, root, "position", 0, INT64_MAX, &m->position));
    IM_TRY(im_json_need_int(ctx, doc, root, "tokens", 0, INT64_MAX, &m->tokens));
    IM_TRY(im_json_need_int(ctx, doc, root, "updates", 0, INT64_MAX, &m->updates));
    IM_TRY(im_json_need_int(ctx, doc, root, "threads", 0, 1 << 20, &threads));
    m->threads = (int)threads;
    IM_TRY(need_hex(ctx, doc, root, "seed", 10, &m->seed));
    IM_TRY(need_hex(ctx, doc, root, "data_fingerprint", 16, &m->data_fingerprint));
    m->last_loss = im_json_real(im_json_get(root, "last_loss"), NAN);
    m->elapsed_s = im_json_real(im_json_get(root, "elapsed_s"), 0);
    m->warmup_done_s = im_json_real(im_json_get(root, "warmup_done_s"), -1);
    IM_TRY(need_text(ctx, doc, "isa", m->isa, sizeof m->isa));
    IM_TRY(need_text(ctx, doc, "plan_key", m->plan_key, sizeof m->plan_key));
    return read_skips(ctx, doc, m);
}

typedef struct listed_file {
    char path[IM_CHECKPOINT_PATH];
    uint64_t hash;
} listed_file;

/* Name, size and hash of a file as the manifest lists it; the size is compared. */
static im_status check_size(im_context *ctx, const im_json *doc, const char *dir, const char *name, const im_json_value *v, listed_file *out,
                            uint64_t *nbytes)
{
    int64_t size;
    if (strchr(name, '/'))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: files: \"%s\" is not a name in this directory", im_json_name(doc), name);
    IM_TRY(im_json_need_int(ctx, doc, v, "size", 0, INT64_MAX, &size));
    IM_TRY(need_hex(ctx, doc, v, "xxh3", 16, &out->hash));
    IM_TRY(path_of(ctx, out->path, dir, name));
    struct stat st;
    if (stat(out->path, &st))
        return im_fail_errno(ctx, "%s: named in " IM_CHECKPOINT_MANIFEST, out->path);
    if (st.st_size != size)
        return im_fail(ctx, IM_ERR_CHECK, "%s: %lld bytes, the manifest says %" PRId64, out->path, (long long)st.st_size, size);
    *nbytes += (uint64_t)size;
    return IM_OK;
}

static im_status check_hash(im_context *ctx, const listed_file *f)
{
    uint64_t got;
    IM_TRY(im_file_hash(ctx, f->path, &got, NULL));
    if (got != f->hash)
        return im_fail(ctx, IM_ERR_CHECK, "%s: XXH3 %016" PRIx64 ", the manifest says %016" PRIx64, f->path, got, f->hash);
    return IM_OK;
}

/* The two large files are hashed by two threads. */
static im_status check_hashes(im_context *ctx, const listed_file *f, size_t n)
{
    int failed = IM_OK;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        im_status s = check_hash(ctx, &f[i]);
        if (s != IM_OK) {
#pragma omp atomic write
            failed = s;
        }
    }
    return (im_status)failed;
}

static im_status check_files(im_context *ctx, const im_json *doc, const char *dir, bool verify, uint64_t *nbytes)
{
    const im_json_value *files = im_json_get(im_json_root(doc), "files");
    if (im_json_type_of(files) != IM_JSON_OBJECT || !im_json_get(files, IM_CHECKPOINT_WEIGHTS))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: files does not name " IM_CHECKPOINT_WEIGHTS, im_json_name(doc));
    size_t n = im_json_length(files);
    if (n > IM_CHECKPOINT_MAX_FILES)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: files names %zu, a checkpoint has at most %d", im_json_name(doc), n, IM_CHECKPOINT_MAX_FILES);
    void *memory;
    IM_TRY(im_alloc(ctx, n, sizeof(listed_file), &memory));
    listed_file *list = memory;
    im_status status = IM_OK;
    for (size_t i = 0; i < n; i++) {
        const char *name;
        const im_json_value *v = im_json_member(files, i, &name);
        IM_TRY_GOTO(check_size(ctx, doc, dir, name, v, &list[i], nbytes), free_list);
    }
    if (verify)
        status = check_hashes(ctx, list, n);
free_list:
    free(list);
    return status;
}

im_status im_checkpoint_read_manifest(im_context *ctx, const char *dir, bool verify, im_checkpoint_meta *out, uint64_t *nbytes)
{
    char path[IM_CHECKPOINT_PATH];
    im_json *doc;
    im_checkpoint_meta meta = {0};
    uint64_t total = 0;
    IM_TRY(path_of(ctx, path, dir, IM_CHECKPOINT_MANIFEST));
    IM_TRY(im_json_load(ctx, path, (size_t)1 << 20, &doc));
    im_status status = read_meta(ctx, doc, &meta);
    if (status == IM_OK)
        status = check_files(ctx, doc, dir, verify, &total);
    im_json_free(doc);
    IM_TRY(status);
    *out = meta;
    if (nbytes)
        *nbytes = total;
    return IM_OK;
}

im_status im_checkpoint_check_weights(im_context *ctx, const char *dir)
{
    char path[IM_CHECKPOINT_PATH];
    im_json *doc;
    listed_file f;
    uint64_t nbytes = 0;
    IM_TRY(path_of(ctx, path, dir, IM_CHECKPOINT_MANIFEST));
    if (!im_path_exists(path))
        return IM_OK; /* not one of ours: nothing to compare with */
    IM_TRY(im_json_load(ctx, path, (size_t)1 << 20, &doc));
    const im_json_value *v = im_json_get(im_json_get(im_json_root(doc), "files"), IM_CHECKPOINT_WEIGHTS);
    im_status status = v ? check_size(ctx, doc, dir, IM_CHECKPOINT_WEIGHTS, v, &f, &nbytes)
                         : im_fail(ctx, IM_ERR_FORMAT, "%s: files does not name " IM_CHECKPOINT_WEIGHTS, path);
    if (status == IM_OK)
        status = check_hash(ctx, &f);
    im_json_free(doc);
    if (status != IM_ERR_CHECK)
        return status;
    char text[1024]; /* here it is no finding of a check, but a file that cannot be used */
    snprintf(text, sizeof text, "%s", im_error_text(ctx));
    im_error_clear(ctx);
    return im_fail(ctx, IM_ERR_FORMAT, "%s; the file was changed or damaged after it was written", text);
}

im_status im_checkpoint_meta_read(im_context *ctx, const char *dir, bool verify, im_checkpoint_meta *out)
{
    return im_checkpoint_read_manifest(ctx, dir, verify, out, NULL);
}
