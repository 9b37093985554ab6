/* Bytes of a rank: what the layout says, and a walk over the schedule's tasks with what each micro-batch keeps. */
#include "plan/search_parts.h"

#include <math.h>
#include <stdlib.h>

im_run im_outline_run(const im_outline *o, int virtual_stage)
{
    int n = o->plan.mesh.pp * im_plan_chunks(&o->plan);
    im_run r = {.n = o->blocks[virtual_stage], .embed = virtual_stage == 0, .head = virtual_stage + 1 == n};
    for (int i = 0; i < virtual_stage && o->mini->kinds > 1; i++) /* else all are alike */
        r.first += o->blocks[i];
    return r;
}

im_task *im_task_room_for(im_task_room *r, size_t n)
{
    if (n > r->cap) {
        free(r->task);
        r->cap = n * 2;
        r->task = malloc(r->cap * sizeof *r->task);
        if (!r->task)
            r->cap = 0;
    }
    return r->task;
}

double *im_task_room_ends(im_task_room *r, size_t n)
{
    if (n > r->ncap) {
        free(r->end);
        r->ncap = n * 2;
        r->end = malloc(r->ncap * sizeof *r->end);
        if (!r->end)
            r->ncap = 0;
    }
    return r->end;
}

void im_task_room_free(im_task_room *r)
{
    free(r->task);
    free(r->end);
    *r = (im_task_room){0};
}

static double ceil16(double elements)
{
    return 16 * ceil(elements / 16);
}

typedef struct holding {
    double elements, shard; /* of all; of this rank under ZeRO */
    double largest, second; /* units whose weights are whole at a time (ZeRO 3): the two that stand side by side */
} holding;

static void hold(const im_outline *o, double n, holding *h)
{
    if (n <= 0)
        return;
    h->elements += n;
    h->shard += ceil16(n / o->plan.mesh.dp);
    if (n > h->largest) {
        h->second = h->largest;
        h->largest = n;
    } else if (n > h->second) {
        h->second = n;
    }
}

static holding holds(const im_outline *o, int stage)
{
    holding h = {0};
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp;
    int64_t blocks = 0;
    for (int c = 0; c < v; c++)
        blocks += o->blocks[c * pp + stage];
    hold(o, o->weights->block, &h);
    if (blocks > 1)
        hold(o, o->weights->block, &h);
    h.elements += (double)(blocks - 2 > 0 ? blocks - 2 : 0) * o->weights->block;
    h.shard += (double)(blocks - 2 > 0 ? blocks - 2 : 0) * ceil16(o->weights->block / o->plan.mesh.dp);
    if (stage == 0)
        hold(o, o->weights->embed, &h);
    if (stage + 1 == pp)
        hold(o, o->weights->head, &h);
    if (stage == 0 || stage + 1 == pp)
        hold(o, o->weights->tied, &h);
    return h;
}

/* Weights, gradients, optimizer state, and what ZeRO has whole for a moment. */
static double state(const im_outline *o, int stage)
{
    holding h = holds(o, stage);
    int zero = o->plan.zero;
    double e = (double)im_dtype_size(o->plan.precision), w = zero == 3 ? h.shard : h.elements, g = zero >= 2 ? h.shard : h.elements;
    double opt = zero >= 1 ? h.shard : h.elements;
    double comm = (zero >= 2 ? 4 * h.largest + 4 * ceil16(h.largest / o->plan.mesh.dp) : 0) + (zero == 3 ? e * (h.largest + h.second) : 0);
    return w * e + g * 4 + opt * 4 * (e == 4 ? 2 : 3) + comm;
}

static double always(const im_outline *o)
{
    return o->piece->fixed + o->piece->scratch + o->m * o->piece->carry;
}

/* Bytes that a virtual stage keeps of one micro-batch: what its blocks say, its input and its outputs. */
static double kept_of(const im_outline *o, int virtual_stage, bool stash)
{
    im_run r = im_outline_run(o, virtual_stage);
    double bytes = stash ? 0 : (double)(r.n + 1) * o->piece->edge;
    const double *of = stash ? o->piece->stash : o->piece->kept;
    if (o->mini->kinds == 1)
        return bytes + (double)r.n * of[0];
    for (int64_t b = r.first; b < r.first + r.n; b++)
        bytes += of[o->mini->kind[b]];
    return bytes;
}

