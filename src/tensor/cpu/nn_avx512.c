/* The bodies for AVX-512. */
#include "tensor/cpu/nn_kernels.h"

#if IM_X86
#define IM_VEC 16
#include "tensor/cpu/vec.h"

#include "tensor/cpu/rows_body.h"
#include "tensor/cpu/heads_body.h"
#include "tensor/cpu/dots_body.h"
#include "tensor/cpu/xent_body.h"
#include "tensor/cpu/tile_body.h"
#include "tensor/cpu/attention_body.h"
#include "tensor/cpu/attention_grad_body.h"

const im_nn_rows im_nn_rows_avx512 = IM_NN_ROWS;

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
