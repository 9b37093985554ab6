/* Token files, writing.
 *
 * The ids go to PREFIX.bin.tmp and the lengths of the sequences to PREFIX.idx.tmp, at the place they have in the finished index, so
 * that memory does not grow with the corpus. finish computes the pointers from the lengths and writes them and the document list
 * behind. Then both are synced; the old index goes, the new .bin comes, the new index comes: a reader that finds an index
 * finds the .bin it belongs to.
 */
#include "data/index.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct im_tokens_writer {
    im_context *ctx;
    char *bin_path, *idx_path, *bin_tmp, *idx_tmp;
    FILE *bin, *idx;
    size_t id_size;
    int code;
    int64_t tokens, sequences, documents;
    int64_t in_sequence; /* tokens since the last sequence began */
    int64_t in_document; /* tokens since the last document began */
    int64_t *continued;  /* sequences that do not begin a document: rare, so kept in memory */
    size_t ncontinued, continued_cap;
    im_status broken;
};

static char *with_suffix(const char *prefix, const char *suffix)
{
    char *s = NULL;
    return asprintf(&s, "%s%s", prefix, suffix) < 0 ? NULL : s;
}

/* Emptied only under the lock: another writer's file stays as it is. */
static im_status open_temporary(im_context *ctx, const char *path, FILE **out)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot be created", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        im_status status = errno == EWOULDBLOCK
                               ? im_fail(ctx, IM_ERR_EXISTS, "%s: another program is writing it; wait for it, or choose another name", path)
                               : im_fail_errno(ctx, "%s: cannot be locked", path);
        close(fd);
        return status;
    }
    FILE *f = ftruncate(fd, 0) == 0 ? fdopen(fd, "w+b") : NULL;
    if (!f) {
        im_status status = im_fail_errno(ctx, "%s: cannot be written", path);
        close(fd);
        return status;
    }
    setvbuf(f, NULL, _IOFBF, 1 << 20);
    *out = f;
    return IM_OK;
}

static void free_writer(im_tokens_writer *w)
{
    if (w->bin)
        fclose(w->bin);
    if (w->idx)
        fclose(w->idx);
    free(w->bin_path);
    free(w->idx_path);
    free(w->bin_tmp);
    free(w->idx_tmp);
    free(w->continued);
    free(w);
}

im_status im_tokens_create(im_context *ctx, const char *prefix, im_dtype dtype, im_tokens_writer **out)
{
    if (dtype != IM_U16 && dtype != IM_I32)
        return im_fail(ctx, IM_ERR_ARG, "%s: token files are written with 16- or 32-bit ids, not %s", prefix, im_dtype_name(dtype));
    im_status status = IM_OK;
    im_tokens_writer *w = NULL;
    IM_TRY(im_alloc(ctx, 1, sizeof *w, (void **)&w));
    w->ctx = ctx;
    w->code = dtype == IM_U16 ? 8 : 4;
    w->id_size = im_index_dtype_size(w->code);
    w->bin_path = with_suffix(prefix, ".bin");
    w->idx_path = with_suffix(prefix, ".idx");
    w->bin_tmp = with_suffix(prefix, ".bin.tmp");
    w->idx_tmp = with_suffix(prefix, ".idx.tmp");
    if (!w->bin_path || !w->idx_path || !w->bin_tmp || !w->idx_tmp) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to write %s", prefix);
        goto free_writer;
    }
    IM_TRY_GOTO(open_temporary(ctx, w->bin_tmp, &w->bin), free_writer);
    IM_TRY_GOTO(open_temporary(ctx, w->idx_tmp, &w->idx), remove_bin);
    if (fseeko(w->idx, IM_INDEX_HEADER, SEEK_SET) != 0) {
        status = im_fail_errno(ctx, "%s", w->idx_tmp);
        goto remove_idx;
    }
    *out = w;
    return IM_OK;
remove_idx:
    unlink(w->idx_tmp);
remove_bin:
    unlink(w->bin_tmp);
free_writer:
    free_writer(w);
    return status;
}

