/* fabric env: which variables steer the communication libraries, where they are set, who wins, what the libraries make of their values, and whether
 * that is right on a machine.
 *
 *     im_env_read_*  ->  im_env_set  ->  im_env_lint (with im_env_facts of a machine)  ->  findings
 *     im_env_facts   ->  im_env_suggest  ->  the variables that this fabric needs
 *
 * Pure functions of texts and facts, but for im_env_read_file. All memory is the arena's. */
#ifndef IM_FABRIC_ENV_H
#define IM_FABRIC_ENV_H

#include "base/base.h"
#include "fabric/env_table.h"

/* ---- what a machine has -------------------------------------------------------------------- */

typedef enum im_env_link { IM_ENV_LINK_UNKNOWN, IM_ENV_LINK_IB, IM_ENV_LINK_ETH } im_env_link;

typedef struct im_env_gid {
    int index;
    uint8_t raw[16]; /* network order */
    int version;     /* RoCE 1 or 2; 0: not known */
    const char *netdev;
} im_env_gid;

typedef struct im_env_port {
    const char *device;
    int port;
    im_env_link link;
    int active;      /* 1, 0, -1: not known */
    double gbps;     /* 0: not known */
    int table;       /* entries of the GID table, empty ones counted; 0: not known */
    im_env_gid *gid; /* those that are not empty, ascending */
    size_t ngid;
    int npkey; /* entries of the table of partition keys; 0: not known */
    const char *netdev;
    int traffic_class; /* the port's override of what programs ask for (MLNX_OFED); -1: none or not known */
    int trust;         /* 0 pcp, 1 dscp, -1 not known */
    int pfc;           /* bit p: priority p has PFC; -1: not known */
    int numa;          /* -1: not known */
} im_env_port;

typedef struct im_env_net {
    const char *name;
    int up;        /* running; -1: not known */
    int addressed; /* has an address; -1: not known */
    bool loopback, hardware;
    double gbps; /* 0: not known */
    int order;   /* ifindex: the order in which NCCL sees it */
    bool route;  /* the default route goes through it */
} im_env_net;

/* As NCCL counts distance: LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS */
typedef enum im_env_level {
    IM_ENV_LOC,
    IM_ENV_NVL,
    IM_ENV_NVB,
    IM_ENV_C2C,
    IM_ENV_PIX,
    IM_ENV_PXB,
    IM_ENV_P2C,
    IM_ENV_PXN,
    IM_ENV_PHB,
    IM_ENV_SYS,
    IM_ENV_LEVELS
} im_env_level;
extern const char *const im_env_level_names[IM_ENV_LEVELS];

typedef struct im_env_gpu {
    const char *address; /* PCI */
    int nearest;         /* im_env_level to the nearest HCA with an active port; -1: not known */
    const char *device;  /* that HCA */
} im_env_gpu;

typedef struct im_env_facts {
    const char *root; /* what was looked at, for messages: "/" or the bundle; NULL: nothing was */
    im_env_port *port;
    size_t nport;
    im_env_net *net;
    size_t nnet;
    im_env_gpu *gpu;
    size_t ngpu;
    bool gpus_known;
    int verbs;              /* programs can open the devices (/dev/infiniband): 1, 0, -1 not known */
    bool is_virtual;        /* a virtual machine, whose PCI tree need not be the real one */
    int c2c;                /* GPU and CPU are linked (Grace): 1, 0, -1 not known */
    int nccl;               /* version, 0: not known */
    const char *nccl_where; /* the file that told it */
} im_env_facts;

/* ---- where variables are set ----------------------------------------------------------------- */

typedef enum im_env_how {
    IM_ENV_ENVIRON,   /* a process has it */
    IM_ENV_CONF,      /* a line of nccl.conf or of an env file */
    IM_ENV_EXPORT,    /* export, setenv, ENV of a Dockerfile */
    IM_ENV_ASSIGN,    /* NAME=VALUE alone in a script: not exported */
    IM_ENV_INLINE,    /* NAME=VALUE command */
    IM_ENV_MPIRUN,    /* -x, -genv, --mca */
    IM_ENV_SRUN,      /* --export */
    IM_ENV_CONTAINER, /* docker -e, a Kubernetes or compose file */
    IM_ENV_PASS       /* named without a value: handed on */
} im_env_how;

/* Who wins: lower layers beat higher ones. */
typedef enum im_env_layer { IM_ENV_LAYER_PROCESS, IM_ENV_LAYER_USER, IM_ENV_LAYER_SYSTEM, IM_ENV_LAYER_PARAMS } im_env_layer;

