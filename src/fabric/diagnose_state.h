/* What the diagnosis keeps while it reads. Internal to src/fabric: all of it is of fixed size, so that no log can make it grow. */
#ifndef IM_FABRIC_DIAGNOSE_STATE_H
#define IM_FABRIC_DIAGNOSE_STATE_H

#include "fabric/diagnose.h"
#include "fabric/diagnose_rule.h"
#include "fabric/diagnose_scan.h"
#include "fabric/diagnose_where.h"

enum {
    IM_DIAG_KEPT = 8,
    IM_DIAG_HOSTS = 16,
    IM_DIAG_RANKS = 64,
    IM_DIAG_FILES = 65536,
    IM_DIAG_TEXT = 320,
    IM_DIAG_MAP = 1 << 14,    /* processes whose rank is known */
    IM_DIAG_WAITS = 1 << 14,  /* operations that a watchdog or a recorder named */
    IM_DIAG_HOSTS_ALL = 1024, /* hosts seen */
    IM_DIAG_TALLY = 32
};

/* A line that a finding rests on. */
typedef struct im_evidence {
    int64_t line;
    size_t file;
    int rank; /* -1 */
    double time;
    char host[64];
    char text[IM_DIAG_TEXT];
} im_evidence;

typedef struct im_finding {
    int64_t count;
    im_evidence kept[IM_DIAG_KEPT]; /* kept[0]: the first in time, or in the order of reading */
    size_t nkept;
    char host[IM_DIAG_HOSTS][64];
    size_t nhost;
    int rank[IM_DIAG_RANKS];
    size_t nrank;
    bool more_hosts, more_ranks;
    /* by reasoning */
    im_surety surety;
    char why[1024]; /* "": the rule's */
    size_t from;    /* the rule that led to it; the count of rules: none */
    bool told;      /* left out of what is told: false */
} im_finding;

typedef struct im_tally {
    char name[96];
    int64_t count;
} im_tally;

typedef struct im_tallies {
    im_tally item[IM_DIAG_TALLY];
    size_t n;
    bool more;
} im_tallies;

/* What one log says of transports. */
typedef struct im_log_facts {
    char *name;
    char remark[256];
    bool unread;
    int64_t lines, bytes;
    im_tallies channel; /* "NET/IB/0/GDRDMA" */
    im_tallies network; /* "Using network X" */
    im_tallies nic;     /* "mlx5_0:1/IB" */
    im_tallies socket;  /* interfaces of NET/Socket and bootstrap */
    im_tallies algo;    /* "AllReduce RING SIMPLE" */
    im_tallies env;     /* "NCCL_IB_DISABLE=1" */
    im_tallies ucx;     /* "rc_mlx5/mlx5_0:1" */
    im_tallies mpi;     /* "ucx", "tcp" ... */
    im_tallies version;
    int64_t gdr, rdma, tcp, plugin, p2p, shm, collnet; /* channels; rdma: over verbs without GPUDirect */
    int64_t received_plain;                            /* of rdma, those that receive (or do not say) */
    bool no_device, gdr_disabled, gdr_enabled, gdr_flag_on, gdr_flag_off;
    int nranks, nnodes;                       /* 0: not said */
    int worlds, most_worlds, finished_worlds; /* tables of nccl-tests that are open at once */
    char perftest[96];                        /* "perftest over IB" */
    im_evidence device_at, socket_at;         /* the first line that says "No device found", and that speaks of sockets; line 0: none */
} im_log_facts;

typedef struct im_rank_of {
    uint64_t key; /* 0: free */
    int rank;
    int32_t begun, done; /* communicators */
} im_rank_of;

typedef struct im_wait {
    bool used, recorder;
    int rank;
    int64_t seq;
    char group[64], op[40], size[64];
    int64_t enqueued, completed; /* -1: not said */
    im_evidence at;
} im_wait;

typedef struct im_host_seen {
    char name[64];
} im_host_seen;

