/* link: the waits between queues, derived from which bytes each op reads and writes.
 *
 * A queue is in order, so only accesses of other queues matter: a read waits for the last write of its bytes; a write waits for
 * the last write and for the last read of each queue. Of several waits for one queue the latest stands for all, and a wait that
 * the own queue has made already is left out.
 */
#include "plan/values.h"

static void need(int32_t *latest, int32_t op, unsigned queue, unsigned own)
{
    if (op >= 0 && queue != own && op > latest[queue])
        latest[queue] = op;
}

static im_status touch(im_context *ctx, const im_program *p, im_span_map *arenas, uint32_t i, int o, int32_t *latest)
{
    const im_bound *x = &p->bound[i];
    unsigned own = x->op->queue;
    const im_buffer *b = &x->buf[o];
    size_t value_at = b->offset + b->nbytes - x->hi[o]; /* buf starts at base, ends at hi */
    size_t first, end;
    if (!im_span_map_cover(&arenas[b->arena], value_at + x->lo[o], value_at + x->hi[o], &first, &end))
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to link a program");
    bool writes = x->op->use[o].access != IM_READ;
    for (size_t k = first; k < end; k++) {
        im_span *s = &arenas[b->arena].span[k];
        if (s->write >= 0)
            need(latest, s->write, p->bound[s->write].op->queue, own);
        for (unsigned q = 0; writes && q < IM_QUEUE_MAX; q++)
            need(latest, s->read[q], q, own);
    }
    return IM_OK;
}

static void record(const im_program *p, im_span_map *arenas, uint32_t i, int o)
{
    const im_bound *x = &p->bound[i];
    const im_buffer *b = &x->buf[o];
    size_t value_at = b->offset + b->nbytes - x->hi[o], first, end;
    if (!im_span_map_cover(&arenas[b->arena], value_at + x->lo[o], value_at + x->hi[o], &first, &end))
        return; /* cannot fail: touch covered these bytes */
    for (size_t k = first; k < end; k++) {
        im_span *s = &arenas[b->arena].span[k];
        if (x->op->use[o].access == IM_READ) {
            s->read[x->op->queue] = (int32_t)i;
            continue;
        }
        s->write = (int32_t)i;
        for (unsigned q = 0; q < IM_QUEUE_MAX; q++)
            s->read[q] = -1;
    }
}

im_status im_program_link(im_context *ctx, im_program *p)
{
    im_span_map arenas[IM_CLASS_COUNT] = {{0}};
    int32_t waited[IM_QUEUE_MAX][IM_QUEUE_MAX]; /* [own][other]: the latest op of other that own has waited for */
    im_status status = IM_OK;
    for (int a = 0; a < IM_QUEUE_MAX; a++)
        for (int b = 0; b < IM_QUEUE_MAX; b++)
            waited[a][b] = -1;
    for (uint32_t i = 0; i < p->nbound; i++) {
        im_bound *x = &p->bound[i];
        int32_t latest[IM_QUEUE_MAX];
        for (int q = 0; q < IM_QUEUE_MAX; q++)
            latest[q] = -1;
        for (int o = 0; o < x->op->args.n; o++)
            if (x->hi[o] > x->lo[o])
                IM_TRY_GOTO(touch(ctx, p, arenas, i, o, latest), maps);
        for (int o = 0; o < x->op->args.n; o++)
            if (x->hi[o] > x->lo[o])
                record(p, arenas, i, o);
        x->nwait = 0;
        for (int q = 0; q < IM_QUEUE_MAX; q++) {
            if (latest[q] <= waited[x->op->queue][q])
                continue;
            if (x->nwait == IM_MAX_WAITS) {
                status = im_fail(ctx, IM_ERR_INTERNAL, "op %s waits for more than %d queues", x->op->label, IM_MAX_WAITS);
                goto maps;
            }
            x->wait[x->nwait++] = (uint32_t)latest[q];
            waited[x->op->queue][q] = latest[q];
        }
    }
maps:
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        im_span_map_free(&arenas[c]);
    return status;
}
