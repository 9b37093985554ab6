/* Reading a host, running the table, and the helpers of the rows. */
#include "fabric/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const im_verdict_names[] = {"ok", "unknown", "warn", "fail"};

/* ---- items ------------------------------------------------------------------------------------ */

static const char *text_of(im_arena *a, const char *fmt, va_list ap)
{
    im_str s = {0};
    im_str_vprintf(&s, fmt, ap);
    const char *kept = s.failed ? NULL : im_arena_strdup(a, im_str_text(&s));
    im_str_free(&s);
    return kept;
}

void im_check_say(im_check_result *r, im_verdict verdict, const char *where, const char *path, const char *value, const char *fmt, ...)
{
    im_check_item *room = im_arena_grow(r->arena, r->item, r->n, &r->cap, sizeof *room);
    if (!room) {
        r->failed = true;
        return;
    }
    r->item = room;
    va_list ap;
    va_start(ap, fmt);
    im_check_item *item = &r->item[r->n++];
    *item = (im_check_item){.verdict = verdict, .where = where, .path = path, .value = value, .says = text_of(r->arena, fmt, ap)};
    va_end(ap);
    r->failed = r->failed || !item->says;
    if (verdict > r->verdict)
        r->verdict = verdict;
}

void im_check_mend(im_check_result *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (r->n)
        r->item[r->n - 1].mend = text_of(r->arena, fmt, ap);
    va_end(ap);
}

void im_check_note(im_check_result *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    r->note = text_of(r->arena, fmt, ap);
    va_end(ap);
}

const char *im_check_port_name(im_arena *a, const im_rdma_device *d, const im_rdma_port *p)
{
    return im_arena_printf(a, "%s/%d", d->name, p->number);
}

bool im_port_is_active(const im_rdma_port *p)
{
    return p->state.is_number && p->state.value == 4;
}

const char *im_check_netdev(const im_rdma_port *p)
{
    return p->netdev ? p->netdev : "IF";
}

const im_env_port *im_check_facts(const im_check_host *h, const im_rdma_device *d, const im_rdma_port *p)
{
    for (size_t i = 0; i < h->facts.nport; i++)
        if (strcmp(h->facts.port[i].device, d->name) == 0 && h->facts.port[i].port == p->number)
            return &h->facts.port[i];
    return NULL;
}

const char *im_check_env(const im_check_host *h, const char *name)
{
    const im_env_item *item = im_env_used(&h->env, name);
    return item && item->value && *item->value ? item->value : NULL;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const im_check_before *)a)->path, ((const im_check_before *)b)->path);
}

bool im_check_rise(const im_check_host *h, const im_counter *c, uint64_t *by)
{
    const im_check_before key = {.path = c->path};
    const im_check_before *was = h->nbefore && c->known ? bsearch(&key, h->before, h->nbefore, sizeof key, by_path) : NULL;
    if (!was)
        return false;
    if (c->value >= was->value) {
        *by = c->value - was->value;
        return true;
    }
    *by = (c->value - was->value) & UINT32_MAX; /* counters of the hardware wrap at 32 bits; others were cleared */
    return c->hw && was->value <= UINT32_MAX && was->value > UINT32_MAX / 4 * 3 && c->value < UINT32_MAX / 4;
}

/* ---- reading a host ------------------------------------------------------------------------------- */

/* The two readings of a bundle. */
static void read_before(im_check_host *h)
{
    im_arena *a = im_root_arena(h->root);
    const im_reading r = im_root_read(h->root, IM_CHECK_COUNTERS_FILE);
    if (!r.text)
        return;
    size_t lines = 1;
    for (const char *p = r.text; *p; p++)
        lines += *p == '\n';
    im_check_before *before = IM_ARENA_NEW(a, im_check_before, lines);
    for (const char *p = r.text; before && p && *p;) {
        const size_t len = strcspn(p, "\n"), name = strcspn(p, " \n");
        const char *value = p + name;
        if (name == 7 && strncmp(p, "seconds", 7) == 0) {
            h->seconds = strtod(value, NULL);
        } else if (name < len && value[1] >= '0' && value[1] <= '9') {
            before[h->nbefore].path = im_arena_printf(a, "%.*s", (int)name, p);
            before[h->nbefore].value = strtoull(value, NULL, 10);
            h->nbefore += before[h->nbefore].path != NULL;
        }
        p = p[len] ? p + len + 1 : NULL;
    }
    if (!(h->seconds > 0 && h->seconds < 1e9)) {
        h->nbefore = 0;
        h->seconds = 0;
    }
    if (h->nbefore)
        qsort(before, h->nbefore, sizeof *before, by_path);
    h->before = before;
}

static im_status read_variables(im_context *ctx, im_check_host *h, char *const *environ, const char *conf)
{
    static const struct {
        const char *path;
        im_env_layer layer;
    } files[] = {{IM_CHECK_ENV_FILE, IM_ENV_LAYER_PROCESS}, {"/etc/nccl.conf", IM_ENV_LAYER_SYSTEM}};
    im_env_set_init(ctx, im_root_arena(h->root), &h->env);
    if (environ)
        im_env_read_environ(&h->env, "the environment", environ);
    if (conf && im_path_exists(conf))
        IM_TRY(im_env_read_file(&h->env, conf, conf, IM_ENV_FORMAT_CONF, IM_ENV_LAYER_USER));
    for (size_t i = 0; i < IM_COUNT_OF(files); i++) {
        const im_reading r = im_root_read(h->root, "%s", files[i].path);
        if (r.text)
            im_env_read_text(&h->env, files[i].path, IM_ENV_FORMAT_CONF, files[i].layer, r.text, strlen(r.text));
    }
    if (h->env.failed)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for its variables", h->source);
    im_env_resolve(&h->env);
    return IM_OK;
}

