/* Which instruction sets may be used: the processor, its operating system, and the cap given to oneDNN. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/gemm.h"

#if IM_X86
#include <cpuid.h>
#endif

const char *im_isa_name(im_isa isa)
{
    static const char *const names[IM_ISA_COUNT] = {"base", "avx2", "avx512", "avx512-bf16", "amx"};
    return isa < IM_ISA_COUNT ? names[isa] : "?";
}

#if IM_X86
static uint64_t os_saved_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static im_isa machine_isa(void)
{
    unsigned a, b, c, d, a7, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7))
        return IM_ISA_BASE;
    bool osxsave = c & (1u << 27), fma = c & (1u << 12), f16c = c & (1u << 29), avx2 = b7 & (1u << 5), bmi2 = b7 & (1u << 8);
    if (!osxsave || !fma || !f16c || !avx2 || !bmi2)
        return IM_ISA_BASE;
    uint64_t state = os_saved_state();
    if ((state & 0x6) != 0x6)
        return IM_ISA_BASE;
    bool f = b7 & (1u << 16), dq = b7 & (1u << 17), bw = b7 & (1u << 30), vl = b7 & (1u << 31);
    if (!f || !dq || !bw || !vl || (state & 0xe6) != 0xe6)
        return IM_ISA_AVX2;
    bool amx = (d7 & (1u << 24)) && (d7 & (1u << 22)) && (state & 0x60000) == 0x60000;
    unsigned a71 = 0, b71, c71, d71;
    if (!__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) || !(a71 & (1u << 5)))
        return IM_ISA_AVX512;
    return amx ? IM_ISA_AMX : IM_ISA_AVX512_BF16;
}
#else
static im_isa machine_isa(void)
{
    return IM_ISA_BASE;
}
#endif

im_isa im_cpu_isa(void)
{
    im_isa machine = machine_isa(), library = im_gemm_isa();
    return machine < library ? machine : library;
}
