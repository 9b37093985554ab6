#include "base/stream_hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { IM_HASH_PIECE = 1 << 20 };

static im_status hash_fd(im_context *ctx, const char *path, int fd, XXH3_state_t *state, unsigned char *piece, uint64_t *nbytes)
{
    for (;;) {
        ssize_t got = read(fd, piece, IM_HASH_PIECE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return im_fail_errno(ctx, "%s: read at byte %llu", path, (unsigned long long)*nbytes);
        if (!got)
            return IM_OK;
        XXH3_64bits_update(state, piece, (size_t)got);
        *nbytes += (uint64_t)got;
    }
}

im_status im_file_hash(im_context *ctx, const char *path, uint64_t *hash, uint64_t *nbytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: open", path);
    im_status status = IM_OK;
    uint64_t total = 0;
    XXH3_state_t *state = XXH3_createState();
    unsigned char *piece = malloc(IM_HASH_PIECE);
    if (!state || !piece || XXH3_64bits_reset(state) != XXH_OK) {
        status = im_fail(ctx, IM_ERR_NOMEM, "%s: no memory to hash it", path);
        goto free_state;
    }
    IM_TRY_GOTO(hash_fd(ctx, path, fd, state, piece, &total), free_state);
    *hash = XXH3_64bits_digest(state);
    if (nbytes)
        *nbytes = total;
free_state:
    free(piece);
    (void)XXH3_freeState(state);
    close(fd);
    return status;
}
