/* Fuzz target: rings of operations, and the report over those of three ranks. The input is a header, then pieces of 24 bytes: where in the rest
 * of the file, and 20 bytes to lie there; all else is zero. What is read is told in words, and every index in it is followed. */
#include "comm/ring.h"
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, PIECE = 24 };
static const size_t RING =
    sizeof(im_ring_header) + sizeof(im_ring_group) * IM_RING_GROUPS + sizeof(int32_t) * IM_RING_MEMBERS + sizeof(im_ring_record) * IM_RING_RECORDS;

static void lay_out(const uint8_t *data, size_t size, unsigned char *file)
{
    memset(file, 0, RING);
    memcpy(file, data, sizeof(im_ring_header));
    for (size_t at = sizeof(im_ring_header); at + PIECE <= size; at += PIECE) {
        uint32_t where;
        memcpy(&where, data + at, 4);
        memcpy(file + sizeof(im_ring_header) + where % (RING - sizeof(im_ring_header) - PIECE), data + at + 4, PIECE - 4);
    }
}

static void tell(const im_comm_ring *r)
{
    im_str text = {0};
    for (size_t i = 0; i < r->nrecord && text.len < 10000; i++)
        im_comm_ring_describe(r, &r->record[i], r->header.alive, &text);
    im_str_free(&text);
}

static void report(im_context *ctx, const unsigned char *file)
{
    im_comm_ring *ring = calloc(RANKS, sizeof *ring);
    unsigned char *other = malloc(RING);
    im_comm_rings rings;
    for (int i = 0; i < RANKS; i++) {
        memcpy(other, file, RING);
        im_ring_header *h = (im_ring_header *)(void *)other;
        h->rank = i;
        h->world = RANKS;
        if (i) /* ranks that are not at the same place */
            memmove(other + RING - sizeof(im_ring_record) * IM_RING_RECORDS, other + RING - sizeof(im_ring_record) * (IM_RING_RECORDS - (size_t)i),
                    sizeof(im_ring_record) * (IM_RING_RECORDS - (size_t)i));
        if (im_comm_ring_parse(ctx, "ring", other, RING, &ring[i]) == IM_OK)
            tell(&ring[i]);
        im_error_clear(ctx);
    }
    free(other);
    if (im_comm_rings_make(ctx, ring, RANKS, &rings) != IM_OK)
        abort();
    im_str text = {0};
    im_comm_rings_verdict(&rings, &text);
    im_comm_rings_table(&rings, &text);
    im_str_free(&text);
    im_comm_rings_free(&rings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_comm_ring ring;
    if (size < sizeof(im_ring_header) || im_context_create(&ctx) != IM_OK)
        return 0;
    unsigned char *file = malloc(RING);
    lay_out(data, size, file);
    if (im_comm_ring_parse(ctx, "ring", file, RING, &ring) == IM_OK) {
        tell(&ring);
        im_comm_ring_free(&ring);
        report(ctx, file);
    } else if (size < RING && im_comm_ring_parse(ctx, "ring", data, size, &ring) == IM_OK) {
        abort(); /* a ring is as long as it is */
    }
    free(file);
    im_context_destroy(ctx);
    return 0;
}
