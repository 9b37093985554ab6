/* plugin: MPI behind plugin.h's table. */
#include "comm/mpi/plugin.h"

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_mpi_state {
    MPI_Comm comm[2]; /* by channel */
};

/* of the enclosing function: the first error ends it */
#define TRY(expr)            \
    do {                     \
        int error_ = (expr); \
        if (error_)          \
            return error_;   \
    } while (0)

enum { TRIPS = 20, BIG_TRIPS = 4, BIG = IM_MPI_MEASURED / (1 + BIG_TRIPS) };

/* With a peer (-1: none): messages of n bytes to and fro; the shortest time, as the machine may be busy. */
static int to_and_fro(const im_mpi_state *s, const im_mpi_start *at, int peer, void *p, int n, int times, double *seconds)
{
    MPI_Comm c = s->comm[IM_MPI_DATA];
    *seconds = 0;
    TRY(MPI_Barrier(c));
    if (peer < 0)
        return 0;
    for (int i = 0; i < times; i++) {
        double t0 = MPI_Wtime();
        if (at->rank > peer)
            TRY(MPI_Recv(p, n, MPI_BYTE, peer, 0, c, MPI_STATUS_IGNORE));
        TRY(MPI_Send(p, n, MPI_BYTE, peer, 0, c));
        if (at->rank < peer)
            TRY(MPI_Recv(p, n, MPI_BYTE, peer, 0, c, MPI_STATUS_IGNORE));
        double t = MPI_Wtime() - t0;
        if (i == 0 || t < *seconds)
            *seconds = t;
    }
    return 0;
}

static int measure_with(const im_mpi_state *s, const im_mpi_start *at, int peer, void *p, double mine[2])
{
    double t[2], warm;
    TRY(to_and_fro(s, at, peer, p, 8, 3, &warm));
    TRY(to_and_fro(s, at, peer, p, 8, TRIPS, &t[0]));
    TRY(to_and_fro(s, at, peer, p, BIG, 1, &warm));
    TRY(to_and_fro(s, at, peer, p, BIG, BIG_TRIPS, &t[1]));
    for (int i = 0; i < 2; i++)
        mine[i] = t[i] > mine[i] ? t[i] : mine[i];
    return 0;
}

static int measure(im_mpi_state *s, im_mpi_start *out)
{
    double mine[2] = {0}, worst[2];
    void *p = calloc(1, BIG);
    if (!p)
        return MPI_ERR_NO_MEM;
    int error = 0;
    for (int k = 0; k < IM_MPI_PAIRS && !error; k++)
        error = measure_with(s, out, im_mpi_pair(out->rank, out->size, k), p, mine);
    free(p);
    if (!error)
        error = MPI_Allreduce(mine, worst, 2, MPI_DOUBLE, MPI_MAX, s->comm[IM_MPI_CONTROL]);
    if (error)
        return error;
    out->trip = worst[0];
    out->bandwidth = worst[1] > 0 ? 2.0 * BIG / worst[1] : 0;
    return 0;
}

