/* Token files, finishing: the pointers and the document list are made from the lengths that idx.tmp has, a piece at a time. Then all is synced;
 * the old index goes, .bin, .mask and .json come, and the new index last: a reader that finds an index finds the files it belongs to. */
#include "data/about.h"
#include "data/writer.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 4096 };

im_status im_tokens_writer_read(im_tokens_writer *w, FILE *f, const char *path, void *to, size_t n, int64_t offset)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fileno(f), (char *)to + done, n - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            im_status status = got < 0
                                   ? im_fail_errno(w->ctx, "%s", path)
                                   : im_fail(w->ctx, IM_ERR_IO, "%s: byte %lld: the file became shorter", path, (long long)(offset + (off_t)done));
            w->broken = w->broken == IM_OK ? status : w->broken;
            return status;
        }
        done += (size_t)got;
    }
    return IM_OK;
}

/* ---- index ----------------------------------------------------------------------------------------- */

/* Lengths i .. i+n of idx.tmp; those with a minus (end_sequence) are set right in the file, and told in `continues`. */
static im_status read_lengths(im_tokens_writer *w, int64_t i, int64_t n, int32_t *length, bool *continues)
{
    IM_TRY(im_tokens_writer_read(w, w->idx, w->idx_tmp, length, 4 * (size_t)n, IM_INDEX_HEADER + 4 * i));
    for (int64_t j = 0; j < n; j++) {
        continues[j] = length[j] < 0;
        length[j] = length[j] < 0 ? -length[j] : length[j];
    }
    return IM_OK;
}

static im_status write_pointers(im_tokens_writer *w)
{
    int64_t at = 0;
    for (int64_t i = 0; i < w->at.sequences;) {
        int32_t length[CHUNK];
        bool continues[CHUNK];
        int64_t pointer[CHUNK], n = w->at.sequences - i < CHUNK ? w->at.sequences - i : CHUNK;
        IM_TRY(read_lengths(w, i, n, length, continues));
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
    int64_t entry[CHUNK + 1];
    for (int64_t i = 0; i < w->at.sequences;) {
        int32_t length[CHUNK];
        bool continues[CHUNK];
        int64_t n = w->at.sequences - i < CHUNK ? w->at.sequences - i : CHUNK;
        size_t m = 0;
        IM_TRY(read_lengths(w, i, n, length, continues));
        for (int64_t j = 0; j < n; j++)
            if (!continues[j])
                entry[m++] = i + j;
        if (fwrite(entry, 8, m, w->idx) != m)
            return im_fail_errno(w->ctx, "%s", w->idx_tmp);
        i += n;
    }
    if (fwrite(&w->at.sequences, 8, 1, w->idx) != 1)
        return im_fail_errno(w->ctx, "%s", w->idx_tmp);
    return IM_OK;
}

/* After the document list is written, which needs the signs. */
static im_status drop_signs(im_tokens_writer *w)
{
    for (int64_t i = 0; i < w->at.sequences;) {
        int32_t length[CHUNK];
        bool continues[CHUNK];
        int64_t n = w->at.sequences - i < CHUNK ? w->at.sequences - i : CHUNK;
        IM_TRY(read_lengths(w, i, n, length, continues));
        for (int64_t j = 0; j < n; j++)
            if (continues[j] && pwrite(fileno(w->idx), &length[j], 4, IM_INDEX_HEADER + 4 * (i + j)) != 4)
                return im_fail_errno(w->ctx, "%s", w->idx_tmp);
        i += n;
    }
    return IM_OK;
}

static im_status write_header(im_tokens_writer *w)
{
    unsigned char h[IM_INDEX_HEADER];
    uint64_t version = 1, sequences = (uint64_t)w->at.sequences, entries = (uint64_t)w->at.documents + 1;
    memcpy(h, IM_INDEX_MAGIC, 9);
    memcpy(h + 9, &version, 8);
    h[17] = (unsigned char)w->code;
    memcpy(h + 18, &sequences, 8);
    memcpy(h + 26, &entries, 8);
    if (fseeko(w->idx, 0, SEEK_SET) != 0 || fwrite(h, sizeof h, 1, w->idx) != 1)
        return im_fail_errno(w->ctx, "%s", w->idx_tmp);
    return IM_OK;
}

static im_status flush_and_sync(im_tokens_writer *w, FILE *f, const char *path)
{
    return fflush(f) == 0 && fsync(fileno(f)) == 0 ? IM_OK : im_fail_errno(w->ctx, "%s", path);
}

static im_status put_in_place(im_tokens_writer *w, const char *from, const char *to)
{
    return rename(from, to) == 0 ? IM_OK : im_fail_errno(w->ctx, "%s: cannot be named %s", from, to);
}

/* The fingerprint is that of the files as they will be opened, so they are opened once the index stands; only then does the description come. A
 * kill in between leaves token files without one, which is allowed. */
static im_status describe(im_tokens_writer *w)
{
    im_tokens *t;
    IM_TRY(im_tokens_open(w->ctx, w->prefix, &t));
    im_tokens_about a = w->about;
    a.fingerprint = im_tokens_fingerprint(t);
    im_tokens_close(t);
    a.tokens = w->at.tokens;
    a.documents = w->at.documents;
    a.longest = w->at.longest;
    a.min_id = w->at.tokens ? w->at.min_id : 0;
    a.max_id = w->at.tokens ? w->at.max_id : -1;
    a.counted = w->at.counted;
    a.text_bytes = w->at.text_bytes < 0 ? -1 : w->at.text_bytes;
    return im_tokens_about_write(w->ctx, w->about_path, &a);
}

static im_status sync_and_rename(im_tokens_writer *w)
{
    const char *const stale[] = {w->idx_path, w->about_path, w->mask_path};
    IM_TRY(flush_and_sync(w, w->bin, w->bin_tmp));
    IM_TRY(flush_and_sync(w, w->idx, w->idx_tmp));
    if (w->mask)
        IM_TRY(flush_and_sync(w, w->mask, w->mask_tmp));
    for (size_t i = 0; i < IM_COUNT_OF(stale); i++)
        if (unlink(stale[i]) != 0 && errno != ENOENT)
            return im_fail_errno(w->ctx, "%s: cannot be replaced", stale[i]);
    IM_TRY(put_in_place(w, w->bin_tmp, w->bin_path));
    if (w->mask)
        IM_TRY(put_in_place(w, w->mask_tmp, w->mask_path));
    IM_TRY(put_in_place(w, w->idx_tmp, w->idx_path));
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
    if (fflush(w->idx) != 0) {
        status = im_fail_errno(w->ctx, "%s", w->idx_tmp);
        goto abandon;
    }
    IM_TRY_GOTO(drop_signs(w), abandon);
    IM_TRY_GOTO(write_header(w), abandon);
    IM_TRY_GOTO(sync_and_rename(w), abandon);
    status = describe(w);
    im_tokens_writer_free(w);
    return status;
abandon:
    im_tokens_abandon(w);
    return status;
}

/* ---- going on later --------------------------------------------------------------------------------- */

im_status im_tokens_writer_place(im_tokens_writer *w, im_tokens_place *out)
{
    if (w->broken != IM_OK)
        return w->broken;
    if (w->in_document)
        return im_fail(w->ctx, IM_ERR_INTERNAL, "%s: a place within a document", w->bin_path);
    IM_TRY(flush_and_sync(w, w->bin, w->bin_tmp));
    IM_TRY(flush_and_sync(w, w->idx, w->idx_tmp));
    if (w->mask)
        IM_TRY(flush_and_sync(w, w->mask, w->mask_tmp));
    *out = w->at;
    return IM_OK;
}
