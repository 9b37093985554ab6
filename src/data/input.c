/* Bytes of an input. A packed file is told by its first bytes (no text begins with them), in a pipe too. */
#include "data/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { RAW = 1 << 18 };
typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct im_input {
    im_context *ctx;
    char *name;
    int fd;
    bool seekable, ended; /* ended: the file has no more bytes */
    const atomic_bool *quit;
    int64_t taken;
    packing kind;
    unsigned char *raw; /* bytes of the file that are read and not yet used */
    size_t at, have;
    z_stream z;
    bool z_open;
    ZSTD_DStream *zstd;
    bool whole; /* of the packed member or frame that was begun, all has come */
};

/* ---- the file itself --------------------------------------------------------------------------------- */

/* A wait for a pipe or a terminal that a signal can end. */
static im_status wait_for_bytes(im_input *in)
{
    while (!in->seekable && in->quit) {
        struct pollfd p = {.fd = in->fd, .events = POLLIN};
        int r = poll(&p, 1, 100);
        if (*in->quit)
            return im_fail(in->ctx, IM_ERR_ABORTED, "%s: stopped", in->name);
        if (r > 0 || (r < 0 && errno != EINTR))
            break;
    }
    return IM_OK;
}

static im_status read_file(im_input *in, void *to, size_t n, size_t *got)
{
    *got = 0;
    while (!in->ended) {
        IM_TRY(wait_for_bytes(in));
        ssize_t k = read(in->fd, to, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return im_fail_errno(in->ctx, "%s", in->name);
        in->ended = k == 0;
        in->taken += k;
        *got = (size_t)k;
        break;
    }
    return IM_OK;
}

/* More raw bytes, behind those that are left. */
static im_status fill(im_input *in)
{
    size_t got;
    memmove(in->raw, in->raw + in->at, in->have - in->at);
    in->have -= in->at;
    in->at = 0;
    if (in->have == RAW)
        return IM_OK;
    IM_TRY(read_file(in, in->raw + in->have, RAW - in->have, &got));
    in->have += got;
    return IM_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static bool named(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

static im_status find_kind(im_input *in)
{
    while (in->have < 4 && !in->ended)
        IM_TRY(fill(in));
    const unsigned char *p = in->raw;
    if (in->have >= 2 && p[0] == 0x1f && p[1] == 0x8b)
        in->kind = GZIP;
    else if (in->have >= 4 && p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd)
        in->kind = ZSTD;
    else if (in->have >= 4 && (p[0] & 0xf0) == 0x50 && p[1] == 0x2a && p[2] == 0x4d && p[3] == 0x18) /* a frame to be skipped comes first */
        in->kind = ZSTD;
    else if (named(in->name, ".gz") || named(in->name, ".zst"))
        return im_fail(in->ctx, IM_ERR_FORMAT, "%s: its name says %s, its first bytes do not: %s", in->name,
                       named(in->name, ".gz") ? "gzip" : "Zstandard", in->have ? "give it another name if it is text" : "the file is empty");
    return IM_OK;
}

static im_status begin_unpacking(im_input *in)
{
    if (in->kind == GZIP) {
        if (inflateInit2(&in->z, 15 + 16) != Z_OK)
            return im_fail(in->ctx, IM_ERR_NOMEM, "%s: no memory to unpack it", in->name);
        in->z_open = true;
    }
    if (in->kind == ZSTD && (!(in->zstd = ZSTD_createDStream()) || ZSTD_isError(ZSTD_initDStream(in->zstd))))
        return im_fail(in->ctx, IM_ERR_NOMEM, "%s: no memory to unpack it", in->name);
    in->whole = false;
    return IM_OK;
}

static im_status start(im_input *in, const char *path)
{
    struct stat st;
    bool is_stdin = strcmp(path, "-") == 0;
    in->name = strdup(is_stdin ? "standard input" : path);
    if (!in->name)
        return im_fail(in->ctx, IM_ERR_NOMEM, "no memory for a name");
    in->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0 || fstat(in->fd, &st) != 0)
        return im_fail_errno(in->ctx, "%s", in->name);
    if (S_ISDIR(st.st_mode))
        return im_fail(in->ctx, IM_ERR_ARG, "%s: a directory", in->name);
    in->seekable = S_ISREG(st.st_mode);
    IM_TRY(im_alloc(in->ctx, RAW, 1, (void **)&in->raw));
    IM_TRY(find_kind(in));
    return begin_unpacking(in);
}

im_status im_input_open(im_context *ctx, const char *path, const atomic_bool *quit, im_input **out)
{
    im_input *in;
    IM_TRY(im_alloc(ctx, 1, sizeof *in, (void **)&in));
    in->ctx = ctx;
    in->fd = -1;
    in->quit = quit;
    im_status status = start(in, path);
    if (status == IM_OK)
        *out = in;
    else
        im_input_close(in);
    return status;
}

void im_input_close(im_input *in)
{
    if (!in)
        return;
    if (in->z_open)
        inflateEnd(&in->z);
    ZSTD_freeDStream(in->zstd);
    if (in->fd > STDIN_FILENO)
        close(in->fd);
    free(in->raw);
    free(in->name);
    free(in);
}

int64_t im_input_taken(const im_input *in)
{
    return in->taken;
}

const char *im_input_name(const im_input *in)
{
    return in->name;
}

/* ---- unpacking ------------------------------------------------------------------------------------------ */

static im_status fail_packed(im_input *in, const char *what)
{
    return im_fail(in->ctx, IM_ERR_FORMAT, "%s: around byte %lld: %s", in->name, (long long)(in->taken - (int64_t)(in->have - in->at)), what);
}

static im_status fail_early(im_input *in)
{
    return im_fail(in->ctx, IM_ERR_FORMAT, "%s: ends early, at byte %lld, in the middle of its %s data: the file is not whole", in->name,
                   (long long)in->taken, in->kind == GZIP ? "gzip" : "Zstandard");
}

static im_status inflate_some(im_input *in, void *to, size_t n, size_t *got)
{
    in->z.next_in = in->raw + in->at;
    in->z.avail_in = (uInt)(in->have - in->at);
    in->z.next_out = to;
    in->z.avail_out = (uInt)n;
    int r = inflate(&in->z, Z_NO_FLUSH);
    in->at = in->have - in->z.avail_in;
    *got = n - in->z.avail_out;
    if (r == Z_STREAM_END) {
        in->whole = true;
        return IM_OK;
    }
    return r == Z_OK || r == Z_BUF_ERROR ? IM_OK : fail_packed(in, in->z.msg ? in->z.msg : "damaged gzip data");
}

static im_status decompress_some(im_input *in, void *to, size_t n, size_t *got)
{
    ZSTD_inBuffer from = {.src = in->raw + in->at, .size = in->have - in->at};
    ZSTD_outBuffer into = {.dst = to, .size = n};
    size_t r = ZSTD_decompressStream(in->zstd, &into, &from);
    in->at += from.pos;
    *got = into.pos;
    if (ZSTD_isError(r)) {
        const char *why = ZSTD_getErrorName(r);
        return strstr(why, "memory") ? fail_packed(in, "it was packed with a window above 128 MiB (zstd --long); unpack it first: zstd -dc --long=31")
                                     : fail_packed(in, why);
    }
    in->whole = r == 0;
    return IM_OK;
}

/* Behind a gzip member: another one, or zeros (the padding of tapes). */
static im_status begin_member(im_input *in)
{
    while (in->at < in->have && in->raw[in->at] == 0)
        in->at++;
    if (in->at == in->have)
        return IM_OK;
    in->whole = false;
    return inflateReset(&in->z) == Z_OK ? IM_OK : fail_packed(in, "it cannot be unpacked");
}

static im_status unpack(im_input *in, void *to, size_t n, size_t *got)
{
    for (*got = 0;;) {
        if (in->at == in->have && !in->ended)
            IM_TRY(fill(in));
        if (in->whole && in->kind == GZIP)
            IM_TRY(begin_member(in));
        if (in->whole && in->at == in->have) {
            if (in->ended)
                return IM_OK;
            continue;
        }
        size_t before = in->at; /* also without new bytes: some may still lie inside the unpacker */
        IM_TRY(in->kind == GZIP ? inflate_some(in, to, n, got) : decompress_some(in, to, n, got));
        if (*got)
            return IM_OK;
        if (in->whole || in->at > before)
            continue;
        if (in->at < in->have)
            return fail_packed(in, "damaged data");
        if (in->ended)
            return fail_early(in);
    }
}

im_status im_input_read(im_input *in, void *to, size_t n, size_t *got)
{
    if (in->kind != PLAIN)
        return unpack(in, to, n, got);
    if (in->at == in->have)
        return read_file(in, to, n, got);
    *got = n < in->have - in->at ? n : in->have - in->at;
    memcpy(to, in->raw + in->at, *got);
    in->at += *got;
    return IM_OK;
}

im_status im_input_skip(im_input *in, int64_t offset)
{
    if (in->kind == PLAIN && in->seekable) {
        if (lseek(in->fd, offset, SEEK_SET) < 0)
            return im_fail_errno(in->ctx, "%s", in->name);
        in->at = in->have = 0;
        in->ended = false;
        in->taken = offset;
        return IM_OK;
    }
    unsigned char *drop;
    IM_TRY(im_alloc(in->ctx, RAW, 1, (void **)&drop));
    im_status status = IM_OK;
    while (status == IM_OK && offset > 0) {
        size_t got = 0;
        status = im_input_read(in, drop, offset < RAW ? (size_t)offset : RAW, &got);
        if (status == IM_OK && !got)
            status = im_fail(in->ctx, IM_ERR_FORMAT, "%s: shorter than it was when its build was interrupted", in->name);
        offset -= (int64_t)got;
    }
    free(drop);
    return status;
}