/* "N ranks have launched up to operation X", of NCCL's RAS */
typedef struct im_launched {
    int64_t ranks, operation;
    char who[160];
    im_evidence at;
} im_launched;

struct im_diagnose {
    im_context *ctx;
    im_scan *scan;
    const char **pattern;
    uint16_t *owner; /* of a pattern: rule, or count of rules + fact */
    size_t npattern, nrule;
    bool *plain;       /* of a pattern: im_scan_is_plain */
    int64_t *stamp;    /* of a pattern: the line for which it was last tried */
    int64_t serial;    /* lines looked at so far */
    im_finding *found; /* by rule */
    im_log_facts **file;
    size_t nfile, file_cap;
    im_rank_of *rank_of;
    size_t nrank_of;
    im_wait *wait; /* NULL: none so far */
    size_t nwait;
    im_host_seen *host;
    size_t nhost;
    uint8_t *ranks; /* bits: ranks seen */
    int most_rank;
    im_launched launched[16];
    size_t nlaunched;
    int64_t launched_serial;
    int64_t total_lines, total_bytes;
    im_tallies late, gone; /* peers that did not answer (status 12, 13), that closed their connections */
    double first_init;     /* time when NCCL began, NAN */
    int nranks, nnodes;
    size_t order[512]; /* rules that fired, as they are told */
    size_t norder;
    bool finished;
    /* the block */
    char *buf;
    size_t n, cap, seen; /* seen: of the bytes in buf, those that the block before has shown already */
    int64_t line;        /* number of the first line in buf */
};

enum { IM_DIAG_RANK_BITS = 1 << 20 };

/* A line as facts and findings are given it. */
typedef struct im_log_line {
    const char *s;
    size_t n, at; /* at: where the first anchor begins */
    int64_t number;
    size_t file;
    bool known;         /* where was read */
    im_log_where where; /* by im_diag_where */
} im_log_line;

const im_log_where *im_diag_where(im_diagnose *d, im_log_line *l);
void im_diag_evidence(im_diagnose *d, im_log_line *l, im_evidence *out);
void im_diag_record(im_diagnose *d, size_t rule, im_log_line *l);
void im_diag_add(im_diagnose *d, size_t rule, const im_evidence *e);
im_log_facts *im_diag_file(im_diagnose *d); /* the one that is read */
im_host_seen *im_diag_host(im_diagnose *d, const char *name);
im_rank_of *im_diag_rank_of(im_diagnose *d, const char *host, int pid, bool make);
void im_diag_tally(im_tallies *t, const char *name, size_t n, int64_t by);
/* diagnose_facts.c */
size_t im_diag_fact_count(void);
const char *im_diag_fact_pattern(size_t i);
void im_diag_fact(im_diagnose *d, size_t i, im_log_line *l);
/* diagnose_desync.c */
void im_diag_watchdog(im_diagnose *d, im_log_line *l);
void im_diag_launched(im_diagnose *d, im_log_line *l);
im_wait *im_diag_wait(im_diagnose *d, int rank, int64_t seq, const char *group);
void im_diag_desync(im_diagnose *d);
/* diagnose_answer.c: did it use RDMA? */
typedef enum im_rdma { IM_RDMA_UNKNOWN, IM_RDMA_YES, IM_RDMA_NO, IM_RDMA_PARTLY, IM_RDMA_NOT_NEEDED } im_rdma;
im_rdma im_diag_rdma(const im_log_facts *f);
const char *im_diag_rdma_name(im_rdma r);
void im_diag_rdma_text(const im_diagnose *d, im_str *out);
void im_diag_rdma_json(const im_diagnose *d, im_str *out);
/* Why it went over TCP, as far as the log says: "" when it does not. */
void im_diag_rdma_why(const im_diagnose *d, const im_log_facts *f, im_str *out);
const char *im_diag_env(const im_log_facts *f, const char *name); /* value, or NULL */

#endif
