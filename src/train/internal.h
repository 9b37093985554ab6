/* What the files of this folder share: the state of one run. */
#ifndef IM_TRAIN_INTERNAL_H
#define IM_TRAIN_INTERNAL_H

#include "base/process.h"
#include "train/train.h"

enum { IM_TRAIN_PATH = 4096, IM_TRAIN_TRACE_STEPS = 5 };

typedef struct im_train_team im_train_team;
typedef struct im_train_watchdog im_train_watchdog;

typedef struct im_train_run {
    im_context *ctx;
    int rank, ranks, ranks_here; /* here: on this machine */
    im_train_team *team;         /* NULL: alone */
    im_train_watchdog *watchdog; /* of this process; NULL: one rank */
    im_train_options o;          /* global_batch and out resolved */
    const im_train_env *env;
    im_arena *arena; /* strings of o that were resolved */

    im_model *model;
    im_feed *data, *valid; /* valid may be NULL */
    int32_t *token_bytes;  /* [vocabulary]: bytes of text that an id stands for; NULL: not known */
    im_plan plan;
    im_pace pace;               /* with paced kernels */
    int64_t cut[IM_TRAIN_CUTS]; /* the plan's, when --stages lists them */
    im_train_eval eval;
    im_program_want want[1 + IM_TRAIN_EVAL_PARTS];
    size_t nwant;
    im_memory predicted;   /* of the rank that needs most */
    int heaviest;          /* that rank */
    size_t predicted_all;  /* bytes of all ranks */
    size_t predicted_here; /* of those of this process */

    im_device *device;
    im_comm *world;
    im_engine *engine;

    char from[IM_TRAIN_PATH]; /* resume: the checkpoint it goes on from; "" otherwise */
    char checkpoints[IM_TRAIN_PATH];
    char rings[IM_TRAIN_PATH]; /* "" until there is such a directory */
    const char *copy_from;     /* where tokenizer files are, NULL: nowhere */
    im_checkpoint_meta meta;   /* where the run stands */
    bool batch_follows;        /* the global batch was not given: one micro-batch of each dp rank */
    int64_t total_steps;       /* 0: no such limit */
    int64_t first_step;        /* meta.step when this process began */
    double loop_began;         /* clock */
    double elapsed;            /* seconds trained, as rank 0 saw them after the last step */
    im_metrics last;           /* of the step that was run last, as this rank saw it */
    bool ran;                  /* it is not in meta yet */
    int saw_nonfinite;         /* ranks that saw that it is not finite: all, or something is wrong */
    int saw_bad;               /* ranks whose weights it made not finite */
    bool finished, stop;       /* seen at the same time: the end is reached, a signal came */
    bool agreed;               /* an error that all ranks have come to alike: nobody waits for anybody */
    double elapsed_before;     /* seconds of earlier processes */

    im_observe_file *metrics;
    im_observe_trace *trace;
    int log_fd;          /* logs/rank-0.log; -1: none */
    bool metrics_failed; /* said once */
    bool warned_flat;

    im_checkpoint_save *saving;
    int64_t saving_step, saved_step, eval_step; /* -1: none */
    im_status save_status;                      /* of the last save that ended */
    char save_error[512];
    double rate; /* matmul FLOPs a second of all ranks' machines; 0: not measured yet; < 0: cannot be */
    int consecutive_bad, rollbacks;
    bool diverged; /* ended by a non-finite step */
    im_observe_summary summary;
    double work_seconds; /* steps only */
} im_train_run;

/* ---- say.c */
void im_train_say(im_train_run *r, im_train_text kind, const char *fmt, ...) IM_PRINTF(3, 4);
void im_train_log_lines(const im_train_run *r, const char *text); /* into logs/rank-0.log */
void im_train_plan_text(const im_train_run *r, im_str *out);
/* Hardware and kernels, as the manifest keeps it: results are bit-equal only where it is the same. */
void im_train_isa(const im_device *d, char *out, size_t size);

/* ---- setup.c */
/* IM_ERR_NOMEM when the ranks of this machine need more than it has. */
im_status im_train_need_memory(im_train_run *r) IM_MUST_CHECK;
im_status im_train_setup(im_train_run *r) IM_MUST_CHECK; /* model, data, plan, prediction: nothing is written or allocated */
im_status im_train_open_device(im_train_run *r) IM_MUST_CHECK;
im_status im_train_open_engine(im_train_run *r) IM_MUST_CHECK;
/* The state at r->from, or the initial one; r->meta becomes its. */
im_status im_train_load_state(im_train_run *r, const char *from) IM_MUST_CHECK;
/* What a rank opened for itself; then what the ranks share. */
void im_train_close_rank(im_train_run *r);
void im_train_teardown(im_train_run *r);

/* ---- team.c: ranks as threads of this process */
/* After setup: starts the other ranks; each opens its device and comes to the point where its engine is opened. r->device and r->world
 * are open then. One rank: only that. */