im_status im_check_host_read(im_context *ctx, im_root *root, const char *source, char *const *environ, const char *conf, im_check_host *out)
{
    im_arena *a = im_root_arena(root);
    im_machine *m;
    im_graph *g;
    *out = (im_check_host){.root = root, .source = source ? source : im_root_dir(root)};
    IM_TRY(im_machine_read(ctx, root, &m));
    out->m = m;
    IM_TRY(im_graph_from_machine(ctx, a, m, &g));
    out->graph = g;
    IM_TRY(im_graph_pair(ctx, a, g, &out->pairing));
    IM_TRY(im_env_facts_of(ctx, a, root, m, &out->facts));
    out->name = m->hostname.text ? m->hostname.text : out->source;
    IM_TRY(read_variables(ctx, out, environ, conf));
    im_env_lint(&out->env, &out->facts, &(im_env_lint_options){.here = true});
    read_before(out);
    return IM_OK;
}

im_status im_check_host_again(im_context *ctx, im_check_host *h, double seconds)
{
    im_arena *a = im_root_arena(h->root);
    size_t n = 0;
    for (size_t d = 0; d < h->m->nrdma; d++)
        for (size_t p = 0; p < h->m->rdma[d].nports; p++)
            n += h->m->rdma[d].port[p].ncounters;
    im_check_before *before = IM_ARENA_NEW(a, im_check_before, n + 1);
    if (!before)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for a second reading of the counters", h->source);
    h->nbefore = 0;
    for (size_t d = 0; d < h->m->nrdma; d++)
        for (size_t p = 0; p < h->m->rdma[d].nports; p++) {
            im_rdma_port *port = &h->m->rdma[d].port[p];
            for (size_t c = 0; c < port->ncounters; c++)
                if (port->counter[c].known)
                    before[h->nbefore++] = (im_check_before){.path = port->counter[c].path, .value = port->counter[c].value};
            im_port_refresh(h->root, port);
        }
    if (h->nbefore)
        qsort(before, h->nbefore, sizeof *before, by_path);
    h->before = before;
    h->seconds = seconds;
    return IM_OK;
}

void im_check_counters_write(const im_machine *m, double seconds, im_str *out)
{
    im_str_printf(out, "seconds %.3f\n", seconds);
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++)
            for (size_t c = 0; c < m->rdma[d].port[p].ncounters; c++) {
                const im_counter *x = &m->rdma[d].port[p].counter[c];
                if (x->known)
                    im_str_printf(out, "%s %llu\n", x->path, (unsigned long long)x->value);
            }
}

/* ---- running ------------------------------------------------------------------------------------------ */

const im_check_row *im_check_find(const char *id)
{
    for (size_t i = 0; i < im_check_table_rows; i++)
        if (strcmp(im_check_table[i].id, id) == 0)
            return &im_check_table[i];
    return NULL;
}

void im_check_report_init(im_arena *a, im_check_report *out)
{
    *out = (im_check_report){.arena = a};
}

im_status im_check_add_part(im_context *ctx, im_check_report *report, const char *name, im_check_kind kind, im_check_part **out)
{
    im_check_part *room = im_arena_grow(report->arena, report->part, report->n, &report->cap, sizeof *room);
    if (!room)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the checks of %s", name);
    report->part = room;
    im_check_part *part = &report->part[report->n];
    *part = (im_check_part){.name = name, .result = IM_ARENA_NEW(report->arena, im_check_result, im_check_table_rows)};
    if (!part->result)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the checks of %s", name);
    for (size_t i = 0; i < im_check_table_rows; i++)
        if (im_check_table[i].kind == kind)
            part->result[part->n++] = (im_check_result){.row = &im_check_table[i], .arena = report->arena};
    report->n++;
    *out = part;
    return IM_OK;
}

void im_check_count(im_check_report *report)
{
    memset(report->count, 0, sizeof report->count);
    for (size_t p = 0; p < report->n; p++)
        for (size_t i = 0; i < report->part[p].n; i++)
            report->count[report->part[p].result[i].verdict]++;
}

static im_status finish(im_context *ctx, im_check_report *report, const im_check_part *part)
{
    for (size_t i = 0; i < part->n; i++)
        if (part->result[i].failed)
            return im_fail(ctx, IM_ERR_NOMEM, "no memory for what the checks of %s found", part->name);
    im_check_count(report);
    return IM_OK;
}

im_status im_check_run(im_context *ctx, im_check_report *report, const im_check_host *h, const im_check_options *o)
{
    im_check_part *part;
    IM_TRY(im_check_add_part(ctx, report, h->name, IM_CHECK_HOST, &part));
    part->source = h->source;
    for (size_t i = 0; i < part->n; i++)
        part->result[i].row->host(h, o, &part->result[i]);
    return finish(ctx, report, part);
}

im_status im_check_run_between(im_context *ctx, im_check_report *report, const im_check_host *const *h, size_t n)
{
    im_check_part *part;
    IM_TRY(im_check_add_part(ctx, report, "between the hosts", IM_CHECK_BETWEEN, &part));
    for (size_t i = 0; i < part->n; i++)
        part->result[i].row->between(h, n, &part->result[i]);
    return finish(ctx, report, part);
}

im_verdict im_check_worst(const im_check_report *report)
{
    for (int v = IM_VERDICT_FAIL; v > IM_VERDICT_OK; v--)
        if (report->count[v])
            return (im_verdict)v;
    return IM_VERDICT_OK;
}
