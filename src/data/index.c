/* Reading the .idx: see index.h for the layout. */
#include "data/index.h"
#include <string.h>

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

static uint64_t load_u64(const im_index *x, size_t at)
{
    uint64_t v;
    memcpy(&v, x->bytes + at, sizeof v);
    return v;
}

static int64_t length_of(const im_index *x, int64_t i)
{
    int32_t v;
    memcpy(&v, x->bytes + x->lengths_at + 4 * (size_t)i, sizeof v);
    return v;
}

static int64_t pointer_of(const im_index *x, int64_t i)
{
    return (int64_t)load_u64(x, x->pointers_at + 8 * (size_t)i);
}

static int64_t document_of(const im_index *x, int64_t i)
{
    return (int64_t)load_u64(x, x->documents_at + 8 * (size_t)i);
}

static im_status parse_header(im_context *ctx, im_index *x)
{
    if (x->len < IM_INDEX_HEADER)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes; an index begins with %d bytes of header", x->path, x->len, IM_INDEX_HEADER);
    if (memcmp(x->bytes, IM_INDEX_MAGIC, 9) != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 0: not a token index (it would begin with MMIDIDX and two zero bytes)", x->path);
    uint64_t version = load_u64(x, 9);
    if (version != 1)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: byte 9: index version %llu; version 1 is known", x->path, (unsigned long long)version);
    x->code = x->bytes[17];
    if (!im_index_dtype_name(x->code))
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 17: unknown id type %d; known: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16", x->path,
                       x->code);
    if (x->code == 6 || x->code == 7)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: byte 17: the file holds %s values, not token ids", x->path, im_index_dtype_name(x->code));
    x->id_size = im_index_dtype_size(x->code);
    return IM_OK;
}

/* Sets the counts and the three offsets. The file's length bounds the counts first, so nothing can overflow. */
static im_status parse_counts(im_context *ctx, im_index *x)
{
    uint64_t s = load_u64(x, 18), n = load_u64(x, 26);
    if (s > (x->len - IM_INDEX_HEADER) / 12)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 18: %llu sequences need %.0f bytes, the file has %zu", x->path, (unsigned long long)s,
                       34.0 + 12.0 * (double)s, x->len);
    size_t rest = x->len - IM_INDEX_HEADER - 12 * (size_t)s;
    if (n < 1 || n > rest / 8)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 26: %llu entries in the document list; at least 1 is needed and the file has room for %zu",
                       x->path, (unsigned long long)n, rest / 8);
    rest -= 8 * (size_t)n;
    if (rest != 0 && rest != s)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes after the document list; %llu sequences and %llu list entries make %zu bytes", x->path,
                       rest, (unsigned long long)s, (unsigned long long)n, x->len - rest);
    if (rest != 0)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: a multimodal index (one mode a sequence); only text is read", x->path);
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

im_status im_index_sequence(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n)
{
    int64_t length = length_of(x, i), at = pointer_of(x, i), size = (int64_t)x->id_size;
    if (length < 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld has the length %lld", x->path, x->lengths_at + 4 * (size_t)i, (long long)i,
                       (long long)length);
    if (at < 0 || at % size || at / size > x->tokens || length > x->tokens - at / size)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld is %lld ids from byte %lld on, but %s has %llu bytes", x->path,
                       x->pointers_at + 8 * (size_t)i, (long long)i, (long long)length, (long long)at, x->bin_path, (unsigned long long)x->bin_len);
    *first = at / size;
    *n = length;
    return IM_OK;
}

im_status im_index_check_sequences(im_context *ctx, const im_index *x, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        int64_t begin, n;
        IM_TRY(im_index_sequence(ctx, x, i, &begin, &n));
        int64_t want = i + 1 < x->sequences ? pointer_of(x, i + 1) : (int64_t)x->bin_len;
        if (i == 0 && begin != 0)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the first sequence begins at byte %lld of %s, not at 0", x->path, x->pointers_at,
                           (long long)pointer_of(x, 0), x->bin_path);
        int64_t end = (begin + n) * (int64_t)x->id_size;
        if (end != want && i + 1 < x->sequences)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: sequence %lld begins at byte %lld of %s; the one before it ends at %lld", x->path,
                           x->pointers_at + 8 * (size_t)(i + 1), (long long)(i + 1), (long long)want, x->bin_path, (long long)end);
        if (end != want)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: the sequences end at byte %lld, but %s has %llu bytes: the two files do not belong together",
                           x->path, (long long)end, x->bin_path, (unsigned long long)x->bin_len);
    }
    return IM_OK;
}

im_status im_index_check_documents(im_context *ctx, const im_index *x, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        int64_t a = document_of(x, i), b = document_of(x, i + 1);
        if (a < 0 || b < a || b > x->sequences)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: document %lld is sequences %lld to %lld of %lld", x->path,
                           x->documents_at + 8 * (size_t)i, (long long)i, (long long)a, (long long)b, (long long)x->sequences);
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

im_status im_index_parse(im_context *ctx, const char *path, const unsigned char *bytes, size_t len, const char *bin_path, uint64_t bin_len,
                         im_index *out)
{
    im_index x = {.bytes = bytes, .len = len, .path = path, .bin_path = bin_path, .bin_len = bin_len};
    IM_TRY(parse_header(ctx, &x));
    IM_TRY(parse_counts(ctx, &x));
    if (x.sequences == 0 && x.tokens)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 18: no sequences, but %s has %llu bytes", path, bin_path, (unsigned long long)bin_len);
    if (document_of(&x, 0) != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the document list begins with %lld, not 0", path, x.documents_at,
                       (long long)document_of(&x, 0));
    if (document_of(&x, x.documents) != x.sequences)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: the document list ends with %lld; there are %lld sequences", path,
                       x.documents_at + 8 * (size_t)x.documents, (long long)document_of(&x, x.documents), (long long)x.sequences);
    IM_TRY(check_some(ctx, &x, x.sequences, im_index_check_sequences));
    IM_TRY(check_some(ctx, &x, x.documents, im_index_check_documents));
    *out = x;
    return IM_OK;
}

im_status im_index_document(im_context *ctx, const im_index *x, int64_t i, int64_t *first, int64_t *n)
{
    if (i < 0 || i >= x->documents)
        return im_fail(ctx, IM_ERR_ARG, "%s: no document %lld; there are %lld, counted from 0", x->path, (long long)i, (long long)x->documents);
    IM_TRY(im_index_check_documents(ctx, x, i, i + 1));
    int64_t a = document_of(x, i), b = document_of(x, i + 1);
    if (a == b) {
        *first = 0;
        *n = 0;
        return IM_OK;
    }
    int64_t begin, begin_n, end, end_n;
    IM_TRY(im_index_sequence(ctx, x, a, &begin, &begin_n));
    IM_TRY(im_index_sequence(ctx, x, b - 1, &end, &end_n));
    if (end < begin)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: document %lld ends before it begins", x->path, x->pointers_at + 8 * (size_t)(b - 1),
                       (long long)i);
    *first = begin;
    *n = end + end_n - begin;
    return IM_OK;
}
