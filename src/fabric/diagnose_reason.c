/* From lines to causes: what several lines say together, what led to what, and in which order it is told. */
#include "fabric/diagnose_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static im_finding *finding(im_diagnose *d, const char *id)
{
    return &d->found[im_rule_find(id)];
}

static void drop(im_finding *f)
{
    f->count = 0;
    f->nkept = 0;
}

/* ---- over several lines --------------------------------------------------------------------------------- */

static bool any_count(im_diagnose *d, const char *const *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (finding(d, ids[i])->count)
            return true;
    return false;
}

/* Loopback and bridges are right as long as nobody else must be reached. */
static void judge_interface(im_diagnose *d)
{
    static const char *const failures[] = {"connect-refused", "connect-no-way",  "connect-timeout",
                                           "clients-missing", "mpi-unreachable", "mpi-wrong-peer"};
    im_finding *f = finding(d, "wrong-interface");
    bool failed = any_count(d, failures, IM_COUNT_OF(failures));
    if (!f->count)
        return;
    if (d->nhost < 2 && d->nnodes < 2 && !failed)
        drop(f);
    else if (!failed)
        f->surety = IM_SURETY_POSSIBLE;
}

static void judge_worlds(im_diagnose *d)
{
    int most = 0;
    for (size_t i = 0; i < d->nfile; i++)
        most = d->file[i]->most_worlds > most ? d->file[i]->most_worlds : most;
    if (most < 2)
        drop(finding(d, "worlds"));
}

static void judge_ifname(im_diagnose *d)
{
    im_finding *f = finding(d, "ifname-empty"), *m = finding(d, "mixed-builds");
    bool set = false;
    if (!f->count)
        return;
    for (size_t i = 0; i < d->nfile; i++)
        set = set || im_diag_env(d->file[i], "NCCL_SOCKET_IFNAME");
    for (size_t i = 0; i < f->nkept; i++)
        im_diag_add(d, im_rule_find("mixed-builds"), &f->kept[i]);
    m->surety = set ? IM_SURETY_POSSIBLE : IM_SURETY_LIKELY;
    f->surety = set ? IM_SURETY_LIKELY : IM_SURETY_POSSIBLE;
    if (!set)
        snprintf(f->why, sizeof f->why,
                 "The address to connect to is empty, as if its sender had no interface. No line here says that NCCL_SOCKET_IFNAME is set, so that "
                 "is the less likely cause.");
}

static void judge_gdr(im_diagnose *d)
{
    im_finding *off = finding(d, "gdr-off");
    int64_t on = 0;
    for (size_t i = 0; i < d->nfile; i++)
        on += d->file[i]->gdr;
    if (!off->count || !on)
        return;
    size_t one = im_rule_find("gdr-one-sided");
    im_surety surety = d->found[one].surety;
    d->found[one] = *off;
    d->found[one].surety = surety;
    drop(off);
}

/* Only where it matters: a job on one host needs no network. */
static void judge_tcp(im_diagnose *d)
{
    for (size_t i = 0; i < d->nfile; i++) {
        const im_log_facts *f = d->file[i];
        im_str why = {0};
        im_rdma r = im_diag_rdma(f);
        if (r != IM_RDMA_NO && r != IM_RDMA_PARTLY)
            continue;
        im_diag_rdma_why(d, f, &why);
        bool set =
            strstr(im_str_text(&why), "switches it off") || strstr(im_str_text(&why), "asks for TCP") || strstr(im_str_text(&why), "leaves no RDMA");
        size_t rule = im_rule_find(set ? "tcp-set" : "tcp-fallback");
        im_evidence nothing = {.file = i, .rank = -1, .time = NAN};
        if (f->device_at.line)
            im_diag_add(d, rule, &f->device_at);
        if (f->socket_at.line)
            im_diag_add(d, rule, &f->socket_at);
        if (!f->device_at.line && !f->socket_at.line)
            im_diag_add(d, rule, &nothing);
        if (!d->found[rule].why[0])
            snprintf(d->found[rule].why, sizeof d->found[rule].why, "%s: %s. %s", f->name, im_str_text(&why), im_rules[rule].why);
        im_str_free(&why);
    }
    if (finding(d, "tcp-fallback")->count || finding(d, "tcp-set")->count)
        drop(finding(d, "no-rdma-device"));
}

