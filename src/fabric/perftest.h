/* What perftest (ib_write_bw, ib_read_lat) prints, what a link must give, and who is to blame when it does not.
 *
 * Pure functions. Formats: perftest's src/perftest_parameters.h; units Gb/s (10^9 bits), and MiB/s, which older releases call MB/sec.
 */
#ifndef IM_FABRIC_PERFTEST_H
#define IM_FABRIC_PERFTEST_H

#include "base/base.h"

typedef struct im_perf {
    bool known;         /* there is a row of results */
    bool latency;       /* it was a latency test */
    uint64_t bytes;     /* of the largest size */
    double gbps;        /* average; bandwidth tests */
    double peak_gbps;   /* 0: not measured (-D, or many iterations) */
    double typical_us;  /* latency tests: the median; of -D: the average */
    double p99_us;      /* 0: not told */
    int mtu;            /* bytes; 0: not told */
    bool ethernet;      /* Link type */
    char error[160];    /* not known: the line that says why, "" where there is none */
    bool not_listening; /* ... it says that nobody listened yet */
} im_perf;

/* Output of a client, stdout and stderr together. Any bytes are allowed. */
void im_perf_parse(const char *text, im_perf *out);

/* Payload that a link of that data rate carries with RDMA MTU `mtu` (0: 4096): each packet has 82 bytes of headers and gaps on RoCE v2 over
 * IPv4 (preamble 8, gap 12, Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4, FCS 4) and 26 on InfiniBand (LRH, BTH, ICRC, VCRC). */
double im_perf_expected(double data_gbps, int mtu, bool ethernet);

/* ---- many pairs ------------------------------------------------------------------------------- */

/* Round r (0 <= r < im_perf_rounds(n)) of a tournament of n hosts: all meet all, nobody is in two matches of a round (the circle method).
 * Writes the pairs as a[i], b[i]; both have n / 2 + 1 places. Returns how many there are. */
size_t im_perf_rounds(size_t n);
size_t im_perf_round(size_t n, size_t r, size_t *a, size_t *b);

typedef struct im_perf_match {
    size_t from, to; /* hosts: who sent */
    size_t rail;
    double share; /* measured over expected; negative: nothing was measured */
} im_perf_match;

typedef enum im_perf_guilty { IM_PERF_HOST, IM_PERF_HOST_RAIL, IM_PERF_PATH, IM_PERF_PAIR } im_perf_guilty;

typedef struct im_perf_blame {
    im_perf_guilty who; /* HOST: on all its rails. HOST_RAIL: one card, cable or port. PATH: between two that are fast with others. PAIR: of two,
                           and nobody else to compare with */
    size_t host, other; /* other: PATH and PAIR */
    size_t rail;
    int direction;        /* 1: when it sends alone, -1: when it receives alone, 0: both */
    double worst;         /* share */
    size_t slow, matches; /* how many of its matches are slow */
} im_perf_blame;

/* Matches with a share below `least` are slow. A host with two slow matches or more, and three quarters of those with hosts that are not blamed,
 * is the cause of them; it is taken out, and so on. *n of *out. */
im_status im_perf_judge(im_context *ctx, im_arena *a, const im_perf_match *m, size_t nmatches, size_t hosts, size_t rails, double least,
                        im_perf_blame **out, size_t *n) IM_MUST_CHECK;

#endif
