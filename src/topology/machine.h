/* One machine as its sysfs, procfs and /dev tell it: RDMA devices and ports, PCI functions, GPUs, net devices, limits.
 *
 * Read once into an arena; the struct is plain and stays as long as the arena. Every value is an im_reading: its path,
 * its text, its number, or why it is not known. Nothing here judges: checks do (src/fabric). The files are those of the
 * kernel's ABI (Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-bus-pci, testing/sysfs-class-net).
 *
 * A bundle may carry outputs of commands that sysfs has no file for, in its folder IM_BUNDLE_DIR (below the root):
 *   ip-addr.json  ip -j addr        ibv_devinfo.txt  ibv_devinfo -v        rdma-link.json  rdma -j link
 * They are read where they are; nothing is run here.
 */
#ifndef IM_TOPOLOGY_MACHINE_H
#define IM_TOPOLOGY_MACHINE_H

#include "topology/root.h"

#define IM_BUNDLE_DIR "/commands"

/* ---- PCI ---------------------------------------------------------------------------------- */

typedef enum im_acs { IM_ACS_UNKNOWN, IM_ACS_NONE, IM_ACS_OFF, IM_ACS_ON } im_acs; /* NONE: the function has no such capability */

typedef struct im_pci {
    const char *address;     /* "0000:17:00.0" */
    const char *path;        /* below the root, links followed: "/sys/devices/pci0000:16/..." */
    const char *host_bridge; /* "pci0000:16"; NULL: not in the path */
    const char **bridge;     /* addresses of the bridges above it, the root port first */
    size_t nbridges;
    im_reading vendor, device, pci_class;          /* numbers */
    im_reading subsystem_vendor, subsystem_device; /* numbers */
    im_reading numa_node;                          /* number; -1 is the kernel's "not told" */
    im_reading local_cpus;                         /* "0-31,64-95" */
    im_reading link_speed, link_speed_max;         /* "32.0 GT/s PCIe" */
    im_reading link_width, link_width_max;         /* numbers; 0 and 255 mean that there is no link */
    double gts, gts_max;                           /* GT/s per lane; 0: unknown */
    im_reading driver, iommu_group;                /* "mlx5_core", "42" */
    bool is_bridge, is_vf;
    im_acs acs;
    const char *acs_why;  /* of IM_ACS_UNKNOWN */
    uint16_t acs_control; /* bits of the control register: 0 SrcValid, 2 ReqRedir, 3 CmpltRedir, 4 UpstreamFwd ... */
} im_pci;

/* Bytes per second per direction after the encoding (8b/10b up to 5 GT/s, then 128b/130b); 0: unknown. */
double im_pci_rate(double gts, int64_t width);

/* ---- RDMA -------------------------------------------------------------------------------------- */

typedef struct im_gid {
    int index;
    unsigned char raw[16];
    const char *text;    /* as sysfs writes it */
    const char *address; /* "10.0.1.2" of an IPv4-mapped one, else as IPv6 addresses are written */
    bool is_ipv4, is_link_local;
    int roce; /* 1, 2; 0: not RoCE, or the type cannot be read */
    im_reading type, ndev;
} im_gid;

typedef struct im_pkey {
    int index;
    uint16_t value; /* the top bit is full membership */
} im_pkey;

typedef struct im_counter {
    const char *name;
    const char *path; /* below the root */
    bool hw;          /* hw_counters, else counters */
    bool known;
    uint64_t value;  /* as the file says it: port_xmit_data and port_rcv_data in units of 4 bytes */
    const char *why; /* not known: why */
} im_counter;

typedef struct im_rate {
    double gbps;       /* as printed: signalling for SDR, DDR, QDR; 0: unknown */
    double data_gbps;  /* after the line's encoding; equal on Ethernet */
    int width;         /* lanes; 0: not told */
    const char *speed; /* "SDR" ... "XDR"; NULL: not told */
} im_rate;

typedef struct im_rdma_port {
    int number;
    const char *path;             /* below the root */
    im_reading state, phys_state; /* numbers: 4 is ACTIVE, 5 is LinkUp; text "4: ACTIVE" */
    im_reading rate_text;
    im_rate rate;
    im_reading link_layer; /* "InfiniBand", "Ethernet" */
    bool ethernet;         /* link_layer says so */
    im_reading lid, sm_lid, sm_sl, lmc, cap_mask;
    im_gid *gid; /* those that are not all zero */
    size_t ngids;
    size_t gid_slots;    /* how many files the table has */
    const char *gid_why; /* the table cannot be read */
    im_pkey *pkey;       /* those that are not 0 */
    size_t npkeys;
    const char *pkey_why;
    im_counter *counter;
    size_t ncounters;
    const char *counters_why, *hw_counters_why; /* NULL, or why that folder gave nothing */
    const char *netdev;                         /* the port's net device (RoCE), or its IPoIB one; NULL: none found */
    int mtu_active, mtu_max;                    /* RDMA MTU in bytes; 0: unknown, then mtu_why */
    const char *mtu_from;                       /* "ibv_query_port", "ibv_devinfo", "mtu of eth0" */
    const char *mtu_why;
    im_reading traffic_class; /* tc/<port>/traffic_class, where the driver has it */
} im_rdma_port;

