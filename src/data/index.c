/* Reading the .idx: see index.h for the layout. */
#include "data/index.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Up to this many sequences the whole index is checked at opening (under 1.5 MB); of larger ones both ends and a sample. */
enum { CHECK_ALL = 65536, CHECK_ENDS = 1024, CHECK_SAMPLES = 64 };

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {[1] = {"uint8", 1}, [2] = {"int8", 1},    [3] = {"int16", 2},   [4] = {"int32", 4},
              [5] = {"int64", 8}, [6] = {"float64", 8}, [7] = {"float32", 4}, [8] = {"uint16", 2}};

const char *im_index_dtype_name(int code)
{
    return code >= 1 && code < (int)IM_COUNT_OF(dtypes) ? dtypes[code].name : NULL;
}

size_t im_index_dtype_size(int code)
{
    return code >= 1 && code < (int)IM_COUNT_OF(dtypes) ? dtypes[code].size : 0;
}

im_status im_index_pread(im_context *ctx, const char *path, int fd, uint64_t len, uint64_t at, void *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(fd, (char *)out + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return im_fail_errno(ctx, "%s: byte %llu", path, (unsigned long long)(at + done));
        if (k == 0)
            return im_fail(ctx, IM_ERR_IO, "%s: it has no byte %llu any more; it had %llu bytes when it was opened: somebody changed it", path,
                           (unsigned long long)(at + done), (unsigned long long)len);
        done += (size_t)k;
    }
    return IM_OK;
}

static im_status get(im_context *ctx, const im_index *x, size_t at, void *out, size_t n)
{
    if (!x->file.bytes)
        return im_index_pread(ctx, x->file.path, x->file.fd, x->file.len, at, out, n);
    memcpy(out, x->file.bytes + at, n);
    return IM_OK;
}

static im_status pointer_of(im_context *ctx, const im_index *x, int64_t i, int64_t *out)
{
    return get(ctx, x, x->pointers_at + 8 * (size_t)i, out, 8);
}

static im_status document_of(im_context *ctx, const im_index *x, int64_t i, int64_t *out)
{
    return get(ctx, x, x->documents_at + 8 * (size_t)i, out, 8);
}

static im_status parse_header(im_context *ctx, im_index *x, uint64_t *s, uint64_t *n)
{
    unsigned char h[IM_INDEX_HEADER];
    uint64_t version;
    if (x->file.len < IM_INDEX_HEADER)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes; an index begins with %d bytes of header", x->file.path, x->file.len, IM_INDEX_HEADER);
    IM_TRY(get(ctx, x, 0, h, sizeof h));
    memcpy(&version, h + 9, 8);
    memcpy(s, h + 18, 8);
    memcpy(n, h + 26, 8);
    if (memcmp(h, IM_INDEX_MAGIC, 9) != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 0: not a token index (it would begin with MMIDIDX and two zero bytes)", x->file.path);
    if (version != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: byte 9: index version %llu; version 1 is known", x->file.path, (unsigned long long)version);
    x->code = h[17];
    if (!im_index_dtype_name(x->code))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 17: unknown id type %d; known: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16",
                       x->file.path, x->code);
    if (x->code == 6 || x->code == 7)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: byte 17: the file holds %s values, not token ids", x->file.path, im_index_dtype_name(x->code));
    x->id_size = im_index_dtype_size(x->code);
    return IM_OK;
}

/* Sets the counts and the three offsets. The file's length bounds the counts first, so nothing can overflow. */
static im_status parse_counts(im_context *ctx, im_index *x, uint64_t s, uint64_t n)
{
    if (s > (x->file.len - IM_INDEX_HEADER) / 12)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 18: %llu sequences need %.0f bytes, the file has %zu", x->file.path, (unsigned long long)s,
                       34.0 + 12.0 * (double)s, x->file.len);
    size_t rest = x->file.len - IM_INDEX_HEADER - 12 * (size_t)s;
    if (n < 1 || n > rest / 8)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 26: %llu entries in the document list; at least 1 is needed and the file has room for %zu",
                       x->file.path, (unsigned long long)n, rest / 8);
    rest -= 8 * (size_t)n;
    if (rest != 0 && rest != s)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes after the document list; %llu sequences and %llu list entries make %zu bytes", x->file.path,
                       rest, (unsigned long long)s, (unsigned long long)n, x->file.len - rest);
    if (rest != 0)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: a multimodal index (one mode a sequence); only text is read", x->file.path);
    x->sequences = (int64_t)s;
    x->documents = (int64_t)n - 1;
    x->lengths_at = IM_INDEX_HEADER;
    x->pointers_at = x->lengths_at + 4 * (size_t)s;
    x->documents_at = x->pointers_at + 8 * (size_t)s;
    if (x->bin_len % x->id_size)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %llu bytes are not a whole number of %s ids", x->bin_path, (unsigned long long)x->bin_len,
                       im_index_dtype_name(x->code));
    x->tokens = (int64_t)(x->bin_len / x->id_size);
    return IM_OK;
}

