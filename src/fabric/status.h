/* What `imece fabric status` shows: a machine's devices, ports, GPUs, net devices and limits, as text and as JSON; and the rates
 * that two samples of the counters give. Fields and words are those of ibstat and `rdma link` where these have them.
 */
#ifndef IM_FABRIC_STATUS_H
#define IM_FABRIC_STATUS_H

#include "topology/graph.h"

typedef struct im_look {
    bool colour;
    int columns; /* of the terminal */
} im_look;

/* Words before and after a text in colour; all of them "" without. */
typedef struct im_paint {
    const char *bad, *warn, *good, *faint, *bold, *off;
} im_paint;
im_paint im_paint_of(const im_look *look);

im_status im_status_text(im_context *ctx, im_arena *a, const im_machine *m, const im_look *look, im_str *out) IM_MUST_CHECK;
im_status im_status_json(im_context *ctx, im_arena *a, const im_machine *m, im_str *out) IM_MUST_CHECK;

/* "Active", "Initializing" ... and "LinkUp", "Polling" ... as ibstat writes the numbers of sysfs; "???" for others. */
const char *im_port_state_ibstat(int64_t state);
const char *im_port_phys_ibstat(int64_t phys);
/* The low 8 bytes of GID 0, as ibstat takes it; NULL: there is none. */
const char *im_port_guid(im_arena *a, const im_rdma_port *port);
/* "505400fffe770001" of "5054:00ff:fe77:0001"; NULL: not so written. */
const char *im_guid_plain(im_arena *a, const char *sysfs);

/* It is up, has an address (or nobody could tell), and is neither loopback nor one of containers' and bridges' devices. */
bool im_net_is_bootstrap(const im_net *n);

/* ---- counters and rates --------------------------------------------------------------------------- */

typedef enum im_counter_class {
    IM_COUNTER_OTHER,
    IM_COUNTER_BYTES, /* in units of 4 bytes */
    IM_COUNTER_PACKETS,
    IM_COUNTER_LINK, /* errors of the link */
    IM_COUNTER_LOSS, /* retransmissions, timeouts, packets out of sequence */
    IM_COUNTER_CONGESTION,
    IM_COUNTER_RECEIVER, /* the receiver was not ready */
    IM_COUNTER_FATAL     /* a connection ended by it */
} im_counter_class;

typedef struct im_counter_about {
    const char *name;
    im_counter_class kind;
    int bits;            /* width of a PMA counter, which stays at its greatest value; 0: it wraps at 64 */
    const char *meaning; /* one clause */
} im_counter_about;

/* NULL: not in the table. */
const im_counter_about *im_counter_find(const char *name);
/* The counter stands at the greatest value that it can have: it counts no more until somebody clears it. */
bool im_counter_is_pegged(const im_counter *c);
/* Errors of every class but packets, bytes and congestion. */
bool im_counter_is_error(const im_counter_about *about);

typedef struct im_port_rates {
    double seconds;
    double tx_bits, rx_bits;       /* per second; negative: unknown */
    double tx_packets, rx_packets; /* per second; negative: unknown */
    double congestion;             /* marks, notifications and waits, per second; negative: unknown */
    uint64_t errors;               /* how often any error counter rose */
    uint64_t errors_standing;      /* sum of the error counters */
    const char *worst;             /* the error counter that rose most; NULL: none rose */
    uint64_t worst_by;
    bool reset; /* a counter went back: it was cleared, or it wrapped */
} im_port_rates;

/* A counter that went back gives nothing for this interval (32-bit hardware counters: the wrapped difference). */
void im_port_rates_of(const im_rdma_port *before, const im_rdma_port *after, double seconds, im_port_rates *out);
/* One line for each port: state, rate, bits per second both ways, share of the link, packets, errors (red where they rise). */
void im_rates_text(const im_machine *m, const im_port_rates *rates, const im_look *look, im_str *out);
/* The same as a JSON line. rates: one for each port of each device, in order. */
void im_rates_json(const im_machine *m, const im_port_rates *rates, double seconds, im_str *out);

#endif
