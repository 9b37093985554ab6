/* Token files, reading: PREFIX.bin, PREFIX.idx and, when they are there, PREFIX.mask and PREFIX.json. Nothing is mapped: see index.h. */
#include "data/about.h"
#include "data/index.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An index up to this size is held in memory (87,000 documents); documents of larger ones are looked up in the file. */
enum { HOLD_INDEX = 2 << 20 };

struct im_tokens {
    char *prefix, *bin_path, *idx_path, *mask_path, *about_path;
    int bin_fd, idx_fd, mask_fd; /* -1: not open */
    unsigned char *held;         /* the index, when it is small */
    im_index index;
    uint64_t fingerprint;
    bool has_about;
    im_tokens_about about;
};

static char *join(const char *prefix, size_t n, const char *suffix)
{
    size_t extra = strlen(suffix) + 1;
    char *s = malloc(n + extra);
    if (s) {
        memcpy(s, prefix, n);
        memcpy(s + n, suffix, extra);
    }
    return s;
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

/* Says what the user probably meant: one of the pair that `data build` made, or a text that was not built yet. */
static im_status fail_absent(im_context *ctx, const im_tokens *t)
{
    char *train = join(t->prefix, strlen(t->prefix), "-train.idx");
    bool built = train && im_path_exists(train);
    free(train);
    if (built)
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no such file; there is %s-train (and perhaps %s-valid): give one of them", t->idx_path, t->prefix,
                       t->prefix);
    if (im_path_exists(t->prefix))
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no such file; if %s is text, make token files first: imece data build %s --out NAME", t->idx_path,
                       t->prefix, t->prefix);
    return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no such file; token files are NAME.bin and NAME.idx",
                   im_path_exists(t->idx_path) ? t->bin_path : t->idx_path);
}

static im_status open_regular(im_context *ctx, const char *path, int *out, uint64_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        im_status status = im_fail(ctx, IM_ERR_FORMAT, "%s: not a regular file", path);
        close(fd);
        return status;
    }
    *out = fd;
    *len = (uint64_t)st.st_size;
    return IM_OK;
}

static im_status open_index(im_context *ctx, im_tokens *t, uint64_t bin_len)
{
    uint64_t len;
    IM_TRY(open_regular(ctx, t->idx_path, &t->idx_fd, &len));
    if (len && len <= HOLD_INDEX) {
        IM_TRY(im_alloc(ctx, len, 1, (void **)&t->held));
        IM_TRY(im_index_pread(ctx, t->idx_path, t->idx_fd, len, 0, t->held, len));
    }
    im_index_file file = {.path = t->idx_path, .bytes = t->held, .fd = t->idx_fd, .len = len};
    return im_index_parse(ctx, &file, t->bin_path, bin_len, &t->index);
}

/* One byte a token, when the loss is not of all of them. */
static im_status open_mask(im_context *ctx, im_tokens *t)
{
    uint64_t len;
    if (!im_path_exists(t->mask_path))
        return IM_OK;
    IM_TRY(open_regular(ctx, t->mask_path, &t->mask_fd, &len));
    if (len != (uint64_t)t->index.tokens)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %llu bytes; one for each of the %lld tokens of %s", t->mask_path, (unsigned long long)len,
                       (long long)t->index.tokens, t->bin_path);
    return IM_OK;
}

/* Files up to WHOLE bytes are hashed whole, larger ones in pages spread evenly, both ends among them. */
static im_status hash_pages(im_context *ctx, const char *path, int fd, uint64_t len, uint64_t *hash)
{
    enum { WHOLE = 4 << 20, PAGE = 4096, PAGES = 256 };
    unsigned char page[PAGE];
    if (len <= WHOLE) {
        unsigned char *all;
        if (!len)
            return IM_OK;
        IM_TRY(im_alloc(ctx, len, 1, (void **)&all));
        im_status status = im_index_pread(ctx, path, fd, len, 0, all, len);
        if (status == IM_OK)
            *hash = im_hash64(all, len, *hash);
        free(all);
        return status;
    }
    uint64_t pages = len / PAGE;
    for (int i = 0; i <= PAGES; i++) {
        uint64_t at = i == PAGES ? len - PAGE : (uint64_t)((double)(pages - 1) / (PAGES - 1) * i) * PAGE;
        IM_TRY(im_index_pread(ctx, path, fd, len, at, page, PAGE));
        *hash = im_hash64(page, PAGE, *hash);
    }
    return IM_OK;
}

