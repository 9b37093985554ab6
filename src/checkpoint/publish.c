/* Which directories are checkpoints, and how one becomes the newest.
 *
 *   step-N.tmp   being written            step-N.old   being removed
 *   step-N       complete: only a rename gives or takes this name
 *   latest       "step-N\n", replaced atomically after the rename
 */
#include "checkpoint/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t im_checkpoint_step_of(const char *name)
{
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1))
        return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (!n || n > 18 || digits[n])
        return -1;
    return strtoll(digits, NULL, 10);
}

static im_status join(im_context *ctx, char *out, size_t size, const char *root, const char *name, const char *suffix)
{
    if (snprintf(out, size, "%s/%s%s", root, name, suffix) >= (int)size)
        return im_fail(ctx, IM_ERR_ARG, "%s/%s%s: the path is too long", root, name, suffix);
    return IM_OK;
}

static bool is_leftover(const char *name)
{
    char base[64];
    size_t n = strlen(name);
    if (n < 5 || n >= sizeof base || (strcmp(name + n - 4, ".tmp") && strcmp(name + n - 4, ".old")))
        return false;
    memcpy(base, name, n - 4);
    base[n - 4] = '\0';
    return im_checkpoint_step_of(base) >= 0;
}

im_status im_checkpoint_clean(im_context *ctx, const char *root)
{
    DIR *d = opendir(root);
    if (!d)
        return errno == ENOENT ? IM_OK : im_fail_errno(ctx, "%s: open", root);
    im_status status = IM_OK;
    for (struct dirent *entry; status == IM_OK && (entry = readdir(d));) {
        char path[IM_CHECKPOINT_PATH];
        if (!is_leftover(entry->d_name))
            continue;
        IM_TRY_GOTO(join(ctx, path, sizeof path, root, entry->d_name, ""), close_dir);
        IM_TRY_GOTO(im_remove_tree(ctx, path), close_dir);
    }
close_dir:
    closedir(d);
    return status;
}

/* The name goes first, so that no directory called step-N is ever half removed. */
static im_status remove_checkpoint(im_context *ctx, const char *root, const char *name)
{
    char path[IM_CHECKPOINT_PATH], old[IM_CHECKPOINT_PATH];
    IM_TRY(join(ctx, path, sizeof path, root, name, ""));
    IM_TRY(join(ctx, old, sizeof old, root, name, ".old"));
    if (rename(path, old))
        return im_fail_errno(ctx, "%s: rename to %s", path, old);
    return im_remove_tree(ctx, old);
}

im_status im_checkpoint_publish(im_context *ctx, const char *root, const char *temp, const char *name)
{
    char path[IM_CHECKPOINT_PATH], pointer[IM_CHECKPOINT_PATH], line[64];
    IM_TRY(join(ctx, path, sizeof path, root, name, ""));
    IM_TRY(join(ctx, pointer, sizeof pointer, root, IM_CHECKPOINT_POINTER, ""));
    bool swapped = false;
    if (im_path_exists(path)) {
        /* the same step was saved before (a resumed run that is older than its newest checkpoint): both are whole, swap them */
        if (!renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE))
            swapped = true;
        else
            IM_TRY(remove_checkpoint(ctx, root, name));
    }
    if (!swapped && rename(temp, path))
        return im_fail_errno(ctx, "%s: rename to %s", temp, path);
    IM_TRY(im_fsync_dir(ctx, root));
    int n = snprintf(line, sizeof line, "%s\n", name);
    IM_TRY(im_file_write_atomic(ctx, pointer, line, (size_t)n));
    return swapped ? im_remove_tree(ctx, temp) : IM_OK;
}

/* ---- finding them ---------------------------------------------------------------- */

/* The name in `latest`; false: no such file, or not a name of ours. */
static bool read_pointer(const char *root, char *name, size_t size)
{
    char path[IM_CHECKPOINT_PATH];
    if (snprintf(path, sizeof path, "%s/%s", root, IM_CHECKPOINT_POINTER) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(name, (int)size, f) != NULL;
    fclose(f);
    if (!ok)
        return false;
    name[strcspn(name, "\n")] = '\0';
    return im_checkpoint_step_of(name) >= 0;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const im_checkpoint_entry *)a)->step, y = ((const im_checkpoint_entry *)b)->step;
    return (x > y) - (x < y);
}

/* Fills in what the manifest says; a context of its own, so that a torn checkpoint is no error of the caller's. */
static im_status probe(im_context *ctx, const char *root, im_checkpoint_entry *e)
{
    char path[IM_CHECKPOINT_PATH];
    im_checkpoint_meta meta;
    IM_TRY(join(ctx, path, sizeof path, root, e->name, ""));
    im_context *own;
    IM_TRY(im_context_create(&own));
    e->complete = im_checkpoint_read_manifest(own, path, false, &meta, &e->nbytes) == IM_OK;
    snprintf(e->reason, sizeof e->reason, "%s", im_error_text(own));
    im_context_destroy(own);
    return IM_OK;
}

