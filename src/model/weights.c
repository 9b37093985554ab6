/* weights: one or several safetensors files as one table of tensors, mapped. */
#include "model/st.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX_BYTES = 256 << 20, MAX_SHARDS = 10000 };

typedef struct shard {
    const char *path;
    im_map map;
} shard;

struct im_weights {
    im_arena *arena;
    shard *file;
    int nfile, file_cap;
    im_st_tensor *tensor; /* by name */
    size_t n;
    const char **metadata; /* of the first file: key, value, ... */
    size_t nmetadata;
};

void im_weights_close(im_weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->nfile; i++)
        im_map_close(&w->file[i].map);
    free(w->file);
    free(w->tensor);
    im_arena_destroy(w->arena);
    free(w);
}

static im_status add_file(im_context *ctx, im_weights *w, const char *path)
{
    if (w->nfile == w->file_cap) {
        const int cap = w->file_cap ? 2 * w->file_cap : 8;
        shard *bigger = realloc(w->file, (size_t)cap * sizeof *bigger);
        if (!bigger)
            return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the table of files", path);
        w->file = bigger;
        w->file_cap = cap;
    }
    shard *f = &w->file[w->nfile];
    f->path = im_arena_strdup(w->arena, path);
    if (!f->path)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the table of files", path);
    IM_TRY(im_map_open(ctx, path, &f->map));
    w->nfile++;
    im_st_file parsed;
    IM_TRY(im_st_parse(ctx, path, f->map.data, f->map.len, w->nfile - 1, w->arena, &parsed));
    if (w->nfile == 1) {
        w->metadata = parsed.metadata;
        w->nmetadata = parsed.nmetadata;
    }
    if (!parsed.n)
        return IM_OK;
    im_st_tensor *all = realloc(w->tensor, (w->n + parsed.n) * sizeof *all);
    if (!all)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the table of tensors", path);
    memcpy(all + w->n, parsed.tensor, parsed.n * sizeof *all);
    w->tensor = all;
    w->n += parsed.n;
    return IM_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const im_st_tensor *)a)->name, ((const im_st_tensor *)b)->name);
}

static im_status sort_tensors(im_context *ctx, im_weights *w)
{
    char shown[120];
    if (w->n)
        qsort(w->tensor, w->n, sizeof *w->tensor, by_name);
    for (size_t i = 1; i < w->n; i++) {
        const im_st_tensor *a = &w->tensor[i - 1], *b = &w->tensor[i];
        if (strcmp(a->name, b->name) == 0)
            return im_fail(ctx, IM_ERR_FORMAT, "tensor %s is in %s and in %s: it must be in one file", im_st_show(shown, sizeof shown, a->name),
                           w->file[a->file].path, w->file[b->file].path);
    }
    return IM_OK;
}

static bool plain_file_name(const char *name)
{
    return *name && name[0] != '.' && !strchr(name, '/');
}

/* The distinct file names of a weight_map, in order of first use. */
static im_status shards_of(im_context *ctx, const im_json *index, const im_json_value *map, im_arena *a, const char ***out, size_t *count)
{
    const size_t n = im_json_length(map);
    const char **names = IM_ARENA_NEW(a, const char *, n);
    size_t found = 0;
    if (!names)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the names of its files", im_json_name(index));
    for (size_t i = 0; i < n; i++) {
        const char *key;
        const char *name = im_json_string(im_json_member(map, i, &key), "");
        char shown[120];
        if (!plain_file_name(name))
            return im_fail(ctx, IM_ERR_FORMAT, "%s: weight_map.%s must be the name of a file in the same directory", im_json_name(index),
                           im_st_show(shown, sizeof shown, key));
        size_t k = found;
        /* neighbours in the map mostly share a file: look from the end */
        while (k && strcmp(names[k - 1], name) != 0)
            k--;
        if (k)
            continue;
        if (found == MAX_SHARDS)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: weight_map names more than %d files", im_json_name(index), MAX_SHARDS);
        names[found++] = name;
    }
    *out = names;
    *count = found;
    return IM_OK;
}

/* Every tensor of the map is in the file that the map says. */
static im_status check_map(im_context *ctx, const im_json *index, const im_json_value *map, const im_weights *w, const char *dir)
{
    for (size_t i = 0; i < im_json_length(map); i++) {
        const char *key;
        const char *name = im_json_string(im_json_member(map, i, &key), "");
        const im_st_tensor *t = im_weights_find(w, key);
        if (!t || strcmp(w->file[t->file].path + strlen(dir), name) != 0) {
            char shown[120], file[120];
            return im_fail(ctx, IM_ERR_FORMAT, "%s: tensor %s should be in %s, but is not there", im_json_name(index),
                           im_st_show(shown, sizeof shown, key), im_st_show(file, sizeof file, name));
        }
    }
    return IM_OK;
}

