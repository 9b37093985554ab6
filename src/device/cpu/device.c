/* The CPU device: arenas are anonymous mappings, queues run inline or on threads of their own.
 *
 * One mutex and one condition guard all queue state of a device: an item costs microseconds at least, and a
 * device has a handful of queues. Work itself runs outside the lock.
 *
 * A queue's timeline: `pushed` counts items (work and waits) in the order of the calls, `completed` those that
 * are over. Event {q, v} is done when completed(q) >= v.
 */
#include "device/device.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { IM_RING = 1024 };

typedef struct im_item {
    bool is_wait;
    im_event wait;
    im_work work;
    im_buffer buf[IM_WORK_MAX_BUFFERS];
} im_item;

struct im_queue {
    im_device *device;
    unsigned id;
    bool threaded, running;
    bool idle;        /* its thread sleeps until there is something for it; guarded */
    bool busy;        /* an item runs: on its thread, or on that of who waits for it; guarded */
    uint64_t wake_at; /* the least value that somebody sleeps for; UINT64_MAX: nobody; guarded */
    pthread_t thread;
    im_item *ring;              /* threaded: IM_RING items */
    uint32_t tag;               /* of work without one */
    double late;                /* seconds that its last sleep took too long */
    uint64_t pushed, completed; /* guarded by the device's lock */
    im_status status;           /* first error; guarded */
    uint64_t failed_at;         /* value of the item that failed */
};

typedef struct im_region {
    char *base;
    size_t nbytes, mapped;
} im_region;

struct im_device {
    im_context *ctx;
    im_device_config cfg;
    im_region region[IM_CLASS_COUNT];
    im_queue *queue[IM_QUEUE_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int active; /* deferred: items running now; arenas are readable while > 0 */
    bool closing;
    im_span_fn on_span;
    void *on_span_arg;
};

/* ---- arenas ------------------------------------------------------------- */

static void protect(im_device *d, int prot)
{
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        if (d->region[c].mapped)
            (void)mprotect(d->region[c].base, d->region[c].mapped, prot);
}

im_status im_device_reserve(im_device *d, im_class c, size_t nbytes)
{
    im_region *r = &d->region[c];
    if (r->mapped || r->nbytes)
        return im_fail(d->ctx, IM_ERR_INTERNAL, "arena of %s is reserved already", im_class_name(c));
    if (!nbytes)
        return IM_OK;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (nbytes > SIZE_MAX - page)
        return im_fail(d->ctx, IM_ERR_NOMEM, "arena of %s: %zu bytes are too many", im_class_name(c), nbytes);
    size_t mapped = (nbytes + page - 1) / page * page;
    void *p = mmap(NULL, mapped, d->cfg.deferred ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return im_fail(d->ctx, IM_ERR_NOMEM, "arena of %s: the system gave no %zu bytes: %s", im_class_name(c), nbytes, strerror(errno));
    if (mapped >= ((size_t)4 << 20))
        (void)madvise(p, mapped, MADV_HUGEPAGE);
    *r = (im_region){.base = p, .nbytes = nbytes, .mapped = mapped};
    return IM_OK;
}

size_t im_device_touched(const im_device *d, im_class c)
{
    enum { PIECE = 1 << 16 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = d->region[c].mapped / page, touched = 0;
    unsigned char *in = malloc(PIECE);
    for (size_t at = 0; in && at < pages; at += PIECE) {
        size_t n = pages - at < PIECE ? pages - at : PIECE;
        if (mincore((char *)d->region[c].base + at * page, n * page, in))
            break;
        for (size_t i = 0; i < n; i++)
            touched += in[i] & 1;
    }
    free(in);
    return touched * page;
}

size_t im_device_reserved(const im_device *d, im_class c)
{
    return d->region[c].nbytes;
}

void im_device_release(im_device *d, im_class c)
{
    if (d->region[c].mapped)
        munmap(d->region[c].base, d->region[c].mapped);
    d->region[c] = (im_region){0};
}

/* The address of a buffer, or NULL with the reason when it does not lie in its arena. */
static im_status resolve(im_device *d, const im_buffer *b, void **out)
{
    if (!b->nbytes) {
        *out = NULL;
        return IM_OK;
    }
    if (b->arena >= IM_CLASS_COUNT || b->offset > d->region[b->arena].nbytes || b->nbytes > d->region[b->arena].nbytes - b->offset)
        return im_fail(d->ctx, IM_ERR_INTERNAL, "buffer %s+%zu, %zu bytes, is outside its arena of %zu bytes", im_class_name((im_class)b->arena),
                       b->offset, b->nbytes, b->arena < IM_CLASS_COUNT ? d->region[b->arena].nbytes : (size_t)0);
    *out = d->region[b->arena].base + b->offset;
    return IM_OK;
}

/* ---- running items ------------------------------------------------------- */

static void nap(int ns)
{
    struct timespec t = {.tv_sec = 0, .tv_nsec = ns};
    (void)nanosleep(&t, NULL);
}

/* Sleeps; an early wake-up sleeps on. */
static im_status pass_time(im_queue *q, double seconds)
{
    double end = im_clock_now() + seconds - q->late, left;
    while ((left = end - im_clock_now()) > 0) {
        struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - floor(left)) * 1e9)};
        (void)nanosleep(&t, NULL);
    }
    q->late = -left;
    return IM_OK;
}