void im_tokens_abandon(im_tokens_writer *w)
{
    if (!w)
        return;
    unlink(w->bin_tmp);
    unlink(w->idx_tmp);
    free_writer(w);
}

int64_t im_tokens_written(const im_tokens_writer *w)
{
    return w->tokens;
}

int64_t im_tokens_written_documents(const im_tokens_writer *w)
{
    return w->documents;
}

/* The first failure stays: a file with a hole in it must not be finished. */
static im_status broken(im_tokens_writer *w, im_status status)
{
    if (w->broken == IM_OK)
        w->broken = status;
    return status;
}

static im_status end_sequence(im_tokens_writer *w)
{
    int32_t length = (int32_t)w->in_sequence;
    if (fwrite(&length, sizeof length, 1, w->idx) != 1)
        return broken(w, im_fail_errno(w->ctx, "%s", w->idx_tmp));
    if (w->in_document > w->in_sequence) {
        if (w->ncontinued == w->continued_cap) {
            size_t cap = w->continued_cap ? 2 * w->continued_cap : 16;
            int64_t *more = realloc(w->continued, cap * sizeof *more);
            if (!more)
                return broken(w, im_fail(w->ctx, IM_ERR_NOMEM, "%s: no memory for the document list", w->idx_tmp));
            w->continued = more;
            w->continued_cap = cap;
        }
        w->continued[w->ncontinued++] = w->sequences;
    }
    w->sequences++;
    w->in_sequence = 0;
    return IM_OK;
}

/* n ids of the file's own type, n at most what the sequence has room for. */
static im_status put(im_tokens_writer *w, const void *ids, size_t n)
{
    if (fwrite(ids, w->id_size, n, w->bin) != n)
        return broken(w, im_fail_errno(w->ctx, "%s", w->bin_tmp));
    w->tokens += (int64_t)n;
    w->in_sequence += (int64_t)n;
    w->in_document += (int64_t)n;
    return IM_OK;
}

enum { CHUNK = 4096 };

/* How many of n ids come next: a chunk, and not beyond the longest sequence that the index can tell. */
static im_status room(im_tokens_writer *w, size_t n, size_t *out)
{
    if (w->broken != IM_OK)
        return w->broken;
    if (w->in_sequence == INT32_MAX)
        IM_TRY(end_sequence(w));
    size_t left = (size_t)(INT32_MAX - w->in_sequence), m = n < CHUNK ? n : CHUNK;
    *out = m < left ? m : left;
    return IM_OK;
}

im_status im_tokens_append(im_tokens_writer *w, const int32_t *ids, size_t n)
{
    int32_t most = w->code == 8 ? UINT16_MAX : INT32_MAX;
    for (size_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        IM_TRY(room(w, n - done, &m));
        const int32_t *from = ids + done;
        for (size_t i = 0; i < m; i++) {
            if (from[i] < 0 || from[i] > most)
                return broken(w, im_fail(w->ctx, IM_ERR_ARG, "%s: token %lld would be the id %d; ids of %zu bytes are 0 to %d", w->bin_path,
                                         (long long)w->tokens + (long long)i, from[i], w->id_size, most));
            small[i] = (uint16_t)from[i];
        }
        IM_TRY(put(w, w->code == 8 ? (const void *)small : from, m));
    }
    return IM_OK;
}

im_status im_tokens_append_bytes(im_tokens_writer *w, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    for (size_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        int32_t wide[CHUNK];
        IM_TRY(room(w, n - done, &m));
        for (size_t i = 0; i < m && w->code == 8; i++)
            small[i] = from[done + i];
        for (size_t i = 0; i < m && w->code != 8; i++)
            wide[i] = from[done + i];
        IM_TRY(put(w, w->code == 8 ? (const void *)small : wide, m));
    }
    return IM_OK;
}

im_status im_tokens_end_document(im_tokens_writer *w)
{
    if (w->broken != IM_OK)
        return w->broken;
    if (w->in_document == 0)
        return IM_OK;
    if (w->in_sequence)
        IM_TRY(end_sequence(w));
    w->in_document = 0;
    w->documents++;
    return IM_OK;
}

