/* Token files, reading: PREFIX.bin and PREFIX.idx, both mapped. */
#include "data/index.h"
#include <stdlib.h>
#include <string.h>

struct im_tokens {
    char *prefix, *bin_path, *idx_path;
    im_map bin, idx;
    im_index index;
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

im_status im_tokens_open(im_context *ctx, const char *prefix, im_tokens **out)
{
    im_status status = IM_OK;
    im_tokens *t = NULL;
    IM_TRY(im_alloc(ctx, 1, sizeof *t, (void **)&t));
    size_t n = strlen(prefix);
    if (has_suffix(prefix, ".bin") || has_suffix(prefix, ".idx"))
        n -= 4;
    t->prefix = join(prefix, n, "");
    t->bin_path = join(prefix, n, ".bin");
    t->idx_path = join(prefix, n, ".idx");
    if (!t->prefix || !t->bin_path || !t->idx_path) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to open %s", prefix);
        goto close_tokens;
    }
    if (!im_path_exists(t->idx_path) || !im_path_exists(t->bin_path)) {
        status = fail_absent(ctx, t);
        goto close_tokens;
    }
    IM_TRY_GOTO(im_map_open(ctx, t->idx_path, &t->idx), close_tokens);
    IM_TRY_GOTO(im_map_open(ctx, t->bin_path, &t->bin), close_tokens);
    IM_TRY_GOTO(im_index_parse(ctx, t->idx_path, t->idx.data, t->idx.len, t->bin_path, t->bin.len, &t->index), close_tokens);
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
    im_map_close(&t->bin);
    im_map_close(&t->idx);
    free(t->prefix);
    free(t->bin_path);
    free(t->idx_path);
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
    return t->bin.len;
}

im_status im_tokens_document(im_context *ctx, const im_tokens *t, int64_t i, int64_t *first, int64_t *n)
{
    return im_index_document(ctx, &t->index, i, first, n);
}

im_status im_tokens_verify(im_context *ctx, const im_tokens *t)
{
    IM_TRY(im_index_check_sequences(ctx, &t->index, 0, t->index.sequences));
    return im_index_check_documents(ctx, &t->index, 0, t->index.documents);
}

/* Files up to WHOLE bytes are hashed whole, larger ones in pages spread evenly, both ends among them. */
static uint64_t hash_pages(const unsigned char *data, size_t len, uint64_t seed)
{
    enum { WHOLE = 4 << 20, PAGE = 4096, PAGES = 256 };
    if (len <= WHOLE)
        return len ? im_hash64(data, len, seed) : seed;
    uint64_t h = seed;
    size_t pages = len / PAGE;
    for (size_t i = 0; i < PAGES; i++)
        h = im_hash64(data + (size_t)((double)(pages - 1) / (PAGES - 1) * (double)i) * PAGE, PAGE, h);
    return im_hash64(data + len - PAGE, PAGE, h);
}

uint64_t im_tokens_fingerprint(const im_tokens *t)
{
    uint64_t sizes[4] = {t->bin.len, t->idx.len, (uint64_t)t->index.sequences, (uint64_t)t->index.code};
    uint64_t h = im_hash64(sizes, sizeof sizes, 0);
    h = hash_pages(t->idx.data, t->idx.len, h);
    return hash_pages(t->bin.data, t->bin.len, h);
}

/* Runs BODY for each id of [first, first+n) as an int64_t `id`, its place `i`. The switch stands outside the loop. */
#define EACH_ID_OF(type, BODY)                                                    \
    for (int64_t i = 0; i < n; i++) {                                             \
        type raw;                                                                 \
        memcpy(&raw, t->bin.data + (size_t)(first + i) * sizeof raw, sizeof raw); \
        int64_t id = (int64_t)raw;                                                \
        BODY                                                                      \
    }                                                                             \
    break;
#define EACH_ID(BODY)                   \
    switch (t->index.code) {            \
    case 1: EACH_ID_OF(uint8_t, BODY)   \
    case 2: EACH_ID_OF(int8_t, BODY)    \
    case 3: EACH_ID_OF(int16_t, BODY)   \
    case 4: EACH_ID_OF(int32_t, BODY)   \
    case 5: EACH_ID_OF(int64_t, BODY)   \
    default: EACH_ID_OF(uint16_t, BODY) \
    }

static im_status fail_id(im_context *ctx, const im_tokens *t, int64_t at, int64_t id)
{
    return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %llu: token %lld is the id %lld; ids are 0 to 2147483647", t->bin_path,
                   (unsigned long long)at * t->index.id_size, (long long)at, (long long)id);
}

im_status im_tokens_read(im_context *ctx, const im_tokens *t, int64_t first, int64_t n, int32_t *out)
{
    if (first < 0 || n < 0 || first > t->index.tokens - n)
        return im_fail(ctx, IM_ERR_ARG, "%s: %lld tokens from %lld on were asked for; there are %lld", t->bin_path, (long long)n, (long long)first,
                       (long long)t->index.tokens);
    EACH_ID({
        if (id < 0 || id > INT32_MAX)
            return fail_id(ctx, t, first + i, id);
        out[i] = (int32_t)id;
    })
    return IM_OK;
}

void im_tokens_id_range(const im_tokens *t, int64_t first, int64_t n, int64_t *least, int64_t *largest)
{
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    EACH_ID({
        lo = id < lo ? id : lo;
        hi = id > hi ? id : hi;
    })
    *least = n > 0 ? lo : 0;
    *largest = n > 0 ? hi : -1;
}

int32_t im_tokens_max_id(const im_tokens *t, int64_t first, int64_t n)
{
    int64_t lo, hi;
    im_tokens_id_range(t, first, n, &lo, &hi);
    return hi > INT32_MAX ? INT32_MAX : (int32_t)(hi < -1 ? -1 : hi);
}
