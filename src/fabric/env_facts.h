/* What env needs of a machine, out of the machine's reader (src/topology). */
#ifndef IM_FABRIC_ENV_FACTS_H
#define IM_FABRIC_ENV_FACTS_H

#include "fabric/env.h"
#include "topology/machine.h"

/* root NULL or "/": this machine. Everything is in `a`. */
im_status im_env_facts_read(im_context *ctx, im_arena *a, const char *root, im_env_facts *out) IM_MUST_CHECK;
/* The same of a machine that was read already; the root is still open. */
im_status im_env_facts_of(im_context *ctx, im_arena *a, im_root *root, const im_machine *m, im_env_facts *out) IM_MUST_CHECK;
/* Priorities with PFC and the trust state out of what mlnx_qos prints; -1 where it does not say. */
void im_env_qos_parse(const char *text, int *pfc, int *trust);

#endif
