/* fabric check: is this machine's fabric right for training, and if not, what is wrong and what to type.
 *
 *     im_root, im_machine  ->  im_check_host  ->  im_check_run (every row of the table)  ->  im_check_report  ->  text, JSON, HTML
 *
 * The table (check_table.c) has one row for each check: its id, what it asks, why that matters, and a function that reads the host and
 * adds items, each with the evidence (path and value) and the command that mends it. A row without items is ok. Nothing is run or changed
 * here. All memory is the report's arena.
 */
#ifndef IM_FABRIC_CHECK_H
#define IM_FABRIC_CHECK_H

#include "fabric/env_facts.h"
#include "fabric/status.h"

typedef enum im_verdict { IM_VERDICT_OK, IM_VERDICT_UNKNOWN, IM_VERDICT_WARN, IM_VERDICT_FAIL } im_verdict;
extern const char *const im_verdict_names[]; /* "ok", "unknown", "warn", "fail" */

/* ---- what is looked at ------------------------------------------------------------------------ */

/* A counter's value in an earlier reading. */
typedef struct im_check_before {
    const char *path;
    uint64_t value;
} im_check_before;

typedef struct im_check_host {
    const char *name;   /* the host's */
    const char *source; /* "/", a directory, a bundle's file, "ssh node07" */
    im_root *root;
    const im_machine *m;
    im_env_facts facts;
    im_env_set env; /* resolved and linted */
    const im_graph *graph;
    im_pairing pairing;
    const im_check_before *before; /* by path; NULL: there is one reading alone */
    size_t nbefore;
    double seconds; /* between the two readings */
} im_check_host;

typedef struct im_check_options {
    double expect_gbps; /* what each active port must have; 0: not asked */
    int storage_sl;     /* InfiniBand service level of storage; -1: as OpenSM's policy tells */
} im_check_options;

/* A bundle's earlier reading of the counters: "seconds 1.000" and then "PATH VALUE" lines. */
#define IM_CHECK_COUNTERS_FILE IM_BUNDLE_DIR "/counters-before.txt"
/* Variables that the writer of a bundle had, NAME=VALUE lines. */
#define IM_CHECK_ENV_FILE IM_BUNDLE_DIR "/env.txt"

/* Reads the machine under `root` and the variables that its files set. environ and conf (the user's nccl.conf) are of this machine, NULL:
 * none. source NULL: the root's directory. Everything is in the root's arena, and the root stays open. */
im_status im_check_host_read(im_context *ctx, im_root *root, const char *source, char *const *environ, const char *conf,
                             im_check_host *out) IM_MUST_CHECK;
/* The counters as they are now become the earlier reading; the host's own become those that are read now. */
im_status im_check_host_again(im_context *ctx, im_check_host *h, double seconds) IM_MUST_CHECK;
/* "seconds S\nPATH VALUE\n..." of all counters of m. */
void im_check_counters_write(const im_machine *m, double seconds, im_str *out);

/* ---- what is found -------------------------------------------------------------------------------- */

typedef struct im_check_item {
    im_verdict verdict;
    const char *where; /* "mlx5_3/1", "GPU0", a host's name; NULL: the machine */
    const char *path;  /* evidence: where it stands, and what; path may be NULL */
    const char *value;
    const char *says; /* what is wrong, or why it is not known */
    const char *mend; /* what to type, several lines perhaps; NULL: nothing */
} im_check_item;

typedef struct im_check_row im_check_row;

typedef struct im_check_result {
    const im_check_row *row;
    im_arena *arena;
    im_verdict verdict; /* the worst of the items; ok without */
    const char *note;   /* what was seen, where nothing is wrong */
    im_check_item *item;
    size_t n, cap;
    bool failed; /* no memory */
} im_check_result;

typedef enum im_check_kind {
    IM_CHECK_HOST,     /* reads one machine */
    IM_CHECK_BETWEEN,  /* compares several */
    IM_CHECK_BANDWIDTH /* judges what perftest measured */
} im_check_kind;

struct im_check_row {
    const char *id;
    const char *title; /* what is asked */
    const char *why;   /* one or two sentences */
    im_check_kind kind;
    void (*host)(const im_check_host *h, const im_check_options *o, im_check_result *r);
    void (*between)(const im_check_host *const *h, size_t n, im_check_result *r);
};

extern const im_check_row im_check_table[];
extern const size_t im_check_table_rows;
const im_check_row *im_check_find(const char *id); /* NULL: no such row */

typedef struct im_check_part {
    const char *name;   /* a host's, or "between the hosts", "bandwidth" */
    const char *source; /* NULL: not a host */
    im_check_result *result;
    size_t n;
} im_check_part;

typedef struct im_check_report {
    im_arena *arena;
    im_check_part *part;
    size_t n, cap;
    size_t count[4]; /* results by verdict */
} im_check_report;

void im_check_report_init(im_arena *a, im_check_report *out);
/* Runs every row of that kind. */
im_status im_check_run(im_context *ctx, im_check_report *report, const im_check_host *h, const im_check_options *o) IM_MUST_CHECK;
im_status im_check_run_between(im_context *ctx, im_check_report *report, const im_check_host *const *h, size_t n) IM_MUST_CHECK;
/* An empty part of that kind's rows, for results that come from elsewhere. */
im_status im_check_add_part(im_context *ctx, im_check_report *report, const char *name, im_check_kind kind, im_check_part **out) IM_MUST_CHECK;
/* Counts again, after results of a part were changed. */
void im_check_count(im_check_report *report);
im_verdict im_check_worst(const im_check_report *report);

void im_check_text(const im_check_report *report, const im_look *look, bool all, im_str *out);
void im_check_json(const im_check_report *report, im_str *out);
void im_check_html(const im_check_report *report, im_str *out);

/* ---- for the rows -------------------------------------------------------------------------------------- */

/* Adds an item; what it says is printf-made. path and value may be NULL. Without memory the result is marked. */
void im_check_say(im_check_result *r, im_verdict verdict, const char *where, const char *path, const char *value, const char *fmt, ...)
    IM_PRINTF(6, 7);
/* The command of the item that was added last. */
void im_check_mend(im_check_result *r, const char *fmt, ...) IM_PRINTF(2, 3);
void im_check_note(im_check_result *r, const char *fmt, ...) IM_PRINTF(2, 3);
/* "mlx5_3/1" */
const char *im_check_port_name(im_arena *a, const im_rdma_device *d, const im_rdma_port *p);
/* The port is ACTIVE; false too where the state is not known. */
bool im_port_is_active(const im_rdma_port *p);
/* "eth0" where the port has it, else "IF": for commands. */
const char *im_check_netdev(const im_rdma_port *p);
/* The facts of fabric env for this port; NULL: none. */
const im_env_port *im_check_facts(const im_check_host *h, const im_rdma_device *d, const im_rdma_port *p);
/* The value that NCCL or UCX gets; NULL: not set, or set to what is not known. */
const char *im_check_env(const im_check_host *h, const char *name);
/* By how much the counter rose between the readings; false: it cannot be told. */
bool im_check_rise(const im_check_host *h, const im_counter *c, uint64_t *by);

#endif
