/* oneDNN behind gemm.h: versions 2.6 to 3.x. What differs between 2 and 3 is at the top: descriptors are structs there, handles here. */
#include "tensor/cpu/gemm.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef IM_HAVE_DNNL
#include <dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc; /* owned: destroyed */
typedef const_dnnl_memory_desc_t desc_ref;

static dnnl_status_t desc_make(desc *d, int ndim, const dnnl_dims_t shape, dnnl_data_type_t t, const dnnl_dims_t stride)
{
    return dnnl_memory_desc_create_with_strides(d, ndim, shape, t, stride);
}
static void desc_drop(desc d)
{
    dnnl_memory_desc_destroy(d);
}
static desc_ref desc_get(const desc *d)
{
    return *d;
}
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc_ref a, desc_ref b, desc_ref bias, desc_ref c,
                                 const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, attr);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *desc_ref;

static dnnl_status_t desc_make(desc *d, int ndim, const dnnl_dims_t shape, dnnl_data_type_t t, const dnnl_dims_t stride)
{
    return dnnl_memory_desc_init_by_strides(d, ndim, shape, t, stride);
}
static void desc_drop(desc d)
{
    (void)d;
}
static desc_ref desc_get(const desc *d)
{
    return d;
}
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc_ref a, desc_ref b, desc_ref bias, desc_ref c,
                                 const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t st = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return st == dnnl_success ? dnnl_primitive_desc_create(out, &d, attr, engine, NULL) : st;
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
#endif

bool im_gemm_available(void)
{
    return true;
}

const char *im_gemm_library(char *buf, size_t n)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(buf, n, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return buf;
}

im_isa im_gemm_isa(void)
{
    static const struct {
        unsigned bits;
        im_isa isa;
    } sets[] = {{dnnl_cpu_isa_avx512_core_amx, IM_ISA_AMX},
                {dnnl_cpu_isa_avx512_core_bf16, IM_ISA_AVX512_BF16},
                {dnnl_cpu_isa_avx512_core, IM_ISA_AVX512},
                {dnnl_cpu_isa_avx2, IM_ISA_AVX2}};
    unsigned may = (unsigned)dnnl_get_effective_cpu_isa();
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if ((may & sets[i].bits) == sets[i].bits)
            return sets[i].isa;
    return IM_ISA_BASE;
}

static im_status failed(im_context *ctx, const char *what, dnnl_status_t st)
{
    char library[32];
    return im_fail(ctx, st == dnnl_out_of_memory ? IM_ERR_NOMEM : IM_ERR_INTERNAL, "%s: %s failed with code %d",
                   im_gemm_library(library, sizeof library), what, (int)st);
}

im_status im_gemm_f32(im_context *ctx, int64_t M, int64_t N, int64_t K, im_gemm_matrix a, im_gemm_matrix b, float beta, float *c, int64_t ldc)
{
    dnnl_status_t st = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', M, N, K, 1.0f, a.p, a.ld, b.p, b.ld, beta, c, ldc);
    return st == dnnl_success ? IM_OK : failed(ctx, "dnnl_sgemm", st);
}

/* ---- primitives -------------------------------------------------------------------------------------------------------- */

enum { SLOTS = 5 }; /* a, b, c, bias, scratch */

struct im_gemm_primitive {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[SLOTS];
    size_t scratch;
    const char *info;
};

static const int arg_of[SLOTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS, DNNL_ARG_SCRATCHPAD};

