/* GPUs, NICs and CPUs of one machine, and how far they are from each other: from sysfs (im_machine) or from the XML that NCCL
 * writes with NCCL_TOPO_DUMP_FILE. Distances have the names of `nvidia-smi topo -m`.
 */
#ifndef IM_TOPOLOGY_GRAPH_H
#define IM_TOPOLOGY_GRAPH_H

#include "topology/machine.h"

typedef enum im_path {
    IM_PATH_SELF,
    IM_PATH_NVLINK, /* NVLink, directly or by NVSwitch */
    IM_PATH_PIX,    /* one PCIe switch, or two functions of one card */
    IM_PATH_PXB,    /* several switches, no host bridge */
    IM_PATH_PHB,    /* the PCIe host bridge: through the CPU */
    IM_PATH_NODE,   /* two host bridges of one NUMA node */
    IM_PATH_SYS,    /* two NUMA nodes */
    IM_PATH_UNKNOWN /* the NUMA node is not told */
} im_path;

typedef enum im_item_kind { IM_ITEM_GPU, IM_ITEM_NIC } im_item_kind;

typedef struct im_item {
    im_item_kind kind;
    const char *name;        /* "GPU3", "mlx5_0" */
    const char *address;     /* PCI */
    const char *host_bridge; /* NULL: not told (XML) */
    const char *port;        /* the last bridge above it; NULL: none */
    const char **pci_switch; /* upstream ports of the switches above it, the CPU's side first */
    size_t nswitches;
    int numa;          /* -1: not told */
    int host;          /* XML of several machines that NVLink joins; else 0 */
    const char *cpus;  /* near; NULL: not told */
    double pci_bytes;  /* per second and direction, after encoding; 0: unknown */
    double gbps;       /* NIC: rate of its active ports together; 0: none is active, or unknown */
    int active, ports; /* NIC: ports; -1: not told */
    bool ethernet;     /* NIC */
    int nvlinks;       /* GPU: all of its NVLinks; 0 may mean "not told": see im_graph.nvlink_known */
} im_item;

typedef struct im_graph {
    const char *source; /* the file or the root directory */
    im_item *gpu, *nic;
    size_t ngpus, nnics;
    int numas, hosts;
    int *nvlink;                       /* [ngpus][ngpus]: links that the pair shares; by a switch: the smaller number of the two */
    bool nvlink_known;                 /* only the XML tells */
    const char *cpu_arch, *cpu_vendor; /* XML; NULL: not told */
} im_graph;

im_status im_graph_from_machine(im_context *ctx, im_arena *a, const im_machine *m, im_graph **out) IM_MUST_CHECK;
/* `name` is what messages call the text. IM_ERR_FORMAT with the line where it is no such XML. */
im_status im_graph_from_nccl(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_graph **out) IM_MUST_CHECK;

im_path im_graph_path(const im_graph *g, const im_item *x, const im_item *y);
const char *im_path_name(im_path p); /* "X", "NV", "PIX" ... "?" */

/* ---- pairing and rails ------------------------------------------------------------------------ */

typedef struct im_pairing {
    const im_item **nic;  /* [ngpus]: of each GPU; NULL: there is none for it */
    im_path *path;        /* [ngpus] */
    const im_item **rail; /* NICs that carry the training's traffic, in order: rail r is the r-th of every such host */
    size_t nrails;
    const im_item **aside; /* other NICs */
    const char **aside_why;
    size_t nasides;
} im_pairing;

/* Each GPU gets a NIC so that the distances together are least and no NIC has more GPUs than needed (an assignment problem:
 * the Hungarian method, n^3 steps). The rails are the NICs of the commonest kind of link among the fastest active ones. */
im_status im_graph_pair(im_context *ctx, im_arena *a, const im_graph *g, im_pairing *out) IM_MUST_CHECK;

#endif
