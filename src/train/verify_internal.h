/* What the files of verify share. */
#ifndef IM_TRAIN_VERIFY_INTERNAL_H
#define IM_TRAIN_VERIFY_INTERNAL_H

#include "plan/program.h"
#include "train/verify.h"

#include <pthread.h>

/* ---- digests: rows of one sample on one edge, by global row and column, so that layouts compare ------------------- */

enum { IM_TRAIN_VERIFY_PROJECTIONS = 8 };
typedef struct im_train_verify_digest {
    int64_t rows; /* that were seen; 0: none */
    double squares, projection[IM_TRAIN_VERIFY_PROJECTIONS];
} im_train_verify_digest;

/* Of one rank: [step][0 forward, 1 backward][unit][sample of the global batch]. */
typedef struct im_train_verify_trace {
    int64_t steps, nunit, samples;
    im_train_verify_digest *digest;
} im_train_verify_trace;
im_status im_train_verify_trace_create(im_context *ctx, int64_t steps, int64_t nunit, int64_t samples, im_train_verify_trace *out) IM_MUST_CHECK;
void im_train_verify_trace_free(im_train_verify_trace *t);
/* Adds what an instruction left behind. */
im_status im_train_verify_edge(const im_train_verify_trace *t, const im_engine_edge *x) IM_MUST_CHECK;

/* ---- one layout --------------------------------------------------------------------------------------------------- */

enum { IM_TRAIN_VERIFY_MAX_STEPS = 64, IM_TRAIN_VERIFY_PATH = 4096 };

typedef struct im_train_verify_batch {
    const im_tokens *tokens; /* NULL: drawn */
    int64_t samples;         /* of the file */
    int64_t vocab;
    uint64_t seed;
} im_train_verify_batch;

/* What one rank gave, to compare with. */
typedef struct im_train_verify_reference {
    double loss[IM_TRAIN_VERIFY_MAX_STEPS], norm[IM_TRAIN_VERIFY_MAX_STEPS], tokens[IM_TRAIN_VERIFY_MAX_STEPS];
    float **gradient;      /* [nparam] logical tensors, of the first step's sum over tokens */
    double *gradient_norm; /* [nparam] */
    im_train_verify_trace trace;
    /* what moving the weights' last bits changes, of one rank too: [nparam]; the most of any step; edges */
    double *gradient_rounding, loss_rounding, norm_rounding;
    im_train_verify_trace rounded; /* empty: that is not asked for */
} im_train_verify_reference;

typedef struct im_train_verify_place {
    bool found;
    int verb, unit, mb;
    int64_t step;
    double difference;
} im_train_verify_place;
/* The first instruction whose edge is further from the reference's than the limit, by steps, micro-batches and units. A digest is an estimate: the
 * tolerance counts twice. */
im_train_verify_place im_train_verify_first(const im_plan *p, const im_train_verify_reference *reference, const im_train_verify_trace *rank,
                                            int nrank, double tolerance);

/* Of one parameter's gradient, all owned elements. */
typedef struct im_train_verify_tensor {
    double squares;      /* of the difference */
    double worst;        /* the largest difference */
    int64_t index, seen; /* where; elements compared */
    uint32_t sum;        /* bits of im_group_id: over which it was summed */
} im_train_verify_tensor;

typedef struct im_train_verify_job {
    const im_plan *plan;
    int64_t steps;
    double lr;
    im_kernels kernels;
    const im_train_verify_batch *batch;
    float *const *weight;                 /* [nparam] logical tensors, shared by all ranks of all layouts */
    im_train_verify_reference *reference; /* compared with; `first`: written */
    bool first;                           /* one rank, the reference; then, in the same engine, with the last bits of the weights moved */
    im_engine_fault fault;
    uint64_t fault_at;
    int fault_group; /* im_group_id; -1: any */
    /* out */
    bool broken;                  /* the fault was made, by any rank */
    double loss, norm;            /* largest relative differences, of any rank */
    int64_t loss_step, norm_step; /* the first over the limit; -1: none */
    double tolerance;
    im_train_verify_tensor *tensor; /* [nparam]; zero before; of the reference: how far the second pass is from the first */
    im_train_verify_trace *trace;   /* [ranks]; NULL: none is kept, and the engine runs as it does in training */
    size_t resident;                /* largest seen */
    im_status status;
    char error[400]; /* of the rank that failed first */
    im_comm_threads_world *world;
    pthread_mutex_t lock;
} im_train_verify_job;
/* Runs the job's plan on its ranks as threads. A rank's failure is the job's: job->status and error; the returned status is for failures before that. */
im_status im_train_verify_run(im_context *ctx, im_train_verify_job *j) IM_MUST_CHECK;

/* verify_name.c: "BACKWARD 3 (block 2), micro-batch 1" */
void im_train_verify_blame(const im_train_verify_job *j, const im_train_verify_row *row, char *buf, size_t size);
/* |a - b| / |b| of a parameter's first gradient. */
double im_train_verify_distance(const im_train_verify_job *j, size_t param);
/* The tolerance, or ten times what the last bits change. */
double im_train_verify_limit(double tolerance, double rounding);

#endif
