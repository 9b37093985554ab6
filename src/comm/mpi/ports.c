/* ports: see the header. Files and units: the kernel's Documentation/ABI/stable/sysfs-class-infiniband. */
#include "comm/mpi/ports.h"
#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ACTIVE = 4, IP_OVER_INFINIBAND = 32 }; /* of a port's state; a network interface's type */

/* The number that a file begins with. */
static bool number(const char *path, uint64_t *out)
{
    char text[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9')
        return false;
    text[n] = '\0';
    *out = strtoull(text, NULL, 10);
    return true;
}

/* Octets in words of four; octets (bnxt_re, efa); packets (rxe). */
static bool sent(const char *port, uint64_t *bytes)
{
    static const struct {
        const char *file;
        uint64_t unit;
    } counters[] = {{"counters/port_xmit_data", 4}, {"hw_counters/tx_bytes", 1}, {"hw_counters/sent_pkts", 4096}};
    char path[PATH_MAX];
    for (size_t i = 0; i < IM_COUNT_OF(counters); i++) {
        uint64_t n;
        snprintf(path, sizeof path, "%s/%s", port, counters[i].file);
        if (number(path, &n)) {
            *bytes = n * counters[i].unit;
            return true;
        }
    }
    return false;
}

static void read_port(const char *sys, const char *device, const char *port, im_mpi_ports *out)
{
    char at[512], path[PATH_MAX];
    uint64_t state, bytes;
    im_mpi_port *p = &out->port[out->n];
    if (out->n == IM_MPI_PORTS || snprintf(p->name, sizeof p->name, "%s/%s", device, port) >= (int)sizeof p->name ||
        snprintf(at, sizeof at, "%s/class/infiniband/%s/ports/%s", sys, device, port) >= (int)sizeof at)
        return;
    snprintf(path, sizeof path, "%s/state", at);
    if (!number(path, &state) || state != ACTIVE || !sent(at, &bytes))
        return;
    p->bytes = bytes;
    out->n++;
}

/* The next name of a directory that is not hidden. */
static const char *next(DIR *d)
{
    struct dirent *e = d ? readdir(d) : NULL;
    while (e && e->d_name[0] == '.')
        e = readdir(d);
    return e ? e->d_name : NULL;
}

static void read_device(const char *sys, const char *device, im_mpi_ports *out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/class/infiniband/%s/ports", sys, device);
    DIR *d = opendir(path);
    for (const char *port; (port = next(d));)
        read_port(sys, device, port, out);
    if (d)
        closedir(d);
}

static uint64_t ip_over_infiniband(const char *sys)
{
    char path[PATH_MAX];
    uint64_t all = 0, value;
    snprintf(path, sizeof path, "%s/class/net", sys);
    DIR *d = opendir(path);
    for (const char *card; (card = next(d));) {
        snprintf(path, sizeof path, "%s/class/net/%s/type", sys, card);
        if (!number(path, &value) || value != IP_OVER_INFINIBAND)
            continue;
        snprintf(path, sizeof path, "%s/class/net/%s/statistics/tx_bytes", sys, card);
        all += number(path, &value) ? value : 0;
    }
    if (d)
        closedir(d);
    return all;
}

void im_mpi_ports_read(const char *sys, im_mpi_ports *out)
{
    char path[PATH_MAX];
    *out = (im_mpi_ports){.ip = ip_over_infiniband(sys)};
    snprintf(path, sizeof path, "%s/class/infiniband", sys);
    DIR *d = opendir(path);
    for (const char *device; (device = next(d));)
        read_device(sys, device, out);
    if (d)
        closedir(d);
}

const im_mpi_port *im_mpi_ports_busiest(const im_mpi_ports *before, const im_mpi_ports *after, uint64_t *bytes)
{
    const im_mpi_port *best = after->n ? &after->port[0] : NULL;
    uint64_t most = 0, ip = after->ip > before->ip ? after->ip - before->ip : 0;
    for (int i = 0; i < after->n; i++)
        for (int k = 0; k < before->n; k++)
            if (!strcmp(after->port[i].name, before->port[k].name) && after->port[i].bytes > before->port[k].bytes + most) {
                best = &after->port[i];
                most = after->port[i].bytes - before->port[k].bytes;
            }
    *bytes = most > ip ? most - ip : 0;
    return best;
}
