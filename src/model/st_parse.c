/* The header of a safetensors file:
 *
 *     | n: 8 bytes, little endian | header: n bytes of JSON, padded with spaces | data |
 *
 *     {"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * data_offsets count from the start of data. Every number is checked before it is used.
 */
#include "model/st.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const im_st_dtype dtypes[] = {
    {"F32", 32, IM_F32}, {"F64", 64, IM_F64}, {"BF16", 16, IM_BF16}, {"F16", 16, IM_F16}, {"I32", 32, IM_I32},    {"I64", 64, IM_I64},
    {"U8", 8, IM_U8},    {"U16", 16, IM_U16}, {"BOOL", 8, -1},       {"I8", 8, -1},       {"I16", 16, -1},        {"U32", 32, -1},
    {"U64", 64, -1},     {"C64", 64, -1},     {"F8_E5M2", 8, -1},    {"F8_E4M3", 8, -1},  {"F8_E5M2FNUZ", 8, -1}, {"F8_E4M3FNUZ", 8, -1},
    {"F8_E8M0", 8, -1},  {"F6_E2M3", 6, -1},  {"F6_E3M2", 6, -1},    {"F4", 4, -1},
};

const im_st_dtype *im_st_find_dtype(const char *name)
{
    for (size_t i = 0; i < IM_COUNT_OF(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

const im_st_dtype *im_st_dtype_of(im_dtype t)
{
    for (size_t i = 0; i < IM_COUNT_OF(dtypes); i++)
        if (dtypes[i].dtype == (int)t)
            return &dtypes[i];
    return NULL;
}

const char *im_st_show(char *buf, size_t size, const char *name)
{
    snprintf(buf, size, "%s", name);
    for (char *c = buf; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return buf;
}

const char *im_st_show_shape(char *buf, size_t size, const int64_t *shape, int ndim)
{
    size_t at = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < ndim && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < size)
        snprintf(buf + at, size - at, "]");
    return buf;
}

/* What the checks of one file share. */
typedef struct parser {
    im_context *ctx;
    const char *name;
    uint64_t data_start, data_len; /* bytes */
    int file;
    im_arena *arena;
} parser;

static im_status read_dtype(const parser *p, const char *shown, const im_json_value *info, im_st_tensor *t)
{
    const im_json_value *v = im_json_get(info, "dtype");
    if (im_json_type_of(v) != IM_JSON_STRING)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: dtype must be a string such as \"F32\"", p->name, shown);
    const im_st_dtype *dtype = im_st_find_dtype(im_json_string(v, ""));
    t->dtype_name = dtype ? dtype->name : im_arena_strdup(p->arena, im_json_string(v, ""));
    if (!t->dtype_name)
        return im_fail(p->ctx, IM_ERR_NOMEM, "%s: no memory for the header", p->name);
    t->known_dtype = dtype && dtype->dtype >= 0;
    t->dtype = t->known_dtype ? (im_dtype)dtype->dtype : IM_U8;
    return IM_OK;
}

/* Also *elements, the product, which fits 63 bits. */
static im_status read_shape(const parser *p, const char *shown, const im_json_value *info, im_st_tensor *t, int64_t *elements)
{
    const im_json_value *v = im_json_get(info, "shape");
    if (im_json_type_of(v) != IM_JSON_ARRAY)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: shape must be an array of sizes", p->name, shown);
    if (im_json_length(v) > IM_ST_MAX_DIMS)
        return im_fail(p->ctx, IM_ERR_UNSUPPORTED, "%s: tensor %s has %zu dimensions: up to %d are read", p->name, shown, im_json_length(v),
                       IM_ST_MAX_DIMS);
    t->ndim = (uint8_t)im_json_length(v);
    bool empty = false;
    int64_t product = 1;
    for (int i = 0; i < t->ndim; i++) {
        const im_json_value *size = im_json_at(v, (size_t)i);
        if (im_json_type_of(size) != IM_JSON_INT || im_json_int(size, -1) < 0)
            return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: shape[%d] must be a whole number from 0 to 2^63-1", p->name, shown, i);
        t->shape[i] = im_json_int(size, 0);
        empty = empty || t->shape[i] == 0;
    }
    for (int i = 0; i < t->ndim && !empty; i++)
        if (__builtin_mul_overflow(product, t->shape[i], &product))
            return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: the product of the shape is beyond 2^63", p->name, shown);
    *elements = empty ? 0 : product;
    return IM_OK;
}

/* data_offsets, against the file and against dtype and shape. */
static im_status read_place(const parser *p, const char *shown, const im_json_value *info, int64_t elements, im_st_tensor *t)
{
    const im_json_value *v = im_json_get(info, "data_offsets");
    const im_json_value *a = im_json_at(v, 0), *b = im_json_at(v, 1);
    if (im_json_type_of(v) != IM_JSON_ARRAY || im_json_length(v) != 2 || im_json_type_of(a) != IM_JSON_INT || im_json_type_of(b) != IM_JSON_INT ||
        im_json_int(a, -1) < 0 || im_json_int(b, -1) < 0)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: data_offsets must be [begin, end], whole numbers from 0 to 2^63-1", p->name, shown);
    const uint64_t begin = (uint64_t)im_json_int(a, 0), end = (uint64_t)im_json_int(b, 0);
    if (begin > end)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: data_offsets begin at %llu, after their end %llu", p->name, shown,
                       (unsigned long long)begin, (unsigned long long)end);
    if (end > p->data_len)
        return im_fail(p->ctx, IM_ERR_FORMAT,
                       "%s: tensor %s ends at byte %llu of the data, but the file holds %llu bytes of data: it is truncated, or the header is wrong",
                       p->name, shown, (unsigned long long)end, (unsigned long long)p->data_len);
    const im_st_dtype *dtype = im_st_find_dtype(t->dtype_name);
    uint64_t bits;
    if (dtype && (__builtin_mul_overflow((uint64_t)elements, (uint64_t)dtype->bits, &bits) || bits % 8 != 0 || bits / 8 != end - begin)) {
        char shape[200];
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: %s %s needs %.17g bytes, but data_offsets [%llu, %llu] hold %llu", p->name, shown,
                       dtype->name, im_st_show_shape(shape, sizeof shape, t->shape, t->ndim), (double)elements * dtype->bits / 8,
                       (unsigned long long)begin, (unsigned long long)end, (unsigned long long)(end - begin));
    }
    t->offset = p->data_start + begin;
    t->nbytes = end - begin;
    return IM_OK;
}

