/* report: the rings of all ranks side by side, and whose fault it is that a run ended or stands still.
 *
 * A rank is stuck in an operation that it started and that did not end, or that ended in failure; a member is missing in it when its own
 * ring does not show that it started the same operation. What was started after the first failure of all does not count: those are
 * calls on a dead communicator.
 *
 * Who is named, in this order: a rank whose process is over, or that failed by itself, or that called something else; without such a one,
 * a rank that others wait for and that waits for nobody; then one that gives no sign of life; at last all of a circle.
 */
#include "comm/traced/writer.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds: shorter waits than LEAST are no reason, a sign of life older than SILENT is one (a rank gives several a second). A launcher takes
 * up to ENDING to end a job. */
static const double LEAST = 0.35, SILENT = 3, ENDING = 10;
enum { MOST_RANKS = 4096 };

static double wall_of(const im_comm_ring *r, double at)
{
    return at + r->header.wall;
}

static bool is_message(const im_ring_record *x)
{
    return x->op == IM_COMM_SEND || x->op == IM_COMM_RECV;
}

/* ---- reading them ------------------------------------------------------------------------- */

static int rank_of_name(const char *name)
{
    char *end;
    if (strncmp(name, "rank-", 5) || name[5] < '0' || name[5] > '9')
        return -1;
    long n = strtol(name + 5, &end, 10);
    return *end || n >= MOST_RANKS ? -1 : (int)n;
}

/* The lowest and the highest rank that has a file. */
static bool find_files(const char *dir, int *low, int *high)
{
    DIR *d = opendir(dir);
    *low = MOST_RANKS;
    *high = -1;
    for (struct dirent *e; d && (e = readdir(d));) {
        int n = rank_of_name(e->d_name);
        *low = n >= 0 && n < *low ? n : *low;
        *high = n > *high ? n : *high;
    }
    if (d)
        closedir(d);
    return *high >= 0;
}

static im_status read_rank(im_context *ctx, const char *dir, int rank, im_comm_ring *out)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/rank-%d", dir, rank) >= (int)sizeof path)
        return im_fail(ctx, IM_ERR_ARG, "%s: the path is too long", dir);
    IM_TRY(im_comm_ring_read(ctx, path, out));
    im_status s = IM_OK;
    if (out->header.rank != rank || out->header.world > MOST_RANKS)
        s = im_fail(ctx, IM_ERR_FORMAT, "%s: is of rank %d of %d", path, out->header.rank, out->header.world);
    if (s != IM_OK)
        im_comm_ring_free(out);
    return s;
}

/* ---- stuck, missing ------------------------------------------------------------------------- */

typedef struct looking {
    im_comm_rings *r;
    double failed; /* when the first failure of all was; INFINITY: none */
} looking;

static bool is_stuck(const looking *k, int rank, const im_ring_record *x)
{
    if (x->state == IM_RING_STARTED)
        return true;
    return x->state == IM_RING_FAILED && wall_of(&k->r->ring[rank], x->started) <= k->failed;
}

static double waited(const looking *k, int rank, const im_ring_record *x)
{
    const im_comm_ring *g = &k->r->ring[rank];
    double end = x->ended > 0 ? x->ended : k->r->live ? k->r->now - g->header.wall : g->header.alive;
    return end > x->started ? end - x->started : 0;
}

/* The same operation in the ring of another member: *twin, when it is kept there. Whether that one has started it. */
static bool has_come(const looking *k, int rank, const im_ring_record *x, int other, const im_ring_record **twin)
{
    const im_comm_ring *g = &k->r->ring[other];
    bool passed = false;
    *twin = NULL;
    for (size_t i = g->nrecord; i-- > 0;) {
        const im_ring_record *y = &g->record[i];
        if (y->group != x->group || is_message(y) != is_message(x))
            continue;
        if (is_message(x) && (y->op == x->op || y->peer != rank))
            continue;
        bool started = y->state == IM_RING_DONE || is_stuck(k, other, y);
        if (y->seq == x->seq) {
            *twin = y;
            return started;
        }
        passed |= y->seq > x->seq && started;
    }
    return passed;
}

