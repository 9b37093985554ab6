/* Ids that other programs wrote: shards of llm.c, NumPy arrays, plain ids. */
#include "data/change.h"
#include "data/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_HEADER = 1024, CHUNK = 1 << 16, MOST_NPY_HEADER = 1 << 16 };

/* Where the ids of a file are, and what they are. */
typedef struct source {
    im_context *ctx;
    const char *path;
    int fd;
    uint64_t len, at; /* of the file; of the first id */
    size_t size;      /* of an id */
    bool is_signed;
    uint64_t count, row; /* ids; ids of a document (0: not told) */
} source;

static im_status get(const source *s, uint64_t at, void *out, size_t n)
{
    if (at > s->len || n > s->len - at)
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: %llu bytes; its header alone has more", s->path, (unsigned long long)s->len);
    return im_index_pread(s->ctx, s->path, s->fd, s->len, at, out, n);
}

static im_status check_length(const source *s)
{
    uint64_t have = s->len - s->at;
    if (have == s->count * s->size)
        return IM_OK;
    return im_fail(s->ctx, IM_ERR_FORMAT, "%s: its header tells of %llu ids of %zu bytes; %llu bytes are behind it", s->path,
                   (unsigned long long)s->count, s->size, (unsigned long long)have);
}

/* ---- llm.c ------------------------------------------------------------------------------------------------- */

enum { LLMC_GPT2 = 20240520, LLMC_LLAMA3 = 20240801 };

static im_status open_llmc(source *s)
{
    int32_t h[3];
    IM_TRY(get(s, 0, h, sizeof h));
    bool gpt2 = h[0] == LLMC_GPT2 && h[1] == 1, llama3 = h[0] == LLMC_LLAMA3 && h[1] == 7;
    if (!gpt2 && !llama3)
        return im_fail(s->ctx, IM_ERR_FORMAT,
                       "%s: byte 0: not a shard of llm.c (magic %d, version %d; known: 20240520 version 1, uint16; 20240801 version 7, uint32)",
                       s->path, h[0], h[1]);
    if (h[2] < 0 || s->len < LLMC_HEADER)
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: byte 8: %d ids", s->path, h[2]);
    s->at = LLMC_HEADER;
    s->size = gpt2 ? 2 : 4;
    s->count = (uint64_t)h[2];
    return check_length(s);
}

/* ---- NumPy -------------------------------------------------------------------------------------------------- */

static bool is_npy(const unsigned char *p)
{
    return memcmp(p, "\x93NUMPY", 6) == 0;
}

/* What stands behind 'key': in the header, a dictionary of Python; NULL: no such key. */
static const char *npy_value(const char *header, const char *key)
{
    for (const char *p = header; (p = strstr(p, key)); p++) {
        size_t n = strlen(key);
        if (p > header && (p[-1] == '\'' || p[-1] == '"') && p[n] == p[-1]) {
            p += n + 1;
            p += strspn(p, " ");
            return *p == ':' ? p + 1 + strspn(p + 1, " ") : NULL;
        }
    }
    return NULL;
}

static im_status npy_type(source *s, const char *descr)
{
    char order = descr && (descr[0] == '\'' || descr[0] == '"') ? descr[1] : 0, kind = order ? descr[2] : 0, digit = kind ? descr[3] : 0;
    bool closed = digit && descr[4] == descr[0];
    const char *end = order ? strchr(descr + 1, descr[0]) : NULL;
    int shown = end && end - descr < 24 ? (int)(end - descr) + 1 : 8;
    if (!closed || (kind != 'u' && kind != 'i') || !strchr("1248", digit))
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "%s: its values are %.*s; whole numbers are read: u1, u2, u4, u8, i1, i2, i4, i8", s->path, shown,
                       descr ? descr : "not told");
    if (order == '>' && digit != '1')
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "%s: its values are big-endian (%.*s): numpy.save(..., array.astype('<i4')) makes others", s->path,
                       shown, descr);
    s->size = (size_t)(digit - '0');
    s->is_signed = kind == 'i';
    return IM_OK;
}

