/* plugin: the few MPI calls that the backend makes, as a table. plugin.c is compiled once with each MPI into a shared
 * object of its own; nothing else sees mpi.h, so that the program runs without any MPI and with both.
 *
 * Calls return MPI's error code, 0 when all is well; explain tells it. One thread at a time may be in any of them (MPI's
 * level SERIALIZED); start, finish and quit are called by the same thread.
 */
#ifndef IM_COMM_MPI_PLUGIN_H
#define IM_COMM_MPI_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct im_mpi_state im_mpi_state; /* the plug-in's: its communicators */

typedef struct im_mpi_start {
    int rank, size, local_rank, local_size; /* local: of this machine */
    int machine;                            /* the lowest rank of it */
    int most_tag;
    int other_build;   /* the lowest rank that is another program than rank 0, -1: none */
    int without_level; /* the lowest rank whose MPI refused the thread level, -1: none. With either, MPI is finalized again, on all ranks */
    char library[128];
    double trip;      /* by measure: seconds, the longest of the pairs that were tried: there and back with 8 bytes */
    double bandwidth; /* by measure: bytes a second, the least; of 256 KiB there and back */
} im_mpi_start;

enum { IM_MPI_PAIRS = 2, IM_MPI_MEASURED = 5 * 256 << 10 }; /* MEASURED: bytes that ranks which measure together send each other, at least */

/* Whom a rank measures with, -1: nobody. Neighbours (k 0), and ranks that are half of all apart (k 1): so some pairs are of two machines, whether a
 * launcher fills machines one after the other or goes round. */
static inline int im_mpi_pair(int rank, int size, int k)
{
    int half = (size + 1) / 2, next = rank ^ 1, far = rank < half ? rank + half : rank - half;
    int peer = k == 0 ? next : size > 2 ? far : size;
    return peer < size ? peer : -1;
}

typedef enum im_mpi_channel { IM_MPI_DATA, IM_MPI_CONTROL } im_mpi_channel; /* messages of the two never meet */

typedef struct im_mpi_table {
    size_t table_bytes;                                                        /* of this struct, to find a plug-in of another build */
    size_t request_bytes;                                                      /* a request is that many bytes, which may be moved */
    int (*start)(im_mpi_state **state, uint64_t build, im_mpi_start *out);     /* build: of this program; the first thing that ranks compare */
    int (*measure)(im_mpi_state *s, im_mpi_start *out);                        /* all ranks call it, and leave when all have measured */
    int (*share)(im_mpi_state *s, const void *mine, size_t nbytes, void *all); /* [size] of nbytes each; all ranks call it, and wait */
    int (*finish)(im_mpi_state *s);                                            /* waits for all ranks */
    void (*quit)(im_mpi_state *s, int code);                                   /* ends the processes of all ranks */
    void (*explain)(int error, char *text, size_t size);
    /* nbytes up to INT_MAX. sync: done only when the other side has begun to receive */
    int (*send)(im_mpi_state *s, im_mpi_channel c, const void *p, size_t nbytes, int to, int tag, bool sync, void *request);
    int (*receive)(im_mpi_state *s, im_mpi_channel c, void *p, size_t nbytes, int from, int tag, void *request); /* from -1: anyone */
    int (*barrier)(im_mpi_state *s, void *request);
    int (*test)(int n, void *requests, bool *all); /* makes progress; a request that is over counts as done for ever */
    int (*cancel)(void *request);                  /* of a receive; it is gone */
} im_mpi_table;

#define IM_MPI_PLUGIN_SYMBOL "im_mpi_plugin"
typedef const im_mpi_table *(*im_mpi_plugin_fn)(void);
const im_mpi_table *im_mpi_plugin(void);

#endif