static const im_ring_group *group_of(const im_comm_ring *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->header.groups; i++)
        if (r->group[i].id == id && r->group[i].members != UINT32_MAX)
            return &r->group[i];
    return NULL;
}

/* Calls `each` for the other members that an operation needs. */
typedef void (*member_fn)(const looking *k, int rank, const im_ring_record *x, int other, void *arg);

static void for_members(const looking *k, int rank, const im_ring_record *x, member_fn each, void *arg)
{
    const im_comm_ring *r = &k->r->ring[rank];
    const im_ring_group *g = group_of(r, x->group);
    if (is_message(x)) {
        if (x->peer >= 0 && x->peer < k->r->n && x->peer != rank)
            each(k, rank, x, x->peer, arg);
        return;
    }
    for (int i = 0; g && i < g->size; i++) {
        int other = r->member[g->members + (uint32_t)i];
        if (other >= 0 && other < k->r->n && other != rank)
            each(k, rank, x, other, arg);
    }
}

static void note_missing(const looking *k, int rank, const im_ring_record *x, int other, void *arg)
{
    const im_ring_record *twin;
    bool *missing = arg;
    if (k->r->view[other].known && !has_come(k, rank, x, other, &twin))
        missing[other] = true;
}

static int count(const bool *yes, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += yes[i];
    return k;
}

/* The operation that a rank is stuck in: of several (on several queues) the first that somebody is missing in, else the first. */
static void look_at(const looking *k, int rank)
{
    im_ring_view *v = &k->r->view[rank];
    const im_comm_ring *r = &k->r->ring[rank];
    for (size_t i = 0; i < r->nrecord; i++) {
        const im_ring_record *x = &r->record[i];
        if (x->state == IM_RING_DONE && (!v->last || x->ended >= v->last->ended))
            v->last = x;
        if (x->state == IM_RING_ENQUEUED && !v->next)
            v->next = x;
        if (!is_stuck(k, rank, x) || v->nmissing)
            continue;
        bool first = !v->at;
        for_members(k, rank, x, note_missing, v->missing);
        v->nmissing = count(v->missing, k->r->n);
        if (first || v->nmissing)
            v->at = x;
    }
}

static void find_first_failure(looking *k)
{
    k->failed = INFINITY;
    for (int i = 0; i < k->r->n; i++) {
        const im_comm_ring *r = &k->r->ring[i];
        if (k->r->view[i].known && r->header.end == IM_RING_ERROR)
            k->failed = fmin(k->failed, wall_of(r, r->header.ended));
        for (size_t x = 0; k->r->view[i].known && x < r->nrecord; x++)
            if (r->record[x].state == IM_RING_FAILED)
                k->failed = fmin(k->failed, wall_of(r, r->record[x].ended));
    }
}

/* ---- faults ----------------------------------------------------------------------------------- */

static void blame(im_comm_rings *r, int rank, im_ring_fault f)
{
    if (r->view[rank].fault == IM_RING_SOUND) {
        r->view[rank].fault = f;
        r->nfault++;
    }
}

static bool says_nothing(const im_comm_ring *r)
{
    return r->header.end == IM_RING_RUNS;
}

/* An operation of it failed: it had been told, or had waited too long, and left for that reason. */
static bool was_failing(const im_comm_ring *r)
{
    for (size_t i = 0; i < r->nrecord; i++)
        if (r->record[i].state == IM_RING_FAILED)
            return true;
    return false;
}

static void find_gone(im_comm_rings *r)
{
    for (int i = 0; i < r->n; i++) {
        if (!r->view[i].known)
            continue;
        int saw = r->ring[i].header.saw - 1;
        if (saw >= 0 && saw < r->n && r->view[saw].known && !was_failing(&r->ring[saw]))
            blame(r, saw, IM_RING_GONE);
        if (r->live && r->view[i].process == 'X' && says_nothing(&r->ring[i]) && !was_failing(&r->ring[i]))
            blame(r, i, IM_RING_GONE);
    }
}

static bool same_call(const im_ring_record *a, const im_ring_record *b)
{
    if (is_message(a))
        return a->count == b->count && a->dtype == b->dtype;
    return a->op == b->op && a->dtype == b->dtype && a->reduce == b->reduce && a->peer == b->peer && a->count == b->count;
}

