/* rate: what this machine does, measured: the roofs that every kernel and step is compared with. */
#ifndef IM_TENSOR_RATE_H
#define IM_TENSOR_RATE_H

#include "tensor/kind.h"
#include "tensor/ops.h"

/* Seconds of the fastest of at least two runs of an op (one, when it takes longer than a second); p as im_op_call_direct's. */
im_status im_tensor_time_op(im_context *ctx, const im_op_kind *k, const im_op_args *a, const im_op_direct *how, void *const *p, double seconds,
                            double *best) IM_MUST_CHECK;

/* FLOP/s of a large product of operands of type t (fp32 or bf16) with `threads` threads: the best of many runs in about 0.2 s,
 * through the same kernel that training uses, of 1024 x 1024 x 1024 and 1024 x 3072 x 768. A machine that needs longer than 0.3 s for
 * the first of these is measured with the largest of 512, 256 and 128 cubed for which it does not, so that it is never held up. */
im_status im_tensor_machine_rate(im_context *ctx, im_dtype t, int threads, double *flops_per_s) IM_MUST_CHECK;
/* The same of a given product c(M,N) = a(M,K) b(K,N); trans_a: a is stored (K,M); trans_b: b is stored (N,K); accumulate into fp32 c. */
typedef struct im_rate_product {
    int64_t M, N, K;
    bool trans_a, trans_b, accumulate, bias;
    im_dtype type;
    im_kernels kernels;
    int threads;
    double seconds; /* how long to repeat it, at least 2 runs */
} im_rate_product;
im_status im_tensor_product_rate(im_context *ctx, const im_rate_product *p, double *flops_per_s) IM_MUST_CHECK;

/* Bytes per second of memory, arrays far larger than the caches: copy (8 bytes an element: read and written), triad
 * a = b + s*c (12 bytes an element; as STREAM counts, the read of a line that is only written is left out). */
typedef struct im_memory_rate {
    double copy, triad;
    double update; /* a = a + s*b, in place: 12 bytes an element, no read for ownership: what AdamW can reach */
} im_memory_rate;
im_status im_tensor_memory_rate(im_context *ctx, int threads, im_memory_rate *out) IM_MUST_CHECK;

#endif
