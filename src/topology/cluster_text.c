/* A cluster as a file; the names of the presets. */
#include "topology/cluster_rows.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void text_of(const char *s, im_str *out)
{
    im_str_json_string(out, s ? s : "", strlen(s ? s : "")); /* JSON's strings are YAML's */
}

static void figure(im_quantity q, double x, im_str *out)
{
    char buf[64];
    if (q == IM_QUANTITY_COUNT)
        im_str_printf(out, "%.12g", x);
    else
        im_str_append(out, im_quantity_format(q, x, buf, sizeof buf));
}

static void choice(const char *choices, int i, im_str *out)
{
    while (i-- > 0)
        choices += strcspn(choices, "|") + 1;
    im_str_append_n(out, choices, strcspn(choices, "|"));
}

static bool is_unknown(const im_cluster_row *row, const void *at)
{
    double d = 0;
    int i = 0;
    if (!row->fallback || row->fallback[0])
        return row->type == IM_ROW_CURVE && !((const im_curve *)at)->n;
    switch (row->type) {
    case IM_ROW_CURVE: return !((const im_curve *)at)->n;
    case IM_ROW_TEXT: return !*(const char *const *)at;
    case IM_ROW_INT: memcpy(&i, at, sizeof i); return !i;
    case IM_ROW_LONG: return !*(const int64_t *)at;
    case IM_ROW_BOOL:
    case IM_ROW_CHOICE: return false;
    default: memcpy(&d, at, sizeof d); return d == 0;
    }
}

static void value(const im_cluster *c, const im_cluster_row *row, im_str *out)
{
    const char *at = (const char *)c + row->offset;
    double d = 0;
    int i = 0;
    switch (row->type) {
    case IM_ROW_QUANTITY:
    case IM_ROW_REAL:
        memcpy(&d, at, sizeof d);
        figure(row->quantity, d, out);
        break;
    case IM_ROW_INT:
        memcpy(&i, at, sizeof i);
        im_str_printf(out, "%d", i);
        break;
    case IM_ROW_LONG: im_str_printf(out, "%lld", (long long)*(const int64_t *)(const void *)at); break;
    case IM_ROW_BOOL: im_str_append(out, *(const bool *)at ? "true" : "false"); break;
    case IM_ROW_TEXT: text_of(*(const char *const *)(const void *)at, out); break;
    case IM_ROW_CHOICE:
        memcpy(&i, at, sizeof i);
        choice(row->choices, i, out);
        break;
    case IM_ROW_MONEY:
        memcpy(&d, at, sizeof d);
        im_str_printf(out, "%.12g %s", d, c->currency);
        break;
    case IM_ROW_CURVE: {
        const im_curve *k = (const im_curve *)(const void *)at;
        im_str_append(out, "[");
        for (int p = 0; p < k->n; p++) {
            im_str_append(out, p ? ", [" : "[");
            figure(row->quantity, k->x[p], out);
            im_str_append(out, ", ");
            figure(row->quantity_y, k->y[p], out);
            im_str_append(out, "]");
        }
        im_str_append(out, "]");
        break;
    }
    }
}

static void levels(const im_cluster *c, im_str *out)
{
    const im_cluster_network *w = &c->network;
    im_str_append(out, "  levels:\n");
    for (int i = 0; i < w->nlevel; i++) {
        im_str_append(out, "    - {name: ");
        text_of(w->level[i].name, out);
        im_str_printf(out, ", nodes: %d, oversubscription: %.12g}\n", w->level[i].nodes, w->level[i].oversubscription);
    }
}

/* Opens the mappings of a key that the one before it has not: "device.peak." */
static void open_maps(const char *key, const char *before, im_str *out)
{
    int depth = 0;
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.'), depth++) {
        size_t n = (size_t)(dot - key) + 1;
        const char *from = dot;
        while (from > key && from[-1] != '.')
            from--;
        if (strncmp(key, before, n))
            im_str_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(dot - from), from);
    }
}

void im_cluster_to_yaml(const im_cluster *c, im_str *out)
{
    const char *before = "";
    for (size_t i = 0; i < im_cluster_nrows; i++) {
        const im_cluster_row *row = &im_cluster_rows[i];
        bool no_domain = c->domain.devices == 1 && !strncmp(row->key, "domain.", 7), network = !strncmp(row->key, "network.", 8);
        if (is_unknown(row, (const char *)c + row->offset) || no_domain || (network && c->network.kind == IM_NETWORK_NONE))
            continue;
        open_maps(row->key, before, out);
        int depth = 0;
        const char *last = row->key;
        for (const char *dot = strchr(row->key, '.'); dot; dot = strchr(dot + 1, '.'), depth++)
            last = dot + 1;
        im_str_printf(out, "%*s%s: ", 2 * depth, "", last);
        value(c, row, out);
        im_str_append(out, "\n");
        before = row->key;
        if (!strcmp(row->key, "network.sharp") && c->network.nlevel)
            levels(c, out);
    }
    if (c->nsource)
        im_str_append(out, "sources:\n");
    for (size_t i = 0; i < c->nsource; i++) {
        size_t n = strcspn(c->source[i], ":");
        im_str_printf(out, "  %.*s: ", (int)n, c->source[i]);
        text_of(c->source[i] + n + 2, out);
        im_str_append(out, "\n");
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

im_status im_cluster_list(im_context *ctx, const char *clusters_dir, im_arena *a, const char ***names, size_t *n)
{
    DIR *dir = opendir(clusters_dir);
    if (!dir)
        return im_fail_errno(ctx, "%s: the directory of clusters cannot be read", clusters_dir);
    size_t cap = 0;
    *n = 0;
    *names = NULL;
    for (struct dirent *e; (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 5, ".yaml"))
            continue;
        if (*n == cap) {
            const char **more = IM_ARENA_NEW(a, const char *, cap ? 2 * cap : 16);
            if (!more)
                break;
            if (*n)
                memcpy(more, *names, sizeof *more * *n);
            *names = more;
            cap = cap ? 2 * cap : 16;
        }
        (*names)[(*n)++] = im_arena_printf(a, "%.*s", (int)len - 5, e->d_name);
    }
    closedir(dir);
    if (*n)
        qsort(*names, *n, sizeof **names, by_name);
    return IM_OK;
}
