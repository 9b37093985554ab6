/* Token files, writing.
 *
 * The ids go to PREFIX.bin.tmp and the lengths of the sequences to PREFIX.idx.tmp, at the place they have in the finished index, so
 * that memory does not grow with the corpus. indexed_finish.c does the rest.
 */
#include "data/writer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char *with_suffix(const char *prefix, const char *suffix)
{
    char *s = NULL;
    return asprintf(&s, "%s%s", prefix, suffix) < 0 ? NULL : s;
}

/* Is what was opened still what stands under that name? The writer before may have removed or renamed it between open and lock. */
static bool still_named(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

/* Emptied (but for `keep` bytes) only under the lock: another writer's file stays as it is. */
static im_status open_temporary(im_context *ctx, const char *path, int64_t keep, FILE **out)
{
    int fd = -1;
    while (fd < 0) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return im_fail_errno(ctx, "%s: cannot be created", path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            im_status status = errno == EWOULDBLOCK
                                   ? im_fail(ctx, IM_ERR_EXISTS, "%s: another program is writing it; wait for it, or choose another name", path)
                                   : im_fail_errno(ctx, "%s: cannot be locked", path);
            close(fd);
            return status;
        }
        if (!still_named(fd, path)) {
            close(fd);
            fd = -1;
        }
    }
    struct stat st;
    if (keep && fstat(fd, &st) == 0 && st.st_size < keep) {
        im_status status =
            im_fail(ctx, IM_ERR_FORMAT, "%s: %lld bytes; the build that is to go on had written %lld", path, (long long)st.st_size, (long long)keep);
        close(fd);
        return status;
    }
    FILE *f = ftruncate(fd, keep) == 0 ? fdopen(fd, "r+b") : NULL;
    if (!f || fseeko(f, keep, SEEK_SET) != 0) {
        im_status status = im_fail_errno(ctx, "%s: cannot be written", path);
        if (f)
            fclose(f);
        else
            close(fd);
        return status;
    }
    setvbuf(f, NULL, _IOFBF, 1 << 20);
    *out = f;
    return IM_OK;
}

static void unlink_temporaries(const im_tokens_writer *w)
{
    if (w->bin)
        unlink(w->bin_tmp);
    if (w->idx)
        unlink(w->idx_tmp);
    if (w->mask)
        unlink(w->mask_tmp);
}

void im_tokens_writer_free(im_tokens_writer *w)
{
    if (w->bin)
        fclose(w->bin);
    if (w->idx)
        fclose(w->idx);
    if (w->mask)
        fclose(w->mask);
    free(w->prefix);
    free(w->bin_path);
    free(w->idx_path);
    free(w->mask_path);
    free(w->about_path);
    free(w->bin_tmp);
    free(w->idx_tmp);
    free(w->mask_tmp);
    free(w);
}

static im_status make_names(im_tokens_writer *w, const char *prefix)
{
    char **const name[] = {&w->prefix, &w->bin_path, &w->idx_path, &w->mask_path, &w->about_path, &w->bin_tmp, &w->idx_tmp, &w->mask_tmp};
    static const char *const suffix[] = {"", ".bin", ".idx", ".mask", ".json", ".bin.tmp", ".idx.tmp", ".mask.tmp"};
    for (size_t i = 0; i < IM_COUNT_OF(name); i++)
        if (!(*name[i] = with_suffix(prefix, suffix[i])))
            return im_fail(w->ctx, IM_ERR_NOMEM, "no memory to write %s", prefix);
    return IM_OK;
}

/* from: the place that im_tokens_writer_place told; NULL: from the start. */
im_status im_tokens_create_at(im_context *ctx, const char *prefix, const im_tokens_kind *kind, const im_tokens_place *from, im_tokens_writer **out)
{
    static const im_tokens_place start = {0};
    if (kind->dtype != IM_U16 && kind->dtype != IM_I32)
        return im_fail(ctx, IM_ERR_ARG, "%s: token files are written with 16- or 32-bit ids, not %s", prefix, im_dtype_name(kind->dtype));
    im_status status = IM_OK;
    im_tokens_writer *w = NULL;
    IM_TRY(im_alloc(ctx, 1, sizeof *w, (void **)&w));
    w->ctx = ctx;
    w->code = kind->dtype == IM_U16 ? 8 : 4;
    w->id_size = im_index_dtype_size(w->code);
    w->at = from ? *from : start;
    IM_TRY_GOTO(make_names(w, prefix), free_writer);
    IM_TRY_GOTO(open_temporary(ctx, w->bin_tmp, w->at.tokens * (int64_t)w->id_size, &w->bin), free_writer);
    IM_TRY_GOTO(open_temporary(ctx, w->idx_tmp, w->at.sequences ? IM_INDEX_HEADER + 4 * w->at.sequences : 0, &w->idx), remove_files);
    if (kind->masked)
        IM_TRY_GOTO(open_temporary(ctx, w->mask_tmp, w->at.tokens, &w->mask), remove_files);
    else
        unlink(w->mask_tmp); /* of an earlier build that was cut off */
    if (!w->at.tokens) {
        w->at.min_id = INT32_MAX;
        w->at.max_id = -1;
        w->at.text_bytes = IM_TEXT_UNTOLD;
    }
    if (fseeko(w->idx, IM_INDEX_HEADER + 4 * w->at.sequences, SEEK_SET) != 0) {
        status = im_fail_errno(ctx, "%s", w->idx_tmp);
        goto remove_files;
    }
    *out = w;
    return IM_OK;
remove_files:
    if (!from)
        unlink_temporaries(w);
free_writer:
    im_tokens_writer_free(w);
    return status;
}