static im_status read_tensor(const parser *p, const char *name, const im_json_value *info, im_st_tensor *t)
{
    char shown[120];
    im_st_show(shown, sizeof shown, name);
    if (im_json_type_of(info) != IM_JSON_OBJECT)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensor %s: an object with dtype, shape and data_offsets is expected", p->name, shown);
    int64_t elements = 0;
    *t = (im_st_tensor){.file = p->file};
    IM_TRY(read_dtype(p, shown, info, t));
    IM_TRY(read_shape(p, shown, info, t, &elements));
    IM_TRY(read_place(p, shown, info, elements, t));
    t->name = im_arena_strdup(p->arena, name);
    return t->name ? IM_OK : im_fail(p->ctx, IM_ERR_NOMEM, "%s: no memory for the header", p->name);
}

static im_status read_metadata(const parser *p, const im_json_value *v, im_st_file *out)
{
    if (im_json_type_of(v) != IM_JSON_OBJECT)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: __metadata__ must be an object of strings", p->name);
    const size_t n = im_json_length(v);
    out->metadata = IM_ARENA_NEW(p->arena, const char *, 2 * n);
    for (size_t i = 0; i < n; i++) {
        const char *key;
        const im_json_value *text = im_json_member(v, i, &key);
        if (im_json_type_of(text) != IM_JSON_STRING) {
            char shown[120];
            return im_fail(p->ctx, IM_ERR_FORMAT, "%s: __metadata__.%s must be a string", p->name, im_st_show(shown, sizeof shown, key));
        }
        char *k = im_arena_strdup(p->arena, key), *value = im_arena_strdup(p->arena, im_json_string(text, ""));
        if (!out->metadata || !k || !value)
            return im_fail(p->ctx, IM_ERR_NOMEM, "%s: no memory for the header", p->name);
        out->metadata[2 * i] = k;
        out->metadata[2 * i + 1] = value;
    }
    out->nmetadata = n;
    return IM_OK;
}

