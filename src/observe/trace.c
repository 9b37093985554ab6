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
    uint64_t run;
    uint32_t tag;
    uint16_t queue, program;
} im_span;

struct im_observe_trace {
    pthread_mutex_t lock;
    im_span *ring;
    size_t capacity;
    uint64_t count; /* spans ever */
    int64_t step;
    uint64_t run; /* begun so far */
    bool open;    /* between begin and end */
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
    t->run++;
    t->open = true;
    t->step_began = im_clock_now();
    pthread_mutex_unlock(&t->lock);
}

void im_observe_trace_end(im_observe_trace *t)
{
    im_observe_trace_span(t, IM_STEP_ROW, "step", UINT32_MAX, t->step_began, im_clock_now());
    pthread_mutex_lock(&t->lock);
    t->open = false;
    pthread_mutex_unlock(&t->lock);
}

void im_observe_trace_span(void *arg, unsigned queue, const char *name, uint32_t tag, double t0, double t1)
{
    im_observe_trace *t = arg;
    pthread_mutex_lock(&t->lock);
    if (t->open)
        t->ring[t->count++ % t->capacity] =
            (im_span){.t0 = t0, .t1 = t1, .name = name, .step = t->step, .run = t->run, .tag = tag, .queue = (uint16_t)queue, .program = t->program};
    pthread_mutex_unlock(&t->lock);
}

/* The number of a row. Viewers take number 0, and the process's own, for its main thread, and put rows of one number together. */
static unsigned thread_of(int rank, unsigned row)
{
    return 100000 + 100 * (unsigned)rank + row;
}

static void row_name(im_str *out, int rank, unsigned row, const char *name)
{
    im_str_printf(out, ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %u, \"args\": {\"name\": ", rank, thread_of(rank, row));
    im_str_json_string(out, name, strlen(name));
    im_str_append(out, "}}");
}

/* Whole nanoseconds, so that one span's end is not after the next one's beginning by how they are written. */
static int64_t whole_ns(double seconds)
{
    return llround(seconds * 1e9);
}

/* Microseconds, as the format has them. */
static void append_us(im_str *out, const char *key, int64_t ns)
{
    im_str_printf(out, ", \"%s\": %" PRId64 ".%03" PRId64, key, ns / 1000, ns % 1000);
}

/* The arrow of a message: from the beginning of its SEND to the end of its RECV, which lie within these spans. */
static void append_flow(im_str *out, int rank, const im_span *s, const im_observe_span_info *info)
{
    int64_t t0 = whole_ns(s->t0), t1 = whole_ns(s->t1);
    if (!info->flow)
        return;
    im_str_printf(out, ",\n{\"ph\": \"%s\", \"cat\": \"message\", \"name\": \"message\", \"id\": %" PRIu64 ", \"pid\": %d, \"tid\": %u",
                  info->receives ? "f" : "s", info->flow, rank, thread_of(rank, s->queue));
    append_us(out, "ts", !info->receives || t1 == t0 ? t0 : t1 - 1);
    im_str_append(out, info->receives ? ", \"bp\": \"e\"}" : "}");
}

static void append_span(im_str *out, int rank, const im_span *s, im_observe_info_fn fn, void *arg)
{
    im_observe_span_info info = {0};
    if (fn && s->tag != UINT32_MAX)
        fn(arg, s->program, s->run, s->tag, &info);
    im_str_append(out, ",\n{\"ph\": \"X\", \"name\": ");
    im_str_json_string(out, s->name, strlen(s->name));
    im_str_printf(out, ", \"pid\": %d, \"tid\": %u", rank, thread_of(rank, s->queue));
    append_us(out, "ts", whole_ns(s->t0));
    append_us(out, "dur", whole_ns(s->t1) - whole_ns(s->t0));
    im_str_printf(out, ", \"args\": {\"step\": %" PRId64, s->step);
    if (info.instruction && *info.instruction) {
        im_str_append(out, ", \"instruction\": ");
        im_str_json_string(out, info.instruction, strlen(info.instruction));
    }
    im_str_append(out, "}}");
    append_flow(out, rank, s, &info);
}

static uint64_t oldest(const im_observe_trace *t)
{
    return t->count > t->capacity ? t->count - t->capacity : 0;
}

uint64_t im_observe_trace_first(im_observe_trace *t, uint64_t runs)
{
    pthread_mutex_lock(&t->lock);
    uint64_t first = t->run > runs ? t->run - runs + 1 : 1;
    if (t->count > t->capacity && t->ring[oldest(t) % t->capacity].run >= first)
        first = t->ring[oldest(t) % t->capacity].run + 1;
    pthread_mutex_unlock(&t->lock);
    return first;
}

void im_observe_trace_shift(im_observe_trace *t, double seconds)
{
    pthread_mutex_lock(&t->lock);
    for (uint64_t i = oldest(t); i < t->count; i++) {
        t->ring[i % t->capacity].t0 += seconds;
        t->ring[i % t->capacity].t1 += seconds;
    }
    pthread_mutex_unlock(&t->lock);
}

void im_observe_trace_part(im_observe_trace *t, int rank, uint64_t first, const char *const *queue_name, size_t nqueue, im_observe_info_fn info,
                           void *arg, im_str *out)
{
    im_str_printf(out, ",\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}}", rank, rank);
    im_str_printf(out, ",\n{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %d, \"args\": {\"sort_index\": %d}}", rank, rank);
    for (size_t q = 0; q < nqueue; q++)
        if (queue_name[q])
            row_name(out, rank, (unsigned)q, queue_name[q]);
    row_name(out, rank, IM_STEP_ROW, "steps");
    pthread_mutex_lock(&t->lock);
    for (uint64_t i = oldest(t); i < t->count; i++)
        if (t->ring[i % t->capacity].run >= first)
            append_span(out, rank, &t->ring[i % t->capacity], info, arg);
    pthread_mutex_unlock(&t->lock);
}

im_status im_observe_trace_join(im_context *ctx, const char *path, const char *const *part, size_t n)
{
    im_str out = {0};
    im_str_append(&out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const char *text = part[i];
        if (!any && *text == ',') /* behind a comma, but for the first of all */
            text++;
        any |= *text != 0;
        im_str_append(&out, text);
    }
    im_str_append(&out, "\n]}\n");
    im_status status =
        out.failed ? im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for the trace", path) : im_file_write_atomic(ctx, path, out.data, out.len);
    im_str_free(&out);
    return status;
}

void im_observe_trace_each(im_observe_trace *t, size_t program, im_observe_each_fn fn, void *arg)
{
    pthread_mutex_lock(&t->lock);
    for (uint64_t i = oldest(t); i < t->count; i++) {
        const im_span *s = &t->ring[i % t->capacity];
        if (s->run == t->run && s->program == program && s->tag != UINT32_MAX)
            fn(arg, s->tag, s->t0, s->t1);
    }
    pthread_mutex_unlock(&t->lock);
}
