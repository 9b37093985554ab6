/* Laying out a safetensors file: offsets and header, before anyone writes. */
#include "model/st.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of tensor t, overflow checked. */
static im_status size_of(im_context *ctx, const im_st_plan *t, uint64_t *nbytes)
{
    char shown[120];
    if (!im_st_dtype_of(t->dtype))
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "tensor %s: safetensors has no dtype for %s", im_st_show(shown, sizeof shown, t->name),
                       im_dtype_name(t->dtype));
    uint64_t product = im_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(product, (uint64_t)t->shape[i], &product) || product > (uint64_t)1 << 62)
            return im_fail(ctx, IM_ERR_ARG, "tensor %s: its size is negative or beyond 2^62 bytes", im_st_show(shown, sizeof shown, t->name));
    *nbytes = product;
    return IM_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const im_st_plan *const *)a)->name, (*(const im_st_plan *const *)b)->name);
}

static im_status check_names(im_context *ctx, const im_st_plan *t, size_t n)
{
    void *memory;
    IM_TRY(im_alloc(ctx, n + 1, sizeof(im_st_plan *), &memory));
    const im_st_plan **sorted = memory;
    im_status status = IM_OK;
    for (size_t i = 0; i < n; i++)
        sorted[i] = &t[i];
    qsort(sorted, n, sizeof *sorted, compare_names);
    for (size_t i = 0; i < n && status == IM_OK; i++) {
        if (strcmp(sorted[i]->name, "__metadata__") == 0 || (i && strcmp(sorted[i]->name, sorted[i - 1]->name) == 0))
            status = im_fail(ctx, IM_ERR_ARG, "two tensors of a file cannot be named %s", sorted[i]->name);
    }
    free(memory);
    return status;
}

/* Offsets from the data's start: wide elements first, so that each lies on a multiple of its size without holes. */
static void place(im_st_plan *t, size_t n)
{
    uint64_t at = 0;
    for (size_t width = 8; width; width /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (im_dtype_size(t[i].dtype) != width)
                continue;
            t[i].offset = at;
            at += t[i].nbytes;
        }
    }
}

static void write_tensor(const im_st_plan *t, im_str *out)
{
    im_str_json_string(out, t->name, strlen(t->name));
    im_str_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", im_st_dtype_of(t->dtype)->name);
    for (int i = 0; i < t->ndim; i++)
        im_str_printf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    im_str_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset, (unsigned long long)(t->offset + t->nbytes));
}

im_status im_st_layout(im_context *ctx, im_st_plan *t, size_t n, const char *const *metadata, im_str *header, uint64_t *file_size)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t nbytes;
        IM_TRY(size_of(ctx, &t[i], &nbytes));
        if (__builtin_add_overflow(total, nbytes, &total) || total > (uint64_t)1 << 62)
            return im_fail(ctx, IM_ERR_ARG, "a file of more than 2^62 bytes, at tensor %s", t[i].name);
    }
    IM_TRY(check_names(ctx, t, n));
    for (size_t i = 0; i < n; i++)
        IM_TRY(size_of(ctx, &t[i], &t[i].nbytes));
    place(t, n);

    im_str json = {0};
    im_str_append(&json, "{");
    if (metadata) {
        im_str_append(&json, "\"__metadata__\":{");
        for (size_t i = 0; metadata[i]; i += 2) {
            im_str_append(&json, i ? "," : "");
            im_str_json_string(&json, metadata[i], strlen(metadata[i]));
            im_str_append(&json, ":");
            im_str_json_string(&json, metadata[i + 1], strlen(metadata[i + 1]));
        }
        im_str_append(&json, n ? "}," : "}");
    }
    for (size_t i = 0; i < n; i++) {
        im_str_append(&json, i ? "," : "");
        write_tensor(&t[i], &json);
    }
    im_str_append(&json, "}");
    im_str_append_n(&json, "        ", (8 - json.len % 8) % 8);
    im_status status = IM_OK;
    if (json.len > IM_ST_MAX_HEADER)
        status = im_fail(ctx, IM_ERR_UNSUPPORTED, "a safetensors header of %zu bytes: the format allows %d", json.len, IM_ST_MAX_HEADER);
    if (status == IM_OK) {
        char length[8];
        for (int i = 0; i < 8; i++)
            length[i] = (char)(json.len >> (8 * i));
        im_str_append_n(header, length, sizeof length);
        im_str_append_n(header, im_str_text(&json), json.len);
        for (size_t i = 0; i < n; i++)
            t[i].offset += 8 + json.len;
        *file_size = 8 + json.len + total;
        if (json.failed || header->failed)
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for a safetensors header of %zu tensors", n);
    }
    im_str_free(&json);
    return status;
}
