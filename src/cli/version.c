/* --version: what is compiled in, and what this machine has of it. */
#include "cli/cli.h"
#include "tensor/cpu/gemm.h"

#ifdef IM_HAVE_OPENMP
#define OPENMP "OpenMP"
#else
#define OPENMP "no OpenMP"
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

void im_cli_version(im_str *out)
{
    char name[64], memory[32];
    im_str_printf(out, "imece %s\n", IM_VERSION_STRING);
    im_str_append(out, "libraries:        ");
    im_base_libraries(out);
    im_str_printf(out, "\n                  matrix products: %s; %s\n",
                  im_gemm_available() ? im_gemm_library(name, sizeof name) : "plain C (no oneDNN)", OPENMP);
    im_str_append(out, "instruction sets: compiled in:");
    for (int i = 0; i < IM_ISA_COUNT; i++)
        im_str_printf(out, " %s", im_isa_name((im_isa)i));
    im_str_printf(out, "\n                  used on this machine: up to %s\n", im_isa_name(im_cpu_isa()));
    im_str_append(out, "devices:          cpu (inline, deferred)\n"
                       "communicators:    self, threads, mpi\n");
    im_str_printf(out, "this machine:     %d usable cores, %s of memory\n", im_machine_cores(),
                  im_format_bytes(memory, sizeof memory, (double)im_machine_memory()));
    im_str_printf(out,
                  "compiler:         %s\n"
                  "build:            %s\n",
                  COMPILER, im_build_id());
}
