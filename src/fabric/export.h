/* imece fabric export: what a machine's fabric is and counts, as Prometheus text.
 *
 * The names of node_exporter's infiniband collector are used where it has them, with its labels (device, port) and units; what it lacks
 * is called imece_fabric_*. Base units: bytes, seconds, ratios of 1. What cannot be read gives no sample, never 0.
 */
#ifndef IM_FABRIC_EXPORT_H
#define IM_FABRIC_EXPORT_H

#include "fabric/check.h"
#include "observe/prometheus.h"

typedef struct im_export_options {
    const char *root;          /* as im_root_open takes it */
    bool beside_node_exporter; /* leave out what node_exporter exports itself: the same series twice fails its whole scrape */
    const char *nccl;          /* directory of the inspector plug-in's files; NULL: none */
    const char *run;           /* directory of a training run; NULL: none */
    double expect_gbps;        /* of the check `expect`: what each active port must have; 0: not asked */
    double nccl_age;           /* files older than so many seconds are left out; 0: none is too old */
} im_export_options;

/* Two readings of the counters give how busy a PCIe link is: the exporter keeps earlier ones. */
typedef struct im_exporter im_exporter;

im_status im_exporter_create(im_context *ctx, const im_export_options *o, im_exporter **out) IM_MUST_CHECK;
void im_exporter_destroy(im_exporter *x); /* NULL is allowed */
/* Reads everything now (seconds: a clock that never goes back) and appends the text. Readings less than half a second apart are compared
 * with the one before the last. */
im_status im_exporter_collect(im_context *ctx, im_exporter *x, double seconds, im_str *out) IM_MUST_CHECK;

/* ---- parts -------------------------------------------------------------------------------------------- */

/* A counter's file and its metric in node_exporter's infiniband collector. */
typedef struct im_export_counter {
    const char *file;
    bool hw; /* in hw_counters */
    const char *metric;
    unsigned scale; /* of the file's unit: 4 for words of 4 bytes */
    const char *help;
} im_export_counter;

/* NULL: node_exporter has none for it. */
const im_export_counter *im_export_counter_find(const char *file, bool hw);

/* The earlier reading that PCIe use is measured against; before NULL: there is none. */
void im_export_machine(im_prom *p, const im_machine *m, const im_machine *before, double seconds, bool beside_node_exporter);
/* Ports: state, rate, counters, GIDs. */
void im_export_port(im_prom *p, const im_rdma_device *d, const im_rdma_port *port, bool beside_node_exporter);
/* PCIe links of cards and GPUs, and how busy the cards' are. */
void im_export_pcie(im_prom *p, const im_machine *m, const im_machine *before, double seconds);

/* Bytes of payload per second and direction that a PCIe link can carry: after the encoding, in packets of 256 bytes with 24 bytes around
 * each (framing, header, checksum); at 64 GT/s and above the flits' overhead is in the encoding already. 0: unknown. */
double im_export_pcie_usable(double gts, int64_t width);

/* Adds the samples of all *.prom files in dir, in base units. now: seconds since the epoch. A file that is no such text is counted and
 * left out whole. IM_ERR_IO: there is no such directory. */
im_status im_export_nccl(im_context *ctx, im_arena *a, im_prom *p, const char *dir, double now, double age) IM_MUST_CHECK;
/* imece_fabric_check_*: the verdict of each check of one machine. */
im_status im_export_checks(im_context *ctx, im_arena *a, im_prom *p, const im_check_host *h, double expect_gbps) IM_MUST_CHECK;
/* The last step in dir/metrics.jsonl: imece_train_*. A run that has no step yet has no sample. IM_ERR_IO: there is no such directory. */
im_status im_export_run(im_context *ctx, im_arena *a, im_prom *p, const char *dir) IM_MUST_CHECK;
/* The file's text; false: no whole line near its end is a step. quiet: its error slot is used up. */
bool im_export_run_text(im_prom *p, im_context *quiet, const char *text, size_t n);
/* One file's text; false: it is not of this format, *why says what and in which line. */
bool im_export_nccl_text(im_arena *a, im_prom *p, const char *text, size_t n, const char **why);

#endif
