/* kind: what an op kind is made of, for the files that implement kinds, and calls without a device for tests and benches.
 *
 * A kind is one `const im_op_kind im_op_NAME` that names its operands, checks them, tells the cost and points to its CPU
 * kernels. A kernel is a function of an im_kernel_call; it runs on the queue's thread and may use `threads` threads.
 */
#ifndef IM_TENSOR_KIND_H
#define IM_TENSOR_KIND_H

#include "tensor/op.h"

/* Instruction sets that kernels are written for, each including those before it. */
typedef enum im_isa { IM_ISA_BASE, IM_ISA_AVX2, IM_ISA_AVX512, IM_ISA_AVX512_BF16, IM_ISA_AMX, IM_ISA_COUNT } im_isa;
const char *im_isa_name(im_isa isa); /* "avx2", ... */
/* What this processor and its operating system allow, and oneDNN is allowed to use (it honours ONEDNN_MAX_CPU_ISA, so that one
 * variable caps both). A pure function of the process. */
im_isa im_cpu_isa(void);

typedef struct im_kernel_call {
    im_context *ctx; /* for im_fail */
    const im_op_args *args;
    void *const *p; /* address of element 0 of each operand (view offset added); NULL when absent */
    int np;
    void *scratch; /* 64-byte aligned; the workspace that the kernel asked for with these threads */
    const im_op_now *now;
    int threads;    /* size of the OpenMP team to use, >= 1 */
    im_isa isa;     /* the best instruction set the kernel may use */
    void *prepared; /* what the kernel's prepare made, or NULL */
} im_kernel_call;

typedef im_status (*im_kernel_fn)(const im_kernel_call *c);

/* What a kernel may know before it runs. */
typedef struct im_kernel_setup {
    im_context *ctx;
    const im_op_args *args;
    int threads;
    im_isa isa;
} im_kernel_setup;

typedef struct im_kernel {
    im_kernel_fn run;                                                /* NULL: there is no fast version, the plain one runs */
    size_t (*workspace)(const im_op_args *a, int threads);           /* bytes of scratch; NULL: none. Never shrinks when threads grow. */
    im_status (*prepare)(const im_kernel_setup *s, void **prepared); /* NULL: nothing to prepare */
    void (*destroy)(void *prepared);                                 /* never called with NULL */
} im_kernel;

/* access: 'R' read, 'W' written (never read), 'M' read and written, 'A' written when i[acc] is 0, else read and written. */
typedef struct im_operand {
    const char *name;
    char access;
    bool optional;
    uint8_t acc;
} im_operand;
#define IM_READ(name)         \
    {                         \
        (name), 'R', false, 0 \
    }
#define IM_READ_OPTIONAL(name) \
    {                          \
        (name), 'R', true, 0   \
    }
#define IM_WRITE(name)        \
    {                         \
        (name), 'W', false, 0 \
    }
#define IM_WRITE_OPTIONAL(name) \
    {                           \
        (name), 'W', true, 0    \
    }
#define IM_MODIFY(name)       \
    {                         \
        (name), 'M', false, 0 \
    }
#define IM_MODIFY_OPTIONAL(name) \
    {                            \
        (name), 'M', true, 0     \
    }
#define IM_ACC(name, i)         \
    {                           \
        (name), 'A', false, (i) \
    } /* as constant i[i] says */
#define IM_ACC_OPTIONAL(name, i) \
    {                            \
        (name), 'A', true, (i)   \
    }

struct im_op_kind {
    const char *name;
    uint8_t min_operands, max_operands; /* a->n between them; operands beyond min are optional and may be left off */
    im_operand operand[IM_OP_MAX_OPERANDS];
    /* Pure: shapes, dtypes, constants. Counts, presence, ndim and non-negative shapes and strides are already checked. */
    im_status (*check)(im_context *ctx, const im_op_kind *k, const im_op_args *a);
    /* flops; NULL: 0. Bytes read and written are counted from the views (and may be set anew here). */
    void (*cost)(const im_op_args *a, im_op_cost *cost);
    im_kernel plain, fast;
};

/* ---- helpers for check functions ------------------------------------------------------------------------------------- */

static inline bool im_op_has(const im_op_args *a, int i)
{
    return i < a->n && a->v[i].ndim > 0;
}
/* "matmul: operand a (2,3) fp32: <text>"; returns IM_ERR_ARG. */
im_status im_op_bad(im_context *ctx, const im_op_kind *k, const im_op_args *a, int operand, const char *fmt, ...) IM_PRINTF(5, 6);
/* Operand i, when present, has this dtype / is fp32 or bf16 / the dtype of operand j. */
im_status im_op_need_dtype(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, im_dtype t) IM_MUST_CHECK;
im_status im_op_need_activation(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i) IM_MUST_CHECK;
im_status im_op_need_same_dtype(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int j) IM_MUST_CHECK;
/* Operand i, when present, has this shape; a -1 in shape matches any size. */
im_status im_op_need_shape(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int ndim, const int64_t *shape) IM_MUST_CHECK;
im_status im_op_need_same_shape(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i, int j) IM_MUST_CHECK;
/* Operand i, when present, is contiguous row-major / has last stride 1 (a last dim of size 1 or 0 passes). */
im_status im_op_need_dense(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i) IM_MUST_CHECK;
im_status im_op_need_rows(im_context *ctx, const im_op_kind *k, const im_op_args *a, int i) IM_MUST_CHECK;
bool im_view_is_dense(const im_view *v);

/* ---- calls without a device: tests and benches ------------------------------------------------------------------------ */

typedef struct im_op_direct {
    im_kernels kernels;
    int threads; /* >= 1 */
    im_isa isa;  /* the cap: the lower of it and im_cpu_isa() is used */
} im_op_direct;

/* Scratch bytes with these kernels and threads (what im_op_describe tells is this for fast kernels on all usable cores). */
size_t im_op_workspace(const im_op_kind *k, const im_op_args *a, im_kernels kernels, int threads);
im_status im_op_prepare_direct(im_context *ctx, const im_op_kind *k, const im_op_args *a, const im_op_direct *how, im_op_state **out) IM_MUST_CHECK;
/* p[i]: address of buffer i (the view's offset is added here), NULL when absent. Runs before it returns. */
im_status im_op_call_direct(im_op_state *s, void *const *p, void *scratch, const im_op_now *now) IM_MUST_CHECK;
bool im_op_has_fast(const im_op_kind *k);

#endif
