/* Clock, cores, memory: what this process may use, cgroups v1 and v2 included. */
#include "base/machine.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double im_clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reads a small file as text; false when it is not there. */
static bool read_small(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    ssize_t n;
    while (used + 1 < size && (n = read(fd, buf + used, size - 1 - used)) > 0)
        used += (size_t)n;
    buf[used] = 0;
    close(fd);
    return used > 0;
}

/* The number behind "KEY:" in a /proc file, or fallback. */
static uint64_t proc_value(const char *path, const char *key, uint64_t fallback)
{
    char buf[8192];
    if (!read_small(path, buf, sizeof buf))
        return fallback;
    size_t n = strlen(key);
    for (char *line = buf; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ':')
            return strtoull(line + n + 1, NULL, 10);
        if (!*line)
            break;
    }
    return fallback;
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == 0))
            return true;
    return false;
}

/* The process's path in the hierarchy of `controller` (v1), or in the unified one (v2: controller NULL). */
static bool cgroup_path(const char *root, const char *controller, char *out, size_t size)
{
    char path[PATH_MAX], buf[8192];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_small(path, buf, sizeof buf))
        return false;
    char *save = NULL;
    for (char *line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':');
        char *where = list ? strchr(list + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = 0;
        if (controller ? has_word(list + 1, controller) : list[1] == 0) {
            snprintf(out, size, "%s", where);
            return true;
        }
    }
    return false;
}

/* Where that hierarchy is mounted, and which of its directories the mount shows at its top. */
static bool cgroup_mount(const char *root, const char *controller, char *mount, char *top, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool found = false;
    char *line = NULL;
    size_t cap = 0;
    while (!found && getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *dash = strstr(line, " - "), *save = NULL;
        if (!dash)
            continue;
        *dash = 0;
        char *type = strtok_r(dash + 3, " ", &save);
        strtok_r(NULL, " ", &save);
        char *options = strtok_r(NULL, " ", &save);
        if (!type || strcmp(type, controller ? "cgroup" : "cgroup2") != 0 || (controller && (!options || !has_word(options, controller))))
            continue;
        char *field[5] = {0};
        save = NULL;
        for (int i = 0; i < 5; i++)
            field[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (field[4]) {
            snprintf(top, size, "%s", field[3]);
            snprintf(mount, size, "%s", field[4]);
            found = true;
        }
    }
    free(line);
    fclose(f);
    return found;
}

/* Calls visit on every directory from the process's cgroup up to the mount. Limits bind at every level. */
static void cgroup_walk(const char *root, const char *controller, void (*visit)(const char *dir, void *arg), void *arg)
{
    char where[PATH_MAX], mount[PATH_MAX], top[PATH_MAX], dir[3 * PATH_MAX];
    if (!cgroup_path(root, controller, where, sizeof where) || !cgroup_mount(root, controller, mount, top, sizeof mount))
        return;
    const char *below = where;
    size_t n = strlen(top);
    if (n > 1 && strncmp(where, top, n) == 0 && (where[n] == '/' || where[n] == 0))
        below = where + n; /* a container sees only its own part of the tree */
    size_t least = (size_t)snprintf(dir, sizeof dir, "%s%s", root, mount);
    snprintf(dir + least, sizeof dir - least, "%s", below);
    for (;;) {
        visit(dir, arg);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < least)
            return;
        *slash = 0;
    }
}

static void visit_cpu_v2(const char *dir, void *arg)
{
    char path[4 * PATH_MAX], buf[64];
    double quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_small(path, buf, sizeof buf) && sscanf(buf, "%lf %lf", &quota, &period) == 2 && period > 0 && quota / period < *(double *)arg)
        *(double *)arg = quota / period;
}

static void visit_cpu_v1(const char *dir, void *arg)
{
    char path[4 * PATH_MAX], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!read_small(path, quota, sizeof quota))
        return;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (!read_small(path, period, sizeof period))
        return;
    double q = strtod(quota, NULL), p = strtod(period, NULL);
    if (q > 0 && p > 0 && q / p < *(double *)arg)
        *(double *)arg = q / p;
}

static void visit_memory(const char *dir, const char *file, uint64_t *least)
{
    char path[4 * PATH_MAX], buf[64], *end;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!read_small(path, buf, sizeof buf))
        return;
    uint64_t x = strtoull(buf, &end, 10);
    if (end != buf && x < *least) /* "max" is no number */
        *least = x;
}

static void visit_memory_v2(const char *dir, void *arg)
{
    visit_memory(dir, "memory.max", arg);
}

static void visit_memory_v1(const char *dir, void *arg)
{
    visit_memory(dir, "memory.limit_in_bytes", arg);
}

int im_machine_quota_cores_under(const char *root)
{
    double cores = INT_MAX;
    cgroup_walk(root, NULL, visit_cpu_v2, &cores);
    cgroup_walk(root, "cpu", visit_cpu_v1, &cores);
    if (cores >= INT_MAX)
        return INT_MAX;
    return cores < 1 ? 1 : (int)cores; /* a thread that would be throttled makes the others of a team wait */
}

size_t im_machine_memory_under(const char *root)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib = proc_value(path, "MemTotal", 0);
    uint64_t least = kib ? kib * 1024 : (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); /* a chroot without /proc */
    cgroup_walk(root, NULL, visit_memory_v2, &least);
    cgroup_walk(root, "memory", visit_memory_v1, &least);
    return least > SIZE_MAX ? SIZE_MAX : (size_t)least;
}

static int affinity_cores(void)
{
    for (int most = 1024; most <= 1 << 20; most *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)most);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE((size_t)most);
        int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0)
            return n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int im_machine_cores(void)
{
    int may = affinity_cores(), quota = im_machine_quota_cores_under("");
    return quota < may ? quota : may;
}

size_t im_machine_memory(void)
{
    return im_machine_memory_under("");
}

size_t im_process_rss(void)
{
    char buf[256];
    unsigned long total, resident;
    if (!read_small("/proc/self/statm", buf, sizeof buf) || sscanf(buf, "%lu %lu", &total, &resident) != 2)
        return 0;
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

size_t im_process_rss_peak(void)
{
    return (size_t)proc_value("/proc/self/status", "VmHWM", 0) * 1024;
}