static void count_votes(const looking *k, int rank, const im_ring_record *x, int other, void *arg)
{
    const im_ring_record *twin;
    int *votes = arg; /* against, for */
    if (k->r->view[other].known && has_come(k, rank, x, other, &twin) && twin)
        votes[same_call(x, twin)]++;
}

/* Where members called different things, those with fewer on their side. */
static void find_different(const looking *k)
{
    for (int i = 0; i < k->r->n; i++) {
        int votes[2] = {0, 1};
        if (!k->r->view[i].known || !k->r->view[i].at)
            continue;
        for_members(k, i, k->r->view[i].at, count_votes, votes);
        if (votes[0] >= votes[1])
            blame(k->r, i, IM_RING_DIFFERS);
    }
}

static void find_broken(im_comm_rings *r)
{
    for (int i = 0; i < r->n; i++) {
        const im_ring_header *h = &r->ring[i].header;
        if (r->view[i].known && h->end == IM_RING_ERROR && h->status != IM_ERR_ABORTED && h->status != IM_ERR_TIMEOUT)
            blame(r, i, IM_RING_BROKE);
    }
}

static void find_absent(const looking *k)
{
    im_comm_rings *r = k->r;
    bool waits = false;
    for (int i = 0; i < r->n; i++) {
        if (!r->view[i].nmissing || waited(k, i, r->view[i].at) < LEAST)
            continue;
        waits = true;
        for (int m = 0; m < r->n; m++)
            if (r->view[i].missing[m] && !r->view[m].nmissing)
                blame(r, m, IM_RING_ABSENT);
    }
    for (int i = 0; waits && !r->nfault && i < r->n; i++)
        if (r->view[i].nmissing)
            r->view[i].fault = IM_RING_CIRCLE;
    for (int i = 0; i < r->n; i++)
        r->nfault += r->view[i].fault == IM_RING_CIRCLE;
}

/* Seconds of its longest silence before the job's end, which was at `last`. */
static double silence(const im_comm_ring *r, double last)
{
    const im_ring_header *h = &r->header;
    return wall_of(r, h->silent_to) > last - ENDING ? h->silent_to - h->silent_from : 0;
}

/* Of ranks that live, those whose process is stopped or silent; of a job that is over, those that fell silent before the others, and those that
 * had been silent, when others had not (a launcher wakes what it ends). */
static void find_still(im_comm_rings *r)
{
    double last = -INFINITY, least = INFINITY;
    for (int i = 0; i < r->n; i++)
        if (r->view[i].known)
            last = fmax(last, wall_of(&r->ring[i], r->ring[i].header.alive));
    for (int i = 0; i < r->n; i++)
        if (r->view[i].known)
            least = fmin(least, silence(&r->ring[i], last));
    for (int i = 0; i < r->n; i++) {
        if (!r->view[i].known || r->ring[i].header.end == IM_RING_ENDED)
            continue;
        double alive = wall_of(&r->ring[i], r->ring[i].header.alive), silent = silence(&r->ring[i], last);
        bool still = r->view[i].process == 'T' || alive < (r->live ? r->now - SILENT : last - LEAST);
        bool was_still = !r->live && silent > SILENT && silent > 2 * least;
        if (was_still || (still && says_nothing(&r->ring[i])))
            blame(r, i, IM_RING_STILL);
    }
}

/* None lives and none said why: a kill that took all of them, or the machine's end. */
static void find_all_gone(im_comm_rings *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->live || !r->view[i].known || r->view[i].process != 'X' || !says_nothing(&r->ring[i]) || was_failing(&r->ring[i]))
            return;
    for (int i = 0; i < r->n; i++)
        blame(r, i, IM_RING_GONE);
}

static double wall_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Whether anything of it lives. Of other machines only the signs of life tell. */
static void look_at_processes(im_comm_rings *r)
{
    double now = wall_now(), last = -INFINITY;
    for (int i = 0; i < r->n; i++) {
        if (!r->view[i].known)
            continue;
        const im_ring_header *h = &r->ring[i].header;
        double alive = wall_of(&r->ring[i], fmax(h->alive, h->ended));
        char state = im_process_state(&h->process);
        r->view[i].process = state;
        r->live |= h->end == IM_RING_RUNS && (state ? state != 'X' : alive > now - SILENT);
        last = fmax(last, alive);
    }
    r->now = r->live ? now : last;
}