/* A place that is right but for its upper half, or that went on from 2^31 bytes with a sign, was computed in 32 bits by who wrote the index. */
static const char *overflow_hint(bool seen)
{
    return seen ? " (the writer of this index computed places in 32 bits, and they pass 2^31: make it again from the text)" : "";
}

static bool same_low_half(int64_t want, int64_t is)
{
    return want > INT32_MAX && want != is && (uint32_t)want == (uint32_t)is;
}

/* Lies the sequence inside the .bin? */
static im_status check_place(im_context *ctx, const im_index *x, int64_t i, int64_t length, int64_t at)
{
    int64_t size = (int64_t)x->id_size;
    if (length < 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld has the length %lld", x->file.path, x->lengths_at + 4 * (size_t)i,
                       (long long)i, (long long)length);
    if (at < 0 || at % size || at / size > x->tokens || length > x->tokens - at / size)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld is %lld ids from byte %lld on, but %s has %llu bytes%s", x->file.path,
                       x->pointers_at + 8 * (size_t)i, (long long)i, (long long)length, (long long)at, x->bin_path, (unsigned long long)x->bin_len,
                       overflow_hint(at < 0 && x->bin_len > INT32_MAX));
    return IM_OK;
}

im_status im_index_sequence(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n)
{
    int32_t length;
    int64_t at;
    IM_TRY(get(ctx, x, x->lengths_at + 4 * (size_t)i, &length, 4));
    IM_TRY(pointer_of(ctx, x, i, &at));
    IM_TRY(check_place(ctx, x, i, length, at));
    *first = at / (int64_t)x->id_size;
    *n = length;
    return IM_OK;
}

/* Sequence i ends where the next begins; the last one where the .bin ends. */
static im_status check_next(im_context *ctx, const im_index *x, int64_t i, int64_t end, int64_t next)
{
    if (end == next)
        return IM_OK;
    if (i + 1 < x->sequences)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld begins at byte %lld of %s; the one before it ends at %lld%s", x->file.path,
                       x->pointers_at + 8 * (size_t)(i + 1), (long long)(i + 1), (long long)next, x->bin_path, (long long)end,
                       overflow_hint(same_low_half(end, next)));
    return im_fail(ctx, IM_ERR_FORMAT, "%s: the sequences end at byte %lld, but %s has %llu bytes: the two files do not belong together%s",
                   x->file.path, (long long)end, x->bin_path, (unsigned long long)x->bin_len, overflow_hint(same_low_half(next, end)));
}

enum { CHUNK = 1024 };

