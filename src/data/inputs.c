/* Which files a corpus is made of. */
#include "data/input.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct walker {
    im_context *ctx;
    im_arena *arena;
    im_inputs in;
} walker;

void im_inputs_free(im_inputs *in)
{
    free(in->path);
    *in = (im_inputs){0};
}

/* st NULL: standard input */
static im_status add(walker *w, const char *path, const struct stat *st)
{
    im_inputs *in = &w->in;
    if (in->n == in->cap) {
        size_t cap = in->cap ? 2 * in->cap : 64;
        const char **more = realloc(in->path, cap * sizeof *more);
        if (!more)
            return im_fail(w->ctx, IM_ERR_NOMEM, "no memory for %zu input names", cap);
        in->path = more;
        in->cap = cap;
    }
    in->path[in->n] = im_arena_strdup(w->arena, path);
    if (!in->path[in->n])
        return im_fail(w->ctx, IM_ERR_NOMEM, "no memory for input names");
    in->n++;
    in->print = im_hash64(path, strlen(path) + 1, in->print);
    in->has_stdin |= !st;
    if (st && S_ISREG(st->st_mode)) {
        int64_t is[3] = {st->st_size, st->st_mtim.tv_sec, st->st_mtim.tv_nsec};
        in->print = im_hash64(is, sizeof is, in->print);
        in->bytes += st->st_size;
    }
    return IM_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* In the order of names, so that the same tree is the same corpus everywhere. */
static im_status walk(walker *w, const char *dir, int depth)
{
    struct dirent **entry = NULL;
    if (depth > 64)
        return im_fail(w->ctx, IM_ERR_ARG, "%s: directories deeper than 64", dir);
    int n = scandir(dir, &entry, visible, by_name);
    if (n < 0)
        return im_fail_errno(w->ctx, "%s", dir);
    im_status status = IM_OK;
    for (int i = 0; i < n; i++) {
        struct stat link, st;
        char *path = im_arena_printf(w->arena, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", entry[i]->d_name);
        if (status == IM_OK && !path)
            status = im_fail(w->ctx, IM_ERR_NOMEM, "no memory for input names");
        else if (status == IM_OK && (lstat(path, &link) != 0 || stat(path, &st) != 0))
            status = im_fail_errno(w->ctx, "%s", path);
        else if (status == IM_OK && S_ISREG(st.st_mode))
            status = add(w, path, &st);
        else if (status == IM_OK && S_ISDIR(link.st_mode))
            status = walk(w, path, depth + 1);
        free(entry[i]);
    }
    free(entry);
    return status;
}

static im_status collect(walker *w, const char *const *given, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        if (strcmp(given[i], "-") == 0) {
            if (w->in.has_stdin)
                return im_fail(w->ctx, IM_ERR_ARG, "- (standard input) can be read once");
            IM_TRY(add(w, given[i], NULL));
        } else if (stat(given[i], &st) != 0) {
            return im_fail_errno(w->ctx, "%s", given[i]);
        } else if (S_ISDIR(st.st_mode)) {
            size_t before = w->in.n;
            IM_TRY(walk(w, given[i], 0));
            if (w->in.n == before)
                return im_fail(w->ctx, IM_ERR_ARG, "%s: no files in this directory", given[i]);
        } else {
            IM_TRY(add(w, given[i], &st));
        }
    }
    return IM_OK;
}

im_status im_inputs_collect(im_context *ctx, im_arena *a, const char *const *given, size_t n, im_inputs *out)
{
    walker w = {.ctx = ctx, .arena = a};
    im_status status = collect(&w, given, n);
    if (status == IM_OK)
        *out = w.in;
    else
        im_inputs_free(&w.in);
    return status;
}

static bool ends_with(const char *s, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);
    return n > m && memcmp(s + n - m, suffix, m) == 0;
}

bool im_input_is_jsonl(const char *path)
{
    size_t n = strlen(path);
    if (ends_with(path, n, ".gz"))
        n -= 3;
    else if (ends_with(path, n, ".zst"))
        n -= 4;
    return ends_with(path, n, ".jsonl") || ends_with(path, n, ".ndjson");
}