static im_status run_work(im_queue *q, const im_work *w)
{
    im_device *d = q->device;
    void *p[IM_WORK_MAX_BUFFERS];
    for (int i = 0; i < w->nbuf; i++)
        IM_TRY(resolve(d, &w->buf[i], &p[i]));
    if (d->cfg.deferred) {
        if (d->cfg.slow_ns)
            nap(d->cfg.slow_ns);
        pthread_mutex_lock(&d->lock);
        if (d->active++ == 0)
            protect(d, PROT_READ | PROT_WRITE);
        pthread_mutex_unlock(&d->lock);
    }
    double t0 = d->on_span ? im_clock_now() : 0;
    im_status s = w->fn ? w->fn(w->arg, p, w->nbuf, &w->now) : pass_time(q, w->seconds);
    if (d->on_span)
        d->on_span(d->on_span_arg, q->id, w->name ? w->name : "", w->tag, t0, im_clock_now());
    if (d->cfg.deferred) {
        pthread_mutex_lock(&d->lock);
        if (--d->active == 0)
            protect(d, PROT_NONE);
        pthread_mutex_unlock(&d->lock);
    }
    return s;
}

/* Under the lock: the state of an event; an error of its queue is the answer for ever. */
static im_status event_state(im_device *d, im_event e, bool *done)
{
    im_queue *q = e.queue < IM_QUEUE_MAX ? d->queue[e.queue] : NULL;
    if (!e.value) {
        *done = true;
        return IM_OK;
    }
    if (!q || e.value > q->pushed)
        return im_fail(d->ctx, IM_ERR_INTERNAL, "event {%u, %llu} was never pushed", e.queue, (unsigned long long)e.value);
    *done = q->completed >= e.value;
    if (*done && q->status != IM_OK && e.value >= q->failed_at)
        return q->status;
    return IM_OK;
}

/* Under the lock: sleeps until q has completed `value` items, or something else changed. Saying for what keeps an item
 * that nobody waits for from waking a sleeper. */
static void sleep_until(im_queue *q, uint64_t value)
{
    if (value < q->wake_at)
        q->wake_at = value;
    pthread_cond_wait(&q->device->changed, &q->device->lock);
}

static void run_next(im_queue *q);

/* Whether who waits for an item of q may run what comes next there itself, which saves two changes of threads for an
 * operation of a few microseconds. It waits for that item or a later one, so it is not held up by it. */
static bool may_help(const im_queue *q)
{
    return q->threaded && !q->busy && q->id >= IM_QUEUE_COMM0 && !q->device->cfg.deferred;
}

/* Under the lock: until the event is done. by: the queue that waits; NULL: the host. */
static im_status await_locked(im_device *d, im_event e, im_queue *by)
{
    for (;;) {
        bool done;
        IM_TRY(event_state(d, e, &done));
        if (done)
            return IM_OK;
        im_queue *q = d->queue[e.queue];
        if (by)
            by->late = 0;
        if (may_help(q))
            run_next(q);
        else
            sleep_until(q, e.value);
    }
}