static int look_around(im_mpi_state *s, im_mpi_start *out)
{
    MPI_Comm here;
    int *most, found, n;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    TRY(MPI_Comm_split_type(s->comm[0], MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
    TRY(MPI_Comm_rank(here, &out->local_rank));
    TRY(MPI_Comm_size(here, &out->local_size));
    out->machine = out->rank;
    TRY(MPI_Bcast(&out->machine, 1, MPI_INT, 0, here));
    TRY(MPI_Comm_free(&here));
    TRY(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found));
    out->most_tag = found ? *most : 32767;
    TRY(MPI_Get_library_version(text, &n));
    text[strcspn(text, ",\n")] = '\0'; /* MPICH's has tabs and lines */
    for (char *p = text; *p; p++)
        if (*p == '\t')
            *p = ' ';
    snprintf(out->library, sizeof out->library, "%.*s", (int)sizeof out->library - 1, text);
    return 0;
}

/* Whether ranks can run together. Nothing of another build is trusted, so this stays as it is in every version. */
static int compare(uint64_t build, bool level, im_mpi_start *out)
{
    enum { BUILD, LEVEL, FACTS };
    uint64_t mine[FACTS] = {build, level};
    TRY(MPI_Comm_rank(MPI_COMM_WORLD, &out->rank));
    TRY(MPI_Comm_size(MPI_COMM_WORLD, &out->size));
    uint64_t(*all)[FACTS] = calloc((size_t)out->size, sizeof *all);
    if (!all)
        return MPI_ERR_NO_MEM;
    int error = MPI_Allgather(mine, FACTS, MPI_UINT64_T, all, FACTS, MPI_UINT64_T, MPI_COMM_WORLD);
    out->other_build = out->without_level = -1;
    for (int i = out->size - 1; !error && i >= 0; i--) {
        if (all[i][BUILD] != all[0][BUILD])
            out->other_build = i;
        if (!all[i][LEVEL])
            out->without_level = i;
    }
    free(all);
    return error;
}

static int start(im_mpi_state **state, uint64_t build, im_mpi_start *out)
{
    int level;
    TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
    TRY(compare(build, level >= MPI_THREAD_SERIALIZED, out));
    if (out->other_build >= 0 || out->without_level >= 0)
        return MPI_Finalize();
    im_mpi_state *s = calloc(1, sizeof *s);
    if (!s)
        return MPI_ERR_NO_MEM;
    int error = 0;
    for (int i = 0; i < 2 && !error; i++) {
        error = MPI_Comm_dup(MPI_COMM_WORLD, &s->comm[i]);
        if (!error)
            error = MPI_Comm_set_errhandler(s->comm[i], MPI_ERRORS_RETURN);
    }
    if (!error)
        error = look_around(s, out);
    if (error) {
        free(s);
        return error;
    }
    *state = s;
    return 0;
}

static int share(im_mpi_state *s, const void *mine, size_t nbytes, void *all)
{
    return MPI_Allgather(mine, (int)nbytes, MPI_BYTE, all, (int)nbytes, MPI_BYTE, s->comm[IM_MPI_CONTROL]);
}

static int finish(im_mpi_state *s)
{
    for (int i = 0; i < 2; i++)
        TRY(MPI_Comm_free(&s->comm[i]));
    free(s);
    return MPI_Finalize();
}

static void quit(im_mpi_state *s, int code)
{
    (void)s;
    (void)MPI_Abort(MPI_COMM_WORLD, code);
}

static void explain(int error, char *text, size_t size)
{
    char all[MPI_MAX_ERROR_STRING];
    int n;
    if (MPI_Error_string(error, all, &n))
        snprintf(all, sizeof all, "error %d", error);
    snprintf(text, size, "%s", all);
}

static int send(im_mpi_state *s, im_mpi_channel c, const void *p, size_t nbytes, int to, int tag, bool sync, void *request)
{
    if (sync)
        return MPI_Issend(p, (int)nbytes, MPI_BYTE, to, tag, s->comm[c], request);
    return MPI_Isend(p, (int)nbytes, MPI_BYTE, to, tag, s->comm[c], request);
}

static int receive(im_mpi_state *s, im_mpi_channel c, void *p, size_t nbytes, int from, int tag, void *request)
{
    return MPI_Irecv(p, (int)nbytes, MPI_BYTE, from < 0 ? MPI_ANY_SOURCE : from, tag, s->comm[c], request);
}

static int barrier(im_mpi_state *s, void *request)
{
    return MPI_Ibarrier(s->comm[IM_MPI_CONTROL], request);
}

static int test(int n, void *requests, bool *all)
{
    int done = 0, error = MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE);
    *all = done;
    return error;
}

static int cancel(void *request)
{
    MPI_Request *r = request;
    if (*r == MPI_REQUEST_NULL)
        return 0;
    TRY(MPI_Cancel(r));
    return MPI_Request_free(r);
}

const im_mpi_table *im_mpi_plugin(void)
{
    static const im_mpi_table table = {
        .table_bytes = sizeof(im_mpi_table),
        .request_bytes = sizeof(MPI_Request),
        .start = start,
        .measure = measure,
        .share = share,
        .finish = finish,
        .quit = quit,
        .explain = explain,
        .send = send,
        .receive = receive,
        .barrier = barrier,
        .test = test,
        .cancel = cancel,
    };
    return &table;
}
