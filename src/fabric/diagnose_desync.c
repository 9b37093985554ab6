/* Ranks out of step: by watchdog lines, NCCL's RAS and flight recorders, who waits in which operation of which group. */
#include "fabric/diagnose_state.h"

#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The operation `seq` of a rank in a group; "" is a group not known (yet). NULL: the table is full, or there is no memory for it. */
im_wait *im_diag_wait(im_diagnose *d, int rank, int64_t seq, const char *group)
{
    uint64_t key = im_hash64(&seq, sizeof seq, (uint64_t)rank);
    if (!d->wait && !(d->wait = calloc(IM_DIAG_WAITS, sizeof *d->wait)))
        return NULL;
    for (size_t i = key % IM_DIAG_WAITS, tried = 0; tried < IM_DIAG_WAITS; tried++, i = (i + 1) % IM_DIAG_WAITS) {
        im_wait *w = &d->wait[i];
        if (w->used && w->rank == rank && w->seq == seq && (!strcmp(w->group, group) || !*w->group || !*group)) {
            if (!*w->group)
                snprintf(w->group, sizeof w->group, "%s", group);
            return w;
        }
        if (w->used)
            continue;
        if (d->nwait >= IM_DIAG_WAITS / 2)
            return NULL;
        d->nwait++;
        *w = (im_wait){.used = true, .rank = rank, .seq = seq, .enqueued = -1, .completed = -1};
        snprintf(w->group, sizeof w->group, "%s", group);
        return w;
    }
    return NULL;
}

/* ---- watchdog lines ------------------------------------------------------------------------------------- */

static bool behind(const im_log_line *l, const char *what, int64_t *out)
{
    size_t i = im_scan_find(l->s, l->n, 0, what);
    if (i >= l->n)
        return false;
    i += strlen(what);
    return im_log_number(l->s, l->n, &i, out);
}

static void word_behind(const im_log_line *l, const char *what, const char *ends, char *to, size_t cap)
{
    size_t i = im_scan_find(l->s, l->n, 0, what), k, n;
    *to = 0;
    if (i >= l->n)
        return;
    i += strlen(what);
    for (k = i; k < l->n && !strchr(ends, l->s[k]) && (unsigned char)l->s[k] > 31; k++) {}
    n = k - i < cap ? k - i : cap - 1;
    memcpy(to, l->s + i, n);
    to[n] = 0;
}

/* "[PG ID 11 PG GUID 119(tp) Rank 1]", "[PG 1 Rank 0]" -> "119(tp)", "1" */
static void read_group(const im_log_line *l, char *to, size_t cap)
{
    word_behind(l, "PG GUID ", " ]", to, cap);
    if (!*to)
        word_behind(l, "[PG ", " ]", to, cap);
    if (!strcmp(to, "ID"))
        word_behind(l, "[PG ID ", " ]", to, cap);
}

/* "WorkNCCL(SeqNum=216, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)" and "... at work: 216, last enqueued NCCL work: 220, last completed
 * NCCL work: 215." in the words of several versions. */
void im_diag_watchdog(im_diagnose *d, im_log_line *l)
{
    const im_log_where *w = im_diag_where(d, l);
    char group[64], in[24], out[24];
    int64_t seq, v;
    bool work = im_scan_find(l->s, l->n, 0, "WorkNCCL(") < l->n;
    if (w->rank < 0)
        return;
    if (work && im_scan_find(l->s, l->n, 0, "milliseconds before timing out") >= l->n && im_scan_find(l->s, l->n, 0, "Watchdog") >= l->n)
        return;
    if (!(work && behind(l, "SeqNum=", &seq)) && !behind(l, "work sequence id: ", &seq) && !behind(l, " at work: ", &seq) &&
        !behind(l, " NCCL work: ", &seq))
        return;
    read_group(l, group, sizeof group);
    im_wait *x = im_diag_wait(d, w->rank, seq, group);
    if (!x)
        return;
    if (!x->at.line)
        im_diag_evidence(d, l, &x->at);
    if (work) {
        word_behind(l, "OpType=", ",)", x->op, sizeof x->op);
        word_behind(l, "NumelIn=", ",)", in, sizeof in);
        word_behind(l, "NumelOut=", ",)", out, sizeof out);
        snprintf(x->size, sizeof x->size, *in ? "%s in, %s out" : "%s%s", in, out);
    }
    if (behind(l, "last enqueued NCCL work: ", &v) || behind(l, "last enqueued work: ", &v))
        x->enqueued = v;
    if (behind(l, "last completed NCCL work: ", &v) || behind(l, "last completed work: ", &v))
        x->completed = v;
}

