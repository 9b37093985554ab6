/* near_collective: the operations of all members over memory that they share.
 *
 * What a member puts on its belt, piece by piece, n ranks:
 *
 *   all_gather, broadcast     its part (the root's): pieces that all others read
 *   all_to_all                step j: piece j for rank + 1, for rank + 2, ...; each is read by one
 *   all_reduce                step j: piece j of slice i for its owner rank + 1, + 2, ...; then the sum of piece j - 1 of its own slice,
 *                             which all others read. The owner adds where the pieces lie, in the order of ranks
 *   reduce_scatter            the same without putting the sums on the belt
 *
 * The sum is one step behind so that all members send before they wait. Each member fills its belt in order, and a belt has two
 * steps: so the member that is the least far always finds what it waits for, and no order of the ranks can stop all.
 */
#include "comm/mpi/world.h"

#include <stdlib.h>
#include <string.h>

typedef struct flow {
    im_mpi_comm *m;
    im_near *x;
    const im_comm_call *call;
    int n, me;
    size_t size;        /* of an element */
    size_t piece;       /* elements of a slot */
    uint64_t steps;     /* all_to_all, sums */
    uint64_t out, outs; /* pieces on the own belt: done, in all */
    bool agreed;        /* the others call the same: before it nothing of theirs is looked at */
} flow;

static bool is_sum(const im_comm_call *call)
{
    return call->op == IM_COMM_ALL_REDUCE || call->op == IM_COMM_REDUCE_SCATTER;
}

/* all_gather, broadcast: elements that a member gives, and where they begin. */
static size_t part_of(const flow *f, int i, size_t *from)
{
    *from = 0;
    if (f->call->op == IM_COMM_BROADCAST)
        return i == f->call->peer ? f->call->count : 0;
    *from = f->m->from[i];
    return f->call->counts[i];
}

static uint64_t pieces(const flow *f, size_t elements)
{
    return (elements + f->piece - 1) / f->piece;
}

/* On a member's belt, places that stay empty included. */
static uint64_t pieces_of(const flow *f, int i)
{
    size_t from;
    if (is_sum(f->call))
        return (f->steps + 1) * (uint64_t)f->n;
    if (f->call->op == IM_COMM_ALL_TO_ALL)
        return f->steps * (uint64_t)(f->n - 1);
    return pieces(f, part_of(f, i, &from));
}

/* Pieces that this rank takes from a member, except for those that it adds. */
static uint64_t pieces_from(const flow *f, int i)
{
    size_t from;
    switch (f->call->op) {
    case IM_COMM_ALL_REDUCE: return pieces(f, f->m->from[i + 1] - f->m->from[i]);
    case IM_COMM_REDUCE_SCATTER: return 0;
    case IM_COMM_ALL_TO_ALL: return f->steps;
    default: return pieces(f, part_of(f, i, &from));
    }
}

/* Piece j of `elements`: how many, and where it begins. */
static size_t cut(const flow *f, size_t elements, uint64_t j, size_t *begin)
{
    *begin = j * f->piece;
    if (*begin >= elements)
        return 0;
    return elements - *begin < f->piece ? elements - *begin : f->piece;
}

static void ring_others(const flow *f)
{
    for (int k = 1; k < f->n; k++)
        im_near_ring(im_near_cell_of(f->x, (f->me + k) % f->n));
}

/* ---- filling ---------------------------------------------------------------------------- */

/* The sum of piece j of the own slice, when all have come. */
static bool fold(flow *f, uint64_t j, im_near_slot *into, char *bytes)
{
    im_mpi_comm *m = f->m;
    size_t begin, n = cut(f, m->from[f->me + 1] - m->from[f->me], j, &begin);
    im_near_slot *s;
    char *p;
    if (!n)
        return true;
    if (!f->agreed)
        return false;
    for (int i = 0; i < f->n; i++) {
        uint64_t g = f->x->at[i] + j * (uint64_t)f->n + (uint64_t)((f->me - i + f->n) % f->n - 1);
        if (i == f->me)
            m->src[i] = (const char *)f->call->src + (m->from[i] + begin) * f->size;
        else {
            s = im_near_slot_of(f->x, i, g, &p);
            if (!im_near_is_filled(s, g))
                return false;
            m->src[i] = p;
        }
    }
    bool share = f->call->op == IM_COMM_ALL_REDUCE;
    void *dst[2] = {(char *)f->call->dst + (begin + (share ? m->from[f->me] : 0)) * f->size, bytes};
    im_comm_fold(dst, share ? 2 : 1, m->src, f->n, n, f->call->dtype, f->call->reduce);
    for (int i = 0; i < f->n; i++)
        if (i != f->me)
            im_near_take(im_near_slot_of(f->x, i, f->x->at[i] + j * (uint64_t)f->n + (uint64_t)((f->me - i + f->n) % f->n - 1), &p));
    if (share)
        im_near_fill_end(into, f->x->at[f->me] + f->out, f->n - 1);
    return true;
}