/* The view as a descriptor of ndim dims: a bias (N) becomes (1,..,N). */
static dnnl_status_t desc_of(const im_view *v, int ndim, desc *out)
{
    dnnl_dims_t shape = {0}, stride = {0};
    int lead = ndim - v->ndim;
    for (int d = 0; d < ndim; d++) {
        shape[d] = d < lead ? 1 : v->shape[d - lead];
        stride[d] = d < lead ? v->shape[0] : v->stride[d - lead];
    }
    /* The stride of a dim of size 1 says nothing; the library wants one that fits a plain layout. */
    int r = ndim - 2, c = ndim - 1;
    if (lead == 0 && shape[r] == 1)
        stride[r] = stride[c] == 1 ? shape[c] : 1;
    if (lead == 0 && shape[c] == 1)
        stride[c] = stride[r] == 1 ? shape[r] : 1;
    if (lead == 0 && ndim == 3 && shape[0] == 1)
        stride[0] = shape[r] * stride[r] > shape[c] * stride[c] ? shape[r] * stride[r] : shape[c] * stride[c];
    return desc_make(out, ndim, shape, v->dtype == IM_BF16 ? dnnl_bf16 : dnnl_f32, stride);
}

/* Attributes: scratch is ours; accumulation is a sum after the product. */
static dnnl_status_t attr_make(bool accumulate, dnnl_primitive_attr_t *out)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(&attr);
    if (st != dnnl_success)
        return st;
    st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && accumulate) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = append_sum(ops);
        if (st == dnnl_success)
            st = dnnl_primitive_attr_set_post_ops(attr, ops);
        if (ops != NULL)
            dnnl_post_ops_destroy(ops);
    }
    if (st != dnnl_success) {
        dnnl_primitive_attr_destroy(attr);
        return st;
    }
    *out = attr;
    return dnnl_success;
}

/* Fills g->pd; dnnl_unimplemented when there is no implementation. */
static dnnl_status_t find_implementation(im_gemm_primitive *g, const desc *d, bool bias, bool accumulate)
{
    dnnl_primitive_attr_t attr;
    dnnl_status_t st = attr_make(accumulate, &attr);
    if (st != dnnl_success)
        return st;
    st = matmul_desc(&g->pd, g->engine, desc_get(&d[0]), desc_get(&d[1]), bias ? desc_get(&d[3]) : NULL, desc_get(&d[2]), attr);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

static dnnl_status_t make_memories(im_gemm_primitive *g, const desc *d, bool bias)
{
    for (int i = 0; i < 4; i++) {
        if (i == 3 && !bias)
            continue;
        dnnl_status_t st = dnnl_memory_create(&g->memory[i], desc_get(&d[i]), g->engine, DNNL_MEMORY_NONE);
        if (st != dnnl_success)
            return st;
    }
    desc_ref scratch = dnnl_primitive_desc_query_md(g->pd, dnnl_query_scratchpad_md, 0);
    g->scratch = scratch != NULL ? dnnl_memory_desc_get_size(scratch) : 0;
    return g->scratch > 0 ? dnnl_memory_create(&g->memory[4], scratch, g->engine, DNNL_MEMORY_NONE) : dnnl_success;
}

static dnnl_status_t build(im_gemm_primitive *g, const im_op_args *a, const desc *d, bool bias)
{
    dnnl_status_t st = find_implementation(g, d, bias, a->i[0] != 0);
    if (st == dnnl_success)
        st = dnnl_primitive_create(&g->primitive, g->pd);
    if (st == dnnl_success)
        st = make_memories(g, d, bias);
    if (st == dnnl_success)
        st = dnnl_primitive_desc_query(g->pd, dnnl_query_impl_info_str, 0, &g->info);
    return st;
}

im_status im_gemm_primitive_create(im_context *ctx, const im_op_args *a, im_gemm_primitive **out)
{
    bool bias = im_op_has(a, 3);
    desc d[4];
    int made = 0;
    im_gemm_primitive *g;
    IM_TRY(im_alloc(ctx, 1, sizeof *g, (void **)&g));
    dnnl_status_t st = dnnl_engine_create(&g->engine, dnnl_cpu, 0);
    if (st == dnnl_success)
        st = dnnl_stream_create(&g->stream, g->engine, dnnl_stream_default_flags);
    for (int i = 0; st == dnnl_success && i < (bias ? 4 : 3); i++) {
        st = desc_of(&a->v[i], a->v[0].ndim, &d[i]);
        made += st == dnnl_success;
    }
    if (st == dnnl_success)
        st = build(g, a, d, bias);
    for (int i = 0; i < made; i++)
        desc_drop(d[i]);
    if (st == dnnl_success) {
        *out = g;
        return IM_OK;
    }
    im_gemm_primitive_destroy(g);
    if (st != dnnl_unimplemented && st != dnnl_invalid_arguments)
        return failed(ctx, "making a matmul primitive", st);
    *out = NULL;
    return IM_OK;
}

size_t im_gemm_primitive_scratch(const im_gemm_primitive *g)
{
    return g->scratch;
}
const char *im_gemm_primitive_info(const im_gemm_primitive *g)
{
    return g->info;
}

im_status im_gemm_primitive_run(im_context *ctx, im_gemm_primitive *g, void *const *p, int np, void *scratch)
{
    dnnl_exec_arg_t arg[SLOTS];
    int n = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (g->memory[i] == NULL)
            continue;
        void *at = i == SLOTS - 1 ? scratch : i < np ? p[i] : NULL;
        dnnl_status_t st = dnnl_memory_set_data_handle(g->memory[i], at);
        if (st != dnnl_success)
            return failed(ctx, "dnnl_memory_set_data_handle", st);
        arg[n++] = (dnnl_exec_arg_t){arg_of[i], g->memory[i]};
    }
    dnnl_status_t st = dnnl_primitive_execute(g->primitive, g->stream, n, arg);
    if (st == dnnl_success)
        st = dnnl_stream_wait(g->stream);
    return st == dnnl_success ? IM_OK : failed(ctx, "a matmul primitive", st);
}

