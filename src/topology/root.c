/* A root directory and what is read below it. See root.h. */
#include "topology/root.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE = 64 << 10, MAX_LONG_FILE = 4 << 20, MAX_NAMES = 16384, MAX_LINKS = 40, MAX_TROUBLES = 64 };

enum { NOT_REGULAR = EBADFD }; /* an errno that reading a file does not give */

struct im_root {
    im_context *ctx;
    im_arena *arena;
    int fd; /* of the directory */
    bool live;
    const char *dir;
    im_trouble trouble[MAX_TROUBLES];
    size_t ntroubles;
};

im_status im_root_open(im_context *ctx, im_arena *a, const char *dir, im_root **out)
{
    *out = NULL;
    const bool live = !dir || !*dir || strcmp(dir, "/") == 0;
    const char *name = live ? "/" : im_arena_strdup(a, dir);
    im_root *root = IM_ARENA_NEW(a, im_root, 1);
    if (!root || !name)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a root directory");
    *root = (im_root){.ctx = ctx, .arena = a, .live = live, .dir = name};
    root->fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root->fd < 0)
        return im_fail_errno(ctx, "%s: cannot be opened as the root directory of a machine", name);
    *out = root;
    return IM_OK;
}

im_status im_root_with_arena(const im_root *root, im_arena *a, im_root **out)
{
    *out = NULL;
    im_root *copy = IM_ARENA_NEW(a, im_root, 1);
    if (!copy)
        return im_fail(root->ctx, IM_ERR_NOMEM, "no memory for a root directory");
    *copy = (im_root){.ctx = root->ctx, .arena = a, .live = root->live, .dir = root->dir};
    copy->fd = fcntl(root->fd, F_DUPFD_CLOEXEC, 3);
    if (copy->fd < 0)
        return im_fail_errno(root->ctx, "%s: no file descriptor", root->dir);
    *out = copy;
    return IM_OK;
}

void im_root_close(im_root *root)
{
    if (root && root->fd >= 0)
        close(root->fd);
    if (root)
        root->fd = -1;
}

bool im_root_is_live(const im_root *root)
{
    return root->live;
}

const char *im_root_dir(const im_root *root)
{
    return root->dir;
}

im_arena *im_root_arena(const im_root *root)
{
    return root->arena;
}

size_t im_root_troubles(const im_root *root, const im_trouble **first, size_t *nfirst)
{
    *first = root->trouble;
    *nfirst = root->ntroubles < MAX_TROUBLES ? root->ntroubles : MAX_TROUBLES;
    return root->ntroubles;
}

static const char *reason(im_root *root, const char *path, int error)
{
    if (error == ENOENT || error == ENOTDIR)
        return "absent";
    const char *why = error == NOT_REGULAR ? "is no regular file" : im_arena_printf(root->arena, "cannot be read: %s", strerror(error));
    if (error == EINVAL || error == EOPNOTSUPP) /* how the kernel says that it has nothing to tell: a GID's type, the speed of a link that is down */
        return why ? why : "cannot be read";
    if (!why)
        why = "cannot be read";
    if (root->ntroubles < MAX_TROUBLES)
        root->trouble[root->ntroubles] = (im_trouble){path, why};
    root->ntroubles++;
    return why;
}

/* ---- paths ---------------------------------------------------------------------- */

/* What is resolved so far stands in `at` (no leading slash), what is still to go in `rest`. */
typedef struct walk {
    char at[PATH_MAX], rest[PATH_MAX];
} walk;

static int step_link(walk *w, const char *target, ssize_t n, const char *left)
{
    char next[PATH_MAX];
    if ((size_t)n + strlen(left) + 2 > sizeof next)
        return ENAMETOOLONG;
    memcpy(next, target, (size_t)n);
    next[n] = '/';
    memcpy(next + n + 1, left, strlen(left) + 1);
    memcpy(w->rest, next, strlen(next) + 1);
    char *slash = strrchr(w->at, '/'); /* the link itself goes; an absolute target starts at the root again */
    if (target[0] == '/' || !slash)
        w->at[0] = '\0';
    else
        *slash = '\0';
    return 0;
}

