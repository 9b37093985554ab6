/* bench_rows: what `imece bench cpu` runs. */
#ifndef IM_CLI_BENCH_ROWS_H
#define IM_CLI_BENCH_ROWS_H

#include "tensor/kind.h"
#include "tensor/ops.h"

typedef struct im_bench_row {
    const char *name;
    const im_op_kind *kind;
    void (*make)(im_op_args *a, im_dtype t, int64_t rows); /* fills zeroed args; rows: tokens, which scale everything */
    bool bf16;                                             /* has a bf16 form */
} im_bench_row;

extern const im_bench_row im_bench_rows[];
extern const size_t im_bench_nrows;

/* Values that the op can live with: ids within tables, positions that count, numbers below 1. */
void im_bench_fill(const im_op_kind *k, const im_op_args *a, int operand, void *p);

#endif