void im_gemm_primitive_destroy(im_gemm_primitive *g)
{
    if (g == NULL)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (g->memory[i] != NULL)
            dnnl_memory_destroy(g->memory[i]);
    if (g->primitive != NULL)
        dnnl_primitive_destroy(g->primitive);
    if (g->pd != NULL)
        dnnl_primitive_desc_destroy(g->pd);
    if (g->stream != NULL)
        dnnl_stream_destroy(g->stream);
    if (g->engine != NULL)
        dnnl_engine_destroy(g->engine);
    free(g);
}

#else

bool im_gemm_available(void)
{
    return false;
}

const char *im_gemm_library(char *buf, size_t n)
{
    snprintf(buf, n, "none");
    return buf;
}

im_isa im_gemm_isa(void)
{
    return IM_ISA_AMX;
}

im_status im_gemm_f32(im_context *ctx, int64_t M, int64_t N, int64_t K, im_gemm_matrix a, im_gemm_matrix b, float beta, float *c, int64_t ldc)
{
    (void)M, (void)N, (void)K, (void)a, (void)b, (void)beta, (void)c, (void)ldc;
    return im_fail(ctx, IM_ERR_UNSUPPORTED, "matmul: this build has no oneDNN");
}

im_status im_gemm_primitive_create(im_context *ctx, const im_op_args *a, im_gemm_primitive **out)
{
    (void)ctx, (void)a;
    *out = NULL;
    return IM_OK;
}

size_t im_gemm_primitive_scratch(const im_gemm_primitive *g)
{
    (void)g;
    return 0;
}

const char *im_gemm_primitive_info(const im_gemm_primitive *g)
{
    (void)g;
    return "none";
}

im_status im_gemm_primitive_run(im_context *ctx, im_gemm_primitive *g, void *const *p, int np, void *scratch)
{
    (void)g, (void)p, (void)np, (void)scratch;
    return im_fail(ctx, IM_ERR_UNSUPPORTED, "matmul: this build has no oneDNN");
}

void im_gemm_primitive_destroy(im_gemm_primitive *g)
{
    (void)g;
}

#endif