/* Of one stage: the most that its tasks keep at once, and what the part at hand works with. */
static double walk(const im_outline *o, int stage, const im_task *task, size_t n)
{
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp;
    const im_piece *q = o->piece;
    double kept[IM_MAX_CHUNKS], stash[IM_MAX_CHUNKS], alive = 0, most = 0;
    for (int c = 0; c < v; c++) {
        kept[c] = kept_of(o, c * pp + stage, false);
        stash[c] = kept_of(o, c * pp + stage, true);
    }
    for (size_t i = 0; i < n; i++) {
        int c = task[i].chunk;
        bool head = stage + 1 == pp && c + 1 == v, embed = stage == 0 && c == 0;
        double work = task[i].part == IM_PART_FORWARD ? q->work_forward : task[i].part == IM_PART_WEIGHT ? q->work_weight : q->work_back;
        if (head && (task[i].part == IM_PART_BACKWARD || task[i].part == IM_PART_INPUT))
            work = fmax(work, q->work_head);
        if (embed)
            work = fmax(work, q->work_embed);
        if (task[i].part == IM_PART_FORWARD)
            alive += kept[c];
        most = fmax(most, alive + work);
        if (task[i].part == IM_PART_BACKWARD)
            alive -= kept[c];
        else if (task[i].part == IM_PART_INPUT)
            alive += stash[c] - kept[c];
        else if (task[i].part == IM_PART_WEIGHT)
            alive -= stash[c];
    }
    return most;
}

/* What its tasks and their work cannot exceed. */
static double walk_limit(const im_outline *o, int stage)
{
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp;
    const im_piece *q = o->piece;
    double most = 0, work = fmax(fmax(q->work_forward, q->work_back),
                                 fmax(q->work_weight, fmax(stage + 1 == pp ? q->work_head : 0, stage ? 0 : q->work_embed)));
    for (int c = 0; c < v; c++)
        most = fmax(most, fmax(kept_of(o, c * pp + stage, false), kept_of(o, c * pp + stage, true)));
    return most * im_schedule_of(o->plan.schedule)->alive(pp, o->m, v, stage) + work;
}

/* Gradients that were sent and whose memory waits for a sign that they have arrived (place.c). */
static double sent(const im_outline *o, int stage)
{
    int pp = o->plan.mesh.pp, v = im_plan_chunks(&o->plan);
    if (pp == 1 || (stage == 0 && v == 1))
        return 0;
    int ahead = im_schedule_of(o->plan.schedule)->alive(pp, o->m, v, (stage + pp - 1) % pp);
    return (ahead < o->m ? ahead : o->m) * o->piece->edge;
}

/* More micro-batches keep no more at once than these many do, but for GPipe, which keeps all. */
static int enough(const im_outline *o)
{
    int pp = o->plan.mesh.pp, most = 3 * pp + (o->plan.schedule == IM_SCHEDULE_INTERLEAVED ? o->m % pp : 0);
    return o->plan.schedule == IM_SCHEDULE_GPIPE || o->m < most ? o->m : most;
}

double im_outline_memory(const im_outline *o, int *fullest, im_task_room *room)
{
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp, m = enough(o);
    im_task *task = im_task_room_for(room, 3 * (size_t)m * (size_t)v + 1);
    double most = -1;
    for (int s = 0; task && s < pp; s++) {
        double rest = state(o, s) + sent(o, s) + always(o);
        if (rest + walk_limit(o, s) <= most)
            continue;
        size_t n = im_schedule_of(o->plan.schedule)->tasks(pp, m, v, s, task);
        double bytes = rest + walk(o, s, task, n);
        if (bytes > most) {
            most = bytes;
            *fullest = s;
        }
    }
    return most;
}

/* Micro-batches whose forwards come before the first backward of a stage, at least; where that is split, the schedule's own figure is of both its parts. */
static int surely_alive(const im_outline *o, int stage)
{
    int pp = o->plan.mesh.pp;
    if (!im_schedule_of(o->plan.schedule)->splits)
        return im_schedule_of(o->plan.schedule)->alive(pp, o->m, im_plan_chunks(&o->plan), stage);
    int n = o->plan.schedule == IM_SCHEDULE_ZB_H2 ? 2 * (pp - stage) - 1 : o->plan.schedule == IM_SCHEDULE_ZB_H1 ? pp - stage : 1;
    return n < o->m ? n : o->m;
}

double im_outline_memory_bound(const im_outline *o, double batch)
{
    int v = im_plan_chunks(&o->plan), pp = o->plan.mesh.pp;
    double most = 0,
           rows = o->plan.sequence_parallel ? floor((double)o->plan.seq_len / o->plan.mesh.tp) / ceil((double)o->plan.seq_len / o->plan.mesh.tp) : 1;
    double edge = fmax(0, o->piece->edge * rows - 64), kept = INFINITY; /* what rounding may have added of one sequence */
    for (int k = 0; k < o->mini->kinds; k++)
        kept = fmin(kept, fmax(0, o->piece->kept[k] * rows - 64 * IM_SAVED_COUNT));
    for (int i = 0; i < (pp > 1 ? 2 : 1); i++) {
        int s = i ? pp - 1 : 0;
        double least = INFINITY; /* of its chunks: any may be the ones that are alive */
        for (int c = 0; c < v; c++)
            least = fmin(least, (double)(o->blocks[c * pp + s] + 1) * edge + (double)o->blocks[c * pp + s] * kept);
        int alive = surely_alive(o, s);
        most = fmax(most, state(o, s) + batch * alive * least);
    }
    return most;
}
