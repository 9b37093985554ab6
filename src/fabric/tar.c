/* Writing and reading tar. Blocks of 512 bytes: a header, then the file's bytes filled up with zeros; two blocks of zeros end it. */
#include "fabric/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 512, NAME = 100, PREFIX = 155, LONGEST = 4096 };

typedef struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6], version[2], user[32], group[32], major[8],
        minor[8], prefix[155], fill[12];
} header;
_Static_assert(sizeof(header) == BLOCK, "a tar header is one block");

struct im_tar {
    im_context *ctx;
    gzFile gz;
};

/* ---- writing ------------------------------------------------------------------------------------- */

im_status im_tar_create(im_context *ctx, int fd, im_tar **out)
{
    void *p = NULL;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_tar), &p));
    im_tar *t = p;
    *t = (im_tar){.ctx = ctx, .gz = gzdopen(fd, "wb6")};
    if (!t->gz) {
        free(t);
        return im_fail(ctx, IM_ERR_IO, "the archive cannot be opened");
    }
    *out = t;
    return IM_OK;
}

static im_status put(im_tar *t, const void *bytes, size_t n)
{
    if (n && gzwrite(t->gz, bytes, (unsigned)n) != (int)n)
        return im_fail_errno(t->ctx, "the archive cannot be written");
    return IM_OK;
}

static im_status put_padded(im_tar *t, const void *bytes, size_t n)
{
    static const char zeros[BLOCK];
    IM_TRY(put(t, bytes, n));
    return put(t, zeros, (BLOCK - n % BLOCK) % BLOCK);
}

static void write_size(header *h, size_t n)
{
    for (size_t i = sizeof h->size - 1; i-- > 0; n >>= 3)
        h->size[i] = (char)('0' + (n & 7));
}

static void seal(header *h)
{
    unsigned sum = 0;
    memset(h->checksum, ' ', sizeof h->checksum);
    for (size_t i = 0; i < sizeof *h; i++)
        sum += ((const unsigned char *)h)[i];
    snprintf(h->checksum, sizeof h->checksum, "%06o", sum & 0777777);
}

/* A long name or link target goes before, as GNU tar has it. */
static im_status put_long(im_tar *t, char type, const char *text)
{
    header h = {.name = "././@LongLink", .type = type, .magic = "ustar", .version = "00", .mode = "0000644"};
    const size_t n = strlen(text) + 1;
    write_size(&h, n);
    seal(&h);
    IM_TRY(put(t, &h, sizeof h));
    return put_padded(t, text, n);
}

static im_status put_entry(im_tar *t, const char *path, char type, const char *target, const void *data, size_t len)
{
    header h = {.type = type, .magic = "ustar", .version = {'0', '0'}, .mode = "0000644", .uid = "0000000", .gid = "0000000", .mtime = "00000000000"};
    path += strspn(path, "/");
    if (strlen(path) >= LONGEST || (target && strlen(target) >= LONGEST) || len > IM_TAR_FILE)
        return im_fail(t->ctx, IM_ERR_ARG, "%s: too long for an archive", path);
    if (strlen(path) >= NAME)
        IM_TRY(put_long(t, 'L', path));
    if (target && strlen(target) >= NAME)
        IM_TRY(put_long(t, 'K', target));
    snprintf(h.name, sizeof h.name, "%.99s", path);
    snprintf(h.link, sizeof h.link, "%.99s", target ? target : "");
    write_size(&h, len);
    if (type == '5')
        memcpy(h.mode, "0000755", 8);
    seal(&h);
    IM_TRY(put(t, &h, sizeof h));
    return put_padded(t, data, len);
}

im_status im_tar_add(im_tar *t, const char *path, const char *target, const void *data, size_t len)
{
    return put_entry(t, path, target ? '2' : '0', target, data, target ? 0 : len);
}

im_status im_tar_add_dir(im_tar *t, const char *path)
{
    return put_entry(t, path, '5', NULL, NULL, 0);
}