static int by_offset(const void *a, const void *b)
{
    const im_st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    /* an empty tensor stands before the one that begins where it lies */
    return x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes;
}

/* The tensors fill the data exactly: each begins where the one before ends. */
static im_status check_places(const parser *p, const im_st_file *f)
{
    char a[120], b[120];
    uint64_t at = p->data_start;
    for (size_t i = 0; i < f->n; i++) {
        const im_st_tensor *t = &f->tensor[i];
        const char *before = i ? im_st_show(b, sizeof b, f->tensor[i - 1].name) : "the header";
        im_st_show(a, sizeof a, t->name);
        if (t->offset < at)
            return im_fail(p->ctx, IM_ERR_FORMAT, "%s: tensors %s and %s overlap: one ends at byte %llu of the data, the other begins at %llu",
                           p->name, before, a, (unsigned long long)(at - p->data_start), (unsigned long long)(t->offset - p->data_start));
        if (t->offset > at)
            return im_fail(p->ctx, IM_ERR_FORMAT, "%s: a hole of %llu bytes before tensor %s: it must begin at byte %llu of the data, where %s ends",
                           p->name, (unsigned long long)(t->offset - at), a, (unsigned long long)(at - p->data_start), before);
        at = t->offset + t->nbytes;
    }
    if (at != p->data_start + p->data_len)
        return im_fail(p->ctx, IM_ERR_FORMAT, "%s: %llu bytes after the last tensor (from byte %llu of the file): the file must end there", p->name,
                       (unsigned long long)(p->data_start + p->data_len - at), (unsigned long long)at);
    return IM_OK;
}

static im_status read_header(parser *p, const im_json_value *root, im_st_file *out)
{
    const size_t members = im_json_length(root);
    out->tensor = IM_ARENA_NEW(p->arena, im_st_tensor, members);
    if (!out->tensor)
        return im_fail(p->ctx, IM_ERR_NOMEM, "%s: no memory for the header", p->name);
    for (size_t i = 0; i < members; i++) {
        const char *key;
        const im_json_value *v = im_json_member(root, i, &key);
        if (strcmp(key, "__metadata__") == 0)
            IM_TRY(read_metadata(p, v, out));
        else
            IM_TRY(read_tensor(p, key, v, &out->tensor[out->n++]));
    }
    if (out->n)
        qsort(out->tensor, out->n, sizeof *out->tensor, by_offset);
    return check_places(p, out);
}

im_status im_st_parse(im_context *ctx, const char *name, const unsigned char *data, size_t len, int file, im_arena *a, im_st_file *out)
{
    if (len < 8)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes: a safetensors file begins with the 8 bytes of its header's length", name, len);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | data[i];
    if (n > IM_ST_MAX_HEADER)
        return im_fail(ctx, IM_ERR_FORMAT,
                       "%s: the first 8 bytes say a header of %llu bytes: the format allows %d; this is no safetensors file, or a damaged one", name,
                       (unsigned long long)n, IM_ST_MAX_HEADER);
    if (n > len - 8)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: a header of %llu bytes, but the file ends after %zu: it is truncated", name, (unsigned long long)n,
                       len - 8);
    if (n < 2 || data[8] != '{')
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 8: the header must be JSON that begins with {", name);
    im_str title = {0};
    im_str_printf(&title, "%s (header)", name);
    im_json *doc;
    im_status status = im_json_parse(ctx, im_str_text(&title), (const char *)data + 8, (size_t)n, &doc);
    im_str_free(&title);
    IM_TRY(status);
    parser p = {.ctx = ctx, .name = name, .data_start = 8 + n, .data_len = len - 8 - n, .file = file, .arena = a};
    im_st_file result = {0};
    status = read_header(&p, im_json_root(doc), &result);
    im_json_free(doc);
    if (status == IM_OK)
        *out = result;
    return status;
}
