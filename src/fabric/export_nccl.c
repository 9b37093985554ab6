/* The files of NCCL's inspector plug-in (ext-profiler/inspector, NCCL_INSPECTOR_PROM_DUMP=1): one for each GPU, Prometheus text without
 * HELP and TYPE, times in microseconds and rates in GB/s. Here they get both, and base units. */
#include "fabric/export.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE ((size_t)16 << 20)
#define MAX_FILES 4096

/* Ends of names in other units than Prometheus's. */
static const struct unit {
    const char *end, *base;
    double scale;
} units[] = {
    {"_time_microseconds", "_seconds", 1e-6}, {"_microseconds", "_seconds", 1e-6}, {"_time_us", "_seconds", 1e-6},     {"_us", "_seconds", 1e-6},
    {"_milliseconds", "_seconds", 1e-3},      {"_ms", "_seconds", 1e-3},           {"_gbs", "_bytes_per_second", 1e9},
};

static const struct about {
    const char *name, *help;
} abouts[] = {
    {"nccl_bus_bandwidth_bytes_per_second", "Bus bandwidth of a collective, as nccl-tests defines it (NCCL inspector)."},
    {"nccl_collective_exec_seconds", "Time of a collective (NCCL inspector)."},
    {"nccl_p2p_bus_bandwidth_bytes_per_second", "Bandwidth of a send or receive (NCCL inspector)."},
    {"nccl_p2p_exec_seconds", "Time of a send or receive (NCCL inspector)."},
};

/* The name and the value in base units. */
static const char *in_base_units(im_arena *a, const char *name, double *value)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < IM_COUNT_OF(units); i++) {
        const size_t end = strlen(units[i].end);
        if (n > end && strcmp(name + n - end, units[i].end) == 0) {
            *value *= units[i].scale;
            return im_arena_printf(a, "%.*s%s", (int)(n - end), name, units[i].base);
        }
    }
    return name;
}

static bool ends(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static const char *help_of(const char *name)
{
    for (size_t i = 0; i < IM_COUNT_OF(abouts); i++)
        if (strcmp(abouts[i].name, name) == 0)
            return abouts[i].help;
    return "As NCCL's inspector plug-in wrote it.";
}

static void add(im_arena *a, im_prom *p, const im_prom_line *line)
{
    double value = line->value;
    const char *name = in_base_units(a, line->name, &value);
    const im_prom_kind kind = !name || !ends(name, "_total") ? IM_PROM_GAUGE : IM_PROM_COUNTER;
    if (name && isfinite(value))
        im_prom_add(p, im_prom_find(p, name, kind, help_of(name)), line->label, line->nlabels, value);
}

/* fn is called with each line; stops at the first that is bad. */
static bool each_line(im_arena *a, im_prom *p, const char *text, size_t n, bool keep, const char **why)
{
    for (size_t at = 0, number = 1; at < n; number++) {
        const char *newline = memchr(text + at, '\n', n - at);
        const size_t end = newline ? (size_t)(newline - text) : n;
        im_prom_line line;
        const char *what = NULL;
        const int got = im_prom_parse_line(a, text + at, end - at, &line, &what);
        if (got == 1 && strncmp(line.name, "nccl_", 5) != 0)
            what = "a name that does not begin with nccl_";
        if (got < 0 || what) {
            *why = im_arena_printf(a, "line %zu: %s", number, what);
            return false;
        }
        if (got == 1 && keep)
            add(a, p, &line);
        at = end + 1;
    }
    return true;
}

bool im_export_nccl_text(im_arena *a, im_prom *p, const char *text, size_t n, const char **why)
{
    return each_line(a, p, text, n, false, why) && each_line(a, p, text, n, true, why); /* a bad file adds nothing */
}

/* ---- the directory -------------------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t read, old, bad;
} tally;

static im_status one_file(im_context *ctx, im_arena *a, im_prom *p, const char *path, double now, double age, tally *t)
{
    struct stat st;
    char *text = NULL;
    size_t n;
    const char *why;
    im_context *quiet; /* a file that vanished or is unreadable is counted, and is no error of the whole */
    if (stat(path, &st) != 0)
        return IM_OK; /* its writer renames it */
    if (age > 0 && now - ((double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec / 1e9) > age) {
        t->old++;
        return IM_OK;
    }
    IM_TRY(im_context_create(&quiet));
    const im_status status = im_file_read(quiet, path, MAX_FILE, &text, &n);
    if (status != IM_OK) {
        t->bad++;
        im_log(ctx, IM_LOG_WARN, "export", "%s", im_error_text(quiet));
    } else if (!im_export_nccl_text(a, p, text, n, &why)) {
        t->bad++;
        im_log(ctx, IM_LOG_WARN, "export", "%s: %s: left out", path, why ? why : "no memory");
    } else {
        t->read++;
    }
    free(text);
    im_context_destroy(quiet);
    return IM_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static im_status list(im_context *ctx, im_arena *a, const char *dir, const char ***names, size_t *n)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    im_status status = IM_OK;
    *n = 0;
    *names = IM_ARENA_NEW(a, const char *, MAX_FILES);
    if (!d)
        return im_fail_errno(ctx, "%s: cannot be opened as the directory of NCCL's inspector plug-in", dir);
    while (*names && status == IM_OK && (e = readdir(d)))
        if (ends(e->d_name, ".prom") && *e->d_name != '.') {
            if (*n == MAX_FILES)
                status = im_fail(ctx, IM_ERR_FORMAT, "%s: more than %d files", dir, MAX_FILES);
            else if (!((*names)[(*n)++] = im_arena_printf(a, "%s/%s", dir, e->d_name)))
                *names = NULL;
        }
    closedir(d);
    if (!*names)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for its names", dir);
    qsort(*names, *n, sizeof **names, by_text);
    return status;
}

im_status im_export_nccl(im_context *ctx, im_arena *a, im_prom *p, const char *dir, double now, double age)
{
    const char **names;
    size_t n;
    tally t = {0};
    IM_TRY(list(ctx, a, dir, &names, &n));
    for (size_t i = 0; i < n; i++)
        IM_TRY(one_file(ctx, a, p, names[i], now, age, &t));
    im_prom_family *f = im_prom_find(p, "imece_fabric_nccl_files", IM_PROM_GAUGE,
                                     "Files of NCCL's inspector plug-in: read, too old (its job ended), or not of its format.");
    const struct {
        const char *state;
        uint64_t count;
    } rows[] = {{"read", t.read}, {"old", t.old}, {"bad", t.bad}};
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++)
        im_prom_add_count(p, f, &(im_prom_label){"state", rows[i].state}, 1, rows[i].count);
    return IM_OK;
}