static im_status take_fingerprint(im_context *ctx, im_tokens *t)
{
    uint64_t sizes[4] = {t->index.bin_len, t->index.file.len, (uint64_t)t->index.sequences, (uint64_t)t->index.code};
    uint64_t h = im_hash64(sizes, sizeof sizes, 0);
    IM_TRY(hash_pages(ctx, t->idx_path, t->idx_fd, t->index.file.len, &h));
    IM_TRY(hash_pages(ctx, t->bin_path, t->bin_fd, t->index.bin_len, &h));
    if (t->mask_fd >= 0) {
        h = im_hash64("mask", 4, h);
        IM_TRY(hash_pages(ctx, t->mask_path, t->mask_fd, (uint64_t)t->index.tokens, &h));
    }
    t->fingerprint = h;
    return IM_OK;
}

/* A description that is damaged, or of other files, is no reason to refuse the files. */
static void read_about(im_context *ctx, im_tokens *t)
{
    im_context *quiet;
    if (!im_path_exists(t->about_path) || im_context_create(&quiet) != IM_OK)
        return;
    if (im_tokens_about_read(quiet, t->about_path, &t->about) != IM_OK)
        im_log(ctx, IM_LOG_WARN, "data", "%s; it is left aside", im_error_text(quiet));
    else if (t->about.fingerprint != t->fingerprint)
        im_log(ctx, IM_LOG_WARN, "data", "%s is of other files than %s: it is left aside", t->about_path, t->bin_path);
    else
        t->has_about = true;
    im_context_destroy(quiet);
}

im_status im_tokens_open(im_context *ctx, const char *prefix, im_tokens **out)
{
    im_status status = IM_OK;
    im_tokens *t = NULL;
    uint64_t bin_len;
    IM_TRY(im_alloc(ctx, 1, sizeof *t, (void **)&t));
    t->bin_fd = t->idx_fd = t->mask_fd = -1;
    size_t n = strlen(prefix);
    if (has_suffix(prefix, ".bin") || has_suffix(prefix, ".idx"))
        n -= 4;
    t->prefix = join(prefix, n, "");
    t->bin_path = join(prefix, n, ".bin");
    t->idx_path = join(prefix, n, ".idx");
    t->mask_path = join(prefix, n, ".mask");
    t->about_path = join(prefix, n, ".json");
    if (!t->prefix || !t->bin_path || !t->idx_path || !t->mask_path || !t->about_path) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to open %s", prefix);
        goto close_tokens;
    }
    if (!im_path_exists(t->idx_path) || !im_path_exists(t->bin_path)) {
        status = fail_absent(ctx, t);
        goto close_tokens;
    }
    IM_TRY_GOTO(open_regular(ctx, t->bin_path, &t->bin_fd, &bin_len), close_tokens);
    IM_TRY_GOTO(open_index(ctx, t, bin_len), close_tokens);
    IM_TRY_GOTO(open_mask(ctx, t), close_tokens);
    IM_TRY_GOTO(take_fingerprint(ctx, t), close_tokens);
    read_about(ctx, t);
    *out = t;
    return IM_OK;
close_tokens:
    im_tokens_close(t);
    return status;
}

void im_tokens_close(im_tokens *t)
{
    if (!t)
        return;
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? t->bin_fd : i == 1 ? t->idx_fd : t->mask_fd;
        if (fd >= 0)
            close(fd);
    }
    free(t->held);
    free(t->prefix);
    free(t->bin_path);
    free(t->idx_path);
    free(t->mask_path);
    free(t->about_path);
    free(t);
}

