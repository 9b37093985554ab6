/* What `imece fabric topo` shows: distances, pairing and rails of a machine; levels, shape and findings of a network. */
#ifndef IM_FABRIC_TOPO_H
#define IM_FABRIC_TOPO_H

#include "fabric/status.h"
#include "topology/network.h"

im_status im_topo_text(im_context *ctx, im_arena *a, const im_graph *g, const im_look *look, im_str *out) IM_MUST_CHECK;
im_status im_topo_network_text(im_context *ctx, im_arena *a, const im_network *net, const im_look *look, im_str *out) IM_MUST_CHECK;
/* One object with "machine" (g may be NULL) and "networks". */
im_status im_topo_json(im_context *ctx, im_arena *a, const im_graph *g, const im_network *const *net, size_t nnets, im_str *out) IM_MUST_CHECK;

#endif
