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

im_status im_fast_fill(const im_kernel_call *c);
im_status im_fast_copy(const im_kernel_call *c);
im_status im_fast_add(const im_kernel_call *c);
im_status im_fast_colsum(const im_kernel_call *c);
im_status im_fast_sumsq(const im_kernel_call *c);
size_t im_fast_sumsq_workspace(const im_op_args *a, int threads);
im_status im_fast_finite(const im_kernel_call *c);
size_t im_fast_finite_workspace(const im_op_args *a, int threads);
im_status im_fast_adamw(const im_kernel_call *c);

im_status im_fast_matmul(const im_kernel_call *c);
size_t im_fast_matmul_workspace(const im_op_args *a, int threads);
im_status im_fast_matmul_prepare(const im_kernel_setup *s, void **prepared);
void im_fast_matmul_destroy(void *prepared);

/* out(M,N) = a(M,K) w(K,N), all contiguous but w, of which a stored row begins every ldw elements; transposed: w is stored (N,K). */
typedef struct im_few_rows {
    const float *a;
    const uint16_t *w; /* bf16 */
    int64_t M, N, K, ldw;
    bool transposed;
    im_isa isa;
    float *out;
} im_few_rows;
void im_few_rows_multiply(const im_few_rows *f, int threads);

/* n contiguous values, in the calling thread. */
void im_bf16_widen(im_isa isa, const uint16_t *in, float *out, int64_t n);
void im_bf16_narrow(im_isa isa, const float *in, uint16_t *out, int64_t n);

/* sumsq: squares are summed over runs of this many values, then the runs' sums in order; plain and fast alike. */
enum { IM_SUMSQ_BLOCK = 65536 };

#endif