/* "30 ranks have launched up to operation 640", "Rank 2 has launched up to operation 641" */
void im_diag_launched(im_diagnose *d, im_log_line *l)
{
    size_t at = im_scan_find(l->s, l->n, 0, "launched up to operation "), i = 0;
    int64_t operation, ranks = 1;
    char who[160] = "";
    if (!behind(l, "launched up to operation ", &operation) || d->nlaunched == IM_COUNT_OF(d->launched))
        return;
    size_t word = im_scan_find(l->s, at, 0, " ranks ha");
    size_t one = im_scan_find(l->s, at, 0, "Rank ");
    if (word < at) {
        for (i = word; i > 0 && isdigit((unsigned char)l->s[i - 1]);)
            i--;
        if (!im_log_number(l->s, at, &i, &ranks))
            return;
        snprintf(who, sizeof who, "%lld ranks", (long long)ranks);
    } else if (one < at) {
        snprintf(who, sizeof who, "%.*s", (int)(at - one < 60 ? at - one : 60), l->s + one);
        char *cut = strstr(who, " ha");
        if (cut)
            *cut = 0;
    }
    im_launched *x = &d->launched[d->nlaunched++];
    *x = (im_launched){.ranks = ranks, .operation = operation};
    memcpy(x->who, who, sizeof x->who);
    im_diag_evidence(d, l, &x->at);
}

/* ---- flight recorders ------------------------------------------------------------------------------------- */

static int rank_of_name(const char *name)
{
    size_t n = strlen(name);
    const char *dot = strstr(name, ".json");
    n = dot ? (size_t)(dot - name) : n;
    size_t i = n;
    int64_t v;
    while (i > 0 && isdigit((unsigned char)name[i - 1]))
        i--;
    return i < n && im_log_number(name, n, &i, &v) && v < IM_DIAG_RANK_BITS ? (int)v : -1;
}

static void sizes_text(const im_json_value *v, char *to, size_t cap)
{
    size_t k = 0;
    to[0] = 0;
    for (size_t i = 0; i < im_json_length(v) && k + 24 < cap; i++) {
        const im_json_value *one = im_json_at(v, i);
        k += (size_t)snprintf(to + k, cap - k, "%s[", i ? " " : "");
        for (size_t j = 0; j < im_json_length(one) && k + 24 < cap; j++)
            k += (size_t)snprintf(to + k, cap - k, "%s%lld", j ? "," : "", (long long)im_json_int(im_json_at(one, j), 0));
        k += (size_t)snprintf(to + k, cap - k, "]");
    }
}

static const char *group_of(const im_json_value *e, char *buf, size_t n)
{
    const im_json_value *g = im_json_get(e, "process_group");
    char number[32];
    const char *name = im_json_type_of(g) == IM_JSON_ARRAY ? im_json_text(im_json_at(g, 0), number, sizeof number) : NULL;
    const char *what = im_json_type_of(g) == IM_JSON_ARRAY ? im_json_string(im_json_at(g, 1), "") : "";
    if (!name)
        name = im_json_text(im_json_get(e, "pg_id"), number, sizeof number);
    snprintf(buf, n, *what && strcmp(what, "undefined") != 0 ? "%s(%s)" : "%s%s", name ? name : "0", what);
    return buf;
}

