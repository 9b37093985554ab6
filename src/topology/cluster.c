/* Reading a cluster file by its rows, then the rules between them. */
#include "topology/cluster.h"

#include "base/json.h"
#include "topology/cluster_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IM_CLUSTER_FILE_MAX = 1 << 20 };

double im_curve_at(const im_curve *c, double x)
{
    if (!c->n)
        return 1;
    if (x <= c->x[0])
        return c->y[0];
    for (int i = 1; i < c->n; i++)
        if (x <= c->x[i]) {
            double t = (log(x) - log(c->x[i - 1])) / (log(c->x[i]) - log(c->x[i - 1]));
            return c->y[i - 1] + t * (c->y[i] - c->y[i - 1]);
        }
    return c->y[c->n - 1];
}

const char *im_number_name(im_number n)
{
    static const char *const name[IM_NUMBER_COUNT] = {"fp32", "bf16", "fp8"};
    return n < IM_NUMBER_COUNT ? name[n] : "?";
}

int im_cluster_devices(const im_cluster *c)
{
    return c->nodes * c->devices_per_node;
}

typedef struct reader {
    im_context *ctx;
    const im_json *doc;
    im_cluster *c;
    size_t cap_assumed;
} reader;

/* "FILE: line 7: " */
static im_status fail_at(const reader *r, const im_json_value *v, const char *fmt, ...) IM_PRINTF(3, 4);
static im_status fail_at(const reader *r, const im_json_value *v, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (v && im_json_line(v))
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: line %d: %s", im_json_name(r->doc), im_json_line(v), text);
    return im_fail(r->ctx, IM_ERR_FORMAT, "%s: %s", im_json_name(r->doc), text);
}

static im_status push(reader *r, const char ***list, size_t *n, const char *text)
{
    if ((*n & (*n + 1)) == 0) { /* full at 0, 1, 3, 7, ... */
        const char **more = IM_ARENA_NEW(r->c->arena, const char *, 2 * *n + 1);
        if (!more)
            return im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a cluster");
        if (*n)
            memcpy(more, *list, sizeof *more * *n);
        *list = more;
    }
    (*list)[(*n)++] = text;
    return text ? IM_OK : im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a cluster");
}

static im_status assume(reader *r, const char *key, const char *value, const char *why)
{
    return push(r, &r->c->assumed, &r->c->nassumed, im_arena_printf(r->c->arena, "%s: %s (%s)", key, value, why));
}

static const im_json_value *find(const reader *r, const char *key)
{
    const im_json_value *v = im_json_root(r->doc);
    while (v && *key) {
        char part[64];
        size_t n = strcspn(key, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, key);
        v = im_json_get(v, part);
        key += n + (key[n] == '.');
    }
    return v && im_json_type_of(v) != IM_JSON_NULL ? v : NULL;
}

/* A number with its unit; q COUNT: a plain one. */
static im_status read_figure(const reader *r, const char *key, im_quantity q, const im_json_value *v, double *out)
{
    char buf[64];
    const char *why = NULL, *text = im_json_text(v, buf, sizeof buf);
    im_json_type t = im_json_type_of(v);
    if (t == IM_JSON_ARRAY || t == IM_JSON_OBJECT || !text)
        return fail_at(r, v, "%s: one figure must stand here", key);
    if (q == IM_QUANTITY_COUNT) {
        if (t != IM_JSON_INT && t != IM_JSON_REAL)
            return fail_at(r, v, "%s: %s is no plain number", key, text);
        *out = im_json_real(v, 0);
        return isfinite(*out) ? IM_OK : fail_at(r, v, "%s: %s is no number", key, text);
    }
    return im_quantity_parse(q, text, out, &why) ? IM_OK : fail_at(r, v, "%s: \"%s\" %s", key, text, why);
}

