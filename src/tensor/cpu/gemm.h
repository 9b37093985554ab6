/* gemm: the matrix multiplications of oneDNN (2.6 and later, 3.x). The only file that sees its headers is dnnl.c.
 *
 * Without oneDNN (IM_PLAIN builds) im_gemm_available() is false and the functions that multiply return IM_ERR_UNSUPPORTED.
 */
#ifndef IM_TENSOR_GEMM_H
#define IM_TENSOR_GEMM_H

#include "tensor/kind.h"

bool im_gemm_available(void);
const char *im_gemm_library(char *buf, size_t n); /* "oneDNN 2.6.3"; "none" */
im_isa im_gemm_isa(void);                         /* the best set that the library is allowed to use on this machine; IM_ISA_AMX without library */

/* A row-major matrix of fp32, or its transpose: element (r,c) is at r*ld + c, transposed at r + c*ld. */
typedef struct im_gemm_matrix {
    const float *p;
    int64_t ld;
    bool transposed;
} im_gemm_matrix;

/* c(M,N) = a(M,K) b(K,N) + beta c; beta 0 never reads c. M, N, K >= 1; ld at least the length of a stored row. The team is the calling
 * thread's. Scratch is the library's own (it offers no other way). */
im_status im_gemm_f32(im_context *ctx, int64_t M, int64_t N, int64_t K, im_gemm_matrix a, im_gemm_matrix b, float beta, float *c,
                      int64_t ldc) IM_MUST_CHECK;

/* A primitive made for one shape, with user scratch. Views as im_op_matmul's, all sizes >= 1. */
typedef struct im_gemm_primitive im_gemm_primitive;
/* *out NULL (and IM_OK) when the library has no implementation for these types and strides. Uses the calling thread's team. */
im_status im_gemm_primitive_create(im_context *ctx, const im_op_args *a, im_gemm_primitive **out) IM_MUST_CHECK;
size_t im_gemm_primitive_scratch(const im_gemm_primitive *g);
const char *im_gemm_primitive_info(const im_gemm_primitive *g); /* the library's name of the implementation */
im_status im_gemm_primitive_run(im_context *ctx, im_gemm_primitive *g, void *const *p, int np, void *scratch) IM_MUST_CHECK;
void im_gemm_primitive_destroy(im_gemm_primitive *g); /* NULL is allowed */

#endif
