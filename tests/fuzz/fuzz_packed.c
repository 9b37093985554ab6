/* Fuzz target: an input of a corpus that may be gzip or Zstandard. It ends, with all its bytes or an error, and the same ones in any pieces. */
#include "data/input.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 }; /* bytes of text: a small file may hold gigabytes */

static im_status read_all(const char *path, size_t piece, size_t *n, uint64_t *hash)
{
    im_context *ctx;
    im_input *in;
    static unsigned char buf[1 << 16];
    *n = 0;
    *hash = 0;
    if (im_context_create(&ctx) != IM_OK)
        abort();
    im_status status = im_input_open(ctx, path, NULL, &in);
    if (status == IM_OK) {
        for (size_t got = 1; status == IM_OK && got && *n < MOST;) {
            size_t want = piece < MOST - *n ? piece : MOST - *n;
            status = im_input_read(in, buf, want, &got);
            if (status == IM_OK) {
                if (got > want)
                    abort();
                for (size_t i = 0; i < got; i++)
                    *hash = (*hash ^ buf[i]) * 0x100000001b3u;
                *n += got;
            }
        }
        im_input_close(in);
    }
    if (status != IM_OK && !*im_error_text(ctx))
        abort();
    im_context_destroy(ctx);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    size_t n[2];
    uint64_t hash[2];
    int fd = memfd_create("x", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    im_status a = read_all(path, 1 << 16, &n[0], &hash[0]), b = read_all(path, 61, &n[1], &hash[1]);
    if (a == IM_OK && b == IM_OK && (n[0] != n[1] || hash[0] != hash[1]))
        abort();
    if (a != b && n[0] < MOST && n[1] < MOST)
        abort();
    close(fd);
    return 0;
}
