/* Spans in a ring; written at the end as Chrome's trace events, which Perfetto opens. One mutex: a span costs the
 * queue's thread about 50 ns, an op costs microseconds. */
#include "observe/observe.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { IM_STEP_ROW = 99 }; /* the row that shows whole steps */

typedef struct im_span {
    double t0, t1;
    const char *name;
    int64_t step;
    uint32_t tag;
    uint16_t queue, program;
} im_span;

struct im_observe_trace {
    pthread_mutex_t lock;
    im_span *ring;
    size_t capacity;
    uint64_t count; /* spans ever */
    int64_t step;
    uint16_t program;
    double step_began;
};

im_status im_observe_trace_create(im_context *ctx, size_t capacity, im_observe_trace **out)
{
    void *memory, *ring;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_observe_trace), &memory));
    im_status status = im_alloc(ctx, capacity, sizeof(im_span), &ring);
    if (status != IM_OK) {
        free(memory);
        return status;
    }
    im_observe_trace *t = memory;
    t->ring = ring;
    t->capacity = capacity;
    pthread_mutex_init(&t->lock, NULL);
    *out = t;
    return IM_OK;
}

void im_observe_trace_destroy(im_observe_trace *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t->ring);
    free(t);
}

void im_observe_trace_begin(im_observe_trace *t, int64_t step, size_t program)
{
    pthread_mutex_lock(&t->lock);
    t->step = step;
    t->program = (uint16_t)program;
    t->step_began = im_clock_now();
    pthread_mutex_unlock(&t->lock);
}

void im_observe_trace_end(im_observe_trace *t)
{
    im_observe_trace_span(t, IM_STEP_ROW, "step", UINT32_MAX, t->step_began, im_clock_now());
}

void im_observe_trace_span(void *arg, unsigned queue, const char *name, uint32_t tag, double t0, double t1)
{
    im_observe_trace *t = arg;
    pthread_mutex_lock(&t->lock);
    t->ring[t->count++ % t->capacity] =
        (im_span){.t0 = t0, .t1 = t1, .name = name, .step = t->step, .tag = tag, .queue = (uint16_t)queue, .program = t->program};
    pthread_mutex_unlock(&t->lock);
}

static void row_name(im_str *out, unsigned row, const char *name)
{
    im_str_printf(out, ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 0, \"tid\": %u, \"args\": {\"name\": ", row);
    im_str_json_string(out, name, strlen(name));
    im_str_append(out, "}}");
}

static void append_span(im_str *out, const im_span *s, double zero, im_observe_label_fn label, void *arg, im_str *text)
{
    const char *what = NULL;
    if (label && s->tag != UINT32_MAX) {
        text->len = 0;
        what = label(arg, s->program, s->tag, text);
    }
    im_str_append(out, ",\n{\"ph\": \"X\", \"name\": ");
    im_str_json_string(out, s->name, strlen(s->name));
    im_str_printf(out, ", \"pid\": 0, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %" PRId64, s->queue, (s->t0 - zero) * 1e6,
                  (s->t1 - s->t0) * 1e6, s->step);
    if (what && *what) {
        im_str_append(out, ", \"instruction\": ");
        im_str_json_string(out, what, strlen(what));
    }
    im_str_append(out, "}}");
}

/* A span is noted when it ends, so the first one noted need not be the first to begin. */
static double earliest(const im_observe_trace *t, uint64_t first, int64_t steps)
{
    double zero = HUGE_VAL;
    for (uint64_t i = first; i < t->count; i++) {
        const im_span *s = &t->ring[i % t->capacity];
        if (s->step > t->step - steps && s->t0 < zero)
            zero = s->t0;
    }
    return zero;
}

im_status im_observe_trace_write(im_context *ctx, im_observe_trace *t, const char *path, int64_t steps, const char *const *queue_name, size_t nqueue,
                                 im_observe_label_fn label, void *label_arg)
{
    im_str out = {0}, text = {0};
    im_str_append(&out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                        "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"args\": {\"name\": \"rank 0\"}}");
    for (size_t q = 0; q < nqueue; q++)
        row_name(&out, (unsigned)q, queue_name[q]);
    row_name(&out, IM_STEP_ROW, "steps");
    pthread_mutex_lock(&t->lock);
    uint64_t first = t->count > t->capacity ? t->count - t->capacity : 0;
    double zero = earliest(t, first, steps);
    for (uint64_t i = first; i < t->count; i++) {
        const im_span *s = &t->ring[i % t->capacity];
        if (s->step <= t->step - steps)
            continue;
        append_span(&out, s, zero, label, label_arg, &text);
    }
    pthread_mutex_unlock(&t->lock);
    im_str_append(&out, "\n]}\n");
    im_status status =
        out.failed ? im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the trace", path) : im_file_write_atomic(ctx, path, out.data, out.len);
    im_str_free(&out);
    im_str_free(&text);
    return status;
}
