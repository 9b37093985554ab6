/* Virtual lanes of InfiniBand: which lane a service level takes and how lanes share a link, out of smpquery's output and of OpenSM's files.
 *
 *     SL (0 to 15, chosen by the sender)  ->  SL2VL table of each port  ->  VL (0 to 14; 15 is management's, and drops data)
 *     VL -> two arbitration lists of (VL, weight in 64 bytes); the high one goes first until VLHighLimit x 4 KiB have passed
 *
 * Pure functions of texts; any bytes are allowed. Formats: infiniband-diags (smpquery), OpenSM's opensm.conf and qos-policy.conf.
 */
#ifndef IM_FABRIC_LANES_H
#define IM_FABRIC_LANES_H

#include "base/base.h"

enum { IM_LANES_SL = 16, IM_LANES_VL = 16 };

typedef struct im_lanes {
    bool map_known, weights_known;
    int vl[IM_LANES_SL];                     /* -1: not told */
    int high[IM_LANES_VL], low[IM_LANES_VL]; /* weights, summed over the list; 0: the lane is not in it */
    int qos;                                 /* opensm.conf: qos TRUE 1, FALSE 0, -1: not told */
} im_lanes;

void im_lanes_init(im_lanes *out);
/* "ports: in  0, out  0: | 0| 1| ..." : the first row. False: there is none. */
bool im_lanes_sl2vl(const char *text, im_lanes *out);
/* "# Low priority VL Arbitration Table:", then "VL    : |0x0 |..." and "WEIGHT: |0x4 |...". */
bool im_lanes_vlarb(const char *text, im_lanes *out);
/* opensm.conf: qos, and qos_ca_sl2vl, qos_ca_vlarb_high, qos_ca_vlarb_low, where these are unset those without _ca. With qos TRUE and
 * nothing said, OpenSM's defaults. */
void im_lanes_opensm(const char *text, im_lanes *out);

/* Who gets a service level by OpenSM's policy. */
typedef struct im_lanes_policy {
    int fallback;          /* of all others; -1: not told */
    int storage;           /* of the first rule for storage: srp, iser, or a service-id of NFS, iSER, NVMe-oF or Lustre; -1: none */
    char storage_rule[80]; /* that rule */
} im_lanes_policy;
/* The section qos-ulps of qos-policy.conf. */
void im_lanes_policy_parse(const char *text, im_lanes_policy *out);

/* The lines of opensm.conf and qos-policy.conf that put training (its SL) on a lane ahead of storage's. */
void im_lanes_fragment(int training_sl, int storage_sl, im_str *out);
/* A free service level for training beside storage's. */
int im_lanes_free_sl(int storage_sl);

#endif
