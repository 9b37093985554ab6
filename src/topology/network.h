/* A network as a graph of switches and hosts: from `ibnetdiscover` or Slurm's topology.conf. Levels, over-subscription, what kind of
 * topology it is, and links and switches that differ from their twins.
 */
#ifndef IM_TOPOLOGY_NETWORK_H
#define IM_TOPOLOGY_NETWORK_H

#include "base/base.h"

typedef enum im_net_kind { IM_NET_SWITCH, IM_NET_PORTS, IM_NET_ROUTER } im_net_kind; /* PORTS: a host's adapter */

typedef struct im_net_node {
    im_net_kind kind;
    const char *id;         /* "S-0008f10400410015"; Slurm: the name */
    const char *text;       /* the description, or the name */
    int host;               /* PORTS: index into hosts; -1: aggregation nodes inside of switches */
    int64_t vendor, device; /* 0: not told */
    int ports;              /* 0: not told */
    int level;              /* switches: 1 has hosts, then one more for each step away; 0: no host can be reached */
    int group;              /* switches of dragonflies; -1 */
    int nlinks;
} im_net_node;

typedef struct im_net_link {
    int a, b;           /* nodes */
    int a_port, b_port; /* 0: not told */
    int width;          /* lanes; 0: not told */
    const char *speed;  /* "NDR"; NULL: not told */
    double gbps;        /* of data; 0: not told */
    int twins;          /* links of the same kind */
    const char *below;  /* "slower" or "narrower" than most of its twins, with their width and speed; NULL: it is not */
} im_net_link;

typedef struct im_net_host {
    const char *name;
    int nodes; /* its adapters */
} im_net_host;

typedef enum im_net_shape {
    IM_SHAPE_NONE,           /* no switch */
    IM_SHAPE_SINGLE,         /* one switch */
    IM_SHAPE_TREE,           /* one way only between any two switches */
    IM_SHAPE_FAT_TREE,       /* links join neighbouring levels only */
    IM_SHAPE_DRAGONFLY,      /* groups of switches that all know each other, and all groups do */
    IM_SHAPE_DRAGONFLY_PLUS, /* groups of leaves and spines, the spines joined to other groups */
    IM_SHAPE_MESH,           /* every switch joined to every other one */
    IM_SHAPE_PARTS,          /* several networks that nothing joins */
    IM_SHAPE_OTHER
} im_net_shape;

typedef struct im_net_level {
    int switches, down_links, up_links, side_links;
    double down_gbps, up_gbps; /* together; 0: not told */
    double over_min, over_max; /* of its switches: down / up; 0: no up links, or rates are not told */
} im_net_level;

enum { IM_NET_LEVELS = 8 };

typedef struct im_network {
    const char *source; /* the file */
    im_net_node *node;
    size_t nnodes;
    im_net_link *link;
    size_t nlinks;
    im_net_host *host;
    size_t nhosts;
    im_net_shape shape;
    const char *why; /* of the shape: one clause */
    int levels, groups, parts;
    im_net_level level[IM_NET_LEVELS + 1]; /* 1-based */
    int rails;            /* every host has so many adapters, each at another leaf, and the leaves of rail r serve adapter r alone; 0: no */
    const char **finding; /* sentences: links below their twins, switches with fewer links than theirs ... */
    size_t nfindings;
} im_network;

/* IM_ERR_FORMAT with the line where the text is none of ibnetdiscover's. */
im_status im_network_from_ibnetdiscover(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_network **out) IM_MUST_CHECK;
/* Slurm's topology/tree: SwitchName= with Switches= or Nodes=. */
im_status im_network_from_slurm(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_network **out) IM_MUST_CHECK;

const char *im_net_shape_name(im_net_shape s);
/* Data rate of so many lanes of a speed by name, Gb/s; 0: no such speed. */
double im_lane_gbps(const char *speed, int width);

#endif