im_status im_index_check_sequences(im_context *ctx, const im_index *x, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last;) {
        int32_t length[CHUNK];
        int64_t at[CHUNK + 1], n = last - i < CHUNK ? last - i : CHUNK;
        bool ends = i + n == x->sequences;
        IM_TRY(get(ctx, x, x->lengths_at + 4 * (size_t)i, length, 4 * (size_t)n));
        IM_TRY(get(ctx, x, x->pointers_at + 8 * (size_t)i, at, 8 * (size_t)(ends ? n : n + 1)));
        if (ends)
            at[n] = (int64_t)x->bin_len;
        if (i == 0 && at[0] != 0)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the first sequence begins at byte %lld of %s, not at 0", x->file.path, x->pointers_at,
                           (long long)at[0], x->bin_path);
        for (int64_t j = 0; j < n; j++) {
            IM_TRY(check_place(ctx, x, i + j, length[j], at[j]));
            IM_TRY(check_next(ctx, x, i + j, at[j] + (int64_t)length[j] * (int64_t)x->id_size, at[j + 1]));
        }
        i += n;
    }
    return IM_OK;
}

im_status im_index_check_documents(im_context *ctx, const im_index *x, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last;) {
        int64_t entry[CHUNK + 1], n = last - i < CHUNK ? last - i : CHUNK;
        IM_TRY(get(ctx, x, x->documents_at + 8 * (size_t)i, entry, 8 * (size_t)(n + 1)));
        for (int64_t j = 0; j < n; j++)
            if (entry[j] < 0 || entry[j + 1] < entry[j] || entry[j + 1] > x->sequences)
                return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: document %lld is sequences %lld to %lld of %lld", x->file.path,
                               x->documents_at + 8 * (size_t)(i + j), (long long)(i + j), (long long)entry[j], (long long)entry[j + 1],
                               (long long)x->sequences);
        i += n;
    }
    return IM_OK;
}

/* Both ends, and a fixed number of places between them. */
static im_status check_some(im_context *ctx, const im_index *x, int64_t count, im_status (*check)(im_context *, const im_index *, int64_t, int64_t))
{
    if (count <= CHECK_ALL)
        return check(ctx, x, 0, count);
    IM_TRY(check(ctx, x, 0, CHECK_ENDS));
    IM_TRY(check(ctx, x, count - CHECK_ENDS, count));
    for (int64_t i = 1; i <= CHECK_SAMPLES; i++) {
        int64_t at = (int64_t)((double)count / (CHECK_SAMPLES + 1) * (double)i);
        IM_TRY(check(ctx, x, at, at + 1));
    }
    return IM_OK;
}

im_status im_index_parse(im_context *ctx, const im_index_file *file, const char *bin_path, uint64_t bin_len, im_index *out)
{
    im_index x = {.file = *file, .bin_path = bin_path, .bin_len = bin_len};
    uint64_t s = 0, n = 0;
    int64_t first, last;
    IM_TRY(parse_header(ctx, &x, &s, &n));
    IM_TRY(parse_counts(ctx, &x, s, n));
    if (x.sequences == 0 && x.tokens)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 18: no sequences, but %s has %llu bytes", file->path, bin_path, (unsigned long long)bin_len);
    IM_TRY(document_of(ctx, &x, 0, &first));
    IM_TRY(document_of(ctx, &x, x.documents, &last));
    if (first != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the document list begins with %lld, not 0", file->path, x.documents_at, (long long)first);
    if (last != x.sequences)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the document list ends with %lld; there are %lld sequences", file->path,
                       x.documents_at + 8 * (size_t)x.documents, (long long)last, (long long)x.sequences);
    IM_TRY(check_some(ctx, &x, x.sequences, im_index_check_sequences));
    IM_TRY(check_some(ctx, &x, x.documents, im_index_check_documents));
    *out = x;
    return IM_OK;
}

im_status im_index_document(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n)
{
    if (i < 0 || i >= x->documents)
        return im_fail(ctx, IM_ERR_ARG, "%s: no document %lld; there are %lld, counted from 0", x->file.path, (long long)i, (long long)x->documents);
    int64_t a, b;
    IM_TRY(im_index_check_documents(ctx, x, i, i + 1));
    IM_TRY(document_of(ctx, x, i, &a));
    IM_TRY(document_of(ctx, x, i + 1, &b));
    if (a == b) {
        *first = 0;
        *n = 0;
        return IM_OK;
    }
    int64_t begin, begin_n, end, end_n;
    IM_TRY(im_index_sequence(ctx, x, a, &begin, &begin_n));
    IM_TRY(im_index_sequence(ctx, x, b - 1, &end, &end_n));
    if (end < begin)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: document %lld ends before it begins", x->file.path, x->pointers_at + 8 * (size_t)(b - 1),
                       (long long)i);
    *first = begin;
    *n = end + end_n - begin;
    return IM_OK;
}