/* Runs one item without the lock held and closes it. */
static void run_item(im_queue *q, const im_item *it)
{
    im_device *d = q->device;
    im_status s;
    pthread_mutex_lock(&d->lock);
    s = q->status;
    if (s == IM_OK && it->is_wait)
        s = await_locked(d, it->wait, q);
    pthread_mutex_unlock(&d->lock);
    if (s == IM_OK && !it->is_wait)
        s = run_work(q, &it->work);
    pthread_mutex_lock(&d->lock);
    if (s != IM_OK && q->status == IM_OK) {
        q->status = s;
        q->failed_at = q->completed + 1;
    }
    if (++q->completed >= q->wake_at) {
        q->wake_at = UINT64_MAX; /* who is woken too early says so again */
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
}

/* Under the lock, with an item there and none running. */
static void run_next(im_queue *q)
{
    im_device *d = q->device;
    im_item *it = &q->ring[q->completed % IM_RING];
    q->busy = true;
    pthread_mutex_unlock(&d->lock);
    run_item(q, it);
    pthread_mutex_lock(&d->lock);
    q->busy = false;
    if (q->idle && q->completed < q->pushed)
        pthread_cond_broadcast(&d->changed);
}

static void *queue_thread(void *arg)
{
    im_queue *q = arg;
    im_device *d = q->device;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (q->busy || (q->completed == q->pushed && !d->closing)) {
            q->idle = true;
            pthread_cond_wait(&d->changed, &d->lock);
        }
        q->idle = false;
        if (q->completed == q->pushed)
            break;
        run_next(q);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- queues ----------------------------------------------------------------- */

static void queue_destroy(im_queue *q)
{
    if (!q)
        return;
    if (q->running)
        pthread_join(q->thread, NULL);
    free(q->ring);
    free(q);
}

im_queue *im_device_queue(im_device *d, unsigned id)
{
    if (id >= IM_QUEUE_MAX)
        return NULL;
    if (d->queue[id])
        return d->queue[id];
    im_queue *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->device = d;
    q->id = id;
    q->tag = UINT32_MAX;
    q->wake_at = UINT64_MAX;
    q->threaded = d->cfg.deferred || id == IM_QUEUE_IO || (d->cfg.comm_threads && id >= IM_QUEUE_COMM0);
    if (q->threaded) {
        q->ring = calloc(IM_RING, sizeof *q->ring);
        if (!q->ring || pthread_create(&q->thread, NULL, queue_thread, q)) {
            queue_destroy(q);
            (void)im_fail(d->ctx, IM_ERR_NOMEM, "queue %u: no thread or no memory for it", id);
            return NULL;
        }
        q->running = true;
    }
    pthread_mutex_lock(&d->lock);
    d->queue[id] = q;
    pthread_mutex_unlock(&d->lock);
    return q;
}

static im_status push_item(im_queue *q, const im_item *it)
{
    im_device *d = q->device;
    pthread_mutex_lock(&d->lock);
    if (!q->threaded) {
        q->pushed++;
        pthread_mutex_unlock(&d->lock);
        run_item(q, it);
        return q->status; /* inline: only this thread writes it */
    }
    while (q->pushed - q->completed >= IM_RING)
        sleep_until(q, q->completed + IM_RING / 4); /* then there is room for some more, too */
    im_item *slot = &q->ring[q->pushed % IM_RING];
    *slot = *it;
    slot->work.buf = slot->buf;
    q->pushed++;
    if (q->idle)
        pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return IM_OK;
}

im_status im_queue_push(im_queue *q, const im_work *w)
{
    if (w->nbuf < 0 || w->nbuf > IM_WORK_MAX_BUFFERS)
        return im_fail(q->device->ctx, IM_ERR_INTERNAL, "work %s has %d buffers, at most %d fit", w->name ? w->name : "", w->nbuf,
                       IM_WORK_MAX_BUFFERS);
    im_item it = {.work = *w};
    if (w->nbuf)
        memcpy(it.buf, w->buf, sizeof it.buf[0] * (size_t)w->nbuf);
    it.work.buf = it.buf;
    if (it.work.tag == UINT32_MAX)
        it.work.tag = q->tag;
    return push_item(q, &it);
}

void im_queue_tag(im_queue *q, uint32_t tag)
{
    q->tag = tag;
}

im_status im_queue_wait(im_queue *q, im_event e)
{
    if (!e.value || e.queue == q->id) /* a queue is in order with itself */
        return IM_OK;
    im_item it = {.is_wait = true, .wait = e};
    return push_item(q, &it);
}

im_event im_queue_last(const im_queue *q)
{
    pthread_mutex_lock(&q->device->lock);
    im_event e = {.queue = (uint16_t)q->id, .value = q->pushed};
    pthread_mutex_unlock(&q->device->lock);
    return e;
}

static im_status copy_in(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np;
    memcpy(p[0], arg, (size_t)now->pos);
    return IM_OK;
}

static im_status copy_out(void *arg, void *const *p, int np, const im_op_now *now)
{
    (void)np;
    memcpy(arg, p[0], (size_t)now->pos);
    return IM_OK;
}

/* now.pos carries the byte count of a copy: the work has no other argument to spare. */
static im_status push_copy(im_queue *q, im_buffer b, void *host, size_t nbytes, bool in)
{
    if (!nbytes)
        return IM_OK;
    if (nbytes > b.nbytes)
        return im_fail(q->device->ctx, IM_ERR_INTERNAL, "copy of %zu bytes to or from a buffer of %zu", nbytes, b.nbytes);
    im_work w = {.fn = in ? copy_in : copy_out, .arg = host, .buf = &b, .nbuf = 1, .name = in ? "upload" : "download", .tag = UINT32_MAX};
    w.now.pos = (int64_t)nbytes;
    return im_queue_push(q, &w);
}

im_status im_queue_upload(im_queue *q, im_buffer dst, const void *src, size_t nbytes)
{
    return push_copy(q, dst, (void *)(uintptr_t)src, nbytes, true);
}

im_status im_queue_download(im_queue *q, void *dst, im_buffer src, size_t nbytes)
{
    return push_copy(q, src, dst, nbytes, false);
}

/* ---- events ------------------------------------------------------------------ */

im_status im_event_poll(im_device *d, im_event e, bool *done)
{
    bool now_done = false;
    pthread_mutex_lock(&d->lock);
    im_status s = event_state(d, e, &now_done);
    pthread_mutex_unlock(&d->lock);
    if (s == IM_OK)
        *done = now_done;
    return s;
}

im_status im_event_wait(im_device *d, im_event e)
{
    pthread_mutex_lock(&d->lock);
    im_status s = await_locked(d, e, NULL);
    pthread_mutex_unlock(&d->lock);
    return s;
}

im_status im_device_sync(im_device *d)
{
    im_status first = IM_OK;
    for (unsigned i = 0; i < IM_QUEUE_MAX; i++) {
        if (!d->queue[i])
            continue;
        im_status s = im_event_wait(d, im_queue_last(d->queue[i]));
        if (first == IM_OK)
            first = s;
    }
    return first;
}

void im_device_on_span(im_device *d, im_span_fn fn, void *arg)
{
    d->on_span_arg = arg;
    d->on_span = fn;
}

/* ---- open, close ------------------------------------------------------------- */

im_status im_device_open(im_context *ctx, const im_device_config *cfg, im_device **out)
{
    if (cfg->threads < 0)
        return im_fail(ctx, IM_ERR_ARG, "threads %d: 0 (all usable cores) or more", cfg->threads);
    if (cfg->kernels == IM_KERNELS_PACED && !(cfg->pace.flops > 0 && cfg->pace.bytes > 0))
        return im_fail(ctx, IM_ERR_ARG, "kernels paced at %g FLOP/s and %g bytes/s: both are above 0", cfg->pace.flops, cfg->pace.bytes);
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_device), &memory));
    im_device *d = memory;
    d->ctx = ctx;
    d->cfg = *cfg;
    if (!d->cfg.threads)
        d->cfg.threads = im_machine_cores();
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    *out = d;
    return IM_OK;
}

void im_device_close(im_device *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < IM_QUEUE_MAX; i++)
        queue_destroy(d->queue[i]);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        im_device_release(d, (im_class)c);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

im_context *im_device_context(const im_device *d)
{
    return d->ctx;
}

const im_device_config *im_device_config_of(const im_device *d)
{
    return &d->cfg;
}