/* ---- moving the tail ----------------------------------------------------------- */

static im_status read_at(im_tokens_writer *w, FILE *f, const char *path, void *to, size_t n, int64_t offset)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fileno(f), (char *)to + done, n - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return broken(w, got < 0 ? im_fail_errno(w->ctx, "%s", path)
                                     : im_fail(w->ctx, IM_ERR_IO, "%s: byte %lld: the file became shorter", path, (long long)(offset + (off_t)done)));
        done += (size_t)got;
    }
    return IM_OK;
}

static bool continues(const im_tokens_writer *w, int64_t sequence)
{
    for (size_t i = 0; i < w->ncontinued; i++)
        if (w->continued[i] == sequence)
            return true;
    return false;
}

static im_status copy_ids(im_tokens_writer *w, int64_t first, int64_t n, im_tokens_writer *to)
{
    for (int64_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        int32_t wide[CHUNK];
        m = n - done < CHUNK ? n - done : CHUNK;
        IM_TRY(read_at(w, w->bin, w->bin_tmp, w->code == 8 ? (void *)small : wide, (size_t)m * w->id_size, (first + done) * (int64_t)w->id_size));
        for (int64_t i = 0; i < m && w->code == 8; i++)
            wide[i] = small[i];
        IM_TRY(im_tokens_append(to, wide, (size_t)m));
    }
    return IM_OK;
}

/* Both files end after `sequences` sequences of `tokens` tokens, the last of `length`. */
static im_status cut(im_tokens_writer *w, int64_t sequences, int64_t tokens, int32_t length)
{
    off_t idx_end = IM_INDEX_HEADER + 4 * (off_t)sequences, bin_end = (off_t)tokens * (off_t)w->id_size;
    if (ftruncate(fileno(w->bin), bin_end) != 0 || fseeko(w->bin, bin_end, SEEK_SET) != 0)
        return broken(w, im_fail_errno(w->ctx, "%s", w->bin_tmp));
    if (ftruncate(fileno(w->idx), idx_end - 4) != 0 || fseeko(w->idx, idx_end - 4, SEEK_SET) != 0 || fwrite(&length, 4, 1, w->idx) != 1)
        return broken(w, im_fail_errno(w->ctx, "%s", w->idx_tmp));
    while (w->ncontinued && w->continued[w->ncontinued - 1] >= sequences)
        w->ncontinued--;
    w->sequences = sequences;
    w->tokens = tokens;
    w->documents = sequences - (int64_t)w->ncontinued;
    return IM_OK;
}

im_status im_tokens_move_tail(im_tokens_writer *w, int64_t first, im_tokens_writer *to)
{
    IM_TRY(im_tokens_end_document(w));
    if (first <= 0 || first >= w->tokens)
        return im_fail(w->ctx, IM_ERR_ARG, "%s: cannot be cut at token %lld of %lld", w->bin_path, (long long)first, (long long)w->tokens);
    if (fflush(w->bin) != 0 || fflush(w->idx) != 0)
        return broken(w, im_fail_errno(w->ctx, "%s", w->bin_tmp));
    int64_t at = 0, sequences = 0;
    int32_t length = 0, last = 0;
    for (int64_t i = 0; i < w->sequences; i++, at += length) {
        IM_TRY(read_at(w, w->idx, w->idx_tmp, &length, 4, IM_INDEX_HEADER + 4 * i));
        if (at < first) {
            sequences = i + 1;
            last = at + length <= first ? length : (int32_t)(first - at);
        }
        if (at + length <= first)
            continue;
        if (at >= first && !continues(w, i))
            IM_TRY(im_tokens_end_document(to));
        int64_t begin = at < first ? first : at;
        IM_TRY(copy_ids(w, begin, at + length - begin, to));
    }
    IM_TRY(im_tokens_end_document(to));
    return cut(w, sequences, first, last);
}

/* ---- finishing ------------------------------------------------------------------- */