int64_t im_tokens_count(const im_tokens *t)
{
    return t->index.tokens;
}

int64_t im_tokens_documents(const im_tokens *t)
{
    return t->index.documents;
}

const char *im_tokens_prefix(const im_tokens *t)
{
    return t->prefix;
}

const char *im_tokens_dtype(const im_tokens *t)
{
    return im_index_dtype_name(t->index.code);
}

size_t im_tokens_nbytes(const im_tokens *t)
{
    return t->index.bin_len;
}

bool im_tokens_masked(const im_tokens *t)
{
    return t->mask_fd >= 0;
}

const im_tokens_about *im_tokens_known(const im_tokens *t)
{
    return t->has_about ? &t->about : NULL;
}

uint64_t im_tokens_fingerprint(const im_tokens *t)
{
    return t->fingerprint;
}

im_status im_tokens_document(im_context *ctx, const im_tokens *t, int64_t i, int64_t *first, int64_t *n)
{
    return im_index_document(ctx, &t->index, i, first, n);
}

im_status im_tokens_places(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int64_t *place)
{
    return im_index_places(ctx, &t->index, first, n, place);
}

im_status im_tokens_find(im_context *ctx, const im_tokens *t, int64_t at, int64_t *document)
{
    return im_index_find(ctx, &t->index, at, document);
}

static im_status check_range(im_context *ctx, const im_tokens *t, int64_t first, int64_t n)
{
    if (first >= 0 && n >= 0 && first <= t->index.tokens - n)
        return IM_OK;
    return im_fail(ctx, IM_ERR_ARG, "%s: %lld tokens from %lld on were asked for; there are %lld", t->bin_path, (long long)n, (long long)first,
                   (long long)t->index.tokens);
}

im_status im_tokens_begins(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, unsigned char *begins)
{
    enum { PIECE = 128 };
    int64_t place[PIECE + 1], d;
    IM_TRY(check_range(ctx, t, first, n));
    memset(begins, 0, (size_t)n);
    if (!n)
        return IM_OK;
    IM_TRY(im_index_find(ctx, &t->index, first, &d));
    for (int64_t last = -1; d < t->index.documents;) {
        int64_t k = t->index.documents - d < PIECE ? t->index.documents - d : PIECE;
        IM_TRY(im_index_places(ctx, &t->index, d, k, place));
        for (int64_t i = 0; i < k; i++) {
            if (place[i] >= first + n)
                return IM_OK;
            if (place[i] >= first && place[i] != last) /* several at one place: all but the last are empty */
                begins[place[i] - first] = 1;
            last = place[i];
        }
        d += k;
    }
    return IM_OK;
}

im_status im_tokens_verify(im_context *ctx, const im_tokens *t)
{
    IM_TRY(im_index_check_sequences(ctx, &t->index, 0, t->index.sequences));
    return im_index_check_documents(ctx, &t->index, 0, t->index.documents);
}

/* ---- ids ---------------------------------------------------------------------------------------- */

enum { PIECE_IDS = 4096 };

#define WIDEN(type)                                        \
    for (int64_t i = 0; i < n; i++) {                      \
        type x;                                            \
        memcpy(&x, raw + i * (int64_t)sizeof x, sizeof x); \
        out[i] = (int64_t)x;                               \
    }                                                      \
    break;

/* Up to PIECE_IDS ids, whatever they are. */
static im_status read_raw(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int64_t *out)
{
    unsigned char raw[PIECE_IDS * 8];
    size_t size = t->index.id_size;
    IM_TRY(im_index_pread(ctx, t->bin_path, t->bin_fd, t->index.bin_len, (uint64_t)first * size, raw, (size_t)n * size));
    switch (t->index.code) {
    case 1: WIDEN(uint8_t)
    case 2: WIDEN(int8_t)
    case 3: WIDEN(int16_t)
    case 4: WIDEN(int32_t)
    case 5: WIDEN(int64_t)
    default: WIDEN(uint16_t)
    }
    return IM_OK;
}

