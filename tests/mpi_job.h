/* mpi_job.h: jobs of a test program that starts mpirun with itself: PROGRAM --rank PLUGIN ... is one rank. */
#ifndef IM_TEST_MPI_JOB_H
#define IM_TEST_MPI_JOB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct mpi_flavour {
    const char *name, *run;
} mpi_flavour;

enum { MPI_FLAVOURS = 2 };
static const mpi_flavour mpi_flavours[MPI_FLAVOURS] = {
    {"openmpi", "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none"},
    {"mpich", "mpirun.mpich"},
};

/* The flavour in *state; a build without its plug-in skips the test. */
static const mpi_flavour *mpi_here(void **state)
{
    const mpi_flavour *f = *state;
    char plugin[512];
    snprintf(plugin, sizeof plugin, IM_BUILD_DIR "/imece_%s.so", f->name);
    if (access(plugin, F_OK) != 0) /* built where its compiler is, but not into a sanitized build */
        skip();
    return f;
}

/* This program on so many ranks, with `arguments` behind the plug-in. What the whole job said goes to out; returns its exit code. */
static int mpi_job(const mpi_flavour *f, int ranks, const char *arguments, char *out, size_t size)
{
    char program[512], command[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = '\0';
    snprintf(command, sizeof command, "timeout -k 5 170 %s -n %d %s --rank " IM_BUILD_DIR "/imece_%s.so %s 2>&1 </dev/null", f->run, ranks, program,
             f->name, arguments);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t n = 0, got;
    while (n + 1 < size && (got = fread(out + n, 1, size - 1 - n, p)) > 0)
        n += got;
    out[n] = '\0';
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int mpi_count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text++)
        n++;
    return n;
}

#endif