static void judge_init(im_diagnose *d)
{
    im_finding *f = finding(d, "init-hang");
    int open = 0, all = 0;
    if (!f->count)
        return;
    for (size_t i = 0; i < IM_DIAG_MAP; i++) {
        all += d->rank_of[i].begun > 0;
        open += d->rank_of[i].begun > d->rank_of[i].done;
    }
    if (!open)
        drop(f);
    else
        snprintf(f->why, sizeof f->why, "%d of %d processes began a communicator that they did not complete%s. %s", open, all,
                 d->nranks > all ? ", and fewer processes than ranks are in these logs" : "", im_rules[im_rule_find("init-hang")].why);
}

/* A time-out at the first use is a path that never worked. */
static void judge_retry(im_diagnose *d)
{
    im_finding *f = finding(d, "wc-12");
    if (!f->count || isnan(d->first_init) || isnan(f->kept[0].time))
        return;
    double after = f->kept[0].time - d->first_init;
    if (after >= 0 && after < 90)
        snprintf(f->why, sizeof f->why,
                 "It came %.0f s after NCCL began: at the first use, so most likely the path never worked. GID index, VLAN, traffic class, MTU, or a "
                 "filter on UDP "
                 "4791. Run perftest with the same GID and traffic class between these two.",
                 after);
    else if (after >= 90 && after < 86400.0 * 365)
        snprintf(f->why, sizeof f->why,
                 "It came %.0f min after NCCL began: the path had worked. A link flap, a dead peer or congestion; which host lost its link or its "
                 "process first?",
                 after / 60);
}

/* The peer that most lines name, when it is most of them. */
static const im_tally *most_named(const im_tallies *t)
{
    const im_tally *best = NULL;
    int64_t all = 0;
    for (size_t i = 0; i < t->n; i++) {
        all += t->item[i].count;
        best = !best || t->item[i].count > best->count ? &t->item[i] : best;
    }
    return best && !t->more && 2 * best->count > all ? best : NULL;
}

static void append(im_finding *f, size_t rule, const char *text)
{
    char before[sizeof f->why];
    snprintf(before, sizeof before, "%s", f->why[0] ? f->why : im_rules[rule].why);
    snprintf(f->why, sizeof f->why, "%.700s %s", before, text);
}

/* Many hosts that complain of one are right; one host that complains of many has the fault itself. */
static void judge_peers(im_diagnose *d)
{
    size_t late = im_rule_find("wc-12"), gone = im_rule_find("peer-gone");
    const im_tally *peer = most_named(&d->late), *left = most_named(&d->gone);
    char text[256];
    if (d->found[late].count > 1 && d->late.n > 2 && d->found[late].nhost == 1) {
        snprintf(text, sizeof text, "All these lines come from %.64s, and name %zu peers: its own card or link is the first suspect.",
                 d->found[late].host[0], d->late.n);
        append(&d->found[late], late, text);
    } else if (d->found[late].count && peer) {
        snprintf(text, sizeof text, "The peer that does not answer is %.95s, by %lld lines: look at that host first.", peer->name,
                 (long long)peer->count);
        append(&d->found[late], late, text);
    }
    if (d->found[gone].count && left) {
        snprintf(text, sizeof text, "Named most is %.95s (%lld lines): what ended it there?", left->name, (long long)left->count);
        append(&d->found[gone], gone, text);
    }
}

/* ---- what led to what ------------------------------------------------------------------------------------ */

enum { SLACK = 5, LATE = 120 }; /* seconds: clocks of hosts differ; a symptom may be told before its cause */

