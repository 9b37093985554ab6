#include "plan/simulate.h"

#include "plan/meet.h"

#include <math.h>
#include <stdlib.h>

typedef struct gathering {
    int arrived;
    double start, price;
} gathering;

typedef struct simulation {
    im_context *ctx;
    const im_program *const *p;
    int n;
    im_price_fn price;
    void *arg;
    im_meetings meetings;
    gathering *gathering; /* [meeting] */
    im_timeline t;        /* end < 0: not done; start < 0: has not come */
    struct {
        uint32_t next[IM_QUEUE_MAX]; /* position in the op list */
        double free[IM_QUEUE_MAX];   /* when the queue's last op ended */
    } * queue;                       /* [rank] */
} simulation;

/* When the op may start; < 0: what it waits for has not ended. */
static double ready(const simulation *s, int r, uint32_t i)
{
    const im_bound *x = &s->p[r]->bound[i];
    double from = s->queue[r].free[x->op->queue];
    for (int w = 0; w < x->nwait; w++) {
        double end = s->t.end[r][x->wait[w]];
        if (end < 0)
            return -1;
        from = fmax(from, end);
    }
    return from;
}

/* Runs the op if it can; *came: it arrived at a meeting where others are missing. */
static bool run_op(simulation *s, int r, uint32_t i, bool *came)
{
    const im_bound *x = &s->p[r]->bound[i];
    int32_t m = s->meetings.of[r][i];
    double *start = &s->t.start[r][i], *end = &s->t.end[r][i];
    if (*start < 0) {
        double from = ready(s, r, i);
        if (from < 0)
            return false;
        double price = s->price ? s->price(s->arg, s->p[r], x) : 0;
        *start = from;
        if (m < 0) {
            *end = from + price;
        } else {
            gathering *g = &s->gathering[m];
            g->start = fmax(g->start, from);
            g->price = fmax(g->price, price);
            g->arrived++;
            *came = true;
        }
    }
    if (m >= 0) {
        const gathering *g = &s->gathering[m];
        if (g->arrived < s->meetings.meeting[m].members)
            return false;
        *start = g->start;
        *end = g->start + g->price;
    }
    s->queue[r].free[x->op->queue] = *end;
    s->t.total = fmax(s->t.total, *end);
    return true;
}

/* One pass over a rank: every queue runs what it can. */
static bool advance(simulation *s, int r)
{
    const im_program *p = s->p[r];
    bool moved = false;
    for (unsigned q = 0; q < IM_QUEUE_MAX; q++)
        for (uint32_t *i = &s->queue[r].next[q]; *i < p->nbound; ++*i) {
            if (p->bound[*i].op->queue == q && !run_op(s, r, *i, &moved))
                break;
            moved |= p->bound[*i].op->queue == q;
        }
    return moved;
}

static im_status stuck(const simulation *s)
{
    im_str text = {0};
    for (int r = 0; r < s->n; r++)
        for (uint32_t i = 0; i < s->p[r]->nbound; i++)
            if (s->t.end[r][i] < 0) {
                im_str_printf(&text, "%srank %d at ", text.len ? ", " : "", r);
                im_step_print(&s->p[r]->step[s->p[r]->bound[i].step], &text);
                break;
            }
    im_status status = text.len ? im_fail(s->ctx, IM_ERR_CHECK, "deadlock: %s", im_str_text(&text)) : IM_OK;
    im_str_free(&text);
    return status;
}

static bool make_room(simulation *s)
{
    s->gathering = calloc((size_t)s->meetings.count + 1, sizeof *s->gathering);
    s->queue = calloc((size_t)s->n + 1, sizeof *s->queue);
    s->t.start = calloc((size_t)s->n + 1, sizeof *s->t.start);
    s->t.end = calloc((size_t)s->n + 1, sizeof *s->t.end);
    if (!s->gathering || !s->queue || !s->t.start || !s->t.end)
        return false;
    for (int r = 0; r < s->n; r++) {
        size_t n = s->p[r]->nbound;
        s->t.start[r] = malloc(sizeof(double) * (n + 1));
        s->t.end[r] = malloc(sizeof(double) * (n + 1));
        if (!s->t.start[r] || !s->t.end[r])
            return false;
        for (size_t i = 0; i < n; i++)
            s->t.start[r][i] = s->t.end[r][i] = -1;
    }
    return true;
}

im_status im_simulate(im_context *ctx, const im_program *const *ranks, int n, im_price_fn price, void *arg, im_timeline *out)
{
    simulation s = {.ctx = ctx, .p = ranks, .n = n, .price = price, .arg = arg, .t = {.n = n}};
    IM_TRY(im_meetings_find(ctx, ranks, n, &s.meetings));
    im_status status = IM_OK;
    if (!make_room(&s))
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory to run %d programs in time", n);
    for (bool moved = status == IM_OK; moved;) {
        moved = false;
        for (int r = 0; r < n; r++)
            moved |= advance(&s, r);
    }
    if (status == IM_OK)
        status = stuck(&s);
    free(s.gathering);
    free(s.queue);
    im_meetings_free(&s.meetings);
    if (status == IM_OK)
        *out = s.t;
    else
        im_timeline_free(&s.t);
    return status;
}

void im_timeline_free(im_timeline *t)
{
    for (int r = 0; r < t->n; r++) {
        if (t->start)
            free(t->start[r]);
        if (t->end)
            free(t->end[r]);
    }
    free(t->start);
    free(t->end);
    *t = (im_timeline){0};
}
