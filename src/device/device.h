/* device: memory, queues and events of one rank's device.
 *
 * A buffer is a handle, never a host pointer; only code that runs on a queue sees addresses. A queue runs its
 * work in order. An event is a point on a queue's timeline: {queue, value} is done once the queue has finished
 * its value-th work item; value 0 is always done. Pushing only enqueues.
 *
 * CPU backends:
 *   inline    the compute and copy queues run work in the caller's thread, at push (a wait for another queue's
 *             event blocks there); the io queue has a thread of its own, with comm_threads those for communication too.
 *             Who waits for a queue of communication may run what comes next there itself.
 *   deferred  every queue has a thread; all arenas are unreadable (PROT_NONE) except while work runs. It proves
 *             that callers keep to the contract; slow.
 */
#ifndef IM_DEVICE_H
#define IM_DEVICE_H

#include "base/base.h"

/* im_dtype, im_dtype_size, im_dtype_name: imece.h */

/* fp32 to bf16: to nearest, ties to even, NaN stays NaN; n values. */
void im_bf16_round(const float *in, size_t n, uint16_t *out);

/* One arena per class; a plan's bytes are told by class. */
typedef enum im_class {
    IM_CLASS_WEIGHTS,     /* weights as the forward reads them */
    IM_CLASS_GRADIENTS,   /* fp32 gradient buckets */
    IM_CLASS_OPTIMIZER,   /* masters, first and second moments */
    IM_CLASS_ACTIVATIONS, /* edges, saved, stash, temp: what a program places */
    IM_CLASS_COMM,        /* gathered weights, reduction staging */
    IM_CLASS_KV,          /* key/value cache */
    IM_CLASS_SCRATCH,     /* op workspace, library scratch */
    IM_CLASS_CARRY,       /* batches, scalars, tables: outlive a program */
    IM_CLASS_PROGRAMS,    /* the host's lists of ops: counted, no arena of the device */
    IM_CLASS_COUNT
} im_class;
const char *im_class_name(im_class c);

typedef struct im_buffer {
    uint8_t device, space, arena; /* arena: im_class */
    size_t offset, nbytes;
} im_buffer;

typedef enum im_queue_id { IM_QUEUE_COMPUTE, IM_QUEUE_COPY, IM_QUEUE_IO, IM_QUEUE_COMM0, IM_QUEUE_MAX = 16 } im_queue_id;

typedef struct im_event {
    uint16_t queue;
    uint64_t value;
} im_event;

/* Arguments that change from run to run and are never a shape. */
typedef struct im_op_now {
    int64_t step;    /* global step, from 0 */
    int64_t sample0; /* global index of the first sample of this step's batch */
    int64_t pos;     /* generation: position of the first new token */
    int64_t kv_len;  /* generation: valid cache entries, new tokens included */
} im_op_now;

typedef struct im_device im_device;
typedef struct im_queue im_queue;

/* PACED computes nothing: an op keeps its queue busy for as long as im_pace says of its cost, and leaves its results as they were. Ranks that sleep need
 * no cores, so the waits of a layout are seen as they would be with a device each. Copies and communication are real. */
typedef enum im_kernels { IM_KERNELS_FAST, IM_KERNELS_PLAIN, IM_KERNELS_PACED } im_kernels;

typedef struct im_pace {
    double flops, bytes; /* per second: arithmetic, or memory read and written, whichever takes longer */
} im_pace;

typedef struct im_device_config {
    bool deferred;
    int threads; /* OpenMP team of the compute queue; 0: im_machine_cores() */
    im_kernels kernels;
    im_pace pace;      /* PACED: both above 0 */
    int slow_ns;       /* deferred: sleep before each item, to shake orders; 0 none */
    bool comm_threads; /* queues from IM_QUEUE_COMM0 up have threads of their own: for communicators of several ranks */
    /* instead: communication of several ranks runs where it is called, as on every queue. For programs that go one way, where who is waited for never
     * waits for who waits: no thread is woken for an operation whose result the next op reads at once */
    bool comm_inline;
} im_device_config;

im_status im_device_open(im_context *ctx, const im_device_config *cfg, im_device **out) IM_MUST_CHECK;
void im_device_close(im_device *d); /* waits for the queues; NULL is allowed */
im_context *im_device_context(const im_device *d);
const im_device_config *im_device_config_of(const im_device *d); /* threads resolved */

/* Reserves the arena of a class: zeroed pages, 64-byte aligned (4096). Once per class; nbytes 0 is fine. */
im_status im_device_reserve(im_device *d, im_class c, size_t nbytes) IM_MUST_CHECK;
size_t im_device_reserved(const im_device *d, im_class c);
size_t im_device_touched(const im_device *d, im_class c); /* bytes of its pages that lie in memory */
void im_device_release(im_device *d, im_class c);         /* after im_device_sync; the class may be reserved again */

im_queue *im_device_queue(im_device *d, unsigned id); /* made at first use; NULL when it cannot be */

/* Work: called on the queue's thread. p[i] is the address of buffer i (NULL for a buffer with nbytes 0). */
typedef im_status (*im_work_fn)(void *arg, void *const *p, int np, const im_op_now *now);

typedef struct im_work {
    im_work_fn fn;  /* NULL: `seconds` pass, and nothing else happens */
    double seconds; /* what a sleep took too long is left out of the queue's next one, unless it waited for others in between */
    void *arg;
    const im_buffer *buf; /* copied at push */
    int nbuf;
    im_op_now now;
    const char *name; /* for spans and errors; static or lives as long as the device */
    uint32_t tag;     /* caller's number for spans and errors: bound op index */
} im_work;

#define IM_WORK_MAX_BUFFERS 20

im_status im_queue_push(im_queue *q, const im_work *w) IM_MUST_CHECK;
/* The tag of work that is pushed from now on with UINT32_MAX (communicators do): what the caller runs just now. One thread pushes on a queue. */
void im_queue_tag(im_queue *q, uint32_t tag);
/* Later work of q starts after e. Never blocks the caller, except on inline queues. */
im_status im_queue_wait(im_queue *q, im_event e) IM_MUST_CHECK;
im_event im_queue_last(const im_queue *q); /* event of the item pushed last */
/* Host memory must stay valid until the event. */
im_status im_queue_upload(im_queue *q, im_buffer dst, const void *src, size_t nbytes) IM_MUST_CHECK;
im_status im_queue_download(im_queue *q, void *dst, im_buffer src, size_t nbytes) IM_MUST_CHECK;

/* A work item that failed makes its queue dead: later items are skipped, events report the error for ever. */
im_status im_event_poll(im_device *d, im_event e, bool *done) IM_MUST_CHECK;
im_status im_event_wait(im_device *d, im_event e) IM_MUST_CHECK; /* blocks the host */
im_status im_device_sync(im_device *d) IM_MUST_CHECK;            /* all queues */

/* Called after each item, on the queue's thread: start and end in im_clock_now seconds. */
typedef void (*im_span_fn)(void *arg, unsigned queue, const char *name, uint32_t tag, double t0, double t1);
void im_device_on_span(im_device *d, im_span_fn fn, void *arg);

#endif
