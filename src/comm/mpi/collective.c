/* collective: the operations of all members, of messages.
 *
 * Sums: rank i owns slice i. Everyone sends it their part of the slice, a block at a time; it adds them in the order of
 * ranks, and all_reduce sends the result to everyone. Each rank sends and receives 2 (n - 1) / n of the bytes of an all_reduce, half of that
 * for reduce_scatter. The next `depth` blocks are on their way meanwhile, and the last `depth` results: a large message begins with a
 * question and an answer, which on a slow link stand in line behind the bytes before them.
 */
#include "comm/mpi/world.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64, IN_FLIGHT = 8 << 20 }; /* bytes of all blocks that a sum keeps */

bool im_mpi_is_small(const im_mpi_comm *m, const im_comm_call *call)
{
    size_t n = call->count, size = im_dtype_size(call->dtype);
    if (call->op == IM_COMM_ALL_TO_ALL)
        n *= (size_t)m->head.size;
    return n <= IM_MPI_EAGER / size;
}

im_status im_mpi_explain(im_mpi_comm *m, const im_comm_call *call, im_status status, const bool *arrived)
{
    if (status == IM_ERR_ABORTED)
        return im_mpi_killed(m->head.ctx, m->world, im_comm_op_name(call->op));
    if (status != IM_ERR_TIMEOUT)
        return status;
    if (arrived)
        return im_comm_fail_late(&m->head, call, m->head.deadline, arrived);
    void *p;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, sizeof(bool), &p));
    memset(p, true, sizeof(bool) * (size_t)m->head.size);
    status = im_comm_fail_late(&m->head, call, m->head.deadline, p);
    free(p);
    return status;
}

static im_status wait_for(im_mpi_comm *m, const im_comm_call *call, im_mpi_set *s)
{
    im_mpi_wait wait = {.w = m->world, .start = m->start, .deadline = m->head.deadline};
    return im_mpi_explain(m, call, im_mpi_wait_all(s, &wait), NULL); /* their frames came */
}

/* ---- frames ---------------------------------------------------------------------------- */

static bool puts_in(const im_mpi_comm *m, const im_comm_call *call)
{
    return call->in.nbytes && (call->op != IM_COMM_BROADCAST || call->peer == m->head.rank);
}

void im_mpi_write_frame(im_mpi_comm *m, im_comm_call *call, bool small, im_mpi_frame *out)
{
    im_comm_sign(&m->head, call, &out->sig);
    if (small && puts_in(m, call))
        memcpy(out->bytes, call->src, call->in.nbytes);
}

/* First the receives, by the order of ranks without this one; so request i is of rank i, or of i + 1. */
static im_status announce(im_mpi_comm *m, im_comm_call *call, bool small)
{
    im_mpi_frame *mine = &m->frame[m->head.rank];
    size_t nbytes = offsetof(im_mpi_frame, bytes) + (small && puts_in(m, call) ? call->in.nbytes : 0);
    im_mpi_write_frame(m, call, small, mine);
    for (int i = 0; i < m->head.size; i++)
        if (i != m->head.rank)
            IM_TRY(im_mpi_receive(m, &m->frames, &m->frame[i], sizeof *mine, i, IM_MPI_FRAME));
    for (int k = 1; k < m->head.size; k++)
        IM_TRY(im_mpi_send(m, &m->frames, mine, nbytes, (m->head.rank + k) % m->head.size, IM_MPI_FRAME, false));
    return IM_OK;
}

static im_status late(im_mpi_comm *m, const im_comm_call *call)
{
    void *p;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, sizeof(bool), &p));
    bool *arrived = p;
    im_status s = IM_OK;
    for (int i = 0, k = 0; i < m->head.size && s == IM_OK; i++)
        if (i == m->head.rank)
            arrived[i] = true;
        else
            s = im_mpi_test(m->world, &m->frames, k++, 1, &arrived[i]);
    if (s == IM_OK)
        s = im_comm_fail_late(&m->head, call, m->head.deadline, arrived);
    free(arrived);
    return s;
}

/* Another rank may say first that the calls of this operation differ. It has all frames, so all are on their way: this
 * rank waits for them, and tells what it called and what the others did. */
static im_status meet(im_mpi_comm *m, im_comm_call *call)
{
    im_comm_mpi_world *w = m->world;
    im_mpi_wait wait = {.w = w, .start = m->start, .deadline = m->head.deadline};
    im_status s = im_mpi_wait_all(&m->frames, &wait);
    if (s == IM_ERR_ABORTED && w->told.mismatch && w->told.group == m->head.id && w->told.seq == call->seq) {
        wait.deaf = true;
        s = im_mpi_wait_all(&m->frames, &wait);
    }
    if (s == IM_ERR_TIMEOUT)
        return late(m, call);
    return s == IM_ERR_ABORTED ? im_mpi_killed(m->head.ctx, w, im_comm_op_name(call->op)) : s;
}