/* The pointers follow from the lengths, which are read back from the file in pieces. */
static im_status write_pointers(im_tokens_writer *w)
{
    int64_t at = 0;
    for (int64_t i = 0; i < w->sequences;) {
        int32_t length[CHUNK];
        int64_t pointer[CHUNK], n = w->sequences - i < CHUNK ? w->sequences - i : CHUNK;
        IM_TRY(read_at(w, w->idx, w->idx_tmp, length, 4 * (size_t)n, IM_INDEX_HEADER + 4 * i));
        for (int64_t j = 0; j < n; j++) {
            pointer[j] = at;
            at += (int64_t)length[j] * (int64_t)w->id_size;
        }
        if (fwrite(pointer, 8, (size_t)n, w->idx) != (size_t)n)
            return im_fail_errno(w->ctx, "%s", w->idx_tmp);
        i += n;
    }
    return IM_OK;
}

static im_status write_documents(im_tokens_writer *w)
{
    size_t next = 0;
    for (int64_t i = 0; i <= w->sequences; i++) {
        if (next < w->ncontinued && w->continued[next] == i) {
            next++;
            continue;
        }
        if (fwrite(&i, 8, 1, w->idx) != 1)
            return im_fail_errno(w->ctx, "%s", w->idx_tmp);
    }
    return IM_OK;
}

static im_status write_header(im_tokens_writer *w)
{
    unsigned char h[IM_INDEX_HEADER];
    uint64_t version = 1, sequences = (uint64_t)w->sequences, entries = (uint64_t)w->documents + 1;
    memcpy(h, IM_INDEX_MAGIC, 9);
    memcpy(h + 9, &version, 8);
    h[17] = (unsigned char)w->code;
    memcpy(h + 18, &sequences, 8);
    memcpy(h + 26, &entries, 8);
    if (fseeko(w->idx, 0, SEEK_SET) != 0 || fwrite(h, sizeof h, 1, w->idx) != 1)
        return im_fail_errno(w->ctx, "%s", w->idx_tmp);
    return IM_OK;
}

static im_status sync_and_rename(im_tokens_writer *w)
{
    if (fflush(w->bin) != 0 || fsync(fileno(w->bin)) != 0)
        return im_fail_errno(w->ctx, "%s", w->bin_tmp);
    if (fflush(w->idx) != 0 || fsync(fileno(w->idx)) != 0)
        return im_fail_errno(w->ctx, "%s", w->idx_tmp);
    if (unlink(w->idx_path) != 0 && errno != ENOENT)
        return im_fail_errno(w->ctx, "%s: cannot be replaced", w->idx_path);
    if (rename(w->bin_tmp, w->bin_path) != 0)
        return im_fail_errno(w->ctx, "%s: cannot be named %s", w->bin_tmp, w->bin_path);
    if (rename(w->idx_tmp, w->idx_path) != 0)
        return im_fail_errno(w->ctx, "%s: cannot be named %s", w->idx_tmp, w->idx_path);
    char *dir = strdup(w->idx_path);
    if (!dir)
        return im_fail(w->ctx, IM_ERR_NOMEM, "%s: no memory", w->idx_path);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    im_status status = im_fsync_dir(w->ctx, slash ? dir : ".");
    free(dir);
    return status;
}

im_status im_tokens_finish(im_tokens_writer *w)
{
    im_status status = w->broken;
    if (status != IM_OK)
        goto abandon;
    IM_TRY_GOTO(im_tokens_end_document(w), abandon);
    if (fflush(w->idx) != 0) {
        status = im_fail_errno(w->ctx, "%s", w->idx_tmp);
        goto abandon;
    }
    IM_TRY_GOTO(write_pointers(w), abandon);
    IM_TRY_GOTO(write_documents(w), abandon);
    IM_TRY_GOTO(write_header(w), abandon);
    IM_TRY_GOTO(sync_and_rename(w), abandon);
    free_writer(w);
    return IM_OK;
abandon:
    im_tokens_abandon(w);
    return status;
}