static void look(im_comm_rings *r)
{
    looking k = {.r = r};
    look_at_processes(r);
    find_first_failure(&k);
    for (int i = 0; i < r->n; i++)
        if (r->view[i].known)
            look_at(&k, i);
    find_gone(r);
    find_different(&k);
    if (!r->nfault)
        find_broken(r);
    if (!r->nfault && r->live) /* in a run that lives, ranks wait for one another all the time */
        find_still(r);
    if (!r->nfault)
        find_absent(&k);
    if (!r->nfault)
        find_still(r);
    if (!r->nfault)
        find_all_gone(r);
}

/* ---- all of them --------------------------------------------------------------------------------- */

static im_status allocate(im_context *ctx, int n, im_comm_rings *r)
{
    void *p;
    size_t size = (size_t)n;
    r->n = n;
    IM_TRY(im_alloc(ctx, size, sizeof *r->view, &p));
    r->view = p;
    IM_TRY(im_alloc(ctx, size * size, sizeof *r->pool, &p));
    r->pool = p;
    IM_TRY(im_alloc(ctx, size, sizeof *r->number, &p));
    r->number = p;
    for (int i = 0; i < n; i++) {
        r->number[i] = i;
        r->view[i].missing = r->pool + (size_t)i * size;
    }
    return IM_OK;
}

im_status im_comm_rings_make(im_context *ctx, im_comm_ring *ring, int n, im_comm_rings *out)
{
    im_comm_rings r = {0};
    im_status status = allocate(ctx, n, &r);
    if (status != IM_OK) {
        im_comm_rings_free(&r);
        return status;
    }
    r.ring = ring;
    for (int i = 0; i < n; i++)
        r.view[i].known = ring[i].header.magic[0] != 0;
    look(&r);
    *out = r;
    return IM_OK;
}

/* Those of the same world as the first one that can be read. */
static im_status read_all(im_context *ctx, const char *dir, int low, int high, im_comm_ring **ring, int *n)
{
    im_comm_ring first, *all = NULL;
    im_status status = IM_ERR_NOT_FOUND;
    void *p;
    for (; low <= high && status != IM_OK; low++) {
        im_error_clear(ctx);
        status = read_rank(ctx, dir, low, &first);
    }
    IM_TRY(status); /* that of the last one, when none can be read */
    *n = first.header.world;
    im_comm_ring_free(&first);
    IM_TRY(im_alloc(ctx, (size_t)*n, sizeof *all, &p));
    all = p;
    for (int i = 0; i < *n; i++) {
        if (read_rank(ctx, dir, i, &all[i]) == IM_OK && all[i].header.world != *n)
            im_comm_ring_free(&all[i]);
        im_error_clear(ctx);
    }
    *ring = all;
    return IM_OK;
}

im_status im_comm_rings_read(im_context *ctx, const char *dir, im_comm_rings *out)
{
    im_comm_ring *ring;
    int low, high, n;
    if (!find_files(dir, &low, &high))
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: no rings of operations (rank-0, rank-1, ...) in it", dir);
    IM_TRY(read_all(ctx, dir, low, high, &ring, &n));
    im_status status = im_comm_rings_make(ctx, ring, n, out);
    for (int i = 0; status != IM_OK && i < n; i++)
        im_comm_ring_free(&ring[i]);
    if (status != IM_OK)
        free(ring);
    return status;
}

void im_comm_rings_free(im_comm_rings *r)
{
    for (int i = 0; r->ring && i < r->n; i++)
        im_comm_ring_free(&r->ring[i]);
    free(r->ring);
    free(r->view);
    free(r->pool);
    free(r->number);
    *r = (im_comm_rings){0};
}

/* ---- in words ------------------------------------------------------------------------------------- */

static void name_ranks(const im_comm_rings *r, const bool *yes, im_str *out)
{
    const im_comm all = {.size = r->n, .members = r->number};
    im_str_append(out, "rank ");
    im_comm_rank_list(&all, yes, out);
}