static im_status fail_id(im_context *ctx, const im_tokens *t, int64_t at, int64_t id)
{
    return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %llu: token %lld is the id %lld; ids are 0 to 2147483647", t->bin_path,
                   (unsigned long long)at * t->index.id_size, (long long)at, (long long)id);
}

im_status im_tokens_read(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int32_t *out)
{
    int64_t wide[PIECE_IDS];
    IM_TRY(check_range(ctx, t, first, n));
    for (int64_t done = 0, k; done < n; done += k) {
        k = n - done < PIECE_IDS ? n - done : PIECE_IDS;
        IM_TRY(read_raw(ctx, t, first + done, k, wide));
        for (int64_t i = 0; i < k; i++) {
            if (wide[i] < 0 || wide[i] > INT32_MAX)
                return fail_id(ctx, t, first + done + i, wide[i]);
            out[done + i] = (int32_t)wide[i];
        }
    }
    return IM_OK;
}

im_status im_tokens_read_mask(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, unsigned char *out)
{
    IM_TRY(check_range(ctx, t, first, n));
    if (t->mask_fd < 0) {
        memset(out, 1, (size_t)n);
        return IM_OK;
    }
    IM_TRY(im_index_pread(ctx, t->mask_path, t->mask_fd, (uint64_t)t->index.tokens, (uint64_t)first, out, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        if (out[i] > 1)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %lld is %d; a mask has 1 (counted) and 0 (not)", t->mask_path, (long long)(first + i),
                           out[i]);
    return IM_OK;
}

im_status im_tokens_id_range(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int64_t *least, int64_t *largest)
{
    int64_t wide[PIECE_IDS], lo = INT64_MAX, hi = INT64_MIN;
    IM_TRY(check_range(ctx, t, first, n));
    for (int64_t done = 0, k; done < n; done += k) {
        k = n - done < PIECE_IDS ? n - done : PIECE_IDS;
        IM_TRY(read_raw(ctx, t, first + done, k, wide));
        for (int64_t i = 0; i < k; i++) {
            lo = wide[i] < lo ? wide[i] : lo;
            hi = wide[i] > hi ? wide[i] : hi;
        }
    }
    *least = n > 0 ? lo : 0;
    *largest = n > 0 ? hi : -1;
    return IM_OK;
}

/* ---- does it belong to a model? -------------------------------------------------------------------- */

/* Without a description: all ids of a small file, of a large one those of some pages, spread evenly. */
static im_status look_at_ids(im_context *ctx, const im_tokens *t, int64_t *largest, int64_t *at)
{
    enum { WHOLE = 1 << 20, PAGES = 128 };
    int64_t all = t->index.tokens, pages = all <= WHOLE ? 1 : PAGES, n = all <= WHOLE ? all : PIECE_IDS, lo, hi;
    *largest = -1;
    for (int64_t i = 0; i < pages; i++) {
        int64_t first = pages == 1 ? 0 : (int64_t)((double)(all - n) / (double)(pages - 1) * (double)i);
        IM_TRY(im_tokens_id_range(ctx, t, first, n, &lo, &hi));
        if (hi > *largest) {
            *largest = hi;
            *at = first;
        }
    }
    return IM_OK;
}

im_status im_tokens_check_vocab(im_context *ctx, const im_tokens *t, int64_t vocab)
{
    int64_t largest, at = 0;
    char place[64] = "";
    if (t->has_about) {
        largest = t->about.max_id;
    } else {
        IM_TRY(look_at_ids(ctx, t, &largest, &at));
        snprintf(place, sizeof place, " (from token %lld on)", (long long)at);
    }
    if (largest < vocab)
        return IM_OK;
    return im_fail(ctx, IM_ERR_FORMAT,
                   "%s: holds the id %lld%s, but the model's vocabulary has %lld ids (0 to %lld): data and model are of different tokenizers%s%s",
                   t->bin_path, (long long)largest, place, (long long)vocab, (long long)vocab - 1,
                   t->has_about && t->about.tokenizer[0] ? "; the data was made with " : "", t->has_about ? t->about.tokenizer : "");
}
