/* What the diagnosis says: for people, and as JSON. */
#include "fabric/diagnose_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"fault", "slow", "symptom", "note"};
static const char *const sureties[] = {"possible", "likely", "sure"};

static const char *why_of(const im_diagnose *d, size_t rule)
{
    return d->found[rule].why[0] ? d->found[rule].why : im_rules[rule].why;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

/* Words in lines of at most 110 columns. */
static void put_wrapped(im_str *out, const char *first, const char *text)
{
    size_t column = strlen(first), indent = column;
    im_str_append(out, first);
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (column + n > 110 && column > indent) {
            im_str_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        im_str_append_n(out, p, n);
        column += n;
        p += n;
        if (*p == ' ') {
            im_str_append(out, " ");
            column++;
            p++;
        }
    }
    im_str_append(out, "\n");
}

static void put_place(const im_diagnose *d, const im_evidence *e, im_str *out)
{
    im_str_append(out, d->file[e->file]->name);
    if (e->line)
        im_str_printf(out, ":%lld", (long long)e->line);
}

/* 0-7, 12 */
static void put_ranks(const im_finding *f, im_str *out)
{
    size_t told = 0;
    for (size_t i = 0, end; i < f->nrank && told < 12; i = end, told++) {
        for (end = i + 1; end < f->nrank && f->rank[end] == f->rank[end - 1] + 1; end++) {}
        im_str_printf(out, told ? ", %d" : "%d", f->rank[i]);
        if (end > i + 1)
            im_str_printf(out, end > i + 2 ? "-%d" : ", %d", f->rank[end - 1]);
        if (told == 11 && end < f->nrank)
            im_str_append(out, ", ...");
    }
    if (f->more_ranks)
        im_str_append(out, ", ...");
}

static void put_where(const im_diagnose *d, size_t rule, im_str *out)
{
    const im_finding *f = &d->found[rule];
    char when[32];
    for (size_t i = 0; i < f->nhost && i < 8; i++)
        im_str_printf(out, i ? ", %s" : "on %s", f->host[i]);
    if (f->nhost > 8 || f->more_hosts)
        im_str_append(out, ", ...");
    if (f->nrank) {
        im_str_append(out, f->nhost ? " (rank " : "rank ");
        put_ranks(f, out);
        im_str_append(out, f->nhost ? ")" : "");
    }
    im_str_append(out, f->nhost || f->nrank ? "; " : "");
    if (!isnan(f->kept[0].time))
        im_str_printf(out, "first at %s, ", im_log_time_text(f->kept[0].time, when, sizeof when));
    put_place(d, &f->kept[0], out);
    im_str_printf(out, "; %lld line%s", (long long)f->count, f->count == 1 ? "" : "s");
}

static void put_followers(const im_diagnose *d, size_t cause, int depth, im_str *out)
{
    for (size_t i = 0; i < d->norder && depth < 8; i++) {
        size_t r = d->order[i];
        if (d->found[r].from != cause)
            continue;
        im_str_printf(out, "     %*s-> %s\n     %*s   ", 3 * depth, "", im_rules[r].cause, 3 * depth, "");
        put_where(d, r, out);
        im_str_append(out, "\n");
        put_followers(d, r, depth + 1, out);
    }
}

static void put_finding(const im_diagnose *d, size_t rule, size_t number, im_str *out)
{
    const im_finding *f = &d->found[rule];
    bool leads = false;
    im_str_printf(out, "\n%zu. %s [%s]\n   ", number, im_rules[rule].cause, sureties[f->surety]);
    put_where(d, rule, out);
    im_str_append(out, "\n");
    put_wrapped(out, "   why:  ", why_of(d, rule));
    for (size_t i = 0; i < f->nkept; i++) {
        im_str_append(out, "     ");
        put_place(d, &f->kept[i], out);
        im_str_printf(out, "%s%s\n", *f->kept[i].text ? ": " : "", f->kept[i].text);
    }
    if (f->count > (int64_t)f->nkept)
        im_str_printf(out, "     and %lld more\n", (long long)f->count - (long long)f->nkept);
    for (size_t i = 0; i < d->norder; i++)
        leads = leads || d->found[d->order[i]].from == rule;
    if (leads) {
        im_str_append(out, "   what followed from it:\n");
        put_followers(d, rule, 0, out);
    }
    im_str_append(out, "   next:\n");
    for (size_t i = 0; i < IM_RULE_STEPS && im_rules[rule].next[i]; i++)
        im_str_printf(out, "     %s\n", im_rules[rule].next[i]);
}

static void put_notes(const im_diagnose *d, im_str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < d->norder; i++) {
        size_t r = d->order[i];
        if (im_rules[r].kind != IM_CAUSE_NOTE)
            continue;
        im_str_printf(out, "%s   %s (", n++ ? "" : "\nAlso seen, no fault\n", im_rules[r].cause);
        put_where(d, r, out);
        im_str_printf(out, ")\n");
    }
    n = 0;
    for (size_t i = 0; i < d->nfile; i++)
        if (*d->file[i]->remark)
            im_str_printf(out, "%s   %s: %s\n", n++ ? "" : "\nFiles\n", d->file[i]->name, d->file[i]->remark);
}

