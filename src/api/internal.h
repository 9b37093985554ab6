/* What the files of this folder share: a rank, its memory, its tensors.
 *
 *     rank     context, device, world; a list of everything made of it, so that its end finds what was left
 *     store    a block of the rank's heap, and the last uses of it on each queue: what makes later work wait for earlier
 *     tensor   a view into a store
 *     group    a communicator on a queue of its own
 *
 * Kernels run on the compute queue, collectives on the queue of their group. A use of a store on one queue waits for the writes (a write: for
 * all uses) of it on the others; that is all the ordering there is.
 */
#ifndef IM_API_INTERNAL_H
#define IM_API_INTERNAL_H

#include "comm/comm.h"
#include "tensor/ops.h"

/* ---- objects: first member of all that the program is given --------------------------------- */

typedef struct im_api_object {
    struct im_api_object *prev, *next;
    void (*end)(struct im_api_object *o); /* takes it out of its rank's list and frees it */
} im_api_object;

/* ---- heap (heap.c): one arena of the device, cut into blocks --------------------------------- */

typedef struct im_api_block {
    struct im_api_block *prev, *next; /* by address; together they are the arena */
    size_t offset, nbytes;
    bool used;
} im_api_block;

typedef struct im_api_heap {
    im_api_block *first;
    size_t size, fresh; /* what lies from `fresh` on was never used: its pages are zero */
} im_api_heap;

im_status im_api_heap_init(im_context *ctx, im_api_heap *h, size_t size) IM_MUST_CHECK;
void im_api_heap_fini(im_api_heap *h);
/* First fit, in steps of 64 bytes. *zero: it was never used. */
im_status im_api_heap_take(im_context *ctx, im_api_heap *h, size_t nbytes, im_api_block **out, bool *zero) IM_MUST_CHECK;
void im_api_heap_give(im_api_heap *h, im_api_block *b);

/* ---- rank ---------------------------------------------------------------------------------------- */

typedef enum im_api_use { IM_API_WEIGHTS, IM_API_GRADIENTS, IM_API_TENSORS, IM_API_STAGING, IM_API_USES } im_api_use;

enum { IM_API_OPS = 64 };
typedef struct im_api_op {
    const im_op_kind *kind; /* NULL: empty */
    im_op_args args;
    im_op_state *state;
    size_t workspace;
    uint64_t last; /* when it was used */
} im_api_op;

struct im_rank {
    im_context *ctx;
    im_device *device;
    im_queue *compute;
    im_group *world;
    int number, count;
    im_api_object *objects; /* the last made first: ended in this order */
    im_api_heap heap;
    size_t bytes[IM_API_USES], staging_peak;
    im_api_op op[IM_API_OPS];
    uint64_t clock;
    unsigned ngroup; /* made so far */
};

typedef struct im_api_place {
    int number, count, threads;
    double deadline;
    size_t memory;
    im_comm_threads_world *threads_world; /* one of the two, or neither: one rank alone */
    im_comm_mpi_world *mpi_world;
} im_api_place;
/* r->ctx is set. On failure im_api_rank_close undoes what there is. */
im_status im_api_rank_open(im_rank *r, const im_api_place *p) IM_MUST_CHECK;
void im_api_rank_close(im_rank *r);
void im_api_abort(im_rank *r); /* the rank failed, with the error in its context */

void im_api_object_add(im_rank *r, im_api_object *o, void (*end)(im_api_object *o));
void im_api_object_remove(im_rank *r, im_api_object *o);

/* ---- stores and tensors (tensor.c) --------------------------------------------------------------- */

typedef struct im_api_store {
    im_api_block *block;
    im_api_use use;
    int refs;
    im_event wrote, used[IM_QUEUE_MAX]; /* the last of each; used: by queue, writes too */
} im_api_store;

struct im_tensor {
    im_api_object object;
    im_rank *rank;
    im_api_store *store;
    im_view view; /* contiguous; its offset in elements from the store's start */
    bool of_layer;
};

im_status im_api_tensor(im_rank *r, im_api_use use, im_dtype t, int ndim, const int64_t *shape, im_tensor **out) IM_MUST_CHECK;
im_status im_api_matrix(im_rank *r, im_api_use use, im_dtype t, int64_t rows, int64_t cols, im_tensor **out) IM_MUST_CHECK;
void im_api_tensor_end(im_tensor *t);                   /* a layer's too. NULL is allowed */
void im_api_store_release(im_rank *r, im_api_store *s); /* the last one waits for what uses it */
im_buffer im_api_buffer(const im_tensor *t);
bool im_api_overlap(const im_tensor *a, const im_tensor *b);
/* "(32,1024) fp32" */
void im_api_shape_text(const im_tensor *t, char *text, size_t size);