im_status im_tokens_create(im_context *ctx, const char *prefix, im_dtype dtype, im_tokens_writer **out)
{
    return im_tokens_create_at(ctx, prefix, &(im_tokens_kind){.dtype = dtype}, NULL, out);
}

void im_tokens_abandon(im_tokens_writer *w)
{
    if (!w)
        return;
    unlink_temporaries(w);
    im_tokens_writer_free(w);
}

void im_tokens_leave(im_tokens_writer *w)
{
    if (w)
        im_tokens_writer_free(w);
}

void im_tokens_tell(im_tokens_writer *w, const char *tokenizer, uint64_t fingerprint, int64_t vocab, int64_t eod)
{
    snprintf(w->about.tokenizer, sizeof w->about.tokenizer, "%s", tokenizer);
    w->about.tokenizer_fingerprint = fingerprint;
    w->about.vocab = vocab;
    w->about.eod = eod;
}

void im_tokens_count_text(im_tokens_writer *w, int64_t nbytes)
{
    if (nbytes < 0)
        w->at.text_bytes = IM_TEXT_UNKNOWN;
    else if (w->at.text_bytes != IM_TEXT_UNKNOWN)
        w->at.text_bytes = nbytes + (w->at.text_bytes > 0 ? w->at.text_bytes : 0);
}

int64_t im_tokens_written(const im_tokens_writer *w)
{
    return w->at.tokens;
}

int64_t im_tokens_written_documents(const im_tokens_writer *w)
{
    return w->at.documents;
}

/* The first failure stays: a file with a hole in it must not be finished. */
static im_status broken(im_tokens_writer *w, im_status status)
{
    if (w->broken == IM_OK)
        w->broken = status;
    return status;
}

/* Until finish, the length of a sequence that goes on with the document of the one before it has a minus: nothing about the documents is
 * kept in memory, and a build that goes on after a kill finds it in the file. */
static im_status end_sequence(im_tokens_writer *w)
{
    int32_t length = (int32_t)(w->in_document > w->in_sequence ? -w->in_sequence : w->in_sequence);
    if (fwrite(&length, sizeof length, 1, w->idx) != 1)
        return broken(w, im_fail_errno(w->ctx, "%s", w->idx_tmp));
    w->at.sequences++;
    w->in_sequence = 0;
    return IM_OK;
}

enum { CHUNK = 4096 };

/* n ids of the file's own type, n at most what the sequence has room for and a chunk. counted: NULL for all. */
static im_status put(im_tokens_writer *w, const void *ids, const unsigned char *counted, size_t n)
{
    unsigned char ones[CHUNK];
    if (fwrite(ids, w->id_size, n, w->bin) != n)
        return broken(w, im_fail_errno(w->ctx, "%s", w->bin_tmp));
    if (w->mask && !counted)
        counted = memset(ones, 1, n);
    if (w->mask && fwrite(counted, 1, n, w->mask) != n)
        return broken(w, im_fail_errno(w->ctx, "%s", w->mask_tmp));
    size_t count = n;
    for (size_t i = 0; w->mask && i < n; i++)
        count -= !counted[i];
    w->at.counted += (int64_t)count;
    w->at.tokens += (int64_t)n;
    w->in_sequence += (int64_t)n;
    w->in_document += (int64_t)n;
    return IM_OK;
}

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

static void note_ids(im_tokens_writer *w, int32_t least, int32_t largest)
{
    w->at.min_id = least < w->at.min_id ? least : w->at.min_id;
    w->at.max_id = largest > w->at.max_id ? largest : w->at.max_id;
}

