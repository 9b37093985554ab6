/* The rules of the diagnosis: one row each, in diagnose_rules.c. Internal to src/fabric (and its tests). */
#ifndef IM_FABRIC_DIAGNOSE_RULE_H
#define IM_FABRIC_DIAGNOSE_RULE_H

#include "base/base.h"

typedef enum im_cause_kind {
    IM_CAUSE_FAULT,   /* stops the job, or will */
    IM_CAUSE_SLOW,    /* it works, and is slower than it could be */
    IM_CAUSE_SYMPTOM, /* what other causes lead to: a cause only for want of a better one */
    IM_CAUSE_NOTE     /* worth a line; no fault */
} im_cause_kind;

typedef enum im_surety { IM_SURETY_POSSIBLE, IM_SURETY_LIKELY, IM_SURETY_SURE } im_surety;

enum { IM_RULE_PATTERNS = 20, IM_RULE_STEPS = 5 };

/* The order of the rows is the order of causes: of two that nothing else tells apart, the upper one comes first. */
typedef struct im_rule {
    const char *id;
    im_cause_kind kind;
    im_surety surety;
    const char *cause;               /* one line */
    const char *why;                 /* what the lines mean, and how it is known */
    const char *next[IM_RULE_STEPS]; /* what to type, or to do */
    const char *from;                /* ids of rules that lead to this one, separated by blanks; x*: all that begin so; "any": every fault */
    const char *group;               /* of the rules of a group only the uppermost fires on a line */
    const char *unless;              /* pieces separated by |: a line that holds one is not meant */
    const char *source;
    const char *pattern[IM_RULE_PATTERNS]; /* see diagnose_scan.h; none: found by reasoning over several lines, diagnose_reason.c */
} im_rule;

extern const im_rule im_rules[];
size_t im_rule_count(void);
/* The number of the rule of that id; the count when there is none. */
size_t im_rule_find(const char *id);
/* Whether a finding by `cause` may have led to one by `effect`. */
bool im_rule_leads(const im_rule *cause, const im_rule *effect);

#endif
