/* cost: seconds of what a program does, on the machines of a cluster file.
 *
 *   products      FLOPs over the device's peak, times its curve at the cube root of M*N*K, times the share of the last wave of tiles that is full;
 *                 or the bytes over the memory's rate, whichever is longer
 *   other ops     bytes they read and write over the memory's rate, times its curve at that size
 *   collectives   alpha + beta by algorithm (ring, tree, NVLS, hierarchical, in-network), the fastest of them, over the links that the group's ranks
 *                 cross, shared by all groups of the same axis that do the same at once
 *   messages      the path from stage to stage, shared likewise
 *
 * Pure functions of the cluster and the plan; no rank of the cluster has a record of its own.
 */
#ifndef IM_PLAN_COST_H
#define IM_PLAN_COST_H

#include "plan/program.h"
#include "topology/cluster.h"

/* ---- a device ------------------------------------------------------------------------------- */

/* batch products c(M,N) = a(M,K) b(K,N); bytes: what they move. IM_NUMBER of the operands. */
double im_cost_product(const im_cluster_device *d, im_number number, int64_t batch, int64_t M, int64_t N, int64_t K, double bytes);
/* Share of the peak that the arithmetic of such products reaches. */
double im_cost_product_share(const im_cluster_device *d, im_number number, int64_t batch, int64_t M, int64_t N, int64_t K);
double im_cost_bytes(const im_cluster_device *d, double bytes);

/* ---- a group of ranks ----------------------------------------------------------------------- */

/* How the ranks of a group lie; all groups of the axis are looked at, and the worst of each figure holds. */
typedef struct im_cost_group {
    int ranks;                  /* of a group */
    int domains;                /* that a group spans */
    int local;                  /* of its ranks in one domain, the fewest */
    int levels;                 /* of the network that it crosses: 0 stays in a domain, 1 within a leaf, ... */
    double intra;               /* bytes/s a rank gets within the domain; INFINITY when alone there */
    double inter;               /* bytes/s that a group gets out of a domain and into one, its local ranks together, others of the axis at work too */
    double alpha_in, alpha_out; /* seconds of a small message within a domain, between domains */
    double flow;                /* the least bytes/s one rank gets to its neighbour when all send at once (messages) */
    double load[IM_CLUSTER_LEVELS]; /* how many groups of the axis leave the busiest unit of each level of the network at once */
} im_cost_group;

typedef struct im_cost_coll {
    double seconds, alpha, bandwidth; /* seconds = alpha + bytes / bandwidth */
    double inside, cut;    /* bytes that a device sends within its domain, and that leave a domain for all of a group, for each byte of the whole */
    const char *algorithm; /* "ring LL128", "tree Simple", "NVLS", "hierarchical", "in-network", "measured" */
} im_cost_coll;

/* ---- a plan on a cluster -------------------------------------------------------------------- */

typedef enum im_attention_kind { IM_ATTENTION_FUSED, IM_ATTENTION_UNFUSED } im_attention_kind;

typedef struct im_cost_options {
    im_attention_kind attention; /* UNFUSED: scores are written, masked, normalised and read, as before flash attention */
    double drop;                 /* UNFUSED: dropout on the scores costs two passes when > 0 */
    bool head_whole;             /* the head's products are of all rows of a micro-batch at once, as in other systems; ours takes them by chunks */
    double update_more;          /* bytes that an update moves for each parameter beside ours: other systems make more passes */
    const int *device;           /* [ranks]: where each rank runs; NULL: rank i on device i */
} im_cost_options;

typedef struct im_cost im_cost;
/* Refuses more ranks than devices and types that the device has no peak for. Time and memory: linear in the ranks, nothing is kept of them. */
im_status im_cost_open(im_context *ctx, const im_cluster *c, const im_plan *p, const im_cost_options *o, im_cost **out) IM_MUST_CHECK;
void im_cost_close(im_cost *k); /* NULL is allowed */
const im_cluster *im_cost_cluster(const im_cost *k);
const im_cost_group *im_cost_group_of(const im_cost *k, im_group_id g);
/* The messages between pipeline stage `stage` and the next (the last and the first). */
const im_cost_group *im_cost_hop(const im_cost *k, int stage);
/* `bytes` of the whole: what is reduced, or what all ranks have together. */
im_cost_coll im_cost_collective(const im_cost *k, im_collective c, im_group_id g, double bytes);
im_cost_coll im_cost_collective_on(const im_cluster *c, const im_cost_group *g, im_collective what, double bytes);
double im_cost_message(const im_cost *k, int stage, double bytes);
/* An im_price_fn with an im_cost as its argument; what an op costs is remembered. */
double im_cost_price(void *cost, const im_program *p, const im_bound *x);

/* What an op is made of, for explanations. */
typedef struct im_cost_op {
    double seconds;
    double flops, peak, share; /* products: peak FLOP/s and the share of it; else share 0 */
    double bytes;              /* moved in memory, or sent */
    im_cost_coll coll;         /* collectives; messages have alpha, bandwidth and the algorithm "message" */
    bool by_memory;            /* the bytes took longer than the arithmetic */
} im_cost_op;
im_cost_op im_cost_of(im_cost *k, const im_program *p, const im_bound *x);

/* Bytes of a collective or message that a device sends within its domain and over the network, and that leave the busiest unit of each level. */
typedef struct im_cost_traffic {
    double domain, network, level[IM_CLUSTER_LEVELS];
} im_cost_traffic;
im_cost_traffic im_cost_traffic_of(const im_cost *k, const im_program *p, const im_bound *x);
/* The path that a collective's group or a message takes; NULL: the op is neither. */
const im_cost_group *im_cost_path(const im_cost *k, const im_program *p, const im_bound *x);

#endif