static im_status out_of_range(const reader *r, const im_cluster_row *row, const im_json_value *v)
{
    char buf[64], low[64], high[64];
    snprintf(low, sizeof low, "%.10g", row->min);
    snprintf(high, sizeof high, "%.10g", row->max);
    if (row->quantity != IM_QUANTITY_COUNT && row->type == IM_ROW_QUANTITY) {
        im_quantity_format(row->quantity, row->min, low, sizeof low);
        im_quantity_format(row->quantity, row->max, high, sizeof high);
    }
    return fail_at(r, v, "%s: %s cannot be; it is from %s to %s", row->key, im_json_text(v, buf, sizeof buf), low, high);
}

static im_status read_curve(const reader *r, const im_cluster_row *row, const im_json_value *v, im_curve *out)
{
    size_t n = im_json_length(v);
    if (im_json_type_of(v) != IM_JSON_ARRAY || !n || n > IM_CLUSTER_POINTS)
        return fail_at(r, v, "%s: a list of 1 to %d points [x, y] must stand here", row->key, IM_CLUSTER_POINTS);
    for (size_t i = 0; i < n; i++) {
        const im_json_value *p = im_json_at(v, i);
        if (im_json_type_of(p) != IM_JSON_ARRAY || im_json_length(p) != 2)
            return fail_at(r, p, "%s: point %zu is no pair [x, y]", row->key, i + 1);
        IM_TRY(read_figure(r, row->key, row->quantity, im_json_at(p, 0), &out->x[i]));
        IM_TRY(read_figure(r, row->key, row->quantity_y, im_json_at(p, 1), &out->y[i]));
        if (out->x[i] <= (i ? out->x[i - 1] : 0))
            return fail_at(r, p, "%s: point %zu: x must rise from point to point, from above 0", row->key, i + 1);
        if (out->y[i] <= row->min || out->y[i] > row->max)
            return fail_at(r, p, "%s: point %zu: y is %.6g; it is above %.6g and at most %.6g", row->key, i + 1, out->y[i], row->min, row->max);
    }
    out->n = (int)n;
    return IM_OK;
}

static im_status read_choice(const reader *r, const im_cluster_row *row, const im_json_value *v, int *out)
{
    char buf[64];
    const char *text = im_json_text(v, buf, sizeof buf), *at = row->choices;
    for (int i = 0; text; i++) {
        size_t n = strcspn(at, "|");
        if (strlen(text) == n && !memcmp(at, text, n)) {
            *out = i;
            return IM_OK;
        }
        if (!at[n])
            break;
        at += n + 1;
    }
    return fail_at(r, v, "%s: \"%s\" is none of %s", row->key, text ? text : "?", row->choices);
}

static im_status read_money(const reader *r, const im_cluster_row *row, const im_json_value *v, double *out)
{
    char buf[64], word[8] = "";
    const char *text = im_json_text(v, buf, sizeof buf);
    if (!text || sscanf(text, "%lf %7[A-Z]", out, word) != 2 || !isfinite(*out))
        return fail_at(r, v, "%s: \"%s\" is no price; write for example 2.5 USD", row->key, text ? text : "?");
    if (r->c->currency && strcmp(r->c->currency, word))
        return fail_at(r, v, "%s: %s where another price is in %s; one currency", row->key, word, r->c->currency);
    r->c->currency = im_arena_strdup(r->c->arena, word);
    return *out < row->min || *out > row->max ? out_of_range(r, row, v) : IM_OK;
}

static im_status read_whole(const reader *r, const im_cluster_row *row, const im_json_value *v, int64_t *out)
{
    char buf[64];
    *out = im_json_int(v, INT64_MIN);
    if (*out == INT64_MIN)
        return fail_at(r, v, "%s: %s is no whole number", row->key, im_json_text(v, buf, sizeof buf) ? im_json_text(v, buf, sizeof buf) : "this");
    return (double)*out < row->min || (double)*out > row->max ? out_of_range(r, row, v) : IM_OK;
}