/* "step 12, REDUCE 3" */
static void name_place(const im_ring_header *h, im_str *out)
{
    if (h->step)
        im_str_printf(out, "step %lld, ", (long long)h->step);
    im_str_append(out, h->what[0] ? h->what : "start");
}

static void name_process(const im_ring_header *h, im_str *out)
{
    im_str_printf(out, "process %d", h->process.pid);
    if (h->process.host[0])
        im_str_printf(out, " on %s", h->process.host);
}

static bool is_silent(const im_comm_rings *r, int i)
{
    return wall_of(&r->ring[i], r->ring[i].header.alive) < r->now - SILENT;
}

static void name_life(const im_comm_rings *r, int i, im_str *out)
{
    const im_ring_view *v = &r->view[i];
    const im_ring_header *h = &r->ring[i].header;
    if (!says_nothing(&r->ring[i]))
        return;
    const char *state = v->fault == IM_RING_GONE || v->process == 'X' ? "over" : v->process == 'T' ? "stopped" : is_silent(r, i) ? "silent" : NULL;
    if (!state)
        return;
    im_str_append(out, "; ");
    name_process(h, out);
    im_str_printf(out, " is %s", state);
}

/* What is the same for ranks at the same place: without times. */
static void describe(const im_comm_rings *r, int i, im_str *out)
{
    const im_ring_view *v = &r->view[i];
    const im_ring_header *h = &r->ring[i].header;
    if (!v->known) {
        im_str_append(out, "its ring cannot be read");
        return;
    }
    name_place(h, out);
    if (v->at) {
        im_str_append(out, h->end == IM_RING_RUNS && r->live ? ": is in " : ": was in ");
        im_comm_ring_name(&r->ring[i], v->at, out);
    }
    if (v->nmissing) {
        im_str_append(out, "; not there: ");
        name_ranks(r, v->missing, out);
    }
    if (h->end == IM_RING_ENDED)
        im_str_append(out, "; ended as all did");
    if (v->fault == IM_RING_BROKE)
        im_str_append(out, "; failed by itself");
    name_life(r, i, out);
}

/* "9.98 s" in the operation, or since the place was noted. */
static double spent(const im_comm_rings *r, int i)
{
    looking k = {.r = (im_comm_rings *)(uintptr_t)r}; /* only read */
    const im_ring_header *h = &r->ring[i].header;
    if (r->view[i].at)
        return waited(&k, i, r->view[i].at);
    double end = h->ended > 0 ? h->ended : r->live ? r->now - h->wall : h->alive;
    return h->since > 0 && end > h->since ? end - h->since : 0;
}

void im_comm_rings_table(const im_comm_rings *r, im_str *out)
{
    bool *told = calloc((size_t)r->n, sizeof *told), *same = calloc((size_t)r->n, sizeof *same);
    for (int i = 0; told && same && i < r->n; i++) {
        im_str line = {0};
        double longest = 0;
        if (told[i])
            continue;
        describe(r, i, &line);
        for (int k = 0; k < r->n; k++) {
            im_str other = {0};
            if (k >= i && !told[k])
                describe(r, k, &other);
            same[k] = other.len && !strcmp(im_str_text(&line), im_str_text(&other));
            told[k] |= same[k];
            longest = same[k] && r->view[k].known ? fmax(longest, spent(r, k)) : longest;
            im_str_free(&other);
        }
        im_str_append(out, out->len ? "\n" : "");
        name_ranks(r, same, out);
        im_str_printf(out, ": %s", im_str_text(&line));
        if (r->view[i].known)
            im_str_printf(out, "; for %.3g s", longest);
        im_str_free(&line);
    }
    free(told);
    free(same);
}

/* "rank 0 1 3 waited 9.98 s in ..., operation 17": of the first rank that missed rank m. */
static void tell_waiters(const im_comm_rings *r, int m, im_str *out)
{
    int first = -1;
    bool *waits = calloc((size_t)r->n, sizeof *waits);
    double longest = 0;
    for (int i = 0; waits && i < r->n; i++) {
        const im_ring_view *v = &r->view[i];
        if (!v->nmissing || !v->missing[m])
            continue;
        first = first < 0 ? i : first;
        waits[i] = v->at->group == r->view[first].at->group && v->at->seq == r->view[first].at->seq;
        longest = waits[i] ? fmax(longest, spent(r, i)) : longest;
    }
    if (first >= 0) {
        im_str_append(out, "; ");
        name_ranks(r, waits, out);
        im_str_printf(out, " waited %.3g s for it in ", longest);
        im_comm_ring_name(&r->ring[first], r->view[first].at, out);
    }
    free(waits);
}

