/* collective: the operations of all members, over buffers that lie where they are. */
#include "comm/threads/threads.h"

#include <stdlib.h>
#include <string.h>

/* ---- publish, compare ------------------------------------------------------------------ */

static im_threads_cell *cell_of(const im_threads_comm *t, int member)
{
    return &t->group->member[member].cell[t->turn];
}

/* The same on all members: whether the bytes fit into the cells. */
static bool is_small(const im_threads_comm *t, const im_comm_call *call)
{
    size_t n = call->count, size = im_dtype_size(call->dtype);
    if (call->op == IM_COMM_ALL_TO_ALL)
        n *= (size_t)t->head.size;
    return n <= IM_THREADS_EAGER / size;
}

static void publish(im_threads_comm *t, const im_comm_call *call, bool small)
{
    t->turn = (t->meeting + 1) & 1;
    im_threads_cell *mine = cell_of(t, t->head.rank);
    im_comm_sign(&t->head, call, &mine->sig);
    mine->src = call->src;
    mine->dst = call->dst;
    if (!small)
        return;
    mine->src = mine->bytes;
    if (call->in.nbytes && (call->op != IM_COMM_BROADCAST || call->peer == t->head.rank))
        memcpy(mine->bytes, call->src, call->in.nbytes);
}

static im_status mismatch(im_threads_comm *t)
{
    void *p;
    IM_TRY(im_alloc(t->head.ctx, (size_t)t->head.size, sizeof(im_comm_signature), &p));
    im_comm_signature *sig = p;
    for (int i = 0; i < t->head.size; i++)
        sig[i] = cell_of(t, i)->sig;
    im_status s = im_comm_fail_mismatch(&t->head, sig);
    free(sig);
    return s;
}

static im_status compare(im_threads_comm *t)
{
    const im_comm_signature *mine = &cell_of(t, t->head.rank)->sig;
    for (int i = 0; i < t->head.size; i++)
        if (!im_comm_same(mine, &cell_of(t, i)->sig))
            return mismatch(t);
    return IM_OK;
}

/* ---- what a member does ------------------------------------------------------------------- */

/* Of a result that no cache keeps until it is read, writing past the caches spares reading the old lines. */
enum { IM_THREADS_PAST = 1 << 20 };

/* dst[0..n) = the members' elements from `from` on, reduced; into one place, or into the same place of all. */
static void fold(im_threads_comm *t, const im_comm_call *call, size_t from, size_t n, void *dst, bool into_all)
{
    size_t size = im_dtype_size(call->dtype), at = from * size;
    if (!n)
        return;
    for (int i = 0; i < t->head.size; i++) {
        const im_threads_cell *c = cell_of(t, i);
        t->src[i] = (const char *)c->src + at;
        if (into_all)
            t->dst[i] = (char *)c->dst + at;
    }
    if (into_all)
        im_comm_fold_past(t->dst, t->head.size, t->src, t->head.size, n, call->dtype, call->reduce);
    else if (n >= IM_THREADS_PAST / size)
        im_comm_fold_past(&dst, 1, t->src, t->head.size, n, call->dtype, call->reduce);
    else
        im_comm_fold(dst, t->src, t->head.size, n, call->dtype, call->reduce);
}

/* Rank r makes part r of the sum, whole cache lines, and writes it to every member. */
static void all_reduce(im_threads_comm *t, const im_comm_call *call, bool small)
{
    size_t n = call->count, line = IM_THREADS_LINE / im_dtype_size(call->dtype), size = (size_t)t->head.size;
    if (small) {
        fold(t, call, 0, n, call->dst, false);
        return;
    }
    size_t part = (n / size + (n % size != 0) + line - 1) / line * line, from = part * (size_t)t->head.rank;
    if (from < n)
        fold(t, call, from, n - from < part ? n - from : part, NULL, true);
}

static void reduce_scatter(im_threads_comm *t, const im_comm_call *call)
{
    size_t before = 0;
    for (int i = 0; i < t->head.rank; i++)
        before += call->counts[i];
    fold(t, call, before, call->counts[t->head.rank], call->dst, false);
}

static void all_gather(im_threads_comm *t, const im_comm_call *call)
{
    char *to = call->dst;
    for (int i = 0; i < t->head.size; i++) {
        size_t nbytes = call->counts[i] * im_dtype_size(call->dtype);
        const void *from = i == t->head.rank ? call->src : cell_of(t, i)->src;
        if (from == to || !nbytes)
            ;
        else if (nbytes >= IM_THREADS_PAST)
            im_comm_copy_past(to, from, nbytes);
        else
            memcpy(to, from, nbytes);
        if (nbytes)
            to += nbytes;
    }
}

static void all_to_all(im_threads_comm *t, const im_comm_call *call)
{
    size_t nbytes = call->count * im_dtype_size(call->dtype);
    for (int k = 0; nbytes && k < t->head.size; k++) {
        int i = (t->head.rank + k) % t->head.size; /* not all from the same one at once */
        const char *from = cell_of(t, i)->src;
        char *to = (char *)call->dst + (size_t)i * nbytes;
        if (from + (size_t)t->head.rank * nbytes != to) /* one rank, in place */
            memcpy(to, from + (size_t)t->head.rank * nbytes, nbytes);
    }
}

static void act(im_threads_comm *t, const im_comm_call *call, bool small)
{
    switch (call->op) {
    case IM_COMM_ALL_REDUCE: all_reduce(t, call, small); break;
    case IM_COMM_REDUCE_SCATTER: reduce_scatter(t, call); break;
    case IM_COMM_ALL_GATHER: all_gather(t, call); break;
    case IM_COMM_ALL_TO_ALL: all_to_all(t, call); break;
    case IM_COMM_BROADCAST:
        if (call->peer != t->head.rank && call->out.nbytes)
            memcpy(call->dst, cell_of(t, call->peer)->src, call->out.nbytes);
        break;
    default: break;
    }
}

static im_status attempt(im_threads_comm *t, im_comm_call *call)
{
    bool small = is_small(t, call);
    publish(t, call, small);
    IM_TRY(im_threads_meet(t, call));
    IM_TRY(compare(t));
    if (small) {
        act(t, call, true);
        return IM_OK;
    }
    IM_TRY(im_threads_busy_begin(t, call));
    act(t, call, false);
    im_threads_busy_end(t);
    return im_threads_meet(t, call);
}

im_status im_threads_collective(im_threads_comm *t, im_comm_call *call)
{
    im_status s = attempt(t, call);
    return s == IM_OK ? IM_OK : im_threads_leave(t, s);
}
