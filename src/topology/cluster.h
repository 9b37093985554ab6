/* cluster: the machines that a plan is priced on, as a YAML file says (docs/clusters.md). Devices, the domain that joins some of them closely (NVLink,
 * NVSwitch, PCIe, the memory of one box), and a network of levels over the nodes.
 *
 * Every figure in the file has a unit. What the file leaves out is assumed, and each assumption is listed in the cluster for the output.
 */
#ifndef IM_TOPOLOGY_CLUSTER_H
#define IM_TOPOLOGY_CLUSTER_H

#include "device/device.h"

enum { IM_CLUSTER_POINTS = 48, IM_CLUSTER_LEVELS = 6, IM_CLUSTER_MAX_DEVICES = 1 << 22 };

/* Points of a measured curve, x ascending. Between two points: linear in log x; beyond the ends: the end's y. */
typedef struct im_curve {
    int n;
    double x[IM_CLUSTER_POINTS], y[IM_CLUSTER_POINTS];
} im_curve;
double im_curve_at(const im_curve *c, double x); /* 1 for an empty curve */

typedef enum im_number {
    IM_NUMBER_FP32,
    IM_NUMBER_BF16,
    IM_NUMBER_FP8,
    IM_NUMBER_COUNT
} im_number; /* of a matrix product's operands; fp16 counts as bf16 */
const char *im_number_name(im_number n);

/* Which set of NCCL's tuning figures holds; OTHER: it is not NCCL. */
typedef enum im_generation {
    IM_GENERATION_OTHER,
    IM_GENERATION_VOLTA,
    IM_GENERATION_AMPERE,
    IM_GENERATION_HOPPER,
    IM_GENERATION_BLACKWELL
} im_generation;

typedef struct im_cluster_device {
    const char *name;
    im_generation generation;
    double peak[IM_NUMBER_COUNT];     /* FLOP/s of dense matrix products; 0: it has none */
    im_curve matmul[IM_NUMBER_COUNT]; /* x: cube root of M*N*K, y: share of the peak that is reached */
    int64_t tile_m, tile_n, units;    /* a product is cut in tiles, `units` of which run at once; 0: not modelled */
    double memory;                    /* bytes */
    double memory_reserved;           /* of these, what no plan gets: context, library, allocator */
    double memory_rate;               /* bytes/s, as the maker says it */
    im_curve memory_curve;            /* x: bytes an operation moves, y: share of the rate */
    double launch;                    /* seconds a kernel takes at least */
    double power, idle_power;         /* W; 0: not said */
} im_cluster_device;

/* The devices that reach each other at `rate`: 8 of a box, 72 of a rack. */
typedef struct im_cluster_domain {
    int devices;      /* 1: every device for itself */
    const char *kind; /* "nvswitch", "nvlink", "pcie", "memory", ... */
    double rate;      /* bytes/s of a device in each direction, as the maker says it */
    double reach;     /* share of it that large transfers reach */
    double latency;   /* seconds of a small message */
    bool multicast;   /* the switch sums and copies (NVLS) */
} im_cluster_domain;

/* What the nodes below one unit of this level (a leaf switch, a pod, a dragonfly group) share, from the leaves upward. */
typedef struct im_cluster_level {
    const char *name;
    int nodes;               /* of a unit; with rails a unit of the first level is the leaves of all rails of so many nodes */
    double uplink;           /* bytes/s in each direction from a unit to the rest; INFINITY at the top */
    double per_peer;         /* dragonfly with minimal routes: bytes/s to any one other unit; INFINITY else */
    double oversubscription; /* what the file says: uplink = nics * link * nodes / oversubscription */
} im_cluster_level;

typedef enum im_network_kind { IM_NETWORK_NONE, IM_NETWORK_TREE, IM_NETWORK_FAT_TREE, IM_NETWORK_DRAGONFLY } im_network_kind;

typedef struct im_cluster_network {
    im_network_kind kind;
    int nics;       /* of a node */
    double link;    /* bytes/s of one in each direction */
    double reach;   /* share of it that large messages reach */
    double latency; /* seconds of a small message within a leaf */
    double hop;     /* seconds more for each level that it crosses */
    bool rails;     /* devices of one number share a leaf, whatever their node */
    bool adaptive;  /* dragonfly: packets go round full links */
    bool sharp;     /* switches sum */
    int nlevel;     /* at least 1 with a network */
    im_cluster_level level[IM_CLUSTER_LEVELS];
} im_cluster_network;

typedef enum im_library { IM_LIBRARY_RING, IM_LIBRARY_NCCL, IM_LIBRARY_MEASURED } im_library;

typedef struct im_cluster {
    const char *name, *file; /* as it calls itself; where it was read */
    im_cluster_device device;
    int nodes, devices_per_node;
    double host_memory; /* bytes of a node; 0: not said */
    im_cluster_domain domain;
    im_cluster_network network;
    im_library library;  /* how collectives are done */
    im_curve all_reduce; /* MEASURED: x bytes, y seconds of an all-reduce over all_reduce_ranks */
    int all_reduce_ranks;
    double net_overhead;     /* NCCL: seconds of the host for a network step */
    double storage_write;    /* bytes/s of all nodes together; 0: not said */
    double node_power, pue;  /* W of a node beside its devices, 0: not said; power of the building over that of its machines */
    double device_hour, kwh; /* prices; 0: not said */
    const char *currency;
    double device_mtbf;   /* seconds between failures of one device with what belongs to it; 0: not said */
    const char **assumed; /* "network.reach: 1 (not given)" */
    size_t nassumed;
    const char **source; /* "device.peak.bf16: ..." as the file says, in its order */
    size_t nsource;
    im_arena *arena;
} im_cluster;

int im_cluster_devices(const im_cluster *c);

/* `what` is a file (its name ends in .yaml, or holds a '/') or the name of a preset in clusters_dir (NULL: none are known). An unknown name is told with
 * the nearest; a bad figure (no unit, an impossible value) with file, line, key, and what would be right. */
im_status im_cluster_open(im_context *ctx, const char *what, const char *clusters_dir, im_cluster **out) IM_MUST_CHECK;
im_status im_cluster_parse(im_context *ctx, const char *name, const char *text, size_t len, im_cluster **out) IM_MUST_CHECK;
void im_cluster_close(im_cluster *c); /* NULL is allowed */
/* Names of presets, sorted, in arena a. */
im_status im_cluster_list(im_context *ctx, const char *clusters_dir, im_arena *a, const char ***names, size_t *n) IM_MUST_CHECK;
/* As a file that im_cluster_parse reads back to the same figures. */
void im_cluster_to_yaml(const im_cluster *c, im_str *out);

/* Units (cluster_units.c). "80 GB", "312 TFLOP/s", "200 Gb/s" (bits), "1.3 us", "400 W", "2 USD". false: `why` says what is wrong and what would be right. */
typedef enum im_quantity {
    IM_QUANTITY_BYTES,
    IM_QUANTITY_BYTE_RATE, /* bytes/s; b/s are bits */
    IM_QUANTITY_FLOP_RATE,
    IM_QUANTITY_SECONDS,
    IM_QUANTITY_WATTS,
    IM_QUANTITY_COUNT
} im_quantity;
bool im_quantity_parse(im_quantity q, const char *text, double *out, const char **why);
/* The shortest that im_quantity_parse reads back: "312 TFLOP/s". */
const char *im_quantity_format(im_quantity q, double value, char *buf, size_t buflen);

#endif