im_status im_checkpoint_list(im_context *ctx, const char *root, im_checkpoint_entry **out, size_t *n)
{
    DIR *d = opendir(root);
    if (!d)
        return errno == ENOENT ? im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no such directory", root) : im_fail_errno(ctx, "%s: open", root);
    char pointed[64] = "";
    bool have_pointer = read_pointer(root, pointed, sizeof pointed);
    im_checkpoint_entry *list = NULL;
    size_t count = 0, cap = 0;
    im_status status = IM_OK;
    for (struct dirent *entry; (entry = readdir(d));) {
        int64_t step = im_checkpoint_step_of(entry->d_name);
        if (step < 0)
            continue;
        if (count == cap) {
            cap = cap ? 2 * cap : 16;
            im_checkpoint_entry *more = realloc(list, cap * sizeof *list);
            if (!more) {
                status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a list of %zu checkpoints", root, cap);
                goto free_list;
            }
            list = more;
        }
        im_checkpoint_entry *e = &list[count++];
        *e = (im_checkpoint_entry){.step = step};
        snprintf(e->name, sizeof e->name, "%.31s", entry->d_name);
        e->latest = have_pointer && !strcmp(e->name, pointed);
        IM_TRY_GOTO(probe(ctx, root, e), free_list);
    }
    if (count)
        qsort(list, count, sizeof *list, by_step);
    *out = list;
    *n = count;
    list = NULL;
free_list:
    free(list);
    closedir(d);
    return status;
}

im_status im_checkpoint_prune(im_context *ctx, const char *root, int keep)
{
    if (keep <= 0)
        return IM_OK;
    im_checkpoint_entry *list;
    size_t n;
    IM_TRY(im_checkpoint_list(ctx, root, &list, &n));
    im_status status = IM_OK;
    int kept = 0;
    for (size_t i = n; i-- > 0;) {
        if (!list[i].complete) {
            IM_TRY_GOTO(remove_checkpoint(ctx, root, list[i].name), free_list);
            continue;
        }
        if (kept < keep || list[i].latest) {
            kept++;
            continue;
        }
        IM_TRY_GOTO(remove_checkpoint(ctx, root, list[i].name), free_list);
    }
free_list:
    free(list);
    return status;
}

/* Whether the checkpoint can be used; the reason goes to the log. */
static bool usable(im_context *ctx, const char *root, const im_checkpoint_entry *e, bool verify)
{
    if (!e->complete) {
        im_log(ctx, IM_LOG_WARN, "checkpoint", "%s/%s is not complete: %s", root, e->name, e->reason);
        return false;
    }
    if (!verify)
        return true;
    char path[IM_CHECKPOINT_PATH];
    im_checkpoint_meta meta;
    im_context *own;
    if (snprintf(path, sizeof path, "%s/%s", root, e->name) >= (int)sizeof path || im_context_create(&own) != IM_OK)
        return false;
    bool ok = im_checkpoint_read_manifest(own, path, true, &meta, NULL) == IM_OK;
    if (!ok)
        im_log(ctx, IM_LOG_WARN, "checkpoint", "%s cannot be used: %s", path, im_error_text(own));
    im_context_destroy(own);
    return ok;
}

static im_status pick(im_context *ctx, const char *root, bool verify, char *dir, size_t dir_size)
{
    im_checkpoint_entry *list;
    size_t n, chosen = SIZE_MAX, pointed = SIZE_MAX;
    IM_TRY(im_checkpoint_list(ctx, root, &list, &n));
    for (size_t i = 0; i < n; i++)
        if (list[i].latest)
            pointed = i;
    if (pointed != SIZE_MAX && usable(ctx, root, &list[pointed], verify))
        chosen = pointed;
    for (size_t i = n; chosen == SIZE_MAX && i-- > 0;)
        if (i != pointed && usable(ctx, root, &list[i], verify))
            chosen = i;
    im_status status = IM_OK;
    if (chosen == SIZE_MAX)
        status = im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no complete checkpoint (%zu directories named step-N)", root, n);
    else
        status = join(ctx, dir, dir_size, root, list[chosen].name, "");
    if (status == IM_OK && chosen != pointed)
        im_log(ctx, IM_LOG_WARN, "checkpoint", "%s/latest names no usable checkpoint; using %s", root, list[chosen].name);
    free(list);
    return status;
}

im_status im_checkpoint_latest(im_context *ctx, const char *root, char *dir, size_t dir_size)
{
    return pick(ctx, root, false, dir, dir_size);
}

im_status im_checkpoint_latest_verified(im_context *ctx, const char *root, char *dir, size_t dir_size)
{
    return pick(ctx, root, true, dir, dir_size);
}

static bool has(const char *dir, const char *name)
{
    char path[IM_CHECKPOINT_PATH];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && im_path_exists(path);
}

im_status im_checkpoint_resolve(im_context *ctx, const char *path, char *dir, size_t dir_size)
{
    char root[IM_CHECKPOINT_PATH];
    if (im_path_is_dir(path) && !has(path, "config.json")) {
        if (has(path, "checkpoints")) {
            IM_TRY(join(ctx, root, sizeof root, path, "checkpoints", ""));
            return im_checkpoint_latest(ctx, root, dir, dir_size);
        }
        if (has(path, IM_CHECKPOINT_POINTER))
            return im_checkpoint_latest(ctx, path, dir, dir_size);
    }
    if (snprintf(dir, dir_size, "%s", path) >= (int)dir_size)
        return im_fail(ctx, IM_ERR_ARG, "%s: the path is too long", path);
    return IM_OK;
}
