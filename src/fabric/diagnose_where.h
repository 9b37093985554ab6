/* Where a line of a log comes from: time, host, process, rank, by the prefixes that NCCL, UCX, Open MPI, PyTorch, launchers, Kubernetes and the
 * kernel write. Internal to src/fabric. */
#ifndef IM_FABRIC_DIAGNOSE_WHERE_H
#define IM_FABRIC_DIAGNOSE_WHERE_H

#include "base/base.h"

typedef struct im_log_where {
    double time;   /* seconds since 1970, UTC where the line says its zone; NAN: none in the line */
    double uptime; /* the kernel's own clock, seconds; NAN */
    int rank;      /* -1: not said */
    int pid;       /* -1 */
    char host[64]; /* "": not said */
} im_log_where;

/* `at`: where in the line the message was found; of two messages in one line the prefix before it counts. */
void im_log_where_read(const char *line, size_t n, size_t at, im_log_where *out);
/* "2026-12-01 12:00:00.123" into buf (32 bytes); returns buf. */
const char *im_log_time_text(double time, char *buf, size_t n);
/* An unsigned number at *at, which moves behind it; false: none there, or above 2^53. */
bool im_log_number(const char *s, size_t n, size_t *at, int64_t *out);

#endif
