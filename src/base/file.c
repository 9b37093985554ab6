/* Files: whole reads, atomic writes, directories, read-only mappings. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

im_status im_file_read(im_context *ctx, const char *path, size_t max, char **data, size_t *len)
{
    im_status status = IM_OK;
    char *buf = NULL;
    size_t used = 0, cap = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO without a writer would hold us for ever */
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        status = im_fail(ctx, IM_ERR_FORMAT, "%s: not a regular file", path);
        goto close_file;
    }
    if (S_ISREG(st.st_mode)) {
        if ((uint64_t)st.st_size > max) {
            status = im_fail(ctx, IM_ERR_FORMAT, "%s: %lld bytes; at most %zu are read here", path, (long long)st.st_size, max);
            goto close_file;
        }
        cap = (size_t)st.st_size + 1;
    }
    if (cap < 4096)
        cap = 4096; /* pipes and /proc tell no size */
    buf = malloc(cap);
    if (!buf) {
        status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for %zu bytes", path, cap);
        goto close_file;
    }
    for (;;) {
        if (used + 1 >= cap) {
            char *more = realloc(buf, cap * 2);
            if (!more) {
                status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for %zu bytes", path, cap * 2);
                goto free_buf;
            }
            buf = more;
            cap *= 2;
        }
        ssize_t n = read(fd, buf + used, cap - used - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = im_fail_errno(ctx, "%s: cannot read", path);
            goto free_buf;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used > max) {
            status = im_fail(ctx, IM_ERR_FORMAT, "%s: more than %zu bytes; at most that many are read here", path, max);
            goto free_buf;
        }
    }
    buf[used] = 0;
    close(fd);
    *data = buf;
    *len = used;
    return IM_OK;
free_buf:
    free(buf);
close_file:
    close(fd);
    return status;
}

static im_status write_all(im_context *ctx, const char *path, int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return im_fail_errno(ctx, "%s: cannot write", path);
        data += n;
        len -= (size_t)n;
    }
    return IM_OK;
}

static im_status fsync_parent(im_context *ctx, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return im_fsync_dir(ctx, ".");
    if (slash == path)
        return im_fsync_dir(ctx, "/");
    char *dir = strndup(path, (size_t)(slash - path));
    if (!dir)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for its directory's name", path);
    im_status status = im_fsync_dir(ctx, dir);
    free(dir);
    return status;
}

im_status im_file_write_atomic(im_context *ctx, const char *path, const void *data, size_t len)
{
    im_status status = IM_OK;
    im_str tmp = {0};
    im_str_printf(&tmp, "%s.tmp", path);
    if (tmp.failed) {
        im_str_free(&tmp);
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a name", path);
    }
    int fd = open(tmp.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = im_fail_errno(ctx, "%s: cannot create", tmp.data);
        goto free_name;
    }
    IM_TRY_GOTO(write_all(ctx, tmp.data, fd, data, len), unlink_file);
    if (fsync(fd) != 0) {
        status = im_fail_errno(ctx, "%s: cannot fsync", tmp.data);
        goto unlink_file;
    }
    if (close(fd) != 0) {
        fd = -1;
        status = im_fail_errno(ctx, "%s: cannot close", tmp.data);
        goto unlink_file;
    }
    fd = -1;
    if (rename(tmp.data, path) != 0) {
        status = im_fail_errno(ctx, "%s: cannot rename to %s", tmp.data, path);
        goto unlink_file;
    }
    status = fsync_parent(ctx, path);
    goto free_name;
unlink_file:
    if (fd >= 0)
        close(fd);
    unlink(tmp.data);
free_name:
    im_str_free(&tmp);
    return status;
}

bool im_path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool im_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

im_status im_mkdirs(im_context *ctx, const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a name", path);
    im_status status = IM_OK;
    for (char *p = copy + 1; *copy; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char end = *p;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && !(errno == EEXIST && im_path_is_dir(copy))) {
            if (errno == EEXIST || errno == ENOTDIR)
                status = im_fail(ctx, IM_ERR_EXISTS, "%s: cannot create the directory: %s is not a directory", path, copy);
            else
                status = im_fail_errno(ctx, "%s: cannot create the directory", copy);
            break;
        }
        *p = end;
        if (end == 0)
            break;
    }
    free(copy);
    return status;
}

im_status im_fsync_dir(im_context *ctx, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot open the directory", path);
    /* some file systems cannot fsync a directory and say EINVAL; there is nothing more to do there */
    im_status status = fsync(fd) != 0 && errno != EINVAL ? im_fail_errno(ctx, "%s: cannot fsync the directory", path) : IM_OK;
    close(fd);
    return status;
}

/* Removes `name` in directory `at`. Links are removed, never followed. */
static im_status remove_at(im_context *ctx, int at, const char *name, const char *top)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
        return IM_OK;
    if (errno != EISDIR && errno != EPERM)
        return im_fail_errno(ctx, "%s: cannot remove %s", top, name);
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot remove %s", top, name);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        im_status status = im_fail_errno(ctx, "%s: cannot list %s", top, name);
        close(fd);
        return status;
    }
    im_status status = IM_OK;
    struct dirent *e;
    while (status == IM_OK && (e = readdir(dir)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            status = remove_at(ctx, dirfd(dir), e->d_name, top);
    closedir(dir);
    if (status == IM_OK && unlinkat(at, name, AT_REMOVEDIR) != 0)
        status = im_fail_errno(ctx, "%s: cannot remove %s", top, name);
    return status;
}

im_status im_remove_tree(im_context *ctx, const char *path)
{
    return remove_at(ctx, AT_FDCWD, path, path);
}

im_status im_map_open(im_context *ctx, const char *path, im_map *out)
{
    im_status status = IM_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = im_fail_errno(ctx, "%s: cannot stat", path);
        goto close_file;
    }
    if (!S_ISREG(st.st_mode)) {
        status = im_fail(ctx, IM_ERR_FORMAT, "%s: not a regular file", path);
        goto close_file;
    }
    im_map map = {.data = NULL, .len = (size_t)st.st_size};
    if (map.len > 0) {
        void *p = mmap(NULL, map.len, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            status = im_fail_errno(ctx, "%s: cannot map %zu bytes", path, map.len);
            goto close_file;
        }
        map.data = p;
    }
    *out = map;
close_file:
    close(fd);
    return status;
}

void im_map_release(const im_map *m, size_t offset, size_t nbytes)
{
    if (!m->data || offset >= m->len)
        return;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = offset / page * page, end = nbytes < m->len - offset ? offset + nbytes : m->len;
    (void)madvise((void *)(uintptr_t)(m->data + first), end - first, MADV_DONTNEED); /* a hint: without it the memory is merely there longer */
}

void im_map_close(im_map *m)
{
    if (m->data)
        munmap((void *)m->data, m->len);
    *m = (im_map){0};
}
