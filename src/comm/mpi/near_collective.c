/* near_collective: the operations of all members, by pulling from where the bytes lie.
 *
 * Sums: rank i owns slice i. It pulls the others' parts of it, a block at a time so that they stay in its cache, and adds them in the
 * order of ranks; all_reduce then pulls the other slices from their owners. So each rank pulls 2 (n - 1) / n of the bytes of an
 * all_reduce, half of that for reduce_scatter.
 */
#include "comm/mpi/world.h"

#include <stdlib.h>
#include <string.h>

enum { STAGING = 512 << 10, LEAST_BLOCK = 16 << 10, MOST_BLOCK = 128 << 10 };

/* ---- meetings ---------------------------------------------------------------------------- */

static im_status late(im_mpi_comm *m, const im_comm_call *call, im_status s)
{
    void *p;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, sizeof(bool), &p));
    bool *arrived = p;
    for (int i = 0; i < m->head.size; i++)
        arrived[i] = atomic_load(&im_near_cell_of(m->near, i)->arrived) >= m->near->meetings;
    s = im_mpi_explain(m, call, s, arrived);
    free(arrived);
    return s;
}

/* What all have come to they all see, also when the world dies of it. */
static im_status meet(im_mpi_comm *m, const im_comm_call *call)
{
    im_near_wait w = im_mpi_near_wait(m);
    im_status s = IM_OK;
    im_near_arrive(m->near);
    while (!im_near_is_met(m->near) && s == IM_OK)
        s = im_near_pause(&w);
    im_near_wait_end(&w);
    return s == IM_OK || im_near_is_met(m->near) ? IM_OK : late(m, call, s);
}

static unsigned parity(const im_mpi_comm *m)
{
    return m->near->operations & 1;
}

/* Where a member's bytes lie, in its process. */
static const char *src_of(const im_mpi_comm *m, int member)
{
    return im_near_cell_of(m->near, member)->call[parity(m)].src;
}

static const char *dst_of(const im_mpi_comm *m, int member)
{
    return im_near_cell_of(m->near, member)->call[parity(m)].dst;
}

static im_status begin(im_mpi_comm *m, im_comm_call *call, bool small)
{
    m->near->operations++;
    im_near_cell *mine = im_near_cell_of(m->near, m->head.rank);
    mine->call[parity(m)].src = call->src;
    mine->call[parity(m)].dst = call->dst;
    im_mpi_write_frame(m, call, small, &mine->call[parity(m)].frame);
    IM_TRY(meet(m, call));
    for (int i = 0; i < m->head.size; i++)
        m->seen[i] = &im_near_cell_of(m->near, i)->call[parity(m)].frame;
    return im_mpi_compare(m, call);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static im_status all_gather(im_mpi_comm *m, const im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype);
    char *dst = call->dst, *own = dst + m->from[m->head.rank] * size;
    if (call->in.nbytes && own != call->src)
        memcpy(own, call->src, call->in.nbytes);
    for (int k = 1; k < m->head.size; k++) {
        int i = (m->head.rank + k) % m->head.size; /* not all from the same one at once */
        IM_TRY(im_mpi_pull(m, call, i, src_of(m, i), dst + m->from[i] * size, call->counts[i] * size));
    }
    return IM_OK;
}

static im_status all_to_all(im_mpi_comm *m, const im_comm_call *call)
{
    size_t nbytes = call->count * im_dtype_size(call->dtype), own = (size_t)m->head.rank * nbytes;
    memcpy((char *)call->dst + own, (const char *)call->src + own, nbytes);
    for (int k = 1; k < m->head.size; k++) {
        int i = (m->head.rank + k) % m->head.size;
        IM_TRY(im_mpi_pull(m, call, i, src_of(m, i) + own, (char *)call->dst + (size_t)i * nbytes, nbytes));
    }
    return IM_OK;
}

/* ---- sums -------------------------------------------------------------------------------------- */

static size_t block_bytes(const im_mpi_comm *m)
{
    size_t block = STAGING / (size_t)m->head.size / IM_NEAR_LINE * IM_NEAR_LINE;
    block = block < LEAST_BLOCK ? LEAST_BLOCK : block > MOST_BLOCK ? MOST_BLOCK : block;
    return block < m->world->block ? block : m->world->block;
}

