/* Parts of env_lint. Only src/fabric's env_*.c include this. */
#ifndef IM_FABRIC_ENV_RULES_H
#define IM_FABRIC_ENV_RULES_H

#include "fabric/env.h"

typedef struct im_env_case {
    im_env_set *set;
    const im_env_facts *f;
    im_env_lint_options o;
    int nccl;                 /* judged as this version */
    bool nccl_known;          /* somebody said so */
    bool machine;             /* there are facts of a machine */
    bool rdma_judged;         /* and it has RDMA ports, or the settings are its own: what it lacks is a fault */
    int c2c;                  /* of that machine: 1, 0, -1 not known */
    const im_env_port **port; /* active ones, or whose state is not known */
    size_t nport;
    size_t nib, neth;           /* of them */
    const im_env_port **chosen; /* those that NCCL_IB_HCA leaves */
    size_t nchosen;
    const im_env_port **use; /* the same, or all when none is left: what other variables are judged by */
    size_t nuse;
} im_env_case;

#define im_env_say(c, verdict, id, item, ...) im_env_find_fault((c)->set, verdict, id, item, __VA_ARGS__)
/* Sets what to write. */
void im_env_fix(im_env_case *c, im_env_finding *f, const char *fmt, ...) IM_PRINTF(3, 4);
im_env_finding *im_env_evidence(im_env_case *c, im_env_finding *f, const char *fmt, ...) IM_PRINTF(3, 4);
/* NCCL's version is at least that: 1, 0; -1 when it is not known. */
int im_env_from(const im_env_case *c, int version);
/* What is in force: a setting, else the default of the version; false: neither is a number. */
bool im_env_int(const im_env_case *c, const char *name, int64_t *out);
/* The text in force that a setting gives; NULL: unset or not known. */
const char *im_env_text(const im_env_case *c, const char *name);
bool im_env_is_set(const im_env_case *c, const char *name);
/* "mlx5_0:1, mlx5_1:1 and 6 more" */
void im_env_name_ports(const im_env_port *const *port, size_t n, im_str *out);
/* Blanks in a list, "=^", names that are cut: faults of both kinds of list. */
void im_env_list_faults(im_env_case *c, im_env_item *x, const im_env_list *l);
/* Splits at commas (and at | where flags says so) without trimming; in the arena. */
size_t im_env_split(im_arena *a, const char *text, char stop, const char **out, size_t most);

/* Rules of single variables: value is what NCCL reads, for numbers. */
typedef struct im_env_rule {
    const char *name;
    void (*run)(im_env_case *c, im_env_item *x, int64_t value);
} im_env_rule;
extern const im_env_rule im_env_rules_ib[], im_env_rules_net[], im_env_rules_mpi[];
extern const size_t im_env_rules_ib_count, im_env_rules_net_count, im_env_rules_mpi_count;
/* Rules over several variables, once. */
void im_env_rules_net_whole(im_env_case *c);
void im_env_rules_mpi_whole(im_env_case *c);

#endif