/* ---- places of documents ------------------------------------------------------------------------- */

static im_status place_of_sequence(im_context *ctx, const im_index *x, int64_t sequence, int64_t *token)
{
    int64_t at = (int64_t)x->bin_len, size = (int64_t)x->id_size;
    if (sequence < 0 || sequence > x->sequences)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: the document list names sequence %lld of %lld", x->file.path, (long long)sequence,
                       (long long)x->sequences);
    if (sequence < x->sequences)
        IM_TRY(pointer_of(ctx, x, sequence, &at));
    if (at < 0 || at % size || at / size > x->tokens)
        return check_place(ctx, x, sequence, 0, at);
    *token = at / size;
    return IM_OK;
}

im_status im_index_places(im_context *ctx, const im_index *x, int64_t first, int64_t n, int64_t *place)
{
    if (first < 0 || n < 0 || first > x->documents - n)
        return im_fail(ctx, IM_ERR_ARG, "%s: no documents %lld to %lld; there are %lld", x->file.path, (long long)first, (long long)(first + n),
                       (long long)x->documents);
    IM_TRY(im_index_check_documents(ctx, x, first, first + n));
    IM_TRY(get(ctx, x, x->documents_at + 8 * (size_t)first, place, 8 * (size_t)(n + 1)));
    for (int64_t i = 0; i <= n;) {
        int64_t at[CHUNK], k = 1; /* entries whose sequences follow one another, as they do where a document is one sequence */
        while (i + k <= n && k < CHUNK && place[i + k] == place[i] + k && place[i + k] < x->sequences)
            k++;
        if (k > 1) {
            IM_TRY(get(ctx, x, x->pointers_at + 8 * (size_t)place[i], at, 8 * (size_t)k));
            for (int64_t j = 0; j < k; j++) {
                if (at[j] < 0 || at[j] % (int64_t)x->id_size || at[j] / (int64_t)x->id_size > x->tokens)
                    return check_place(ctx, x, place[i + j], 0, at[j]);
                place[i + j] = at[j] / (int64_t)x->id_size;
            }
        } else {
            IM_TRY(place_of_sequence(ctx, x, place[i], &place[i]));
        }
        i += k;
    }
    for (int64_t i = 0; i < n; i++)
        if (place[i + 1] < place[i])
            return im_fail(ctx, IM_ERR_FORMAT, "%s: document %lld begins at token %lld, the one before it at %lld", x->file.path,
                           (long long)(first + i + 1), (long long)place[i + 1], (long long)place[i]);
    return IM_OK;
}

/* The last document that begins at or before the token: those after it that are empty begin later or at the same place, and have none. */
im_status im_index_find(im_context *ctx, const im_index *x, int64_t at, int64_t *document)
{
    if (at < 0 || at >= x->tokens || x->documents < 1)
        return im_fail(ctx, IM_ERR_ARG, "%s: token %lld of %lld", x->bin_path, (long long)at, (long long)x->tokens);
    int64_t low = 0, high = x->documents; /* documents below low begin at or before `at`, those from high on behind it */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, sequence, token;
        IM_TRY(document_of(ctx, x, middle, &sequence));
        IM_TRY(place_of_sequence(ctx, x, sequence, &token));
        if (token <= at)
            low = middle;
        else
            high = middle;
    }
    int64_t place[2];
    IM_TRY(im_index_places(ctx, x, low, 1, place));
    if (at < place[0] || at >= place[1])
        return im_fail(ctx, IM_ERR_FORMAT, "%s: token %lld is in no document: document %lld has %lld to %lld", x->file.path, (long long)at,
                       (long long)low, (long long)place[0], (long long)place[1]);
    *document = low;
    return IM_OK;
}
