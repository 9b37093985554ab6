/* oneDNN behind gemm.h. */
#include "tensor/cpu/gemm.h"

#include <stdio.h>

#ifdef IM_HAVE_DNNL
#include <dnnl.h>

bool im_gemm_available(void) { return true; }

const char *im_gemm_library(char *buf, size_t n) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(buf, n, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return buf;
}

im_isa im_gemm_isa(void) {
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

#else

bool im_gemm_available(void) { return false; }

const char *im_gemm_library(char *buf, size_t n) {
    snprintf(buf, n, "none");
    return buf;
}

im_isa im_gemm_isa(void) { return IM_ISA_AMX; }

#endif
