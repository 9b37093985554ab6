/* check: proves the programs of all ranks before they run.
 *
 *   1. states (check_state.c)   every read finds the state it needs, walking the steps in order
 *   2. bytes                    a buffer holds the value that an op reads, and is reused only when its last access
 *                               happens before the next write (vector clocks over the queues, from the waits)
 *   3. meetings                 sends meet their receives, and collectives each other, in one order on all ranks;
 *                               running the lists with rendezvous and no time reaches the end: else it is a deadlock
 */
#include "plan/check.h"
#include "plan/simulate.h"

#include <stdlib.h>
#include <string.h>

/* ---- bytes ------------------------------------------------------------------------ */

typedef struct clock {
    int32_t seen[IM_QUEUE_MAX]; /* latest op of each queue that happens before */
} clock;

typedef struct bytes {
    im_context *ctx;
    const im_program *p;
    clock *before; /* [nbound] */
    im_span_map arenas[IM_CLASS_COUNT];
} bytes;

static void merge(clock *into, const clock *from)
{
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        if (from->seen[q] > into->seen[q])
            into->seen[q] = from->seen[q];
}

static void make_clocks(bytes *b)
{
    int32_t last[IM_QUEUE_MAX];
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        last[q] = -1;
    for (uint32_t i = 0; i < b->p->nbound; i++) {
        const im_bound *x = &b->p->bound[i];
        unsigned own = x->op->queue;
        clock *c = &b->before[i];
        for (int q = 0; q < IM_QUEUE_MAX; q++)
            c->seen[q] = -1;
        if (last[own] >= 0)
            merge(c, &b->before[last[own]]);
        c->seen[own] = last[own];
        for (int w = 0; w < x->nwait; w++) {
            unsigned q = b->p->bound[x->wait[w]].op->queue;
            merge(c, &b->before[x->wait[w]]);
            if ((int32_t)x->wait[w] > c->seen[q])
                c->seen[q] = (int32_t)x->wait[w];
        }
        last[own] = (int32_t)i;
    }
}

static bool happens_before(const bytes *b, int32_t a, uint32_t i)
{
    return a < 0 || b->before[i].seen[b->p->bound[a].op->queue] >= a;
}

static im_status fault(const bytes *b, uint32_t i, int o, const char *what, int32_t other)
{
    im_str s = {0}, v = {0}, t = {0};
    const im_bound *x = &b->p->bound[i];
    im_step_print(&b->p->step[x->step], &s);
    im_value_print(&x->value[o], &v);
    if (other >= 0) {
        im_str_append(&t, " of ");
        im_step_print(&b->p->step[b->p->bound[other].step], &t);
    }
    im_status status = im_fail(b->ctx, IM_ERR_CHECK, "rank %d, step %u (%s), %s, %s: %s%s", b->p->layout->rank, x->step, im_str_text(&s),
                               x->op->label, im_str_text(&v), what, im_str_text(&t));
    im_str_free(&s);
    im_str_free(&v);
    im_str_free(&t);
    return status;
}

static im_status check_span(bytes *b, uint32_t i, int o, im_span *s)
{
    const im_bound *x = &b->p->bound[i];
    int access = x->op->use[o].access;
    if (access != IM_WRITE) {
        if (s->owned ? !im_value_equal(&s->value, &x->value[o]) : !im_value_persistent(b->p, &x->value[o]))
            return fault(b, i, o, s->owned ? "its bytes hold another value by then" : "its bytes were never written", s->write);
        if (!happens_before(b, s->write, i))
            return fault(b, i, o, "read while it may still be written by an op", s->write);
    }
    if (access == IM_READ)
        return IM_OK;
    if (!happens_before(b, s->write, i))
        return fault(b, i, o, "written while its bytes may still be written by an op", s->write);
    for (int q = 0; q < IM_QUEUE_MAX; q++)
        if (!happens_before(b, s->read[q], i))
            return fault(b, i, o, "written while its bytes may still be read by an op", s->read[q]);
    return IM_OK;
}

static im_status check_operand(bytes *b, uint32_t i, int o, bool record)
{
    const im_bound *x = &b->p->bound[i];
    im_span_map *m = &b->arenas[x->buf[o].arena];
    size_t at = x->buf[o].offset + x->buf[o].nbytes - x->hi[o], first, end;
    if (at + x->hi[o] > b->p->arena_bytes[x->buf[o].arena])
        return fault(b, i, o, "it lies outside its arena", -1);
    if (!im_span_map_cover(m, at + x->lo[o], at + x->hi[o], &first, &end))
        return im_fail(b->ctx, IM_ERR_NOMEM, "no memory to check a program");
    for (size_t k = first; k < end; k++) {
        im_span *s = &m->span[k];
        if (!record) {
            IM_TRY(check_span(b, i, o, s));
        } else if (x->op->use[o].access == IM_READ) {
            s->read[x->op->queue] = (int32_t)i;
        } else {
            s->write = (int32_t)i;
            s->value = x->value[o];
            s->owned = true;
            for (int q = 0; q < IM_QUEUE_MAX; q++)
                s->read[q] = -1;
        }
    }
    return IM_OK;
}

static im_status check_bytes(im_context *ctx, const im_program *p)
{
    bytes b = {.ctx = ctx, .p = p};
    im_status status = IM_OK;
    b.before = calloc((size_t)p->nbound + 1, sizeof *b.before);
    if (!b.before)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to check a program");
    make_clocks(&b);
    for (uint32_t i = 0; i < p->nbound && status == IM_OK; i++)
        for (int record = 0; record < 2 && status == IM_OK; record++)
            for (int o = 0; o < p->bound[i].op->args.n && status == IM_OK; o++)
                if (p->bound[i].hi[o] > p->bound[i].lo[o])
                    status = check_operand(&b, i, o, record);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        im_span_map_free(&b.arenas[c]);
    free(b.before);
    return status;
}

/* ---- meetings ---------------------------------------------------------------------- */

static im_status check_meetings(im_context *ctx, const im_program *const *p, int n)
{
    im_timeline t;
    IM_TRY(im_simulate(ctx, p, n, NULL, NULL, &t));
    im_timeline_free(&t);
    return IM_OK;
}

im_status im_program_check_rank(im_context *ctx, const im_program *p)
{
    IM_TRY(im_check_states(ctx, p));
    return check_bytes(ctx, p);
}

im_status im_program_check(im_context *ctx, const im_program *const *ranks, int n)
{
    if (n < 1)
        return im_fail(ctx, IM_ERR_ARG, "no programs to check");
    for (int r = 0; r < n; r++) {
        if (ranks[r]->layout->rank != r || im_mesh_size(&ranks[r]->layout->mesh) != n)
            return im_fail(ctx, IM_ERR_CHECK, "program %d of %d is of rank %d of a mesh of %d", r, n, ranks[r]->layout->rank,
                           im_mesh_size(&ranks[r]->layout->mesh));
        IM_TRY(im_program_check_rank(ctx, ranks[r]));
    }
    return check_meetings(ctx, ranks, n);
}
