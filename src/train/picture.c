/* What a run shows of its last steps: trace.json of all ranks (with --trace), and the pipeline's picture, planned above measured.
 *
 * Each rank leaves its part in logs/; when all have ended rank 0 puts them together and removes them.
 */
#include "train/internal.h"

#include "engine/agree.h"

#include "train/planned.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IM_PICTURE_MAX = 1 << 28 };

static const char *const queue_names[] = {
    [IM_QUEUE_COMPUTE] = "compute",
    [IM_QUEUE_COPY] = "copy",
    [IM_QUEUE_IO] = "io",
    [IM_QUEUE_REDUCE] = "reduce gradients",
    [IM_QUEUE_GATHER] = "gather weights",
    [IM_QUEUE_PIPE + IM_CH_ACT_IN] = "activations in",
    [IM_QUEUE_PIPE + IM_CH_ACT_OUT] = "activations out",
    [IM_QUEUE_PIPE + IM_CH_GRAD_IN] = "gradients in",
    [IM_QUEUE_PIPE + IM_CH_GRAD_OUT] = "gradients out",
    [IM_QUEUE_TP] = "tensor parallel",
};

static bool draws(const im_train_run *r)
{
    return r->plan.mesh.pp > 1 && r->ranks <= IM_PLANNED_RANKS;
}

im_status im_train_spans_open(im_train_run *r)
{
    r->trace = NULL; /* a member's run begins as a copy of rank 0's */
    if (!r->o.trace && !draws(r))
        return IM_OK;
    size_t ops = im_engine_program(r->engine, 0)->nbound;
    IM_TRY(im_observe_trace_create(r->ctx, r->o.trace && ops < 1 << 15 ? (size_t)1 << 17 : 4 * ops + 64, &r->trace));
    im_device_on_span(r->device, im_observe_trace_span, r->trace);
    return IM_OK;
}

static bool part_path(const im_train_run *r, const char *what, int rank, char *out, size_t size)
{
    return snprintf(out, size, "%s/../logs/%s-rank-%d", r->checkpoints, what, rank) < (int)size;
}

/* ---- a rank's part ------------------------------------------------------------------- */

typedef struct teller {
    const im_train_run *r;
    im_str text;
} teller;

/* A message is the same at both ends by the value it carries, the run of the program and the column of the mesh. */
static void tell(void *arg, size_t program, uint64_t run, uint32_t tag, im_observe_span_info *out)
{
    teller *t = arg;
    const im_program *p = im_engine_program(t->r->engine, program);
    out->instruction = im_engine_instruction(t->r->engine, program, tag, &t->text);
    if (!p || tag >= p->nbound)
        return;
    const im_bound *x = &p->bound[tag];
    if (x->op->collective != IM_COLL_SEND && x->op->collective != IM_COLL_RECV)
        return;
    im_place at = p->layout->place;
    int64_t key[] = {(int64_t)run, (int64_t)program, x->value[0].owner, x->value[0].index, x->value[0].mb, at.tp, at.cp, at.dp};
    out->flow = im_hash64(key, sizeof key, 0) >> 12 | 1; /* exact in a double */
    out->receives = x->op->collective == IM_COLL_RECV;
}

static im_status leave_trace(im_train_run *r, uint64_t first)
{
    char path[IM_TRAIN_PATH + 64];
    if (!part_path(r, "trace", r->rank, path, sizeof path))
        return im_fail(r->ctx, IM_ERR_ARG, "%s: the path is too long", r->checkpoints);
    teller t = {.r = r};
    im_str out = {0};
    im_observe_trace_part(r->trace, r->rank, first, queue_names, IM_COUNT_OF(queue_names), tell, &t, &out);
    im_status status = out.failed ? im_fail(r->ctx, IM_ERR_NOMEM, "no memory for the trace") : im_file_write_atomic(r->ctx, path, out.data, out.len);
    im_str_free(&out);
    im_str_free(&t.text);
    return status;
}

typedef struct collector {
    const im_program *p;
    im_drawing *d;
} collector;

static void collect(void *arg, uint32_t tag, double t0, double t1)
{
    collector *c = arg;
    if (tag < c->p->nbound)
        im_drawing_add(c->d, c->p, tag, t0, t1);
}

static im_status leave_spans(im_train_run *r)
{
    char path[IM_TRAIN_PATH + 64];
    if (!part_path(r, "spans", r->rank, path, sizeof path))
        return im_fail(r->ctx, IM_ERR_ARG, "%s: the path is too long", r->checkpoints);
    im_drawing d = {0};
    collector c = {im_engine_program(r->engine, 0), &d};
    im_observe_trace_each(r->trace, 0, collect, &c);
    im_str out = {0};
    for (size_t i = 0; i < d.n; i++)
        im_str_printf(&out, "%d %d %d %d %.9f %.9f\n", d.span[i].rank, d.span[i].kind, d.span[i].chunk, d.span[i].mb, d.span[i].start, d.span[i].end);
    im_status status = d.failed || out.failed ? im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a picture")
                                              : im_file_write_atomic(r->ctx, path, im_str_text(&out), out.len);
    im_str_free(&out);
    im_drawing_free(&d);
    return status;
}

/* Clocks count from a machine's start: those of another machine than rank 0's are set to its clock, as near as the ranks leave a meeting together. Ranks of
 * one machine have one clock, and are seconds apart only if they sleep. */
