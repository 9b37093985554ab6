/* What the readers of networks and their analysis share. Only src/topology includes this. */
#ifndef IM_TOPOLOGY_NETWORK_PARTS_H
#define IM_TOPOLOGY_NETWORK_PARTS_H

#include "topology/network.h"

enum { IM_NET_MAX_NODES = 1 << 18, IM_NET_MAX_LINKS = 1 << 20 };

typedef struct im_net_build {
    im_context *ctx;
    im_arena *a;
    const char *name; /* of the text */
    im_network *net;
    size_t node_cap, link_cap, host_cap, finding_cap;
    int *slot; /* open addressing by id: node + 1; nslot is a power of two */
    size_t nslot;
    int *host_slot;
    size_t nhost_slot;
} im_net_build;

im_status im_net_begin(im_context *ctx, im_arena *a, const char *name, im_net_build *b) IM_MUST_CHECK;
void im_net_end(im_net_build *b); /* frees the tables; the network stays */
/* The node of that id; made when it is new (`kind` counts then). */
im_status im_net_node_of(im_net_build *b, const char *id, im_net_kind kind, int *out) IM_MUST_CHECK;
im_status im_net_host_of(im_net_build *b, const char *name, int *out) IM_MUST_CHECK;
im_status im_net_add_link(im_net_build *b, im_net_link link) IM_MUST_CHECK;
void im_net_find(im_net_build *b, const char *fmt, ...) IM_PRINTF(2, 3); /* a finding; beyond 1000 they are only counted away */
/* Levels, shape, over-subscription, twins: fills the rest of b->net. */
im_status im_net_analyse(im_net_build *b) IM_MUST_CHECK;
/* Links of each node, as one table: of[first[n]] ... of[first[n + 1]]. */
typedef struct im_net_index {
    int *first, *of;
} im_net_index;
im_status im_net_index_of(im_net_build *b, im_net_index *out) IM_MUST_CHECK;
static inline int im_net_other(const im_net_link *l, int node)
{
    return l->a == node ? l->b : l->a;
}
/* Shape, groups and why (network_shape.c). */
im_status im_net_shape_of(im_net_build *b, const im_net_index *ix) IM_MUST_CHECK;

#endif