typedef enum im_env_verdict { IM_ENV_OK, IM_ENV_NOTE, IM_ENV_UNKNOWN, IM_ENV_WARN, IM_ENV_FAIL } im_env_verdict;
extern const char *const im_env_verdict_names[]; /* "ok", "note", ... */

typedef struct im_env_item {
    const char *name, *value; /* value NULL: set, to what is not known here */
    const char *file;
    int line;
    im_env_how how;
    im_env_layer layer;
    bool exported;
    size_t order;                 /* in which settings were read */
    const struct im_env_item *by; /* what wins over it; NULL: it is used */
    im_env_verdict verdict;       /* the worst of its findings */
    const char *reads;            /* what the library makes of the value, where that is another text */
} im_env_item;

typedef struct im_env_finding {
    im_env_verdict verdict;
    const char *id;   /* "int-trailing", "gid-index-pinned": stable, for scripts */
    const char *name; /* variable, or NULL */
    const char *file;
    int line;
    const char *text;     /* what is so, and why it matters */
    const char *fix;      /* what to write; NULL: nothing */
    const char *evidence; /* path and value that it rests on; NULL: none */
    const im_env_item *item;
} im_env_finding;

typedef struct im_env_set {
    im_context *ctx;
    im_arena *arena;
    im_env_item **item;
    size_t n, cap;
    im_env_finding *finding;
    size_t nfinding, finding_cap;
    bool failed; /* no memory */
} im_env_set;

typedef enum im_env_format {
    IM_ENV_FORMAT_AUTO,
    IM_ENV_FORMAT_CONF,
    IM_ENV_FORMAT_SHELL,
    IM_ENV_FORMAT_YAML,
    IM_ENV_FORMAT_ENVIRON,
    IM_ENV_FORMAT_PARAMS
} im_env_format;

enum { IM_ENV_MAX_FILE = 4 << 20, IM_ENV_MAX_ITEMS = 20000 };

void im_env_set_init(im_context *ctx, im_arena *a, im_env_set *out);
/* Adds what the text sets; only variables of im_env_is_ours, names that are near to one, and NCCL_CONF_FILE. `name`: for messages. Any bytes are allowed. */
void im_env_read_text(im_env_set *s, const char *name, im_env_format format, im_env_layer layer, const char *text, size_t len);
/* The same of a file; the format is told from name and content. */
im_status im_env_read_file(im_env_set *s, const char *path, const char *shown, im_env_format format, im_env_layer layer) IM_MUST_CHECK;
/* NAME=VALUE strings, NULL at the end. */
void im_env_read_environ(im_env_set *s, const char *name, char *const *environ);
/* What the format of this text is: never AUTO. */
im_env_format im_env_guess(const char *name, const char *text, size_t len);
/* The readers of one format, each in its file. */
void im_env_read_shell(im_env_set *s, const char *name, im_env_layer layer, const char *text, size_t len, int line);
void im_env_read_yaml(im_env_set *s, const char *name, im_env_layer layer, const char *text, size_t len);
/* line: number of the text's first line. */
/* value NULL: not known. NULL when the name is not ours or memory is out. */
im_env_item *im_env_add(im_env_set *s, const char *name, size_t name_len, const char *value, const char *file, int line, im_env_how how,
                        im_env_layer layer);
im_env_finding *im_env_find_fault(im_env_set *s, im_env_verdict verdict, const char *id, im_env_item *item, const char *fmt, ...) IM_PRINTF(5, 6);
/* Says which of several settings of a name is used. */
void im_env_resolve(im_env_set *s);
/* The setting of this name that is used; NULL: none. */
im_env_item *im_env_used(const im_env_set *s, const char *name);

/* ---- what libraries make of values ------------------------------------------------------------- */

typedef struct im_env_number {
    int64_t value;        /* what NCCL uses */
    bool digits;          /* there was a number at all */
    bool overflow;        /* NCCL takes its default */
    bool octal, hex;      /* how it was read */
    const char *trailing; /* what stands behind the number and is ignored; "" for nothing */
} im_env_number;
/* NCCL's reading of an integer: strtoll with base 0. */
im_env_number im_env_nccl_int(const char *text);