im_status im_mpi_compare(im_mpi_comm *m, im_comm_call *call)
{
    const im_comm_signature *mine = &m->seen[m->head.rank]->sig;
    int other = 0;
    while (other < m->head.size && im_comm_same(mine, &m->seen[other]->sig))
        other++;
    if (other == m->head.size)
        return IM_OK;
    void *p;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, sizeof(im_comm_signature), &p));
    im_comm_signature *sig = p;
    for (int i = 0; i < m->head.size; i++)
        sig[i] = m->seen[i]->sig;
    im_status s = im_comm_fail_mismatch(&m->head, sig);
    free(sig);
    im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), &m->head, call);
    return s;
}

/* ---- small ones, out of the frames ---------------------------------------------------------- */

void im_mpi_act_small(im_mpi_comm *m, const im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype), at = 0;
    int n = m->head.size;
    char *dst = call->dst;
    switch (call->op) {
    case IM_COMM_REDUCE_SCATTER:
        for (int i = 0; i < m->head.rank; i++)
            at += call->counts[i] * size;
        /* fall through */
    case IM_COMM_ALL_REDUCE:
        for (int i = 0; i < n; i++)
            m->src[i] = m->seen[i]->bytes + at;
        if (call->out.nbytes)
            im_comm_fold(call->dst, m->src, n, call->out.nbytes / size, call->dtype, call->reduce);
        break;
    case IM_COMM_ALL_GATHER:
        for (int i = 0; i < n; at += call->counts[i++] * size)
            if (call->counts[i])
                memcpy(dst + at, m->seen[i]->bytes, call->counts[i] * size);
        break;
    case IM_COMM_ALL_TO_ALL:
        for (int i = 0; i < n && call->count; i++)
            memcpy(dst + (size_t)i * call->count * size, m->seen[i]->bytes + (size_t)m->head.rank * call->count * size, call->count * size);
        break;
    case IM_COMM_BROADCAST:
        if (call->peer != m->head.rank && call->out.nbytes)
            memcpy(dst, m->seen[call->peer]->bytes, call->out.nbytes);
        break;
    default: break;
    }
}

/* ---- sums -------------------------------------------------------------------------------------- */

/* Slices: the counts where there are some; else equal ones of whole cache lines, the last shorter. */
void im_mpi_slice(im_mpi_comm *m, const im_comm_call *call)
{
    size_t n = (size_t)m->head.size, line = LINE / im_dtype_size(call->dtype),
           part = (call->count / n + (call->count % n != 0) + line - 1) / line * line;
    for (size_t i = 0; i < n; i++) {
        size_t next = call->counts ? m->from[i] + call->counts[i] : (i + 1) * part;
        m->from[i + 1] = next < call->count ? next : call->count;
    }
}

/* Block j of a slice, in elements: where it begins; its length, 0 behind the end. */
static size_t block_of(const im_mpi_comm *m, const im_comm_call *call, int i, size_t j, size_t *begin)
{
    size_t most = m->world->block / im_dtype_size(call->dtype), length = m->from[i + 1] - m->from[i];
    if (j * most >= length)
        return 0;
    *begin = m->from[i] + j * most;
    return length - j * most < most ? length - j * most : most;
}

static char *staged(const im_mpi_comm *m, int i, size_t j)
{
    return m->staging + ((j % (size_t)m->depth) * (size_t)m->head.size + (size_t)i) * m->world->block;
}

static im_mpi_set *blocks_of(im_mpi_comm *m, size_t j)
{
    return &m->blocks[j % (size_t)m->depth];
}

static im_mpi_set *sums_of(im_mpi_comm *m, size_t j)
{
    return &m->sums[j % (size_t)m->depth];
}

static im_status send_blocks(im_mpi_comm *m, const im_comm_call *call, size_t j)
{
    size_t size = im_dtype_size(call->dtype), begin = 0;
    for (int k = 1; k < m->head.size; k++) {
        int i = (m->head.rank + k) % m->head.size; /* not all to the same one at once */
        size_t n = block_of(m, call, i, j, &begin);
        IM_TRY(im_mpi_send(m, blocks_of(m, j), (const char *)call->src + begin * size, n * size, i, IM_MPI_BYTES, false));
    }
    return IM_OK;
}