/* An operation that was begun and not completed. */
static void add_entry(im_diagnose *d, const im_json_value *e, int rank, int64_t index)
{
    char group[64];
    const char *state = im_json_string(im_json_get(e, "state"), "");
    int64_t seq = im_json_int(im_json_get(e, "collective_seq_id"), im_json_int(im_json_get(e, "seq_id"), -1));
    if (seq < 0 || !strcmp(state, "completed") || im_json_bool(im_json_get(e, "is_p2p"), false))
        return;
    im_wait *x = im_diag_wait(d, rank, seq, group_of(e, group, sizeof group));
    if (!x)
        return;
    const char *op = im_json_string(im_json_get(e, "profiling_name"), "");
    const char *colon = strchr(op, ':');
    x->recorder = true;
    snprintf(x->op, sizeof x->op, "%.38s", colon ? colon + 1 : op);
    sizes_text(im_json_get(e, "input_sizes"), x->size, sizeof x->size);
    int64_t ns = im_json_int(im_json_get(e, "time_created_ns"), 0);
    x->at = (im_evidence){.line = 0, .file = d->nfile - 1, .rank = rank, .time = ns > 0 ? (double)ns / 1e9 : NAN};
    snprintf(x->at.text, sizeof x->at.text, "entry %lld: group %.60s, operation %lld, %.60s %.60s: %.20s", (long long)index, x->group, (long long)seq,
             x->op, x->size, *state ? state : "not completed");
    for (char *c = x->at.text; *c; c++)
        *c = (unsigned char)*c < 32 || *c == 127 ? ' ' : *c;
}

/* Each group's last enqueued and completed operation. */
static void add_status(im_diagnose *d, const im_json_value *status, int rank)
{
    for (size_t i = 0; i < im_json_length(status); i++) {
        const char *name = NULL;
        const im_json_value *s = im_json_member(status, i, &name);
        int64_t enqueued = im_json_int(im_json_get(s, "last_enqueued_collective"), -1),
                completed = im_json_int(im_json_get(s, "last_completed_collective"), -1);
        for (size_t k = 0; name && d->wait && k < IM_DIAG_WAITS; k++) {
            im_wait *w = &d->wait[k];
            size_t n = strlen(name);
            if (w->used && w->recorder && w->rank == rank && !strncmp(w->group, name, n) && (!w->group[n] || w->group[n] == '(')) {
                w->enqueued = enqueued;
                w->completed = completed;
            }
        }
    }
}

im_status im_diagnose_recorder(im_diagnose *d, const char *name, const char *text, size_t n)
{
    im_json *doc;
    IM_TRY(im_json_parse(d->ctx, name, text, n, &doc));
    const im_json_value *root = im_json_root(doc), *entries = im_json_get(root, "entries");
    int rank = (int)im_json_int(im_json_get(root, "rank"), rank_of_name(name));
    if (rank < 0 || rank >= IM_DIAG_RANK_BITS) {
        im_json_free(doc);
        return im_fail(d->ctx, IM_ERR_FORMAT,
                       "%s: a flight recorder's dump; its name must end in the rank (nccl_trace_rank_3.json), as the file does not say it", name);
    }
    d->ranks[rank / 8] |= (uint8_t)(1 << rank % 8);
    d->most_rank = rank > d->most_rank ? rank : d->most_rank;
    for (size_t i = 0; i < im_json_length(entries); i++)
        add_entry(d, im_json_at(entries, i), rank, (int64_t)i);
    add_status(d, im_json_get(root, "pg_status"), rank);
    im_json_free(doc);
    return IM_OK;
}

/* ---- the reasoning -------------------------------------------------------------------------------------------- */

typedef struct group_view {
    const char *name;
    const im_wait *first, *odd; /* odd: another operation at the same place */
    int64_t lowest, highest;    /* last enqueued; where one of them does not say it, the places waited for */
    bool by_place;
    size_t n;
} group_view;