im_status im_tokens_append_masked(im_tokens_writer *w, const int32_t *ids, const unsigned char *counted, size_t n)
{
    const int32_t most = w->code == 8 ? UINT16_MAX : INT32_MAX;
    for (size_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        IM_TRY(room(w, n - done, &m));
        const int32_t *from = ids + done;
        int32_t lo = INT32_MAX, hi = 0;
        for (size_t i = 0; i < m; i++) {
            if (from[i] < 0 || from[i] > most)
                return broken(w, im_fail(w->ctx, IM_ERR_ARG, "%s: token %lld would be the id %d; ids of %zu bytes are 0 to %d", w->bin_path,
                                         (long long)w->at.tokens + (long long)i, from[i], w->id_size, most));
            small[i] = (uint16_t)from[i];
            lo = from[i] < lo ? from[i] : lo;
            hi = from[i] > hi ? from[i] : hi;
        }
        note_ids(w, lo, hi);
        IM_TRY(put(w, w->code == 8 ? (const void *)small : from, counted ? counted + done : NULL, m));
    }
    return IM_OK;
}

im_status im_tokens_append(im_tokens_writer *w, const int32_t *ids, size_t n)
{
    return im_tokens_append_masked(w, ids, NULL, n);
}

im_status im_tokens_append_bytes(im_tokens_writer *w, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    for (size_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        int32_t wide[CHUNK];
        unsigned char lo = UINT8_MAX, hi = 0;
        IM_TRY(room(w, n - done, &m));
        for (size_t i = 0; i < m; i++) {
            lo = from[done + i] < lo ? from[done + i] : lo;
            hi = from[done + i] > hi ? from[done + i] : hi;
        }
        for (size_t i = 0; i < m && w->code == 8; i++)
            small[i] = from[done + i];
        for (size_t i = 0; i < m && w->code != 8; i++)
            wide[i] = from[done + i];
        note_ids(w, lo, hi);
        IM_TRY(put(w, w->code == 8 ? (const void *)small : wide, NULL, m));
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
    if (w->in_document > w->at.longest)
        w->at.longest = w->in_document;
    w->in_document = 0;
    w->at.documents++;
    return IM_OK;
}

/* ---- moving the tail ----------------------------------------------------------- */

static im_status copy_ids(im_tokens_writer *w, int64_t first, int64_t n, im_tokens_writer *to)
{
    for (int64_t done = 0, m; done < n; done += m) {
        uint16_t small[CHUNK];
        int32_t wide[CHUNK];
        m = n - done < CHUNK ? n - done : CHUNK;
        IM_TRY(im_tokens_writer_read(w, w->bin, w->bin_tmp, w->code == 8 ? (void *)small : wide, (size_t)m * w->id_size,
                                     (first + done) * (int64_t)w->id_size));
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
    w->at.sequences = sequences;
    w->at.tokens = w->at.counted = tokens;
    w->at.text_bytes = IM_TEXT_UNKNOWN; /* nobody knows what text the cut went through */
    return IM_OK;
}

im_status im_tokens_move_tail(im_tokens_writer *w, int64_t first, im_tokens_writer *to)
{
    IM_TRY(im_tokens_end_document(w));
    if (first <= 0 || first >= w->at.tokens || w->mask)
        return im_fail(w->ctx, IM_ERR_ARG, "%s: cannot be cut at token %lld of %lld", w->bin_path, (long long)first, (long long)w->at.tokens);
    if (fflush(w->bin) != 0 || fflush(w->idx) != 0)
        return broken(w, im_fail_errno(w->ctx, "%s", w->bin_tmp));
    int64_t at = 0, sequences = 0, documents = 0, n = 0, in_document = 0, longest = 0;
    int32_t length, last = 0;
    for (int64_t i = 0; i < w->at.sequences; i++, at += n) {
        IM_TRY(im_tokens_writer_read(w, w->idx, w->idx_tmp, &length, 4, IM_INDEX_HEADER + 4 * i));
        n = length < 0 ? -(int64_t)length : length;
        if (at < first) {
            sequences = i + 1;
            documents += length >= 0;
            int64_t kept = at + n <= first ? n : first - at;
            last = (int32_t)(length < 0 ? -kept : kept);
            in_document = (length < 0 ? in_document : 0) + kept;
            longest = in_document > longest ? in_document : longest;
        }
        if (at + n <= first)
            continue;
        if (at >= first && length >= 0)
            IM_TRY(im_tokens_end_document(to));
        int64_t begin = at < first ? first : at;
        IM_TRY(copy_ids(w, begin, at + n - begin, to));
    }
    IM_TRY(im_tokens_end_document(to));
    to->at.text_bytes = IM_TEXT_UNKNOWN;
    w->at.documents = documents;
    w->at.longest = longest;
    return cut(w, sequences, first, last);
}