im_status im_tar_finish(im_tar *t)
{
    static const char zeros[2 * BLOCK];
    if (!t)
        return IM_OK;
    im_context *ctx = t->ctx;
    im_status status = put(t, zeros, sizeof zeros);
    if (gzclose(t->gz) != Z_OK && status == IM_OK)
        status = im_fail(ctx, IM_ERR_IO, "the archive cannot be ended: no space left?");
    free(t);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------- */

typedef struct reader {
    im_context *ctx;
    const char *file;
    gzFile gz;
    int into;
    uint64_t at; /* bytes of the archive that were read */
    uint64_t all;
    size_t entries;
    char name[LONGEST], link[LONGEST]; /* of a long header, for the next entry; "" */
} reader;

static im_status bad(reader *r, const char *why)
{
    return im_fail(r->ctx, IM_ERR_FORMAT, "%s: byte %llu of the archive: %s", r->file, (unsigned long long)r->at, why);
}

/* *got false: the end. */
static im_status next_block(reader *r, void *block, bool *got)
{
    const int n = gzread(r->gz, block, BLOCK);
    *got = n == BLOCK;
    if (n < 0)
        return bad(r, "the compressed data is damaged");
    if (n > 0 && n < BLOCK)
        return bad(r, "it ends within a block");
    r->at += (uint64_t)n;
    return IM_OK;
}

static im_status read_bytes(reader *r, size_t n, char **out)
{
    void *p = NULL;
    IM_TRY(im_alloc(r->ctx, n + BLOCK, 1, &p));
    *out = p;
    const size_t padded = (n + BLOCK - 1) / BLOCK * BLOCK;
    if (padded && gzread(r->gz, *out, (unsigned)padded) != (int)padded) {
        free(*out);
        return bad(r, "it ends within a file");
    }
    r->at += padded;
    memset(*out + n, 0, BLOCK);
    return IM_OK;
}

static bool octal(const char *text, size_t n, uint64_t *out)
{
    *out = 0;
    size_t i = 0;
    while (i < n && text[i] == ' ')
        i++;
    for (; i < n && text[i] >= '0' && text[i] <= '7'; i++)
        *out = *out << 3 | (uint64_t)(text[i] - '0');
    return i == n || text[i] == ' ' || text[i] == '\0';
}

static bool checksum_holds(const header *h)
{
    uint64_t told;
    unsigned sum = 0;
    header copy = *h;
    memset(copy.checksum, ' ', sizeof copy.checksum);
    for (size_t i = 0; i < sizeof copy; i++)
        sum += ((const unsigned char *)&copy)[i];
    return octal(h->checksum, sizeof h->checksum, &told) && told == sum;
}

/* The directory that holds `path`, made where it is missing, and never through a link; *last: the name in it. */
static im_status open_parent(reader *r, const char *path, int *dir, const char **last)
{
    char part[256];
    int at = dup(r->into);
    for (;;) {
        path += strspn(path, "/");
        const size_t n = strcspn(path, "/");
        const char *rest = path + n + strspn(path + n, "/");
        if (at < 0)
            return im_fail_errno(r->ctx, "%s: a directory cannot be made", r->file);
        if (n >= sizeof part || (n == 2 && strncmp(path, "..", 2) == 0)) {
            close(at);
            return bad(r, n == 2 ? "a name with .." : "a name that is too long");
        }
        if (!*rest) {
            *dir = at;
            *last = path;
            return IM_OK;
        }
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (strcmp(part, ".") != 0) {
            mkdirat(at, part, 0700);
            const int next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            const int why = errno;
            close(at);
            errno = why;
            at = next;
            if (at < 0)
                return bad(r, "a name goes through something that is no directory");
        }
        path = rest;
    }
}

static im_status make(reader *r, const header *h, const char *name, const char *link, const char *data, size_t len)
{
    char last[256];
    const char *end = "";
    int dir = -1;
    IM_TRY(open_parent(r, name, &dir, &end));
    snprintf(last, sizeof last, "%.*s", (int)strcspn(end, "/"), end);
    im_status status = IM_OK;
    if (!*last || strcmp(last, ".") == 0) {
        ;
    } else if (h->type == '5') {
        mkdirat(dir, last, 0700);
    } else if (h->type == '2') {
        if (symlinkat(link, dir, last) != 0 && errno != EEXIST)
            status = im_fail_errno(r->ctx, "%s: %s cannot be made", r->file, name);
    } else if (h->type == '0' || h->type == '\0') {
        const int fd = openat(dir, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            status = im_fail_errno(r->ctx, "%s: %s cannot be made", r->file, name);
        if (fd >= 0 && len && write(fd, data, len) != (ssize_t)len)
            status = im_fail_errno(r->ctx, "%s: %s cannot be written", r->file, name);
        if (fd >= 0)
            close(fd);
    } /* devices, pipes and hard links are left out */
    close(dir);
    return status;
}

/* "27 path=a/b\n" records of a pax header. */
static void read_pax(reader *r, const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        char *end;
        const unsigned long n = strtoul(text + at, &end, 10);
        if (n < 5 || n > len - at || *end != ' ')
            return;
        const char *key = end + 1, *stop = text + at + n - 1;
        char *into = strncmp(key, "path=", 5) == 0 ? r->name : strncmp(key, "linkpath=", 9) == 0 ? r->link : NULL;
        const char *value = key + (into == r->link ? 9 : 5);
        if (into && value <= stop && stop - value < LONGEST)
            snprintf(into, LONGEST, "%.*s", (int)(stop - value), value);
        at += n;
    }
}

static im_status one_entry(reader *r, const header *h)
{
    char name[LONGEST], link[LONGEST], *data = NULL;
    uint64_t size;
    if (!checksum_holds(h))
        return bad(r, "no tar header stands here (its checksum is wrong)");
    if (!octal(h->size, sizeof h->size, &size) || size > IM_TAR_FILE)
        return bad(r, "a file that is larger than any of a bundle");
    if ((r->all += size) > IM_TAR_ALL || ++r->entries > IM_TAR_ENTRIES)
        return bad(r, "more than a bundle holds");
    IM_TRY(read_bytes(r, size, &data));
    im_status status = IM_OK;
    if (h->type == 'L' || h->type == 'K') {
        snprintf(h->type == 'L' ? r->name : r->link, LONGEST, "%.*s", LONGEST - 1, data);
    } else if (h->type == 'x') {
        read_pax(r, data, size);
    } else if (h->type != 'g') {
        if (*r->name)
            snprintf(name, sizeof name, "%s", r->name);
        else if (strncmp(h->magic, "ustar", 6) == 0 && *h->prefix)
            snprintf(name, sizeof name, "%.*s/%.*s", PREFIX, h->prefix, NAME, h->name);
        else
            snprintf(name, sizeof name, "%.*s", NAME, h->name);
        if (*r->link)
            snprintf(link, sizeof link, "%s", r->link);
        else
            snprintf(link, sizeof link, "%.*s", NAME, h->link);
        *r->name = *r->link = '\0';
        status = make(r, h, name, link, data, size);
    }
    free(data);
    return status;
}

static im_status read_all(reader *r)
{
    header h;
    bool got = true;
    for (;;) {
        IM_TRY(next_block(r, &h, &got));
        static const header nothing;
        if (!got || memcmp(&h, &nothing, sizeof h) == 0)
            return r->entries ? IM_OK : bad(r, "nothing is in it");
        IM_TRY(one_entry(r, &h));
    }
}

im_status im_tar_extract(im_context *ctx, const char *file, const char *into)
{
    void *p = NULL;
    IM_TRY(im_alloc(ctx, 1, sizeof(reader), &p));
    reader *r = p;
    *r = (reader){.ctx = ctx, .file = file, .into = -1};
    im_status status = IM_OK;
    r->gz = gzopen(file, "rb");
    if (!r->gz)
        status = im_fail_errno(ctx, "%s: cannot be opened", file);
    if (status == IM_OK && (r->into = open(into, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        status = im_fail_errno(ctx, "%s: cannot be opened", into);
    if (status == IM_OK)
        status = read_all(r);
    if (r->into >= 0)
        close(r->into);
    if (r->gz)
        gzclose(r->gz);
    free(r);
    return status;
}