static int64_t reached(const group_view *v, const im_wait *w)
{
    return v->by_place ? w->seq : w->enqueued;
}

/* Of each rank and group only the earliest operation that it waits in counts. */
static bool is_earliest(const im_diagnose *d, const im_wait *w)
{
    for (size_t i = 0; i < IM_DIAG_WAITS; i++) {
        const im_wait *o = &d->wait[i];
        if (o->used && o->rank == w->rank && o->seq < w->seq && !strcmp(o->group, w->group))
            return false;
    }
    return true;
}

static void view_group(const im_wait *const *list, size_t n, const char *name, group_view *v)
{
    *v = (group_view){.name = name, .lowest = INT64_MAX, .highest = -1};
    for (size_t i = 0; i < n; i++)
        v->by_place = v->by_place || (!strcmp(list[i]->group, name) && list[i]->enqueued < 0);
    for (size_t i = 0; i < n; i++) {
        const im_wait *w = list[i];
        if (strcmp(w->group, name) != 0)
            continue;
        v->n++;
        v->first = v->first ? v->first : w;
        v->lowest = reached(v, w) < v->lowest ? reached(v, w) : v->lowest;
        v->highest = reached(v, w) > v->highest ? reached(v, w) : v->highest;
        for (size_t k = 0; k < i && !v->odd; k++) {
            const im_wait *o = list[k];
            bool same = !strcmp(o->group, name) && o->seq == w->seq && o->rank != w->rank;
            if (same && *o->op && *w->op &&
                (strcmp(o->op, w->op) || (strcmp(o->size, w->size) && strncmp(o->op, "ALLTOALL", 8) && !strstr(o->op, "all_to_all"))))
                v->odd = w;
        }
    }
}

static void list_ranks(im_str *out, const im_wait *const *list, size_t n, const group_view *v, int64_t at)
{
    size_t told = 0;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i]->group, v->name) && reached(v, list[i]) == at && told++ < 16)
            im_str_printf(out, told > 1 ? ", %d" : "%d", list[i]->rank);
    if (told > 16)
        im_str_printf(out, " and %zu more", told - 16);
}

/* Ranks of the job that no watchdog of this group (NULL: of any) spoke for. */
static size_t list_absent(const im_diagnose *d, im_str *out, const im_wait *const *list, size_t n, const char *group)
{
    size_t told = 0;
    int most = d->nranks > d->most_rank + 1 && d->nranks <= IM_DIAG_RANK_BITS ? d->nranks - 1 : d->most_rank;
    uint8_t *there = calloc((size_t)most / 8 + 1, 1);
    for (size_t i = 0; there && i < n; i++)
        if ((!group || !strcmp(list[i]->group, group)) && list[i]->rank <= most)
            there[list[i]->rank / 8] |= (uint8_t)(1 << list[i]->rank % 8);
    for (int r = 0; there && r <= most; r++)
        if (!(there[r / 8] >> r % 8 & 1) && told++ < 16)
            im_str_printf(out, told > 1 ? ", %d" : "%d", r);
    if (told > 16)
        im_str_printf(out, " and %zu more", told - 16);
    free(there);
    return told;
}

static void say(im_diagnose *d, const char *id, im_surety surety, const im_str *why)
{
    im_finding *f = &d->found[im_rule_find(id)];
    snprintf(f->why, sizeof f->why, "%s", im_str_text(why));
    f->surety = surety;
}

static void tell_all(im_diagnose *d, const char *id, const im_wait *const *list, size_t n, const char *group)
{
    for (size_t i = 0; i < n; i++)
        if (!group || !strcmp(list[i]->group, group))
            im_diag_add(d, im_rule_find(id), &list[i]->at);
}