enum { IM_ENV_LIST_MOST = 64, IM_ENV_NAME_MOST = 128 };
typedef struct im_env_list {
    bool exclude, exact; /* ^ first, then = */
    bool turned;         /* "=^": the ^ belongs to the first name */
    struct {
        char name[IM_ENV_NAME_MOST];
        int port; /* -1: any */
    } entry[IM_ENV_LIST_MOST];
    int n;
    bool cut; /* more entries, or longer names, than are read */
} im_env_list;
/* NCCL's reading of NCCL_IB_HCA and NCCL_SOCKET_IFNAME. */
void im_env_nccl_list(const char *text, im_env_list *out);
/* Does the list choose this device and port (-1: without ports)? */
bool im_env_nccl_list_takes(const im_env_list *l, const char *name, int port);
/* Does this entry by itself match? */
bool im_env_nccl_entry_matches(const im_env_list *l, int entry, const char *name, int port);
/* NCCL's reading of a path level: -1 when it is ignored. *legacy: a number of the old table. */
int im_env_nccl_level(const char *text, bool *legacy);
/* The GID that NCCL from 2.21 on chooses for a RoCE port by itself: its index. want_v6, version: NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM. */
int im_env_nccl_gid(const im_env_port *p, bool want_v6, int version);
const im_env_gid *im_env_gid_at(const im_env_port *p, int index); /* NULL: empty */
bool im_env_gid_is_v4(const im_env_gid *g);
bool im_env_gid_is_link_local(const im_env_gid *g);
/* "10.0.0.1" or "fe80::1" */
void im_env_gid_text(const im_env_gid *g, char buf[64]);
/* The interfaces that NCCL takes for NCCL_SOCKET_IFNAME=list (NULL: by itself), first in first; returns how many fit in out. */
size_t im_env_nccl_interfaces(const im_env_facts *f, const char *list, const im_env_net **out, size_t most);

/* ---- judging ------------------------------------------------------------------------------------ */

typedef struct im_env_lint_options {
    int nccl;          /* version; 0: as the facts say, else the newest known */
    bool here;         /* the settings are those of a process or of files of that very machine */
    double watchdog_s; /* after which the framework ends a collective; 0: 600 (PyTorch) */
} im_env_lint_options;

/* Adds findings to the set. */
void im_env_lint(im_env_set *s, const im_env_facts *f, const im_env_lint_options *o);

/* ---- suggesting --------------------------------------------------------------------------------- */

typedef struct im_env_advice {
    const char *name, *value; /* name NULL: a remark alone */
    const char *reason;
    bool consider; /* right under a condition that the reason names: not part of the set */
} im_env_advice;

typedef struct im_env_advices {
    im_env_advice *item;
    size_t n, cap;
    const char **command; /* QoS and the like, to be typed by an administrator; printed, never run */
    size_t ncommand, command_cap;
    im_arena *arena;
    bool failed;
} im_env_advices;

/* A network as a cluster file tells it, where there is no machine to look at. */
typedef struct im_env_fabric {
    im_env_link link; /* which such a file does not tell; UNKNOWN: Ethernet without RDMA, TCP */
    double gbps;      /* of a NIC */
    int nics;         /* of a node; 0: no network */
    bool rails, adaptive, sharp;
} im_env_fabric;

/* The variables in which this fabric needs something else than the defaults of NCCL's version (0: that of the facts, else the newest known).
 * Either f or net is NULL. */
im_status im_env_suggest(im_context *ctx, im_arena *a, const im_env_facts *f, const im_env_fabric *net, int nccl, im_env_advices *out) IM_MUST_CHECK;
typedef enum im_env_form {
    IM_ENV_FORM_SHELL,
    IM_ENV_FORM_CONF,
    IM_ENV_FORM_MPIRUN,
    IM_ENV_FORM_SLURM,
    IM_ENV_FORM_KUBERNETES,
    IM_ENV_FORMS
} im_env_form;
extern const char *const im_env_form_names[IM_ENV_FORMS];
/* The set in that form, what is to be considered as comments. */
void im_env_write(const im_env_advices *l, im_env_form form, im_str *out);

/* ---- explaining --------------------------------------------------------------------------------- */

/* Type, values, versions and defaults, what it does. IM_ERR_NOT_FOUND with the nearest name. */
im_status im_env_explain(im_context *ctx, im_arena *a, const char *name, im_str *out) IM_MUST_CHECK;
im_status im_env_explain_json(im_context *ctx, im_arena *a, const char *name, im_str *out) IM_MUST_CHECK;
/* "integer, 0 to 31", "on or off (0, 1)" */
void im_env_kind_text(const im_env_var *v, im_str *out);

#endif