/* One component of rest onto at. Returns an errno; counts links in *links. */
static int step(int fd, walk *w, int *links)
{
    const char *p = w->rest + strspn(w->rest, "/");
    const size_t n = strcspn(p, "/");
    char left[PATH_MAX], target[PATH_MAX];
    memcpy(left, p + n, strlen(p + n) + 1);
    if (n == 0 || (n == 1 && p[0] == '.')) {
        memmove(w->rest, left, strlen(left) + 1);
        return 0;
    }
    if (n == 2 && p[0] == '.' && p[1] == '.') {
        char *slash = strrchr(w->at, '/');
        *(slash ? slash : w->at) = '\0';
        memmove(w->rest, left, strlen(left) + 1);
        return 0;
    }
    const size_t len = strlen(w->at);
    if (len + n + 2 > sizeof w->at)
        return ENAMETOOLONG;
    char *end = w->at + len;
    if (len)
        *end++ = '/';
    memcpy(end, p, n);
    end[n] = '\0';
    const ssize_t got = readlinkat(fd, w->at, target, sizeof target);
    if (got < 0 && errno != EINVAL) /* EINVAL: there, and no link */
        return errno;
    if (got < 0) {
        memmove(w->rest, left, strlen(left) + 1);
        return 0;
    }
    if (got == 0 || got == (ssize_t)sizeof target || ++*links > MAX_LINKS)
        return ELOOP;
    return step_link(w, target, got, left);
}

static int resolve(im_root *root, const char *path, walk *w)
{
    int links = 0, error = 0;
    if (strlen(path) + 1 > sizeof w->rest)
        return ENAMETOOLONG;
    w->at[0] = '\0';
    memcpy(w->rest, path, strlen(path) + 1);
    while (!error && w->rest[strspn(w->rest, "/")])
        error = step(root->fd, w, &links);
    return error;
}

const char *im_root_resolve(im_root *root, const char *path)
{
    walk w;
    const int error = resolve(root, path, &w);
    const char *out = error ? NULL : im_arena_printf(root->arena, "/%s", w.at);
    errno = error ? error : ENOMEM;
    return out;
}

bool im_root_exists(im_root *root, const char *path)
{
    walk w;
    return resolve(root, path, &w) == 0;
}

im_reading im_root_link_name(im_root *root, const char *path)
{
    im_reading r = {.path = im_arena_strdup(root->arena, path)};
    walk w;
    const int error = resolve(root, path, &w);
    if (error) {
        r.why = reason(root, r.path, error);
        return r;
    }
    const char *slash = strrchr(w.at, '/');
    r.text = im_arena_strdup(root->arena, slash ? slash + 1 : w.at);
    r.why = r.text ? NULL : "no memory";
    return r;
}

/* ---- files ------------------------------------------------------------------------ */

static int open_file(im_root *root, const char *path)
{
    walk w;
    const int error = resolve(root, path, &w);
    if (error) {
        errno = error;
        return -1;
    }
    const int fd = openat(root->fd, *w.at ? w.at : ".", O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        const int kind = S_ISDIR(st.st_mode) ? EISDIR : NOT_REGULAR;
        close(fd);
        errno = kind;
        return -1;
    }
    return fd;
}