static im_status one_clock(im_train_run *r)
{
    double here = im_clock_now(), first = here;
    IM_TRY(im_engine_share(r->engine, &first, sizeof first, 0));
    if (fabs(first - here) > 10)
        im_observe_trace_shift(r->trace, first - here);
    return IM_OK;
}

im_status im_train_spans_leave(im_train_run *r)
{
    if (!r->trace)
        return IM_OK;
    IM_TRY(im_device_sync(r->device)); /* a span still running would be lost */
    double first = (double)im_observe_trace_first(r->trace, IM_TRAIN_TRACE_STEPS);
    IM_TRY(im_engine_combine(r->engine, &first, 1, IM_MAX)); /* runs of which every rank has all spans */
    IM_TRY(one_clock(r));
    im_status status = r->o.trace ? leave_trace(r, (uint64_t)first) : IM_OK;
    if (status == IM_OK && draws(r))
        status = leave_spans(r);
    return im_engine_agree(r->engine, r->ctx, status); /* all parts are there before rank 0 looks for them */
}

/* ---- rank 0: all parts ------------------------------------------------------------------ */

static im_status join_trace(im_train_run *r)
{
    char path[IM_TRAIN_PATH + 64];
    char **part = calloc((size_t)r->ranks, sizeof *part);
    im_status status = part ? IM_OK : im_fail(r->ctx, IM_ERR_NOMEM, "no memory for the trace");
    for (int i = 0; i < r->ranks && status == IM_OK; i++) {
        size_t len;
        if (part_path(r, "trace", i, path, sizeof path) && (status = im_file_read(r->ctx, path, IM_PICTURE_MAX, &part[i], &len)) == IM_OK)
            unlink(path);
    }
    if (status == IM_OK) {
        snprintf(path, sizeof path, "%s/trace.json", r->o.out);
        status = im_observe_trace_join(r->ctx, path, (const char *const *)part, (size_t)r->ranks);
    }
    for (int i = 0; part && i < r->ranks; i++)
        free(part[i]);
    free(part);
    return status;
}

static im_status read_spans(im_train_run *r, int rank, im_drawing *d)
{
    char path[IM_TRAIN_PATH + 64], *text;
    size_t len;
    if (!part_path(r, "spans", rank, path, sizeof path))
        return im_fail(r->ctx, IM_ERR_ARG, "%s: the path is too long", r->checkpoints);
    IM_TRY(im_file_read(r->ctx, path, IM_PICTURE_MAX, &text, &len));
    unlink(path);
    for (char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        im_draw_span s;
        int at, kind, chunk, mb;
        double t0, t1;
        if (sscanf(line, "%d %d %d %d %lf %lf", &at, &kind, &chunk, &mb, &t0, &t1) != 6 || at != rank || kind < 0 || kind >= IM_DRAW_KIND_COUNT)
            continue;
        s = (im_draw_span){at, (uint8_t)kind, (uint8_t)chunk, mb, t0, t1};
        im_drawing_append(d, s);
    }
    free(text);
    return IM_OK;
}

static im_status measured(im_train_run *r, im_drawing *d)
{
    double first = HUGE_VAL;
    for (int i = 0; i < r->ranks; i++)
        IM_TRY(read_spans(r, i, d));
    for (size_t i = 0; i < d->n; i++)
        first = fmin(first, d->span[i].start);
    d->ranks = r->ranks;
    d->end = 0;
    for (size_t i = 0; i < d->n; i++) {
        d->span[i].start -= first;
        d->span[i].end -= first;
        d->end = fmax(d->end, d->span[i].end);
    }
    return d->failed ? im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a picture") : IM_OK;
}

static im_status draw(im_train_run *r)
{
    char path[IM_TRAIN_PATH + 64];
    im_drawing plan = {0}, real = {0};
    im_str svg = {0};
    im_status status;
    const im_drawing *both[] = {&plan, &real};
    const char *titles[] = {"planned", "measured, the last step"};
    IM_TRY_GOTO(measured(r, &real), drawings);
    im_train_rates rates = {.pace = r->pace, .latency = 10e-6};
    if (!im_train_paced(r))
        IM_TRY_GOTO(im_train_rank_pace(r, &rates.pace), drawings);
    IM_TRY_GOTO(im_train_planned(r->ctx, &r->plan, &rates, &plan), drawings);
    im_drawing_svg(both, titles, 2, &svg);
    snprintf(path, sizeof path, "%s/pipeline.svg", r->o.out);
    status = svg.failed ? im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a picture") : im_file_write_atomic(r->ctx, path, svg.data, svg.len);
    if (status == IM_OK)
        im_train_say(r, IM_TRAIN_TEXT_EVENT, "pipeline    bubble planned %.1f %%, measured %.1f %%; %s", 100 * im_drawing_bubble(&plan),
                     100 * im_drawing_bubble(&real), path);
drawings:
    im_str_free(&svg);
    im_drawing_free(&plan);
    im_drawing_free(&real);
    return status;
}

im_status im_train_spans_join(im_train_run *r)
{
    if (!r->trace || r->rank)
        return IM_OK;
    if (r->o.trace)
        IM_TRY(join_trace(r));
    return draws(r) ? draw(r) : IM_OK;
}
