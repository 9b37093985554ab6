/* gemm: the matrix multiplications of oneDNN (2.6 and later, 3.x), the only file that sees its headers is dnnl.c.
 *
 * Without oneDNN (IM_PLAIN builds) im_gemm_available() is false and nothing else may be called but im_gemm_isa.
 */
#ifndef IM_TENSOR_GEMM_H
#define IM_TENSOR_GEMM_H

#include "tensor/kind.h"

bool im_gemm_available(void);
const char *im_gemm_library(char *buf, size_t n); /* "oneDNN 2.6.3", "none" */
im_isa im_gemm_isa(void);   /* the best set that the library is allowed to use on this machine; IM_ISA_AMX without library */

#endif
