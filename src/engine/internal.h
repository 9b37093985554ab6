/* internal.h: the engine's state, shared by its files. */
#ifndef IM_ENGINE_INTERNAL_H
#define IM_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "plan/program.h"

typedef struct im_staging {
    int32_t *host; /* ids, targets, pos, seg, one after the other */
    size_t count;  /* B*T of the largest program */
    im_event uploaded;
} im_staging;

typedef struct im_snapshot_item {
    const im_snapshot *job;
    im_state_kind kind;
    size_t bucket, first, count;
    im_dtype stored;
} im_snapshot_item;

typedef struct im_runnable {
    im_program *program;
    im_op_state **state; /* [nbound], borrowed from the cache; NULL for collectives */
    im_event *done;      /* [nbound], of the last run */
    const char **label;  /* [nstep] "FORWARD 3 mb 1": what a ring says of the operations that the instruction calls */
} im_runnable;

struct im_engine {
    im_context *ctx;
    im_plan plan; /* a copy; model is borrowed */
    im_device *device;
    im_comm *world;
    im_comm *group[IM_GROUP_COUNT][IM_QUEUE_MAX]; /* one communicator for each group and queue in use */
    im_layout *layout;
    im_program_want *want;
    im_runnable *run;
    im_program **programs; /* [nrun], as in run */
    size_t nrun;
    im_memory memory;
    im_op_state **cache; /* every prepared state, once */
    uint64_t *cache_key;
    const im_bound **cache_of;
    size_t ncache, cap_cache;
    im_buffer scratch, probe; /* probe: 64 bytes of CARRY for im_op_finite and hyper-parameters' staging */
    im_buffer scalar[IM_SCALAR_COUNT];
    im_buffer kv_table;  /* nbytes 0: no INFER program */
    im_staging *staging; /* per micro-batch */
    size_t nstaging;
    im_event *written; /* [nbucket]: the last snapshot's write of the bucket */
    im_event snapshot_end;
    im_snapshot snapshot;
    im_snapshot_item *item;
    bool trains;
    bool used[IM_QUEUE_MAX]; /* queues that have had work of a program */
    size_t last_run;
    im_arena *arena;
    float *convert; /* staging of im_engine_read and write */
    double hyper[IM_HYPER_COUNT];
    const im_engine_debug *debug; /* NULL in every run that is not verified */
    struct {
        uint64_t seen; /* collectives of this step that the fault can be made to */
        void *old;     /* STALE: what the gather gave first */
        size_t old_bytes;
        float *edge;
        size_t edge_bytes;
    } fault;
};

enum { IM_CONVERT_ELEMENTS = 1 << 18, IM_STAGED = 4 /* ids, targets, positions, segments */ };

/* The buffer of a named persistent value; nbytes 0 when no program has it. */
im_buffer im_engine_value(const im_engine *e, size_t program, im_role role, int index, int mb);
im_status im_engine_copy_in(im_engine *e, im_buffer b, const void *src, size_t nbytes) IM_MUST_CHECK; /* synchronous */
im_status im_engine_copy_out(im_engine *e, void *dst, im_buffer b, size_t nbytes) IM_MUST_CHECK;

/* memory.c: the bytes that programs of one rank need; batches in host memory: how many micro-batches, and tokens of the largest; arenas */
void im_engine_memory_of(im_program *const *program, size_t n, im_memory *out);
void im_engine_staging_of(im_program *const *program, size_t n, size_t *count, size_t *most);
im_status im_engine_reserve(im_engine *e) IM_MUST_CHECK;

/* run.c */
im_status im_engine_enqueue_op(im_engine *e, im_runnable *r, uint32_t i, const im_op_now *now, const im_source *src) IM_MUST_CHECK;
im_status im_engine_collective(im_engine *e, const im_bound *x, const im_step *s, im_queue *q) IM_MUST_CHECK;
/* Elements of each rank in the order of the group: rows shared out, or the shards of the op's bucket. */
const size_t *im_engine_counts(im_engine *e, const im_op *op, size_t bucket, size_t *counts);

/* debug.c: the collective with the fault asked for, where this is the one; what an instruction (ops [first, end)) left behind, told */
im_status im_engine_faulty_collective(im_engine *e, const im_bound *x, const im_step *s, im_queue *q) IM_MUST_CHECK;
im_status im_engine_tell_edge(im_engine *e, const im_runnable *r, uint32_t first, uint32_t end, const im_op_now *now) IM_MUST_CHECK;
void im_engine_debug_free(im_engine *e);

#endif