/* dir ends with a slash, or is empty. */
static im_status add_shards(im_context *ctx, im_weights *w, const im_json *index, const char *dir)
{
    const im_json_value *map = im_json_get(im_json_root(index), "weight_map");
    const char **names = NULL;
    size_t n = 0;
    if (im_json_type_of(map) != IM_JSON_OBJECT || im_json_length(map) == 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: weight_map must be an object from tensor names to file names", im_json_name(index));
    IM_TRY(shards_of(ctx, index, map, w->arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        im_str path = {0};
        im_str_printf(&path, "%s%s", dir, names[i]);
        im_status status = !im_path_exists(im_str_text(&path))
                               ? im_fail(ctx, IM_ERR_NOT_FOUND, "%s: the file is missing; %s names it", im_str_text(&path), im_json_name(index))
                               : add_file(ctx, w, im_str_text(&path));
        im_str_free(&path);
        IM_TRY(status);
    }
    IM_TRY(sort_tensors(ctx, w));
    return check_map(ctx, index, map, w, dir);
}

static im_status open_index(im_context *ctx, im_weights *w, const char *path)
{
    im_json *index;
    IM_TRY(im_json_load(ctx, path, INDEX_MAX_BYTES, &index));
    const char *slash = strrchr(path, '/');
    const size_t dir_len = slash ? (size_t)(slash + 1 - path) : 0;
    char *dir = im_arena_strdup(w->arena, path);
    im_status status;
    if (dir) {
        dir[dir_len] = '\0';
        status = add_shards(ctx, w, index, dir);
    } else {
        status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory to open it", path);
    }
    im_json_free(index);
    return status;
}

static bool exists_in(const char *dir, const char *name, im_str *path)
{
    path->len = 0;
    im_str_printf(path, "%s/%s", dir, name);
    return im_path_exists(im_str_text(path));
}

static im_status open_path(im_context *ctx, im_weights *w, const char *path, im_str *found)
{
    const size_t len = strlen(path);
    if (!im_path_is_dir(path)) {
        if (len > 5 && strcmp(path + len - 5, ".json") == 0)
            return open_index(ctx, w, path);
        IM_TRY(add_file(ctx, w, path));
        return sort_tensors(ctx, w);
    }
    if (exists_in(path, "model.safetensors", found)) {
        IM_TRY(add_file(ctx, w, im_str_text(found)));
        return sort_tensors(ctx, w);
    }
    if (exists_in(path, "model.safetensors.index.json", found))
        return open_index(ctx, w, im_str_text(found));
    const bool pickled = exists_in(path, "pytorch_model.bin", found) || exists_in(path, "pytorch_model.bin.index.json", found);
    return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: there is neither model.safetensors nor model.safetensors.index.json%s", path,
                   pickled ? " (pytorch_model.bin is not read: save the model with safe_serialization=True)" : "");
}

im_status im_weights_open(im_context *ctx, const char *path, im_weights **out)
{
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_weights), &memory));
    im_weights *w = memory;
    im_str found = {0};
    im_status status = im_arena_create(ctx, &w->arena);
    if (status == IM_OK)
        status = open_path(ctx, w, path, &found);
    im_str_free(&found);
    if (status == IM_OK)
        *out = w;
    else
        im_weights_close(w);
    return status;
}

size_t im_weights_count(const im_weights *w)
{
    return w->n;
}

const im_st_tensor *im_weights_at(const im_weights *w, size_t i)
{
    return i < w->n ? &w->tensor[i] : NULL;
}

const im_st_tensor *im_weights_find(const im_weights *w, const char *name)
{
    const im_st_tensor key = {.name = name};
    return w->n ? bsearch(&key, w->tensor, w->n, sizeof *w->tensor, by_name) : NULL;
}

const char *im_weights_metadata(const im_weights *w, const char *key)
{
    for (size_t i = 0; i < w->nmetadata; i++)
        if (strcmp(w->metadata[2 * i], key) == 0)
            return w->metadata[2 * i + 1];
    return NULL;
}

const char *im_weights_path(const im_weights *w, const im_st_tensor *t)
{
    return w->file[t->file].path;
}

void im_weights_release(const im_weights *w, const im_st_tensor *t)
{
    im_map_release(&w->file[t->file].map, t->offset, t->nbytes);
}

/* ---- values ------------------------------------------------------------------ */

static void from_bf16(const unsigned char *in, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, in + 2 * i, sizeof h);
        const uint32_t bits = (uint32_t)h << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* Exact: every fp16 value is a fp32 value. */
static float from_f16_one(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    float x;
    if (exponent == 0) {
        x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    /* 31 marks infinity and NaN in both formats; else the bias moves from 15 to 127 */
    const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void from_f16(const unsigned char *in, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, in + 2 * i, sizeof h);
        out[i] = from_f16_one(h);
    }
}

static void from_f64(const unsigned char *in, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, in + 8 * i, sizeof x);
        out[i] = (float)x;
    }
}

im_status im_weights_read(im_context *ctx, const im_weights *w, const im_st_tensor *t, int64_t first, int64_t count, im_dtype as, void *out)
{
    char shown[120];
    im_st_show(shown, sizeof shown, t->name);
    const bool number = t->known_dtype && (t->dtype == IM_F32 || t->dtype == IM_F16 || t->dtype == IM_BF16 || t->dtype == IM_F64);
    if (!t->known_dtype || (as != t->dtype && !(as == IM_F32 && number)))
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, which cannot be read as %s", w->file[t->file].path, shown, t->dtype_name,
                       im_dtype_name(as));
    const size_t size = im_dtype_size(t->dtype);
    const int64_t elements = (int64_t)(t->nbytes / size);
    if (first < 0 || count < 0 || count > elements || first > elements - count)
        return im_fail(ctx, IM_ERR_ARG, "%s: tensor %s has %lld elements; %lld from %lld were asked for", w->file[t->file].path, shown,
                       (long long)elements, (long long)count, (long long)first);
    const unsigned char *in = w->file[t->file].map.data + t->offset + (size_t)first * size;
    const size_t n = (size_t)count;
    if (n == 0)
        return IM_OK;
    if (as == t->dtype)
        memcpy(out, in, n * size);
    else if (t->dtype == IM_BF16)
        from_bf16(in, n, out);
    else if (t->dtype == IM_F16)
        from_f16(in, n, out);
    else
        from_f64(in, n, out);
    return IM_OK;
}
