/* Documents in rows of seq_len: each in a row of its own, or packed.
 *
 * Packed: a document goes to the fullest of the open rows that has room for it, else to a new row (best fit); when too many are open the
 * fullest is closed. One pass in the order of the file, so a row has neighbours, and memory is that of the pieces. Of documents that are
 * short beside a row, all but a few percent of the room is used.
 */
#include "data/feed_parts.h"

#include <stdlib.h>

enum { OPEN = 64 };

struct im_rows_builder {
    im_context *ctx;
    im_rows_config cfg;
    im_rows rows;
    size_t piece_cap, row_cap;
    struct {
        int32_t row, tail;
        int64_t room;
    } open[OPEN];
    int nopen;
    int64_t documents, too_long, longest, longest_number;
    const char *longest_name;
};

im_status im_rows_begin(im_context *ctx, const im_rows_config *cfg, im_rows_builder **out)
{
    im_rows_builder *b;
    IM_TRY(im_alloc(ctx, 1, sizeof *b, (void **)&b));
    b->ctx = ctx;
    b->cfg = *cfg;
    *out = b;
    return IM_OK;
}

void im_rows_free(im_rows *r)
{
    free(r->piece);
    free(r->head);
    *r = (im_rows){0};
}

void im_rows_abandon(im_rows_builder *b)
{
    if (!b)
        return;
    im_rows_free(&b->rows);
    free(b);
}

static im_status grow(im_context *ctx, void **array, size_t *cap, size_t size, int64_t n)
{
    if ((size_t)n < *cap)
        return IM_OK;
    if (n >= INT32_MAX)
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "more than 2^31-1 documents in rows of their own; --pack stream has no such limit");
    size_t more = *cap ? 2 * *cap : 1024;
    void *p = realloc(*array, more * size);
    if (!p)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the rows of %lld documents", (long long)n);
    *array = p;
    *cap = more;
    return IM_OK;
}

static im_status new_row(im_rows_builder *b, int32_t piece)
{
    im_rows *r = &b->rows;
    if (b->nopen == OPEN) {
        int fullest = 0;
        for (int i = 1; i < OPEN; i++)
            if (b->open[i].room < b->open[fullest].room)
                fullest = i;
        b->open[fullest] = b->open[--b->nopen];
    }
    IM_TRY(grow(b->ctx, (void **)&r->head, &b->row_cap, sizeof *r->head, r->n));
    r->head[r->n] = piece;
    b->open[b->nopen].row = (int32_t)r->n++;
    b->open[b->nopen].tail = piece;
    b->open[b->nopen].room = b->cfg.seq_len - (r->piece[piece].n - 1);
    if (b->open[b->nopen].room > 0)
        b->nopen++;
    return IM_OK;
}

static im_status place(im_rows_builder *b, int32_t piece)
{
    int64_t need = b->rows.piece[piece].n - 1;
    int best = -1;
    for (int i = 0; i < b->nopen; i++)
        if (b->open[i].room >= need &&
            (best < 0 || b->open[i].room < b->open[best].room || (b->open[i].room == b->open[best].room && b->open[i].row < b->open[best].row)))
            best = i;
    if (best < 0)
        return new_row(b, piece);
    b->rows.piece[b->open[best].tail].next = piece;
    b->open[best].tail = piece;
    b->open[best].room -= need;
    if (b->open[best].room == 0)
        b->open[best] = b->open[--b->nopen];
    return IM_OK;
}

static im_status add_piece(im_rows_builder *b, int64_t first, int64_t n)
{
    im_rows *r = &b->rows;
    IM_TRY(grow(b->ctx, (void **)&r->piece, &b->piece_cap, sizeof *r->piece, r->npiece));
    int32_t at = (int32_t)r->npiece++;
    r->piece[at] = (im_piece){.first = first, .n = (int32_t)n, .next = -1};
    if (b->cfg.pack)
        return place(b, at);
    r->n = r->npiece;
    return IM_OK;
}

im_status im_rows_add(im_rows_builder *b, int64_t first, int64_t n, const char *name, int64_t number)
{
    const int64_t most = b->cfg.seq_len + 1; /* the last token is only a target */
    b->documents++;
    if (n < 2)
        return IM_OK;
    if (n <= most)
        return add_piece(b, first, n);
    b->too_long++;
    if (n > b->longest) {
        b->longest = n;
        b->longest_name = name;
        b->longest_number = number;
    }
    switch (b->cfg.too_long) {
    case IM_LONG_CUT: return add_piece(b, first, most);
    case IM_LONG_SPLIT:
        for (; n > 1; first += most - 1, n -= most - 1)
            IM_TRY(add_piece(b, first, n < most ? n : most));
        return IM_OK;
    case IM_LONG_SKIP:
    case IM_LONG_REFUSE: return IM_OK; /* the end tells how many there were */
    }
    return IM_OK;
}

im_status im_rows_end(im_rows_builder *b, im_rows *out)
{
    im_status status = IM_OK;
    if (b->too_long && b->cfg.too_long == IM_LONG_REFUSE)
        status =
            im_fail(b->ctx, IM_ERR_ARG,
                    "%lld of %lld documents are longer than seq-len %lld and one target; the longest, document %lld of %s, has %lld tokens: seq-len "
                    "%lld, or --long cut, split or skip",
                    (long long)b->too_long, (long long)b->documents, (long long)b->cfg.seq_len, (long long)b->longest_number, b->longest_name,
                    (long long)b->longest, (long long)b->longest - 1);
    if (status == IM_OK) {
        *out = b->rows;
        b->rows = (im_rows){0};
    }
    im_rows_abandon(b);
    return status;
}