/* Around work on queue q that uses t. */
im_status im_api_before(const im_tensor *t, im_queue *q, bool write) IM_MUST_CHECK;
void im_api_after(const im_tensor *t, im_event e, bool write);

/* Elements [at, at + n) of t, whatever its floating-point type, from and to fp32. */
im_status im_api_put(im_tensor *t, int64_t at, int64_t n, const float *values) IM_MUST_CHECK;
im_status im_api_take(const im_tensor *t, int64_t at, int64_t n, float *values) IM_MUST_CHECK;

/* ---- kernels (op.c) --------------------------------------------------------------------------------- */

/* Enqueues k. Operand i is a->v[i], whose offset counts from the start of t[i]'s store; NULL: absent. */
im_status im_api_run(im_rank *r, const im_op_kind *k, im_op_args *a, im_tensor *const *t) IM_MUST_CHECK;
/* c (M,N) = a (M,K) b (K,N) + bias, or added to c; no K is no work but zeros. The views lie in the tensors' stores. */
typedef struct im_api_operand {
    const im_tensor *t;
    im_view v;
} im_api_operand;
im_api_operand im_api_whole(const im_tensor *t);
im_api_operand im_api_transposed(const im_tensor *t);
im_api_operand im_api_columns(const im_tensor *t, int64_t first, int64_t end); /* of a matrix */
im_status im_api_matmul(im_rank *r, im_api_operand a, im_api_operand b, im_api_operand c, const im_tensor *bias, bool add) IM_MUST_CHECK;
im_status im_api_copy(im_rank *r, im_api_operand from, im_api_operand to) IM_MUST_CHECK;
void im_api_ops_end(im_rank *r);

/* ---- groups (group.c) ------------------------------------------------------------------------------- */

struct im_group {
    im_api_object object;
    im_rank *rank;
    im_comm *comm;
    im_queue *queue;
    double deadline;
    bool exchanging;
    int npending;
    struct {
        im_api_store *store;
        bool write;
    } * pending; /* of the open exchange */
};

im_status im_api_group(im_rank *r, im_comm *comm, double deadline, im_group **out) IM_MUST_CHECK; /* takes comm over when it succeeds */
/* Columns: (n, p) of each rank, put side by side into all (n, total). */
im_status im_api_gather_columns(im_group *g, const im_tensor *part, im_tensor *all) IM_MUST_CHECK;

/* ---- split matrices (split.c) ------------------------------------------------------------------------ */

/* A whole of rows x cols, of which a rank has rows or columns; or all of it (`replicated`). */
typedef struct im_api_split {
    int64_t rows, cols;
    bool by_columns, replicated;
} im_api_split;
void im_api_split_part(const im_api_split *s, const im_group *g, int member, int64_t *first, int64_t *end);
im_status im_api_split_create(im_group *g, const im_api_split *s, im_api_use use, im_dtype t, int ndim, im_tensor **out) IM_MUST_CHECK;
im_status im_api_split_draw(im_group *g, const im_api_split *s, im_tensor *t, uint64_t seed, const char *name, double std) IM_MUST_CHECK;
im_status im_api_split_set(im_group *g, const im_api_split *s, im_tensor *t, const float *whole) IM_MUST_CHECK;
im_status im_api_split_get(im_group *g, const im_api_split *s, const im_tensor *t, int root, float *whole) IM_MUST_CHECK;

/* What a layer was asked to be; compared between the members of its group by create. */
typedef struct im_api_wish {
    const char *layer; /* "column linear" */
    int64_t in, out;
    uint64_t seed;
    const char *name;
    double std;
    im_dtype dtype;
    bool bias, gather_output, input_is_parallel;
} im_api_wish;
im_status im_api_compare(im_group *g, const im_api_wish *w) IM_MUST_CHECK;

/* Directory `what` of the installation that this library lies in, else `otherwise`; buf has PATH_MAX bytes. */
const char *im_api_installed(const char *what, const char *otherwise, char *buf);
im_comm_mpi_world *im_api_job_world(const im_job *job);

#endif