/* The sum of the own slice, to dst; read there by others. */
static im_status fold_slice(im_mpi_comm *m, const im_comm_call *call, char *dst, bool shared)
{
    size_t size = im_dtype_size(call->dtype), block = block_bytes(m), most = block / size;
    size_t begin = m->from[m->head.rank], end = m->from[m->head.rank + 1];
    for (size_t at = begin, n; at < end; at += n) {
        n = end - at < most ? end - at : most;
        for (int i = 0; i < m->head.size; i++) {
            char *stage = m->staging + (size_t)i * block;
            m->src[i] = i == m->head.rank ? (const char *)call->src + at * size : stage;
            if (i != m->head.rank)
                IM_TRY(im_mpi_pull(m, call, i, src_of(m, i) + at * size, stage, n * size));
        }
        void *to = dst + (at - begin) * size;
        if (shared)
            im_comm_fold_past(&to, 1, m->src, m->head.size, n, call->dtype, call->reduce);
        else
            im_comm_fold(to, m->src, m->head.size, n, call->dtype, call->reduce);
    }
    return IM_OK;
}

/* As im_mpi_pull, to lines that the other one has read: in place its part of the sum lay there. */
static im_status pull_past(im_mpi_comm *m, const im_comm_call *call, int member, const char *from, char *to, size_t nbytes)
{
    size_t block = block_bytes(m);
    for (size_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < block ? nbytes - at : block;
        IM_TRY(im_mpi_pull(m, call, member, from + at, m->staging, n));
        im_comm_copy_past(to + at, m->staging, n);
    }
    return IM_OK;
}

static im_status all_reduce(im_mpi_comm *m, const im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype);
    char *dst = call->dst;
    IM_TRY(fold_slice(m, call, dst + m->from[m->head.rank] * size, true));
    IM_TRY(meet(m, call));
    for (int k = 1; k < m->head.size; k++) {
        int i = (m->head.rank + k) % m->head.size;
        size_t at = m->from[i] * size, nbytes = (m->from[i + 1] - m->from[i]) * size;
        IM_TRY(dst == call->src ? pull_past(m, call, i, dst_of(m, i) + at, dst + at, nbytes)
                                : im_mpi_pull(m, call, i, dst_of(m, i) + at, dst + at, nbytes));
    }
    return IM_OK;
}

static im_status staging(im_mpi_comm *m, const im_comm_call *call)
{
    void *p;
    if (m->staging || (call->op != IM_COMM_ALL_REDUCE && call->op != IM_COMM_REDUCE_SCATTER))
        return IM_OK;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, block_bytes(m), &p));
    m->staging = p;
    return IM_OK;
}

/* ---- one operation ---------------------------------------------------------------------------- */

static im_status act(im_mpi_comm *m, const im_comm_call *call)
{
    switch (call->op) {
    case IM_COMM_ALL_REDUCE: return all_reduce(m, call);
    case IM_COMM_REDUCE_SCATTER: return fold_slice(m, call, call->dst, false);
    case IM_COMM_ALL_GATHER: return all_gather(m, call);
    case IM_COMM_ALL_TO_ALL: return all_to_all(m, call);
    case IM_COMM_BROADCAST:
        return call->peer == m->head.rank ? IM_OK : im_mpi_pull(m, call, call->peer, src_of(m, call->peer), call->dst, call->out.nbytes);
    default: return IM_OK;
    }
}

static im_status attempt(im_mpi_comm *m, im_comm_call *call)
{
    bool small = im_mpi_is_small(m, call);
    IM_TRY(staging(m, call));
    IM_TRY(begin(m, call, small));
    if (small) {
        im_mpi_act_small(m, call);
        return IM_OK;
    }
    im_mpi_slice(m, call);
    IM_TRY(act(m, call));
    return meet(m, call);
}

im_status im_mpi_near_collective(im_mpi_comm *m, im_comm_call *call)
{
    im_status s = attempt(m, call);
    if (s != IM_OK)
        im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), NULL, NULL);
    return s;
}