im_status im_train_team_start(im_train_run *r) IM_MUST_CHECK;
/* status: how rank 0 ended. Ends the others, closes what each rank has opened, and tells the first error of all. */
im_status im_train_team_end(im_train_run *r, im_status status) IM_MUST_CHECK;
/* All ranks, after the engine is open: the directory that rank 0 made. */
im_status im_train_share_dir(im_train_run *r) IM_MUST_CHECK;

/* ---- facts.c */
enum { IM_TRAIN_FACTS = IM_TRAIN_SAVED_ROWS + 1 };
typedef uint64_t im_train_fact;
im_status im_train_facts(im_train_run *r, im_train_fact *fact) IM_MUST_CHECK; /* [IM_TRAIN_FACTS], after setup */
/* IM_ERR_ARG when rank's are not as those of rank 0 are, and which are not. */
im_status im_train_facts_compare(im_train_run *r, int rank, const im_train_fact *its, const im_train_fact *first) IM_MUST_CHECK;

/* ---- processes.c: ranks as processes of an MPI job, env->mpi */
/* After setup: device and world; all ranks planned the same run, or each is told which of them did not, and what differs. */
im_status im_train_processes_start(im_train_run *r) IM_MUST_CHECK;
void im_train_processes_end(im_train_run *r, im_status status); /* tells the others of an error of this rank */

/* ---- picture.c: what a run shows of its last steps */
im_status im_train_spans_open(im_train_run *r) IM_MUST_CHECK;  /* each rank, when its engine is open */
im_status im_train_spans_leave(im_train_run *r) IM_MUST_CHECK; /* each rank, after its last step: its part, in logs/ */
im_status im_train_spans_join(im_train_run *r) IM_MUST_CHECK;  /* rank 0, when all ranks have ended well */
/* ---- loop.c */
im_status im_train_rank_pace(im_train_run *r, im_pace *out) IM_MUST_CHECK; /* of a rank of this machine, measured */

static inline bool im_train_paced(const im_train_run *r)
{
    return r->o.kernels == IM_KERNELS_PACED;
}

/* ---- rings.c */
im_status im_train_decorate(im_train_run *r) IM_MUST_CHECK;   /* r->world: with a ring, and with the fault that was asked for */
im_status im_train_place_ring(im_train_run *r) IM_MUST_CHECK; /* after im_train_share_dir */
void im_train_tell_end(im_train_run *r, im_status status);   /* this rank's, into its ring; before it is closed */
void im_train_cry(const im_train_run *r, const char *lines); /* each an error in the log */
/* Whose fault the rings of the process before this one tell: they are about to be replaced. */
void im_train_tell_past(im_train_run *r, const char *rings);
void im_train_report(im_train_run *r); /* what the rings of all ranks tell, as errors in the log */

/* ---- watchdog.c */
im_status im_train_watchdog_start(im_train_run *lead) IM_MUST_CHECK;  /* lead: of this process */
void im_train_watchdog_stop(im_train_run *lead);                      /* last of all; without one nothing happens, in all of these */
void im_train_watchdog_add(im_train_run *r);                          /* r->world is open */
void im_train_watchdog_remove(im_train_run *r);                       /* before it is destroyed */
void im_train_watchdog_peers(im_train_run *r, const im_process *all); /* ranks that are processes: theirs */
bool im_train_watchdog_speaks(const im_train_run *r);                 /* no lower rank can: their processes are over, or stopped */
void im_train_watchdog_report(im_train_run *r);                       /* im_train_report, unless the watchdog did */

/* ---- rundir.c */
/* Before setup: the checkpoint to go on from, the model's directory. */
im_status im_train_find_resume(im_train_run *r) IM_MUST_CHECK;
im_status im_train_check_resume(im_train_run *r) IM_MUST_CHECK; /* data, order, sequence length: the same or refused */
im_status im_train_make_dir(im_train_run *r) IM_MUST_CHECK;

/* ---- datafiles.c: what the run read, in plan.yaml */
void im_train_data_yaml(const im_train_run *r, im_str *out);
/* Which files are others than when `plan` (a plan.yaml) was written; "" when that is not known. */
void im_train_data_changes(const im_train_run *r, const char *plan, im_str *out);

/* ---- saving.c */
im_status im_train_save_begin(im_train_run *r) IM_MUST_CHECK; /* only errors that end the run; a failed save is told and remembered */
void im_train_save_reap(im_train_run *r, bool wait);
void im_train_save_abandon(im_train_run *r);
im_status im_train_save_end(im_train_run *r) IM_MUST_CHECK; /* waits; the error of the last save, if it failed */

/* ---- nonfinite.c */
im_status im_train_nonfinite_step(im_train_run *r, const im_op_now *now, const im_source *src) IM_MUST_CHECK;
/* The step has changed weights on some rank and must not have: it made them not finite, or other ranks saw that it was not. */
im_status im_train_bad_weights(im_train_run *r) IM_MUST_CHECK;

/* ---- memory.c */
im_status im_train_measure_memory(im_train_run *r) IM_MUST_CHECK; /* all ranks: into the summary and metrics.jsonl */

/* ---- loop.c */
im_status im_train_loop(im_train_run *r) IM_MUST_CHECK;
double im_train_elapsed(const im_train_run *r);

#endif