static im_status read_row(const reader *r, const im_cluster_row *row, const im_json_value *v)
{
    char *at = (char *)r->c + row->offset;
    switch (row->type) {
    case IM_ROW_QUANTITY:
    case IM_ROW_REAL: {
        double x;
        IM_TRY(read_figure(r, row->key, row->quantity, v, &x));
        memcpy(at, &x, sizeof x);
        return x < row->min || x > row->max ? out_of_range(r, row, v) : IM_OK;
    }
    case IM_ROW_INT:
    case IM_ROW_LONG: {
        int64_t x;
        IM_TRY(read_whole(r, row, v, &x));
        int small = (int)x;
        memcpy(at, row->type == IM_ROW_INT ? (void *)&small : (void *)&x, row->type == IM_ROW_INT ? sizeof small : sizeof x);
        return IM_OK;
    }
    case IM_ROW_BOOL:
        if (im_json_type_of(v) != IM_JSON_BOOL)
            return fail_at(r, v, "%s: true or false must stand here", row->key);
        *(bool *)at = im_json_bool(v, false);
        return IM_OK;
    case IM_ROW_TEXT: {
        char buf[64];
        const char *text = im_json_text(v, buf, sizeof buf);
        if (!text)
            return fail_at(r, v, "%s: a text must stand here", row->key);
        const char *copy = im_arena_strdup(r->c->arena, text);
        memcpy(at, &copy, sizeof copy);
        return copy ? IM_OK : im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a cluster");
    }
    case IM_ROW_CHOICE: {
        int choice = 0;
        IM_TRY(read_choice(r, row, v, &choice));
        memcpy(at, &choice, sizeof choice);
        return IM_OK;
    }
    case IM_ROW_MONEY: return read_money(r, row, v, (double *)(void *)at);
    case IM_ROW_CURVE: return read_curve(r, row, v, (im_curve *)(void *)at);
    }
    return IM_OK;
}

/* What an absent row means: the fallback, read as if it stood there. */
static im_status fall_back(reader *r, const im_cluster_row *row)
{
    bool domain = !strncmp(row->key, "domain.", 7), network = !strncmp(row->key, "network.", 8);
    if (!row->fallback)
        return fail_at(r, NULL, "%s: is missing (%s)", row->key, row->help);
    if (!row->fallback[0])
        return IM_OK;
    im_json *doc;
    reader own = *r;
    IM_TRY(im_yaml_parse(r->ctx, "default", row->fallback, strlen(row->fallback), &doc));
    own.doc = doc;
    im_status status = read_row(&own, row, im_json_root(doc));
    im_json_free(doc);
    IM_TRY(status);
    if (row->type == IM_ROW_BOOL || row->type == IM_ROW_CHOICE || (domain && !find(r, "domain")) || (network && !find(r, "network")))
        return IM_OK; /* the absence of a thing is no guess */
    if (!strncmp(row->key, "device.matmul.", 14) && !find(r, im_arena_printf(r->c->arena, "device.peak.%s", row->key + 14)))
        return IM_OK;
    if (!strcmp(row->key, "collectives.net_overhead") && r->c->library != IM_LIBRARY_NCCL)
        return IM_OK;
    return assume(r, row->key, row->fallback, "not given");
}