/* The next piece of the own belt: from where, how many bytes, for how many. readers 0: it is a sum. */
static void next_out(const flow *f, uint64_t *j, const char **from, size_t *nbytes, int *readers)
{
    size_t begin, base = 0, elements;
    uint64_t row = is_sum(f->call) ? (uint64_t)f->n : (uint64_t)f->n - 1;
    *readers = 1;
    if (is_sum(f->call) || f->call->op == IM_COMM_ALL_TO_ALL) {
        int k = (int)(f->out % row) + 1, to = (f->me + k) % f->n;
        *j = f->out / row;
        if (k == f->n) {
            *readers = 0;
            *nbytes = 0;
            return;
        }
        base = is_sum(f->call) ? f->m->from[to] : (size_t)to * f->call->count;
        elements = is_sum(f->call) ? f->m->from[to + 1] - base : f->call->count;
    } else {
        size_t where;
        *j = f->out;
        *readers = f->n - 1;
        elements = part_of(f, f->me, &where);
    }
    *nbytes = cut(f, elements, *j, &begin) * f->size;
    *from = (const char *)f->call->src + (base + begin) * f->size;
}

static bool fill(flow *f)
{
    uint64_t j, g = f->x->at[f->me] + f->out;
    const char *from;
    size_t nbytes;
    int readers;
    char *bytes;
    if (f->out == f->outs)
        return false;
    im_near_slot *s = im_near_slot_of(f->x, f->me, g, &bytes);
    next_out(f, &j, &from, &nbytes, &readers);
    if (readers && !nbytes) {
        f->out++;
        return true;
    }
    if (!im_near_fill_begin(s))
        return false;
    if (readers) {
        memcpy(bytes, from, nbytes);
        im_near_fill_end(s, g, readers);
    } else if (j && !fold(f, j - 1, s, bytes)) {
        return false;
    }
    f->out++;
    ring_others(f);
    return true;
}

/* ---- taking ------------------------------------------------------------------------------- */

static bool take(flow *f, int i)
{
    uint64_t t = f->x->in[i], g = t;
    size_t begin, from = 0, n;
    char *bytes;
    if (t == pieces_from(f, i))
        return false;
    if (f->call->op == IM_COMM_ALL_REDUCE) {
        g = (t + 1) * (uint64_t)f->n + (uint64_t)f->n - 1;
        from = f->m->from[i];
        n = cut(f, f->m->from[i + 1] - from, t, &begin);
    } else if (f->call->op == IM_COMM_ALL_TO_ALL) {
        g = t * (uint64_t)(f->n - 1) + (uint64_t)((f->me - i + f->n) % f->n - 1);
        from = (size_t)i * f->call->count;
        n = cut(f, f->call->count, t, &begin);
    } else {
        n = part_of(f, i, &from);
        n = cut(f, n, t, &begin);
    }
    g += f->x->at[i];
    im_near_slot *s = im_near_slot_of(f->x, i, g, &bytes);
    if (!im_near_is_filled(s, g))
        return false;
    memcpy((char *)f->call->dst + (from + begin) * f->size, bytes, n * f->size);
    im_near_take(s);
    im_near_ring(im_near_cell_of(f->x, i));
    f->x->in[i]++;
    return true;
}

static bool takes_more(const flow *f)
{
    for (int i = 0; i < f->n; i++)
        if (i != f->me && f->x->in[i] < pieces_from(f, i))
            return true;
    return false;
}

static void keep_own(const flow *f)
{
    size_t nbytes = f->call->count * f->size, own = (size_t)f->me * nbytes, from;
    if (f->call->op == IM_COMM_ALL_TO_ALL)
        memcpy((char *)f->call->dst + own, (const char *)f->call->src + own, nbytes);
    if (f->call->op != IM_COMM_ALL_GATHER)
        return;
    size_t n = part_of(f, f->me, &from);
    char *to = (char *)f->call->dst + from * f->size;
    if (n && to != f->call->src)
        memcpy(to, f->call->src, n * f->size);
}

