/* The CPU kernels of the kinds in kinds_core.c. */
#ifndef IM_TENSOR_CORE_KERNELS_H
#define IM_TENSOR_CORE_KERNELS_H

#include "tensor/kind.h"

im_status im_plain_fill(const im_kernel_call *c);
im_status im_plain_copy(const im_kernel_call *c);
im_status im_plain_add(const im_kernel_call *c);
im_status im_plain_matmul(const im_kernel_call *c);
im_status im_plain_colsum(const im_kernel_call *c);
im_status im_plain_sumsq(const im_kernel_call *c);
im_status im_plain_adamw(const im_kernel_call *c);
im_status im_plain_finite(const im_kernel_call *c);

/* sumsq: squares are summed over runs of this many values, then the runs' sums in order; plain and fast alike. */
enum { IM_SUMSQ_BLOCK = 65536 };

#endif
