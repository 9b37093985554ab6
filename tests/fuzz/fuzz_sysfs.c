/* A machine's files with any bytes in them. Each line of the input is PATH, a tab, and what stands there: text, ">TARGET" a link, "|" a pipe, "/" a
 * directory. They are written below a root directory; beside it lies a file that no link may reach. The status must come out, as JSON that is JSON. */
#include "base/json.h"
#include "fabric/status.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINES = 64, MAX_PATH = 160 };
static const char SECRET[] = "this stands outside";

/* Only plain relative paths: what is written must stay inside, or the target would be testing itself. */
static bool tame(const char *path)
{
    if (!*path || *path == '/' || strlen(path) >= MAX_PATH)
        return false;
    for (const char *p = path; *p; p += strspn(p, "/")) {
        const size_t n = strcspn(p, "/");
        if (n == 0 || n > 64 || (n <= 2 && strncmp(p, "..", n) == 0))
            return false;
        p += n;
    }
    return true;
}

/* Makes the directories above; each must be one, not a link. False: something else stands there. */
static bool make_above(int root, char *path)
{
    struct stat st;
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const bool good = mkdirat(root, path, 0755) == 0 || (fstatat(root, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode));
        *slash = '/';
        if (!good)
            return false;
    }
    return true;
}

static void put(int root, char *path, const char *what, size_t n)
{
    char target[256];
    if (!tame(path) || !make_above(root, path))
        return;
    if (n && what[0] == '>') {
        snprintf(target, sizeof target, "%.*s", (int)(n - 1 < 250 ? n - 1 : 250), what + 1);
        if (symlinkat(target, root, path) != 0)
            return;
    } else if (n && what[0] == '|') {
        if (mkfifoat(root, path, 0600) != 0)
            return;
    } else if (n && what[0] == '/') {
        if (mkdirat(root, path, 0755) != 0)
            return;
    } else {
        const int fd = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
        if (fd < 0)
            return;
        if (write(fd, what, n) < 0)
            abort();
        close(fd);
    }
}

static void put_all(int root, const char *data, size_t size)
{
    int lines = 0;
    for (size_t at = 0; at < size && lines < MAX_LINES; lines++) {
        const char *nl = memchr(data + at, '\n', size - at);
        const size_t n = nl ? (size_t)(nl - data) - at : size - at;
        const char *tab = memchr(data + at, '\t', n);
        char path[MAX_PATH + 1];
        const size_t len = tab ? (size_t)(tab - data) - at : 0;
        if (tab && len < MAX_PATH) {
            memcpy(path, data + at, len);
            path[len] = '\0';
            put(root, path, tab + 1, n - len - 1);
        }
        at += n + 1;
    }
}

static void look(im_context *ctx, im_arena *a, const char *dir)
{
    im_root *root;
    im_machine *m;
    im_json *doc;
    im_str text = {0}, json = {0};
    const im_look how = {.columns = 80};
    if (im_root_open(ctx, a, dir, &root) != IM_OK || im_machine_read(ctx, root, &m) != IM_OK)
        abort();
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++)
            im_port_refresh(root, &m->rdma[d].port[p]);
    if (im_status_text(ctx, a, m, &how, &text) != IM_OK || im_status_json(ctx, a, m, &json) != IM_OK)
        abort();
    if (im_json_parse(ctx, "json", im_str_text(&json), json.len, &doc) != IM_OK)
        abort();
    if (strstr(im_str_text(&text), SECRET) || strstr(im_str_text(&json), SECRET))
        abort();
    im_json_free(doc);
    im_str_free(&text);
    im_str_free(&json);
    im_root_close(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char memory[] = "/dev/shm/imece-fuzz-XXXXXX", disk[] = "/tmp/imece-fuzz-XXXXXX", dir[64], secret[64];
    char *top = mkdtemp(memory); /* files are quicker there */
    top = top ? top : mkdtemp(disk);
    im_context *ctx;
    im_arena *a;
    if (!top || im_context_create(&ctx) != IM_OK)
        abort();
    snprintf(dir, sizeof dir, "%s/root", top);
    snprintf(secret, sizeof secret, "%s/secret", top);
    const int out = open(secret, O_WRONLY | O_CREAT, 0644);
    if (out < 0 || write(out, SECRET, sizeof SECRET - 1) < 0 || mkdir(dir, 0755) != 0 || im_arena_create(ctx, &a) != IM_OK)
        abort();
    close(out);
    const int root = open(dir, O_RDONLY | O_DIRECTORY);
    put_all(root, (const char *)data, size);
    close(root);
    look(ctx, a, dir);
    im_arena_destroy(a);
    if (im_remove_tree(ctx, top) != IM_OK)
        abort();
    im_context_destroy(ctx);
    return 0;
}
