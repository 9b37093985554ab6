/* imece bench cpu: what this machine does: memory, matrix products, every kernel beside its plain version. */
#include "cli/bench_rows.h"
#include "cli/cli.h"
#include "tensor/cpu/gemm.h"
#include "tensor/rate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct bench_options {
    int64_t threads, rows;
    double seconds;
    const char *only;
    bool json, plain;
} bench_options;

#define ROW(field) .offset = offsetof(bench_options, field)
static const im_option rows[] = {
    {.name = "threads",
     .type = IM_OPT_INT,
     .value = "N",
     .fallback = "0",
     .min = 0,
     .max = 4096,
     .help = "Threads; 0: all usable cores.",
     ROW(threads)},
    {.name = "rows",
     .type = IM_OPT_INT,
     .value = "N",
     .fallback = "1024",
     .min = 64,
     .max = 65536,
     .help = "Tokens that every kernel works on.",
     ROW(rows)},
    {.name = "seconds",
     .type = IM_OPT_REAL,
     .value = "S",
     .fallback = "0.1",
     .min = 0.001,
     .max = 60,
     .help = "Seconds for each measurement.",
     ROW(seconds)},
    {.name = "only", .type = IM_OPT_STRING, .value = "NAME", .help = "Only kernels whose name has this in it, and no products.", ROW(only)},
    {.name = "plain", .type = IM_OPT_BOOL, .fallback = "true", .help = "Time the plain kernels too (on fewer tokens, they are slow).", ROW(plain)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as one JSON object.", ROW(json)},
};
#undef ROW

typedef struct bench {
    im_cli *cli;
    bench_options o;
    im_memory_rate memory;
    double roof_bytes;    /* bytes per second */
    double roof_flops[2]; /* fp32, bf16 */
    im_str out;
} bench;

enum { HUGE_PAGE = 2 << 20 };
static const im_dtype types[2] = {IM_F32, IM_BF16};

/* ---- products -------------------------------------------------------------------------------------------------------- */

typedef struct shape {
    const char *name;
    int64_t N, K; /* of the weight (out, in) */
} shape;
static const shape shapes[] = {
    {"qkv", 2304, 768}, {"attention out", 768, 768}, {"up", 3072, 768}, {"down", 768, 3072}, {"head", 50257, 768},
};
static const char *const directions[] = {"forward", "dX", "dW"};

static im_rate_product product_of(const bench *b, const shape *s, int direction, im_dtype t)
{
    int64_t R = s->N > 10000 ? 128 : b->o.rows; /* the head takes its rows by chunks */
    im_rate_product p = {.type = t, .kernels = IM_KERNELS_FAST, .threads = (int)b->o.threads, .seconds = b->o.seconds};
    switch (direction) {
    case 0: p.M = R, p.N = s->N, p.K = s->K, p.trans_b = true; break;
    case 1: p.M = R, p.N = s->K, p.K = s->N; break;
    default: p.M = s->N, p.N = s->K, p.K = R, p.trans_a = true, p.accumulate = true;
    }
    return p;
}

static im_status bench_products(bench *b)
{
    if (!b->o.json)
        im_str_printf(&b->out, "\nmatrix products (GFLOP/s)%27s%12s%12s\n", "M x N x K", "fp32", "bf16");
    for (size_t s = 0; s < IM_COUNT_OF(shapes); s++)
        for (int d = 0; d < 3; d++) {
            double rate[2];
            im_rate_product p;
            for (int t = 0; t < 2; t++) {
                p = product_of(b, &shapes[s], d, types[t]);
                IM_TRY(im_tensor_product_rate(b->cli->ctx, &p, &rate[t]));
            }
            if (b->o.json)
                im_str_printf(&b->out, "%s{\"shape\":\"%s\",\"direction\":\"%s\",\"M\":%lld,\"N\":%lld,\"K\":%lld,\"fp32\":%.4g,\"bf16\":%.4g}",
                              s + (size_t)d ? "," : "", shapes[s].name, directions[d], (long long)p.M, (long long)p.N, (long long)p.K, rate[0],
                              rate[1]);
            else
                im_str_printf(&b->out, "%-16s%-10s%10lld x%6lld x%6lld%12.1f%12.1f\n", shapes[s].name, directions[d], (long long)p.M, (long long)p.N,
                              (long long)p.K, rate[0] * 1e-9, rate[1] * 1e-9);
        }
    return IM_OK;
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */

/* Seconds of one run, its cost, and the bytes that cross the memory bus: a cache line that is only written is read first. */
static im_status time_row(bench *b, const im_bench_row *row, im_dtype t, im_kernels kernels, int64_t n, im_op_cost *cost, double *moved,
                          double *seconds)
{
    im_context *ctx = b->cli->ctx;
    im_op_args a = {0};
    void *p[IM_OP_MAX_OPERANDS] = {NULL};
    im_status status = IM_OK;
    row->make(&a, t, n);
    IM_TRY(im_op_describe(ctx, row->kind, &a, cost));
    *moved = (double)(cost->read + cost->written);
    for (int i = 0; i < a.n; i++) {
        if (a.v[i].ndim == 0)
            continue;
        if (im_op_access(row->kind, &a, i) == 'W')
            *moved += (double)im_view_count(&a.v[i]) * (double)im_dtype_size((im_dtype)a.v[i].dtype);
        size_t nbytes = (im_view_extent(&a.v[i]) / HUGE_PAGE + 1) * HUGE_PAGE;
        p[i] = aligned_alloc(HUGE_PAGE, nbytes);
        if (p[i] == NULL) {
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu bytes", nbytes);
            goto free_operands;
        }
        (void)madvise(p[i], nbytes, MADV_HUGEPAGE); /* as the arenas of a device */
        im_bench_fill(row->kind, &a, i, p[i]);
    }
    im_op_direct how = {.kernels = kernels, .threads = (int)b->o.threads, .isa = IM_ISA_COUNT};
    status = im_tensor_time_op(ctx, row->kind, &a, &how, p, b->o.seconds, seconds);
free_operands:
    for (int i = 0; i < a.n; i++)
        free(p[i]);
    return status;
}

static im_status bench_row(bench *b, const im_bench_row *row, int type, bool first)
{
    im_op_cost cost, small;
    double fast, plain = NAN, times = NAN, moved, few_moved;
    int64_t few = b->o.rows / 16;
    IM_TRY(time_row(b, row, types[type], IM_KERNELS_FAST, b->o.rows, &cost, &moved, &fast));
    if (b->o.plain) {
        IM_TRY(time_row(b, row, types[type], IM_KERNELS_PLAIN, few, &small, &few_moved, &plain));
        /* by FLOP where they scale with the tokens, else by bytes */
        double share = small.flops > 0 ? cost.flops / small.flops : moved / few_moved;
        times = plain * share / fast;
    }
    double bytes = (double)(cost.read + cost.written), by_flops = cost.flops / b->roof_flops[type], by_bytes = moved / b->roof_bytes;
    bool compute = by_flops > by_bytes;
    double share = (compute ? by_flops : by_bytes) / fast;
    if (b->o.json) {
        im_str_printf(&b->out,
                      "%s{\"kernel\":\"%s\",\"dtype\":\"%s\",\"fast\":%s,\"seconds\":%.4g,\"bytes_per_s\":%.4g,\"flops_per_s\":%.4g,"
                      "\"bound\":\"%s\",\"share_of_bound\":%.3g",
                      first ? "" : ",", row->name, im_dtype_name(types[type]), im_op_has_fast(row->kind) ? "true" : "false", fast, bytes / fast,
                      cost.flops / fast, compute ? "compute" : "memory", share);
        if (b->o.plain)
            im_str_printf(&b->out, ",\"times_plain\":%.4g", times);
        im_str_append(&b->out, "}");
        return IM_OK;
    }
    im_str_printf(&b->out, "%-24s%-6s%12.3f%10.1f%10.1f  %-8s%6.0f %%", row->name, im_dtype_name(types[type]), fast * 1e3, bytes / fast * 1e-9,
                  cost.flops / fast * 1e-9, compute ? "compute" : "memory", share * 100);
    if (b->o.plain)
        im_str_printf(&b->out, "%10.1f", times);
    im_str_append(&b->out, im_op_has_fast(row->kind) ? "\n" : "  (plain only)\n");
    return IM_OK;
}

/* --only names at least one row. */
static im_status check_only(const bench *b)
{
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; i < im_bench_nrows; i++) {
        if (b->o.only == NULL || strstr(im_bench_rows[i].name, b->o.only) != NULL)
            return IM_OK;
        if (n < IM_COUNT_OF(names))
            names[n++] = im_bench_rows[i].name;
    }
    const char *near = im_nearest_name(b->o.only, names, n);
    return im_fail(b->cli->ctx, IM_ERR_ARG, "--only %.100s: no kernel has that in its name%s%s", b->o.only, near ? "; did you mean " : "",
                   near ? near : "");
}

static im_status bench_kernels(bench *b)
{
    bool first = true;
    if (!b->o.json)
        im_str_printf(&b->out, "\n%-24s%-6s%12s%10s%10s  %-8s%8s%s\n", "kernels", "type", "ms", "GB/s", "GFLOP/s", "bound", "of it",
                      b->o.plain ? "   x plain" : "");
    for (size_t i = 0; i < im_bench_nrows; i++) {
        const im_bench_row *row = &im_bench_rows[i];
        if (b->o.only != NULL && strstr(row->name, b->o.only) == NULL)
            continue;
        for (int t = 0; t < (row->bf16 ? 2 : 1); t++) {
            im_cli_progress(b->cli, row->name);
            IM_TRY(bench_row(b, row, t, first));
            first = false;
        }
    }
    return IM_OK;
}

/* ---- command --------------------------------------------------------------------------------------------------------- */

static im_status bench_machine(bench *b)
{
    char library[32];
    im_context *ctx = b->cli->ctx;
    IM_TRY(im_tensor_memory_rate(ctx, (int)b->o.threads, &b->memory));
    b->roof_bytes = fmax(b->memory.copy, fmax(b->memory.triad, b->memory.update));
    for (int t = 0; t < 2; t++)
        IM_TRY(im_tensor_machine_rate(ctx, types[t], (int)b->o.threads, &b->roof_flops[t]));
    im_gemm_library(library, sizeof library);
    const char *isa = im_isa_name(im_cpu_isa()), *bf16 = im_cpu_isa() >= IM_ISA_AVX512_BF16 ? "bf16 arithmetic" : "widened to fp32 by panels";
    if (b->o.json)
        im_str_printf(&b->out,
                      "{\"threads\":%lld,\"isa\":\"%s\",\"matmul_library\":\"%s\",\"bf16_path\":\"%s\",\"memory\":{\"copy\":%.4g,\"triad\":%.4g,"
                      "\"update\":%.4g},\"matmul\":{\"fp32\":%.4g,\"bf16\":%.4g}",
                      (long long)b->o.threads, isa, library, bf16, b->memory.copy, b->memory.triad, b->memory.update, b->roof_flops[0],
                      b->roof_flops[1]);
    else
        im_str_printf(&b->out,
                      "machine: %lld threads, instruction set %s, matrix products by %s, bf16: %s\n"
                      "memory: copy %.1f, triad %.1f, update in place %.1f GB/s\n"
                      "matrix products, best: fp32 %.1f, bf16 %.1f GFLOP/s\n",
                      (long long)b->o.threads, isa, library, bf16, b->memory.copy * 1e-9, b->memory.triad * 1e-9, b->memory.update * 1e-9,
                      b->roof_flops[0] * 1e-9, b->roof_flops[1] * 1e-9);
    return IM_OK;
}

static im_status bench_all(bench *b)
{
    IM_TRY(bench_machine(b));
    if (b->o.only == NULL) {
        if (b->o.json)
            im_str_append(&b->out, ",\"products\":[");
        IM_TRY(bench_products(b));
        if (b->o.json)
            im_str_append(&b->out, "]");
    }
    if (b->o.json)
        im_str_append(&b->out, ",\"kernels\":[");
    IM_TRY(bench_kernels(b));
    if (b->o.json)
        im_str_append(&b->out, "]}\n");
    return IM_OK;
}

static int run_cpu(im_cli *cli, int argc, char **argv)
{
    bench b = {.cli = cli};
    im_status status = im_cli_options(cli, argc, argv, &b.o, NULL, NULL);
    if (status == IM_OK) {
        if (b.o.threads == 0)
            b.o.threads = im_machine_cores();
        status = check_only(&b);
    }
    if (status == IM_OK)
        status = bench_all(&b);
    if (status == IM_OK)
        fputs(im_str_text(&b.out), stdout);
    im_str_free(&b.out);
    return im_cli_exit(cli, status);
}

static const im_cli_command cpu_command = {
    .name = "cpu",
    .help = "Measure this machine's memory, matrix products and kernels.",
    .about = "Every kernel has a row: its time, its rates, whether memory or arithmetic bounds it and how much of that bound, measured\n"
             "on the same machine just before, it reaches; and how many times faster it is than its plain C version.\n"
             "Memory is counted as it moves: a line that is only written is read first. GB/s counts what the kernel reads and writes.\n"
             "A kernel whose data fit the caches may pass 100 % of the memory bound.\n"
             "ONEDNN_MAX_CPU_ISA (AVX2, AVX512_CORE, ...) caps the instruction set.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_cpu,
};

static const im_cli_command *const subs[] = {&cpu_command, &im_cli_bench_comm_command, &im_cli_bench_machine_command};

const im_cli_command im_cli_bench_command = {
    .name = "bench",
    .help = "Measure this machine.",
    .sub = subs,
    .nsub = IM_COUNT_OF(subs),
};

im_status im_cli_machine_rates(im_context *ctx, int dtype, int threads, double *flops, double *bytes)
{
    im_memory_rate m;
    double f;
    IM_TRY(im_tensor_machine_rate(ctx, (im_dtype)dtype, threads, &f));
    IM_TRY(im_tensor_memory_rate(ctx, threads, &m));
    *flops = f;
    *bytes = m.triad;
    return IM_OK;
}