void im_diagnose_text(const im_diagnose *d, im_str *out)
{
    size_t n = im_diagnose_findings(d);
    im_str_printf(out, "%lld lines in %zu log%s: ", (long long)d->total_lines, d->nfile, d->nfile == 1 ? "" : "s");
    if (!n)
        im_str_append(out, "no fault found\n");
    else
        im_str_printf(out, "%zu cause%s, the likeliest first\n", n, n == 1 ? "" : "s");
    for (size_t i = 0; i < n; i++)
        put_finding(d, d->order[i], i + 1, out);
    im_diag_rdma_text(d, out);
    put_notes(d, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */

static void put_string(im_str *out, const char *key, const char *value)
{
    im_str_printf(out, "\"%s\": ", key);
    im_str_json_string(out, value, strlen(value));
}

static void put_evidence(const im_diagnose *d, const im_evidence *e, im_str *out)
{
    im_str_append(out, "{");
    put_string(out, "file", d->file[e->file]->name);
    if (e->line)
        im_str_printf(out, ", \"line\": %lld", (long long)e->line);
    if (*e->host) {
        im_str_append(out, ", ");
        put_string(out, "host", e->host);
    }
    if (e->rank >= 0)
        im_str_printf(out, ", \"rank\": %d", e->rank);
    if (!isnan(e->time))
        im_str_printf(out, ", \"time\": %.6f", e->time);
    im_str_append(out, ", ");
    put_string(out, "text", e->text);
    im_str_append(out, "}");
}

static void put_json_finding(const im_diagnose *d, size_t rule, im_str *out)
{
    const im_finding *f = &d->found[rule];
    const im_rule *r = &im_rules[rule];
    size_t n = 0;
    im_str_append(out, "{");
    put_string(out, "id", r->id);
    im_str_printf(out, ", \"kind\": \"%s\", \"confidence\": \"%s\", ", kinds[r->kind], sureties[f->surety]);
    put_string(out, "cause", r->cause);
    im_str_append(out, ", ");
    put_string(out, "why", why_of(d, rule));
    im_str_append(out, ", \"follows_from\": ");
    if (f->from < d->nrule)
        im_str_printf(out, "\"%s\"", im_rules[f->from].id);
    else
        im_str_append(out, "null");
    im_str_append(out, ", \"leads_to\": [");
    for (size_t i = 0; i < d->norder; i++)
        if (d->found[d->order[i]].from == rule)
            im_str_printf(out, "%s\"%s\"", n++ ? ", " : "", im_rules[d->order[i]].id);
    im_str_printf(out, "], \"count\": %lld, \"hosts\": [", (long long)f->count);
    for (size_t i = 0; i < f->nhost; i++) {
        im_str_append(out, i ? ", " : "");
        im_str_json_string(out, f->host[i], strlen(f->host[i]));
    }
    im_str_append(out, "], \"ranks\": [");
    for (size_t i = 0; i < f->nrank; i++)
        im_str_printf(out, i ? ", %d" : "%d", f->rank[i]);
    im_str_append(out, "], \"lines\": [");
    for (size_t i = 0; i < f->nkept; i++) {
        im_str_append(out, i ? ",\n    " : "\n    ");
        put_evidence(d, &f->kept[i], out);
    }
    im_str_append(out, "], \"next\": [");
    for (size_t i = 0; i < IM_RULE_STEPS && r->next[i]; i++) {
        im_str_append(out, i ? ", " : "");
        im_str_json_string(out, r->next[i], strlen(r->next[i]));
    }
    im_str_append(out, "], ");
    put_string(out, "source", r->source);
    im_str_append(out, "}");
}

void im_diagnose_json(const im_diagnose *d, im_str *out)
{
    im_str_printf(out, "{\"faults\": %zu, \"lines\": %lld, \"bytes\": %lld, \"findings\": [", im_diagnose_findings(d), (long long)d->total_lines,
                  (long long)d->total_bytes);
    for (size_t i = 0; i < d->norder; i++) {
        im_str_append(out, i ? ",\n  " : "\n  ");
        put_json_finding(d, d->order[i], out);
    }
    im_str_append(out, "],\n \"transports\": [");
    im_diag_rdma_json(d, out);
    im_str_append(out, "],\n \"files\": [");
    for (size_t i = 0; i < d->nfile; i++) {
        const im_log_facts *f = d->file[i];
        im_str_append(out, i ? ",\n  {" : "\n  {");
        put_string(out, "name", f->name);
        im_str_printf(out, ", \"read\": %s, \"lines\": %lld, \"bytes\": %lld", f->unread ? "false" : "true", (long long)f->lines,
                      (long long)f->bytes);
        if (*f->remark) {
            im_str_append(out, ", ");
            put_string(out, "remark", f->remark);
        }
        im_str_append(out, "}");
    }
    im_str_append(out, "]}\n");
}

/* ---- what it knows ------------------------------------------------------------------------------------------ */

void im_diagnose_rules_text(im_str *out)
{
    im_str_append(out, "| id | kind | cause | source |\n|---|---|---|---|\n");
    for (size_t r = 0; r < im_rule_count(); r++)
        im_str_printf(out, "| `%s` | %s | %s | %s |\n", im_rules[r].id, kinds[im_rules[r].kind], im_rules[r].cause, im_rules[r].source);
}
