/* ports: the verbs ports of this machine (InfiniBand, RoCE) and what each has sent, by the kernel's counters. A job may believe that it uses
 * them while its bytes go over TCP; the counters know. */
#ifndef IM_COMM_MPI_PORTS_H
#define IM_COMM_MPI_PORTS_H

#include <stdint.h>

enum { IM_MPI_PORTS = 32 };

typedef struct im_mpi_port {
    char name[72];  /* "mlx5_0/1": device and port */
    uint64_t bytes; /* sent since the driver was loaded; where only packets are counted, 4,096 for each, which is the most they have */
} im_mpi_port;

typedef struct im_mpi_ports {
    im_mpi_port port[IM_MPI_PORTS]; /* [n]: active, and with a counter that is known here */
    int n;
    uint64_t ip; /* bytes that IP sent over InfiniBand (IPoIB), which its ports count too */
} im_mpi_ports;

/* sys: "/sys". Files that are not there, or not as expected, leave a port out. */
void im_mpi_ports_read(const char *sys, im_mpi_ports *out);

/* The port of `after` that has sent most since `before`, and how much that was, less what was IP; NULL without ports. */
const im_mpi_port *im_mpi_ports_busiest(const im_mpi_ports *before, const im_mpi_ports *after, uint64_t *bytes);

#endif