/* Every key of the file is one of the rows'. */
static im_status check_keys(const reader *r, const im_json_value *v, const char *prefix)
{
    const char *names[128];
    size_t n = 0, len = strlen(prefix);
    for (size_t i = 0; i < im_cluster_nrows && n < IM_COUNT_OF(names); i++) {
        if (strncmp(im_cluster_rows[i].key, prefix, len))
            continue;
        const char *rest = im_cluster_rows[i].key + len;
        names[n] = im_arena_printf(r->c->arena, "%.*s", (int)strcspn(rest, "."), rest);
        if (names[n] && (!n || strcmp(names[n - 1], names[n])))
            n++;
    }
    if (!*prefix)
        names[n++] = "sources";
    if (!strcmp(prefix, "network."))
        names[n++] = "levels";
    for (size_t i = 0; i < im_json_length(v); i++) {
        const char *key = "";
        const im_json_value *child = im_json_member(v, i, &key);
        bool known = false;
        for (size_t k = 0; k < n; k++)
            known |= !strcmp(names[k], key);
        if (!known) {
            const char *near = im_nearest_name(key, names, n);
            return fail_at(r, child, "%s%s: unknown key%s%s%s", prefix, key, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        if (im_json_type_of(child) == IM_JSON_OBJECT && strcmp(key, "sources"))
            IM_TRY(check_keys(r, child, im_arena_printf(r->c->arena, "%s%s.", prefix, key)));
    }
    return IM_OK;
}

static im_status read_sources(reader *r)
{
    const im_json_value *s = find(r, "sources");
    if (s && im_json_type_of(s) != IM_JSON_OBJECT)
        return fail_at(r, s, "sources: a mapping of keys to where their figures come from must stand here");
    for (size_t i = 0; i < im_json_length(s); i++) {
        const char *key = "";
        char buf[64];
        const char *text = im_json_text(im_json_member(s, i, &key), buf, sizeof buf);
        if (!text)
            return fail_at(r, im_json_member(s, i, &key), "sources.%s: a text must stand here", key);
        IM_TRY(push(r, &r->c->source, &r->c->nsource, im_arena_printf(r->c->arena, "%s: %s", key, text)));
        if (!strncmp(text, "assumed", 7))
            IM_TRY(push(r, &r->c->assumed, &r->c->nassumed, im_arena_printf(r->c->arena, "%s: %s", key, text)));
    }
    return IM_OK;
}

/* ---- levels of the network ------------------------------------------------------------------ */

static im_status read_level(reader *r, const im_json_value *v, int i)
{
    im_cluster_network *w = &r->c->network;
    im_cluster_level *l = &w->level[i];
    const im_json_value *nodes = im_json_get(v, "nodes"), *over = im_json_get(v, "oversubscription"), *uplink = im_json_get(v, "uplink"),
                        *name = im_json_get(v, "name");
    for (size_t k = 0; k < im_json_length(v); k++) {
        const char *key = "";
        const im_json_value *child = im_json_member(v, k, &key);
        if (child != nodes && child != over && child != uplink && child != name)
            return fail_at(r, child, "network.levels: %s: unknown key; name, nodes, oversubscription, uplink", key);
    }
    l->name = name ? im_arena_strdup(r->c->arena, im_json_string(name, "level")) : im_arena_printf(r->c->arena, "level %d", i + 1);
    l->nodes = (int)im_json_int(nodes, 0);
    if (im_json_int(nodes, 0) < 1 || im_json_int(nodes, 0) > IM_CLUSTER_MAX_DEVICES || (i && l->nodes <= w->level[i - 1].nodes))
        return fail_at(r, v, "network.levels: nodes of a unit of %s: a whole number above the level below it must stand here", l->name);
    double below = w->link * w->nics * l->nodes; /* all rails together */
    l->uplink = l->per_peer = INFINITY;
    l->oversubscription = 1;
    if (l->nodes >= r->c->nodes)
        return IM_OK;
    if (uplink) {
        IM_TRY(read_figure(r, "network.levels.uplink", IM_QUANTITY_BYTE_RATE, uplink, &l->uplink));
        if (l->uplink <= 0 || l->uplink > below * (1 + 1e-9)) {
            char most[64];
            return fail_at(r, uplink, "network.levels: the uplink of %s is more than what its nodes send; at most %s", l->name,
                           im_quantity_format(IM_QUANTITY_BYTE_RATE, below, most, sizeof most));
        }
        l->oversubscription = below / l->uplink;
        return IM_OK;
    }
    if (over)
        IM_TRY(read_figure(r, "network.levels.oversubscription", IM_QUANTITY_COUNT, over, &l->oversubscription));
    else
        IM_TRY(assume(r, im_arena_printf(r->c->arena, "network.levels.%s.oversubscription", l->name), "1", "not given"));
    if (!(l->oversubscription >= 1 && l->oversubscription <= 1000))
        return fail_at(r, v, "network.levels: oversubscription of %s is from 1 (none) to 1000", l->name);
    l->uplink = below / l->oversubscription;
    return IM_OK;
}

static im_status read_levels(reader *r)
{
    im_cluster_network *w = &r->c->network;
    const im_json_value *v = find(r, "network.levels");
    size_t n = im_json_length(v);
    if (w->kind == IM_NETWORK_NONE)
        return IM_OK;
    if (!v) {
        w->level[0] = (im_cluster_level){.name = "switch", .nodes = r->c->nodes, .uplink = INFINITY, .per_peer = INFINITY, .oversubscription = 1};
        w->nlevel = 1;
        return r->c->nodes > 1 ? assume(r, "network.levels", "one switch joins all nodes", "not given") : IM_OK;
    }
    if (im_json_type_of(v) != IM_JSON_ARRAY || !n || n > IM_CLUSTER_LEVELS)
        return fail_at(r, v, "network.levels: a list of 1 to %d levels must stand here", IM_CLUSTER_LEVELS);
    for (size_t i = 0; i < n; i++)
        IM_TRY(read_level(r, im_json_at(v, i), (int)i));
    w->nlevel = (int)n;
    im_cluster_level *top = &w->level[n - 1];
    if (top->nodes < r->c->nodes)
        return fail_at(r, v, "network.levels: the last level, %s, joins %d of the %d nodes; it must join all", top->name, top->nodes, r->c->nodes);
    if (w->kind == IM_NETWORK_DRAGONFLY) {
        if (n < 2)
            return fail_at(r, v, "network.levels: a dragonfly has groups and, above them, all of them");
        im_cluster_level *group = &w->level[n - 2];
        int groups = (r->c->nodes + group->nodes - 1) / group->nodes;
        if (groups > 1) /* minimal routes: only the links to that group; round full links: each packet crosses two, so half of all */
            group->per_peer = w->adaptive ? group->uplink / 2 : group->uplink / (groups - 1);
    }
    return IM_OK;
}

/* ---- rules between figures ------------------------------------------------------------------- */

static im_status check(reader *r)
{
    im_cluster *c = r->c;
    const im_cluster_device *d = &c->device;
    if ((int64_t)c->nodes * c->devices_per_node > IM_CLUSTER_MAX_DEVICES)
        return fail_at(r, find(r, "nodes"), "nodes: %d of %d devices are more than %d devices", c->nodes, c->devices_per_node,
                       IM_CLUSTER_MAX_DEVICES);
    if (d->memory_reserved >= d->memory)
        return fail_at(r, find(r, "device.memory_reserved"), "device.memory_reserved: nothing of device.memory is left");
    if (d->power && d->idle_power > d->power)
        return fail_at(r, find(r, "device.idle_power"), "device.idle_power: more than device.power");
    if (!!d->tile_m + !!d->tile_n + !!d->units != 3 && d->tile_m + d->tile_n + d->units)
        return fail_at(r, find(r, "device"), "device.tile_m, tile_n and units: all three or none");
    if (c->domain.devices > 1 && c->domain.rate <= 0)
        return fail_at(r, find(r, "domain"), "domain.rate: is missing: how fast do the %d devices reach each other?", c->domain.devices);
    if (c->devices_per_node % c->domain.devices && c->domain.devices % c->devices_per_node)
        return fail_at(r, find(r, "domain.devices"), "domain.devices: %d and devices_per_node %d: one must be a multiple of the other",
                       c->domain.devices, c->devices_per_node);
    bool apart = c->domain.devices < im_cluster_devices(c);
    if (apart && c->network.kind == IM_NETWORK_NONE)
        return fail_at(r, find(r, "nodes"), "network.kind: is missing: %d devices in domains of %d reach each other over a network: %s",
                       im_cluster_devices(c), c->domain.devices, "tree, fat-tree or dragonfly");
    if (c->network.kind != IM_NETWORK_NONE && (c->network.nics < 1 || c->network.link <= 0))
        return fail_at(r, find(r, "network"), "network.nics and network.link: both are needed");
    if (c->library == IM_LIBRARY_MEASURED && (!c->all_reduce.n || c->all_reduce_ranks < 2))
        return fail_at(r, find(r, "collectives"), "collectives.all_reduce and all_reduce_ranks: both are needed when library is measured");
    if (c->library == IM_LIBRARY_NCCL && d->generation == IM_GENERATION_OTHER)
        return fail_at(r, find(r, "device"), "device.generation: NCCL's figures are for volta, ampere, hopper, blackwell; else library: ring");
    return IM_OK;
}

static im_status read_all(reader *r)
{
    const im_json_value *root = im_json_root(r->doc);
    if (im_json_type_of(root) != IM_JSON_OBJECT)
        return fail_at(r, root, "a cluster is a mapping: name, nodes, devices_per_node, device, domain, network, ...");
    IM_TRY(check_keys(r, root, ""));
    for (size_t i = 0; i < im_cluster_nrows; i++) {
        const im_json_value *v = find(r, im_cluster_rows[i].key);
        IM_TRY(v ? read_row(r, &im_cluster_rows[i], v) : fall_back(r, &im_cluster_rows[i]));
    }
    IM_TRY(check(r));
    IM_TRY(read_levels(r));
    return read_sources(r);
}

static im_status from_document(im_context *ctx, const im_json *doc, im_cluster **out)
{
    im_arena *a;
    IM_TRY(im_arena_create(ctx, &a));
    im_cluster *c = IM_ARENA_NEW(a, im_cluster, 1);
    im_status status = c ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for a cluster");
    if (c) {
        *c = (im_cluster){.arena = a, .file = im_arena_strdup(a, im_json_name(doc))};
        reader r = {.ctx = ctx, .doc = doc, .c = c};
        status = read_all(&r);
    }
    if (status == IM_OK)
        *out = c;
    else
        im_arena_destroy(a);
    return status;
}

im_status im_cluster_parse(im_context *ctx, const char *name, const char *text, size_t len, im_cluster **out)
{
    im_json *doc;
    IM_TRY(im_yaml_parse(ctx, name, text, len, &doc));
    im_status status = from_document(ctx, doc, out);
    im_json_free(doc);
    return status;
}

im_status im_cluster_open(im_context *ctx, const char *what, const char *clusters_dir, im_cluster **out)
{
    im_json *doc;
    size_t n = strlen(what);
    bool file = strchr(what, '/') || (n > 5 && !strcmp(what + n - 5, ".yaml")) || (n > 4 && !strcmp(what + n - 4, ".yml")) || !clusters_dir;
    char path[4096];
    snprintf(path, sizeof path, file ? "%s" : "%s%s%s.yaml", file ? what : clusters_dir, "/", what);
    if (!file && !im_path_exists(path)) {
        im_arena *a;
        const char **names = NULL, *near = NULL;
        size_t count = 0;
        IM_TRY(im_arena_create(ctx, &a));
        im_status status = im_cluster_list(ctx, clusters_dir, a, &names, &count);
        if (status == IM_OK) {
            near = im_nearest_name(what, names, count);
            status = near ? im_fail(ctx, IM_ERR_ARG, "%s is no cluster; did you mean %s?", what, near)
                          : im_fail(ctx, IM_ERR_ARG, "%s is no cluster: neither a .yaml file nor one of the %zu in %s", what, count, clusters_dir);
        }
        im_arena_destroy(a);
        return status;
    }
    IM_TRY(im_yaml_load(ctx, path, IM_CLUSTER_FILE_MAX, &doc));
    im_status status = from_document(ctx, doc, out);
    im_json_free(doc);
    return status;
}

void im_cluster_close(im_cluster *c)
{
    if (c)
        im_arena_destroy(c->arena);
}