static im_status receive_blocks(im_mpi_comm *m, const im_comm_call *call, size_t j)
{
    size_t begin, n = block_of(m, call, m->head.rank, j, &begin);
    for (int i = 0; i < m->head.size; i++)
        if (i != m->head.rank)
            IM_TRY(im_mpi_receive(m, blocks_of(m, j), staged(m, i, j), n * im_dtype_size(call->dtype), i, IM_MPI_BYTES));
    return IM_OK;
}

static im_status share_sum(im_mpi_comm *m, const im_comm_call *call, size_t j)
{
    size_t size = im_dtype_size(call->dtype), begin = 0;
    for (int i = 0; i < m->head.size; i++) {
        size_t n = block_of(m, call, i, j, &begin);
        if (i != m->head.rank)
            IM_TRY(im_mpi_receive(m, sums_of(m, j), (char *)call->dst + begin * size, n * size, i, IM_MPI_SUMS));
    }
    size_t n = block_of(m, call, m->head.rank, j, &begin);
    for (int k = 1; k < m->head.size; k++)
        IM_TRY(
            im_mpi_send(m, sums_of(m, j), (const char *)call->dst + begin * size, n * size, (m->head.rank + k) % m->head.size, IM_MPI_SUMS, false));
    return IM_OK;
}

static void add(im_mpi_comm *m, const im_comm_call *call, size_t j)
{
    size_t size = im_dtype_size(call->dtype), begin = 0, n = block_of(m, call, m->head.rank, j, &begin);
    void *dst = (char *)call->dst + (begin - (call->op == IM_COMM_ALL_REDUCE ? 0 : m->from[m->head.rank])) * size;
    for (int i = 0; i < m->head.size && n; i++)
        m->src[i] = i == m->head.rank ? (const char *)call->src + begin * size : staged(m, i, j);
    if (n)
        im_comm_fold(dst, m->src, m->head.size, n, call->dtype, call->reduce);
}

static size_t steps_of(const im_mpi_comm *m, const im_comm_call *call)
{
    size_t most = m->world->block / im_dtype_size(call->dtype), steps = 0;
    for (int i = 0; i < m->head.size; i++) {
        size_t n = (m->from[i + 1] - m->from[i] + most - 1) / most;
        steps = n > steps ? n : steps;
    }
    return steps;
}

/* The first `depth` blocks are sent already. In place, a sum arrives where a block was sent from: when that block is through. */
static im_status reduce(im_mpi_comm *m, im_comm_call *call)
{
    size_t steps = steps_of(m, call), depth = (size_t)m->depth;
    bool share = call->op == IM_COMM_ALL_REDUCE;
    for (size_t j = 0; j < depth && j < steps; j++)
        IM_TRY(receive_blocks(m, call, j));
    for (size_t j = 0; j < steps; j++) {
        IM_TRY(wait_for(m, call, blocks_of(m, j)));
        add(m, call, j);
        if (j + depth < steps) {
            IM_TRY(receive_blocks(m, call, j + depth));
            IM_TRY(send_blocks(m, call, j + depth));
        }
        if (share) {
            IM_TRY(wait_for(m, call, sums_of(m, j)));
            IM_TRY(share_sum(m, call, j));
        }
    }
    for (size_t j = 0; j < depth; j++)
        IM_TRY(wait_for(m, call, &m->sums[j]));
    return IM_OK;
}

/* ---- copies: all sends go first; receives when all agree ------------------------------------------ */

static im_status send_part(im_mpi_comm *m, const void *p, size_t nbytes, int root)
{
    for (int k = 1; k < m->head.size; k++) {
        int i = (m->head.rank + k) % m->head.size;
        if (i != root)
            IM_TRY(im_mpi_send(m, &m->pieces, p, nbytes, i, IM_MPI_BYTES, false));
    }
    return IM_OK;
}

static im_status all_gather(im_mpi_comm *m, im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype), at = 0;
    for (int i = 0; i < m->head.size; at += call->counts[i++] * size) {
        char *to = (char *)call->dst + at;
        if (i != m->head.rank)
            IM_TRY(im_mpi_receive(m, &m->pieces, to, call->counts[i] * size, i, IM_MPI_BYTES));
        else if (call->counts[i] && call->src != to)
            memcpy(to, call->src, call->counts[i] * size);
    }
    return wait_for(m, call, &m->pieces);
}

static im_status all_to_all(im_mpi_comm *m, im_comm_call *call)
{
    size_t nbytes = call->count * im_dtype_size(call->dtype), own = (size_t)m->head.rank * nbytes;
    for (int i = 0; i < m->head.size; i++)
        if (i != m->head.rank)
            IM_TRY(im_mpi_receive(m, &m->pieces, (char *)call->dst + (size_t)i * nbytes, nbytes, i, IM_MPI_BYTES));
    if (call->dst != call->src)
        memcpy((char *)call->dst + own, (const char *)call->src + own, nbytes);
    return wait_for(m, call, &m->pieces);
}