/* "(123,)" or "(4, 56)" */
static im_status npy_shape(source *s, const char *shape, bool fortran)
{
    uint64_t dim[3], n = 0;
    const char *p = shape && *shape == '(' ? shape + 1 : "";
    while (n < 3 && *p >= '0' && *p <= '9') {
        char *end;
        errno = 0;
        dim[n++] = strtoull(p, &end, 10);
        p = end + strspn(end, " ");
        if (errno || (*p != ',' && *p != ')'))
            break;
        p += *p == ',';
        p += strspn(p, " ");
    }
    if (*p != ')' || n < 1 || n > 2)
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "%s: its shape is %.32s; one dimension is read, or two: a document a row", s->path,
                       shape ? shape : "not told");
    if (n == 2 && fortran && dim[0] > 1 && dim[1] > 1)
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "%s: in Fortran order, a document a column: save it with numpy.ascontiguousarray", s->path);
    s->row = n == 2 ? dim[1] : 0;
    s->count = dim[0];
    if (n == 2 && __builtin_mul_overflow(dim[0], dim[1], &s->count))
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: its shape is too large", s->path);
    if (s->count > s->len)
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: its shape has %llu values, the file %llu bytes", s->path, (unsigned long long)s->count,
                       (unsigned long long)s->len);
    return IM_OK;
}

static im_status open_npy(source *s)
{
    unsigned char h[12];
    char *text;
    IM_TRY(get(s, 0, h, 10));
    if (!is_npy(h))
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: byte 0: not a .npy file", s->path);
    bool wide = h[6] > 1;
    if (h[6] < 1 || h[6] > 3)
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "%s: byte 6: .npy version %d; 1, 2 and 3 are read", s->path, h[6]);
    if (wide)
        IM_TRY(get(s, 0, h, 12));
    uint64_t n = h[8] | (uint64_t)h[9] << 8 | (wide ? (uint64_t)h[10] << 16 | (uint64_t)h[11] << 24 : 0), at = wide ? 12 : 10;
    if (n > MOST_NPY_HEADER)
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: byte 8: a header of %llu bytes", s->path, (unsigned long long)n);
    IM_TRY(im_alloc(s->ctx, n + 8, 1, (void **)&text)); /* zeros behind it end every look-up */
    im_status status = get(s, at, text, n);
    const char *order = npy_value(text, "fortran_order");
    if (status == IM_OK)
        status = npy_type(s, npy_value(text, "descr"));
    if (status == IM_OK)
        status = npy_shape(s, npy_value(text, "shape"), order && strncmp(order, "True", 4) == 0);
    free(text);
    IM_TRY(status);
    s->at = at + n;
    return check_length(s);
}

/* ---- plain ---------------------------------------------------------------------------------------------------- */

static im_status open_raw(source *s, im_import_dtype t)
{
    static const size_t size[] = {2, 4, 4, 1, 8};
    s->size = size[t];
    s->is_signed = t == IM_IMPORT_I32 || t == IM_IMPORT_I64;
    s->count = s->len / s->size;
    if (s->len % s->size)
        return im_fail(s->ctx, IM_ERR_FORMAT, "%s: %llu bytes are not a whole number of ids of %zu bytes", s->path, (unsigned long long)s->len,
                       s->size);
    return IM_OK;
}