/* A group in which nobody differs in the operation: who is behind, or who did not come? */
static bool tell_behind(im_diagnose *d, const im_wait *const *list, size_t n, const group_view *v)
{
    im_str why = {0}, absent = {0};
    size_t missing = list_absent(d, &absent, list, n, v->name);
    bool told = true;
    const char *group = *v->name ? v->name : "(not named)";
    if (v->n > 1 && v->lowest < v->highest) {
        im_str_append(&why, "Behind are the ranks ");
        list_ranks(&why, list, n, v, v->lowest);
        im_str_printf(&why, ": in group %s they had started operation %lld at most, when others had started %lld.", group, (long long)v->lowest,
                      (long long)v->highest);
        if (missing && missing <= v->n)
            im_str_printf(&why, " Of rank %s there is no line at all.", im_str_text(&absent));
        say(d, "desync-behind", IM_SURETY_LIKELY, &why);
        tell_all(d, "desync-behind", list, n, v->name);
    } else if (missing && v->n > missing / 4) {
        im_str_printf(&why,
                      "%zu ranks waited in operation %lld (%s) of group %s; of rank %s there is no such line: it never came, or its log is not here.",
                      v->n, (long long)v->first->seq, *v->first->op ? v->first->op : "not named", group, im_str_text(&absent));
        say(d, "desync-behind", d->nranks ? IM_SURETY_LIKELY : IM_SURETY_POSSIBLE, &why);
        tell_all(d, "desync-behind", list, n, v->name);
    } else if (v->n == 1) {
        im_str_printf(&why,
                      "Rank %d waited in operation %lld (%s) of group %s. The other ranks' logs are not here: those without such a line, or with the "
                      "lowest \"last enqueued\", "
                      "are behind.",
                      v->first->rank, (long long)v->first->seq, *v->first->op ? v->first->op : "not named", group);
        say(d, "desync-behind", IM_SURETY_POSSIBLE, &why);
        tell_all(d, "desync-behind", list, n, v->name);
    } else {
        told = false;
    }
    im_str_free(&why);
    im_str_free(&absent);
    return told;
}

static void tell_odd(im_diagnose *d, const im_wait *const *list, size_t n, const group_view *v)
{
    im_str why = {0};
    const im_wait *b = v->odd, *a = NULL;
    for (size_t i = 0; i < n && !a; i++)
        if (!strcmp(list[i]->group, v->name) && list[i]->seq == b->seq && list[i]->rank != b->rank &&
            (strcmp(list[i]->op, b->op) || strcmp(list[i]->size, b->size)))
            a = list[i];
    if (!a)
        return;
    im_str_printf(&why, "At place %lld of group %s rank %d is in %s (%s) and rank %d in %s (%s).", (long long)b->seq,
                  *v->name ? v->name : "(not named)", a->rank, a->op, a->size, b->rank, b->op, b->size);
    say(d, "desync-order", IM_SURETY_SURE, &why);
    im_diag_add(d, im_rule_find("desync-order"), &a->at);
    im_diag_add(d, im_rule_find("desync-order"), &b->at);
    im_str_free(&why);
}

static void tell_groups(im_diagnose *d, const im_wait *const *list, size_t n, const group_view *view, size_t nview)
{
    im_str why = {0}, absent = {0};
    im_str_printf(&why, "%zu groups wait at once: ", nview);
    for (size_t i = 0; i < nview && i < 6; i++) {
        im_str_printf(&why, "%sgroup %s at operation %lld (%s, rank ", i ? "; " : "", *view[i].name ? view[i].name : "(not named)",
                      (long long)view[i].first->seq, *view[i].first->op ? view[i].first->op : "not named");
        list_ranks(&why, list, n, &view[i], view[i].lowest);
        im_str_append(&why, ")");
    }
    size_t missing = list_absent(d, &absent, list, n, NULL);
    if (missing && missing <= n)
        im_str_printf(&why, ". Rank %s is in none of these lines: look there first, then at those with the lowest \"last enqueued\".",
                      im_str_text(&absent));
    else
        im_str_append(&why, ". Look first at ranks that are in none of these lines, then at those with the lowest \"last enqueued\".");
    im_str_free(&absent);
    say(d, "desync-groups", IM_SURETY_LIKELY, &why);
    tell_all(d, "desync-groups", list, n, NULL);
    im_str_free(&why);
}

