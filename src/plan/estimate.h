/* estimate: what a step of a plan takes on a cluster, how its time and memory are made up, and what moves over which links. */
#ifndef IM_PLAN_ESTIMATE_H
#define IM_PLAN_ESTIMATE_H

#include "plan/draw.h"
#include "plan/events.h"

typedef enum im_axis {
    IM_AXIS_TP,
    IM_AXIS_CP,
    IM_AXIS_DP,
    IM_AXIS_PP,
    IM_AXIS_OTHER,
    IM_AXIS_COUNT
} im_axis; /* OTHER: tied weights, scalars of all ranks */
const char *im_axis_name(im_axis a);

/* Ops of one name in one instruction, all of them of the rank. Kernels have the sum of their time; communication what the device waited for it. */
typedef struct im_estimate_part {
    const char *verb, *label;
    im_axis axis; /* communication */
    bool comm;
    int64_t count;
    double seconds;            /* of compute, or exposed: what the parts add up to the step by */
    double alone;              /* communication: its time, hidden or not */
    double flops, bytes, peak; /* sums; peak FLOP/s of products, else 0 */
    im_cost_coll coll;         /* of the last of them */
} im_estimate_part;

typedef struct im_estimate_stage {
    double compute;                       /* seconds of kernels, update included */
    double update;                        /* of these, count, clip and optimizer */
    double exposed[IM_AXIS_COUNT];        /* seconds in which nothing was computed, as this was under way */
    double bubble;                        /* seconds in which nothing was computed or on its way: waiting for other ranks */
    double flops;                         /* of products, attention as the whole square */
    double sent_domain, sent_network;     /* bytes of a device */
    size_t memory[IM_CLASS_COUNT], total; /* bytes of a rank, programs left out */
    size_t peak_live;                     /* of activations and what comes and goes, at the most */
    uint32_t peak_step;                   /* the instruction at which that is */
} im_estimate_stage;                      /* compute + exposed + bubble = the step */

typedef struct im_estimate_link {
    const char *name; /* "domain", "network", or a level's */
    double bytes;     /* of the busiest one, in one direction, a step */
    double rate;      /* bytes/s it reaches */
    double use;       /* bytes / (rate * step) */
    double total;     /* bytes over all of this kind; 0: not counted */
} im_estimate_link;

typedef struct im_estimate {
    im_fold fold;
    im_timeline time;
    int devices;
    double step;                        /* seconds */
    double tokens;                      /* of a step */
    double model_flops, hardware_flops; /* of a step, all devices; hardware: what is computed twice counts twice */
    double peak;                        /* FLOP/s of a device, of the plan's type */
    double mfu, hfu;
    im_estimate_stage *stage; /* [fold.n] */
    int slowest, fullest;     /* stages: with the most compute; with the most memory */
    im_estimate_stage mean;   /* times of all devices on average */
    im_estimate_part *part;   /* of the slowest stage, longest first */
    size_t npart;
    im_estimate_link link[2 + IM_CLUSTER_LEVELS];
    int nlink, busiest;
    double joules, money; /* of a step; 0: not known */
} im_estimate;

typedef struct im_estimate_options {
    im_cost_options cost;
    bool whole;                /* every rank for itself: slow, for tests and comparisons */
    bool tp_blocks, dp_blocks; /* communication of these axes stops computing, as in systems that do not overlap it */
    bool recompute_block;      /* full recomputation does all of a block again, as other systems do; ours leaves out what no gradient needs */
} im_estimate_options;

/* `p` and `c` must outlive the result. */
im_status im_estimate_open(im_context *ctx, const im_plan *p, const im_cluster *c, const im_estimate_options *o, im_estimate *out) IM_MUST_CHECK;
void im_estimate_close(im_estimate *e);
/* Rows are stages. */
im_status im_estimate_drawing(im_context *ctx, const im_estimate *e, im_drawing *out) IM_MUST_CHECK;
/* A trace that Perfetto opens: a process a stage, a thread a queue. */
void im_estimate_trace(const im_estimate *e, im_str *out);

/* Checkpoints and failures: `write` seconds of a checkpoint, `mtbf` seconds between failures of the whole machine, `restart` seconds until it runs again.
 * interval: seconds between checkpoints (Young 1974, Daly 2006 to higher order); goodput: share of the time that goes on. */
typedef struct im_goodput {
    double young, daly, goodput;
} im_goodput;
im_goodput im_goodput_of(double write, double mtbf, double restart);

/* Bytes of a rank's most at once among values that come and go, and the instruction at which that is. */
im_status im_estimate_peak(im_context *ctx, const im_program *p, size_t *bytes, uint32_t *step) IM_MUST_CHECK;

#endif