/* The root sends slice i to rank i, which sends it on; its own slice it sends to all. So nobody sends more than twice the
 * bytes, however many ranks there are. */
static im_status broadcast(im_mpi_comm *m, im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype);
    int me = m->head.rank, root = call->peer;
    char *p = call->dst;
    if (me == root)
        return wait_for(m, call, &m->pieces);
    IM_TRY(im_mpi_receive(m, &m->results, p + m->from[me] * size, (m->from[me + 1] - m->from[me]) * size, root, IM_MPI_BYTES));
    for (int i = 0; i < m->head.size; i++)
        if (i != me)
            IM_TRY(im_mpi_receive(m, &m->pieces, p + m->from[i] * size, (m->from[i + 1] - m->from[i]) * size, i, IM_MPI_BYTES));
    IM_TRY(wait_for(m, call, &m->results));
    IM_TRY(send_part(m, p + m->from[me] * size, (m->from[me + 1] - m->from[me]) * size, root));
    return wait_for(m, call, &m->pieces);
}

static im_status send_first(im_mpi_comm *m, im_comm_call *call)
{
    size_t size = im_dtype_size(call->dtype);
    const char *p = call->src;
    if (call->op == IM_COMM_ALL_GATHER)
        return send_part(m, p, call->counts[m->head.rank] * size, -1);
    if (call->op == IM_COMM_ALL_TO_ALL) {
        for (int k = 1; k < m->head.size; k++) {
            size_t i = (size_t)(m->head.rank + k) % (size_t)m->head.size;
            IM_TRY(im_mpi_send(m, &m->pieces, p + i * call->count * size, call->count * size, (int)i, IM_MPI_BYTES, false));
        }
        return IM_OK;
    }
    im_mpi_slice(m, call);
    for (size_t j = 0; call->op != IM_COMM_BROADCAST && j < (size_t)m->depth && j < steps_of(m, call); j++)
        IM_TRY(send_blocks(m, call, j));
    if (call->op != IM_COMM_BROADCAST)
        return IM_OK;
    if (call->peer != m->head.rank)
        return IM_OK;
    for (int i = 0; i < m->head.size; i++)
        if (i != m->head.rank)
            IM_TRY(im_mpi_send(m, &m->pieces, p + m->from[i] * size, (m->from[i + 1] - m->from[i]) * size, i, IM_MPI_BYTES, false));
    return send_part(m, p + m->from[m->head.rank] * size, (m->from[m->head.rank + 1] - m->from[m->head.rank]) * size, -1);
}

static im_status staging(im_mpi_comm *m, const im_comm_call *call)
{
    void *p;
    if (m->staging || (call->op != IM_COMM_ALL_REDUCE && call->op != IM_COMM_REDUCE_SCATTER))
        return IM_OK;
    size_t depth = IN_FLIGHT / ((size_t)m->head.size * m->world->block);
    m->depth = depth < 2 ? 2 : depth < IM_MPI_DEPTH ? (int)depth : IM_MPI_DEPTH;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->depth * (size_t)m->head.size, m->world->block, &p));
    m->staging = p;
    return IM_OK;
}

static im_status attempt(im_mpi_comm *m, im_comm_call *call)
{
    bool small = im_mpi_is_small(m, call);
    m->start = im_clock_now();
    IM_TRY(staging(m, call));
    IM_TRY(announce(m, call, small));
    if (!small)
        IM_TRY(send_first(m, call));
    IM_TRY(meet(m, call));
    for (int i = 0; i < m->head.size; i++)
        m->seen[i] = &m->frame[i];
    IM_TRY(im_mpi_compare(m, call));
    if (small) {
        im_mpi_act_small(m, call);
        return IM_OK;
    }
    switch (call->op) {
    case IM_COMM_ALL_GATHER: return all_gather(m, call);
    case IM_COMM_ALL_TO_ALL: return all_to_all(m, call);
    case IM_COMM_BROADCAST: return broadcast(m, call);
    default: return reduce(m, call);
    }
}

im_status im_mpi_collective(im_mpi_comm *m, im_comm_call *call)
{
    im_status s = attempt(m, call);
    if (s == IM_OK)
        return IM_OK;
    im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), NULL, NULL);
    im_mpi_give_up(m->world, &m->frames);
    im_mpi_give_up(m->world, &m->pieces);
    im_mpi_give_up(m->world, &m->results);
    for (int i = 0; i < m->depth; i++) {
        im_mpi_give_up(m->world, &m->blocks[i]);
        im_mpi_give_up(m->world, &m->sums[i]);
    }
    return s;
}