/* RAS: those with the lower number are behind; the fewer may be ahead and not at fault. */
static void tell_launched(im_diagnose *d)
{
    const im_launched *low = NULL, *high = NULL;
    for (size_t i = 0; i < d->nlaunched; i++) {
        const im_launched *x = &d->launched[i];
        low = !low || x->operation < low->operation ? x : low;
        high = !high || x->operation > high->operation ? x : high;
    }
    if (!low || low->operation == high->operation)
        return;
    im_str why = {0};
    im_str_printf(&why, "NCCL's RAS: %s came to operation %lld only, %s to %lld. Those with the lower number are behind, however many they are.",
                  *low->who ? low->who : "some ranks", (long long)low->operation, *high->who ? high->who : "others", (long long)high->operation);
    if (!d->found[im_rule_find("desync-order")].why[0])
        say(d, "desync-order", IM_SURETY_SURE, &why);
    for (size_t i = 0; i < d->nlaunched; i++)
        im_diag_add(d, im_rule_find("desync-order"), &d->launched[i].at);
    im_str_free(&why);
}

/* A watchdog's line without its group belongs to the one group that others wait in at the same place. */
static void name_groups(im_diagnose *d)
{
    for (size_t i = 0; i < IM_DIAG_WAITS; i++) {
        im_wait *w = &d->wait[i];
        const im_wait *other = NULL;
        bool unique = true;
        if (!w->used || *w->group)
            continue;
        for (size_t k = 0; k < IM_DIAG_WAITS; k++) {
            const im_wait *o = &d->wait[k];
            if (!o->used || !*o->group || o->seq != w->seq || (*o->op && *w->op && strcmp(o->op, w->op) != 0))
                continue;
            unique = unique && (!other || !strcmp(other->group, o->group));
            other = o;
        }
        if (other && unique)
            memcpy(w->group, other->group, sizeof w->group);
    }
}

static int by_rank(const void *a, const void *b)
{
    const im_wait *x = *(const im_wait *const *)a, *y = *(const im_wait *const *)b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) : (x->seq > y->seq) - (x->seq < y->seq);
}

enum { MOST_GROUPS = 16, MOST_LIST = 2048 };

void im_diag_desync(im_diagnose *d)
{
    const im_wait **list = malloc(MOST_LIST * sizeof *list);
    group_view view[MOST_GROUPS];
    size_t n = 0, nview = 0, most = d->wait ? IM_DIAG_WAITS : 0;
    if (d->wait)
        name_groups(d);
    for (size_t i = 0; list && i < most && n < MOST_LIST; i++)
        if (d->wait[i].used && is_earliest(d, &d->wait[i]))
            list[n++] = &d->wait[i];
    if (n)
        qsort(list, n, sizeof *list, by_rank);
    for (size_t i = 0; i < n && nview < MOST_GROUPS; i++) {
        size_t k = 0;
        while (k < nview && strcmp(view[k].name, list[i]->group) != 0)
            k++;
        if (k == nview)
            view_group(list, n, list[i]->group, &view[nview++]);
    }
    size_t odd = 0;
    while (odd < nview && !view[odd].odd)
        odd++;
    if (odd < nview)
        tell_odd(d, list, n, &view[odd]);
    else if (nview > 1)
        tell_groups(d, list, n, view, nview);
    else if (nview && !tell_behind(d, list, n, &view[0])) {
        im_str why = {0};
        im_str_printf(&why, "%zu ranks wait in operation %lld (%s), and no rank is behind: nobody is missing, data does not move.", view[0].n,
                      (long long)view[0].first->seq, *view[0].first->op ? view[0].first->op : "not named");
        say(d, "hang-all", IM_SURETY_POSSIBLE, &why);
        tell_all(d, "hang-all", list, n, view[0].name);
        im_str_free(&why);
    }
    tell_launched(d);
    free(list);
}