/* Whether the first line of a cause may stand where it stands. */
static bool fits_in_time(const im_finding *cause, const im_finding *effect, bool symptom)
{
    const im_evidence *a = &cause->kept[0], *b = &effect->kept[0];
    if (!isnan(a->time) && !isnan(b->time))
        return a->time <= b->time + (symptom ? LATE : SLACK);
    if (symptom || a->file != b->file)
        return true;
    return a->line <= b->line || (*a->host && *b->host && strcmp(a->host, b->host) != 0);
}

static bool is_before(const im_finding *x, const im_finding *y)
{
    const im_evidence *a = &x->kept[0], *b = &y->kept[0];
    if (!isnan(a->time) && !isnan(b->time) && a->time != b->time)
        return a->time < b->time;
    return a->file == b->file ? a->line < b->line : x < y; /* else: the order of the rules */
}

static bool leads_back(const im_diagnose *d, size_t from, size_t to)
{
    for (size_t steps = 0; from < d->nrule && steps < d->nrule; steps++) {
        if (from == to)
            return true;
        from = d->found[from].from;
    }
    return false;
}

static void find_cause(im_diagnose *d, size_t effect)
{
    im_finding *e = &d->found[effect];
    bool symptom = im_rules[effect].kind == IM_CAUSE_SYMPTOM;
    for (size_t c = 0; c < d->nrule && e->from == d->nrule; c++) {
        im_finding *f = &d->found[c];
        if (!f->count || !im_rule_leads(&im_rules[c], &im_rules[effect]) || !fits_in_time(f, e, symptom) || leads_back(d, c, effect))
            continue;
        if (im_rule_leads(&im_rules[effect], &im_rules[c]) && !is_before(f, e))
            continue;
        e->from = c;
    }
}

/* ---- the order ---------------------------------------------------------------------------------------------- */

static int class_of(const im_diagnose *d, size_t rule)
{
    static const int order[] = {[IM_CAUSE_FAULT] = 0, [IM_CAUSE_SYMPTOM] = 1, [IM_CAUSE_SLOW] = 2, [IM_CAUSE_NOTE] = 4};
    return d->found[rule].from < d->nrule ? 3 : order[im_rules[rule].kind];
}

static bool goes_before(const im_diagnose *d, size_t a, size_t b)
{
    const im_finding *x = &d->found[a], *y = &d->found[b];
    if (class_of(d, a) != class_of(d, b))
        return class_of(d, a) < class_of(d, b);
    if (x->surety != y->surety)
        return x->surety > y->surety;
    if (!isnan(x->kept[0].time) && !isnan(y->kept[0].time) && fabs(x->kept[0].time - y->kept[0].time) > 1)
        return x->kept[0].time < y->kept[0].time;
    return a < b;
}

static void sort_findings(im_diagnose *d)
{
    for (size_t r = 0; r < d->nrule && d->norder < IM_COUNT_OF(d->order); r++) {
        if (!d->found[r].count)
            continue;
        size_t i = d->norder++;
        for (; i > 0 && goes_before(d, r, d->order[i - 1]); i--)
            d->order[i] = d->order[i - 1];
        d->order[i] = r;
    }
}

im_status im_diagnose_finish(im_diagnose *d)
{
    if (d->finished)
        return IM_OK;
    d->finished = true;
    for (size_t r = 0; r < d->nrule; r++) {
        d->found[r].surety = im_rules[r].surety;
        d->found[r].from = d->nrule;
    }
    judge_interface(d);
    judge_worlds(d);
    judge_ifname(d);
    judge_gdr(d);
    judge_tcp(d);
    judge_init(d);
    judge_retry(d);
    judge_peers(d);
    im_diag_desync(d);
    for (size_t r = 0; r < d->nrule; r++)
        if (d->found[r].count)
            find_cause(d, r);
    sort_findings(d);
    return IM_OK;
}

size_t im_diagnose_findings(const im_diagnose *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->norder; i++)
        n += class_of(d, d->order[i]) < 3;
    return n;
}

const char *im_diagnose_first(const im_diagnose *d)
{
    return im_diagnose_findings(d) ? im_rules[d->order[0]].id : NULL;
}