static void tell_neighbours(const im_comm_rings *r, int i, im_str *out)
{
    const im_ring_view *v = &r->view[i];
    if (v->last) {
        im_str_append(out, "; its last operation was ");
        im_comm_ring_name(&r->ring[i], v->last, out);
    }
    if (v->next) {
        im_str_append(out, "; called and not begun: ");
        im_comm_ring_name(&r->ring[i], v->next, out);
    }
}

/* "rank 1 called all_reduce of 64 x i32 sum, operation 17 of group [0-3] (step 7, REDUCE 0)": what each fault tells besides the rank */
static void tell_fault(const im_comm_rings *r, int i, im_str *out)
{
    static const char *const how[] = {
        [IM_RING_GONE] = "is gone",        [IM_RING_BROKE] = "failed",       [IM_RING_DIFFERS] = "called something else than its group: ",
        [IM_RING_ABSENT] = "did not come", [IM_RING_STILL] = "stands still",
    };
    const im_ring_view *v = &r->view[i];
    const im_ring_header *h = &r->ring[i].header;
    im_str_printf(out, "%srank %d %s", out->len ? "\n" : "", i, how[v->fault]);
    if (v->fault == IM_RING_DIFFERS) {
        im_comm_ring_name(&r->ring[i], v->at, out);
        return;
    }
    if (v->fault == IM_RING_GONE || v->fault == IM_RING_STILL) {
        im_str_append(out, " (");
        name_process(h, out);
        im_str_append(out, v->fault == IM_RING_GONE ? ": ended without a word, as after a kill)" : v->process == 'T' ? ": stopped)" : ": silent)");
    }
    im_str_append(out, h->end == IM_RING_RUNS && r->live && v->fault != IM_RING_GONE ? ": it is in " : ": it was in ");
    name_place(h, out);
    if (v->fault == IM_RING_BROKE) {
        im_str_printf(out, ": %s", h->text);
        return;
    }
    if (v->fault == IM_RING_ABSENT)
        name_life(r, i, out);
    tell_waiters(r, i, out);
    tell_neighbours(r, i, out);
}

static void tell_circle(const im_comm_rings *r, const bool *in, im_str *out)
{
    name_ranks(r, in, out);
    im_str_append(out, " wait for one another: operations in different orders, or one that was left out");
}

/* All of several ranks: one sentence. */
static bool tell_all_gone(const im_comm_rings *r, im_str *out)
{
    for (int i = 0; i < r->n; i++)
        if (r->live || r->n < 2 || r->view[i].fault != IM_RING_GONE)
            return false;
    im_str_printf(out, "all %d ranks are gone (rank 0: ", r->n);
    name_process(&r->ring[0].header, out);
    im_str_append(out, "): ended without a word, as after a kill, or when memory or power ran out; rank 0 was in ");
    name_place(&r->ring[0].header, out);
    tell_neighbours(r, 0, out);
    return true;
}

void im_comm_rings_verdict(const im_comm_rings *r, im_str *out)
{
    if (tell_all_gone(r, out))
        return;
    bool *circle = calloc((size_t)r->n, sizeof *circle);
    for (int i = 0; i < r->n; i++) {
        if (r->view[i].fault == IM_RING_CIRCLE && circle)
            circle[i] = true;
        else if (r->view[i].fault != IM_RING_SOUND && r->view[i].fault != IM_RING_CIRCLE)
            tell_fault(r, i, out);
    }
    if (circle && count(circle, r->n))
        tell_circle(r, circle, out);
    free(circle);
}

const char *im_ring_fault_name(im_ring_fault f)
{
    static const char *const names[] = {"sound", "gone", "failed", "differs", "absent", "still", "circle"};
    return (unsigned)f < IM_COUNT_OF(names) ? names[f] : "unknown";
}