typedef struct im_rdma_device {
    const char *name;
    const char *path; /* below the root, links followed */
    im_reading node_type, node_guid, sys_image_guid, node_desc, fw_ver, hw_rev, hca_type, board_id;
    const im_pci *pci; /* NULL: none (software devices), then pci_why */
    const char *pci_why;
    im_names netdevs;   /* device/net */
    const char *uverbs; /* "uverbs0"; NULL: none */
    im_rdma_port *port;
    size_t nports;
    const char *ports_why;
} im_rdma_device;

/* NULL: there is no such counter. */
const im_counter *im_port_counter(const im_rdma_port *port, const char *name);
/* Reads the counters again (and state, phys_state): for rates. Readings go to root's arena. */
void im_port_refresh(im_root *root, im_rdma_port *port);
/* "400 Gb/sec (4X NDR)" to numbers. */
im_rate im_rate_parse(im_arena *a, const char *text, bool ethernet);

/* ---- GPUs, net devices ----------------------------------------------------------------------------- */

typedef struct im_gpu {
    const char *name; /* "GPU0": in the order of PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID counts them */
    const im_pci *pci;
} im_gpu;

typedef struct im_net {
    const char *name;
    const im_pci *pci;                             /* NULL: virtual */
    im_reading operstate, carrier, speed;          /* speed in Mb/s, number; -1 and errors are unknown */
    im_reading mtu, address, type, ifindex, flags; /* type 1 Ethernet, 32 InfiniBand, 772 loopback */
    im_reading driver, master;                     /* master: the bond or bridge it belongs to */
    im_reading carrier_changes;
    bool is_virtual;
    const char **addr; /* "10.0.1.2/24", "fe80::1/64"; without a length where only a GID tells it */
    size_t naddrs;
    const char *addr_why; /* naddrs 0 though nobody could tell: why */
} im_net;

/* ---- the whole --------------------------------------------------------------------------------------- */

typedef struct im_numa {
    int id;
    im_reading cpus, distance;
} im_numa;

typedef struct im_module {
    const char *name;
    bool loaded;
    im_reading version;
} im_module;

typedef struct im_governor {
    const char *name;
    int cpus;
} im_governor;

typedef struct im_machine {
    const im_root *root;
    im_reading hostname, kernel, cmdline;
    const char *cpu_model; /* NULL: unknown */
    im_pci *pci;           /* by address */
    size_t npci;
    const char *pci_why;
    im_rdma_device *rdma;
    size_t nrdma;
    const char *rdma_why; /* /sys/class/infiniband: "absent" ... */
    im_gpu *gpu;
    size_t ngpus;
    im_net *net;
    size_t nnets;
    const char *net_why;
    im_numa *numa;
    size_t nnumas;
    im_module *module; /* those that matter to RDMA and GPUs, loaded or not; `loaded` is meant where modules_why is NULL */
    size_t nmodules;
    const char *modules_why;
    im_reading peer_memory;             /* version of nvidia_peermem or its forerunners; text NULL: none found */
    im_reading nvidia_version;          /* /proc/driver/nvidia/version */
    im_names dev_infiniband;            /* uverbs0, umad0, rdma_cm */
    int64_t memlock_soft, memlock_hard; /* bytes of /proc/self/limits; -1: unlimited; -2: unknown, then memlock_why */
    const char *memlock_why;
    int64_t shm_bytes; /* of /dev/shm; -1: unknown, then shm_why */
    const char *shm_why;
    im_governor *governor;
    size_t ngovernors;
    const char *governor_why;
    size_t iommu_groups; /* 0 with iommu_why NULL: no IOMMU in use */
    const char *iommu_why;
    im_reading iommu_type; /* "identity" (passthrough), "DMA", "DMA-FQ": of group 0 */
    bool in_container;     /* /.dockerenv, /run/.containerenv, or a container's cgroup */
    bool is_virtual;       /* the processor's flag `hypervisor` */
} im_machine;

/* Everything above. Fails for want of memory alone: what cannot be read is in the readings, and in im_root_troubles. */
im_status im_machine_read(im_context *ctx, im_root *root, im_machine **out) IM_MUST_CHECK;

const im_pci *im_machine_pci(const im_machine *m, const char *address); /* NULL: none */
const im_rdma_device *im_machine_rdma(const im_machine *m, const char *name);
const im_net *im_machine_net(const im_machine *m, const char *name);
const im_module *im_machine_module(const im_machine *m, const char *name);
/* "mellanox", "nvidia", "amd", "intel", "broadcom" ... of a PCI vendor number; NULL: not in the list. */
const char *im_pci_vendor(int64_t vendor);

#endif