static im_status open_source(im_context *ctx, const char *path, const im_import_config *cfg, source *s)
{
    struct stat st;
    unsigned char head[8] = {0};
    *s = (source){.ctx = ctx, .path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return im_fail_errno(ctx, "%s", path);
    if (!S_ISREG(st.st_mode))
        return im_fail(ctx, IM_ERR_ARG, "%s: not a regular file", path);
    s->len = (uint64_t)st.st_size;
    IM_TRY(get(s, 0, head, s->len < 8 ? s->len : 8));
    int32_t magic;
    memcpy(&magic, head, 4);
    im_import_format f = cfg->format;
    if (f == IM_IMPORT_AUTO)
        f = is_npy(head) ? IM_IMPORT_NPY : magic == LLMC_GPT2 || magic == LLMC_LLAMA3 ? IM_IMPORT_LLMC : IM_IMPORT_AUTO;
    switch (f) {
    case IM_IMPORT_LLMC: return open_llmc(s);
    case IM_IMPORT_NPY: return open_npy(s);
    case IM_IMPORT_RAW: return open_raw(s, cfg->dtype);
    case IM_IMPORT_AUTO: break;
    }
    return im_fail(ctx, IM_ERR_FORMAT,
                   "%s: neither a .npy file nor a shard of llm.c; for ids and nothing else: --format raw --dtype uint16 (or uint32, ...)", path);
}

/* ---- ids to documents ------------------------------------------------------------------------------------------- */

/* Ids [first, first+n) of the source as i32. */
static im_status read_ids(const source *s, uint64_t first, size_t n, int32_t *out)
{
    unsigned char raw[CHUNK];
    for (size_t done = 0, k; done < n; done += k) {
        k = n - done < CHUNK / 8 ? n - done : CHUNK / 8;
        IM_TRY(im_index_pread(s->ctx, s->path, s->fd, s->len, s->at + (first + done) * s->size, raw, k * s->size));
        for (size_t i = 0; i < k; i++) {
            uint64_t x = 0;
            memcpy(&x, raw + i * s->size, s->size);
            bool negative = s->is_signed && x >> (8 * s->size - 1);
            if (negative || x > INT32_MAX)
                return im_fail(s->ctx, IM_ERR_FORMAT, "%s: byte %llu: the id %s%llu; ids are 0 to %d", s->path,
                               (unsigned long long)(s->at + (first + done + i) * s->size), negative ? "is negative, as unsigned " : "",
                               (unsigned long long)x, INT32_MAX);
            out[done + i] = (int32_t)x;
        }
    }
    return IM_OK;
}

/* The documents that a run of ids is cut into. */
static im_status put_ids(const im_import_config *cfg, const int32_t *id, size_t n, im_tokens_writer *w)
{
    size_t from = 0;
    for (size_t i = 0; i < n && (cfg->begins >= 0 || cfg->ends >= 0); i++) {
        size_t cut = id[i] == cfg->begins ? i : id[i] == cfg->ends ? i + 1 : from;
        if (cut == from && id[i] != cfg->begins)
            continue;
        IM_TRY(im_tokens_append(w, id + from, cut - from));
        IM_TRY(im_tokens_end_document(w));
        from = cut;
    }
    return im_tokens_append(w, id + from, n - from);
}

static im_status put_source(const source *s, const im_import_config *cfg, im_tokens_writer *w)
{
    enum { PIECE = 1 << 14 };
    int32_t id[PIECE];
    for (uint64_t at = 0; at < s->count;) {
        uint64_t k = s->count - at < PIECE ? s->count - at : PIECE;
        if (s->row && k > s->row - at % s->row)
            k = s->row - at % s->row;
        IM_TRY(read_ids(s, at, (size_t)k, id));
        IM_TRY(put_ids(cfg, id, (size_t)k, w));
        at += k;
        if (s->row && at % s->row == 0)
            IM_TRY(im_tokens_end_document(w));
    }
    return im_tokens_end_document(w);
}

static im_status open_all(im_context *ctx, const char *const *file, size_t n, const im_import_config *cfg, source *s, bool *small)
{
    *small = true;
    for (size_t i = 0; i < n; i++) {
        IM_TRY(open_source(ctx, file[i], cfg, &s[i]));
        *small &= s[i].size <= 2;
    }
    return IM_OK;
}

static im_status import_all(im_context *ctx, const source *s, size_t n, const im_import_config *cfg, bool small, const char *out,
                            im_change_result *result)
{
    im_tokens_writer *w;
    im_change_result r = {0};
    IM_TRY(im_tokens_create(ctx, out, small ? IM_U16 : IM_I32, &w));
    im_tokens_tell(w, "", 0, 0, cfg->ends);
    for (size_t i = 0; i < n; i++) {
        im_status status = put_source(&s[i], cfg, w);
        if (status != IM_OK) {
            im_tokens_abandon(w);
            return status;
        }
    }
    r.documents[0] = im_tokens_written_documents(w);
    r.tokens[0] = im_tokens_written(w);
    if (!r.tokens[0]) {
        im_tokens_abandon(w);
        return im_fail(ctx, IM_ERR_FORMAT, "%s: no ids were given", out);
    }
    IM_TRY(im_tokens_finish(w));
    *result = r;
    return IM_OK;
}

im_status im_tokens_import(im_context *ctx, const char *const *file, size_t n, const im_import_config *cfg, const char *out, im_change_result *result)
{
    source *s;
    bool small;
    if (n < 1)
        return im_fail(ctx, IM_ERR_ARG, "no files to import");
    IM_TRY(im_alloc(ctx, n, sizeof *s, (void **)&s));
    for (size_t i = 0; i < n; i++)
        s[i].fd = -1;
    im_status status = open_all(ctx, file, n, cfg, s, &small);
    if (status == IM_OK)
        status = import_all(ctx, s, n, cfg, small, out, result);
    for (size_t i = 0; i < n; i++)
        if (s[i].fd >= 0)
            close(s[i].fd);
    free(s);
    return status;
}
