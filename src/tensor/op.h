/* op: described (pure), prepared (outside a step), run (enqueue only).
 *
 * An operand is a view into a buffer. A view with ndim 0 is an absent optional operand. Strides and the offset
 * are in elements of the view's dtype. The address of operand i is base(buffer i) + offset * size.
 */
#ifndef IM_TENSOR_OP_H
#define IM_TENSOR_OP_H

#include "device/device.h"

#define IM_OP_MAX_OPERANDS 16

typedef struct im_view {
    uint8_t ndim;  /* 0: absent */
    uint8_t dtype; /* im_dtype */
    int64_t shape[4], stride[4];
    int64_t offset;
} im_view;

typedef struct im_op_args {
    im_view v[IM_OP_MAX_OPERANDS];
    uint8_t n;
    uint16_t threads; /* the team that will run it at most; 0: all usable cores (asked of the system each time) */
    double f[6];
    int64_t i[8];
} im_op_args;

typedef struct im_op_cost {
    double flops;
    size_t read, written; /* bytes */
    size_t workspace;     /* bytes of scratch the run needs, 64-byte aligned */
} im_op_cost;

/* Seconds of an op on a device of this pace. */
double im_op_seconds(const im_op_cost *cost, const im_pace *pace);

typedef struct im_op_kind im_op_kind;
typedef struct im_op_state im_op_state;

/* Contiguous row-major view. */
im_view im_view_make(im_dtype t, int ndim, const int64_t *shape);
im_view im_view_1d(im_dtype t, int64_t n);
im_view im_view_2d(im_dtype t, int64_t rows, int64_t cols);
im_view im_view_2d_stride(im_dtype t, int64_t rows, int64_t cols, int64_t row_stride, int64_t offset);
im_view im_view_transpose(im_view v); /* of the last two dims */
int64_t im_view_count(const im_view *v);
size_t im_view_extent(const im_view *v); /* bytes from the buffer's start to the end of the last element; 0 if absent */

const char *im_op_name(const im_op_kind *k);
/* How the op touches operand i: 'R', 'W' (never read), 'M' (read and written), 0 when absent. */
char im_op_access(const im_op_kind *k, const im_op_args *a, int i);
/* Pure: checks shapes, dtypes and constants and tells the cost. The message names op and operand. */
im_status im_op_describe(im_context *ctx, const im_op_kind *k, const im_op_args *a, im_op_cost *cost) IM_MUST_CHECK;
/* Makes primitives for device d with its kernels (fast, plain or paced). May allocate. */
im_status im_op_prepare(im_device *d, const im_op_kind *k, const im_op_args *a, im_op_state **out) IM_MUST_CHECK;
/* Enqueues. b has a->n buffers (absent operands: nbytes 0); scratch holds at least cost.workspace bytes. */
im_status im_op_run(im_op_state *s, im_queue *q, const im_buffer *b, im_buffer scratch, const im_op_now *now, uint32_t tag) IM_MUST_CHECK;
void im_op_destroy(im_op_state *s); /* NULL is allowed */

#endif