/* ---- one operation ---------------------------------------------------------------------------- */

/* Arguments that all agree on (or will be found not to). */
static flow flow_of(im_mpi_comm *m, const im_comm_call *call)
{
    flow f = {.m = m, .x = m->near, .call = call, .n = m->head.size, .me = m->head.rank, .size = im_dtype_size(call->dtype)};
    f.piece = f.x->piece / f.size;
    im_mpi_slice(m, call);
    size_t most = call->op == IM_COMM_ALL_TO_ALL ? call->count : 0;
    for (int i = 0; i < f.n && is_sum(call); i++)
        most = m->from[i + 1] - m->from[i] > most ? m->from[i + 1] - m->from[i] : most;
    f.steps = pieces(&f, most);
    f.outs = pieces_of(&f, f.me);
    memset(f.x->in, 0, sizeof *f.x->in * (size_t)f.n);
    return f;
}

static im_status late(im_mpi_comm *m, const im_comm_call *call, im_status s, uint64_t meeting)
{
    void *p;
    IM_TRY(im_alloc(m->head.ctx, (size_t)m->head.size, sizeof(bool), &p));
    bool *arrived = p;
    for (int i = 0; i < m->head.size; i++)
        arrived[i] = atomic_load(&im_near_cell_of(m->near, i)->arrived) >= meeting;
    s = im_mpi_explain(m, call, s, arrived);
    free(arrived);
    return s;
}

static bool all_arrived(const im_mpi_comm *m, uint64_t meeting)
{
    for (int i = 0; i < m->head.size; i++)
        if (atomic_load_explicit(&im_near_cell_of(m->near, i)->arrived, memory_order_acquire) < meeting)
            return false;
    return true;
}

/* The first pieces go out meanwhile. What all have come to they all see, also when the world dies of it. */
static im_status meet(im_mpi_comm *m, im_comm_call *call, bool small, flow *f, im_near_wait *w)
{
    im_near *x = m->near;
    uint64_t meeting = ++x->meetings;
    im_near_cell *mine = im_near_cell_of(x, m->head.rank);
    im_mpi_write_frame(m, call, small, &mine->frame[meeting & 1]);
    atomic_store_explicit(&mine->arrived, meeting, memory_order_release);
    for (int k = 1; k < m->head.size; k++)
        im_near_ring(im_near_cell_of(x, (m->head.rank + k) % m->head.size));
    for (int k = 0; f && k < x->slots / 2 && fill(f); k++)
        ;
    im_status s = IM_OK;
    while (!all_arrived(m, meeting) && s == IM_OK)
        s = im_near_pause(w);
    im_near_went_on(w);
    if (s != IM_OK && !all_arrived(m, meeting))
        return late(m, call, s, meeting);
    for (int i = 0; i < m->head.size; i++)
        m->seen[i] = &im_near_cell_of(x, i)->frame[meeting & 1];
    return im_mpi_compare(m, call);
}

static im_status move(flow *f, im_near_wait *w)
{
    im_status s = IM_OK;
    while (s == IM_OK && (f->out < f->outs || takes_more(f))) {
        bool moved = fill(f);
        for (int k = 1; k < f->n; k++)
            moved |= take(f, (f->me + f->n - k) % f->n);
        if (moved)
            im_near_went_on(w);
        else
            s = im_near_pause(w);
    }
    im_near_wait_end(w);
    return s;
}

static im_status attempt(im_mpi_comm *m, im_comm_call *call)
{
    bool small = im_mpi_is_small(m, call);
    im_near_wait w = {.mine = im_near_cell_of(m->near, m->head.rank), .dead = &m->world->dead, .spin = m->world->spin, .deadline = m->head.deadline};
    if (small) {
        IM_TRY(meet(m, call, true, NULL, &w));
        im_mpi_act_small(m, call);
        return IM_OK;
    }
    flow f = flow_of(m, call);
    IM_TRY(meet(m, call, false, &f, &w));
    f.agreed = true;
    keep_own(&f);
    im_status s = move(&f, &w);
    if (s != IM_OK)
        return im_mpi_explain(m, call, s, NULL);
    for (int i = 0; i < f.n; i++)
        m->near->at[i] += pieces_of(&f, i);
    return IM_OK;
}

im_status im_mpi_near_collective(im_mpi_comm *m, im_comm_call *call)
{
    im_status s = attempt(m, call);
    if (s != IM_OK)
        im_mpi_kill(m->world, "gave up", im_error_text(m->head.ctx), NULL, NULL);
    return s;
}