im_reading im_root_bytes(im_root *root, const char *path, unsigned char *into, size_t max, size_t *len)
{
    im_reading r = {.path = im_arena_strdup(root->arena, path)};
    *len = 0;
    const int fd = open_file(root, path);
    if (fd < 0) {
        r.why = reason(root, r.path, errno);
        return r;
    }
    ssize_t got = 0;
    while (*len < max && (got = read(fd, into + *len, max - *len)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        *len += (size_t)got;
    }
    if (got < 0 && *len == 0)
        r.why = reason(root, r.path, errno);
    else
        r.text = "";
    close(fd);
    return r;
}

static im_reading read_text(im_root *root, const char *path)
{
    unsigned char stack[4096], *bytes = stack;
    size_t len = 0;
    im_reading r = im_root_bytes(root, path, bytes, sizeof stack, &len);
    void *heap = NULL;
    if (!r.why && len == sizeof stack) { /* long: again, all of it */
        const bool is_long = strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/commands/", 10) == 0;
        const size_t max = is_long ? MAX_LONG_FILE : MAX_FILE;
        if (im_alloc(root->ctx, max, 1, &heap) != IM_OK) {
            r.text = NULL;
            r.why = "no memory";
            return r;
        }
        bytes = heap;
        r = im_root_bytes(root, path, bytes, max, &len);
    }
    if (!r.why) {
        size_t from = 0;
        while (from < len && isspace(bytes[from]))
            from++;
        while (len > from && (isspace(bytes[len - 1]) || !bytes[len - 1]))
            len--;
        char *text = im_arena_alloc(root->arena, len - from + 1);
        for (size_t i = from; text && i < len; i++)
            text[i - from] = (bytes[i] >= 32 && bytes[i] < 127) || bytes[i] == '\n' || bytes[i] == '\t' ? (char)bytes[i] : '?';
        r.text = text;
        r.why = text ? NULL : "no memory";
    }
    free(heap);
    return r;
}

static const char *path_of(im_root *root, const char *fmt, va_list ap)
{
    char path[PATH_MAX];
    const int n = vsnprintf(path, sizeof path, fmt, ap);
    return n < 0 || n >= (int)sizeof path ? NULL : im_arena_strdup(root->arena, path);
}

im_reading im_root_read(im_root *root, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *path = path_of(root, fmt, ap);
    va_end(ap);
    return path ? read_text(root, path) : (im_reading){.path = fmt, .why = "the path is too long"};
}

bool im_parse_number(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-');
    const bool hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    if (!isdigit((unsigned char)digits[0]) || (hex && !isxdigit((unsigned char)digits[2])))
        return false;
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, hex ? 16 : 10);
    if (errno || (*end && *end != ':' && !isspace((unsigned char)*end)))
        return false;
    *value = v;
    return true;
}

im_reading im_root_number(im_root *root, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *path = path_of(root, fmt, ap);
    va_end(ap);
    im_reading r = path ? read_text(root, path) : (im_reading){.path = fmt, .why = "the path is too long"};
    if (!r.text)
        return r;
    r.is_number = im_parse_number(r.text, &r.value);
    if (!r.is_number)
        r.why = *r.text ? "is not a number" : "is empty";
    return r;
}

const char *im_text_value(im_arena *a, const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        line += strspn(line, " \t");
        if (strncmp(line, key, n) != 0 || !strchr(" \t=:", line[n]) || !line[n])
            continue;
        const char *v = line + n;
        v += strspn(v, " \t=:");
        size_t len = strcspn(v, "\n");
        while (len && isspace((unsigned char)v[len - 1]))
            len--;
        char *out = im_arena_alloc(a, len + 1);
        if (out)
            memcpy(out, v, len);
        return out;
    }
    return NULL;
}

/* ---- folders ------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_name(im_root *root, im_names *out, size_t *cap, const char *name)
{
    if (out->n == *cap) {
        const size_t more = *cap ? 2 * *cap : 16;
        const char **grown = IM_ARENA_NEW(root->arena, const char *, more);
        if (!grown)
            return;
        if (out->n)
            memcpy(grown, out->item, out->n * sizeof *grown);
        out->item = grown;
        *cap = more;
    }
    const char *copy = im_arena_strdup(root->arena, name);
    if (copy)
        out->item[out->n++] = copy;
}

static bool plain_name(const char *name)
{
    for (const char *p = name; *p; p++)
        if (*p < 33 || *p > 126)
            return false; /* the kernel gives no such name to what is read here */
    return name[0] != '.';
}

im_names im_root_list(im_root *root, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *path = path_of(root, fmt, ap);
    va_end(ap);
    im_names out = {.why = "the path is too long"};
    if (!path)
        return out;
    walk w;
    const int error = resolve(root, path, &w);
    const int fd = error ? -1 : openat(root->fd, *w.at ? w.at : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        out.why = reason(root, path, error ? error : errno);
        if (fd >= 0)
            close(fd);
        return out;
    }
    out.why = NULL;
    size_t cap = 0;
    for (const struct dirent *e; out.n < MAX_NAMES && (e = readdir(dir));)
        if (plain_name(e->d_name))
            add_name(root, &out, &cap, e->d_name);
    closedir(dir);
    if (out.n)
        qsort(out.item, out.n, sizeof *out.item, by_name);
    return out;
}
