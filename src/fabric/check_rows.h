/* The functions behind the rows of the table, one file a subject. */
#ifndef IM_FABRIC_CHECK_ROWS_H
#define IM_FABRIC_CHECK_ROWS_H

#include "fabric/check.h"

#define IM_CHECK_HOST_ROW(name) void im_check_##name(const im_check_host *h, const im_check_options *o, im_check_result *r)
#define IM_CHECK_BETWEEN_ROW(name) void im_check_##name(const im_check_host *const *h, size_t n, im_check_result *r)

/* Walks all ports of a host: d and p are set. */
#define IM_EACH_PORT(h)                                                                                    \
    for (const im_rdma_device *d = (h)->m->rdma, *dend = (h)->m->rdma + (h)->m->nrdma; d && d < dend; d++) \
        for (const im_rdma_port *p = d->port, *pend = d->port + d->nports; p && p < pend; p++)

/* check_port.c */
IM_CHECK_HOST_ROW(rdma_devices);
IM_CHECK_HOST_ROW(port_down);
IM_CHECK_HOST_ROW(subnet_manager);
IM_CHECK_HOST_ROW(link_rate);
IM_CHECK_HOST_ROW(rate_named);
IM_CHECK_HOST_ROW(expect);
IM_CHECK_HOST_ROW(mtu);
IM_CHECK_HOST_ROW(firmware);

/* check_counters.c */
IM_CHECK_HOST_ROW(link_errors);
IM_CHECK_HOST_ROW(link_flaps);
IM_CHECK_HOST_ROW(loss);
IM_CHECK_HOST_ROW(fatal);
IM_CHECK_HOST_ROW(congestion);

/* check_gid.c */
IM_CHECK_HOST_ROW(roce_v2);
IM_CHECK_HOST_ROW(gid_choice);
IM_CHECK_HOST_ROW(bootstrap);
IM_CHECK_HOST_ROW(variables);

/* check_pcie.c */
IM_CHECK_HOST_ROW(pcie_link);
IM_CHECK_HOST_ROW(pcie_feeds);
IM_CHECK_HOST_ROW(relaxed_order);
IM_CHECK_HOST_ROW(acs);
IM_CHECK_HOST_ROW(iommu);
IM_CHECK_HOST_ROW(gpu_direct);
IM_CHECK_HOST_ROW(pairing);
IM_CHECK_HOST_ROW(numa_spread);

/* check_system.c */
IM_CHECK_HOST_ROW(memlock);
IM_CHECK_HOST_ROW(shm);
IM_CHECK_HOST_ROW(dev_infiniband);
IM_CHECK_HOST_ROW(numa_balancing);
IM_CHECK_HOST_ROW(governor);
IM_CHECK_HOST_ROW(readable);

/* check_qos.c */
IM_CHECK_HOST_ROW(qos_trust);
IM_CHECK_HOST_ROW(qos_pfc);
IM_CHECK_HOST_ROW(qos_dscp);
IM_CHECK_HOST_ROW(qos_ecn);
IM_CHECK_HOST_ROW(qos_class);

/* check_lanes.c */
IM_CHECK_HOST_ROW(ib_sl);
IM_CHECK_HOST_ROW(ib_lanes);

/* check_between.c */
IM_CHECK_BETWEEN_ROW(hosts_devices);
IM_CHECK_BETWEEN_ROW(hosts_firmware);
IM_CHECK_BETWEEN_ROW(hosts_driver);
IM_CHECK_BETWEEN_ROW(hosts_rate);
IM_CHECK_BETWEEN_ROW(hosts_mtu);
IM_CHECK_BETWEEN_ROW(hosts_gid);
IM_CHECK_BETWEEN_ROW(hosts_qos);
IM_CHECK_BETWEEN_ROW(hosts_env);
IM_CHECK_BETWEEN_ROW(hosts_system);

#endif
